"""The drawings of a series of runs: a column each, from the oldest to the newest, in units of a stretched viewBox.

What was not measured is a gap. Of runs that share a column each drawing says what it shows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from hloracle.reports import text
from hloracle.reports.facts import VERDICTS, badness
from hloracle.reports.history.row import Graph, Row, Source

# Decades of the axis of errors, in multiples of a limit. What is beyond stands at its end: what is wrong is wrong by powers
# of ten, and would leave no room for what is right.
DECADES = {-3: "≤ 0.001×", -2: "0.01×", -1: "0.1×", 0: "limit", 1: "≥ 10×"}
RATIOS = (1e-3, 1e3)  # a speed beyond these stands at the axis' end; the table has its number

Drawing = dict[str, Any]


@dataclass(frozen=True)
class Columns:
    """Runs and the columns that they stand in; `span` is how many have room."""

    runs: Sequence[Row]
    bins: Sequence[range]
    span: int

    def of(self, values: Sequence[float | None]) -> list[list[float]]:
        """What was measured in each column, of values of each run."""
        return [[x for i in bin_ if (x := values[i]) is not None] for bin_ in self.bins]

    def worst(self, values: Sequence[float | None]) -> list[float | None]:
        """The largest of each column, NaN above all others; None where nothing was measured. values: of each run."""
        return [max(some, key=badness) if some else None for some in self.of(values)]

    def where(self, holds: Sequence[bool]) -> list[bool]:
        """The columns in which it holds of a run."""
        return [any(holds[i] for i in bin_) for bin_ in self.bins]

    def column(self, run: int) -> int:
        """The column that a run, by its index in `runs`, stands in."""
        return next(n for n, bin_ in enumerate(self.bins) if run in bin_)

    def middle(self, column: int) -> str:
        """In percent of the drawing's width."""
        return f"{100 * (column + 0.5) / self.span:.4g}"


@dataclass(frozen=True)
class LinearAxis:
    """From `low` to `high` in steps, over `begin` to `end` percent of a drawing's height."""

    low: float
    high: float
    step: float
    begin: float = 92.0
    end: float = 10.0

    def at(self, x: float) -> float:
        """A value's place in percent of the drawing's height from its top; what is beyond the axis is not cut to it."""
        return self.begin + (self.end - self.begin) * (x - self.low) / (self.high - self.low)

    def ticks(self, words: Callable[[float], str]) -> list[dict[str, str]]:
        """A mark at each step: `y` in percent, as text for SVG, and `label`, which `words` makes of the value."""
        values = [self.low + k * self.step for k in range(round((self.high - self.low) / self.step) + 1)]
        return [{"y": f"{self.at(x):.4g}", "label": words(x)} for x in values]


def linear_axis(values: Iterable[float], most: int = 3) -> LinearAxis:
    """The axis of about `most` round steps that holds all values."""
    some = list(values)
    low, high = min(some), max(some)
    wide = max(high - low, abs(high) / 1000) if high > low else abs(high) / 10 or 1.0
    decade = 10.0 ** math.floor(math.log10(wide / most))
    step = next(k * decade for k in (1, 2, 5, 10) if k * decade >= wide / most * (1 - 1e-9))
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


# What not every drawing has: a limit, a level to hold values to, marks.
PLAIN: Drawing = {"limit_y": "", "level_y": "", "points": [], "legend": [], "lede": ""}


def drawings(columns: Columns) -> list[Drawing]:
    """The series' drawings."""
    return [PLAIN | drawing for drawing in (_shares(columns), _speed(columns), _operations(columns))]


# ---- verdicts


def lanes(columns: Columns) -> dict[str, Any]:
    """A lane for each class of verdict that occurs. A column's runs each have their mark."""
    found = []
    classes = [row["verdict"]["class"] for row in columns.runs]
    for name, verdict in VERDICTS.items():
        if name in classes:
            d = blocks(columns.where([class_ == name for class_ in classes]))
            found.append({"label": verdict.title, "kind": verdict.kind, "d": d, "count": classes.count(name)})
    told = ", ".join(f"{lane['label']} {lane['count']}" for lane in found)
    newest = VERDICTS[classes[-1]].title
    return {"verdicts": found, "label": f"Verdicts by run, oldest to newest: {told}. The newest: {newest}."}


def blocks(there: Sequence[bool]) -> str:
    """A line as long as each column that is true."""
    return "".join(f"M{i} .5h1" for i, drawn in enumerate(there) if drawn)


# ---- errors


def _shares(columns: Columns) -> Drawing:
    """A column shows its largest errors."""
    shares = {
        "anchor": [float(found["share"]) if (found := row["anchor"]) else None for row in columns.runs],
        "logit": [float(logit["share"]) if (logit := row["logit"]) else None for row in columns.runs],
    }
    series = {part: columns.worst(values) for part, values in shares.items()}
    paths = [
        {"kind": f"stair {style}", "d": stair([None if x is None else _error_at(x) for x in series[part]])}
        for part, style in (("logit", "other dash1"), ("anchor", "judged"))
    ]
    over = [
        {"x": columns.middle(i), "y": f"{_error_at(x):.4g}"}
        for values in series.values()
        for i, x in enumerate(values)
        if x is not None and not x <= 1
    ]
    told = []
    for part, values in shares.items():
        if measured := [x for x in values if x is not None]:
            newest, largest = text.figure(measured[-1]), text.figure(max(measured, key=badness))
            beyond = _runs(sum(not x <= 1 for x in measured))
            told.append(f"{part}: newest measured {newest}, largest {largest}, over the limit in {beyond}")
    return {
        "title": "Largest error",
        "lede": "as a multiple of its limit",
        "label": f"Largest error as a multiple of its limit, by run, on a logarithmic axis. {'; '.join(told)}.",
        "height": 130,
        "ticks": [{"y": f"{_error_at(10.0**decade):.4g}", "label": label} for decade, label in DECADES.items()],
        "limit_y": f"{_error_at(1.0):.4g}",
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


def _speed(columns: Columns) -> Drawing:
    """Ratios, because a machine's own speed changes by more than graphs do; and a line only through runs of one machine.

    A column shows the median of its runs' medians, and the slowest and the fastest round of all of them.
    """
    timed = [(row, ratio) for row in columns.runs if (ratio := row["speed"]["ratio"])]
    drawing: Drawing = {"title": "Decode speed", "height": 130}
    if not timed:
        reasons = [row["speed"]["reason"] for row in columns.runs if row["speed"]["reason"]]
        because = f" The newest run says why: {text.one_line(reasons[-1], 160)}." if reasons else ""
        return drawing | {"missing": f"It was measured beside a peer in none of these runs.{because}"}
    titles = {c["id"]: c["title"] for row, _ in timed for c in row["speed"]["contenders"]}
    peers = list(dict.fromkeys(ratio["peer"] for _, ratio in reversed(timed)))
    peer = text.one_line(titles.get(peers[0], peers[0]), 60)
    others = f"; in some runs of {', '.join(text.one_line(p, 40) for p in peers[1:4])}" if peers[1:] else ""
    ratios = [ratio["median"] for _, ratio in timed if ratio["peer"] == peers[0]]
    elsewhere = f"; beside another peer in {_runs(len(timed) - len(ratios))}" if peers[1:] else ""
    return drawing | _speed_lines(columns, [row for row, _ in timed]) | {
        "lede": f"of the production graph, as a multiple of the speed of {peer} in the same run{others}",
        "label": f"Decode speed as a multiple of that of {peer}, by run: measured in {_runs(len(ratios))}, the newest "
        f"{text.figure(ratios[-1])}, lowest {text.figure(min(ratios))}, highest {text.figure(max(ratios))}{elsewhere}.",
        "legend": [
            ("judged", "median of the rounds"),
            ("band", "slowest to fastest round"),
            ("level", "as fast as the peer"),
        ],
        "missing": "",
    }  # fmt: skip


def _speed_lines(columns: Columns, timed: Sequence[Row]) -> Drawing:
    least, most = (columns.of([_ratio(row, key) for row in columns.runs]) for key in EXTREMES)
    axis = linear_axis([1.0, *(x for values in (*least, *most) for x in values)])
    band = "".join(
        f"M{i} {axis.at(max(high)):.4g}h1V{axis.at(min(low)):.4g}h-1z"
        for i, (low, high) in enumerate(zip(least, most, strict=True))
        if low
    )
    paths = [{"kind": "band", "d": band}]
    for machine in dict.fromkeys(map(machine_of, timed)):
        medians = columns.of([_ratio(row, "median") if machine_of(row) == machine else None for row in columns.runs])
        ys = [axis.at(median(values)) if values else None for values in medians]
        paths.append({"kind": "stair judged", "d": stair(ys)})
    return {"ticks": axis.ticks(lambda x: f"{x:.4g}×"), "level_y": f"{axis.at(1.0):.4g}", "paths": paths}


def machine_of(row: Row) -> tuple[str, int, str]:
    """What two speeds must have in common to be compared: the processor, the threads, and the peer."""
    ratio = row["speed"]["ratio"]
    return row["cpu"], row["settings"]["threads"], ratio["peer"] if ratio else ""


EXTREMES: tuple[Literal["least", "most"], ...] = ("least", "most")


def _ratio(row: Row, key: Literal["median", "least", "most"]) -> float | None:
    low, high = RATIOS
    ratio = row["speed"]["ratio"]
    return min(max(ratio[key], low), high) if ratio else None


# ---- operations


def graph_of(row: Row, source: str, phase: str = "decode") -> Graph | None:
    """What the row keeps of a source's graphs of a phase."""
    return next((g for g in row["graphs"] if (g["source"], g["phase"]) == (source, phase)), None)


def judged(row: Row) -> Source:
    """The first of the sources whose graphs the verdict is about."""
    return next(source for source in row["sources"] if source["judged"])


def sources_of(runs: Sequence[Row]) -> list[Source]:
    """The sources of any of the runs, each once, as the newest that has it calls it."""
    found = {source["id"]: source for row in runs for source in row["sources"]}
    return [source for source in found.values() if any(graph_of(row, source["id"]) for row in runs)]


def _operations(columns: Columns) -> Drawing:
    """A column shows the newest of its graphs."""
    drawing: Drawing = {"title": "Operations of decode", "lede": "how many stand in the graph’s text", "height": 120}
    sources = sources_of(columns.runs)
    if not sources:
        return drawing | {"missing": "None of these runs had a decode graph."}
    graphs = [[graph_of(row, source["id"]) for row in columns.runs] for source in sources]
    counts = [[graph["op_total"] if graph else None for graph in some] for some in graphs]
    axis = linear_axis(n for some in counts for n in some if n is not None)
    paths, told, legend = [], [], []
    for source, some, numbers in zip(sources, graphs, counts, strict=True):
        style, title = "judged" if source["judged"] else "other dash1", text.one_line(source["title"], 60)
        legend.append((style, title))
        newest = [column[-1] if column else None for column in columns.of(numbers)]
        paths.append({"kind": f"stair {style}", "d": stair([None if n is None else axis.at(n) for n in newest])})
        known = [graph for graph in some if graph]
        changes = sum(a["digest"] != b["digest"] for a, b in itertools.pairwise(known))
        told.append(f"{title}: newest {text.count(known[-1]['op_total'])}, changed {text.plural(changes, 'time')}")
    return drawing | {
        "label": f"Operations of the decode graphs by run. {'; '.join(told)}.",
        "ticks": axis.ticks(lambda x: text.count(round(x)) if axis.step >= 1 else f"{x:g}"),
        "paths": paths,
        "legend": legend,
        "missing": "",
    }


def _runs(n: int) -> str:
    return text.plural(n, "run")
