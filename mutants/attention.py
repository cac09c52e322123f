"""Attention: which kv head a query head reads, the scale, the softmax, the merging of heads."""

from __future__ import annotations

from dataclasses import replace

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Scoring
from hloracle.mutants.registry import Right, mutant

ATTENTION = "emitters.layers:LayerBuilder.attention"
SOFTMAX = "emitters.layers:LayerBuilder.softmax"
TRANSPOSE = "emitters.layers:LayerBuilder.transpose"
SCORES, PROBS, CONTEXT = (f"layers.0.self_attn.{part}" for part in ("scores", "probs", "context"))

# ---- query heads and kv heads


@mutant("gqa-modulo", "gqa", "query head n reads kv head n % K, not n // G", anchor=SCORES, replaces=ATTENTION)
def modulo(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    (T, N, D), K = q.shape, k.shape[0]
    G = N // K
    with b.scope("scores"):
        q = b.reshape(b.transpose(b.reshape(q, (T, G, K, D)), (0, 2, 1, 3)), (T, N, D))
    context = right(b, q, k, v, scoring)  # [T, K*G*D]
    with b.scope("context"):
        return b.reshape(b.transpose(b.reshape(context, (T, K, G, D)), (0, 2, 1, 3)), (T, N * D))


@mutant("gqa-first-kv-head", "gqa", "every query head reads kv head 0", anchor=SCORES, replaces=ATTENTION)
def first_kv_head(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    def first(x: Value) -> Value:
        return b.broadcast_in_dim(b.slice(x, (0, 0, 0), (1, *x.shape[1:])), x.shape, (0, 1, 2))

    with b.scope("scores"):
        k = first(k)
    with b.scope("context"):
        v = first(v)
    return right(b, q, k, v, scoring)


@mutant(
    "gqa-keys-reversed-middle-layer", "gqa", "layer 1 reads the kv heads of its keys in reverse order",
    anchor="layers.1.self_attn.scores", replaces=ATTENTION,
)  # fmt: skip
def keys_reversed_middle_layer(
    right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring
) -> Value:
    if b.anchor.startswith("layers.1."):
        with b.scope("scores"):
            k = b.reverse(k, (0,))
    return right(b, q, k, v, scoring)


@mutant(
    "gqa-values-reversed", "gqa", "the kv heads of values are read in reverse order", anchor=CONTEXT, replaces=ATTENTION
)
def values_reversed(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    with b.scope("context"):
        v = b.reverse(v, (0,))
    return right(b, q, k, v, scoring)


# ---- scale


@mutant("scale-missing", "attention-scale", "scores are not scaled", anchor=SCORES, replaces=ATTENTION)
def scale_missing(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    return right(b, q, k, v, replace(scoring, scaling=1.0))


@mutant("scale-twice", "attention-scale", "scores are scaled twice", anchor=SCORES, replaces=ATTENTION)
def scale_twice(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    return right(b, q, k, v, replace(scoring, scaling=scoring.scaling**2))


@mutant("scale-by-hidden-size", "attention-scale", "1/sqrt(E) instead of 1/sqrt(D)", anchor=SCORES, replaces=ATTENTION)
def scale_by_hidden_size(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    _, E = b.arguments[0].shape  # the embedding table, [V, E]
    return right(b, q, k, v, replace(scoring, scaling=E**-0.5))


@mutant(
    "scale-missing-decode-last-layer", "attention-scale", "decode's last layer does not scale its scores",
    anchor="layers.2.self_attn.scores", replaces=ATTENTION,
)  # fmt: skip
def scale_missing_decode_last_layer(
    right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring
) -> Value:
    wrong = q.shape[0] == 1 and b.anchor.startswith("layers.2.")
    return right(b, q, k, v, replace(scoring, scaling=1.0) if wrong else scoring)


# ---- softmax


@mutant(
    "softmax-without-maximum", "softmax", "exp of the scores as they are, which overflows above 88",
    anchor=PROBS, replaces=SOFTMAX, note="probe with large scores",
)  # fmt: skip
def without_maximum(right: Right[Value], b: LayerBuilder, scores: Value, sinks: None = None) -> Value:
    exponentials = b.exponential(scores)
    total = b.reduce(exponentials, b.f32(0.0), (3,), "add")
    return b.divide(exponentials, b.broadcast_in_dim(total, scores.shape, (0, 1, 2)))


@mutant(
    "softmax-wrong-axis", "softmax", "over the query heads of a group, not the keys", anchor=PROBS, replaces=SOFTMAX
)
def wrong_axis(right: Right[Value], b: LayerBuilder, scores: Value, sinks: None = None) -> Value:
    order = (0, 1, 3, 2)  # [K, T, S, G], and back
    return b.transpose(right(b, b.transpose(scores, order)), order)


@mutant(
    "softmax-total-over-group",
    "softmax",
    "divided by the total over all heads of a group",
    anchor=PROBS,
    replaces=SOFTMAX,
)
def total_over_group(right: Right[Value], b: LayerBuilder, scores: Value, sinks: None = None) -> Value:
    probs = right(b, scores)
    total = b.reduce(probs, b.f32(0.0), (2, 3), "add")
    return b.divide(probs, b.broadcast_in_dim(total, scores.shape, (0, 1)))


@mutant("softmax-plus-one", "softmax", "one is added to the total", anchor=PROBS, replaces=SOFTMAX)
def plus_one(right: Right[Value], b: LayerBuilder, scores: Value, sinks: None = None) -> Value:
    maximum = b.reduce(scores, b.f32(float("-inf")), (3,), "maximum")
    exponentials = b.exponential(b.subtract(scores, b.broadcast_in_dim(maximum, scores.shape, (0, 1, 2))))
    total = b.reduce(exponentials, b.f32(1.0), (3,), "add")
    return b.divide(exponentials, b.broadcast_in_dim(total, scores.shape, (0, 1, 2)))


@mutant("softmax-float16", "precision", "probabilities are rounded to float16", anchor=PROBS, replaces=SOFTMAX)
def float16(right: Right[Value], b: LayerBuilder, scores: Value, sinks: None = None) -> Value:
    return b.convert(b.convert(right(b, scores), "f16"), "f32")


# ---- context


@mutant(
    "context-not-transposed", "context", "prefill's heads are merged as [K, T, G, D] lies in memory",
    anchor=CONTEXT, replaces=TRANSPOSE,
)  # fmt: skip
def not_transposed(right: Right[Value], b: LayerBuilder, operand: Value, permutation: tuple[int, ...]) -> Value:
    turned = right(b, operand, permutation)
    return b.reshape(operand, turned.shape) if b.anchor.endswith("context") else turned


@mutant(
    "context-dims-first", "context", "merged as [D, N] instead of [N, D], in the last layer",
    anchor="layers.2.self_attn.context", replaces=ATTENTION,
)  # fmt: skip
def dims_first(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    context = right(b, q, k, v, scoring)
    if not b.anchor.startswith("layers.2."):
        return context
    with b.scope("context"):
        return b.reshape(b.transpose(b.reshape(context, q.shape), (0, 2, 1)), context.shape)
