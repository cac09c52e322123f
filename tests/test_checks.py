"""Every check passes on right evidence, and fails on evidence that is wrong in the one thing that it asks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import (
    CLOSE,
    FLOOR,
    LONG,
    SHORT,
    STREAM,
    TRUTHS,
    WRONG,
    V,
    both,
    failed,
    not_repeated,
    on_prompt,
    on_slots,
    on_stream,
    outcome,
    truth,
)
from nightly import only
from published import PUBLISHED

from hloracle.backends.iree import compile_to_stream, precompile
from hloracle.conformance.checks import census
from hloracle.conformance.checks.census import NOT_PINNED, PINNED, census_key, census_pin, layer_kind, op_kinds_for
from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_configurations import configuration_checks, truth_check
from hloracle.conformance.checks.of_graphs import fewer_ops, graph_checks
from hloracle.conformance.checks.of_stream import caches_in_place
from hloracle.conformance.graphs.facts import GraphFacts, inspect
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.runs.configurations import Outcome
from hloracle.core.abi import Abi, Graph
from hloracle.emitters.matrix import FusedPart, MatrixBuilder
from hloracle.emitters.model import Emitter, emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.huggingface.truth import Truth
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.encodings import PRECISIONS
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.model.rope import prefill_tables
from hloracle.reference.model.weights import default_layout, fused, fusions, parts_in
from hloracle.reference.oracle.lower import lower
from hloracle.studies import pin_census

CONFIG = from_hf(TINY["llama"])
MOST_KINDS = 20  # of a Llama's decode graph with logits, as emitters/hloracle.toml has it
Inspected = tuple[Graph, GraphFacts]
ToStream = Callable[[Graph], str]


def by_id(found: Sequence[Check]) -> dict[str, Check]:
    assert len({c.id for c in found}) == len(found)
    return {c.id: c for c in found}


def facts(graph: Graph) -> Inspected:
    return graph, inspect(graph)


@pytest.fixture(scope="module")
def decode() -> Inspected:
    return facts(emit(CONFIG, "decode", "logits", 64))


@pytest.fixture(scope="module")
def oracle() -> Inspected:
    return facts(lower(CONFIG, "decode", "logits", 64))


@pytest.fixture(scope="module")
def prefill() -> Inspected:
    return facts(emit(CONFIG, "prefill", "logits", 64, 32))


# ---- what the graphs are made of

STATIC = ("parse", "supported", "abi", "donations", "random", "reductions", "custom-call", "f64", "dialects", "arguments-used",
          "caches-donated", "census", "matmuls", "weights")  # fmt: skip
RNG = (
    "%a = stablehlo.constant dense<0.0> : tensor<f32>", "%s = stablehlo.constant dense<4> : tensor<1xi64>",
    "%r = stablehlo.rng %a, %a, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>",
)  # fmt: skip
PARTITION = "%p = stablehlo.partition_id : tensor<ui32>"


def insert(*lines: str) -> Callable[[Graph], Graph]:
    """Adds operations to the end of the function."""
    return replace("    func.return", "".join(f"    {line}\n" for line in lines) + "    func.return")


def replace(old: str, new: str, count: int = 1) -> Callable[[Graph], Graph]:
    def change(graph: Graph) -> Graph:
        assert graph.text.count(old) >= count
        return dataclasses.replace(graph, text=graph.text.replace(old, new, count))

    return change


def second_product(graph: Graph) -> Graph:
    (line,) = re.findall(r"^ *%lm_head\.dot = .*\n", graph.text, re.M)
    return replace(line, line + line.replace("%lm_head.dot", "%again", 1))(graph)


def with_abi(change: Callable[[Abi], Abi]) -> Callable[[Graph], Graph]:
    return lambda graph: dataclasses.replace(graph, abi=change(graph.abi))


def without_donation(graph: Graph) -> Graph:
    text, count = re.subn(r" \{tf\.aliasing_output = \d : i32\}", "", graph.text)
    assert count == 2
    return dataclasses.replace(graph, text=text)


def without_aliases(abi: Abi) -> Abi:
    return dataclasses.replace(abi, results=tuple(dataclasses.replace(r, aliases=None) for r in abi.results))


def another_norm(graph: Graph) -> Graph:
    """The final norm's weight is not the final norm's any more."""
    head, arrow, body = graph.text.partition(") -> (")
    other = "%model.layers.0.input_layernorm.weight"
    assert body.count("%model.norm.weight") == 1
    return dataclasses.replace(graph, text=head + arrow + body.replace("%model.norm.weight", other))


def beside(*functions: tuple[str, Sequence[str]]) -> Callable[[Graph], Graph]:
    """Adds private functions of a number %x, by name, of these operations."""
    text = "".join(
        f"  func.func private @{name}(%x: tensor<f32>) -> tensor<f32> {{\n"
        + "".join(f"    {line}\n" for line in lines)
        + "    func.return %x : tensor<f32>\n  }\n"
        for name, lines in functions
    )
    return replace("  func.func", text + "  func.func")


def called(name: str) -> str:
    return f"%called_{name} = func.call @{name}(%x) : (tensor<f32>) -> tensor<f32>"


def composite(name: str) -> str:
    return (
        f'%composed_{name} = stablehlo.composite "my.op" %x {{decomposition = @{name}}} : (tensor<f32>) -> tensor<f32>'
    )


PING_PONG = beside(("ping", [called("pong")]), ("pong", [composite("ping")]))
ONE = "%x = stablehlo.constant dense<1.0> : tensor<f32>"


def recursive(by: str) -> Callable[[Graph], Graph]:
    """Two functions that call each other, and an entry point that calls one of them."""
    return lambda graph: PING_PONG(insert(ONE, by)(graph))


def last_sum(kind: str, initial: str) -> Callable[[Graph], Graph]:
    """The last norm's reduction is of this kind, and begins so."""

    def change(graph: Graph) -> Graph:
        (line,) = re.findall(r"^ *%norm\.red = .*\n", graph.text, re.M)
        other = re.sub(r"init: %\w+\) applies stablehlo\.add", f"init: %initial) applies stablehlo.{kind}", line)
        return replace(line, f"    %initial = stablehlo.constant dense<{initial}> : tensor<f32>\n{other}")(graph)

    return change


WINDOWS = (
    "%begin = stablehlo.constant dense<0.5> : tensor<bf16>", "%low = stablehlo.constant dense<1.0> : tensor<4x4xbf16>",
    '%windows = "stablehlo.reduce_window"(%low, %begin) <{window_dimensions = array<i64: 1, 2>}> ({',
    "^bb0(%one: tensor<bf16>, %other: tensor<bf16>):", "  %both = stablehlo.multiply %one, %other : tensor<bf16>",
    "  stablehlo.return %both : tensor<bf16>", "}) : (tensor<4x4xbf16>, tensor<bf16>) -> tensor<4x3xbf16>",
)  # fmt: skip


def layout_of(argument: str, layout: str) -> Callable[[Graph], Graph]:
    return replace(argument, f'{argument} {{mhlo.layout_mode = "{layout}"}}')


def layouts_of_results(*layouts: str) -> Callable[[Graph], Graph]:
    """Of the logits and both caches, by the module."""
    types = [f"dense<{layout}> : tensor<{layout.count(',') + 1}xindex>" for layout in layouts]
    attribute = f"mhlo.xla_entry_computation_result_layout = [{', '.join(types)}]"
    return replace("module @llama_decode_logits {", f"module @llama_decode_logits attributes {{{attribute}}} {{")


def exchanged(abi: Abi) -> Abi:
    """Each cache's result takes the other's buffer."""
    logits, keys, values = abi.results
    keys, values = (dataclasses.replace(r, aliases=o.aliases) for r, o in ((keys, values), (values, keys)))
    return dataclasses.replace(abi, results=(logits, keys, values))


def with_caches_exchanged(graph: Graph) -> Graph:
    text = re.sub(r"(tf\.aliasing_output = )(\d)", lambda found: f"{found[1]}{3 - int(found[2])}", graph.text)
    return dataclasses.replace(graph, text=text, abi=exchanged(graph.abi))


def last_bit_of_a_table(graph: Graph) -> Graph:
    """A rounding more, too little to be seen in any value."""
    found = re.search(r'dense<"0x[0-9A-F]{2}([0-9A-F])', graph.text)
    assert found
    at = found.start(1)
    return dataclasses.replace(graph, text=f"{graph.text[:at]}{int(found[1], 16) ^ 1:X}{graph.text[at + 1 :]}")


def without_tables(graph: Graph) -> Graph:
    return dataclasses.replace(graph, text=re.sub(r'dense<"0x[0-9A-F]+">', "dense<0.5>", graph.text))


NEW_KINDS = tuple(f"%k{i} = stablehlo.{kind} %lm_head.dot : tensor<1x257xf32>" for i, kind in enumerate(
    ["abs", "negate", "cosine", "sine", "floor"]))  # fmt: skip

BREAKAGES: list[tuple[str, Callable[[Graph], Graph], str]] = [
    ("parse", replace("stablehlo.rsqrt", "stablehlo.rsqr"), "rsqr"),
    ("parse", replace("func.return %", "func.return %no_such_"), "undeclared SSA value"),
    ("parse", replace("tensor<257x84xf32>", "tensor<257x85xf32>"), "85"),
    ("parse", replace("@main", "@other"), "@main"),
    ("parse", lambda graph: dataclasses.replace(graph, text=""), ""),
    ("supported", insert(PARTITION), "stablehlo.partition_id, which is of several devices"),
    ("supported", insert('%g = "stablehlo.all_gather"(%lm_head.dot) {all_gather_dim = 0 : i64, replica_groups = '
     'dense<[[0]]> : tensor<1x1xi64>} : (tensor<1x257xf32>) -> tensor<1x257xf32>'), "stablehlo.all_gather"),
    ("supported", recursive(called("ping")), "@ping, which calls itself, @pong, which calls itself"),
    ("supported", recursive(composite("pong")), "@ping, which calls itself, @pong, which calls itself"),
    ("supported", lambda graph: beside(("unused", []), ("used", [PARTITION]))(insert(ONE, called("used"))(graph)),
     "stablehlo.partition_id"),
    ("donations", without_donation, "donates {}"),
    ("donations", replace("tf.aliasing_output = 1", "tf.aliasing_output = 2"), ""),
    ("donations", replace("%model.norm.weight: tensor<84xf32>",
     "%model.norm.weight: tensor<84xf32> {jax.buffer_donor = true}"), "away, which the ABI does not"),
    ("donations", with_abi(without_aliases), "donates"),
    ("random", insert(*RNG), "stablehlo.rng in the function"),
    ("random", lambda graph: beside(("used", RNG))(insert(ONE, composite("used"))(graph)), "stablehlo.rng in the function"),
    ("reductions", last_sum("add", "64.0"), "stablehlo.reduce in norm, stablehlo.add from 64 on"),
    ("reductions", last_sum("multiply", "0.0"), "stablehlo.reduce in norm, stablehlo.multiply from 0 on"),
    ("reductions", insert(*WINDOWS), "stablehlo.reduce_window in the function, stablehlo.multiply from 0.5 on"),
    ("abi", layout_of("%lm_head.weight: tensor<257x84xf32>", "{0, 1}"),
     'argument lm_head.weight has mhlo.layout_mode "{0, 1}": its buffer is row-major, so leave that out'),
    ("abi", layout_of("%model.norm.weight: tensor<84xf32>", "auto"), "argument model.norm.weight"),
    ("abi", layout_of(") -> (tensor<257xf32>, tensor<3x2x64x16xf32>", "{0,1,2,3}"), "result k_cache has mhlo.layout_mode"),
    ("abi", layouts_of_results("0", "[3, 2, 1, 0]", "[2, 3, 1, 0]"),
     'result v_cache has mhlo.xla_entry_computation_result_layout "{2,3,1,0}"'),
    ("abi", with_abi(lambda abi: dataclasses.replace(abi, arguments=abi.arguments[1:])), "arguments"),
    ("abi", with_abi(lambda abi: dataclasses.replace(abi, results=abi.results[1:])), "results"),
    ("custom-call", insert("%cc = stablehlo.custom_call @magic(%lm_head.dot) : (tensor<1x257xf32>) -> tensor<1x257xf32>"),
     "magic"),
    ("f64", insert("%d = stablehlo.constant dense<1.0> : tensor<f64>"), "constant in the function"),
    ("f64", insert("%d = stablehlo.convert %lm_head.dot : (tensor<1x257xf32>) -> tensor<1x257xf64> loc(\"lm_head\")"),
     "convert in lm_head"),
    ("dialects", insert("%e = chlo.erf %lm_head.dot : tensor<1x257xf32> -> tensor<1x257xf32>"), "chlo.erf"),
    ("arguments-used", another_norm, "model.norm.weight"),
    ("caches-donated", lambda graph: with_abi(without_aliases)(without_donation(graph)), "llama_decode_logits"),
    ("caches-donated", with_caches_exchanged, "llama_decode_logits"),
    ("census", insert("%x = stablehlo.add %lm_head.dot, %lm_head.dot : tensor<1x257xf32>"), "add"),
    ("census", replace("stablehlo.divide", "stablehlo.multiply"), "divide"),
    ("matmuls", second_product, "has 29"),
    ("weights", with_abi(lambda abi: dataclasses.replace(abi, arguments=abi.arguments[1:])), "has 29"),
    ("op-kinds", insert(*NEW_KINDS), ""),
    ("tables", last_bit_of_a_table, "another table"),
    ("tables", without_tables, "no table"),
]  # fmt: skip

# What is wrong, and the anchor that has to be named.
PLACES: list[tuple[str, Callable[[Graph], Graph], str]] = [
    ("custom-call", insert("%cc = stablehlo.custom_call @magic(%lm_head.dot) : (tensor<1x257xf32>) -> tensor<1x257xf32> "
     'loc("layers.1.mlp.act")'), "layers.1.mlp.act"),
    ("f64", insert("%d = stablehlo.constant dense<1.0> : tensor<f64>",
     '%e = stablehlo.negate %d : tensor<f64> loc("norm")'), "norm"),
    ("arguments-used", another_norm, "norm"),
    ("caches-donated", lambda graph: with_abi(without_aliases)(without_donation(graph)), "k_cache.0"),
    ("caches-donated", with_caches_exchanged, "k_cache.0"),
    ("donations", without_donation, "k_cache.0"),
    ("reductions", last_sum("add", "64.0"), "norm"),
    ("matmuls", second_product, "lm_head"),
    ("tables", last_bit_of_a_table, "layers.0.self_attn.q_rope"),
    ("parse", replace("stablehlo.logistic", "stablehlo.logistics"), "layers.0.mlp.act"),
    ("census", insert("%x = stablehlo.negate %lm_head.dot : tensor<1x257xf32>"), ""),
]  # fmt: skip


def test_right_graphs_pass(decode: Inspected, prefill: Inspected, oracle: Inspected) -> None:
    found = by_id(graph_checks("emitter", [decode, prefill], CONFIG))
    assert list(found) == [f"emitter.{name}" for name in (*STATIC, "op-kinds", "tables")]
    assert {c.status for c in found.values()} == {"passed"}
    found = by_id(graph_checks("oracle", [oracle], CONFIG))
    assert list(found) == [f"oracle.{name}" for name in (*STATIC, "tables")]
    assert {c.status for c in found.values()} == {"passed"}
    assert all(c.figure and c.limit and not c.detail for c in found.values())


@pytest.mark.parametrize(("id", "change", "words"), BREAKAGES, ids=[f"{i}-{b[0]}" for i, b in enumerate(BREAKAGES)])
def test_wrong_graph_fails(
    id: str, change: Callable[[Graph], Graph], words: str, decode: Inspected, prefill: Inspected
) -> None:
    """One wrong graph beside a right one."""
    graph = decode[0]
    wrong = facts(change(graph))
    found = by_id(graph_checks("emitter", [wrong, prefill], CONFIG))
    assert found[f"emitter.{id}"].status == "failed"
    assert words in found[f"emitter.{id}"].detail
    assert graph.name in found[f"emitter.{id}"].detail or id == "op-kinds"


@pytest.mark.parametrize(("id", "change", "anchor"), PLACES, ids=[f"{i}-{p[0]}" for i, p in enumerate(PLACES)])
def test_names_the_place(id: str, change: Callable[[Graph], Graph], anchor: str, decode: Inspected) -> None:
    found = by_id(graph_checks("emitter", [facts(change(decode[0]))], CONFIG))
    assert found[f"emitter.{id}"].status == "failed"
    assert found[f"emitter.{id}"].anchor == anchor


def test_where_the_parser_stops_is_only_likely_to_be_wrong(decode: Inspected) -> None:
    graph = replace("stablehlo.logistic", "stablehlo.logistics")(decode[0])
    check = by_id(graph_checks("emitter", [facts(graph)], CONFIG))["emitter.parse"]
    line = next(i for i, text in enumerate(graph.text.splitlines(), 1) if "stablehlo.logistics" in text)
    assert check.operation.startswith("stablehlo.logistics %")
    assert check.operation.endswith(f" at line {line} of {graph.name}")
    assert check.candidate


@pytest.mark.parametrize("given", ["[1]", '"x"', "3 : i32", "-1 : i32", "1.000000e+00 : f32", "unit", "loc(unknown)"])
def test_an_argument_given_to_no_result(given: str, decode: Inspected) -> None:
    graph = replace("tf.aliasing_output = 1 : i32", f"tf.aliasing_output = {given}")(decode[0])
    check = by_id(graph_checks("file", [facts(graph)], CONFIG, counts_as=""))["file.parse"]
    assert check.status == "failed"
    assert given.replace("loc(unknown)", "loc(…)") in check.detail
    assert "(tf.aliasing_output), of which there are " in check.detail


HARMLESS: dict[str, Callable[[Graph], Graph]] = {
    "random numbers that nothing calls": beside(("unused", RNG)),
    "several devices that nothing calls": beside(("unused", [PARTITION])),
    "recursion that nothing calls": PING_PONG,
    "a sum from -0.0 on": last_sum("add", "-0.0"),
    "a product from 1 on": last_sum("multiply", "1.0"),
    "a maximum from 3 on, which may be taken twice": last_sum("maximum", "3.0"),
    "a complex number": insert("%z = stablehlo.constant dense<(1.0, 2.0)> : tensor<complex<f32>>"),
    "the default layout": layout_of("%lm_head.weight: tensor<257x84xf32>", "default"),
    "a row-major layout": layout_of("%lm_head.weight: tensor<257x84xf32>", "{1,0}"),
    "row-major layouts of the module": layouts_of_results("0", "[3, 2, 1, 0]", "[3, 2, 1, 0]"),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_does_no_harm(change: Callable[[Graph], Graph], decode: Inspected) -> None:
    found = graph_checks("file", [facts(change(decode[0]))], CONFIG, counts_as="")
    assert [c for c in found if c.status != "passed" and c.detail != NOT_PINNED] == []


def test_the_layer_that_is_not_like_the_others(decode: Inspected) -> None:
    line = next(n for n in decode[0].text.splitlines() if "logistic" in n and "layers.1.mlp" in n)
    graph = replace(line, line + "\n" + line.replace(line.split()[0], "%once_more", 1))(decode[0])
    found = by_id(graph_checks("emitter", [facts(graph)], CONFIG))["emitter.census"]
    assert (found.status, found.anchor) == ("failed", "layers.1.mlp.act")


def test_no_graph_passes_nothing() -> None:
    for source in ("emitter", "oracle", "file"):
        assert not [c for c in graph_checks(source, [], CONFIG) if c.status == "passed"]


def test_graphs_that_do_not_parse_pass_nothing() -> None:
    broken = facts(dataclasses.replace(emit(CONFIG, "decode", "logits", 64), text="module {"))
    for source in ("emitter", "oracle", "file"):
        assert not [c for c in graph_checks(source, [broken], CONFIG) if c.status == "passed"]


def test_a_file_may_fuse_its_projections(decode: Inspected) -> None:
    found = by_id(graph_checks("file", [decode], CONFIG, counts_as=""))
    assert {id for id, c in found.items() if c.status == "skipped"} == {f"file.{kind}" for kind in PINNED} - {
        "file.fewer-ops"
    }


def test_op_kinds_are_at_most_20(decode: Inspected, prefill: Inspected) -> None:
    assert len(decode[1].ops) == MOST_KINDS == 20
    found = by_id(graph_checks("emitter", [prefill], CONFIG))
    assert found["emitter.op-kinds"].status == "failed", "there is no decode graph with logits"


def test_fewer_ops(decode: Inspected, oracle: Inspected) -> None:
    assert fewer_ops([decode], [oracle], CONFIG).status == "passed"
    assert fewer_ops([oracle], [decode], CONFIG).status == "failed"
    assert fewer_ops([decode], [decode], CONFIG).status == "failed", "as many are not fewer"
    assert fewer_ops([], [], CONFIG).status == "failed"
    other = dataclasses.replace(oracle[0], name="another"), oracle[1]
    assert fewer_ops([decode], [other], CONFIG).status == "failed", "graphs of other names are no pair"


# ---- census


def pinned() -> dict[str, Any]:
    return dict(json.loads(Path(census.__file__).with_name("census.json").read_text()))


@pytest.mark.nightly
def test_census_is_what_pin_census_would_write() -> None:
    assert pin_census.census() | pin_census.held() == pinned()


@pytest.mark.nightly
def test_census_of_a_family_is_what_pin_census_would_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one with layers of two kinds; the other families' own graphs are held to their pins below."""
    monkeypatch.setattr(pin_census, "TINY", {"smollm3": TINY["smollm3"]})
    found = pin_census.census()
    assert len(found) > 10
    assert found == {key: row for key, row in pinned().items() if key in found}


@pytest.mark.parametrize("overrides", [{"attention_bias": True}, {"mlp_bias": True}, {"num_hidden_layers": 4}])
def test_census_of_variants(overrides: dict[str, Any]) -> None:
    config = from_hf({**TINY["llama"], **overrides})
    graphs = [facts(emit(config, "decode", "logits", 64))]
    found = by_id(graph_checks("emitter", graphs, config))
    assert {c.status for c in found.values()} == {"passed"}
    # A graph with the biases is not one without, although it has one product each.
    other = by_id(graph_checks("emitter", graphs, CONFIG))
    assert other["emitter.census"].status == "failed"


def test_census_without_a_pin_is_skipped() -> None:
    config: Config = dataclasses.replace(CONFIG, layers=CONFIG.layers[:1])
    found = by_id(graph_checks("emitter", [facts(emit(config, "decode", "logits", 64))], config))
    assert found["emitter.census"].status == "skipped"
    assert found["emitter.census"].detail


# ---- other families

PER_FAMILY = ("gemma2", "phi3", "smollm3", "gpt_oss", "deepseek_v3", "qwen2_moe", "seed_oss")
SLOTS, BUCKET = 128, 64


@functools.cache
def family_graphs(family: str) -> tuple[Inspected, Inspected]:
    """Emitter's decode and prefill; beyond the windows and the turning points."""
    config = from_hf(TINY[family])
    return facts(emit(config, "decode", "logits", SLOTS)), facts(emit(config, "prefill", "logits", SLOTS, BUCKET))


@pytest.mark.parametrize("family", FAMILIES)
def test_right_graphs_of_every_family_pass(family: str) -> None:
    config, graphs = from_hf(TINY[family]), family_graphs(family)
    found = by_id(graph_checks("emitter", graphs, config))
    assert {id: c.detail for id, c in found.items() if c.status != "passed"} == {}
    oracle = facts(lower(config, "decode", "logits", SLOTS))
    found = by_id(graph_checks("oracle", [oracle], config))
    assert {id: c.detail for id, c in found.items() if c.status != "passed"} == {}
    assert fewer_ops(graphs[:1], [oracle], config).status == "passed"


def operation_in(graph: Graph, scope: str, kind: str) -> str:
    """The last line of a kind in a scope."""
    written = re.compile(rf" stablehlo\.{kind}[ (].* loc\(\"{re.escape(scope)}\"\)$")
    return [line for line in graph.text.splitlines() if written.search(line)][-1]


def once_more(graph: Graph, scope: str, kind: str) -> Graph:
    """The graph with an operation computed twice."""
    line = operation_in(graph, scope, kind)
    return replace(line, line + "\n" + line.replace(line.split()[0], "%once_more", 1))(graph)


# A part of each family's own: where another product hides.
PRODUCTS = {
    "phi3": "layers.1.mlp.gate_up_proj", "gpt_oss": "layers.1.mlp.experts", "qwen2_moe": "layers.1.mlp.shared_expert_gate",
    "deepseek_v3": "layers.1.self_attn.scores",
}  # fmt: skip


@pytest.mark.parametrize("phase", [0, 1], ids=["decode", "prefill"])
@pytest.mark.parametrize(("family", "anchor"), PRODUCTS.items())
def test_a_product_too_many(family: str, anchor: str, phase: int) -> None:
    graphs = list(family_graphs(family))
    graphs[phase] = facts(once_more(graphs[phase][0], anchor, "dot_general"))
    found = by_id(graph_checks("emitter", graphs, from_hf(TINY[family])))
    assert (found["emitter.matmuls"].status, found["emitter.matmuls"].anchor) == ("failed", anchor)
    assert found["emitter.census"].status == "failed"
    assert graphs[phase][0].name in found["emitter.matmuls"].detail


@functools.cache
def on_a_device(family: str) -> Graph:
    """A decode, in which one query's attention is written as sums."""
    return Emitter(on_device=True).emit(from_hf(TINY[family]), "decode", "logits", SLOTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_right_graphs_for_a_device_pass(family: str) -> None:
    found = by_id(graph_checks("emitter", [facts(on_a_device(family))], from_hf(TINY[family])))
    assert {id: c.detail for id, c in found.items() if c.status != "passed"} == {}


@pytest.mark.parametrize("anchor", ["layers.1.self_attn.scores", "layers.1.self_attn.context"])
def test_a_sum_of_products_too_many(anchor: str) -> None:
    graph = facts(once_more(on_a_device("llama"), anchor, "reduce"))
    found = by_id(graph_checks("emitter", [graph], CONFIG))["emitter.matmuls"]
    assert (found.status, found.anchor) == ("failed", anchor)


# How what is summed comes about, and how many products that is.
HIDE = "%s = stablehlo.select %m, %xy, %o : tensor<84x84xi1>, tensor<84x84xf32>"
SUMS: dict[str, tuple[list[str], int]] = {
    "products, some hidden": ([
        "%x = stablehlo.broadcast_in_dim %model.norm.weight, dims = [0] : (tensor<84xf32>) -> tensor<84x84xf32>",
        "%y = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<84xf32>) -> tensor<84x84xf32>",
        "%xy = stablehlo.multiply %x, %y : tensor<84x84xf32>", HIDE,
    ], 1),
    "squares, some hidden": (["%xy = stablehlo.multiply %o, %o : tensor<84x84xf32>", HIDE], 0),
    "products, others hidden": ([
        "%x = stablehlo.broadcast_in_dim %model.norm.weight, dims = [0] : (tensor<84xf32>) -> tensor<84x84xf32>",
        "%y = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<84xf32>) -> tensor<84x84xf32>",
        "%xy = stablehlo.multiply %x, %y : tensor<84x84xf32>", HIDE.replace("%xy, %o", "%o, %xy"),
    ], 1),
    "a choice": (["%s = stablehlo.select %m, %o, %o : tensor<84x84xi1>, tensor<84x84xf32>"], 0),
}  # fmt: skip


@pytest.mark.parametrize(("made", "count"), SUMS.values(), ids=SUMS)
def test_which_sums_are_products(made: list[str], count: int, decode: Inspected) -> None:
    ones = "%o = stablehlo.constant dense<1.0> : tensor<84x84xf32>"
    all_of_it = "%m = stablehlo.constant dense<true> : tensor<84x84xi1>"
    zero = "%zero = stablehlo.constant dense<0.0> : tensor<f32>"
    add_up = "stablehlo.reduce({} init: %zero) applies stablehlo.add across dimensions = [{}] : (tensor<{}xf32>, tensor<f32>)"
    lines = [ones, all_of_it, zero, *made, f"%r = {add_up.format('%s', 1, '84x84')} -> tensor<84xf32>"]
    lines.append(lines[-1].replace("%r", "%most").replace("stablehlo.add", "stablehlo.maximum"))
    # A weight as it is given is made by no operation.
    lines.append(f"%w = {add_up.format('%model.norm.weight', 0, '84')} -> tensor<f32>")
    found = inspect(insert(*lines)(decode[0]))
    assert not found.error
    assert sum(found.matmuls.values()) == sum(decode[1].matmuls.values()) + count


@pytest.mark.parametrize("family", PER_FAMILY)
def test_census_sees_one_operation_more_in_any_layer(family: str) -> None:
    config, graphs = from_hf(TINY[family]), family_graphs(family)
    for layer in range(config.num_hidden_layers):
        wrong = facts(once_more(graphs[0][0], f"layers.{layer}.self_attn.probs", "divide"))
        found = by_id(graph_checks("emitter", [wrong, graphs[1]], config))["emitter.census"]
        assert found.status == "failed"
        assert "divide" in found.detail


def narrow_graphs(family: str, compute: str, layout: Callable[..., Any] = default_layout) -> list[tuple[Graph, Any]]:
    """The same that compute in bf16 or f16, and those of several rows."""
    config = from_hf(TINY[family])
    held = layout(config, compute, panels=False)
    specs = [("decode", 0, 1), ("prefill", BUCKET, 1), ("extend", BUCKET, 1), ("decode", 0, 3), ("extend", BUCKET, 3)]
    return [facts(emit(config, phase, "logits", SLOTS, bucket, held, batch, compute)) for phase, bucket, batch in specs]


@pytest.mark.parametrize("compute", ["bf16", "f16"])
@pytest.mark.parametrize("family", PER_FAMILY)
def test_the_census_of_what_computes_in_less(family: str, compute: str) -> None:
    """It is that of float32, and what the row names beside it; a rounding more in any layer is one too many."""
    config, graphs = from_hf(TINY[family]), narrow_graphs(family, compute)
    found = by_id(graph_checks("emitter", graphs, config))
    assert {id: (c.status, c.detail) for id, c in found.items() if c.status != "passed"} == {}
    for layer in range(config.num_hidden_layers):
        wrong = facts(once_more(graphs[0][0], f"layers.{layer}.input_layernorm", "convert"))
        census_check = by_id(graph_checks("emitter", [wrong, *graphs[1:]], config))["emitter.census"]
        assert census_check.status == "failed"
        assert "convert" in census_check.detail
    # In float32 there is none of them, and in bf16 they are not left out.
    wide = emit(config, "decode", "logits", SLOTS)
    assert census_pin("emitter", graphs[0][0], config) != census_pin("emitter", wide, config)


@pytest.mark.parametrize("family", PER_FAMILY)
def test_the_census_of_keys_and_values_in_int8(family: str) -> None:
    """A row that float32's names beside it; what is rounded twice is another graph."""
    config = from_hf(TINY[family])
    specs = [("decode", 0, 1), ("prefill", BUCKET, 1), ("extend", BUCKET, 1), ("decode", 0, 3), ("extend", BUCKET, 3)]
    graphs = [facts(emit(config, p, "logits", SLOTS, n, None, batch, kv="int8")) for p, n, batch in specs]
    found = by_id(graph_checks("emitter", graphs, config))
    assert {id: (c.status, c.detail) for id, c in found.items() if c.status != "passed"} == {}
    wrong = facts(once_more(graphs[0][0], "layers.0.self_attn.k_cache", "abs"))
    census_check = by_id(graph_checks("emitter", [wrong, *graphs[1:]], config))["emitter.census"]
    assert census_check.status == "failed"
    wide = emit(config, "decode", "logits", SLOTS)
    assert census_pin("emitter", graphs[0][0], config) != census_pin("emitter", wide, config)
    assert census_pin("oracle", graphs[0][0], config) is None, "which is not pinned"


def test_what_computes_in_less_has_no_pin_where_it_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said to be skipped, and does not pass by the row of float32; nor where weights are fused."""
    graphs = narrow_graphs("llama", "bf16")
    pins = {key: {k: v for k, v in row.items() if k != "narrow"} for key, row in census._pins().items()}
    joined = narrow_graphs("llama", "bf16", lambda *a, **k: fused(CONFIG, default_layout(*a, **k)))
    assert by_id(graph_checks("emitter", joined, CONFIG))["emitter.census"].status == "skipped"
    monkeypatch.setattr(census, "_pins", lambda: pins)
    skipped = by_id(graph_checks("emitter", graphs, CONFIG))["emitter.census"]
    assert (skipped.status, bool(skipped.detail)) == ("skipped", True)


def test_what_is_more_in_a_row() -> None:
    """Of counts that are alike nothing is left, and fewer are told as well."""
    less = {"fixed": {"add": 1, "dot_general": 1}, "layers": {"dense": {"add": 2}}, "rows": {"slice": 3}}
    more = {"fixed": {"add": 1, "convert": 2}, "layers": {"dense": {"add": 2, "convert": 5}}, "rows": {"slice": 3}}
    assert pin_census.difference(more, less) == {
        "fixed": {"convert": 2, "dot_general": -1},
        "layers": {"dense": {"convert": 5}},
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_a_census(name: str) -> None:
    """With two layers of each kind, whose graphs are written at once."""
    whole = from_hf(PUBLISHED[name])
    config = dataclasses.replace(whole, layers=tuple(dict.fromkeys(whole.layers)) * 2)
    for phase, head in itertools.product(("decode", "prefill"), ("logits", "token")):
        graph = emit(config, phase, head, 256, 64 if phase == "prefill" else 0)
        assert census_pin("emitter", graph, config), census_key("emitter", graph.abi, config)
        if head == "logits":
            assert census_key("oracle", graph.abi, config) in census._pins()


@pytest.mark.parametrize("family", PER_FAMILY)
def test_op_kinds_are_those_that_a_mechanism_needs(family: str) -> None:
    """As many as Llama's and the family's own: one kind more is one too many."""
    config, (decode, _) = from_hf(TINY[family]), family_graphs(family)
    most = MOST_KINDS + len(op_kinds_for(config))
    assert op_kinds_for(config) - {"slice"} <= set(decode[1].ops), "what is said to be needed is there"
    more = [f"%k{i} = stablehlo.{kind} %lm_head.dot : tensor<1x257xf32>" for i, kind in enumerate(
        ["cosine", "sine", "floor", "sign", "cbrt", "ceil"])]  # fmt: skip
    spare = most - len(decode[1].ops)
    for count, status in ((spare, "passed"), (spare + 1, "failed")):
        found = by_id(graph_checks("emitter", [facts(insert(*more[:count])(decode[0]))], config))
        assert found["emitter.op-kinds"].status == status


def test_op_kinds_for() -> None:
    """Each is needed by some family, and Llama needs none."""
    assert op_kinds_for(CONFIG) == set()
    needed = {kind for family in FAMILIES for kind in op_kinds_for(from_hf(TINY[family]))}
    assert needed == {
        "and",
        "tanh",
        "slice",
        "concatenate",
        "minimum",
        "transpose",
        "gather",
        "convert",
        "optimization_barrier",
    }


@pytest.mark.parametrize(("family", "variants"), [("gemma3_text", 1), ("olmo3", 1), ("phi3", 2), ("seed_oss", 25)])
def test_each_rope_has_its_table(family: str, variants: int) -> None:
    """A set of tables for each RoPE, with a variant for each length beyond the turning point that angles differ at."""
    config, (decode, prefill) = from_hf(TINY[family]), family_graphs(family)
    assert {len(prefill_tables(rope, BUCKET).cos) for rope in config.ropes} >= {variants}
    for graph, _ in (decode, prefill):
        # The other layers' table, or another length's, stands in for one of them.
        tables = sorted(set(re.findall(r'dense<"0x[0-9A-F]+">', graph.text)), key=graph.text.index)
        assert len(tables) == 2 * len(config.ropes)
        wrong = [last_bit_of_a_table(graph), without_tables(graph)]
        if len(config.ropes) > 1:
            wrong.append(replace(tables[2], tables[0])(graph))
        for other in wrong:
            found = by_id(graph_checks("emitter", [facts(other)], config))["emitter.tables"]
            assert found.status == "failed"
            assert graph.name in found.detail


def test_a_table_of_the_other_angles() -> None:
    """One that turns by a prompt's first angles, however long it is."""
    config = from_hf(TINY["seed_oss"])
    still = dataclasses.replace(config.layers[0].rope, original_max_position_embeddings=1024)  # type: ignore[type-var]
    layers = tuple(dataclasses.replace(layer, rope=still) for layer in config.layers)
    for phase, bucket in (("decode", 0), ("prefill", BUCKET)):
        graph = facts(emit(dataclasses.replace(config, layers=layers), phase, "logits", SLOTS, bucket))
        assert by_id(graph_checks("emitter", [graph], config))["emitter.tables"].status == "failed"


@pytest.mark.parametrize("family", ["smollm3", "qwen2_moe", "deepseek_v3"])
def test_the_pin_of_layers_of_different_kinds(family: str) -> None:
    """Operations are counted by kind of layer, so any order and number of them has its pin."""
    config = from_hf(TINY[family])
    one, other = dict.fromkeys(config.layers)
    abi = graph_abi(config, "decode", "logits", SLOTS)
    assert layer_kind(one, abi) != layer_kind(other, abi)
    counts = {}
    for layers in ((one, other), (other, one), (one, one, other), (one, other, other)):
        deep = dataclasses.replace(config, layers=layers)
        graph = emit(deep, "decode", "logits", SLOTS)
        pin = census_pin("emitter", graph, deep)
        assert pin == dict(inspect(graph).ops)
        counts[layers] = pin
    assert counts[one, other] == counts[other, one]
    assert counts[one, one, other] != counts[one, other, other]
    # One layer of a kind for another has as many layers, and is told.
    swapped = dataclasses.replace(config, layers=(one, other, other))
    graph = facts(emit(dataclasses.replace(config, layers=(one, one, other)), "decode", "logits", SLOTS))
    assert by_id(graph_checks("emitter", [graph], swapped))["emitter.census"].status == "failed"


def test_a_window_that_holds_the_whole_graph_has_another_pin() -> None:
    config = from_hf(TINY["gemma2"])
    wide = dataclasses.replace(
        config, layers=tuple(dataclasses.replace(n, window=n.window and SLOTS) for n in config.layers)
    )
    graphs = {c: emit(c, "decode", "logits", SLOTS) for c in (config, wide)}
    assert "some-windowed" in census_key("emitter", graphs[config].abi, config)
    assert "windowed" not in census_key("emitter", graphs[wide].abi, wide)
    assert by_id(graph_checks("emitter", [facts(graphs[wide])], wide))["emitter.census"].status == "passed"
    # A graph without the window where there is one.
    assert by_id(graph_checks("emitter", [facts(graphs[wide])], config))["emitter.census"].status == "failed"


# ---- weights that are held otherwise

UP = "layers.1.mlp.up_proj"
HELD_FAMILIES = ("llama", "mixtral", "deepseek_v3", "gpt_oss")
# Each precision, and each family, at least once.
EACH_ONCE = [
    ("llama", "f32"),
    ("mixtral", "bf16"),
    ("deepseek_v3", "f16"),
    ("gpt_oss", "int8"),
    ("deepseek_v3", "int4"),
    ("llama", "int4"),
]
OF_HELD = ("census", "matmuls", "weights", "op-kinds")


def held(phase: str = "decode", precision: str = "int4", family: str = "llama") -> Inspected:
    config = from_hf(TINY[family])
    return facts(emit(config, phase, "logits", 64, 32 if phase == "prefill" else 0, default_layout(config, precision)))


def found_in(graph: Inspected, other: Inspected) -> dict[str, Check]:
    return by_id(graph_checks("emitter", [graph, other], CONFIG))


@pytest.mark.parametrize(("family", "precision"), only(EACH_ONCE, [(f, p) for f in HELD_FAMILIES for p in PRECISIONS]))
def test_right_graphs_of_every_precision_pass(family: str, precision: str) -> None:
    config = from_hf(TINY[family])
    graphs = [held(phase, precision, family) for phase in ("decode", "prefill")]
    found = by_id(graph_checks("emitter", graphs, config))
    assert {id: c.detail for id, c in found.items() if c.status != "passed"} == {}
    assert {id.partition(".")[2] for id in found} >= {*OF_HELD}
    assert fewer_ops(graphs, [facts(lower(config, "decode", "logits", 64))], config).status == "passed"


def product_left_out(right: Any, b: Any, x: Any, weight: Any) -> Any:
    return b.f32(0.5, (x.shape[0], weight.shape[0])) if b.anchor == UP else right(b, x, weight)


def product_twice(right: Any, b: Any, x: Any, weight: Any) -> Any:
    if b.anchor == UP:
        right(b, x, weight)
    return right(b, x, weight)


def sum_twice(right: Any, b: Any, terms: Any, dimensions: Any) -> Any:
    """All but the sum itself is shared."""
    if b.anchor == UP:
        right(b, terms, dimensions)
    return right(b, terms, dimensions)


def plain_product_beside(right: Any, b: Any, x: Any, weight: Any) -> Any:
    y = right(b, x, weight)
    if b.anchor == UP:
        b.dot_general(y, y, contracting_dimensions=((1,), (1,)))
    return y


def minimum_left_out(right: Any, b: Any, x: Any, weight: Any) -> Any:
    if b.anchor == UP:
        nibbles, scale, _ = weight.parts
        weight = dataclasses.replace(weight, parts=(nibbles, scale, b.multiply(scale, scale)))
    return right(b, x, weight)


def one_operation_more(right: Any, b: Any, x: Any, weight: Any) -> Any:
    y = right(b, x, weight)
    return b.add(y, y) if b.anchor == UP else y


# What is wrong in layer 1's up_proj, which function does it, and the checks that fail.
WRONG_PRODUCTS = [
    (product_left_out, "product", {"matmuls", "census", "arguments-used"}),
    (product_twice, "product", {"matmuls", "census"}),
    (sum_twice, "_summed", {"matmuls", "census"}),
    (plain_product_beside, "product", {"matmuls", "census"}),
    (minimum_left_out, "product", {"census", "arguments-used"}),
    (one_operation_more, "product", {"census"}),
]


# A prompt's product is no sum.
IN_PHASES = [
    (*w, phase) for w in WRONG_PRODUCTS for phase in ("decode", "prefill") if (w[1], phase) != ("_summed", "prefill")
]


@pytest.mark.parametrize(
    ("wrong", "where", "ids", "phase"), IN_PHASES, ids=[f"{w[0].__name__}-{w[3]}" for w in IN_PHASES]
)
def test_a_wrong_product_with_a_weight_of_4_bits(
    wrong: Any, where: str, ids: set[str], phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the product is a sum of products, as where it is dot_general."""
    other = held("prefill" if phase == "decode" else "decode")
    right = getattr(MatrixBuilder, where)
    monkeypatch.setattr(MatrixBuilder, where, lambda *arguments: wrong(right, *arguments))
    graph = held(phase)
    found = found_in(graph, other)
    assert not graph[1].error
    assert {id.partition(".")[2] for id, c in found.items() if c.status != "passed"} == ids
    assert graph[0].name in found["emitter.census"].detail
    assert "matmuls" not in ids or found["emitter.matmuls"].anchor == UP


@pytest.mark.parametrize("wrong", [(product_left_out, "product"), (minimum_left_out, "product")])
def test_the_place_of_a_weight_that_is_not_used(wrong: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its arguments it is: the anchor is the part's, not the argument's name."""
    function, where = wrong
    right = getattr(MatrixBuilder, where)
    monkeypatch.setattr(MatrixBuilder, where, lambda *arguments: function(right, *arguments))
    found = by_id(graph_checks("emitter", [held()], CONFIG))["emitter.arguments-used"]
    assert (found.status, found.anchor) == ("failed", UP)
    assert f"model.{UP}.weight.int4.minimum" in found.detail


def test_a_weight_too_few() -> None:
    """All of its arguments; of one alone the ABI is another than the graph's."""
    graph, _ = held()
    arguments = tuple(a for a in graph.abi.arguments if a.weight != f"model.{UP}.weight")
    assert len(arguments) == len(graph.abi.arguments) - 3
    wrong = facts(with_abi(lambda abi: dataclasses.replace(abi, arguments=arguments))(graph))
    found = found_in(wrong, held("prefill"))["emitter.weights"]
    assert (found.status, found.limit) == ("failed", "30")
    assert "has 29" in found.detail


# ---- weights that are fused


def held_fused(phase: str = "decode", precision: str = "int4", family: str = "llama") -> Inspected:
    config = from_hf(TINY[family])
    layout = fused(config, default_layout(config, precision))
    return facts(emit(config, phase, "logits", 64, 32 if phase == "prefill" else 0, layout))


@pytest.mark.parametrize(
    ("family", "precision"),
    only(EACH_ONCE, [(f, p) for f in ("llama", "mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss") for p in PRECISIONS]),
)
def test_right_fused_graphs_pass(family: str, precision: str) -> None:
    """Every part counts as a product, and as a weight."""
    config = from_hf(TINY[family])
    graphs = [held_fused(phase, precision, family) for phase in ("decode", "prefill")]
    found = by_id(graph_checks("emitter", graphs, config))
    assert {id: c.detail for id, c in found.items() if c.status != "passed"} == {}
    assert fewer_ops(graphs, [facts(lower(config, "decode", "logits", 64))], config).status == "passed"


def moved(by: dict[str, int]) -> Any:
    """Parts of layer 1 that take their rows of the product so many further on."""

    def product(right: Any, b: Any, x: Any, weight: Any) -> Any:
        _, _, part = b.anchor.partition("layers.1.")
        if part in by and isinstance(weight, FusedPart):
            weight = dataclasses.replace(weight, start=weight.start + by[part], limit=weight.limit + by[part])
        return right(b, x, weight)

    return product


def slice_twice(right: Any, b: Any, x: Any, weight: Any) -> Any:
    if b.anchor == UP:
        right(b, x, weight)
    return right(b, x, weight)


def slice_in_another_scope(right: Any, b: Any, x: Any, weight: Any) -> Any:
    if b.anchor != UP:
        return right(b, x, weight)
    outer, b._scope = b._scope, (*b._scope[:-1], "down_proj")
    y = right(b, x, weight)
    b._scope = outer
    return y


def whole_product_beside(right: Any, b: Any, x: Any, weight: Any) -> Any:
    if b.anchor == UP:
        right(b, x, weight.whole)
    return right(b, x, weight)


def product_of_its_own(right: Any, b: Any, x: Any, weight: Any) -> Any:
    """The whole once more, and the right rows of that."""
    if b.anchor == UP:
        return b.part(right(b, x, weight.whole), 1, weight.start, weight.limit)
    return right(b, x, weight)


def part_left_out(right: Any, b: Any, x: Any, weight: Any) -> Any:
    return b.f32(0.5, (x.shape[0], weight.limit - weight.start)) if b.anchor == UP else right(b, x, weight)


K_PROJ, V_PROJ, GATE = "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj"
WRONG_PARTS = {
    "k early": (moved({K_PROJ: -16}), f"layers.1.{K_PROJ}", {"matmuls"}),
    "k late": (moved({K_PROJ: 16}), f"layers.1.{K_PROJ}", {"matmuls"}),
    "q late": (moved({"self_attn.q_proj": 1}), "layers.1.self_attn.q_proj", {"matmuls"}),
    "v early": (moved({V_PROJ: -1}), f"layers.1.{V_PROJ}", {"matmuls"}),
    "k and v early": (moved({K_PROJ: -16, V_PROJ: -16}), f"layers.1.{K_PROJ}", {"matmuls"}),
    "k and v swapped": (moved({K_PROJ: 32, V_PROJ: -32}), f"layers.1.{K_PROJ}", {"matmuls"}),
    "gate and up swapped": (moved({GATE: 112, "mlp.up_proj": -112}), f"layers.1.{GATE}", {"matmuls"}),
    "up early": (moved({"mlp.up_proj": -3}), UP, {"matmuls"}),
    "slice twice": (slice_twice, UP, {"matmuls", "census"}),
    "slice in another scope": (slice_in_another_scope, UP, {"matmuls"}),
    "whole product beside": (whole_product_beside, UP, {"matmuls", "census"}),
    "product of its own": (product_of_its_own, UP, {"matmuls", "census"}),
    "part left out": (part_left_out, UP, {"matmuls", "census"}),
}


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("precision", ["f32", "bf16", "int4"])
@pytest.mark.parametrize("name", WRONG_PARTS)
def test_a_part_that_does_not_take_its_rows_does_not_count(
    name: str, precision: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, place, ids = WRONG_PARTS[name]
    other = held_fused("prefill" if phase == "decode" else "decode", precision)
    right = MatrixBuilder.product
    monkeypatch.setattr(MatrixBuilder, "product", lambda *arguments: wrong(right, *arguments))
    graph = held_fused(phase, precision)
    found = found_in(graph, other)
    assert not graph[1].error
    assert {id.partition(".")[2] for id, c in found.items() if c.status != "passed"} == ids
    assert found["emitter.matmuls"].anchor == place


def test_a_fused_weight_too_few() -> None:
    graph, _ = held_fused()
    (name,) = (name for name in fusions(CONFIG) if "layers.1.mlp" in name)
    arguments = tuple(a for a in graph.abi.arguments if a.weight != name)
    wrong = facts(with_abi(lambda abi: dataclasses.replace(abi, arguments=arguments))(graph))
    found = found_in(wrong, held_fused("prefill"))["emitter.weights"]
    assert (found.status, found.limit) == ("failed", "30")
    assert f"has {30 - len(parts_in(name))}" in found.detail


def test_the_place_of_a_fused_weight_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of its first part."""
    whole = MatrixBuilder._whole

    def nothing(b: Any, x: Any, weight: Any) -> Any:
        of_layer_1 = "layers.1.mlp" in b.anchor
        return b.f32(0.5, (x.shape[0], weight.shape[0])) if of_layer_1 else whole(b, x, weight)

    monkeypatch.setattr(MatrixBuilder, "_whole", nothing)
    found = by_id(graph_checks("emitter", [held_fused()], CONFIG))["emitter.arguments-used"]
    assert (found.status, found.anchor) == ("failed", f"layers.1.{GATE}")


def test_op_kinds_of_4_bits_are_those_that_they_need() -> None:
    graph, other = held(), held("prefill")
    own = census.held_kinds(graph[0], CONFIG)
    assert own == {"and", "concatenate", "convert", "shift_right_logical", "slice"}
    assert census.held_kinds(emit(CONFIG, "decode", "logits", 64), CONFIG) == set()
    spare = MOST_KINDS + len(own) - len(graph[1].ops)
    more = [f"%k{i} = stablehlo.{kind} %lm_head.dot : tensor<1x257xf32>" for i, kind in enumerate(
        ["cosine", "sine", "floor", "sign", "cbrt", "ceil"])]  # fmt: skip
    (head,) = set(re.findall(r"func\.return (%\S+),", graph[0].text))
    more = [line.replace("%lm_head.dot", head).replace("1x257", "257") for line in more]
    assert 0 <= spare < len(more)
    for count, status in ((spare, "passed"), (spare + 1, "failed")):
        wrong = facts(insert(*more[:count])(graph[0]))
        assert not wrong[1].error
        assert found_in(wrong, other)["emitter.op-kinds"].status == status


def test_fewer_ops_but_for_what_4_bits_need(oracle: Inspected) -> None:
    """More of them than the oracle has in all, and not one that the weights do not ask for."""
    graph, own = held()
    needed = sum((census.held_ops(graph, CONFIG) or {}).values())
    assert own.total > oracle[1].total > own.total - needed
    (head,) = set(re.findall(r"func\.return (%\S+),", graph.text))
    spare = oracle[1].total - (own.total - needed)
    for count, status in ((spare - 1, "passed"), (spare, "failed")):
        more = [f"%more{i} = stablehlo.negate {head} : tensor<257xf32>" for i in range(count)]
        wrong = facts(insert(*more)(graph))
        assert not wrong[1].error
        assert fewer_ops([wrong], [oracle], CONFIG).status == status


@pytest.mark.parametrize(("unpinned", "status"), [(("prompt",), "failed"), (("prompt", "token/3 hands"), "skipped")])
def test_a_use_of_a_weight_without_a_pin(
    unpinned: tuple[str, ...], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a kind of model without one: where some graphs have a pin, all have to."""
    without = [f"held/int4/{use}" for use in unpinned]
    pins = {key: row for key, row in census._pins().items() if key not in without}
    assert len(pins) == len(census._pins()) - len(without)
    monkeypatch.setattr(census, "_pins", lambda: pins)
    found = found_in(held(), held("prefill"))["emitter.census"]
    assert (found.status, bool(found.detail)) == (status, True)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_as_many_operations_as_pinned_however_many_panels(heads: int) -> None:
    """A product with one panel, of 16 rows, has its shape at once."""
    config = from_hf({**TINY["llama"], "num_attention_heads": 6, "num_key_value_heads": heads, "head_dim": 16})
    weights = [
        f"model.layers.{i}.self_attn.{part}_proj.weight" for i in range(config.num_hidden_layers) for part in "kv"
    ]
    graph = emit(config, "decode", "logits", 64, layout=dict.fromkeys(weights, "panels"))
    assert census.census_pin("emitter", graph, config) == inspect(graph).ops
    assert {a.shape[0] for a in graph.abi.weights if ".k_proj." in a.name} == {heads}


# ---- caches in place


@pytest.fixture(scope="module")
def production() -> Graph:
    return emit(CONFIG, "decode", "token", 64)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "on the way to the module"])
def to_stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToStream]:
    """A graph's stream form: made as such, or kept when the graph was compiled."""

    def made(graph: Graph) -> str:
        if request.param:
            assert not precompile(graph, with_stream=True)
        return compile_to_stream(graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HLORACLE_CACHE", str(tmp_path_factory.mktemp("streams")))
        yield functools.cache(made)


@pytest.fixture(scope="module")
def stream(production: Graph, to_stream: ToStream) -> str:
    return to_stream(production)


def test_caches_are_updated_in_place(production: Graph, stream: str) -> None:
    found = caches_in_place(production, stream)
    assert found.status == "passed", found
    assert re.fullmatch(r"largest copy \d+ bytes, largest new result 4 bytes, [1-9]\d* dispatches", found.figure)


def select_instead_of_update(graph: Graph) -> Graph:
    """The last layer's value is written by choosing between old and new, slot by slot: all slots are written."""
    (line,) = re.findall(r"^ *%l2_self_attn_v_cache\.dus = .*\n", graph.text, re.M)
    cache, new = re.findall(r"dynamic_update_slice (%[\w.]+), (%[\w.]+),", line)[0]
    big = "tensor<3x2x64x16xf32>"
    ops = [
        "%m.i = stablehlo.iota dim = 2 : tensor<3x2x64x16xi32>",
        "%m.p = stablehlo.broadcast_in_dim %position, dims = [] : (tensor<i32>) -> tensor<3x2x64x16xi32>",
        "%m.s = stablehlo.compare EQ, %m.i, %m.p : (tensor<3x2x64x16xi32>, tensor<3x2x64x16xi32>) "
        "-> tensor<3x2x64x16xi1>",
        "%m.j = stablehlo.iota dim = 0 : tensor<3x2x64x16xi32>",
        "%m.c = stablehlo.constant dense<2> : tensor<3x2x64x16xi32>",
        "%m.l = stablehlo.compare EQ, %m.j, %m.c : (tensor<3x2x64x16xi32>, tensor<3x2x64x16xi32>) "
        "-> tensor<3x2x64x16xi1>",
        "%m.b = stablehlo.and %m.s, %m.l : tensor<3x2x64x16xi1>",
        f"%m.n = stablehlo.broadcast_in_dim {new}, dims = [0, 1, 2, 3] : (tensor<1x2x1x16xf32>) -> {big}",
        f"%l2_self_attn_v_cache.dus = stablehlo.select %m.b, %m.n, {cache} : tensor<3x2x64x16xi1>, {big}",
    ]
    return replace(line, "".join(f"    {op}\n" for op in ops))(graph)


def update_after_use(graph: Graph) -> Graph:
    """The last layer's keys are read from the cache that the first layer has not yet written."""
    return replace("%l2_self_attn_k_cache.ds1 = stablehlo.dynamic_slice %l2_self_attn_k_cache.dus",
                   "%l2_self_attn_k_cache.ds1 = stablehlo.dynamic_slice %k_cache")(graph)  # fmt: skip


@pytest.mark.parametrize("change", [without_donation, update_after_use, select_instead_of_update])
def test_a_graph_that_copies_its_caches(
    change: Callable[[Graph], Graph], production: Graph, to_stream: ToStream
) -> None:
    found = caches_in_place(production, to_stream(change(production)))
    assert found.status == "failed"
    assert "is copied or written anew" in found.detail


@pytest.mark.parametrize(
    "line",
    [
        "stream.cmd.copy %arg40[%c0], %arg68[%c0], %c24576 : !stream.resource<external>{%c24576} -> !stream.resource<external>",
        "stream.cmd.copy %arg40[%c0], %arg68[%c0], %c8192 : !stream.resource<external>{%c24576} -> !stream.resource<external>",
        "stream.cmd.copy %arg40[%c0], %arg68[%c0], %77 : !stream.resource<external>{%77} -> !stream.resource<external>{%77}",
        "stream.cmd.copy in another form",
        "%9 = stream.async.clone %8 : !stream.resource<external>{%c4} -> !stream.resource<external>{%c4}",
        "%9 = stream.tensor.update %1, %2[%c0] : tensor<1xf32> in !stream.resource<*>{%c4}",
        "%r, %t = stream.resource.alloca uninitialized : !stream.resource<external>{%c24576} => !stream.timepoint",
        "%r, %t = stream.resource.alloca uninitialized : !stream.resource<external>{%size} => !stream.timepoint",
    ],
)
def test_a_line_that_copies_a_cache(line: str, production: Graph, stream: str) -> None:
    constants = "".join(f"    %c{n} = arith.constant {n} : index\n" for n in (8192, 24576))
    first = stream.index("      stream.cmd.dispatch")
    assert caches_in_place(production, stream[:first] + constants + stream[first:]).status == "passed"
    found = caches_in_place(production, f"{stream[:first]}{constants}      {line}\n{stream[first:]}")
    assert found.status == "failed"
    assert found.detail


def test_the_narrower_cache_counts(to_stream: ToStream) -> None:
    """A latent's: all of its values take less than a layer of its keys."""
    config = from_hf(TINY["deepseek_v3"])
    graph = emit(config, "decode", "token", 111)
    k_bytes, v_bytes = (graph.abi.results[graph.abi.result(name)].nbytes for name in ("k_cache", "v_cache"))
    assert v_bytes < k_bytes // config.num_hidden_layers
    stream = to_stream(graph)
    assert caches_in_place(graph, stream).status == "passed"
    layer = v_bytes // config.num_hidden_layers
    first = stream.index("      stream.cmd.dispatch")
    line = f"stream.cmd.copy %a[%c0], %b[%c0], %c{layer} : !stream.resource<external>{{%c{layer}}} -> !stream.resource<external>"
    constant = f"    %c{layer} = arith.constant {layer} : index\n"
    assert caches_in_place(graph, f"{stream[:first]}{constant}      {line}\n{stream[first:]}").status == "failed"


def test_an_empty_stream_form_is_not_in_place(production: Graph) -> None:
    assert caches_in_place(production, "").status == "failed"
    assert "0 dispatches" in caches_in_place(production, "module {}").detail


# ---- truth


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (truth(floor=0.01), "further"),
        (truth(floor=float("nan")), ""),
        (truth(floor=float("inf")), ""),
        (truth(floor=0.0), "float32 and float64 are equal"),
        (dataclasses.replace(truth(), caches=0.01), "further"),
        (dataclasses.replace(truth(), caches=float("nan")), ""),
    ],
)
def test_truth_noise(other: Truth, words: str) -> None:
    assert truth_check(TRUTHS).status == "passed"
    for wrong in ({**TRUTHS, "third@32": other}, {"third@32": other, **TRUTHS}):
        found = truth_check(wrong)
        assert (found.id, found.status) == ("reference.noise", "failed")
        assert words in found.detail


def test_truth_of_another_token_in_float64() -> None:
    other = truth()
    other.exact[1, 7] = 11
    other.logits[1, 7] = 11
    found = truth_check({**TRUTHS, "third@32": other})
    assert found.status == "failed"
    assert "third@32: step 1 is 7, not 1, in float64" in found.detail


def test_no_truth_is_no_truth() -> None:
    assert truth_check({}).status == "failed"


def test_the_truth_has_more_noise_at_many_positions() -> None:
    """RoPE's angles are rounded more there; of few positions none is."""
    noisy = {"long@256": dataclasses.replace(truth(), caches=3e-4)}
    assert truth_check(noisy, {"long@256": 8192}).status == "passed"
    assert truth_check(noisy, {"long@256": 4096}).status == "failed"
    both = {**noisy, "short@32": dataclasses.replace(truth(), caches=3e-4)}
    assert truth_check(both, {"long@256": 8192, "short@32": 20}).status == "failed", "each by its own positions"
    assert truth_check(noisy).status == "failed"


# ---- configurations

LOGITS = Configuration("emitter", "xla-cpu")
TOKEN = Configuration("emitter", "iree-cpu", "token")


def judge(found: Outcome, truths: dict[str, Any] = TRUTHS, streamed: bool | None = None) -> dict[str, Check]:
    """The checks of a configuration by the last part of their id."""
    asked = bool(found.streams) if streamed is None else streamed
    return {c.id.rsplit(".", 1)[1]: c for c in configuration_checks(found, truths, [STREAM] if asked else ())}


def streaming(configuration: Configuration = LOGITS) -> Outcome:
    return outcome(configuration, streams=[STREAM])


def test_a_right_cell_passes() -> None:
    found = judge(streaming())
    assert list(found) == [
        "tokens", "prefill-logits", "decode-logits", "caches", "repeats", "streamed-logits", "prefill-equals-streaming",
    ]  # fmt: skip
    assert {c.status for c in found.values()} == {"passed"}
    assert all(c.figure and c.limit and not c.detail for c in found.values())
    assert found["tokens"].figure == "6 of 6"
    assert found["decode-logits"].figure.startswith("1.00 floors")
    assert found["caches"].figure == "0.50 floors (v_cache.1, slot 3, second@64), 4 caches of a layer"
    assert found["repeats"].figure == "bit for bit"
    assert list(judge(outcome(LOGITS))) == ["tokens", "prefill-logits", "decode-logits", "caches", "repeats"]
    token = judge(streaming(TOKEN))
    assert list(token) == ["tokens", "caches", "repeats", "streamed-logits", "prefill-equals-streaming"]
    assert token["streamed-logits"].figure == token["streamed-logits"].limit == "19 of 19"


SHOWN_BY = {
    "tokens": "tokens",
    "logits": "decode-logits",
    "slot": "caches",
    "slot of a step": "caches",
    "slot that must stay": "caches",
    "position": "streamed-logits",
    "length": "streamed-logits",
    "streamed slot": "caches",
    "prefilled slot": "caches",
    "apart": "prefill-equals-streaming",
    "second call": "repeats",
}


@pytest.mark.parametrize("name", WRONG)
def test_each_check_fails_alone(name: str) -> None:
    found = judge(WRONG[name](streaming()))
    assert {id for id, c in found.items() if c.status != "passed"} == {SHOWN_BY[name]}
    assert found[SHOWN_BY[name]].detail


def test_another_token_fails() -> None:
    found = judge(on_prompt(tokens=[3, 2, 4])(outcome(TOKEN)))["tokens"]
    assert (found.status, found.figure, found.limit) == ("failed", "5 of 6", "6 of 6")
    assert "first@32: step 1 is 2, not 1 (the truth's lead there is 1)" in found.detail


def test_a_near_tie_passes_and_says_so() -> None:
    found = judge(on_prompt("close@32", tokens=[3, 2, 4])(outcome(TOKEN, CLOSE)), CLOSE)["tokens"]
    assert (found.status, found.figure, found.limit) == ("passed", "8 of 9", "all but near-ties")
    assert "close@32: step 1 is 2, not 1" in found.detail


@pytest.mark.parametrize(("lead", "status"), [(16, "passed"), (17, "failed")])
def test_how_near_a_tie_is(lead: int, status: str) -> None:
    """Both leaders may move by eight floors."""
    truths = {"close@32": truth(lead=lead * FLOOR)}
    assert judge(on_prompt("close@32", tokens=[4, 1, 4])(outcome(TOKEN, truths)), truths)["tokens"].status == status


@pytest.mark.parametrize(
    ("errors", "prefill", "decode"),
    [
        ([8 * FLOOR, 8 * FLOOR, 8 * FLOOR], "passed", "passed"),
        ([9 * FLOOR, 0.0, 0.0], "failed", "passed"),
        ([0.0, 0.0, 9 * FLOOR], "passed", "failed"),
        ([float("nan"), 0.0, 0.0], "failed", "passed"),
        ([0.0, float("nan"), 0.0], "passed", "failed"),
        ([0.0, float("inf"), 0.0], "passed", "failed"),
        ([], "error", "error"),
        ([0.0], "error", "error"),
    ],
)
def test_logits(errors: list[float], prefill: str, decode: str) -> None:
    for prompt in TRUTHS:
        found = judge(on_prompt(prompt, errors=errors)(outcome(LOGITS)))
        assert (found["prefill-logits"].status, found["decode-logits"].status) == (prefill, decode)
        assert prompt in found["prefill-logits" if prefill != "passed" else "decode-logits"].detail + "".join(
            c.figure for c in found.values() if c.id.endswith("logits")
        )


def test_logits_of_a_graph_without_such_a_step() -> None:
    one = {"first@32": truth((3,))}
    found = judge(outcome(LOGITS, one), one)
    assert found["decode-logits"].status == "skipped"
    assert found["decode-logits"].detail


NUMBERS = [(16.0, "passed"), (16.1, "failed"), (float("nan"), "failed"), (float("inf"), "failed")]


@pytest.mark.parametrize(("floors", "status"), NUMBERS)
def test_prefill_equals_streaming(floors: float, status: str) -> None:
    found = judge(on_stream(apart=floors)(streaming()))
    assert found["prefill-equals-streaming"].status == status
    assert found["streamed-logits"].status == "passed"


@pytest.mark.parametrize(("floors", "status"), NUMBERS)
@pytest.mark.parametrize("at", [0, 9, 15])
def test_decode_at_every_position(at: int, floors: float, status: str) -> None:
    heads = [1.0] * 16
    heads[at] = floors
    found = judge(on_stream(heads=heads)(streaming()))["streamed-logits"]
    assert found.status == status
    assert f"(decode, position {at} of stream), 19 of them" in found.figure
    assert (f"1 are wrong, the first decode, position {at} of stream" in found.detail) == (status == "failed")


@pytest.mark.parametrize(("floors", "status"), NUMBERS)
@pytest.mark.parametrize("length", STREAM.lengths)
def test_prefill_after_every_length(length: int, floors: float, status: str) -> None:
    """Its head is of the last of so many tokens."""
    found = judge(on_stream(prefilled=dict.fromkeys(STREAM.lengths, 1.0) | {length: floors})(streaming()))
    assert found["streamed-logits"].status == status
    assert f"(prefill, position {length - 1} of stream)" in found["streamed-logits"].figure


def test_tokens_at_every_position() -> None:
    found = judge(on_stream(heads=[0.0] * 12 + [float("inf")] * 4)(streaming(TOKEN)))["streamed-logits"]
    assert (found.status, found.figure, found.limit) == ("failed", "15 of 19", "19 of 19")
    assert "the first decode, position 12 of stream" in found.detail


@pytest.mark.parametrize(("floors", "status"), [n for n in NUMBERS if n[0] == n[0]])
@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("id", [LONG.id, SHORT.id, STREAM.id])
def test_slots(id: str, call: int, floors: float, status: str) -> None:
    found = judge(on_slots(id, call, "v_cache.0", 5, floors)(streaming()))["caches"]
    assert found.status == status
    assert f"{floors:.2f} floors (v_cache.0, slot 5, {id})" in found.figure
    assert found.detail == ("" if status == "passed" else f"the first that is wrong is slot 5 of v_cache.0 ({id})")


def test_the_first_wrong_slot_is_named() -> None:
    """It is nearer to the fault than the one that is furthest off."""
    wrong = both(
        on_slots(call=1, anchor="k_cache.0", slot=9, error=1e9), on_slots(SHORT.id, 0, "v_cache.1", 2, 20.0),
        on_slots(STREAM.id, 0, "k_cache.1", 2, 21.0),
    )  # fmt: skip
    found = judge(wrong(streaming()))["caches"]
    assert "(k_cache.0, slot 9, first@32)" in found.figure
    assert found.detail == f"the first that is wrong is slot 2 of k_cache.1 ({STREAM.id})"


@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("id", [LONG.id, SHORT.id, STREAM.id])
def test_slots_that_must_stay(id: str, call: int) -> None:
    found = judge(on_slots(id, call, stayed="slot 7 of k_cache.1 changed")(streaming()))["caches"]
    assert (found.status, found.detail) == ("failed", f"{id}: slot 7 of k_cache.1 changed")


@pytest.mark.parametrize(
    ("apart", "words"), [(2.0**-149, "up to 1.4e-45 apart"), (float("nan"), "nan"), (0.0, "0 apart")]
)
def test_two_calls_that_differ(apart: float, words: str) -> None:
    """0.0 and -0.0 are no distance apart, and not the same bits."""
    found = judge(not_repeated(apart)(outcome(TOKEN)))["repeats"]
    assert (found.status, found.limit) == ("failed", "bit for bit")
    assert words in found.figure


# ---- what was not compared


def test_a_prompt_that_did_not_run() -> None:
    whole = streaming()
    found = judge(dataclasses.replace(whole, prompts={LONG.id: whole.prompts[LONG.id]}))
    assert {name: c.status for name, c in found.items() if c.status != "passed"} == {
        "tokens": "failed",
        "prefill-logits": "error",
        "decode-logits": "error",
        "caches": "error",
    }
    assert "second@64 did not run" in found["tokens"].detail


def test_a_stream_that_did_not_run() -> None:
    found = judge(outcome(LOGITS), streamed=True)
    assert {name: c.status for name, c in found.items() if c.status != "passed"} == {
        "caches": "error",
        "streamed-logits": "error",
        "prefill-equals-streaming": "error",
    }
    assert found["streamed-logits"].detail == "stream was not compared"


def test_no_prompt_at_all() -> None:
    for configuration in (LOGITS, TOKEN):
        nothing = Outcome(configuration, "ran")
        for streamed in (True, False):
            assert not [c for c in judge(nothing, streamed=streamed).values() if c.status == "passed"]
            assert not [c for c in judge(nothing, {}, streamed).values() if c.status == "passed"]


@pytest.mark.parametrize("stage", ["compile", "memory", "timeout"])
def test_a_cell_that_failed_carries_the_tools_words(stage: str) -> None:
    (check,) = judge(failed(stage)(outcome(LOGITS)), streamed=True).values()
    assert (check.status, check.detail, check.error) == ("error", f"{stage} failed: the tool's words", stage)


def test_nan_is_the_worst() -> None:
    found = judge(on_prompt("second@64", errors=[np.nan, 0.0, 0.0])(outcome(LOGITS)))["prefill-logits"]
    assert "second@64" in found.figure
    assert len(TRUTHS["first@32"].exact[0]) == V


def test_a_graph_without_locations_is_walked_too() -> None:
    """As other tools print it: nothing says then where a product stands, but it is counted."""
    config = from_hf(TINY["llama"])
    layout = default_layout(config, "int4")
    for held in (layout, fused(config, layout)):
        graph = emit(config, "decode", "logits", 64, 0, held)
        bare = dataclasses.replace(graph, text=re.sub(r' loc\("[^"]*"\)', "", graph.text))
        assert sum(inspect(bare).matmuls.values()) == sum(inspect(graph).matmuls.values())
