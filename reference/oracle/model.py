"""The frame that every decoder-only model shares: embed, blocks, norm, head; as prefill, extend or decode; in JAX.

Mirrors `emitters/model.py`. The contract is `contract.py`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from hloracle.core.abi import CACHES, RINGS, SCALES
from hloracle.reference.model.config import Config, Rope
from hloracle.reference.model.contract import effective_window
from hloracle.reference.model.rope import decode_tables, prefill_tables
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle.layers import (
    RopeRows,
    argmax,
    dequantized,
    linear,
    quantized,
    ring_slots,
    ring_tokens,
    rope_rows,
    rows,
    scaled,
    scope,
    soft_cap,
    visible_behind_ring,
    visible_causal,
    visible_in_ring,
    visible_to_position,
    visible_to_positions,
    wide,
)


@dataclass(frozen=True)
class Weights:
    """The weights by name, seen from inside a module: `prefix` is that module's path."""

    values: dict[str, Array]
    prefix: str = ""

    def inside(self, name: str) -> Weights:
        """The weights seen from inside a submodule."""
        return Weights(self.values, f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Array:
        return self.values[self.prefix + name]

    def get(self, name: str) -> Array | None:
        """A weight that not every model has."""
        return self.values.get(self.prefix + name)

    def linear(self, name: str) -> tuple[Array, Array | None]:
        """The projection's weight, and its bias if this model has one."""
        return self[f"{name}.weight"], self.get(f"{name}.bias")


@dataclass
class Cache(ABC):
    """The keys and values of some layers, [L, K, S, D] each, of a batch [L, B, K, S, D]; `layer` is the next one to write.

    They are those of all layers, or of all that have a window, or of the others. A ring is a cache whose S is the W of a ring.
    k_scale, v_scale: of keys and values in int8, [L, K, S, 1] each, of a batch [L, B, K, S, 1].
    """

    k: Array
    v: Array
    layer: int = 0
    k_scale: Array | None = None
    v_scale: Array | None = None

    def update(self, k: Array, v: Array) -> tuple[Array, Array]:
        """k, v [T, K, D] -> what the layer's queries attend to, [K, S, D]; in prefill, [K, T, D]; in extend, of a ring, [K, W+T, D].

        In a decode of a batch each query is of another row, and what they attend to is [B, K, S, D].
        """
        with scope("k_cache"):
            self.k, self.k_scale, keys = self._keep(self.k, self.k_scale, k)
        with scope("v_cache"):
            self.v, self.v_scale, values = self._keep(self.v, self.v_scale, v)
        self.layer += 1
        return keys, values

    def results(self) -> tuple[Array, ...]:
        """The keys and the values, as the graph returns them, and their scales if they have any."""
        scales = (scale for scale in (self.k_scale, self.v_scale) if scale is not None)
        return self.k, self.v, *(scale.reshape(scale.shape[:-1]) for scale in scales)

    def _keep(self, cache: Array, scale: Array | None, new: Array) -> tuple[Array, Array | None, Array]:
        """Put `new` [T, K, D] into `cache`, and its scales beside it; returns both, and what is attended to."""
        if scale is None:
            cache, attended = self._write(cache, new)
            return cache, None, attended
        new, own = quantized(new)
        cache, attended = self._write(cache, new)
        scale, own = self._write(scale, own)
        return cache, scale, dequantized(attended, own)

    @abstractmethod
    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        """Put `new` [T, K, D] into `cache`; returns the cache and what is attended to. Scales are a cache whose D is 1."""


@dataclass
class DecodeCache(Cache):
    """Given by the caller, updated in place: this layer's key and value go to slot `position`, of a ring the position's there."""

    position: Array = field(kw_only=True)

    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        _, K, D = new.shape
        zero = jnp.zeros((), jnp.int32)
        start = (jnp.full((), self.layer, jnp.int32), zero, self.position, zero)
        # dynamic_update_slice is bound as it is: the wrapper would add arithmetic for negative indices.
        cache = lax.dynamic_update_slice_p.bind(cache, new.reshape(1, K, 1, D), *start)
        return cache, lax.index_in_dim(cache, self.layer, keepdims=False)


@dataclass
class BatchCache(Cache):
    """Given by the caller, updated in place: each row's key and value go to that row's slot `position`, int32 [B].

    A row at position -1 is idle: its slots stay as they are.
    """

    position: Array = field(kw_only=True)

    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        B, K, D = new.shape
        zero, layer = jnp.zeros((), jnp.int32), jnp.full((), self.layer, jnp.int32)
        for row in range(B):
            position = lax.index_in_dim(self.position, row, keepdims=False)
            start = (layer, jnp.full((), row, jnp.int32), zero, lax.max(position, zero), zero)
            old = lax.dynamic_slice_p.bind(cache, *start, slice_sizes=(1, 1, K, 1, D))
            entry = lax.index_in_dim(new, row).reshape(old.shape)
            entry = lax.select(jnp.broadcast_to(position >= 0, old.shape), entry, old)
            cache = lax.dynamic_update_slice_p.bind(cache, entry, *start)
        return cache, lax.index_in_dim(cache, self.layer, keepdims=False)


@dataclass
class ExtendCache(Cache):
    """Given by the caller, updated in place: the first `length` of the T tokens go to the slots from `position` on, of one row.

    row: None where there is one alone. Padding is not written.
    """

    position: Array = field(kw_only=True)
    length: Array = field(kw_only=True)
    row: Array | None = field(kw_only=True)

    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        (T, K, D), S = new.shape, cache.shape[-2]
        zero, layer = jnp.zeros((), jnp.int32), jnp.full((), self.layer, jnp.int32)
        start = (layer, *([] if self.row is None else [self.row]), zero, zero, zero)
        sizes = (*[1] * (cache.ndim - 3), K, S, D)
        mine = lax.dynamic_slice_p.bind(cache, *start, slice_sizes=sizes)
        token = lax.iota(jnp.int32, S) - self.position  # which of the T goes to each slot
        taken = jnp.broadcast_to(((token >= 0) & (token < self.length))[:, None, None], (S, K, D))
        new = lax.optimization_barrier(new)  # of a slice, IREE 3.13 gathers other rows on CUDA
        tokens = rows(new, lax.clamp(0, token, T - 1)).transpose(1, 0, 2)  # [K, S, D]
        written = lax.select(taken.transpose(1, 0, 2), tokens, mine.reshape(K, S, D))
        cache = lax.dynamic_update_slice_p.bind(cache, written.reshape(sizes), *start)
        return cache, lax.dynamic_slice_p.bind(cache, *start, slice_sizes=sizes).reshape(K, S, D)


@dataclass
class RingExtendCache(ExtendCache):
    """A ring given by the caller: the T tokens attend to what it held before them and to one another; then it keeps the last ones.

    tokens: int32 [W], which of the T goes to each slot, negative where none does.
    """

    tokens: Array = field(kw_only=True)

    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        (T, K, D), W = new.shape, cache.shape[-2]
        zero, layer = jnp.zeros((), jnp.int32), jnp.full((), self.layer, jnp.int32)
        start = (layer, *([] if self.row is None else [self.row]), zero, zero, zero)
        sizes = (*[1] * (cache.ndim - 3), K, W, D)
        old = lax.dynamic_slice_p.bind(cache, *start, slice_sizes=sizes).reshape(K, W, D)
        new = lax.optimization_barrier(new)  # of a slice, IREE 3.13 gathers other rows on CUDA
        keys = jnp.concatenate([old, new.transpose(1, 0, 2)], axis=1)  # [K, W+T, D]
        last = rows(new, lax.clamp(0, self.tokens, T - 1)).transpose(1, 0, 2)  # [K, W, D]
        taken = jnp.broadcast_to((self.tokens >= 0)[None, :, None], (K, W, D))
        written = lax.select(taken, last, old)
        return lax.dynamic_update_slice_p.bind(cache, written.reshape(sizes), *start), keys


@dataclass
class PrefillCache(Cache):
    """Fresh: the T prompt tokens' keys and values, zeros after them."""

    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        mine = new.transpose(1, 0, 2)  # [K, T, D]
        zero = jnp.zeros((), jnp.int32)
        start = (jnp.full((), self.layer, jnp.int32), zero, zero, zero)
        return lax.dynamic_update_slice_p.bind(cache, mine[None], *start), mine


@dataclass
class RingPrefillCache(Cache):
    """A fresh ring: the last of the T prompt tokens' keys and values, zeros where there are fewer.

    tokens: int32 [W], which of the T goes to each slot, negative where none does.
    """

    tokens: Array = field(kw_only=True)

    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        T = len(new)
        new = lax.optimization_barrier(new)  # of a slice, IREE 3.13 gathers other rows on CUDA
        last = rows(new, lax.clamp(0, self.tokens, T - 1)).transpose(1, 0, 2)  # [K, W, D]
        taken = jnp.broadcast_to((self.tokens >= 0)[None, :, None], last.shape)
        kept = lax.select(taken, last, jnp.zeros_like(last))
        zero = jnp.zeros((), jnp.int32)
        start = (jnp.full((), self.layer, jnp.int32), zero, zero, zero)
        return lax.dynamic_update_slice_p.bind(cache, kept[None], *start), new.transpose(1, 0, 2)


@dataclass(frozen=True)
class LayerInputs:
    """What a block is given besides the stream and its weights.

    rope: None where queries and keys are not turned. visible: bool [T, S]. sparse: the MLP is a mixture of experts.
    """

    rope: RopeRows | None
    visible: Array
    cache: Cache
    sparse: bool


# Arrays by their roles: k_cache and v_cache [L, K, S, D], of a batch [L, B, K, S, D], with all layers, or with those that have no
# ring; k_ring and v_ring with W slots in place of S; k_scale and v_scale [L, K, S] of caches in int8.
Caches = dict[str, Array]


def prefill(
    config: Config, head: str, capacity: int, weights: Sequence[Array], tokens: Array, length: Array,
    caches: Caches | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """tokens int32 [T], length int32, caches of zeros, float32 if not given -> (head of row length-1, the caches)."""
    (T,) = tokens.shape
    if caches is None:
        caches = {role: jnp.zeros(shape, jnp.float32) for role, shape in config.cache_shapes(capacity).items()}

    def of_ring(k: Array, v: Array) -> Cache:
        return RingPrefillCache(k, v, tokens=ring_tokens(jnp.zeros((), jnp.int32), length, k.shape[-2]))

    ropes = {rope: rope_rows(prefill_tables(rope, T), rope.interleaved, None, length) for rope in config.ropes}
    masks = _masks(config, T, partial(visible_causal, T))
    held = _caches(config, capacity, caches, PrefillCache, of_ring)
    return _step(config, head, weights, tokens, ropes, masks, held, length)


def extend(
    config: Config, head: str, capacity: int, weights: Sequence[Array], tokens: Array, length: Array, position: Array,
    caches: Caches, row: Array | None = None, total: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """The next tokens int32 [T] of a row, `length` of them, from slot `position` on -> (head of the last, the caches).

    row: of caches [L, B, K, S, D]; None for caches [L, K, S, D]. total: tokens of the whole prompt, where RoPE depends on it.
    """
    (T,), S = tokens.shape, capacity
    positions = lax.min(lax.iota(jnp.int32, T) + position, S - 1)  # padding may have positions that there are none of

    def visible(window: int | None) -> Array:
        if window is not None and "k_ring" in caches:
            return visible_behind_ring(position, T, caches["k_ring"].shape[-2], window)
        return visible_to_positions(positions, S, window)

    def of_ring(k: Array, v: Array) -> Cache:
        return RingExtendCache(k, v, **taken, tokens=ring_tokens(position, length, k.shape[-2]))

    ropes = {rope: rope_rows(prefill_tables(rope, S), rope.interleaved, positions, total) for rope in config.ropes}
    masks = _masks(config, S, visible)
    taken: dict[str, Any] = {"position": position, "length": length, "row": row}
    held = _caches(config, S, caches, partial(ExtendCache, **taken), of_ring)
    return _step(config, head, weights, tokens, ropes, masks, held, length)


def decode(
    config: Config, head: str, capacity: int, weights: Sequence[Array], token: Array, position: Array, caches: Caches
) -> tuple[Array, ...]:
    """token, position int32; caches [L, K, S, D] -> (head, the caches). Positions up to its own are visible.

    Of a batch token, position [B]; caches [L, B, K, S, D] -> (heads, the caches). Each row sees its own positions alone, and one at
    position -1 is idle.
    """
    S, batch = capacity, position.ndim == 1
    own = lax.max(position, 0) if batch else position  # an idle row is computed as if it were at its beginning
    cache = BatchCache if batch else DecodeCache

    def visible(window: int | None) -> Array:
        if window is not None and "k_ring" in caches:
            return visible_in_ring(own, caches["k_ring"].shape[-2], window)
        return visible_to_positions(own, S, window) if batch else visible_to_position(own, S, window)

    def of_ring(k: Array, v: Array) -> Cache:
        return cache(k, v, position=ring_slots(position, k.shape[-2]))

    ropes = {rope: rope_rows(decode_tables(rope, S), rope.interleaved, own, None) for rope in config.ropes}
    masks = _masks(config, S, visible)
    held = _caches(config, S, caches, partial(cache, position=position), of_ring)
    return _step(config, head, weights, token, ropes, masks, held, None)


def _caches(
    config: Config, capacity: int, caches: Caches, cache: Callable[[Array, Array], Cache], ring: Callable[[Array, Array], Cache]
) -> dict[int | None, Cache]:  # fmt: skip
    """Where the layers of each window keep their keys and values: windowed ones in a ring, if there is one, and all others in a cache,
    which comes first.
    """
    made = {
        found: make(caches[k], caches[v])
        for found, make, (k, v) in ((False, cache, CACHES), (True, ring, RINGS)) if k in caches
    }  # fmt: skip
    if scales := [caches[role][..., None] for role in SCALES if role in caches]:
        made[False].k_scale, made[False].v_scale = scales
    of = {window: "k_ring" in caches and effective_window(window, capacity) is not None for window in config.windows}
    return {window: made[of[window]] for window in sorted(of, key=of.__getitem__)}


def _masks(config: Config, keys: int, mask: Callable[[int | None], Array]) -> dict[int | None, Array]:
    """Each window's mask in a graph of so many keys; two that see the same have one."""
    seen = {window: effective_window(window, keys) for window in config.windows}
    masks = {window: mask(window) for window in dict.fromkeys(seen.values())}
    return {window: masks[found] for window, found in seen.items()}


def _step(
    config: Config, head: str, weights: Sequence[Array], tokens: Array, ropes: dict[Rope, RopeRows],
    masks: dict[int | None, Array], caches: dict[int | None, Cache], length: Array | None,
) -> tuple[Array, ...]:  # fmt: skip
    """What all phases do with their tokens int32 [T], or one scalar. length: of a prompt, whose last token has the head.

    It computes in the type of its caches, or of their scales.
    """
    w = Weights(dict(zip(weight_shapes(config), weights, strict=True)))
    with scope("embed_tokens"):
        table, zero = w["model.embed_tokens.weight"], jnp.zeros((), jnp.int32)
        one = (1, config.hidden_size)
        x = rows(table, tokens) if tokens.ndim else lax.dynamic_slice(table, (tokens, zero), one)  # [T, E], or [1, E]
        cache = next(iter(caches.values()))
        compute = (cache.k if cache.k_scale is None else cache.k_scale).dtype
        x = scaled(x, config.embedding_multiplier).astype(compute)
    x = _blocks(config, x, w, ropes, masks, caches)
    if length is not None:
        x = lax.dynamic_slice(x, (length - 1, zero), (1, config.hidden_size))  # [1, E]
    shape = () if length is not None else tokens.shape
    held = {id(cache): cache for cache in caches.values()}.values()
    return _head(config, head, x, w, shape), *(found for cache in held for found in cache.results())


def _architecture(config: Config) -> Any:
    return importlib.import_module(f"hloracle.reference.oracle.architectures.{config.architecture}")


def _blocks(
    config: Config, x: Array, w: Weights, ropes: dict[Rope, RopeRows], masks: dict[int | None, Array],
    caches: dict[int | None, Cache],
) -> Array:  # fmt: skip
    """x [T, E] -> [T, E]"""
    block, model = _architecture(config).block, w.inside("model")
    for i, layer in enumerate(config.layers):
        given = LayerInputs(
            ropes[layer.rope] if layer.rope else None, masks[layer.window], caches[layer.window], layer.sparse
        )
        with scope(f"layers.{i}"):
            x = block(x, model.inside(f"layers.{i}"), given, config)
    return x


def _head(config: Config, head: str, x: Array, w: Weights, rows: tuple[int, ...]) -> Array:
    """x [B, E] -> logits [B, V], or the tokens [B]; of one row, [V] or a scalar: `rows` is empty."""
    with scope("norm"):
        x = _architecture(config).norm(x, w.inside("model.norm"), config)
    with scope("lm_head"):
        weight = w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        logits = scaled(linear(wide(x), weight).reshape(*rows, config.vocab_size), config.logits_multiplier)  # [V]
        if config.final_logit_softcapping is not None:
            logits = soft_cap(logits, config.final_logit_softcapping)
    if head == "logits":
        return logits
    with scope("token"):
        return argmax(logits)
