"""Places along an axis: percents of a drawing, or units of its viewBox; and what shares a column."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

COLUMNS = 96  # of a drawing: more positions or steps share columns, each of which shows its worst


@dataclass(frozen=True)
class LogAxis:
    """Decades from `low` to `high`, over `begin` to `end` of a drawing: percents, or units of its viewBox."""

    low: int
    high: int
    begin: float = 3.0
    end: float = 97.0

    def at(self, x: float | None) -> float:
        """A zero stands at the axis' beginning; NaN, infinity and what was not measured half a step past its end."""
        if x is None or not x < math.inf:
            return self.end + (1.5 if self.end > self.begin else -1.5)
        place = (math.log10(x) - self.low) / (self.high - self.low) if x > 0 else 0.0
        return self.begin + (self.end - self.begin) * min(max(place, 0.0), 1.0)

    def place(self, x: float | None) -> str:
        """What `at` gives, as text for SVG: four significant digits."""
        return f"{self.at(x):.4g}"

    def ticks(self, most: int = 6) -> list[dict[str, str]]:
        """Marks at whole decades, 1 among them, at most `most` + 1 of them.

        Each has, as text, its place in `x`, the decade as a multiple of a limit in `label`, and as a number in `power`.
        """
        apart = math.ceil((self.high - self.low) / most)
        decades = [d for d in range(self.low, self.high + 1) if d % apart == 0]
        return [{"x": self.place(10.0**d), "label": _decade(d), "power": _power(d)} for d in decades]


def log_axis(values: Iterable[float | None], least: tuple[int, int], **span: float) -> LogAxis:
    """The axis of whole decades that holds all values that have a place on one, and at least those from `least`."""
    decades = [math.log10(x) for x in values if x is not None and 0 < x < math.inf]
    low = min(least[0], math.floor(min(decades, default=0.0)))
    high = max(least[1], math.ceil(max(decades, default=0.0)))
    return LogAxis(low, high, **span)


def _decade(exponent: int) -> str:
    """A multiple of the limit."""
    if exponent == 0:
        return "limit"
    return f"{10.0**exponent:g}×" if -3 <= exponent <= 3 else f"1e{exponent}×"


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}" if -3 <= exponent <= 4 else f"1e{exponent}"


def every(n: int, most: int) -> range:
    """At most `most` of `n` indices, at even distances."""
    return range(0, n, next(k for k in itertools.count(1) if str(k).rstrip("0") in ("1", "2", "5") and n <= k * most))


def bins_of(n: int, most: int = COLUMNS) -> list[range]:
    """Up to `most` runs of indices of almost equal length."""
    columns = min(n, most)
    return [range(i * n // columns, (i + 1) * n // columns) for i in range(columns)]
