"""Makes a case of a module with check operations: its function takes what `@inputs` gives, and returns what is checked."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from hloracle.localize.inline import nested
from hloracle.localize.text import function_named
from hloracle.ops.files_case import ALMOST, MOST_ULP, Check, Kind
from hloracle.ops.of_graph import SHAPES
from hloracle.semantics.evaluate import evaluated
from hloracle.semantics.numbers import INTEGERS, Unsupported, own_type
from hloracle.semantics.program import Type
from hloracle.semantics.reading import attributes_of, program_of, type_of

MAIN = "main"
NOTHING = "it checks nothing"
UNUSED = ("func.call", "stablehlo.constant")  # which are left out where nothing takes what they give
MOST_CALLS = 100  # one in another
KINDS: Mapping[str, Kind] = {
    "eq": "eq",
    "expect_eq": "eq",
    "almost_eq": "almost_eq",
    "expect_almost_eq": "almost_eq",
    "expect_close": "close",
}
ITSELF = "its checks compare values with themselves"


class Malformed(Exception):
    """What is wrong with a module, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix


@dataclass
class Rewritten:
    """A module whose `main` takes arrays and returns what is checked.

    operation: that gives what is checked first. refused: why there is nothing to try; empty where there is.
    """

    operation: str = ""
    text: str = ""
    inputs: list[np.ndarray] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    refused: str = ""


@functools.cache
def _context() -> Any:
    context = jax_mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    return context


def rewritten(text: str) -> Rewritten:
    """A case of a module in MLIR's generic form of check operations. Raises Malformed."""
    with _context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except (ir.MLIRError, ValueError) as error:
            words = " ".join(str(error).split()).removeprefix("Unable to parse module assembly: ")[:300]
            raise Malformed(f"does not parse as StableHLO ({words})", "repair it") from None
        return _Rewriting(module).done()


class _Rewriting:
    def __init__(self, module: Any) -> None:
        self._module = module
        self._function = _entry(module)
        self._block = self._function.regions[0].blocks[0]
        self._values: dict[Any, np.ndarray] = {}  # of values that are the same whatever is computed
        # Those of them that were computed here: they may be what a backend is given, and not what it has to give.
        self._computed: set[Any] = set()
        self._returned: list[Any] = []

    def done(self) -> Rewritten:
        checks = [op for op in self._block.operations if _kind(op)]
        hidden = [op for f in self._module.body.operations for op in nested(f) if _kind(op)]
        if len(hidden) > len(checks):
            raise Malformed("has a check elsewhere than in the body of its main function", "move it there")
        if not checks:
            return Rewritten(refused=NOTHING)
        if len(self._block.arguments):
            raise Malformed("has a main function with arguments, which nothing gives", "call @inputs in it")
        *_, end = self._block.operations
        if end.operation.name != "func.return":
            raise Malformed(f"has a main function that ends with {end.operation.name}", "end it with a return")
        self._know()
        found = Rewritten()
        for check in checks:
            if one := self._check(check):
                found.checks.append(one)
                found.operation = found.operation or _made_by(self._module, check.operands[0])
        if not found.checks:
            return Rewritten(refused=ITSELF)
        self._lift(found, [*checks, end])
        self._close(checks)
        found.text = str(self._module.operation.get_asm(assume_verified=True))
        return found

    def _know(self) -> None:
        """The values of constants, and of functions without arguments, as far as they can be evaluated here."""
        for operation in self._block.operations:
            name = operation.operation.name
            if name == "stablehlo.constant":
                results, computed = [_constant(operation)], False
            elif name == "func.call" and not len(operation.operands):
                results, computed = _results_of(self._module, operation.attributes["callee"].value)
            else:
                continue
            for value, array in zip(operation.results, results, strict=False):
                if array is not None:
                    self._values[value] = array
                    if computed:
                        self._computed.add(value)

    def _check(self, check: Any) -> Check | None:
        """What a check says; None of one that compares a value with itself, which is right whatever a backend gives."""
        kind, attributes, operands = _kind(check), attributes_of(check), [*check.operands]
        wanted = 1 if "value" in attributes else 2
        if len(operands) != wanted:
            fix = "give what is computed, and what is expected"
            raise Malformed(f"has a check.{kind} of {len(operands)} operands", fix)
        name = KINDS.get(kind.removesuffix("_const"))
        if name is None:
            raise Malformed(f"has a check.{kind}, which is not known", f"use one of {', '.join(KINDS)}")
        got, type = operands[0], type_of(operands[0])
        if name != "eq" and type.dtype in (*INTEGERS, "i1"):
            raise Malformed(f"has a check.{kind} of elements of type {type.dtype}", "use check.expect_eq")
        expected: np.ndarray | int
        if wanted == 1:
            expected = _value(check, attributes["value"], type)
        elif operands[0] == operands[1]:
            return None
        elif str(operands[1].type) != str(got.type):
            raise Malformed(f"compares {got.type} with {operands[1].type}", "compare values of one type")
        elif operands[1] in self._values and operands[1] not in self._computed:
            expected = self._values[operands[1]]
        else:
            expected = self._return(operands[1])
        most = _whole(check, attributes, "max_ulp_difference", MOST_ULP)
        least = _whole(check, attributes, "min_ulp_difference", 0)
        tolerance = _number(check, attributes, "tolerance", ALMOST)
        return Check(name, self._return(got), expected, tolerance, least, most)

    def _return(self, value: Any) -> int:
        """Which of the results it is."""
        if value not in self._returned:
            self._returned.append(value)
        return self._returned.index(value)

    def _lift(self, found: Rewritten, but: list[Any]) -> None:
        """Have the function take what is constant, so that no compiler computes its results while it compiles.

        but: operations that compute nothing: what only they use is given to nothing.
        """
        uses = {v: [(use.owner, use.operand_number) for use in v.uses if use.owner not in but] for v in self._values}
        calls = {value for value in self._values if value.owner.operation.name == "func.call"}
        inputs = any(uses[value] for value in calls)
        for value, array in self._values.items():
            is_used = uses[value] or (value in self._returned and value not in self._computed)
            if not is_used or (value in calls) != inputs or any(_says_shape(*use) for use in uses[value]):
                continue
            argument = self._block.add_argument(value.type, ir.Location.unknown())
            value.replace_all_uses_with(argument)
            self._returned = [argument if one == value else one for one in self._returned]
            found.inputs.append(array)

    def _close(self, checks: list[Any]) -> None:
        """Return what is checked, and nothing else."""
        *_, end = self._block.operations
        with ir.InsertionPoint(end):
            ir.Operation.create("func.return", operands=self._returned)
        end.operation.erase()
        for check in checks:
            if any(True for result in check.results for _ in result.uses):
                raise Malformed("uses the result of a check", "return it, or leave it out")
            check.operation.erase()
        for operation in [op for op in self._block.operations if op.operation.name in UNUSED]:
            if not any(True for result in operation.results for _ in result.uses):
                operation.operation.erase()
        types = ir.FunctionType.get([a.type for a in self._block.arguments], [v.type for v in self._returned])
        attributes = self._function.attributes
        attributes["function_type"] = ir.TypeAttr.get(types)
        attributes["sym_name"] = ir.StringAttr.get(MAIN)
        for name in ("res_attrs", "arg_attrs"):
            if name in attributes:
                del attributes[name]
        self._drop_uncalled()

    def _drop_uncalled(self) -> None:
        """What gave the arguments, and what was expected."""
        called = _called(self._function)
        if strange := [op for op in self._module.body.operations if op.operation.name != "func.func"]:
            name = strange[0].operation.name
            raise Malformed(f"has {name} beside its functions", "move it into the main function, or leave it out")
        others = {f.attributes["sym_name"].value: f for f in self._module.body.operations if f != self._function}
        left = [name for name in others if name in called]
        while left:
            new = (_called(others[left.pop()]) & others.keys()) - called
            called |= new
            left += new
        for name, function in others.items():
            if name not in called:
                function.operation.erase()


def _called(function: Any) -> set[str]:
    """The names of functions that a function's text has, its own too."""
    text = str(function.operation.get_asm(assume_verified=True))
    return {quoted or plain for quoted, plain in re.findall(r'@(?:"([^"]*)"|([\w.$-]+))', text)}


def _entry(module: Any) -> Any:
    functions = [op for op in module.body.operations if op.operation.name == "func.func" and len(op.regions[0].blocks)]
    named = [f for f in functions if f.attributes["sym_name"].value == MAIN]
    if named or len(functions) == 1:
        return (named or functions)[0]
    raise Malformed(f"has {len(functions)} functions and no @main", "call the function that is run @main")


def _kind(operation: Any) -> str:
    """Of a check operation, such as `expect_eq`; empty for another operation."""
    name = operation.operation.name
    if name == "stablehlo.custom_call":
        name = operation.attributes["call_target_name"].value
    return str(name.removeprefix("check.")) if name.startswith("check.") else ""


def _results_of(module: Any, name: str) -> tuple[list[np.ndarray | None], bool]:
    """What a function without arguments gives, and whether it was computed for that; nothing where that cannot be told here.

    What is computed here is so in float64: another number than that of a backend which rounds each step.
    """
    *operations, end = _body(module, name)
    known = {op.results[0]: _constant(op) for op in operations if op.operation.name == "stablehlo.constant"}
    if all(value in known for value in end.operands):
        return [known[value] for value in end.operands], False
    try:
        # By itself: of what else the module has, plain data may not have a word for everything.
        function = str(function_named(module, name))
        results = evaluated(program_of(ir.Module.parse(function)), [], name)
        return [a.astype(own_type(type_of(v).dtype)) for a, v in zip(results, end.operands, strict=True)], True
    except (Unsupported, ir.MLIRError, KeyError, TypeError, ValueError):
        return [], True


def _body(module: Any, name: str) -> list[Any]:
    """The operations of a function. Raises Malformed where it is declared alone."""
    blocks = function_named(module, name).regions[0].blocks
    if not len(blocks):
        raise Malformed(f"calls @{name}, which has no body", "give it one")
    return [*blocks[0].operations]


def _value(check: Any, value: Any, type: Type) -> np.ndarray:
    """What a check holds itself, in the type of what it is compared with."""
    own = own_type(type.dtype)
    if own.kind == "c":
        text = str(check)
        value = _complex(text[text.index("value = ") :], type, own)
    if not isinstance(value, np.ndarray):
        raise Malformed(f"has a check.{_kind(check)} whose value is no tensor", "give what is expected")
    if value.shape != type.shape:
        raise Malformed(f"compares {type} with {list(value.shape)} elements", "compare values of one type")
    return value.astype(own)


def _whole(check: Any, attributes: Mapping[str, Any], name: str, default: int) -> int:
    value = attributes.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"has a check.{_kind(check)} whose {name} is no whole number", "give a whole number")
    return value


def _number(check: Any, attributes: Mapping[str, Any], name: str, default: float) -> float:
    value = attributes.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"has a check.{_kind(check)} whose {name} is no number", "give a number")
    return float(value)


def _constant(operation: Any) -> np.ndarray | None:
    """The value of a constant, in its own type; None where NumPy has no such type."""
    type = type_of(operation.results[0])
    try:
        own = own_type(type.dtype)
        if own.kind == "c":
            return _complex(str(operation), type, own)
        found: np.ndarray = attributes_of(operation)["value"].astype(own)
        return found
    except (Unsupported, TypeError, ValueError, AttributeError):
        return None


def _complex(text: str, type: Type, own: Any) -> np.ndarray | None:
    """Complex numbers of a constant's text: MLIR's bindings read none."""
    inside = text[text.index("dense<") + 6 : text.rindex("> : ")]
    if inside.startswith('"0x'):
        flat = np.frombuffer(bytes.fromhex(inside.strip('"')[2:]), own)
    else:
        real = np.dtype(f"f{own.itemsize // 2}")
        parts = [_real(word.strip(), real) for pair in re.findall(r"\(([^()]*)\)", inside) for word in pair.split(",")]
        flat = np.array(parts, real).view(own)
    return np.array(np.broadcast_to(flat, type.shape) if flat.size == 1 else flat.reshape(type.shape))


def _real(text: str, type: Any) -> Any:
    """A number, or the bits of what has none, such as an infinity."""
    if not text.startswith("0x"):
        return float(text)
    return np.array(int(text, 16), f"u{type.itemsize}").view(type)


def _made_by(module: Any, value: Any, calls: int = 0) -> str:
    """The operation that gives a value; of a call, the one that gives it in the function, unless that calls itself."""
    if isinstance(value.owner, ir.Block):
        return ""
    owner = value.owner.operation  # a view may have an attribute of the operation as its own `name`
    if owner.name != "func.call" or calls == MOST_CALLS:
        return str(owner.name)
    *_, end = _body(module, owner.attributes["callee"].value)
    return _made_by(module, end.operands[list(owner.results).index(value)], calls + 1)


def _says_shape(user: Any, operand: int) -> bool:
    """Whether an operand of an operation says a shape, which a compiler has to know."""
    return operand >= SHAPES.get(str(user.operation.name), operand + 1)
