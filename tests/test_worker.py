"""Backends that are processes of their own: what they compute, and that nothing that they do ends more than themselves."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from nightly import nightly

import hloracle
from hloracle.backends import iree, named
from hloracle.backends.choice import Choice
from hloracle.backends.guarded import MEMORY_VARIABLE
from hloracle.backends.session import Session
from hloracle.backends.words import worker
from hloracle.backends.worker import PROTOCOL, SMALL, Program, Worker
from hloracle.backends.workers import serving
from hloracle.conformance.context import Context
from hloracle.conformance.runs.gate_zero import gate_zero, sum_graph
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.dtypes import _NUMPY
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.emitters.builder import Builder, TensorType

EXAMPLE = (sys.executable, str(Path(__file__).parents[1] / "examples" / "worker" / "worker.py"))
MISBEHAVING = (sys.executable, str(Path(__file__).parent / "misbehaving_worker.py"))
XLA = (sys.executable, str(Path(named.__file__).parent / "workers" / "xla_worker.py"))
A, B = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)
LARGE = 2000  # elements of an array that does not travel in a line


def misbehaving(fault: str, where: str, number: int = 1, behaves: tuple[str, ...] = EXAMPLE) -> tuple[str, ...]:
    return (*MISBEHAVING, fault, where, str(number), *behaves)


def opened(*command: str) -> Worker:
    return Worker("acme", Program(command))


def added(backend: Worker) -> np.ndarray:
    """[11, 22, 33, 44], by way of every request: both arrays are given to the worker, and the sum is read from it."""
    call = backend.load(sum_graph())
    (found,) = call([backend.keep(A), backend.keep(B)])
    return backend.download(found)


# ---- a worker that behaves


@pytest.mark.parametrize("word", ["iree:--iree-opt-data-tiling=false", "xla:--xla_dump_hlo_as_text=false", "stablehlo"])
def test_ours_pass_gate_zero(word: str) -> None:
    assert gate_zero(Context(backends=named.chosen([word])), named.chosen([word])[0].name).check.status == "passed"


def test_the_example_passes_gate_zero() -> None:
    example = worker("example", EXAMPLE)
    assert gate_zero(Context(backends=(example,)), "example").check.status == "passed"


@pytest.mark.parametrize("target", ["xla_ffi_python_cpu_callback", "xla_ffi_python_cpu\\5Fcallback"])
@pytest.mark.parametrize(
    "open_xla", [lambda: named.make_backend("xla-cpu", 1), lambda: opened(*XLA)], ids=["here", "worker"]
)
def test_xla_calls_no_python_for_a_graph(open_xla: Callable[[], Any], target: str) -> None:
    """It would take a number that stands in the graph for one of a function that nobody has given: a crash, or worse."""
    call = 'api_version = 4 : i32, call_target_name = "' + target + '", backend_config = {index = 5 : ui64}'
    text = f"""module {{ func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = "stablehlo.custom_call"(%a) {{{call}}} : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> }} }}"""
    port = Tensor("tap", "a", (4,), "f32")
    with pytest.raises(ToolchainError, match="@xla_ffi_python_cpu_callback calls back into the Python that traced it"):
        open_xla().load(Graph("callback", text, Abi("decode", (port,), (port,))))


def test_the_example_runs_a_model() -> None:
    """Its logits are XLA's, to the last bits."""
    model = hloracle.open_model("tiny-llama")
    graph = hloracle.emit(model, "decode", capacity=32)
    by_example = Session(opened(*EXAMPLE), [graph], model.load)
    by_xla = Session(named.make_backend("xla-cpu", 1), [graph], model.load)
    for token in (3, 200):
        np.testing.assert_allclose(by_example.decode_step(token), by_xla.decode_step(token), atol=1e-4)
    for found, wanted in zip(by_example.caches(), by_xla.caches(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_example_needs_nothing_of_ours() -> None:
    """And is as short as docs/workers.md says."""
    text = Path(EXAMPLE[1]).read_text()
    assert "hloracle" not in text
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("program", ["serving", "shared", "iree_worker", "xla_worker", "interpreter_worker"])
def test_workers_need_numpy_and_their_runtime_alone(program: str) -> None:
    """They are read by a Python that has none of our packages."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(XLA[1]).parent)!r}); import {program}; print(*sorted(sys.modules))"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ""})
    loaded = {name.partition(".")[0] for name in found.stdout.split()}
    assert not loaded & {"hloracle", "jax", "iree", "torch", "ml_dtypes", "psutil", "click"}


def test_iree_worker_without_room_accuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version, too, the linker blames an object file that it could not write whole."""
    monkeypatch.syspath_prepend(str(Path(XLA[1]).parent))
    worker, shared = importlib.import_module("iree_worker"), importlib.import_module("shared")
    monkeypatch.setattr(shared, "ROOM", 1 << 62)
    (tmp_path / "graph.mlir").write_text("no graph")
    with pytest.raises(worker.Failed, match=r"memory.*all but full"):
        worker.Iree.compile(None, tmp_path / "graph.mlir", "main", [])


def _identity(types: dict[str, str]) -> Graph:
    """Gives its arguments back: name -> dtype, of LARGE elements, and one scalar."""
    b = Builder()
    shapes = {name: () if name == "scalar" else (LARGE,) for name in types}
    arguments = [b.argument(TensorType(shapes[name], dtype)) for name, dtype in types.items()]
    tensors = [[Tensor(role, n, shapes[n], d) for n, d in types.items()] for role in ("weight", "tap")]
    return b.graph("identity", Abi("identity", tuple(tensors[0]), tuple(tensors[1])), arguments)


@pytest.mark.parametrize(
    "word", ["xla:--xla_dump_hlo_as_text=false", nightly("iree:--iree-opt-data-tiling=false"), "stablehlo"]
)
def test_arrays_of_every_type_come_back_as_they_went(word: str) -> None:
    import ml_dtypes

    numpy: dict[str, Any] = {
        "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "i8": np.int8, "ui8": np.uint8,
        "i1": np.bool_, "scalar": np.float32,
    }  # fmt: skip
    backend = named.make_backend(word, 1)
    values = [np.arange(LARGE).astype(type) if name != "scalar" else np.array(7, type) for name, type in numpy.items()]
    call = backend.load(_identity({name: "f32" if name == "scalar" else name for name in numpy}))
    for put in (backend.keep, backend.upload):
        for value, found in zip(values, call([put(v) for v in values]), strict=True):
            back = backend.download(found)
            assert (back.dtype, back.shape) == (value.dtype, value.shape)
            assert back.tobytes() == value.tobytes()


def test_arrays_that_nobody_has_are_freed() -> None:
    backend = opened(*EXAMPLE)
    call, kept = backend.load(sum_graph()), backend.keep(A)
    for _ in range(3):
        (found,) = call([kept, kept])
        name = found.name
        del found
    assert backend._conversation.free == [name], "the earlier ones are gone with the calls that followed them"
    (again,) = call([kept, kept])
    assert backend.download(again).tolist() == [2, 4, 6, 8]


def test_threads_ask_in_turns() -> None:
    backend = opened(*EXAMPLE)
    call, found = backend.load(sum_graph()), []

    def work(number: int) -> None:
        for _ in range(20):
            (result,) = call([backend.keep(A * number), backend.upload(B)])
            found.append((backend.download(result) == A * number + B).all())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(found)


def test_a_worker_outlives_the_thread_that_opened_it() -> None:
    """Linux ends ours with the thread that started them, and that is never a caller's."""
    found: list[Worker] = []
    thread = threading.Thread(target=lambda: found.append(opened(*XLA)))
    thread.start()
    thread.join()
    assert added(found[0]).tolist() == [11, 22, 33, 44]


OPEN = """
import sys
import numpy as np
from hloracle.backends.worker import PROTOCOL, SMALL, Program, Worker
from hloracle.backends.workers import serving
if __name__ == "__main__":
    worker = Worker("acme", Program(tuple(sys.argv[1:])))
    kept = worker.keep(np.zeros(2000, np.float32))
    print(worker._conversation._guarded.process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("command", [EXAMPLE, XLA])
@pytest.mark.parametrize("how", ["kill", "end"])
def test_a_worker_ends_with_the_process_that_opened_it(how: str, command: tuple[str, ...], tmp_path: Path) -> None:
    """And leaves no file."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, "TMPDIR": str(tmp_path)}}
    script = subprocess.Popen([sys.executable, "-c", OPEN, *command], text=True, **pipes)
    with script:
        assert script.stdout
        child = psutil.Process(int(script.stdout.readline()))
        if how == "kill":
            script.kill()
    assert child.wait(30) is None or not child.is_running()
    assert [*tmp_path.iterdir()] == []


def test_what_is_compiled_is_kept(empty_cache: Path) -> None:
    """With each set of flags by itself; a graph's own flags come before those that were asked for."""
    graph = hloracle.Graph(
        "sum", sum_graph().text, sum_graph().abi, ("--iree-opt-level=O1", "--iree-opt-const-eval=false")
    )
    for _ in range(2):
        for flags in ("--iree-opt-level=O0", "--iree-opt-level=O3"):
            named.make_backend(f"iree:{flags}", 1).load(graph)
    seals = [json.loads(path.read_text()) for path in (empty_cache / "compiled").rglob("*.json")]
    flags = sorted(json.loads(seal["how"])["flags"][-2:] for seal in seals)
    assert flags == [["--iree-opt-const-eval=false", f"--iree-opt-level={level}"] for level in ("O0", "O3")]


def test_what_a_program_of_ones_own_compiles_is_not_kept(empty_cache: Path) -> None:
    """It may have been built anew since, under the same name and version."""
    command = [sys.executable, str(Path(XLA[1]).with_name("iree_worker.py")), "local-task:0", "{threads}"]
    backend = worker("mine", command, flags=iree.CPU_FLAGS).open(1)
    assert isinstance(backend, Worker)
    assert added(backend).tolist() == [11, 22, 33, 44]
    assert not (empty_cache / "compiled").exists()


def test_the_page_has_every_request() -> None:
    """Each with a line of it and the answer's, or an error's."""
    page = (Path(__file__).parents[1] / "docs" / "workers.md").read_text()
    lines = [json.loads(line) for line in re.findall(r"^\{.*\}$", page, re.MULTILINE)]
    asked = {line["id"]: line["do"] for line in lines if "do" in line}
    assert sorted(asked.values()) == sorted(
        name for name in vars(serving._Worker) if not name.startswith("_") and name != "answer"
    )
    assert {line["id"] for line in lines if "do" not in line} == set(asked)
    assert serving.PROTOCOL == PROTOCOL
    assert (serving.SMALL, serving.NUMPY) == (SMALL, _NUMPY)


# ---- one that does not

SAYS = "acme does not answer as a worker does, but with "
MISTREATMENTS = [
    # What it does, at which request, the stage of the error, and its words.
    ("crash", "start", "load", "acme ended without an answer (signal SIGSEGV)"),
    *(
        ("crash", where, stage, "acme ended without an answer (signal SIGSEGV)")
        for where, stage in (("describe", "load"), ("load", "load"), ("upload", "load"), ("call", "run"), ("download", "run"))
    ),
    ("leave", "start", "load", "acme ended without an answer (exit status 3): acme: no licence"),
    ("leave", "load", "load", "acme ended without an answer (exit status 3): acme: no licence"),
    ("rubbish", "start", "load", SAYS + "Hello, world"),
    ("rubbish", "call", "run", SAYS + "Hello, world"),
    ("empty", "call", "run", SAYS + "an empty line"),
    ("bytes", "call", "run", SAYS + "��"),
    ("nested", "call", "run", SAYS + "[[["),
    ("deep", "call", "run", SAYS + "[[["),
    ("a list", "describe", "load", SAYS + "[1, 2]"),
    ("no end", "call", "run", SAYS + "a line of more than 1048576 bytes: xxx"),
    ("in part", "call", "run", "acme ended without an answer (exit status 0)"),
    ("wrong id", "load", "load", SAYS + '{"id": 3'),
    ("nothing", "load", "load", SAYS + '{"id": 2}'),
    ("nothing", "call", "run", SAYS + '{"id": '),
    ("no name", "upload", "load", SAYS),
    ("version", "describe", "load", "acme speaks version 2 of the protocol, and hloracle version 1"),
    ("no version", "describe", "load", SAYS),
    ("error", "call", "run", "no such kernel"),
    ("no error", "call", "run", SAYS),
    ("too few", "call", "run", "acme gave 0 results, and the graph has 1"),
    ("no results", "call", "run", SAYS),
    ("no array", "call", "run", SAYS),
    ("shape", "download", "run", "acme gave sum as [4, 1] f32, and it is [4] f32"),
    ("negative", "download", "run", "acme gave sum as [-1] f32, and it is [4] f32"),
    ("dtype", "download", "run", "acme gave sum as [4] i32, and it is [4] f32"),
    ("bytes missing", "download", "run", SAYS),
    ("no dtype", "download", "run", SAYS),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "where", "stage", "words"), MISTREATMENTS)
def test_what_a_worker_does_wrong_is_an_error_in_one_line(fault: str, where: str, stage: str, words: str) -> None:
    with pytest.raises(ToolchainError) as raised:
        added(opened(*misbehaving(fault, where)))
    assert raised.value.stage == stage
    assert raised.value.message.startswith(words)
    assert len(raised.value.message) < 600
    assert "\n" not in raised.value.message


def test_one_that_crashes_as_it_compiles() -> None:
    iree_worker = (sys.executable, str(Path(XLA[1]).with_name("iree_worker.py")), "local-task:0", "1")
    with pytest.raises(ToolchainError, match=r"acme ended without an answer \(signal SIGSEGV\)") as raised:
        added(opened(*misbehaving("crash", "compile", behaves=iree_worker)))
    assert raised.value.stage == "compile"
    kept = Path(raised.value.artifact)
    assert kept.read_text() == sum_graph().text
    kept.unlink()


def test_one_that_stops_answering_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloracle.backends.conversation.CLOSING_SECONDS", 0.1)
    backend = opened(*misbehaving("stop answering", "call"))
    with pytest.raises(ToolchainError, match="acme stopped answering"):
        added(backend)
    with pytest.raises(ToolchainError, match="acme stopped answering"):
        backend.upload(np.zeros(LARGE))
    assert backend._conversation._guarded.process.returncode == -signal.SIGKILL


def test_after_an_error_of_its_own_it_is_asked_on() -> None:
    backend = opened(*misbehaving("error", "call"))
    with pytest.raises(ToolchainError, match="no such kernel"):
        added(backend)
    assert added(backend).tolist() == [11, 22, 33, 44]


def test_memory_that_it_says_it_has_not() -> None:
    with pytest.raises(OutOfMemory, match="acme is out of memory"):
        added(opened(*misbehaving("memory", "call")))


@pytest.mark.parametrize("fault", ["eat", "child eats"])
def test_memory_is_bounded(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of what it has started counts too."""
    monkeypatch.setenv(MEMORY_VARIABLE, "1e9")
    backend = opened(*misbehaving(fault, "call"))
    with pytest.raises(OutOfMemory, match="acme is out of memory"):
        added(backend)


def test_the_most_that_it_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows until it is ended: what it had then is more than it may have."""
    monkeypatch.setenv(MEMORY_VARIABLE, "1e9")
    backend = opened(*misbehaving("eat", "call"))
    with pytest.raises(OutOfMemory):
        added(backend)
    assert backend.peak_bytes > 1e9


def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "much")
    with pytest.raises(InputError, match="HLORACLE_WORKER_MEMORY=much: is no number of bytes"):
        named.chosen(["worker:true"])


def test_a_program_that_is_none(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    with pytest.raises(ToolchainError, match=r"acme: .*text cannot be run \(Permission denied\)"):
        opened(str(text))
    text.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"acme: .*text cannot be run \(Exec format error\)"):
        opened(str(text))
    with pytest.raises(ToolchainError, match=r"acme: /nowhere/acme cannot be run \(No such file or directory\)"):
        opened("/nowhere/acme")


def test_one_that_hangs_at_gate_zero_has_the_time_of_a_configuration() -> None:
    hangs = worker("acme", misbehaving("hang", "call"))
    check = gate_zero(Context(backends=(hangs,), timeout=2), "acme").check
    assert (check.status, check.detail) == ("error", "it did not end within 2 s")


# ---- in a run: the other configurations are whole


def judged(*backends: str | Choice, timeout: float = 1800) -> hloracle.Record:
    """A run on XLA and these."""
    return hloracle.run(
        "tiny-llama", backends=["xla-cpu", *backends], tokens=3, capacity=64, threads=1, quick=True, timeout=timeout
    )


def whole(record: hloracle.Record) -> bool:
    """Whether all of XLA's configurations ran, and passed each check."""
    ours = [c for c in record.data["configurations"] if c["id"].split("/")[1] == "xla-cpu"]
    checks = [c for c in record.data["checks"] if c["backend"] == "xla-cpu"]
    return (
        len(ours) >= 2 and len(checks) > 5
        and all(c["status"] in ("ran", "reused") for c in ours)
        and all(c["status"] in ("passed", "skipped") for c in checks)
    )  # fmt: skip


CALLS = 6  # more than gate zero makes in a process


@pytest.fixture
def limited() -> Iterator[Callable[[float], None]]:
    with pytest.MonkeyPatch.context() as patch:
        yield lambda limit: patch.setenv(MEMORY_VARIABLE, str(limit))


def test_a_worker_that_crashes_in_a_run() -> None:
    record = judged(worker("acme", misbehaving("crash", "call", CALLS, XLA), family="xla"))
    words = "acme ended without an answer (signal SIGSEGV)"
    failed = [c for c in record.data["configurations"] if c["status"] == "failed"]
    assert {c["id"] for c in failed} == {"emitter/acme", "oracle/acme"}
    assert all(words in c["message"] for c in failed)
    assert record.verdict.class_ == "compiler-fault"
    assert whole(record)


@pytest.mark.nightly
def test_a_worker_that_does_not_start_in_a_run() -> None:
    record = judged(worker("acme", misbehaving("leave", "start")))
    assert record.verdict.class_ == "compiler-fault"
    assert "acme does not run the simplest graphs" in record.verdict.explanation
    assert "(exit status 3): acme: no licence" in record.verdict.explanation
    assert whole(record)


@pytest.mark.nightly
def test_its_memory_counts_in_a_run() -> None:
    record = judged(worker("acme", misbehaving("hold", "call", CALLS, XLA), family="xla"))
    peaks = {c["id"]: c["peak_bytes"] for c in record.data["configurations"]}
    # Linux counts what the process that started one held, too: of both alike.
    assert peaks["emitter/acme"] > peaks["emitter/xla-cpu"] + 2**29
    assert whole(record)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "class_"),
    [("hang", "timeout"), ("eat", "out-of-memory"), ("rubbish", "compiler-fault"), ("too few", "compiler-fault")],
)
def test_what_else_a_worker_does_in_a_run(fault: str, class_: str, limited: Callable[[float], None]) -> None:
    if fault == "eat":
        limited(2e9)
    record = judged(worker("acme", misbehaving(fault, "call", CALLS, XLA)), timeout=60 if fault == "hang" else 1800)
    assert record.verdict.class_ == class_
    assert {c["status"] for c in record.data["configurations"] if c["backend"] == "acme"} == {"failed"}
    assert whole(record)
