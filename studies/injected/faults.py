"""What can go wrong around a command. Each fault has words, and puts itself into the place where the command is tried."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hloracle.studies.injected.place import FILLER, Place

EVERY = 10**6
DEEP = b"[" * 100_000


class Fault(Protocol):
    """Something that goes wrong."""

    @property
    def needs_mounts(self) -> bool:
        """Whether the trial has to be in a mount namespace of its own."""
        ...

    def put(self, place: Place) -> None:
        """Put it into a place; what it changed there for as long as it lasts goes to the place's `lifts`."""
        ...


# ---- in a process


@dataclass(frozen=True)
class In:
    """At a function, in whichever process it is called: the process is ended, hangs, or gets no memory.

    at: `module:function`, where the module is one of ours, or of a worker's if it has no package. do: an action of hook.py, with its number. first, times: of the calls, over all processes.
    """

    at: str
    do: str
    number: int = 0
    first: int = 1
    times: int = EVERY
    after: bool = False
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Write it into the plan."""
        how = {"do": self.do, "number": int(self.number), "first": self.first, "times": self.times, "after": self.after}
        package = "hloracle." if "." in self.at.partition(":")[0] else ""
        place.plan.append({"id": len(place.plan), "at": package + self.at, "path": "", **how})


@dataclass(frozen=True)
class Refused:
    """Files that match cannot be written, or folders made; with `reads`, not opened either; programs cannot be started."""

    path: str
    number: int
    reads: bool = False
    first: int = 1
    times: int = EVERY
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Write it into the plan."""
        how = {"number": self.number, "reads": self.reads, "first": self.first, "times": self.times}
        place.plan.append({"id": len(place.plan), "path": self.path, **how})


# ---- of the disk


@dataclass(frozen=True)
class Full:
    """A file system of its own, in which so many KiB are left beside what lies in the folder."""

    folder: str
    spare: int
    needs_mounts = True

    def put(self, place: Place) -> None:
        """Mount it over the folder, with what lay there."""
        where = place.folder / self.folder
        held = place.folder / "held"
        shutil.move(where, held)
        where.mkdir()
        used = sum(-(-path.lstat().st_size // 4096) * 4 + 4 for path in held.rglob("*"))
        _mount("-t", "tmpfs", "-o", f"size={used + self.spare + 1024}k", "tmpfs", str(where))
        shutil.copytree(held, where, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(held)
        (where / FILLER).write_bytes(b"x" * (shutil.disk_usage(where).free - 1024 * self.spare))
        place.lifts.append(lambda: _mount("-o", "remount,size=1g", str(where)))


@dataclass(frozen=True)
class ReadOnly:
    """A folder on a file system that can be read alone."""

    folder: str
    needs_mounts = True

    def put(self, place: Place) -> None:
        """Mount the folder over itself."""
        where = str(place.folder / self.folder)
        _mount("--bind", where, where)
        _mount("-o", "remount,ro,bind", where)
        place.lifts.append(lambda: _mount("-o", "remount,rw,bind", where))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


# ---- of the cache


@dataclass(frozen=True)
class Forgotten:
    """No fault: what there is of these kinds is removed from the cache, so that a stage has work.

    kinds: folders of the cache, or patterns of what is in one; everything where there are none.
    """

    kinds: tuple[str, ...]
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Remove them."""
        for path in [path for kind in self.kinds or ("*",) for path in place.cache.glob(kind)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def bit(files: Sequence[Path]) -> None:
    """One bit in the middle of each file is another."""
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def half(files: Sequence[Path]) -> None:
    """Of each file the first half is there."""
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(files: Sequence[Path]) -> None:
    """Each file is empty."""
    for path in files:
        path.write_bytes(b"")


def deep(files: Sequence[Path]) -> None:
    """Each file is JSON that is nested deeper than a parser goes."""
    for path in files:
        path.write_bytes(DEEP)


def exchanged(files: Sequence[Path]) -> None:
    """Each file has the content of the next one, or of another kind where there is one alone."""
    held = [path.read_bytes() for path in files]
    if len(held) == 1:
        held = [b"{}"]
    for path, data in zip(files, [*held[1:], held[0]], strict=True):
        path.write_bytes(data)


def folders(files: Sequence[Path]) -> None:
    """In the place of each file is a folder."""
    for path in files:
        path.unlink()
        path.mkdir()


def closed(files: Sequence[Path]) -> None:
    """In the place of each file is a link that leads nowhere."""
    for path in files:
        path.unlink()
        path.symlink_to("nowhere")


@dataclass(frozen=True)
class Torn:
    """Every file of a kind of entry is damaged. kind: a folder of the cache, or a pattern of folders in one."""

    kind: str
    how: Callable[[Sequence[Path]], None]
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Damage them."""
        found = sorted(path for path in place.cache.glob(f"{self.kind}/**/*") if path.is_file())
        files = [path for path in found if path.suffix != ".lock" and path.stat().st_size]
        if not files:
            raise ValueError(f"{self.kind}: the cache has no such entry")
        self.how(files)


@dataclass(frozen=True)
class Dated:
    """All files of the cache were written in the future, or long ago, by their times."""

    seconds: int
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Set their times."""
        import os
        import time

        then = time.time() + self.seconds
        for path in place.cache.rglob("*"):
            os.utime(path, (then, then))


# ---- of the environment


@dataclass(frozen=True)
class Limited:
    """A limit on a resource of every process."""

    resource: int
    most: int
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Set it."""
        place.limits.append((self.resource, self.most))


@dataclass(frozen=True)
class With:
    """Variables of the environment; `{folder}` stands for the place."""

    variables: tuple[tuple[str, str], ...]
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Set them."""
        place.environment |= {name: value.format(folder=place.folder) for name, value in self.variables}


@dataclass(frozen=True)
class Stream:
    """stdout or stderr goes to another file, such as /dev/full."""

    name: str
    file: str = "/dev/full"
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Send it there."""
        place.streams[self.name] = self.file


@dataclass(frozen=True)
class Tool:
    """IREE's compiler is a program that does something else; the script's `$real` is the right one."""

    script: str
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Put it on IREE_TOOL_PATH."""
        from hloracle.backends.iree import compiler_path

        tools = place.folder / "tools"
        tools.mkdir()
        (tools / "iree-compile").write_text(f"#!/bin/sh\nreal={compiler_path()}\nhere={tools}\n{self.script}\n")
        (tools / "iree-compile").chmod(0o755)
        place.environment["IREE_TOOL_PATH"] = str(tools)


@dataclass(frozen=True)
class Beside:
    """The same command at the same time, on the same cache, with a report of its own; so often."""

    times: int = 1
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Have them start, too."""
        for number in range(self.times):
            place.beside.append([*place.words[:-1], f"other-{number}"])


@dataclass(frozen=True)
class Worker:
    """A backend beside XLA is a program that does something wrong at a request.

    fault, request, number: of tests/misbehaving_worker.py, which hands all others on to a worker of ours.
    """

    fault: str
    request: str = "call"
    number: int = 1
    needs_mounts = False

    def put(self, place: Place) -> None:
        """Name it on the command line."""
        import shlex
        import sys

        root = Path(__file__).resolve().parents[2]
        script, ours = root / "tests" / "misbehaving_worker.py", root / "backends" / "workers" / "xla_worker.py"
        command = [sys.executable, script, self.fault, self.request, self.number, sys.executable, ours]
        plain = place.words
        place.words = [*plain[:-2], "--backend", f"worker:{shlex.join(map(str, command))}", *plain[-2:]]

        def dismiss() -> None:
            place.words = plain

        place.lifts.append(dismiss)


@dataclass(frozen=True)
class Also:
    """Several faults at once."""

    faults: tuple[Fault, ...] = field(default=())

    @property
    def needs_mounts(self) -> bool:
        """Whether one of them does."""
        return any(fault.needs_mounts for fault in self.faults)

    def put(self, place: Place) -> None:
        """Put each there."""
        for fault in self.faults:
            fault.put(place)


KILL, CRASH, TERMINATE = int(signal.SIGKILL), int(signal.SIGSEGV), int(signal.SIGTERM)
FILES, SIZE = resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE
