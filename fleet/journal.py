"""What is done of a fleet, one line of JSON a job, so that a driver that died is taken up again where it was."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hloracle.core.errors import InputError
from hloracle.core.files import write_file, writing
from hloracle.fleet.matrix import Matrix
from hloracle.fleet.outcome import Attempt, Outcome

NAME = "fleet.jsonl"
SCHEMA = "hloracle-fleet-journal/1"


class Journal:
    """The file in a fleet's folder.

    done: the keys of the jobs that are done. resumed: how often a driver went on with it. seconds: that the drivers before took.
    """

    def __init__(self, out: Path, matrix: Matrix, resume: bool) -> None:
        """Begin one, or go on with the one that is there. Raises InputError where that is of another matrix."""
        self.path, self.done = out / NAME, set[str]()
        self.resumed, self.seconds, self._began = 0, 0.0, time.monotonic()
        head = {"schema": SCHEMA, "matrix": matrix.digest}
        if resume:
            self._read(head, matrix)
        else:
            write_file(self.path, json.dumps(head) + "\n")
        with writing(self.path):
            self._file: IO[bytes] = self.path.open("r+b")
            self._file.seek(self._whole())
            self._file.truncate()  # half a line, of a driver that died while it wrote
        if resume:
            self._write({"resumed": self.resumed})

    def add(self, outcome: Outcome) -> None:
        """Write down a job that is done."""
        self._write({**_fields(outcome), "at": self.now()})
        self.done.add(outcome.key)

    def now(self) -> float:
        """Seconds since this driver began."""
        return round(time.monotonic() - self._began, 3)

    def close(self) -> None:
        """Have the disk hold all of it."""
        with writing(self.path):
            os.fsync(self._file.fileno())
            self._file.close()

    def outcomes(self) -> Iterator[Outcome]:
        """Of all jobs that are done, in the order in which they ended."""
        for line in self._lines():
            if "key" in line:
                with self._of_form():
                    attempts = tuple(Attempt(**attempt) for attempt in line["attempts"])
                    found = Outcome(line["key"], line["id"], line["command"], line["values"], attempts, line["lost"])
                yield found

    def _read(self, head: dict[str, str], matrix: Matrix) -> None:
        if not self.path.is_file():
            raise InputError(
                "no fleet was begun there", self.path.parent, "leave --resume out, or name the folder with --out"
            )
        lines, at = self._lines(), 0.0
        if next(lines, None) != head:
            fix = "put the matrix back as it was, or leave --resume out"
            raise InputError(f"is not of {matrix.path} as it is now", self.path, fix)
        lost: set[str] = set()
        for line in lines:
            with self._of_form():
                if "key" in line:
                    (lost if line["attempts"][-1]["status"] == "lost" else self.done).add(line["key"])
                    at = 0.0 + line["at"]
                else:
                    self.seconds, at = self.seconds + at, 0.0
                    self.resumed = 0 + line["resumed"]
        self.seconds += at
        self.resumed += 1
        if lost:  # for want of a machine: they run again
            kept = (line for line in self._lines() if line.get("key") not in lost)
            write_file(self.path, "".join(f"{json.dumps(line)}\n" for line in kept))

    def _write(self, line: dict[str, Any]) -> None:
        with writing(self.path):
            self._file.write(json.dumps(line, default=_fields).encode() + b"\n")
            self._file.flush()

    def _whole(self) -> int:
        """The bytes up to the end of the last whole line."""
        with self.path.open("rb") as file:
            return sum(len(line) for line in file if line.endswith(b"\n"))

    @contextmanager
    def _of_form(self) -> Iterator[None]:
        """While this holds, a line that lacks something is an InputError."""
        try:
            yield
        except (KeyError, IndexError, TypeError, AttributeError):
            raise InputError("has a line that no journal has", self.path, "leave --resume out") from None

    def _lines(self) -> Iterator[dict[str, Any]]:
        """The whole lines. Raises InputError for one that no journal has."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    found = json.loads(line)
                    if not isinstance(found, dict):
                        raise ValueError
                except (ValueError, RecursionError):
                    raise InputError("is no line of a journal", f"{self.path}:{number}", "leave --resume out") from None
                yield found


def _fields(value: Outcome | Attempt) -> dict[str, Any]:
    """Those of a dataclass. `asdict` copies them deeply, which takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}
