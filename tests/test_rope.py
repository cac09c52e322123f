"""RoPE tables against transformers' own, which are computed in float32."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import PUBLISHED

from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.config import Rope
from hloracle.reference.model.keys import ROPE_KEYS
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.model.rope import RopeTables, decode_tables, inverse_frequencies, prefill_tables

CONFIGS = Path(__file__).parent / "configs"
SHORT, LONG = [1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0], [1.0, 1.5, 2.2, 4.0, 7.0, 12.0, 20.0, 32.0]
# Every type, with what decides it chosen so that it matters; a head of the tiny llama has 16 dimensions, 8 pairs.
TYPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": TINY["llama"]["rope_parameters"],
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn-continuous": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32, "beta_fast": 16.0, "beta_slow": 2.0,
        "truncate": False, "attention_factor": 1.7,
    },
    "yarn-mscale": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 1.3
    },
    "yarn-one-mscale": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32, "mscale": 0.7},
    "yarn-shrinking": {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 32},
    "longrope": {
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 40
    },
    "longrope-factor": {
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 40,
        "factor": 7.0,
    },
    "longrope-attention": {
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 40,
        "attention_factor": 1.3,
    },
}  # fmt: skip


SETS = ("gemma3_text", "olmo3")  # with settings for each type of layer


def _with(rope_type: str, architecture: str = "llama") -> dict[str, Any]:
    # `dynamic` turns at the model's own length.
    length = {"max_position_embeddings": 40} if rope_type == "dynamic" else {}
    settings: dict[str, Any] = {"rope_theta": 10000.0, **TYPES[rope_type]}
    if architecture in SETS:
        settings = {"sliding_attention": settings, "full_attention": settings}
    return {**TINY[architecture], **length, "rope_parameters": settings}


MODELS: dict[str, dict[str, Any]] = {
    **{f"llama-{name}": _with(name) for name in TYPES},
    **{f"{architecture}-{name}": _with(name, architecture) for architecture in SETS for name in ROPE_KEYS},
    **{f"tiny-{architecture}": TINY[architecture] for architecture in FAMILIES},
    "smollm2-135m": json.loads((CONFIGS / "smollm2-135m.json").read_text()),
    "llama-3.2-1b": json.loads((CONFIGS / "llama-3.2-1b.json").read_text()),
    **{
        name: PUBLISHED[name]
        for name in (
            "deepseek-coder-6.7b", "Qwen2.5-7B-with-yarn", "gemma-3-4b-text", "Phi-3-mini-128k-instruct",
            "Phi-4-mini-instruct", "Olmo-3-7B", "c4ai-command-r-plus", "GLM-4-9B-0414", "gpt-oss-20b", "DeepSeek-V3",
        )
    },
}  # fmt: skip
TURNING = (
    *("llama-dynamic", "llama-longrope", "llama-longrope-factor", "llama-longrope-attention"),
    *("tiny-phi3", "tiny-seed_oss"),
    *(f"{architecture}-{name}" for architecture in SETS for name in ("dynamic", "longrope")),
)
# transformers rounds the exponent, the power and the quotient to float32: 3 roundings of 2^-24, the first of which
# the power multiplies by ln(theta) <= 18.2. About 1.4e-6 in all, and one rounding more for what is divided once more.
RTOL = 1.5e-6
# In an interpolated band the result is (1 - s)/factor + s with s rounded near 0 <= s <= 1: an error of a few 2^-24
# in s is `factor` (at most 40 here) times as large relative to the result where s is small.
RTOL_INTERPOLATED = 1e-5


def rtol(rope: Rope) -> float:
    return RTOL_INTERPOLATED if rope.type in ("llama3", "yarn") else RTOL


class Theirs:
    """transformers' rotary module of a model; of those with several sets of settings, as seen by one type of layer."""

    def __init__(self, raw: dict[str, Any], layer: int) -> None:
        import torch
        import transformers

        before = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        try:
            config = transformers.AutoConfig.for_model(**copy.deepcopy(raw))
            shallow = copy.deepcopy(config)
            with torch.device("meta"):
                model = transformers.AutoModel.from_config(shallow)
            self.module = type(model.rotary_emb)(config)
        finally:
            transformers.logging.set_verbosity(before)
        several = "full_attention" in config.rope_parameters
        self.kind = {"layer_type": config.layer_types[layer]} if several else {}
        self.prefix = f"{config.layer_types[layer]}_" if several else ""

    @property
    def inverse_frequencies(self) -> np.ndarray:
        return getattr(self.module, f"{self.prefix}inv_freq").numpy()

    @property
    def attention_factor(self) -> float:
        return float(getattr(self.module, f"{self.prefix}attention_scaling"))

    def tables(self, positions: Any) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin [positions, dim/2], in a call of its own: what the angles depend on is the largest position."""
        import torch

        pairs = len(self.inverse_frequencies)
        both = (t[0].numpy() for t in self.module(torch.zeros(1), torch.tensor(positions)[None], **self.kind))

        def once(table: np.ndarray) -> np.ndarray:
            if table.shape[1] == pairs:
                return table
            halves = table[:, :pairs], table[:, pairs:]
            first, second = halves if np.array_equal(*halves) else (table[:, 0::2], table[:, 1::2])
            np.testing.assert_array_equal(first, second)
            return first

        cos, sin = map(once, both)
        return cos, sin


def ropes(model: str) -> list[tuple[Rope, Theirs]]:
    """Each setting of RoPE that a model has, with the module of the first layer that has it."""
    config = from_hf(MODELS[model])
    found: dict[Rope, int] = {}
    for i, layer in enumerate(config.layers):
        if layer.rope:
            found.setdefault(layer.rope, i)
    assert tuple(found) == config.ropes
    return [(rope, Theirs(MODELS[model], i)) for rope, i in found.items()]


def close(ours: np.ndarray, theirs: np.ndarray, rope: Rope, last: int) -> None:
    # An angle is up to `last` radians and as wrong, relatively, as the frequency and one rounding.
    atol = rope.attention_factor * (max(last, 1) * (rtol(rope) + 2**-24) + 2**-23)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=atol)


def test_every_type_is_here() -> None:
    assert {from_hf(MODELS[f"llama-{name}"]).ropes[0].type for name in TYPES} == ROPE_KEYS.keys()


@pytest.mark.parametrize("model", MODELS)
def test_inverse_frequencies(model: str) -> None:
    for rope, theirs in ropes(model):
        ours = inverse_frequencies(rope)
        assert ours.shape == (rope.dim // 2,)
        assert ours.dtype == np.float64
        assert theirs.inverse_frequencies.dtype == np.float32
        np.testing.assert_allclose(theirs.inverse_frequencies, ours, rtol=rtol(rope), atol=0)
        assert rope.attention_factor == pytest.approx(theirs.attention_factor, rel=1e-12)


@pytest.mark.parametrize("name", [n for n in TYPES if n != "default"])
def test_no_type_is_another(name: str) -> None:
    """What is compared above is not the default in disguise."""
    plain = inverse_frequencies(from_hf(_with("default")).ropes[0])
    rope = from_hf(_with(name)).ropes[0]
    assert not np.allclose(inverse_frequencies(rope, 100), plain, rtol=1e-2)


@pytest.mark.parametrize("model", ["llama-llama3", "llama-3.2-1b"])
def test_llama3_scaling_has_its_three_bands(model: str) -> None:
    (rope,) = from_hf(MODELS[model]).ropes
    plain = rope.theta ** -(np.arange(0, rope.dim, 2) / rope.dim)
    wavelength = 2 * np.pi / plain
    stretch = plain / inverse_frequencies(rope)
    short = wavelength < rope.original_max_position_embeddings / rope.high_freq_factor
    long = wavelength > rope.original_max_position_embeddings / rope.low_freq_factor
    np.testing.assert_allclose(stretch[short], 1, rtol=1e-12)
    np.testing.assert_allclose(stretch[long], rope.factor, rtol=1e-12)
    between = stretch[~short & ~long]
    assert len(between) > 0
    assert ((between > 1) & (between < rope.factor)).all()
    assert (np.diff(stretch) >= 0).all()


# ---- tables


@pytest.mark.parametrize("model", [m for m in MODELS if m not in TURNING])
def test_tables(model: str) -> None:
    """Of a prefill and of a decode alike, where the angles do not depend on the sequence's length."""
    length = 1024
    for rope, theirs in ropes(model):
        if rope.turning_point is not None:
            assert rope.turning_point > length
        found = prefill_tables(rope, length)
        assert found.cos.shape == found.sin.shape == (1, length, rope.dim // 2)
        assert found.cos.dtype == found.sin.dtype == np.float32
        for ours, table in zip((found.cos[0], found.sin[0]), theirs.tables(range(length)), strict=True):
            close(ours, table, rope, length)
        decode = decode_tables(rope, length)
        np.testing.assert_array_equal(decode.cos, found.cos)
        np.testing.assert_array_equal(decode.sin, found.sin)


def variant(tables: RopeTables, length: int) -> tuple[np.ndarray, np.ndarray]:
    """What a graph takes for a prompt of `length` tokens."""
    i = min(max(length - tables.first, 0), len(tables.cos) - 1)
    return tables.cos[i], tables.sin[i]


@pytest.mark.parametrize("model", TURNING)
def test_decode_tables_turn_where_transformers_does(model: str) -> None:
    """Each row is what its module returns when it is called position by position with growing length."""
    ((rope, theirs),) = ropes(model)
    assert rope.turning_point is not None
    capacity = rope.turning_point + 24
    found = decode_tables(rope, capacity)
    assert found.cos.shape == (1, capacity, rope.dim // 2)
    for position in range(capacity):
        for ours, table in zip((found.cos, found.sin), theirs.tables([position]), strict=True):
            close(ours[0, position], table[0], rope, position)
    # And it does turn: the angles are not those of a short sequence.
    short = np.cos(np.outer([capacity - 1], inverse_frequencies(rope)))[0] * rope.attention_factor
    assert np.abs(found.cos[0, -1] - short).max() > 0.05


@pytest.mark.parametrize("bucket", [32, 64])
@pytest.mark.parametrize("model", TURNING)
def test_prefill_tables_turn_where_transformers_does(model: str, bucket: int) -> None:
    ((rope, _),) = ropes(model)
    original = rope.turning_point
    assert original == 40
    tables = prefill_tables(rope, bucket)
    assert len(tables.cos) == (1 if bucket < original else 2 if rope.type == "longrope" else bucket - original + 1)
    for length in (1, 31, 32, original - 1, original, original + 1, original + 2, bucket - 1, bucket):
        if length <= bucket:
            # A module of its own for each prompt: `dynamic` remembers how long one was.
            ((_, theirs),) = ropes(model)
            for ours, table in zip(variant(tables, length), theirs.tables(range(length)), strict=True):
                assert ours.shape == (bucket, rope.dim // 2)
                close(ours[:length], table, rope, length)


@pytest.mark.parametrize("model", TURNING)
def test_the_boundary(model: str) -> None:
    """A sequence of the original length is still turned as a short one, and one token more changes all of its angles."""
    ((rope, _),) = ropes(model)
    original = rope.turning_point
    assert original is not None
    short, same, longer = (inverse_frequencies(rope, n) for n in (1, original, original + 1))
    np.testing.assert_array_equal(short, same)
    # The first pair of each turns by one radian a token, whatever the scaling.
    assert (longer[1:] < short[1:]).all()
    tables = prefill_tables(rope, original + 8)
    np.testing.assert_array_equal(variant(tables, 1)[0], variant(tables, original)[0])
    assert (variant(tables, original)[0][5] != variant(tables, original + 1)[0][5]).any()
    assert (variant(tables, original + 1)[0][5] != variant(tables, original + 2)[0][5]).any() == (
        rope.type == "dynamic"
    )


def test_bucket_of_exactly_the_original_length() -> None:
    (rope,) = from_hf(MODELS["llama-longrope"]).ropes
    assert rope.turning_point == 40
    assert len(prefill_tables(rope, 40).cos) == 1
    assert len(prefill_tables(rope, 41).cos) == 2
    np.testing.assert_array_equal(variant(prefill_tables(rope, 41), 40)[0][:40], prefill_tables(rope, 40).cos[0])


def test_position_zero_does_not_turn() -> None:
    tables = decode_tables(from_hf(TINY["llama"]).ropes[0], 1)
    assert (tables.cos == 1).all()
    assert (tables.sin == 0).all()


def test_tables_are_rounded_once() -> None:
    """At position 1e5 a float32 angle is wrong by 1e-3; the table must not be."""
    (rope,) = from_hf(MODELS["llama-3.2-1b"]).ropes
    cos = prefill_tables(rope, 100_001).cos[0]
    angle = 100_000 * inverse_frequencies(rope)
    np.testing.assert_allclose(cos[-1], np.cos(angle), rtol=0, atol=2**-24)


def test_tables_that_are_too_large_for_a_graph() -> None:
    rope = Rope("dynamic", 10000.0, 16, factor=2.0, original_max_position_embeddings=40)
    assert len(prefill_tables(rope, 600).cos) == 561
    with pytest.raises(
        InputError, match="--capacity: turns by other angles at each length beyond 40, and all up to 4,096"
    ):
        prefill_tables(rope, 4096)
    assert len(decode_tables(rope, 4096).cos) == 1
