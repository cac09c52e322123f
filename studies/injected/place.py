"""The folder in which a command is tried: its cache, its temporary files, its home, and what it leaves there."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hloracle.backends.plain import PLAIN_XLA
from hloracle.studies.injected import hook
from hloracle.studies.injected.judge import OWN, Ran

STALE = "of an earlier run"  # what the reports hold that stand there before
SECONDS = 600  # that a command may take, also where other work slows it down
ENDING = 10  # seconds in which what a command has started has to end after it
FILLER = "filler"  # a file that fills a disk
TORN = (".sealed",)  # of the hidden names in a cache, those that belong there

# Starts what its words say, with limits; SIGINT and SIGHUP, which what runs behind a shell ignores, end it. A process of its own
# does this: a function that runs between fork and exec is refused where JAX is loaded.
LIMITED = """
import json, os, resource, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
for which, most in json.loads(sys.argv[1]):
    resource.setrlimit(which, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass
class Place:
    """A folder with all that a command may write to.

    words: of the command line. environment: of it, beside this process's. plan: the faults that its processes carry, see hook.py.
    limits: resources and what it may have of them. before: is called before it runs. streams: files that stand for stdout and
    stderr, or `closed`. beside: other command lines, which run at the same time. seconds: that it may take.
    """

    folder: Path
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    plan: list[dict[str, Any]] = field(default_factory=list)
    limits: list[tuple[int, int]] = field(default_factory=list)
    before: list[Callable[[], object]] = field(default_factory=list)
    lifts: list[Callable[[], object]] = field(default_factory=list)
    streams: dict[str, str] = field(default_factory=dict)
    beside: list[list[str]] = field(default_factory=list)
    seconds: float = SECONDS

    @property
    def work(self) -> Path:
        """The working directory."""
        return self.folder / "work"

    @property
    def cache(self) -> Path:
        """The cache."""
        return self.folder / "cache"

    @property
    def tmp(self) -> Path:
        """Where temporary files go."""
        return self.folder / "tmp"

    @property
    def home(self) -> Path:
        """The home of the user."""
        return self.folder / "home"

    @property
    def hook(self) -> Path:
        """Where hook.py and its plan lie."""
        return self.folder / "hook"

    @property
    def out(self) -> Path:
        """The report's folder."""
        return self.work / "out"

    def prepare(self, base: Path) -> None:
        """Fill it from a folder in which every command has run: with a warm cache, and reports that are old."""
        for name in ("tmp", "home", "hook"):
            (self.folder / name).mkdir(parents=True)
        shutil.copytree(base / "cache", self.cache, symlinks=True)
        shutil.copytree(base / "work", self.work)
        self.out.mkdir()
        for name in OWN["ops" if self.words[0] == "ops" else "report"]:
            (self.out / name).write_text(STALE)
        shutil.copyfile(Path(hook.__file__), self.hook / "sitecustomize.py")

    def run(self) -> Ran:
        """Run the command as it is, with its faults if there are any."""
        for act in self.before:
            act()
        if self.plan:
            (self.hook / "plan.json").write_text(json.dumps(self.plan))
        return self._run()

    def lift(self) -> None:
        """From now on nothing goes wrong."""
        self.environment, self.plan, self.limits, self.streams, self.beside, self.before = {}, [], [], {}, [], []
        for name in ("plan.json", "jumped", "happened"):
            (self.hook / name).unlink(missing_ok=True)
        for act in self.lifts:
            act()

    @property
    def happened(self) -> bool:
        """Whether what is planned came about."""
        return not self.plan or (self.hook / "happened").exists()

    def _environment(self) -> dict[str, str]:
        paths = [str(self.hook), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        own = {
            "HLORACLE_CACHE": str(self.cache), "TMPDIR": str(self.tmp), "HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)), "XLA_FLAGS": " ".join(PLAIN_XLA),
            "PYTHONDONTWRITEBYTECODE": "",  # many images of containers set it, and each process would compile all modules
        }  # fmt: skip
        return {**os.environ, **own, **self.environment}

    def _run(self) -> Ran:
        began, hung = time.monotonic(), False
        with ExitStack() as stack:
            logs = {name: self.folder / f"{name}.txt" for name in ("stdout", "stderr")}
            streams = {name: stack.enter_context(open(self.streams.get(name, log), "wb")) for name, log in logs.items()}
            everyone = [self._start(self.words, self._environment(), streams)]
            unharmed = {**self._environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
            everyone += [self._start(words, unharmed, streams) for words in self.beside]
            for process in everyone:
                try:
                    process.wait(max(1, began + self.seconds - time.monotonic()))
                except subprocess.TimeoutExpired:
                    hung = True
                    _kill(self.processes())
                    process.wait()
        happened = self.happened
        left = self.left_processes()
        said = {name: logs[name].read_text(errors="replace") if name not in self.streams else "" for name in logs}
        return Ran(
            everyone[0].returncode, said["stdout"], said["stderr"], self._record(), time.monotonic() - began, hung, happened,
            tuple(left), tuple(self.left_files()), tuple(process.returncode for process in everyone[1:]),
        )  # fmt: skip

    def _start(
        self, words: Sequence[str], environment: dict[str, str], streams: dict[str, Any]
    ) -> subprocess.Popen[bytes]:
        limits = json.dumps([(resource.RLIMIT_CORE, 0), *self.limits])
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LIMITED, limits, sys.executable, "-m", "hloracle", *words], cwd=self.work,
            env=environment, stdin=subprocess.DEVNULL, start_new_session=True, stdout=streams["stdout"], stderr=streams["stderr"],
        )  # fmt: skip

    def _record(self) -> Any:
        for name in ("report.json", "ops.json"):
            with suppress(OSError, ValueError):
                return json.loads((self.out / name).read_text())
        return None

    # ---- what is left

    def processes(self) -> list[psutil.Process]:
        """Those that have this folder in their environment, but for this one."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                told = " ".join([*process.environ().values(), *process.cmdline(), process.cwd()])
                if process.pid != os.getpid() and f"{self.folder}/" in told:
                    found.append(process)
        return found

    def left_processes(self) -> list[str]:
        """What has not ended a few seconds after the command; it is killed."""
        until = time.monotonic() + ENDING
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.2)
        told = []
        for process in left:
            with suppress(psutil.Error):
                told.append(" ".join(process.cmdline())[:200])
        _kill(left)
        return told

    def left_files(self) -> Iterator[str]:
        """What a command may not leave: temporary files, files amid being written, reports of an earlier run."""
        for path in sorted([*self.tmp.rglob("*"), *self.home.rglob("*")]):
            if path.is_file() and path.name != FILLER:
                yield str(path.relative_to(self.folder))
        for path in sorted(self.work.rglob("*")):
            if path.is_file() and (path.name.startswith(".") or path.read_bytes() == STALE.encode()):
                yield str(path.relative_to(self.folder))
        for path in sorted(self.cache.rglob("*")):
            if path.name.startswith(".") and path.name not in TORN:
                yield str(path.relative_to(self.folder))


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
