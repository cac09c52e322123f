"""Files that are written: whole or not at all, through links, and to devices and pipes as these are."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from hloracle.core.errors import InputError
from hloracle.core.given import code_of
from hloracle.core.scratch import noted

UNWRITABLE = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENXIO,
    errno.EPERM,
    errno.EPIPE,
    errno.EROFS,
)

# Of a disk that does not do its part, or a file that may not be so large.
BROKEN = (errno.EFBIG, errno.EIO)
# As NumPy says of a file of which not all could be written, without the system's error.
PARTLY = re.compile(r"\d+ requested and \d+ written")

STDOUT = Path("-")


def write_file(path: Path, data: str | bytes) -> None:
    """Write a file so that it appears whole or not at all. Raises InputError when it cannot be written.

    A symbolic link is written through, also one to a file that is not there yet. A device or a pipe takes the bytes, and so
    does stdout, which is called `-`. A file that is replaced leaves its permissions to the new one.
    """
    data = data.encode() if isinstance(data, str) else data
    with writing(path):
        if path == STDOUT:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        if is_special(path):
            path.write_bytes(data)
            return
        # Not of a special file: that of /dev/stdout is a name under /proc which nothing can open.
        path = Path(os.path.realpath(path))
        if path.is_symlink():  # in a circle
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        path.parent.mkdir(parents=True, exist_ok=True)
        new = beside(path)
        try:
            new.write_bytes(data)
            if path.is_file():
                new.chmod(stat.S_IMODE(path.stat().st_mode))
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def refuse_unwritable(path: Path) -> None:
    """Raises InputError where `write_file` could not write: before the first of several files is written."""
    with writing(path):
        if is_special(path):
            return
        path = Path(os.path.realpath(path))
        if path.is_dir() or path.is_symlink():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        new = beside(path)
        new.write_bytes(b"")
        new.unlink()


def refuse_other_than_utf8(path: Path) -> None:
    """Raises InputError where a path is not UTF-8. safetensors opens no such file, which would come out only in the middle of a run."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise InputError(
            "has a path that is not UTF-8, and safetensors opens no such file", path, "rename the folder"
        ) from None


def is_special(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder: a device, a pipe, a link to one, or stdout."""
    if path == STDOUT:
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def is_stdout(path: Path) -> bool:
    """Whether a path is stdout. A file that is written there stands alone: whoever writes it prints nothing else."""
    return path in (STDOUT, Path("/dev/stdout"))


def beside(path: Path) -> Path:
    """Another name in the same folder, which nobody else has. What tempfile makes could be read by its owner alone."""
    return noted(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))


def below(folder: Path) -> list[Path]:
    """All that is in a folder and in those in it, sorted; links are not followed.

    Raises OSError where one of them cannot be read. From Python 3.12 on, `Path.rglob` leaves such a folder out.
    """

    def fail(error: OSError) -> None:
        raise error

    walked = os.walk(folder, onerror=fail)
    return sorted(Path(at, name) for at, folders, files in walked for name in (*folders, *files))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock `path`.lock; a second process waits here until the first is done."""
    lock = filelock.FileLock(f"{path}.lock")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Where no file can be made, as under /proc, it would be tried for ever.
        os.close(os.open(lock.lock_file, os.O_RDWR | os.O_CREAT, 0o644))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While this holds, a full or broken disk and what may not be written are an InputError that names the path."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        code = code_of(error)
        if code in (errno.ENOSPC, errno.EDQUOT) or (code is None and PARTLY.search(str(error))):
            raise InputError(
                "the disk is full", path, "free some space, or set HLORACLE_CACHE or --out to another disk"
            ) from error
        if code in BROKEN:
            reason = os.strerror(code).lower()
            fix = "look after the disk and its limits (ulimit -f), or set HLORACLE_CACHE or --out to another one"
            raise InputError(f"cannot be written ({reason})", path, fix) from error
        if code in UNWRITABLE:
            reason = os.strerror(code).lower()
            raise InputError(f"cannot be written ({reason})", path, "name a folder that you may write to") from error
        raise
