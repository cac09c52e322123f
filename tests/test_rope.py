"""RoPE tables against transformers' own, which are computed in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloracle.reference.fixtures import TINY
from hloracle.reference.registry import from_hf
from hloracle.reference.rope import inverse_frequencies, rope_tables

CONFIGS = Path(__file__).parent / "configs"
MODELS = {
    "tiny": TINY["llama"],
    "tiny-default": {**TINY["llama"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "smollm2-135m": json.loads((CONFIGS / "smollm2-135m.json").read_text()),
    "llama-3.2-1b": json.loads((CONFIGS / "llama-3.2-1b.json").read_text()),
}
# transformers rounds the exponent, the power and the quotient to float32: 3 roundings of 2^-24, the first of which
# the power multiplies by ln(theta) <= 13.2. About 1e-6 in all.
RTOL_DEFAULT = 1e-6
# In the interpolated band the result is (1 - s)/factor + s with s rounded near 0 <= s <= 1: an error of a few 2^-24
# in s is `factor` (at most 32 here) times as large relative to the result where s is small.
RTOL_LLAMA3 = 8e-6


def _embedding(raw: dict[str, Any]) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(LlamaConfig.from_dict(raw))


@pytest.mark.parametrize("model", MODELS)
def test_inverse_frequencies(model: str) -> None:
    config = from_hf(MODELS[model])
    ours = inverse_frequencies(config.rope, config.head_dim)
    assert ours.shape == (config.head_dim // 2,)
    assert ours.dtype == np.float64
    theirs = _embedding(MODELS[model]).inv_freq.numpy()
    assert theirs.dtype == np.float32
    rtol = RTOL_LLAMA3 if config.rope.type == "llama3" else RTOL_DEFAULT
    np.testing.assert_allclose(theirs, ours, rtol=rtol, atol=0)


@pytest.mark.parametrize("model", ["tiny", "llama-3.2-1b"])
def test_llama3_scaling_has_its_three_bands(model: str) -> None:
    config = from_hf(MODELS[model])
    rope, head_dim = config.rope, config.head_dim
    plain = rope.theta ** -(np.arange(0, head_dim, 2) / head_dim)
    wavelength = 2 * np.pi / plain
    stretch = plain / inverse_frequencies(rope, head_dim)
    short = wavelength < rope.original_max_position_embeddings / rope.high_freq_factor
    long = wavelength > rope.original_max_position_embeddings / rope.low_freq_factor
    np.testing.assert_allclose(stretch[short], 1, rtol=1e-12)
    np.testing.assert_allclose(stretch[long], rope.factor, rtol=1e-12)
    between = stretch[~short & ~long]
    assert len(between) > 0
    assert ((between > 1) & (between < rope.factor)).all()
    assert (np.diff(stretch) >= 0).all()


@pytest.mark.parametrize("model", MODELS)
def test_rope_tables(model: str) -> None:
    import torch

    config, length = from_hf(MODELS[model]), 1024
    cos, sin = rope_tables(config.rope, config.head_dim, length)
    assert cos.shape == sin.shape == (length, config.head_dim // 2)
    assert cos.dtype == sin.dtype == np.float32
    theirs = _embedding(MODELS[model])(torch.zeros(1), torch.arange(length)[None])
    # An angle is up to `length` radians and as wrong, relatively, as the frequency and one rounding.
    rtol = RTOL_LLAMA3 if config.rope.type == "llama3" else RTOL_DEFAULT
    for ours, table in zip((cos, sin), theirs, strict=True):
        halves = table[0].numpy().reshape(length, 2, -1)
        np.testing.assert_array_equal(halves[:, 0], halves[:, 1])
        np.testing.assert_allclose(halves[:, 0], ours, rtol=0, atol=length * (rtol + 2**-24))


def test_position_zero_does_not_turn() -> None:
    config = from_hf(TINY["llama"])
    cos, sin = rope_tables(config.rope, config.head_dim, 1)
    assert (cos == 1).all()
    assert (sin == 0).all()


def test_tables_are_rounded_once() -> None:
    """At position 1e5 a float32 angle is wrong by 1e-3; the table must not be."""
    config = from_hf(MODELS["llama-3.2-1b"])
    cos, _ = rope_tables(config.rope, config.head_dim, 100_001)
    angle = 100_000 * inverse_frequencies(config.rope, config.head_dim)
    np.testing.assert_allclose(cos[-1], np.cos(angle), rtol=0, atol=2**-24)
