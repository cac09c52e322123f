"""The outcome of a configuration is taken from the cache as long as nothing that decides it has moved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import STREAM, TRUTHS, asked, not_repeated, on_slots, on_stream, outcome

from hloracle.backends.custom_calls import Target
from hloracle.conformance import context
from hloracle.conformance.context import Context
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs import configurations
from hloracle.conformance.runs.configurations import run_configuration
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, ChildResult, TimedOut
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.emitters.model import emit
from hloracle.mutants import MUTANTS
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.registry import from_hf

ONE = Configuration("emitter", "xla-cpu")
RIGHT = outcome(ONE, streams=[STREAM])
ASKED = dataclasses.replace(
    asked(), kept={id: AnchorTruth((1, 2), Path(id), False) for id in (*TRUTHS, STREAM.id)}
)  # fmt: skip


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> list[str]:
    """The configurations that were run in a child process; what they find is right."""
    calls: list[str] = []

    def fake(function: Any, configuration: Configuration, *_: Any, **__: Any) -> ChildResult:
        calls.append(configuration.id)
        return ChildResult(dataclasses.replace(RIGHT, configuration=configuration), 2.0, 3)

    monkeypatch.setattr(context, "run_in_child", fake)
    return calls


@pytest.fixture
def question(cache: Path) -> dict[str, Any]:
    return {
        "configuration": ONE,
        "graphs": [emit(from_hf(TINY["llama"]), "decode", "logits", 64)],
        "model": open_checkpoint(resolve("tiny-llama")),
        "asked": ASKED,
        "context": Context(threads=2),
    }


def test_reused(children: list[str], question: dict[str, Any]) -> None:
    first, second = run_configuration(**question), run_configuration(**question)
    assert (first.status, second.status) == ("ran", "reused")
    for found in (first, second):
        assert (found.prompts, found.streams, found.repeated) == (RIGHT.prompts, RIGHT.streams, RIGHT.repeated)
    assert (first.seconds, first.peak_bytes) == (2.0, 3)
    assert children == [ONE.id]
    assert run_configuration(**{**question, "context": Context(threads=2, reuse=False)}).status == "ran"
    assert len(children) == 2


def test_anew_but_for_its_streams(
    children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not run_configuration(**question, anew=True).streams_reused
    asked_for: list[Any] = []

    def fake(*arguments: Any, **_: Any) -> ChildResult:
        asked_for.extend(argument for argument in arguments if isinstance(argument, Asked))
        return ChildResult(dataclasses.replace(on_slots(stayed="slot 3 changed")(RIGHT), streams={}), 2.0, 3)

    monkeypatch.setattr(context, "run_in_child", fake)
    again = run_configuration(**question, anew=True)
    assert asked_for == [ASKED.without_streams()]
    assert (again.status, again.streams_reused, again.streams) == ("ran", True, RIGHT.streams)
    assert again.prompts != RIGHT.prompts
    assert run_configuration(**question).prompts == RIGHT.prompts, "what was kept at first is kept whole"
    # Whatever it is that a fresh run asks, all of it runs.
    assert not run_configuration(**{**question, "context": Context(threads=2, reuse=False)}, anew=True).streams_reused
    assert asked_for[1:] == [ASKED]


def test_prompts_that_were_answered_in_this_run(
    children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not asked again once the streams are; and what is kept has both."""
    first = run_configuration(**{**question, "asked": ASKED.without_streams()})
    asked_for: list[Any] = []

    def fake(*arguments: Any, **_: Any) -> ChildResult:
        asked_for.extend(argument for argument in arguments if isinstance(argument, Asked))
        return ChildResult(dataclasses.replace(RIGHT, prompts={}, repeated=None), 5.0, 2)

    monkeypatch.setattr(context, "run_in_child", fake)
    found = run_configuration(**question, so_far=first)
    assert asked_for == [ASKED.without_prompts()]
    assert (found.prompts, found.repeated, found.streams) == (RIGHT.prompts, RIGHT.repeated, RIGHT.streams)
    assert (found.status, found.seconds, found.peak_bytes) == ("ran", 7.0, 3)
    assert dataclasses.replace(run_configuration(**question), status="ran") == found


@pytest.mark.parametrize(
    "change",
    [
        on_slots(call=1, anchor="k_cache.1", slot=9, error=float("inf")),
        on_slots(stayed="slot 3 of v_cache.0 changed"),
        on_stream(heads=[float("inf"), 0.1], slots=None, prefilled_slots=None, apart=None),
        not_repeated(float("inf")),
    ],
)
def test_what_is_reused_is_what_came_of_it(
    change: Any, children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = change(RIGHT)
    monkeypatch.setattr(context, "run_in_child", lambda *_, **__: ChildResult(found, 2.0, 3))
    first, second = run_configuration(**question), run_configuration(**question)
    assert (first.status, second.status) == ("ran", "reused")
    assert dataclasses.replace(second, status="ran", seconds=2.0, peak_bytes=3) == first


def other_truth(question: dict[str, Any]) -> dict[str, Any]:
    truth = TRUTHS["first@32"]
    truths = {**TRUTHS, "first@32": dataclasses.replace(truth, exact=truth.exact + np.float32(1))}
    return {"asked": dataclasses.replace(ASKED, truths=truths)}


def other(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Another question, with these fields of the one that is asked replaced."""
    return lambda _: {"asked": dataclasses.replace(ASKED, **fields)}


def other_graph(question: dict[str, Any]) -> dict[str, Any]:
    graph: Graph = question["graphs"][0]
    return {"graphs": [dataclasses.replace(graph, text=graph.text + " ")]}


@pytest.mark.parametrize(
    "change",
    [
        lambda q: {"configuration": Configuration("oracle", "xla-cpu")},
        lambda q: {"configuration": Configuration("emitter", "iree-cpu")},
        other_graph,
        lambda q: {"graphs": q["graphs"] * 2},
        other(prompts=[ASKED.prompts[0], dataclasses.replace(ASKED.prompts[1], token_ids=(4,))]),
        other(prompts=ASKED.prompts[:1]),
        other(streams=[]),
        other(streams=[dataclasses.replace(STREAM, tokens=STREAM.tokens[1:])]),
        other(streams=[dataclasses.replace(STREAM, lengths=(1,))]),
        other(streams=[dataclasses.replace(STREAM, every_step=False)]),
        other(kept=ASKED.kept | {STREAM.id: AnchorTruth((1, 2), Path("another"), False)}),
        other_truth,
        lambda q: {"context": Context(threads=1)},
        lambda q: {"context": Context(threads=2, targets=(Target("my_gemm", Path("libgemm.so"), "00"),))},
    ],
)
def test_moved(
    change: Callable[[dict[str, Any]], dict[str, Any]], children: list[str], question: dict[str, Any]
) -> None:
    run_configuration(**question)
    assert run_configuration(**{**question, **change(question)}).status == "ran"
    assert run_configuration(**question).status == "reused"


def test_moved_with_the_weights(children: list[str], question: dict[str, Any], tmp_path: Path) -> None:
    run_configuration(**question)
    other = open_checkpoint(write_tiny(tmp_path / "other", seed=1))
    assert run_configuration(**{**question, "model": other}).status == "ran"


def test_moved_with_the_compiler(
    children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in (
        lambda: monkeypatch.setattr(configurations.iree, "CPU_FLAGS", ("--iree-opt-level=O3",)),
        lambda: monkeypatch.setattr(configurations.iree, "compiler_path", lambda: "/elsewhere/iree-compile"),
        lambda: monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"),
        lambda: monkeypatch.setattr(context, "versions", lambda names: {"jax": "2"}),
        lambda: monkeypatch.setattr(configurations, "host_cpu", lambda: "another machine"),
        lambda: monkeypatch.setattr(configurations, "backend_sources", lambda: [b"another session"]),
        lambda: monkeypatch.setattr(configurations, "_comparing", lambda: [b"another limit"]),
    ):
        run_configuration(**question)
        change()
        assert run_configuration(**question).status == "ran"


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s[:-9],
        lambda s: "",
        lambda s: "[]",
        lambda s: '{"prompts": {"first@32": {"a": 1}}}',
        lambda s: s.replace('"worst"', '"best"'),
        lambda s: s.replace('"apart"', '"a part"'),
        lambda s: s.replace('"repeated": [true, 0.0]', '"repeated": null'),
    ],
)
def test_a_damaged_outcome_is_no_outcome(
    damage: Callable[[str], str], children: list[str], question: dict[str, Any], empty_cache: Path
) -> None:
    run_configuration(**question)
    (path,) = (empty_cache / "configurations").glob("*.json")
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    assert run_configuration(**question).status == "ran"
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (ToolchainError("compile", "no"), "compile"),
        (ToolchainError("load", "no"), "load"),
        (OutOfMemory("no"), "memory"),
        (ChildDied("no"), "process"),
        (ChildDied("no", "crash"), "process"),
        (ChildDied("no", "memory"), "memory"),
        (TimedOut("after long"), "timeout"),
    ],
)
def test_failures_are_outcomes_and_not_kept(
    error: Exception, stage: str, children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(context, "run_in_child", fails)
        found = run_configuration(**question)
    assert (found.status, found.stage, found.prompts, found.repeated) == ("failed", stage, {}, None)
    assert ("1800 s" if stage == "timeout" else "no") in found.message
    assert run_configuration(**question).status == "ran"


def test_bad_input_passes_through(question: dict[str, Any], monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise InputError("weight is missing", "here", "bring it")

    monkeypatch.setattr(context, "run_in_child", fails)
    with pytest.raises(InputError):
        run_configuration(**question)


@pytest.mark.parametrize("part", ["emitter", "reference", "compiler", "device", "session"])
def test_what_a_fault_made_is_neither_kept_nor_taken(
    part: str, children: list[str], question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emitter's fault is in its graphs, by whose text an outcome is known."""
    fault = next(m for m in MUTANTS.values() if m.part == part)
    faulty = {**question, "context": Context(threads=2, fault=fault)}
    statuses = [run_configuration(**asked).status for asked in (faulty, question, faulty)]
    assert statuses == (["ran", "reused", "reused"] if part == "emitter" else ["ran", "ran", "ran"])
