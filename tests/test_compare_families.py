"""Two suites' models held together: what is a regression, what is news, and what is only another."""

from __future__ import annotations

from typing import Any

import pytest
from edits import Edit, both, classed, found, pair, wrong_token
from records import Record, conforms, failing_suite, suite

from hloracle.reports.compare import page, summary
from hloracle.reports.compare.comparison import as_json, compare

OTHER = "tiny-mistral"  # the suite's second model


def row(index: int = 1, **fields: Any) -> Edit:
    return lambda record: record["families"][index].update(fields)


def worst(floors: float) -> Edit:
    return row(worst={"floors": floors, "anchor": "norm", "limit": 16.0, "configuration": "oracle/xla-cpu"})


def mutants(killed: int, total: int) -> Edit:
    return row(mutants={"killed": killed, "total": total, "pinned": False, "reason": "" if total else "not run"})


def dropped(record: Record) -> None:
    del record["families"][1]


def test_a_family_that_does_not_conform_any_more() -> None:
    comparison = compare(suite(), failing_suite())
    assert comparison.title == "Not safe"
    (change,) = comparison.of("regression")
    assert (change.kind, change.words) == ("family", f"{OTHER} does not conform any more")
    assert change.after.startswith("Emitter fault at ")
    back = compare(failing_suite(), suite())
    assert [(c.severity, c.words) for c in back.changes] == [("better", f"{OTHER} conforms, and did not")]
    assert f"{OTHER} does not conform any more" in summary.render(comparison)
    assert "Models that pass" in page.render(comparison)
    assert len(as_json(comparison)["families"]) == 2


@pytest.mark.parametrize(
    ("base", "head", "severity", "words"),
    [
        (row(), dropped, "regression", f"{OTHER} is no longer judged"),
        (dropped, row(), "better", f"{OTHER} is new and conforms"),
        (mutants(18, 18), mutants(17, 18), "regression", f"1 mutant of {OTHER} survives"),
        (mutants(18, 18), mutants(16, 16), "worse", f"of {OTHER} fewer mutants are planted"),
        (mutants(18, 18), mutants(0, 0), "", ""),  # what is in the cache decides it
        (worst(4.0), worst(9.0), "worse", f"the worst anchor of {OTHER} has come twice as near to its limit"),
        (worst(1.0), worst(3.0), "", ""),
        (worst(1.0), row(worst=None), "regression", f"no anchor of {OTHER} is compared any more"),
        (row(), row(tokens={"agreed": 1, "total": 1}), "regression", f"of {OTHER} fewer tokens are compared"),
        (row(), row(matmuls=40), "changed", f"the decode graph of {OTHER} is another"),
        (row(), both(row(verdict="near-tie"), classed("near-tie")), "worse", f"{OTHER} passes by a near tie only"),
        (row(seconds=1.0), row(seconds=99.0), "", ""),
    ],
)
def test_one_model(base: Edit, head: Edit, severity: str, words: str) -> None:
    before, after = suite(), suite()
    base(before)
    head(after)
    told = [(c.severity, c.words) for c in compare(before, after).changes if c.kind == "family"]
    assert told == ([(severity, words)] if words else [])


def test_another_fault_and_the_same_one() -> None:
    head = failing_suite()
    assert found(compare(failing_suite(), head)) == []
    head["families"][1]["anchor"] = "norm"
    assert [c.words for c in compare(failing_suite(), head).changes] == [f"{OTHER} is wrong in another place"]
    head["families"][1]["verdict"] = "compiler-fault"
    assert f"{OTHER} has another fault" in [c.words for c in compare(failing_suite(), head).changes]


def test_what_is_of_the_own_model_is_told_in_detail_alone() -> None:
    assert ("family", "worse") not in found(pair(both(wrong_token(), row(0, verdict="near-tie")), suite))


def test_a_suite_against_one_model() -> None:
    assert f"no other models are judged any more: {OTHER}" in [
        c.words for c in compare(suite(), conforms()).of("regression")
    ]
    assert f"other models are judged too: {OTHER}" in [c.words for c in compare(conforms(), suite()).of("better")]
    words = [c.words for c in compare(conforms(), failing_suite()).of("regression")]
    assert f"other models are judged too, and {OTHER} does not pass" in words
