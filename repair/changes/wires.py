"""Operands that are others, or that change places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hloracle.repair.subject import Edit, Plain
from hloracle.semantics.program import Operation

MOST = 160  # values of a type that are tried in an operand's place, the nearest


def exchanged(plain: Plain, place: int) -> Iterator[Edit]:
    """Two operands of one type in each other's place."""
    old = plain.block.operations[place]
    for i, one in enumerate(old.operands):
        for j, other in enumerate(old.operands[i + 1 :], i + 1):
            if one != other and plain.types[one] == plain.types[other]:
                operands = list(old.operands)
                operands[i], operands[j] = other, one
                yield Edit(
                    place, (replace(old, operands=tuple(operands)),), "exchanged", "its operands are exchanged", 1
                )


def other_operand(plain: Plain, place: int) -> Iterator[Edit]:
    """Each operand another value of its type."""
    old = plain.block.operations[place]
    for i, operand in enumerate(old.operands):
        for value in in_scope(plain, place, operand):
            yield with_operand(old, place, i, value)


def with_operand(old: Operation, place: int, index: int, value: int) -> Edit:
    """An operation that takes another value."""
    operands = (*old.operands[:index], value, *old.operands[index + 1 :])
    return Edit(place, (replace(old, operands=operands),), "operand", f"operand {index} should be another value", 2)


def in_scope(plain: Plain, place: int, like: int) -> list[int]:
    """Other values of the type of one that an operation may take, the nearest first."""
    found = [v for v in plain.by_type.get(plain.types[like], ()) if v != like and plain.makers.get(v, -1) < place]
    # A weight, which is an argument, is as near as what takes it.
    found.sort(key=lambda v: abs(place - (plain.makers[v] if v in plain.makers else plain.users.get(v, [0])[0])))
    return found[:MOST]
