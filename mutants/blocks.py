"""Attention to a block of keys at a time: which blocks, which keys of one, and what is made of what was summed before."""

from __future__ import annotations

import math
from functools import partial

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import BLOCK, LayerBuilder
from hloracle.mutants.registry import Right, mutant

# The last block has 44 keys of its own.
SLOTS = BLOCK + 44
BUILDER = "emitters.layers:LayerBuilder."
blocks = partial(mutant, anchor="layers.0.self_attn.context", capacity=SLOTS)

Range = tuple[Value, Value]


@blocks("blocks-first-alone", "blocks-which", "the block behind the first is left out", replaces=f"{BUILDER}key_blocks")
def first_alone(
    right: Right[Range], b: LayerBuilder, position: Value, tokens: int, slots: int, window: int | None
) -> Range:
    first, _ = right(b, position, tokens, slots, window)
    return first, b.add(first, b.i32(1))


@blocks(
    "blocks-window-of-last", "blocks-which", "the blocks are those that the last token of a part sees",
    replaces=f"{BUILDER}key_blocks", model="tiny-gemma3_text",
)  # fmt: skip
def window_of_last(
    right: Right[Range], b: LayerBuilder, position: Value, tokens: int, slots: int, window: int | None
) -> Range:
    return right(b, b.add(position, b.i32(tokens - 1)), 1, slots, window)


@blocks(
    "blocks-keys-twice",
    "blocks-keys",
    "what the last block shares with the one before counts twice",
    replaces=f"{BUILDER}own_keys",
)
def keys_twice(right: Right[Value], b: LayerBuilder, start: Value, slots: Value) -> Value:
    return b.constant(1, "i1", (BLOCK,))


@blocks(
    "blocks-not-rescaled",
    "blocks-sum",
    "what was summed before counts as if its maximum were the new one",
    replaces=f"{BUILDER}shrinks",
)
def not_rescaled(right: Right[Value], b: LayerBuilder, maximum: Value, largest: Value) -> Value:
    # Of the first block what was summed before is nothing.
    return b.f32(1.0, maximum.shape)


@blocks(
    "blocks-rescaled-in-twos",
    "blocks-sum",
    "it is rescaled by a power of 2 in place of e",
    replaces=f"{BUILDER}shrinks",
)
def rescaled_in_twos(right: Right[Value], b: LayerBuilder, maximum: Value, largest: Value) -> Value:
    ln_2 = b.f32(math.log(2), maximum.shape)
    return right(b, b.multiply(maximum, ln_2), b.multiply(largest, ln_2))
