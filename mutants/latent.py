"""DeepSeek's latent attention: its ranks, its norms, the part of a head that is turned, and the scale of its scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, RopeRows
from hloracle.mutants.registry import Right, mutant

DEEPSEEK = "tiny-deepseek_v3"
ATTENTION = "emitters.layers:LayerBuilder.latent_attention"
RMS_NORM = "emitters.layers:LayerBuilder.rms_norm"
HALVES = "emitters.layers:LayerBuilder.in_halves"
PART = "emitters.layers:LayerBuilder.part"
Q_ROPE, K_ROPE, SCORES, CONTEXT = (f"layers.0.self_attn.{part}" for part in ("q_rope", "k_rope", "scores", "context"))


@mutant(
    "latent-norm-forgotten", "latent", "latents are not normed before they are kept",
    anchor="layers.0.self_attn.kv_a_layernorm", replaces=RMS_NORM, model=DEEPSEEK,
)  # fmt: skip
def norm_forgotten(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return x if b.anchor.endswith("kv_a_layernorm") else right(b, x, weight, eps)


@mutant(
    "latent-query-norm-eps", "latent", "the queries' latents are normed with the layers' epsilon",
    anchor="layers.0.self_attn.q_a_layernorm", replaces=RMS_NORM, model=DEEPSEEK,
)  # fmt: skip
def query_norm_eps(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return right(b, x, weight, 3e-5 if b.anchor.endswith("q_a_layernorm") else eps)


@mutant(
    "latent-rope-first", "latent", "the kept product begins with the turned dimensions, not with the latents",
    anchor="layers.0.self_attn.kv_a_layernorm", replaces=PART, model=DEEPSEEK,
)  # fmt: skip
def rope_first(right: Right[Value], b: LayerBuilder, x: Value, axis: int, start: int, limit: int) -> Value:
    if x.rank == 2 and x.shape[1] == 44 and b.anchor.endswith(("kv_a_layernorm", "k_rope")):
        start, limit = (8, 44) if start == 0 else (0, 8)
    return right(b, x, axis, start, limit)


# ---- what is turned


@mutant(
    "latent-pairs-as-halves",
    "latent-rope",
    "pairs (2i, 2i+1) are taken for (i, i + D/2)",
    anchor=Q_ROPE,
    replaces=HALVES,
    model=DEEPSEEK,
)
def pairs_as_halves(right: Right[Value], b: LayerBuilder, x: Value, interleaved: bool) -> Value:
    return x


@mutant(
    "latent-pairs-of-queries-only", "latent-rope", "keys' pairs are not put apart, queries' are",
    anchor=K_ROPE, replaces=HALVES, model=DEEPSEEK,
)  # fmt: skip
def pairs_of_queries_only(right: Right[Value], b: LayerBuilder, x: Value, interleaved: bool) -> Value:
    return right(b, x, interleaved and not b.anchor.endswith("k_rope"))


@mutant(
    "latent-key-not-turned-decode", "latent-rope", "decode keeps the shared key as it was before RoPE",
    anchor=K_ROPE, replaces="emitters.layers:LayerBuilder.rotary", model=DEEPSEEK,
)  # fmt: skip
def key_not_turned_decode(right: Right[Value], b: LayerBuilder, x: Value, rope: RopeRows) -> Value:
    return x if b.anchor.endswith("k_rope") and x.shape[0] == 1 else right(b, x, rope)


@mutant(
    "latent-first-dimensions-turned",
    "latent-rope",
    "the first dimensions of a query are turned",
    anchor=Q_ROPE,
    replaces=PART,
    model=DEEPSEEK,
)
def first_dimensions_turned(right: Right[Value], b: LayerBuilder, x: Value, axis: int, start: int, limit: int) -> Value:
    if b.anchor.endswith("q_rope") and start:
        start, limit = 0, limit - start
    return right(b, x, axis, start, limit)


# ---- attention


def attending(id: str, fault: str, anchor: str, scale: float = 1.0, without_rope: bool = False) -> None:
    """Register attention whose scores are multiplied once more, or that leaves out what is turned."""

    @mutant(id, "latent-attention", fault, anchor=anchor, replaces=ATTENTION, model=DEEPSEEK)
    def attention(right: Right[Value], b: LayerBuilder, q: Value, q_rope: Value, *others: Any) -> Value:
        *keys, scoring = others  # latents, k_rope, expand
        if without_rope:
            with b.scope("scores"):
                q_rope = b.multiply(q_rope, b.f32(0.0, q_rope.shape))
        return right(b, q, q_rope, *keys, replace(scoring, scaling=scoring.scaling * scale))


# Of 14 dimensions without RoPE, and 8 with it.
attending(
    "latent-scaling-without-rope",
    "scores are divided by the root of the dimensions without RoPE",
    SCORES,
    (22 / 14) ** 0.5,
)
attending("latent-mscale-forgotten", "scores are not multiplied by mscale's square", SCORES, 1 / 1.16636**2)
attending("latent-mscale-once", "scores are multiplied by mscale, not by its square", SCORES, 1 / 1.16636)
attending("latent-rope-ignored", "the turned dimensions are no part of the scores", SCORES, without_rope=True)


@mutant(
    "latent-values-before-keys", "latent-attention", "a head's value stands before its key in kv_b_proj",
    anchor=SCORES, replaces=PART, model=DEEPSEEK,
)  # fmt: skip
def values_before_keys(right: Right[Value], b: LayerBuilder, x: Value, axis: int, start: int, limit: int) -> Value:
    if x.shape == (6, 32, 36):
        start, limit = (18, 32) if start == 0 else (0, 18)
    return right(b, x, axis, start, limit)


@mutant(
    "latent-value-heads-reversed", "latent-attention", "the last layer's heads take each other's values",
    anchor="layers.1.self_attn.context", replaces=PART, model=DEEPSEEK,
)  # fmt: skip
def value_heads_reversed(right: Right[Value], b: LayerBuilder, x: Value, axis: int, start: int, limit: int) -> Value:
    found = right(b, x, axis, start, limit)
    return b.reverse(found, (0,)) if x.shape == (6, 32, 36) and start and b.anchor.startswith("layers.1.") else found


@mutant(
    "oracle-latent-mscale-forgotten", "latent-attention", "scores are not multiplied by mscale's square", part="reference",
    anchor=SCORES, replaces="reference.oracle.architectures.deepseek_v3:latent_attention", model=DEEPSEEK,
)  # fmt: skip
def oracle_mscale_forgotten(right: Right[Any], *arguments: Any) -> Any:
    *given, scoring = arguments
    return right(*given, replace(scoring, scaling=scoring.scaling / 1.16636**2))


@mutant(
    "oracle-latent-pairs-as-halves", "latent-rope", "pairs (2i, 2i+1) are taken for (i, i + D/2)", part="reference",
    anchor=Q_ROPE, replaces="reference.oracle.architectures.deepseek_v3:in_halves", model=DEEPSEEK,
)  # fmt: skip
def oracle_pairs_as_halves(right: Right[Any], x: Any, interleaved: bool) -> Any:
    return x
