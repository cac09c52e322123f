"""The right values of one call of a graph: the inputs of each of its subgraphs, and the value at each anchor.

Legend: n tokens of the sequence, T query tokens, S keys, L layers, N/K query/kv heads, G = N/K, D head_dim, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.core.tolerances import ANCHOR_FLOORS, MASKED_BELOW, ROUNDING, SMALLEST
from hloracle.reference.huggingface.anchor_truth import AnchorTruth, visible
from hloracle.reference.model.anchors import CACHES, anchor_shape, split, terms
from hloracle.reference.model.config import Config

BY_HEAD = ("self_attn.scores", "self_attn.probs")


@dataclass(frozen=True)
class Worst:
    """The element that is furthest from the truth: its index in the graph's value, and both values."""

    index: tuple[int, ...]
    value: float
    expected: float


@dataclass(frozen=True)
class Situation:
    """A prefill of the first `length` tokens of the truth's sequence, or the decode step at `position`.

    Args:
      position: the decode step's. length: the prompt's tokens in prefill.
      queries, keys: T and S of the graph.
      capacity: slots of the whole cache.
    """

    config: Config
    truth: AnchorTruth
    phase: str
    queries: int
    keys: int
    capacity: int
    length: int = 0
    position: int = 0

    @property
    def rows(self) -> list[int]:
        """The tokens of the sequence whose values are computed here."""
        return list(range(self.length)) if self.phase == "prefill" else [self.position]

    # ---- right values

    def value(self, name: str, weight: Callable[[str], np.ndarray]) -> np.ndarray:
        """The right value of a graph's argument: an anchor, an input of the model, a weight, or a cache in between."""
        if name.endswith("+"):
            layer, part = split(name[:-1])
            assert layer is not None
            return self.cache(part, written=layer)
        if name in CACHES:
            return self.cache(name, written=-1)
        tokens = np.array(self.truth.tokens, np.int32)
        if name == "tokens":
            return np.pad(tokens[: self.length], (0, self.queries - self.length))
        scalars = {"length": self.length, "position": self.position, "token": int(tokens[self.position])}
        if name in scalars:
            return np.array(scalars[name], np.int32)
        _, part = split(name)
        if part == name and name not in ("embed_tokens", "norm", "lm_head"):
            return weight(name)
        return self.anchor(name)

    def anchor(self, anchor: str) -> np.ndarray:
        """The truth at an anchor in the shape it has in a graph. Rows of padding are 0; so are their scores, but masked."""
        if anchor == "token":
            return np.array(np.argmax(self.anchor("lm_head")), np.int32)
        shape = anchor_shape(self.config, anchor, self.queries, self.keys)
        rows = self.truth.values(anchor)
        _, part = split(anchor)
        if part in ("norm", "lm_head"):
            return np.asarray(rows[self.rows[-1]].reshape(shape))
        if part in CACHES and self.phase == "decode":
            layer, part = split(anchor)
            assert layer is not None
            return np.asarray(self.cache(part, written=layer)[layer])
        if part in BY_HEAD:
            seen = rows[self.rows][..., : self.keys]  # [rows, K, G, keys]
            masked = 0.0 if part.endswith("probs") else -np.inf
            value = np.full((self.queries, *seen.shape[1:3], self.keys), masked, np.float32)
            value[: len(seen), ..., : seen.shape[-1]] = seen
            if part.endswith("scores"):
                for row in range(len(seen), self.queries):  # padding also sees what comes before it
                    value[row, ..., visible(self.config, anchor, row)] = 0
            return np.ascontiguousarray(value.transpose(1, 0, 2, 3))
        value = np.zeros((self.queries, *rows.shape[1:]), np.float32)
        value[: len(self.rows)] = rows[self.rows]
        if part in CACHES:
            return np.ascontiguousarray(value.transpose(1, 0, 2))  # [K, T, D]
        return value.reshape(shape)

    @functools.lru_cache(maxsize=4)  # noqa: B019  (its subgraphs ask for one layer's caches after another's)
    def cache(self, part: str, written: int) -> np.ndarray:
        """The whole cache [L, K, S, D] once the layers up to `written` have put their rows there; -1: none yet.

        In decode, slots that are not filled yet hold numbers as large as the others: what reads them is wrong.
        """
        shape = self.config.cache_shapes(self.capacity)[part]
        whole = np.zeros(shape, np.float32)
        if self.phase == "decode":
            scale = float(np.max(np.abs(self.truth.values(f"{part}.0")))) or 1.0
            whole[:] = np.random.default_rng(7).normal(0, scale, shape[1:])
        for layer in range(len(whole)):
            rows = self.truth.values(f"{part}.{layer}")
            if self.phase == "prefill":
                filled = self.length if layer <= written else 0
            else:
                filled = self.position + (layer <= written)
            whole[layer, :, :filled] = rows[:filled].transpose(1, 0, 2)
        return whole

    # ---- errors

    def errors(self, anchor: str, got: np.ndarray) -> np.ndarray:
        """How far the value of a graph is from the truth, in floors: one figure for each of `rows`, infinite for NaN.

        The head has one row, the last. A decode step's cache counts as a whole.
        """
        if anchor == "token":
            return np.array([0.0 if got == self.anchor(anchor) else np.inf])
        off, floors = self._distance(anchor, got)
        with np.errstate(over="ignore"):
            return np.asarray(np.max(off.reshape(len(off), -1), axis=1) / floors)

    def cache_errors(self, part: str, written: int, got: np.ndarray) -> np.ndarray:
        """The error of each layer of a whole cache [L, K, S, D]: the worst filled slot, in floors of its row.

        What is not filled has to be as it was: the error is infinite where it is not.
        """
        expected = self.cache(part, written)
        found = np.zeros(len(expected))
        filled = self.length if self.phase == "prefill" else self.position + 1
        for layer in range(len(expected)):
            off = distance(got[layer], expected[layer])  # [K, S, D]
            floors = self.floors(f"{part}.{layer}")[:filled]
            ratio = np.max(off[:, :filled], axis=(0, 2)) / floors
            found[layer] = np.max(ratio, initial=0.0)
            if np.any(off[:, filled:]):
                found[layer] = np.inf
        return found

    def error_of(self, anchor: str, results: Sequence[np.ndarray]) -> float:
        """The largest error of what an anchor's subgraph gives: its value and, of a cache, the whole that it wrote to."""
        worst = float(np.max(self.errors(anchor, results[0])))
        layer, part = split(anchor)
        if len(results) > 1:
            assert layer is not None
            worst = max(worst, float(np.max(self.cache_errors(part, layer, results[1]))))
        return worst

    def worst(self, anchor: str, got: np.ndarray) -> Worst:
        """The element furthest from the truth, in floors."""
        off, floors = self._distance(anchor, got)
        ratio = off / floors.reshape(-1, *[1] * (off.ndim - 1))
        at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        index = _graph_index(split(anchor)[1], tuple(int(i) for i in at))
        shaped = got.reshape(anchor_shape(self.config, anchor, self.queries, self.keys))
        expected = self.anchor(anchor)
        return Worst(index, float(shaped[index]), float(expected[index]))

    def corrected(
        self, anchor: str, got: np.ndarray, padding: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:  # fmt: skip
        """What a graph should have computed: `got` with the rows that count put right; and how far off is still right.

        The figure is the largest limit of any row, or half of what is wrong, whichever tells right from wrong.

        Args:
          padding: what a right graph computes; from it come the rows that do not count, of which the truth is unknown.
        """
        shape = anchor_shape(self.config, anchor, self.queries, self.keys) if anchor != "token" else ()
        right = self.anchor(anchor)
        if anchor == "token":
            return right, 0.0
        _, part = split(anchor)
        filled = len(self.rows) if self.phase == "prefill" or part not in CACHES else self.position + 1
        value = (got if padding is None else padding).reshape(shape).copy()
        mine, rows = _row_first(part, got.reshape(shape)), _row_first(part, value)
        rows[:filled] = _row_first(part, right)[:filled]
        if part == "self_attn.scores":  # a hidden one is right as it is, whatever number it is hidden behind
            limit = np.max(rows, axis=-1, keepdims=True) - MASKED_BELOW
            np.copyto(rows, mine, where=np.isneginf(rows) & (mine <= limit))
        worst = self.worst(anchor, got)
        off = abs(worst.value - worst.expected)
        limit = ANCHOR_FLOORS * float(np.max(self.floors(anchor)[self.rows]))
        return value.reshape(got.shape), min(limit, off / 2) if np.isfinite(off) else limit

    def _distance(self, anchor: str, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances of the rows that count, row first, and the floor of each row."""
        _, part = split(anchor)
        shape = anchor_shape(self.config, anchor, self.queries, self.keys)
        expected, value = _row_first(part, self.anchor(anchor)), _row_first(part, got.reshape(shape))
        floors = self.floors(anchor)
        if part in ("norm", "lm_head"):
            return distance(value, expected), floors[self.rows[-1:]]
        if part in CACHES and self.phase == "decode":
            return distance(value, expected)[: self.position + 1], floors[: self.position + 1]
        off = distance(value, expected)
        if part == "self_attn.scores":
            masked = np.isneginf(expected)
            limit = np.max(expected, axis=-1, keepdims=True) - MASKED_BELOW
            off = np.where(masked, np.where(value <= limit, 0.0, np.inf), off)
        return off[: len(self.rows)], floors[self.rows]

    def floors(self, anchor: str) -> np.ndarray:
        """The floor of each row [n]: see `row_floors`."""
        return row_floors(self.truth, anchor, self.config)


@dataclass(frozen=True)
class ReferenceRun:
    """A sequence of tokens with the reference's value at every anchor, as a session runs it.

    truth: the sequence and the values. weight: gives a weight of the model by its name.
    length: tokens of the prompt, with which the sequence begins; the others are decoded one by one.
    bucket: of the prefill graph that the prompt goes through.
    """

    truth: AnchorTruth
    config: Config
    weight: Callable[[str], np.ndarray]
    length: int
    bucket: int

    def prefill(self, capacity: int) -> Situation:
        """The prefill of the prompt, in graphs with this many cache slots."""
        return Situation(self.config, self.truth, "prefill", self.bucket, self.bucket, capacity, self.length)

    def step(self, capacity: int, position: int) -> Situation:
        """The decode step at a position, in graphs with this many cache slots."""
        return Situation(self.config, self.truth, "decode", 1, capacity, capacity, self.length, position)


@functools.lru_cache(maxsize=4096)
def row_floors(truth: AnchorTruth, anchor: str, config: Config) -> np.ndarray:
    """What float32 noise is worth at an anchor, for each row of the sequence: float64 [n].

    The largest of three, so that rows of any scale, constant ones too, are judged alike: the noise that was measured in
    the row; what is usual for the anchor, relative to the row's largest value, because Hugging Face may happen to be
    exact in a row; and the roundings of a sum whose terms are added one after the other, of which about the root of
    their number is left, because a right implementation may sum so where Hugging Face sums in blocks.
    """
    scale, noise = row_scales(truth, anchor), np.asarray(truth.noise(anchor), np.float64)
    alive = scale > 0
    usual = float(np.median(noise[alive] / scale[alive])) if alive.any() else 0.0
    rounding = ROUNDING * np.sqrt(terms(config, anchor, len(truth.tokens)))
    floors: np.ndarray = np.maximum.reduce([noise, usual * scale, rounding * scale, np.full_like(scale, SMALLEST)])
    return floors


def slot_errors(truth: AnchorTruth, config: Config, anchor: str, got: np.ndarray) -> np.ndarray:
    """Of one layer's cache, [K, filled, D], what each slot is off by, in floors: [filled]."""
    filled = got.shape[1]
    expected = truth.values(anchor)[:filled].transpose(1, 0, 2)
    with np.errstate(over="ignore"):
        return np.asarray(np.max(distance(got, expected), axis=(0, 2)) / row_floors(truth, anchor, config)[:filled])


def row_errors(truth: AnchorTruth, config: Config, anchor: str, row: int, got: np.ndarray) -> float:
    """What the value of one row is off by, in floors; infinite for NaN."""
    off = np.max(distance(got, truth.values(anchor)[row]))
    with np.errstate(over="ignore"):
        return float(off / row_floors(truth, anchor, config)[row])


def row_scales(truth: AnchorTruth, anchor: str) -> np.ndarray:
    """The largest finite absolute value of each row: float64 [n]."""
    rows = np.asarray(truth.values(anchor))
    finite = np.where(np.isfinite(rows), np.abs(rows), 0).reshape(len(rows), -1)
    scale: np.ndarray = np.max(finite, axis=1).astype(np.float64)
    return scale


def _row_first(part: str, value: np.ndarray) -> np.ndarray:
    """A graph's value with one row for each token (or cache slot)."""
    if part in BY_HEAD:
        return value.transpose(1, 0, 2, 3)  # [T, K, G, S]
    if part in CACHES:
        return value.transpose(1, 0, 2)  # [S, K, D]
    return value[None] if part == "lm_head" else value


def _graph_index(part: str, at: tuple[int, ...]) -> tuple[int, ...]:
    """The place in the graph's value of a place in the row-first one."""
    if part in BY_HEAD or part in CACHES:
        return (at[1], at[0], *at[2:])
    return at[1:] if part == "lm_head" else at


def distance(value: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Absolute differences; 0 where both are the same infinity, infinite where one is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.asarray(np.abs(value.astype(np.float64) - expected.astype(np.float64)))
    apart[value == expected] = 0.0
    apart[np.isnan(apart)] = np.inf
    return apart
