"""A safetensors file that is written one tensor at a time: what is read back, and where data begins."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

from hloracle.reference.model.tensor_file import ALIGNMENT, DTYPES, write_tensors

# In an order in which sizes of whole multiples of ALIGNMENT bytes, and others, take turns.
TENSORS = {
    "odd": np.arange(15, dtype=np.int8).reshape(3, 5),
    "whole": np.arange(32, dtype=np.float32).reshape(4, 8),
    "narrow": np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 1, 32).astype(ml_dtypes.bfloat16),
    "odd narrow": np.linspace(-3, 3, 7, dtype=np.float32).astype(ml_dtypes.bfloat16),
    "nothing": np.zeros((0, 3), np.float32),
    "bytes": np.arange(192, dtype=np.uint8),
    "half": np.linspace(-3, 3, 96, dtype=np.float16).reshape(3, 32),
    "a \u540d": np.arange(16, dtype=np.int8),
}


def types(tensors: dict[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...]]]:
    names = {dtype: name for name, dtype in DTYPES.items()}
    return {name: (names[t.dtype], t.shape) for name, t in tensors.items()}


def offsets(path: Path) -> tuple[int, dict[str, tuple[int, int]]]:
    """Where data begins in the file, and of each tensor first and last byte of it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}, "which transformers asks for"
    return 8 + length, {name: tuple(entry["data_offsets"]) for name, entry in header.items()}


@pytest.mark.parametrize("names", [list(TENSORS), list(TENSORS)[::-1], ["odd"], ["whole"], []])
def test_what_safetensors_reads(names: list[str], tmp_path: Path) -> None:
    tensors, path = {name: TENSORS[name] for name in names}, tmp_path / "x.safetensors"
    write_tensors(path, types(tensors), tensors.__getitem__)
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)


def test_a_scalar(tmp_path: Path) -> None:
    scalar, path = np.array(2.5, np.float32), tmp_path / "x.safetensors"
    write_tensors(path, types({"scalar": scalar}), lambda name: scalar)
    assert load_file(path)["scalar"].shape == ()


def test_where_data_begins(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, types(TENSORS), TENSORS.__getitem__)
    start, found = offsets(path)
    aligned = [name for name, t in TENSORS.items() if t.nbytes % ALIGNMENT == 0]
    assert "half" in aligned
    assert "narrow" in aligned
    assert [name for name in found if (start + found[name][0]) % ALIGNMENT == 0][: len(aligned)] == aligned
    end = 0
    for name, (first, last) in found.items():
        assert (first, last - first) == (end, TENSORS[name].nbytes)
        end = last
    assert path.stat().st_size == start + end


def test_each_tensor_is_asked_for_once(tmp_path: Path) -> None:
    """And written before the next one is, so that one at a time is in memory."""
    path, asked = tmp_path / "x.safetensors", []

    def tensor(name: str) -> np.ndarray:
        asked.append(name)
        return TENSORS[name]

    write_tensors(path, types(TENSORS), tensor)
    assert asked == list(offsets(path)[1])
    assert sorted(asked) == sorted(TENSORS)


@pytest.mark.parametrize("layout", [lambda t: np.asfortranarray(t), lambda t: np.repeat(t, 2, 0)[::2]])
def test_tensors_of_any_layout(layout: object, tmp_path: Path) -> None:
    tensor = TENSORS["half"]
    write_tensors(tmp_path / "x.safetensors", types({"half": tensor}), lambda name: layout(tensor))  # type: ignore[operator]
    np.testing.assert_array_equal(load_file(tmp_path / "x.safetensors")["half"], tensor)


@pytest.mark.parametrize("other", [TENSORS["odd"].T, TENSORS["odd"].astype(np.uint8), TENSORS["odd"][:2]])
def test_another_tensor_than_was_said(other: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"odd is .* not"):
        write_tensors(tmp_path / "x.safetensors", types({"odd": TENSORS["odd"]}), lambda name: other)


def test_sizes_are_those_of_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {name: (name, (4,)) for name in DTYPES}, lambda name: np.zeros(4, DTYPES[name]))
    with safetensors.safe_open(path, "np") as f:
        assert {name: f.get_slice(name).get_dtype() for name in f.keys()} == {name: name for name in DTYPES}  # noqa: SIM118
