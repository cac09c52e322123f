"""A process that may open no more files: it says so, and takes nothing that it could not read for damaged."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gguf_files import write_gguf
from small import checkpoint

from hloracle.backends import environments
from hloracle.cli.main import invoke
from hloracle.conformance.context import Context
from hloracle.conformance.graphs.sources import oracle_of
from hloracle.core import scratch
from hloracle.core.cache import Entry, build_directory, is_whole, noting
from hloracle.core.environment import host_cpu
from hloracle.core.errors import InputError
from hloracle.core.files import below
from hloracle.core.folder import refuse_other
from hloracle.core.given import MORE, read_json, refuse_if_exhausted
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.gguf import _open_gguf
from hloracle.reference.huggingface.anchor_truth import AnchorTruth, anchor_truth
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.archive import open_archive, write_tensors

SAYS = r"cannot be read \(too many open files\); end other programs, or allow more open files and memory"


@contextmanager
def no_more_files() -> Iterator[None]:
    """No file can be opened while this holds: stdin, stdout and stderr are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def value(folder: Path) -> Callable[[], object]:
    entry: Entry[str] = Entry("digests", "a key", str)
    entry.save("a value")
    return entry.load


def directory(folder: Path) -> Callable[[], object]:
    built = build_directory(folder / "built", lambda new: (new / "file").write_text("text"))
    return lambda: is_whole(built)


def truth(folder: Path) -> Callable[[], object]:
    return lambda: truths(checkpoint(), [[1, 2, 3]], 2)


def anchors(folder: Path) -> Callable[[], object]:
    found = anchor_truth(checkpoint(), [1, 2, 3])
    return lambda: AnchorTruth(found.tokens, found.folder, True).noise("norm")


def weights(folder: Path) -> Callable[[], object]:
    return lambda: checkpoint().load("model.norm.weight")


def given(folder: Path) -> Callable[[], object]:
    (folder / "config.json").write_text("{}")
    return lambda: read_json(folder / "config.json", 100, "write one")


def archive(folder: Path) -> Callable[[], object]:
    write_tensors(folder / "weights", {"w": ("F32", (3,))}, lambda name: np.ones(3, np.float32))
    return lambda: open_archive(folder / "weights")


def environment(folder: Path) -> Callable[[], object]:
    (folder / environments.SEAL).write_text(environments._state(folder))
    return lambda: environments._whole(folder)


def gguf(folder: Path) -> Callable[[], object]:
    path = folder / "model.gguf"
    write_gguf(path)
    return lambda: _open_gguf(path)


def reproducer(folder: Path) -> Callable[[], object]:
    (folder / "reproducer").mkdir()
    (folder / "reproducer" / "subgraph.mlir").write_text("module {}")
    return lambda: refuse_other(folder / "reproducer") or True


KINDS = [value, directory, truth, anchors, weights, given, archive, environment, gguf, reproducer]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_no_damage(
    kind: Callable[[Path], Callable[[], object]], empty_cache: Path, tmp_path: Path
) -> None:  # fmt: skip
    read = kind(tmp_path)
    assert read() is not None  # and what it imports is there
    with noting() as damaged:
        with no_more_files(), pytest.raises(InputError, match=SAYS):
            read()
        assert read() is not None
    assert damaged == []


def test_a_folder_that_cannot_be_listed_is_not_left_out(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """From Python 3.12 on, Path.rglob passes over it."""
    whole, installed = directory(tmp_path), environment(tmp_path)

    def scandir(path: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch, noting() as damaged:
        patch.setattr(os, "scandir", scandir)
        for read in (whole, installed):
            with pytest.raises(InputError, match=SAYS):
                read()
    assert damaged == []
    assert whole()
    assert installed()


def test_what_is_below_a_folder(tmp_path: Path) -> None:
    for name in ("b/c/d", "a", "b/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "b" / "link").symlink_to(tmp_path)
    assert below(tmp_path) == sorted(tmp_path.rglob("*"))
    assert [path.relative_to(tmp_path).as_posix() for path in below(tmp_path)] == [
        "a",
        "b",
        "b/a",
        "b/c",
        "b/c/d",
        "b/link",
    ]


@pytest.mark.parametrize("fails", ["open", "flock"])
def test_a_scratch_folder_that_cannot_be_locked(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up at the first one, and nothing is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def refused(*arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(*((scratch.os, "open") if fails == "open" else (scratch.fcntl, "flock")), refused)
        with pytest.raises(OSError, match="Too many open files"):
            scratch.Scratch()
    assert list(tmp_path.iterdir()) == []


def test_an_oracle_that_cannot_be_read_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the emitter would be told that there is no graph to compare its own with."""
    config = checkpoint().config
    graphs = [emit(config, "decode", "logits", 32), emit(config, "prefill", "logits", 32, 32)]
    assert len(oracle_of(Context(), graphs, config)[0]) == 2

    def load(entry: Entry[str]) -> str:
        raise InputError("cannot be read (too many open files)", entry.path, MORE)

    monkeypatch.setattr(Entry, "load", load)
    with pytest.raises(InputError, match=SAYS):
        oracle_of(Context(), graphs, config)


def test_this_processors_name_is_not_guessed() -> None:
    """It names what was compiled for it."""
    host_cpu.cache_clear()
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        host_cpu()
    assert host_cpu()


def test_a_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "decode.mlir"
    assert invoke(["emit", "tiny-llama", "--phase", "decode", "-o", str(graph)]) == 0
    capsys.readouterr()
    with no_more_files():
        assert invoke(["emit", "tiny-llama", "--phase", "decode", "-o", str(graph)]) == 2
    said = capsys.readouterr().err
    assert "oo many open files" in said
    assert "end other programs, or allow more" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"), [(256, 4096, 1024), (256, 512, 512), (2000, 4096, 2000), (100, 100, 100)]
)
def test_a_program_asks_for_as_many_as_it_needs(soft: int, hard: int, allowed: int) -> None:
    script = f"""
import resource
from hloracle.core.program import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), str(hard)]


@pytest.mark.parametrize(
    "error", [ValueError("not JSON"), OSError("in words alone"), FileNotFoundError(2, "No such file"), EOFError()]
)
def test_other_errors_are_left_to_who_met_them(error: Exception) -> None:
    refuse_if_exhausted(error, "a file")


def test_safetensors_says_it_in_words() -> None:
    with pytest.raises(InputError, match=SAYS):
        refuse_if_exhausted(RuntimeError("I/O error: Too many open files (os error 24)"), "a file")
