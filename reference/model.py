"""The frame that every decoder-only model shares: embed, blocks, norm, head; as prefill or decode; in JAX.

Mirrors `emitters/model.py`. The contract is `contract.py`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp
from jax import Array, lax

from hloracle.reference.config import Config, weight_shapes
from hloracle.reference.layers import (
    RopeRows,
    argmax,
    linear,
    rms_norm,
    rope_rows,
    scope,
    visible_causal,
    visible_to_position,
)
from hloracle.reference.rope import rope_tables


@dataclass(frozen=True)
class Weights:
    """The weights by name, seen from inside a module: `prefix` is that module's path."""

    values: dict[str, Array]
    prefix: str = ""

    def inside(self, name: str) -> Weights:
        return Weights(self.values, f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Array:
        return self.values[self.prefix + name]

    def linear(self, name: str) -> tuple[Array, Array | None]:
        """The projection's weight, and its bias if this model has one."""
        return self[f"{name}.weight"], self.values.get(f"{self.prefix}{name}.bias")


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


def prefill(
    config: Config, head: str, capacity: int, weights: Sequence[Array], tokens: Array, length: Array
) -> tuple[Array, Array, Array]:
    """tokens int32 [T], length int32 -> (head of row length-1, k_cache, v_cache [L, K, S, D])."""
    (T,) = tokens.shape
    zeros = jnp.zeros((config.num_hidden_layers, config.num_key_value_heads, capacity, config.head_dim), jnp.float32)
    cache = PrefillCache(zeros, zeros)
    rope = rope_rows(rope_tables(config.rope, config.head_dim, capacity), None, T)
    visible = visible_causal(T)
    w = _named(config, weights)
    with scope("embed_tokens"):
        table = w["model.embed_tokens.weight"]
        x = table.at[tokens].get(mode="promise_in_bounds", wrap_negative_indices=False)  # [T, E]
    x = _blocks(config, x, w, rope, cache, visible)
    x = lax.dynamic_slice(x, (length - 1, jnp.zeros((), jnp.int32)), (1, config.hidden_size))  # [1, E]
    return _head(config, head, x, w), *cache.results()


def decode(
    config: Config,
    head: str,
    weights: Sequence[Array],
    token: Array,
    position: Array,
    k_cache: Array,
    v_cache: Array,
) -> tuple[Array, Array, Array]:
    """token, position int32; caches [L, K, S, D] -> (head, k_cache, v_cache). Slots 0..position are visible."""
    capacity = k_cache.shape[2]
    cache = DecodeCache(k_cache, v_cache, position=position)
    rope = rope_rows(rope_tables(config.rope, config.head_dim, capacity), position, 1)
    visible = visible_to_position(position, capacity)
    w = _named(config, weights)
    with scope("embed_tokens"):
        table = w["model.embed_tokens.weight"]
        x = lax.dynamic_slice(table, (token, jnp.zeros((), jnp.int32)), (1, config.hidden_size))  # [1, E]
    x = _blocks(config, x, w, rope, cache, visible)
    return _head(config, head, x, w), *cache.results()


def _named(config: Config, weights: Sequence[Array]) -> Weights:
    return Weights(dict(zip(weight_shapes(config), weights, strict=True)))


def _blocks(config: Config, x: Array, w: Weights, rope: RopeRows, cache: Cache, visible: Array) -> Array:
    """x [T, E] -> [T, E]"""
    architecture = importlib.import_module(f"hloracle.reference.{config.model_type}")
    model = w.inside("model")
    for layer in range(config.num_hidden_layers):
        with scope(f"layers.{layer}"):
            x = architecture.block(x, model.inside(f"layers.{layer}"), rope, cache, visible, config)
    return x


def _head(config: Config, head: str, x: Array, w: Weights) -> Array:
    """x [1, E] -> logits [V], or the token"""
    with scope("norm"):
        x = rms_norm(x, w["model.norm.weight"], config.rms_norm_eps)
    with scope("lm_head"):
        weight = w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        logits = linear(x, weight).reshape(config.vocab_size)  # [V]
    if head == "logits":
        return logits
    with scope("token"):
        return argmax(logits)
