"""IREE of whichever version is installed: `python iree_worker.py DEVICE THREADS`. See serving.py."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
from serving import Failed, Runtime, end_with_parent, serve

COMPILE_SECONDS = 600
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY", "VK_ERROR_OUT_OF_DEVICE_MEMORY")
ALIGNMENT = 64  # of memory that IREE takes over


class Iree(Runtime):
    """A device: IREE's driver and a number, such as `local-task:0` or `cuda:1`."""

    compiles = True

    def __init__(self, device, threads):
        import iree.runtime as rt

        driver, _, index = device.partition(":")
        self._rt, self._name, self._driver = rt, device, driver
        rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        path = rt.get_driver(driver).query_available_devices()[int(index or 0)].get("path")
        self._config = rt.Config(f"{driver}://{path}" if path else driver)

    def describe(self):
        found = {"name": "IREE", "family": "iree", "version": metadata.version("iree-base-compiler")}
        runtime = metadata.version("iree-base-runtime")
        return {**found, "device": self._name, "runtime": runtime}

    def compile(self, graph, function, flags):
        import iree.compiler

        tool = Path(iree.compiler.__file__).parent / "_mlir_libs" / "iree-compile"
        try:
            done = subprocess.run(
                [tool, graph, *flags, "-o", "-"], capture_output=True, timeout=COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed("compile", f"iree-compile took more than {COMPILE_SECONDS} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if "error:" in line] or lines
            raise Failed("compile", (errors or [f"iree-compile ended with exit status {done.returncode}"])[0])
        return done.stdout

    def load(self, path, function, flags):
        rt = self._rt
        try:
            module = rt.VmModule.mmap(self._config.vm_instance, str(path))
            context = rt.SystemContext(vm_modules=[module], config=self._config)
            return context.modules[module.name][function]
        except Exception as error:
            raise self._failed("load", error) from error

    def upload(self, array):
        try:
            return self._rt.asdevicearray(self._config.device, array)
        except Exception as error:
            raise self._failed("load", error) from error

    def keep(self, array):
        known = hasattr(self._config.device.allocator, "import_host_allocation")
        held = self._in_place(array) if known and self._driver == "local-task" else None
        return self.upload(array) if held is None else held

    def _in_place(self, array):
        """The array's own memory, where it is one that IREE takes."""
        rt, device = self._rt, self._config.device
        type = getattr(rt.array_interop, "map_dtype_to_element_type", lambda dtype: None)(array.dtype)
        if type is None or array.nbytes < ALIGNMENT or array.ctypes.data % ALIGNMENT:
            return None
        memory = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
        buffer = device.allocator.import_host_allocation(
            array.reshape(-1).view(np.uint8), memory_type=memory, allowed_usage=rt.BufferUsage.DEFAULT
        )
        held = rt.DeviceArray(device, rt.HalBufferView(buffer, array.shape, type))
        held.in_place_of = buffer, array  # the view does not keep the memory that it is of
        return held

    def call(self, program, arguments):
        try:
            results = program(*arguments)
        except Exception as error:
            raise self._failed("run", error) from error
        return results if isinstance(results, (list, tuple)) else (results,)

    def download(self, array):
        try:
            return array.to_host()
        except Exception as error:
            raise self._failed("run", error) from error

    def _failed(self, stage, error):
        memory = any(known in str(error) for known in OUT_OF_MEMORY)
        return Failed("memory" if memory else stage, str(error))


if __name__ == "__main__":
    end_with_parent()
    serve(Iree(sys.argv[1], int(sys.argv[2])))
