"""How each architecture's config is read: transformers' keys and defaults on one side, mechanisms on the other.

The source of each is its `configuration_*.py`, and its `modeling_*.py` for what the keys do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloracle.reference.model.config import Config, Experts, Latent, Layer, Rope
from hloracle.reference.model.keys import (
    FULL,
    PLAIN,
    REQUIRED,
    SLIDING,
    Keys,
    RopeDefaults,
    rope,
    rope_per_layer_type,
    yarn_mscale,
)


@dataclass(frozen=True)
class _Layers:
    """What may differ from layer to layer.

    ropes: what the settings of RoPE are where keys do not say it; or, of a head_dim, the RoPE of each type of layer.
    turned: whether it turns a layer's queries and keys, of the layer and whether it has a window. windowed: whether a layer
    sees `window` keys only, where the key `layer_types` does not say it; all of them when None and there is a window.
    sparse: whether a layer has a mixture of experts.
    """

    ropes: RopeDefaults | Callable[[int], dict[str, Rope]] = PLAIN
    window: int | None = None
    windowed: Callable[[int], bool] | None = None
    turned: Callable[[int, bool], bool] = lambda layer, windowed: True
    sparse: Callable[[int], bool] = lambda layer: False

    def of(self, keys: Keys, head_dim: int) -> tuple[Layer, ...]:
        """Each layer of a config."""
        count = keys.get("num_hidden_layers", int)
        if isinstance(self.ropes, RopeDefaults):
            found = dict.fromkeys((FULL, SLIDING), rope(keys, head_dim, self.ropes))
        else:
            found = self.ropes(head_dim)
        narrow = keys.layer_types(count, self.windowed) if self.windowed else (self.window is not None,) * count
        if any(narrow) and self.window is None:
            raise keys.error("has layers with a sliding window, and no 'sliding_window'")
        return tuple(
            Layer(
                found[SLIDING if windowed else FULL] if self.turned(i, windowed) else None,
                self.window if windowed else None,
                self.sparse(i),
            )
            for i, windowed in enumerate(narrow)
        )


def _decoder(
    keys: Keys, architecture: str, layers: _Layers, *, usual_head_dim: int | None = None, kv_head_each: bool = False,
    **fields: Any,
) -> Config:  # fmt: skip
    """What all architectures have, read from the keys that they share.

    Args:
      usual_head_dim: what transformers takes where no key says it; hidden_size / heads when None.
      kv_head_each: whether transformers takes a config without num_key_value_heads to have one for each head.
      fields: of Config, those that an architecture has beside these, or that it reads from other keys.
    """
    heads, hidden = keys.get("num_attention_heads", int), keys.get("hidden_size", int)
    kv_heads = keys.get("num_key_value_heads", int, heads if kv_head_each else REQUIRED, heads)
    head_dim = fields.pop("head_dim", 0)
    head_dim = head_dim or keys.get("head_dim", int, usual_head_dim or hidden // heads, hidden // heads)
    if not head_dim:
        raise keys.error(f"num_attention_heads {heads} is more than hidden_size {hidden}")
    if heads % kv_heads:
        raise keys.error(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2 and "latent" not in fields:
        raise keys.error(f"head_dim {head_dim} is odd, and RoPE turns pairs")
    if "hidden_act" not in fields:
        fields["hidden_act"] = keys.activation()
    if "norm_eps" not in fields:
        fields["norm_eps"] = keys.get("rms_norm_eps", float)
    shared = {
        "num_key_value_heads": kv_heads, "scaling": float(head_dim**-0.5),
        "tie_word_embeddings": keys.get("tie_word_embeddings", bool, False),
    }  # fmt: skip
    return Config(
        architecture=architecture,
        layers=layers.of(keys, head_dim),
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=head_dim,
        intermediate_size=keys.get("intermediate_size", int),
        vocab_size=keys.get("vocab_size", int),
        max_position_embeddings=keys.get("max_position_embeddings", int),
        **(shared | fields),
    )


def _flag(keys: Keys, key: str, missing: bool = False) -> bool:
    return bool(keys.get(key, bool, missing))


def _biases(keys: Keys, missing: bool = False) -> dict[str, Any]:
    """One key for the biases of q, k, v and o."""
    found = _flag(keys, "attention_bias", missing)
    return {"attention_bias": found, "attention_out_bias": found}


def _tied(keys: Keys) -> dict[str, Any]:
    """The key of the tied head, for those whose head is tied where it is missing."""
    return {"tie_word_embeddings": _flag(keys, "tie_word_embeddings", True)}


def _window(keys: Keys, missing: int | None = 4096) -> int | None:
    """The keys that a windowed layer sees."""
    found: int | None = keys.get("sliding_window", int, missing, null=None)
    return found


def _window_if_used(keys: Keys) -> int | None:
    """The same, of those that have another key for whether it is used at all."""
    window = _window(keys)
    return window if _flag(keys, "use_sliding_window") else None


def _experts(keys: Keys, count: int, width: str, **fields: Any) -> Experts:
    """A mixture of so many experts, whose intermediate size `width` is the key of."""
    chosen = keys.get("num_experts_per_tok", int)
    if chosen > count:
        raise keys.error(f"num_experts_per_tok {chosen} is more than the {count} experts")
    return Experts(count, chosen, keys.get(width, int), **fields)


def _number_of_experts(keys: Keys, key: str) -> int:
    """`key`, for which transformers takes `num_local_experts` too: it sets that last, so that it wins."""
    if "num_local_experts" not in keys.raw:
        return int(keys.get(key, int))
    count: int = keys.get("num_local_experts", int)
    if (other := keys.get(key, int, count)) != count:
        raise keys.error(f"num_local_experts {count} is not {key} {other}, for which it stands", "keep one of the two")
    return count


def _all_sparse(layer: int) -> bool:
    return True


def _some_sparse(keys: Keys) -> Callable[[int], bool]:
    """Every `decoder_sparse_step`th layer, but for those that are listed."""
    step, dense = keys.get("decoder_sparse_step", int, 1), keys.get("mlp_only_layers", list, [])
    count = keys.get("num_hidden_layers", int)
    if not all(type(layer) is int and 0 <= layer < count for layer in dense):
        raise keys.error(f"key 'mlp_only_layers' is {dense}, not a list of layers below {count}")
    return lambda layer: layer not in dense and (layer + 1) % step == 0


# ---- the architectures


def llama(keys: Keys) -> Config:
    """Source: `LlamaConfig`."""
    return _decoder(keys, "llama", _Layers(), kv_head_each=True, mlp_bias=_flag(keys, "mlp_bias"), **_biases(keys))


def mistral(keys: Keys) -> Config:
    """Source: `MistralConfig`."""
    return _decoder(keys, "mistral", _Layers(window=_window(keys)))


def _late_windows(keys: Keys) -> _Layers:
    """A window in the layers from `max_window_layers` on, if it is used at all."""
    first, window = keys.get("max_window_layers", int, 28, zero=True), _window_if_used(keys)
    return _Layers(window=window, windowed=lambda layer: window is not None and layer >= first)


def qwen2(keys: Keys) -> Config:
    """Source: `Qwen2Config`."""
    keys.fix(use_mrope=False)
    return _decoder(keys, "qwen2", _late_windows(keys), attention_bias=True)


def qwen3(keys: Keys) -> Config:
    """Source: `Qwen3Config`."""
    return _decoder(keys, "qwen3", _late_windows(keys), usual_head_dim=128, qk_norm="head", **_biases(keys))


def _of_gemma(keys: Keys) -> dict[str, Any]:
    """What all Gemmas have."""
    # transformers keeps the factor as a float32.
    factor = float(np.float32(keys.get("hidden_size", int) ** 0.5))
    return {"usual_head_dim": 256, "embedding_multiplier": factor, **_tied(keys), **_biases(keys)}


def gemma(keys: Keys) -> Config:
    """Source: `GemmaConfig`."""
    keys.ignore("hidden_activation")
    # The official files say `gelu` and mean this.
    act = "gelu_pytorch_tanh" if keys.raw.get("hidden_act", "gelu") == "gelu" else keys.activation()
    keys.ignore("hidden_act")
    return _decoder(keys, "gemma", _Layers(), hidden_act=act, **_of_gemma(keys))


def gemma2(keys: Keys) -> Config:
    """Source: `Gemma2Config`."""
    keys.ignore("hidden_act sliding_window_size")
    return _decoder(
        keys, "gemma2", _Layers(window=_window(keys), windowed=lambda layer: layer % 2 == 0),
        hidden_act=keys.activation("hidden_activation", "gelu_pytorch_tanh"),
        scaling=keys.get("query_pre_attn_scalar", int, 256) ** -0.5,
        attn_logit_softcapping=keys.get("attn_logit_softcapping", float, 50.0, null=None),
        final_logit_softcapping=keys.get("final_logit_softcapping", float, 30.0, null=None), **_of_gemma(keys),
    )  # fmt: skip


def gemma3(keys: Keys) -> Config:
    """Source: `Gemma3TextConfig`."""
    keys.ignore("hidden_act")
    # Its attention does not read the first, whatever it is.
    keys.ignore("attn_logit_softcapping _sliding_window_pattern")
    period = keys.get("sliding_window_pattern", int, 6)
    layers = _Layers(
        lambda width: rope_per_layer_type(keys, width, {FULL: 1e6, SLIDING: 1e4}, "rope_local_base_freq"),
        _window(keys), lambda layer: bool((layer + 1) % period),
    )  # fmt: skip
    return _decoder(
        keys, "gemma3_text", layers, hidden_act=keys.activation("hidden_activation", "gelu_pytorch_tanh"),
        scaling=keys.get("query_pre_attn_scalar", int, 256) ** -0.5, qk_norm="head",
        final_logit_softcapping=keys.get("final_logit_softcapping", float, None), **_of_gemma(keys),
    )  # fmt: skip


def phi3(keys: Keys) -> Config:
    """Source: `Phi3Config`."""
    keys.fix(attention_bias=False, mlp_bias=False, lm_head_bias=False, full_attn_mod=1)
    # Of Phi-4's own code, for what transformers' has not.
    keys.ignore("interpolate_factor")
    original = keys.get("original_max_position_embeddings", int, 4096)
    ropes = RopeDefaults(partial=1.0, types=("default", "longrope"), original=original)
    return _decoder(keys, "phi3", _Layers(ropes, _window(keys, None)), kv_head_each=True)


def olmo2(keys: Keys) -> Config:
    """Source: `Olmo2Config`."""
    return _decoder(keys, "olmo2", _Layers(), kv_head_each=True, qk_norm="all", **_biases(keys))


def olmo3(keys: Keys) -> Config:
    """Source: `Olmo3Config`."""
    layers = _Layers(
        lambda width: rope_per_layer_type(keys, width, {FULL: 5e5, SLIDING: 5e5}), _window(keys),
        lambda layer: bool((layer + 1) % 4),
    )  # fmt: skip
    return _decoder(keys, "olmo3", layers, kv_head_each=True, qk_norm="all", **_biases(keys))


def smollm3(keys: Keys) -> Config:
    """Source: `SmolLM3Config`."""
    keys.ignore("max_window_layers")
    used, window = _flag(keys, "use_sliding_window"), _window(keys, None)
    period = keys.get("no_rope_layer_interval", int, 4)
    listed = keys.numbers("no_rope_layers", keys.get("num_hidden_layers", int))

    def turned(layer: int, windowed: bool = False) -> bool:
        return bool(listed[layer]) if listed else bool((layer + 1) % period)

    layers = _Layers(RopeDefaults(2e6), window, lambda layer: used and window is not None and not turned(layer), turned)
    return _decoder(keys, "smollm3", layers, mlp_bias=_flag(keys, "mlp_bias"), **_tied(keys), **_biases(keys))


def granite(keys: Keys) -> Config:
    """Source: `GraniteConfig`."""
    return _decoder(
        keys, "granite", _Layers(), kv_head_each=True, scaling=keys.get("attention_multiplier", float, 1.0),
        embedding_multiplier=keys.get("embedding_multiplier", float, 1.0),
        residual_multiplier=keys.get("residual_multiplier", float, 1.0),
        logits_multiplier=1 / keys.get("logits_scaling", float, 1.0), mlp_bias=_flag(keys, "mlp_bias"), **_biases(keys),
    )  # fmt: skip


def _of_cohere(keys: Keys) -> dict[str, Any]:
    """What all of Cohere's have."""
    eps, scale = keys.get("layer_norm_eps", float), keys.get("logit_scale", float, 0.0625)
    return {"kv_head_each": True, "norm_eps": eps, "logits_multiplier": scale, **_tied(keys), **_biases(keys)}


def cohere(keys: Keys) -> Config:
    """Source: `CohereConfig`."""
    keys.ignore("model_max_length")
    qk_norm = "own" if _flag(keys, "use_qk_norm") else ""
    return _decoder(keys, "cohere", _Layers(RopeDefaults(5e5, interleaved=True)), qk_norm=qk_norm, **_of_cohere(keys))


def cohere2(keys: Keys) -> Config:
    """Source: `Cohere2Config`."""
    keys.fix(
        order_of_interleaved_layers="local_attn_first", position_embedding_type="rope_gptj", rotary_pct=1.0,
        use_gated_activation=True, use_parallel_block=True, use_qk_norm=False,
    )  # fmt: skip
    keys.ignore("layer_switch use_embedding_sharing use_parallel_embedding _sliding_window_pattern")
    period = keys.get("sliding_window_pattern", int, 4)
    layers = _Layers(
        RopeDefaults(interleaved=True), _window(keys), lambda layer: bool((layer + 1) % period),
        turned=lambda layer, windowed: windowed,
    )  # fmt: skip
    return _decoder(keys, "cohere2", layers, **_of_cohere(keys))


def stablelm(keys: Keys) -> Config:
    """Source: `StableLmConfig`."""
    hidden, heads = keys.get("hidden_size", int), keys.get("num_attention_heads", int)
    if hidden % heads:
        raise keys.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if (width := keys.get("head_dim", int, hidden // heads)) != hidden // heads:
        # transformers would turn the dimensions of other heads than it has.
        raise keys.error(f"head_dim {width} is not hidden_size / num_attention_heads, {hidden // heads}")
    return _decoder(
        keys, "stablelm", _Layers(RopeDefaults(partial=0.25)), head_dim=hidden // heads,
        norm_eps=keys.get("layer_norm_eps", float), norm_bias=True, attention_bias=_flag(keys, "use_qkv_bias"),
        qk_norm="own" if _flag(keys, "qk_layernorm") else "",
        use_parallel_residual=_flag(keys, "use_parallel_residual"),
    )  # fmt: skip


def starcoder2(keys: Keys) -> Config:
    """Source: `Starcoder2Config`."""
    keys.fix(norm_type="layer_norm", mlp_type="default")
    bias = _flag(keys, "use_bias", True)
    return _decoder(
        keys, "starcoder2", _Layers(window=_window(keys, None)), norm_eps=keys.get("norm_epsilon", float),
        norm_bias=True, attention_bias=bias, attention_out_bias=bias, mlp_bias=bias, **_tied(keys),
    )  # fmt: skip


def glm4(keys: Keys) -> Config:
    """Source: `Glm4Config`."""
    return _decoder(
        keys, "glm4", _Layers(RopeDefaults(partial=0.5, interleaved=True)), usual_head_dim=128,
        attention_bias=_flag(keys, "attention_bias", True),
    )  # fmt: skip


def seed_oss(keys: Keys) -> Config:
    """Source: `SeedOssConfig`."""
    return _decoder(
        keys, "seed_oss", _Layers(), usual_head_dim=128, mlp_bias=_flag(keys, "mlp_bias"),
        attention_bias=_flag(keys, "attention_bias", True), attention_out_bias=_flag(keys, "attention_out_bias"),
    )  # fmt: skip


def mixtral(keys: Keys) -> Config:
    """Source: `MixtralConfig`."""
    experts = _experts(keys, keys.get("num_local_experts", int), "intermediate_size", norm_topk_prob=True)
    layers = _Layers(RopeDefaults(1e6), _window(keys, None), sparse=_all_sparse)
    return _decoder(keys, "mixtral", layers, experts=experts)


def qwen2_moe(keys: Keys) -> Config:
    """Source: `Qwen2MoeConfig`."""
    experts = _experts(
        keys, keys.get("num_experts", int), "moe_intermediate_size", norm_topk_prob=_flag(keys, "norm_topk_prob"),
        shared_intermediate_size=keys.get("shared_expert_intermediate_size", int),
    )  # fmt: skip
    used, last = _flag(keys, "use_sliding_window"), keys.get("max_window_layers", int, 28, zero=True)
    window = keys.get("sliding_window", int, 4096, null=None, zero=True) or None
    layers = _Layers(
        window=window if used else None, windowed=lambda layer: used and layer % 2 == 0 and layer < last,
        sparse=_some_sparse(keys),
    )  # fmt: skip
    return _decoder(keys, "qwen2_moe", layers, experts=experts, attention_bias=_flag(keys, "qkv_bias", True))


def qwen3_moe(keys: Keys) -> Config:
    """Source: `Qwen3MoeConfig`."""
    keys.ignore("max_window_layers")
    count = _number_of_experts(keys, "num_experts")
    experts = _experts(keys, count, "moe_intermediate_size", norm_topk_prob=_flag(keys, "norm_topk_prob"))
    layers = _Layers(window=_window_if_used(keys), sparse=_some_sparse(keys))
    return _decoder(keys, "qwen3_moe", layers, experts=experts, qk_norm="head", **_biases(keys))


def olmoe(keys: Keys) -> Config:
    """Source: `OlmoeConfig`."""
    count = keys.get("num_experts", int)
    experts = _experts(keys, count, "intermediate_size", norm_topk_prob=_flag(keys, "norm_topk_prob"))
    return _decoder(
        keys, "olmoe", _Layers(sparse=_all_sparse), kv_head_each=True, experts=experts, qk_norm="all",
        clip_qkv=keys.get("clip_qkv", float, None), **_biases(keys),
    )  # fmt: skip


def gpt_oss(keys: Keys) -> Config:
    """Source: `GptOssConfig`."""
    keys.ignore("experts_per_token initial_context_length")
    if not (keys.raw.get("rope_parameters") or keys.raw.get("rope_scaling")):
        # transformers would put a YaRN of its own in their place.
        raise keys.error("key 'rope_parameters' is missing")
    experts = _experts(
        keys, keys.get("num_local_experts", int), "intermediate_size", scoring="softmax-of-chosen",
        swiglu_limit=keys.get("swiglu_limit", float, 7.0), swiglu_alpha=keys.get("swiglu_alpha", float, 1.702),
    )  # fmt: skip
    layers = _Layers(RopeDefaults(150000.0), _window(keys, 128), lambda layer: layer % 2 == 0, sparse=_all_sparse)
    return _decoder(keys, "gpt_oss", layers, usual_head_dim=64, experts=experts, **_biases(keys, True))


def deepseek_v3(keys: Keys) -> Config:
    """Source: `DeepseekV3Config`."""
    keys.fix(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    # The layers that predict further tokens are not part of the model that answers.
    keys.ignore("num_nextn_predict_layers num_mtp_layers ep_size aux_loss_alpha seq_aux qk_head_dim")
    heads = keys.get("num_attention_heads", int)
    if (kv_heads := keys.get("num_key_value_heads", int, null=heads)) != heads:
        raise keys.error(
            f"num_key_value_heads {kv_heads} is not num_attention_heads {heads}: each has its own of a latent"
        )
    shared, width = keys.get("n_shared_experts", int), keys.get("moe_intermediate_size", int)
    experts = _experts(
        keys, _number_of_experts(keys, "n_routed_experts"), "moe_intermediate_size", scoring="sigmoid",
        norm_topk_prob=_flag(keys, "norm_topk_prob", True), norm_topk_eps=1e-20, n_group=keys.get("n_group", int),
        topk_group=keys.get("topk_group", int), routed_scaling_factor=keys.get("routed_scaling_factor", float, 2.5),
        shared_intermediate_size=shared * width,
    )  # fmt: skip
    if experts.num_experts % experts.n_group or experts.num_experts < 2 * experts.n_group:
        raise keys.error(
            f"n_routed_experts {experts.num_experts} are not {experts.n_group} groups of two or more (n_group)"
        )
    if experts.topk_group > experts.n_group:
        raise keys.error(f"topk_group {experts.topk_group} is more than the {experts.n_group} groups")
    if experts.num_experts_per_tok > experts.num_experts // experts.n_group * experts.topk_group:
        raise keys.error(f"num_experts_per_tok {experts.num_experts_per_tok} is more than the chosen groups have")
    latent = Latent(
        q_lora_rank=keys.get("q_lora_rank", int, 1536, null=None), kv_lora_rank=keys.get("kv_lora_rank", int),
        qk_nope_head_dim=keys.get("qk_nope_head_dim", int), qk_rope_head_dim=keys.get("qk_rope_head_dim", int),
        v_head_dim=keys.get("v_head_dim", int), rope_interleave=_flag(keys, "rope_interleave", True),
    )  # fmt: skip
    if (width := keys.get("head_dim", int, latent.qk_rope_head_dim)) != latent.qk_rope_head_dim:
        raise keys.error(
            f"head_dim {width} is not qk_rope_head_dim {latent.qk_rope_head_dim}, for which it stands here"
        )
    turned = rope(keys, latent.qk_rope_head_dim)
    scaling = (latent.qk_nope_head_dim + latent.qk_rope_head_dim) ** -0.5
    settings = keys.raw.get("rope_parameters") or keys.raw.get("rope_scaling") or {}
    if turned.type != "default" and settings.get("mscale_all_dim"):
        scaling *= yarn_mscale(turned.factor, settings["mscale_all_dim"]) ** 2
    first = keys.get("first_k_dense_replace", int, 3, zero=True)
    layers = _Layers(lambda width: {FULL: turned}, sparse=lambda layer: layer >= first)
    return _decoder(
        keys, "deepseek_v3", layers, head_dim=latent.qk_nope_head_dim + latent.qk_rope_head_dim, num_key_value_heads=1,
        scaling=scaling, experts=experts, latent=latent, **_biases(keys),
    )  # fmt: skip
