"""Simpler numbers for what a case is given, and for its constants: zeros, ones, signs, small whole numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloracle.localize.draft import CONSTANT, Case, constant_of, edited, numbers_of
from hloracle.localize.hunt import Hunt

FEW = 4  # the largest of small whole numbers

Simple = Callable[[np.ndarray], np.ndarray]


def _zeros(array: np.ndarray) -> np.ndarray:
    return np.zeros_like(array)


def _ones(array: np.ndarray) -> np.ndarray:
    return np.ones_like(array)


def _signs(array: np.ndarray) -> np.ndarray:
    return np.where(array < 0, -1, 1).astype(array.dtype)


def _whole(array: np.ndarray) -> np.ndarray:
    """In the proportions that they have."""
    numbers = array.astype(np.float64)
    largest = float(np.max(np.abs(numbers), initial=0.0))
    return np.asarray(np.rint(numbers * (FEW / largest if largest else 1.0)).astype(array.dtype))


# The simplest first: an array is replaced by what comes before it.
SIMPLE: tuple[Simple, ...] = (_zeros, _ones, _signs, _whole)


def simpler_values(hunt: Hunt) -> None:
    """Replace all arguments at once, then each by itself, then each constant."""
    for simple in SIMPLE:
        if _replaced(hunt, simple, list(hunt.case.inputs)):
            break
    for name in list(hunt.case.inputs):
        any(_replaced(hunt, simple, [name]) for simple in SIMPLE)
    for place in range(hunt.case.operations):
        any(_constant(hunt, simple, place) for simple in SIMPLE)


def _replaced(hunt: Hunt, simple: Simple, names: list[str]) -> bool:
    """Try some arguments in a simpler form, those that do not have it yet."""
    case = hunt.case
    inputs = dict(case.inputs)
    inputs |= {name: new for name in names if (new := _simpler(simple, inputs[name])) is not None}
    if all(inputs[name] is case.inputs[name] for name in names):
        return False
    return hunt.accepts(Case(case.graph, inputs, case.result))


def _simpler(simple: Simple, array: np.ndarray) -> np.ndarray | None:
    """None where an array is as simple as that already. What is no number, such as a mask's -inf, stays."""
    if array.dtype.kind in "biu" and simple not in (_zeros, _ones):
        return None
    finite = np.isfinite(array.astype(np.float64))
    numbers = np.where(finite, array, 0).astype(array.dtype)
    if any(
        np.array_equal(numbers, np.where(finite, known(numbers), 0)) for known in SIMPLE[: SIMPLE.index(simple) + 1]
    ):
        return None
    return np.where(finite, simple(numbers), array).astype(array.dtype)


def _constant(hunt: Hunt, simple: Simple, place: int) -> bool:
    with edited(hunt.case) as draft:
        if place >= len(draft.operations) or draft.operations[place].operation.name != CONSTANT:
            return False
        operation = draft.operations[place]
        numbers = numbers_of(operation)
        if numbers is None or (new := _simpler(simple, numbers)) is None:
            return False
        operation.attributes["value"] = constant_of(new, operation.results[0].type)
        return hunt.accepts_draft(draft)
