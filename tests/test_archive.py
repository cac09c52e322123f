"""Archives of weights, mapped; and digests of files that are not read twice."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest
from nightly import only

from hloracle.backends.iree import ALIGNMENT, IreeCpu
from hloracle.backends.session import Session
from hloracle.core import cache as store
from hloracle.core.cache import file_digest, known_digest
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model import archive
from hloracle.reference.model.archive import archive_of, open_archive
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.encodings import PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_weight_is_as_the_checkpoint_gives_it(precision: str) -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama", precision=precision))
    graph = emit(checkpoint.config, "decode", "token", 32, 0, checkpoint.layout(precision))
    found = archive_of(checkpoint, graph.abi.weights)
    for weight in graph.abi.weights:
        got, expected = found.load(weight.name), checkpoint.load(weight.name)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.tobytes() == expected.tobytes()


def test_it_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(resolve("tiny-qwen2"))
    weights = emit(checkpoint.config, "decode", "token", 32, 0, checkpoint.layout("f32")).abi.weights
    first = archive_of(checkpoint, weights)
    monkeypatch.setattr(archive, "write_tensors", None)
    assert archive_of(checkpoint, weights).path == first.path
    with pytest.raises(TypeError):
        archive_of(checkpoint, weights[:-1])


def test_what_is_written_to_a_loaded_weight_stays_in_this_process() -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama"))
    weights = emit(checkpoint.config, "decode", "token", 32, 0, checkpoint.layout("f32")).abi.weights
    name = weights[0].name
    archive_of(checkpoint, weights).load(name)[:] = 0
    assert np.any(archive_of(checkpoint, weights).load(name))


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:100], lambda b: b"", lambda b: b"\xff" * len(b)])
def test_damage_is_refused(damage: object, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama"))
    weights = emit(checkpoint.config, "decode", "token", 32, 0, checkpoint.layout("f32")).abi.weights
    path = tmp_path / "weights.safetensors"
    path.write_bytes(damage(archive_of(checkpoint, weights).path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(InputError, match=r"weights\.safetensors: is (damaged|cut short).*; remove it, and run again"):
        open_archive(path)


def test_a_damaged_archive_is_made_anew(empty_cache: Path) -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama"))
    weights = emit(checkpoint.config, "decode", "token", 32, 0, checkpoint.layout("f32")).abi.weights
    path = archive_of(checkpoint, weights).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert archive_of(checkpoint, weights).path.read_bytes() == whole


@pytest.mark.parametrize("precision", only(["int4"], ["f32", "bf16", "int4"]))
def test_a_session_on_mapped_weights_says_the_same(precision: str) -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama", precision=precision))
    layout = checkpoint.layout(precision)
    graphs = [emit(checkpoint.config, "decode", "token", 32, 0, layout)]
    graphs.append(emit(checkpoint.config, "prefill", "token", 32, 32, layout))
    loads = (checkpoint.load, archive_of(checkpoint, graphs[0].abi.weights).load)
    texts = [list(Session(IreeCpu(2), graphs, load).generate_streaming_greedy([5, 6, 7], 8)) for load in loads]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("offset", [0, 1, 15])
def test_an_array_is_kept_in_place_where_it_is_aligned(offset: int) -> None:
    iree = IreeCpu(2)
    memory = np.zeros(256 + ALIGNMENT // 4, np.float32)
    begin = (-memory.ctypes.data % ALIGNMENT) // 4 + offset
    array = memory[begin : begin + 128]
    array[:] = np.arange(128)
    held = iree.keep(array)
    array[0] = 7
    assert iree.download(held)[0] == (0 if offset else 7)
    assert np.array_equal(iree.download(held)[1:], np.arange(1, 128))


def test_what_may_not_be_written_to_is_copied() -> None:
    iree = IreeCpu(2)
    array = np.arange(64, dtype=np.float32)
    array.flags.writeable = False
    assert np.array_equal(iree.download(iree.keep(array)), array)
    assert np.array_equal(
        iree.download(iree.keep(np.arange(64.0, dtype=np.float32).reshape(8, 8).T)), np.arange(64).reshape(8, 8).T
    )


# ---- digests


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that was not written to for a while."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    return path


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SETTLED_NS", -1)


def test_a_file_is_read_once(old: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = file_digest(old)
    assert known_digest(old) == expected
    monkeypatch.setattr(store, "file_digest", None)
    assert known_digest(old) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"two"),
        lambda path: (path.unlink(), path.write_bytes(b"two")),
        lambda path: (path.with_name("other").write_bytes(b"two"), os.replace(path.with_name("other"), path)),
    ],
    ids=["written to", "written anew", "replaced"],
)
def test_another_content_is_seen(change: object, old: Path, empty_cache: Path) -> None:
    before = known_digest(old)
    state = old.stat()
    time.sleep(0.02)
    change(old)  # type: ignore[operator]
    os.utime(old, ns=(state.st_atime_ns, state.st_mtime_ns))  # as `cp -p` does; the change time it cannot set
    assert known_digest(old) == file_digest(old) != before


def test_what_was_just_written_is_read_again(old: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SETTLED_NS", 2_000_000_000)
    known_digest(old)
    assert not list(empty_cache.rglob("digests/*"))


def test_where_it_cannot_be_kept_it_is_read_each_time(
    old: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that can only be read holds all that a run needs, but for this."""

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", read_only)
    assert [known_digest(old), known_digest(old)] == [file_digest(old)] * 2


def test_a_damaged_entry_is_read_again(old: Path, empty_cache: Path) -> None:
    expected = known_digest(old)
    (entry,) = (empty_cache / "digests").iterdir()
    for damage in ("", "{}", "[]", f"\n{expected}", entry.read_text().replace(expected, expected[::-1])):
        entry.write_text(damage)
        assert known_digest(old) == expected
