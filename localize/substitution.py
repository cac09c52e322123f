"""Of a wrong graph: puts anchors in the place of values until what comes after them is right.

Where that is so, the value is the anchor, and it is wrong by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hloracle.localize.annotate import Flat, type_of
from hloracle.localize.matching import Layout, Match, Scene, find
from hloracle.reference.model.anchors import split

MOST_LAYOUTS = 6  # that are tried of an anchor in one value
MOST_PAIRS = 64  # of two values, that are replaced at once

Values = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Trial:
    """An anchor put in the place of a value: what its numbers are there."""

    match: Match
    override: np.ndarray


@dataclass
class Round:
    """Some anchors that are lost, and one compiled graph in which values can be replaced by them.

    reads: of each anchor, those that the oracle computes it from. matches: the anchors that are known.
    places: of each lost anchor, the values that may be it. targets: what becomes right with it.
    run: the graph's values with some replaced. head: the value that it returns first.
    """

    scene: Scene
    flat: Flat
    reads: Mapping[str, Collection[str]]
    matches: Sequence[Match]
    places: Mapping[str, Sequence[int]]
    targets: Mapping[str, Sequence[str]]
    run: Callable[[Sequence[Trial]], Values]
    head: int
    _found: list[Trial] = field(default_factory=list)
    _values: Values = field(default_factory=dict)

    def repaired(self) -> list[Trial]:
        """Those that make what comes after them right.

        Each is tried once those before it are in place: it is wrong by itself only if that alone does not make it right. After
        each that is found the first ones are tried again: they may have failed because of it.
        """
        self._values = self.run(self._found)
        while new := next(filter(None, map(self._next, self.targets)), None):
            self._found += new
            self._values = self.run(self._found)
        return self._found

    def _next(self, anchor: str) -> list[Trial]:
        """An anchor that is wrong by itself, or the two that it is computed from."""
        wanted = self.targets[anchor]
        if anchor in self._done or (self._found and self._right(self._values, [anchor, *wanted])):
            return []
        return self._pair(anchor, wanted) or self._single(anchor, wanted)

    @property
    def _done(self) -> set[str]:
        return {t.match.anchor for t in self._found}

    def _single(self, anchor: str, wanted: Sequence[str]) -> list[Trial]:
        # One with the same numbers, such as a prompt's keys in the cache, is right wherever these numbers are put.
        others = [a for a in wanted if a == anchor or not self._alike(a, anchor)]
        for trial in self._trials(anchor):
            # Nothing is computed from the head.
            if trial.match.value == self.head or self._mended([trial], others):
                return [trial]
        return []

    def _pair(self, anchor: str, wanted: Sequence[str]) -> list[Trial]:
        """Two that an anchor is computed from, such as queries and keys that are turned by the same wrong angles.

        Neither alone makes it right. The two are likely computed alike, so they are tried at like places first, and as they
        most plainly lie there.
        """
        two = [
            a for a in self.places
            if a in self.reads.get(anchor, ()) and a not in self._done and not self._right(self._values, [a])
        ]  # fmt: skip
        if len(two) != 2:
            return []
        plainest = [{t.match.value: t for t in reversed([*self._trials(a)])} for a in two]
        one, other = ([of[place] for place in sorted(of)] for of in plainest)
        pairs = sorted(itertools.product(range(len(one)), range(len(other))), key=lambda p: (abs(p[0] - p[1]), p))
        for i, j in pairs[:MOST_PAIRS]:
            both = [one[i], other[j]]
            if one[i].match.value != other[j].match.value and self._mended(both, [anchor, *wanted]):
                return both
        return []

    def _mended(self, trials: Sequence[Trial], wanted: Sequence[str]) -> bool:
        """Whether one of these anchors becomes right by what is replaced, in a value that is computed from it."""
        last = max(t.match.value for t in trials)
        changed = {
            i: v for i, v in self.run([*self._found, *trials]).items()
            if i > last and not np.array_equal(v, self._values[i], equal_nan=True)
        }  # fmt: skip
        return self._right(changed, wanted)

    def _alike(self, one: str, other: str) -> bool:
        a, b = (np.sort(self.scene.expected(anchor), axis=None) for anchor in (one, other))
        return np.array_equal(a, b)

    def _right(self, values: Values, wanted: Sequence[str]) -> bool:
        """Whether any of these anchors is among the values as it should be."""
        return any(m.layout.factor == 1 for m in find(self.scene, values, wanted))

    def _trials(self, anchor: str) -> Iterator[Trial]:
        """The ways to put an anchor in the place of a value: the way it lies in other layers, or else all."""
        part = split(anchor)[1]
        for place in self.places[anchor]:
            shape, _ = type_of(self.flat.floats[place])
            if (now := self._values.get(place)) is None:
                continue
            known = [m.layout for m in self.matches if split(m.anchor)[1] == part]
            alike = [layout for layout in known if layout.shape == _left(shape, layout)]
            layouts = list(dict.fromkeys(alike or self.scene.layouts(anchor, shape)))[:MOST_LAYOUTS]
            for one in layouts:
                yield Trial(Match(anchor, place, one), self.scene.put(anchor, now, one))


def _left(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    axes = [p.axis for p in layout.picks]
    return tuple(n for i, n in enumerate(shape) if i not in axes)
