"""Granite (transformers' `GraniteForCausalLM`): Llama's block with multipliers on what is added, on scores and on logits.

Mirrors `emitters/architectures/granite.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from jax import Array

from hloracle.reference.model.config import Config
from hloracle.reference.oracle.layers import Scoring, linear, rms_norm, rotary, scaled, scope
from hloracle.reference.oracle.layers import attention as grouped_attention
from hloracle.reference.oracle.mlp import gated_mlp
from hloracle.reference.oracle.model import LayerInputs, Weights


def norm(x: Array, w: Weights, config: Config) -> Array:
    """The RMS norm of x [T, E] over its last axis."""
    return rms_norm(x, w["weight"], config.norm_eps)


def attention(x: Array, w: Weights, layer: LayerInputs, config: Config) -> Array:
    """x [T, E] -> [T, E]; writes this layer's keys and values to the cache."""
    T, N, K, D = x.shape[0], config.num_attention_heads, config.num_key_value_heads, config.head_dim
    with scope("q_proj"):
        q = linear(x, *w.linear("q_proj"))
        q = q.reshape(T, N, D)  # [T, N, D]
    with scope("k_proj"):
        k = linear(x, *w.linear("k_proj"))
        k = k.reshape(T, K, D)  # [T, K, D]
    with scope("v_proj"):
        v = linear(x, *w.linear("v_proj"))
        v = v.reshape(T, K, D)  # [T, K, D]
    with scope("q_rope"):
        q = rotary(q, layer.rope)
    with scope("k_rope"):
        k = rotary(k, layer.rope)
    k, v = layer.cache.update(k, v)  # [K, S, D]
    context = grouped_attention(q, k, v, Scoring(layer.visible, config.scaling))  # [T, N*D]
    with scope("o_proj"):
        return linear(context, *w.linear("o_proj"))  # [T, E]


def block(x: Array, w: Weights, layer: LayerInputs, config: Config) -> Array:
    """x [T, E] -> [T, E]"""
    with scope("input_layernorm"):
        h = norm(x, w.inside("input_layernorm"), config)
    with scope("self_attn"):
        h = attention(h, w.inside("self_attn"), layer, config)
    x = x + scaled(h, config.residual_multiplier)
    with scope("post_attention_layernorm"):
        h = norm(x, w.inside("post_attention_layernorm"), config)
    with scope("mlp"):
        h = gated_mlp(h, w.inside("mlp"), config)
    return x + scaled(h, config.residual_multiplier)
