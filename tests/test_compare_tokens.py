"""Base against head: tokens, prompts and cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from edits import (
    EMITTED,
    both,
    classed,
    found,
    pair,
    records,
    wrong_token,
)
from test_reports_sample import (
    CELLS,
    TOKENS,
    _disagree,
    failing_sample,
    near_tie_sample,
    sample,
)

from hloracle.reports.compare.comparison import compare
from hloracle.reports.facts import Record
from hloracle.reports.record import validate


def test_a_token_that_is_right_again() -> None:
    comparison = compare(near_tie_sample(), sample())
    (change,) = comparison.changes
    assert (change.kind, change.severity) == ("tokens", "better")
    assert comparison.title == "Safe"


def test_a_token_that_was_and_is_wrong() -> None:
    def edit(record: Record) -> None:
        cell = record["tokens"]["chat@64"]["cells"][EMITTED]
        cell["tokens"][5], cell["pieces"][5] = 7, " Rome"

    assert found(pair(edit, failing_sample, valid=True)) == [("tokens", "changed")]


def test_cells_that_changed_alike_are_one_change() -> None:
    def edit(record: Record) -> None:
        for cell in CELLS[2:]:
            wrong_token(cell=cell)(record)

    (change,) = pair(edit, valid=True).changes
    assert change.cells == CELLS[2:]
    assert "emitter/xla-cpu, emitter/iree-cpu and emitter/iree-cpu/token" in change.words


def test_every_cell() -> None:
    def edit(record: Record) -> None:
        for cell in CELLS:
            wrong_token(cell=cell)(record)

    assert "chat@64 in every cell: " in pair(edit).changes[0].words


def test_a_second_disagreement_that_is_no_near_tie() -> None:
    def edit(record: Record) -> None:
        _disagree(record, "long@128", "emitter/iree-cpu", (21, 30))
        record["passed"], record["verdict"]["class"] = False, "emitter-fault"

    changes = pair(edit, near_tie_sample, valid=True).changes
    assert [(c.kind, c.severity) for c in changes] == [("tokens", "regression")]


def _wrong_at(*steps: int, of: int = TOKENS, near_ties: int = 0) -> Record:
    record = sample()
    _disagree(record, "chat@64", EMITTED, steps)
    cell = record["tokens"]["chat@64"]["cells"][EMITTED]
    cell |= {"total": of, "agreed": of - len(steps), "near_ties": near_ties}
    classed("near-tie" if near_ties == len(steps) else "emitter-fault")(record)
    return record


@pytest.mark.parametrize(
    ("base", "head", "severity", "tie"),
    [
        (partial(_wrong_at, 10), partial(_wrong_at, 3), "regression", False),  # as many as before
        (partial(_wrong_at, 10, near_ties=1), partial(_wrong_at, 3, near_ties=1), "worse", True),
        (partial(_wrong_at, 10), partial(_wrong_at, 3, 10, near_ties=1), "regression", False),
        (partial(_wrong_at, 10, 11, 12, 13, 14), partial(_wrong_at, 3, 4, of=8), "regression", False),
        (partial(_wrong_at, 3, 10), partial(_wrong_at, 3), "better", False),
    ],
)
def test_a_token_that_left_the_truth(
    base: Callable[[], Record], head: Callable[[], Record], severity: str, tie: bool
) -> None:
    (change,) = [change for change in compare(base(), head()).changes if change.kind == "tokens"]
    assert change.severity == severity
    assert ("near tie" in change.detail) == tie


@pytest.mark.parametrize(
    ("base", "head", "severity", "words"),
    [
        (
            partial(_wrong_at, 10, 11, 12, 13, 14),
            partial(_wrong_at, 3, 4, of=8),
            "regression",
            "fewer",
        ),  # fewer in number alone
        (partial(_wrong_at, 3, 4, of=8), partial(_wrong_at, 10, 11, 12, 13, 14), "better", "more"),
        (partial(_wrong_at, 1, 2, 3, 4, 5, 6), partial(_wrong_at, 1, of=8), "changed", "as many"),
        (partial(_wrong_at, 1, 2, near_ties=2), partial(_wrong_at, 1), "regression", "more"),
        (partial(_wrong_at, 1), partial(_wrong_at, 1, 2, near_ties=1), "worse", "fewer"),
    ],
)
def test_tokens_of_another_truth_by_their_share(
    base: Callable[[], Record], head: Callable[[], Record], severity: str, words: str
) -> None:
    other = head()
    other["model"]["digest"] = "0" * 64
    (change,) = [change for change in compare(base(), other).changes if change.kind == "tokens"]
    assert (change.severity, change.words) == (severity, f"chat@64 in {EMITTED}: {words} tokens are the truth's")


def test_tokens_that_are_missing_at_the_end() -> None:
    def edit(record: Record) -> None:
        cell = record["tokens"]["chat@64"]["cells"][EMITTED]
        cell |= {key: cell[key][:40] for key in ("tokens", "pieces", "errors")} | {"agreed": 40}
        record["tokens"]["chat@64"]["agreed"] = 40
        classed("emitter-fault")(record)

    comparison = pair(edit, valid=True)
    assert found(comparison) == [("tokens", "regression")]
    (diff,) = [diff for prompt in comparison.prompts for diff in prompt.tokens]
    assert [step.step for step in diff.steps] == list(range(40, 48))
    assert {step.after.words for step in diff.steps} == {"no token"}


def test_tokens_without_text() -> None:
    def edit(record: Record) -> None:
        wrong_token()(record)
        for cell in record["tokens"]["chat@64"]["cells"].values():
            cell["pieces"] = None

    assert "step 5 is token " in pair(edit).changes[0].words


def test_a_prompt_that_is_no_longer_run() -> None:
    def edit(record: Record) -> None:
        del record["prompts"][0], record["tokens"]["chat@64"]

    (change,) = pair(edit, valid=True).changes
    assert (change.kind, change.severity, change.subject) == ("prompt", "regression", "chat@64")
    assert found(compare(*reversed(records(edit)))) == [("prompt", "better")]


def test_a_new_prompt_that_is_wrong() -> None:
    base, head = sample(), sample()
    wrong_token(near_tie=False)(head)
    del base["prompts"][0], base["tokens"]["chat@64"]
    assert ("prompt", "regression") in found(compare(base, head))
    wrong_token(step=9)(head := sample())
    assert ("prompt", "worse") in found(compare(base, head))


def test_one_comparison_that_is_lost() -> None:
    def edit(record: Record) -> None:
        del record["tokens"]["chat@64"]["cells"][EMITTED]
        record["tokens"]["chat@64"]["agreed"] = 0
        classed("harness-error")(record)

    changes = pair(edit, valid=True).changes
    assert [(c.kind, c.severity, c.words) for c in changes] == [
        ("tokens", "regression", "chat@64 is no longer compared in emitter/iree-cpu")
    ]


def test_a_cell_that_gives_no_result_is_one_change() -> None:
    def edit(record: Record) -> None:
        for entry in record["tokens"].values():
            del entry["cells"][EMITTED]
            entry["agreed"] = 0
        record["cells"][3] |= {"status": "failed", "message": "signal 11"}
        record["anchors"] = []
        for check in record["checks"]:
            if check["id"].startswith(EMITTED):
                check["status"] = "error"
        classed("harness-error")(record)

    base, head = sample(), sample()
    edit(head)
    validate(head)
    (change,) = compare(base, head).changes
    assert (change.kind, change.severity, change.detail) == ("cell", "regression", "signal 11")
    assert change.also[0] == "the check “emitter/iree-cpu.tokens” no longer runs: it ends with an error"
    assert len(change.also) == 6
    back = compare(head, base)
    assert ("cell", "better") in found(back)
    assert not back.of("regression", "worse")


def test_a_cell_that_is_no_longer_run() -> None:
    def edit(record: Record) -> None:
        record["cells"] = [cell for cell in record["cells"] if cell["id"] != "oracle/iree-cpu"]
        for entry in record["tokens"].values():
            del entry["cells"]["oracle/iree-cpu"]

    assert found(pair(edit)) == [("cell", "regression")]
    assert found(compare(*reversed(records(edit)))) == [("cell", "changed")]


def test_another_truth() -> None:
    def edit(record: Record) -> None:
        for entry in [record["prompts"][0]["truth"], *record["tokens"]["chat@64"]["cells"].values()]:
            entry["tokens"][9] = 1

    comparison = pair(edit, valid=True)
    (change,) = comparison.changes
    assert (change.kind, change.severity) == ("truth", "worse")
    assert change.words == "the truth of chat@64 is another from step 9 on"
    assert comparison.title == "Look twice"


def test_another_prompt_is_compared_by_its_agreement() -> None:
    def edit(record: Record) -> None:
        record["prompts"][0]["token_ids"][0] = 1
        record["prompts"][0]["truth"]["tokens"][9] = 1
        for cell in record["tokens"]["chat@64"]["cells"].values():
            cell["tokens"][9] = 1

    assert found(pair(edit)) == [("prompt", "changed")]
    assert set(found(pair(both(edit, wrong_token())))) == {("prompt", "changed"), ("tokens", "worse")}
