"""Two suites' models held together: what is a regression, what is news, and what is only another."""

from __future__ import annotations

from typing import Any

import pytest
from edits import Edit, both, classed, found, pair, wrong_token
from test_reports_sample import failing_suite_sample, sample, suite_sample

from hloracle.reports.compare import page, summary
from hloracle.reports.compare.comparison import as_json, compare
from hloracle.reports.facts import Record
from hloracle.reports.record import validate

QWEN3 = 4  # its row


def row(index: int = QWEN3, **fields: Any) -> Edit:
    return lambda record: record["families"][index].update(fields)


def worst(floors: float) -> Edit:
    return row(worst={"floors": floors, "anchor": "norm", "limit": 16.0, "cell": "oracle/xla-cpu"})


def mutants(killed: int, total: int) -> Edit:
    return row(mutants={"killed": killed, "total": total, "pinned": False, "reason": "" if total else "not run"})


def dropped(record: Record) -> None:
    del record["families"][QWEN3]


def test_a_family_that_does_not_conform_any_more() -> None:
    comparison = compare(suite_sample(), failing_suite_sample())
    assert comparison.title == "Not safe"
    changes = [c for c in comparison.changes if c.severity == "regression"]
    assert [(c.kind, c.subject) for c in changes] == [("family", "tiny-qwen3"), ("family", "tiny-gpt_oss")]
    assert changes[0].words == "tiny-qwen3 does not conform any more"
    assert (changes[0].before, changes[0].after) == ("Conforms", "Emitter fault at layers.0.self_attn.q_norm")
    assert "verdict" not in {c.kind for c in comparison.changes}  # it follows from these


def test_a_family_that_conforms_again() -> None:
    comparison = compare(failing_suite_sample(), suite_sample())
    assert found(comparison)[:2] == [("family", "better"), ("family", "better")]
    assert comparison.changes[0].words == "tiny-qwen3 conforms, and did not"


@pytest.mark.parametrize(
    ("base", "head", "severity", "words"),
    [
        (row(), dropped, "regression", "tiny-qwen3 is no longer judged"),
        (dropped, row(), "better", "tiny-qwen3 is new and conforms"),
        (mutants(18, 18), mutants(17, 18), "regression", "1 mutant of tiny-qwen3 survives"),
        (mutants(18, 18), mutants(16, 16), "worse", "of tiny-qwen3 fewer mutants are planted"),
        (mutants(18, 18), mutants(0, 0), "", ""),  # what is in the cache decides it
        (worst(4.0), worst(9.0), "worse", "the worst anchor of tiny-qwen3 has come twice as near to its limit"),
        (worst(1.0), worst(3.0), "", ""),
        (worst(1.0), row(worst=None), "regression", "no anchor of tiny-qwen3 is compared any more"),
        (
            row(),
            row(tokens={"agreed": 700, "total": 700}),
            "regression",
            "of tiny-qwen3 fewer tokens are compared",
        ),
        (row(), row(matmuls=40), "changed", "the decode graph of tiny-qwen3 is another"),
        (row(seconds=1.0), row(seconds=99.0), "", ""),
    ],
)
def test_one_model(base: Edit, head: Edit, severity: str, words: str) -> None:
    before, after = suite_sample(), suite_sample()
    base(before)
    head(after)
    validate(before)
    validate(after)
    comparison = compare(before, after)
    assert [(c.severity, c.words) for c in comparison.changes if c.kind == "family"] == (
        [(severity, words)] if words else []
    )


def near(record: Record) -> None:
    record["families"][QWEN3] |= {"verdict": "near-tie", "tokens": {"agreed": 767, "total": 768}}
    classed("near-tie")(record)


def test_a_near_tie_of_a_family_is_worse() -> None:
    comparison = pair(near, suite_sample, valid=True)
    assert found(comparison) == [("family", "worse")]
    assert comparison.title == "Look twice"


def test_a_new_family_that_is_wrong() -> None:
    base, head = suite_sample(), failing_suite_sample()
    dropped(base)
    words = [c.words for c in compare(base, head).changes if c.kind == "family"]
    assert words[0] == "tiny-qwen3 is new and does not conform"


def test_another_fault_and_the_same_one() -> None:
    head = failing_suite_sample()
    assert found(compare(failing_suite_sample(), head)) == []
    head["families"][QWEN3]["anchor"] = "norm"
    assert [c.words for c in compare(failing_suite_sample(), head).changes] == ["tiny-qwen3 is wrong in another place"]
    head["families"][QWEN3]["verdict"] = "compiler-fault"
    assert [c.words for c in compare(failing_suite_sample(), head).changes if c.kind == "family"] == [
        "tiny-qwen3 has another fault"
    ]


def test_what_is_of_the_own_model_is_told_in_detail_alone() -> None:
    def edit(record: Record) -> None:
        both(wrong_token(near_tie=True), row(0, verdict="near-tie", tokens={"agreed": 1439, "total": 1440}))(record)

    assert ("family", "worse") not in found(pair(edit, suite_sample, valid=True))


def test_a_suite_against_one_model() -> None:
    (change,) = compare(suite_sample(), sample()).of("regression")
    assert change.words == "no other models are judged any more: tiny-llama, tiny-mistral, tiny-qwen2 and 12 more"
    (change,) = compare(sample(), suite_sample()).of("better")
    assert change.words.startswith("other models are judged too: tiny-llama, ")
    changes = compare(sample(), failing_suite_sample()).of("regression")
    assert [c.words for c in changes] == ["other models are judged too, and tiny-qwen3 and tiny-gpt_oss do not pass"]


def test_what_is_made_of_it() -> None:
    comparison = compare(suite_sample(), failing_suite_sample())
    drawn = page.render(comparison)
    assert "14 models have the same verdict and graph" in drawn
    assert "Models that pass" in drawn
    assert "14 of 16" in drawn
    assert "Tiny-qwen3" not in drawn
    assert "tiny-qwen3 does not conform any more" in summary.render(comparison)
    assert len(as_json(comparison)["families"]) == 16
    assert "families" not in page.render(compare(sample(), sample())).partition("</style>")[2]
