"""`hloracle bench`: the figures are those that were measured, ratios are taken round by round, and a failure is said."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from nightly import only
from rich.console import Console

from hloracle.bench import contenders, run, show
from hloracle.bench import goals as targets
from hloracle.bench.contenders import MACHINE, Spec, Task
from hloracle.bench.machine import Reader
from hloracle.cli import main as cli
from hloracle.conformance.context import Progress
from hloracle.conformance.runs import speed
from hloracle.core.errors import InputError
from hloracle.reference.fixtures.named import resolve
from hloracle.reports.bench import render_bench, write_bench

TASK = Task("tiny-llama", (0, 40), (32, 64), 2, 1)
OURS = Spec("emitter", "IREE f32")


def row(title: str, decode: list[float], prefill: list[float], read_bytes: int = 100_000_000) -> dict[str, Any]:
    measured = {
        kind: [{"at": at, "ms": ms, "median": sorted(ms)[1], "min": min(ms), "max": max(ms)}]
        for kind, at, ms in (("decode", 16, decode), ("prefill", 256, prefill))
    }
    return {
        "title": title, "precision": "f32", "batch": 1, "compute": "f32", "choice": "", "load_seconds": 0.8, "first_token_ms": 40.0, "read_bytes": read_bytes,
        "resident_bytes": 2_000_000_000, "agreed": None, "failure": "", **measured,
    }  # fmt: skip


def figures() -> dict[str, Any]:
    rows = {
        "emitter/f32": row("IREE f32", [10.0, 20.0, 12.5], [100.0, 120.0, 80.0]),
        "emitter/int4": row("IREE int4", [5.0, 5.0, 5.0], [100.0, 100.0, 100.0], 20_000_000),
        "oracle/f32": row("XLA f32", [20.0, 30.0, 25.0], [200.0, 120.0, 160.0]),
        "llama.cpp": row("llama.cpp", [5.0, 6.0, 4.0], [50.0, 50.0, 50.0], 20_000_000),
    }
    for id, one in rows.items():
        one["kind"] = id.partition("/")[0]
    rows["emitter/int4"]["agreed"] = {"equal": 48, "total": 48}
    rows["llama.cpp"]["agreed"] = {"equal": 41, "total": 48}
    found = {
        "schema": run.SCHEMA, "model": "some", "contexts": [16], "lengths": [256], "tokens": 16, "rounds": 3, "threads": 2,
        "capacity": 512, "ignored": [], "bandwidth": [2e10, 1e10, 1.6e10], "contenders": rows,
        "environment": {"cpu": "a processor", "date": "2026-11-22T00:00:00+00:00"},
    }  # fmt: skip
    return {**found, "targets": targets.targets(found)}


def target(found: dict[str, Any], what: str) -> dict[str, Any]:
    (one,) = (t for t in found["targets"] if what in t["what"])
    return dict(one)


def test_targets() -> None:
    found = figures()
    assert target(found, "share of the read bandwidth")["ratios"] == [0.5, 0.5, 0.5]
    assert target(found, "f32 decode against the oracle")["ratios"] == [2.0, 1.5, 2.0]
    assert target(found, "int4 decode against our f32")["ratios"] == [2.0, 4.0, 2.5]
    assert target(found, "int4 decode against llama.cpp")["ratios"] == [1.0, 1.2, 0.8]
    assert target(found, "prefill of 256 against the oracle")["ratios"] == [2.0, 1.0, 2.0]
    assert target(found, "tokens that agree") | {"ratios": []} == {
        "what": "int4: tokens that agree, and llama.cpp's", "least": 42, "ratios": [], "median": 48.0, "min": 48.0, "max": 48.0,
    }  # fmt: skip
    for what in ("Hugging Face f32", "bf16 decode", "int8 decode"):
        for one in (t for t in found["targets"] if what in t["what"]):
            assert (one["ratios"], one["median"]) == ([], None), (
                "what did not take part is not measured, and not reached"
            )


def shown(found: dict[str, Any], width: int = 80) -> str:
    out = io.StringIO()
    show.print_figures(found, Console(file=out, width=width))
    return out.getvalue()


def test_table() -> None:
    text = shown(figures())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert re.search(r"IREE f32 +80\.0 +12\.5 +\(10\.0–20\.0\) +50%", text)
    assert "not measured" in text
    assert "not reached" in text
    assert " reached" in text


def test_a_contender_that_failed_is_named_and_has_no_row() -> None:
    found = figures()
    found["contenders"]["oracle/f32"] |= {"failure": "its process <died>", "decode": [], "prefill": []}
    found["targets"] = targets.targets(found)
    assert "XLA f32 was not measured: its process <died>" in shown(found, 200)
    page = render_bench(found)
    assert "its process &lt;died&gt;" in page
    assert target(found, "f32 decode against the oracle")["median"] is None


def test_page(tmp_path: Path) -> None:
    found = figures()
    found["model"] = "<script>alert(1)</script>"
    write_bench(found, tmp_path)
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    page = (tmp_path / "bench.html").read_text()
    assert "<script" not in page
    assert "Decode at position 16" in page
    assert "A prompt of 256 tokens" in page
    assert page.count('class="ours"') == 4
    assert page.count('class="bound"') == 4, "what the bandwidth allows, for each in decode"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench.html", "bench.json"]


def test_figures_and_the_page_do_not_hang_on_the_bandwidth() -> None:
    found = figures()
    found["bandwidth"] = [None, None, None]
    found["targets"] = targets.targets(found)
    assert target(found, "share of the read bandwidth")["median"] is None
    assert "IREE f32" in shown(found)
    assert "not measured" in render_bench(found)


def test_capacity_holds_everything() -> None:
    assert TASK.capacity == 64
    assert Task("m", (255,), (32,), 1, 1).capacity == 256
    assert Task("m", (255,), (32,), 2, 1).capacity == 512


def test_bandwidth() -> None:
    """Whatever the machine: between a disk's and a cache's."""
    assert 1e8 < Reader(2).bandwidth() < 1e13


@pytest.mark.parametrize(
    "spec",
    only(contenders.contenders("tiny-llama", ["f32"]), contenders.contenders("tiny-llama", ["f32", "int4"])),
    ids=lambda s: s.id,
)
def test_every_contender_answers(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "_here", None)
    opened = contenders.open_(spec, TASK, time.time())
    assert opened.first_token_ms > 0
    assert opened.read_bytes > 50_000
    assert all(contenders.decode(context) > 0 for context in (*TASK.contexts, *TASK.contexts))
    assert all(contenders.prefill(length) > 0 for length in TASK.lengths)
    one, other = contenders.text([5, 6, 7], 4), contenders.text([5, 6, 7], 4)
    assert one == other
    assert len(one) == 4


def test_what_computes_in_less_takes_part_beside_the_others() -> None:
    """With a name of its own: a graph whose weights alone are bf16 is another contender."""
    found = {spec.id: spec for spec in contenders.contenders("tiny-llama", ["f32", "bf16"], 2, "f16")}
    assert list(found) == [
        "emitter/f32", "emitter/bf16", "emitter/f16/computed", "emitter/f32/batch", "emitter/bf16/batch",
        "emitter/f16/computed/batch", "oracle/f32", "oracle/f16/computed", "transformers/f32", "transformers/bf16",
        "transformers/f16",
    ]  # fmt: skip
    for name in ("emitter/f16/computed", "emitter/f16/computed/batch", "oracle/f16/computed"):
        spec = found[name]
        graphs = contenders.graphs_of(TASK, spec, contenders.opened(spec, TASK))
        assert {g.abi.compute for g in graphs} == {"f16"}
        assert {g.abi.batch for g in graphs} == {spec.batch}
    (plain, _) = run._as_tuned(found["emitter/f16/computed"], TASK, Progress())
    assert plain is found["emitter/f16/computed"], "nothing is tuned for it"


@pytest.mark.parametrize("id", only(["oracle/bf16/computed"], ["emitter/bf16/computed", "oracle/bf16/computed"]))
def test_a_contender_that_computes_in_less_answers(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "_here", None)
    (spec,) = (s for s in contenders.contenders("tiny-llama", ["f32"], compute="bf16") if s.id == id)
    opened = contenders.open_(spec, TASK, time.time())
    assert opened.first_token_ms > 0
    assert contenders.decode(TASK.contexts[0]) > 0
    assert len(contenders.text([5, 6, 7], 4)) == 4


def test_hugging_face_has_the_attention_that_it_supports() -> None:
    """transformers refuses scaled_dot_product_attention for this architecture."""
    task = Task("tiny-gpt_oss", (4,), (), 2, 1)
    assert contenders.Transformers(task, Spec("transformers", "HF f32")).decode(4) > 0
    assert speed._transformers(resolve("tiny-gpt_oss"))([3, 1, 4], 2) > 0


def test_contenders_of_one_precision_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "_here", None)
    said = {}
    for spec in contenders.contenders("tiny-llama", ["f32"]):
        if spec.precision == "f32":
            contenders.open_(spec, TASK, time.time())
            said[spec.id] = contenders.text([9, 8, 7, 6], 8)
    assert len(said) == 3
    assert len(set(map(tuple, said.values()))) == 1, said


def die(*_: object) -> None:
    os._exit(7)


def fail(*_: object) -> None:
    raise InputError("is wrong", "it", "mend it")


@pytest.mark.parametrize(("function", "words"), [(die, "its process died"), (fail, "it: is wrong; mend it")])
def test_what_fails_is_kept_and_not_asked_again(function: Any, words: str) -> None:
    process = run.Process(MACHINE)
    process.open(TASK)
    assert not process.failure
    assert process.ask(60, function) is None
    assert process.failure == words
    assert process.ask(60, os.getpid) is None
    process.close()


@pytest.mark.nightly
def test_the_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--tokens",
        "2",
        "--rounds",
        "2",
        "--threads",
        "2",
        "--context",
        "0",
        "--context",
        "40",
        "--length",
        "32",
    ]
    out = str(tmp_path / "out")
    assert cli.invoke(["bench", "tiny-llama", *arguments, "--precision", "int8", "--json", "--out", out]) == 0
    told = capfd.readouterr()
    found = json.loads(told.out)
    assert told.err == ""
    assert list(found["contenders"]) == ["emitter/int8", "oracle/f32", "transformers/f32", "transformers/bf16"]
    for contender in found["contenders"].values():
        assert contender["failure"] == ""
        assert [e["at"] for e in contender["decode"]] == [0, 40]
        assert [len(e["ms"]) for e in contender["decode"] + contender["prefill"]] == [2, 2, 2]
    assert len(found["bandwidth"]) == 2
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == found


def test_the_emitters_failure_is_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = copy.deepcopy(figures())
    monkeypatch.setattr(run, "run_bench", lambda *_: found)
    command = ["bench", "tiny-llama", "--out", str(tmp_path)]
    assert cli.invoke(command) == 0
    found["contenders"]["emitter/f32"] |= {"failure": "its process died", "decode": [], "prefill": []}
    assert cli.invoke(command) == 1


def test_a_model_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such model"):
        run.run_bench(Task("no-such", (16,), (32,), 2, 1), 1, [OURS], Progress())
