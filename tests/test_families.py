"""Every family's graphs against transformers' own cached runs, over lengths that cross windows and RoPE's turning points.

The tiny models, and each option of a config that they do not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from models import quick_xla
from nightly import only

from hloracle.backends.session import Session
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.huggingface.truth import greedy, load_model
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import effective_window
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.oracle.lower import lower

# A bucket and a capacity that are no power of two, both beyond the windows of 11 and 23 and the turning points at 40.
T, S = 44, 50
# Prompts and the tokens that follow: one that fills the bucket and, with what follows, the cache; one before a turning
# point that its tokens then go beyond; one shorter than every window.
PROMPTS = ((T, 7), (T - 8, 7), (3, 4))
# As in test_oracle_numerics.py, of one rounding of float32, for at most 120 terms in 30 products; transformers' own too.
TOLERANCE = 2 * 2**-24 * 120 * 30  # 4.3e-4

DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
SHORT, LONG = [1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.2, 2.5], [1.0, 1.5, 2.2, 4.0, 7.0, 12.0, 15.0, 20.0]
# What its tiny model does not have, by family.
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "default": {"rope_parameters": DEFAULT},
        "linear": {"rope_parameters": {**DEFAULT, "rope_type": "linear", "factor": 4.0}},
        "dynamic": {
            "rope_parameters": {**DEFAULT, "rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 40
        },
        "yarn": {
            "rope_parameters": {
                **DEFAULT, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0,
                "attention_factor": 1.3,
            }
        },
        "longrope": {
            "rope_parameters": {
                **DEFAULT, "rope_type": "longrope", "factor": 6.0, "short_factor": SHORT, "long_factor": LONG,
                "original_max_position_embeddings": 40,
            }
        },
        "biases": {"attention_bias": True, "mlp_bias": True},
        "as many kv heads": {"num_key_value_heads": 6},
        "one kv head": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    },
    "mistral": {"no window": {"sliding_window": None}},
    "qwen2": {
        "no window": {"use_sliding_window": False},
        "listed": {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": DEFAULT},
    },
    "qwen3": {
        "no bias": {"attention_bias": False},
        "no window": {"use_sliding_window": False, "num_key_value_heads": 1},
    },
    "gemma2": {"no caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None}},
    "gemma3_text": {"cap": {"final_logit_softcapping": 5.0, "attention_bias": True}},
    "phi3": {
        "whole heads": {
            "rope_parameters": DEFAULT, "partial_rotary_factor": 1.0, "sliding_window": None,
            "original_max_position_embeddings": 1024,
        }
    },
    "olmo2": {"biases": {"attention_bias": True, "num_key_value_heads": 6}},
    "olmo3": {
        "dynamic": {
            "max_position_embeddings": 40,
            "rope_parameters": {
                "sliding_attention": DEFAULT,
                "full_attention": {**DEFAULT, "rope_type": "dynamic", "factor": 3.0},
            },
        }
    },
    "smollm3": {
        "no windows": {"use_sliding_window": False, "mlp_bias": True, "attention_bias": True}
    },
    "granite": {
        "no multipliers": {
            "embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0,
            "attention_bias": False, "mlp_bias": False,
        }
    },
    "cohere": {"no norm": {"use_qk_norm": False, "attention_bias": True}},
    "stablelm": {
        "parallel": {"use_parallel_residual": True},
        "parallel, no norm": {"use_parallel_residual": True, "qk_layernorm": False, "use_qkv_bias": False},
    },
    "starcoder2": {"no bias": {"use_bias": False, "sliding_window": None, "tie_word_embeddings": False}},
    "glm4": {"no bias": {"attention_bias": False, "partial_rotary_factor": 1.0}},
    "seed_oss": {"biases": {"rope_parameters": DEFAULT, "attention_out_bias": True, "mlp_bias": True}},
    "mixtral": {"all chosen": {"num_experts_per_tok": 5, "sliding_window": None}, "one": {"num_experts_per_tok": 1}},
    "qwen2_moe": {"normed": {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 2}},
    "qwen3_moe": {"not normed": {"norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 11}},
    "olmoe": {"no clip": {"clip_qkv": None, "norm_topk_prob": True}},
    "gpt_oss": {"all chosen": {"num_experts_per_tok": 5}, "no bias": {"attention_bias": False, "num_key_value_heads": 6}},
    "deepseek_v3": {
        "one query": {"q_lora_rank": None, "attention_bias": False, "first_k_dense_replace": 0},
        "halves": {"rope_interleave": False, "norm_topk_prob": False, "rope_parameters": DEFAULT},
        "one group": {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0},
        "best group": {"topk_group": 1, "num_experts_per_tok": 3},
    },
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    **{f"{family}, {name}": (family, keys) for family, options in OPTIONS.items() for name, keys in options.items()},
}


# Families that differ in how they attend, route, norm and turn, and options that turn angles at a length, or route tokens in another
# way. The others are nightly; `conformance-cpu` judges every family.
SOME = [
    "llama", "gemma2", "gemma3_text", "phi3", "cohere2", "stablelm", "glm4", "mixtral", "gpt_oss", "deepseek_v3",
    "llama, yarn", "llama, longrope", "qwen2_moe, normed", "deepseek_v3, best group",
]  # fmt: skip


@pytest.fixture(scope="module", params=only(SOME, MODELS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    family, keys = MODELS[request.param]
    return open_checkpoint(write_tiny(tmp_path_factory.mktemp("model") / "tiny", family, seed=1, **keys))


Runs = dict[tuple[int, ...], tuple[list[int], np.ndarray]]


@pytest.fixture(scope="module")
def runs(checkpoint: Checkpoint) -> Runs:
    """Prompt -> what transformers says after it, and the logits of each token."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, found = load_model(checkpoint.directory), {}
    for length, count in PROMPTS:
        prompt = np.random.default_rng(length).integers(0, checkpoint.config.vocab_size, length).tolist()
        found[tuple(prompt)] = greedy(model, prompt, count)
    torch.set_num_threads(threads)
    return found


@pytest.mark.parametrize("make", [lower, emit], ids=["oracle", "emitter"])
def test_logits_are_transformers_own(make: Any, checkpoint: Checkpoint, runs: Runs) -> None:
    """In prefill, which a prompt fills or does not, and in each step of decode."""
    config = checkpoint.config
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        graphs = [make(config, "prefill", "logits", S, T), make(config, "decode", "logits", S)]
    session = Session(quick_xla(), graphs, checkpoint.load)
    for prompt, (tokens, logits) in runs.items():
        found = [session.prefill(prompt), *(session.decode_step(token) for token in tokens[:-1])]
        scale = np.abs(logits).max(axis=1)
        assert (scale > 0.1).all()
        worst = np.abs(np.stack(found) - logits).max(axis=1) / scale
        assert worst.max() < TOLERANCE, f"after {len(prompt)} tokens, step by step: {worst}"


# ---- that the lengths reach what they are there for


def test_a_prompt_on_each_side_of_every_window_and_turning_point() -> None:
    def configs() -> Iterator[Config]:
        for family, keys in MODELS.values():
            yield from_hf({**TINY[family], **keys})

    windows = {w for config in configs() for w in config.windows if w}
    turning = {config.turning_point for config in configs()} - {None}
    assert windows == {11, 23}
    assert turning == {40}
    for edge in (*windows, *turning):
        assert any(length <= edge < length + count - 1 for length, count in PROMPTS) or any(
            length > edge for length, _ in PROMPTS
        )
    assert {rope.type for config in configs() if config.architecture == "llama" for rope in config.ropes} == {
        "default", "linear", "dynamic", "llama3", "yarn", "longrope"
    }  # fmt: skip
    assert any(len({layer.sparse for layer in config.layers}) == 2 for config in configs())
    assert any({layer.rope is None for layer in config.layers} == {True, False} for config in configs())


@pytest.mark.parametrize(
    ("window", "keys", "found"),
    [(None, 64, None), (11, 64, 11), (11, 12, 11), (11, 11, None), (64, 64, None), (4096, 64, None), (1, 2, 1)],
)
def test_a_window_that_holds_every_key_is_none(window: int | None, keys: int, found: int | None) -> None:
    assert effective_window(window, keys) == found


# ---- weights that transformers would make up, or not read


def rewritten(directory: Path, change: Any) -> Path:
    import safetensors.numpy

    path = directory / "model.safetensors"
    weights = safetensors.numpy.load_file(path)
    change(weights)
    safetensors.numpy.save_file(weights, path, metadata={"format": "pt"})
    return directory


MISSING = {
    "llama": "model.layers.1.mlp.up_proj.weight",
    "gpt_oss": "model.layers.0.self_attn.sinks",
    "deepseek_v3": "model.layers.1.mlp.gate.e_score_correction_bias",
    "starcoder2": "model.norm.bias",
}


@pytest.mark.parametrize(("family", "name"), MISSING.items())
def test_a_weight_that_transformers_would_make_up(family: str, name: str, tmp_path: Path) -> None:
    directory = rewritten(write_tiny(tmp_path / "tiny", family), lambda weights: weights.pop(name))
    with pytest.raises(InputError, match=f"transformers loads other weights.*missing keys: .*{name}"):
        load_model(directory)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_a_weight_that_transformers_would_not_read(family: str, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_norm.weight"
    more = {name: np.ones(16, np.float32)}
    directory = rewritten(write_tiny(tmp_path / "tiny", family), lambda weights: weights.update(more))
    with pytest.raises(InputError, match=f"transformers loads other weights.*unexpected keys: {name}"):
        load_model(directory)


def test_a_weight_of_another_shape(tmp_path: Path) -> None:
    other = {"model.layers.0.mlp.up_proj.weight": np.ones((112, 83), np.float32)}
    directory = rewritten(write_tiny(tmp_path / "tiny", "qwen3"), lambda weights: weights.update(other))
    with pytest.raises(InputError, match="transformers cannot load it"):
        load_model(directory)
