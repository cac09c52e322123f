"""Puts what a run found into the record that reports are drawn from."""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hloracle.core.environment import versions
from hloracle.core.errors import InputError
from hloracle.ops.case import Case
from hloracle.ops.known import Fault, state
from hloracle.ops.outcome import Outcome
from hloracle.ops.running import Ran
from hloracle.reports.ops import record as form


@dataclass(frozen=True)
class Found:
    """All that a run found.

    reproducers: by backend and case. unwritten: the same of failures that have none, and why.
    """

    cases: Sequence[Case]
    ran: Sequence[Ran]
    faults: Sequence[Fault]
    malformed: Sequence[InputError] = ()
    reproducers: Mapping[tuple[str, str], form.Reproducer] = field(default_factory=dict)
    unwritten: Mapping[tuple[str, str], str] = field(default_factory=dict)


def record_of(found: Found) -> form.OpsRecord:
    """The record of a run."""
    outcomes = [{o.case: o for o in ran.outcomes} for ran in found.ran]
    rows: list[form.Row] = [
        {
            "case": case.id, "operation": case.operation, "tests": case.tests, "reason": case.reason,
            "outcomes": [_outcome(found, ran, by[case.id]) for ran, by in zip(found.ran, outcomes, strict=True)],
        }
        for case in found.cases
    ]  # fmt: skip
    states = {o["state"] for row in rows for o in row["outcomes"]}
    return {
        "schema": form.SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["hloracle", *sys.argv[1:]],
        "packages": versions(),
        "passed": not states & {"new-failure", "new-pass"} and not any(_untried(ran) for ran in found.ran),
        "backends": [_backend(ran) for ran in found.ran],
        "rows": rows,
        "malformed": [{"where": e.where, "what": e.what, "fix": e.fix} for e in found.malformed],
    }


def _untried(ran: Ran) -> bool:
    """Whether a backend got no memory for a case and tried no other: who compares nothing passes nothing."""
    outcomes = ran.outcomes
    return any(outcome.starved for outcome in outcomes) and all(outcome.result == "skipped" for outcome in outcomes)


def _backend(ran: Ran) -> form.Backend:
    choice = ran.choice
    title = choice.title if ran.version in choice.title else f"{choice.title} {ran.version}"
    return {
        "name": choice.name, "title": title, "family": choice.family, "version": ran.version,
        "seconds": round(ran.seconds, 3), "reused": ran.reused,
    }  # fmt: skip


def _outcome(found: Found, ran: Ran, outcome: Outcome) -> form.Outcome:
    means, fault = state(outcome, ran.choice.family, ran.version, found.faults)
    return {
        "backend": ran.choice.name, "result": outcome.result, "title": outcome.title, "state": means,
        "ulp": _figure(outcome.ulp), "normal": _figure(outcome.normal), "share": _figure(outcome.share), "words": outcome.words, "beside": [*outcome.beside],
        "known": None if fault is None else {"reason": fault.reason, "link": fault.link},
        "reproducer": found.reproducers.get((ran.choice.name, outcome.case)),
        "unwritten": found.unwritten.get((ran.choice.name, outcome.case), ""),
    }  # fmt: skip


def _figure(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return value if value is None or math.isfinite(value) else str(value)
