"""The StableHLO reference interpreter, which is in jaxlib: `python interpreter_worker.py`. See serving.py.

It says what a graph means: each operation is evaluated as its specification says it, element by element. It ends the
process at an operation that it lacks.
"""

from importlib import metadata

import numpy as np
from serving import Failed, Runtime, end_with_parent, serve


class Interpreter(Runtime):
    """Evaluates a graph without compiling it."""

    def __init__(self):
        from jax._src.interpreters import mlir
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        self._ir, self._stablehlo = ir, stablehlo
        self._context = mlir.make_ir_context()
        stablehlo.register_interpreter_dialect(self._context)

    def describe(self):
        return {"name": "StableHLO interpreter", "family": "stablehlo", "version": metadata.version("jaxlib")}

    def load(self, path, function, flags):
        try:
            module = self._ir.Module.parse(path.read_text(), self._context)
        except self._ir.MLIRError as error:
            raise Failed("load", str(error)) from error
        symbols = self._ir.SymbolTable(module.operation)
        if function != "main":  # the function that it evaluates
            self._ir.SymbolTable.set_symbol_name(symbols[function], "main")
        return module

    def call(self, program, arguments):
        with self._context:
            given = [self._attribute(array) for array in arguments]
            return [self._array(attribute) for attribute in self._stablehlo.eval_module(program, given)]

    def _attribute(self, array):
        if array.dtype.name == "bfloat16":
            type = self._ir.RankedTensorType.get(array.shape, self._ir.BF16Type.get())
            return self._ir.DenseElementsAttr.get(array.view(np.uint16), type=type)
        return self._ir.DenseElementsAttr.get(np.ascontiguousarray(array).reshape(array.shape))

    def _array(self, attribute):
        type = self._ir.RankedTensorType(attribute.type)
        found = np.array(attribute)
        return found.reshape(type.shape)

    def upload(self, array):
        return np.array(array)

    def download(self, array):
        return array


if __name__ == "__main__":
    end_with_parent()
    serve(Interpreter())
