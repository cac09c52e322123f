"""A lean run, for one of many models: which cells it has, and which of them streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evidence as by_hand
import pytest
from models import model

from hloracle.backends.devices import CPU
from hloracle.conformance import run as module
from hloracle.conformance.cells import Cell
from hloracle.conformance.checks import Check, cell_checks
from hloracle.conformance.evidence import LEAN_BUCKET, LEAN_CAPACITY, Evidence, Settings
from hloracle.conformance.prompts import Prompt
from hloracle.conformance.run import _streamed, cells_on, run
from hloracle.conformance.verdict import decide
from hloracle.reference.registry import from_hf
from hloracle.reference.tiny import TINY

CELLS = cells_on(CPU)


@pytest.fixture
def judged_cells(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A run in which nothing is computed: the cells that it judges; `wrong` are found to be so, in this order."""
    found: dict[str, Any] = {"cells": [], "wrong": {}, "more": [], "buckets": None}

    def judge(cell: Cell, evidence: Evidence, *_: Any) -> None:
        found["cells"].append(cell.id)
        outcome = found["wrong"].get(cell.id, lambda right: right)(by_hand.outcome(cell))
        evidence.outcomes.append(outcome)
        evidence.checks += cell_checks(outcome, evidence.truths)

    def truth(evidence: Evidence, *_: Any) -> None:
        evidence.truths = by_hand.TRUTHS

    def suite(*_: Any, buckets: Any, only_fitting: bool, **__: Any) -> list[Any]:
        found["buckets"], found["only_fitting"] = tuple(buckets), only_fitting
        return []

    right = Check("emitter.caches-in-place", "", "passed", "", "")
    for name, stand_in in {
        "open_checkpoint": lambda directory: model("plain").checkpoint,
        "resolve": lambda name, report, precision: Path(name),
        "refuse_non_finite": lambda checkpoint: None,
        "gates": lambda *_: True,
        "emit_all": lambda *_: [],
        "prepare": lambda *_: ({"emitter": [], "oracle": []}, 0),
        "static_checks": lambda *_: list(found["more"]),
        "probes": lambda *_: (Check("emitter.probes", "", "passed", "", ""), False),
        "truth_and_modules": truth,
        "on_device": lambda evidence, settings: evidence.checks.append(right),
        "production": lambda graphs: None,
        "_judge": judge,
        "look_inside": lambda *_: None,
        "conclude": lambda evidence, *_: decide(evidence.checks, evidence.outcomes, evidence.truths),
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
    assert judged_cells["cells"] == [cell.id for cell in CELLS]
    assert judged_cells["only_fitting"] == lean
    assert (judged_cells["buckets"] == (LEAN_BUCKET,)) == lean


@pytest.mark.parametrize("cell", [cell.id for cell in CELLS])
@pytest.mark.parametrize("wrong", [by_hand.WRONG_TOKEN, by_hand.failed("compile")])
def test_a_lean_run_in_which_a_cell_is_wrong(wrong: by_hand.Change, cell: str, judged_cells: dict[str, Any]) -> None:
    judged_cells["wrong"][cell] = wrong
    found = run(Settings("m", tokens=48, capacity=LEAN_CAPACITY, lean=True))
    # The production graph alone is wrong: XLA says whose fault that is.
    more = ["emitter/xla-cpu/token"] if cell == "emitter/iree-cpu/token" else []
    assert judged_cells["cells"] == [*(c.id for c in CELLS), *more]
    assert found["class"] not in ("conforms", "near-tie")


OF_LENGTH = [Prompt(f"n{n}", 64, "", None, (1,) * n) for n in (1, 39, 40, 41)]


def test_which_cell_streams_which_prompts() -> None:
    """None beyond RoPE's turning point, where streaming turns by other angles."""
    evidence, streaming = Evidence(prompts=OF_LENGTH), Cell("emitter", "iree-cpu")
    for family, expected in (("llama", ["n1", "n39", "n40", "n41"]), ("seed_oss", ["n1", "n39", "n40"])):
        config = from_hf(TINY[family])
        ids = [p.id.partition("@")[0] for p in OF_LENGTH if p.id in _streamed(streaming, evidence, config)]
        assert ids == expected
        assert not any(_streamed(c, evidence, config) for c in CELLS if c != streaming)
