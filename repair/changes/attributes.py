"""Attributes that are others, where the type stays as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hloracle.repair.subject import Edit, Plain
from hloracle.semantics.program import Operation, Type

MOST_ORDERS = 720
MOST_STARTS = 64  # that are tried of a slice


def other_attributes(plain: Plain, place: int) -> Iterator[Edit]:
    """Other axes, places and orders that the same types allow."""
    old = plain.block.operations[place]
    make = _MAKERS.get(old.name)
    if make is None:
        return
    operands = [plain.types[o] for o in old.operands]
    for attributes, words in make(old, operands):
        if any(attributes[name] != old.attributes.get(name) for name in attributes):
            yield Edit(place, (replace(old, attributes={**old.attributes, **attributes}),), "attribute", words, 1)


_Made = Iterator[tuple[Mapping[str, Any], str]]


def _listed(axes: Sequence[int]) -> str:
    return f"[{', '.join(map(str, axes))}]"


def _transpose(old: Operation, operands: Sequence[Type]) -> _Made:
    shape = operands[0].shape
    for order in itertools.islice(itertools.permutations(range(len(shape))), MOST_ORDERS):
        if tuple(shape[d] for d in order) == old.type.shape:
            yield {"permutation": order}, f"its permutation should be {_listed(order)}"


def _broadcast(old: Operation, operands: Sequence[Type]) -> _Made:
    shape, whole = operands[0].shape, old.type.shape
    for dims in itertools.islice(itertools.permutations(range(len(whole)), len(shape)), MOST_ORDERS):
        if all(n in (1, whole[d]) for n, d in zip(shape, dims, strict=True)):
            yield {"broadcast_dimensions": dims}, f"its axes should go to {_listed(dims)}"


def _reduce(old: Operation, operands: Sequence[Type]) -> _Made:
    shape = operands[0].shape
    for axes in itertools.combinations(range(len(shape)), len(old.attributes["dimensions"])):
        if tuple(n for d, n in enumerate(shape) if d not in axes) == old.type.shape:
            yield {"dimensions": axes}, f"it should reduce over {_listed(axes)}"


def _reverse(old: Operation, operands: Sequence[Type]) -> _Made:
    rank = len(operands[0].shape)
    for count in range(1, rank + 1):
        for axes in itertools.combinations(range(rank), count):
            yield {"dimensions": axes}, f"it should reverse {_listed(axes)}"


def _iota(old: Operation, operands: Sequence[Type]) -> _Made:
    for axis in range(len(old.type.shape)):
        yield {"iota_dimension": axis}, f"it should count along axis {axis}"


def _concatenate(old: Operation, operands: Sequence[Type]) -> _Made:
    for axis in range(len(old.type.shape)):
        rest = [(*t.shape[:axis], *t.shape[axis + 1 :]) for t in operands]
        whole = sum(t.shape[axis] for t in operands)
        if len(set(rest)) == 1 and (*operands[0].shape[:axis], whole, *operands[0].shape[axis + 1 :]) == old.type.shape:
            yield {"dimension": axis}, f"it should put them together along axis {axis}"


def _slice(old: Operation, operands: Sequence[Type]) -> _Made:
    starts, limits, strides = (old.attributes[n] for n in ("start_indices", "limit_indices", "strides"))
    for axis, whole in enumerate(operands[0].shape):
        span = limits[axis] - starts[axis]
        near = sorted(range(whole - span + 1), key=lambda start: abs(start - starts[axis]))
        for start in near[:MOST_STARTS]:
            moved = (*starts[:axis], start, *starts[axis + 1 :]), (*limits[:axis], start + span, *limits[axis + 1 :])
            yield (
                {"start_indices": moved[0], "limit_indices": moved[1]},
                f"along axis {axis} it should begin at {start}",
            )
        size = old.type.shape[axis]
        for stride in {1, strides[axis] - 1, strides[axis] + 1, whole // size if size else 1} - {0, -1}:
            limit = starts[axis] + (size - 1) * stride + 1
            if size > 1 and limit <= whole:
                yield {
                    "strides": (*strides[:axis], stride, *strides[axis + 1 :]), "limit_indices": (*limits[:axis], limit, *limits[axis + 1 :])
                }, f"along axis {axis} it should take every {stride}. element"  # fmt: skip


def _dot_general(old: Operation, operands: Sequence[Type]) -> _Made:
    given = old.attributes["dot_dimension_numbers"]
    sides = [_orders(given, side, type) for side, type in zip(("lhs", "rhs"), operands, strict=True)]
    for left, right in itertools.islice(itertools.product(*sides), MOST_ORDERS):
        numbers = {**given, **left, **right}
        if _dot_type(numbers, operands) == old.type.shape:
            words = (
                f"its batching dimensions should be {_listed(numbers['lhs_batching_dimensions'])} and {_listed(numbers['rhs_batching_dimensions'])},"
                f" its contracting ones {_listed(numbers['lhs_contracting_dimensions'])} and {_listed(numbers['rhs_contracting_dimensions'])}"
            )
            yield {"dot_dimension_numbers": numbers}, words


def _orders(given: Mapping[str, Any], side: str, type: Type) -> list[dict[str, tuple[int, ...]]]:
    batch, summed = len(given[f"{side}_batching_dimensions"]), len(given[f"{side}_contracting_dimensions"])
    return [
        {f"{side}_batching_dimensions": axes[:batch], f"{side}_contracting_dimensions": axes[batch:]}
        for axes in itertools.permutations(range(len(type.shape)), batch + summed)
    ]


def _dot_type(numbers: Mapping[str, Any], operands: Sequence[Type]) -> tuple[int, ...]:
    """The shape of a product; empty where sizes do not fit."""
    (left, right), sizes = operands, []
    for name in ("batching", "contracting"):
        one = [left.shape[d] for d in numbers[f"lhs_{name}_dimensions"]]
        if one != [right.shape[d] for d in numbers[f"rhs_{name}_dimensions"]]:
            return ()
        sizes += one if name == "batching" else []
    for type, side in ((left, "lhs"), (right, "rhs")):
        taken = {*numbers[f"{side}_batching_dimensions"], *numbers[f"{side}_contracting_dimensions"]}
        sizes += [n for d, n in enumerate(type.shape) if d not in taken]
    return tuple(sizes)


def _pad(old: Operation, operands: Sequence[Type]) -> _Made:
    low, high = old.attributes["edge_padding_low"], old.attributes["edge_padding_high"]
    for axis in range(len(low)):
        for shift in (*range(-MOST_STARTS // 2, 0), *range(1, MOST_STARTS // 2 + 1)):
            if shift in (-low[axis], high[axis], 1, -1):
                yield (
                    {
                        "edge_padding_low": (*low[:axis], low[axis] + shift, *low[axis + 1 :]),
                        "edge_padding_high": (*high[:axis], high[axis] - shift, *high[axis + 1 :]),
                    },
                    f"along axis {axis} it should pad {low[axis] + shift} before and {high[axis] - shift} behind",
                )


_MAKERS: dict[str, Callable[[Operation, Sequence[Type]], _Made]] = {
    "stablehlo.transpose": _transpose, "stablehlo.broadcast_in_dim": _broadcast, "stablehlo.reduce": _reduce,
    "stablehlo.reverse": _reverse, "stablehlo.iota": _iota, "stablehlo.concatenate": _concatenate, "stablehlo.slice": _slice,
    "stablehlo.dot_general": _dot_general, "stablehlo.pad": _pad,
}  # fmt: skip
