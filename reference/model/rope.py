"""RoPE tables, computed in float64 and rounded once to float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hloracle.core.errors import InputError
from hloracle.reference.model.config import Rope

LARGEST = 2**24  # numbers of a table: as much text as eight times so many bytes


@dataclass(frozen=True)
class RopeTables:
    """cos and sin of the angles at each position, float32 [V, positions, dim/2].

    Most RoPE has one variant, V = 1. Where the angles depend on how long the sequence is, variant `length - first`
    belongs to a prompt of `length` tokens, or the first or the last where there is no such variant.
    """

    cos: np.ndarray
    sin: np.ndarray
    first: int = 0


def inverse_frequencies(rope: Rope, length: int = 0) -> np.ndarray:
    """Angle per position of each pair, float64 [dim/2], in a sequence of `length` tokens.

    Source: transformers `modeling_rope_utils.py`, `_compute_*_parameters`, and
    `LlamaRotaryEmbedding.compute_default_rope_parameters`.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    theta, original = rope.theta, rope.original_max_position_embeddings
    if rope.type == "dynamic" and length > original:
        # The base grows with the sequence, so that the longest wavelength spans it.
        theta *= (rope.factor * length / original - (rope.factor - 1)) ** (rope.dim / (rope.dim - 2))
    inv_freq: np.ndarray = theta**-exponents
    if rope.type == "linear":
        return inv_freq / rope.factor
    if rope.type == "longrope":
        return np.asarray(inv_freq / np.array(rope.long_factor if length > original else rope.short_factor))
    if rope.type == "llama3":
        # Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
        turns = original * inv_freq / (2 * np.pi)
        kept: np.ndarray = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    elif rope.type == "yarn":
        # The same by the index of the pair, between those that turn beta_fast and beta_slow times.
        low, high = (
            rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (rope.beta_fast, rope.beta_slow)
        )
        if rope.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope.dim - 1)
        kept = 1 - (np.arange(rope.dim // 2) - low) / (high - low or 0.001)
    else:
        return inv_freq
    kept = np.clip(kept, 0.0, 1.0)
    return np.asarray((1 - kept) * inv_freq / rope.factor + kept * inv_freq)


def decode_tables(rope: Rope, capacity: int) -> RopeTables:
    """Tables for a decode graph: one variant, in which each position has the angles of a sequence that ends there."""
    return _tables(
        rope, [np.stack([position * inverse_frequencies(rope, position + 1) for position in range(capacity)])]
    )


def prefill_tables(rope: Rope, tokens: int) -> RopeTables:
    """Tables for prompts of up to `tokens` tokens. Raises InputError where they are too large for a graph."""
    first, lengths = rope.turning_point, [tokens]
    if first is not None and first < tokens:
        # longrope has two sets of angles, dynamic another one for each length.
        lengths = list(range(first, (first + 1 if rope.type == "longrope" else tokens) + 1))
        if len(lengths) * tokens * rope.dim // 2 > LARGEST:
            what = f"turns by other angles at each length beyond {first}, and all up to {tokens:,} are too many for a graph"
            raise InputError(what, "--capacity", "ask for fewer slots, or give the prompt token by token")
    positions = np.arange(tokens, dtype=np.float64)
    return _tables(rope, [np.outer(positions, inverse_frequencies(rope, n)) for n in lengths], lengths[0])


def _tables(rope: Rope, angles: list[np.ndarray], first: int = 0) -> RopeTables:
    cos, sin = ((rope.attention_factor * f(np.stack(angles))).astype(np.float32) for f in (np.cos, np.sin))
    return RopeTables(cos, sin, first)
