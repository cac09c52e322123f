"""Rotary position embedding: the pairs, the tables, the position."""

from __future__ import annotations

import dataclasses

import numpy as np

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, RopeRows
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.config import Rope
from hloracle.reference.rope import inverse_frequencies

ROTARY = "emitters.layers:LayerBuilder.rotary"
ROWS = "emitters.layers:LayerBuilder.rope_rows"
TABLES = "emitters.model:rope_tables"
FIRST = "layers.0.self_attn.q_rope"

Tables = tuple[np.ndarray, np.ndarray]


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
        rope = RopeRows(rope.cos, b.subtract(b.f32(0.0, rope.sin.shape), rope.sin))
    return right(b, x, rope)


# ---- tables


@mutant(
    "rope-base", "rope-frequencies", "base 500000 instead of the config's rope_theta", anchor=FIRST, replaces=TABLES
)
def base(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    return right(dataclasses.replace(rope, theta=500000.0), head_dim, length)


@mutant("rope-scaling-left-out", "rope-scaling", "llama3 scaling is left out", anchor=FIRST, replaces=TABLES)
def scaling_left_out(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    return right(dataclasses.replace(rope, type="default"), head_dim, length)


@mutant(
    "rope-scaling-not-smoothed", "rope-scaling", "frequencies between low and high are not interpolated but kept",
    anchor=FIRST, replaces=TABLES,
)  # fmt: skip
def scaling_not_smoothed(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    return right(dataclasses.replace(rope, high_freq_factor=rope.low_freq_factor * 1.0001), head_dim, length)


@mutant(
    "rope-scaling-linear", "rope-scaling", "all frequencies are divided by the factor, high ones too",
    anchor=FIRST, replaces=TABLES,
)  # fmt: skip
def scaling_linear(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    return right(dataclasses.replace(rope, low_freq_factor=1e6, high_freq_factor=2e6), head_dim, length)


@mutant(
    "rope-exponent", "rope-frequencies", "exponents of i / D instead of 2i / D", anchor=FIRST, replaces=TABLES
)  # fmt: skip
def exponent(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    return right(dataclasses.replace(rope, theta=rope.theta**0.5), head_dim, length)


@mutant(
    "rope-tables-float32", "rope-tables", "angles are computed in float32, so late positions are off by their rounding",
    anchor=FIRST, replaces=TABLES, note="tables in the graph must equal the reference's bit for bit",
)  # fmt: skip
def tables_float32(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    angles = np.outer(np.arange(length, dtype=np.float32), inverse_frequencies(rope, head_dim).astype(np.float32))
    return np.cos(angles), np.sin(angles)


@mutant("rope-tables-float16", "rope-tables", "tables are rounded to float16", anchor=FIRST, replaces=TABLES)
def tables_float16(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    cos, sin = right(rope, head_dim, length)
    return cos.astype(np.float16).astype(np.float32), sin.astype(np.float16).astype(np.float32)


@mutant("rope-cos-sin-swapped", "rope-tables", "cos and sin are exchanged", anchor=FIRST, replaces=TABLES)
def cos_sin_swapped(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    cos, sin = right(rope, head_dim, length)
    return sin, cos


@mutant("rope-sign", "rope-tables", "turns the other way: sin has the wrong sign", anchor=FIRST, replaces=TABLES)
def sign(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    cos, sin = right(rope, head_dim, length)
    return cos, -sin


@mutant("rope-partial", "rope-tables", "only the first half of the pairs is turned", anchor=FIRST, replaces=TABLES)
def partial(right: Right[Tables], rope: Rope, head_dim: int, length: int) -> Tables:
    cos, sin = right(rope, head_dim, length)
    turned = np.arange(head_dim // 2) < head_dim // 4
    return np.where(turned, cos, 1).astype(np.float32), np.where(turned, sin, 0).astype(np.float32)


# ---- position


@mutant(
    "rope-position-decode", "rope-position", "decode turns by position + 1, prefill rightly", anchor=FIRST, replaces=ROWS
)  # fmt: skip
def position_decode(
    right: Right[RopeRows], b: LayerBuilder, tables: Tables, start: Value | None, length: int
) -> RopeRows:
    return right(b, tables, start and b.add(start, b.i32(1)), length)


@mutant(
    "rope-position-prefill", "rope-position", "prefill turns by position + 1, decode rightly",
    anchor=FIRST, replaces=ROWS,
    note="a prefill's own logits depend on differences of positions only: its keys, or what decode makes of them",
)  # fmt: skip
def position_prefill(
    right: Right[RopeRows], b: LayerBuilder, tables: Tables, start: Value | None, length: int
) -> RopeRows:
    cos, sin = tables
    return right(b, tables if start else (np.roll(cos, -1, axis=0), np.roll(sin, -1, axis=0)), start, length)


@mutant(
    "rope-position-ignored", "rope-position", "decode turns by the angle of position 0", anchor=FIRST, replaces=ROWS
)  # fmt: skip
def position_ignored(
    right: Right[RopeRows], b: LayerBuilder, tables: Tables, start: Value | None, length: int
) -> RopeRows:
    return right(b, tables, start and b.i32(0), length)
