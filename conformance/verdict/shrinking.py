"""The reproducer of a compiler's fault made smaller, and which of a run's backends show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hloracle.backends.named import Choice, interpreter
from hloracle.backends.reopened import Reopened
from hloracle.conformance.context import Context
from hloracle.conformance.verdict.avoiding import avoiding
from hloracle.conformance.verdict.reproducer import OnBackend
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied
from hloracle.core.errors import InputError, ToolchainError

if TYPE_CHECKING:  # it imports JAX, which a run's first process does not need
    from hloracle.localize.draft import Case
    from hloracle.localize.operations import Found
    from hloracle.localize.shrink import Shrunk

TIMEOUT_SECONDS = 600  # beyond what shrinking takes: the first and the last graph may take long to compile
NAMES = {"iree": "IREE", "xla": "XLA"}


@dataclass(frozen=True)
class Smaller:
    """What shows a fault, on which backends of the run it does, and what is to be said of that in sentences."""

    found: Found
    backends: list[OnBackend]
    notes: list[str]


def smaller(context: Context, found: Found, suspect: str, trusted: str | None) -> Smaller:
    """A smaller reproducer; the same one, with a note, where that does not come to an end.

    In a process of its own, because a candidate may end the one that it runs in.
    """
    try:
        answer: Smaller = context.child(_smaller, found, suspect, trusted, timeout=TIMEOUT_SECONDS).value
    except (ChildDied, ToolchainError, InputError) as error:
        return Smaller(found, [], [f"It could not be made smaller: {error}."])
    return answer


def _smaller(context: Context, found: Found, suspect: str, trusted: str | None) -> Smaller:
    from hloracle.localize.draft import Case
    from hloracle.localize.shrink import shrink

    fails = found.expected is None
    case = Case(found.graph, found.inputs, found.result)
    choices = [*context.backends, *([] if interpreter().name in context.names else [interpreter()])]
    benches = {choice.name: Reopened(partial(choice.apart, context.threads)) for choice in choices}
    right = _right(found, case, (benches[c.name] for c in _trusted(choices, suspect, trusted)))
    shrunk = shrink(case, benches[suspect], right, fails, report=context.report) if right is not None else None
    notes, failure = ["It could not be made smaller: it shows nothing in a process of its own."], None
    if shrunk is not None:
        seen, notes, failure = shrunk.seen, _told(case, shrunk), shrunk.seen.failure
        found = dataclasses.replace(
            found, graph=shrunk.case.graph, inputs=dict(shrunk.case.inputs), expected=seen.expected,
            got=found.got if seen.got is None else seen.got, tolerance=seen.tolerance, result=shrunk.case.result,
        )  # fmt: skip
    context.report("running the reproducer on every backend")
    on = [_on(c, benches[c.name], found, failure) for c in choices]
    if any(o.backend == suspect and o.shows for o in on):
        notes.append(_avoided(context, found, next(c for c in choices if c.name == suspect), failure))
    return Smaller(found, on, notes)


def _avoided(context: Context, found: Found, choice: Choice, failure: tuple[str, str] | None) -> str:
    """What avoids the fault, in a sentence."""
    from hloracle.localize.draft import Case
    from hloracle.localize.judge import off

    def shows(bench: Reopened, graph: Graph) -> bool:
        if found.expected is None and not found.inputs:
            bench.load(graph)
            return False
        got = bench.run(graph, found.inputs)[found.result]
        return found.expected is not None and off(got, found.expected) > found.tolerance

    ways = avoiding(context, Case(found.graph, found.inputs, found.result), choice, shows)
    if not ways:
        return "None of the flags and rewritings that were tried avoids it."
    *most, last = ways
    return f"It is avoided {', '.join(most)} or {last}." if most else f"It is avoided {last}."


def _trusted(choices: Sequence[Choice], suspect: str, trusted: str | None) -> list[Choice]:
    """What may say what is right, the best first: another family, which compiles in a moment."""
    family = next(c.family for c in choices if c.name == suspect)
    others = [c for c in choices if c.name != suspect]
    return sorted(others, key=lambda c: (c.remote, c.family == family, not c.quick, c.name != trusted))


def _right(found: Found, case: Case, benches: Iterable[Reopened]) -> Reopened | None:
    """The first that gives what is expected; any, where it is about a graph that does not compile."""
    from hloracle.localize.operations import differ

    for bench in benches:
        try:
            if found.expected is None or not differ(bench.run(case.graph, case.inputs)[case.result], found.expected):
                return bench
        except ToolchainError:
            continue
    return None


def _told(before: Case, shrunk: Shrunk) -> list[str]:
    sizes = [f"{c.operations} operations with sizes up to {c.dimensions[0]}" for c in (before, shrunk.case)]
    notes = [f"It was made smaller, from {sizes[0]} to {sizes[1]}, in {shrunk.tried} tries."]
    if shrunk.ended:
        notes.append("The time for that ended before nothing more could be left out.")
    if not shrunk.always:
        notes.append("It is compiled otherwise each time, and only some compilations show the fault: compile it again.")
    return notes


def _on(choice: Choice, bench: Reopened, found: Found, failure: tuple[str, str] | None) -> OnBackend:
    """What a reproducer does on a backend. failure: what it shows, where that is no value."""
    from hloracle.localize.judge import likeness, off

    shows: bool | None = None
    try:
        if found.inputs or not found.graph.abi.arguments:
            got = bench.run(found.graph, found.inputs)[found.result]
            distance = 0.0 if found.expected is None else off(got, found.expected)
            shows, detail = distance > found.tolerance, f"{distance:.3g} off"
        else:
            bench.load(found.graph)
            shows, detail = False, "it compiles"
    except ToolchainError as error:
        detail = str(error).splitlines()[0]
        if failure is not None and likeness(error) == failure:
            shows = True
    return OnBackend(choice.name, _title(choice, bench), shows, detail)


def _title(choice: Choice, bench: Reopened) -> str:
    """`IREE 3.13.0 with --iree-opt-data-tiling`"""
    version = str(bench.facts.get("version", ""))
    if choice.tools is None:
        return choice.title if version in choice.title else f"{choice.title} {version}"
    program = choice.tools.program
    flags = [*program.flags, *program.xla_flags]
    return " ".join([NAMES[choice.tools.compiler], version, *(["with", *flags] if flags else [])])
