"""A record as GitHub's workflow commands: what they say, where they point, and that no record can say anything else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from records import (
    ALL,
    HOSTILE,
    Record,
    check_of,
    conforms,
    failing_suite,
    hostile,
    near_tie,
    pinned,
    without_results,
)
from records import failing as _failing

from hloracle.cli import main as cli
from hloracle.reports.annotate import LIMIT, render
from hloracle.reports.record import to_json

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"::(error|warning|notice) ((?:\w+=[^:,]*,?)+)::(.+)")


def failing() -> Record:
    """Of a graph of which it is not known what wrote it."""
    record = _failing()
    record["localization"]["operation"]["origin"] = []
    return record


def read(written: str) -> list[dict[str, str]]:
    """The annotations that GitHub's runner makes of what a step prints: it looks at each line by itself."""
    found = []
    for line in written.splitlines():
        match = COMMAND.fullmatch(line)
        assert match, line
        properties = dict(part.split("=", 1) for part in match[2].split(","))
        for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            properties = {name: value.replace(code, char) for name, value in properties.items()}
        message = match[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
        found.append({"command": match[1], "message": message, **properties})
    return found


def annotations(record: Record, root: Path = ROOT, graph: Path | None = None) -> list[dict[str, str]]:
    return read(render(record, root, graph))


# ---- what they say


def test_a_fault_and_its_checks() -> None:
    record = failing()
    verdict = record["verdict"]
    first, *rest = annotations(record)
    assert (first["command"], first["title"]) == (
        "error",
        f"hloracle: Emitter fault (deliberate: mutant {record['mutant']})",
    )
    lines = first["message"].splitlines()
    assert lines[0] == verdict["explanation"]
    assert f"First wrong at {verdict['anchor']}" in lines
    assert f"Operation: {verdict['operation']}" in lines
    assert f"Confidence: {verdict['confidence']['level']}" in lines
    bad = [check for check in record["checks"] if check["status"] == "failed"]
    told = [a for a in rest if a["command"] == "error" and "(failed)" in a["title"]]
    assert told[0]["title"] == f"{bad[0]['id']} (failed): {bad[0]['title']}"[:120]
    assert told[0]["message"].startswith(f"Measured {bad[0]['figure']}, limit {bad[0]['limit']}")


@pytest.mark.parametrize(
    ("make", "command", "title"),
    [
        (conforms, "notice", "hloracle: Conforms"),
        (near_tie, "warning", "hloracle: Near tie"),
        (without_results, "error", "hloracle: Harness error"),
    ],
)
def test_the_verdict_comes_first(make: Callable[[], Record], command: str, title: str) -> None:
    first = annotations(make())[0]
    assert (first["command"], first["title"]) == (command, title)


def test_passed_checks_are_not_told() -> None:
    assert [a["title"] for a in annotations(conforms())] == ["hloracle: Conforms"]


def test_a_deliberate_fault_is_called_one() -> None:
    assert annotations(failing() | {"mutant": "rope-sign"})[0]["title"] == (
        "hloracle: Emitter fault (deliberate: mutant rope-sign)"
    )


@pytest.mark.parametrize("count", [LIMIT - 2, LIMIT - 1, LIMIT, 300])
@pytest.mark.parametrize(
    ("status", "command", "room", "words"),
    [
        ("failed", "error", LIMIT - 1, "checks failed"),  # the verdict is an error too
        ("error", "warning", LIMIT, "checks ended with an error"),
        ("skipped", "notice", LIMIT, "checks were skipped"),
    ],
)
def test_as_many_as_github_shows(status: str, command: str, room: int, words: str, count: int) -> None:
    record = failing()
    check = check_of(record) | {"status": status}
    record["checks"] = [check | {"id": f"k{i}"} for i in range(count)]
    titles = [a["title"] for a in annotations(record)[1:] if a["command"] == command]
    if count <= room:
        assert len(titles) == count
    else:
        assert len(titles) == room
        assert titles[-1] == f"hloracle: {count - room + 1} more {words}"


# ---- that they say nothing else


@pytest.mark.parametrize("name", ALL)
def test_each_line_is_one_command(name: str) -> None:
    found = annotations(ALL[name]())
    for command in ("error", "warning", "notice"):
        assert sum(a["command"] == command for a in found) <= LIMIT
    assert all(a.keys() <= {"command", "message", "title", "file", "line"} for a in found)
    assert all(len(a["title"]) <= 120 and len(a["message"]) < 4_000 for a in found)


@pytest.mark.parametrize(
    "words", [HOSTILE, "a%0A::error::b", "100 %, 5:1", "x\n::set-output name=a::b", "\r::debug::", "%25"]
)
def test_words_come_out_as_they_were_and_do_nothing(words: str) -> None:
    record = failing()
    record["verdict"]["explanation"] = words
    first = next(check for check in record["checks"] if check["status"] == "failed")
    first |= {"id": words, "title": words, "figure": words, "detail": words}
    found = annotations(record)
    assert len(found) == len(annotations(failing()))
    if words.isprintable():
        assert found[0]["message"].splitlines()[0] == words
        assert found[1]["title"] == f"{words} (failed): {words}"[:120]


# ---- where they point


def test_points_to_what_wrote_the_operation() -> None:
    """The innermost line that is one of an emitter in this checkout."""
    record = _failing()
    here = {"file": "emitters/layers.py", "line": 7, "function": "rotary"}
    strange = [
        {**here, "file": file} for file in ("/etc/passwd", "emitters/../core/abi.py", "mutants/rope.py", "gone.py")
    ]
    record["localization"]["operation"]["origin"] = [*strange, here, {**here, "line": 9}]
    first, *rest = annotations(record)
    assert (first["file"], first["line"]) == ("emitters/layers.py", "7")
    assert not any("file" in a for a in rest)
    record["verdict"]["class"] = "compiler-fault"
    assert "file" not in annotations(record)[0]


def test_points_to_the_scope_in_the_emitter() -> None:
    first, *rest = annotations(failing())
    line = (ROOT / first["file"]).read_text().splitlines()[int(first["line"]) - 1]
    assert (first["file"], line.strip()) == ("emitters/architectures/llama.py", 'with b.scope("q_rope"):')
    assert not any("file" in a for a in rest)


@pytest.mark.parametrize(
    ("anchor", "file", "scope"),
    [
        ("layers.3.self_attn.probs", "emitters/layers.py", None),
        ("layers.3.self_attn.o_proj", "emitters/architectures/llama.py", 'b.scope("o_proj")'),
        ("layers.3.mlp.down_proj", "emitters/mlp.py", None),
        ("k_cache.3", "emitters/model.py", 'b.scope("k_cache")'),
        ("norm", "emitters/model.py", 'b.scope("norm")'),
        ("layers.3", "emitters/architectures/llama.py", None),
        ("something.new", "emitters/architectures/llama.py", None),
        (None, "emitters/architectures/llama.py", None),
        (HOSTILE, "emitters/architectures/llama.py", None),
    ],
)
def test_points_to_the_file_that_has_the_scope(anchor: str | None, file: str, scope: str | None) -> None:
    record = failing()
    record["verdict"]["anchor"] = anchor
    first = annotations(record)[0]
    assert first["file"] == file
    if scope is None:
        assert "line" not in first
    else:
        assert scope in (ROOT / file).read_text().splitlines()[int(first["line"]) - 1]


def test_a_wrong_reference_is_another_file() -> None:
    record = failing()
    record["verdict"]["class"] = "reference-fault"
    first = annotations(record)[0]
    assert (first["file"], "line" in first) == ("reference/oracle/architectures/llama.py", True)


def test_a_broken_invariant_is_the_emitters() -> None:
    record = pinned("invariant-broken")
    first = annotations(record)[0]
    assert first["file"].startswith("emitters/")
    assert f"Broken at {record['verdict']['anchor']}" in first["message"]


def test_points_to_the_family_that_is_wrong() -> None:
    record = failing_suite()
    first, *rest = annotations(record)
    assert first["title"] == "hloracle: Emitter fault"
    assert f"First wrong at {record['families'][1]['anchor']} of tiny-mistral" in first["message"]
    assert not any("file" in a for a in rest)


def test_many_wrong_families_leave_room() -> None:
    record = failing_suite()
    record["families"] += [record["families"][1] | {"model": f"m{i}", "architecture": "gemma"} for i in range(12)]
    found = [a for a in annotations(record) if a["command"] == "error"]
    assert found[1]["title"] == "hloracle: m0: Emitter fault"
    assert found[1]["file"].startswith("emitters/")
    assert found[-1]["title"] == "hloracle: 9 more models do not conform"
    assert len(found) == 5


@pytest.mark.parametrize(
    "architecture", ["gpt_neox", "../reference/llama", "llama/../llama", "LLAMA", "llama.py\n", "/etc/passwd"]
)
def test_points_to_nothing_that_is_not_an_emitter_here(architecture: str) -> None:
    record = failing()
    record["model"]["architecture"] = architecture
    assert "file" not in annotations(record)[0]


def test_points_to_nothing_outside_of_a_checkout(tmp_path: Path) -> None:
    assert "file" not in annotations(failing(), tmp_path)[0]


@pytest.mark.parametrize(
    "name",
    [
        "compiler-fault",
        "device-fault",
        "unsupported",
        "out-of-memory",
        "timeout",
        "harness-error",
    ],
)
def test_blames_no_text_for_a_fault_that_is_not_in_it(name: str) -> None:
    record = failing()
    record["verdict"]["class"] = name
    assert "file" not in annotations(record)[0]


def of_a_file(name: str) -> Record:
    """The record of `hloracle check` of NAME.mlir."""
    record = failing()
    for source in record["sources"]:
        source["brought"] = source["judged"]
    record["localization"]["operation"] |= {"graph": name, "line": 54}
    return record


def test_points_to_the_line_of_the_graph_that_was_judged() -> None:
    record = of_a_file("decode")
    first = annotations(record, graph=Path("graphs/decode.mlir"))[0]
    assert (first["file"], first["line"]) == ("graphs/decode.mlir", "54")
    assert "file" not in annotations(record)[0], "the emitter has not written it"


@pytest.mark.parametrize("change", [{"graph": "another"}, {"line": None}])
def test_points_to_no_line_that_is_not_known(change: Record) -> None:
    record = of_a_file("decode")
    record["localization"]["operation"] |= change
    first = annotations(record, graph=Path("decode.mlir"))[0]
    assert first["file"] == "decode.mlir"
    assert "line" not in first
    record["localization"]["operation"] = None
    assert "line" not in annotations(record, graph=Path("decode.mlir"))[0]
    record["localization"] = None
    assert "line" not in annotations(record, graph=Path("decode.mlir"))[0]


# ---- the command


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.json").write_text(to_json(hostile()))
    assert cli.invoke(["annotate", "report.json"]) == 0
    assert capsys.readouterr().out == render(hostile(), tmp_path)
    Path("my:graph.mlir").write_text("")
    assert cli.invoke(["annotate", "report.json", "--graph", "my:graph.mlir"]) == 0
    assert read(capsys.readouterr().out)[0]["file"] == "my:graph.mlir"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["none.json"], "none.json: no such file"), (["report.json", "--graph", "none.mlir"], "none.mlir: no such file")],
)
def test_command_refuses(
    arguments: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.json").write_text(to_json(conforms()))
    assert cli.invoke(["annotate", *arguments]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"hloracle: {words}")
    assert shown.err.count("\n") == 1
