"""Operations on windows that slide over their operands: convolutions and reductions of windows; and normalization."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hloracle.semantics.numbers import held_as
from hloracle.semantics.operations.kinds import Around, Known, with_attributes
from hloracle.semantics.operations.movement import padded
from hloracle.semantics.program import Operation


def _window(operation: Operation, name: str, rank: int, otherwise: int = 1) -> tuple[Any, ...]:
    found = operation.attributes.get(name)
    return tuple(found) if found is not None else (otherwise,) * rank


def _padding(operation: Operation, rank: int) -> list[tuple[int, int]]:
    found = operation.attributes.get("padding")
    return [(0, 0)] * rank if found is None else [(int(a), int(b)) for a, b in np.asarray(found).reshape(-1, 2)]


def _spread(
    x: np.ndarray, value: np.ndarray, padding: Sequence[tuple[int, int]], dilations: Sequence[int]
) -> np.ndarray:
    """Dilated, then padded; negative padding takes elements away."""
    return padded(x, value, [a for a, _ in padding], [b for _, b in padding], [d - 1 for d in dilations])


def _shifts(
    x: np.ndarray, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int], shape: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Each place of the window, and of all windows together what stands there."""
    for place in itertools.product(*map(range, window)):
        starts = [p * d for p, d in zip(place, dilations, strict=True)]
        parts = [slice(s, s + (n - 1) * t + 1, t) for s, n, t in zip(starts, shape, strides, strict=True)]
        yield place, x[tuple(parts)]


def reduce_window(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    """Of several operands, each window by a computation, from an initial value, which also stands in what is padded."""
    count, rank = len(operands) // 2, operands[0].ndim
    padding, base = _padding(operation, rank), _window(operation, "base_dilations", rank)
    shape, window = operation.type.shape, operation.attributes["window_dimensions"]
    held = [np.broadcast_to(initial, shape) for initial in operands[count:]]
    if 0 in shape:
        return held
    wide = [_spread(x, i, padding, base) for x, i in zip(operands[:count], operands[count:], strict=True)]
    strides, dilations = _window(operation, "window_strides", rank), _window(operation, "window_dilations", rank)
    for parts in zip(*(_shifts(x, window, strides, dilations, shape) for x in wide), strict=True):
        held = around.region(operation.regions[0], [*held, *(part for _, part in parts)])
    return [np.broadcast_to(h, shape) for h in held]


def select_and_scatter(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    """Each element of the source goes to the place in its window of the operand that a comparison selects."""
    x, source, initial = operands
    select, scatter = operation.regions
    rank = x.ndim
    window, strides = _window(operation, "window_dimensions", rank), _window(operation, "window_strides", rank)
    padding = _padding(operation, rank)
    result = np.full(x.shape, initial, x.dtype)
    for index in np.ndindex(source.shape):
        chosen: tuple[int, ...] | None = None
        for place in itertools.product(*map(range, window)):
            at = tuple(i * s + p - a for i, s, p, (a, _) in zip(index, strides, place, padding, strict=True))
            if any(not 0 <= n < size for n, size in zip(at, x.shape, strict=True)):
                continue
            if chosen is None or not around.region(select, [np.asarray(x[chosen]), np.asarray(x[at])])[0]:
                chosen = at
        if chosen is not None:
            pair = [np.asarray(result[chosen]), np.asarray(source[index])]
            result[chosen] = around.region(scatter, pair)[0]
    return [result]


def convolution(operation: Operation, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Sums of products over windows and features; features or batches may be in groups."""
    given, numbers = operation.attributes, operation.attributes["dimension_numbers"]
    spatial = len(numbers["input_spatial_dimensions"])
    if lhs.dtype.kind not in "fc":
        lhs, rhs = lhs.astype(np.int64), rhs.astype(np.int64)
    left = lhs.transpose(
        numbers["input_batch_dimension"], numbers["input_feature_dimension"], *numbers["input_spatial_dimensions"]
    )
    right = rhs.transpose(
        numbers["kernel_output_feature_dimension"], numbers["kernel_input_feature_dimension"],
        *numbers["kernel_spatial_dimensions"],
    )  # fmt: skip
    reversal = _window(operation, "window_reversal", spatial, 0)
    right = np.flip(right, tuple(2 + d for d in range(spatial) if reversal[d]))
    zero = np.zeros((), left.dtype)
    padding = [(0, 0), (0, 0), *_padding(operation, spatial)]
    left = _spread(left, zero, padding, (1, 1, *_window(operation, "lhs_dilation", spatial)))
    groups, batches = given.get("feature_group_count", 1), given.get("batch_group_count", 1)
    order = [
        numbers["output_batch_dimension"], numbers["output_feature_dimension"], *numbers["output_spatial_dimensions"]
    ]  # fmt: skip
    sizes = [operation.type.shape[d] for d in order]  # [batch, feature, spatial…]
    result = np.zeros(sizes, left.dtype)
    count = max(groups, batches)
    # Of feature groups each has features of its own, of batch groups each has a part of the batch.
    lefts = np.split(left, count, axis=0 if batches > 1 else 1)
    strides, dilations = _window(operation, "window_strides", spatial), _window(operation, "rhs_dilation", spatial)
    for group, (part, kernel) in enumerate(zip(lefts, np.split(right, count, axis=0), strict=True)):
        features = slice(group * kernel.shape[0], (group + 1) * kernel.shape[0])
        if 0 in sizes:
            break
        moved = part.transpose(*range(2, 2 + spatial), 0, 1)  # [spatial…, batch, feature]
        for place, seen in _shifts(moved, kernel.shape[2:], strides, dilations, sizes[2:]):
            at: Any = (..., *place)
            weights = kernel[at]  # [out, in]
            product = np.moveaxis(seen @ weights.T, (-2, -1), (0, 1))
            result[:, features] += product
    return result.transpose(np.argsort(order)).astype(held_as(operation.type.dtype))


def batch_norm_inference(
    operation: Operation, x: np.ndarray, scale: np.ndarray, offset: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    """Of each feature: less the mean, over the root of the variance and epsilon, scaled and moved."""
    axis = operation.attributes["feature_index"]
    shape = [n if d == axis else 1 for d, n in enumerate(x.shape)]
    scale, offset, mean, variance = (v.reshape(shape) for v in (scale, offset, mean, variance))
    return np.asarray((x - mean) / np.sqrt(variance + operation.attributes["epsilon"]) * scale + offset)


KNOWN: dict[str, Known] = {
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.select_and_scatter": select_and_scatter,
    "stablehlo.convolution": with_attributes(convolution),
    "stablehlo.batch_norm_inference": with_attributes(batch_norm_inference),
}
