"""GPT-OSS (transformers' `GptOssForCausalLM`): attention with sinks, every other layer in a window; experts with clamped SwiGLU.

Mirrors `reference/oracle/architectures/gpt_oss.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from functools import partial

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import ExpertWeights, LayerBuilder, Scoring
from hloracle.emitters.model import LayerInputs, Weights
from hloracle.reference.model.config import Config


def norm(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """The RMS norm of x [T, E] over its last axis."""
    return b.rms_norm(x, w["weight"], config.norm_eps)


def attention(b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config) -> Value:
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
        q = b.rotary(q, layer.rope)
    with b.scope("k_rope"):
        k = b.rotary(k, layer.rope)
    k, v = layer.cache.update(b, k, v)  # [K, S, D]
    context = b.attention(q, k, v, Scoring(layer.visible, config.scaling, sinks=w["sinks"]))  # [T, N*D]
    with b.scope("o_proj"):
        return b.linear(context, *w.linear("o_proj"))  # [T, E]


def moe(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """x [T, E] -> [T, E], through the experts that each token chooses."""
    assert config.experts
    limit, alpha = config.experts.swiglu_limit, config.experts.swiglu_alpha
    with b.scope("router"):
        logits = b.linear(b.as_f32(x), *w.linear("router"))  # [T, X]
    with b.scope("routing"):
        routing = b.route(logits, config.experts)  # [T, X]
    with b.scope("experts"):
        names = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
        weights = ExpertWeights(*(w[f"experts.{name}"] for name in names))
        gated = partial(b.clamped_swiglu, limit=limit, alpha=alpha)
        return b.experts(x, routing, weights, config.experts, gated, transposed=True)


def block(b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config) -> Value:
    """x [T, E] -> [T, E]"""
    with b.scope("input_layernorm"):
        h = norm(b, x, w.inside("input_layernorm"), config)
    with b.scope("self_attn"):
        h = attention(b, h, w.inside("self_attn"), layer, config)
    x = b.add(x, h)
    with b.scope("post_attention_layernorm"):
        h = norm(b, x, w.inside("post_attention_layernorm"), config)
    with b.scope("mlp"):
        h = moe(b, h, w.inside("mlp"), config)
    return b.add(x, h)
