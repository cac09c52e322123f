"""A config is read strictly: what is not understood is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hloracle.core.errors import InputError
from hloracle.reference.config import Config, Rope
from hloracle.reference.fixtures import TINY
from hloracle.reference.registry import FAMILIES, from_hf, load_config
from hloracle.reference.weights import weight_shapes

CONFIGS = Path(__file__).parent / "configs"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MISSING = object()


def _raw(**changes: Any) -> dict[str, Any]:
    raw = {**TINY["llama"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **changes}
    return {key: value for key, value in raw.items() if value is not MISSING}


def _published(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / name).read_text())


def test_llama_3_2_1b() -> None:
    assert from_hf(_published("llama-3.2-1b.json")) == Config(
        model_type="llama",
        num_hidden_layers=16,
        hidden_size=2048,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=8192,
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope=Rope("llama3", 500000.0, 32.0, 1.0, 4.0, 8192),
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
    )


def test_smollm2_135m() -> None:
    config = from_hf(_published("smollm2-135m.json"))
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.tie_word_embeddings) == (49152, True)
    assert config.rope == Rope("default", 100000.0)


@pytest.mark.parametrize("name", ["llama-3.2-1b.json", "smollm2-135m.json"])
def test_transformers_reads_the_same(name: str) -> None:
    from transformers import LlamaConfig

    raw = _published(name)
    ours, theirs = from_hf(raw), LlamaConfig.from_dict(raw)
    for key in Config.__dataclass_fields__.keys() - {"rope"}:
        assert getattr(ours, key) == getattr(theirs, key)
    rope = {"type": "default", **theirs.rope_parameters}
    assert (ours.rope.type, ours.rope.theta) == (rope["rope_type"], rope["rope_theta"])
    assert from_hf(theirs.to_dict()) == ours


def test_defaults_are_those_of_transformers() -> None:
    from transformers import LlamaConfig

    optional = ("num_key_value_heads", "head_dim", "rope_parameters", "tie_word_embeddings")
    raw = _raw(**dict.fromkeys((*optional, "attention_bias", "mlp_bias"), MISSING))
    ours, theirs = from_hf(raw), LlamaConfig.from_dict(raw)
    for key in Config.__dataclass_fields__.keys() - {"rope"}:
        assert getattr(ours, key) == getattr(theirs, key)
    assert ours.rope == Rope("default", theirs.rope_parameters["rope_theta"])


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 500000, "rope_scaling": None}),
        ({**LLAMA3, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
        ({**LLAMA3, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "type": "llama3"}}),
    ],
    ids=["default", "default-null", "llama3", "llama3-both-names"],
)
def test_old_and_new_rope_forms_are_equal(new: dict[str, Any], old: dict[str, Any]) -> None:
    assert from_hf(_raw(rope_parameters=new)) == from_hf(_raw(rope_parameters=MISSING, **old))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mamba"}, "model_type 'mamba' is not supported; use a model of one of these types: llama"),
    ({"model_type": MISSING}, "model_type None is not supported"),
    ({"model_type": ["llama"]}, "model_type ['llama'] is not supported"),
    ({"logit_scale": 2.0, "attn_gate": None}, "unknown key 'attn_gate', 'logit_scale'"),
    ({"hidden_size": MISSING}, "key 'hidden_size' is missing"),
    ({"hidden_size": None}, "key 'hidden_size' is missing"),
    ({"hidden_size": "84"}, "key 'hidden_size' is '84', not of type int"),
    ({"hidden_size": 84.0}, "key 'hidden_size' is 84.0, not of type int"),
    ({"hidden_size": 0}, "key 'hidden_size' is 0, not a positive finite number"),
    ({"num_hidden_layers": True}, "key 'num_hidden_layers' is True, not of type int"),
    ({"num_attention_heads": -6}, "key 'num_attention_heads' is -6, not a positive finite number"),
    ({"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
    ({"head_dim": 15}, "head_dim 15 is odd"),
    ({"rms_norm_eps": float("nan")}, "key 'rms_norm_eps' is nan, not a positive finite number"),
    ({"rms_norm_eps": float("inf")}, "key 'rms_norm_eps' is inf, not a positive finite number"),
    ({"rms_norm_eps": 0}, "key 'rms_norm_eps' is 0.0, not a positive finite number"),
    ({"tie_word_embeddings": 1}, "key 'tie_word_embeddings' is 1, not of type bool"),
    ({"hidden_act": "gelu"}, "key 'hidden_act' is 'gelu', and only 'silu' is supported"),
    ({"quantization_config": {"quant_method": "awq"}}, "key 'quantization_config' is"),
    ({"rope_interleaved": True}, "key 'rope_interleaved' is True"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=["-".join(changes) for changes, _ in REFUSED])
def test_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        from_hf(_raw(**changes), "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")
    assert words in str(caught.value)


ROPE_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": "default"}, "key 'rope_parameters' is 'default', not of type dict"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn' is not supported"),
    ({"rope_parameters": {"type": "linear", "factor": 2.0}}, "rope_type 'linear' is not supported"),
    ({"rope_parameters": {"rope_type": "default", "factor": 8.0}}, "unknown RoPE key 'factor'"),
    ({"rope_parameters": {**LLAMA3, "beta_fast": 32}}, "unknown RoPE key 'beta_fast'"),
    ({"rope_parameters": {**LLAMA3, "factor": None}}, "key 'factor' is missing"),
    ({"rope_parameters": {**LLAMA3, "factor": "8"}}, "key 'factor' is '8', not of type float"),
    ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "is not above low_freq_factor"),
    ({"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}}, "'partial_rotary_factor' is not 1"),
    ({"rope_parameters": {**LLAMA3, "rope_theta": -1.0}}, "key 'rope_theta' is -1.0"),
    ({"rope_theta": 5e5}, "has rope_theta 500000.0 and, in the RoPE settings, 10000.0"),
    ({"rope_scaling": LLAMA3}, "has both 'rope_parameters' and 'rope_scaling', and they differ"),
    ({"rope_theta": "10000"}, "key 'rope_theta' is '10000', not of type float"),
]


@pytest.mark.parametrize(("changes", "words"), ROPE_REFUSED, ids=["-".join(changes) for changes, _ in ROPE_REFUSED])
def test_rope_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        from_hf(_raw(**changes), "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{'model_type': 'llama'}", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b'{"model_type": "llama"', "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "model_type None is not supported"),
    ],
)
def test_config_json_that_cannot_be_read(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load_config(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such model"):
        load_config(tmp_path / "absent")


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_config(tmp_path)


def test_weight_shapes_of_llama_3_2_1b() -> None:
    shapes = weight_shapes(from_hf(_published("llama-3.2-1b.json")))
    assert len(shapes) == 1 + 16 * 9 + 1
    assert "lm_head.weight" not in shapes
    assert shapes["model.embed_tokens.weight"] == (128256, 2048)
    assert shapes["model.layers.15.self_attn.k_proj.weight"] == (512, 2048)
    assert shapes["model.layers.15.mlp.down_proj.weight"] == (2048, 8192)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_weight_shapes_are_those_of_transformers(model_type: str, tied: bool, biased: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = {**TINY[model_type], "tie_word_embeddings": tied, "attention_bias": biased, "mlp_bias": biased}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw))
    theirs = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert weight_shapes(from_hf(raw)) == theirs
