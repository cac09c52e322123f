"""GGUF files of tiny models, with the keys, names and layouts that llama.cpp's converter writes.

Source: llama.cpp, `set_gguf_parameters` and `modify_tensors` of each model's class in convert_hf_to_gguf.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from hloracle.reference.fixtures.tiny import TINY, norm_center, random_weight
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import weight_shapes

# GGUF's names of the architectures that transformers reads right, and transformers' own.
ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe",
    "phi3": "phi3", "stablelm": "stablelm", "starcoder2": "starcoder2", "gemma2": "gemma2", "gemma3": "gemma3_text",
}  # fmt: skip
# A vocabulary of 256 bytes, two merges and two special tokens; sizes that a quantized block of 32 divides.
_SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "vocab_size": 260,
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}
_DEFAULT_THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256, "layer_types": None}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": []}
# What transformers takes its class' default for, whatever a file says, has to be that default.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**_SHAPE, "head_dim": 32},
    "qwen2": {**_SHAPE, "head_dim": None, "use_sliding_window": False},
    "qwen3": {**_SHAPE, "head_dim": 128, "attention_bias": False, "use_sliding_window": False},
    "qwen2_moe": {
        **_SHAPE, **_EXPERTS, "head_dim": None, "use_sliding_window": False, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3_moe": {**_SHAPE, **_EXPERTS, "moe_intermediate_size": 768},
    "phi3": {
        **_SHAPE, "sliding_window": None, "original_max_position_embeddings": 4096, "partial_rotary_factor": 1.0,
    },
    "stablelm": {**_SHAPE, **_DEFAULT_THETA, "qk_layernorm": False},
    "starcoder2": {**_SHAPE, **_DEFAULT_THETA, "head_dim": None, "sliding_window": None},
    "gemma2": {**_SHAPE, **_DEFAULT_THETA, **_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    # The sixth layer is the first one without a window.
    "gemma3_text": {
        **_SHAPE, **_GEMMA, "num_hidden_layers": 6,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
    },
}  # fmt: skip
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"


def config_of(model_type: str, **overrides: Any) -> Config:
    """Of a file that is written with the same arguments; a norm's epsilon is a float32 there."""
    raw = {**TINY[model_type], **SHAPES[model_type], **overrides}
    eps = {key: float(np.float32(raw[key])) for key in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon") if key in raw}
    return from_hf(
        {key: value for key, value in {**raw, **eps}.items() if value is not None or key == "sliding_window"}
    )


def keys_of(architecture: str, config: Config) -> dict[str, Any]:
    """The keys that the converter writes, without the architecture before them."""
    theta = next((layer.rope for layer in config.layers if layer.window is None), config.ropes[0]).theta
    window = max(window or 0 for window in config.windows)
    epsilon = "layer_norm_epsilon" if config.norm_bias else "layer_norm_rms_epsilon"
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        f"attention.{epsilon}": config.norm_eps,
    }
    if architecture in ("llama", "qwen3", "qwen3moe", "gemma2", "gemma3"):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if architecture in ("llama", "phi3", "stablelm"):
        keys["rope.dimension_count"] = config.ropes[0].dim
    if architecture not in ("stablelm", "gemma2"):
        keys["rope.freq_base"] = theta
    if architecture in ("phi3", "gemma2", "gemma3"):
        keys["attention.sliding_window"] = window
    if architecture == "llama":
        keys["vocab_size"] = config.vocab_size
    elif architecture == "phi3":
        keys["rope.scaling.original_context_length"] = 4096
    elif architecture == "stablelm":
        keys["use_parallel_residual"] = config.use_parallel_residual
    elif architecture == "gemma2":
        keys["attn_logit_softcapping"] = config.attn_logit_softcapping
        keys["final_logit_softcapping"] = config.final_logit_softcapping
    elif architecture == "gemma3":
        keys["rope.freq_base_swa"] = config.layers[0].rope.theta if config.layers[0].rope else None
    if config.experts:
        keys["expert_count"] = config.experts.num_experts
        keys["expert_used_count"] = config.experts.num_experts_per_tok
        keys["expert_feed_forward_length"] = config.experts.intermediate_size
        if config.experts.shared_intermediate_size:
            keys["expert_shared_feed_forward_length"] = config.experts.shared_intermediate_size
    return keys


def weights_of(config: Config) -> dict[str, np.ndarray]:
    """A tiny model's weights, float32."""
    center = norm_center(config.architecture)
    weights = {
        name: random_weight(name, shape, 7, center, config.tie_word_embeddings).astype(np.float32)
        for name, shape in weight_shapes(config).items()
    }
    # They keep all their bits when 1 is added.
    norms = [name for name in weights if not center and name.endswith("norm.weight")]
    return weights | {name: np.round(weights[name] * 256) / 256 for name in norms}


def tensors_of(architecture: str, config: Config, name: str, weight: np.ndarray) -> dict[str, np.ndarray]:
    """A weight under GGUF's name, as it lies there; that of all experts' gate and up is two."""
    (known,) = (number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    if name.endswith(".experts.gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        gate, up = np.split(weight, 2, axis=1)
        return {f"{names.get_name(f'{stem}{one}_proj')}.weight": half for one, half in (("gate", gate), ("up", up))}
    found = names.get_name(name, (".weight", ".bias")) + (".weight" if name.endswith(".experts.down_proj") else "")
    for part, heads in (("attn_q.", config.num_attention_heads), ("attn_k.", config.num_key_value_heads)):
        if architecture == "llama" and part in found:
            # llama.cpp turns neighbours, Hugging Face halves: rows of each head are interleaved.
            weight = weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    if not norm_center(config.architecture) and found.endswith("norm.weight"):
        weight = weight + 1
    return {found: weight[0] if name.endswith("shared_expert_gate.weight") else weight}


def write_gguf(
    path: Path,
    matrices: Type = Type.F32,
    *,
    others: dict[str, Type] | None = None,
    architecture: str = "llama",
    called: str = "",
    keys: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    add: dict[str, np.ndarray] | None = None,
    tokenizer: bool = True,
    **overrides: Any,
) -> dict[str, np.ndarray]:
    """Write a tiny model; returns its weights under Hugging Face's names, as stored.

    Args:
      others: types of weights whose Hugging Face names end so, in place of `matrices`.
      architecture: as the file says; one that is in none of ours is written as a llama.
      called: the file's own name of the model.
      keys: further keys, without the architecture before them, or others in their place; None leaves one out.
      drop, add: tensors that are left out, and further ones, under GGUF's names.
    """
    layout = architecture if architecture in ARCHITECTURES else "llama"
    config = config_of(ARCHITECTURES[layout], **overrides)
    weights = weights_of(config)
    writer = gguf.GGUFWriter(path, architecture)
    if called:
        writer.add_name(called)
    for key, value in {**keys_of(layout, config), **(keys or {})}.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if value is not None:
            kinds[type(value)](f"{architecture}.{key}", value)
    if tokenizer:
        _add_tokenizer(writer)
    for name, weight in weights.items():
        kind = matrices if weight.squeeze().ndim > 1 else Type.F32
        kind = next((other for ending, other in (others or {}).items() if name.endswith(ending)), kind)
        stored = gguf.quants.quantize(weight, kind)
        weights[name] = gguf.quants.dequantize(stored, kind).astype(np.float32)
        for found, tensor in tensors_of(layout, config, name, stored).items():
            if found not in drop:
                writer.add_tensor(found, np.ascontiguousarray(tensor), raw_dtype=kind)
    for name, weight in (add or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters, "th", "the", "<|im_start|>", "<|im_end|>"])
    writer.add_token_types([1] * 258 + [3] * 2)
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(259)
    writer.add_unk_token_id(259)
    writer.add_pad_token_id(259)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
