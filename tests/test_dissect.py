"""From graphs that are wrong to the place: the phase, the anchor, the operation; and none where nothing is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import LENGTH, PHASES, SHAPES, SOURCES, TOKENS, Changing, changed, interpreter, model, with_tables

from hloracle.backends.session import Backend, Executable, Session
from hloracle.backends.words import INTERPRETER
from hloracle.conformance.runs.inside import rows_of
from hloracle.conformance.verdict.localization import _worst
from hloracle.core.abi import Graph, Tensor
from hloracle.core.errors import ToolchainError
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize import dissect as module
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.dissect import (
    Dissection,
    Question,
    Side,
    _cause_that_is_missing,
    dissect,
    local_errors,
    run_with_outputs,
)
from hloracle.localize.operations import Found
from hloracle.localize.unlike import OTHER_TABLE
from hloracle.reference.model.anchors import anchors, split

Change = Callable[[str], str]
A = "layers.1.self_attn"


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


def graphs(source: str = "emitter", name: str = "plain", head: str = "logits") -> dict[str, Graph]:
    return {phase: model(name).graph(source, phase, head) for phase in PHASES}


def edited(phase: str, old: str, new: str, scope: str = "", **others: Any) -> dict[str, Graph]:
    """The emitter's graphs, one of them changed."""
    right = graphs(**others)
    return {**right, phase: changed(right[phase], old, new, scope)}


def taken_apart(
    suspect: dict[str, Graph], *, trusted: dict[str, Graph] | None = None, backend: Backend | None = None,
    of_compiler: bool = False, name: str = "plain", early_exit: bool = False, length: int = LENGTH,
    witness: Backend | None = None,
) -> Dissection:  # fmt: skip
    """The dissection of graphs on `backend`; the other side is right, or the same on the interpreter."""
    here = model(name)
    backends: dict[str, Backend] = {
        "right": interpreter(), "suspect": backend or interpreter(), INTERPRETER: witness or interpreter(),
    }  # fmt: skip
    wrong = Side("emitter", "suspect", tuple(suspect.values()))
    other = None
    if of_compiler:
        other = Side("emitter", "right", tuple(suspect.values()))
    elif trusted is not None:
        other = Side("oracle", "right", tuple(trusted.values()))
    question = Question(wrong, other, early_exit)
    assert question.of_compiler == of_compiler
    return dissect(question, here.run(length), here.weights, backends.__getitem__, lambda line: None)


def against_oracle(suspect: dict[str, Graph], **others: Any) -> Dissection:
    return taken_apart(suspect, trusted=graphs("oracle", others.get("name", "plain")), **others)


# ---- nothing is wrong


@pytest.mark.parametrize(
    ("name", "source"), [*((name, "emitter") for name in SHAPES), ("plain", "oracle"), ("all-equal", "oracle")]
)
def test_graphs_that_conform(name: str, source: str) -> None:
    found = taken_apart(graphs(source, name), trusted=graphs("oracle", name), name=name)
    assert (found.anchor, found.position, found.found, found.worst, found.reproducer) == (None,) * 5
    assert (found.first_accumulated, found.first_local) == (None, None)
    assert (found.fusion_dependent, found.misused) == (False, False)
    assert found.notes == ("nothing is wrong when looked at: the fault did not show again",)
    every = {(phase, a) for phase in PHASES for a in anchors(model(name).config)}
    assert found.local.keys() == found.peer.keys() == every
    assert max(*found.local.values(), *found.peer.values()) <= ANCHOR_FLOORS / 2
    assert {(m.phase, a) for m in found.matrices for a in m.anchors} == every
    for matrix in found.matrices:
        assert max(matrix.worst().values()) <= ANCHOR_FLOORS


def test_the_matrices() -> None:
    prefill, decode = taken_apart(graphs()).matrices
    order = anchors(model("plain").config)
    assert prefill.anchors == decode.anchors == order
    assert (prefill.phase, decode.phase) == PHASES
    assert prefill.positions == tuple(range(LENGTH))
    assert decode.positions == tuple(range(LENGTH, len(TOKENS)))
    assert prefill.errors.shape == (len(order), LENGTH)
    assert decode.errors.shape == (len(order), len(TOKENS) - LENGTH)
    head = [i for i, a in enumerate(order) if a in ("norm", "lm_head")]
    # The head of a prefill sees the last row alone: the others are not to be compared.
    assert np.isnan(prefill.errors[head, :-1]).all()
    assert np.isfinite(prefill.errors[head, -1]).all()
    assert np.isfinite(np.delete(prefill.errors, head, axis=0)).all()
    assert np.isfinite(decode.errors).all()
    rows = rows_of(prefill)
    assert rows.errors[head[0]][:-1] == [None] * (LENGTH - 1)


@pytest.mark.parametrize("chosen", [["norm"], ["layers.0.mlp.act", "k_cache.1"], []])
def test_only_some_anchors(chosen: list[str]) -> None:
    """And the caches, which a session returns in any case."""
    here = model("plain")
    side = Side("emitter", "x", tuple(graphs().values()))
    found = run_with_outputs(side, interpreter(), here.run(), lambda line: None, chosen)
    caches = {f"{part}.{layer}" for part in ("k_cache", "v_cache") for layer in range(2)}
    for matrix in found:
        assert set(matrix.anchors) == {*chosen, *caches}
        assert np.nanmax(matrix.errors) <= ANCHOR_FLOORS


@pytest.mark.parametrize("phase", PHASES)
def test_no_further_than_the_place(phase: str) -> None:
    """What is found with an early exit is what is found at length; no anchor after it was tried, nor the other graph."""
    wrong = edited(phase, "stablehlo.logistic", "stablehlo.tanh", "layers.0.mlp.act")
    found, at_length = (against_oracle(wrong, early_exit=early_exit) for early_exit in (True, False))
    assert [(m.phase, m.anchors) for m in found.matrices] == [(m.phase, m.anchors) for m in at_length.matrices]
    order = anchors(model("plain").config)
    assert list(found.local) == [(phase, a) for a in order[: order.index("layers.0.mlp.act") + 1]]
    assert found.peer == {}
    for part in ("phase", "anchor", "position", "first_accumulated", "first_local", "worst", "notes"):
        assert getattr(found, part) == getattr(at_length, part)
    assert found.found
    assert at_length.found
    assert found.found.step == at_length.found.step
    check_reproducer(found, "layers.0.mlp.act")


def test_in_brief_a_fault_that_is_in_no_anchor_is_looked_for_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Session", Forgetting)
    found = against_oracle(graphs(), early_exit=True)
    assert (found.anchor, found.misused) == ("k_cache.0", True)
    assert {phase for phase, _ in found.local} == {
        m.phase for m in found.matrices if m.worst()["k_cache.0"] > ANCHOR_FLOORS
    }


@pytest.mark.parametrize("phase", PHASES)
def test_a_side_with_one_graph(phase: str) -> None:
    """A file is one: without a prefill the prompt is streamed."""
    one = {phase: graphs()[phase]}
    assert taken_apart(one).anchor is None
    wrong = {phase: edited(phase, "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act")[phase]}
    found = taken_apart(wrong, trusted={phase: graphs("oracle")[phase]})
    assert (found.phase, found.anchor) == (phase, "layers.1.mlp.act")
    assert [m.phase for m in found.matrices] == [phase]


def test_the_last_steps_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 1)
    prefill, decode = taken_apart(graphs()).matrices
    assert decode.positions == (len(TOKENS) - 1,)
    assert len(prefill.positions) == LENGTH


# ---- graphs that tap values themselves


def with_tap(graph: Graph, name: str, value: str, shape: tuple[int, ...], dtype: str = "f32") -> Graph:
    """The graph with one of its values as a further result."""
    type = f"tensor<{'x'.join([*map(str, shape), dtype])}>"
    text = re.sub(r"\) -> \((.*)\) \{", rf") -> (\1, {type}) {{", graph.text, count=1)
    text = re.sub(r"(func\.return .*) : (.*)", rf"\1, {value} : \2, {type}", text)
    abi = replace(graph.abi, results=(*graph.abi.results, Tensor("tap", name, shape, dtype)))
    return replace(graph, text=text, abi=abi)


TAPS: dict[str, tuple[Any, ...]] = {
    "of its own name": ("hidden", "%norm.mul3", (1, 12)),
    "a mask": ("mask", "%cmp", (10,), "i1"),
    "named as an anchor": ("norm", "%l0_mlp_act.logistic", (1, 20)),
}


@pytest.mark.parametrize("tap", TAPS.values(), ids=TAPS)
def test_a_graph_with_a_tap_of_its_own(tap: tuple[Any, ...]) -> None:
    """It is not taken for what is looked at, whatever its name."""
    for source, anchor in (
        (graphs(), None),
        (edited("decode", "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act"), "layers.1.mlp.act"),
    ):
        graph = with_tap(source["decode"], *tap)
        Anatomy(graph, model("plain").config).with_outputs().abi.validate()
        found = against_oracle({**source, "decode": graph})
        assert (found.anchor, found.first_accumulated, found.misused) == (anchor, anchor, False)
        assert found.matrices[1].anchors == anchors(model("plain").config)


def test_a_tap_that_stands_where_an_anchor_is_missing() -> None:
    """It is not compared either: a tap may have any name."""
    bare = {phase: replace(g, text=g.text.replace(' loc("norm")', "")) for phase, g in graphs().items()}
    found = against_oracle({**bare, "decode": with_tap(bare["decode"], *TAPS["named as an anchor"])})
    assert found.anchor is None
    assert all("norm" not in m.anchors for m in found.matrices)


# ---- a graph is wrong

FAULTS: dict[str, tuple[str, str, str, str, str]] = {
    "embedding": ("", r"(%embed_tokens\.\w+ = .*)", r"\1", "", ""),
    "activation": ("layers.1.mlp.act", "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act", "tanh"),
    "softmax": (f"{A}.probs", r"divide (%\S+), (%\S+) :", r"divide \2, \1 :", f"{A}.probs", "divide"),
    "residual": ("layers.1", "stablehlo.add", "stablehlo.subtract", "layers.1.post_attention_layernorm", "subtract"),
    "norm": ("norm", r"multiply %norm.mul2, %\S+", "multiply %norm.mul2, %norm.mul2", "norm", "multiply"),
    "v": (f"{A}.v_proj", "self_attn.v_proj.weight", "self_attn.k_proj.weight", f"{A}.v_proj", "dot_general"),
}  # fmt: skip
del FAULTS["embedding"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_layer_and_phase(fault: str, phase: str) -> None:
    scope, old, new, anchor, operation = FAULTS[fault]
    wrong = edited(phase, old, new, scope)
    found = against_oracle(wrong)
    assert (found.phase, found.anchor, found.first_local) == (phase, anchor, anchor)
    # What reads a wrong cache is wrong in decode too; in its own run the fault's phase shows the fault's anchor.
    assert found.first_accumulated == anchor
    assert found.found
    assert found.found.step.name == f"stablehlo.{operation}"
    assert found.found.step.text == wrong[phase].text.split("\n")[found.found.step.line - 1].strip()
    assert (found.fusion_dependent, found.misused) == (False, False)
    assert found.local[phase, anchor] > ANCHOR_FLOORS
    assert [k for k, e in found.local.items() if not e <= ANCHOR_FLOORS and k[0] != phase] == []
    assert max(found.peer.values()) <= ANCHOR_FLOORS
    assert found.position == (
        len(TOKENS) - 1 if phase == "decode" else LENGTH - 1 if anchor == "norm" else found.position
    )
    assert found.position is not None
    # The worst element is wrong by as much as is said, and the reproducer shows it.
    assert found.worst
    situation = model("plain").situation(phase)
    assert found.worst.expected == float(situation.anchor(anchor)[found.worst.index])
    check_reproducer(found, anchor)


def check_reproducer(found: Dissection, anchor: str, name: str = "plain") -> None:
    """Its graph, its inputs, what it gives, and that this is further from what is expected than is allowed."""
    shown = found.reproducer
    assert shown
    assert shown.expected is not None
    assert list(shown.inputs) == [a.name for a in shown.graph.abi.arguments]
    got = model(name).bench().run(shown.graph, shown.inputs.__getitem__)[shown.result]
    np.testing.assert_array_equal(got, shown.got)
    seen = np.isfinite(shown.expected)
    assert np.abs(shown.got[seen] - shown.expected[seen]).max() > shown.tolerance >= 0
    right = (
        model(name).anatomy("emitter", found.phase, "token" if anchor == "token" else "logits").subgraph(anchor).graph
    )
    if [a.name for a in right.abi.arguments] == list(shown.inputs) and shown.graph.abi.results == right.abi.results:
        # The right piece in its place passes.
        got = model(name).bench().run(right, shown.inputs.__getitem__)[shown.result]
        assert np.abs(got[seen] - shown.expected[seen]).max() <= shown.tolerance


def test_a_fault_in_both_phases_is_placed_in_prefill() -> None:
    wrong = {
        phase: edited(phase, "stablehlo.logistic", "stablehlo.tanh", "layers.0.mlp.act")[phase] for phase in PHASES
    }
    found = against_oracle(wrong)
    assert (found.phase, found.anchor, found.first_accumulated) == ("prefill", "layers.0.mlp.act", "layers.0.mlp.act")


def test_the_first_of_two_faults() -> None:
    first = edited("decode", "stablehlo.logistic", "stablehlo.tanh", "layers.0.mlp.act")
    both = {**first, "decode": changed(first["decode"], "stablehlo.divide", "stablehlo.multiply", f"{A}.probs")}
    found = against_oracle(both)
    assert found.anchor == "layers.0.mlp.act"
    assert found.local["decode", f"{A}.probs"] > ANCHOR_FLOORS
    assert max(e for k, e in found.local.items() if k[1] not in ("layers.0.mlp.act", f"{A}.probs")) <= ANCHOR_FLOORS


@pytest.mark.parametrize("name", SHAPES)
def test_a_fault_in_every_shape(name: str) -> None:
    last = model(name).config.num_hidden_layers - 1
    anchor = f"layers.{last}.self_attn.context"
    wrong = edited("prefill", r"dims = \[1, 0, 2, 3\]", "dims = [1, 0, 2, 3]", anchor, name=name)
    wrong = edited(
        "prefill", r"stablehlo.dot_general (%\S+), (%\S+),", r"stablehlo.dot_general \1, \2,", anchor, name=name
    )
    doubled = changed(
        wrong["prefill"], r"^( *)(%\S+) = stablehlo.reshape (%\S+) : \((\S+)\) -> (\S+) ",
        r"\1%twice = stablehlo.add \3, \3 : \4" f' loc("{anchor}")\n' r"\1\2 = stablehlo.reshape %twice : (\4) -> \5 ",
        anchor,
    )  # fmt: skip
    found = against_oracle({**wrong, "prefill": doubled}, name=name)
    assert (found.phase, found.anchor) == ("prefill", anchor)
    assert found.found
    assert found.found.step.name == "stablehlo.add"
    check_reproducer(found, anchor, name)


CACHES: dict[str, tuple[str, str, str]] = {
    "prefill's slot": ("prefill", r"(update_slice %\S+, %\S+, %(\S+), %\S+), %\S+,", r"\1, %\2,"),
    "decode's slot and head": ("decode", r"(update_slice %\S+, %\S+, %\S+), (%\S+), (%\S+),", r"\1, \3, \2,"),
}


@pytest.mark.parametrize("fault", CACHES)
def test_a_cache_written_at_the_wrong_place(fault: str) -> None:
    phase, old, new = CACHES[fault]
    found = against_oracle(edited(phase, old, new, "layers.1.self_attn.k_cache"))
    assert (found.phase, found.anchor) == (phase, "k_cache.1")
    assert found.found
    assert found.found.step.name == "stablehlo.dynamic_update_slice"
    check_reproducer(found, "k_cache.1")
    # In prefill, attention reads what is put into the cache, and only the cache is wrong.
    assert found.reproducer
    assert found.reproducer.result == (1 if phase == "prefill" else 0)
    assert found.worst
    assert found.worst.value != found.worst.expected
    assert found.worst.value == found.reproducer.got[found.worst.index]


def test_a_cache_written_for_another_layer() -> None:
    """What attention reads is right; only what is handed on is not."""
    right = graphs()["prefill"]
    layer = re.search(r"l1_self_attn_v_cache.dus = \S+ %\S+, %\S+, (%\S+), (%\S+),", right.text)
    assert layer
    wrong = changed(
        right, rf"(dus, %\S+), {layer[1]}, {layer[2]}", rf"\1, {layer[2]}, {layer[2]}", "layers.1.self_attn.v_cache"
    )
    found = against_oracle({**graphs(), "prefill": wrong})
    assert (found.phase, found.anchor) == ("prefill", "v_cache.1")
    assert found.found
    assert found.found.step.name == "stablehlo.dynamic_update_slice"
    assert found.reproducer
    assert found.reproducer.result == 1
    check_reproducer(found, "v_cache.1")


@pytest.mark.parametrize("phase", PHASES)
def test_a_cache_that_is_returned_as_another_layer_left_it(phase: str) -> None:
    wrong = edited(phase, r"return (%\S+), %l1_self_attn_k_cache.dus", r"return \1, %l0_self_attn_k_cache.dus")
    found = against_oracle(wrong)
    assert (found.phase, found.anchor) == (phase, "k_cache.1")
    assert found.found
    assert found.found.step.name == "func.return"
    assert found.interpreted is None, "it has nothing to compute there"
    assert found.found.by == "witness"
    assert found.found.step.text.startswith("func.return")
    assert found.found.step.value == ""
    assert found.reproducer
    assert found.reproducer.expected is not None
    assert (np.abs(found.reproducer.got - found.reproducer.expected) > found.reproducer.tolerance).any()


def test_a_cache_that_is_computed_with_before_it_is_returned() -> None:
    """What does it may be wrong as well as the return, which takes it."""
    written = "%l1_self_attn_k_cache.dus"
    graph = graphs()["decode"]
    shape = re.search(rf"{written} = .* -> (tensor<\S+>)", graph.text)
    assert shape
    twice = f"    %twice = stablehlo.add {written}, {written} : {shape[1]}\n    "
    found = against_oracle(edited("decode", rf"    (func.return %\S+), {written}", rf"{twice}\1, %twice"))
    assert (found.phase, found.anchor) == ("decode", "k_cache.0")
    assert found.found
    assert (found.found.step.name, found.found.by) == ("func.return", "likeness")
    assert found.reproducer


@pytest.mark.parametrize("name", SHAPES)
def test_a_right_graph_returns_what_its_last_layer_left(name: str) -> None:
    for source in SOURCES:
        for phase in PHASES:
            for part in ("k_cache", "v_cache"):
                assert model(name).anatomy(source, phase).returned(part) is None


def test_the_token_that_a_graph_picks() -> None:
    """Every logit is right, and another one is picked; the oracle's graphs have logits only."""
    right = graphs(head="token")
    wrong = {
        **right,
        "decode": changed(right["decode"], "applies stablehlo.maximum", "applies stablehlo.minimum", "token"),
    }
    assert against_oracle(right).anchor is None
    found = against_oracle(wrong)
    assert (found.phase, found.anchor, found.position) == ("decode", "token", len(TOKENS) - 1)
    assert found.local["decode", "token"] == np.inf
    assert found.local["prefill", "token"] == 0
    assert found.first_accumulated is None
    check_reproducer(found, "token")


def test_nothing_to_compare_with() -> None:
    """No other graph is right: the place is known from the truth alone, and the operation from what would put it right."""
    found = taken_apart(edited("decode", "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act"))
    assert (found.phase, found.anchor) == ("decode", "layers.1.mlp.act")
    assert found.found
    assert (found.found.step.name, found.found.by, found.sole) == ("stablehlo.tanh", "repair", True)
    assert found.candidates[0].words == "`tanh` should be `logistic`"
    assert found.mended
    assert {g.abi.phase: g for g in found.mended.graphs} == graphs()
    assert found.peer == {}
    assert found.worst
    check_reproducer(found, "layers.1.mlp.act")


def test_another_table_comes_before_a_number_that_would_have_to_be_put_in() -> None:
    """A factor of both tables: the anchor is right as well where it is multiplied by a number, which no one has left out."""
    wrong = {phase: with_tables(graph, lambda table: 1.25 * table) for phase, graph in graphs().items()}
    found = against_oracle(wrong)
    assert found.anchor == "layers.0.self_attn.q_rope"
    assert found.found
    assert (found.found.by, found.found.step.name) == ("likeness", "stablehlo.broadcast_in_dim")
    assert found.found.why == OTHER_TABLE
    assert found.candidates
    assert all("is missing" in one.words for one in found.candidates)
    assert not found.sole


def test_an_anchor_that_is_not_there() -> None:
    """What a graph leaves out shows in what should have read it."""
    right = graphs()["decode"]
    reader = re.search(r"multiply (%l1_mlp_act.mul), (%l1_mlp_up_proj.dot)", right.text)
    assert reader
    lost = [line for line in right.text.split("\n") if "%l1_mlp_up_proj.dot = " not in line]
    text = "\n".join(lost).replace(reader[0], f"multiply {reader[1]}, {reader[1]}")
    found = against_oracle({**graphs(), "decode": replace(right, text=text)})
    assert found.anchor == "layers.1.mlp.up_proj"
    assert found.phase == "decode"
    assert any("has no anchor layers.1.mlp.up_proj" in note for note in found.notes)
    assert any("layers.1.mlp.act is computed from something else" in note for note in found.notes)


def test_anchors_that_are_not_there() -> None:
    """Of several that depend on each other, the first is what was left out."""
    right = graphs()["decode"]
    scoped = [line for line in right.text.split("\n") if 'loc("layers.1.mlp.act' not in line]
    lost = [line for line in scoped if "%l1_mlp_up_proj.dot = " not in line]
    text = "\n".join(lost).replace("dot_general %l1_mlp_act.mul1,", "dot_general %l1_mlp_gate_proj.dot,")
    found = against_oracle({**graphs(), "decode": replace(right, text=text)})
    assert (found.phase, found.anchor) == ("decode", "layers.1.mlp.up_proj")
    assert any("layers.1.mlp.down_proj is computed from something else" in note for note in found.notes)


def test_an_overflow() -> None:
    """Values that are no numbers are wrong, and their rows are kept as such."""
    wrong = edited("prefill", r"stablehlo.rsqrt %\S+", "stablehlo.log %norm.red", "norm")
    wrong["prefill"] = changed(
        wrong["prefill"], r"(%norm.rsqrt = )stablehlo.log %norm.red", r"\1stablehlo.rsqrt %norm.bad", "norm"
    )
    wrong["prefill"] = changed(wrong["prefill"], r"^( *)(%norm.rsqrt)", r'\1%norm.bad = stablehlo.negate %norm.add : tensor<1xf32> loc("norm")' "\n" r"\1\2", "norm")  # fmt: skip
    found = against_oracle(wrong)
    assert (found.phase, found.anchor) == ("prefill", "norm")
    assert found.local["prefill", "norm"] == np.inf
    assert found.worst
    assert np.isnan(found.worst.value)
    assert found.reproducer
    assert found.reproducer.expected is not None
    assert np.isfinite(found.reproducer.expected).all()
    assert 0 < found.reproducer.tolerance < np.inf


# ---- a compiler is wrong


def miscompiling(op: str, other: str, only: Callable[[str], bool] = lambda text: True) -> Changing:
    return Changing(lambda text: text.replace(f"stablehlo.{op} ", f"stablehlo.{other} ") if only(text) else text)


@pytest.mark.parametrize(
    ("op", "other", "anchor"),
    [
        ("exponential", "exponential_minus_one", "layers.0.self_attn.probs"),
        ("divide", "multiply", "layers.0.self_attn.probs"),
        ("logistic", "tanh", "layers.0.mlp.act"),
        ("rsqrt", "sqrt", "layers.0.input_layernorm"),
    ],
)
def test_a_miscompiled_operation(op: str, other: str, anchor: str) -> None:
    found = taken_apart(graphs(), backend=miscompiling(op, other), of_compiler=True)
    assert (found.phase, found.anchor, found.first_accumulated) == ("prefill", anchor, anchor)
    assert found.found
    assert found.reproducer
    assert found.reproducer is found.found, "a compiler's fault is shown by the operation alone"
    assert found.found.step.name == f"stablehlo.{op}"
    assert len(re.findall(r"= stablehlo\.(?!constant)", found.found.graph.text)) == 1
    assert max(found.peer.values()) <= ANCHOR_FLOORS
    assert not found.fusion_dependent


@pytest.mark.parametrize(
    ("op", "other", "anchor"),
    [
        ("exponential", "exponential_minus_one", "layers.0.self_attn.probs"),
        ("rsqrt", "sqrt", "layers.0.input_layernorm"),
        ("logistic", "tanh", "layers.0.mlp.act"),
    ],
)
def test_an_operation_that_all_compilers_have_wrong(op: str, other: str, anchor: str) -> None:
    """No graph is right, on any: the interpreter is, and the operation is the one that it computes otherwise."""
    found = taken_apart(graphs(), backend=miscompiling(op, other))
    assert found.interpreted
    assert found.interpreted.right
    assert (found.anchor, found.interpreted.anchor) == (anchor, anchor)
    assert found.found
    assert found.found.step.name == f"stablehlo.{op}"
    assert found.reproducer is found.found
    assert found.found.expected is not None


def test_the_interpreter_has_a_wrong_graph_wrong_as_well() -> None:
    wrong = edited("decode", "stablehlo.rsqrt", "stablehlo.sqrt", "layers.1.input_layernorm")
    found = against_oracle(wrong)
    assert found.interpreted
    assert found.interpreted.wrong
    assert (found.interpreted.phase, found.interpreted.anchor) == ("decode", "layers.1.input_layernorm")


def test_what_the_interpreter_lacks_is_said() -> None:
    wrong = edited("decode", "stablehlo.rsqrt", "stablehlo.sqrt", "layers.1.input_layernorm")
    found = against_oracle(wrong, witness=Refusing(lambda text: True))
    assert found.interpreted
    assert found.interpreted.off is None
    assert found.interpreted.why_not
    assert not found.interpreted.right
    assert not found.interpreted.wrong
    assert found.anchor == "layers.1.input_layernorm"


def test_wrong_together_with_others() -> None:
    found = taken_apart(
        graphs(),
        backend=miscompiling("exponential", "exponential_minus_one", lambda t: "subtract" in t),
        of_compiler=True,
    )
    assert found.anchor == "layers.0.self_attn.probs"
    assert found.found
    assert "together with the operations before it" in found.found.why


class Fusing:
    """Right for what has many results, and for small pieces: wrong in a whole graph, from its second layer on."""

    name = "fusing"

    def __init__(self, results: int = 3) -> None:
        self.results, self.backend = results, interpreter()
        self.upload, self.download, self.keep = self.backend.upload, self.backend.download, self.backend.keep

    def load(self, graph: Graph) -> Executable:
        text = graph.text
        if len(graph.abi.results) <= self.results and text.count("stablehlo.exponential ") > 1:
            first = text.index("stablehlo.exponential ") + 1
            text = text[:first] + text[first:].replace("stablehlo.exponential ", "stablehlo.exponential_minus_one ", 1)
        return self.backend.load(replace(graph, text=text))


@pytest.mark.parametrize("of_compiler", [False, True])
def test_wrong_only_without_taps(of_compiler: bool) -> None:
    """Cutting the graph off finds the place that looking at its values makes go away."""
    arguments: dict[str, Any] = {"of_compiler": True} if of_compiler else {"trusted": graphs("oracle")}
    found = taken_apart(graphs(), backend=Fusing(), **arguments)
    assert (found.phase, found.anchor) == ("prefill", f"{A}.probs")
    assert (found.first_accumulated, found.first_local) == (None, None)
    assert (found.fusion_dependent, found.misused) == (True, False)
    assert any("it depends on what the compiler makes of both together" in note for note in found.notes)
    assert found.found is found.reproducer
    if not of_compiler:
        assert found.found is None
        return
    assert found.found
    assert found.found.step.name == "stablehlo.exponential"
    assert "only together with what comes before it in the whole graph" in found.found.why
    assert found.found.expected is not None
    assert (np.abs(found.found.got - found.found.expected) > found.found.tolerance).any()
    assert found.found.graph.text.count("stablehlo.exponential") == 2, "that of the layer before it is there as well"


def test_refused_only_as_a_whole() -> None:
    """What does not compile together with the layer before it."""
    suspect = Refusing(lambda g: g.text.count("stablehlo.exponential ") > 1)
    found = taken_apart(graphs(), backend=suspect, of_compiler=True)
    assert (found.phase, found.anchor) == ("prefill", f"{A}.probs")
    assert found.found
    assert found.found is found.reproducer
    assert found.found.step.name == "stablehlo.exponential"
    assert "together with all that comes before it: error: cannot be legalized" in found.found.why
    assert found.found.expected is None


def test_wrong_as_a_whole_with_taps_or_without() -> None:
    found = taken_apart(graphs(), backend=Fusing(results=99), trusted=graphs("oracle"))
    assert (found.anchor, found.first_accumulated, found.first_local) == (f"{A}.probs", f"{A}.probs", None)
    assert (found.fusion_dependent, found.misused) == (False, False)


def test_wrong_without_taps_in_one_phase_only() -> None:
    fusing = Fusing()
    load = fusing.load
    fusing.load = lambda graph: (load if graph.abi.phase == "decode" else fusing.backend.load)(graph)  # type: ignore[method-assign]
    found = taken_apart(graphs(), backend=fusing, of_compiler=True)
    assert (found.phase, found.anchor, found.fusion_dependent) == ("decode", f"{A}.probs", True)


# ---- a compiler stops


class Refusing:
    """Does not compile some graphs."""

    name = "refusing"

    def __init__(self, refuses: Callable[[Graph], bool], change: Change = str) -> None:
        self.refuses, self.backend = refuses, Changing(change)
        self.upload, self.download, self.keep = self.backend.upload, self.backend.download, self.backend.keep

    def load(self, graph: Graph) -> Executable:
        if self.refuses(graph):
            raise ToolchainError("compile", "error: cannot be legalized")
        return self.backend.load(graph)


def test_an_operation_that_does_not_compile() -> None:
    found = taken_apart(graphs(), backend=Refusing(lambda g: "stablehlo.reverse" in g.text), of_compiler=True)
    assert (found.phase, found.anchor) == ("prefill", "layers.0.self_attn.q_rope")
    assert found.found
    assert found.found.step.name == "stablehlo.reverse"
    assert "refuses it: error: cannot be legalized" in found.found.why
    assert found.reproducer is found.found
    assert found.found.expected is None
    assert any("could not be run with intermediate outputs" in note for note in found.notes)
    assert any("layers.0.self_attn.q_rope of" in note and "by itself" in note for note in found.notes)
    assert found.matrices == ()


def test_operations_that_do_not_compile_together() -> None:
    refuses = Refusing(lambda g: "stablehlo.reverse" in g.text and "stablehlo.multiply" in g.text)
    found = taken_apart(graphs(), backend=refuses, of_compiler=True)
    assert found.anchor == "layers.0.self_attn.q_rope"
    assert found.found
    assert "together with the operations before it" in found.found.why
    assert found.found.graph.text.count("stablehlo.multiply") == 1


def test_what_is_refused_as_a_whole_alone() -> None:
    """No part of it is: the reproducer is the graph itself, and there is no place."""
    suspect = Refusing(lambda g: [r.role for r in g.abi.results[1:3]] == ["k_cache", "v_cache"])
    found = taken_apart(graphs(), backend=suspect, of_compiler=True)
    assert (found.anchor, found.found) == (None, None)
    assert found.reproducer
    assert (found.reproducer.graph, found.reproducer.expected) == (graphs()["prefill"], None)
    assert "refuses llama_prefill_8_logits: error: cannot be legalized" in found.reproducer.why
    assert found.notes[-1] == "no part of llama_prefill_8_logits is refused by itself"
    assert taken_apart(graphs(), backend=suspect, of_compiler=True, early_exit=True).reproducer is None


def test_a_run_that_fails_shows_what_it_was_given() -> None:
    class Falling(Refusing):
        def load(self, graph: Graph) -> Executable:
            execute = self.backend.load(graph)

            def call(arguments: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
                if self.refuses(graph):
                    raise ToolchainError("run", "it fell over")
                return execute(arguments)

            return call

    found = taken_apart(graphs(), backend=Falling(lambda g: "stablehlo.reverse" in g.text), of_compiler=True)
    assert (found.phase, found.anchor) == ("prefill", "layers.0.self_attn.q_rope")
    assert found.found
    assert found.found.step.name == "stablehlo.reverse"
    assert "fails on it, together with the operations before it: it fell over" in found.found.why
    assert found.found.inputs.keys() == {a.name for a in found.found.graph.abi.arguments}


def test_a_piece_that_does_not_compile_hides_no_fault() -> None:
    """The whole graph compiles, and is wrong elsewhere: that a piece of it does not compile is beside the point."""

    def small(graph: Graph) -> bool:
        return "stablehlo.reverse" in graph.text and "stablehlo.dot_general" not in graph.text

    wrong = edited("decode", "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act")
    found = taken_apart(wrong, trusted=graphs("oracle"), backend=Refusing(small))
    assert (found.phase, found.anchor, found.first_accumulated) == ("decode", "layers.1.mlp.act", "layers.1.mlp.act")
    assert found.found
    assert found.found.step.name == "stablehlo.tanh"
    assert sum("could not be run by itself" in note for note in found.notes) == 8  # 2 phases, 2 layers, q and k


def test_a_piece_that_does_not_compile_is_no_fault() -> None:
    """A run that goes right has no first wrong place."""

    def small(graph: Graph) -> bool:
        return "stablehlo.reverse" in graph.text and "stablehlo.dot_general" not in graph.text

    found = taken_apart(graphs(), backend=Refusing(small), of_compiler=True)
    assert (found.anchor, found.first_local) == (None, None)
    assert any("could not be run by itself" in note for note in found.notes)


def test_only_the_whole_does_not_compile() -> None:
    """Each piece does, and what is cut off before the place."""

    def large(graph: Graph) -> bool:
        return graph.text.count("stablehlo.exponential ") > 1

    found = taken_apart(graphs(), backend=Refusing(large), of_compiler=True)
    assert (found.phase, found.anchor) == ("prefill", f"{A}.probs")
    assert (found.first_accumulated, found.first_local, found.misused) == (None, None, False)
    assert any("could not be run with intermediate outputs" in note for note in found.notes)


def test_a_trusted_side_that_does_not_compile() -> None:
    """The place is known without it."""
    here = model("plain")
    wrong = edited("decode", "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act")
    refusing = Refusing(lambda g: True)
    backends: dict[str, Backend] = {"right": refusing, "suspect": interpreter(), INTERPRETER: refusing}
    question = Question(
        Side("emitter", "suspect", tuple(wrong.values())),
        Side("oracle", "right", tuple(graphs("oracle").values())),
    )
    found = dissect(question, here.run(), here.weights, backends.__getitem__, lambda line: None)
    assert (found.phase, found.anchor) == ("decode", "layers.1.mlp.act")
    assert found.found
    assert found.found.step.name == "stablehlo.tanh", "the right graph can be run on the suspect's backend as well"


# ---- what comes after the logits


def after_the_logits(phase: str, *lines: str, result: str) -> dict[str, Graph]:
    """The graphs with operations after `lm_head`, which no anchor names, in one of them."""
    right = graphs()
    text = right[phase].text
    (head,) = set(re.findall(r"func\.return (%\S+),", text))
    more = "".join(f"    {line.replace('LOGITS', head)} : tensor<29xf32>\n" for line in lines)
    text = text.replace(f"    func.return {head},", f"{more}    func.return {result},")
    return {**right, phase: replace(right[phase], text=text)}


@pytest.mark.parametrize("early_exit", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_logits_that_are_changed_before_they_are_returned(phase: str, early_exit: bool) -> None:
    wrong = after_the_logits(
        phase, "%t0 = stablehlo.negate LOGITS", "%t1 = stablehlo.negate %t0", "%t2 = stablehlo.tanh %t1", result="%t2"
    )
    found = against_oracle(wrong, early_exit=early_exit)
    assert (found.phase, found.anchor, found.misused) == (phase, "lm_head", False)
    assert found.found
    assert found.found.step.name in ("stablehlo.negate", "stablehlo.tanh")
    assert "this changes them before they are returned" in found.found.why
    assert found.found.expected is not None
    assert found.reproducer == found.found
    assert [a.name for a in found.found.graph.abi.arguments] == ["lm_head"]
    assert found.interpreted
    assert found.interpreted.wrong, "it is asked of what changes them, and not of lm_head, which is right"


def test_logits_that_are_returned_as_they_were() -> None:
    """By way of operations that come to nothing."""
    right = after_the_logits("decode", "%t0 = stablehlo.negate LOGITS", "%t1 = stablehlo.negate %t0", result="%t1")
    assert against_oracle(right).anchor is None


# ---- a session is wrong


class Misusing(Session):
    """Says another position than the one that it is at."""

    def decode_step(self, token: int) -> int | np.ndarray:
        position, self.position = self.position, self.position - 1
        head = super().decode_step(token)
        self.position = position + 1
        return head


class Forgetting(Session):
    """Decodes with caches of zeros."""

    def prefill(self, tokens: Sequence[int], bucket: int | None = None) -> int | np.ndarray:
        head = super().prefill(tokens, bucket)
        assert self._caches
        self._caches = tuple(np.zeros_like(c) for c in self._caches)  # type: ignore[assignment]
        return head


class Misreading(Session):
    """Takes the last token for another."""

    def prefill(self, tokens: Sequence[int], bucket: int | None = None) -> int | np.ndarray:
        return super().prefill([*tokens[:-1], (tokens[-1] + 1) % 29], bucket)


@pytest.mark.parametrize(
    ("session", "phase", "anchor"),
    [
        (Misusing, "decode", "layers.0.self_attn.q_rope"),
        (Forgetting, "prefill", "k_cache.0"),
        (Misreading, "prefill", "embed_tokens"),
    ],
)
def test_a_session_that_misuses_its_graphs(
    session: type, phase: str, anchor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every graph is right when it is given right inputs."""
    monkeypatch.setattr(module, "Session", session)
    found = against_oracle(graphs())
    assert (found.phase, found.anchor, found.first_accumulated) == (phase, anchor, anchor)
    assert found.first_local is None
    assert (found.misused, found.fusion_dependent) == (True, False)
    assert found.found is None
    assert any("right when they are called without the session: it gives them something else" in n for n in found.notes)


class Mistaking(Session):
    """Runs a graph of another bucket, with taps of its own, in place of the one whose anchors are looked at."""

    def taps(self) -> dict[str, np.ndarray]:
        return {"hidden": np.zeros((1, 12), np.float32)}


def test_a_session_that_runs_another_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Session", Mistaking)
    found = against_oracle(graphs())
    assert (found.anchor, found.misused) == ("embed_tokens", True)


class Tapping(Session):
    """Gives another value of one anchor than the graph gave, and what the graph returns besides as it is."""

    def taps(self) -> dict[str, np.ndarray]:
        found = super().taps()
        return {name: value + (name == f"{A}.probs") for name, value in found.items()}


def test_what_no_graph_returns_accuses_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Session", Tapping)
    found = against_oracle(graphs())
    assert (found.anchor, found.first_accumulated, found.misused) == (f"{A}.probs", f"{A}.probs", False)
    assert any("right by itself, and together they are not" in note for note in found.notes)


def test_errors_that_add_up_are_of_the_anchor_with_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    right = module.local_errors

    def nearly(*arguments: Any) -> tuple[dict[str, float], dict[str, str]]:
        errors, failed = right(*arguments)
        return {**errors, f"{A}.q_proj": 10.0, f"{A}.o_proj": 11.0}, failed

    monkeypatch.setattr(module, "Session", Tapping)
    monkeypatch.setattr(module, "local_errors", nearly)
    found = against_oracle(graphs())
    assert (found.anchor, found.first_local, found.misused) == (f"{A}.q_proj", None, False)
    assert any(f"the largest by itself is that of {A}.q_proj, 10.0 floors" in note for note in found.notes)


class Elsewhere:
    """Gets the head of whole graphs wrong, with taps or without; what is cut out of them is right."""

    def __init__(self, phase: str) -> None:
        self.phase, self.backend, self.name = phase, interpreter(), "elsewhere"
        self.upload, self.download, self.keep = self.backend.upload, self.backend.download, self.backend.keep

    def load(self, graph: Graph) -> Executable:
        right = self.backend.load(graph)
        roles = {r.role for r in graph.abi.results}
        if graph.abi.phase != self.phase or not {"logits", "k_cache", "v_cache"} <= roles:
            return right

        def execute(arguments: Sequence[Any]) -> Sequence[Any]:
            head, *others = right(arguments)
            return [head + np.float32(1), *others]

        return execute


@pytest.mark.parametrize("phase", PHASES)
def test_what_is_wrong_without_a_session_too_is_not_the_sessions(phase: str) -> None:
    """No piece shows it, nor do the graphs cut off anywhere: all that is known is that a session is not needed for it."""
    found = taken_apart(graphs(), backend=Elsewhere(phase), trusted=graphs("oracle"))
    assert (found.phase, found.anchor, found.misused) == (phase, "lm_head", False)
    assert any("the whole is wrong without the session too" in note for note in found.notes)


# ---- from the first token on


@pytest.mark.parametrize("name", ["plain", "all-equal"])
def test_a_step_at_the_first_position(name: str) -> None:
    """Nothing is given at once: decode alone is looked at, though there is a prefill graph."""
    assert taken_apart(graphs(name=name), trusted=graphs("oracle", name), name=name, length=0).anchor is None
    wrong = edited("decode", "stablehlo.logistic", "stablehlo.tanh", name=name)
    found = taken_apart(wrong, trusted=graphs("oracle", name), name=name, length=0)
    assert (found.phase, found.anchor) == ("decode", "layers.0.mlp.act")
    assert found.found
    assert found.found.step.name == "stablehlo.tanh"
    assert [m.phase for m in found.matrices] == ["decode"]
    prefill = edited("prefill", "stablehlo.logistic", "stablehlo.tanh", name=name)
    assert taken_apart(prefill, trusted=graphs("oracle", name), name=name, length=0).anchor is None


# ---- by itself


def test_local_errors_of_a_wrong_anchor_only() -> None:
    """What follows is fed with right values, and is right."""
    here = model("plain")
    anatomy = here.anatomy("emitter", "decode")
    graph = anatomy.spoiled("layers.0.self_attn.o_proj", 1 + 2.0**-8)
    wrong = Anatomy(graph, here.config)
    errors, failed = local_errors(wrong, here.situation("decode"), here.bench())
    assert failed == {}
    assert [a for a, e in errors.items() if not e <= ANCHOR_FLOORS] == ["layers.0.self_attn.o_proj"]
    assert tuple(errors) == anchors(here.config)


def test_local_errors_up_to_the_first() -> None:
    here = model("plain")
    graph = here.anatomy("emitter", "decode").spoiled("layers.0.mlp.act", 1.5)
    errors, _ = local_errors(Anatomy(graph, here.config), here.situation("decode"), here.bench(), stop=True)
    assert list(errors)[-1] == "layers.0.mlp.act"
    assert [a for a, e in errors.items() if not e <= ANCHOR_FLOORS] == ["layers.0.mlp.act"]


def test_every_anchor_by_itself_is_within_its_floors_with_room() -> None:
    """In every layer alike: a local error does not grow."""
    here = model("biases")
    for phase in PHASES:
        errors, _ = local_errors(here.anatomy("oracle", phase), here.situation(phase), here.bench())
        assert {split(a)[0] for a in errors} == {None, 0, 1}
        assert max(errors.values()) <= ANCHOR_FLOORS / 4


def test_an_anchor_with_another_axis_of_one_element() -> None:
    """Keys that are read back from what is put into the cache, [1, K, T, D], are the anchor k_cache."""
    right = graphs()["prefill"]
    text = right.text
    for layer in (0, 1):
        put, read = f"%l{layer}_self_attn_k_cache.r", f"%back{layer}"
        (line,) = [t for t in text.split("\n") if f"%l{layer}_self_attn_scores.dot = " in t]
        back = f'    {read} = stablehlo.reshape {put} : (tensor<1x2x8x4xf32>) -> tensor<2x8x4xf32> loc("layers.{layer}.self_attn.scores")'  # fmt: skip
        text = text.replace(line, back + "\n" + line.replace(f"%l{layer}_self_attn_k_cache.t", read))
    other = {**graphs(), "prefill": replace(right, text=text)}
    assert "k_cache.0" in [a.name for a in Anatomy(other["prefill"], model("plain").config).subgraph(A.replace("1", "0") + ".scores").graph.abi.arguments]  # fmt: skip
    assert against_oracle(other).anchor is None
    wrong = changed(other["prefill"], r"multiply (%\S+), (%\S+) :", r"divide \1, \2 :", f"{A}.scores")
    found = against_oracle({**other, "prefill": wrong})
    assert found.anchor == f"{A}.scores"
    check_reproducer(found, f"{A}.scores")


# ---- in words


@pytest.mark.parametrize(
    ("got", "expected", "index"),
    [
        ([1.0, -np.inf, 3.0], [1.0, -np.inf, 2.0], [2]),
        ([np.nan, 1.0], [0.0, -9.0], [0]),
        ([np.inf, 1.0], [np.inf, 2.0], [1]),
        ([-1e30, 1.0], [-np.inf, 2.0], [0]),
    ],
)
def test_the_worst_element_of_an_operation(got: list[float], expected: list[float], index: list[int]) -> None:
    """Not one in which both are the same infinity."""
    here = model("plain").anatomy("emitter", "decode")
    step = here.steps(here.subgraph("norm"))[0]
    found = Found(step, step.graph, {}, np.float32(expected), np.float32(got), "")
    worst = _worst(None, found)
    assert worst
    assert worst["index"] == index
    np.testing.assert_array_equal([worst["value"], worst["expected"]], [np.float32(got)[index[0]], np.float32(expected)[index[0]]])  # fmt: skip


def test_a_value_that_another_emitter_has_in_no_layer_is_no_cause() -> None:
    """By number: one that it has in other layers is lost here, and one that it has nowhere it never had."""
    reads = {"k_rope": "qkv_proj", "context": "probs"}
    there = [f"layers.{i}.self_attn.{part}" for i in (0, 1) for part in (*reads, *reads.values())]
    lost = [a for a in there if a.endswith("qkv_proj") or a == "layers.1.self_attn.probs"]

    def subgraph(anchor: str) -> Any:
        layer, _, part = anchor.rpartition(".")
        read = [SimpleNamespace(name=f"{layer}.{reads[part]}")] if part in reads else []
        return SimpleNamespace(graph=SimpleNamespace(abi=SimpleNamespace(arguments=read)))

    def cause(anchor: str, written: str) -> str:
        peer = SimpleNamespace(subgraph=subgraph)
        mine = SimpleNamespace(
            values={a: None for a in there if a not in lost}, graph=SimpleNamespace(written=written)
        )  # fmt: skip
        scene: Any = SimpleNamespace(
            missing=lambda: lost, suspect=SimpleNamespace(parts={"decode": mine}),
            trusted=SimpleNamespace(parts={"decode": peer}, has=lambda _, a: a in there),
        )  # fmt: skip
        return _cause_that_is_missing(scene, "decode", anchor)

    A = "layers.1.self_attn"
    assert [cause(f"{A}.{n}", "") for n in reads] == [f"{A}.qkv_proj", f"{A}.probs"]
    assert [cause(f"{A}.{n}", "its text") for n in reads] == ["", f"{A}.probs"]
