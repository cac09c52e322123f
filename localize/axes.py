"""Which axes of a graph's values have one size because operations tie them together, and which sizes follow from others.

Sizes that are equal by chance are told apart: 16 heads are no 16 rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.localize.draft import Draft, shape_of

Place = tuple[int, int]  # a value's number and an axis of it


@dataclass(frozen=True)
class Product:
    """One size is the product of others, as a reshape has it."""

    whole: Place
    parts: tuple[Place, ...]

    def of(self, sizes: Sequence[int]) -> int:
        """The whole, of the parts' sizes."""
        return math.prod(sizes)


@dataclass(frozen=True)
class Sum(Product):
    """One size is the sum of others, as a concatenate has it; `more` is added, as a pad has it."""

    more: int = 0

    def of(self, sizes: Sequence[int]) -> int:
        """The whole, of the parts' sizes."""
        return sum(sizes) + self.more


class Axes:
    """The axes of all values of a draft, as they are tied together.

    rules: what has to hold between sizes. frozen: those that no rule is known of.
    """

    def __init__(self, draft: Draft) -> None:
        self.values = draft.values
        self._number = {value: i for i, value in enumerate(self.values)}
        self._of: dict[Place, Place] = {
            (i, axis): (i, axis) for i, value in enumerate(self.values) for axis in range(len(shape_of(value)))
        }
        self.rules: list[Product] = []
        self._fixed: list[Place] = []
        for operation in draft.operations:
            known = RULES.get(operation.operation.name.removeprefix("stablehlo."), _unknown)
            known(self, operation)

    # ---- what is asked

    def root(self, place: Place) -> Place:
        """What stands for all axes that are tied to one."""
        while self._of[place] != place:
            place = self._of[place]
        return place

    def size(self, place: Place) -> int:
        """Of an axis."""
        return shape_of(self.values[place[0]])[place[1]]

    @property
    def free(self) -> list[Place]:
        """Those that may get another size, the largest first."""
        fixed = {self.root(place) for place in self._fixed}
        roots = [p for p in self._of if self.root(p) == p and p not in fixed and self.size(p) > 1]
        return sorted(roots, key=lambda p: (-self.size(p), p))

    def resized(self, asked: Mapping[Place, int]) -> dict[Place, int] | None:
        """The sizes of all roots where some are as asked: what follows from them follows. None where it cannot be."""
        sizes = {p: self.size(p) for p in self._of if self.root(p) == p}
        sizes.update(asked)
        fixed = {self.root(place) for place in self._fixed}
        set_here = set(asked)
        for _ in range(len(self.rules) + 1):
            wrong = [rule for rule in self.rules if not self._holds(rule, sizes)]
            if not wrong:
                return sizes
            if not any(self._mended(rule, sizes, set_here | fixed, set_here) for rule in wrong):
                return None
        return None

    def _holds(self, rule: Product, sizes: Mapping[Place, int]) -> bool:
        return sizes[self.root(rule.whole)] == rule.of([sizes[self.root(p)] for p in rule.parts])

    def _mended(self, rule: Product, sizes: dict[Place, int], kept: set[Place], changed: set[Place]) -> bool:
        """Give the one size a rule leaves open the value that follows: the whole, else the only part that is not set."""
        whole, parts = self.root(rule.whole), [self.root(p) for p in rule.parts]
        if whole not in kept:
            sizes[whole] = rule.of([sizes[p] for p in parts])
            changed.add(whole)
            return True
        open_ = [p for p in dict.fromkeys(parts) if p not in kept]
        for part in open_[:1] if len(open_) == 1 else []:
            for size in range(1, sizes[part] + 1):
                if rule.of([size if p == part else sizes[p] for p in parts]) == sizes[whole]:
                    sizes[part] = size
                    changed.add(part)
                    return True
        return False

    # ---- what the rules of operations say

    def place(self, value: Any, axis: int) -> Place:
        """An axis of a value."""
        return self._number[value], axis

    def tie(self, one: Any, axis: int, other: Any, other_axis: int) -> None:
        """Two axes have one size; those that differ, as of a broadcast, keep their sizes."""
        a, b = self.place(one, axis), self.place(other, other_axis)
        if self.size(a) != self.size(b):
            self._fixed += [p for p in (a, b) if self.size(p) == 1]
            return
        self._of[max(self.root(a), self.root(b))] = min(self.root(a), self.root(b))

    def tie_all(self, one: Any, other: Any) -> None:
        """Two values of one shape."""
        for axis in range(len(shape_of(one))):
            self.tie(one, axis, other, axis)

    def fix(self, value: Any) -> None:
        """A value keeps its shape."""
        if value in self._number:
            self._fixed += [self.place(value, axis) for axis in range(len(shape_of(value)))]


Rule = Callable[[Axes, Any], None]


def _unknown(axes: Axes, operation: Any) -> None:
    """Elementwise where all shapes are one, but for scalars; else nothing changes."""
    values = [*operation.operands, *operation.results]
    shaped = [v for v in values if shape_of(v)]
    if len({shape_of(v) for v in shaped}) <= 1 and not len(operation.regions):
        for value in shaped[1:]:
            axes.tie_all(shaped[0], value)
        return
    for value in values:
        axes.fix(value)


def _nothing(axes: Axes, operation: Any) -> None:
    """Its result has any shape."""


def _custom_call(axes: Axes, operation: Any) -> None:
    for value in (*operation.operands, *operation.results):
        axes.fix(value)


def _barrier(axes: Axes, operation: Any) -> None:
    for operand, result in zip(operation.operands, operation.results, strict=True):
        axes.tie_all(operand, result)


def _sort(axes: Axes, operation: Any) -> None:
    for value in (*operation.operands, *operation.results):
        axes.tie_all(operation.operands[0], value)


def _broadcast(axes: Axes, operation: Any) -> None:
    for axis, into in enumerate(ir.DenseI64ArrayAttr(operation.attributes["broadcast_dimensions"])):
        axes.tie(operation.operands[0], axis, operation.results[0], into)


def _transpose(axes: Axes, operation: Any) -> None:
    for into, axis in enumerate(ir.DenseI64ArrayAttr(operation.attributes["permutation"])):
        axes.tie(operation.operands[0], axis, operation.results[0], into)


def _dot(axes: Axes, operation: Any) -> None:
    numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    (left, right), result = operation.operands, operation.results[0]
    batch = list(zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True))
    summed = list(zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True))
    for one, other in batch + summed:
        axes.tie(left, one, right, other)
    rows = [(left, i) for i, _ in batch]
    rows += [(left, i) for i in range(len(shape_of(left))) if i not in {one for one, _ in batch + summed}]
    rows += [(right, i) for i in range(len(shape_of(right))) if i not in {other for _, other in batch + summed}]
    for into, (value, axis) in enumerate(rows):
        axes.tie(value, axis, result, into)


def _reduce(axes: Axes, operation: Any) -> None:
    gone = set(ir.DenseI64ArrayAttr(operation.attributes["dimensions"]))
    count = len(operation.results)
    for operand in list(operation.operands)[:count]:
        axes.tie_all(operation.operands[0], operand)
        for into, axis in enumerate(i for i in range(len(shape_of(operand))) if i not in gone):
            for result in operation.results:
                axes.tie(operand, axis, result, into)


def _reshape(axes: Axes, operation: Any) -> None:
    operand, result = operation.operands[0], operation.results[0]
    for before, after in _groups(shape_of(operand), shape_of(result)):
        if len(before) == len(after) == 1:
            axes.tie(operand, before[0], result, after[0])
        elif len(before) == 1:
            axes.rules.append(Product(axes.place(operand, before[0]), tuple(axes.place(result, i) for i in after)))
        elif len(after) == 1:
            axes.rules.append(Product(axes.place(result, after[0]), tuple(axes.place(operand, i) for i in before)))
        else:
            axes._fixed += [*(axes.place(operand, i) for i in before), *(axes.place(result, i) for i in after)]


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The axes that become each other, those of one element left out: 6 x 16 -> 2 x 3 x 16 is 6 -> 2 x 3 and 16 -> 16."""
    left = [i for i, n in enumerate(before) if n != 1]
    right = [i for i, n in enumerate(after) if n != 1]
    found: list[tuple[list[int], list[int]]] = []
    while left and right:
        one, other = [left.pop(0)], [right.pop(0)]
        while (a := math.prod(before[i] for i in one)) != (b := math.prod(after[i] for i in other)):
            side, rest = (one, left) if a < b else (other, right)
            if not rest:  # it has no elements at all
                return found
            side.append(rest.pop(0))
        found.append((one, other))
    return found


def _part(axes: Axes, operation: Any) -> None:
    """A slice: an axis that is taken whole is one axis; of any other the part is small enough, whatever the whole is."""
    operand, result = operation.operands[0], operation.results[0]
    for axis, (whole, part) in enumerate(zip(shape_of(operand), shape_of(result), strict=True)):
        if whole == part:
            axes.tie(operand, axis, result, axis)


def _update(axes: Axes, operation: Any) -> None:
    operand, update, result = operation.operands[0], operation.operands[1], operation.results[0]
    axes.tie_all(operand, result)
    for axis, (whole, part) in enumerate(zip(shape_of(operand), shape_of(update), strict=True)):
        if whole == part:
            axes.tie(operand, axis, update, axis)


def _concatenate(axes: Axes, operation: Any) -> None:
    along, result = ir.IntegerAttr(operation.attributes["dimension"]).value, operation.results[0]
    for operand in operation.operands:
        for axis in range(len(shape_of(result))):
            if axis != along:
                axes.tie(operand, axis, result, axis)
    parts = tuple(axes.place(operand, along) for operand in operation.operands)
    axes.rules.append(Sum(axes.place(result, along), parts))


def _pad(axes: Axes, operation: Any) -> None:
    operand, result = operation.operands[0], operation.results[0]
    low, high, interior = (
        list(ir.DenseI64ArrayAttr(operation.attributes[name]))
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    for axis in range(len(shape_of(operand))):
        if interior[axis]:
            axes._fixed += [axes.place(operand, axis), axes.place(result, axis)]
        elif low[axis] == high[axis] == 0:
            axes.tie(operand, axis, result, axis)
        else:
            parts = (axes.place(operand, axis),)
            axes.rules.append(Sum(axes.place(result, axis), parts, low[axis] + high[axis]))


def _gather(axes: Axes, operation: Any) -> None:
    numbers = stablehlo.GatherDimensionNumbers(operation.attributes["dimension_numbers"])
    (operand, indices), result = operation.operands, operation.results[0]
    if numbers.operand_batching_dims or numbers.start_indices_batching_dims:
        return _custom_call(axes, operation)
    offsets, gone = list(numbers.offset_dims), set(numbers.collapsed_slice_dims)
    taken = [i for i in range(len(shape_of(operand))) if i not in gone]
    for into, axis in zip(offsets, taken, strict=True):
        if shape_of(operand)[axis] == shape_of(result)[into]:
            axes.tie(operand, axis, result, into)
    at = numbers.index_vector_dim
    batch = [i for i in range(len(shape_of(result))) if i not in offsets]
    of_indices = [i for i in range(len(shape_of(indices))) if i != at]
    for into, axis in zip(batch, of_indices, strict=True):
        axes.tie(indices, axis, result, into)
    if at < len(shape_of(indices)):
        axes._fixed.append(axes.place(indices, at))
    return None


RULES: dict[str, Rule] = {
    "constant": _nothing, "iota": _nothing, "broadcast_in_dim": _broadcast, "transpose": _transpose,
    "dot_general": _dot, "reduce": _reduce, "reshape": _reshape, "slice": _part, "dynamic_slice": _part,
    "dynamic_update_slice": _update, "concatenate": _concatenate, "pad": _pad, "gather": _gather, "sort": _sort,
    "optimization_barrier": _barrier, "custom_call": _custom_call,
}  # fmt: skip
