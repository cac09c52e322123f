"""Makes a case of a module with check operations: its function takes what `@inputs` gives, and returns what is checked."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from hloracle.localize.inline import nested
from hloracle.localize.text import function_named
from hloracle.ops.files_case import ALMOST, MOST_ULP, Check
from hloracle.semantics.evaluate import evaluated
from hloracle.semantics.numbers import Unsupported, own_type
from hloracle.semantics.program import Type
from hloracle.semantics.reading import attributes_of, program_of, type_of

MAIN = "main"
KINDS = {
    "eq": "eq",
    "expect_eq": "eq",
    "almost_eq": "almost_eq",
    "expect_almost_eq": "almost_eq",
    "expect_close": "close",
}
# The last operand of these says a shape, which a compiler has to know.
_SHAPED = (
    "dynamic_reshape",
    "dynamic_broadcast_in_dim",
    "dynamic_iota",
    "dynamic_pad",
    "real_dynamic_slice",
    "dynamic_gather",
    "dynamic_conv",
)


class Malformed(Exception):
    """What is wrong with a module, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix


@dataclass
class Rewritten:
    """A module whose `main` takes arrays and returns what is checked. operation: that gives what is checked first."""

    operation: str
    text: str = ""
    inputs: list[np.ndarray] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


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
        self._returned: list[Any] = []

    def done(self) -> Rewritten:
        checks = [op for op in self._block.operations if _kind(op)]
        hidden = [op for f in self._module.body.operations for op in nested(f) if _kind(op)]
        if len(hidden) > len(checks):
            raise Malformed("has a check elsewhere than in the body of its main function", "move it there")
        if not checks:
            return Rewritten("")
        if len(self._block.arguments):
            raise Malformed("has a main function with arguments, which nothing gives", "call @inputs in it")
        self._know(checks)
        found = Rewritten(_made_by(self._module, checks[0].operands[0]))
        for check in checks:
            found.checks.append(self._check(check))
        self._lift(found, checks)
        self._close(checks)
        found.text = str(self._module.operation.get_asm(assume_verified=True))
        return found

    def _know(self, checks: list[Any]) -> None:
        """The values of constants, and of functions without arguments, as far as they can be evaluated here."""
        for operation in self._block.operations:
            name = operation.operation.name
            if name == "stablehlo.constant":
                results = [_constant(operation)]
            elif name == "func.call" and not len(operation.operands):
                results = _results_of(self._module, operation.attributes["callee"].value)
            else:
                continue
            for value, array in zip(operation.results, results, strict=False):
                if array is not None:
                    self._values[value] = array

    def _check(self, check: Any) -> Check:
        kind, attributes, operands = _kind(check), attributes_of(check), [*check.operands]
        constant = attributes.get("value")
        if len(operands) != (1 if isinstance(constant, np.ndarray) else 2):
            raise Malformed(
                f"has a check.{kind} of {len(operands)} operands", "give what is computed, and what is expected"
            )
        name = KINDS.get(kind.removesuffix("_const"))
        if name is None:
            raise Malformed(f"has a check.{kind}, which is not known", f"use one of {', '.join(KINDS)}")
        got, type = operands[0], type_of(operands[0])
        if name != "eq" and own_type(type.dtype).kind in "iub":
            raise Malformed(f"has a check.{kind} of elements of type {type.dtype}", "use check.expect_eq")
        if isinstance(constant, np.ndarray):
            expected: np.ndarray | int = constant.astype(own_type(type.dtype))
        elif str(operands[1].type) != str(got.type):
            raise Malformed(f"compares {got.type} with {operands[1].type}", "compare values of one type")
        else:
            value = self._values.get(operands[1])
            expected = self._return(operands[1]) if value is None else value
        most, least = (
            int(attributes.get(f"{word}_ulp_difference", default)) for word, default in (("max", MOST_ULP), ("min", 0))
        )
        return Check(name, self._return(got), expected, float(attributes.get("tolerance", ALMOST)), least, most)  # type: ignore[arg-type]

    def _return(self, value: Any) -> int:
        """Which of the results it is."""
        if value not in self._returned:
            self._returned.append(value)
        return self._returned.index(value)

    def _lift(self, found: Rewritten, checks: list[Any]) -> None:
        """Have the function take what is constant, so that no compiler computes its results while it compiles."""
        calls = any(
            op.operation.name == "func.call" and op.results[0] in self._values
            for op in self._block.operations
            if len(op.results)
        )
        for value, array in self._values.items():
            users = [use.owner for use in value.uses]
            own = [user for user in users if user not in checks]
            is_call = value.owner.operation.name == "func.call"
            if not (own or value in self._returned) or is_call != calls or any(_says_shape(user) for user in own):
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
        for operation in [op for op in self._block.operations if op.operation.name == "func.call"]:
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
        called = set(re.findall(r"@([\w.$-]+)", str(self._function.operation.get_asm(assume_verified=True))))
        others = {f.attributes["sym_name"].value: f for f in self._module.body.operations if f != self._function}
        left = [name for name in others if name in called]
        while left:
            inside = str(others[left.pop()].operation.get_asm(assume_verified=True))
            new = {name for name in re.findall(r"@([\w.$-]+)", inside) if name in others} - called
            called |= new
            left += new
        for name, function in others.items():
            if name not in called:
                function.operation.erase()


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


def _results_of(module: Any, name: str) -> list[np.ndarray | None]:
    """What a function without arguments gives; nothing where that cannot be told here."""
    function = function_named(module, name)
    *operations, end = function.regions[0].blocks[0].operations
    known = {op.results[0]: _constant(op) for op in operations if op.operation.name == "stablehlo.constant"}
    if all(value in known for value in end.operands):
        return [known[value] for value in end.operands]
    try:
        # By itself: of what else the module has, plain data may not have a word for everything.
        results = evaluated(program_of(ir.Module.parse(str(function))), [], name)
        return [a.astype(own_type(type_of(v).dtype)) for a, v in zip(results, end.operands, strict=True)]
    except (Unsupported, ir.MLIRError, KeyError, TypeError, ValueError):
        return []


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
        flat = np.array([complex(*map(float, pair.split(","))) for pair in re.findall(r"\(([^()]*)\)", inside)], own)
    return np.array(np.broadcast_to(flat, type.shape) if flat.size == 1 else flat.reshape(type.shape))


def _made_by(module: Any, value: Any) -> str:
    """The operation that gives a value; of a call, the one that gives it in the function."""
    if isinstance(value.owner, ir.Block):
        return ""
    owner = value.owner.operation  # a view may have an attribute of the operation as its own `name`
    if owner.name != "func.call":
        return str(owner.name)
    *_, end = function_named(module, owner.attributes["callee"].value).regions[0].blocks[0].operations
    return _made_by(module, end.operands[list(owner.results).index(value)])


def _says_shape(user: Any) -> bool:
    return str(user.operation.name).removeprefix("stablehlo.") in _SHAPED
