"""Which operation of a graph is to blame for a wrong anchor, and what it should be: found by trying, on right values.

Everything here is evaluated in NumPy, in float64: a change is tried in a fraction of the time that compiling it takes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.situation import ReferenceRun, Situation
from hloracle.reference.model.anchors import split
from hloracle.repair.examples import Called
from hloracle.repair.likeness import Shape
from hloracle.repair.search import Repair, Searched, search
from hloracle.repair.subject import Edit, Example, Subject
from hloracle.semantics.numbers import Unsupported

# A graph that is right is at most 2.5 floors off where nothing is rounded on the way (all families): a repair may be 4.
REPAIRED = 4.0
CALLS = 4  # of a phase that a change is tried on
CANNOT = (Unsupported, ValueError, IndexError, TypeError, KeyError)  # of what is evaluated


@dataclass(frozen=True)
class Candidate:
    """An operation that may be to blame: its place in the graph, and the changes of it that make the anchor right.

    spoils: anchors that were right, and are not with the best change. left: those that are wrong in any case.
    like: a right anchor of another layer, whose operation is as this one is with the best change. innocent: one whose operation is
      as this one is now. shared: right anchors that are computed by it too.
    """

    place: int
    repairs: tuple[Repair, ...]
    spoils: int
    left: int
    like: str = ""
    innocent: str = ""
    shared: int = 0

    @property
    def rank(self) -> tuple[bool | int | float, ...]:
        """The best candidate's is the smallest."""
        best = self.repairs[0]
        return self.spoils, self.left, not self.like, bool(self.innocent), bool(self.shared), best.edit.cost, best.error


@dataclass(frozen=True)
class Blame:
    """What came of looking for the operation of an anchor. candidates: the best first; none where no change makes it right.

    tried: how many changes were. ended: the time was over first.
    """

    anchor: str
    candidates: tuple[Candidate, ...]
    tried: int
    ended: bool

    @property
    def only(self) -> bool:
        """Whether there is one operation alone that may be changed so that the anchor, and all that reads it, is right.

        Of several it is the one that is, with its change, as in another layer, where that is so of no other.
        """
        best = [c for c in self.candidates if (c.spoils, c.left) == (0, self.candidates[0].left)]
        return not self.ended and (len(best) == 1 or len([c for c in best if c.like]) == 1)


class Suspect:
    """A graph, and the calls that it is tried on.

    Args:
      situations: calls of the graph's phase whose right values are known.
    """

    def __init__(self, anatomy: Anatomy, situations: Sequence[Situation], weight: Callable[[str], np.ndarray]) -> None:
        self.anatomy, self.plain = anatomy, anatomy.plain()
        self._numbers = {name: value for value, name in self.plain.stops.items()}
        self._situations = situations
        self._given = [_kept(partial(s.value, weight=weight)) for s in situations]

    @functools.cached_property
    def anchors(self) -> list[str]:
        """All but the token, in the order of computation."""
        return [a for a in self.anatomy.anchors if a != "token"]

    def examples(self, anchor: str) -> list[Example]:
        """Every call, as an example of one anchor."""
        return [
            Called(given, partial(s.error_of, anchor), REPAIRED)
            for s, given in zip(self._situations, self._given, strict=True)
        ]

    @functools.cache  # noqa: B019  (a suspect is looked at for a moment)
    def subject(self, anchor: str) -> Subject:
        """The subgraph of an anchor, with the examples on which it is most wrong first."""
        return Subject(self.plain, self._targets(anchor), self.examples(anchor), partial(self._own, anchor))

    def _targets(self, anchor: str) -> list[int]:
        return [self._numbers[name] for name in self.anatomy.targets(anchor)]

    def _own(self, anchor: str, place: int) -> bool:
        """Whether an operation may be to blame for an anchor: none of another layer, and none that computes an earlier one."""
        scope = self.plain.scopes[place]
        if scope in ("", anchor) or scope not in self.anchors:
            return True
        if split(scope)[0] not in (None, split(anchor)[0]):
            return False
        return self.anchors.index(scope) > self.anchors.index(anchor) or place not in self.needed(scope)

    @functools.cache  # noqa: B019
    def needed(self, anchor: str) -> frozenset[int]:
        """The places of the operations that an anchor's subgraph has."""
        targets = self._targets(anchor)
        stops = {v: name for v, name in self.plain.stops.items() if v not in targets}
        return frozenset(self.plain.needed(targets, stops))

    def off(self, anchor: str) -> float:
        """How far off an anchor is by itself, in floors, on the call where it is furthest off. Raises what CANNOT has."""
        subject = self.subject(anchor)
        return REPAIRED * max(subject.error(which) for which in range(len(subject.examples)))

    def wrong(self) -> list[str]:
        """The anchors that are wrong by themselves."""
        return [a for a in self.anchors if not self._off_or_unknown(a) <= ANCHOR_FLOORS]

    def _off_or_unknown(self, anchor: str) -> float:
        try:
            return self.off(anchor)
        except CANNOT:
            return 0.0

    def right_with(self, anchor: str, edit: Edit) -> bool:
        """Whether an anchor is right by itself with a change."""
        subject = self.subject(anchor)
        try:
            errors = [subject.error_with(edit, which) for which in range(len(subject.examples))]
        except CANNOT:
            return False
        return REPAIRED * max(subject.error(i) if e is None else e for i, e in enumerate(errors)) <= ANCHOR_FLOORS

    @functools.cache  # noqa: B019
    def alike(self, anchor: str, wrong: frozenset[str]) -> Alike:
        """What of an anchor's subgraph is computed as in other layers; wrong: the anchors from which nothing is to be learned."""
        layer, part = split(anchor)
        others = [
            (a, at)
            for a in self.anchors
            if a not in wrong
            for at, same in [split(a)]
            if same == part and at is not None
        ]
        if layer is None:
            others = []
        return Alike(self.subject(anchor), layer or 0, [(a, self.subject(a), at) for a, at in others])


def _kept(value: Callable[[str], np.ndarray]) -> Callable[[str], np.ndarray]:
    return functools.cache(value)


def situations_of(run: ReferenceRun, phase: str, capacity: int) -> list[Situation]:
    """Calls of one phase, the one that failed first: the last step and some before it, or prompts of several lengths."""
    tokens, length = len(run.truth.tokens), run.length
    # Beyond its turning point RoPE turns by other angles, so the reference is of a prompt of this length alone.
    if phase == "decode":
        first = length if run.config.turning_point is not None else min(1, tokens - 1)
        places = [tokens - 1, *np.linspace(min(first, tokens - 1), tokens - 1, CALLS, dtype=int)[:-1][::-1].tolist()]
        return [run.step(capacity, p) for p in dict.fromkeys(places)]
    others = () if run.config.turning_point is not None else (min(tokens, run.bucket), length // 2, 3)
    lengths = [length, *(n for n in others if 0 < n <= min(tokens, run.bucket))]
    return [
        Situation(run.config, run.truth, "prefill", run.bucket, run.bucket, capacity, n) for n in dict.fromkeys(lengths)
    ]


def blame(suspect: Suspect, anchor: str, seconds: float) -> Blame:
    """The operations of an anchor's subgraph whose change makes it right."""
    searched: Searched = search(suspect.subject(anchor), seconds)
    by_place: dict[int, list[Repair]] = {}
    for repair in searched.repairs:
        by_place.setdefault(repair.edit.place, []).append(repair)
    wrong = set(suspect.wrong()) | {anchor}
    found = _first_unlike(
        suspect, anchor, [_candidate(suspect, anchor, repairs, wrong) for repairs in by_place.values()]
    )
    found.sort(key=lambda c: c.rank)
    return Blame(anchor, tuple(found), searched.tried, searched.ended)


def _first_unlike(suspect: Suspect, anchor: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those that take the result of one that is, with its change, as in another layer: what takes it is right."""
    subject = suspect.subject(anchor)
    after = {c.place: set(subject.following(c.place)) for c in candidates if c.like and not c.innocent}
    return [c for c in candidates if not any(c.place in later for later in after.values())]


MOST_JUDGED = 6  # changes of one operation that are held to the other anchors


def _candidate(suspect: Suspect, anchor: str, repairs: Sequence[Repair], wrong: set[str]) -> Candidate:
    """The changes of one operation, those first that spoil least."""
    place, alike = repairs[0].edit.place, suspect.alike(anchor, frozenset(wrong))
    ranked: list[tuple[int, int, bool, int, float, int, Repair]] = []
    reading = [a for a in suspect.anchors if place in suspect.needed(a)]
    for repair in repairs[:MOST_JUDGED]:
        right = {a: suspect.right_with(a, repair.edit) for a in reading}
        spoils = sum(not right[a] for a in reading if a not in wrong)
        left = sum(not right.get(a, False) for a in wrong)
        ranked.append(
            (spoils, left, not alike.with_edit(repair.edit), repair.edit.cost, repair.error, len(ranked), repair)
        )
    ranked.sort(key=lambda one: one[:6])
    spoils, left, *_, best = ranked[0]
    shared = sum(a not in wrong for a in reading)
    like, innocent = alike.with_edit(best.edit), alike.as_is(place)
    return Candidate(place, tuple(one[-1] for one in ranked), spoils, left, like, innocent, shared)


class Alike:
    """Of one anchor, what is computed as in the right ones of other layers.

    Args:
      others: those, with their layers.
    """

    def __init__(self, subject: Subject, layer: int, others: Sequence[tuple[str, Subject, int]]) -> None:
        self._own = Shape(subject, layer)
        self._counts = Counter(self._own.places.values())
        self._others: dict[
            int, dict[int, str]
        ] = {}  # how it is computed -> the places that compute it so, with their anchor
        for anchor, other, at in others:
            for place, told in Shape(other, at).places.items():
                self._others.setdefault(told, {}).setdefault(place, anchor)

    def as_is(self, place: int) -> str:
        """The anchor that has an operation, not this one itself, which computes what this one computes; empty for none.

        And for one of which the subgraph has more: one of them is too many.
        """
        told = self._own.places[place]
        found = self._found(told, place)
        there = Counter(self._others.get(told, {}).values())
        return found if self._counts[told] <= there[found] else ""

    def with_edit(self, edit: Edit) -> str:
        """The same of an operation that is changed. A constant is like any other of its number, which says nothing."""
        told = self._own.with_edit(edit) if edit.kind != "constant" else None
        return "" if told is None else self._found(told, edit.place)

    def _found(self, told: int, place: int) -> str:
        return next((anchor for other, anchor in self._others.get(told, {}).items() if other != place), "")
