"""Tries the changes of each operation of a wrong subgraph, and says which of them make it right."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hloracle.repair.changes import TIERS, changes
from hloracle.repair.changes.missing import doubled
from hloracle.repair.solve import inserted, solved, tidied
from hloracle.repair.subject import Edit, Plain, Subject
from hloracle.semantics.numbers import Unsupported

SECONDS = 30.0


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


def search(subject: Subject, seconds: float = SECONDS) -> Searched:
    """Every repair of the cheapest tier that has any."""
    end = time.monotonic() + seconds
    found: list[Repair] = []
    tried = 0
    for edits in _tiers(subject):
        for edit in edits:
            if time.monotonic() > end:
                return Searched(tuple(_best_first(found)), tried, True)
            tried += 1
            error = _error(subject, edit)
            if error <= 1:
                found.append(Repair(_too_many(subject.plain, tidied(subject, edit, subject.order[0])), error))
        if found:
            break
    return Searched(tuple(_best_first(found)), tried, False)


def _tiers(subject: Subject) -> Iterator[Iterable[Edit]]:
    for tier in range(len(TIERS)):
        yield (edit for place in subject.blamed for edit in changes(subject.plain, place, tier))
        if tier == 0:
            yield (edit for place in subject.blamed for edit in solved(subject, place, subject.order[0]))
    yield (edit for place in subject.blamed for edit in inserted(subject, place, subject.order[0]))


def _too_many(plain: Plain, edit: Edit) -> Edit:
    """An operation that nothing but this one takes, and that is passed by with this change, is one too many."""
    if edit.kind != "operand":
        return edit
    old, new = plain.block.operations[edit.place], edit.instead[0]
    changed = [(a, b) for a, b in zip(old.operands, new.operands, strict=True) if a != b]
    before, after = changed[0]
    place = plain.makers.get(before)
    if place is None or plain.users[before] != [edit.place] or old.operands.count(before) != 1:
        return edit
    return next((e for e in doubled(plain, place) if e.instead[0].operands == (after,)), edit)


def _best_first(found: list[Repair]) -> list[Repair]:
    return sorted(found, key=lambda r: (r.edit.cost, r.error))


def _error(subject: Subject, edit: Edit) -> float:
    """The largest error with a change, on all examples, where it is most wrong first; infinite where it cannot be evaluated."""
    worst = 0.0
    for which in subject.order:
        try:
            error = subject.error_with(edit, which)
        except (Unsupported, ValueError, IndexError, TypeError, KeyError):
            return float("inf")
        worst = max(worst, subject.error(which) if error is None else error)
        if not worst <= 1:
            return float("inf")
    return worst
