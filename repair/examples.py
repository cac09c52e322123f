"""The calls of a graph that a repair is tried on, and what is right in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Called:
    """A call whose right values are known.

    given: what an argument or an anchor is. off: how far results are off, in units of what a repair may be.
    """

    given: Callable[[str], np.ndarray]
    off: Callable[[Sequence[np.ndarray]], float]

    def value(self, name: str) -> np.ndarray:
        """What an argument is, or the right value of an anchor or a cache."""
        return self.given(name)

    def error(self, results: Sequence[np.ndarray]) -> float:
        """How far off results are; at most 1 where they are right."""
        return self.off(results)
