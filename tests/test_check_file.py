"""`hloracle emit` writes graphs that compilers take as they are; `hloracle check` tells a right one from a wrong one."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax._src.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo
from models import Changing, changed, interpreter, model, quick_xla
from nightly import nightly, only

from hloracle.backends.iree import iree_compile
from hloracle.backends.session import Backend, Buffer, Executable
from hloracle.backends.words import INTERPRETER
from hloracle.cli import main as cli
from hloracle.conformance.checks.census import NOT_PINNED
from hloracle.conformance.checks.check import Question
from hloracle.conformance.context import Context
from hloracle.conformance.graphs.sources import open_files, oracle_of
from hloracle.conformance.run import run
from hloracle.conformance.runs import returned as returned_module
from hloracle.conformance.runs.gate_zero import Gate
from hloracle.conformance.settings import Settings
from hloracle.core.abi import Abi, Graph
from hloracle.core.child import TimedOut, alone
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.encodings import PRECISIONS
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import default_layout, fused
from hloracle.reports.record import load

CONFIG = from_hf(TINY["llama"])
PHASES = ("decode", "prefill")
SOURCES = ("emitter", "reference")
# Decode is judged on IREE in every run of the tests; these are at night.
ON_XLA = [pytest.param(("--backend", "xla-cpu"), id="xla"), nightly((), id="all")]


def emitted(folder: Path, *arguments: str, name: str = "graph.mlir") -> Path:
    path = folder / name
    assert cli.invoke(["emit", "tiny-llama", "--capacity", "128", "-o", str(path), *arguments]) == 0
    return path


def judged(path: Path, model: str = "tiny-llama", *more: str, tokens: int = 8) -> tuple[int, dict[str, Any]]:
    """Exit status and record of `hloracle check`; on XLA alone in this process, which has imported JAX."""
    out = path.parent / "out"
    abi = path.with_suffix(".abi.json")
    command = ["check", str(path), "--abi", str(abi), "--model", model, "--tokens", str(tokens), *more]
    with alone() if "xla-cpu" in more else nullcontext():
        return cli.invoke([*command, "--out", str(out)]), load(out / "report.json")


@pytest.fixture
def no_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have been passed before."""

    def passed(context: Context, backend: str) -> Gate:
        return Gate(Question("gate-zero", "gate zero", backend=backend).judged(True, 1, 1))

    monkeypatch.setattr("hloracle.conformance.run.gate_zero", passed)


# ---- emit


@pytest.mark.parametrize("head", ["logits", "token"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("phase", PHASES)
def test_emit(phase: str, source: str, head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = emitted(tmp_path, "--phase", phase, "--source", source, "--head", head)
    abi = path.with_suffix(".abi.json")
    assert capsys.readouterr().out == f"{path}\n{abi}\n"
    assert sorted(tmp_path.iterdir()) == [abi, path]
    bucket = 64 if phase == "prefill" else 0
    found = Abi.from_file(abi)
    layout = default_layout(CONFIG, "f32") if source == "emitter" else {}
    assert found == graph_abi(CONFIG, phase, head, 128, bucket, layout)
    assert found.to_json() == abi.read_text()
    if source == "emitter":
        assert path.read_text() == emit(CONFIG, phase, head, 128, bucket, layout).text


@pytest.mark.parametrize("layout", ["panels", "rows"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_emit_in_a_precision(precision: str, layout: str, tmp_path: Path) -> None:
    """Integers lie in one way only."""
    path = emitted(tmp_path, "--phase", "decode", "--precision", precision, "--layout", layout)
    held = default_layout(CONFIG, precision, layout == "panels")
    assert Abi.from_file(path.with_suffix(".abi.json")) == graph_abi(CONFIG, "decode", "logits", 128, 0, held)
    assert path.read_text() == emit(CONFIG, "decode", "logits", 128, 0, held).text


@pytest.mark.parametrize("precision", PRECISIONS)
def test_emit_fused(precision: str, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "decode", "--precision", precision, "--fused")
    held = fused(CONFIG, default_layout(CONFIG, precision))
    assert Abi.from_file(path.with_suffix(".abi.json")) == graph_abi(CONFIG, "decode", "logits", 128, 0, held)
    assert path.read_text() == emit(CONFIG, "decode", "logits", 128, 0, held).text


def test_emit_portable_in_a_precision(tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "decode", "--precision", "int4", "--portable", name="graph.mlirbc")
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, path.read_bytes())
        assert module.operation.verify()
        assert "xui8>" in str(module)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("phase", PHASES)
def test_emit_portable(phase: str, source: str, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", phase, "--source", source, "--portable", name="graph.mlirbc")
    assert path.read_bytes().startswith(b"ML\xefR")
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, path.read_bytes())
        assert module.operation.verify()
        assert "stablehlo.dot_general" in str(module)
    assert Abi.from_file(path.with_suffix(".abi.json")).phase == phase


@pytest.mark.parametrize(
    ("phase", "source"), only([("decode", "emitter"), ("prefill", "reference")], itertools.product(PHASES, SOURCES))
)
def test_iree_compile_takes_it_as_it_is(phase: str, source: str, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", phase, "--source", source, "--bucket", "32", "--capacity", "32")
    flags = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
    assert len(iree_compile(path, flags)) > 1000


# ---- check


@pytest.mark.parametrize("arguments", [("--phase", "decode"), nightly(("--phase", "prefill")),
                                       nightly(("--phase", "decode", "--head", "token"))])  # fmt: skip
@pytest.mark.usefixtures("no_gates")
def test_a_right_graph(arguments: tuple[str, ...], tmp_path: Path) -> None:
    status, record = judged(emitted(tmp_path, *arguments))
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    token = "/token" if "token" in arguments else ""
    ids = [f"file/iree-cpu{token}", "oracle/iree-cpu", f"file/xla-cpu{token}", "oracle/xla-cpu"]
    assert [c["id"] for c in record["configurations"]] == ids
    prompts, steps = (2, 1) if "prefill" in arguments else (5, 8)
    prompts = sum(len(p["token_ids"]) <= 64 for p in record["prompts"]) if "prefill" in arguments else prompts
    assert len(record["tokens"]) == prompts > 2
    assert {row["total"] for row in record["tokens"].values()} == {steps}
    assert not [c for c in record["checks"] if c["status"] not in ("passed", "skipped")]


@pytest.mark.parametrize("backends", ON_XLA)
@pytest.mark.usefixtures("no_gates")
def test_a_right_graph_in_4_bits(backends: tuple[str, ...], tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "decode", "--precision", "int4")
    status, record = judged(path, "tiny-llama", "--precision", "int4", *backends, tokens=2)
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    assert record["settings"]["precision"] == "int4"
    assert not [c for c in record["checks"] if c["status"] not in ("passed", "skipped")]


@pytest.mark.nightly
@pytest.mark.usefixtures("no_gates")
def test_a_wrong_graph_in_4_bits(tmp_path: Path) -> None:
    """Its scores have another scale, as above: the verdict is as good as with plain weights."""
    path = emitted(tmp_path, "--phase", "decode", "--precision", "int4")
    text = path.read_text()
    assert text.count("dense<0.25>") == 1
    path.write_text(text.replace("dense<0.25>", "dense<0.26>"))
    status, record = judged(path, "tiny-llama", "--precision", "int4", tokens=2)
    assert (status, record["verdict"]["class"]) == (1, "emitter-fault")
    assert record["localization"]["anchor"] == "layers.0.self_attn.scores"


@pytest.mark.nightly
def test_the_oracles_graph(tmp_path: Path) -> None:
    assert judged(emitted(tmp_path, "--phase", "decode", "--source", "reference"))[0] == 0


@pytest.mark.parametrize("backends", ON_XLA)
@pytest.mark.parametrize("arguments", [("--phase", "decode"), nightly(("--phase", "prefill", "--bucket", "32"))])
@pytest.mark.usefixtures("no_gates")
def test_a_graph_with_another_scale(
    arguments: tuple[str, ...], backends: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = emitted(tmp_path, *arguments)
    text = path.read_text()
    assert text.count("dense<0.25>") == 1
    path.write_text(text.replace("dense<0.25>", "dense<0.26>"))
    status, record = judged(path, "tiny-llama", *backends)
    assert (status, record["passed"], record["verdict"]["class"]) == (1, False, "emitter-fault")
    assert "emitter-fault" in capsys.readouterr().out
    assert {c["id"].split(".")[0] for c in record["checks"] if c["status"] == "failed"} == {
        "file",  # its probes
        *(one["id"] for one in record["configurations"] if one["source"] == "file"),
    }


@pytest.mark.nightly
@pytest.mark.usefixtures("no_gates")
def test_a_graph_that_picks_another_token(tmp_path: Path) -> None:
    """It adds up the indices of all the largest logits, and of all others the vocabulary's size."""
    path = emitted(tmp_path, "--phase", "decode", "--head", "token")
    text = path.read_text()
    assert text.count("applies stablehlo.minimum") == 1
    path.write_text(text.replace("applies stablehlo.minimum", "applies stablehlo.add"))
    status, record = judged(path)
    assert (status, record["verdict"]["class"]) == (1, "emitter-fault")


@pytest.mark.usefixtures("no_gates")
def test_what_is_no_graph_has_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More of it: tests/test_file_graphs.py."""
    path = emitted(tmp_path, "--phase", "decode")
    path.write_text("module {")
    out = tmp_path / "out"
    assert cli.invoke(["check", str(path), "--model", "tiny-llama", "--out", str(out)]) == 2
    assert f"hloracle: {path}:1:7: is not valid: " in capsys.readouterr().err
    assert not (out / "report.json").exists()


@pytest.mark.nightly
@pytest.mark.usefixtures("no_gates")
def test_a_small_graph_is_asked_what_fits_it(tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "prefill", "--bucket", "32", "--capacity", "40")
    status, record = judged(path)
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    # The last is cut to fill the bucket.
    assert [p["prompt"] for p in record["prompts"]] == ["one-token", "non-ascii", "capacity"]


# ---- graphs of one session, and graphs with a flaw: small ones, on two backends that are XLA

ON = ("iree-cpu", "xla-cpu")
Edit = Callable[[Graph], Graph]


@pytest.fixture
def quick(no_gates: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Backend]]:
    """Backends by their names."""
    found: dict[str, Backend] = {**dict.fromkeys(ON, quick_xla()), INTERPRETER: interpreter()}
    monkeypatch.setattr(Context, "backend", lambda self, name: found[name])
    with alone():
        yield found


def written(folder: Path, graphs: Sequence[Graph]) -> list[Path]:
    """Each with its ABI beside it."""
    paths = []
    for graph in graphs:
        paths.append(folder / f"{graph.abi.phase}-{len(paths)}.mlir")
        paths[-1].write_text(graph.text)
        paths[-1].with_suffix(".abi.json").write_text(graph.abi.to_json())
    return paths


def checked(folder: Path, *graphs: Graph, **settings: Any) -> dict[str, Any]:
    found = Settings(str(model("plain").checkpoint.directory), **{"tokens": 3, **settings})
    return run(found, Context(), [open_files(written(folder, graphs))])


def both(edit: Edit = lambda graph: graph, head: str = "logits") -> list[Graph]:
    return [edit(model("plain").graph("emitter", phase, head)) for phase in ("prefill", "decode")]


def statuses(record: dict[str, Any], *expected: str) -> dict[str, str]:
    """Of the checks, but those of these statuses and those of counts that are pinned for the emitter alone."""
    checks = [c for c in record["checks"] if c["detail"] != NOT_PINNED]
    return {c["id"]: c["status"] for c in checks if c["status"] not in expected}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("head", only(["logits"], ["logits", "token"]))
def test_graphs_of_one_session(head: str, tmp_path: Path) -> None:
    """All that they return is compared, from inside as well, and with a fault put in on purpose."""
    record = checked(tmp_path, *both(head=head))
    assert record["verdict"]["class"] == "conforms"
    assert statuses(record, "passed") == {}
    configuration = "file/xla-cpu" + ("/token" if head == "token" else "")
    ids = {c["id"] for c in record["checks"]}
    assert {
        f"{configuration}.{n}" for n in ("caches", "repeats", "streamed-logits", "prefill-equals-streaming", "anchors")
    } <= ids
    assert {"file.probes", "harness.canary", "file.donations", "file.random", "file.supported"} <= ids
    what = "logits" if head == "logits" else "the token"
    compared = record["verdict"]["compared"]
    assert {f"{what} of decode at all 10 positions", f"{what} of prefill after all 8 lengths that it takes",
            "both caches whole", "each of 29 tokens as input", "two equal calls bit for bit"} <= set(compared)  # fmt: skip
    assert record["verdict"]["not_compared"] == ["the logits: the graph answers with a token"] * (head == "token")
    assert {p["bucket"] for p in record["prompts"]} == {8}
    assert record["canary"]["caught"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_graph_of_one_phase(phase: str, tmp_path: Path) -> None:
    record = checked(tmp_path, model("plain").graph("emitter", phase))
    assert (record["verdict"]["class"], statuses(record, "passed", "skipped")) == ("conforms", {})
    other = "decode" if phase == "prefill" else "prefill"
    assert not [phrase for phrase in record["verdict"]["compared"] if other in phrase]


@pytest.mark.parametrize("path", ["/", ".", "..", "/dev/null"])
def test_a_path_that_is_no_file_with_a_graph(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["check", path, "--model", "tiny-llama", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert line.startswith("hloracle: ")


def wrong_at(length: int) -> Edit:
    """Prefill's logits are negated after so many tokens, and after no other number."""

    def edit(graph: Graph) -> Graph:
        logits = re.search(r"func.return (%\S+),", graph.text)
        assert logits
        lines = [
            f"%n = stablehlo.constant dense<{length}> : tensor<i32>",
            "%is = stablehlo.compare EQ, %length, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>",
            f"%neg = stablehlo.negate {logits[1]} : tensor<29xf32>",
            f"%out = stablehlo.select %is, %neg, {logits[1]} : tensor<i1>, tensor<29xf32>",
            "func.return %out,",
        ]
        return dataclasses.replace(graph, text=graph.text.replace(logits[0], "\n    ".join(lines)))

    return edit


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("small", "large"), [nightly(0, 2, id="larger"), pytest.param(2, 0, id="smaller")])
def test_each_prefill_graph_is_given_every_length(small: int, large: int, tmp_path: Path) -> None:
    """A session would give a short prompt to the smaller one alone."""
    prefills = [
        wrong_at(length)(emit(model("plain").config, "prefill", "logits", 10, bucket))
        for length, bucket in ((small, 4), (large, 8))
    ]
    record = checked(tmp_path, *prefills, both()[1])
    assert record["verdict"]["class"] == "emitter-fault"
    assert (record["verdict"]["anchor"], record["localization"]["phase"]) == ("lm_head", "prefill")
    assert "logits of prefill after all 12 lengths that its 2 buckets take" in record["verdict"]["compared"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("length", only([8], [2, 8]))
def test_prefill_alone_is_given_prompts_that_fill_it(
    length: int, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a larger model a few lengths are tried, and the others are named."""
    if large:
        monkeypatch.setattr(returned_module, "SMALL_MODEL", 0)
    record = checked(tmp_path, wrong_at(length)(both()[0]))
    assert record["verdict"]["class"] == "emitter-fault"
    missing = record["verdict"]["not_compared"]
    assert [m.partition(" of the ")[0] for m in missing] == ["logits of prefill after 3"] * large


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("phases", [1, 2])
def test_no_step_after_a_prompt(phases: int, tmp_path: Path) -> None:
    """What a decode graph computes inside is looked at all the same."""
    record = checked(tmp_path, *both()[-phases:], tokens=1)
    assert (record["verdict"]["class"], statuses(record, "passed", "skipped")) == ("conforms", {})
    assert "decode" in {m["phase"] for m in record["anchors"]}
    assert record["verdict"]["not_compared"] == []


@pytest.mark.usefixtures("quick")
def test_a_tap_is_named_as_not_compared(tmp_path: Path) -> None:
    def edit(graph: Graph) -> Graph:
        graph = model("plain").anatomy("emitter", graph.abi.phase).with_outputs(["norm"])
        tap = dataclasses.replace(graph.abi.results[-1], name="hidden")
        return dataclasses.replace(graph, abi=dataclasses.replace(graph.abi, results=(*graph.abi.results[:-1], tap)))

    record = checked(tmp_path, *both(edit))
    assert record["verdict"]["class"] == "conforms"
    assert record["verdict"]["not_compared"] == ["what the graph returns besides: hidden"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("wrong", only(["prefill"], ["prefill", "decode"]))
def test_the_wrong_one_of_two_is_found(wrong: str, tmp_path: Path) -> None:
    def edit(graph: Graph) -> Graph:
        return changed(graph, "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act") if graph.abi.phase == wrong else graph  # fmt: skip

    record = checked(tmp_path, *both(edit))
    found = record["localization"]
    assert (record["verdict"]["class"], found["phase"], found["anchor"]) == ("emitter-fault", wrong, "layers.1.mlp.act")
    assert found["operation"]["name"] == "stablehlo.tanh"
    assert record["canary"]["caught"], "in the oracle's"


def without_names(graph: Graph) -> Graph:
    return dataclasses.replace(graph, text=re.sub(r' loc\("[^"]*"\)', "", graph.text))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("head", only(["token"], ["logits", "token"]))
def test_a_graph_without_names(head: str, tmp_path: Path) -> None:
    """Its anchors are found by number, and it is looked into as one that names them."""
    record = checked(tmp_path, *both(without_names, head))
    assert (record["verdict"]["class"], statuses(record, "passed")) == ("conforms", {})
    assert record["verdict"]["not_compared"] == (
        [] if head == "logits" else ["the logits: the graph answers with a token"]
    )
    assert record["canary"]["caught"]


@pytest.mark.usefixtures("quick")
def test_anchors_that_could_not_be_looked_for_are_no_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*arguments: object) -> None:
        raise TimedOut("it did not end within 1 s")

    monkeypatch.setattr("hloracle.conformance.looking.name_graphs", died)
    record = checked(tmp_path, *both(without_names))
    assert record["verdict"]["class"] == "harness-error"
    assert statuses(record, "passed", "skipped") == {"file.anchors-by-number": "error"}


@pytest.mark.usefixtures("quick")
def test_a_wrong_graph_without_names(tmp_path: Path) -> None:
    """Its anchors are found by number, and so is its place."""

    def edit(graph: Graph) -> Graph:
        return without_names(changed(graph, "stablehlo.logistic", "stablehlo.tanh", "layers.0.mlp.act"))

    record = checked(tmp_path, *both(edit))
    verdict = record["verdict"]
    assert verdict["class"] == "emitter-fault"
    assert verdict["anchor"] == "layers.0.mlp.act"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("other", [pytest.param(True, id="beside another main"), nightly(False, id="alone")])
def test_an_entry_point_of_another_name(other: bool, tmp_path: Path) -> None:
    def edit(graph: Graph) -> Graph:
        text = graph.text.replace("@main(", "@step(", 1)
        more = "  func.func public @main(%x: tensor<f32>) -> tensor<f32> {\n    func.return %x : tensor<f32>\n  }\n"
        text = text.replace("  func.func", f"{more * other}  func.func", 1)
        return dataclasses.replace(graph, text=text, abi=dataclasses.replace(graph.abi, function="step"))

    record = checked(tmp_path, *both(edit))
    assert (record["verdict"]["class"], statuses(record, "passed")) == ("conforms", {})


@pytest.mark.usefixtures("quick")
def test_two_functions_of_one_text(tmp_path: Path) -> None:
    """Each ABI names its own."""
    functions = [
        g.text[g.text.index("{\n") + 2 : g.text.rindex("}")].replace("@main(", f"@{g.abi.phase}(") for g in both()
    ]
    text = f"module @both {{\n{''.join(functions)}}}\n"
    record = checked(tmp_path, *both(lambda g: dataclasses.replace(
        g, text=text, abi=dataclasses.replace(g.abi, function=g.abi.phase))))  # fmt: skip
    assert (record["verdict"]["class"], statuses(record, "passed")) == ("conforms", {})


def insert(*lines: str) -> Edit:
    """Operations at the end of decode's function."""
    more = "".join(f"    {line}\n" for line in lines)

    def edit(graph: Graph) -> Graph:
        if graph.abi.phase == "prefill":
            return graph
        return dataclasses.replace(graph, text=graph.text.replace("    func.return", f"{more}    func.return"))

    return edit


DRAWS = insert(
    "%ra = stablehlo.constant dense<0.0> : tensor<f32>", "%rs = stablehlo.constant dense<4> : tensor<1xi64>",
    "%rr = stablehlo.rng %ra, %ra, %rs, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>",
)  # fmt: skip
FLAWS: dict[str, tuple[Edit, str, str]] = {
    "draws random numbers": (DRAWS, "invariant-broken", "file.random"),  # and uses none
    "is of several devices": (insert("%p = stablehlo.partition_id : tensor<ui32>"), "unsupported", "file.supported"),
    "donates nothing": (
        lambda g: dataclasses.replace(g, text=re.sub(r" \{tf\.aliasing_output = \d : i32\}", "", g.text)),
        "invariant-broken", "file.donations",
    ),
    "has f64": (insert("%d = stablehlo.constant dense<1.0> : tensor<f64>"), "invariant-broken", "file.f64"),
}  # fmt: skip


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("flaw", FLAWS)
def test_a_graph_with_a_flaw(flaw: str, tmp_path: Path) -> None:
    edit, class_, check = FLAWS[flaw]
    record = checked(tmp_path, *both(edit))
    assert record["verdict"]["class"] == class_
    assert statuses(record, "passed", "skipped", "error") == {check: "failed"}
    assert bool(record["configurations"]) == (class_ != "unsupported"), "what no backend runs is not tried"


def test_a_graph_that_no_compiler_takes(quick: dict[str, Backend], tmp_path: Path) -> None:
    quick |= {name: Refusing(ToolchainError("compile", "cannot be legalized")) for name in ON}
    verdict = checked(tmp_path, *both())["verdict"]
    assert verdict["class"] == "unsupported"
    assert "cannot be legalized" in verdict["explanation"]


@pytest.mark.parametrize("name", ON)
def test_a_backend_that_is_out_of_memory(name: str, quick: dict[str, Backend], tmp_path: Path) -> None:
    quick[name] = Refusing(OutOfMemory(name))
    record = checked(tmp_path, *both(), verdict_only=True)
    assert (record["verdict"]["class"], record["passed"]) == ("out-of-memory", False)
    assert f"file/{name}: {name} is out of memory" in record["verdict"]["explanation"]


@pytest.mark.parametrize(
    ("wrong_on", "class_"), [(ON[:1], "compiler-fault"), (ON[1:], "compiler-fault"), (ON, "emitter-fault")]
)
def test_a_backend_that_gets_it_wrong(
    wrong_on: tuple[str, ...], class_: str, quick: dict[str, Backend], tmp_path: Path
) -> None:
    quick |= {
        name: Changing(lambda t: t.replace("stablehlo.logistic", "stablehlo.tanh"), quick_xla()) for name in wrong_on
    }
    record = checked(tmp_path, *both(), verdict_only=True)
    assert record["verdict"]["class"] == class_
    assert record["localization"] is None


@dataclasses.dataclass
class Refusing:
    """A backend that loads no graph."""

    error: ToolchainError
    name: str = "refusing"

    def load(self, graph: Graph) -> Executable:
        raise self.error

    def upload(self, array: np.ndarray) -> Buffer:
        return array

    keep = upload

    def download(self, buffer: Buffer) -> np.ndarray:
        return np.asarray(buffer)


@pytest.mark.parametrize(
    ("graphs", "abis", "line"),
    [
        (lambda: both()[1:] * 2, 0, "is a decode, as {0} is; give one graph of each phase and bucket"),
        (lambda: both()[:1] * 2, 0, "is a prefill of 8 tokens, as {0} is"),
        (lambda: [both()[0], both(head="token")[1]], 0, "its head is token, and that of {0} is logits"),
        (lambda: [both()[0], emit(model("plain").config, "decode", "logits", 12)], 0, "its capacity is 12, and that of {0} is 10"),
        (both, 1, "--abi: is given 1 times for 2 graphs; give one for each, in order"),
    ],
)  # fmt: skip
def test_graphs_that_are_not_of_one_session(
    graphs: Callable[[], list[Graph]], abis: int, line: str, tmp_path: Path
) -> None:
    paths = written(tmp_path, graphs())
    given = [path.with_suffix(".abi.json") for path in paths[:abis]]
    with pytest.raises(InputError, match=re.escape(line.format(paths[0]))):
        open_files(paths, given)


@pytest.mark.nightly
@pytest.mark.parametrize("backends", ON_XLA)
def test_a_cache_of_two_slots(backends: tuple[str, ...], tmp_path: Path, no_gates: None) -> None:
    """The calls that are made twice fill no slot that there is not."""
    path = emitted(tmp_path, "--phase", "decode", "--capacity", "2")
    status, record = judged(path, "tiny-llama", *backends, tokens=2)
    assert (status, record["verdict"]["class"]) == (0, "conforms")


@pytest.mark.parametrize("tokens", [0, 11])
def test_as_many_tokens_as_there_are_slots(tokens: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"--tokens: is {tokens}, and the graph's cache has 10 slots"):
        checked(tmp_path, *both(), tokens=tokens)


@pytest.mark.parametrize(
    ("edit", "sources"),
    [
        (lambda abi: abi, ["oracle"]),
        # A bucket beyond the caches: no oracle can have that contract.
        (lambda abi: dataclasses.replace(abi, results=(abi.results[0], *(dataclasses.replace(r, shape=(2, 2, 4, 4)) for r in abi.results[1:]))), []),
    ],
)  # fmt: skip
def test_the_oracles_graphs_of_the_same_contracts(edit: Callable[[Abi], Abi], sources: list[str]) -> None:
    """With logits, whatever the file's answer with."""
    for head in ("logits", "token"):
        graph = model("plain").graph("emitter", "prefill", head)
        found, _ = oracle_of(Context(), [dataclasses.replace(graph, abi=edit(graph.abi))], model("plain").config)
        assert [(g.abi.phase, g.abi.head, g.abi.bucket, g.abi.capacity) for g, _ in found] == [
            ("prefill", "logits", 8, 10) for _ in sources
        ]
