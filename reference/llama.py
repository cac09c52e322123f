"""Llama (transformers' `LlamaForCausalLM`): pre-norm blocks of grouped-query attention and SwiGLU.

Mirrors `emitters/llama.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from jax import Array

from hloracle.reference.config import Config
from hloracle.reference.layers import RopeRows, linear, rms_norm, rotary, scope, silu
from hloracle.reference.layers import attention as grouped_attention
from hloracle.reference.model import Cache, Weights


def attention(x: Array, w: Weights, rope: RopeRows, cache: Cache, visible: Array, config: Config) -> Array:
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
        q = rotary(q, rope)
    with scope("k_rope"):
        k = rotary(k, rope)
    k, v = cache.update(k, v)  # [K, S, D]
    context = grouped_attention(q, k, v, visible, config.scaling)  # [T, N*D]
    with scope("o_proj"):
        return linear(context, *w.linear("o_proj"))  # [T, E]


def mlp(x: Array, w: Weights) -> Array:
    """x [T, E] -> [T, E]"""
    with scope("gate_proj"):
        gate = linear(x, *w.linear("gate_proj"))  # [T, F]
    with scope("up_proj"):
        up = linear(x, *w.linear("up_proj"))  # [T, F]
    with scope("act"):
        act = silu(gate) * up
    with scope("down_proj"):
        return linear(act, *w.linear("down_proj"))  # [T, E]


def block(x: Array, w: Weights, rope: RopeRows, cache: Cache, visible: Array, config: Config) -> Array:
    """x [T, E] -> [T, E]"""
    with scope("input_layernorm"):
        h = rms_norm(x, w["input_layernorm.weight"], config.rms_norm_eps)
    with scope("self_attn"):
        h = attention(h, w.inside("self_attn"), rope, cache, visible, config)
    x = x + h
    with scope("post_attention_layernorm"):
        h = rms_norm(x, w["post_attention_layernorm.weight"], config.rms_norm_eps)
    with scope("mlp"):
        h = mlp(h, w.inside("mlp"))
    return x + h
