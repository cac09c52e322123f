"""Reads MLIR into `program.py`'s plain data. Imports jaxlib, which carries MLIR."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, stablehlo

from hloracle.core.bindings import names_read
from hloracle.core.errors import InputError
from hloracle.semantics.numbers import Unsupported, from_bytes
from hloracle.semantics.program import Block, Operation, Program, Type

UNREADABLE = "an attribute that MLIR's bindings do not read"
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([\w<>:]+)(?:, [^>]*)?>")
_ENUM = re.compile(r"#(?:stablehlo|chlo)<\w+ (\w+)>")
_GATHER = (
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map",
    "index_vector_dim",
)  # fmt: skip
_SCATTER = (
    "update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
    "scattered_dims_to_operand_dims", "index_vector_dim",
)  # fmt: skip
_CONVOLUTION = (
    "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions", "kernel_input_feature_dimension",
    "kernel_output_feature_dimension", "kernel_spatial_dimensions", "output_batch_dimension",
    "output_feature_dimension", "output_spatial_dimensions",
)  # fmt: skip
_DOT = (
    "lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions", "rhs_contracting_dimensions",
)  # fmt: skip
# Nested attributes: MLIR's class, and the names of what it holds.
_NESTED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (stablehlo.GatherDimensionNumbers, _GATHER), (stablehlo.ScatterDimensionNumbers, _SCATTER),
    (stablehlo.ConvDimensionNumbers, _CONVOLUTION), (stablehlo.DotDimensionNumbers, _DOT),
    (chlo.RaggedDotDimensionNumbers, (
        "lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions",
        "rhs_contracting_dimensions", "lhs_ragged_dimensions", "rhs_group_dimensions",
    )),
)  # fmt: skip


def read(text: str | bytes, name: str = "the module") -> Program:
    """The functions of a module, as text or as bytecode. Raises InputError where it does not parse."""
    with jax_mlir.make_ir_context():
        try:
            module = ir.Module.parse(text)
        except (ir.MLIRError, ValueError) as error:
            raise InputError(
                f"does not parse ({' '.join(str(error).split())[:200]})", name, "see StableHLO's specification"
            ) from None
        with names_read(name):
            return program_of(module)


def program_of(module: Any) -> Program:
    """The functions of a parsed module. To be called within its context."""
    functions = (op for op in module.body.operations if op.operation.name == "func.func" and len(op.regions[0].blocks))
    return Program({f.attributes["sym_name"].value: Reader().block(f.regions[0].blocks[0]) for f in functions})


class Reader:
    """Numbers the values of one function.

    numbers: MLIR's value -> its number.
    """

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def block(self, block: Any) -> Block:
        """A block whose last operation returns what it gives."""
        arguments = tuple(self._number(a) for a in block.arguments)
        types = tuple(type_of(a) for a in block.arguments)
        *operations, end = block.operations
        read = tuple(self.operation(o) for o in operations)
        return Block(arguments, types, read, tuple(self.numbers[v] for v in end.operands))

    def operation(self, operation: Any) -> Operation:
        """One operation, its regions too."""
        operands = tuple(self.numbers[v] for v in operation.operands)
        regions = tuple(self.block(b) for region in operation.regions for b in region.blocks)
        results = tuple(self._number(r) for r in operation.results)
        types = tuple(type_of(r) for r in operation.results)
        given = tuple(type_of(v) for v in operation.operands)
        return Operation(operation.operation.name, operands, results, types, attributes_of(operation), regions, given)

    def _number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def type_of(value: Any) -> Type:
    """The type of MLIR's value."""
    found = _TENSOR.fullmatch(str(value.type))
    return Type(tuple(int(n) for n in found[1].split("x") if n), found[2]) if found else Type((), "", str(value.type))


def attributes_of(operation: Any) -> Mapping[str, Any]:
    """An operation's attributes as Python's values."""
    return _named(operation.attributes)


def _named(attributes: Any) -> dict[str, Any]:
    names = [one if isinstance(one, str) else _name(one) for one in attributes]
    return {name: _at(attributes, name) for name in names}


def _name(attribute: Any) -> str:
    """That of a named attribute, as a dictionary has them, and an operation of older jaxlib."""
    repr(attribute)  # raises RuntimeError for a name that is no UTF-8; asked for it, the bindings end the process
    return str(attribute.name)


def _at(attributes: Any, name: str) -> Any:
    try:
        attribute = attributes[name]
    except TypeError:  # of complex numbers MLIR's bindings give no attribute: only what takes it has to know it
        return UNREADABLE
    return _python(attribute)


def _python(attribute: Any) -> Any:
    for kind, take in _SIMPLE:
        if isinstance(attribute, kind):
            try:
                return take(attribute)
            # Such as the layouts of a custom_call's operands: only what takes them has to know them.
            except Unsupported:
                return str(attribute)
    for kind, names in _NESTED:
        if kind.isinstance(attribute):
            held = kind(attribute)
            return {name: _plain(getattr(held, name)) for name in names}
    text = str(attribute)
    found = _ENUM.fullmatch(text)
    return found[1] if found else text


def _plain(held: Any) -> Any:
    return held if isinstance(held, int) else tuple(int(n) for n in held)


def _elements(attribute: Any) -> np.ndarray:
    """The numbers of a dense constant, in the type that `numbers.py` holds them in."""
    type = ir.RankedTensorType(attribute.type)
    shape, dtype = tuple(type.shape), str(type.element_type)
    raw = from_bytes(attribute, dtype)
    return np.array(np.broadcast_to(raw.reshape(()), shape)) if attribute.is_splat else raw.reshape(shape)


def _text(attribute: Any) -> str:
    """A string, or a symbol; as MLIR prints it where it is no UTF-8, such as the bytes of a custom_call."""
    try:
        return str(attribute.value)
    except RuntimeError:  # of the bindings, which make no string of it
        return str(attribute)


def _array(attribute: Any) -> Any:
    return tuple(_python(a) for a in attribute)


_SIMPLE: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (ir.DenseI64ArrayAttr, lambda a: tuple(int(n) for n in a)), (ir.DenseI32ArrayAttr, lambda a: tuple(int(n) for n in a)),
    (ir.DenseBoolArrayAttr, lambda a: tuple(bool(n) for n in a)), (ir.BoolAttr, lambda a: bool(a.value)),
    (ir.IntegerAttr, lambda a: int(a.value)), (ir.FloatAttr, lambda a: float(a.value)), (ir.StringAttr, _text),
    (ir.FlatSymbolRefAttr, _text), (ir.ArrayAttr, _array), (ir.DenseElementsAttr, _elements),
    (ir.TypeAttr, lambda a: str(a.value)), (ir.DictAttr, _named),
)  # fmt: skip
