"""The judged graphs' subgraphs against the oracle's on inputs that no prompt reaches: a check, and the place where it fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.context import Context
from hloracle.conformance.runs.configurations import backend_sources, where
from hloracle.conformance.runs.inside import NO_ANCHORS, looking
from hloracle.conformance.verdict.localization import weights_of
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry
from hloracle.core.child import ChildDied
from hloracle.core.errors import ToolchainError
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

TIMEOUT_SECONDS = 600
TITLE = "each anchor's computation equals the oracle's on inputs that no prompt reaches"


@dataclass(frozen=True)
class Probes:
    """How many computations were compared, the largest share of what is allowed, and those that differ, in words.

    anchor, operation: of the first that differs. sole: whether a change of this operation, and of no other one, makes it equal.
    left: the anchors whose computation was not compared, because the graph reads other values for it than the oracle's.
    """

    count: int
    worst: float
    failed: list[str]
    anchor: str
    operation: str
    sole: bool
    left: list[str]


def run_probes(
    context: Context, source: str, pairs: Sequence[tuple[Graph, Graph]], model: Checkpoint, all_named: bool
) -> tuple[Check, bool]:  # fmt: skip
    """The check, and whether its outcome was in the cache.

    Args:
      source: whose graphs are judged. all_named: whether they have to name every anchor.
      pairs: such a graph and the oracle's of the same phase; the judged one may have the token as its head.
    """
    question = Question("probes", TITLE, source)
    parts: list[str | bytes] = [
        model.digest, *backend_sources(), *looking(Path(__file__)), *where(context, context.matrix.quick),
        json.dumps([all_named, context.matrix.quick]), *(g.identity for pair in pairs for g in pair),
    ]  # fmt: skip
    entry: Entry[Probes] = context.entry("probes", Probes, parts, on=context.matrix.quick)
    arguments = (list(pairs), model.directory, all_named)
    try:
        found, reused = entry.get(
            lambda: context.child(_run, *arguments, timeout=context.at_most(TIMEOUT_SECONDS)).value
        )
    except (ToolchainError, ChildDied) as error:
        return question.error(str(error)), False
    right = found.count - len(found.failed)
    figure = f"{right} of {found.count}"
    if right:
        figure += f", {'those ' if found.failed else ''}at {found.worst:.2g} of what is allowed"
    if not (found.count or all_named):
        return question.skipped(NO_ANCHORS), reused
    holds = found.count > 0 and not found.failed
    check = question.judged(holds, figure, f"{found.count} of {found.count}", "; ".join(found.failed), found.anchor)
    words = f"probes of what is computed from other values than in the oracle: {', '.join(found.left)}"
    operation, missing = "" if holds else found.operation, words if found.left else ""
    candidate = bool(operation) and not found.sole
    return dataclasses.replace(check, operation=operation, candidate=candidate, missing=missing), reused


def _run(context: Context, pairs: list[tuple[Graph, Graph]], directory: Path, all_named: bool) -> Probes:
    from hloracle.localize.anatomy import anatomy_of, peer_of
    from hloracle.localize.probes import probe
    from hloracle.localize.workbench import Workbench

    checkpoint = open_checkpoint(directory)
    config = checkpoint.config
    weights = weights_of([graph for graph, _ in pairs], config)
    bench = Workbench(context.backend(context.matrix.quick), checkpoint.load, weights)
    failed: list[str] = []
    left: list[str] = []
    count, worst, anchor, operation, sole = 0, 0.0, "", "", False
    for emitter, oracle in pairs:
        anatomy = anatomy_of(emitter, config)
        n, failures, share, others = probe(
            anatomy,
            peer_of(anatomy, oracle),
            bench,
            context.report,
            locate=not failed,
            same_inputs=not all_named,
        )
        count, worst = count + n, max(worst, share)
        left += [f"{other} of {emitter.name}" for other in others]
        for failure in failures:
            step = failure.found.step if failure.found else None
            at = f"{step.name} {step.value} at line {step.line} of {emitter.name}" if step else ""
            if not anchor:
                anchor, operation, sole = failure.anchor, at, failure.sole
            words = f"{failure.anchor} of {emitter.name} with inputs times {failure.scale:g}"
            failed.append(f"{words}: {at}" if at else words)
    return Probes(count, worst, failed, anchor, operation, sole, left)
