"""A number that a value should be multiplied by, or that should be added to it. Which one is solved for: see `solve.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hloracle.repair.changes.constants import CONSTANT
from hloracle.repair.subject import Edit, Plain
from hloracle.semantics.numbers import FLOATS, held_as
from hloracle.semantics.program import Operation

NEUTRAL = {"multiply": 1.0, "add": 0.0}
COST = 7


@dataclass(frozen=True)
class Insertion:
    """A place for a number. with_number: the change that puts one there; neutral: the one that changes nothing."""

    with_number: Callable[[float], Edit]
    neutral: float


def insertions(plain: Plain, place: int) -> Iterator[Insertion]:
    """After an operation, and before each operand that no operation of the graph makes, such as a weight."""
    old = plain.block.operations[place]
    if old.name == CONSTANT:
        return
    fresh = plain.fresh
    for kind, neutral in NEUTRAL.items():
        if len(old.results) == 1 and old.type.dtype in FLOATS:
            yield Insertion(_after(place, old, kind, fresh), neutral)
        for i, operand in enumerate(old.operands):
            if operand in plain.stops and plain.types[operand].dtype in FLOATS:
                yield Insertion(_before(plain, place, i, kind, fresh), neutral)


def _after(place: int, old: Operation, kind: str, fresh: int) -> Callable[[float], Edit]:
    def with_number(number: float) -> Edit:
        value = np.broadcast_to(np.array(number).astype(held_as(old.type.dtype)), old.type.shape)
        constant = Operation(CONSTANT, (), (fresh + 1,), old.types, {"value": value})
        new = Operation(f"stablehlo.{kind}", (fresh, fresh + 1), old.results, old.types)
        instead = (replace(old, results=(fresh,)), constant, new)
        return Edit(place, instead, "number", f"`{kind}` with {number:.9g} is missing after it", COST)

    return with_number


def _before(plain: Plain, place: int, index: int, kind: str, fresh: int) -> Callable[[float], Edit]:
    old = plain.block.operations[place]
    operand = old.operands[index]
    type = plain.types[operand]

    def with_number(number: float) -> Edit:
        value = np.broadcast_to(np.array(number).astype(held_as(type.dtype)), type.shape)
        constant = Operation(CONSTANT, (), (fresh,), (type,), {"value": value})
        new = Operation(f"stablehlo.{kind}", (operand, fresh), (fresh + 1,), (type,))
        taking = replace(old, operands=(*old.operands[:index], fresh + 1, *old.operands[index + 1 :]))
        words = f"`{kind}` with {number:.9g} is missing before its operand {index}"
        return Edit(place, (constant, new, taking), "number", words, COST)

    return with_number


def number_of(edit: Edit) -> float:
    """The number that a change of this kind puts in."""
    (constant,) = (operation for operation in edit.instead if operation.name == CONSTANT)
    return float(constant.attributes["value"].flat[0])
