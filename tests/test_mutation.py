"""The count of what was noticed: what is a kill and what is not, and a few mutants through whole runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hloracle.conformance import cli, mutation
from hloracle.conformance.mutation import Trial, problems, selected
from hloracle.core.child import Report
from hloracle.core.errors import InputError
from hloracle.mutants import MUTANTS

MUTANT = MUTANTS["norm-sum"]
CAUGHT = Trial(MUTANT, "emitter-fault", MUTANT.anchor, "stablehlo.rsqrt", "certain", "exact", 1.0)
CLEAN = {"passed": True, "tokens": {"p@32": {"cells": {"emitter/iree-cpu": {"errors": [1.0]}}}}}
CONSUMERS = {MUTANT.anchor: {"layers.0.self_attn.q_proj"}}


def record(class_: str = "emitter-fault", anchor: str | None = MUTANT.anchor, **more: Any) -> dict[str, Any]:
    verdict = {"class": class_, "anchor": anchor, "operation": None, "confidence": None}
    return {**CLEAN, "passed": class_ in ("conforms", "near-tie"), "verdict": verdict, "checks": [], **more}


def trial(found: dict[str, Any] | str) -> Trial:
    return mutation._trial(MUTANT, found, 1.0, CLEAN, CONSUMERS)


def test_caught_at_its_place() -> None:
    found = trial(record())
    assert (found.verdict, found.place, found.killed, found.right) == ("emitter-fault", "exact", True, True)
    assert problems([found]) == []


@pytest.mark.parametrize("class_", ["conforms", "near-tie"])
def test_a_pass_is_a_survivor(class_: str) -> None:
    found = trial(record(class_, None))
    assert not found.killed
    assert problems([found]) == ["norm-sum survived: every logit is the right one, bit for bit"]


def test_a_survivor_that_changes_something_says_so() -> None:
    other = {"p@32": {"cells": {"emitter/iree-cpu": {"errors": [1.5]}}}}
    assert trial(record("conforms", None, tokens=other)).detail == "logits differ, within their limits"


def test_a_crash_is_no_kill() -> None:
    for found in (
        trial("norm-sum died (signal SIGSEGV)"),
        trial(record("harness-error", checks=[{"id": "harness.process", "status": "error", "detail": "it died"}])),
    ):
        assert (found.verdict, found.killed, found.right) == ("crashed", False, False)
        assert "norm-sum crashed" in problems([found])[0]


def test_another_class_is_a_problem() -> None:
    found = trial(record("compiler-fault"))
    assert found.killed
    assert not found.right
    assert problems([found]) == ["norm-sum is compiler-fault, not emitter-fault"]


def test_the_direct_consumer_counts_for_a_few() -> None:
    found = trial(record(anchor="layers.0.self_attn.q_proj"))
    assert (found.place, found.right) == ("consumer", True)
    assert problems([found] + [CAUGHT] * 19) == []
    assert problems([found] + [CAUGHT] * 18) == ["1 of 19 are placed at a consumer, more than 5%"]


@pytest.mark.parametrize("anchor", [None, "norm"])
def test_elsewhere_is_a_problem(anchor: str | None) -> None:
    found = trial(record(anchor=anchor))
    assert found.place == "elsewhere"
    assert not found.right
    assert "is placed at" in problems([found])[0]


def test_nothing_run_proves_nothing() -> None:
    assert problems([]) == ["no mutant was run"]


def test_selected() -> None:
    assert selected([]) == list(MUTANTS.values())
    assert next(iter(selected(["norm-sum", "norm-mean"]))).id == "norm-sum"
    assert {m.part for m in selected(["session"])} == {"session"}
    with pytest.raises(InputError, match="no-such"):
        selected(["no-such"])


def test_a_wrong_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the right model does not conform, a mutant's alarm would say nothing."""

    class Answer:
        value = record("emitter-fault"), CONSUMERS

    Answer.value[0]["verdict"]["explanation"] = "it is wrong"
    monkeypatch.setattr(mutation, "run_in_child", lambda *arguments, **named: Answer)
    with pytest.raises(InputError, match="without any fault"):
        mutation.run_mutants([MUTANT], 1, lambda line: None)


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["mutants", "--list", "rope"]) == 0
    out = capsys.readouterr().out
    # Whole ids, one on a line, however wide the terminal is: they are copied into the next command.
    assert [line.split()[0] for line in out.splitlines()] == [m.id for m in MUTANTS.values() if m.mechanism == "rope"]


def test_an_unknown_one_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["mutants", "no-such"], ["run", "tiny-llama", "--mutant", "no-such"]):
        assert cli.invoke(arguments) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "no-such" in err


def fake(trials: dict[str, Trial]) -> Callable[..., list[Trial]]:
    def run(mutants: Sequence[Any], jobs: int, report: Report, done: Callable[[Trial], None]) -> list[Trial]:
        found = [trials.get(m.id, dataclasses.replace(CAUGHT, mutant=m, anchor=m.anchor)) for m in mutants]
        for t in found:
            done(t)
        return found

    return run


def test_status_and_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(mutation, "run_mutants", fake({}))
    assert cli.invoke(["mutants", "norm-sum"]) == 0
    assert "1 mutants over 1 mechanisms: 1 caught" in capsys.readouterr().out
    survivor = dataclasses.replace(CAUGHT, verdict="conforms", anchor=None, place="elsewhere", detail="unseen")
    monkeypatch.setattr(mutation, "run_mutants", fake({"norm-sum": survivor}))
    assert cli.invoke(["mutants", "norm-sum"]) == 1
    out = capsys.readouterr().out
    assert "survived" in out
    assert "norm-sum survived: unseen" in out
    assert cli.invoke(["mutants", "norm-sum", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == ["norm-sum survived: unseen"]
    assert found["trials"][0]["expected"] == {"class": "emitter-fault", "anchor": "layers.0.input_layernorm"}


def test_through_whole_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """One of each part: emitter, reference, compiler, session; `nox -s mutants` runs them all."""
    ids = ["norm-sum", "oracle-act-relu", "iree-refuses-reverse", "session-caches-swapped"]
    assert cli.invoke(["mutants", *ids, "--jobs", "2", "--json"]) == 0
    found = {t["mutant"]: t for t in json.loads(capsys.readouterr().out)["trials"]}
    assert [found[id]["place"] for id in ids] == ["exact"] * 4
    assert found["norm-sum"]["operation"].startswith("stablehlo.rsqrt")
    assert found["iree-refuses-reverse"]["operation"].startswith("stablehlo.reverse")
