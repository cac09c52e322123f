"""`config.json` as published models have it: old and new forms of RoPE, keys that say nothing, nulls and zeros.

Long lists are made by rule, and of what says nothing about the computation there is enough to see that it is ignored.
"""

from __future__ import annotations

from typing import Any


def _published(model_type: str, architecture: str, **keys: Any) -> dict[str, Any]:
    usual = {
        "architectures": [architecture], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "initializer_range": 0.02, "model_type": model_type, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1", "use_cache": True,
    }  # fmt: skip
    return usual | keys


def _shape(
    layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocab: int, length: int, hidden_act: str = "silu"
) -> dict[str, Any]:
    return {
        "hidden_act": hidden_act, "hidden_size": hidden, "intermediate_size": inner, "max_position_embeddings": length,
        "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "vocab_size": vocab,
    }  # fmt: skip


def _kinds(layers: int, period: int) -> list[str]:
    """Every `period`th layer sees all."""
    return ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)]


_GEMMA_2 = {
    "attention_bias": False, "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
}  # fmt: skip
_QWEN_3 = {
    "attention_bias": False, "head_dim": 128, "max_window_layers": 48, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
}  # fmt: skip
_YARN_OF_OLMO_3 = {
    "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
    "original_max_position_embeddings": 8192, "rope_type": "yarn",
}  # fmt: skip

PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B-Instruct": _published(
        "llama", "LlamaForCausalLM", **_shape(32, 4096, 32, 8, 14336, 128256, 131072), attention_bias=False,
        mlp_bias=False, pretraining_tp=1, rms_norm_eps=1e-05, rope_theta=500000.0, tie_word_embeddings=False,
        rope_scaling={
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    ),
    "Llama-2-7b": _published(
        "llama", "LlamaForCausalLM", **_shape(32, 4096, 32, 32, 11008, 32000, 4096), _name_or_path="llama",
        pretraining_tp=1, rms_norm_eps=1e-05, rope_scaling=None, tie_word_embeddings=False,
    ),
    "deepseek-coder-6.7b": _published(
        "llama", "LlamaForCausalLM", **_shape(32, 4096, 32, 32, 11008, 32256, 16384), pretraining_tp=1,
        rms_norm_eps=1e-06, rope_scaling={"factor": 4.0, "type": "linear"}, rope_theta=100000,
        tie_word_embeddings=False,
    ),
    "Mistral-7B-v0.1": _published(
        "mistral", "MistralForCausalLM", **_shape(32, 4096, 32, 8, 14336, 32000, 32768), rms_norm_eps=1e-05,
        rope_theta=10000.0, sliding_window=4096, tie_word_embeddings=False,
    ),
    "Mistral-7B-v0.3": _published(
        "mistral", "MistralForCausalLM", **_shape(32, 4096, 32, 8, 14336, 32768, 32768), rms_norm_eps=1e-05,
        rope_theta=1000000.0, sliding_window=None, tie_word_embeddings=False,
    ),
    "Mistral-Nemo-Base-2407": _published(
        "mistral", "MistralForCausalLM", **_shape(40, 5120, 32, 8, 14336, 131072, 128000), head_dim=128,
        rms_norm_eps=1e-05, rope_theta=1000000.0, sliding_window=None, tie_word_embeddings=False,
    ),
    "Qwen2.5-7B-Instruct": _published(
        "qwen2", "Qwen2ForCausalLM", **_shape(28, 3584, 28, 4, 18944, 152064, 32768), max_window_layers=28,
        rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=131072, tie_word_embeddings=False,
        use_sliding_window=False,
    ),
    "Qwen2.5-7B-base": _published(
        "qwen2", "Qwen2ForCausalLM", **_shape(28, 3584, 28, 4, 18944, 152064, 131072), max_window_layers=28,
        rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=131072, tie_word_embeddings=False,
        use_mrope=False, use_sliding_window=False,
    ),
    "Qwen2.5-7B-with-yarn": _published(
        "qwen2", "Qwen2ForCausalLM", **_shape(28, 3584, 28, 4, 18944, 152064, 32768), max_window_layers=28,
        rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=131072, tie_word_embeddings=False,
        use_sliding_window=False,
        rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    ),
    "Qwen3-8B": _published(
        "qwen3", "Qwen3ForCausalLM", **_shape(36, 4096, 32, 8, 12288, 151936, 40960), **_QWEN_3,
    ),
    "gemma-2b": _published(
        "gemma", "GemmaForCausalLM", **_shape(18, 2048, 8, 1, 16384, 256000, 8192, "gelu"), attention_bias=False,
        head_dim=256, hidden_activation=None, pad_token_id=0, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=10000.0,
    ),
    "gemma-2-2b-it": _published(
        "gemma2", "Gemma2ForCausalLM", **_shape(26, 2304, 8, 4, 9216, 256000, 8192, "gelu_pytorch_tanh"), **_GEMMA_2,
    ),
    "gemma-2-27b": _published(
        "gemma2", "Gemma2ForCausalLM", **_shape(46, 4608, 32, 16, 36864, 256000, 8192, "gelu_pytorch_tanh"),
        **{**_GEMMA_2, "head_dim": 128, "query_pre_attn_scalar": 144}, sliding_window_size=4096, use_bidirectional_attention=None,
    ),
    "gemma-3-1b-it": _published(
        "gemma3_text", "Gemma3ForCausalLM", **_shape(26, 1152, 4, 1, 6912, 262144, 32768, "gelu_pytorch_tanh"),
        attention_bias=False, attn_logit_softcapping=None, cache_implementation="hybrid", final_logit_softcapping=None,
        head_dim=256, hidden_activation="gelu_pytorch_tanh", pad_token_id=0, query_pre_attn_scalar=256,
        rms_norm_eps=1e-06, rope_local_base_freq=10000, rope_scaling=None, rope_theta=1000000, sliding_window=512,
        sliding_window_pattern=6,
    ),
    "gemma-3-270m": _published(
        "gemma3_text", "Gemma3ForCausalLM", **_shape(18, 640, 4, 1, 2048, 262144, 32768, "gelu_pytorch_tanh"),
        _sliding_window_pattern=6, attention_bias=False, attn_logit_softcapping=None, final_logit_softcapping=None,
        head_dim=256, hidden_activation="gelu_pytorch_tanh", layer_types=_kinds(18, 6), pad_token_id=0,
        query_pre_attn_scalar=256, rms_norm_eps=1e-06, rope_local_base_freq=10000.0, rope_scaling=None,
        rope_theta=1000000.0, sliding_window=512, use_bidirectional_attention=False,
    ),
    "gemma-3-4b-text": _published(
        "gemma3_text", "Gemma3ForCausalLM", **_shape(34, 2560, 8, 4, 10240, 262208, 131072, "gelu_pytorch_tanh"),
        head_dim=256, rms_norm_eps=1e-06, rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window=1024,
        query_pre_attn_scalar=256,
    ),
    "Phi-3-mini-4k-instruct": _published(
        "phi3", "Phi3ForCausalLM", **_shape(32, 3072, 32, 32, 8192, 32064, 4096), attention_bias=False,
        auto_map={"AutoConfig": "configuration_phi3.Phi3Config"}, embd_pdrop=0.0, original_max_position_embeddings=4096,
        pad_token_id=32000, resid_pdrop=0.0, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000.0,
        sliding_window=2047, tie_word_embeddings=False,
    ),
    "Phi-3-mini-128k-instruct": _published(
        "phi3", "Phi3ForCausalLM", **_shape(32, 3072, 32, 32, 8192, 32064, 131072), attention_bias=False,
        embd_pdrop=0.0, original_max_position_embeddings=4096, pad_token_id=32000, resid_pdrop=0.0, rms_norm_eps=1e-05,
        rope_scaling={
            "long_factor": [1.0 + i for i in range(48)], "short_factor": [1.0 + i / 50 for i in range(48)],
            "type": "longrope",
        },
        rope_theta=10000.0, sliding_window=262144, tie_word_embeddings=False,
    ),
    "Phi-4-mini-instruct": _published(
        "phi3", "Phi3ForCausalLM", **_shape(32, 3072, 24, 8, 8192, 200064, 131072), attention_bias=False,
        embd_pdrop=0.0, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False, mlp_bias=False,
        original_max_position_embeddings=4096, pad_token_id=199999, partial_rotary_factor=0.75, resid_pdrop=0.0,
        rms_norm_eps=1e-05,
        rope_scaling={
            "long_factor": [1.0 + i for i in range(48)], "short_factor": [1.0] * 48, "type": "longrope",
        },
        rope_theta=10000.0, sliding_window=262144, tie_word_embeddings=True,
    ),
    "OLMo-2-1124-7B": _published(
        "olmo2", "Olmo2ForCausalLM", **_shape(32, 4096, 32, 32, 11008, 100352, 4096), attention_bias=False,
        pad_token_id=100277, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=500000, tie_word_embeddings=False,
    ),
    "Olmo-3-7B": _published(
        "olmo3", "Olmo3ForCausalLM", **_shape(32, 4096, 32, 32, 11008, 100278, 65536), attention_bias=False,
        layer_types=_kinds(32, 4), pad_token_id=100277, rms_norm_eps=1e-06, rope_scaling=_YARN_OF_OLMO_3,
        rope_theta=500000, sliding_window=4096, tie_word_embeddings=False,
    ),
    "SmolLM3-3B": _published(
        "smollm3", "SmolLM3ForCausalLM", **_shape(36, 2048, 16, 4, 11008, 128256, 65536), attention_bias=False,
        layer_types=["full_attention"] * 36, max_window_layers=28, mlp_bias=False, no_rope_layer_interval=4,
        no_rope_layers=[int((i + 1) % 4 != 0) for i in range(36)], pad_token_id=128004, pretraining_tp=2,
        rms_norm_eps=1e-06, rope_scaling=None, rope_theta=5000000.0, sliding_window=None, use_sliding_window=False,
    ),
    "granite-3.1-8b-instruct": _published(
        "granite", "GraniteForCausalLM", **_shape(40, 4096, 32, 8, 12800, 49155, 131072), attention_bias=False,
        attention_multiplier=0.0078125, embedding_multiplier=12.0, logits_scaling=16.0, mlp_bias=False, pad_token_id=0,
        residual_multiplier=0.22, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000000.0, tie_word_embeddings=True,
    ),
    "c4ai-command-r-v01": _published(
        "cohere", "CohereForCausalLM", **_shape(40, 8192, 64, 64, 22528, 256000, 8192), attention_bias=False,
        layer_norm_eps=1e-05, logit_scale=0.0625, model_max_length=131072, pad_token_id=0, rope_theta=8000000.0,
        use_qk_norm=False,
    ),
    "c4ai-command-r-plus": _published(
        "cohere", "CohereForCausalLM", **_shape(64, 12288, 96, 8, 33792, 256000, 8192), attention_bias=False,
        layer_norm_eps=1e-05, logit_scale=0.8333333333333334, pad_token_id=0, rope_theta=75000000.0, use_qk_norm=True,
        tie_word_embeddings=True,
    ),
    "c4ai-command-r7b-12-2024": _published(
        "cohere2", "Cohere2ForCausalLM", **_shape(32, 4096, 32, 8, 14336, 256000, 8192), _attn_implementation_autoset=True,
        attention_bias=False, cache_implementation="hybrid", head_dim=128, layer_norm_eps=1e-05, layer_switch=4,
        logit_scale=0.25, order_of_interleaved_layers="local_attn_first", pad_token_id=0,
        position_embedding_type="rope_gptj", rope_scaling=None, rope_theta=50000, rotary_pct=1.0, sliding_window=4096,
        sliding_window_pattern=4, use_embedding_sharing=True, use_gated_activation=True, use_parallel_block=True,
        use_parallel_embedding=True,
    ),
    "stablelm-2-1_6b": _published(
        "stablelm", "StableLmForCausalLM", **_shape(24, 2048, 32, 32, 5632, 100352, 4096), hidden_dropout=0.0,
        layer_norm_eps=1e-05, partial_rotary_factor=0.25, qk_layernorm=False, rope_scaling=None, rope_theta=10000,
        tie_word_embeddings=False, use_parallel_residual=False, use_qkv_bias=True,
    ),
    "stablelm-2-12b": _published(
        "stablelm", "StableLmForCausalLM", **_shape(40, 5120, 32, 8, 13824, 100352, 4096), hidden_dropout=0.0,
        layer_norm_eps=1e-05, partial_rotary_factor=0.25, qk_layernorm=True, rope_theta=10000, tie_word_embeddings=False,
        use_parallel_residual=True, use_qkv_bias=False,
    ),
    "starcoder2-3b": _published(
        "starcoder2", "Starcoder2ForCausalLM", **_shape(30, 3072, 24, 2, 12288, 49152, 16384, "gelu_pytorch_tanh"),
        embedding_dropout=0.0, mlp_type="default", norm_epsilon=1e-05, norm_type="layer_norm", residual_dropout=0.0,
        rope_theta=999999.4420358813, sliding_window=4096, use_bias=True,
    ),
    "GLM-4-9B-0414": _published(
        "glm4", "Glm4ForCausalLM", **_shape(40, 4096, 32, 2, 13696, 151552, 32768), attention_bias=True, head_dim=128,
        pad_token_id=151329, partial_rotary_factor=0.5, rms_norm_eps=1e-05, rope_theta=10000.0, tie_word_embeddings=False,
    ),
    "Seed-OSS-36B-Instruct": _published(
        "seed_oss", "SeedOssForCausalLM", **_shape(64, 5120, 80, 8, 27648, 155136, 524288), attention_bias=True,
        attention_out_bias=False, head_dim=128, mlp_bias=False, pad_token_id=1, pretraining_tp=1, residual_dropout=0.1,
        rms_norm_eps=1e-06, rope_scaling={"rope_type": "default"}, rope_theta=10000000.0, tie_word_embeddings=False,
    ),
    "Mixtral-8x7B-v0.1": _published(
        "mixtral", "MixtralForCausalLM", **_shape(32, 4096, 32, 8, 14336, 32000, 32768), num_experts_per_tok=2,
        num_local_experts=8, output_router_logits=False, rms_norm_eps=1e-05, rope_theta=1000000.0,
        router_aux_loss_coef=0.02, sliding_window=None, tie_word_embeddings=False,
    ),
    "Qwen1.5-MoE-A2.7B": _published(
        "qwen2_moe", "Qwen2MoeForCausalLM", **_shape(24, 2048, 16, 16, 5632, 151936, 8192), decoder_sparse_step=1,
        max_window_layers=21, moe_intermediate_size=1408, norm_topk_prob=False, num_experts=60, num_experts_per_tok=4,
        output_router_logits=False, rms_norm_eps=1e-06, rope_theta=1000000.0, router_aux_loss_coef=0.001,
        shared_expert_intermediate_size=5632, sliding_window=32768, tie_word_embeddings=False, use_sliding_window=False,
    ),
    "Qwen2-57B-A14B": _published(
        "qwen2_moe", "Qwen2MoeForCausalLM", **_shape(28, 3584, 28, 4, 18944, 151936, 131072), decoder_sparse_step=1,
        max_window_layers=28, mlp_only_layers=[], moe_intermediate_size=2560, norm_topk_prob=False, num_experts=64,
        num_experts_per_tok=8, rms_norm_eps=1e-06, rope_theta=1000000.0, shared_expert_intermediate_size=20480,
        sliding_window=65536, tie_word_embeddings=False, use_sliding_window=False,
    ),
    "Qwen3-30B-A3B": _published(
        "qwen3_moe", "Qwen3MoeForCausalLM", **_shape(48, 2048, 32, 4, 6144, 151936, 40960), **_QWEN_3,
        decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True, num_experts=128,
        num_experts_per_tok=8, output_router_logits=False, router_aux_loss_coef=0.001,
    ),
    "OLMoE-1B-7B-0924": _published(
        "olmoe", "OlmoeForCausalLM", **_shape(16, 2048, 16, 16, 1024, 50304, 4096), attention_bias=False, clip_qkv=None,
        norm_topk_prob=False, num_experts=64, num_experts_per_tok=8, output_router_logits=False, pad_token_id=1,
        rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000.0, router_aux_loss_coef=0.01, tie_word_embeddings=False,
    ),
    "gpt-oss-20b": _published(
        "gpt_oss", "GptOssForCausalLM", **_shape(24, 2880, 64, 8, 2880, 201088, 131072), attention_bias=True,
        experts_per_token=4, head_dim=64, initial_context_length=4096, num_experts_per_tok=4, num_local_experts=32,
        layer_types=["sliding_attention", "full_attention"] * 12, output_router_logits=False, pad_token_id=199999,
        rms_norm_eps=1e-05, rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=128, swiglu_limit=7.0,
        rope_scaling={
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        tie_word_embeddings=False,
    ),
    "DeepSeek-V3": _published(
        "deepseek_v3", "DeepseekV3ForCausalLM", **_shape(61, 7168, 128, 128, 18432, 129280, 163840), attention_bias=False,
        auto_map={"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, ep_size=1, first_k_dense_replace=3,
        kv_lora_rank=512, moe_intermediate_size=2048, moe_layer_freq=1, n_group=8, n_routed_experts=256,
        n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=8, num_nextn_predict_layers=1, q_lora_rank=1536,
        qk_nope_head_dim=128, qk_rope_head_dim=64, rms_norm_eps=1e-06,
        rope_scaling={
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        rope_theta=10000, routed_scaling_factor=2.5, scoring_func="sigmoid", tie_word_embeddings=False, topk_group=4,
        topk_method="noaux_tc", v_head_dim=128, aux_loss_alpha=0.001, seq_aux=True, pretraining_tp=1,
    ),
}  # fmt: skip
