"""How files hold the weights that graphs take as one: in slices, joined, and what is left out of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.model.weights import stored, stored_shapes, weight_shapes

SLICED = [architecture for architecture in FAMILIES if stored(from_hf(TINY[architecture]))]
BY_EXPERT = [a for a in SLICED if from_hf(TINY[a]).experts]
# A stored expert of the last layer, and the half of what graphs take that it is.
EXPERT = {
    "mixtral": "model.layers.1.block_sparse_moe.experts.3.w3.weight",
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3"), "model.layers.1.mlp.experts.3.up_proj.weight"),
}  # fmt: skip


def _edit(directory: Path, **changes: np.ndarray | None) -> None:
    """Replace, add or (None) remove tensors."""
    path = directory / "model.safetensors"
    weights = {**load_file(path), **changes}
    save_file({name: weight for name, weight in weights.items() if weight is not None}, path)


def test_families_that_store_slices() -> None:
    assert set(BY_EXPERT) == EXPERT.keys()
    assert set(SLICED) - set(BY_EXPERT) == {"stablelm"}, "whose heads have norms of their own"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_as_many_numbers_are_stored_as_are_taken(architecture: str) -> None:
    config = from_hf(TINY[architecture])
    taken, held = weight_shapes(config), stored_shapes(config)
    assert sum(map(np.prod, taken.values())) == sum(map(np.prod, held.values()))
    assert taken.keys() - stored(config).keys() == taken.keys() & held.keys()


@pytest.mark.parametrize("architecture", BY_EXPERT)
def test_slices_and_joined_weights_are_the_same(architecture: str, tmp_path: Path) -> None:
    """Files with one tensor for each expert, and with those that transformers' own modules have."""
    directory = write_tiny(tmp_path / "slices", architecture)
    checkpoint = open_checkpoint(directory)
    sliced = dict(checkpoint.weights())
    found = load_file(directory / "model.safetensors")
    assert EXPERT[architecture] in found
    joined = tmp_path / "joined"
    joined.mkdir()
    (joined / "config.json").write_bytes((directory / "config.json").read_bytes())
    save_file(sliced, joined / "model.safetensors")
    assert not any(re.search(r"experts\.\d", name) for name in sliced)
    for name, weight in open_checkpoint(joined).weights():
        np.testing.assert_array_equal(weight, sliced[name])
    # Gates first, then values, in the order of the experts; a square or a transposed one would not fit.
    up = found[EXPERT[architecture]]
    name = next(n for n in sliced if n.startswith("model.layers.1.") and n.endswith("experts.gate_up_proj"))
    np.testing.assert_array_equal(sliced[name][3, len(up) :], up)
    gate = EXPERT[architecture].replace("w3", "w1").replace("up_proj", "gate_proj")
    np.testing.assert_array_equal(sliced[name][3, : len(up)], found[gate])


@pytest.mark.parametrize("architecture", BY_EXPERT)
def test_both_forms_are_what_transformers_loads(architecture: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    directory = write_tiny(tmp_path, architecture)
    theirs = AutoModelForCausalLM.from_pretrained(directory).state_dict()
    for name, weight in open_checkpoint(directory).weights():
        np.testing.assert_array_equal(theirs[name].numpy(), weight, err_msg=name)


def test_norms_of_heads_are_stacked(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, "stablelm")
    found = load_file(directory / "model.safetensors")
    weight = open_checkpoint(directory).load("model.layers.1.self_attn.q_layernorm.weight")
    assert weight.shape == (6, 16)
    for head, row in enumerate(weight):
        np.testing.assert_array_equal(row, found[f"model.layers.1.self_attn.q_layernorm.norms.{head}.weight"])


PROBLEMS: list[tuple[Any, str]] = [
    (lambda weight: None, "missing {name};"),
    (lambda weight: weight[:, 1:].copy(), "{name} in model.safetensors is [{m}, {e1}], not [{m}, {e}];"),
    (lambda weight: weight.T.copy(), "{name} in model.safetensors is [{e}, {m}], not [{m}, {e}];"),
]


@pytest.mark.parametrize(("change", "words"), PROBLEMS, ids=["missing", "narrow", "transposed"])
@pytest.mark.parametrize("architecture", BY_EXPERT)
def test_an_expert_that_is_not_right_is_listed(architecture: str, change: Any, words: str, tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, architecture)
    name = EXPERT[architecture]
    weight = load_file(directory / "model.safetensors")[name]
    m, e = weight.shape
    _edit(directory, **{name: change(weight)})
    with pytest.raises(InputError) as caught:
        open_checkpoint(directory)
    assert words.format(name=name, m=m, e=e, e1=e - 1) in str(caught.value)
    assert str(caught.value).count("missing") == ("missing" in words)


@pytest.mark.parametrize("architecture", BY_EXPERT)
def test_one_expert_too_many(architecture: str, tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, architecture)
    name = re.sub(r"\.3\.", ".77.", EXPERT[architecture])
    _edit(directory, **{name: load_file(directory / "model.safetensors")[EXPERT[architecture]]})
    with pytest.raises(InputError, match=re.escape(f"extra {name} in model.safetensors;")):
        open_checkpoint(directory)


def test_joined_weight_beside_its_slices(tmp_path: Path) -> None:
    """Which of the two is meant cannot be told."""
    directory = write_tiny(tmp_path, "mixtral")
    name = "model.layers.1.mlp.experts.down_proj"
    _edit(directory, **{name: open_checkpoint(directory).load(name)})
    with pytest.raises(InputError, match=r"extra model\.layers\.1\.block_sparse_moe\.experts\.0\.w2\.weight"):
        open_checkpoint(directory)


def test_expert_that_is_not_finite(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, "mixtral")
    weight = load_file(directory / "model.safetensors")[EXPERT["mixtral"]]
    weight[2, 3] = np.inf
    _edit(directory, **{EXPERT["mixtral"]: weight})
    checkpoint = open_checkpoint(directory)
    with pytest.raises(InputError, match=re.escape(f"weight {EXPERT['mixtral']} has 1 values that are not finite")):
        checkpoint.load("model.layers.1.mlp.experts.gate_up_proj")


NEXT_TOKENS = "model.layers.61.eh_proj.weight"


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """As transformers leaves them out, and of DeepSeek V3 alone."""
    from transformers import AutoModelForCausalLM

    directory = write_tiny(tmp_path, "deepseek_v3")
    before = dict(open_checkpoint(directory).weights())
    _edit(directory, **{NEXT_TOKENS: np.ones((84, 168), np.float32)})
    checkpoint = open_checkpoint(directory)
    assert NEXT_TOKENS not in checkpoint.files
    for name, weight in checkpoint.weights():
        np.testing.assert_array_equal(weight, before[name])
    _, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]


@pytest.mark.parametrize(
    ("architecture", "name"),
    [*((a, NEXT_TOKENS) for a in FAMILIES if a != "deepseek_v3"), ("deepseek_v3", "model.layers.2.eh_proj.weight")],
)
def test_a_weight_that_nothing_reads(architecture: str, name: str, tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, architecture)
    _edit(directory, **{name: np.ones((3, 4), np.float32)})
    with pytest.raises(InputError, match=re.escape(f"extra {name} in model.safetensors;")):
        open_checkpoint(directory)


def test_sixty_two_layers_are_read(tmp_path: Path) -> None:
    """Layer 61 is left out where the model has no such layer, and not where it has."""
    config = from_hf({**TINY["deepseek_v3"], "num_hidden_layers": 62})
    assert "model.layers.61.self_attn.o_proj.weight" in stored_shapes(config)
