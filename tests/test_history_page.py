"""The page of a history: what it says of the runs."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from history_rows import Row, hostile, kept, many, mixed, other_graph, runs
from page_text import Page, stands_alone, told
from records import failing

from hloracle.reports.history import charts as history_charts
from hloracle.reports.history import page as history_page

DRAWINGS = ["Largest error", "Decode speed"]


def shown(rows: list[Row]) -> str:
    """The page's text."""
    return Page(history_page.render(rows)).text


def drawn(rows: list[Row]) -> dict[str, Row]:
    """The drawings of a single series by title, and its lanes."""
    return {d["title"]: d for d in history_charts.drawings(rows)} | {"lanes": history_charts.lanes(rows)}


# ---- drawings


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.97, 1.2], 0.9, 1.2),
        ([1.0], 1.0, 1.05),
        ([2306.0, 3772.0], 2000.0, 4000.0),
        ([0.0], 0.0, 0.5),
        ([1.0, math.nextafter(1.0, 2)], 1.0, 1.0005),
    ],
)
def test_linear_axis(values: list[float], low: float, high: float) -> None:
    axis = history_charts.linear_axis(values)
    assert (axis.low, axis.high) == (pytest.approx(low), pytest.approx(high))
    assert 2 <= len(axis.ticks()) <= 6
    assert all(axis.at(axis.high) - 1e-6 <= axis.at(x) <= axis.at(axis.low) + 1e-6 for x in values)


def test_what_was_not_measured_is_a_gap() -> None:
    assert history_charts.stair([10.0, None, 20.0]).count("M") == 2
    found = drawn([kept("empty")])
    assert all(found[title]["missing"] for title in DRAWINGS)
    assert "The newest run says why: the run did not get so far" in found["Decode speed"]["missing"]


def test_a_verdict_has_a_lane_of_its_own() -> None:
    found = drawn([kept(), kept("emitter-fault"), kept("near-tie"), kept("without-results"), kept()])["lanes"]
    assert [lane["label"] for lane in found["verdicts"]] == ["Conforms", "Near tie", "Emitter fault", "Harness error"]
    assert found["label"].endswith("Conforms 2, Near tie 1, Emitter fault 1, Harness error 1. The newest: Conforms.")


def test_an_error_over_its_limit_has_a_mark() -> None:
    assert drawn([kept(), kept("emitter-fault")])["Largest error"]["points"]
    assert drawn([kept()])["Largest error"]["points"] == []


def other_peer(row: Row) -> None:
    row["speed"]["ratio"]["peer"] = "another"


@pytest.mark.parametrize(
    "change", [lambda row: row.update(cpu="another"), lambda row: row["settings"].update(threads=99)]
)
def test_speeds_that_cannot_be_compared_are_not_joined(change: Callable[[Row], Any]) -> None:
    rows = runs(4)
    for row in rows[2:]:
        change(row)
    speed = drawn(rows)["Decode speed"]
    assert len([p for p in speed["paths"] if p["kind"].startswith("stair")]) == 2


def test_speeds_in_words_are_those_beside_the_peer_that_is_named() -> None:
    rows = runs(4)
    for row, ratio in zip(rows, (9.0, 1.5, 2.0, 1.75), strict=True):
        row["speed"]["ratio"] |= {"least": ratio, "median": ratio, "most": ratio}
    other_peer(rows[0])
    speed = drawn(rows)["Decode speed"]
    assert "measured in 3 runs, the newest 1.75, lowest 1.5, highest 2; " in speed["label"]
    assert speed["label"].endswith("not drawn: 1 run beside another peer.")
    assert re.findall(r"M(\d)", speed["paths"][0]["d"]) == ["1", "2", "3"]


@pytest.mark.parametrize("error", [0.0, 1e-9, 1.0, 1e9, math.inf, math.nan])
def test_an_error_stands_on_its_axis_and_what_is_no_number_above_it(error: float) -> None:
    place, ends = history_charts._error_at(error), (history_charts._error_at(1e-3), history_charts._error_at(10.0))
    assert ends[0] >= place >= ends[1] if error < math.inf else place < ends[1]


# ---- the page

PAGES: dict[str, Callable[[], list[Row]]] = {
    "none": list,
    "one": lambda: [kept()],
    "empty": lambda: [kept("empty")],
    "only a mutant": lambda: [kept(mutant="rope-sign")],
    "mixed": mixed,
    "hostile": hostile,
    "many": many,
    "very many": lambda: runs(2000),
    "changes": lambda: runs(700, "emitter-fault", lambda i, row: other_graph(row, i)),
}


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_page_stands_alone_and_can_be_read_without_seeing_it(make: Callable[[], list[Row]]) -> None:
    source = history_page.render(make())
    stands_alone(source)
    told(source)
    assert len(source.encode()) < 2_000_000


def test_page_says_what_happened() -> None:
    rows = mixed()
    page = shown(rows)
    assert history_page.render(rows) == history_page.render(copy.deepcopy(rows))
    assert f"{len(rows)} runs." in page
    assert "20 of 24" in page
    assert re.search(r"Versions: jax \S+ → 99.0", page)
    assert "→ another processor" in page
    assert f"Verdict: Emitter fault at {failing()['verdict']['anchor']}, after Conforms" in page
    assert re.search(r"Graph: Emitted graph: decode [\d,]+ → [\d,]+ operations", page)
    assert "1 run with a deliberate fault is not drawn" in page


def test_models_of_a_suite_that_changed() -> None:
    all_ = {"passed": 16, "total": 16, "failing": []}
    rows = runs(4)
    rows[1]["families"] = rows[3]["families"] = all_
    rows[2]["families"] = {"passed": 14, "total": 16, "failing": ["tiny-qwen3", "tiny-phi3"]}
    page = shown(rows)
    assert "Models: 16 of 16 models pass, after a run of one" in page
    assert "Models: 14 of 16 models pass, after 16 of 16, not tiny-qwen3, tiny-phi3" in page
    assert "Models: 16 of 16 models pass, after 14 of 16, again tiny-qwen3, tiny-phi3" in page
    assert "Models: 16 models were judged, then one" in shown([*rows, runs(5)[4]])


def test_what_was_not_compared_is_said_when_it_changed() -> None:
    rows = runs(3)
    rows[1]["verdict"]["not_compared"] = ["the logits: a token"]
    assert "Compared: not any more: the logits: a token" in shown(rows)
    assert "Compared: now, and was not: the logits: a token" in shown(rows)
    assert "not compared: the logits: a token" in shown(rows[:2])


def test_a_series_is_a_model_on_a_device_in_a_precision() -> None:
    rows = runs(5)
    rows[1]["settings"]["device"] = "cuda"
    rows[2]["settings"]["precision"] = "bf16"
    rows[3]["model"]["name"] = "another"
    rows[4]["sources"][-1] |= {"title": "File's graph"}
    page = Page(history_page.render(rows))
    assert [i for i in page.attributes("id") if i.startswith("series-")] == [f"series-{i}" for i in range(5)]
    assert "cpu, f32, File's graph" in page.text


def test_the_newest_run_stands_first_in_the_table() -> None:
    rows = runs(30)
    source = history_page.render(rows)
    numbers = source[source.index('class="fold numbers"') :]
    found = re.findall(r'<th scope="row" class="sticky"><code>(\w+)</code>', numbers)
    assert found == [row["commit"][:7] for row in reversed(rows)]


def test_a_mutant_is_in_no_drawing() -> None:
    rows = runs(4)
    rows[3] |= {"mutant": "rope-sign", "cpu": "another"}
    assert "another" not in shown(rows)


def test_processors_that_take_turns_are_told_once() -> None:
    rows = runs(40)
    for row in rows[1::2]:
        row["cpu"] = "another"
    rows[30]["cpu"] = "a third"
    assert shown(rows).count("Processor: ") == 2


def test_a_graph_is_compared_with_the_last_that_is_known() -> None:
    rows = runs(3)
    rows[1]["graphs"] = []
    other_graph(rows[2], -30)
    page = shown(rows)
    assert "gone" in page
    assert re.search(r"Emitted graph: decode [\d,]+ → [\d,]+ operations, prefill back unchanged", page)


def test_what_there_is_no_room_for_is_said() -> None:
    page = shown(runs(700))
    assert "The 400 runs before these are only in the store." in page
    others = [kept(model={"name": name, "digest": ""}) for name in "abc"]
    page = shown([*runs(200), *others])
    assert "The 50 runs before these are drawn above; their numbers are only in the store." in page


def test_hostile_text_is_shown_and_does_nothing() -> None:
    source = history_page.render(hostile())
    assert "<script" not in source
    assert "<img" not in source
    assert "<script>alert(1)</script>" in Page(source).text
    assert not {"\u202e", "\u2066", "\x00", "\x07", "\x1b", "\x7f", "\x85", "\u200b", "\ud800", "\ufeff"} & set(source)
