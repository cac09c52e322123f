"""The history: what is kept of a run, the file it is kept in, and the commands."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from history_rows import Row, hostile, kept, mixed
from page_text import Page
from records import ALL, HOSTILE, conforms, empty, failing, failing_suite, near_tie, pinned, suite
from rich.console import Console

from hloracle.cli import main as cli
from hloracle.core.errors import InputError
from hloracle.reports.history.store import SCHEMA, add, read, row_of
from hloracle.reports.history.table import table
from hloracle.reports.record import to_json


def written(folder: Path, *records: dict[str, Any]) -> list[Path]:
    paths = [folder / f"{i}.json" for i in range(len(records))]
    for path, record in zip(paths, records, strict=True):
        path.write_text(to_json(record))
    return paths


def at(commit: str, date: str = "2025-11-21T05:12:44+00:00") -> dict[str, Any]:
    """A small record that is not another commit's."""
    record = empty()
    record["environment"] |= {"commit": commit, "date": date}
    return record


# ---- a row

VERDICT = {"class": "conforms", "anchor": None, "not_compared": []}


def test_a_row_says_what_the_record_says() -> None:
    record, row = conforms(), kept()
    assert row["schema"] == SCHEMA
    assert row["commit"] == record["environment"]["commit"]
    assert row["verdict"] == VERDICT
    assert row["tokens"]["agreed"] == row["tokens"]["total"] == sum(c["total"] for c in record["configurations"])
    assert row["checks"]["passed"] + row["checks"]["skipped"] == len(record["checks"])
    assert row["speed"]["ratio"]["peer"] == record["speed"]["contenders"][1]["id"]
    assert {(g["source"], g["phase"]) for g in row["graphs"]} == {(g["source"], g["phase"]) for g in record["graphs"]}
    assert [s["id"] for s in row["sources"] if s["judged"]] == ["emitter"]
    assert [s["id"] for s in row_of(pinned("check"))["sources"] if s["judged"]] == ["file"]
    assert row_of(failing())["mutant"] == record_mutant()


def record_mutant() -> str:
    return str(failing()["mutant"])


def test_models_of_a_suite() -> None:
    assert kept()["families"] is None
    assert row_of(suite())["families"] == {"passed": 2, "total": 2, "failing": []}
    assert row_of(failing_suite())["families"] == {"passed": 1, "total": 2, "failing": ["tiny-mistral"]}
    assert "1/2" in _list([row_of(failing_suite())])


def test_what_was_not_compared_is_kept_in_short() -> None:
    record = conforms()
    record["verdict"]["not_compared"] = [f"{i}: {'long ' * 100}" for i in range(30)]
    found = row_of(record)["verdict"]["not_compared"]
    assert (len(found), {len(phrase) for phrase in found}) == (20, {200})


def test_nan_is_the_worst() -> None:
    record = failing()
    record["anchors"][0]["errors"][4][3] = "NaN"
    assert row_of(record)["anchor"]["share"] == "NaN"
    record["anchors"][0]["errors"][4][3] = "Infinity"
    assert row_of(record)["anchor"]["share"] == "Infinity"


def test_any_graph_of_a_phase_changes_its_digest() -> None:
    record = conforms()
    changed = record["graphs"][-1]
    changed["digest"] = "0" * 64
    before, after = (
        {(g["source"], g["phase"]): g["digest"] for g in row["graphs"]} for row in (kept(), row_of(record))
    )
    assert {key for key in before if before[key] != after[key]} == {(changed["source"], changed["phase"])}


def test_ratios_are_taken_round_by_round() -> None:
    record = conforms()
    ours, peer, _ = record["speed"]["contenders"]
    # In the second round the whole machine was slow, which the ratio of the medians would not know.
    ours["ms_per_token"], peer["ms_per_token"] = [20.0, 40.0, 20.0], [30.0, 60.0, 22.0]
    ratio = row_of(record)["speed"]["ratio"]
    assert (ratio["least"], ratio["median"], ratio["most"]) == (1.1, 1.5, 1.5)


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
    record = conforms()
    record["speed"] |= {"contenders": contenders, "reason": "" if contenders else "asked to leave it out"}
    assert row_of(record)["speed"]["ratio"] is None


def test_what_was_not_measured_is_null_and_no_zero() -> None:
    row = kept("empty")
    for key in ("logit", "anchor", "peak_bytes", "seconds"):
        assert row[key] is None, key
    assert row["graphs"] == row["speed"]["contenders"] == []
    assert row["tokens"] == {"agreed": 0, "total": 0, "compared": 0, "planned": 0}


def test_an_error_without_a_limit_has_no_share() -> None:
    record = failing()
    record["floors"] = []
    assert row_of(record)["anchor"] is None


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
    record = conforms()
    record["environment"]["date"] = date
    assert row_of(record)["date"] == seen


# ---- the store


@pytest.mark.parametrize("name", ALL)
def test_what_is_added_is_read_back(tmp_path: Path, name: str) -> None:
    store = tmp_path / "history.jsonl"
    ((row, new),) = add(store, written(tmp_path, ALL[name]()))
    assert new
    assert read(store) == [row]
    assert store.read_bytes().isascii()
    assert store.read_text().count("\n") == 1
    assert len(store.read_text()) < 30_000


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


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (10**400, r"memory\.peak_bytes holds a number of more than 40 digits"),
        (2**53, r"cannot be kept \(peak_bytes: "),
    ],
    ids=["endless", "large"],
)
def test_a_number_that_no_one_could_draw_is_refused_when_it_is_added(tmp_path: Path, number: int, message: str) -> None:
    record = at("one")
    record["memory"]["peak_bytes"] = number
    with pytest.raises(InputError, match=rf"0\.json: {message}"):
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
        ("", "is empty"),
        ("<<<<<<< HEAD", "Expecting value"),
        ("[" * 100_000, "is nested more than 100 deep"),
        ("[]", "the schema is None, not 'hloracle-history/5'"),
        (_line(schema="hloracle-history/9"), "the schema is 'hloracle-history/9', not"),
        (_line(extra=1), "extra: Extra inputs are not permitted"),
        (_line(date="today"), "date: String should match pattern"),
        (_line(commit="x" * 201), "commit: Value error, is longer than 200 characters"),
        (_line(seconds="short"), "seconds: Input should be a valid number"),
        (_line(seconds=-1), "seconds: Input should be greater than or equal to 0"),
        (_line(peak_bytes=2**53), "peak_bytes: Input should be less than or equal to"),
        (
            _line(seconds=152.15).replace('"seconds": 152.15', '"seconds": NaN'),
            "seconds is nan, not a finite number",
        ),
        (
            _line(seconds=152.15).replace('"seconds": 152.15', '"seconds": 1e999'),
            "seconds is inf, not a finite number",
        ),
        (_line(seconds=152.15).replace("152.15", f"1{'0' * 400}"), "seconds holds a number of more than 40 digits"),
        (_line(seconds=152.15).replace("152.15", "9" * 5000), "holds a number of more than 40 digits"),
        (_line(verdict=VERDICT | {"class": "fine"}), "verdict.class: Input should be 'conforms'"),
        (_line(tokens={"agreed": 5, "total": 3, "compared": 1, "planned": 1}), "tokens: 5 agreed of 3"),
        (_line(tokens={"agreed": 3, "total": 3, "compared": 2, "planned": 1}), "tokens: 2 compared of 1"),
        (_line(families={"passed": 3, "total": 2, "failing": []}), "families: 3 of 2 passed"),
        (_line(families={"passed": 1, "total": 2, "failing": ["a", "b"]}), "families: 1 of 2 passed, and some others"),
        (
            _line(families={"passed": 1, "total": 2, "failing": ["a"]}),
            "the verdict is 'conforms', and some of the families did not",
        ),
        (_line(cpu="another"), "its run stands further up, and differs"),
    ],
)
def test_a_broken_line_is_refused_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    store = tmp_path / "history.jsonl"
    before = f"{_line()}\n{line}\n{json.dumps(kept('near-tie'))}\n"
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
    with pytest.raises(InputError, match="is not text" if content else "no such file; add a run to it with"):
        read(store)


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
                InputError, match=f"{key}: Field required" if path or key != "schema" else "the schema is"
            ):
                read(store)
            node[key] = value
            seen += 1
    assert seen > 60


# ---- the commands


def _list(rows: list[Row]) -> str:
    shown = io.StringIO()
    Console(width=240, file=shown).print(table(rows))
    return shown.getvalue()


def test_list_shows_the_newest_first() -> None:
    lines = _list(mixed()).splitlines()
    names = "commit began model on verdict tokens models error ÷ limit tokens/s of the peer decode ops"
    assert lines[0].split() == names.split()
    assert any("Near tie, mutant rope-sign" in line for line in lines)
    assert any("Emitter fault" in line for line in lines)
    assert any("Harness error" in line and re.search(r"–( +–){5}$", line) for line in lines)
    assert len(lines) == len(mixed()) + 1


def test_list_is_not_led_astray() -> None:
    row = kept(commit="[red]x[/]", mutant=HOSTILE[:200])
    shown = _list([row, *hostile()])
    assert "[red]x[/]" in shown
    assert not {"\u202e", "\x1b", "\x00", "\u200b", "\ud800"} & set(shown)
    assert len(shown.splitlines()) == 9


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    reports = [str(path) for path in written(tmp_path, conforms(), failing(), near_tie())]
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
    source = "import sys\nfrom hloracle.cli import main as cli\nfrom hloracle.reports.history import table\n"
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
    Path("report.json").write_text(to_json(conforms()))
    Path("good.jsonl").write_text(_line() + "\n")
    assert cli.invoke(["history", *arguments]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("hloracle: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert not Path("history.html").exists()
