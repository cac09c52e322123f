"""The MLP: which projection goes through the activation, and which activation."""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config

SILU = "emitters.layers:LayerBuilder.silu"
MLP = "emitters.architectures.llama:gated_mlp"
MULTIPLY = "emitters.layers:LayerBuilder.multiply"
FIRST = "layers.0.mlp.act"


@mutant("act-gelu", "activation", "gelu (tanh form) instead of silu", anchor=FIRST, replaces=SILU)
def gelu(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    # 0.5 x (1 + tanh(u)) is x logistic(2u), with u = sqrt(2/pi) (x + 0.044715 x^3).
    cubed = b.multiply(b.multiply(x, x), b.multiply(x, b.f32(0.044715, x.shape)))
    return b.multiply(x, b.logistic(b.multiply(b.add(x, cubed), b.f32(1.5957691216, x.shape))))


@mutant("act-relu", "activation", "relu instead of silu", anchor=FIRST, replaces=SILU)
def relu(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    return b.maximum(x, b.f32(0.0, x.shape))


@mutant("act-sigmoid", "activation", "sigmoid instead of silu", anchor=FIRST, replaces=SILU)
def sigmoid(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    return b.logistic(x)


@mutant(
    "act-gelu-quick-last-layer", "activation", "x sigmoid(1.702 x) in the last layer",
    anchor="layers.2.mlp.act", replaces=SILU,
)  # fmt: skip
def gelu_quick_last_layer(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    if not b.anchor.startswith("layers.2."):
        return right(b, x)
    return b.multiply(x, b.logistic(b.multiply(x, b.f32(1.702, x.shape))))


@mutant(
    "act-relu-decode-middle-layer", "activation", "relu in layer 1 of decode", anchor="layers.1.mlp.act", replaces=SILU
)
def relu_decode_middle_layer(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    wrong = x.shape[0] == 1 and b.anchor.startswith("layers.1.")
    return b.maximum(x, b.f32(0.0, x.shape)) if wrong else right(b, x)


@mutant("act-on-up", "mlp", "up goes through the activation, not gate", anchor=FIRST, replaces=MLP)
def on_up(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    with b.scope("gate_proj"):
        gate = b.linear(x, *w.linear("gate_proj"))
    with b.scope("up_proj"):
        up = b.linear(x, *w.linear("up_proj"))
    with b.scope("act"):
        act = b.multiply(b.silu(up), gate)
    with b.scope("down_proj"):
        return b.linear(act, *w.linear("down_proj"))


def _gates(b: LayerBuilder, up: Value) -> bool:
    """Whether this is the product of the gate and `up`."""
    return b.anchor.endswith("mlp.act") and "up_proj" in up.name


@mutant("act-added-to-up-prefill", "mlp", "prefill adds the activated gate to up", anchor=FIRST, replaces=MULTIPLY)
def added_to_up_prefill(right: Right[Value], b: LayerBuilder, gate: Value, up: Value) -> Value:
    return b.add(gate, up) if _gates(b, up) and up.shape[0] > 1 else right(b, gate, up)


@mutant(
    "act-without-up-last-layer", "mlp", "the last layer does not multiply by up",
    anchor="layers.2.mlp.act", replaces=MULTIPLY,
)  # fmt: skip
def without_up_last_layer(right: Right[Value], b: LayerBuilder, gate: Value, up: Value) -> Value:
    return gate if _gates(b, up) and b.anchor.startswith("layers.2.") else right(b, gate, up)


@mutant(
    "mlp-down-of-up",
    "mlp",
    "down_proj reads up, not the activated product",
    anchor="layers.0.mlp.down_proj",
    replaces=MLP,
)
def down_of_up(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    with b.scope("gate_proj"):
        gate = b.linear(x, *w.linear("gate_proj"))
    with b.scope("up_proj"):
        up = b.linear(x, *w.linear("up_proj"))
    with b.scope("act"):
        b.multiply(b.silu(gate), up)
    with b.scope("down_proj"):
        return b.linear(up, *w.linear("down_proj"))
