"""The record of `hloracle fleet`, fleet.json: every job with what came of it, now and before.

A row stands on a line of its own, and is read and written as such: a fleet may have a hundred thousand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, cast

from typing_extensions import TypedDict  # which pydantic asks for on older Pythons

from hloracle.core.errors import InputError
from hloracle.core.given import opened
from hloracle.core.typed import problem, schema_text

SCHEMA: Final = "hloracle-fleet/1"
SCHEMA_FILE = Path(__file__).with_name("fleet.schema.json")
Status = Literal["passed", "failed", "refused", "crashed", "hung", "lost", "flaky"]
# In a job's history a letter stands for what came of it.
LETTERS: Final[dict[str, str]] = {
    "passed": "P", "failed": "F", "refused": "R", "crashed": "C", "hung": "H", "lost": "L", "flaky": "K",
}  # fmt: skip
LONGEST_HISTORY: Final = 30
NAME_ANOTHER: Final = "remove the file, or name another"
Change = Literal["", "new failure", "fixed", "other failure", "new"]


class Try(TypedDict):
    """One run of a job. status: how it ended. verdict: the class that its record concludes; empty without one."""

    status: Status
    words: str
    verdict: str
    seconds: float
    machine: str


class Job(TypedDict):
    """A job: a command with its values, and all its runs, of which the last one counts.

    status: `flaky` where the runs ended in different ways. history: a letter for each fleet that had it, this one last. change: to
    the last fleet. folder: where its files are, beside the record; empty where it left none. lost: machines that were gone under it.
    """

    key: str
    id: str
    command: str
    values: dict[str, str]
    status: Status
    tries: list[Try]
    lost: int
    damaged: int
    history: str
    change: Change
    folder: str


class Head(TypedDict):
    """What a record says besides its rows. passed: every job passed, each time. counts: jobs by status.

    resumed: how often a driver took it up again. gone: jobs of the last fleet that this one has not.
    """

    schema: Literal["hloracle-fleet/1"]
    name: str
    matrix: str
    date: str
    commit: str | None
    packages: dict[str, str]
    seconds: float
    resumed: int
    passed: bool
    counts: dict[str, int]
    gone: list[str]


class FleetRecord(Head):
    """A whole fleet."""

    jobs: list[Job]


def lines(head: Head, rows: Iterable[str]) -> Iterator[str]:
    """The record's file, piece by piece. rows: each as JSON on one line."""
    yield json.dumps(head, indent=1, allow_nan=False)[:-2] + ',\n "jobs": [\n'
    for number, row in enumerate(rows):
        yield (",\n" if number else "") + row
    yield "\n ]\n}\n"


def jobs_in(path: Path) -> Iterator[Job]:
    """The rows of a record's file, one after the other. Raises InputError for what is none."""
    with opened(path, NAME_ANOTHER) as file:
        for number, line in enumerate(file, 1):
            if line.startswith(b'{"key"'):
                yield _job(line.decode("utf-8", "replace"), f"{path}:{number}")


def _job(line: str, where: str) -> Job:
    try:
        row = json.loads(line.rstrip().removesuffix(","))
    except (ValueError, RecursionError):
        row = None
    if wrong := problem(Job, row):
        raise InputError(f"is no job of a fleet ({wrong})", where, NAME_ANOTHER)
    return cast(Job, row)


def records_of(path: Path) -> list[Path]:
    """The records that the jobs of a fleet have left, where a file is a fleet's; of any other the file itself."""
    with opened(path, "name a report.json or a fleet.json that hloracle wrote") as file:
        is_fleet = f'"{SCHEMA}"'.encode() in file.read(200)
    if not is_fleet:
        return [path]
    found = (path.parent / job["folder"] / "report.json" for job in jobs_in(path) if job["folder"])
    return [record for record in found if os.path.isfile(record)]  # which takes any string


def change_of(before: str, now: str) -> Change:
    """What is new of a job. before: its history, empty where it has none. now: the letter of this fleet."""
    if not before:
        return "new"
    was = before[-1]
    if was == now:
        return ""
    return "new failure" if was == "P" else "fixed" if now == "P" else "other failure"


def schema() -> str:
    """What fleet.schema.json has to hold."""
    _, _, version = SCHEMA.partition("/")
    return schema_text(
        FleetRecord, f"https://hloracle.invalid/fleet/{version}", f"hloracle fleet record, version {version}"
    )


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), "utf-8")
