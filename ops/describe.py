"""What the suite is made of: descriptions of operations, each with the forms that it is tried in.

A description says what the specification says of an operation, and how far results may be off. A form is one way to write the
operation: the types and values of its operands, its attributes and its regions. `suite.py` makes a case of each form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hloracle.ops.values import Values
from hloracle.semantics.program import Type

# Of the operands and the expected values, as `semantics` holds them: for each result, where the specification leaves it open.
Leaves = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], Sequence[np.ndarray | None]]


@dataclass(frozen=True)
class Bound:
    """How far results may be off, and why.

    ulp: in units in the last place of the result's type, for all types or by type (`""` for those that are not named).
    sums: whether an element is a sum, which may be off by `terms` roundings of the sum of its terms' absolute values.
    flushes: whether subnormal numbers may be taken for zeros, among operands and among results.
    signed: whether zeros have to have their sign.
    tiny: numbers of fewer than so many times the smallest normal one count as subnormal among results: what is computed from parts of
      it has flushed some.
    epsilons: how far an element may be off besides, in units of the type's epsilon: of functions that come near to zero.
    """

    reason: str
    ulp: float | Mapping[str, float] = 0.0
    sums: bool = False
    flushes: bool = True
    signed: bool = False
    tiny: float = 1.0
    epsilons: float = 0.0

    def of(self, dtype: str) -> float:
        """The bound in ULP of a result's type."""
        return self.ulp if isinstance(self.ulp, int | float) else self.ulp.get(dtype, self.ulp[""])


@dataclass(frozen=True)
class Operand:
    """A type, and what its elements are. constant: it stands in the module, and is no argument."""

    type: Type
    values: Values = field(repr=False)
    constant: bool = False


@dataclass(frozen=True)
class Form:
    """One way to write an operation.

    label: what tells it from the description's other forms, such as `f32/special`.
    attributes: as MLIR's text, without braces. regions: each as MLIR's text, without braces.
    functions: further functions of the module, as MLIR's text. body: what stands in `main` in place of the operation itself; its
      operands are `%0`, `%1`, …
    aliased: arguments whose memory a result may have: number of an argument -> number of a result.
    tests: a sentence of its own in place of the description's.
    terms: how many terms a sum has.
    rounds_operands: how far, relatively, an operand of a product may be rounded first.
    """

    label: str
    operands: tuple[Operand, ...]
    results: tuple[Type, ...]
    attributes: str = ""
    regions: tuple[str, ...] = ()
    functions: str = ""
    body: str = ""
    aliased: Mapping[int, int] = field(default_factory=dict)
    tests: str = ""
    bound: Bound | None = None
    leaves: Leaves | None = None
    terms: int = 0
    rounds_operands: float = 0.0


@dataclass(frozen=True)
class Description:
    """An operation by MLIR's name, the specification's sentence or constraint, the bound of its results, and its forms."""

    operation: str
    says: str
    bound: Bound
    forms: Callable[[], Iterator[Form]] = field(repr=False)
    leaves: Leaves | None = None

    @property
    def kind(self) -> str:
        """What identifiers of its cases begin with: the name without `stablehlo.`."""
        return self.operation.removeprefix("stablehlo.")


MOVED = Bound(
    "elements are moved as they are, subnormal numbers and the signs of zeros too", flushes=False, signed=True
)
INTEGER = Bound("integers and booleans are exact")
