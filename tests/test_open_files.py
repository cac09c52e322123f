"""A process that may open no more files: it says so, and takes nothing that it could not read for damaged."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from small import checkpoint

from hloracle.backends import environments
from hloracle.cli.main import invoke
from hloracle.core.cache import Entry, build_directory, is_whole, noting
from hloracle.core.errors import InputError
from hloracle.core.given import read_json, refuse_if_exhausted
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


@pytest.mark.parametrize("kind", [value, directory, truth, anchors, weights, given, archive, environment])
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
    "error", [ValueError("not JSON"), OSError("in words alone"), FileNotFoundError(2, "No such file"), EOFError()]
)
def test_other_errors_are_left_to_who_met_them(error: Exception) -> None:
    refuse_if_exhausted(error, "a file")


def test_safetensors_says_it_in_words() -> None:
    with pytest.raises(InputError, match=SAYS):
        refuse_if_exhausted(RuntimeError("I/O error: Too many open files (os error 24)"), "a file")
