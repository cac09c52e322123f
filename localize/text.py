"""Regular expressions for MLIR text, and look-ups in parsed modules. Imports no MLIR bindings."""

from __future__ import annotations

import re
from typing import Any

from hloracle.core.locations import name_of
from hloracle.reference.model.anchors import anchor_of

_LOCATION = re.compile(r"\bloc(?=\()")
_PARENTHESIS = re.compile(r"[()]")
_ALIAS = re.compile(r"#\w+ =")
TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")


_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')


def code_of(text: str) -> str:
    """A text of the same length, with spaces where it has strings and comments: every place is where it was."""
    return _STRING_OR_COMMENT.sub(lambda found: " " * len(found[0]), text)


def without_locations(text: str, filled: str = "") -> str:
    """A module's text without locations, line by line: an operation that has none gets the line that it is parsed from.

    Args:
      filled: a character that stands in their place, so that columns stay, too.
    """
    bare = [_bare(line, filled) if "loc(" in line else line for line in text.splitlines()]
    return "\n".join("" if _ALIAS.fullmatch(line.strip()) else line for line in bare)


def _bare(line: str, filled: str) -> str:
    """A line without its locations, however deep they are nested: those that JAX exports are call stacks."""
    code, kept, at = code_of(line), [], 0
    while found := _LOCATION.search(code, at):
        depth = 0
        for one in _PARENTHESIS.finditer(code, found.end()):
            depth += 1 if one[0] == "(" else -1
            if depth == 0:
                break
        else:
            break  # it is never closed
        before = line[at : found.start()].rstrip()
        kept += [before, filled * (one.end() - at - len(before))]
        at = one.end()
    return "".join([*kept, line[at:]])


def function_named(module: Any, name: str) -> Any:
    """A function of a parsed module."""
    functions = (op for op in module.body.operations if op.operation.name == "func.func")
    return next(f for f in functions if f.attributes["sym_name"].value == name)


def anchor_at(operation: Any) -> str:
    """The anchor of the scope that an operation stands in; empty where its location is none."""
    return anchor_of(name_of(operation.location))
