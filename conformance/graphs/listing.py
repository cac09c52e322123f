"""A graph as a reader goes through it: its scopes in order, each with its operations, its arithmetic and its traffic.

And one layer of it as a drawing: what its scopes compute from what.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hloracle.core.abi import DTYPE_BYTES, SCALES, Graph, cache_of, scale_of
from hloracle.core.cache import digest
from hloracle.core.record import ListedOp, Node
from hloracle.localize.text import TYPE, anchor_at, function_named, without_locations
from hloracle.reference.model.anchors import CACHES, split

# One operation on floating-point numbers for each element of the result.
ARITHMETIC = frozenset(
    "abs add atan2 cbrt ceil clamp cosine divide exponential exponential_minus_one floor log log_plus_one logistic maximum "
    "minimum multiply negate power remainder rsqrt sine sqrt subtract tan tanh".split()
)
VIEWS = frozenset(["reshape", "slice", "dynamic_slice", "gather", "transpose"])  # of a part, or of all in another order
READS_A_PART = frozenset(["slice", "dynamic_slice", "gather"])
WRITES_A_PART = {"dynamic_update_slice": 1, "scatter": 2}  # -> which operand is written
ELSEWHERE = frozenset(["func.call", "custom_call", "composite"])  # computes in another function
LAYER_IN_NAME = re.compile(r"\blayers\.\d+\b")
SLOT = {"dynamic_slice": 1, "dynamic_update_slice": 2}  # -> the operand that says where along the first axis
LONGEST_LINE = 600  # characters of a graph's line that are kept
TABLE = re.compile(r"(0x[0-9A-Fa-f]{24})[0-9A-Fa-f]{24,}")  # a constant's values
FIRST = re.compile(r"((?:start|limit)_indices=array<i64: )(\d+)")  # of a slice's


@dataclass(frozen=True)
class Scope:
    """What stands in one scope, with the constants that it uses. Two layers' scopes that are alike have one signature.

    flops, bytes: None where something is computed that is not counted, such as in a loop.
    """

    anchor: str
    signature: str
    flops: int | None
    bytes: int | None
    ops: list[ListedOp]


# One layer: its nodes, and what goes from one to another, as pairs of their indices. See core/record.py.
Block = tuple[list[Node], list[list[int]]]


@dataclass(frozen=True)
class Reading:
    """A graph's scopes in the order in which each is first entered, and its layers' drawings."""

    scopes: tuple[Scope, ...]
    blocks: dict[int, Block]


def read(graph: Graph) -> Reading:
    """Read a graph that parses. Imports jaxlib, which carries MLIR."""
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir

    from hloracle.localize.anatomy import op_lines
    from hloracle.localize.inline import inline_calls

    with jax_mlir.make_ir_context():
        module = ir.Module.parse(graph.text)  # owns what is read here
        inline_calls(module, graph.abi.function)
        main = function_named(module, graph.abi.function)
        block = main.regions[0].blocks[0]
        lines = {i: line for i, (line, _) in op_lines(graph, list(block.operations)).items()}
        reader = _Reader(graph, block, lines)
        return Reading(reader.scopes(), reader.blocks())


class _Reader:
    """A function's operations with what is asked of each again and again. `lines`: of operations by their index."""

    def __init__(self, graph: Graph, block: Any, lines: dict[int, int]) -> None:
        self._lines = lines
        self._text = (graph.written or graph.text).splitlines()
        self._arguments = dict(zip(block.arguments, graph.abi.arguments, strict=False))
        self._operations = list(block.operations)
        self._abi = graph.abi
        self._caches = {role: graph.abi.results[graph.abi.result(role)].shape for role in graph.abi.caches}
        self._texts: dict[Any, str] = {}
        self._kinds = [_kind(operation) for operation in self._operations]
        self._index = {operation.operation: i for i, operation in enumerate(self._operations)}
        # By the result: a constant has no scope of its own, it belongs to whoever uses it.
        self._makers = {result: i for i, operation in enumerate(self._operations) for result in operation.results}
        self._anchors = [anchor_at(operation) for operation in self._operations]
        self._computing = [
            i for i, kind in enumerate(self._kinds)
            if kind not in ("constant", "func.return") and (i in lines or not graph.written)
        ]  # fmt: skip
        self._put_around = {*range(len(self._kinds))} - lines.keys() if graph.written else set[int]()
        self._places: dict[str, list[int]] = {}
        for i in self._computing:
            self._places.setdefault(self._anchors[i], []).append(i)
        self._left = self._handed_on()

    def scopes(self) -> tuple[Scope, ...]:
        found = []
        for anchor, inside in self._places.items():
            ops: list[ListedOp] = []
            listed: set[int] = set()
            for i in inside:
                used = (self._makers.get(operand) for operand in self._operands(i))
                for j in [*(j for j in used if j is not None and self._kinds[j] == "constant"), i]:
                    if j not in listed:
                        listed.add(j)
                        ops.append(self._listed(j))
            flops: int | None = None
            nbytes: int | None = None
            if all(_is_counted(self._kinds[i], self._operations[i]) for i in inside):
                flops = sum(_flops(self._kinds[i], self._operations[i]) for i in inside)
                nbytes = self._traffic(inside)
            found.append(Scope(anchor, self._signature(anchor, inside), flops, nbytes, ops))
        return tuple(found)

    def _operands(self, i: int) -> list[Any]:
        """An operation's operands, as they were before anything was put around the graph to lay its values out."""
        found = []
        for value in self._operations[i].operands:
            while (maker := self._makers.get(value, -1)) in self._put_around and self._operations[maker].operands:
                value = self._operations[maker].operands[1 if self._kinds[maker] == "select" else 0]
            found.append(value)
        return found

    def _listed(self, i: int) -> ListedOp:
        line = self._lines.get(i)
        text = "" if line is None else _shown(self._text[line - 1])
        return {"op": self._kinds[i], "type": _type(self._operations[i]), "line": line, "text": text}

    def _signature(self, anchor: str, inside: Sequence[int]) -> str:
        """Equal for scopes of two layers that do the same with their own layers' values."""
        layer, _ = split(anchor)
        if layer is None:
            return ""
        begin: int = layer
        index = {i: n for n, i in enumerate(inside)}
        words = []
        for i in inside:
            operation = self._operations[i]
            kind = self._kinds[i]
            operands = [self._operand(v, layer, index) for v in self._operands(i)]
            attributes = self._attributes(operation)
            # Where in the caches a layer's part begins is its number: in layer 3 a slice [3:4, …] is like [0:1, …] in layer 0.
            if kind in SLOT and operands[SLOT[kind]] == f"dense<{layer}> : tensor<i32>":
                operands[SLOT[kind]] = "layer"
            if kind == "slice" and _shape(operation.operands[0])[0] in self._caches.values():
                attributes = [FIRST.sub(lambda m: f"{m[1]}{int(m[2]) - begin}", a) for a in attributes]
            words.append(f"{kind} {operands} {attributes} {_type(operation)}")
            # Not as text: to print a part of a function, MLIR numbers all of it.
            inner = [o for region in operation.regions for block in region.blocks for o in block.operations]
            words += [f"{_kind(o)} {self._attributes(o)}" for o in inner]
        return digest("\n".join(words))[:16]

    def _attributes(self, operation: Any) -> list[str]:
        named = operation.attributes
        return [f"{named[i].name}={self._written_out(named[i].attr)}" for i in range(len(named))]

    def _written_out(self, attribute: Any) -> str:
        """An attribute as text. Writing one out is slow, and a graph has few different ones."""
        if attribute not in self._texts:
            self._texts[attribute] = str(attribute)
        return self._texts[attribute]

    def _handed_on(self) -> dict[Any, tuple[int, str]]:
        """Value -> the layer that is to take it, and as what: the embedding, or a layer's last value, and the caches."""
        last = {
            (self._next(a.role, -1), a.role if a.role in SCALES else cache_of(a.role)): value
            for value, a in self._arguments.items() if a.role in self._caches
        }  # fmt: skip
        for i in self._computing:
            layer, part = split(self._anchors[i])
            for result in self._operations[i].results:
                if part == "embed_tokens":
                    last[0, ""] = result
                elif layer is not None and not part:
                    last[layer + 1, ""] = result
                elif layer is not None and part in CACHES:
                    role = self._abi.role(part, layer)
                    if _shape(result)[0] == self._caches.get(role):
                        last[self._next(role, layer), part] = result
                    elif _shape(result)[0][:-1] == self._caches.get(scale_of(part)):  # with an axis of one behind
                        last[layer + 1, scale_of(part)] = result
        return {value: taker for taker, value in last.items()}

    def _next(self, role: str, layer: int) -> int:
        """The next layer that is in the same cache or ring."""
        after = layer + 1
        while (
            self._abi.windowed
            and after < self._abi.cache_shapes[0][0]
            and self._abi.role(cache_of(role), after) != role
        ):
            after += 1
        return after

    def _operand(self, value: Any, layer: int, index: dict[int, int]) -> str:
        """Where an operand comes from, seen from a layer: the same words in every layer of a right graph."""
        taker, what = self._left.get(value, (None, ""))
        if taker == layer:
            return f"before {what}"
        if (argument := self._arguments.get(value)) is not None:
            return LAYER_IN_NAME.sub(lambda m: "layers.*" if m[0] == f"layers.{layer}" else m[0], argument.name)
        i = self._makers.get(value)
        if i is None:
            return "argument"
        if self._kinds[i] == "constant":
            return self._written_out(self._operations[i].attributes["value"])
        if i in self._put_around:
            return "given"
        if i in index:
            return f"#{index[i]}.{value.result_number}"
        other, part = split(self._anchors[i])
        if other is None:
            return f"outside {i}.{value.result_number}"
        # From the scope's end: an operation more before it does not make what reads it unlike.
        inside = self._places[self._anchors[i]]
        return f"{other - layer} {part} {inside.index(i) - len(inside)}.{value.result_number}"

    def _traffic(self, inside: Sequence[int]) -> int:
        """Bytes that a scope reads from outside of it, and that it gives others, each value once."""
        mine = set(inside)
        read: dict[Any, int] = {}
        total = 0
        for i in inside:
            operation, kind = self._operations[i], self._kinds[i]
            for n, value in enumerate(self._operands(i)):
                maker = self._makers.get(value)
                if maker in mine or (maker is not None and self._kinds[maker] == "constant"):
                    continue
                if n == 0 and kind in WRITES_A_PART:
                    continue
                some = _nbytes(operation.results[0]) if n == 0 and kind in READS_A_PART else _nbytes(value)
                read[value] = min(_nbytes(value), read.get(value, 0) + some)
            if kind in WRITES_A_PART:
                total += _nbytes(operation.operands[WRITES_A_PART[kind]])
            elif any(self._index.get(use.owner.operation) not in mine for r in operation.results for use in r.uses):
                total += self._written(i, mine)
        return total + sum(read.values())

    def _written(self, i: int, mine: set[int]) -> int:
        """A view of what was there, or was written part by part, writes nothing."""
        source = i
        while self._kinds[source] in VIEWS:
            maker = self._makers.get(self._operands(source)[0])
            if maker not in mine:
                return 0
            source = maker
        return 0 if self._kinds[source] in WRITES_A_PART else sum(map(_nbytes, self._operations[i].results))

    # ---- a layer as a drawing

    def blocks(self) -> dict[int, Block]:
        """Every layer's drawing. A scope that is entered again, such as for the second sum, is a second node."""
        nodes: dict[int, list[list[int]]] = {}
        node_of: dict[int, tuple[int, int]] = {}
        for i in self._computing:
            layer, _ = split(self._anchors[i])
            if layer is None:
                continue
            runs = nodes.setdefault(layer, [])
            if not runs or self._anchors[runs[-1][-1]] != self._anchors[i]:
                runs.append([])
            runs[-1].append(i)
            node_of[i] = (layer, len(runs) - 1)
        return {layer: self._drawn(layer, runs, node_of) for layer, runs in nodes.items()}

    def _drawn(self, layer: int, runs: Sequence[Sequence[int]], node_of: dict[int, tuple[int, int]]) -> Block:
        before: dict[str, int] = {}  # what comes from outside the layer -> its index, from -1 downwards
        edges: dict[tuple[int, int], None] = {}
        made = []
        last = {self._anchors[run[0]]: n for n, run in enumerate(runs)}
        for n, run in enumerate(runs):
            weights = []
            for i in run:
                for value in self._operands(i):
                    argument, maker = self._arguments.get(value), self._makers.get(value)
                    if argument is not None and argument.role == "weight":
                        weights.append(argument.name)
                    if maker is None or self._kinds[maker] == "constant" or not self._anchors[maker]:
                        continue
                    if maker in node_of and node_of[maker][0] == layer:
                        if node_of[maker][1] != n:
                            edges[node_of[maker][1], n] = None
                    elif split(self._anchors[maker])[1] not in CACHES:
                        at = before.setdefault(self._anchors[maker], -1 - len(before))
                        edges[at, n] = None
            anchor = self._anchors[run[0]]
            kinds = Counter(self._kinds[i] for i in run)
            name = anchor if last[anchor] == n else ""
            made.append(Node(anchor=name, ops=dict(kinds), weights=list(dict.fromkeys(weights))))
        outer = [Node(anchor=name, ops={}, weights=[]) for name in before]
        shift = len(outer)
        return [*outer, *made], [[-1 - a if a < 0 else a + shift, b + shift] for a, b in edges]


def _shown(line: str) -> str:
    """A line of a graph's text without its location; what is longer than anyone reads, such as a table, is cut."""
    text = TABLE.sub(r"\1…", without_locations(line).strip())
    if len(text) > LONGEST_LINE:
        kept = LONGEST_LINE // 2
        text = f"{text[:kept]} … {text[-kept:]}"
    return text


def _kind(operation: Any) -> str:
    return str(operation.operation.name).removeprefix("stablehlo.")


def _is_counted(kind: str, operation: Any) -> bool:
    """Whether all that it computes is counted: not what stands in a region, but for a reduction's one operation."""
    blocks = itertools.chain.from_iterable(region.blocks for region in operation.regions)
    return kind not in ELSEWHERE and (kind == "reduce" or all(len(block.operations) <= 1 for block in blocks))


def _shape(value: Any) -> tuple[tuple[int, ...], str]:
    found = TYPE.fullmatch(str(value.type))
    return (tuple(int(n) for n in found[1].split("x") if n), found[2]) if found else ((), "")


def _nbytes(value: Any) -> int:
    shape, dtype = _shape(value)
    return math.prod(shape) * DTYPE_BYTES.get(dtype, 1) if dtype else 0


def _type(operation: Any) -> str:
    """The result's type, e.g. `1x576xf32`."""
    return ", ".join(str(r.type).removeprefix("tensor<").removesuffix(">") for r in operation.results)


def _flops(kind: str, operation: Any) -> int:
    if not len(operation.results):
        return 0
    shape, dtype = _shape(operation.results[0])
    if "f" not in dtype:
        return 0
    if kind == "dot_general":
        from jaxlib.mlir.dialects import stablehlo

        contracted = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
        lhs, _ = _shape(operation.operands[0])
        return 2 * math.prod(shape) * math.prod(lhs[n] for n in contracted.lhs_contracting_dimensions)
    if kind == "reduce":
        return math.prod(_shape(operation.operands[0])[0])
    return math.prod(shape) if kind in ARITHMETIC else 0
