"""IREE: compiles graphs for a device, and runs them on the processor or on a device of its own memory."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hloracle.backends.compiled import Program, compiled, program_of
from hloracle.backends.devices import CPU, KINDS, Device, driver_library
from hloracle.backends.session import Backend, Buffer, Executable
from hloracle.backends.workers.shared import IREE_OUT_OF_MEMORY, first_error, iree_module, out_of_room
from hloracle.core.abi import Graph
from hloracle.core.child import exit_words
from hloracle.core.environment import host_cpu, installed
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError

# O2 fuses and vectorizes; the default O0 is ten times slower. The rest names the device.
CPU_FLAGS: tuple[str, ...] = (
    "--iree-input-type=stablehlo",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O2",
)
# Of any other device, which Device.flags names.
DEVICE_FLAGS: tuple[str, ...] = ("--iree-input-type=stablehlo", "--iree-opt-level=O2")
# What else a graph of a phase may be compiled with; the first is taken where nothing was measured on the machine. Of SmolLM2
# 135M in float32 on 2 cores of an Intel Xeon (Sapphire Rapids): a step of decode, and a prompt of 256, in ms.
# A prompt's products gain more from packed operands than packing costs; one token's do not. Transposes that are moved
# through reshapes end in products of five axes, which packing makes nine times slower.
_PACKED = ("--iree-opt-data-tiling", "--iree-llvmcpu-enable-ukernels=all")
FLAG_SETS: dict[str, tuple[str, ...]] = {
    "plain": (),  # decode 22, prompt 531
    "packed": (*_PACKED, "--iree-global-opt-propagate-transposes=false"),  # prompt 379
    "packed-moved": _PACKED,  # prompt 582
    "O3": ("--iree-opt-level=O3",),
    # A step of 8 rows 49 to 56 ms, and with the usual size, 64, 58 to 75: it leaves one of two threads idle a third of the time.
    "spread": ("--iree-llvmcpu-distribution-size=128",),
    # Of 8 rows, whose products with int4 weights take 151 us in place of 359: see `sum_group_panels`.
    "unmoved": ("--iree-global-opt-propagate-transposes=false",),
}
PHASE_FLAGS = {"decode": ("plain", "O3", "packed"), "prefill": ("packed", "packed-moved", "plain", "O3")}
# On a device there is no micro-kernel to pack for.
DEVICE_PHASE_FLAGS = ("plain", "O3")
TARGET_CPU = "--iree-llvmcpu-target-cpu"
COMPILE_SECONDS = 600
# Of a buffer that a module may be given: what it loads in one go.
ALIGNMENT = 64
# Errors of the system that say nothing of the compiler: no process, no memory, no files for it.
NO_PROCESS = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Signals by which somebody else ended the compiler: nothing is learned from running it again.
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def usual_flags(device: Device) -> tuple[str, ...]:
    """What a graph without flags of its own is compiled with."""
    return (*DEVICE_FLAGS, *device.flags) if device.remote else CPU_FLAGS


def flags_of(graph: Graph, device: Device = CPU) -> tuple[str, ...]:
    """All that a graph is compiled with: its own flags stand in for those of the device that they name."""
    named, usual = {flag.partition("=")[0] for flag in graph.flags}, usual_flags(device)
    return (*(flag for flag in usual if flag.partition("=")[0] not in named), *graph.flags)


def iree_compile(source: Path, flags: Sequence[str], seconds: float = 0) -> bytes:
    """What `iree-compile` writes. Raises ToolchainError with its first error, of the stage `memory` where it was killed and
    `timeout` where it did not end; InputError where it failed for want of room for its temporary files.

    Args:
      seconds: that it may take; COMPILE_SECONDS if 0.
    """
    # Verifying the IR after each pass takes a third of the time and does not change the module;
    # it is worth its time where something failed, because the message is then about the cause.
    done = _iree_compile(source, [*flags, "--verify=false"], seconds)
    if done.returncode and -done.returncode not in STOPPED:
        done = _iree_compile(source, flags, seconds)
    if done.returncode == -signal.SIGKILL:
        raise ToolchainError("memory", "iree-compile was killed (signal SIGKILL), as Linux does where memory is short")
    if done.returncode and (folder := out_of_room()):
        raise InputError(
            "its disk is all but full, and iree-compile failed", folder, "free some space there, or set TMPDIR"
        )
    if done.returncode:
        said = first_error(done.stderr.decode(errors="replace"))
        ended = f"iree-compile ended with {exit_words(done.returncode)} and no message"
        raise ToolchainError("compile", said or ended)
    return done.stdout


def _iree_compile(source: Path, flags: Sequence[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    command, limit = [compiler_path(), str(source), *flags, "-o", "-"], seconds or COMPILE_SECONDS
    try:
        return subprocess.run(command, capture_output=True, timeout=limit, check=False)
    except OSError as error:
        stage = "memory" if error.errno in NO_PROCESS else "compile"
        raise ToolchainError(stage, f"{compiler_path()} cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise ToolchainError("timeout", f"iree-compile took more than {limit:g} s") from None


def compile_to_stream(graph: Graph, device: Device = CPU, seconds: float = 0) -> str:
    """The graph in IREE's stream dialect, where every allocation and copy is explicit. See `iree_compile` for `seconds`."""
    return _compiled(graph, device, _stream_flags(graph, device), seconds)[0].read_text()


def precompile(graph: Graph, device: Device = CPU, with_stream: bool = False, seconds: float = 0) -> bool:
    """Put the graph's module into the cache; returns whether it was there.

    Args:
      with_stream: when it is made, also keep what `compile_to_stream` gives, a stage on the way to the module.
      seconds: as `iree_compile` takes them.
    """
    flags = flags_of(graph, device)
    if not with_stream:
        return _compiled(graph, device, flags, seconds)[1]

    def build(source: Path) -> bytes:
        with TemporaryDirectory() as folder:
            module = iree_compile(source, [*flags, f"--dump-compilation-phases-to={folder}"], seconds)
            stream = [*Path(folder).glob("*.stream.mlir")]
            if stream:
                identity = _identity(_stream_flags(graph, device), device)
                compiled(graph.text, identity, lambda _: stream[0].read_bytes())
            return module

    return compiled(graph.text, _identity(flags, device), build)[1]


def module_path(graph: Graph, device: Device = CPU) -> Path:
    """The graph's module in the cache, which is compiled if it is not there."""
    return _compiled(graph, device, flags_of(graph, device))[0]


def _compiled(graph: Graph, device: Device, flags: Sequence[str], seconds: float = 0) -> tuple[Path, bool]:
    """What the compiler makes with these flags, and whether it was in the cache."""
    return compiled(graph.text, _identity(flags, device), lambda source: iree_compile(source, flags, seconds))


def _stream_flags(graph: Graph, device: Device) -> tuple[str, ...]:
    return (*flags_of(graph, device), "--compile-to=stream")


@cache
def compiler_path() -> str:
    """Where iree-compile is, as `iree.compiler.tools` finds it: on IREE_TOOL_PATH, or in its package.

    Without importing that: it loads the compiler's library, 57 MB of memory that a session has no use for.
    """
    if found := shutil.which("iree-compile", path=os.environ.get("IREE_TOOL_PATH", "")):
        return found
    package = importlib.util.find_spec("iree.compiler") if importlib.util.find_spec("iree") else None
    if package is None or package.origin is None:
        raise InputError("is not installed", "iree-base-compiler", "pip install iree-base-compiler")
    return str(Path(package.origin).parent / "_mlir_libs" / "iree-compile")


class Iree(Backend):
    """IREE's runtime with a device."""

    name: str

    def __init__(self, device: Device) -> None:
        try:
            import iree.runtime as rt
        except ImportError:
            raise InputError("is not installed", "iree-base-runtime", "pip install iree-base-runtime") from None
        self._rt, self._device, self.name = rt, device, device.backend
        self.facts = {"name": "IREE", "version": installed("iree-base-compiler"), "device": device.uri}
        self.programs: dict[str, Program] = {}  # of the graphs that were loaded, by their names
        self._config = self._open()

    def _open(self) -> Any:
        """IREE's Config."""
        return self._rt.Config(KINDS[self._device.kind].driver)

    def load(self, graph: Graph) -> Executable:
        """Compile and load a graph: see `Backend`. The module comes from the cache where it is there."""
        path = module_path(graph, self._device)
        try:
            module = iree_module(self._rt, self._config.vm_instance, path)
            context = self._rt.SystemContext(vm_modules=[module], config=self._config)
            function = context.modules[module.name][graph.abi.function]
        except Exception as error:  # the runtime raises bare RuntimeError, ValueError and KeyError
            raise self._failed("load", error, path) from error
        self.programs[graph.name] = program_of(path)

        def execute(arguments: Sequence[Buffer]) -> Sequence[Buffer]:
            try:
                results = function(*arguments)
            except Exception as error:
                raise self._failed("run", error, path) from error
            # One result comes bare, several as a list.
            return results if isinstance(results, list | tuple) else (results,)

        return execute

    def upload(self, array: np.ndarray) -> Buffer:
        """Copy an array to the device."""
        return self._rt.asdevicearray(self._config.device, array)

    def _failed(self, stage: str, error: Exception, artifact: object = "") -> ToolchainError:
        if any(known in str(error) for known in IREE_OUT_OF_MEMORY):
            return OutOfMemory(str(self._device))
        return ToolchainError(stage, str(error), artifact)


class IreeCpu(Iree):
    """The `local-task` device with `threads` workers. The thread count is process-wide: the first one counts."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        super().__init__(CPU)

    def _open(self) -> Any:
        self._rt.flags.parse_flags(f"--task_topology_group_count={self._threads}")
        return super()._open()

    def keep(self, array: np.ndarray) -> Buffer:
        """Take over an array that is aligned, contiguous and writable without a copy; copy any other."""
        from iree.runtime.array_interop import map_dtype_to_element_type

        rt, type = self._rt, map_dtype_to_element_type(array.dtype)
        # What is not aligned IREE would copy; what may not be written to it does not take.
        if array.ctypes.data % ALIGNMENT or not (array.flags.c_contiguous and array.flags.writeable) or type is None:
            return self.upload(array)
        memory = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
        buffer = self._config.device.allocator.import_host_allocation(
            array.reshape(-1).view(np.uint8), memory_type=memory, allowed_usage=rt.BufferUsage.DEFAULT
        )
        held = rt.DeviceArray(self._config.device, rt.HalBufferView(buffer, array.shape, type))
        held.in_place_of = buffer, array  # IREE 3.13's view does not keep the memory that it is of
        return held

    def download(self, buffer: Buffer) -> np.ndarray:
        """A copy of a buffer."""
        # to_host() maps the device's memory, which a later call may overwrite: hence the copy.
        return np.array(buffer.to_host())


class IreeDevice(Iree):
    """A device with memory of its own. What is read back goes through memory that both sides see, kept for the next time:
    for each array IREE 3.13's `to_host` would take new memory and make it known to the driver.
    """

    def __init__(self, device: Device) -> None:
        self._staging: dict[int, Any] = {}  # by size
        super().__init__(device)

    def _open(self) -> Any:
        driver, index = KINDS[self._device.kind].driver, self._device.index
        if self._device.kind == "emulated":  # loaded before IREE looks for it, it is what IREE finds
            ctypes.CDLL(driver_library("emulated"), mode=ctypes.RTLD_GLOBAL)
        if driver == "cuda":
            self._rt.flags.parse_flags(f"--cuda_use_streams={'false' if self._device.graphs else 'true'}")
        try:
            found = self._rt.get_driver(driver).query_available_devices()[index]
            # A device of CUDA's or Vulkan's has its UUID for a path; of the others there is one, without.
            return self._rt.Config(f"{driver}://{found['path']}" if found["path"] else driver)
        except Exception as error:
            raise self._failed("load", error) from error

    def upload(self, array: np.ndarray) -> Buffer:
        """Copy an array to the device; raises OutOfMemory where it does not fit."""
        try:
            return super().upload(array)
        except Exception as error:
            raise self._failed("load", error) from error

    def download(self, buffer: Buffer) -> np.ndarray:
        """Copy a buffer back through staging memory of its size."""
        rt, device = self._rt, self._config.device
        source = buffer._buffer_view.get_buffer()
        size = source.byte_length()
        try:
            if size not in self._staging:
                self._staging[size] = device.allocator.allocate_buffer(
                    memory_type=rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE,
                    allowed_usage=rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED, allocation_size=size,
                )  # fmt: skip
            done = device.create_semaphore(0)
            before, after = (rt.HalFence.create_at(done, at) for at in (0, 1))
            device.queue_copy(source, self._staging[size], before, after)
            after.wait()
            return np.array(self._staging[size].map().asarray(list(buffer.shape), np.dtype(buffer.dtype)))
        except Exception as error:
            raise self._failed("run", error) from error

    def _failed(self, stage: str, error: Exception, artifact: object = "") -> ToolchainError:
        found = error if isinstance(error, ToolchainError) else super()._failed(stage, error, artifact)
        if found is error or isinstance(found, OutOfMemory):
            return found
        return ToolchainError(stage, f"{self._device}: {error}", artifact)


def _identity(flags: Sequence[str], device: Device) -> dict[str, str]:
    return {
        "backend": device.backend,
        "compiler": installed("iree-base-compiler"),
        "path": compiler_path(),
        "flags": " ".join(flags),
        "cpu": host_cpu() if KINDS[device.kind].compiler == "llvm-cpu" else "",
    }
