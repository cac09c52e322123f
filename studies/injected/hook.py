"""What a Python process does wrong on purpose. A trial copies this file as sitecustomize.py, so that each process has it.

plan.json beside it lists the faults, `happened` gets a line for each that came about. Standard library alone.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MAIN = "INJECTED_MAIN"  # the variable that holds the id of the command's own process
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
Fault = dict[str, Any]

# ---- what is done


def _end(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def _hang(number: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def _want_memory(number: int) -> None:
    raise MemoryError


def _limit_memory(number: int) -> None:
    """Leave so many bytes more than there are: real allocations fail then, wherever they are."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + number, used + number))


def _refuse(number: int) -> None:
    raise OSError(number, os.strerror(number), "a file")


def _tell_main(number: int) -> None:
    os.kill(int(os.environ[MAIN]), number)
    _hang(0)


def _jump(number: int) -> None:
    """The clock of the day jumps, in this process and in those that it starts. That of `time.monotonic` never does."""
    (HERE / "jumped").write_text(str(number))
    _set_clock(number)


def _set_clock(seconds: int) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + seconds * 10**9


ACTIONS: dict[str, Callable[[int], None]] = {
    "end": _end, "hang": _hang, "want memory": _want_memory, "limit memory": _limit_memory, "refuse": _refuse,
    "tell main": _tell_main, "jump": _jump,
}  # fmt: skip

# ---- where and when


def _happens(fault: Fault) -> bool:
    """Whether it is this time: the first times are counted over all processes."""
    counted = HERE / f"counted-{fault['id']}"
    with counted.open("ab") as file:
        file.write(b".")
        file.flush()
        count = file.tell()
    first = int(fault["first"])
    if not first <= count < first + int(fault["times"]):
        return False
    with (HERE / "happened").open("a") as file:
        file.write(f"{fault['id']} in {os.getpid()}\n")
    return True


class _Planting(importlib.abc.MetaPathFinder):
    """Puts a fault into a function of a module as soon as that has been imported."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.module, self.name = fault["at"].split(":")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The module's own spec, whose loader puts the fault in."""
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            self.plant(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec

    def plant(self, module: Any) -> None:
        """In place of the function stands one that does wrong before it, or after it."""
        *owners, name = self.name.split(".")
        owner = functools.reduce(getattr, owners, module)
        function, fault = getattr(owner, name), self.fault

        @functools.wraps(function)
        def faulty(*arguments: Any, **named: Any) -> Any:
            if fault["after"]:
                answer = function(*arguments, **named)
            if _happens(fault):
                ACTIONS[fault["do"]](int(fault["number"]))
            return answer if fault["after"] else function(*arguments, **named)

        setattr(owner, name, faulty)


def _refusing(fault: Fault) -> Callable[[str, tuple[Any, ...]], None]:
    """Files that cannot be written, or opened; folders that cannot be made; or programs that cannot be started."""
    pattern, number = re.compile(fault["path"]), int(fault["number"])
    asking = False

    def ask(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal asking
        path = None
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if writes or event in ("os.mkdir", "subprocess.Popen") or (event == "open" and fault["reads"]):
            path = arguments[0]
        elif event == "os.rename":
            path = arguments[1]
        if asking or not isinstance(path, str | bytes | os.PathLike):
            return
        asking = True
        try:
            if pattern.search(os.fsdecode(path)) and _happens(fault):
                raise OSError(number, os.strerror(number), os.fsdecode(path))
        finally:
            asking = False

    return ask


def begin() -> None:
    """Put the faults of the plan into this process."""
    try:
        plan: list[Fault] = json.loads((HERE / "plan.json").read_text())
    except OSError:
        return
    words = sys.orig_argv
    if "hloracle" in words and "--multiprocessing-fork" not in words:
        os.environ.setdefault(MAIN, str(os.getpid()))
    if (HERE / "jumped").exists():
        _set_clock(int((HERE / "jumped").read_text()))
    for fault in plan:
        if fault["path"]:
            sys.addaudithook(_refusing(fault))
        else:
            sys.meta_path.insert(0, _Planting(fault))


if __name__ == "sitecustomize":
    begin()
