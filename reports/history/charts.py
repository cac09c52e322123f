"""The drawings of a series of runs: a column each, from the oldest to the newest, in units of a stretched viewBox.

What was not measured is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hloracle.reports import text
from hloracle.reports.facts import VERDICTS, badness
from hloracle.reports.history.row import Row

LEAST = 12  # columns, so that three runs are not drawn as planks
# Decades of the axis of errors, in multiples of a limit. What is beyond stands at its end: what is wrong is wrong by powers
# of ten, and would leave no room for what is right.
DECADES = {-3: "≤ 0.001×", -2: "0.01×", -1: "0.1×", 0: "limit", 1: "≥ 10×"}
RATIOS = (1e-3, 1e3)  # a speed beyond these stands at the axis' end; the table has its number

Drawing = dict[str, Any]


def span_of(runs: Sequence[Row]) -> int:
    """How many columns have room in a drawing."""
    return max(len(runs), LEAST)


def middle(column: int, span: int) -> str:
    """The middle of a column in percent of a drawing's width."""
    return f"{100 * (column + 0.5) / span:.4g}"


@dataclass(frozen=True)
class LinearAxis:
    """From `low` to `high` in steps, over 92 to 10 percent of a drawing's height from its top."""

    low: float
    high: float
    step: float

    def at(self, x: float) -> float:
        """A value's place in percent of the drawing's height from its top."""
        return 92.0 - 82.0 * (x - self.low) / (self.high - self.low)

    def ticks(self) -> list[dict[str, str]]:
        """A mark at each step: `y` in percent, as text for SVG, and `label`, a multiple."""
        values = [self.low + k * self.step for k in range(round((self.high - self.low) / self.step) + 1)]
        return [{"y": f"{self.at(x):.4g}", "label": f"{x:.4g}×"} for x in values]


def linear_axis(values: Iterable[float]) -> LinearAxis:
    """The axis of about three round steps that holds all values."""
    some = list(values)
    low, high = min(some), max(some)
    wide = max(high - low, abs(high) / 1000) if high > low else abs(high) / 10 or 1.0
    decade = 10.0 ** math.floor(math.log10(wide / 3))
    step = next(k * decade for k in (1, 2, 5, 10) if k * decade >= wide / 3 * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return LinearAxis(first * step, max(last, first + 1) * step, step)


def stair(ys: Sequence[float | None]) -> str:
    """A step for each column; it ends where there is no value."""
    path, pen = "", False
    for i, y in enumerate(ys):
        if y is not None:
            path += f"{'L' if pen else 'M'}{i} {y:.4g}h1"
        pen = y is not None
    return path


def drawings(runs: Sequence[Row]) -> list[Drawing]:
    """The series' drawings."""
    return [_shares(runs), _speed(runs)]


# ---- verdicts


def lanes(runs: Sequence[Row]) -> dict[str, Any]:
    """A lane for each class of verdict that occurs, in which each run of this class has its mark."""
    found = []
    classes = [row["verdict"]["class"] for row in runs]
    for name, verdict in VERDICTS.items():
        if name in classes:
            d = "".join(f"M{i} .5h1" for i, class_ in enumerate(classes) if class_ == name)
            found.append({"label": verdict.title, "kind": verdict.kind, "d": d, "count": classes.count(name)})
    told = ", ".join(f"{lane['label']} {lane['count']}" for lane in found)
    newest = VERDICTS[classes[-1]].title
    return {"verdicts": found, "label": f"Verdicts by run, oldest to newest: {told}. The newest: {newest}."}


# ---- errors


def _shares(runs: Sequence[Row]) -> Drawing:
    shares = {
        "anchor": [text.value(found["share"]) if (found := row["anchor"]) else None for row in runs],
        "logit": [text.value(row["logit"]) for row in runs],
    }
    paths = [
        {"kind": f"stair {style}", "d": stair([None if x is None else _error_at(x) for x in shares[part]])}
        for part, style in (("logit", "other dash1"), ("anchor", "judged"))
    ]
    over = [
        {"x": middle(i, span_of(runs)), "y": f"{_error_at(x):.4g}"}
        for values in shares.values()
        for i, x in enumerate(values)
        if x is not None and not x <= 1
    ]
    told = []
    for part, values in shares.items():
        if measured := [x for x in values if x is not None]:
            newest, largest = text.figure(measured[-1]), text.figure(max(measured, key=badness))
            beyond = text.plural(sum(not x <= 1 for x in measured), "run")
            told.append(f"{part}: newest measured {newest}, largest {largest}, over the limit in {beyond}")
    return {
        "title": "Largest error",
        "lede": "as a multiple of its limit",
        "label": f"Largest error as a multiple of its limit, by run, on a logarithmic axis. {'; '.join(told)}.",
        "ticks": [{"y": f"{_error_at(10.0**decade):.4g}", "label": label} for decade, label in DECADES.items()],
        "limit_y": f"{_error_at(1.0):.4g}",
        "level_y": "",
        "paths": paths,
        "points": over,
        "legend": [("judged", "worst value at an anchor"), ("other dash1", "worst logit")]
        + ([("over", "over the limit")] if over else []),
        "missing": "" if told else "No error was measured in any of these runs.",
    }


def _error_at(x: float) -> float:
    """The place of a multiple of a limit in percent from the top; NaN and infinity stand above all decades."""
    if not x < math.inf:
        return 8.5
    low, high = min(DECADES), max(DECADES)
    decade = math.log10(x) if x > 0 else low
    return 94.0 - 84.0 * (min(max(decade, low), high) - low) / (high - low)


# ---- speed


def _speed(runs: Sequence[Row]) -> Drawing:
    """Ratios to the newest run's peer, because a machine's own speed changes by more than graphs do.

    A line goes only through runs on one processor.
    """
    timed = [ratio for row in runs if (ratio := row["speed"]["ratio"])]
    drawing: Drawing = {"title": "Decode speed"}
    if not timed:
        reasons = [row["speed"]["reason"] for row in runs if row["speed"]["reason"]]
        because = f" The newest run says why: {text.one_line(reasons[-1], 160)}." if reasons else ""
        return drawing | {"missing": f"It was measured beside a peer in none of these runs.{because}"}
    id = timed[-1]["peer"]
    titles = {c["id"]: c["title"] for row in runs for c in row["speed"]["contenders"]}
    peer = text.one_line(titles.get(id, id), 60)
    medians = [ratio["median"] for ratio in timed if ratio["peer"] == id]
    others = len(timed) - len(medians)
    elsewhere = f"; not drawn: {text.plural(others, 'run')} beside another peer" if others else ""
    return drawing | _speed_lines(runs, id) | {
        "lede": f"of the production graph, as a multiple of the speed of {peer} in the same run{elsewhere}",
        "label": f"Decode speed as a multiple of that of {peer}, by run: measured in {text.plural(len(medians), 'run')}, "
        f"the newest {text.figure(medians[-1])}, lowest {text.figure(min(medians))}, "
        f"highest {text.figure(max(medians))}{elsewhere}.",
        "limit_y": "",
        "points": [],
        "legend": [
            ("judged", "median of the rounds"),
            ("band", "slowest to fastest round"),
            ("level", "as fast as the peer"),
        ],
        "missing": "",
    }  # fmt: skip


def _speed_lines(runs: Sequence[Row], peer: str) -> Drawing:
    # Run -> the least, the median and the most of its rounds.
    drawn = {
        i: [min(max(x, RATIOS[0]), RATIOS[1]) for x in (ratio["least"], ratio["median"], ratio["most"])]
        for i, row in enumerate(runs)
        if (ratio := row["speed"]["ratio"]) and ratio["peer"] == peer
    }
    axis = linear_axis([1.0, *(x for ratios in drawn.values() for x in ratios)])
    band = "".join(f"M{i} {axis.at(most):.4g}h1V{axis.at(least):.4g}h-1z" for i, (least, _, most) in drawn.items())
    paths = [{"kind": "band", "d": band}]
    for processor in dict.fromkeys(processor_of(runs[i]) for i in drawn):
        places = {i: axis.at(median) for i, (_, median, _) in drawn.items() if processor_of(runs[i]) == processor}
        paths.append({"kind": "stair judged", "d": stair([places.get(i) for i in range(len(runs))])})
    return {"ticks": axis.ticks(), "level_y": f"{axis.at(1.0):.4g}", "paths": paths}


def processor_of(row: Row) -> tuple[str, int]:
    """What two speeds must have in common to be compared: the processor and the threads."""
    return row["cpu"], row["settings"]["threads"]
