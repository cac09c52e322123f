"""The record's schema and consistency, and the page, comment and test report drawn from it."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from page_text import Page, luminance, stands_alone, told
from test_reports_sample import (
    HOSTILE,
    SAMPLES,
    broken_sample,
    empty_sample,
    failing_sample,
    hostile_sample,
    near_tie_sample,
    sample,
    without_text,
)

from hloracle.core.errors import InputError
from hloracle.reports import junit, summary, text
from hloracle.reports.page import html
from hloracle.reports.record import SCHEMA, VERDICTS, differences, in_order, load, validate, write_all

Record = dict[str, Any]
FILES = ["junit.xml", "report.html", "report.json", "summary.md"]


# ---- the record


def _schema() -> Any:
    return json.loads(resources.files("hloracle.reports").joinpath("report.schema.json").read_text("utf-8"))


def test_schema_and_code_know_the_same_classes() -> None:
    schema = _schema()
    assert schema["properties"]["schema"]["const"] == SCHEMA
    assert schema["properties"]["verdict"]["properties"]["class"]["enum"] == list(VERDICTS)
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


def _objects(node: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(node, dict):
        yield path, node
    for key, entry in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _objects(entry, (*path, key))


FREE = {"config", "packages", "ops", "tokens", "scopes"}  # objects whose keys are data


def test_every_key_is_required() -> None:
    record = failing_sample()
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
        (_put("checks", 1, "status", "failed"), r"checks\[1\]\.status: 'tokens' is 'failed', and the run has passed"),
        (_put("checks", 1, "status", "error"), r"checks\[1\]\.status: 'tokens' is 'error', and the run has passed"),
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
        (b"[]", "names no schema, not 'hloracle-report/3'"),
        (b'{"schema": "hloracle-report/1"}', "has the schema 'hloracle-report/1', not 'hloracle-report/3'"),
        (b'{"schema": "hloracle-report/3"}', "is not a valid record .* is a required property"),
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


# ---- the page


ALL: list[Callable[[], Record]] = [*SAMPLES, lambda: without_text(failing_sample())]


@pytest.mark.parametrize("make", ALL)
def test_page_is_well_formed_and_alone(make: Callable[[], Record]) -> None:
    script = resources.files("hloracle.reports").joinpath("templates", "report.js").read_text("utf-8")
    stands_alone(html.render(make()), script)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.replace("<main", "<img alt=''><main", 1),
        lambda s: s.replace("</main>", "<script>1</script></main>", 1),
        lambda s: s.replace("</main>", "<a href='https://example.org'>x</a></main>", 1),
        lambda s: s.replace("</main>", "<p onclick='1'>x</p></main>", 1),
        lambda s: s.replace("default-src 'none'", "default-src *", 1),
        lambda s: s.replace("</style>", " </style>", 1),
        lambda s: s.replace("</main>", "<p id='main'>x</p></main>", 1),
    ],
)
def test_a_page_that_does_not_stand_alone_is_noticed(change: Callable[[str], str]) -> None:
    source = html.render(sample())
    script = resources.files("hloracle.reports").joinpath("templates", "report.js").read_text("utf-8")
    assert change(source) != source
    with pytest.raises(AssertionError):
        stands_alone(change(source), script)


@pytest.mark.parametrize("make", ALL)
def test_page_can_be_read_without_seeing_it(make: Callable[[], Record]) -> None:
    told(html.render(make()))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.replace('<html lang="en">', "<html>", 1),
        lambda s: s.replace('<th scope="col">', "<th>", 1),
        lambda s: s.replace("</main>", "<h1>again</h1></main>", 1),
        lambda s: s.replace("</main>", "<h5>below nothing</h5></main>", 1),
        lambda s: s.replace('tabindex="0"', "", 1),
        lambda s: s.replace("</main>", '<svg role="img"></svg></main>', 1),
        lambda s: s.replace("</main>", '<div role="region" aria-label="again"></div>' * 2 + "</main>", 1),
    ],
)
def test_a_page_that_has_to_be_seen_is_noticed(change: Callable[[str], str]) -> None:
    source = html.render(sample())
    assert change(source) != source
    with pytest.raises(AssertionError):
        told(change(source))


def test_hostile_text_is_shown_and_does_nothing() -> None:
    source = html.render(hostile_sample())
    page = Page(source)
    assert source.count("<script") == 1
    assert "<img" not in source
    assert HOSTILE[:60] in page.text
    assert "⟨U+202E⟩gnp.exe⟨U+2066⟩␀␇␛[31m␡⟨U+0085⟩⟨U+200B⟩⟨U+D800⟩⟨U+FEFF⟩" in page.text
    hidden = re.compile("[\u202a-\u202e\u2066-\u2069\u200b\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
    assert hidden.search(source) is None
    assert len(source) < 5_000_000


def test_page_says_what_happened() -> None:
    passed, failed = Page(html.render(sample())).text, Page(html.render(failing_sample())).text
    assert "llama on cpu in f32: every token is equal, and every value is within its measured limit." in passed
    assert "llama on cpu in f32 goes wrong first at layers.3.self_attn.q_rope: an emitter fault, certain." in failed
    assert "Conforms" in passed
    assert "1,440 of 1,440" in passed
    assert "Not checked: The same on IREE cuda" in passed
    assert "Emitter fault" in failed
    where = ("First wrong at", "layers.3.self_attn.q_rope", "on prompt", "chat@64", "at step", "5", "in")
    assert re.search(r"\s*".join(map(re.escape, where)), failed)
    assert "emitters/llama.py and reference/llama.py, at layers.3.self_attn.q_rope" in failed
    assert failed.index("Failed") < failed.index("Skipped") < failed.index("Passed")


def test_many_passed_checks_are_folded_and_no_other() -> None:
    record = failing_sample()
    record["checks"] += [record["checks"][0] | {"id": f"more-{i}"} for i in range(20)]
    page, folded = Page(html.render(record)), Page(html.render(record)).text.partition("29 checks passed")[2]
    assert sum("check-" in id_ for id_ in page.attributes("id")) == 34
    assert "Every cell's tokens are the truth's" not in folded
    assert "The same on IREE cuda" not in folded
    assert "more-19" in folded


def test_page_opens_the_prompt_of_the_verdict_and_no_other() -> None:
    def opened(record: Record) -> list[str | None]:
        tags = Page(html.render(record)).tags
        folds = [i for i, (tag, attrs) in enumerate(tags) if tag == "details" and "open" in attrs]
        inside = [next(a["id"] for t, a in tags[i:] if t == "div" and "id" in a) for i in folds]
        return [id for id in inside if id and id.startswith("prompt")]

    assert opened(sample()) == []
    assert opened(failing_sample()) == ["prompt-0"]
    assert opened(near_tie_sample()) == ["prompt-3"]
    record = failing_sample()
    record["verdict"]["prompt"] = "one-token@32"  # the one that does not differ
    assert opened(record) == ["prompt-0"]


def test_what_was_not_compared_does_not_look_like_a_pass() -> None:
    source = html.render(broken_sample())
    page = Page(source)
    states = [attrs["class"] or "" for tag, attrs in page.tags if tag == "td" and "class" in attrs]
    assert sum(state.split()[0] == "failed" for state in states if state.strip()) == 12
    assert "18 of 30 compared" in page.text
    assert "NaN of the limit" in source
    assert "Nothing was compared." in Page(html.render(empty_sample())).text
    record = sample()
    record["checks"][0]["status"] = "skipped"
    del record["tokens"]["chat@64"]["cells"]["oracle/iree-cpu"]
    page = Page(html.render(record))
    rows = [attrs["class"] for tag, attrs in page.tags if tag == "tr" and "id" in attrs]
    assert rows == ["skip", "skip", *["pass"] * 12]
    assert "29 of 30 compared" in page.text


@pytest.mark.parametrize("total", [0, 1, 2, 500])
def test_page_of_any_number_of_tokens(total: int) -> None:
    record = failing_sample()
    prompt = record["prompts"][0]
    truth = prompt["truth"]
    truth |= {"tokens": [1] * total, "pieces": ["a"] * total, "gaps": [None] * total}
    entry = record["tokens"]["chat@64"]
    for cell in entry["cells"].values():
        cell |= {"tokens": [], "pieces": [], "errors": [], "agreed": 0, "total": total}
        cell["first_mismatch"] = 0 if total else None
    entry |= {"agreed": 0, "total": total}
    validate(record)
    page = Page(html.render(record))
    assert ("≠ none" in page.text) == (total > 0)
    assert ("25 of 30 compared" in page.text) == (total == 0)


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
    pairs += [("link", "page"), ("link", "raised"), ("fail", "page"), ("near", "page")]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}
    # The cross that says "over the limit" on each shade that is.
    crossed = {f"h{n}": contrast("cross", f"h{n}") for n in range(5, 9)}
    assert {shade: c for shade, c in crossed.items() if c < 3} == {}
    drawn = [("near", "raised"), ("near", "fail-tint"), ("text", "fail-tint"), ("emitter", "fail-tint")]
    drawn += [("oracle", "raised"), ("emitter", "raised"), ("pass-tick", "raised"), ("fail-line", "fail-tint")]
    assert {pair: contrast(*pair) for pair in drawn if contrast(*pair) < 3} == {}


# ---- the comment


@pytest.mark.parametrize("make", ALL)
def test_summary_fits(make: Callable[[], Record]) -> None:
    written = summary.render(make())
    assert len(written) < summary.LIMIT
    assert written.count("<details>") == written.count("</details>") == 1


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
    assert "| <code>cuda</code> The same on IREE cuda | ⏭️ skipped |" in passed
    assert failed.startswith("## ❌ hloracle: Emitter fault\n")
    assert "**First wrong at <code>layers.3.self_attn.q_rope</code>, on prompt <code>chat@64</code>" in failed
    assert "❌ **42/48**, first at 5" in failed
    assert "⚠️ no result" in summary.render(broken_sample())
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
    assert int(root.get("tests", "")) == 1 + len(record["checks"]) + len(record["cells"]) * len(record["prompts"])
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
