"""Runs a matrix: starts jobs as machines have room, runs again what did not pass, and writes down what came of each.

The driver holds no more than the jobs that run and the keys of those that are done.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hloracle.fleet.journal import Journal
from hloracle.fleet.matrix import Job, Matrix, Place
from hloracle.fleet.outcome import PASSED, Attempt, Outcome

MOST_LOST = 3  # machines that may be gone under a job before it is given up
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

    def wait(self, seconds: float) -> Sequence[Finished]:
        """The runs that have ended since, at the latest after so many seconds."""
        ...


@dataclass
class _Running:
    """A job that was started. attempts: those before this one."""

    attempts: list[Attempt]
    lost: int = 0


def conduct(
    matrix: Matrix,
    engine: Engine,
    journal: Journal,
    keep: Callable[[Job, bytes], None],
    tell: Callable[[Outcome], None],
) -> None:
    """Run all jobs that are not done.

    Args:
      keep: is given the files of a job's last run. tell: is told of each job that is done, after it is written down.
    """
    # A queue for each place: what waits for a GPU keeps nothing else from starting.
    queues = {place: _left(matrix, place, journal) for place in matrix.places()}
    running: dict[str, _Running] = {}
    held = Counter[Place]()  # jobs that were started
    while True:
        for place, jobs in queues.items():
            for job in itertools.islice(jobs, max(0, _depth(engine.room(place)) - held[place])):
                running[job.key] = _Running([])
                held[place] += 1
                engine.start(job, 1)
        if not running:
            return
        for ended in engine.wait(WAIT_SECONDS):
            job, state = ended.job, running[ended.job.key]
            if (outcome := _ended(matrix, state, ended)) is None:
                engine.start(job, len(state.attempts) + 1)
                continue
            del running[job.key]
            held[job.place] -= 1
            keep(job, ended.files)
            journal.add(outcome)
            tell(outcome)


def _left(matrix: Matrix, place: Place, journal: Journal) -> Iterator[Job]:
    """The jobs of a place that are not done."""
    return (job for job in matrix if job.place == place and job.key not in journal.done)


def _ended(matrix: Matrix, state: _Running, ended: Finished) -> Outcome | None:
    """What became of a job whose run has ended; None where it has to run again."""
    job, result = ended.job, ended.result
    if isinstance(result, Lost):
        state.lost += 1
        if state.lost < MOST_LOST:
            return None
        result = Attempt("lost", f"{state.lost} machines were gone: {result.words}", "", 0.0, "")
    state.attempts.append(result)
    again = result.status not in (PASSED, "refused", "lost") and len(state.attempts) <= matrix.retries
    return None if again else Outcome(job.key, job.id, job.command, job.texts, tuple(state.attempts), state.lost)


def _depth(room: int) -> int:
    """How many jobs are started at a time: some more than there is room for, so that no machine waits for the driver."""
    return room + max(1, room // 4)
