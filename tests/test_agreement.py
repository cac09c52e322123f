"""What the matrix of a run says, from evidence by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

from evidence import WRONG_LOGITS, WRONG_SLOT, WRONG_TOKEN, check, failed, gathered, outcome

from hloracle.backends.named import Choice
from hloracle.backends.session import Backend
from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Evidence
from hloracle.conformance.matrix import Configuration, Matrix, listed
from hloracle.conformance.runs.gate_zero import Gate
from hloracle.conformance.runs.inside import AnchorOutcome, Rows
from hloracle.conformance.verdict.agreement import Cell, cells, sentences


def _open(threads: int) -> Backend:
    raise AssertionError


def backend(name: str, family: str, title: str, passes: bool = True) -> tuple[Choice, Gate]:
    question = Question("gate-zero", "", backend=name)
    gate = question.judged(True, "", "") if passes else question.error("it died (signal SIGABRT)")
    return Choice(name, family, _open, title), Gate(gate)


IREE, XLA = backend("iree-cpu", "iree", "IREE"), backend("xla-cpu", "xla", "XLA")
BROKEN = backend("pjrt:broken", "xla", "PJRT broken", passes=False)


def evidence(changes: dict[str, Any], *more: Check, gates: Any = (IREE, XLA), **others: Any) -> Evidence:
    checks, outcomes = gathered(changes)
    found = Evidence(
        gates=list(gates), checks=[*checks, *more, *(g.check for _, g in gates)], outcomes=outcomes, **others
    )
    found.graphs = {"emitter": [], "oracle": []}
    return found


def of(found: Evidence) -> dict[tuple[str, str], Cell]:
    return {(cell.source, cell.backend): cell for cell in cells(found)}


def matrix_of(found: Evidence) -> Matrix:
    return Context(backends=tuple(b for b, _ in found.gates)).matrix


def test_a_cell_for_each_source_on_each_backend() -> None:
    found = cells(evidence({}))
    assert [(c.source, c.backend, c.state) for c in found] == [
        ("emitter", "iree-cpu", "right"), ("emitter", "xla-cpu", "right"),
        ("oracle", "iree-cpu", "right"), ("oracle", "xla-cpu", "right"),
    ]  # fmt: skip


def test_what_is_wrong_first() -> None:
    found = of(evidence({"emitter/xla-cpu": WRONG_SLOT, "emitter/iree-cpu/token": WRONG_TOKEN}))
    on_xla, on_iree = found["emitter", "xla-cpu"], found["emitter", "iree-cpu"]
    assert (on_xla.state, on_xla.anchor) == ("wrong", "v_cache.1"), "as far as the caches tell"
    assert on_iree.state == "wrong", "the graph that picks the token is the source's too"
    assert "tokens" in on_iree.first


def test_the_anchor_that_was_looked_at_comes_before_the_caches() -> None:
    one = Configuration("emitter", "xla-cpu")
    rows = Rows("decode", [3], ["layers.0.input_layernorm", "layers.0.mlp.act"], [[0.5], [99.0]])
    inside = [AnchorOutcome(one, "first", "ran", [rows])]
    assert of(evidence({one.id: WRONG_SLOT}, anchored=inside))["emitter", "xla-cpu"].anchor == "layers.0.mlp.act"


def test_what_does_not_run_is_told_from_what_gives_no_answer() -> None:
    for stage, state in (("compile", "failed"), ("run", "failed"), ("memory", "unknown"), ("timeout", "unknown")):
        cell = of(evidence({"emitter/xla-cpu": failed(stage)}))["emitter", "xla-cpu"]
        assert cell.state == state
        assert "the tool's words" in cell.first


def test_what_could_not_be_checked_is_not_right() -> None:
    unknown = check("emitter/xla-cpu.anchors", "values at anchors", "error", detail="it died")
    assert of(evidence({}, unknown))["emitter", "xla-cpu"].state == "unknown"


def test_a_backend_that_does_not_pass_gate_zero() -> None:
    found = of(evidence({}, gates=(IREE, XLA, BROKEN)))
    assert found["emitter", "pjrt:broken"] == Cell("emitter", "pjrt:broken", "failed", "it died (signal SIGABRT)")
    assert ("oracle", "pjrt:broken") not in found, "nobody asked it"
    slow = (BROKEN[0], Gate(dataclasses.replace(BROKEN[1].check, error="timeout")))
    assert of(evidence({}, gates=(IREE, XLA, slow)))["emitter", "pjrt:broken"].state == "unknown"
    assert found["emitter", "xla-cpu"].state == "right"


def test_the_sentences() -> None:
    gates = (IREE, backend("iree==3.12.0", "iree", "IREE 3.12.0"), XLA, BROKEN)
    found = evidence({"emitter/xla-cpu": WRONG_LOGITS}, gates=gates)
    found.outcomes += [outcome(Configuration("emitter", "iree==3.12.0"))]
    told = sentences(matrix_of(found), cells(found), found)
    assert told == [
        "The emitter's graph is right on IREE and IREE 3.12.0 (1 family of compilers: iree); wrong on XLA; not run by PJRT"
        " broken.",
        "The oracle's graph is right on IREE and XLA.",
        "IREE and IREE 3.12.0 are one witness; XLA and PJRT broken are one witness: they are of one family of compilers.",
    ]


def test_what_the_interpreter_says_stands_there_too() -> None:
    said = check("emitter.interpreter", "", "passed", "63 of 114 anchors, at most 0.83 floors off (norm, decode)")
    silent = check("mine.interpreter", "", "skipped", detail="it died")
    found = evidence({}, said, silent)
    assert sentences(matrix_of(found), cells(found), found)[-1] == (
        "Of the emitter's graph StableHLO's interpreter evaluates 63 of 114 anchors, at most 0.83 floors off (norm, decode);"
        " of the graph of mine StableHLO's interpreter has no word: it died."
    )


def test_lists_in_a_sentence() -> None:
    assert [*map(listed, ([], ["a"], ["a", "b"], ["a", "b", "c"]))] == ["", "a", "a and b", "a, b and c"]
