"""Writes the module of a form as MLIR's text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloracle.ops.describe import Form
from hloracle.semantics.numbers import FLOATS
from hloracle.semantics.program import Type


def module(operation: str, form: Form, arrays: Sequence[np.ndarray]) -> str:
    """A module with `main`, which applies the operation to its arguments.

    arrays: what each operand holds, of which the constants are written down.
    """
    arguments, constants = [], []
    for i, (operand, array) in enumerate(zip(form.operands, arrays, strict=True)):
        if operand.constant:
            constants.append(f"%{i} = stablehlo.constant dense<{elements(array, operand.type.dtype)}> : {operand.type}")
        else:
            number = sum(not o.constant for o in form.operands[:i])
            alias = f" {{tf.aliasing_output = {form.aliased[number]} : i32}}" if number in form.aliased else ""
            arguments.append(f"%{i}: {operand.type}{alias}")
    body = form.body or apply(operation, form)
    names = result_names(len(form.results))
    returned = f"return {', '.join(names)} : {types(form.results)}" if names else "return"
    lines = "\n  ".join([*constants, body, returned])
    main = f"func.func @main({', '.join(arguments)}) -> ({types(form.results)}) {{\n  {lines}\n}}"
    return f"module @{operation.partition('.')[2]} {{\n{main}\n{form.functions}\n}}\n"


def apply(operation: str, form: Form) -> str:
    """The operation in MLIR's generic form."""
    names = ", ".join(f"%{i}" for i in range(len(form.operands)))
    regions = f" ({', '.join(f'{{{region}}}' for region in form.regions)})" if form.regions else ""
    attributes = f" {{{form.attributes}}}" if form.attributes else ""
    given = types([o.type for o in form.operands])
    left = f"%r:{len(form.results)} = " if len(form.results) > 1 else "%r = "
    return f'{left}"{operation}"({names}){regions}{attributes} : ({given}) -> ({types(form.results)})'


def result_names(count: int) -> list[str]:
    """How a body has to name its results."""
    return ["%r"] if count == 1 else [f"%r#{i}" for i in range(count)]


def types(of: Sequence[Type]) -> str:
    """Types, one after another."""
    return ", ".join(map(str, of))


def elements(array: np.ndarray, dtype: str) -> str:
    """What stands in a dense constant: numbers, and the bits of floats that are too many to be read."""
    if dtype == "i1":
        return _nested(array, lambda v: "true" if v else "false")
    if dtype in FLOATS:
        own = array.dtype.itemsize
        return _nested(array, lambda v: f"0x{int(np.asarray(v).view(f'u{own}')):0{2 * own}X}")
    return _nested(array, lambda v: str(int(v)))


def _nested(array: np.ndarray, word: object) -> str:
    assert callable(word)
    if array.ndim == 0:
        return str(word(array[()]))
    return f"[{', '.join(_nested(part, word) for part in array)}]" if array.size else ""


def region(arguments: Sequence[Type], body: str, returned: str, kinds: Sequence[Type]) -> str:
    """A region whose arguments are `%a0`, `%a1`, …"""
    named = ", ".join(f"%a{i}: {type}" for i, type in enumerate(arguments))
    head = f"^bb0({named}):\n" if arguments else "\n"
    return f"{head}    {body}\n    stablehlo.return {returned} : {types(kinds)}\n  "


def combines(operation: str, dtype: str) -> str:
    """A region that applies one operation to two scalars, as reductions have it."""
    scalar = Type((), dtype)
    return region([scalar, scalar], f"%c = stablehlo.{operation} %a0, %a1 : {scalar}", "%c", [scalar])
