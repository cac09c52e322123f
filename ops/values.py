"""What operands hold: random values, and those that arithmetic treats in a way of their own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hloracle.semantics.numbers import FLOATS, INTEGERS, own_type

# Of a source of random numbers, a shape and MLIR's word of a type: an array of that type.
Values = Callable[[np.random.Generator, tuple[int, ...], str], np.ndarray]


def normal(scale: float = 1.0, mean: float = 0.0) -> Values:
    """Floats of a normal distribution; of integers small ones that no sum or product of two overflows; of booleans both."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if dtype in FLOATS:
            return (rng.standard_normal(shape) * scale + mean).astype(own_type(dtype))
        if dtype == "i1":
            return np.asarray(rng.random(shape) < 0.5)
        least, most = limits(dtype)
        return rng.integers(max(least, -9), min(most, 9), shape, endpoint=True).astype(own_type(dtype))

    return draw


def uniform(low: float, high: float) -> Values:
    """Numbers between two, both included."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if dtype in INTEGERS:
            return rng.integers(int(low), int(high), shape, endpoint=True).astype(own_type(dtype))
        return rng.uniform(low, high, shape).astype(own_type(dtype))

    return draw


def anywhere(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Every bit by chance: of floats all exponents, infinities and NaN among them."""
    own = own_type(dtype)
    if dtype == "i1" or own.itemsize * 8 != bits(dtype):
        return normal()(rng, shape, dtype)
    return np.frombuffer(rng.bytes(math.prod(shape) * own.itemsize), own).reshape(shape).copy()


def finite(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """As `anywhere`, with numbers in place of infinities, NaN and subnormal numbers."""
    found = anywhere(rng, shape, dtype)
    if dtype not in FLOATS:
        return found
    held = np.abs(found.astype(np.float64))
    keep = np.isfinite(held) & (held >= float(info(dtype).smallest_normal))
    return np.where(keep, found, np.ones((), found.dtype))


def given(numbers: Sequence[Any] | np.ndarray) -> Values:
    """These in order, again and again where there are too few."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        flat = np.asarray(numbers).ravel()
        return np.resize(flat, math.prod(shape)).astype(own_type(dtype)).reshape(shape)

    return fill


def distinct(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Each element another number, as far as the type has as many."""
    flat = rng.permutation(math.prod(shape))
    if dtype in FLOATS:
        return (flat - len(flat) // 2).astype(np.float64).astype(own_type(dtype)).reshape(shape)
    return flat.astype(np.int64).astype(own_type(dtype)).reshape(shape)


def zeros(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros."""
    return np.zeros(shape, own_type(dtype))


def ones(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Ones."""
    return np.ones(shape, own_type(dtype))


def special(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The special values of a type, in order."""
    return np.resize(specials(dtype), math.prod(shape)).reshape(shape)


def left(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Of all pairs of special values the left ones."""
    values = specials(dtype)
    return np.repeat(values, len(values)).reshape(shape)


def right(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Of all pairs of special values the right ones."""
    values = specials(dtype)
    return np.tile(values, len(values)).reshape(shape)


def every(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """All values of a type of 8 or 16 bits, in the order of their bits."""
    own = own_type(dtype)
    return np.arange(1 << bits(dtype)).astype(f"u{own.itemsize}").view(own).reshape(shape)


def bits(dtype: str) -> int:
    """The width of a type."""
    if dtype == "i1":
        return 1
    return int("".join(c for c in dtype.removeprefix("f8") if c.isdigit()) or 8) if dtype[:2] != "f8" else 8


def info(dtype: str) -> Any:
    """`finfo` of a type of floats by MLIR's word."""
    return ml_dtypes.finfo(own_type(dtype))  # type: ignore[no-untyped-call]


def limits(dtype: str) -> tuple[int, int]:
    """The smallest and the largest number of a type of integers."""
    width = bits(dtype)
    return (0, 2**width - 1) if dtype.startswith("ui") else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


@functools.cache
def specials(dtype: str) -> np.ndarray:
    """Zeros, the ends of what a type has, what is around one, ties, and what is no number."""
    if dtype == "i1":
        return np.array([False, True])
    if dtype in INTEGERS:
        least, most = limits(dtype)
        width = bits(dtype)
        near = [0, 1, 2, 3, 5, width - 1, width, width + 1, 100]
        chosen = [*near, *(-n for n in near), least, least + 1, most, most - 1, most // 2, most // 2 + 1]
        inside = sorted({n for n in chosen if least <= n <= most})
        return np.array(inside, np.uint64 if dtype == "ui64" else np.int64).astype(own_type(dtype))
    own, limit = own_type(dtype), info(dtype)
    tiny, eps = float(limit.smallest_subnormal), float(limit.eps)
    small, large = float(limit.smallest_normal), float(limit.max)
    whole = 1 / eps  # beyond it there are no fractions
    positive = [
        0.0, tiny, small - tiny, small, 2 * small, large, large / 2, 1.0, 1 + eps, 1 - eps / 2, 0.5, 0.25, 0.75, 1.5, 2.5, 3.5,
        3.0, 2.0, 10.0, 1 / 3, math.pi, math.pi / 2, 20.25, whole, whole / 2 + 0.5, whole / 4 + 0.25, eps, np.inf,
    ]  # fmt: skip
    return np.array([*positive, *(-n for n in positive), np.nan]).astype(own)
