"""Takes a graph apart: makes its values at anchors results, and cuts out the subgraph that computes one anchor.

Works on parsed MLIR, so on any graph whose operations' locations are anchors: ours, the oracle's, or one from a file.
Nothing here changes a production graph; every method writes a new one. Imports jaxlib, which carries MLIR.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from hloracle.core import rings
from hloracle.core.abi import SCALES, Abi, Graph, Tensor, cache_of, scale_of
from hloracle.core.errors import InputError
from hloracle.core.locations import line_of, place_of
from hloracle.localize.inline import callee_of, copied, inline_calls, nested, operands_of
from hloracle.localize.text import TYPE, anchor_at, function_named, without_locations
from hloracle.reference.model.anchors import CACHES, anchor_shape, anchors, split
from hloracle.reference.model.config import Config
from hloracle.repair.subject import Plain
from hloracle.semantics.numbers import Unsupported
from hloracle.semantics.reading import Reader

# IREE 3.13 cannot make scores, probabilities and context all results of one dispatch at O2 on llvm-cpu.
FUSED_BY_IREE = ("self_attn.scores", "self_attn.probs")
# What makes no cache, but what is put into one or read from it.
RESHAPE = "stablehlo.reshape"
PARTS = (RESHAPE, "stablehlo.slice", "stablehlo.dynamic_slice")
FLOATS = ("f64", "f32", "f16", "bf16")

_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^x?]\S*)>")  # of any elements, complex ones too


@dataclass(frozen=True)
class Step:
    """One operation of a subgraph.

    graph: the operation alone, as a function of `operands`. It holds its constants itself, and what makes an operand that no
      graph can be given, such as a tuple.
    operands: of each argument of `graph`, the name of the subgraph's input or the index of an earlier step.
    line: where it stands in the text of the graph it was taken from, counted from 1; text: that line.
    """

    name: str
    graph: Graph
    operands: tuple[str | int, ...]
    anchor: str
    line: int
    text: str

    @property
    def value(self) -> str:
        """What the text calls its result, e.g. `%l0_self_attn_probs.div`; empty for a return, which has none."""
        left, equals, _ = self.text.partition(" = ")
        return left.strip() if equals else ""

    @property
    def type(self) -> str:
        """The type of its result, e.g. `tensor<1x84xf32>`."""
        result = self.graph.abi.results[0]
        return f"tensor<{'x'.join([*map(str, result.shape), result.dtype])}>"


@dataclass(frozen=True)
class Returned:
    """How a graph returns a cache otherwise than its last layer left it.

    step: the return or, where that takes a value in another shape, what gives it that; its graph computes all of it.
    passed_on: whether it is a value as the graph was given it, or a layer left it, or one that depends on neither; of any shape.
    """

    step: Step
    passed_on: bool


@dataclass(frozen=True)
class Subgraph:
    """The part of a graph that computes `anchor` from other anchors, weights and inputs.

    graph: its arguments are named as what they stand for: `position`, a weight, another anchor, or `k_cache.3+`, the
      whole cache after layer 3 has written to it. Its results are the anchor, or for a cache also the written cache, and its scales.
    """

    anchor: str
    graph: Graph
    parts: tuple[Any, ...] = field(repr=False, compare=False)  # the operations, in order


class Anatomy:
    """A parsed graph, and where its anchors' values are. It never changes: see `anatomy_of` for one that is shared.

    Args:
      without: anchors that it is to have no values of: what computes them is a part of what computes the next ones.

    Raises InputError when the text does not parse.
    """

    def __init__(self, graph: Graph, config: Config, without: Collection[str] = ()) -> None:
        self.graph, self.config = graph, config
        self._context = jax_mlir.make_ir_context()
        with self._context:
            try:
                self._module = ir.Module.parse(graph.text)
            except (ir.MLIRError, ValueError) as error:
                raise InputError(f"does not parse ({' '.join(str(error).split())[:200]})", graph.name, "") from None
            inline_calls(self._module, graph.abi.function)
        self._function = function_named(self._module, graph.abi.function)
        self._block = self._function.regions[0].blocks[0]
        self._operations = list(self._block.operations)
        self._arguments = {v: t.name for v, t in zip(self._block.arguments, graph.abi.arguments, strict=True)}
        self._caches = {name: graph.abi.results[graph.abi.result(name)] for name in graph.abi.caches}
        self.values = {anchor: value for anchor, value in self._find().items() if anchor not in without}
        self._subgraphs: dict[str, Subgraph] = {}
        self._plain: Plain | None = None  # not by a cache of the class, which would keep every anatomy with its module

    # ---- the shape of things

    @property
    def queries(self) -> int:
        """Query tokens T; of a decode the rows of its batch."""
        return self.graph.abi.bucket or self.graph.abi.batch

    @property
    def own(self) -> int:
        """B where each query has a row of the caches of its own; else 1."""
        return self.graph.abi.batch if self.graph.abi.phase == "decode" else 1

    @property
    def keys(self) -> int:
        """Keys that a query can attend to: T in prefill, else cache slots."""
        return self.graph.abi.bucket if self.graph.abi.phase == "prefill" else self.graph.abi.capacity

    def shape(self, anchor: str) -> tuple[int, ...]:
        """The shape of an anchor's value in a graph of this phase, by the contract."""
        layer, _ = split(anchor)
        keys = self.keys if layer is None else self.graph.abi.keys(layer)
        return anchor_shape(self.config, anchor, self.queries, keys, self.own)

    def key_positions(self, layer: int, first: int) -> np.ndarray:
        """The position that each key of a layer is of, where its queries begin at `first`: see `rings.key_positions`."""
        abi = self.graph.abi
        ring = layer in abi.windowed
        return rings.key_positions(abi.phase, abi.ring if ring else abi.capacity, abi.bucket, first, ring)

    @property
    def anchors(self) -> tuple[str, ...]:
        """The anchors that this graph has, in the order of computation."""
        known = [a for a in anchors(self.config) if a in self.values]
        return (*known, "token") if "token" in self.values else tuple(known)

    @property
    def context(self) -> Any:
        """The context of MLIR that its operations live in."""
        return self._context

    def operation(self, place: int) -> Any:
        """The operation at a place of `plain`, in MLIR."""
        return self._operations[place].operation

    def step_at(self, place: int) -> Step:
        """The operation at a place of `plain` as a step, whose operands are named by their numbers."""
        plain, operation = self.plain(), self._operations[place]
        boundary = {v: f"v{i}" for i, v in enumerate(dict.fromkeys(operands_of(operation)))}
        graph, _ = self._write("operation", ["result"], [operation.results[0]], boundary)
        line, text = plain.lines[place]
        return Step(
            operation.operation.name,
            graph,
            tuple(a.name for a in graph.abi.arguments),
            anchor_at(operation),
            line,
            text,
        )

    def plain(self) -> Plain:
        """The graph as plain data, with its anchors."""
        if self._plain is None:
            self._plain = self._as_plain()
        return self._plain

    def _as_plain(self) -> Plain:
        with self._context:
            reader = Reader()
            block = reader.block(self._block)
            stops = {v: f"{part}.{layer}+" for (part, layer), v in self._written.items()}
            stops |= {v: name for name, v in self.values.items()} | self._arguments
            named = {f"{part}.{layer}+": v for (part, layer), v in self._written.items()} | self.values
            return Plain(
                block,
                {reader.numbers[v]: name for v, name in stops.items()},
                {name: reader.numbers[v] for name, v in named.items()},
                tuple(anchor_at(operation) for operation in self._operations[:-1]),
                tuple(self._lines.get(i, (0, "")) for i in range(len(self._operations) - 1)),
            )

    def targets(self, anchor: str) -> list[str]:
        """What the subgraph of an anchor gives, as `plain` names it: the anchor and, of a cache, the whole that was written."""
        return [anchor, *(f"{part}.{layer}+" for part, layer in self._of(anchor))]

    def _of(self, anchor: str) -> list[tuple[str, int]]:
        """What there is in `_written` of an anchor: of a cache itself, and its scales."""
        layer, part = split(anchor)
        if layer is None or part not in CACHES:
            return []
        return [at for at in ((part, layer), (scale_of(part), layer)) if at in self._written]

    def _find(self) -> dict[str, Any]:
        """The value of each anchor: the last one of its scope that has its shape, but for axes of one element."""
        wanted = {a: _squeezed(self.shape(a)) for a in anchors(self.config)}
        found = {}
        for operation in self._operations:
            if len(operation.results) == 1:
                anchor, result = anchor_at(operation), operation.results[0]
                if anchor in wanted and (shape := _floats(result)) is not None and _squeezed(shape) == wanted[anchor]:
                    found[anchor] = result
        place = {anchor: self._places[value.owner.operation] for anchor, value in found.items()}
        for anchor in list(found):
            layer, part = split(anchor)
            inside = [place[a] for a in found if split(a)[0] == layer and split(a)[1]]
            # A block's scope also holds the sum in its middle, which would stand in for an output that is not there.
            if layer is not None and not part and place[anchor] < max(inside, default=0):
                del found[anchor]
        head = self._operations[-1].operands[0]
        if self.graph.abi.head == "token" and head not in self._arguments:
            found["token"] = head
        return found

    # ---- new graphs

    def with_outputs(self, chosen: Iterable[str] | None = None) -> Graph:
        """The graph with the values at anchors (all when None) as further results, named as the anchors.

        A further result that the graph has already may have any name, an anchor's too: it is renamed to `own.NAME`.
        Raises InputError for an anchor that this graph lacks.
        """
        names = [a for a in self.anchors if a != "token"] if chosen is None else list(chosen)
        self._known(names)
        copy = Anatomy(self.graph, self.config)
        with copy._context, ir.Location.unknown():
            values = {name: copy.values[name] for name in names}
            for name in names:
                if split(name)[1] in FUSED_BY_IREE:
                    with ir.InsertionPoint(copy._after(values[name])):
                        barrier = stablehlo.OptimizationBarrierOp([values[name]])
                    values[name] = copy._replaced(name, barrier.results[0])
            end = copy._operations[-1]
            results = [*end.operands, *values.values()]
            with ir.InsertionPoint(end):
                func.ReturnOp(results)
            end.operation.erase()
            inputs, types = [a.type for a in copy._block.arguments], [v.type for v in results]
            copy._function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))
            if "res_attrs" in copy._function.attributes:
                del copy._function.attributes["res_attrs"]
        abi = self.graph.abi
        own = tuple(dataclasses.replace(r, name=f"own.{r.name}") if r.role == "tap" else r for r in abi.results)
        more = tuple(_tensor(t, value) for t, value in values.items())
        return copy._text(f"{self.graph.name}_taps", dataclasses.replace(abi, results=(*own, *more)))

    def spoiled(self, anchor: str, factor: float) -> Graph:
        """The graph with the value at an anchor multiplied by `factor`: a fault that is known."""
        self._known([anchor])
        copy = Anatomy(self.graph, self.config)
        value = copy.values[anchor]
        with copy._context, value.owner.location, ir.InsertionPoint(copy._after(value)):
            splat = ir.DenseElementsAttr.get_splat(value.type, ir.FloatAttr.get(value.type.element_type, factor))
            wrong = stablehlo.multiply(value, stablehlo.constant(splat))
            copy._replaced(anchor, wrong)
        return copy._text(f"{self.graph.name}_spoiled", self.graph.abi)

    def cut(self, anchor: str) -> Graph:
        """The graph up to an anchor, which is its only result; its arguments are the whole graph's."""
        self._known([anchor])
        graph, _ = self._write("cut", [anchor], [self.values[anchor]], boundary={})
        return graph

    def subgraph(self, anchor: str) -> Subgraph:
        """What computes an anchor from the anchors before it. Raises InputError for one that this graph lacks."""
        self._known([anchor])
        if anchor in self._subgraphs:
            return self._subgraphs[anchor]
        values = [self.values[anchor], *(self._written[at] for at in self._of(anchor))]
        graph, operations = self._write("subgraph", self.targets(anchor), values, self._boundary(anchor))
        self._subgraphs[anchor] = Subgraph(anchor, graph, tuple(operations))
        return self._subgraphs[anchor]

    def reads(self) -> dict[str, frozenset[str]]:
        """Of each anchor, the anchors that it is computed from."""
        known = set(self.anchors)
        found = {}
        for anchor in self.anchors:
            _, inputs = self._closure([self.values[anchor]], self._boundary(anchor))
            found[anchor] = frozenset(name.removesuffix("+") for name in inputs.values()) & known
        return found

    def lines(self, anchor: str) -> set[int]:
        """The lines that compute an anchor from the anchors before it."""
        needed, _ = self._closure([self.values[anchor]], self._boundary(anchor))
        found = (self._lines.get(self._places[operation.operation], (0, ""))[0] for operation in needed)
        return {line for line in found if line}

    def returned(self, role: str) -> Returned | None:
        """What returns a cache or a ring, such as `k_cache`; None if that is what the last layer wrote, or nothing is returned."""
        if role not in self._caches:
            return None
        abi, part = self.graph.abi, role if role in SCALES else cache_of(role)
        end = self._operations[-1]
        value = end.operands[abi.result(role)]
        shapes = self._reshaped(value)
        layers = [layer for name, layer in self._written if name == part and abi.role(name, layer) == role]
        if layers and self._written[part, max(layers)] in shapes:
            return None
        boundary = {v: f"{name}.{layer}+" for (name, layer), v in self._written.items()}
        if not layers:  # it is put together of what each layer has
            boundary |= {v: name for name, v in self.values.items()}
        graph, operations = self._write("returned", [role], [value], boundary)
        # What gives the return its shape, and nothing else, is what takes the value.
        for_return = itertools.takewhile(lambda v: len(list(v.uses)) == 1, shapes[:-1])
        taking = [end, *(v.owner for v in for_return)][-1]
        line, text = self._lines.get(self._places[taking.operation], (0, ""))
        step = Step(taking.operation.name, graph, tuple(a.name for a in graph.abi.arguments), role, line, text)
        return Returned(step, not graph.abi.arguments or all(o.operation.name == RESHAPE for o in operations))

    def _reshaped(self, value: Any) -> list[Any]:
        """A value, and what it is in another shape."""
        found = [value]
        while found[-1] not in self._arguments and found[-1].owner.operation.name == RESHAPE:
            found.append(found[-1].owner.operands[0])
        return found

    def tail(self) -> Subgraph | None:
        """What lies between the logits' anchor and the logits that are returned; None where nothing does."""
        returned, logits = self._operations[-1].operands[0], self.values.get("lm_head")
        if self.graph.abi.head != "logits" or logits is None or logits == returned:
            return None
        graph, operations = self._write("tail", ["lm_head"], [returned], {v: n for n, v in self.values.items()})
        return Subgraph("lm_head", graph, tuple(operations))

    def steps(self, subgraph: Subgraph) -> list[Step]:
        """The operations of a subgraph, each as a graph of its own; constants belong to the operation that uses them.

        So does what no graph can be given, such as a tuple or complex numbers. An operation with several results, such as a
        sort of keys with their places, is a step for each that is used.
        """
        known: dict[Any, str | int] = {**self._subgraph_boundary(subgraph), **self._arguments}
        lines = self._lines
        found: list[Step] = []
        for operation, result in _computed(subgraph):
            graph, _ = self._write("operation", ["result"], [result], {v: str(n) for v, n in known.items()})
            by_name = {str(n): n for n in known.values()}
            operands = tuple(by_name[a.name] for a in graph.abi.arguments)
            line, text = lines.get(self._operations.index(operation), (0, ""))
            found.append(Step(operation.operation.name, graph, operands, anchor_at(operation), line, text))
            known.setdefault(result, len(found) - 1)
        return found

    def ends(self, subgraph: Subgraph) -> list[int | None]:
        """Of each of a subgraph's results, which of its `steps` computes it; None of one that it only passes on."""
        values = [self.values[subgraph.anchor], *(self._written[at] for at in self._of(subgraph.anchor))]
        places = {result: i for i, (_, result) in enumerate(_computed(subgraph))}
        return [places.get(value) for value in values]

    def whole_numbers(self, subgraph: Subgraph) -> list[np.ndarray]:
        """The scalar integers that stand in a subgraph as constants."""
        values = [o.results[0] for o in subgraph.parts if o.operation.name == "stablehlo.constant"]
        return [
            np.array(ir.IntegerAttr(ir.DenseElementsAttr(v.owner.attributes["value"]).get_splat_value()).value)
            for v in values if not ir.RankedTensorType(v.type).shape and isinstance(v.type.element_type, ir.IntegerType)
        ]  # fmt: skip

    def tables(self, subgraph: Subgraph) -> list[list[np.ndarray]]:
        """Of each of a subgraph's `steps`, the floats that it takes from constants of more than one number."""
        return [
            [t for v in operands_of(operation) if (t := _table(v)) is not None] for operation, _ in _computed(subgraph)
        ]

    def prefix(self, subgraph: Subgraph, index: int) -> Graph:
        """The subgraph up to one of its steps, whose result is the only one."""
        _, result = _computed(subgraph)[index]
        graph, _ = self._write("prefix", ["result"], [result], self._subgraph_boundary(subgraph))
        return graph

    def whole_prefix(self, subgraph: Subgraph, index: int) -> Graph:
        """The whole graph up to one of a subgraph's steps, whose result is the only one; its arguments are the graph's."""
        _, result = _computed(subgraph)[index]
        graph, _ = self._write("cut", ["result"], [result], boundary={})
        return graph

    # ---- how they are written

    def _after(self, value: Any) -> Any:
        """The operation after the one that makes a value."""
        return self._operations[self._operations.index(value.owner) + 1]

    def _replaced(self, anchor: str, new: Any) -> Any:
        """Let every user of an anchor's value take `new` instead, which was just made from it."""
        old = self.values[anchor]
        for use in list(old.uses):
            if use.owner != new.owner:
                use.owner.operands[use.operand_number] = new
        self.values[anchor] = new
        return new

    def _text(self, name: str, abi: Abi) -> Graph:
        """What this anatomy's module has become."""
        self._module.operation.verify()
        text = self._module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False, use_local_scope=True)
        return Graph(name, str(text), abi, self.graph.flags)

    def _known(self, wanted: Sequence[str]) -> None:
        missing = [a for a in wanted if a not in self.values]
        if missing:
            raise InputError(f"has no anchor {missing[0]}", self.graph.name, "name one of its scopes")

    def _boundary(self, anchor: str) -> dict[Any, str]:
        """Where the subgraph of an anchor ends: at every other anchor, and at what other layers wrote to the caches."""
        own = self.targets(anchor)
        caches = {value: f"{part}.{layer}+" for (part, layer), value in self._written.items()}
        others = {value: name for name, value in self.values.items()}
        return {v: n for v, n in (caches | others).items() if n not in own}

    def _subgraph_boundary(self, subgraph: Subgraph) -> dict[Any, str]:
        """Of a tail, which begins where its anchor is, that too."""
        own = {self.values[subgraph.anchor]: subgraph.anchor} if subgraph.graph.name == "tail" else {}
        return self._boundary(subgraph.anchor) | own

    @functools.cached_property
    def _order(self) -> dict[str, int]:
        """Anchors, then arguments -> their place."""
        return {name: i for i, name in enumerate((*anchors(self.config), *self._arguments.values()))}

    @functools.cached_property
    def _places(self) -> dict[Any, int]:
        """Operation -> its place among the function's."""
        return {operation.operation: i for i, operation in enumerate(self._operations)}

    @functools.cached_property
    def _written(self) -> dict[tuple[str, int], Any]:
        """The whole cache after each layer's write: (`k_cache`, layer) -> value; and its scales, with an axis of one: (`k_scale`, layer)."""
        found = {}
        for operation in self._operations:
            layer, part = split(anchor_at(operation))
            # With one layer the shape alone would not tell the cache from what is put into it or read from it.
            if part not in CACHES or layer is None or len(operation.results) != 1 or operation.operation.name in PARTS:
                continue
            result = operation.results[0]
            for role in (self.graph.abi.role(part, layer), scale_of(part)):
                cache = self._caches.get(role)
                if cache is not None and (_holds(result, cache) or _holds_rows(result, cache)):
                    found[scale_of(part) if role in SCALES else part, layer] = result
        return found

    def _write(
        self, name: str, names: Sequence[str], values: Sequence[Any], boundary: dict[Any, str]
    ) -> tuple[Graph, list[Any]]:
        """A function of `boundary` values and arguments that returns `values`; and its operations."""
        needed, inputs = self._closure(values, boundary)
        with self._context, ir.Location.unknown():
            module = ir.Module.create()
            module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
            type = ir.FunctionType.get([v.type for v in inputs], [v.type for v in values])
            with ir.InsertionPoint(module.body):
                function: Any = func.FuncOp("main", type, visibility="public")  # type: ignore[call-arg]
            block = function.add_entry_block()
            new = dict(zip(inputs, block.arguments, strict=True))
            with ir.InsertionPoint(block):
                for operation in needed:
                    copied(operation, new)
                func.ReturnOp([new[v] for v in values])
            for name in self._callees(needed):
                with ir.InsertionPoint(module.body):
                    function_named(self._module, name).operation.clone()
            module.operation.verify()
            text = str(module.operation.get_asm(assume_verified=True))
        arguments = tuple(_tensor(n, v) for v, n in inputs.items())
        abi = Abi(self.graph.abi.phase, arguments, tuple(_tensor(n, v) for n, v in zip(names, values, strict=True)))
        return Graph(name, text, abi, self.graph.flags), needed

    def _callees(self, operations: Sequence[Any]) -> list[str]:
        """The functions that these call, themselves or inside their regions, and those that they call."""
        found: dict[str, None] = {}
        todo = list(operations)
        while todo:
            operation = todo.pop()
            for name in filter(None, map(callee_of, (operation, *nested(operation)))):
                if name not in found:
                    found[name] = None
                    todo.append(function_named(self._module, name))
        return list(found)

    def _closure(self, values: Sequence[Any], boundary: dict[Any, str]) -> tuple[list[Any], dict[Any, str]]:
        """The operations that `values` depend on, in order, back to the boundary; and the inputs met there."""
        stops = self._arguments | boundary
        inputs: dict[Any, str] = {}
        needed: set[int] = set()
        todo = list(values)
        while todo:
            value = todo.pop()
            if value in stops:
                inputs[value] = stops[value]
            elif (place := self._places[value.owner.operation]) not in needed:
                needed.add(place)
                todo += operands_of(self._operations[place])
        # Equal subgraphs of two layers get equal texts, and are compiled once: hence anchors by their order, not by name.
        ordered = dict(sorted(inputs.items(), key=lambda item: (self._order.get(item[1], -1), item[1])))
        # And constants first: in a whole graph each stands before its first use, which is in the first layer.
        places = sorted(needed, key=lambda i: (self._operations[i].operation.name != "stablehlo.constant", i))
        return [self._operations[i] for i in places], ordered

    @functools.cached_property
    def _lines(self) -> dict[int, tuple[int, str]]:
        with self._context:
            return op_lines(self.graph, self._operations)


def _computed(subgraph: Subgraph) -> list[tuple[Any, Any]]:
    """A subgraph's operations, but for constants, each with a result of it that is used and that a graph can return."""
    return [
        (operation, result)
        for operation in subgraph.parts if operation.operation.name != "stablehlo.constant"
        for result in operation.results
        if (len(operation.results) == 1 or list(result.uses)) and TYPE.fullmatch(str(result.type))
    ]  # fmt: skip


def _table(value: Any) -> np.ndarray | None:
    """A constant's floats; None of one number throughout, of another type, and of any other value."""
    operation = None if isinstance(value, ir.BlockArgument) else value.owner
    if operation is None or operation.name != "stablehlo.constant":
        return None
    elements = ir.DenseElementsAttr(operation.attributes["value"])
    kind = ir.RankedTensorType(value.type).element_type
    if elements.is_splat or not isinstance(kind, ir.F32Type | ir.F64Type):
        return None
    return np.array(elements)


def op_lines(graph: Graph, operations: Sequence[Any]) -> dict[int, tuple[int, str]]:
    """Index of an operation -> its line in a graph's text, counted from 1, and what stands there.

    What was put around somebody else's graph has none. To be called within an MLIR context.

    Args:
      operations: of the graph's function, calls inlined.
    """
    text = (graph.written or graph.text).splitlines()
    if graph.written:  # each operation says where it was
        lines = [place_of(operation.location) for operation in operations]
    else:
        module = ir.Module.parse(without_locations(graph.text))
        inline_calls(module, graph.abi.function)
        bare = function_named(module, graph.abi.function).regions[0].blocks[0].operations
        lines = [line_of(operation.location) for operation in bare]
    return {i: (line, text[line - 1].strip()) for i, line in enumerate(lines) if line and line <= len(text)}


@functools.lru_cache(maxsize=8)
def anatomy_of(graph: Graph, config: Config, without: frozenset[str] = frozenset()) -> Anatomy:
    """The graph's anatomy. Parsing it and writing its subgraphs is done once, however many questions are asked of it."""
    return Anatomy(graph, config, without)


def peer_of(anatomy: Anatomy, graph: Graph) -> Anatomy:
    """Another graph's anatomy to compare with: without scores and probabilities in the layers where the one has none.

    Attention to a block of keys at a time has none as a whole. Of a graph with rings some layers may attend so, and others not.
    """
    inside = {a for a in anchors(anatomy.config) if split(a)[1] in FUSED_BY_IREE}
    whole = {split(a)[0] for a in inside & anatomy.values.keys()}
    return anatomy_of(graph, anatomy.config, frozenset(a for a in inside if split(a)[0] not in whole))


def _tensor(name: str, value: Any) -> Tensor:
    found = _TENSOR.fullmatch(str(value.type))
    if not found:
        raise Unsupported(f"a value of type {value.type} as an argument or a result")
    shape = tuple(int(n) for n in found[1].split("x") if n)
    return Tensor("tap", name, shape, found[2])


def _floats(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor of floats, as every anchor's value is; None of any other value, whatever scope it stands in."""
    found = TYPE.fullmatch(str(value.type))
    return _tensor("", value).shape if found and found[2] in FLOATS else None


def _holds(value: Any, cache: Tensor) -> bool:
    """Whether a value is like a whole cache; what floats are of does not matter. Scales have an axis of one behind."""
    shape = (*cache.shape, 1) if cache.role in SCALES else cache.shape
    if cache.dtype == "i8":
        found = TYPE.fullmatch(str(value.type))
        return found is not None and found[2] == "i8" and _tensor("", value).shape == shape
    return _floats(value) == shape


def _holds_rows(value: Any, cache: Tensor) -> bool:
    """Whether a value is a whole cache as rows, [slots of all heads, D], as which it is written by index. The shape alone would
    not tell the order of the rows: it is that of the cache where the graph reshapes it to that.
    """
    found = _TENSOR.fullmatch(str(value.type))
    if found is None or found[1].count("x") != 2:
        return False
    reshaped = (use.owner for use in value.uses if use.owner.operation.name == RESHAPE)
    return any(_holds(operation.results[0], cache) for operation in reshaped)


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)
