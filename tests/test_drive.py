"""Graphs that are called without a session: right ones are right, and whatever they return wrong is seen."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from small import BUCKET, CAPACITY, Spoil, Spoiled, asked, checkpoint, graphs, nothing

from hloracle.backends.session import Session
from hloracle.core.abi import Graph
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize import drive as module
from hloracle.localize.drive import drive
from hloracle.localize.situation import ReferenceRun

PHASES = ("prefill", "decode")
RESULTS = ("head", "k_cache", "v_cache")


def driven(
    spoil: Spoil = nothing, head: str = "logits", length: int = 5, phases: Sequence[str] = PHASES
) -> float:  # fmt: skip
    """Over a sequence of as many tokens as there are slots."""
    question = asked()
    (stream,) = question.streams
    truth = question.kept[stream.id]
    assert len(truth.tokens) == CAPACITY
    some = [g for g in graphs(head) if g.abi.phase in phases]
    return drive(some, Spoiled(spoil), ReferenceRun(truth, checkpoint().config, checkpoint().load, length, BUCKET))


@pytest.mark.parametrize("head", ["logits", "token"])
@pytest.mark.parametrize(
    ("length", "phases"),
    [(1, PHASES), (5, PHASES), (BUCKET, PHASES), (0, PHASES), (0, PHASES[1:]), (5, PHASES[1:]), (5, PHASES[:1])],
)
def test_right_graphs(length: int, phases: Sequence[str], head: str) -> None:
    """Given at once, token by token, or both."""
    assert 0 < driven(head=head, length=length, phases=phases) < ANCHOR_FLOORS


def only(phase: str, place: int, at: Any, value: float) -> Spoil:
    """One number of one result of a phase is off by a value."""

    def spoil(graph: Graph, i: int, result: np.ndarray) -> np.ndarray:
        if (graph.abi.phase, i) == (phase, place):
            result[at] += np.array(value).astype(result.dtype)
        return result

    return spoil


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("place", range(3), ids=RESULTS)
@pytest.mark.parametrize("value", [0.01, math.nan, math.inf])
def test_one_number_that_is_wrong(value: float, place: int, phase: str) -> None:
    found = driven(only(phase, place, (256,) if place == 0 else (2, 1, 0, 15), value))
    assert not found <= ANCHOR_FLOORS
    assert math.isfinite(found) == math.isfinite(value)


@pytest.mark.parametrize("phase", PHASES)
def test_another_token(phase: str) -> None:
    assert driven(only(phase, 0, ..., 1), head="token") == math.inf


def test_what_is_not_filled_is_not_looked_at() -> None:
    """A prefill's padding; and behind a prompt that is all there is."""
    assert driven(only("prefill", 1, (0, 0, 5), 7.0), phases=PHASES[:1]) < ANCHOR_FLOORS
    assert driven(only("prefill", 1, (0, 0, 4), 7.0), phases=PHASES[:1]) > ANCHOR_FLOORS
    # A step writes over it.
    assert driven(only("prefill", 1, (0, 0, 5), 7.0)) < ANCHOR_FLOORS


def test_it_needs_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what a session does wrong it does not, and the two share no code that could be wrong in both."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a session was used")

    for name, method in inspect.getmembers(Session, inspect.isfunction):
        monkeypatch.setattr(Session, name, refuse)
        assert method is not refuse
    assert driven() < ANCHOR_FLOORS
    used = {name for name, of in vars(module).items() if getattr(of, "__module__", "") == Session.__module__}
    assert used == {"Backend"}, "a protocol, without any code"


def test_each_weight_is_asked_for_by_its_name() -> None:
    names: list[str] = []

    def weight(name: str) -> np.ndarray:
        names.append(name)
        return checkpoint().load(name)

    question = asked()
    truth = question.kept[question.streams[0].id]
    drive(graphs(), Spoiled(nothing), ReferenceRun(truth, checkpoint().config, weight, 5, BUCKET))
    assert set(names) == {w.name for w in graphs()[0].abi.weights}

    def swapped(name: str) -> np.ndarray:
        return checkpoint().load(name.replace("layers.0.input_layernorm", "layers.1.input_layernorm"))

    assert (
        drive(graphs(), Spoiled(nothing), ReferenceRun(truth, checkpoint().config, swapped, 5, BUCKET)) > ANCHOR_FLOORS
    )
