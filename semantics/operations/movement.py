"""Operations that put elements elsewhere and compute nothing."""

from __future__ import annotations

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
    low, high = operation.attributes["edge_padding_low"], operation.attributes["edge_padding_high"]
    inside = operation.attributes["interior_padding"]
    wide = [n + max(0, n - 1) * k for n, k in zip(x.shape, inside, strict=True)]
    spread = np.full(wide, value, x.dtype)
    spread[tuple(slice(None, None, k + 1) for k in inside)] = x
    grown = np.pad(spread, [(max(0, a), max(0, b)) for a, b in zip(low, high, strict=True)], constant_values=value[()])
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
    "stablehlo.broadcast": with_attributes(lambda operation, x: np.broadcast_to(x, operation.type.shape)),
    "tensor.cast": one(lambda x: x),
}
