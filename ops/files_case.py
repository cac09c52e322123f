"""A test of somebody else's: a case that says itself, with check operations, what its results have to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hloracle.ops.case import Case
from hloracle.ops.judge import Judged, is_float

Kind = Literal["eq", "almost_eq", "close"]
# Where a check does not say it: those of StableHLO's own check operations.
ALMOST, MOST_ULP = 1e-4, 3


@dataclass(frozen=True)
class Check:
    """Compares one result with what is expected, as StableHLO's check operations do.

    kind: `eq`: equal, so that a NaN is never right; `almost_eq`: no farther off than `tolerance`, with the same sign, or both NaN;
      `close`: `least` to `most` ULP off, or both NaN. got: which result. expected: its value, or which result has it.
    """

    kind: Kind
    got: int
    expected: np.ndarray | int
    tolerance: float = ALMOST
    least: int = 0
    most: int = MOST_ULP

    @property
    def _ulp(self) -> str:
        return f"{self.least} to {self.most}" if self.least else str(self.most)

    def __str__(self) -> str:
        bound = {"eq": "", "almost_eq": f" within {self.tolerance:g}", "close": f" within {self._ulp} ULP"}[self.kind]
        return f"expect_{self.kind}{bound}"


@dataclass(frozen=True)
class FileCase(Case):
    """A test of a file. refused: why it is not tried, such as that it checks nothing; empty for one that is."""

    checks: tuple[Check, ...] = field(default=(), repr=False)
    refused: str = ""


def checked(case: FileCase, results: Sequence[np.ndarray]) -> Judged:
    """What the checks of a test say of its results."""
    found = [_checked(check, results) for check in case.checks]
    worst = max(found, key=lambda one: ("exact", "within", "wrong").index(one.status))
    return Judged(worst.status, max(f.ulp for f in found), worst.detail, np.inf if worst.status == "wrong" else 0.0)


def _checked(check: Check, results: Sequence[np.ndarray]) -> Judged:
    got = results[check.got]
    expected = results[check.expected] if isinstance(check.expected, int) else check.expected
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        words = f"{check}: {got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
        return Judged("wrong", np.inf, words)
    off = _ulp(got, expected)
    if check.kind == "eq":
        wrong = got != expected
    elif check.kind == "almost_eq":
        wrong = ~_almost(got, expected, check.tolerance)
    else:
        wrong = (off > check.most) | (off < check.least)
    most = float(off.max(initial=0.0))
    if not wrong.any():
        return Judged("within" if most else "exact", most)
    at = np.unravel_index(int(np.argmax(np.where(wrong, off, -1.0))), wrong.shape)
    place = f"result {check.got}{[*map(int, at)] if at else ''}"
    beside = f", {off[at]:g} ULP off" if check.kind == "close" else ""
    words = f"{check}: {place} is {got[at]} instead of {expected[at]}{beside}; {wrong.sum()} of {wrong.size} elements are wrong"
    return Judged("wrong", most, words)


def _parts(array: np.ndarray) -> list[np.ndarray]:
    return [np.real(array), np.imag(array)] if array.dtype.kind == "c" else [array]


def _almost(got: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    right = np.ones(got.shape, bool)
    for a, b in zip(_parts(got), _parts(expected), strict=True):
        with np.errstate(invalid="ignore"):
            near = (np.signbit(a) == np.signbit(b)) & (np.abs(a.astype(np.float64) - b.astype(np.float64)) <= tolerance)
        right &= (a == b) | (np.isnan(a) & np.isnan(b)) | near
    return right


def _ulp(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How many numbers of the type lie between, of integers their difference; infinite beside what is no number."""
    off = np.zeros(got.shape)
    for a, b in zip(_parts(got), _parts(expected), strict=True):
        one = _between(a, b) if is_float(a.dtype) else np.abs(a.astype(np.float64) - b.astype(np.float64))
        off = np.maximum(off, one)
    return off


def _between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (first, negative), (second, other) = _magnitude(a), _magnitude(b)
    with np.errstate(over="ignore"):
        apart = np.where(first > second, first - second, second - first)  # in whole numbers, which are exact
    off = np.where(negative == other, apart.astype(np.float64), first.astype(np.float64) + second.astype(np.float64))
    x, y = a.astype(np.float64), b.astype(np.float64)
    off = np.where(np.isfinite(x) & np.isfinite(y), off, np.inf)
    return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, off)


def _magnitude(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bits without the sign as a whole number, and the sign."""
    size = array.dtype.itemsize
    bits: Any = np.array(array, order="C").view(f"u{size}")
    high = np.array(1 << (8 * size - 1), bits.dtype)
    return bits & ~high, (bits & high) != 0
