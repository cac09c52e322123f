"""What a reader sees of a run: on its page, in the summary, in JUnit and as annotations, for every class of verdict."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_text import Page, luminance, stands_alone, told
from records import (
    ALL,
    HOSTILE,
    JUDGED,
    Record,
    check_of,
    column_of,
    conforms,
    disagree,
    empty,
    failing,
    failing_suite,
    hostile,
    near_tie,
    of_class,
    pinned,
    prompt_of,
    suite,
    without_results,
)
from rich.console import Console

from hloracle.cli.show import print_record
from hloracle.reports import annotate, junit, summary
from hloracle.reports.compare import page as diff_page
from hloracle.reports.compare import summary as compare_summary
from hloracle.reports.compare.comparison import compare
from hloracle.reports.facts import VERDICTS, badness, comparisons, layer_of
from hloracle.reports.history import page as history_page
from hloracle.reports.history.store import row_of
from hloracle.reports.history.table import table
from hloracle.reports.page import charts, graphs, heat, html
from hloracle.reports.page.align import align
from hloracle.reports.page.axes import every
from hloracle.reports.record import to_json, validate
from hloracle.reports.text import figure, others, repaired, shown_by

ROOT = Path(__file__).parents[1]
SCRIPT = resources.files("hloracle.reports").joinpath("templates", "report.js").read_text("utf-8")
HIDDEN = re.compile("[\u202a-\u202e\u2066-\u2069\u200b\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def page_of(record: Record) -> Page:
    """The page, read."""
    return Page(html.render(record))


def section(record: Record, id: str) -> str:
    """The text of one section of the page."""
    source = html.render(record)
    begin = source.index(f'<section id="{id}"')
    return Page(source[begin : source.index("</section>", begin)] + "</section>").text


# ---- every record, every class


@pytest.mark.parametrize("name", ALL)
def test_page_stands_alone_and_can_be_read_without_seeing_it(name: str) -> None:
    source = html.render(ALL[name]())
    stands_alone(source, SCRIPT)
    told(source)
    assert html.render(ALL[name]()) == source
    assert len(source) < 5_000_000


@pytest.mark.parametrize(
    ("check", "change"),
    [
        (stands_alone, lambda s: s.replace("<main", "<img alt=''><main", 1)),
        (stands_alone, lambda s: s.replace("</main>", "<script>1</script></main>", 1)),
        (stands_alone, lambda s: s.replace("</main>", "<a href='https://example.org'>x</a></main>", 1)),
        (stands_alone, lambda s: s.replace("default-src 'none'", "default-src *", 1)),
        (told, lambda s: s.replace('<html lang="en">', "<html>", 1)),
        (told, lambda s: s.replace('<th scope="col">', "<th>", 1)),
        (told, lambda s: s.replace("</main>", "<h5>below nothing</h5></main>", 1)),
    ],
)
def test_a_page_that_does_not_is_noticed(check: Callable[..., None], change: Callable[[str], str]) -> None:
    source = html.render(conforms())
    assert change(source) != source
    with pytest.raises(AssertionError):
        check(change(source), *([SCRIPT] if check is stands_alone else []))


@pytest.mark.parametrize("name", VERDICTS)
def test_a_class_of_verdict_is_told_alike_everywhere(name: str) -> None:
    record, verdict = of_class(name), VERDICTS[name]
    explanation, anchor = record["verdict"]["explanation"], record["verdict"]["anchor"]
    shown = page_of(record).text
    assert shown.index(verdict.title) < shown.index(explanation)
    assert verdict.meaning[1:] in shown
    assert (f", {verdict.at} {anchor}: " in shown) == (anchor is not None)
    lines = [line for line in summary.render(record).splitlines() if line and not line.startswith(">")]
    assert lines[0] == f"## {summary.KIND_MARKS[verdict.kind]} hloracle: {verdict.title}"
    assert lines[1] == summary.prose(explanation, 600)
    case = ET.fromstring(junit.render(record)).find("testsuite[@name='verdict']/testcase")
    assert case is not None
    tag = {"pass": "system-out", "near": "system-out", "fail": "failure", "error": "error"}[verdict.kind]
    assert [(e.tag, e.get("type")) for e in case] == [(tag, None if record["passed"] else name)]
    first = annotate.render(record, ROOT).splitlines()[0]
    command = {"pass": "notice", "near": "warning", "fail": "error", "error": "error"}[verdict.kind]
    assert first.startswith(f"::{command} title=hloracle%3A {verdict.title}")
    for label, phrases in comparisons(record):
        assert phrases in shown
        assert f"{label.lower()}: {phrases}" in (case[0].text or "")
    comparison = compare(conforms(), record) if record["model"]["architecture"] == "llama" else None
    if comparison:
        assert f"Head {verdict.title}" in Page(diff_page.render(comparison)).text
        assert f"{summary.KIND_MARKS[verdict.kind]} {verdict.title}" in compare_summary.render(comparison)
    row = row_of(record)
    assert verdict.title in Page(history_page.render([row | {"mutant": ""}])).text
    assert str(table([row]).columns[4]._cells[0]).startswith(verdict.title)


def test_no_class_says_more_than_a_run_compares() -> None:
    for verdict in VERDICTS.values():
        assert not re.search(r"\b(every|each|any|always|never|prove\w*|equal)\b", verdict.meaning, re.IGNORECASE)
        assert "was compared" in verdict.meaning or not verdict.passed


def test_hostile_text_is_shown_and_does_nothing() -> None:
    record = hostile()
    validate(record)
    source = html.render(record)
    assert source.count("<script") == 1
    assert "<img" not in source
    assert HOSTILE[:60] in Page(source).text
    assert "⟨U+202E⟩gnp.exe⟨U+2066⟩␀␇␛[31m␡⟨U+0085⟩⟨U+200B⟩⟨U+D800⟩⟨U+FEFF⟩" in Page(source).text
    assert HIDDEN.search(source) is None
    for written in (summary.render(record), compare_summary.render(compare(record, record))):
        assert len(written) < summary.LIMIT
        assert not [mark for mark in ("<script", "<img", "](", "http:", "\u202e", "\n# heading") if mark in written]
    assert HIDDEN.search(junit.render(record).replace("\n", "")) is None or ET.fromstring(junit.render(record))
    stands_alone(history_page.render([row_of(record)]))


# ---- the verdict


def test_page_says_what_happened() -> None:
    passed, record = page_of(conforms()), failing()
    assert "llama on cpu in f32: what was compared agrees with Hugging Face" in passed.text
    assert "Closest call" in passed.text
    failed, anchor = page_of(record).text, record["verdict"]["anchor"]
    assert f"emitters/architectures/llama.py and reference/oracle/architectures/llama.py, at {anchor}" in failed
    assert "This run carries a deliberate fault, the mutant rope-sign-last-layer" in failed
    assert "deliberate fault" not in passed.text
    assert failed.index("Failed") < failed.index("Passed")
    assert "What to look at next" in failed
    brought = pinned("check") | {"passed": False}
    brought["verdict"] |= {"class": "emitter-fault", "anchor": "norm"}
    assert "Read the file beside the oracle’s graph" in page_of(brought).text
    assert "emitters/architectures" not in page_of(brought).text


def test_a_suite_opens_what_does_not_pass() -> None:
    page = page_of(suite())
    assert "2 of 2 models pass. The rest of this page is about tiny-llama." in page.text
    assert not [href for href in page.attributes("href") if "families/" in href]
    record = failing_suite()
    page = page_of(record)
    assert "1 of 2 models pass" in page.text
    assert page.attributes("href").count("families/mistral/report.html") == 1
    assert record["families"][1]["failed"][0]["title"] in page.text
    assert "emitters/architectures/mistral.py" in page.text
    assert "Families" not in page_of(conforms()).text


def test_page_opens_the_prompt_of_the_verdict_and_no_other() -> None:
    def opened(record: Record) -> list[str]:
        tags = page_of(record).tags
        folds = [i for i, (tag, attrs) in enumerate(tags) if tag == "details" and "open" in attrs]
        inside = [next(a["id"] for t, a in tags[i:] if t == "div" and "id" in a) for i in folds]
        return [id for id in inside if id and id.startswith("prompt")]

    record = near_tie()
    assert opened(conforms()) == []
    assert opened(record) == [f"prompt-{record['prompts'].index(prompt_of(record))}"]


def test_what_was_not_compared_does_not_look_like_a_pass() -> None:
    record = without_results()
    text = page_of(record).text
    assert text.count("no result") >= len(record["prompts"])
    assert "the compiler ended with signal 11" in text
    assert "Nothing was compared." in page_of(empty()).text
    record = conforms()
    del record["tokens"][prompt_of(record)["id"]]["configurations"][JUDGED]
    planned = len(record["prompts"]) * len(record["configurations"])
    assert f"{planned - 1} of {planned} compared" in page_of(record).text


def test_missing_tokens_differ() -> None:
    record = failing()
    prompt = prompt_of(record)
    answer = record["tokens"][prompt["id"]]["configurations"][JUDGED]
    answer |= {"tokens": [], "pieces": answer["pieces"] and [], "errors": [], "agreed": 0, "first_mismatch": None}
    record["tokens"][prompt["id"]]["agreed"] = 0
    validate(record)
    n = answer["total"]
    assert f"❌ **0/{n}**, first at 0" in summary.render(record)
    assert f"0 of {n} tokens equal, first differs at step 0" in junit.render(record)
    assert "first at step 0: no token for the truth" in page_of(record).text


def test_untried_versions_are_told() -> None:
    record = conforms()
    record["environment"]["untried"] = [{"package": "jax", "version": "9.9", "tried": "0.10.2"}]
    validate(record)
    assert "9.9 was never tried; hloracle was tried with 0.10.2." in page_of(record).text


def test_a_canary_that_lives_is_seen() -> None:
    record = failing()
    record["canary"] = {"anchor": "norm", "graph": "g", "caught": False, "named": None, "detail": ""}
    assert "named no anchor" in page_of(record).text
    assert "⚠️ Canary **missed**: broken on purpose at <code>norm</code>, named no anchor." in summary.render(record)
    assert "No canary was run" in page_of(conforms() | {"canary": None}).text


# ---- where it went wrong


def test_page_says_where_it_went_wrong() -> None:
    record = failing()
    found, text = record["localization"], section(record, "where")
    assert f"First wrong anchor {found['anchor']}".replace(" ", "") in text.replace(" ", "")
    assert found["operation"]["name"] in text
    assert ("Shows the fault" in text) == found["reproducer"]["shown"]
    rows = charts.chain(record)["rows"]  # type: ignore[index]
    (first,) = [row for row in rows if row["first"]]
    assert first["anchor"] == found["anchor"]
    assert first["over"]["local"]
    assert not any(row["over"]["local"] for row in rows[: rows.index(first)])
    record["localization"] |= {"anchor": None, "operation": None, "reproducer": None, "errors": []}
    assert "none found" in section(record, "where")


@pytest.mark.parametrize(
    ("named", "sole", "told"),
    [
        (("stablehlo.negate", 7), False, ["stablehlo.add"]),  # the first candidate is what is named
        (("stablehlo.constant", 3), False, ["stablehlo.negate", "stablehlo.add"]),  # it is named for its numbers
        (("stablehlo.negate", 7), True, []),  # the others do not help alone
        (None, False, ["stablehlo.negate", "stablehlo.add"]),
    ],
)
def test_what_else_may_be_to_blame(named: tuple[str, int] | None, sole: bool, told: list[str]) -> None:
    record = failing()
    found = record["localization"]
    found["candidates"] = [
        {"name": name, "line": line, "text": "", "words": f"it is the {name[10:]}"}
        for name, line in (("stablehlo.negate", 7), ("stablehlo.add", 9))
    ]
    found["sole"] = sole
    found["operation"] = found["operation"] | dict(zip(("name", "line"), named, strict=True)) if named else None
    validate(record)
    assert [one["name"] for one in others(found)] == told
    console = Console(record=True, width=200)
    print_record(record, Path("out"), console)
    for shown in (section(record, "where"), summary.render(record), console.export_text()):
        shown = re.sub(r"\s+", "", shown)
        assert [f"stablehlo.{word}" for word in ("negate", "add") if f"itisthe{word}" in shown] == told


ON = [
    {"backend": "a", "title": "IREE 3.13.0 with --iree-<b>", "shows": True, "detail": "3 off"},
    {"backend": "b", "title": "IREE 3.13.0", "shows": False, "detail": "0 off"},
    {"backend": "c", "title": "XLA 0.10.2", "shows": False, "detail": "0 off"},
    {"backend": "d", "title": "PJRT mine", "shows": None, "detail": "load failed: no device"},
]
TOLD = "shown by IREE 3.13.0 with --iree-<b>; not shown by IREE 3.13.0 and XLA 0.10.2; not known of PJRT mine"


@pytest.mark.parametrize(
    ("fields", "told", "status"),
    [
        ({}, "passes", "Passes with it"),
        (
            {"conforms": False, "detail": "tokens: 3 of 4"},
            "still does not pass (tokens: 3 of 4)",
            "Still does not pass",
        ),
    ],
)
def test_what_ran_with_a_repair_is_named(fields: dict[str, Any], told: str, status: str) -> None:
    """One configuration, and no other, has shown that it helps."""
    record = failing()
    repair = record["localization"]["repair"]
    repair |= {"configuration": "emitter/acme", **fields}
    validate(record)
    assert repaired(repair).partition("; with that ")[2] == f"emitter/acme {told}"
    text = section(record, "where").partition("What would put it right")[2]
    assert status.replace(" ", "") in text.replace(" ", "")
    assert "emitter/acme" in text


def test_which_backends_show_the_fault() -> None:
    record = failing()
    found = record["localization"]["reproducer"]
    assert shown_by(found) == ""
    found |= {"backends": ON, "needs": ["iree-base-compiler==3.12.0"], "notes": ["It was made smaller."]}
    validate(record)
    assert shown_by(found) == TOLD
    text = section(record, "where")
    for words in (f"It is {TOLD}.", "It needs iree-base-compiler==3.12.0.", "It was made smaller."):
        assert words.replace(" ", "") in text.replace(" ", "")
    assert "XLA 0.10.2; not known of PJRT mine" in summary.render(record)
    assert "reproducer: shown by IREE 3.13.0" in junit.render(record)


def with_another_backend() -> Record:
    """A run with a fault, and with a backend of another version that gives no answer."""
    record = failing()
    record["matrix"]["backends"].append(
        {"name": "iree==3.12.0", "title": "IREE 3.12.0", "family": "iree", "said": "IREE 3.12.0 <b>", "passed": False}
    )
    cell = {
        "source": "emitter",
        "backend": "iree==3.12.0",
        "state": "unknown",
        "first": "it died <i>",
        "anchor": "lm_head",
    }
    record["matrix"]["cells"].append(cell)
    validate(record)
    return record


def test_what_each_backend_makes_of_each_source() -> None:
    record = with_another_backend()
    text = section(record, "backends").replace(" ", "")
    for words in (*record["matrix"]["sentences"], "IREE 3.12.0 <b>", "not known", "it died <i>", "not asked"):
        assert words.replace(" ", "") in text
    record["matrix"] |= {"backends": record["matrix"]["backends"][:1], "cells": []}
    assert "h-backends" not in page_of(record).attributes("id"), "one backend is no matrix"


def test_backends_are_rows_on_a_terminal_where_columns_would_not_fit(tmp_path: Path) -> None:
    def shown(record: Record) -> str:
        console = Console(record=True, width=80)
        print_record(record, tmp_path, console)
        return console.export_text()

    record = with_another_backend()
    assert "chat@64" in shown(record), "prompts are rows as long as the columns' heads are short"
    record["configurations"][1]["backend"] = "iree==3.12.0"
    text = shown(record)
    for words in ("IREE 3.12.0", "unknown", "lm_head", "not asked", record["matrix"]["sentences"][0][:40]):
        assert words in text


def test_one_click_leads_to_the_wrong_operation() -> None:
    record = failing()
    page = page_of(record)
    assert page.attributes("id").count("wrong-op") == page.attributes("href").count("#wrong-op") == 1
    (phase,) = [phase for phase in graphs.side_by_side(record) if phase["wrong"]]
    (row,) = [row for scope in phase["scopes"] for row in scope["rows"] if row["wrong"]]
    assert row["sides"][1]["line"] == record["localization"]["operation"]["line"]
    assert row["words"][1] == "first wrong"
    record["localization"]["operation"]["line"] = 99_999
    assert page_of(record).attributes("id").count("wrong-op") == 1  # then the scope stands for it
    for change in ({"listings": []}, {"localization": None}):
        assert "wrong-op" not in page_of(failing() | change).attributes("id")


def test_page_says_which_anchors_are_over() -> None:
    record = failing()
    maps = heat.heat_maps(record)
    assert maps[0]["configuration"] == record["localization"]["configuration"]
    text = section(record, "anchors")
    assert f"{maps[0]['over']} of {maps[0]['anchors']} anchors over the limit" in text
    assert not any(row["over"] for row in heat.heat_maps(conforms()))
    assert re.search(r"all \d+ within their limits", section(conforms(), "anchors"))
    assert "has no floors to judge them by" in section(record | {"floors": []}, "anchors")
    worst = heat.heat_maps(conforms())[0]["worst"]
    assert f"{worst.anchor} at position {worst.position} of {worst.prompt}" in section(conforms(), "anchors")


def test_an_anchor_that_only_some_layers_have() -> None:
    names = ["embed_tokens", *(f"layers.0.{k}" for k in "abd"), *(f"layers.1.{k}" for k in "acd"), "norm"]
    assert heat._kinds(names) == ["embed_tokens", "a", "c", "b", "d", "norm"]


# ---- logits and speed


def test_page_says_how_near_an_error_came_to_a_token() -> None:
    text = section(conforms(), "logits")
    rows = charts.logits(conforms())
    assert {row["configuration"] for row in rows} == {
        c["id"] for c in conforms()["configurations"] if c["head"] != "token"
    }
    assert all(row["worst"]["ratio"] == max(p["ratio"] for p in row["points"]) <= 1 for row in rows)
    for row in rows:
        nearest = row["nearest"]
        assert nearest["nearest"] == min(p["nearest"] for p in row["points"])
        assert f"{figure(nearest['nearest'][0])}×step {nearest['nearest'][1]} of {nearest['prompt']}" in text
    record = near_tie()
    prompt = prompt_of(record)
    prompt["reference"]["gaps"][1] = 1e-12
    assert re.search(rf"e-\d+×step 1 of {prompt['id']}", section(record, "logits"))


def test_speed_is_compared_round_by_round() -> None:
    record = conforms()
    ours, peer = record["speed"]["contenders"][:2]
    ours["ms_per_token"], peer["ms_per_token"] = [10.0, 20.0, 40.0], [20.0, 20.0, 20.0]
    for other in record["speed"]["contenders"][2:]:
        other["ms_per_token"] = [1.0] * 3
    row = charts.speed(record)["rows"][1]  # type: ignore[index]
    assert (row["per_second"][1], row["ratio"]) == (50.0, (0.5, 1.0, 2.0))
    assert "Speed was not measured" in section(failing(), "time")


# ---- graphs

OPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=9)


def ops(pairs: list[tuple[str, str]]) -> list[Any]:
    return [{"op": op, "type": type_, "line": None, "text": ""} for op, type_ in pairs]


@settings(deadline=None)
@given(OPS, OPS)
def test_alignment_leaves_nothing_out_and_turns_nothing_round(a: Any, b: Any) -> None:
    left, right = ops(a), ops(b)
    pairs = align(left, right)
    assert [p.left for p in pairs if p.left is not None] == list(range(len(left)))
    assert [p.right for p in pairs if p.right is not None] == list(range(len(right)))
    for p in pairs:
        if p.left is None or p.right is None:
            assert p.state == ("right" if p.left is None else "left")
        else:
            x, y = left[p.left], right[p.right]
            assert x["op"] == y["op"]
            assert p.state == ("same" if x["type"] == y["type"] else "changed")
    assert [p.state for p in align(left, left)] == ["same"] * len(left)


@pytest.mark.parametrize("make", [conforms, failing, suite])
def test_every_listed_operation_is_on_the_page(make: Any) -> None:
    record = make()
    graph = {graph["id"]: graph for graph in record["graphs"]}
    shown = {phase["phase"]: phase for phase in graphs.side_by_side(record)}
    for listing in record["listings"]:
        judged = any(s["judged"] and s["id"] == graph[listing["graph"]]["source"] for s in record["sources"])
        scopes = shown[graph[listing["graph"]]["phase"]]["scopes"]
        found = [row["sides"][judged]["text"] for s in scopes for row in s["rows"] if row["sides"][judged]]
        assert {op["text"] for scope in listing["scopes"] for op in scope["ops"]} == set(found)


def test_parts_of_a_layer_stand_below_what_they_read() -> None:
    record = failing()
    found = graphs.block(record)
    assert found is not None
    read = [(i, at) for at, part in enumerate(found["parts"]) for i in part["reads"]]
    assert sorted(read) == sorted((a, b) for a, b in record["block"]["edges"])
    assert all(i < at for i, at in read)
    (wrong,) = [part for part in found["parts"] if part["wrong"]]
    assert wrong["node"]["anchor"] == record["verdict"]["anchor"]
    assert wrong["share"] > 1
    assert f"✕ {figure(wrong['share'])}×" in section(record, "graphs")


def test_a_census_has_the_counts_of_both_graphs() -> None:
    census = graphs.censuses(conforms())[0]
    for i, column in enumerate(census["columns"]):
        assert {op: counts[i] for op, counts in census["rows"] if counts[i]} == column["graphs"][0]["ops"]
    most = [max(counts) for _, counts in census["rows"]]
    assert most == sorted(most, reverse=True)
    text = section(conforms(), "graphs")
    assert "JAX oracle's graph" in text
    assert "Emitted graph" in text
    assert "File's graph" in section(pinned("check"), "tokens")


# ---- the summary


def test_summary_says_what_happened() -> None:
    record = failing()
    passed, failed = summary.render(conforms()), summary.render(record)
    assert passed.startswith("## ✅ hloracle: Conforms\n")
    assert failed.startswith(
        "> ⚠️ **This run carries a deliberate fault**, the mutant <code>rope-sign-last-layer</code>"
    )
    assert f"**First wrong at <code>{record['verdict']['anchor']}</code>" in failed
    assert "⚠️ no result" in summary.render(without_results())
    assert re.search(
        r" tokens equal, in \d+ of \d+ pairs of prompt and configuration", summary.render(without_results())
    )
    assert "🟡 **" in summary.render(near_tie())
    assert "Nothing was compared" in summary.render(empty())
    assert "Decode, a token: " in passed
    assert "Decode, a token" not in failed


def test_summary_of_a_suite_names_what_does_not_pass_above_the_table() -> None:
    written = summary.render(failing_suite())
    assert written.count("\n- ❌ <code>tiny-mistral</code>: Emitter fault at ") == 1
    begin = written.index("<details><summary>1 of 2 models passed</summary>")
    assert written.index("- ❌ <code>tiny-mistral") < written.index("| prompt |") < begin
    assert re.findall(r"^\| (✅|❌) <code>(\w+)", written[begin:], re.MULTILINE) == [("❌", "mistral"), ("✅", "llama")]
    assert "<details><summary>2 of 2 models passed</summary>" in summary.render(suite())


@pytest.mark.parametrize("name", ALL)
def test_summary_fits_and_ends_with_the_report(name: str) -> None:
    link = "https://github.com/owner/repo/actions/runs/1"
    written = summary.render(ALL[name](), link, "**Not compared.**")
    assert len(written) < summary.LIMIT
    assert written.count("<details>") == written.count("</details>")
    order = ["**Not compared.**", "checks: ", f"[The whole report](<{link}>)"]
    assert [written.index(words) for words in order] == sorted(written.index(words) for words in order)
    for rows in re.findall(r"(?:^\|.*\n)+", written, re.MULTILINE):
        assert len({row.count("|") for row in rows.splitlines() if "in report.html" not in row}) == 1


def test_summary_of_very_many_things_fits() -> None:
    record = hostile()
    record["checks"] += [record["checks"][0] | {"id": f"k{i} {HOSTILE}", "status": "failed"} for i in range(300)]
    record["prompts"] += [record["prompts"][0] | {"id": f"p{i} {HOSTILE}"} for i in range(300)]
    written = summary.render(record)
    assert len(written) < summary.LIMIT
    assert "more prompts in report.html" in written
    assert "more checks in report.html" in written


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "https://a b", "https://a>x", "https://a\n## x", "https://", " "]
)
def test_summary_links_to_nothing_but_an_address(link: str) -> None:
    with pytest.raises(Exception, match="is not a web address"):
        summary.render(conforms(), link)


@pytest.mark.parametrize(
    ("raw", "escaped"),
    [
        ("a_b q_proj", "a_b q_proj"),
        ("__init__ a_", "&#95;&#95;init&#95;&#95; a&#95;"),
        (":tada:", "&#58;tada:"),
        ("*a* `b` |", "&#42;a&#42; &#96;b&#96; &#124;"),
        ("chat@64 (@octocat)", "chat@64 (<code>@</code>octocat)"),
        ("see #12, # 3", "see <code>&#35;</code>12, &#35; 3"),
        ("see GH-12 and gh-3", "see GH<code>-</code>12 and gh<code>-</code>3"),
        ("- a", "&#45; a"),
        ("1. a", "1&#46; a"),
        ("1.5 is no list", "1.5 is no list"),
    ],
)
def test_summary_escapes_what_markdown_would_read(raw: str, escaped: str) -> None:
    assert summary.prose(raw, 80) == escaped


# ---- JUnit

# What Jenkins' xUnit plugin allows, junit-10.xsd. It takes no report with anything more.
XUNIT = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped", "time", "timestamp"}, {"properties", "testcase"}),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {"skipped", "error", "failure", "system-out"}),
    "skipped": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "failure": ({"type", "message"}, set()),
    "system-out": (set(), set()),
}


@pytest.mark.parametrize("name", ALL)
def test_junit_has_what_readers_take(name: str) -> None:
    record = ALL[name]()
    root = ET.fromstring(junit.render(record))
    for element in root.iter():
        attributes, children = XUNIT[element.tag]
        assert set(element.attrib) <= attributes
        assert {child.tag for child in element} <= children
        assert re.fullmatch(r"\d+\.\d{3}", element.get("time", "0.000"))
    # Of two with one name GitLab counts the first alone.
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(names)) == len(names)
    for part in root:
        assert int(part.get("tests", "")) == len(part.findall("testcase"))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(part.get(attribute, "")) == len(part.findall(f"testcase/{tag}"))
    assert (root.get("failures") == root.get("errors") == "0") == record["passed"]


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
    record = conforms()
    record["environment"]["date"] = date
    assert ET.fromstring(junit.render(record))[0].get("timestamp") == timestamp


def test_junit_of_a_configuration() -> None:
    record = conforms()
    column_of(record)["status"], column_of(record)["seconds"] = "ran", 18.2
    prompt = prompt_of(record)["id"]
    del record["tokens"][prompt]["configurations"][JUDGED]
    root = ET.fromstring(junit.render(record))
    (cases,) = [s for s in root if s.get("name") == f"tokens.{JUDGED}"]
    assert cases.get("time") == "18.200"
    assert [case.get("name") for case in cases if case.find("skipped") is not None] == [prompt]
    check_of(record)["status"] = "skipped"
    assert f"{JUDGED}.tokens" in junit.render(record)


# ---- all pages


def test_equal_records_give_equal_pages_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(failing()))
    program = "import sys; from pathlib import Path; from hloracle.reports.record import load, write_all; "
    program += "write_all(load(Path(sys.argv[1])), Path(sys.argv[2]))"
    pages = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", program, str(tmp_path / "report.json"), str(tmp_path / seed)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        pages.append([path.read_bytes() for path in sorted((tmp_path / seed).iterdir())])
    assert pages[0] == pages[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    """WCAG 2 AA: 4.5 for text, 3 for what is drawn."""
    style = resources.files("hloracle.reports").joinpath("templates/report.css").read_text("utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in style.split("* {")[0].split("@media"))
    colours = light if scheme == "light" else {**light, **dark}

    def contrast(a: str, b: str) -> float:
        high, low = sorted((luminance(colours[a]), luminance(colours[b])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    grounds = ["page", "raised", "sunken", "pass-tint", "fail-tint", "near-tint", "skip-tint"]
    pairs = [(t, g) for t in ("text", "muted") for g in grounds]
    pairs += [(k, g) for k in ("pass", "fail", "near", "skip") for g in (f"{k}-tint", "raised", "page")]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}
    drawn = [*(("cross", f"h{n}") for n in range(5, 9)), ("oracle", "raised"), ("emitter", "raised")]
    assert {pair: contrast(*pair) for pair in drawn if contrast(*pair) < 3} == {}


# ---- places along axes


@pytest.mark.parametrize(
    ("anchor", "split"),
    [
        ("layers.3.mlp.act", (3, "mlp.act")),
        ("layers.3", (3, "")),
        ("k_cache.12", (12, "k_cache")),
        ("norm", (None, "norm")),
        ("layers.9999999999.x", (None, "layers.9999999999.x")),
    ],
)
def test_layer_of(anchor: str, split: tuple[int | None, str]) -> None:
    assert layer_of(anchor) == split


@given(st.integers(1, 3000), st.integers(1, 200))
def test_as_many_are_named_as_there_is_room_for(n: int, most: int) -> None:
    assert 1 <= len(every(n, most)) <= most


def test_nothing_is_worse_than_nan() -> None:
    assert badness(None) < badness(0.0) < badness(float("nan"))


def test_a_record_with_two_near_ties_is_valid() -> None:
    record = near_tie()
    disagree(record, steps=(0, 1), near_ties=2)
    validate(record)
