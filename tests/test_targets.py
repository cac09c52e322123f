"""What is known of graphs for a device without running them: what compiles, in which arithmetic, and what a step waits for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hloracle.backends.devices import compiled_for
from hloracle.backends.iree import compile_to_stream
from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_stream import caches_in_place, read_backs
from hloracle.conformance.runs.code_generation import Compiled, arithmetic_of, compile_checks, compile_for
from hloracle.conformance.runs.gate_zero import sum_graph
from hloracle.core.abi import Graph
from hloracle.core.cache import entry_name, noting
from hloracle.core.errors import ToolchainError
from hloracle.emitters.model import Emitter, emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.registry import from_hf

CONFIG = from_hf(TINY["llama"])


def by_id(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.id: check for check in checks}


@pytest.fixture(scope="module")
def production() -> Graph:
    return emit(CONFIG, "decode", "token", 64)


@pytest.fixture(scope="module")
def on_device() -> Graph:
    return Emitter(on_device=True).emit(CONFIG, "decode", "token", 64)


def test_a_step_on_a_device_reads_nothing_back(on_device: Graph) -> None:
    found = read_backs(compile_to_stream(on_device, compiled_for("cuda")))
    assert (found.id, found.status) == ("emitter.read-backs", "passed"), found
    assert re.fullmatch(r"0 numbers, [1-9]\d* dispatches", found.figure)


def test_a_step_that_reads_back(production: Graph) -> None:
    """Where a slice begins at a position that the host is to know first."""
    found = read_backs(compile_to_stream(production, compiled_for("cuda")))
    assert found.status == "failed"
    assert "the host waits" in found.detail


def test_nothing_to_read_is_not_passed() -> None:
    assert read_backs("").status == "failed"
    assert read_backs("util.func public @main() {}").status == "failed"


def test_caches_in_place_on_a_device(on_device: Graph) -> None:
    assert caches_in_place(on_device, compile_to_stream(on_device, compiled_for("cuda"))).status == "passed"


def compiled_rows(*messages: str, arithmetic: tuple[str, ...] = ("fma f32",)) -> list[Compiled]:
    return [
        Compiled("emitter", f"graph-{i}", "cuda", "sm_89", 1.0, message, () if message else arithmetic)
        for i, message in enumerate(messages)
    ]


def test_what_compiles_for_a_target() -> None:
    found = by_id(compile_checks(compiled_rows("", "")))
    assert found["emitter/iree-cuda.compiles"].figure == "2 of 2"
    assert {c.status for c in found.values()} == {"passed"}
    assert set(found) == {"emitter/iree-cuda.compiles", "emitter/iree-cuda.arithmetic"}


def test_where_it_does_not_compile(production: Graph) -> None:
    """The compiler names the location, which is the anchor."""
    line = next(x for x in production.text.splitlines() if "stablehlo.logistic" in x and "layers.1.mlp.act" in x)
    called = re.sub(r"stablehlo\.logistic (%\S+) : (\S+)", r"stablehlo.custom_call @absent(\1) : (\2) -> \2", line)
    graph = dataclasses.replace(production, text=production.text.replace(line, called))
    (check,) = compile_checks([compile_for("emitter", graph, compiled_for("cuda"))])
    assert (check.status, check.anchor) == ("failed", "layers.1.mlp.act")
    assert "custom_call" in check.detail


@pytest.mark.parametrize(
    ("message", "anchor"),
    [
        ('loc("layers.1.mlp.act"): failed to legalize', "layers.1.mlp.act"),
        ('loc("layers.1.mlp.act"("g.mlir":3:5)): failed to legalize', "layers.1.mlp.act"),
        ('loc("g.mlir":3:5): failed to legalize', ""),  # a file is no place in a graph
        ("error: failed to distribute", ""),
    ],
)
def test_what_names_a_place(message: str, anchor: str) -> None:
    assert compile_checks(compiled_rows(message))[0].anchor == anchor


def test_what_does_not_compile_for_a_target() -> None:
    found = by_id(compile_checks(compiled_rows("", "error: failed to distribute")))["emitter/iree-cuda.compiles"]
    assert (found.status, found.figure, found.limit) == ("failed", "1 of 2", "2 of 2")
    assert found.detail == "graph-1: error: failed to distribute"
    assert compile_checks([]) == []


@pytest.mark.parametrize(
    ("arithmetic", "status"),
    [(("fma f32",), "passed"), (("fma f32", "mma f16"), "passed"), (("fma f32", "mma tf32"), "failed"), ((), "error")],
)
def test_tf32_is_never_on_silently(arithmetic: tuple[str, ...], status: str) -> None:
    assert (
        by_id(compile_checks(compiled_rows("", arithmetic=arithmetic)))["emitter/iree-cuda.arithmetic"].status == status
    )


def test_arithmetic_is_read_from_the_code() -> None:
    head = b".version 7.8\n.target sm_89\n"
    assert arithmetic_of(b"no code at all, fma.rn.f32") == ()
    assert arithmetic_of(head + b"fma.rn.f32 %f1, %f2, %f3, %f4;") == ("fma f32",)
    assert arithmetic_of(head + b"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {};") == ("mma tf32",)
    assert arithmetic_of(head + b"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {};\nfma.rn.f16x2 ;") == (
        "fma f16", "mma bf16",
    )  # fmt: skip


def test_what_came_of_a_target_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path))
    graph, cuda = sum_graph(), compiled_for("cuda")
    first, second = compile_for("emitter", graph, cuda), compile_for("emitter", graph, cuda)
    assert (first.ok, first.reused, second.reused) == (True, False, True)
    assert dataclasses.replace(second, reused=False) == first
    broken = dataclasses.replace(graph, text=graph.text.replace("stablehlo.add", "stablehlo.no"))
    failed = compile_for("emitter", broken, cuda)
    assert "error:" in failed.message
    assert str(tmp_path) not in failed.message
    assert compile_for("emitter", broken, cuda).reused


@pytest.mark.parametrize(
    "how", [lambda whole: "", lambda whole: whole[:-3], lambda whole: whole.replace("sm_89", "sm_88")]
)
def test_what_came_of_a_target_is_found_anew_where_it_was_damaged(how: Callable[[str], str], empty_cache: Path) -> None:
    graph, cuda = sum_graph(), compiled_for("cuda")
    first = compile_for("emitter", graph, cuda)
    (entry,) = [path for path in (empty_cache / "compiles").rglob("*") if path.is_file() and path.suffix != ".lock"]
    whole = entry.read_text()
    entry.write_text(how(whole))
    assert entry.read_text() != whole
    with noting() as found:
        second = compile_for("emitter", graph, cuda)
    assert found == [entry_name(entry)]
    assert (second.reused, second.arithmetic) == (False, first.arithmetic)
    assert compile_for("emitter", graph, cuda).reused


@pytest.mark.parametrize("stage", ["memory", "timeout"])
def test_a_compiler_that_did_not_end_by_itself_is_not_wrong(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path))

    def ended(*_: object) -> bytes:
        raise ToolchainError(stage, "iree-compile did not end")

    monkeypatch.setattr("hloracle.backends.iree.iree_compile", ended)
    (check,) = compile_checks([compile_for("emitter", sum_graph(), compiled_for("cuda"))])
    assert (check.status, check.error, check.detail) == ("error", stage, "gate_zero_add: iree-compile did not end")


def test_a_compiler_that_was_killed_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path))

    def killed(*_: object) -> bytes:
        raise ToolchainError("compile", "iree-compile ended with signal SIGKILL and no message")

    with monkeypatch.context() as patch:
        patch.setattr("hloracle.backends.iree.iree_compile", killed)
        assert not compile_for("emitter", sum_graph(), compiled_for("cuda")).ok
    found = compile_for("emitter", sum_graph(), compiled_for("cuda"))
    assert (found.ok, found.reused) == (True, False)
