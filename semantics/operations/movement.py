"""Operations that put elements elsewhere and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloracle.semantics.numbers import held_as
from hloracle.semantics.operations.kinds import Known, one, with_attributes
from hloracle.semantics.program import Operation


def broadcast_in_dim(operation: Operation, x: np.ndarray) -> np.ndarray:
    """Axis i of the operand becomes axis broadcast_dimensions[i] of the result."""
    dims, shape = operation.attributes["broadcast_dimensions"], operation.type.shape
    order = np.argsort(dims, kind="stable")
    sizes = [1] * len(shape)
    for i, d in enumerate(dims):
        sizes[d] = x.shape[i]
    return np.broadcast_to(x.transpose(order).reshape(sizes), shape)


def concatenate(operation: Operation, *operands: np.ndarray) -> np.ndarray:
    """Along one axis."""
    return np.concatenate(operands, axis=operation.attributes["dimension"])


def iota(operation: Operation) -> np.ndarray:
    """0, 1, 2, … along one axis."""
    dim, shape = operation.attributes["iota_dimension"], operation.type.shape
    sizes = [1] * len(shape)
    sizes[dim] = shape[dim]
    counted = np.arange(shape[dim]).astype(held_as(operation.type.dtype))
    return np.broadcast_to(counted.reshape(sizes), shape)


def pad(operation: Operation, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Values between elements and around them; negative padding takes elements away."""
    given = operation.attributes
    return padded(x, value, given["edge_padding_low"], given["edge_padding_high"], given["interior_padding"])


def padded(
    x: np.ndarray, value: np.ndarray, low: Sequence[int], high: Sequence[int], inside: Sequence[int]
) -> np.ndarray:
    """An array with `inside` values between its elements, and `low` and `high` around them; negative ones take elements away."""
    wide = [n + max(0, n - 1) * k for n, k in zip(x.shape, inside, strict=True)]
    spread = np.full(wide, value, x.dtype)
    spread[tuple(slice(None, None, k + 1) for k in inside)] = x
    around = [(max(0, a), n, max(0, b)) for a, n, b in zip(low, wide, high, strict=True)]
    grown = np.full([sum(sizes) for sizes in around], value, x.dtype)
    grown[tuple(slice(a, a + n) for a, n, _ in around)] = spread
    return grown[tuple(slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(low, high, grown.shape, strict=True))]


def reshape(operation: Operation, x: np.ndarray) -> np.ndarray:
    """The same elements in order, in another shape."""
    return x.reshape(operation.type.shape)


def reverse(operation: Operation, x: np.ndarray) -> np.ndarray:
    """The order of elements turned round along some axes."""
    return np.flip(x, operation.attributes["dimensions"])


def slice_(operation: Operation, x: np.ndarray) -> np.ndarray:
    """From start to limit in steps."""
    given = operation.attributes
    return x[tuple(map(slice, given["start_indices"], given["limit_indices"], given["strides"]))]


def dynamic_iota(operation: Operation, shape: np.ndarray) -> np.ndarray:
    """0, 1, 2, … along one axis; the shape is an operand, and that of the result as well."""
    return iota(operation)


def dynamic_pad(
    operation: Operation, x: np.ndarray, value: np.ndarray, low: np.ndarray, high: np.ndarray, inside: np.ndarray
) -> np.ndarray:
    """`pad`, whose attributes are operands."""
    return padded(x, value, *([int(n) for n in amounts] for amounts in (low, high, inside)))


def real_dynamic_slice(
    operation: Operation, x: np.ndarray, start: np.ndarray, limit: np.ndarray, strides: np.ndarray
) -> np.ndarray:
    """`slice`, whose attributes are operands."""
    return x[tuple(slice(int(a), int(b), int(s)) for a, b, s in zip(start, limit, strides, strict=True))]


def get_dimension_size(operation: Operation, x: np.ndarray) -> np.ndarray:
    """The size of an axis."""
    return np.array(x.shape[operation.attributes["dimension"]], np.int32)


def transpose(operation: Operation, x: np.ndarray) -> np.ndarray:
    """Axis i of the result is axis permutation[i] of the operand."""
    return x.transpose(operation.attributes["permutation"])


KNOWN: dict[str, Known] = {
    "stablehlo.broadcast_in_dim": with_attributes(broadcast_in_dim),
    "stablehlo.concatenate": with_attributes(concatenate),
    "stablehlo.iota": with_attributes(iota),
    "stablehlo.pad": with_attributes(pad),
    "stablehlo.reshape": with_attributes(reshape),
    "stablehlo.reverse": with_attributes(reverse),
    "stablehlo.slice": with_attributes(slice_),
    "stablehlo.transpose": with_attributes(transpose),
    "stablehlo.dynamic_broadcast_in_dim": with_attributes(lambda operation, x, shape: broadcast_in_dim(operation, x)),
    "stablehlo.dynamic_iota": with_attributes(dynamic_iota),
    "stablehlo.dynamic_reshape": with_attributes(lambda operation, x, shape: reshape(operation, x)),
    "stablehlo.dynamic_pad": with_attributes(dynamic_pad),
    "stablehlo.real_dynamic_slice": with_attributes(real_dynamic_slice),
    "stablehlo.get_dimension_size": with_attributes(get_dimension_size),
    "stablehlo.broadcast": with_attributes(lambda operation, x: np.broadcast_to(x, operation.type.shape)),
    "tensor.cast": one(lambda x: x),
}
