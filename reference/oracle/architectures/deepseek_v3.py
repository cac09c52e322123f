"""DeepSeek V3 (transformers' `DeepseekV3ForCausalLM`): latent attention, experts in groups and a shared one.

Mirrors `emitters/architectures/deepseek_v3.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from jax import Array

from hloracle.reference.model.config import Config
from hloracle.reference.oracle.layers import Scoring, in_halves, latent_attention, linear, rms_norm, rotary, scope
from hloracle.reference.oracle.mlp import gated_mlp, moe
from hloracle.reference.oracle.model import LayerInputs, Weights


def norm(x: Array, w: Weights, config: Config) -> Array:
    """The RMS norm of x [T, E] over its last axis."""
    return rms_norm(x, w["weight"], config.norm_eps)


def attention(x: Array, w: Weights, layer: LayerInputs, config: Config) -> Array:
    """x [T, E] -> [T, E]; the cache holds this layer's latents and its keys' turned dimensions."""
    assert config.latent
    T, N, R, eps = x.shape[0], config.num_attention_heads, config.latent.kv_lora_rank, config.latent.eps
    P, Z = config.latent.qk_nope_head_dim, config.latent.qk_rope_head_dim
    if config.latent.q_lora_rank:
        with scope("q_a_proj"):
            q = linear(x, *w.linear("q_a_proj"))  # [T, Q]
        with scope("q_a_layernorm"):
            q = rms_norm(q, w["q_a_layernorm.weight"], eps)
        with scope("q_b_proj"):
            q = linear(q, *w.linear("q_b_proj"))
            q = q.reshape(T, N, P + Z)  # [T, N, P+Z]
    else:
        with scope("q_proj"):
            q = linear(x, *w.linear("q_proj"))
            q = q.reshape(T, N, P + Z)  # [T, N, P+Z]
    with scope("kv_a_proj_with_mqa"):
        kv = linear(x, *w.linear("kv_a_proj_with_mqa"))  # [T, R+Z]
    with scope("kv_a_layernorm"):
        latents = rms_norm(kv[:, :R], w["kv_a_layernorm.weight"], eps)  # [T, R]
    with scope("q_rope"):
        q_rope = rotary(in_halves(q[:, :, P:], config.latent.rope_interleave), layer.rope)  # [T, N, Z]
    with scope("k_rope"):
        k_rope = kv[:, R:].reshape(T, 1, Z)
        k_rope = rotary(in_halves(k_rope, config.latent.rope_interleave), layer.rope)  # [T, 1, Z]
    latents, k_rope = layer.cache.update(latents.reshape(T, 1, R), k_rope)  # [1, S, R], [1, S, Z]
    expand = w["kv_b_proj.weight"].reshape(N, P + config.latent.v_head_dim, R)  # [N, P+U, R]
    q = q[:, :, :P]  # [T, N, P]
    context = latent_attention(q, q_rope, latents, k_rope, expand, Scoring(layer.visible, config.scaling))  # [T, N*U]
    with scope("o_proj"):
        return linear(context, *w.linear("o_proj"))  # [T, E]


def shared_moe(x: Array, w: Weights, config: Config) -> Array:
    """x [T, E] -> [T, E]: the chosen experts, and one for every token."""
    h = moe(x, w, config)
    with scope("shared_experts"):
        shared = gated_mlp(x, w.inside("shared_experts"), config)
    return h + shared


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
        h = shared_moe(h, w.inside("mlp"), config) if layer.sparse else gated_mlp(h, w.inside("mlp"), config)
    return x + h
