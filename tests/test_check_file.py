"""`hloracle emit` writes graphs that compilers take as they are; `hloracle check` tells a right one from a wrong one."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jax._src.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo

from hloracle.backends.iree import iree_compile
from hloracle.conformance import cli
from hloracle.conformance.evidence import Evidence, Progress
from hloracle.conformance.graphs import GraphFacts
from hloracle.conformance.sources import show_graphs
from hloracle.core.abi import Abi
from hloracle.core.child import alone
from hloracle.emitters.model import emit
from hloracle.reference.contract import graph_abi
from hloracle.reference.encodings import PRECISIONS
from hloracle.reference.registry import from_hf
from hloracle.reference.tiny import TINY
from hloracle.reference.weights import default_layout, joined
from hloracle.reports.record import load

CONFIG = from_hf(TINY["llama"])
PHASES = ("decode", "prefill")
SOURCES = ("emitter", "reference")


def emitted(folder: Path, *arguments: str, name: str = "graph.mlir") -> Path:
    path = folder / name
    assert cli.invoke(["emit", "tiny-llama", "--capacity", "128", "-o", str(path), *arguments]) == 0
    return path


def judged(path: Path, model: str = "tiny-llama", *more: str, tokens: int = 8) -> tuple[int, dict[str, Any]]:
    """Exit status and record of `hloracle check`."""
    out = path.parent / "out"
    abi = path.with_suffix(".abi.json")
    command = ["check", str(path), "--abi", str(abi), "--model", model, "--tokens", str(tokens), *more]
    return cli.invoke([*command, "--out", str(out)]), load(out / "report.json")


@pytest.fixture
def no_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have been passed before."""
    monkeypatch.setattr("hloracle.conformance.check_file.gates", lambda *a: True)


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
def test_emit_joined(precision: str, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "decode", "--precision", precision, "--joined")
    held = joined(CONFIG, default_layout(CONFIG, precision))
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


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("phase", PHASES)
def test_iree_compile_takes_it_as_it_is(phase: str, source: str, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", phase, "--source", source, "--bucket", "32", "--capacity", "32")
    flags = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
    assert len(iree_compile(path, flags)) > 1000


# ---- check


@pytest.mark.parametrize("arguments", [("--phase", "decode"), ("--phase", "prefill"),
                                       ("--phase", "decode", "--head", "token")])  # fmt: skip
@pytest.mark.usefixtures("no_gates")
def test_a_right_graph(arguments: tuple[str, ...], small_run: Path, tmp_path: Path) -> None:
    status, record = judged(emitted(tmp_path, *arguments))
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    token = "/token" if "token" in arguments else ""
    assert [c["id"] for c in record["cells"]] == [f"file/iree-cpu{token}", f"file/xla-cpu{token}"]
    prompts, steps = (2, 1) if "prefill" in arguments else (5, 8)
    prompts = sum(len(p["token_ids"]) <= 64 for p in record["prompts"]) if "prefill" in arguments else prompts
    assert len(record["tokens"]) == prompts > 2
    assert {row["total"] for row in record["tokens"].values()} == {steps}
    assert not [c for c in record["checks"] if c["status"] not in ("passed", "skipped")]


@pytest.mark.usefixtures("no_gates")
def test_a_right_graph_in_4_bits(small_run: Path, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "decode", "--precision", "int4")
    status, record = judged(path, "tiny-llama", "--precision", "int4", tokens=2)
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    assert record["settings"]["precision"] == "int4"
    assert not [c for c in record["checks"] if c["status"] not in ("passed", "skipped")]


@pytest.mark.usefixtures("no_gates")
def test_a_wrong_graph_in_4_bits(small_run: Path, tmp_path: Path) -> None:
    """Its scores have another scale, as above: the verdict is as good as with plain weights."""
    path = emitted(tmp_path, "--phase", "decode", "--precision", "int4")
    text = path.read_text()
    assert text.count("dense<0.25>") == 1
    path.write_text(text.replace("dense<0.25>", "dense<0.26>"))
    status, record = judged(path, "tiny-llama", "--precision", "int4", tokens=2)
    assert (status, record["verdict"]["class"]) == (1, "emitter-fault")
    assert record["localization"]["anchor"] == "layers.0.self_attn.scores"


def test_the_oracles_graph(small_run: Path, tmp_path: Path) -> None:
    assert judged(emitted(tmp_path, "--phase", "decode", "--source", "reference"))[0] == 0


@pytest.mark.parametrize("arguments", [("--phase", "decode"), ("--phase", "prefill", "--bucket", "32")])
@pytest.mark.usefixtures("no_gates")
def test_a_graph_with_another_scale(
    arguments: tuple[str, ...], small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = emitted(tmp_path, *arguments)
    text = path.read_text()
    assert text.count("dense<0.25>") == 1
    path.write_text(text.replace("dense<0.25>", "dense<0.26>"))
    status, record = judged(path)
    assert (status, record["passed"], record["verdict"]["class"]) == (1, False, "emitter-fault")
    assert "emitter-fault" in capsys.readouterr().out
    assert {c["id"].split(".")[0] for c in record["checks"] if c["status"] == "failed"} == {
        cell["id"] for cell in record["cells"]
    }


@pytest.mark.usefixtures("no_gates")
def test_a_graph_that_picks_another_token(small_run: Path, tmp_path: Path) -> None:
    """It adds up the indices of all the largest logits, and of all others the vocabulary's size."""
    path = emitted(tmp_path, "--phase", "decode", "--head", "token")
    text = path.read_text()
    assert text.count("applies stablehlo.minimum") == 1
    path.write_text(text.replace("applies stablehlo.minimum", "applies stablehlo.add"))
    status, record = judged(path)
    assert (status, record["verdict"]["class"]) == (1, "emitter-fault")


@pytest.mark.parametrize("text", ["", "not MLIR", "module {"])
@pytest.mark.usefixtures("no_gates")
def test_a_file_that_is_no_graph(text: str, small_run: Path, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "decode")
    path.write_text(text)
    status, record = judged(path)
    assert (status, record["verdict"]["class"], record["cells"]) == (1, "emitter-fault", [])
    assert record["verdict"]["evidence"][0].startswith("file.parse: 0 of 1")


@pytest.mark.usefixtures("no_gates")
def test_a_graph_that_is_not_its_abi(small_run: Path, tmp_path: Path) -> None:
    """It is not run: there is no saying what would happen."""
    path = emitted(tmp_path, "--phase", "decode")
    abi = path.with_suffix(".abi.json")
    raw = json.loads(abi.read_text())
    raw["arguments"][0]["shape"], raw["arguments"][1:1] = raw["arguments"][0]["shape"], []
    raw["arguments"][1], raw["arguments"][6] = raw["arguments"][6], raw["arguments"][1]
    raw["arguments"][2], raw["arguments"][3] = raw["arguments"][3], raw["arguments"][2]
    abi.write_text(json.dumps(raw))
    status, record = judged(path)
    assert (status, record["verdict"]["class"], record["cells"]) == (1, "emitter-fault", [])
    assert record["verdict"]["evidence"][0].startswith("file.abi: 2 (graph: argument ")


@pytest.mark.usefixtures("no_gates")
def test_a_contract_that_no_oracle_can_have(small_run: Path, tmp_path: Path) -> None:
    """The ABI says fewer cache slots than the bucket has tokens."""
    path = emitted(tmp_path, "--phase", "prefill")
    abi = path.with_suffix(".abi.json")
    abi.write_text(re.sub(r"\b128\b", "32", abi.read_text()))
    assert Abi.from_file(abi).capacity == 32
    status, record = judged(path)
    assert (status, record["verdict"]["class"], record["cells"]) == (1, "emitter-fault", [])
    assert [listing["graph"] for listing in record["listings"]] == ["file/prefill/64/logits"]


@pytest.mark.parametrize(
    ("capacity", "facts", "shown"),
    [
        (128, GraphFacts(), ["oracle", "file"]),
        (32, GraphFacts(), ["file"]),
        (128, GraphFacts(abi_mismatch=("argument 0",)), ["file"]),
        (128, GraphFacts(error="does not parse"), []),
    ],
)
def test_what_a_files_graph_is_shown_beside(capacity: int, facts: GraphFacts, shown: list[str]) -> None:
    graph = emit(CONFIG, "prefill", "logits", 128, 64)
    caches = [dataclasses.replace(r, shape=(3, 2, capacity, 16)) for r in graph.abi.results[1:]]
    graph = dataclasses.replace(graph, abi=dataclasses.replace(graph.abi, results=(graph.abi.results[0], *caches)))
    evidence = Evidence(graphs={"file": [(graph, facts)]})
    progress = Progress()
    with alone():
        show_graphs(evidence, CONFIG, progress)
    assert [source for source, _, _ in evidence.shown] == shown
    assert ("oracle" in evidence.graphs) == ("oracle" in shown)
    assert [timing["detail"] for timing in progress.timings] == [""]


@pytest.mark.usefixtures("no_gates")
def test_a_small_graph_is_asked_what_fits_it(small_run: Path, tmp_path: Path) -> None:
    path = emitted(tmp_path, "--phase", "prefill", "--bucket", "32", "--capacity", "40")
    status, record = judged(path)
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    # The last is cut to fill the bucket.
    assert [p["prompt"] for p in record["prompts"]] == ["one-token", "non-ascii", "capacity"]
