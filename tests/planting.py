"""A deliberate fault in force, by its id."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from hloracle.mutants import named


def planted(id: str) -> AbstractContextManager[None]:
    """The mutant of this id in force; `""` plants nothing. Raises InputError for an id that does not exist."""
    return named(id).installed() if id else nullcontext()
