"""Random models of an architecture, other shapes and options for each seed, made by transformers' own classes.

    python -c "from hloracle.reference.random_model import write_random; write_random('qwen3', 1, 'DIR')"
    hloracle run DIR

Nothing of ours says here which weights a model has, what they are called or how a checkpoint stores them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.errors import InputError
from hloracle.reference.registry import FAMILIES
from hloracle.reference.tiny import TINY, norm_center, random_weight

Draw = Callable[..., Any]
VOCABULARIES = (97, 129, 211, 257, 383, 509)  # prime or odd: nothing divides them evenly
# The hidden size of these is what all heads together are wide.
SQUARE = ("phi3", "stablelm", "olmoe")
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "longrope": {"original_max_position_embeddings": 40, "factor": 4.0},
}  # fmt: skip
# Types of RoPE that an architecture reads; the others have all of them.
ROPES_OF = {"phi3": ("default", "longrope")}


def draw_config(architecture: str, seed: int) -> dict[str, Any]:
    """Keys of a random config, for transformers' config class of this architecture."""
    rng = np.random.default_rng([seed, *architecture.encode()])

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    kv_heads, layers = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    # A quarter of a head is turned in pairs too, and `dynamic` turns more than one.
    least = 2 if "partial_rotary_factor" in TINY[architecture] else 1
    heads, head_dim = kv_heads * one_of(1, 2, 3, 5), 8 * int(rng.integers(least, 4))

    # transformers wants a multiple of the heads; an odd one is not head_dim, which is even.
    hidden = heads * (head_dim if architecture in SQUARE else int(rng.integers(4, 10)) * 2 + 1)
    raw = {key: value for key, value in TINY[architecture].items() if key not in ("architectures", "model_type")}
    raw |= {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": one_of(29, 48, 67, 96, 113),
        "vocab_size": one_of(*VOCABULARIES), "max_position_embeddings": 512,
    }  # fmt: skip
    if "head_dim" in raw:
        raw["head_dim"] = head_dim
    for key in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon"):
        if key in raw:
            raw[key] = float(10 ** rng.uniform(-6, -3))
    for key in ("attention_bias", "mlp_bias", "use_bias", "qkv_bias", "use_qkv_bias", "attention_out_bias"):
        if key in raw:
            raw[key] = one_of(True, False)
    if not FAMILIES[architecture].one_plus_norms:
        raw["tie_word_embeddings"] = one_of(True, False)
    for key in ("use_qk_norm", "qk_layernorm", "use_parallel_residual", "norm_topk_prob", "use_sliding_window"):
        if key in raw:
            raw[key] = one_of(True, False)
    if "layer_types" in raw:
        raw["layer_types"] = [one_of("sliding_attention", "full_attention") for _ in range(layers)]
    if raw.get("sliding_window"):
        raw["sliding_window"] = int(rng.integers(5, 24))
    if "max_window_layers" in raw:
        raw["max_window_layers"] = int(rng.integers(layers))
    raw |= _own(architecture, one_of, layers, rng)
    rotary = int(
        (raw["hidden_size"] // heads if "head_dim" not in raw else raw["head_dim"])
        * raw.get("partial_rotary_factor", 1.0)
    )
    return raw | _rope(architecture, one_of, rotary if architecture != "deepseek_v3" else raw["qk_rope_head_dim"], rng)


def _own(architecture: str, one_of: Draw, layers: int, rng: np.random.Generator) -> dict[str, Any]:
    """Keys that only some architectures have."""
    experts = {"num_experts_per_tok": int(rng.integers(1, 4)), "norm_topk_prob": one_of(True, False)}
    count, width = int(rng.integers(4, 9)), one_of(12, 20, 31)
    sparse = {"mlp_only_layers": [i for i in range(layers) if one_of(True, False)][:1], "decoder_sparse_step": 1}
    own: dict[str, Callable[[], dict[str, Any]]] = {
        "gemma2": lambda: {
            "query_pre_attn_scalar": one_of(7, 24), "attn_logit_softcapping": one_of(None, 3.0, 20.0),
            "final_logit_softcapping": one_of(None, 5.0),
        },
        "gemma3_text": lambda: {"query_pre_attn_scalar": one_of(7, 24)},
        "phi3": lambda: {
            "sliding_window": one_of(None, 19), "original_max_position_embeddings": 40,
            "partial_rotary_factor": one_of(1.0, 0.5),
        },
        "smollm3": lambda: {"no_rope_layers": [one_of(0, 1) for _ in range(layers - 1)] + [1]},
        "granite": lambda: {
            "embedding_multiplier": float(rng.uniform(0.5, 8)), "attention_multiplier": float(rng.uniform(0.05, 0.4)),
            "residual_multiplier": float(rng.uniform(0.2, 1)), "logits_scaling": float(rng.uniform(0.5, 6)),
        },
        "cohere": lambda: {"logit_scale": float(rng.uniform(0.1, 1))},
        "cohere2": lambda: {"logit_scale": float(rng.uniform(0.1, 1))},
        "stablelm": lambda: {"partial_rotary_factor": one_of(0.25, 0.5, 1.0)},
        "glm4": lambda: {"partial_rotary_factor": one_of(0.5, 1.0)},
        "mixtral": lambda: {
            "num_local_experts": count, "num_experts_per_tok": experts["num_experts_per_tok"],
            "sliding_window": one_of(None, 9),
        },
        "qwen2_moe": lambda: {
            **experts, **sparse, "num_experts": count, "moe_intermediate_size": width,
            "shared_expert_intermediate_size": one_of(17, 40),
        },
        "qwen3_moe": lambda: {
            **experts, **sparse, "num_experts": count, "moe_intermediate_size": width,
            "use_sliding_window": one_of(True, False), "sliding_window": 9,
        },
        "olmoe": lambda: {**experts, "num_experts": count, "intermediate_size": width, "clip_qkv": one_of(None, 1.0)},
        "gpt_oss": lambda: {
            "num_experts_per_tok": experts["num_experts_per_tok"], "num_local_experts": count,
            "intermediate_size": width, "swiglu_limit": float(rng.uniform(0.5, 5)),
        },
        "deepseek_v3": lambda: {
            **experts, "num_key_value_heads": None, "n_routed_experts": one_of(8, 12), "n_group": one_of(1, 2, 4),
            "topk_group": 1, "moe_intermediate_size": width, "n_shared_experts": one_of(1, 2),
            "first_k_dense_replace": int(rng.integers(layers)), "routed_scaling_factor": float(rng.uniform(0.5, 3)),
            "q_lora_rank": one_of(None, 21), "kv_lora_rank": one_of(19, 36), "qk_nope_head_dim": one_of(6, 14),
            "qk_rope_head_dim": one_of(4, 8), "v_head_dim": one_of(9, 18), "rope_interleave": one_of(True, False),
            "num_experts_per_tok": 2,
        },
    }  # fmt: skip
    return own[architecture]() if architecture in own else {}


def _rope(architecture: str, one_of: Draw, dim: int, rng: np.random.Generator) -> dict[str, Any]:
    """RoPE settings of any type that the architecture reads."""

    def settings() -> dict[str, Any]:
        kind = one_of(*ROPES_OF.get(architecture, tuple(ROPES)))
        found = {"rope_type": kind, "rope_theta": float(10 ** rng.uniform(2.5, 6)), **ROPES[kind]}
        if kind == "longrope":
            found |= {key: rng.uniform(1, 6, dim // 2).tolist() for key in ("short_factor", "long_factor")}
        return found

    if architecture in ("gemma3_text", "olmo3"):
        found = {"sliding_attention": settings(), "full_attention": settings()}
        kinds = [one["rope_type"] for one in found.values()]
    else:
        found = settings()
        kinds = [found["rope_type"]]
    # It grows from the length that the model was trained on.
    longest = {"max_position_embeddings": 40} if "dynamic" in kinds else {}
    return {"rope_parameters": found, **longest}


def write_random(architecture: str, seed: int, directory: Path | str) -> Path:
    """Save a random model of this architecture as transformers does, every parameter filled; returns its directory."""
    if architecture not in FAMILIES:
        raise InputError("is no architecture that is supported", architecture, f"use one of {', '.join(FAMILIES)}")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    raw = draw_config(architecture, seed)
    partial = raw.pop("partial_rotary_factor", None)
    if partial is not None:
        raw["rope_parameters"]["partial_rotary_factor"] = partial
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(architecture, **raw), dtype=torch.float32
    )
    center = norm_center(architecture)
    filled = set()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.data_ptr() in filled:  # a tied head
                continue
            filled.add(tensor.data_ptr())
            # Experts are [X, out, in] here, but for GPT-OSS's.
            turned = tensor.ndim == 3 and architecture != "gpt_oss"
            shape = tuple(tensor.mT.shape if turned else tensor.shape)
            values = torch.from_numpy(random_weight(name, shape, seed, center, model.config.tie_word_embeddings))
            tensor.copy_(values.mT if turned else values)
    transformers.logging.disable_progress_bar()
    model.save_pretrained(directory)
    return Path(directory)


if __name__ == "__main__":
    write_random(sys.argv[1], int(sys.argv[2]), sys.argv[3])
