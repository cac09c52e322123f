"""Fused projections: which part of the product is what."""

from __future__ import annotations

from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.mutants.registry import Right, mutant

PART = "emitters.layers:LayerBuilder.part"
HALVES = "emitters.layers:LayerBuilder.halves"
PHI3, GLM4 = "tiny-phi3", "tiny-glm4"
# Heads of queries, and of keys and values, in both.
N, K = 6, 2


@mutant(
    "qkv-values-before-keys", "fused-qkv", "values come before keys",
    anchor="layers.0.self_attn.k_rope", replaces=PART, model=PHI3,
)  # fmt: skip
def values_before_keys(right: Right[Value], b: LayerBuilder, x: Value, axis: int, start: int, limit: int) -> Value:
    if b.anchor.endswith("qkv_proj") and start:
        start = N + K if start == N else N
        limit = start + K
    return right(b, x, axis, start, limit)


@mutant(
    "qkv-by-kv-head", "fused-qkv", "each kv head's queries, key and value lie together",
    anchor="layers.0.self_attn.q_rope", replaces=PART, model=PHI3,
)  # fmt: skip
def by_kv_head(right: Right[Value], b: LayerBuilder, x: Value, axis: int, start: int, limit: int) -> Value:
    if not b.anchor.endswith("qkv_proj"):
        return right(b, x, axis, start, limit)
    T, _, D = x.shape
    grouped = b.reshape(x, (T, K, N // K + 2, D))
    first, last = {0: (0, N // K), N: (N // K, N // K + 1), N + K: (N // K + 1, N // K + 2)}[start]
    return b.reshape(right(b, grouped, 2, first, last), (T, limit - start, D))


@mutant(
    "qkv-keys-first-decode", "fused-qkv", "decode takes queries from where keys begin",
    anchor="layers.0.self_attn.q_rope", replaces=PART, model=PHI3,
)  # fmt: skip
def keys_first_decode(right: Right[Value], b: LayerBuilder, x: Value, axis: int, start: int, limit: int) -> Value:
    if b.anchor.endswith("qkv_proj") and x.shape[0] == 1:
        start, limit = {0: (K, N + K), N: (0, K)}.get(start, (start, limit))
    return right(b, x, axis, start, limit)


@mutant(
    "gate-up-halves-swapped", "fused-mlp", "the first half is up, the second gate",
    anchor="layers.0.mlp.act", replaces=HALVES, model=PHI3,
)  # fmt: skip
def halves_swapped(right: Right[tuple[Value, Value]], b: LayerBuilder, x: Value) -> tuple[Value, Value]:
    gate, up = right(b, x)
    return up, gate


@mutant(
    "gate-up-in-turns", "fused-mlp", "gate and up are taken in turns, not in halves",
    anchor="layers.0.mlp.act", replaces=HALVES, model=GLM4,
)  # fmt: skip
def in_turns(right: Right[tuple[Value, Value]], b: LayerBuilder, x: Value) -> tuple[Value, Value]:
    T, n = x.shape
    pairs = b.reshape(x, (T, n // 2, 2))
    gate, up = (b.reshape(b.part(pairs, 2, i, i + 1), (T, n // 2)) for i in (0, 1))
    return gate, up


@mutant(
    "oracle-gate-up-halves-swapped", "fused-mlp", "the first half is up, the second gate", part="reference",
    anchor="layers.0.mlp.act", replaces="reference.oracle.mlp:halves", model=PHI3,
)  # fmt: skip
def oracle_halves_swapped(right: Right[Any], x: Any) -> Any:
    gate, up = right(x)
    return up, gate
