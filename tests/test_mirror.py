"""The reference and the emitter of an architecture say the same, in the same order."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from graphs import anchors, parse

from hloracle.core.abi import Graph
from hloracle.emitters.model import emit
from hloracle.reference.config import Config
from hloracle.reference.fixtures import TINY
from hloracle.reference.lower import lower
from hloracle.reference.registry import FAMILIES, from_hf

ROOT = Path(__file__).parents[1]
PER_LAYER = [
    "input_layernorm",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "q_rope", "k_rope", "k_cache", "v_cache")),
    *(f"self_attn.{part}" for part in ("scores", "probs", "context", "o_proj")),
    "",
    "post_attention_layernorm",
    *(f"mlp.{part}" for part in ("gate_proj", "up_proj", "act", "down_proj")),
    "",
]


def tiny(architecture: str, **changes: object) -> Config:
    return from_hf({**TINY[architecture], **changes})


def places(graph: Graph) -> list[str]:
    """The anchors in the order in which operations enter them."""
    module = parse(graph.text)
    return [anchor for anchor, _ in itertools.groupby(anchors(module))]


@pytest.mark.parametrize("head", ["token", "logits"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_anchors(architecture: str, phase: str, biased: bool, head: str) -> None:
    config = tiny(architecture, attention_bias=biased, mlp_bias=biased)
    emitted, oracle = (places(source(config, phase, head, 64, 32)) for source in (emit, lower))
    assert emitted == oracle


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("source", [emit, lower])
def test_anchors_of_llama(source: Callable[..., Graph], phase: str) -> None:
    """DESIGN's vocabulary, each name once per layer."""
    config = tiny("llama")
    layers = [f"layers.{i}.{part}".rstrip(".") for i in range(config.num_hidden_layers) for part in PER_LAYER]
    assert places(source(config, phase, "token", 64, 32)) == ["embed_tokens", *layers, "norm", "lm_head", "token"]


@pytest.mark.parametrize("head", ["token", "logits"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_oracle_graph_is_one_function_that_names_no_file(architecture: str, phase: str, head: str) -> None:
    """A private function would keep the call stack it was traced from, and paths would make the text the machine's."""
    text = lower(tiny(architecture), phase, head, 64, 32).text
    assert text.count("func.func") == 1
    assert "/" not in text
    assert ".py" not in text


def functions(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_functions(architecture: str) -> None:
    reference, emitter = (functions(ROOT / side / f"{architecture}.py") for side in ("reference", "emitters"))
    assert reference == emitter
    assert "block" in reference
