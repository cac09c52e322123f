"""The mechanisms that architectures are wired from, in JAX. None of them knows which model it is in.

Legend: B rows of a batch, T query tokens (those of all rows in decode), S cache slots, N/K query/kv heads, G = N/K queries per kv head, D head_dim, R turned dims of it,
E hidden, F intermediate, V vocab; X experts, A chosen per token, M their intermediate. Written
with `lax` where the `jnp` form would leave private functions in the graph.

Between modules values are of the type that the model computes in, inside of one they are float32: what is taken is widened,
and what is given rounded once. Of float32 nothing is left of that in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hloracle.reference.model.config import Experts
from hloracle.reference.model.rope import RopeTables

scope = jax.named_scope
HIGHEST = lax.Precision.HIGHEST
INFINITY = float("inf")
MOST_INT8 = 127.0  # and as many below 0


def wide(x: Array) -> Array:
    """x in float32."""
    return x.astype(jnp.float32)


def scaled(x: Array, factor: float) -> Array:
    """x times a factor; nothing is left in the graph where that is 1."""
    return x if factor == 1 else (wide(x) * factor).astype(x.dtype)


# ---- projections and norms


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [T, in], weight [out, in], bias [out] -> [T, out]"""
    # Of x as it is: XLA would leave out that a sum is rounded, where what it gives is widened at once.
    weight = weight.astype(x.dtype)
    y = jnp.einsum("ti,oi->to", x, weight, precision=HIGHEST, preferred_element_type=jnp.float32)
    return (y if bias is None else y + bias[None, :]).astype(x.dtype)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [T, ..., D] over its last axis' root mean square, times weight, whose axes are x's last.

    Source: `LlamaRMSNorm`.
    """
    dtype, x = x.dtype, wide(x)
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    return (lax.broadcast_to_rank(weight, x.ndim) * (x * lax.rsqrt(mean_square + eps))).astype(dtype)


def layer_norm(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """x [T, ..., D] less its last axis' mean, over its deviation, times weight, plus bias.

    Source: `CohereLayerNorm`.
    """
    dtype, x = x.dtype, wide(x)
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    y = lax.broadcast_to_rank(weight, x.ndim) * (centered * lax.rsqrt(variance + eps))
    return (y if bias is None else y + lax.broadcast_to_rank(bias, x.ndim)).astype(dtype)


# ---- rotary position embedding


@dataclass(frozen=True)
class RopeRows:
    """cos and sin at the positions of the query tokens, both [T, R/2]; interleaved: which dimensions are pairs."""

    cos: Array
    sin: Array
    interleaved: bool


def rope_rows(tables: RopeTables, interleaved: bool, at: Array | None, length: Array | None) -> RopeRows:
    """The rows of positions `at`, int32 [T] or one scalar; without it, a prefill's rows of all positions.

    length: of the prompt, where there are angles for each length.
    """
    if len(tables.cos) == 1:
        cos, sin = jnp.asarray(tables.cos[0]), jnp.asarray(tables.sin[0])
    else:
        assert length is not None
        # JAX takes a negative start for one that counts from the end.
        variant = lax.clamp(0, length - tables.first, len(tables.cos) - 1)
        cos, sin = (lax.dynamic_slice_in_dim(jnp.asarray(t), variant, 1)[0] for t in (tables.cos, tables.sin))
    if at is not None:
        cos, sin = (rows(t, at) if at.ndim else lax.dynamic_slice_in_dim(t, at, 1) for t in (cos, sin))
    return RopeRows(cos, sin, interleaved)


def rotary(x: Array, rope: RopeRows | None) -> Array:
    """Turn the pairs of the first R of D dimensions of x [T, N, D] by the rope's angles.

    Source: `apply_rotary_pos_emb`.
    """
    assert rope is not None, "a layer without RoPE turns nothing"
    R = 2 * rope.cos.shape[1]
    turned, kept = wide(x[..., :R]), x[..., R:]
    cos, sin = rope.cos[:, None, :], rope.sin[:, None, :]
    if rope.interleaved:
        x1, x2 = turned[..., 0::2], turned[..., 1::2]  # [T, N, R/2] each
        turned = jnp.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=3).reshape(turned.shape)
    else:
        x1, x2 = jnp.split(turned, 2, axis=2)  # [T, N, R/2] each
        turned = jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=2)
    turned = turned.astype(x.dtype)
    return turned if x.shape[2] == R else jnp.concatenate([turned, kept], axis=2)


def in_halves(x: Array, interleaved: bool) -> Array:
    """x [T, N, D] with pairs (i, i + D/2), if it has pairs (2i, 2i+1). Source: `apply_rotary_pos_emb_interleave`."""
    return jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=2) if interleaved else x


def clip(x: Array, limit: float | None) -> Array:
    """x between -limit and limit; x itself without a limit."""
    if limit is None:
        return x
    low, high = (np.asarray(at, x.dtype) for at in (-limit, limit))
    return lax.clamp(low, x, high)


# ---- attention


def visible_to_position(position: Array, slots: int, window: int | None) -> Array:
    """Decode's mask: slot s is visible when s <= position, and in the window. bool [1, S]"""
    slot = lax.iota(jnp.int32, slots)[None, :]
    visible = slot <= position
    return visible if window is None else visible & (slot > position - window)


def visible_to_positions(positions: Array, slots: int, window: int | None) -> Array:
    """The mask of queries at positions int32 [T]: slot s is visible to query t when s <= its position, and in the window.

    bool [T, S]
    """
    slot, query = lax.iota(jnp.int32, slots)[None, :], positions[:, None]
    visible = slot <= query
    return visible if window is None else visible & (slot > query - window)


def visible_causal(length: int, window: int | None) -> Array:
    """Prefill's mask: key s is visible to query t when s <= t, and in the window. bool [T, T]"""
    query, key = lax.iota(jnp.int32, length)[:, None], lax.iota(jnp.int32, length)[None, :]
    visible = key <= query
    return visible if window is None else visible & (key > query - window)


# ---- keys and values in 8 bits


def quantized(x: Array) -> tuple[Array, Array]:
    """x [T, K, D] -> int8 [T, K, D], and what they are multiplied with [T, K, 1]: the largest of D is 127 times that.

    Where that is no number, or infinite, so is the scale, and what is made of it again is NaN.
    """
    compute, x = x.dtype, wide(x)
    scale = jnp.max(jnp.abs(x), axis=2, keepdims=True) / MOST_INT8
    divisor = lax.select(scale > 0, scale, jnp.ones_like(scale))  # zeros remain zeros
    steps = clip(lax.round(x / divisor, lax.RoundingMethod.TO_NEAREST_EVEN), MOST_INT8)
    # Of no number there is no integer.
    steps = lax.select(steps == steps, steps, jnp.zeros_like(steps))
    return steps.astype(jnp.int8), scale.astype(compute)


def dequantized(steps: Array, scale: Array) -> Array:
    """int8 [..., D] and scales [..., 1] -> [..., D]"""
    return steps.astype(scale.dtype) * scale


# ---- rings: W slots for the last W positions of a row, position p in slot p mod W


def ring_slots(position: Array, slots: int) -> Array:
    """The slots of positions, like them: int32 scalar or [B]. That of an idle row, at -1, is -1."""
    return lax.min(lax.rem(position, jnp.full(position.shape, slots, jnp.int32)), position)


def since(position: Array, slots: int) -> Array:
    """How many positions before `position` the one lies that each slot holds then: 0 to W-1, int32 [W], or [B, W].

    Of a slot that nothing was written to, that is more than there are positions before.
    """
    ahead = position[..., None] + slots - lax.iota(jnp.int32, slots)
    return lax.rem(ahead, jnp.full(ahead.shape, slots, jnp.int32))


def visible_in_ring(position: Array, slots: int, window: int) -> Array:
    """Decode's mask where its own key is in its slot: what was written, and is in the window. bool [1, W], or [B, W]"""
    ago = since(position, slots)
    visible = (ago <= position[..., None]) & (ago < window)
    return visible if visible.ndim == 2 else visible[None]


def visible_behind_ring(position: Array, tokens: int, slots: int, window: int) -> Array:
    """The mask of T queries from `position` on: of what the ring held before them, and of one another. bool [T, W+T]"""
    before = position - 1
    ago = since(before, slots)
    # By the time of query t, t+1 positions more.
    by_then = ago[None, :] + lax.iota(jnp.int32, tokens)[:, None] + 1
    visible = (ago <= before)[None, :] & (by_then < window)
    return jnp.concatenate([visible, visible_causal(tokens, window)], axis=1)


def ring_tokens(position: Array, length: Array, slots: int) -> Array:
    """Which of `length` tokens from `position` on each slot keeps, the last that it is for: int32 [W], negative for none."""
    last = length - 1
    return last - since(position + last, slots)


def softmax(scores: Array, sinks: Array | None = None) -> Array:
    """Over the last axis. sinks [..., 1] are one more score, whose share is left out."""
    maximum = jnp.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        maximum = jnp.maximum(maximum, sinks)
    exponentials = jnp.exp(scores - maximum)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sinks - maximum)
    return exponentials / total


def soft_cap(x: Array, cap: float) -> Array:
    """Bend x so that it stays between -cap and cap."""
    return jnp.tanh(x / cap) * cap


@dataclass(frozen=True)
class Scoring:
    """How a query's scores of the keys are formed.

    visible: bool [T, S], which keys a query sees. scaling: what its products with them are multiplied by. cap: scores are
    bent to stay between -cap and cap. sinks: float32 [N], one more score of each head, whose share is left out.
    """

    visible: Array
    scaling: float
    cap: float | None = None
    sinks: Array | None = None


def attention(q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
    """Grouped-query attention: q [T, N, D], k and v [K, S, D] -> [T, N*D]. Of a batch, where each query has keys and values
    of its own, k and v are [T, K, S, D].

    Query head n reads kv head n // G. Source: `eager_attention_forward`, Gemma 2's for the cap, GPT-OSS's for the
    sinks.
    """
    (T, N, D), K, own = q.shape, k.shape[-3], k.ndim == 4
    G = N // K
    with scope("scores"):
        q = q.reshape(T, K, G, D)
        products = "tkgd,tksd->tkgs" if own else "tkgd,ksd->ktgs"
        scores = (
            jnp.einsum(products, wide(q), wide(k), precision=HIGHEST) * scoring.scaling
        )  # [K, T, G, S], or [T, K, G, S]
        if scoring.cap is not None:
            scores = soft_cap(scores, scoring.cap)
        # Of a batch each row of the mask is of another row of the scores.
        scores = masked(scores, scoring.visible[:, None, None, :] if own else scoring.visible)
    with scope("probs"):
        sinks = scoring.sinks
        if sinks is not None:
            sinks = sinks.reshape((1, K, G, 1) if own else (K, 1, G, 1))
        probs = softmax(scores, sinks).astype(v.dtype)  # like scores
    with scope("context"):
        context = jnp.einsum(
            "tkgs,tksd->tkgd" if own else "ktgs,ksd->tkgd", wide(probs), wide(v), precision=HIGHEST
        )  # [T, K, G, D]
        return context.astype(q.dtype).reshape(T, N * D)


def masked(scores: Array, visible: Array) -> Array:
    """scores [K, T, G, S], -inf where visible [T, S], or of as many axes as scores, is false."""
    return where(visible if visible.ndim == scores.ndim else visible[None, :, None, :], scores, -INFINITY)


def where(chosen: Array, x: Array, other: float) -> Array:
    """x, but `other` where it is not chosen; chosen is broadcast to x."""
    return lax.select(jnp.broadcast_to(chosen, x.shape), x, jnp.full_like(x, other))


def latent_attention(q: Array, q_rope: Array, latents: Array, k_rope: Array, expand: Array, scoring: Scoring) -> Array:
    """Attention to keys and values that are made from latents, without making them.

    q [T, N, P] and q_rope [T, N, Z]; latents [1, S, R] and k_rope [1, S, Z], or of a batch [T, 1, S, R] and [T, 1, S, Z];
    expand [N, P+U, R] makes a head's key and value of a latent -> [T, N*U]. Source: `DeepseekV3Attention`, whose expanded
    form it equals.
    """
    assert scoring.cap is None, "latent attention has no cap"
    assert scoring.sinks is None, "latent attention has no sinks"
    (T, _, P), own, dtype = q.shape, latents.ndim == 4, q.dtype
    q, q_rope, latents, k_rope = map(wide, (q, q_rope, latents, k_rope))
    to_key, to_value = expand[:, :P], expand[:, P:]
    with scope("scores"):
        q = jnp.einsum("tnp,npr->tnr", q, to_key, precision=HIGHEST)  # [T, N, R]
        products = "tnr,tksr->tkns" if own else "tnr,ksr->ktns"
        scores = jnp.einsum(products, q, latents, precision=HIGHEST)  # [1, T, N, S], or [T, 1, N, S]
        scores = (scores + jnp.einsum(products, q_rope, k_rope, precision=HIGHEST)) * scoring.scaling
        # Of a batch each row of the mask is of another row of the scores.
        scores = masked(scores, scoring.visible[:, None, None, :] if own else scoring.visible)
    with scope("probs"):
        probs = softmax(scores)  # like scores
    with scope("context"):
        context = jnp.einsum(
            "tkns,tksr->tnr" if own else "ktns,ksr->tnr", probs, latents, precision=HIGHEST
        )  # [T, N, R]
        context = jnp.einsum("tnr,nur->tnu", context, to_value, precision=HIGHEST)  # [T, N, U]
        return context.astype(dtype).reshape(T, -1)


# ---- activations


def silu(x: Array) -> Array:
    """x times its logistic. Source: `torch.nn.SiLU`."""
    return (wide(x) * lax.logistic(wide(x))).astype(x.dtype)


def gelu(x: Array) -> Array:
    """The tanh form. Source: `gelu_pytorch_tanh`."""
    dtype, x = x.dtype, wide(x)
    return (0.5 * x * (1 + jnp.tanh((2 / jnp.pi) ** 0.5 * (x + 0.044715 * (x * x * x))))).astype(dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"silu": silu, "gelu_pytorch_tanh": gelu}


# ---- mixture of experts


def top_k(scores: Array, k: int) -> Array:
    """The places of the k largest along the last axis, the lowest among equals: int32 [..., k]."""
    places = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    _, order = lax.sort((-scores, places), dimension=scores.ndim - 1, num_keys=1, is_stable=True)
    return order[..., :k]


def among_top_k(scores: Array, k: int) -> Array:
    """Which are among the k largest along the last axis: bool, like scores."""
    places = lax.broadcast_to_rank(lax.iota(jnp.int32, scores.shape[-1]), scores.ndim + 1)
    return jnp.any(top_k(scores, k)[..., :, None] == places, axis=-2)


def route(logits: Array, config: Experts, bias: Array | None = None) -> Array:
    """How much each token takes of each expert, 0 of those that it does not choose: logits [T, X] -> [T, X].

    bias [X] shifts what is chosen, not how much is taken. Source: the routers of Mixtral (`softmax`), GPT-OSS
    (`softmax-of-chosen`) and DeepSeek V3 (`sigmoid`).
    """
    k = config.num_experts_per_tok
    if config.scoring == "softmax-of-chosen":
        return softmax(where(among_top_k(logits, k), logits, -INFINITY))
    scores = lax.logistic(logits) if config.scoring == "sigmoid" else softmax(logits)
    choice = scores if bias is None else scores + bias[None, :]
    if config.n_group > 1:
        choice = within_best_groups(choice, config.n_group, config.topk_group)
    weights = where(among_top_k(choice, k), scores, 0.0)
    if config.norm_topk_prob:
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights / (total + config.norm_topk_eps if config.norm_topk_eps else total)
    return weights * config.routed_scaling_factor if config.routed_scaling_factor != 1 else weights


def within_best_groups(choice: Array, groups: int, best: int) -> Array:
    """choice [T, X], -inf outside of the groups whose two best experts are the best."""
    grouped = choice.reshape(len(choice), groups, -1)  # [T, groups, X / groups]
    two_best = jnp.sum(where(among_top_k(grouped, 2), grouped, 0.0), axis=-1)  # [T, groups]
    chosen = among_top_k(two_best, best)[:, :, None]
    return where(chosen, grouped, -INFINITY).reshape(choice.shape)


@dataclass(frozen=True)
class ExpertWeights:
    """gate_up [X, 2*M, E] with gate_up_bias [X, 2*M], down [X, E, M] with down_bias [X, E].

    Some models have the transposed ones, gate_up [X, E, 2*M] and down [X, M, E].
    """

    gate_up: Array
    down: Array
    gate_up_bias: Array | None = None
    down_bias: Array | None = None

    def each(self, take: Callable[[Array], Array]) -> ExpertWeights:
        """What `take` makes of each that there is."""
        biases = (self.gate_up_bias, self.down_bias)
        return ExpertWeights(take(self.gate_up), take(self.down), *(None if w is None else take(w) for w in biases))


def rows(table: Array, indices: Array) -> Array:
    """table [X, ...], indices [A], each within -> [A, ...]"""
    return table.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


def experts(
    x: Array,
    routing: Array,
    w: ExpertWeights,
    config: Experts,
    gated: Callable[[Array], Array],
    transposed: bool = False,
) -> Array:
    """x [T, E], routing [T, X] -> [T, E]: each token through its experts, weighted. Source: `MixtralExperts`.

    A single token takes the weights of its experts alone; a prompt goes through all of them, because most are chosen.

    Args:
      gated: an expert's activation, [..., 2*M] -> [..., M].
      transposed: the weights are [X, in, out].
    """
    dtype, x = x.dtype, wide(x)
    if len(x) == 1 and config.num_experts_per_tok < config.num_experts:
        chosen = top_k(routing[0], config.num_experts_per_tok)
        w = w.each(lambda weights: rows(weights, chosen))
        routing = rows(routing[0], chosen)[None]  # [1, A]
    h = jnp.einsum("te,xem->txm" if transposed else "te,xme->txm", x, w.gate_up, precision=HIGHEST)
    if w.gate_up_bias is not None:
        h = h + w.gate_up_bias[None]
    h = gated(h) * routing[:, :, None]  # [T, X, M]
    y = jnp.einsum("txm,xme->te" if transposed else "txm,xem->te", h, w.down, precision=HIGHEST)
    if w.down_bias is not None:
        y = y + jnp.einsum("tx,xe->te", routing, w.down_bias, precision=HIGHEST)
    return y.astype(dtype)


def halves(x: Array) -> tuple[Array, Array]:
    """The first and the second half of the last axis."""
    first, second = jnp.split(x, 2, axis=-1)
    return first, second


def clamped_swiglu(x: Array, limit: float, alpha: float) -> Array:
    """x [..., 2*M], gates and values in turns -> [..., M]. Source: `GptOssExperts._apply_gate`."""
    gate, up = lax.min(x[..., 0::2], limit), lax.clamp(-limit, x[..., 1::2], limit)
    return (up + 1) * (gate * lax.logistic(gate * alpha))


# ---- the head


def argmax(logits: Array) -> Array:
    """The index of the largest along the last axis of [..., V], the lowest among equals: int32 [...].

    V, an impossible id, if any is NaN.
    """
    V, last = logits.shape[-1], logits.ndim - 1
    is_maximum = logits == jnp.max(logits, axis=-1, keepdims=logits.ndim > 1)
    places = lax.broadcasted_iota(jnp.int32, logits.shape, last) if last else lax.iota(jnp.int32, V)
    return jnp.min(lax.select(is_maximum, places, jnp.full(logits.shape, V, jnp.int32)), axis=-1)
