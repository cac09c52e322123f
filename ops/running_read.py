"""What a module's `main` takes and gives. Imports jaxlib, which carries MLIR."""

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
