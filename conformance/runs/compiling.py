"""What is compiled before anything is run, beside the truth; and what is known of it then."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hloracle.backends.devices import CPU, Device, compiled_for
from hloracle.backends.iree import COMPILE_SECONDS, compile_to_stream, module_path, precompile
from hloracle.backends.xla import has_compiled
from hloracle.conformance.checks.census import NOT_PINNED
from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.checks.of_stream import caches_in_place, read_backs
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Run
from hloracle.conformance.graphs.sources import Files, Request, Source, graphs_of, production
from hloracle.conformance.matrix import ORACLE
from hloracle.conformance.questions.prompts import Reach
from hloracle.conformance.questions.questions import Asked, ask
from hloracle.conformance.runs.code_generation import (
    Compiled,
    arithmetic_check,
    arithmetic_of,
    compile_all,
    compile_checks,
    compile_for,
)
from hloracle.core.abi import Graph
from hloracle.core.child import Answer, threads
from hloracle.core.errors import InputError, ToolchainError
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.anchors import anchors

Elsewhere = tuple[str, Graph, Device]  # a source's graph for a device that nothing runs on
PREPARE_SECONDS = 900


@dataclass
class Patience:
    """The seconds that a compiler is given for a graph: once one has not ended, the others are given a tenth.

    They would be waited for one after the other.
    """

    seconds: float
    late: bool = False

    def precompiled(self, graph: Graph, device: Device, stream: bool) -> bool:
        """See `precompile`."""
        try:
            return precompile(graph, device, stream, self.seconds)
        except ToolchainError as error:
            self._note(error.stage)
            raise

    def compiled_for(self, source: str, graph: Graph, device: Device) -> Compiled:
        """See `compile_for`."""
        found = compile_for(source, graph, device, self.seconds)
        self._note(found.stage)
        return found

    def _note(self, stage: str) -> None:
        if stage == "timeout" and not self.late:
            self.seconds, self.late = self.seconds / 10, True


def truth_and_modules(run: Run, elsewhere: Sequence[Elsewhere] = ()) -> None:
    """The reference and the compiled modules, side by side: each is the work of one core.

    Args:
      elsewhere: graphs that are compiled for devices that nothing runs on.
    """
    evidence, progress = run.evidence, run.context.progress
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

    patience = Patience(run.context.at_most(COMPILE_SECONDS))
    oracle = [(ORACLE, graph, compiled_for("cuda")) for graph in evidence.whole(ORACLE)]
    with threads(run.context.threads) as pool:
        compiles = [pool.submit(timed, name, work, *arguments) for name, work, *arguments in _modules(run, patience)]
        if elsewhere and not run.settings.quick:
            elsewhere = [*elsewhere, *oracle]
        others = [
            pool.submit(
                timed, f"IREE for {device.kind}, {source}, {graph.name}", patience.compiled_for, source, graph, device
            )
            for source, graph, device in elsewhere
        ]
        reference(run)
        with progress.stage("compile") as stage:
            for done, future in enumerate([*compiles, *others], 1):
                progress.report(f"compile, {done} of {len(compiles) + len(others)}")
                future.exception()  # a module that does not compile is its configuration's to report
            evidence.compiled = [future.result() for future in others]
            if run.settings.quick and not all(row.ok for row in evidence.compiled):
                evidence.compiled += compile_all(
                    oracle, run.context.threads, patience.seconds
                )  # they tell whose fault it is
            evidence.checks += compile_checks(evidence.compiled)
            stage["reused"] = all(not f.exception() and f.result() for f in compiles)
            stage["reused"] &= all(row.reused for row in evidence.compiled)
            stage["parts"] = sorted(parts, key=lambda part: part["begin"])


def _modules(run: Run, patience: Patience) -> list[tuple[Any, ...]]:
    """What is compiled before it is run: a name, a function, and its arguments."""
    context, evidence = run.context, run.evidence
    found: list[tuple[Any, ...]] = []
    for source in evidence.graphs:
        whole = evidence.whole(source)
        if any(b.family == "xla" and b.in_process for b in context.backends):
            # A graph that picks the token is the logits' graph on XLA, unless there is none.
            logits = [g for g in whole if g.abi.head == "logits"] or whole
            found.append((f"XLA, {source}", precompile_xla, context, logits))
        for device in dict.fromkeys([context.device, CPU]):
            if device.backend not in context.names or run.settings.early_exit:
                continue
            if source == ORACLE and run.settings.quick:
                continue  # it is asked where a judged graph is wrong
            for graph in whole:
                if device == context.device or graph.abi.head == "logits":
                    name = ", ".join(["IREE", *([str(device)] if device.remote else []), source, graph.name])
                    stream = graph == production(whole) and source != ORACLE and device == context.device
                    found.append((name, patience.precompiled, graph, device, stream))
    return found


def reference(run: Run) -> None:
    """What Hugging Face answers to the prompts, and what the graphs' caches and heads should hold."""
    evidence, settings, progress = run.evidence, run.settings, run.context.progress
    with progress.stage("truth") as stage:
        # Prompts that differ only in their bucket have one truth.
        ids = list(dict.fromkeys(p.token_ids for p in evidence.prompts))
        found = truths(run.model, ids, settings.tokens, progress.report)
        stage["reused"] = all(t.reused for t in found)
        if not evidence.steps:  # a prefill alone answers with the first token
            found = [dataclasses.replace(t, tokens=t.tokens[:1], logits=t.logits[:1], exact=t.exact[:1]) for t in found]
        by_ids = dict(zip(ids, found, strict=True))
        evidence.truths = {p.id: by_ids[p.token_ids] for p in evidence.prompts}
        stage["reused"] &= _asked(run)


def _asked(run: Run) -> bool:
    """What the configurations are asked; whether all of its answers were in the cache.

    Where the config as it is read here gives what a graph returns another shape than transformers has, a check says so, and
    the configurations are held to tokens and logits alone.
    """
    evidence, settings = run.evidence, run.settings
    every_token = settings.every_token or not (settings.quick or settings.early_exit)
    try:
        reach = Reach(evidence.capacity, evidence.buckets, evidence.decodes, evidence.in_parts)
        evidence.asked, reused = ask(
            run.model, evidence.prompts, evidence.truths, reach, every_token, run.context.report
        )  # fmt: skip
    except InputError as error:
        if error.where not in anchors(run.model.config):
            raise
        question = Question("shapes", "what a graph returns has the shapes that transformers has", ORACLE)
        evidence.checks.append(question.judged(False, "", "", str(error)))
        evidence.asked, reused = Asked(evidence.prompts, evidence.truths), False
    return reused


def elsewhere(run: Run) -> list[Elsewhere]:
    """What a run on the processor also compiles: every graph of a session on a GPU.

    Graphs that are given as files are what they are, and are compiled for nothing else.
    """
    if run.settings.early_exit or run.context.device.remote or not _on_iree(run):
        return []
    cuda = compiled_for("cuda")
    found: list[Elsewhere] = []
    for source in run.sources:
        if isinstance(source, Files):
            continue
        settings = run.settings
        request = Request(run.model, "decode", "token", settings.capacity, 0, settings.precision, cuda, settings.batch)
        # A source may have none that picks the token.
        with contextlib.suppress(InputError):
            graphs = graphs_of(source, request, settings.prompt, settings.buckets, ["token"])
            found += [(source.name, graph, cuda) for graph in graphs]
    return found


def precompile_xla(context: Context, graphs: list[Graph]) -> bool:
    """Put the graphs' executables into the cache; returns whether all were there."""
    if all(has_compiled(graph) for graph in graphs):
        return True
    context.child(_compile_xla, graphs, timeout=context.at_most(PREPARE_SECONDS))
    return False


def _compile_xla(context: Context, graphs: list[Graph]) -> None:
    backend = context.backend("xla-cpu")
    for graph in graphs:
        backend.load(graph)


NO_TOKEN = "no decode graph of this source picks the token"
NOT_IREE = "IREE is none of the backends"


def _on_iree(run: Run) -> bool:
    """Whether graphs run on IREE here: otherwise nothing is judged by its compiler either."""
    return any(backend.family == "iree" and backend.in_process for backend in run.context.backends)


def on_device(run: Run) -> None:
    """What is known of each source's decode graph as the device will run it, and what that multiplies with.

    Asked of graphs that pick the token, whose other results are the caches alone, and of sources with pinned counts.
    """
    evidence, device = run.evidence, run.context.device
    for source in run.sources:
        graph = production(evidence.whole(source.name))
        why_not = _not_asked(run, source, graph)
        if why_not or graph is None:
            question = Question("caches-in-place", "no copy of a cache in IREE's stream form of decode", source.name)
            evidence.checks.append(question.skipped(why_not))
            continue
        found = device_checks(source.name, graph, device, run.context.at_most(COMPILE_SECONDS))
        evidence.checks += found
        if device.remote:
            read = next((check.figure for check in found if check.kind == "arithmetic"), "float32")
            evidence.arithmetic = f"{read}, {device.name}"


def _not_asked(run: Run, source: Source, graph: Graph | None) -> str:
    if not source.counts_as:
        return NOT_PINNED
    if graph is None or graph.abi.head != "token":
        return NO_TOKEN
    return "" if _on_iree(run) else NOT_IREE


def device_checks(source: str, graph: Graph, device: Device, seconds: float = 0) -> list[Check]:
    """What IREE makes of the production graph of decode, before it is run; within so many seconds."""
    try:
        stream = compile_to_stream(graph, device, seconds)
    except ToolchainError as error:
        return [Question("caches-in-place", "no copy of a cache", source).error(str(error))]
    checks = [caches_in_place(graph, stream, source)]
    if device.remote:
        checks.append(read_backs(stream, source))
    if device.of_cuda:
        found = {graph.name: arithmetic_of(module_path(graph, device).read_bytes())}
        checks.append(arithmetic_check(source, device.backend, found))
    return checks
