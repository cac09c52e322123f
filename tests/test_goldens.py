"""The emitted text of small graphs, line by line. A golden catches change, not error: each is also run.

After an intended change, `UPDATE_GOLDENS=1 python -m pytest tests/test_goldens.py` writes them anew; review the diff.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from graphs import parse, run

from hloracle.core.abi import Graph
from hloracle.emitters.model import emit
from hloracle.reference.config import Config
from hloracle.reference.fixtures import TINY
from hloracle.reference.model import decode, prefill
from hloracle.reference.registry import FAMILIES, from_hf
from hloracle.reference.weights import weight_shapes

GOLDENS = Path(__file__).parent / "goldens"
UPDATE = "UPDATE_GOLDENS=1 python -m pytest tests/test_goldens.py"
T, S = 3, 5  # short, because RoPE's tables are written out
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 10,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 14,
    "vocab_size": 17,
    "attention_bias": True,
}
PHASES = ("prefill", "decode")
# As in test_oracle_numerics: sums of at most 24 terms, 2 * 7 + 1 products in sequence, each rounded to 2^-24.
TOLERANCE = 2**-24 * 24 * 15


def small(architecture: str) -> Config:
    return from_hf({**TINY[architecture], **SMALL})


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


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_value(architecture: str, phase: str) -> None:
    """The golden's own text computes on XLA what the oracle computes."""
    config, written = small(architecture), graph(architecture, phase)
    golden = Graph("golden", (GOLDENS / f"{architecture}-{phase}.mlir").read_text(), written.abi)
    rng = np.random.default_rng(0)
    weights = [rng.normal(1 if "norm" in name else 0, 0.4, shape) for name, shape in weight_shapes(config).items()]
    weights = [weight.astype(np.float32) for weight in weights]
    oracle: Callable[..., tuple[jax.Array, ...]]
    if phase == "prefill":
        inputs = [np.array([16, 0, 5], np.int32), np.array(2, np.int32)]
        oracle = jax.jit(lambda *a: prefill(config, "logits", S, *a))
    else:
        cache = written.abi.arguments[written.abi.argument("k_cache")].shape
        inputs = [np.array(16, np.int32), np.array(3, np.int32)]
        inputs += [rng.normal(size=cache).astype(np.float32) for _ in range(2)]
        oracle = jax.jit(lambda *a: decode(config, "logits", *a))
    expected = [np.asarray(r) for r in oracle(weights, *inputs)]
    computed = run(golden, *weights, *(a.copy() for a in inputs))
    assert len(computed) == len(expected) == 3
    for ours, theirs in zip(computed, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert np.abs(theirs).max() > 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * np.abs(theirs).max())
