"""Whether a graph shows a compiler's fault: beside a compiler that is right, and beyond what rounding explains."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from hloracle.backends.reopened import Reopened
from hloracle.core.abi import Graph
from hloracle.core.errors import ToolchainError
from hloracle.localize.draft import Case
from hloracle.localize.noise import noisy
from hloracle.localize.operations import tolerance

# A fault that is shown is this many times as large as what rounding explains: what is left then is no noise.
MARGIN = 4
# A compiler may order its work otherwise each time, and be wrong in one of three compilations: then each case is compiled anew
# so many times. How often the first case is compiled again to find that out.
COMPILATIONS, AGAIN = 6, 2
WITHOUT_VALUES = ("compile", "load")
_PLACE = re.compile(r"^\S*:\d+:\d+: ")
_NAME = re.compile(r"[%@#][\w.$-]+")
_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|-?\d+(?:\.\d+)?)(?:x\d+)*", re.IGNORECASE)
_SMALLEST = float(np.finfo(np.float32).tiny)


class BudgetEnded(Exception):
    """There is no time left to try anything."""


@dataclass(frozen=True)
class Seen:
    """What a case shows.

    expected, got: the right result and the suspect's; None where it fails. tolerance: how far a right result may be off.
    failure: the stage in which the suspect fails and what it says there, as `likeness` has it; empty where it gives values.
    """

    expected: np.ndarray | None = None
    got: np.ndarray | None = None
    tolerance: float = 0.0
    failure: tuple[str, str] | None = None
    message: str = ""


def likeness(error: ToolchainError) -> tuple[str, str]:
    """The stage and the first line of an error, without its place, and without the numbers and names in it."""
    first = (error.message.splitlines() or [""])[0]
    return error.stage, _NUMBERS.sub("N", _NAME.sub("NAME", _PLACE.sub("", first)))


class Judge:
    """Runs cases on the suspect and on what is trusted, for so many seconds.

    fault: what the suspect fails with; None where it gives wrong values.
    finite: no expected value may be infinite or no number.
    compilations: how many of a case may be needed to see the fault; 1 where each shows it.
    """

    def __init__(self, suspect: Reopened, trusted: Reopened, seconds: float) -> None:
        self.suspect, self.trusted = suspect, trusted
        self._until = time.monotonic() + seconds
        self.fault: tuple[str, str] | None = None
        self.finite = True
        self.tried, self.compilations = 0, 1

    @property
    def compiles_only(self) -> bool:
        """Whether the fault is that a graph does not compile, whatever it is given."""
        return self.fault is not None and self.fault[0] in WITHOUT_VALUES

    def first(self, case: Case) -> Seen | None:
        """What is to be shown from now on: what the case shows, None where it shows nothing."""
        seen = self._failure(case)
        if seen is not None:
            self.fault = seen.failure
            return seen
        self.finite, self.compilations = False, COMPILATIONS
        found = self._wrong_values(case)
        self.finite = found is not None and found.expected is not None and _finite(found.expected)
        if found is not None and all(self._wrong_values(case, [-1 - i]) for i in range(AGAIN)):
            self.compilations = 1
        return found

    def look(self, case: Case) -> Seen | None:
        """What a case shows of the fault; None where it does not. Raises BudgetEnded."""
        if time.monotonic() > self._until:
            raise BudgetEnded
        self.tried += 1
        if self.fault is None:
            return self._wrong_values(case)
        seen = self._failure(case)
        return seen if seen is not None and seen.failure == self.fault else None

    def _wrong_values(self, case: Case, compilations: Iterable[int] = ()) -> Seen | None:
        """What a case shows, where the suspect gives other values by more than rounding explains.

        Args:
          compilations: their numbers, where they are others than usual: 0 is that of the graph as it is.
        """
        try:
            expected = self.trusted.run(case.graph, case.inputs)[case.result]
            if self.finite and not _finite(expected):
                return None
            for number in compilations or range(self.compilations):
                got = self.suspect.run(_anew(case.graph, number), case.inputs)[case.result]
                if off(got, expected) > MARGIN * (limit := _limit(got, expected)):
                    break
            else:
                return None
            # Only now, because few come so far: how much of it may be rounding.
            shaken = self.trusted.run(noisy(case), case.inputs)[case.result]
            limit = max(limit, off(shaken, expected))
        except (ToolchainError, ir.MLIRError):
            return None
        return Seen(expected, got, limit) if off(got, expected) > MARGIN * limit else None

    def values(self, case: Case) -> list[np.ndarray]:
        """The right results of a case; none where there are no values, or the trusted side gives none."""
        if self.compiles_only:
            return []
        try:
            return self.trusted.run(case.graph, case.inputs)
        except ToolchainError:
            return []

    def _failure(self, case: Case) -> Seen | None:
        try:
            if case.inputs or not case.graph.abi.arguments:
                self.suspect.run(case.graph, case.inputs)
            else:
                self.suspect.load(case.graph)
        except ToolchainError as error:
            return Seen(failure=likeness(error), message=error.message)
        return None


def _anew(graph: Graph, number: int) -> Graph:
    """The same graph in a text that no cache has a module of."""
    return dataclasses.replace(graph, text=f"{graph.text}\n// compiled again: {number}\n") if number else graph


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def _limit(got: np.ndarray, expected: np.ndarray) -> float:
    """What two orders of summation may differ by. Also relative to what was got: a right zero allows for nothing."""
    if expected.dtype.kind in "biu":
        return 0.0
    return max(tolerance(expected), tolerance(got), _SMALLEST)


def off(got: np.ndarray, expected: np.ndarray) -> float:
    """How far off the furthest element is; infinite for other shapes and where only one is a number."""
    return float(np.max(_distance(got, expected), initial=0.0)) if got.shape == expected.shape else float("inf")


def furthest(got: np.ndarray, expected: np.ndarray) -> tuple[int, ...]:
    """The index of the element that is furthest off, of two arrays of one shape."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(_distance(got, expected))), got.shape))


def _distance(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    one, other = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
    return np.where(np.isnan(distance), np.inf, distance)
