"""The visit to a GPU and what is packed for it, as far as both can be tried without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hloracle.backends.devices import Device, Facts
from hloracle.bench.device import Measured, bandwidth, by_kind, emitted, measured, oracle, traced, transformers
from hloracle.cli import pack, visit
from hloracle.core.cache import file_digest
from hloracle.core.child import ChildDied
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.program import run_command_line
from hloracle.mutants import MUTANTS

SIMULATED = Device("simulated")
GPU = Device("cuda", 0, "sm_89", facts=Facts("an H100", (9, 0), 80 << 30, "CUDA 13.0"))
CONFIGURATION = {"id": "emitter/iree-cuda/token", "backend": "iree-cuda", "agreed": 288, "total": 288}
RECORD = {
    "verdict": {"class": "conforms"}, "passed": True, "configurations": [CONFIGURATION, {**CONFIGURATION, "id": "oracle/xla-cpu", "backend": "xla-cpu"}],
    "checks": [{"status": "passed"}] * 3,
}  # fmt: skip
Answers = dict[str, Any]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What each part finds, without any of them; an exception is raised."""
    found: Answers = {
        "record": RECORD, "bandwidth": 3e12, "device": GPU,
        "traced": by_kind([("main_dispatch_24_matmul_like_3x3_f32", 2.0), ("main_dispatch_7_reduction_9_f32", 0.5)] * 3, 3),
        "measured": lambda name: Measured(name, [2.0, 2.5, 1.6], 538_000_000, [4.0, 5.0]),
        "families": [{"architecture": "llama", "passed": True}, {"architecture": "qwen3", "passed": True}],
    }  # fmt: skip

    def child(function: Callable[..., Any], *arguments: Any, timeout: float, **_: Any) -> Any:
        assert timeout > 0
        if function is visit._record and (fault := arguments[1].fault):
            return SimpleNamespace(value={"verdict": {"class": found.get(fault.id, fault.class_)}})
        value = found[{visit.bandwidth: "bandwidth", visit.traced: "traced"}.get(function, "record")]
        if isinstance(value, Exception):
            raise value
        return SimpleNamespace(value=value)

    monkeypatch.setattr(visit, "run_in_child", child)
    monkeypatch.setattr(visit, "open_device", lambda *_: found["device"])
    monkeypatch.setattr(visit, "write_all", lambda record, folder: folder.mkdir(parents=True))
    monkeypatch.setattr(visit, "measured", lambda name, *_, **__: found["measured"](name))
    monkeypatch.setattr(visit, "run_families", lambda *_: ({}, found["families"]))
    return found


def visited(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    status = run_command_line(visit.command, ["--out", str(out), *arguments])
    return status, json.loads((out / "visit.json").read_text())


def test_everything_is_done(answers: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = visited(tmp_path)
    rows = {what: (result, right) for what, result, right in found["rows"]}
    assert status == 0
    assert rows["device"] == ("an H100, compute capability 9.0, compiled for sm_89, CUDA 13.0", None)
    assert rows["f32: conforms"] == ("emitter/iree-cuda/token 288/288; 3 of 3 checks", True)
    assert {"int4: conforms", "families", "mutants, a sample", "synthetic-llama-3b int4"} <= set(rows)
    # 538 MB in 2 ms are 0.09 of 3 TB/s.
    assert rows["emitter f32"][0] == "500 tokens/s (400 to 625), 0.09 of the bandwidth, a prompt of 128 in 4.0 ms"
    assert {"emitter f32, CUDA graphs", "emitter f32, panels", "emitter f32, fused"} <= set(rows)
    assert rows["from here on"] == ("a stream", None)
    assert rows["a step"][0] == (
        "the GPU computes for 2.50 ms, in 2 kernels and copies; longest: 1 matmul_like_3x3_f32 2.00 ms, 1 reduction_9_f32 0.50 ms"
    )
    assert found["traced"]["kernels"] == pytest.approx(2)
    lines = capsys.readouterr().out
    assert lines.index("s on cuda:0") > lines.index("ok mutants, a sample: 7 of 7 caught in their class")


def test_graphs_are_taken_where_they_are_faster(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """From then on."""
    devices: list[bool] = []

    def timed(name: str, function: Callable[..., Any], *arguments: Any, **_: Any) -> Measured:
        devices.extend(a.graphs for a in arguments if isinstance(a, Device))
        return Measured(name, [1.5 if name.endswith("graphs") else 2.0] * 5, 538_000_000)

    monkeypatch.setattr(visit, "measured", timed)
    _, found = visited(tmp_path)
    rows = {what: result for what, result, _ in found["rows"]}
    assert rows["from here on"] == "CUDA graphs"
    assert devices[:3] == [False, True, True]
    assert all(devices[1:])


@pytest.mark.parametrize(
    ("wrong", "row"),
    [
        ({"record": {**RECORD, "passed": False, "verdict": {"class": "device-fault"}}}, "f32: device-fault"),
        ({"record": ChildDied("run took more than 240 s and was stopped")}, "conformance f32"),
        ({"bandwidth": ChildDied("bandwidth failed: no CUDA")}, "bandwidth"),
        ({"traced": ChildDied("traced failed: no CUPTI")}, "a step"),
        ({"measured": lambda name: Measured(name, [], 0, failure="out of memory")}, "emitter f32"),
        ({"families": [{"architecture": "llama", "passed": False}]}, "families"),
        ({"norm-sum": "conforms"}, "mutants, a sample"),
    ],
)
def test_what_goes_wrong_is_a_row_and_the_rest_goes_on(
    wrong: dict[str, Any], row: str, answers: Answers, tmp_path: Path
) -> None:
    answers |= wrong
    status, found = visited(tmp_path)
    rows = {what: right for what, _, right in found["rows"]}
    assert status == 1
    assert rows[row] is False
    assert "mutants, a sample" in rows


def test_what_there_is_no_time_for_is_said_to_be_missing(answers: Answers, tmp_path: Path) -> None:
    begun = time.monotonic()
    status, found = visited(tmp_path, "--minutes", "0.5")
    assert time.monotonic() - begun < 20
    rows = {what: result for what, result, _ in found["rows"]}
    assert status == 1
    assert rows["conformance f32"].startswith("not done: ")
    assert rows["emitter f32"].startswith("500 tokens/s")


def test_a_visit_that_is_brief(answers: Answers, tmp_path: Path) -> None:
    _, found = visited(tmp_path, "--brief")
    assert not [what for what, *_ in found["rows"] if what.startswith("synthetic")]


def test_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hloracle.cli.visit", "--out", str(tmp_path / "out")]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)
    assert done.returncode == 2
    assert done.stderr.startswith("hloracle: --device cuda: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_sample_is_of_faults_in_what_a_device_is_given_too() -> None:
    assert {MUTANTS[id].part for id in visit.SAMPLE} == {"emitter"}
    assert len({MUTANTS[id].mechanism for id in visit.SAMPLE}) == len(visit.SAMPLE)


@pytest.mark.parametrize("what", ["emitted", "transformers", "oracle", "bandwidth"])
def test_what_is_timed(what: str) -> None:
    """Each contender on a tiny model, where its device is the processor."""

    def report(line: str) -> None: ...

    if what == "bandwidth":
        assert bandwidth(report, SIMULATED) > 1e8
        return
    found = {
        "emitted": lambda: emitted(report, "id", "tiny-llama", "int8", SIMULATED),
        "transformers": lambda: transformers(report, "id", "tiny-llama", "f32", SIMULATED),
        "oracle": lambda: measured("id", oracle, "tiny-llama", SIMULATED, seconds=200, report=report),  # sets variables
    }[what]()
    assert (len(found.ms), len(found.prefill_ms)) == (5, 5)
    assert min(found.ms) > 0
    assert found.bytes > 100_000


@pytest.mark.parametrize("seen", ["CUDA", "CPU"])
def test_what_is_traced(seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event = SimpleNamespace(
        name=lambda: "main_dispatch_2_softmax", duration_ns=lambda: 32e6, device_type=lambda: SimpleNamespace(name=seen)
    )

    @contextmanager
    def profile(**_: Any) -> Iterator[Any]:
        yield SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: [event])))

    monkeypatch.setattr(torch.profiler, "profile", profile)
    if seen == "CUDA":
        found = traced(lambda line: None, "tiny-llama", "f32", SIMULATED)
        assert (found.ms, *found.kinds["softmax"]) == pytest.approx((1, 1 / 32, 1))
    else:
        with pytest.raises(ToolchainError, match="saw no kernel"):
            traced(lambda line: None, "tiny-llama", "f32", SIMULATED)


def test_kernels_of_a_kind_are_added_up() -> None:
    names = (
        "main_dispatch_3_matvec_like_9x5_f32",
        "main_dispatch_18_matvec_like_9x5_f32",
        "Memcpy DtoH (Device -> Pinned)",
    )
    found = by_kind([(name, ms) for name, ms in zip(names, (0.3, 0.1, 0.5), strict=True) for _ in range(4)], 4)
    assert list(found.kinds) == ["Memcpy DtoH (Device -> Pinned)", "matvec_like_9x5_f32"]
    assert found.kinds["matvec_like_9x5_f32"] == pytest.approx((2, 0.4))
    assert (found.kernels, found.ms) == pytest.approx((3, 0.9))
    assert by_kind([], 4).kernels == 0


# ---- slices


def test_slices_are_put_together_again(tmp_path: Path) -> None:
    content, out = tmp_path / "content", tmp_path / "out"
    (content / "wheels").mkdir(parents=True)
    out.mkdir()
    (content / "wheels" / "a.whl").write_bytes(b"x" * 5000)
    (content / "model.gguf").write_bytes(bytes(range(256)) * 100)
    made = pack.slices(content, out, 4096)
    assert [path.name for path in made] == [f"slice.{i:02}" for i in range(len(made))]
    assert max(path.stat().st_size for path in made) == 4096
    with tarfile.open(fileobj=BytesIO(b"".join(path.read_bytes() for path in sorted(out.glob("slice.*"))))) as tar:
        assert sorted(tar.getnames()) == ["model.gguf", "wheels", "wheels/a.whl"]
        member = tar.extractfile("model.gguf")
        assert member is not None
        assert member.read() == bytes(range(256)) * 100


def test_what_is_packed() -> None:
    """All that is needed here, PyTorch left out, which the other machine has for its own driver."""
    found = pack.closure(["hloracle"], pack.LEFT_OUT)
    assert {"iree-base-compiler", "iree-base-runtime", "jax", "jaxlib", "transformers", "click", "markupsafe"} <= set(
        found
    )
    assert "torch" not in found
    assert "hloracle" not in found
    assert found["iree-base-compiler"] == "3.13.0"
    assert "jax" not in pack.closure(["hloracle"], ("torch", "jax", "jaxlib"))


def test_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "a.gguf"
    model.write_bytes(b"GGUF" + b"1" * (1 << 20))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "slice.77").write_bytes(b"of before")
    monkeypatch.setattr(pack, "own_wheel", lambda folder: (folder / "hloracle.whl").write_bytes(b"own"))
    monkeypatch.setattr(pack, "download", lambda packages, python, folder: (["rare==1"], ["own==2"]))
    assert run_command_line(pack.command, [str(tmp_path / "out"), "--model", str(model), "--mib", "1"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["slice.00", "slice.01", "unpack.sh"]
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "no wheel of rare==1 for Python 3.12: the other machine must have it",
        "own==2 is not in lock/: its wheel was held to no hash",
    ]
    script = (tmp_path / "out" / "unpack.sh").read_text()
    assert "hloracle.cli.visit --model" in script
    assert subprocess.run(["sh", "-n", str(tmp_path / "out" / "unpack.sh")], check=False).returncode == 0


def test_its_own_wheel_is_of_the_checkout() -> None:
    assert (pack.CHECKOUT / "pyproject.toml").is_file()


@pytest.mark.parametrize(("locked", "said"), [("right", ([], [])), ("none", ([], ["tiny==1"])), ("wrong", None)])
def test_wheels_are_held_to_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str, said: tuple[list[str], list[str]] | None
) -> None:
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        archive.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.dist-info/RECORD", "")
    sha256 = {"right": file_digest(wheel), "wrong": "0" * 64}.get(locked)
    (tmp_path / "lock.txt").write_text(f"tiny==1 \\\n    --hash=sha256:{sha256}\n" if sha256 else "")
    monkeypatch.setattr(pack, "LOCK", tmp_path / "lock.txt")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    (out := tmp_path / "out").mkdir()
    if said is None:
        with pytest.raises(InputError, match="tiny==1: is another file than"):
            pack.download({"tiny": "1"}, "3.12", out)
    else:
        assert pack.download({"tiny": "1"}, "3.12", out) == said
    assert [path.name for path in out.iterdir()] == ([] if said is None else [wheel.name])


def test_a_model_that_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(pack.command, [str(tmp_path / "out"), "--model", "tiny-llama"]) == 2
    assert capsys.readouterr().err == "hloracle: tiny-llama: has no .gguf file; name one that was made from one\n"
