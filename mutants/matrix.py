"""Weights that are held otherwise than the checkpoint has them: which integer, which scale, which row, rounded to what."""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.matrix import Matrix
from hloracle.mutants.registry import Right, mutant

MATRIX = "emitters.matrix:MatrixBuilder"
NIBBLES, PER_GROUP, X_HALVES = f"{MATRIX}._nibbles", f"{MATRIX}._per_group", f"{MATRIX}._x_halves"
PRODUCT, SUMMED, ROW, ROWS = f"{MATRIX}.product", f"{MATRIX}._summed", f"{MATRIX}.row", f"{MATRIX}.rows"
Q, K, O_PROJ = (f"layers.0.self_attn.{x}_proj" for x in "qko")

Halves = tuple[Value, Value]


def rolled(b: LayerBuilder, x: Value, axis: int, by: int = 1) -> Value:
    """Each one where the one `by` places before it was."""
    n = x.shape[axis]
    return b.concatenate([b.part(x, axis, by, n), b.part(x, axis, 0, by)], axis)


# ---- 4 bits


@mutant("int4-nibbles-swapped", "int4", "high nibbles come first", anchor=Q, replaces=NIBBLES, weights="int4")
def nibbles_swapped(right: Right[Halves], b: LayerBuilder, packed: Value) -> Halves:
    low, high = right(b, packed)
    return high, low


@mutant(
    "int4-nibbles-in-turns", "int4", "a byte's two nibbles are taken for neighbours in layer 1's gate_proj",
    anchor="layers.1.mlp.gate_proj", replaces=NIBBLES, weights="int4",
)  # fmt: skip
def nibbles_in_turns(right: Right[Halves], b: LayerBuilder, packed: Value) -> Halves:
    low, high = right(b, packed)
    if b.anchor != "layers.1.mlp.gate_proj":
        return low, high
    *groups, half = low.shape
    last = len(groups)
    pairs = b.concatenate([b.reshape(x, (*groups, half, 1)) for x in (low, high)], last + 1)
    first, second = b.halves(b.reshape(pairs, (*groups, 2 * half)))
    return first, second


@mutant(
    "int4-high-nibble-unshifted", "int4", "high nibbles of layer 2's o_proj are not shifted down",
    anchor="layers.2.self_attn.o_proj", replaces=NIBBLES, weights="int4",
)  # fmt: skip
def high_nibble_unshifted(right: Right[Halves], b: LayerBuilder, packed: Value) -> Halves:
    low, high = right(b, packed)
    return low, b.scaled(high, 16.0) if b.anchor.endswith("2.self_attn.o_proj") else high


@mutant(
    "int4-minimum-negative", "int4", "the minimum is taken away", anchor=Q, replaces=PER_GROUP, weights="int4",
)  # fmt: skip
def minimum_negative(right: Right[Value], b: LayerBuilder, x: Value, like: Value, panels: bool = False) -> Value:
    found = right(b, x, like, panels)
    return b.scaled(found, -1.0) if ".minimum" in x.name else found


@mutant(
    "int4-minimum-of-first-group", "int4", "every group of layer 1's v_proj has its row's first minimum",
    anchor="layers.1.self_attn.v_proj", replaces=PER_GROUP, weights="int4",
)  # fmt: skip
def minimum_of_first_group(right: Right[Value], b: LayerBuilder, x: Value, like: Value, panels: bool = False) -> Value:
    if b.anchor == "layers.1.self_attn.v_proj" and ".minimum" in x.name:
        x = b.broadcast_in_dim(b.part(x, x.rank - 1, 0, 1), x.shape, range(x.rank))
    return right(b, x, like, panels)


@mutant(
    "int4-scale-of-neighbour", "int4", "a group is scaled by the next one's scale", anchor=Q, replaces=PER_GROUP,
    weights="int4",
)  # fmt: skip
def scale_of_neighbour(right: Right[Value], b: LayerBuilder, x: Value, like: Value, panels: bool = False) -> Value:
    # The head is int8.
    scale = ".scale" in x.name and b.anchor.endswith("_proj")
    return right(b, rolled(b, x, x.rank - 1) if scale else x, like, panels)


@mutant(
    "int4-group-of-neighbour", "int4", "decode multiplies each group with the next group's inputs, but for the head", anchor=Q,
    replaces=X_HALVES, weights="int4",
)  # fmt: skip
def group_of_neighbour(right: Right[Halves], b: LayerBuilder, x: Value, like: Value) -> Halves:
    low, high = right(b, x, like)
    return (rolled(b, low, 1), rolled(b, high, 1)) if b.anchor != "lm_head" else (low, high)


@mutant(
    "int4-hands-crossed", "int4", "decode multiplies the groups dealt to one hand with the inputs of another, but for the head",
    anchor=Q, replaces=f"{MATRIX}._dealt", weights="int4",
)  # fmt: skip
def hands_crossed(
    right: Right[list[tuple[Value, Matrix]]], b: LayerBuilder, x: Value, weight: Matrix
) -> list[tuple[Value, Matrix]]:
    dealt = right(b, x, weight)
    if b.anchor == "lm_head":
        return dealt
    return [(dealt[i - 1][0], one) for i, (_, one) in enumerate(dealt)]


# ---- 8 bits


@mutant(
    "int8-halves-swapped", "int8", "decode multiplies a group's first half with its last inputs, but for the head", anchor=Q,
    replaces=X_HALVES, weights="int8",
)  # fmt: skip
def halves_swapped(right: Right[Halves], b: LayerBuilder, x: Value, like: Value) -> Halves:
    low, high = right(b, x, like)
    return (high, low) if b.anchor != "lm_head" else (low, high)


@mutant(
    "int8-scale-missing", "int8", "layer 1's down_proj is not scaled", anchor="layers.1.mlp.down_proj",
    replaces=PER_GROUP, weights="int8",
)  # fmt: skip
def scale_missing(right: Right[Value], b: LayerBuilder, x: Value, like: Value, panels: bool = False) -> Value:
    found = right(b, x, like, panels)
    return b.f32(1.0, found.shape) if b.anchor == "layers.1.mlp.down_proj" else found


@mutant(
    "int8-scale-of-next-row", "int8", "each row has the next one's scales in layer 2's up_proj",
    anchor="layers.2.mlp.up_proj", replaces=PER_GROUP, weights="int8",
)  # fmt: skip
def scale_of_next_row(right: Right[Value], b: LayerBuilder, x: Value, like: Value, panels: bool = False) -> Value:
    return right(b, rolled(b, x, 0) if b.anchor == "layers.2.mlp.up_proj" else x, like, panels)


@mutant(
    "int8-unsigned", "int8", "negative integers of layer 0's o_proj are taken for positive ones", anchor=O_PROJ,
    replaces=f"{MATRIX}.as_f32", weights="int8",
)  # fmt: skip
def unsigned(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    found = right(b, x)
    if b.anchor != O_PROJ or x.dtype != "i8":
        return found
    negative = b.compare(found, b.f32(0.0, found.shape), "LT")
    return b.select(negative, b.add(found, b.f32(256.0, found.shape)), found)


@mutant(
    "int8-row-before", "int8", "decode looks up the row before the token's", anchor="embed_tokens", replaces=ROW,
    weights="int8",
)  # fmt: skip
def row_before(right: Right[Value], b: LayerBuilder, weight: Value | Matrix, index: Value) -> Value:
    return right(b, weight, b.subtract(index, b.i32(1)))


# ---- panels


@mutant(
    "panels-rows-reversed", "panels", "decode takes the rows of a panel in reverse", anchor=Q, replaces=SUMMED,
    weights="panels",
)  # fmt: skip
def rows_reversed(right: Right[Value], b: LayerBuilder, terms: Value, dimensions: tuple[int, ...]) -> Value:
    return right(b, b.reverse(terms, (2,)) if b.anchor == Q else terms, dimensions)


@mutant(
    "panels-across", "panels", "k_proj of a prompt is put together across panels", anchor=K, replaces=PRODUCT,
    weights="panels",
)  # fmt: skip
def across(right: Right[Value], b: LayerBuilder, x: Value, weight: Value | Matrix) -> Value:
    y = right(b, x, weight)
    T, N = y.shape
    if b.anchor != K or T == 1:
        return y
    return b.reshape(b.transpose(b.reshape(y, (T, N // 16, 16)), (0, 2, 1)), y.shape)


@mutant(
    "panels-last-row-lost", "panels", "the last row of each panel of layer 2's gate_proj counts for nothing",
    anchor="layers.2.mlp.gate_proj", replaces=SUMMED, weights="panels",
)  # fmt: skip
def last_row_lost(right: Right[Value], b: LayerBuilder, terms: Value, dimensions: tuple[int, ...]) -> Value:
    if b.anchor != "layers.2.mlp.gate_proj":
        return right(b, terms, dimensions)
    last = b.compare(b.iota(terms.shape, "i32", 2), b.i32(15, terms.shape), "EQ")
    return right(b, b.select(last, b.f32(0.0, terms.shape), terms), dimensions)


# ---- narrow floats


def inputs_rounded(precision: str, projection: str, fault: str) -> None:
    """Register a product that rounds its inputs to what its weight is held in."""

    @mutant(f"{precision}-inputs-rounded", precision, fault, anchor=projection, replaces=PRODUCT, weights=precision)
    def product(right: Right[Value], b: LayerBuilder, x: Value, weight: Value | Matrix) -> Value:
        if b.anchor == projection:
            x = b.convert(b.convert(x, precision), "f32")
        return right(b, x, weight)


inputs_rounded("bf16", "layers.0.mlp.up_proj", "layer 0's up_proj rounds its inputs to bfloat16 as well")
inputs_rounded("f16", "layers.1.self_attn.k_proj", "layer 1's k_proj rounds its inputs to float16 as well")


@mutant(
    "f16-sums-rounded", "f16", "layer 2's v_proj has its sums rounded to float16", anchor="layers.2.self_attn.v_proj",
    replaces=PRODUCT, weights="f16",
)  # fmt: skip
def sums_rounded(right: Right[Value], b: LayerBuilder, x: Value, weight: Value | Matrix) -> Value:
    y = right(b, x, weight)
    return b.convert(b.convert(y, "f16"), "f32") if b.anchor == "layers.2.self_attn.v_proj" else y
