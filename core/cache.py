"""The cache: entries named by their content and sealed by their hash, whole or absent, shared by concurrent processes.

An entry is a value in a file (`Entry`) or a directory of files (`build_directory`). One whose seal is broken is made anew,
and who listens is told (`noting`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import platformdirs

from hloracle.core.errors import InputError
from hloracle.core.files import below, beside, locked, refuse_other_than_utf8, write_file, writing
from hloracle.core.given import refuse_if_exhausted

T = TypeVar("T")
FORM = "2"  # of entries: one of another form has another name
SEAL = ".sealed"  # of a directory: whose it is, and the hex SHA-256 of each of its files
# From then on a file's times tell that it was not written to: file systems count them in hundredths of a second, or whole ones.
SETTLED_NS = 2_000_000_000
# Bytes of a file from which on it is hashed again only when it was written to: a gigabyte takes a second.
LARGE = 16 << 20


def cache_root() -> Path:
    """`$HLORACLE_CACHE`, or the user's cache folder of this platform."""
    named = os.environ.get("HLORACLE_CACHE")
    try:
        root = Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("hloracle")
    except RuntimeError:
        raise InputError(f"is {named!r}, and there is no such user", "HLORACLE_CACHE", "name a folder") from None
    refuse_other_than_utf8(root)
    return root


def digest(*parts: str | bytes) -> str:
    """A hex SHA-256 of the parts; each is preceded by its length, so that none runs into the next."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part  # a path need not be text
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
    known = entry.load()
    if known is None:
        known = file_digest(path)
        if time.time_ns() - written > SETTLED_NS:
            with suppress(InputError):  # a cache that can only be read, or is full: it is hashed again the next time
                entry.save(known)
    return known


# ---- what was damaged

_listeners: list[Callable[[str], None]] = []


@contextmanager
def told_of_damage(listener: Callable[[str], None]) -> Iterator[None]:
    """While this holds, `listener` is told the name of each entry that is found damaged, by this process or a child."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def noting() -> Iterator[list[str]]:
    """The names of the entries that are found damaged while this holds, each once, in the order in which they are found."""
    found: list[str] = []
    with told_of_damage(lambda name: None if name in found else found.append(name)):
        yield found


def tell_of_damage(name: str) -> None:
    """Tell all that listen."""
    for listener in list(_listeners):
        listener(name)


def damage_line(names: list[str]) -> str:
    """What was damaged, on one line; empty where nothing was."""
    if not names:
        return ""
    many = "an entry" if len(names) == 1 else f"{len(names)} entries"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{many} of the cache had been damaged and {'was' if len(names) == 1 else 'were'} made anew: " + (
        ", ".join(names[:3]) + more
    )


def entry_name(path: Path) -> str:
    """What an entry is called: its path in the cache, which is the same on every machine."""
    root = cache_root()
    return str(path.relative_to(root)) if path.is_relative_to(root) else "/".join(path.parts[-2:])


# ---- an entry that is one value


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
        """Where the value is kept, whether or not it is there."""
        return cache_root() / self.folder / f"{digest(FORM, self.key)[:32]}.json"

    def load(self) -> T | None:
        """The value, or None where there is no whole one. Raises InputError where that cannot be told, as `is_whole` does."""
        if not self.reads:
            return None
        try:
            seal, _, text = self.path.read_text("utf-8").partition("\n")
        except (FileNotFoundError, NotADirectoryError):
            if not self.path.is_symlink():
                return None
            seal = text = ""
        except (OSError, ValueError) as error:
            refuse_if_exhausted(error, self.path)
            if not os.path.lexists(self.path):  # nor can it be, such as under too long a name
                return None
            seal = text = ""
        if seal != self._seal(text):
            tell_of_damage(entry_name(self.path))
            return None
        try:
            value: T = _adapter(self.type).validate_python(json.loads(text))
        except (ValueError, RecursionError):  # sealed, but by code for which it is of another type
            return None
        return value

    def save(self, value: T) -> None:
        """Keep a value, in place of whatever is there."""
        if self.writes:
            if (
                self.path.is_symlink() or self.path.is_dir()
            ):  # which would be written through, or which no file replaces
                with suppress(FileNotFoundError):  # another process has just done it
                    remove_damaged(self.path)
            text = json.dumps(_adapter(self.type).dump_python(value))
            write_file(self.path, f"{self._seal(text)}\n{text}")

    def get(self, make: Callable[[], T], keep: Callable[[T], bool] = lambda value: True) -> tuple[T, bool]:
        """The value, and whether it was in the cache; else what `make` gives, which is kept if `keep` says so."""
        if (found := self.load()) is not None:
            return found, True
        value = make()
        if keep(value):
            self.save(value)
        return value, False

    def _seal(self, text: str) -> str:
        """Of this entry alone: another one's file in its place is none."""
        return digest(self.folder, self.key, text)


@functools.cache
def _adapter(type: Any) -> Any:
    from pydantic import TypeAdapter  # importing it takes as long as a short command

    return TypeAdapter(type)


# ---- an entry that is a directory of files


def build_directory(path: Path, build: Callable[[Path], object]) -> Path:
    """The directory `path`, whole; where it is not, `build` is called on an empty one beside it, which takes its place.

    Returns `path`. Two processes that want the same entry build it once; one that dies half-way leaves nothing there.
    """
    if is_whole(path):
        return path
    with locked(path):
        if is_whole(path):
            return path
        with writing(path):
            new = beside(path)
            new.mkdir()
            try:
                build(new)
                (new / SEAL).unlink(missing_ok=True)  # a link to another entry's, which would be written through
                (new / SEAL).write_text(json.dumps({"of": entry_name(path), "files": _digests(new)}), encoding="utf-8")
                remove_damaged(path)
                os.replace(new, path)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    return path


def is_whole(path: Path) -> bool:
    """Whether a directory is there as it was built: with the same files, and every byte of them.

    Raises InputError where that cannot be told, for want of open files or memory.
    """
    try:
        return bool(json.loads((path / SEAL).read_text("utf-8")) == {"of": entry_name(path), "files": _digests(path)})
    except (OSError, ValueError, RecursionError) as error:
        refuse_if_exhausted(error, path)
        return False


def remove_damaged(path: Path) -> None:
    """Remove a directory that is not whole, if one is there, and tell who listens. Who has its files open keeps them."""
    if not os.path.lexists(path):
        return
    tell_of_damage(entry_name(path))
    gone = beside(path)
    os.replace(path, gone)
    if gone.is_dir() and not gone.is_symlink():
        shutil.rmtree(gone, ignore_errors=True)
    else:
        gone.unlink()


def _digests(folder: Path) -> dict[str, str]:
    """What each file in a directory is: the hash of its bytes, or where it leads if it is a link."""
    found: dict[str, str] = {}
    for path in below(folder):
        if path.is_symlink():
            found[path.relative_to(folder).as_posix()] = f"-> {os.readlink(path)}"
        elif path.is_file() and path != folder / SEAL:
            large = path.stat().st_size >= LARGE
            found[path.relative_to(folder).as_posix()] = known_digest(path) if large else file_digest(path)
    return found
