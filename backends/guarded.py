"""Programs of others that run beside this process: what they may have of the memory, and that they end with it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from hloracle.core.child import kill_descendants
from hloracle.core.errors import InputError, ToolchainError

MEMORY_VARIABLE = "HLORACLE_WORKER_MEMORY"
# Of the machine's memory, what a program may have resident: beyond it the kernel would choose which process to end.
MEMORY_SHARE = 0.9
WATCH_SECONDS = 0.2


class Guarded:
    """A program that was started. It is killed, with those that it has started, if they have too much memory together.

    process: the program. too_large: whether it was killed for that. peak_bytes: the most that they had resident together,
      as far as it was seen.
    """

    process: subprocess.Popen[Any]  # of bytes

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None,
        folder: Path | None = None, **streams: int | IO[bytes],
    ) -> None:  # fmt: skip
        """Raises ToolchainError with the backend's name where it cannot be started.

        Args:
          environment, folder: of the program; this process's where they are None. streams: as subprocess takes them.
        """
        self.too_large, self._limit = False, memory_limit()
        self.peak_bytes = 0
        self._started, self._failed = threading.Event(), ""
        arguments = ([*command], {**streams, "env": environment, "cwd": folder})
        threading.Thread(target=self._watch, args=arguments, daemon=True).start()
        self._started.wait()
        if self._failed:
            raise ToolchainError("load", f"{name}: {command[0]} cannot be run ({self._failed})")

    def _watch(self, command: list[str], how: Any) -> None:
        """Started here: a worker has Linux end it with the thread that started it, and this one lasts as long as it does."""
        try:
            self.process = subprocess.Popen(command, **how)
        except (OSError, ValueError) as error:
            self._failed = getattr(error, "strerror", None) or str(error)
            return
        finally:
            self._started.set()
        pause = threading.Event()
        while self.process.poll() is None:
            self.peak_bytes = max(self.peak_bytes, resident := resident_bytes(self.process.pid))
            if resident > self._limit:
                self.too_large = True
                self.kill()
            pause.wait(WATCH_SECONDS)

    def kill(self) -> None:
        """End it, with those that it has started, whatever it is at."""
        if self.process.poll() is None:
            kill_descendants([self.process.pid])
        self.process.wait()


def resident_bytes(pid: int) -> int:
    """Of a process and of all that it has started."""
    total = 0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.Error:  # one has ended meanwhile
        pass
    return total


def memory_limit() -> float:
    """Bytes that a program may have resident. Raises InputError for a variable that is no number."""
    asked = os.environ.get(MEMORY_VARIABLE, "")
    if not asked:
        return MEMORY_SHARE * psutil.virtual_memory().total
    try:
        return float(asked)
    except ValueError:
        raise InputError("is no number of bytes", f"{MEMORY_VARIABLE}={asked}", "give one, such as 8e9") from None
