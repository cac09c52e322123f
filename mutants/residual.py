"""What is added to what: the two sums of a block."""

from __future__ import annotations

from collections.abc import Callable

from hloracle.emitters.architectures.llama import attention
from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.mlp import gated_mlp
from hloracle.emitters.model import LayerInputs, Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config

BLOCK = "emitters.architectures.llama:block"
MIDDLE, OUTPUT = "layers.0.post_attention_layernorm", "layers.0"

# x (the block's input or the sum after attention), that value normed, what was computed from it, the block's input.
Sum = Callable[[LayerBuilder, Value, Value, Value, Value], Value]


def right_sum(b: LayerBuilder, x: Value, normed: Value, h: Value, start: Value) -> Value:
    """As Llama adds: the stream, and what was computed from it."""
    return b.add(x, h)


def residual(
    id: str, fault: str, anchor: str, first: Sum = right_sum, second: Sum = right_sum, layer: str = ""
) -> None:
    """Register a block with another first or second sum, in every layer or in one."""

    @mutant(id, "residual", fault, anchor=anchor, replaces=BLOCK)
    def block(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, given: LayerInputs, config: Config) -> Value:
        if not b.anchor.startswith(layer):
            return right(b, x, w, given, config)
        start = x
        with b.scope("input_layernorm"):
            normed = b.rms_norm(x, w["input_layernorm.weight"], config.norm_eps)
        with b.scope("self_attn"):
            h = attention(b, normed, w.inside("self_attn"), given, config)
        x = first(b, x, normed, h, start)
        with b.scope("post_attention_layernorm"):
            normed = b.rms_norm(x, w["post_attention_layernorm.weight"], config.norm_eps)
        with b.scope("mlp"):
            h = gated_mlp(b, normed, w.inside("mlp"), config)
        return second(b, x, normed, h, start)


residual(
    "residual-attention-dropped", "the block's input is not added to attention's output", MIDDLE,
    first=lambda b, x, normed, h, start: h,
)  # fmt: skip
residual(
    "residual-attention-from-normed", "the normed input is added to attention's output", MIDDLE,
    first=lambda b, x, normed, h, start: b.add(normed, h),
)  # fmt: skip
residual(
    "residual-attention-doubled-middle-layer", "layer 1 adds its input twice", "layers.1.post_attention_layernorm",
    first=lambda b, x, normed, h, start: b.add(x, b.add(x, h)), layer="layers.1",
)  # fmt: skip
residual(
    "residual-attention-output-lost", "attention's output is not added in the last layer",
    "layers.2.post_attention_layernorm",
    first=lambda b, x, normed, h, start: x, layer="layers.2",
)  # fmt: skip
residual(
    "residual-mlp-dropped", "the sum after attention is not added to the MLP's output", OUTPUT,
    second=lambda b, x, normed, h, start: h,
)  # fmt: skip
residual(
    "residual-mlp-from-normed", "the normed sum is added to the MLP's output", OUTPUT,
    second=lambda b, x, normed, h, start: b.add(normed, h),
)  # fmt: skip
residual(
    "residual-mlp-from-block-input", "the block's input is added to the MLP's output, without attention's", OUTPUT,
    second=lambda b, x, normed, h, start: b.add(start, h),
)  # fmt: skip
residual(
    "residual-mlp-dropped-last-layer", "the last layer's output is the MLP's alone", "layers.2",
    second=lambda b, x, normed, h, start: h, layer="layers.2",
)  # fmt: skip
