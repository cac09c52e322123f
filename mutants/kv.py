"""Keys and values in int8: how they are rounded, which scale they have, and where that is kept."""

from __future__ import annotations

import dataclasses
from functools import partial

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import BatchCache, Cache, DecodeCache, ExtendCache
from hloracle.mutants.registry import Right, mutant

ROWS = 3
QUANTIZED, CACHES = "emitters.layers:LayerBuilder.quantized", "emitters.model:"
KEYS, VALUES = "k_cache.0", "v_cache.0"

Written = tuple[Value, Value]
Quantized = tuple[Value, Value]  # integers [T, K, D], and scales [T, K, 1]
kv = partial(mutant, kv="int8")
rows = partial(kv, batch=ROWS)  # whose prompts are extended


def are_scales(new: Value) -> bool:
    """Whether what is written to a cache are scales, and not integers."""
    return new.shape[-1] == 1


# ---- how they are rounded


@kv(
    "kv-cut-off", "kv-rounding", "what is between two integers is cut off, not rounded",
    anchor=KEYS, replaces="emitters.builder:Builder.round_nearest_even",
    note="the integers, held to the oracle's on the same inputs",
)  # fmt: skip
def cut_off(right: Right[Value], b: LayerBuilder, operand: Value) -> Value:
    return b.convert(b.convert(operand, "i32"), operand.dtype)


@kv("kv-wraps", "kv-rounding", "129 steps, of which the last ones wrap", anchor=KEYS, replaces=QUANTIZED)
def wraps(right: Right[Quantized], b: LayerBuilder, x: Value) -> Quantized:
    largest = b.reduce(b.abs(x), b.f32(0.0), (2,), "maximum")
    scale = b.divide(largest, b.f32(129.0, largest.shape))
    steps = b.round_nearest_even(b.divide(x, b.over_first(scale, x.shape)))
    return b.convert(b.convert(steps, "i32"), "i8"), b.reshape(scale, (*scale.shape, 1))


@kv(
    "kv-zeros-no-number", "kv-rounding", "the scale of zeros is 0 divided by 0",
    anchor=KEYS, replaces=QUANTIZED, note="inputs that have zeros, on which it is held to the oracle",
)  # fmt: skip
def zeros_no_number(right: Right[Quantized], b: LayerBuilder, x: Value) -> Quantized:
    steps, scale = right(b, x)
    return steps, b.multiply(scale, b.divide(scale, scale))


# ---- whose scale


@kv("kv-scale-of-token", "kv-scale", "all heads of a token have one scale", anchor=KEYS, replaces=QUANTIZED)
def scale_of_token(right: Right[Quantized], b: LayerBuilder, x: Value) -> Quantized:
    T, K, D = x.shape
    steps, scale = right(b, b.reshape(x, (T, 1, K * D)))
    return b.reshape(steps, (T, K, D)), b.broadcast_in_dim(scale, (T, K, 1), (0, 1, 2))


@kv("kv-scale-of-head", "kv-scale", "all tokens of a prompt have one scale in a head", anchor=KEYS, replaces=QUANTIZED)
def scale_of_head(right: Right[Quantized], b: LayerBuilder, x: Value) -> Quantized:
    T, K, D = x.shape
    steps, scale = right(b, b.reshape(b.transpose(x, (1, 0, 2)), (1, K, T * D)))
    steps = b.transpose(b.reshape(steps, (K, T, D)), (1, 0, 2))
    return steps, b.broadcast_in_dim(scale, (T, K, 1), (0, 1, 2))


@kv("kv-scale-of-next-head", "kv-scale", "a head has the next one's scale", anchor=KEYS, replaces=QUANTIZED)
def scale_of_next_head(right: Right[Quantized], b: LayerBuilder, x: Value) -> Quantized:
    steps, scale = right(b, x)
    return steps, b.reverse(scale, (1,))


@kv("kv-scale-of-keys", "kv-scale", "values have the scales of the keys", anchor=VALUES, replaces=QUANTIZED)
def scale_of_keys(right: Right[Quantized], b: LayerBuilder, x: Value) -> Quantized:
    steps, scale = right(b, x)
    if b.anchor.endswith("k_cache"):
        setattr(b, "of_keys", scale)  # noqa: B010
    return steps, getattr(b, "of_keys")  # noqa: B009


@rows("kv-scale-of-first-row", "kv-scale", "all rows have the first one's scales", anchor=KEYS, replaces=QUANTIZED)
def scale_of_first_row(right: Right[Quantized], b: LayerBuilder, x: Value) -> Quantized:
    steps, scale = right(b, x)
    if x.shape[0] != ROWS:
        return steps, scale
    return steps, b.broadcast_in_dim(b.part(scale, 0, 0, 1), scale.shape, (0, 1, 2))


# ---- where it is kept


@kv(
    "kv-scale-next-slot", "kv-slot", "a scale is written to the next slot",
    anchor=KEYS, replaces=f"{CACHES}DecodeCache._write",
)  # fmt: skip
def scale_next_slot(right: Right[Written], cache: DecodeCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    if are_scales(new):
        cache = dataclasses.replace(cache, position=b.add(cache.position, b.i32(1)))
    return right(cache, b, old, new)


@kv(
    "kv-scale-stale", "kv-slot", "a step leaves the scale that was there",
    anchor=KEYS, replaces=f"{CACHES}DecodeCache._write",
)  # fmt: skip
def scale_stale(right: Right[Written], cache: DecodeCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    if are_scales(new):
        zero, layer = b.i32(0), b.i32(cache.layer)
        there = b.dynamic_slice(old, (layer, zero, cache.position, zero), (1, new.shape[1], 1, 1))
        new = b.reshape(there, new.shape)
    return right(cache, b, old, new)


@kv(
    "kv-scale-not-returned", "kv-slot", "the scales that are returned are those that were taken",
    anchor=KEYS, replaces=f"{CACHES}Cache._keep",
)  # fmt: skip
def scale_not_returned(
    right: Right[tuple[Value, Value | None, Value]],
    cache: Cache,
    b: LayerBuilder,
    held: Value,
    scale: Value,
    new: Value,
) -> tuple[Value, Value | None, Value]:
    kept, _, attended = right(cache, b, held, scale, new)
    return kept, scale, attended


@rows(
    "kv-chunk-scale-before", "kv-slot", "a chunk's scales are one slot too early",
    anchor=KEYS, replaces=f"{CACHES}ExtendCache._write",
)  # fmt: skip
def chunk_scale_before(right: Right[Written], cache: ExtendCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    if are_scales(new):
        before = b.maximum(b.subtract(cache.position, b.i32(1)), b.i32(0))
        cache = dataclasses.replace(cache, position=before)
    return right(cache, b, old, new)


@rows(
    "kv-idle-writes-scale", "kv-slot", "an idle row writes a scale to its first slot",
    anchor=KEYS, replaces=f"{CACHES}BatchCache._write",
)  # fmt: skip
def idle_writes_scale(right: Right[Written], cache: BatchCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    if are_scales(new):
        cache = dataclasses.replace(cache, position=b.maximum(cache.position, b.i32(0, cache.position.shape)))
    return right(cache, b, old, new)
