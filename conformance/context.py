"""What a run works with, made once and passed down: backends, threads, child processes, the cache, progress, a fault."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from hloracle.backends import named
from hloracle.backends.custom_calls import Target, register
from hloracle.backends.devices import CPU, Device
from hloracle.backends.session import Backend
from hloracle.conformance.matrix import Matrix, Witness
from hloracle.core.cache import Entry, digest
from hloracle.core.child import ChildResult, Report, run_in_child
from hloracle.core.environment import OUTCOME_PACKAGES, versions

TIMEOUT_SECONDS = 1800
# The parts of faults that change what a configuration answers: what is wrong in an emitter is in its graphs, whose text
# names what is kept.
PARTS = ("reference", "compiler", "device", "session")


def _nobody(*told: object) -> None:
    """A listener that does not listen."""


@dataclass
class Progress:
    """Times the stages of a run and tells a listener about them."""

    report: Report = _nobody
    finished: Callable[[str, float, bool], None] = _nobody
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


class Fault(Protocol):
    """A deliberate fault, which a run carries to see it noticed. Processes get it pickled."""

    @property
    def id(self) -> str:
        """What the record calls it as its `mutant`, so that the run is never taken for one of a right model."""
        ...

    @property
    def part(self) -> str:
        """What it is in: `emitter`, or one of PARTS, in which it keeps a run from taking and keeping outcomes."""
        ...

    def installed(self) -> AbstractContextManager[None]:
        """Inside of it the fault is in force in this process."""
        ...


@dataclass(frozen=True)
class Context:
    """What a run works with.

    backends: those that graphs run on, in this order. device: where IREE runs the graphs that are judged.
    threads: of a backend. targets: of custom_calls that a graph may have. timeout: seconds that a configuration may take.
    reuse: whether outcomes are taken from the cache. fault: is in force in this process and in its children.
    """

    progress: Progress = field(default_factory=Progress)
    backends: tuple[named.Choice, ...] = field(default_factory=named.chosen)
    device: Device = CPU
    threads: int = 1
    targets: tuple[Target, ...] = ()
    timeout: float = TIMEOUT_SECONDS
    reuse: bool = True
    fault: Fault | None = None

    def telling(self, report: Report) -> Context:
        """The same, with another listener."""
        return dataclasses.replace(self, progress=Progress(report))

    @property
    def report(self) -> Report:
        """The listener of the progress, which is told of a step in one line of text."""
        return self.progress.report

    @property
    def matrix(self) -> Matrix:
        """What a verdict has to know of the backends, in the order in which graphs run on them."""
        return Matrix(tuple(Witness(b.name, b.family, b.title, b.remote, b.quick, b.slow) for b in self.backends))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the backends."""
        return tuple(b.name for b in self.backends)

    def on(self, device: Device) -> Context:
        """The same with another device, or one that is driven in another way."""
        moved = (named.built_in(b.name, device) if b.remote and b.in_process else b for b in self.backends)
        return dataclasses.replace(self, device=device, backends=tuple(moved))

    def backend(self, name: str) -> Backend:
        """Open a backend in this process; XLA then finds the targets of custom_calls."""
        choice = next((b for b in self.backends if b.name == name), None) or named.chosen([name], self.device)[0]
        if choice.family == "xla":
            register(self.targets)
        return choice.open(self.threads)

    def installed(self) -> AbstractContextManager[None]:
        """The fault in force in this process: the one place where it is installed."""
        return self.fault.installed() if self.fault else nullcontext()

    def at_most(self, seconds: float) -> float:
        """The seconds that something else than a configuration may take: no more than what was asked for."""
        return min(seconds, self.timeout)

    def child(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> ChildResult:
        """`function(context, *arguments)` in a process of its own, with the fault in force. See `run_in_child`."""
        call = _Call(function, dataclasses.replace(self, progress=Progress()))
        return run_in_child(call, *arguments, timeout=timeout, report=self.report)

    def entry(
        self, folder: str, of: Any, parts: Sequence[str | bytes], changed_by: Sequence[str] = PARTS, on: str = ""
    ) -> Entry[Any]:
        """A place in the cache for what is decided by these parts, the packages, the flags and the targets.

        Args:
          of: the type of what is kept.
          changed_by: the parts a fault in which changes what is kept; nothing is taken or kept then.
          on: the only backend that has a part in it.
        """
        faulty = self.fault is not None and self.fault.part in changed_by
        known = [
            versions(OUTCOME_PACKAGES),
            os.environ.get("XLA_FLAGS", ""),
            [f"{t.name} {t.sha256}" for t in self.targets],
            [b.identity for b in self.backends if b.identity and on in (b.name, "")],
        ]
        kept = not faulty and all(b.identity is not None for b in self.backends if on in (b.name, ""))
        return Entry(folder, digest(json.dumps(known), *parts), of, reads=kept and self.reuse, writes=kept)


@dataclass(frozen=True)
class _Call:
    """A function with the context that it gets in another process."""

    function: Callable[..., Any]
    context: Context

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, report: Report, *arguments: Any) -> Any:
        with self.context.installed():
            return self.function(self.context.telling(report), *arguments)
