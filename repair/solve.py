"""The number that a constant should have, where what is wrong changes steadily with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hloracle.repair.changes.constants import splat, with_value
from hloracle.repair.changes.numbers import insertions
from hloracle.repair.subject import Edit, Subject

STEPS = 16
STEP = 1e-8
FACTORS = (1.0, 0.1, 10.0, -1.0, 1e-3, 1e3)  # of the number that is there, from which it is looked for
DIGITS = 9


def solved(subject: Subject, place: int, which: int = 0) -> Iterator[Edit]:
    """The constant at a place with the number that makes the subgraph right on an example, if there is one."""
    old = subject.plain.block.operations[place]
    now = splat(old)
    if now is None or not math.isfinite(now) or not old.type.dtype.startswith(("f", "bf")):
        return

    edit = _number_for(subject, lambda number: with_value(old, place, number, 3), now or 1.0, which)
    if edit is not None:
        yield edit


def inserted(subject: Subject, place: int, which: int = 0) -> Iterator[Edit]:
    """The numbers that are missing at a place, each of which makes the subgraph right on an example."""
    for insertion in insertions(subject.plain, place):
        edit = _number_for(subject, insertion.with_number, insertion.neutral, which)
        if edit is not None:
            yield edit


def _number_for(subject: Subject, change: Callable[[float], Edit], start: float, which: int) -> Edit | None:
    """The change with the number that makes the subgraph right on an example, with as few digits as are needed."""

    def off(number: float) -> float:
        error = subject.error_with(change(number), which)
        return subject.error(which) if error is None else error

    for factor in FACTORS:
        found = _root(off, (start or 1.0) * factor if factor != 1.0 else start)
        if found is not None:
            return change(_tidy(off, found))
    return None


def tidied(subject: Subject, edit: Edit, which: int) -> Edit:
    """A constant's change with as few digits as are needed; any other change as it is."""
    number = splat(edit.instead[0])
    if (
        edit.kind != "constant"
        or number is None
        or not math.isfinite(number)
        or edit.instead[0].type.dtype[0] not in "fb"
    ):
        return edit

    def off(number: float) -> float:
        error = subject.error_with(with_value(edit.instead[0], edit.place, number, edit.cost), which)
        return subject.error(which) if error is None else error

    return with_value(edit.instead[0], edit.place, _tidy(off, number), edit.cost)


def _root(off: Callable[[float], float], start: float) -> float | None:
    """Where the distance is at most 1. It is taken to be steep on both sides of that, as |a x - b| is."""
    number, error = start, off(start)
    for _ in range(STEPS):
        if error <= 0.25:
            return number
        if not math.isfinite(error):
            return None
        step = abs(number) * STEP or STEP  # shorter than the way that is left, so that both are on one side
        slope = (off(number + step) - error) / step
        if not math.isfinite(slope) or slope == 0:
            break
        new = number - error / slope
        after = off(new)
        for _ in range(6):  # not as far, where it got worse
            if after < error:
                break
            new = (new + number) / 2
            after = off(new)
        if not after < error:
            break
        number, error = new, after
    return number if error <= 1 else None


def _tidy(off: Callable[[float], float], number: float) -> float:
    """The same number with as few digits as are needed."""
    limit = max(1.0, 1.2 * off(number)) if off(number) > 0.5 else 0.5
    for digits in range(1, DIGITS + 1):
        short = float(f"{number:.{digits}g}")
        if off(short) <= limit:
            return short
    return number
