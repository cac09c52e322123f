"""What is held against what came of a command: its status, its words, its verdict, and what it has left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OWN = {"report": ("report.json", "report.html", "summary.md", "junit.xml"), "ops": ("ops.html", "ops.json")}
LINE = re.compile(r"hloracle: \S.*")


@dataclass(frozen=True)
class Ran:
    """What came of a command.

    record: what it wrote, or None. hung: it had to be killed. happened: whether the fault came about. processes, files: what it
    has left. others: the statuses of those that ran beside it.
    """

    status: int
    stdout: str
    stderr: str
    record: Any
    seconds: float
    hung: bool = False
    happened: bool = True
    processes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expected:
    """What has to come of a fault.

    status: of the command; minus a signal where it was killed. verdict: the class, or for `ops` whether it passed. says: a pattern,
    of what a finding says in the record, and of what stderr says otherwise. anew: the kind of the entries that the record says were
    made anew. quiet: nobody can read what it prints. stays: the report of an earlier run cannot be removed. killed: it had no time to tidy up, which is the next one's to do.
    """

    status: int
    verdict: str = ""
    says: str = ""
    anew: str = ""
    quiet: bool = False
    stays: bool = False
    killed: bool = False


CONFORMS = Expected(0, "conforms")


def problems(expected: Expected, ran: Ran) -> Iterator[str]:
    """What is wrong with what came of a command, a line each."""
    if ran.hung:
        yield "it hung, and was killed"
        return
    if not ran.happened:
        yield "the fault did not come about"
    if ran.status != expected.status:
        yield f"status {ran.status}, not {expected.status}: {_last(ran.stderr)}"
    if any(ran.others):
        yield f"what ran beside it ended with {ran.others}"
    yield from _of_words(expected, ran)
    yield from _of_record(expected, ran)
    yield from (f"left running: {process}" for process in ran.processes)
    if not (expected.killed or expected.stays):
        yield from (f"left: {file}" for file in ran.files)


def _of_words(expected: Expected, ran: Ran) -> Iterator[str]:
    said = ran.stdout + ran.stderr
    if "Traceback" in said or "Exception ignored" in said:
        yield f"a traceback: {_last(ran.stderr)}"
    lines = [line for line in ran.stderr.splitlines() if line]
    # Of one that was killed multiprocessing's resource tracker says that it has tidied up.
    if not expected.killed and (other := [line for line in lines if not LINE.fullmatch(line)]):
        yield f"stderr has lines of others: {other[0][:300]}"
    if expected.status == 2 and not expected.quiet and len(lines) != 1:
        yield f"{len(lines)} lines on stderr, not 1"
    if not expected.verdict and expected.says and not re.search(expected.says, ran.stderr):
        yield f"stderr does not say {expected.says!r}: {_last(ran.stderr)}"


def _of_record(expected: Expected, ran: Ran) -> Iterator[str]:
    if not expected.verdict:
        if ran.record is not None:
            yield "a report stands there, although there is no verdict"
        return
    if ran.record is None:
        yield "there is no report"
        return
    found = verdict_of(ran.record)
    if found != expected.verdict:
        yield f"verdict {found}, not {expected.verdict}: {explanation_of(ran.record)[:300]}"
    if expected.says and not re.search(expected.says, explanation_of(ran.record)):
        yield f"the report does not say {expected.says!r}: {explanation_of(ran.record)[:600]}"
    damaged = {name.split("/")[0] for name in ran.record.get("damaged", [])}
    if expected.anew and expected.anew not in damaged and "schema" in ran.record and "verdict" in ran.record:
        yield f"the record does not say that an entry of {expected.anew} was made anew"
    if expected.anew and "made anew" not in ran.stderr and not expected.quiet:
        yield "stderr does not say that an entry was made anew"
    if damaged and not expected.anew:
        yield f"entries were damaged: {', '.join(sorted(damaged))}"


def verdict_of(record: Any) -> str:
    """The class of a record's verdict; of one of `ops`, whether it passed."""
    if "verdict" in record:
        return str(record["verdict"]["class"])
    return "conforms" if record["passed"] else "failures"


def explanation_of(record: Any) -> str:
    """What a record says of what is wrong."""
    if "verdict" in record:
        checks = [f"{c['id']}: {c['detail']}" for c in record["checks"] if c["status"] in ("failed", "error")]
        return "; ".join([record["verdict"]["explanation"], *checks])
    outcomes = [o for row in record["rows"] for o in row["outcomes"] if o["state"] in ("new-failure", "open")]
    return "; ".join(f"{o['result']}: {o['words']}" for o in outcomes[:5])


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "stderr is empty"
