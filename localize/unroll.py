"""Writes loops out: a `while` of which it is known how often it turns, such as the one that `lax.scan` lowers to.

What decides is arithmetic of scalar integers that begin as constants. Other loops stay as they are. To be called within an
MLIR context.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from hloracle.localize.inline import copied, inline_calls
from hloracle.localize.text import function_named

MOST_TURNS = 1_000
MOST_OPERATIONS = 500_000
WHILE = "stablehlo.while"
_SCALAR = re.compile(r"tensor<(u?)i(\d+)>")
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "stablehlo.add": operator.add, "stablehlo.subtract": operator.sub, "stablehlo.multiply": operator.mul,
    "stablehlo.minimum": min, "stablehlo.maximum": max, "stablehlo.and": operator.and_, "stablehlo.or": operator.or_,
}  # fmt: skip
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip


def flatten(module: Any, function: str) -> None:
    """Put the bodies of calls and of loops in their place in a function, until none is left that can be."""
    changed = True
    while changed:
        inlined = inline_calls(module, function)
        changed = _unroll(module, function) or inlined


def _unroll(module: Any, function: str) -> bool:
    block = function_named(module, function).regions[0].blocks[0]
    loops = [op for op in block.operations if op.operation.name == WHILE]
    return sum(_unrolled(loop) for loop in loops) > 0


def _unrolled(loop: Any) -> bool:
    """Write one loop out in front of itself; False where it is not known how often it turns."""
    try:
        turns = _turns(loop)
    except RecursionError:  # a number that takes very many operations
        turns = None
    if turns is None:
        return False
    body = loop.regions[1].blocks[0]
    *operations, end = body.operations
    if turns * len(operations) > MOST_OPERATIONS:
        return False
    values = list(loop.operands)
    with ir.InsertionPoint(loop), ir.Location.unknown():
        for _ in range(turns):
            new = dict(zip(body.arguments, values, strict=True))
            for operation in operations:
                copied(operation, new)
            values = [new.get(v, v) for v in end.operands]
    for old, value in zip(loop.results, values, strict=True):
        old.replace_all_uses_with(value)
    loop.operation.erase()
    return True


def _turns(loop: Any) -> int | None:
    """How often a loop turns; None where that is not known, or too often."""
    condition, body = (region.blocks[0] for region in loop.regions)
    state: dict[int, Any] = {}
    outside: dict[Any, Any] = {}
    for i, value in enumerate(loop.operands):
        if (number := _number(value, outside)) is not None:
            state[i] = number
    for turn in range(MOST_TURNS + 1):
        known = {condition.arguments[i]: n for i, n in state.items()}
        goes_on = _number(list(condition.operations)[-1].operands[0], known)
        if goes_on is None:
            return None
        if not goes_on:
            return turn
        known = {body.arguments[i]: n for i, n in state.items()}
        returned = enumerate(list(body.operations)[-1].operands)
        state = {i: n for i, value in returned if (n := _number(value, known)) is not None}
    return None


def _number(value: Any, known: dict[Any, Any]) -> Any:
    """What a scalar of integers or booleans is, in terms of those that are known; None where that does not follow.

    What was found is known afterwards.
    """
    if value not in known:
        known[value] = _computed(value, known)
    return known[value]


def _computed(value: Any, known: dict[Any, Any]) -> Any:
    scalar = _SCALAR.fullmatch(str(value.type))
    if not scalar or not isinstance(value, ir.OpResult):
        return None
    operation = value.owner
    if operation.name == "stablehlo.constant":
        return int(np.array(ir.DenseElementsAttr(operation.attributes["value"])).item())
    operands = [_number(o, known) for o in operation.operands] if len(operation.operands) <= 2 else [None]
    if None in operands:
        return None
    if operation.name in _ARITHMETIC:
        return _wrapped(_ARITHMETIC[operation.name](*operands), scalar)
    if operation.name == "stablehlo.compare":
        direction = str(operation.attributes["comparison_direction"]).split()[-1].strip(">")
        return _COMPARED[direction](*operands)
    if operation.name in ("stablehlo.convert", "stablehlo.reshape"):
        return _wrapped(operands[0], scalar)
    return None


def _wrapped(number: Any, scalar: re.Match[str]) -> int:
    """A number as a type holds it: beyond its largest one it begins anew."""
    unsigned, bits = bool(scalar[1]), int(scalar[2])
    if bits == 1:
        return int(number != 0)
    low = 0 if unsigned else -(1 << (bits - 1))
    return (int(number) - low) % (1 << bits) + low
