"""Finds the anchors among the values of a graph that names none, by number.

A value is an anchor's if its numbers are, in any order of axes: with heads apart or together, in one of several rows, in
the last of several tokens, or times a constant. Names and locations are not asked: where they lie, the numbers are right.

Legend: B rows, T tokens, S cache slots; the letters of shapes are those of `reference/model/parts.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hloracle.core.tolerances import ANCHOR_FLOORS, MASKED_BELOW
from hloracle.localize.situation import Situation
from hloracle.reference.model.anchors import BY_HEAD, CACHES, anchor_shape, split
from hloracle.reference.model.config import Config

# Numbers of fewer elements than these are found by chance, or are the same in several places.
FEW = 4
LARGEST_ORDERS = 720  # of axes that are tried
LAST = ("norm", "lm_head")  # of the last token alone
SCORES = "self_attn.scores"
MARKS = 10  # numbers of a value that are compared before all are


@dataclass(frozen=True)
class Pick:
    """One index of an axis of a value: of the judged row, or of the last token."""

    axis: int
    what: str  # `row` or `last`


@dataclass(frozen=True)
class Layout:
    """How an anchor lies in a value.

    picks: what is taken of the value first. atoms: the sizes of the anchor's axes, cut as fine as any layout needs.
    order: where the value has them, such as (1, 0). shape: of the value after the picks. factor: the value is the anchor times it.
    """

    picks: tuple[Pick, ...]
    atoms: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    factor: float = 1.0

    def taken(self, value: np.ndarray, row: int, last: int) -> np.ndarray:
        """The anchor's numbers in the anchor's order, flat."""
        for pick in sorted(self.picks, key=lambda p: -p.axis):
            value = np.take(value, row if pick.what == "row" else last, axis=pick.axis)
        sizes = [self.atoms[i] for i in self.order]
        back = np.argsort(self.order)
        return value.reshape(sizes).transpose(back).reshape(-1) / self.factor


@dataclass(frozen=True)
class Match:
    """An anchor, and the value that is it: an index among a graph's values. narrow: it is of fewer bits than float32."""

    anchor: str
    value: int
    layout: Layout
    narrow: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is the anchor itself, and not a multiple of it or a rounded one: another value may be that."""
        return self.layout.factor == 1 and not self.narrow


@dataclass(frozen=True)
class Scene:
    """What is known of the call whose values are looked at. rows: B; row: the judged one."""

    config: Config
    situation: Situation
    rows: int = 1
    row: int = 0

    @property
    def last(self) -> int:
        """Of the tokens of the call, the last that counts."""
        return self.situation.length - 1 if self.situation.phase == "prefill" else 0

    def expected(self, anchor: str) -> np.ndarray:
        """The reference at an anchor, in the shape that the contract gives it."""
        layer = layer_written(anchor)
        if layer is None:
            return self.situation.anchor(anchor)
        return self.situation.cache(split(anchor[:-1])[1], written=layer)

    def limit(self, anchor: str) -> float:
        """How far off the reference a value of an anchor may be at most."""
        return ANCHOR_FLOORS * float(np.max(self.situation.floors(anchor.removesuffix("+"))))

    def shape(self, anchor: str) -> tuple[int, ...]:
        """The shape of an anchor's value in a graph of the contract."""
        situation = self.situation
        return shape_of(self.config, anchor, situation.queries, situation.keys)

    def picks(self, anchor: str, shape: tuple[int, ...]) -> list[tuple[Pick, ...]]:
        """What may be taken of a value of this shape so that an anchor's numbers are left."""
        return [picks for picks, _ in self._picked(anchor, shape)]

    def layouts(self, anchor: str, shape: tuple[int, ...]) -> Iterator[Layout]:
        """The ways in which an anchor may lie in a value of this shape; the plainest first."""
        wanted = self.shape(anchor)
        seen: set[tuple[tuple[Pick, ...], tuple[int, ...], tuple[int, ...]]] = set()
        for picks, left in self._picked(anchor, shape):
            if math.prod(left) != math.prod(wanted):
                continue
            for atoms in cuts(self.config, anchor, wanted):
                for order in _orders(atoms, left):
                    if (key := (picks, atoms, order)) not in seen:
                        seen.add(key)
                        yield Layout(picks, atoms, order, left)

    def _picked(
        self, anchor: str, shape: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Pick, ...], tuple[int, ...]]]:  # fmt: skip
        """What may be taken of a value, and the shape of what is left."""
        options: list[list[Pick | None]] = []
        rows = [Pick(i, "row") for i, n in enumerate(shape) if n == self.rows > 1]
        if rows:
            options.append([None, *rows])
        if split(anchor)[1] in LAST:
            tokens = [Pick(i, "last") for i, n in enumerate(shape) if n == self.situation.queries > 1]
            options.append([None, *tokens])
        for some in itertools.product(*options):
            picks = tuple(p for p in some if p)
            axes = [p.axis for p in picks]
            left = tuple(n for i, n in enumerate(shape) if i not in axes)
            if len(set(axes)) == len(axes):
                yield picks, left

    def put(self, anchor: str, value: np.ndarray, layout: Layout) -> np.ndarray:
        """A value with the reference in the anchor's place; the other rows, and tokens of padding, stay as they are."""
        expected = self.expected(anchor)
        shape = self.shape(anchor)
        mine = layout.taken(value, self.row, self.last).reshape(shape)
        part = split(anchor)[1]
        if self.situation.phase == "prefill" and part not in LAST:
            axis = 1 if part in (*BY_HEAD, *CACHES) else 0
            rows = [slice(None)] * axis + [slice(0, len(self.situation.rows))]
            new = mine.copy()
            new[tuple(rows)] = expected[tuple(rows)]
        else:
            new = expected
        laid = new.reshape(layout.atoms).transpose(layout.order).reshape(layout.shape) * layout.factor
        found = np.array(value)
        index: list[int | slice] = [slice(None)] * value.ndim
        for pick in layout.picks:
            index[pick.axis] = self.row if pick.what == "row" else self.last
        found[tuple(index)] = laid
        return found

    def right(self, anchor: str, expected: np.ndarray) -> np.ndarray:
        """What counts of the reference: the rows of tokens that are no padding."""
        part = split(anchor)[1]
        if self.situation.phase != "prefill" or part in LAST:
            return expected
        return np.take(expected, self.situation.rows, axis=1 if part in (*BY_HEAD, *CACHES) else 0)

    def counted(self, anchor: str, value: np.ndarray) -> Iterator[np.ndarray]:
        """The same of a value, whichever of its axes is that of the tokens."""
        queries, rows = self.situation.queries, self.situation.rows
        if self.situation.phase != "prefill" or split(anchor)[1] in LAST or len(rows) == queries:
            yield value
            return
        for axis, n in enumerate(value.shape):
            if n == queries:
                yield np.take(value, rows, axis=axis)

    def fits(self, anchor: str, value: np.ndarray, layout: Layout) -> bool:
        """Whether a value is the anchor within its floors, laid out so."""
        shape = self.shape(anchor)
        taken = layout.taken(value, self.row, self.last).reshape(shape)
        if layer_written(anchor) is None:
            return bool(float(np.max(self.situation.errors(anchor, taken))) <= ANCHOR_FLOORS)
        part = split(anchor[:-1])[1]
        return bool(np.max(self.situation.cache_errors(part, layer_written(anchor) or 0, taken)) <= ANCHOR_FLOORS)


def layer_written(anchor: str) -> int | None:
    """Of `k_cache.3+`, the layer that wrote last; None of an anchor."""
    return split(anchor[:-1])[0] if anchor.endswith("+") else None


def shape_of(config: Config, anchor: str, queries: int, keys: int) -> tuple[int, ...]:
    """The shape of an anchor's value; of `k_cache.3+`, the whole cache once layer 3 has written to it, [L, K, S, D]."""
    if not anchor.endswith("+"):
        return anchor_shape(config, anchor, queries, keys)
    return config.cache_shapes(keys)[split(anchor[:-1])[1]]


def cuts(config: Config, anchor: str, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The sizes of an anchor's axes: as they are, with heads in groups, with heads apart from their width, in halves."""
    N, K = config.num_attention_heads, config.num_key_value_heads
    widths = {config.head_dim, *config.cache_widths, *([config.latent.v_head_dim] if config.latent else [])}

    def heads(n: int) -> list[int]:
        return [K, N // K] if n == N and 1 < K < N else [n]

    whole = tuple(shape)
    grouped = tuple(m for n in shape for m in heads(n))
    apart = tuple(
        m for n in shape for m in next(([*heads(n // w), w] for w in widths if w > 1 and n in (N * w, K * w) and n > w), heads(n))
    )  # fmt: skip
    halves = tuple(m for n in apart for m in ([2, n // 2] if n in widths and n % 2 == 0 else [n]))
    pairs = tuple(m for n in apart for m in ([n // 2, 2] if n in widths and n % 2 == 0 else [n]))
    for sizes in dict.fromkeys((whole, grouped, apart, halves, pairs)):
        yield tuple(n for n in sizes if n > 1) or (1,)


def _orders(atoms: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The orders of axes in which these make up a shape, the order that they have first."""
    wanted = _boundaries(n for n in shape if n > 1)
    tried = itertools.islice(itertools.permutations(range(len(atoms))), LARGEST_ORDERS)
    for order in tried:
        if wanted <= _boundaries(atoms[i] for i in order):
            yield order


def _boundaries(sizes: Iterator[int] | Sequence[int]) -> set[int]:
    """Where axes end, as products of their sizes."""
    return set(itertools.accumulate(sizes, lambda a, b: a * b))


def find(scene: Scene, values: Mapping[int, np.ndarray], wanted: Sequence[str]) -> list[Match]:
    """The first value that is each anchor, of those that are any's; in the order of the anchors.

    Args:
      values: index -> array, in the order in which the graph computes them.
    """
    pool = _Pool(scene, values)
    return [match for anchor in wanted if (match := _first(scene, anchor, pool)) is not None]


def _first(scene: Scene, anchor: str, pool: _Pool) -> Match | None:
    expected = scene.expected(anchor)
    if scene.right(anchor, expected).size < FEW or not np.any(np.where(np.isfinite(expected), expected, 0)):
        return None
    other: Match | None = None
    for i, picks, factor in pool.alike(anchor, scene.right(anchor, expected), scene.limit(anchor)):
        value = pool.values[i]
        for layout in scene.layouts(anchor, value.shape):
            if layout.picks != picks:
                continue
            tried = replace(layout, factor=factor)
            if scene.fits(anchor, value, tried):
                match = Match(anchor, i, tried, value.dtype.itemsize < 4)
                if match.plain:
                    return match
                other = other or match
                break
    return other


@dataclass
class _Table:
    """Signatures of one size. which: of which value, after which picks. marks: a few numbers of each, [n, MARKS]."""

    which: list[tuple[int, tuple[Pick, ...]]] = field(default_factory=list)
    signatures: list[np.ndarray] = field(default_factory=list)
    marks: list[np.ndarray] = field(default_factory=list)


class _Pool:
    """Values with what is compared of each, made once."""

    def __init__(self, scene: Scene, values: Mapping[int, np.ndarray]) -> None:
        self.values, self._scene = values, scene
        self._tables: dict[tuple[bool, bool], dict[int, _Table]] = {}

    def alike(
        self, anchor: str, expected: np.ndarray, limit: float
    ) -> Iterator[tuple[int, tuple[Pick, ...], float]]:  # fmt: skip
        """The values that have these numbers in some order: index, what is taken of it, and what they are multiplied with."""
        part = split(anchor)[1]
        table = self._of(anchor, part in LAST, part == SCORES).get(expected.size)
        if table is None:
            return
        mine = _signature(expected, part == SCORES)
        marks = _marks(mine)
        for place in np.flatnonzero(_near(np.stack(table.marks), marks, limit)):
            factor = _alike(table.signatures[place], mine, limit)
            if factor is not None:
                yield *table.which[place], factor

    def _of(self, anchor: str, last: bool, hidden: bool) -> dict[int, _Table]:
        if (last, hidden) not in self._tables:
            found = self._tables.setdefault((last, hidden), {})
            for i, value in self.values.items():
                for picks in self._scene.picks(anchor, value.shape):
                    for one in self._scene.counted(anchor, _picked(value, picks, self._scene)):
                        signature = _signature(one, hidden)
                        table = found.setdefault(signature.size, _Table())
                        table.which.append((i, picks))
                        table.signatures.append(signature)
                        table.marks.append(_marks(signature))
        return self._tables[last, hidden]


def _marks(signature: np.ndarray) -> np.ndarray:
    """A few of the numbers, from the smallest to the largest; of the negated numbers, these negated and turned round."""
    low = np.linspace(0, (len(signature) - 1) / 2, MARKS // 2).astype(int)
    return np.asarray(signature[[*low, *(len(signature) - 1 - low[::-1])]], np.float64)


def _near(marks: np.ndarray, mine: np.ndarray, limit: float) -> np.ndarray:
    """Of which rows the marks are these, or these times one number; what is infinite on both sides is alike."""
    finite = np.isfinite(mine)
    alike = np.all(np.isfinite(marks) == finite, axis=1)
    a, b = np.where(finite & np.isfinite(marks), marks, 0), np.where(finite, mine, 0)
    same = np.all(np.abs(a - b) <= limit, axis=1)
    for other in (b, b[::-1]):
        factor = a @ other / (other @ other or 1)
        same |= np.all(np.abs(a - factor[:, None] * other) <= limit * np.abs(factor)[:, None], axis=1)
    return np.asarray(alike & same)


def _picked(value: np.ndarray, picks: Sequence[Pick], scene: Scene) -> np.ndarray:
    for pick in sorted(picks, key=lambda p: -p.axis):
        value = np.take(value, scene.row if pick.what == "row" else scene.last, axis=pick.axis)
    return value


def _signature(value: np.ndarray, hidden: bool) -> np.ndarray:
    """The numbers in order of size, whatever the order of their axes; hidden: of scores, where what is hidden counts alike."""
    flat = np.asarray(value, np.float32).reshape(-1)
    if hidden:
        finite = flat[np.isfinite(flat)]
        top = float(np.max(finite, initial=0.0))
        flat = np.where(flat < top - 10 * MASKED_BELOW, -np.inf, flat)
    return np.sort(flat)


def _alike(got: np.ndarray, expected: np.ndarray, limit: float) -> float | None:
    """The factor between two signatures that are alike; None where they are not."""
    if got.shape != expected.shape or np.isnan(got).any():
        return None
    finite = np.isfinite(expected)
    if not np.array_equal(np.isfinite(got), finite):
        return None
    a, b = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    if np.max(np.abs(a - b), initial=0.0) <= limit:
        return 1.0
    scale = float(np.max(np.abs(b), initial=0.0))
    if not scale or not np.max(np.abs(a), initial=0.0):
        return None
    for other in (b, b[::-1]):  # times a positive number, and times a negative one
        factor = float(np.dot(a, other) / np.dot(b, b))
        if np.max(np.abs(a - factor * other), initial=0.0) <= limit * abs(factor):
            return factor
    return None
