"""The numbers of a page as its tables show them, and its one chart of steps.

The templates print it. The chart is as wide as its place: coordinates are percents, or units of a `viewBox` that is
stretched, in which lines keep their width, and points, being the ends of lines of almost no length, their shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from hloracle.core.record import Answer, Configuration, Prompt, Record
from hloracle.reports import text
from hloracle.reports.facts import (
    answers_of,
    badness,
    differences,
    in_order,
    limits_of,
    of_limit,
    share,
    source_of,
)
from hloracle.reports.page.axes import LogAxis, bins_of, every, log_axis

BEFORE, AFTER = 6, 11  # anchors around the first wrong one that are shown


# ---- where it went wrong


def chain(record: Record) -> dict[str, Any] | None:
    """The errors of the anchors around the first wrong one, in the order of computation."""
    found = record["localization"]
    if found is None:
        return None
    limits = limits_of(record)
    errors = [error for error in found["errors"] if error["phase"] == found["phase"]]
    if not errors:
        return None
    names = [error["anchor"] for error in errors]
    first = next((names.index(a) for a in (found["anchor"], found["first_local"]) if a in names), None)
    begin = max(0, min((first or 0) - BEFORE, len(errors) - BEFORE - 1 - AFTER))
    rows = []
    for i, error in enumerate(errors[begin : begin + BEFORE + 1 + AFTER], begin):
        limit = limits.get(error["anchor"])
        figures = {"local": error["local"], "accumulated": error["accumulated"], "peer": error["peer"]}
        shares = {key: share(figure, limit) for key, figure in figures.items()}
        over = {key: x is not None and not x <= 1 for key, x in shares.items()}
        rows.append({"anchor": error["anchor"], "first": i == first, "errors": figures, "over": over, "limit": limit})
    return {"rows": rows, "left_out": len(found["errors"]) - len(rows)}


# ---- logits


def logits(record: Record) -> list[dict[str, Any]]:
    """Each configuration's logit errors, a point for each prompt, with the worst of them."""
    rows = []
    for configuration in in_order(record, record["configurations"]):
        points: list[dict[str, Any]] = [
            {"prompt": prompt["id"], "answer": answer, "ratio": ratio, "over": not ratio <= 1}
            for prompt in record["prompts"]
            if (answer := answers_of(record, prompt["id"]).get(configuration["id"]))
            and (ratio := of_limit(answer)) is not None
        ]
        if points:
            worst = max(points, key=lambda p: badness(p["ratio"]))
            rows.append({"configuration": configuration["id"], "points": points, "worst": worst})
    return rows


def leads(record: Record) -> dict[str, Any] | None:
    """For each prompt the truth's lead at each step against twice each configuration's logit error: inside of that it may fall."""
    columns = in_order(record, record["configurations"])
    order = [configuration["id"] for configuration in columns]
    drawn = []
    for i, prompt in enumerate(record["prompts"]):
        answers = answers_of(record, prompt["id"])
        doubled = {
            id: [2 * float(e) for e in answers[id]["errors"]] for id in order if id in answers and answers[id]["errors"]
        }
        if doubled and prompt["reference"]["gaps"]:
            drawn.append((i, prompt, answers, doubled))
    if not drawn:
        return None
    gaps = [text.value(gap) for _, prompt, _, _ in drawn for gap in prompt["reference"]["gaps"]]
    errors = [x for *_, doubled in drawn for series in doubled.values() for x in series]
    axis = log_axis([*gaps, *errors], (-6, 1), begin=97, end=3)
    lines = _styles(record, [c for c in columns if any(c["id"] in doubled for *_, doubled in drawn)])
    return {
        "prompts": [
            {"index": i, **_lead(prompt, answers, doubled, axis, lines)} for i, prompt, answers, doubled in drawn
        ],
        "ticks": axis.ticks(4),
        "lines": list(lines.values()),
    }


def _styles(record: Record, columns: Sequence[Configuration]) -> dict[str, dict[str, str]]:
    """Configuration -> how its line is drawn: the colour says whether it is judged, dashes tell those apart."""
    styles: dict[str, dict[str, str]] = {}
    for column in columns:
        colour = "" if source_of(record, column["source"])["judged"] else "other"
        nth = sum(style["colour"] == colour for style in styles.values())
        styles[column["id"]] = {"id": column["id"], "colour": colour, "dash": f"dash{min(nth, 3)}"}
    return styles


def _lead(
    prompt: Prompt, answers: dict[str, Answer], doubled: dict[str, list[float]], axis: LogAxis,
    lines: dict[str, dict[str, str]],
) -> dict[str, Any]:  # fmt: skip
    reference = prompt["reference"]
    gaps = [text.value(gap) for gap in reference["gaps"]]
    wrong: dict[int, list[str]] = {}
    for name, answer in answers.items():
        for step in differences(reference["tokens"], answer["tokens"]):
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
        "id": prompt["id"],
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


# ---- speed


def speed(record: Record) -> dict[str, Any] | None:
    """Each contender's tokens/s and memory; how much faster the first one is than it, round by round."""
    contenders = record["speed"]["contenders"]
    if not contenders or not contenders[0]["ms_per_token"]:
        return None
    ours = contenders[0]["ms_per_token"]
    rows = []
    for c in contenders:
        rates = [1000 / ms for ms in c["ms_per_token"]]
        ratios = sorted(theirs / mine for theirs, mine in zip(c["ms_per_token"], ours, strict=True))
        rows.append(
            {
                "title": c["title"],
                "per_second": (min(rates), median(rates), max(rates)),
                "ratio": (ratios[0], median(ratios), ratios[-1]),
                "resident": c["resident_bytes"],
            }
        )
    return {"rows": rows, "rounds": len(ours)}
