"""Which indices along an axis are named, and which share a column."""

from __future__ import annotations

import itertools

COLUMNS = 96  # of a drawing: more positions or steps share columns, each of which shows its worst


def every(n: int, most: int) -> range:
    """At most `most` of `n` indices, at even distances."""
    return range(0, n, next(k for k in itertools.count(1) if str(k).rstrip("0") in ("1", "2", "5") and n <= k * most))


def bins_of(n: int, most: int = COLUMNS) -> list[range]:
    """Up to `most` runs of indices of almost equal length."""
    columns = min(n, most)
    return [range(i * n // columns, (i + 1) * n // columns) for i in range(columns)]
