"""Somebody else's graphs of a small model, written with JAX: right ones, and ones that break what their ABI file says.

They compute what a decoder of this kind computes, but nobody holds them to a reference: they are only looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from hloracle.core.abi import Graph
from hloracle.core.cache import build_directory, cache_root
from hloracle.foreign.file import read_abi_file
from hloracle.foreign.opening import open_graphs
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

L, E, N, K, D, F, V = 2, 12, 4, 2, 4, 20, 29
S, T, WINDOW = 16, 8, 5

ABI = """
version = 2
[weights]
"w['embed']" = "model.embed_tokens.weight"
"w['head']" = "lm_head.weight"
"w['norm']" = "model.norm.weight"
"w['layers'][{l}]['in']" = "model.layers.{l}.input_layernorm.weight"
"w['layers'][{l}]['post']" = "model.layers.{l}.post_attention_layernorm.weight"
"w['layers'][{l}]['q']" = "model.layers.{l}.self_attn.q_proj.weight"
"w['layers'][{l}]['k']" = "model.layers.{l}.self_attn.k_proj.weight"
"w['layers'][{l}]['v']" = "model.layers.{l}.self_attn.v_proj.weight"
"w['layers'][{l}]['o']" = "model.layers.{l}.self_attn.o_proj.weight"
"w['layers'][{l}]['gate']" = "model.layers.{l}.mlp.gate_proj.weight"
"w['layers'][{l}]['up']" = "model.layers.{l}.mlp.up_proj.weight"
"w['layers'][{l}]['down']" = "model.layers.{l}.mlp.down_proj.weight"

[decode]
file = "decode*"
[decode.inputs]
token = "token : B"
pos = "position"
cache_len = "position + 1"
mask = "window_mask : B S"
"kv[0]" = "k_cache : L S K D"
"kv[1]" = "v_cache : L S K D"
[decode.results]
0 = "logits : B V"
1 = "k_cache : L S K D"
2 = "v_cache : L S K D"

[forward]
file = "forward*"
[forward.inputs]
tokens = "tokens : T"
positions = "positions : T"
[forward.results]
0 = "logits : T V"

[prefill]
file = "prefill*"
[prefill.inputs]
tokens = "tokens : T"
positions = "positions : T"
length = "length"
[prefill.results]
0 = "logits : V"
1 = "k_cache : L S K D"
2 = "v_cache : L S K D"
"""


@cache
def checkpoint() -> Checkpoint:
    folder = cache_root() / "models" / "toy"
    keys = {
        "num_hidden_layers": L, "hidden_size": E, "num_attention_heads": N, "num_key_value_heads": K, "head_dim": D,
        "intermediate_size": F, "vocab_size": V, "sliding_window": WINDOW,
    }  # fmt: skip
    build_directory(folder, lambda empty: write_tiny(empty, "mistral", seed=3, **keys))
    return open_checkpoint(folder)


def opened(folder: Path, texts: dict[str, str], abi: str = ABI) -> list[Graph]:
    """The graphs of these texts by their names, adapted."""
    (folder / "abi.toml").write_text(abi)
    for name, text in texts.items():
        (folder / f"{name}.mlir").write_text(text)
    return open_graphs([folder / f"{name}.mlir" for name in texts], read_abi_file(folder / "abi.toml"), checkpoint())


# ---- the model. `fault` is what is wrong with it, a word that the functions below know.


def rms_norm(x: Any, weight: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight


def rotary(x: Any, positions: Any) -> Any:  # [T, heads, D]
    angles = positions[:, None, None] * jnp.array([1.0, 0.1])  # [T, 1, D/2]
    one, other = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)


def attention(q: Any, k: Any, v: Any, visible: Any) -> Any:  # [T, N, D], [S, K, D] twice, [T, S]
    q = q.reshape(-1, K, N // K, D)
    scores = jnp.einsum("tkgd,skd->kgts", q, k) / 2
    probs = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)
    return jnp.einsum("kgts,skd->tkgd", probs, v).reshape(-1, N * D)


def blocks(w: Any, x: Any, positions: Any, write: Callable[[int, Any, Any], Any], visible: Any, fault: str) -> Any:
    """write: layer, keys and values of the call -> those of all slots, which are attended to."""
    turned = positions * 0 if fault == "rope" else positions
    for i, p in enumerate(w["layers"]):
        h = rms_norm(x, p["in"])
        q, k, v = ((h @ p[name].T).reshape(len(x), -1, D) for name in "qkv")
        x = x + attention(rotary(q, turned), *write(i, rotary(k, turned), v), visible) @ p["o"].T
        h = rms_norm(x, p["post"])
        up = h @ p["up"].T
        x = x + (jax.nn.silu(h @ p["gate"].T) * (up * 0 + 1 if fault == "weight" and i else up)) @ p["down"].T
    return rms_norm(x, w["norm"])


def decode(fault: str = "", picks: bool = False) -> Callable[..., Any]:
    """picks: it answers with the token."""

    def function(w: Any, token: Any, pos: Any, cache_len: Any, mask: Any, kv: Sequence[Any]) -> Any:
        if fault == "position":
            pos, cache_len, mask = pos * 0, cache_len * 0 + S, mask | True
        slots = jnp.arange(S)
        visible = (slots < cache_len) & (slots > pos - WINDOW) & mask
        if fault == "mask":  # used, and never obeyed
            visible = (slots <= pos) & (slots > pos - WINDOW) & (mask | True)
        if fault == "unused slots":
            visible = slots > pos - WINDOW + 0 * cache_len
        if fault == "window":
            visible = slots < cache_len
        if fault == "argument":
            visible = (slots <= pos + 0 * cache_len) & mask
        kc, vc = kv

        def write(i: int, k: Any, v: Any) -> Any:
            nonlocal kc, vc
            at = pos + 1 if fault == "slot" else pos
            if not (fault == "row" and i == 1):
                vc = jax.lax.dynamic_update_slice(vc, v[None], (i, at, 0, 0))
            if fault == "part of a row":
                k = k[:, :1]
            kc = jax.lax.dynamic_update_slice(kc, k[None], (i, at, 0, 0))
            return kc[i], vc[i]

        x = blocks(w, w["embed"][token], pos[None], write, visible, fault)
        logits = x @ w["head"].T
        if fault == "not a number":
            logits = logits / (0 * pos)
        if fault == "unused":
            return w["embed"][token] @ w["head"].T, kc * 1, vc * 1
        return (jnp.argmax(logits, -1).astype(jnp.int32) if picks else logits), kc, vc

    return function


def prefill(fault: str = "", everywhere: bool = False, takes: bool = False) -> Callable[..., Any]:
    """everywhere: it answers with the logits of all tokens, and without caches. takes: caches are given to it."""

    def function(w: Any, tokens: Any, positions: Any, length: Any = T, kv: Any = None) -> Any:
        if fault == "position":
            positions = jnp.arange(T) + 0 * positions
        at, slots = jnp.arange(T)[:, None], jnp.arange(T)
        visible = (slots <= at) & (slots > at - WINDOW)
        if fault == "later":
            visible = slots < length
        if fault == "all tokens":
            visible = slots >= 0 * at
        if fault == "window":
            visible = slots <= at
        kept: list[Any] = []

        def write(i: int, k: Any, v: Any) -> Any:
            kept.append((k, v * 0 if fault == "row" and i == 1 else v))
            return k, (v + kv[1][i, -1, 0, 0] if fault == "unused slots" else v)

        x = blocks(w, w["embed"][tokens], positions, write, visible, fault)
        pad = ((0, 0), (0, S - T), (0, 0), (0, 0))
        kc, vc = (jnp.pad(jnp.stack(some), pad) for some in zip(*kept, strict=True))
        if takes:
            kc, vc = (
                jnp.where(jnp.arange(S)[:, None, None] < T, new, old) for new, old in zip((kc, vc), kv, strict=True)
            )
        if everywhere:
            return x @ w["head"].T
        last = jnp.maximum(length - 1, T - 1) if fault == "padding" else length - 1
        return x[last] @ w["head"].T, kc, vc

    return function


def keyed(decode: Callable[..., Any]) -> Callable[..., Any]:
    """It hands on state of its own as well."""

    def function(w: Any, token: Any, pos: Any, cache_len: Any, mask: Any, kv: Any, key: Any) -> Any:
        return (*decode(w, token, pos, cache_len, mask, kv), key + jnp.uint32(1))

    return function


def layered(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Each layer has caches of its own: k, v, k, v."""

    def function(w: Any, token: Any, pos: Any, cache_len: Any, mask: Any, kv: Any) -> Any:
        logits, *caches = decode(w, token, pos, cache_len, mask, [jnp.stack(kv[i::2]) for i in range(2)])
        return (logits, *(c[i] for i in range(L) for c in caches))

    return function


def weights() -> Any:
    def shape(*sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    layer = {
        "in": shape(E), "post": shape(E), "q": shape(N * D, E), "k": shape(K * D, E), "v": shape(K * D, E),
        "o": shape(E, N * D), "gate": shape(F, E), "up": shape(F, E), "down": shape(E, F),
    }  # fmt: skip
    return {"embed": shape(V, E), "head": shape(V, E), "norm": shape(E), "layers": [layer] * L}


def text(phase: str, fault: str = "", **more: bool) -> str:
    """A graph as JAX writes it.

    more: picks, layered and keyed of decode, takes of prefill.
    """

    def shape(dtype: Any, *sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype)

    scalar, cache = shape(jnp.int32), shape(jnp.float32, L, S, K, D)
    tokens = [shape(jnp.int32, T), shape(jnp.int32, T), scalar]
    if phase == "decode":
        function = decode(fault, more.get("picks", False))
        given = [shape(jnp.int32, 1), scalar, scalar, shape(jnp.bool_, 1, S), [cache, cache]]
        if more.get("layered"):
            function, given[-1] = layered(function), [shape(jnp.float32, S, K, D)] * 2 * L
        if more.get("keyed"):
            function, given = keyed(function), [*given, shape(jnp.uint32, 2)]
    elif phase == "forward":
        function, given = prefill(fault, everywhere=True), tokens[:2]
    else:
        function, given = prefill(fault, **more), [*tokens, *([[cache, cache]] if more.get("takes") else [])]
    return str(jax.jit(function, keep_unused=True).lower(weights(), *given).as_text(debug_info=True))
