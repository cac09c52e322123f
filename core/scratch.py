"""Folders for as long as a process needs them, and what else it leaves when it is killed before it has tidied up."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

PREFIX = "hloracle-scratch-"
NOTES = (
    "notes"  # in the folder of a program: the paths that are to be gone when it has ended, each with a NUL behind it
)


_program: list[Scratch] = []


class Scratch:
    """An empty folder, removed with this. Those of processes that were killed are removed when the next one is made.

    folder: locked for as long as this process lives.
    """

    def __init__(self) -> None:
        _sweep()
        lock = None
        while lock is None:  # somebody else has just taken it for one that is left
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            try:
                lock = _lock(self.folder)
            except OSError:
                self.folder.rmdir()  # rmtree opens it, which may be what fails
                raise
        weakref.finalize(self, _remove, self.folder, lock)


def keep_here() -> None:
    """From now on the temporary files of this process, and of all that it starts, lie in a folder that goes with it.

    So they go, too, where a child or a compiler was killed amid its work. See `noted` for what has to lie elsewhere.
    """
    with contextlib.suppress(OSError):  # nowhere to write: whoever needs it says so
        _program.append(Scratch())
        tempfile.tempdir = os.environ["TMPDIR"] = str(_program[0].folder)


def noted(path: Path) -> Path:
    """A path that is about to be written to and to be renamed, or removed: where neither happens, it goes with the program."""
    folder = os.environ.get("TMPDIR", "")
    if os.path.basename(folder).startswith(PREFIX):
        try:
            with open(os.path.join(folder, NOTES), "ab") as notes:
                notes.write(os.fsencode(os.path.abspath(path)) + b"\0")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # else it is only not noted: it may lie on another disk
                raise
    return path


@contextlib.contextmanager
def folder_in(parent: Path, name: str) -> Iterator[Path]:
    """A temporary folder in another one, such as one of the same file system. Its name is hidden."""
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as folder:
        yield noted(Path(folder))


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where another one does, or it is gone. Raises OSError."""
    try:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(found)
        return None
    except OSError:
        os.close(found)
        raise
    if not folder.exists():
        os.close(found)
        return None
    return found


def _remove(folder: Path, lock: int) -> None:
    with contextlib.suppress(OSError):
        for path in map(os.fsdecode, (folder / NOTES).read_bytes().split(b"\0")):
            if os.path.basename(path).startswith("."):
                with contextlib.suppress(OSError):
                    os.unlink(path)
                shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = _lock(folder) if folder.stat().st_uid == os.getuid() else None
            if lock is not None:
                _remove(folder, lock)
