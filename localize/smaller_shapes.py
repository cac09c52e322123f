"""Each size of a case as small as it may be, consistently in all values; what the arguments are given is cropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.localize.axes import Axes, Place
from hloracle.localize.draft import Draft, constant_of, edited, numbers_of, shape_of
from hloracle.localize.hunt import Hunt
from hloracle.localize.judge import Seen, furthest

ONE_BY_ONE = 16  # sizes up to this are all tried; above, each is half as large again as the one before


def smaller_shapes(hunt: Hunt) -> None:
    """Make all sizes small at once as far as that goes, then one after another."""
    while _halved(hunt):
        pass
    at = 0
    while True:
        with edited(hunt.case) as draft:
            axes = Axes(draft)
            places = axes.free
            if at >= len(places):
                return
            place, now = places[at], axes.size(places[at])
        if not any(_resized(hunt, {place: size}) for size in _sizes(now)):
            at += 1


def _halved(hunt: Hunt) -> bool:
    """All that are larger than ONE_BY_ONE and even, half as large."""
    with edited(hunt.case) as draft:
        axes = Axes(draft)
        asked = {p: axes.size(p) // 2 for p in axes.free if axes.size(p) > ONE_BY_ONE and axes.size(p) % 2 == 0}
    return any(_resized(hunt, some) for some in (asked, *({p: n} for p, n in asked.items())))


def _sizes(now: int) -> Iterator[int]:
    """Smaller ones, the smallest first."""
    size = 1
    while size < now:
        yield size
        size += 1 if size < ONE_BY_ONE else size // 2


def _resized(hunt: Hunt, asked: Mapping[Place, int]) -> bool:
    with edited(hunt.case) as draft:
        axes = Axes(draft)
        sizes = axes.resized(asked) if asked else None
        if sizes is None:
            return False
        shapes = [
            tuple(sizes[axes.root((i, axis))] for axis in range(len(shape_of(value))))
            for i, value in enumerate(axes.values)
        ]
        starts = _starts(axes, draft, hunt.seen, sizes)
        for name, argument in zip(draft.names, list(draft.block.arguments), strict=True):
            if name in draft.inputs:
                first = [starts.get(axes.root(axes.place(argument, i)), 0) for i in range(len(shape_of(argument)))]
                draft.inputs[name] = draft.inputs[name][tuple(slice(n, None) for n in first)]
        return _reshaped(draft, axes.values, shapes) and hunt.accepts_draft(draft)


def _starts(axes: Axes, draft: Draft, seen: Seen, sizes: Mapping[Place, int]) -> dict[Place, int]:
    """Where along each axis of the result to begin, so that the element that is furthest off stays."""
    if seen.got is None or seen.expected is None or seen.got.shape != seen.expected.shape or not seen.got.size:
        return {}
    worst = furthest(seen.got, seen.expected)
    found = {}
    for axis, at in enumerate(worst):
        place = axes.root(axes.place(draft.returned, axis))
        found[place] = max(0, at - sizes[place] + 1)
    return found


def _reshaped(draft: Draft, values: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Give the values of a draft other shapes; False where an attribute would have to say what it cannot."""
    new = dict(zip(values, shapes, strict=True))
    old = {value: shape_of(value) for value in values}
    for operation in draft.operations:
        change = ATTRIBUTES.get(operation.operation.name)
        if change is not None and not change(operation, old, new):
            return False
    for value, shape in new.items():
        if shape != old[value]:
            value.set_type(ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type))
    for name, argument in zip(draft.names, draft.block.arguments, strict=True):
        if name in draft.inputs:
            draft.inputs[name] = _cropped(draft.inputs[name], shape_of(argument), old, new)
    return True


def _cropped(array: np.ndarray, shape: tuple[int, ...], old: Shapes, new: Shapes) -> np.ndarray:
    """The first elements along each axis. Whole numbers that may be places in a size that shrank stay within it."""
    found = array[tuple(slice(n) for n in shape)].copy()
    if found.dtype.kind in "iu" and found.size and found.min() >= 0:
        changed = [
            (before, after)
            for value, sizes in old.items() for before, after in zip(sizes, new[value], strict=True) if before > after
        ]  # fmt: skip
        limits = [after for before, after in changed if after <= found.max() < before]
        if limits:
            found %= np.array(min(limits), found.dtype)
    return found


Shapes = Mapping[Any, tuple[int, ...]]


def _sliced(operation: Any, old: Shapes, new: Shapes) -> bool:
    """What is taken ends where the operand ends, if it would end behind it."""
    wholes, parts = new[operation.operands[0]], new[operation.results[0]]
    names = ("start_indices", "limit_indices", "strides")
    starts, limits, strides = (list(ir.DenseI64ArrayAttr(operation.attributes[name])) for name in names)
    for axis, (whole, part) in enumerate(zip(wholes, parts, strict=True)):
        length = (part - 1) * strides[axis] + 1
        if length > whole:
            return False
        if part != old[operation.results[0]][axis] or starts[axis] + length > whole:
            starts[axis] = min(starts[axis], whole - length)
            limits[axis] = starts[axis] + length
        else:
            limits[axis] = min(limits[axis], whole)
    operation.attributes["start_indices"] = ir.DenseI64ArrayAttr.get(starts)
    operation.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(limits)
    return True


def _taken(operation: Any, old: Shapes, new: Shapes) -> bool:
    """The sizes of a dynamic_slice, which are its result's."""
    operation.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(list(new[operation.results[0]]))
    return True


def _gathered(operation: Any, old: Shapes, new: Shapes) -> bool:
    numbers = stablehlo.GatherDimensionNumbers(operation.attributes["dimension_numbers"])
    sizes, gone = list(ir.DenseI64ArrayAttr(operation.attributes["slice_sizes"])), set(numbers.collapsed_slice_dims)
    taken = [i for i in range(len(sizes)) if i not in gone]
    for axis, into in zip(taken, numbers.offset_dims, strict=False):
        sizes[axis] = new[operation.results[0]][into]
    operation.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(sizes)
    return True


def _constant(operation: Any, old: Shapes, new: Shapes) -> bool:
    """The first numbers along each axis."""
    result = operation.results[0]
    if old[result] == new[result]:
        return True
    numbers = numbers_of(operation)
    if numbers is None:
        return False
    operation.attributes["value"] = constant_of(numbers[tuple(slice(n) for n in new[result])], result.type)
    return True


ATTRIBUTES: dict[str, Callable[[Any, Shapes, Shapes], bool]] = {
    "stablehlo.slice": _sliced, "stablehlo.dynamic_slice": _taken, "stablehlo.gather": _gathered,
    "stablehlo.constant": _constant,
}  # fmt: skip
