"""What a run is asked for, what it tells while it works, and what it has gathered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloracle.backends.custom_calls import Target
from hloracle.backends.devices import CPU, Device
from hloracle.conformance.checks.check import Check
from hloracle.conformance.graphs.facts import Inspected
from hloracle.conformance.graphs.listing import Reading
from hloracle.conformance.matrix import Matrix, witness
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.code_generation import Compiled
from hloracle.conformance.runs.configurations import TIMEOUT_SECONDS, Outcome
from hloracle.conformance.runs.inside import AnchorOutcome
from hloracle.conformance.runs.speed import Contender
from hloracle.conformance.verdict.localization import Localization
from hloracle.core.abi import Graph
from hloracle.core.child import Report
from hloracle.core.errors import InputError
from hloracle.mutants import MUTANTS, planted
from hloracle.production.choice import Choice, untuned
from hloracle.reference.huggingface.truth import Truth
from hloracle.reference.model.contract import BUCKETS

# Its longest prompt fills the bucket, and what follows the last slot of the cache.
LEAN_BUCKET = 64
LEAN_CAPACITY = 111
BACKENDS = ("iree-cpu", "xla-cpu")


def matrix_of(backends: Sequence[str]) -> Matrix:
    return Matrix(tuple(map(witness, backends)))


def backends_on(device: Device) -> tuple[str, ...]:
    """What a run on a device runs graphs on: the device, and what it is judged by."""
    return (device.backend, *BACKENDS) if device.remote else BACKENDS


@dataclass(frozen=True)
class Settings:
    """What the user asked for. `fresh` runs every configuration whatever the cache holds.

    precision: what the graphs hold weights in. choice: how they are written and compiled; None takes what was found
      fastest on this machine, if that was ever measured, and else what is taken everywhere.
    mutant: a deliberate fault that the run carries.
    device: where IREE runs the graphs that are judged.
    out: the report's folder, where a reproducer goes; None writes none.
    rounds: of the speed comparison; 0 leaves it out.
    backends: those that graphs are run on; the first of them runs the production graph.
    small: leave out prompts that do not fit the capacity, instead of refusing to run; and what no longer decides: a configuration,
      a canary beside a mutant that was noticed, anchors by themselves after the first wrong one.
    busy: a lock that is held as long as something else keeps this machine busy: nothing is timed before.
    lean: for one of many models. One bucket, and the anchors on XLA alone.
    of_graphs: the buckets of prefill graphs that somebody else wrote; None where they are ours.
    every_token: a tiny model is given each token of its vocabulary, also in a small or a lean run, which else leave that out.
    unlocated: a verdict is enough: what is wrong is not taken apart, and what is right neither timed nor shown.
    targets: of custom_calls that a graph may have.
    timeout: seconds that a configuration may take.
    spoiled: what is done to the emitted graphs before they are judged: a fault that is known, see `holes.py`.
    """

    model: str
    tokens: int = 48
    capacity: int = 256
    threads: int = 1
    fresh: bool = False
    device: Device = CPU
    precision: str = "f32"
    choice: Choice | None = None
    mutant: str = ""
    out: Path | None = None
    small: bool = False
    lean: bool = False
    of_graphs: tuple[int, ...] | None = None
    every_token: bool = False
    unlocated: bool = False
    rounds: int = 5
    busy: Path | None = None
    backends: tuple[str, ...] = BACKENDS
    targets: tuple[Target, ...] = ()
    timeout: float = TIMEOUT_SECONDS
    spoiled: Callable[[Graph], Graph] | None = None

    @property
    def matrix(self) -> Matrix:
        return matrix_of(self.backends)

    @property
    def mutant_at_work(self) -> str:
        """The mutant, unless it is one of the emitter: that fault is in the graphs once they are emitted, and nowhere else."""
        return "" if self.mutant and MUTANTS[self.mutant].part == "emitter" else self.mutant

    @property
    def buckets(self) -> tuple[int, ...]:
        if self.of_graphs is not None:
            return self.of_graphs
        return (LEAN_BUCKET,) if self.lean else tuple(b for b in BUCKETS if b <= self.capacity)

    def validate(self) -> None:
        """Raises InputError that names the flag."""
        planted(self.mutant)
        if self.rounds < 0:
            raise InputError(f"is {self.rounds}", "--rounds", "ask for at least one, or for none with 0")
        if self.tokens < 1:
            raise InputError(f"is {self.tokens}", "--tokens", "ask for at least one")
        if self.capacity < BUCKETS[0] and self.of_graphs is None:
            raise InputError(f"is {self.capacity}", "--capacity", f"give at least the smallest bucket, {BUCKETS[0]}")
        if not self.timeout > 0:
            raise InputError(f"is {self.timeout:g}", "--timeout", "give a number of seconds")
        if self.tokens > self.capacity:
            raise InputError(
                f"is {self.tokens}, more than the {self.capacity} cache slots", "--tokens",
                "raise --capacity, or ask for fewer",
            )  # fmt: skip

    def validate_buckets(self) -> None:
        """Raises InputError unless a prompt can end at the last cache slot, and a bucket inside the cache holds it."""
        longest = self.capacity - self.tokens + 1
        fitting = [b for b in self.buckets if b >= longest]
        if not fitting:
            raise InputError(
                f"is {self.capacity}: no bucket of at most that many holds the {longest} tokens of a prompt that fills it",
                "--capacity", f"give one of {', '.join(map(str, BUCKETS))}",
            )  # fmt: skip


@dataclass
class Progress:
    """Times the stages of a run and tells a listener about them."""

    report: Report = lambda line: None
    finished: Callable[[str, float, bool], None] = lambda stage, seconds, reused: None
    timings: list[dict[str, Any]] = field(default_factory=list)
    current: str = ""
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a stage; the block may set `reused` and `detail` in the dict it gets, and append to `parts`."""
        self.report(name)
        self.current = name
        entry: dict[str, Any] = {
            "stage": name, "begin": self.now(), "seconds": 0.0, "reused": False, "detail": "", "parts": [],
        }  # fmt: skip
        yield entry
        entry["seconds"] = round(self.now() - entry["begin"], 3)
        self.timings.append(entry)
        self.finished(name, entry["seconds"], entry["reused"])

    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self.started, 3)


@dataclass
class Evidence:
    """What a run has gathered so far; the record is written from it whether or not the run got to its end."""

    checks: list[Check] = field(default_factory=list)
    graphs: dict[str, Inspected] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    truths: dict[str, Truth] = field(default_factory=dict)
    asked: Asked = field(default_factory=Asked)
    outcomes: list[Outcome] = field(default_factory=list)
    anchored: list[AnchorOutcome] = field(default_factory=list)
    localization: Localization | None = None
    shown: list[tuple[str, Graph, Reading]] = field(default_factory=list)  # by source: what a reader is shown
    compiled: list[Compiled] = field(default_factory=list)  # for targets that nothing runs on
    arithmetic: str = "float32 of the processor"  # of the device
    speed: list[Contender] = field(default_factory=list)
    speed_reason: str = "the run did not get so far"
    choice: Choice = field(default_factory=untuned)
    chosen: str = "untuned"  # or `tuned`, or `asked` for
    ignored: str = ""  # why what was measured on this machine was not taken
