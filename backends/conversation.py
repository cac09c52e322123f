"""Requests to a program and its answers, one line of JSON each: the other side of workers/serving.py, see docs/workers.md."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import IO, Any

from hloracle.backends.guarded import Guarded
from hloracle.core.child import exit_words
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.core.given import parse_json
from hloracle.core.shown import shown

LONGEST = 2**20  # bytes of an answer
TOLD = 300  # characters of what a program said
MESSAGE = 2000  # characters of an error in an answer
STAGES = ("compile", "load", "run")
CLOSING_SECONDS = 10


class Conversation:
    """A program that was started, for as long as this is held. Threads may ask in turns.

    free: names of arrays that nobody has any more, which the next request tells.
    """

    def __init__(self, name: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.name, self._count, self._asking = name, 0, threading.Lock()
        self.free: list[str] = []
        self._over: ToolchainError | None = None  # why nothing is asked any more
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        try:
            self._guarded = Guarded(name, command, environment, **pipes)
        except BaseException:
            self._log.close()
            raise
        self.close = weakref.finalize(self, _end, self._guarded, self._log)

    def ask(self, what: str, stage: str, **more: Any) -> dict[str, Any]:
        """The answer to a request. Raises ToolchainError: the answer's own, or with this stage where it is none."""
        with self._asking:
            if self._over:
                raise self._over
            self._count += 1
            free = [self.free.pop() for _ in range(len(self.free))]
            request = {"id": self._count, "do": what, **more, **({"free": free} if free else {})}
            line = self._answer(json.dumps(request).encode() + b"\n")
            if not line.endswith(b"\n"):
                raise self._ended(stage, line)
            try:
                answer = parse_json(line, self.name, "")
            except InputError:
                raise self.rubbish(stage, line.decode(errors="replace")) from None
            if not isinstance(answer, dict) or answer.get("id") != self._count:
                raise self.rubbish(stage, answer)
            if "error" in answer:
                raise self._error(stage, answer)
            return answer

    @property
    def peak_bytes(self) -> int:
        """The most that the program has had resident, with all that it has started."""
        return self._guarded.peak_bytes

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self._guarded.process.poll() is None

    def kill(self) -> None:
        """End the program and what it has started, such as a compiler, while something waits for its answer."""
        self._guarded.kill()

    def rubbish(self, stage: str, answer: object) -> ToolchainError:
        """It broke the protocol. It is ended, for what it would answer next means nothing."""
        words = answer if isinstance(answer, str) else json.dumps(answer)
        told = shown(words, TOLD) or "an empty line"
        return self.end(stage, f"{self.name} does not answer as a worker does, but with {told}")

    def end(self, stage: str, message: str) -> ToolchainError:
        """End the program. Whatever is asked later has this error."""
        self._guarded.kill()
        self._over = OutOfMemory(self.name) if self._guarded.too_large else ToolchainError(stage, message)
        return self._over

    def _answer(self, request: bytes) -> bytes:
        """The line that comes, or as much of it as came."""
        requests, answers = self._guarded.process.stdin, self._guarded.process.stdout
        assert requests
        assert answers
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            requests.write(request)
            requests.flush()
        line: bytes = answers.readline(LONGEST)
        return line

    def _error(self, stage: str, answer: dict[str, Any]) -> ToolchainError:
        """An error that it answers with: it goes on."""
        try:
            at, message = str(answer["error"]["stage"]), " ".join(str(answer["error"]["message"]).split())
        except (KeyError, TypeError):
            return self.rubbish(stage, answer)
        if at == "memory":
            return OutOfMemory(self.name)
        return ToolchainError(at if at in STAGES else stage, message[:MESSAGE] or f"{self.name} gives no reason")

    def _ended(self, stage: str, line: bytes) -> ToolchainError:
        """It gave no answer, or a part of one."""
        if len(line) >= LONGEST:
            return self.rubbish(stage, f"a line of more than {LONGEST} bytes: {line[:40].decode(errors='replace')}…")
        try:
            status = exit_words(self._guarded.process.wait(CLOSING_SECONDS))
        except subprocess.TimeoutExpired:  # it has closed its answers, and lives on
            return self.end(stage, f"{self.name} stopped answering{self._said()}")
        return self.end(stage, f"{self.name} ended without an answer ({status}){self._said()}")

    def _said(self) -> str:
        """The last line that it printed for people."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 10 * TOLD))
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {shown(lines[-1].strip(), TOLD)}" if lines else ""


def _end(guarded: Guarded, log: IO[bytes]) -> None:
    """Whatever it is at: nothing that it holds is of use to anybody else."""
    guarded.kill()
    for stream in (guarded.process.stdin, guarded.process.stdout, log):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()
