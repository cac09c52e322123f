"""A cell's outcome is taken from the cache as long as nothing that decides it has moved."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import TRUTHS, outcome

from hloracle.conformance import cells
from hloracle.conformance.cells import Cell, run_cell
from hloracle.conformance.prompts import Prompt
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, ChildResult
from hloracle.core.errors import InputError, ToolchainError
from hloracle.emitters.model import emit
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.fixtures import resolve
from hloracle.reference.registry import from_hf
from hloracle.reference.tiny import TINY, write_tiny

CELL = Cell("emitter", "xla-cpu")
PROMPTS = [Prompt("first", 32, "", None, (1, 2)), Prompt("second", 64, "", None, (3,))]
RIGHT = outcome(CELL).prompts


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> list[str]:
    """The cells that were run in a child process; what they find is right."""
    calls: list[str] = []

    def fake(function: Any, cell: Cell, *_: Any, **__: Any) -> ChildResult:
        calls.append(cell.id)
        return ChildResult(RIGHT, 2.0, 3)

    monkeypatch.setattr(cells, "run_in_child", fake)
    return calls


@pytest.fixture
def question(cache: Path) -> dict[str, Any]:
    return {
        "cell": CELL,
        "graphs": [emit(from_hf(TINY["llama"]), "decode", "logits", 64)],
        "checkpoint": open_checkpoint(resolve("tiny-llama")),
        "prompts": PROMPTS,
        "truths": TRUTHS,
        "threads": 2,
        "versions": {"jax": "1"},
        "reuse": True,
    }


def test_reused(children: list[str], question: dict[str, Any]) -> None:
    first, second = run_cell(**question), run_cell(**question)
    assert (first.status, second.status) == ("ran", "reused")
    assert first.prompts == second.prompts == RIGHT
    assert (first.seconds, first.peak_bytes) == (2.0, 3)
    assert children == [CELL.id]
    assert run_cell(**{**question, "reuse": False}).status == "ran"
    assert len(children) == 2


def other_truth(question: dict[str, Any]) -> dict[str, Any]:
    truth = TRUTHS["first@32"]
    return {"truths": {**TRUTHS, "first@32": dataclasses.replace(truth, exact=truth.exact + np.float32(1))}}


def other_graph(question: dict[str, Any]) -> dict[str, Any]:
    graph: Graph = question["graphs"][0]
    return {"graphs": [dataclasses.replace(graph, text=graph.text + " ")]}


@pytest.mark.parametrize(
    "change",
    [
        lambda q: {"cell": Cell("oracle", "xla-cpu")},
        lambda q: {"cell": Cell("emitter", "iree-cpu")},
        other_graph,
        lambda q: {"graphs": q["graphs"] * 2},
        lambda q: {"prompts": [PROMPTS[0], dataclasses.replace(PROMPTS[1], token_ids=(4,))]},
        lambda q: {"prompts": [PROMPTS[0]]},
        other_truth,
        lambda q: {"threads": 1},
        lambda q: {"versions": {"jax": "2"}},
        lambda q: {"streamed": ["first@32"]},
    ],
)
def test_moved(
    change: Callable[[dict[str, Any]], dict[str, Any]], children: list[str], question: dict[str, Any]
) -> None:
    run_cell(**question)
    assert run_cell(**{**question, **change(question)}).status == "ran"
    assert run_cell(**question).status == "reused"


def test_moved_with_the_weights(children: list[str], question: dict[str, Any], tmp_path: Path) -> None:
    run_cell(**question)
    other = open_checkpoint(write_tiny(tmp_path / "other", seed=1))
    assert run_cell(**{**question, "checkpoint": other}).status == "ran"


def test_moved_with_the_compiler(
    children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in (
        lambda: monkeypatch.setattr(cells.iree, "CPU_FLAGS", ("--iree-opt-level=O3",)),
        lambda: monkeypatch.setattr(cells.iree, "compiler_path", lambda: "/elsewhere/iree-compile"),
        lambda: monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"),
        lambda: monkeypatch.setattr(cells, "host_cpu", lambda: "another machine"),
        lambda: monkeypatch.setattr(cells, "backend_sources", lambda: [b"another session"]),
    ):
        run_cell(**question)
        change()
        assert run_cell(**question).status == "ran"


@pytest.mark.parametrize("damage", [lambda s: s[:-9], lambda s: "", lambda s: "[]", lambda s: '{"first@32": {"a": 1}}'])
def test_a_damaged_outcome_is_no_outcome(
    damage: Callable[[str], str], children: list[str], question: dict[str, Any], empty_cache: Path
) -> None:
    run_cell(**question)
    (path,) = (empty_cache / "cells").glob("*.json")
    path.write_text(damage(path.read_text()))
    assert run_cell(**question).status == "ran"
    assert json.loads(path.read_text()).keys() == TRUTHS.keys()


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (ToolchainError("compile", "no"), "compile"),
        (ToolchainError("load", "no"), "load"),
        (ChildDied("no"), "process"),
    ],
)
def test_failures_are_outcomes_and_not_kept(
    error: Exception, stage: str, children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(cells, "run_in_child", fails)
        found = run_cell(**question)
    assert (found.status, found.stage, found.prompts) == ("failed", stage, {})
    assert "no" in found.message
    assert run_cell(**question).status == "ran"


def test_bad_input_passes_through(question: dict[str, Any], monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise InputError("weight is missing", "here", "bring it")

    monkeypatch.setattr(cells, "run_in_child", fails)
    with pytest.raises(InputError):
        run_cell(**question)
