"""How errors are spread: three figures of each row of values, which add up over rows.

A graph that computes in bf16 or f16 is not right or wrong by its largest error alone: that of one value in thousands says
little. So the errors of a value are described by how large they usually are, how large the larger ones are, and the largest.
"""

from __future__ import annotations

import numpy as np

RMS, LARGER, LARGEST = range(3)  # of the last axis: the root of the mean square, the 99th percentile, the largest
NAMES = ("root mean square", "99th percentile", "largest")
SHARE = 0.01  # of a row's values that are larger than the 99th percentile


def row_spreads(off: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Absolute errors [n, ...] -> float64 [n, 3], of `count` values in each row [n]; those that do not count are 0.

    The 99th percentile of a row of less than 200 values is the largest of them.
    """
    off = np.asarray(off, np.float64).reshape(len(off), -1)
    found = np.zeros((len(off), 3))
    if not off.size:
        return found
    count = np.maximum(count, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        found[:, RMS] = np.sqrt(np.sum(off * off, axis=1) / count)
    found[:, LARGEST] = np.max(off, axis=1)
    for row, (values, n) in enumerate(zip(off, count, strict=True)):
        place = max(1, round(SHARE * float(n)))  # from the largest
        found[row, LARGER] = np.partition(values, -place)[-place]
    return found


def over_rows(spreads: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Rows [..., n, 3] together [..., 3]: the root of the mean square, weighted by their values; and the largest of them.

    Of the 99th percentiles the root mean square, too: what is usual of a row.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        weights = count / max(float(np.sum(count)), 1.0)
        mean = np.sqrt(np.einsum("...ni,n->...i", spreads[..., :LARGEST] ** 2, weights))
    return np.concatenate([mean, np.max(spreads[..., LARGEST:], axis=-2)], axis=-1)
