"""Tiny models with random weights, one of each architecture, built to expose mistakes.

hidden_size is not heads * head_dim where an architecture lets it be, three query heads share a kv head, the vocabulary
is odd, windows and RoPE's scaling begin inside a short prompt, there is a layer of each kind, and what is decoded does
not soon go round in circles.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from hloracle.reference.registry import FAMILIES, from_hf
from hloracle.reference.weights import stored_shapes

# A weight by its name, its shape and a seed.
Draw = Callable[[str, tuple[int, ...], int], np.ndarray]

_BASE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 84,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 112,
    "vocab_size": 257,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 3e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    # No token ends the text, so that a greedy run is as long as it was asked to be.
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
_WINDOWS = {"sliding_window": 11, "layer_types": ["sliding_attention", "full_attention"]}
_LAYER_NORM = {"rms_norm_eps": None, "layer_norm_eps": 3e-4}
_SQUARE = {"hidden_size": 96}  # heads * head_dim
_EXPERTS = {"num_experts_per_tok": 3, "norm_topk_prob": True, "moe_intermediate_size": 40, "num_experts": 7}
_GEMMA = {
    "tie_word_embeddings": True,
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
}


def _row(class_prefix: str, architecture: str, **own: Any) -> dict[str, Any]:
    merged = {"architectures": [f"{class_prefix}ForCausalLM"], "model_type": architecture, **_BASE, **own}
    removed = {
        key for key in ("head_dim", "rms_norm_eps", "hidden_act", "hidden_activation") if merged.get(key) is None
    }
    # A copy: transformers writes into what it is given.
    return copy.deepcopy({key: value for key, value in merged.items() if key not in removed})


TINY: dict[str, dict[str, Any]] = {
    row["model_type"]: row
    for row in (
        _row(
            "Llama", "llama", num_hidden_layers=3, attention_bias=False, mlp_bias=False,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        ),
        _row("Mistral", "mistral", sliding_window=11),
        _row("Qwen2", "qwen2", use_sliding_window=True, max_window_layers=1, sliding_window=11, rope_parameters=_YARN),
        _row("Qwen3", "qwen3", attention_bias=True, use_sliding_window=True, max_window_layers=1, sliding_window=11),
        _row("Gemma", "gemma", **{**_GEMMA, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": None}),
        _row(
            "Gemma2", "gemma2", **_GEMMA, **_WINDOWS, query_pre_attn_scalar=7, attn_logit_softcapping=4.0,
            final_logit_softcapping=7.0,
        ),
        _row(
            "Gemma3", "gemma3_text", **_GEMMA, **_WINDOWS, query_pre_attn_scalar=23,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
            },
        ),
        # The prompts and what follows them go beyond the 40 tokens from which on its angles are others.
        _row(
            "Phi3", "phi3", **_SQUARE, head_dim=None, sliding_window=23, original_max_position_embeddings=40,
            partial_rotary_factor=0.75,
            rope_parameters={
                "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.0],
                "long_factor": [1.0, 1.5, 2.2, 4.0, 7.0, 12.0], "partial_rotary_factor": 0.75,
            },
        ),
        _row("Olmo2", "olmo2", attention_bias=False),
        _row(
            "Olmo3", "olmo3", **_WINDOWS, attention_bias=False,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}, "full_attention": _YARN
            },
        ),
        # The window is that of the layer without RoPE: the other way round than Cohere 2.
        _row(
            "SmolLM3", "smollm3", no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=11,
            tie_word_embeddings=True,
        ),
        _row(
            "Granite", "granite", embedding_multiplier=5.0, attention_multiplier=0.17, residual_multiplier=0.45,
            logits_scaling=2.5, attention_bias=True, mlp_bias=True,
        ),
        _row("Cohere", "cohere", **_LAYER_NORM, logit_scale=1.7, use_qk_norm=True, tie_word_embeddings=True),
        _row("Cohere2", "cohere2", **_LAYER_NORM, **_WINDOWS, logit_scale=1.7, tie_word_embeddings=True),
        _row(
            "StableLm", "stablelm", **_LAYER_NORM, **_SQUARE, qk_layernorm=True, use_qkv_bias=True,
            use_parallel_residual=False, partial_rotary_factor=0.25, head_dim=None,
        ),
        _row(
            "Starcoder2", "starcoder2", rms_norm_eps=None, norm_epsilon=3e-4, hidden_act="gelu_pytorch_tanh",
            use_bias=True, sliding_window=11, tie_word_embeddings=True,
        ),
        _row("Glm4", "glm4", partial_rotary_factor=0.5, attention_bias=True),
        _row(
            "SeedOss", "seed_oss", attention_bias=True, attention_out_bias=False, mlp_bias=False,
            max_position_embeddings=40, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
        ),
        _row("Mixtral", "mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=11),
        _row(
            "Qwen2Moe", "qwen2_moe", **{**_EXPERTS, "norm_topk_prob": False}, mlp_only_layers=[0],
            decoder_sparse_step=1, shared_expert_intermediate_size=52, qkv_bias=True, use_sliding_window=True,
            max_window_layers=2, sliding_window=11,
        ),
        _row("Qwen3Moe", "qwen3_moe", **_EXPERTS, mlp_only_layers=[0], decoder_sparse_step=1, attention_bias=False),
        _row(
            "Olmoe", "olmoe", **_SQUARE, intermediate_size=40, num_experts=7, num_experts_per_tok=3,
            norm_topk_prob=False, clip_qkv=1.5, attention_bias=False,
        ),
        _row(
            "GptOss", "gpt_oss", **_WINDOWS, intermediate_size=40, num_local_experts=5, num_experts_per_tok=2,
            swiglu_limit=1.25, swiglu_alpha=1.702, attention_bias=True,
            rope_parameters={**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        ),
        _row(
            "DeepseekV3", "deepseek_v3", num_key_value_heads=6, head_dim=None, q_lora_rank=44, kv_lora_rank=36,
            qk_nope_head_dim=14, qk_rope_head_dim=8, v_head_dim=18, rope_interleave=True, n_routed_experts=9, n_group=3,
            topk_group=2, num_experts_per_tok=4, n_shared_experts=2, moe_intermediate_size=20, first_k_dense_replace=1,
            norm_topk_prob=True, routed_scaling_factor=1.7, attention_bias=True,
            rope_parameters={**_YARN, "mscale": 0.8, "mscale_all_dim": 1.2},
        ),
    )
}  # fmt: skip
TINY_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Standard deviation of a linear weight, times the square root of its inner size, and mean of a norm's; 1 where it is
# not named. Chosen so that attention is neither uniform nor one-hot, each block changes the stream, the head's top two
# stand apart, and the next token hangs on many before it.
TINY_GAIN = {
    "q_proj": 1.5, "k_proj": 1.5, "qkv_proj": 1.3, "q_b_proj": 1.5, "kv_a_proj_with_mqa": 2.0, "kv_b_proj": 1.5,
    "q_norm": 1.5, "k_norm": 1.5, "q_layernorm": 1.5, "k_layernorm": 1.5, "o_proj": 2.0, "down_proj": 2.0,
    "c_proj": 2.0, "w2": 2.0, "embed_tokens": 3.0, "lm_head": 3.0, "gate": 2.0, "router": 2.0,
}  # fmt: skip
# A tied embedding that outweighs the layers would make every token predict itself. Gemma multiplies its own by the
# square root of hidden_size, so it is narrower still; the last norm gives the logits back what that takes from them.
TIED_GAIN = {"embed_tokens": 0.75}
TIED_GAIN_OF_GEMMA = {"embed_tokens": 0.12, "norm": 8.0}


def norm_center(architecture: str) -> float:
    """What a norm's weights lie around, so that it multiplies by about 1."""
    return 0.0 if FAMILIES[architecture].one_plus_norms else 1.0


def write_tiny(
    directory: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    old_rope: bool = False,
    draw: Draw | None = None,
    **overrides: Any,
) -> Path:
    """Write a checkpoint in which every parameter is random, and return its directory.

    Args:
      seed: the weights depend on it and on their own name and shape, on nothing else.
      dtype: `float32`, `float16` or `bfloat16`.
      shards: with more than 1, that many safetensors files and an index.
      old_rope: write top-level `rope_theta` and `rope_scaling`, as transformers did before version 5.
      draw: makes each weight from its name, its shape and the seed; when None, they are of usual sizes.
      overrides: config keys that replace those of TINY.
    """
    raw = {**TINY[architecture], **overrides, "dtype": dtype}
    config = from_hf(raw)
    if old_rope:
        scaling = dict(raw.pop("rope_parameters"))
        raw["rope_theta"] = scaling.pop("rope_theta")
        raw["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    center, tied = norm_center(architecture), config.tie_word_embeddings
    weights = {
        name: (draw(name, shape, seed) if draw else random_weight(name, shape, seed, center, tied)).astype(
            TINY_DTYPES[dtype]
        )
        for name, shape in stored_shapes(config).items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    files = ["model.safetensors"]
    if shards > 1:
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        weight_map = {name: files[i * shards // len(weights)] for i, name in enumerate(weights)}
        index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    else:
        weight_map = dict.fromkeys(weights, files[0])
    for file in files:
        part = {name: weight for name, weight in weights.items() if weight_map[name] == file}
        safetensors.numpy.save_file(part, directory / file, metadata={"format": "pt"})
        as_readable_as_the_config(directory / file)
    return directory


def random_weight(
    name: str, shape: tuple[int, ...], seed: int, center: float = 1.0, tied: bool = False
) -> np.ndarray:  # fmt: skip
    """Values of sensible scale for a weight of this name: float64, like `shape`. center: of a norm's weights."""
    mean, deviation = scale_of(name, shape, center, tied)
    return mean + deviation * stream(name, seed).standard_normal(shape)


def stream(name: str, seed: int) -> np.random.Generator:
    """Of its own for each name, so that one more weight does not change the others."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def scale_of(name: str, shape: tuple[int, ...], center: float = 1.0, tied: bool = False) -> tuple[float, float]:
    """Mean and standard deviation of a weight of this name and shape."""
    *_, kind = parts = name.split(".")
    if kind.endswith("bias"):
        # Wider ones would decide the next token, whatever came before it.
        return 0.0, 1 / 8
    if kind == "sinks":
        return 1.0, 1.0
    gains = TINY_GAIN | ((TIED_GAIN if center else TIED_GAIN_OF_GEMMA) if tied else {})
    gain = next((gains[part] for part in reversed(parts) if part in gains), 1.0)
    if "norm" in name:
        return center - 1 + gain, gain / 4
    # Matrices are [out, in] but for those of experts that are stored as one, [X, in, out].
    return 0.0, gain / shape[1] ** 0.5


def as_readable_as_the_config(path: Path) -> None:
    # safetensors writes through a private temporary file.
    path.chmod((path.parent / "config.json").stat().st_mode)
