"""Copies operations with all that they hold, and puts the bodies of called functions in the place of their calls.

jaxlib registers MLIR's inliner without what it needs to inline `func.call`, so it is done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from hloracle.core.errors import InputError
from hloracle.localize.text import function_named

MOST_CALLS = 10_000
# What computes what a function does: operation -> its attribute that names the function.
CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}


def nested(operation: Any) -> Iterator[Any]:
    """The operations in an operation's regions, at any depth."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from nested(inner)


def operands_of(operation: Any) -> list[Any]:
    """What an operation reads: its operands, and values from outside that its regions use."""
    found = list(operation.operands)
    if len(operation.regions):
        own = {a for region in operation.regions for block in region.blocks for a in block.arguments}
        inside = list(nested(operation))
        for inner in inside:
            own |= {*inner.results, *(a for r in inner.regions for block in r.blocks for a in block.arguments)}
        found += [value for inner in inside for value in inner.operands if value not in own]
    return list(dict.fromkeys(found))


def copied(operation: Any, new: dict[Any, Any]) -> Any:
    """A copy at the insertion point that reads the `new` values in place of the old ones; its results are added to `new`."""
    clone = operation.operation.clone()
    for copy in (clone, *nested(clone)) if len(clone.regions) else (clone,):
        for i, value in enumerate(copy.operands):
            if value in new:
                copy.operands[i] = new[value]
    new.update(zip(operation.results, clone.results, strict=True))
    return clone


def inline_calls(module: Any, function: str) -> bool:
    """Put what a function calls in the place of each call in its body; returns whether there was any.

    A composite is a call of its decomposition: by the specification they mean the same. Operations keep their locations.
    Calls inside of regions stay, and those of what is declared only. Raises InputError for calls without end. To be called
    within an MLIR context.
    """
    block = function_named(module, function).regions[0].blocks[0]
    count = 0
    while calls := [(op, body) for op in block.operations if (body := _called(module, op)) is not None]:
        for call, body in calls:
            count += 1
            if count > MOST_CALLS:
                raise InputError("calls functions without end", f"@{function}", "write a function that ends")
            new = dict(zip(body.arguments, call.operands, strict=True))
            *operations, end = body.operations
            with ir.InsertionPoint(call), ir.Location.unknown():
                for operation in operations:
                    copied(operation, new)
            for old, value in zip(call.results, [new.get(v, v) for v in end.operands], strict=True):
                old.replace_all_uses_with(value)
            call.operation.erase()
    return count > 0


def callee_of(operation: Any) -> str:
    """The name of the function that an operation calls; empty where it calls none."""
    attribute = CALLS.get(operation.operation.name)
    return ir.FlatSymbolRefAttr(operation.attributes[attribute]).value if attribute else ""


def _called(module: Any, operation: Any) -> Any:
    """The body of what an operation calls; None where it calls nothing, or nothing with a body of one block."""
    callee = callee_of(operation)
    blocks = function_named(module, callee).regions[0].blocks if callee else []
    return blocks[0] if len(blocks) == 1 else None
