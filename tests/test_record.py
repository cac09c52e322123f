"""The record of a run: what it may say, how it is read and written; and strings and numbers fit to be read."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import (
    ALL,
    JUDGED,
    Record,
    conforms,
    disagree,
    empty,
    failing,
    failing_suite,
    near_tie,
    of_class,
    prompt_of,
    suite,
)

from hloracle.core.errors import InputError
from hloracle.core.folder import prepare_reproducer
from hloracle.core.record import SCHEMA
from hloracle.reports import text
from hloracle.reports.facts import VERDICTS, differences, in_order
from hloracle.reports.history import store
from hloracle.reports.record import SCHEMA_FILE, load, schema, to_json, validate, write_all

FILES = ["junit.xml", "report.html", "report.json", "summary.md"]
Change = Callable[[Record], object]


# ---- the form


def test_schemas_are_those_of_the_types() -> None:
    """`python -m hloracle.reports.record` and `python -m hloracle.reports.history.store` write them."""
    assert SCHEMA_FILE.read_text("utf-8") == schema()
    assert store.SCHEMA_FILE.read_text("utf-8") == store.schema()


def test_all_know_the_same_classes() -> None:
    classes = json.loads(schema())["$defs"]["Verdict"]["properties"]["class"]["enum"]
    assert classes == json.loads(store.schema())["$defs"]["Verdict"]["properties"]["class"]["enum"]
    assert set(classes) == set(VERDICTS)
    assert {name for name, verdict in VERDICTS.items() if verdict.passed} == {"conforms", "near-tie"}


@pytest.mark.parametrize("name", ALL)
def test_records_are_valid(name: str) -> None:
    record = ALL[name]()
    validate(record)
    assert record == ALL[name]()


def put(*path: Any) -> Change:
    """Set what stands at the path to the last of the arguments."""

    def change(record: Record) -> None:
        for key in path[:-2]:
            record = record[key]
        record[path[-2]] = path[-1]

    return change


def drop(*path: Any) -> Change:
    """Remove what stands at the path."""

    def change(record: Record) -> None:
        for key in path[:-1]:
            record = record[key]
        del record[path[-1]]

    return change


def answer(**fields: Any) -> Change:
    """Set fields of one configuration's answer."""
    return lambda record: record["tokens"][prompt_of(record)["id"]]["configurations"][JUDGED].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("verdict", "class", "fine"), r"^verdict\.class: Input should be 'conforms', .*, not 'fine'$"),
        (
            put("schema", "hloracle-report/1"),
            r"^schema: Input should be 'hloracle-report/11', not 'hloracle-report/1'$",
        ),
        (put("passed", "yes"), r"^passed: Input should be a valid boolean, not 'yes'$"),
        (put("extra", 1), r"^extra: Extra inputs are not permitted$"),
        (put("checks", 0, "id", " "), r"^checks\[0\]\.id: Value error, is blank$"),
        (put("checks", 0, "figure", None), r"^checks\[0\]\.figure: Input should be a valid string, not None$"),
        (answer(agreed=-1), r"agreed: Input should be greater than or equal to 0"),
        (answer(logit_error="big"), r"\.configurations\[\"emitter/iree-cpu\"\]\.logit_error: Input should be a valid"),
        (
            answer(logit_error=math.nan),
            r"logit_error: Input should be a finite number or 'NaN', 'Infinity' or '-Infinity'",
        ),
        (answer(errors=[None]), r"\.errors\[0\]: Input should be a valid number or 'NaN'"),
        (put("prompts", {}), r"^prompts: Input should be a valid list, not a dict$"),
        (put("environment", "date", "today"), r"^environment\.date: String should match pattern"),
        (
            put("anchors", 0, "errors", 0, 0, "inf"),
            r"^anchors\[0\]\.errors\[0\]\[0\]: Input should be a valid number or",
        ),
        (
            put("anchors", 0, "errors", 0, 0, True),
            r"^anchors\[0\]\.errors\[0\]\[0\]: Input should be a valid number or",
        ),
        (put("localization", {}), r"^localization\.configuration: Field required$"),
        (put("model", "config", {1: 2}), r"^model\.config\[1\]: Input should be a valid string$"),
        (
            put("model", "config", "deep", [[1]]),
            r"^model\.config\.deep: Input should be a valid string or .*, not a list$",
        ),
        (put("model", "parameters", {1}), r"^model\.parameters: Input should be a valid integer, not a set$"),
        (put("model", "name", b"x"), r"^model\.name: Input should be a valid string, not b'x'$"),
        (
            put("memory", "peak_bytes", 10**400),
            r"^memory\.peak_bytes: Input should be less than or equal to 9223372036854",
        ),
        (put("timings", 0, "seconds", 10**400), r"^timings\[0\]\.seconds: "),
        (put("settings", "timeout", 0), r"^settings\.timeout: Input should be greater than 0"),
        (put("settings", "backends", []), r"^settings\.backends: List should have at least 1 item"),
        (put("families", [1] * 10**6), r"^families\[0\]: Input should be a valid dictionary"),
    ],
)
def test_a_broken_record_is_refused_in_one_line(change: Change, message: str) -> None:
    record = conforms()
    change(record)
    with pytest.raises(ValueError, match=message) as caught:
        validate(record)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def objects(node: Any, key: str = "") -> Any:
    """Every object of the form, without those whose keys are data."""
    if isinstance(node, dict) and key not in ("config", "packages", "ops", "tokens", "scopes", "configurations"):
        yield node
    entries = node.items() if isinstance(node, dict) else enumerate(node[:1]) if isinstance(node, list) else ()
    for name, entry in entries:
        # What counts operations scope by scope has objects whose keys are data, too.
        yield from objects(entry, key="ops" if key == "scopes" else name if isinstance(node, dict) else "")


def test_every_key_is_required() -> None:
    record, seen = failing(), 0
    record["families"] = failing_suite()["families"][1:]
    for node in objects(record):
        for key in list(node):
            value = node.pop(key)
            with pytest.raises(ValueError, match=f"{key}: Field required"):
                validate(record)
            node[key] = value
            seen += 1
    assert seen > 150


# ---- what a record may not say of itself


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("passed", False), "passed: is False, and the verdict is 'conforms'"),
        (put("verdict", "class", "emitter-fault"), "passed: is True, and the verdict is 'emitter-fault'"),
        (put("verdict", "anchor", "norm"), r"verdict\.anchor: is there, and the run has passed"),
        (put("verdict", "operation", "stablehlo.add"), r"verdict\.operation: is there, and the run has passed"),
        (
            put("verdict", "confidence", {"level": "certain", "because": []}),
            r"verdict\.confidence: is there, and the run",
        ),
        (put("verdict", "compared", []), r"verdict\.compared: is empty, and the run has passed"),
        (put("checks", 1, "status", "failed"), r"checks\[1\]\.status: .* is 'failed', and the run has passed"),
        (put("checks", 1, "status", "error"), r"checks\[1\]\.status: .* is 'error', and the run has passed"),
        (put("checks", []), "checks: none has passed, and the run has passed"),
        (put("configurations", 1, "status", "failed"), r"configurations\[1\]\.status: .* is 'failed', and the run has"),
        (put("configurations", 1, "agreed", 9999), r"configurations\[1\]\.agreed: 9999 of \d+"),
        (put("configurations", 1, "source", "another"), r"configurations\[1\]\.source: there is no source 'another'"),
        (put("matrix", "cells", 0, "source", "another"), r"matrix\.cells\[0\]\.source: there is no source 'another'"),
        (put("matrix", "cells", 0, "backend", "tpu"), r"matrix\.cells\[0\]\.backend: there is no backend 'tpu'"),
        (put("matrix", "cells", 0, "state", "wrong"), r"matrix\.cells\[0\]\.state: is 'wrong', and the run has passed"),
        (
            lambda r: r["matrix"]["backends"].append(r["matrix"]["backends"][0]),
            r"matrix\.backends\[\d\]\.name: .* stands twice",
        ),
        (lambda r: r["configurations"].append(r["configurations"][0]), r"configurations\[\d\]\.id: .* stands twice"),
        (lambda r: [s.update(judged=False) for s in r["sources"]], "sources: none is judged"),
        (lambda r: r.update(prompts=[], tokens={}), r"verdict\.compared: is there, and no prompt was run"),
        (
            lambda r: r["tokens"].pop(prompt_of(r)["id"]),
            "tokens: the prompt .* was not compared, and the run has passed",
        ),
        (
            lambda r: r["tokens"].update(other=r["tokens"][prompt_of(r)["id"]]),
            r"tokens\.other: there is no such prompt",
        ),
        (lambda r: r["tokens"][prompt_of(r)["id"]]["configurations"].pop(JUDGED), "and the worst configuration's is 0"),
        (lambda r: r["configurations"].pop(), "there is no such configuration"),
        (answer(logit_error=1e9), r"logit_error: 1000000000\.0 is over the limit, and the run has passed"),
        (answer(logit_error="NaN"), "logit_error: NaN is over the limit, and the run has passed"),
        (answer(agreed=1), r"agreed: is .*, and"),
        (answer(total=47), r"\.total: is 47, and the reference has \d+ tokens"),
        (answer(first_mismatch=3), "first_mismatch: is 3, and the first is None"),
        (answer(errors=[]), r"errors: 0 for \d+ tokens with logits"),
        (answer(near_ties=1), r"near_ties: 1 of 0 disagreements"),
        (lambda r: prompt_of(r)["reference"].update(gaps=[]), r"reference\.gaps: 0 for \d+ tokens"),
        (
            put("anchors", 0, "errors", 0, 0, "NaN"),
            r"anchors\[0\]\.errors\[0\]\[0\]: NaN is over the limit .*, and the run",
        ),
        (lambda r: r["anchors"][0]["errors"].pop(), r"anchors\[0\]\.errors: \d+ rows for \d+ anchors"),
        (lambda r: r["anchors"][0]["errors"][0].pop(), r"anchors\[0\]\.errors\[0\]: \d+ for \d+ positions"),
        (put("floors", []), r"anchors\[0\]\.anchors\[0\]: .* has no floor, and the run has passed"),
        (lambda r: r["floors"].append(r["floors"][0]), r"floors\[\d+\]\.anchor: .* stands twice"),
        (put("canary", "caught", False), r"canary\.caught: is False, and the run has passed"),
        (lambda r: r.update(localization=failing()["localization"]), "localization: is there, and the run has passed"),
        (put("graphs", 0, "op_total", 1), r"graphs\[0\]\.op_total: is 1, and the operations are \d+"),
        (put("graphs", 0, "op_kinds", 1), r"graphs\[0\]\.op_kinds: is 1, and there are \d+ kinds"),
        (lambda r: r["graphs"][0].update(flops=None, bytes=1), r"graphs\[0\]\.bytes: of flops and bytes one is known"),
        (put("listings", 0, "graph", "other"), r"listings\[0\]\.graph: there is no graph 'other'"),
        (lambda r: r["listings"].append(r["listings"][0]), r"listings\[\d\]\.graph: .* stands twice"),
        (put("listings", 0, "scopes", 0, "flops", None), r"scopes\[0\]\.bytes: of flops and bytes one is known"),
        (put("block", "graph", "other"), r"block\.graph: there is no graph 'other'"),
        (put("block", "edges", 0, [1, 0]), r"block\.edges\[0\]: leads from 1 to 0 of \d+ nodes"),
        (put("speed", "reason", "it was left out"), r"speed\.reason: is there, and something was measured"),
        (lambda r: r["speed"]["contenders"][0]["ms_per_token"].pop(), "speed.contenders: some have more rounds"),
        (
            lambda r: [c["ms_per_token"].clear() for c in r["speed"]["contenders"]],
            r"speed\.reason: is empty, and nothing",
        ),
    ],
)
def test_a_record_may_not_contradict_itself(change: Change, message: str) -> None:
    record = conforms()
    change(record)
    with pytest.raises(ValueError, match=message):
        validate(record)


@pytest.mark.parametrize("path", ["/tmp/reproducer", "a/../..", "..\\a", "C:\\a", "../x.npy"])
@pytest.mark.parametrize("key", ["folder", "files"])
def test_a_reproducer_stays_in_the_report_s_folder(key: str, path: str) -> None:
    record = failing()
    record["localization"]["reproducer"][key] = path if key == "folder" else [path]
    with pytest.raises(ValueError, match=rf"reproducer\.{key}.*: .* leaves the report's folder"):
        validate(record)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"model": "tiny-llama"}, "model: 'tiny-llama' stands twice"),
        ({"passed": False}, "passed: is False, and the verdict is 'conforms'"),
        ({"passed": False, "verdict": "emitter-fault"}, "passed: 'tiny-mistral' has not passed, and the run has"),
        ({"tokens": {"agreed": 9, "total": 8}}, "tokens.agreed: 9 of 8"),
        ({"tokens": {"agreed": 7, "total": 8}}, "tokens.agreed: 7 of 8, and the model conforms"),
        ({"tokens": {"agreed": 0, "total": 0}}, "tokens: nothing was compared, and the model has passed"),
        ({"mutants": {"killed": 2, "total": 1, "pinned": False, "reason": ""}}, "mutants.killed: 2 of 1"),
        ({"mutants": {"killed": 0, "total": 0, "pinned": False, "reason": ""}}, "mutants.reason: is there, and"),
        ({"anchor": "norm"}, "anchor: is there, and the model has passed"),
        ({"report": "javascript:alert(1)"}, "report: String should match pattern"),
        ({"report": "../x.html"}, "report: String should match pattern"),
        ({"worst": {"floors": "NaN", "anchor": "norm", "limit": 16.0, "configuration": "c"}}, "NaN is over the limit"),
        ({"failed": failing_suite()["families"][1]["failed"]}, "failed: .* is there, and the model has passed"),
    ],
)
def test_a_row_that_contradicts_is_refused(value: Record, message: str) -> None:
    record = suite()
    record["families"][1] |= value
    with pytest.raises(ValueError, match=rf"^families\[1\].*{message}"):
        validate(record)


def test_a_suite_is_of_its_first_model_and_fails_by_one() -> None:
    record = suite()
    record["families"].reverse()
    with pytest.raises(ValueError, match=r"^families\[0\]\.model: is not this record's own$"):
        validate(record)
    record = failing_suite() | {"families": suite()["families"]}
    with pytest.raises(ValueError, match=r"^families: all have passed, and the run has not$"):
        validate(record)


def test_conforming_demands_every_token() -> None:
    record = near_tie()
    record["verdict"]["class"] = "conforms"
    with pytest.raises(ValueError, match=r"agreed: \d+ of \d+, and the run has passed$"):
        validate(record)


# ---- reading and writing


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not text"),
        (b"[" * 100_000, "is nested more than 100 deep"),
        (b'{"schema": NaN}', "schema is nan, not a finite number"),
        (b"[]", f"names no schema, not '{SCHEMA}'"),
        (b'{"schema": "hloracle-report/5"}', f"has the schema 'hloracle-report/5', not '{SCHEMA}'"),
        (b'{"schema": "%s"}' % SCHEMA.encode(), "is not a valid record .*passed: Field required"),
        (
            b'{"schema": "%s", "passed": %s}' % (SCHEMA.encode(), b"[" * 90 + b"]" * 90),
            "passed: Input should be a valid bo",
        ),
        (
            b'{"schema": "%s", "passed": %s}' % (SCHEMA.encode(), b"9" * 5000),
            "holds a number of more than 40 digits",
        ),
    ],
)
def test_load_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" + "0" * 400])
@pytest.mark.parametrize(
    ("part", "key"), [("settings", "timeout"), ("memory", "peak_bytes"), ("model", "config")], ids=lambda part: part
)
def test_load_refuses_a_number_that_others_cannot_read(tmp_path: Path, part: str, key: str, number: str) -> None:
    record = conforms()
    record[part][key] = {"rope_theta": "HERE"} if key == "config" else "HERE"
    (tmp_path / "report.json").write_text(to_json(record).replace('"HERE"', number))
    with pytest.raises(
        InputError, match=rf"report\.json: {part}\.{key}\S* (is .*, not a finite number|holds a number of)"
    ):
        load(tmp_path / "report.json")


def test_load_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "report.json")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_written_records_are_read_back(tmp_path: Path, name: str) -> None:
    paths = write_all(ALL[name](), tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES == sorted(paths)
    assert load(paths["report.json"]) == ALL[name]()


def test_equal_records_give_equal_files(tmp_path: Path) -> None:
    first, second = (write_all(failing(), tmp_path / name) for name in "ab")
    assert all(first[name].read_bytes() == second[name].read_bytes() for name in FILES)


def test_floats_without_json_are_named(tmp_path: Path) -> None:
    record = of_class("harness-error")
    some = list(record["tokens"][prompt_of(record)["id"]]["configurations"].values())
    some[0]["logit_error"], some[1]["logit_error"] = math.nan, math.inf
    before = copy.deepcopy(record)
    loaded = load(write_all(record, tmp_path)["report.json"])
    assert repr(record) == repr(before)
    found = list(loaded["tokens"][prompt_of(record)["id"]]["configurations"].values())
    assert (found[0]["logit_error"], found[1]["logit_error"]) == ("NaN", "Infinity")


@pytest.mark.parametrize("fails_at", range(4))
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    write_all(conforms(), tmp_path)
    real, calls = os.replace, []

    def replace(source: str, target: Path) -> None:
        calls.append(target)
        if len(calls) > fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(InputError, match="the disk is full"):
        write_all(failing(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["conforms", "emitter-fault"])
def test_an_earlier_reproducer_stays_where_the_record_names_it(tmp_path: Path, name: str) -> None:
    """It is written before the record: a run that has none must not leave the one of an earlier run beside its report."""
    (tmp_path / "reproducer").mkdir()
    for file in ("subgraph.mlir", "0-x.npy", "expected.npy", "got.npy", "reproduce.sh", "subgraph.vmfb"):
        (tmp_path / "reproducer" / file).write_text("")
    write_all(ALL[name](), tmp_path)
    assert (tmp_path / "reproducer").exists() == (name == "emitter-fault")


@pytest.mark.parametrize(
    "files", [["notes.txt"], ["subgraph.mlir", "notes.txt"], ["expected.npy"], ["subgraph.mlir/x"]]
)
def test_a_folder_of_the_user_s_called_reproducer_stays(tmp_path: Path, files: list[str]) -> None:
    for file in files:
        (tmp_path / "reproducer" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reproducer" / file).write_text("")
    write_all(conforms(), tmp_path)
    found = [str(p.relative_to(tmp_path / "reproducer")) for p in (tmp_path / "reproducer").rglob("*") if p.is_file()]
    assert sorted(found) == sorted(files)
    with pytest.raises(InputError, match="is not a reproducer that hloracle wrote"):
        prepare_reproducer(tmp_path)


def test_a_linked_folder_called_reproducer_stays(tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "subgraph.mlir").write_text("")
    (tmp_path / "reproducer").symlink_to(tmp_path / "else")
    write_all(conforms(), tmp_path)
    assert (tmp_path / "reproducer" / "subgraph.mlir").is_file()


def test_an_invalid_record_writes_and_removes_nothing(tmp_path: Path) -> None:
    write_all(conforms(), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    with pytest.raises(ValueError, match="passed"):
        write_all(conforms() | {"passed": False}, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


# ---- what is read off a record


def test_differences() -> None:
    assert differences([1, 2, 3], [1, 2, 3]) == []
    assert differences([1, 2, 3], [1, 5]) == [1, 2]
    assert differences([1], [1, 2]) == []


def test_columns_stand_by_source() -> None:
    record = conforms()
    columns = in_order(record, list(reversed(record["configurations"])))
    sources = [column["source"] for column in columns]
    assert sources == sorted(sources, key=[source["id"] for source in record["sources"]].index)
    assert columns[-1]["head"] == "token"


def test_a_caught_canary_and_tokens_are_no_condition_of_failing() -> None:
    record = failing()
    record["canary"] = {"anchor": "norm", "graph": "", "caught": False, "named": None, "detail": ""}
    validate(record)
    record = empty()
    record["verdict"]["compared"] = ["both caches whole"]
    with pytest.raises(ValueError, match=r"^verdict\.compared: is there, and no prompt was run$"):
        validate(record)
    record = near_tie()
    disagree(record, steps=())
    validate(record)


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
