"""Where an MLIR operation says that it comes from."""

from __future__ import annotations

from typing import Any


def name_of(location: Any) -> str:
    """The name that a location is, such as `layers.0.mlp`; empty where it is none."""
    return str(location.name_str) if _is(location, "name", "name_str") else ""


def line_of(location: Any) -> int | None:
    """The line of the parsed text that a location is, counted from 1; None where it is none."""
    return int(location.start_line) if _is(location, "file", "start_line") else None


def place_of(location: Any) -> int | None:
    """The line of a location, or of the one that a name has in it; None where there is none."""
    return line_of(location.child_loc) if _is(location, "name", "name_str") else line_of(location)


def _is(location: Any, kind: str, field: str) -> bool:
    """jaxlib before 0.10.1 has one class for locations of all kinds, which has to be asked before a field is read."""
    asked = getattr(location, f"is_a_{kind}", None)
    return bool(asked()) if asked else hasattr(location, field)
