"""StableHLO's own reference interpreter, which jaxlib carries: slow, and a third opinion on what an operation means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloracle.backends.session import Backend, Buffer, Executable
from hloracle.core.abi import Graph
from hloracle.core.errors import ToolchainError


class Interpreter(Backend):
    """Evaluates graphs operation by operation: about a million multiplications a second."""

    name = "interpreter"

    def __init__(self) -> None:
        from jax._src.interpreters import mlir as jax_mlir
        from jaxlib.mlir.dialects import stablehlo

        self._context = jax_mlir.make_ir_context()
        stablehlo.register_interpreter_dialect(self._context)

    def load(self, graph: Graph) -> Executable:
        """Parse a graph: see `Backend`. A call raises ToolchainError with the interpreter's own message."""
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        context = self._context
        try:
            with context:
                module = ir.Module.parse(graph.text)
        except (ir.MLIRError, ValueError) as error:
            raise ToolchainError("load", " ".join(str(error).split())) from error

        def execute(arguments: Sequence[Buffer]) -> Sequence[Buffer]:
            words: list[str] = []

            def note(diagnostic: Any) -> bool:
                words.append(diagnostic.message)
                return True  # it goes no further: not to stderr

            with context:
                handler: Any = context.attach_diagnostic_handler(note)
                try:
                    # Not ascontiguousarray, which makes a vector of a scalar.
                    attributes = [_attribute(np.asarray(a, order="C"), ir) for a in arguments]
                    return [np.array(r) for r in stablehlo.eval_module(module, attributes)]
                except Exception as error:  # the interpreter raises RuntimeError and ValueError
                    raise ToolchainError("run", "; ".join([str(error), *words])) from error
                finally:
                    handler.detach()

        return execute

    def upload(self, array: np.ndarray) -> Buffer:
        """The array itself."""
        return array

    def download(self, buffer: Buffer) -> np.ndarray:
        """The array itself."""
        return np.asarray(buffer)


def _attribute(array: np.ndarray, ir: Any) -> Any:
    """MLIR's bindings know no bfloat16 of NumPy's, and take unsigned numbers for signless ones."""
    if array.dtype.name == "bfloat16":
        return ir.DenseElementsAttr.get(array.view(np.uint16), type=ir.BF16Type.get(), shape=array.shape)
    if array.dtype == np.uint8:
        return ir.DenseElementsAttr.get(array, type=ir.IntegerType.get_unsigned(8), shape=array.shape)
    return ir.DenseElementsAttr.get(array)
