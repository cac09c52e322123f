"""IREE of whichever version is installed: `python iree_worker.py DEVICE THREADS`. See serving.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # run by its path, it finds its neighbours in its folder
    from hloracle.backends.workers.serving import Failed, Runtime, serve
    from hloracle.backends.workers.shared import IREE_OUT_OF_MEMORY, first_error, iree_module, out_of_room
else:
    from serving import Failed, Runtime, serve
    from shared import IREE_OUT_OF_MEMORY, first_error, iree_module, out_of_room

COMPILE_SECONDS = 600
ALIGNMENT = 64  # of memory that IREE takes over


class Iree(Runtime):
    """A device: IREE's driver and a number, such as `local-task:0` or `cuda:1`."""

    compiles = True

    def __init__(self, device: str, threads: int) -> None:
        import iree.runtime as rt

        driver, _, index = device.partition(":")
        self._rt, self._name, self._driver = rt, device, driver
        self._in_place: list[tuple[Any, np.ndarray]] = []
        rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        path = rt.get_driver(driver).query_available_devices()[int(index or 0)].get("path")
        self._config = rt.Config(f"{driver}://{path}" if path else driver)

    def describe(self) -> dict[str, str]:
        """See `Runtime`."""
        compiler, runtime = (metadata.version(f"iree-base-{part}") for part in ("compiler", "runtime"))
        return {"name": "IREE", "family": "iree", "version": compiler, "runtime": runtime, "device": self._name}

    def compile(self, graph: Path, function: str, flags: list[str]) -> bytes:
        """A module, by this version's iree-compile."""
        import iree.compiler

        tool = Path(str(iree.compiler.__file__)).parent / "_mlir_libs" / "iree-compile"
        command = [str(tool), str(graph), *flags, "-o", "-"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise Failed("compile", f"iree-compile took more than {COMPILE_SECONDS} s") from None
        if done.returncode == -signal.SIGKILL:
            raise Failed("memory", "iree-compile was killed, as Linux does where memory is short")
        if done.returncode and (folder := out_of_room()):
            raise Failed(
                "memory", f"iree-compile failed, and the disk of its temporary files is all but full: {folder}"
            )
        if done.returncode:
            said = first_error(done.stderr.decode(errors="replace"))
            raise Failed("compile", said or f"iree-compile ended with exit status {done.returncode} and no message")
        return done.stdout

    def load(self, path: Path, function: str, flags: list[str]) -> Any:
        """A function of the module."""
        try:
            module = iree_module(self._rt, self._config.vm_instance, path)
            context = self._rt.SystemContext(vm_modules=[module], config=self._config)
            return context.modules[module.name][function]
        except Exception as error:
            raise _failed("load", error) from error

    def upload(self, array: np.ndarray) -> Any:
        """The array on the device."""
        try:
            return self._rt.asdevicearray(self._config.device, array)
        except Exception as error:
            raise _failed("load", error) from error

    def keep(self, array: np.ndarray) -> Any:
        """The array in place, where it is memory that this version takes over; else on the device."""
        can = hasattr(self._config.device.allocator, "import_host_allocation")
        held = self._held(array) if can and self._driver == "local-task" else None
        return self.upload(array) if held is None else held

    def _held(self, array: np.ndarray) -> Any:
        rt, device = self._rt, self._config.device
        type = getattr(rt.array_interop, "map_dtype_to_element_type", lambda dtype: None)(array.dtype)
        if type is None or array.nbytes < ALIGNMENT or array.ctypes.data % ALIGNMENT:
            return None
        memory = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
        buffer = device.allocator.import_host_allocation(
            array.reshape(-1).view(np.uint8), memory_type=memory, allowed_usage=rt.BufferUsage.DEFAULT
        )
        # Nothing else keeps the memory of a buffer, and what a graph gives may be in the memory of what it was given.
        self._in_place.append((buffer, array))
        return rt.DeviceArray(device, rt.HalBufferView(buffer, array.shape, type))

    def call(self, program: Any, arguments: list[Any]) -> list[Any]:
        """One result comes bare, several as a list."""
        try:
            results = program(*arguments)
        except Exception as error:
            raise _failed("run", error) from error
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def download(self, array: Any) -> np.ndarray:
        """A view of the device's memory, or a copy of it."""
        try:
            found: np.ndarray = array.to_host()
        except Exception as error:
            raise _failed("run", error) from error
        return found


def _failed(stage: str, error: Exception) -> Failed:
    memory = any(known in str(error) for known in IREE_OUT_OF_MEMORY)
    return Failed("memory" if memory else stage, str(error))


if __name__ == "__main__":
    serve(lambda: Iree(sys.argv[1], int(sys.argv[2])))
