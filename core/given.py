"""Files that somebody else wrote: what is read of them is bounded, and what cannot be read is refused in one line.

Every reader of such a file stands on this one. It bounds the bytes of a file, the depth of what is nested in it and the
digits of its numbers, so that nothing behind it has to.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hloracle.core.errors import InputError
from hloracle.core.shown import path_words, quoted, shown

# Lists and objects in one another: no form that is read has 20, and Python gives up at some hundreds.
DEEPEST = 100
# Of an integer: files of tokenizers have 1000000000000000019884624838656 for what has no limit. Python itself reads 4300.
DIGITS = 40
# Of this process or this machine, which has no more of something, and not of the file.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
MORE = "end other programs, or allow more open files and memory (ulimit -a)"
SPECIAL = "is a pipe or a device, and neither is read"
TOO_DEEP = f"is nested more than {DEEPEST} deep"
TOO_LONG = f"holds a number of more than {DIGITS} digits"
# More names joined by dots than DEEPEST, each of which is a table in TOML: its reader takes minutes for a file of them.
_NAME = r"""(?:[\w-]++|"(?:\\.|[^"\\\n])*+"|'[^'\n]*+')"""
_DOTTED = re.compile(rf"(?<![\w.-])(?:{_NAME}[ \t]*+\.[ \t]*+){{{DEEPEST}}}+")


def read_bytes(path: Path, most: int, fix: str) -> bytes:
    """What a file holds. Raises InputError where it cannot be read, or holds more than `most` bytes.

    A pipe or a device is refused: nothing may ever come out of it, or no end.
    """
    with opened(path, fix) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"has more than {most:,} bytes, and no more is read", path, fix)
    return data


@contextmanager
def opened(path: Path, fix: str) -> Iterator[IO[bytes]]:
    """A file to be read, piece by piece. Raises InputError as `read_bytes` does, also while it is read."""
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(SPECIAL, path, fix)
            yield file
    except FileNotFoundError:
        raise InputError("no such file", path, fix) from None
    except OSError as error:
        refuse_if_exhausted(error, path)
        raise InputError(f"cannot be read ({error.strerror})", path, fix) from None
    except ValueError:  # what no system call takes, such as a NUL
        raise InputError("is no name of a file", path, fix) from None


def _open(path: str, flags: int) -> int:
    """To open a pipe would else wait for somebody who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def refuse_if_exhausted(error: BaseException, path: object) -> None:
    """Raises InputError if a file could not be read for want of open files or memory: of the file itself nothing is known then.

    To be called before an error of reading is taken for a damaged or missing file.
    """
    code = code_of(error)
    if code in EXHAUSTED:
        raise InputError(f"cannot be read ({os.strerror(code).lower()})", path, MORE) from error


def code_of(error: BaseException) -> int | None:
    """The system's error. safetensors, which is written in Rust, gives it in words: `... (os error 28)`."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    words = re.search(r"\(os error (\d+)\)", str(error))
    return int(words[1]) if words else None


def refuse_special(path: Path, fix: str) -> None:
    """Raises InputError for a pipe or a device, of which somebody else's code would wait for what comes out."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(SPECIAL, path, fix)


def as_text(data: bytes, where: object, fix: str) -> str:
    """UTF-8 as text whose lines end in newlines, without a byte order mark. Raises InputError for anything else."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not text (byte {error.object[error.start]:#04x} at offset {error.start} is no UTF-8)", where, fix
        ) from None
    if "\0" in text:
        before = text[: text.index("\0")]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise InputError("is not text (there is a NUL)", f"{where}:{line}:{column}", fix)
    if not text.strip():
        raise InputError("is empty", where, fix)
    return text


def read_json(path: Path, most: int, fix: str, form: str = "") -> Any:
    """The value of a JSON file of at most so many bytes. Raises InputError as `read_bytes` and `parse_json` do.

    Args:
      fix: what to do about a file that cannot be read. form: and about one that can and is wrong; the same if not given.
    """
    return parse_json(read_bytes(path, most, fix), path, form or fix)


def parse_json(data: bytes, where: object, fix: str) -> Any:
    """The value that JSON stands for. Raises InputError that says of `where` what is wrong with it.

    That is also a key that stands twice in an object, and a number that is not finite.
    """
    return _value(_json, as_text(data, where, fix), where, fix)


def read_toml(path: Path, most: int, fix: str, form: str = "") -> dict[str, Any]:
    """The table of a TOML file; all else as of `read_json`."""
    form = form or fix
    found: dict[str, Any] = _value(_toml, as_text(read_bytes(path, most, fix), path, form), path, form)
    return found


class _Refused(ValueError):
    """What a file holds and should not. path: where, from the outermost key or index on."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.path = what, list[str | int]()

    def __str__(self) -> str:
        return f"{path_words(self.path)} {self.what}".lstrip()


def _value(parse: Callable[[str], Any], text: str, where: object, fix: str) -> Any:
    try:
        value = parse(text)
        _look(value, DEEPEST, finite=parse is _json)
    except _Refused as refused:
        what = str(refused)
    except RecursionError:
        what = TOO_DEEP
    except ValueError:  # beyond what Python itself reads
        what = TOO_LONG
    else:
        return value
    raise InputError(what, where, fix)


def _look(value: Any, deepest: int, finite: bool) -> None:
    """Raises _Refused, or RecursionError, for what a value may not hold."""
    if isinstance(value, float):
        if finite and not math.isfinite(value):
            raise _Refused(f"is {value}, not a finite number")
    elif isinstance(value, int):
        if abs(value) >= 10**DIGITS:
            raise _Refused(TOO_LONG)
    elif isinstance(value, dict | list):
        if not deepest:
            raise RecursionError
        if isinstance(value, _Twice):
            raise _Refused(f"has the key {quoted(value.key)} twice")
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                _look(inner, deepest - 1, finite)
            except _Refused as refused:
                refused.path.insert(0, key)
                raise


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object_of)
    except json.JSONDecodeError as error:
        raise _Refused(f"is not JSON ({error.msg}: line {error.lineno}, column {error.colno})") from None


class _Twice(dict[str, Any]):
    """An object with a key that stands in it twice."""

    key = ""


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = dict(pairs)
    if len(found) < len(pairs):
        found = _Twice(found)
        found.key = Counter(key for key, _ in pairs).most_common(1)[0][0]
    return found


def _toml(text: str) -> dict[str, Any]:
    if _DOTTED.search(text):
        raise RecursionError
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _Refused(f"is not TOML ({shown(str(error))})") from None
