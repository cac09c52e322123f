"""Requests to a program and its answers, one line of JSON each: the other side of workers/serving.py, see docs/workers.md."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import psutil

from hloracle.core.child import exit_words, kill_descendants
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError

PROTOCOL = 1
SHARED = Path("/dev/shm")  # memory that processes share as files, where there is such
MEMORY_VARIABLE = "HLORACLE_WORKER_MEMORY"
# Of the machine's memory, what a program may have resident: beyond it the kernel would choose which process to end.
MEMORY_SHARE = 0.9
WATCH_SECONDS = 0.2
LONGEST = 2**20  # bytes of an answer
TOLD = 300  # characters of what a program said
STAGES = ("compile", "load", "run")


class Conversation:
    """A program that was started, for as long as this is held.

    folder: for the files of arrays.
    """

    def __init__(self, name: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.name, self._count = name, 0
        self.free: list[str] = []  # arrays that nobody has any more: the next request says so
        self.folder = Path(tempfile.mkdtemp(prefix="hloracle-", dir=SHARED if os.access(SHARED, os.W_OK) else None))
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        limit = memory_limit()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment
            )
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise ToolchainError("load", f"{name}: {command[0]} cannot be run ({error.strerror})") from None
        self.close = weakref.finalize(self, _end, self._process, self.folder, self._log)
        self._too_large = threading.Event()
        threading.Thread(target=_watch, args=(self._process.pid, limit, self._too_large), daemon=True).start()

    def ask(self, what: str, stage: str, **more: Any) -> dict[str, Any]:
        """The answer to a request. Raises ToolchainError with the stage where there is none, or an error."""
        self._count += 1
        free = [self.free.pop() for _ in range(len(self.free))]
        request = {"id": self._count, "do": what, **more, **({"free": free} if free else {})}
        requests, answers = self._process.stdin, self._process.stdout
        assert requests
        assert answers
        line = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            requests.write(json.dumps(request).encode() + b"\n")
            requests.flush()
            line = answers.readline(LONGEST)
        if not line.endswith(b"\n"):
            raise self._ended(stage, line)
        try:
            answer = json.loads(line)
        except ValueError:
            raise self.rubbish(stage, line.decode(errors="replace").strip()) from None
        if not isinstance(answer, dict) or answer.get("id") != self._count:
            raise self.rubbish(stage, answer)
        if "error" not in answer:
            return answer
        try:
            at, message = str(answer["error"]["stage"]), str(answer["error"]["message"])
        except (KeyError, TypeError):
            raise self.rubbish(stage, answer) from None
        if at == "memory":
            raise OutOfMemory(self.name)
        raise ToolchainError(at if at in STAGES else stage, message)

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the program and what it has started, such as a compiler, while something waits for its answer."""
        kill_descendants([self._process.pid])

    def rubbish(self, stage: str, answer: object) -> ToolchainError:
        """It broke the protocol. It is ended, for what it would answer next means nothing."""
        self._process.kill()
        return ToolchainError(stage, f"{self.name} gave no answer of a worker, but {shown(answer)}{self._said()}")

    def _ended(self, stage: str, line: bytes) -> ToolchainError:
        """It gave no answer, or a part of one."""
        if len(line) >= LONGEST:
            return self.rubbish(stage, f"{line[:40].decode(errors='replace')}… without an end")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # it has closed its answers, and lives on
            self._process.kill()
            return ToolchainError(stage, f"{self.name} stopped answering{self._said()}")
        if self._too_large.is_set():
            return OutOfMemory(self.name)
        return ToolchainError(
            stage, f"{self.name} ended without an answer ({exit_words(self._process.returncode)}){self._said()}"
        )

    def _said(self) -> str:
        """The last line that it printed for people."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 10 * TOLD))
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {shown(lines[-1].strip())}" if lines else ""


def shown(answer: object) -> str:
    """In a sentence."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return text if len(text) <= TOLD else f"{text[:TOLD]}…"


def memory_limit() -> float:
    """Bytes that a program may have resident. Raises InputError for a variable that is no number."""
    asked = os.environ.get(MEMORY_VARIABLE, "")
    if not asked:
        return MEMORY_SHARE * psutil.virtual_memory().total
    try:
        return float(asked)
    except ValueError:
        raise InputError("is no number of bytes", f"{MEMORY_VARIABLE}={asked}", "give one, such as 8e9") from None


def _watch(pid: int, limit: float, too_large: threading.Event) -> None:
    """End a process that has more memory than it may, with those that it has started."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if process.memory_info().rss > limit:
                too_large.set()
                process.kill()
                return
            too_large.wait(WATCH_SECONDS)


def _end(process: subprocess.Popen[bytes], folder: Path, log: IO[bytes]) -> None:
    """Whatever it is at: nothing that it holds is of use to anybody else."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, log):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()
    shutil.rmtree(folder, ignore_errors=True)
