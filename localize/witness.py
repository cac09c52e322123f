"""The third witness: StableHLO's reference interpreter, which evaluates a graph as its specification says it.

Two compilers may agree and be wrong together. The interpreter is no compiler, and shares no code with either; it is slow, and
ends its process at an operation that it lacks. So it is asked of subgraphs, each on right inputs, and may have no word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from hloracle.core.errors import ToolchainError
from hloracle.localize.anatomy import Subgraph
from hloracle.localize.inline import nested
from hloracle.localize.situation import Situation
from hloracle.localize.word import Word
from hloracle.localize.workbench import Workbench

# What it evaluates in a quarter of a minute on one core (jaxlib 0.10.2, an Intel Xeon: 1.6 million products a second), and in half
# of one on a slower AMD EPYC. A head of more is left to the evaluator in NumPy, which tries what would put it right.
MOST = 25_000_000
GO_THROUGH = ("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.sort")  # their operands, once


def word_of(subgraph: Subgraph, situation: Situation, value: Callable[[str], np.ndarray], bench: Workbench) -> Word:
    """Ask the interpreter, which `bench` runs graphs on, of one subgraph."""
    phase, anchor = situation.phase, subgraph.anchor
    if (cost := evaluations(subgraph)) > MOST:
        return Word(phase, anchor, None, f"it would have to evaluate {cost:,} elements one by one")
    try:
        return Word(phase, anchor, situation.error_of(anchor, bench.run(subgraph.graph, value)))
    except ToolchainError as error:
        return Word(phase, anchor, None, error.message)


def evaluations(subgraph: Subgraph) -> int:
    """About how many elements are computed one by one: those of each result, and of a product as often as it is summed."""
    return sum(map(_of_operation, _all(subgraph.parts)))


def _all(operations: tuple[Any, ...]) -> Iterator[Any]:
    for operation in operations:
        yield operation.operation
        yield from (inner.operation for inner in nested(operation))


def _of_operation(operation: Any) -> int:
    results, operands = (sum(map(_size, values)) for values in (operation.results, operation.operands))
    if operation.name == "stablehlo.dot_general":
        left, right = map(_size, operation.operands)
        # |left| |right| = |result| |summed|^2 |batch|: no less than what is summed for each element.
        return results * math.isqrt(left * right // max(1, results))
    return max(results, operands) if operation.name in GO_THROUGH else results


def _size(value: Any) -> int:
    return math.prod(ir.RankedTensorType(value.type).shape) if isinstance(value.type, ir.RankedTensorType) else 1
