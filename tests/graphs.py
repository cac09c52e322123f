"""What the tests of graphs share: parsing, walking, and running on XLA."""

from __future__ import annotations

from functools import cache

import numpy as np
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from hloracle.backends.xla import XlaCpu
from hloracle.core.abi import Graph
from hloracle.core.locations import name_of


def parse(text: str) -> ir.Module:
    """The verified module; its context lives as long as it does."""
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        return module


def operations(module: ir.Module) -> list[ir.Operation]:
    """Every operation inside the module, those in regions too, in the order of the text. Hold on to the module."""
    found: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def main(module: ir.Module) -> ir.Operation:
    """The public function."""
    (function,) = (
        f for f in module.body.operations if ir.StringAttr(f.operation.attributes["sym_name"]).value == "main"
    )
    return function.operation


def anchors(module: ir.Module) -> list[str]:
    """The anchor of each operation of the public function, in order; those outside of every anchor are left out."""
    body = main(module).regions[0].blocks[0].operations
    return [name for o in body if (name := name_of(o.location))]


@cache
def xla() -> XlaCpu:
    return XlaCpu()


def run(graph: Graph, *arguments: np.ndarray) -> list[np.ndarray]:
    """The graph's results on XLA's CPU backend."""
    execute = xla().load(graph)
    return [xla().download(r) for r in execute([xla().upload(a) for a in arguments])]
