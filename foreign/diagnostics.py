"""What MLIR's parser and its verifiers say of a text, at its line and column. Needs an MLIR context."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hloracle.core.bindings import names_read
from hloracle.core.errors import InputError
from hloracle.core.shown import shown
from hloracle.localize.text import without_locations

# Where the parser says that something stands in the text it was given, and not in a file that a location names.
_IN_TEXT = re.compile(r'loc\("-":(\d+):(\d+)')


def invalid(text: str, error: Exception, path: Path | str) -> InputError:
    """What the parser or a verifier says of a text, at its line and column. Needs a context."""
    message, location = _first_of(error)
    place = _IN_TEXT.match(location)
    if not place:
        # An operation that fails verification is said to be where its location says: without one, it is where it is.
        place = _place_without_locations(text, message)
    where = f"{path}:{place[1]}:{place[2]}" if place else path
    at = "" if place or not location else f", at {shown(location, 80)}"
    from jaxlib.version import __version__ as jaxlib

    return InputError(
        f"is not valid: {shown(message)}{at}", where, f"mend it, or write StableHLO as of jaxlib {jaxlib}"
    )


def functions_of(module: Any, path: Path | str) -> dict[str, Any]:
    """The functions of a parsed module by their names. Raises InputError for a name that is no UTF-8."""
    functions = (op for op in module.body.operations if op.operation.name == "func.func")
    with names_read(path):
        return {str(op.attributes["sym_name"].value): op for op in functions}


def _first_of(error: Exception) -> tuple[str, str]:
    """The first message of MLIR's, and its location."""
    for diagnostic in getattr(error, "error_diagnostics", ()):
        return diagnostic.message, str(diagnostic.location)
    return str(error), ""


def _place_without_locations(text: str, message: str) -> re.Match[str] | None:
    from jaxlib.mlir import ir

    try:
        ir.Module.parse(without_locations(text, filled=" "))
    except (ir.MLIRError, ValueError) as error:
        again, location = _first_of(error)
        return _IN_TEXT.match(location) if again == message else None
    return None
