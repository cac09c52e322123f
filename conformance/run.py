"""One run: model, gate zero, graphs, truth, cells, checks, verdict, record. The order is the chain of trust."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.iree import compile_to_stream, precompile
from hloracle.backends.xla import has_compiled
from hloracle.conformance import prompts as prompt_suite
from hloracle.conformance.cells import Cell, CellOutcome, make_backend, run_cell
from hloracle.conformance.checks import (
    Check,
    caches_in_place,
    cell_checks,
    fewer_ops,
    graph_checks,
    limit,
    mismatches,
    truth_check,
)
from hloracle.conformance.environment import CELL_PACKAGES, MemoryWatch, describe, versions
from hloracle.conformance.gate_zero import gate_zero
from hloracle.conformance.graphs import GraphFacts, inspect
from hloracle.conformance.prompts import Prompt
from hloracle.conformance.verdict import Verdict, decide
from hloracle import reference
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, Report, kill_descendants, run_in_child
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.store import cache_root, digest, write_file
from hloracle.emitters.model import emit
from hloracle.reference.checkpoint import Checkpoint, open_checkpoint, weight_shapes
from hloracle.reference.config import Config
from hloracle.reference.contract import BUCKETS, graph_abi, graph_name
from hloracle.reference.fixtures import resolve
from hloracle.reference.truth import Truth, truths

BACKENDS = ("iree-cpu", "xla-cpu")
# The graph that ships comes first: what is judged is run before what it is judged by.
CELLS = (
    Cell("emitter", "iree-cpu", "token"),
    Cell("emitter", "iree-cpu"),
    Cell("oracle", "iree-cpu"),
    Cell("emitter", "xla-cpu"),
    Cell("oracle", "xla-cpu"),
)
PREPARE_SECONDS = 900
Inspected = list[tuple[Graph, GraphFacts]]


@dataclass(frozen=True)
class Settings:
    """What the user asked for. `fresh` runs every cell whatever the cache holds."""

    model: str
    tokens: int = 48
    capacity: int = 256
    threads: int = 1
    fresh: bool = False
    device: str = "cpu"
    precision: str = "f32"

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(b for b in BUCKETS if b <= self.capacity)

    def validate(self) -> None:
        """Raises InputError that names the flag."""
        if self.tokens < 1:
            raise InputError(f"is {self.tokens}", "--tokens", "ask for at least one")
        if self.capacity < BUCKETS[0]:
            raise InputError(f"is {self.capacity}", "--capacity", f"give at least the smallest bucket, {BUCKETS[0]}")
        if self.tokens > self.capacity:
            raise InputError(
                f"is {self.tokens}, more than the {self.capacity} cache slots", "--tokens",
                "raise --capacity, or ask for fewer",
            )  # fmt: skip

    def validate_buckets(self) -> None:
        """Raises InputError unless a prompt can end at the last cache slot, and a bucket inside the cache holds it."""
        longest = self.capacity - self.tokens + 1
        fitting = [b for b in self.buckets if b >= longest]
        if not fitting:
            raise InputError(
                f"is {self.capacity}: no bucket of at most that many holds the {longest} tokens of a prompt that fills it",
                "--capacity", f"give one of {', '.join(map(str, BUCKETS))}",
            )  # fmt: skip


@dataclass
class Progress:
    """Times the stages of a run and tells a listener about them."""

    report: Report = lambda line: None
    finished: Callable[[str, float, bool], None] = lambda stage, seconds, reused: None
    timings: list[dict[str, Any]] = field(default_factory=list)
    current: str = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a stage; the block may set `reused` and `detail` in the dict it gets."""
        self.report(name)
        self.current = name
        entry: dict[str, Any] = {"stage": name, "seconds": 0.0, "reused": False, "detail": ""}
        started = time.monotonic()
        yield entry
        entry["seconds"] = round(time.monotonic() - started, 3)
        self.timings.append(entry)
        self.finished(name, entry["seconds"], entry["reused"])


@dataclass
class Evidence:
    """What a run has gathered so far; the record is written from it whether or not the run got to its end."""

    checks: list[Check] = field(default_factory=list)
    graphs: dict[str, Inspected] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    truths: dict[str, Truth] = field(default_factory=dict)
    outcomes: list[CellOutcome] = field(default_factory=list)


def run(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """The record of a whole run. Raises InputError when it cannot start; any later failure is in the record."""
    settings.validate()
    settings.validate_buckets()
    progress = progress or Progress()
    evidence = Evidence()
    with MemoryWatch(lambda: progress.current) as memory:
        with progress.stage("model"):
            directory = resolve(settings.model, progress.report)
            checkpoint = open_checkpoint(directory)
            refuse_non_finite(checkpoint)
        if not gates(evidence, settings, progress):
            verdict = decide(evidence.checks, [], {})
            return record_of(settings, checkpoint, evidence, verdict, progress, memory)
        with reporting_death(evidence):
            with progress.stage("prompts"):
                evidence.prompts = prompt_suite.suite(
                    directory, checkpoint.config, settings.capacity, settings.tokens, progress.report
                )
            with progress.stage("graphs") as stage:
                evidence.graphs, lowered = prepare(checkpoint.config, settings, progress.report)
                stage["reused"] = lowered == 0
                stage["detail"] = f"{lowered} oracle graphs lowered"
            evidence.checks += static_checks(evidence.graphs, checkpoint.config)
            _truth_and_modules(evidence, checkpoint, settings, progress)
            evidence.checks.append(truth_check(evidence.truths))
            for cell in CELLS:
                outcome = _cell(cell, evidence, checkpoint, settings, progress)
                evidence.outcomes.append(outcome)
                streams = cell == Cell("emitter", "iree-cpu")
                evidence.checks += cell_checks(outcome, evidence.truths, expect_streaming=streams)
        verdict = decide(evidence.checks, evidence.outcomes, evidence.truths)
        return record_of(settings, checkpoint, evidence, verdict, progress, memory)


@contextmanager
def reporting_death(evidence: Evidence) -> Iterator[None]:
    """A process that dies where no cell runs ends the gathering of evidence, not the record."""
    try:
        yield
    except ChildDied as error:
        evidence.checks.append(Check("harness.process", "every process gives an answer", "error", "", "", str(error)))


def refuse_non_finite(checkpoint: Checkpoint) -> None:
    """Raises InputError that names a weight which is not finite; a checkpoint's content is looked through once."""
    entry = cache_root() / "finite" / checkpoint.digest
    if not entry.is_file():
        for _ in checkpoint.weights():
            pass
        write_file(entry, "")


def gates(evidence: Evidence, settings: Settings, progress: Progress) -> bool:
    """Gate zero on every backend; False stops the run."""
    for backend in BACKENDS:
        with progress.stage(f"gate zero, {backend}"):
            evidence.checks.append(gate_zero(backend, settings.threads, progress.report))
    return all(c.status == "passed" for c in evidence.checks)


# ---- graphs


def specifications(settings: Settings, head: str) -> list[tuple[str, str, int, int]]:
    """(phase, head, capacity, bucket) of the graphs that one source needs for one head."""
    prefills = [("prefill", head, settings.capacity, bucket) for bucket in settings.buckets]
    return [("decode", head, settings.capacity, 0), *prefills]


def prepare(config: Config, settings: Settings, report: Report | None = None) -> tuple[dict[str, Inspected], int]:
    """Both sources' graphs, parsed and walked, and how many of the oracle's had to be lowered."""
    emitted = [emit(config, *spec) for head in ("logits", "token") for spec in specifications(settings, head)]
    entries = [(spec, _oracle_entry(config, spec)) for spec in specifications(settings, "logits")]
    missing = sum(not entry.is_file() for _, entry in entries)
    both = run_in_child(_prepare, config, emitted, entries, timeout=PREPARE_SECONDS, report=report).value
    return both, missing


def _oracle_entry(config: Config, spec: tuple[str, str, int, int]) -> Path:
    """Where an oracle graph is kept: by config, arguments, JAX's version and the reference's own source."""
    source = [path.read_bytes() for path in sorted(Path(str(reference.__file__)).parent.glob("*.py"))]
    key = digest(repr((config, spec)), metadata.version("jax"), metadata.version("jaxlib"), *source)
    return cache_root() / "oracle" / f"{key[:32]}.mlir"


def _prepare(
    report: Report, config: Config, emitted: list[Graph], entries: list[tuple[tuple[str, str, int, int], Path]]
) -> dict[str, Inspected]:
    oracle = []
    for (phase, head, capacity, bucket), entry in entries:
        name = graph_name(config, phase, head, bucket)
        if entry.is_file():
            graph = Graph(name, entry.read_text(), graph_abi(config, phase, head, capacity, bucket))
        else:
            from hloracle.reference.lower import lower

            report(f"lowering the oracle's {name}")
            graph = lower(config, phase, head, capacity, bucket)
            write_file(entry, graph.text)
        oracle.append(graph)
    report("parsing and walking the graphs")
    return {source: [(g, inspect(g)) for g in graphs] for source, graphs in (("emitter", emitted), ("oracle", oracle))}


def static_checks(graphs: dict[str, Inspected], config: Config) -> list[Check]:
    """What is known of the graphs without running them."""
    checks = [check for source in ("emitter", "oracle") for check in graph_checks(source, graphs[source], config)]
    checks.append(fewer_ops(graphs["emitter"], graphs["oracle"]))
    production = next(g for g, _ in graphs["emitter"] if (g.abi.phase, g.abi.head) == ("decode", "token"))
    try:
        checks.append(caches_in_place(production, compile_to_stream(production)))
    except ToolchainError as error:
        checks.append(Check("emitter.caches-in-place", "no copy of a cache", "error", "", "", str(error)))
    return checks


# ---- cells


def _truth_and_modules(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> None:
    """The truth and the compiled modules, side by side: each is the work of one core."""
    whole = {source: [g for g, facts in graphs if not facts.error] for source, graphs in evidence.graphs.items()}
    with ThreadPoolExecutor(max_workers=settings.threads) as pool:
        compiles: list[Future[bool]] = [
            pool.submit(_precompile_xla, [g for g in graphs if g.abi.head == "logits"]) for graphs in whole.values()
        ]
        compiles += [pool.submit(precompile, graph) for graphs in whole.values() for graph in graphs]
        try:
            with progress.stage("truth") as stage:
                # Prompts that differ only in their bucket have one truth.
                ids = list(dict.fromkeys(p.token_ids for p in evidence.prompts))
                found = truths(checkpoint, ids, settings.tokens, progress.report)
                by_ids = dict(zip(ids, found, strict=True))
                evidence.truths = {p.id: by_ids[p.token_ids] for p in evidence.prompts}
                stage["reused"] = all(t.reused for t in found)
                stage["detail"] = "; ".join(dict.fromkeys(t.moved for t in found if t.moved))
            with progress.stage("compile") as stage:
                for done, future in enumerate(compiles, 1):
                    progress.report(f"compile, {done} of {len(compiles)}")
                    future.exception()  # a module that does not compile is its cell's to report
                stage["reused"] = all(not f.exception() and f.result() for f in compiles)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(f.done() for f in compiles):
                kill_descendants()
                time.sleep(0.05)
            raise


def _precompile_xla(graphs: list[Graph]) -> bool:
    """Put the graphs' executables into the cache; returns whether all were there."""
    if all(has_compiled(graph) for graph in graphs):
        return True
    run_in_child(_compile_xla, graphs, timeout=PREPARE_SECONDS)
    return False


def _compile_xla(report: Report, graphs: list[Graph]) -> None:
    backend = make_backend("xla-cpu", threads=1)
    for graph in graphs:
        backend.load(graph)


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
            reuse=reuse, stream=cell == Cell("emitter", "iree-cpu"), report=progress.report,
        )  # fmt: skip
        stage["reused"] = outcome.status == "reused"
    return outcome


# ---- the record


def record_of(
    settings: Settings,
    checkpoint: Checkpoint,
    evidence: Evidence,
    verdict: Verdict,
    progress: Progress,
    memory: MemoryWatch,
) -> dict[str, Any]:
    """See reports/report.schema.json."""
    config = checkpoint.config
    readable = prompt_suite.Readable(checkpoint.directory)
    return {
        "schema": "hloracle-report/1",
        "passed": verdict.passed,
        "verdict": {
            "class": verdict.class_,
            "anchor": None,
            "prompt": verdict.prompt,
            "step": verdict.step,
            "explanation": verdict.explanation,
            "evidence": list(verdict.evidence),
        },
        "model": {
            "name": settings.model,
            "directory_name": checkpoint.directory.name,
            "digest": checkpoint.digest,
            "model_type": config.model_type,
            "parameters": sum(int(np.prod(shape)) for shape in weight_shapes(config).values()),
            "config": {k: v for k, v in dataclasses.asdict(config).items() if k != "rope"}
            | {f"rope.{k}": v for k, v in dataclasses.asdict(config.rope).items()},
        },
        "settings": {
            "device": settings.device,
            "precision": settings.precision,
            "tokens": settings.tokens,
            "capacity": settings.capacity,
            "buckets": list(settings.buckets),
            "threads": settings.threads,
        },
        "prompts": [_prompt(p, evidence.truths.get(p.id), readable) for p in evidence.prompts],
        "tokens": {id: _tokens(id, truth, evidence.outcomes, readable) for id, truth in evidence.truths.items()},
        "cells": [_cell_row(o, evidence.truths) for o in evidence.outcomes],
        "checks": [dataclasses.asdict(c) for c in evidence.checks],
        "graphs": [_graph_row(source, g, f) for source, graphs in evidence.graphs.items() for g, f in graphs],
        "timings": progress.timings,
        "reused": [t["stage"] for t in progress.timings if t["reused"]],
        "memory": {
            "peak_bytes": memory.peak_bytes,
            "processes": [{"name": name, "peak_bytes": n} for name, n in memory.at_peak],
        },
        "environment": describe(),
    }


def _prompt(prompt: Prompt, truth: Truth | None, readable: prompt_suite.Readable) -> dict[str, Any]:
    tokens = truth.tokens if truth else []
    return {
        "id": prompt.id,
        "prompt": prompt.name,
        "bucket": prompt.bucket,
        "why": prompt.why,
        "text": prompt.text,
        "token_ids": list(prompt.token_ids),
        "truth": {
            "tokens": tokens,
            "pieces": readable.pieces(tokens),
            "text": readable.text(tokens),
            "gaps": [round(float(g), 6) for g in truth.gaps] if truth else [],
        },
    }


def _tokens(id: str, truth: Truth, outcomes: Sequence[CellOutcome], readable: prompt_suite.Readable) -> dict[str, Any]:
    cells = {}
    for outcome in outcomes:
        if id not in outcome.prompts:
            continue
        result = outcome.prompts[id]
        steps = mismatches(result.tokens, truth)
        cells[outcome.cell.id] = {
            "agreed": len(result.tokens) - len(steps),
            "total": len(truth.tokens),
            "tokens": result.tokens,
            "pieces": readable.pieces(result.tokens),
            "text": readable.text(result.tokens),
            "first_mismatch": steps[0] if steps else None,
            "logit_error": float(np.max(result.errors)) if result.errors else None,
            "logit_floor": truth.floor if result.errors else None,
            "logit_limit": limit(truth) if result.errors else None,
        }
    # A cell that did not run agrees on nothing.
    agreed = min((c["agreed"] for c in cells.values()), default=0) if len(cells) == len(outcomes) else 0
    return {"agreed": agreed, "total": len(truth.tokens), "cells": cells}


def _cell_row(outcome: CellOutcome, truths: dict[str, Truth]) -> dict[str, Any]:
    results = outcome.prompts
    total = sum(len(t.tokens) for t in truths.values())
    seconds = sum(r.seconds for r in results.values())
    return {
        "id": outcome.cell.id,
        "source": outcome.cell.source,
        "backend": outcome.cell.backend,
        "head": outcome.cell.head,
        "status": outcome.status,
        "message": outcome.message,
        "agreed": sum(len(r.tokens) - len(mismatches(r.tokens, truths[name])) for name, r in results.items()),
        "total": total,
        "seconds": round(outcome.seconds, 3),
        # Only the production cell is run as it would be used; the others also compare logits.
        "tokens_per_second": round(total / seconds, 1) if seconds and outcome.cell.head == "token" else None,
        "peak_bytes": outcome.peak_bytes,
    }


def _graph_row(source: str, graph: Graph, facts: GraphFacts) -> dict[str, Any]:
    abi = graph.abi
    bucket = abi.bucket if abi.phase == "prefill" else None
    return {
        "id": "/".join([source, abi.phase, *([str(bucket)] if bucket else []), abi.head]),
        "source": source,
        "phase": abi.phase,
        "head": abi.head,
        "bucket": bucket,
        "ops": facts.ops,
        "op_total": facts.total,
        "op_kinds": len(facts.ops),
        "weights": len(abi.weights),
        "text_bytes": len(graph.text),
        "scopes": facts.scopes,
    }
