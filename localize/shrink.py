"""Shrinks a graph on which a compiler is wrong, or which it refuses, to the smallest one that still shows that.

Three ways are taken in turn until none helps: fewer operations, smaller shapes, simpler values. Whatever is tried runs
beside a compiler that is right. Every step is determined by the case alone, but for how far the time goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from hloracle.backends.reopened import Reopened
from hloracle.core.child import Report
from hloracle.localize.draft import Case, edited
from hloracle.localize.fewer_operations import fewer_operations
from hloracle.localize.hunt import Hunt
from hloracle.localize.judge import BudgetEnded, Judge, Seen
from hloracle.localize.simpler_values import simpler_values
from hloracle.localize.smaller_shapes import smaller_shapes

SECONDS = 180.0


@dataclass(frozen=True)
class Shrunk:
    """The smallest case that was found, and what it shows.

    tried: how many candidates ran. ended: the time was over before nothing helped any more. always: every compilation shows
    it, and not only some.
    """

    case: Case
    seen: Seen
    tried: int
    ended: bool
    always: bool = True


def shrink(
    case: Case, suspect: Reopened, trusted: Reopened, fails: bool = False, seconds: float = SECONDS,
    report: Report = lambda line: None,
) -> Shrunk | None:  # fmt: skip
    """The smallest case that shows what `case` shows; None where that shows nothing on these two.

    Args:
      suspect, trusted: the backend that is wrong and one that is right.
      fails: what it shows is that the suspect refuses it or crashes, and not a wrong value.
      seconds: after which no more is tried.
    """
    judge = Judge(suspect, trusted, seconds)
    try:
        with edited(case) as draft:
            case = draft.finished()
    except ir.MLIRError:  # what jaxlib's MLIR does not read, as it stands
        return None
    seen = judge.first(case)
    if seen is None or (seen.failure is not None) != fails:
        return None
    if judge.compiles_only:
        case = Case(case.graph, {}, case.result)
    hunt = Hunt(case, seen, judge)
    ended = False
    try:
        before = -1
        while before != hunt.changes:
            before = hunt.changes
            for way in (fewer_operations, smaller_shapes, *(() if judge.compiles_only else (simpler_values,))):
                report(f"shrinking the reproducer: {hunt.case.operations} operations, {way.__name__.replace('_', ' ')}")
                way(hunt)
    except BudgetEnded:
        ended = True
    return Shrunk(hunt.case, hunt.seen, judge.tried, ended, judge.compilations == 1)
