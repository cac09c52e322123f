"""Text files that somebody else wrote: what is read of them is bounded, and what cannot be read is refused in one line."""

from __future__ import annotations

from pathlib import Path

from hloracle.core.errors import InputError


def read_bytes(path: Path, most: int, fix: str) -> bytes:
    """What a file holds. Raises InputError where it cannot be read, or holds more than `most` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise InputError("no such file", path, fix) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path, fix) from None
    except ValueError:  # what no system call takes, such as a NUL
        raise InputError("is no name of a file", path, fix) from None
    if len(data) > most:
        raise InputError(f"has more than {most:,} bytes, and no more is read", path, fix)
    return data


def as_text(data: bytes, path: Path, fix: str) -> str:
    """UTF-8 as text whose lines end in newlines, without a byte order mark. Raises InputError for anything else."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not text (byte {error.object[error.start]:#04x} at offset {error.start} is no UTF-8)", path, fix
        ) from None
    if "\0" in text:
        before = text[: text.index("\0")]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise InputError("is not text (there is a NUL)", f"{path}:{line}:{column}", fix)
    if not text.strip():
        raise InputError("is empty", path, fix)
    return text
