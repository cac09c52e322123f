"""Which configurations a run has, a lean one too, and which of them are asked at every position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evidence as by_hand
import pytest
from evidence import CONFIGURATIONS, STREAM, check, matrix_of
from models import model

from hloracle.conformance import run as module
from hloracle.conformance.evidence import LEAN_BUCKET, LEAN_CAPACITY, Evidence, Progress, Settings
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.run import run
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.verdict.verdict import decide


@pytest.fixture
def judged_cells(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A run in which nothing is computed: the configurations that it judges; `wrong` are found to be so, in this order.

    small: whether the model is. streamed: the configurations that are asked at every position, in order.
    """
    found: dict[str, Any] = {
        "cells": [], "streamed": [], "wrong": {}, "more": [], "buckets": None, "small": True,
    }  # fmt: skip

    def answer(configuration: Configuration, asked: Asked, *_: Any) -> Outcome:
        found["cells"].append(configuration.id)
        found["streamed"] += [configuration.id] * bool(asked.streams)
        return found["wrong"].get(configuration.id, by_hand.right)(
            by_hand.outcome(configuration, streams=asked.streams)
        )

    def truth(evidence: Evidence, *_: Any) -> None:
        evidence.truths = by_hand.TRUTHS
        evidence.asked = by_hand.asked()

    def suite(*_: Any, buckets: Any, only_fitting: bool, **__: Any) -> list[Any]:
        found["buckets"], found["only_fitting"] = tuple(buckets), only_fitting
        return []

    right = check("emitter.caches-in-place", "", "passed", "", "")
    for name, stand_in in {
        "open_checkpoint": lambda directory: model("plain").checkpoint,
        "resolve": lambda name, report, precision: Path(name),
        "refuse_non_finite": lambda checkpoint: None,
        "gates": lambda *_: True,
        "emit_all": lambda *_: [],
        "prepare": lambda *_: ({"emitter": [], "oracle": []}, 0),
        "static_checks": lambda *_: list(found["more"]),
        "probe": lambda evidence, *_: evidence.checks.append(check("emitter.probes", "", "passed", "", "")),
        "truth_and_modules": truth,
        "on_device": lambda evidence, settings: evidence.checks.append(right),
        "production": lambda graphs: None,
        "_cell": answer,
        "is_small": lambda config: found["small"],
        "look_inside": lambda *_: None,
        "conclude": lambda evidence, *_: decide(
            matrix_of(evidence.outcomes), evidence.checks, evidence.outcomes, evidence.truths
        ),
        "compare_speed": lambda *_: None,
        "show_graphs": lambda *_: None,
        "record_of": lambda settings, checkpoint, evidence, verdict, *_: {"class": verdict.class_},
    }.items():
        monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(module.prompt_suite, "suite", suite)
    return found


@pytest.mark.parametrize("lean", [False, True])
def test_every_cell_is_judged(lean: bool, judged_cells: dict[str, Any]) -> None:
    found = run(Settings("m", tokens=48, capacity=LEAN_CAPACITY, lean=lean))
    assert found == {"class": "conforms"}
    assert judged_cells["cells"] == [configuration.id for configuration in CONFIGURATIONS]
    assert judged_cells["only_fitting"] == lean
    assert (judged_cells["buckets"] == (LEAN_BUCKET,)) == lean


@pytest.mark.parametrize("configuration", [configuration.id for configuration in CONFIGURATIONS])
@pytest.mark.parametrize("wrong", [by_hand.WRONG_TOKEN, by_hand.failed("compile")])
def test_a_lean_run_in_which_a_cell_is_wrong(
    wrong: by_hand.Change, configuration: str, judged_cells: dict[str, Any]
) -> None:
    judged_cells["wrong"][configuration] = wrong
    found = run(Settings("m", tokens=48, capacity=LEAN_CAPACITY, lean=True))
    # The production graph alone is wrong: XLA says whose fault that is.
    more = ["emitter/xla-cpu/token"] if configuration == "emitter/iree-cpu/token" else []
    assert judged_cells["cells"] == [*(c.id for c in CONFIGURATIONS), *more]
    assert found["class"] not in ("conforms", "near-tie")


# ---- at every position


def asked_of(judged_cells: dict[str, Any], small: bool, **wrong: by_hand.Change) -> list[str]:
    judged_cells["small"] = small
    judged_cells["wrong"] |= wrong
    run(Settings("m", tokens=48, capacity=LEAN_CAPACITY))
    return list(judged_cells["streamed"])


def test_all_cells_of_a_small_model_stream(judged_cells: dict[str, Any]) -> None:
    assert asked_of(judged_cells, small=True) == [configuration.id for configuration in CONFIGURATIONS]


def test_of_a_larger_one_the_emitters_on_iree(judged_cells: dict[str, Any]) -> None:
    assert asked_of(judged_cells, small=False) == ["emitter/iree-cpu"]
    assert judged_cells["cells"] == [configuration.id for configuration in CONFIGURATIONS]


@pytest.mark.parametrize(
    "wrong", [by_hand.WRONG_POSITION, by_hand.on_stream(apart=99.0), by_hand.on_slots(STREAM.id, 0, "k_cache.0", 12)]
)
def test_what_only_a_stream_shows_every_other_cell_is_asked(
    wrong: by_hand.Change, judged_cells: dict[str, Any]
) -> None:
    """Each with logits, once more: graph or compiler, emitter or oracle."""
    others = ["oracle/iree-cpu", "emitter/xla-cpu", "oracle/xla-cpu"]
    assert asked_of(judged_cells, False, **{"emitter/iree-cpu": wrong}) == ["emitter/iree-cpu", *others]
    assert judged_cells["cells"] == [*(configuration.id for configuration in CONFIGURATIONS), *others]


@pytest.mark.parametrize(
    ("ids", "class_"),
    [
        (("emitter/iree-cpu",), "compiler-fault"),
        (("emitter/iree-cpu", "oracle/iree-cpu"), "compiler-fault"),
        (("emitter/iree-cpu", "emitter/xla-cpu"), "emitter-fault"),
        (("emitter/iree-cpu", "emitter/xla-cpu", "oracle/iree-cpu", "oracle/xla-cpu"), "reference-fault"),
    ],
)
def test_whose_fault_a_stream_shows(ids: tuple[str, ...], class_: str, judged_cells: dict[str, Any]) -> None:
    def wrong(found: Outcome) -> Outcome:
        return by_hand.WRONG_POSITION(found) if found.streams else found  # nothing is wrong where no prompt goes

    judged_cells["wrong"] = dict.fromkeys(ids, wrong)
    judged_cells["small"] = False
    assert run(Settings("m", tokens=48, capacity=LEAN_CAPACITY)) == {"class": class_}


@pytest.mark.parametrize("stage", ["compile", "memory", "timeout", "process"])
def test_a_cell_that_gave_nothing_is_not_asked_again(stage: str, judged_cells: dict[str, Any]) -> None:
    wrong = {"emitter/iree-cpu": by_hand.WRONG_POSITION, "oracle/xla-cpu": by_hand.failed(stage)}
    assert asked_of(judged_cells, False, **wrong) == ["emitter/iree-cpu", "oracle/iree-cpu", "emitter/xla-cpu"]


def test_a_cell_that_failed_is_no_reason_to_ask_the_others(judged_cells: dict[str, Any]) -> None:
    """It was not asked: it says nothing of positions."""
    wrong = {"emitter/iree-cpu": by_hand.failed("compile")}
    assert asked_of(judged_cells, False, **wrong) == ["emitter/iree-cpu"]


@pytest.mark.parametrize("small", [True, False])
def test_cells_that_are_judged_together(small: bool, judged_cells: dict[str, Any]) -> None:
    """A file's, all of them everywhere; those of a small model side by side."""
    judged_cells["small"] = small
    judged_cells["wrong"] = {"file/xla-cpu": by_hand.WRONG_POSITION}
    configurations = [Configuration("file", "iree-cpu"), Configuration("file", "xla-cpu")]
    evidence = Evidence(truths=by_hand.TRUTHS, asked=by_hand.asked())
    module.judge_together(configurations, evidence, model("plain").checkpoint, Settings("m"), Progress())
    assert [o.configuration for o in evidence.outcomes] == configurations
    assert sorted(judged_cells["streamed"]) == ["file/iree-cpu", "file/xla-cpu"]
    assert [c.id for c in evidence.checks if c.status != "passed"] == ["file/xla-cpu.streamed-logits"]
    assert len(evidence.checks) == 14


def test_what_else_is_known_of_a_cell_stays(judged_cells: dict[str, Any]) -> None:
    """What is read from a module on the way to the device, and what was seen inside: no cell's answer takes their place."""
    configuration = Configuration("emitter", "iree-cuda")
    others = [
        check(f"{configuration.id}.{name}", "", "failed", "", "") for name in ("arithmetic", "compiles", "anchors")
    ]
    truths, asked = by_hand.TRUTHS, by_hand.asked()
    evidence = Evidence(checks=list(others), truths=truths, asked=asked)
    for everywhere in (False, True):
        module.judge(configuration, evidence, model("plain").checkpoint, Settings("m"), Progress(), everywhere)
        assert evidence.checks[:3] == others
        assert len({c.id for c in evidence.checks}) == len(evidence.checks) > 3


def test_what_is_judged_again_takes_the_place_of_what_was(judged_cells: dict[str, Any]) -> None:
    """No check stands twice, and none of the first time is left."""
    kept: list[Evidence] = []

    def conclude(evidence: Evidence, *_: Any) -> Any:
        kept.append(evidence)
        return decide(matrix_of(evidence.outcomes), evidence.checks, evidence.outcomes, evidence.truths)

    judged_cells["small"] = False
    judged_cells["wrong"] = {"emitter/iree-cpu": by_hand.WRONG_POSITION}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "conclude", conclude)
        run(Settings("m", tokens=48, capacity=LEAN_CAPACITY))
    (evidence,) = kept
    ids = [check.id for check in evidence.checks]
    assert len(ids) == len(set(ids))
    assert sorted(o.configuration.id for o in evidence.outcomes) == sorted(
        configuration.id for configuration in CONFIGURATIONS
    )
    streaming = {o.configuration.id for o in evidence.outcomes if o.streams}
    assert streaming == {id.rpartition(".")[0] for id in ids if id.endswith(".streamed-logits")}
    assert streaming == {configuration.id for configuration in CONFIGURATIONS if configuration.head == "logits"}
