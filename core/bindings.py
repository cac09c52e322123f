"""What MLIR's Python bindings, as jaxlib has them, give no object for: see docs/toolchain-notes.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hloracle.core.errors import InputError


def attribute_of(attributes: Any, name: str) -> Any:
    """An attribute by its name; None where there is none, and for one that is a location, of which jaxlib 0.10.2 makes no object."""
    try:
        return attributes[name] if name in attributes else None  # noqa: SIM401  (has no get)
    except TypeError:
        return None


@contextmanager
def names_read(where: Path | str) -> Iterator[None]:
    """Around what reads the names of a module. Raises InputError for one that is no UTF-8, of which the bindings make no string."""
    no_text = InputError("has a name that is no UTF-8", where, "write names in UTF-8")
    try:
        yield
    except UnicodeDecodeError:  # for an operation's
        raise no_text from None
    except RuntimeError as error:  # for a function's or an attribute's
        if "conversion error" in str(error):
            raise no_text from None
        raise
