"""Projections: which weight, read in which order, in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import Weights
from hloracle.mutants.registry import Right, mutant, replaced

LINEAR = "emitters.layers:LayerBuilder.linear"
NAMED = "emitters.model:Weights.linear"
INSIDE = "emitters.model:Weights.inside"
GET = "emitters.model:Weights.__getitem__"

Linear = tuple[Value, Value | None]

# ---- the order of a weight


def misread(projection: str, layer: int | None = None) -> None:
    """Register a projection that takes its weight for one stored as [in, out]; in one layer, or in all."""
    name = projection.split(".")[-1]
    prefix = "layers." if layer is None else f"layers.{layer}."
    fault = f"{name}'s weight is read as if it were stored transposed{'' if layer is None else f', in layer {layer}'}"

    @mutant(
        f"{name.replace('_', '-')}-transposed", "transposed-weight", fault,
        anchor=f"layers.{layer or 0}.{projection}", replaces=LINEAR,
    )  # fmt: skip
    def linear(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
        if b.anchor.startswith(prefix) and b.anchor.endswith(projection):
            weight = b.transpose(b.reshape(weight, weight.shape[::-1]), (1, 0))
        return right(b, x, weight, bias)


misread("self_attn.q_proj")
misread("self_attn.k_proj", layer=1)
misread("self_attn.v_proj", layer=2)
misread("self_attn.o_proj")

# ---- which weight


def renamed(id: str, mechanism: str, fault: str, anchor: str, replaces: str, names: dict[str, str]) -> None:
    """Register weights, or parts of the model with weights, that are taken by other names than their own."""

    @mutant(id, mechanism, fault, anchor=anchor, replaces=replaces)
    def other(right: Right[Any], w: Weights, name: str) -> Any:
        return right(w, names.get(name, name))


renamed(
    "k-v-swapped", "exchanged-weights", "keys and values take each other's weight",
    "layers.0.self_attn.k_proj", NAMED, {"k_proj": "v_proj", "v_proj": "k_proj"},
)  # fmt: skip
renamed(
    "gate-up-swapped", "exchanged-weights", "gate and up take each other's weight",
    "layers.0.mlp.gate_proj", NAMED, {"gate_proj": "up_proj", "up_proj": "gate_proj"},
)  # fmt: skip
renamed(
    "layers-exchanged", "exchanged-layers", "layers 1 and 2 take each other's weights",
    "layers.1.input_layernorm", INSIDE, {"layers.1": "layers.2", "layers.2": "layers.1"},
)  # fmt: skip
renamed(
    "layer-repeated", "exchanged-layers", "the last layer takes the weights of the one before it",
    "layers.2.input_layernorm", INSIDE, {"layers.2": "layers.1"},
)  # fmt: skip
renamed(
    "norms-exchanged", "exchanged-weights", "a layer's two norms take each other's weight", "layers.0.input_layernorm", INSIDE,
    {"input_layernorm": "post_attention_layernorm", "post_attention_layernorm": "input_layernorm"},
)  # fmt: skip
renamed(
    "gate-weight-unused", "unused-weight", "gate_proj reads up_proj's weight, and its own is read by nobody",
    "layers.0.mlp.gate_proj", NAMED, {"gate_proj": "up_proj"},
)  # fmt: skip
renamed(
    "final-norm-weight-unused", "unused-weight", "the final norm reads the last layer's weight",
    "norm", INSIDE, {"model.norm": "model.layers.2.post_attention_layernorm"},
)  # fmt: skip


@mutant(
    "q-o-swapped", "exchanged-weights", "q_proj and o_proj take each other's weight, over the axis that fits",
    anchor="layers.0.self_attn.q_proj",
)  # fmt: skip
def q_o_swapped() -> Iterator[None]:
    def named(right: Right[Linear], w: Weights, name: str) -> Linear:
        return right(w, {"q_proj": "o_proj", "o_proj": "q_proj"}.get(name, name))

    def linear(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
        if b.anchor.endswith(("q_proj", "o_proj")):
            return b.dot_general(x, weight, contracting_dimensions=((1,), (0,)))
        return right(b, x, weight, bias)

    with replaced(NAMED, named), replaced(LINEAR, linear):
        yield


@mutant(
    "down-exchanged-between-layers", "exchanged-layers", "down_proj of layers 0 and 2 are exchanged",
    anchor="layers.0.mlp.down_proj", replaces=NAMED,
)  # fmt: skip
def down_exchanged_between_layers(right: Right[Linear], w: Weights, name: str) -> Linear:
    if name != "down_proj":
        return right(w, name)
    other = {"model.layers.0.mlp.": "model.layers.2.mlp.", "model.layers.2.mlp.": "model.layers.0.mlp."}
    return right(Weights(w.values, other.get(w.prefix, w.prefix)), name)


@mutant(
    "v-weight-unused-last-layer", "unused-weight", "the last layer's v_proj reads k_proj's weight",
    anchor="layers.2.self_attn.v_proj", replaces=NAMED,
)  # fmt: skip
def v_weight_unused_last_layer(right: Right[Linear], w: Weights, name: str) -> Linear:
    return right(w, "k_proj" if name == "v_proj" and "layers.2." in w.prefix else name)


# ---- embedding


@mutant(
    "embedding-from-head", "embedding", "tokens are looked up in lm_head", anchor="embed_tokens", replaces=GET
)  # fmt: skip
def embedding_from_head(right: Right[Value], w: Weights, name: str) -> Value:
    return w.values["lm_head.weight"] if name == "embed_tokens.weight" else right(w, name)


@mutant(
    "embedding-scaled-prefill", "embedding", "prefill multiplies the embedding by sqrt(E), as Gemma does",
    anchor="embed_tokens", replaces="emitters.layers:LayerBuilder.gather_rows",
)  # fmt: skip
def embedding_scaled_prefill(right: Right[Value], b: LayerBuilder, operand: Value, start_indices: Value) -> Value:
    rows = right(b, operand, start_indices)
    return b.multiply(rows, b.f32(rows.shape[1] ** 0.5, rows.shape))


@mutant(
    "embedding-next-row-decode", "embedding", "decode looks up the row after the token's",
    anchor="embed_tokens", replaces="emitters.layers:LayerBuilder.dynamic_slice",
)  # fmt: skip
def embedding_next_row_decode(
    right: Right[Value], b: LayerBuilder, operand: Value, start_indices: tuple[Value, ...], slice_sizes: tuple[int, ...]
) -> Value:
    if b.anchor == "embed_tokens":
        token, zero = start_indices
        start_indices = (b.add(token, b.i32(1)), zero)
    return right(b, operand, start_indices, slice_sizes)


# ---- precision


def rounded(id: str, anchor: str, dtype: str, fault: str, prefill_only: bool = False) -> None:
    """Register a projection that rounds its input."""

    @mutant(id, "precision", fault, anchor=anchor, replaces=LINEAR)
    def linear(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
        if b.anchor == anchor and (x.shape[0] > 1 or not prefill_only):
            x = b.convert(b.convert(x, dtype), "f32")
        return right(b, x, weight, bias)


rounded(
    "bfloat16-down-proj-middle-layer", "layers.1.mlp.down_proj", "bf16", "layer 1's down_proj rounds its input to bfloat16"
)  # fmt: skip
rounded("bfloat16-head", "lm_head", "bf16", "the head rounds its input to bfloat16")
# In bfloat16 this one shows on XLA only: IREE 3.13 fuses the two conversions with the transpose before them, and then
# leaves the rounding out.
rounded(
    "float16-o-proj-prefill-last-layer", "layers.2.self_attn.o_proj", "f16",
    "the last layer's o_proj of prefill rounds its input to float16", prefill_only=True,
)  # fmt: skip
