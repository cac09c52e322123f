"""Operations whose shape is an operand, which is a constant here: exporters write them for graphs of any length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hloracle.ops.describe import MOVED, Description, Form, Operand
from hloracle.ops.descriptions.indexing import GATHERS, gather_numbers, index_values
from hloracle.ops.descriptions.movement import BROADCASTS, IOTAS, PADDINGS, RESHAPES, SLICES
from hloracle.ops.descriptions.shapes import array, dims
from hloracle.ops.values import anywhere, given
from hloracle.semantics.program import Type

TYPES = ("f32", "bf16", "i32", "i1")


def constant(numbers: tuple[int, ...], dtype: str = "i64") -> Operand:
    """A vector that stands in the module."""
    return Operand(Type((len(numbers),), dtype), given(np.array(numbers, np.int64)), constant=True)


def _broadcast_in_dim() -> Iterator[Form]:
    for dtype in TYPES:
        for shape, to, result in BROADCASTS:
            label = f"{dtype}/{dims(shape)}-{dims(result)}-{'.'.join(map(str, to))}"
            operands = (Operand(Type(shape, dtype), anywhere), constant(result))
            yield Form(label, operands, (Type(result, dtype),), f"broadcast_dimensions = {array(to)}")


def _iota() -> Iterator[Form]:
    for dtype in ("f32", "i32", "i64"):
        for shape, axis in IOTAS:
            attributes = f"iota_dimension = {axis} : i64"
            yield Form(f"{dtype}/{dims(shape)}-{axis}", (constant(shape),), (Type(shape, dtype),), attributes)


def _reshape() -> Iterator[Form]:
    for dtype in TYPES:
        for shape, result in RESHAPES:
            operands = (Operand(Type(shape, dtype), anywhere), constant(result))
            yield Form(f"{dtype}/{dims(shape)}-{dims(result)}", operands, (Type(result, dtype),))


def _pad() -> Iterator[Form]:
    for dtype in TYPES:
        for shape, low, high, inside in PADDINGS:
            result = tuple(a + n + max(0, n - 1) * k + b for n, a, b, k in zip(shape, low, high, inside, strict=True))
            amounts = ".".join(f"{a}_{b}_{k}" for a, b, k in zip(low, high, inside, strict=True))
            padded = (Operand(Type(shape, dtype), anywhere), Operand(Type((), dtype), given([1])))
            operands = (*padded, constant(low), constant(high), constant(inside))
            yield Form(f"{dtype}/{dims(shape)}-{amounts or 'none'}", operands, (Type(result, dtype),))


def _slice() -> Iterator[Form]:
    for dtype in TYPES:
        for shape, start, limit, strides in SLICES:
            result = tuple(-(-(b - a) // s) for a, b, s in zip(start, limit, strides, strict=True))
            spans = ".".join(f"{a}-{b}-{s}" for a, b, s in zip(start, limit, strides, strict=True))
            operands = (Operand(Type(shape, dtype), anywhere), constant(start), constant(limit), constant(strides))
            yield Form(f"{dtype}/{dims(shape)}/{spans}", operands, (Type(result, dtype),))


def _gather() -> Iterator[Form]:
    for dtype in TYPES:
        for g in GATHERS:
            indices = Operand(Type(g.indices, "i32"), index_values(-2, g.most + 2))
            operands = (Operand(Type(g.operand, dtype), anywhere), indices, constant(g.sizes))
            yield Form(
                f"{dtype}/{g.name}", operands, (Type(g.result, dtype),), f"dimension_numbers = {gather_numbers(g)}"
            )


DESCRIPTIONS = (
    Description(
        "stablehlo.dynamic_broadcast_in_dim",
        "functionally identical to broadcast_in_dim, but the result shape is specified dynamically",
        MOVED,
        _broadcast_in_dim,
    ),
    Description(
        "stablehlo.dynamic_iota",
        "functionally identical to iota, but the result shape is specified dynamically",
        MOVED,
        _iota,
    ),
    Description(
        "stablehlo.dynamic_reshape",
        "functionally identical to reshape, but the result shape is specified dynamically",
        MOVED,
        _reshape,
    ),
    Description(
        "stablehlo.dynamic_pad",
        "functionally identical to pad, but with padding amounts specified dynamically",
        MOVED,
        _pad,
    ),
    Description(
        "stablehlo.real_dynamic_slice",
        "functionally identical to slice, but with indices specified dynamically",
        MOVED,
        _slice,
    ),
    Description(
        "stablehlo.dynamic_gather",
        "functionally identical to gather, with slice_sizes specified dynamically",
        MOVED,
        _gather,
    ),
)
