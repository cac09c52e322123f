"""Writes operations into a parsed graph, at its end. Imports jaxlib, which carries MLIR."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.core.abi import Graph
from hloracle.localize.text import anchor_at, function_named

Value = Any  # of MLIR; its bindings are not typed


class Writer:
    """Puts operations between those that make a graph's results and its return. They have no location.

    Methods are named as the operations that they write; starts are numbers, or scalars of the graph. Raises MLIRError
    where the graph does not parse.
    """

    def __init__(self, graph: Graph) -> None:
        self.abi, self._graph = graph.abi, graph
        self._context = jax_mlir.make_ir_context()
        with self._context:
            self._module = ir.Module.parse(graph.text)
        self._function = function_named(self._module, graph.abi.function)
        self._block = self._function.regions[0].blocks[0]
        *self._operations, self._end = self._block.operations

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What follows is written to this graph."""
        with self._context, ir.Location.unknown(), ir.InsertionPoint(self._end):
            yield

    def graph(self) -> Graph:
        """What the graph has become, of the same ABI."""
        self._module.operation.verify()
        text = self._module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False, use_local_scope=True)
        return dataclasses.replace(self._graph, text=str(text))

    # ---- what is there

    def argument(self, role: str) -> Value:
        """The graph's argument of a role."""
        return self._block.arguments[self.abi.argument(role)]

    def result(self, role: str) -> Value:
        """The value that the graph returns as the result of a role."""
        return self._end.operands[self.abi.result(role)]

    def give(self, role: str, value: Value) -> None:
        """Return this as the result of that role."""
        self._end.operands[self.abi.result(role)] = value

    def scope(self, anchor: str) -> Value:
        """What the last operation of a scope makes."""
        return [o for o in self._operations if anchor_at(o) == anchor][-1].results[0]

    def donate(self, argument: int, result: int | None) -> None:
        """Say that an argument's buffer becomes that of a result, or of none."""
        i32 = ir.IntegerType.get_signless(32)
        self._annotate(argument, "tf.aliasing_output", None if result is None else ir.IntegerAttr.get(i32, result))

    def take(self, argument: int, result: int) -> None:
        """The same as JAX says it where it leaves to XLA which result that is."""
        self._annotate(argument, "jax.buffer_donor", ir.BoolAttr.get(True))

    def alias(self, argument: int, result: int) -> None:
        """The same in the way that XLA's own modules say it."""
        alias = f'kind = "may_alias", parameter_index = array<i64>, parameter_number = {argument} : i64'
        entry = f"{{alias = {{{alias}}}, output_index = array<i64: {result}>}}"
        self._module.operation.attributes["mhlo.input_output_alias"] = ir.Attribute.parse(f"[{entry}]")

    def _annotate(self, argument: int, name: str, value: Any) -> None:
        attributes = self._function.attributes
        of_each = [ir.DictAttr.get({})] * len(self._block.arguments)
        if "arg_attrs" in attributes:
            of_each = list(attributes["arg_attrs"])
        own = {a.name: a.attr for a in cast(Any, of_each[argument]) if a.name != name}
        of_each[argument] = ir.DictAttr.get(own if value is None else own | {name: value})
        attributes["arg_attrs"] = ir.ArrayAttr.get(of_each)

    # ---- operations

    def constant(self, number: float, like: Value) -> Value:
        """A tensor like this one, of one number."""
        type = ir.RankedTensorType(like.type)
        of = ir.FloatAttr.get if isinstance(type.element_type, ir.FloatType) else ir.IntegerAttr.get
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(type, of(type.element_type, number)))

    def compare(self, value: Value, direction: str, other: Value | float) -> Value:
        """direction: EQ, NE, LT, LE, GT or GE. other: of the same shape, a scalar, or a number."""
        if isinstance(other, int | float):
            return self.compare(value, direction, self.constant(other, value))
        if other.type != value.type:
            other = stablehlo.broadcast_in_dim(value.type, other, [])
        return stablehlo.compare(value, other, stablehlo.ComparisonDirectionAttr.get(direction))

    def iota(self, like: Value) -> Value:
        """i32 [N], the index of each element of a vector."""
        shape = ir.RankedTensorType(like.type).shape
        return stablehlo.iota(ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32)), 0)

    def reduce(self, value: Value, initial: float, combine: Callable[[Value, Value], Value]) -> Value:
        """A vector's elements, combined to a scalar."""
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type)
        first = self._scalar(initial, scalar.element_type)
        operation = stablehlo.ReduceOp([scalar], [value], [first], [0])
        with ir.InsertionPoint(operation.regions[0].blocks.append(scalar, scalar)) as point:
            stablehlo.return_([combine(*point.block.arguments)])
        return operation.results[0]

    def slice(self, value: Value, starts: Sequence[Value | int], sizes: Sequence[int]) -> Value:
        """The part of a tensor that begins at `starts` and has these sizes."""
        return stablehlo.dynamic_slice(value, self._starts(starts), sizes)

    def element(self, value: Value, *index: Value | int) -> Value:
        """One of its elements, a scalar."""
        of = ir.RankedTensorType(value.type).element_type
        return stablehlo.reshape(ir.RankedTensorType.get([], of), self.slice(value, index, [1] * len(index)))

    def update(self, value: Value, part: Value, starts: Sequence[Value | int]) -> Value:
        """The same tensor with this part of it instead."""
        return stablehlo.dynamic_update_slice(value, part, self._starts(starts))

    def uniform(self, limit: float, like: Value) -> Value:
        """Random numbers in [0, limit), others in each call, like a tensor."""
        type = ir.RankedTensorType(like.type)
        low, high = (self._scalar(end, type.element_type) for end in (0.0, limit))
        sizes: Any = np.array(type.shape, np.int64)
        shape = stablehlo.constant(ir.DenseElementsAttr.get(sizes))
        return stablehlo.rng(low, high, shape, stablehlo.RngDistributionAttr.get("UNIFORM"), results=[type])

    def _starts(self, starts: Sequence[Value | int]) -> list[Value]:
        i32 = ir.IntegerType.get_signless(32)
        return [self._scalar(n, i32) if isinstance(n, int) else n for n in starts]

    def _scalar(self, number: float, type: Any) -> Value:
        of = ir.FloatAttr.get if isinstance(type, ir.FloatType) else ir.IntegerAttr.get
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([], type), of(type, number)))
