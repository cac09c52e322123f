"""Arithmetic that stands in a file: numbers and names, + - * / // %, parentheses and sqrt. Nothing else is evaluated."""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from hloracle.core.shown import quoted

LONGEST = 500  # characters
LARGEST = 10**18  # of a whole number
GRAMMAR = "arithmetic of numbers, names, + - * / // %, parentheses and sqrt"
# Python's parser is asked nothing else: it warns of some of what it takes.
_CHARACTERS = re.compile(r"[\w\s.+\-*/%()]*")
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def names_in(formula: str) -> set[str]:
    """The names that a formula uses. Raises ValueError where it is none."""
    return {n.id for n in ast.walk(_parsed(formula)) if isinstance(n, ast.Name)} - {"sqrt"}


def evaluate(formula: str, names: Mapping[str, Any]) -> Any:
    """What a formula gives, in terms of what the names stand for: Python's numbers, or arrays.

    Raises ValueError that names what is wrong: what is no arithmetic, an unknown name, a division by zero.
    """
    try:
        return _value(_parsed(formula), names)
    except (ZeroDivisionError, OverflowError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{quoted(formula)} cannot be computed ({why})") from None


def number(formula: str, names: Mapping[str, Any]) -> float:
    """What a formula of numbers gives. Raises ValueError where no float64 is that, as an infinite one."""
    found = evaluate(formula, names)
    try:
        if math.isfinite(as_float := float(found)):
            return as_float
    except OverflowError:
        pass
    raise ValueError(f"{quoted(formula)} is too large, or no number")


def whole(formula: str, names: Mapping[str, Any]) -> int:
    """What a formula of whole numbers gives. Raises ValueError where that is none, or beyond any size."""
    found = evaluate(formula, names)
    if isinstance(found, float) and not found.is_integer():
        raise ValueError(f"{quoted(formula)} is {found}, no whole number")
    if abs(found) > LARGEST:
        raise ValueError(f"{quoted(formula)} is larger than any size")
    return int(found)


def _parsed(formula: str) -> ast.expr:
    if len(formula) > LONGEST:
        raise ValueError(f"{quoted(formula)} has more than {LONGEST} characters")
    try:
        if not _CHARACTERS.fullmatch(formula):
            raise SyntaxError
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{quoted(formula)} is no arithmetic") from None
    todo = [tree]
    while todo:
        todo += _parts(todo.pop(), formula)
    return tree


def _parts(node: ast.expr, formula: str) -> list[ast.expr]:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return []
        case ast.Name():
            return []
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return [operand]
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument], keywords=[]):
            return [argument]
    raise ValueError(f"{quoted(formula)} is no {GRAMMAR}")


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=number):
            return number
        case ast.Name(id=name):
            if name in names:
                return names[name]
            there = f"there are {', '.join(sorted(names))}" if names else "write a number"
            raise ValueError(f"{quoted(name)} is not known here; {there}")
        case ast.BinOp(left=left, op=op, right=right):
            by = _value(right, names)
            if isinstance(by, int | float) and by == 0 and not isinstance(op, ast.Add | ast.Sub | ast.Mult):
                raise ZeroDivisionError("division by zero")  # of arrays nobody else says so
            return _OPERATORS[type(op)](_value(left, names), by)
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, names)
            return -value if isinstance(op, ast.USub) else value
        case ast.Call(args=[argument]):
            return _root(_value(argument, names))
    raise AssertionError(node)


def _root(value: Any) -> float:
    if not isinstance(value, int | float):
        raise ValueError("sqrt is of a number alone, not of what differs from token to token")
    if value < 0:
        raise ValueError(f"sqrt of {value}, which is negative")
    return math.sqrt(value)
