"""Operations that make one element of many: products, reductions, sorts."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from hloracle.semantics.numbers import Unsupported, held_as
from hloracle.semantics.operations.kinds import Around, Known, with_attributes
from hloracle.semantics.program import Block, Operation

# What a reduction with one operation in its region is in NumPy: of numbers, of booleans.
_WHOLE: dict[str, tuple[Any, Any]] = {
    "stablehlo.add": (np.add, np.logical_or), "stablehlo.multiply": (np.multiply, np.logical_and),
    "stablehlo.maximum": (np.maximum, np.logical_or), "stablehlo.minimum": (np.minimum, np.logical_and),
    "stablehlo.and": (np.bitwise_and, np.logical_and), "stablehlo.or": (np.bitwise_or, np.logical_or),
}  # fmt: skip
MOST_AT_ONCE = 1 << 22  # pairs of elements that a sort compares at once


def dot_general(operation: Operation, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Batch axes, then the left one's, then the right one's."""
    given = operation.attributes["dot_dimension_numbers"]
    left = _matrices(lhs, given["lhs_batching_dimensions"], given["lhs_contracting_dimensions"], last=True)
    right = _matrices(rhs, given["rhs_batching_dimensions"], given["rhs_contracting_dimensions"], last=False)
    return _held(np.matmul(left, right).reshape(operation.type.shape), operation)


def _wide(x: np.ndarray) -> np.ndarray:
    """Integers in 64 bits: sums of them wrap in the end as they would at every step."""
    return x if x.dtype.kind in "fc" else x.astype(np.int64)


def _held(x: np.ndarray, operation: Operation) -> np.ndarray:
    return x.astype(held_as(operation.type.dtype))


def _matrices(x: np.ndarray, batch: tuple[int, ...], summed: tuple[int, ...], last: bool) -> np.ndarray:
    """[B, own, summed], or with what is summed first."""
    own = [d for d in range(x.ndim) if d not in (*batch, *summed)]
    order = [*batch, *own, *summed] if last else [*batch, *summed, *own]
    sizes = [math.prod(x.shape[d] for d in axes) for axes in (batch, own, summed)]
    b, n, k = sizes
    return _wide(x).transpose(order).reshape((b, n, k) if last else (b, k, n))


def dot(operation: Operation, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """A product of matrices or vectors."""
    return _held(np.asarray(np.dot(_wide(lhs), _wide(rhs))).reshape(operation.type.shape), operation)


def ragged_dot(operation: Operation, lhs: np.ndarray, rhs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Each group of the left one's rows times a matrix of its own; rows of no group are zero. Rows alone may be ragged."""
    given = operation.attributes["ragged_dot_dimension_numbers"]
    known = (given["lhs_ragged_dimensions"], given["lhs_contracting_dimensions"], given["rhs_contracting_dimensions"])
    if known != ((0,), (1,), (1,)) or given["rhs_group_dimensions"] != (0,) or lhs.ndim != 2:
        raise Unsupported("ragged_dot of other dimensions")
    left, right = _wide(lhs), _wide(rhs)
    result = np.zeros(operation.type.shape, left.dtype)
    end = 0
    for group, size in enumerate(sizes):
        begin, end = end, end + int(size)
        result[begin:end] = left[begin:end] @ right[group]
    return _held(result, operation)


def reduce(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    """Each of several operands over the same axes, from an initial value."""
    count = len(operands) // 2
    arrays, initials = operands[:count], operands[count:]
    axes, region = operation.attributes["dimensions"], operation.regions[0]
    if count == 1 and (known := _single(region)):
        number, boolean = _WHOLE[known]
        how = boolean if arrays[0].dtype == np.bool_ else number
        if not arrays[0].size:
            return [np.broadcast_to(initials[0], operation.type.shape)]
        return [_held(np.asarray(how(how.reduce(arrays[0], axis=tuple(axes)), initials[0])), operation)]
    kept = [d for d in range(arrays[0].ndim) if d not in axes]
    shape = tuple(arrays[0].shape[d] for d in kept)
    count = math.prod(arrays[0].shape[d] for d in axes)
    flat = [a.transpose([*axes, *kept]).reshape(count, *shape) for a in arrays]
    held = [np.broadcast_to(initial, shape) for initial in initials]
    for i in range(count):
        held = around.region(region, [*held, *(a[i] for a in flat)])
    return [np.broadcast_to(h, shape) for h in held]


def _single(region: Block) -> str:
    """The name of the only operation of a region, on its two arguments; empty where it is another region."""
    if len(region.operations) != 1 or region.returned != region.operations[0].results:
        return ""
    only = region.operations[0]
    return only.name if only.name in _WHOLE and sorted(only.operands) == sorted(region.arguments) else ""


def sort(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    """All operands along one axis, by what a comparison of elements of each says; equal ones keep their order."""
    axis = operation.attributes["dimension"] % operands[0].ndim if operands[0].ndim else 0
    if not operands[0].size:
        return operands
    last = [np.moveaxis(o, axis, -1) for o in operands]
    order = _order(operation.regions[0], last, around)
    return [np.moveaxis(np.take_along_axis(o, order, -1), -1, axis) for o in last]


def _order(region: Block, operands: list[np.ndarray], around: Around) -> np.ndarray:
    """The place that each element of the last axis goes to, as argsort has it."""
    size = operands[0].shape[-1]
    if operands[0].size * size <= MOST_AT_ONCE:
        pairs = [a for o in operands for a in np.broadcast_arrays(o[..., :, None], o[..., None, :])]
        before = np.broadcast_to(around.region(region, pairs)[0], pairs[0].shape)  # [..., i, j]: i is before j
        earlier = np.arange(size)[:, None] < np.arange(size)
        ahead = before | (~np.swapaxes(before, -1, -2) & earlier)
        rank = np.sum(ahead, axis=-2)  # how many are before j
        return np.argsort(rank, axis=-1, kind="stable")
    order = np.empty(operands[0].shape, np.int64)
    for at in np.ndindex(operands[0].shape[:-1]):
        rows = [o[at] for o in operands]

        def compared(i: int, j: int, rows: list[np.ndarray] = rows) -> int:
            given = [np.asarray(v) for row in rows for v in (row[i], row[j])]
            if around.region(region, given)[0]:
                return -1
            turned = [np.asarray(v) for row in rows for v in (row[j], row[i])]
            return int(bool(around.region(region, turned)[0]))

        order[at] = sorted(range(size), key=functools.cmp_to_key(compared))
    return order


def top_k(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    """The largest of the last axis, the first of equal ones first, and where they were."""
    (x,), k = operands, operation.attributes["k"]
    order = np.argsort(-x if x.dtype.kind == "f" else ~x, axis=-1, kind="stable")[..., :k]  # ~x turns the order round
    return [np.take_along_axis(operands[0], order, -1), order.astype(np.int32)]


KNOWN: dict[str, Known] = {
    "stablehlo.dot_general": with_attributes(dot_general),
    "stablehlo.dot": with_attributes(dot),
    "stablehlo.reduce": reduce,
    "chlo.ragged_dot": with_attributes(ragged_dot),
    "stablehlo.sort": sort,
    "chlo.top_k": top_k,
}
