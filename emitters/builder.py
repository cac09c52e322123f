"""Writes StableHLO text. A method per operation of the spec, which infers the result's type and checks the constraints.

Method names are the spec's operations, keywords its attributes, and an error carries the
number that the spec (https://openxla.org/stablehlo/spec) gives the constraint that was broken.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hloracle.core.abi import Abi, Graph, Origin

FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i8", "ui8")
LARGEST = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895313892515355e38}
# MLIR writes infinities as bits: plus, minus.
INFINITY = {
    "f64": ("0x7FF0000000000000", "0xFFF0000000000000"),
    "f32": ("0x7F800000", "0xFF800000"),
    "f16": ("0x7C00", "0xFC00"),
    "bf16": ("0x7F80", "0xFF80"),
}
INTEGER_RANGE = {
    "i64": (-(2**63), 2**63 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i8": (-128, 127),
    "ui8": (0, 255),
    "i1": (0, 1),
}
REDUCERS = ("add", "maximum", "minimum", "multiply")
MOST_ORIGINS = 5  # lines of Python that are kept of an operation
COMPARISONS = ("EQ", "NE", "GE", "GT", "LE", "LT")


@dataclass(frozen=True)
class TensorType:
    """A ranked tensor of static shape."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"


@dataclass(frozen=True)
class Value:
    """An SSA value: `name` without the percent sign."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The type of its elements, in MLIR's words."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.type.shape)


class Builder:
    """Appends operations to one function.

    `scope` names the anchor that the operations inside it belong to: it prefixes their SSA names,
    is their MLIR location, and stands in every error. Names restart in each scope, so that one
    insertion does not rename the rest of the file.
    """

    def __init__(self) -> None:
        self.arguments: list[Value] = []
        self._lines: list[str] = []
        self._origins: list[tuple[Origin, ...]] = []  # of each line
        self._function = self._lines, self._origins  # also while a region is written
        self._scope: tuple[str, ...] = ()
        self._taken: dict[str, int] = {}
        self._constants: dict[tuple[str, str], Value] = {}

    # ---- structure

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Enter the anchor `name`, relative to the scope around it."""
        outer, self._scope = self._scope, (*self._scope, name)
        try:
            yield
        finally:
            self._scope = outer

    @property
    def anchor(self) -> str:
        """The anchor that is being written, e.g. `layers.3.self_attn.q_proj`."""
        return ".".join(self._scope)

    def argument(self, type: TensorType, name: str = "") -> Value:
        """The next argument of the function, in the order of the ABI; `name` is what the text calls it."""
        name = name or f"arg{len(self.arguments)}"
        if name in self._taken:
            raise ValueError(f"argument {name}: the name is taken")
        self._taken[name] = 1
        self.arguments.append(Value(name, type))
        return self.arguments[-1]

    def graph(self, name: str, abi: Abi, results: Sequence[Value]) -> Graph:
        """The finished module. `results` in the order of the ABI, with exactly its types."""
        for what, values, tensors in (("argument", self.arguments, abi.arguments), ("result", results, abi.results)):
            if len(values) != len(tensors):
                raise TypeError(f"{name}: {len(values)} {what}s, and the ABI has {len(tensors)}")
            for value, tensor in zip(values, tensors, strict=True):
                wanted = TensorType(tensor.shape, tensor.dtype)
                if value.type != wanted:
                    raise TypeError(f"{name}: {what} {tensor.name} is {value.type}, and the ABI has {wanted}")
        aliased = {r.aliases: i for i, r in enumerate(abi.results) if r.aliases is not None}
        lines = [f"module @{name} {{", f"  func.func public @{abi.function}("]
        for i, value in enumerate(self.arguments):
            # XLA and IREE both read this attribute as "the caller gives this buffer away".
            alias = f" {{tf.aliasing_output = {aliased[i]} : i32}}" if i in aliased else ""
            comma = "," if i + 1 < len(self.arguments) else ""
            lines.append(f"    %{value.name}: {value.type}{alias}{comma}")
        lines.append(f"  ) -> ({', '.join(str(r.type) for r in results)}) {{")
        lines += self._lines
        names, types = ", ".join(f"%{r.name}" for r in results), ", ".join(str(r.type) for r in results)
        lines += [f"    func.return {names} : {types}", "  }", "}", ""]
        first = lines.index(self._lines[0]) + 1 if self._lines else 0
        return Graph(name, "\n".join(lines), abi, origins=dict(enumerate(self._origins, first)))

    # ---- constants

    def constant(self, value: float | int, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A splat. Equal constants are written once per function, at their first use.

        C1 also refuses what MLIR's parser would let through changed: a NaN, a fraction as an integer, an
        integer that wraps, a finite float that becomes infinite.
        """
        if dtype in FLOATS:
            fits = abs(value) <= LARGEST[dtype] or math.isinf(value)
        else:
            smallest, largest = INTEGER_RANGE[dtype]
            fits = smallest <= value <= largest and value == int(value)
        self._check("constant", "C1", fits, f"value={value} is not of type {dtype}")
        if dtype == "i1":
            literal = "true" if value else "false"
        elif dtype not in FLOATS:
            literal = str(int(value))
        elif math.isinf(value):
            literal = INFINITY[dtype][value < 0]
        else:
            literal = repr(float(value))
            if "." not in literal:
                literal = literal.replace("e", ".0e")  # MLIR wants a point in a float literal: 1.0e-05
        return self._constant(literal, TensorType(tuple(shape), dtype))

    def table(self, array: np.ndarray) -> Value:
        """A dense float32 or int32 constant."""
        dtype = {"float32": "f32", "int32": "i32"}.get(array.dtype.name, "")
        self._check("table", "C1", bool(dtype), f"{array.dtype.name} is not float32 or int32")
        data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        return self._constant(f'"0x{data.hex().upper()}"', TensorType(array.shape, dtype))

    def _constant(self, literal: str, type: TensorType) -> Value:
        key = (literal, str(type))
        if key not in self._constants:
            # In the function, also for what is first used in a region: others may use it as well.
            scope, region = self._scope, (self._lines, self._origins)
            self._scope, (self._lines, self._origins) = (), self._function
            self._constants[key] = self._append("constant", "c", type, f"dense<{literal}> : {type}")
            self._scope, (self._lines, self._origins) = scope, region
        return self._constants[key]

    # ---- elementwise

    def add(self, lhs: Value, rhs: Value) -> Value:
        """lhs + rhs; of i1 the logical or."""
        return self._binary("add", lhs, rhs)

    def subtract(self, lhs: Value, rhs: Value) -> Value:
        """lhs - rhs."""
        return self._binary("subtract", lhs, rhs, (*FLOATS, *INTEGERS))

    def multiply(self, lhs: Value, rhs: Value) -> Value:
        """lhs * rhs; of i1 the logical and."""
        return self._binary("multiply", lhs, rhs)

    def divide(self, lhs: Value, rhs: Value) -> Value:
        """lhs / rhs; integers are rounded toward zero."""
        return self._binary("divide", lhs, rhs, (*FLOATS, *INTEGERS))

    def remainder(self, lhs: Value, rhs: Value) -> Value:
        """What `divide` leaves of lhs, with the sign of lhs."""
        return self._binary("remainder", lhs, rhs, (*FLOATS, *INTEGERS))

    def maximum(self, lhs: Value, rhs: Value) -> Value:
        """The larger of each pair of elements."""
        return self._binary("maximum", lhs, rhs)

    def minimum(self, lhs: Value, rhs: Value) -> Value:
        """The smaller of each pair of elements."""
        return self._binary("minimum", lhs, rhs)

    def abs(self, operand: Value) -> Value:
        """The magnitude of each element."""
        return self._unary("abs", operand)

    def round_nearest_even(self, operand: Value) -> Value:
        """Each element rounded to the nearest whole number, a tie to the even one."""
        return self._unary("round_nearest_even", operand)

    def exponential(self, operand: Value) -> Value:
        """e to the power of each element."""
        return self._unary("exponential", operand)

    def logistic(self, operand: Value) -> Value:
        """1 / (1 + exp(-x)) of each element."""
        return self._unary("logistic", operand)

    def rsqrt(self, operand: Value) -> Value:
        """The reciprocal square root of each element."""
        return self._unary("rsqrt", operand)

    def tanh(self, operand: Value) -> Value:
        """The hyperbolic tangent of each element."""
        return self._unary("tanh", operand)

    def and_(self, lhs: Value, rhs: Value) -> Value:
        """The spec's `and`: bitwise of integers, logical of i1."""
        return self._binary("and", lhs, rhs, (*INTEGERS, "i1"))

    def shift_right_logical(self, lhs: Value, rhs: Value) -> Value:
        """lhs shifted right by rhs bits; zeros move in."""
        return self._binary("shift_right_logical", lhs, rhs, INTEGERS)

    def convert(self, operand: Value, dtype: str) -> Value:
        """The elements as another type."""
        type = TensorType(operand.shape, dtype)
        return self._append("convert", "as", type, f"%{operand.name} : ({operand.type}) -> {type}")

    def compare(self, lhs: Value, rhs: Value, comparison_direction: str) -> Value:
        """i1 tensor; floats compare as FLOAT (a NaN equals nothing), integers as SIGNED or UNSIGNED."""
        op = "compare"
        self._check(op, "C1", lhs.dtype == rhs.dtype, f"element types differ, lhs={lhs.type}, rhs={rhs.type}")
        self._check(op, "C2", lhs.shape == rhs.shape, f"shapes differ, lhs={lhs.type}, rhs={rhs.type}")
        self._check(op, "I3", comparison_direction in COMPARISONS, f"comparison_direction={comparison_direction!r}")
        kind = "FLOAT" if lhs.dtype in FLOATS else "UNSIGNED" if lhs.dtype in ("i1", "ui8") else "SIGNED"
        type = TensorType(lhs.shape, "i1")
        body = f"{comparison_direction}, %{lhs.name}, %{rhs.name}, {kind} : ({lhs.type}, {rhs.type}) -> {type}"
        return self._append(op, "cmp", type, body)

    def select(self, pred: Value, on_true: Value, on_false: Value) -> Value:
        """on_true where pred is true, on_false elsewhere; pred is a scalar or has their shape."""
        op = "select"
        self._check(op, "I1", pred.dtype == "i1", f"pred={pred.type} is not i1")
        fits, types = pred.shape in ((), on_true.shape), f"on_true={on_true.type}, on_false={on_false.type}"
        self._check(op, "C1", fits, f"shapes differ, pred={pred.type}, on_true={on_true.type}")
        self._check(op, "C2", on_true.type == on_false.type, f"types differ, {types}")
        body = f"%{pred.name}, %{on_true.name}, %{on_false.name} : {pred.type}, {on_true.type}"
        return self._append(op, "sel", on_true.type, body)

    def iota(self, shape: Sequence[int], dtype: str, iota_dimension: int = 0) -> Value:
        """The index of each element along iota_dimension."""
        type = TensorType(tuple(shape), dtype)
        exists = 0 <= iota_dimension < len(type.shape)
        self._check("iota", "C1", exists, f"iota_dimension={iota_dimension}, output={type}")
        return self._append("iota", "iota", type, f"dim = {iota_dimension} : {type}")

    def optimization_barrier(self, operand: Value) -> Value:
        """The operand itself, which a compiler must have computed here: it fuses nothing across."""
        return self._append("optimization_barrier", "b", operand.type, f"%{operand.name} : {operand.type}")

    # ---- shape

    def reshape(self, operand: Value, shape: Sequence[int]) -> Value:
        """The same elements, row-major, in another shape. Nothing is written where the shape is the same."""
        type = TensorType(tuple(shape), operand.dtype)
        same = math.prod(operand.shape) == math.prod(type.shape)
        self._check("reshape", "C2", same, f"element counts differ, operand={operand.type}, result={type}")
        if type == operand.type:
            return operand
        return self._append("reshape", "r", type, f"%{operand.name} : ({operand.type}) -> {type}")

    def broadcast_in_dim(self, operand: Value, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Value:
        """The operand repeated; its axis i becomes axis broadcast_dimensions[i] of the result."""
        op, type, dims = "broadcast_in_dim", TensorType(tuple(shape), operand.dtype), tuple(broadcast_dimensions)
        self._check(op, "C2", len(dims) == operand.rank, f"broadcast_dimensions={list(dims)}, operand={operand.type}")
        exist = all(0 <= d < len(type.shape) for d in dims)
        self._check(op, "C3", exist, f"broadcast_dimensions={list(dims)}, result={type}")
        self._check(op, "C4", len(set(dims)) == len(dims), f"broadcast_dimensions={list(dims)} repeat")
        for i, d in enumerate(dims):
            sizes = f"operand[{i}]={operand.shape[i]}, result[{d}]={type.shape[d]}"
            self._check(op, "C5", operand.shape[i] in (1, type.shape[d]), f"sizes differ, {sizes}")
        if type == operand.type and dims == tuple(range(operand.rank)):  # other dims exchange axes of equal size
            return operand
        body = f"%{operand.name}, dims = {list(dims)} : ({operand.type}) -> {type}"
        return self._append(op, "bc", type, body)

    def transpose(self, operand: Value, permutation: Sequence[int]) -> Value:
        """Axis i of the result is axis permutation[i] of the operand."""
        valid = sorted(permutation) == list(range(operand.rank))
        self._check("transpose", "C2", valid, f"permutation={list(permutation)}, operand={operand.type}")
        type = TensorType(tuple(operand.shape[p] for p in permutation), operand.dtype)
        body = f"%{operand.name}, dims = {list(permutation)} : ({operand.type}) -> {type}"
        return self._append("transpose", "t", type, body)

    def reverse(self, operand: Value, dimensions: Sequence[int]) -> Value:
        """The elements in reverse order along these axes."""
        self._check("reverse", "C2", len(set(dimensions)) == len(dimensions), f"dimensions={list(dimensions)} repeat")
        inside = all(0 <= d < operand.rank for d in dimensions)
        self._check("reverse", "C3", inside, f"dimensions={list(dimensions)}, operand={operand.type}")
        body = f"%{operand.name}, dims = {list(dimensions)} : {operand.type}"
        return self._append("reverse", "rev", operand.type, body)

    def slice(
        self,
        operand: Value,
        start_indices: Sequence[int],
        limit_indices: Sequence[int],
        strides: Sequence[int] | None = None,
        hint: str = "sl",
    ) -> Value:
        """Strides are 1 unless they are given."""
        op, starts, limits = "slice", len(start_indices), len(limit_indices)
        steps = [1] * starts if strides is None else strides
        counts = f"{starts} start_indices, {limits} limit_indices, {len(steps)} strides, operand={operand.type}"
        self._check(op, "C2", starts == limits == len(steps) == operand.rank, counts)
        bounds = list(zip(start_indices, limit_indices, strict=True))
        inside = all(0 <= a <= b <= n for (a, b), n in zip(bounds, operand.shape, strict=True))
        self._check(op, "C3", inside, f"indices {bounds} leave operand={operand.type}")
        self._check(op, "C4", all(step > 0 for step in steps), f"strides={list(steps)}")
        sizes = [-(-(b - a) // step) for (a, b), step in zip(bounds, steps, strict=True)]
        type = TensorType(tuple(sizes), operand.dtype)
        spans = ", ".join(f"{a}:{b}" + f":{step}" * (step > 1) for (a, b), step in zip(bounds, steps, strict=True))
        return self._append(op, hint, type, f"%{operand.name} [{spans}] : ({operand.type}) -> {type}")

    def concatenate(self, inputs: Sequence[Value], dimension: int) -> Value:
        """The inputs one after another along one axis."""
        op = "concatenate"
        self._check(op, "C3", len(inputs) > 0, "no inputs")
        first = inputs[0]
        names, types = ", ".join(f"%{v.name}" for v in inputs), ", ".join(str(v.type) for v in inputs)
        self._check(op, "C1", len({v.dtype for v in inputs}) == 1, f"element types differ: {types}")
        self._check(op, "C4", 0 <= dimension < first.rank, f"dimension={dimension}, inputs[0]={first.type}")
        rest = {(v.rank, v.shape[:dimension], v.shape[dimension + 1 :]) for v in inputs}
        self._check(op, "C2", len(rest) == 1, f"shapes differ outside dimension {dimension}: {types}")
        total = sum(v.shape[dimension] for v in inputs)
        type = TensorType((*first.shape[:dimension], total, *first.shape[dimension + 1 :]), first.dtype)
        return self._append(op, "cat", type, f"{names}, dim = {dimension} : ({types}) -> {type}")

    def pad(self, operand: Value, padding_value: Value, low: Sequence[int], high: Sequence[int]) -> Value:
        """Interior padding is 0."""
        op = "pad"
        types = f"padding_value={padding_value.type}, operand={operand.type}"
        self._check(op, "I2", padding_value.rank == 0, f"padding_value={padding_value.type} is not a scalar")
        self._check(op, "C1", padding_value.dtype == operand.dtype, f"element types differ, {types}")
        counts = f"{len(low)} low edges, {len(high)} high edges, operand={operand.type}"
        self._check(op, "C2", len(low) == len(high) == operand.rank, counts)
        shape = tuple(n + a + b for n, a, b in zip(operand.shape, low, high, strict=True))
        smaller = f"low={list(low)} and high={list(high)} remove more than operand={operand.type} has"
        self._check(op, "C4", all(n >= 0 for n in shape), smaller)
        type = TensorType(shape, operand.dtype)
        edges = f"low = {list(low)}, high = {list(high)}, interior = {[0] * operand.rank}"
        types = f"({operand.type}, {padding_value.type}) -> {type}"
        return self._append(op, "pad", type, f"%{operand.name}, %{padding_value.name}, {edges} : {types}")

    # ---- indexing

    def dynamic_slice(self, operand: Value, start_indices: Sequence[Value], slice_sizes: Sequence[int]) -> Value:
        """The part that begins at start_indices, which are moved so that it lies inside the operand."""
        op, sizes = "dynamic_slice", tuple(slice_sizes)
        self._starts(op, operand, start_indices)
        self._check(op, "C2", len(sizes) == operand.rank, f"slice_sizes={list(sizes)}, operand={operand.type}")
        fits = all(0 <= a <= n for a, n in zip(sizes, operand.shape, strict=True))
        self._check(op, "C4", fits, f"slice_sizes={list(sizes)} exceed operand={operand.type}")
        type = TensorType(sizes, operand.dtype)
        names = ", ".join(f"%{v.name}" for v in (operand, *start_indices))
        types = ", ".join(str(v.type) for v in (operand, *start_indices))
        return self._append(op, "ds", type, f"{names}, sizes = {list(sizes)} : ({types}) -> {type}")

    def dynamic_update_slice(self, operand: Value, update: Value, start_indices: Sequence[Value]) -> Value:
        """The operand with `update` from start_indices on, which are moved so that it lies inside."""
        op = "dynamic_update_slice"
        types = f"operand={operand.type}, update={update.type}"
        self._check(op, "C2", operand.dtype == update.dtype, f"element types differ, {types}")
        self._check(op, "C3", operand.rank == update.rank, f"ranks differ, {types}")
        self._starts(op, operand, start_indices)
        fits = all(a <= n for a, n in zip(update.shape, operand.shape, strict=True))
        self._check(op, "C6", fits, f"update={update.type} exceeds operand={operand.type}")
        operands = (operand, update, *start_indices)
        names, types = ", ".join(f"%{v.name}" for v in operands), ", ".join(str(v.type) for v in operands)
        return self._append(op, "dus", operand.type, f"{names} : ({types}) -> {operand.type}")

    def gather_rows(self, operand: Value, start_indices: Value) -> Value:
        """`gather` of whole rows: operand [V, ...], indices [T, 1] -> [T, ...]."""
        return self.gather(operand, start_indices, (0,))

    def gather(self, operand: Value, start_indices: Value, start_index_map: Sequence[int]) -> Value:
        """What lies at indices [T, n] of the n dimensions of start_index_map, whole in the other ones: [T, others...].

        Indices of rank 1 would be valid too, but IREE 3.13 then inlines the gather into every consumer; in a
        block, whose residual reads it as well, the fused norm needs more stack from E = 2048 on than IREE allows.
        """
        op, dims = "gather", list(start_index_map)
        self._check(op, "C1", operand.rank > len(dims), f"operand={operand.type} is not a table of rows")
        self._check(op, "I2", start_indices.dtype in INTEGERS, f"start_indices={start_indices.type} is not of integers")
        fits = start_indices.rank == 2 and start_indices.shape[1] == len(dims)
        one = "one index" if len(dims) == 1 else f"{len(dims)} indices"
        self._check(op, "C3", fits, f"start_indices={start_indices.type} is not {one} per row")
        sizes = [1 if i in dims else n for i, n in enumerate(operand.shape)]
        row = [n for i, n in enumerate(operand.shape) if i not in dims]
        type = TensorType((start_indices.shape[0], *row), operand.dtype)
        offsets = ", ".join(map(str, range(1, len(type.shape))))
        numbers = (
            f"offset_dims = [{offsets}], collapsed_slice_dims = {dims}, start_index_map = {dims}, index_vector_dim = 1"
        )
        body = (
            f'"stablehlo.gather"(%{operand.name}, %{start_indices.name}) <{{dimension_numbers = '
            f"#stablehlo.gather<{numbers}>, indices_are_sorted = false, "
            f"slice_sizes = array<i64: {', '.join(map(str, sizes))}>}}> "
            f": ({operand.type}, {start_indices.type}) -> {type}"
        )
        return self._append(op, "rows", type, body, generic=True)

    def scatter_rows(self, operand: Value, scatter_indices: Value, updates: Value) -> Value:
        """`scatter` of whole rows: operand [V, ...] with updates [T, ...] in place of its rows at indices [T, 1], all different
        and lowest first. IREE 3.13 writes outside of the operand where an index is.
        """
        op = "scatter"
        types = f"operand={operand.type}, scatter_indices={scatter_indices.type}, updates={updates.type}"
        fits = scatter_indices.rank == 2 and scatter_indices.shape[1] == 1
        self._check(op, "I2", scatter_indices.dtype in INTEGERS and fits, f"indices are not integers [T, 1], {types}")
        rows = (scatter_indices.shape[0], *operand.shape[1:])
        self._check(op, "C4", updates.shape == rows, f"updates are not {list(rows)}, {types}")
        self._check(op, "C6", operand.dtype == updates.dtype, f"element types differ, {types}")
        window = ", ".join(map(str, range(1, updates.rank)))
        numbers = (
            f"update_window_dims = [{window}], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
            "index_vector_dim = 1"
        )
        scalar = f"tensor<{operand.dtype}>"
        body = (
            f'"stablehlo.scatter"(%{operand.name}, %{scatter_indices.name}, %{updates.name}) <{{'
            f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, indices_are_sorted = true, unique_indices = true}}> "
            f"({{ ^bb0(%old: {scalar}, %new: {scalar}): stablehlo.return %new : {scalar} }}) "
            f": ({operand.type}, {scatter_indices.type}, {updates.type}) -> {operand.type}"
        )
        return self._append(op, "put", operand.type, body, generic=True)

    def _starts(self, op: str, operand: Value, start_indices: Sequence[Value]) -> None:
        sizes, types, inputs = ("C2", "C3", "I2") if op == "dynamic_slice" else ("C4", "C5", "I3")
        count, listed = len(start_indices), ", ".join(str(v.type) for v in start_indices)
        self._check(op, sizes, count == operand.rank, f"{count} start_indices, operand={operand.type}")
        self._check(op, types, len({v.type for v in start_indices}) <= 1, f"start_indices differ in type: {listed}")
        scalar = all(v.rank == 0 and v.dtype in INTEGERS for v in start_indices)
        self._check(op, inputs, scalar, f"start_indices are not integer scalars: {listed}")

    # ---- contraction and reduction

    def dot_general(
        self,
        lhs: Value,
        rhs: Value,
        contracting_dimensions: tuple[Sequence[int], Sequence[int]],
        batching_dimensions: tuple[Sequence[int], Sequence[int]] = ((), ()),
        result: str = "",
    ) -> Value:
        """Result dimensions: batching, then lhs's free ones, then rhs's free ones.

        result: its dtype, in which terms are added up; that of the operands, if not given.
        """
        op = "dot_general"
        (lc, rc), (lb, rb) = contracting_dimensions, batching_dimensions
        self._check(op, "C1", len(lb) == len(rb), f"batching dimensions {list(lb)} and {list(rb)}")
        self._check(op, "C2", len(lc) == len(rc), f"contracting dimensions {list(lc)} and {list(rc)}")
        for side, number, used in (("lhs", "C3", [*lb, *lc]), ("rhs", "C4", [*rb, *rc])):
            self._check(op, number, len(set(used)) == len(used), f"{side} dimensions {used} repeat")
        for number, dims, v in (("C5", lb, lhs), ("C6", lc, lhs), ("C7", rb, rhs), ("C8", rc, rhs)):
            self._check(op, number, all(0 <= d < v.rank for d in dims), f"dimensions {list(dims)} of {v.type}")
        for number, kind, a, b in (("C9", "batching", lb, rb), ("C10", "contracting", lc, rc)):
            for i, j in zip(a, b, strict=True):
                sizes = f"lhs[{i}]={lhs.shape[i]}, rhs[{j}]={rhs.shape[j]}"
                self._check(op, number, lhs.shape[i] == rhs.shape[j], f"{kind} sizes differ, {sizes}")
        self._check(op, "C13", lhs.dtype == rhs.dtype, f"element types differ, lhs={lhs.type}, rhs={rhs.type}")
        free = [n for i, n in enumerate(lhs.shape) if i not in (*lb, *lc)]
        free += [n for i, n in enumerate(rhs.shape) if i not in (*rb, *rc)]
        type = TensorType((*(lhs.shape[i] for i in lb), *free), result or lhs.dtype)
        batching = f"batching_dims = {list(lb)} x {list(rb)}, " if lb else ""
        numbers = f"{batching}contracting_dims = {list(lc)} x {list(rc)}"
        precision = "precision = [HIGHEST, HIGHEST]"  # TF32 and bf16 passes are never taken silently
        body = f"%{lhs.name}, %{rhs.name}, {numbers}, {precision} : ({lhs.type}, {rhs.type}) -> {type}"
        return self._append(op, "dot", type, body)

    def reduce(self, operand: Value, init_value: Value, dimensions: Sequence[int], body: str) -> Value:
        """`body` is the operation applied: one of REDUCERS."""
        op, dims = "reduce", list(dimensions)
        types = f"init_value={init_value.type}, operand={operand.type}"
        self._check(op, "I2", init_value.rank == 0, f"init_value={init_value.type} is not a scalar")
        self._check(op, "C2", init_value.dtype == operand.dtype, f"element types differ, {types}")
        self._check(op, "C4", all(0 <= d < operand.rank for d in dims), f"dimensions={dims}, operand={operand.type}")
        self._check(op, "C5", len(set(dims)) == len(dims), f"dimensions={dims} repeat")
        self._check(op, "I4", body in REDUCERS, f"body={body!r} is not one of {REDUCERS}")
        type = TensorType(tuple(n for i, n in enumerate(operand.shape) if i not in dims), operand.dtype)
        text = (
            f"(%{operand.name} init: %{init_value.name}) applies stablehlo.{body} across dimensions = {dims} "
            f": ({operand.type}, {init_value.type}) -> {type}"
        )
        return self._append(op, "red", type, text)

    # ---- control flow

    def while_(
        self, state: Sequence[Value], cond: Callable[[Sequence[Value]], Value],
        body: Callable[[Sequence[Value]], Sequence[Value]],
    ) -> list[Value]:  # fmt: skip
        """The spec's `while`: body(state) takes the state's place as long as cond(state), a scalar i1, is true.

        Both may use what was computed before.
        """
        types, name, boolean = [v.type for v in state], self._name("loop"), TensorType((), "i1")
        condition, goes_on = self._region("while", "C1", f"{name}.cond", types, lambda s: [cond(s)], [boolean])
        block, step = self._region("while", "C2", f"{name}.body", types, body, types)
        given, listed, here = ", ".join(f"%{v.name}" for v in state), ", ".join(map(str, types)), _written_by()
        opening = f'    %{name}:{len(types)} = "stablehlo.while"({given}) ({{'
        closing = f"    }}) : ({listed}) -> ({listed}){self._place()}"
        self._lines += [opening, *condition, "    }, {", *block, closing]
        self._origins += [here, *goes_on, here, *step, here]
        return [Value(f"{name}#{i}", t) for i, t in enumerate(types)]

    def _region(
        self, op: str, number: str, name: str, arguments: Sequence[TensorType],
        write: Callable[[Sequence[Value]], Sequence[Value]], results: Sequence[TensorType],
    ) -> tuple[list[str], list[tuple[Origin, ...]]]:  # fmt: skip
        """The lines of a region with one block, and where they are from. Constants are written in the function instead."""
        taken = [Value(f"{name}{i}", type) for i, type in enumerate(arguments)]
        outside = self._lines, self._origins
        self._lines, self._origins = [], []
        returned = list(write(taken))
        (lines, origins), (self._lines, self._origins) = (self._lines, self._origins), outside
        types, here = ", ".join(str(v.type) for v in returned), _written_by()
        self._check(op, number, [v.type for v in returned] == list(results), f"returns [{types}]")
        opening = f"    ^bb0({', '.join(f'%{v.name}: {v.type}' for v in taken)}):"
        closing = f"      stablehlo.return {', '.join(f'%{v.name}' for v in returned)} : {types}"
        return [opening, *(f"  {line}" for line in lines), closing], [here, *origins, here]

    # ---- what another one computes

    def custom_call(self, call_target_name: str, inputs: Sequence[Value], result: TensorType) -> Value:
        """What a function outside of the graph makes of `inputs`, all row-major; it is found by XLA's typed FFI.

        It has no side effect: calls may be left out, done twice or moved.
        """
        plain = call_target_name.isascii() and call_target_name.isidentifier()
        self._check("custom_call", "I2", plain, f"call_target_name={call_target_name!r} is no identifier")

        def row_major(type: TensorType) -> str:
            rank = len(type.shape)
            return f"dense<[{', '.join(map(str, reversed(range(rank))))}]> : tensor<{rank}xindex>"

        names, types = ", ".join(f"%{v.name}" for v in inputs), ", ".join(str(v.type) for v in inputs)
        layouts = ", ".join(row_major(v.type) for v in inputs)
        attributes = (
            "{api_version = 4 : i32, backend_config = {}, "
            f"operand_layouts = [{layouts}], result_layouts = [{row_major(result)}]}}"
        )
        body = f"@{call_target_name}({names}) {attributes} : ({types}) -> {result}"
        return self._append("custom_call", "call", result, body)

    # ---- internals

    def _unary(self, op: str, operand: Value) -> Value:
        self._check(op, "I1", operand.dtype in FLOATS, f"operand={operand.type} is not of floats")
        return self._append(op, op, operand.type, f"%{operand.name} : {operand.type}")

    def _binary(self, op: str, lhs: Value, rhs: Value, dtypes: Sequence[str] = (*FLOATS, *INTEGERS, "i1")) -> Value:
        self._check(op, "I1", lhs.dtype in dtypes, f"lhs={lhs.type} is not of {', '.join(dtypes)}")
        self._check(op, "C1", lhs.type == rhs.type, f"types differ, lhs={lhs.type}, rhs={rhs.type}")
        return self._append(op, op[:3], lhs.type, f"%{lhs.name}, %{rhs.name} : {lhs.type}")

    def _check(self, op: str, number: str, holds: bool, message: str) -> None:
        if not holds:
            raise TypeError(f"{op} ({number}): {message}, in {self.anchor or 'the function'}")

    def _append(self, op: str, hint: str, type: TensorType, body: str, generic: bool = False) -> Value:
        name = self._name(hint)
        call = body if generic else f"stablehlo.{op}{'' if body.startswith('(') else ' '}{body}"
        self._lines.append(f"    %{name} = {call}{self._place()}")
        self._origins.append(_written_by())
        return Value(name, type)

    def _name(self, hint: str) -> str:
        prefix = self.anchor.replace("layers.", "l").replace(".", "_")
        stem = f"{prefix}.{hint}" if prefix else hint
        count = self._taken.get(stem, 0)
        self._taken[stem] = count + 1
        return f"{stem}{count or ''}"

    def _place(self) -> str:
        return f' loc("{self.anchor}")' if self._scope else ""


def _written_by() -> tuple[Origin, ...]:
    """The lines of Python that the operation comes from, the innermost first: those outside of this file."""
    found: list[Origin] = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < MOST_ORIGINS:
        code = frame.f_code
        folder, _, path = code.co_filename.rpartition("/hloracle/")
        if folder and code.co_filename != __file__ and not code.co_name.startswith("<"):
            found.append(Origin(path, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
