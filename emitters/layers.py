"""The mechanisms that architectures are wired from. None of them knows which model it is in.

Legend: B rows of a batch, T query tokens (those of all rows in decode), S cache slots, N/K query/kv heads, G = N/K queries per kv head, D head_dim, R turned dims of it,
E hidden, F intermediate, V vocab; X experts, A chosen per token, M their intermediate.

Between modules values are of the type that the graph computes in, inside of one they are float32: what is taken is widened,
and what is given rounded once. That is no less than what transformers keeps in that type, whose modules round in between, too.
In a float32 graph nothing is written for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.emitters.builder import Value
from hloracle.emitters.matrix import FusedPart, Matrix, MatrixBuilder
from hloracle.reference.model.config import Experts
from hloracle.reference.model.rope import RopeTables

INFINITY = float("inf")
LEAST = -3.0e38  # below every score, and a number: it may be subtracted from itself
# Keys that attention goes to at a time, where it does not go to all at once. A chunk of 256 of SmolLM2 135M, with 1,792 of 4,096
# slots filled, takes 17 ms a layer in blocks of 256 or of 512, and 70 all at once; of 512, some take more stack than IREE 3.13 has.
BLOCK = 256
MOST_INT8 = 127.0  # and as many below 0


@dataclass(frozen=True)
class RopeRows:
    """cos and sin at the positions of the query tokens, for both of each pair: [T, 2, R/2], or [T, R/2, 2] interleaved.

    sin is negated in the first of each pair.
    """

    cos: Value
    sin: Value
    interleaved: bool


@dataclass(frozen=True)
class Visible:
    """Which keys a query sees.

    mask: i1 [T, S] or [S]. blocks: i32 scalars, the first block of `BLOCK` keys that any query sees and the one after the last;
    None where attention goes to all keys at once.
    """

    mask: Value
    blocks: tuple[Value, Value] | None = None


@dataclass(frozen=True)
class Scoring:
    """How a query's scores of the keys are formed.

    scaling: what its products with them are multiplied by. cap: scores are
    bent to stay between -cap and cap. sinks: float32 [N], one more score of each head, whose share is left out.
    """

    visible: Visible
    scaling: float
    cap: float | None = None
    sinks: Value | None = None


@dataclass(frozen=True)
class ExpertWeights:
    """gate_up [X, 2*M, E] with gate_up_bias [X, 2*M], down [X, E, M] with down_bias [X, E].

    Some models have the transposed ones, gate_up [X, E, 2*M] and down [X, M, E].
    """

    gate_up: Value | Matrix
    down: Value | Matrix
    gate_up_bias: Value | None = None
    down_bias: Value | None = None

    def each(self, take: Callable[[Value | Matrix], Value]) -> ExpertWeights:
        """What `take` makes of each that there is."""
        biases = (self.gate_up_bias, self.down_bias)
        return ExpertWeights(take(self.gate_up), take(self.down), *(None if w is None else take(w) for w in biases))


class LayerBuilder(MatrixBuilder):
    """A Builder that also writes norms, projections, rotary embeddings, attention, experts and the head."""

    def f32(self, value: float, shape: Sequence[int] = ()) -> Value:
        """A float32 splat."""
        return self.constant(value, "f32", shape)

    def i32(self, value: int, shape: Sequence[int] = ()) -> Value:
        """An int32 splat."""
        return self.constant(value, "i32", shape)

    def scaled(self, x: Value, factor: float) -> Value:
        """x times a factor; nothing is written where that is 1."""
        return x if factor == 1 else self.rounded(self.multiply(self.as_f32(x), self.f32(factor, x.shape)), x.dtype)

    def part(self, x: Value, axis: int, start: int, limit: int) -> Value:
        """x from `start` to `limit` along one axis."""
        starts, limits = [0] * x.rank, list(x.shape)
        starts[axis], limits[axis] = start, limit
        return x if limit - start == x.shape[axis] else self.slice(x, starts, limits)

    def over_last(self, x: Value, shape: Sequence[int]) -> Value:
        """x broadcast to `shape`, whose last axes are its own."""
        return self.broadcast_in_dim(x, shape, range(len(shape) - x.rank, len(shape)))

    def over_first(self, x: Value, shape: Sequence[int]) -> Value:
        """x broadcast to `shape`, whose first axes are its own."""
        return self.broadcast_in_dim(x, shape, range(x.rank))

    def looked_up(self, x: Value, index: Value) -> Value:
        """x [N, ...] at a scalar index -> [1, ...]"""
        if self.on_device:
            return self.gather_rows(x, self.reshape(index, (1, 1)))
        zero = self.i32(0)
        return self.dynamic_slice(x, (index, *[zero] * (x.rank - 1)), (1, *x.shape[1:]))

    # ---- projections and norms

    def linear(self, x: Value, weight: Value | Matrix | FusedPart, bias: Value | None = None) -> Value:
        """x [T, in], weight [out, in], bias [out] -> [T, out]. Every product with a matrix goes through here."""
        y = self.product(x, weight)  # [T, out]
        return self.rounded(y if bias is None else self.add(y, self.over_last(bias, y.shape)), x.dtype)

    def mean(self, x: Value) -> Value:
        """Over the last axis."""
        last = x.rank - 1
        total = self.reduce(x, self.f32(0.0), (last,), "add")
        return self.multiply(total, self.f32(1.0 / x.shape[last], total.shape))

    def rms_norm(self, x: Value, weight: Value, eps: float) -> Value:
        """x [T, ..., D] over its last axis' root mean square, times weight, whose axes are x's last.

        Source: `LlamaRMSNorm`.
        """
        dtype, x = x.dtype, self.as_f32(x)
        mean_square = self.mean(self.multiply(x, x))
        inverse = self.rsqrt(self.add(mean_square, self.f32(eps, mean_square.shape)))
        normed = self.multiply(x, self.over_first(inverse, x.shape))
        return self.rounded(self.multiply(normed, self.over_last(weight, x.shape)), dtype)

    def layer_norm(self, x: Value, weight: Value, bias: Value | None, eps: float) -> Value:
        """x [T, ..., D] less its last axis' mean, over its deviation, times weight, plus bias.

        Source: `CohereLayerNorm`.
        """
        dtype, x = x.dtype, self.as_f32(x)
        centered = self.subtract(x, self.over_first(self.mean(x), x.shape))
        y = self.rms_norm(centered, weight, eps)
        return self.rounded(y if bias is None else self.add(y, self.over_last(bias, y.shape)), dtype)

    # ---- rotary position embedding

    def rope_rows(self, tables: RopeTables, interleaved: bool, at: Value | None, length: Value | None) -> RopeRows:
        """The rows of positions `at`, i32 [T] or one scalar; without it, a prefill's rows of all positions.

        length: of the prompt, where there are angles for each length.
        """
        axis = 3 if interleaved else 2
        cos, sin = (np.stack(both, axis=axis) for both in ((tables.cos,) * 2, (-tables.sin, tables.sin)))

        def rows(table: np.ndarray) -> Value:
            variants, positions, *pairs = table.shape
            if variants == 1:
                mine = self.table(table[0])
            else:
                assert length is not None
                # Out of bounds is the nearest there is.
                variant = self.subtract(length, self.i32(tables.first))
                if self.on_device:
                    variant = self.minimum(self.maximum(variant, self.i32(0)), self.i32(variants - 1))
                mine = self.reshape(self.looked_up(self.table(table), variant), (positions, *pairs))
            if at is None:
                return mine
            if at.rank == 0:
                return self.looked_up(mine, at)  # [1, *pairs]
            return self.gather_rows(mine, self.reshape(at, (at.shape[0], 1)))

        return RopeRows(rows(cos), rows(sin), interleaved)

    def rotary(self, x: Value, rope: RopeRows | None) -> Value:
        """Turn the pairs of the first R of D dimensions of x [T, N, D] by the rope's angles.

        The two of a pair are exchanged with one `reverse` over an axis of 2; the sign is in the table.
        Source: `apply_rotary_pos_emb`.
        """
        assert rope is not None, "a layer without RoPE turns nothing"
        T, N, D = x.shape
        _, *pairs = rope.cos.shape
        R = pairs[0] * pairs[1]
        apart = self.as_f32(self.reshape(self.part(x, 2, 0, R), (T, N, *pairs)))
        cos, sin = (self.broadcast_in_dim(t, apart.shape, (0, 2, 3)) for t in (rope.cos, rope.sin))
        other = self.reverse(apart, (3 if rope.interleaved else 2,))
        turned = self.rounded(self.add(self.multiply(apart, cos), self.multiply(other, sin)), x.dtype)
        turned = self.reshape(turned, (T, N, R))
        return turned if R == D else self.concatenate([turned, self.part(x, 2, R, D)], 2)

    def in_halves(self, x: Value, interleaved: bool) -> Value:
        """x [T, N, D] with pairs (i, i + D/2), if it has pairs (2i, 2i+1).

        Source: `apply_rotary_pos_emb_interleave`.
        """
        if not interleaved:
            return x
        T, N, D = x.shape
        return self.reshape(self.transpose(self.reshape(x, (T, N, D // 2, 2)), (0, 1, 3, 2)), x.shape)

    def clip(self, x: Value, limit: float | None) -> Value:
        """x between -limit and limit; x itself without a limit."""
        if limit is None:
            return x
        return self.minimum(
            self.maximum(x, self.constant(-limit, x.dtype, x.shape)), self.constant(limit, x.dtype, x.shape)
        )

    # ---- attention

    def layer_numbers(self, layers: int, position: Value, least: int = 0) -> Value:
        """0, 1, 2 and so on, i32 [layers], as numbers that only the caller knows: a position is never below the least.

        What is addressed with a constant of its own in each layer IREE 3.13 compiles for each layer anew: of SmolLM2's
        decode 106 executables, which take 9.4 s of processor time; with these numbers 20, and 3.0 s.
        """
        zero = self.subtract(self.maximum(position, self.i32(least)), position)
        return self.add(self.iota((layers,), "i32"), self.broadcast_in_dim(zero, (layers,), ()))

    def visible_to_position(self, position: Value, slots: int, window: int | None) -> Value:
        """Decode's mask: slot s is visible when s <= position, and in the window. i1 [S]"""
        slot = self.iota((slots,), "i32")
        visible = self.compare(slot, self.broadcast_in_dim(position, (slots,), ()), "LE")
        if window is None:
            return visible
        leaves = self.add(slot, self.i32(window, (slots,)))  # the position from which on a slot is out of the window
        return self.and_(visible, self.compare(leaves, self.broadcast_in_dim(position, (slots,), ()), "GT"))

    def visible_to_positions(self, positions: Value, slots: int, window: int | None) -> Value:
        """The mask of queries at positions i32 [T]: slot s is visible to query t when s <= its position, and in the window.

        i1 [T, S]
        """
        shape = (positions.shape[0], slots)
        slot, query = self.iota(shape, "i32", 1), self.over_first(positions, shape)
        visible = self.compare(slot, query, "LE")
        if window is None:
            return visible
        before = self.subtract(query, self.i32(window, shape))
        return self.and_(visible, self.compare(slot, before, "GT"))

    def key_blocks(self, position: Value, tokens: int, slots: int, window: int | None) -> tuple[Value, Value]:
        """The first block of keys that queries at `tokens` positions from `position` on see, and the one after the last."""
        last = self.minimum(self.add(position, self.i32(tokens - 1)), self.i32(slots - 1))
        end = self.add(self.divide(last, self.i32(BLOCK)), self.i32(1))
        if window is None:
            return self.i32(0), end
        oldest = self.maximum(self.subtract(position, self.i32(window - 1)), self.i32(0))
        return self.divide(oldest, self.i32(BLOCK)), end

    def all_blocks(self, keys: int) -> tuple[Value, Value]:
        """The first block of so many keys, and the one after the last."""
        return self.i32(0), self.add(self.divide(self.i32(keys - 1), self.i32(BLOCK)), self.i32(1))

    def visible_causal(self, length: int, window: int | None) -> Value:
        """Prefill's mask: key s is visible to query t when s <= t, and in the window. i1 [T, T]"""
        shape = (length, length)
        query, key = self.iota(shape, "i32", 0), self.iota(shape, "i32", 1)
        visible = self.compare(key, query, "LE")
        if window is None:
            return visible
        before = self.subtract(query, self.i32(window, shape))
        return self.and_(visible, self.compare(key, before, "GT"))

    # ---- keys and values in 8 bits

    def quantized(self, x: Value) -> tuple[Value, Value]:
        """x [T, K, D] -> i8 [T, K, D], and what they are multiplied with [T, K, 1]: the largest of D is 127 times that.

        Where that is no number, or infinite, so is the scale, and what is made of it again is NaN.
        """
        x, (T, K, _) = self.as_f32(x), x.shape
        largest = self.reduce(self.abs(x), self.f32(0.0), (2,), "maximum")  # [T, K]
        scale = self.divide(largest, self.f32(MOST_INT8, (T, K)))
        one = self.f32(1.0, (T, K))
        divisor = self.select(self.compare(scale, self.f32(0.0, (T, K)), "GT"), scale, one)  # zeros remain zeros
        steps = self.round_nearest_even(self.divide(x, self.over_first(divisor, x.shape)))
        steps = self.clip(steps, MOST_INT8)
        # Of no number there is no integer.
        steps = self.select(self.compare(steps, steps, "EQ"), steps, self.f32(0.0, steps.shape))
        return self.convert(steps, "i8"), self.reshape(self.rounded(scale), (T, K, 1))

    def dequantized(self, steps: Value, scale: Value) -> Value:
        """i8 [..., D] and scales [..., 1] -> [..., D]"""
        return self.multiply(
            self.convert(steps, scale.dtype), self.broadcast_in_dim(scale, steps.shape, range(steps.rank))
        )

    # ---- rings: W slots for the last W positions of a row, position p in slot p mod W

    def ring_slots(self, position: Value, slots: int) -> Value:
        """The slots of positions, like them: i32 scalar or [B]. That of an idle row, at -1, is -1."""
        return self.minimum(self.remainder(position, self.i32(slots, position.shape)), position)

    def since(self, position: Value, slots: int) -> Value:
        """How many positions before `position` the one lies that each slot holds then: 0 to W-1, i32 [W], or [B, W].

        Of a slot that nothing was written to, that is more than there are positions before.
        """
        shape = (*position.shape, slots)
        end = self.over_first(self.add(position, self.i32(slots, position.shape)), shape)
        ahead = self.subtract(end, self.iota(shape, "i32", position.rank))
        return self.remainder(ahead, self.i32(slots, shape))

    def visible_in_ring(self, position: Value, slots: int, window: int) -> Value:
        """Decode's mask where its own key is in its slot: what was written, and is in the window. i1 [W], or [B, W]"""
        since = self.since(position, slots)
        visible = self.compare(since, self.over_first(position, since.shape), "LE")
        if window >= slots:
            return visible
        return self.and_(visible, self.compare(since, self.i32(window, since.shape), "LT"))

    def visible_behind_ring(self, position: Value, tokens: int, slots: int, window: int) -> Value:
        """The mask of T queries from `position` on: of what the ring held before them, and of one another. i1 [T, W+T]"""
        shape = (tokens, slots)
        before = self.subtract(position, self.i32(1))
        since = self.since(before, slots)
        written = self.compare(since, self.over_first(before, since.shape), "LE")
        # By the time of query t, t+1 positions more.
        ago = self.add(self.over_last(since, shape), self.add(self.iota(shape, "i32", 0), self.i32(1, shape)))
        visible = self.and_(self.over_last(written, shape), self.compare(ago, self.i32(window, shape), "LT"))
        return self.concatenate([visible, self.visible_causal(tokens, window)], 1)

    def ring_tokens(self, position: Value, length: Value, slots: int) -> Value:
        """Which of `length` tokens from `position` on each slot keeps, the last that it is for: i32 [W], negative for none."""
        last = self.subtract(length, self.i32(1))
        return self.subtract(self.over_first(last, (slots,)), self.since(self.add(position, last), slots))

    def softmax(self, scores: Value, sinks: Value | None = None) -> Value:
        """Over the last axis, less the maximum so that nothing overflows.

        sinks, like scores without that axis, are one more score, whose share is left out.
        """
        last = scores.rank - 1
        maximum = self.reduce(scores, self.f32(-INFINITY), (last,), "maximum")
        if sinks is not None:
            maximum = self.maximum(maximum, sinks)
        exponentials = self.exponential(self.subtract(scores, self.over_first(maximum, scores.shape)))
        total = self.reduce(exponentials, self.f32(0.0), (last,), "add")
        if sinks is not None:
            total = self.add(total, self.exponential(self.subtract(sinks, maximum)))
        return self.divide(exponentials, self.over_first(total, scores.shape))

    def soft_cap(self, x: Value, cap: float) -> Value:
        """Bend x so that it stays between -cap and cap."""
        return self.scaled(self.tanh(self.divide(x, self.f32(cap, x.shape))), cap)

    def attention(self, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
        """Grouped-query attention: q [T, N, D], k and v [K, S, D] -> [T, N*D]. Of a batch, where each query has keys and values
        of its own, k and v are [T, K, S, D].

        Query head n reads kv head n // G. Source: `eager_attention_forward`, Gemma 2's for the cap, GPT-OSS's for the
        sinks.
        """
        (T, N, D), (*_, K, S, _) = q.shape, k.shape
        G, own, mask = N // K, k.rank == 4, scoring.visible.mask
        if scoring.visible.blocks:
            with self.scope("context"):
                sinks = scoring.sinks if scoring.sinks is None else self.reshape(scoring.sinks, (K, G))
                context = self.by_blocks([(self.reshape(q, (T, K, G, D)), k)], v, scoring, sinks)
                return self.reshape(context, (T, N * D))
        few = self.on_device and (own or T == 1)  # rows of scores: a device has more threads
        order = (T, K) if own else (K, T)
        with self.scope("scores"):
            if few:
                scores = self.sum_of_visible(self.reshape(q, (*k.shape[:-2], G, D)), k, mask)
                scores = self.reshape(scores, (*order, G, S))
            elif own:  # one axis of rows and heads: of two, IREE 3.13 copies what lies in the cache
                q, k = self.reshape(q, (T * K, G, D)), self.reshape(k, (T * K, S, D))
                scores = self.dot_general(q, k, contracting_dimensions=((2,), (2,)), batching_dimensions=((0,), (0,)))
                scores = self.reshape(scores, (T, K, G, S))
            else:
                q = self.reshape(q, (T, K, G, D))
                # [K, T, G, S]
                scores = self.dot_general(q, k, contracting_dimensions=((3,), (2,)), batching_dimensions=((1,), (0,)))
            scores = self.multiply(scores, self.f32(scoring.scaling, scores.shape))
            if scoring.cap is not None:
                scores = self.soft_cap(scores, scoring.cap)
            # Of a batch each row of the mask is of another row of the scores.
            visible = self.broadcast_in_dim(mask, scores.shape, (0, 3)) if own else mask
            scores = self.masked(scores, visible)
        with self.scope("probs"):
            sinks = scoring.sinks
            if sinks is not None:
                sinks = self.broadcast_in_dim(self.reshape(sinks, (K, G)), (*order, G), (1 if own else 0, 2))
            probs = self.rounded(self.softmax(scores, sinks), v.dtype)  # like scores
        with self.scope("context"):
            if few:
                x = self.reshape(probs, (*k.shape[:-2], G, S))
                context = self.sum_of_visible(x, v, mask, over_slots=True)
                return self.reshape(self.rounded(context, q.dtype), (T, N * D))
            if own:
                probs, v = self.reshape(probs, (T * K, G, S)), self.reshape(v, (T * K, S, D))
                context = self.dot_general(
                    probs, v, contracting_dimensions=((2,), (1,)), batching_dimensions=((0,), (0,))
                )
                return self.reshape(self.rounded(context, q.dtype), (T, N * D))
            # [K, T, G, D]
            context = self.dot_general(probs, v, contracting_dimensions=((3,), (1,)), batching_dimensions=((0,), (0,)))
            if T > 1:
                context = self.transpose(context, (1, 0, 2, 3))  # [T, K, G, D]
            return self.reshape(self.rounded(context, q.dtype), (T, N * D))

    def by_blocks(
        self, products: Sequence[tuple[Value, Value]], values: Value, scoring: Scoring, sinks: Value | None = None
    ) -> Value:
        """Attention to a block of keys at a time, of those that any query sees. What it needs grows with T, not with T times S.

        products: queries [T, K, G, D] and keys [K, S, D], the sum of whose products are the scores; values [K, S, U]; sinks
        [K, G] -> [T, K, G, U]. With each block the largest score may grow: what was summed before is then less by as much.
        """
        assert scoring.visible.blocks is not None
        (T, K, G, _), (_, S, U), (first, end) = products[0][0].shape, values.shape, scoring.visible.blocks
        rows, shape, zero = (K, T * G), (K, T * G, BLOCK), self.i32(0)

        def by_head(x: Value) -> Value:
            return self.reshape(self.transpose(x, (1, 0, 2, 3)), (*rows, x.shape[3]))

        def part(x: Value, number: Value) -> Value:
            start = self.multiply(number, self.i32(BLOCK))
            return self.dynamic_slice(x, (zero, start, zero), (K, BLOCK, x.shape[2]))

        queries, keys = [by_head(q) for q, _ in products], [k for _, k in products]
        visible, slots = scoring.visible.mask, self.iota((S,), "i32")

        def goes_on(state: Sequence[Value]) -> Value:
            return self.compare(state[0], end, "LT")

        def with_last(context: Value, shares: Value, values: Value) -> Value:
            return self.add(context, self.dot_general(shares, values, ((2,), (1,)), ((0,), (0,))))

        # What a product packs, IREE 3.13 would compute in the dispatch that packs it, for which its stack is too small. So a turn is given
        # what it multiplies: its own keys, and the shares and values of the turn before.
        def block(state: Sequence[Value]) -> list[Value]:
            number, maximum, total, context, shares, last, *now = state
            start = self.multiply(number, self.i32(BLOCK))
            context = with_last(context, shares, last)
            each = [self.dot_general(q, k, ((2,), (2,)), ((0,), (0,))) for q, k in zip(queries, now, strict=True)]
            scores = self.multiply(functools.reduce(self.add, each), self.f32(scoring.scaling, shape))
            if scoring.cap is not None:
                scores = self.soft_cap(scores, scoring.cap)
            seen = self.dynamic_slice(visible, (zero, start), (T, BLOCK))
            seen = self.and_(seen, self.over_last(self.own_keys(start, slots), seen.shape))
            seen = self.reshape(self.broadcast_in_dim(seen, (T, G, BLOCK), (0, 2)), (T * G, BLOCK))
            scores = self.select(self.over_last(seen, shape), scores, self.f32(-INFINITY, shape))
            largest = self.maximum(maximum, self.reduce(scores, self.f32(-INFINITY), (2,), "maximum"))
            shares = self.exponential(self.subtract(scores, self.over_first(largest, shape)))
            less = self.shrinks(maximum, largest)
            total = self.add(self.multiply(total, less), self.reduce(shares, self.f32(0.0), (2,), "add"))
            context = self.multiply(context, self.over_first(less, context.shape))
            after = self.add(number, self.i32(1))
            return [after, largest, total, context, shares, part(values, number), *(part(k, after) for k in keys)]

        maximum, total = self.f32(LEAST, rows), self.f32(0.0, rows)
        if sinks is not None:  # the score of a key without a value
            maximum = self.reshape(self.broadcast_in_dim(sinks, (K, T, G), (0, 2)), rows)
            total = self.f32(1.0, rows)
        state = [maximum, total, self.f32(0.0, (*rows, U)), self.f32(0.0, shape), self.f32(0.0, (K, BLOCK, U))]
        # Each loop begins with arrays of its own: IREE 3.13 frees what a loop began with, also where another begins with the same.
        state = [*(self.optimization_barrier(x) for x in state), *(part(k, first) for k in keys)]
        _, _, total, context, shares, last, *_ = self.while_([first, *state], goes_on, block)
        context = with_last(context, shares, last)
        context = self.divide(context, self.over_first(total, context.shape))
        return self.transpose(self.reshape(context, (K, T, G, U)), (1, 0, 2, 3))

    def own_keys(self, start: Value, slots: Value) -> Value:
        """Which keys of a slice are those of the block from `start` on: it ends where the slots do, and then begins before. i1 [BLOCK]"""
        keys = self.dynamic_slice(slots, (start,), (BLOCK,))
        return self.compare(keys, self.over_first(start, keys.shape), "GE")

    def shrinks(self, maximum: Value, largest: Value) -> Value:
        """By how much what was summed under a maximum counts less under a larger one."""
        return self.exponential(self.subtract(maximum, largest))

    def sum_of_visible(self, x: Value, y: Value, visible: Value, over_slots: bool = False) -> Value:
        """One query's x [K, G, D] or, over slots, [K, G, S], times y [K, S, D], summed: [K, G, S] or [K, G, D]. Of a batch, all
        have rows first.

        What is hidden adds nothing. Without that it would be a `dot_general`, of which IREE 3.13 makes matrices of G rows for a
        GPU: most threads have nothing to do, and it takes 60 times as long. See docs/toolchain-notes.md.
        """
        *rows, K, G, _ = x.shape
        S, D = y.shape[-2:]
        shape = (*rows, K, G, S, D)
        first = range(len(rows) + 1)  # rows and K
        g, s, d = range(len(rows) + 1, len(shape))
        products = self.multiply(
            self.as_f32(self.broadcast_in_dim(x, shape, (*first, g, s if over_slots else d))),
            self.as_f32(self.broadcast_in_dim(y, shape, (*first, s, d))),
        )
        visible = self.broadcast_in_dim(self.reshape(visible, (*rows, S)), shape, (*range(len(rows)), s))
        products = self.select(visible, products, self.f32(0.0, shape))
        return self.reduce(products, self.f32(0.0), (s if over_slots else d,), "add")

    def masked(self, scores: Value, visible: Value) -> Value:
        """scores [K, T, G, S], -inf where visible [T, S] or [S], or like scores, is false."""
        if visible.rank < scores.rank:
            visible = self.broadcast_in_dim(visible, scores.shape, (1, 3) if visible.rank == 2 else (3,))
        return self.select(visible, scores, self.f32(-INFINITY, scores.shape))

    def latent_attention(
        self, q: Value, q_rope: Value, latents: Value, k_rope: Value, expand: Value, scoring: Scoring
    ) -> Value:
        """Attention to keys and values that are made from latents, without making them.

        q [T, N, P] and q_rope [T, N, Z]; latents [1, S, R] and k_rope [1, S, Z], or of a batch [T, 1, S, R] and [T, 1, S, Z];
        expand [N, P+U, R] makes a head's key and value of a latent -> [T, N*U]. Source: `DeepseekV3Attention`, whose expanded
        form it equals.
        """
        assert scoring.cap is None, "latent attention has no cap"
        assert scoring.sinks is None, "latent attention has no sinks"
        (T, N, P), (S, R), own, mask = q.shape, latents.shape[-2:], latents.rank == 4, scoring.visible.mask
        dtype = q.dtype
        q, q_rope, latents, k_rope = map(self.as_f32, (q, q_rope, latents, k_rope))
        batching: tuple[tuple[int, ...], tuple[int, ...]] = ((0,), (0,)) if own else ((), ())
        if own:
            latents, k_rope = (self.reshape(x, (T, S, x.shape[-1])) for x in (latents, k_rope))
        to_key, to_value = self.part(expand, 1, 0, P), self.part(expand, 1, P, expand.shape[1])
        if scoring.visible.blocks:
            with self.scope("context"):
                q = self.transpose(self.dot_general(q, to_key, ((2,), (1,)), ((1,), (0,))), (1, 0, 2))  # [T, N, R]
                queries = [self.reshape(x, (T, 1, *x.shape[1:])) for x in (q, q_rope)]
                products = list(zip(queries, (latents, k_rope), strict=True))
                context = self.reshape(self.by_blocks(products, latents, scoring), (T, N, R))
                context = self.dot_general(context, to_value, ((2,), (2,)), ((1,), (0,)))  # [N, T, U]
                context = self.rounded(self.transpose(context, (1, 0, 2)), dtype)
                return self.reshape(context, (T, N * to_value.shape[1]))
        with self.scope("scores"):
            q = self.dot_general(q, to_key, contracting_dimensions=((2,), (1,)), batching_dimensions=((1,), (0,)))
            q = self.transpose(q, (1, 0, 2))  # [T, N, R]
            scores = self.dot_general(q, latents, ((2,), (2,)), batching)  # [T, N, 1, S], or [T, N, S]
            scores = self.add(scores, self.dot_general(q_rope, k_rope, ((2,), (2,)), batching))
            scores = self.reshape(scores, (T, 1, N, S) if own else (1, T, N, S))
            visible = self.broadcast_in_dim(mask, scores.shape, (0, 3)) if own else mask
            scores = self.masked(self.multiply(scores, self.f32(scoring.scaling, scores.shape)), visible)
        with self.scope("probs"):
            probs = self.softmax(scores)  # like scores
        with self.scope("context"):
            probs = self.reshape(probs, (T, N, S))
            latents = latents if own else self.reshape(latents, (S, R))
            context = self.dot_general(probs, latents, ((2,), (latents.rank - 2,)), batching)  # [T, N, R]
            # [N, T, U]
            context = self.dot_general(context, to_value, ((2,), (2,)), batching_dimensions=((1,), (0,)))
            context = self.rounded(self.transpose(context, (1, 0, 2)), dtype)
            return self.reshape(context, (T, N * to_value.shape[1]))

    # ---- activations

    def activation(self, name: str, x: Value) -> Value:
        """The activation that a config names, of each element."""
        return {"silu": self.silu, "gelu_pytorch_tanh": self.gelu}[name](x)

    def silu(self, x: Value) -> Value:
        """x times its logistic. Source: `torch.nn.SiLU`."""
        dtype, x = x.dtype, self.as_f32(x)
        return self.rounded(self.multiply(x, self.logistic(x)), dtype)

    def gelu(self, x: Value) -> Value:
        """The tanh form. Source: `gelu_pytorch_tanh`."""
        dtype, x = x.dtype, self.as_f32(x)
        cubed = self.multiply(self.multiply(x, x), x)
        inner = self.scaled(self.add(x, self.scaled(cubed, 0.044715)), (2 / np.pi) ** 0.5)
        y = self.multiply(self.scaled(x, 0.5), self.add(self.tanh(inner), self.f32(1.0, x.shape)))
        return self.rounded(y, dtype)

    # ---- mixture of experts

    def rank(self, scores: Value) -> Value:
        """Each one's place along the last axis when the largest comes first, and of equals the lowest index: i32."""
        last, n = scores.rank - 1, scores.shape[-1]
        shape = (*scores.shape, n)
        # Computed once: IREE 3.13 fuses what computes the scores into both sides of the comparison, where the same
        # score may be rounded in two ways, and then neither comes before the other.
        scores = self.optimization_barrier(scores)
        mine, other = self.over_first(scores, shape), self.broadcast_in_dim(scores, shape, (*range(last), last + 1))
        earlier = self.compare(self.iota(shape, "i32", last + 1), self.iota(shape, "i32", last), "LT")
        before = self.select(earlier, self.compare(other, mine, "GE"), self.compare(other, mine, "GT"))
        return self.reduce(self.convert(before, "i32"), self.i32(0), (last + 1,), "add")

    def kept_top_k(self, scores: Value, k: int, kept: Value | None = None, other: float = 0.0) -> Value:
        """`kept` (scores when None) where scores are among the k largest along the last axis, `other` elsewhere."""
        kept = scores if kept is None else kept
        return self.select(self.among_top_k(scores, k), kept, self.f32(other, kept.shape))

    def among_top_k(self, scores: Value, k: int) -> Value:
        """Which are among the k largest along the last axis: i1, like scores."""
        return self.compare(self.rank(scores), self.i32(k, scores.shape), "LT")

    def route(self, logits: Value, config: Experts, bias: Value | None = None) -> Value:
        """How much each token takes of each expert, 0 of those that it does not choose: logits [T, X] -> [T, X].

        bias [X] shifts what is chosen, not how much is taken. Source: the routers of Mixtral (`softmax`), GPT-OSS
        (`softmax-of-chosen`) and DeepSeek V3 (`sigmoid`).
        """
        k = config.num_experts_per_tok
        if config.scoring == "softmax-of-chosen":
            return self.softmax(self.kept_top_k(logits, k, other=-INFINITY))
        scores = self.logistic(logits) if config.scoring == "sigmoid" else self.softmax(logits)
        choice = scores if bias is None else self.add(scores, self.over_last(bias, scores.shape))
        if config.n_group > 1:
            choice = self.within_best_groups(choice, config.n_group, config.topk_group)
        weights = self.kept_top_k(choice, k, scores)
        if config.norm_topk_prob:
            total = self.reduce(weights, self.f32(0.0), (1,), "add")
            total = self.add(total, self.f32(config.norm_topk_eps, total.shape)) if config.norm_topk_eps else total
            weights = self.divide(weights, self.over_first(total, weights.shape))
        return self.scaled(weights, config.routed_scaling_factor)

    def within_best_groups(self, choice: Value, groups: int, best: int) -> Value:
        """choice [T, X], -inf outside of the groups whose two best experts are the best."""
        T, X = choice.shape
        grouped = self.reshape(choice, (T, groups, X // groups))
        two_best = self.reduce(self.kept_top_k(grouped, 2), self.f32(0.0), (2,), "add")  # [T, groups]
        chosen = self.over_first(self.among_top_k(two_best, best), grouped.shape)
        return self.reshape(self.select(chosen, grouped, self.f32(-INFINITY, grouped.shape)), choice.shape)

    def chosen(self, routing: Value, w: ExpertWeights, k: int) -> tuple[Value, ExpertWeights]:
        """One token's shares [1, X] of its k experts alone, [1, k], and their weights."""
        X = routing.shape[1]
        rank = self.broadcast_in_dim(self.rank(routing), (k, X), (0, 1))
        mine = self.compare(rank, self.iota((k, X), "i32"), "EQ")  # [k, X]: one in each row
        indices = self.select(mine, self.iota((k, X), "i32", 1), self.i32(0, (k, X)))
        indices = self.reshape(self.reduce(indices, self.i32(0), (1,), "add"), (k, 1))
        shares = self.select(mine, self.broadcast_in_dim(routing, (k, X), (0, 1)), self.f32(0.0, (k, X)))
        shares = self.reshape(self.reduce(shares, self.f32(0.0), (1,), "add"), (1, k))
        return shares, w.each(lambda weights: self.rows(weights, indices))

    def experts(
        self, x: Value, routing: Value, w: ExpertWeights, config: Experts, gated: Callable[[Value], Value],
        transposed: bool = False,
    ) -> Value:  # fmt: skip
        """x [T, E], routing [T, X] -> [T, E]: each token through its experts, weighted. Source: `MixtralExperts`.

        A single token takes the weights of its experts alone; a prompt goes through all of them: most are chosen.

        Args:
          gated: an expert's activation, [..., 2*M] -> [..., M].
          transposed: the weights are [X, in, out].
        """
        if x.shape[0] == 1 and config.num_experts_per_tok < config.num_experts:
            routing, w = self.chosen(routing, w, config.num_experts_per_tok)
        dtype, x = x.dtype, self.as_f32(x)
        gate_up, down, inner = self.dense(w.gate_up), self.dense(w.down), 1 if transposed else 2
        h = self.dot_general(x, gate_up, contracting_dimensions=((1,), (inner,)))  # [T, X, 2*M]
        if w.gate_up_bias is not None:
            h = self.add(h, self.over_last(w.gate_up_bias, h.shape))
        h = gated(h)
        h = self.multiply(h, self.over_first(routing, h.shape))  # [T, X, M]
        y = self.dot_general(h, down, contracting_dimensions=((1, 2), (0, inner)))  # [T, E]
        if w.down_bias is not None:
            y = self.add(y, self.dot_general(routing, w.down_bias, contracting_dimensions=((1,), (0,))))
        return self.rounded(y, dtype)

    def halves(self, x: Value) -> tuple[Value, Value]:
        """The first and the second half of the last axis."""
        last, n = x.rank - 1, x.shape[-1]
        return self.part(x, last, 0, n // 2), self.part(x, last, n // 2, n)

    def clamped_swiglu(self, x: Value, limit: float, alpha: float) -> Value:
        """x [..., 2*M], gates and values in turns -> [..., M]. Source: `GptOssExperts._apply_gate`."""
        *outer, n = x.shape
        pairs = self.reshape(x, (*outer, n // 2, 2))
        gate, up = (self.reshape(self.part(pairs, len(outer) + 1, i, i + 1), (*outer, n // 2)) for i in (0, 1))
        gate = self.minimum(gate, self.f32(limit, gate.shape))
        up = self.add(self.clip(up, limit), self.f32(1.0, up.shape))
        return self.multiply(up, self.multiply(gate, self.logistic(self.scaled(gate, alpha))))

    # ---- the head

    def argmax(self, logits: Value) -> Value:
        """The index of the largest along the last axis of [..., V], the lowest among equals: i32 [...].

        V, an impossible id, if any is NaN.
        """
        *rows, V = logits.shape
        last = len(rows)
        if self.on_device and rows:  # what adds a row's logits up is fused with their maximum, and LLVM gives it up
            logits = self.optimization_barrier(logits)
        maximum = self.reduce(logits, self.f32(-INFINITY), (last,), "maximum")
        if self.on_device:
            return self._last_of_those_left(logits, self.optimization_barrier(maximum))
        is_maximum = self.compare(logits, self.over_first(maximum, logits.shape), "EQ")
        candidates = self.select(is_maximum, self.iota(logits.shape, "i32", last), self.i32(V, logits.shape))
        return self.reduce(candidates, self.i32(V), (last,), "minimum")

    def _last_of_those_left(self, logits: Value, maximum: Value) -> Value:
        """The same as `argmax` of the rest: V less the most that is left of [V] from a largest one on, 0 where there is none.

        IREE 3.13 begins a `minimum` of i32 on a GPU with -1, which is less than any index; and what is fused with the maximum
        that it compares with is wrong from index 16384 on, hence the barrier before. See docs/toolchain-notes.md.
        """
        *rows, V = logits.shape
        last, shape = len(rows), logits.shape
        is_maximum = self.compare(logits, self.over_first(maximum, shape), "EQ")
        left = self.subtract(self.i32(V, shape), self.iota(shape, "i32", last))
        most = self.reduce(self.select(is_maximum, left, self.i32(0, shape)), self.i32(0), (last,), "maximum")
        return self.subtract(self.i32(V, rows), most)
