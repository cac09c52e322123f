"""The cache: entries named by their content, whole or absent, shared by concurrent processes."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import filelock
import platformdirs

from hloracle.core.errors import InputError
from hloracle.core.scratch import noted

UNWRITABLE = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
T = TypeVar("T")
SEAL = "sealed.json"  # of a folder: the hex SHA-256 of each of its files
# From then on a file's times tell that it was not written to: file systems count them in hundredths of a second, or whole ones.
SETTLED_NS = 2_000_000_000


def cache_root() -> Path:
    """`$HLORACLE_CACHE`, or the user's cache folder of this platform."""
    named = os.environ.get("HLORACLE_CACHE")
    if not named:
        return platformdirs.user_cache_path("hloracle")
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError:
        raise InputError(f"is {named!r}, and there is no such user", "HLORACLE_CACHE", "name a folder") from None


def digest(*parts: str | bytes) -> str:
    """A hex SHA-256 of the parts; each is preceded by its length, so that none runs into the next."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def file_digest(path: Path) -> str:
    """The hex SHA-256 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def known_digest(path: Path) -> str:
    """The same of a large file, which is read again only when it is another one, or was written to.

    A file that was written to moments ago may be again, within one tick of its clock: it is read every time.
    """
    found = path.stat()
    written = max(found.st_mtime_ns, found.st_ctime_ns)
    state = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
    entry: Entry[str] = Entry("digests", digest(str(path.resolve()), json.dumps(state)), str)
    return entry.get(lambda: file_digest(path), lambda _: time.time_ns() - written > SETTLED_NS)[0]


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A place in the cache for one value, named by the content of all that decides it, and sealed by its hash.

    A value whose seal is broken, or that is not of the type, is none: it is made anew, and the new one takes its place.

    folder: which part of the cache. key: a digest. type: of the value, a dataclass or whatever pydantic reads from JSON.
    reads, writes: False leaves what is there as it is.
    """

    folder: str
    key: str
    type: Any
    reads: bool = True
    writes: bool = True

    @property
    def path(self) -> Path:
        """Where the value is kept, whether or not it is there: a file named by the first 32 hex digits of the key."""
        return cache_root() / self.folder / f"{self.key[:32]}.json"

    def load(self) -> T | None:
        """The value, or None where there is no whole one."""
        if not self.reads:
            return None
        try:
            seal, _, text = self.path.read_text("utf-8").partition("\n")
            if seal != digest(text):
                return None
            value: T = _adapter(self.type).validate_python(json.loads(text))
        except (OSError, ValueError, RecursionError):
            return None
        return value

    def save(self, value: T) -> None:
        """Keep a value, in place of whatever is there."""
        if self.writes:
            text = json.dumps(_adapter(self.type).dump_python(value))
            write_file(self.path, f"{digest(text)}\n{text}")

    def get(self, make: Callable[[], T], keep: Callable[[T], bool] = lambda value: True) -> tuple[T, bool]:
        """The value, and whether it was in the cache; else what `make` gives, which is kept if `keep` says so."""
        if (found := self.load()) is not None:
            return found, True
        value = make()
        if keep(value):
            self.save(value)
        return value, False


@functools.cache
def _adapter(type: Any) -> Any:
    from pydantic import TypeAdapter  # importing it takes as long as a short command

    return TypeAdapter(type)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock `path`.lock; a second process waits here until the first is done."""
    lock = filelock.FileLock(f"{path}.lock")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def write_file(path: Path, data: str | bytes) -> None:
    """Write a file so that it appears whole or not at all. Raises InputError when it cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path)
        try:
            beside.write_bytes(data.encode() if isinstance(data, str) else data)
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def build_directory(path: Path, build: Callable[[Path], object]) -> Path:
    """Make the directory `path`, if it is not there, by calling `build` on an empty one beside it, then renaming.

    Returns `path`. Two processes that want the same entry build it once; one that dies half-way leaves nothing there.
    """
    if path.is_dir():
        return path
    with locked(path):
        if path.is_dir():
            return path
        with writing(path):
            beside = _beside(path)
            beside.mkdir()
            try:
                build(beside)
                os.replace(beside, path)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    return path


def sealed_directory(path: Path, build: Callable[[Path], object]) -> Path:
    """A `build_directory` of files alone, whose last one holds the others' hashes: see `is_whole`."""

    def sealed(folder: Path) -> None:
        build(folder)
        (folder / SEAL).write_text(json.dumps(_digests(folder)))

    return build_directory(path, sealed)


def is_whole(folder: Path) -> bool:
    """Whether a `sealed_directory` is there, with the files that it was made with and every byte of them."""
    try:
        return bool(json.loads((folder / SEAL).read_text()) == _digests(folder))
    except (OSError, ValueError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in folder.iterdir() if path.name != SEAL}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While this holds, a full disk and what may not be written are an InputError that names the path."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # safetensors, which is written in Rust, gives the system's error in words: `... (os error 28)`.
        words = re.search(r"\(os error (\d+)\)", str(error))
        code = error.errno if isinstance(error, OSError) else int(words[1]) if words else None
        if code in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                "the disk is full", path, "free some space, or set HLORACLE_CACHE or --out to another disk"
            ) from error
        if code in UNWRITABLE:
            reason = os.strerror(code).lower()
            raise InputError(f"cannot be written ({reason})", path, "name a folder that you may write to") from error
        raise


def _beside(path: Path) -> Path:
    """Another name in the same folder, which nobody else has. What tempfile makes could be read by its owner alone."""
    return noted(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
