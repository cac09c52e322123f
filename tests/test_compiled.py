"""The compile cache: what is found again, what is not, what happens to a damaged entry and to a failing compiler."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloracle.backends import iree, xla
from hloracle.backends.compiled import ABOUT, MODULE, Program, compiled, program_of
from hloracle.backends.devices import Device
from hloracle.backends.iree import IreeCpu, compile_to_stream, iree_compile, precompile
from hloracle.backends.named import chosen
from hloracle.backends.workers import shared
from hloracle.backends.xla import XlaCpu, has_compiled
from hloracle.cli import main as cli
from hloracle.conformance.context import Context
from hloracle.conformance.runs.gate_zero import gate_zero, product_graph, sum_graph
from hloracle.core.abi import Abi, Graph
from hloracle.core.cache import SEAL, noting
from hloracle.core.child import alone
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.mutants import MUTANTS
from hloracle.reports.record import load


def entries(cache: Path) -> list[str]:
    """The kinds of file in the compile cache, locks and seals left out."""
    found = (p for p in (cache / "compiled").rglob("*") if p.is_file() and p.name != SEAL)
    return sorted(p.suffix for p in found if p.suffix != ".lock")


def module(cache: Path) -> Path:
    (path,) = (cache / "compiled").rglob("*.module")
    return path


def written(cache: Path) -> int:
    """When the only module was written."""
    return module(cache).stat().st_mtime_ns


class Counting:
    """A compiler that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: Path) -> bytes:
        self.calls += 1
        return b"module of " + source.read_bytes()


IDENTITY = {"backend": "b", "compiler": "1", "path": "/bin/c", "flags": "-O2", "cpu": "x"}


def test_hit_on_the_second_load(empty_cache: Path) -> None:
    build = Counting()
    first, reused = compiled("graph", IDENTITY, build)
    assert not reused
    assert first.read_bytes() == b"module of graph"
    assert compiled("graph", IDENTITY, build) == (first, True)
    assert build.calls == 1
    assert entries(empty_cache) == [".json", ".module"], "the graph's file is gone"
    about = json.loads((first.parent / ABOUT).read_text())
    assert {**about, "seconds": 0} == {**IDENTITY, "seconds": 0}


@pytest.mark.parametrize("key", IDENTITY)
def test_miss_when_the_compiler_is_another(key: str, empty_cache: Path) -> None:
    build = Counting()
    first, _ = compiled("graph", IDENTITY, build)
    second, reused = compiled("graph", {**IDENTITY, key: "other"}, build)
    assert (build.calls, reused) == (2, False)
    assert second != first


def test_miss_when_the_graph_is_another(empty_cache: Path) -> None:
    build = Counting()
    first, _ = compiled("graph", IDENTITY, build)
    assert compiled("graph ", IDENTITY, build)[0] != first
    assert build.calls == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff{")


@pytest.mark.parametrize("part", [MODULE, ABOUT, SEAL])
@pytest.mark.parametrize("damage", [flip, truncate, empty, garbage, Path.unlink])
def test_a_damaged_entry_is_rebuilt(damage: Any, part: str, empty_cache: Path) -> None:
    build = Counting()
    path, _ = compiled("graph", IDENTITY, build)
    damage(path.with_name(part))
    with noting() as damaged:
        assert not compiled("graph", IDENTITY, build)[1]
    assert len(damaged) == 1
    assert build.calls == 2
    assert path.read_bytes() == b"module of graph"
    assert compiled("graph", IDENTITY, build)[1]


def test_what_is_known_of_a_program(empty_cache: Path) -> None:
    path, _ = compiled("graph", IDENTITY, Counting())
    found = program_of(path)
    assert found.size == path.stat().st_size
    assert found.seconds is not None
    (path.parent / ABOUT).write_text(json.dumps({"seconds": "many"}))
    assert program_of(path) == Program(None, found.size)
    for words in ("[]", "{"):
        (path.parent / ABOUT).write_text(words)
        assert program_of(path) == Program()


def test_a_compiler_that_fails_leaves_the_graph(empty_cache: Path) -> None:
    def build(source: Path) -> bytes:
        raise ToolchainError("compile", "no such op\n")

    for _ in range(2):
        with pytest.raises(ToolchainError) as caught:
            compiled("graph", IDENTITY, build)
        assert Path(caught.value.artifact).read_text() == "graph"
        assert str(caught.value) == f"compile failed: no such op (graph kept at {caught.value.artifact})"
    assert entries(empty_cache) == [".mlir"]
    assert not compiled("graph", IDENTITY, Counting())[1]
    assert entries(empty_cache) == [".json", ".module"]


# ---- IREE and XLA


def test_iree_reuses_its_module(empty_cache: Path) -> None:
    assert not precompile(sum_graph())
    assert precompile(sum_graph())
    made, backend = written(empty_cache), IreeCpu(threads=2)
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)
    (found,) = backend.load(sum_graph())([backend.upload(a), backend.upload(b)])
    assert backend.download(found).tolist() == [11, 22, 33, 44]
    assert written(empty_cache) == made
    assert not precompile(product_graph())


READ_ONLY = """
import errno, os, sys
from pathlib import Path
import iree.runtime as rt
from hloracle.backends.workers.shared import iree_module

def read_only(event, arguments):
    if event == "open" and str(arguments[0]) == sys.argv[1] and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        raise OSError(errno.EROFS, "Read-only file system")

sys.addaudithook(read_only)
instance = rt.Config("local-task").vm_instance
print(iree_module(rt, instance, Path(sys.argv[1])).name)
try:
    rt.VmModule.mmap(instance, sys.argv[1])
except OSError as error:
    print(error.strerror)
"""


def test_iree_takes_a_module_that_can_only_be_read(empty_cache: Path) -> None:
    """Its own `VmModule.mmap` fails, and gate zero would say that IREE is broken where the cache is read-only."""
    command = [sys.executable, "-c", READ_ONLY, str(iree.module_path(sum_graph()))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["gate_zero_add", "Read-only file system"]


def test_iree_other_flags_are_another_module(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not precompile(sum_graph())
    assert "stream." in compile_to_stream(sum_graph())
    assert precompile(sum_graph())
    monkeypatch.setattr(iree, "CPU_FLAGS", (*iree.CPU_FLAGS, "--iree-llvmcpu-reassociate-fp-reductions=false"))
    assert not precompile(sum_graph())
    assert precompile(sum_graph())


def test_the_stream_form_on_the_way(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is what it is when it is asked for alone; the form has shorthands, and says the same: see test_checks."""

    def modules() -> list[bytes]:
        return sorted(p.read_bytes() for p in empty_cache.rglob(MODULE))

    precompile(sum_graph())
    alone = modules()
    shutil.rmtree(empty_cache / "compiled")
    assert not precompile(sum_graph(), with_stream=True)
    monkeypatch.setattr(iree, "iree_compile", lambda *_: {}["compiled again"])
    assert "stream.cmd.dispatch" in compile_to_stream(sum_graph())
    assert set(alone) < set(modules())
    assert len(modules()) == 2
    assert precompile(sum_graph(), with_stream=True)


@pytest.mark.parametrize("backend", [lambda: IreeCpu(2), XlaCpu], ids=["iree", "xla"])
def test_a_damaged_module_is_rebuilt_and_runs(backend: Any, empty_cache: Path) -> None:
    made = backend()
    made.load(sum_graph())
    whole = written(empty_cache)
    flip(module(empty_cache))
    execute = made.load(sum_graph())
    rebuilt = written(empty_cache)
    assert rebuilt != whole
    ones = np.ones(4, np.float32)
    assert made.download(execute([made.upload(ones), made.upload(ones)])[0]).tolist() == [2, 2, 2, 2]
    made.load(sum_graph())
    assert written(empty_cache) == rebuilt


def test_xla_flags_are_part_of_the_key(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = XlaCpu()
    assert not has_compiled(sum_graph())
    backend.load(sum_graph())
    assert has_compiled(sum_graph())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert not has_compiled(sum_graph())
    backend.load(sum_graph())
    assert has_compiled(sum_graph())


TWO = """module @two {
  func.func private @one() -> tensor<f32> {
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    func.return %one : tensor<f32>
  }
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    %one = func.call @one() : () -> tensor<f32>
    %y = stablehlo.add %x, %one : tensor<f32>
    func.return %y : tensor<f32>
  }
  func.func public @step(%x: tensor<f32>) -> tensor<f32> {
    %y = func.call @main(%x) : (tensor<f32>) -> tensor<f32>
    %z = stablehlo.negate %y : tensor<f32>
    func.return %z : tensor<f32>
  }
}
"""


@pytest.mark.parametrize("order", [("main", "step"), ("step", "main")])
@pytest.mark.parametrize("backend", [lambda: IreeCpu(2), XlaCpu], ids=["iree", "xla"])
def test_each_function_of_a_text_by_its_name(backend: Any, order: tuple[str, str], empty_cache: Path) -> None:
    """One that calls another, which is called `main`; the second time both are taken from the cache."""
    expected, x = {"main": 3.0, "step": -3.0}, np.array(2, np.float32)
    for _ in range(2):
        made = backend()
        for name in order:
            graph = Graph("two", TWO, Abi("decode", (), (), name))
            (result,) = made.load(graph)([made.upload(x)])
            assert made.download(result).item() == expected[name]
    if backend is XlaCpu:
        assert all(has_compiled(Graph("two", TWO, Abi("decode", (), (), name))) for name in order)
        assert not has_compiled(Graph("two", TWO, Abi("decode", (), (), "one")))
        assert entries(empty_cache) == [".json", ".json", ".module", ".module"]


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (xla._failed, "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes"),
        (lambda *a: IreeCpu(2)._failed(*a), "allocator.c:202: RESOURCE_EXHAUSTED; failed to allocate"),
    ],
    ids=["xla", "iree"],
)
def test_memory_that_is_too_small_is_nobodys_fault(failed: Any, words: str) -> None:
    """What fails otherwise is an error of the stage."""
    assert isinstance(failed("run", RuntimeError(words)), OutOfMemory)
    other = failed("run", RuntimeError("INTERNAL: no luck"), "x")
    assert (type(other), other.stage, other.artifact) == (ToolchainError, "run", "x")
    assert "INTERNAL: no luck" in other.message


@pytest.mark.parametrize("backend", [lambda: IreeCpu(2), XlaCpu], ids=["iree", "xla"])
def test_a_graph_that_does_not_compile(backend: Any, empty_cache: Path) -> None:
    wrong = Graph("wrong", sum_graph().text.replace("stablehlo.add", "stablehlo.ad"), sum_graph().abi)
    with pytest.raises(ToolchainError) as caught:
        backend().load(wrong)
    assert caught.value.stage == "compile"
    assert "stablehlo.ad" in caught.value.message
    assert Path(caught.value.artifact).read_text() == wrong.text


# ---- a compiler that fails


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An `iree-compile` of one's own, found before the installed one, here and in child processes."""
    folder = tmp_path / "tools"
    folder.mkdir()
    path = folder / "iree-compile"
    monkeypatch.setenv("IREE_TOOL_PATH", str(folder))
    iree.compiler_path.cache_clear()
    yield path
    iree.compiler_path.cache_clear()


def write_stub(path: Path, script: str, mode: int = 0o755) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)


FAILS = "echo 'graph.mlir:1:2: error: the stub is out of order' >&2; exit 3"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (FAILS, "graph.mlir:1:2: error: the stub is out of order"),
        ("echo notes >&2; echo 'x: error: first' >&2; echo 'x: error: second' >&2; exit 1", "x: error: first"),
        ("echo only words >&2; exit 1", "only words"),
        ("exit 7", "iree-compile ended with exit status 7 and no message"),
        ("kill -SEGV $$", "iree-compile ended with signal SIGSEGV and no message"),
    ],
)
def test_compiler_that_fails(script: str, words: str, stub: Path, tmp_path: Path) -> None:
    write_stub(stub, script)
    with pytest.raises(ToolchainError) as caught:
        iree_compile(tmp_path / "graph.mlir", ())
    assert (caught.value.stage, caught.value.message) == ("compile", words)


def test_compiler_that_is_killed_accuses_nobody(stub: Path, tmp_path: Path) -> None:
    """The kernel does that where memory is short: `compiler-fault` would be a wrong verdict."""
    write_stub(stub, "kill -KILL $$")
    with pytest.raises(
        ToolchainError, match=r"was killed .signal SIGKILL., as Linux does where memory is short"
    ) as caught:
        iree_compile(tmp_path / "graph.mlir", ())
    assert caught.value.stage == "memory"


def test_compiler_without_room_for_temporary_files(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its linker blames an object file that it could not write whole."""
    write_stub(stub, "echo 'iree-lld: error: x.o: section header table goes past the end of the file' >&2; exit 1")
    monkeypatch.setattr(shared, "ROOM", 1 << 62)
    with pytest.raises(InputError, match=r"all but full, and iree-compile failed.*TMPDIR"):
        iree_compile(tmp_path / "graph.mlir", ())


def test_compiler_that_cannot_be_run(stub: Path, tmp_path: Path) -> None:
    stub.write_bytes(b"\x7fELF")
    stub.chmod(0o755)
    with pytest.raises(ToolchainError, match="cannot be run"):
        iree_compile(tmp_path / "graph.mlir", ())


def test_compiler_for_which_there_is_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(ToolchainError, match=r"cannot be run \(Resource temporarily unavailable\)") as caught:
        iree_compile(tmp_path / "graph.mlir", ())
    assert caught.value.stage == "memory"


def test_compiler_that_takes_too_long(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iree, "COMPILE_SECONDS", 0.2)
    write_stub(stub, "exec sleep 30")
    with pytest.raises(ToolchainError, match="took more than"):
        iree_compile(tmp_path / "graph.mlir", ())
    monkeypatch.setattr(iree, "COMPILE_SECONDS", 600)
    for compile in (precompile, compile_to_stream):
        with pytest.raises(ToolchainError, match=r"took more than 0\.1 s"):
            compile(sum_graph(), seconds=0.1)


def test_another_compiler_is_another_module(stub: Path, empty_cache: Path) -> None:
    """The stub says the same version and is in another place."""
    write_stub(stub, "printf module")
    assert not precompile(sum_graph())
    assert precompile(sum_graph())
    os.environ.pop("IREE_TOOL_PATH")
    iree.compiler_path.cache_clear()
    assert not precompile(sum_graph())


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "iree.compiler" else find(name))
    iree.compiler_path.cache_clear()
    with pytest.raises(InputError, match="iree-base-compiler: is not installed; pip install iree-base-compiler"):
        iree.compiler_path()
    iree.compiler_path.cache_clear()


def test_to_find_the_compiler_does_not_load_it() -> None:
    """Its library would be a tenth of a small session's memory."""
    script = (
        "import sys, pathlib; from hloracle.backends.iree import compiler_path; assert pathlib.Path(compiler_path()).exists();"
        " assert 'iree.compiler' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# ---- gate zero


@pytest.mark.parametrize("backend", ["iree-cpu", "xla-cpu"])
def test_gate_zero(backend: str) -> None:
    found = gate_zero(Context(threads=2), backend).check
    assert (found.id, found.status) == (f"{backend}.gate-zero", "passed")


def test_gate_zero_tries_the_toolchain_without_the_fault_of_a_run() -> None:
    """A device that rounds in products would be noticed before any model's graph is looked at."""
    device = Device("simulated")
    context = Context(
        backends=chosen([device.backend], device), device=device, threads=2, fault=MUTANTS["device-products-bfloat16"]
    )
    assert gate_zero(context, device.backend).check.status == "passed"


@pytest.mark.parametrize(("script", "words"), [(FAILS, "the stub is out of order"), ("printf nonsense", "load failed")])
def test_where_no_backend_passes_gate_zero_the_run_stops(
    script: str, words: str, stub: Path, empty_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stub(stub, script)
    out = tmp_path / "out"
    with alone():
        assert cli.invoke(["run", "tiny-llama", "--backend", "iree-cpu", "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert "harness-error" in shown.out
    assert words in shown.out.replace("\n", " ")
    record = load(out / "report.json")
    assert (record["passed"], record["verdict"]["class"]) == (False, "harness-error")
    assert words in record["verdict"]["evidence"][0]
    assert [(c["id"], c["status"]) for c in record["checks"]] == [("iree-cpu.gate-zero", "error")]
    assert words in record["checks"][0]["detail"]
    assert (record["configurations"], record["tokens"]) == ([], {})
    assert {p.name for p in out.iterdir()} == {"report.json", "report.html", "summary.md", "junit.xml"}


def test_gate_zero_with_a_wrong_sum_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = [11.0, 22.0, 33.0, 44.0], [[17.0, 8.0, -1.0, -10.0, -19.0], [-28.0, -10.0, 8.0, 26.0, 44.0]]
    for sums, products, rounded, status in (
        (*right, 0, "passed"),
        ([11.0, 22.0, 33.0, 45.0], right[1], 0, "failed"),
        ([], right[1], 0, "failed"),
        (right[0], [right[1][0]], 0, "failed"),
        (right[0], [[float("nan")] * 5] * 2, 0, "failed"),
        (*right, 1, "failed"),
    ):
        answer = type("Child", (), {"value": ((sums, products, rounded), "")})
        monkeypatch.setattr(Context, "child", lambda *a, answer=answer, **k: answer)
        assert gate_zero(Context(threads=2), "iree-cpu").check.status == status


def test_gate_zero_notices_what_rounds_float32() -> None:
    """As TF32 does, which tensor cores take for float32 where they are let: most of the wide product is not exact then."""
    from hloracle.conformance.runs.gate_zero import SIDE, _wide_operands

    x, w = _wide_operands()
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert np.abs(exact).max() < 2**24
    np.testing.assert_array_equal(x @ w.T, exact)
    bits = x.view(np.uint32)
    tf32 = ((bits + 0x1000) & 0xFFFFE000).view(np.float32)
    assert np.mean(tf32 @ w.T != exact) > 0.9
    assert exact.shape == (SIDE, SIDE)
