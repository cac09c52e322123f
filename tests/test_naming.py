"""The anchors of a graph that names none are found by number, and where it is wrong the anchor that is wrong by itself."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from foreign_graph import FAULTS, adapted_graph
from models import LENGTH, PHASES, SOURCES, S, T, model, quick_xla
from nightly import only

from hloracle.conformance.graphs.listing import read
from hloracle.conformance.runs.naming import named as of_one
from hloracle.core.abi import Graph
from hloracle.localize.anatomy import anatomy_of
from hloracle.localize.naming import Named, Search, explicit, judged_row
from hloracle.localize.text import without_locations
from hloracle.localize.unlike import unlike
from hloracle.localize.workbench import Workbench
from hloracle.reference.model.anchors import anchors

PLAIN = "plain"


def graph(folder: Path, phase: str, fault: str = "") -> Graph:
    return adapted_graph(folder, model(PLAIN).checkpoint, phase, T if phase == "prefill" else 1, S, fault)


def bench_of(graph: Graph) -> Workbench:
    """With weights as this graph takes them."""
    return Workbench(quick_xla(), model(PLAIN).checkpoint.load, frozenset(w.name for w in graph.abi.weights))


def named(graph: Graph, phase: str) -> Named:
    here = model(PLAIN)
    reads = here.anatomy("oracle", phase).reads()
    return Search(graph, here.situation(phase), bench_of(graph), reads, lambda line: None).named()


@pytest.mark.parametrize("phase", PHASES)
def test_it_computes_what_the_model_computes(phase: str, tmp_path: Path) -> None:
    """The head, whichever row is judged, and the caches."""
    found = graph(tmp_path, phase)
    here = model(PLAIN)
    situation = here.situation(phase)
    assert (found.rows, found.inner, found.abi.capacity) == (2, "main", S)
    bench = bench_of(found)
    for one in (found, found.of_row(0), found.of_row(1)):
        head, *caches = bench.run(one, lambda name: situation.value(name, bench.weight))
        assert np.max(situation.errors("lm_head", head)) < 16
        for name, cache in zip(("k_cache", "v_cache"), caches, strict=True):
            rows = slice(0, LENGTH) if phase == "prefill" else slice(None)
            np.testing.assert_allclose(cache[:, :, rows], situation.cache(name, 1)[:, :, rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("phase", PHASES)
def test_all_anchors_are_found(phase: str, tmp_path: Path) -> None:
    """And once they are explicit, the graph computes what it did, each anchor in the contract's shape."""
    found = graph(tmp_path, phase)
    names = named(found, phase)
    assert names.wrong == ()
    # This prefill has scores of all slots, and the contract those of the prompt.
    missing = {"decode": [], "prefill": ["scores", "probs"]}[phase]
    assert set(names.missing) == {f"layers.{i}.self_attn.{part}" for i in range(2) for part in missing}
    here = model(PLAIN)
    situation = here.situation(phase)
    written = explicit(found, names, here.config, situation)
    anatomy = anatomy_of(written, here.config)
    assert set(anatomy.values) == set(anchors(here.config)) - set(names.missing)
    bench = bench_of(found)
    with_outputs = anatomy.with_outputs()
    results = bench.run(with_outputs, lambda name: situation.value(name, bench.weight))
    before = bench.run(found.of_row(judged_row(found, situation)), lambda name: situation.value(name, bench.weight))
    for a, b in zip(before, results, strict=False):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    for tensor, value in zip(with_outputs.abi.results[3:], results[3:], strict=True):
        assert np.max(situation.errors(tensor.name, value)) <= 16, tensor.name


@pytest.mark.parametrize("phase", only(["decode"], PHASES))
def test_a_reader_sees_the_graphs_own_lines_at_its_anchors(phase: str, tmp_path: Path) -> None:
    """And nothing of what was put around it and into it."""
    found = graph(tmp_path, phase)
    here = model(PLAIN)
    scopes = read(explicit(found, named(found, phase), here.config, here.situation(phase))).scopes
    assert {f"layers.{i}.{part}" for i in range(2) for part in ("mlp.act", "self_attn.context")} <= {
        s.anchor for s in scopes
    }
    lines = (tmp_path / f"{phase}.mlir").read_text().splitlines()
    listed = [op for scope in scopes for op in scope.ops]
    for op in listed:
        if op["line"] is None:
            assert op["op"] == "constant"
        else:
            assert op["text"] == without_locations(lines[op["line"] - 1]).strip()
            assert f"stablehlo.{op['op']}" in op["text"]
    norm = next(s for s in scopes if s.anchor == "layers.0.input_layernorm")
    assert [op["op"] for op in norm.ops if op["op"] != "constant"][-1] == "multiply"
    one_row = next(s for s in read(here.graph("oracle", phase)).scopes if s.anchor == norm.anchor)
    assert norm.flops == 2 * (one_row.flops or 0)


@pytest.mark.parametrize("fault", ["slot", "values", "groups"])
def test_the_operation_is_one_of_the_graphs_own(fault: str, tmp_path: Path) -> None:
    """What lays a value out, and what adapts the graph, is never named, though it holds wrong numbers too."""
    found, here = graph(tmp_path, "decode", fault), model(PLAIN)
    situation, bench = here.situation("decode"), bench_of(found)
    anatomy = anatomy_of(explicit(found, named(found, "decode"), here.config, situation), here.config)
    subgraph = anatomy.subgraph(FAULTS[fault])
    assert any(not step.line for step in anatomy.steps(subgraph)), "nothing of ours is in it"
    value = partial(situation.value, weight=bench.weight)
    wrong = unlike(anatomy, subgraph, here.anatomy("oracle", "decode"), value, bench, [0])
    assert wrong
    lines = (tmp_path / "decode.mlir").read_text().splitlines()
    assert wrong.step.text == lines[wrong.step.line - 1].strip()
    assert wrong.step.name in wrong.step.text


def stripped(phase: str, source: str = "emitter") -> Graph:
    """A graph of the contract that says of nothing where it comes from."""
    found = model(PLAIN).graph(source, phase)
    return replace(found, text=without_locations(found.text))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("source", only(["emitter"], SOURCES))
def test_graphs_of_the_contract(source: str, phase: str) -> None:
    """One that names none has all of them all the same, and its lines are those that it was written with."""
    bare = stripped(phase, source)
    here = model(PLAIN)
    oracle = here.graph("oracle", phase)
    found = of_one(bare, oracle, here.checkpoint, (here.truth, LENGTH), quick_xla(), lambda line: None)
    assert set(anatomy_of(found, here.config).values) == set(anchors(here.config))
    assert found.written == bare.text
    assert of_one(oracle, oracle, here.checkpoint, (here.truth, LENGTH), quick_xla(), lambda line: None) is oracle


def test_logits_that_are_changed_before_they_are_returned() -> None:
    """Where nothing is computed from them any more."""
    bare = stripped("decode")
    head = re.findall(r"return (%[\w.]+),", bare.text)[-1]
    before, _, after = bare.text.rpartition(f"return {head},")
    line = before.rpartition("\n")[2]
    text = (
        f"{before.removesuffix(line)}    %wrong = stablehlo.tanh {head} : tensor<29xf32>\n{line}return %wrong,{after}"
    )
    assert named(replace(bare, text=text), "decode").wrong == ("lm_head",)


@pytest.mark.parametrize("phase", only(["prefill"], PHASES))
def test_two_that_are_wrong_at_once(phase: str, tmp_path: Path) -> None:
    """Queries and keys by the same angles: what is computed from both is right only once both are."""
    turned = ("layers.0.self_attn.q_rope", "layers.0.self_attn.k_rope")
    wrong = named(graph(tmp_path, phase, "angles"), phase).wrong
    # The angles go on into layer 1.
    assert set(wrong[:2]) == set(turned)


@pytest.mark.parametrize("fault", only(["eps", "rope of keys", "scale", "residual", "last norm", "head"], FAULTS))
def test_the_wrong_anchor_is_named(fault: str, tmp_path: Path) -> None:
    names = named(graph(tmp_path, "decode", fault), "decode")
    also = ("v_cache.0",) if fault == "slot" else ()  # keys and values go to one slot
    assert names.wrong == (FAULTS[fault], *also)
