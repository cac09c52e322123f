"""DeepSeek V3 (transformers' `DeepseekV3ForCausalLM`): latent attention, experts in groups and a shared one.

Mirrors `reference/oracle/architectures/deepseek_v3.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Scoring
from hloracle.emitters.mlp import gated_mlp, moe
from hloracle.emitters.model import LayerInputs, Weights
from hloracle.reference.model.config import Config


def norm(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """The RMS norm of x [T, E] over its last axis."""
    return b.rms_norm(x, w["weight"], config.norm_eps)


def attention(b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config) -> Value:
    """x [T, E] -> [T, E]; the cache holds this layer's latents and its keys' turned dimensions."""
    assert config.latent
    T, N, R, eps = x.shape[0], config.num_attention_heads, config.latent.kv_lora_rank, config.latent.eps
    P, Z = config.latent.qk_nope_head_dim, config.latent.qk_rope_head_dim
    if config.latent.q_lora_rank:
        with b.scope("q_a_proj"):
            q = b.linear(x, *w.linear("q_a_proj"))  # [T, Q]
        with b.scope("q_a_layernorm"):
            q = b.rms_norm(q, w["q_a_layernorm.weight"], eps)
        with b.scope("q_b_proj"):
            q = b.linear(q, *w.linear("q_b_proj"))
            q = b.reshape(q, (T, N, P + Z))  # [T, N, P+Z]
    else:
        with b.scope("q_proj"):
            q = b.linear(x, *w.linear("q_proj"))
            q = b.reshape(q, (T, N, P + Z))  # [T, N, P+Z]
    with b.scope("kv_a_proj_with_mqa"):
        kv = b.linear(x, *w.linear("kv_a_proj_with_mqa"))  # [T, R+Z]
    with b.scope("kv_a_layernorm"):
        latents = b.rms_norm(b.part(kv, 1, 0, R), w["kv_a_layernorm.weight"], eps)  # [T, R]
    with b.scope("q_rope"):
        q_rope = b.rotary(b.in_halves(b.part(q, 2, P, P + Z), config.latent.rope_interleave), layer.rope)  # [T, N, Z]
    with b.scope("k_rope"):
        k_rope = b.reshape(b.part(kv, 1, R, R + Z), (T, 1, Z))
        k_rope = b.rotary(b.in_halves(k_rope, config.latent.rope_interleave), layer.rope)  # [T, 1, Z]
    latents, k_rope = layer.cache.update(b, b.reshape(latents, (T, 1, R)), k_rope)  # [1, S, R], [1, S, Z]
    expand = b.reshape(b.dense(w["kv_b_proj.weight"]), (N, P + config.latent.v_head_dim, R))  # [N, P+U, R]
    q = b.part(q, 2, 0, P)  # [T, N, P]
    context = b.latent_attention(q, q_rope, latents, k_rope, expand, Scoring(layer.visible, config.scaling))  # [T, N*U]
    with b.scope("o_proj"):
        return b.linear(context, *w.linear("o_proj"))  # [T, E]


def shared_moe(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """x [T, E] -> [T, E]: the chosen experts, and one for every token."""
    h = moe(b, x, w, config)
    with b.scope("shared_experts"):
        shared = gated_mlp(b, x, w.inside("shared_experts"), config)
    return b.add(h, shared)


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
        h = shared_moe(b, h, w.inside("mlp"), config) if layer.sparse else gated_mlp(b, h, w.inside("mlp"), config)
    return b.add(x, h)
