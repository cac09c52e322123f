"""What the third witness says of one value."""

from __future__ import annotations

from dataclasses import dataclass

from hloracle.core.tolerances import ANCHOR_FLOORS


@dataclass(frozen=True)
class Word:
    """What the interpreter computes of a graph's subgraph at an anchor, from right inputs.

    off: how far that is from the reference, in noise floors; None where it gave no answer, and then `why_not` says why.
    """

    phase: str
    anchor: str
    off: float | None
    why_not: str = ""

    @property
    def right(self) -> bool:
        """Whether it computes what the reference has there; False where it has no word."""
        return self.off is not None and self.off <= ANCHOR_FLOORS

    @property
    def wrong(self) -> bool:
        """Whether it computes something else; False where it has no word."""
        return self.off is not None and not self.right
