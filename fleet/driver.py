"""Runs a matrix: starts jobs as machines have room, runs again what did not pass, and writes down what came of each.

The driver holds no more than the jobs that run and the keys of those that are done.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hloracle.fleet.journal import Journal
from hloracle.fleet.matrix import Job, Matrix, Place
from hloracle.fleet.outcome import PASSED, Attempt, Outcome

MOST_LOST = 3  # machines that may be gone under a job before it is given up
NOWHERE_SECONDS = 120.0  # for which no machine may have what jobs need before they are given up
WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Lost:
    """The machine that a job ran on is gone. words: what is known of it."""

    words: str


@dataclass(frozen=True)
class Finished:
    """A run of a job that has ended. files: see `process.Ended`."""

    job: Job
    result: Attempt | Lost
    files: bytes = b""


class Engine(Protocol):
    """Where jobs run."""

    def room(self, place: Place) -> int:
        """How many jobs with these needs the machines hold at a time; 0 where none fits on any."""
        ...

    def start(self, job: Job, attempt: int) -> None:
        """Start a job as soon as there is room. attempt: 1, or more where it is run again."""
        ...

    def drop(self, job: Job) -> None:
        """Forget a job that was started and has not ended."""
        ...

    def wait(self, seconds: float) -> Sequence[Finished]:
        """The runs that have ended since, at the latest after so many seconds."""
        ...


@dataclass
class _Running:
    """A job that was started. attempts: those before this one."""

    job: Job
    attempts: list[Attempt] = field(default_factory=list)
    lost: int = 0

    def outcome(self) -> Outcome:
        """What became of it, when its last run has ended."""
        job = self.job
        return Outcome(job.key, job.id, job.command, job.texts, tuple(self.attempts), self.lost)


class _Queue:
    """The jobs of a place: what waits for a GPU keeps nothing else from starting.

    held: those that were started and have not ended. seen: when a machine last had what they need.
    """

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs, self._next = jobs, next(jobs, None)
        self.held, self.seen = 0, time.monotonic()

    def __bool__(self) -> bool:
        return self._next is not None

    def take(self, most: int) -> Iterator[Job]:
        """At most so many jobs that were not started."""
        while most > 0 and self._next is not None:
            most, job, self._next = most - 1, self._next, next(self._jobs, None)
            yield job


def conduct(
    matrix: Matrix, engine: Engine, journal: Journal, keep: Callable[[Job, bytes], None], tell: Callable[[Outcome], None]
) -> None:  # fmt: skip
    """Run all jobs that are not done.

    Args:
      keep: is given the files of a job's last run. tell: is told of each job that is done, after it is written down.
    """
    queues = {place: _Queue(_left(matrix, place, journal)) for place in matrix.places}
    running: dict[str, _Running] = {}

    def done(state: _Running, files: bytes = b"") -> None:
        keep(state.job, files)
        journal.add(outcome := state.outcome())
        tell(outcome)

    while running or any(queues.values()):
        for place, queue in queues.items():
            if room := engine.room(place):
                queue.seen = time.monotonic()
                for job in queue.take(_depth(room) - queue.held):
                    running[job.key] = _Running(job)
                    queue.held += 1
                    engine.start(job, 1)
            elif time.monotonic() - queue.seen > NOWHERE_SECONDS:
                started = [state for state in running.values() if state.job.place == place]
                for state in started:
                    engine.drop(state.job)
                    del running[state.job.key]
                queue.held = 0
                for state in itertools.chain(started, map(_Running, queue.take(sys.maxsize))):
                    state.attempts.append(Attempt("lost", f"no machine has {place} any more", "", 0.0, ""))
                    done(state)
        for ended in engine.wait(WAIT_SECONDS):
            state = running[ended.job.key]
            if _again(matrix, state, ended.result):
                engine.start(state.job, len(state.attempts) + 1)
            else:
                del running[state.job.key]
                queues[state.job.place].held -= 1
                done(state, ended.files)


def _left(matrix: Matrix, place: Place, journal: Journal) -> Iterator[Job]:
    """The jobs of a place that are not done."""
    return (job for job in matrix if job.place == place and job.key not in journal.done)


def _again(matrix: Matrix, state: _Running, result: Attempt | Lost) -> bool:
    """Take in how a run of a job has ended; returns whether it has to run again."""
    if isinstance(result, Lost):
        state.lost += 1
        if state.lost < MOST_LOST:
            return True
        result = Attempt("lost", f"{state.lost} machines were gone: {result.words}", "", 0.0, "")
    state.attempts.append(result)
    return result.status not in (PASSED, "refused", "lost") and len(state.attempts) <= matrix.retries


def _depth(room: int) -> int:
    """How many jobs are started at a time: twice as many as there is room for, so that no machine waits for the driver.

    A short job that waits is also cheaper: Ray hands it to the worker that has just become free, and places nothing anew.
    """
    return 2 * room
