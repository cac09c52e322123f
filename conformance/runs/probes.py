"""The judged graphs' pieces against the oracle's on inputs that no prompt reaches: a check, and the place where it fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloracle.backends.custom_calls import Target, register
from hloracle.backends.make import make_backend
from hloracle.conformance.checks.checks import Check, judged, skipped
from hloracle.conformance.runs.configurations import backend_sources
from hloracle.conformance.runs.inside import NO_ANCHORS, looking
from hloracle.conformance.verdict.localization import weights_of
from hloracle.core.abi import Graph
from hloracle.core.cache import cache_root, digest, write_file
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.environment import host_cpu
from hloracle.core.errors import ToolchainError
from hloracle.mutants import planted
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

TIMEOUT_SECONDS = 600
TITLE = "each anchor's computation equals the oracle's on inputs that no prompt reaches"
BACKEND = "xla-cpu"


@dataclass(frozen=True)
class Probes:
    """How many computations were compared, the largest share of what is allowed, and those that differ, in words.

    left: the anchors whose computation was not compared, because the graph reads other values for it than the oracle's.
    """

    count: int
    worst: float
    failed: list[str]
    anchor: str
    operation: str
    left: list[str]
    reused: bool = False


def run_probes(
    source: str, pairs: Sequence[tuple[Graph, Graph]], checkpoint: Checkpoint, versions: dict[str, str], reuse: bool,
    mutant: str = "", targets: Sequence[Target] = (), report: Report | None = None,
) -> tuple[Check, bool]:  # fmt: skip
    """The check, and whether its outcome was in the cache.

    Args:
      source: whose graphs are judged, `emitter` or `file`.
      pairs: such a graph and the oracle's of the same phase; the judged one may have the token as its head.
    """
    id, ours = f"{source}.probes", source == "emitter"
    texts = [g.text + g.abi.to_json() for pair in pairs for g in pair]
    sources = [*backend_sources(), *looking(Path(__file__))]
    key = digest(
        checkpoint.digest,
        host_cpu(),
        json.dumps([versions, ours, [f"{t.name} {t.sha256}" for t in targets]]),
        *sources,
        *texts,
    )
    entry = cache_root() / "probes" / f"{key[:32]}.json"
    found = _load(entry) if reuse and not mutant else None
    if found is None:
        try:
            found = run_in_child(
                _run, list(pairs), checkpoint.directory, mutant, ours, targets, timeout=TIMEOUT_SECONDS, report=report
            ).value  # fmt: skip
        except (ToolchainError, ChildDied) as error:
            return Check(id, TITLE, "error", "", "", str(error)), False
        if not mutant:
            write_file(entry, json.dumps(dataclasses.asdict(found)))
    right = found.count - len(found.failed)
    figure = f"{right} of {found.count}"
    if right:
        figure += f", {'those ' if found.failed else ''}at {found.worst:.2g} of what is allowed"
    if not (found.count or ours):
        return skipped(id, TITLE, NO_ANCHORS), found.reused
    holds = found.count > 0 and not found.failed
    check = judged(id, TITLE, holds, figure, f"{found.count} of {found.count}", "; ".join(found.failed), found.anchor)
    words = f"probes of what is computed from other values than in the oracle: {', '.join(found.left)}"
    operation, missing = "" if holds else found.operation, words if found.left else ""
    return dataclasses.replace(check, operation=operation, missing=missing), found.reused


def _load(entry: Path) -> Probes | None:
    try:
        return Probes(**json.loads(entry.read_text()) | {"reused": True})
    except (OSError, ValueError, TypeError):
        return None


def _run(
    report: Report,
    pairs: list[tuple[Graph, Graph]],
    directory: Path,
    mutant: str,
    ours: bool,
    targets: Sequence[Target],
) -> Probes:
    from hloracle.localize.anatomy import anatomy_of
    from hloracle.localize.probes import probe
    from hloracle.localize.workbench import Workbench

    register(targets)
    # Of a fault only what it does to the config counts here: compilers are not what is probed.
    with planted(mutant):
        checkpoint = open_checkpoint(directory)
    config = checkpoint.config
    weights = weights_of([graph for graph, _ in pairs], config)
    bench = Workbench(make_backend(BACKEND, 1), checkpoint.load, weights)
    failed: list[str] = []
    left: list[str] = []
    count, worst, anchor, operation = 0, 0.0, "", ""
    for emitter, oracle in pairs:
        n, failures, share, others = probe(
            anatomy_of(emitter, config),
            anatomy_of(oracle, config),
            bench,
            report,
            locate=not failed,
            same_inputs=not ours,
        )
        count, worst = count + n, max(worst, share)
        left += [f"{other} of {emitter.name}" for other in others]
        for failure in failures:
            step = failure.found.step if failure.found else None
            at = f"{step.name} {step.value} at line {step.line} of {emitter.name}" if step else ""
            if not anchor:
                anchor, operation = failure.anchor, at
            words = f"{failure.anchor} of {emitter.name} with inputs times {failure.scale:g}"
            failed.append(f"{words}: {at}" if at else words)
    return Probes(count, worst, failed, anchor, operation, left)
