"""Graphs of several rows: whose position, whose slots, whose head; and chunks of a prompt: where they begin and end."""

from __future__ import annotations

import dataclasses
from functools import partial

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, RopeRows, Scoring
from hloracle.emitters.model import BatchCache, ExtendCache, Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config
from hloracle.reference.model.rope import RopeTables

ROWS = 3
VISIBLE = "emitters.layers:LayerBuilder.visible_to_positions"
ROPE = "emitters.layers:LayerBuilder.rope_rows"
DECODE, EXTEND = "emitters.model:BatchCache._write", "emitters.model:ExtendCache._write"
SCORES, Q_ROPE, KEYS = "layers.0.self_attn.scores", "layers.0.self_attn.q_rope", "k_cache.0"

Written = tuple[Value, Value]
rows = partial(mutant, batch=ROWS)


def first_of_all(b: LayerBuilder, x: Value) -> Value:
    """x [B, ...] with the first row's value in every row."""
    one = b.reshape(b.part(x, 0, 0, 1), x.shape[1:])
    return b.broadcast_in_dim(one, x.shape, range(1, x.rank))


def next_ones(b: LayerBuilder, x: Value) -> Value:
    """x [B, ...] with the next row's value in every row."""
    return b.concatenate([b.part(x, 0, 1, ROWS), b.part(x, 0, 0, 1)], 0)


# ---- decode: a row of each batch is another one's


@rows(
    "rows-mask-of-first",
    "rows-position",
    "every row sees up to the first row's position",
    anchor=SCORES,
    replaces=VISIBLE,
)
def mask_of_first(right: Right[Value], b: LayerBuilder, positions: Value, slots: int, window: int | None) -> Value:
    return right(b, first_of_all(b, positions) if positions.shape == (ROWS,) else positions, slots, window)


@rows(
    "rows-rope-of-first",
    "rows-position",
    "every row is turned by the first row's position",
    anchor=Q_ROPE,
    replaces=ROPE,
)
def rope_of_first(
    right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, interleaved: bool, at: Value | None, length: Value | None
) -> RopeRows:  # fmt: skip
    if at is not None and at.shape == (ROWS,):
        at = first_of_all(b, at)
    return right(b, tables, interleaved, at, length)


@rows("rows-slot-of-first", "rows-cache", "every row writes to the first row's slot", anchor=KEYS, replaces=DECODE)
def slot_of_first(right: Right[Written], cache: BatchCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    return right(dataclasses.replace(cache, position=first_of_all(b, cache.position)), b, old, new)


@rows("rows-idle-writes", "rows-cache", "an idle row writes to its first slot", anchor=KEYS, replaces=DECODE)
def idle_writes(right: Right[Written], cache: BatchCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    position = b.maximum(cache.position, b.i32(0, cache.position.shape))
    return right(dataclasses.replace(cache, position=position), b, old, new)


@rows("rows-cache-exchanged", "rows-cache", "every row attends to the next one's slots", anchor=KEYS, replaces=DECODE)
def cache_exchanged(right: Right[Written], cache: BatchCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    written, mine = right(cache, b, old, new)
    return written, next_ones(b, mine)


@rows(
    "rows-new-exchanged", "rows-cache", "every row of the last layer keeps the next one's new values",
    anchor="v_cache.2", replaces=DECODE,
)  # fmt: skip
def new_exchanged(right: Right[Written], cache: BatchCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    return right(cache, b, old, next_ones(b, new) if b.anchor == "layers.2.self_attn.v_cache" else new)


@rows(
    "rows-values-of-first", "rows-attention", "every row sums up the first row's values",
    anchor="layers.0.self_attn.context", replaces="emitters.layers:LayerBuilder.attention",
)  # fmt: skip
def values_of_first(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    if v.rank == 4:
        with b.scope("context"):
            v = first_of_all(b, v)
    return right(b, q, k, v, scoring)


@rows(
    "rows-tokens-of-first", "rows-token", "every row is given the first row's token",
    anchor="embed_tokens", replaces="emitters.layers:LayerBuilder.rows",
)  # fmt: skip
def tokens_of_first(right: Right[Value], b: LayerBuilder, weight: Value, indices: Value) -> Value:
    given = b.anchor == "embed_tokens" and indices.shape[0] == ROWS
    return right(b, weight, first_of_all(b, indices) if given else indices)


@rows(
    "rows-norm-over-rows", "rows-norm", "a norm divides by the mean of all rows' squares",
    anchor="layers.0.input_layernorm", replaces="emitters.layers:LayerBuilder.mean",
)  # fmt: skip
def norm_over_rows(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    mean = right(b, x)
    if mean.shape != (ROWS,):
        return mean
    total = b.reduce(mean, b.f32(0.0), (0,), "add")
    return b.broadcast_in_dim(b.multiply(total, b.f32(1 / ROWS)), mean.shape, ())


@rows(
    "rows-heads-exchanged",
    "rows-head",
    "every row's logits are the next one's",
    anchor="lm_head",
    replaces="emitters.model:_head",
)
def heads_exchanged(
    right: Right[Value], b: LayerBuilder, config: Config, head: str, x: Value, w: Weights, shape: tuple[int, ...]
) -> Value:  # fmt: skip
    if x.shape[0] != ROWS:
        return right(b, config, head, x, w, shape)
    logits = right(b, config, "logits", x, w, (ROWS, config.vocab_size))
    with b.scope("lm_head"):
        logits = next_ones(b, logits)
    if head == "logits":
        return logits
    with b.scope("token"):
        return b.argmax(logits)


# ---- chunks of a prompt


def _counted(b: LayerBuilder, positions: Value) -> Value:
    """0, 1, 2 and so on, for as many."""
    return b.iota(positions.shape, "i32")


@rows(
    "chunk-mask-from-zero",
    "chunk-position",
    "a chunk's tokens see as if it began at 0",
    anchor=SCORES,
    replaces=VISIBLE,
)
def mask_from_zero(right: Right[Value], b: LayerBuilder, positions: Value, slots: int, window: int | None) -> Value:
    return right(b, positions if positions.shape == (ROWS,) else _counted(b, positions), slots, window)


@rows(
    "chunk-rope-from-zero",
    "chunk-position",
    "a chunk's tokens are turned as if it began at 0",
    anchor=Q_ROPE,
    replaces=ROPE,
)
def rope_from_zero(
    right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, interleaved: bool, at: Value | None, length: Value | None
) -> RopeRows:  # fmt: skip
    if at is not None and at.shape != (ROWS,):
        at = _counted(b, at)
    return right(b, tables, interleaved, at, length)


@rows("chunk-sees-ahead", "chunk-mask", "a chunk's tokens see those behind them", anchor=SCORES, replaces=VISIBLE)
def sees_ahead(right: Right[Value], b: LayerBuilder, positions: Value, slots: int, window: int | None) -> Value:
    if positions.shape != (ROWS,):
        last = b.reshape(b.part(positions, 0, positions.shape[0] - 1, positions.shape[0]), ())
        positions = b.over_first(last, positions.shape)
    return right(b, positions, slots, window)


@rows("chunk-forgets", "chunk-mask", "a chunk's tokens see one another alone", anchor=SCORES, replaces=VISIBLE)
def forgets(right: Right[Value], b: LayerBuilder, positions: Value, slots: int, window: int | None) -> Value:
    visible = right(b, positions, slots, window)
    if positions.shape == (ROWS,):
        return visible
    first = b.reshape(b.part(positions, 0, 0, 1), ())
    own = b.compare(b.iota(visible.shape, "i32", 1), b.over_first(first, visible.shape), "GE")
    return b.and_(visible, own)


@rows("chunk-padding-written", "chunk-cache", "a chunk's padding is written behind it", anchor=KEYS, replaces=EXTEND)
def padding_written(right: Right[Written], cache: ExtendCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    return right(dataclasses.replace(cache, length=b.i32(new.shape[0])), b, old, new)


@rows("chunk-slot-next", "chunk-cache", "a chunk is written one slot too far", anchor=KEYS, replaces=EXTEND)
def slot_next(right: Right[Written], cache: ExtendCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    return right(dataclasses.replace(cache, position=b.add(cache.position, b.i32(1))), b, old, new)


@rows("chunk-row-of-first", "chunk-cache", "a chunk goes to the first row", anchor=KEYS, replaces=EXTEND)
def row_of_first(right: Right[Written], cache: ExtendCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    return right(dataclasses.replace(cache, row=b.i32(0)), b, old, new)


@rows(
    "chunk-last-is-padding", "chunk-head", "the head is that of a chunk's last token, which may be padding",
    anchor="norm", replaces="emitters.layers:LayerBuilder.looked_up",
)  # fmt: skip
def last_is_padding(right: Right[Value], b: LayerBuilder, x: Value, index: Value) -> Value:
    return right(b, x, b.i32(x.shape[0] - 1) if b.anchor == "" and x.rank == 2 and x.shape[0] > ROWS else index)


@rows(
    "chunk-rope-of-the-rest", "chunk-position", "the angles are those of a prompt that begins with the chunk",
    anchor=Q_ROPE, replaces="emitters.model:_extend", model="tiny-phi3",
)  # fmt: skip
def rope_of_the_rest(
    right: Right[object], b: LayerBuilder, config: Config, named: dict[str, Value], abi: object
) -> object:
    if "total" in named:
        named = {**named, "total": b.subtract(named["total"], named["position"])}
    return right(b, config, named, abi)
