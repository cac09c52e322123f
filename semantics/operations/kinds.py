"""What a function that knows an operation looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hloracle.semantics.program import Block, Operation


class Around(Protocol):
    """See `evaluate.Surroundings`."""

    def region(self, block: Block, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What a region returns."""
        ...

    def turn(self, count: int) -> None:
        """A loop has taken so many turns."""
        ...

    def call(self, name: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What a function returns."""
        ...


Known = Callable[[Operation, list[np.ndarray], Around], list[np.ndarray]]


def one(compute: Callable[..., Any]) -> Known:
    """Of a function of the operands alone."""
    return lambda operation, operands, around: [np.asarray(compute(*operands))]


def with_attributes(compute: Callable[..., Any]) -> Known:
    """Of a function of the operation and its operands."""
    return lambda operation, operands, around: [np.asarray(compute(operation, *operands))]
