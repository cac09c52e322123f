"""Operations on integers and booleans. An overflow is implementation-defined; what does not overflow is exact."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hloracle.ops.describe import INTEGER, Description, Form, Leaves, Operand
from hloracle.ops.descriptions import leaves
from hloracle.ops.descriptions.shapes import (
    INTEGERS,
    LARGE,
    SIGNED,
    SMALL,
    elementwise,
    one_special,
    short,
    two_special,
)  # fmt: skip
from hloracle.ops.values import Values, anywhere, bits, every, given, normal, uniform
from hloracle.semantics.program import Type


@dataclass(frozen=True)
class Row:
    """An operation on one or two integers."""

    name: str
    says: str
    leaves: Leaves | None = None
    values: tuple[Values, ...] = (anywhere, anywhere)
    types: Sequence[str] = INTEGERS


SMALL_ONES = (normal(), normal())
TABLE = (
    Row("abs", "for signed integers: integer modulus", leaves.smallest, (normal(),), SIGNED),
    Row("add", "for integers: integer addition", leaves.overflow(operator.add), SMALL_ONES),
    Row("and", "for integers: bitwise AND"),
    Row("count_leading_zeros", "the count of the number of leading zero bits", None, (anywhere,)),
    Row("divide", "the algebraic quotient with any fractional part discarded", leaves.quotient, (anywhere, uniform(1, 9))),
    Row("maximum", "for integers: integer maximum"),
    Row("minimum", "for integers: integer minimum"),
    Row("multiply", "for integers: integer multiplication", leaves.overflow(operator.mul), SMALL_ONES),
    Row("negate", "for integers: integer negation, of unsigned ones that of their bits", leaves.smallest, (anywhere,)),
    Row("not", "for integers: bitwise NOT", None, (anywhere,)),
    Row("or", "for integers: bitwise OR"),
    Row("popcnt", "the count of the number of bits set", None, (anywhere,)),
    Row("power", "for integers: integer exponentiation", leaves.power, (uniform(0, 4), uniform(0, 3))),
    Row("remainder", "the sign of the result is taken from the dividend", leaves.quotient, (anywhere, uniform(1, 9))),
    Row("shift_left", "left-shift by rhs number of bits", leaves.shift, (anywhere, uniform(0, 7))),
    Row("shift_right_arithmetic", "arithmetic right-shift by rhs number of bits", leaves.shift, (anywhere, uniform(0, 7))),
    Row("shift_right_logical", "logical right-shift by rhs number of bits", leaves.shift, (anywhere, uniform(0, 7))),
    Row("sign", "sign(x): -1 for x < 0, 0 for 0, 1 for x > 0", None, (anywhere,), SIGNED),
    Row("subtract", "for integers: integer subtraction", leaves.overflow(operator.sub), (uniform(9, 30), uniform(0, 9))),
    Row("xor", "for integers: bitwise XOR"),
)  # fmt: skip
BOOLEANS = (
    ("add", "for booleans: logical OR"), ("and", "for booleans: logical AND"), ("maximum", "for booleans: logical OR"),
    ("minimum", "for booleans: logical AND"), ("multiply", "for booleans: logical AND"), ("not", "for booleans: logical NOT"),
    ("or", "for booleans: logical OR"), ("xor", "for booleans: logical XOR"),
)  # fmt: skip


def _forms(row: Row) -> Iterator[Form]:
    for dtype in row.types:
        if len(row.values) == 1:
            yield one_special(dtype)
            if short(dtype):
                type = Type((1 << bits(dtype),), dtype)
                yield Form(f"{dtype}/every", (Operand(type, every),), (type,))
        else:
            yield two_special(dtype)
            if bits(dtype) == 8 and dtype.startswith("i"):
                yield _pairs(dtype)
        yield from elementwise(dtype, row.values)
        if dtype == "i32":
            yield from elementwise(dtype, row.values, shapes=(("large", LARGE),))


def _pairs(dtype: str) -> Form:
    """All pairs of values of 8 bits."""
    numbers = np.arange(256).astype(np.uint8).view(np.int8)
    type = Type((256, 256), dtype)
    operands = (Operand(type, given(np.repeat(numbers, 256))), Operand(type, given(numbers)))
    return Form(f"{dtype}/pairs", operands, (type,))


def _booleans(count: int) -> Iterator[Form]:
    values = (given([False, False, True, True]), given([False, True]))[:count]
    yield from elementwise("i1", values, shapes=(("table", (4,)),))
    yield from elementwise("i1", (anywhere, anywhere)[:count], shapes=(*SMALL, ("large", LARGE)))


DESCRIPTIONS = (
    *(Description(f"stablehlo.{r.name}", r.says, INTEGER, partial(_forms, r), r.leaves) for r in TABLE),
    *(
        Description(f"stablehlo.{name}", says, INTEGER, partial(_booleans, 1 if name == "not" else 2))
        for name, says in BOOLEANS
    ),
)
