"""The configurations of a run: which ones there are, which are asked at every position, and when a run may exit early."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial

from hloracle.backends.iree import COMPILE_SECONDS, precompile
from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.evidence import Run
from hloracle.conformance.graphs.sources import Emitter, production
from hloracle.conformance.looking import probe
from hloracle.conformance.matrix import ORACLE, Configuration
from hloracle.conformance.questions.doubt import in_doubt, measured_again
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.compiling import on_device
from hloracle.conformance.runs.configurations import Outcome, run_configuration
from hloracle.conformance.runs.returned import is_small
from hloracle.core.child import side_by_side
from hloracle.core.errors import ToolchainError

MOMENT = 20  # seconds in which a small model's configuration begins to answer


def configurations(run: Run) -> list[Configuration]:
    """Every source on every backend. The graphs that ship come first: what is judged is run before what it is judged by.

    A source that has graphs with logits and graphs that pick the token runs the latter on the first backend alone.
    """
    evidence, names = run.evidence, run.context.names
    found = [
        Configuration(source, names[0], "token")
        for source in evidence.judged if evidence.heads(source) == {"logits", "token"}
    ]  # fmt: skip
    for name in names:
        for source in (*evidence.judged, *([ORACLE] if asks_oracle(run, name) else [])):
            found.append(Configuration(source, name, evidence.compared_head(source)))
    return found


def asks_oracle(run: Run, backend: str) -> bool:
    """Whether the oracle's graphs run on a backend in any case.

    A quick run asks them on the quick backend alone, and elsewhere where a judged graph is wrong: they tell whose fault it is.
    """
    return not run.settings.quick or backend == run.context.matrix.quick


def judge_all(run: Run) -> None:
    """Run the configurations, and check what each answers; those that are needed to tell whose fault it is, too."""
    if run.settings.early_exit:
        _until_settled(run)
    elif is_small(run.model.config) and run.of_files:
        judge(run, *configurations(run), everywhere=True)
    else:
        for configuration in configurations(run):
            judge(run, configuration)
        ran = {o.configuration for o in run.evidence.outcomes}
        for backend in dict.fromkeys(c.backend for c in run.evidence.bad if c.configuration in ran):
            if not asks_oracle(run, backend):
                judge(run, Configuration(ORACLE, backend))
    for source in run.evidence.judged:
        if _only_the_token_is_wrong(run, source):
            for name in run.context.names[1:]:
                judge(run, Configuration(source, name, "token"))
    _ask_the_others(run)


def judge(run: Run, *these: Configuration, everywhere: bool = False) -> None:
    """Run configurations side by side, and check what each answers, in place of what was known of it.

    Args:
      everywhere: ask them the streams, whichever configurations they are.
    """
    evidence, whole = run.evidence, run.evidence.asked
    asked = {one: whole if everywhere or _streams(run, one) else whole.without_streams() for one in these}
    with run.context.progress.stage(" and ".join(one.id for one in these)) as stage:
        outcomes = side_by_side([partial(_outcome, run, *one) for one in asked.items()])
        stage["reused"] = all(outcome.status == "reused" for outcome in outcomes)
    for outcome in outcomes:
        one = outcome.configuration
        evidence.outcomes = [*(o for o in evidence.outcomes if o.configuration != one), outcome]
        others = [c for c in evidence.checks if c.configuration != one or c.kind == "anchors"]
        checks = configuration_checks(outcome, evidence.truths, asked[one].streams, evidence.batch)
        evidence.checks = [*others, *checks]
        if doubtful := in_doubt(outcome, [c for c in checks if c.bad], evidence.asked):
            with run.context.progress.stage("Hugging Face's noise, in more passes"):
                evidence.asked = measured_again(evidence.asked, doubtful, run.model, run.context.report)
            judge(run, one, everywhere=everywhere)


def _streams(run: Run, configuration: Configuration) -> bool:
    """Whether a configuration is asked at every position: all are where that takes a second, else the judged graphs with
    logits on the first backend of the processor's.

    Where something shows there alone, the other configurations are asked too: see `_ask_the_others`.
    """
    if run.context.matrix[configuration.backend].slow:
        return False
    if is_small(run.model.config):
        return True
    quick = run.context.matrix.quick
    only = len(run.context.names) == 1
    return not configuration.of_oracle and configuration.head == "logits" and (configuration.backend != quick or only)


def _ask_the_others(run: Run) -> None:
    """What one configuration has wrong where no other one was asked, they are asked as well: graph or compiler, source or oracle.

    They are asked the streams alone: what the prompts gave is known.
    """
    evidence = run.evidence
    asked = {o.configuration for o in evidence.outcomes if o.streams}
    silent = [o.configuration for o in evidence.outcomes if o.status != "failed" and not o.streams]
    if any(c.configuration in asked for c in evidence.checks if c.failed):
        for configuration in (c for c in silent if c.head == "logits"):
            judge(run, configuration, everywhere=True)


def _outcome(run: Run, configuration: Configuration, asked: Asked) -> Outcome:
    """What is judged always runs, but for its streams; what it is compared with is reused when nothing about it moved."""
    evidence, context = run.evidence, run.context
    graphs = [g for g in evidence.whole(configuration.source) if g.abi.head == configuration.head]
    inspected = [g for g, _ in evidence.graphs[configuration.source] if g.abi.head == configuration.head]
    if len(graphs) < len(inspected) or not graphs:
        return Outcome(configuration, "failed", stage="compile", message="not all of its graphs parse")
    source = next((s for s in run.sources if s.name == configuration.source), None)
    ours = source is None or isinstance(source, Emitter)
    context = dataclasses.replace(context, reuse=context.reuse and ours, timeout=_time_left(run))
    known = (
        o for o in evidence.outcomes if o.configuration == configuration and o.status != "failed" and not o.streams
    )
    so_far = next(known, None) if asked.streams else None
    anew = configuration.head == "token"
    return run_configuration(context, configuration, graphs, run.model, asked, anew=anew, so_far=so_far)


def _time_left(run: Run) -> float:
    """Seconds for the next configuration. Once one has timed out, the others of a graph that does not end are not tried that long."""
    timeout = run.context.timeout
    late = any(o.stage == "timeout" for o in run.evidence.outcomes)
    return max(timeout / 10, min(timeout, MOMENT)) if late else timeout


# ---- exit early


def _first(run: Run) -> tuple[Configuration, Configuration]:
    """What a run that may exit early begins with: the backend that compiles in a moment often settles the verdict's class."""
    quick, source = run.context.matrix.quick, run.evidence.judged[0]
    return Configuration(source, quick, run.evidence.compared_head(source)), Configuration(ORACLE, quick)


def _until_settled(run: Run) -> None:
    """The configurations and probes of a run that may exit early, as long as they may change the verdict's class."""
    evidence, context = run.evidence, run.context
    quick = context.matrix.quick
    judged, oracle = _first(run)
    left = [c for c in configurations(run) if c not in (judged, oracle)]
    judge(run, judged)
    judge(run, oracle)
    bad = {c.configuration for c in evidence.bad}
    if oracle in bad:  # nothing can be told of the judged graphs then
        for other in [c for c in context.matrix.elsewhere(oracle) if c in left][:1]:
            judge(run, other)
    for one in (c for c in left if c.backend == quick):
        if not settled(run):
            judge(run, one)
    ran = {o.configuration for o in evidence.outcomes}
    # If no configuration fails, the probes decide the place.
    if not {c.configuration for c in evidence.bad} & ran:
        probe(run)
    left = [c for c in left if c not in ran]
    if left and not settled(run):
        graph = production(evidence.whole(judged.source))
        if graph is not None:
            # Where it does not compile, its configuration says why.
            with context.progress.stage("compile to stream"), contextlib.suppress(ToolchainError):
                precompile(graph, context.device, True, context.at_most(COMPILE_SECONDS))
        on_device(run)
    for one in left:
        if not settled(run):
            judge(run, one)


def settled(run: Run) -> bool:
    """Whether what has not been looked at cannot change the verdict's class any more, unless it dies: see `decide`.

    Such a run takes the quick backend's word for the source: if another one had the graph right, the fault would be the
    quick one's.
    """
    evidence, matrix = run.evidence, run.context.matrix
    bad = {c.configuration for c in evidence.bad}
    ran = {o.configuration for o in evidence.outcomes}
    judged, oracle = _first(run)
    processors = [c for c in matrix.elsewhere(judged) if not matrix.on_device(c)]
    if oracle in bad:  # the reference's fault, or the quick compiler's
        others = [c for c in matrix.elsewhere(oracle) if c in ran]
        return bool(others) and (any(c in bad for c in others) or any(c in ran for c in processors))
    if not {judged, oracle} <= ran:
        return False
    if any((c.about in ("writing", "probes") or c.configuration == judged) and c.failed for c in evidence.checks):
        return True  # the graph's fault, whatever another compiler says
    # Or else a compiler's; or, where that is right on the processor, the device's.
    # What the quick compiler does not take has another class where the others do not take it either.
    devices = [c for c in bad if c and c.source == judged.source and matrix.on_device(c)]
    return any(c in bad for c in processors) or bool(devices and any(c in ran for c in processors))


def _only_the_token_is_wrong(run: Run, source: str) -> bool:
    """Then the other backends have to run the graph that picks the token too, to tell its fault from the compiler's."""
    right = {o.configuration for o in run.evidence.outcomes} - {c.configuration for c in run.evidence.bad}
    graphs = Configuration(source, run.context.names[0])
    token = dataclasses.replace(graphs, head="token")
    return graphs in right and token not in right and any(o.configuration == token for o in run.evidence.outcomes)
