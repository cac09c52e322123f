"""The frame that every decoder-only model shares: embed, blocks, norm, head; as prefill, extend or decode.

Weights are arguments under the checkpoint's own names.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hloracle.core.abi import CACHES, RINGS, SCALES, Abi, Graph
from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import BLOCK, LayerBuilder, RopeRows, Visible
from hloracle.emitters.matrix import FusedPart, Matrix
from hloracle.reference.model.config import Config, Rope
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
    """The keys and values of some layers, [L, K, S, D] each, of a batch [L, B, K, S, D]; `layer` is the next one to write.

    They are those of all layers, or of all that have a window, or of the others. A ring is a cache whose S is the W of a ring.
    k_scale, v_scale: of keys and values in int8, [L, K, S, 1] each, of a batch [L, B, K, S, 1].
    """

    k: Value
    v: Value
    layer: int = 0
    k_scale: Value | None = None
    v_scale: Value | None = None

    def update(self, b: LayerBuilder, k: Value, v: Value) -> tuple[Value, Value]:
        """k, v [T, K, D] -> what the layer's queries attend to, [K, S, D]; in prefill, [K, T, D]; in extend, of a ring, [K, W+T, D].

        In a decode of a batch each query is of another row, and what they attend to is [B, K, S, D].
        """
        with b.scope("k_cache"):
            self.k, self.k_scale, keys = self._keep(b, self.k, self.k_scale, k)
        with b.scope("v_cache"):
            self.v, self.v_scale, values = self._keep(b, self.v, self.v_scale, v)
        self.layer += 1
        return keys, values

    def results(self) -> list[Value]:
        """The keys and the values, and their scales if they have any, in the graph's order."""
        return [self.k, self.v, *(scale for scale in (self.k_scale, self.v_scale) if scale is not None)]

    def _keep(
        self, b: LayerBuilder, cache: Value, scale: Value | None, new: Value
    ) -> tuple[Value, Value | None, Value]:  # fmt: skip
        """Put `new` [T, K, D] into `cache`, and its scales beside it; returns both, and what is attended to."""
        if scale is None:
            cache, attended = self._write(b, cache, new)
            return cache, None, attended
        new, own = b.quantized(new)
        cache, attended = self._write(b, cache, new)
        scale, own = self._write(b, scale, own)
        return cache, scale, b.dequantized(attended, own)

    @abstractmethod
    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        """Put `new` [T, K, D] into `cache`; returns the cache and what is attended to. Scales are a cache whose D is 1."""


@dataclass
class DecodeCache(Cache):
    """Given by the caller, updated in place: this layer's key and value go to slot `position`, of a ring the position's there.

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
class BatchCache(Cache):
    """Given by the caller, updated in place: each row's key and value go to that row's slot `position`, i32 [B].

    A row at position -1 is idle: its slots stay as they are. numbers: i32 [L], those of the layers. Rows of D are what is
    addressed.
    """

    position: Value = field(kw_only=True)
    numbers: Value = field(kw_only=True)
    held: dict[str, Value] = field(default_factory=dict)  # of a cache, by its name as it is now: see `_held`

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        (_, K, D), (L, B, _, S, _) = new.shape, cache.shape
        layer = b.dynamic_slice(self.numbers, (b.i32(self.layer),), (1,))
        held = self.held.pop(cache.name, None) or self._held(b, cache)
        taken = b.over_first(b.compare(self.position, b.i32(0, (B,)), "GE"), (B, K, D))
        new = b.select(taken, new, b.reshape(b.looked_up(held, b.reshape(layer, ())), (B, K, D)))
        rows = b.reshape(cache, (L * B * K * S, D))
        rows = b.scatter_rows(rows, self._slots(b, layer, cache), b.reshape(new, (B * K, D)))
        cache = b.reshape(rows, cache.shape)
        self.held[cache.name] = held
        if b.on_device:
            mine = b.slice(cache, (self.layer, 0, 0, 0, 0), (self.layer + 1, B, K, S, D))
        else:
            mine = b.looked_up(b.reshape(cache, (L, B * K, S, D)), b.reshape(layer, ()))
        return cache, b.reshape(mine, (B, K, S, D))

    def _held(self, b: LayerBuilder, cache: Value) -> Value:
        """What is in each row's slot in all layers, which an idle row writes there again: [L, B, K, D].

        Read before any layer is written: IREE 3.13 would read it in the dispatch that writes, and refuse that. With a barrier in each
        layer instead, it would wait for each.
        """
        L, B, K, S, D = cache.shape
        numbers = b.slice(self.numbers, (0,), (L,))
        held = b.gather_rows(b.reshape(cache, (L * B * K * S, D)), self._slots(b, numbers, cache))
        return b.reshape(b.optimization_barrier(held), (L, B, K, D))

    def _slots(self, b: LayerBuilder, numbers: Value, cache: Value) -> Value:
        """Which of all rows of D are those at each row's position, in the layers of these numbers: i32 [N*B*K, 1]"""
        (N,), (_, B, K, S, _) = numbers.shape, cache.shape
        shape = (N, B, K)
        layer = b.broadcast_in_dim(b.multiply(numbers, b.i32(B * K * S, (N,))), shape, (0,))
        head = b.broadcast_in_dim(b.multiply(b.iota((B * K,), "i32"), b.i32(S, (B * K,))), (N, B * K), (1,))
        position = b.broadcast_in_dim(b.maximum(self.position, b.i32(0, (B,))), shape, (1,))
        at = b.add(b.add(layer, b.reshape(head, shape)), position)
        return b.reshape(at, (N * B * K, 1))


@dataclass
class ExtendCache(Cache):
    """Given by the caller, updated in place: the first `length` of the T tokens go to the slots from `position` on, of one row.

    row: None where there is one alone. numbers: i32 [L], those of the layers. Padding is not written, so that it needs no slots.
    Rows of D are what is addressed.
    """

    position: Value = field(kw_only=True)
    length: Value = field(kw_only=True)
    row: Value | None = field(kw_only=True)
    numbers: Value = field(kw_only=True)

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        (T, K, D), (S, _) = new.shape, cache.shape[-2:]
        mine = self._mine(b, cache)
        # T slots that are all there: where fewer are left, they begin before the first token's.
        start = b.minimum(self.position, b.i32(S - T))
        token = b.subtract(b.iota((T,), "i32"), b.over_first(b.subtract(self.position, start), (T,)))  # of each slot
        taken = b.and_(b.compare(token, b.i32(0, (T,)), "GE"), b.compare(token, b.over_first(self.length, (T,)), "LT"))
        if b.on_device:  # of a slice IREE 3.13 gathers other rows there
            new = b.optimization_barrier(new)
        new = b.gather_rows(new, b.reshape(b.maximum(token, b.i32(0, (T,))), (T, 1)))  # [T, K, D]
        first = b.add(start, b.multiply(mine, b.i32(K * S)))
        at = b.add(b.multiply(b.iota((K, T), "i32", 0), b.i32(S, (K, T))), b.iota((K, T), "i32", 1))
        at = b.reshape(b.add(at, b.over_first(first, (K, T))), (K * T, 1))
        rows = b.reshape(cache, (math.prod(cache.shape[:-1]), D))
        old = b.reshape(b.gather_rows(rows, at), (K, T, D))
        # IREE 3.13 would read the old rows in the dispatch that writes the new ones, and refuse it.
        new = b.select(b.broadcast_in_dim(taken, (K, T, D), (1,)), b.transpose(new, (1, 0, 2)), old)
        new = b.optimization_barrier(new)
        cache = b.reshape(b.scatter_rows(rows, at, b.reshape(new, (K * T, D))), cache.shape)
        by_row = b.reshape(cache, (math.prod(cache.shape[:-3]), K, S, D))
        return cache, b.reshape(b.looked_up(by_row, mine), (K, S, D))

    def _mine(self, b: LayerBuilder, cache: Value) -> Value:
        """The number of the row in this layer among those of all layers: a scalar."""
        layer = b.reshape(b.dynamic_slice(self.numbers, (b.i32(self.layer),), (1,)), ())
        return layer if self.row is None else b.add(b.multiply(layer, b.i32(cache.shape[1])), self.row)


@dataclass
class RingExtendCache(ExtendCache):
    """A ring given by the caller: the T tokens attend to what it held before them and to one another; then it keeps the last ones.

    tokens: i32 [W], which of the T goes to each slot, negative where none does.
    """

    tokens: Value = field(kw_only=True)

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        (_, K, D), (W, _) = new.shape, cache.shape[-2:]
        mine, of_heads = self._mine(b, cache), (math.prod(cache.shape[:-3]), K, W, D)
        old = b.reshape(b.looked_up(b.reshape(cache, of_heads), mine), (K, W, D))
        if b.on_device:  # of a slice IREE 3.13 gathers other rows there
            new = b.optimization_barrier(new)
        # What is read of the ring is read before it is written to.
        keys = b.optimization_barrier(b.concatenate([old, b.transpose(new, (1, 0, 2))], 1))  # [K, W+T, D]
        taken = b.compare(self.tokens, b.i32(0, (W,)), "GE")
        last = b.gather_rows(new, b.reshape(b.maximum(self.tokens, b.i32(0, (W,))), (W, 1)))  # [W, K, D]
        kept = b.select(b.broadcast_in_dim(taken, (K, W, D), (1,)), b.transpose(last, (1, 0, 2)), b.part(keys, 1, 0, W))
        kept = b.reshape(b.optimization_barrier(kept), (K * W, D))
        first = b.multiply(mine, b.i32(K * W))
        at = b.add(b.iota((K * W, 1), "i32"), b.over_first(first, (K * W, 1)))
        rows = b.scatter_rows(b.reshape(cache, (math.prod(cache.shape[:-1]), D)), at, kept)
        return b.reshape(rows, cache.shape), keys


@dataclass
class PrefillCache(Cache):
    """Fresh: the T prompt tokens' keys and values, zeros after them."""

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        mine = b.transpose(new, (1, 0, 2))  # [K, T, D]
        zero, layer = b.i32(0), b.i32(self.layer)
        return b.dynamic_update_slice(cache, b.reshape(mine, (1, *mine.shape)), (layer, zero, zero, zero)), mine


@dataclass
class RingPrefillCache(Cache):
    """A fresh ring: the last of the T prompt tokens' keys and values, zeros where there are fewer.

    tokens: i32 [W], which of the T goes to each slot, negative where none does.
    """

    tokens: Value = field(kw_only=True)

    def _write(self, b: LayerBuilder, cache: Value, new: Value) -> tuple[Value, Value]:
        (_, K, D), (W, _) = new.shape, cache.shape[-2:]
        if b.on_device:  # of a slice IREE 3.13 gathers other rows there
            new = b.optimization_barrier(new)
        last = b.gather_rows(new, b.reshape(b.maximum(self.tokens, b.i32(0, (W,))), (W, 1)))  # [W, K, D]
        taken = b.compare(self.tokens, b.i32(0, (W,)), "GE")
        last = b.select(b.over_first(taken, last.shape), last, b.constant(0.0, b.compute, last.shape))
        kept = b.reshape(b.transpose(last, (1, 0, 2)), (1, K, W, D))
        zero, layer = b.i32(0), b.i32(self.layer)
        return b.dynamic_update_slice(cache, kept, (layer, zero, zero, zero)), b.transpose(new, (1, 0, 2))


@dataclass(frozen=True)
class LayerInputs:
    """What a block is given besides the stream and its weights.

    rope: None where queries and keys are not turned. visible: which keys each query sees. sparse: the MLP is a mixture of
    experts.
    """

    rope: RopeRows | None
    visible: Visible
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
        layout: Layout | None = None, batch: int = 1, compute: str = "f32", ring: bool = False, kv: str = "compute",
    ) -> Graph:  # fmt: skip
        """The production graph of one phase, with its ABI. See `reference/model/contract.py` for the arguments."""
        abi = graph_abi(config, phase, head, capacity, bucket, layout, batch, compute, ring, kv)
        b = LayerBuilder(self.gemm, self.on_device, compute)
        arguments = [b.argument(TensorType(a.shape, a.dtype), a.name) for a in abi.arguments]
        named = {a.name: value for a, value in zip(abi.arguments, arguments, strict=True)}
        weights = _weights(config, layout or {}, named)
        block, model = _architecture(config).block, weights.inside("model")
        step = {"prefill": _prefill, "extend": _extend, "decode": _decode}[phase]
        taken = step(b, config, named, abi)

        with b.scope("embed_tokens"):
            table = model["embed_tokens.weight"]
            if taken.tokens.rank == 0:
                x = b.row(table, taken.tokens)  # [1, E]
            else:
                x = b.rows(table, b.reshape(taken.tokens, (taken.tokens.shape[0], 1)))  # [T, E]
            x = b.rounded(b.scaled(x, config.embedding_multiplier))
        for i, layer in enumerate(config.layers):
            rope = taken.ropes[layer.rope] if layer.rope else None
            given = LayerInputs(rope, taken.masks[layer.window], taken.caches[layer.window], layer.sparse)
            with b.scope(f"layers.{i}"):
                x = block(b, x, model.inside(f"layers.{i}"), given, config)
        if phase != "decode":
            x = b.looked_up(x, b.subtract(named["length"], b.i32(1)))  # [1, E]
        held = {id(cache): cache for cache in taken.caches.values()}.values()
        results = [_head(b, config, head, x, weights, abi.results[0].shape)]
        kept = (value for cache in held for value in cache.results())
        results += [b.reshape(value, result.shape) for value, result in zip(kept, abi.results[1:], strict=True)]
        name = graph_name(config, phase, head, bucket, batch, compute, ring, kv)
        return replace(b.graph(name, abi, results), on_device=self.on_device)


# ---- what differs between the phases


@dataclass(frozen=True)
class Taken:
    """What a step makes of its inputs. tokens: i32 [T], or one scalar. masks, caches: by the windows of the layers."""

    tokens: Value
    ropes: dict[Rope, RopeRows]
    masks: dict[int | None, Visible]
    caches: dict[int | None, Cache]


def _prefill(b: LayerBuilder, config: Config, named: dict[str, Value], abi: Abi) -> Taken:
    """A whole prompt: its tokens attend to one another."""
    T, length = abi.bucket, named["length"]
    empty = {r.role: b.constant(0, r.dtype, r.shape) for r in abi.results if r.role in abi.caches}

    def ring(k: Value, v: Value) -> Cache:
        return RingPrefillCache(k, v, tokens=b.ring_tokens(b.i32(0), length, abi.ring))

    masks = _masks(config, T, lambda window: Visible(b.visible_causal(T, window)))
    ropes = {r: b.rope_rows(prefill_tables(r, T), r.interleaved, None, length) for r in config.ropes}
    return Taken(named["tokens"], ropes, masks, _caches(b, config, abi, empty, PrefillCache, ring))


def _extend(b: LayerBuilder, config: Config, named: dict[str, Value], abi: Abi) -> Taken:
    """The next tokens of a row: they attend to what is in its cache, and to one another."""
    T, S, W = abi.bucket, abi.capacity, abi.ring
    position, length, row, total = named["position"], named["length"], named.get("row"), named.get("total")
    # Padding may have positions that there are none of.
    positions = b.minimum(b.add(b.iota((T,), "i32"), b.over_first(position, (T,))), b.i32(S - 1, (T,)))

    def visible(window: int | None) -> Visible:
        if window is not None and _in_ring(abi, window):
            blocks = b.all_blocks(W + T) if in_blocks(abi, b.on_device, W + T) else None
            return Visible(b.visible_behind_ring(position, T, W, window), blocks)
        blocks = b.key_blocks(position, T, S, window) if in_blocks(abi, b.on_device, S) else None
        return Visible(b.visible_to_positions(positions, S, window), blocks)

    def ring(k: Value, v: Value) -> Cache:
        return RingExtendCache(k, v, **taken, tokens=b.ring_tokens(position, length, W))

    masks = _masks(config, S, visible)
    ropes = {r: b.rope_rows(prefill_tables(r, S), r.interleaved, positions, total) for r in config.ropes}
    taken: dict[str, Any] = {"position": position, "length": length, "row": row}
    taken["numbers"] = b.layer_numbers(len(config.layers), position)
    return Taken(named["tokens"], ropes, masks, _caches(b, config, abi, named, partial(ExtendCache, **taken), ring))


def in_blocks(abi: Abi, on_device: bool, keys: int) -> bool:
    """Whether a graph attends to a block of keys at a time, where its queries attend to so many."""
    # On a device each turn of a loop would wait for what decides whether there is another. In bf16 and f16 probabilities are
    # rounded as transformers rounds them, which those of a block are not: what they are a share of is known at the end.
    return abi.phase == "extend" and min(keys, abi.capacity) > BLOCK and not on_device and abi.compute == "f32"


def _decode(b: LayerBuilder, config: Config, named: dict[str, Value], abi: Abi) -> Taken:
    """One token, which attends to what is in the cache; of a batch one in each row, at that row's position, in that row's cache."""
    position, S, W, layers = named["position"], abi.capacity, abi.ring, len(config.layers)
    own: Value = position
    make: Callable[..., Cache] = DecodeCacheOnDevice
    if abi.batch > 1:
        own = b.maximum(position, b.i32(0, (abi.batch,)))  # an idle row is computed as if it were at its beginning
        first = b.reshape(b.slice(position, (0,), (1,)), ())
        make = partial(BatchCache, numbers=b.layer_numbers(layers, first, least=-1))
    elif not b.on_device:
        make = partial(DecodeCache, numbers=b.layer_numbers(layers, position))

    def visible(window: int | None) -> Visible:
        if window is not None and _in_ring(abi, window):
            return Visible(b.visible_in_ring(own, W, window))
        see = b.visible_to_position if abi.batch == 1 else b.visible_to_positions
        return Visible(see(own, S, window))

    def ring(k: Value, v: Value) -> Cache:
        return make(k, v, position=b.ring_slots(position, W))

    masks = _masks(config, S, visible)
    ropes = {r: b.rope_rows(decode_tables(r, S), r.interleaved, own, None) for r in config.ropes}
    return Taken(named["token"], ropes, masks, _caches(b, config, abi, named, partial(make, position=position), ring))


def _in_ring(abi: Abi, window: int | None) -> bool:
    """Whether the graph has a ring for the layers of this window."""
    return bool(abi.windowed) and effective_window(window, abi.capacity) is not None


def _caches(
    b: LayerBuilder, config: Config, abi: Abi, named: dict[str, Value], cache: Callable[[Value, Value], Cache],
    ring: Callable[[Value, Value], Cache],
) -> dict[int | None, Cache]:  # fmt: skip
    """Where the layers of each window keep their keys and values: windowed ones in a ring, if there is one, and all others in a cache,
    which comes first.
    """
    made = {
        found: make(named[k], named[v])
        for found, make, (k, v) in ((False, cache, CACHES), (True, ring, RINGS)) if k in abi.caches
    }  # fmt: skip
    if abi.kv == "int8":
        scales = (b.reshape(named[role], (*named[role].shape, 1)) for role in SCALES)
        made[False].k_scale, made[False].v_scale = scales
    of = {window: _in_ring(abi, window) for window in config.windows}
    return {window: made[of[window]] for window in sorted(of, key=of.__getitem__)}


def _masks(config: Config, keys: int, mask: Callable[[int | None], Visible]) -> dict[int | None, Visible]:
    """Each window's mask in a graph of so many keys; two that see the same have one."""
    seen = {window: effective_window(window, keys) for window in config.windows}
    masks = {window: mask(window) for window in dict.fromkeys(seen.values())}
    return {window: masks[found] for window, found in seen.items()}


def _architecture(config: Config) -> Any:
    return importlib.import_module(f"hloracle.emitters.architectures.{config.architecture}")


def _head(b: LayerBuilder, config: Config, head: str, x: Value, w: Weights, shape: tuple[int, ...]) -> Value:
    """x [B, E] -> logits [B, V], or the tokens [B]; of one row, [V] or a scalar: the shape that the ABI has."""
    with b.scope("norm"):
        x = _architecture(config).norm(b, x, w.inside("model.norm"), config)
    with b.scope("lm_head"):
        weight = w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        rows = shape if head == "token" else shape[:-1]
        # In float32, which is no less than transformers gives.
        logits = b.scaled(
            b.reshape(b.linear(b.as_f32(x), weight), (*rows, config.vocab_size)), config.logits_multiplier
        )
        if config.final_logit_softcapping is not None:
            logits = b.soft_cap(logits, config.final_logit_softcapping)
    if head == "logits":
        return logits
    with b.scope("token"):
        return b.argmax(logits)


# The graphs of a processor, which compute every product themselves.
emit = Emitter().emit
