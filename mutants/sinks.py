"""GPT-OSS: attention sinks, and the clamped SwiGLU of its experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Scoring
from hloracle.mutants.registry import Right, mutant

GPT_OSS = "tiny-gpt_oss"
ATTENTION = "emitters.layers:LayerBuilder.attention"
SOFTMAX = "emitters.layers:LayerBuilder.softmax"
GATED = "emitters.layers:LayerBuilder.clamped_swiglu"
PROBS, EXPERTS = "layers.0.self_attn.probs", "layers.0.mlp.experts"


@mutant("sinks-ignored", "sinks", "sinks take no share of attention", anchor=PROBS, replaces=SOFTMAX, model=GPT_OSS)
def ignored(right: Right[Value], b: LayerBuilder, scores: Value, sinks: Value | None = None) -> Value:
    return right(b, scores)


@mutant(
    "sinks-ignored-decode-last-layer", "sinks", "decode's last layer has no sinks",
    anchor="layers.1.self_attn.probs", replaces=SOFTMAX, model=GPT_OSS,
)  # fmt: skip
def ignored_decode_last_layer(right: Right[Value], b: LayerBuilder, scores: Value, sinks: Value | None = None) -> Value:
    wrong = b.anchor == "layers.1.self_attn.probs" and scores.shape[1] == 1
    return right(b, scores, None if wrong else sinks)


@mutant(
    "sinks-of-other-heads", "sinks", "head n has the sink of the head that lies there in [G, K]",
    anchor=PROBS, replaces=ATTENTION, model=GPT_OSS,
)  # fmt: skip
def of_other_heads(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    assert scoring.sinks
    N, K = q.shape[1], k.shape[0]
    with b.scope("probs"):
        sinks = b.reshape(b.transpose(b.reshape(scoring.sinks, (N // K, K)), (1, 0)), (N,))
    return right(b, q, k, v, replace(scoring, sinks=sinks))


@mutant("sinks-scaled", "sinks", "sinks are scaled as scores are", anchor=PROBS, replaces=ATTENTION, model=GPT_OSS)
def scaled(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    assert scoring.sinks
    with b.scope("probs"):
        sinks = b.scaled(scoring.sinks, scoring.scaling)
    return right(b, q, k, v, replace(scoring, sinks=sinks))


@mutant(
    "sinks-added-to-scores", "sinks", "a head's sink is added to its scores, which changes nothing, and takes no share",
    anchor=PROBS, replaces=SOFTMAX, model=GPT_OSS,
)  # fmt: skip
def added_to_scores(right: Right[Value], b: LayerBuilder, scores: Value, sinks: Value | None = None) -> Value:
    return right(b, scores if sinks is None else b.add(scores, b.over_first(sinks, scores.shape)))


@mutant(
    "sinks-not-less-maximum", "sinks", "exp of the sinks as they are, while scores are less their maximum",
    anchor=PROBS, replaces=SOFTMAX, model=GPT_OSS,
)  # fmt: skip
def not_less_maximum(right: Right[Value], b: LayerBuilder, scores: Value, sinks: Value | None = None) -> Value:
    if sinks is None:
        return right(b, scores)
    maximum = b.reduce(scores, b.f32(float("-inf")), (3,), "maximum")
    exponentials = b.exponential(b.subtract(scores, b.over_first(maximum, scores.shape)))
    total = b.add(b.reduce(exponentials, b.f32(0.0), (3,), "add"), b.exponential(sinks))
    return b.divide(exponentials, b.over_first(total, scores.shape))


# ---- the clamped SwiGLU


def clamped(id: str, fault: str, gate: str = "above", up: str = "both", one: float = 1.0, alpha: float = 1.702) -> None:
    """Register another clamped SwiGLU: which sides are clamped, what is added to up, what the gate is multiplied by."""

    @mutant(id, "clamped-swiglu", fault, anchor=EXPERTS, replaces=GATED, model=GPT_OSS)
    def swiglu(right: Right[Value], b: LayerBuilder, x: Value, limit: float, given: float = 0.0, **named: Any) -> Value:
        *outer, n = x.shape
        pairs = b.reshape(x, (*outer, n // 2, 2))
        halves = (b.reshape(b.part(pairs, len(outer) + 1, i, i + 1), (*outer, n // 2)) for i in (0, 1))
        g, u = (cut(b, h, side, limit) for h, side in zip(halves, (gate, up), strict=True))
        u = b.add(u, b.f32(one, u.shape))
        return b.multiply(u, b.multiply(g, b.logistic(b.scaled(g, alpha))))


def cut(b: LayerBuilder, x: Value, side: str, limit: float) -> Value:
    """x cut off at the limit: on `both` sides, from `above`, or on `none`."""
    if side == "none":
        return x
    return b.clip(x, limit) if side == "both" else b.minimum(x, b.f32(limit, x.shape))


clamped("swiglu-not-clamped", "neither gate nor up is clamped", gate="none", up="none")
clamped("swiglu-up-from-above-only", "up is clamped from above only", up="above")
clamped("swiglu-gate-on-both-sides", "the gate is clamped from below as well", gate="both")
clamped("swiglu-without-alpha", "the gate's sigmoid is not multiplied by alpha", alpha=1.0)
clamped("swiglu-without-one", "1 is not added to up", one=0.0)


@mutant(
    "swiglu-in-halves", "clamped-swiglu", "gate and up are halves, not in turns",
    anchor=EXPERTS, replaces=GATED, model=GPT_OSS,
)  # fmt: skip
def in_halves(right: Right[Value], b: LayerBuilder, x: Value, limit: float, alpha: float) -> Value:
    *outer, n = x.shape
    last = len(outer)
    halves = b.reshape(x, (*outer, 2, n // 2))
    turns = b.transpose(halves, (*range(last), last + 1, last))
    return right(b, b.reshape(turns, x.shape), limit, alpha)


@mutant(
    "oracle-sinks-ignored", "sinks", "sinks take no share of attention", part="reference",
    anchor=PROBS, replaces="reference.oracle.layers:softmax", model=GPT_OSS,
)  # fmt: skip
def oracle_ignored(right: Right[Any], scores: Any, sinks: Any = None) -> Any:
    return right(scores)


@mutant(
    "oracle-swiglu-gate-on-both-sides", "clamped-swiglu", "the gate is clamped from below as well", part="reference",
    anchor=EXPERTS, replaces="reference.oracle.architectures.gpt_oss:clamped_swiglu", model=GPT_OSS,
)  # fmt: skip
def oracle_gate_on_both_sides(right: Right[Any], x: Any, limit: float, alpha: float) -> Any:
    from jax import lax

    even = lax.bitwise_and(lax.broadcasted_iota("int32", x.shape, x.ndim - 1), np.int32(1)) == 0
    return right(lax.select(even, lax.max(x, -limit), x), limit, alpha)
