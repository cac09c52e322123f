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

from hloracle.reference.model.config import Config, Rope
from hloracle.reference.model.contract import effective_window
from hloracle.reference.model.rope import decode_tables, prefill_tables
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle.layers import (
    RopeRows,
    argmax,
    linear,
    rope_rows,
    rows,
    scaled,
    scope,
    soft_cap,
    visible_causal,
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
    """The keys and values of all layers, [L, K, S, D] each, of a batch [L, B, K, S, D]; `layer` is the next one to write."""

    k: Array
    v: Array
    layer: int = 0

    def update(self, k: Array, v: Array) -> tuple[Array, Array]:
        """k, v [T, K, D] -> what the layer's queries attend to, [K, S, D]; in prefill, [K, T, D].

        In a decode of a batch each query is of another row, and what they attend to is [B, K, S, D].
        """
        with scope("k_cache"):
            self.k, keys = self._write(self.k, k)
        with scope("v_cache"):
            self.v, values = self._write(self.v, v)
        self.layer += 1
        return keys, values

    def results(self) -> tuple[Array, Array]:
        """k_cache and v_cache, as the graph returns them."""
        return self.k, self.v

    @abstractmethod
    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        """Put `new` [T, K, D] into `cache`; returns the cache and what is attended to."""


@dataclass
class DecodeCache(Cache):
    """Given by the caller, updated in place: this layer's key and value go to slot `position`."""

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
class PrefillCache(Cache):
    """Fresh: the T prompt tokens' keys and values, zeros after them."""

    def _write(self, cache: Array, new: Array) -> tuple[Array, Array]:
        mine = new.transpose(1, 0, 2)  # [K, T, D]
        zero = jnp.zeros((), jnp.int32)
        start = (jnp.full((), self.layer, jnp.int32), zero, zero, zero)
        return lax.dynamic_update_slice_p.bind(cache, mine[None], *start), mine


@dataclass(frozen=True)
class LayerInputs:
    """What a block is given besides the stream and its weights.

    rope: None where queries and keys are not turned. visible: bool [T, S]. sparse: the MLP is a mixture of experts.
    """

    rope: RopeRows | None
    visible: Array
    cache: Cache
    sparse: bool


def prefill(
    config: Config, head: str, capacity: int, weights: Sequence[Array], tokens: Array, length: Array,
    compute: Any = jnp.float32,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """tokens int32 [T], length int32 -> (head of row length-1, k_cache, v_cache [L, K, S, D] of the type it computes in)."""
    (T,) = tokens.shape
    k, v = (jnp.zeros(shape, compute) for shape in config.cache_shapes(capacity).values())
    ropes = {rope: rope_rows(prefill_tables(rope, T), rope.interleaved, None, length) for rope in config.ropes}
    masks = _masks(config, T, partial(visible_causal, T))
    return _step(config, head, weights, tokens, ropes, masks, PrefillCache(k, v), length)


def extend(
    config: Config, head: str, weights: Sequence[Array], tokens: Array, length: Array, position: Array,
    caches: tuple[Array, Array], row: Array | None = None, total: Array | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The next tokens int32 [T] of a row, `length` of them, from slot `position` on -> (head of the last, k_cache, v_cache).

    row: of caches [L, B, K, S, D]; None for caches [L, K, S, D]. total: tokens of the whole prompt, where RoPE depends on it.
    """
    (T,), S = tokens.shape, caches[0].shape[-2]
    positions = lax.min(lax.iota(jnp.int32, T) + position, S - 1)  # padding may have positions that there are none of
    ropes = {rope: rope_rows(prefill_tables(rope, S), rope.interleaved, positions, total) for rope in config.ropes}
    masks = _masks(config, S, partial(visible_to_positions, positions, S))
    cache = ExtendCache(*caches, position=position, length=length, row=row)
    return _step(config, head, weights, tokens, ropes, masks, cache, length)


def decode(
    config: Config, head: str, weights: Sequence[Array], token: Array, position: Array, caches: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """token, position int32; k_cache and v_cache [L, K, S, D] -> (head, k_cache, v_cache). Slots 0..position are visible."""
    S = caches[0].shape[2]
    ropes = {rope: rope_rows(decode_tables(rope, S), rope.interleaved, position, None) for rope in config.ropes}
    masks = _masks(config, S, partial(visible_to_position, position, S))
    return _step(config, head, weights, token, ropes, masks, DecodeCache(*caches, position=position), None)


def decode_batch(
    config: Config, head: str, weights: Sequence[Array], token: Array, position: Array, caches: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """token, position int32 [B]; k_cache and v_cache [L, B, K, S, D] -> (heads, k_cache, v_cache).

    Slots 0..position of its own row are visible to each. A row at position -1 is idle.
    """
    S = caches[0].shape[-2]
    positions = lax.max(position, 0)  # an idle row is computed as if it were at its beginning
    ropes = {rope: rope_rows(decode_tables(rope, S), rope.interleaved, positions, None) for rope in config.ropes}
    masks = _masks(config, S, partial(visible_to_positions, positions, S))
    return _step(config, head, weights, token, ropes, masks, BatchCache(*caches, position=position), None)


def _masks(config: Config, keys: int, mask: Callable[[int | None], Array]) -> dict[int | None, Array]:
    """Each window's mask in a graph of so many keys; two that see the same have one."""
    seen = {window: effective_window(window, keys) for window in config.windows}
    masks = {window: mask(window) for window in dict.fromkeys(seen.values())}
    return {window: masks[found] for window, found in seen.items()}


def _step(
    config: Config, head: str, weights: Sequence[Array], tokens: Array, ropes: dict[Rope, RopeRows],
    masks: dict[int | None, Array], cache: Cache, length: Array | None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """What all phases do with their tokens int32 [T], or one scalar. length: of a prompt, whose last token has the head.

    It computes in the type of its caches.
    """
    w = Weights(dict(zip(weight_shapes(config), weights, strict=True)))
    with scope("embed_tokens"):
        table, zero = w["model.embed_tokens.weight"], jnp.zeros((), jnp.int32)
        one = (1, config.hidden_size)
        x = rows(table, tokens) if tokens.ndim else lax.dynamic_slice(table, (tokens, zero), one)  # [T, E], or [1, E]
        x = scaled(x, config.embedding_multiplier).astype(cache.k.dtype)
    x = _blocks(config, x, w, ropes, masks, cache)
    if length is not None:
        x = lax.dynamic_slice(x, (length - 1, zero), (1, config.hidden_size))  # [1, E]
    shape = () if length is not None else tokens.shape
    return _head(config, head, x, w, shape), *cache.results()


def _architecture(config: Config) -> Any:
    return importlib.import_module(f"hloracle.reference.oracle.architectures.{config.architecture}")


def _blocks(
    config: Config, x: Array, w: Weights, ropes: dict[Rope, RopeRows], masks: dict[int | None, Array], cache: Cache
) -> Array:
    """x [T, E] -> [T, E]"""
    block, model = _architecture(config).block, w.inside("model")
    for i, layer in enumerate(config.layers):
        given = LayerInputs(ropes[layer.rope] if layer.rope else None, masks[layer.window], cache, layer.sparse)
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
