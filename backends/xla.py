"""XLA on the CPU: compiles the same StableHLO text that IREE compiles, without going through JAX's tracing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
from jax._src import compiler, xla_bridge
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

from hloracle.backends.compiled import compiled, host_cpu
from hloracle.backends.session import Buffer, Executable
from hloracle.core.abi import Graph
from hloracle.core.errors import ToolchainError


class XlaCpu:
    """JAX's own CPU client."""

    name = "xla-cpu"

    def __init__(self) -> None:
        self._client = xla_bridge.get_backend("cpu")
        self._device = self._client.local_devices()[0]
        self._devices = xla_client.DeviceList((self._device,))
        self._options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        self.reused: list[str] = []

    def load(self, graph: Graph) -> Executable:
        identity = {
            "backend": self.name,
            "compiler": metadata.version("jaxlib"),
            "path": str(Path(xla_client.__file__).parent),
            "cpu": host_cpu(),
        }
        path, reused = compiled(graph.text, identity, lambda _: self._compile(graph))
        if reused:
            self.reused.append(graph.name)
        try:
            loaded = self._client.deserialize_executable(path.read_bytes(), self._devices, self._options)
        except Exception as error:  # jaxlib raises its own XlaRuntimeError, and ValueError
            raise ToolchainError("load", str(error), path) from error

        def execute(arguments: Sequence[Buffer]) -> Sequence[Buffer]:
            try:
                return [shards[0] for shards in loaded.execute_sharded(arguments).disassemble_into_single_device_arrays()]
            except Exception as error:
                raise ToolchainError("run", str(error), path) from error

        return execute

    def upload(self, array: np.ndarray) -> Buffer:
        return jax.device_put(array, self._device)

    def download(self, buffer: Buffer) -> np.ndarray:
        return np.asarray(buffer)

    def _compile(self, graph: Graph) -> bytes:
        try:
            with jax_mlir.make_ir_context():
                module = ir.Module.parse(graph.text)
                executable = compiler.backend_compile_and_load(
                    self._client, module, self._devices, self._options, host_callbacks=[]
                )
            return bytes(executable.serialize())
        except Exception as error:
            raise ToolchainError("compile", str(error)) from error
