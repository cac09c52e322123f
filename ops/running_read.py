"""What a module's `main` takes and gives, and its functions under other names. Imports jaxlib, which carries MLIR."""

from __future__ import annotations

import functools
from typing import Any

from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from hloracle.localize.text import function_named
from hloracle.semantics.numbers import Unsupported
from hloracle.semantics.program import Type
from hloracle.semantics.reading import type_of


@functools.cache
def _context() -> Any:
    return jax_mlir.make_ir_context()


def signature(text: str, function: str = "main") -> tuple[tuple[Type, ...], tuple[Type, ...]]:
    """The types of a function's arguments and results. Raises Unsupported where the text is no module that has it."""
    with _context():
        try:
            module = ir.Module.parse(text)  # which owns what is in it
            main = function_named(module, function)
        except (ir.MLIRError, ValueError) as error:
            raise Unsupported(f"a module that does not parse: {' '.join(str(error).split())[:200]}") from None
        except StopIteration:
            raise Unsupported(f"a module without @{function}") from None
        *_, end = main.regions[0].blocks[0].operations
        return tuple(map(type_of, main.arguments)), tuple(map(type_of, end.operands))


def renamed(text: str, name: str) -> str:
    """What a module holds, its functions private and with the name before their own. The module's attributes are left out."""
    with _context():
        module = ir.Module.parse(text)
        functions: list[Any] = [op for op in module.body.operations if op.operation.name == "func.func"]
        # The longest name first: with the name before it, a shorter one may become it.
        for function in sorted(functions, key=lambda f: -len(f.attributes["sym_name"].value)):
            old = function.attributes["sym_name"].value
            ir.SymbolTable.replace_all_symbol_uses(old, f"{name}_{old}", module.operation)
            ir.SymbolTable.set_symbol_name(function.operation, f"{name}_{old}")
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        asm = [op.operation.get_asm(use_local_scope=True, assume_verified=True) for op in module.body.operations]
        return "".join(f"{one}\n" for one in asm)
