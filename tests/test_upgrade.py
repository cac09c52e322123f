"""An upgrade: two records of one name, what was measured of both in turns, and an index of all models."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import Record, conforms, failing

from hloracle.backends.compiled import Program
from hloracle.backends.named import Choice, chosen
from hloracle.cli import main as cli
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.runs.speed import Contender
from hloracle.conformance.settings import Settings
from hloracle.core.child import ChildDied
from hloracle.core.errors import InputError, ToolchainError
from hloracle.reports.compare.comparison import compare
from hloracle.reports.compare.upgrade import Row, as_json, row_of, title_of, write_index
from hloracle.reports.record import load, validate
from hloracle.versions import upgrade as module
from hloracle.versions.measure import Measured
from hloracle.versions.upgrade import Upgrade, all_models, upgrade

WORDS = ("iree==3.12.0", "iree==3.13.0")
FACTS = {WORDS[0]: {"version": "3.12.0", "runtime": "3.12.0"}, WORDS[1]: {"version": "3.13.0", "runtime": "3.13.0"}}
OLD, NEW, PEER = (4.0, 5.0, 6.0, 4.0, 5.0), (8.0, 10.0, 12.0, 8.0, 10.0), (2.0, 2.0, 2.0, 2.0, 2.0)


def of_backend(record: Record, name: str = "iree") -> Record:
    """A record as a version leaves it: its first backend under the family's name."""
    text = json.dumps(record).replace("iree-cpu", name)
    found: Record = json.loads(text)
    found["speed"] = {"reason": "it was left out", "context": 0, "tokens": 0, "contenders": []}
    return found


def measured() -> Measured:
    def contender(id: str, backend: str, ms: tuple[float, ...]) -> Contender:
        source = id.partition("/")[0] if backend else ""
        return Contender(id, source, backend, f"{source} on {backend}", list(ms), 1000)

    speed = (
        contender("emitter/base:iree/token", "base:iree", OLD),
        contender("emitter/head:iree/token", "head:iree", NEW),
        contender("oracle/xla-cpu", "xla-cpu", PEER),
        contender("transformers", "", PEER),
    )
    return Measured(speed, "", ({"emitter/decode/token": Program(1.0, 10)}, {"emitter/decode/token": Program(3.0, 30)}))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Nothing is compiled and nothing run: what each model's runs were asked for."""
    asked: list[tuple[str, str]] = []

    def open_(words: list[str]) -> tuple[Choice, ...]:
        (word,) = words
        if word not in WORDS:
            return chosen(words)
        return (Choice(word, "iree", print, f"IREE {word}"),)  # type: ignore[arg-type]

    def run(function: Callable[..., Any], settings: Settings, context: Context, *_: Any, **__: Any) -> Any:
        title = context.backends[0].title
        asked.append((settings.model, title))
        assert context.names == ("iree", "xla-cpu")
        assert context.threads == (1 if settings.model.startswith("tiny-") else 2)
        if settings.model == "nobody":
            raise InputError("is no model", "nobody", "name one")
        if settings.model == "tiny-phi3" and "3.13" in title:
            return type("Result", (), {"value": of_backend(failing())})
        record = of_backend(conforms())
        record["configurations"][0]["programs"] = [{"graph": "emitter/decode/token", "seconds": 7.0, "bytes": 7}]
        return type("Result", (), {"value": record})

    def child(self: Context, function: Any, *_: Any, timeout: float) -> Any:
        assert self.threads == 1, "of tiny models"
        return type("Result", (), {"value": measured()})

    monkeypatch.setattr(module, "chosen", open_)
    monkeypatch.setattr(module, "run_in_child", run)
    monkeypatch.setattr(Context, "child", child)
    monkeypatch.setattr(module, "_facts", lambda choice, report: FACTS[choice.name])
    return asked


def wanted(out: Path, *models: str) -> Upgrade:
    return Upgrade(*WORDS, models, out, jobs=2, rounds=5, threads=2, timeout=60)


@pytest.mark.usefixtures("simulated")
def test_two_records_and_a_page(tmp_path: Path) -> None:
    (row,) = upgrade(wanted(tmp_path, "tiny-llama"), Progress())
    folder = tmp_path / "models" / "tiny-llama"
    base, head = (load(folder / side / "report.json") for side in ("base", "head"))
    for record, version, ms in ((base, "3.12.0", OLD), (head, "3.13.0", NEW)):
        assert record["environment"]["packages"]["iree-base-compiler"] == version
        assert [c["id"] for c in record["speed"]["contenders"]] == [
            "emitter/iree/token",
            "oracle/xla-cpu",
            "transformers",
        ]
        assert tuple(record["speed"]["contenders"][0]["ms_per_token"]) == ms
    assert [r["package"] for r in base["environment"]["untried"]] == ["iree-base-compiler", "iree-base-runtime"]
    found = compare(base, head)
    assert found.speed.outcome == "slower", "by the rule of hloracle diff"
    assert {c["resident_bytes"] for c in head["speed"]["contenders"]} == {None}, "of a tiny model"
    assert row.title == found.title == "Not safe"
    assert (row.ratio, row.step) == (2.0, (2.0,) * 5)
    assert (tmp_path / row.page).read_text().startswith("<!DOCTYPE html>")
    assert "tiny-llama" in (tmp_path / "index.html").read_text()


@pytest.mark.usefixtures("simulated")
def test_models_that_fail_stop_no_other(tmp_path: Path) -> None:
    rows = upgrade(wanted(tmp_path, "nobody", "tiny-phi3", "tiny-llama"), Progress())
    assert [row.model for row in rows] == ["nobody", "tiny-phi3", "tiny-llama"]
    assert rows[0].why == "nobody: is no model; name one"
    assert (rows[1].title, rows[1].passed) == ("Not safe", (True, False))
    assert rows[2].passed == (True, True)
    told = json.loads((tmp_path / "upgrade.json").read_text())
    assert [row["safe"] for row in told["models"]] == [False, False, False]


@pytest.mark.usefixtures("simulated")
def test_an_index_of_models_that_all_fail(tmp_path: Path) -> None:
    upgrade(wanted(tmp_path, "nobody"), Progress())
    assert "is no model" in (tmp_path / "index.html").read_text()


def test_each_model_on_both_versions(simulated: list[tuple[str, str]], tmp_path: Path) -> None:
    upgrade(wanted(tmp_path, "tiny-llama", "tiny-gemma"), Progress())
    assert sorted(simulated) == [(f"tiny-{m}", f"IREE {w}") for m in ("gemma", "llama") for w in WORDS]


def test_the_status_of_the_command(simulated: list[tuple[str, str]], tmp_path: Path, capsys: Any) -> None:
    command = ["upgrade", *WORDS, "tiny-llama", "--out", str(tmp_path), "--json"]
    assert cli.invoke(command) == 1
    assert json.loads(capsys.readouterr().out)["title"] == "Not safe"
    assert cli.invoke(["upgrade", WORDS[0], "xla", "tiny-llama", "--out", str(tmp_path)]) == 2


def test_a_run_that_ends_its_process_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def run(function: Any, settings: Settings, context: Context, isolated: bool, timeout: float) -> Any:
        tried.append(isolated)
        if not isolated:
            raise ChildDied("_run died (signal SIGSEGV)", "crash")
        return type("Result", (), {"value": "a record"})

    monkeypatch.setattr(module, "run_in_child", run)
    assert module._judged(Settings("tiny-llama"), Context(), print) == "a record"
    assert tried == [False, True]


def test_a_version_that_cannot_be_tried() -> None:
    (choice,) = chosen(["worker:false"])
    with pytest.raises(InputError, match="cannot be tried"):
        module._facts(choice, lambda line: None)


@pytest.mark.usefixtures("simulated")
def test_a_measure_that_fails_leaves_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def child(self: Context, function: Any, *_: Any, timeout: float) -> Any:
        raise ToolchainError("run", "it is out of order")

    monkeypatch.setattr(Context, "child", child)
    (row,) = upgrade(wanted(tmp_path, "tiny-llama"), Progress())
    record = load(tmp_path / "models" / "tiny-llama" / "head" / "report.json")
    assert record["speed"]["reason"] == "run failed: it is out of order"
    assert row.passed == (True, True)
    assert row.step == ()


@pytest.mark.parametrize("tiny", [False, True])
def test_compile_times_in_turns_take_the_place_of_others(tiny: bool) -> None:
    record: Any = of_backend(conforms())
    record["model"]["name"] = "tiny-llama" if tiny else "a model"
    for row in record["configurations"]:
        row["programs"] = [
            {"graph": "emitter/decode/token", "seconds": 7.0, "bytes": 7},
            {"graph": "emitter/decode/logits", "seconds": 8.0, "bytes": 8},
        ]
    for version, seconds in enumerate([1.0, 3.0]):
        found = module._measured(copy.deepcopy(record), measured(), version, "iree")
        validate(found)
        assert found["speed"]["contenders"][0]["resident_bytes"] == (None if tiny else 1000)
        by_backend = {c["backend"]: c["programs"] for c in found["configurations"] if "programs" in c}
        assert [(p["seconds"], p["bytes"]) for p in by_backend["iree"]] == [(seconds, 7), (None, 8)]
        assert [p["seconds"] for p in by_backend["xla-cpu"]] == [7.0, 8.0]


# ---- the index


def test_the_index() -> None:
    record: Any = conforms()
    row = row_of("tiny-llama", compare(record, record), "models/tiny-llama/diff.html")
    assert (row.title, row.safe, row.ratio) == ("Nothing changed", True, 1.0)
    assert title_of([row, Row("x", why="it is none")]) == "Not judged"
    assert title_of([row]) == "Nothing changed"
    assert as_json([row], WORDS)["models"][0]["ratio"] == 1.0


def test_names_are_escaped(tmp_path: Path) -> None:
    write_index([Row("<script>alert(1)</script>", why="<b>")], WORDS, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "<script>" not in page
    assert "<b>" not in page


def test_every_family() -> None:
    assert len(all_models()) == len(set(all_models())) >= 24
    assert all_models("real")[-1] == "real"


@pytest.mark.nightly
def test_two_versions_from_the_registry(tmp_path: Path) -> None:
    assert cli.invoke(["upgrade", *WORDS, "tiny-llama", "--rounds", "1", "--out", str(tmp_path)]) in (0, 1)
    told = json.loads((tmp_path / "upgrade.json").read_text())
    (row,) = told["models"]
    assert row["passed"] == [True, True]
    assert row["compile"]
