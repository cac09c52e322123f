"""Rotary position embedding: the pairs, the tables, the position."""

from __future__ import annotations

import dataclasses

import numpy as np

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, RopeRows
from hloracle.mutants.registry import RIGHT_VALUES, Right, mutant
from hloracle.reference.model.config import Rope
from hloracle.reference.model.rope import RopeTables, inverse_frequencies

ROTARY = "emitters.layers:LayerBuilder.rotary"
ROWS = "emitters.layers:LayerBuilder.rope_rows"
TABLES = "emitters.model:decode_tables emitters.model:prefill_tables"
FIRST = "layers.0.self_attn.q_rope"


@mutant(
    "rope-interleaved", "rope", "turns pairs (2i, 2i+1), as GPT-J does, not (i, i + D/2)", anchor=FIRST, replaces=ROTARY
)
def interleaved(right: Right[Value], b: LayerBuilder, x: Value, rope: RopeRows) -> Value:
    T, N, D = x.shape
    halves = b.transpose(b.reshape(x, (T, N, D // 2, 2)), (0, 1, 3, 2))
    turned = b.reshape(right(b, b.reshape(halves, x.shape), rope), (T, N, 2, D // 2))
    return b.reshape(b.transpose(turned, (0, 1, 3, 2)), x.shape)


@mutant(
    "rope-key-not-turned", "rope", "keys are not turned", anchor="layers.0.self_attn.k_rope", replaces=ROTARY,
    note="no operation stands in the anchor's scope",
)  # fmt: skip
def key_not_turned(right: Right[Value], b: LayerBuilder, x: Value, rope: RopeRows) -> Value:
    return x if b.anchor.endswith("k_rope") else right(b, x, rope)


@mutant(
    "rope-sign-last-layer", "rope", "queries of the last layer are turned the other way",
    anchor="layers.2.self_attn.q_rope", replaces=ROTARY,
)  # fmt: skip
def sign_last_layer(right: Right[Value], b: LayerBuilder, x: Value, rope: RopeRows) -> Value:
    if b.anchor == "layers.2.self_attn.q_rope":
        rope = dataclasses.replace(rope, sin=b.subtract(b.f32(0.0, rope.sin.shape), rope.sin))
    return right(b, x, rope)


# ---- tables


@mutant(
    "rope-base", "rope-frequencies", "base 500000 instead of the config's rope_theta", anchor=FIRST, replaces=TABLES
)
def base(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    return right(dataclasses.replace(rope, theta=500000.0), length)


@mutant("rope-scaling-left-out", "rope-scaling", "llama3 scaling is left out", anchor=FIRST, replaces=TABLES)
def scaling_left_out(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    return right(dataclasses.replace(rope, type="default"), length)


@mutant(
    "rope-scaling-not-smoothed", "rope-scaling", "frequencies between low and high are not interpolated but kept",
    anchor=FIRST, replaces=TABLES,
)  # fmt: skip
def scaling_not_smoothed(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    return right(dataclasses.replace(rope, high_freq_factor=rope.low_freq_factor * 1.0001), length)


@mutant(
    "rope-scaling-linear", "rope-scaling", "all frequencies are divided by the factor, high ones too",
    anchor=FIRST, replaces=TABLES,
)  # fmt: skip
def scaling_linear(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    return right(dataclasses.replace(rope, low_freq_factor=1e6, high_freq_factor=2e6), length)


@mutant(
    "rope-exponent", "rope-frequencies", "exponents of i / D instead of 2i / D", anchor=FIRST, replaces=TABLES
)  # fmt: skip
def exponent(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    return right(dataclasses.replace(rope, theta=rope.theta**0.5), length)


@mutant(
    "rope-tables-float32", "rope-tables", "angles are computed in float32, so late positions are off by their rounding",
    anchor=FIRST, replaces=TABLES, note="tables in the graph must equal the reference's bit for bit",
    class_=RIGHT_VALUES,
)  # fmt: skip
def tables_float32(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    angles = np.outer(np.arange(length, dtype=np.float32), inverse_frequencies(rope).astype(np.float32))
    return RopeTables(np.cos(angles)[None], np.sin(angles)[None])


@mutant("rope-tables-float16", "rope-tables", "tables are rounded to float16", anchor=FIRST, replaces=TABLES)
def tables_float16(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    tables = right(rope, length)
    cos, sin = (t.astype(np.float16).astype(np.float32) for t in (tables.cos, tables.sin))
    return RopeTables(cos, sin)


@mutant("rope-cos-sin-swapped", "rope-tables", "cos and sin are exchanged", anchor=FIRST, replaces=TABLES)
def cos_sin_swapped(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    tables = right(rope, length)
    return RopeTables(tables.sin, tables.cos)


@mutant("rope-sign", "rope-tables", "turns the other way: sin has the wrong sign", anchor=FIRST, replaces=TABLES)
def sign(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    tables = right(rope, length)
    return RopeTables(tables.cos, -tables.sin)


@mutant("rope-partial", "rope-tables", "only the first half of the pairs is turned", anchor=FIRST, replaces=TABLES)
def partial(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    tables = right(rope, length)
    turned = np.arange(rope.dim // 2) < rope.dim // 4
    cos, sin = (np.where(turned, t, other).astype(np.float32) for t, other in ((tables.cos, 1), (tables.sin, 0)))
    return RopeTables(cos, sin)


# ---- position


@mutant(
    "rope-position-decode", "rope-position", "decode turns by position + 1, prefill rightly", anchor=FIRST, replaces=ROWS
)  # fmt: skip
def position_decode(
    right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, interleaved: bool, start: Value | None,
    length: Value | None,
) -> RopeRows:  # fmt: skip
    return right(b, tables, interleaved, start and b.add(start, b.i32(1)), length)


@mutant(
    "rope-position-prefill", "rope-position", "prefill turns by position + 1, decode rightly",
    anchor=FIRST, replaces=ROWS,
    note="a prefill's own logits depend on differences of positions only: its keys, or what decode makes of them",
)  # fmt: skip
def position_prefill(
    right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, interleaved: bool, start: Value | None,
    length: Value | None,
) -> RopeRows:  # fmt: skip
    later = RopeTables(np.roll(tables.cos, -1, axis=1), np.roll(tables.sin, -1, axis=1), tables.first)
    return right(b, tables if start else later, interleaved, start, length)


@mutant(
    "rope-position-ignored", "rope-position", "decode turns by the angle of position 0", anchor=FIRST, replaces=ROWS
)  # fmt: skip
def position_ignored(
    right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, interleaved: bool, start: Value | None,
    length: Value | None,
) -> RopeRows:  # fmt: skip
    return right(b, tables, interleaved, start and b.i32(0), length)
