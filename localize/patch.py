"""Writes a change of one operation into the text of its graph: the line as it should stand there, and the whole as a diff."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from hloracle.core.abi import Graph
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.draft import constant_of
from hloracle.localize.inline import copied
from hloracle.localize.text import code_of
from hloracle.repair.subject import CANNOT, Edit
from hloracle.semantics.numbers import FLOATS, own_type
from hloracle.semantics.program import Operation, Type

_ARGUMENT = re.compile(r"(%[\w$.\-]+)\s*:(?!:)")
_DEFINED = re.compile(r"^\s*(%[\w$.\-]+)(?::\d+)?\s*=\s")
_LOCATION = re.compile(r"\s*loc\((?:[^()]|\([^()]*\))*\)\s*$")
_OPENED = ("{", "({", "(", ",")
_PRINTED = re.compile(r"%[\w$.\-]+")
WHOLE_BYTES = frozenset(f"{sign}{bits}" for sign in ("i", "ui") for bits in (8, 16, 32, 64))


@dataclass(frozen=True)
class Line:
    """A line of a graph's text, counted from 1, and the lines that should stand in its place."""

    number: int
    before: str
    after: tuple[str, ...]


def lines_with(anatomy: Anatomy, edit: Edit) -> list[Line] | None:
    """The lines of a text that a change replaces; None where an operation is not written on one line of its own.

    Without an operation, what took its result takes its operand.
    """
    if edit.kind != "without":
        line = _line_with(anatomy, edit)
        return None if line is None else [line]
    plain = anatomy.plain()
    old, (instead,) = plain.block.operations[edit.place].results[0], edit.instead[0].operands
    if old in plain.block.returned:  # the return has no line that could be changed here
        return lines_with(anatomy, dataclasses.replace(edit, kind="operation"))
    found = [_line_with(anatomy, dataclasses.replace(edit, instead=()))]
    for place in plain.users.get(old, []):
        user = plain.block.operations[place]
        taken = tuple(instead if v == old else v for v in user.operands)
        found.append(_line_with(anatomy, Edit(place, (dataclasses.replace(user, operands=taken),), "operand", "", 0)))
    return None if None in found else [line for line in found if line]


def _line_with(anatomy: Anatomy, edit: Edit) -> Line | None:
    plain = anatomy.plain()
    number, _ = plain.lines[edit.place]
    lines = anatomy.graph.text.splitlines()
    if not number or anatomy.graph.written or number > len(lines):
        return None
    before = lines[number - 1]
    if not (defined := _DEFINED.match(before)) or code_of(before).rstrip().endswith(_OPENED):
        return None
    names = _names(anatomy)
    taken = [v for operation in edit.instead for v in operation.operands if v in plain.types]
    if any(v not in names for v in taken):
        return None
    location = _LOCATION.search(before)
    indent = before[: len(before) - len(before.lstrip())]
    try:
        written = _written(anatomy, edit, names, defined[1])
    except (ir.MLIRError, RuntimeError, *CANNOT):  # an attribute or a type that MLIR's Python has no way to make
        return None
    after = [f"{indent}{text}{location[0] if location else ''}" for text in written]
    return Line(number, before, tuple(after))


def patched(graph: Graph, lines: Sequence[Line]) -> Graph:
    """The graph with some of its lines replaced."""
    text = graph.text.splitlines()
    for line in sorted(lines, key=lambda one: -one.number):
        text[line.number - 1 : line.number] = line.after
    return dataclasses.replace(graph, text="\n".join(text) + ("\n" if graph.text.endswith("\n") else ""))


def lines_between(before: Graph, after: Graph) -> list[Line]:
    """The lines of one text that another one has otherwise. What is put in between belongs to the line before it."""
    old, new = before.text.splitlines(), after.text.splitlines()
    found = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "insert":
            found.append(Line(a, old[a - 1], (old[a - 1], *new[c:d])))
        elif kind != "equal":
            pairs = list(zip(old[a:b], ((one,) for one in new[c:d]), strict=False))
            rest = [*new[c + len(pairs) : d]]
            found += [
                Line(a + i + 1, one, other if i + 1 < len(pairs) else (*other, *rest))
                for i, (one, other) in enumerate(pairs)
            ]
            found += [Line(a + i + 1, old[a + i], ()) for i in range(len(pairs), b - a)]
    return found


def as_diff(before: Graph, after: Graph, name: str) -> str:
    """A unified diff, which `patch` and `git apply` take."""
    old, new = (graph.text.splitlines(keepends=True) for graph in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _names(anatomy: Anatomy) -> dict[int, str]:
    """What the text calls each value of the function that has one name."""
    plain, graph = anatomy.plain(), anatomy.graph
    code = code_of(graph.text)
    begin = re.search(rf"func\.func[^@]*@\"?{re.escape(graph.abi.function)}\"?\s*\(", code)
    found: dict[int, str] = {}
    if begin:
        signature = code[begin.end() : _closing(code, begin.end())]
        found = dict(zip(plain.block.arguments, _ARGUMENT.findall(signature), strict=False))
    lines = graph.text.splitlines()
    for operation, (number, _) in zip(plain.block.operations, plain.lines, strict=True):
        if number and (defined := _DEFINED.match(lines[number - 1])):
            for i, result in enumerate(operation.results):
                found[result] = defined[1] if len(operation.results) == 1 else f"{defined[1]}#{i}"
    return found


def _closing(code: str, at: int) -> int:
    """Where the parenthesis closes that was opened before."""
    depth = 1
    for one in re.finditer(r"[()]", code[at:]):
        depth += 1 if one[0] == "(" else -1
        if depth == 0:
            return at + one.start()
    return len(code)


def _written(anatomy: Anatomy, edit: Edit, names: Mapping[int, str], result: str) -> list[str]:
    """The operations of a change as MLIR prints them, with the names of a text."""
    plain = anatomy.plain()
    old, original = plain.block.operations[edit.place], anatomy.operation(edit.place)
    with anatomy.context, ir.Location.unknown():
        module = ir.Module.create()
        made: set[int] = set()
        operands: list[int] = []
        for operation in edit.instead:
            operands += [v for v in operation.operands if v not in made]
            made.update(operation.results)
        operands = list(dict.fromkeys(operands))
        types = [_mlir(plain.types[v]) for v in operands]
        with ir.InsertionPoint(module.body):
            function: Any = func.FuncOp("main", ir.FunctionType.get(types, []))
        block = function.add_entry_block()
        values = dict(zip(operands, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for operation in edit.instead:
                new = _created(operation, old, original, values)
                values.update(zip(operation.results, new.results, strict=True))
            func.ReturnOp([])
        text = str(module.operation.get_asm()).splitlines()
    inside = [line.strip() for line in text if line.strip().startswith("%")]
    called = {f"%arg{i}": names[v] for i, v in enumerate(operands)}
    numbered = [defined[1] for line in inside if (defined := _DEFINED.match(line))]
    used = set(_PRINTED.findall(anatomy.graph.text))
    stem = (
        f"{result}.new" if result[1].isalpha() else f"%new{result[1:]}"
    )  # a name that begins with a digit has digits alone
    free = (new for new in (f"{stem}{i or ''}" for i in itertools.count()) if new not in used)
    for i, name in enumerate(numbered):
        called[name] = result if i == len(numbered) - 1 else next(free)
    return [_PRINTED.sub(lambda found: called.get(found[0], found[0]), line) for line in inside]


def _created(operation: Operation, old: Operation, original: Any, values: Mapping[int, Any]) -> Any:
    """A new operation in MLIR: the original one with what is changed of it, or one of another name."""
    operands = [values[v] for v in operation.operands]
    types = [_mlir(t) for t in operation.types]
    like_old = [str(v.type) for v in operands] == [
        str(v.type) for v in original.operands
    ] and operation.types == old.types
    if operation.name != old.name or not like_old:
        given = {name: _attribute(name, value, types[0]) for name, value in operation.attributes.items()}
        return ir.Operation.create(operation.name, types, operands, given)
    new = copied(original, dict(zip(original.operands, operands, strict=False)))
    for i, operand in enumerate(operands):  # an operand that is taken twice may be two now
        new.operands[i] = operand
    for name, value in operation.attributes.items():
        if not _equal(value, old.attributes.get(name)):
            new.attributes[name] = _attribute(name, value, original.results[0].type)
    if operation.regions != old.regions:
        inner = new.regions[0].blocks[0].operations[0]
        with ir.InsertionPoint(inner):
            other = ir.Operation.create(
                operation.regions[0].operations[0].name, [inner.results[0].type], list(inner.operands)
            )
        inner.results[0].replace_all_uses_with(other.results[0])
        inner.operation.erase()
    return new


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=getattr(one, "dtype", np.dtype(int)).kind == "f")
    return bool(one == other)


def _mlir(type: Type) -> Any:
    return ir.Type.parse(str(type))


def _dense(value: np.ndarray, type: Any) -> Any:
    """A constant, given by the bits of its own type: floats are held in float64 here."""
    element = ir.RankedTensorType(type).element_type
    dtype = str(element)
    if dtype not in FLOATS and dtype not in WHOLE_BYTES:
        return constant_of(value, type)
    own = value.astype(own_type(dtype)).ravel()
    bits = own.view(f"u{own.itemsize}")
    if bits.size and (bits == bits[0]).all():
        own = own[:1]
    shaped = ir.RankedTensorType.get(value.shape, element)
    return ir.Attribute.parse(
        f'dense<"0x{own.tobytes().hex().upper()}"> : {shaped}' if value.size else f"dense<> : {shaped}"
    )


def _attribute(name: str, value: Any, type: Any) -> Any:
    """An attribute of MLIR with a value of Python's, of an operation that gives this type."""
    if isinstance(value, np.ndarray):
        return _dense(value, type)
    if name == "comparison_direction":
        return ir.Attribute.parse(f"#stablehlo<comparison_direction {value}>")
    if name == "dot_dimension_numbers":
        listed = ", ".join(f"{key} = [{', '.join(map(str, axes))}]" for key, axes in value.items() if axes)
        return ir.Attribute.parse(f"#stablehlo.dot<{listed}>")
    if isinstance(value, tuple):
        return ir.DenseI64ArrayAttr.get(list(value))
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
