"""`hloracle scale`: figures are those that were measured, growth is told from their larger half, and failures are said."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hloracle.backends import compiled, iree
from hloracle.bench import contenders, machine, run, scaling, show
from hloracle.bench import goals as targets
from hloracle.bench.contenders import MACHINE, Spec, Task
from hloracle.bench.scaling import Plan, exponent, growth, layer_cost, memory_row
from hloracle.cli import main as cli
from hloracle.cli.bench import SCALING_PARTS
from hloracle.conformance.context import Progress
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.registry import from_hf
from hloracle.reports.bench import render_scaling, write_scaling

LAYERS = (8, 16, 24, 32, 48, 64, 80)


def rows(seconds: Callable[[int], float]) -> list[dict[str, Any]]:
    return [
        {
            "phase": "decode", "layers": n, "emit_seconds": 0.003 * n, "graph_bytes": 25_000 * n,
            "compile_seconds": seconds(n), "compile_cpu_seconds": seconds(n), "compile_peak_bytes": 160_000_000,
            "module_bytes": 80_000 + 4000 * n,
        }
        for n in LAYERS
    ]  # fmt: skip


def figures() -> dict[str, Any]:
    def timed(**at: int) -> dict[str, Any]:
        return {**at, "ms": [21.0, 20.0, 25.0], "median": 21.0, "min": 20.0, "max": 25.0}

    measured = rows(lambda n: 0.8 + 0.2 * n)
    return {
        "schema": scaling.SCHEMA, "model": "some", "precision": "f32", "rounds": 3, "tokens": 16, "threads": 2,
        "decode": [timed(capacity=256, position=240), timed(capacity=512, position=240), timed(capacity=512, position=496)],
        "prefill": [timed(capacity=64, length=32), timed(capacity=64, length=64)],
        "layers": measured, "growth": growth(measured),
        "memory": [memory_row("synthetic-llama-135m", 538_000_000, 12_000_000, 610_000_000)],
        "failures": [], "environment": {"cpu": "a processor", "date": "2026-11-22T00:00:00+00:00"},
    }  # fmt: skip


# ---- growth


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
def test_exponent_of_a_power(p: float) -> None:
    assert exponent([(n, 3 * n**p) for n in LAYERS]) == pytest.approx(p)


def test_exponent_of_what_has_none() -> None:
    assert exponent([]) is None
    assert exponent([(8, 1.0)]) is None
    assert exponent([(8, 1.0), (8, 2.0)]) is None
    assert exponent([(8, 1.0), (16, 0.0)]) is None


def compiling(seconds: Callable[[int], float]) -> dict[str, Any]:
    (one,) = (g for g in growth(rows(seconds)) if g["what"] == "compile_cpu_seconds")
    return one


def test_what_is_linear_holds() -> None:
    found = compiling(lambda n: 0.8 + 0.2 * n)
    assert found["passed"]
    assert 0.9 < found["exponent"] < 1


def test_what_is_quadratic_grows_faster() -> None:
    found = compiling(lambda n: 0.001 * n * n)
    assert not found["passed"]
    assert found["exponent"] == pytest.approx(2)


def test_what_every_graph_costs_does_not_hide_a_square() -> None:
    def seconds(n: int) -> float:
        return 20 + 0.01 * n * n

    assert (exponent([(n, seconds(n)) for n in LAYERS]) or 9) < 1.1, "all of them together would hold"
    assert not compiling(seconds)["passed"]


def test_no_figure_is_no_pass() -> None:
    assert not compiling(lambda n: 0.0)["passed"]


def test_each_phase_is_judged_by_itself() -> None:
    decode = rows(lambda n: 0.2 * n)
    prefill = [{**row, "phase": "prefill", "compile_cpu_seconds": 0.01 * row["layers"] ** 2} for row in decode]
    found = {(g["phase"], g["what"]): g["passed"] for g in growth(decode + prefill)}
    assert found["decode", "compile_cpu_seconds"]
    assert not found["prefill", "compile_cpu_seconds"]
    assert len(found) == 2 * len(scaling.GROWING)


# ---- what is measured


def test_layers_are_compiled_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compiled", lambda *_: pytest.fail("the cache was asked"))
    monkeypatch.setattr(iree, "compiled", lambda *_: pytest.fail("the cache was asked"))
    raw = TINY["llama"]
    small, large, again = (layer_cost(print, raw, n, "decode", "f32") for n in (1, 3, 3))
    assert small.keys() == large.keys() == rows(float)[0].keys() - {"phase", "layers"}
    assert small["graph_bytes"] < large["graph_bytes"]
    assert small["module_bytes"] < large["module_bytes"]
    assert again["module_bytes"] == large["module_bytes"]
    assert again["compile_seconds"] > 0.1
    assert again["compile_cpu_seconds"] > 0.1
    assert again["compile_peak_bytes"] > 10_000_000


def test_memory() -> None:
    held = memory_row("m", 1000, 200, 1340)
    assert held["share"] == pytest.approx(1.14)
    assert held["passed"]
    assert not memory_row("m", 1000, 200, 1360)["passed"]
    assert not memory_row("m", 1000, 200, 2200)["passed"], "a second copy while it is loaded"


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: 1000)
    plan = Plan("tiny-llama", (64,), (32,), LAYERS, ("tiny-llama",), ("memory",), "f32", 2, 1, 1)
    found = scaling.run_scaling(plan, Progress())
    assert found["memory"] == []
    assert found["failures"] == ["tiny-llama: its weights take 0.0 GB of memory, and 0.0 GB are free"]


def test_a_contender_that_does_not_fit_is_left_out_of_a_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    config = from_hf(TINY["llama"])
    ours, theirs = Spec("emitter", "IREE f32"), Spec("transformers", "HF f32")
    needed = contenders.memory_for(ours, config)
    assert contenders.memory_for(Spec("emitter", "", "bf16"), config) == needed // 2

    monkeypatch.setattr(machine, "free_bytes", lambda: needed)
    found = run.run_bench(Task("tiny-llama", (0,), (32,), 2, 1), 1, [ours, theirs], Progress())
    assert found["contenders"]["emitter/f32"]["failure"] == ""
    assert found["contenders"]["emitter/f32"]["decode"]
    assert "and 0.0 GB are free" in found["contenders"]["transformers/f32"]["failure"]
    assert not found["contenders"]["transformers/f32"]["decode"]
    assert found["bandwidth"][0] > 0, MACHINE.id


def test_larger_models_have_targets_of_their_own() -> None:
    base = {"contexts": [16], "contenders": {}, "bandwidth": []}
    assert [t["least"] for t in targets.targets({**base, "model": "synthetic-llama-1b"})] == [0.85, 3.0]
    assert len(targets.targets({**base, "model": "smollm2-135m-instruct"})) == len(targets.TARGETS) + 1


# ---- what is shown


def test_table() -> None:
    out = io.StringIO()
    show.print_scaling(figures(), Console(file=out, width=80))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert re.search(r"synthetic-llama-135m +1\.11 +1\.15 +reached", text)
    assert re.search(r"decode: processor time to compile +0\.9\d +1\.1 +reached", text)
    assert "scaling.html has all figures" in " ".join(text.split())
    assert "not reached" not in text
    found = figures()
    found["growth"][2] |= {"exponent": 2.0, "passed": False}
    found["failures"] = ["some [model]: its process died"]
    out = io.StringIO()
    show.print_scaling(found, Console(file=out, width=80))
    assert "not reached" in out.getvalue()
    assert "not measured: some [model]: its process died" in out.getvalue()


def test_page(tmp_path: Path) -> None:
    found = figures()
    found["model"] = found["memory"][0]["model"] = "<script>alert(1)</script>"
    found["failures"] = ["<b>died</b>"]
    write_scaling(found, tmp_path)
    assert json.loads((tmp_path / "scaling.json").read_text()) == found
    page = (tmp_path / "scaling.html").read_text()
    assert "<script" not in page
    assert "<b>died" not in page
    assert page.count("<table>") == 5, "decode, prompts, the layers and how they grow, memory"
    assert '<td class="num">21.00</td><td class="num">20.00–25.00</td><td class="num">47.6</td>' in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scaling.html", "scaling.json"]


@pytest.mark.parametrize("part", SCALING_PARTS)
def test_page_of_one_part(part: str) -> None:
    found = figures()
    for other in (*set(SCALING_PARTS) - {part}, *(["growth"] if part != "layers" else [])):
        found[other] = []
    assert render_scaling(found).count("<table>") == (2 if part == "layers" else 1)


# ---- the command


@pytest.mark.nightly
def test_the_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = (
        "scale tiny-llama --part decode --part prefill --part memory --context 64 --context 32 --length 32 --tokens 2"
    )
    arguments = [*command.split(), "--rounds", "2", "--threads", "2", "--json", "--out", str(out)]
    assert cli.invoke([*arguments, "--beside", "tiny-llama"]) == 0
    told = capfd.readouterr()
    assert told.err == ""
    found = json.loads(told.out)
    assert found == json.loads((out / "scaling.json").read_text())
    assert found.keys() == figures().keys()
    assert [(e["capacity"], e["position"]) for e in found["decode"]] == [(32, 30), (64, 30), (64, 62)]
    assert [(e["capacity"], e["length"]) for e in found["prefill"]] == [(32, 32)]
    assert all(len(e["ms"]) == 2 for e in found["decode"] + found["prefill"])
    (memory,) = found["memory"]
    assert memory.keys() == figures()["memory"][0].keys()
    assert memory["weight_bytes"] + memory["cache_bytes"] < memory["peak_bytes"]
    assert (found["layers"], found["growth"], found["failures"]) == ([], [], [])


def test_what_grows_faster_is_the_commands_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = copy.deepcopy(figures())
    monkeypatch.setattr(scaling, "run_scaling", lambda *_: found)
    command = ["scale", "tiny-llama", "--out", str(tmp_path)]
    assert cli.invoke(command) == 0
    found["growth"][2]["passed"] = False
    assert cli.invoke(command) == 1
    found["growth"][2]["passed"] = True
    found["failures"] = ["some: its process died"]
    assert cli.invoke(command) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--context 16 --tokens 16", "--context 16: has no room for 16 decode steps"),
        ("--part layers --layers 2 --layers 4", "--layers: are too few to tell how anything grows"),
    ],
)
def test_bad_numbers_are_refused_in_one_line(
    arguments: str, line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["scale", "tiny-llama", *arguments.split(), "--out", str(tmp_path)]) == 2
    told = capfd.readouterr().err
    assert line in told
    assert told.count("\n") == 1
