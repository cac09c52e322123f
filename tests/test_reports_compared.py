"""What a run has compared, and what it has not, wherever a run is told; and every class of verdict in all of these places."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from page_text import Page, stands_alone, told
from test_reports_sample import (
    HOSTILE,
    OF_CLASS,
    empty_sample,
    failing_suite_sample,
    near_tie_sample,
    sample,
    suite_sample,
    token_file_sample,
)

from hloracle.core.errors import InputError
from hloracle.reports import annotate, junit, summary
from hloracle.reports.compare import page as diff_page
from hloracle.reports.compare import summary as compare_summary
from hloracle.reports.compare.comparison import compare
from hloracle.reports.facts import VERDICTS, comparisons
from hloracle.reports.history import page as history_page
from hloracle.reports.history.store import row_of
from hloracle.reports.history.table import table
from hloracle.reports.page import html
from hloracle.reports.record import load, to_json, validate

Record = dict[str, Any]
ROOT = Path(__file__).parents[1]
COMPARED = "48 of 48 tokens after each of 6 prompts; both caches whole; on IREE and XLA"
NOT_COMPARED = "the logits: the graph answers with a token; the anchors: the graph does not name them"


def top(record: Record) -> str:
    """The page's text up to the figures of the run."""
    return Page(html.render(record)).text.partition("Skip to the verdict")[2].partition("Tokens equal")[0]


def verdict_case(record: Record) -> ET.Element:
    case = ET.fromstring(junit.render(record)).find("testsuite[@name='verdict']/testcase")
    assert case is not None
    return case


def properties(record: Record) -> dict[str | None, str | None]:
    root = ET.fromstring(junit.render(record))
    return {p.get("name"): p.get("value") for p in root.iterfind("testsuite[@name='verdict']/properties/property")}


# ---- every class of verdict


def test_every_class_is_known_everywhere() -> None:
    schemas = [
        json.loads(resources.files("hloracle.reports").joinpath(name).read_text("utf-8"))
        for name in ("report.schema.json", "history/history.schema.json")
    ]
    classes = schemas[0]["$defs"]["class"]["enum"]
    assert classes == list(VERDICTS) == schemas[1]["properties"]["verdict"]["properties"]["class"]["enum"]
    assert set(classes) == set(OF_CLASS)


def test_what_each_class_is() -> None:
    kinds: dict[str, set[str]] = {}
    for name, verdict in VERDICTS.items():
        kinds.setdefault(verdict.kind, set()).add(name)
    assert kinds == {
        "pass": {"conforms"},
        "near": {"near-tie"},
        "fail": {"reference-fault", "emitter-fault", "compiler-fault", "device-fault", "invariant-broken"},
        "error": {"unsupported", "out-of-memory", "timeout", "harness-error"},
    }


def test_no_class_says_more_than_a_run_compares() -> None:
    for verdict in VERDICTS.values():
        assert not re.search(r"\b(every|each|any|always|never|prove\w*|equal)\b", verdict.meaning, re.IGNORECASE)
        assert "was compared" in verdict.meaning or not verdict.passed


@pytest.mark.parametrize("name", OF_CLASS)
def test_a_class_on_the_page(name: str) -> None:
    record, verdict = OF_CLASS[name](), VERDICTS[name]
    source = html.render(record)
    stands_alone(source, resources.files("hloracle.reports").joinpath("templates", "report.js").read_text("utf-8"))
    told(source)
    assert f'<div class="verdict {verdict.kind}">' in source
    assert f"<title>{verdict.title}: " in source
    shown = top(record)
    assert shown.index(verdict.title) < shown.index(record["verdict"]["explanation"])
    assert verdict.meaning[1:] in shown
    assert (f", {verdict.at} {record['verdict']['anchor']}: " in shown) == (record["verdict"]["anchor"] is not None)
    for label, phrases in comparisons(record):
        assert re.search(f"{label} ?{re.escape(phrases)}", shown)
    if not record["passed"]:
        assert "What to look at next" in Page(source).text


@pytest.mark.parametrize("name", OF_CLASS)
def test_a_class_in_the_summary(name: str) -> None:
    record, verdict = OF_CLASS[name](), VERDICTS[name]
    lines = [line for line in summary.render(record).splitlines() if line]
    assert lines[0] == f"## {summary.KIND_MARKS[verdict.kind]} hloracle: {verdict.title}"
    assert lines[1] == summary.prose(record["verdict"]["explanation"], 600)
    expected = [
        f"**{label}:** {summary.prose(phrases, 600)}" if label == "Not compared" else f"{label}: {phrases}"
        for label, phrases in comparisons(record)
    ]
    assert lines[2 : 2 + len(expected)] == expected
    if (anchor := record["verdict"]["anchor"]) is not None:
        assert f"**{verdict.at.capitalize()} <code>{anchor}</code>" in "\n".join(lines)


@pytest.mark.parametrize("name", OF_CLASS)
def test_a_class_in_junit(name: str) -> None:
    record, verdict = OF_CLASS[name](), VERDICTS[name]
    case = verdict_case(record)
    tag = {"pass": "system-out", "near": "system-out", "fail": "failure", "error": "error"}[verdict.kind]
    (element,) = case
    assert (element.tag, element.get("type")) == (tag, None if record["passed"] else name)
    words = (element.text or "").splitlines()
    assert words[0] == f"{name}: {record['verdict']['explanation']}"
    expected = {label.lower(): phrases for label, phrases in comparisons(record)}
    assert words[1 : 1 + len(expected)] == [f"{label}: {phrases}" for label, phrases in expected.items()]
    assert properties(record) == {label.replace(" ", "-"): phrases for label, phrases in expected.items()}


@pytest.mark.parametrize("name", OF_CLASS)
def test_a_class_as_an_annotation(name: str) -> None:
    record, verdict = OF_CLASS[name](), VERDICTS[name]
    first = annotate.render(record, ROOT).splitlines()[0]
    command = {"pass": "notice", "near": "warning", "fail": "error", "error": "error"}[verdict.kind]
    assert first.startswith(f"::{command} title=hloracle%3A {verdict.title}")
    message = first.split("::", 2)[2].split("%0A")
    told_lines = [f"{label}: {phrases}" for label, phrases in comparisons(record)]
    assert message[: 1 + len(told_lines)] == [record["verdict"]["explanation"], *told_lines]


@pytest.mark.parametrize("name", OF_CLASS)
def test_a_class_in_a_comparison_and_in_the_history(name: str) -> None:
    record, verdict = OF_CLASS[name](), VERDICTS[name]
    comparison = compare(sample(), record)
    assert comparison.title == ("Nothing changed" if name == "conforms" else comparison.title)
    assert f"Head {verdict.title}" in Page(diff_page.render(comparison)).text
    assert f"{summary.KIND_MARKS[verdict.kind]} {verdict.title}" in compare_summary.render(comparison)
    row = row_of(record)
    assert verdict.title in Page(history_page.render([row])).text
    assert str(table([row]).columns[4]._cells[0]) == verdict.title


def test_a_suite_with_models_of_each_class() -> None:
    record = failing_suite_sample()
    wrong = [name for name, verdict in VERDICTS.items() if not verdict.passed]
    for row, name in zip(record["families"][1:], wrong, strict=False):
        row |= {"verdict": name, "passed": False, "anchor": "layers.0.mlp.act", "report": ""}
        row["failed"] = record["families"][-1]["failed"]
    validate(record)
    page, written = Page(html.render(record)).text, summary.render(record)
    cases = {case.get("name"): case for case in ET.fromstring(junit.render(record)).iter("testcase")}
    for row, name in zip(record["families"][1:], wrong, strict=False):
        verdict = VERDICTS[name]
        assert f"{verdict.title} {verdict.at} layers.0.mlp.act" in page
        assert f"<code>{row['model']}</code>: {verdict.title} at <code>layers.0.mlp.act</code>" in written
        assert [c.tag for c in cases[row["model"]]] == ["error" if verdict.kind == "error" else "failure"]


# ---- what was compared, and what was not


def test_what_was_not_compared_comes_first_everywhere() -> None:
    record = token_file_sample()
    assert comparisons(record) == [("Not compared", NOT_COMPARED), ("Compared", COMPARED)]
    shown = top(record)
    order = ["Conforms", "Not compared: the logits, for", "nothing is said of anything else", NOT_COMPARED, COMPARED]
    assert [shown.index(words) for words in order] == sorted(shown.index(words) for words in order)
    assert "conforms" not in shown
    lines = summary.render(record).splitlines()
    assert lines[0] == "## ✅ hloracle: Conforms"
    assert lines[4] == f"**Not compared:** {NOT_COMPARED}"
    assert lines[6] == f"Compared: {COMPARED}"
    assert list(properties(record).items()) == [("not-compared", NOT_COMPARED), ("compared", COMPARED)]
    output = verdict_case(record).findtext("system-out") or ""
    assert output.splitlines()[1:3] == [f"not compared: {NOT_COMPARED}", f"compared: {COMPARED}"]
    message = annotate.render(record, ROOT).splitlines()[0].split("::", 2)[2].split("%0A")
    assert message[1:3] == [f"Not compared: {NOT_COMPARED}", f"Compared: {COMPARED}"]
    assert f"not compared: {NOT_COMPARED}" in Page(history_page.render([row_of(record)])).text
    assert "Not judged: the logits: the graph answers with a token" in compare_summary.render(compare(record, record))
    assert (
        "Not judged: the logits: the graph answers with a token" in Page(diff_page.render(compare(record, record))).text
    )


@pytest.mark.parametrize("make", [sample, near_tie_sample, suite_sample])
def test_where_all_was_compared_nothing_is_missing(make: Callable[[], Record]) -> None:
    record = make()
    assert [label for label, _ in comparisons(record)] == ["Compared"]
    for written in (top(record), summary.render(record), annotate.render(record, ROOT), junit.render(record)):
        assert "not compared" not in written.lower()


def test_where_nothing_was_compared_that_is_said() -> None:
    record = empty_sample()
    assert comparisons(record)[1] == ("Compared", "nothing")
    assert re.search("Compared ?nothing", top(record))
    assert "\nCompared: nothing\n" in summary.render(record)
    assert "no token compared" in summary.render(record)
    assert "none compared" in Page(html.render(record)).text
    assert properties(record)["compared"] == "nothing"


def test_of_a_suite_it_is_the_own_models() -> None:
    record = failing_suite_sample()
    assert comparisons(record)[0][1].startswith("of smollm2-135m-instruct: 48 of 48 tokens after each of 6 prompts; ")
    assert "Compared: of smollm2-135m-instruct: 48 of 48 tokens" in summary.render(record)


def test_records_of_version_4_do_not_say_what_was_compared(tmp_path: Path) -> None:
    record = json.loads(to_json(sample())) | {"schema": "hloracle-report/4"}
    del record["verdict"]["compared"], record["verdict"]["not_compared"], record["settings"]["timeout"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(record))
    loaded = load(path)
    expected = json.loads(to_json(sample()))
    expected["verdict"] |= {"compared": None, "not_compared": None}
    expected["settings"]["timeout"] = None
    assert loaded == expected
    words = "not recorded: the record is of an older version"
    assert re.search(f"Compared ?{words}", top(loaded))
    assert re.search("Timeout of a configuration ?not recorded", Page(html.render(loaded)).text)
    assert f"\nCompared: {words}\n" in summary.render(loaded)
    assert properties(loaded) == {"compared": words}
    assert f"%0ACompared: {words}" in annotate.render(loaded, tmp_path)
    assert row_of(loaded)["verdict"]["not_compared"] is None
    assert compare(loaded, sample()).changes[0].words == "the runs differ in their timeout"
    path.write_text(json.dumps(record | {"schema": "hloracle-report/5"}))
    with pytest.raises(InputError, match=r"is not a valid record \(verdict: 'compared' is a required property\)"):
        load(path)


def test_hostile_phrases_do_nothing() -> None:
    record = token_file_sample()
    record["verdict"] |= {"compared": [HOSTILE] * 40, "not_compared": [f"{i} {HOSTILE}" for i in range(200)]}
    validate(record)
    source = html.render(record)
    stands_alone(source, resources.files("hloracle.reports").joinpath("templates", "report.js").read_text("utf-8"))
    assert source.count("<script") == 1
    assert "<img" not in source
    for written in (summary.render(record), compare_summary.render(compare(sample(), record))):
        assert len(written) < summary.LIMIT
        assert not [mark for mark in ("<script", "<img", "](", "\u202e", "\n# heading") if mark in written]
    assert annotate.render(record, ROOT).count("\n") == len(annotate.render(token_file_sample(), ROOT).splitlines())
    assert ET.fromstring(junit.render(record)) is not None
    stands_alone(diff_page.render(compare(sample(), record)))
    stands_alone(history_page.render([row_of(record)]))
    assert f"0 {HOSTILE[:60]}" in Page(source).text


def test_a_suite_says_of_whom_something_was_not_compared() -> None:
    record, others = suite_sample(), "of 2 other models, logits of decode at position 3"
    record["verdict"]["not_compared"] = [others]
    assert comparisons(record)[0] == ("Not compared", others)
    record["families"][0]["not_compared"] = ["the values inside"]
    record["verdict"]["not_compared"] = ["the values inside", others]
    assert comparisons(record)[0] == ("Not compared", f"of smollm2-135m-instruct: the values inside; {others}")
    validate(record)
