"""A graph in which nothing is fused: every value stands behind a barrier."""

from __future__ import annotations

import itertools
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.localize.draft import CONSTANT, Case, edited, shape_of


def with_barriers(case: Case) -> Case:
    """The case with an `optimization_barrier` after each operation but the last. Raises ir.MLIRError where MLIR refuses that."""
    with edited(case) as draft:
        operations = draft.operations
        for operation, after in itertools.pairwise(operations):
            if operation.operation.name == CONSTANT or not all(_is_tensor(r) for r in operation.results):
                continue
            values: list[Any] = list(operation.results)
            with ir.InsertionPoint(after):
                barrier = stablehlo.OptimizationBarrierOp(values)
            for value, behind in zip(values, barrier.results, strict=True):
                value.replace_all_uses_except(behind, barrier.operation)
        return draft.finished()


def _is_tensor(value: Any) -> bool:
    return bool(shape_of(value)) or str(value.type).startswith("tensor<")
