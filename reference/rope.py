"""RoPE tables, computed in float64 and rounded once to float32."""

from __future__ import annotations

import numpy as np

from hloracle.reference.config import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Angle per position of each pair, float64 [D/2].

    Source: transformers `modeling_rope_utils.py`, `_compute_llama3_parameters`, and
    `LlamaRotaryEmbedding.compute_default_rope_parameters`.
    """
    inv_freq = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)  # [D/2]
    if rope.type == "default":
        return inv_freq
    # llama3: long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
    turns = rope.original_max_position_embeddings * inv_freq / (2 * np.pi)
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1 - smooth) * inv_freq / rope.factor + smooth * inv_freq


def rope_tables(rope: Rope, head_dim: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the angles at positions 0..length-1, each float32 [length, D/2]."""
    angles = np.outer(np.arange(length, dtype=np.float64), inverse_frequencies(rope, head_dim))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
