"""The mechanisms that architectures are wired from. None of them knows which model it is in.

Legend: T query tokens, S cache slots, N/K query/kv heads, G = N/K queries per kv head, D head_dim,
E hidden, F intermediate, V vocab. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.emitters.builder import Builder, Value


@dataclass(frozen=True)
class RopeRows:
    """cos and sin at the positions of the query tokens, both [T, 2, D/2]; sin is negated in the first half."""

    cos: Value
    sin: Value


class LayerBuilder(Builder):
    """A Builder that also writes norms, projections, rotary embeddings, attention and the head."""

    def f32(self, value: float, shape: Sequence[int] = ()) -> Value:
        return self.constant(value, "f32", shape)

    def i32(self, value: int, shape: Sequence[int] = ()) -> Value:
        return self.constant(value, "i32", shape)

    def linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        """x [T, in], weight [out, in], bias [out] -> [T, out]. Every product with a weight goes through here."""
        y = self.dot_general(x, weight, contracting_dimensions=((1,), (1,)))  # [T, out]
        if bias is not None:
            y = self.add(y, self.broadcast_in_dim(bias, y.shape, (1,)))
        return y

    def rms_norm(self, x: Value, weight: Value, eps: float) -> Value:
        """x [T, E] over its root mean square, times weight [E]. Source: `LlamaRMSNorm`."""
        T, E = x.shape
        square_sum = self.reduce(self.multiply(x, x), self.f32(0.0), (1,), "add")  # [T]
        mean_square = self.multiply(square_sum, self.f32(1.0 / E, (T,)))
        inverse = self.rsqrt(self.add(mean_square, self.f32(eps, (T,))))  # [T]
        normed = self.multiply(x, self.broadcast_in_dim(inverse, x.shape, (0,)))  # [T, E]
        return self.multiply(normed, self.broadcast_in_dim(weight, x.shape, (1,)))

    def rope_rows(self, tables: tuple[np.ndarray, np.ndarray], start: Value | None, length: int) -> RopeRows:
        """Rows of the tables [positions, D/2] from position `start` (0 when None), one for each half of a head."""
        cos, sin = (np.stack(halves, axis=1) for halves in ((tables[0],) * 2, (-tables[1], tables[1])))
        if start is None:
            return RopeRows(self.table(cos[:length]), self.table(sin[:length]))
        sizes, zero = (length, *cos.shape[1:]), self.i32(0)
        return RopeRows(*(self.dynamic_slice(self.table(t), (start, zero, zero), sizes) for t in (cos, sin)))

    def rotary(self, x: Value, rope: RopeRows) -> Value:
        """Turn pairs (i, i + D/2) of x [T, N, D] by the rope's angles. Source: `apply_rotary_pos_emb`.

        The halves are exchanged with one `reverse` over an axis of 2; the sign is in the table.
        """
        T, N, D = x.shape
        halves = self.reshape(x, (T, N, 2, D // 2))
        cos, sin = (self.broadcast_in_dim(t, halves.shape, (0, 2, 3)) for t in (rope.cos, rope.sin))
        turned = self.add(self.multiply(halves, cos), self.multiply(self.reverse(halves, (2,)), sin))
        return self.reshape(turned, x.shape)  # [T, N, D]

    def softmax(self, scores: Value) -> Value:
        """Over the last axis, less the maximum so that nothing overflows."""
        last = scores.rank - 1
        kept = tuple(range(last))
        maximum = self.reduce(scores, self.f32(float("-inf")), (last,), "maximum")
        shifted = self.subtract(scores, self.broadcast_in_dim(maximum, scores.shape, kept))
        exponentials = self.exponential(shifted)
        total = self.reduce(exponentials, self.f32(0.0), (last,), "add")
        return self.divide(exponentials, self.broadcast_in_dim(total, scores.shape, kept))

    def visible_to_position(self, position: Value, slots: int) -> Value:
        """Decode's mask: slot s is visible when s <= position. i1 [S]"""
        return self.compare(self.iota((slots,), "i32"), self.broadcast_in_dim(position, (slots,), ()), "LE")

    def visible_causal(self, length: int) -> Value:
        """Prefill's mask: key s is visible to query t when s <= t. i1 [T, T]"""
        shape = (length, length)
        return self.compare(self.iota(shape, "i32", 1), self.iota(shape, "i32", 0), "LE")

    def attention(self, q: Value, k: Value, v: Value, visible: Value, scaling: float) -> Value:
        """Grouped-query attention: q [T, N, D], k and v [K, S, D], visible [T, S] or [S] -> [T, N*D].

        Query head n reads kv head n // G. Source: `eager_attention_forward`.
        """
        (T, N, D), K = q.shape, k.shape[0]
        G = N // K
        with self.scope("scores"):
            q = self.reshape(q, (T, K, G, D))
            # [K, T, G, S]
            scores = self.dot_general(q, k, contracting_dimensions=((3,), (2,)), batching_dimensions=((1,), (0,)))
            scores = self.multiply(scores, self.f32(scaling, scores.shape))
            dims = (1, 3) if visible.rank == 2 else (3,)
            visible = self.broadcast_in_dim(visible, scores.shape, dims)
            scores = self.select(visible, scores, self.f32(float("-inf"), scores.shape))
        with self.scope("probs"):
            probs = self.softmax(scores)  # [K, T, G, S]
        with self.scope("context"):
            # [K, T, G, D]
            context = self.dot_general(probs, v, contracting_dimensions=((3,), (1,)), batching_dimensions=((0,), (0,)))
            if T > 1:
                context = self.transpose(context, (1, 0, 2, 3))  # [T, K, G, D]
            return self.reshape(context, (T, N * D))

    def silu(self, x: Value) -> Value:
        return self.multiply(x, self.logistic(x))

    def argmax(self, logits: Value) -> Value:
        """The index of the largest of [V], the lowest among equals: i32 scalar. V, an impossible id, if any is NaN."""
        (V,) = logits.shape
        maximum = self.reduce(logits, self.f32(float("-inf")), (0,), "maximum")
        is_maximum = self.compare(logits, self.broadcast_in_dim(maximum, (V,), ()), "EQ")
        candidates = self.select(is_maximum, self.iota((V,), "i32"), self.i32(V, (V,)))
        return self.reduce(candidates, self.i32(V), (0,), "minimum")
