"""Calls of a graph of which it is known what is right: by the reference on a prompt, or by the oracle on any inputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from hloracle.localize.anatomy import Anatomy
from hloracle.localize.inputs import inputs, read, scales, share_of
from hloracle.localize.situation import ReferenceRun, Situation
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.repair.examples import Called
from hloracle.repair.subject import Subject

# A graph that is right is at most 2.5 floors off where nothing is rounded on the way (all families): a repair may be 4, which is a
# quarter of what a graph may be that a compiler runs. So it is with the share of what may differ on equal inputs.
REPAIRED_FLOORS, REPAIRED_SHARE, WRONG = 4.0, 0.25, 4.0
CALLS = 4  # of a phase, by the reference
MOST_SCORES = 1 << 22  # queries times keys times heads: of a call with more of them, one is enough

Weight = Callable[[str], np.ndarray]


class Call(Protocol):
    """One call of a graph."""

    def tells(self, anatomy: Anatomy, anchor: str) -> bool:
        """Whether it is known what is right at an anchor, from what the graph computes it from."""
        ...

    def value(self, name: str) -> np.ndarray:
        """What an argument is, or the right value of an anchor or a cache."""
        ...

    def error(self, anchor: str, results: Sequence[np.ndarray]) -> float:
        """How far off what the subgraph of an anchor gives is: at most 1 where it is put right, and beyond WRONG where it is wrong."""
        ...


class OfReference:
    """A call on a prompt, or a step after it: right is what Hugging Face has."""

    def __init__(self, situation: Situation, weight: Weight) -> None:
        self._situation = situation
        self.value = functools.lru_cache(maxsize=8)(partial(situation.value, weight=weight))

    def tells(self, anatomy: Anatomy, anchor: str) -> bool:
        """The reference has every anchor."""
        return True

    def error(self, anchor: str, results: Sequence[np.ndarray]) -> float:
        """In floors of the anchor."""
        return self._situation.error_of(anchor, results) / REPAIRED_FLOORS


class OfOracle:
    """A call on inputs that no prompt reaches: right is what the oracle's graph gives, evaluated alike."""

    def __init__(self, anatomy: Anatomy, oracle: Anatomy, weight: Weight, scale: float) -> None:
        self._graph, self._oracle, self._known = anatomy.graph, oracle, set(anchors(oracle.config))
        self.value = functools.lru_cache(maxsize=32)(inputs(anatomy, weight, scale))
        self._expected = functools.cache(self._of_oracle)

    def tells(self, anatomy: Anatomy, anchor: str) -> bool:
        """Where both graphs compute it from the same anchors."""
        if anchor == "token":
            return "lm_head" in read(anatomy.subgraph(anchor), self._known)
        if anchor not in self._oracle.values or (
            anatomy.targets(anchor) != self._oracle.targets(anchor) and split(anchor)[1] not in CACHES
        ):
            return False
        return read(anatomy.subgraph(anchor), self._known) == read(self._oracle.subgraph(anchor), self._known)

    def error(self, anchor: str, results: Sequence[np.ndarray]) -> float:
        """As a share of what two graphs may differ by on equal inputs."""
        both = zip(results, self._expected(anchor), strict=False)
        return max(share_of(anchor, g, e, self._graph) for g, e in both) / REPAIRED_SHARE

    def _of_oracle(self, anchor: str) -> list[np.ndarray]:
        if anchor == "token":
            return [np.array(np.argmax(self.value("lm_head"), axis=-1), np.int32)]
        plain = self._oracle.plain()
        targets = [plain.numbers[name] for name in self._oracle.targets(anchor)]
        subject = Subject(plain, targets, [Called(self.value, lambda results: 0.0)])
        return [subject.values[0].of(t) for t in targets]


def calls_of(run: ReferenceRun, phase: str, capacity: int) -> list[OfReference]:
    """Calls of one phase, the one that failed first: the last step and some before it, or prompts of several lengths."""
    loaded = functools.lru_cache(maxsize=8)(run.weight)  # the calls of one subgraph share them
    return [OfReference(situation, loaded) for situation in _situations(run, phase, capacity)]


def _situations(run: ReferenceRun, phase: str, capacity: int) -> list[Situation]:
    tokens, length = len(run.truth.tokens), run.length
    # Beyond its turning point RoPE turns by other angles, so the reference is of a prompt of this length alone.
    turns = run.config.turning_point is not None
    if phase == "decode":
        first = min(length if turns else 1, tokens - 1)
        places = [tokens - 1, *np.linspace(first, tokens - 1, CALLS, dtype=int)[:-1][::-1].tolist()]
        return [run.step(capacity, p) for p in dict.fromkeys(places)]
    lengths = [length, *(() if turns else (min(tokens, run.bucket), length // 2, 3))]
    fitting = dict.fromkeys(n for n in lengths if 0 < n <= min(tokens, run.bucket))
    calls = [dataclasses.replace(run, length=n).prompt(phase, capacity) for n in fitting]
    return calls[:1] if run.bucket**2 * run.config.num_attention_heads > MOST_SCORES else calls


def probes_of(anatomy: Anatomy, oracle: Anatomy | None, weight: Weight) -> list[OfOracle]:
    """Calls on inputs of several scales; none where there is no oracle."""
    loaded = functools.lru_cache(maxsize=8)(weight)
    return [OfOracle(anatomy, oracle, loaded, scale) for scale in scales(anatomy.graph.abi.compute)] if oracle else []
