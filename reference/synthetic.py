"""Checkpoints of the shapes of published models with random weights: what speed and memory are measured with at real size.

They are bfloat16, as the published ones are, and have no tokenizer. They are written tensor by tensor and read as any other
checkpoint; what they say means nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from hloracle.reference.registry import from_hf
from hloracle.reference.tensor_file import write_tensors
from hloracle.reference.tiny import norm_center, scale_of, stream
from hloracle.reference.weights import stored_shapes

# What is drawn in one go: float32 values of a large tensor, which is held in bfloat16.
CHUNK = 1 << 22


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, **own: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": intermediate,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "dtype": "bfloat16", **own,
    }  # fmt: skip


_LLAMA_3_2: dict[str, Any] = {
    "vocab_size": 128256, "max_position_embeddings": 131072,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
_SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152, "max_position_embeddings": 8192, "head_dim": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}  # fmt: skip
SYNTHETIC: dict[str, dict[str, Any]] = {
    "synthetic-llama-135m": _llama(30, 576, 9, 3, 1536, **_SMOLLM2),
    "synthetic-llama-1b": _llama(16, 2048, 32, 8, 8192, head_dim=64, **_LLAMA_3_2),
    "synthetic-llama-3b": _llama(28, 3072, 24, 8, 8192, head_dim=128, **_LLAMA_3_2),
}
SHAPE_OF = {
    "synthetic-llama-135m": "SmolLM2 135M",
    "synthetic-llama-1b": "Llama 3.2 1B",
    "synthetic-llama-3b": "Llama 3.2 3B",
}


def write_synthetic(directory: Path, raw: dict[str, Any], seed: int = 0) -> Path:
    """Write a checkpoint of this config in bfloat16, with no more than one tensor in memory; returns its directory.

    Args:
      seed: each weight depends on it and on its own name and shape, on nothing else.
    """
    config = from_hf(raw)
    center, tied = norm_center(config.architecture), config.tie_word_embeddings
    shapes = stored_shapes(config)

    def tensor(name: str) -> np.ndarray:
        mean, deviation = (np.float32(x) for x in scale_of(name, shapes[name], center, tied))
        rng, drawn = stream(name, seed), np.empty(shapes[name], ml_dtypes.bfloat16)
        flat = drawn.reshape(-1)
        for at in range(0, flat.size, CHUNK):
            values = rng.standard_normal(min(CHUNK, flat.size - at), np.float32)
            flat[at : at + CHUNK] = mean + deviation * values
        return drawn

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    write_tensors(directory / "model.safetensors", {name: ("BF16", shape) for name, shape in shapes.items()}, tensor)
    return directory
