"""Arithmetic that stands in a file: numbers and names, + - * / // %, parentheses and sqrt. Nothing else is evaluated."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from hloracle.core.given import quoted

LONGEST = 500  # characters
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def names_in(formula: str) -> set[str]:
    """The names that a formula uses. Raises ValueError where it is none."""
    return {n.id for n in ast.walk(_parsed(formula)) if isinstance(n, ast.Name) and n.id != "sqrt"}


def evaluate(formula: str, names: Mapping[str, Any]) -> Any:
    """What a formula gives, in terms of what the names stand for: Python's numbers, or arrays.

    Raises ValueError that names what is wrong: what is no arithmetic, an unknown name, a division by zero.
    """
    try:
        return _value(_parsed(formula), names, formula)
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{quoted(formula)} cannot be computed ({error})") from None


def whole(formula: str, names: Mapping[str, Any]) -> int:
    """What a formula of whole numbers gives. Raises ValueError where that is none."""
    found = evaluate(formula, names)
    if isinstance(found, bool) or found != int(found):
        raise ValueError(f"{quoted(formula)} is {found}, no whole number")
    return int(found)


def _parsed(formula: str) -> ast.expr:
    if len(formula) > LONGEST:
        raise ValueError(f"{quoted(formula)} has more than {LONGEST} characters")
    try:
        return ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{quoted(formula)} is no arithmetic") from None


def _value(node: ast.expr, names: Mapping[str, Any], formula: str) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            if name in names:
                return names[name]
            raise ValueError(f"{quoted(name)} is not known here; there are {', '.join(sorted(names))}")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names, formula), _value(right, names, formula))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names, formula)
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument], keywords=[]):
            return math.sqrt(_value(argument, names, formula))
    raise ValueError(f"{quoted(formula)} is no arithmetic of numbers, names, + - * / // %, parentheses and sqrt")
