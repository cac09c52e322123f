"""Commands that do what no command may, and some that do right: each is tried as an input is. Prints what is found of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from fuzz import judge
from fuzz.attempt import Reached, Stage
from fuzz.case import Case
from fuzz.one import Result
from fuzz.pool import run_jobs

LINE = "hloracle: file: is wrong; mend it"
SECONDS = 2.0
MEMORY = 2**26  # bytes that one of them may take: fewer than an input
CASE = Case({"file": b"x"}, ("planted",))


def say(*lines: str) -> int:
    """Status 2, with these lines."""
    print(*lines, sep="\n", file=sys.stderr)
    return 2


def traceback(words: list[str]) -> int:
    """Raises."""
    raise KeyError("planted")


def hang(words: list[str]) -> int:
    """Does not end."""
    time.sleep(600)
    return 0


def crash(words: list[str]) -> int:
    """Dies."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def leave_a_file(words: list[str]) -> int:
    """Leaves an output of a command that could not run."""
    Path("out.mlir").write_text("half")
    return say(LINE)


def change_a_file(words: list[str]) -> int:
    """Writes to what it was given."""
    Path("file").write_text("yy")
    return 0


def remove_a_file(words: list[str]) -> int:
    """Removes what it was given."""
    Path("file").unlink()
    return say(LINE)


def leave_a_temporary_file(words: list[str]) -> int:
    """Leaves one."""
    os.close(tempfile.mkstemp()[0])
    return 0


def leave_a_process(words: list[str]) -> int:
    """Leaves one."""
    subprocess.Popen(["sleep", "600"])
    return 0


def warn(words: list[str]) -> int:
    """Has Python warn beside the line."""
    warnings.warn("planted", RuntimeWarning, stacklevel=1)
    return say(LINE)


def from_a_library(words: list[str]) -> int:
    """Has a library write to stderr beside the line."""
    os.write(2, b"error: planted\n")
    return say(LINE)


def eat_memory(words: list[str]) -> int:
    """Takes more than it needs."""
    assert len(b"x" * 2 * MEMORY)
    return 0


def write(words: list[str]) -> int:
    """Writes its output."""
    Path("out.mlir").write_text("whole")
    return 0


def reach(words: list[str]) -> int:
    """Has read everything."""
    raise Reached


# What is tried -> a part of what has to be found, or nothing.
PLANTED: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "traceback": (traceback, "raises KeyError: 'planted'"),
    "hang": (hang, "does not end within 2 s"),
    "crash": (crash, "ends the process (signal SIGSEGV)"),
    "wrong status": (lambda words: 1, "ends with status 1, and not with one of [0, 2]"),
    "strange status": (lambda words: 17, "ends with status 17"),
    "a file": (leave_a_file, "leaves work/out.mlir"),
    "a changed file": (change_a_file, "leaves work/file"),
    "a removed file": (remove_a_file, "leaves work/file (gone)"),
    "a temporary file": (leave_a_temporary_file, "leaves tmp/"),
    "a process": (leave_a_process, "leaves 1 processes"),
    "two lines": (lambda words: say(LINE, LINE), "says 2 lines on stderr"),
    "no line": (lambda words: 2, "says 0 lines on stderr"),
    "no form": (lambda words: say("hloracle: something is wrong"), "does not say what, where and what to do"),
    "an error of the program": (lambda words: say("hloracle: file: TypeError: x; mend it"), "names an error of the program (TypeError)"),
    "a control character": (lambda words: say("hloracle: file: is \x1b[31mwrong; mend it"), "prints control characters"),
    "a warning": (warn, "says 3 lines on stderr"),
    "a library": (from_a_library, "says 2 lines on stderr"),
    "memory": (eat_memory, "GiB of memory"),
    "a line": (lambda words: say(LINE), ""),
    "an output": (write, ""),
    "reached": (reach, ""),
}  # fmt: skip


def work(stage: Stage, name: str) -> Result:
    """Try one of them."""
    seen = stage.attempt(CASE, PLANTED[name][0])
    return Result(seen.status, seen.seconds, tuple(judge.findings(seen, (0, 2), ("out.mlir",))))


if __name__ == "__main__":
    judge.MEMORY = MEMORY
    for one, result in run_jobs(iter(PLANTED), work, 2, SECONDS):
        print(json.dumps({"name": one, "wrong": result.wrong, "raised": result.raised}))
