"""Operations of CHLO, which JAX and PyTorch export beside StableHLO's. Bounds are as in `elementwise.py`: OpenCL's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

from hloracle.ops.describe import INTEGER, MOVED, Bound, Description, Form, Operand
from hloracle.ops.descriptions import leaves
from hloracle.ops.descriptions.elementwise import EXACT, ROUNDED, Row, functions, rows
from hloracle.ops.descriptions.shapes import FLOATS, INTEGERS, elementwise, one_special, two_special
from hloracle.ops.values import Values, anywhere, finite, normal, uniform
from hloracle.semantics.program import Type

UNBOUNDED = "nobody gives a bound; 64 ULP and a few epsilons near zeros show another function, not another polynomial"
INVERSE = functions(16, 4, "CUDA gives 2 ULP and polynomials of single precision some 8")
GAMMA = Bound(UNBOUNDED, 64, epsilons=16)
INSIDE = (uniform(-0.99, 0.99),)
TABLE = (
    Row("acos", "acos from IEEE-754", functions(4), INSIDE),
    Row("acosh", "acosh from IEEE-754", functions(4), (uniform(1.01, 9),), (uniform(1, 1e4),)),
    Row("asin", "asin from IEEE-754", functions(4), INSIDE),
    Row("asinh", "asinh from IEEE-754", functions(4)),
    Row("atan", "atan from IEEE-754", functions(5)),
    Row("atanh", "atanh from IEEE-754", functions(5), INSIDE, INSIDE),
    Row("cosh", "cosh from IEEE-754", functions(4), wide=(uniform(-80, 80),)),
    Row("erf", "the error function", functions(16, 4), wide=(uniform(-6, 6),)),
    Row("erfc", "the complementary error function", functions(16, 4), wide=(uniform(-5, 5),)),
    Row("erf_inv", "the inverse of the error function", INVERSE, INSIDE, INSIDE),
    Row("sinh", "sinh from IEEE-754", functions(4), wide=(uniform(-80, 80),)),
    Row("square", "the operand multiplied by itself", ROUNDED),
    Row("tan", "tan from IEEE-754", functions(5), wide=(uniform(-3e2, 3e2),)),
)  # fmt: skip
POSITIVE = (
    Row("digamma", "the derivative of the logarithm of the gamma function", GAMMA, (uniform(0.5, 30),), (uniform(1, 900),)),
    Row("lgamma", "the logarithm of the absolute value of the gamma function", GAMMA, (uniform(0.5, 30),), (uniform(1, 900),)),
)  # fmt: skip


def _positive(row: Row) -> Iterator[Form]:
    """Where the function has no poles."""
    for dtype in row.types:
        yield from elementwise(dtype, row.values)
        yield from elementwise(dtype, row.wide, shapes=(("wide", (1009,)),))


def _is() -> Iterator[Form]:
    for dtype in FLOATS:
        yield one_special(dtype, "i1")
        yield from elementwise(dtype, (anywhere,), "i1", shapes=(("scores", (2, 9, 5, 7)), ("empty", (0, 5))))


def _next_after() -> Iterator[Form]:
    for dtype in FLOATS:
        yield dataclasses.replace(two_special(dtype), leaves=leaves.next_to_zero(dtype))
        yield from elementwise(dtype, (finite, finite))


def _mulhi() -> Iterator[Form]:
    for dtype in INTEGERS:
        yield two_special(dtype)
        yield from elementwise(dtype, (anywhere, anywhere))


def _constant_like() -> Iterator[Form]:
    for dtype in FLOATS:
        for form in elementwise(dtype, (normal(),)):
            yield dataclasses.replace(form, attributes=f"value = 1.5 : {dtype}")


# Names of operations that broadcast, their types, values, bounds.
_TWO: tuple[Values, ...] = (normal(3.0), normal(3.0))
BROADCAST: tuple[tuple[str, tuple[str, ...], tuple[Values, ...], Bound], ...] = (
    ("add", ("f32", "bf16", "i32"), _TWO, ROUNDED), ("subtract", ("f32", "bf16"), _TWO, ROUNDED),
    ("multiply", ("f32", "bf16", "i32"), _TWO, ROUNDED), ("divide", ("f32", "bf16"), _TWO, ROUNDED),
    ("maximum", ("f32", "bf16", "i32"), _TWO, EXACT), ("minimum", ("f32", "bf16", "i32"), _TWO, EXACT),
    ("power", ("f32",), (uniform(0.1, 4), normal()), functions(16, 4)), ("and", ("i1", "i32"), (anywhere, anywhere), INTEGER),
    ("or", ("i1", "i32"), (anywhere, anywhere), INTEGER), ("xor", ("i1", "i32"), (anywhere, anywhere), INTEGER),
    ("compare", ("f32", "i32"), _TWO, INTEGER),
)  # fmt: skip
# The shapes of two operands and of what they are broadcast to.
TOGETHER: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((), (2, 3), (2, 3)), ((5,), (3, 5), (3, 5)), ((3, 1), (1, 7), (3, 7)), ((2, 1, 5), (4, 1), (2, 4, 5)), ((1,), (0,), (0,)),
)  # fmt: skip


def _broadcast(name: str, types: tuple[str, ...], values: tuple[Values, ...]) -> Iterator[Form]:
    for dtype in types:
        for left, right, result in TOGETHER:
            label = f"{dtype}/{'x'.join(map(str, left)) or 'scalar'}-{'x'.join(map(str, right))}"
            compares = name == "compare"
            attributes = "comparison_direction = #chlo<comparison_direction LT>" if compares else ""
            operands = (Operand(Type(left, dtype), values[0]), Operand(Type(right, dtype), values[1]))
            yield Form(label, operands, (Type(result, "i1" if compares else dtype),), attributes)


DESCRIPTIONS = (
    *rows(TABLE, "chlo."),
    *(Description(f"chlo.{row.name}", row.says, row.bound, partial(_positive, row)) for row in POSITIVE),
    *(
        Description(f"chlo.{n}", f"{n.replace('_', ' ')} by IEEE-754", INTEGER, _is)
        for n in ("is_inf", "is_pos_inf", "is_neg_inf")
    ),
    Description("chlo.next_after", "the next representable value of lhs in the direction of rhs", EXACT, _next_after),
    Description("chlo.mulhi", "the upper half of the bits of the product", INTEGER, _mulhi),
    Description("chlo.constant_like", "a constant of the shape of the operand", MOVED, _constant_like),
    *(
        Description(
            f"chlo.broadcast_{n}",
            f"{n} of operands that are broadcast to one shape",
            bound,
            partial(_broadcast, n, t, v),
        )
        for n, t, v, bound in BROADCAST
    ),
)
