"""Judges a graph that anyone wrote: a StableHLO file with its ABI, against a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hloracle.backends.targets import FLAG, open_targets
from hloracle.conformance import prompts as prompt_suite
from hloracle.conformance.cells import Cell, run_cell
from hloracle.conformance.checks import cell_checks, graph_checks, truth_check
from hloracle.conformance.environment import CELL_PACKAGES, MemoryWatch, versions
from hloracle.conformance.evidence import Evidence, Progress, Settings
from hloracle.conformance.graphs import GraphFacts, inspect
from hloracle.conformance.record import record_of
from hloracle.conformance.run import conclude, gates, refuse_non_finite, reporting_death
from hloracle.conformance.sources import show_graphs
from hloracle.core.abi import Abi, Graph
from hloracle.core.child import run_in_child
from hloracle.core.errors import InputError
from hloracle.reference.checkpoint import QUANTIZED, Checkpoint, open_checkpoint
from hloracle.reference.encodings import ENCODINGS, argument_parts
from hloracle.reference.fixtures import resolve
from hloracle.reference.truth import truths
from hloracle.reference.weights import joins, parts_in, taken_shapes, weight_shapes


def check_file(
    path: Path,
    abi_path: Path,
    model: str,
    tokens: int,
    threads: int,
    progress: Progress,
    out: Path | None = None,
    precision: str = "f32",
    backends: Sequence[str] = Settings.backends,
    custom_calls: Sequence[str] = (),
) -> dict[str, Any]:
    """The record of judging one graph; a reproducer of its fault goes to `out`.

    Raises InputError when the files cannot be read or do not fit the model.

    Args:
      custom_calls: `TARGET=LIBRARY` of each custom_call that the graph may have; see `open_targets`.
    """
    graph = read_graph(path, abi_path)
    abi = graph.abi
    settings = Settings(model, tokens, abi.capacity, threads, precision=precision, out=out, backends=tuple(backends))
    if not 0 < tokens <= abi.capacity:
        raise InputError(
            f"is {tokens}, and the graph's cache has {abi.capacity} slots", "--tokens", "ask for that many"
        )
    settings = dataclasses.replace(settings, targets=open_targets(custom_calls))
    evidence = Evidence()
    with MemoryWatch(lambda: progress.current) as memory:
        with progress.stage("model"):
            checkpoint = open_checkpoint(resolve(model, progress.report, precision))
            _fits(graph, abi_path, checkpoint)
            refuse_non_finite(checkpoint)
        allowed = [target.name for target in settings.targets]
        if gates(evidence, settings, progress):
            with reporting_death(evidence):
                with progress.stage("graph"):
                    facts = run_in_child(_inspect, graph, allowed, timeout=300, report=progress.report).value
                    _all_called(facts)
                    evidence.graphs = {"file": [(graph, facts)]}
                    evidence.checks += graph_checks("file", [(graph, facts)], checkpoint.config)
                # With another signature than its ABI's, there is no saying what running it would do.
                if not (facts.error or facts.abi_mismatch):
                    _run_cells(evidence, graph, checkpoint, settings, progress)
        verdict = conclude(evidence, checkpoint, settings, progress)
        evidence.speed_reason = "a graph from a file is not timed"
        show_graphs(evidence, checkpoint.config, progress)
        return record_of(settings, checkpoint, evidence, verdict, progress, memory)


def read_graph(path: Path, abi_path: Path) -> Graph:
    """Raises InputError that names the file that cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("no such file", path, "name a StableHLO text file") from None
    except UnicodeDecodeError:
        raise InputError("is not text", path, "name a StableHLO text file, not bytecode") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path, "name a StableHLO text file") from None
    return Graph(path.stem, text, Abi.from_file(abi_path))


def _fits(graph: Graph, abi_path: Path, checkpoint: Checkpoint) -> None:
    shapes = weight_shapes(checkpoint.config)
    shapes = shapes | taken_shapes(checkpoint.config, joins(checkpoint.config))
    for argument in graph.abi.weights:
        weight, encoding, index = argument_parts(argument.name)
        shape = shapes.get(weight)
        parts = parts_in(weight)
        have = "absent" if shape is None else f"{list(shape)}, which {encoding} cannot hold"
        if (
            shape is not None
            and encoding in QUANTIZED
            and {checkpoint.encoded.get(part) for part in parts} != {encoding}
        ):
            have = f"in {' and '.join(dict.fromkeys(checkpoint.encoded.get(part, 'float32') for part in parts))}"
        elif shape is not None and (not encoding or all(ENCODINGS[encoding].fits(shapes[part]) for part in parts)):
            wanted = ENCODINGS[encoding].types(shape)[index] if encoding else (shape, "f32")
            if wanted == (argument.shape, argument.dtype) and argument.weight == weight:
                continue
            have = f"{list(wanted[0])} {wanted[1]}"
        raise InputError(
            f"weight {argument.name} is {list(argument.shape)} {argument.dtype}, and in the model it is {have}",
            abi_path,
            "name the model that the graph was written for, and its --precision",
        )


def _inspect(report: object, graph: Graph, allowed: Sequence[str]) -> GraphFacts:
    return inspect(graph, allowed)


def _all_called(facts: GraphFacts) -> None:
    """Raises InputError for a target that is allowed for nothing: what it computes would seem to be proven."""
    if not facts.custom_calls and (idle := [target for target, calls in facts.allowed_calls.items() if not calls]):
        raise InputError(
            "is not called by the graph", f"{FLAG} {idle[0]}", "leave it out, or judge the graph that calls it"
        )


def _run_cells(
    evidence: Evidence, graph: Graph, checkpoint: Checkpoint, settings: Settings, progress: Progress
) -> None:
    abi = graph.abi
    with progress.stage("prompts"):
        found = prompt_suite.suite(
            checkpoint.directory, checkpoint.config, abi.capacity, settings.tokens if abi.phase == "decode" else 1,
            progress.report, only_fitting=True,
        )  # fmt: skip
    # One run a prompt: the buckets of the suite are those of our own prefill graphs. What the graph is too
    # small for is not asked of it.
    distinct = list({p.token_ids: p for p in found}.values())
    if abi.phase == "prefill":
        distinct = [
            dataclasses.replace(
                p, bucket=abi.bucket, why=p.why if p.name != "chat" else "the model's own chat template"
            )
            for p in distinct
            if len(p.token_ids) <= abi.bucket
        ]
    evidence.prompts = distinct
    with progress.stage("truth") as stage:
        answers = truths(checkpoint, [p.token_ids for p in distinct], settings.tokens, progress.report)
        stage["reused"] = all(t.reused for t in answers)
    if abi.phase == "prefill":
        answers = [dataclasses.replace(t, tokens=t.tokens[:1], logits=t.logits[:1], exact=t.exact[:1]) for t in answers]
    evidence.truths = {p.id: t for p, t in zip(distinct, answers, strict=True)}
    evidence.checks.append(truth_check(evidence.truths))
    for backend in settings.backends:
        cell = Cell("file", backend, abi.head)
        with progress.stage(cell.id):
            outcome = run_cell(
                cell, [graph], checkpoint, distinct, evidence.truths, settings.threads, versions(CELL_PACKAGES),
                reuse=False, targets=settings.targets, report=progress.report,
            )  # fmt: skip
        evidence.outcomes.append(outcome)
        evidence.checks += cell_checks(outcome, evidence.truths)
