"""Another operation of the same operands and the same type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hloracle.repair.subject import Edit, Plain
from hloracle.semantics.numbers import FLOATS
from hloracle.semantics.program import Block, Operation

UNARY = (
    "negate", "abs", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "tanh", "sqrt", "rsqrt", "cbrt",
    "cosine", "sine", "floor", "ceil", "round_nearest_even", "sign",
)  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "atan2")
BINARY_OF_INTEGERS = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "and", "or", "xor")
BINARY_OF_BOOLEANS = ("and", "or", "xor")
DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
REDUCERS = ("add", "maximum", "minimum", "multiply")


def alike(kind: str, dtype: str) -> tuple[str, ...]:
    """The operations, itself included, that take what this one takes and give what it gives."""
    if dtype in FLOATS:
        return next((names for names in (UNARY, BINARY) if kind in names), ())
    names = BINARY_OF_BOOLEANS if dtype == "i1" else BINARY_OF_INTEGERS
    return names if kind in names else ()


def other_operation(plain: Plain, place: int) -> Iterator[Edit]:
    """Of one or two operands; the direction of a comparison; what a reduction does."""
    old = plain.block.operations[place]
    for kind in alike(old.kind, old.type.dtype):
        if kind != old.kind:
            new = Operation(f"stablehlo.{kind}", old.operands, old.results, old.types)
            yield Edit(place, (new,), "operation", f"`{old.kind}` should be `{kind}`", 1)
    if old.name == "stablehlo.compare":
        now = old.attributes["comparison_direction"]
        for direction in DIRECTIONS:
            if direction != now:
                new = replace(old, attributes={**old.attributes, "comparison_direction": direction})
                yield Edit(place, (new,), "operation", f"`{now}` should be `{direction}`", 1)
    if old.name == "stablehlo.reduce" and len(old.operands) == 2 and len(old.regions[0].operations) == 1:
        inner = old.regions[0].operations[0]
        for kind in REDUCERS:
            if inner.kind in REDUCERS and kind != inner.kind:
                new = replace(old, regions=(_reducing(old.regions[0], kind),))
                yield Edit(place, (new,), "operation", f"the reduction by `{inner.kind}` should be one by `{kind}`", 1)


def _reducing(region: Block, kind: str) -> Block:
    return replace(region, operations=(replace(region.operations[0], name=f"stablehlo.{kind}"),))
