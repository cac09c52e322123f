"""XLA on the CPU: compiles the same StableHLO text that IREE compiles, without going through JAX's tracing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from hloracle.backends.compiled import Program, compiled, is_compiled, program_of
from hloracle.backends.custom_calls import registered
from hloracle.backends.session import Backend, Buffer, Executable
from hloracle.backends.workers.shared import ENTRY, XLA_OUT_OF_MEMORY, entered_at_main, refuse_callbacks
from hloracle.core.abi import Graph
from hloracle.core.environment import host_cpu, installed
from hloracle.core.errors import OutOfMemory, ToolchainError


class XlaCpu(Backend):
    """JAX's own CPU client."""

    name = "xla-cpu"

    def __init__(self) -> None:
        from jax._src import compiler, xla_bridge
        from jax._src.lib import xla_client

        self._client = xla_bridge.get_backend("cpu")
        self._device = self._client.local_devices()[0]
        self._devices = xla_client.DeviceList((self._device,))
        self._options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        self.facts = {"name": "XLA", "version": installed("jaxlib")}
        self.programs: dict[str, Program] = {}  # of the graphs that were loaded, by their names

    def load(self, graph: Graph) -> Executable:
        """Compile and load a graph: see `Backend`. The executable comes from the cache where it is there."""
        path, _ = compiled(graph.text, _identity(graph), lambda _: self._compile(graph))
        try:
            loaded = self._client.deserialize_executable(path.read_bytes(), self._devices, self._options)
        except Exception as error:  # jaxlib raises its own XlaRuntimeError, and ValueError
            raise _failed("load", error, path) from error
        self.programs[graph.name] = program_of(path)

        def execute(arguments: Sequence[Buffer]) -> Sequence[Buffer]:
            try:
                return [
                    shards[0] for shards in loaded.execute_sharded(arguments).disassemble_into_single_device_arrays()
                ]
            except Exception as error:
                raise _failed("run", error, path) from error

        return execute

    def upload(self, array: np.ndarray) -> Buffer:
        """The array on XLA's device."""
        import jax

        with jax.enable_x64(array.dtype.itemsize > 4):  # else it would have half of the bits
            return jax.device_put(array, self._device)

    def download(self, buffer: Buffer) -> np.ndarray:
        """Wait for a buffer and read it back."""
        import jax

        try:
            return np.asarray(buffer)
        except jax.errors.JaxRuntimeError as error:  # a call returns before it is done; what failed in it shows here
            raise _failed("run", error) from error

    def _compile(self, graph: Graph) -> bytes:
        from jax._src import compiler
        from jaxlib.mlir import ir

        try:
            with _context():
                module = entered_at_main(ir, ir.Module.parse(graph.text), graph.abi.function)
                refuse_callbacks(ir, module)
                executable = compiler.backend_compile_and_load(
                    self._client, module, self._devices, self._options, host_callbacks=[]
                )
            return bytes(executable.serialize())
        except Exception as error:
            raise _failed("compile", error) from error


def _failed(stage: str, error: Exception, artifact: object = "") -> ToolchainError:
    if str(error).startswith(XLA_OUT_OF_MEMORY):
        return OutOfMemory(XlaCpu.name)
    return ToolchainError(stage, str(error), artifact)


@cache
def _context() -> Any:
    """MLIR's context with the dialects that JAX writes; making it takes as long as parsing a graph."""
    from jax._src.interpreters import mlir

    return mlir.make_ir_context()


def has_compiled(graph: Graph) -> bool:
    """Whether the graph's executable is in the cache. Does not import JAX."""
    return is_compiled(graph.text, _identity(graph))


def _identity(graph: Graph) -> dict[str, str]:
    targets = {f"custom_call {name}": sha256 for name, sha256 in registered().items()}
    # Of a text with several functions each is an executable of its own.
    entry = {} if graph.abi.function == ENTRY else {"entry": graph.abi.function}
    return (
        targets
        | entry
        | {
            "backend": XlaCpu.name,
            "compiler": installed("jaxlib"),
            "path": _path(),
            "flags": os.environ.get("XLA_FLAGS", ""),
            "cpu": host_cpu(),
        }
    )


@cache
def _path() -> str:
    return str(find_spec("jaxlib").origin)  # type: ignore[union-attr]
