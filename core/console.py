"""Where a command prints for a person."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console

terminal = Console(stderr=True, highlight=False)


class Output(Console):
    """Leaves it to the command line to answer a reader who has gone away."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: rich would end the process with status 1, which says that a model does not conform."""
        raise BrokenPipeError


@contextlib.contextmanager
def verdict_stands() -> Iterator[None]:
    """For the output of a command whose exit status is a verdict: it stands, also when nobody reads to the end."""
    try:
        yield
    except BrokenPipeError:
        sys.stdout = None
