"""How errors are spread: four figures of each row of values, which add up over rows.

A graph that computes in bf16 or f16 is not right or wrong by its largest error alone: that of one value in thousands says
little. So the errors of a value are described by how large they usually are, how large the larger ones are, and the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hloracle.core.tolerances import ANCHOR_FLOORS, NARROW_MARGINS

SHARE = 0.01  # of a row's values that are larger than the 99th percentile


class Figures(NamedTuple):
    """Of absolute errors: the root of their mean square, the median, the 99th percentile, the largest."""

    rms: float
    median: float
    p99: float
    largest: float


RMS, MEDIAN, P99, LARGEST = range(4)  # of the last axis of an array of Figures
NAMES = ("root mean square", "median", "99th percentile", "largest")


@dataclass(frozen=True)
class Spread:
    """How the errors of some rows are spread, in a graph and in Hugging Face.

    rows: how many. scale: the root mean square of the right values. single, narrow: of Hugging Face in float32, and in what the
    model is computed in: of its passes the worst, by each figure. graph: of the graph.
    """

    rows: int
    scale: float
    single: Figures
    narrow: Figures
    graph: Figures

    @property
    def limits(self) -> Figures:
        """What is accepted of the graph."""
        return Figures._make(n * margin for n, margin in zip(self.narrow, NARROW_MARGINS, strict=True))

    @property
    def ratios(self) -> Figures:
        """The graph's figures as multiples of Hugging Face's in the same type."""
        both = zip(self.graph, self.narrow, strict=True)
        return Figures._make(g / n if n else (math.inf if g else 0.0) for g, n in both)

    @property
    def share(self) -> float:
        """Of what is allowed, the most that any figure takes: the graph is within its margins up to 1."""
        found = [ratio / margin for ratio, margin in zip(self.ratios, NARROW_MARGINS, strict=True)]
        return math.inf if any(map(math.isnan, found)) else max(found)

    @property
    def floors(self) -> float:
        """The same in floors, of which as many are allowed as of any row at an anchor."""
        return ANCHOR_FLOORS * self.share


def row_spreads(off: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Absolute errors [n, ...] -> the Figures of each row, float64 [n, 4].

    Only `count` values of a row [n] count; the others are 0. The 99th percentile of a row of less than 200 values is the largest.
    """
    off = np.asarray(off, np.float64).reshape(len(off), -1)
    found = np.zeros((len(off), 4))
    if not off.size:
        return found
    count = np.maximum(count, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        found[:, RMS] = np.sqrt(np.sum(off * off, axis=1) / count)
    for row, (values, n) in enumerate(zip(np.sort(off, axis=1), count.tolist(), strict=True)):
        found[row, MEDIAN] = values[-((n + 1) // 2)]
        found[row, P99] = values[-max(1, round(SHARE * n))]
    found[:, LARGEST] = np.max(off, axis=1)  # NaN where one is
    return found


def over_rows(spreads: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Rows [..., n, 4] together [..., 4]: the root of the mean square, weighted by their values; and the largest of them.

    Of the 99th percentiles the root of the mean square, too, and of the medians the mean: what is usual, which one row does not make. That
    was chosen after looking: the root of their mean square alarmed on two right models of 199 random ones in bf16. Their softmax is all
    but 0 and 1, and half of the values of one row were off. In one of them the root mean square of all errors was a 46th of Hugging Face's.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        weights = count / max(float(np.sum(count)), 1.0)
        wide = spreads[..., :LARGEST].astype(np.float64)
        mean = np.sqrt(np.einsum("...ni,n->...i", np.square(wide), weights))
        mean[..., MEDIAN] = np.einsum("...n,n->...", wide[..., MEDIAN], weights)
    return np.concatenate([mean, np.max(spreads[..., LARGEST:], axis=-2)], axis=-1)


def spread_of(
    graph: np.ndarray, passes: np.ndarray, values: np.ndarray, count: np.ndarray, rounding: float
) -> Spread:  # fmt: skip
    """The errors of a graph in some rows together, beside those of Hugging Face in the same rows.

    Args:
      graph: the Figures of each row [n, 4]. passes: of a pass in float32, and of several in less [1 + passes, n, 4].
      values: the right ones [n, ...], of which `count` [n] of each row count. rounding: the most that one of them may be off by for being
      rounded once, relative to the largest.

    Of Hugging Face no less than one rounding of the values: where it happens to be exact, a graph need not be. Nor less than what makes
    of its float32 as many floors as are allowed: where nothing is rounded to less, that is what counts.
    """
    scale = over_rows(row_spreads(np.abs(np.where(np.isfinite(values), values, 0)), count), count)
    # Evenly spread up to the most: of that the root mean square is one over the root of three, and the median a half.
    evenly = np.array([scale[RMS] / math.sqrt(3), scale[RMS] / 2, scale[LARGEST], scale[LARGEST]])
    found = over_rows(passes, count)
    least = np.maximum(rounding * evenly, ANCHOR_FLOORS / np.array(NARROW_MARGINS) * found[0])
    figures = (found[0], np.maximum(np.max(found[1:], axis=0), least), over_rows(graph, count))
    single, narrow, own = (Figures._make(float(f"{x:.4g}") for x in some) for some in figures)
    return Spread(len(graph), float(f"{scale[RMS]:.4g}"), single, narrow, own)


def in_words(ratios: Sequence[float], where: Sequence[str] = ("",) * len(NAMES)) -> str:
    """Multiples of Hugging Face's errors, and at what."""
    told = (f"{name} {ratio:.2f}{at}" for name, ratio, at in zip(NAMES, ratios, where, strict=True))
    return f"{', '.join(told)} times Hugging Face's in the same type"


def allowed() -> str:
    """The margins in words."""
    return f"{', '.join(f'{margin:g}' for margin in NARROW_MARGINS)} times"
