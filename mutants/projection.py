"""Projections: which weight, read in which order, in which precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def exchange(names: dict[str, str]) -> Callable[[str], str]:
    """A function that exchanges some names for others."""
    return lambda name: names.get(name, name)


@mutant(
    "k-v-swapped", "exchanged-weights", "keys and values take each other's weight",
    anchor="layers.0.self_attn.k_proj", replaces=NAMED,
)  # fmt: skip
def k_v_swapped(right: Right[Linear], w: Weights, name: str) -> Linear:
    return right(w, exchange({"k_proj": "v_proj", "v_proj": "k_proj"})(name))


@mutant(
    "gate-up-swapped", "exchanged-weights", "gate and up take each other's weight",
    anchor="layers.0.mlp.gate_proj", replaces=NAMED,
)  # fmt: skip
def gate_up_swapped(right: Right[Linear], w: Weights, name: str) -> Linear:
    return right(w, exchange({"gate_proj": "up_proj", "up_proj": "gate_proj"})(name))


@mutant(
    "q-o-swapped", "exchanged-weights", "q_proj and o_proj take each other's weight, over the axis that fits",
    anchor="layers.0.self_attn.q_proj",
)  # fmt: skip
def q_o_swapped() -> Iterator[None]:
    def named(right: Right[Linear], w: Weights, name: str) -> Linear:
        return right(w, exchange({"q_proj": "o_proj", "o_proj": "q_proj"})(name))

    def linear(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
        if b.anchor.endswith(("q_proj", "o_proj")):
            return b.dot_general(x, weight, contracting_dimensions=((1,), (0,)))
        return right(b, x, weight, bias)

    with replaced(NAMED, named), replaced(LINEAR, linear):
        yield


@mutant(
    "layers-exchanged", "exchanged-layers", "layers 1 and 2 take each other's weights",
    anchor="layers.1.input_layernorm", replaces=INSIDE,
)  # fmt: skip
def layers_exchanged(right: Right[Weights], w: Weights, name: str) -> Weights:
    return right(w, exchange({"layers.1": "layers.2", "layers.2": "layers.1"})(name))


@mutant(
    "layer-repeated", "exchanged-layers", "the last layer takes the weights of the one before it",
    anchor="layers.2.input_layernorm", replaces=INSIDE,
)  # fmt: skip
def layer_repeated(right: Right[Weights], w: Weights, name: str) -> Weights:
    return right(w, exchange({"layers.2": "layers.1"})(name))


@mutant(
    "down-exchanged-between-layers", "exchanged-layers", "down_proj of layers 0 and 2 are exchanged",
    anchor="layers.0.mlp.down_proj", replaces=NAMED,
)  # fmt: skip
def down_exchanged_between_layers(right: Right[Linear], w: Weights, name: str) -> Linear:
    if name != "down_proj":
        return right(w, name)
    prefix = exchange({"model.layers.0.mlp.": "model.layers.2.mlp.", "model.layers.2.mlp.": "model.layers.0.mlp."})
    return right(Weights(w.values, prefix(w.prefix)), name)


@mutant(
    "norms-exchanged", "exchanged-weights", "a layer's two norms take each other's weight",
    anchor="layers.0.input_layernorm", replaces=INSIDE,
)  # fmt: skip
def norms_exchanged(right: Right[Weights], w: Weights, name: str) -> Weights:
    first, second = "input_layernorm", "post_attention_layernorm"
    return right(w, exchange({first: second, second: first})(name))


@mutant(
    "gate-weight-unused", "unused-weight", "gate_proj reads up_proj's weight, and its own is read by nobody",
    anchor="layers.0.mlp.gate_proj", replaces=NAMED,
)  # fmt: skip
def gate_weight_unused(right: Right[Linear], w: Weights, name: str) -> Linear:
    return right(w, exchange({"gate_proj": "up_proj"})(name))


@mutant(
    "v-weight-unused-last-layer", "unused-weight", "the last layer's v_proj reads k_proj's weight",
    anchor="layers.2.self_attn.v_proj", replaces=NAMED,
)  # fmt: skip
def v_weight_unused_last_layer(right: Right[Linear], w: Weights, name: str) -> Linear:
    wrong = "layers.2." in w.prefix
    return right(w, exchange({"v_proj": "k_proj"})(name) if wrong else name)


@mutant(
    "final-norm-weight-unused", "unused-weight", "the final norm reads the last layer's weight",
    anchor="norm", replaces=INSIDE,
)  # fmt: skip
def final_norm_weight_unused(right: Right[Weights], w: Weights, name: str) -> Weights:
    return right(w, exchange({"model.norm": "model.layers.2.post_attention_layernorm"})(name))


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
