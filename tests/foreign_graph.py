"""A small Llama as another emitter might write it: its own weights, rows, cache and names, with faults that can be planted.

Legend: B rows, T tokens of a call, S cache slots; L, N, K, D, E, V as in docs/abi.md.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from hloracle.core.abi import Graph
from hloracle.foreign.file import AbiFile, read_abi_file
from hloracle.foreign.opening import open_graphs
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.rope import inverse_frequencies

B = 2
ABI = """\
version = 2

[weights]
"params['embed']" = "model.embed_tokens.weight"
"params['head']" = "lm_head.weight : v e -> e v"
"params['norm']" = "model.norm.weight"
"params['layers'][{l}]['attn_norm']" = "model.layers.{l}.input_layernorm.weight"
"params['layers'][{l}]['wqkv']" = "concat(model.layers.{l}.self_attn.{q,k,v}_proj.weight) : n e -> e n"
"params['layers'][{l}]['wo']" = "model.layers.{l}.self_attn.o_proj.weight : E (N D) -> N D E"
"params['layers'][{l}]['mlp_norm']" = "model.layers.{l}.post_attention_layernorm.weight - 1"
"params['layers'][{l}]['up']" = "concat(model.layers.{l}.mlp.{gate,up}_proj.weight) : (two F) E -> two E F, two=2"
"params['layers'][{l}]['down']" = "model.layers.{l}.mlp.down_proj.weight : e f -> f e"

[decode]
file = "decode*"

[decode.inputs]
tokens = "token : B 1"
start = "position"
cache = "cache : B L kv S K D"

[decode.results]
"result[0]" = "logits : B 1 V"
"result[1]" = "cache : B L kv S K D"

[prefill]
file = "prefill*"

[prefill.inputs]
tokens = "tokens : B T"
start = 0
cache = "cache : B L kv S K D"

[prefill.results]
"result[0]" = "logits : B T V"
"result[1]" = "cache : B L kv S K D"
"""
# What can be wrong -> the anchor whose own computation is wrong then.
FAULTS = {
    "embedding": "embed_tokens",
    "eps": "layers.0.input_layernorm",
    "rope sign": "layers.0.self_attn.q_rope",
    "rope of keys": "layers.1.self_attn.k_rope",
    "values": "v_cache.0",
    "slot": "k_cache.0",
    "scale": "layers.1.self_attn.scores",
    "mask": "layers.0.self_attn.scores",
    "softmax": "layers.1.self_attn.probs",
    "groups": "layers.0.self_attn.scores",
    "gelu": "layers.1.mlp.act",
    "residual": "layers.0",
    "last norm": "norm",
    "head": "lm_head",
}


def _norm(x: Array, weight: Array, eps: float) -> Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _dot(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, precision=lax.Precision.HIGHEST)


def _turned(x: Array, angles: Array) -> Array:
    """x [B, T, heads, D], angles [T, D/2]"""
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def step(config: Config, fault: str, params: Any, cache: Array, tokens: Array, start: Array) -> tuple[Array, Array]:
    """tokens [B, T] at positions from `start` on; cache [B, L, 2, S, K, D] -> logits [B, T, V], the cache."""
    N, K, D, eps = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.norm_eps
    T, S = tokens.shape[1], cache.shape[3]
    rope = config.ropes[0]
    positions = start + jnp.arange(T)
    angles = positions[:, None].astype(jnp.float32) * inverse_frequencies(rope).astype("float32")  # [T, D/2]
    x = params["embed"][tokens + 1 if fault == "embedding" else tokens]  # [B, T, E]
    for i, p in enumerate(params["layers"]):
        wrong = {"eps": 0, "values": 0, "rope sign": 0, "rope of keys": 1, "scale": 1, "softmax": 1, "groups": 0, "gelu": 1, "mask": 0,
                 "residual": 0, "angles": 0, "slot": 0}.get(fault) == i  # fmt: skip
        h = _norm(x, p["attn_norm"], 0.3 if wrong and fault == "eps" else eps)
        q, k, v = jnp.split(_dot("bte,en->btn", h, p["wqkv"]), [N * D, (N + K) * D], axis=-1)
        q, k, v = (a.reshape(B, T, -1, D) for a in (q, k, v))
        angles = angles * 1.5 if wrong and fault == "angles" else angles
        q = _turned(q, -angles if wrong and fault == "rope sign" else angles)
        k = _turned(k, angles + 0.5 if wrong and fault == "rope of keys" else angles)
        v = v * 1.5 if wrong and fault == "values" else v
        new = jnp.stack([k, v], axis=1)[:, None]  # [B, 1, 2, T, K, D]
        slot = start - 1 if wrong and fault == "slot" else start
        cache = lax.dynamic_update_slice(cache, new, (0, i, 0, slot, 0, 0))
        keys, values = cache[:, i, 0], cache[:, i, 1]  # [B, S, K, D]
        grouped = (
            q.reshape(B, T, N // K, K, D).swapaxes(2, 3)
            if wrong and fault == "groups"
            else q.reshape(B, T, K, N // K, D)
        )
        scores = _dot("btkgd,bskd->bkgts", grouped, keys) * (1.0 if wrong and fault == "scale" else 1 / math.sqrt(D))
        first = positions[:, None] - (1 if wrong and fault == "mask" else 0)
        scores = jnp.where(jnp.arange(S) <= first, scores, -1e30)
        probs = jax.nn.softmax(scores * 0.9 if wrong and fault == "softmax" else scores, axis=-1)
        context = _dot("bkgts,bskd->btkgd", probs, values).reshape(B, T, N, D)
        attention = _dot("btnd,nde->bte", context, p["wo"])
        x = x + attention
        h = _norm(x, 1 + p["mlp_norm"], eps)
        gate, up = (_dot("bte,ef->btf", h, p["up"][j]) for j in (0, 1))
        act = (jax.nn.gelu if wrong and fault == "gelu" else jax.nn.silu)(gate) * up
        mlp = _dot("btf,fe->bte", act, p["down"])
        x = mlp if wrong and fault == "residual" else x + mlp
    x = _norm(x, params["norm"] * (1.1 if fault == "last norm" else 1.0), eps)
    logits = _dot("bte,ev->btv", x, params["head"])
    return (logits - 0.5 if fault == "head" else logits), cache


def shapes(config: Config, slots: int) -> tuple[Any, Any]:
    """What `step` takes as weights and as a cache."""
    L, N, K, D = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim
    E, F, V = config.hidden_size, config.intermediate_size, config.vocab_size

    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {
        "attn_norm": of(E),
        "wqkv": of(E, (N + 2 * K) * D),
        "wo": of(N, D, E),
        "mlp_norm": of(E),
        "up": of(2, E, F),
        "down": of(F, E),
    }
    return {"embed": of(V, E), "head": of(E, V), "norm": of(E), "layers": [layer] * L}, of(B, L, 2, slots, K, D)


def text(config: Config, tokens: int, slots: int, fault: str = "") -> str:
    """StableHLO, with the names that JAX gives to arguments and results."""

    def main(params: Any, cache: Any, tokens: Any, start: Any) -> Any:
        return step(config, fault, params, cache, tokens, start)

    i32 = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((B, tokens), ())]
    return jax.jit(main).lower(*shapes(config, slots), *i32).as_text(debug_info=True)


def abi_file(folder: Path) -> AbiFile:
    """The ABI file of it."""
    path = folder / "abi.toml"
    path.write_text(ABI)
    return read_abi_file(path)


def adapted_graph(folder: Path, model: Checkpoint, phase: str, tokens: int, slots: int, fault: str = "") -> Graph:
    """Its graph of a phase, adapted to the contract."""
    path = folder / f"{phase}.mlir"
    path.write_text(text(model.config, tokens, slots, fault))
    (graph,) = open_graphs([path], abi_file(folder), model)
    return graph
