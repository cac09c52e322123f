"""Llama (transformers' `LlamaForCausalLM`): pre-norm blocks of grouped-query attention and SwiGLU.

Mirrors `reference/llama.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, RopeRows
from hloracle.emitters.model import Cache, Weights
from hloracle.reference.config import Config


def attention(
    b: LayerBuilder, x: Value, w: Weights, rope: RopeRows, cache: Cache, visible: Value, config: Config
) -> Value:
    """x [T, E] -> [T, E]; writes this layer's keys and values to the cache."""
    T, N, K, D = x.shape[0], config.num_attention_heads, config.num_key_value_heads, config.head_dim
    with b.scope("q_proj"):
        q = b.linear(x, *w.linear("q_proj"))
        q = b.reshape(q, (T, N, D))  # [T, N, D]
    with b.scope("k_proj"):
        k = b.linear(x, *w.linear("k_proj"))
        k = b.reshape(k, (T, K, D))  # [T, K, D]
    with b.scope("v_proj"):
        v = b.linear(x, *w.linear("v_proj"))
        v = b.reshape(v, (T, K, D))  # [T, K, D]
    with b.scope("q_rope"):
        q = b.rotary(q, rope)
    with b.scope("k_rope"):
        k = b.rotary(k, rope)
    k, v = cache.update(b, k, v)  # [K, S, D]
    context = b.attention(q, k, v, visible, config.scaling)  # [T, N*D]
    with b.scope("o_proj"):
        return b.linear(context, *w.linear("o_proj"))  # [T, E]


def mlp(b: LayerBuilder, x: Value, w: Weights) -> Value:
    """x [T, E] -> [T, E]"""
    with b.scope("gate_proj"):
        gate = b.linear(x, *w.linear("gate_proj"))  # [T, F]
    with b.scope("up_proj"):
        up = b.linear(x, *w.linear("up_proj"))  # [T, F]
    with b.scope("act"):
        act = b.multiply(b.silu(gate), up)
    with b.scope("down_proj"):
        return b.linear(act, *w.linear("down_proj"))  # [T, E]


def block(b: LayerBuilder, x: Value, w: Weights, rope: RopeRows, cache: Cache, visible: Value, config: Config) -> Value:
    """x [T, E] -> [T, E]"""
    with b.scope("input_layernorm"):
        h = b.rms_norm(x, w["input_layernorm.weight"], config.rms_norm_eps)
    with b.scope("self_attn"):
        h = attention(b, h, w.inside("self_attn"), rope, cache, visible, config)
    x = b.add(x, h)
    with b.scope("post_attention_layernorm"):
        h = b.rms_norm(x, w["post_attention_layernorm.weight"], config.rms_norm_eps)
    with b.scope("mlp"):
        h = mlp(b, h, w.inside("mlp"))
    return b.add(x, h)
