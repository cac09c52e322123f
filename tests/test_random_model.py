"""Random models: each seed draws another one, in everything that its architecture lets be another."""

from __future__ import annotations

from typing import Any

import pytest

from hloracle.reference.fixtures.random_model import ROPES_OF, SQUARE, draw_config
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.keys import ROPE_KEYS
from hloracle.reference.model.registry import FAMILIES, from_hf

SEEDS = range(40)
# What a row of TINY says and no seed may change: a model's name, tokens that end a text, and what has one value only.
SAME = {
    "architectures", "model_type", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_act", "hidden_activation",
    "max_position_embeddings", "decoder_sparse_step", "topk_group", "original_max_position_embeddings", "swiglu_alpha",
}  # fmt: skip
# What a family reads with one value only, or what stays with it.
SAME_IN: dict[str, set[str]] = {
    **{name: {"tie_word_embeddings"} for name in ("gemma", "gemma2", "gemma3_text")},
    "deepseek_v3": {"num_experts_per_tok", "num_key_value_heads"},
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_key_of_the_tiny_model_varies(architecture: str) -> None:
    """A key that no list in `draw_config` names would keep its tiny value, and nothing would say so."""
    drawn = [draw_config(architecture, seed) for seed in SEEDS]
    same = {key for key in TINY[architecture] if len({repr(config.get(key)) for config in drawn}) == 1}
    assert same - SAME == SAME_IN.get(architecture, set())


@pytest.mark.parametrize("architecture", FAMILIES)
def test_shapes_that_must_not_be_mixed_up(architecture: str) -> None:
    for seed in SEEDS:
        config: dict[str, Any] = draw_config(architecture, seed)
        assert config["vocab_size"] % 2 == 1
        if "head_dim" in config:
            width = config["num_attention_heads"] * config["head_dim"]
            assert (config["hidden_size"] == width) == (architecture in SQUARE), seed
    assert draw_config(architecture, 1) == draw_config(architecture, 1) != draw_config(architecture, 2)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_is_drawn_is_read(architecture: str) -> None:
    """Each draw is a model that we support, and they are of every RoPE type that is drawn for it."""
    drawn = [from_hf({"model_type": architecture, **draw_config(architecture, seed)}, seed) for seed in range(400)]
    assert {rope.type for config in drawn for rope in config.ropes} == {*ROPES_OF.get(architecture, ROPE_KEYS)}
