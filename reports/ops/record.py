"""The record of `hloracle ops`, ops.json: every case on every backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal

from typing_extensions import TypedDict  # which pydantic asks for on older Pythons

from hloracle.core.typed import schema_text

SCHEMA: Final = "hloracle-ops/1"
SCHEMA_FILE = Path(__file__).with_name("ops.schema.json")
Result = Literal["exact", "within", "wrong", "crash", "hang", "fails", "does-not-compile", "unsupported", "skipped"]
State = Literal["pass", "known", "new-failure", "new-pass", "open"]


class Backend(TypedDict):
    """A backend, and what its cases took: wall seconds, and how many outcomes came from the cache."""

    name: str
    title: str
    family: str
    version: str
    seconds: float
    reused: int


class Known(TypedDict):
    """Of a fault that is known: why, and where that is described."""

    reason: str
    link: str


class Reproducer(TypedDict):
    """A folder beside the record, the command to be run in it, and whether that showed the fault when it was run."""

    folder: str
    command: str
    shown: bool


class Outcome(TypedDict):
    """What came of a case on a backend; see `Outcome` of ops/outcome.py. An infinite `ulp` is the text `inf`.

    unwritten: why a failure that should have a reproducer has none; empty otherwise.
    """

    backend: str
    result: Result
    title: str
    state: State
    ulp: float | str | None
    normal: float | str | None
    share: float | str | None
    words: str
    beside: list[str]
    known: Known | None
    reproducer: Reproducer | None
    unwritten: str


class Row(TypedDict):
    """A case, with an outcome for each backend, in their order. tests: what of the specification it is about."""

    case: str
    operation: str
    tests: str
    reason: str
    outcomes: list[Outcome]


class Malformed(TypedDict):
    """A test file that cannot be read: where, what, and what to do."""

    where: str
    what: str
    fix: str


class OpsRecord(TypedDict):
    """A whole run. passed: no backend lacked the memory for every case, nothing failed that is not known, and nothing passed that is known to
    fail.
    """

    schema: Literal["hloracle-ops/1"]
    date: str
    command: list[str]
    packages: dict[str, str]
    passed: bool
    backends: list[Backend]
    rows: list[Row]
    malformed: list[Malformed]


def to_json(record: OpsRecord) -> str:
    """The record's file: a line for each case."""
    head = {key: value for key, value in record.items() if key != "rows"}
    text = json.dumps(head, indent=1, allow_nan=False)
    rows = ",\n".join(json.dumps(row, allow_nan=False) for row in record["rows"])
    return f'{text[:-2]},\n "rows": [\n{rows}\n ]\n}}\n'


def number(value: float | str | None) -> float | None:
    """A figure of the record."""
    return None if value is None else float(value)


class Tally(TypedDict):
    """Of an operation on a backend: how many cases came to which result and state.

    worst: how far off the worst case that passes is, in ULP of normal numbers; None where no result has floats. failed: the same of
    those that fail.
    """

    results: dict[str, int]
    states: dict[str, int]
    total: int
    worst: float | None
    failed: float | None


def operations(record: OpsRecord) -> list[str]:
    """The operations that were tried, in the order of the rows."""
    return list(dict.fromkeys(row["operation"] for row in record["rows"]))


def tallies(record: OpsRecord) -> dict[tuple[str, str], Tally]:
    """By operation and backend."""
    found: dict[tuple[str, str], Tally] = {}
    for row in record["rows"]:
        for outcome in row["outcomes"]:
            tally = found.setdefault((row["operation"], outcome["backend"]), _empty())
            for key, one in (("results", outcome["result"]), ("states", outcome["state"])):
                counts = tally[key]  # type: ignore[literal-required]
                counts[one] = counts.get(one, 0) + 1
            tally["total"] += 1
            ulp = number(outcome["normal"])
            if ulp is not None and outcome["result"] in ("exact", "within"):
                tally["worst"] = max(ulp, tally["worst"] or 0.0)
            elif ulp is not None:
                tally["failed"] = max(ulp, tally["failed"] or 0.0)
    return found


def _empty() -> Tally:
    return {"results": {}, "states": {}, "total": 0, "worst": None, "failed": None}


def of_states(record: OpsRecord, *states: State) -> list[tuple[Row, Outcome]]:
    """The outcomes in these states, in the order of the rows."""
    return [(row, o) for row in record["rows"] for o in row["outcomes"] if o["state"] in states]


def schema() -> str:
    """What ops.schema.json has to hold."""
    _, _, version = SCHEMA.partition("/")
    return schema_text(OpsRecord, f"https://hloracle.invalid/ops/{version}", f"hloracle ops record, version {version}")


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), "utf-8")
