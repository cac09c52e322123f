"""How errors are spread in a graph that computes in bf16 or f16, or keeps keys and values in int8, beside Hugging Face's in float32
and in the same.

Each is drawn on one logarithmic axis: a bar from the median to the 99th percentile, a tick at the root mean square, and a ring
at the largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hloracle.core.record import Figures, Record, Spread
from hloracle.reports import text
from hloracle.reports.facts import badness, in_order
from hloracle.reports.page.axes import every

NAMES = {"rms": "Root mean square", "median": "Median", "p99": "99th percentile", "largest": "Largest"}
TYPES = {"bf16": "bfloat16", "f16": "float16"}
LOGITS = "logits"
LEAST = 1e-12  # of what is drawn: smaller errors are as good as none


def spreads(record: Record) -> dict[str, Any] | None:
    """The logits of each phase, drawn; and of each configuration and phase the kinds of anchor, nearest to their limits first.

    None where nothing was computed in less than float32.
    """
    found = in_order_of_configurations(record)
    if not found:
        return None
    settings = record["settings"]
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        if one["anchor"] != LOGITS:
            tables.setdefault((one["configuration"], one["phase"]), []).append(_row(one))
    for rows in tables.values():
        rows.sort(key=lambda row: -badness(row["share"]))
    return {
        "type": "float32 with int8 caches" if settings["kv"] == "int8" else TYPES.get(settings["compute"], "float32"),
        "logits": list(_logits([one for one in found if one["anchor"] == LOGITS])),
        "tables": [{"configuration": c, "phase": phase, "rows": rows} for (c, phase), rows in tables.items()],
        "names": NAMES,
    }


def _logits(found: Sequence[Spread]) -> Iterator[dict[str, Any]]:
    """A drawing for each phase; of configurations that did not answer the same prompts, several."""
    together: dict[str, list[Spread]] = {}
    for one in found:
        together.setdefault(f"{one['phase']}, {one['float32']}, {one['narrow']}", []).append(one)
    for some in together.values():
        first = some[0]
        axis = _Axis([first["float32"], first["narrow"], first["limit"], *(one["graph"] for one in some)])
        rows = [_row(one) for one in some]
        yield {
            "of": first,
            "ticks": axis.ticks(),
            "float32": axis.strip(first["float32"]),
            "narrow": axis.strip(first["narrow"]),
            "limit": axis.strip(first["limit"]),
            "margins": margins(first),
            "rows": [row | {"strip": axis.strip(row["spread"]["graph"])} for row in rows],
            "over": sum(row["over"] for row in rows),
        }


def in_order_of_configurations(record: Record) -> list[Spread]:
    """The record's spreads, as its configurations are ordered on the page; those of other ones last."""
    order = {c["id"]: i for i, c in enumerate(in_order(record, record["configurations"]))}
    return sorted(record["spreads"], key=lambda one: order.get(one["configuration"], len(order)))


def shares(one: Spread) -> dict[str, float]:
    """Each figure of the graph as a share of its limit."""
    found: dict[str, float] = {}
    for name in NAMES:
        got, limit = float(one["graph"][name]), float(one["limit"][name])  # type: ignore[literal-required]
        found[name] = got / limit if limit else math.inf if got else 0.0
    return found


def margins(one: Spread) -> dict[str, float]:
    """How many times Hugging Face's in the same type each figure may be; both are of four digits."""
    found: dict[str, float] = {}
    for name in NAMES:
        limit, narrow = float(one["limit"][name]), float(one["narrow"][name])  # type: ignore[literal-required]
        found[name] = float(f"{limit / narrow:.2g}") if narrow else math.inf
    return found


def _row(one: Spread) -> dict[str, Any]:
    found = shares(one)
    name = max(found, key=lambda name: badness(found[name]))
    return {"spread": one, "shares": found, "share": found[name], "worst": name, "over": not found[name] <= 1}


class _Axis:
    """A logarithmic axis on which all of these are, in percent of its length."""

    def __init__(self, shown: Sequence[Figures]) -> None:
        found = [x for figures in shown for x in _numbers(figures) if x > LEAST]
        self.low = math.floor(math.log10(min(found, default=1.0)))
        self.high = max(math.ceil(math.log10(max(found, default=1.0))), self.low + 1)

    def at(self, x: float) -> str:
        """Where a number is."""
        part = (math.log10(max(x, LEAST)) - self.low) / (self.high - self.low)
        return f"{100 * min(max(part, 0.0), 1.0):.4g}"

    def strip(self, figures: Figures) -> dict[str, str] | None:
        """Where each figure is; None where one is not finite."""
        numbers = _numbers(figures)
        return dict(zip(NAMES, map(self.at, numbers), strict=True)) if len(numbers) == len(NAMES) else None

    def ticks(self) -> list[dict[str, str]]:
        """Powers of ten."""
        powers = range(self.low, self.high + 1)
        return [
            {"x": self.at(10.0 ** powers[i]), "label": text.figure(10.0 ** powers[i])} for i in every(len(powers), 5)
        ]


def _numbers(figures: Figures) -> list[float]:
    found = [float(figures[name]) for name in NAMES]  # type: ignore[literal-required]
    return [x for x in found if math.isfinite(x)]
