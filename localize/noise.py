"""A graph whose every value is a little off, so that running it shows how much of a difference rounding can explain."""

from __future__ import annotations

import math
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.core.abi import Graph
from hloracle.localize.draft import CONSTANT, Case, Draft, dtype_in, edited, shape_of

# Each element is off by up to this share, by 64 roundings of float32: a sum's terms in another order are never so far off.
SHARE = 2.0**-18
# What hands values on as they are; a constant is what it is.
MOVES = frozenset(
    f"stablehlo.{name}" for name in (
        "reshape", "transpose", "broadcast_in_dim", "slice", "dynamic_slice", "dynamic_update_slice", "concatenate",
        "gather", "pad", "reverse", "iota", "select", "optimization_barrier", "constant",
    )
)  # fmt: skip


def noisy(case: Case) -> Graph:
    """The graph of a case with each element of its float32 and float64 arguments and results of arithmetic a little off."""
    with edited(case) as draft:
        operations, first = draft.operations, next(iter(draft.block.operations))
        for i, argument in enumerate(draft.block.arguments):
            _shake(argument, first, i)
        for i, operation in enumerate(operations):
            if operation.operation.name not in MOVES and operation.operation.name != CONSTANT:
                for result in operation.results:
                    _shake(result, _after(draft, operation), i + len(draft.names))
        return draft.finished().graph


def _after(draft: Draft, operation: Any) -> Any:
    operations = list(draft.block.operations)
    return operations[operations.index(operation) + 1]


def _shake(value: Any, before: Any, seed: int) -> None:
    """Let all users of a value take one of which each element is off by another share of it."""
    if dtype_in(value) not in ("f32", "f64") or 0 in shape_of(value):
        return
    uses = [(use.owner, use.operand_number) for use in value.uses]
    shape, element = shape_of(value), ir.RankedTensorType(value.type).element_type

    def filled(number: float, type: Any) -> Any:
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(type, ir.FloatAttr.get(element, number)))

    with ir.InsertionPoint(before):
        flat = ir.RankedTensorType.get([math.prod(shape)], element)
        places = stablehlo.iota(flat, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0))
        # As good as random: a sine of steps that are no part of its period.
        steps = stablehlo.multiply(places, filled(1.7 + seed % 7 / 3, flat))
        waves = stablehlo.sine(stablehlo.add(steps, filled(seed, flat)))
        shares = stablehlo.multiply(waves, filled(SHARE, flat))
        factors = stablehlo.reshape(value.type, stablehlo.add(shares, filled(1.0, flat)))
        shaken = stablehlo.multiply(value, factors)
    for owner, number in uses:
        owner.operands[number] = shaken
