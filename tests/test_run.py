"""`hloracle run` from end to end on the tiny model: the record, what is reused, and runs that come to no end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL_RUN
from evidence import MATRIX, outcome
from tokenizer import add_words

from hloracle.backends.compiled import Program
from hloracle.cli import main as cli
from hloracle.conformance import judging
from hloracle.conformance import run as module
from hloracle.conformance.checks.check import Question
from hloracle.conformance.context import PARTS, Context
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.runs import compiling as modules
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.gate_zero import Gate
from hloracle.conformance.settings import Settings
from hloracle.core.child import ChildDied, alone
from hloracle.core.errors import ToolchainError
from hloracle.mutants import MUTANTS
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reports.record import load, validate

PRODUCTION = "emitter/iree-cpu/token"
IDS = [PRODUCTION, *(f"{source}/{backend}" for backend in ("iree-cpu", "xla-cpu") for source in ("emitter", "oracle"))]
PROMPTS = ["chat@64", "chat@128", "one-token@32", "long@128", "non-ascii@32", "capacity@128"]


def again(out: Path, *more: str, children: bool = False) -> tuple[int, dict[str, Any]]:
    """SMALL_RUN once more, in this process, which has imported JAX, or in processes as usual: exit status and record."""
    with nullcontext() if children else alone():
        status = cli.invoke([*SMALL_RUN, "--out", str(out), "--rounds", "0", *more])
    return status, load(out / "report.json")


def test_record(small_run: Path, small_record: dict[str, Any]) -> None:
    record = small_record
    validate(record)
    assert (record["passed"], record["verdict"]["class"]) == (True, "conforms")
    assert [(c["id"], c["status"]) for c in record["configurations"]] == [(id, "ran") for id in IDS]
    assert [p["id"] for p in record["prompts"]] == list(record["tokens"]) == PROMPTS
    for row in record["tokens"].values():
        assert (row["agreed"], row["total"]) == (8, 8)
        assert list(row["configurations"]) == IDS
        for id, configuration in row["configurations"].items():
            assert (configuration["agreed"], configuration["total"], len(configuration["tokens"])) == (8, 8, 8)
            assert (configuration["logit_error"] is None) == (id == PRODUCTION)
    assert {c["status"] for c in record["checks"]} == {"passed"}
    assert {p.name for p in small_run.iterdir()} == {"report.json", "report.html", "summary.md", "junit.xml"}


def test_every_check_is_there(small_record: dict[str, Any]) -> None:
    graph = ["parse", "supported", "abi", "donations", "random", "reductions", "custom-call", "f64", "dialects",
             "arguments-used", "caches-donated", "census", "matmuls", "weights", "tables"]  # fmt: skip
    wanted = {f"{source}.{name}" for source in ("emitter", "oracle") for name in graph}
    wanted |= {"emitter.op-kinds", "emitter.fewer-ops", "emitter.caches-in-place", "reference.noise", "emitter.probes"}
    wanted |= {"emitter.interpreter"}
    wanted |= {"oracle/xla-cpu.anchors", "emitter/iree-cpu.anchors", "harness.canary"}
    wanted |= {"iree-cpu.gate-zero", "xla-cpu.gate-zero"}
    wanted |= {f"{source}/iree-cuda.{name}" for source in ("emitter", "oracle") for name in ("compiles", "arithmetic")}
    configuration = ["tokens", "caches", "repeats", "streamed-logits", "prefill-equals-streaming"]
    wanted |= {f"{id}.{name}" for id in IDS for name in configuration}
    wanted |= {f"{id}.{phase}-logits" for id in IDS if id != PRODUCTION for phase in ("prefill", "decode")}
    assert {c["id"] for c in small_record["checks"]} == wanted


def test_what_a_pass_rests_on(small_record: dict[str, Any]) -> None:
    assert small_record["verdict"]["compared"][:6] == [
        "8 of 8 tokens after each of 6 prompts",
        "logits of decode at all 128 positions",
        "logits of prefill after all 224 lengths that its 3 buckets take",
        "both caches whole",
        "each of 257 tokens as input",
        "two equal calls bit for bit",
    ]
    assert small_record["verdict"]["not_compared"] == []
    canary = small_record["canary"]
    assert canary["caught"]
    assert canary["named"] == canary["anchor"]
    assert {(m["configuration"], m["phase"]) for m in small_record["anchors"]} == {
        (configuration, phase)
        for configuration in ("oracle/xla-cpu", "emitter/iree-cpu")
        for phase in ("prefill", "decode")
    }
    assert all(f["oracle"] is not None and f["relative"] > 0 for f in small_record["floors"])
    assert (small_record["localization"], small_record["verdict"]["confidence"]) == (None, None)


def test_what_a_reader_is_shown(small_record: dict[str, Any]) -> None:
    graphs = {g["id"]: g for g in small_record["graphs"]}
    listings = {x["graph"]: x for x in small_record["listings"]}
    assert set(listings) == {f"{s}/{p}/logits" for s in ("oracle", "emitter") for p in ("decode", "prefill/32")}
    for id, listing in listings.items():
        scopes = listing["scopes"]
        assert (graphs[id]["flops"] or 0) > sum(scope["flops"] for scope in scopes)  # layers that are alike are one
        # All layers of a right graph are alike, but for the caches of a prefill, of which the first layer's are new.
        assert {len(scope["layers"]) for scope in scopes} == ({0, 3} if "decode" in id else {0, 1, 2, 3})
        assert all(op["text"] and op["line"] for scope in scopes for op in scope["ops"])
    assert all(len(graph["digest"]) == 64 for graph in graphs.values())
    assert len({graph["digest"] for graph in graphs.values()}) == len(graphs)
    assert small_record["block"]["graph"] == "emitter/decode/logits"
    speed = small_record["speed"]
    assert speed["reason"] == ""
    assert [c["id"] for c in speed["contenders"]] == [PRODUCTION, "oracle/xla-cpu", "transformers"]
    assert all(len(c["ms_per_token"]) == 2 and min(c["ms_per_token"]) > 0 for c in speed["contenders"])
    compiled = next(t for t in small_record["timings"] if t["stage"] == "compile")
    # All on IREE, each source's on XLA, and what is compiled for devices that are not there.
    assert len(compiled["parts"]) == 2 + len(graphs) + len(small_record["compiled"])
    begins = [t["begin"] for t in small_record["timings"]]
    assert begins == sorted(begins)


@pytest.mark.nightly
def test_a_fault_in_one_layer_of_one_phase(small_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--mutant", "act-relu-decode-middle-layer", "--tokens", "8", "--capacity", "128", "--threads", "2"]
    assert cli.invoke(["run", "tiny-llama", *arguments, "--out", str(tmp_path)]) == 1
    out = capfd.readouterr().out
    assert "first wrong: layers.1.mlp.act" in out
    assert "shows the fault" in out
    record = load(tmp_path / "report.json")
    assert record["mutant"] == "act-relu-decode-middle-layer"
    found, verdict = record["localization"], record["verdict"]
    assert (verdict["class"], verdict["anchor"]) == ("emitter-fault", "layers.1.mlp.act")
    assert (found["phase"], found["first_local"], found["first_accumulated"]) == ("decode", *["layers.1.mlp.act"] * 2)
    assert verdict["confidence"]["level"] == "certain"
    assert found["operation"]["text"].endswith('loc("layers.1.mlp.act")')
    assert found["reproducer"]["shown"]
    assert {p.name for p in (tmp_path / "reproducer").iterdir()} == set(found["reproducer"]["files"])
    assert record["canary"]["caught"]
    assert record["speed"]["reason"] == "the run did not pass, so its speed means nothing"
    # Both graphs of the phase that is wrong are listed, with the wrong operation, and the layer that it is in.
    listing = next(x for x in record["listings"] if x["graph"] == "emitter/decode/logits")
    assert listing["name"] == found["operation"]["graph"]
    scope = next(s for s in listing["scopes"] if s["anchor"] == "layers.1.mlp.act")
    assert (scope["layers"], record["block"]["layer"]) == ([1], 1)
    assert found["operation"]["line"] in [op["line"] for op in scope["ops"]]
    assert "data-wrong" in (tmp_path / "report.html").read_text()


def test_second_run_reuses_and_says_so(small_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, record = again(tmp_path / "out", children=True)
    shown = capfd.readouterr()
    assert status == 0
    assert {c["id"]: c["status"] for c in record["configurations"]} == dict.fromkeys(IDS, "reused") | {
        PRODUCTION: "ran"
    }
    assert set(IDS) - {PRODUCTION} <= set(record["reused"])
    assert {"graphs and gate zero", "truth"} <= set(record["reused"])
    assert PRODUCTION not in record["reused"]
    assert f"{PRODUCTION}, streams" in record["reused"]
    assert record["speed"] == {"reason": "it was left out", "context": 0, "tokens": 0, "contenders": []}
    assert (record["passed"], record["tokens"]) == (True, load(small_run / "report.json")["tokens"])
    assert "reused from the cache: " in shown.out
    assert shown.err == "", "nothing is drawn where nobody watches"


@pytest.mark.nightly
def test_a_hostile_checkpoint_does_no_harm(small_run: Path, tmp_path: Path) -> None:
    """Its name and its tokens are markup, controls that turn text around, and 10,000 characters."""
    words = (
        "<script>alert(1)</script>",
        "\"'><img src=x onerror=y>&amp;|`*_[x](javascript:1)",
        "\u202egnp.exe\u2066\x1b[31m",
    )
    model = write_tiny(tmp_path / "<script>alert(1)<script>\"'&\u202egnp|`*_")
    add_words(model, tuple(f"{words[i % 3]}{i}{'long ' * 2000 if i % 50 == 7 else ''}" for i in range(1, 257)))
    out = tmp_path / "out"
    status = cli.invoke(["run", str(model), *SMALL_RUN[2:], "--rounds", "0", "--out", str(out)])
    record = load(out / "report.json")
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    page, summary = (out / "report.html").read_text(), (out / "summary.md").read_text()
    assert len(page) < 2_000_000
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for text in (page, summary, (out / "junit.xml").read_text()):
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", text)
    assert "<script" not in summary
    ET.parse(out / "junit.xml")


@pytest.mark.nightly
def test_fresh_runs_everything(small_run: Path, tmp_path: Path) -> None:
    status, record = again(tmp_path / "out", "--no-cache")
    assert status == 0
    assert {c["status"] for c in record["configurations"]} == {"ran"}
    assert not set(IDS) & set(record["reused"])


def test_json(
    small_record: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "run", lambda *_: small_record)
    status, record = again(tmp_path / "out", "--json")
    shown = capfd.readouterr()
    assert (status, json.loads(shown.out), shown.err) == (0, record, "")
    assert record == small_record


@pytest.mark.nightly
def test_a_reader_who_goes_away_does_not_change_the_verdict(small_run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hloracle.cli.main", *SMALL_RUN, "--json", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # type: ignore[union-attr]
        assert (process.stderr.read(), process.wait()) == (b"", 0)  # type: ignore[union-attr]


# ---- runs that come to no end


@pytest.fixture
def no_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have been passed before."""

    def passed(context: Context, backend: str) -> Gate:
        return Gate(Question("gate-zero", "gate zero", backend=backend).judged(True, 1, 1))

    monkeypatch.setattr(module, "gate_zero", passed)


@pytest.mark.nightly
@pytest.mark.usefixtures("no_gates")
def test_a_process_that_died_is_no_pass(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_configuration = judging.run_configuration

    def dies(context: Context, configuration: Configuration, *others: Any, **more: Any) -> Outcome:
        if configuration.id == "emitter/xla-cpu":
            return Outcome(configuration, "failed", stage="process", message="_run died (signal SIGSEGV)")
        return run_configuration(context, configuration, *others, **more)

    monkeypatch.setattr(judging, "run_configuration", dies)
    status, record = again(tmp_path / "out")
    assert status == 1
    assert (record["passed"], record["verdict"]["class"]) == (False, "harness-error")
    assert any("SIGSEGV" in line for line in record["verdict"]["evidence"])
    assert record["tokens"]["long@128"]["agreed"] == 0
    assert "did not run" in capfd.readouterr().out


@pytest.mark.usefixtures("no_gates")
def test_a_process_that_died_where_no_configuration_runs(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise ChildDied("_compute died (signal SIGKILL)")

    monkeypatch.setattr(modules, "truths", dies)
    status, record = again(tmp_path / "out")
    assert (status, record["verdict"]["class"], record["configurations"]) == (1, "harness-error", [])
    assert "SIGKILL" in record["verdict"]["evidence"][-1]
    assert (record["checks"][-1]["id"], record["checks"][-1]["status"]) == ("harness.process", "error")


@pytest.mark.usefixtures("no_gates")
def test_a_stream_form_that_does_not_compile_is_no_pass(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> str:
        raise ToolchainError("compile", "no")

    monkeypatch.setattr(modules, "compile_to_stream", fails)
    status, record = again(tmp_path / "out")
    assert (status, record["verdict"]["class"]) == (1, "harness-error")
    assert {c["id"]: c["status"] for c in record["checks"]}["emitter.caches-in-place"] == "error"


def test_an_unexpected_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bug of ours is neither bad input nor a verdict."""
    monkeypatch.setattr(module, "gates", lambda *a: {}["no"])
    with pytest.raises(KeyError):
        again(tmp_path / "out")
    assert not (tmp_path / "out" / "report.json").exists()


def test_a_run_without_a_word_about_the_machine(small_run: Path) -> None:
    """Nothing of this machine's folders is in what is shown to others."""
    for path in small_run.iterdir():
        assert os.path.expanduser("~/") not in path.read_text()
        assert str(small_run) not in path.read_text()


# ---- settings


def test_a_fault_of_the_emitter_is_in_its_graphs_alone(empty_cache: Path) -> None:
    """So what is known of the oracle's configurations is taken from the cache, and what is found out of the graphs is kept there."""
    for mutant in MUTANTS.values():
        entry = Context(fault=mutant).entry("configurations", bool, [mutant.id])
        assert entry.reads == entry.writes == (mutant.part == "emitter") == (mutant.part not in PARTS)
        entry = Context(fault=mutant).entry("oracle", bool, [mutant.id], changed_by=("reference",))
        assert entry.reads == entry.writes == (mutant.part != "reference")
    assert Context().entry("configurations", bool, []).reads
    anew = Context(reuse=False).entry("configurations", bool, [])
    assert (anew.reads, anew.writes) == (False, True)


@pytest.mark.parametrize(("capacity", "tokens"), [(32, 1), (32, 32), (256, 48), (128, 128), (303, 48), (256, 256)])
def test_capacities_that_a_prompt_given_whole_can_fill(capacity: int, tokens: int) -> None:
    settings = Settings("m", tokens, capacity)
    settings.validate()
    assert settings.prompt == "prefill"


@pytest.mark.parametrize(("capacity", "tokens"), [(200, 48), (304, 48), (33, 1), (1024, 48)])
def test_capacities_that_take_a_prompt_in_parts(capacity: int, tokens: int) -> None:
    settings = Settings("m", tokens, capacity)
    settings.validate()
    assert settings.prompt == "extend"


@pytest.mark.parametrize(
    ("seconds", "compiling", "where"),
    [
        pytest.param({"xla-cpu": 130.0, "iree-cpu": 48.0}, 6.0, "iree-cpu", id="a slow quick backend"),
        pytest.param({"xla-cpu": 130.0, "iree-cpu": 48.0}, 75.0, "xla-cpu", id="one that compiles for long"),
        pytest.param({"xla-cpu": 2.0, "iree-cpu": 1.5}, 0.5, "xla-cpu", id="a small model"),
        pytest.param({"iree-cpu": 48.0}, 6.0, "xla-cpu", id="no answer of the quick backend"),
        pytest.param({}, 0.0, "xla-cpu", id="no answer"),
        pytest.param({"xla-cpu": 130.0, "iree-cuda": 1.0}, 1.0, "xla-cpu", id="a device"),
    ],
)
def test_where_graphs_that_were_put_right_run(seconds: dict[str, float], compiling: float, where: str) -> None:
    suspect = Configuration("emitter", "xla-cpu")
    found = [
        dataclasses.replace(
            outcome(Configuration("emitter", name)), seconds=took, programs={"decode": Program(compiling)}
        )
        for name, took in seconds.items()
    ]
    found.append(dataclasses.replace(outcome(Configuration("oracle", "iree-cpu")), seconds=0.1))
    assert module.where_to_prove(MATRIX, found, suspect) == where
