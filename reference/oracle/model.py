"""The frame that every decoder-only model shares: embed, blocks, norm, head; as prefill or decode; in JAX.

Mirrors `emitters/model.py`. The contract is `contract.py`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    scope,
    soft_cap,
    visible_causal,
    visible_to_position,
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
    """The keys and values of all layers, [L, K, S, D] each; `layer` is the next one to write."""

    k: Array
    v: Array
    layer: int = 0

    def update(self, k: Array, v: Array) -> tuple[Array, Array]:
        """k, v [T, K, D] -> what the layer's queries attend to, [K, S, D]; in prefill, [K, T, D]."""
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
    config: Config, head: str, capacity: int, weights: Sequence[Array], tokens: Array, length: Array
) -> tuple[Array, Array, Array]:
    """tokens int32 [T], length int32 -> (head of row length-1, k_cache, v_cache [L, K, S, D])."""
    (T,) = tokens.shape
    k, v = (jnp.zeros(shape, jnp.float32) for shape in config.cache_shapes(capacity).values())
    cache = PrefillCache(k, v)
    ropes = {rope: rope_rows(prefill_tables(rope, T), rope.interleaved, None, length) for rope in config.ropes}
    seen = {window: effective_window(window, T) for window in config.windows}
    masks = {window: visible_causal(T, window) for window in dict.fromkeys(seen.values())}
    w = Weights(dict(zip(weight_shapes(config), weights, strict=True)))
    with scope("embed_tokens"):
        x = _scaled(rows(w["model.embed_tokens.weight"], tokens), config.embedding_multiplier)  # [T, E]
    x = _blocks(config, x, w, ropes, {window: masks[found] for window, found in seen.items()}, cache)
    x = lax.dynamic_slice(x, (length - 1, jnp.zeros((), jnp.int32)), (1, config.hidden_size))  # [1, E]
    return _head(config, head, x, w), *cache.results()


def decode(
    config: Config, head: str, weights: Sequence[Array], token: Array, position: Array, caches: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """token, position int32; k_cache and v_cache [L, K, S, D] -> (head, k_cache, v_cache). Slots 0..position are visible."""
    capacity = caches[0].shape[2]
    cache = DecodeCache(*caches, position=position)
    ropes = {rope: rope_rows(decode_tables(rope, capacity), rope.interleaved, position, None) for rope in config.ropes}
    seen = {window: effective_window(window, capacity) for window in config.windows}
    masks = {window: visible_to_position(position, capacity, window) for window in dict.fromkeys(seen.values())}
    w = Weights(dict(zip(weight_shapes(config), weights, strict=True)))
    with scope("embed_tokens"):
        table = w["model.embed_tokens.weight"]
        x = lax.dynamic_slice(table, (token, jnp.zeros((), jnp.int32)), (1, config.hidden_size))  # [1, E]
        x = _scaled(x, config.embedding_multiplier)
    x = _blocks(config, x, w, ropes, {window: masks[found] for window, found in seen.items()}, cache)
    return _head(config, head, x, w), *cache.results()


def _scaled(x: Array, factor: float) -> Array:
    return x if factor == 1 else x * factor


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


def _head(config: Config, head: str, x: Array, w: Weights) -> Array:
    """x [1, E] -> logits [V], or the token"""
    with scope("norm"):
        x = _architecture(config).norm(x, w.inside("model.norm"), config)
    with scope("lm_head"):
        weight = w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        logits = _scaled(linear(x, weight).reshape(config.vocab_size), config.logits_multiplier)  # [V]
        if config.final_logit_softcapping is not None:
            logits = soft_cap(logits, config.final_logit_softcapping)
    if head == "logits":
        return logits
    with scope("token"):
        return argmax(logits)
