"""Weights that are multiplied with the same values and taken as one: which rows of the product are whose."""

from __future__ import annotations

import dataclasses

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.matrix import FusedPart, Matrix
from hloracle.mutants.registry import Right, mutant

PRODUCT = "emitters.matrix:MatrixBuilder.product"
HEAD = 16  # rows of a head of tiny-llama

Weight = Value | Matrix | FusedPart


def moved(weight: Weight, by: int) -> Weight:
    """As many rows, so many further on; none of another weight than a fused one."""
    if not isinstance(weight, FusedPart):
        return weight
    return dataclasses.replace(weight, start=weight.start + by, limit=weight.limit + by)


def size(weight: Weight) -> int:
    """The rows of a fused weight; 0 of any other."""
    return weight.limit - weight.start if isinstance(weight, FusedPart) else 0


@mutant(
    "fused-k-a-head-early", "fused-weights", "layer 0's k_proj begins a head early, in q_proj",
    anchor="layers.0.self_attn.k_proj", replaces=PRODUCT, weights="panels+fused",
)  # fmt: skip
def k_a_head_early(right: Right[Value], b: LayerBuilder, x: Value, weight: Weight) -> Value:
    return right(b, x, moved(weight, -HEAD) if b.anchor == "layers.0.self_attn.k_proj" else weight)


@mutant(
    "fused-k-a-head-late", "fused-weights", "k_proj begins a head late, and ends in v_proj", anchor="layers.0.self_attn.k_proj",
    replaces=PRODUCT, weights="int4+fused",
)  # fmt: skip
def k_a_head_late(right: Right[Value], b: LayerBuilder, x: Value, weight: Weight) -> Value:
    return right(b, x, moved(weight, HEAD) if b.anchor.endswith(".k_proj") else weight)


@mutant(
    "fused-k-v-swapped", "fused-weights", "in layer 1 the values come before the keys", anchor="layers.1.self_attn.k_proj",
    replaces=PRODUCT, weights="int4+fused",
)  # fmt: skip
def k_v_swapped(right: Right[Value], b: LayerBuilder, x: Value, weight: Weight) -> Value:
    by = {"layers.1.self_attn.k_proj": size(weight), "layers.1.self_attn.v_proj": -size(weight)}
    return right(b, x, moved(weight, by.get(b.anchor, 0)))


@mutant(
    "fused-up-three-rows-early", "fused-weights", "layer 2's up_proj begins three rows early, in gate_proj",
    anchor="layers.2.mlp.up_proj", replaces=PRODUCT, weights="int8+fused",
)  # fmt: skip
def up_three_rows_early(right: Right[Value], b: LayerBuilder, x: Value, weight: Weight) -> Value:
    return right(b, x, moved(weight, -3) if b.anchor == "layers.2.mlp.up_proj" else weight)


@mutant(
    "fused-up-before-gate", "fused-weights", "up_proj comes before gate_proj", anchor="layers.0.mlp.gate_proj",
    replaces=PRODUCT, weights="panels+fused",
)  # fmt: skip
def up_before_gate(right: Right[Value], b: LayerBuilder, x: Value, weight: Weight) -> Value:
    by = {"gate_proj": size(weight), "up_proj": -size(weight)}
    return right(b, x, moved(weight, by.get(b.anchor.rpartition(".")[2], 0)))


@mutant(
    "fused-k-of-layer-before", "fused-weights", "layer 1's k_proj is a part of layer 0's fused weight",
    anchor="layers.1.self_attn.k_proj", replaces=PRODUCT, weights="bf16+fused",
)  # fmt: skip
def k_of_layer_before(right: Right[Value], b: LayerBuilder, x: Value, weight: Weight) -> Value:
    if b.anchor == "layers.0.self_attn.k_proj":
        vars(b)["k_before"] = weight
    if b.anchor != "layers.1.self_attn.k_proj":
        return right(b, x, weight)
    before = vars(b)["k_before"]
    return b.part(right(b, x, before.whole), 1, before.start, before.limit)
