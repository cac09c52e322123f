"""The right values of one call of a graph: the inputs of each of its subgraphs, and the value at each anchor.

Legend: n tokens of the sequence, T query tokens, S keys, L layers, N/K query/kv heads, G = N/K, D head_dim, V vocab.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hloracle.backends.session import IDLE
from hloracle.core import int8, rings
from hloracle.core.abi import KEPT, SCALES, Abi, cache_of, ring_of, scale_of
from hloracle.core.dtypes import numpy_type
from hloracle.core.spread import LARGEST, Spread, row_spreads, spread_of
from hloracle.core.tolerances import (
    ANCHOR_FLOORS,
    INT8_ROUNDING,
    INT8_SAME_STEPS,
    MASKED_BELOW,
    NARROW_LARGEST,
    NARROW_MARGINS,
    NARROW_ROUNDING,
    NARROW_ROWS,
    ROUNDING,
    SAME_INPUTS,
    SMALLEST,
)
from hloracle.reference.huggingface.anchor_truth import AnchorTruth, counted, visible
from hloracle.reference.model.anchors import BY_HEAD, CACHES, anchor_shape, split, terms
from hloracle.reference.model.config import Config

HEAD = ("norm", "lm_head")  # of the last token alone


@dataclass(frozen=True)
class Worst:
    """The element that is furthest from the truth: its index in the graph's value, and both values."""

    index: tuple[int, ...]
    value: float
    expected: float


APART = 3  # positions between neighbouring rows of a batch
BESIDE = np.float32(-2)  # times the judged row's values, which a norm would not tell from the negated ones
JUDGED = 1  # the row of a batch that holds the sequence: not the first, so that what reads the first one's is wrong


@dataclass(frozen=True)
class Situation:
    """A prefill of the first `length` tokens of the truth's sequence; an extend by the `length` tokens from `position` on; or the
    decode step at `position`.

    Of a batch, one row holds the sequence. In decode the others are at other positions with other values: BESIDE times those of
    the judged row, or of scores those in reverse. The last of three or more is idle.

    Args:
      queries, keys: T and S of the graph; T is the rows of a decode.
      capacity: slots of the whole cache. batch: rows of the whole cache. ring: whether windowed layers are in rings. kv: what keys
      and values are kept in.
    """

    config: Config
    truth: AnchorTruth
    phase: str
    queries: int
    keys: int
    capacity: int
    length: int = 0
    position: int = 0
    batch: int = 1
    ring: bool = False
    kv: str = "compute"

    @property
    def rows(self) -> list[int]:
        """The tokens of the sequence whose values are computed here."""
        if self.phase == "prefill":
            return list(range(self.length))
        return list(range(self.position, self.position + (self.length if self.phase == "extend" else 1)))

    @property
    def positions(self) -> list[int]:
        """Where each row of a batch is in a decode; IDLE for one that takes no token."""
        found = [(self.position + APART * (row - JUDGED)) % self.capacity for row in range(self.batch)]
        return [*found[:-1], IDLE] if self.batch > 2 else found

    @property
    def own(self) -> int:
        """B where each query has a row of the caches of its own; else 1."""
        return self.batch if self.phase == "decode" else 1

    def shape(self, anchor: str) -> tuple[int, ...]:
        """The shape of an anchor's value in the graph, by the contract."""
        if anchor == "token":
            return ()
        layer, _ = split(anchor)
        keys = self.keys if layer is None else len(self.key_positions(layer))
        return anchor_shape(self.config, anchor, self.queries, keys, self.own)

    def slots(self, layer: int) -> int:
        """Of a layer's cache, or of its ring."""
        in_ring = self.ring and layer in self.config.windowed(self.capacity)
        return self.config.ring(self.capacity) if in_ring else self.capacity

    def key_positions(self, layer: int) -> np.ndarray:
        """The position that each key is of which the layer's queries may attend to, in the judged row; -1 where a ring holds none."""
        slots = self.slots(layer)
        return rings.key_positions(self.phase, slots, self.queries, self.position, slots < self.capacity)

    # ---- right values

    def value(self, name: str, weight: Callable[[str], np.ndarray]) -> np.ndarray:
        """The right value of a graph's argument: an anchor, an input of the model, a weight, or a cache in between."""
        if name.endswith("+"):
            layer, part = split(name[:-1])
            assert layer is not None
            return self.cache(part if part in SCALES else self.role(part, layer), written=layer)
        if name in KEPT:
            return self.cache(name, written=-1)
        tokens = np.array(self.truth.tokens, np.int32)
        if name == "tokens":
            return np.pad(tokens[self.rows], (0, self.queries - self.length))
        if name == "position" and self.own > 1:
            return np.array(self.positions, np.int32)
        if name == "token" and self.own > 1:
            token, V = int(tokens[self.position]), self.config.vocab_size
            return np.array([(token + APART * (row - JUDGED)) % V for row in range(self.batch)], np.int32)
        scalars = {
            "length": self.length, "position": self.position, "row": JUDGED,
            "total": self.position + self.length, "token": int(tokens[self.position]),
        }  # fmt: skip
        if name in scalars:
            return np.array(scalars[name], np.int32)
        _, part = split(name)
        if part == name and name not in ("embed_tokens", "norm", "lm_head"):
            return weight(name)
        return self.anchor(name)

    def anchor(self, anchor: str) -> np.ndarray:
        """The truth at an anchor in the shape it has in a graph. Rows of padding are 0; so are their scores, but masked."""
        if anchor == "token":
            return np.array(np.argmax(self.anchor("lm_head"), axis=-1), np.int32)
        shape = self.shape(anchor)
        rows = self.truth.values(anchor)
        layer, part = split(anchor)
        if part in CACHES and self.phase != "prefill":
            assert layer is not None
            role, in_ring = self.role(part, layer), self.slots(layer) < self.capacity
            behind = in_ring and self.phase == "extend"  # what the ring held before, and then the tokens themselves
            whole = self._values(role, written=-1 if behind else layer)[self.layers(role).index(layer)]
            mine = np.asarray(whole if whole.ndim == len(shape) else whole[JUDGED])
            own = self._by_query(anchor, rows).transpose(1, 0, 2)
            return np.concatenate([mine, own], axis=1) if behind else mine
        if part in HEAD and self.own == 1:
            return np.asarray(rows[self.rows[-1]].reshape(shape))
        value = self._by_query(anchor, rows)
        if self.own > 1:
            return self._beside(part, value[0]).reshape(shape)
        if part in BY_HEAD:
            return np.ascontiguousarray(value.transpose(1, 0, 2, 3))
        if part in CACHES:
            return np.ascontiguousarray(value.transpose(1, 0, 2))  # [K, T, D]
        return value.reshape(shape)

    def _by_query(self, anchor: str, rows: np.ndarray) -> np.ndarray:
        """The rows of the truth that are computed here, and of padding, query first."""
        _, part = split(anchor)
        queries = 1 if self.own > 1 else self.queries
        if part not in BY_HEAD:
            value = np.zeros((queries, *rows.shape[1:]), np.float32)
            value[: len(self.rows)] = rows[self.rows]
            return value
        layer, _ = split(anchor)
        assert layer is not None
        of = self.key_positions(layer)
        known = (of >= 0) & (of < rows.shape[-1])
        masked = 0.0 if part.endswith("probs") else -np.inf
        value = np.full((queries, *rows.shape[1:3], len(of)), masked, np.float32)
        value[: len(self.rows), ..., known] = rows[self.rows][..., of[known]]
        first, last = (self.position if self.phase == "extend" else 0), int(np.max(of))
        for row in (
            range(len(self.rows), queries) if part.endswith("scores") else ()
        ):  # padding also sees what comes before it
            seen = visible(self.config, anchor, min(first + row, last))
            value[row, ..., (of >= seen.start) & (of < seen.stop)] = 0
        return value

    def _beside(self, part: str, judged: np.ndarray) -> np.ndarray:
        """The judged row's value among those of the rows beside it."""
        other = judged[..., ::-1] if part in BY_HEAD else BESIDE * judged
        return np.stack([judged if row == JUDGED else other for row in range(self.batch)])

    def cache(self, role: str, written: int) -> np.ndarray:
        """A whole cache [L, K, S, D] or ring [L, K, W, D], of a batch [L, B, K, S, D], once the layers up to `written` have put their rows
        there; -1: none yet. In int8 its integers, and by the role of its scales these, without D.

        But for prefill, slots that are not filled yet hold numbers as large as the others: what reads them is wrong.
        """
        return (
            self._in_int8(cache_of(role), written)[role in SCALES] if self.kv == "int8" else self._values(role, written)
        )

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def _in_int8(self, role: str, written: int) -> tuple[np.ndarray, np.ndarray]:
        return int8.quantized(self._values(role, written))

    @functools.lru_cache(maxsize=4)  # noqa: B019  (its subgraphs ask for one layer's caches after another's)
    def _values(self, role: str, written: int) -> np.ndarray:
        part, layers = cache_of(role), self.layers(role)
        shapes = self.config.held_shapes if self.ring else self.config.cache_shapes
        shape = shapes(self.capacity, self.batch)[role]
        whole = np.zeros(shape, np.float32)
        if self.phase != "prefill":
            scale = float(np.max(np.abs(self.truth.values(f"{part}.0")))) or 1.0
            whole[:] = self._held(np.random.default_rng(7).normal(0, scale, shape[1:]))
        before, after = self._filled
        slots = shape[-2]
        for i, layer in enumerate(layers):
            rows = self.truth.values(f"{part}.{layer}")
            mine, filled = (
                whole[i] if self.batch == 1 else whole[i, JUDGED],
                after if layer <= written else before,
            )
            of = rings.positions(slots, filled)
            mine[:, of < filled] = rows[of[of < filled]].transpose(1, 0, 2)
            for row, position in enumerate(self.positions if self.own > 1 and layer <= written else ()):
                if row != JUDGED and position != IDLE:
                    beside = BESIDE * rows[self.position]
                    if (
                        part == "v_cache" and self.config.clip_qkv
                    ):  # on the way from v_proj, of which BESIDE times is given
                        beside = np.clip(beside, -self.config.clip_qkv, self.config.clip_qkv)
                    whole[i, row, :, position % slots] = self._held(beside)
        return whole

    def role(self, part: str, layer: int) -> str:
        """Which cache of a graph has a layer's keys or values: `k_cache` or `k_ring`, or of values."""
        return ring_of(part) if self.slots(layer) < self.capacity else part

    def layers(self, role: str) -> list[int]:
        """The layers that a cache or a ring of the graph has, in order."""
        role = cache_of(role) if role in SCALES else role
        return [i for i in range(self.config.num_hidden_layers) if self.role(cache_of(role), i) == role]

    def _held(self, cache: np.ndarray) -> np.ndarray:
        """What caches of the graph's type make of numbers that have to stay as they are, as float32."""
        compute = "f32" if self.kv == "int8" else self.truth.compute  # which `_in_int8` rounds
        return np.asarray(cache.astype(numpy_type(compute)).astype(np.float32))

    @property
    def _filled(self) -> tuple[int, int]:
        """How many slots of the judged row are filled before the call, and after it."""
        if self.phase == "prefill":
            return 0, self.length
        return self.position, self.position + len(self.rows)

    # ---- errors

    def counted_rows(self, anchor: str) -> list[int]:
        """The tokens that `errors` has a figure for."""
        return self._counted(anchor)[1]

    def errors(self, anchor: str, got: np.ndarray) -> np.ndarray:
        """How far the value of a graph is from the truth, in floors: one figure for each of `rows`, infinite for NaN.

        The head has one row, the last, but of a batch. A cache that a step or an extend reads has one for each slot that is filled.
        """
        if anchor == "token":
            mine = JUDGED if self.own > 1 else 0
            return np.array([0.0 if np.ravel(got)[mine] == np.ravel(self.anchor(anchor))[mine] else np.inf])
        off, floors = self._distance(anchor, got)
        excess = spread_errors(self.truth, self.config, anchor, self._counted(anchor)[1], off)
        with np.errstate(over="ignore"):
            return np.asarray(np.maximum(np.max(off.reshape(len(off), -1), axis=1) / floors, excess))

    def row_spreads(self, anchor: str, got: np.ndarray) -> tuple[list[int], np.ndarray]:
        """How the errors of a graph's value are spread in each row that counts: the rows, and [rows, 4]."""
        off, _ = self._distance(anchor, got)
        rows = self._counted(anchor)[1]
        return rows, row_spreads(off, counted(anchor, self.truth.values(anchor))[rows])

    def cache_errors(self, role: str, written: int, got: np.ndarray) -> np.ndarray:
        """The error of each of `layers(role)`, of a whole cache or ring, or of scales: the worst filled slot, in floors of its row.

        What is not filled has to be as it was: the error is infinite where it is not.
        """
        expected = self.cache(role, written)
        got = got.reshape(expected.shape)
        worst, moved = self._in_steps(role, written, got) if self.kv == "int8" else [distance(got, expected)] * 2
        found = np.zeros(len(expected))
        before, after = self._filled
        for i, layer in enumerate(self.layers(role)):
            off = moved[i]  # [K, S, D], or [B, K, S, D]
            mine, judged = (x if self.batch == 1 else x[JUDGED] for x in (off, worst[i]))
            of, filled = rings.positions(off.shape[-2], after if layer <= written else before), after
            floors = self.floors(f"{cache_of(role)}.{layer}")[of[of < filled]]
            found[i] = np.max(np.max(judged[:, of < filled], axis=(0, 2)) / floors, initial=0.0)
            others = np.delete(off, JUDGED, axis=0) if self.batch > 1 else off[:0]
            if np.any(mine[:, of >= filled]) or np.any(others):
                found[i] = np.inf
        return found

    def _in_steps(self, role: str, written: int, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How far off integers with the right scales are, or scales with the right integers; and how far from those that are right."""
        steps, scales = self._in_int8(cache_of(role), written)
        of_scales = role in SCALES
        numbers = int8.dequantized(steps, got) if of_scales else int8.dequantized(got, scales)
        moved = distance(got, scales if of_scales else steps)
        # Where a row beside the judged one has written, compilers may divide otherwise.
        near = SAME_INPUTS * scales if of_scales else np.full(steps.shape, INT8_SAME_STEPS)
        for row, position in enumerate(self.positions if self.own > 1 else ()):
            if position != IDLE and row != JUDGED:
                at = np.s_[:, row, :, position]
                moved[at] = np.where(moved[at] <= near[at], 0, moved[at])
        return distance(numbers, self._values(cache_of(role), written)), moved[..., None] if of_scales else moved

    def error_of(self, anchor: str, results: Sequence[np.ndarray]) -> float:
        """The largest error of what an anchor's subgraph gives: see `errors_by_result`."""
        return max(self.errors_by_result(anchor, results))

    def errors_by_result(self, anchor: str, results: Sequence[np.ndarray]) -> list[float]:
        """The largest error of each result of an anchor's subgraph: its value and, of a cache, the whole that it wrote to."""
        layer, _ = split(anchor)
        found = [float(np.max(self.errors(anchor, results[0])))]
        for role, whole in zip(self.written(anchor), results[1:], strict=False):
            assert layer is not None
            found.append(float(np.max(self.cache_errors(role, layer, whole))))
        return found

    def written(self, anchor: str) -> list[str]:
        """What a layer's subgraph of an anchor gives beside it: the cache that it wrote to and, in int8, the scales."""
        layer, part = split(anchor)
        if layer is None or part not in CACHES:
            return []
        return [self.role(part, layer), *([scale_of(part)] if self.kv == "int8" else [])]

    def worst(self, anchor: str, got: np.ndarray) -> Worst:
        """The element furthest from the truth, in floors."""
        off, floors = self._distance(anchor, got)
        ratio = off / floors.reshape(-1, *[1] * (off.ndim - 1))
        places, _ = self._counted(anchor)
        place = int(places.ravel()[int(np.argmax(ratio))])
        shape = self.shape(anchor)
        index = tuple(int(i) for i in np.unravel_index(place, shape))
        expected = self.anchor(anchor)
        return Worst(index, float(got.reshape(shape)[index]), float(expected[index]))

    def corrected(
        self, anchor: str, got: np.ndarray, padding: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:  # fmt: skip
        """What a graph should have computed: `got` with the rows that count put right; and how far off is still right.

        The figure is the largest limit of any row, or half of what is wrong, whichever tells right from wrong.

        Args:
          padding: what a right graph computes; from it come the rows that do not count, of which the truth is unknown.
        """
        right = self.anchor(anchor)
        if anchor == "token":
            return right, 0.0
        _, part = split(anchor)
        places, rows = self._counted(anchor)
        value = (got if padding is None else padding).ravel().copy()
        mine, wanted = got.ravel()[places], right.ravel()[places]
        if part == "self_attn.scores":  # a hidden one is right as it is, whatever number it is hidden behind
            limit = np.max(wanted, axis=-1, keepdims=True) - MASKED_BELOW
            wanted = np.where(np.isneginf(wanted) & (mine <= limit), mine, wanted)
        value[places] = wanted
        worst = self.worst(anchor, got)
        off = abs(worst.value - worst.expected)
        limit = ANCHOR_FLOORS * float(np.max(self.floors(anchor)[rows]))
        return value.reshape(got.shape), min(limit, off / 2) if np.isfinite(off) else limit

    def _counted(self, anchor: str) -> tuple[np.ndarray, list[int]]:
        """Where the rows that count lie in a graph's value, one after the other: indices of it raveled; and the tokens that they are of."""
        _, part = split(anchor)
        shape = self.shape(anchor)
        place = np.arange(math.prod(shape)).reshape(shape)
        if self.own > 1:
            place = place[JUDGED : JUDGED + 1]  # [1, ...]
        if part in CACHES and self.phase != "prefill":
            layer, _ = split(anchor)
            assert layer is not None
            of = self.key_positions(layer)
            counted = np.argsort(of)[np.count_nonzero(of < 0) :][: np.count_nonzero((of >= 0) & (of < self._filled[1]))]
            by_slot = place.reshape(place.shape[-3:])[:, counted]
            return by_slot.transpose(1, 0, 2), of[counted].tolist()  # [filled, K, D]
        if part in HEAD:
            return place.reshape(1, -1), self.rows[-1:]
        if part in BY_HEAD and self.own == 1:
            place = place.transpose(1, 0, 2, 3)  # [T, K, G, S]
        if part in CACHES:
            place = place.transpose(1, 0, 2)  # [T, K, D]
        return place[: len(self.rows)], self.rows

    def _distance(self, anchor: str, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances of the rows that count, row first, and the floor of each row."""
        places, rows = self._counted(anchor)
        expected, value = self.anchor(anchor).ravel()[places], got.ravel()[places]
        off = distance(value, expected)
        if split(anchor)[1] == "self_attn.scores":
            masked = np.isneginf(expected)
            limit = np.max(expected, axis=-1, keepdims=True) - MASKED_BELOW
            off = np.where(masked, np.where(value <= limit, 0.0, np.inf), off)
        return off, self.floors(anchor)[rows]

    def floors(self, anchor: str) -> np.ndarray:
        """The floor of each row [n]: see `row_floors`."""
        return row_floors(self.truth, anchor, self.config)


@dataclass(frozen=True)
class ReferenceRun:
    """A sequence of tokens with the reference's value at every anchor, as a session runs it.

    truth: the sequence and the values. weight: gives a weight of the model by its name.
    length: tokens of the prompt, with which the sequence begins; the others are decoded one by one.
    bucket: of the graph that the prompt goes through. batch: rows of the graphs. ring: whether their windowed layers are in rings.
    kv: what they keep keys and values in.
    """

    truth: AnchorTruth
    config: Config
    weight: Callable[[str], np.ndarray]
    length: int
    bucket: int
    batch: int = 1
    ring: bool = False
    kv: str = "compute"

    def of(self, abi: Abi) -> ReferenceRun:
        """The same sequence in graphs of as many rows as this one, with rings if it has them, and its caches in the same."""
        return replace(self, batch=abi.batch, ring=bool(abi.windowed), kv=abi.kv)

    def prompt(self, phase: str, capacity: int) -> Situation:
        """The prefill of the prompt, or the extend by the last part of it, in graphs with this many cache slots."""
        if phase == "prefill":
            return Situation(
                self.config,
                self.truth,
                phase,
                self.bucket,
                self.bucket,
                capacity,
                self.length,
                ring=self.ring,
                kv=self.kv,
            )
        first = self.begun
        sizes = (self.bucket, capacity, capacity, self.length - first, first)
        return Situation(self.config, self.truth, phase, *sizes, self.batch, self.ring, self.kv)

    @property
    def begun(self) -> int:
        """Tokens of the prompt that are there before it is extended."""
        return max(self.length // 2, self.length - self.bucket)

    def step(self, capacity: int, position: int) -> Situation:
        """The decode step at a position, in graphs with this many cache slots."""
        sizes = (self.batch, capacity, capacity, self.length, position)
        return Situation(self.config, self.truth, "decode", *sizes, self.batch, self.ring, self.kv)


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
    if truth.compute == "f32":
        return floors
    # In less than float32 as many floors as are allowed make the multiple of that type's noise that is: of the noise of any row,
    # since that of one row is of a few draws.
    less = np.maximum(np.max(truth.spreads(anchor)[1:, :, LARGEST]), one_rounding(truth, config, anchor) * scale)
    return np.asarray(np.maximum(floors, NARROW_LARGEST / ANCHOR_FLOORS * less))


def one_rounding(truth: AnchorTruth, config: Config, anchor: str) -> float:
    """Of what is computed in less than float32, what is no error at an anchor where Hugging Face happens to be exact; relative.

    Where keys and values alone are in int8, all other values are as exact as float32 has them.
    """
    if truth.compute != "int8":
        return NARROW_ROUNDING[truth.compute]
    if split(anchor)[1] in CACHES:
        return INT8_ROUNDING
    return ANCHOR_FLOORS / NARROW_MARGINS[0] * ROUNDING * math.sqrt(terms(config, anchor, len(truth.tokens)))


def spread_over(truth: AnchorTruth, config: Config, anchor: str, rows: Sequence[int], graph: np.ndarray) -> Spread:
    """The errors of a graph in these rows [rows, 4] together, beside those of Hugging Face in the same rows."""
    values, at = np.asarray(truth.values(anchor)), list(rows)
    rounding = one_rounding(truth, config, anchor)
    return spread_of(graph, truth.spreads(anchor)[:, at], values[at], counted(anchor, values)[at], rounding)


def spread_errors(truth: AnchorTruth, config: Config, anchor: str, rows: Sequence[int], off: np.ndarray) -> float:
    """How the errors [rows, ...] of an anchor are spread, in floors of which as many are allowed as of a row's largest one.

    0 in float32, and for so few rows that it says nothing.
    """
    if truth.compute == "f32" or len(rows) < NARROW_ROWS:
        return 0.0
    count = counted(anchor, truth.values(anchor))[list(rows)]
    return spread_over(truth, config, anchor, rows, row_spreads(off, count)).floors


def slot_errors(
    truth: AnchorTruth, config: Config, anchor: str, got: np.ndarray, which: np.ndarray | None = None
) -> np.ndarray:
    """Of one layer's cache, [K, filled, D], what each slot is off by, in floors: [filled]; or each of those that are named."""
    which = np.arange(got.shape[1]) if which is None else which
    expected = truth.values(anchor)[which].transpose(1, 0, 2)
    off = distance(got[:, which], expected)
    with np.errstate(over="ignore"):
        errors = np.max(off, axis=(0, 2)) / row_floors(truth, anchor, config)[which]
    excess = spread_errors(truth, config, anchor, which.tolist(), off.transpose(1, 0, 2))
    return np.asarray(np.maximum(errors, excess))


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


def distance(value: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Absolute differences; 0 where both are the same infinity, infinite where one is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.asarray(np.abs(value.astype(np.float64) - expected.astype(np.float64)))
    apart[value == expected] = 0.0
    apart[np.isnan(apart)] = np.inf
    return apart
