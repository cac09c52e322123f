"""Which device is opened, what is compiled for it, and what is said where there is none."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hloracle.backends import devices, iree
from hloracle.backends.devices import (
    CPU,
    KINDS,
    Device,
    Facts,
    compiled_for,
    cuda_devices,
    cuda_target_of,
    known_cuda_targets,
    open_device,
)
from hloracle.backends.iree import IreeDevice, flags_of
from hloracle.backends.named import backends_on, make_backend
from hloracle.conformance.runs.gate_zero import product_graph, sum_graph
from hloracle.core.child import alone
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.files import write_file
from hloracle.emitters.model import Emitter
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.registry import from_hf

HLORACLE = (sys.executable, "-m", "hloracle.cli.main")
KNOWN = ["sm_60", "sm_75", "sm_80", "sm_86", "sm_89", "sm_120"]
H100 = Facts("an H100", (9, 0), 80 << 30, "CUDA 13.0")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "known_cuda_targets", lambda: KNOWN)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, known: None) -> Iterator[None]:
    found = [H100, Facts("an RTX 4090", (8, 9), 24 << 30, "CUDA 13.0")]
    monkeypatch.setattr(devices, "cuda_devices", lambda *_: found)
    with alone():
        yield


def test_the_processor() -> None:
    assert open_device("cpu") == CPU
    assert (CPU.name, CPU.backend, CPU.remote) == ("cpu", "iree-cpu", False)
    assert backends_on(CPU) == ("iree-cpu", "xla-cpu")


@pytest.mark.parametrize(
    ("word", "target", "expected"),
    [
        ("cuda", "", Device("cuda", 0, "sm_89")),
        ("cuda:0", "sm_80", Device("cuda", 0, "sm_80")),
        ("cuda:1", "", Device("cuda", 1, "sm_89")),
    ],
)
def test_a_gpu(word: str, target: str, expected: Device, two_gpus: None) -> None:
    device = open_device(word, target)
    facts = devices.cuda_devices()[expected.index]
    assert device == dataclasses.replace(expected, facts=facts)
    assert device.name == facts.name
    assert (device.backend, str(device)) == ("iree-cuda", f"cuda:{expected.index}")
    assert backends_on(device) == ("iree-cuda", "iree-cpu", "xla-cpu")


@pytest.mark.parametrize(
    ("word", "target", "words"),
    [
        ("cuda:2", "", "--device cuda:2: is no device: there are 0: an H100, 1: an RTX 4090; say --device cuda:0"),
        ("cuda:1", "sm_120", "--cuda-target sm_120: is above what an RTX 4090 runs, sm_89; name one of sm_60"),
        ("cuda", "sm_90", "--cuda-target sm_90: is not known to this compiler; name one of sm_60, sm_75"),
        ("cuda:", "", "--device 'cuda:': is no device"),
        ("cuda:-1", "", "--device 'cuda:-1': is no device"),
        ("cuda:²", "", "is no device"),
        ("CUDA", "", "is no device; use cpu, cuda, cuda:1, vulkan or emulated"),
        ("", "", "is no device"),
        ("metal", "", "--device 'metal': is no device"),
        ("cpu:1", "", "there is one processor"),
        ("vulkan", "sm_80", "--cuda-target sm_80: is of CUDA alone; leave it out, or say --device cuda"),
    ],
)
def test_what_is_no_device(word: str, target: str, words: str, two_gpus: None) -> None:
    with pytest.raises(InputError) as raised:
        open_device(word, target)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((9, 0), "sm_89"),
        ((8, 9), "sm_89"),
        ((8, 7), "sm_86"),
        ((8, 0), "sm_80"),
        ((12, 0), "sm_120"),
        ((10, 3), "sm_89"),
    ],
)
def test_the_highest_target_that_is_not_above_the_device(
    capability: tuple[int, int], target: str, known: None
) -> None:  # fmt: skip
    assert cuda_target_of(Facts("a GPU", capability)) == target


def test_a_gpu_older_than_the_compiler(known: None) -> None:
    with pytest.raises(
        InputError, match=r"an old one is sm_52, and the compiler knows none below sm_60; use a newer GPU"
    ):
        cuda_target_of(Facts("an old one", (5, 2)))


# ---- which targets there are


def test_targets_are_probed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path))
    asked: list[str] = []

    def compile_(source: Path, flags: tuple[str, ...]) -> bytes:
        target = next(f for f in flags if f.startswith("--iree-cuda-target=")).partition("=")[2]
        asked.append(target)
        if target not in KNOWN:
            raise ToolchainError("compile", "error: missing GPU target")
        return b"module"

    monkeypatch.setattr(iree, "iree_compile", compile_)
    assert known_cuda_targets() == KNOWN
    assert len(asked) == len(devices.CAPABILITIES)
    assert known_cuda_targets() == KNOWN
    assert len(asked) == len(devices.CAPABILITIES)
    monkeypatch.setattr(devices, "installed", lambda name: "another version")
    assert known_cuda_targets() == KNOWN
    assert len(asked) == 2 * len(devices.CAPABILITIES)


def test_a_compiler_that_fails_altogether_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path))

    def fails(*_: Any) -> bytes:
        raise ToolchainError("compile", "cannot be run")

    monkeypatch.setattr(iree, "iree_compile", fails)
    assert known_cuda_targets() == []
    assert not list(tmp_path.rglob("*.json"))


def test_this_compilers_targets() -> None:
    """As measured with 3.13: PTX of sm_89 is what an H100 is given, for there is none of sm_90."""
    found = known_cuda_targets()
    assert KINDS["cuda"].target in found
    assert "sm_80" in found
    assert found == sorted(found, key=lambda target: int(target[3:]))


@pytest.mark.parametrize("on_device", [True, False])
def test_one_query_has_threads_of_its_own_for_each_score(on_device: bool, tmp_path: Path) -> None:
    """As measured with 3.13: of a product with few rows, which is written for a processor, a GPU's threads take columns each."""
    graph = Emitter(on_device=on_device).emit(from_hf(TINY["gpt_oss"]), "decode", "token", 256)
    write_file(tmp_path / "decode.mlir", graph.text)
    flags = [
        *iree.DEVICE_FLAGS,
        *Device("cuda", 0, "sm_89").flags,
        f"--iree-hal-dump-executable-configurations-to={tmp_path}",
    ]
    iree.iree_compile(tmp_path / "decode.mlir", flags)
    tiles = "".join(path.read_text() for path in tmp_path.glob("configured_*.mlir"))
    assert bool(re.search(r"thread = \[1, 1, \d{2,}, 0\]", tiles)) is not on_device


# ---- NVIDIA's driver


class Driver:
    """libcuda.so.1, of these devices: (name, capability, memory)."""

    def __init__(self, *found: tuple[str, tuple[int, int], int], fails: str = "", status: int = 999) -> None:
        self.found, self.fails, self.status = found, fails, status

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.fails:
                return self.status
            return int(getattr(self, f"_{name}")(*arguments) or 0)

        return call

    def _cuInit(self, flags: int) -> None: ...

    def _cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 13020

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = len(self.found)

    def _cuDeviceGet(self, device: Any, index: int) -> None:
        device._obj.value = index

    def _cuDeviceGetName(self, name: Any, size: int, device: Any) -> None:
        name.value = self.found[device.value][0].encode()

    def _cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> None:
        memory._obj.value = self.found[device.value][2]

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> None:
        value._obj.value = self.found[device.value][1][{75: 0, 76: 1}[attribute]]

    def _cuGetErrorName(self, status: int, words: Any) -> None:
        words._obj.value = b"CUDA_ERROR_UNKNOWN"


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(("NVIDIA H100", (9, 0), 80 << 30), ("NVIDIA L4", (8, 9), 24 << 30))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert cuda_devices() == [
        Facts("NVIDIA H100", (9, 0), 80 << 30, "CUDA 13.2"), Facts("NVIDIA L4", (8, 9), 24 << 30, "CUDA 13.2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "status", "words"),
    [
        ("cuInit", 100, "--device cuda: the NVIDIA driver finds no device; attach one, or say --device cpu"),
        ("cuInit", 999, "the NVIDIA driver answers cuInit with CUDA_ERROR_UNKNOWN (999); see whether nvidia-smi works"),
        ("cuDeviceTotalMem_v2", 999, "answers cuDeviceTotalMem_v2 with CUDA_ERROR_UNKNOWN"),
    ],
)
def test_a_driver_that_fails(fails: str, status: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(("a", (8, 0), 1), fails=fails, status=status))
    with pytest.raises(InputError) as raised:
        cuda_devices()
    assert words in str(raised.value)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(InputError, match=r"--device cuda: no NVIDIA driver can be loaded \(libcuda.so.1: cannot open"):
        cuda_devices()


def test_a_driver_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    with alone(), pytest.raises(InputError, match=r"there is no such device on this machine; attach one"):
        open_device("cuda")


# ---- compiling and running


def test_flags_name_the_device() -> None:
    cuda, graph = Device("cuda", 1, "sm_86"), sum_graph()
    assert "--iree-cuda-target=sm_86" in flags_of(graph, cuda)
    assert "--iree-hal-target-device=cuda" in flags_of(graph, cuda)
    assert not [flag for flag in flags_of(graph, cuda) if "llvmcpu" in flag]
    assert flags_of(graph, CPU) == iree.CPU_FLAGS
    assert flags_of(graph, compiled_for("cuda")) != flags_of(graph, cuda)


def test_modules_of_two_targets_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path))
    graph = sum_graph()
    paths = {
        iree.module_path(graph, d)
        for d in (CPU, compiled_for("cuda"), compiled_for("cuda", "sm_80"), Device("simulated"))
    }
    assert len(paths) == 4
    assert sum(b".target sm_80" in path.read_bytes() for path in paths) == 1


def test_a_device_with_memory_of_its_own() -> None:
    """What is read back stays what it was when more is read back after it."""
    backend = make_backend("iree-simulated", 1, Device("simulated"))
    assert isinstance(backend, IreeDevice)
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(15, dtype=np.float32).reshape(5, 3)
    execute = backend.load(product_graph())
    first = backend.download(execute([backend.upload(x), backend.keep(w)])[0])
    second = backend.download(execute([backend.upload(-x), backend.keep(w)])[0])
    np.testing.assert_array_equal(first, x @ w.T)
    np.testing.assert_array_equal(second, -x @ w.T)
    assert backend.download(backend.upload(np.array(7, np.int32))).shape == ()


def test_a_backend_of_another_device() -> None:
    with pytest.raises(InputError, match="'iree-cuda': is no backend"):
        make_backend("iree-cuda", 1, Device("simulated"))


@pytest.mark.parametrize("words", ["RESOURCE_EXHAUSTED; out of memory", "CUDA_ERROR_OUT_OF_MEMORY"])
def test_out_of_memory_is_one_clear_line(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = IreeDevice(Device("simulated"))

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"c/runtime/src/iree/hal/drivers/cuda/memory_pools.c:202: {words}")

    monkeypatch.setattr(backend, "_rt", SimpleNamespace(asdevicearray=full))
    with pytest.raises(
        ToolchainError, match=r"simulated:0 is out of memory: take a narrower --precision or a smaller"
    ) as e:
        backend.upload(np.zeros(4, np.float32))
    assert "memory_pools" not in str(e.value)
    assert (e.value.stage, str(pickle.loads(pickle.dumps(e.value)))) == ("memory", str(e.value))


def test_another_failure_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = IreeDevice(Device("simulated"))

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(backend, "_rt", SimpleNamespace(asdevicearray=fails))
    with pytest.raises(ToolchainError, match=r"simulated:0: CUDA_ERROR_ILLEGAL_ADDRESS"):
        backend.upload(np.zeros(4, np.float32))


# ---- what the command line says


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    """As `nox -s conformance-cuda` calls it, without a driver, or with one that is shown no device."""
    command = [*HLORACLE, "suite", "--device", "cuda", "--out", str(tmp_path / "out")]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("hloracle: --device cuda: ")
    assert not (tmp_path / "out").exists()


def test_the_variable_names_a_device_too(tmp_path: Path) -> None:
    command = [*HLORACLE, "generate", "tiny-llama", "-p", "a"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "HLORACLE_DEVICE": "gpu"}
    )
    assert (done.returncode, done.stderr) == (
        2,
        "hloracle: --device 'gpu': is no device; use cpu, cuda, cuda:1, vulkan or emulated\n",
    )


@pytest.mark.nightly
def test_targets_as_json() -> None:
    done = subprocess.run([*HLORACLE, "targets", "tiny-llama", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert {row["compiler"] for row in found["compiled"]} == {"llvm-cpu", "cuda", "rocm", "vulkan-spirv", "metal-spirv"}
    assert {row["graph"] for row in found["compiled"]} == {
        "llama_decode_token",
        "llama_prefill_64_token",
        "llama_decode_token_batch_4",
        "llama_extend_64_token_batch_4",
    }
    on_cuda = [row for row in found["compiled"] if row["compiler"] == "cuda"]
    assert [(row["status"], row["arithmetic"]) for row in on_cuda] == [("compiled", ["fma f32"])] * 4
