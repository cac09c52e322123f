"""The record of a run: what it may say, how it is read and written; and strings and numbers fit to be read."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from page_text import Page
from test_reports_sample import (
    SAMPLES,
    broken_sample,
    empty_sample,
    failing_sample,
    failing_suite_sample,
    near_tie_sample,
    sample,
    suite_sample,
)

from hloracle.core.errors import InputError
from hloracle.reports import junit, summary, text
from hloracle.reports.facts import VERDICTS, differences, in_order
from hloracle.reports.page import html
from hloracle.reports.record import SCHEMA, load, validate, write_all

Record = dict[str, Any]
FILES = ["junit.xml", "report.html", "report.json", "summary.md"]


# ---- the record


def _schema() -> Any:
    return json.loads(resources.files("hloracle.reports").joinpath("report.schema.json").read_text("utf-8"))


def test_schema_and_code_know_the_same_classes() -> None:
    schema = _schema()
    assert schema["properties"]["schema"]["const"] == SCHEMA
    assert schema["$defs"]["class"]["enum"] == list(VERDICTS)
    assert schema["properties"]["verdict"]["properties"]["class"] == {"$ref": "#/$defs/class"}
    assert schema["properties"]["families"]["items"]["properties"]["verdict"] == {"$ref": "#/$defs/class"}
    assert {name for name, verdict in VERDICTS.items() if verdict.passed} == {"conforms", "near-tie"}


def _set(record: Record, path: list[Any], value: Any) -> None:
    for key in path[:-1]:
        record = record[key]
    record[path[-1]] = value


CELL = ["tokens", "chat@64", "cells", "emitter/iree-cpu"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["verdict", "class"], "fine", r"^verdict\.class: 'fine' is not one of"),
        (["schema"], "hloracle-report/1", r"^schema: "),
        (["passed"], "yes", r"^passed: 'yes' is not of type 'boolean'"),
        (["extra"], 1, r"^the record: .*'extra' was unexpected"),
        (["checks", 2, "status"], "xfail", r"^checks\[2\]\.status: "),
        (["checks", 0, "id"], " ", r"^checks\[0\]\.id: "),
        (["tokens", "chat@64", "agreed"], -1, r'^tokens\["chat@64"\]\.agreed: -1 is less than'),
        ([*CELL, "logit_error"], "big", r'^tokens\["chat@64"\]\.cells\["emitter/iree-cpu"\]\.logit_error: '),
        ([*CELL, "logit_error"], math.nan, r'^tokens\["chat@64"\].*: JSON has no nan'),
        (["prompts"], {}, r"^prompts: an object does not belong here$"),
        (["environment", "date"], "today", r"^environment\.date: "),
        (["anchors", 0, "errors", 3, 2], "inf", r"^anchors\[0\]\.errors\[3\]\[2\]: 'inf' does not match"),
        (["anchors", 0, "errors", 3, 2], True, r"^anchors\[0\]\.errors\[3\]\[2\]: True is not of type"),
        (["anchors", 0, "phase"], "both", r"^anchors\[0\]\.phase: 'both' is not one of"),
        ([*CELL, "errors", 3], None, r"\.errors\[3\]: None is not of type"),
        (["verdict", "confidence"], {"level": "sure", "because": []}, r"^verdict\.confidence\.level: 'sure' is not"),
        (["verdict", "fusion_dependent"], None, r"^verdict\.fusion_dependent: None is not of type 'boolean'"),
        (["localization"], {}, r"^localization: 'cell' is a required property"),
        (["mutant"], "", r"^mutant: '' does not match"),
        (["model", "config"], {1: 2}, r"^model\.config: the key 1 is not a string"),
        (["model", "parameters"], {1}, r"^model\.parameters: a set is not JSON"),
        (["model", "name"], b"x", r"^model\.name: a bytes is not JSON"),
    ],
)
def test_a_broken_record_is_refused(path: list[Any], value: Any, message: str) -> None:
    record = sample()
    _set(record, path, value)
    with pytest.raises(ValueError, match=message) as caught:
        validate(record)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("row", "value", "message"),
    [
        (0, {"model": "another"}, r"^families\[0\]\.model: is not this record's own$"),
        (0, {"architecture": "qwen3"}, r"^families\[0\]\.model: is not this record's own$"),
        (2, {"model": "tiny-llama"}, r"^families\[2\]\.model: 'tiny-llama' stands twice$"),
        (2, {"passed": False}, r"^families\[2\]\.passed: is False, and the verdict is 'conforms'$"),
        (
            2,
            {"passed": False, "verdict": "emitter-fault"},
            r"^families\[2\]\.passed: 'tiny-mistral' has not passed, and",
        ),
        (2, {"verdict": "fine"}, r"^families\[2\]\.verdict: 'fine' is not one of"),
        (2, {"tokens": {"agreed": 9, "total": 8}}, r"^families\[2\]\.tokens\.agreed: 9 of 8$"),
        (2, {"tokens": {"agreed": 7, "total": 8}}, r"^families\[2\]\.tokens\.agreed: 7 of 8, and the model conforms$"),
        (2, {"tokens": {"agreed": 0, "total": 0}}, r"^families\[2\]\.tokens: nothing was compared, and the model has"),
        (
            2,
            {"mutants": {"killed": 2, "total": 1, "pinned": False, "reason": ""}},
            r"^families\[2\]\.mutants\.killed: 2 of 1$",
        ),
        (
            2,
            {"mutants": {"killed": 1, "total": 1, "pinned": False, "reason": "x"}},
            r"^families\[2\]\.mutants\.reason: is there, and",
        ),
        (
            2,
            {"mutants": {"killed": 0, "total": 0, "pinned": False, "reason": ""}},
            r"^families\[2\]\.mutants\.reason: is there, and",
        ),
        (2, {"anchor": "norm"}, r"^families\[2\]\.anchor: is there, and the model has passed$"),
        (2, {"report": "../x.html"}, r"^families\[2\]\.report: "),
        (2, {"report": "javascript:alert(1)"}, r"^families\[2\]\.report: "),
        (2, {"report": "//evil.example/families/a/report.html"}, r"^families\[2\]\.report: "),
        (
            2,
            {"worst": {"floors": 17.0, "anchor": "norm", "limit": 16.0, "cell": "c"}},
            r"^families\[2\]\.worst\.floors: 17\.0 is over the limit 16\.0, and the model has passed$",
        ),
        (
            2,
            {"worst": {"floors": "NaN", "anchor": "norm", "limit": 16.0, "cell": "c"}},
            r"^families\[2\]\.worst\.floors: NaN is over the limit",
        ),
        (
            2,
            {"failed": failing_suite_sample()["families"][4]["failed"]},
            r"^families\[2\]\.failed: 'emitter/iree-cpu/token\.tokens' is there, and the model has passed$",
        ),
    ],
)
def test_a_row_that_contradicts_is_refused(row: int, value: Record, message: str) -> None:
    record = suite_sample()
    record["families"][row] |= value
    with pytest.raises(ValueError, match=message):
        validate(record)


def test_a_suite_fails_by_one_of_its_models() -> None:
    record = failing_suite_sample()
    record["families"] = suite_sample()["families"]
    with pytest.raises(ValueError, match=r"^families: all have passed, and the run has not$"):
        validate(record)


def _objects(node: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(node, dict):
        yield path, node
    for key, entry in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _objects(entry, (*path, key))


FREE = {"config", "packages", "ops", "tokens", "scopes"}  # objects whose keys are data


def test_every_key_is_required() -> None:
    record = failing_sample()
    record["families"] = [failing_suite_sample()["families"][4]]
    record["families"][0] |= {"model": record["model"]["name"], "architecture": "llama"}
    for part in ("prompts", "anchors", "floors", "cells", "checks", "graphs", "timings"):
        record[part] = record[part][:1]
    record["anchors"][0] |= {"anchors": record["anchors"][0]["anchors"][:1], "errors": [[None] * 10]}
    record["localization"]["errors"] = record["localization"]["errors"][:1]
    record["tokens"] = {"chat@64": record["tokens"]["chat@64"]}
    seen = 0
    for path, node in list(_objects(record)):
        if path and (path[-1] in FREE or "scopes" in path or path[-1] == "cells"):
            continue
        for key in list(node):
            value = node.pop(key)
            with pytest.raises(ValueError, match=f"'{key}' is a required property"):
                validate(record)
            node[key] = value
            seen += 1
    assert seen > 130


def _drop(*path: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        for key in path[:-1]:
            record = record[key]
        del record[path[-1]]

    return change


def _put(*path: Any) -> Callable[[Record], None]:
    return lambda record: _set(record, list(path[:-1]), path[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_put("passed", False), "passed: is False, and the verdict is 'conforms'"),
        (_put("verdict", "class", "emitter-fault"), "passed: is True, and the verdict is 'emitter-fault'"),
        (_put("verdict", "class", "harness-error"), "passed: is True, and the verdict is 'harness-error'"),
        (_put("checks", 1, "status", "failed"), r"checks\[1\]\.status: 'emitter/iree-cpu\.tokens' is 'failed', and"),
        (_put("checks", 1, "status", "error"), r"checks\[1\]\.status: 'emitter/iree-cpu\.tokens' is 'error', and"),
        (_put("cells", 1, "status", "failed"), r"cells\[1\]\.status: 'oracle/iree-cpu' is 'failed', and the run has"),
        (_put("checks", []), "checks: none has passed, and the run has"),
        (lambda r: r.update(prompts=[], tokens={}), "tokens: nothing was compared, and the run has passed"),
        (_drop("tokens", "chat@64"), "tokens: the prompt 'chat@64' was not compared, and the run has passed"),
        (_put(*CELL, "logit_error", 1.0), r"logit_error: 1\.0 is over the limit, and the run has passed"),
        (_put(*CELL, "logit_error", "NaN"), "logit_error: NaN is over the limit, and the run has passed"),
        (_put(*CELL, "agreed", 47), r"\.agreed: is 4., and"),
        (_put(*CELL, "total", 47), r"\.total: is 47, and the truth has 48 tokens"),
        (_put(*CELL, "first_mismatch", 3), "first_mismatch: is 3, and the first is None"),
        (_put(*CELL, "tokens", 7, 1), r"agreed: is 48, and 1 tokens differ"),
        (lambda r: r["tokens"]["chat@64"]["cells"]["emitter/iree-cpu"]["tokens"].pop(), "pieces: 48 for 47 tokens"),
        (_put("prompts", 0, "truth", "gaps", []), r"prompts\[0\]\.truth\.gaps: 0 for 48 tokens"),
        (_put("tokens", "other", {"agreed": 0, "total": 0, "cells": {}}), r"tokens\.other: there is no such prompt"),
        (_drop("tokens", "chat@64", "cells", "emitter/iree-cpu"), r"agreed: is 48, and the worst cell's is 0"),
        (_drop("cells", 4), r"cells\[\"emitter/iree-cpu/token\"\]: there is no such cell"),
        (_put("cells", 1, "id", "oracle/xla-cpu"), r"cells\[1\]\.id: 'oracle/xla-cpu' stands twice"),
        (_put("cells", 1, "agreed", 999), r"cells\[1\]\.agreed: 999 of 288"),
        (_put(*CELL, "errors", []), r"errors: 0 for 48 tokens with logits"),
        (_put(*CELL[:3], "emitter/iree-cpu/token", "errors", [0.1]), r"errors: 1 for 0 tokens with logits"),
        (_put(*CELL, "near_ties", 1), r"near_ties: 1 of 0 disagreements"),
        (_put("verdict", "anchor", "norm"), r"verdict\.anchor: is there, and the run has passed"),
        (_put("verdict", "operation", "stablehlo.add"), r"verdict\.operation: is there, and the run has passed"),
        (
            _put("verdict", "confidence", {"level": "certain", "because": []}),
            r"verdict\.confidence: is there, and the run has passed",
        ),
        (lambda r: r.update(localization=failing_sample()["localization"]), "localization: is there, and the run has"),
        (_put("canary", "caught", False), r"canary\.caught: is False, and the run has passed"),
        (_put("anchors", 0, "errors", 5, 2, 8.5), r"errors\[5\]\[2\]: 8\.5 is over the limit 8\.0, and the run has"),
        (_put("anchors", 0, "errors", 5, 2, "NaN"), r"errors\[5\]\[2\]: NaN is over the limit 8\.0, and the run has"),
        (lambda r: r["anchors"][1]["errors"].pop(), r"anchors\[1\]\.errors: 542 rows for 543 anchors"),
        (lambda r: r["anchors"][1]["errors"][9].pop(), r"anchors\[1\]\.errors\[9\]: 9 for 10 positions"),
        (_drop("floors", 7), r"anchors\[0\]\.anchors\[7\]: 'k_cache\.0' has no floor, and the run has passed"),
        (_put("floors", 7, "anchor", "norm"), r"floors\[541\]\.anchor: 'norm' stands twice"),
        (_put("memory", "peak_bytes", 10**400), r"memory\.peak_bytes: is an integer of more than 64 bits"),
        (_put("timings", 0, "seconds", 10**400), r"timings\[0\]\.seconds: is an integer of more than 64 bits"),
        (_put("graphs", 0, "flops", None), r"graphs\[0\]\.bytes: of flops and bytes one is known and the other is not"),
        (_put("graphs", 0, "flops", "NaN"), r"graphs\[0\]\.flops: 'NaN' is not of type 'integer', 'null'"),
        (_put("graphs", 0, "bytes", -5), r"graphs\[0\]\.bytes: -5 is less than the minimum of 0"),
        (
            _put("listings", 0, "scopes", 0, "flops", None),
            r"scopes\[0\]\.bytes: of flops and bytes one is known and the",
        ),
        (_put("block", "graph", "other"), r"block\.graph: there is no graph 'other'"),
        (
            lambda r: r["listings"].append(r["listings"][0]),
            r"listings\[4\]\.graph: 'oracle/decode/logits' stands twice",
        ),
        (
            lambda r: r["listings"][0]["scopes"].append(r["listings"][0]["scopes"][0]),
            r"listings\[0\]\.scopes\[\d+\]\.anchor: 'embed_tokens' stands twice",
        ),
        (_put("speed", "reason", "it was left out"), r"speed\.reason: is there, and something was measured"),
        (
            lambda r: [c["ms_per_token"].clear() for c in r["speed"]["contenders"]],
            r"speed\.reason: is empty, and nothing was measured",
        ),
        (_put("graphs", 0, "op_total", 1), r"graphs\[0\]\.op_total: is 1, and the operations are 3772"),
        (_put("verdict", "compared", []), r"verdict\.compared: is empty, and the run has passed"),
        (
            _put("verdict", "compared", None),
            r"verdict\.not_compared: of what was compared and what was not, one is known",
        ),
        (
            _put("verdict", "not_compared", None),
            r"verdict\.not_compared: of what was compared and what was not, one is",
        ),
        (_put("verdict", "not_compared", [" "]), r"verdict\.not_compared\[0\]: "),
        (_put("verdict", "compared", "all"), r"verdict\.compared: 'all' is not of type 'array', 'null'"),
        (_put("settings", "timeout", 0), r"settings\.timeout: 0 is less than or equal to the minimum of 0"),
        (_put("graphs", 0, "op_kinds", 1), r"graphs\[0\]\.op_kinds: is 1, and there are 21 kinds"),
    ],
)
def test_a_record_may_not_contradict_itself(change: Callable[[Record], None], message: str) -> None:
    record = sample()
    change(record)
    with pytest.raises(ValueError, match=message):
        validate(record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _put("localization", "reproducer", "folder", "/tmp/reproducer"),
            r"reproducer\.folder: '/tmp/reproducer' leaves",
        ),
        (
            _put("localization", "reproducer", "folder", "a/../.."),
            r"reproducer\.folder: 'a/\.\./\.\.' leaves the report's",
        ),
        (_put("localization", "reproducer", "folder", "..\\a"), r"reproducer\.folder: '\.\.\\\\a' leaves the report's"),
        (_put("localization", "reproducer", "folder", "C:\\a"), r"reproducer\.folder: 'C:\\\\a' leaves the report's"),
        (_put("localization", "reproducer", "files", 1, "../x.npy"), r"files\[1\]: '\.\./x\.npy' leaves the report's"),
    ],
)
def test_a_failing_record_may_not_contradict_itself(change: Callable[[Record], None], message: str) -> None:
    record = failing_sample()
    change(record)
    with pytest.raises(ValueError, match=message):
        validate(record)


def test_nothing_is_compared_without_a_prompt() -> None:
    record = empty_sample()
    record["verdict"]["compared"] = ["both caches whole"]
    with pytest.raises(ValueError, match=r"^verdict\.compared: is there, and no prompt was run$"):
        validate(record)


def test_a_caught_canary_is_no_condition_of_failing() -> None:
    record = failing_sample()
    record["canary"]["caught"] = False
    validate(record)


def test_conforming_demands_every_token() -> None:
    record = near_tie_sample()
    validate(record)
    record["verdict"]["class"] = "conforms"
    with pytest.raises(ValueError, match=r'^tokens\["long@128"\]\.agreed: 47 of 48, and the run conforms$'):
        validate(record)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not a readable JSON file"),
        (b"\xff\xfe", "is not a readable JSON file"),
        (b"[" * 100_000, "is not a readable JSON file"),
        (b'{"schema": NaN}', "NaN is not JSON"),
        (b"[]", "names no schema, not 'hloracle-report/5'"),
        (b'{"schema": "hloracle-report/1"}', "has the schema 'hloracle-report/1', not 'hloracle-report/5'"),
        (b'{"schema": "hloracle-report/4"}', "is not a valid record of 'hloracle-report/4'"),
        (b'{"schema": "hloracle-report/5"}', "is not a valid record .* is a required property"),
    ],
)
def test_load_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_load_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "report.json")
    with pytest.raises(InputError, match="is not a readable JSON file"):
        load(tmp_path)


@pytest.mark.parametrize("make", SAMPLES)
def test_written_records_are_read_back(tmp_path: Path, make: Callable[[], Record]) -> None:
    paths = write_all(make(), tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES == sorted(paths)
    assert load(paths["report.json"]) == make()


def test_equal_records_give_equal_files(tmp_path: Path) -> None:
    first, second = write_all(failing_sample(), tmp_path / "a"), write_all(failing_sample(), tmp_path / "b")
    assert all(first[name].read_bytes() == second[name].read_bytes() for name in FILES)


def test_floats_without_json_are_named(tmp_path: Path) -> None:
    record = broken_sample()
    cells = record["tokens"]["chat@64"]["cells"]
    cells["emitter/xla-cpu"]["logit_error"] = math.nan
    cells["oracle/xla-cpu"]["logit_error"] = math.inf
    before = copy.deepcopy(record)
    loaded = load(write_all(record, tmp_path)["report.json"])["tokens"]["chat@64"]["cells"]
    assert repr(record) == repr(before)
    assert loaded["emitter/xla-cpu"]["logit_error"] == "NaN"
    assert loaded["oracle/xla-cpu"]["logit_error"] == "Infinity"


@pytest.mark.parametrize("fails_at", range(4))
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    write_all(sample(), tmp_path)
    real, calls = os.replace, []

    def replace(source: str, target: Path) -> None:
        calls.append(target)
        if len(calls) > fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(InputError, match="the disk is full"):
        write_all(failing_sample(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_record_writes_and_removes_nothing(tmp_path: Path) -> None:
    write_all(sample(), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    with pytest.raises(ValueError, match="passed"):
        write_all(sample() | {"passed": False}, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


def test_differences() -> None:
    assert differences([1, 2, 3], [1, 2, 3]) == []
    assert differences([1, 2, 3], [1, 5]) == [1, 2]
    assert differences([1], [1, 2]) == []


def test_missing_tokens_differ() -> None:
    record = failing_sample()
    cell = record["tokens"]["one-token@32"]["cells"]["emitter/xla-cpu"]
    cell |= {key: cell[key][:40] for key in ("tokens", "pieces", "errors")} | {"agreed": 40}
    record["tokens"]["one-token@32"]["agreed"] = 40
    validate(record)  # first_mismatch is None: no token that is there differs
    assert "❌ **40/48**, first at 40" in summary.render(record)
    assert "40 of 48 tokens equal, first differs at step 40" in junit.render(record)
    assert "8 tokens differ, first at step 40: no token for the truth" in Page(html.render(record)).text


def test_columns_stand_in_one_order() -> None:
    record = sample()
    record["cells"].reverse()
    columns = [cell["id"] for cell in in_order(record["cells"])]
    assert columns == [cell["id"] for cell in sample()["cells"]]


def test_a_graph_that_the_user_brought() -> None:
    record = sample()
    for part in ("cells", "graphs"):
        record[part] = [entry | {"source": "file"} for entry in record[part] if entry["source"] == "emitter"]
    record["compiled"] = []
    record["listings"] = [listing for listing in record["listings"] if listing["graph"].startswith("emitter/")]
    ids = {cell["id"] for cell in record["cells"]}
    for entry in record["tokens"].values():
        entry["cells"] = {name: cell for name, cell in entry["cells"].items() if name in ids}
    validate(record)
    page = Page(html.render(record)).text
    assert "The file's graph" in page
    assert "oracle's graph" not in page.partition("Tokens against the truth")[2].partition("Environment")[0]


# ---- text


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("plain é 東京 🙂", "plain é 東京 🙂"),
        ("\x00\x1b\x7f", "␀␛␡"),
        ("\u202e\u2066\u200b\ufeff\x85", "⟨U+202E⟩⟨U+2066⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+0085⟩"),
        ("\ud800\u2028\ue000", "⟨U+D800⟩⟨U+2028⟩⟨U+E000⟩"),
        ("a\n\tb", "a\n\tb"),
    ],
)
def test_visible(raw: str, seen: str) -> None:
    assert text.visible(raw) == seen
    assert text.visible(seen) == seen


def test_pieces_and_lines() -> None:
    assert text.piece(" a\n\t") == "␣a⏎⇥"
    assert text.piece("\u0301") == "◌\u0301"
    assert text.one_line(" a \n b ", 80) == "a b"
    assert text.one_line("x" * 99, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("number", "seen"),
    [
        (None, "not measured"),
        ("NaN", "NaN"),
        ("Infinity", "∞"),
        (0.0, "0"),
        (1.234e-5, "1.23e-5"),
        (0.43, "0.43"),
        (2030.4, "2,030"),
        (1e9, "1.00e9"),
    ],
)
def test_figures(number: text.Number, seen: str) -> None:
    assert text.figure(number) == seen


def test_units() -> None:
    assert [text.duration(s) for s in (0, 1e-5, 0.04, 9.83, 152)] == ["0 s", "<1 ms", "40 ms", "9.8 s", "2 min 32 s"]
    assert [text.size(n) for n in (12, 5000, 2_913_845_248, 1_048_300_000)] == [
        "12 B",
        "4.88 KiB",
        "2.71 GiB",
        "0.976 GiB",
    ]
    si = {12: "12 ", 999: "999 ", 1_234: "1.23 k", 999_499: "999 k", 999_501: "1 M", 288e6: "288 M", 5e15: "5 P"}
    assert {n: text.si(int(n)) for n in si} == si
    assert [text.parameters(n) for n in (12, 25_300, 134_515_008)] == ["12", "25.3 K", "134.5 M"]
