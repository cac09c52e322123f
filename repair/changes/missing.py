"""Operations that are too many, or that are missing after another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hloracle.repair.changes.kinds import UNARY
from hloracle.repair.subject import Edit, Plain
from hloracle.semantics.numbers import FLOATS
from hloracle.semantics.program import Operation, Type

FOLLOWING = ("multiply", "add", "subtract", "divide")
NARROW = ("bf16", "f16")
MOST_OPERANDS = 40
MOST_STEPS = 8  # of operations one after another that are too many


def without(plain: Plain, place: int) -> Iterator[Edit]:
    """What takes it takes one of its operands instead."""
    yield from (edit for edit, steps in _passed_by(plain, place) if steps == 1)


def without_several(plain: Plain, place: int) -> Iterator[Edit]:
    """What takes it takes a value that one of its operands is made of, in a few steps."""
    yield from (edit for edit, steps in _passed_by(plain, place) if steps > 1)


def _passed_by(plain: Plain, place: int) -> Iterator[tuple[Edit, int]]:
    old = plain.block.operations[place]
    if len(old.results) != 1:
        return
    for value, steps in _behind(plain, place).items():
        if plain.types[value] == old.type:
            instead = Operation("stablehlo.optimization_barrier", (value,), old.results, old.types)
            before = f", and what makes its operands of {plain.called(value)}" if steps > 1 else ""
            edit = Edit(place, (instead,), "without", f"without this `{old.kind}`{before}", 4 if steps == 1 else 5)
            yield edit, steps


def _behind(plain: Plain, place: int) -> dict[int, int]:
    """The values that an operation depends on, and by how many steps, the nearest first."""
    found: dict[int, int] = {}
    now = dict.fromkeys(plain.block.operations[place].operands)
    for step in range(1, MOST_STEPS + 1):
        found |= {v: step for v in now if v not in found}
        inner = [plain.makers[v] for v in now if v in plain.makers and v not in plain.stops]
        now = dict.fromkeys(v for p in inner for v in plain.block.operations[p].operands if v not in found)
    return found


def followed_by_one(plain: Plain, place: int) -> Iterator[Edit]:
    """An operation of one operand, a rounding to fewer bits, or axes in another order."""
    old = plain.block.operations[place]
    if len(old.results) != 1 or old.type.dtype not in FLOATS or old.name == "stablehlo.constant":
        return
    before = plain.fresh
    made = replace(old, results=(before,))
    for kind in UNARY:
        new = Operation(f"stablehlo.{kind}", (before,), old.results, old.types)
        yield Edit(place, (made, new), "missing", f"`{kind}` is missing after it", 5)
    for dtype in NARROW:
        if FLOATS[old.type.dtype] != FLOATS[dtype]:
            narrow = Operation("stablehlo.convert", (before,), (before + 1,), (Type(old.type.shape, dtype),))
            wide = Operation("stablehlo.convert", (before + 1,), old.results, old.types)
            yield Edit(place, (made, narrow, wide), "missing", f"a rounding to {dtype} is missing after it", 5)
    shape = old.type.shape
    for a in range(len(shape)):
        for b in range(a + 1, len(shape)):
            if shape[a] == shape[b] > 1:
                order = [*range(len(shape))]
                order[a], order[b] = b, a
                turned = Operation(
                    "stablehlo.transpose", (before,), old.results, old.types, {"permutation": tuple(order)}
                )
                yield Edit(place, (made, turned), "missing", f"`transpose` of axes {a} and {b} is missing after it", 5)


def followed_by_two(plain: Plain, place: int) -> Iterator[Edit]:
    """An operation of it and of another value: one of its type, or of its first or last axes alone, such as a bias or a share."""
    old = plain.block.operations[place]
    if len(old.results) != 1 or old.type.dtype not in FLOATS or old.name == "stablehlo.constant":
        return
    before = plain.fresh
    made = replace(old, results=(before,))
    for value in _near(plain, place, old.type):
        for kind in FOLLOWING:
            new = Operation(f"stablehlo.{kind}", (before, value), old.results, old.types)
            yield Edit(place, (made, new), "missing", f"`{kind}` with another value is missing after it", 6)
    axes = tuple(range(len(old.type.shape)))
    for dims in (part for n in axes[1:] for part in (axes[-n:], axes[:n])):
        for value in _near(plain, place, Type(tuple(old.type.shape[d] for d in dims), old.type.dtype)):
            wide = Operation(
                "stablehlo.broadcast_in_dim", (value,), (before + 1,), old.types, {"broadcast_dimensions": dims}
            )
            for kind in ("multiply", "add"):
                new = Operation(f"stablehlo.{kind}", (before, before + 1), old.results, old.types)
                yield Edit(place, (made, wide, new), "missing", f"`{kind}` with another value is missing after it", 6)


def _near(plain: Plain, place: int, type: Type) -> list[int]:
    found = [v for v in plain.by_type.get(type, ()) if plain.makers.get(v, -1) < place]
    found.sort(key=lambda v: abs(place - (plain.makers[v] if v in plain.makers else plain.users.get(v, [0])[0])))
    return found[:MOST_OPERANDS]
