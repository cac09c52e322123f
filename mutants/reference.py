"""Faults of the oracle's JAX model. JAX is imported only once a fault is planted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config, Rope

if TYPE_CHECKING:
    from jax import Array

    from hloracle.reference.model.rope import RopeTables
    from hloracle.reference.oracle.layers import RopeRows, Scoring
    from hloracle.reference.oracle.model import DecodeCache, Weights

oracle = partial(mutant, part="reference")

# ---- rope

TABLES = "reference.oracle.model:decode_tables reference.oracle.model:prefill_tables"
ROPE = "layers.0.self_attn.q_rope"


@oracle(
    "oracle-rope-interleaved",
    "rope",
    "turns pairs (2i, 2i+1)",
    anchor=ROPE,
    replaces="reference.oracle.architectures.llama:rotary",
)
def rope_interleaved(right: Right[Array], x: Array, rope: RopeRows) -> Array:
    T, N, D = x.shape
    halves = x.reshape(T, N, D // 2, 2).transpose(0, 1, 3, 2)
    turned = right(halves.reshape(T, N, D), rope).reshape(T, N, 2, D // 2)
    return turned.transpose(0, 1, 3, 2).reshape(T, N, D)


@oracle("oracle-rope-base", "rope-frequencies", "base 500000", anchor=ROPE, replaces=TABLES)
def rope_base(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    return right(dataclasses.replace(rope, theta=500000.0), length)


@oracle("oracle-rope-scaling-left-out", "rope-scaling", "llama3 scaling is left out", anchor=ROPE, replaces=TABLES)
def rope_scaling_left_out(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    return right(dataclasses.replace(rope, type="default"), length)


@oracle(
    "oracle-rope-position-decode", "rope-position", "decode turns by position + 1",
    anchor=ROPE, replaces="reference.oracle.model:rope_rows",
)  # fmt: skip
def rope_position_decode(
    right: Right[RopeRows], tables: RopeTables, interleaved: bool, start: Array | None, length: Array | None
) -> RopeRows:
    return right(tables, interleaved, start if start is None else start + np.int32(1), length)


# ---- attention

ATTENTION, SCORES = "reference.oracle.architectures.llama:grouped_attention", "layers.0.self_attn.scores"


@oracle("oracle-scale-missing", "attention-scale", "scores are not scaled", anchor=SCORES, replaces=ATTENTION)
def scale_missing(right: Right[Array], q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
    return right(q, k, v, dataclasses.replace(scoring, scaling=1.0))


@oracle("oracle-gqa-modulo", "gqa", "query head n reads kv head n % K", anchor=SCORES, replaces=ATTENTION)
def gqa_modulo(right: Right[Array], q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
    (T, N, D), K = q.shape, k.shape[0]
    q = q.reshape(T, N // K, K, D).transpose(0, 2, 1, 3).reshape(T, N, D)
    context = right(q, k, v, scoring)
    return context.reshape(T, K, N // K, D).transpose(0, 2, 1, 3).reshape(T, N * D)


@oracle(
    "oracle-mask-decode-with-next", "mask", "decode sees one slot too many",
    anchor=SCORES, replaces="reference.oracle.model:visible_to_position",
)  # fmt: skip
def mask_decode_with_next(right: Right[Array], position: Array, slots: int, window: int | None) -> Array:
    return right(position + np.int32(1), slots, window)


@oracle(
    "oracle-mask-not-causal", "mask-missing", "a prompt's token sees all of them",
    anchor=SCORES, replaces="reference.oracle.model:visible_causal",
)  # fmt: skip
def mask_not_causal(right: Right[Array], length: int, window: int | None) -> Array:
    visible = right(length, window)
    return visible | ~visible


# ---- norms, MLP, weights

NORM = "reference.oracle.architectures.llama:rms_norm"


@oracle("oracle-norm-eps", "norm-eps", "epsilon is 1e-6", anchor="layers.0.input_layernorm", replaces=NORM)
def norm_eps(right: Right[Array], x: Array, weight: Array, eps: float) -> Array:
    return right(x, weight, 1e-6)


@oracle(
    "oracle-norm-weight-plus-one", "norm-weight", "multiplied by 1 + weight",
    anchor="layers.0.input_layernorm", replaces=NORM,
)  # fmt: skip
def norm_weight_plus_one(right: Right[Array], x: Array, weight: Array, eps: float) -> Array:
    return right(x, weight + np.float32(1), eps)


@oracle(
    "oracle-norm-not-divided-final", "norm-missing", "the final norm multiplies by its weight, and does not divide",
    anchor="norm", replaces="reference.oracle.architectures.llama:norm",
)  # fmt: skip
def norm_not_divided_final(right: Right[Array], x: Array, w: Weights, config: Config) -> Array:
    return x * w["weight"] if w.prefix == "model.norm." else right(x, w, config)


@oracle("oracle-act-relu", "activation", "relu instead of silu", anchor="layers.0.mlp.act")
def act_relu() -> Iterator[None]:
    from hloracle.reference.oracle import mlp

    with mock.patch.object(mlp, "ACTIVATIONS", {"silu": lambda x: (x + abs(x)) / np.float32(2)}):
        yield


@oracle(
    "oracle-residual-last-layer", "residual", "the last layer adds its MLP's output twice",
    anchor="layers.2", replaces="reference.oracle.architectures.llama:gated_mlp",
)  # fmt: skip
def residual_last_layer(right: Right[Array], x: Array, w: Weights, config: Config) -> Array:
    h = right(x, w, config)
    return h + h if w.prefix == "model.layers.2.mlp." else h


@oracle(
    "oracle-k-v-swapped", "exchanged-weights", "keys and values take each other's weight",
    anchor="layers.0.self_attn.k_proj", replaces="reference.oracle.model:Weights.linear",
)  # fmt: skip
def k_v_swapped(right: Right[Any], w: Weights, name: str) -> Any:
    return right(w, {"k_proj": "v_proj", "v_proj": "k_proj"}.get(name, name))


@oracle(
    "oracle-cache-slot-decode", "cache-slot", "decode writes one slot too far",
    anchor="k_cache.0", replaces="reference.oracle.model:DecodeCache._write",
)  # fmt: skip
def cache_slot_decode(right: Right[Any], cache: DecodeCache, old: Array, new: Array) -> Any:
    return right(dataclasses.replace(cache, position=cache.position + np.int32(1)), old, new)


@oracle(
    "oracle-ring-not-wrapped", "ring-slot", "what comes after the last slot stays there",
    anchor="k_cache.0", replaces="reference.oracle.model:ring_slots", model="tiny-mistral", ring=True,
)  # fmt: skip
def ring_not_wrapped(right: Right[Array], position: Array, slots: int) -> Array:
    import jax.numpy as jnp

    return jnp.minimum(position, slots - 1)


@oracle(
    "oracle-kv-scale-of-next-head", "kv-scale", "a head has the next one's scale",
    anchor="k_cache.0", replaces="reference.oracle.model:quantized", kv="int8",
)  # fmt: skip
def kv_scale_of_next_head(right: Right[Any], x: Array) -> Any:
    steps, scale = right(x)
    return steps, scale[:, ::-1]


@oracle(
    "oracle-head-tied", "head", "the embedding is used as the head",
    anchor="lm_head", replaces="reference.oracle.model:Weights.__getitem__",
)  # fmt: skip
def head_tied(right: Right[Array], w: Weights, name: str) -> Array:
    return right(w, "model.embed_tokens.weight" if name == "lm_head.weight" else name)
