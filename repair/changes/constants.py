"""Constants of another value: one that stands in the graph, or one that is made of it. Others are solved for: see `solve.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hloracle.repair.subject import Edit, Plain
from hloracle.semantics.program import Operation

CONSTANT = "stablehlo.constant"


def splat(operation: Operation) -> float | None:
    """The number of a constant of which all elements are one; None of any other operation."""
    value = operation.attributes.get("value") if operation.name == CONSTANT else None
    if not isinstance(value, np.ndarray) or not value.size:
        return None
    first = value.flat[0]
    return float(first) if np.all((value == first) | (np.isnan(value) if value.dtype.kind == "f" else False)) else None


def with_value(old: Operation, place: int, number: float, cost: int) -> Edit:
    """A constant of another number."""
    value = np.full(old.type.shape, number).astype(old.attributes["value"].dtype)
    new = replace(old, attributes={"value": value})
    return Edit(place, (new,), "constant", f"the constant should be {number:.9g}", cost)


def known(plain: Plain, place: int) -> Iterator[Edit]:
    """The number of another constant of the graph, and what it would be with a sign, a factor or a root."""
    old = plain.block.operations[place]
    if old.name != CONSTANT:
        return
    now = splat(old)
    if now is None:
        yield from _other_tables(plain, place, old)
        return
    others = dict.fromkeys(
        n for operation in plain.block.operations if operation.name == CONSTANT and operation.type.dtype == old.type.dtype
        if (n := splat(operation)) is not None
    )  # fmt: skip
    for number in dict.fromkeys([*_made_of(now, old.type.dtype), *others]):
        if number != now:
            yield with_value(old, place, number, 2)


def _made_of(number: float, dtype: str) -> list[float]:
    if dtype == "i1":
        return [1 - number]
    near = [-number, number + 1, number - 1, 2 * number, 0.0, 1.0]
    if not dtype.startswith(("f", "bf")):
        return [n for n in [*near, *(number + k for k in range(-8, 9)), number // 2] if n == int(n)]
    if not number or not math.isfinite(number):
        return [-math.inf, math.inf, 0.0, 1.0, -1.0]
    root = math.sqrt(abs(number))
    return [*near, -1.0, number / 2, 1 / number, number * number, root, 1 / root, math.inf, -math.inf]


def _other_tables(plain: Plain, place: int, old: Operation) -> Iterator[Edit]:
    for operation in plain.block.operations:
        if (
            operation.name == CONSTANT
            and operation is not old
            and operation.type == old.type
            and splat(operation) is None
        ):
            yield Edit(
                place, (replace(old, attributes=operation.attributes),), "constant", "it should be another table", 2
            )
    value = old.attributes["value"]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield Edit(
            place, (replace(old, attributes={"value": -value}),), "constant", "its sign should be the other one", 2
        )
