"""Another operation of the same operands and the same type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hloracle.repair.subject import Edit, Plain
from hloracle.semantics.numbers import FLOATS, held_as, own_type
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
                words = f"the reduction by `{inner.kind}` should be one by `{kind}`"
                yield Edit(place, (new,), "operation", words, 1)
                if old.type.dtype in FLOATS or own_type(old.type.dtype).kind in "iu":
                    yield _begun_anew(plain, place, new, kind, words)


def _begun_anew(plain: Plain, place: int, new: Operation, kind: str, words: str) -> Edit:
    """A reduction that also begins with another number: the one that changes nothing in it."""
    type, number = plain.types[new.operands[1]], _neutral(kind, new.type.dtype)
    value = np.asarray(number).astype(held_as(type.dtype))
    constant = Operation("stablehlo.constant", (), (plain.fresh,), (type,), {"value": value})
    begun = replace(new, operands=(new.operands[0], plain.fresh))
    return Edit(place, (constant, begun), "operation", f"{words}, which begins with {number:g}", 2)


def _neutral(kind: str, dtype: str) -> float | int:
    if kind in ("add", "multiply"):
        return 0.0 if kind == "add" else 1.0
    if dtype in FLOATS:
        return -np.inf if kind == "maximum" else np.inf
    info = np.iinfo(own_type(dtype))
    return int(info.min if kind == "maximum" else info.max)


def _reducing(region: Block, kind: str) -> Block:
    return replace(region, operations=(replace(region.operations[0], name=f"stablehlo.{kind}"),))
