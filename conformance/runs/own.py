"""Somebody else's graph with what its own function is given in the open, and what two calls of it return, held to each other.

Legend: L layers, K kv heads, S cache slots, D their width, V vocab.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hloracle.backends.session import Backend, Buffer
from hloracle.core.abi import CACHES, Graph
from hloracle.core.tolerances import HIDDEN, HIDDEN_NARROW
from hloracle.localize.situation import distance
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.config import Config

NARROW = re.compile(r"[<x](?:bf16|f16)>")  # a type of StableHLO


@dataclass(frozen=True)
class Results:
    """What a call returns: logits [V] or a token; caches [L, K, S, D]; what is only handed on."""

    head: np.ndarray
    caches: tuple[np.ndarray, ...]
    state: tuple[np.ndarray, ...]

    @property
    def finite(self) -> bool:
        """Whether it has no NaN and no infinity."""
        return all(bool(np.all(np.isfinite(a))) for a in (self.head, *self.caches))

    def rows(self, rows: slice | int) -> list[np.ndarray]:
        """The head, and these slots of the caches."""
        return [self.head, *(c[:, :, rows] for c in self.caches)]


@dataclass
class Bench:
    """A backend, and the weights that were given to it."""

    backend: Backend
    model: Checkpoint
    held: dict[str, Buffer] = field(default_factory=dict)

    def weights(self, names: Iterable[str]) -> list[Buffer]:
        """Each is given to the backend once."""
        for name in names:
            if name not in self.held:
                self.held[name] = self.backend.keep(self.model.load(name))
        return [self.held[name] for name in names]


class Own:
    """A graph's own function between what makes its inputs and what takes its results: see `foreign/apart.py`."""

    def __init__(self, bench: Bench, graph: Graph, unused: Sequence[str] = ()) -> None:
        from hloracle.foreign.apart import apart  # which imports JAX

        parts = apart(graph)
        self.bench, self.graph, self.abi, self.weights, self.unused = bench, graph, graph.abi, parts.weights, unused
        self._given, self._own = bench.backend.load(parts.given), bench.backend.load(parts.own)
        self._embeds = bench.weights(parts.embeds)
        bench.weights(parts.weights)
        self.config: Config = bench.model.config
        self.limit = HIDDEN_NARROW if NARROW.search(graph.text) else HIDDEN
        self.rng = np.random.default_rng(11)

    @property
    def name(self) -> str:
        """How a sentence names the graph."""
        return "decode" if self.abi.phase == "decode" else f"prefill of {self.abi.bucket} tokens"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the caches."""
        return [self.abi.results[self.abi.result(name)].shape for name in self.abi.caches]

    def inputs(self, tokens: int | Sequence[int], at: int, *state: np.ndarray) -> list[np.ndarray]:
        """What the function is given beside its weights, in the contract's call."""
        given = [np.asarray(tokens, np.int32), np.asarray(at, np.int32), *state]
        found = self._given([*map(self.bench.backend.upload, given), *self._embeds])
        return [np.array(self.bench.backend.download(one)) for one in found]

    def call(self, inputs: Sequence[np.ndarray], at: int, other: Mapping[str, Buffer] | None = None) -> Results:
        """The contract's results. other: weights in place of the model's."""
        backend = self.bench.backend
        weights = [(other or {}).get(name, self.bench.held[name]) for name in self.weights]
        given = [*inputs, np.asarray(at, np.int32)]
        found = [np.array(backend.download(r)) for r in self._own([*weights, *map(backend.upload, given)])]
        count = len(self.abi.caches)
        return Results(found[0], tuple(found[1 : 1 + count]), tuple(found[1 + count :]))

    def tokens(self, count: int) -> list[int]:
        """Different ones, where the vocabulary has so many."""
        order = self.rng.permutation(self.config.vocab_size)
        return [int(order[i % len(order)]) for i in range(count)]

    def junk(self, shape: Sequence[int], scale: float = 1.0) -> np.ndarray:
        """Ordinary numbers that every dtype of a cache has, so that it can hold them as they are."""
        return (self.rng.integers(-15, 16, shape) / 8 * scale).astype(np.float32)

    def congruent(self, at: int, low: int, high: int, apart: int = 1) -> int:
        """Another position or length in low..high of which the same row is judged; `at` itself where there is none."""
        return congruent(self.graph.rows, at, low, high, apart)


def congruent(rows: int, at: int, low: int, high: int, apart: int = 1) -> int:
    """Another number in low..high, at least `apart` off, that leaves the same rest by `rows`; `at` itself for none."""
    step = rows * -(-apart // rows)
    return at - step if at - step >= low else at + step if at + step <= high else at


# ---- comparing


def headless(results: Results) -> Results:
    """The caches alone."""
    return replace(results, head=np.zeros(0))


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Bit for bit."""
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def same(one: Results, other: Results, rows: slice) -> bool:
    """Whether two calls gave the same head, and the same in these slots, bit for bit."""
    return all(equal(a, b) for a, b in zip(one.rows(rows), other.rows(rows), strict=True))


def _changed(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Absolute differences; infinite where one of two is NaN."""
    return np.where(np.isnan(one) & np.isnan(other), 0.0, distance(one, other))


def _sizes(array: np.ndarray, axis: tuple[int, ...] | None = None) -> np.ndarray:
    """The largest finite magnitude; 1 where there is none but 0."""
    size = np.max(np.abs(array), axis=axis, initial=0.0, where=np.isfinite(array))
    return np.where(size > 0, size, 1)


def _words(off: float, s: str = "") -> str:
    return f"change{s} by {off:.2g}" if np.isfinite(off) else f"change{s} to or from what is not finite"


def difference(one: Results, other: Results, rows: slice, layer: int = 0) -> tuple[float, str]:
    """By how much what is returned changes, relative to its largest value; and what does, in words.

    Args:
      rows: the slots of the caches that are compared. layer: of the first layer that they have.
    """
    found = []
    if one.head.ndim and one.head.size:
        off = float(np.max(_changed(one.head, other.head)))
        found.append((off / float(_sizes(one.head)), f"the logits {_words(off)}"))
    elif one.head.size and int(one.head) != int(other.head):
        found.append((np.inf, f"the token changes from {int(one.head)} to {int(other.head)}"))
    for name, mine, theirs in zip(CACHES, one.caches, other.caches, strict=False):
        if not mine[:, :, rows].size:
            continue
        off = np.max(_changed(mine[:, :, rows], theirs[:, :, rows]), axis=(1, 3))  # [L, rows]
        share = off / _sizes(mine[:, :, rows], axis=(1, 2, 3))[:, None]
        at, slot = map(int, np.unravel_index(int(np.argmax(share)), share.shape))
        words = f"slot {slot + (rows.start or 0)} of {name}.{at + layer} {_words(float(off[at, slot]), 's')}"
        found.append((float(share[at, slot]), words))
    largest = max((share for share, _ in found), default=0.0)
    if not largest:
        return 0.0, "nothing changes"
    # Of the head where it shows there, too.
    return largest, next(words for share, words in found if share >= 0.01 * largest)
