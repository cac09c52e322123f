"""A small graph with the values of its arguments, and a parsed copy of it that is edited into another one."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from hloracle.core.abi import DTYPE_BYTES, Abi, Graph, Tensor
from hloracle.localize.inline import callee_of, inline_calls, nested
from hloracle.localize.text import TYPE, function_named

FUNCTION = "main"
CONSTANT = "stablehlo.constant"


@dataclass(frozen=True)
class Case:
    """A graph of one function `main`, and what it is given.

    inputs: the value of each argument, by its name, in the arguments' order; none where it is about compiling alone.
    result: which of the results is looked at.
    """

    graph: Graph
    inputs: Mapping[str, np.ndarray] = field(repr=False)
    result: int = 0

    @property
    def operations(self) -> int:
        """How many it has, but for the return."""
        with edited(self) as draft:
            return len(draft.operations)

    @property
    def dimensions(self) -> list[int]:
        """The sizes that its values have, the largest first."""
        with edited(self) as draft:
            return sorted({n for value in draft.values for n in shape_of(value)}, reverse=True)


@functools.cache
def _context() -> Any:
    return jax_mlir.make_ir_context()


@contextmanager
def edited(case: Case) -> Iterator[Draft]:
    """A draft of a case, within its MLIR context. What MLIR refuses in it is an ir.MLIRError."""
    with _context(), ir.Location.unknown():
        yield Draft(case)


class Draft:
    """A parsed copy of a case's graph. Whoever edits it sets `inputs` to what its arguments are then given.

    names: of the arguments. result: which of the results is looked at.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._module = ir.Module.parse(case.graph.text)
        inline_calls(self._module, case.graph.abi.function)
        self.function = function_named(self._module, case.graph.abi.function)
        self.block = self.function.regions[0].blocks[0]
        self.names = [a.name for a in case.graph.abi.arguments]
        self.inputs = dict(case.inputs)
        self.result = case.result

    @property
    def operations(self) -> list[Any]:
        """In order, without the return."""
        return list(self.block.operations)[:-1]

    @property
    def end(self) -> Any:
        """The return."""
        return list(self.block.operations)[-1]

    @property
    def values(self) -> list[Any]:
        """What has a type: the arguments, then the operations' results."""
        return [*self.block.arguments, *(r for operation in self.operations for r in operation.results)]

    @property
    def returned(self) -> Any:
        """The value that is looked at."""
        return self.end.operands[self.result]

    def takes(self, value: Any, array: np.ndarray | None) -> None:
        """Let an argument stand for a value."""
        count = len(self.names)
        self.names.append(next(n for n in (f"v{i}" for i in range(count, 2 * count + 1)) if n not in self.names))
        argument = self.block.add_argument(value.type, ir.Location.unknown())
        value.replace_all_uses_with(argument)
        if array is not None:
            self.inputs[self.names[-1]] = array

    def returns(self, values: Sequence[Any], result: int) -> None:
        """Let the graph return these values, and look at one of them."""
        old = self.end
        with ir.InsertionPoint(old):
            func.ReturnOp(list(values))
        old.operation.erase()
        self.result = result

    def finished(self) -> Case:
        """What the draft has become, without what its results do not depend on. Raises ir.MLIRError where it is no graph."""
        self._drop_operations()
        self._drop_arguments()
        self._drop_functions()
        arguments, results = list(self.block.arguments), list(self.end.operands)
        attributes: Any = self.function.attributes
        attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([a.type for a in arguments], [r.type for r in results])
        )
        for name in ("arg_attrs", "res_attrs"):  # of arguments and results that there were before
            if name in attributes:
                del attributes[name]
        if attributes["sym_name"].value != FUNCTION:
            ir.SymbolTable.set_symbol_name(self.function, FUNCTION)
        self._module.operation.verify()
        text = str(self._module.operation.get_asm(assume_verified=True))
        abi = Abi(
            self._case.graph.abi.phase,
            tuple(_tensor(n, a) for n, a in zip(self.names, arguments, strict=True)),
            tuple(_tensor(f"result{i}", r) for i, r in enumerate(results)),
        )
        inputs = {name: self.inputs[name] for name in self.names if name in self.inputs}
        return Case(Graph("shrunk", text, abi, self._case.graph.flags), inputs, self.result)

    def _drop_operations(self) -> None:
        for operation in reversed(self.operations):
            if not any(len(list(r.uses)) for r in operation.results):
                operation.operation.erase()

    def _drop_arguments(self) -> None:
        for i in reversed(range(len(self.names))):
            if not list(self.block.arguments[i].uses):
                self.block.erase_argument(i)
                self.inputs.pop(self.names.pop(i), None)

    def _drop_functions(self) -> None:
        name = self.function.attributes["sym_name"].value
        called, todo = {name}, [name]
        while todo:
            for operation in nested(function_named(self._module, todo.pop())):
                if (callee := callee_of(operation)) and callee not in called:
                    called.add(callee)
                    todo.append(callee)
        others: list[Any] = list(self._module.body.operations)
        for other in others:
            if other.attributes["sym_name"].value not in called:
                other.operation.erase()


def shape_of(value: Any) -> tuple[int, ...]:
    """Of a tensor; empty for any other value."""
    found = TYPE.fullmatch(str(value.type))
    return tuple(int(n) for n in found[1].split("x") if n) if found else ()


def dtype_in(value: Any) -> str:
    """What an ABI calls the type of its elements; empty for what no graph is given, such as a tuple."""
    found = TYPE.fullmatch(str(value.type))
    return found[2] if found and found[2] in DTYPE_BYTES else ""


def giveable(value: Any) -> bool:
    """Whether it can be an argument or a result of any reproducer: NumPy's files have no bfloat16."""
    return dtype_in(value) not in ("", "bf16")


def numbers_of(operation: Any) -> np.ndarray | None:
    """A constant's array; None where NumPy has no such numbers."""
    attribute = operation.attributes["value"]
    try:
        dense: Any = ir.DenseElementsAttr(attribute)
        if dense.is_splat:
            shape: Any = shape_of(operation.results[0])
            return np.full(shape, dense.get_splat_value().value)
        return np.array(attribute)
    except (TypeError, ValueError, AttributeError):
        return None


def constant_of(array: np.ndarray, like: Any) -> Any:
    """The attribute of a constant with these numbers, of a type's elements; equal numbers are written once."""
    element = ir.RankedTensorType(like).element_type
    type = ir.RankedTensorType.get(array.shape, element)
    first = array.ravel()[0] if array.size else None
    if first is not None and (array == first).all():
        floats = str(element) in ("f64", "f32", "f16", "bf16")
        one = ir.FloatAttr.get(element, float(first)) if floats else ir.IntegerAttr.get(element, int(first))
        return ir.DenseElementsAttr.get_splat(type, one)
    whole: Any = np.asarray(array, order="C")
    return ir.DenseElementsAttr.get(whole, type=element, shape=list(array.shape))


def _tensor(name: str, value: Any) -> Tensor:
    return Tensor("tap", name, shape_of(value), dtype_in(value))
