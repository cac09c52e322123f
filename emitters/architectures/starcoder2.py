"""StarCoder2 (transformers' `Starcoder2ForCausalLM`): pre-norm blocks with LayerNorm, a plain MLP, and biases everywhere.

Mirrors `reference/oracle/architectures/starcoder2.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Scoring
from hloracle.emitters.model import LayerInputs, Weights
from hloracle.reference.model.config import Config


def norm(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """The layer norm of x [T, E] over its last axis."""
    return b.layer_norm(x, w["weight"], w.get("bias"), config.norm_eps)


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
    context = b.attention(q, k, v, Scoring(layer.visible, config.scaling))  # [T, N*D]
    with b.scope("o_proj"):
        return b.linear(context, *w.linear("o_proj"))  # [T, E]


def mlp(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """x [T, E] -> [T, E]"""
    with b.scope("c_fc"):
        h = b.linear(x, *w.linear("c_fc"))  # [T, F]
    with b.scope("act"):
        h = b.activation(config.hidden_act, h)
    with b.scope("c_proj"):
        return b.linear(h, *w.linear("c_proj"))  # [T, E]


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
        h = mlp(b, h, w.inside("mlp"), config)
    return b.add(x, h)
