"""GGUF files as checkpoints: their weights and keys, by architecture, and what is refused."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import gguf as gguf_library
import ml_dtypes
import numpy as np
import pytest
import transformers
from gguf import GGMLQuantizationType as Type
from gguf_files import ARCHITECTURES, config_of, keys_of, weights_of, write_gguf
from nightly import only

from hloracle.core.child import run_in_child
from hloracle.core.errors import InputError
from hloracle.reference.fixtures import gguf, gguf_blocks
from hloracle.reference.fixtures.gguf import conversion, convert_gguf, quantized_gguf
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.truth import load_model
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Rope
from hloracle.reference.model.encodings import ENCODINGS
from hloracle.reference.model.registry import FAMILIES
from hloracle.reference.model.rope import inverse_frequencies
from hloracle.reference.model.weights import default_layout, matrices

FLOATS = (Type.F32, Type.F16, Type.BF16)
TIED: dict[str, Any] = {"tie_word_embeddings": True}
UNTIED: dict[str, Any] = {"tie_word_embeddings": False}


def _convert(tmp_path: Path, *args: Any, **kwargs: Any) -> tuple[Path, dict[str, np.ndarray]]:
    weights = write_gguf(tmp_path / "model.gguf", *args, **kwargs)
    directory = tmp_path / "converted"
    directory.mkdir()
    convert_gguf(tmp_path / "model.gguf", directory)
    return directory, weights


def _refused(tmp_path: Path, **options: Any) -> str:
    """The line that says what is wrong with the file, and which file it is."""
    with pytest.raises(InputError) as caught:
        _convert(tmp_path, **options)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'model.gguf'}: ")
    assert "\n" not in message
    return message


# --- each architecture


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        *((architecture, {}) for architecture in ARCHITECTURES),
        ("qwen3", TIED),
        ("starcoder2", UNTIED),
        ("gemma3", UNTIED),
        ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": False}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_weights_and_config(tmp_path: Path, architecture: str, overrides: dict[str, Any]) -> None:
    directory, weights = _convert(tmp_path, architecture=architecture, **overrides)
    checkpoint = open_checkpoint(directory)
    assert checkpoint.config == config_of(ARCHITECTURES[architecture], **overrides)
    found = dict(checkpoint.weights())
    assert list(found) == list(weights)
    for name, weight in found.items():
        np.testing.assert_array_equal(weight, weights[name], err_msg=name)
    load_model(directory)  # raises unless its weights are exactly these


def test_each_architecture_that_transformers_reads() -> None:
    """With another version of transformers there may be more."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS

    assert not {*GGUF_CONFIG_ARCHS} & {*FAMILIES, *gguf.ARCHITECTURES}
    read = {{"gemma3": "gemma3_text"}.get(name, name) for name in GGUF_CONFIG_MAPPING} & {*FAMILIES}
    # A file never says `mistral`, and gguf has no names for its tensors.
    assert read == {*ARCHITECTURES.values(), "gpt_oss", "mistral"}
    assert {*ARCHITECTURES} == {*gguf.ARCHITECTURES}
    assert {"gpt-oss"} == {*gguf.WRONG}


@pytest.mark.parametrize("architecture", ["gpt-oss", "gemma", "olmo2", "command-r", "mixtral", "mamba"])
def test_other_architecture(tmp_path: Path, architecture: str) -> None:
    message = _refused(tmp_path, architecture=architecture)
    listed = ", ".join(gguf.ARCHITECTURES)
    assert f"architecture {architecture!r} is not supported" in message
    assert f"; use a model of one of these: {listed}; or its Hugging Face checkpoint" in message
    assert ("transformers leaves its experts" in message) is (architecture == "gpt-oss")


def test_mistral_is_a_llama(tmp_path: Path) -> None:
    directory, _ = _convert(tmp_path, called="Mistral 7B")
    assert open_checkpoint(directory).config == config_of("llama")


def test_mistral_that_transformers_cannot_read(tmp_path: Path) -> None:
    assert "a llama whose general.name is 'mistral'; use the" in _refused(tmp_path, called="mistral")


# --- keys


@pytest.mark.parametrize(
    ("architecture", "key", "value", "read"),
    [
        ("gemma2", "attention.sliding_window", 7, {"sliding_window": 7}),
        ("gemma3", "attention.sliding_window", 7, {"sliding_window": 7}),
        ("gemma2", "rope.freq_base", 2e4, {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
        ("qwen3moe", "expert_used_count", 3, {"num_experts_per_tok": 3}),
        ("stablelm", "context_length", 77, {"max_position_embeddings": 77}),
        ("starcoder2", "attention.layer_norm_epsilon", 0.125, {"norm_epsilon": 0.125}),
        ("phi3", "attention.layer_norm_rms_epsilon", 0.125, {"rms_norm_eps": 0.125}),
        # Without the key, the file and transformers mean the same.
        ("llama", "vocab_size", None, {}),
        ("qwen2", "rope.freq_base", None, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
        ("gemma2", "attention.sliding_window", None, {"sliding_window": 4096}),
    ],
)
def test_key_that_is_read(tmp_path: Path, architecture: str, key: str, value: Any, read: dict[str, Any]) -> None:
    directory, _ = _convert(tmp_path, architecture=architecture, keys={key: value})
    assert open_checkpoint(directory).config == config_of(ARCHITECTURES[architecture], **read)


@pytest.mark.parametrize(
    ("architecture", "key", "value", "words"),
    [
        ("llama", "expert_count", 8, "is 8, and transformers takes 0"),
        ("llama", "rope.scaling.type", "yarn", "is 'yarn', and transformers takes 'none'"),
        ("llama", "rope.scaling.factor", 4.0, "is 4.0, and transformers takes 1"),
        ("llama", "rope.scale_linear", 4.0, "is 4.0, and it is not known what that computes"),
        ("llama", "attention.sliding_window", 64, "is 64, and transformers takes 0"),
        ("llama", "attention.value_length", 16, "is 16, and transformers takes 32"),
        ("llama", "tensor_data_layout", "jploski", "is 'jploski', and transformers takes 'Meta AI original pth'"),
        ("llama", "context_length", None, "is not there; "),
        ("qwen2", "attention.sliding_window", 11, "is 11, and transformers takes 0"),
        ("qwen3", "attention.key_length", 64, "is 64, and transformers takes 128"),
        ("qwen3", "attention.value_length", None, "is not there, which means 16, and transformers takes 128"),
        ("qwen2moe", "expert_feed_forward_length", 64, "is 64, and transformers takes 1408"),
        ("qwen2moe", "expert_shared_feed_forward_length", 64, "is 64, and transformers takes 5632"),
        ("qwen2moe", "expert_count", None, "is not there; "),
        ("qwen3moe", "expert_feed_forward_length", 64, "is 64, and transformers takes 768"),
        ("qwen3moe", "expert_shared_feed_forward_length", 64, "is 64, and it is not known what that computes"),
        ("phi3", "attention.sliding_window", 2047, "is 2047, and transformers takes 0"),
        ("phi3", "rope.dimension_count", 12, "is 12, and transformers takes 16"),
        ("phi3", "rope.scaling.attn_factor", 1.25, "is 1.25, and transformers takes 1"),
        ("stablelm", "rope.dimension_count", 8, "is 8, and transformers takes 4"),
        ("stablelm", "rope.freq_base", 5e5, "is 500000.0, and transformers takes 10000.0"),
        ("stablelm", "use_parallel_residual", True, "is True, and transformers takes False"),
        ("starcoder2", "rope.freq_base", 5e5, "is 500000.0, and transformers takes 10000.0"),
        ("starcoder2", "attention.sliding_window", 4096, "is 4096, and transformers takes 0"),
        ("gemma2", "attn_logit_softcapping", 4.0, "is 4.0, and transformers takes 50.0"),
        ("gemma2", "final_logit_softcapping", 7.0, "is 7.0, and transformers takes 30.0"),
        ("gemma3", "attention.sliding_window", None, "is not there, which means 0, and transformers takes 4096"),
        ("gemma3", "rope.freq_base_swa", 500.0, "is 500.0, and transformers takes 10000.0"),
        ("gemma3", "rope.freq_base", None, "is not there, which means 10000.0, and transformers takes 1000000.0"),
        ("gemma3", "rope.scaling.factor", 8.0, "is 8.0, and transformers takes 1"),
        ("gemma3", "final_logit_softcapping", 30.0, "is 30.0, and transformers takes 0"),
    ],
)  # fmt: skip
def test_key_that_is_not_read(tmp_path: Path, architecture: str, key: str, value: Any, words: str) -> None:
    message = _refused(tmp_path, architecture=architecture, keys={key: value})
    assert f"key '{architecture}.{key}' {words}" in message


def test_kv_heads_that_are_not_there(tmp_path: Path) -> None:
    heads = {"hidden_size": 128, "num_attention_heads": 64, "num_key_value_heads": 64}
    message = _refused(tmp_path, architecture="qwen2", keys={"attention.head_count_kv": None}, **heads)
    assert "key 'qwen2.attention.head_count_kv' is not there, which means 64, and transformers takes 32" in message


@pytest.mark.parametrize(("architecture", "key", "value"), [
    ("llama", "rope.scaling.type", "none"),
    ("llama", "rope.scaling.factor", 1.0),
    ("llama", "rope.scaling.original_context_length", 64),
    ("llama", "rope.scaling.finetuned", False),
    ("llama", "tensor_data_layout", "Meta AI original pth"),
    ("llama", "expert_count", 0),
    ("qwen2moe", "attention.scale", 0.25),
    ("phi3", "attention.sliding_window", None),
    ("stablelm", "use_parallel_residual", None),
    ("gemma3", "final_logit_softcapping", 0.0),
])  # fmt: skip
def test_key_that_changes_nothing(tmp_path: Path, architecture: str, key: str, value: Any) -> None:
    directory, _ = _convert(tmp_path, architecture=architecture, keys={key: value})
    assert open_checkpoint(directory).config == config_of(ARCHITECTURES[architecture])


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
def test_what_gemma_multiplies_scores_by_is_in_no_key(tmp_path: Path, architecture: str) -> None:
    words = f"key '{architecture}.attention.scale' is not there, which means 0.0883883"
    assert words in _refused(tmp_path, architecture=architecture, head_dim=128)


@pytest.mark.parametrize(("model_type", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_what_the_largest_gemmas_multiply_scores_by(model_type: str, layers: int) -> None:
    config = config_of(model_type, num_hidden_layers=layers)
    assert gguf._stated(config)["attention.scale"] == (256**-0.5, (96 // 6) ** -0.5)
    config = config_of(model_type, num_hidden_layers=layers - 1)
    assert gguf._stated(config)["attention.scale"] == (256**-0.5, 256**-0.5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_key_that_the_converter_writes_is_held_to_the_config(architecture: str) -> None:
    config = config_of(ARCHITECTURES[architecture])
    stated = gguf._stated(config)
    for key, value in keys_of(architecture, config).items():
        taken, _ = stated[key]
        assert taken is gguf.ANYTHING or gguf._equal(value, taken), key
        other = not value if isinstance(value, bool) else value + 1
        assert not gguf._equal(other, taken), key


# --- tensors


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("llama", {"drop": ("blk.1.attn_q.weight",)}, "missing blk.1.attn_q.weight"),
        ("llama", {"add": {"blk.0.attn_q.bias": np.ones(192, np.float32)}}, "extra blk.0.attn_q.bias"),
        ("llama", {"add": {"output_norm.bias": np.ones(96, np.float32)}}, "extra output_norm.bias"),
        ("qwen2", {"drop": ("blk.1.attn_v.bias",)}, "missing blk.1.attn_v.bias"),
        ("qwen2", {"add": {"rope_freqs.weight": np.ones(8, np.float32)}}, "extra rope_freqs.weight"),
        ("qwen3", {"drop": ("blk.0.attn_k_norm.weight",)}, "missing blk.0.attn_k_norm.weight"),
        ("qwen2moe", {"drop": ("blk.0.ffn_up_exps.weight",)}, "missing blk.0.ffn_up_exps.weight"),
        ("qwen2moe", {"drop": ("blk.1.ffn_gate_inp_shexp.weight",)}, "missing blk.1.ffn_gate_inp_shexp.weight"),
        ("qwen3moe", {"drop": ("blk.0.ffn_down_exps.weight",)}, "missing blk.0.ffn_down_exps.weight"),
        ("qwen3moe", {"keys": {"expert_count": 5}}, "blk.0.ffn_gate_inp.weight is [4, 96], not [5, 96]"),
        ("qwen3moe", {"moe_intermediate_size": 64, "keys": {"expert_feed_forward_length": None}},
         "blk.0.ffn_gate_exps.weight is [4, 64, 96], not [4, 768, 96]"),
        ("phi3", {"add": {"rope_factors_long.weight": np.ones(8, np.float32)}}, "extra rope_factors_long.weight"),
        ("phi3", {"drop": ("blk.1.attn_qkv.weight",)}, "missing blk.1.attn_qkv.weight"),
        ("stablelm", {"add": {"blk.0.attn_q_norm.weight": np.ones((6, 16), np.float32)}}, "extra blk.0.attn_q_norm"),
        ("starcoder2", {"drop": ("blk.1.ffn_up.bias",)}, "missing blk.1.ffn_up.bias"),
        ("gemma2", {"drop": ("blk.0.post_ffw_norm.weight",)}, "missing blk.0.post_ffw_norm.weight"),
        ("gemma3", {"drop": ("blk.3.attn_q_norm.weight",)}, "missing blk.3.attn_q_norm.weight"),
        ("gemma3", {"drop": ("output_norm.weight",), "add": {"output_norm.weight": np.ones(95, np.float32)}},
         "output_norm.weight is [95], not [96]"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(tmp_path: Path, architecture: str, options: dict[str, Any], words: str) -> None:
    message = _refused(tmp_path, architecture=architecture, **options)
    assert f"tensors do not match the file's own keys: {words}" in message


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    norm = {"output_norm.weight": np.full(96, np.nan, np.float32)}
    message = _refused(tmp_path, drop=(*norm,), add=norm)
    assert "weight model.norm.weight has 96 values that are not finite" in message


def test_weight_that_transformers_makes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_check_tensors", lambda *args: None)
    message = _refused(tmp_path, drop=("blk.1.attn_q.weight",))
    assert "transformers loads other weights (missing keys: model.layers.1.self_attn.q_proj.weight); use the" in message


@pytest.mark.parametrize(
    ("matrices", "stored"),
    [(Type.F32, "F32"), (Type.F16, "F16"), (Type.BF16, "BF16"), (Type.Q8_0, "BF16"), (Type.Q4_1, "BF16")],
    ids=["F32", "F16", "BF16", "Q8_0", "Q4_1"],
)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_quantized(tmp_path: Path, matrices: Type, stored: str, tied: bool) -> None:
    import safetensors

    directory, weights = _convert(tmp_path, matrices, tie_word_embeddings=tied)
    checkpoint = open_checkpoint(directory)
    for name, weight in checkpoint.weights():
        rounded = weights[name].astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(weight, weights[name] if matrices in FLOATS else rounded, err_msg=name)
    assert checkpoint.config == config_of("llama", tie_word_embeddings=tied)
    with safetensors.safe_open(directory / "model.safetensors", "np") as f:
        assert f.get_slice("model.layers.0.mlp.up_proj.weight").get_dtype() == stored
        assert ("lm_head.weight" in f.keys()) is not tied  # noqa: SIM118


@pytest.mark.parametrize("architecture", ["qwen3moe", "gemma2"])
def test_quantized_weights_that_are_joined_or_offset(tmp_path: Path, architecture: str) -> None:
    directory, weights = _convert(tmp_path, Type.Q8_0, architecture=architecture)
    for name, weight in open_checkpoint(directory).weights():
        rounded = weights[name].astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(weight, rounded, err_msg=name)


# --- Llama 3's RoPE


def _rope_freqs(theta: float, dim: int, factor: float, original: int) -> np.ndarray:
    default = inverse_frequencies(Rope("default", theta, dim))
    scaled = inverse_frequencies(Rope("llama3", theta, dim, False, factor, 1.0, 4.0, original))
    return (default / scaled).astype(np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_restored(tmp_path: Path, factor: float) -> None:
    directory, _ = _convert(tmp_path, add={"rope_freqs.weight": _rope_freqs(5e5, 32, factor, 8192)})
    assert open_checkpoint(directory).config.ropes == (Rope("llama3", 5e5, 32, False, factor, 1.0, 4.0, 8192),)


def test_llama3_scaling_of_nothing(tmp_path: Path) -> None:
    directory, _ = _convert(tmp_path, add={"rope_freqs.weight": np.ones(16, np.float32)})
    assert open_checkpoint(directory).config == config_of("llama")


def test_other_rope_scaling(tmp_path: Path) -> None:
    message = _refused(tmp_path, add={"rope_freqs.weight": _rope_freqs(5e5, 32, 8.0, 4096)})
    assert "rope_freqs.weight is not the RoPE scaling of Llama 3; use the model's Hugging Face checkpoint" in message


# --- the tokenizer


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
def test_tokenizer_and_chat_template(tmp_path: Path, architecture: str) -> None:
    from transformers import AutoTokenizer

    directory, _ = _convert(tmp_path, architecture=architecture)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer("the mouth 42").input_ids
    assert tokenizer.decode(ids) == "the mouth 42"
    assert ids[0] == 257
    assert tokenizer.eos_token_id == 259
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>user: hi<|im_end|>"
    assert json.loads((directory / "config.json").read_text())["eos_token_id"] == 259


def test_the_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By us and by transformers, which reads it for the config, the weights and the tokenizer; in a precision as well."""
    read: list[Path] = []
    own = gguf_library.GGUFReader.__init__
    monkeypatch.setattr(gguf_library.GGUFReader, "__init__", lambda self, path: (read.append(path), own(self, path))[1])
    maps, reader = gguf_library.get_tensor_name_map, gguf_library.GGUFReader
    _convert(tmp_path)
    quantized_gguf(tmp_path / "model.gguf", tmp_path, "int8")
    assert read == [tmp_path / "model.gguf"] * 2
    assert (gguf_library.get_tensor_name_map, gguf_library.GGUFReader) == (maps, reader)


def test_without_tokenizer(tmp_path: Path) -> None:
    directory, _ = _convert(tmp_path, tokenizer=False)
    assert not (directory / "tokenizer.json").exists()
    open_checkpoint(directory)


# --- in integers: blocks stay as they are

BLOCKS: dict[Type, Any] = {
    Type.Q8_0: [("scale", "<f2"), ("integers", "i1", 32)],
    Type.Q4_0: [("scale", "<f2"), ("integers", "u1", 16)],
    Type.Q4_1: [("scale", "<f2"), ("minimum", "<f2"), ("integers", "u1", 16)],
}
TURNED, JOINED, FUSED = "llama", "qwen3moe", "phi3"  # rows of q and k, experts' halves, q with k and v


def _quantized(tmp_path: Path, precision: str, *args: Any, **kwargs: Any) -> tuple[Checkpoint, dict[str, np.ndarray]]:
    weights = write_gguf(tmp_path / "model.gguf", *args, **kwargs)
    directory = tmp_path / "integers"
    directory.mkdir()
    quantized_gguf(tmp_path / "model.gguf", directory, precision)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["integers", "model.gguf"], "and nothing else is left"
    return open_checkpoint(directory), weights


def _blocks(architecture: str, name: str, kind: Type) -> Any:
    """A weight's blocks as they were before its rows were turned."""
    weight = weights_of(config_of(ARCHITECTURES[architecture]))[name]
    raw = np.ascontiguousarray(gguf_library.quants.quantize(weight, kind))
    return raw.view(np.dtype(BLOCKS[kind]))


def _kept(checkpoint: Checkpoint, architecture: str, name: str, kind: Type) -> None:
    """The arguments of this weight are what the file holds."""
    encoding = "int8" if kind == Type.Q8_0 else "int4"
    assert checkpoint.encoded[name] == encoding
    found = [checkpoint.load(argument) for argument in ENCODINGS[encoding].arguments(name)]
    blocks = _blocks(architecture, name, kind)
    scale = blocks["scale"].astype(np.float32)
    if encoding == "int8":
        expected = [blocks["integers"][..., :16], blocks["integers"][..., 16:], scale]
    else:
        expected = [blocks["integers"], scale, blocks["minimum"] if kind == Type.Q4_1 else -8 * scale]
    for part, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(part, right, err_msg=name)


def _made(checkpoint: Checkpoint, name: str, encoding: str, weight: np.ndarray) -> None:
    """The arguments of this weight are what our own scheme makes of it."""
    assert checkpoint.encoded[name] == encoding
    parts = ENCODINGS[encoding].encode(weight)
    for argument, right in zip(ENCODINGS[encoding].arguments(name), parts, strict=True):
        np.testing.assert_array_equal(checkpoint.load(argument), right, err_msg=name)
    np.testing.assert_array_equal(checkpoint.load(name), ENCODINGS[encoding].decode(parts), err_msg=name)


# Each way that rows lie, in each precision; and each kind of block.
SOME_BLOCKS = [("int4", TURNED, kind) for kind in BLOCKS] + [("int8", JOINED, Type.Q8_0), ("int4", FUSED, Type.Q4_1)]


@pytest.mark.parametrize(
    ("precision", "architecture", "kind"),
    only(SOME_BLOCKS, itertools.product(["int8", "int4"], [TURNED, JOINED, FUSED], BLOCKS)),
    ids=lambda value: getattr(value, "name", value),
)
def test_blocks_stay_as_they_are(tmp_path: Path, precision: str, architecture: str, kind: Type) -> None:
    """Those of 8 bits in either precision; those of 4 bits have no 8 to be held in, and are rounded once more."""
    checkpoint, weights = _quantized(tmp_path, precision, kind, architecture=architecture)
    kept = kind == Type.Q8_0 or precision == "int4"
    held = checkpoint.layout(precision)
    assert set(held) == set(matrices(checkpoint.config))
    for name, weight in weights.items():
        if kept or name not in held:
            np.testing.assert_array_equal(checkpoint.load(name), weight, err_msg=name)
        if kept and name in held:
            _kept(checkpoint, architecture, name, kind)
        elif name in held:
            _made(checkpoint, name, precision, weight)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "stablelm", "starcoder2", "gemma2"])
def test_blocks_of_the_other_architectures(tmp_path: Path, architecture: str) -> None:
    checkpoint, weights = _quantized(tmp_path, "int4", Type.Q4_1, architecture=architecture)
    for name, weight in weights.items():
        np.testing.assert_array_equal(checkpoint.load(name), weight, err_msg=name)
        if name in matrices(checkpoint.config):
            _kept(checkpoint, architecture, name, Type.Q4_1)


def test_floats_are_those_of_transformers(tmp_path: Path) -> None:
    """Dequantized in float32, and not rounded to bfloat16 as in float32's own directory."""
    from transformers import AutoModelForCausalLM

    checkpoint, _ = _quantized(tmp_path, "int4", Type.Q4_1)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype="float32").state_dict()
    for name, weight in checkpoint.weights():
        np.testing.assert_array_equal(weight, theirs[name].numpy(), err_msg=name)


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.F32, Type.Q5_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_other_types_are_quantized_by_our_own_scheme(tmp_path: Path, precision: str, kind: Type) -> None:
    checkpoint, weights = _quantized(tmp_path, precision, kind)
    for name, encoding in default_layout(checkpoint.config, precision).items():
        _made(checkpoint, name, encoding, weights[name])
    assert checkpoint.encoded["lm_head.weight"] == "int8"


def test_a_file_of_several_types(tmp_path: Path) -> None:
    """As makers of files write them: the head in 8 bits, one projection in another type."""
    others = {"lm_head.weight": Type.Q8_0, "embed_tokens.weight": Type.Q8_0, "down_proj.weight": Type.Q5_0,
              "v_proj.weight": Type.Q4_0}  # fmt: skip
    checkpoint, weights = _quantized(tmp_path, "int4", Type.Q4_1, others=others)
    for name in checkpoint.encoded:
        kind = next((kind for ending, kind in others.items() if name.endswith(ending)), Type.Q4_1)
        if kind in BLOCKS:
            _kept(checkpoint, "llama", name, kind)
        else:
            _made(checkpoint, name, "int4", weights[name])


def test_halves_of_two_types(tmp_path: Path) -> None:
    """Experts whose gates are in blocks and whose values are not: one weight is held in one way."""
    up = "blk.0.ffn_up_exps.weight"
    floats = weights_of(config_of("qwen3_moe"))["model.layers.0.mlp.experts.gate_up_proj"][:, 768:]
    checkpoint, weights = _quantized(
        tmp_path, "int4", Type.Q4_1, architecture=JOINED, drop=(up,), add={up: np.ascontiguousarray(floats)}
    )
    name = "model.layers.0.mlp.experts.gate_up_proj"
    whole = weights[name].copy()
    whole[:, 768:] = floats
    _made(checkpoint, name, "int4", whole)
    _kept(checkpoint, JOINED, name.replace("s.0", "s.1"), Type.Q4_1)


def test_rows_in_an_order_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_blocks, "_turned", lambda *args: [])
    with pytest.raises(
        InputError, match=r"blk\.0\.attn_q\.weight is not what transformers makes of it; use the model's"
    ):
        _quantized(tmp_path, "int4", Type.Q4_1)


def test_a_file_named_in_a_precision(tmp_path: Path, empty_cache: Path) -> None:
    path, precision = tmp_path / "model.gguf", "int4"
    write_gguf(path, Type.Q8_0)
    said: list[str] = []
    directory = resolve(str(path), said.append, precision)
    assert said == ["converting model.gguf"]
    assert directory.name.startswith("gguf-")
    assert [p.name for p in (empty_cache / "models").iterdir() if p.suffix != ".lock"] == [directory.name]
    _kept(open_checkpoint(directory), "llama", "model.layers.1.self_attn.k_proj.weight", Type.Q8_0)
    assert (directory / "tokenizer.json").is_file()
    assert resolve(str(directory), precision=precision) == directory


# --- files that are not whole, and what the child process says


@pytest.mark.parametrize("kind", [0, 8, 9], ids=["bytes", "strings", "arrays"])
def test_an_array_that_is_longer_than_the_file(tmp_path: Path, kind: int) -> None:
    """The reader would look for each of its elements behind the end."""
    path = tmp_path / "model.gguf"
    key = struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, kind, 2**40)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + b"x" * 100)
    with pytest.raises(InputError, match="is damaged or cut short"):
        convert_gguf(path, tmp_path)


@pytest.mark.parametrize("kept", [4, 20, 100, 3000, -1], ids=["magic", "counts", "keys", "tokens", "last-byte"])
def test_cut_short(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="cut short") as caught:
        convert_gguf(path, tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_blocks_than_any_model_has(tmp_path: Path) -> None:
    """transformers would make a list of as many types of layers."""
    write_gguf(tmp_path / "model.gguf", keys={"block_count": 2**31})
    with pytest.raises(InputError, match=r"has 2,147,483,648 blocks; use a model of at most 512"):
        convert_gguf(tmp_path / "model.gguf", tmp_path)


def test_what_transformers_raises_is_told_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("Padding_idx must be within num_embeddings")

    write_gguf(tmp_path / "model.gguf")
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fails)
    with pytest.raises(
        InputError, match=r"model\.gguf: transformers cannot read it \(AssertionError: Padding_idx must be"
    ):
        convert_gguf(tmp_path / "model.gguf", tmp_path)


def test_an_error_comes_out_of_the_child(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, architecture="gemma2", keys={"attn_logit_softcapping": 4.0})
    with pytest.raises(InputError, match=r"takes 50\.0 for it"):
        run_in_child(conversion, path, tmp_path, "f32", timeout=600)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), RuntimeError("I/O error: No space left on device (os error 28)")],
    ids=["errno", "text"],
)
def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(path: Path, directory: Path) -> None:
        raise error

    monkeypatch.setattr(gguf, "convert_gguf", fail)
    monkeypatch.setattr(gguf, "QUIET", {})
    with pytest.raises(InputError, match="the disk is full"):
        conversion(print, tmp_path / "model.gguf", tmp_path, "f32")
