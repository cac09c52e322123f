"""Two sequences side by side: of operations, what is alike, has another form, or is only in one; of names, one order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hloracle.core.record import ListedOp

# What a pair is worth: one that is alike more than two that are only of a kind, and less than three.
ALIKE, SAME_KIND = 5, 2


@dataclass(frozen=True)
class Pair:
    """`state` is `same` (kind and type), `changed` (kind alone), `left` or `right` (only there). Indices, or None."""

    state: str
    left: int | None
    right: int | None


def align(left: Sequence[ListedOp], right: Sequence[ListedOp]) -> list[Pair]:
    """The alignment of two lists of a listing's `ops` whose pairs are worth most; the order within each is kept."""
    gain = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            worth = _worth(left[i], right[j])
            paired = worth + gain[i + 1][j + 1] if worth else -1
            gain[i][j] = max(paired, gain[i + 1][j], gain[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < len(left) or j < len(right):
        if i < len(left) and j < len(right):
            worth = _worth(left[i], right[j])
            if worth and gain[i][j] == worth + gain[i + 1][j + 1]:
                pairs.append(Pair("same" if worth == ALIKE else "changed", i, j))
                i, j = i + 1, j + 1
                continue
        if j == len(right) or (i < len(left) and gain[i][j] == gain[i + 1][j]):
            pairs.append(Pair("left", i, None))
            i += 1
        else:
            pairs.append(Pair("right", None, j))
            j += 1
    return pairs


def _worth(a: ListedOp, b: ListedOp) -> int:
    if a["op"] != b["op"]:
        return 0
    return ALIKE if a["type"] == b["type"] else SAME_KIND


def merged(first: Sequence[str], second: Iterable[str]) -> list[str]:
    """Two orders of names as one: the first, and what only the second has behind the name that it follows there."""
    known = set(first)
    behind: dict[str | None, list[str]] = {}
    last = None
    for name in second:
        if name in known:
            last = name
        else:
            behind.setdefault(last, []).append(name)
    return [*behind.get(None, []), *(n for name in first for n in (name, *behind.get(name, [])))]
