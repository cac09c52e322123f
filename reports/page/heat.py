"""The heat maps of a run: how far each anchor is off, by layer and by position; and the floors it is measured in.

A strip of cells is drawn as lines as thick as it is high, one unit a column: a run of equal cells is one line.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hloracle.core.record import Anchors, Figure, Floor, Localization, Record
from hloracle.reports import text
from hloracle.reports.facts import badness, layer_of, limits_of, share
from hloracle.reports.page.axes import every

LEAST_COLUMNS = 16  # so that a model of two layers is not drawn as two planks
FINE = 48  # columns: of more, equal ones that are neighbours are not told apart
MAPS = 6  # configurations and phases that are drawn; of the others the page has the worst value

# A value's share of its limit -> the class of its colour: five within the limit, four beyond.
SHADES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 10.0, 100.0, 1000.0)
BEYOND = SHADES.index(1.0) + 1  # the first shade that is over the limit


@dataclass(frozen=True)
class Value:
    """One measured error, in floors, and as a share of its limit."""

    anchor: str
    prompt: str
    position: int
    error: text.Number
    share: float


@dataclass(frozen=True)
class _Group:
    """The matrices of one configuration and phase, and what they hold; `found` is the localization, if it is of these.

    A prompt may have two: one of the run, and one of what was looked at again.
    """

    configuration: str
    phase: str
    matrices: list[Anchors]
    measured: list[Value]
    found: Localization | None

    def worst(self) -> Value:
        return max(self.measured, key=lambda v: badness(v.share))

    def prompts(self) -> list[str]:
        return list(dict.fromkeys(matrix["prompt"] for matrix in self.matrices))

    def shown(self) -> str:
        """The prompt that was taken apart, or else the worst one."""
        return self.found["prompt"] if self.found and self.found["prompt"] in self.prompts() else self.worst().prompt


def heat_maps(record: Record) -> list[dict[str, Any]]:
    """For each configuration and phase its worst value, the first that is over its limit, and a map.

    What was taken apart comes first, then the worst. Only the first MAPS have a `map`.
    """
    limits = limits_of(record)
    groups = [group for group in _groups(record, limits) if group.measured]
    groups.sort(key=lambda group: (group.found is None, -badness(group.worst().share)))
    rows = []
    for i, group in enumerate(groups):
        over = {v.anchor: v for v in reversed(group.measured) if not v.share <= 1}
        anchors = dict.fromkeys(v.anchor for v in group.measured)
        rows.append(
            {
                "configuration": group.configuration,
                "phase": group.phase,
                "here": group.found is not None,
                "prompts": group.prompts(),
                "anchors": len(anchors),
                "over": len(over),
                "first": next((over[a] for a in anchors if a in over), None),
                "worst": group.worst(),
                "limits": limits,
                "map": _map(group) if i < MAPS else None,
            }
        )
    return rows


def _groups(record: Record, limits: dict[str, float]) -> Iterator[_Group]:
    found = record["localization"]
    together: dict[tuple[str, str], list[Anchors]] = {}
    for matrix in record["anchors"]:
        together.setdefault((matrix["configuration"], matrix["phase"]), []).append(matrix)
    for (configuration, phase), matrices in together.items():
        here = found is not None and (found["configuration"], found["phase"]) == (configuration, phase)
        values = [value for matrix in matrices for value in values_of(matrix, limits)]
        yield _Group(configuration, phase, matrices, values, found if here else None)


def values_of(matrix: Anchors, limits: dict[str, float]) -> Iterator[Value]:
    """What a matrix holds, with its share of the limit; what has no limit is left out."""
    for anchor, row in zip(matrix["anchors"], matrix["errors"], strict=True):
        for position, error in zip(matrix["positions"], row, strict=True):
            if (part := share(error, limits.get(anchor))) is not None:
                yield Value(anchor, matrix["prompt"], position, error, part)


def _kinds(anchors: Iterable[str]) -> list[str]:
    """What layers go through, in order; one that only some layers have stands after what it follows there."""
    kinds: list[str] = []
    for _, names in itertools.groupby(anchors, key=lambda anchor: layer_of(anchor)[0]):
        at = -1
        for kind in (layer_of(name)[1] for name in names):
            if kind in kinds:
                at = kinds.index(kind)
            else:
                at = at + 1 if at >= 0 else len(kinds)
                kinds.insert(at, kind)
    return kinds


def worst_by(values: Iterable[Value], key: Callable[[Value], Any]) -> dict[Any, Value]:
    """What `key` gives -> the worst of the values that it gives this for."""
    worst: dict[Any, Value] = {}
    for value in values:
        if (k := key(value)) not in worst or badness(value.share) > badness(worst[k].share):
            worst[k] = value
    return worst


# ---- the map

Cells = list[Value | None]


def _map(group: _Group) -> dict[str, Any]:
    """A row for each kind of anchor: the worst of all positions by layer, and the worst of all layers by position.

    The positions are those of the prompt that was taken apart, or else of the worst one.
    """
    worst = worst_by(group.measured, lambda v: layer_of(v.anchor))
    layers = sorted({layer for layer, _ in worst if layer is not None})
    prompt = group.shown()
    positions = sorted({p for m in group.matrices if m["prompt"] == prompt for p in m["positions"]})
    of_prompt = [v for v in group.measured if v.prompt == prompt]
    here = worst_by(of_prompt, lambda v: (layer_of(v.anchor)[1], v.position))
    of_kind = worst_by(group.measured, lambda v: layer_of(v.anchor)[1])
    mark = group.found["anchor"] if group.found else None
    rows = []
    for kind in _kinds(dict.fromkeys(v.anchor for v in group.measured)):
        before, _, name = kind.rpartition(".")
        value = of_kind[kind]
        by_layer = [worst.get((layer, kind)) for layer in layers]
        rows.append(
            {
                "prefix": before + "." if before else "",
                "name": name,
                "layers": _strip(by_layer, mark) if any(by_layer) else None,
                "positions": _strip([here.get((kind, position)) for position in positions], mark),
                "worst": value,
                "layer": layer_of(value.anchor)[0],
                "over": not value.share <= 1,
            }
        )
    return {"rows": rows, "layers": _columns(layers), "positions": _columns(positions), "prompt": prompt}


def _columns(labels: Sequence[int]) -> dict[str, Any]:
    span = max(len(labels), LEAST_COLUMNS)
    ticks = [{"x": f"{100 * (i + 0.5) / span:.4g}", "label": str(labels[i])} for i in every(len(labels), 8)]
    return {"span": span, "fine": len(labels) > FINE, "ticks": ticks}


def _strip(cells: Cells, mark: str | None) -> dict[str, Any]:
    """Runs of columns of one shade as one line each; over those that are beyond their limits goes another."""
    shades = [None if v is None else shade(v.share) for v in cells]
    present = sorted({n for n in shades if n is not None})
    marked = (i for i, v in enumerate(cells) if v is not None and v.anchor == mark and not v.share <= 1)
    return {
        "runs": [(n, _lines([found == n for found in shades])) for n in present],
        "beyond": _lines([found is not None and found >= BEYOND for found in shades]),
        "ring": next(marked, None),
    }


def _lines(columns: Sequence[bool]) -> str:
    """A path along the runs of columns that are true."""
    path, at = "", 0
    for drawn, run in itertools.groupby(columns):
        n = len(list(run))
        path += f"M{at} .5h{n}" if drawn else ""
        at += n
    return path


def shade(part: float) -> int:
    """The class of the colour of a share of a limit."""
    return len(SHADES) if math.isnan(part) else bisect.bisect_left(SHADES, part)


# ---- the floors


def floors(record: Record) -> list[dict[str, Any]]:
    """The floors by kind of anchor: the largest of all layers, and the median of what is relative."""
    kinds: dict[str, list[Floor]] = {}
    for floor in record["floors"]:
        kinds.setdefault(layer_of(floor["anchor"])[1], []).append(floor)
    rows = []
    for kind in _kinds(floor["anchor"] for floor in record["floors"]):
        some = kinds[kind]
        largest = {
            "scale": _largest(f["scale"] for f in some),
            "noise": _largest(f["noise"] for f in some),
            "oracle": _largest(f["oracle"] for f in some),
        }
        relative = median(float(f["relative"]) for f in some)
        limits = sorted({float(f["limit"]) for f in some})
        rows.append({"kind": kind, "anchors": len(some), **largest, "relative": relative, "limits": limits})
    return rows


def _largest(figures: Iterable[Figure]) -> Figure:
    return max(figures, key=lambda x: badness(text.value(x)))
