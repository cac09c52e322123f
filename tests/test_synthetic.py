"""Checkpoints of published shapes with random weights: the same every time, written with one tensor in memory."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from hloracle.core.errors import InputError
from hloracle.reference.fixtures import named as fixtures
from hloracle.reference.fixtures import synthetic
from hloracle.reference.fixtures.named import FIXTURES, resolve
from hloracle.reference.fixtures.synthetic import SYNTHETIC, write_synthetic
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import stored_shapes

SMALL = {
    **SYNTHETIC["synthetic-llama-1b"], "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 320,
}  # fmt: skip


def weights(directory: Path) -> dict[str, np.ndarray]:
    return dict(open_checkpoint(directory).weights())


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("synthetic-llama-135m", 134_515_008),
        ("synthetic-llama-1b", 1_235_814_400),
        ("synthetic-llama-3b", 3_212_749_824),
    ],
)
def test_as_many_parameters_as_the_published_model(name: str, published: int) -> None:
    assert FIXTURES[name].parameters == published
    assert FIXTURES[name].size == 0


def test_every_weight_hangs_on_its_name_alone(tmp_path: Path) -> None:
    one, same = (weights(write_synthetic(tmp_path / name, SMALL)) for name in ("one", "same"))
    fewer = weights(write_synthetic(tmp_path / "fewer", {**SMALL, "num_hidden_layers": 2}))
    assert one.keys() > fewer.keys()
    for name, weight in one.items():
        np.testing.assert_array_equal(weight, same[name])
        if name in fewer:
            np.testing.assert_array_equal(weight, fewer[name], err_msg="other weights came before it")
    gate, up = (one[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up"))
    assert not np.array_equal(gate, up)


def test_what_is_drawn_in_pieces_is_what_is_drawn_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weights(write_synthetic(tmp_path / "whole", SMALL))
    monkeypatch.setattr(synthetic, "CHUNK", 1000)
    pieces = weights(write_synthetic(tmp_path / "pieces", SMALL))
    for name, weight in whole.items():
        np.testing.assert_array_equal(weight, pieces[name], err_msg=name)


def test_no_more_than_one_tensor_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CHUNK", 1 << 12)
    raw = {**SMALL, "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 4096}
    sizes = [2 * math.prod(shape) for shape in stored_shapes(from_hf(raw)).values()]
    tracemalloc.start()
    write_synthetic(tmp_path, raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(sizes) <= peak < 1.5 * max(sizes) < 0.3 * sum(sizes)


def test_values_are_of_the_scale_that_keeps_a_model_finite(tmp_path: Path) -> None:
    found = weights(write_synthetic(tmp_path, SMALL))
    assert found["model.norm.weight"].mean() == pytest.approx(1, abs=0.2)
    assert found["model.layers.0.mlp.up_proj.weight"].std() == pytest.approx(1 / 8, rel=0.05)
    assert found["model.layers.1.mlp.down_proj.weight"].std() == pytest.approx(2 / 96**0.5, rel=0.05)


def test_transformers_loads_it_and_its_logits_are_finite(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    directory = write_synthetic(tmp_path, SMALL)
    with safetensors.safe_open(directory / "model.safetensors", "np") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    with torch.no_grad():
        logits = model(torch.arange(40)[None]).logits
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.1


def test_by_name(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"synthetic-llama-1b": SMALL}
    monkeypatch.setattr(fixtures, "SYNTHETIC", small)
    said: list[str] = []
    directory = resolve("synthetic-llama-1b", said.append)
    assert directory.parent == empty_cache / "models"
    assert said == ["writing synthetic-llama-1b (2.5 GB)"]
    assert resolve("synthetic-llama-1b", said.append) == directory
    assert len(said) == 1
    small["synthetic-llama-1b"] = {**SMALL, "vocab_size": 336}
    assert resolve("synthetic-llama-1b", said.append) != directory, "another config is another checkpoint"


@pytest.mark.parametrize("name", ["synthetic-llama-5b", "synthetic-", "synthetic-llama-1B"])
def test_a_name_that_is_none_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match="no such model; name a checkpoint directory") as caught:
        resolve(name)
    assert "\n" not in str(caught.value)
    assert "synthetic-llama-1b" in str(caught.value)
