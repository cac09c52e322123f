"""The cases: every form of every description, one after another, with what it has to give."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from hloracle.ops.case import Case, Expected
from hloracle.ops.describe import Bound, Description, Form
from hloracle.ops.descriptions import DESCRIPTIONS
from hloracle.ops.judge import limits, unit
from hloracle.ops.values import info
from hloracle.ops.write import module
from hloracle.semantics.evaluate import evaluated
from hloracle.semantics.numbers import FLOATS, held, own_type
from hloracle.semantics.program import Block, Operation, Program, Type
from hloracle.semantics.reading import program_of

# The worst case of a sum, n * roundoff * n terms, allows any result where the sum of terms of either sign, about sqrt(n) of them, is
# less: where n**1.5 * roundoff is more than this, with a factor for how large terms are.
WORST_CASE = 2.0
ONE_SIGN = 6.0  # standard deviations: sums of more have terms of nearly one sign
FLUSHED = ("f64", "f32", "f16", "bf16")  # the types whose subnormal numbers may be taken for zeros


def operations() -> list[str]:
    """The operations that there are cases of, by MLIR's names, in the order of the suite."""
    return list(dict.fromkeys(d.operation for d in DESCRIPTIONS))


def cases(names: Sequence[str] = ()) -> Iterator[Case]:
    """The cases in a stable order, each made when it is asked for.

    names: only those of operations with these names, or whose identifier is one of them or begins with one and a slash.
    """
    for id, description, form in forms():
        if not names or any(n in (description.operation, id) or id.startswith(f"{n}/") for n in names):
            yield case_of(description, form)


def forms() -> Iterator[tuple[str, Description, Form]]:
    """What each case is made of, by its identifier, in the same order."""
    for description in DESCRIPTIONS:
        for form in description.forms():
            yield f"{description.kind}/{form.label}", description, form


def case_of(description: Description, form: Form) -> Case:
    """The case of one form. Its random values are those of its identifier."""
    with np.errstate(all="ignore"):
        return _case_of(description, form)


def _case_of(description: Description, form: Form) -> Case:
    id = f"{description.kind}/{form.label}"
    arrays = drawn(form, id)
    text, program = parsed(module(description.operation, form, arrays))
    return finished(description, form, id, (text, program), arrays)


def drawn(form: Form, id: str) -> list[np.ndarray]:
    """What the operands hold: random values are those of the identifier."""
    rng = np.random.default_rng(zlib.crc32(id.encode()))
    return [operand.values(rng, operand.type.shape, operand.type.dtype) for operand in form.operands]


def finished(
    description: Description, form: Form, id: str, module: tuple[str, Program], arrays: Sequence[np.ndarray]
) -> Case:
    """The case of a module, as text and as plain data, whose operands hold these arrays."""
    text, program = module
    arguments = [(a, o.type) for a, o in zip(arrays, form.operands, strict=True) if not o.constant]
    inputs, types = tuple(a for a, _ in arguments), [t for _, t in arguments]
    expected = expectations(description, form, program, types, inputs)
    bound = form.bound or description.bound
    return Case(id, description.operation, text, inputs, tuple(expected), form.tests or description.says, bound.reason)


@functools.cache
def context() -> Any:
    """MLIR's context, whose dialects are registered once."""
    return jax_mlir.make_ir_context()


def parsed(text: str) -> tuple[str, Program]:
    """A module as MLIR prints it, and as plain data. Raises MLIRError where it does not parse or verify."""
    with context():
        read = ir.Module.parse(text)
        return str(read.operation.get_asm(assume_verified=True)), program_of(read)


def expectations(
    description: Description, form: Form, program: Program, types: Sequence[Type], inputs: Sequence[np.ndarray]
) -> list[Expected]:
    """What the results of a form have to be."""
    bound, leaves = form.bound or description.bound, form.leaves or description.leaves
    given = [held(array, type.dtype) for array, type in zip(inputs, types, strict=True)]
    values = evaluated(program, given)
    opened = leaves(given, values) if leaves else [None] * len(values)
    found = [
        Expected(value, bound.of(type.dtype), open, None, type.dtype, bound.signed)
        for value, type, open in zip(values, form.results, opened, strict=True)
    ]
    if bound.epsilons:
        found = [
            dataclasses.replace(one, absolute=np.full(one.value.shape, bound.epsilons * float(info(one.dtype).eps)))
            for one in found
        ]
    if bound.sums:
        found = _sums(found, form, program, given)
    return _flushed(found, bound, program, types, given) if bound.flushes else found


def _sums(found: list[Expected], form: Form, program: Program, given: Sequence[np.ndarray]) -> list[Expected]:
    """Allow each sum a rounding for each of its terms, in any order.

    In the worst case that is `terms` roundings of the sum of the terms' absolute values.
    """
    sizes = _evaluated_of(np.abs, program, given)
    result = []
    for place, (one, size) in enumerate(zip(found, sizes, strict=True)):
        if one.dtype in FLOATS:
            roundoff = float(info(one.dtype).eps) / 2
            allowed = size * (form.terms * roundoff / (1 - min(form.terms * roundoff, 0.5)))
            if form.terms**1.5 * roundoff > WORST_CASE:
                allowed = _random_walk(one, allowed, place, program, given)
            allowed = allowed + size * form.rounds_operands
            one = dataclasses.replace(one, absolute=np.where(np.isfinite(allowed), allowed, 0.0))
        result.append(one)
    return result


def _random_walk(
    one: Expected, worst: np.ndarray, place: int, program: Program, given: Sequence[np.ndarray]
) -> np.ndarray:
    """How far off sums of many terms may be whose roundings are as often upward as downward.

    Each of the n partial sums is rounded, and the errors add up to about sqrt(n) times one of them (Higham and Mary, "A New Approach
    to Probabilistic Rounding Error Analysis", 2019). A rounding to nearest is off by 0.42 * roundoff in the root mean square, and the
    sum of the first k terms of either sign is about sqrt(k / n) * root, where root is that of the sum of all squares. So the errors of
    sums that are rounded one term after another deviate by 0.42 * roundoff * root * sqrt(n / 2), and the bound,
    2 * roundoff * sqrt(n) * hypot(sum, root), is more than six times that. Where the terms have nearly all one sign, the roundings may
    have one as well, and `worst` stays.
    """
    terms = np.maximum(_evaluated_of(np.ones_like, program, given)[place], 1.0)
    root = np.sqrt(_evaluated_of(np.square, program, given)[place])
    walk = 2 * float(info(one.dtype).eps) / 2 * np.sqrt(terms) * np.hypot(one.value, root)
    return np.where(np.abs(one.value) <= ONE_SIGN * root, np.minimum(walk, worst), worst)


def _evaluated_of(
    change: Callable[[np.ndarray], np.ndarray], program: Program, given: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """What a program of sums gives if its floats, those of its constants too, are changed first."""

    def changed(block: Block) -> Block:
        return dataclasses.replace(block, operations=tuple(map(inside, block.operations)))

    def inside(operation: Operation) -> Operation:
        regions, attributes = tuple(map(changed, operation.regions)), operation.attributes
        if operation.name == "stablehlo.constant" and operation.type.dtype in FLOATS:
            attributes = {**attributes, "value": np.asarray(change(attributes["value"]))}
        return dataclasses.replace(operation, regions=regions, attributes=attributes)

    functions = {name: changed(block) for name, block in program.functions.items()}
    return evaluated(Program(functions), [change(g) if g.dtype == np.float64 else g for g in given])


def _flushed(
    found: list[Expected], bound: Bound, program: Program, types: Sequence[Type], given: Sequence[np.ndarray]
) -> list[Expected]:
    """Allow subnormal numbers to be taken for zeros: processors and compilers do so, and the specification promises no accuracy.

    A result that is subnormal may be off by the smallest normal number. One that is another where subnormal operands are zeros is open.
    """
    zeroed = [_without_subnormal(g, t.dtype) for g, t in zip(given, types, strict=True)]
    changed = any(a is not b for a, b in zip(given, zeroed, strict=True))
    others = evaluated(program, zeroed) if changed else [one.value for one in found]
    result = []
    for one, other in zip(found, others, strict=True):
        if one.dtype in FLUSHED:
            least = float(info(one.dtype).smallest_normal) * bound.tiny
            # What is subnormal before it is rounded counts; in float64, the expected value is rounded already.
            below = np.abs(one.value) <= least if one.dtype == "f64" else np.abs(one.value) < least
            small = below & (one.value != 0)
            if small.any():
                more = np.zeros(()) if one.absolute is None else one.absolute
                one = dataclasses.replace(one, absolute=np.where(small, least, 0.0) + more)
        if changed and (open := _differs(one, other)).any():
            one = dataclasses.replace(one, open=open if one.open is None else one.open | open)
        result.append(one)
    return result


def _without_subnormal(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array itself where it holds none."""
    if dtype not in FLUSHED:
        return array
    small = (np.abs(array) < float(limits(own_type(dtype)).smallest_normal)) & (array != 0)
    return np.where(small, np.copysign(0.0, array), array) if small.any() else array


def _differs(one: Expected, other: np.ndarray) -> np.ndarray:
    """Where another value would be wrong, or is on the other side of an overflow."""
    if one.dtype not in FLOATS:
        return np.asarray(one.value != other)
    near = np.abs(one.value - other) <= unit(one.value, own_type(one.dtype)) * 0.25
    return np.asarray(~(near | (one.value == other) | (np.isnan(one.value) & np.isnan(other))))
