"""The cache: entries are whole or absent, built once, and a folder that cannot be written is named."""

from __future__ import annotations

import errno
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pytest

from hloracle.core import cache as store
from hloracle.core.child import run_in_child
from hloracle.core.errors import InputError
from hloracle.core.files import write_file
from hloracle.core.pool import run_each


def _leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def _refuse(error: int):
    def raise_it(*args: object, **kwargs: object) -> None:
        raise OSError(error, os.strerror(error))

    return raise_it


def test_cache_root_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HLORACLE_CACHE", "here")
    assert store.cache_root() == tmp_path / "here"
    monkeypatch.delenv("HLORACLE_CACHE")
    assert store.cache_root().name == "hloracle"


def test_digest_separates_its_parts() -> None:
    assert store.digest("ab", "c") != store.digest("a", "bc")
    assert store.digest("a") == store.digest(b"a")
    assert store.digest("") != store.digest()


def test_file_digest(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert store.file_digest(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_umask_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the whole process's: what another thread makes meanwhile would be anyone's to write to."""
    (tmp_path / "plain").mkdir()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("it is changed"))
    write_file(tmp_path / "file", "")
    entry = store.build_directory(tmp_path / "entry", lambda folder: None)
    assert entry.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "disk is full"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
    ],
)
@pytest.mark.parametrize("call", ["mkdir", "lock", "build", "replace"])
def test_build_directory_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str, call: str
) -> None:
    owner = {
        "mkdir": (Path, "mkdir"),
        "lock": (filelock.FileLock, "acquire"),
        "replace": (os, "replace"),
    }
    build = _refuse(code) if call == "build" else lambda folder: None
    if call in owner:
        monkeypatch.setattr(*owner[call], _refuse(code))
    with pytest.raises(InputError, match=words) as caught:
        store.build_directory(tmp_path / "entry", build)
    assert str(tmp_path / "entry") in str(caught.value)
    monkeypatch.undo()
    assert _leftovers(tmp_path) == []


@pytest.mark.parametrize("path", ["file/entry", "file/deeper/entry"])
def test_a_file_where_a_folder_should_be(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        store.build_directory(tmp_path / path, lambda folder: None)
    with pytest.raises(InputError, match="cannot be written"):
        write_file(tmp_path / path, "")


def test_other_errors_keep_their_kind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No child processes"):
        store.build_directory(tmp_path / "entry", _refuse(errno.ECHILD))


def test_build_directory_builds_once(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        assert not any(folder.iterdir())
        assert not (tmp_path / "entry").exists()
        (folder / "part").write_text("whole")

    assert store.build_directory(tmp_path / "entry", build) == tmp_path / "entry"
    assert store.build_directory(tmp_path / "entry", _refuse(errno.EIO)) == tmp_path / "entry"
    assert (tmp_path / "entry" / "part").read_text() == "whole"
    assert _leftovers(tmp_path) == ["entry"]


def test_build_directory_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.build_directory(tmp_path / "entry", build)
    assert _leftovers(tmp_path) == []
    assert _leftovers(store.build_directory(tmp_path / "entry", lambda folder: None)) == [store.SEAL]


BUILDER = """
import os, sys, time
from pathlib import Path
from hloracle.core.cache import build_directory
entry, log, end = map(str, sys.argv[1:])

def build(folder):
    with open(log, "a") as f:
        f.write("built\\n")
    (folder / "part").write_text("half")
    time.sleep(0.3)
    if end == "die":
        os._exit(9)
    (folder / "part").write_text("whole")

print((build_directory(Path(entry), build) / "part").read_text())
"""


def _builder(tmp_path: Path, end: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "entry"), str(tmp_path / "log"), end]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_build_one_entry_once(tmp_path: Path) -> None:
    processes = [_builder(tmp_path, "finish") for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["whole"] * 3
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_process_that_dies_leaves_no_entry(tmp_path: Path) -> None:
    process = _builder(tmp_path, "die")
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert not (tmp_path / "entry").exists()
    assert _builder(tmp_path, "finish").communicate(timeout=60)[0].strip() == "whole"
    assert (tmp_path / "log").read_text() == "built\nbuilt\n"


# ---- an entry


@dataclass(frozen=True)
class Kept:
    """Something that is kept."""

    name: str
    numbers: list[float | None]


KEPT = Kept("a\ud800", [1.0, None, math.inf])


def entry_of(key: str = "0" * 40, of: Any = Kept, **how: bool) -> store.Entry[Any]:
    return store.Entry("kept", key, of, **how)


def sealed(text: str) -> str:
    return f"{store.digest('kept', '0' * 40, text)}\n{text}"


def test_an_entry_is_made_once(empty_cache: Path) -> None:
    entry = entry_of()
    assert entry.load() is None
    assert entry.get(lambda: KEPT) == (KEPT, False)
    assert entry.get(lambda: pytest.fail("it is there")) == (KEPT, True)
    assert entry.path.parent == empty_cache / "kept"
    assert entry_of("1" * 40).load() is None


def test_a_false_value_is_a_value(empty_cache: Path) -> None:
    assert entry_of(of=bool).get(lambda: False) == (False, False)
    assert entry_of(of=bool).get(lambda: True) == (False, True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole.replace("1.0", "2.0"),  # its seal is of another text
        lambda whole: "0" * 64 + whole[64:],
        lambda whole: whole[:-3],
        lambda whole: whole.partition("\n")[2],  # no seal
        lambda whole: "",
        lambda whole: "{}",
        lambda whole: sealed("{}"),
        lambda whole: sealed("[]"),
        lambda whole: sealed("null"),
        lambda whole: sealed('{"name": 3, "numbers": []}'),
        lambda whole: sealed('{"name": "n", "numbers": ["many"]}'),
        lambda whole: sealed("not JSON"),
        lambda whole: sealed("[" * 100_000),
        lambda whole: sealed("[" * 100_000 + "]" * 100_000),
        lambda whole: sealed('{"name": "n", "numbers": ' + "[" * 5000 + "]" * 5000 + "}"),
    ],
)
def test_an_entry_that_is_not_whole_is_made_anew(damage: Callable[[str], str], empty_cache: Path) -> None:
    entry = entry_of()
    entry.save(Kept("old", [1.0]))
    entry.path.write_text(damage(entry.path.read_text()))
    assert entry.load() is None
    assert entry.get(lambda: KEPT) == (KEPT, False)
    assert entry.load() == KEPT


@pytest.mark.parametrize("content", [b"\xff\xfe\n{}", b"\x00" * 100])
def test_an_entry_that_is_no_text(content: bytes, empty_cache: Path) -> None:
    entry = entry_of()
    entry.save(KEPT)
    entry.path.write_bytes(content)
    assert entry.load() is None


@pytest.mark.parametrize(
    "replace",
    [
        lambda path: (path.mkdir(), (path / "file").write_text("x")),
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to(path.name),
    ],
)
def test_something_else_in_the_place_of_an_entry(replace: Callable[[Path], object], empty_cache: Path) -> None:
    """A folder, which a file cannot take the place of; a link, through which it would be written elsewhere."""
    entry = entry_of()
    entry.save(KEPT)
    entry.path.unlink()
    replace(entry.path)
    with store.noting() as found:
        assert entry.get(lambda: KEPT) == (KEPT, False)
    assert found == [store.entry_name(entry.path)]
    assert entry.load() == KEPT
    assert [path.name for path in entry.path.parent.iterdir()] == [entry.path.name]


def test_an_entry_of_another_type_is_none(empty_cache: Path) -> None:
    """As when the code of the type has changed: the key is the same, the value is not."""
    entry_of(of=list[int]).save([1, 2])
    assert entry_of().load() is None
    assert entry_of(of=list[str]).load() is None
    assert entry_of(of=list[int]).load() == [1, 2]


def test_an_entry_that_is_not_read_or_not_written(empty_cache: Path) -> None:
    entry_of(writes=False).save(KEPT)
    assert not entry_of().path.exists()
    assert entry_of().get(lambda: KEPT, keep=lambda value: value.name == "") == (KEPT, False)
    assert not entry_of().path.exists()
    entry_of().save(KEPT)
    assert entry_of(reads=False).load() is None
    assert entry_of(reads=False).get(lambda: Kept("new", [])) == (Kept("new", []), False)
    assert entry_of().load() == Kept("new", [])


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-3], lambda whole: "", lambda whole: whole.replace("1.0", "2.0")]
)
def test_who_listens_is_told_of_damage(damage: Callable[[str], str], empty_cache: Path) -> None:
    entry = entry_of()
    with store.noting() as none:
        entry.get(lambda: KEPT)  # there is none yet
        entry.save(Kept("old", [1.0]))
        entry.get(lambda: KEPT)
        entry_of(of=list[int]).get(lambda: [1])  # by other code
    entry.save(Kept("old", [1.0]))
    entry.path.write_text(damage(entry.path.read_text()))
    with store.noting() as found:
        entry.get(lambda: KEPT)
        entry.get(lambda: KEPT)
    assert (none, found) == ([], [store.entry_name(entry_of().path)])


def test_an_entry_in_the_place_of_another_is_none(empty_cache: Path) -> None:
    entry_of().save(KEPT)
    os.replace(entry_of().path, entry_of("1" * 40).path)
    with store.noting() as found:
        assert entry_of("1" * 40).load() is None
    assert found == [store.entry_name(entry_of("1" * 40).path)]


# ---- an entry that is a directory


def in_directory(folder: Path) -> None:
    (folder / "part").write_text("whole")
    (folder / "empty").write_text("")
    (folder / "deep").mkdir()
    (folder / "deep" / "part").write_text("whole")
    (folder / "link").symlink_to("part")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "part").write_text("whele"),
        lambda folder: (folder / "deep" / "part").write_text("who"),
        lambda folder: (folder / "empty").write_text("x"),
        lambda folder: (folder / "empty").unlink(),
        lambda folder: (folder / "more").write_text(""),
        lambda folder: ((folder / "link").unlink(), (folder / "link").symlink_to("empty")),
        lambda folder: (folder / store.SEAL).unlink(),
        lambda folder: (folder / store.SEAL).write_text(""),
        lambda folder: (folder / store.SEAL).write_text("[" * 100_000),
        lambda folder: (folder / store.SEAL).write_text("{}"),
        lambda folder: (shutil.rmtree(folder), folder.mkdir()),
        lambda folder: (shutil.rmtree(folder), folder.write_text("a file")),
        lambda folder: (shutil.rmtree(folder), folder.symlink_to("elsewhere")),
        # another entry, whole, in this one's place
        lambda folder: (
            shutil.rmtree(folder),
            os.replace(store.build_directory(folder.with_name("other"), in_directory), folder),
        ),
    ],
)
def test_a_directory_that_is_not_whole_is_made_anew(damage: Callable[[Path], object], empty_cache: Path) -> None:
    entry = empty_cache / "kept" / "entry"
    with store.noting() as none:
        store.build_directory(entry, in_directory)
        store.build_directory(entry, _refuse(errno.EIO))
    damage(entry)
    assert not store.is_whole(entry)
    with store.noting() as found:
        store.build_directory(entry, in_directory)
    assert (none, found) == ([], ["kept/entry"])
    assert (entry / "deep" / "part").read_text() == "whole"
    assert store.is_whole(entry)
    assert _leftovers(empty_cache / "kept") == ["entry"]


def test_what_a_link_leads_to_is_not_sealed(empty_cache: Path, tmp_path: Path) -> None:
    """Where a model stands for one of the user's, its files are links to what the user may change: that is another model."""
    (tmp_path / "users").write_text("one")
    entry = store.build_directory(
        empty_cache / "entry", lambda folder: (folder / "link").symlink_to(tmp_path / "users")
    )
    (tmp_path / "users").write_text("two")
    assert store.is_whole(entry)


def test_a_cache_that_is_moved_stays_whole(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.build_directory(empty_cache / "kept" / "entry", in_directory)
    entry_of().save(KEPT)
    shutil.copytree(empty_cache, tmp_path / "moved", symlinks=True)
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path / "moved"))
    assert store.is_whole(tmp_path / "moved" / "kept" / "entry")
    assert entry_of().load() == KEPT


def test_a_large_file_is_hashed_again_only_when_it_was_written_to(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LARGE", 5)
    monkeypatch.setattr(store, "SETTLED_NS", -1)
    entry, hashed = empty_cache / "kept" / "entry", []
    monkeypatch.setattr(store, "file_digest", lambda path: hashed.append(path.name) or path.read_text())
    store.build_directory(entry, in_directory)
    assert store.is_whole(entry)
    hashed.clear()
    assert store.is_whole(entry)
    assert hashed == ["empty"]
    (entry / "part").write_text("whele")
    assert not store.is_whole(entry)


def test_a_child_tells_of_damage(empty_cache: Path) -> None:
    entry_of(of=str).save("old")
    entry_of(of=str).path.write_text("")
    with store.noting() as found:
        assert run_in_child(_makes_anew, timeout=60).value == "new"
    assert found == [store.entry_name(entry_of().path)]


def test_a_pool_tells_of_damage(empty_cache: Path) -> None:
    entry_of(of=str).save("old")
    entry_of(of=str).path.write_text("")
    answers: list[object] = []
    with store.noting() as found:
        run_each(_makes_anew_of, [1, 2], 2, 60, lambda line: None, lambda item, answer, seconds: answers.append(answer))
    assert answers == ["new", "new"]
    assert found == [store.entry_name(entry_of().path)]


def _makes_anew(report: object) -> str:
    return str(entry_of(of=str).get(lambda: "new")[0])


def _makes_anew_of(report: object, item: int) -> str:
    return _makes_anew(report)
