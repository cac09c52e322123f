"""Folders for as long as a process needs them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

PREFIX = "hloracle-scratch-"


class Scratch:
    """An empty folder, removed with this. Those of processes that were killed are removed when the next one is made.

    folder: locked for as long as this process lives.
    """

    def __init__(self) -> None:
        _sweep()
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            lock = _lock(self.folder)
            if lock is not None:  # else somebody else has just taken it for one that is left
                break
        weakref.finalize(self, _remove, self.folder, lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where another one does, or it is gone."""
    try:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    if not folder.exists():
        os.close(found)
        return None
    return found


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = _lock(folder) if folder.stat().st_uid == os.getuid() else None
            if lock is not None:
                _remove(folder, lock)
