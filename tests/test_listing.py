"""A graph as a reader goes through it: scopes, what is alike, arithmetic, traffic, and a layer as a drawing."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from models import SHAPES, S, T, model
from planting import planted

from hloracle.conformance.graphs.facts import inspect
from hloracle.conformance.graphs.listing import LONGEST_LINE, Block, Reading, _shown, read
from hloracle.conformance.record.record import _block, _graph_row, _listing
from hloracle.core.abi import Graph
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.anchors import split
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import from_hf
from hloracle.reference.oracle.lower import lower

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


WRITTEN = re.compile(r'= "?stablehlo\.(?!constant)')
EVERY = [(shape, source, phase) for shape in SHAPES for source in SOURCES for phase in ("decode", "prefill")]


@pytest.mark.parametrize(("shape", "source", "phase"), EVERY)
def test_every_operation_is_listed_once_at_its_line(shape: str, source: str, phase: str) -> None:
    lines = graph(shape, source, phase).text.splitlines()
    listed = [op for scope in reading(shape, source, phase).scopes for op in scope.ops]
    computing = [op for op in listed if op["op"] != "constant"]
    written = [i for i, line in enumerate(lines, 1) if WRITTEN.search(line)]
    assert sorted(op["line"] or 0 for op in computing) == written
    for op in listed:
        assert op["line"] is not None
        assert f"stablehlo.{op['op']}" in lines[op["line"] - 1]
        assert op["type"] in lines[op["line"] - 1]


TINY_LLAMA = from_hf(TINY["llama"])  # three layers
NORM = "%l2_post_attention_layernorm"


def folded(some: Graph) -> dict[str, list[int]]:
    """The listing's anchors, each with the layers that it stands for."""
    return {scope["anchor"]: scope["layers"] for scope in _listing("emitter", some, read(some), 0)["scopes"]}


@cache
def decode() -> Graph:
    return emit(TINY_LLAMA, "decode", "logits", S)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_layers_of_a_right_model_are_alike(source: str, phase: str) -> None:
    """But for the caches of a prefill, of which the first layer's are new."""
    found = folded(SOURCES[source](TINY_LLAMA, phase, "logits", S, T if phase == "prefill" else 0))
    layered = {anchor: layers for anchor, layers in found.items() if split(anchor)[0] is not None}
    caches = [{f"{part}.0": [0], f"{part}.1": [1, 2]} for part in ("k_cache", "v_cache") if phase == "prefill"]
    unlike = {anchor: layers for part in caches for anchor, layers in part.items()}
    assert len(layered) == 18 + len(caches)
    assert {anchor: layers for anchor, layers in layered.items() if layers != [0, 1, 2]} == unlike


@pytest.mark.parametrize(
    ("scope", "right", "wrong"),
    [
        ("layers.{}", "%l2.add = stablehlo.add %l1.add1,", "%l2.add = stablehlo.add %embed_tokens.ds,"),
        ("layers.{}", "%l2.add = stablehlo.add %l1.add1,", "%l2.add = stablehlo.add %l1.add,"),
        ("layers.{}", "%l2.add = stablehlo.add %l1.add1,", "%l2.add = stablehlo.add %l1_self_attn_o_proj.dot,"),
        ("layers.{}", "%l2.add1 = stablehlo.add %l2.add,", "%l2.add1 = stablehlo.add %l1.add1,"),
        (
            "layers.{}.mlp.up_proj",
            f"{NORM}.mul3, %model.layers.2.mlp.up_proj",
            f"{NORM}.mul2, %model.layers.2.mlp.up_proj",
        ),
        ("k_cache.{}", "slice %l1_self_attn_k_cache.dus, %l2_self", "slice %l0_self_attn_k_cache.dus, %l2_self"),
        ("k_cache.{}", "slice %l1_self_attn_k_cache.dus, %l2_self", "slice %k_cache, %l2_self"),
        ("v_cache.{}", "slice %l1_self_attn_v_cache.dus, %l2_self", "slice %l1_self_attn_k_cache.dus, %l2_self"),
    ],
)
def test_a_layer_that_is_wired_otherwise_is_listed_by_itself(scope: str, right: str, wrong: str) -> None:
    some = decode()
    assert some.text.count(right) == 1
    expected = folded(some) | {scope.format(0): [0, 1], scope.format(2): [2]}
    assert folded(replace(some, text=some.text.replace(right, wrong))) == expected


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
def test_arithmetic_and_traffic(shape: str, source: str, phase: str) -> None:
    """Of every scope, as one counts them by hand. Figures are float32, but for the positions (int32) and the mask."""
    c, changed = config(shape), SHAPES[shape]
    rows, keys = (T, T) if phase == "prefill" else (1, S)  # B is 1
    N, K, D = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    E, F, V = c.hidden_size, c.intermediate_size, c.vocab_size
    x, q, k, f, cached, scores = rows * E, rows * N * D, rows * K * D, rows * F, K * keys * D, N * rows * keys
    emitted = source == "emitter"
    # A row of cosines and of sines, the emitter's for both halves. Prefill reads all rows: a constant, so the scope's own.
    tables = 2 * (D if emitted else D // 2) if phase == "decode" else 0

    def linear(i: int, o: int, bias: str = "", rows: int = rows) -> tuple[int, int]:
        more = o if bias in changed else 0
        return 2 * rows * i * o + rows * more, 4 * (rows * i + i * o + more + rows * o)

    def norm(rows: int) -> tuple[int, int]:
        return 4 * rows * E + 3 * rows, 4 * (rows * E + E + rows * E)

    # A slot for each new key, in and out; in decode its number, and in the emitter's the layer's, which is no constant.
    cache = 0, 4 * (k + k) + 4 * (phase == "decode") * (1 + emitted)
    layer = {
        "input_layernorm": norm(rows),
        "self_attn.q_proj": linear(E, N * D, "attention_bias"),
        "self_attn.k_proj": linear(E, K * D, "attention_bias"),
        "self_attn.v_proj": linear(E, K * D, "attention_bias"),
        "self_attn.q_rope": (3 * q, 4 * (q + tables + q)),
        "self_attn.k_rope": (3 * k, 4 * (k + tables + k)),
        "k_cache": cache,
        "v_cache": cache,
        "self_attn.scores": (2 * scores * D + scores, 4 * (q + cached + scores) + rows * keys),
        "self_attn.probs": (5 * scores, 4 * (scores + scores)),
        "self_attn.context": (2 * scores * D, 4 * (scores + cached + q)),
        "self_attn.o_proj": linear(N * D, E, "attention_bias"),
        "": (2 * x, 4 * 5 * x),  # two sums: what came before, o_proj's, down_proj's, and both results
        "post_attention_layernorm": norm(rows),
        "mlp.gate_proj": linear(E, F, "mlp_bias"),
        "mlp.up_proj": linear(E, F, "mlp_bias"),
        "mlp.act": ((3 if emitted else 6) * f, 4 * 3 * f),
        "mlp.down_proj": linear(F, E, "mlp_bias"),
    }
    outside = {"embed_tokens": (0, 4 * (x + rows)), "norm": norm(1), "lm_head": linear(E, V, rows=1)}
    found = {s.anchor: (s.flops, s.bytes) for s in reading(shape, source, phase).scopes}
    for anchor, figures in found.items():
        number, part = split(anchor)
        if anchor:
            assert figures == (outside if number is None else layer)[part], anchor
    assert len(found) == 1 + len(outside) + len(layer) * c.num_hidden_layers


LOOP = """
    %z = stablehlo.constant dense<0> : tensor<i32>
    %w:2 = stablehlo.while(%i = %z, %x = VALUE) : tensor<i32>, tensor<1x112xf32>
      cond {
        %t = stablehlo.compare LT, %i, %z, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %t : tensor<i1>
      } do {
        %y = stablehlo.multiply %x, %x : tensor<1x112xf32>
        stablehlo.return %i, %y : tensor<i32>, tensor<1x112xf32>
      } loc("layers.1.mlp.act")
"""
CALL = '    %w = func.call @f(VALUE) : (tensor<1x112xf32>) -> tensor<1x112xf32> loc("layers.1.mlp.act")\n'
FUNCTION = "  func.func private @f(tensor<1x112xf32>) -> tensor<1x112xf32>\n"
SCATTER = """
    %z = stablehlo.constant dense<0> : tensor<1xi32>
    %w = "stablehlo.scatter"(VALUE, %z, VALUE) <{indices_are_sorted = false, unique_indices = false,
      scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1], scatter_dims_to_operand_dims = [0]>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        BODY
    }) : (tensor<1x112xf32>, tensor<1xi32>, tensor<1x112xf32>) -> tensor<1x112xf32> loc("layers.1.mlp.act")
"""
WRITES = "stablehlo.return %b : tensor<f32>"
ADDS = "%s = stablehlo.add %a, %b : tensor<f32>\n        stablehlo.return %s : tensor<f32>"


@pytest.mark.parametrize(
    ("more", "elsewhere", "value", "counted"),
    [
        (LOOP, "", "%w#1", False),
        (CALL, FUNCTION, "%w", False),
        (SCATTER.replace("BODY", ADDS), "", "%w", False),
        (SCATTER.replace("BODY", WRITES), "", "%w", True),
    ],
    ids=["loop", "call", "scatter-add", "scatter"],
)
def test_what_is_computed_elsewhere_is_not_counted_as_nothing(
    more: str, elsewhere: str, value: str, counted: bool
) -> None:
    some, result = decode(), "%l1_mlp_act.mul1"
    line = next(line for line in some.text.splitlines() if f"dot_general {result}," in line)
    text = some.text.replace(line, more.replace("VALUE", result) + line.replace(result, value))
    head, _, tail = text.rpartition("}")
    some = replace(some, text=f"{head}{elsewhere}}}{tail}")
    scopes = read(some).scopes
    uncounted = {scope.anchor for scope in scopes if scope.flops is None or scope.bytes is None}
    assert uncounted == (set() if counted else {"layers.1.mlp.act"})
    row = _graph_row("file", some, inspect(some), read(some))
    assert [row[key] is not None for key in ("flops", "bytes")] == [counted, counted]


@pytest.mark.parametrize(("shape", "source"), [(shape, source) for shape in SHAPES for source in SOURCES])
def test_a_layer_as_a_drawing(shape: str, source: str) -> None:
    blocks = reading(shape, source, "decode").blocks
    assert sorted(blocks) == list(range(config(shape).num_hidden_layers))
    for layer, (nodes, edges) in blocks.items():
        before = "embed_tokens" if layer == 0 else f"layers.{layer - 1}"
        reads = named_edges((nodes, edges))
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
        assert all(a < b for a, b in edges)
        down = next(n for n in nodes if n["anchor"] == f"layers.{layer}.mlp.down_proj")
        assert f"model.layers.{layer}.mlp.down_proj.weight" in down["weights"]


def named_edges(block: Block) -> set[tuple[str, str]]:
    nodes, edges = block
    return {(nodes[a]["anchor"], nodes[b]["anchor"]) for a, b in edges}


def test_a_wire_that_goes_elsewhere_is_drawn_elsewhere() -> None:
    wrong = named_edges(reading("plain", "emitter", "decode", "residual-attention-dropped").blocks[0])
    assert ("embed_tokens", "") not in wrong


def test_the_layer_that_is_drawn_is_that_of_the_phase_that_was_taken_apart() -> None:
    shown = [
        (source, graph("plain", source, phase), reading("plain", source, phase))
        for phase in ("decode", "prefill") for source in ("oracle", "emitter")
    ]  # fmt: skip
    for phase, drawn in {"": "decode", "decode": "decode", "prefill": f"prefill/{T}"}.items():
        assert (_block(shown, 1, phase) or {})["graph"] == f"emitter/{drawn}/logits"
    assert (_block(shown[:2], 1, "prefill") or {})["graph"] == "emitter/decode/logits"
    assert _block(shown, 2, "prefill") is None


def test_long_lines_are_cut_and_tables_first() -> None:
    table = '%c = stablehlo.constant dense<"0x' + "0123456789ABCDEF" * 500 + '"> : tensor<2x32xf32> loc("norm")'
    assert _shown(table) == '%c = stablehlo.constant dense<"0x0123456789ABCDEF01234567…"> : tensor<2x32xf32>'
    long = "%x = stablehlo.add " + "%a, " * 1000 + ": tensor<f32>"
    assert len(_shown(long)) <= LONGEST_LINE + 3
    assert _shown(long).endswith(": tensor<f32>")
