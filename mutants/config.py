"""Configs that are read wrongly. Both the oracle and the emitter believe them, so only Hugging Face shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config

Q_ROPE, SCORES = "layers.0.self_attn.q_rope", "layers.0.self_attn.scores"


def accepted(
    id: str, fault: str, anchor: str, change: Callable[[Config], Config], model: str = "tiny-llama"
) -> None:  # fmt: skip
    """Register a config that is read wrongly. No two graphs differ then: only Hugging Face shows it."""

    @mutant(
        id, "config", fault, part="reference", anchor=anchor, replaces="reference.model.registry:from_hf", model=model
    )  # fmt: skip
    def from_hf(right: Right[Config], raw: dict[str, Any], where: object = "config") -> Config:
        return change(right(raw, where))


def with_rope(config: Config, **changes: Any) -> Config:
    """Other RoPE settings in every layer."""
    return dataclasses.replace(config, layers=tuple(
        dataclasses.replace(layer, rope=layer.rope and dataclasses.replace(layer.rope, **changes))
        for layer in config.layers
    ))  # fmt: skip


accepted(
    "config-eps", "rms_norm_eps is taken for the default", "layers.0.input_layernorm",
    lambda config: dataclasses.replace(config, norm_eps=1e-6),
)  # fmt: skip
accepted(
    "config-rope-theta", "rope_theta is taken for another default", Q_ROPE,
    lambda config: with_rope(config, theta=500000.0),
)  # fmt: skip
accepted(
    "config-rope-scaling", "rope_scaling is ignored", Q_ROPE,
    lambda config: with_rope(config, type="default"),
)  # fmt: skip
accepted(
    "config-head-count", "twice as many heads, half as large: every weight's shape still fits", Q_ROPE,
    lambda config: dataclasses.replace(
        config, num_attention_heads=2 * config.num_attention_heads,
        num_key_value_heads=2 * config.num_key_value_heads, head_dim=config.head_dim // 2,
        scaling=(config.head_dim // 2) ** -0.5, layers=with_rope(config, dim=config.head_dim // 2).layers,
    ),
)  # fmt: skip


# ---- of other families


def with_fields(**fields: Any) -> Callable[[Config], Config]:
    """Other values of the config's own fields."""
    return lambda config: dataclasses.replace(config, **fields)


def with_experts(**fields: Any) -> Callable[[Config], Config]:
    """Other values of the experts' fields."""

    def change(config: Config) -> Config:
        assert config.experts
        return dataclasses.replace(config, experts=dataclasses.replace(config.experts, **fields))

    return change


def with_layers(*order: int, windows: bool = True, ropes: bool = True) -> Callable[[Config], Config]:
    """Each layer has the window, and the RoPE, of the layer whose number stands in its place."""

    def change(config: Config) -> Config:
        layers = config.layers
        return dataclasses.replace(config, layers=tuple(
            dataclasses.replace(
                layer, window=layers[other].window if windows else layer.window,
                rope=layers[other].rope if ropes else layer.rope,
            )
            for layer, other in zip(layers, order, strict=True)
        ))  # fmt: skip

    return change


def with_window(window: int | None) -> Callable[[Config], Config]:
    """The same window in every layer; None for no window."""
    return lambda config: dataclasses.replace(
        config, layers=tuple(dataclasses.replace(layer, window=window) for layer in config.layers)
    )


accepted("config-window-ignored", "sliding_window is ignored", SCORES, with_window(None), "tiny-mistral")
accepted(
    "config-window-off-by-one",
    "sliding_window counts the keys before a query",
    SCORES,
    with_window(12),
    "tiny-starcoder2",
)
accepted(
    "config-window-of-mixtral", "sliding_window is taken for an unused key", SCORES, with_window(None), "tiny-mixtral"
)
accepted("config-window-of-phi3", "sliding_window is taken for an unused key", SCORES, with_window(None), "tiny-phi3")
accepted("config-window-layers", "max_window_layers counts windowed layers", SCORES, with_layers(1, 0), "tiny-qwen2")
accepted("config-layer-types-shifted", "layer_types begin with the second", SCORES, with_layers(1, 0), "tiny-gemma2")
accepted(
    "config-layer-types-local",
    "the full layers' window is forgotten, not their RoPE",
    SCORES,
    with_layers(1, 0, ropes=False),
    "tiny-olmo3",
)
accepted(
    "config-rope-sets-shifted",
    "rope_parameters of the two types are exchanged",
    Q_ROPE,
    with_layers(1, 0, windows=False),
    "tiny-gemma3_text",
)
accepted(
    "config-no-rope-inverted",
    "no_rope_layers names layers without RoPE by 1",
    "k_cache.0",
    with_layers(1, 0),
    "tiny-smollm3",
)
accepted(
    "config-window-everywhere",
    "the full layers have a window too",
    "layers.1.self_attn.scores",
    with_layers(0, 0, ropes=False),
    "tiny-cohere2",
)
accepted(
    "config-scores-not-capped",
    "attn_logit_softcapping is ignored",
    SCORES,
    with_fields(attn_logit_softcapping=None),
    "tiny-gemma2",
)
accepted(
    "config-logits-not-capped",
    "final_logit_softcapping is ignored",
    "lm_head",
    with_fields(final_logit_softcapping=None),
    "tiny-gemma2",
)
accepted(
    "config-query-scalar",
    "query_pre_attn_scalar is taken for head_dim",
    SCORES,
    with_fields(scaling=0.25),
    "tiny-gemma3_text",
)
accepted(
    "config-embedding-scale",
    "embeddings are not scaled",
    "embed_tokens",
    with_fields(embedding_multiplier=1.0),
    "tiny-gemma",
)
accepted(
    "config-activation", "hidden_activation is silu", "layers.0.mlp.act", with_fields(hidden_act="silu"), "tiny-gemma"
)
accepted(
    "config-residual-multiplier",
    "residual_multiplier is ignored",
    "layers.0.post_attention_layernorm",
    with_fields(residual_multiplier=1.0),
    "tiny-granite",
)
accepted(
    "config-attention-multiplier", "attention_multiplier is ignored", SCORES, with_fields(scaling=0.25), "tiny-granite"
)
accepted(
    "config-logits-scaling", "logits_scaling multiplies", "lm_head", with_fields(logits_multiplier=2.5), "tiny-granite"
)
accepted(
    "config-logit-scale", "logit_scale is its default", "lm_head", with_fields(logits_multiplier=0.0625), "tiny-cohere"
)
accepted(
    "config-layer-norm-eps",
    "layer_norm_eps is its default",
    "layers.0.input_layernorm",
    with_fields(norm_eps=1e-5),
    "tiny-stablelm",
)
accepted(
    "config-partial-rotary",
    "partial_rotary_factor is a half",
    Q_ROPE,
    lambda config: with_rope(config, dim=8),
    "tiny-stablelm",
)
accepted(
    "config-partial-ignored",
    "partial_rotary_factor is ignored",
    Q_ROPE,
    lambda config: with_rope(config, dim=16),
    "tiny-glm4",
)
accepted(
    "config-interleaved",
    "pairs are halves, as Llama's",
    Q_ROPE,
    lambda config: with_rope(config, interleaved=False),
    "tiny-glm4",
)
accepted(
    "config-rope-theta-of-mistral",
    "rope_theta is Mistral's own million",
    Q_ROPE,
    lambda config: with_rope(config, theta=1e6),
    "tiny-mistral",
)
accepted(
    "config-rope-theta-missing",
    "rope_theta is Qwen's own million",
    Q_ROPE,
    lambda config: with_rope(config, theta=1e6),
    "tiny-qwen3",
)
accepted(
    "config-rope-theta-of-olmo2",
    "rope_theta is OLMo's own 500000",
    Q_ROPE,
    lambda config: with_rope(config, theta=5e5),
    "tiny-olmo2",
)
accepted("config-yarn-factor", "YaRN's factor is 8", Q_ROPE, lambda config: with_rope(config, factor=8.0), "tiny-qwen2")
accepted(
    "config-truncate",
    "YaRN's truncate is taken for its default",
    Q_ROPE,
    lambda config: with_rope(config, truncate=True),
    "tiny-gpt_oss",
)
accepted(
    "config-dynamic-length",
    "the trained length is taken for twice as long",
    Q_ROPE,
    lambda config: with_rope(config, original_max_position_embeddings=50),
    "tiny-seed_oss",
)
accepted(
    "config-longrope-scale",
    "LongRoPE's factor is taken for that of one context",
    Q_ROPE,
    lambda config: with_rope(config, attention_factor=1.0),
    "tiny-phi3",
)
accepted(
    "config-topk-normed",
    "norm_topk_prob is taken for true",
    "layers.1.mlp.routing",
    with_experts(norm_topk_prob=True),
    "tiny-qwen2_moe",
)
accepted(
    "config-topk-not-normed",
    "norm_topk_prob is taken for false",
    "layers.1.mlp.routing",
    with_experts(norm_topk_prob=False),
    "tiny-qwen3_moe",
)
accepted("config-clip", "clip_qkv is ignored", Q_ROPE, with_fields(clip_qkv=None), "tiny-olmoe")
accepted(
    "config-swiglu-limit",
    "swiglu_limit is its default",
    "layers.0.mlp.experts",
    with_experts(swiglu_limit=7.0),
    "tiny-gpt_oss",
)
accepted("config-topk-group", "topk_group is 1", "layers.1.mlp.routing", with_experts(topk_group=1), "tiny-deepseek_v3")
accepted(
    "config-routed-scaling",
    "routed_scaling_factor is ignored",
    "layers.1.mlp.routing",
    with_experts(routed_scaling_factor=1.0),
    "tiny-deepseek_v3",
)
accepted(
    "config-mscale",
    "mscale_all_dim does not scale the scores",
    SCORES,
    with_fields(scaling=22**-0.5),
    "tiny-deepseek_v3",
)
