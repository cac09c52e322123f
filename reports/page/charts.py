"""The numbers of a page as its tables show them."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from hloracle.core.record import Answer, Prompt, Record
from hloracle.reports.facts import answers_of, badness, in_order, limits_of, of_limit, share

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
    """Each configuration's logit errors, an entry for each prompt, with the worst of them and the nearest to a token."""
    rows = []
    for configuration in in_order(record, record["configurations"]):
        points: list[dict[str, Any]] = [
            {"prompt": prompt["id"], "answer": answer, "ratio": ratio, "over": not ratio <= 1,
             "nearest": _nearest(prompt, answer)}
            for prompt in record["prompts"]
            if (answer := answers_of(record, prompt["id"]).get(configuration["id"]))
            and (ratio := of_limit(answer)) is not None
        ]  # fmt: skip
        if points:
            worst = max(points, key=lambda p: badness(p["ratio"]))
            nearest = min((p for p in points if p["nearest"]), key=lambda p: p["nearest"], default=None)
            rows.append({"configuration": configuration["id"], "points": points, "worst": worst, "nearest": nearest})
    return rows


def _nearest(prompt: Prompt, answer: Answer) -> tuple[float, int] | None:
    """The smallest multiple of twice the error that the truth's lead is, and its step: below 1 the error may change a token."""
    found = []
    for step, (gap, error) in enumerate(zip(prompt["reference"]["gaps"], answer["errors"], strict=False)):
        if gap is not None:
            ratio = float(gap) / (2 * float(error)) if float(error) else math.inf
            found += [] if math.isnan(ratio) else [(ratio, step)]
    return min(found, default=None)


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
