"""Runs cases on backends: many in a module, each by itself as soon as anything is wrong, and no crash reaches another case."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloracle import backends, semantics
from hloracle.backends.named import Choice
from hloracle.core.cache import Entry, digest
from hloracle.core.environment import host_cpu
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.ops.case import Case
from hloracle.ops.files_case import FileCase
from hloracle.ops.judge import Judged, judge
from hloracle.ops.outcome import Ended, Outcome, of_error, one_line
from hloracle.ops.running_carrier import Part, joined, read, unfit
from hloracle.ops.running_figure import accuracy
from hloracle.ops.running_lane import Lane, lanes, opener, side_by_side
from hloracle.semantics.numbers import Unsupported

BATCH = 32  # cases in a module: IREE takes 0.3 s for one, and 0.65 s for 48 together
FEW = 8  # cases that are alike, of which each is tried by itself where all together fail
SECONDS = 60.0
VARIABLES = ("IREE_", "JAX_", "TF_", "XLA_")  # of the environment, which compilers and runtimes read
Judge = Callable[[Case, Sequence[np.ndarray]], Judged]


@dataclass(frozen=True)
class How:
    """How cases are run.

    jobs: processes of a backend at a time. seconds: that a module may take. batch: most cases in a module; 1 for each by itself.
    reuse: take outcomes from the cache, and keep them there. alone: whether a case, on a backend of a family and a version, is known
      to fail: it is in no module with others, which would fail with it.
    """

    jobs: int = 1
    seconds: float = SECONDS
    batch: int = BATCH
    reuse: bool = True
    judge: Judge = judge
    alone: Callable[[str, str, str], bool] = lambda case, family, version: False


@dataclass
class Ran:
    """What came of all cases on a backend.

    facts: what it says of itself. outcomes: in the order of the cases. reused: how many were in the cache. seconds: it took.
    """

    choice: Choice
    facts: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    reused: int = 0
    seconds: float = 0.0

    @property
    def version(self) -> str:
        """As the backend says it; empty where it does not."""
        return str(self.facts.get("version", ""))


def run(cases: Sequence[Case], choice: Choice, how: How, done: Callable[[Outcome], None] = lambda outcome: None) -> Ran:
    """Every case on a backend; `done` is told of each as it ends. Raises InputError for a backend that cannot be opened."""
    began = time.monotonic()
    ours = lanes(opener(choice), how.jobs, how.seconds)
    try:
        facts = dict(ours[0].facts)
    except ToolchainError as error:
        fix = "repair it, or name another --backend"
        raise InputError(f"cannot be opened ({one_line(error.message)})", f"backend {choice.name}", fix) from None
    ran, found = Ran(choice, facts), {}
    lock = threading.Lock()
    entries = {case.id: _entry(case, ran, how) for case in cases}

    def finish(outcome: Outcome) -> None:
        with lock:
            found[outcome.case] = outcome
            done(outcome)

    for case in cases:
        if kept := entries[case.id].load():
            finish(kept)
    ran.reused = len(found)
    anew = [case for case in cases if case.id not in found]
    failing = [case for case in anew if how.alone(case.id, choice.family, ran.version)]
    known = {case.id for case in failing}
    left = _batches([case for case in anew if case.id not in known], how.batch)
    for case in failing:
        left.put([case])

    def work(lane: Lane) -> None:
        while batch := _next(left):
            for outcome in _Trying(lane, how).outcomes(batch):
                if outcome.lasting:
                    entries[outcome.case].save(outcome)
                finish(outcome)

    side_by_side(ours, work)
    ran.outcomes, ran.seconds = [found[case.id] for case in cases], time.monotonic() - began
    return ran


def _batches(cases: Sequence[Case], size: int) -> queue.SimpleQueue[list[Case]]:
    """Cases in the order of the suite, so that those that fail alike are together; each lane takes the next batch."""
    waiting: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
    for i in range(0, len(cases), size):
        waiting.put([*cases[i : i + size]])
    return waiting


def _next(waiting: queue.SimpleQueue[list[Case]]) -> list[Case]:
    """The next batch; an empty one where there is none."""
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return []


@dataclass(frozen=True)
class _Trying:
    """Runs a batch on a lane."""

    lane: Lane
    how: How

    def outcomes(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        """Of each case, in any order."""
        parts: list[Part] = []
        for case in cases:
            if isinstance(case, FileCase) and case.refused:
                yield _skipped(case, case.refused)
                continue
            try:
                part = read(case)
            except Unsupported as error:
                yield _skipped(case, f"hloracle cannot read it: {error}")
                continue
            if reason := unfit(part):
                yield _skipped(case, reason)
            else:
                parts.append(part)
        yield from self._settled(parts)

    def _settled(self, parts: Sequence[Part]) -> Iterator[Outcome]:
        """All in one module; in parts where that gives no values; those that are wrong by themselves."""
        if len(parts) <= 1:
            for part in parts:
                yield self._alone(part)
            return
        together = joined(parts)
        try:
            results = together.apart(self.lane.run(together.graph, together.inputs))
        except (Ended, ToolchainError) as error:
            # Each half of what hangs would take all of the time again.
            hangs = isinstance(error, Ended) and error.result == "hang"
            for some in [[part] for part in parts] if hangs else _pieces(parts):
                yield from self._settled(some)
            return
        for part, own in zip(parts, results, strict=True):
            outcome = _judged(part.case, own, self.how.judge)
            if not outcome.passed:
                outcome = self._again(part, outcome, parts)
            yield outcome

    def _again(self, part: Part, outcome: Outcome, parts: Sequence[Part]) -> Outcome:
        """A case that is wrong among others, by itself: if it is right there, the others are a part of the fault."""
        alone = self._alone(part)
        if not alone.passed:
            return alone
        others = tuple(p.case.id for p in parts if p is not part)
        words = f"right by itself, and wrong in one module with {len(others)} others: {outcome.words}"
        return dataclasses.replace(outcome, words=words, beside=others)

    def _alone(self, part: Part) -> Outcome:
        one, case = joined([part]), part.case
        fresh = self.lane.fresh
        try:
            (results,) = one.apart(self.lane.run(one.graph, one.inputs))
        except (ToolchainError, Ended) as error:
            result, words = of_error(error)
            # A case before it may have written where it should not: what crashes is asked again in a process of its own.
            if result == "crash" and not fresh and isinstance(error, Ended):
                return self._alone(part)
            return Outcome(case.id, case.operation, result, words=words, starved=isinstance(error, OutOfMemory))
        return _judged(case, results, self.how.judge)


def _pieces(parts: Sequence[Part]) -> list[list[Part]]:
    """A batch that failed, in parts: cases of an operation and a type fail together as a rule, so these are kept together."""
    alike = [list(some) for _, some in itertools.groupby(parts, lambda part: part.case.id.split("/")[:2])]
    if len(alike) > 1:
        return alike
    size = 1 if len(parts) <= FEW else (len(parts) + 1) // 2
    return [[*parts[i : i + size]] for i in range(0, len(parts), size)]


def _skipped(case: Case, reason: str) -> Outcome:
    return Outcome(case.id, case.operation, "skipped", words=one_line(reason))


def _judged(case: Case, results: Sequence[np.ndarray], judge: Judge) -> Outcome:
    with np.errstate(all="ignore"):
        found = judge(case, results)
        ulp, normal = float(found.ulp), accuracy(case, results)
    return Outcome(case.id, case.operation, found.status, ulp, normal, float(found.share), one_line(found.detail))


# ---- what is kept


def _entry(case: Case, ran: Ran, how: How) -> Entry[Outcome]:
    """Where the outcome of a case is kept: by the case, by what decides what the backend computes, and by our sources."""
    choice = ran.choice
    kept = how.reuse and choice.identity is not None
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    known = [choice.name, choice.identity or "", ran.facts, str(choice.tools and choice.tools.program), variables]
    alone = "alone" if how.batch == 1 else "together"
    key = digest(json.dumps(known, sort_keys=True), host_cpu(), alone, *_sources(), *_content(case))
    return Entry("ops", key, Outcome, reads=kept, writes=kept)


def _content(value: Any) -> Iterator[str | bytes]:
    """All that a case holds, piece by piece."""
    yield type(value).__name__
    if dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield one.name
            yield from _content(getattr(value, one.name))
    elif isinstance(value, np.ndarray):
        yield from (str(value.dtype), repr(value.shape), np.array(value, order="C").tobytes())
    elif isinstance(value, tuple):
        for one in value:
            yield from _content(one)
    else:
        yield repr(value)


_SOURCES: list[bytes] = []


def _sources() -> list[bytes]:
    """What decides an outcome besides a case, which has its own text and values: how it is run, and how it is judged."""
    if not _SOURCES:
        ours, meanings = Path(__file__).parent, Path(str(semantics.__file__)).parent
        files = [
            *sorted(ours.glob("running*.py")),
            *(ours / f"{name}.py" for name in ("files_case", "judge", "outcome")),
            *sorted(Path(str(backends.__file__)).parent.rglob("*.py")),
            *(meanings / f"{name}.py" for name in ("numbers", "reading")),
        ]
        _SOURCES.extend(path.read_bytes() for path in files)
    return _SOURCES
