"""One graph, once, on one backend: whether it is right there, does not compile, or is slower than on another."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from hloracle.backends.environments import NotInstalled
from hloracle.backends.named import Choice, chosen
from hloracle.backends.session import Backend, Buffer
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.runs.gate_zero import gate_zero
from hloracle.core.abi import Tensor
from hloracle.core.child import ChildDied, TimedOut
from hloracle.core.dtypes import numpy_type
from hloracle.core.errors import ToolchainError
from hloracle.versions.case import Case, load_array

Status = Literal["right", "wrong", "refused", "slower", "untried"]
# As `git bisect run` reads them: 125 is of what cannot be tried.
EXIT: Final[dict[str, int]] = {"right": 0, "wrong": 1, "refused": 1, "slower": 1, "untried": 125}
TIMEOUT_SECONDS = 600
ROUNDS = 9
ROUND_SECONDS = 0.05  # of one of the two, at least: a call of a small graph takes less than a clock can tell
# What makes a buffer of an argument another call's: it is given anew each time.
DONATED = ("tf.aliasing_output", "jax.buffer_donor")


@dataclass(frozen=True)
class Times:
    """Milliseconds of a call, a round each, taken in turns with another backend's in the same rounds."""

    own: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Of each round: above 1 where the other is faster."""
        return [a / b for a, b in zip(self.own, self.other, strict=True)]

    @property
    def ratio(self) -> float:
        """Their median."""
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        found = self.ratios
        own, other = (statistics.median(ms) for ms in (self.own, self.other))
        return f"{own:.3g} ms against {other:.3g} ms, {self.ratio:.2f} times ({min(found):.2f} to {max(found):.2f})"


@dataclass(frozen=True)
class Tried:
    """What came of it. `refused`: it does not compile or load. `untried`: nothing is known of the graph. words: the reason."""

    status: Status
    words: str = ""
    times: Times | None = None


@dataclass(frozen=True)
class How:
    """against, ratio: a backend's word, and how many times its time is too slow; without a word nothing is timed."""

    threads: int = 1
    timeout: float = TIMEOUT_SECONDS
    against: str = ""
    ratio: float = 0.0


def replay(case: Case, word: str, how: How, progress: Progress | None = None) -> Tried:
    """Try a case on a backend, in a process of its own. Raises InputError for a word that names no backend.

    What does not end in time, or ends its process, is wrong: it is what a compiler made of the graph.
    """
    opened: list[Choice] = []
    for name in filter(None, (word, how.against)):
        try:
            opened += chosen([name])
        except NotInstalled as error:
            return Tried("untried", str(error))
    context = Context(progress or Progress(), tuple(opened), threads=how.threads)
    for choice in opened:
        check = gate_zero(context, choice.name).check
        if check.status != "passed":
            return Tried("untried", f"gate zero on {choice.name}: {check.detail or check.figure}")
    return judged(lambda: context.child(_tried, case, [c.name for c in opened], how.ratio, timeout=how.timeout).value)


def judged(attempt: Callable[[], Tried]) -> Tried:
    """What comes of an attempt, whichever way it ends."""
    try:
        return attempt()
    except TimedOut as error:
        return Tried("wrong", f"it did not end: {error}")
    except ChildDied as error:
        return Tried("untried" if error.cause in ("memory", "killed") else "wrong", str(error))
    except ToolchainError as error:
        status: Status = "refused" if error.stage in ("compile", "load") else "wrong"
        return Tried("untried" if error.stage == "memory" else status, str(error))


def _tried(context: Context, case: Case, names: Sequence[str], ratio: float) -> Tried:
    """Run it on the first backend; then time that and the second."""
    runs = []
    for name in names:
        context.report(f"{case.graph.name} on {name}")
        runs.append(_Run(context.backend(name), case))
        if len(runs) == 1 and case.inputs:
            wrong = difference(runs[0].result(case.result), case)
            if wrong:
                return Tried("wrong", wrong)
    if len(runs) == 1:
        return Tried("right", "" if case.expected else "it compiles" + (" and runs" if case.inputs else ""))
    context.report(f"{case.graph.name} on {' and '.join(names)} in turns")
    times = _in_turns(*runs)
    return Tried("slower" if times.ratio > ratio else "right", str(times), times)


class _Run:
    """A graph loaded on a backend, with arrays to give it: those of the case, or random numbers and zeros."""

    def __init__(self, backend: Backend, case: Case) -> None:
        self._backend, self._graph = backend, case.graph
        self._execute = backend.load(case.graph)
        arguments = case.graph.abi.arguments
        if case.inputs:
            self._arrays = [np.array(load_array(p, t)) for p, t in zip(case.inputs, arguments, strict=True)]
        else:
            self._arrays = [_any(t) for t in arguments]
        self._anew = any(word in case.graph.text for word in DONATED)
        self._held: list[Buffer] = []

    def _given(self) -> list[Buffer]:
        if self._anew or not self._held:
            self._held = [self._backend.upload(array) for array in self._arrays]
        return self._held

    def result(self, index: int) -> np.ndarray:
        """One of the graph's results."""
        return np.asarray(self._backend.download(self._execute(self._given())[index]))

    def seconds(self, calls: int) -> float:
        """Of so many calls, each until its smallest result is here: a call may return before it is done."""
        results = self._graph.abi.results
        smallest = min(range(len(results)), key=lambda i: results[i].nbytes)
        total = 0.0
        for _ in range(calls):
            given = self._given()
            started = time.perf_counter()
            self._backend.download(self._execute(given)[smallest])
            total += time.perf_counter() - started
        return total


def _any(tensor: Tensor) -> np.ndarray:
    """Numbers for a call that is timed alone: zeros of integers, which may be indices."""
    dtype = numpy_type(tensor.dtype)
    if dtype.kind in "iub":
        return np.zeros(tensor.shape, dtype)
    return np.random.default_rng(0).standard_normal(tensor.shape, np.float32).astype(dtype)


def _in_turns(own: _Run, other: _Run) -> Times:
    """Both, a round each in turn: a machine's speed changes from one minute to the next by more than they differ."""
    both = (own, other)
    for run in both:
        run.seconds(1)  # warms up
    calls = [max(1, int(ROUND_SECONDS / run.seconds(1))) for run in both]
    rounds = [[1000 * run.seconds(n) / n for run, n in zip(both, calls, strict=True)] for _ in range(ROUNDS)]
    return Times(tuple(r[0] for r in rounds), tuple(r[1] for r in rounds))


def difference(got: np.ndarray, case: Case) -> str:
    """Where a result is further than the tolerance from the right one; empty where it is right, or nothing is expected."""
    if case.expected is None:
        return ""
    expected = load_array(case.expected, case.graph.abi.results[case.result])
    if got.shape != expected.shape:
        return f"the result is of shape {list(got.shape)}, not {list(expected.shape)}"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~((a == b) | (np.abs(a - b) <= case.tolerance) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{wrong.sum()} of {wrong.size} elements differ, the first at {list(first)}: {got[first]}, not {expected[first]}"
