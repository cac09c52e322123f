"""How far from the reference somebody else's graph is, with what it was given for a try."""

from __future__ import annotations

import math
from dataclasses import dataclass

# An error relative to the largest value: below CLOSE something is what it should be, up to the roundings of bfloat16;
# below RIGHT up to those of float32, and then there is nothing to look for any more.
CLOSE, RIGHT = 0.05, 1e-4


@dataclass(frozen=True)
class Error:
    """How far from the reference what a graph returns is.

    relative: of each cache of each layer and of the logits, in the order of computation, the largest error as a share of
      the largest value. floors: of the logits, and of the caches, in floors of their rows. why: it could not be run.
    """

    relative: tuple[float, ...] = ()
    logits: float = math.inf
    caches: float = 0.0
    why: str = ""

    @property
    def score(self) -> tuple[float, float]:
        """Less is better: what is not close, then how far all is off."""
        if not self.relative:
            return (math.inf, math.inf)
        far = sum(not e < CLOSE for e in self.relative)
        return (far, sum(math.log10(min(max(e, 1e-7), 10.0)) for e in self.relative))

    @property
    def close(self) -> bool:
        """Whether all is what it should be, up to roundings."""
        return bool(self.relative) and all(e < CLOSE for e in self.relative)

    @property
    def right(self) -> bool:
        """The same up to roundings of float32."""
        return bool(self.relative) and all(e < RIGHT for e in self.relative)
