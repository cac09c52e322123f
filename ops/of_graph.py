"""The operations of a graph as cases: each distinct one alone, with random operands or with those that it really had."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from hloracle.core.bindings import names_read
from hloracle.core.errors import InputError
from hloracle.localize.inline import copied, operands_of
from hloracle.ops.case import Case, Expected
from hloracle.ops.describe import INTEGER, Bound, Description, Form, Leaves, Operand
from hloracle.ops.descriptions import DESCRIPTIONS, conversions, leaves, reductions
from hloracle.ops.judge import compared, judge
from hloracle.ops.outcome import one_line
from hloracle.ops.suite import context, drawn, finished
from hloracle.ops.values import Values, bits, distinct, given, normal, uniform, zeros
from hloracle.semantics.evaluate import Evaluator
from hloracle.semantics.numbers import COMPLEX, FLOATS, Unsupported, own_type
from hloracle.semantics.operations import OPERATIONS
from hloracle.semantics.program import Block, Operation, Type
from hloracle.semantics.reading import Reader, program_of, type_of

# Of the number of a value of `main`, as `semantics.reading` counts them: what it holds, or None where that is not known.
Held = Callable[[int], np.ndarray | None]

INSIDE = ("stablehlo.while", "stablehlo.if", "stablehlo.case")  # what they do is what their regions do
ELSEWHERE = ("func.call", "stablehlo.composite", "func.return", "stablehlo.return", "stablehlo.constant")
DRAWS = 4  # of random operands, until zeros would be wrong results
MOST_CONSTANT = 64  # elements of a constant that stays one; a larger one is a weight, and an argument
POSITIVE = (
    "stablehlo.log",
    "stablehlo.sqrt",
    "stablehlo.rsqrt",
    "stablehlo.power",
    "chlo.lgamma",
    "chlo.digamma",
    "chlo.acosh",
)
SHIFTS = ("stablehlo.shift_left", "stablehlo.shift_right_logical", "stablehlo.shift_right_arithmetic")
RECIPROCAL = Bound("compilers multiply by the reciprocal of a constant, which is rounded itself", ulp=1.5)
COMBINES = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
ADDS = {"add", "convert"}  # what a region consists of that adds, by way of another type
# What a region consists of that gives one of its operands as it is.
PICKS = {"and", "compare", "constant", "is_finite", "maximum", "minimum", "not", "or", "select", "xor"}
# Operands from this one on say what shape a result has.
SHAPES = {
    "stablehlo.dynamic_broadcast_in_dim": 1, "stablehlo.dynamic_conv": 2, "stablehlo.dynamic_gather": 2, "stablehlo.dynamic_iota": 0, "stablehlo.dynamic_pad": 2,
    "stablehlo.dynamic_reshape": 1, "stablehlo.real_dynamic_slice": 1,
}  # fmt: skip
DIVISIONS = ("stablehlo.divide", "stablehlo.remainder")


@dataclass(frozen=True)
class OfGraph:
    """cases: one for each distinct operation, in the order of the text. skipped: what has no case -> why."""

    cases: tuple[Case, ...]
    skipped: Mapping[str, str]


def cases_of(text: str | bytes, name: str = "the graph", held: Held | None = None) -> OfGraph:
    """The distinct operations of a module's functions, those in the regions of loops and branches too.

    Two are the same if their names, types, attributes, regions and small constant operands are. Raises InputError where the module does
    not parse.

    Args:
      held: what values of `main` really hold. An operand that it does not know is random, and of a kind that suits the operation.
    """
    with context(), names_read(name):
        try:
            module = ir.Module.parse(text)
        except (ir.MLIRError, ValueError) as error:
            words = " ".join(str(error).split())[:200]
            raise InputError(f"does not parse ({words})", name, "see StableHLO's specification") from None
        cases: dict[str, Case] = {}
        skipped: dict[str, str] = {}
        for function in module.body.operations:
            if function.operation.name != "func.func" or not len(function.regions[0].blocks):
                continue
            block, reader = function.regions[0].blocks[0], Reader()
            reader.block(block)
            known = held if ir.StringAttr(function.attributes["sym_name"]).value == "main" else None
            for operation in _inside(block):
                try:
                    _add(cases, operation, reader, known)
                except Unsupported as error:
                    skipped.setdefault(operation.operation.name, str(error))
                except (TypeError, ValueError) as error:  # of NumPy, about a type that it does not take there
                    skipped.setdefault(operation.operation.name, f"it cannot be evaluated ({one_line(str(error))})")
    return OfGraph(tuple(cases.values()), skipped)


def _inside(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        if operation.operation.name in INSIDE:
            for region in operation.regions:
                for inner in region.blocks:
                    yield from _inside(inner)
        elif operation.operation.name not in ELSEWHERE:
            yield operation


def _add(cases: dict[str, Case], operation: Any, reader: Reader, held: Held | None) -> None:
    """The case of an operation, unless there is one of its text."""
    if operation.operation.name not in OPERATIONS:
        raise Unsupported("it has no meaning here")
    operands = operands_of(operation)
    if any(type_of(v).other or type_of(v).dtype in COMPLEX for v in (*operands, *operation.results)):
        raise Unsupported("an operand or a result is no tensor of real numbers and static shape")
    shapes = list(operation.operands)[SHAPES.get(operation.operation.name, len(operation.operands)) :]
    if not all(map(_is_small_constant, shapes)):
        raise Unsupported("its shape is no constant")
    kept = [v for v in operands if _is_small_constant(v)]
    inputs = [v for v in operands if v not in kept]
    module = _alone(operation, inputs, kept)
    text = str(module.operation.get_asm(assume_verified=True))
    if text in cases:
        return
    program = program_of(module)
    read = next(o for o in program.function().operations if o.name == operation.operation.name)
    # Of an operand that stands twice, the first place counts.
    suits = dict(zip(reversed(list(operation.operands)), reversed(fills_of(read)), strict=True))
    types = [type_of(v) for v in inputs]
    chosen = [suits.get(v, normal()) for v in inputs]
    if held is not None:
        real = [held(reader.numbers[v]) if v in reader.numbers else None for v in inputs]
        chosen = [fill if array is None else given(array) for fill, array in zip(chosen, real, strict=True)]
    given_to = tuple(Operand(type, fill) for type, fill in zip(types, chosen, strict=True))
    form = Form("", given_to, tuple(type_of(r) for r in operation.results))
    description, form = _judged(read, form, bool(operands) and operation.operands[-1] in kept)
    if opens := form.leaves or description.leaves:
        form = dataclasses.replace(form, leaves=_of_operands(opens, program.function(), read))
    id = f"{description.kind}/{len(cases)}"
    cases[text] = _telling(finished(description, form, id, (text, program), arrays) for arrays in _draws(form, text))


def _draws(form: Form, text: str) -> Iterator[list[np.ndarray]]:
    """Operands for a case, and other ones: the terms of a sum may happen to cancel."""
    for attempt in range(DRAWS):
        yield drawn(form, f"{text}{attempt or ''}")


def _telling(made: Iterator[Case]) -> Case:
    """The first case that tells right results from wrong ones. Raises Unsupported where none does."""
    reason = ""
    with np.errstate(all="ignore"):
        for case in made:
            if not any(map(compared, case.expected)):
                reason = "the specification leaves all of its result open"
            elif any(map(_allows_zeros, case.expected)):
                reason = "its result may be off by as much as it is: it has too many terms for its type"
            else:
                return case
    raise Unsupported(reason)


def _allows_zeros(expected: Expected) -> bool:
    """Whether zeros pass for a result that is none: then the case says nothing of what a backend gives."""
    judged = True if expected.open is None else ~expected.open
    if not (expected.value.astype(bool) & judged).any():
        return False
    zeros = np.zeros(expected.value.shape, own_type(expected.dtype))
    return judge(Case("", "", "", (), (expected,)), [zeros]).status != "wrong"


def _of_operands(leaves: Leaves, block: Block, operation: Operation) -> Leaves:
    """What is open by the operands of the operation, some of which are constants, or stand twice."""

    def opened(arguments: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> Sequence[np.ndarray | None]:
        known = dict(zip(block.arguments, arguments, strict=True))
        for constant in block.operations:
            if constant.name == "stablehlo.constant":
                known[constant.results[0]] = constant.attributes["value"]
        return leaves([known[o] for o in operation.operands], values)

    return opened


def _is_small_constant(value: Any) -> bool:
    owner = value.owner
    return (
        not isinstance(owner, ir.Block) and owner.name == "stablehlo.constant" and type_of(value).size <= MOST_CONSTANT
    )  # fmt: skip


def _alone(operation: Any, inputs: Sequence[Any], constants: Sequence[Any]) -> Any:
    """A module of the operation alone, which holds its constants itself."""
    with ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(operation.operation.name.partition(".")[2])
        results = list(operation.results)
        type = ir.FunctionType.get([v.type for v in inputs], [r.type for r in results])
        with ir.InsertionPoint(module.body):
            function: Any = func.FuncOp("main", type, visibility="public")  # type: ignore[call-arg]
        block = function.add_entry_block()
        new = dict(zip(inputs, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for constant in constants:
                copied(constant.owner, new)
            copied(operation, new)
            func.ReturnOp([new[r] for r in results])
        module.operation.verify()
    return module


def fills_of(operation: Operation) -> list[Values]:
    """What suits each operand: indices inside, divisors that are not zero, positive numbers for roots."""
    found: list[Values] = [normal()] * len(operation.operands)
    name, types, attributes = operation.name, operation.operand_types, operation.attributes
    if name in POSITIVE:
        found[0] = uniform(0.1, 4)
    elif name in DIVISIONS and types[1].dtype not in FLOATS:
        found[1] = uniform(1, 9)
    elif name in SHIFTS:
        found[1] = uniform(0, bits(types[1].dtype) - 1)
    elif name == "stablehlo.dynamic_slice":
        spaces = zip(types[0].shape, attributes["slice_sizes"], strict=True)
        found[1 : len(types)] = [uniform(0, n - s) for n, s in spaces]
    elif name == "stablehlo.dynamic_update_slice":
        spaces = zip(types[0].shape, types[1].shape, strict=True)
        found[2 : len(types)] = [uniform(0, n - s) for n, s in spaces]
    elif name == "stablehlo.sort":
        found[0] = distinct  # of equal keys, the order of what is sorted with them may be open
    elif name in ("stablehlo.gather", "stablehlo.dynamic_gather"):
        numbers = attributes["dimension_numbers"]
        found[1] = _indices(types[0], types[1], numbers["start_index_map"], numbers["index_vector_dim"])
    elif name == "stablehlo.scatter":
        numbers, inputs = attributes["scatter_dimension_numbers"], (len(types) - 1) // 2
        dims = numbers["scattered_dims_to_operand_dims"]
        found[inputs] = _indices(types[0], types[inputs], dims, numbers["index_vector_dim"], apart=True)
    elif name in ("stablehlo.reduce", "stablehlo.reduce_window") and len(types) == 2 and (how := _how(operation)):
        found[1] = given(np.array([reductions.neutral(how, types[0].dtype)]))
        if how == "multiply" and types[0].dtype in FLOATS:
            found[0] = uniform(0.5, 1.5)  # of normal numbers a product of many is zero
    elif name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        found[len(types) // 2 : len(types)] = [zeros] * (len(types) // 2)
    elif name == "chlo.ragged_dot":
        found[2] = _groups(types[0].shape[0])
    return found


def _indices(operand: Type, indices: Type, dims: Sequence[int], at: int, apart: bool = False) -> Values:
    """Index vectors whose every part is inside of its axis; `apart`: as different ones as there may be."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        whole = (*shape, 1) if at == len(shape) else shape
        found = np.zeros(whole, np.int64)
        parts = np.moveaxis(found, at, -1)
        count = math.prod(parts.shape[:-1])
        for k, dim in enumerate(dims):
            size = max(operand.shape[dim], 1)
            flat = np.resize(rng.permutation(size), count) if apart else rng.integers(0, size, count)
            parts[..., k] = flat.reshape(parts.shape[:-1])
        return found.reshape(shape).astype(own_type(dtype))

    return draw


def _groups(rows: int) -> Values:
    """Sizes of groups that have all rows together."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        ends = np.sort(rng.integers(0, rows + 1, shape[0] - 1))
        return np.asarray(np.diff(ends, prepend=0, append=rows).astype(own_type(dtype)))

    return draw


def _how(operation: Operation) -> str:
    """What a reduction's region does: the operation that it consists of, or nothing."""
    if not operation.regions or len(operation.regions[0].operations) != 1:
        return ""
    kind = operation.regions[0].operations[0].kind
    return kind if kind in COMBINES else ""


def _judged(operation: Operation, form: Form, constant_divisor: bool) -> tuple[Description, Form]:
    """By which description an operation is judged, and the form with a bound of its own where it needs one.

    constant_divisor: whether the last operand is a constant of the module.
    """
    description = _descriptions().get(operation.name)
    if description is None:
        raise Unsupported("nothing says how far its results may be off")
    terms = _terms(operation)
    bound, open = _bound(operation, terms), _open(operation)
    if operation.name == "stablehlo.divide" and constant_divisor and operation.type.dtype in FLOATS:
        bound = RECIPROCAL
    return description, dataclasses.replace(
        form, bound=bound, leaves=open, terms=max(terms, 1), rounds_operands=_rounds_operands(operation)
    )


def _open(operation: Operation) -> Leaves | None:
    """What the specification leaves open of an operation by its types, attributes and regions; None where the description says it."""
    if operation.name == "stablehlo.convert":
        return leaves.beyond(operation.operand_types[0].dtype, operation.type.dtype)
    if operation.name == "stablehlo.sort" and not operation.attributes.get("is_stable", False):
        return functools.partial(_tied, operation)
    if operation.name == "stablehlo.scatter" and not (_how(operation) or "add" in _kinds(operation) <= ADDS):
        return functools.partial(_twice, operation)
    return None


def _tied(sort: Operation, operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> Sequence[np.ndarray | None]:
    """Of a sort that is not stable: of neighbours neither of which comes first, all that differs."""
    if not values[0].size or not values[0].ndim:
        return [None] * len(values)
    axis = sort.attributes["dimension"]
    rows = [np.moveaxis(value, axis, -1) for value in values]
    pairs = [(row[..., :-1], row[..., 1:]) for row in rows]

    def first(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        found = Evaluator().block(sort.regions[0], [one for pair in pairs for one in pair])[0]
        return np.broadcast_to(found, pairs[0][0].shape)

    same = ~first(pairs) & ~first([(b, a) for a, b in pairs])
    group: np.ndarray = np.cumsum(np.pad(~same, [(0, 0)] * (same.ndim - 1) + [(1, 0)]).astype(np.int64), axis=-1)
    found = []
    for a, b in pairs:
        differ = same & ((a != b) | (np.signbit(a) != np.signbit(b) if a.dtype.kind == "f" else False))
        several = np.zeros(group.shape, bool)
        for at in zip(*np.nonzero(differ), strict=True):
            several[(*at[:-1], group[at])] = True
        found.append(np.moveaxis(np.take_along_axis(several, group, -1), -1, axis))
    return found


def _twice(
    scatter: Operation, operands: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> Sequence[np.ndarray | None]:
    """Of a scatter whose computation depends on the order: elements that get several updates."""
    scalar = Type((), "f64")
    add = Operation("stablehlo.add", (0, 1), (2,), (scalar,), operand_types=(scalar, scalar))
    counts = dataclasses.replace(scatter, regions=(Block((0, 1), (scalar, scalar), (add,), (2,)),))
    count = len(values)
    given = [np.zeros(operands[0].shape), operands[count], np.ones(operands[-1].shape)]
    (updates,) = Evaluator().operation(counts, given)
    return [updates > 1] * count


def _kinds(operation: Operation) -> set[str]:
    """What the regions of an operation consist of."""
    return {o.kind for region in operation.regions for o in region.nested()}


def _terms(operation: Operation) -> int:
    """How many terms the sums of an operation have at most."""
    name, types, attributes = operation.name, operation.operand_types, operation.attributes
    if name == "stablehlo.dot_general":
        return math.prod(types[0].shape[d] for d in attributes["dot_dimension_numbers"]["lhs_contracting_dimensions"])
    if name in ("stablehlo.dot", "chlo.ragged_dot"):
        return types[0].shape[-1]
    if name == "stablehlo.convolution":
        features: int = attributes["dimension_numbers"]["kernel_output_feature_dimension"]
        return types[1].size // max(types[1].shape[features], 1)
    if name == "stablehlo.reduce":
        return math.prod(types[0].shape[d] for d in attributes["dimensions"])
    if name == "stablehlo.reduce_window":
        return math.prod(attributes["window_dimensions"])
    return types[-1].size if name == "stablehlo.scatter" else 0


def _bound(operation: Operation, terms: int) -> Bound | None:
    """The bound of an operation whose description has it by the form; None of others."""
    dtype = operation.type.dtype
    if operation.name == "stablehlo.convert":
        return conversions.bound(operation.operand_types[0].dtype, dtype)
    if operation.name in ("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter"):
        if how := _how(operation):
            return reductions.bound(how, dtype, terms)
        return reductions.PICKED if _kinds(operation) <= PICKS else reductions.SUMMED
    return None if dtype in FLOATS else INTEGER


def _rounds_operands(operation: Operation) -> float:
    """How far operands of a product may be rounded: of float32 without the highest precision, to bfloat16."""
    if operation.name not in ("stablehlo.dot_general", "stablehlo.convolution", "chlo.ragged_dot"):
        return 0.0
    precise = "HIGHEST" in str(operation.attributes.get("precision_config", ""))
    return 0.0 if precise or "f32" not in [t.dtype for t in operation.operand_types] else 2.0**-7


@functools.cache
def _descriptions() -> dict[str, Description]:
    """Of each operation what is known of it: its first description, and where integers are open."""
    found: dict[str, Description] = {}
    for description in DESCRIPTIONS:
        first = found.setdefault(description.operation, description)
        if first.leaves is None and description.leaves is not None:
            found[description.operation] = dataclasses.replace(first, leaves=description.leaves)
    return found
