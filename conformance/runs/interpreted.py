"""What the judged graphs mean: a sample of their anchors, evaluated by StableHLO's reference interpreter.

Compilers that run a graph may be right together where the graph, as it is written, is not: they may leave out a rounding
that it asks for. And what no compiler gets wrong today another one may.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hloracle.backends.words import INTERPRETER
from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.context import Context
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.runs.configurations import backend_sources
from hloracle.conformance.runs.inside import NO_ANCHORS, looking
from hloracle.conformance.verdict.localization import weights_of
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry, digest
from hloracle.core.child import ChildDied
from hloracle.core.errors import ToolchainError
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.word import Word
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

TIMEOUT_SECONDS = 600
TITLE = "StableHLO's interpreter computes a sample of the anchors right"
# Elements that are evaluated one by one for a graph: some 2 s.
EFFORT = 3_000_000


@dataclass(frozen=True)
class Interpreted:
    """The words on a graph's anchors, in the order of computation, of how many it has."""

    graph: str
    words: list[Word]
    anchors: int


def run_interpreted(
    context: Context, source: str, graphs: Sequence[Graph], model: Checkpoint, of: tuple[Prompt, AnchorTruth]
) -> tuple[Check, bool]:  # fmt: skip
    """The check, and whether its outcome was in the cache.

    Args:
      graphs: of the source: decode, prefill in the prompt's bucket, or both, with their anchors named.
      of: the prompt, and the reference of it and of the tokens after it.
    """
    question = Question("interpreter", TITLE, source)
    prompt, truth = of
    parts: list[str | bytes] = [
        model.digest, *backend_sources(), *looking(Path(__file__)), truth.folder.parent.name, truth.folder.name,
        json.dumps([EFFORT, prompt.bucket, len(prompt.token_ids), truth.tokens]),
        *(g.identity for g in graphs),
    ]  # fmt: skip
    entry: Entry[list[Interpreted]] = context.entry("interpreted", list[Interpreted], parts, on=INTERPRETER)
    try:
        found, reused = entry.get(
            lambda: (
                context.child(_run, list(graphs), model.directory, of, timeout=context.at_most(TIMEOUT_SECONDS)).value
            )
        )
    except (ToolchainError, ChildDied) as error:
        return question.skipped(str(error)), False
    return interpreter_check(source, found), reused


def interpreter_check(source: str, found: Sequence[Interpreted]) -> Check:
    """Every anchor of which the interpreter has a word is within its floors; without any word nothing was checked."""
    question = Question("interpreter", TITLE, source)
    words = [(one.graph, word) for one in found for word in one.words]
    said = [(word.off, graph, word) for graph, word in words if word.off is not None]
    if not said:
        why = next((word.why_not for _, word in words), "")
        return question.skipped(why or NO_ANCHORS)
    off, _, furthest = max(said, key=lambda s: s[0])
    silent = [word.anchor for _, word in words if word.off is None]
    all_of = sum(one.anchors for one in found)
    figure = f"{len(said)} of {all_of} anchors, at most {off:.2f} floors off ({furthest.anchor}, {furthest.phase})"
    if silent:
        figure += f"; it has no word on {len(silent)} that it was asked of, such as {silent[0]}"
    wrong = next(((graph, word) for _, graph, word in said if word.wrong), None)
    detail = f"{wrong[1].anchor} of {wrong[0]} is {wrong[1].off:.3g} floors off, from right inputs" if wrong else ""
    anchor = wrong[1].anchor if wrong else ""
    return question.judged(wrong is None, figure, f"at most {ANCHOR_FLOORS:g} floors", detail, anchor)


def _run(
    context: Context, graphs: list[Graph], directory: Path, of: tuple[Prompt, AnchorTruth]
) -> list[Interpreted]:  # fmt: skip
    from hloracle.localize.anatomy import anatomy_of
    from hloracle.localize.situation import ReferenceRun
    from hloracle.localize.witness import evaluations, word_of
    from hloracle.localize.workbench import Workbench

    model, (prompt, truth) = open_checkpoint(directory), of
    run = ReferenceRun(truth, model.config, model.load, len(prompt.token_ids), prompt.bucket)
    weights = weights_of(graphs, model.config)
    bench = Workbench(context.backend(INTERPRETER), run.weight, weights)
    found = []
    for graph in graphs:
        anatomy = anatomy_of(graph, model.config)
        mine, phase, capacity = run.of(graph.abi), graph.abi.phase, graph.abi.capacity
        situation = mine.step(capacity, len(truth.tokens) - 1) if phase == "decode" else mine.prompt(phase, capacity)
        order = [a for a in anatomy.anchors if a != "token"]
        # Another graph gets another sample, so that in time all are tried.
        cost, chosen = 0, list[str]()
        for anchor in sorted(order, key=lambda a: digest(graph.text, a)):
            if cost + (more := evaluations(anatomy.subgraph(anchor))) <= EFFORT:
                cost, chosen = cost + more, [*chosen, anchor]
        words = []
        for anchor in (a for a in order if a in chosen):
            context.report(f"StableHLO's interpreter: {anchor} of {graph.name}")
            words.append(
                word_of(anatomy.subgraph(anchor), situation, partial(situation.value, weight=bench.weight), bench)
            )
        found.append(Interpreted(graph.name, words, len(order)))
    return found
