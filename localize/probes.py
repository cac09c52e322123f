"""Each anchor's computation on inputs that no prompt reaches: large, small, masked at random, with ties.

A graph that is right on every prompt may still overflow where another checkpoint would take it. Both graphs are given
the same inputs, so they may differ by the order of their sums and by no more.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hloracle.core.child import Report
from hloracle.localize.anatomy import Anatomy, Subgraph
from hloracle.localize.blame import blame, found_by_likeness, found_by_repair
from hloracle.localize.calls import probes_of
from hloracle.localize.inputs import inputs, read, scales, share_of
from hloracle.localize.operations import Found
from hloracle.localize.suspect import Suspect
from hloracle.localize.unlike import unlike
from hloracle.localize.workbench import Workbench
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.repair.subject import CANNOT

SECONDS = 20.0  # for changes of the operations of the first subgraph that differs


@dataclass(frozen=True)
class Failure:
    """A subgraph that differs: at which scale of its inputs, by how much of what is allowed, and the operation.

    Of several scales, the most ordinary one. `found` is of the first subgraph that differs. sole: whether a change of this operation,
    and of no other one, makes it equal.
    """

    anchor: str
    phase: str
    scale: float
    share: float
    found: Found | None
    sole: bool = False


def probe(
    emitter: Anatomy, oracle: Anatomy, bench: Workbench, report: Report, locate: bool = True, same_inputs: bool = False
) -> tuple[int, list[Failure], float, list[str]]:
    """Compare every distinct subgraph of the emitter's graph with the oracle's.

    Args:
      locate: look for the operation in the first subgraph that differs.
      same_inputs: leave out a subgraph that reads other anchors than the oracle's, as where a graph does not name them all.

    Returns how many there are, those that differ, the largest share of what is allowed that a right one took, and the
    anchors that were left out.
    """
    seen: set[tuple[str, ...]] = set()
    known = set(anchors(emitter.config))
    failures: list[Failure] = []
    left: dict[tuple[str, ...], str] = {}
    worst = 0.0
    for anchor in emitter.anchors:
        # Cache writes differ from layer to layer by a constant: the first two and the last stand for all.
        layer, part = split(anchor)
        if part in CACHES and layer not in (0, 1, emitter.config.num_hidden_layers - 1):
            continue
        subgraph = emitter.subgraph(anchor)
        key = _kind(subgraph)
        if key in seen or key in left:
            continue
        # A token is chosen from the logits; of a graph that does not name them its subgraph is the whole.
        alike = anchor == "token" or anchor in oracle.values
        if same_inputs and alike:
            own = read(subgraph, known)
            alike = "lm_head" in own if anchor == "token" else own == read(oracle.subgraph(anchor), known)
        if not alike:
            left[key] = anchor
            continue
        seen.add(key)
        report(f"probing {anchor} of {emitter.graph.name}")
        shares = []
        for scale in scales(emitter.graph.abi.compute):
            got, expected = _both(emitter, oracle, subgraph, bench, scale)
            both = zip(got, expected, strict=False)
            shares.append(([share_of(anchor, g, e, emitter.graph) for g, e in both], scale))
        beyond = [s for s in shares if not all(share <= 1 for share in s[0])]
        if not beyond:
            worst = max(worst, *(max(share) for share, _ in shares))
            continue
        of_results, scale = beyond[0]
        found, sole = None, False
        if locate and not failures:
            with suppress(*CANNOT):  # what has no meaning in NumPy
                suspect = Suspect(emitter, probes_of(emitter, oracle, bench.weight))
                blamed = blame(suspect, anchor, SECONDS)
                found, sole = found_by_repair(suspect, blamed), blamed.only
                found = found or found_by_likeness(suspect, anchor)
            if found is None and anchor in oracle.values:
                wrong = [i for i, share in enumerate(of_results) if not share <= 1]
                found = unlike(emitter, subgraph, oracle, inputs(emitter, bench.weight, scale), bench, wrong)
        failures.append(Failure(anchor, emitter.graph.abi.phase, scale, max(of_results), found, sole))
    return len(seen), failures, worst, list(left.values())


def _kind(subgraph: Subgraph) -> tuple[str, ...]:
    """Alike for the same computation of two layers: its part, its text, and what it reads, seen from its layer."""
    own, part = split(subgraph.anchor)
    names = [part, subgraph.graph.text]
    for argument in subgraph.graph.abi.arguments:
        name = argument.name.removeprefix("model.").removesuffix("+")
        layer, part = split(name)
        names.append(name if layer is None or own is None else f"{layer - own} {part}")
    return tuple(names)


def _both(
    emitter: Anatomy, oracle: Anatomy, subgraph: Subgraph, bench: Workbench, scale: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    value = inputs(emitter, bench.weight, scale)
    got = bench.run(subgraph.graph, value)
    if subgraph.anchor == "token":
        return got, [np.array(np.argmax(value("lm_head"), axis=-1), np.int32)]
    return got, bench.run(oracle.subgraph(subgraph.anchor).graph, value)
