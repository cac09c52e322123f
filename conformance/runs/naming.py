"""Graphs of somebody else's with their anchors named, so that what looks into graphs can look into them.

A graph of the contract that names anchors is left as it is. Of any other they are found by number.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hloracle.backends.session import Backend
from hloracle.conformance.context import Context
from hloracle.conformance.runs.configurations import backend_sources, where
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry
from hloracle.core.child import Report
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

TIMEOUT_SECONDS = 600


def name_graphs(
    context: Context, pairs: Sequence[tuple[Graph, Graph]], model: Checkpoint, truth: AnchorTruth, length: int
) -> list[Graph]:  # fmt: skip
    """The same graphs, each with its anchors at locations of their names. Raises ChildDied and ToolchainError.

    Args:
      pairs: a graph, and the oracle's of the same phase and bucket. truth: of a sequence, whose first `length` tokens are the
        prompt.
    """
    from hloracle.conformance.runs.inside import looking

    parts: list[str | bytes] = [
        model.digest, *backend_sources(), *looking(Path(__file__)), *where(context, context.matrix.quick),
        truth.folder.parent.name, truth.folder.name, str(length), *(g.identity for pair in pairs for g in pair),
        json.dumps([(g.inner, g.rows) for g, _ in pairs]),
    ]  # fmt: skip
    entry: Entry[list[tuple[str, str]]] = context.entry("named", list[tuple[str, str]], parts, on=context.matrix.quick)
    arguments = (list(pairs), model.directory, truth, length)
    texts, _ = entry.get(lambda: context.child(_name, *arguments, timeout=context.at_most(TIMEOUT_SECONDS)).value)
    return [_with_text(graph, text, written) for (graph, _), (text, written) in zip(pairs, texts, strict=True)]


def _with_text(graph: Graph, text: str, written: str) -> Graph:
    return dataclasses.replace(graph, text=text, written=written, inner="" if written else graph.inner)


def _name(
    context: Context, pairs: list[tuple[Graph, Graph]], directory: Path, truth: AnchorTruth, length: int
) -> list[tuple[str, str]]:  # fmt: skip
    model = open_checkpoint(directory)
    backend = context.backend(context.matrix.quick)
    found = [named(g, oracle, model, (truth, length), backend, context.report) for g, oracle in pairs]
    return [(g.text, g.written) for g in found]


def named(
    graph: Graph, oracle: Graph, model: Checkpoint, of: tuple[AnchorTruth, int], backend: Backend, report: Report
) -> Graph:  # fmt: skip
    """A graph with its anchors at locations of their names: itself, where it is of the contract and names any.

    Args:
      of: the reference of a sequence, and how many of its tokens are the prompt: the call that is looked at is the prefill of
        these, or the last decode step.
    """
    from hloracle.localize.anatomy import anatomy_of
    from hloracle.localize.naming import Search, explicit
    from hloracle.localize.situation import ReferenceRun
    from hloracle.localize.workbench import Workbench

    if not graph.inner and anatomy_of(graph, model.config).values.keys() - {"token"}:
        return graph
    peer = anatomy_of(oracle, model.config)
    truth, length = of
    bucket = graph.abi.bucket
    run = ReferenceRun(truth, model.config, model.load, min(length or 1, bucket or length), bucket)
    capacity = graph.abi.capacity
    # Where a step sees every slot, scores before the mask are those behind it.
    last = min(len(truth.tokens) - 1, max(capacity - 2, 0))
    situation = run.prompt(graph.abi.phase, capacity) if bucket else run.step(capacity, last)
    names = frozenset(w.name for w in graph.abi.weights)
    bench: Any = Workbench(backend, model.load, names)
    found = Search(graph, situation, bench, peer.reads(), report).named()
    return explicit(graph, found, model.config, situation)
