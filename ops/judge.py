"""Whether what a backend gave is what a case expects, in units in the last place (ULP) of each result's own type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from hloracle.ops.case import Case, Expected
from hloracle.semantics.numbers import FLOATS, own_type, rounded

FORMATS = {np.dtype(type): name for name, type in FLOATS.items()}  # NumPy's type -> MLIR's word
Status = Literal["exact", "within", "wrong"]


@dataclass(frozen=True)
class Judged:
    """What came of a case.

    status: `exact` where every result is the expected value, rounded once to the result's type; `within` where none is farther off
      than the case allows.
    ulp: how far the farthest element is off: in ULP of its type, of integers in ones; infinite where the shape, the type or the number
      of results is another, or where only one of both is NaN or infinite.
    share: of what was allowed, how much was used at most; above 1 it is wrong.
    detail: of a wrong case, what was found where, in one line.
    """

    status: Status
    ulp: float = 0.0
    detail: str = ""
    share: float = 0.0


def judge(case: Case, results: Sequence[np.ndarray]) -> Judged:
    """Compares results with what the case expects: NaN equals NaN, and elements that the specification leaves open are passed over."""
    if len(results) != len(case.expected):
        return Judged("wrong", np.inf, f"{len(results)} results instead of {len(case.expected)}", np.inf)
    if not any(compared(one) for one in case.expected):
        return Judged("wrong", np.inf, "the case compares nothing", np.inf)
    with np.errstate(all="ignore"):
        found = [_judged(i, e, np.asarray(r)) for i, (e, r) in enumerate(zip(case.expected, results, strict=True))]
    worst = max(found, key=lambda one: ("exact", "within", "wrong").index(one.status))
    return Judged(worst.status, max(f.ulp for f in found), worst.detail, max(f.share for f in found))


def compared(expected: Expected) -> bool:
    """Whether anything is said of a result: of one without elements its shape and its type are."""
    return expected.ulp is not None and (not expected.value.size or expected.open is None or not expected.open.all())


def limits(dtype: np.dtype[Any]) -> Any:
    """What `numpy.finfo` says of a type of floats, those of ml_dtypes too."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def unit(value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The distance of neighbouring numbers of a type of floats at a value: the ULP, in float64; that of its ends beyond them."""
    info = limits(dtype)
    highest = np.frexp(float(info.max))[1] - 1
    exponent = np.frexp(np.where(np.isfinite(value), value, 0.0))[1] - 1
    within = np.clip(np.where(value == 0, info.minexp, exponent), info.minexp, highest)
    units: np.ndarray = np.ldexp(1.0, within - info.nmant)
    return units


def distance(value: np.ndarray, result: np.ndarray) -> np.ndarray:
    """How far results of a type of floats are from values in float64, in ULP; infinite between what is no number and what is one.

    An infinite result counts as the number after the largest one, so it is no farther from a value that overflows than rounding is.
    """
    dtype = result.dtype
    found = result.astype(np.float64)
    limit = float(limits(dtype).max)
    with np.errstate(invalid="ignore", over="ignore"):
        units = unit(value, dtype)
        off = np.abs(found - value) / units
        above = np.maximum((limit - np.abs(value)) / units + 1, 0.0)  # to the number after the largest one
        overflows = np.isinf(found) & np.isfinite(value) & (np.signbit(found) == np.signbit(value))
        off = np.where(overflows, np.where(above <= 0.5, 0.0, above), off)
    off = np.where(np.isnan(found) & np.isnan(value) | (found == value), 0.0, off)
    return np.where(np.isnan(off), np.inf, off)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type of NumPy's or of ml_dtypes' is one of floats."""
    return dtype in FORMATS


def _judged(number: int, expected: Expected, result: np.ndarray) -> Judged:
    value, place = expected.value, f"result {number}"
    if result.shape != value.shape:
        return Judged("wrong", np.inf, f"{place} has shape {result.shape} instead of {value.shape}", np.inf)
    wanted = own_type(expected.dtype) if expected.dtype else result.dtype
    if result.dtype != wanted:
        return Judged("wrong", np.inf, f"{place} is of type {result.dtype} instead of {wanted}", np.inf)
    if expected.ulp is None or not result.size:
        return Judged("exact")
    judged = np.ones(value.shape, bool) if expected.open is None else ~expected.open
    if value.dtype == np.float64 and is_float(result.dtype):
        return _floats(place, expected, result, judged)
    same = (result == value) | ((result != result) & (value != value))  # NaN too
    wrong = judged & ~same
    if not wrong.any():
        return Judged("exact")
    off = np.abs(result.astype(np.complex128) - value.astype(np.complex128))
    return Judged("wrong", float(off[wrong].max()), _said(place, wrong, wrong * 1.0, value, result, ""), np.inf)


def _floats(place: str, expected: Expected, result: np.ndarray, judged: np.ndarray) -> Judged:
    assert expected.ulp is not None
    value = expected.value
    off = distance(value, result)
    nearest = rounded(value, FORMATS[result.dtype])
    found = result.astype(np.float64)
    exact = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
    units = unit(value, result.dtype)
    more = 0.0 if expected.absolute is None else expected.absolute / units
    allowed = np.where(np.isfinite(value), expected.ulp + more, 0.0)
    if expected.signed:
        turned = (value == 0) & (found == 0) & (np.signbit(value) != np.signbit(found))
        off, exact = np.where(turned, np.inf, off), exact & ~turned
    off = np.where(judged, off, 0.0)
    wrong = judged & ~exact & (off > allowed)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(off == 0, 0.0, np.where(allowed > 0, off / allowed, np.where(exact, 0.0, np.inf)))
    most, used = float(off.max()), float(share.max())
    if wrong.any():
        return Judged("wrong", most, _said(place, wrong, share, value, result, f", {most:.4g} ULP off at most"), used)
    return Judged("exact" if exact[judged].all() else "within", most, "", min(used, 1.0))


def _said(place: str, wrong: np.ndarray, badness: np.ndarray, value: np.ndarray, result: np.ndarray, more: str) -> str:
    """The element that is most wrong, and how many there are."""
    at = np.unravel_index(int(np.argmax(np.where(wrong, badness, -1.0))), wrong.shape)
    where = f"{place}[{', '.join(map(str, at))}]" if at else place
    return f"{where} is {result[at]} instead of {value[at]}{more}; {wrong.sum()} of {wrong.size} elements are wrong"
