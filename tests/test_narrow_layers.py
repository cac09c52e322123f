"""Mechanisms in bf16 and f16, in JAX and as emitted, against torch: inside of one all is float32, and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from graphs import run

from hloracle.core.abi import Abi, Tensor
from hloracle.core.tolerances import NARROW_ROUNDING
from hloracle.emitters import layers as emitted
from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import LayerBuilder, Visible
from hloracle.emitters.matrix import Matrix
from hloracle.emitters.model import in_blocks
from hloracle.mutants import narrow as mutants
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.registry import from_hf
from hloracle.reference.oracle import layers as reference

TYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "bool": "i1", "int32": "i32"}
T, N, K, D, S, E = 5, 6, 2, 16, 64, 256
Ours = Callable[..., Any]


def in_jax(function: Ours, *arrays: np.ndarray) -> np.ndarray:
    with jax.numpy_rank_promotion("allow"):
        return np.asarray(jax.jit(function)(*arrays))


def as_emitted(function: Callable[..., Value], *arrays: np.ndarray) -> np.ndarray:
    b = LayerBuilder(compute=DTYPES[arrays[0].dtype.name])
    arguments = [b.argument(TensorType(a.shape, DTYPES[a.dtype.name]), f"a{i}") for i, a in enumerate(arrays)]
    result = function(b, *arguments)
    inputs = tuple(Tensor("weight", v.name, v.shape, v.dtype) for v in arguments)
    output = Tensor("tap", "y", result.shape, result.dtype)
    (found,) = run(b.graph("layer", Abi("decode", inputs, (output,)), [result]), *arrays)
    return found


def random(compute: str, *shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(TYPES[compute])


def wide(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array.astype(np.float64))


def off(found: np.ndarray, right: torch.Tensor, compute: str) -> float:
    """The largest error of a value, in roundings of the largest value of its row."""
    assert found.dtype == TYPES[compute]
    expected = right.numpy().reshape(len(found), -1)
    scale = np.max(np.abs(expected), axis=1, keepdims=True)
    error = np.abs(found.astype(np.float64).reshape(expected.shape) - expected)
    return float(np.max(error / scale)) / NARROW_ROUNDING[compute]


def linear(compute: str) -> tuple[Ours, Callable[..., Value], list[np.ndarray], torch.Tensor]:
    x, weight = random(compute, T, E), random(compute, 24, E, seed=1)

    def theirs(b: LayerBuilder, x: Value, weight: Value) -> Value:
        return b.linear(x, Matrix("weight", compute, (weight,)))

    return reference.linear, theirs, [x, weight], wide(x) @ wide(weight).T


def norm(compute: str) -> tuple[Ours, Callable[..., Value], list[np.ndarray], torch.Tensor]:
    x, weight = random(compute, T, E, scale=40), random(compute, E, seed=1).astype(np.float32)
    right = torch.nn.functional.rms_norm(wide(x), (E,), wide(weight), 1e-5)
    return (
        partial(reference.rms_norm, eps=1e-5), lambda b, x, w: b.rms_norm(x, w, 1e-5), [x, weight], right
    )  # fmt: skip


def silu(compute: str) -> tuple[Ours, Callable[..., Value], list[np.ndarray], torch.Tensor]:
    x = random(compute, T, E, scale=3)
    return reference.silu, LayerBuilder.silu, [x], torch.nn.functional.silu(wide(x))


def attention(compute: str) -> tuple[Ours, Callable[..., Value], list[np.ndarray], torch.Tensor]:
    q, k, v = (random(compute, *shape, seed=i) for i, shape in enumerate([(T, N, D), (K, S, D), (K, S, D)]))
    seen = np.arange(S) <= S - T + np.arange(T)[:, None]

    def ours(q: Any, k: Any, v: Any, seen: Any) -> Any:
        return reference.attention(q, k, v, reference.Scoring(seen, 0.3, None))

    def theirs(b: LayerBuilder, q: Value, k: Value, v: Value, seen: Value) -> Value:
        return b.attention(q, k, v, emitted.Scoring(Visible(seen), 0.3, None))

    keys, values = (wide(x).repeat_interleave(N // K, 0) for x in (k, v))  # [N, S, D]
    scores = torch.einsum("tnd,nsd->nts", wide(q), keys) * 0.3
    probs = torch.softmax(scores.masked_fill(~torch.tensor(seen), -torch.inf), -1)
    right = torch.einsum("nts,nsd->tnd", probs, values).reshape(T, -1)
    return ours, theirs, [q, k, v, seen], right


MADE = {"linear": linear, "rms_norm": norm, "silu": silu, "attention": attention}
# Of which the sum that a mutant rounds at each term is.
ROUNDED = {
    "linear": ("_narrow_product", mutants.accumulator),
    "rms_norm": ("mean", mutants.norm_mean),
    "silu": ("silu", mutants.logistic),
    "attention": ("softmax", mutants.softmax_sum),
}


@pytest.mark.parametrize("compute", TYPES)
@pytest.mark.parametrize("name", MADE)
def test_a_mechanism_rounds_once(name: str, compute: str) -> None:
    """And of attention twice: its probabilities are rounded too, as in transformers."""
    ours, theirs, arrays, right = MADE[name](compute)
    allowed = 2.0 if name == "attention" else 1.01
    mine, emitted = in_jax(ours, *arrays), as_emitted(theirs, *arrays)
    assert max(off(mine, right, compute), off(emitted, right, compute)) <= allowed
    assert np.mean(mine != emitted) < 0.01


@pytest.mark.parametrize("name", MADE)
def test_one_that_rounds_more_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mutant does is further from torch, or unlike the oracle in more than one value of a hundred."""
    ours, theirs, arrays, _ = MADE[name]("bf16")
    method, wrong = ROUNDED[name]
    right = getattr(LayerBuilder, method)
    monkeypatch.setattr(LayerBuilder, method, lambda b, *a: wrong(right, b, *a))
    if name == "silu":
        theirs = LayerBuilder.silu
    assert np.mean(in_jax(ours, *arrays) != as_emitted(theirs, *arrays)) > 0.01


@pytest.mark.parametrize("compute", ["f32", *TYPES])
def test_attention_by_blocks_is_of_float32(compute: str) -> None:
    """Its probabilities are not rounded as transformers' are: see `in_blocks`."""
    abi = graph_abi(from_hf(TINY["llama"]), "extend", "logits", 288, 64, compute=compute)
    assert in_blocks(abi, on_device=False, keys=288) == (compute == "f32")
