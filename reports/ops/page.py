"""The page of `hloracle ops`: one file that needs nothing else, drawn from the record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hloracle.core.folder import write_files
from hloracle.reports.ops.record import OpsRecord, Outcome, Row, Tally, of_states, operations, tallies, to_json
from hloracle.reports.page.base import draw

MOST_ULP = 2.0**20  # where the plot ends: what is farther off is shown there
MARKS = (0.5, 1, 2, 4, 16, 256, 2**12, 2**20)
FINE = (1, 4, 256)  # which a narrow page leaves out
OPEN = 12  # failures up to which each is unfolded


def write_ops(record: OpsRecord, out: Path) -> None:
    """Write ops.json and ops.html into `out`, both or none: one alone would be taken for what came of a run."""
    write_files({out / "ops.json": to_json(record), out / "ops.html": render(record)})


def render(record: OpsRecord) -> str:
    """The page of a record. Equal records give equal pages."""
    new, passes = of_states(record, "new-failure"), of_states(record, "new-pass")
    context = {
        "r": record,
        "states": Counter(o["state"] for row in record["rows"] for o in row["outcomes"]),
        "operations": len(operations(record)),
        "backends": [_backend(record, b["name"]) for b in record["backends"]],
        "new": _by_operation(new),
        "unfolded": len(new) <= OPEN,
        "passes": passes,
        "known": _known(record),
        "untried": _untried(record),
        "table": _table(record),
        "plot": _plot(record),
        "marks": [{"at": _place(m), "words": _power(m), "fine": m in FINE} for m in MARKS],
    }
    return draw("ops.html.j2", context, styles=["ops.css"])


def _backend(record: OpsRecord, name: str) -> dict[str, Any]:
    backend = next(b for b in record["backends"] if b["name"] == name)
    outcomes = [o for row in record["rows"] for o in row["outcomes"] if o["backend"] == name]
    return {
        "b": backend,
        "results": Counter(o["result"] for o in outcomes),
        "states": Counter(o["state"] for o in outcomes),
    }


def _by_operation(found: list[tuple[Row, Outcome]]) -> list[dict[str, Any]]:
    """Failures of an operation on a backend together, in the order of the rows."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row, outcome in found:
        groups.setdefault((row["operation"], outcome["backend"]), []).append({"row": row, "o": outcome})
    return [
        {"operation": operation, "backend": backend, "failures": f, "results": Counter(one["o"]["result"] for one in f)}
        for (operation, backend), f in groups.items()
    ]


def _known(record: OpsRecord) -> list[dict[str, Any]]:
    """The faults that were found again, with their cases."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for row, outcome in of_states(record, "known"):
        known = outcome["known"] or {"reason": "", "link": ""}
        groups.setdefault((outcome["backend"], outcome["title"], known["reason"], known["link"]), []).append(
            row["case"]
        )
    return [
        {"backend": backend, "title": title, "reason": reason, "link": link, "cases": cases}
        for (backend, title, reason, link), cases in groups.items()
    ]


def _untried(record: OpsRecord) -> list[dict[str, Any]]:
    """What is neither a pass nor a failure, by the reason."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row, outcome in of_states(record, "open"):
        groups.setdefault((outcome["backend"], outcome["title"], outcome["words"]), []).append(row["case"])
    return [{"backend": b, "title": t, "words": w, "cases": cases} for (b, t, w), cases in groups.items()]


def _table(record: OpsRecord) -> Iterator[dict[str, Any]]:
    found = tallies(record)
    for operation in operations(record):
        cells = [_cell(found[operation, b["name"]]) for b in record["backends"]]
        yield {"operation": operation, "cells": cells}


def _cell(tally: Tally) -> dict[str, Any]:
    states = tally["states"]
    new = states.get("new-failure", 0) + states.get("new-pass", 0)
    passed = states.get("pass", 0)
    kind = "fail" if new else "pass" if passed == tally["total"] else "near" if states.get("known") else "skip"
    others = {title: count for title, count in tally["results"].items() if title not in ("exact", "within")}
    return {"kind": kind, "passed": passed, "total": tally["total"], "others": others, "known": states.get("known", 0)}


def _plot(record: OpsRecord) -> list[dict[str, Any]]:
    """Of each operation with results in floats, and each backend, the worst case that passes and the worst that fails."""
    found, rows = tallies(record), []
    for operation in operations(record):
        lines = []
        for number, backend in enumerate(record["backends"]):
            tally = found[operation, backend["name"]]
            if tally["worst"] is None and tally["failed"] is None:
                continue
            points = {"worst": _point(tally["worst"]), "failed": _point(tally["failed"])}
            lines.append({"number": number, "title": backend["title"], **points})
        if lines:
            rows.append({"operation": operation, "lines": lines})
    return rows


def _point(ulp: float | None) -> dict[str, str] | None:
    return None if ulp is None else {"at": _place(ulp), "words": _words(ulp)}


def _place(ulp: float) -> str:
    """Where a distance is on the axis, in percent: half of a ULP, which is exact, at its beginning; then by powers of two."""
    least, most = math.log2(0.5), math.log2(MOST_ULP)
    at = (math.log2(min(max(ulp, 0.5), MOST_ULP)) - least) / (most - least)
    return f"{100 * at:.4g}%"


def _words(ulp: float) -> str:
    return f"{ulp:.3g} ULP" if math.isfinite(ulp) else "no number, or a number where there is none"


def _power(mark: float) -> str:
    return f"{mark:g}" if mark < 1024 else f"2^{round(math.log2(mark))}"
