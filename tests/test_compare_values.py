"""Base against head: logits, anchors and floors."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from edits import (
    EMITTED,
    Edit,
    both,
    classed,
    drop_check,
    floor,
    found,
    logit_error,
    pair,
    setting,
    with_checks,
)
from test_reports_sample import (
    failing_sample,
    sample,
)

from hloracle.reports.compare.comparison import compare
from hloracle.reports.facts import Record
from hloracle.reports.record import validate

# ---- logits and anchors


@pytest.mark.parametrize("share", [1.01, 400.0, "NaN", "Infinity"])
def test_logits_over_their_limit(share: Any) -> None:
    comparison = pair(logit_error(share))
    assert found(comparison) == [("logits", "regression")]
    base, head = sample(), sample()
    logit_error(share)(base)
    assert found(compare(base, head)) == [("logits", "better")]


def test_logits_that_come_nearer() -> None:
    assert found(pair(logit_error(0.7))) == []  # not twice as near: it was 0.414
    assert found(pair(logit_error(0.95))) == [("logits", "worse")]
    base, head = sample(), sample()
    for prompt in base["tokens"]:
        logit_error(0.1, prompt)(base)
        logit_error(0.3, prompt)(head)
    assert compare(base, head).changes == ()  # most of the room is left


def test_logits_that_are_no_longer_compared() -> None:
    def edit(record: Record) -> None:
        for entry in record["tokens"].values():
            entry["cells"][EMITTED] |= dict.fromkeys(("logit_error", "logit_floor", "logit_limit"))

    (change,) = pair(edit).changes
    assert (change.kind, change.severity, change.after) == ("logits", "regression", "none")


def test_logits_that_are_compared_on_fewer_prompts() -> None:
    def edit(record: Record) -> None:
        for entry in list(record["tokens"].values())[1:]:
            entry["cells"][EMITTED] |= dict.fromkeys(("logit_error", "logit_floor", "logit_limit"))

    (change,) = pair(edit).changes
    assert (change.kind, change.severity, change.before, change.after) == (
        "logits",
        "regression",
        "6 prompts",
        "1 prompt",
    )
    words = "are no longer compared on chat@256, one-token@32, long@128 and 2 more"
    assert change.words == f"the logits of {EMITTED} {words}"


def test_new_failures_beside_an_old_one() -> None:
    base, head = sample(), sample()
    logit_error(1.1)(base)
    both(*(logit_error(400.0, prompt) for prompt in head["tokens"]))(head)
    (change,) = [change for change in compare(base, head).changes if change.kind == "logits"]
    assert (change.severity, change.words) == ("regression", f"more of the logits of {EMITTED} are over their limit")
    assert change.detail.startswith("5 that were within, the worst: ")
    assert change.detail.endswith("; 6 of 6 are over")
    logit_error(400.0)(one := sample())
    assert found(compare(base, one)) == []  # no other


def anchor_error(size: Any, anchor: str = "layers.3.mlp.act") -> Edit:
    def edit(record: Record) -> None:
        matrix = record["anchors"][0]
        matrix["errors"][matrix["anchors"].index(anchor)][4] = size
        if isinstance(size, str) or size > 8:
            classed("emitter-fault")(record)

    return edit


@pytest.mark.parametrize("size", [8.1, 1e9, "NaN", "Infinity"])
def test_an_anchor_over_its_limit(size: Any) -> None:
    comparison = pair(anchor_error(size))
    (change,) = comparison.changes
    assert (change.kind, change.severity) == ("anchors", "regression")
    assert change.detail.startswith("the worst: layers.3.mlp.act, chat@64 at position 4")


def test_anchors_that_are_no_longer_compared() -> None:
    (change,) = pair(lambda record: record.update(anchors=[])).changes
    assert (change.kind, change.severity) == ("anchors", "regression")
    assert change.words == "the anchors of emitter/iree-cpu are no longer compared"

    def one(record: Record) -> None:
        record["anchors"][0]["errors"][7] = [None] * 10

    (change,) = pair(one).changes
    assert change.words == "k_cache.0 of emitter/iree-cpu is no longer compared in prefill on chat@64"


def test_anchors_of_one_prompt_that_are_no_longer_compared() -> None:
    base, head = sample(), sample()
    for record in (base, head):
        record["anchors"] += [matrix | {"prompt": "long@128"} for matrix in copy.deepcopy(record["anchors"])]
    assert compare(base, head).changes == ()
    matrices = head["anchors"]
    head["anchors"] = matrices[:2]
    (change,) = compare(base, head).changes
    words = (
        f"{len(matrices[0]['anchors'])} anchors of {EMITTED} are no longer compared in prefill and decode on long@128"
    )
    assert (change.severity, change.words) == ("regression", words)
    # A prompt that is gone says it all.
    del head["prompts"][3], head["tokens"]["long@128"]
    assert found(compare(base, head)) == [("prompt", "regression")]


def test_anchors_that_are_compared_at_fewer_positions() -> None:
    def edit(record: Record) -> None:
        matrix = record["anchors"][1]
        matrix["errors"] = [row[:1] for row in matrix["errors"]]
        matrix["positions"] = matrix["positions"][:1]

    (change,) = pair(edit, valid=True).changes
    assert (change.kind, change.severity, change.lost) == ("anchors", "regression", "part")
    assert change.words.endswith(f"anchors of {EMITTED} are compared at fewer positions in decode on chat@64")
    assert (change.before, change.after) == ("10 positions", "1 position")
    assert found(pair(both(edit, setting("tokens", 8)))) == [("settings", "regression")]


def test_what_a_localization_compared_is_not_missed() -> None:
    """A run that is wrong is taken apart, and compares more than one that conforms."""
    comparison = compare(failing_sample(), sample())
    assert not comparison.of("regression", "worse")
    assert {c.subject for c in comparison.of("note") if c.kind == "anchors"} == {"emitter/xla-cpu", "oracle/iree-cpu"}


def test_a_check_of_anchors_that_is_gone_with_them() -> None:
    base, head = sample(), sample()
    base["checks"].append(base["checks"][2] | {"id": f"{EMITTED}.anchors"})
    head["anchors"] = []
    (change,) = compare(base, head).changes
    assert (change.kind, change.also) == ("anchors", ("the check “emitter/iree-cpu.anchors” is gone",))


def test_a_check_that_is_gone_is_no_part_of_what_some_lost() -> None:
    def one_anchor(record: Record) -> None:
        record["anchors"][0]["errors"][7] = [None] * 10

    def one_cell(record: Record) -> None:
        del record["tokens"]["chat@64"]["cells"][EMITTED]
        record["tokens"]["chat@64"]["agreed"] = 0

    for edit, check in ((one_anchor, f"{EMITTED}.anchors"), (one_cell, f"{EMITTED}.tokens")):
        base, head = with_checks(sample()), with_checks(sample())
        both(edit, drop_check(check))(head)
        comparison = compare(base, head)
        assert ("check", "regression", check) in [(c.kind, c.severity, c.subject) for c in comparison.changes]
        assert f"the check “{check}” is gone" in comparison.sentence
        assert comparison.sentence.startswith("2 regressions: ")


# ---- floors


@pytest.mark.parametrize(
    ("factor", "moved"), [(1.09, False), (0.92, False), (1.11, True), (0.9, True), (0.0, True), (math.inf, True)]
)
def test_floors_that_move(factor: float, moved: bool) -> None:
    assert found(pair(floor(factor))) == ([("floors", "changed")] if moved else [])


def test_a_floor_that_was_nothing() -> None:
    base, head = sample(), sample()
    base["floors"][3]["relative"] = 0.0
    (diff,) = compare(base, head).floors.moved
    assert diff.ratio == math.inf


def test_a_floor_that_is_no_number() -> None:
    base, head = sample(), sample()
    base["floors"][3]["relative"] = head["floors"][3]["relative"] = "NaN"
    validate(base)
    assert compare(base, head).changes == ()
    assert found(compare(base, sample())) == [("floors", "changed")]


def test_floors_of_logits_move_too() -> None:
    def edit(record: Record) -> None:
        for cell in record["tokens"]["chat@64"]["cells"].values():
            if cell["logit_floor"] is not None:
                cell["logit_floor"] *= 2
                cell["logit_limit"] *= 2
                cell["logit_error"] *= 2

    (change,) = pair(edit).changes
    assert (change.kind, change.detail) == ("floors", "the most at logits of chat@64")


def test_another_machine_has_other_floors() -> None:
    def edit(record: Record) -> None:
        floor(2.0)(record)
        record["environment"]["cpu"] = "another"

    comparison = pair(edit)
    assert {c.kind: c.severity for c in comparison.changes} == {"floors": "note", "environment": "note"}


def test_a_limit_that_was_raised() -> None:
    comparison = pair(lambda record: record["floors"][3].update(limit=32.0))
    assert found(comparison) == [("floors", "worse")]
    assert (comparison.changes[0].before, comparison.changes[0].after) == ("8 floors", "32 floors")
