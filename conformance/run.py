"""One run: model, gate zero, graphs, truth, cells, checks, verdict, record. The order is the chain of trust."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hloracle.backends.devices import Device
from hloracle.backends.iree import precompile
from hloracle.conformance import prompts as prompt_suite
from hloracle.conformance.anchored import STEPS, AnchorOutcome, anchor_check, canary_check, run_anchored
from hloracle.conformance.cells import Cell, CellOutcome, run_cell
from hloracle.conformance.checks import Check, cell_checks, fewer_ops, graph_checks, truth_check
from hloracle.conformance.choice import tuned, untuned
from hloracle.conformance.environment import CELL_PACKAGES, MemoryWatch, versions
from hloracle.conformance.evidence import Evidence, Inspected, Progress, Settings, backends_on
from hloracle.conformance.gate_zero import gate_zero
from hloracle.conformance.localization import TIMEOUT_SECONDS as LOCALIZE_SECONDS
from hloracle.conformance.localization import localize, plan, sequence
from hloracle.conformance.modules import on_device, truth_and_modules
from hloracle.conformance.probed import run_probes
from hloracle.conformance.record import record_of
from hloracle.conformance.sources import emit_all, prepare, production, show_graphs
from hloracle.conformance.speed import TOKENS as SPEED_TOKENS
from hloracle.conformance.speed import measure
from hloracle.conformance.verdict import Verdict, decide, place
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.store import cache_root, digest, locked, write_file
from hloracle.mutants import planted
from hloracle.reference.anchor_truth import anchor_truth
from hloracle.reference.anchors import anchors
from hloracle.reference.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.config import Config
from hloracle.reference.fixtures import resolve


def cells_on(device: Device) -> tuple[Cell, ...]:
    """The graph that ships comes first: what is judged is run before what it is judged by."""
    backends = backends_on(device)
    logits = (Cell(source, backend) for backend in backends for source in ("emitter", "oracle"))
    return (Cell("emitter", backends[0], "token"), *logits)


# What a small run begins with: XLA compiles in a tenth of the time that IREE takes, and often settles the verdict's class.
FIRST = (Cell("emitter", "xla-cpu"), Cell("oracle", "xla-cpu"))
SPEED_SECONDS = 900
WAIT = "wait until nothing runs beside it"


def run(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """The record of a whole run. Raises InputError when it cannot start; any later failure is in the record."""
    settings.validate()
    settings.validate_buckets()
    progress = progress or Progress()
    evidence = Evidence()
    with MemoryWatch(lambda: progress.current) as memory:
        with progress.stage("model"):
            directory = resolve(settings.model, progress.report, settings.precision)
            with planted(settings.mutant):
                checkpoint = open_checkpoint(directory)
            refuse_non_finite(checkpoint)
            choose(evidence, settings, checkpoint)
            settings = dataclasses.replace(settings, device=evidence.choice.opened(settings.device))
        if not gates(evidence, settings, progress):
            verdict = place(decide(evidence.checks, [], {}), evidence.checks, None, [])
            return record_of(settings, checkpoint, evidence, verdict, progress, memory)
        with reporting_death(evidence):
            with progress.stage("prompts"):
                evidence.prompts = prompt_suite.suite(
                    directory, checkpoint.config, settings.capacity, settings.tokens, progress.report,
                    only_fitting=settings.small or settings.lean, buckets=settings.buckets,
                )  # fmt: skip
            with progress.stage("graphs") as stage:
                with planted(settings.mutant):
                    emitted = emit_all(checkpoint, settings, evidence.choice)
                evidence.graphs, lowered = prepare(checkpoint.config, settings, emitted, progress.report)
                stage["reused"] = lowered == 0
                stage["detail"] = f"{lowered} oracle graphs lowered"
            evidence.checks += static_checks(evidence.graphs, checkpoint.config)
            if not settings.small:
                _probe(evidence, checkpoint, settings, progress)
            truth_and_modules(evidence, checkpoint, settings, progress)
            evidence.checks.append(truth_check(evidence.truths))
            if settings.small:
                _judge_until_settled(evidence, checkpoint, settings, progress)
            else:
                on_device(evidence, settings)
                for cell in cells_on(settings.device):
                    _judge(cell, evidence, checkpoint, settings, progress)
            if _only_the_token_is_wrong(evidence, settings.device):
                for backend in backends_on(settings.device)[1:]:
                    _judge(Cell("emitter", backend, "token"), evidence, checkpoint, settings, progress)
            look_inside(evidence, checkpoint, settings, progress)
        verdict = conclude(evidence, checkpoint, settings, progress)
        compare_speed(evidence, checkpoint, settings, verdict, progress)
        if not (settings.small or settings.lean):
            show_graphs(evidence, checkpoint.config, progress)
        return record_of(settings, checkpoint, evidence, verdict, progress, memory)


@contextmanager
def reporting_death(evidence: Evidence) -> Iterator[None]:
    """A process that dies where no cell runs ends the gathering of evidence, not the record."""
    try:
        yield
    except ChildDied as error:
        evidence.checks.append(Check("harness.process", "every process gives an answer", "error", "", "", str(error)))


def refuse_non_finite(checkpoint: Checkpoint) -> None:
    """Raises InputError that names a weight which is not finite, or not what it says; once for each content."""
    entry = cache_root() / "finite" / digest(checkpoint.digest, checkpoint.precision)
    if not entry.is_file():
        checkpoint.check()
        write_file(entry, "")


def choose(evidence: Evidence, settings: Settings, checkpoint: Checkpoint) -> None:
    """How the production graphs are written and compiled."""
    if settings.choice:
        evidence.choice, evidence.chosen = settings.choice, "asked"
        return
    evidence.choice = untuned(device=settings.device)
    if not (settings.small or settings.lean):
        found = tuned(checkpoint, settings.precision, settings.threads, settings.device)
        evidence.ignored = found.ignored
        if found.choice:
            evidence.choice, evidence.chosen = found.choice, "tuned"


def gates(evidence: Evidence, settings: Settings, progress: Progress) -> bool:
    """Gate zero on each backend; False stops the run."""
    for backend in settings.backends:
        with progress.stage(f"gate zero, {backend}"):
            evidence.checks.append(gate_zero(backend, settings.threads, progress.report, settings.device))
    return all(c.status == "passed" for c in evidence.checks)


# ---- graphs


def static_checks(graphs: dict[str, Inspected], config: Config) -> list[Check]:
    """What is known of the graphs without running them."""
    checks = [check for source in ("emitter", "oracle") for check in graph_checks(source, graphs[source], config)]
    return [*checks, fewer_ops(graphs["emitter"], graphs["oracle"], config)]


def _probe(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> None:
    with progress.stage("probes") as stage:
        check, stage["reused"] = probes(evidence, checkpoint, settings, progress.report)
        evidence.checks.append(check)


def probes(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, report: Report) -> tuple[Check, bool]:
    """The production graphs' pieces against the oracle's: decode, and prefill in the smallest bucket."""
    bucket = settings.buckets[0]

    def pick(source: str, phase: str, head: str) -> list[Graph]:
        return [
            g for g, f in evidence.graphs[source]
            if not f.error and (g.abi.phase, g.abi.head) == (phase, head) and (phase == "decode" or g.abi.bucket == bucket)
        ]  # fmt: skip

    pairs = [
        pair
        for phase in ("prefill", "decode")
        for pair in zip(pick("emitter", phase, "token"), pick("oracle", phase, "logits"), strict=False)
    ]
    return run_probes(
        pairs, checkpoint, versions(CELL_PACKAGES), reuse=not settings.fresh, mutant=settings.mutant_at_work,
        report=report,
    )  # fmt: skip


# ---- cells


def _judge(
    cell: Cell, evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress
) -> None:  # fmt: skip
    outcome = _cell(cell, evidence, checkpoint, settings, progress)
    evidence.outcomes.append(outcome)
    evidence.checks += cell_checks(outcome, evidence.truths, _streamed(cell, evidence, checkpoint.config))


def _streamed(cell: Cell, evidence: Evidence, config: Config) -> list[str]:
    """The prompts that a cell also streams through decode: the emitter's on IREE does.

    Beyond RoPE's turning point a prompt that is given at once is turned by other angles than token by token.
    """
    if cell.source != "emitter" or cell.head != "logits" or cell.backend == "xla-cpu":
        return []
    longest = config.turning_point
    return [p.id for p in evidence.prompts if longest is None or len(p.token_ids) <= longest]


def _bad(checks: Iterable[Check]) -> set[str]:
    """What failed so far, without the last part of its name: for a cell's checks, the cell."""
    return {c.id.rpartition(".")[0] for c in checks if c.status in ("failed", "error")}


def _judge_until_settled(
    evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress
) -> None:  # fmt: skip
    """The checks and cells of a small run, the quick ones first, as long as they may change the verdict's class."""
    cells = cells_on(settings.device)
    left = [cell for cell in cells if cell not in FIRST and cell.backend in settings.backends]
    for cell in FIRST:
        _judge(cell, evidence, checkpoint, settings, progress)
    if left and "oracle/xla-cpu" in _bad(evidence.checks):  # nothing can be told of the emitter then
        _judge(Cell("oracle", "iree-cpu"), evidence, checkpoint, settings, progress)
    if not _bad(evidence.checks) & {cell.id for cell in FIRST}:  # what no cell shows has its place from them alone
        _probe(evidence, checkpoint, settings, progress)
    if left and not _settled(evidence, settings.device):
        graph = production(evidence.graphs)
        with progress.stage("compile to stream"), contextlib.suppress(ToolchainError):  # its cell says why it does not
            precompile(graph, settings.device, with_stream=True)
        on_device(evidence, settings)
    for cell in left:
        if not _settled(evidence, settings.device):
            _judge(cell, evidence, checkpoint, settings, progress)


def _settled(evidence: Evidence, device: Device) -> bool:
    """Whether what has not been looked at cannot change the verdict's class any more, unless it dies: see `decide`.

    Only IREE streams, so a prefill that is unlike streaming may be the compiler's fault or the graph's: it settles nothing.
    """
    bad = _bad(c for c in evidence.checks if not c.id.endswith(".prefill-equals-streaming"))
    failed = {c.id.partition(".")[0] for c in evidence.checks if c.status == "failed"}
    ran = {o.cell.id for o in evidence.outcomes}
    if "oracle/xla-cpu" in bad:  # the reference's fault, or XLA's
        return "oracle/iree-cpu" in ran
    if not {cell.id for cell in FIRST} <= ran:
        return False
    # The graph's fault, whatever IREE says; or else the compiler's; or, where that is right on the processor, the device's.
    known = bad & {"emitter/xla-cpu", "emitter/iree-cpu"}
    on_device = (
        device.remote and "emitter/iree-cpu" in ran and any(id.startswith(f"emitter/{device.backend}") for id in bad)
    )
    return bool(failed & {"oracle", "emitter"}) or bool(known) or on_device


def _only_the_token_is_wrong(evidence: Evidence, device: Device) -> bool:
    """Then XLA has to run the production graph too, to tell its fault from the compiler's."""
    right = {o.cell.id for o in evidence.outcomes} - _bad(evidence.checks)
    return f"emitter/{device.backend}" in right and f"emitter/{device.backend}/token" not in right


def _cell(
    cell: Cell, evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress
) -> CellOutcome:
    # The production graph always runs; what it is compared with is reused when nothing about it moved.
    reuse = not settings.fresh and cell.head != "token"
    graphs = [g for g, facts in evidence.graphs[cell.source] if g.abi.head == cell.head and not facts.error]
    if len(graphs) < 1 + len(settings.buckets):
        return CellOutcome(cell, "failed", stage="compile", message="not all of its graphs parse")
    with progress.stage(cell.id) as stage:
        outcome = run_cell(
            cell, graphs, checkpoint, evidence.prompts, evidence.truths, settings.threads, versions(CELL_PACKAGES),
            reuse=reuse, streamed=_streamed(cell, evidence, checkpoint.config), mutant=settings.mutant_at_work,
            device=settings.device, report=progress.report,
        )  # fmt: skip
        stage["reused"] = outcome.status == "reused"
    return outcome


# ---- inside


def look_inside(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> None:
    """Hold every anchor of both sources to the truth, and see that the canary is caught.

    Where the ends are wrong already, the cell that is taken apart later shows its anchors. A canary needs a right graph:
    the production graph, or else the oracle's.
    """
    bad = [c.id for c in evidence.checks if c.status in ("failed", "error")]
    if settings.small and settings.mutant and bad:
        evidence.checks.append(canary_check(None, "the run has a fault put in on purpose already"))
        return
    if not evidence.outcomes or any(id.startswith(("oracle", "truth", "harness")) for id in bad):
        evidence.checks.append(canary_check(None, "no graph of this run is known to be right"))
        return
    longer = [p for p in evidence.prompts if len(p.token_ids) > 1]
    prompt = (longer or evidence.prompts)[0]
    # The last token is nobody's input: it may lie beyond the cache.
    tokens = [*prompt.token_ids, *evidence.truths[prompt.id].tokens[:-1][:STEPS]]
    with progress.stage("truth at anchors") as stage:
        truth = anchor_truth(checkpoint, tokens, progress.report, len(prompt.token_ids))
        stage["reused"] = truth.reused

    def look(cell: Cell, with_canary: bool = False) -> AnchorOutcome:
        graphs = [
            g for g, _ in evidence.graphs[cell.source]
            if g.abi.head == "logits" and (g.abi.phase == "decode" or g.abi.bucket == prompt.bucket)
        ]  # fmt: skip
        with progress.stage(f"{cell.id}, anchors") as stage:
            outcome = run_anchored(
                cell, graphs, checkpoint, prompt, truth, settings.threads, versions(CELL_PACKAGES),
                reuse=not settings.fresh and not with_canary, mutant=settings.mutant_at_work,
                with_canary=with_canary, device=settings.device, report=progress.report,
            )  # fmt: skip
            stage["reused"] = outcome.status == "reused"
        check = anchor_check(outcome)
        evidence.anchored = [*(o for o in evidence.anchored if o.cell != cell), outcome]
        evidence.checks = [*(c for c in evidence.checks if c.id != check.id), check]
        return outcome

    if bad:
        # The production graph is wrong already, so the oracle's takes the canary.
        put_into = look(Cell("oracle", "xla-cpu"), with_canary=True)
        evidence.checks.append(canary_check(put_into.canary, "it did not run"))
        return
    look(Cell("oracle", "xla-cpu"))
    # To compile two more graphs takes IREE longest; of how it compiles them the cells tell.
    put_into = look(Cell("emitter", "xla-cpu" if settings.lean else settings.backends[0]), with_canary=True)
    if evidence.checks[-1].status != "passed":
        # What only the anchors show has to be told apart too: graph or compiler, emitter or oracle.
        # A canary in a wrong graph is none.
        evidence.anchored = [dataclasses.replace(o, canary=None) for o in evidence.anchored]
        seen = {o.cell for o in evidence.anchored}
        for cell in cells_on(settings.device):
            if cell.head == "logits" and cell not in seen:
                look(cell)
        put_into = look(Cell("oracle", "xla-cpu"), with_canary=True)
    evidence.checks.append(canary_check(put_into.canary, "it did not run"))


def conclude(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> Verdict:
    """The verdict; for one that does not pass, after taking apart what is wrong."""
    verdict = decide(evidence.checks, evidence.outcomes, evidence.truths)
    found = None if verdict.passed else plan(evidence.checks, evidence.outcomes, evidence.prompts, evidence.truths)
    if found is not None:
        graphs = {source: [g for g, f in some if not f.error] for source, some in evidence.graphs.items()}
        folder = settings.out / "reproducer" if settings.out else None
        with progress.stage("localization"):
            try:
                tokens = sequence(found, evidence.truths[found.prompt.id])
                truth = anchor_truth(checkpoint, tokens, progress.report, len(found.prompt.token_ids))
                evidence.localization = run_in_child(
                    localize, found, graphs, checkpoint.directory, truth, settings.threads, folder,
                    settings.mutant_at_work, settings.small, settings.targets, settings.device, timeout=LOCALIZE_SECONDS, report=progress.report,
                ).value  # fmt: skip
            except (ChildDied, ToolchainError, InputError) as error:
                title = "what is wrong is taken apart"
                # Where the truth itself has no such value as the config says, that is the place.
                at = error.where if isinstance(error, InputError) and error.where in anchors(checkpoint.config) else ""
                evidence.checks.append(Check("harness.localization", title, "error", "", "", str(error), at))
    return place(verdict, evidence.checks, evidence.localization, evidence.outcomes)


# ---- speed


def compare_speed(
    evidence: Evidence, checkpoint: Checkpoint, settings: Settings, verdict: Verdict, progress: Progress
) -> None:  # fmt: skip
    """Time the production graph against its peers, unless something may be wrong with them: then it means nothing."""
    if not verdict.passed:
        evidence.speed_reason = "the run did not pass, so its speed means nothing"
        return
    if settings.small or not settings.rounds:
        evidence.speed_reason = "it was left out"
        return
    oracle = next(g for g, _ in evidence.graphs["oracle"] if g.abi.phase == "decode")
    if settings.busy:
        with progress.stage(WAIT), locked(settings.busy):
            pass
    with progress.stage("speed"):
        try:
            evidence.speed = run_in_child(
                measure, checkpoint.directory, production(evidence.graphs), oracle, SPEED_TOKENS, settings.rounds,
                settings.threads, settings.device, timeout=SPEED_SECONDS, report=progress.report,
            ).value  # fmt: skip
        except (ChildDied, ToolchainError) as error:
            evidence.speed_reason = str(error)
