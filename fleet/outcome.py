"""What became of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# passed, failed: the command's own word. refused: it could not start, on what it was given. crashed: it ended in another way.
# hung: it did not end in time and was killed. lost: the machines that it ran on were gone, each time.
Status = Literal["passed", "failed", "refused", "crashed", "hung", "lost"]
PASSED: Status = "passed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job.

    words: what it said, on one line. verdict: the class of its verdict; empty where its record has none.
    seconds: that the process took. node: the machine that it ran on. damaged: entries of that machine's cache that were not whole.
    """

    status: Status
    words: str
    verdict: str
    seconds: float
    node: str
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of a job, the last one last.

    key, id, command, values: see `Job`; the values are text. lost: how often a machine was gone while it ran; such a run counts for
    nothing.
    """

    key: str
    id: str
    command: str
    values: dict[str, str]
    attempts: tuple[Attempt, ...]
    lost: int = 0

    @property
    def last(self) -> Attempt:
        """The one that counts."""
        return self.attempts[-1]

    @property
    def status(self) -> str:
        """How it ended, or `flaky`."""
        return "flaky" if self.flaky else self.last.status

    @property
    def flaky(self) -> bool:
        """Whether it was run again and ended in another way."""
        return len({(attempt.status, attempt.verdict) for attempt in self.attempts}) > 1
