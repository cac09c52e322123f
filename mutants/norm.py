"""RMS norm: the epsilon, the mean, the weight."""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.mutants.registry import Right, mutant

NORM = "emitters.layers:LayerBuilder.rms_norm"
FIRST = "layers.0.input_layernorm"


def scaled(b: LayerBuilder, x: Value, inverse: Value, weight: Value) -> Value:
    """x [T, E] times inverse [T] and weight [E]."""
    normed = b.multiply(x, b.broadcast_in_dim(inverse, x.shape, (0,)))
    return b.multiply(normed, b.broadcast_in_dim(weight, x.shape, (1,)))


def mean(b: LayerBuilder, x: Value) -> Value:
    """x [T, E] -> [T]"""
    T, E = x.shape
    return b.multiply(b.reduce(x, b.f32(0.0), (1,), "add"), b.f32(1.0 / E, (T,)))


@mutant("norm-eps-outside", "norm-eps", "epsilon is added to the root, not under it", anchor=FIRST, replaces=NORM)
def eps_outside(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    mean_square = mean(b, b.multiply(x, x))
    root = b.multiply(mean_square, b.rsqrt(mean_square))
    inverse = b.divide(b.f32(1.0, root.shape), b.add(root, b.f32(eps, root.shape)))
    return scaled(b, x, inverse, weight)


@mutant("norm-eps-value", "norm-eps", "epsilon is 1e-6, whatever the config says", anchor=FIRST, replaces=NORM)
def eps_value(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return right(b, x, weight, 1e-6)


@mutant(
    "norm-eps-value-middle-layer", "norm-eps", "layer 1's second norm has an epsilon of 1e-3",
    anchor="layers.1.post_attention_layernorm", replaces=NORM,
)  # fmt: skip
def eps_value_middle_layer(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return right(b, x, weight, 1e-3 if b.anchor == "layers.1.post_attention_layernorm" else eps)


@mutant("norm-mean-not-square", "norm-mean", "the mean of |x| instead of its square", anchor=FIRST, replaces=NORM)
def mean_not_square(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    absolute = b.maximum(x, b.subtract(b.f32(0.0, x.shape), x))
    average = mean(b, absolute)
    return scaled(b, x, b.rsqrt(b.add(average, b.f32(eps, average.shape))), weight)


@mutant("norm-sum", "norm-mean", "the sum of squares instead of their mean", anchor=FIRST, replaces=NORM)
def sum_of_squares(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    total = b.reduce(b.multiply(x, x), b.f32(0.0), (1,), "add")
    return scaled(b, x, b.rsqrt(b.add(total, b.f32(eps, total.shape))), weight)


@mutant("norm-centered", "norm-mean", "the mean is subtracted first, as LayerNorm does", anchor=FIRST, replaces=NORM)
def centered(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return right(b, b.subtract(x, b.broadcast_in_dim(mean(b, x), x.shape, (0,))), weight, eps)


@mutant(
    "norm-over-prompt", "norm-mean", "prefill takes the mean over the prompt too", anchor=FIRST, replaces=NORM
)  # fmt: skip
def over_prompt(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    T, E = x.shape
    total = b.reduce(b.multiply(x, x), b.f32(0.0), (0, 1), "add")
    mean_square = b.broadcast_in_dim(b.multiply(total, b.f32(1.0 / (T * E))), (T,), ())
    return scaled(b, x, b.rsqrt(b.add(mean_square, b.f32(eps, (T,)))), weight)


@mutant("norm-weight-forgotten", "norm-weight", "not multiplied by the weight", anchor=FIRST, replaces=NORM)
def weight_forgotten(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return right(b, x, b.f32(1.0, weight.shape), eps)


@mutant("norm-weight-plus-one", "norm-weight", "multiplied by 1 + weight, as Gemma does", anchor=FIRST, replaces=NORM)
def weight_plus_one(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return right(b, x, b.add(weight, b.f32(1.0, weight.shape)), eps)


@mutant(
    "norm-weight-forgotten-final", "norm-weight", "the final norm is not multiplied by its weight",
    anchor="norm", replaces=NORM,
)  # fmt: skip
def weight_forgotten_final(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return right(b, x, b.f32(1.0, weight.shape) if b.anchor == "norm" else weight, eps)


@mutant(
    "norm-not-divided-middle-layer", "norm-missing", "layer 1's second norm multiplies by its weight, and does not divide",
    anchor="layers.1.post_attention_layernorm", replaces=NORM,
)  # fmt: skip
def not_divided_middle_layer(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    if b.anchor != "layers.1.post_attention_layernorm":
        return right(b, x, weight, eps)
    return b.multiply(x, b.broadcast_in_dim(weight, x.shape, (1,)))


@mutant(
    "norm-skipped-final", "norm-missing", "the final norm is skipped", anchor="norm", replaces=NORM,
    note="no operation stands in the anchor's scope",
)  # fmt: skip
def skipped_final(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, eps: float) -> Value:
    return x if b.anchor == "norm" else right(b, x, weight, eps)
