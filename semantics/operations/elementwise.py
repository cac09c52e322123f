"""Operations on each element by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hloracle.semantics.numbers import INTEGERS, Unsupported, own_type, rounded
from hloracle.semantics.operations.kinds import Known, one, with_attributes
from hloracle.semantics.program import Operation

COMPARISONS = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _both(boolean: Any, number: Any) -> Known:
    """Booleans have a meaning of their own."""
    return one(lambda a, b: (boolean if a.dtype == np.bool_ else number)(a, b))


def _integers_like(x: np.ndarray, result: np.ndarray) -> np.ndarray:
    return result if x.dtype.kind == "f" or x.dtype == np.bool_ else result.astype(x.dtype)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integers toward zero; by zero all bits are set, as C10 leaves open and hardware has it."""
    if a.dtype.kind in "fc":
        return np.divide(a, b)
    quotient = a // np.where(b == 0, 1, b).astype(a.dtype)
    exact = quotient * b == a
    below = (a < 0) != (b < 0)
    quotient = np.where(below & ~exact, quotient + 1, quotient)
    return np.where(b == 0, -1, quotient).astype(a.dtype)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """With the sign of the dividend."""
    return (
        np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b))).astype(a.dtype)
        if a.dtype.kind in "iu"
        else np.fmod(a, b)
    )


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    negative = b < 0
    powered = np.power(a, np.where(negative, 0, b).astype(b.dtype))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)) if a.dtype.kind == "i" else powered
    return np.where(negative, inverse, powered).astype(a.dtype)


def _sign(x: np.ndarray) -> np.ndarray:
    return (
        np.where(np.isnan(x), x, np.where(x == 0, x, np.sign(x)))
        if x.dtype.kind == "f"
        else _integers_like(x, np.sign(x))
    )


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _round_away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), np.copysign(np.abs(whole), x))


def _round_even(x: np.ndarray) -> np.ndarray:
    return np.rint(x)


def _shifted(how: str) -> Known:
    def shift(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        out = (by.astype(np.int64) < 0) | (by.astype(np.int64) >= bits)
        within = np.where(out, 0, by).astype(x.dtype)
        if how == "left":
            return np.where(out, 0, np.left_shift(x, within)).astype(x.dtype)
        if how == "logical":
            unsigned = x.view(f"u{x.dtype.itemsize}")
            return (
                np.where(out, 0, np.right_shift(unsigned, within.view(unsigned.dtype)))
                .astype(unsigned.dtype)
                .view(x.dtype)
            )
        filled = np.where(x < 0, -1, 0) if x.dtype.kind == "i" else np.zeros_like(x)
        return np.where(out, filled, np.right_shift(x, within)).astype(x.dtype)

    return one(shift)


def _popcnt(x: np.ndarray) -> np.ndarray:
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}")).astype(x.dtype)


def _count_leading_zeros(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    unsigned = x.view(f"u{x.dtype.itemsize}").astype(object)
    return np.vectorize(lambda n: bits - int(n).bit_length(), otypes=[np.int64])(unsigned).astype(x.dtype)


def compare(operation: Operation, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """TOTALORDER puts -NaN first, +NaN last, and -0 before +0."""
    if operation.attributes.get("compare_type") == "TOTALORDER":
        lhs, rhs = _total_order(lhs), _total_order(rhs)
    found: np.ndarray = COMPARISONS[operation.attributes["comparison_direction"]](lhs, rhs)
    return found


def _total_order(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float64).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)


def convert(operation: Operation, x: np.ndarray) -> np.ndarray:
    """Floats are rounded to the nearest, ties to even; to integers toward zero, and what is out of range is left open."""
    dtype = operation.type.dtype
    if dtype == "i1":
        return np.asarray(x != 0)
    if dtype in INTEGERS and x.dtype.kind == "f":
        limits = np.iinfo(own_type(dtype)) if own_type(dtype).kind in "iu" else None
        whole = np.trunc(np.where(np.isnan(x), 0, x))
        if limits is None:
            return whole.astype(own_type(dtype))
        # The ends of 64 bits are no float64, so what is beyond them is put there afterwards.
        inside = np.clip(
            whole, float(limits.min), np.nextafter(float(limits.max), 0) if limits.max > 2**53 else limits.max
        )
        found = inside.astype(own_type(dtype))
        return np.where(whole > float(limits.max), limits.max, np.where(whole < limits.min, limits.min, found)).astype(
            found.dtype
        )
    return rounded(x, dtype)


def reduce_precision(operation: Operation, x: np.ndarray) -> np.ndarray:
    """Rounded to fewer bits of exponent and mantissa; what is too large is infinite, what is too small is zero."""
    exponent, mantissa = operation.attributes["exponent_bits"], operation.attributes["mantissa_bits"]
    largest = 2 ** (exponent - 1) - 1
    parts, powers = np.frexp(x)
    kept = np.ldexp(np.rint(np.ldexp(parts, mantissa + 1)), powers - mantissa - 1)
    kept = np.where(np.abs(kept) >= 2.0 ** (largest + 1), np.copysign(np.inf, x), kept)
    kept = np.where(np.abs(kept) < 2.0 ** (1 - largest), np.copysign(0.0, x), kept)
    return np.where(np.isfinite(x), kept, x)


def bitcast_convert(operation: Operation, x: np.ndarray, source: str = "") -> np.ndarray:
    """The same bits as another type. Floats are held wider than they are, so the operand's type has to be known."""
    raise Unsupported("bitcast_convert")


def clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    """NaN where any is."""
    return np.minimum(np.maximum(x, low), high)


def is_finite(x: np.ndarray) -> np.ndarray:
    """Neither infinite nor NaN."""
    return np.isfinite(x)


def identity(operation: Operation, *operands: np.ndarray) -> np.ndarray:
    """What is an operation for compilers alone."""
    return operands[0]


def _constant(operation: Operation) -> np.ndarray:
    value = operation.attributes["value"]
    if not isinstance(value, np.ndarray):
        raise Unsupported(f"a constant of {operation.type.dtype}")
    return value


UNARY: dict[str, Any] = {
    "abs": np.abs, "cbrt": np.cbrt, "ceil": np.ceil, "cosine": np.cos, "exponential": np.exp,
    "exponential_minus_one": np.expm1, "floor": np.floor, "log": np.log, "log_plus_one": np.log1p, "logistic": _logistic,
    "negate": np.negative, "rsqrt": lambda x: 1.0 / np.sqrt(x), "sign": _sign, "sine": np.sin, "sqrt": np.sqrt,
    "tan": np.tan, "tanh": np.tanh, "round_nearest_afz": _round_away, "round_nearest_even": _round_even,
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": np.add, "atan2": np.arctan2, "divide": _divide, "maximum": np.maximum, "minimum": np.minimum,
    "multiply": np.multiply, "power": _power, "remainder": _remainder, "subtract": np.subtract,
}  # fmt: skip
CHLO: dict[str, Any] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh,
    "cosh": np.cosh, "erf": _erf, "erfc": np.vectorize(math.erfc, otypes=[np.float64]), "sinh": np.sinh, "square": np.square,
    "tan": np.tan, "lgamma": np.vectorize(math.lgamma, otypes=[np.float64]),
}  # fmt: skip

KNOWN: dict[str, Known] = {
    **{f"stablehlo.{name}": one(compute) for name, compute in {**UNARY, **BINARY}.items()},
    **{f"chlo.{name}": one(compute) for name, compute in CHLO.items()},
    "stablehlo.add": _both(np.logical_or, np.add),
    "stablehlo.multiply": _both(np.logical_and, np.multiply),
    "stablehlo.and": one(np.bitwise_and),
    "stablehlo.or": one(np.bitwise_or),
    "stablehlo.xor": one(np.bitwise_xor),
    "stablehlo.not": one(np.invert),
    "stablehlo.shift_left": _shifted("left"),
    "stablehlo.shift_right_logical": _shifted("logical"),
    "stablehlo.shift_right_arithmetic": _shifted("arithmetic"),
    "stablehlo.popcnt": one(_popcnt),
    "stablehlo.count_leading_zeros": one(_count_leading_zeros),
    "stablehlo.compare": with_attributes(compare),
    "stablehlo.select": one(lambda which, yes, no: np.where(which, yes, no)),
    "stablehlo.clamp": one(clamp),
    "stablehlo.convert": with_attributes(convert),
    "stablehlo.reduce_precision": with_attributes(reduce_precision),
    "stablehlo.is_finite": one(is_finite),
    "stablehlo.constant": with_attributes(_constant),
    "stablehlo.real": one(np.real),
    "stablehlo.imag": one(np.imag),
    "stablehlo.complex": one(lambda a, b: a + 1j * b),
    "chlo.constant": with_attributes(_constant),
    "chlo.is_inf": one(np.isinf),
}  # fmt: skip
