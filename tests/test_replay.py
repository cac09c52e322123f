"""One graph on one backend: what came of it, as an exit status; and what cannot be used is refused before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import model
from nightly import only

from hloracle.backends import iree
from hloracle.cli import main as cli
from hloracle.conformance.checks.check import Question
from hloracle.conformance.runs.gate_zero import Gate
from hloracle.conformance.verdict.reproducer import Way, write_reproducer
from hloracle.core.child import ChildDied
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.localize.operations import Found
from hloracle.versions import replay as module
from hloracle.versions.case import Case, Given, read_case
from hloracle.versions.replay import EXIT, How, Times, Tried, judged, replay

SUM = """func.func @main(%a: tensor<3xf32>, %b: tensor<3xf32>) -> (tensor<f32>, tensor<3xf32>) {
  %0 = stablehlo.add %a, %b : tensor<3xf32>
  %1 = stablehlo.constant dense<1.0> : tensor<f32>
  return %1, %0 : tensor<f32>, tensor<3xf32>
}
"""
REFUSED = """func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.custom_call @nobody(%a) : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""


@pytest.fixture(autouse=True)
def _cache(cache: Path) -> None:
    """Programs are in the session's cache."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reproducer of SUM that is right."""
    arrays = {"0-a": [1, 2, 3], "1-b": [10, 20, 30], "expected": [11, 22, 33]}
    for name, values in arrays.items():
        np.save(tmp_path / f"{name}.npy", np.array(values, np.float32))
    (tmp_path / "subgraph.mlir").write_text(SUM)
    case = {"function": "main", "inputs": ["0-a.npy", "1-b.npy"], "expected": "expected.npy", "result": 1}
    (tmp_path / "reproducer.json").write_text(json.dumps({**case, "tolerance": 0.0, "flags": []}))
    return tmp_path


def spoil(folder: Path) -> None:
    np.save(folder / "expected.npy", np.array([11, 22, 34], np.float32))


# ---- what comes of it


@pytest.mark.parametrize(
    "flag", ["--iree-llvmcpu-system-linker-path=/tmp/evil", "-o", "@evil.txt", "evil.mlir", "--a=b c"]
)
def test_a_flag_that_names_a_file_is_refused(flag: str, folder: Path) -> None:
    """The compiler would run it, load it, read it or write to it; and the folder may be a stranger's."""
    file = folder / "reproducer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "flags": ["--iree-opt-level=O3", flag]}))
    with pytest.raises(InputError, match=r"reproducer\.json: has a flag that may name a file"):
        read_case(folder, Given())


def test_flags_of_ours_are_taken(folder: Path) -> None:
    flags = [flag for some in iree.FLAG_SETS.values() for flag in some]
    flags += [*iree.CPU_FLAGS, f"{iree.TARGET_CPU}=sapphirerapids", f"{iree.TARGET_CPU}-features=+avx2,+fma"]
    file = folder / "reproducer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "flags": flags}))
    assert list(read_case(folder, Given()).graph.flags) == flags


@pytest.mark.parametrize("word", only(["iree"], ["iree", "xla", "stablehlo"]))
def test_right_and_wrong(word: str, folder: Path) -> None:
    assert replay(read_case(folder, Given()), word, How()) == Tried("right")
    spoil(folder)
    found = replay(read_case(folder, Given()), word, How())
    assert (found.status, found.words) == ("wrong", "1 of 3 elements differ, the first at [2]: 33.0, not 34.0")


def test_a_graph_that_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "g.mlir").write_text(REFUSED)
    found = replay(read_case(tmp_path / "g.mlir", Given()), "iree", How())
    assert found.status == "refused"
    assert "nobody" in found.words


def test_a_backend_that_does_not_start(folder: Path) -> None:
    found = replay(read_case(folder, Given()), "worker:false", How())
    assert found.status == "untried"
    assert "gate zero on worker:false" in found.words


def test_a_backend_that_does_not_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Question("gate-zero", "it is exact").judged(True, "", "")
    monkeypatch.setattr(module, "gate_zero", lambda context, name: Gate(passed))
    found = replay(read_case(folder, Given()), "worker:sleep 1000", How(timeout=0.5))
    assert found.status == "wrong"
    assert found.words.startswith("it did not end")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ToolchainError("compile", "no"), "refused"),
        (ToolchainError("load", "no"), "refused"),
        (ToolchainError("run", "no"), "wrong"),
        (OutOfMemory("iree"), "untried"),
        (ChildDied("it died", "crash"), "wrong"),
        (ChildDied("it died", "memory"), "untried"),
        (ChildDied("it died", "killed"), "untried"),
    ],
)
def test_whichever_way_it_ends(error: Exception, status: str) -> None:
    def attempt() -> Tried:
        raise error

    found = judged(attempt)
    assert found.status == status
    assert str(error) in found.words


def test_in_turns_with_another(folder: Path) -> None:
    """Which of the two is faster is nobody's to say here."""
    case = read_case(folder, Given())
    found = replay(case, "xla", How(against="iree", ratio=1e9))
    assert found.status == "right"
    assert found.times
    assert len(found.times.own) == len(found.times.other) == module.ROUNDS
    assert replay(case, "xla", How(against="iree", ratio=1e-9)).status == "slower"
    assert replay(case, "xla", How(against="worker:false", ratio=1.0)).status == "untried"


def test_random_numbers_where_none_are_given(tmp_path: Path) -> None:
    (tmp_path / "g.mlir").write_text(SUM)
    assert replay(read_case(tmp_path / "g.mlir", Given()), "xla", How(against="iree", ratio=1e9)).times


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    times = Times((1.0, 4.0, 30.0), (1.0, 2.0, 3.0))
    assert (times.ratios, times.ratio) == ([1.0, 2.0, 10.0], 2.0)
    assert str(times) == "4 ms against 2 ms, 2.00 times (1.00 to 10.00)"


def test_no_numbers_are_equal_to_each_other(folder: Path) -> None:
    case = read_case(folder, Given())
    expected = np.array([np.nan, np.inf, 1], np.float32)
    np.save(folder / "expected.npy", expected)
    assert not module.difference(expected, case)
    assert "2 of 3" in module.difference(np.array([0, -np.inf, 1], np.float32), case)
    assert "shape [2]" in module.difference(np.zeros(2, np.float32), case)


# ---- the command


def test_exit_statuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXIT == {"right": 0, "wrong": 1, "refused": 1, "slower": 1, "untried": 125}
    assert cli.invoke(["replay", str(folder), "--backend", "iree"]) == 0
    assert capsys.readouterr().out == "right on iree\n"
    assert cli.invoke(["replay", str(folder), "--backend", "worker:false"]) == 125
    capsys.readouterr()
    spoil(folder)
    assert cli.invoke(["replay", str(folder), "--backend", "iree", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "wrong"
    assert cli.invoke(["replay", str(folder), "--backend", "nobody"]) == 2


def test_a_graph_with_what_it_takes(folder: Path) -> None:
    files = {name: str(folder / f"{name}.npy") for name in ("0-a", "1-b", "expected")}
    command = ["replay", str(folder / "subgraph.mlir"), "--backend", "iree", "--inputs", files["0-a"]]
    command += ["--inputs", files["1-b"], "--expected", files["expected"], "--result", "1"]
    assert cli.invoke(command) == 0
    spoil(folder)
    assert cli.invoke(command) == 1
    assert cli.invoke([*command, "--tolerance", "1.5"]) == 0
    assert cli.invoke([*command, "--ratio", "2"]) == 2
    assert cli.invoke(["replay", str(folder), "--backend", "iree", "--tolerance", "1"]) == 2, "which it says itself"


# ---- what a reproducer says


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_a_reproducer_that_a_run_wrote(wrong: bool, tmp_path: Path) -> None:
    here = model("plain").anatomy("emitter", "decode")
    step = next(s for s in here.steps(here.subgraph("norm")) if s.name == "stablehlo.rsqrt")
    (argument,) = step.graph.abi.arguments
    given = np.full(argument.shape, 4, np.float32)
    expected = np.full(argument.shape, 0.75 if wrong else 0.5, np.float32)
    found = Found(step, step.graph, {argument.name: given}, expected, expected, "it was made so", 1e-4)
    shown = write_reproducer(tmp_path / "r", found, Way("iree"), "norm")
    assert shown.shown == wrong
    case = read_case(tmp_path / "r", Given())
    assert (case.tolerance, case.result, case.graph.abi.function) == (1e-4, 0, "main")
    assert replay(case, "iree", How()).status == ("wrong" if wrong else "right")


Edit = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda c: c.pop("inputs"), "inputs"),
        (lambda c: c.update(inputs="0-a.npy"), "inputs"),
        (lambda c: c.update(inputs=["0-a.npy"]), "takes 2 arguments, and 1 are given"),
        (lambda c: c.update(inputs=["0-a.npy", "../1-b.npy"]), "not in its folder"),
        (lambda c: c.update(expected="/etc/hostname"), "not in its folder"),
        (lambda c: c.update(inputs=["0-a.npy", "2-c.npy"]), "no array that can be read"),
        (lambda c: c.update(result=2), "has 2 results"),
        (lambda c: c.update(result=0), "is [3] f32, and result 0 is a scalar f32"),
        (lambda c: c.update(function="other"), "has no function @other; it has @main"),
        (lambda c: c.update(inputs=[]), "nothing to compare with"),
    ],
)
def test_what_a_reproducer_may_not_say(edit: Edit, words: str, folder: Path) -> None:
    file = folder / "reproducer.json"
    case = json.loads(file.read_text())
    edit(case)
    file.write_text(json.dumps(case))
    with pytest.raises(InputError) as refused:
        read_case(folder, Given())
    assert words in str(refused.value)


def test_what_is_no_reproducer(folder: Path, tmp_path: Path) -> None:
    (folder / "nobody.so").touch()
    with pytest.raises(InputError, match="calls functions of nobody"):
        read_case(folder, Given())
    (folder / "reproducer.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        read_case(folder, Given())
    (folder / "reproducer.json").unlink()
    with pytest.raises(InputError, match="no such file"):
        read_case(folder, Given())
    (tmp_path / "g.mlir").write_text("nonsense")
    with pytest.raises(InputError):
        read_case(tmp_path / "g.mlir", Given())


def test_bfloat16_is_two_bytes_in_a_file(tmp_path: Path) -> None:
    import ml_dtypes

    (tmp_path / "g.mlir").write_text(
        "func.func @f(%a: tensor<3xbf16>) -> tensor<3xbf16> {\n  %0 = stablehlo.add %a, %a : tensor<3xbf16>\n"
        "  return %0 : tensor<3xbf16>\n}\n"
    )
    for name, values in (("x", [1, 2, 3]), ("y", [2, 4, 6])):
        np.save(tmp_path / f"{name}.npy", np.array(values, ml_dtypes.bfloat16))
    case: Case = read_case(tmp_path / "g.mlir", Given((tmp_path / "x.npy",), tmp_path / "y.npy"))
    assert replay(case, "iree", How()).status == "right"


@pytest.mark.nightly
def test_another_version_from_the_registry(folder: Path) -> None:
    case = read_case(folder, Given())
    assert replay(case, "iree==3.12.0", How()).status == "right"
    assert replay(case, "iree==3.12.999", How()).status == "untried"
