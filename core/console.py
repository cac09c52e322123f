"""Where a command prints for a person: nothing that somebody else wrote is carried out by the terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.segment import Segment

from hloracle.core.shown import printable

# Of a stream that cannot be written, of which an error names no file.
STREAM_ERRORS = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE)


class Shown(Console):
    """Prints text with an escape for each character that cannot be printed; colours and the like are rich's own."""

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """The segments of what is printed, each of which is text or a control code."""
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=_lines(segment.text))


class Output(Shown):
    """Leaves it to the command line to answer a reader who has gone away."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: rich would end the process with status 1, which says that a model does not conform."""
        raise BrokenPipeError


class Terminal(Shown):
    """Tells on stderr how far the work is, if anybody can read it."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does; what can be written nowhere is left out."""
        try:
            super().print(*objects, **options)
        except OSError:
            _give_up("stderr")


terminal = Terminal(stderr=True, highlight=False)


def _lines(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def say(line: str) -> None:
    """A line on stderr, if anybody can read it: the exit status does not depend on that."""
    try:
        if sys.stderr is not None:
            print(f"hloracle: {printable(line)}", file=sys.stderr, flush=True)
    except OSError:
        _give_up("stderr")


def harmless(text: str) -> str:
    """Text for stdout: as it is for a file or a pipe, and with escapes for its control characters on a terminal."""
    if text.isprintable() or sys.stdout is None or not sys.stdout.isatty():
        return text
    return "".join(printable(c) if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)


def unwritten(error: OSError | None = None) -> str:
    """Why stdout does not take what is printed, or empty where it does. Nothing more is written to it then.

    error: what has been raised; that of another file tells nothing of stdout.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as now:
        error = now
    if error is None or error.filename is not None or error.errno not in STREAM_ERRORS:
        return ""
    _give_up("stdout")
    return "" if error.errno == errno.EPIPE else os.strerror(error.errno).lower()  # a reader who has seen enough


@contextlib.contextmanager
def verdict_stands() -> Iterator[None]:
    """For the output of a command whose exit status is a verdict: it stands, also where nobody can read all of it."""
    error = None
    try:
        yield
    except OSError as found:
        error = found
    why = unwritten(error)
    if why:
        say(f"stdout: cannot be written ({why}); the exit status says all the same what the verdict is")
    elif error and sys.stdout is not None:
        raise error


def _give_up(stream: str) -> None:
    """Write nothing more to a stream, and forget what it holds: Python would try again at the end, and end with 120."""
    setattr(sys, stream, None)
