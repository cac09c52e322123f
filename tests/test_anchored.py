"""Cells looked at from inside, the canary that has to be caught in every run, and a localization that dies."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import evidence as by_hand
import numpy as np
import pytest
from evidence import matrix_of
from models import LENGTH, PHASES, SOURCES, TOKENS, T, changed, handmade, interpreter, model, quick_xla
from nightly import only

from hloracle import api
from hloracle.backends import iree
from hloracle.backends.session import Backend
from hloracle.cli import main as cli
from hloracle.conformance import context as context_module
from hloracle.conformance import judging, looking
from hloracle.conformance import run as run_module
from hloracle.conformance.checks.check import Check, Question, of_configuration
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs import sources
from hloracle.conformance.graphs.facts import GraphFacts
from hloracle.conformance.graphs.sources import Emitter, Files
from hloracle.conformance.looking import look_inside
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import looked_into
from hloracle.conformance.run import conclude
from hloracle.conformance.runs import compiling as modules
from hloracle.conformance.runs.inside import (
    CANARY_FACTOR,
    AnchorOutcome,
    Canary,
    Rows,
    anchor_check,
    canary_anchor,
    canary_check,
    floor_rows,
    rows_of,
    run_anchored,
)
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.verdict import decide
from hloracle.core import tolerances
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, ChildResult, alone
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.dissect import Side, run_with_outputs
from hloracle.mutants import MUTANTS
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.anchors import anchors, split
from hloracle.reports.record import load

PROMPT = Prompt("first", T, "", None, TOKENS[:LENGTH])
EMITTED, ORACLE = Configuration("emitter", "iree-cpu"), Configuration("oracle", "xla-cpu")
WRONG = Question("census", "", "emitter").judged(False, 2, 1)


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


def of(source: str = "emitter") -> list[Graph]:
    return [model("plain").graph(source, phase) for phase in PHASES]


# ---- the canary


def named(graph: Graph, backend: Backend, chosen: list[str] | None = None) -> str | None:
    """The first anchor that is found wrong in a prefill: of all, or of those that are chosen and the caches."""
    here = model("plain")
    side = Side("emitter", "a backend", (graph,))
    (matrix,) = run_with_outputs(side, backend, here.run(), lambda line: None, chosen)
    return rows_of(matrix).first()


@pytest.mark.parametrize("source", only(["emitter"], SOURCES))
def test_a_canary_on_every_anchor(source: str) -> None:
    """One rounding to bfloat16, in any place of a model of two layers, is caught and named."""
    anatomy = model("plain").anatomy(source, "prefill")
    assert named(anatomy.graph, interpreter()) is None
    found = {a: named(anatomy.spoiled(a, CANARY_FACTOR), interpreter()) for a in anatomy.anchors}
    assert {anchor: first for anchor, first in found.items() if first != anchor} == {}


@pytest.mark.nightly
def test_a_canary_on_every_anchor_with_xla() -> None:
    """Which takes its time to compile: the two layers share the anchors, and what is looked at is one and the one before."""
    anatomy = model("plain").anatomy("emitter", "prefill")
    assert named(anatomy.graph, quick_xla()) is None
    lived = {}
    for i, anchor in enumerate(anatomy.anchors):
        if split(anchor)[0] in (None, i % 2):
            chosen = list(anatomy.anchors[max(i - 1, 0) : i + 1])
            found = named(anatomy.spoiled(anchor, CANARY_FACTOR), quick_xla(), chosen)
            if found != anchor:
                lived[anchor] = found
    assert lived == {}


def test_which_anchor_is_the_canary() -> None:
    here = model("plain")
    order = anchors(here.config)
    graph = here.graph("emitter", "prefill")
    chosen = canary_anchor(graph, order, here.truth, LENGTH)
    assert chosen == canary_anchor(graph, order, here.truth, LENGTH), "the same graph gets the same"
    others = {
        canary_anchor(dataclasses.replace(graph, text=graph.text + " " * i), order, here.truth, LENGTH)
        for i in range(400)
    }
    assert others == set(order), "in time every anchor is tried"
    assert canary_anchor(graph, [*order, "token"], here.truth, LENGTH) != "token"


def test_no_canary_where_nothing_can_show(tmp_path: Path) -> None:
    """Zeros remain zeros, however they are multiplied."""
    here = model("plain")
    truth = handmade(tmp_path / "t", here.config, draw=lambda rng, shape: np.zeros(shape))
    np.save(truth.folder / "norm.npy", np.ones((len(TOKENS), here.config.hidden_size), np.float32))
    graph = here.graph("emitter", "prefill")
    assert canary_anchor(graph, anchors(here.config), truth, LENGTH) == "norm"


def looked_at(canary: Canary | None) -> AnchorOutcome:
    return AnchorOutcome(EMITTED, "first@8", "ran", canary=canary)


@pytest.mark.parametrize(("found", "caught"), [("norm", True), (None, False), ("layers.0", False), ("lm_head", False)])
def test_the_check_of_the_canary(found: str | None, caught: bool) -> None:
    canary = Canary("norm", "llama_prefill_8_logits", found, 900.0)
    assert canary.caught == caught
    check = canary_check([looked_at(canary)])
    assert (check.id, check.status) == ("harness.canary", "passed" if caught else "failed")
    assert check.limit == "norm"
    assert check.figure.startswith(found or "nothing")
    assert ("trust nothing" in check.detail) == (not caught)


def test_no_canary_is_said_and_is_no_pass() -> None:
    check = canary_check([], "the run has a fault already")
    assert (check.status, check.detail) == ("skipped", "the run has a fault already")


def test_of_several_canaries_the_one_counts_that_tells_least() -> None:
    caught, missed = (looked_at(Canary("norm", "g", found, 900.0)) for found in ("norm", None))
    nowhere = dataclasses.replace(looked_at(None), configuration=Configuration("mine", "xla-cpu"))
    assert canary_check([caught, caught]).status == "passed"
    for looked in ([caught, missed], [missed, nowhere]):
        assert canary_check(looked).status == "failed"
    found = canary_check([caught, nowhere])
    assert (found.status, found.detail) == ("skipped", "it did not run in the graph of mine")


@pytest.mark.parametrize("found", [None, "layers.1"])
def test_a_canary_that_lives_makes_everything_a_harness_error(found: str | None) -> None:
    """Whatever else was seen: a run that conforms, and one that does not."""
    lives = canary_check([looked_at(Canary("norm", "g", found, 3.0))])
    for changes in ({}, {"emitter/iree-cpu": by_hand.WRONG_LOGITS}, {"oracle/xla-cpu": by_hand.WRONG_TOKEN}):
        verdict = by_hand.verdict(changes, more=(lives,))
        assert (verdict.class_, verdict.passed) == ("harness-error", False)
    caught = canary_check([looked_at(Canary("norm", "g", "norm", 900.0))])
    assert by_hand.verdict(more=(caught,)).class_ == "conforms"


# ---- a run with every anchor


@pytest.fixture
def on_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "backend", lambda self, name: interpreter())


def look(
    configuration: Configuration = EMITTED, graphs: Sequence[Graph] | None = None, with_canary: bool = False, **how: Any
) -> AnchorOutcome:
    """How: of the context."""
    here = model("plain")
    graphs = graphs or of(configuration.source)
    with alone():
        return run_anchored(Context(**how), configuration, graphs, here.checkpoint, (PROMPT, here.truth), with_canary)


def checked(outcome: AnchorOutcome) -> Check:
    return anchor_check(outcome, all_named=outcome.configuration.source != "file")


@pytest.mark.usefixtures("on_the_interpreter")
@pytest.mark.parametrize("configuration", [EMITTED, ORACLE], ids=lambda c: c.id)
def test_what_is_looked_at(configuration: Configuration, empty_cache: Path) -> None:
    found = look(configuration, with_canary=True)
    assert (found.configuration, found.prompt, found.status, found.message, found.missing) == (
        configuration,
        PROMPT.id,
        "ran",
        "",
        [],
    )
    assert [r.phase for r in found.rows] == list(PHASES)
    for rows in found.rows:
        assert rows.anchors == list(anchors(model("plain").config))
        assert len(rows.errors) == len(rows.anchors)
        assert {len(row) for row in rows.errors} == {len(rows.positions)}
    assert found.rows[0].positions + found.rows[1].positions == list(range(len(TOKENS)))
    assert found.canary
    assert found.canary.caught
    assert found.canary.worst > ANCHOR_FLOORS
    assert found.canary.graph == "llama_prefill_8_logits"
    check = checked(found)
    assert (check.id, check.status) == (f"{configuration.id}.anchors", "passed")
    assert check.figure.endswith(f"{2 * len(anchors(model('plain').config))} anchors")
    assert bool(found.floors) == (configuration == ORACLE)


@pytest.mark.usefixtures("on_the_interpreter")
def test_an_outcome_from_the_cache(empty_cache: Path) -> None:
    """It is what was found, with infinities and holes."""
    wrong = changed(of()[0], r"stablehlo.rsqrt %norm.add", "stablehlo.log %norm.add", "norm")
    wrong = changed(wrong, r"add %norm.mul1, %\S+", "subtract %norm.mul1, %norm.mul1", "norm")
    for configuration, graphs in ((ORACLE, of("oracle")), (EMITTED, [wrong, of()[1]])):
        first = look(configuration, graphs, with_canary=configuration == ORACLE)
        second = look(configuration, graphs, with_canary=configuration == ORACLE)
        assert (first.status, second.status) == ("ran", "reused")
        assert dataclasses.replace(second, status="ran") == first
        assert checked(second) == checked(first)
        assert look(configuration, graphs, with_canary=configuration == ORACLE, reuse=False).status == "ran"
    values = [e for rows in first.rows for row in rows.errors for e in row]
    assert np.inf in values
    assert None in values


@pytest.mark.usefixtures("on_the_interpreter")
def test_what_an_outcome_depends_on(empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert look().status == "ran"
    assert look(Configuration("emitter", "xla-cpu")).status == "ran"
    assert look(graphs=[dataclasses.replace(g, text=g.text + " ") for g in of()]).status == "ran"
    assert look(threads=2).status == "ran"
    assert look(with_canary=True).status == "ran"
    assert look().status == "reused"
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        assert look().status == "ran"
    with monkeypatch.context() as patch:
        patch.setattr(context_module, "versions", lambda packages: {"jax": "2"})
        assert look().status == "ran"
    with monkeypatch.context() as patch:
        patch.setattr(iree, "CPU_FLAGS", ("--iree-opt-level=O3",))
        assert look().status == "ran"
    with monkeypatch.context() as patch:  # another limit, another table of floors
        other = tmp_path / "tolerances.py"
        other.write_text("ANCHOR_FLOORS = 1")
        patch.setattr(tolerances, "__file__", str(other))
        assert look().status == "ran"
    assert look().status == "reused"


@pytest.mark.usefixtures("on_the_interpreter")
def test_nothing_of_a_faulty_session_is_taken_or_kept(empty_cache: Path) -> None:
    """What is wrong in an emitter is in its graphs, and what comes of them is kept."""
    faults = {m.part: m for m in MUTANTS.values()}
    assert look(fault=faults["session"]).status == "ran"
    assert look().status == "ran"
    assert look(fault=faults["session"]).status == "ran"
    assert look(fault=faults["emitter"]).status == "reused"


@pytest.mark.usefixtures("on_the_interpreter")
@pytest.mark.parametrize("damage", [lambda s: s[:-9], lambda s: "", lambda s: "[]", lambda s: s.replace("errors", "e")])
def test_a_damaged_outcome_is_no_outcome(damage: Callable[[str], str], empty_cache: Path) -> None:
    first = look()
    (path,) = (empty_cache / "anchors").glob("*.json")
    path.write_text(damage(path.read_text()))
    assert look() == first
    assert json.loads(path.read_text().partition("\n")[2])["status"] == "ran"


@pytest.mark.parametrize("error", [ToolchainError("compile", "cannot be legalized"), ChildDied("_run died (SIGSEGV)")])
def test_a_toolchain_that_fails_is_no_pass(
    error: Exception, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> ChildResult:
        raise error

    monkeypatch.setattr(Context, "child", fails)
    found = look()
    assert found.status == "failed"
    check = checked(found)
    assert check.status == "error"
    assert str(error) in check.detail
    assert not (empty_cache / "anchors").exists(), "and is not kept"


@pytest.mark.usefixtures("on_the_interpreter")
def test_a_graph_without_an_anchor_does_not_pass(empty_cache: Path) -> None:
    """Nothing was compared there. Its caches are, in any graph: a session returns them."""
    bare = [dataclasses.replace(g, text=g.text.replace(' loc("norm")', "")) for g in of()]
    found = look(graphs=bare)
    assert found.missing == ["norm in prefill", "norm in decode"]
    check = checked(found)
    assert check.status == "failed"
    assert "have no anchor norm in prefill, norm in decode" in check.detail


# ---- of graphs that somebody else wrote

FILE = Configuration("file", "xla-cpu")


def unnamed(*kept: str, head: str = "logits") -> list[Graph]:
    """Graphs without locations, but for those of these anchors."""
    graphs = [model("plain").graph("emitter", phase, head) for phase in PHASES]
    return [
        dataclasses.replace(g, text=re.sub(r' loc\("([^"]*)"\)', lambda m: m[0] if m[1] in kept else "", g.text))
        for g in graphs
    ]


@pytest.mark.usefixtures("on_the_interpreter")
@pytest.mark.parametrize("head", ["logits", "token"])
def test_a_file_need_not_name_all_anchors(head: str, empty_cache: Path) -> None:
    """What it names is compared, and the number of the others is said; where it names none, nothing is claimed."""
    found = look(FILE, unnamed("norm", "layers.1.mlp.act", head=head))
    check = checked(found)
    assert (check.id, check.status, found.named) == ("file/xla-cpu.anchors", "passed", True)
    assert f"{len(found.missing)} anchors are not there, such as embed_tokens in prefill" in check.limit
    assert {"norm in prefill", "layers.1.mlp.act in decode"}.isdisjoint(found.missing)
    for reused in ("ran", "reused"):
        none = look(FILE, unnamed(head=head), with_canary=True)
        check = checked(none)
        assert (none.status, none.named, check.status) == (reused, False, "skipped")
        assert none.canary is None or head == "logits", "its logits have their name from the ABI"
        assert "the graph names none, and none was found" in check.detail


@pytest.mark.usefixtures("on_the_interpreter")
def test_what_a_file_names_counts(empty_cache: Path) -> None:
    prefill, decode = unnamed("norm", "layers.1.mlp.act")
    wrong = changed(decode, "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act")
    check = checked(look(FILE, [prefill, wrong]))
    assert (check.status, check.detail) == ("failed", "the first beyond its limit is layers.1.mlp.act in decode")
    # The caches have their names from the ABI.
    bare = [changed(g, "stablehlo.logistic", "stablehlo.tanh", count=1) for g in unnamed()]
    check = checked(look(FILE, bare))
    assert check.status == "failed"
    assert "_cache.1 in prefill" in check.detail


@pytest.mark.usefixtures("on_the_interpreter")
@pytest.mark.parametrize("phase", PHASES)
def test_a_canary_in_a_graph_of_one_phase(phase: str, empty_cache: Path) -> None:
    graph = model("plain").graph("emitter", phase)
    found = look(FILE, [graph], with_canary=True)
    assert [r.phase for r in found.rows] == [phase]
    assert found.canary
    assert (found.canary.caught, found.canary.graph) == (True, graph.name)


# ---- rows


def rows(*errors: list[float | None], phase: str = "prefill") -> Rows:
    return Rows(phase, list(range(4, 4 + len(errors[0]))), [f"a{i}" for i in range(len(errors))], list(errors))


def test_the_largest_error() -> None:
    assert rows([1.0, 2.0], [3.0, 0.0]).worst() == (3.0, "a1", 4)
    assert rows([None, 2.0], [None, 1.0]).worst() == (2.0, "a0", 5)
    assert rows([0.0, 0.0]).worst() == (0.0, "a0", 4)
    # The first anchor that has it, and its first position: what follows is a consequence.
    assert rows([1.0, 1.0], [1.0, np.inf], [np.inf, np.inf]).worst() == (np.inf, "a1", 5)
    assert rows([None, None], [None, None]).worst() is None
    assert Rows("decode", [], [], []).worst() is None


def test_the_first_anchor_beyond() -> None:
    limit = ANCHOR_FLOORS
    assert rows([0.0, limit], [limit, limit]).first() is None
    assert rows([0.0, limit], [None, limit * 1.01], [9e9, 9e9]).first() == "a1"
    assert rows([None, None], [np.inf, 0.0]).first() == "a1"
    assert rows([None, None]).first() is None
    assert rows([0.0, np.nan]).first() == "a0", "what is no number is beyond any limit"


def test_rows_of_a_matrix() -> None:
    from hloracle.localize.dissect import Matrix

    errors = np.array([[np.nan, 1.23456789], [np.inf, 0.0]])
    found = rows_of(Matrix("decode", (7, 8), ("norm", "lm_head"), errors))
    assert found == Rows("decode", [7, 8], ["norm", "lm_head"], [[None, 1.23], [np.inf, 0.0]])
    assert json.loads(json.dumps(dataclasses.asdict(found))) == dataclasses.asdict(found)


@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ([0.0, ANCHOR_FLOORS], "passed"),
        ([None, 1.0], "passed"),
        ([0.0, ANCHOR_FLOORS * 1.01], "failed"),
        ([np.inf, None], "failed"),
        ([0.0, np.nan], "failed"),
        ([None, None], "error"),
    ],
)
def test_the_check_of_all_anchors(errors: list[float | None], status: str) -> None:
    right = rows([0.5, 0.25], phase="decode") if status != "error" else rows([None, None], phase="decode")
    for order in ([rows(errors), right], [right, rows(errors)]):
        check = checked(AnchorOutcome(EMITTED, "first@8", "ran", list(order)))
        assert (check.id, check.status) == ("emitter/iree-cpu.anchors", status)
        if status == "failed":
            assert check.detail == "the first beyond its limit is a0 in prefill"


def test_the_check_says_the_worst_and_the_first() -> None:
    found = checked(AnchorOutcome(EMITTED, "p", "ran", [rows([20.0, 1.0], [1.0, 400.0]), rows([30.0], phase="decode")]))
    assert found.figure == "400.00 floors (a1, prefill, position 5), 3 anchors"
    assert found.detail == "the first beyond its limit is a0 in prefill"
    assert checked(AnchorOutcome(EMITTED, "p", "ran", [])).status == "error"


def test_what_a_graph_could_have_and_has_not_fails() -> None:
    """Of what attends in blocks scores and probabilities are only said to be missing; any other anchor is lost."""
    missing = ["layers.0.self_attn.scores in extend"]
    found = AnchorOutcome(EMITTED, "p", "ran", [rows([1.0], phase="extend")], missing=missing)
    check = checked(found)
    assert check.status == "passed"
    assert check.limit.endswith("1 anchors are not there, such as layers.0.self_attn.scores in extend")
    check = checked(dataclasses.replace(found, missing=[*missing, "norm in extend"], lost=["norm in extend"]))
    assert (check.status, check.detail) == ("failed", "its graphs have no anchor norm in extend")


def test_floors_for_the_record() -> None:
    here = model("plain")
    order = list(anchors(here.config))
    oracle = [
        Rows("prefill", [0], order, [[float(i)] for i in range(len(order))]),
        Rows("decode", [1], order[:2], [[7.0], [None]]),
    ]
    found = {row["anchor"]: row for row in floor_rows(here.truth, here.config, oracle)}
    assert list(found) == order
    assert [found[a]["oracle"] for a in order[:3]] == [7.0, 1.0, 2.0]
    for row in found.values():
        assert row["limit"] == ANCHOR_FLOORS
        assert 0 < row["relative"] < 1e-4
        assert row["scale"] > 0
        assert row["noise"] >= 0
    assert all(row["oracle"] is None for row in floor_rows(here.truth, here.config, []))


# ---- which configurations are looked at


def gathered() -> Evidence:
    """A run that went right up to here."""
    checks, outcomes = by_hand.gathered()
    prompts = [Prompt("first", 32, "", None, (1, 2)), Prompt("second", 64, "", None, (3,))]
    facts = GraphFacts()
    graphs = {source: [(g, facts) for g in of(source)] for source in ("emitter", "oracle")}
    asked = by_hand.asked(prompts=prompts)
    asked = dataclasses.replace(asked, inside=looked_into(prompts, by_hand.TRUTHS, by_hand.CAPACITY))
    return Evidence(checks, graphs, prompts, dict(by_hand.TRUTHS), asked, outcomes)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The configurations that were looked at, with a canary or without; `wrong` says which have an anchor beyond its limit."""
    found: dict[str, Any] = {"configurations": [], "wrong": (), "named": "norm", "tokens": None, "missing": []}

    def fake(
        context: Context, configuration: Configuration, graphs: Any, model: Any, of: Any, with_canary: bool
    ) -> AnchorOutcome:
        found["configurations"].append((configuration.id, with_canary))
        error = 99.0 if configuration.id in found["wrong"] else 1.0
        canary = Canary("norm", "g", found["named"], 900.0) if with_canary else None
        missing = found["missing"] if configuration.source == "file" else []
        named = {"missing": missing, "named": not missing}
        return AnchorOutcome(
            configuration, "p", "ran", [Rows("prefill", [0], ["norm"], [[error]])], canary=canary, **named
        )

    def truth(checkpoint: Any, tokens: list[int], report: Any, prompt: int) -> AnchorTruth:
        found["tokens"], found["prompt"] = tokens, prompt
        return model("plain").truth

    monkeypatch.setattr(looking, "run_anchored", fake)
    monkeypatch.setattr(looking, "anchor_truth", truth)
    return found


def run_with(evidence: Evidence, context: Context | None = None, **settings: Any) -> Run:
    """A run that has gathered this evidence."""
    source = Files((), (), ()) if "file" in evidence.graphs else Emitter()
    return Run(Settings("m", **settings), context or Context(), (source,), model("plain").checkpoint, evidence)


def inside(evidence: Evidence, context: Context | None = None, **settings: Any) -> Check:
    """Look inside; the canary's check."""
    look_inside(run_with(evidence, context, **settings))
    (check,) = [c for c in evidence.checks if c.id == "harness.canary"]
    assert len({c.id for c in evidence.checks}) == len(evidence.checks)
    return check


def test_a_right_run_is_looked_at_with_a_canary(looked: dict[str, Any]) -> None:
    found = gathered()
    assert inside(found).status == "passed"
    assert looked["configurations"] == [("oracle/xla-cpu", False), ("emitter/iree-cpu", True)]
    assert looked["tokens"] == (1, 2, *by_hand.TRUTHS["first@32"].tokens)
    assert looked["prompt"] == 2
    assert decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths).class_ == "conforms"


def test_a_quick_run_looks_on_xla_alone(looked: dict[str, Any]) -> None:
    found = gathered()
    assert inside(found, quick=True).status == "passed"
    assert looked["configurations"] == [("oracle/xla-cpu", False), ("emitter/xla-cpu", True)]
    assert [(o.configuration.id, o.canary is not None) for o in found.anchored] == looked["configurations"]
    assert decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths).class_ == "conforms"
    looked["named"] = None
    found = gathered()
    assert inside(found, quick=True).status == "failed"


def test_a_canary_that_lives(looked: dict[str, Any]) -> None:
    looked["named"] = None
    found = gathered()
    assert inside(found).status == "failed"
    assert decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths).class_ == "harness-error"


@pytest.mark.parametrize("quick", [False, True])
def test_a_fault_that_only_the_anchors_show(quick: bool, looked: dict[str, Any]) -> None:
    """Graph or compiler, emitter or oracle: the other configurations tell, and the canary goes into a right graph."""
    looked["wrong"] = ("emitter/iree-cpu", "emitter/xla-cpu")
    found = gathered()
    assert inside(found, quick=quick).status == "passed"
    assert sorted(o.configuration.id for o in found.anchored) == sorted({c for c, _ in looked["configurations"]})
    assert {c for c, _ in looked["configurations"]} == {
        "oracle/xla-cpu",
        "emitter/iree-cpu",
        "emitter/xla-cpu",
        "oracle/iree-cpu",
    }
    assert looked["configurations"][-1] == ("oracle/xla-cpu", True)
    assert [o.configuration.id for o in found.anchored if o.canary] == ["oracle/xla-cpu"]
    verdict = decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths)
    assert verdict.class_ == "emitter-fault"


def test_a_run_that_is_wrong_already_has_its_canary(looked: dict[str, Any]) -> None:
    found = gathered()
    found.checks.append(WRONG)
    assert inside(found).status == "passed"
    assert looked["configurations"] == [("oracle/xla-cpu", True)]


@pytest.mark.parametrize("mutant", ["norm-sum", "session-caches-swapped"])
def test_a_mutant_that_was_noticed_is_canary_enough(mutant: str, looked: dict[str, Any]) -> None:
    """In a run that may exit early; one that was not noticed, or is looked at with care, has another beside it."""
    for noticed, early_exit in ((True, True), (True, False), (False, True)):
        looked["configurations"].clear()
        found = gathered()
        found.checks += [WRONG] * noticed
        left_out = noticed and early_exit
        canary = inside(found, Context(fault=MUTANTS[mutant]), early_exit=early_exit)
        assert canary.status == ("skipped" if left_out else "passed")
        assert bool(looked["configurations"]) != left_out


@pytest.mark.parametrize(
    "question",
    [of_configuration(ORACLE, "tokens", ""), Question("noise", ""), Question("census", "", "oracle")],
    ids=["oracle/xla-cpu.tokens", "reference.noise", "oracle.census"],
)
def test_no_canary_without_a_right_graph(question: Question, looked: dict[str, Any]) -> None:
    found = gathered()
    found.replace([question.judged(False, 2, 1)])
    assert inside(found).status == "skipped"
    assert looked["configurations"] == []
    assert not decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths).passed


# ---- inside a file's graphs


def of_file(head: str) -> Evidence:
    """A file's graphs that went right up to here."""
    configurations = [Configuration("file", backend, head) for backend in ("iree-cpu", "xla-cpu")]
    found = gathered()
    checks, outcomes = by_hand.gathered(configurations=configurations)
    graphs = [(model("plain").graph("emitter", phase, head), GraphFacts()) for phase in PHASES]
    return dataclasses.replace(
        found, checks=checks, outcomes=outcomes, graphs={"file": graphs, "oracle": found.graphs["oracle"]}
    )


@pytest.mark.parametrize("head", ["logits", "token"])
def test_a_file_is_looked_at_on_xla(head: str, looked: dict[str, Any]) -> None:
    found = of_file(head)
    assert inside(found).status == "passed"
    file = "file/xla-cpu" + ("/token" if head == "token" else "")
    assert looked["configurations"] == [("oracle/xla-cpu", False), (file, True)]
    assert decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths).class_ == "conforms"


@pytest.mark.parametrize("head", ["logits", "token"])
def test_a_file_that_names_nothing_leaves_the_canary_to_the_oracle(head: str, looked: dict[str, Any]) -> None:
    """What is not compared there is no fault; and on the other backend there is nothing to see either."""
    looked["missing"] = ["norm in decode"]
    found = of_file(head)
    assert inside(found).status == "passed"
    assert looked["configurations"][2:] == [("oracle/xla-cpu", True)]
    assert [o.configuration.id for o in found.anchored if o.canary] == ["oracle/xla-cpu"]
    assert decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths).class_ == "conforms"


def test_a_fault_that_only_a_files_anchors_show(looked: dict[str, Any]) -> None:
    looked["wrong"] = ("file/xla-cpu", "file/iree-cpu")
    found = of_file("logits")
    assert inside(found).status == "passed"
    assert [configuration for configuration, _ in looked["configurations"]] == [
        "oracle/xla-cpu",
        "file/xla-cpu",
        "file/iree-cpu",
        "oracle/xla-cpu",
    ]
    assert decide(matrix_of(found.outcomes), found.checks, found.outcomes, found.truths).class_ == "emitter-fault"


# ---- a localization that dies


def dies(context: Context, *arguments: Any) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Evidence:
    """An emitter's fault, about to be taken apart."""
    found = gathered()
    wrong = dict.fromkeys(["emitter/iree-cpu", "emitter/iree-cpu/token", "emitter/xla-cpu"], by_hand.WRONG_LOGITS)
    found.checks, found.outcomes = by_hand.gathered(wrong)
    monkeypatch.setattr(run_module, "anchor_truth", lambda *_: model("plain").truth)
    return found


def test_a_dying_child_does_not_change_the_verdict(failing: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    before = decide(matrix_of(failing.outcomes), failing.checks, failing.outcomes, failing.truths)
    monkeypatch.setattr(run_module, "localize", dies)
    verdict = conclude(run_with(failing))
    assert verdict.class_ == before.class_ == "emitter-fault"
    assert (verdict.explanation, verdict.passed, verdict.anchor) == (before.explanation, False, None)
    assert failing.localization is None
    last = failing.checks[-1]
    assert (last.id, last.status) == ("harness.localization", "error")
    assert "SIGKILL" in last.detail


@pytest.mark.parametrize(
    "error",
    [
        ChildDied("localize took more than 900 s and was stopped"),
        ToolchainError("run", "no"),
        InputError("has values that are not finite", "a model", "use another"),
    ],
)
@pytest.mark.parametrize("where", ["child", "anchor_truth"])
def test_whatever_ends_a_localization(
    where: str, error: Exception, failing: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Context if where == "child" else run_module, where, fails)
    verdict = conclude(run_with(failing))
    assert (verdict.class_, verdict.anchor) == ("emitter-fault", None)
    assert verdict.sure
    assert verdict.sure[0] == "possible"
    assert failing.checks[-1].id == "harness.localization"


def test_a_right_run_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Context, "child", fails)
    monkeypatch.setattr(run_module, "anchor_truth", fails)
    verdict = conclude(run_with(gathered()))
    assert (verdict.class_, verdict.sure) == ("conforms", None)


@pytest.mark.nightly
@pytest.mark.parametrize("dying", [False, True])
def test_a_report_appears_either_way(dying: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command on a graph that is wrong: exit status 1, and a record that says so."""

    def wrong(*arguments: Any) -> Graph:
        return changed(production_graph(*arguments), "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act")

    def exits_early(*arguments: Any) -> Settings:
        return Settings(*arguments, early_exit=True)

    production_graph = sources.production_graph
    monkeypatch.setattr(sources, "production_graph", wrong)
    # All but the stream form and the reproducer is computed by the interpreter, which has nothing to compile.
    monkeypatch.setattr(Context, "backend", lambda self, name: interpreter())
    for place, name in ((judging, "precompile"), (modules, "precompile_xla")):
        monkeypatch.setattr(place, name, lambda *_, **__: True)
    monkeypatch.setattr(api, "Settings", exits_early)
    if dying:

        def raises(*_: Any) -> None:
            raise MemoryError("the graph is too large")

        monkeypatch.setattr(run_module, "localize", raises)
    out = tmp_path / "out"
    with alone():
        status = cli.invoke(
            ["run", str(model("plain").checkpoint.directory), "--tokens", "2", "--capacity", "32", "--out", str(out)]
        )
    record = load(out / "report.json")
    assert (status, record["passed"], record["verdict"]["class"]) == (1, False, "emitter-fault")
    assert {p.name for p in out.iterdir()} >= {"report.json", "report.html", "summary.md", "junit.xml"}
    assert record["canary"]["caught"]
    if dying:
        assert record["localization"] is None
        (died,) = [c for c in record["checks"] if c["id"] == "harness.localization"]
        assert died["detail"].startswith("raises failed: MemoryError")
        return
    found = record["localization"]
    assert (found["anchor"], found["phase"]) == ("layers.1.mlp.act", "prefill")
    assert found["operation"]["name"] == "stablehlo.tanh"
    assert found["reproducer"]["shown"], found["reproducer"]["output"]
    assert record["verdict"]["confidence"]["level"] == "certain"
    assert sorted(p.name for p in (out / "reproducer").iterdir()) == sorted(found["reproducer"]["files"])
