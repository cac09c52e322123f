"""One run: model, gate zero, graphs, truth, configurations, checks, verdict, record. The order is the chain of trust."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hloracle.backends.devices import Device
from hloracle.backends.iree import precompile
from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.checks.of_configurations import configuration_checks, truth_check
from hloracle.conformance.checks.of_graphs import fewer_ops, graph_checks
from hloracle.conformance.evidence import Evidence, Progress, Settings, backends_on
from hloracle.conformance.graphs.facts import Inspected
from hloracle.conformance.graphs.sources import emit_all, prepare, production, show_graphs
from hloracle.conformance.matrix import EMITTER, ORACLE, Configuration
from hloracle.conformance.questions import prompts as prompt_suite
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.record.record import record_of
from hloracle.conformance.runs.compiling import on_device, truth_and_modules
from hloracle.conformance.runs.configurations import Outcome, run_configuration
from hloracle.conformance.runs.gate_zero import gate_zero
from hloracle.conformance.runs.inside import AnchorOutcome, anchor_check, canary_check, run_anchored
from hloracle.conformance.runs.probes import run_probes
from hloracle.conformance.runs.returned import is_small
from hloracle.conformance.runs.speed import TOKENS as SPEED_TOKENS
from hloracle.conformance.runs.speed import measure
from hloracle.conformance.verdict.compared import compared
from hloracle.conformance.verdict.localization import TIMEOUT_SECONDS as LOCALIZE_SECONDS
from hloracle.conformance.verdict.localization import localize, plan
from hloracle.conformance.verdict.place import place
from hloracle.conformance.verdict.verdict import Verdict, decide
from hloracle.core.abi import Graph
from hloracle.core.cache import cache_root, digest, locked, write_file
from hloracle.core.child import ChildDied, run_in_child, side_by_side
from hloracle.core.environment import CELL_PACKAGES, MemoryWatch, versions
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.record import Record
from hloracle.mutants import planted
from hloracle.production.choice import tuned, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.anchor_truth import anchor_truth
from hloracle.reference.model.anchors import anchors
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config


def configurations_on(device: Device) -> tuple[Configuration, ...]:
    """The graph that ships comes first: what is judged is run before what it is judged by."""
    backends = backends_on(device)
    logits = (Configuration(source, backend) for backend in backends for source in ("emitter", "oracle"))
    return (Configuration("emitter", backends[0], "token"), *logits)


# What a small run begins with: XLA compiles in a tenth of the time that IREE takes, and often settles the verdict's class.
FIRST = (Configuration("emitter", "xla-cpu"), Configuration("oracle", "xla-cpu"))
# What counts operations notices whatever is done to a graph, so that a study of what else would must do without.
COUNTED = ("census", "op-kinds", "fewer-ops")
SPEED_SECONDS = 900
MOMENT = 20  # seconds in which a small model's configuration begins to answer
INTERPRETED = "iree-emulated"  # takes a second for what a processor does in a millisecond
WAIT = "wait until nothing runs beside it"


def run(settings: Settings, progress: Progress | None = None) -> Record:
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
            verdict = place(decide(settings.matrix, evidence.checks, [], {}), evidence.checks, None, [])
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
                if settings.spoiled:
                    emitted = [settings.spoiled(graph) for graph in emitted]
                evidence.graphs, lowered = prepare(checkpoint.config, settings, emitted, progress.report)
                stage["reused"] = lowered == 0
                stage["detail"] = f"{lowered} oracle graphs lowered"
            found = static_checks(evidence.graphs, checkpoint.config)
            evidence.checks += [
                c for c in found if not (settings.spoiled and c.source == EMITTER and c.kind in COUNTED)
            ]
            if not settings.small:
                probe(evidence, checkpoint, settings, progress)
            truth_and_modules(evidence, checkpoint, settings, progress)
            evidence.checks.append(truth_check(evidence.truths))
            if settings.small:
                _judge_until_settled(evidence, checkpoint, settings, progress)
            else:
                on_device(evidence, settings)
                for configuration in configurations_on(settings.device):
                    judge(configuration, evidence, checkpoint, settings, progress)
            if _only_the_token_is_wrong(evidence, settings.device):
                for backend in backends_on(settings.device)[1:]:
                    judge(Configuration("emitter", backend, "token"), evidence, checkpoint, settings, progress)
            _ask_the_others(evidence, checkpoint, settings, progress)
            look_inside(evidence, checkpoint, settings, progress)
        verdict = conclude(evidence, checkpoint, settings, progress)
        compare_speed(evidence, checkpoint, settings, verdict, progress)
        if not (settings.small or settings.lean or settings.unlocated):
            show_graphs(evidence, checkpoint.config, progress)
        return record_of(settings, checkpoint, evidence, verdict, progress, memory)


@contextmanager
def reporting_death(evidence: Evidence) -> Iterator[None]:
    """A process that dies where no configuration runs ends the gathering of evidence, not the record."""
    try:
        yield
    except ChildDied as error:
        evidence.checks.append(Question("process", "every process gives an answer").error(str(error)))


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
    """Gate zero on every backend; False stops the run."""
    with progress.stage("gate zero"):
        evidence.checks += side_by_side(gate_calls(settings, progress))
    return all(c.status == "passed" for c in evidence.checks)


def gate_calls(settings: Settings, progress: Progress) -> list[Callable[[], Check]]:
    return [partial(gate_zero, b, settings.threads, progress.report, settings.device) for b in settings.backends]


# ---- graphs


def static_checks(graphs: dict[str, Inspected], config: Config) -> list[Check]:
    """What is known of the graphs without running them."""
    checks = [check for source in ("emitter", "oracle") for check in graph_checks(source, graphs[source], config)]
    return [*checks, fewer_ops(graphs["emitter"], graphs["oracle"], config)]


def probe(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> None:
    """The judged graphs' pieces against the oracle's: decode, and prefill in the smallest bucket."""
    with progress.stage("probes") as stage:
        source = judged_source(evidence)
        pairs = [
            (mine, oracle)
            for phase in ("prefill", "decode")
            for mine in _of_phase(evidence.graphs[source], phase, source == "emitter")
            for oracle in _of_phase(evidence.graphs.get("oracle", []), phase)
            if phase == "decode" or mine.abi.bucket == oracle.abi.bucket
        ]
        check, stage["reused"] = run_probes(
            source, pairs, checkpoint, versions(CELL_PACKAGES), reuse=not settings.fresh, mutant=settings.mutant_at_work,
            targets=settings.targets, report=progress.report,
        )  # fmt: skip
        evidence.checks.append(check)


def _of_phase(graphs: Inspected, phase: str, production: bool = False) -> list[Graph]:
    """The graphs of a phase that parse: of prefills the smallest. production: of ours, those that pick the token."""
    found = [g for g, facts in graphs if not facts.error and g.abi.phase == phase]
    if production:
        found = [g for g in found if g.abi.head == "token"]
    return sorted(found, key=lambda g: g.abi.bucket if phase == "prefill" else 0)[:1]


def judged_source(evidence: Evidence) -> str:
    return "file" if "file" in evidence.graphs else "emitter"


# ---- configurations


def judge(
    configuration: Configuration, evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress,
    everywhere: bool = False,
) -> None:  # fmt: skip
    """Run a configuration and check what it answers, in place of what was known of it.

    Args:
      everywhere: ask it the streams, whichever configuration it is.
    """
    asked = (
        evidence.asked if everywhere or _streams(configuration, checkpoint.config) else evidence.asked.without_streams()
    )
    with progress.stage(configuration.id) as stage:
        outcome = _cell(configuration, asked, evidence, checkpoint, settings, progress)
        stage["reused"] = outcome.status == "reused"
    _note(outcome, asked, evidence)


def judge_together(
    configurations: Sequence[Configuration],
    evidence: Evidence,
    checkpoint: Checkpoint,
    settings: Settings,
    progress: Progress,
) -> None:
    """Cells of one source, everywhere; those of a small model side by side."""
    if not is_small(checkpoint.config):
        for configuration in configurations:
            judge(configuration, evidence, checkpoint, settings, progress, everywhere=True)
        return
    with progress.stage(" and ".join(configuration.id for configuration in configurations)):
        work = [partial(_cell, c, evidence.asked, evidence, checkpoint, settings, progress) for c in configurations]
        outcomes = side_by_side(work)
    for outcome in outcomes:
        _note(outcome, evidence.asked, evidence)


def _note(outcome: Outcome, asked: Asked, evidence: Evidence) -> None:
    """Its checks take the place of those of the same configuration, if it was asked before; all others stay, of whatever they are."""
    evidence.outcomes = [*(o for o in evidence.outcomes if o.configuration != outcome.configuration), outcome]
    found = configuration_checks(outcome, evidence.truths, asked.streams)
    others = [c for c in evidence.checks if c.configuration != outcome.configuration or c.kind == "anchors"]
    evidence.checks = [*others, *found]


def _streams(configuration: Configuration, config: Config) -> bool:
    """Whether a configuration is asked at every position: all are where that takes a second, else the emitter's on IREE.

    Where something shows there alone, the other configurations are asked too: see `_ask_the_others`.
    """
    if configuration.backend == INTERPRETED:
        return False
    return is_small(config) or (
        configuration.source == "emitter" and configuration.head == "logits" and configuration.backend != "xla-cpu"
    )


def _ask_the_others(
    evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress
) -> None:  # fmt: skip
    """What one configuration has wrong where no other one was asked, they are asked as well: graph or compiler, emitter or oracle."""
    asked = {o.configuration for o in evidence.outcomes if o.streams}
    silent = [
        o.configuration
        for o in evidence.outcomes
        if o.status != "failed" and not o.streams and o.configuration.head == "logits"
    ]
    if any(c.configuration in asked for c in evidence.checks if c.failed):
        for configuration in silent:
            judge(configuration, evidence, checkpoint, settings, progress, everywhere=True)


def _bad(checks: Iterable[Check]) -> set[Configuration]:
    """The configurations of which a check failed, or could not be made, so far."""
    return {c.configuration for c in checks if c.bad and c.configuration}


def _judge_until_settled(
    evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress
) -> None:  # fmt: skip
    """The checks and configurations of a small run, the quick ones first, as long as they may change the verdict's class."""
    configurations = (Configuration("emitter", settings.backends[0], "token"), *configurations_on(settings.device)[1:])
    left = [
        configuration
        for configuration in configurations
        if configuration not in FIRST and configuration.backend in settings.backends
    ]
    for configuration in FIRST:
        judge(configuration, evidence, checkpoint, settings, progress)
    if left and FIRST[1] in _bad(evidence.checks):  # nothing can be told of the emitter then
        judge(Configuration("oracle", "iree-cpu"), evidence, checkpoint, settings, progress)
    for configuration in (configuration for configuration in left if configuration.backend == "xla-cpu"):
        if not _settled(evidence, settings.device):
            judge(configuration, evidence, checkpoint, settings, progress)
    ran = {o.configuration for o in evidence.outcomes}
    # If no configuration fails, the probes decide the place.
    if not _bad(evidence.checks) & ran:
        probe(evidence, checkpoint, settings, progress)
    left = [configuration for configuration in left if configuration not in ran]
    if left and not _settled(evidence, settings.device):
        graph = production(evidence.graphs)
        with (
            progress.stage("compile to stream"),
            contextlib.suppress(ToolchainError),
        ):  # its configuration says why it does not
            precompile(graph, settings.device, with_stream=True)
        on_device(evidence, settings)
    for configuration in left:
        if not _settled(evidence, settings.device):
            judge(configuration, evidence, checkpoint, settings, progress)


def _settled(evidence: Evidence, device: Device) -> bool:
    """Whether what has not been looked at cannot change the verdict's class any more, unless it dies: see `decide`."""
    bad = _bad(evidence.checks)
    failed = [c for c in evidence.checks if c.failed]
    ran = {o.configuration for o in evidence.outcomes}
    judged, oracle = FIRST
    if oracle in bad:  # the reference's fault, or XLA's
        other = Configuration(ORACLE, "iree-cpu")
        return other in ran and (other in bad or Configuration(EMITTER, "iree-cpu") in ran)
    if not {*FIRST} <= ran:
        return False
    # The graph's fault, whatever IREE says; or else the compiler's; or, where that is right on the processor, the device's.
    on_device = (
        device.remote
        and Configuration(EMITTER, "iree-cpu") in ran
        and any((c.source, c.backend) == (EMITTER, device.backend) for c in bad)
    )
    # What XLA does not take has another class where IREE does not take it either.
    graphs_fail = any(c.about in ("writing", "probes") or c.configuration == judged for c in failed)
    return graphs_fail or Configuration(EMITTER, "iree-cpu") in bad or on_device


def _only_the_token_is_wrong(evidence: Evidence, device: Device) -> bool:
    """Then XLA has to run the production graph too, to tell its fault from the compiler's."""
    right = {o.configuration for o in evidence.outcomes} - _bad(evidence.checks)
    graphs = Configuration(EMITTER, device.backend)
    return graphs in right and dataclasses.replace(graphs, head="token") not in right


def _cell(
    configuration: Configuration,
    asked: Asked,
    evidence: Evidence,
    checkpoint: Checkpoint,
    settings: Settings,
    progress: Progress,
) -> Outcome:
    # What is judged always runs, but for its streams; what it is compared with is reused when nothing about it moved.
    reuse = not settings.fresh and configuration.source != "file"
    graphs = [
        g for g, facts in evidence.graphs[configuration.source] if g.abi.head == configuration.head and not facts.error
    ]
    if configuration.source != "file" and len(graphs) < 1 + len(settings.buckets):
        return Outcome(configuration, "failed", stage="compile", message="not all of its graphs parse")
    return run_configuration(
        configuration, graphs, checkpoint, asked, settings.threads, versions(CELL_PACKAGES), reuse=reuse,
        mutant=settings.mutant_at_work, targets=settings.targets, device=settings.device, report=progress.report,
        timeout=_time_left(evidence, settings), anew=configuration.head == "token",
    )  # fmt: skip


def _time_left(evidence: Evidence, settings: Settings) -> float:
    """Seconds for the next configuration. Once one has timed out, the others of a graph that does not end are not tried that long."""
    late = any(o.stage == "timeout" for o in evidence.outcomes)
    return max(settings.timeout / 10, min(settings.timeout, MOMENT)) if late else settings.timeout


# ---- inside


def look_inside(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> None:
    """Hold every anchor of both sources to the truth, and see that the canary is caught.

    Where the ends are wrong already, the configuration that is taken apart later shows its anchors. A canary needs a right graph:
    the production graph, or else the oracle's.
    """
    bad = [c for c in evidence.checks if c.bad]
    if (settings.unlocated or (settings.small and settings.mutant)) and bad:
        evidence.checks.append(canary_check(None, "the run has a fault already"))
        return
    if (
        not evidence.outcomes
        or evidence.asked.inside is None
        or any(c.source == ORACLE or c.about in ("reference", "harness") for c in bad)
    ):
        evidence.checks.append(canary_check(None, "no graph of this run is known to be right"))
        return
    prompt, sequence = evidence.asked.inside
    # `ask` had it computed with the rest.
    truth = anchor_truth(checkpoint, sequence.tokens, progress.report, sequence.prompt)
    source = judged_source(evidence)

    def look(configuration: Configuration, with_canary: bool = False) -> AnchorOutcome:
        graphs = [
            g for g, facts in evidence.graphs[configuration.source]
            if (g.abi.head == "logits" or source == "file") and not facts.error
            and (g.abi.phase == "decode" or g.abi.bucket == prompt.bucket)
        ]  # fmt: skip
        with progress.stage(f"{configuration.id}, anchors") as stage:
            outcome = run_anchored(
                configuration, graphs, checkpoint, prompt, truth, settings.threads, versions(CELL_PACKAGES),
                reuse=not settings.fresh and (source == "file" or not with_canary), mutant=settings.mutant_at_work,
                with_canary=with_canary, device=settings.device, targets=settings.targets, report=progress.report,
            )  # fmt: skip
            stage["reused"] = outcome.status == "reused"
        check = anchor_check(outcome)
        evidence.anchored = [*(o for o in evidence.anchored if o.configuration != configuration), outcome]
        evidence.checks = [*(c for c in evidence.checks if c.id != check.id), check]
        return outcome

    if bad:
        # The judged graph is wrong already, so the oracle's takes the canary.
        put_into = look(Configuration("oracle", "xla-cpu"), with_canary=True)
        evidence.checks.append(canary_check(put_into.canary, "it did not run"))
        return
    look(Configuration("oracle", "xla-cpu"))
    # To compile two more graphs takes IREE longest; of how it compiles them the configurations tell.
    quick = settings.lean or source == "file"
    backend = "xla-cpu" if quick and "xla-cpu" in settings.backends else settings.backends[0]
    head = next(g.abi.head for g, _ in evidence.graphs[source]) if source == "file" else "logits"
    put_into = look(Configuration(source, backend, head), with_canary=True)
    if evidence.checks[-1].status != "passed":
        # What only the anchors show has to be told apart too: graph or compiler, emitter or oracle.
        # A canary in a wrong graph is none.
        evidence.anchored = [dataclasses.replace(o, canary=None) for o in evidence.anchored]
        seen = {o.configuration for o in evidence.anchored}
        for configuration in (o.configuration for o in evidence.outcomes):
            if configuration.head == head and configuration not in seen and evidence.checks[-1].status != "skipped":
                look(configuration)
        put_into = look(Configuration("oracle", "xla-cpu"), with_canary=True)
    evidence.checks.append(canary_check(put_into.canary, "it did not run"))


def conclude(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> Verdict:
    """The verdict; for one that does not pass, after taking apart what is wrong."""
    abis = [g.abi for source, graphs in evidence.graphs.items() if source != "oracle" for g, _ in graphs]
    rests_on = compared(settings.matrix, evidence.outcomes, evidence.checks, evidence.asked, abis, evidence.anchored)
    verdict = decide(settings.matrix, evidence.checks, evidence.outcomes, evidence.truths, rests_on)
    wanted = not (verdict.passed or settings.unlocated)
    found = plan(settings.matrix, evidence.checks, evidence.outcomes, evidence.asked) if wanted else None
    if found is not None:
        graphs = {source: [g for g, f in some if not f.error] for source, some in evidence.graphs.items()}
        folder = settings.out / "reproducer" if settings.out else None
        with progress.stage("localization"):
            try:
                truth = anchor_truth(checkpoint, found.at.tokens, progress.report, max(found.at.length, 1))
                evidence.localization = run_in_child(
                    localize, found, graphs, checkpoint.directory, truth, settings.threads, folder,
                    settings.mutant_at_work, settings.small, settings.targets, settings.device, timeout=LOCALIZE_SECONDS, report=progress.report,
                ).value  # fmt: skip
            except (ChildDied, ToolchainError, InputError) as error:
                question = Question("localization", "what is wrong is taken apart")
                # Where the truth itself has no such value as the config says, that is the place.
                at = error.where if isinstance(error, InputError) and error.where in anchors(checkpoint.config) else ""
                evidence.checks.append(question.error(str(error), anchor=at))
    return place(verdict, evidence.checks, evidence.localization, evidence.outcomes)


# ---- speed


def compare_speed(
    evidence: Evidence, checkpoint: Checkpoint, settings: Settings, verdict: Verdict, progress: Progress
) -> None:  # fmt: skip
    """Time the production graph against its peers, unless something may be wrong with them: then it means nothing."""
    if not verdict.passed:
        evidence.speed_reason = "the run did not pass, so its speed means nothing"
        return
    if settings.small or settings.unlocated or not settings.rounds:
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
