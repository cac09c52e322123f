"""Products left to a custom_call: off by default, refused unless allowed by name, and tested with the library that has it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
from nightly import nightly

from hloracle.backends.custom_calls import Target, open_targets
from hloracle.cli import main as cli
from hloracle.conformance.checks.check import Question
from hloracle.conformance.checks.of_graphs import graph_checks
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs.facts import GraphFacts, inspect
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.run import _all_called
from hloracle.conformance.runs.configurations import run_configuration
from hloracle.conformance.runs.gate_zero import Gate
from hloracle.conformance.settings import Settings
from hloracle.core.cache import Entry, file_digest
from hloracle.core.child import ChildDied, alone, run_in_child
from hloracle.core.errors import InputError, ToolchainError
from hloracle.emitters.model import Emitter, emit
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.anchors import products
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.registry import from_hf
from hloracle.reports.record import load

CONFIG = from_hf(TINY["llama"])
DOCS = (Path(__file__).parent.parent / "docs" / "custom-call.md").read_text()
Library = Callable[..., Path]


def documented(language: str) -> str:
    """The first block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def compiler() -> str:
    """Without one, what is brought in a library cannot be tested."""
    return shutil.which("c++") or pytest.skip("there is no C++ compiler (c++)")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Compiles the documented source, with one place of it changed, by the documented command."""
    made: dict[tuple[str, ...], Path] = {}

    def build(*change: str) -> Path:
        if compiler() and change not in made:
            folder = tmp_path_factory.mktemp("gemm")
            source = documented("cpp")
            if change:
                assert source.count(change[0]) == 1
                source = source.replace(*change)
            # More handlers of the same: one that most graphs do not call, and one that no other library registers.
            handler = source[source.index("XLA_FFI_DEFINE") :]
            source += handler.replace("my_gemm", "other_gemm") + handler.replace("my_gemm", "short_gemm")
            (folder / "gemm.cc").write_text(source)
            command = documented("sh").replace("$(python ", f"$({sys.executable} ")
            subprocess.run(["/bin/sh", "-ec", command], cwd=folder, check=True, capture_output=True)
            made[change] = folder / "libgemm.so"
        return made[change]

    return build


SHORT_OF_A_COLUMN = ("k < K;", "k < K - 1;")
RETURNS_AN_ERROR = ("ffi::Error::Success()", 'ffi::Error(ffi::ErrorCode::kUnimplemented, "not this shape")')
CRASHES = ("return ffi::Error::Success();", "__builtin_trap();")


def target_of(path: Path, name: str = "my_gemm") -> Target:
    return Target(name, path, file_digest(path))


# ---- what is emitted


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("name", TINY)
def test_products_with_weights_are_calls(name: str, phase: str) -> None:
    """All but the products of attention and of experts; nothing else of the graph is another."""
    config = from_hf(TINY[name])
    plain, called = (Emitter(gemm).emit(config, phase, "logits", 64, 32) for gemm in (None, "my_gemm"))
    facts, others = inspect(called, ["my_gemm"]), inspect(plain)
    assert (facts.error, facts.custom_calls, called.abi) == ("", (), plain.abi)
    assert "custom_call" not in others.ops
    count = facts.allowed_calls["my_gemm"]
    assert count + sum(facts.matmuls.values()) == sum(products(config).values())
    left = {anchor.rpartition(".")[2] for anchor in facts.matmuls}
    assert left <= {"scores", "context", "experts", "k_cache", "v_cache", "latent"}, left
    differ = {k: n - others.ops.get(k, 0) for k, n in facts.ops.items() if n != others.ops.get(k, 0)}
    assert differ == {"custom_call": count, "dot_general": -count}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gemm", "a.b", "--layout", "rows"], "--gemm 'a.b': is no identifier; name the function as it is in C"),
        (["--gemm", "", "--layout", "rows"], "--gemm '': is no identifier"),
        (["--gemm", "my_gemm"], "--layout: is panels, and --gemm goes with rows; add --layout rows"),
        (["--gemm", "my_gemm", "--layout", "rows", "--precision", "bf16"], "--precision: is bf16, and --gemm goes with f32"),
        (["--gemm", "my_gemm", "--layout", "rows", "--source", "reference"], "--source: is reference, and --gemm goes"),
    ],
)  # fmt: skip
def test_what_is_not_emitted(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.mlir"
    assert cli.invoke(["emit", "tiny-llama", "--phase", "decode", "-o", str(path), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hloracle: {says}")
    assert error.count("\n") == 1
    assert not path.exists()


# ---- what is allowed


def checked(*allowed: str) -> Any:
    graph = Emitter("my_gemm").emit(CONFIG, "decode", "logits", 64)
    line = (
        '    %m = stablehlo.custom_call @magic(%lm_head.call) : (tensor<1x257xf32>) -> tensor<1x257xf32> loc("norm")\n'
    )
    graph = dataclasses.replace(graph, text=graph.text.replace("    func.return", f"{line}    func.return"))
    (check,) = (
        c for c in graph_checks("file", [(graph, inspect(graph, allowed))], CONFIG) if c.id == "file.custom-call"
    )
    return check


def test_nothing_is_allowed_by_default() -> None:
    check = checked()
    assert (check.status, check.title, check.figure) == ("failed", "no custom_call", "23")
    assert check.anchor == "layers.0.self_attn.q_proj"


def test_a_name_allows_itself_alone() -> None:
    check = checked("my_gemm")
    title = "no custom_call but those to my_gemm, which are allowed by name"
    assert (check.status, check.title, check.figure) == ("failed", title, "1, and 22 to my_gemm")
    assert (check.detail, check.anchor) == ("llama_decode_logits: magic", "norm")
    assert checked("other_gemm").figure == "23, and 0 to other_gemm"
    both = checked("my_gemm", "magic")
    assert (both.status, both.figure) == ("passed", "0, and 22 to my_gemm, and 1 to magic")


def test_a_name_that_is_allowed_for_nothing(checkpoint: Checkpoint) -> None:
    """By none of the graphs of a session."""
    graph = emit(CONFIG, "decode", "logits", 64)

    def all_called(*facts: GraphFacts) -> None:
        evidence = Evidence(graphs={"file": [(graph, some) for some in facts]})
        _all_called(Run(Settings("m"), Context(), (), checkpoint, evidence))

    with pytest.raises(InputError, match="--allow-custom-call my_gemm: is not called by the graph"):
        all_called(GraphFacts(allowed_calls={"magic": 1, "my_gemm": 0}))
    with pytest.raises(InputError, match="--allow-custom-call my_gemm: is not called by the graph"):
        all_called(*[GraphFacts(allowed_calls={"magic": n, "my_gemm": 0}) for n in (0, 1)])
    all_called(*[GraphFacts(allowed_calls={"magic": n, "my_gemm": 1 - n}) for n in (0, 1)])
    all_called(GraphFacts(custom_calls=("magic",), allowed_calls={"my_gemm": 0}))  # the check says it


# ---- libraries


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("my_gemm", "--allow-custom-call 'my_gemm': is not TARGET=LIBRARY; "),
        ("=libgemm.so", "--allow-custom-call '=libgemm.so': is not TARGET=LIBRARY; "),
        ("my_gemm=", "--allow-custom-call 'my_gemm=': is not TARGET=LIBRARY; "),
        ("a.b=libgemm.so", "--allow-custom-call 'a.b=libgemm.so': is not TARGET=LIBRARY; "),
        ("my_gemm={folder}/none.so", "{folder}/none.so: cannot be read (no such file or directory); "),
        ("my_gemm={folder}", "{folder}: cannot be read (is a directory); "),
        ("my_gemm={folder}/text.so", "{folder}/text.so: cannot be loaded ({folder}/text.so: file too short); "),
        ("no_such={library}", "{library}: has no symbol no_such; define the target there with XLA_FFI_DEFINE"),
        # It takes no frame of a call: what is asked of it makes no sense to it.
        ("Gemm={folder}/c.so", "{folder}/c.so: Gemm is no handler of XLA's FFI (INVALID_ARGUMENT: "),
        ("crash={folder}/c.so", "{folder}/c.so: cannot be called: registering died (signal "),
        (
            "lapack_sgetrf_ffi={folder}/c.so",
            "--allow-custom-call lapack_sgetrf_ffi: is a target that XLA has already; ",
        ),
    ],
)
def test_a_library_that_cannot_be_called(word: str, says: str, library: Library, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not ELF")
    if "/c.so" in word:
        source = "void *Gemm(void *p) { return 0; } void *crash(void *p) { __builtin_trap(); }"
        (tmp_path / "c.cc").write_text(f'extern "C" {{ {source} }}')
        subprocess.run([compiler(), "-shared", "-fPIC", "c.cc", "-o", "c.so"], cwd=tmp_path, check=True)
    places = {"folder": tmp_path, "library": library() if "{library}" in word else ""}
    with pytest.raises(InputError) as error:
        open_targets([word.format(**places)])
    assert str(error.value).startswith(says.format(**places))


def test_a_target_of_two_libraries(library: Library) -> None:
    with pytest.raises(InputError, match="--allow-custom-call my_gemm: stands twice"):
        open_targets([f"my_gemm={library()}", f"my_gemm={library()}"])


def test_a_library_that_changes_meanwhile(library: Library, tmp_path: Path) -> None:
    target = target_of(Path(shutil.copy(library(), tmp_path)))
    with target.library.open("ab") as f:
        f.write(b"more")
    with pytest.raises(InputError, match="has changed meanwhile"):
        run_in_child(children.product, target, timeout=120)


@pytest.mark.nightly
def test_executables_are_kept_by_the_librarys_content(library: Library, empty_cache: Path) -> None:
    """One that was kept by another process is loaded, which takes the target as much as compiling does."""
    right, wrong = target_of(library()), target_of(library(*SHORT_OF_A_COLUMN))

    def product(target: Target) -> list[list[float]]:
        value: list[list[float]] = run_in_child(children.product, target, timeout=120).value
        return value

    def kept() -> dict[str, int]:
        seals = {p: json.loads(p.read_text()) for p in empty_cache.glob("compiled/*/*.json")}
        return {seal["custom_call my_gemm"]: path.stat().st_mtime_ns for path, seal in seals.items()}

    x, w = np.arange(6).reshape(2, 3), np.arange(15).reshape(5, 3)
    assert product(right) == (x @ w.T).tolist()
    first = kept()
    assert set(first) == {right.sha256}
    assert product(right) == (x @ w.T).tolist()
    assert kept() == first
    assert product(wrong) == (x[:, :2] @ w[:, :2].T).tolist()
    assert set(kept()) == {right.sha256, wrong.sha256}


def test_an_error_that_it_returns_is_the_runs(library: Library) -> None:
    with pytest.raises(ToolchainError, match="run failed: UNIMPLEMENTED: not this shape"):
        run_in_child(children.product, target_of(library(*RETURNS_AN_ERROR)), timeout=120)


def test_a_crash_of_it_is_a_process_that_died(library: Library) -> None:
    with pytest.raises(ChildDied, match="died"):
        run_in_child(children.product, target_of(library(*CRASHES)), timeout=120)


def test_outcomes_are_kept_by_the_librarys_content(monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> None:
    entries = []

    def refuses(*a: Any, **more: Any) -> Any:
        raise ToolchainError("compile", "not now")

    monkeypatch.setattr(Context, "child", refuses)
    monkeypatch.setattr(
        Entry, "load", lambda entry: entries.append(entry.path) if entry.folder == "configurations" else None
    )
    for targets in ((), (Target("my_gemm", Path("a.so"), "1"),), (Target("my_gemm", Path("b.so"), "2"),)):
        run_configuration(Context(targets=targets), Configuration("file", "xla-cpu"), [], checkpoint, Asked())
    assert len(set(entries)) == 3


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve("tiny-llama"))


# ---- the whole of it


def judged(folder: Path, *more: str, calls: str = "my_gemm") -> tuple[int, dict[str, Any]]:
    """Exit status and record of `hloracle check` of a decode graph that calls a library.

    XLA, which registers each name for as long as a process lives, is in this one: no test judges what another one registers.
    """
    path = folder / "decode.mlir"
    emitted = ["emit", "tiny-llama", "--phase", "decode", "--capacity", "32", "--layout", "rows", "--gemm", calls]
    assert cli.invoke([*emitted, "-o", str(path)]) == 0
    abi, out = folder / "decode.abi.json", folder / "out"
    command = ["check", str(path), "--abi", str(abi), "--model", "tiny-llama", "--tokens", "2", "--out", str(out)]
    with alone() if "xla-cpu" in more else nullcontext():
        return cli.invoke([*command, *more]), load(out / "report.json")


def check_of(record: dict[str, Any], id: str) -> dict[str, Any]:
    (found,) = (c for c in record["checks"] if c["id"] == id)
    return dict(found)


@pytest.fixture(autouse=True)
def no_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have been passed before."""

    def passed(context: Context, backend: str) -> Gate:
        return Gate(Question("gate-zero", "gate zero", backend=backend).judged(True, 1, 1))

    monkeypatch.setattr("hloracle.conformance.run.gate_zero", passed)


def test_a_right_gemm(library: Library, tmp_path: Path) -> None:
    status, record = judged(tmp_path, "--backend", "xla-cpu", "--allow-custom-call", f"my_gemm={library()}")
    assert (status, record["verdict"]["class"]) == (0, "conforms")
    assert [c["id"] for c in record["configurations"]] == ["file/xla-cpu", "oracle/xla-cpu"]
    assert {c["status"] for c in record["checks"]} == {"passed", "skipped"}
    assert check_of(record, "file.custom-call")["figure"] == "0, and 22 to my_gemm"
    assert record["settings"]["backends"] == ["xla-cpu"]
    called = {"target": "my_gemm", "library": "libgemm.so", "sha256": file_digest(library())}
    assert record["settings"]["custom_calls"] == [called]
    (row,) = (g for g in record["graphs"] if g["source"] == "file")
    assert (row["flops"], row["bytes"]) == (None, None)
    (listing,) = (g for g in record["listings"] if g["graph"] == row["id"])
    scopes = {scope["anchor"]: scope["flops"] for scope in listing["scopes"]}
    assert scopes["lm_head"] is None
    assert scopes["norm"]


def test_a_gemm_that_leaves_out_a_column(library: Library, tmp_path: Path) -> None:
    wrong = library(*SHORT_OF_A_COLUMN)
    allowed = ["--allow-custom-call", f"short_gemm={wrong}"]
    status, record = judged(tmp_path, "--backend", "xla-cpu", *allowed, calls="short_gemm")
    verdict = record["verdict"]
    assert (status, verdict["class"], verdict["anchor"]) == (1, "emitter-fault", "layers.0.self_attn.q_proj")
    assert verdict["explanation"].startswith("A custom_call gives wrong values")
    assert "stablehlo.custom_call" in verdict["operation"]
    assert check_of(record, "file.custom-call")["status"] == "passed"
    assert check_of(record, "file/xla-cpu.decode-logits")["status"] == "failed"
    reproducer = record["localization"]["reproducer"]
    assert reproducer["shown"]
    assert "short_gemm.so" in reproducer["files"]
    assert sorted(p.name for p in (tmp_path / "out" / "reproducer").iterdir()) == sorted(reproducer["files"])


@pytest.mark.parametrize("other", [pytest.param(False, id="nothing"), nightly(True, id="another")])
def test_what_is_not_allowed(other: bool, library: Library, tmp_path: Path) -> None:
    more = ["--allow-custom-call", f"other_gemm={library()}"] if other else []
    status, record = judged(tmp_path, "--backend", "xla-cpu", *more, calls="no_gemm")
    assert (status, record["verdict"]["class"]) == (1, "emitter-fault")
    check = check_of(record, "file.custom-call")
    assert (check["status"], check["detail"]) == ("failed", "decode: no_gemm, no_gemm, no_gemm, no_gemm")
    assert "NOT_FOUND" in check_of(record, "file/xla-cpu.tokens")["detail"]
    bad = {c["id"]: c["status"] for c in record["checks"] if c["status"] in ("failed", "error")}
    assert bad == {"file.custom-call": "failed", "file/xla-cpu.tokens": "error", "file.probes": "error"}


@pytest.mark.nightly
def test_iree_has_no_such_target(library: Library, tmp_path: Path) -> None:
    status, record = judged(tmp_path, "--allow-custom-call", f"my_gemm={library()}")
    assert (status, record["verdict"]["class"]) == (1, "compiler-fault")
    assert record["settings"]["backends"] == ["iree-cpu", "xla-cpu"]
    assert {c["id"]: c["status"] for c in record["configurations"]} == {
        "file/iree-cpu": "failed",
        "oracle/iree-cpu": "ran",
        "file/xla-cpu": "ran",
        "oracle/xla-cpu": "ran",
    }
    assert "stablehlo.custom_call" in check_of(record, "file/iree-cpu.tokens")["detail"]
    assert "stablehlo.custom_call" in record["verdict"]["operation"]
