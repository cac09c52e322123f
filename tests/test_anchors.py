"""The vocabulary: names, their order, their shapes, and what a graph's scopes stand for."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
from models import SHAPES, S, T, model

from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.anchors import anchor_of, anchor_shape, anchors, products, split, terms
from hloracle.reference.model.config import Config
from hloracle.reference.model.parts import PARTS
from hloracle.reference.model.registry import FAMILIES, from_hf, parts_of

CONFIG = from_hf(TINY["llama"])
# Tiny llama's: layers, query heads, kv heads, head_dim, hidden, intermediate, vocabulary.
L, N, K, D, E, F, V = 3, 6, 2, 16, 84, 112, 257
G = N // K
PER_LAYER = 18


def test_every_anchor_in_the_order_of_computation() -> None:
    found = anchors(CONFIG)
    assert len(found) == len(set(found)) == 3 + L * PER_LAYER
    assert found[0] == "embed_tokens"
    assert found[-2:] == ("norm", "lm_head")
    assert [split(a)[0] for a in found] == [None, *(i for i in range(L) for _ in range(PER_LAYER)), None, None]
    assert found[1:19] == (
        "layers.0.input_layernorm", "layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj",
        "layers.0.self_attn.v_proj", "layers.0.self_attn.q_rope", "layers.0.self_attn.k_rope", "k_cache.0", "v_cache.0",
        "layers.0.self_attn.scores", "layers.0.self_attn.probs", "layers.0.self_attn.context",
        "layers.0.self_attn.o_proj", "layers.0.post_attention_layernorm", "layers.0.mlp.gate_proj",
        "layers.0.mlp.up_proj", "layers.0.mlp.act", "layers.0.mlp.down_proj", "layers.0",
    )  # fmt: skip
    assert "token" not in found


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("embed_tokens", (None, "embed_tokens")),
        ("norm", (None, "norm")),
        ("token", (None, "token")),
        ("", (None, "")),
        ("layers.3", (3, "")),
        ("layers.12.mlp.act", (12, "mlp.act")),
        ("k_cache.0", (0, "k_cache")),
        ("v_cache.11", (11, "v_cache")),
        # What only looks like an anchor: an input, a weight.
        ("k_cache", (None, "k_cache")),
        ("model.layers.3.mlp.act", (None, "model.layers.3.mlp.act")),
        ("layers.x", (None, "layers.x")),
        ("layers.3.", (None, "layers.3.")),
        ("k_cache.0.1", (None, "k_cache.0.1")),
    ],
)
def test_split(name: str, parts: tuple[int | None, str]) -> None:
    assert split(name) == parts


def test_split_tells_all_anchors_apart() -> None:
    assert len({split(a) for a in anchors(CONFIG)}) == len(anchors(CONFIG))


@pytest.mark.parametrize(
    ("scope", "anchor"),
    [
        ("layers.3.self_attn.k_cache", "k_cache.3"),
        ("layers.10.self_attn.v_cache", "v_cache.10"),
        ("layers.3.self_attn.k_proj", "layers.3.self_attn.k_proj"),
        ("layers.3", "layers.3"),
        ("norm", "norm"),
        ("", ""),
    ],
)
def test_anchor_of_a_scope(scope: str, anchor: str) -> None:
    assert anchor_of(scope) == anchor


@pytest.mark.parametrize(("T", "S"), [(32, 32), (1, 64)], ids=["prefill", "decode"])
def test_shapes_in_a_graph(T: int, S: int) -> None:
    by_head, attended = (K, S, D), (K, T, G, S)
    wanted = {
        "embed_tokens": (T, E), "input_layernorm": (T, E), "self_attn.q_proj": (T, N, D), "self_attn.k_proj": (T, K, D),
        "self_attn.v_proj": (T, K, D), "self_attn.q_rope": (T, N, D), "self_attn.k_rope": (T, K, D),
        "k_cache": by_head, "v_cache": by_head, "self_attn.scores": attended, "self_attn.probs": attended,
        "self_attn.context": (T, N * D), "self_attn.o_proj": (T, E), "post_attention_layernorm": (T, E),
        "mlp.gate_proj": (T, F), "mlp.up_proj": (T, F), "mlp.act": (T, F), "mlp.down_proj": (T, E), "": (T, E),
        "norm": (1, E), "lm_head": (V,),
    }  # fmt: skip
    assert {split(a)[1] for a in anchors(CONFIG)} == wanted.keys()
    for anchor in anchors(CONFIG):
        assert anchor_shape(CONFIG, anchor, T, S) == wanted[split(anchor)[1]], anchor


def test_the_longest_sums() -> None:
    wanted = {"embed_tokens": 1, "self_attn.o_proj": N * D, "mlp.down_proj": F, "": F}
    for anchor in anchors(CONFIG):
        part = split(anchor)[1]
        if part not in ("self_attn.probs", "self_attn.context"):
            assert terms(CONFIG, anchor, 10) == wanted.get(part, E), anchor
        else:
            assert (terms(CONFIG, anchor, 10), terms(CONFIG, anchor, 999)) == (E, 999)


# ---- every family


@pytest.mark.parametrize("architecture", FAMILIES)
def test_anchors_of_every_family(architecture: str) -> None:
    """Each is named once, each layer's last is the layer itself, and every part has its shape and its source."""
    config = from_hf(TINY[architecture])
    found = anchors(config)
    assert len(found) == len(set(found)) == len({split(a) for a in found})
    for layer in range(config.num_hidden_layers):
        mine = [split(a)[1] for a in found if split(a)[0] == layer]
        assert mine == [*parts_of(config, layer), ""]
        assert set(mine) <= PARTS.keys()
        assert mine.index("k_cache") + 1 == mine.index("v_cache") < mine.index("self_attn.scores")
        assert ("mlp.experts" in mine) == config.layers[layer].sparse
        assert ("self_attn.q_rope" in mine) == (config.layers[layer].rope is not None)


def _modules(architecture: str) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Each module of transformers' model and the shape of what it returned for a prompt of 7 tokens."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(**copy.deepcopy(TINY[architecture]))
    whole = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    found: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for name, module in whole.named_modules():

        def keep(module: Any, inputs: Any, output: Any, name: str = name.removeprefix("model.")) -> None:
            first = output[0] if isinstance(output, tuple) else output
            found[name] = module, tuple(first.shape) if torch.is_tensor(first) else ()

        module.register_forward_hook(keep)
    with torch.no_grad():
        whole(torch.arange(7)[None])
    transformers.logging.set_verbosity_warning()
    return found


# What transformers has as an attribute, an argument or a local name, and not as a module's output.
INSIDE = re.compile(
    r"[kv]_cache\.\d+|layers\.\d+\.(self_attn\.(._rope|scores|probs|context)|mlp(\.\w+)?\.(act|routing))"
)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_names_and_sizes_are_those_of_transformers(architecture: str) -> None:
    """Where there is such a module, and its output has as many elements a token as the anchor."""
    config, modules = from_hf(TINY[architecture]), _modules(architecture)
    compared = [a for a in anchors(config) if not INSIDE.fullmatch(a)]
    assert set(compared) <= modules.keys()
    for anchor in compared:
        shape = modules[anchor][1]
        rows = 1 if anchor in ("norm", "lm_head") else 7
        assert math.prod(anchor_shape(config, anchor, 7, 7)) * 7 == math.prod(shape) * rows, anchor


@pytest.mark.parametrize("architecture", FAMILIES)
def test_sums_and_products_of_every_family(architecture: str) -> None:
    """A product's longest sum is what its weight's inner size says."""
    config = from_hf(TINY[architecture])
    modules = _modules(architecture)
    for anchor, count in products(config).items():
        inner = getattr(modules[anchor][0], "in_features", None) if anchor in modules else None
        assert count > 0
        if inner is not None:
            assert terms(config, anchor, 10) == inner, anchor
    for anchor in anchors(config):
        assert terms(config, anchor, 10) > 0
        assert len(anchor_shape(config, anchor, 7, 9)) >= 1


@pytest.mark.parametrize("name", SHAPES)
def test_names_are_those_of_hugging_face(name: str) -> None:
    """Whatever the sizes: the names are of the wiring."""
    import transformers

    config = model(name).config
    whole = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(model(name).checkpoint.directory)
    )
    modules = {m.removeprefix("model.") for m, _ in whole.named_modules()}
    assert {a for a in anchors(config) if not INSIDE.fullmatch(a)} <= modules


def test_shapes_of_the_tests_collide() -> None:
    """What the other tests rest on: sizes that a search by shape takes for one another."""
    config: Config = model("all-equal").config
    assert len({config.hidden_size, config.intermediate_size, config.vocab_size, T, model("all-equal").capacity}) == 1
    assert config.num_attention_heads * config.head_dim == config.hidden_size
    config = model("plain").config
    assert len({config.hidden_size, config.intermediate_size, config.vocab_size, T, S}) == 5
