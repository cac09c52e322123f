"""Rings of windowed layers: which slot a position goes to, what is seen of a ring, and what a prompt leaves in it."""

from __future__ import annotations

from functools import partial

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import RingExtendCache
from hloracle.mutants.registry import Right, mutant

BUILDER = "emitters.layers:LayerBuilder."
EXTEND = "emitters.model:RingExtendCache._write"
SCORES, KEYS = "layers.0.self_attn.scores", "k_cache.0"
BUCKET = 64  # tokens of the graph of a prompt, in these runs

Written = tuple[Value, Value]
ring = partial(mutant, model="tiny-mistral", ring=True)
rows = partial(ring, batch=3)  # whose prompts are extended


# ---- decode


@ring(
    "ring-not-wrapped",
    "ring-slot",
    "what comes after the last slot stays there",
    anchor=KEYS,
    replaces=f"{BUILDER}ring_slots",
)
def not_wrapped(right: Right[Value], b: LayerBuilder, position: Value, slots: int) -> Value:
    return b.minimum(position, b.i32(slots - 1, position.shape))


@ring(
    "ring-slot-next",
    "ring-slot",
    "from the second turn on, a slot too far",
    anchor=KEYS,
    replaces=f"{BUILDER}ring_slots",
)
def slot_next(right: Right[Value], b: LayerBuilder, position: Value, slots: int) -> Value:
    turned = b.minimum(b.divide(position, b.i32(slots, position.shape)), b.i32(1, position.shape))
    return right(b, b.add(position, turned), slots)


@ring(
    "ring-unfilled-seen", "ring-mask", "decode sees slots that nothing was written to",
    anchor=SCORES, replaces=f"{BUILDER}visible_in_ring", model="tiny-gemma3_text",
)  # fmt: skip
def unfilled_seen(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int) -> Value:
    return right(b, b.maximum(position, b.i32(slots, position.shape)), slots, window)


@ring(
    "ring-oldest-hidden", "ring-mask", "decode does not see the oldest slot",
    anchor=SCORES, replaces=f"{BUILDER}visible_in_ring", model="tiny-gpt_oss",
)  # fmt: skip
def oldest_hidden(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int) -> Value:
    return right(b, position, slots, window - 1)


@rows(
    "ring-idle-writes",
    "ring-slot",
    "an idle row writes to its first slot",
    anchor=KEYS,
    replaces=f"{BUILDER}ring_slots",
)
def idle_writes(right: Right[Value], b: LayerBuilder, position: Value, slots: int) -> Value:
    return b.maximum(right(b, position, slots), b.i32(0, position.shape))


# ---- a prompt


@ring(
    "ring-first-kept", "ring-kept", "of a prompt its first tokens are kept, not its last",
    anchor=KEYS, replaces=f"{BUILDER}ring_tokens", model="tiny-phi3",
)  # fmt: skip
def first_kept(right: Right[Value], b: LayerBuilder, position: Value, length: Value, slots: int) -> Value:
    slot = b.iota((slots,), "i32")
    there = b.compare(slot, b.over_first(length, (slots,)), "LT")
    return b.select(there, slot, b.i32(-1, (slots,)))


@rows("ring-padding-kept", "ring-kept", "a chunk's padding is kept", anchor=KEYS, replaces=f"{BUILDER}ring_tokens")
def padding_kept(right: Right[Value], b: LayerBuilder, position: Value, length: Value, slots: int) -> Value:
    return right(b, position, b.i32(BUCKET), slots)


@rows(
    "ring-chunk-from-zero",
    "ring-kept",
    "a chunk is kept as if it began at 0",
    anchor=KEYS,
    replaces=f"{BUILDER}ring_tokens",
)
def chunk_from_zero(right: Right[Value], b: LayerBuilder, position: Value, length: Value, slots: int) -> Value:
    return right(b, b.i32(0), length, slots)


@rows(
    "ring-written-first",
    "ring-order",
    "a chunk attends to the ring that it has written to",
    anchor=KEYS,
    replaces=EXTEND,
)
def written_first(right: Right[Written], cache: RingExtendCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    (T, K, D), W = new.shape, old.shape[-2]
    written, keys = right(cache, b, old, new)
    mine = b.looked_up(b.reshape(written, (old.shape[0] * old.shape[1], K, W, D)), cache._mine(b, old))
    return written, b.concatenate([b.reshape(mine, (K, W, D)), b.part(keys, 1, W, W + T)], 1)


@rows(
    "ring-chunk-sees-one-more", "ring-mask", "a chunk's tokens see one key more than the window has",
    anchor=SCORES, replaces=f"{BUILDER}visible_behind_ring",
)  # fmt: skip
def chunk_sees_one_more(
    right: Right[Value], b: LayerBuilder, position: Value, tokens: int, slots: int, window: int
) -> Value:
    return right(b, position, tokens, slots, window + 1)
