"""Soft caps: of attention's scores and of the head's logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Scoring
from hloracle.mutants.registry import Right, mutant

GEMMA2 = "tiny-gemma2"
ATTENTION = "emitters.layers:LayerBuilder.attention"
CAP = "emitters.layers:LayerBuilder.soft_cap"
SCORES = "layers.0.self_attn.scores"


@mutant("softcap-dropped", "soft-cap", "scores are not capped", anchor=SCORES, replaces=ATTENTION, model=GEMMA2)
def dropped(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    return right(b, q, k, v, replace(scoring, cap=None))


@mutant(
    "softcap-dropped-decode-last-layer", "soft-cap", "decode's last layer does not cap its scores",
    anchor="layers.1.self_attn.scores", replaces=ATTENTION, model=GEMMA2,
)  # fmt: skip
def dropped_decode_last_layer(
    right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring
) -> Value:
    wrong = q.shape[0] == 1 and b.anchor.startswith("layers.1.")
    return right(b, q, k, v, replace(scoring, cap=None) if wrong else scoring)


@mutant(
    "softcap-before-scaling",
    "soft-cap",
    "scores are capped, then scaled",
    anchor=SCORES,
    replaces=ATTENTION,
    model=GEMMA2,
)
def before_scaling(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    assert scoring.cap
    # tanh(x / (c / s)) * (c / s) * s, of scores that are scaled by s before and by no more than 1 after it.
    return right(b, q, k, v, replace(scoring, cap=scoring.cap * scoring.scaling))


@mutant(
    "softcap-after-mask", "soft-cap", "masked scores are capped, so that -inf becomes -cap",
    anchor=SCORES, replaces="emitters.layers:LayerBuilder.masked", model=GEMMA2,
)  # fmt: skip
def after_mask(right: Right[Value], b: LayerBuilder, scores: Value, visible: Value) -> Value:
    return b.maximum(right(b, scores, visible), b.f32(-4.0, scores.shape))


@mutant("softcap-not-divided", "soft-cap", "tanh of the scores themselves", anchor=SCORES, replaces=CAP, model=GEMMA2)
def not_divided(right: Right[Value], b: LayerBuilder, x: Value, cap: float) -> Value:
    return b.scaled(b.tanh(x), cap) if b.anchor.endswith("scores") else right(b, x, cap)


@mutant("softcap-final-dropped", "soft-cap", "logits are not capped", anchor="lm_head", replaces=CAP, model=GEMMA2)
def final_dropped(right: Right[Value], b: LayerBuilder, x: Value, cap: float) -> Value:
    return x if b.anchor == "lm_head" else right(b, x, cap)


@mutant(
    "softcap-final-of-scores", "soft-cap", "logits have the cap of scores", anchor="lm_head", replaces=CAP, model=GEMMA2
)
def final_of_scores(right: Right[Value], b: LayerBuilder, x: Value, cap: float) -> Value:
    return right(b, x, 4.0 if b.anchor == "lm_head" else cap)


@mutant(
    "softcap-clipped", "soft-cap", "logits are cut off instead of bent", anchor="lm_head", replaces=CAP, model=GEMMA2
)
def clipped(right: Right[Value], b: LayerBuilder, x: Value, cap: float) -> Value:
    return b.clip(x, cap) if b.anchor == "lm_head" else right(b, x, cap)


@mutant(
    "oracle-softcap-dropped", "soft-cap", "scores are not capped", part="reference",
    anchor=SCORES, replaces="reference.oracle.architectures.gemma2:grouped_attention", model=GEMMA2,
)  # fmt: skip
def oracle_dropped(right: Right[Any], q: Any, k: Any, v: Any, scoring: Any) -> Any:
    return right(q, k, v, replace(scoring, cap=None))


@mutant(
    "oracle-softcap-final-dropped", "soft-cap", "logits are not capped", part="reference",
    anchor="lm_head", replaces="reference.oracle.model:soft_cap", model=GEMMA2,
)  # fmt: skip
def oracle_final_dropped(right: Right[Any], x: Any, cap: float) -> Any:
    return x
