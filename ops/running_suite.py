"""A run of `hloracle ops`: which cases, on which backends, and what is written of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hloracle.backends.named import Choice
from hloracle.core.errors import InputError
from hloracle.core.folder import prepare_folder, remove_files
from hloracle.ops.case import Case
from hloracle.ops.known import Fault, state
from hloracle.ops.outcome import SHOWN, Outcome
from hloracle.ops.running import How, Ran, run
from hloracle.ops.running_record import Found, record_of
from hloracle.reports.ops import record as form
from hloracle.reports.ops.page import write_ops

FILES = ("ops.html", "ops.json")
FOLDER = "reproducers"
# By backend and case: what was written, and why there is none.
Written = tuple[dict[tuple[str, str], form.Reproducer], dict[tuple[str, str], str]]


@dataclass(frozen=True)
class Asked:
    """What is run.

    faults: that are known. malformed: test files that cannot be read. reproducers: of which failures folders are written: `new`,
      `all` or `none`.
    """

    cases: Sequence[Case]
    choices: Sequence[Choice]
    how: How
    out: Path
    faults: Sequence[Fault] = ()
    malformed: Sequence[InputError] = ()
    reproducers: str = "new"


@dataclass(frozen=True)
class Told:
    """Who is told how it goes on.

    begun: what begins, and how many steps it has. stepped: of a step, and whether it went wrong.
    """

    begun: Callable[[str, int], None] = field(default=lambda what, total: None)
    stepped: Callable[[Outcome | None], None] = field(default=lambda outcome: None)


def begin(out: Path) -> None:
    """Remove an earlier report, which would be taken for that of this run. Raises InputError where none can be written."""
    prepare_folder(out)
    remove_files(out / name for name in FILES)


def conduct(asked: Asked, told: Told) -> form.OpsRecord:
    """Run all cases on all backends, and write the reproducers and the record. Raises InputError."""
    ran: list[Ran] = []
    for choice in asked.choices:
        told.begun(choice.title, len(asked.cases))
        ran.append(run(asked.cases, choice, asked.how, told.stepped))
    _remove_earlier(asked.out / FOLDER)
    written, unwritten = _reproducers(asked, ran, told) if asked.reproducers != "none" else ({}, {})
    record = record_of(Found(asked.cases, ran, asked.faults, asked.malformed, written, unwritten))
    write_ops(record, asked.out)
    return record


def _reproducers(asked: Asked, ran: Sequence[Ran], told: Told) -> Written:
    from hloracle.ops.reproducing import Wanted, reproduce

    cases = {case.id: case for case in asked.cases}
    written: dict[tuple[str, str], form.Reproducer] = {}
    unwritten: dict[tuple[str, str], str] = {}
    for one in ran:
        wanted = [
            Wanted(cases[o.case], o, tuple(cases[other] for other in o.beside))
            for o in one.outcomes
            if o.result in SHOWN and _is_wanted(o, one, asked)
        ]
        told.begun(f"reproducers of {one.choice.title}", len(wanted))
        how = asked.how
        found, missing = reproduce(wanted, one.choice, asked.out, how.jobs, how.seconds, lambda: told.stepped(None))
        written |= found
        unwritten |= missing
    return written, unwritten


def _is_wanted(outcome: Outcome, ran: Ran, asked: Asked) -> bool:
    means, _ = state(outcome, ran.choice.family, ran.version, asked.faults)
    return means == "new-failure" or asked.reproducers == "all"


def _remove_earlier(folder: Path) -> None:
    """Reproducers of an earlier run, and nothing else: what is left is refused when its place is needed."""
    from hloracle.core.folder import remove_reproducer

    for one in folder.glob("*/*") if folder.is_dir() and not folder.is_symlink() else ():
        remove_reproducer(one)
    for empty in [*folder.glob("*"), folder]:
        if empty.is_dir() and not any(empty.iterdir()):
            shutil.rmtree(empty, ignore_errors=True)
