"""The summary of a run, a comment on a pull request; and the JUnit report."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest
from test_reports_sample import (
    ALL,
    HOSTILE,
    broken_sample,
    empty_sample,
    failing_sample,
    failing_suite_sample,
    hostile_sample,
    near_tie_sample,
    sample,
    suite_sample,
)

from hloracle.core.errors import InputError
from hloracle.reports import junit, summary, text
from hloracle.reports.facts import took
from hloracle.reports.record import validate

Record = dict[str, Any]


# ---- the comment


@pytest.mark.parametrize("make", ALL)
def test_summary_fits(make: Callable[[], Record]) -> None:
    record = make()
    written = summary.render(record)
    assert len(written) < summary.LIMIT
    folded = 2 if record["families"] and record["passed"] else 1
    assert written.count("<details>") == written.count("</details>") == folded


def test_summary_of_very_many_things_fits() -> None:
    record = hostile_sample()
    cell = copy.deepcopy(record["cells"][0])
    record["cells"] += [cell | {"id": f"c{i} {HOSTILE}", "status": "failed"} for i in range(60)]
    record["prompts"] += [record["prompts"][0] | {"id": f"p{i} {HOSTILE}"} for i in range(100, 400)]
    record["checks"] += [record["checks"][0] | {"id": f"k{i} {HOSTILE}", "status": "failed"} for i in range(100, 400)]
    record["environment"]["packages"] = {f"{i} {HOSTILE}": HOSTILE for i in range(300)}
    for entry in record["tokens"].values():
        entry["agreed"] = 0  # the new cells have no result
    validate(record)
    written = summary.render(record)
    assert len(written) < summary.LIMIT
    assert "more prompts in report.html" in written
    assert "more checks in report.html" in written


def test_summary_says_what_happened() -> None:
    passed, failed = summary.render(sample()), summary.render(failing_sample())
    assert passed.startswith("## ✅ hloracle: Conforms\n")
    assert "1,440 of 1,440 tokens equal · checks: 13 passed, 1 skipped" in passed
    assert (
        "| <code>oracle.census</code> operations of each kind are those pinned in census.json | ⏭️ skipped |" in passed
    )
    assert failed.startswith("## ❌ hloracle: Emitter fault\n")
    assert "**First wrong at <code>layers.3.self_attn.q_rope</code>, on prompt <code>chat@64</code>" in failed
    assert "❌ **42/48**, first at 5" in failed
    assert "⚠️ no result" in summary.render(broken_sample())
    assert re.search(r" tokens equal, in \d+ of \d+ pairs of prompt and cell", summary.render(broken_sample()))
    assert "🟡 **47/48**" in summary.render(near_tie_sample())
    assert "Nothing was compared" in summary.render(empty_sample())


@pytest.mark.parametrize("make", ALL)
def test_summary_says_the_verdict_first_and_ends_with_the_report(make: Callable[[], Record]) -> None:
    link = "https://github.com/owner/repo/actions/runs/1"
    written = summary.render(make(), link, "**Not compared.**")
    verdict = written.index("\n## " if "mutant" in make() else "## ")
    order = [
        "**Not compared.**",
        "checks: ",
        "Canary" if make()["canary"] else "No canary",
        f"[The whole report](<{link}>)",
    ]
    places = [verdict, *map(written.index, order), written.index("<details>")]
    assert places == sorted(places)
    assert "The whole report" not in summary.render(make())


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "https://a b", "https://a>x", "https://a\n## x", "report.html", "https://", " "]
)
def test_summary_links_to_nothing_but_an_address(link: str) -> None:
    with pytest.raises(InputError, match="is not a web address"):
        summary.render(sample(), link)


def test_summary_says_how_fast() -> None:
    fast = "Decode, a token: emitter on IREE 23.2 ms · oracle on XLA 24.2 ms · Hugging Face float32 54.8 ms\n"
    assert fast in summary.render(sample())
    assert "Decode, a token" not in summary.render(failing_sample())


def test_summary_tables_have_as_many_columns_in_each_row() -> None:
    for make in ALL:
        for table in re.findall(r"(?:^\|.*\n)+", summary.render(make()), re.MULTILINE):
            assert len({row.count("|") for row in table.splitlines() if "in report.html" not in row}) == 1


@pytest.mark.parametrize(
    ("raw", "escaped"),
    [
        ("a_b q_proj", "a_b q_proj"),
        ("__init__ a_", "&#95;&#95;init&#95;&#95; a&#95;"),
        ("at 05:12, x: y", "at 05:12, x: y"),
        (":tada:", "&#58;tada:"),
        ("*a* `b` |", "&#42;a&#42; &#96;b&#96; &#124;"),
        ("chat@64 (@octocat)", "chat@64 (<code>@</code>octocat)"),
        ("see #12, # 3", "see <code>&#35;</code>12, &#35; 3"),
        ("a@b.com", "a<code>@</code>b.com"),
        ("see GH-12 and gh-3", "see GH<code>-</code>12 and gh<code>-</code>3"),
        ("- a", "&#45; a"),
        ("+ a", "&#43; a"),
        ("---", "&#45;--"),
        ("-5 is no list", "-5 is no list"),
        ("1. a", "1&#46; a"),
        ("12) a", "12&#41; a"),
        ("1.5 is no list", "1.5 is no list"),
    ],
)
def test_summary_escapes_what_markdown_would_read(raw: str, escaped: str) -> None:
    assert summary.prose(raw, 80) == escaped


def test_summary_is_not_led_astray() -> None:
    written = summary.render(hostile_sample())
    assert "<script" not in written
    assert "<img" not in written
    assert "](" not in written
    assert "http:" not in written
    assert "\u202e" not in written
    assert "\n# heading" not in written
    assert re.search(r"(?<!>)@octocat", re.sub(r"<code>.*?</code>", "", written)) is None


# ---- the test report


@pytest.mark.parametrize("make", ALL)
def test_junit_counts(make: Callable[[], Record]) -> None:
    record = make()
    root = ET.fromstring(junit.render(record))
    assert root.tag == "testsuites"
    for suite in root:
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{tag}"))
    families = sum(1 + len(row["failed"]) for row in record["families"])
    cells = len(record["cells"]) * len(record["prompts"])
    assert int(root.get("tests", "")) == 1 + families + len(record["checks"]) + cells
    green = root.get("failures") == root.get("errors") == "0"
    assert green == record["passed"]


@pytest.mark.parametrize(
    ("make", "failures", "errors", "skipped"),
    [
        (sample, 0, 0, 1),
        (near_tie_sample, 0, 0, 1),
        (failing_sample, 1 + 3 + 15, 1, 1),
        (broken_sample, 0, 1 + 3 + 12, 1),
        (empty_sample, 0, 1, 0),
        (suite_sample, 0, 0, 1),
        (failing_suite_sample, 1 + 1 + 2, 1 + 1, 1),
    ],
)
def test_junit_outcomes(make: Callable[[], Record], failures: int, errors: int, skipped: int) -> None:
    root = ET.fromstring(junit.render(make()))
    counted = [sum(int(suite.get(key, "")) for suite in root) for key in ("failures", "errors", "skipped")]
    assert counted == [failures, errors, skipped]


# What Jenkins' xUnit plugin allows, junit-10.xsd. It takes no report with anything more.
XUNIT = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
        {"properties", "testcase"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {"skipped", "error", "failure", "system-out"}),
    "skipped": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "failure": ({"type", "message"}, set()),
    "system-out": (set(), set()),
}


@pytest.mark.parametrize("make", ALL)
def test_junit_has_what_readers_take(make: Callable[[], Record]) -> None:
    root = ET.fromstring(junit.render(make() | {"mutant": "rope-sign"}))
    for element in root.iter():
        attributes, children = XUNIT[element.tag]
        assert set(element.attrib) <= attributes
        assert {child.tag for child in element} <= children
        assert re.fullmatch(r"\d+\.\d{3}", element.get("time", "0.000"))
        assert re.fullmatch(r"\d{4}(-\d\d){2}T\d\d(:\d\d){2}", element.get("timestamp", "2025-11-21T05:12:44"))
    # Of two with one name GitLab counts the first alone.
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(names)) == len(names)
    # GitLab shows the text and not the message; others the message and not the text.
    for tag in ("failure", "error", "skipped"):
        for element in root.iter(tag):
            assert (element.text or "").split()[:3] == element.get("message", "").split()[:3] != []
            assert element.get("type")


def test_junit_names_the_verdict_alike_in_every_run() -> None:
    cases = [ET.fromstring(junit.render(make())).find(".//testcase") for make in ALL]
    assert {(case.get("classname"), case.get("name")) for case in cases if case is not None} == {
        ("hloracle.verdict", "verdict")
    }


def test_junit_says_how_long_a_cell_took() -> None:
    record = sample()
    record["cells"][0] |= {"status": "ran", "seconds": 18.2}
    record["cells"][1] |= {"status": "reused", "seconds": 18.2}
    suites = {suite.get("name"): suite.get("time") for suite in ET.fromstring(junit.render(record))}
    assert (suites["tokens.oracle/xla-cpu"], suites["tokens.oracle/iree-cpu"]) == ("18.200", None)


@pytest.mark.parametrize(
    ("date", "timestamp"),
    [
        ("2025-11-21T05:12:44+02:00", "2025-11-21T03:12:44"),
        ("2025-11-21T05:12", "2025-11-21T05:12:00"),
        ("0001-01-01T00:00+02:00", None),
        ("2025-11-21T05:12 " + HOSTILE, None),
    ],
)
def test_junit_knows_no_time_zone(date: str, timestamp: str | None) -> None:
    record = sample()
    record["environment"]["date"] = date
    assert ET.fromstring(junit.render(record))[0].get("timestamp") == timestamp


def test_junit_says_what_was_not_compared() -> None:
    record = sample()
    del record["tokens"]["chat@64"]["cells"]["oracle/iree-cpu"]
    root = ET.fromstring(junit.render(record))
    (case,) = [c for c in root.iter("testcase") if c.find("skipped") is not None and "tokens" in c.get("classname", "")]
    assert case.attrib == {"classname": "hloracle.tokens.oracle/iree-cpu", "name": "chat@64"}


@pytest.mark.parametrize("make", ALL)
def test_all_say_alike_how_long_the_run_took(make: Callable[[], Record]) -> None:
    record = make()
    record["timings"] = record["timings"][:1]
    for timing in record["timings"]:
        timing |= {"begin": 3.0, "seconds": 4.0}
    seconds = 7 if record["timings"] else 0
    assert took(record) == seconds
    assert f" · {text.duration(seconds)}\n" in summary.render(record)
    assert f'time="{seconds}.000"' in junit.render(record)
