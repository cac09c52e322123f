"""Whatever a run observes can fail it: every check, every field of what a configuration found, and every result of a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import evidence as by_hand
import numpy as np
import pytest
import small
from evidence import CONFIGURATIONS, STREAM, TRUTHS

from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_configurations import configuration_checks, truth_check
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.runs.beside import Rows
from hloracle.conformance.runs.configurations import Outcome, PromptOutcome
from hloracle.conformance.runs.returned import Slots, Streamed
from hloracle.conformance.verdict.verdict import PASSING, decide
from hloracle.core.abi import Graph

# ---- every check of a whole run


@pytest.fixture
def whole(small_record: dict[str, Any]) -> list[Check]:
    """The checks of a right run of everything."""
    return [Check(**{key: value for key, value in check.items() if key != "id"}) for check in small_record["checks"]]


def class_of(checks: list[Check], outcomes: Sequence[Outcome] = ()) -> str:
    configurations = outcomes or [by_hand.outcome(configuration, streams=[STREAM]) for configuration in CONFIGURATIONS]
    return decide(by_hand.MATRIX, checks, configurations, TRUTHS).class_


def test_a_right_run_passes(whole: list[Check], small_record: dict[str, Any]) -> None:
    assert class_of(whole) == small_record["verdict"]["class"] == "conforms"
    assert [c["id"] for c in small_record["configurations"]] == [configuration.id for configuration in CONFIGURATIONS]
    assert len(whole) > 70


@pytest.mark.parametrize("status", ["failed", "error"])
def test_every_check_counts(status: str, whole: list[Check]) -> None:
    """Whichever it is, alone: one that no verdict asks about would not be noticed."""
    unnoticed = []
    for i, check in enumerate(whole):
        other = dataclasses.replace(check, status=status)
        if class_of([*whole[:i], other, *whole[i + 1 :]]) in PASSING:
            unnoticed.append(check.id)
    assert unnoticed == []


@pytest.mark.parametrize("name", ["tokens", "caches", "repeats"])
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: c.id)
def test_what_a_pass_needs_of_each_cell(configuration: Configuration, name: str, whole: list[Check]) -> None:
    id = f"{configuration.id}.{name}"
    (check,) = (c for c in whole if c.id == id)
    others = [c for c in whole if c.id != id]
    assert class_of(others) == "harness-error"
    assert class_of([*others, dataclasses.replace(check, status="skipped")]) == "harness-error"


def test_every_cell_needs_every_prompt(whole: list[Check]) -> None:
    for configuration in CONFIGURATIONS:
        for id in TRUTHS:
            right = by_hand.outcome(configuration)
            fewer = dataclasses.replace(right, prompts={k: v for k, v in right.prompts.items() if k != id})
            configurations = [fewer if c == configuration else by_hand.outcome(c) for c in CONFIGURATIONS]
            assert class_of(whole, configurations) == "harness-error", (configuration.id, id)


# ---- every field of what a configuration found

Spoiled = Iterator[tuple[str, Any]]
# What decides nothing, with the reason. `[]` stands for any place in a list, `{}` for any key.
UNJUDGED = {
    ".seconds": "how long it took",
    ".peak_bytes": "how much it took",
    ".programs emptied": "what the compiler made, and not what came of it",
    ".decodes": "what graphs its source has, and not what came of them",
    ".message": "the words of a failure, and this configuration did not fail",
    ".stage": "where a failure was, and this configuration did not fail",
    ".status": "`ran` or `reused`; a failure is tried below",
    ".streams_reused": "as `.status`: when it ran, and not what came of it",
    ".prompts{}.seconds": "how long it took",
    # Of each layer: the largest error decides, and where it is only says more.
    ".prompts{}.slots[].worst{}[1]": "the slot that is furthest off",
    ".streams{}.slots.worst{}[1]": "the slot that is furthest off",
    ".streams{}.prefilled_slots.worst{}[1]": "the slot that is furthest off",
    ".repeated[1]": "how far apart two calls are that differ: whether they do is judged, bit for bit",
}


def spoilt(value: Any, at: str = "") -> Spoiled:
    """Every way to spoil a value or a part of it: where, and the whole with that."""
    whole: Any = value
    if dataclasses.is_dataclass(value) and not isinstance(value, Configuration):
        for field in dataclasses.fields(value):
            for where, other in spoilt(getattr(value, field.name), f"{at}.{field.name}"):
                yield where, dataclasses.replace(whole, **{field.name: other})
        if at.endswith("slots"):  # of a stream, where a configuration may have none
            yield f"{at} gone", None
    elif isinstance(value, dict):
        yield f"{at} emptied", {}
        for key, one in value.items():
            yield f"{at} without one", {k: v for k, v in value.items() if k != key}
            for where, other in spoilt(one, f"{at}{{}}"):
                yield where, {**value, key: other}
    elif isinstance(value, list | tuple):
        kind = type(value)
        # A tuple of things of one kind is a list; of others it has fixed places.
        fixed = isinstance(value, tuple) and len({type(v) for v in value}) > 1
        if not fixed and value:
            yield f"{at} emptied", kind()
            yield f"{at} without the last", value[:-1]
        for i, one in enumerate(value):
            for where, other in spoilt(one, f"{at}[{i if fixed else ''}]"):
                yield where, kind([*value[:i], other, *value[i + 1 :]])
    elif isinstance(value, bool):
        yield at, not value
    elif isinstance(value, float):
        for number in (float("nan"), float("inf"), 1e6):
            yield at, number
    elif isinstance(value, int):
        for number in (value + 3, -1, 2**31 - 1):
            yield at, number
    elif isinstance(value, str):
        yield at, "something"
    elif value is None:
        yield at, 0
    if at in (".repeated", ".rows", ".streams{}.apart"):
        yield f"{at} gone", None


def of_rows(configuration: Configuration) -> Outcome:
    """A right one, of graphs with two rows."""
    rows = Rows({id: list(t.tokens) for id, t in TRUTHS.items()}, "")
    return dataclasses.replace(by_hand.outcome(configuration, streams=[STREAM]), rows=rows)


def passes(outcome: Outcome) -> bool:
    checks, outcomes = by_hand.gathered()
    others = [o for o in outcomes if o.configuration != outcome.configuration]
    kept = [c for c in checks if not c.id.startswith(f"{outcome.configuration.id}.")]
    found = configuration_checks(outcome, TRUTHS, [STREAM], batch=2)
    return decide(by_hand.MATRIX, [*kept, *found], [*others, outcome], TRUTHS).passed


@pytest.mark.parametrize("configuration", [CONFIGURATIONS[0], CONFIGURATIONS[1]], ids=lambda c: c.id)
def test_every_field_counts(configuration: Configuration) -> None:
    right = of_rows(configuration)
    assert passes(right)
    noticed: set[str] = set()
    unnoticed: set[str] = set()
    for where, other in spoilt(right):
        (unnoticed if passes(other) else noticed).add(where)
    allowed = {where for where in UNJUDGED if where in noticed | unnoticed}
    assert unnoticed - allowed == set()
    assert allowed - unnoticed == set(), "these are judged, and listed as if they were not"
    assert set(UNJUDGED) - allowed == set(), "these are not there"


def test_every_field_was_tried() -> None:
    """By the names of the fields: one that is new, and that no case here reaches, is seen at once."""
    tried = {where.partition(" ")[0] for where, _ in spoilt(of_rows(CONFIGURATIONS[1]))}
    for type, prefix in (
        (Outcome, ""), (PromptOutcome, ".prompts{}"), (Streamed, ".streams{}"), (Slots, ".prompts{}.slots[]"),
        (Slots, ".streams{}.slots"), (Slots, ".streams{}.prefilled_slots"), (Rows, ".rows"),
    ):  # fmt: skip
        for field in dataclasses.fields(type):
            # Spreads are of what computes in less than float32: see test_narrow_checks.py.
            if field.name not in ("configuration", "spreads"):
                place = f"{prefix}.{field.name}"
                assert any(where.startswith(place) for where in tried), place


@pytest.mark.parametrize("stage", ["compile", "load", "run", "memory", "timeout", "process", ""])
def test_a_cell_that_failed_does_not_pass_whatever_it_holds(stage: str) -> None:
    right = of_rows(CONFIGURATIONS[0])
    assert not passes(dataclasses.replace(right, status="failed", stage=stage))


@pytest.mark.parametrize("field", ["tokens", "logits", "exact", "caches"])
def test_every_part_of_the_truth_counts(field: str) -> None:
    """By itself it is held to what float32 can do; `nudged` only widens a floor, up to what is refused."""
    right = TRUTHS["first@32"]
    wrong = {
        "tokens": dataclasses.replace(right, tokens=[3, 2, 4]),
        "logits": dataclasses.replace(right, logits=right.logits * 2),
        "exact": dataclasses.replace(right, exact=right.exact * 2),
        "caches": dataclasses.replace(right, caches=1.0),
    }[field]
    assert truth_check({**TRUTHS, "first@32": right}).status == "passed"
    assert truth_check({**TRUTHS, "first@32": wrong}).status == "failed"
    assert truth_check({**TRUTHS, "first@32": dataclasses.replace(right, nudged=1.0)}).status == "failed"


# ---- every result of every graph

SPOILS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "scaled": lambda r: r * np.float32(1 + 2.0**-10) if r.dtype == np.float32 else r * 2,
    "zeroed": np.zeros_like,
    "shifted": lambda r: np.roll(r, 1, axis=r.ndim - 2) if r.ndim > 1 else np.roll(r, 1) if r.ndim else r + 1,
    "NaN": lambda r: np.full_like(r, np.nan if r.dtype == np.float32 else -1),
}
RESULTS = ("head", "k_cache", "v_cache")


def judged(spoil: small.Spoil, head: str) -> dict[str, str]:
    found = small.judged(small.answered(spoil, head))
    return {id: c.status for id, c in found.items() if c.status != "passed"}


@pytest.mark.parametrize("head", ["logits", "token"])
def test_right_results_pass(head: str) -> None:
    assert judged(small.nothing, head) == {}


@pytest.mark.parametrize("head", ["logits", "token"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("place", range(3), ids=RESULTS)
@pytest.mark.parametrize("how", SPOILS)
def test_every_result_counts(how: str, place: int, phase: str, head: str) -> None:
    def spoil(graph: Graph, i: int, result: np.ndarray) -> np.ndarray:
        return SPOILS[how](result) if (graph.abi.phase, i) == (phase, place) else result

    found = judged(spoil, head)
    assert found, "nothing was noticed"
    if place:
        assert "caches" in found
    else:
        assert set(found) & {"tokens", "prefill-logits", "decode-logits", "streamed-logits"}


@pytest.mark.parametrize("head", ["logits", "token"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("place", [1, 2], ids=RESULTS[1:])
def test_every_layer_and_head_of_a_cache_counts(place: int, phase: str, head: str) -> None:
    """One number of it, in a slot that is filled."""
    layers, heads, _, width = small.graphs(head)[0].abi.results[place].shape
    for layer in range(layers):
        for kv in range(heads):

            def spoil(graph: Graph, i: int, result: np.ndarray, at: tuple[int, int] = (layer, kv)) -> np.ndarray:
                if (graph.abi.phase, i) == (phase, place):
                    result[at][0, width - 1] += 0.01
                return result

            assert "caches" in judged(spoil, head), (layer, kv)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_every_logit_counts(phase: str) -> None:
    """Of a right token's too little to choose another."""
    vocabulary = small.checkpoint().config.vocab_size
    for token in (0, 100, vocabulary - 1):

        def spoil(graph: Graph, i: int, result: np.ndarray, token: int = token) -> np.ndarray:
            if (graph.abi.phase, i) == (phase, 0):
                result[token] += 1e-3
            return result

        found = judged(spoil, "logits")
        assert "tokens" not in found
        assert {f"{phase}-logits", "streamed-logits"} <= set(found)
