"""Makes the anchors of a graph that names none explicit: the same graph, with each anchor's value laid out as the contract
has it, at a location that is its name. Whatever looks into graphs then looks into this one.

Also runs a graph with all of its values as results, in slices that fit memory, and with values put in the place of its own.

Imports jaxlib, which carries MLIR.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from hloracle.core.abi import JUDGED_ROW, Graph, Tensor
from hloracle.core.locations import line_of
from hloracle.localize.inline import operands_of
from hloracle.localize.matching import Layout, Match, shape_of
from hloracle.localize.text import TYPE, function_named, without_locations
from hloracle.localize.unroll import flatten
from hloracle.reference.model.anchors import CACHES, split
from hloracle.reference.model.config import Config

FLOATS = ("f32", "f16", "bf16", "f64")
SLICE_BYTES = 2**28  # of results that one run returns
# What makes no number: the same ones in another shape or type are found where they come from.
COPIES = ("stablehlo.constant", "stablehlo.iota")


class Flat:
    """A graph with its calls and loops written out. Values are counted by the operations that make them.

    own: the operations of the judged function; the others adapt it to the contract. written: the text without those.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.context = jax_mlir.make_ir_context()
        with self.context:
            self.module = ir.Module.parse(without_locations(graph.text))
            adapter = [f for f in self.module.body.operations if _name(f) == JUDGED_ROW]
            end = _first_line(adapter[0]) if adapter else 0
            self.written = "\n".join(graph.text.splitlines()[: end - 1]) if end else graph.text
            flatten(self.module, graph.abi.function)
            function = function_named(self.module, graph.abi.function)
            for operation in list(self.module.body.operations):
                if operation != function:
                    operation.operation.erase()
        self.function = function_named(self.module, graph.abi.function)
        self.block = self.function.regions[0].blocks[0]
        self.operations = list(self.block.operations)
        self.lines = [line_of(op.location) or 0 for op in self.operations]
        self.own = [not end or line < end for line in self.lines]  # the adapter's functions stand behind the graph's

    @functools.cached_property
    def floats(self) -> dict[int, Any]:
        """Index -> value, of what computes floats; operations with several results have none."""
        return {
            i: op.results[0] for i, op in enumerate(self.operations)
            if len(op.results) == 1 and op.operation.name not in COPIES and type_of(op.results[0])[1] in FLOATS
        }  # fmt: skip

    def text(self) -> str:
        """What the graph has become."""
        with self.context:
            self.module.operation.verify()
            return str(
                self.module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False, use_local_scope=True)
            )


def type_of(value: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a value; no dtype where it is no tensor of known sizes."""
    found = TYPE.fullmatch(str(value.type))
    return (tuple(int(n) for n in found[1].split("x") if n), found[2]) if found else ((), "")


def _name(function: Any) -> str:
    return str(function.attributes["sym_name"].value)


def _first_line(function: Any) -> int:
    """Where a function begins in the text."""
    return line_of(function.location) or 0


Run = Callable[[Graph], list[np.ndarray]]


def values_of(
    graph: Graph, sizes: set[int], run: Run, replaced: Sequence[int] = ()
) -> Iterator[dict[int, np.ndarray]]:  # fmt: skip
    """The values of a graph that have one of these numbers of elements: index -> array, a slice that fits memory at a time.

    Args:
      run: gives what a graph returns. replaced: see `variant`.
    """
    for some in sliced(Flat(graph), sizes):
        yield dict(zip(some, run(variant(graph, some, replaced)), strict=True))


def sliced(flat: Flat, sizes: set[int], among: range | None = None) -> Iterator[list[int]]:
    """The values of these sizes, as many at a time as fit memory."""
    some: list[int] = []
    total = 0
    for i, value in flat.floats.items():
        count = math.prod(type_of(value)[0])
        if count not in sizes or (among is not None and i not in among):
            continue
        if some and total + 4 * count > SLICE_BYTES:
            yield some
            some, total = [], 0
        some.append(i)
        total += 4 * count
    if some:
        yield some


def variant(graph: Graph, returned: Sequence[int], replaced: Sequence[int] = ()) -> Graph:
    """The graph with some of its values as its only results, and others that can be replaced.

    For each value that can be replaced it has two more arguments, `INDEX` and `INDEX?`: another value, and whether that is
    taken. Values are counted as in `Flat`.
    """
    flat = Flat(graph)
    more: list[Tensor] = []
    newest = {i: flat.operations[i].results[0] for i in (*returned, *replaced)}
    with flat.context, ir.Location.unknown():
        for i in dict.fromkeys(replaced):
            value = newest[i]
            flag_type = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
            other = flat.block.add_argument(value.type, ir.Location.unknown())
            flag = flat.block.add_argument(flag_type, ir.Location.unknown())
            with ir.InsertionPoint(flat.operations[i + 1]):
                newest[i] = stablehlo.select(flag, other, value)
            _replace_uses(value, newest[i], {newest[i].owner})
            more += [Tensor("tap", str(i), *type_of(value)), Tensor("tap", f"{i}?", (), "i1")]
        values = [newest[i] for i in returned]
        end = flat.operations[-1]
        with ir.InsertionPoint(end):
            func.ReturnOp(values)
        end.operation.erase()
        types = ir.FunctionType.get([a.type for a in flat.block.arguments], [v.type for v in values])
        flat.function.attributes["function_type"] = ir.TypeAttr.get(types)
        for key in ("arg_attrs", "res_attrs"):
            if key in flat.function.attributes:
                del flat.function.attributes[key]
    results = tuple(Tensor("tap", str(i), *type_of(v)) for i, v in zip(returned, values, strict=True))
    abi = dataclasses.replace(graph.abi, arguments=(*graph.abi.arguments, *more), results=results)
    return Graph(f"{graph.name}_values", flat.text(), abi, graph.flags)


def _replace_uses(old: Any, new: Any, but: set[Any]) -> None:
    for use in list(old.uses):
        if use.owner not in but:
            use.owner.operands[use.operand_number] = new


# ---- anchors made explicit


def annotated(graph: Graph, matches: Sequence[Match], config: Config, queries: int, keys: int, row: int = 0) -> Graph:
    """The graph with the anchors that were found at locations of their names, each laid out as the contract has it.

    Args:
      queries, keys: T and S. row: the judged one.
    """
    flat = Flat(graph)
    with flat.context:
        _name_operations(flat, matches)
        writer = _Explicit(flat, row)
        for match in matches:
            writer.write(match, shape_of(config, match.anchor, queries, keys))
    return dataclasses.replace(graph, text=flat.text(), inner="", written=graph.written or flat.written)


def _location(anchor: str, line: int) -> Any:
    place = ir.Location.file("-", line, 1)
    return ir.Location.name(anchor, place) if anchor else place


def _name_operations(flat: Flat, matches: Sequence[Match]) -> None:
    """Let each operation of the judged function stand in the scope of the first anchor that it goes into."""
    place = {op.operation: i for i, op in enumerate(flat.operations)}
    stops = {m.value for m in matches}
    named: dict[int, str] = {}
    for match in sorted(matches, key=lambda m: m.value):
        todo = [match.value]
        while todo:
            i = todo.pop()
            if i in named or not flat.own[i]:
                continue
            named[i] = match.anchor.removesuffix("+")
            makers = (v.owner for v in operands_of(flat.operations[i]) if isinstance(v, ir.OpResult))
            todo += [place[op] for op in makers if op in place and place[op] not in stops]
    for i, operation in enumerate(flat.operations):
        operation.operation.location = _location(named.get(i, ""), flat.lines[i])


class _Explicit:
    """Writes what takes an anchor out of a value, lays it out, and puts it back."""

    def __init__(self, flat: Flat, row: int) -> None:
        self._flat, self._row = flat, row
        self._newest: dict[int, Any] = {}  # what now stands in the place of a value
        self._index: dict[str, Any] = {}

    def write(self, match: Match, shape: tuple[int, ...]) -> None:
        """Make one anchor explicit. A value that has its shape already is it by its location alone."""
        flat, layout = self._flat, match.layout
        first = match.value not in self._newest
        value = self._newest.setdefault(match.value, flat.operations[match.value].results[0])
        before, dtype = type_of(value)
        plain = not layout.picks and layout.factor == 1 and layout.order == tuple(range(len(layout.order)))
        if first and plain and dtype == "f32" and _squeezed(before) == _squeezed(shape):
            return
        operations = list(flat.block.operations)
        at = operations.index(value.owner) + 1
        # No line of the graph's: these are none of its operations.
        with _location(match.anchor.removesuffix("+"), 0), ir.InsertionPoint(operations[at]):
            new = self._taken_and_put_back(value, layout, shape, _location("", 0))
        if not first and flat.graph.abi.phase != "decode" and split(match.anchor)[1] in CACHES:
            return  # what prefill keeps is what its attention reads: nothing is computed from the cache
        made = set(list(flat.block.operations)[at : at + len(list(flat.block.operations)) - len(operations)])
        _replace_uses(value, new, made)
        self._newest[match.value] = new

    def _taken_and_put_back(self, value: Any, layout: Layout, shape: tuple[int, ...], outside: Any) -> Any:
        before, dtype = type_of(value)
        starts = [
            self._start(next((p.what for p in layout.picks if p.axis == axis), "")) for axis in range(len(before))
        ]
        picked = {p.axis for p in layout.picks}
        sizes = [1 if axis in picked else n for axis, n in enumerate(before)]
        taken = stablehlo.dynamic_slice(value, starts, sizes) if picked else value
        taken = _converted(taken, "f32")
        laid = _reshaped(taken, [layout.atoms[i] for i in layout.order])
        laid = stablehlo.transpose(laid, [int(i) for i in np.argsort(layout.order)])
        if layout.factor != 1:
            laid = stablehlo.divide(laid, _splat(laid, layout.factor))
        anchor = _reshaped(laid, shape, always=tuple(layout.atoms) == tuple(layout.shape))
        with outside:  # the last operation of a scope is its anchor
            back = _reshaped(anchor, layout.atoms)
            if layout.factor != 1:
                back = stablehlo.multiply(back, _splat(back, layout.factor))
            back = _reshaped(stablehlo.transpose(back, list(layout.order)), sizes)
            return self._put_back(_converted(back, dtype), before, layout)

    def _put_back(self, back: Any, shape: tuple[int, ...], layout: Layout) -> Any:
        """A value of one row, or of one token, as one of all: other tokens have the same numbers, other rows the negated ones.

        So nothing that is computed from an anchor reads what the anchor was taken from; and what takes another row's is wrong.
        """
        if not layout.picks:
            return back
        axes = list(range(len(shape)))
        whole = ir.RankedTensorType.get(list(shape), ir.RankedTensorType(back.type).element_type)
        same = stablehlo.broadcast_in_dim(whole, back, axes)
        rows = [p.axis for p in layout.picks if p.what == "row"]
        if not rows:
            return same
        number = stablehlo.iota(ir.RankedTensorType.get(list(shape), ir.IntegerType.get_signless(32)), rows[0])
        judged = stablehlo.broadcast_in_dim(number.type, self._start("row"), [])
        mine = stablehlo.compare(number, judged, stablehlo.ComparisonDirectionAttr.get("EQ"))
        return stablehlo.select(mine, same, stablehlo.negate(same))

    def _start(self, what: str) -> Any:
        """Where a slice begins on an axis: at the judged row, at the last token, or at the front. Made once, in the beginning."""
        if what not in self._index:
            flat, abi = self._flat, self._flat.graph.abi
            i32 = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))

            def number(n: int) -> Any:
                return stablehlo.constant(ir.DenseElementsAttr.get_splat(i32, ir.IntegerAttr.get(i32.element_type, n)))

            with ir.InsertionPoint.at_block_begin(flat.block), ir.Location.unknown():
                if what == "last" and abi.phase != "decode":
                    length = flat.block.arguments[abi.argument("length")]
                    self._index[what] = stablehlo.subtract(length, number(1))
                else:
                    self._index[what] = number(self._row if what == "row" else 0)
        return self._index[what]


def _reshaped(value: Any, shape: Sequence[int], always: bool = False) -> Any:
    type = ir.RankedTensorType(value.type)
    if tuple(type.shape) == tuple(shape) and not always:
        return value
    return stablehlo.reshape(ir.RankedTensorType.get(list(shape), type.element_type), value)


def _converted(value: Any, dtype: str) -> Any:
    type = ir.RankedTensorType(value.type)
    types: dict[str, Any] = {"f32": ir.F32Type, "f16": ir.F16Type, "bf16": ir.BF16Type, "f64": ir.F64Type}
    element = types[dtype].get()
    return (
        value
        if type.element_type == element
        else stablehlo.convert(ir.RankedTensorType.get(type.shape, element), value)
    )


def _splat(like: Any, number: float) -> Any:
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(like.type, ir.FloatAttr.get_f32(number)))


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)
