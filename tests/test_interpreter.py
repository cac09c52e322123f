"""StableHLO's interpreter as a backend: every operation that our graphs have, of any rank and type, as XLA computes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs import run as run_on_xla
from models import PHASES, SOURCES, T, model
from stablehlo_interpreter import Interpreter

from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import ToolchainError

RNG = np.random.default_rng(1)


def graph(body: str, arguments: str = "", results: str = "tensor<f32>") -> Graph:
    text = f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}"
    return Graph("g", text, Abi("decode", (), (Tensor("tap", "t", (), "f32"),)))


def evaluate(wanted: Graph, *arguments: np.ndarray) -> list[np.ndarray]:
    backend = Interpreter()
    results = backend.load(wanted)([backend.upload(a) for a in arguments])
    return [backend.download(r) for r in results]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (1, 1, 2, 1)])
@pytest.mark.parametrize(("dtype", "name"), [(np.float32, "f32"), (np.int32, "i32")])
def test_arguments_and_results_of_any_rank(shape: tuple[int, ...], dtype: type, name: str) -> None:
    """A scalar is a scalar: a position is one."""
    type = f"tensor<{''.join(f'{n}x' for n in shape)}{name}>"
    value = np.array(RNG.integers(1, 99, shape), dtype)
    body = f"%1 = stablehlo.add %0, %0 : {type}\nreturn %1, %0 : {type}, {type}"
    twice, same = evaluate(graph(body, f"%0: {type}", f"{type}, {type}"), value)
    np.testing.assert_array_equal(twice, value + value)
    np.testing.assert_array_equal(same, value)
    assert (twice.shape, twice.dtype) == (shape, dtype)


def transposed(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value.T).T


@pytest.mark.parametrize("layout", [np.ascontiguousarray, transposed, lambda v: np.pad(v, 1)[1:-1, 1:-1]])
def test_arguments_of_any_layout(layout: Callable[[np.ndarray], np.ndarray]) -> None:
    value = layout(np.arange(6, dtype=np.float32).reshape(2, 3))
    (same,) = evaluate(graph("return %0 : tensor<2x3xf32>", "%0: tensor<2x3xf32>", "tensor<2x3xf32>"), value)
    np.testing.assert_array_equal(same, value)


@pytest.mark.parametrize("shape", [(), (5,), (3, 3), (11, 1)])
def test_booleans(shape: tuple[int, ...]) -> None:
    """MLIR packs them into bits."""
    kind = "".join(f"{n}x" for n in shape)
    left, right = RNG.random(shape) < 0.5, np.array(RNG.integers(0, 2, shape), np.int32)
    body = (
        f"%c = stablehlo.constant dense<1> : tensor<{kind}i32>\n"
        f"%1 = stablehlo.compare EQ, %r, %c : (tensor<{kind}i32>, tensor<{kind}i32>) -> tensor<{kind}i1>\n"
        f"%2 = stablehlo.and %l, %1 : tensor<{kind}i1>\nreturn %1, %2 : tensor<{kind}i1>, tensor<{kind}i1>"
    )
    arguments = f"%l: tensor<{kind}i1>, %r: tensor<{kind}i32>"
    found = evaluate(graph(body, arguments, f"tensor<{kind}i1>, tensor<{kind}i1>"), left, right)
    for got, expected in zip(found, (right == 1, left & (right == 1)), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert (got.dtype, got.shape) == (np.bool_, shape)


def test_numbers_that_are_none() -> None:
    value = np.array([np.inf, -np.inf, np.nan, 1e-45, -0.0], np.float32)
    (same,) = evaluate(graph("return %0 : tensor<5xf32>", "%0: tensor<5xf32>", "tensor<5xf32>"), value)
    np.testing.assert_array_equal(same.view(np.int32), value.view(np.int32))


def test_what_it_gives_back_is_ours() -> None:
    """Not the memory of a value that MLIR has freed."""
    wanted = graph("return %0 : tensor<2x3xf32>", "%0: tensor<2x3xf32>", "tensor<2x3xf32>")
    (first,) = evaluate(wanted, np.ones((2, 3), np.float32))
    evaluate(wanted, np.zeros((2, 3), np.float32))
    assert (first == 1).all()
    assert first.flags.owndata or first.base.flags.owndata


def test_a_graph_that_does_not_parse() -> None:
    with pytest.raises(ToolchainError, match="load failed") as error:
        Interpreter().load(graph("%1 = stablehlo.no_such_op %0 : tensor<f32>\nreturn %1 : tensor<f32>"))
    assert "\n" not in str(error.value)


def test_arguments_that_do_not_fit() -> None:
    wanted = graph("return %0 : tensor<2xf32>", "%0: tensor<2xf32>", "tensor<2xf32>")
    with pytest.raises(ToolchainError, match="input type was 'tensor<3xf32>' but entry function expected"):
        evaluate(wanted, np.zeros(3, np.float32))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("source", SOURCES)
def test_whole_graphs_as_xla_computes_them(source: str, phase: str) -> None:
    """Both sources: an einsum, a gather, a scatter or a concatenation is lowered by JAX, a reverse by hand."""
    whole, load = model("biases").graph(source, phase), model("biases").checkpoint.load
    inputs = {"tokens": np.arange(T), "token": np.array(7), "length": np.array(5), "position": np.array(9)}
    arguments = []
    for a in whole.abi.arguments:
        if a.role == "weight":
            arguments.append(load(a.name))
        elif a.role in inputs:
            arguments.append(inputs[a.role].astype(np.int32))
        else:
            arguments.append(RNG.normal(0, 1, a.shape).astype(np.float32))
    for got, expected in zip(evaluate(whole, *arguments), run_on_xla(whole, *arguments), strict=True):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())
