"""Judges graphs that anyone wrote: StableHLO files with their ABI, against a model. Those of one call are judged together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hloracle.backends.custom_calls import FLAG, open_targets
from hloracle.conformance.checks.of_configurations import truth_check
from hloracle.conformance.checks.of_graphs import graph_checks
from hloracle.conformance.evidence import Evidence, Progress, Settings
from hloracle.conformance.graphs.facts import Inspected, inspect
from hloracle.conformance.graphs.files import fits, read_graph, refusal
from hloracle.conformance.graphs.listing import Reading
from hloracle.conformance.graphs.sources import chosen_graphs, oracle_of, read_all
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions import prompts as prompt_suite
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.record.record import record_of
from hloracle.conformance.run import (
    conclude,
    gate_calls,
    judge_together,
    look_inside,
    probe,
    refuse_non_finite,
    reporting_death,
)
from hloracle.conformance.runs.compiling import gather
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, Report, run_in_child, side_by_side
from hloracle.core.environment import MemoryWatch
from hloracle.core.errors import InputError
from hloracle.core.record import Record
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config

INSPECT_SECONDS = 300


def check_file(
    paths: Sequence[Path],
    abi_paths: Sequence[Path],
    model: str,
    settings: Settings,
    progress: Progress,
    custom_calls: Sequence[str] = (),
) -> Record:
    """The record of judging the graphs of one session: a decode, prefills, or both.

    Raises InputError when the files cannot be read or do not fit the model or each other.

    Args:
      abi_paths: one for each graph; none takes the `.abi.json` beside each.
      settings: tokens, threads, precision, backends, timeout and the reproducer's folder; the graphs say the rest.
      custom_calls: `TARGET=LIBRARY` of each custom_call that the graphs may have; see `open_targets`.
    """
    abi_paths = abi_paths or [path.parent / f"{path.stem}.abi.json" for path in paths]
    if len(abi_paths) != len(paths):
        raise InputError(
            f"is given {len(abi_paths)} times for {len(paths)} graphs", "--abi", "give one for each, in order"
        )
    graphs = [read_graph(path, abi) for path, abi in zip(paths, abi_paths, strict=True)]
    _one_session(graphs, paths)
    capacity = graphs[0].abi.capacity
    buckets = tuple(sorted(g.abi.bucket for g in graphs if g.abi.phase == "prefill"))
    settings = dataclasses.replace(settings, model=model, capacity=capacity, of_graphs=buckets)
    if not 0 < settings.tokens <= capacity:
        what = f"is {settings.tokens}, and the graph's cache has {capacity} slots"
        raise InputError(what, "--tokens", "ask for that many")
    settings.validate()
    settings = dataclasses.replace(settings, targets=open_targets(custom_calls))
    evidence = Evidence()
    with MemoryWatch(lambda: progress.current) as memory:
        with progress.stage("model"):
            checkpoint = open_checkpoint(resolve(model, progress.report, settings.precision))
            for graph, abi_path in zip(graphs, abi_paths, strict=True):
                fits(graph, abi_path, checkpoint)
            refuse_non_finite(checkpoint)
        with progress.stage("graphs and gate zero"):
            inspecting = partial(_inspected, graphs, paths, checkpoint.config, settings, progress.report)
            work: list[Callable[[], Any]] = [inspecting, *gate_calls(settings, progress)]
            found, *gates = side_by_side(work)
            (evidence.graphs, readings), evidence.checks = found, gates
            _all_called(evidence.graphs["file"])
        if all(c.status == "passed" for c in gates):
            with reporting_death(evidence):
                evidence.checks += graph_checks("file", evidence.graphs["file"], checkpoint.config)
                if not any(facts.beyond for _, facts in evidence.graphs["file"]):
                    _judge(evidence, graphs, checkpoint, settings, progress)
        verdict = conclude(evidence, checkpoint, settings, progress)
        evidence.speed_reason = "a graph from a file is not timed"
        chosen = chosen_graphs(evidence)
        evidence.shown = [reading for reading in readings if reading[:2] in chosen]
        return record_of(settings, checkpoint, evidence, verdict, progress, memory)


def _one_session(graphs: Sequence[Graph], paths: Sequence[Path]) -> None:
    """Raises InputError unless one session can run them all."""
    first = graphs[0].abi
    seen: dict[str, Path] = {}
    for graph, path in zip(graphs, paths, strict=True):
        abi = graph.abi
        for what, mine, other in (("head", abi.head, first.head), ("capacity", abi.capacity, first.capacity)):
            if mine != other:
                raise InputError(
                    f"its {what} is {mine}, and that of {paths[0]} is {other}", path,
                    "check them one by one, or give graphs of one session",
                )  # fmt: skip
        does = f"prefill of {abi.bucket} tokens" if abi.phase == "prefill" else abi.phase
        if does in seen:
            raise InputError(f"is a {does}, as {seen[does]} is", path, "give one graph of each phase and bucket")
        seen[does] = path


def _inspected(
    graphs: Sequence[Graph], paths: Sequence[Path], config: Config, settings: Settings, report: Report
) -> tuple[dict[str, Inspected], list[tuple[str, Graph, Reading]]]:
    """What is known of the files' graphs before they are run, and of the oracle's of the same contracts; and what a reader
    is shown of them.
    """
    allowed = [target.name for target in settings.targets]
    try:
        child = run_in_child(
            _inspect, graphs, paths, config, allowed, settings.unlocated, timeout=INSPECT_SECONDS, report=report
        )
    except ChildDied as died:
        if died.cause != "crash":
            raise
        names = ", ".join(map(str, paths))
        raise InputError(
            "MLIR's parser crashes on it", names, "look whether it is nested too deep, or too large"
        ) from None
    graphs_of, readings = child.value
    return graphs_of, readings


def _inspect(
    report: Report, graphs: Sequence[Graph], paths: Sequence[Path], config: Config, allowed: Sequence[str], unread: bool
) -> tuple[dict[str, Inspected], list[tuple[str, Graph, Reading]]]:
    for graph, path in zip(graphs, paths, strict=True):
        if wrong := refusal(graph, path):
            raise wrong
    found = [(graph, inspect(graph, allowed)) for graph in graphs]
    graphs_of = {"file": found, "oracle": oracle_of([g for g, facts in found if not facts.beyond], config, report)}
    readable = [(source, g) for source, some in graphs_of.items() for g, facts in some if not facts.beyond]
    return graphs_of, [] if unread else read_all(readable)


def _all_called(graphs: Inspected) -> None:
    """Raises InputError for a target that is allowed for nothing: what it computes would seem to be proven."""
    called = {target for _, facts in graphs for target, calls in facts.allowed_calls.items() if calls}
    idle = [target for _, facts in graphs for target in facts.allowed_calls if target not in called]
    if idle and not any(facts.custom_calls for _, facts in graphs):
        raise InputError(
            "is not called by the graph", f"{FLAG} {idle[0]}", "leave it out, or judge the graph that calls it"
        )


def _judge(
    evidence: Evidence, graphs: Sequence[Graph], checkpoint: Checkpoint, settings: Settings, progress: Progress
) -> None:
    with progress.stage("prompts"):
        evidence.prompts = _prompts(graphs, checkpoint, settings, progress.report)
    decodes = any(g.abi.phase == "decode" for g in graphs)
    with progress.stage("truth") as stage:
        answers = truths(checkpoint, [p.token_ids for p in evidence.prompts], settings.tokens, progress.report)
        stage["reused"] = all(t.reused for t in answers)
        if not decodes:
            answers = [
                dataclasses.replace(t, tokens=t.tokens[:1], logits=t.logits[:1], exact=t.exact[:1]) for t in answers
            ]
        evidence.truths = {p.id: t for p, t in zip(evidence.prompts, answers, strict=True)}
        stage["reused"] &= gather(evidence, checkpoint, settings, progress, decodes)
    evidence.checks.append(truth_check(evidence.truths))
    configurations = [Configuration("file", backend, graphs[0].abi.head) for backend in settings.backends]
    judge_together(configurations, evidence, checkpoint, settings, progress)
    if not settings.unlocated or all(c.status in ("passed", "skipped") for c in evidence.checks):
        probe(evidence, checkpoint, settings, progress)
        look_inside(evidence, checkpoint, settings, progress)


def _prompts(
    graphs: Sequence[Graph], checkpoint: Checkpoint, settings: Settings, report: Report
) -> list[Prompt]:  # fmt: skip
    """What fits the graphs of the prompts that every model has: without a prefill graph each once."""
    decodes = any(g.abi.phase == "decode" for g in graphs)
    buckets = settings.buckets
    found = prompt_suite.suite(
        checkpoint.directory, checkpoint.config, settings.capacity, settings.tokens if decodes else 1, report,
        only_fitting=True, **({"buckets": buckets} if buckets else {}),
    )  # fmt: skip
    if buckets:
        return found
    # Token by token: beyond RoPE's turning point a prompt that is given at once has other angles.
    turning = checkpoint.config.turning_point
    found = [
        p if turning is None or len(p.token_ids) <= turning
        else dataclasses.replace(p, token_ids=p.token_ids[:turning], text=None, why=f"{p.why}; up to RoPE's turning point")
        for p in found
    ]  # fmt: skip
    return list({p.token_ids: p for p in found}.values())
