"""The StableHLO reference interpreter, which is in jaxlib: `python interpreter_worker.py`. See serving.py.

It says what a graph means: each operation is evaluated as its specification says it, element by element. It ends the
process at an operation that it lacks.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # run by its path, it finds its neighbours in its folder
    from hloracle.backends.workers.serving import Failed, Runtime, serve
    from hloracle.backends.workers.shared import ENTRY, entered_at_main
else:
    from serving import Failed, Runtime, serve
    from shared import ENTRY, entered_at_main


class Interpreter(Runtime):
    """Evaluates a graph without compiling it."""

    def __init__(self) -> None:
        from jax._src.interpreters import mlir
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        self._ir, self._stablehlo = ir, stablehlo
        self._context = mlir.make_ir_context()
        stablehlo.register_interpreter_dialect(self._context)

    def describe(self) -> dict[str, str]:
        """See `Runtime`."""
        return {"name": "StableHLO interpreter", "family": "stablehlo", "version": metadata.version("jaxlib")}

    def load(self, path: Path, function: str, flags: list[str]) -> Any:
        """The module, whose `main` is evaluated."""
        try:
            with self._context:
                module = entered_at_main(self._ir, self._ir.Module.parse(path.read_text()), function)
                return module, self._widened(module)
        except self._ir.MLIRError as error:
            raise Failed("load", str(error)) from error

    def _widened(self, module: Any) -> list[bool]:
        """Have `main` return float32 for bfloat16, which MLIR's bindings cannot read; which of its results are so."""
        ir: Any = self._ir
        main = ir.SymbolTable(module.operation)[ENTRY]
        returned = main.entry_block.operations[len(main.entry_block.operations) - 1]
        types = [value.type for value in returned.operands]
        narrow = [str(type.element_type) == "bf16" for type in types]
        for i in np.flatnonzero(narrow):
            types[i] = ir.RankedTensorType.get(types[i].shape, ir.F32Type.get(), loc=ir.Location.unknown())
            with ir.InsertionPoint(returned), ir.Location.unknown():
                returned.operands[int(i)] = self._stablehlo.ConvertOp(types[i], returned.operands[int(i)]).result
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(main.type.inputs, types))
        return narrow

    def call(self, program: Any, arguments: list[np.ndarray]) -> list[np.ndarray]:
        """Evaluate the module."""
        module, narrow = program
        said: list[str] = []

        def note(diagnostic: Any) -> bool:
            said.append(diagnostic.message)
            return True  # it goes no further: not to stderr

        with self._context:
            handler: Any = self._context.attach_diagnostic_handler(note)
            try:
                given = [self._attribute(array) for array in arguments]
                found = [self._array(attribute) for attribute in self._stablehlo.eval_module(module, given)]
                return [
                    _bfloat16(array) if is_narrow else array for array, is_narrow in zip(found, narrow, strict=True)
                ]
            except Exception as error:  # it raises RuntimeError and ValueError
                raise Failed("run", "; ".join([str(error), *said])) from error
            finally:
                handler.detach()

    def _attribute(self, array: np.ndarray) -> Any:
        """MLIR's bindings know no bfloat16 of NumPy's, and take unsigned numbers for signless ones."""
        attribute: Any = self._ir.DenseElementsAttr
        array = np.asarray(array, order="C")  # not ascontiguousarray, which makes a vector of a scalar
        if array.dtype.name == "bfloat16":
            return attribute.get(array.view(np.uint16), type=self._ir.BF16Type.get(), shape=array.shape)
        if array.dtype.kind == "u":
            type = self._ir.IntegerType.get_unsigned(8 * array.dtype.itemsize)
            return attribute.get(array, type=type, shape=array.shape)
        return attribute.get(array)

    def _array(self, attribute: Any) -> np.ndarray:
        return np.array(attribute).reshape(self._ir.RankedTensorType(attribute.type).shape)

    def upload(self, array: np.ndarray) -> np.ndarray:
        """A copy."""
        return np.array(array)

    def keep(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array

    def download(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array


def _bfloat16(array: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return array.astype(ml_dtypes.bfloat16)


if __name__ == "__main__":
    serve(Interpreter)
