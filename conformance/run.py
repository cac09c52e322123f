"""One run, from a model to its record. The order is the chain of trust.

model -> gate zero -> graphs of each source and of the oracle -> checks of what is written -> reference -> configurations ->
anchors, canary -> verdict -> what is wrong, taken apart -> record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hloracle.conformance.checks.census import NOT_PINNED, pinned
from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.checks.of_configurations import truth_check
from hloracle.conformance.checks.of_graphs import fewer_ops, graph_checks
from hloracle.conformance.checks.of_rules import refuse_misfits
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs.facts import Inspected, inspect
from hloracle.conformance.graphs.files import refusal
from hloracle.conformance.graphs.shown import Shown, chosen_graphs, read_graphs
from hloracle.conformance.graphs.sources import (
    Emitter,
    Files,
    Request,
    Source,
    graphs_of,
    oracle_of,
    production,
    read_foreign,
)
from hloracle.conformance.judging import judge_all
from hloracle.conformance.looking import ask_interpreter, look_at_contract, look_inside, name_anchors, probe
from hloracle.conformance.matrix import ORACLE, Configuration, Matrix
from hloracle.conformance.questions import prompts as prompt_suite
from hloracle.conformance.questions.prompts import Prompt, Reach
from hloracle.conformance.record.record import record_of
from hloracle.conformance.runs.compiling import elsewhere, on_device, reference, truth_and_modules
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.gate_zero import gate_zero
from hloracle.conformance.runs.speed import measure
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.agreement import cells
from hloracle.conformance.verdict.compared import compared
from hloracle.conformance.verdict.localization import PAST, How, Localization, localize, plan
from hloracle.conformance.verdict.localization import TIMEOUT_SECONDS as LOCALIZE_SECONDS
from hloracle.conformance.verdict.place import place
from hloracle.conformance.verdict.repair import proven
from hloracle.conformance.verdict.verdict import Verdict, decide
from hloracle.core.abi import Graph
from hloracle.core.cache import noting
from hloracle.core.child import ChildDied, side_by_side
from hloracle.core.environment import MemoryWatch
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.files import locked
from hloracle.core.record import Record
from hloracle.production.choice import tuned, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.anchor_truth import anchor_truth
from hloracle.reference.model.anchors import anchors
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import BUCKETS, refuse_beyond_positions, refuse_without_rings

PREPARE_SECONDS = 900
SPEED_SECONDS = 900
SOONER = 10  # seconds that another backend than the quick one has to save where a repair is proven
WAIT = "wait until nothing runs beside it"


def run(settings: Settings, context: Context | None = None, sources: Sequence[Source] = (Emitter(),)) -> Record:
    """The record of a whole run. Raises InputError when it cannot start; any later failure is in the record."""
    context = context or Context()
    if not all(isinstance(source, Files) for source in sources):  # which say themselves what they can be asked
        settings.validate()
    progress = context.progress
    with noting() as damaged, MemoryWatch(lambda: progress.current) as memory:
        with progress.stage("model"):
            directory = resolve(settings.model, progress.report, settings.precision, settings.as_, settings.compute)
            with context.installed():
                model = dataclasses.replace(open_checkpoint(directory), kv=settings.kv)
            run = Run(settings, context, tuple(sources), model)
            refuse_non_finite(run)
            choose(run)
            run.sources = tuple(_read_whole(run, source) for source in run.sources)
            with context.installed():
                graphs = {source.name: _graphs(run, source) for source in run.sources}
                others = elsewhere(run)
        if gates(run, graphs):
            try:
                _judge(run, others)
            except ChildDied as error:
                # Where no configuration runs, a process that dies ends the gathering of evidence, not the record.
                question = Question("process", "every process gives an answer")
                run.evidence.checks.append(question.error(str(error)))
        verdict = conclude(run)
        compare_speed(run, verdict)
        show(run)
        return record_of(run, verdict, memory, damaged)


def _judge(run: Run, others: Sequence[Any]) -> None:
    evidence, settings, context = run.evidence, run.settings, run.context
    evidence.checks += static_checks(run)
    if any(facts.beyond for source in evidence.judged for _, facts in evidence.graphs[source]):
        return  # what no backend here runs is not tried
    look_at_contract(run)
    broken = {c.kind for c in evidence.checks if c.about == "contract" and c.failed}
    if broken and (settings.verdict_only or "state-returned" in broken):
        return  # it needs no reference to be wrong; what loses its state is wrong nowhere else
    with context.progress.stage("prompts"):
        evidence.prompts = prompts(run)
    if settings.early_exit:
        reference(run)
        evidence.checks.append(check_truths(evidence))
    else:
        if not run.of_files:
            probe(run)
        truth_and_modules(run, others)
        evidence.checks.append(check_truths(evidence))
        on_device(run)
    judge_all(run)
    name_anchors(run)
    if run.of_files and not settings.early_exit:
        probe(run)
    look_inside(run)
    ask_interpreter(run)


def check_truths(evidence: Evidence) -> Check:
    """What is asked of the reference itself."""
    fed = {p.id: len(p.token_ids) + len(evidence.truths[p.id].tokens) for p in evidence.prompts}
    return truth_check(evidence.truths, fed)


def refuse_non_finite(run: Run) -> None:
    """Raises InputError that names a weight which is not finite, or not what it says; once for each content."""
    entry = run.context.entry("finite", bool, [run.model.digest, run.model.precision], changed_by=())
    if not dataclasses.replace(entry, reads=True).load():
        run.model.check()
        entry.save(True)


def choose(run: Run) -> None:
    """How the bundled emitter writes the production graphs, and how IREE compiles them; and drives a device."""
    settings, evidence, device = run.settings, run.evidence, run.context.device
    emitter = next((s for s in run.sources if isinstance(s, Emitter)), None)
    if settings.choice:
        evidence.choice, evidence.chosen = settings.choice, "asked"
    else:
        evidence.choice = untuned(
            device=device, batch=settings.batch, precision=settings.precision, compute=settings.compute
        )
        whole = settings.batch == 1 and run.model.held_to == "f32" and not settings.ring
        if emitter and whole and not (settings.early_exit or settings.quick):
            found = tuned(run.model, settings.precision, run.context.threads, device)
            evidence.ignored = found.ignored
            if found.choice:
                evidence.choice, evidence.chosen = found.choice, "tuned"
    run.context = run.context.on(evidence.choice.opened(device))
    run.sources = tuple(
        dataclasses.replace(s, choice=evidence.choice) if isinstance(s, Emitter) and s.choice is None else s
        for s in run.sources
    )


# ---- graphs


def _read_whole(run: Run, source: Source) -> Source:
    """A source of somebody else's graphs with those read; any other as it is. Raises InputError for what cannot be read."""
    if not isinstance(source, Files) or source.emitter is None:
        return source
    try:
        found: Source = run.context.child(read_foreign, source, run.model, timeout=PREPARE_SECONDS).value
    except ChildDied as died:
        raise _crashed(died, map(str, source.paths)) from None
    return found


def _graphs(run: Run, source: Source) -> list[Graph]:
    settings = run.settings
    request = Request(
        run.model, "decode", "logits", settings.capacity, 0, settings.precision, run.context.device, settings.batch,
        settings.ring,
    )  # fmt: skip
    if not isinstance(source, Files):
        refuse_beyond_positions(run.model.config, settings.capacity)
        if settings.ring:
            refuse_without_rings(run.model.config, settings.capacity)
    graphs = graphs_of(source, request, settings.prompt, settings.buckets, ["logits", "token"])
    slots = graphs[0].abi.capacity
    if isinstance(source, Files) and not 0 < settings.tokens <= slots:
        what = f"is {settings.tokens}, and the graph's cache has {slots} slots"
        raise InputError(what, "--tokens", "ask for that many")
    if settings.project and not isinstance(source, Emitter):
        refuse_misfits(settings.project, graphs, run.model.config)
    return graphs


def gates(run: Run, graphs: dict[str, list[Graph]]) -> bool:
    """Gate zero on every backend, and beside it all graphs read and the oracle's lowered; False stops the run.

    A backend that does not pass is left out of what follows, and the others go on.
    """
    context, evidence = run.context, run.evidence
    with context.progress.stage("graphs and gate zero") as stage:
        reading = partial(_read, run, graphs)
        work: list[Callable[[], Any]] = [reading, *(partial(gate_zero, context, name) for name in context.names)]
        (evidence.graphs, evidence.shown, lowered), *found = side_by_side(work)
        evidence.checks += [gate.check for gate in found]
        evidence.gates = list(zip(context.backends, found, strict=True))
        stage["reused"] = lowered == 0
        stage["detail"] = f"{lowered} oracle graphs lowered"
        _all_called(run)
    passing = tuple(backend for backend, gate in evidence.gates if gate.check.status == "passed")
    run.context = dataclasses.replace(context, backends=passing or context.backends)
    return bool(passing)


def _read(run: Run, graphs: dict[str, list[Graph]]) -> tuple[dict[str, Inspected], Shown, int]:
    """The graphs of all sources with the facts about them; and what a reader is shown of those from files."""
    places = {s.name: s.paths if isinstance(s, Files) else () for s in run.sources if not isinstance(s, Emitter)}
    show_files = run.of_files and not run.settings.early_exit
    try:
        found = run.context.child(
            _inspect, graphs, places, run.model.config, show_files, timeout=PREPARE_SECONDS
        )  # fmt: skip
    except ChildDied as died:
        paths = [str(path) for name, some in places.items() for path in some or [f"a graph of source {name}"]]
        raise _crashed(died, paths) from None
    answer: tuple[dict[str, Inspected], Shown, int] = found.value
    return answer


def _crashed(died: ChildDied, paths: Iterable[str]) -> Exception:
    """That MLIR's parser crashes on a graph; or what else became of the process that read it."""
    where = ", ".join(paths)
    if where and died.cause == "killed":
        return InputError(
            f"was not read to its end ({died})", where, "free some memory if that is short, and run again"
        )
    if died.cause != "crash" or not where:
        return died
    return InputError(
        "MLIR's parser crashes on it, or does not end",
        where,
        "look whether it is damaged, nested too deep, or too large",
    )


def _inspect(
    context: Context, graphs: dict[str, list[Graph]], places: dict[str, Sequence[Path]], config: Any, show_files: bool
) -> tuple[dict[str, Inspected], Shown, int]:
    context.report("parsing and walking the graphs")
    allowed = [target.name for target in context.targets]
    found: dict[str, Inspected] = {}
    for source, some in graphs.items():
        for i, graph in enumerate(some):
            where = places[source][i] if places.get(source) else f"source {source}, {graph.name}"
            if source in places and (wrong := refusal(graph, where, of_file=bool(places[source]))):
                raise wrong
        found[source] = [(graph, inspect(graph, allowed)) for graph in some]
    runnable = [g for some in found.values() for g, facts in some if not facts.beyond]
    found[ORACLE], lowered = oracle_of(context, runnable, config)
    readable = [(s, g) for s, some in found.items() for g, facts in some if not facts.beyond] if show_files else []
    return found, read_graphs(context, readable), lowered


def _all_called(run: Run) -> None:
    """Raises InputError for a target that is allowed for nothing: what it computes would seem to be checked."""
    facts_of = [facts for source in run.evidence.judged for _, facts in run.evidence.graphs[source]]
    called = {target for facts in facts_of for target, calls in facts.allowed_calls.items() if calls}
    idle = [target for facts in facts_of for target in facts.allowed_calls if target not in called]
    if idle and not any(facts.custom_calls for facts in facts_of):
        raise InputError(
            "is not called by the graph", f"--allow-custom-call {idle[0]}", "leave it out, or judge the graph that calls it"
        )  # fmt: skip


def static_checks(run: Run) -> list[Check]:
    """What is known of the graphs without running them."""
    graphs, config = run.evidence.graphs, run.model.config
    found: list[Check] = []
    for source in run.sources:
        project = None if isinstance(source, Emitter) else run.settings.project
        stated = project.rules if project else ()
        found += graph_checks(source.name, graphs[source.name], config, source.counts_as, stated)
        if source.counts_as:
            found.append(fewer_ops(graphs[source.name], graphs[ORACLE], config, source.name))
        else:
            found.append(pinned("fewer-ops", source.name).skipped(NOT_PINNED))
    # Where no judged graph can be run, none of the oracle's was lowered.
    return [*found, *(graph_checks(ORACLE, graphs[ORACLE], config) if graphs[ORACLE] else [])]


def prompts(run: Run) -> list[Prompt]:
    """The prompts that every model has, as far as they fit the graphs: without a prefill graph each once."""
    settings, evidence, config = run.settings, run.evidence, run.model.config
    buckets = evidence.buckets
    found = prompt_suite.suite(
        run.model.directory, config, Reach(evidence.capacity, buckets or BUCKETS, evidence.steps, evidence.in_parts),
        settings.tokens if evidence.steps else 1, run.context.report,
        only_fitting=settings.early_exit or settings.quick or not all(isinstance(s, Emitter) for s in run.sources),
    )  # fmt: skip
    if buckets:
        return found
    # Token by token: beyond RoPE's turning point a prompt that is given at once has other angles.
    turning = config.turning_point
    found = [
        p if turning is None or len(p.token_ids) <= turning
        else dataclasses.replace(p, token_ids=p.token_ids[:turning], text=None, why=f"{p.why}; up to RoPE's turning point")
        for p in found
    ]  # fmt: skip
    return list({p.token_ids: p for p in found}.values())


# ---- the verdict


def conclude(run: Run) -> Verdict:
    """The verdict; for one that does not pass, after taking apart what is wrong."""
    evidence, context, settings = run.evidence, run.context, run.settings
    matrix = context.matrix
    rests_on = compared(matrix, evidence.outcomes, evidence.checks, evidence.asked, evidence.abis_of, evidence.anchored)
    verdict = decide(matrix, evidence.checks, evidence.outcomes, evidence.truths, rests_on)
    wanted = not (verdict.passed or settings.verdict_only)
    past = PAST if any(graph.inner for source in evidence.judged for graph in evidence.whole(source)) else 0
    found = plan(matrix, evidence.checks, evidence.outcomes, evidence.asked, past) if wanted else None
    if found is not None:
        graphs = {source: evidence.whole(source) for source in evidence.graphs}
        how = How(settings.out / "reproducer" if settings.out else None, settings.early_exit, settings.repairs)
        with context.progress.stage("localization"):
            try:
                truth = anchor_truth(run.model, found.at.tokens, context.report, max(found.at.length, 1))
                arguments = (found, graphs, run.model.directory, truth, how)
                localization: Localization = context.child(localize, *arguments, timeout=LOCALIZE_SECONDS).value
                evidence.localization = localization
                _prove(run, localization)
            except (ChildDied, ToolchainError, InputError) as error:
                # Where the truth itself has no such value as the config says, that is the place.
                known = isinstance(error, InputError) and error.where in anchors(run.model.config)
                question = Question("localization", "what is wrong is taken apart")
                at = error.where if isinstance(error, InputError) and known else ""
                evidence.checks.append(question.error(str(error), anchor=at))
    return place(matrix, verdict, evidence.checks, evidence.localization, evidence.outcomes)


def _prove(run: Run, found: Localization) -> None:
    """Run what would put the graphs right, where something would."""
    if found.mended is not None:
        where = where_to_prove(run.context.matrix, run.evidence.outcomes, found.plan.suspect)
        one = dataclasses.replace(found.plan.suspect, backend=where)
        repair = proven(run.context, found.mended, one, run.model, run.evidence.asked, run.settings.out)
        run.evidence.localization = dataclasses.replace(found, mended=None, repair=repair)


def where_to_prove(matrix: Matrix, outcomes: Sequence[Outcome], suspect: Configuration) -> str:
    """The backend on which graphs that were put right run: the quick one, or what answered the wrong ones much sooner.

    A real model's decode graph compiles in seconds everywhere, and a backend that compiles fast may be slow at its many steps.
    """
    quick, seconds = matrix.quick, dict[str, float]()
    for outcome in outcomes:
        one = outcome.configuration
        ran = (one.source, one.head, outcome.status) == (suspect.source, suspect.head, "ran")
        if ran and not matrix.on_device(one):
            made = 0.0 if one.backend == quick else sum(p.seconds or 0.0 for p in outcome.programs.values())
            seconds[one.backend] = outcome.seconds + made  # the quick backend compiles as it loads
    best = min(seconds, key=seconds.__getitem__, default=quick)
    return best if seconds.get(quick, 0.0) - seconds.get(best, 0.0) > SOONER else quick


# ---- speed


def _right_somewhere(run: Run, verdict: Verdict) -> bool:
    """Whether backends alone are wrong, and others were asked for beside ours: which of those that are right is fastest?"""
    others = any(not backend.in_process for backend in run.context.backends)
    return verdict.class_ == "compiler-fault" and others and bool(_timed(run, ""))


def _timed(run: Run, head: str) -> list[Configuration]:
    """Where the judged production graph is timed, the first one first: on the first backend that has it right, and on each
    that was asked for beside ours and has it right.
    """
    source = run.evidence.judged[0]
    right = [cell.backend for cell in cells(run.evidence) if (cell.source, cell.state) == (source, "right")]
    ours = [b.name for b in run.context.backends if b.name in right and b.in_process]
    others = [b.name for b in run.context.backends if b.name in right and not (b.in_process or b.slow)]
    return [Configuration(source, name, head) for name in (*ours[:1], *others)]


def compare_speed(run: Run, verdict: Verdict) -> None:
    """Time the production graph against its peers, unless something may be wrong with them: then it means nothing."""
    evidence, settings, context = run.evidence, run.settings, run.context
    judged = production(evidence.whole(evidence.judged[0])) if evidence.judged else None
    peer = production(evidence.whole(ORACLE))
    if run.of_files:
        evidence.speed_reason = "a graph from a file is not timed"
    elif not (verdict.passed or _right_somewhere(run, verdict)):
        evidence.speed_reason = "the run did not pass, so its speed means nothing"
    elif settings.early_exit or not settings.rounds:
        evidence.speed_reason = "it was left out"
    elif judged is None or peer is None:
        evidence.speed_reason = "no graph decodes"
    elif settings.batch > 1:
        evidence.speed_reason = "of graphs with several rows, which `hloracle bench --batch` times"
    else:
        if settings.busy:
            with context.progress.stage(WAIT), locked(settings.busy):
                pass
        graphs = [(one, judged) for one in _timed(run, judged.abi.head)]
        graphs.append((Configuration(ORACLE, context.matrix.quick), peer))
        with context.progress.stage("speed"):
            try:
                arguments = (run.model.directory, graphs, settings.rounds)
                evidence.speed = context.child(measure, *arguments, timeout=SPEED_SECONDS).value
            except (ChildDied, ToolchainError) as error:
                evidence.speed_reason = str(error)


def _show_named(run: Run) -> None:
    """Read the graphs again whose anchors were looked for, with their operations at these."""
    evidence = run.evidence
    of = {i: evidence.named[s, g.name] for i, (s, g, _) in enumerate(evidence.shown) if (s, g.name) in evidence.named}
    again = [("", graph) for graph in of.values() if graph.written]
    try:
        read = run.context.child(read_graphs, again, timeout=PREPARE_SECONDS).value if again else []
    except (ChildDied, ToolchainError, InputError):  # the verdict stands without
        return
    readings = iter(read)
    for i in (i for i, graph in of.items() if graph.written):
        source, graph, _ = evidence.shown[i]
        evidence.shown[i] = (source, graph, next(readings)[2])


def show(run: Run) -> None:
    """Read the graphs that the report sets side by side."""
    evidence, settings = run.evidence, run.settings
    wanted = chosen_graphs(evidence)
    if run.of_files:  # they were read when they were parsed
        evidence.shown = [reading for reading in evidence.shown if reading[:2] in wanted]
        _show_named(run)
        return
    if settings.early_exit or settings.quick or not evidence.graphs:
        return
    with run.context.progress.stage("read the graphs") as stage:
        try:
            evidence.shown = run.context.child(read_graphs, wanted, timeout=PREPARE_SECONDS).value
        except (ChildDied, ToolchainError, InputError) as error:  # the verdict stands without
            stage["detail"] = str(error)
