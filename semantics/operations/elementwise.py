"""Operations on each element by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloracle.semantics.numbers import INTEGERS, Unsupported, held, held_as, own_type, rounded
from hloracle.semantics.operations.kinds import Around, Known, one, with_attributes
from hloracle.semantics.program import Operation

COMPARISONS = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip
PACKED = ("i4", "ui4", "i2", "ui2")  # narrower than what NumPy has them in
# NumPy's type -> the width, and the type of whole bytes in which NumPy computes with all of its functions.
_IN_BYTES: dict[np.dtype[Any], tuple[int, Any]] = {
    own_type(dtype): (int(dtype[-1]), np.uint8 if dtype[0] == "u" else np.int8) for dtype in PACKED
}


def _in_bytes(compute: Any) -> Any:
    """The same of integers of 4 and 2 bits: computed in 8, of which the lowest are kept."""

    def wrapped(*operands: np.ndarray) -> np.ndarray:
        own = operands[0].dtype
        if own not in _IN_BYTES:
            return np.asarray(compute(*operands))
        _, wide = _IN_BYTES[own]
        return np.asarray(np.asarray(compute(*(o.astype(wide) for o in operands))).astype(own))

    return wrapped


def _bits(x: np.ndarray) -> tuple[np.ndarray, int]:
    """The bits of integers as numbers without a sign, and how many there are."""
    if x.dtype in _IN_BYTES:
        width, wide = _IN_BYTES[x.dtype]
        return x.astype(wide).view(np.uint8) & np.uint8(2**width - 1), width
    return x.view(f"u{x.dtype.itemsize}"), 8 * x.dtype.itemsize


def _both(boolean: Any, number: Any) -> Known:
    """Booleans have a meaning of their own."""
    return one(lambda a, b: (boolean if a.dtype == np.bool_ else number)(a, b))


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integers toward zero. By zero all bits are set, as hardware has it: the specification leaves it open."""
    if a.dtype.kind in "fc":
        return np.asarray(np.divide(a, b))
    quotient = a // np.where(b == 0, 1, b).astype(a.dtype)
    exact = quotient * b == a
    below = (a < 0) != (b < 0)
    quotient = np.where(below & ~exact, quotient + 1, quotient)
    return np.asarray(np.where(b == 0, -1, quotient).astype(a.dtype))


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """With the sign of the dividend."""
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.asarray(np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b).astype(a.dtype))).astype(a.dtype))


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers, a negative exponent gives the reciprocal toward zero, as the interpreter has it."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.power(a, b))
    negative = b < 0
    powered = np.power(a, np.where(negative, 0, b).astype(b.dtype))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)) if a.dtype.kind == "i" else powered
    return np.asarray(np.where(negative, inverse, powered).astype(a.dtype))


def _sign(x: np.ndarray) -> np.ndarray:
    """Zeros and NaN as they are."""
    return np.where(np.isnan(x) | (x == 0), x, np.sign(x)) if x.dtype.kind == "f" else np.asarray(np.sign(x))


def _larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NaN where either is; -0 is less than +0, as in IEEE-754's `maximum` of 2019."""
    found = np.asarray(np.maximum(a, b))
    return found if a.dtype.kind != "f" else np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), found)


def _smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NaN where either is; -0 is less than +0."""
    found = np.asarray(np.minimum(a, b))
    return found if a.dtype.kind != "f" else np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), found)


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _round_away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)
    away = np.abs(x - whole) >= 0.5
    return np.asarray(np.where(away, whole + np.sign(x), np.copysign(np.abs(whole), x)))


def _shifted(how: str) -> Known:
    """By as many bits as there are, or more, all bits leave, as the interpreter has it."""

    def shift(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        unsigned, width = _bits(x)
        out = (by.astype(np.int64) < 0) | (by.astype(np.int64) >= width)
        within = np.where(out, 0, by.astype(np.int64))
        if how == "arithmetic":
            up = 8 * unsigned.dtype.itemsize - width  # the sign goes to where NumPy has it, and back
            number = (unsigned << np.array(up, unsigned.dtype)).view(f"i{unsigned.dtype.itemsize}")
            moved = np.where(out, np.where(number < 0, -1, 0), np.right_shift(number, within + up))
            return np.asarray(moved.astype(number.dtype)).view(unsigned.dtype).astype(x.dtype)
        shifted = np.left_shift if how == "left" else np.right_shift
        moved = np.where(out, 0, shifted(unsigned, within.astype(unsigned.dtype)))
        return np.asarray(moved.astype(unsigned.dtype).astype(x.dtype))

    return one(shift)


def _popcnt(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.bitwise_count(_bits(x)[0]).astype(x.dtype))


def _count_leading_zeros(x: np.ndarray) -> np.ndarray:
    unsigned, width = _bits(x)
    lengths = [width - int(n).bit_length() for n in unsigned.ravel()]
    return np.array(lengths, np.int64).reshape(x.shape).astype(x.dtype)


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
        return _whole(np.trunc(np.where(np.isnan(x), 0, x)), own_type(dtype))
    return rounded(x, dtype)


def _whole(x: np.ndarray, type: np.dtype[Any]) -> np.ndarray:
    """Floats without a fraction as integers; what is beyond the ends is put there."""
    if type.kind not in "iu":  # of 4 and 2 bits
        return x.astype(type)
    least, most = int(np.iinfo(type).min), int(np.iinfo(type).max)
    largest = float(np.nextafter(float(most), 0)) if float(most) > most else float(most)  # 2^63 - 1 is no float64
    inside = np.clip(x, least, largest).astype(type)
    return np.asarray(np.where(x > largest, most, inside).astype(type))


def reduce_precision(operation: Operation, x: np.ndarray) -> np.ndarray:
    """Rounded to fewer bits of exponent and mantissa; what is too large is infinite, what is too small is zero."""
    exponent, mantissa = operation.attributes["exponent_bits"], operation.attributes["mantissa_bits"]
    largest = 2 ** (exponent - 1) - 1
    parts, powers = np.frexp(x)
    kept = np.ldexp(np.rint(np.ldexp(parts, mantissa + 1)), powers - mantissa - 1)
    kept = np.where(np.abs(kept) >= np.ldexp(1.0, largest + 1), np.copysign(np.inf, x), kept)
    kept = np.where(np.abs(kept) < np.ldexp(1.0, 1 - largest), np.copysign(0.0, x), kept)
    return np.where(np.isfinite(x), kept, x)


def bitcast_convert(operation: Operation, x: np.ndarray) -> np.ndarray:
    """The same bits as another type, the lowest ones first where one element becomes several."""
    source, target = operation.operand_types[0].dtype, operation.type.dtype
    if any(dtype in ("i1", *PACKED) for dtype in (source, target)):
        raise Unsupported(f"bitcast_convert of {source} to {target}")
    own, new = np.ascontiguousarray(x.astype(own_type(source))), own_type(target)
    flat = own.reshape(-1).view(new).reshape(operation.type.shape)
    return held(flat, target)


def clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    """NaN where any is."""
    return np.asarray(np.minimum(np.maximum(x, low), high))


def map_(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
    """A computation of scalars, on each element."""
    return [np.broadcast_to(r, operands[0].shape) for r in around.region(operation.regions[0], operands)]


def next_after(operation: Operation, x: np.ndarray, to: np.ndarray) -> np.ndarray:
    """The next number of the type toward another one."""
    dtype = operation.type.dtype
    return held(np.asarray(np.nextafter(x.astype(own_type(dtype)), to.astype(own_type(dtype)))), dtype)


def mulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of the bits of a product."""
    product = a.astype(object) * b.astype(object)
    return np.asarray((product >> (8 * a.dtype.itemsize)), object).astype(a.dtype)


def constant_like(operation: Operation, x: np.ndarray) -> np.ndarray:
    """A constant of the operand's shape."""
    return np.full(x.shape, operation.attributes["value"]).astype(held_as(operation.type.dtype))


def digamma(x: np.ndarray) -> np.ndarray:
    """NaN at its poles, as CHLO has it."""
    import scipy.special  # type: ignore[import-untyped]

    return np.where((x <= 0) & (x == np.floor(x)), np.nan, scipy.special.digamma(x))


def _in_scipy(name: str) -> Known:
    """A function of scipy.special, which is imported when it is needed: it takes half a second."""

    def compute(x: np.ndarray) -> np.ndarray:
        import scipy.special

        return np.asarray(getattr(scipy.special, name)(x))

    return one(compute)


def _broadcasting(name: str) -> Known:
    """StableHLO's or CHLO's operation of that name on operands that are broadcast first, as NumPy does by itself."""

    def compute(operation: Operation, operands: list[np.ndarray], around: Around) -> list[np.ndarray]:
        dims, shape = operation.attributes.get("broadcast_dimensions"), operation.type.shape
        wide = []
        for x in operands:
            if dims is not None and x.ndim == len(dims) < len(shape):
                x = x.reshape([x.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))])
            wide.append(np.broadcast_to(x, shape))
        base = KNOWN.get(f"stablehlo.{name}") or KNOWN[f"chlo.{name}"]
        return base(operation, wide, around)

    return compute


def _complex(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Part by part: a product with 1j would make a NaN of an infinity."""
    found = np.empty(a.shape, np.complex128)
    found.real, found.imag = a, b
    return found


def _constant(operation: Operation) -> np.ndarray:
    value = operation.attributes["value"]
    if not isinstance(value, np.ndarray):
        raise Unsupported(f"a constant of {operation.type.dtype}")
    return value


UNARY: dict[str, Any] = {
    "abs": np.abs, "cbrt": np.cbrt, "ceil": np.ceil, "cosine": np.cos, "exponential": np.exp,
    "exponential_minus_one": np.expm1, "floor": np.floor, "log": np.log, "log_plus_one": np.log1p, "logistic": _logistic,
    "negate": np.negative, "rsqrt": lambda x: 1.0 / np.sqrt(x), "sign": _sign, "sine": np.sin, "sqrt": np.sqrt,
    "tan": np.tan, "tanh": np.tanh, "round_nearest_afz": _round_away, "round_nearest_even": np.rint,
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": np.add, "atan2": np.arctan2, "divide": _divide, "maximum": _larger, "minimum": _smaller,
    "multiply": np.multiply, "power": _power, "remainder": _remainder, "subtract": np.subtract,
}  # fmt: skip
CHLO: dict[str, Any] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh,
    "cosh": np.cosh, "sinh": np.sinh, "square": np.square, "tan": np.tan, "conj": np.conj, "digamma": digamma, "mulhi": mulhi,
    "is_inf": np.isinf, "is_pos_inf": np.isposinf, "is_neg_inf": np.isneginf,
}  # fmt: skip
SCIPY = {"erf": "erf", "erfc": "erfc", "erf_inv": "erfinv", "lgamma": "gammaln", "bessel_i1e": "i1e"}
BROADCASTING = (
    "add", "and", "atan2", "compare", "divide", "maximum", "minimum", "multiply", "next_after", "or", "power", "remainder",
    "select", "shift_left", "shift_right_arithmetic", "shift_right_logical", "subtract", "xor",
)  # fmt: skip

KNOWN: dict[str, Known] = {
    **{f"stablehlo.{name}": one(_in_bytes(compute)) for name, compute in {**UNARY, **BINARY}.items()},
    **{f"chlo.{name}": one(compute) for name, compute in CHLO.items()},
    **{f"chlo.{name}": _in_scipy(theirs) for name, theirs in SCIPY.items()},
    **{f"chlo.broadcast_{name}": _broadcasting(name) for name in BROADCASTING},
    "stablehlo.add": _both(np.logical_or, _in_bytes(np.add)),
    "stablehlo.multiply": _both(np.logical_and, _in_bytes(np.multiply)),
    "stablehlo.and": one(np.bitwise_and),
    "stablehlo.or": one(np.bitwise_or),
    "stablehlo.xor": one(np.bitwise_xor),
    "stablehlo.not": one(_in_bytes(np.invert)),
    "stablehlo.shift_left": _shifted("left"),
    "stablehlo.shift_right_logical": _shifted("logical"),
    "stablehlo.shift_right_arithmetic": _shifted("arithmetic"),
    "stablehlo.popcnt": one(_popcnt),
    "stablehlo.count_leading_zeros": one(_count_leading_zeros),
    "stablehlo.compare": with_attributes(compare),
    "stablehlo.select": one(lambda which, yes, no: np.where(which, yes, no)),
    "stablehlo.clamp": one(clamp),
    "stablehlo.convert": with_attributes(convert),
    "stablehlo.bitcast_convert": with_attributes(bitcast_convert),
    "stablehlo.reduce_precision": with_attributes(reduce_precision),
    "stablehlo.is_finite": one(np.isfinite),
    "stablehlo.map": map_,
    "stablehlo.constant": with_attributes(_constant),
    "stablehlo.real": one(np.real),
    "stablehlo.imag": one(np.imag),
    "stablehlo.complex": one(_complex),
    "chlo.constant": with_attributes(_constant),
    "chlo.constant_like": with_attributes(constant_like),
    "chlo.next_after": with_attributes(next_after),
}  # fmt: skip
