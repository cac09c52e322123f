"""The anchors: one vocabulary of named values that Hugging Face, the reference and the emitter all have.

A name is the Hugging Face module path without `model.`, where there is such a module. What a layer goes through is the
registry's to say, what each part is `parts.py`'s. The letters of shapes are explained there.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hloracle.reference.model import parts
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import part_of, parts_of

CACHES = ("k_cache", "v_cache")
BY_HEAD = ("self_attn.scores", "self_attn.probs")
LAYER = re.compile(r"layers\.(\d+)(?:\.(.+))?|([kv]_(?:cache|scale))\.(\d+)")
CACHE_SCOPE = re.compile(r"layers\.(\d+)\.self_attn\.([kv]_cache)")


@lru_cache(maxsize=64)
def anchors(config: Config) -> tuple[str, ...]:
    """Every anchor of a model, in the order of computation; a layer's last is the layer itself: its output."""
    layers = (
        _name(layer, part) for layer in range(config.num_hidden_layers) for part in (*parts_of(config, layer), "")
    )
    return ("embed_tokens", *layers, "norm", "lm_head")


def _name(layer: int, part: str) -> str:
    if part in CACHES:
        return f"{part}.{layer}"
    return f"layers.{layer}.{part}" if part else f"layers.{layer}"


@lru_cache(maxsize=8192)
def split(anchor: str) -> tuple[int | None, str]:
    """The layer of an anchor (None outside the layers) and its name in it: (3, `mlp.act`), (3, `k_cache`), (3, ``). Of `k_scale.3` too,
    which is no anchor, but what a layer wrote to a cache's scales.
    """
    found = LAYER.fullmatch(anchor)
    if not found:
        return None, anchor
    layer, part, cache, cache_layer = found.groups()
    return (int(cache_layer), cache) if cache else (int(layer), part or "")


def anchor_of(scope: str) -> str:
    """The anchor that a scope of a graph stands for: caches are written inside attention."""
    return CACHE_SCOPE.sub(r"\2.\1", scope)


def anchor_shape(config: Config, anchor: str, queries: int, keys: int, own: int = 1) -> tuple[int, ...]:
    """The shape in a graph of `queries` tokens T that attend to `keys` slots S. The head sees one row.

    own: B in a decode of a batch, whose T = B tokens each have caches and a head of their own; else 1.
    """
    layer, part = split(anchor)
    if layer is None:
        E, V = config.hidden_size, config.vocab_size
        heads = (own,) if own > 1 else ()
        return {"embed_tokens": (queries, E), "norm": (own, E), "lm_head": (*heads, V)}[part]
    shape = parts.shape(config, part_of(config, part).shape, queries, keys)
    if own > 1 and part in CACHES:
        return (own, *shape)
    if own > 1 and part in BY_HEAD:
        K, T, *rest = shape
        return (T, K, *rest)
    return shape


def terms(config: Config, anchor: str, keys: int) -> int:
    """The longest sum that an element of an anchor's value is made of, in terms; `keys` is the keys attended to."""
    layer, part = split(anchor)
    if layer is None:
        return 1 if part == "embed_tokens" else config.hidden_size
    return max(parts.shape(config, part_of(config, part).terms, 0, keys))


def products(config: Config) -> dict[str, int]:
    """Anchor -> the dot_general that compute it, for those that need any."""
    counts = {
        anchor: part_of(config, part).matmuls
        for anchor in anchors(config)
        for layer, part in [split(anchor)]
        if layer is not None
    }
    return {**{anchor: count for anchor, count in counts.items() if count}, "lm_head": 1}
