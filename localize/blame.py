"""Which operation of a graph is to blame for a wrong anchor, and what it should be: found by trying, on right values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.localize.operations import Found
from hloracle.localize.suspect import Suspect
from hloracle.repair.search import Repair, search
from hloracle.repair.subject import CANNOT, Edit, Plain

LONGEST = 600  # characters of a line that a reader is shown: a table may have a million


@dataclass(frozen=True)
class Candidate:
    """An operation that may be to blame: its place in the graph, and the changes of it that make the anchor right.

    spoils: anchors that were right, and are not with the best change. mends: those that were wrong, and are right with it.
    like: a right anchor of another layer, whose operation is as this one is with the best change. innocent: one whose operation is
      as this one is now. shared: right anchors that are computed by it too.
    """

    place: int
    repairs: tuple[Repair, ...]
    spoils: int
    mends: int
    like: str = ""
    innocent: str = ""
    shared: int = 0

    @property
    def rank(self) -> tuple[bool | int | float, ...]:
        """The best candidate's is the smallest."""
        best = self.repairs[0]
        # A number that is missing is put where there are fewest elements.
        room = best.edit.instead[-1].type.size if best.edit.kind == "number" else 0
        return (
            self.spoils,
            -self.mends,
            not self.like,
            bool(self.innocent),
            bool(self.shared),
            best.edit.cost,
            room,
            best.error,
        )


@dataclass(frozen=True)
class Blame:
    """What came of looking for the operation of an anchor. candidates: the best first; none where no change makes it right.

    operations: of how many a change makes the anchor right: also of those that only take a wrong value of another one.
    tried: how many changes were. ended: the time was over first.
    """

    anchor: str
    candidates: tuple[Candidate, ...]
    operations: int
    tried: int
    ended: bool

    @property
    def best(self) -> list[Candidate]:
        """Those whose change leaves as few anchors wrong as any other's, of those that are computed with it."""
        return [
            c for c in self.candidates if (c.spoils, c.mends) == (self.candidates[0].spoils, self.candidates[0].mends)
        ]

    @property
    def only(self) -> bool:
        """Whether there is one operation alone that may be changed so that the anchor, and all that reads it, is right.

        Of several it is the one that is, with its change, as in another layer, where that is so of no other.
        """
        best = [c for c in self.best if not c.spoils]
        return not self.ended and (len(best) == 1 or len([c for c in best if c.like]) == 1)

    @property
    def invented(self) -> bool:
        """Whether what makes the anchor right is a number that no one has left out for certain: at one of several places."""
        return bool(self.candidates) and self.candidates[0].repairs[0].edit.kind == "number" and not self.only


@dataclass(frozen=True)
class Named:
    """A candidate for a reader: the operation, its line and its text, and what its best change is, in words."""

    name: str
    line: int | None
    text: str
    words: str

    @staticmethod
    def of(plain: Plain, candidate: Candidate) -> Named:
        """What to say of a candidate."""
        line, text = plain.lines[candidate.place]
        edit = candidate.repairs[0].edit
        words = edit.words if edit.kind != "operand" else _rewired(plain, edit)
        if edit.kind == "missing":
            joined = (v for operation in edit.instead[1:] for v in operation.operands if v in plain.types)
            words = words.replace("another value", plain.called(next(joined, -1)))
        return Named(plain.block.operations[candidate.place].name, line or None, text[:LONGEST], words)


def _rewired(plain: Plain, edit: Edit) -> str:
    """Which value an operation should take, by the name that the text has for it, in place of which one."""
    old, new = plain.block.operations[edit.place], edit.instead[0]
    changed = [(i, a, b) for i, (a, b) in enumerate(zip(old.operands, new.operands, strict=True)) if a != b]
    (index, before, after), *_ = changed
    return f"operand {index} should be {plain.called(after)}, not {plain.called(before)}"


def blame(suspect: Suspect, anchor: str, seconds: float) -> Blame:
    """The operations of an anchor's subgraph whose change makes it right; none where it is right when nothing is rounded."""
    if not suspect.is_wrong(anchor):
        return Blame(anchor, (), 0, 0, False)
    try:
        searched = search(suspect.subject(anchor), seconds)
    except CANNOT:  # what it calls, or an operation that has no meaning here
        return Blame(anchor, (), 0, 0, False)
    by_place: dict[int, list[Repair]] = {}
    for repair in searched.repairs:
        by_place.setdefault(repair.edit.place, []).append(repair)
    found = _first_unlike(suspect, anchor, [_candidate(suspect, anchor, repairs) for repairs in by_place.values()])
    found.sort(key=lambda c: c.rank)
    return Blame(anchor, tuple(found), len(by_place), searched.tried, searched.ended)


def _first_unlike(suspect: Suspect, anchor: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those that take the result of one that is, with its change, as in another layer: what takes it is right."""
    subject = suspect.subject(anchor)
    after = {c.place: set(subject.following(c.place)) for c in candidates if c.like and not c.innocent}
    return [c for c in candidates if not any(c.place in later for later in after.values())]


MOST_JUDGED = 6  # changes of one operation that are held to the other anchors


def _candidate(suspect: Suspect, anchor: str, repairs: Sequence[Repair]) -> Candidate:
    """The changes of one operation, those first that spoil least."""
    place, alike = repairs[0].edit.place, suspect.alike(anchor)
    ranked: list[tuple[int, int, bool, int, float, int, Repair]] = []
    reading = [
        a for a in suspect.anchors if place in suspect.needed(a) and (suspect.is_wrong(a) or suspect.is_right(a))
    ]
    wrong = {a for a in reading if suspect.is_wrong(a)}
    for repair in repairs[:MOST_JUDGED]:
        right = {a: suspect.right_with(a, repair.edit) for a in reading}
        spoils = sum(not right[a] for a in reading if a not in wrong)
        mends = sum(right[a] for a in reading if a in wrong)
        ranked.append(
            (spoils, -mends, not alike.with_edit(repair.edit), repair.edit.cost, repair.error, len(ranked), repair)
        )
    ranked.sort(key=lambda one: one[:6])
    spoils, mends, *_, best = ranked[0]
    shared = sum(a not in wrong for a in reading)
    like, innocent = alike.with_edit(best.edit), alike.as_is(place)
    return Candidate(place, tuple(one[-1] for one in ranked), spoils, -mends, like, innocent, shared)


def found_by_likeness(suspect: Suspect, anchor: str) -> Found | None:
    """The first operation that is computed otherwise than in another layer, where the same anchor is right; None without one."""
    unlike = suspect.alike(anchor).unlike()
    blamed = [(place, like) for place, like in unlike if place in suspect.subject(anchor).blamed]
    if not blamed:
        return None
    place, like = blamed[0]
    why = f"it is computed otherwise than in {like}, which is right, from what is computed as there"
    return Found(suspect.anatomy.step_at(place), suspect.anatomy.graph, {}, None, np.zeros(0), why, by="likeness")


def found_by_repair(suspect: Suspect, found: Blame) -> Found | None:
    """The operation that is to blame, and why it is this one; None where no change puts the anchor right."""
    if not found.candidates:
        return None
    best = found.candidates[0]
    why = f"with a change of it alone {found.anchor} is right: {Named.of(suspect.plain, best).words}"
    others, alike = found.operations - 1, len(found.best) - 1
    if not others and not found.ended:
        why += f"; of {found.tried} changes that were tried, none of another operation does that"
    elif others:
        why += f"; so do changes of {others} other operation{'s' * (others > 1)}"
    if others and not alike and len(found.candidates) > 1:
        why += ", but other anchors that are computed with them stay wrong or become wrong then"
    if best.like:
        why += f"; {'but ' if others else ''}with this one it is as in {best.like}, which is right"
    anatomy = suspect.anatomy
    return Found(anatomy.step_at(best.place), anatomy.graph, {}, None, np.zeros(0), why, by="repair")
