"""The report of a fleet: its record, page and JUnit file, drawn from the journal and from the record of the fleet before."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hloracle.core.environment import versions
from hloracle.core.files import write_file
from hloracle.core.revision import revision
from hloracle.fleet.journal import Journal
from hloracle.fleet.matrix import Matrix
from hloracle.fleet.outcome import Outcome
from hloracle.reports.fleet.page import Drawn, junit, render
from hloracle.reports.fleet.record import LETTERS, LONGEST_HISTORY, SCHEMA, Head, Job, change_of, jobs_in, lines

RECORD, PAGE, JUNIT = "fleet.json", "fleet.html", "junit.xml"
JOBS = "jobs"  # the folder of the jobs' own folders
MOST_GONE = 100


def histories(record: Path) -> dict[str, str]:
    """Of each job of the fleet before what came of it, by key: a letter a fleet. Empty where there was none."""
    return {job["key"]: job["history"] for job in jobs_in(record)} if record.is_file() else {}


def write_report(matrix: Matrix, journal: Journal, before: dict[str, str], out: Path) -> Head:
    """Write fleet.json, fleet.html and junit.xml into a folder; returns what the record says of the whole."""
    counts = Counter[str]()
    drawn, keys = Drawn(), set[str]()
    for job in _jobs(journal, before, out):
        counts[job["status"]] += 1
        drawn.add(job)
        keys.add(job["key"])
    head: Head = {
        "schema": SCHEMA,
        "name": matrix.name,
        "matrix": matrix.digest,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": revision(),
        "packages": versions(),
        "seconds": round(journal.seconds + journal.now(), 3),
        "resumed": journal.resumed,
        "passed": set(counts) == {"passed"},
        "counts": dict(sorted(counts.items())),
        "gone": sorted(before.keys() - keys)[:MOST_GONE],
    }
    write_file(out / PAGE, render(head, drawn))
    write_file(out / JUNIT, "".join(junit(head, _jobs(journal, before, out))))
    rows = (json.dumps(job, allow_nan=False) for job in _jobs(journal, before, out))
    write_file(out / RECORD, "".join(lines(head, rows)))
    return head


def _jobs(journal: Journal, before: dict[str, str], out: Path) -> Iterator[Job]:
    return (_job(outcome, before.get(outcome.key, ""), out) for outcome in journal.outcomes())


def _job(outcome: Outcome, history: str, out: Path) -> Job:
    letter, folder = LETTERS[outcome.status], f"{JOBS}/{outcome.key}"
    return {
        "key": outcome.key,
        "id": outcome.id,
        "command": outcome.command,
        "values": outcome.values,
        "status": outcome.status,  # type: ignore[typeddict-item]
        "tries": [
            {
                "status": a.status,
                "words": a.words,
                "verdict": a.verdict,
                "seconds": round(a.seconds, 3),
                "machine": a.node,
            }
            for a in outcome.attempts
        ],
        "lost": outcome.lost,
        "damaged": sum(attempt.damaged for attempt in outcome.attempts),
        "history": (history + letter)[-LONGEST_HISTORY:],
        "change": change_of(history, letter),
        "folder": folder if (out / folder).is_dir() else "",
    }
