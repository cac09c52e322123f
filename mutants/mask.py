"""Which keys a query sees. The mask itself is in no anchor: the first value that it makes wrong is the scores."""

from __future__ import annotations

from dataclasses import replace

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Scoring, Visible
from hloracle.mutants.registry import Right, mutant

DECODE = "emitters.layers:LayerBuilder.visible_to_position"
PREFILL = "emitters.layers:LayerBuilder.visible_causal"
ATTENTION = "emitters.layers:LayerBuilder.attention"
FIRST = "layers.0.self_attn.scores"


def compared(b: LayerBuilder, length: int, direction: str) -> Value:
    """Key s against query t: i1 [T, T]"""
    shape = (length, length)
    return b.compare(b.iota(shape, "i32", 1), b.iota(shape, "i32", 0), direction)


@mutant("mask-decode-without-self", "mask", "decode does not see its own key", anchor=FIRST, replaces=DECODE)
def decode_without_self(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int | None) -> Value:
    return right(b, b.subtract(position, b.i32(1)), slots, window)


@mutant("mask-decode-with-next", "mask", "decode sees one slot too many", anchor=FIRST, replaces=DECODE)
def decode_with_next(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int | None) -> Value:
    return right(b, b.add(position, b.i32(1)), slots, window)


@mutant("mask-prefill-without-self", "mask", "a prompt's token does not see itself", anchor=FIRST, replaces=PREFILL)
def prefill_without_self(right: Right[Value], b: LayerBuilder, length: int, window: int | None) -> Value:
    return compared(b, length, "LT")


@mutant("mask-prefill-with-next", "mask", "a prompt's token sees the next one", anchor=FIRST, replaces=PREFILL)
def prefill_with_next(right: Right[Value], b: LayerBuilder, length: int, window: int | None) -> Value:
    shape = (length, length)
    next_one = b.add(b.iota(shape, "i32", 0), b.i32(1, shape))
    return b.compare(b.iota(shape, "i32", 1), next_one, "LE")


@mutant(
    "mask-missing-on-padding",
    "mask-missing",
    "decode sees the slots beyond its position",
    anchor=FIRST,
    replaces=DECODE,
)
def missing_on_padding(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int | None) -> Value:
    return b.constant(1, "i1", (slots,))


@mutant("mask-not-causal", "mask-missing", "a prompt's token sees all of them", anchor=FIRST, replaces=PREFILL)
def not_causal(right: Right[Value], b: LayerBuilder, length: int, window: int | None) -> Value:
    return b.constant(1, "i1", (length, length))


@mutant("mask-transposed", "mask", "a prompt's token sees those after it", anchor=FIRST, replaces=PREFILL)
def transposed(right: Right[Value], b: LayerBuilder, length: int, window: int | None) -> Value:
    return compared(b, length, "GE")


@mutant("mask-window", "mask", "decode sees the last 16 positions only", anchor=FIRST, replaces=DECODE)
def windowed(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int | None) -> Value:
    before = right(b, b.subtract(position, b.i32(16)), slots, window)
    return b.compare(right(b, position, slots, window), before, "NE")


@mutant(
    "mask-missing-last-layer", "mask-missing", "the last layer does not mask",
    anchor="layers.2.self_attn.scores", replaces=ATTENTION,
)  # fmt: skip
def missing_last_layer(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    if b.anchor.startswith("layers.2."):
        scoring = replace(scoring, visible=Visible(b.constant(1, "i1", scoring.visible.mask.shape)))
    return right(b, q, k, v, scoring)


@mutant(
    "mask-value-too-small", "mask-value", "hidden scores become -10, which is not small enough to vanish",
    anchor=FIRST, replaces="emitters.layers:LayerBuilder.f32",
)  # fmt: skip
def value_too_small(right: Right[Value], b: LayerBuilder, value: float, shape: tuple[int, ...] = ()) -> Value:
    masks = b.anchor.endswith("scores") and value == float("-inf")
    return right(b, -10.0 if masks else value, shape)


@mutant(
    "mask-value-zero-decode", "mask-value", "decode's hidden scores become 0",
    anchor=FIRST, replaces="emitters.layers:LayerBuilder.select",
)  # fmt: skip
def value_zero_decode(right: Right[Value], b: LayerBuilder, pred: Value, on_true: Value, on_false: Value) -> Value:
    masks = b.anchor.endswith("scores") and on_true.shape[1] == 1
    return right(b, pred, on_true, b.f32(0.0, on_true.shape) if masks else on_false)
