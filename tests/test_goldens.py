"""The emitted text of small graphs, line by line. A golden catches change, not error: each is also run.

After an intended change, `UPDATE_GOLDENS=1 python -m pytest tests/test_goldens.py` writes them anew; review the diff.
"""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from graphs import parse, run
from nightly import only

from hloracle.core.abi import CACHES, Graph
from hloracle.emitters.model import Emitter, emit
from hloracle.reference.fixtures.tiny import TINY, norm_center
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle.model import decode, prefill

GOLDENS = Path(__file__).parent / "goldens"
UPDATE = "UPDATE_GOLDENS=1 python -m pytest tests/test_goldens.py"
T, S = 3, 5  # short, because RoPE's tables are written out
SMALL: dict[str, Any] = {
    "hidden_size": 10,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 14,
    "vocab_size": 17,
}
SQUARE = {"hidden_size": 24, "head_dim": None}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3}
WINDOW = {"sliding_window": 2}
# What is turned at a length, turns at that of two tokens.
OWN: dict[str, dict[str, Any]] = {
    "mistral": WINDOW,
    "qwen2": WINDOW,
    "qwen3": WINDOW,
    "smollm3": WINDOW,
    "gemma": {"hidden_size": 18},
    "gemma2": {"hidden_size": 18, **WINDOW},
    "gemma3_text": {"hidden_size": 18, **WINDOW},
    "phi3": {
        **SQUARE, **WINDOW, "original_max_position_embeddings": 2, "partial_rotary_factor": 0.5,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.1], "long_factor": [4.0],
            "partial_rotary_factor": 0.5,
        },
    },
    "olmo3": WINDOW,
    "cohere2": WINDOW,
    "stablelm": {**SQUARE, "partial_rotary_factor": 0.5},
    "starcoder2": WINDOW,
    "seed_oss": {"max_position_embeddings": 2},
    "mixtral": {**WINDOW, "num_local_experts": 4, "intermediate_size": 3},
    "qwen2_moe": {**EXPERTS, **WINDOW, "shared_expert_intermediate_size": 5},
    "qwen3_moe": EXPERTS,
    "olmoe": {**SQUARE, **EXPERTS, "intermediate_size": 3},
    "gpt_oss": {**WINDOW, "num_local_experts": 4, "intermediate_size": 3},
    "deepseek_v3": {
        "num_key_value_heads": 6, "head_dim": None, "q_lora_rank": 7, "kv_lora_rank": 5, "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 4, "v_head_dim": 2, "n_routed_experts": 6, "n_group": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 3, "n_shared_experts": 1,
    },
}  # fmt: skip
PHASES = ("prefill", "decode")
# As in test_oracle_numerics: sums of at most 24 terms, 7 + 1 products in sequence a layer, each rounded to 2^-24; experts
# are one more of each.
TOLERANCE = 2**-24 * 24 * 17


def small(architecture: str) -> Config:
    """One layer of each kind."""
    raw = {**TINY[architecture], **SMALL, **OWN.get(architecture, {})}
    if architecture == "olmoe":
        del raw["moe_intermediate_size"]
    raw = {key: value for key, value in raw.items() if value is not None or key not in ("head_dim",)}
    if len(set(from_hf(raw).layers)) == 1:
        raw |= {"num_hidden_layers": 1}
    return from_hf(raw)


@cache
def graph(architecture: str, phase: str) -> Graph:
    return emit(small(architecture), phase, "logits", S, T)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_text(architecture: str, phase: str) -> None:
    path, text = GOLDENS / f"{architecture}-{phase}.mlir", graph(architecture, phase).text
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(text)
    golden = path.read_text() if path.exists() else ""
    if text != golden:
        changes = difflib.unified_diff(golden.splitlines(), text.splitlines(), path.name, "emitted", lineterm="", n=1)
        listed = [line if len(line) <= 200 else f"{line[:200]}…" for line in changes]
        pytest.fail("\n".join([*listed[:60], f"{len(listed)} lines of difference. If all are intended: {UPDATE}"]))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_form(architecture: str, phase: str) -> None:
    """One operation per line, and nothing of the machine or the day that wrote it."""
    text = (GOLDENS / f"{architecture}-{phase}.mlir").read_text()
    assert text.endswith("}\n")
    assert "/" not in text.replace("// ", "")
    lines = [line.strip() for line in text.splitlines()]
    assert all(line.count(" = stablehlo.") + line.count(' = "stablehlo.') <= 1 for line in lines)
    assert max(map(len, lines)) < 400
    parse(text)


@pytest.mark.parametrize(
    ("architecture", "phase", "on_device"),
    only(
        [
            *((f, phase, False) for f in FAMILIES for phase in PHASES),
            *((f, "decode", True) for f in ("gemma3_text", "gpt_oss", "deepseek_v3")),
        ],
        itertools.product(FAMILIES, PHASES, [False, True]),
    ),
)
def test_value(architecture: str, phase: str, on_device: bool) -> None:
    """The golden's own text computes on XLA what the oracle computes; and so does what a device is given."""
    config, written = small(architecture), graph(architecture, phase)
    golden = Graph("golden", (GOLDENS / f"{architecture}-{phase}.mlir").read_text(), written.abi)
    if on_device:
        golden = Emitter(on_device=True).emit(config, phase, "logits", S, T)
        assert golden.text != written.text
        assert "dynamic_slice" not in golden.text
        parse(golden.text)
    rng = np.random.default_rng(0)
    center = norm_center(architecture)
    weights = [
        rng.normal(center if "norm" in name and name.endswith("weight") else 0, 0.4, shape)
        for name, shape in weight_shapes(config).items()
    ]
    weights = [weight.astype(np.float32) for weight in weights]
    oracle: Callable[..., tuple[jax.Array, ...]]
    if phase == "prefill":
        inputs = [np.array([16, 0, 5], np.int32), np.array(2, np.int32)]
        oracle = jax.jit(lambda *a: prefill(config, "logits", S, *a))
    else:
        caches = [written.abi.arguments[written.abi.argument(role)].shape for role in ("k_cache", "v_cache")]
        inputs = [np.array(16, np.int32), np.array(3, np.int32)]
        inputs += [rng.normal(size=shape).astype(np.float32) for shape in caches]
        oracle = jax.jit(lambda *a: decode(config, "logits", S, *a[:3], dict(zip(CACHES, a[3:], strict=True))))
    expected = [np.asarray(r) for r in oracle(weights, *inputs)]
    computed = run(golden, *weights, *(a.copy() for a in inputs))
    assert len(computed) == len(expected) == 3
    for ours, theirs in zip(computed, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert np.abs(theirs).max() > 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * np.abs(theirs).max())


@pytest.mark.parametrize("architecture", FAMILIES)
def test_has_a_layer_of_each_kind(architecture: str) -> None:
    config, tiny = small(architecture), from_hf(TINY[architecture])
    assert len(config.layers) == len(set(config.layers))
    kinds = [{(x.rope is None, x.window is None, x.sparse) for x in c.layers} for c in (config, tiny)]
    assert kinds[0] == kinds[1]
    assert all(window is None or window < T for window in config.windows)
    assert config.turning_point is None or config.turning_point < T


def test_there_is_one_of_each() -> None:
    found = {path.stem for path in GOLDENS.glob("*.mlir")}
    assert found == {f"{architecture}-{phase}" for architecture in FAMILIES for phase in PHASES}
