"""Where the specification leaves a result open.

Of integer overflows and the like it says: "Unless explicitly called out, all these errors result in implementation-defined behavior".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hloracle.ops.describe import Leaves
from hloracle.ops.values import bits, info, limits
from hloracle.semantics.numbers import INTEGERS, own_type

WORDS = {own_type(dtype): dtype for dtype in INTEGERS}  # the types of integers, those of ml_dtypes too -> MLIR's words


def overflow(exact: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Leaves:
    """Integers whose exact result is none of the type."""

    def leaves(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        lhs, rhs = operands
        if lhs.dtype not in WORDS or not lhs.size:
            return [None]
        wide = exact(lhs.astype(object), rhs.astype(object))
        return [np.asarray(wide != values[0].astype(object)).astype(bool)]

    return leaves


def power(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """Negative exponents, and what overflows."""
    base, exponent = operands
    if base.dtype not in WORDS:
        return [None]
    sizes = [abs(int(n)) for n in base.ravel()]
    powers = [int(n) for n in exponent.ravel()]
    found = values[0].ravel()
    pairs = zip(sizes, powers, base.ravel(), found, strict=True)
    open = [p < 0 or (s > 1 and p > 64) or (s > 1 and int(b) ** p != int(f)) for s, p, b, f in pairs]
    return [np.array(open, bool).reshape(base.shape)]


def quotient(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """By zero, and the smallest number by -1."""
    lhs, rhs = operands
    if lhs.dtype not in WORDS:
        return [None]
    least, _ = limits(WORDS[lhs.dtype])
    return [np.asarray((rhs == 0) | ((lhs == least) & (rhs == -1) if least else np.zeros(lhs.shape, bool)))]


def shift(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """By a negative number of bits, or by as many as there are, or more."""
    lhs, rhs = operands
    return [np.asarray((rhs < 0) | (rhs >= bits(WORDS[lhs.dtype])))]


def smallest(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """The smallest number, whose negative is none."""
    (x,) = operands
    if x.dtype not in WORDS:
        return [None]
    least, most = limits(WORDS[x.dtype])
    return [np.asarray(x == (least or most // 2 + 1))]


def next_to_zero(dtype: str) -> Leaves:
    """Where a step begins at a subnormal number or at zero, and subnormal numbers may be taken for zeros."""

    def leaves(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        least = float(info(dtype).smallest_normal)
        return [np.asarray((np.abs(operands[0]) <= least) | ((np.abs(operands[1]) < least) & (operands[1] != 0)))]

    return leaves


def below(exponent: int) -> Leaves:
    """Subnormal numbers of a format with so many bits of exponent: it is not said whether they fit."""

    def leaves(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        least = np.ldexp(1.0, 2 - 2 ** (exponent - 1))
        return [np.asarray((np.abs(operands[0]) < least) & (operands[0] != 0))]

    return leaves


def beyond(source: str, target: str) -> Leaves:
    """Of a conversion, numbers that the other type does not have: of integers those out of range, of floats without infinity too."""

    def leaves(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        (x,) = operands
        if target == "f8E4M3FN":
            return [np.asarray(np.abs(x.astype(np.float64)) > 448)]
        if target == "i1" or target[0] in "fb" or x.dtype == np.bool_:
            return [None]
        least, most = limits(target)
        if x.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                whole = np.trunc(x)
                return [~((whole >= least) & (whole < float(most + 1)))]
        wide = x.astype(object)
        return [np.asarray((wide < least) | (wide > most)).astype(bool)]

    return leaves
