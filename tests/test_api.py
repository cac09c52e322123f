"""The public API: what `import hloracle` gives, sources and backends of the user's, and what is refused in one line."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, assert_type, cast

import numpy as np
import pytest
from records import conforms

import hloracle
from hloracle.backends import named, workers
from hloracle.backends.session import greedy
from hloracle.backends.xla import XlaCpu
from hloracle.cli import main as cli
from hloracle.conformance import suite
from hloracle.conformance.checks.census import NOT_PINNED
from hloracle.conformance.checks.check import Check
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs.facts import inspect
from hloracle.conformance.graphs.sources import Emitter, Request, Source, chosen, graphs_of, oracle_of
from hloracle.conformance.run import static_checks
from hloracle.conformance.runs.compiling import NO_TOKEN, NOT_IREE, elsewhere, on_device
from hloracle.conformance.runs.gate_zero import gate_zero
from hloracle.conformance.settings import Settings
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.child import alone
from hloracle.studies import mutants

# The smallest run of everything: decode alone, on one compiler.
SMALL: dict[str, Any] = {"backends": ["xla-cpu"], "tokens": 3, "capacity": 32, "threads": 1}
UNTYPED: Any = None
FIRST = "layers.0.input_layernorm"


@pytest.fixture(autouse=True)
def in_one_process() -> Iterator[None]:
    with alone():
        yield


def decode(request: Request) -> Graph | None:
    """A decode graph with logits, and nothing else."""
    if (request.phase, request.head) != ("decode", "logits"):
        return None
    return hloracle.emit(request.model.directory, "decode", capacity=request.capacity)


def edited(change: Callable[[Graph], Graph]) -> Callable[[Request], Graph | None]:
    """The same, with a change."""

    def source(request: Request) -> Graph | None:
        graph = decode(request)
        return graph and change(graph)

    return source


def with_text(old: str, new: str) -> Callable[[Graph], Graph]:
    return lambda graph: dataclasses.replace(graph, text=graph.text.replace(old, new))


def statuses(record: hloracle.Record, *left_out: str) -> dict[str, str]:
    return {c["id"]: c["status"] for c in record.data["checks"] if c["status"] not in left_out}


# ---- the names


@pytest.mark.parametrize("name", hloracle.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(hloracle, name)
    if name == "__version__":
        assert value
        return
    assert value.__doc__
    assert value.__doc__ == value.__dict__.get("__doc__", value.__doc__), "not that of what it is made from"
    assert not value.__doc__.startswith(f"{value.__name__}("), "which a dataclass writes by itself"


def test_no_other_name_is_there() -> None:
    assert dir(hloracle) == sorted(hloracle.__all__)
    with pytest.raises(AttributeError, match="module 'hloracle' has no attribute 'prove'"):
        hloracle.prove  # noqa: B018


def test_an_import_takes_a_moment() -> None:
    """No array library and no compiler is imported before something is asked for."""
    script = "import sys, hloracle; print(sorted({'numpy', 'jax', 'jaxlib', 'torch', 'iree'} & {*sys.modules}))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("[]\n", "")


# ---- a source


@pytest.fixture(scope="module")
def right(cache: Path) -> hloracle.Record:
    """The record of a function that gives a right graph."""
    with alone():
        return hloracle.run("tiny-llama", [decode], **SMALL)


def test_a_function_is_a_source(right: hloracle.Record) -> None:
    assert (right.passed, right.verdict.class_, right.verdict.sure) == (True, "conforms", "")
    assert [c["id"] for c in right.data["configurations"]] == ["decode/xla-cpu", "oracle/xla-cpu"]
    assert {row["total"] for row in right.data["tokens"].values()} == {3}
    assert {c["id"]: c["status"] for c in right.data["checks"]}["decode/xla-cpu.anchors"] == "passed"
    # Nothing is pinned for what somebody else wrote.
    skipped = {id.partition(".")[2] for id in statuses(right, "passed")}
    assert skipped >= {"census", "matmuls", "weights", "tables", "op-kinds", "fewer-ops", "caches-in-place"}
    assert set(statuses(right, "passed").values()) == {"skipped"}
    assert right.data["canary"] is not None
    assert str(right.verdict).startswith("conforms: ")


def test_a_wrong_source_is_told_where_it_is_wrong(right: hloracle.Record) -> None:
    @hloracle.source(name="roots")
    def wrong(request: Request) -> Graph | None:
        return edited(with_text("stablehlo.rsqrt", "stablehlo.sqrt"))(request)

    assert_type(wrong, Source)
    assert (wrong.name, wrong.counts_as) == ("roots", "")
    record = hloracle.run("tiny-llama", [wrong], **SMALL)
    verdict = record.verdict
    assert (record.passed, verdict.class_, verdict.anchor) == (False, "emitter-fault", FIRST)
    assert verdict.operation
    assert "stablehlo.sqrt" in verdict.operation
    assert verdict.sure
    assert f"First wrong: {FIRST}, " in str(verdict)
    assert "How sure: " in str(verdict)
    assert record.data["localization"] is not None


def test_a_record_is_saved_and_read(right: hloracle.Record, tmp_path: Path) -> None:
    folder = right.save(tmp_path / "new")
    assert {p.name for p in folder.iterdir()} == {"report.html", "report.json", "summary.md", "junit.xml"}
    assert hloracle.Record.load(folder / "report.json") == right
    with pytest.raises(hloracle.InputError, match="none"):
        hloracle.Record.load(tmp_path / "none.json")


def test_what_a_notebook_prints_is_short(right: hloracle.Record) -> None:
    assert repr(right) == "<Record conforms: tiny-llama>"
    model = hloracle.open_model("tiny-llama")
    assert len(repr(hloracle.emit(model, capacity=32))) < 120
    assert "model.norm.weight" not in repr(model)


def test_decorators() -> None:
    @hloracle.source
    def mine(request: Request) -> Graph | None:
        return None

    @hloracle.source(name="other", counts_as="emitter")
    def ours(request: Request) -> Graph | None:
        return None

    found = chosen([mine, ours, decode, "emitter"])
    assert [(s.name, s.counts_as) for s in found] == [
        ("mine", ""), ("other", "emitter"), ("decode", ""), ("emitter", "emitter"),
    ]  # fmt: skip


def test_a_source_that_counts_as_the_emitter() -> None:
    """Whoever wraps the bundled emitter is held to all that is pinned for it."""
    model = hloracle.open_model("tiny-llama")
    wraps = chosen([hloracle.source(Emitter(), name="wraps", counts_as="emitter"), "emitter"])
    request = Request(model, "decode", "logits", 32)
    graphs = {
        s.name: [(g, inspect(g)) for g in graphs_of(s, request, "prefill", (32,), ["logits", "token"])] for s in wraps
    }
    oracle, _ = oracle_of(Context(), [g for g, _ in graphs["emitter"]], model.config)
    evidence = Evidence(graphs={**graphs, "oracle": oracle})
    checks = static_checks(Run(Settings("tiny-llama"), Context(), wraps, model, evidence))

    def of(source: str) -> list[Check]:
        return [dataclasses.replace(c, source="") for c in checks if c.source == source]

    assert of("wraps") == of("emitter")
    assert {"census", "matmuls", "weights", "tables", "op-kinds", "fewer-ops"} <= {c.kind for c in of("wraps")}
    assert {c.status for c in of("wraps")} == {"passed"}


@pytest.mark.parametrize(("counts_as", "reason"), [("emitter", NO_TOKEN), ("", NOT_PINNED)])
def test_why_the_stream_form_of_a_graph_with_logits_is_not_read(counts_as: str, reason: str) -> None:
    model = hloracle.open_model("tiny-llama")
    mine, request = (
        chosen([hloracle.source(Emitter(), name="mine", counts_as=counts_as)]),
        Request(model, "decode", "logits", 32),
    )
    graphs = [(g, inspect(g)) for g in graphs_of(mine[0], request, "prefill", (), ["logits"])]
    evidence = Evidence(graphs={"mine": graphs})
    on_device(Run(Settings("tiny-llama"), Context(), mine, model, evidence))
    assert [(c.kind, c.status, c.detail) for c in evidence.checks] == [("caches-in-place", "skipped", reason)]


def test_where_iree_runs_nothing_it_judges_nothing() -> None:
    """Neither what it makes of decode, nor whether it compiles for a GPU."""
    model, emitted = hloracle.open_model("tiny-llama"), chosen(["emitter"])
    request = Request(model, "decode", "logits", 32)
    graphs = [(g, inspect(g)) for g in graphs_of(emitted[0], request, "prefill", (), ["logits", "token"])]
    for backends, compiles in ((["xla-cpu"], False), (["xla-cpu", "iree-cpu"], True)):
        context = Context(backends=named.chosen(backends))
        run = Run(Settings("tiny-llama"), context, emitted, model, Evidence(graphs={"emitter": graphs}))
        assert bool(elsewhere(run)) == compiles
    run.context = Context(backends=named.chosen(["xla-cpu"]))
    on_device(run)
    assert [(c.kind, c.status, c.detail) for c in run.evidence.checks] == [("caches-in-place", "skipped", NOT_IREE)]


def test_a_graph_of_ones_own_that_does_not_parse_has_a_verdict() -> None:
    """As the bundled emitter's: it is wrong, and wrong graphs do not raise."""
    record = hloracle.run("tiny-llama", [edited(with_text("module", "modules"))], **SMALL)
    assert record.verdict.class_ == "emitter-fault"
    assert "is not valid (source.parse" in record.verdict.explanation


# ---- what another package brings

PACKAGE = '''
from hloracle.backends.xla import XlaCpu
from hloracle.conformance.graphs.sources import Emitter
import hloracle

class Borrowed(XlaCpu):
    """XLA under another name."""

    name, family, quick = "not this", "xla", True

    def __init__(self, threads):
        super().__init__()

def decode(request):
    if (request.phase, request.head) == ("decode", "logits"):
        return hloracle.emit(request.model.directory, "decode", capacity=request.capacity)

lent = hloracle.worker("not this", ["{python}", "{worker}"], family="xla", quick=True)
other = hloracle.source(decode, name="other", counts_as="emitter")
whole = hloracle.source(Emitter(), counts_as="emitter")
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with a source and a backend."""
    worker = Path(str(workers.__file__)).parent / "xla_worker.py"
    (tmp_path / "borrowing.py").write_text(PACKAGE.format(python=sys.executable, worker=worker))
    info = tmp_path / "borrowing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: borrowing\nVersion: 1.0\n")
    entries = "[hloracle.sources]\nlent = borrowing:decode\nwhole = borrowing:whole\nnamed = borrowing:other\nbroken = nomod:B\n\n[hloracle.backends]\nborrowed = borrowing:Borrowed\nlent = borrowing:lent\nbroken = borrowing:None_\n"
    (info / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "borrowing", raising=False)


@pytest.mark.usefixtures("installed")
def test_a_source_and_a_backend_of_another_package() -> None:
    record = hloracle.run("tiny-llama", ["lent"], **{**SMALL, "backends": ["borrowed"]})
    assert record.verdict.class_ == "conforms"
    assert [c["id"] for c in record.data["configurations"]] == ["lent/borrowed", "oracle/borrowed"]
    # Nothing says when its code changed, so nothing that it computed is kept.
    assert {c["status"] for c in record.data["configurations"]} == {"ran"}
    context = Context(backends=named.chosen(["borrowed"]))
    assert (context.matrix.quick, context.matrix["borrowed"].family) == ("borrowed", "xla")
    assert context.entry("configurations", bool, []).writes is False


@pytest.mark.nightly
@pytest.mark.usefixtures("installed")
def test_a_worker_of_another_package() -> None:
    """A program that speaks the protocol is judged as any backend, under the name of its entry point."""
    record = hloracle.run("tiny-llama", backends=["lent"], tokens=3, capacity=64, threads=1, quick=True)
    assert record.verdict.class_ == "conforms"
    assert [c["id"] for c in record.data["configurations"]] == ["emitter/lent/token", "emitter/lent", "oracle/lent"]
    context = Context(backends=named.chosen(["lent"]))
    assert (context.matrix.quick, context.matrix["lent"].family) == ("lent", "xla")


@pytest.mark.usefixtures("installed")
def test_the_command_judges_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--tokens", "3", "--capacity", "32", "--threads", "1", "--rounds", "0", "--out", str(tmp_path)]
    assert cli.invoke(["run", "tiny-llama", "--source", "lent", "--backend", "borrowed", *small]) == 0
    record = hloracle.Record.load(tmp_path / "report.json")
    assert [c["id"] for c in record.data["configurations"]] == ["lent/borrowed", "oracle/borrowed"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--source", "nope"), "'nope': is no source; name some of: emitter"),
        (("--source", "broken"), "entry point 'broken' = nomod:B: cannot be loaded (ModuleNotFoundError: No module named"),
        (("--backend", "broken"), "entry point 'broken' = borrowing:None_: cannot be loaded (AttributeError: "),
        (("--backend", "tpu"), "'tpu': is no backend; name one of iree-cpu, xla-cpu, stablehlo"),
        (("--source", "emitter", "--source", "emitter"), "source 'emitter': is given twice; "),
        (("--source", "lent", "--layout", "rows"), "layout: has no effect on what other sources write"),
        (("--source", "lent", "--mutant", "rope-sign"), "--mutant rope-sign: is planted in a run of the bundled emitter"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("installed")
def test_what_the_command_refuses_of_them(
    arguments: Sequence[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["run", "tiny-llama", *arguments, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"hloracle: {line}")


@pytest.mark.usefixtures("installed")
def test_a_source_is_called_what_its_entry_point_is() -> None:
    found = chosen(["lent", "named"])
    assert [(one.name, one.counts_as) for one in found] == [("lent", ""), ("named", "emitter")]
    graph = found[1](Request(hloracle.open_model("tiny-llama"), "decode", "logits", 32))
    assert graph is not None
    assert graph.abi.capacity == 32


@pytest.mark.nightly
@pytest.mark.usefixtures("installed")
def test_a_source_of_another_package_is_asked_all_that_the_emitter_is() -> None:
    """Each is judged by itself, on both compilers, and both are held to the same checks; each takes its canary."""
    record = hloracle.run("tiny-llama", ["emitter", "whole"], **{**SMALL, "backends": None})
    assert record.verdict.class_ == "conforms"
    of: dict[str, dict[str, str]] = {"emitter": {}, "whole": {}}
    for check in record.data["checks"]:
        if check["source"] in of:
            of[check["source"]][check["id"].removeprefix(check["source"])] = check["status"]
    assert of["whole"] == of["emitter"]
    assert set(of["whole"].values()) == {"passed"}
    looked = [m["configuration"] for m in record.data["anchors"]]
    assert {"emitter/iree-cpu", "whole/iree-cpu"} <= set(looked)
    assert {c["id"]: c["status"] for c in record.data["checks"]}["harness.canary"] == "passed"


@pytest.mark.usefixtures("installed")
def test_another_process_finds_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloracle.core.child._alone", False)
    check = gate_zero(Context(backends=named.chosen(["borrowed"])), "borrowed").check
    assert (check.id, check.status, check.detail) == ("borrowed.gate-zero", "passed", "")


def test_a_model_that_was_opened_is_a_model(tmp_path: Path) -> None:
    model = hloracle.open_model("tiny-llama")
    assert hloracle.open_model(model) == model
    assert hloracle.emit(model, capacity=32).text == hloracle.emit("tiny-llama", capacity=32).text
    hloracle.emit(model, capacity=32).save(tmp_path / "decode.mlir")
    options: dict[str, Any] = {"tokens": 3, "threads": 1, "backends": ["xla-cpu"]}
    assert hloracle.check(tmp_path / "decode.mlir", model=model, **options).passed
    held = hloracle.open_model("tiny-llama", "int8")
    assert hloracle.open_model(held, "int8") == held
    narrow = hloracle.open_model("tiny-llama", compute="bf16")
    assert hloracle.open_model(narrow, compute="bf16") == narrow


def test_what_computes_in_less_is_driven_as_any_other() -> None:
    """A session and a batch, of caches in that type and logits in float32; a row is what it is alone."""
    decode = hloracle.emit("tiny-llama", capacity=64, compute="f16")
    assert (decode.abi.compute, decode.abi.results[0].dtype) == ("f16", "f32")
    session = hloracle.open_session("tiny-llama", 64, [32], backend="xla-cpu", compute="f16")
    alone = list(session.generate_streaming_greedy([1, 2, 3], 5))
    assert session.cache_type == np.float16
    batch = hloracle.open_batch("tiny-llama", 2, 64, [32], backend="xla-cpu", compute="f16")
    greedy = batch.join([1, 2, 3], count=5)
    drawn = batch.join([4, 5], count=6, sampling=hloracle.Sampling(temperature=0.8, top_p=0.9, seed=7))
    for _ in batch.run():
        pass
    assert greedy.generated == alone
    assert len(drawn.generated) == 6
    assert {str(head.dtype) for head in batch.session.step({0: 1}).values()} == {"float32"}


# ---- what is refused


def test_an_out_that_cannot_be_written(tmp_path: Path) -> None:
    """Said before the work: the reproducer is written last, and is what the work is for."""
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    line = f"{out}/.hloracle: cannot be written (not a directory); "
    assert refused(lambda: hloracle.run("tiny-llama", [decode], **SMALL, out=out)).startswith(line)
    assert refused(lambda: hloracle.suite(["llama"], out=out)).startswith(line)


def refused(call: Callable[[], Any]) -> str:
    """The line that it says."""
    with pytest.raises(hloracle.InputError) as error:
        call()
    line = str(error.value)
    assert "\n" not in line
    assert "; " in line, "and what to do"
    return line


class Nameless:
    """Would be a backend, but for a name."""


class Inside:
    """Has a class that can be found by its name, and one that cannot."""

    class Found(XlaCpu):
        name = "found"

    @staticmethod
    def hidden() -> type:
        class Hidden(XlaCpu):
            name = "hidden"

        return Hidden


def of_name(name: str) -> Source:
    return hloracle.source(decode, name=name)


@pytest.mark.parametrize(
    ("sources", "line"),
    [
        (["nope"], "'nope': is no source; name some of: emitter"),
        ("nope", "'nope': is no source; name some of: emitter"),
        (of_name("oracle"), "'oracle': cannot be the name of a source here"),
        ([], "sources: are none; give at least one"),
        ([3], "3: is no source; give a function"),
        (["emitter", "emitter"], "source 'emitter': is given twice; give it once, or each another name"),
        ([partial(decode)], "functools.partial(<function decode at "),
        ([of_name("oracle")], "'oracle': cannot be the name of a source here"),
        ([of_name("a/b")], "'a/b': cannot be the name of a source here"),
        ([decode, decode], "source 'decode': is given twice; "),
    ],
)
def test_what_is_no_source(sources: Any, line: str) -> None:
    assert refused(lambda: hloracle.run("tiny-llama", sources, **SMALL)).startswith(line)


@pytest.mark.parametrize(
    ("backends", "line"),
    [
        (["tpu"], "'tpu': is no backend; name one of iree-cpu, xla-cpu, stablehlo"),
        ("tpu", "'tpu': is no backend; name one of iree-cpu, xla-cpu, stablehlo"),
        (Inside.hidden(), "backend 'hidden': cannot be opened in another process ("),
        ([], "backends: are none; name some of: iree-cpu, xla-cpu"),
        (["xla-cpu", "xla-cpu"], "backend 'xla-cpu': is given twice"),
        ([3], "3: is no backend; give a name, or a class with a `name`"),
        ([Nameless], f"{Nameless!r}: is no backend"),
        ([Inside.hidden()], "backend 'hidden': cannot be opened in another process ("),
    ],
)
def test_what_is_no_backend(backends: Any, line: str) -> None:
    assert refused(lambda: hloracle.run("tiny-llama", [decode], **{**SMALL, "backends": backends})).startswith(line)


def test_a_partial_is_a_source_with_a_name() -> None:
    with pytest.raises(hloracle.InputError, match=r"has no name; give hloracle.source\(it, name='mine'\)$"):
        chosen([partial(decode)])
    with pytest.raises(hloracle.InputError, match="has no name"):
        hloracle.source(partial(decode))
    assert chosen([hloracle.source(partial(decode), name="mine")])[0].name == "mine"


def test_a_backend_that_another_process_can_import() -> None:
    assert named.chosen([Inside.Found])[0].name == "found"


def of_another_capacity(graph: Graph) -> Graph:
    return hloracle.emit("tiny-llama", "decode", capacity=64)


def of_another_model(graph: Graph) -> Graph:
    return hloracle.emit("tiny-mistral", "decode", capacity=32)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda graph: 1 / 0, "source source, decode: raised ZeroDivisionError: division by zero (test_api.py:"),
        (lambda graph: graph.text, "source source, decode: gave a str; give a hloracle.Graph, or None"),
        (lambda graph: None, "source source: has no graph of the model; give a decode graph"),
        (of_another_capacity, "source source, decode: gave the graph decode_logits of 64 slots"),
        (of_another_model, "source source, decode: "),
        (with_text("@main(", "@main(%more: tensor<f32>, "), "source source, llama_decode_logits: "),
    ],
)
def test_what_is_no_graph_of_the_model(change: Callable[[Graph], Any], line: str) -> None:
    assert refused(lambda: hloracle.run("tiny-llama", [edited(change)], **SMALL)).startswith(line)


def with_abi(**change: Callable[[Abi], Any]) -> Callable[[Graph], Graph]:
    """Another ABI of the same text."""
    return lambda graph: dataclasses.replace(
        graph, abi=dataclasses.replace(graph.abi, **{key: of(graph.abi) for key, of in change.items()})
    )


def exchanged(tensors: Sequence[Tensor], one: str, other: str) -> tuple[Tensor, ...]:
    """The tensors with the roles and names of two of them exchanged."""
    named = {one: other, other: one}
    return tuple(
        dataclasses.replace(t, role=named[t.role], name=named[t.role]) if t.role in named else t for t in tensors
    )


def aliasing(index: int) -> Callable[[Abi], Any]:
    return lambda abi: (*abi.results[:-1], dataclasses.replace(abi.results[-1], aliases=index))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            with_abi(arguments=lambda abi: exchanged(abi.arguments, "token", "position")),
            "a decode graph takes token, position, k_cache, v_cache after the weights, not position, token, ",
        ),
        (
            with_abi(results=lambda abi: exchanged(abi.results, "k_cache", "v_cache")),
            "the results are logits, v_cache, k_cache, not ",
        ),
        (with_abi(results=aliasing(0)), "results[2] (v_cache) aliases arguments[0] (model.embed_tokens.weight), a weight, "),
        (with_abi(results=aliasing(999)), "results[2] (v_cache) aliases argument 999, and there are "),
        (with_abi(results=lambda abi: ()), "the results are nothing, not token or logits, "),
        (with_abi(phase=lambda abi: "encode"), "phase 'encode' is not one of prefill, extend, decode"),
    ],
)  # fmt: skip
def test_an_abi_of_a_source_is_held_to_what_one_in_a_file_is(change: Callable[[Graph], Graph], line: str) -> None:
    said = refused(lambda: hloracle.run("tiny-llama", [edited(change)], **SMALL))
    assert said.startswith(f"source source, decode: {line}")
    assert said.endswith("; give the ABI that belongs to this graph")


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: hloracle.check(model="tiny-llama"), "graphs: are none; name at least one file"),
        (lambda: hloracle.check("no.mlir", model="tiny-llama"), "no.mlir: no such file"),
        (lambda: hloracle.check("no.mlir", model="tiny-llama", abi=["a", "b"]), "--abi: is given 2 times for 1 graphs"),
        (lambda: hloracle.run("tiny-nobody"), "'tiny-nobody': no such model"),
        (lambda: hloracle.run("tiny-llama", timeout=0), "--timeout: is 0; "),
        (lambda: hloracle.run("tiny-llama", tokens=0), "--tokens: is 0"),
        (lambda: hloracle.run("tiny-llama", layout="columns"), "--layout: is 'columns'; give one of panels, rows"),
        (lambda: hloracle.run("tiny-llama", device="tpu"), "--device 'tpu': is no device"),
        (lambda: hloracle.suite(["nobody"]), "'nobody': is no family"),
        (lambda: hloracle.open_model(UNTYPED), "None: is no model; give a checkpoint directory, "),
        (lambda: hloracle.run(UNTYPED, [decode]), "None: is no model; "),
        (lambda: hloracle.emit(UNTYPED), "None: is no model; "),
        (lambda: hloracle.open_session(UNTYPED), "None: is no model; "),
        (lambda: hloracle.generate(UNTYPED, "a"), "None: is no model; "),
        *(
            (partial(hloracle.run, "tiny-llama", [decode], **{key: value}), f"{key}: is {value!r}; give ")
            for key, value in [
                ("tokens", "3"),
                ("tokens", 3.5),
                ("tokens", None),
                ("tokens", True),
                ("timeout", None),
                ("capacity", "64"),
                ("threads", -1),
                ("threads", 0),
                ("threads", "2"),
                ("device", None),
                ("reuse", "no"),
                ("out", 3),
            ]
        ),
        (lambda: hloracle.suite(model="tiny-llama", rounds=cast(Any, "5")), "rounds: is '5'; give an int"),
        (lambda: hloracle.suite("llama", jobs=0), "jobs: is 0; give an int from 1 to 256"),
        (lambda: hloracle.suite("nobody"), "'nobody': is no family"),
        (lambda: hloracle.emit("tiny-llama", capacity=cast(Any, "64")), "capacity: is '64'; give an int"),
        (lambda: hloracle.open_session("tiny-llama", threads=0), "threads: is 0; give an int from 1 to 1024"),
        (lambda: hloracle.open_session("tiny-llama", threads=10**6), "threads: is 1000000; give an int from 1 to 1024"),
        (
            lambda: hloracle.run("tiny-llama", timeout=float("nan")),
            "--timeout: is nan; give a number of seconds, at most 604800",
        ),
        (
            lambda: hloracle.run("tiny-llama", timeout=1e9),
            "--timeout: is 1e+09; give a number of seconds, at most 604800",
        ),
        (
            lambda: hloracle.run("tiny-llama", rounds=10**9),
            "--rounds: is 1000000000; ask for none with 0, or for at most 1000",
        ),
        (lambda: hloracle.emit("tiny-llama", capacity=10**20), "--capacity: is more than 131,072; ask for fewer slots"),
        (
            lambda: hloracle.check(hloracle.emit("tiny-llama"), model="tiny-llama"),
            "a graph: is of type Graph, not the name of a",
        ),
        (
            lambda: hloracle.check("a", model="tiny-llama", abi=cast(Any, 3)),
            "abi: is of type int, not the name of a file",
        ),
        (lambda: hloracle.open_model("tiny-nobody"), "'tiny-nobody': no such model"),
        (lambda: hloracle.emit("tiny-llama", "x"), "--phase: is 'x'; give one of prefill, extend, decode"),
        (lambda: hloracle.emit("tiny-llama", head="both"), "--head: is 'both'; give one of token, logits"),
        (lambda: hloracle.emit("tiny-llama", "prefill", bucket=50), "--bucket: is 50; give one of 32, 64, 128, 256"),
        (lambda: hloracle.emit("tiny-llama", "prefill", capacity=32), "bucket 64 does not fit capacity 32"),
        (lambda: hloracle.emit("tiny-llama", capacity=0), "--capacity: is 0; give at least one slot"),
        (lambda: hloracle.emit("tiny-llama", precision="f8"), "'f8': no such precision"),
        (
            lambda: hloracle.emit("tiny-llama", compute="f8"),
            "'f8': no such type to compute in; use one of f32, bf16, f16",
        ),
        (lambda: hloracle.open_batch("tiny-llama", compute=cast(Any, 16)), "compute: is 16; give a string"),
        *(
            (
                partial(call, "tiny-llama", precision="int8", compute="bf16"),
                "--precision: is int8, and weights are in what",
            )
            for call in (hloracle.emit, hloracle.open_model, hloracle.open_session, hloracle.open_batch)
        ),
        (lambda: hloracle.open_session("tiny-llama", 0), "--capacity: is 0; give at least one slot"),
        (lambda: hloracle.open_session("tiny-llama", 64, [50]), "--bucket: is 50; give one of 32, 64, 128, 256"),
        (lambda: hloracle.open_session("tiny-llama", 64, backend="tpu"), "'tpu': is no backend"),
    ],
)
def test_what_cannot_begin(call: Callable[[], Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refused(call)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda text: hloracle.check(text, model="tiny-llama"),
        hloracle.open_model,
        lambda text: hloracle.run("tiny-llama", text),
        lambda text: hloracle.run("tiny-llama", backends=text),
        lambda text: hloracle.run("tiny-llama", layout=text),
        lambda text: hloracle.run("tiny-llama", [hloracle.Graph("mine", text, cast(Any, None))]),
        hloracle.Record.load,
    ],
)
def test_a_graph_s_text_in_a_wrong_place_is_cut(call: Callable[[str], Any]) -> None:
    assert len(refused(lambda: call("module @llama {\n" + "  return\n" * 5000))) < 3000


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: hloracle.run("tiny-llama", token=3), "token: is no option of hloracle.run; leave it out; there are "),
        (lambda: hloracle.run("tiny-llama", [decode], layout="rows"), "layout: has no effect on what other sources write"),
        (lambda: hloracle.run("tiny-llama", [decode], fused=False), "fused: has no effect on what other sources write"),
        *(
            (partial(hloracle.check, "no.mlir", model="tiny-llama", **{key: value}), f"{key}: has no effect in hloracle.check; ")
            for key, value in {"capacity": 64, "rounds": 0, "layout": "rows", "fused": True}.items()
        ),
        *(
            (partial(hloracle.suite, ["llama"], **{key: value}), f"{key}: has no effect on the tiny models; ")
            for key, value in {
                "tokens": 3, "precision": "bf16", "layout": "rows", "fused": False, "rounds": 0, "threads": 1,
                "quick": True,
            }.items()
        ),
        (partial(hloracle.suite, ["llama"], "tiny-llama", custom_calls=["f=l.so"]), "custom_calls: has no effect in hloracle"),
        (partial(hloracle.suite, ["llama"], told=print), "told: is no option of hloracle.suite; "),
    ],
)  # fmt: skip
def test_an_option_without_effect(call: Callable[[], Any], line: str) -> None:
    assert refused(call).startswith(line)


def test_the_table_of_options_is_whole() -> None:
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    taken: dict[str, set[str]] = {"run": set(), "check": set(), "suite": set()}
    for names, by in re.findall(
        r"^\| (`.*?`) \| .*? \| (.*?) \| .* \|$", page.partition("## Options")[2], re.MULTILINE
    ):
        for function in re.findall(r"`(\w+)`", by):
            taken[function] |= {*re.findall(r"`(\w+)`", names)}
    kinds = {"run": hloracle.Options, "check": hloracle.CheckOptions, "suite": hloracle.SuiteOptions}
    for function, kind in kinds.items():
        assert taken[function] == kind.__optional_keys__ - {"progress", "fault"}, function


def test_a_suite_writes_nothing_and_tells_of_each_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `out`. The families are not run here: the stand-in asks what they would be run with."""
    kept = []
    given: list[Settings] = []

    def families(items: Sequence[tuple[Settings, Context]], jobs: int, tell: suite.Told, *rest: Any) -> Any:
        for settings, _ in items:
            given.append(settings)
            tell.keep(settings.model.removeprefix("tiny-"), conforms())
        record = conforms()
        return {"llama": record}, [suite.row_of(record, 1.0, tell.mutants("llama"), "")]

    def keep(name: str, record: hloracle.Record) -> str:
        kept.append((name, record.passed))
        return ""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite, "run_families", families)
    monkeypatch.setattr(mutants, "outcomes", lambda family: (3, 4, True))
    record = hloracle.suite(["llama"], keep=keep)
    assert [settings.out for settings in given] == [None]
    assert kept == [("llama", True)]
    assert record.data["families"][0]["mutants"]["killed"] == 3, "as the command has it"
    assert hloracle.suite(["llama"]).passed
    assert list(tmp_path.iterdir()) == []


# ---- files, and a session


def test_a_file_is_a_source(tmp_path: Path) -> None:
    """Its ABI file stands beside it, or is named."""
    graph = edited(with_text("stablehlo.rsqrt", "stablehlo.sqrt"))(
        Request(hloracle.open_model("tiny-llama"), "decode", "logits", 32)
    )
    assert graph is not None
    path, abi = tmp_path / "decode.mlir", tmp_path / "elsewhere.json"
    path.write_text(graph.text)
    abi.write_text(graph.abi.to_json())
    record = hloracle.check(path, model="tiny-llama", abi=abi, backends=["xla-cpu"], tokens=3, threads=1)
    assert (record.verdict.class_, record.verdict.anchor) == ("emitter-fault", FIRST)
    assert [c["id"] for c in record.data["configurations"]] == ["file/xla-cpu", "oracle/xla-cpu"]


def test_a_session_on_the_bundled_graphs() -> None:
    session = hloracle.open_session("tiny-llama", 32, (32,), backend="xla-cpu", threads=1)
    assert isinstance(session, hloracle.Session)
    at_once = greedy(session.prefill((17, 3, 200), 32))
    steps = [greedy(session.decode_step(at_once))]
    assert greedy(session.stream_prompt((17, 3, 200))) == at_once
    assert [greedy(session.decode_step(at_once))] == steps
