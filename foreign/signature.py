"""What a function of a module takes and returns: the names by which an ABI file may call it, the shapes and the dtypes.

Imports jaxlib, which carries MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from hloracle.core.abi import DTYPE_BYTES
from hloracle.core.bindings import attribute_of
from hloracle.core.errors import InputError
from hloracle.core.locations import name_of
from hloracle.core.shown import shown
from hloracle.localize.text import code_of

TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
_SSA = re.compile(r"%([\w$.\-]+)\s*:")
# As JAX writes it of results, and of arguments where they have no location.
_NAMED_BY = ("jax.result_info", "jax.arg_info")


@dataclass(frozen=True)
class Port:
    """An argument or a result. names: what an ABI file may call it, the plainest first; its index is one of them."""

    index: int
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> str:
        """e.g. `tensor<1x84xf32>`"""
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"

    @property
    def readable(self) -> str:
        """The first name that a person gave it, if there is one: not `arg7`, nor its index."""
        return next((n for n in self.names if not re.fullmatch(r"(arg)?\d+", n)), self.names[0])

    def __str__(self) -> str:
        return f"{shown(self.names[0], 80)} ({self.type})"


@dataclass(frozen=True)
class Signature:
    """Of one function."""

    function: str
    arguments: tuple[Port, ...]
    results: tuple[Port, ...]


def signature_of(function: Any, text: str) -> Signature:
    """The signature of a parsed function of a text. To be called within an MLIR context.

    Raises InputError for a type that no buffer has, such as a tensor of unknown size.
    """
    name = str(function.attributes["sym_name"].value)
    type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    block = function.regions[0].blocks[0]
    ssa = list(ssa_names(text, name))
    arguments = []
    for i, (value, attributes) in enumerate(
        zip(block.arguments, _attributes(function, "arg_attrs", type.inputs), strict=True)
    ):
        written = [ssa[i]] if len(ssa) == len(type.inputs) else []
        arguments.append(_port("argument", i, value.type, [*written, name_of(value.location), *attributes]))
    results = [
        _port("result", i, t, named)
        for i, (t, named) in enumerate(zip(type.results, _attributes(function, "res_attrs", type.results), strict=True))
    ]
    return Signature(name, tuple(arguments), tuple(results))


def quoted_symbol(name: str) -> str:
    """A function's name as MLIR writes it behind the @."""
    if re.fullmatch(r"[A-Za-z_][\w$.]*", name):
        return name
    escaped = (
        c if c.isascii() and c.isprintable() and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode())
        for c in name
    )
    return f'"{"".join(escaped)}"'


def head_of(text: str, function: str) -> re.Match[str] | None:
    """Where a text defines a function, up to what opens its arguments; None where it has no such text."""
    code = code_of(text)
    spellings = {re.escape(quoted_symbol(function)), re.escape(f'"{function}"')}
    heads = re.finditer(rf"func\.func\s+(?:(?:public|private|nested)\s+)?@(?:{'|'.join(sorted(spellings))})\s*\(", text)
    return next((head for head in heads if code.startswith("func.func", head.start())), None)


def ssa_names(text: str, function: str) -> Iterator[str]:
    """The names of a function's arguments as its text has them, without the percent sign; none where it has no such text."""
    found = head_of(text, function)
    if not found:
        return
    code = code_of(text)
    depth, i = 1, found.end()
    while depth and i < len(code):
        c = code[i]
        depth += (c in "({[<") - (c in ")}]>" and code[i - 1] != "-")
        if c == "%" and depth == 1 and (name := _SSA.match(code, i)):
            yield name[1]
        i += 1


def _attributes(function: Any, key: str, types: Any) -> list[list[str]]:
    """What each argument or result is called in its attributes."""
    if key not in function.attributes:
        return [[] for _ in types]
    return [
        [str(found.value) for name in _NAMED_BY if isinstance(found := attribute_of(each, name), ir.StringAttr)]
        for each in map(ir.DictAttr, ir.ArrayAttr(function.attributes[key]))
    ]


def _port(what: str, index: int, type: Any, names: list[str]) -> Port:
    found = TYPE.fullmatch(str(type))
    if not found or found[2] not in DTYPE_BYTES:
        raise InputError(
            f"{what} {index} is {shown(str(type), 80)}",
            "the graph",
            "give it known sizes, and a dtype that weights have",
        )
    shape = tuple(int(n) for n in found[1].split("x") if n)
    return Port(index, tuple(dict.fromkeys(filter(None, [*names, str(index)]))), shape, found[2])
