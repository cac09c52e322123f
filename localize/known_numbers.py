"""Numbers that a right graph computes, in which those of another graph are looked up whatever order they have there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

# Of a value's elements, the share that the right graph has to have too: a few may fall between two roundings.
SHARE = 0.98
# Fewer elements than these may be found by chance among the other graph's many.
FEW = 16


class KnownNumbers:
    """Absolute values, to be looked up by nearness. constants: what a whole value may be, too."""

    def __init__(self, arrays: Sequence[np.ndarray], constants: Sequence[np.ndarray]) -> None:
        self._by_size: dict[int, list[np.ndarray]] = {}
        self._by_shape: dict[tuple[object, ...], list[np.ndarray]] = {}
        for array in arrays:
            found = _magnitudes(array)
            self._by_size.setdefault(len(found), []).append(found)
            self._by_shape.setdefault(_kind(array), []).append(array)
        for array in constants:
            self._by_shape.setdefault(_kind(array), []).append(array)
        self._all = np.unique(np.concatenate([m for found in self._by_size.values() for m in found]))

    def have(self, array: np.ndarray, whole: bool = False) -> bool:
        """Whether the numbers are known: as those of a whole value, or else as some of all values."""
        mine = _magnitudes(array)
        if not len(mine):
            return True
        near = 2.0**-18 * max(float(mine[-1]), 1e-30)
        if any(np.all(np.abs(mine - other) <= near) for other in self._by_size.get(len(mine), [])):
            return True
        distinct = np.unique(mine)
        if len(distinct) < FEW:
            # Few numbers are known if they are all there and exact, as those of a table or a broadcast are.
            return bool(np.all(np.isin(distinct, self._all)))
        return self.have_together(array) if whole else self.share(array) >= SHARE

    def have_together(self, array: np.ndarray) -> bool:
        """Whether the distinct numbers are those of one value, however often it has each."""
        distinct = np.unique(_magnitudes(array))
        near = 2.0**-18 * max(float(np.max(distinct, initial=0.0)), 1e-30)
        return any(_equal(distinct, np.unique(other), near) for other in self._values())

    def have_of_several(self, array: np.ndarray) -> bool:
        """Whether the numbers are known, and no value has all of them: as where two tables stand side by side."""
        distinct = np.unique(_magnitudes(array))
        values = map(np.unique, self._values())
        return self.share(array) >= SHARE and not any(_share(distinct, value) >= SHARE for value in values)

    def share(self, array: np.ndarray) -> float:
        """The share of the distinct numbers that are known, of whatever values they are."""
        return _share(np.unique(_magnitudes(array)), self._all)

    def placed(self, array: np.ndarray) -> bool | None:
        """Whether an array of this shape, but for axes of one element, has its values in their places; None where there is none of it."""
        mine = np.abs(np.squeeze(array).astype(np.float64))
        near = 2.0**-18 * np.max(mine, where=np.isfinite(mine), initial=1e-30)
        alike = self._by_shape.get(_kind(array), [])
        if not alike:
            return None
        return any(
            np.allclose(mine, np.abs(np.squeeze(other).astype(np.float64)), rtol=0, atol=near, equal_nan=True)
            for other in alike
        )

    def _values(self) -> Iterator[np.ndarray]:
        return (one for found in self._by_size.values() for one in found)


def is_uniform(array: np.ndarray) -> bool:
    """Whether all elements are one number."""
    return array.size > 0 and bool(np.all(array == array.flat[0]))


def _share(distinct: np.ndarray, known: np.ndarray) -> float:
    """The share of the numbers that are near known ones; both sorted."""
    if not len(distinct) or not len(known):
        return float(not len(distinct))
    place = np.searchsorted(known, distinct)
    below = known[np.maximum(place - 1, 0)]
    above = known[np.minimum(place, len(known) - 1)]
    distance = np.minimum(np.abs(distinct - below), np.abs(distinct - above))
    return float(np.mean(distance <= 2.0**-20 * np.maximum(distinct, 2.0**-10 * distinct[-1])))


def _equal(one: np.ndarray, other: np.ndarray, near: float) -> bool:
    return one.shape == other.shape and bool(np.all(np.abs(one - other) <= near))


def _kind(array: np.ndarray) -> tuple[object, ...]:
    """Shape but for axes of one element, and whether it holds floats, integers or booleans."""
    return (*np.squeeze(array).shape, array.dtype.kind)


def _magnitudes(array: np.ndarray) -> np.ndarray:
    """Finite absolute values, sorted."""
    flat = np.abs(array.astype(np.float64).ravel())
    return np.sort(flat[np.isfinite(flat)])
