"""Operations on each element by itself.

The specification gives no bounds ("StableHLO does not provide guarantees about numerical accuracy"). What it defines by an operation
of IEEE-754 that rounds once is held to that. For functions it names IEEE-754's recommended ones, which hardly anybody rounds correctly;
they are held to what OpenCL 3.0 asks of the full profile (its section 7.4, "Relative Error as ULPs"), which processors and GPUs of all
vendors fulfil. In 16 bits they are held to what OpenCL asks of half precision, since a float32 result rounded once is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hloracle.ops.describe import Bound, Description, Form, Operand
from hloracle.ops.descriptions.shapes import (
    FLOATS,
    LARGE,
    elementwise,
    one_special,
    short,
    two_special,
)  # fmt: skip
from hloracle.ops.values import Values, bits, every, finite, given, normal, uniform
from hloracle.semantics.program import Type

ROUNDED = Bound("IEEE-754 rounds it once, to the nearest: half a unit", ulp=0.5)
EXACT = Bound("the result is a number of the type itself, so nothing is rounded")
SIGNS = Bound("the result is a number of the type itself, and its zero has a sign", signed=True)
WIDE = (1009,)


def functions(ulp: float, half: float = 2.0, reason: str = "") -> Bound:
    """The bound of a function of IEEE-754's list: of float32 and float64, and of 16 bits."""
    why = reason or f"OpenCL 3.0 allows {ulp:g} ULP in single and double precision and {half:g} in half precision"
    return Bound(f"{why}; float64 has another one, for the expected value is itself rounded", {
        "f32": ulp, "f64": ulp + 1, "bf16": half, "f16": half, "": ulp,
    }, tiny=4)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """An operation on one or two floats: its values on shapes, and those on a wide range."""

    name: str
    says: str
    bound: Bound
    values: tuple[Values, ...] = (normal(3.0),)
    wide: tuple[Values, ...] = (finite,)
    types: Sequence[str] = FLOATS


UNARY = (
    Row("abs", "for floats: abs from IEEE-754", SIGNS),
    Row("cbrt", "for floats: rootn(x, 3) from IEEE-754", functions(2)),
    Row("ceil", "roundToIntegralTowardPositive from IEEE-754", SIGNS),
    Row("cosine", "for floats: cos from IEEE-754", functions(4), wide=(uniform(-3e4, 3e4),)),
    Row("exponential", "for floats: exp from IEEE-754", functions(3), wide=(uniform(-110, 95),)),
    Row("exponential_minus_one", "for floats: expm1 from IEEE-754", functions(3), wide=(uniform(-20, 20),)),
    Row("floor", "roundToIntegralTowardNegative from IEEE-754", SIGNS),
    Row("log", "for floats: log from IEEE-754", functions(3), (uniform(1e-3, 9),)),
    Row("log_plus_one", "for floats: logp1 from IEEE-754", functions(2), (uniform(-0.99, 9),)),
    Row("logistic", "for floats: division(1, addition(1, exp(-x))) from IEEE-754", functions(
        6, 4, "3 ULP of exp, half of one for the sum, 2.5 for a quotient as OpenCL has it; in 16 bits each of the three rounds once"
    ), wide=(uniform(-100, 100),)),
    Row("negate", "for floats: negate from IEEE-754", SIGNS),
    Row("rsqrt", "for floats: rSqrt from IEEE-754", functions(2, 1), (uniform(1e-3, 9),)),
    Row("sign", "sign(x): NaN for NaN, -1 for x < 0, -0.0 for -0.0, +0.0 for +0.0, 1 for x > 0", SIGNS),
    Row("sine", "for floats: sin from IEEE-754", functions(4), wide=(uniform(-3e4, 3e4),)),
    Row("sqrt", "for floats: squareRoot from IEEE-754", ROUNDED, (uniform(0, 9),)),
    Row("tan", "for floats: tan from IEEE-754", functions(5), wide=(uniform(-3e2, 3e2),)),
    Row("tanh", "for floats: tanh from IEEE-754", functions(5), wide=(uniform(-12, 12),)),
    Row("round_nearest_afz", "roundToIntegralTiesToAway from IEEE-754", SIGNS, wide=(uniform(-99, 99),)),
    Row("round_nearest_even", "roundToIntegralTiesToEven from IEEE-754", SIGNS, wide=(uniform(-99, 99),)),
)  # fmt: skip

TWO = (normal(3.0), normal(3.0))
FINITE = (finite, finite)
BINARY = (
    Row("add", "for floats: addition from IEEE-754", ROUNDED, TWO, FINITE),
    Row("atan2", "for floats: atan2 from IEEE-754", functions(6), TWO, FINITE),
    Row("divide", "for floats: division from IEEE-754", ROUNDED, TWO, FINITE),
    Row("maximum", "for floats: maximum from IEEE-754, which is NaN where one of both is", EXACT, TWO, FINITE),
    Row("minimum", "for floats: minimum from IEEE-754, which is NaN where one of both is", EXACT, TWO, FINITE),
    Row("multiply", "for floats: multiplication from IEEE-754", ROUNDED, TWO, FINITE),
    Row("power", "for floats: pow from IEEE-754", functions(16, 4), (uniform(0.01, 9), normal(3.0)), (uniform(0.5, 2), uniform(-60, 60))),
    Row("remainder", "lhs - d * rhs, where d is division(lhs, rhs) from IEEE-754 with roundTowardZero", Bound(
        "fmod is exact: the result is a number of the type itself"
    ), TWO, (normal(100.0), uniform(0.5, 9))),
    Row("subtract", "for floats: subtraction from IEEE-754", ROUNDED, TWO, FINITE),
)  # fmt: skip


def of_floats(row: Row) -> Iterator[Form]:
    """Special values, every value of short types, a wide range, shapes, and a large one."""
    if row.name in ("maximum", "minimum"):
        yield from _zeros(row.name)
    for dtype in row.types:
        if len(row.values) == 1:
            yield one_special(dtype)
            if short(dtype):
                type = Type((1 << bits(dtype),), dtype)
                yield Form(f"{dtype}/every", (Operand(type, every),), (type,))
        else:
            yield two_special(dtype)
        yield from elementwise(dtype, row.values)
        yield from elementwise(dtype, row.wide, shapes=(("wide", WIDE),))
        if dtype in ("f32", "bf16"):
            yield from elementwise(dtype, row.values, shapes=(("large", LARGE),))


def _zeros(name: str) -> Iterator[Form]:
    """Zeros of both signs: a case of its own, for hardware often has another order than IEEE-754."""
    says = f"for floats: {name} from IEEE-754, where -0 compares less than +0"
    for dtype in FLOATS:
        type = Type((4,), dtype)
        operands = (Operand(type, given([0.0, -0.0, 0.0, -0.0])), Operand(type, given([0.0, 0.0, -0.0, -0.0])))
        yield Form(f"{dtype}/zeros", operands, (type,), tests=says, bound=SIGNS)


def rows(table: Sequence[Row], prefix: str = "stablehlo.") -> Iterator[Description]:
    """The descriptions of a table."""
    for row in table:
        yield Description(prefix + row.name, row.says, row.bound, _forms(row))


def _forms(row: Row) -> Callable[[], Iterator[Form]]:
    return lambda: of_floats(row)


DESCRIPTIONS: tuple[Description, ...] = (*rows(UNARY), *rows(BINARY))
