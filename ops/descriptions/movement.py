"""Operations that put elements elsewhere. What they give has the bits of what they are given, but for those of NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from hloracle.ops.describe import MOVED, Bound, Description, Form, Operand
from hloracle.ops.descriptions.shapes import ALL, LARGE, NUMBERS, array, dims
from hloracle.ops.values import Values, anywhere, given
from hloracle.semantics.program import Type

Shape = tuple[int, ...]

# Shape of the operand, broadcast_dimensions, shape of the result.
BROADCASTS: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((), (), (2, 3)), ((3,), (1,), (2, 3)), ((2,), (0,), (2, 3)), ((1, 3), (0, 1), (4, 3)), ((5, 1, 7), (0, 1, 2), (5, 3, 7)),
    ((2, 3, 1, 5, 4), (0, 1, 2, 3, 4), (2, 3, 3, 5, 4)),  # each kv head for three query heads
    ((3, 5), (1, 0), (5, 3)), ((1,), (1,), (2, 257)), ((0, 3), (1, 2), (2, 0, 3)), ((1, 3), (0, 1), (0, 3)), ((1, 1), (1, 2), (3, 5, 7)),
    ((7, 2), (0, 2), (7, 5, 2)),
)  # fmt: skip
RESHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((6,), (2, 3)), ((2, 3, 4), (6, 4)), ((5, 48), (5, 3, 16)), ((5, 3, 16), (5, 48)), ((1, 1, 1), ()), ((), (1, 1)),
    ((0, 4), (2, 0)), ((7, 11), (11, 7)), ((2, 9, 5, 7), (2, 3, 3, 5, 7)), ((1, 257), (257,)),
)  # fmt: skip
TRANSPOSES: tuple[tuple[Shape, Shape], ...] = (
    ((3, 5), (1, 0)), ((2, 5, 3, 16), (0, 2, 1, 3)), ((5, 3, 7), (2, 0, 1)), ((5, 3, 7), (0, 2, 1)), ((2, 3, 4), (0, 1, 2)),
    ((), ()), ((0, 3), (1, 0)), ((2, 3, 1, 5, 4), (4, 2, 0, 3, 1)), ((1, 7), (1, 0)), ((13, 31), (1, 0)),
)  # fmt: skip
REVERSES: tuple[tuple[Shape, Shape], ...] = (
    ((7,), (0,)), ((3, 5), (1,)), ((3, 5), (0, 1)), ((3, 5), ()), ((2, 3, 4), (0, 2)), ((0, 3), (0,)), ((1, 1), (0, 1)),
)  # fmt: skip
# Shape, start_indices, limit_indices, strides.
SLICES: tuple[tuple[Shape, Shape, Shape, Shape], ...] = (
    ((9,), (2,), (7,), (1,)), ((9,), (0,), (9,), (2,)), ((10,), (1,), (9,), (3,)), ((5, 16), (0, 0), (5, 8), (1, 1)),
    ((5, 16), (0, 8), (5, 16), (1, 1)),  # the two halves that a rotary embedding turns
    ((5, 16), (0, 1), (5, 16), (1, 2)), ((1, 7, 48), (0, 6, 0), (1, 7, 48), (1, 1, 1)),  # the last token
    ((3, 5), (1, 2), (1, 5), (1, 1)), ((3, 5), (3, 5), (3, 5), (1, 1)), ((), (), (), ()),
    ((2, 9, 5, 7), (1, 3, 0, 2), (2, 6, 5, 6), (1, 1, 2, 3)),
    ((4, 4), (0, 0), (4, 4), (9, 1)), ((0, 3), (0, 0), (0, 3), (1, 1)),
)  # fmt: skip
# Shapes of the operands, dimension.
CONCATENATIONS: tuple[tuple[tuple[Shape, ...], int], ...] = (
    (((3,), (4,)), 0), (((2, 3), (2, 5)), 1), (((1, 3), (5, 3), (2, 3)), 0), (((5, 3, 8), (5, 3, 8)), 2), (((2, 0), (2, 3)), 1),
    (((2, 3),), 1), (((0,), (0,)), 0), (((1, 6, 3, 4), (1, 1, 3, 4)), 1), (((1,),) * 9, 0), (((2, 1, 7), (2, 6, 7)), 1),
)  # fmt: skip
# Shape, low, high, interior.
PADDINGS: tuple[tuple[Shape, Shape, Shape, Shape], ...] = (
    ((5,), (2,), (3,), (0,)), ((5,), (0,), (0,), (2,)), ((5,), (-2,), (1,), (0,)), ((5,), (-1,), (-2,), (0,)), ((5,), (1,), (-3,), (1,)),
    ((3, 4), (1, 0), (0, 2), (0, 1)), ((3, 4), (-1, 2), (1, -2), (2, 0)), ((), (), (), ()), ((0, 3), (2, 0), (1, 0), (0, 0)),
    ((2, 3), (0, 0), (0, 0), (0, 0)), ((4,), (-3,), (-1,), (0,)),
    ((1, 7, 6), (0, 3, 0), (0, 0, 0), (0, 0, 0)),  # before a causal convolution
    ((4,), (-2,), (0,), (3,)), ((0,), (2,), (1,), (3,)), ((2, 5), (0, -1), (0, -1), (1, 1)),
)  # fmt: skip
IOTAS: tuple[tuple[Shape, int], ...] = (
    ((7,), 0), ((3, 5), 0), ((3, 5), 1), ((2, 3, 4), 1), ((0,), 0), ((3, 0), 0), ((1, 1), 1), ((2, 1, 97), 2), ((100, 3), 0),
)  # fmt: skip


def _broadcast_in_dim() -> Iterator[Form]:
    for dtype in ALL:
        for shape, to, result in BROADCASTS:
            label = f"{dtype}/{dims(shape)}-{dims(result)}-{'.'.join(map(str, to))}"
            yield _one(label, dtype, shape, result, f"broadcast_dimensions = {array(to)}")
    yield _one("f32/large", "f32", (331, 1), LARGE, f"broadcast_dimensions = {array((0, 1))}")


def _reshape() -> Iterator[Form]:
    for dtype in ALL:
        for shape, result in RESHAPES:
            yield _one(f"{dtype}/{dims(shape)}-{dims(result)}", dtype, shape, result)
    yield _one("f32/large", "f32", LARGE, LARGE[::-1])


def _transpose() -> Iterator[Form]:
    for dtype in ALL:
        for shape, order in TRANSPOSES:
            label = f"{dtype}/{dims(shape)}-{'.'.join(map(str, order))}"
            result = tuple(shape[d] for d in order)
            yield _one(label, dtype, shape, result, f"permutation = {array(order)}")
    yield _one("f32/large", "f32", LARGE, LARGE[::-1], f"permutation = {array((1, 0))}")


def _reverse() -> Iterator[Form]:
    for dtype in ALL:
        for shape, axes in REVERSES:
            label = f"{dtype}/{dims(shape)}-{'.'.join(map(str, axes)) or 'none'}"
            yield _one(label, dtype, shape, shape, f"dimensions = {array(axes)}")


def _slice() -> Iterator[Form]:
    for dtype in ALL:
        for shape, start, limit, strides in SLICES:
            result = tuple(-(-(b - a) // s) for a, b, s in zip(start, limit, strides, strict=True))
            given = f"start_indices = {array(start)}, limit_indices = {array(limit)}, strides = {array(strides)}"
            spans = ".".join(f"{a}-{b}-{s}" for a, b, s in zip(start, limit, strides, strict=True))
            yield _one(f"{dtype}/{dims(shape)}/{spans}", dtype, shape, result, given)


def _concatenate() -> Iterator[Form]:
    for dtype in ALL:
        for shapes, axis in CONCATENATIONS:
            yield _concatenated(f"{dtype}/{'+'.join(map(dims, shapes))}-{axis}", dtype, shapes, axis)
    yield _concatenated("f32/large", "f32", (LARGE, LARGE), 1)


def _concatenated(label: str, dtype: str, shapes: Sequence[Shape], axis: int) -> Form:
    result = list(shapes[0])
    result[axis] = sum(shape[axis] for shape in shapes)
    operands = tuple(Operand(Type(shape, dtype), anywhere) for shape in shapes)
    return Form(label, operands, (Type(tuple(result), dtype),), f"dimension = {axis} : i64")


def _pad() -> Iterator[Form]:
    for dtype in ALL:
        for shape, low, high, inside in PADDINGS:
            result = tuple(a + n + max(0, n - 1) * k + b for n, a, b, k in zip(shape, low, high, inside, strict=True))
            amounts = ".".join(f"{a}_{b}_{k}" for a, b, k in zip(low, high, inside, strict=True))
            attributes = f"edge_padding_low = {array(low)}, edge_padding_high = {array(high)}, interior_padding = {array(inside)}"
            operands = (Operand(Type(shape, dtype), anywhere), Operand(Type((), dtype), given([1])))
            label = f"{dtype}/{dims(shape)}-{amounts or 'none'}"
            yield Form(label, operands, (Type(result, dtype),), attributes)


def _iota() -> Iterator[Form]:
    for dtype in NUMBERS:
        for shape, axis in IOTAS:
            if dtype in ("bf16", "i8") and max(shape) > 127:
                continue
            yield Form(f"{dtype}/{dims(shape)}-{axis}", (), (Type(shape, dtype),), f"iota_dimension = {axis} : i64")
    yield Form("f32/large", (), (Type(LARGE, "f32"),), "iota_dimension = 1 : i64")
    yield Form("i32/large", (), (Type((101617,), "i32"),), "iota_dimension = 0 : i64")


def _one(label: str, dtype: str, shape: Shape, result: Shape, attributes: str = "", values: Values = anywhere) -> Form:
    return Form(label, (Operand(Type(shape, dtype), values),), (Type(result, dtype),), attributes)


def _size(count: Bound) -> Iterator[Form]:
    for dtype in ("f32", "bf16", "i32"):
        for shape, axis in (((3, 5), 0), ((3, 5), 1), ((0, 3), 0), ((1,), 0), ((2, 9, 5, 7), 3)):
            operand = Operand(Type(shape, dtype), anywhere)
            attributes = f"dimension = {axis} : i64"
            yield Form(f"{dtype}/{dims(shape)}-{axis}", (operand,), (Type((), "i32"),), attributes, bound=count)


DESCRIPTIONS = (
    Description(
        "stablehlo.broadcast_in_dim",
        "broadcast_in_dim C5: dim(operand, d) = 1 or dim(operand, d) = dim(result, broadcast_dimensions[d])",
        MOVED,
        _broadcast_in_dim,
    ),
    Description("stablehlo.reshape", "reshape C2: size(operand) = size(result)", MOVED, _reshape),
    Description(
        "stablehlo.transpose", "transpose C2: permutation is a permutation of range(rank(operand))", MOVED, _transpose
    ),
    Description("stablehlo.reverse", "reverses the order of elements along the specified dimensions", MOVED, _reverse),
    Description(
        "stablehlo.slice", "slice C5: shape(result) = ceil((limit_indices - start_indices) / strides)", MOVED, _slice
    ),
    Description(
        "stablehlo.concatenate",
        "concatenates inputs along dimension in the same order as the given arguments",
        MOVED,
        _concatenate,
    ),
    Description(
        "stablehlo.pad",
        "pad C4: shape(result) = shape(operand) + edge_padding_low + max(shape(operand) - 1, 0) * interior_padding + "
        "edge_padding_high",
        MOVED,
        _pad,
    ),
    Description(
        "stablehlo.iota",
        "values in increasing order starting from zero along the iota_dimension dimension",
        MOVED,
        _iota,
    ),
    Description(
        "stablehlo.get_dimension_size",
        "produces the size of the given dimension of the operand",
        MOVED,
        partial(_size, MOVED),
    ),
)
