"""How the elements of tensors are held: floats in float64 whatever their type, integers and booleans in their own.

So a result is what exact operations give, and a deliberate rounding, as `convert` is, is one here too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

FLOATS: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f8E4M3": ml_dtypes.float8_e4m3, "f8E3M4": ml_dtypes.float8_e3m4, "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
INTEGERS: dict[str, Any] = {
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "i4": ml_dtypes.int4, "i2": ml_dtypes.int2,
    "ui64": np.uint64, "ui32": np.uint32, "ui16": np.uint16, "ui8": np.uint8, "ui4": ml_dtypes.uint4, "ui2": ml_dtypes.uint2,
}  # fmt: skip
COMPLEX: dict[str, Any] = {"complex<f32>": np.complex64, "complex<f64>": np.complex128}
_LARGEST = {"f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895313892515355e38}
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|true|false|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


class Unsupported(Exception):
    """What has no meaning here: an operation, an attribute or a type. The message names it."""


def held_as(dtype: str) -> np.dtype[Any]:
    """NumPy's type in which elements of this type are held. Raises Unsupported for one that is not known."""
    if dtype in FLOATS:
        return np.dtype(np.float64)
    if dtype == "i1":
        return np.dtype(np.bool_)
    if dtype in COMPLEX:
        return np.dtype(np.complex128)
    if dtype in INTEGERS:
        return own_type(dtype)
    raise Unsupported(f"elements of type {dtype}")


def own_type(dtype: str) -> np.dtype[Any]:
    """NumPy's type of the same width and format. Raises Unsupported for one that is not known."""
    if dtype == "i1":
        return np.dtype(np.bool_)
    known: Mapping[str, Any]
    for known in (FLOATS, INTEGERS, COMPLEX):
        if dtype in known:
            found: np.dtype[Any] = np.dtype(known[dtype])
            return found
    raise Unsupported(f"elements of type {dtype}")


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as a type has them, held as they are held here: floats rounded to the nearest, ties to even."""
    own = own_type(dtype)
    if dtype in FLOATS and array.dtype == np.float64 and own.itemsize < 4 and own != np.float16:
        array = _odd(array)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(own).astype(held_as(dtype))


def _odd(array: np.ndarray) -> np.ndarray:
    """Rounded to float32's numbers, to the odd of both neighbours. ml_dtypes rounds a float64 to float32 first: rounding that to the
    nearest could make a tie of what is none, which rounding to odd does not."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = array.astype(np.float32)
        toward = np.where(array > near, np.float32(np.inf), np.float32(-np.inf))
        other = np.nextafter(near, toward)
        even = (near.view(np.uint32) & 1) == 0
        inexact = np.isfinite(near) & (near.astype(np.float64) != array)
    return np.where(inexact & even, other, near).astype(np.float64)


def within(array: np.ndarray, dtype: str) -> np.ndarray:
    """Floats as far as their type reaches: what is larger is infinite, as it would be if it were rounded to that type."""
    if array.dtype.kind != "f" or dtype not in _LARGEST or not array.size:
        return array
    largest = _LARGEST[dtype]
    if -largest <= array.min() and array.max() <= largest:  # nothing of their size is made for most; a NaN is neither
        return array
    with np.errstate(invalid="ignore"):
        beyond = np.abs(array) > largest
    return np.where(beyond, np.copysign(np.inf, array), array) if beyond.any() else array


def held(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array of any NumPy type as elements of `dtype` are held."""
    return array if array.dtype == held_as(dtype) else array.astype(held_as(dtype))


def from_bytes(attribute: Any, dtype: str) -> np.ndarray:
    """The elements of a dense attribute, flat; one of them where all are the same."""
    try:
        whole = np.array(attribute)
    except (BufferError, ValueError, TypeError):
        return _from_text(str(attribute), dtype, bool(attribute.is_splat))
    flat = held(whole.ravel(), dtype)
    return flat[:1] if attribute.is_splat else flat


def _from_text(text: str, dtype: str, splat: bool) -> np.ndarray:
    """Of types that MLIR gives no buffer of."""
    own = own_type(dtype)
    inside = text[text.index("<") + 1 : text.rindex("> : ")]
    if inside.startswith('"0x') and not splat:
        return held(np.frombuffer(bytes.fromhex(inside.strip('"')[2:]), own), dtype)
    found = [_number(n, own) for n in _NUMBER.findall(inside)]
    return held(np.array(found).astype(own), dtype)


def _number(text: str, own: np.dtype[Any]) -> Any:
    if text.startswith("0x"):  # the bits of what has no number, such as an infinity
        return np.array(int(text, 16), f"u{own.itemsize}").view(own).astype(np.float64)
    return {"true": 1, "false": 0}.get(text) if text in ("true", "false") else float(text)
