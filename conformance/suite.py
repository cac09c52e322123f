"""Many models in one run: the tiny model of every family, a real one beside them, and a row of each in one record."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, cast

from hloracle.backends.plain import plain_compilers
from hloracle.conformance.checks.check import Question
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs.sources import Emitter
from hloracle.conformance.record.record import record_of
from hloracle.conformance.run import WAIT, run
from hloracle.conformance.settings import QUICK_CAPACITY, Settings
from hloracle.conformance.verdict.compared import without
from hloracle.conformance.verdict.verdict import decide
from hloracle.core.cache import noting
from hloracle.core.child import ChildDied, ChildResult, Report, run_in_child, threads
from hloracle.core.environment import MemoryWatch
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.files import locked
from hloracle.core.pool import run_each
from hloracle.core.record import Family, Mutants, Record, WorstAnchor
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import refuse_beyond_positions
from hloracle.reference.model.registry import FAMILIES, from_hf

TOKENS = 48
TIMEOUT_SECONDS = 600  # of a family, on average
REAL_SECONDS = 4 * 3600  # its stages have limits of their own
FINISHED = "finished: "  # a report that begins so tells of a stage: its name, seconds, and whether it was reused
FamilyRun = tuple[Settings, Context]


def _not_run(architecture: str) -> Mutants:
    return {"killed": 0, "total": 0, "pinned": False, "reason": "not run"}


@dataclass(frozen=True)
class Told:
    """What is done with a family's record, and what is known of its mutants.

    keep: is called with a family's name and record as it ends; returns where its page is, or nothing.
    mutants: of a family, by its name.
    """

    keep: Callable[[str, Record], str] = lambda name, record: ""
    mutants: Callable[[str], Mutants] = _not_run


def selected(families: Sequence[str]) -> list[str]:
    """The families that were asked for, each once; all when none was. Raises InputError."""
    for name in families:
        if name not in FAMILIES:
            raise InputError("is no family", repr(name), f"name some of: {', '.join(FAMILIES)}")
    return list(dict.fromkeys(families)) or list(FAMILIES)


def with_rings(families: Sequence[str], slots: int = QUICK_CAPACITY) -> list[str]:
    """Those whose tiny model has a layer with a window that is shorter than caches of so many slots."""
    return [name for name in families if from_hf(TINY[name]).windowed(slots)]


def run_suite(
    families: Sequence[str], real: Settings | None, jobs: int, out: Path | None, tell: Told, context: Context,
    alike: Mapping[str, Any] = MappingProxyType({}),
) -> Record:  # fmt: skip
    """The tiny models of the families, `jobs` at a time, and the real model beside them; what is timed waits for them.

    Args:
      families: names in FAMILIES.
      real: of the real model's run; None leaves it out.
      out: the report's folder. A family's reproducer goes to families/NAME in it; with None none is written.
      tell: what is done with a family's record. context: what every run works with; a family's in one thread.
      alike: what the families' settings are besides those of a tiny model: fields of Settings, such as `batch`.
    Returns the record of the real model, or without it of the first family; its verdict is that of all, and its
    `families` has a row for each, the record's own model first.
    Raises InputError when the real model cannot be run, or one whose process died cannot be read either; and for rings in a family
    that has none.
    """
    if real is not None:
        real.validate()
    slots = alike.get("capacity", QUICK_CAPACITY)
    if alike.get("ring") and (without := [name for name in families if name not in with_rings(families, slots)]):
        what = f"needs a layer with a window of less than {slots} slots, and {without[0]} has none"
        some = ", ".join(with_rings(list(FAMILIES), slots))
        raise InputError(what, "--ring", f"name some of: {some}" if some else "give a larger --capacity")
    items = [family_run(name, out, context, alike) for name in families]
    progress = context.progress
    report = _two_lines(progress)
    record, seconds = None, 0.0
    with noting() as damaged, TemporaryDirectory(prefix="hloracle-") as folder, threads() as pool:
        busy = Path(folder) / "busy"
        whole: Future[ChildResult] | None = None
        with locked(busy):
            if real is not None:
                beside = dataclasses.replace(context, progress=Progress())
                arguments = (judged_beside, dataclasses.replace(real, busy=busy), beside, progress.started)
                whole = pool.submit(run_in_child, *arguments, timeout=REAL_SECONDS, report=partial(report, 1))

            def done(name: str, record: Record) -> str:
                # Nothing is worth waiting for where it cannot be run.
                if whole and whole.done() and isinstance(error := whole.exception(), InputError):
                    raise error
                return tell.keep(name, record)

            told = dataclasses.replace(tell, keep=done)
            records, ordered = run_families(items, jobs, told, progress, partial(report, 0))
        report(0, "")
        if real is not None and whole is not None:
            try:
                record, seconds = whole.result().value, whole.result().seconds
            except (ChildDied, ToolchainError) as error:
                record = dead(real, context, str(error))

    if record is not None:
        seconds -= sum(timing["seconds"] for timing in record["timings"] if timing["stage"] == WAIT)
        timings = sorted([*progress.timings, *record["timings"]], key=lambda timing: timing["begin"])
        record = cast(Record, {**record, "timings": timings, "damaged": damaged})
        mutants: Mutants = {"killed": 0, "total": 0, "pinned": False, "reason": "in tiny models"}
        ordered.insert(0, row_of(record, seconds, mutants, ""))
    else:
        record = cast(Record, {**records[families[0]], "timings": progress.timings, "damaged": damaged})
    return together(record, ordered)


def run_families(
    families: Sequence[FamilyRun], jobs: int, tell: Told, progress: Progress, report: Report
) -> tuple[dict[str, Record], list[Family]]:
    """The records of the tiny models by family, `jobs` at a time, and the row of each in the order of `families`."""
    records: dict[str, Record] = {}
    rows: dict[str, Family] = {}
    jobs = min(jobs, len(families))

    with progress.stage("families") as stage:
        begun = progress.now()

        def finish(item: FamilyRun, answer: Record | str, seconds: float) -> None:
            settings, context = item
            name = settings.model.removeprefix("tiny-")
            found = answer if isinstance(answer, dict) else dead(settings, context, answer)
            try:
                page = tell.keep(name, found)
            except ValueError as error:  # a record that cannot be written is none, and takes no other with it
                found, page = dead(settings, context, f"its record is not valid: {error}"), ""
            records[name] = found
            rows[name] = row_of(found, seconds, tell.mutants(name), page)
            end = progress.now()
            begin = max(begun, end - seconds)
            part = {"name": name, "begin": round(begin, 3), "seconds": round(end - begin, 3), "reused": False}
            stage["parts"].append(part)
            progress.finished(settings.model, seconds, False)
            report(f"{len(rows)} of {len(families)} families, last {name}")

        report(f"{len(families)} families, {jobs} at a time")
        run_each(judged, families, jobs, TIMEOUT_SECONDS, report, finish)
        stage["parts"].sort(key=lambda part: part["begin"])
    return records, [rows[settings.model.removeprefix("tiny-")] for settings, _ in families]


def _two_lines(progress: Progress) -> Callable[[int, str], None]:
    """Tell of the families (0) and of the real model (1), which run at the same time; of a stage that is finished too."""
    lines = ["", ""]

    def tell(which: int, line: str) -> None:
        if line.startswith(FINISHED):
            progress.finished(*json.loads(line.removeprefix(FINISHED)))
            return
        lines[which] = line
        progress.report("; ".join(filter(None, lines)))

    return tell


def judged_beside(report: Report, settings: Settings, context: Context, started: float) -> Record:
    """The record of a whole run, in a process of its own; `started` is when what it is a part of began."""
    progress = Progress(report, lambda *done: report(FINISHED + json.dumps(done)), started=started)
    return run(settings, dataclasses.replace(context, progress=progress))


def family_run(
    name: str, out: Path | None, context: Context, alike: Mapping[str, Any] = MappingProxyType({})
) -> FamilyRun:
    """A quick run of a family's tiny model, in one thread. alike: see `run_suite`. Raises InputError for slots that it cannot have."""
    out = out / "families" / name if out is not None else None
    tiny = Settings(f"tiny-{name}", TOKENS, QUICK_CAPACITY, out=out, quick=True, rounds=0)
    settings = dataclasses.replace(tiny, **alike)
    settings.validate()
    refuse_beyond_positions(from_hf(TINY[name]), settings.capacity, settings.model)
    return settings, dataclasses.replace(context, threads=1, progress=Progress())


def judged(report: Report, item: FamilyRun) -> Record:
    """The record of a family's run, in a process that runs one after the other."""
    settings, context = item
    with plain_compilers():
        return run(settings, context.telling(report))


def dead(settings: Settings, context: Context, why: str) -> Record:
    """The record of a model whose process gave none. Raises InputError where not even the model can be read."""
    model = open_checkpoint(
        resolve(settings.model, precision=settings.precision, as_=settings.as_, compute=settings.compute)
    )
    evidence = Evidence(speed_reason="the run gave no answer")
    evidence.checks.append(Question("process", "every process gives an answer").error(why))
    verdict = dataclasses.replace(
        decide(context.matrix, evidence.checks, [], {}), explanation=f"The run gave no answer: {why}."
    )  # fmt: skip
    with MemoryWatch(lambda: "") as memory:
        return record_of(Run(settings, context, (Emitter(),), model, evidence), verdict, memory, [])


# ---- a row


def row_of(record: Record, seconds: float, mutants: Mutants, report: str) -> Family:
    """What a suite's record says of one of its models. See core/record.py."""
    own = {source["id"] for source in record["sources"] if source["judged"]}
    judged = {(g["phase"], g["head"]): g for g in record["graphs"] if g["source"] in own}
    counted, shipped = judged.get(("decode", "logits")), judged.get(("decode", "token"))
    verdict, model = record["verdict"], record["model"]
    bad = [check for check in record["checks"] if check["status"] in ("failed", "error")]
    return {
        "architecture": model["architecture"],
        "model": model["name"],
        "digest": model["digest"],
        "verdict": verdict["class"],
        "anchor": verdict["anchor"],
        "explanation": verdict["explanation"],
        "not_compared": verdict["not_compared"],
        "passed": record["passed"],
        "tokens": {
            "agreed": sum(c["agreed"] for c in record["configurations"]),
            "total": sum(c["total"] for c in record["configurations"]),
        },
        "worst": worst_anchor(record),
        "op_kinds": counted["op_kinds"] if counted else None,
        "matmuls": shipped["ops"].get("dot_general", 0) if shipped else None,
        "weights": shipped["weights"] if shipped else None,
        "mutants": mutants,
        "seconds": round(seconds, 3),
        "failed": bad,
        "report": report,
    }


def worst_anchor(record: Record) -> WorstAnchor | None:
    """The value at an anchor that is the largest multiple of its limit, over all configurations; None where none was compared."""
    limits = {floor["anchor"]: floor["limit"] for floor in record["floors"]}
    found = [
        WorstAnchor(floors=error, anchor=anchor, limit=limits[anchor], configuration=matrix["configuration"])
        for matrix in record["anchors"]
        for anchor, errors in zip(matrix["anchors"], matrix["errors"], strict=True)
        for error in errors
        if error is not None and anchor in limits
    ]

    def share(of: WorstAnchor) -> float:
        found = float(of["floors"]) / of["limit"]
        return math.inf if math.isnan(found) else found

    return max(found, key=share, default=None)


# ---- all of them


def together(record: Record, rows: Sequence[Family]) -> Record:
    """The record with the rows, and with the verdict of all: where another model is wrong, it is not this one's any more.

    rows: the record's own first.
    """
    own, others = rows[0], rows[1:]
    bad = [row for row in others if not row["passed"]]
    verdict = record["verdict"].copy()
    told = [f"{row['model']}, {_what(row)}: {row['explanation']}" for row in bad]
    which = ", ".join(f"{row['model']} ({_what(row)})" for row in bad[:3])
    which += f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    if bad and own["passed"]:
        verdict["class"], verdict["prompt"], verdict["step"] = bad[0]["verdict"], None, None
        verdict["evidence"] = [*told, *verdict["evidence"]]
        verdict["explanation"] = (
            f"{own['model']} {'conforms' if own['verdict'] == 'conforms' else 'passes'}, but {len(bad)} of "
            f"{len(rows)} models {'does' if len(bad) == 1 else 'do'} not: {which}."
        )
    elif bad:
        verdict["explanation"] += f" Beside {own['model']}, so {'is' if len(bad) == 1 else 'are'} wrong: {which}."
        verdict["evidence"] = [*verdict["evidence"], *told]
    elif own["passed"] and others:
        near = [row for row in rows if row["verdict"] == "near-tie"]
        ties = f", {len(near)} by a near tie" if near else ""
        verdict["class"] = "near-tie" if near else verdict["class"]
        claim = verdict["explanation"].removeprefix(without(verdict["not_compared"]))
        verdict["not_compared"] = [*verdict["not_compared"], *_not_compared(others)]
        verdict["explanation"] = (
            f"{without(verdict['not_compared'])}{claim} {len(rows)} of {len(rows)} models "
            f"{'pass' if near else 'conform'}{ties}."
        )
    passed = not bad and bool(own["passed"])
    whole = record.copy()
    whole["passed"], whole["verdict"], whole["families"] = passed, verdict, list(rows)
    return whole


def _not_compared(rows: Sequence[Family]) -> list[str]:
    """What was not compared of these models, each phrase once, and of whom."""
    models: dict[str, list[str]] = {}
    for row in rows:
        for phrase in row["not_compared"]:
            models.setdefault(phrase, []).append(row["model"])
    return [f"of {of[0] if len(of) == 1 else f'{len(of)} other models'}, {phrase}" for phrase, of in models.items()]


def _what(row: Family) -> str:
    return f"{row['verdict']} at {row['anchor']}" if row["anchor"] else str(row["verdict"])
