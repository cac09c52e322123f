"""The page of a history: its drawings, and what it says of the runs."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from history_rows import Row, hostile, kept, many, mixed, other_graph, runs
from page_text import Page, stands_alone, told
from test_reports_sample import HOSTILE

from hloracle.reports.history import charts as history_charts
from hloracle.reports.history import page as history_page

Change = Callable[[Row], None]

DRAWINGS = ["Tokens", "Largest error", "Decode speed", "Operations of decode"]


# ---- drawings


@pytest.mark.parametrize(
    ("ys", "crossed", "path"),
    [
        ([], [], ""),
        ([None, None], [], ""),
        ([10.0, 10.0, 20.0], [], "M0 10h1L1 10h1L2 20h1"),
        ([10.0, None, 20.0], [], "M0 10h1M2 20h1"),
        ([10.0, None, 20.0], [False, True, False], "M0 10h1L2 20h1"),
        ([None, 10.0, None], [True, False, True], "M1 10h1"),
    ],
)
def test_a_stair_ends_where_nothing_was_measured(ys: list[float | None], crossed: list[bool], path: str) -> None:
    assert history_charts.stair(ys, crossed) == path


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.97, 1.2], 0.9, 1.2),
        ([1.0], 1.0, 1.05),
        ([2306.0, 3772.0], 2000.0, 4000.0),
        ([2306.0, 2307.0], 2306.0, 2307.0),
        ([0.0], 0.0, 0.5),
        ([2.0**53], 9e15, 9.5e15),
        ([1.0, math.nextafter(1.0, 2)], 1.0, 1.0005),
        ([1e-3, 1e3], 0.0, 1000.0),
    ],
)
def test_linear_axis(values: list[float], low: float, high: float) -> None:
    axis = history_charts.linear_axis(values)
    assert (axis.low, axis.high) == (pytest.approx(low), pytest.approx(high))
    ticks = axis.ticks(lambda x: f"{x:.4g}")
    assert 2 <= len(ticks) <= 6
    assert (float(ticks[0]["y"]), float(ticks[-1]["y"])) == (axis.begin, axis.end)
    assert all(axis.end - 1e-6 <= axis.at(x) <= axis.begin + 1e-6 for x in values)


def drawn(rows: list[Row]) -> dict[str, Row]:
    """The drawings of a single series by title, and its lanes."""
    columns = history_charts.Columns(rows, [range(i, i + 1) for i in range(len(rows))], max(len(rows), 12))
    processors = {cpu: chr(65 + i) for i, cpu in enumerate(dict.fromkeys(row["cpu"] for row in rows))}
    found = {d["title"]: d for d in history_charts.drawings(columns, processors)}
    return found | {"lanes": history_charts.lanes(columns, processors)}


def path_of(drawing: Row, kind: str) -> str:
    (path,) = [p["d"] for p in drawing["paths"] if p["kind"] == kind]
    return str(path)


def test_drawings_have_gaps_and_no_zeros() -> None:
    found = drawn([kept(), kept("empty_sample"), kept()])
    for title, kind in zip(DRAWINGS, ("equal", "stair emitter", "stair emitter", "stair emitter"), strict=True):
        assert re.fullmatch(r"M0 (\S+)h1M2 \1h1", path_of(found[title], kind)), title
    assert path_of(found["Tokens"], "differ") == ""
    assert "1 run compared none" in found["Tokens"]["label"]


@pytest.mark.parametrize(
    ("least", "label"), [(0.1, "0.1×"), (0.05, "0.01×"), (0.0005, "≤ 0.1×"), (0, "≤ 0.1×"), ("NaN", "0.1×")]
)
def test_what_is_below_the_axis_is_said_to_be(least: Any, label: str) -> None:
    rows = runs(2)
    rows[1]["anchor"] |= {"share": least}
    assert drawn(rows)["Largest error"]["ticks"][0]["label"] == label


def test_drawings_of_nothing_say_so() -> None:
    found = drawn([kept("empty_sample")])
    for title in DRAWINGS:
        assert found[title]["missing"], title
    assert "The newest run says why: the run did not get so far" in found["Decode speed"]["missing"]


def test_a_verdict_has_a_lane_of_its_own() -> None:
    found = drawn([kept(), kept("failing_sample"), kept("near_tie_sample"), kept("broken_sample"), kept()])["lanes"]
    assert [(lane["label"], lane["d"]) for lane in found["verdicts"]] == [
        ("Conforms", "M0 .5h1M4 .5h1"),
        ("Near tie", "M2 .5h1"),
        ("Emitter fault", "M1 .5h1"),
        ("Harness error", "M3 .5h1"),
    ]
    assert found["label"].endswith("Conforms 2, Near tie 1, Emitter fault 1, Harness error 1. The newest: Conforms.")
    assert found["processors"] == []


def test_tokens_that_differ_stand_out_and_those_not_compared_too() -> None:
    tokens = drawn([kept(), kept("failing_sample"), kept("broken_sample"), kept("near_tie_sample")])["Tokens"]
    assert re.fullmatch(r"M1\.1 90V\S+h\.8V90z", path_of(tokens, "differ"))
    assert re.fullmatch(r"M3\.1 90V\S+h\.8V90z", path_of(tokens, "differ tied"))
    assert path_of(tokens, "equal") == "M0 90h1L1 90h1M3 90h1"
    assert path_of(tokens, "incomplete") == "M2 90h1"
    assert "none in 2 runs, some in 2 runs, at most 105" in tokens["label"]


def test_an_error_over_its_limit_has_a_mark() -> None:
    errors = drawn([kept(), kept("failing_sample"), kept("broken_sample")])["Largest error"]
    assert [point["x"] for point in errors["points"]] == ["12.5", "12.5", "20.83"]  # of the anchor, and of two logits
    assert path_of(errors, "stair emitter").count("M") == 1
    assert "logit: newest measured NaN, largest NaN, over the limit in 2 runs" in errors["label"]
    assert errors["ticks"][-1]["label"] == "≥ 10×"
    assert drawn([kept()])["Largest error"]["points"] == []


def other_machine(row: Row) -> None:
    row["cpu"] = "another"


def other_threads(row: Row) -> None:
    row["settings"]["threads"] = 4


def other_peer(row: Row) -> None:
    row["speed"]["ratio"]["peer"] = "transformers"


@pytest.mark.parametrize("change", [other_machine, other_threads, other_peer])
def test_speeds_that_cannot_be_compared_are_not_joined(change: Change) -> None:
    rows = runs(4)
    for row in rows[2:]:
        change(row)
    speed = drawn(rows)["Decode speed"]
    lines = [p["d"] for p in speed["paths"] if p["kind"].startswith("stair")]
    assert [re.sub(r" \S+?h1", "", line) for line in lines] == ["M0L1", "M2L3"]


def test_a_line_of_speeds_goes_across_another_machine_but_not_across_nothing() -> None:
    def lines(rows: list[Row]) -> list[str]:
        speed = drawn(rows)["Decode speed"]
        return [re.sub(r" \S+?h1", "", p["d"]) for p in speed["paths"] if p["kind"].startswith("stair")]

    rows = runs(5)
    other_machine(rows[2])
    assert lines(rows) == ["M0L1L3L4", "M2"]
    rows[2] = kept("empty_sample")
    assert lines(rows) == ["M0L1M3L4"]
    rows = runs(12)
    for row in rows[3 : 4 + history_charts.CROSSED]:
        other_machine(row)
    assert lines(rows)[0] == "M0L1L2M8L9L10L11"


def test_speeds_in_words_are_those_beside_the_peer_that_is_named() -> None:
    rows = runs(4)
    for row, ratio in zip(rows, (9.0, 1.5, 2.0, 1.75), strict=True):
        row["speed"]["ratio"] |= {"least": ratio, "median": ratio, "most": ratio}
    other_peer(rows[0])
    label = drawn(rows)["Decode speed"]["label"]
    assert "of oracle on XLA, by run: measured in 3 runs, the newest 1.75, lowest 1.5, highest 2; " in label
    assert label.endswith("beside another peer in 1 run.")
    assert "another peer" not in drawn(rows[1:])["Decode speed"]["label"]


def test_every_processor_has_a_lane_and_a_word_in_the_legend() -> None:
    rows = runs(9, change=lambda i, row: row.update(cpu=f"processor {i}"))
    found = drawn(rows)
    lanes = [(lane["label"], lane["d"]) for lane in found["lanes"]["processors"]]
    assert lanes[-2:] == [("F", "M5 .5h1"), ("G–I", "M6 .5h1M7 .5h1M8 .5h1")]
    assert drawn(rows[:7])["lanes"]["processors"][-1]["label"] == "G"
    styles = {path["kind"].removeprefix("stair ") for path in found["Decode speed"]["paths"][1:]}
    legend = dict(found["Decode speed"]["legend"][:-2])
    assert legend.keys() == styles
    assert legend["emitter dash3"] == "median on D, E, F and 3 more"
    assert drawn(rows[:4])["Decode speed"]["legend"][3] == ("emitter dash3", "median on D")


def test_the_band_is_from_the_slowest_to_the_fastest_round() -> None:
    row = kept()
    row["speed"]["ratio"] |= {"least": 1.0, "median": 1.5, "most": 2.0}
    speed = drawn([row])["Decode speed"]
    assert path_of(speed, "band") == "M0 10h1V92h-1z"
    assert path_of(speed, "stair emitter") == "M0 51h1"
    assert [tick["label"] for tick in speed["ticks"]] == ["1×", "1.5×", "2×"]
    assert speed["level_y"] == "92"


def test_a_graph_that_changed_has_a_mark_and_its_number() -> None:
    rows = runs(6)
    for row in rows[2:4]:
        other_graph(row)
    for row in rows[4:]:
        other_graph(row, -30)
        row["graphs"][1]["digest"] = "1" * 16
    operations = drawn(rows)["Operations of decode"]
    assert [(p["x"], p["kind"]) for p in operations["points"]] == [("16.67", "emitter"), ("33.33", "emitter")]
    assert [t["label"] for t in operations["texts"]] == ["−30"]
    assert "Emitted graph: newest 2,276, changed 2 times" in operations["label"]
    assert "JAX oracle's graph: newest 3,772, changed 0 times" in operations["label"]


def test_runs_that_share_a_column_are_all_on_the_axis_of_operations() -> None:
    rows = runs(400)
    other_graph(rows[200], 99_999 - 2306)
    other_graph(rows[201], -1000)
    columns = history_charts.Columns(rows, [range(i, i + 2) for i in range(0, 400, 2)], 200)
    operations = {d["title"]: d for d in history_charts.drawings(columns, {rows[0]["cpu"]: "A"})}[
        "Operations of decode"
    ]
    places = [float(point["y"]) for point in operations["points"] + operations["texts"]]
    assert len(places) == 4
    assert all(10 <= y <= 92 for y in places)


def test_without_digests_counts_decide() -> None:
    before, after = kept()["graphs"][1], kept()["graphs"][1] | {"digest": ""}
    assert not history_charts.changed(before, after)
    assert history_charts.changed(before, after | {"op_kinds": 18})
    assert history_charts.changed(before, kept()["graphs"][1] | {"digest": "0" * 16})


# ---- the page


PAGES: dict[str, Callable[[], list[Row]]] = {
    "none": list,
    "one": lambda: [kept()],
    "empty": lambda: [kept("empty_sample")],
    "only a mutant": lambda: [kept(mutant="rope-sign")],
    "mixed": mixed,
    "hostile": hostile,
    "many": many,
}


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_page_is_well_formed_and_alone(make: Callable[[], list[Row]]) -> None:
    stands_alone(history_page.render(make()))


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_page_can_be_read_without_seeing_it(make: Callable[[], list[Row]]) -> None:
    told(history_page.render(make()))


def test_equal_histories_give_equal_pages() -> None:
    assert history_page.render(mixed()) == history_page.render(copy.deepcopy(mixed()))


def test_page_says_what_happened() -> None:
    page = Page(history_page.render(mixed())).text
    assert "30 runs." in page
    assert re.search("Newest verdict ?Conforms ?for 3 runs, since ", page)
    assert "20 of 24" in page
    assert "Versions: jax 0.10.2 → 0.11.0" in page
    assert "Processor: AMD EPYC 9554 64-Core Processor → Intel(R) Xeon(R)" in page
    assert "Verdict: Emitter fault at layers.3.self_attn.q_rope, after Conforms" in page
    assert "Graph: Emitted graph: decode 2,306 → 2,276 operations" in page
    assert "1.04× the speed of oracle on XLA" in page
    assert "Runs with a deliberate fault" in page
    assert "rope-sign" in page
    assert "864/864, incomplete" in page


def test_models_of_a_suite_that_changed() -> None:
    all_ = {"passed": 16, "total": 16, "failing": []}
    rows = runs(4)
    rows[1]["families"] = all_
    rows[2]["families"] = {"passed": 14, "total": 16, "failing": ["tiny-qwen3", "tiny-phi3"]}
    rows[2]["verdict"] |= {"class": "emitter-fault", "passed": False}
    rows[3]["families"] = all_
    page = Page(history_page.render(rows)).text
    assert "Models: 16 of 16 models pass, after a run of one" in page
    assert "Models: 14 of 16 models pass, after 16 of 16, not tiny-qwen3, tiny-phi3" in page
    assert "Models: 16 of 16 models pass, after 14 of 16, again tiny-qwen3, tiny-phi3" in page
    assert "Newest verdict Conforms 16 of 16 models pass" in page.replace("verdictC", "verdict C").replace(
        "s16", "s 16"
    )
    rows.append(runs(5)[4])
    assert "Models: 16 models were judged, then one" in Page(history_page.render(rows)).text


def test_what_was_not_compared_is_said_of_the_newest_run_and_when_it_changed() -> None:
    rows = runs(5)
    for row, left_out in zip(rows, ([], ["the logits: a token"], ["the logits: a token"], [], None), strict=True):
        row["verdict"]["not_compared"] = left_out
    page = Page(history_page.render(rows)).text
    assert page.count("Compared: ") == 2  # of the last nobody knows
    assert "Compared: not any more: the logits: a token" in page
    assert "Compared: now, and was not: the logits: a token" in page
    assert "not compared: the logits" not in page
    assert "not compared: the logits: a token" in Page(history_page.render(rows[:3])).text


def test_a_series_is_a_model_on_a_device_in_a_precision() -> None:
    rows = runs(5)
    rows[1]["settings"] = {**rows[1]["settings"], "device": "cuda"}
    rows[2]["settings"] = {**rows[2]["settings"], "precision": "bf16"}
    rows[3]["model"] = {**rows[3]["model"], "name": "tiny-llama"}
    rows[4]["judged"] = "file"
    page = Page(history_page.render(rows))
    assert [i for i in page.attributes("id") if i.startswith("series-")] == [f"series-{i}" for i in range(5)]
    assert "cpu, f32, a graph from a file" in page.text
    assert "<title>History of 5 series · hloracle</title>" in history_page.render(rows)


def test_the_newest_run_stands_first_in_the_table() -> None:
    rows = runs(30)
    source = history_page.render(rows)
    numbers = source[source.index('class="fold numbers"') :]
    found = re.findall(r'<th scope="row" class="sticky"><code>(\w+)</code>', numbers)
    assert found == [row["commit"][:7] for row in reversed(rows)]


def test_a_mutant_is_in_no_drawing() -> None:
    rows = runs(4)
    rows[3] |= {"mutant": "rope-sign", "cpu": "another"}
    source = history_page.render(rows)
    assert "Newest verdict" in source
    assert "another" not in source
    assert "<rect x=" in source
    assert source.count("<rect x=") == 3


def test_numbers_that_are_missing_are_dashes() -> None:
    source = history_page.render([kept("empty_sample")])
    (line,) = re.findall(r'<tr><th scope="row" class="sticky">.*?</tr>', source)
    assert re.findall(r'<td class="num">(.*?)</td>', line) == ["–", "–", "0/0", *"–––––––"]


def test_many_changes_to_and_fro_are_told_once() -> None:
    rows = runs(40)
    for row in rows[1::2]:
        row["cpu"] = "another"
    rows[30]["cpu"] = "a third"
    page = Page(history_page.render(rows))
    assert page.text.count("Processor: ") == 2
    assert "Processor changed 39 times; shown is only what had not been there before." in page.text
    assert page.attributes("class").count("at") == 2 * len(DRAWINGS)
    few = Page(history_page.render(rows[:5])).text
    assert few.count("Processor: ") == 4
    assert "times; shown is only" not in few


def _told(*rows: Row) -> list[str]:
    """What the page lists as changes of graphs, the newest first."""
    found = Page(history_page.render(rows)).text
    assert ("Nothing: the verdict, the graphs and the machine are the same" in found) == ("Graph:" not in found)
    return re.findall(r"Graph: (.*?) (?=[0-9a-f]{7} 20|All numbers)", found)


def test_graphs_that_appear_and_vanish_are_changes() -> None:
    rows = runs(4)
    for row in rows[1:3]:
        row["graphs"] = [graph for graph in row["graphs"] if graph["source"] != "oracle"]
    for graph in rows[3]["graphs"][:1]:
        graph |= {"digest": "0123456789abcdef", "op_total": 3000}
    assert _told(rows[0], rows[0]) == []
    assert _told(*rows[:3]) == ["JAX oracle's graph: decode and prefill gone"]
    assert _told(*rows[1:3], rows[0]) == ["JAX oracle's graph: decode and prefill new"]
    assert _told(*rows)[0] == "JAX oracle's graph: decode 3,772 → 3,000 operations, prefill back unchanged"


def test_a_graph_is_compared_with_the_last_that_is_known() -> None:
    rows = runs(3)
    rows[1] |= {key: kept("empty_sample")[key] for key in ("verdict", "graphs")}
    other_graph(rows[2], -30)
    assert "Emitted graph: decode 2,306 → 2,276 operations, prefill back unchanged" in _told(*rows)[0]


def test_verdicts_at_other_anchors_are_not_the_same() -> None:
    rows = runs(3, "failing_sample")
    assert re.search(r"q_rope ?in all 3 runs", Page(history_page.render(rows)).text)
    for i, row in enumerate(rows):
        row["verdict"] = row["verdict"] | {"anchor": f"layers.2.{i}"}
    assert re.search(r"at layers\.2\.2 ?for 1 run, since", Page(history_page.render(rows)).text)


def test_numbers_of_changes_stand_at_their_lines() -> None:
    rows = runs(40)
    for i, row in enumerate(rows):
        row["settings"] = {
            **row["settings"],
            "threads": 2 + (i >= 10) + (i >= 11) + (i >= 30),
            "capacity": 256 if i < 30 else 128,
        }
    source = history_page.render(rows)
    assert re.findall(r'<text class="no"[^>]*>([^<]*)</text>', source) == ["1–2", "3"]
    crowded = history_page.render(runs(40, change=lambda i, row: row.update(hloracle=f"0.{i // 5}")))
    assert re.findall(r'<text class="(no[^"]*)"', crowded) == ["no", "no alternate"] * 3 + ["no"]
    assert [m[0] for m in re.findall(r'<span class="no">(\d)</span>', source)] == ["3", "3", "2", "1"]
    assert "Settings:</strong> <bdi>capacity 256 → 128" in source
    assert "2 → 3 threads" in source


def test_weights_that_changed_are_a_change() -> None:
    rows = runs(2)
    rows[1]["model"] = {**rows[1]["model"], "digest": "f" * 64}
    assert "Weights: SHA-256 b179c9523d0e → ffffffffffff" in Page(history_page.render(rows)).text


def test_hostile_text_is_shown_and_does_nothing() -> None:
    source = history_page.render(hostile())
    page = Page(source)
    assert "<script" not in source
    assert "<img" not in source
    assert "<script>alert(1)</script>" in page.text
    assert not {"\u202e", "\u2066", "\x00", "\x07", "\x1b", "\x7f", "\x85", "\u200b", "\ud800", "\ufeff"} & set(source)
    source.encode()
    assert HOSTILE[-100:] not in source


def _of_models(n: int, each: int) -> list[Row]:
    rows = [row | {"model": row["model"] | {"name": f"model {k}"}} for k in range(n) for row in runs(each)]
    return sorted(rows, key=lambda row: str(row["date"]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: runs(2000),
        lambda: runs(700, "hostile_sample", lambda i, row: row.update(mutant=None, cpu=f"{i} {row['cpu']}"[:200])),
        lambda: runs(700, "failing_sample", lambda i, row: other_graph(row, i)),
        lambda: _of_models(40, 60),
    ],
    ids=["runs", "hostile", "changes", "models"],
)
def test_page_of_very_many_runs_stays_small(make: Callable[[], list[Row]]) -> None:
    rows = make()
    source = history_page.render(rows)
    assert len(source.encode()) < 2_000_000
    Page(source)


def test_what_there_is_no_room_for_is_said() -> None:
    page = Page(history_page.render(runs(700))).text
    assert "Up to 4 runs share a column, which shows each of their verdicts, the most tokens that differ, " in page
    assert "The 100 runs before these are drawn above; their numbers are only in the store." in page
    page = Page(history_page.render(_of_models(30, 1))).text
    assert "6 more series of which the last run is older are only in the store." in page
    page = Page(history_page.render(runs(120, change=lambda i, row: row.update(mutant=f"m{i}")))).text
    assert "20 older runs of this kind are only in the store." in page


def test_a_column_of_several_runs_shows_the_worst() -> None:
    rows = runs(800)
    rows[401] = rows[401] | {key: kept("failing_sample")[key] for key in ("verdict", "anchor", "tokens")}
    source = history_page.render(rows)
    (tip,) = re.findall(r"<title>(4 runs[^<]*Emitter fault[^<]*)</title>", source)
    assert "1,335 of 1,440 tokens equal" in tip
    assert "worst anchor at layers.3.self_attn.q_rope: 25,375 of its limit" in tip
    assert "Conforms, Emitter fault" in tip
