"""One job as a process: what it says, how it ended, and the files that it left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloracle.core.child import exit_words, tell_of_parent
from hloracle.core.scratch import Scratch
from hloracle.core.shown import shown
from hloracle.fleet.outcome import Attempt, Status

STATUSES: dict[int, Status] = {0: "passed", 1: "failed", 2: "refused"}
LOG = "log.txt"
TAIL = 64 << 10  # bytes at the end of the log that are read, and kept
MOST_FILES = 64 << 20  # bytes of a job's files that come back
GRACE_SECONDS = 20  # for a command that is told to end, to end what it has started
WHERE = ("page: ", "report: ")  # lines of hloracle's that name a folder which is gone by now
# What an interpreter is started with in place of `-m MODULE`: a job that outlives who started it would run on unseen.
WITH_PARENT = (
    "import sys; from hloracle.fleet.process import run_with_parent; run_with_parent(int(sys.argv[1]), sys.argv[2:])"
)


@dataclass(frozen=True)
class Ended:
    """How a job's process ended, with what it left. files: its folder as a compressed tar; empty where it is too large."""

    attempt: Attempt
    files: bytes


def run_job(words: Sequence[str], timeout: float, environment: dict[str, str], node: str) -> Ended:
    """Run `python -m WORDS` in an empty folder, which `{out}` in the words stands for.

    Its crash is a result. What it has started ends with it, and it ends with this process.
    """
    scratch, began = Scratch(), time.monotonic()  # its folder goes with it, or with the next one if this is killed
    folder, out = scratch.folder, scratch.folder / "out"
    out.mkdir()
    job = [word.replace("{out}", str(out)) for word in words]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", WITH_PARENT, str(os.getpid()), *job], cwd=folder, env={**os.environ, **environment},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - began
    tail = _tail(folder / LOG)
    (out / LOG).write_bytes(tail)
    attempt = _attempt(code, timeout, seconds, node, tail.decode("utf-8", "replace"), _record(out))
    return Ended(attempt, _packed(out))


def run_with_parent(parent: int, words: Sequence[str]) -> None:
    """In the new process: run the module that the words name, and end when the parent ends, as far as `tell_of_parent` can."""
    import runpy

    tell_of_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before
        sys.exit(1)
    sys.argv = list(words)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of it: first by asking, so that it ends what it has started in groups of their own."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _attempt(code: int | None, timeout: float, seconds: float, node: str, tail: str, record: dict[str, Any]) -> Attempt:
    lines = [line for line in tail.splitlines() if line.strip() and not line.startswith(WHERE)]
    said = shown(lines[-1], 300) if lines else "it said nothing"
    if code is None:
        return Attempt("hung", f"did not end within {timeout:g} s; the last line was: {said}", "", seconds, node)
    status = STATUSES.get(code, "crashed")
    if status == "crashed":
        return Attempt(status, f"ended with {exit_words(code)}; the last line was: {said}", "", seconds, node)
    verdict = record.get("verdict", {})
    if status != "refused" and verdict:
        return Attempt(
            status, shown(str(verdict["explanation"]), 300), verdict["class"], seconds, node, len(record["damaged"])
        )
    return Attempt(status, said, "", seconds, node)


def _record(out: Path) -> dict[str, Any]:
    """The record that a job has left; empty where it left none."""
    try:
        return dict(json.loads((out / "report.json").read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def _tail(log: Path) -> bytes:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        return file.read()


def _packed(out: Path) -> bytes:
    if sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) > MOST_FILES:
        return b""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as tar:
        tar.add(out, arcname=".")
    return data.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Put a job's files into a folder. They come from another machine: nothing is written outside of it."""
    with tarfile.open(fileobj=io.BytesIO(files), mode="r:gz") as tar:
        tar.extractall(folder, filter="data")
