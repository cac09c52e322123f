"""A model's config as a frozen set of mechanisms, read strictly from Hugging Face's `config.json`.

A key that is not understood may be a mechanism that is not computed, so it is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloracle.core.errors import InputError

# Keys that do not change what the model computes at inference.
IGNORED_KEYS = frozenset(
    "_name_or_path architectures attention_dropout auto_map bos_token_id chunk_size_feed_forward dtype eos_token_id "
    "finetuning_task id2label initializer_range is_encoder_decoder is_llama_config label2id model_type "
    "output_attentions output_hidden_states pad_token_id pretraining_tp problem_type return_dict tokenizer_class "
    "torch_dtype transformers.js_config transformers_version unsloth_version use_cache".split()
)
# Keys that change the computation unless they have this value.
FIXED_KEYS: dict[str, Any] = {"hidden_act": "silu", "quantization_config": None, "rope_interleaved": False}
ROPE_KEYS = {
    "default": frozenset({"rope_type", "rope_theta"}),
    "llama3": frozenset(
        {
            "rope_type",
            "rope_theta",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        }
    ),
}


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding. `type` is transformers' `rope_type`; the rest are its parameters."""

    type: str
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True)
class Config:
    """What a decoder-only model computes, in the names of Hugging Face's config keys."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool

    @property
    def scaling(self) -> float:
        """What attention scores are multiplied by: 1/sqrt(head_dim)."""
        return float(self.head_dim**-0.5)


def load_config(directory: Path) -> Config:
    """Read `directory/config.json`. Raises InputError that names the file and the key."""
    path = directory / "config.json"
    if not directory.is_dir():
        raise InputError(
            "no such model", directory, "name a checkpoint directory, a .gguf file, or one of `hloracle models`"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "has no config.json", directory, "name a Hugging Face checkpoint directory (config.json, *.safetensors)"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"is not valid JSON ({error})", path, "restore the file that came with the model") from None
    if not isinstance(raw, dict):
        raise InputError("is not a JSON object", path, "restore the file that came with the model")
    return from_hf(raw, path)


def from_hf(raw: dict[str, Any], where: object = "config") -> Config:
    """A Config from the dict that Hugging Face saves. `where` is named in errors."""
    model_type = raw.get("model_type")
    parse = PARSERS.get(model_type) if isinstance(model_type, str) else None
    if parse is None:
        supported = ", ".join(sorted(PARSERS))
        raise InputError(
            f"model_type {model_type!r} is not supported", where, f"use a model of one of these types: {supported}"
        )
    keys = _Keys(raw, where)
    config = parse(keys)
    keys.refuse_unread()
    return config


def weight_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, in the order in which graphs take them. Linear weights are [out, in]."""
    E, F = config.hidden_size, config.intermediate_size
    N, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, E)}

    def linear(name: str, out: int, inner: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (out, inner)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (E,)
        linear(f"{layer}.self_attn.q_proj", N * D, E, config.attention_bias)
        linear(f"{layer}.self_attn.k_proj", K * D, E, config.attention_bias)
        linear(f"{layer}.self_attn.v_proj", K * D, E, config.attention_bias)
        linear(f"{layer}.self_attn.o_proj", E, N * D, config.attention_bias)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (E,)
        linear(f"{layer}.mlp.gate_proj", F, E, config.mlp_bias)
        linear(f"{layer}.mlp.up_proj", F, E, config.mlp_bias)
        linear(f"{layer}.mlp.down_proj", E, F, config.mlp_bias)
    shapes["model.norm.weight"] = (E,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, E)
    return shapes


class _Keys:
    """A config's keys, each of which must be read, ignored by name, or have the one value we compute."""

    def __init__(self, raw: dict[str, Any], where: object) -> None:
        self.raw, self.where, self.read = raw, where, set(IGNORED_KEYS)

    def error(self, what: str, fix: str = "correct the key, or use another model") -> InputError:
        return InputError(what, self.where, fix)

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """The value of `key`, checked to be of `kind`; `default` is transformers' own for a key it may omit."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None:
            if default:
                return default[0]
            raise self.error(f"key {key!r} is missing")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(f"key {key!r} is {value!r}, not of type {kind.__name__}")
        if isinstance(value, int | float) and kind is not bool and not 0 < value < math.inf:
            raise self.error(f"key {key!r} is {value}, not a positive finite number")
        return value

    def refuse_unread(self) -> None:
        for key, value in FIXED_KEYS.items():
            if self.raw.get(key, value) != value:
                raise self.error(f"key {key!r} is {self.raw[key]!r}, and only {value!r} is supported")
        unknown = sorted(set(self.raw) - self.read - set(FIXED_KEYS))
        if unknown:
            raise self.error(
                f"unknown key {', '.join(map(repr, unknown))}",
                "an unknown key may be an unsupported mechanism: remove it if it changes nothing, or use another model",
            )


def _rope(keys: _Keys, default_theta: float) -> Rope:
    """RoPE settings, in the form of transformers 5 (`rope_parameters`) or the older one (`rope_theta`, `rope_scaling`)."""
    new = keys.get("rope_parameters", dict, None)
    scaling = keys.get("rope_scaling", dict, None)
    theta = keys.get("rope_theta", float, None)
    if new is not None and scaling is not None and scaling != new:
        raise keys.error("has both 'rope_parameters' and 'rope_scaling', and they differ", "keep one of the two")
    inner = _Keys(dict(new if new is not None else scaling or {}), keys.where)
    inner.read.clear()
    kind = inner.get("rope_type", str, inner.get("type", str, "default"))
    if kind not in ROPE_KEYS:
        raise keys.error(f"rope_type {kind!r} is not supported", f"use a model with one of {sorted(ROPE_KEYS)}")
    own_theta = inner.get("rope_theta", float, None)
    if theta is not None and own_theta is not None and theta != own_theta:
        raise keys.error(f"has rope_theta {theta} and, in the RoPE settings, {own_theta}", "keep one of the two")
    # transformers copies the model's length here when the key is absent from a scaled config.
    unknown = sorted(set(inner.raw) - ROPE_KEYS[kind] - {"type", "partial_rotary_factor"})
    if unknown:
        raise keys.error(f"unknown RoPE key {', '.join(map(repr, unknown))} for rope_type {kind!r}")
    if inner.get("partial_rotary_factor", float, 1.0) != 1.0:
        raise keys.error("key 'partial_rotary_factor' is not 1, which is not supported")
    rope = Rope(type=kind, theta=own_theta or theta or default_theta)
    if kind == "default":
        return rope
    rope = Rope(
        type=kind,
        theta=rope.theta,
        factor=inner.get("factor", float),
        low_freq_factor=inner.get("low_freq_factor", float),
        high_freq_factor=inner.get("high_freq_factor", float),
        original_max_position_embeddings=inner.get("original_max_position_embeddings", int),
    )
    if rope.high_freq_factor <= rope.low_freq_factor:
        raise keys.error(
            f"RoPE's high_freq_factor {rope.high_freq_factor} is not above low_freq_factor {rope.low_freq_factor}"
        )
    return rope


def _llama(keys: _Keys) -> Config:
    """transformers' LlamaConfig; defaults are those of that class, for the keys that real checkpoints omit."""
    heads = keys.get("num_attention_heads", int)
    hidden = keys.get("hidden_size", int)
    config = Config(
        model_type="llama",
        num_hidden_layers=keys.get("num_hidden_layers", int),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=keys.get("num_key_value_heads", int, heads),
        head_dim=keys.get("head_dim", int, hidden // heads),
        intermediate_size=keys.get("intermediate_size", int),
        vocab_size=keys.get("vocab_size", int),
        max_position_embeddings=keys.get("max_position_embeddings", int),
        rms_norm_eps=keys.get("rms_norm_eps", float),
        rope=_rope(keys, default_theta=10000.0),
        tie_word_embeddings=keys.get("tie_word_embeddings", bool, False),
        attention_bias=keys.get("attention_bias", bool, False),
        mlp_bias=keys.get("mlp_bias", bool, False),
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise keys.error(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {config.num_key_value_heads}"
        )
    if config.head_dim % 2:
        raise keys.error(f"head_dim {config.head_dim} is odd, and RoPE turns pairs")
    return config


PARSERS: dict[str, Callable[[_Keys], Config]] = {"llama": _llama}
