"""The page of a fleet, and its JUnit file. Both are drawn from the record; the page names the first jobs that do not pass."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hloracle.reports.fleet.record import Head, Job
from hloracle.reports.junit import clean
from hloracle.reports.page.base import draw

MOST_NAMED = 500  # jobs that do not pass which the page has one by one
MOST_CELLS = 4000  # of a command's table; a larger one is counted by each axis alone
KINDS = {
    "passed": "pass", "failed": "fail", "crashed": "error", "hung": "error", "flaky": "near", "refused": "error", "lost": "skip",
}  # fmt: skip
TITLES = {
    "passed": "passes", "failed": "fails", "crashed": "crashed", "hung": "hung", "flaky": "flaky", "refused": "could not start",
    "lost": "lost its machines",
}  # fmt: skip


@dataclass
class _Table:
    """The jobs of a command. axes: key -> its values -> how many jobs passed and how many there are."""

    total: int = 0
    axes: dict[str, dict[str, list[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: [0, 0]))
    )
    cells: dict[tuple[tuple[str, str], ...], dict[str, Any]] = field(default_factory=dict)


@dataclass
class Drawn:
    """What the page shows, gathered one job after the other."""

    bad: list[Job] = field(default_factory=list)
    left_out: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    tables: dict[str, _Table] = field(default_factory=lambda: defaultdict(_Table))
    machines: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))

    def add(self, job: Job) -> None:
        """Take in a job."""
        self.changes[job["change"]] += 1
        if job["status"] != "passed" and len(self.bad) < MOST_NAMED:
            self.bad.append(job)
        elif job["status"] != "passed":
            self.left_out += 1
        for one in job["tries"]:
            machine = self.machines[one["machine"] or "unknown"]
            machine[0] += 1
            machine[1] += one["seconds"]
        table = self.tables[job["command"]]
        table.total += 1
        for key, value in job["values"].items():
            counts = table.axes[key][value]
            counts[0] += job["status"] == "passed"
            counts[1] += 1
        if len(table.cells) <= MOST_CELLS:
            table.cells[tuple(job["values"].items())] = {
                "kind": KINDS[job["status"]], "title": TITLES[job["status"]], "folder": job["folder"], "id": job["id"],
                "report": bool(job["tries"][-1]["verdict"]),
            }  # fmt: skip


def render(head: Head, drawn: Drawn) -> str:
    """The page."""
    order = {"new failure": 0, "new": 1, "other failure": 2}
    context = {
        "r": head,
        "total": sum(head["counts"].values()),
        "bad": sorted(drawn.bad, key=lambda job: order.get(job["change"], 3)),
        "left_out": drawn.left_out,
        "changes": drawn.changes,
        "tables": [_table(command, table) for command, table in drawn.tables.items()],
        "machines": sorted(drawn.machines.items()),
        "kinds": KINDS,
        "titles": TITLES,
    }
    return draw("fleet.html.j2", context, styles=["ops.css", "fleet.css"])


def _table(command: str, table: _Table) -> dict[str, Any]:
    """A row for each value of the first axis and a column for the others', or, where these are too many, counts by axis."""
    varying = [key for key, values in table.axes.items() if len(values) > 1]
    found: dict[str, Any] = {
        "command": command, "total": table.total, "rows": [], "columns": [], "axes": [],
        "fixed": {key: next(iter(values)) for key, values in table.axes.items() if len(values) == 1},
    }  # fmt: skip
    if len(table.cells) > MOST_CELLS:
        found["axes"] = [(key, table.axes[key].items()) for key in varying]
        return found
    first, others = (varying or [""])[0], varying[1:]
    columns: dict[tuple[str, ...], None] = {}
    rows: dict[str, dict[tuple[str, ...], dict[str, Any]]] = defaultdict(dict)
    for values, cell in table.cells.items():
        known = dict(values)
        column = tuple(known.get(key, "") for key in others)
        columns[column] = None
        rows[known.get(first, "")][column] = cell
    found["columns"] = [" ".join(f"{k}={v}" for k, v in zip(others, column, strict=True)) for column in columns]
    found["rows"] = [(name or "the only one", [row.get(column) for column in columns]) for name, row in rows.items()]
    found["first"] = first
    return found


def junit(head: Head, jobs: Iterable[Job]) -> Iterator[str]:
    """The JUnit file, piece by piece: a test case for each job. What did not pass is a failure, and its words say how."""
    counts, total = head["counts"], sum(head["counts"].values())
    errors = sum(counts.get(status, 0) for status in ("crashed", "hung", "refused", "lost"))
    failures = counts.get("failed", 0) + counts.get("flaky", 0)
    suite = f'tests="{total}" failures="{failures}" errors="{errors}" time="{head["seconds"]:.3f}"'
    name = ET.tostring(ET.Element("testsuite", name=clean(head["name"])), encoding="unicode").removesuffix(" />")
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="hloracle" {suite}>\n{name} {suite} skipped="0">\n'
    for job in jobs:
        last = job["tries"][-1]
        case = ET.Element(
            "testcase", classname=clean(job["command"]), name=clean(job["id"]), time=f"{last['seconds']:.3f}"
        )
        if job["status"] != "passed":
            kind = "failure" if job["status"] in ("failed", "flaky") else "error"
            words = clean("; then ".join(f"{one['status']}: {one['words']}" for one in job["tries"]))
            ET.SubElement(case, kind, type=job["status"], message=words[:300]).text = words
        yield ET.tostring(case, encoding="unicode") + "\n"
    yield "</testsuite>\n</testsuites>\n"
