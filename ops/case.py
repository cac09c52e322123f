"""One try: a graph of one operation, what it is given, and what it has to give."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Expected:
    """What one result has to be.

    value: in float64 for a type of floats, whatever its width; integers and booleans in their own type.
    ulp: how many units in the last place, of the result's own type, an element may be off; 0 for exactly, None for a result of which
      nothing is said.
    open: where True, the specification leaves the element open; None where it does nowhere.
    absolute: how far an element may be off besides `ulp`, in float64; None for not at all.
    dtype: the result's type by MLIR's word, such as `bf16`; empty where any will do.
    signed: whether a zero has to have the sign of `value`.
    """

    value: np.ndarray
    ulp: float | None = 0.0
    open: np.ndarray | None = None
    absolute: np.ndarray | None = None
    dtype: str = ""
    signed: bool = False


@dataclass(frozen=True)
class Case:
    """A graph of one function `main`, and what it is given.

    id: unique, such as `add/f32/special`. operation: by its name in MLIR, such as `stablehlo.add`.
    text: the module. inputs: in the types of the arguments, those of ml_dtypes too. expected: one for each result.
    tests: the constraint or the sentence of the specification that it is about, by its number: `dynamic_slice C5: …`.
    reason: why the bound of its results is what it is, where that is not plain.
    """

    id: str
    operation: str
    text: str
    inputs: tuple[np.ndarray, ...] = field(repr=False)
    expected: tuple[Expected, ...] = field(repr=False)
    tests: str = ""
    reason: str = ""
