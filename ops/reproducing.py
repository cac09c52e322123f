"""Folders that show a case's failure with the compiler's own tools: see docs/reproducers.md."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.named import Choice
from hloracle.conformance.verdict.reproducer import Way, write_reproducer
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.cache import digest
from hloracle.core.dtypes import numpy_type
from hloracle.core.errors import InputError, ToolchainError
from hloracle.localize.anatomy import Step
from hloracle.localize.operations import Found
from hloracle.ops.case import Case, Expected
from hloracle.ops.files_case import FileCase
from hloracle.ops.outcome import Ended, Outcome, one_line
from hloracle.ops.running_carrier import (
    CARRIERS,
    FLOATS_OF_8_BITS,
    IN_FILES,
    SAME,
    Carrier,
    Joined,
    Part,
    joined,
    read,
)
from hloracle.ops.running_lane import Lane, lanes, opener, side_by_side
from hloracle.ops.running_suite import FOLDER, Written
from hloracle.reports.ops import record as form
from hloracle.semantics.numbers import FLOATS, rounded
from hloracle.semantics.program import Type

REPLAY_SECONDS = 600
EXIT_WRONG = 1  # of `hloracle replay`
SENTINEL = 12345.0  # what stands for NaN, which equals nothing
LONGEST = 100  # characters of a folder's name: file systems take some 255 bytes


def folders_of(backend: str, cases: Sequence[str]) -> dict[str, str]:
    """Where the reproducer of each case is, beside the report. A name that is too long, or that two have, ends with a digest."""
    names = {case: _plain(case) for case in cases}
    counts = Counter(name.casefold() for name in names.values())
    for case, name in names.items():
        if len(name) > LONGEST or counts[name.casefold()] > 1:
            names[case] = f"{name[-LONGEST:]}-{digest(case)[:8]}"
    return {case: f"{FOLDER}/{_plain(backend)[:LONGEST]}/{name}" for case, name in names.items()}


def _plain(name: str) -> str:
    """In ASCII, of which a character is a byte."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in name)


@dataclass(frozen=True)
class Wanted:
    """A failure that is to be shown. company: the other cases of the module in which alone it shows."""

    case: Case
    outcome: Outcome
    company: tuple[Case, ...] = ()


def reproduce(
    wanted: Sequence[Wanted], choice: Choice, out: Path, jobs: int, seconds: float, done: Callable[[], None]
) -> Written:
    """Write a folder for each failure of a backend, and run its command; `done` is called after each.

    Gives what was written, by backend and case, and why there is none. seconds: that a case may take.
    """
    found: dict[tuple[str, str], form.Reproducer] = {}
    missing: dict[tuple[str, str], str] = {}
    folders = folders_of(choice.name, [one.case.id for one in wanted])
    left = [*reversed(wanted)]

    def work(lane: Lane) -> None:
        while left:
            try:
                one = left.pop()
            except IndexError:  # another lane was faster
                return
            place, folder = (choice.name, one.case.id), folders[one.case.id]
            try:
                if written := _Writing(choice, out / folder, lane).write(one):
                    found[place] = {**written, "folder": folder}
                else:
                    missing[place] = _why_none(one.case)
            except (InputError, OSError, ToolchainError) as error:
                missing[place] = one_line(f"it could not be written: {error}")
            done()

    side_by_side(lanes(opener(choice), jobs, seconds), work)
    return found, missing


def _why_none(case: Case) -> str:
    if isinstance(case, FileCase):
        return (
            "its check is another than that of a file within a tolerance, which a reproducer has: run the test itself"
        )
    return "it was right, or gave no values, when it was run again"


@dataclass(frozen=True)
class _Writing:
    choice: Choice
    folder: Path
    lane: Lane

    def write(self, wanted: Wanted) -> form.Reproducer | None:
        """The first way of showing a failure that shows it; the last one, where none does."""
        choice, made = self.choice, None
        own = Way("", choice.name)
        if choice.tools is not None:
            own = Way(choice.tools.compiler, choice.name, None if choice.in_process else choice.tools)
        for found in self._ways(wanted):
            written = write_reproducer(self.folder, found if own.compiler else _typed(found), own, "")
            shown = written.shown if own.compiler else self._replayed()
            made = form.Reproducer(folder=written.folder, command=written.command, shown=shown)
            if shown:
                break
        return made

    def _replayed(self) -> bool:
        """Whether `hloracle replay` finds the fault."""
        command = [sys.executable, "-m", "hloracle", "replay", ".", "--backend", self.choice.name]
        try:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=REPLAY_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == EXIT_WRONG

    def _ways(self, wanted: Wanted) -> Iterator[Found]:
        part = read(wanted.case)
        given, gives = ({t.dtype for t in types} for types in (part.arguments, part.results))
        in_bits = given & {*FLOATS_OF_8_BITS} - gives
        yield from self._shown(wanted, part, IN_FILES)
        if in_bits:  # what makes an f8 of an f32 may itself be what a compiler sees through
            yield from self._shown(wanted, part, {**IN_FILES, **{dtype: CARRIERS[dtype] for dtype in in_bits}})

    def _shown(self, wanted: Wanted, part: Part, carriers: Mapping[str, Carrier]) -> Iterator[Found]:
        whole = joined([part, *map(read, wanted.company)], carriers)
        if wanted.outcome.result != "wrong":
            yield _found(wanted, whole.graph, whole.inputs, None)
            return
        fresh = self.lane.fresh
        try:
            results = self.lane.run(whole.graph, whole.inputs)
        except (ToolchainError, Ended) as error:
            # A case before it may have written where it should not.
            if not fresh and isinstance(error, Ended) and error.result == "crash":
                yield from self._shown(wanted, part, carriers)
            return
        for number, view in enumerate(_views(part, results)):
            if not view.wrong.any():
                continue
            if (tolerance := view.tolerance) is not None:
                yield _found(wanted, whole.graph, whole.inputs, view.value, number, tolerance)
            yield _of_element(wanted, whole, view, number)
            return


@dataclass(frozen=True)
class _View:
    """A result as its module gives it, beside what it has to be. allowed: by how much each element may be off."""

    type: Type
    value: np.ndarray
    got: np.ndarray
    allowed: np.ndarray
    judged: np.ndarray
    signed: bool

    @property
    def _distance(self) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(self.got.astype(np.float64) - self.value.astype(np.float64))
        return np.where(self.got == self.value, 0.0, off)

    @property
    def wrong(self) -> np.ndarray:
        """Which elements are wrong."""
        nan = (
            np.isnan(self.got) & np.isnan(self.value)
            if self.value.dtype.kind == "f"
            else np.zeros(self.got.shape, bool)
        )
        sign = (self.value == 0) & (self.got == 0) & (np.signbit(self.value) != np.signbit(self.got)) & self.signed
        found: np.ndarray = self.judged & ~nan & (~(self._distance <= self.allowed) | sign)
        return found

    @property
    def tolerance(self) -> float | None:
        """One number by which exactly the wrong elements are off; None where there is none, as of a NaN."""
        right, wrong = ~self.wrong, self.wrong
        tolerance = float(np.max(self.allowed, where=right & np.isfinite(self.allowed), initial=0.0))
        off = self._distance
        same = bool(np.all(off[right] <= tolerance)) and not np.any(off[wrong] <= tolerance)
        return tolerance if same else None


def _views(part: Part, results: Sequence[np.ndarray]) -> Iterator[_View]:
    """Of each result of the module that is one of the case's, or a part of one."""
    left = list(results)
    for type, expected in zip(part.results, part.case.expected, strict=True):
        carrier = IN_FILES.get(type.dtype, SAME)
        value, allowed = _bounds(type, expected)
        values = [np.real(value), np.imag(value)] if len(carrier.types) == 2 else [value]
        for dtype, one in zip(carrier.types or (type.dtype,), values, strict=True):
            judged = np.full(value.shape, expected.ulp is not None) & (
                True if expected.open is None else ~expected.open
            )
            yield _View(Type(type.shape, dtype), one, left.pop(0), allowed, judged, expected.signed)


def _bounds(type: Type, expected: Expected) -> tuple[np.ndarray, np.ndarray]:
    """What a result has to be, and by how much each element may be off: a value that has to be exact is rounded."""
    from hloracle.ops.judge import unit
    from hloracle.semantics.numbers import own_type

    value = expected.value
    if type.dtype not in FLOATS:
        return value, np.zeros(value.shape)
    more = 0.0 if expected.absolute is None else expected.absolute
    allowed = np.where(np.isfinite(value), (expected.ulp or 0.0) * unit(value, own_type(type.dtype)) + more, 0.0)
    return np.where(allowed > 0, value, rounded(value, type.dtype)), allowed


def _of_element(wanted: Wanted, whole: Joined, view: _View, number: int) -> Found:
    """The same for one element alone, that is farthest off: for a NaN stands a number, and for a zero what 1 is divided by it."""
    badness = np.where(view.wrong, np.nan_to_num(view._distance, nan=np.inf), -1.0)
    at = np.unravel_index(int(np.argmax(badness)), badness.shape)
    from hloracle.ops.running_read import renamed  # imports jaxlib

    value, abi = view.value[at], whole.graph.abi
    small = Type((1,) * len(at), view.type.dtype)
    lines = [
        f"%whole:{len(abi.results)} = func.call @whole_main({', '.join('%' + a.name for a in abi.arguments)}) : {_types(abi)}"
    ]
    bounds = ", ".join(f"{i}:{i + 1}" for i in at)
    lines.append(f"%element = stablehlo.slice %whole#{number} [{bounds}] : ({view.type}) -> {small}")
    result = "%element"
    if view.value.dtype.kind == "f" and (np.isnan(value) or value == view.got[at] == 0):
        constant = SENTINEL if np.isnan(value) else 1.0
        lines.append(f"%number = stablehlo.constant dense<{constant}> : {small}")
        if np.isnan(value):
            one_bit = Type(small.shape, "i1")
            lines.append(f"%nan = stablehlo.compare NE, %element, %element, FLOAT : ({small}, {small}) -> {one_bit}")
            lines.append(f"%result = stablehlo.select %nan, %number, %element : {one_bit}, {small}")
        else:
            lines.append(f"%result = stablehlo.divide %number, %element : {small}")
        with np.errstate(divide="ignore"):
            value = np.float64(constant) if np.isnan(value) else 1.0 / value
        result = "%result"
    taken = ", ".join(f"%{a.name}: {Type(a.shape, a.dtype)}" for a in abi.arguments)
    body = "".join(f"    {line}\n" for line in (*lines, f"return {result} : {small}"))
    text = f"module @case {{\n  func.func public @main({taken}) -> {small} {{\n{body}  }}\n{renamed(whole.graph.text, 'whole')}}}\n"
    own = Abi("prefill", abi.arguments, (Tensor("tap", "element", small.shape, small.dtype),))
    graph = dataclasses.replace(whole.graph, text=text, abi=own)
    return _found(wanted, graph, whole.inputs, np.full(small.shape, value), 0, float(view.allowed[at]))


def _typed(found: Found) -> Found:
    """The same with what is expected in the result's own type, as a file of a case has it; half a unit may be lost by that."""
    if found.expected is None:
        return found
    type = numpy_type(found.graph.abi.results[found.result].dtype)
    expected = found.expected.astype(type)
    wide = np.complex128 if np.iscomplexobj(found.expected) else np.float64  # booleans have no difference
    with np.errstate(invalid="ignore"):  # of infinities
        difference = expected.astype(wide) - found.expected.astype(wide)
    lost = float(np.max(np.abs(np.where(np.isfinite(found.expected), difference, 0.0)), initial=0.0))
    return dataclasses.replace(found, expected=expected, tolerance=found.tolerance + lost)


def _types(abi: Abi) -> str:
    arguments, results = (", ".join(str(Type(t.shape, t.dtype)) for t in some) for some in (abi.arguments, abi.results))
    return f"({arguments}) -> ({results})"


def _found(
    wanted: Wanted, graph: Graph, inputs: dict[str, np.ndarray], expected: np.ndarray | None, result: int = 0,
    tolerance: float = 0.0,
) -> Found:  # fmt: skip
    step = Step(wanted.case.operation, graph, (), "", 0, wanted.case.tests)
    why = f"{wanted.case.id}: {wanted.outcome.result}, {wanted.outcome.words}"
    value: Any = None if expected is None else np.asarray(expected)
    return Found(step, graph, dict(inputs), value, np.zeros(0), why, tolerance, result)
