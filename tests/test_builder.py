"""The Builder: each constraint by its number in the StableHLO spec, each operation against MLIR and numpy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from graphs import main, operations, parse, run

from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.emitters.builder import COMPARISONS, REDUCERS, Builder, TensorType, Value

DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "ui8",
    "bool": "i1",
}
Operands = list[Value]


def argument(b: Builder, *shape: int, dtype: str = "f32") -> Value:
    return b.argument(TensorType(shape, dtype))


def finished(b: Builder, results: Sequence[Value], name: str = "test") -> Graph:
    arguments = tuple(Tensor("weight", v.name, v.shape, v.dtype) for v in b.arguments)
    outputs = tuple(Tensor("tap", f"t{i}", v.shape, v.dtype) for i, v in enumerate(results))
    return b.graph(name, Abi("decode", arguments, outputs), results)


# ---- every constraint is refused by its number, with both values and the scope


@pytest.fixture
def b() -> Iterator[Builder]:
    builder = Builder()
    with builder.scope("layers.3"), builder.scope("self_attn"):
        yield builder


@contextmanager
def refused(message: str) -> Iterator[None]:
    with pytest.raises(TypeError) as error:
        yield
    assert str(error.value) == f"{message}, in layers.3.self_attn"


def test_error_outside_of_every_scope() -> None:
    b = Builder()
    message = "reverse (C3): dimensions=[1], operand=tensor<2xf32>, in the function"
    with pytest.raises(TypeError, match=re.escape(message)):
        b.reverse(argument(b, 2), (1,))


BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
UNARY = ("exponential", "logistic", "rsqrt", "tanh")


@pytest.mark.parametrize("op", ["subtract", "divide"])
def test_binary_i1(b: Builder, op: str) -> None:
    pred = argument(b, 2, dtype="i1")
    with refused(f"{op} (I1): lhs=tensor<2xi1> is not of f64, f32, f16, bf16, i64, i32, i8, ui8"):
        getattr(b, op)(pred, pred)


@pytest.mark.parametrize("op", BINARY)
def test_binary_c1(b: Builder, op: str) -> None:
    with refused(f"{op} (C1): types differ, lhs=tensor<2x3xf32>, rhs=tensor<3x2xf32>"):
        getattr(b, op)(argument(b, 2, 3), argument(b, 3, 2))
    with refused(f"{op} (C1): types differ, lhs=tensor<2xf32>, rhs=tensor<2xi32>"):
        getattr(b, op)(argument(b, 2), argument(b, 2, dtype="i32"))


@pytest.mark.parametrize("op", UNARY)
def test_unary_i1(b: Builder, op: str) -> None:
    with refused(f"{op} (I1): operand=tensor<2xi32> is not of floats"):
        getattr(b, op)(argument(b, 2, dtype="i32"))


def test_and_i1(b: Builder) -> None:
    with refused("and (I1): lhs=tensor<2xf32> is not of i64, i32, i8, ui8, i1"):
        b.and_(argument(b, 2), argument(b, 2))


def test_and_c1(b: Builder) -> None:
    with refused("and (C1): types differ, lhs=tensor<2xi1>, rhs=tensor<2xi32>"):
        b.and_(argument(b, 2, dtype="i1"), argument(b, 2, dtype="i32"))


def test_shift_right_logical_i1(b: Builder) -> None:
    with refused("shift_right_logical (I1): lhs=tensor<2xi1> is not of i64, i32, i8, ui8"):
        b.shift_right_logical(argument(b, 2, dtype="i1"), argument(b, 2, dtype="i1"))


def test_shift_right_logical_c1(b: Builder) -> None:
    with refused("shift_right_logical (C1): types differ, lhs=tensor<2xui8>, rhs=tensor<2xi32>"):
        b.shift_right_logical(argument(b, 2, dtype="ui8"), argument(b, 2, dtype="i32"))


def test_compare_c1(b: Builder) -> None:
    with refused("compare (C1): element types differ, lhs=tensor<2xf32>, rhs=tensor<2xi32>"):
        b.compare(argument(b, 2), argument(b, 2, dtype="i32"), "LE")


def test_compare_c2(b: Builder) -> None:
    with refused("compare (C2): shapes differ, lhs=tensor<2xf32>, rhs=tensor<3xf32>"):
        b.compare(argument(b, 2), argument(b, 3), "LE")


def test_compare_i3(b: Builder) -> None:
    with refused("compare (I3): comparison_direction='<='"):
        b.compare(argument(b, 2), argument(b, 2), "<=")


def test_select_i1(b: Builder) -> None:
    with refused("select (I1): pred=tensor<2xi32> is not i1"):
        b.select(argument(b, 2, dtype="i32"), argument(b, 2), argument(b, 2))


def test_select_c1(b: Builder) -> None:
    with refused("select (C1): shapes differ, pred=tensor<2xi1>, on_true=tensor<3xf32>"):
        b.select(argument(b, 2, dtype="i1"), argument(b, 3), argument(b, 3))


def test_select_c2(b: Builder) -> None:
    with refused("select (C2): types differ, on_true=tensor<2xf32>, on_false=tensor<f32>"):
        b.select(argument(b, 2, dtype="i1"), argument(b, 2), argument(b))


@pytest.mark.parametrize("dimension", [-1, 2])
def test_iota_c1(b: Builder, dimension: int) -> None:
    with refused(f"iota (C1): iota_dimension={dimension}, output=tensor<2x3xi32>"):
        b.iota((2, 3), "i32", dimension)


def test_reshape_c2(b: Builder) -> None:
    with refused("reshape (C2): element counts differ, operand=tensor<2x3xf32>, result=tensor<4xf32>"):
        b.reshape(argument(b, 2, 3), (4,))


def test_broadcast_in_dim_c2(b: Builder) -> None:
    with refused("broadcast_in_dim (C2): broadcast_dimensions=[0], operand=tensor<2x3xf32>"):
        b.broadcast_in_dim(argument(b, 2, 3), (2, 3), (0,))


@pytest.mark.parametrize("dimension", [-1, 2])
def test_broadcast_in_dim_c3(b: Builder, dimension: int) -> None:
    with refused(f"broadcast_in_dim (C3): broadcast_dimensions=[{dimension}], result=tensor<2x3xf32>"):
        b.broadcast_in_dim(argument(b, 3), (2, 3), (dimension,))


def test_broadcast_in_dim_c4(b: Builder) -> None:
    with refused("broadcast_in_dim (C4): broadcast_dimensions=[0, 0] repeat"):
        b.broadcast_in_dim(argument(b, 2, 2), (2, 2), (0, 0))


def test_broadcast_in_dim_c5(b: Builder) -> None:
    with refused("broadcast_in_dim (C5): sizes differ, operand[1]=3, result[2]=4"):
        b.broadcast_in_dim(argument(b, 1, 3), (5, 2, 4), (1, 2))


@pytest.mark.parametrize("permutation", [[0], [0, 0], [0, 2], [1, -1]])
def test_transpose_c2(b: Builder, permutation: list[int]) -> None:
    with refused(f"transpose (C2): permutation={permutation}, operand=tensor<2x3xf32>"):
        b.transpose(argument(b, 2, 3), permutation)


def test_reverse_c2(b: Builder) -> None:
    with refused("reverse (C2): dimensions=[1, 1] repeat"):
        b.reverse(argument(b, 2, 3), (1, 1))


@pytest.mark.parametrize("name", ["", "a.b", "my gemm", "1st", "é", 'x"() {}'])
def test_custom_call_i2(b: Builder, name: str) -> None:
    with refused(f"custom_call (I2): call_target_name={name!r} is no identifier"):
        b.custom_call(name, (argument(b, 2),), TensorType((2,), "f32"))


@pytest.mark.parametrize("dimension", [-1, 2])
def test_reverse_c3(b: Builder, dimension: int) -> None:
    with refused(f"reverse (C3): dimensions=[{dimension}], operand=tensor<2x3xf32>"):
        b.reverse(argument(b, 2, 3), (dimension,))


@pytest.mark.parametrize(("starts", "limits"), [((0,), (1,)), ((0, 0), (1,)), ((0, 0, 0), (1, 1, 1))])
def test_slice_c2(b: Builder, starts: tuple[int, ...], limits: tuple[int, ...]) -> None:
    counts = f"{len(starts)} start_indices, {len(limits)} limit_indices, {len(starts)} strides"
    with refused(f"slice (C2): {counts}, operand=tensor<2x3xf32>"):
        b.slice(argument(b, 2, 3), starts, limits)


@pytest.mark.parametrize("bounds", [(-1, 1), (2, 1), (0, 4)])
def test_slice_c3(b: Builder, bounds: tuple[int, int]) -> None:
    with refused(f"slice (C3): indices [(0, 2), {bounds}] leave operand=tensor<2x3xf32>"):
        b.slice(argument(b, 2, 3), (0, bounds[0]), (2, bounds[1]))


def test_slice_c2_of_strides(b: Builder) -> None:
    with refused("slice (C2): 2 start_indices, 2 limit_indices, 1 strides, operand=tensor<2x3xf32>"):
        b.slice(argument(b, 2, 3), (0, 0), (2, 3), (1,))


@pytest.mark.parametrize("stride", [0, -1])
def test_slice_c4(b: Builder, stride: int) -> None:
    with refused(f"slice (C4): strides=[1, {stride}]"):
        b.slice(argument(b, 2, 3), (0, 0), (2, 3), (1, stride))


def test_slice_with_strides(b: Builder) -> None:
    """As many as there are before the limit; a stride of 1 is not written."""
    x = argument(b, 2, 7, 4)
    found = b.slice(x, (0, 1, 0), (2, 7, 4), (1, 3, 2), hint="every_third")
    assert (found.shape, found.name) == ((2, 2, 2), "l3_self_attn.every_third")
    assert "[0:2, 1:7:3, 0:4:2]" in b._lines[-1]


def test_concatenate_c1(b: Builder) -> None:
    with refused("concatenate (C1): element types differ: tensor<2xf32>, tensor<2xi32>"):
        b.concatenate([argument(b, 2), argument(b, 2, dtype="i32")], 0)


@pytest.mark.parametrize("shape", [(3, 3), (2,), (2, 3, 1)])
def test_concatenate_c2(b: Builder, shape: tuple[int, ...]) -> None:
    other = TensorType(shape, "f32")
    with refused(f"concatenate (C2): shapes differ outside dimension 1: tensor<2x3xf32>, {other}"):
        b.concatenate([argument(b, 2, 3), argument(b, *shape)], 1)


def test_concatenate_c3(b: Builder) -> None:
    with refused("concatenate (C3): no inputs"):
        b.concatenate([], 0)


@pytest.mark.parametrize("dimension", [-1, 2])
def test_concatenate_c4(b: Builder, dimension: int) -> None:
    with refused(f"concatenate (C4): dimension={dimension}, inputs[0]=tensor<2x3xf32>"):
        b.concatenate([argument(b, 2, 3)], dimension)


def test_pad_i2(b: Builder) -> None:
    with refused("pad (I2): padding_value=tensor<1xf32> is not a scalar"):
        b.pad(argument(b, 2), argument(b, 1), (0,), (1,))


def test_pad_c1(b: Builder) -> None:
    with refused("pad (C1): element types differ, padding_value=tensor<i32>, operand=tensor<2xf32>"):
        b.pad(argument(b, 2), argument(b, dtype="i32"), (0,), (1,))


def test_pad_c2(b: Builder) -> None:
    with refused("pad (C2): 2 low edges, 1 high edges, operand=tensor<2x3xf32>"):
        b.pad(argument(b, 2, 3), argument(b), (0, 0), (1,))


def test_pad_c4(b: Builder) -> None:
    with refused("pad (C4): low=[-2, 0] and high=[-1, 0] remove more than operand=tensor<2x3xf32> has"):
        b.pad(argument(b, 2, 3), argument(b), (-2, 0), (-1, 0))


def test_dynamic_slice_i2(b: Builder) -> None:
    with refused("dynamic_slice (I2): start_indices are not integer scalars: tensor<f32>"):
        b.dynamic_slice(argument(b, 2), [argument(b)], (1,))
    with refused("dynamic_slice (I2): start_indices are not integer scalars: tensor<1xi32>"):
        b.dynamic_slice(argument(b, 2), [argument(b, 1, dtype="i32")], (1,))


def test_dynamic_slice_c2(b: Builder) -> None:
    start = argument(b, dtype="i32")
    with refused("dynamic_slice (C2): 1 start_indices, operand=tensor<2x3xf32>"):
        b.dynamic_slice(argument(b, 2, 3), [start], (1, 1))
    with refused("dynamic_slice (C2): slice_sizes=[1], operand=tensor<2x3xf32>"):
        b.dynamic_slice(argument(b, 2, 3), [start, start], (1,))


def test_dynamic_slice_c3(b: Builder) -> None:
    starts = [argument(b, dtype="i32"), argument(b, dtype="i64")]
    with refused("dynamic_slice (C3): start_indices differ in type: tensor<i32>, tensor<i64>"):
        b.dynamic_slice(argument(b, 2, 3), starts, (1, 1))


@pytest.mark.parametrize("size", [-1, 4])
def test_dynamic_slice_c4(b: Builder, size: int) -> None:
    start = argument(b, dtype="i32")
    with refused(f"dynamic_slice (C4): slice_sizes=[2, {size}] exceed operand=tensor<2x3xf32>"):
        b.dynamic_slice(argument(b, 2, 3), [start, start], (2, size))


def test_dynamic_update_slice_i3(b: Builder) -> None:
    with refused("dynamic_update_slice (I3): start_indices are not integer scalars: tensor<f32>"):
        b.dynamic_update_slice(argument(b, 2), argument(b, 1), [argument(b)])


def test_dynamic_update_slice_c2(b: Builder) -> None:
    types = "operand=tensor<2xf32>, update=tensor<1xi32>"
    with refused(f"dynamic_update_slice (C2): element types differ, {types}"):
        b.dynamic_update_slice(argument(b, 2), argument(b, 1, dtype="i32"), [argument(b, dtype="i32")])


def test_dynamic_update_slice_c3(b: Builder) -> None:
    start = argument(b, dtype="i32")
    with refused("dynamic_update_slice (C3): ranks differ, operand=tensor<2x3xf32>, update=tensor<3xf32>"):
        b.dynamic_update_slice(argument(b, 2, 3), argument(b, 3), [start, start])


def test_dynamic_update_slice_c4(b: Builder) -> None:
    start = argument(b, dtype="i32")
    with refused("dynamic_update_slice (C4): 1 start_indices, operand=tensor<2x3xf32>"):
        b.dynamic_update_slice(argument(b, 2, 3), argument(b, 1, 3), [start])


def test_dynamic_update_slice_c5(b: Builder) -> None:
    starts = [argument(b, dtype="i64"), argument(b, dtype="i32")]
    with refused("dynamic_update_slice (C5): start_indices differ in type: tensor<i64>, tensor<i32>"):
        b.dynamic_update_slice(argument(b, 2, 3), argument(b, 1, 3), starts)


def test_dynamic_update_slice_c6(b: Builder) -> None:
    start = argument(b, dtype="i32")
    with refused("dynamic_update_slice (C6): update=tensor<1x4xf32> exceeds operand=tensor<2x3xf32>"):
        b.dynamic_update_slice(argument(b, 2, 3), argument(b, 1, 4), [start, start])


def test_gather_c1(b: Builder) -> None:
    with refused("gather (C1): operand=tensor<5xf32> is not a table of rows"):
        b.gather_rows(argument(b, 5), argument(b, 2, dtype="i32"))


def test_gather_i2(b: Builder) -> None:
    with refused("gather (I2): start_indices=tensor<2xf32> is not of integers"):
        b.gather_rows(argument(b, 5, 3), argument(b, 2))


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 1, 1)])
def test_gather_c3(b: Builder, shape: tuple[int, ...]) -> None:
    with refused(f"gather (C3): start_indices={TensorType(shape, 'i32')} is not one index per row"):
        b.gather_rows(argument(b, 5, 3), argument(b, *shape, dtype="i32"))


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 3), (2, 2, 1)])
def test_gather_c3_of_two_dimensions(b: Builder, shape: tuple[int, ...]) -> None:
    with refused(f"gather (C3): start_indices={TensorType(shape, 'i32')} is not 2 indices per row"):
        b.gather(argument(b, 5, 3, 4), argument(b, *shape, dtype="i32"), (0, 2))


def test_gather_c1_of_two_dimensions(b: Builder) -> None:
    with refused("gather (C1): operand=tensor<5x3xf32> is not a table of rows"):
        b.gather(argument(b, 5, 3), argument(b, 2, 2, dtype="i32"), (0, 1))


def scatter_types(indices: str = "tensor<2x1xi32>", updates: str = "tensor<2x3xf32>") -> str:
    return f"operand=tensor<5x3xf32>, scatter_indices={indices}, updates={updates}"


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 1, 1)])
@pytest.mark.parametrize("dtype", ["i32", "f32"])
def test_scatter_i2(b: Builder, shape: tuple[int, ...], dtype: str) -> None:
    types = scatter_types(str(TensorType(shape, dtype)))
    with refused(f"scatter (I2): indices are not integers [T, 1], {types}"):
        b.scatter_rows(argument(b, 5, 3), argument(b, *shape, dtype=dtype), argument(b, 2, 3))


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (2, 3, 1), (2,)])
def test_scatter_c4(b: Builder, shape: tuple[int, ...]) -> None:
    with refused(f"scatter (C4): updates are not [2, 3], {scatter_types(updates=str(TensorType(shape, 'f32')))}"):
        b.scatter_rows(argument(b, 5, 3), argument(b, 2, 1, dtype="i32"), argument(b, *shape))


def test_scatter_c6(b: Builder) -> None:
    with refused(f"scatter (C6): element types differ, {scatter_types(updates='tensor<2x3xi32>')}"):
        b.scatter_rows(argument(b, 5, 3), argument(b, 2, 1, dtype="i32"), argument(b, 2, 3, dtype="i32"))


def dot(b: Builder, lhs: Sequence[int], rhs: Sequence[int], *numbers: Sequence[int]) -> Value:
    """`numbers`: contracting dimensions of lhs and rhs, then batching dimensions of lhs and rhs."""
    lc, rc, lb, rb = numbers
    return b.dot_general(argument(b, *lhs), argument(b, *rhs), (lc, rc), (lb, rb))


def test_dot_general_c1(b: Builder) -> None:
    with refused("dot_general (C1): batching dimensions [0] and []"):
        dot(b, (2, 3), (2, 3), (1,), (1,), (0,), ())


def test_dot_general_c2(b: Builder) -> None:
    with refused("dot_general (C2): contracting dimensions [0, 1] and [1]"):
        dot(b, (2, 3), (2, 3), (0, 1), (1,), (), ())


def test_dot_general_c3(b: Builder) -> None:
    with refused("dot_general (C3): lhs dimensions [1, 1] repeat"):
        dot(b, (2, 3), (3, 3), (1,), (1,), (1,), (0,))


def test_dot_general_c4(b: Builder) -> None:
    with refused("dot_general (C4): rhs dimensions [0, 0] repeat"):
        dot(b, (3, 3), (3, 2), (1,), (0,), (0,), (0,))


def test_dot_general_c5(b: Builder) -> None:
    with refused("dot_general (C5): dimensions [2] of tensor<2x3xf32>"):
        dot(b, (2, 3), (2, 3), (1,), (1,), (2,), (0,))


def test_dot_general_c6(b: Builder) -> None:
    with refused("dot_general (C6): dimensions [-1] of tensor<2x3xf32>"):
        dot(b, (2, 3), (2, 3), (-1,), (1,), (), ())


def test_dot_general_c7(b: Builder) -> None:
    with refused("dot_general (C7): dimensions [5] of tensor<2x3xf32>"):
        dot(b, (2, 3), (2, 3), (1,), (1,), (0,), (5,))


def test_dot_general_c8(b: Builder) -> None:
    with refused("dot_general (C8): dimensions [2] of tensor<2x3xf32>"):
        dot(b, (2, 3), (2, 3), (1,), (2,), (), ())


def test_dot_general_c9(b: Builder) -> None:
    with refused("dot_general (C9): batching sizes differ, lhs[0]=2, rhs[0]=4"):
        dot(b, (2, 3), (4, 3), (1,), (1,), (0,), (0,))


def test_dot_general_c10(b: Builder) -> None:
    with b.scope("q_proj"), pytest.raises(TypeError) as error:
        dot(b, (1, 2048), (2048, 4096), (1,), (1,), (), ())
    assert str(error.value) == (
        "dot_general (C10): contracting sizes differ, lhs[1]=2048, rhs[1]=4096, in layers.3.self_attn.q_proj"
    )


def test_dot_general_c13(b: Builder) -> None:
    with refused("dot_general (C13): element types differ, lhs=tensor<2x3xf32>, rhs=tensor<4x3xbf16>"):
        b.dot_general(argument(b, 2, 3), argument(b, 4, 3, dtype="bf16"), ((1,), (1,)))


def test_reduce_i2(b: Builder) -> None:
    with refused("reduce (I2): init_value=tensor<1xf32> is not a scalar"):
        b.reduce(argument(b, 2), argument(b, 1), (0,), "add")


def test_reduce_c2(b: Builder) -> None:
    with refused("reduce (C2): element types differ, init_value=tensor<i32>, operand=tensor<2xf32>"):
        b.reduce(argument(b, 2), argument(b, dtype="i32"), (0,), "add")


@pytest.mark.parametrize("dimension", [-1, 1])
def test_reduce_c4(b: Builder, dimension: int) -> None:
    with refused(f"reduce (C4): dimensions=[{dimension}], operand=tensor<2xf32>"):
        b.reduce(argument(b, 2), argument(b), (dimension,), "add")


def test_reduce_c5(b: Builder) -> None:
    with refused("reduce (C5): dimensions=[0, 0] repeat"):
        b.reduce(argument(b, 2), argument(b), (0, 0), "add")


def test_reduce_i4(b: Builder) -> None:
    with refused("reduce (I4): body='mean' is not one of ('add', 'maximum', 'minimum', 'multiply')"):
        b.reduce(argument(b, 2), argument(b), (0,), "mean")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (float("nan"), "f32"),
        (1e39, "f32"),
        (65536.0, "f16"),
        (3.4e38, "bf16"),
        (2**31, "i32"),
        (-1, "ui8"),
        (128, "i8"),
        (2, "i1"),
        (1.5, "i32"),
        (float("inf"), "i32"),
        (float("nan"), "i32"),
    ],
)
def test_constant_c1(b: Builder, value: float, dtype: str) -> None:
    with refused(f"constant (C1): value={value} is not of type {dtype}"):
        b.constant(value, dtype)


def test_while_c1(b: Builder) -> None:
    x = argument(b, 2)
    with refused("while (C1): returns [tensor<2xf32>]"):
        b.while_([x], lambda state: state[0], lambda state: state)


def test_while_c2(b: Builder) -> None:
    x, y = argument(b, 2), argument(b, dtype="i1")
    with refused("while (C2): returns [tensor<2xf32>]"):
        b.while_([x, y], lambda state: state[1], lambda state: state[:1])


# ---- every operation: its text parses, its type is MLIR's, its value is numpy's


@dataclass(frozen=True)
class Case:
    """An operation on arguments of these values, and what numpy says it is."""

    arguments: tuple[np.ndarray, ...]
    build: Callable[[Builder, Operands], Value]
    expected: Callable[..., np.ndarray]
    rtol: float = 0.0


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, size=shape, dtype=np.int32)


def scalar(value: int) -> np.ndarray:
    return np.array(value, np.int32)


NAN = np.array([1.0, np.nan, np.inf, -0.0], np.float32)
MIXED = np.array([1.0, 2.0, -np.inf, 0.0], np.float32)
NUMPY = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}
EXACT = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
# XLA's vectorized exp, logistic, rsqrt and tanh are polynomials of a few float32 roundings; a product sums at most 6 terms.
CLOSE = 2e-6

CASES: dict[str, Case] = {
    **{
        op: Case((floats(3, 2), floats(3, 2, seed=1)), lambda b, v, op=op: getattr(b, op)(*v), expected)
        for op, expected in EXACT.items()
    },
    **{
        f"{op}-i32": Case((integers(3), integers(3, seed=1)), lambda b, v, op=op: getattr(b, op)(*v), expected)
        for op, expected in EXACT.items()
    },
    "divide": Case((floats(3, 2), floats(3, 2, seed=1)), lambda b, v: b.divide(*v), np.divide, CLOSE),
    "divide-i32": Case((integers(4), integers(4, seed=1)), lambda b, v: b.divide(*v), lambda x, y: x // y),
    "add-i1": Case((np.array([True, False]), np.array([True, True])), lambda b, v: b.add(*v), np.logical_or),
    "exponential": Case((floats(2, 3),), lambda b, v: b.exponential(*v), np.exp, CLOSE),
    "logistic": Case((floats(2, 3),), lambda b, v: b.logistic(*v), lambda x: 1 / (1 + np.exp(-x)), CLOSE),
    "rsqrt": Case((np.abs(floats(2, 3)),), lambda b, v: b.rsqrt(*v), lambda x: 1 / np.sqrt(x), CLOSE),
    "tanh": Case((4 * floats(2, 3),), lambda b, v: b.tanh(*v), np.tanh, CLOSE),
    "and": Case(
        (np.array([True, False, True, False]), np.array([True, True, False, False])), lambda b, v: b.and_(*v), np.logical_and
    ),
    "and-i32": Case((integers(5), integers(5, seed=1)), lambda b, v: b.and_(*v), np.bitwise_and),
    "shift_right_logical-ui8": Case(
        (np.array([0, 15, 16, 200, 255], np.uint8), np.array([4, 4, 4, 0, 7], np.uint8)),
        lambda b, v: b.shift_right_logical(*v), np.right_shift,
    ),
    "shift_right_logical-i32": Case(
        (np.array([-1, 37, -16], np.int32), np.array([4, 4, 28], np.int32)), lambda b, v: b.shift_right_logical(*v),
        lambda x, n: (x.view(np.uint32) >> n.view(np.uint32)).view(np.int32),
    ),
    "convert-f32-bf16": Case((floats(5),), lambda b, v: b.convert(*v, "bf16"), lambda x: x.astype(ml_dtypes.bfloat16)),
    "convert-i32-f32": Case((integers(5),), lambda b, v: b.convert(*v, "f32"), lambda x: x.astype(np.float32)),
    "convert-i1-f32": Case(
        (np.array([True, False]),), lambda b, v: b.convert(*v, "f32"), lambda x: x.astype(np.float32)
    ),
    "convert-ui8-i32": Case(
        (np.array([0, 200, 255], np.uint8),), lambda b, v: b.convert(*v, "i32"), lambda x: x.astype(np.int32)
    ),
    **{
        f"compare-{d}": Case((NAN, MIXED), lambda b, v, d=d: b.compare(*v, d), NUMPY[d]) for d in COMPARISONS
    },
    "compare-i32": Case((scalar(-1), scalar(1)), lambda b, v: b.compare(*v, "LT"), np.less),
    "compare-ui8": Case(
        (np.array([200], np.uint8), np.array([100], np.uint8)), lambda b, v: b.compare(*v, "LT"), np.less
    ),
    "compare-i1": Case((np.array([False, True]), np.array([True, True])), lambda b, v: b.compare(*v, "LT"), np.less),
    "select": Case(
        (np.array([[True, False]]), floats(1, 2), floats(1, 2, seed=1)), lambda b, v: b.select(*v), np.where
    ),
    "select-scalar": Case((np.array(False), floats(3), floats(3, seed=1)), lambda b, v: b.select(*v), np.where),
    "iota-0": Case((), lambda b, v: b.iota((3, 2), "i32", 0), lambda: np.indices((3, 2), np.int32)[0]),
    "iota-1": Case((), lambda b, v: b.iota((3, 2), "i32", 1), lambda: np.indices((3, 2), np.int32)[1]),
    "optimization_barrier": Case((floats(2, 3),), lambda b, v: b.optimization_barrier(*v), lambda x: x),
    "reshape": Case((floats(2, 3, 4),), lambda b, v: b.reshape(*v, (6, 1, 4)), lambda x: x.reshape(6, 1, 4)),
    "reshape-scalar": Case((floats(1, 1),), lambda b, v: b.reshape(*v, ()), lambda x: x.reshape(())),
    "reshape-same": Case((floats(2, 3),), lambda b, v: b.reshape(*v, (2, 3)), lambda x: x),
    "broadcast_in_dim-row": Case(
        (floats(3),), lambda b, v: b.broadcast_in_dim(*v, (2, 3), (1,)), lambda x: np.broadcast_to(x, (2, 3))
    ),
    "broadcast_in_dim-column": Case(
        (floats(2),), lambda b, v: b.broadcast_in_dim(*v, (2, 3), (0,)), lambda x: np.broadcast_to(x[:, None], (2, 3))
    ),
    "broadcast_in_dim-square-column": Case(
        (floats(3),), lambda b, v: b.broadcast_in_dim(*v, (3, 3), (0,)), lambda x: np.broadcast_to(x[:, None], (3, 3))
    ),
    "broadcast_in_dim-one": Case(
        (floats(2, 1),), lambda b, v: b.broadcast_in_dim(*v, (2, 3), (0, 1)), lambda x: np.broadcast_to(x, (2, 3))
    ),
    "broadcast_in_dim-scalar": Case(
        (floats(),), lambda b, v: b.broadcast_in_dim(*v, (2, 3), ()), lambda x: np.broadcast_to(x, (2, 3))
    ),
    "broadcast_in_dim-same": Case((floats(2, 3),), lambda b, v: b.broadcast_in_dim(*v, (2, 3), (0, 1)), lambda x: x),
    # Nothing is repeated, and still this is not the identity.
    "broadcast_in_dim-exchange": Case(
        (floats(3, 3),), lambda b, v: b.broadcast_in_dim(*v, (3, 3), (1, 0)), lambda x: x.T
    ),
    "transpose": Case((floats(2, 1, 3),), lambda b, v: b.transpose(*v, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "reverse": Case((floats(3, 2, 4),), lambda b, v: b.reverse(*v, (0, 2)), lambda x: x[::-1, :, ::-1]),
    "slice": Case((floats(4, 3),), lambda b, v: b.slice(*v, (1, 0), (4, 2)), lambda x: x[1:4, 0:2]),
    "concatenate": Case(
        (floats(2, 1), floats(2, 3), floats(2, 2)),
        lambda b, v: b.concatenate(v, 1),
        lambda *x: np.concatenate(x, 1),
    ),
    "concatenate-one": Case((floats(2, 1),), lambda b, v: b.concatenate(v, 0), lambda x: x),
    "pad": Case(
        (floats(2, 3), floats(seed=1)),
        lambda b, v: b.pad(*v, (1, 0), (0, 2)),
        lambda x, p: np.pad(x, ((1, 0), (0, 2)), constant_values=p),
    ),
    "pad-negative": Case((floats(4), floats()), lambda b, v: b.pad(*v, (-1,), (-1,)), lambda x, p: x[1:3]),
    "dynamic_slice": Case(
        (floats(5, 3), scalar(2), scalar(0)),
        lambda b, v: b.dynamic_slice(v[0], v[1:], (2, 3)),
        lambda x, i, j: x[2:4],
    ),
    "dynamic_slice-clamped": Case(
        (floats(5, 3), scalar(9), scalar(-7)),
        lambda b, v: b.dynamic_slice(v[0], v[1:], (2, 2)),
        lambda x, i, j: x[3:5, 0:2],
    ),
    "dynamic_update_slice": Case(
        (floats(3, 2), floats(1, 2, seed=1), scalar(1), scalar(0)),
        lambda b, v: b.dynamic_update_slice(v[0], v[1], v[2:]),
        lambda x, u, i, j: np.concatenate([x[:1], u, x[2:]]),
    ),
    "scatter": Case(
        (floats(5, 3), np.array([[1], [4]], np.int32), floats(2, 3, seed=1)),
        lambda b, v: b.scatter_rows(*v),
        lambda t, i, u: np.stack([u[i[:, 0].tolist().index(n)] if n in i else t[n] for n in range(len(t))]),
    ),
    "gather": Case(
        (floats(5, 3), np.array([[4], [0], [4]], np.int32)), lambda b, v: b.gather_rows(*v), lambda x, i: x[i[:, 0]]
    ),
    "gather-matrices": Case(
        (floats(5, 3, 2), np.array([[4], [0], [4]], np.int32)), lambda b, v: b.gather_rows(*v), lambda x, i: x[i[:, 0]]
    ),
    "gather-clamped": Case(
        (floats(5, 2, 1, 3), np.array([[9], [-7]], np.int32)), lambda b, v: b.gather_rows(*v), lambda x, i: x[[4, 0]]
    ),
    "gather-panels": Case(
        (floats(3, 5, 4), np.array([[2, 3], [0, 0], [2, 1]], np.int32)), lambda b, v: b.gather(*v, (0, 2)),
        lambda x, i: x[i[:, 0], :, i[:, 1]],
    ),
    "gather-panels-clamped": Case(
        (floats(3, 5, 4), np.array([[9, -1], [-7, 4]], np.int32)), lambda b, v: b.gather(*v, (0, 2)),
        lambda x, i: x[[2, 0], :, [0, 3]],
    ),
    "dot_general-linear": Case(
        (floats(2, 3), floats(4, 3, seed=1)),
        lambda b, v: b.dot_general(*v, ((1,), (1,))),
        lambda x, w: x @ w.T,
        CLOSE,
    ),
    "dot_general-batched": Case(
        (floats(2, 3, 4, 5), floats(3, 6, 5, seed=1)),
        lambda b, v: b.dot_general(*v, ((3,), (2,)), ((1,), (0,))),
        lambda q, k: np.einsum("tkgd,ksd->ktgs", q, k),
        CLOSE,
    ),
    "dot_general-two": Case(
        (floats(2, 3, 1), floats(3, 2, 4, seed=1)),
        lambda b, v: b.dot_general(*v, ((0, 1), (1, 0))),
        lambda x, y: np.einsum("abc,bad->cd", x, y),
        CLOSE,
    ),
    **{
        f"reduce-{body}": Case(
            (floats(3, 2, 2), np.array(1.5, np.float32)),
            lambda b, v, body=body: b.reduce(*v, (0, 2), body),
            lambda x, i, body=body: EXACT[body].reduce(EXACT[body].reduce(x, 2), 0, initial=i),
            CLOSE,
        )
        for body in REDUCERS
    },
}  # fmt: skip


def built(case: Case, b: Builder) -> tuple[Graph, Value]:
    arguments = [argument(b, *a.shape, dtype=DTYPES[a.dtype.name]) for a in case.arguments]
    with b.scope("layers.0"), b.scope("here"):
        result = case.build(b, arguments)
    return finished(b, [result]), result


@pytest.mark.parametrize("name", CASES)
def test_type_is_mlirs(name: str) -> None:
    """The text declares the type that the Builder inferred; MLIR's verifier infers its own and compares."""
    graph, result = built(CASES[name], Builder())
    module = parse(graph.text)
    *written, returned = main(module).regions[0].blocks[0].operations
    assert str(returned.operands[0].type) == str(result.type)
    if name.endswith("-same"):
        assert not written, "the operand itself is the result"
    else:
        assert [o.operation.name for o in written] == [f"stablehlo.{name.split('-')[0]}"]
        assert written[0].location.name_str == "layers.0.here"


@pytest.mark.parametrize("name", CASES)
def test_value_is_numpys(name: str) -> None:
    case = CASES[name]
    graph, _ = built(case, Builder())
    (computed,) = run(graph, *case.arguments)
    expected = np.asarray(case.expected(*case.arguments))
    assert (computed.shape, computed.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(computed, expected, rtol=case.rtol, atol=case.rtol)


def test_every_constraint_has_a_test() -> None:
    checked: set[tuple[str, str]] = set()

    class Recording(Builder):
        def _check(self, op: str, number: str, holds: bool, message: str) -> None:
            checked.add((op, number))

    for case in CASES.values():
        built(case, Recording())
    Recording().constant(1, "i32")
    Recording().custom_call("elsewhere", (), TensorType((), "f32"))
    b = Recording()
    b.while_([argument(b, dtype="i1")], lambda state: state[0], lambda state: state)
    groups = {**dict.fromkeys(BINARY, "binary"), **dict.fromkeys(UNARY, "unary")}
    wanted = {f"test_{groups.get(op, op)}_{number.lower()}" for op, number in checked}
    assert len(wanted) > 40
    assert wanted <= set(globals()), sorted(wanted - set(globals()))
    tested = {name for name in globals() if re.fullmatch(r"test_[a-z_]+_[ci]\d+", name)}
    assert tested == wanted


def test_while() -> None:
    """A loop in a loop: both use what was before them, and constants that the inner one names first are there after it."""
    b = Builder()
    times, x = argument(b, dtype="i32"), argument(b, 2)

    def below(state: Sequence[Value]) -> Value:
        return b.compare(state[0], times, "LT")

    def outer(state: Sequence[Value]) -> list[Value]:
        number, total = state
        with b.scope("inner"):
            _, total = b.while_([number, total], below, inner)
        return [b.add(number, b.constant(1, "i32")), total]

    def inner(state: Sequence[Value]) -> list[Value]:
        number, total = state
        return [b.add(number, b.constant(1, "i32")), b.add(total, b.multiply(x, b.constant(0.5, "f32", (2,))))]

    with b.scope("sum"):
        _, total = b.while_([b.constant(0, "i32"), x], below, outer)
    graph = finished(b, [total, b.constant(0.5, "f32", (2,))])
    assert graph.text.count("dense<0.5>") == 1
    given = np.array([3.0, -2.0], np.float32)
    for n in (0, 1, 4):
        found, half = run(graph, np.int32(n), given)
        np.testing.assert_array_equal(found, given * (1 + 0.5 * n * (n + 1) / 2))
        np.testing.assert_array_equal(half, 0.5)
    assert 'loc("sum.inner")' in graph.text


# ---- constants


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *((v, "f32") for v in (0.0, -0.0, 1.0, -1.5, 1e-05, 1e20, 1.5e-7, 1e-45, 3.4028234663852886e38, 0.1, 1 / 576)),
        *((float(v), d) for v in ("inf", "-inf") for d in ("f32", "f16", "bf16")),
        (65504.0, "f16"),
        *((v, "i32") for v in (0, -1, 2**31 - 1, -(2**31))),
        (2**63 - 1, "i64"),
        (-128, "i8"),
        (255, "ui8"),
        (True, "i1"),
        (0, "i1"),
    ],
)
def test_constant(value: float, dtype: str) -> None:
    b = Builder()
    (computed,) = run(finished(b, [b.constant(value, dtype, (2,))]))
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bf16" else {d: n for n, d in DTYPES.items()}[dtype]
    expected = np.full(2, value, numpy_dtype)
    assert computed.dtype == expected.dtype
    assert computed.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_table(dtype: type) -> None:
    b, array = Builder(), np.arange(6).reshape(2, 3).astype(dtype) - 2
    transposed = array.T  # not contiguous
    graph = finished(b, [b.table(array), b.table(transposed), b.table(array.astype(f">{np.dtype(dtype).str[1:]}"))])
    assert graph.text.count("stablehlo.constant") == 2
    module = parse(graph.text)
    constants = [o for o in operations(module) if o.name == "stablehlo.constant"]
    assert len(constants) == 2
    first, second, third = run(graph)
    for computed, expected in ((first, array), (second, transposed), (third, array)):
        assert computed.dtype == expected.dtype
        np.testing.assert_array_equal(computed, expected)


def test_table_of_another_type() -> None:
    with pytest.raises(TypeError, match=re.escape("table (C1): float64 is not float32 or int32, in the function")):
        Builder().table(np.zeros(2))


def test_equal_constants_are_written_once() -> None:
    b = Builder()
    with b.scope("layers.0"):
        one = b.constant(1.0, "f32")
    with b.scope("layers.1"):
        assert b.constant(1.0, "f32") is one
        assert b.constant(1, "f32") is one
    others = [b.constant(1.0, "f32", (1,)), b.constant(1, "i32"), b.constant(1.0, "bf16"), b.constant(-0.0, "f32")]
    assert len({v.name for v in (one, *others, b.constant(0.0, "f32"))}) == 6
    module = parse(finished(b, [one, *others]).text)
    constants = [o for o in operations(module) if o.name == "stablehlo.constant"]
    assert len(constants) == 6
    assert "layers" not in str(constants[0].location), "a constant belongs to the function, not to its first user"


# ---- names, scopes, the finished function


def test_names_restart_in_each_scope() -> None:
    b = Builder()
    x = argument(b, 2)
    names = []
    for layer in range(2):
        with b.scope(f"layers.{layer}"):
            with b.scope("mlp"):
                names += [b.add(x, x).name, b.add(x, x).name]
            names.append(b.logistic(x).name)
    assert names == ["l0_mlp.add", "l0_mlp.add1", "l0.logistic", "l1_mlp.add", "l1_mlp.add1", "l1.logistic"]
    assert b.anchor == ""


def test_scope_is_left_after_an_error() -> None:
    b = Builder()
    with pytest.raises(TypeError), b.scope("norm"):
        b.rsqrt(argument(b, 2, dtype="i32"))
    assert b.anchor == ""


def test_graph_with_other_results_than_its_abi() -> None:
    b = Builder()
    x = argument(b, 2)
    abi = Abi("decode", (Tensor("weight", "w", (2,), "f32"),), (Tensor("logits", "logits", (2,), "f32"),))
    with pytest.raises(TypeError, match="g: 0 results, and the ABI has 1"):
        b.graph("g", abi, [])
    with pytest.raises(
        TypeError, match=re.escape("g: result logits is tensor<1x2xf32>, and the ABI has tensor<2xf32>")
    ):
        b.graph("g", abi, [b.reshape(x, (1, 2))])
    argument(b, 3)
    with pytest.raises(TypeError, match="g: 2 arguments, and the ABI has 1"):
        b.graph("g", abi, [x])


def test_argument_names() -> None:
    b = Builder()
    x = b.argument(TensorType((2,), "f32"), "model.norm.weight")
    assert x.name == "model.norm.weight"
    with pytest.raises(ValueError, match=r"argument model\.norm\.weight: the name is taken"):
        b.argument(TensorType((2,), "f32"), "model.norm.weight")
    y = b.argument(TensorType((2,), "f32"), "add")
    total = b.add(x, y)
    assert total.name == "add1", "an operation gives way to an argument"
    np.testing.assert_array_equal(run(finished(b, [total]), floats(2), floats(2))[0], 2 * floats(2))
