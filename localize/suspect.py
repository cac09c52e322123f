"""A graph that is wrong, on calls whose right values are known. It is evaluated in NumPy, one anchor's subgraph after another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.situation import ReferenceRun, Situation
from hloracle.reference.model.anchors import split
from hloracle.repair.examples import Called
from hloracle.repair.likeness import Alike
from hloracle.repair.subject import Edit, Example, Subject
from hloracle.semantics.numbers import Unsupported

# A graph that is right is at most 2.5 floors off where nothing is rounded on the way (all families): a repair may be 4.
REPAIRED = 4.0
CALLS = 4  # of a phase that a change is tried on
MOST_SCORES = 1 << 22  # queries times keys: of a call with more of them, one is enough
CANNOT = (Unsupported, ValueError, IndexError, TypeError, KeyError)  # of what is evaluated


class Suspect:
    """A graph, and the calls that it is tried on.

    Args:
      situations: calls of the graph's phase whose right values are known. weight: gives a weight by its name.
    """

    def __init__(self, anatomy: Anatomy, situations: Sequence[Situation], weight: Callable[[str], np.ndarray]) -> None:
        self.anatomy, self.plain = anatomy, anatomy.plain()
        self.anchors = list(anatomy.anchors)
        self._situations = situations
        loaded = functools.lru_cache(maxsize=8)(weight)  # the calls of one subgraph share them
        self._given = [functools.lru_cache(maxsize=8)(partial(s.value, weight=loaded)) for s in situations]
        # Many at once where they are small: of a large model's, all values of all layers would be.
        most = 256 if sum(t.size for t in self.plain.types.values()) < MOST_SCORES else 4
        self.subject = functools.lru_cache(maxsize=most)(self._subject)
        self.off = functools.cache(self._off)
        self.needed = functools.cache(self._needed)
        self.alike = functools.cache(self._alike)

    def _subject(self, anchor: str) -> Subject:
        """The subgraph of an anchor, with every call as an example."""
        examples: list[Example] = [
            Called(given, partial(s.error_of, anchor), REPAIRED)
            for s, given in zip(self._situations, self._given, strict=True)
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
        """How far off an anchor is by itself, in floors, on the call where it is furthest off; NaN where it cannot be evaluated."""
        subject = self.subject(anchor)
        try:
            return REPAIRED * max(subject.error(which) for which in range(len(subject.examples)))
        except CANNOT:
            return float("nan")

    def wrong(self) -> list[str]:
        """The anchors that are known to be wrong by themselves."""
        return [a for a in self.anchors if self.off(a) > ANCHOR_FLOORS]

    def right_with(self, anchor: str, edit: Edit) -> bool:
        """Whether an anchor is right by itself with a change."""
        subject = self.subject(anchor)
        try:
            errors = [subject.error_with(edit, which) for which in range(len(subject.examples))]
        except CANNOT:
            return False
        return REPAIRED * max(subject.error(i) if e is None else e for i, e in enumerate(errors)) <= ANCHOR_FLOORS

    def _alike(self, anchor: str, wrong: frozenset[str]) -> Alike:
        """What of an anchor's subgraph is computed as in other layers; wrong: the anchors from which nothing is to be learned."""
        layer, part = split(anchor)
        others = (
            []
            if layer is None
            else [(a, at) for a in self.anchors for at, same in [split(a)] if same == part and at is not None]
        )
        return Alike(self.subject(anchor), layer or 0, [(a, self.subject(a), at) for a, at in others if a not in wrong])


def situations_of(run: ReferenceRun, phase: str, capacity: int) -> list[Situation]:
    """Calls of one phase, the one that failed first: the last step and some before it, or prompts of several lengths."""
    tokens, length = len(run.truth.tokens), run.length
    # Beyond its turning point RoPE turns by other angles, so the reference is of a prompt of this length alone.
    turns = run.config.turning_point is not None
    if phase == "decode":
        first = min(length if turns else 1, tokens - 1)
        places = [tokens - 1, *np.linspace(first, tokens - 1, CALLS, dtype=int)[:-1][::-1].tolist()]
        return [run.step(capacity, p) for p in dict.fromkeys(places)]
    lengths = [length, *(() if turns else (min(tokens, run.bucket), length // 2, 3))]
    fitting = dict.fromkeys(n for n in lengths if 0 < n <= min(tokens, run.bucket))
    calls = [Situation(run.config, run.truth, "prefill", run.bucket, run.bucket, capacity, n) for n in fitting]
    return calls[:1] if run.bucket**2 * run.config.num_attention_heads > MOST_SCORES else calls
