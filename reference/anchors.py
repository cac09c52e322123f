"""The anchors: one vocabulary of named values that Hugging Face, the reference and the emitter all have.

A name is the Hugging Face module path without `model.`, where there is such a module. Legend: T query tokens, S keys
(T in prefill, cache slots in decode), N/K query/kv heads, G = N/K, D head_dim, E hidden, F intermediate, V vocab.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hloracle.reference.config import Config

# What a layer goes through, in order; the last is the layer itself: its output.
IN_LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.q_rope",
    "self_attn.k_rope",
    "k_cache",
    "v_cache",
    "self_attn.scores",
    "self_attn.probs",
    "self_attn.context",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.act",
    "mlp.down_proj",
    "",
)
# What the head picks: only a graph whose head is the token has it, and no module of Hugging Face's.
TOKEN = "token"
LAYER = re.compile(r"layers\.(\d+)(?:\.(.+))?|([kv]_cache)\.(\d+)")
CACHE_SCOPE = re.compile(r"layers\.(\d+)\.self_attn\.([kv]_cache)")


@lru_cache(maxsize=64)
def anchors(config: Config) -> tuple[str, ...]:
    """Every anchor of a model, in the order of computation."""
    layers = (_name(layer, part) for layer in range(config.num_hidden_layers) for part in IN_LAYER)
    return ("embed_tokens", *layers, "norm", "lm_head")


def _name(layer: int, part: str) -> str:
    if part in ("k_cache", "v_cache"):
        return f"{part}.{layer}"
    return f"layers.{layer}.{part}" if part else f"layers.{layer}"


@lru_cache(maxsize=4096)
def split(anchor: str) -> tuple[int | None, str]:
    """The layer of an anchor (None outside the layers) and its name in there: (3, `mlp.act`), (3, `k_cache`), (3, ``)."""
    found = LAYER.fullmatch(anchor)
    if not found:
        return None, anchor
    layer, part, cache, cache_layer = found.groups()
    return (int(cache_layer), cache) if cache else (int(layer), part or "")


def anchor_of(scope: str) -> str:
    """The anchor that a scope of a graph stands for: caches are written inside attention."""
    return CACHE_SCOPE.sub(r"\2.\1", scope)


def anchor_shape(config: Config, anchor: str, queries: int, keys: int) -> tuple[int, ...]:
    """The shape in a graph of `queries` tokens T that attend to `keys` slots S. The head sees one row."""
    T, S = queries, keys
    N, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    E, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    _, part = split(anchor)
    if part in ("norm", "lm_head"):
        return (1, E) if part == "norm" else (V,)
    return {
        "self_attn.q_proj": (T, N, D),
        "self_attn.q_rope": (T, N, D),
        "self_attn.k_proj": (T, K, D),
        "self_attn.k_rope": (T, K, D),
        "self_attn.v_proj": (T, K, D),
        "k_cache": (K, S, D),
        "v_cache": (K, S, D),
        "self_attn.scores": (K, T, N // K, S),
        "self_attn.probs": (K, T, N // K, S),
        "self_attn.context": (T, N * D),
        "mlp.gate_proj": (T, F),
        "mlp.up_proj": (T, F),
        "mlp.act": (T, F),
    }.get(part, (T, E))


def terms(config: Config, anchor: str, keys: int) -> int:
    """The longest sum that an element of an anchor's value is made of, in terms; `keys` is the keys attended to."""
    E, F = config.hidden_size, config.intermediate_size
    _, part = split(anchor)
    return {
        "embed_tokens": 1,
        "self_attn.probs": max(E, keys),
        "self_attn.context": max(E, keys),
        "self_attn.o_proj": config.num_attention_heads * config.head_dim,
        "mlp.down_proj": F,
        "": F,  # a block's output is down_proj's and what came before
    }.get(part, E)
