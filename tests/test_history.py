"""The history: what is kept of a run, the file it is kept in, and the page and the list drawn from it."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from page_text import Page, stands_alone, told
from rich.console import Console
from test_reports_sample import (
    HOSTILE,
    SAMPLES,
    empty_sample,
    failing_sample,
    near_tie_sample,
    sample,
)

from hloracle.conformance import cli
from hloracle.core.errors import InputError
from hloracle.reports.history import charts as history_charts
from hloracle.reports.history import page as history_page
from hloracle.reports.history.store import SCHEMA, add, read, row_of
from hloracle.reports.history.table import table
from hloracle.reports.record import VERDICTS, to_json

Row = dict[str, Any]
Change = Callable[[Row], None]

ROWS = {make.__name__: row_of(make()) for make in SAMPLES}
DRAWINGS = ["Tokens", "Largest error", "Decode speed", "Operations of decode"]


def kept(name: str = "sample", **changes: Any) -> Row:
    return copy.deepcopy(ROWS[name]) | changes


def runs(n: int, name: str = "sample", change: Callable[[int, Row], None] = lambda i, row: None) -> list[Row]:
    """A run a day."""
    made = []
    for i in range(n):
        digest = hashlib.sha256(f"{name} {i}".encode()).hexdigest()
        date = f"{2024 + i // 336:04}-{i // 28 % 12 + 1:02}-{i % 28 + 1:02}T08:00:00+00:00"
        row = kept(name, run=digest, commit=digest[:40], date=date)
        change(i, row)
        made.append(row)
    return made


def written(folder: Path, *records: dict[str, Any]) -> list[Path]:
    paths = [folder / f"{i}.json" for i in range(len(records))]
    for path, record in zip(paths, records, strict=True):
        path.write_text(to_json(record))
    return paths


def at(commit: str, date: str = "2025-11-21T05:12:44+00:00") -> dict[str, Any]:
    """A small record that is not another commit's."""
    record = empty_sample()
    record["environment"] |= {"commit": commit, "date": date}
    return record


# ---- a row


def test_a_row_says_what_the_record_says() -> None:
    row = ROWS["sample"]
    assert row["schema"] == SCHEMA
    assert (row["commit"], row["date"]) == ("4b68c0c2f1d0e9a7b6c5d4e3f2a1b0c9d8e7f6a5", "2025-11-21T05:12:44+00:00")
    assert (row["mutant"], row["judged"]) == (None, "emitter")
    assert row["model"]["name"] == "smollm2-135m-instruct"
    assert row["verdict"] == {"class": "conforms", "passed": True, "anchor": None}
    assert row["tokens"] == {"agreed": 1440, "total": 1440, "compared": 30, "planned": 30}
    assert row["checks"] == {"passed": 13, "failed": 0, "error": 0, "skipped": 1}
    assert row["logit"] == {"share": 0.429654, "cell": "emitter/xla-cpu", "prompt": "capacity@256"}
    assert row["anchor"] == {
        "name": "layers.20", "floors": 6.443, "share": 0.805375, "cell": "emitter/iree-cpu", "phase": "decode",
    }  # fmt: skip
    assert row["floor"] == 2.04e-07
    assert [c["ms_per_token"] for c in row["speed"]["contenders"]] == [23.2, 24.2, 54.8]
    assert row["speed"]["ratio"]["peer"] == "oracle/xla-cpu"
    assert row["speed"]["ratio"]["rounds"] == 5
    assert (row["peak_bytes"], row["seconds"]) == (2_913_845_248, 152.15)
    counts = {(g["source"], g["phase"]): g["op_total"] for g in row["graphs"]}
    assert counts == {("oracle", "decode"): 3772, ("emitter", "decode"): 2306, ("oracle", "prefill"): 3804, ("emitter", "prefill"): 2398}  # fmt: skip


def test_ratios_are_taken_round_by_round() -> None:
    record = sample()
    ours, peer, _ = record["speed"]["contenders"]
    # In the second round the whole machine was slow, which the ratio of the medians would not know.
    ours["ms_per_token"], peer["ms_per_token"] = [20.0, 40.0, 20.0], [30.0, 60.0, 22.0]
    ratio = row_of(record)["speed"]["ratio"]
    assert (ratio["least"], ratio["median"], ratio["most"], ratio["rounds"]) == (1.1, 1.5, 1.5, 3)


@pytest.mark.parametrize(
    "contenders",
    [
        [],
        [{"id": "a", "title": "a", "ms_per_token": [], "resident_bytes": None}] * 2,
        [{"id": "a", "title": "a", "ms_per_token": [1.0], "resident_bytes": None}],
        [
            {"id": n, "title": n, "ms_per_token": [ms], "resident_bytes": None}
            for n, ms in (("a", 5e-324), ("b", 1e308))
        ],
    ],
)
def test_without_a_peer_there_is_no_ratio(contenders: list[Row]) -> None:
    record = sample()
    record["speed"] |= {"contenders": contenders, "reason": "" if contenders else "asked to leave it out"}
    assert row_of(record)["speed"]["ratio"] is None


def test_what_was_not_measured_is_null_and_no_zero() -> None:
    row = ROWS["empty_sample"]
    for key in ("logit", "anchor", "floor", "peak_bytes", "seconds"):
        assert row[key] is None, key
    assert row["graphs"] == row["speed"]["contenders"] == []
    assert row["tokens"] == {"agreed": 0, "total": 0, "compared": 0, "planned": 0}


def test_nan_is_the_worst() -> None:
    assert ROWS["broken_sample"]["logit"] == {"share": "NaN", "cell": "emitter/xla-cpu", "prompt": "chat@64"}
    record = failing_sample()
    record["anchors"][2]["errors"][40][3] = "NaN"
    assert row_of(record)["anchor"]["share"] == "NaN"
    record["anchors"][2]["errors"][40][3] = "Infinity"
    assert row_of(record)["anchor"]["floors"] == "Infinity"
    record["floors"] = [floor | {"relative": "NaN"} for floor in record["floors"]]
    assert row_of(record)["floor"] == "Infinity"


def test_an_error_without_a_limit_has_no_share() -> None:
    record = failing_sample()
    record["floors"] = []
    assert row_of(record)["anchor"] is None
    assert row_of(record)["floor"] is None


def test_any_graph_of_a_phase_changes_its_digest() -> None:
    record = sample()
    record["graphs"][-1]["digest"] = "0" * 64  # the emitter's largest bucket
    before, after = (
        {(g["source"], g["phase"]): g["digest"] for g in row["graphs"]} for row in (ROWS["sample"], row_of(record))
    )
    assert {key for key in before if before[key] != after[key]} == {("emitter", "prefill")}
    record["graphs"][-1]["digest"] = ""
    assert [g["digest"] == "" for g in row_of(record)["graphs"]] == [False, False, False, True]


def test_a_file_that_was_judged() -> None:
    record = sample()
    record["graphs"] = [graph | {"source": "file", "head": "token"} for graph in record["graphs"][:1]]
    row = row_of(record)
    assert row["judged"] == "file"
    assert [(g["source"], g["phase"]) for g in row["graphs"]] == [("file", "decode")]


@pytest.mark.parametrize(
    ("date", "seen"),
    [
        ("2025-11-21T05:12:44+00:00", "2025-11-21T05:12:44+00:00"),
        ("2025-11-21T05:12:44.75+02:00", "2025-11-21T03:12:44+00:00"),
        ("2025-11-21T05:12", "2025-11-21T05:12:00+00:00"),
        ("2025-11-21T05:12 or so", "2025-11-21T05:12"),
        ("2025-99-99T99:99", "2025-99-99T99:99"),
        ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00"),
    ],
)
def test_dates_have_one_form(date: str, seen: str) -> None:
    record = sample()
    record["environment"]["date"] = date
    assert row_of(record)["date"] == seen


# ---- the store


@pytest.mark.parametrize("make", SAMPLES)
def test_what_is_added_is_read_back(tmp_path: Path, make: Callable[[], dict[str, Any]]) -> None:
    store = tmp_path / "history.jsonl"
    ((row, new),) = add(store, written(tmp_path, make()))
    assert new
    assert read(store) == [row]
    assert row == json.loads(json.dumps(ROWS[make.__name__]))
    assert store.read_bytes().isascii()
    assert store.read_text().count("\n") == 1
    assert len(store.read_text()) < 9000


def test_a_run_is_there_once(tmp_path: Path) -> None:
    store, (one, two) = tmp_path / "history.jsonl", written(tmp_path, at("one"), at("two"))
    assert [new for _, new in add(store, [one, one])] == [True, False]
    before = store.stat()
    assert [new for _, new in add(store, [one])] == [False]
    assert store.stat().st_mtime_ns == before.st_mtime_ns
    assert [new for _, new in add(store, [one, two])] == [False, True]
    assert [row["commit"] for row in read(store)] == ["one", "two"]
    assert store.stat().st_mode & 0o777 == before.st_mode & 0o777


def test_a_run_of_another_time_is_another_run(tmp_path: Path) -> None:
    store, reports = tmp_path / "history.jsonl", written(tmp_path, at("a"), at("a", "2025-11-22T05:12:44+00:00"))
    assert [new for _, new in add(store, reports)] == [True, True]


def test_runs_are_in_order_of_time(tmp_path: Path) -> None:
    store = tmp_path / "history.jsonl"
    days = ["2025-11-21T05:12:44+00:00", "2025-11-20T23:00:00-05:00", "2025-11-21T01:00:00+00:00"]
    add(store, written(tmp_path, *(at(str(i), day) for i, day in enumerate(days))))
    assert [row["commit"] for row in read(store)] == ["2", "1", "0"]


def test_the_commit_that_is_named_counts(tmp_path: Path) -> None:
    store, reports = tmp_path / "history.jsonl", written(tmp_path, at("mine"), at("a"))
    add(store, reports, "abc1234")
    assert [row["commit"] for row in read(store)] == ["abc1234"] * 2
    add(store, reports, "abc1234")
    add(store, reports)  # says nothing else
    with pytest.raises(InputError, match=r"history\.jsonl: the run \w{12} is there already, as commit abc1234; remove"):
        add(store, reports, "other")
    with pytest.raises(InputError, match="--commit: is empty"):
        add(store, reports, " ")
    assert len(read(store)) == 2


def test_a_record_of_the_version_before(tmp_path: Path) -> None:
    record = sample() | {"schema": "hloracle-report/2"}
    for key in ("listings", "block", "speed"):
        del record[key]
    del record["environment"]["commit"]
    for graph in record["graphs"]:
        for key in ("flops", "bytes", "digest"):
            del graph[key]
    for timing in record["timings"]:
        del timing["begin"], timing["parts"]
    (path,) = written(tmp_path, record)
    store = tmp_path / "history.jsonl"
    ((row, _),) = add(store, [path])
    assert row["commit"] is None
    assert row["speed"]["ratio"] is None
    assert {graph["digest"] for graph in row["graphs"]} == {""}
    with pytest.raises(InputError, match="is there already, without a commit"):
        add(store, [path], "abc1234")


@pytest.mark.parametrize(
    ("end", "lines"), [(b"", 2), (b"\n", 2), (b"\r\n", 2)], ids=["no newline", "newline", "carriage return"]
)
def test_lines_stay_as_they_are(tmp_path: Path, end: bytes, lines: int) -> None:
    store, (one, two) = tmp_path / "history.jsonl", written(tmp_path, at("one"), at("two"))
    add(store, [one])
    before = store.read_bytes().rstrip(b"\n")
    store.write_bytes(before + end)
    add(store, [two])
    assert store.read_bytes().startswith(before + (end or b"\n"))
    assert len(read(store)) == lines


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    store = tmp_path / "history.jsonl"
    store.symlink_to(tmp_path / "elsewhere" / "real.jsonl")
    add(store, written(tmp_path, at("one")))
    assert store.is_symlink()
    assert len(read(tmp_path / "elsewhere" / "real.jsonl")) == 1


def test_all_are_added_or_none(tmp_path: Path) -> None:
    store, (good, bad) = tmp_path / "history.jsonl", written(tmp_path, at("one"), at("two") | {"passed": True})
    with pytest.raises(InputError, match=r"1\.json: is not a valid record"):
        add(store, [good, bad])
    assert not store.exists()


def test_a_number_that_no_one_could_draw_is_refused_when_it_is_added(tmp_path: Path) -> None:
    record = at("one")
    record["memory"]["peak_bytes"] = 10**400
    with pytest.raises(InputError, match=r"0\.json: cannot be kept \(\$\.peak_bytes: "):
        add(tmp_path / "history.jsonl", written(tmp_path, record))


def test_a_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, (one, two) = tmp_path / "history.jsonl", written(tmp_path, at("one"), at("two"))
    add(store, [one])
    before = store.read_bytes()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="the disk is full"):
        add(store, [two])
    assert store.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [".history.jsonl.lock", "0.json", "1.json", "history.jsonl"]


def test_processes_append_at_once(tmp_path: Path) -> None:
    records = written(tmp_path, *(at(str(i)) for i in range(12)))
    store = tmp_path / "history.jsonl"
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        twice = [pool.submit(add, store, [record]) for record in records for _ in range(2)]
        added = [new for done in twice for _, new in done.result()]
    assert added.count(True) == 12
    assert sorted(int(row["commit"]) for row in read(store)) == list(range(12))
    assert store.read_text().count("\n") == 12


def _line(**changes: Any) -> str:
    return json.dumps(kept(**changes))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "Expecting value"),
        ("<<<<<<< HEAD", "Expecting value"),
        ("[" * 100_000, "recursion"),
        ("[]", "the schema is None, not 'hloracle-history/1'"),
        (_line(schema="hloracle-history/2"), "the schema is 'hloracle-history/2', not"),
        (_line(extra=1), "'extra' was unexpected"),
        (_line(date="today"), r"\$\.date: 'today' does not match"),
        (_line(commit="x" * 201), r"\$\.commit: 'xxxxx"),
        (_line(floor="small"), r"\$\.floor: 'small'"),
        (_line(seconds=-1), r"\$\.seconds: -1 is less"),
        (_line(peak_bytes=2**53), r"\$\.peak_bytes: .* is greater"),
        (_line().replace('"seconds": 152.15', '"seconds": NaN'), "NaN is not JSON"),
        (_line().replace('"seconds": 152.15', '"seconds": 1e999'), "1e999 is not JSON, or too large"),
        (_line(verdict={"class": "conforms", "passed": False, "anchor": None}), "passed is False, and the verdict is"),
        (_line(verdict={"class": "fine", "passed": True, "anchor": None}), r"\$\.verdict\.class: 'fine' is not one of"),
        (_line(tokens={"agreed": 5, "total": 3, "compared": 1, "planned": 1}), "tokens: 5 agreed of 3"),
        (_line(tokens={"agreed": 3, "total": 3, "compared": 2, "planned": 1}), "tokens: 2 compared of 1"),
        (_line(cpu="another"), "its run stands further up, and differs"),
    ],
)
def test_a_broken_line_is_refused_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    store = tmp_path / "history.jsonl"
    before = f"{_line()}\n{line}\n{json.dumps(kept('near_tie_sample'))}\n"
    store.write_text(before)
    for use in (lambda: read(store), lambda: add(store, written(tmp_path, at("one")))):
        with pytest.raises(
            InputError, match=rf"history\.jsonl, line 2: is no run of a history \(.*{message}"
        ) as caught:
            use()
        assert "mend this line or remove it" in str(caught.value)
        assert len(str(caught.value)) < 500
    assert store.read_text() == before


def test_a_line_twice_is_one_run(tmp_path: Path) -> None:
    store = tmp_path / "history.jsonl"
    store.write_text(f"{_line()}\n" * 2)
    assert len(read(store)) == 1


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["none", "not text"])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    store = tmp_path / "history.jsonl"
    if content is not None:
        store.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read" if content else "no such file; add a run to it with"):
        read(store)


def test_schema_and_code_know_the_same_classes() -> None:
    schema = json.loads(resources.files("hloracle.reports.history").joinpath("history.schema.json").read_text("utf-8"))
    assert schema["properties"]["schema"]["const"] == SCHEMA
    assert schema["properties"]["verdict"]["properties"]["class"]["enum"] == list(VERDICTS)


def _objects(node: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(node, dict):
        yield path, node
    for key, entry in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _objects(entry, (*path, key))


def test_every_key_is_required(tmp_path: Path) -> None:
    store, row, seen = tmp_path / "history.jsonl", kept(), 0
    row |= {"graphs": row["graphs"][:1]}
    row["speed"]["contenders"] = row["speed"]["contenders"][:1]
    for path, node in list(_objects(row)):
        for key in [] if path == ("packages",) else list(node):
            value = node.pop(key)
            store.write_text(json.dumps(row))
            with pytest.raises(
                InputError, match="is a required property" if path or key != "schema" else "the schema is"
            ):
                read(store)
            node[key] = value
            seen += 1
    assert seen > 60


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


def test_the_band_is_from_the_slowest_to_the_fastest_round() -> None:
    row = kept()
    row["speed"]["ratio"] |= {"least": 1.0, "median": 1.5, "most": 2.0}
    speed = drawn([row])["Decode speed"]
    assert path_of(speed, "band") == "M0 10h1V92h-1z"
    assert path_of(speed, "stair emitter") == "M0 51h1"
    assert [tick["label"] for tick in speed["ticks"]] == ["1×", "1.5×", "2×"]
    assert speed["level_y"] == "92"


def other_graph(row: Row, more: int = 0) -> None:
    for graph in row["graphs"]:
        if (graph["source"], graph["phase"]) == ("emitter", "decode"):
            graph |= {"digest": "0123456789abcdef", "op_total": graph["op_total"] + more}


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


def test_without_digests_counts_decide() -> None:
    before, after = kept()["graphs"][1], kept()["graphs"][1] | {"digest": ""}
    assert not history_charts.changed(before, after)
    assert history_charts.changed(before, after | {"op_kinds": 18})
    assert history_charts.changed(before, kept()["graphs"][1] | {"digest": "0" * 16})


# ---- the page


def mixed() -> list[Row]:
    """Two models, several machines and versions, every kind of verdict, a mutant."""

    def change(i: int, row: Row) -> None:
        if i in (7, 8, 12, 20):
            name = {7: "failing_sample", 8: "failing_sample", 12: "broken_sample", 20: "empty_sample"}[i]
            row |= {key: value for key, value in kept(name).items() if key not in ("run", "commit", "date")}
        if i >= 10:
            row["cpu"] = "Intel(R) Xeon(R)"
        if i >= 16:
            row["packages"] = {**row["packages"], "jax": "0.11.0"}
            other_graph(row, -30)
        if i == 18:
            row["commit"] += "+"

    other = runs(5)
    for row in other:
        row["model"] = {**row["model"], "name": "tiny-llama"}
    return [*runs(24, change=change), *other, kept("near_tie_sample", mutant="rope-sign")]


def hostile() -> list[Row]:
    return [*runs(3, "hostile_sample"), *runs(4, "hostile_sample", lambda i, row: row.update(mutant=None))]


PAGES: dict[str, Callable[[], list[Row]]] = {
    "none": list,
    "one": lambda: [kept()],
    "empty": lambda: [kept("empty_sample")],
    "only a mutant": lambda: [kept(mutant="rope-sign")],
    "mixed": mixed,
    "hostile": hostile,
    "many": lambda: runs(450),
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


def test_a_series_is_a_model_on_a_device_in_a_precision() -> None:
    rows = runs(5)
    rows[1]["settings"] = {**rows[1]["settings"], "device": "cuda"}
    rows[2]["settings"] = {**rows[2]["settings"], "precision": "bf16"}
    rows[3]["model"] = {**rows[3]["model"], "name": "tiny-llama"}
    rows[4]["judged"] = "file"
    page = Page(history_page.render(rows))
    assert [i for i in page.attributes("id") if i.startswith("series-")] == [f"series-{i}" for i in range(5)]
    assert "cpu, f32, a graph from a file" in page.text


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
    assert re.findall(r'<td class="num">(.*?)</td>', line) == ["–", "0/0", *"–––––––"]


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
    assert "Up to 4 runs share a column, which shows their worst." in page
    assert "The 100 runs before these are drawn above; their numbers are only in the store." in page
    page = Page(history_page.render(_of_models(30, 1))).text
    assert "6 more models of which the last run is older are only in the store." in page
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


# ---- the commands


def _list(rows: list[Row]) -> str:
    shown = io.StringIO()
    Console(width=240, file=shown).print(table(rows))
    return shown.getvalue()


def test_list_shows_the_newest_first() -> None:
    lines = _list(mixed()).splitlines()
    assert lines[0].split() == "commit began model on verdict tokens error ÷ limit tokens/s × peer decode ops".split()
    assert "Near tie, mutant rope-sign" in lines[1]
    assert any("Emitter fault" in line and "1335/1440" in line and "25,375" in line for line in lines)
    assert any("Harness error" in line and re.search(r"–( +–){4}$", line) for line in lines)
    assert len(lines) == 31


def test_list_is_not_led_astray() -> None:
    row = kept(commit="[red]x[/]", mutant=HOSTILE[:200])
    shown = _list([row, *hostile()])
    assert "[red]x[/]" in shown
    assert not {"\u202e", "\x1b", "\x00", "\u200b", "\ud800"} & set(shown)
    assert len(shown.splitlines()) == 9


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    reports = [str(path) for path in written(tmp_path, sample(), failing_sample(), near_tie_sample())]
    assert cli.invoke(["history", "add", *reports[:2]]) == 0
    assert cli.invoke(["history", "add", *reports[1:]]) == 0
    assert capfd.readouterr().out == (
        "hloracle-history.jsonl: 2 added, 0 there already\nhloracle-history.jsonl: 1 added, 1 there already\n"
    )
    assert cli.invoke(["history", "list"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 4
    assert cli.invoke(["history", "page"]) == 0
    assert capfd.readouterr().out == "history.html\n"
    assert "3 runs." in Page((tmp_path / "history.html").read_text()).text
    assert cli.invoke(["history", "add", reports[0], "--store", "deep/in.jsonl", "--commit", "abc1234"]) == 0
    assert cli.invoke(["history", "page", "--store", "deep/in.jsonl", "-o", "deep/page.html"]) == 0
    assert "abc1234" in (tmp_path / "deep" / "page.html").read_text()


def test_commands_need_no_compiler_and_no_framework() -> None:
    source = "import sys\nfrom hloracle.conformance import cli\nfrom hloracle.reports.history import table\n"
    source += "print(sorted({'jax', 'jaxlib', 'torch', 'transformers', 'numpy', 'iree'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["page"], "hloracle-history.jsonl: no such file; add a run to it with"),
        (["list"], "hloracle-history.jsonl: no such file; add a run to it with"),
        (["add"], "Missing argument 'REPORT.json...'"),
        (["add", "none.json"], "none.json: no such file"),
        (["add", "report.json", "--commit", ""], "--commit: is empty"),
        (["add", "report.json", "--store", "report.json"], "report.json, line 1: is no run of a history"),
        (["add", "report.json", "--store", "report.json/x"], "cannot be written"),
        (["page", "--store", "good.jsonl", "-o", "report.json/x.html"], "cannot be written"),
    ],
)
def test_commands_refuse_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.json").write_text(to_json(sample()))
    Path("good.jsonl").write_text(_line() + "\n")
    assert cli.invoke(["history", *arguments]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("hloracle: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert not Path("history.html").exists()
