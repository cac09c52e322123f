"""Which graphs a report sets side by side."""

from __future__ import annotations

from collections.abc import Sequence

from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Evidence
from hloracle.conformance.graphs.listing import Reading, read
from hloracle.core.abi import Graph
from hloracle.reference.model.contract import PHASES

Shown = list[tuple[str, Graph, Reading]]  # with their sources


def chosen_graphs(evidence: Evidence) -> list[tuple[str, Graph]]:
    """Of each phase one graph of each source, the same one of all."""
    return [
        (source, graph)
        for phase in reversed(PHASES) for source in evidence.graphs if (graph := _shown(evidence, source, phase))
    ]  # fmt: skip


def _shown(evidence: Evidence, source: str, phase: str) -> Graph | None:
    """The graph that was taken apart, or one as that; or else the smallest that gives logits."""
    graphs = [g for g, facts in evidence.graphs[source] if g.abi.phase == phase and not facts.error]
    found = evidence.localization
    name = found.operation["graph"] if found and found.operation else ""
    bucket = found.plan.at.prompt.bucket if found else 0

    def unlike(graph: Graph) -> tuple[bool, bool, bool]:
        return graph.name != name, phase != "decode" and graph.abi.bucket != bucket, graph.abi.head != "logits"

    return min(graphs, key=unlike, default=None)


def read_graphs(context: Context, graphs: Sequence[tuple[str, Graph]]) -> Shown:
    """What a reader is shown of them. Called in a child process."""
    context.report("reading the graphs")
    return [(source, graph, read(graph)) for source, graph in graphs]
