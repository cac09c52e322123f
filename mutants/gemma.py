"""Gemma: norms that multiply by 1 + weight, scaled embeddings, the tanh form of GELU, norms on both sides of a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config

INPUT = "layers.0.input_layernorm"
SCALED = "emitters.layers:LayerBuilder.scaled"
ACTIVATION = "emitters.layers:LayerBuilder.activation"
INSIDE = "emitters.model:Weights.inside"
NORM = "emitters.architectures.*:norm"


# ---- 1 + weight


def plain(id: str, model: str, fault: str, anchor: str, prefix: str = "model.") -> None:
    """Register norms that multiply by the weight itself: all of them, or those whose weights begin with `prefix`."""

    @mutant(id, "norm-offset", fault, anchor=anchor, replaces=NORM, model=model)
    def norm(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
        if not w.prefix.startswith(prefix):
            return right(b, x, w, config)
        return b.rms_norm(x, w["weight"], config.norm_eps)


ALL = "multiplied by the weight, not by 1 + weight"
plain("norm-offset-forgotten", "tiny-gemma", ALL, INPUT)
plain("norm-offset-forgotten-final", "tiny-gemma", f"the final norm is {ALL}", "norm", "model.norm.")
plain("norm-offset-forgotten-sandwich", "tiny-gemma2", ALL, INPUT)
plain(
    "norm-offset-forgotten-after-mlp", "tiny-gemma2", f"the norm after the last layer's MLP is {ALL}",
    "layers.1.post_feedforward_layernorm", "model.layers.1.post_feedforward_layernorm.",
)  # fmt: skip
plain(
    "norm-offset-forgotten-on-queries", "tiny-gemma3_text", f"queries are {ALL}",
    "layers.0.self_attn.q_norm", "model.layers.0.self_attn.q_norm.",
)  # fmt: skip


@mutant(
    "norm-offset-before-root", "norm-offset", "1 is added to what is normed, not to the weight",
    anchor=INPUT, replaces=NORM, model="tiny-gemma",
)  # fmt: skip
def before_root(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    normed = b.rms_norm(x, b.f32(1.0, w["weight"].shape), config.norm_eps)
    return b.multiply(b.add(normed, b.f32(1.0, x.shape)), b.over_last(w["weight"], x.shape))


# ---- embeddings


def embedded(id: str, model: str, fault: str, factor: Callable[[float], float], part: str = "") -> None:
    """Register embeddings that are scaled by another factor, in one phase or in both."""

    @mutant(id, "embedding-scale", fault, anchor="embed_tokens", replaces=SCALED, model=model)
    def scaled(right: Right[Value], b: LayerBuilder, x: Value, value: float) -> Value:
        phase = "decode" if x.shape[0] == 1 else "prefill"
        return right(b, x, factor(value) if b.anchor == "embed_tokens" and part in ("", phase) else value)


embedded("embedding-scale-forgotten", "tiny-gemma", "embeddings are not multiplied by sqrt(E)", lambda value: 1.0)
embedded("embedding-scale-squared", "tiny-gemma3_text", "embeddings are multiplied by E", lambda value: value**2)
embedded(
    "embedding-scale-forgotten-decode",
    "tiny-gemma2",
    "decode does not scale its embedding",
    lambda value: 1.0,
    "decode",
)
embedded("embedding-scale-bfloat16", "tiny-gemma3_text", "sqrt(E) is rounded to bfloat16", lambda value: 9.1875)
embedded("embedding-multiplier-forgotten", "tiny-granite", "embeddings are not multiplied", lambda value: 1.0)
embedded("embedding-divided", "tiny-granite", "embeddings are divided by the multiplier", lambda value: 1 / value)

# ---- activation


@mutant(
    "gelu-is-silu", "gelu", "silu instead of gelu",
    anchor="layers.0.mlp.act", replaces=ACTIVATION, model="tiny-gemma",
)  # fmt: skip
def gelu_is_silu(right: Right[Value], b: LayerBuilder, name: str, x: Value) -> Value:
    return b.silu(x)


@mutant(
    "gelu-by-sigmoid", "gelu", "x * sigmoid(1.702 x) instead of the tanh form",
    anchor="layers.0.mlp.act", replaces=ACTIVATION, model="tiny-gemma2",
)  # fmt: skip
def gelu_by_sigmoid(right: Right[Value], b: LayerBuilder, name: str, x: Value) -> Value:
    return b.multiply(x, b.logistic(b.scaled(x, 1.702)))


@mutant(
    "gelu-coefficient", "gelu", "0.4715 instead of 0.044715",
    anchor="layers.0.mlp.act", replaces=SCALED, model="tiny-starcoder2",
)  # fmt: skip
def gelu_coefficient(right: Right[Value], b: LayerBuilder, x: Value, factor: float) -> Value:
    return right(b, x, 0.4715 if factor == 0.044715 else factor)


# ---- norms on both sides


def exchanged(id: str, model: str, first: str, second: str, fault: str, anchor: str) -> None:
    """Register norms that take each other's weights."""
    other = {first: second, second: first}

    @mutant(id, "norm-order", fault, anchor=anchor, replaces=INSIDE, model=model)
    def inside(right: Right[Weights], w: Weights, name: str) -> Weights:
        return right(w, other.get(name, name))


exchanged(
    "norm-pre-post-exchanged", "tiny-gemma2", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    "the norms before and after the MLP take each other's weight", "layers.0.pre_feedforward_layernorm",
)  # fmt: skip
exchanged(
    "norm-first-last-exchanged", "tiny-gemma3_text", "input_layernorm", "post_feedforward_layernorm",
    "the first and the last norm of a layer take each other's weight", INPUT,
)  # fmt: skip
exchanged(
    "norm-self-attn-exchanged", "tiny-glm4", "post_self_attn_layernorm", "post_attention_layernorm",
    "post_attention_layernorm is taken for the norm of attention's output", "layers.0.post_self_attn_layernorm",
)  # fmt: skip


def skipped(id: str, model: str, fault: str, anchor: str) -> None:
    """Register a norm that is left out."""

    @mutant(
        id, "norm-order", fault, anchor=anchor, replaces=NORM, model=model,
        note="no operation stands in the anchor's scope",
    )  # fmt: skip
    def norm(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
        return x if b.anchor == anchor else right(b, x, w, config)


skipped(
    "norm-after-attention-forgotten", "tiny-gemma2", "attention's output is not normed",
    "layers.0.post_attention_layernorm",
)  # fmt: skip
skipped("norm-after-mlp-forgotten", "tiny-glm4", "the last MLP's output is not normed", "layers.1.post_mlp_layernorm")
skipped(
    "norm-after-mlp-forgotten-global-layer", "tiny-gemma3_text", "the MLP's output of the full layer is not normed",
    "layers.1.post_feedforward_layernorm",
)  # fmt: skip


@mutant(
    "oracle-norm-offset-forgotten", "norm-offset", ALL, part="reference",
    anchor=INPUT, replaces="reference.oracle.architectures.gemma:norm", model="tiny-gemma",
)  # fmt: skip
def oracle_offset_forgotten(right: Right[Any], x: Any, w: Any, config: Config) -> Any:
    from hloracle.reference.oracle.layers import rms_norm

    return rms_norm(x, w["weight"], config.norm_eps)
