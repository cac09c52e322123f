"""Graphs that compute in bf16 or f16: what has to be wider than that, and is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.matrix import Matrix
from hloracle.emitters.model import Cache
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Rope
from hloracle.reference.model.rope import RopeTables, inverse_frequencies

LAYERS = "emitters.layers:LayerBuilder"
FIRST, PROBS, CONTEXT = "layers.0.input_layernorm", "layers.0.self_attn.probs", "layers.0.self_attn.context"
Q_PROJ = "layers.0.self_attn.q_proj"

bf16 = partial(mutant, compute="bf16")
f16 = partial(mutant, compute="f16")


def through(b: LayerBuilder, x: Value, dtype: str) -> Value:
    """x as a narrower type holds it, in its own type again."""
    return b.convert(b.convert(x, dtype), x.dtype)


def summed(b: LayerBuilder, x: Value, dtype: str) -> Value:
    """Over the last axis, each partial sum rounded."""
    total = b.reduce(b.convert(x, dtype), b.constant(0.0, dtype), (x.rank - 1,), "add")
    return b.convert(total, x.dtype)


# ---- sums


@bf16("narrow-softmax-sum", "narrow-sum", "softmax is summed in bf16", anchor=PROBS, replaces=f"{LAYERS}.softmax")
def softmax_sum(right: Right[Value], b: LayerBuilder, scores: Value, sinks: Value | None = None) -> Value:
    maximum = b.reduce(scores, b.f32(-float("inf")), (scores.rank - 1,), "maximum")
    exponentials = b.exponential(b.subtract(scores, b.over_first(maximum, scores.shape)))
    return b.divide(exponentials, b.over_first(summed(b, exponentials, "bf16"), scores.shape))


@bf16(
    "narrow-norm-mean",
    "narrow-sum",
    "a norm's mean is of squares summed in bf16",
    anchor=FIRST,
    replaces=f"{LAYERS}.mean",
)
def norm_mean(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    total = summed(b, x, "bf16")
    return b.multiply(total, b.f32(1 / x.shape[-1], total.shape))


@bf16(
    "narrow-accumulator", "narrow-sum", "a product is summed in bf16, term by term", anchor=Q_PROJ,
    replaces="emitters.matrix:MatrixBuilder._narrow_product",
)  # fmt: skip
def accumulator(right: Right[Value], b: LayerBuilder, x: Value, weight: Value | Matrix) -> Value:
    assert isinstance(weight, Matrix)
    N, K = weight.parts[0].shape
    every = (x.shape[0], N, K)
    terms = b.multiply(b.broadcast_in_dim(x, every, (0, 2)), b.broadcast_in_dim(weight.parts[0], every, (1, 2)))
    return b.convert(b.reduce(terms, b.constant(0.0, x.dtype), (2,), "add"), "f32")


@bf16(
    "narrow-partial-sums", "narrow-sum", "a product is put together of two partial sums in bf16", anchor=Q_PROJ,
    replaces="emitters.matrix:MatrixBuilder._narrow_product",
)  # fmt: skip
def partial_sums(right: Right[Value], b: LayerBuilder, x: Value, weight: Value | Matrix) -> Value:
    assert isinstance(weight, Matrix)
    rows, K = weight.parts[0], x.shape[1]
    halves = [
        b.convert(
            b.dot_general(b.part(x, 1, start, limit), b.part(rows, 1, start, limit), contracting_dimensions=((1,), (1,))),
            x.dtype,
        )
        for start, limit in ((0, K // 2), (K // 2, K))
    ]  # fmt: skip
    return b.convert(b.add(*halves), "f32")


@bf16(
    "narrow-context-sum", "narrow-sum", "values are summed in bf16, key by key", anchor=CONTEXT,
    replaces="emitters.matrix:MatrixBuilder.dot_general",
)  # fmt: skip
def context_sum(right: Right[Value], b: LayerBuilder, lhs: Value, rhs: Value, *others: Any, **named: Any) -> Value:
    if not b.anchor.endswith("self_attn.context"):
        return right(b, lhs, rhs, *others, **named)
    every = (*lhs.shape, rhs.shape[-1])  # [K, T, G, S, D]
    terms = b.multiply(b.broadcast_in_dim(lhs, every, (0, 1, 2, 3)), b.broadcast_in_dim(rhs, every, (0, 3, 4)))
    return b.convert(b.reduce(terms, b.constant(0.0, terms.dtype), (3,), "add"), "f32")


@bf16(
    "narrow-layer-norm-mean", "narrow-sum", "what a norm takes away is a mean summed in bf16", anchor=FIRST,
    replaces=f"{LAYERS}.mean", model="tiny-cohere",
)  # fmt: skip
def layer_norm_mean(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    total = summed(b, x, "bf16")
    return b.multiply(total, b.f32(1 / x.shape[-1], total.shape))


# ---- single values


@bf16(
    "narrow-rope-angles", "narrow-value", "RoPE's angles are of bf16", anchor="layers.0.self_attn.q_rope",
    replaces="emitters.model:decode_tables emitters.model:prefill_tables",
)  # fmt: skip
def rope_angles(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    angles = np.outer(np.arange(length), inverse_frequencies(rope))
    angles = angles.astype(ml_dtypes.bfloat16).astype(np.float32)
    return RopeTables(np.cos(angles)[None], np.sin(angles)[None])


@bf16(
    "narrow-logistic",
    "narrow-value",
    "SiLU's logistic is of bf16",
    anchor="layers.0.mlp.act",
    replaces=f"{LAYERS}.silu",
)
def logistic(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    wide = b.as_f32(x)
    return b.rounded(b.multiply(wide, through(b, b.logistic(wide), "bf16")), x.dtype)


@f16(
    "narrow-cache", "narrow-value", "keys are kept as bf16 holds them", anchor="k_cache.0",
    replaces="emitters.model:Cache.update",
)  # fmt: skip
def cache(right: Right[Any], own: Cache, b: LayerBuilder, k: Value, v: Value) -> Any:
    with b.scope("k_cache"):
        k = through(b, k, "bf16")
    return right(own, b, k, v)


# ---- the range of f16


@f16(
    "narrow-norm-squares", "narrow-range", "a norm's squares are of f16, which ends at 65504", anchor=FIRST,
    replaces=f"{LAYERS}.mean", note="hidden states of more than 256",
)  # fmt: skip
def norm_squares(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    return right(b, through(b, x, "f16"))


@bf16(
    "narrow-residual-f16", "narrow-range", "the residual stream is of f16, which ends at 65504", anchor="layers.0",
    replaces="emitters.architectures.*:block", note="a residual stream of more than 65504",
)  # fmt: skip
def residual_f16(right: Right[Value], b: LayerBuilder, *arguments: Any) -> Value:
    return through(b, right(b, *arguments), "f16")


@bf16(
    "narrow-act-f16", "narrow-range", "an activation is of f16, which ends at 65504", anchor="layers.0.mlp.act",
    replaces=f"{LAYERS}.silu", note="a gate of more than 65504",
)  # fmt: skip
def act_f16(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    return through(b, right(b, x), "f16")
