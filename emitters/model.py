"""The frame that every decoder-only model shares: embed, blocks, norm, head; as prefill or decode.

Weights are arguments under the checkpoint's own names.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hloracle.core.abi import Graph
from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import LayerBuilder, RopeRows
from hloracle.emitters.matrix import FusedPart, Matrix
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import effective_window, graph_abi, graph_name
from hloracle.reference.model.encodings import ENCODINGS, Layout
from hloracle.reference.model.rope import decode_tables, prefill_tables
from hloracle.reference.model.weights import parts_in, taken_shapes, weight_shapes


@dataclass(frozen=True)
class Weights:
    """The weights by name, seen from inside a module: `prefix` is that module's path.

    One that is a Matrix is for products and look-ups only, one that is FusedPart for products: see `MatrixBuilder`.
    """

    values: dict[str, Any]
    prefix: str = ""

    def inside(self, name: str) -> Weights:
        """The weights seen from inside a submodule."""
        return Weights(self.values, f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Any:
        return self.values[self.prefix + name]

    def get(self, name: str) -> Value | None:
        """A weight that not every model has."""
        return self.values.get(self.prefix + name)

    def linear(self, name: str) -> tuple[Value | Matrix | FusedPart, Value | None]:
        """The projection's weight, and its bias if this model has one."""
        return self[f"{name}.weight"], self.get(f"{name}.bias")


@dataclass
class Cache(ABC):
    """The keys and values of all layers, [L, K, S, D] each; `layer` is the next one to write."""

    k: Value
    v: Value
    layer: int = 0

    def update(self, b: LayerBuilder, k: Value, v: Value) -> tuple[Value, Value]:
        """k, v [T, K, D] -> what the layer's queries attend to, [K, S, D]; in prefill, [K, T, D]."""
        with b.scope("k_cache"):
            self.k, keys = self._write(b, self.k, k)
        with b.scope("v_cache"):
            self.v, values = self._write(b, self.v, v)
        self.layer += 1
        return keys, values

    def results(self) -> list[Value]:
        """k_cache and v_cache, as the graph returns them."""
        return [self.k, self.v]

    @abstractmethod
    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        """Put `new` [T, K, D] into `cache`; returns the cache and what is attended to."""


@dataclass
class DecodeCache(Cache):
    """Given by the caller, updated in place: this layer's key and value go to slot `position`.

    numbers: i32 [L], those of the layers.
    """

    position: Value = field(kw_only=True)
    numbers: Value = field(kw_only=True)

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        (_, K, D), (_, _, S, _) = new.shape, cache.shape
        zero, layer = b.i32(0), b.reshape(b.dynamic_slice(self.numbers, (b.i32(self.layer),), (1,)), ())
        new = b.reshape(new, (1, K, 1, D))
        cache = b.dynamic_update_slice(cache, new, (layer, zero, self.position, zero))
        mine = b.dynamic_slice(cache, (layer, zero, zero, zero), (1, K, S, D))
        return cache, b.reshape(mine, (K, S, D))


@dataclass
class DecodeCacheOnDevice(Cache):
    """The same, by an index that the device computes. Rows of D are what is addressed: [L*K*S, D]."""

    position: Value = field(kw_only=True)

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        (_, K, D), (L, _, S, _) = new.shape, cache.shape
        heads = b.multiply(b.iota((K, 1), "i32"), b.i32(S, (K, 1)))
        first = b.add(heads, b.i32(self.layer * K * S, (K, 1)))  # of this layer's slots, for each head
        at = b.add(first, b.broadcast_in_dim(self.position, (K, 1), ()))
        rows = b.scatter_rows(b.reshape(cache, (L * K * S, D)), at, b.reshape(new, (K, D)))
        cache = b.reshape(rows, cache.shape)
        mine = b.slice(cache, (self.layer, 0, 0, 0), (self.layer + 1, K, S, D))
        return cache, b.reshape(mine, (K, S, D))


@dataclass
class PrefillCache(Cache):
    """Fresh: the T prompt tokens' keys and values, zeros after them."""

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        mine = b.transpose(new, (1, 0, 2))  # [K, T, D]
        zero, layer = b.i32(0), b.i32(self.layer)
        return b.dynamic_update_slice(cache, b.reshape(mine, (1, *mine.shape)), (layer, zero, zero, zero)), mine


@dataclass(frozen=True)
class LayerInputs:
    """What a block is given besides the stream and its weights.

    rope: None where queries and keys are not turned. visible: i1 [T, S] or [S]. sparse: the MLP is a mixture of experts.
    """

    rope: RopeRows | None
    visible: Value
    cache: Cache
    sparse: bool


def _weight(name: str, shape: tuple[int, ...], encoding: str | None, named: dict[str, Value]) -> Value | Matrix:
    """A weight from the graph's arguments."""
    if not encoding:
        return named[name]
    return Matrix(shape, encoding, tuple(named[part] for part in ENCODINGS[encoding].arguments(name)))


def _weights(config: Config, layout: Layout, named: dict[str, Value]) -> Weights:
    """All weights, those that are fused by their parts' own names."""
    shapes = weight_shapes(config)
    values: dict[str, Value | Matrix | FusedPart] = {}
    for name, shape in taken_shapes(config, layout).items():
        weight = _weight(name, shape, layout.get(name), named)
        parts = parts_in(name)
        if len(parts) == 1:
            values[name] = weight
            continue
        assert isinstance(weight, Matrix), "only what is encoded is fused"
        start = 0
        for part in parts:
            values[part] = FusedPart(weight, start, start + shapes[part][0])
            start += shapes[part][0]
    return Weights(values)


@dataclass(frozen=True)
class Emitter:
    """Writes production graphs. See `MatrixBuilder` for gemm and on_device."""

    gemm: str | None = None
    on_device: bool = False

    def emit(
        self, config: Config, phase: str, head: str = "token", capacity: int = 256, bucket: int = 0,
        layout: Layout | None = None,
    ) -> Graph:  # fmt: skip
        """The production graph of one phase, with its ABI. See `reference/model/contract.py` for the arguments."""
        abi = graph_abi(config, phase, head, capacity, bucket, layout)
        b = LayerBuilder(self.gemm, self.on_device)
        arguments = [b.argument(TensorType(a.shape, a.dtype), a.name) for a in abi.arguments]
        named = {a.name: value for a, value in zip(abi.arguments, arguments, strict=True)}
        weights = _weights(config, layout or {}, named)
        block, model = _architecture(config).block, weights.inside("model")

        if phase == "prefill":
            k, v = (b.f32(0.0, shape) for shape in config.cache_shapes(capacity).values())
            cache: Cache = PrefillCache(k, v)
            tables, start, length = {r: prefill_tables(r, bucket) for r in config.ropes}, None, named["length"]
            keys, mask = bucket, partial(b.visible_causal, bucket)
        else:
            caches, position = (named["k_cache"], named["v_cache"]), named["position"]
            if self.on_device:
                cache = DecodeCacheOnDevice(*caches, position=position)
            else:
                cache = DecodeCache(*caches, position=position, numbers=b.layer_numbers(len(config.layers), position))
            tables, start, length = {r: decode_tables(r, capacity) for r in config.ropes}, named["position"], None
            keys, mask = capacity, partial(b.visible_to_position, named["position"], capacity)
        seen = {window: effective_window(window, keys) for window in config.windows}
        masks = {window: mask(window) for window in dict.fromkeys(seen.values())}
        ropes = {rope: b.rope_rows(found, rope.interleaved, start, length) for rope, found in tables.items()}

        with b.scope("embed_tokens"):
            table = model["embed_tokens.weight"]
            if phase == "prefill":
                x = b.rows(table, b.reshape(named["tokens"], (bucket, 1)))  # [T, E]
            else:
                x = b.row(table, named["token"])  # [1, E]
            x = b.scaled(x, config.embedding_multiplier)
        for i, layer in enumerate(config.layers):
            rope = ropes[layer.rope] if layer.rope else None
            given = LayerInputs(rope, masks[seen[layer.window]], cache, layer.sparse)
            with b.scope(f"layers.{i}"):
                x = block(b, x, model.inside(f"layers.{i}"), given, config)
        if phase == "prefill":
            x = b.looked_up(x, b.subtract(named["length"], b.i32(1)))  # [1, E]
        results = [_head(b, config, head, x, weights), *cache.results()]
        return replace(b.graph(graph_name(config, phase, head, bucket), abi, results), on_device=self.on_device)


def _architecture(config: Config) -> Any:
    return importlib.import_module(f"hloracle.emitters.architectures.{config.architecture}")


def _head(b: LayerBuilder, config: Config, head: str, x: Value, w: Weights) -> Value:
    """x [1, E] -> logits [V], or the token"""
    with b.scope("norm"):
        x = _architecture(config).norm(b, x, w.inside("model.norm"), config)
    with b.scope("lm_head"):
        weight = w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        logits = b.scaled(b.reshape(b.linear(x, weight), (config.vocab_size,)), config.logits_multiplier)  # [V]
        if config.final_logit_softcapping is not None:
            logits = b.soft_cap(logits, config.final_logit_softcapping)
    if head == "logits":
        return logits
    with b.scope("token"):
        return b.argmax(logits)


# The graphs of a processor, which compute every product themselves.
emit = Emitter().emit
