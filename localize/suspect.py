"""A graph that is wrong, on calls of which it is known what is right. It is evaluated in NumPy, one anchor's subgraph after another."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from hloracle.localize.anatomy import Anatomy
from hloracle.localize.calls import WRONG, Call
from hloracle.reference.model.anchors import split
from hloracle.repair.examples import Called
from hloracle.repair.likeness import Alike
from hloracle.repair.subject import CANNOT, Edit, Example, Plain, Subject

MOST_ELEMENTS = 1 << 22  # of all values of a graph: of a larger one not all that is evaluated is kept


class Suspect:
    """A graph, and the calls that it is tried on.

    Args:
      calls: of the graph's phase. known: how far off anchors are whose subgraph another graph had as well.
    """

    def __init__(self, anatomy: Anatomy, calls: Sequence[Call], known: Mapping[str, float] | None = None) -> None:
        self.anatomy, self.plain = anatomy, anatomy.plain()
        self.anchors = list(anatomy.anchors)
        self._calls, self._known = calls, dict(known or {})
        self.subject = functools.lru_cache(maxsize=256 if is_small(self.plain) else 4)(self._subject)
        self.off = functools.cache(self._off)
        self.needed = functools.cache(self._needed)
        self.alike = functools.cache(self._alike)

    def _subject(self, anchor: str) -> Subject:
        """The subgraph of an anchor, with every call as an example that says what is right there."""
        examples: list[Example] = [
            Called(call.value, partial(call.error, anchor)) for call in self._calls if call.tells(self.anatomy, anchor)
        ]
        return Subject(self.plain, self._targets(anchor), examples, partial(self._own, anchor))

    def _targets(self, anchor: str) -> list[int]:
        return [self.plain.numbers[name] for name in self.anatomy.targets(anchor)]

    def _own(self, anchor: str, place: int) -> bool:
        """Whether an operation may be to blame for an anchor: none of another layer, and none that computes an earlier one."""
        scope = self.plain.scopes[place]
        if scope in ("", anchor) or scope not in self.anchors:
            return True
        if split(scope)[0] not in (None, split(anchor)[0]):
            return False
        return self.anchors.index(scope) > self.anchors.index(anchor) or place not in self.needed(scope)

    def _needed(self, anchor: str) -> frozenset[int]:
        """The places of the operations that an anchor's subgraph has."""
        targets = self._targets(anchor)
        stops = {v: name for v, name in self.plain.stops.items() if v not in targets}
        return frozenset(self.plain.needed(targets, stops))

    def _off(self, anchor: str) -> float:
        """How far off an anchor is by itself on the call where it is furthest off; NaN where that is not known."""
        if anchor in self._known:
            return self._known[anchor]
        subject = self.subject(anchor)
        try:
            return max((subject.error(which) for which in range(len(subject.examples))), default=float("nan"))
        except CANNOT:
            return float("nan")

    def wrong(self) -> list[str]:
        """The anchors that are known to be wrong by themselves."""
        return [a for a in self.anchors if self.is_wrong(a)]

    def is_wrong(self, anchor: str) -> bool:
        """Whether an anchor is known to be wrong by itself."""
        return self.off(anchor) > WRONG

    def is_right(self, anchor: str) -> bool:
        """Whether an anchor is known to be right by itself."""
        return self.off(anchor) <= WRONG

    def unchanged(self, lines: Collection[int]) -> dict[str, float]:
        """How far off those anchors are whose subgraph has none of these lines of the text."""
        changed = {place for place, (line, _) in enumerate(self.plain.lines) if line in lines}
        return {anchor: self.off(anchor) for anchor in self.anchors if not changed & self.needed(anchor)}

    def right_with(self, anchor: str, edit: Edit) -> bool:
        """Whether it is known of an anchor that it is right by itself with a change."""
        subject = self.subject(anchor)
        if not subject.examples:
            return False
        try:
            errors = [subject.error_with(edit, which) for which in range(len(subject.examples))]
        except CANNOT:
            return False
        return max(subject.error(i) if e is None else e for i, e in enumerate(errors)) <= WRONG

    def _alike(self, anchor: str) -> Alike:
        """What of an anchor's subgraph is computed as in other layers, where it is known to be right."""
        layer, part = split(anchor)
        found = []
        for other in self.anchors if layer is not None else ():
            at, same = split(other)
            if same == part and at not in (None, layer) and self.is_right(other):
                found.append((other, self.subject(other), at or 0))
        return Alike(self.subject(anchor), layer or 0, found)


def is_small(plain: Plain) -> bool:
    """Whether all values of a graph fit into memory, on several calls at once."""
    return sum(type.size for type in plain.types.values()) < MOST_ELEMENTS
