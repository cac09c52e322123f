"""LayerNorm, biases of projections, and MLPs without a gate."""

from __future__ import annotations

from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import Weights
from hloracle.mutants.registry import Right, mutant

LAYER_NORM = "emitters.layers:LayerBuilder.layer_norm"
LINEAR = "emitters.model:Weights.linear"
INPUT = "layers.0.input_layernorm"

Linear = tuple[Value, Value | None]


def is_rms(id: str, model: str, fault: str, where: str = "", anchor: str = INPUT) -> None:
    """Register LayerNorms that do not subtract the mean: all of them, or the one at an anchor."""

    @mutant(id, "layer-norm", fault, anchor=anchor, replaces=LAYER_NORM, model=model)
    def norm(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float) -> Value:
        if where not in b.anchor:
            return right(b, x, weight, bias, eps)
        y = b.rms_norm(x, weight, eps)
        return y if bias is None else b.add(y, b.over_last(bias, y.shape))


is_rms("layer-norm-is-rms", "tiny-cohere", "the mean is not subtracted")
is_rms("layer-norm-is-rms-parallel", "tiny-cohere2", "RMSNorm instead of LayerNorm")
is_rms(
    "layer-norm-is-rms-second",
    "tiny-starcoder2",
    "the second norm of a layer keeps its mean",
    "post_attention",
    "layers.0.post_attention_layernorm",
)


@mutant(
    "layer-norm-bias-forgotten", "layer-norm", "the bias is not added",
    anchor=INPUT, replaces=LAYER_NORM, model="tiny-starcoder2",
)  # fmt: skip
def bias_forgotten(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float
) -> Value:
    return right(b, x, weight, None, eps)


@mutant(
    "layer-norm-bias-before-weight", "layer-norm", "the bias is added before the weight multiplies",
    anchor=INPUT, replaces=LAYER_NORM, model="tiny-stablelm",
)  # fmt: skip
def bias_before_weight(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float
) -> Value:
    if bias is None:
        return right(b, x, weight, bias, eps)
    normed = right(b, x, b.f32(1.0, weight.shape), bias, eps)
    return b.multiply(normed, b.over_last(weight, x.shape))


@mutant(
    "layer-norm-unbiased", "layer-norm", "the variance is divided by n - 1",
    anchor=INPUT, replaces=LAYER_NORM, model="tiny-cohere2",
)  # fmt: skip
def unbiased(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float) -> Value:
    n = x.shape[-1]
    y = right(b, x, weight, bias, eps * (n - 1) / n)
    return b.scaled(y, ((n - 1) / n) ** 0.5)


@mutant(
    "layer-norm-bias-forgotten-final", "layer-norm", "the final norm's bias is not added",
    anchor="norm", replaces=LAYER_NORM, model="tiny-stablelm",
)  # fmt: skip
def bias_forgotten_final(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float
) -> Value:
    return right(b, x, weight, None if b.anchor == "norm" else bias, eps)


@mutant(
    "oracle-layer-norm-is-rms", "layer-norm", "the mean is not subtracted", part="reference",
    anchor=INPUT, replaces="reference.oracle.architectures.cohere2:layer_norm", model="tiny-cohere2",
)  # fmt: skip
def oracle_is_rms(right: Right[Any], x: Any, weight: Any, bias: Any, eps: float) -> Any:
    from hloracle.reference.oracle.layers import rms_norm

    return rms_norm(x, weight, eps)


# ---- biases of projections


def without_bias(id: str, model: str, projection: str, anchor: str, fault: str, prefix: str = "") -> None:
    """Register a projection without its bias: in every layer, or where the weight's name begins with `prefix`."""

    @mutant(id, "projection-bias", fault, anchor=anchor, replaces=LINEAR, model=model)
    def linear(right: Right[Linear], w: Weights, name: str) -> Linear:
        weight, bias = right(w, name)
        return weight, None if name == projection and w.prefix.startswith(prefix) else bias


without_bias(
    "bias-forgotten-queries", "tiny-qwen2", "q_proj", "layers.0.self_attn.q_proj", "q_proj's bias is not added"
)  # fmt: skip
without_bias(
    "bias-forgotten-values-last-layer", "tiny-seed_oss", "v_proj", "layers.1.self_attn.v_proj",
    "the last layer's v_proj has no bias", "model.layers.1.",
)  # fmt: skip
without_bias(
    "bias-forgotten-output", "tiny-granite", "o_proj", "layers.0.self_attn.o_proj", "o_proj's bias is not added"
)
without_bias("bias-forgotten-mlp", "tiny-starcoder2", "c_fc", "layers.0.mlp.c_fc", "c_fc's bias is not added")
without_bias("bias-forgotten-router", "tiny-gpt_oss", "router", "layers.0.mlp.router", "the router's bias is not added")
without_bias(
    "bias-forgotten-latent", "tiny-deepseek_v3", "kv_a_proj_with_mqa", "layers.0.self_attn.kv_a_proj_with_mqa",
    "kv_a_proj_with_mqa's bias is not added",
)  # fmt: skip


@mutant(
    "bias-of-values-on-keys", "projection-bias", "keys and values take each other's bias",
    anchor="layers.0.self_attn.k_proj", replaces=LINEAR, model="tiny-qwen2",
)  # fmt: skip
def of_values_on_keys(right: Right[Linear], w: Weights, name: str) -> Linear:
    other = {"k_proj": "v_proj", "v_proj": "k_proj"}
    return right(w, name)[0], right(w, other.get(name, name))[1]


@mutant(
    "bias-added-twice", "projection-bias", "c_proj's bias is added twice",
    anchor="layers.0.mlp.c_proj", replaces="emitters.layers:LayerBuilder.linear", model="tiny-starcoder2",
)  # fmt: skip
def added_twice(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    y = right(b, x, weight, bias)
    return b.add(y, b.over_last(bias, y.shape)) if bias and b.anchor.endswith("c_proj") else y


@mutant(
    "mlp-relu-not-gelu", "activation", "relu instead of gelu",
    anchor="layers.0.mlp.act", replaces="emitters.layers:LayerBuilder.activation", model="tiny-starcoder2",
)  # fmt: skip
def relu_not_gelu(right: Right[Value], b: LayerBuilder, name: str, x: Value) -> Value:
    return b.maximum(x, b.f32(0.0, x.shape))
