"""GPT-OSS (transformers' `GptOssForCausalLM`): attention with sinks, every other layer in a window; experts with clamped SwiGLU.

Mirrors `emitters/architectures/gpt_oss.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from functools import partial

from jax import Array

from hloracle.reference.model.config import Config
from hloracle.reference.oracle.layers import (
    ExpertWeights,
    Scoring,
    clamped_swiglu,
    experts,
    linear,
    rms_norm,
    rotary,
    route,
    scope,
    wide,
)
from hloracle.reference.oracle.layers import attention as grouped_attention
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
    context = grouped_attention(q, k, v, Scoring(layer.visible, config.scaling, sinks=w["sinks"]))  # [T, N*D]
    with scope("o_proj"):
        return linear(context, *w.linear("o_proj"))  # [T, E]


def moe(x: Array, w: Weights, config: Config) -> Array:
    """x [T, E] -> [T, E], through the experts that each token chooses."""
    assert config.experts
    limit, alpha = config.experts.swiglu_limit, config.experts.swiglu_alpha
    with scope("router"):
        logits = linear(wide(x), *w.linear("router"))  # [T, X]
    with scope("routing"):
        routing = route(logits, config.experts)  # [T, X]
    with scope("experts"):
        names = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
        weights = ExpertWeights(*(w[f"experts.{name}"] for name in names))
        gated = partial(clamped_swiglu, limit=limit, alpha=alpha)
        return experts(x, routing, weights, config.experts, gated, transposed=True)


def block(x: Array, w: Weights, layer: LayerInputs, config: Config) -> Array:
    """x [T, E] -> [T, E]"""
    with scope("input_layernorm"):
        h = norm(x, w.inside("input_layernorm"), config)
    with scope("self_attn"):
        h = attention(h, w.inside("self_attn"), layer, config)
    x = x + h
    with scope("post_attention_layernorm"):
        h = norm(x, w.inside("post_attention_layernorm"), config)
    with scope("mlp"):
        h = moe(h, w.inside("mlp"), config)
    return x + h
