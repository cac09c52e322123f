"""What the page's drawings are made of: places on axes, paths, and the words that stand beside them.

The templates print it. A drawing is as wide as its place: coordinates are percents, or units of a `viewBox` that is
stretched, in which lines keep their width, and points, being the ends of lines of almost no length, their shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from hloracle.reports import text
from hloracle.reports.facts import (
    Record,
    badness,
    cells_of,
    differences,
    in_order,
    layer_of,
    limits_of,
    of_limit,
    share,
    took,
)
from hloracle.reports.page.axes import LogAxis, bins_of, every, log_axis

STRIP = 118  # the greatest width of a cell's strip of steps, in px
BEFORE, AFTER = 6, 11  # anchors around the first wrong one that are shown one by one


# ---- steps of a cell


def strip(total: int, different: Sequence[int]) -> dict[str, Any]:
    """One tick a step, as paths: short where the tokens are equal, tall where they differ."""
    pitch = min(2.5, STRIP / max(total, 1))
    at = [f"M{(i + 0.5) * pitch:.4g} " for i in range(total)]
    return {
        "width": math.ceil(total * pitch),
        "stroke": f"{pitch * 0.6:.3g}",
        "equal": "".join(f"{at[i]}6v4" for i in sorted(set(range(total)) - set(different))),
        "differs": "".join(f"{at[i]}1v14" for i in different),
    }


# ---- where it went wrong


def chain(record: Record) -> dict[str, Any] | None:
    """Local and accumulated errors along the anchors: all of them in one drawing, those around the fault in rows."""
    found = record["localization"]
    if found is None:
        return None
    limits = limits_of(record)
    points = []
    for error in found["errors"]:
        if error["phase"] == found["phase"]:
            limit = limits.get(error["anchor"])
            shares = {key: share(error[key], limit) for key in ("accumulated", "local", "peer")}
            points.append({**error, "limit": limit, "shares": shares})
    if not points:
        return None
    names = [point["anchor"] for point in points]
    first = next((names.index(a) for a in (found["anchor"], found["first_local"]) if a in names), None)
    axis = log_axis((x for p in points for x in p["shares"].values()), (-2, 1))
    return {
        "overview": _overview(points, first) if len(points) > BEFORE + 1 + AFTER else None,
        "rows": list(_chain_rows(points, first, axis)),
        "left_out": len(record["localization"]["errors"]) - min(len(points), BEFORE + 1 + AFTER),
        "ticks": axis.ticks(),
        "limit_x": axis.place(1.0),
    }


def _chain_rows(points: Sequence[Record], first: int | None, axis: LogAxis) -> Iterator[dict[str, Any]]:
    begin = max(0, min((first or 0) - BEFORE, len(points) - BEFORE - 1 - AFTER))
    shown = points[begin : begin + BEFORE + 1 + AFTER]
    places = [{k: None if x is None else axis.at(x) for k, x in p["shares"].items()} for p in shown]
    for i, (point, here) in enumerate(zip(shown, places, strict=True)):
        lines = []
        for key in ("accumulated", "local"):
            x = here[key]
            for other, y1, y2 in ((i - 1, "0", "50%"), (i + 1, "50%", "100%")):
                to = places[other][key] if 0 <= other < len(places) else None
                if x is not None and to is not None:
                    edge = f"{(x + to) / 2:.4g}"
                    x1, x2 = (edge, f"{x:.4g}") if y1 == "0" else (f"{x:.4g}", edge)
                    lines.append({"kind": key, "x1": x1, "x2": x2, "y1": y1, "y2": y2})
        yield {
            "anchor": point["anchor"],
            "first": begin + i == first,
            "lines": lines,
            "x": {key: f"{x:.4g}" for key, x in here.items() if x is not None},
            "errors": {key: point[key] for key in here},
            "over": {key: x is not None and not x <= 1 for key, x in point["shares"].items()},
            "limit": point["limit"],
        }


def _overview(points: Sequence[Record], first: int | None) -> dict[str, Any]:
    """All anchors from left to right, their shares of the limits from bottom to top."""
    axis = log_axis((p["shares"][k] for p in points for k in ("accumulated", "local")), (-2, 1), begin=96, end=6)
    bins = bins_of(len(points), 1500)
    series = {}
    for key in ("accumulated", "local"):
        worst = [max((points[i]["shares"][key] for i in bin_), key=badness) for bin_ in bins]
        series[key] = _line([None if x is None else axis.at(x) for x in worst])
    layers: dict[int, int] = {}
    for i, point in enumerate(points):
        if (layer := layer_of(point["anchor"])[0]) is not None:
            layers.setdefault(layer, i)
    starts = sorted(layers)
    return {
        "width": len(bins),
        **series,
        "ticks": axis.ticks(5),
        "limit_y": axis.place(1.0),
        "layers": [
            {"x": f"{100 * layers[starts[i]] / len(points):.4g}", "label": str(starts[i])}
            for i in every(len(starts), 12)
        ],
        "first_x": None if first is None else f"{100 * (first + 0.5) / len(points):.4g}",
        "anchors": len(points),
    }


def _line(ys: Sequence[float | None]) -> str:
    """A path through the middles of columns of one unit, broken where there is no value."""
    parts: list[str] = []
    pen: int | None = None
    for i, y in enumerate(ys):
        if y is None:
            pen = None
            continue
        now = round(y)
        parts.append(f"M{i + 0.5:g} {now}" if pen is None else f"l1{_joined(now - pen)}")
        pen = now
    return "".join(parts)


def _joined(number: int) -> str:
    return str(number) if number < 0 else f" {number}"


# ---- logits


def margins(record: Record) -> dict[str, Any] | None:
    """Each cell's logit errors as multiples of their limits, placed on one logarithmic axis."""
    rows: list[dict[str, Any]] = []
    for cell in in_order(record["cells"]):
        points = []
        for i, prompt in enumerate(record["prompts"]):
            compared = cells_of(record, prompt["id"]).get(cell["id"])
            if compared and (ratio := of_limit(compared)) is not None:
                floor, limit = text.value(compared["logit_floor"]), text.value(compared["logit_limit"])
                points.append(
                    {
                        "prompt": prompt["id"],
                        "index": i,
                        "ratio": ratio,
                        "over": not ratio <= 1,
                        "floor_ratio": floor / limit if floor is not None and limit else None,
                        **{key: compared[key] for key in ("logit_error", "logit_floor", "logit_limit")},
                    }
                )
        if points:
            rows.append({"cell": cell, "points": points, "worst": max(points, key=lambda p: badness(p["ratio"]))})
    if not rows:
        return None
    axis = log_axis((x for row in rows for p in row["points"] for x in (p["ratio"], p["floor_ratio"])), (-2, 1))
    for row in rows:
        for point in row["points"]:
            point["x"] = axis.place(point["ratio"])
        floor_ratios = [p["floor_ratio"] for p in row["points"] if p["floor_ratio"]]
        row["floor_x"] = axis.place(max(floor_ratios)) if floor_ratios else None
    return {"rows": rows, "ticks": axis.ticks(), "limit_x": axis.place(1.0)}


def leads(record: Record) -> dict[str, Any] | None:
    """For each prompt the truth's lead at each step against twice each cell's logit error: inside of that it may fall."""
    cells = [cell["id"] for cell in in_order(record["cells"])]
    drawn = []
    for i, prompt in enumerate(record["prompts"]):
        compared = cells_of(record, prompt["id"])
        doubled = {
            name: [2 * float(e) for e in compared[name]["errors"]]
            for name in cells
            if name in compared and compared[name]["errors"]
        }
        if doubled and prompt["truth"]["gaps"]:
            drawn.append({"index": i, "prompt": prompt, "compared": compared, "doubled": doubled})
    if not drawn:
        return None
    gaps = [text.value(gap) for lead in drawn for gap in lead["prompt"]["truth"]["gaps"]]
    errors = [x for lead in drawn for series in lead["doubled"].values() for x in series]
    axis = log_axis([*gaps, *errors], (-6, 1), begin=97, end=3)
    lines = _styles(record, {name for lead in drawn for name in lead["doubled"]})
    return {
        "prompts": [_lead(lead, axis, lines) for lead in drawn],
        "ticks": axis.ticks(4),
        "lines": list(lines.values()),
    }


def _styles(record: Record, names: set[str]) -> dict[str, dict[str, Any]]:
    """Cell -> how its line is drawn: the source's colour, and dashes by the backend."""
    styles: dict[str, dict[str, Any]] = {}
    for cell in in_order(record["cells"]):
        if cell["id"] in names:
            nth = sum(style["source"] == cell["source"] for style in styles.values())
            styles[cell["id"]] = {"id": cell["id"], "source": cell["source"], "dash": f"dash{min(nth, 3)}"}
    return styles


def _lead(lead: dict[str, Any], axis: LogAxis, lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    truth, doubled = lead["prompt"]["truth"], lead["doubled"]
    gaps = [text.value(gap) for gap in truth["gaps"]]
    wrong: dict[int, list[str]] = {}
    for name, cell in lead["compared"].items():
        for step in differences(truth["tokens"], cell["tokens"]):
            wrong.setdefault(step, []).append(name)
    bins = bins_of(len(gaps))
    points = {"same": "", "diff": ""}
    for n, steps in enumerate(bins):
        if (gap := min((g for i in steps if (g := gaps[i]) is not None), default=None)) is not None:
            points["diff" if any(i in wrong for i in steps) else "same"] += f"M{n + 0.5:g} {axis.at(gap):.3g}h.01"
    column = {step: n for n, steps in enumerate(bins) for step in steps}
    nearest = min(
        (
            (gap / error if error else math.inf, step, name)
            for name, series in doubled.items()
            for step, (gap, error) in enumerate(zip(gaps, series, strict=False))
            if gap is not None and not math.isnan(error)
        ),
        default=None,
    )
    return {
        "index": lead["index"],
        "id": lead["prompt"]["id"],
        "width": len(bins),
        "points": points,
        "lines": [{**lines[name], "d": _steps(series, bins, axis)} for name, series in doubled.items()],
        "wrong": [
            {"x": f"{column[step] + 0.5:g}", "step": step, "gap": gaps[step], "names": names}
            for step, names in sorted(wrong.items())
        ],
        "ticks": [{"x": f"{100 * (n + 0.5) / len(bins):.4g}", "label": str(bins[n][0])} for n in every(len(bins), 8)],
        "nearest": nearest,
        "binned": max(map(len, bins)) if max(map(len, bins)) > 1 else 0,
    }


def _steps(series: Sequence[float], bins: Sequence[range], axis: LogAxis) -> str:
    """A stair through the worst of each column; a series may end early."""
    path = ""
    for n, steps in enumerate(bins):
        some = [series[i] for i in steps if i < len(series)]
        if some:
            y = round(axis.at(max(some, key=badness)))
            path += f"V{y}h1" if n else f"M0 {y}h1"
    return path


# ---- time


def speed(record: Record) -> dict[str, Any] | None:
    """Each contender's tokens/s and memory as bars; how much faster the first one is than it, round by round."""
    contenders = record["speed"]["contenders"]
    if not contenders or not contenders[0]["ms_per_token"]:
        return None
    ours = contenders[0]["ms_per_token"]
    fastest = 1000 / min(ms for c in contenders for ms in c["ms_per_token"])
    largest = max((c["resident_bytes"] or 0 for c in contenders), default=0)
    rows = []
    for c in contenders:
        rates = sorted(1000 / ms for ms in c["ms_per_token"])
        ratios = sorted(theirs / mine for theirs, mine in zip(c["ms_per_token"], ours, strict=True))
        rows.append(
            {
                "title": c["title"],
                "per_second": median(rates),
                "width": _percent(median(rates), fastest),
                "low": _percent(rates[0], fastest),
                "high": _percent(rates[-1], fastest),
                "ratio": (ratios[0], median(ratios), ratios[-1]),
                "resident": c["resident_bytes"],
                "memory_width": _percent(c["resident_bytes"], largest) if c["resident_bytes"] else "",
            }
        )
    return {"rows": rows, "rounds": len(ours)}


def timeline(record: Record) -> dict[str, Any]:
    """The stages on one axis, in percent of the whole; what was done beside each other in lanes of its own."""
    whole = took(record)
    rows = []
    for timing in record["timings"]:
        lanes: list[float] = []  # when each is free again
        parts = []
        for part in sorted(timing["parts"], key=lambda part: part["begin"]):
            lane = next((i for i, free in enumerate(lanes) if free <= part["begin"] + 0.001), len(lanes))
            lanes[lane : lane + 1] = [part["begin"] + part["seconds"]]
            parts.append({"part": part, **_bar(part, whole, part["reused"]), "y": 17 + 6 * min(lane, 7)})
        height = 14 if not parts else 19 + 6 * min(len(lanes), 8)
        rows.append({"timing": timing, **_bar(timing, whole, timing["reused"]), "parts": parts, "height": height})
    return {"rows": rows, "whole": whole, "ticks": list(_seconds(whole))}


def _bar(timing: Record, whole: float, reused: bool) -> dict[str, str]:
    least = 1.5 if reused else 0.4  # an outline needs some room to be seen
    start = 100 * timing["begin"] / whole if whole else 0.0
    width = 100 * timing["seconds"] / whole if whole else 0.0
    return {"x": f"{min(start, 100 - least):.4g}", "width": f"{max(width, least):.4g}"}


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4g}" if whole else "0"


def _seconds(whole: float) -> Iterator[dict[str, str]]:
    """Round times along an axis."""
    if whole > 0:
        steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
        step = next((s for s in steps if whole <= 6 * s), 3600 * math.ceil(whole / 21600))
        for i in range(math.floor(whole / step) + 1):
            yield {
                "x": _percent(i * step, whole),
                "label": f"{i * step:g} s" if step < 60 else f"{i * step / 60:g} min",
            }
