"""Files of others: every one of them is refused in one line where it is too large, too deep, too long, or no file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hloracle.backends.command_file import read_commands
from hloracle.backends.custom_calls import open_targets
from hloracle.cli import main as cli
from hloracle.conformance.project.file import read_project
from hloracle.core.abi import Abi, Tensor
from hloracle.core.errors import InputError
from hloracle.core.given import DEEPEST, DIGITS, parse_json, read_bytes, read_json, read_toml
from hloracle.foreign.file import read_abi_file
from hloracle.ops.files import read_tests
from hloracle.ops.known import read_faults
from hloracle.production.generate import end_of_text
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import Adapted
from hloracle.reference.model.registry import config_json
from hloracle.reports.history.store import read as read_history
from hloracle.reports.record import load
from hloracle.versions.case import load_array

Reader = Callable[[Path], Any]


def of_directory(name: str, read: Reader) -> Reader:
    """A reader of a file with a name of its own, in a directory."""

    def given(path: Path) -> Any:
        path.rename(path.with_name(name))
        return read(path.parent)

    return given


JSON: dict[str, Reader] = {
    "an ABI": Abi.from_file,
    "a config": of_directory("config.json", config_json),
    "what generates": of_directory("generation_config.json", end_of_text),
    "a record": load,
    "a history": read_history,
}
TOML: dict[str, Reader] = {
    "an emitter's ABI": read_abi_file,
    "a project": read_project,
    "commands": read_commands,
    "known faults": read_faults,
}
DEEP = f"is nested more than {DEEPEST} deep"
LONG = f"holds a number of more than {DIGITS} digits"


def refused(read: Reader, path: Path) -> str:
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        read(path)
    assert time.monotonic() - started < 10
    line = str(caught.value)
    assert line.isprintable()
    return line


@pytest.mark.parametrize("kind", JSON)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 60_000, DEEP),
        (b'{"a":' * 10_000, DEEP),
        (b"[" * 60_000 + b"]" * 60_000, DEEP),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), DEEP),
        (b'{"a": %s}' % (b"9" * 5000), LONG),
        (b'{"a": [-1%s]}' % (b"0" * DIGITS), f"a[0] {LONG}"),
        (b'{"a": {"b": [1, 1e999]}}', "a.b[1] is inf, not a finite number"),
        (b'{"a": NaN}', "a is nan, not a finite number"),
        (b'{"a": {"b": 1, "b": 1}}', "a has the key 'b' twice"),
        (b"{", "is not JSON"),
        (b"\xff", "is not text"),
        (b'"\0"', "is not text"),
    ],
)  # fmt: skip
def test_json(kind: str, content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert words in refused(JSON[kind], path)


@pytest.mark.parametrize("kind", TOML)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = " + b"[" * 60_000, DEEP),
        (b"a" + b".a" * 30_000 + b" = 1", DEEP),
        (b"[a" + b' . "a"' * 10_000 + b"]", DEEP),
        (b'"a\\"b"' + b".a" * 30_000 + b" = 1", DEEP),
        (b"a = " + b"9" * 5000, LONG),
        (b"a = 0x" + b"f" * 5000, f"a {LONG}"),
        (b"a = ", "is not TOML"),
        (b"\xff", "is not text"),
        (b"", "is empty"),
    ],
)
def test_toml(kind: str, content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert words in refused(TOML[kind], path)


def test_what_is_within_the_bounds(tmp_path: Path) -> None:
    deep: Any = 10**DIGITS - 1
    for _ in range(DEEPEST):
        deep = [deep]
    path = tmp_path / "file"
    path.write_text(str(deep))
    assert read_json(path, 1000, "") == deep
    path.write_text("e = [nan, 1.5, 2024-01-01]\n'a.b'.c = 'x.y.z'\n")
    assert read_toml(path, 1000, "")["a.b"] == {"c": "x.y.z"}
    assert parse_json(b'\xef\xbb\xbf{"a": "\\ud800"}', "", "") == {"a": "\ud800"}


@pytest.mark.parametrize("kind", [*JSON, *TOML])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    """To open a pipe does not wait for somebody who writes to it."""
    path = tmp_path / "file"
    os.mkfifo(path)
    assert "is a pipe or a device, and neither is read" in refused((JSON | TOML)[kind], path)


def test_what_else_is_no_file(tmp_path: Path) -> None:
    assert "is a pipe or a device" in refused(lambda path: read_bytes(path, 9, "fix"), Path(os.devnull))
    assert "cannot be read (Is a directory)" in refused(lambda path: read_bytes(path, 9, "fix"), tmp_path)
    assert "is no name of a file" in refused(lambda path: read_bytes(path, 9, "fix"), Path("a\0b"))
    os.mkfifo(tmp_path / "hloracle.json")
    os.mkfifo(tmp_path / "pipe.gguf")
    pipe = tmp_path / "pipe.gguf"
    assert "is a pipe or a device" in refused(lambda path: resolve(str(path)), pipe)
    assert "is a pipe or a device" in refused(lambda path: open_targets([f"gemm={path}"]), pipe)
    assert "is a pipe or a device" in refused(lambda path: load_array(path, Tensor("token", "token", (), "i32")), pipe)
    assert cli.invoke(["ops", "--of", str(pipe)]) == 2
    assert Adapted.of(tmp_path) == Adapted()
    with pytest.raises(InputError, match="no such file or folder"):
        read_tests([tmp_path / "hloracle.json"])


@pytest.mark.parametrize("stops", ['"x"', "[[1]]", "[1, null]", "true", '{"a": 1}', "1.5"])
def test_stops_that_are_no_tokens(stops: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {stops}}}')
    assert "key 'eos_token_id' is neither" in refused(end_of_text, tmp_path)
