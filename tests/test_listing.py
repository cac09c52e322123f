"""A graph as a reader goes through it: scopes, what is alike, arithmetic, traffic, and a layer as a drawing."""

from __future__ import annotations

import re
from functools import cache

import pytest
from models import SHAPES, S, T, model

from hloracle.conformance.listing import Block, Reading, Scope, read
from hloracle.conformance.record import LONGEST_LINE, _line, _listing
from hloracle.core.abi import Graph
from hloracle.emitters.model import emit
from hloracle.mutants import planted
from hloracle.reference.anchors import split
from hloracle.reference.config import Config
from hloracle.reference.lower import lower

SOURCES = {"emitter": emit, "oracle": lower}


@cache
def graph(shape: str, source: str, phase: str, mutant: str = "") -> Graph:
    config = model(shape).checkpoint.config
    with planted(mutant):
        return SOURCES[source](config, phase, "logits", S, T if phase == "prefill" else 0)


@cache
def reading(shape: str, source: str, phase: str, mutant: str = "") -> Reading:
    return read(graph(shape, source, phase, mutant))


def config(shape: str) -> Config:
    return model(shape).checkpoint.config


def of(scopes: tuple[Scope, ...], anchor: str) -> Scope:
    (found,) = (scope for scope in scopes if scope.anchor == anchor)
    return found


WRITTEN = re.compile(r'= "?stablehlo\.(?!constant)')
EVERY = [(shape, source, phase) for shape in SHAPES for source in SOURCES for phase in ("decode", "prefill")]


@pytest.mark.parametrize(("shape", "source", "phase"), EVERY)
def test_every_operation_is_listed_once_at_its_line(shape: str, source: str, phase: str) -> None:
    lines = graph(shape, source, phase).text.splitlines()
    listed = [op for scope in reading(shape, source, phase).scopes for op in scope.ops]
    computing = [op for op in listed if op.op != "constant"]
    written = [i for i, line in enumerate(lines, 1) if WRITTEN.search(line)]
    assert sorted(op.line or 0 for op in computing) == written
    for op in listed:
        assert op.line is not None
        assert f"stablehlo.{op.op}" in lines[op.line - 1]
        assert op.type in lines[op.line - 1]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_layers_of_a_right_model_are_alike(source: str, phase: str) -> None:
    """But for the caches of a prefill, of which the first layer's are new."""
    found: dict[str, set[str]] = {}
    for scope in reading("plain", source, phase).scopes:
        if split(scope.anchor)[0] is not None:
            found.setdefault(split(scope.anchor)[1], set()).add(scope.signature)
    unlike = {part for part, signatures in found.items() if len(signatures) > 1}
    assert unlike <= ({"k_cache", "v_cache"} if phase == "prefill" else set())


def test_a_layer_that_is_not_like_the_others_is_listed_by_itself() -> None:
    mutant = "bfloat16-down-proj-middle-layer"
    right, wrong = (
        {s["anchor"]: s for s in _listing("emitter", graph("plain", "emitter", "decode", m), r, 0)["scopes"]}
        for m in ("", mutant)
        for r in [reading("plain", "emitter", "decode", m)]
    )
    assert right["layers.0.mlp.down_proj"]["layers"] == [0, 1]
    assert wrong["layers.0.mlp.down_proj"]["layers"] == [0]
    assert wrong["layers.1.mlp.down_proj"]["layers"] == [1]
    assert "convert" in [op["op"] for op in wrong["layers.1.mlp.down_proj"]["ops"]]
    assert set(wrong) - set(right) == {"layers.1.mlp.down_proj"}


def test_the_layer_that_is_asked_for_stands_for_all() -> None:
    some = graph("plain", "emitter", "decode")
    scopes = _listing("emitter", some, reading("plain", "emitter", "decode"), 1)["scopes"]
    layered = [s for s in scopes if s["layers"]]
    assert all(split(s["anchor"])[0] == 1 and s["layers"] == [0, 1] for s in layered)
    assert all(".layers.0." not in op["text"] for s in layered for op in s["ops"])


@pytest.mark.parametrize(("shape", "source", "phase"), EVERY)
def test_arithmetic_and_traffic_of_projections(shape: str, source: str, phase: str) -> None:
    c, rows = config(shape), T if phase == "prefill" else 1
    scopes = reading(shape, source, phase).scopes
    E, F = c.hidden_size, c.intermediate_size
    gate = of(scopes, "layers.0.mlp.gate_proj")
    bias = "mlp_bias" in SHAPES[shape]
    assert gate.flops == 2 * rows * E * F + (rows * F if bias else 0)
    assert gate.bytes == 4 * (rows * E + E * F + (F if bias else 0) + rows * F)
    D = c.num_attention_heads * c.head_dim
    o_proj = of(scopes, "layers.0.self_attn.o_proj")
    assert o_proj.flops == 2 * rows * D * E + (rows * E if "attention_bias" in SHAPES[shape] else 0)


@pytest.mark.parametrize("source", SOURCES)
def test_a_cache_is_written_one_slot_at_a_time_and_the_embedding_read_one_row(source: str) -> None:
    c = config("plain")
    scopes = reading("plain", source, "decode").scopes
    slot = 4 * c.num_key_value_heads * c.head_dim
    cache_scope = of(scopes, "k_cache.0")
    assert cache_scope.flops == 0
    assert 2 * slot <= cache_scope.bytes <= 2 * slot + 4 * 4  # the slot, in and out, and the position
    embedding = of(scopes, "embed_tokens")
    assert 2 * 4 * c.hidden_size <= embedding.bytes + 4 * c.hidden_size <= 3 * 4 * c.hidden_size + 8


@pytest.mark.parametrize("shape", SHAPES)
def test_both_graphs_multiply_as_much(shape: str) -> None:
    """The projections' FLOP are equal, whatever stands around them."""
    for phase in ("decode", "prefill"):
        left, right = (
            {s.anchor: s.flops for s in reading(shape, source, phase).scopes if s.anchor.endswith("_proj")}
            for source in SOURCES
        )
        assert left == right
        assert all(left.values())


@pytest.mark.parametrize(("shape", "source"), [(shape, source) for shape in SHAPES for source in SOURCES])
def test_a_layer_as_a_drawing(shape: str, source: str) -> None:
    blocks = reading(shape, source, "decode").blocks
    assert sorted(blocks) == list(range(config(shape).num_hidden_layers))
    for layer, block in blocks.items():
        before = "embed_tokens" if layer == 0 else f"layers.{layer - 1}"
        reads = named_edges(block)
        assert (before, f"layers.{layer}.input_layernorm") in reads
        assert (f"layers.{layer}.self_attn.q_proj", f"layers.{layer}.self_attn.q_rope") in reads
        assert (f"k_cache.{layer}", f"layers.{layer}.self_attn.scores") in reads
        assert (f"v_cache.{layer}", f"layers.{layer}.self_attn.context") in reads
        # The residual stream: the sum in the middle is no anchor, the one at the end is the layer.
        assert (before, "") in reads
        assert (f"layers.{layer}.self_attn.o_proj", "") in reads
        assert ("", f"layers.{layer}.post_attention_layernorm") in reads
        assert ("", f"layers.{layer}") in reads
        assert (f"layers.{layer}.self_attn.scores", f"layers.{layer}.self_attn.context") not in reads
        assert all(a < b for a, b in block.edges)
        down = next(n for n in block.nodes if n.anchor == f"layers.{layer}.mlp.down_proj")
        assert f"model.layers.{layer}.mlp.down_proj.weight" in down.weights


def named_edges(block: Block) -> set[tuple[str, str]]:
    return {(block.nodes[a].anchor, block.nodes[b].anchor) for a, b in block.edges}


def test_a_wire_that_goes_elsewhere_is_drawn_elsewhere() -> None:
    wrong = named_edges(reading("plain", "emitter", "decode", "residual-attention-dropped").blocks[0])
    assert ("embed_tokens", "") not in wrong


def test_long_lines_are_cut_and_tables_first() -> None:
    table = '%c = stablehlo.constant dense<"0x' + "0123456789ABCDEF" * 500 + '"> : tensor<2x32xf32> loc("norm")'
    assert _line([table], 1) == '%c = stablehlo.constant dense<"0x0123456789ABCDEF01234567…"> : tensor<2x32xf32>'
    long = "%x = stablehlo.add " + "%a, " * 1000 + ": tensor<f32>"
    assert len(_line([long], 1)) <= LONGEST_LINE + 3
    assert _line([long], 1).endswith(": tensor<f32>")
    assert _line([long], None) == ""
