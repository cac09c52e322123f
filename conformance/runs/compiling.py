"""What is compiled before anything is run, beside the truth; and what is known of it then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hloracle.backends.devices import CPU, Device, compiled_for
from hloracle.backends.iree import compile_to_stream, module_path, precompile
from hloracle.backends.make import make_backend
from hloracle.backends.xla import has_compiled
from hloracle.conformance.checks.checks import Check, caches_in_place, read_backs
from hloracle.conformance.evidence import Evidence, Progress, Settings
from hloracle.conformance.graphs.sources import PREPARE_SECONDS, production, specifications
from hloracle.conformance.questions.questions import Asked, ask
from hloracle.conformance.runs.code_generation import (
    Compiled,
    arithmetic_check,
    arithmetic_of,
    compile_checks,
    compile_for,
    for_every_target,
)
from hloracle.core.abi import Graph
from hloracle.core.child import Answer, Report, run_in_child, threads
from hloracle.core.errors import InputError, ToolchainError
from hloracle.mutants import planted
from hloracle.production.choice import production_graphs, untuned
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.anchors import anchors
from hloracle.reference.model.checkpoint import Checkpoint


def truth_and_modules(evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress) -> None:
    """The truth and the compiled modules, side by side: each is the work of one core."""
    whole = {source: [g for g, facts in graphs if not facts.error] for source, graphs in evidence.graphs.items()}
    parts: list[dict[str, Any]] = []

    def timed(name: str, work: Callable[..., Answer], *arguments: Any, **more: Any) -> Answer:
        begin, reused = progress.now(), False
        try:
            answer = work(*arguments, **more)
            reused = answer.reused if isinstance(answer, Compiled) else bool(answer)
            return answer
        finally:
            seconds = round(progress.now() - begin, 3)
            parts.append({"name": name, "begin": begin, "seconds": seconds, "reused": reused})

    elsewhere = _elsewhere(evidence, checkpoint, settings)
    with threads(settings.threads) as submit:
        compiles = [
            submit(timed, f"XLA, {source}", precompile_xla, [g for g in graphs if g.abi.head == "logits"])
            for source, graphs in whole.items()
        ]
        compiles += [
            submit(
                timed, ", ".join(["IREE", *([str(device)] if device.remote else []), source, graph.name]), precompile, graph,
                device, with_stream=graph == production(evidence.graphs) and device == settings.device,
            )
            for device in dict.fromkeys([settings.device, CPU])
            for source, graphs in whole.items() for graph in graphs
            if not settings.small and (device == settings.device or graph.abi.head == "logits")
        ]  # fmt: skip
        others = [
            submit(timed, f"IREE for {device.kind}, {source}, {graph.name}", compile_for, source, graph, device)
            for source, graph, device in elsewhere
        ]
        with progress.stage("truth") as stage:
            # Prompts that differ only in their bucket have one truth.
            ids = list(dict.fromkeys(p.token_ids for p in evidence.prompts))
            found = truths(checkpoint, ids, settings.tokens, progress.report)
            by_ids = dict(zip(ids, found, strict=True))
            evidence.truths = {p.id: by_ids[p.token_ids] for p in evidence.prompts}
            stage["reused"] = all(t.reused for t in found)
            stage["detail"] = "; ".join(dict.fromkeys(t.moved for t in found if t.moved))
            stage["reused"] &= gather(evidence, checkpoint, settings, progress)
        with progress.stage("compile") as stage:
            for done, future in enumerate([*compiles, *others], 1):
                progress.report(f"compile, {done} of {len(compiles) + len(others)}")
                future.exception()  # a module that does not compile is its cell's to report
            evidence.compiled = [future.result() for future in others]
            evidence.checks += compile_checks(evidence.compiled)
            stage["reused"] = all(not f.exception() and f.result() for f in compiles)
            stage["reused"] &= all(row.reused for row in evidence.compiled)
            stage["parts"] = sorted(parts, key=lambda part: part["begin"])


def gather(
    evidence: Evidence, checkpoint: Checkpoint, settings: Settings, progress: Progress, decodes: bool = True
) -> bool:
    """What the cells are asked; whether all of its answers were in the cache.

    Where the config as it is read here gives what a graph returns another shape than transformers has, a check says so, and
    the cells are held to tokens and logits alone.
    """
    every_token = settings.every_token or not (settings.lean or settings.small)
    try:
        evidence.asked, reused = ask(
            checkpoint,
            evidence.prompts,
            evidence.truths,
            settings.capacity,
            settings.buckets,
            every_token,
            progress.report,
            decodes,
        )
    except InputError as error:
        if error.where not in anchors(checkpoint.config):
            raise
        title = "what a graph returns has the shapes that transformers has"
        evidence.checks.append(Check("oracle.shapes", title, "failed", "", "", str(error)))
        evidence.asked, reused = Asked(evidence.prompts, evidence.truths), False
    return reused


def _elsewhere(
    evidence: Evidence, checkpoint: Checkpoint, settings: Settings
) -> list[tuple[str, Graph, Device]]:  # fmt: skip
    """What a run on the processor also compiles: every graph of a session on a GPU, and of the largest model the two that
    it spends its time in for every target there is.
    """
    if settings.small or settings.device.remote:
        return []
    cuda = compiled_for("cuda")
    with planted(settings.mutant):
        choice = untuned(device=cuda)
        emitted = production_graphs(checkpoint, settings.precision, choice, specifications(settings, "token"))
    wanted = [("emitter", graph, cuda) for graph in emitted]
    wanted += [("oracle", graph, cuda) for graph, facts in evidence.graphs["oracle"] if not facts.error]
    if settings.lean:
        return wanted
    return [
        *wanted,
        *(("emitter", g, d) for d in for_every_target() if d.kind not in ("cpu", "cuda") for g in emitted[:2]),
    ]


def precompile_xla(graphs: list[Graph]) -> bool:
    """Put the graphs' executables into the cache; returns whether all were there."""
    if all(has_compiled(graph) for graph in graphs):
        return True
    run_in_child(_compile_xla, graphs, timeout=PREPARE_SECONDS)
    return False


def _compile_xla(report: Report, graphs: list[Graph]) -> None:
    backend = make_backend("xla-cpu", threads=1)
    for graph in graphs:
        backend.load(graph)


def on_device(evidence: Evidence, settings: Settings) -> None:
    """What is known of the production graph of decode as the device will run it, and what that multiplies with."""
    found = device_checks(production(evidence.graphs), settings.device)
    evidence.checks += found
    if settings.device.remote:
        read = next((check.figure for check in found if check.id.endswith(".arithmetic")), "float32")
        evidence.arithmetic = f"{read}, {settings.device.name}"


def device_checks(graph: Graph, device: Device) -> list[Check]:
    """What IREE makes of the production graph of decode, before it is run."""
    try:
        stream = compile_to_stream(graph, device)
    except ToolchainError as error:
        return [Check("emitter.caches-in-place", "no copy of a cache", "error", "", "", str(error))]
    checks = [caches_in_place(graph, stream)]
    if device.remote:
        checks.append(read_backs(stream))
    if device.of_cuda:
        found = {graph.name: arithmetic_of(module_path(graph, device).read_bytes())}
        checks.append(arithmetic_check(f"emitter/{device.backend}", found))
    return checks
