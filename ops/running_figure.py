"""How accurate results are, for a plot: among numbers of which the specification promises something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloracle.ops.case import Case, Expected
from hloracle.ops.judge import distance, is_float, limits


def accuracy(case: Case, results: Sequence[np.ndarray]) -> float | None:
    """How far the farthest element is off, in ULP; None where no result has floats.

    Elements that the specification leaves open are passed over, and so are subnormal numbers: where they are taken for zeros, they
    are any number of ULP off.
    """
    found = [
        _of(e, np.asarray(r)) for e, r in zip(case.expected, results, strict=False) if _has_floats(e, np.asarray(r))
    ]
    return max((one for one in found if one is not None), default=None)


def _has_floats(expected: Expected, result: np.ndarray) -> bool:
    return expected.ulp is not None and is_float(result.dtype) and result.shape == expected.value.shape


def _of(expected: Expected, result: np.ndarray) -> float | None:
    least = 2 * float(limits(result.dtype).smallest_normal)
    counts = ~np.isfinite(expected.value) | (np.abs(expected.value) >= least) | (expected.value == 0)
    if expected.open is not None:
        counts &= ~expected.open
    if not counts.any():
        return None
    if np.any(zero := counts & (expected.value == 0)):
        # What is beside zero is off by no number that means anything, where subnormal numbers are zeros.
        counts &= ~(zero & (np.abs(result.astype(np.float64)) < least))
    return float(np.max(distance(expected.value, result), where=counts, initial=0.0))
