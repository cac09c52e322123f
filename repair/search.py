"""Tries the changes of each operation of a wrong subgraph, and says which of them make it right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from hloracle.repair.changes import TIERS, changes
from hloracle.repair.changes.missing import without, without_several
from hloracle.repair.solve import inserted, solved, tidied
from hloracle.repair.subject import CANNOT, Edit, Subject


@dataclass(frozen=True)
class Repair:
    """A change that makes the subgraph right on every example. error: the largest, in units of what it may be."""

    edit: Edit
    error: float


@dataclass(frozen=True)
class Searched:
    """What was found. tried: how many changes. ended: the time was over before all had been tried."""

    repairs: tuple[Repair, ...]
    tried: int
    ended: bool


def search(subject: Subject, seconds: float) -> Searched:
    """Every repair of the cheapest tier that has any."""
    end = time.monotonic() + seconds
    found: list[Repair] = []
    tried = 0
    for make in _tiers(subject):
        for edit in (edit for place in subject.blamed for edit in _made(make, place)):
            if time.monotonic() > end:
                return Searched(tuple(_best_first(found)), tried, True)
            tried += 1
            error = _error(subject, edit)
            if error <= 1:
                found.append(_plainer(subject, Repair(edit, error)))
        if found:
            break
    return Searched(tuple(_best_first(found)), tried, False)


Make = Callable[[int], Iterable[Edit]]


def _tiers(subject: Subject) -> list[Make]:
    plain, first = subject.plain, subject.order[0]
    cheap, missing = (partial(changes, plain, tier=tier) for tier in range(len(TIERS)))
    return [cheap, partial(solved, subject, which=first), missing, partial(inserted, subject, which=first)]


def _made(make: Make, place: int) -> Iterator[Edit]:
    """The changes of one operation; those that were made before, where its type or an attribute is one that is not known."""
    with suppress(*CANNOT):
        yield from make(place)


def _plainer(subject: Subject, repair: Repair) -> Repair:
    """The same repair with as few digits as are needed, or by one operation less, where that is as right."""
    edit = _too_many(subject, tidied(subject, repair.edit, subject.order[0]))
    if edit is repair.edit:
        return repair
    error = _error(subject, edit)
    return Repair(edit, error) if error <= 1 else repair


def _too_many(subject: Subject, edit: Edit) -> Edit:
    """An operation that nothing but this one takes, and that is passed by with this change, is one too many."""
    if edit.kind != "operand":
        return edit
    plain = subject.plain
    old, new = plain.block.operations[edit.place], edit.instead[0]
    changed = [(a, b) for a, b in zip(old.operands, new.operands, strict=True) if a != b]
    before, after = changed[0]
    place = plain.makers.get(before)
    if place not in subject.blamed or before in subject.stops or before in plain.block.returned:
        return edit
    if plain.users[before] != [edit.place] or old.operands.count(before) != 1:
        return edit
    passed_by = [*without(plain, place), *without_several(plain, place)]
    return next((e for e in passed_by if e.instead[0].operands == (after,)), edit)


def _best_first(found: list[Repair]) -> list[Repair]:
    return sorted(found, key=lambda r: (r.edit.cost, r.error))


def _error(subject: Subject, edit: Edit) -> float:
    """The largest error with a change, on all examples, where it is most wrong first; infinite where it cannot be evaluated."""
    worst = 0.0
    for which in subject.order:
        try:
            error = subject.error_with(edit, which)
        except CANNOT:
            return float("inf")
        worst = max(worst, subject.error(which) if error is None else error)
        if not worst <= 1:
            return float("inf")
    return worst
