"""Gives one input to the command line, in this process, and says what came of it."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

from fuzz.case import Case

Command = Callable[[list[str]], int]
MOST_TOLD = 100_000  # characters of what a command prints


class Reached(BaseException):
    """The command has read all that it was given, and would go on to work that takes long."""


@dataclass(frozen=True)
class Observation:
    """What came of an input.

    status: of the command line; None where it raised, see `raised`. Reached counts as 0. left: what it has left or changed in
    the working directory, `work/…`, or among temporary files, `tmp/…`. processes: that it has started and not ended.
    grown: bytes by which the most resident memory of this process grew.
    """

    status: int | None
    out: str = ""
    err: str = ""
    raised: str = ""
    left: tuple[str, ...] = ()
    processes: int = 0
    seconds: float = 0.0
    grown: int = 0


class Stage:
    """A folder with a working directory, a cache and a place for temporary files, made anew for each input."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work, self.tmp, self.cache = root / "work", root / "tmp", root / "cache"
        self._environment = dict(os.environ)
        self._filters = warnings.filters[:]
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def attempt(self, case: Case, command: Command) -> Observation:
        """Run the command on a case. Files that the case does not have are listed, whatever the status is."""
        self._begin(case)
        before = self._state()
        grown = _most_resident()
        started = time.perf_counter()
        raised, status = "", None
        with _captured(self.root) as said:
            try:
                status = command(list(case.arguments))
            except Reached:
                status = 0
            except BaseException:
                raised = traceback.format_exc(limit=-12)
        seconds = time.perf_counter() - started
        processes = _still_running()
        left = tuple(sorted(name for name, state in self._state().items() if before.get(name) != state))
        gone = tuple(sorted(f"{name} (gone)" for name in before.keys() - self._state().keys()))
        self._end()
        out, err = said
        return Observation(status, out, err, raised, left + gone, processes, seconds, _most_resident() - grown)

    def _begin(self, case: Case) -> None:
        os.environ.clear()
        own = {"HLORACLE_CACHE": str(self.cache), "TMPDIR": str(self.tmp), "TOKENIZERS_PARALLELISM": "false"}
        for folder in (self.work, self.tmp, self.cache):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        os.environ.update({**self._environment, **own, **case.environment})
        tempfile.tempdir = str(self.tmp)
        os.chdir(self.work)
        case.write(self.work)

    def _end(self) -> None:
        os.chdir("/")
        os.environ.clear()
        os.environ.update(self._environment)
        warnings.filters[:] = self._filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]  # which tells the registries of modules
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _state(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file and link."""
        found = {}
        for folder in (self.work, self.tmp):
            for at, _, names in os.walk(folder):
                for name in names:
                    path = os.path.join(at, name)
                    stat = os.lstat(path)
                    found[os.path.relpath(path, self.root)] = (stat.st_size, stat.st_mtime_ns)
        return found


@contextlib.contextmanager
def _captured(folder: Path) -> Iterator[list[str]]:
    """What is written to stdout and stderr, by Python or by a library; it is in the list once this has ended."""
    said: list[str] = []
    paths, kept, streams = (folder / "stdout", folder / "stderr"), (os.dup(1), os.dup(2)), (sys.stdout, sys.stderr)
    try:
        for number, path in enumerate(paths, start=1):
            file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_APPEND, 0o600)
            os.dup2(file, number)
            os.close(file)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "strict")
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
        yield said
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        sys.stdout, sys.stderr = streams
        for number, old in enumerate(kept, start=1):
            os.dup2(old, number)
            os.close(old)
        said += [path.read_bytes()[:MOST_TOLD].decode("utf-8", "replace") for path in paths]


def _still_running() -> int:
    """Processes that were started and have not ended; they are ended here."""
    from hloracle.core.child import kill_descendants

    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    children = [c for c in psutil.Process().children() if c.pid != tracker and c.status() != psutil.STATUS_ZOMBIE]
    if children:
        kill_descendants()
    return len(children)


def _most_resident() -> int:
    from hloracle.core.child import peak_bytes

    return peak_bytes()
