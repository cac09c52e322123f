"""Operations that evaluate regions or functions, and those that mean nothing but to compilers."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloracle.semantics.operations.kinds import Around, Known
from hloracle.semantics.program import Operation


def _while(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    condition, body = operation.regions
    values, count = operands, 0
    while around.region(condition, values)[0]:
        count += 1
        around.turn(count)
        values = around.region(body, values)
    return values


def _case(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    which = int(operands[0])
    inside = 0 <= which < len(operation.regions)
    return around.region(operation.regions[which if inside else -1], [])


def _if(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    return around.region(operation.regions[0 if operands[0] else 1], [])


def _call(attribute: str) -> Known:
    return lambda operation, operands, around: around.call(operation.attributes[attribute], operands)


def _tuple(operation: Operation, operands: list[Any], around: Around) -> list[Any]:
    return [tuple(operands)]


def _element(operation: Operation, operands: list[Any], around: Around) -> list[Any]:
    return [operands[0][operation.attributes["index"]]]


KNOWN: dict[str, Known] = {
    "stablehlo.while": _while,
    "stablehlo.case": _case,
    "stablehlo.if": _if,
    "stablehlo.optimization_barrier": lambda operation, operands, around: operands,
    "stablehlo.tuple": _tuple,
    "stablehlo.get_tuple_element": _element,
    "func.call": _call("callee"),
    "stablehlo.composite": _call("decomposition"),
}
