"""The mechanisms that architectures are wired from, in JAX. None of them knows which model it is in.

Legend: T query tokens, S cache slots, N/K query/kv heads, G = N/K queries per kv head, D head_dim,
E hidden, F intermediate, V vocab. Everything is float32. Written with `lax` where the `jnp` form would
leave private functions in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

scope = jax.named_scope


@dataclass(frozen=True)
class RopeRows:
    """cos and sin at the positions of the query tokens, both [T, D/2]."""

    cos: Array
    sin: Array


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [T, in], weight [out, in], bias [out] -> [T, out]"""
    y = jnp.einsum("ti,oi->to", x, weight, precision=lax.Precision.HIGHEST)
    return y if bias is None else y + bias[None, :]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [T, E] over its root mean square, times weight [E]. Source: `LlamaRMSNorm`."""
    mean_square = jnp.mean(x * x, axis=1, keepdims=True)  # [T, 1]
    return weight[None, :] * (x * lax.rsqrt(mean_square + eps))


def rope_rows(tables: tuple[np.ndarray, np.ndarray], start: Array | None, length: int) -> RopeRows:
    """Rows of the tables [positions, D/2] from position `start` (0 when None)."""
    if start is None:
        return RopeRows(*(jnp.asarray(t[:length]) for t in tables))
    return RopeRows(*(lax.dynamic_slice_in_dim(jnp.asarray(t), start, length) for t in tables))


def rotary(x: Array, rope: RopeRows) -> Array:
    """Turn pairs (i, i + D/2) of x [T, N, D] by the rope's angles. Source: `apply_rotary_pos_emb`."""
    x1, x2 = jnp.split(x, 2, axis=2)  # [T, N, D/2] each
    cos, sin = rope.cos[:, None, :], rope.sin[:, None, :]
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=2)


def visible_to_position(position: Array, slots: int) -> Array:
    """Decode's mask: slot s is visible when s <= position. bool [1, S]"""
    return lax.iota(jnp.int32, slots)[None, :] <= position


def visible_causal(length: int) -> Array:
    """Prefill's mask: key s is visible to query t when s <= t. bool [T, T]"""
    index = lax.iota(jnp.int32, length)
    return index[None, :] <= index[:, None]


def attention(q: Array, k: Array, v: Array, visible: Array, scaling: float) -> Array:
    """Grouped-query attention: q [T, N, D], k and v [K, S, D], visible [T, S] -> [T, N*D].

    Query head n reads kv head n // G. Source: `eager_attention_forward`.
    """
    (T, N, D), K = q.shape, k.shape[0]
    G = N // K
    with scope("scores"):
        q = q.reshape(T, K, G, D)
        scores = jnp.einsum("tkgd,ksd->ktgs", q, k, precision=lax.Precision.HIGHEST) * scaling  # [K, T, G, S]
        scores = lax.select(
            jnp.broadcast_to(visible[None, :, None, :], scores.shape), scores, jnp.full_like(scores, -jnp.inf)
        )
    with scope("probs"):
        exponentials = jnp.exp(scores - jnp.max(scores, axis=3, keepdims=True))
        probs = exponentials / jnp.sum(exponentials, axis=3, keepdims=True)  # [K, T, G, S]
    with scope("context"):
        context = jnp.einsum("ktgs,ksd->tkgd", probs, v, precision=lax.Precision.HIGHEST)  # [T, K, G, D]
        return context.reshape(T, N * D)


def silu(x: Array) -> Array:
    return x * lax.logistic(x)


def argmax(logits: Array) -> Array:
    """The index of the largest of [V], the lowest among equals: int32 scalar. V, an impossible id, if any is NaN."""
    (V,) = logits.shape
    is_maximum = logits == jnp.max(logits)
    return jnp.min(lax.select(is_maximum, lax.iota(jnp.int32, V), jnp.full((V,), V, jnp.int32)))
