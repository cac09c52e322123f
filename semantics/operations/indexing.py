"""Operations whose elements are picked by indices that are values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hloracle.semantics.operations.kinds import Around, Known, with_attributes
from hloracle.semantics.program import Block, Operation


def _starts(indices: Sequence[np.ndarray], whole: Sequence[int], part: Sequence[int]) -> tuple[slice, ...]:
    """Where a part begins: as near to where it was asked for as leaves it inside."""
    begins = [min(max(int(i), 0), n - p) for i, n, p in zip(indices, whole, part, strict=True)]
    return tuple(slice(b, b + p) for b, p in zip(begins, part, strict=True))


def dynamic_slice(operation: Operation, x: np.ndarray, *indices: np.ndarray) -> np.ndarray:
    """A part of known size."""
    return x[_starts(indices, x.shape, operation.attributes["slice_sizes"])]


def dynamic_update_slice(operation: Operation, x: np.ndarray, update: np.ndarray, *indices: np.ndarray) -> np.ndarray:
    """The operand with a part replaced."""
    result = x.copy()
    result[_starts(indices, x.shape, update.shape)] = update
    return result


def gather(operation: Operation, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """A window of the operand for each index vector; where it begins is as near as leaves it inside."""
    return _gathered(operation, x, indices, operation.attributes["slice_sizes"])


def dynamic_gather(operation: Operation, x: np.ndarray, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`gather`, whose slice sizes are an operand."""
    return _gathered(operation, x, indices, [int(n) for n in sizes])


def _gathered(operation: Operation, x: np.ndarray, indices: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    given = operation.attributes["dimension_numbers"]
    offset, at = given["offset_dims"], given["index_vector_dim"]
    shape = operation.type.shape
    if at == indices.ndim:
        indices = indices[..., None]
    batch_dims = [d for d in range(len(shape)) if d not in offset]
    left_out = {*given["collapsed_slice_dims"], *given["operand_batching_dims"]}
    kept = [d for d in range(x.ndim) if d not in left_out]
    vectors = np.moveaxis(indices, at, -1)  # [batch..., index]
    grid = np.indices(shape)
    batch = tuple(grid[d] for d in batch_dims)
    places = []
    for d in range(x.ndim):
        place = np.zeros(shape, np.int64)
        if d in given["start_index_map"]:
            start = _signed(vectors[(*batch, given["start_index_map"].index(d))])
            place += np.clip(start, 0, x.shape[d] - sizes[d])
        if d in given["operand_batching_dims"]:
            dim = given["start_indices_batching_dims"][given["operand_batching_dims"].index(d)]
            place += batch[dim - (dim > at)]
        if d in kept:
            place += grid[offset[kept.index(d)]]
        places.append(place)
    return x[tuple(places)]


def _signed(indices: np.ndarray) -> np.ndarray:
    """In 64 bits, of which an index that has more is the largest."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    return indices.astype(np.int64)


def scatter(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    """The operands with updates put to where indices say, one after another; what lies outside is left out."""
    count = (len(operands) - 1) // 2
    results = [operand.copy() for operand in operands[:count]]
    indices, updates = operands[count], operands[count + 1 :]
    given = operation.attributes["scatter_dimension_numbers"]
    window, at = given["update_window_dims"], given["index_vector_dim"]
    if at == indices.ndim:
        indices = indices[..., None]
    vectors = np.moveaxis(indices, at, -1)
    shape = updates[0].shape
    scatter_dims = [d for d in range(len(shape)) if d not in window]
    left_out = {*given["inserted_window_dims"], *given["input_batching_dims"]}
    kept = [d for d in range(results[0].ndim) if d not in left_out]
    replaces = _replaces(operation.regions[0])
    for index in itertools.product(*map(range, shape)):
        batch = tuple(index[d] for d in scatter_dims)
        place = [0] * results[0].ndim
        for k, d in enumerate(given["scattered_dims_to_operand_dims"]):
            place[d] += int(vectors[(*batch, k)])
        for d, dim in zip(given["input_batching_dims"], given["scatter_indices_batching_dims"], strict=True):
            place[d] += batch[dim - (dim > at)]
        for d, w in zip(kept, window, strict=True):
            place[d] += index[w]
        where = tuple(place)
        if any(p < 0 or p >= n for p, n in zip(where, results[0].shape, strict=True)):
            continue
        if replaces:
            new = [update[index] for update in updates]
        else:
            pairs = [np.asarray(r[where]) for r in results] + [np.asarray(u[index]) for u in updates]
            new = around.region(operation.regions[0], pairs)
        for result, value in zip(results, new, strict=True):
            result[where] = value
    return results


def _replaces(block: Block) -> bool:
    """Whether a computation gives the update as it is."""
    return not block.operations and block.returned == block.arguments[len(block.arguments) // 2 :]


KNOWN: dict[str, Known] = {
    "stablehlo.dynamic_slice": with_attributes(dynamic_slice),
    "stablehlo.dynamic_update_slice": with_attributes(dynamic_update_slice),
    "stablehlo.gather": with_attributes(gather),
    "stablehlo.dynamic_gather": with_attributes(dynamic_gather),
    "stablehlo.scatter": scatter,
}
