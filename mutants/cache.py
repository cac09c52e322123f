"""The KV cache: slot, layer, order, what is read, what is donated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from hloracle.core.abi import Abi, Graph
from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import DecodeCache, PrefillCache
from hloracle.mutants.registry import RIGHT_VALUES, Right, mutant
from hloracle.reference.model.config import Config

DECODE = "emitters.model:DecodeCache._write"
PREFILL = "emitters.model:PrefillCache._write"
GRAPH = "emitters.layers:LayerBuilder.graph"
KEYS = "k_cache.0"
RESULT = "compare the caches that prefill returns: what its own queries attend to is right"
STATIC = "no value changes: look at the graph's donations"

Written = tuple[Value, Value]


@mutant("cache-slot-decode", "cache-slot", "decode writes one slot too far", anchor=KEYS, replaces=DECODE)
def slot_decode(right: Right[Written], cache: DecodeCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    return right(dataclasses.replace(cache, position=b.add(cache.position, b.i32(1))), b, old, new)


@mutant(
    "cache-slot-values-last-layer", "cache-slot", "decode writes the last layer's values one slot too early",
    anchor="v_cache.2", replaces=DECODE,
)  # fmt: skip
def slot_values_last_layer(
    right: Right[Written], cache: DecodeCache, b: LayerBuilder, old: Value, new: Value
) -> Written:
    if b.anchor == "layers.2.self_attn.v_cache":
        cache = dataclasses.replace(cache, position=b.subtract(cache.position, b.i32(1)))
    return right(cache, b, old, new)


@mutant("cache-slot-prefill", "cache-slot", "prefill writes from slot 1 on", anchor=KEYS, replaces=PREFILL, note=RESULT)
def slot_prefill(right: Right[Written], cache: PrefillCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    _, mine = right(cache, b, old, new)
    # The last row is padding or has no slot left.
    kept = b.slice(mine, (0, 0, 0), (mine.shape[0], mine.shape[1] - 1, mine.shape[2]))
    starts = (b.i32(cache.layer), b.i32(0), b.i32(1), b.i32(0))
    return b.dynamic_update_slice(old, b.reshape(kept, (1, *kept.shape)), starts), mine


@mutant(
    "cache-layer-of-next", "cache-layer", "decode's layer 1 writes to, and reads from, the slots of layer 2",
    anchor="k_cache.1", replaces=DECODE,
)  # fmt: skip
def layer_of_next(right: Right[Written], cache: DecodeCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    return right(dataclasses.replace(cache, layer=2 if cache.layer == 1 else cache.layer), b, old, new)


@mutant(
    "cache-layer-reversed-prefill", "cache-layer", "prefill writes the layers in reverse order",
    anchor=KEYS, replaces=PREFILL, note=RESULT,
)  # fmt: skip
def layer_reversed_prefill(
    right: Right[Written], cache: PrefillCache, b: LayerBuilder, old: Value, new: Value
) -> Written:
    return right(dataclasses.replace(cache, layer=old.shape[0] - 1 - cache.layer), b, old, new)


@mutant(
    "cache-order-prefill", "cache-order", "prefill takes [T, K, D] for [K, T, D]",
    anchor=KEYS, replaces="emitters.layers:LayerBuilder.transpose",
)  # fmt: skip
def order_prefill(right: Right[Value], b: LayerBuilder, operand: Value, permutation: Sequence[int]) -> Value:
    turned = right(b, operand, permutation)
    return b.reshape(operand, turned.shape) if b.anchor.endswith("_cache") else turned


@mutant(
    "cache-heads-reversed-decode", "cache-order", "decode writes a token's kv heads in reverse order",
    anchor=KEYS, replaces=DECODE,
)  # fmt: skip
def heads_reversed_decode(
    right: Right[Written], cache: DecodeCache, b: LayerBuilder, old: Value, new: Value
) -> Written:
    return right(cache, b, old, b.reverse(new, (1,)))


@mutant(
    "cache-keys-as-values-decode", "cache-content", "decode writes keys to the values' cache as well",
    anchor="v_cache.0", replaces="emitters.model:DecodeCache.update",
)  # fmt: skip
def keys_as_values_decode(right: Right[Written], cache: DecodeCache, b: LayerBuilder, k: Value, v: Value) -> Written:
    return right(cache, b, k, k)


@mutant(
    "cache-keys-and-values-swapped-prefill", "cache-content", "prefill returns keys as v_cache and values as k_cache",
    anchor=KEYS, replaces="emitters.model:PrefillCache.results", note=RESULT,
)  # fmt: skip
def keys_and_values_swapped_prefill(right: Right[list[Value]], cache: PrefillCache) -> list[Value]:
    return right(cache)[::-1]


@mutant(
    "cache-read-before-update", "cache-read", "decode attends to the keys as they were before its own",
    anchor=KEYS, replaces=DECODE,
)  # fmt: skip
def read_before_update(right: Right[Written], cache: DecodeCache, b: LayerBuilder, old: Value, new: Value) -> Written:
    written, mine = right(cache, b, old, new)
    starts = (b.i32(cache.layer), b.i32(0), b.i32(0), b.i32(0))
    return written, b.reshape(b.dynamic_slice(old, starts, (1, *mine.shape)), mine.shape)


@mutant(
    "cache-update-lost-last-layer", "cache-read", "prefill does not keep the last layer's values",
    anchor="v_cache.2", replaces=PREFILL, note=RESULT,
)  # fmt: skip
def update_lost_last_layer(
    right: Right[Written], cache: PrefillCache, b: LayerBuilder, old: Value, new: Value
) -> Written:
    written, mine = right(cache, b, old, new)
    return old if b.anchor == "layers.2.self_attn.v_cache" else written, mine


# ---- donation

DONATION = re.compile(r" \{tf\.aliasing_output = (\d+) : i32\}")


@mutant(
    "donation-dropped", "donation", "decode does not donate k_cache",
    anchor=KEYS, replaces=GRAPH, note=STATIC, class_=RIGHT_VALUES,
)  # fmt: skip
def donation_dropped(right: Right[Graph], b: LayerBuilder, name: str, abi: Abi, results: Sequence[Value]) -> Graph:
    graph = right(b, name, abi, results)
    return dataclasses.replace(graph, text=DONATION.sub("", graph.text, count=1))


@mutant(
    "donation-exchanged", "donation", "decode donates each cache to the other",
    anchor=KEYS, replaces=GRAPH, note=STATIC, class_=RIGHT_VALUES,
)  # fmt: skip
def donation_exchanged(right: Right[Graph], b: LayerBuilder, name: str, abi: Abi, results: Sequence[Value]) -> Graph:
    graph = right(b, name, abi, results)
    text = DONATION.sub(lambda m: f" {{tf.aliasing_output = {3 - int(m[1])} : i32}}", graph.text)
    return dataclasses.replace(graph, text=text)


@mutant(
    "donation-not-in-abi", "donation", "neither the graph nor its ABI donates v_cache",
    anchor="v_cache.0", replaces="emitters.model:graph_abi", note=STATIC, class_=RIGHT_VALUES,
)  # fmt: skip
def donation_not_in_abi(right: Right[Abi], config: Config, phase: str, *arguments: object) -> Abi:
    abi = right(config, phase, *arguments)
    results = (dataclasses.replace(r, aliases=None) if r.role == "v_cache" else r for r in abi.results)
    return dataclasses.replace(abi, results=tuple(results))
