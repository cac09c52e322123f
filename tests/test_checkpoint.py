"""A checkpoint's weights match its config by name, shape and dtype, or it is refused with the list of what does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from shards import write_sharded

from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.weights import weight_shapes

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


def _edit(path: Path, **changes: np.ndarray | None) -> None:
    """Replace, add or (None) remove weights of a safetensors file."""
    weights = {**load_file(path), **changes}
    save_file({name: weight for name, weight in weights.items() if weight is not None}, path)


def _transformers(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The weights as transformers upcasts them to float32, and what it says about names."""
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    return {name: weight.numpy() for name, weight in model.state_dict().items()}, info


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_those_of_transformers(tmp_path: Path, dtype: str, tied: bool, shards: int) -> None:
    write_sharded(tmp_path, shards, dtype=dtype, tie_word_embeddings=tied, attention_bias=True, mlp_bias=True)
    checkpoint = open_checkpoint(tmp_path)
    ours = dict(checkpoint.weights())
    assert list(ours) == list(weight_shapes(checkpoint.config))
    theirs, info = _transformers(tmp_path)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    if tied:
        np.testing.assert_array_equal(theirs.pop("lm_head.weight"), theirs[EMBEDDING])
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert weight.dtype == np.float32
        assert weight.flags.c_contiguous
        np.testing.assert_array_equal(weight, theirs[name])


def test_digest_is_of_config_and_weights(tiny: Path, tmp_path: Path) -> None:
    first = open_checkpoint(tiny).digest
    assert open_checkpoint(write_tiny(tmp_path / "same")).digest == first
    assert open_checkpoint(write_tiny(tmp_path / "other", seed=1)).digest != first
    _edit(tiny / "model.safetensors", **{Q_PROJ: load_file(tiny / "model.safetensors")[Q_PROJ] + 1})
    assert open_checkpoint(tiny).digest != first
    assert open_checkpoint(write_tiny(tmp_path / "epsilon", rms_norm_eps=1e-6)).digest != first


def test_missing_extra_and_misshapen_are_listed_together(tiny: Path) -> None:
    _edit(
        tiny / "model.safetensors",
        **{
            Q_PROJ: None,
            "model.layers.1.self_attn.q_norm.weight": np.ones(16, np.float32),
            "model.norm.weight": np.ones(85, np.float32),
        },
    )
    with pytest.raises(InputError) as caught:
        open_checkpoint(tiny)
    message = str(caught.value)
    assert message.startswith(f"{tiny}: weights do not match config.json: ")
    assert f"missing {Q_PROJ};" in message
    assert "extra model.layers.1.self_attn.q_norm.weight in model.safetensors;" in message
    assert "model.norm.weight in model.safetensors is [85], not [84];" in message


def test_a_transposed_weight_is_misshapen(tiny: Path) -> None:
    weight = load_file(tiny / "model.safetensors")[Q_PROJ]
    _edit(tiny / "model.safetensors", **{Q_PROJ: np.ascontiguousarray(weight.T)})
    with pytest.raises(InputError, match=re.escape(f"{Q_PROJ} in model.safetensors is [84, 96], not [96, 84]")):
        open_checkpoint(tiny)


def test_a_long_list_is_cut(tiny: Path) -> None:
    raw = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": 5}))
    with pytest.raises(InputError, match=r"missing model\.layers\.3\..* and 10 more; use the weights") as caught:
        open_checkpoint(tiny)
    assert str(caught.value).count("missing") == 8


@pytest.mark.parametrize("kept", [0, 7, 200, -1], ids=["empty", "in-length", "in-header", "last-byte"])
def test_cut_short(tiny: Path, kept: int) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="is damaged or cut short") as caught:
        open_checkpoint(tiny)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cut_short_after_it_was_opened(tiny: Path) -> None:
    checkpoint = open_checkpoint(tiny)
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged or cut short"):
        checkpoint.load(Q_PROJ)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("values", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf]], ids=str)
def test_weight_that_is_not_finite(tmp_path: Path, dtype: str, values: list[float]) -> None:
    write_sharded(tmp_path, 2, dtype=dtype)
    path = open_checkpoint(tmp_path).files[Q_PROJ]
    weight = load_file(path)[Q_PROJ]
    weight[5, : len(values)] = values
    _edit(path, **{Q_PROJ: weight})
    checkpoint = open_checkpoint(tmp_path)
    words = f"{path}: weight {Q_PROJ} has {len(values)} values that are not finite"
    with pytest.raises(InputError, match=re.escape(words)):
        checkpoint.load(Q_PROJ)
    checkpoint.load("model.norm.weight")


def test_weight_that_stands_twice(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    _edit(second, **{EMBEDDING: load_file(first)[EMBEDDING]})
    with pytest.raises(InputError, match=f"weight {EMBEDDING} stands here and in {first.name}") as caught:
        open_checkpoint(tmp_path)
    assert str(second) in str(caught.value)


@pytest.mark.parametrize(("dtype", "name"), [(np.int8, "I8"), (np.float64, "F64"), (np.int32, "I32")])
def test_dtype_that_is_not_supported(tiny: Path, dtype: type, name: str) -> None:
    weight = load_file(tiny / "model.safetensors")[Q_PROJ]
    _edit(tiny / "model.safetensors", **{Q_PROJ: weight.astype(dtype)})
    with pytest.raises(InputError, match=f"weight {Q_PROJ} is of dtype {name}; use a checkpoint with BF16, F16, F32"):
        open_checkpoint(tiny)


def test_index_that_names_a_missing_file(tmp_path: Path) -> None:
    write_sharded(tmp_path, 3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match=r"names model-00002-of-00003\.safetensors, which is not there") as caught:
        open_checkpoint(tmp_path)
    assert "model.safetensors.index.json" in str(caught.value)


def test_index_that_names_a_file_elsewhere(tmp_path: Path) -> None:
    write_tiny(tmp_path / "other")
    directory = write_sharded(tmp_path / "sharded", 2)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {EMBEDDING: "../other/model.safetensors"}}))
    with pytest.raises(InputError, match=r"names \.\./other/model\.safetensors, which is not there"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"w": 1}}', "[" * 100_000, '{"w": %s}' % ("9" * 5000)],
)
def test_index_that_is_not_an_index(tmp_path: Path, content: str) -> None:
    write_sharded(tmp_path, 2)
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match=r"is empty|has no weight_map|is nested|holds a number"):
        open_checkpoint(tmp_path)


def test_no_safetensors(tiny: Path) -> None:
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"has no model\.safetensors; convert the weights"):
        open_checkpoint(tiny)


def test_single_file_goes_before_an_index(tmp_path: Path) -> None:
    """As in transformers, so that both read the same weights."""
    write_sharded(tmp_path, 2)
    write_tiny(tmp_path, seed=1)
    theirs, _ = _transformers(tmp_path)
    np.testing.assert_array_equal(open_checkpoint(tmp_path).load(Q_PROJ), theirs[Q_PROJ])


def test_tied_head_that_is_stored(tmp_path: Path) -> None:
    write_tiny(tmp_path, tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    _edit(path, **{"lm_head.weight": load_file(path)[EMBEDDING]})
    assert "lm_head.weight" not in open_checkpoint(tmp_path).files


def test_tied_head_that_is_stored_and_differs(tmp_path: Path) -> None:
    """transformers would leave it untied, so that neither reading of the two can be meant."""
    write_tiny(tmp_path, tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    _edit(path, **{"lm_head.weight": load_file(path)[EMBEDDING] + 1})
    theirs, _ = _transformers(tmp_path)
    assert (theirs["lm_head.weight"] != theirs[EMBEDDING]).any()
    with pytest.raises(InputError, match=r"tie_word_embeddings is true, and lm_head\.weight differs"):
        open_checkpoint(tmp_path)


def test_derived_weights_of_old_checkpoints_are_ignored(tiny: Path) -> None:
    _edit(tiny / "model.safetensors", **{"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)})
    open_checkpoint(tiny)
