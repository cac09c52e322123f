"""Regular expressions for MLIR text, and look-ups in parsed modules. Imports no MLIR bindings."""

from __future__ import annotations

import functools
import re
from typing import Any

from hloracle.core.locations import name_of
from hloracle.reference.model.anchors import anchor_of

# What stands in parentheses, in which a string may hold any of them; locations are seldom more than four deep.
_FLAT = r"(?:[^()\"]|\"[^\"]*\")*"
_DEEP = functools.reduce(lambda inner, _: rf'(?:[^()"]|"[^"]*"|\({inner}\))*', range(4), _FLAT)
LOCATION = re.compile(rf"\s*\bloc\({_DEEP}\)")
_ALIAS = re.compile(r"#\w+ =")
TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")


_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')


def code_of(text: str) -> str:
    """A text of the same length, with spaces where it has strings and comments: every place is where it was."""
    return _STRING_OR_COMMENT.sub(lambda found: " " * len(found[0]), text)


def without_locations(text: str) -> str:
    """A module's text without locations, line by line: an operation that has none gets the line that it is parsed from."""
    bare = [LOCATION.sub("", line) if "loc(" in line else line for line in text.splitlines()]
    return "\n".join("" if _ALIAS.fullmatch(line.strip()) else line for line in bare)


def function_named(module: Any, name: str) -> Any:
    """A function of a parsed module."""
    functions = (op for op in module.body.operations if op.operation.name == "func.func")
    return next(f for f in functions if f.attributes["sym_name"].value == name)


def anchor_at(operation: Any) -> str:
    """The anchor of the scope that an operation stands in; empty where its location is none."""
    return anchor_of(name_of(operation.location))
