"""A run looked at from inside: subgraphs probed on other inputs, values at every anchor, and the canary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from hloracle.conformance.checks.check import Question
from hloracle.conformance.checks.of_contract import TITLES, contract_checks, state_returned
from hloracle.conformance.evidence import Run
from hloracle.conformance.graphs.sources import Files
from hloracle.conformance.matrix import ORACLE, Configuration
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.runs.contract import run_contract
from hloracle.conformance.runs.inside import AnchorOutcome, anchor_check, canary_check, run_anchored
from hloracle.conformance.runs.interpreted import run_interpreted
from hloracle.conformance.runs.naming import name_graphs
from hloracle.conformance.runs.probes import run_probes
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied
from hloracle.core.errors import ToolchainError
from hloracle.reference.huggingface.anchor_truth import anchor_truth
from hloracle.reference.model.contract import PHASES

UNSURE = ("reference", "harness")  # checks that leave every value in doubt


def look_at_contract(run: Run) -> None:
    """Hold what graphs of another emitter do to what its ABI file says of them. Needs no reference."""
    evidence, context = run.evidence, run.context
    for source in evidence.judged:
        used = [(g, facts.unused) for g, facts in evidence.graphs[source] if g.inner and not facts.error]
        graphs = [g for g, _ in used]
        if not graphs:
            continue
        evidence.checks.append(state_returned(source, graphs))
        if any(g.unreturned for g in graphs):
            evidence.checks += contract_checks(source, {}, "the graph does not return its state")
            continue
        with context.progress.stage("contract") as stage:
            try:
                seen, stage["reused"] = run_contract(context, used, run.model)
                evidence.checks += contract_checks(source, seen)
            except ToolchainError as error:  # its configurations say whose fault that is
                evidence.checks += contract_checks(source, {}, str(error))
            except ChildDied as died:  # they may have more time, or more luck
                evidence.checks += [Question(kind, title, source).error(str(died)) for kind, title in TITLES.items()]


def name_anchors(run: Run) -> None:
    """Find the anchors of graphs that somebody else wrote: they need not name them."""
    evidence, context = run.evidence, run.context
    if evidence.asked.inside is None:
        return
    _, sequence = evidence.asked.inside
    for source in (s for s in run.sources if not s.counts_as):
        pairs = [
            (mine, oracle)
            for mine in evidence.whole(source.name) for oracle in evidence.whole(ORACLE)
            if mine.abi.phase == oracle.abi.phase and (mine.abi.phase == "decode" or mine.abi.bucket == oracle.abi.bucket)
        ]  # fmt: skip
        if not pairs:
            continue
        with context.progress.stage("anchors by number"):
            truth = anchor_truth(run.model, sequence.tokens, context.report, sequence.prompt)
            try:
                found = name_graphs(context, pairs, run.model, truth, sequence.prompt)
            except (ChildDied, ToolchainError) as error:
                # What does not run at all, its configurations tell of.
                if not any(o.status == "failed" for o in evidence.outcomes if o.configuration.source == source.name):
                    question = Question("anchors-by-number", "anchors are looked for by number", source.name)
                    evidence.checks.append(question.error(str(error)))
                continue
            evidence.named |= {(source.name, g.name): g for g in found}


def probe(run: Run) -> None:
    """Hold the subgraphs of each source to the oracle's: of each phase, in the smallest bucket."""
    evidence = run.evidence
    with run.context.progress.stage("probes") as stage:
        reused = []
        for source in run.sources:
            pairs = [
                (mine, oracle)
                for phase in PHASES
                for mine in _of_phase(evidence.looked_into(source.name), phase)
                for oracle in _of_phase(evidence.whole(ORACLE), phase)
                if phase == "decode" or mine.abi.bucket == oracle.abi.bucket
            ]
            check, known = run_probes(run.context, source.name, pairs, run.model, bool(source.counts_as))
            reused.append(known)
            evidence.replace([check])
        stage["reused"] = all(reused)


def _of_phase(graphs: Iterable[Graph], phase: str) -> list[Graph]:
    """The graphs of a phase: of those of a prompt the smallest; of two heads the one that picks the token, which ships."""
    found = [g for g in graphs if g.abi.phase == phase]
    found.sort(key=lambda g: (g.abi.bucket, g.abi.head != "token"))
    return found[:1]


def look_inside(run: Run) -> None:
    """Hold every anchor of the sources and of the oracle to the reference, and see that the canary is caught.

    Where the ends are wrong already, the configuration that is taken apart later shows its anchors. A canary needs a right
    graph: a judged one, or else the oracle's.
    """
    evidence, settings, context = run.evidence, run.settings, run.context
    _look_where_backends_differ(run)
    bad, oracle = evidence.bad, Configuration(ORACLE, context.matrix.quick)
    if (settings.verdict_only or (settings.early_exit and context.fault)) and bad:
        evidence.checks.append(canary_check([], "the run has a fault already"))
        return
    # The oracle's graph has to be right where it is looked into, whatever another backend makes of it.
    doubtful = any((c.source == ORACLE and c.backend in ("", oracle.backend)) or c.about in UNSURE for c in bad)
    if not evidence.outcomes or evidence.asked.inside is None or doubtful:
        evidence.checks.append(canary_check([], "no graph of this run is known to be right"))
        return
    if bad:  # a judged graph is wrong already, so the oracle's takes the canary
        looked = [_look(run, oracle, with_canary=True)]
        evidence.checks.append(canary_check(looked))
        return
    _look(run, oracle)
    looked = []
    for source in run.sources:
        # To compile two more graphs takes IREE longest; of how it compiles them the configurations tell.
        quick = settings.quick or isinstance(source, Files)
        backend = context.matrix.quick if quick else context.names[0]
        one = Configuration(source.name, backend, evidence.compared_head(source.name))
        looked.append(_look(run, one, with_canary=True))
    if any(c.kind == "anchors" and c.status != "passed" for c in evidence.checks):
        # A canary in a wrong graph is none.
        evidence.anchored = [dataclasses.replace(o, canary=None) for o in evidence.anchored]
        _look_everywhere(run)
        looked = [_look(run, oracle, with_canary=True)]
    evidence.checks.append(canary_check(looked))


def ask_interpreter(run: Run) -> None:
    """Have a sample of each source's anchors evaluated by StableHLO's interpreter, which is a witness of another kind.

    Where something is wrong already, it is asked of that: see `localize`.
    """
    evidence, context = run.evidence, run.context
    if evidence.asked.inside is None or evidence.bad or run.settings.early_exit:
        return
    prompt, sequence = evidence.asked.inside
    truth = anchor_truth(run.model, sequence.tokens, context.report, sequence.prompt)
    with context.progress.stage("interpreter") as stage:
        reused = []
        for source in run.sources:
            graphs = _inside(run, Configuration(source.name, "", evidence.compared_head(source.name)), prompt)
            check, known = run_interpreted(context, source.name, graphs, run.model, (prompt, truth))
            reused.append(known)
            evidence.replace([check])
        stage["reused"] = all(reused)


def _inside(run: Run, configuration: Configuration, prompt: Prompt) -> list[Graph]:
    """The graphs of a configuration that are looked into: its decode, and its prefill in the prompt's bucket."""
    return [
        g for g in run.evidence.looked_into(configuration.source)
        if g.abi.head == configuration.head and (g.abi.phase == "decode" or g.abi.bucket == prompt.bucket)
    ]  # fmt: skip


def _look_where_backends_differ(run: Run) -> None:
    """Of several backends that have wrong what others have right one alone is taken apart. The anchors of each say where it is."""
    evidence, settings = run.evidence, run.settings
    if settings.early_exit or settings.verdict_only or evidence.asked.inside is None:
        return
    ran = [o.configuration for o in evidence.outcomes if o.status != "failed"]
    for source in evidence.judged:
        own = [one for one in ran if one.source == source and one.head == evidence.compared_head(source)]
        wrong = [one for one in own if any(c.configuration == one and c.failed for c in evidence.checks)]
        if len(own) > len(wrong) > 1:
            for one in wrong:
                _look(run, one)


def _look_everywhere(run: Run) -> None:
    """What only the anchors show has to be told apart too: graph or compiler, source or oracle."""
    evidence = run.evidence
    if not any(c.kind == "anchors" and c.bad for c in evidence.checks):
        return  # a graph that names none is no fault
    seen = {o.configuration for o in evidence.anchored}
    heads = {
        source: {o.configuration.head for o in evidence.outcomes if o.configuration.source == source}
        for source in evidence.graphs
    }
    for one in [o.configuration for o in evidence.outcomes]:
        if one not in seen and (one.head == "logits" or heads[one.source] == {"token"}):
            _look(run, one)


def _look(run: Run, configuration: Configuration, with_canary: bool = False) -> AnchorOutcome:
    evidence, context = run.evidence, run.context
    assert evidence.asked.inside is not None
    prompt, sequence = evidence.asked.inside
    # `ask` had it computed with the rest.
    truth = anchor_truth(run.model, sequence.tokens, context.report, sequence.prompt)
    source = next((s for s in run.sources if s.name == configuration.source), None)
    graphs = _inside(run, configuration, prompt)
    with context.progress.stage(f"{configuration.id}, anchors") as stage:
        # The canary shows that this run would notice: it is put into our own graphs anew each time.
        reuse = context.reuse and (not with_canary or isinstance(source, Files))
        anew = dataclasses.replace(context, reuse=reuse)
        outcome = run_anchored(anew, configuration, graphs, run.model, (prompt, truth), with_canary)
        stage["reused"] = outcome.status == "reused"
    check = anchor_check(outcome, all_named=source is None or bool(source.counts_as))
    evidence.anchored = [*(o for o in evidence.anchored if o.configuration != configuration), outcome]
    evidence.replace([check])
    return outcome
