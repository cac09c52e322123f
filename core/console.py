"""Where a command prints for a person."""

from __future__ import annotations

from rich.console import Console


class Output(Console):
    """Leaves it to the command line to answer a reader who has gone away."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
