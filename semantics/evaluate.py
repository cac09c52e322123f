"""Evaluates operations one after another: see `operations/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hloracle.semantics.numbers import Unsupported, held
from hloracle.semantics.operations import OPERATIONS
from hloracle.semantics.program import Block, Operation, Program

MOST_TURNS = 100_000


class Evaluator:
    """Evaluates operations of one program. What it does not know raises Unsupported.

    most_turns: of a loop; one that takes more raises Unsupported. turns: of the longest one so far.
    """

    def __init__(self, program: Program | None = None) -> None:
        self.program, self.most_turns, self.turns = program, MOST_TURNS, 0

    def call(self, name: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of a function."""
        if self.program is None or name not in self.program.functions:
            raise Unsupported(f"a call of {name}")
        return self.block(self.program.functions[name], arguments)

    def block(
        self, block: Block, arguments: Sequence[np.ndarray], around: Mapping[int, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """What a block returns; around: the values that its operations may take from outside of it."""
        values = dict(around or {})
        for number, type, array in zip(block.arguments, block.types, arguments, strict=True):
            values[number] = array if type.other else held(np.asarray(array), type.dtype)
        for operation in block.operations:
            results = self.operation(operation, [values[o] for o in operation.operands], values)
            values.update(zip(operation.results, results, strict=True))
        return [values[v] for v in block.returned]

    def operation(
        self, operation: Operation, operands: Sequence[np.ndarray], around: Mapping[int, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """The results of one operation; around: the values that its regions may take from outside."""
        known = OPERATIONS.get(operation.name)
        if known is None:
            raise Unsupported(operation.name)
        with np.errstate(all="ignore"):
            return known(operation, list(operands), Surroundings(self, around or {}))


class Surroundings:
    """What an operation with regions, or one that calls a function, evaluates them in."""

    def __init__(self, evaluator: Evaluator, values: Mapping[int, np.ndarray]) -> None:
        self._evaluator, self._values = evaluator, values

    def region(self, block: Block, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What a region returns. Its arguments may have more axes than their types have: all is elementwise then."""
        return self._evaluator.block(block, arguments, self._values)

    def turn(self, count: int) -> None:
        """A loop has taken so many turns. Raises Unsupported where that is too many."""
        if count > self._evaluator.most_turns:
            raise Unsupported(f"a loop of more than {self._evaluator.most_turns} turns")
        self._evaluator.turns = max(self._evaluator.turns, count)

    def call(self, name: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What a function returns."""
        return self._evaluator.call(name, arguments)


def evaluated(program: Program, arguments: Sequence[np.ndarray], function: str = "main") -> list[np.ndarray]:
    """What a function of a program returns: floats in float64. Raises Unsupported."""
    return Evaluator(program).call(function, arguments)
