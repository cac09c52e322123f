"""XLA of whichever jaxlib is installed, on the processor or through a PJRT plugin. See serving.py.

`python xla_worker.py`, `python xla_worker.py plugin NAME` for a plugin that JAX finds by its entry point, or
`python xla_worker.py library PATH` for a plugin's shared library. XLA_FLAGS are its flags.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # run by its path, it finds its neighbours in its folder
    from hloracle.backends.workers.serving import Failed, Runtime, serve
    from hloracle.backends.workers.shared import XLA_OUT_OF_MEMORY, entered_at_main, refuse_callbacks
else:
    from serving import Failed, Runtime, serve
    from shared import XLA_OUT_OF_MEMORY, entered_at_main, refuse_callbacks

OURS = "library"  # what JAX calls the plugin of a library


class Xla(Runtime):
    """A PJRT client.

    kind: `cpu`, `plugin` or `library`. name: of the plugin, or of its library.
    """

    def __init__(self, kind: str = "cpu", name: str = "cpu") -> None:
        platform = OURS if kind == "library" else name
        os.environ["JAX_PLATFORMS"] = platform  # of all that are installed JAX opens this one alone
        os.environ["JAX_ENABLE_X64"] = "1"  # else an array of 64 bits would have half of them
        from jax._src import xla_bridge

        if kind == "library":
            xla_bridge.register_plugin(OURS, library_path=name)
        try:
            self._kind, self._client = kind, xla_bridge.get_backend(platform)
        except RuntimeError as error:  # with what a user of JAX might do
            raise Failed("load", str(error).partition(" (set JAX_PLATFORMS=")[0]) from error
        self._device = self._client.local_devices()[0]

    def describe(self) -> dict[str, str]:
        """See `Runtime`."""
        if self._kind == "cpu":
            return {"name": "XLA", "family": "xla", "version": metadata.version("jaxlib")}
        version, device = " ".join(str(self._client.platform_version).split()), str(self._device.device_kind)
        return {"name": "PJRT", "family": "xla", "version": version, "device": device}

    def load(self, path: Path, function: str, flags: list[str]) -> Any:
        """Compile a graph; XLA's executables are not kept, since not every plugin can write them."""
        from jax._src import compiler
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jaxlib.mlir import ir

        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        devices = xla_client.DeviceList((self._device,))
        by_version: Any = compiler  # an older one has another function, which takes no devices
        try:
            with mlir.make_ir_context():
                module = entered_at_main(ir, ir.Module.parse(path.read_text()), function)
                refuse_callbacks(ir, module)
                if hasattr(by_version, "backend_compile_and_load"):
                    return by_version.backend_compile_and_load(
                        self._client, module, devices, options, host_callbacks=[]
                    )
                return by_version.backend_compile(self._client, module, options, host_callbacks=[])
        except Exception as error:
            raise _failed("compile", error) from error

    def upload(self, array: np.ndarray) -> Any:
        """The array on the device."""
        import jax

        try:
            return jax.device_put(array, self._device)
        except Exception as error:
            raise _failed("load", error) from error

    def call(self, program: Any, arguments: list[Any]) -> list[Any]:
        """Begin to run an executable: what it gives may be there later."""
        try:
            return [s[0] for s in program.execute_sharded(arguments).disassemble_into_single_device_arrays()]
        except Exception as error:
            raise _failed("run", error) from error

    def download(self, array: Any) -> np.ndarray:
        """Wait for an array; what failed in the call shows here."""
        try:
            return np.asarray(array)
        except Exception as error:
            raise _failed("run", error) from error


def _failed(stage: str, error: Exception) -> Failed:
    return Failed("memory" if str(error).startswith(XLA_OUT_OF_MEMORY) else stage, str(error))


if __name__ == "__main__":
    serve(lambda: Xla(*sys.argv[1:]))
