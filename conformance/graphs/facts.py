"""What a graph is made of, read from parsed MLIR: operations by kind and scope, matmuls, aliases, unused weights."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hloracle.conformance.graphs.files import differences, symbol
from hloracle.core.abi import Graph, Tensor
from hloracle.core.bindings import attribute_of
from hloracle.core.cache import digest
from hloracle.core.locations import line_of, name_of, place_of
from hloracle.core.shown import shown
from hloracle.localize.text import without_locations
from hloracle.reference.model.anchors import anchor_of
from hloracle.reference.model.weights import parts_in

LINE = re.compile(r"\":(\d+):\d+")
SCOPE = re.compile(r"loc\(\"([^\"]+)\"\)")
WRITTEN = re.compile(r"^\s*(%[\w$.\-]+)(?::\d+)?\s*=\s*\"?([a-z_]+\.\w+)")
LAYER = re.compile(r"^layers\.\d+")
# What asks for more than one device, or for a partner outside of the graph.
COLLECTIVE = frozenset({
    "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "infeed", "outfeed",
    "partition_id", "recv", "reduce_scatter", "replica_id", "send",
})  # fmt: skip
WEIGHT = re.compile(r"^model\.|\.(?:weight|bias)$")
# Initial values that change nothing, however often a compiler uses them. Maxima and minima have no such rule: to take a
# value twice is to take it once.
NEUTRAL = {"stablehlo.add": 0, "stablehlo.multiply": 1}


@dataclass(frozen=True)
class Spot:
    """Where an operation stands. operation: its kind, its value and its line, such as `stablehlo.add %sum at line 12`."""

    operation: str
    anchor: str = ""

    def __str__(self) -> str:
        return self.operation + f", in {self.anchor}" * bool(self.anchor)


@dataclass(frozen=True)
class GraphFacts:
    """Everything the checks ask of one graph. `error` is the parser's or verifier's message, and empties the rest.

    Of a module with several functions it is about the entry point, and those that it calls.

    ops: operations of the StableHLO dialect by kind, those in regions included.
    scopes: the same by anchor, with layers folded into `layers.*`.
    others: operations of other dialects than func and builtin. random: those that draw random numbers.
    beyond: what no backend here can run, in words.
    reductions: those whose value depends on how often a compiler uses their initial value.
    matmuls: products by anchor, layers told apart: dot_general, sums of products of which some are hidden, and sums of a weight
      that is held in another way; that of a fused weight once for each part that takes its own rows of it, and one that each
      turn of a loop does for the turn before once, though the last stands after the loop.
    tables: constants of more than one value, as digests of their distinct absolute float32 values.
    places: for each of the findings below, the anchor where the first of them stands.
    custom_calls: targets that are not allowed. allowed_calls: how often each target that is allowed is called.
    abi_mismatch: where the signature, or the layout of a buffer, is not what the ABI says; donations: where only they are not.
    first: the first operation of each kind. dtypes, calls: the first value of each element type, arguments included, and the
      first custom_call of each target, allowed ones too.
    constant: the most elements of a constant that is not one number throughout, and where it is; None without one.
    arguments, results: the names of each, its number among them. donated: result -> argument, as the function says.
    """

    error: str = ""
    ops: dict[str, int] = field(default_factory=dict)
    scopes: dict[str, dict[str, int]] = field(default_factory=dict)
    matmuls: dict[str, int] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    custom_calls: tuple[str, ...] = ()
    allowed_calls: dict[str, int] = field(default_factory=dict)
    f64: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    reductions: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    abi_mismatch: tuple[str, ...] = ()
    donations: tuple[str, ...] = ()
    first: dict[str, Spot] = field(default_factory=dict)
    dtypes: dict[str, Spot] = field(default_factory=dict)
    calls: dict[str, Spot] = field(default_factory=dict)
    constant: tuple[int, Spot] | None = None
    arguments: tuple[tuple[str, ...], ...] = ()
    results: tuple[tuple[str, ...], ...] = ()
    donated: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many StableHLO operations the graph has, those in regions included: the record's `op_total`."""
        return sum(self.ops.values())


# The graphs of one source, each with the facts about it.
Inspected = list[tuple[Graph, GraphFacts]]


def inspect(graph: Graph, allowed: Sequence[str] = ()) -> GraphFacts:
    """Parse, verify and walk a graph. Imports jaxlib, which carries MLIR. allowed: targets of custom_calls."""
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir

    with jax_mlir.make_ir_context():
        try:
            module = ir.Module.parse(graph.text)
            module.operation.verify()
        except (ir.MLIRError, ValueError) as error:
            message = " ".join(str(error).split())
            return GraphFacts(error=message, places=_place_of_error(graph.text, message))
        functions = {symbol(op, "sym_name"): op for op in module.body.operations if op.operation.name == "func.func"}
        main = functions.get(graph.abi.function)
        if main is None:
            return GraphFacts(error=f"has no function @{graph.abi.function}")
        calls = {name: _called_by(function, ir) for name, function in functions.items()}
        entry = graph.inner or graph.abi.function  # what adapts a graph to the contract is none of its own
        if wrong := [
            found for name in (graph.abi.function, entry) for found in _aliases_of_nothing(functions[name], ir)
        ]:
            return GraphFacts(error=wrong[0])
        running = {entry, *_reached(entry, calls)}
        # What nothing calls never runs.
        idle = [function for name, function in functions.items() if name not in running]
        used = [op for op in module.body.operations if op not in idle]
        facts = _walk(used, ir, allowed) | _spots(used, _Places(graph, module, ir), ir)
        recursive = [f"@{name}, which calls itself" for name in functions if name in running & _reached(name, calls)]
        facts["beyond"] = (*facts["beyond"], *recursive)
        arguments, results = _names(functions[entry], graph)
        block = functions[entry].regions[0].blocks[0]
        taken = _taken(main, graph, ir)
        mismatch = (*differences(main, graph.abi), *_layouts(graph, module, main, ir))
        donations = _donations(graph, module, main)
        if donations:
            facts["places"]["donations"] = "k_cache.0"
        unused = tuple(
            tensor.name for tensor, argument in zip(taken, block.arguments, strict=False) if not list(argument.uses)
        )
        if unused:
            first = next(t for t in taken if t.name == unused[0])
            facts["places"]["unused"] = WEIGHT.sub("", parts_in(first.weight)[0])
        for anchor, more in _encoded_products(graph, block, ir).items():
            facts["matmuls"][anchor] = facts["matmuls"].get(anchor, 0) + more
        return GraphFacts(
            **facts, unused=unused, abi_mismatch=mismatch, donations=donations, arguments=arguments, results=results,
            donated=_donated(functions[entry]),
        )  # fmt: skip


def _taken(main: Any, graph: Graph, ir: Any) -> Sequence[Tensor]:
    """What each argument of the judged function is: of an adapted one the weights by the call of it, others by position."""
    if not graph.inner:
        return graph.abi.arguments
    (call,) = (op for op in main.regions[0].blocks[0].operations if _callee(op) == graph.inner)
    return [
        graph.abi.arguments[ir.BlockArgument(operand).arg_number] if isinstance(operand.owner, ir.Block)
        else Tensor("input", f"argument {i}", (), "i32")
        for i, operand in enumerate(call.operands)
    ]  # fmt: skip


def _callee(operation: Any) -> str:
    from hloracle.localize.inline import callee_of

    return callee_of(operation)


def _sums_products(reduce: Any) -> bool:
    """Whether a reduction sums the products of two values that are broadcast, some of them hidden: one query's attention."""
    adds = [operation.operation.name for operation in reduce.regions[0].blocks[0]] == [
        "stablehlo.add",
        "stablehlo.return",
    ]
    select = reduce.operands[0].owner
    if not adds or _name(select) != "stablehlo.select":
        return False
    return any(
        _name(multiply) == "stablehlo.multiply"
        and all(_name(operand.owner) == "stablehlo.broadcast_in_dim" for operand in multiply.operands)
        for multiply in (branch.owner for branch in list(select.operands)[1:])
    )


DIMENSIONS = "dot_dimension_numbers"


def _last_of_loop(product: Any, ir: Any) -> bool:
    """Whether a product of a loop's results is one that each turn makes of what the turn before left: the last turn's, made once."""
    owners = {operand.owner for operand in product.operands}
    if [*map(_name, owners)] != ["stablehlo.while"]:
        return False
    carried = [ir.OpResult(operand).result_number for operand in product.operands]
    turn = next(iter(owners)).regions[1].blocks[0]
    given = [turn.arguments[number] for number in carried]

    def same(op: Any, operands: Sequence[Any]) -> bool:
        return (
            _name(op) == "stablehlo.dot_general"
            and [*op.operands] == [*operands]
            and op.attributes[DIMENSIONS] == product.attributes[DIMENSIONS]
        )

    users = {use.owner for use in product.operands[0].uses}
    return sum(same(op, product.operands) for op in users) == 1 and any(same(op, given) for op in turn)


def _name(owner: Any) -> str:
    """Of what makes a value; empty for the block whose argument it is."""
    return str(owner.operation.name) if hasattr(owner, "operation") else ""


# What a weight goes through between an argument and the sum that a product of one token is written as.
TOWARDS_A_SUM = frozenset(
    f"stablehlo.{op}"
    for op in ("add", "and", "broadcast_in_dim", "convert", "multiply", "reshape", "shift_right_logical", "slice")
)


def _encoded_products(graph: Graph, block: Any, ir: Any) -> Counter[str]:
    """Anchor -> how many products with encoded weights there are, less the dot_general that they are written as.

    A sum that a weight goes into is a product. Two dot_general are one where a weight is in halves. One that is written
    for a fused weight counts where its parts take their rows; a second one of the same weight for nobody.
    """
    found: dict[tuple[str, str, str], set[Any]] = {}
    for tensor, argument in zip(graph.abi.arguments, block.arguments, strict=False):
        todo = [argument] if tensor.encoding != "plain" else []
        while todo:
            for use in todo.pop().uses:
                operation = use.owner.operation
                if operation.name in ("stablehlo.reduce", "stablehlo.dot_general"):
                    found.setdefault((tensor.weight, _anchor(operation), operation.name), set()).add(operation)
                elif operation.name in TOWARDS_A_SUM:
                    todo += list(operation.results)
    halves = {t.weight for t in graph.abi.weights if t.encoding.startswith(("int8", "int4"))}
    more: Counter[str] = Counter()
    seen: set[str] = set()
    place = {operation.operation: i for i, operation in enumerate(block.operations)}
    in_order = sorted(found.items(), key=lambda item: min(place[operation] for operation in item[1]))
    for (weight, anchor, name), operations in in_order:
        count = len(operations)
        if name == "stablehlo.reduce":
            more[anchor] += count
        elif weight in halves:
            more[anchor] += (count + 1) // 2 - count
        parts = [WEIGHT.sub("", part) for part in parts_in(weight)]
        if len(parts) > 1 and (taken := _rows_taken(operations, ir)):
            more[anchor] -= 1
            if weight not in seen:
                more.update(_right_rows(parts, taken))
            seen.add(weight)
    return more


@dataclass(frozen=True)
class Rows:
    """What an operation at an anchor takes of a product with N rows of a weight: those from `start` to `limit`."""

    anchor: str
    start: int
    limit: int
    of: int


def _rows_taken(operations: Iterable[Any], ir: Any) -> list[Rows]:
    """The slices of the product [T, N] that these operations make together, by where they begin."""
    found: dict[Any, Rows] = {}
    todo = [result for operation in operations for result in operation.results]
    while todo:
        value = todo.pop()
        for operation in (use.owner.operation for use in value.uses):
            if operation.name in ("stablehlo.add", "stablehlo.reshape", "stablehlo.transpose"):
                todo += list(operation.results)
            elif operation.name == "stablehlo.slice":
                (*_, of), (*_, start), (*_, limit) = (
                    ir.RankedTensorType(value.type).shape,
                    *(ir.DenseI64ArrayAttr(operation.attributes[f"{name}_indices"]) for name in ("start", "limit")),
                )
                found[operation] = Rows(_anchor(operation), start, limit, of)
    return sorted(found.values(), key=lambda rows: rows.start)


def _right_rows(parts: Sequence[str], taken: Sequence[Rows]) -> Counter[str]:
    """Where parts of a fused weight, one after another, take the rows that are theirs.

    How many those are is taken from the slices: reshapes after them, or sums, hold each to its own shape.
    """
    if not any(rows.anchor for rows in taken):  # a graph without locations
        of = {part: [rows] for part, rows in zip(parts, taken, strict=False)}
    else:
        of = {part: [rows for rows in taken if rows.anchor == part] for part in parts}
    size = {part: rows[0].limit - rows[0].start if len(rows) == 1 else 0 for part, rows in of.items()}
    missing = [part for part in parts if not size.get(part)]
    if len(missing) == 1:
        size[missing[0]] = taken[0].of - sum(size.values())
    right: Counter[str] = Counter()
    for i, part in enumerate(parts):
        if len(of.get(part, ())) == 1 and of[part][0].start == sum(size.get(before, 0) for before in parts[:i]):
            right[of[part][0].anchor] += 1
    return right


def _anchor(operation: Any) -> str:
    return anchor_of(name_of(operation.location))


def _place_of_error(text: str, message: str) -> dict[str, str]:
    """`error`: the anchor of the line that the parser complains of, where that line has one; `operation`: which one stands there."""
    found = LINE.search(message)
    lines = text.splitlines()
    if not found or int(found[1]) > len(lines):
        return {}
    line = lines[int(found[1]) - 1]
    scope, written = SCOPE.search(line), WRITTEN.search(line)
    places = {"error": anchor_of(scope[1]) if scope else ""}
    return places | ({"operation": f"{written[2]} {written[1]} at line {found[1]}"} if written else {})


def _odd_one_out(scopes: dict[str, Counter[str]]) -> str:
    """The anchor whose operations in one layer are not those that it has in most layers, if there is one."""
    by_part: dict[str, dict[str, frozenset[tuple[str, int]]]] = {}
    for scope, kinds in scopes.items():
        by_part.setdefault(LAYER.sub("layers.*", scope), {})[scope] = frozenset(kinds.items())
    for layers in by_part.values():
        (usual, count), *_ = Counter(layers.values()).most_common()
        if 1 < count < len(layers):
            return next(anchor_of(scope) for scope, kinds in layers.items() if kinds != usual)
    return ""


def _walk(operations: Sequence[Any], ir: Any, allowed: Sequence[str]) -> dict[str, Any]:
    """The facts that follow from single operations, and the place of the first of each kind of finding."""
    ops: Counter[str] = Counter()
    scopes: dict[str, Counter[str]] = {}
    by_layer: dict[str, Counter[str]] = {}
    matmuls: Counter[str] = Counter()
    allowed_calls = dict.fromkeys(allowed, 0)
    beyond: list[str] = []
    found: dict[str, list[str]] = {}
    places: dict[str, str] = {}

    def place(operation: Any) -> str:
        """The anchor of an operation, or of what first uses it."""
        todo, seen = [operation], 0
        while todo and seen < 100:
            seen += 1
            user = todo.pop(0)
            if name := name_of(user.location):
                return anchor_of(name)
            # Uses are listed the last first.
            todo += [use.owner for result in user.results for use in reversed(list(result.uses))]
        return ""

    def note(field: str, words: str, operation: Any) -> None:
        found.setdefault(field, []).append(words)
        places.setdefault(field, place(operation))

    def visit(operation: Any) -> Any:
        dialect, _, kind = operation.name.partition(".")
        anchor = name_of(operation.location)
        if dialect == "stablehlo":
            ops[kind] += 1
            scopes.setdefault(LAYER.sub("layers.*", anchor), Counter())[kind] += 1
            by_layer.setdefault(anchor, Counter())[kind] += 1
            where = anchor or "the function"
            if kind == "custom_call":
                target = ir.StringAttr(operation.attributes["call_target_name"]).value
                if target in allowed:
                    allowed_calls[target] += 1
                else:
                    note("custom_calls", target, operation)
            if kind == "rng":
                note("random", f"stablehlo.rng in {where}", operation)
            if kind in ("reduce", "reduce_window") and (begins := _begins_wrongly(operation, ir)):
                note("reductions", f"stablehlo.{kind} in {where}, {begins}", operation)
            if kind in COLLECTIVE:
                beyond.append(f"stablehlo.{kind}, which is of several devices")
            if any("f64" in str(r.type) for r in operation.results):
                note("f64", f"{kind} in {where}", operation)
            if (kind == "dot_general" and not _last_of_loop(operation, ir)) or (
                kind == "reduce" and _sums_products(operation)
            ):
                matmuls[anchor_of(anchor)] += 1
            if kind == "constant" and (table := _table(_elements(operation), ir)):
                note("tables", table, operation)
        elif dialect not in ("func", "builtin"):
            if dialect in ("sdy", "mpmd"):
                beyond.append(f"{operation.name}, which places values on several devices")
            note("others", operation.name, operation)
        return ir.WalkResult.ADVANCE

    for operation in operations:
        operation.operation.walk(visit)
    places["census"] = _odd_one_out(by_layer)
    return {
        **{field: tuple(words) for field, words in found.items()},
        "ops": dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        "scopes": {scope: dict(sorted(kinds.items())) for scope, kinds in scopes.items()},
        "others": tuple(sorted(set(found.get("others", ())))),
        "allowed_calls": allowed_calls,
        "beyond": tuple(dict.fromkeys(beyond)),
        "matmuls": dict(matmuls),
        "places": places,
    }


class _Places:
    """Where operations stand: the line of each in the text, and its anchor."""

    def __init__(self, graph: Graph, module: Any, ir: Any) -> None:
        self._text = (graph.written or graph.text).splitlines()
        operations = _all(module.operation, ir)
        if graph.written:  # each operation says where it was
            places: Iterable[int | None] = map(place_of, (operation.location for operation in operations))
        else:  # one without a location gets the place that it was parsed from
            bare = ir.Module.parse(without_locations(graph.text))
            places = map(line_of, (operation.location for operation in _all(bare.operation, ir)))
        self._lines = dict(zip(operations, places, strict=True))

    def spot(self, operation: Any, name: str = "") -> Spot:
        """Where an operation stands. name: what is said of it, if that is more than its own name."""
        line = self._lines.get(operation)
        text = self._text[line - 1] if line and line <= len(self._text) else ""
        value = text.partition(" = ")[0].strip() if text.lstrip().startswith("%") else ""
        words = [name or operation.name, *([value] if value else []), *([f"at line {line}"] if line else [])]
        return Spot(" ".join(words), _anchor(operation))


def _all(operation: Any, ir: Any) -> list[Any]:
    """An operation and all in its regions, in order."""
    found: list[Any] = []

    def visit(inner: Any) -> Any:
        found.append(inner)
        return ir.WalkResult.ADVANCE

    operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def _spots(operations: Sequence[Any], places: _Places, ir: Any) -> dict[str, Any]:
    """The first of each kind of operation, of each element type and of each target of a call; and the largest constant."""
    first: dict[str, Spot] = {}
    dtypes: dict[str, Spot] = {}
    calls: dict[str, Spot] = {}
    constant: tuple[int, Spot] | None = None
    for operation in (inner for one in operations for inner in _all(one.operation, ir)):
        dialect, _, kind = operation.name.partition(".")
        blocks = operation.regions[0].blocks if operation.name == "func.func" else []
        taken = blocks[0].arguments if len(blocks) else ()  # what is declared only has no block
        for i, value in enumerate(taken or operation.results):
            if (dtype := _dtype(value.type, ir)) not in dtypes:
                dtypes[dtype] = places.spot(operation, f"argument {i}" if taken else "")
        if dialect != "stablehlo":
            continue
        if kind not in first:
            first[kind] = places.spot(operation)
        if kind == "custom_call":
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if target not in calls:
                calls[target] = places.spot(operation, f"{operation.name} @{target}")
        if kind == "constant" and (size := _size(operation, ir)) > (constant[0] if constant else 0):
            constant = size, places.spot(operation)
    return {"first": first, "dtypes": dtypes, "calls": calls, "constant": constant}


def _dtype(type: Any, ir: Any) -> str:
    """The element type of a tensor; of anything else the type itself."""
    try:
        return str(ir.ShapedType(type).element_type)
    except (ValueError, TypeError):
        return str(type)


def _size(constant: Any, ir: Any) -> int:
    """How many numbers a constant holds: one, where they are all the same."""
    elements = _elements(constant)
    if isinstance(elements, ir.DenseElementsAttr) and elements.is_splat:
        return 1
    return math.prod(ir.ShapedType(constant.results[0].type).shape)


def _names(function: Any, graph: Graph) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """What each argument and each result of the judged function may be called: by its ABI file, or by its number."""
    if graph.inner:
        from hloracle.foreign.signature import signature_of

        found = signature_of(function, graph.text)
        return tuple(port.names for port in found.arguments), tuple(port.names for port in found.results)
    arguments, results = (
        tuple((tensor.name, str(i)) for i, tensor in enumerate(tensors))
        for tensors in (graph.abi.arguments, graph.abi.results)
    )
    return arguments, results


def _begins_wrongly(operation: Any, ir: Any) -> str:
    """What a reduction's sum or product begins with that changes it, in words; nothing where that is not known.

    StableHLO leaves to a compiler how it cuts a reduction into parts, each of which may begin with the initial value.
    """
    block = operation.regions[0].blocks[0]
    *_, end = block.operations
    initial = list(operation.operands)[len(operation.results) :]
    for value, returned in zip(initial, end.operands, strict=True):
        if not (isinstance(value, ir.OpResult) and isinstance(returned, ir.OpResult)):
            continue
        constant, body = value.owner.operation, returned.owner.operation
        if constant.name == "stablehlo.constant" and body.name in NEUTRAL and {*body.operands} <= {*block.arguments}:
            elements = _elements(constant)
            if not isinstance(elements, ir.DenseElementsAttr):
                continue
            if (begin := elements.get_splat_value().value) != NEUTRAL[body.name]:
                return f"{body.name} from {begin:g} on"
    return ""


def _elements(constant: Any) -> Any:
    """What a constant holds; None where that is complex numbers, which the bindings cannot read."""
    try:
        return constant.attributes["value"]
    except TypeError:
        return None


def _table(value, ir) -> str:  # type: ignore[no-untyped-def]
    """The digest of a float32 constant that is not a splat, else nothing."""
    if not isinstance(value, ir.DenseFPElementsAttr) or value.is_splat:
        return ""
    return table_digest(np.array(value))


def table_digest(table: np.ndarray) -> str:
    """What stays of a table of numbers however a graph lays it out: its distinct absolute values, bit for bit."""
    return digest(np.unique(np.abs(table.astype(np.float32))).tobytes())


LAYOUT = "mhlo.layout_mode"
# Of all arguments, and of all results.
MODULE_LAYOUTS = ("mhlo.xla_entry_computation_parameter_layouts", "mhlo.xla_entry_computation_result_layout")


def _layouts(graph: Graph, module: Any, main: Any, ir: Any) -> tuple[str, ...]:
    """Where the graph asks for a buffer that is not row-major, as all are that it is given and that it has to give."""

    def listed(attributes: Any, key: str) -> list[Any]:
        return list(attributes[key]) if key in attributes and isinstance(attributes[key], ir.ArrayAttr) else []

    problems: list[str] = []
    for what, tensors, key, of_module in (
        ("argument", graph.abi.arguments, "arg_attrs", MODULE_LAYOUTS[0]),
        ("result", graph.abi.results, "res_attrs", MODULE_LAYOUTS[1]),
    ):
        asked = [
            (LAYOUT, tensor, str(each[LAYOUT]).strip('"'))
            for tensor, each in zip(tensors, listed(main.attributes, key), strict=False) if LAYOUT in each
        ]  # fmt: skip
        asked += [
            (of_module, tensor, f"{{{','.join(map(str, layout))}}}")
            for tensor, layout in zip(tensors, listed(module.operation.attributes, of_module), strict=False)
            if isinstance(layout, ir.DenseIntElementsAttr)
        ]
        for attribute, tensor, layout in asked:
            row_major = ",".join(str(axis) for axis in reversed(range(len(tensor.shape))))
            if layout.replace(" ", "") not in ("default", f"{{{row_major}}}"):
                problems.append(
                    f'{what} {tensor.name} has {attribute} "{layout}": its buffer is row-major, so leave that out'
                )
    return tuple(problems)


MODULE_ALIAS = "mhlo.input_output_alias"
ALIAS = "tf.aliasing_output"  # of an argument


def _donations(graph: Graph, module: Any, main: Any) -> tuple[str, ...]:
    """Where the function donates other arguments than the ABI says; or the module does, which XLA lets come first."""
    attributes = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else []  # noqa: SIM401  (has no get)
    donated = _donated(main)
    wanted = {i: r.aliases for i, r in enumerate(graph.abi.results) if r.aliases is not None}
    problems = [] if donated == wanted else [f"donates {donated} (result: argument), the ABI says {wanted}"]
    free = [i for i, a in enumerate(attributes) if "jax.buffer_donor" in a and i not in wanted.values()]
    if MODULE_ALIAS in module.operation.attributes:
        problems.append(f"the module donates by {MODULE_ALIAS}, not its function")
    return (*problems, *(f"gives argument {i} away, which the ABI does not" for i in free))


def _aliases(function: Any) -> dict[int, Any]:
    """Argument -> the attribute that says which result takes over its buffer."""
    attributes = function.attributes["arg_attrs"] if "arg_attrs" in function.attributes else []  # noqa: SIM401
    return {i: attribute_of(a, ALIAS) for i, a in enumerate(attributes) if ALIAS in a}


def _aliases_of_nothing(function: Any, ir: Any) -> Iterator[str]:
    """Arguments that alias no result of a function. MLIR accepts any attribute of this name, and XLA aborts when it compiles one."""
    results = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)
    for argument, given in _aliases(function).items():
        if not isinstance(given, ir.IntegerAttr) or not 0 <= given.value < results:
            result = "loc(…)" if given is None else shown(str(given), 80)
            yield f"gives argument {argument} to result {result} ({ALIAS}), of which there are {results}"


def _donated(function: Any) -> dict[int, int]:
    """Result -> the argument whose buffer it takes over, by the function's own words."""
    return {given.value: argument for argument, given in _aliases(function).items()}


def _called_by(function: Any, ir: Any) -> set[str]:
    """The functions that a function names in its calls."""
    from hloracle.localize.inline import callee_of

    found: set[str] = set()

    def visit(operation: Any) -> Any:
        found.add(callee_of(operation))
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return found - {""}


def _reached(name: str, calls: Mapping[str, set[str]]) -> set[str]:
    """The functions that a function calls, directly or not; the function itself only where it does so."""
    found: set[str] = set()
    todo = [*calls.get(name, ())]
    while todo:
        if (callee := todo.pop()) not in found:
            found.add(callee)
            todo += calls.get(callee, ())
    return found
