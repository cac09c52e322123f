"""XLA of whichever jaxlib is installed, on the processor or through a PJRT plugin. See serving.py.

`python xla_worker.py`, `python xla_worker.py plugin NAME` for a plugin that JAX finds by its entry point, or
`python xla_worker.py library PATH` for a plugin's shared library. XLA_FLAGS are its flags.
"""

import sys
from importlib import metadata

import numpy as np
from serving import Failed, Runtime, end_with_parent, serve

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


class Xla(Runtime):
    """A PJRT client."""

    def __init__(self, kind="cpu", name="cpu"):
        import os

        os.environ["JAX_PLATFORMS"] = "" if kind != "cpu" else "cpu"
        from jax._src import xla_bridge

        if kind == "library":
            xla_bridge.register_plugin("plugin", library_path=name)
            name = "plugin"
        self._plugin = kind != "cpu"
        self._client = xla_bridge.get_backend(name)
        self._device = self._client.local_devices()[0]

    compiles = False

    def describe(self):
        found = {"name": "XLA", "family": "xla", "version": metadata.version("jaxlib")}
        if self._plugin:
            version = " ".join(str(self._client.platform_version).split())
            found |= {"name": "PJRT", "device": str(self._device.device_kind), "version": version}
        return found

    def load(self, path, function, flags):
        from jax._src import compiler
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jaxlib.mlir import ir

        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        devices = xla_client.DeviceList((self._device,))
        try:
            with mlir.make_ir_context():
                module = _entered_at_main(ir, ir.Module.parse(path.read_text()), function)
                if hasattr(compiler, "backend_compile_and_load"):
                    return compiler.backend_compile_and_load(self._client, module, devices, options, host_callbacks=[])
                return compiler.backend_compile(self._client, module, options, host_callbacks=[])
        except Exception as error:
            raise _failed("compile", error) from error

    def call(self, program, arguments):
        try:
            return [s[0] for s in program.execute_sharded(arguments).disassemble_into_single_device_arrays()]
        except Exception as error:
            raise _failed("run", error) from error

    def upload(self, array):
        import jax

        enable_x64 = getattr(jax, "enable_x64", None)
        if enable_x64 is None:  # before jax 0.8
            from jax.experimental import enable_x64

        with enable_x64(array.dtype.itemsize > 4):  # else it would have half of the bits
            return jax.device_put(array, self._device)

    def download(self, array):
        try:
            return np.asarray(array)
        except Exception as error:  # a call returns before it is done; what failed in it shows here
            raise _failed("run", error) from error


def _failed(stage, error):
    return Failed("memory" if str(error).startswith(OUT_OF_MEMORY) else stage, str(error))


def _entered_at_main(ir, module, function):
    """The module, which has a name, with its entry point called `main`, as XLA wants it."""
    if "sym_name" not in module.operation.attributes:
        module.operation.attributes["sym_name"] = ir.StringAttr.get("graph")
    if function != "main":
        symbols = ir.SymbolTable(module.operation)
        if "main" in symbols:
            ir.SymbolTable.replace_all_symbol_uses("main", f"main.{function}", module.operation)
            ir.SymbolTable.set_symbol_name(symbols["main"], f"main.{function}")
        ir.SymbolTable.replace_all_symbol_uses(function, "main", module.operation)
        ir.SymbolTable.set_symbol_name(ir.SymbolTable(module.operation)[function], "main")
    return module


if __name__ == "__main__":
    end_with_parent()
    serve(Xla(*sys.argv[1:]))
