"""A layer as a drawing: its parts in ranks from top to bottom, and what reads what as lines between them.

A part stands below everything that it reads. A line goes straight down where nothing stands in its way, and else through
a lane on the right, where the residual stream is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hloracle.core.record import Block, Node
from hloracle.reports.facts import layer_of

WIDTH, HEIGHT = 212, 26  # of a part, in units of the drawing
ACROSS, DOWN = 224, 44  # from one part to the next
LANE = 14  # between lines on the right
MARGIN = 6


@dataclass(frozen=True)
class Place:
    """The middle of a part."""

    x: float
    y: float


def drawing(block: Block) -> dict[str, Any]:
    """The places of a block's nodes, its lines as paths, and how large the whole is."""
    edges = [(a, b) for a, b in block["edges"]]
    n = len(block["nodes"])
    ranks = _ranks(n, edges)
    columns = _columns(ranks, edges)
    low, high = min(columns, default=0.0), max(columns, default=0.0)
    places = [
        Place(MARGIN + WIDTH / 2 + (x - low) * ACROSS, MARGIN + HEIGHT / 2 + rank * DOWN)
        for x, rank in zip(columns, ranks, strict=True)
    ]
    right = MARGIN + WIDTH + (high - low) * ACROSS
    lanes: list[tuple[int, int]] = []  # what each lane is taken by: ranks
    paths = []
    for a, b in sorted(edges, key=lambda e: (ranks[e[1]] - ranks[e[0]], e)):
        begin, end = places[a], places[b]
        passed = [places[i].x for i in range(n) if ranks[a] < ranks[i] < ranks[b]]
        free = [x for x in (begin.x, end.x) if all(abs(x - other) > WIDTH / 2 for other in passed)]
        if free:
            paths.append(_down(begin, end, free[0]))
        else:
            taken = (ranks[a], ranks[b])
            lane = next((k for k, other in enumerate(lanes) if _apart(other, taken)), len(lanes))
            if lane == len(lanes):
                lanes.append(taken)
            else:
                lanes[lane] = (min(lanes[lane][0], taken[0]), max(lanes[lane][1], taken[1]))
            paths.append(_around(begin, end, right + LANE * (lane + 1)))
    return {
        "width": round(right + LANE * (len(lanes) + 1) + MARGIN),
        "height": round(2 * MARGIN + HEIGHT + DOWN * max(ranks, default=0)),
        "part_width": WIDTH,
        "part_height": HEIGHT,
        "paths": paths,
        "nodes": [
            {"node": node, "x": place.x - WIDTH / 2, "y": place.y - HEIGHT / 2, "label": label_of(node)}
            for node, place in zip(block["nodes"], places, strict=True)
        ],
    }


def label_of(node: Node) -> str:
    """What is written into a part: the anchor within the layer, or else the operations."""
    if not node["anchor"]:
        return ", ".join(f"{op} ×{count}" if count > 1 else op for op, count in node["ops"].items()) or "?"
    layer, part = layer_of(node["anchor"])
    return part or (f"layer {layer}" if layer is not None else node["anchor"])


def _ranks(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The length of the longest way to each node. Edges lead from smaller to larger indices."""
    ranks = [0] * n
    for a, b in sorted(edges):
        ranks[b] = max(ranks[b], ranks[a] + 1)
    return ranks


def _columns(ranks: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[float]:
    """How far from the middle each node stands: below what it reads, and apart from its neighbours."""
    columns = [0.0] * len(ranks)
    for rank in range(max(ranks, default=-1) + 1):
        nodes = [i for i, r in enumerate(ranks) if r == rank]
        if len(nodes) == 1:
            continue  # alone, in the middle
        wanted = {}
        for k, i in enumerate(nodes):
            sources = [columns[a] for a, b in edges if b == i]
            wanted[i] = sum(sources) / len(sources) if sources else k - (len(nodes) - 1) / 2
        nodes.sort(key=lambda i: (wanted[i], i))
        at: list[float] = []
        for i in nodes:
            at.append(max(wanted[i], at[-1] + 1) if at else wanted[i])
        # Pushed apart to the right: as a whole they go back to where they wanted to be.
        shift = sum(wanted.values()) / len(nodes) - sum(at) / len(at)
        for i, x in zip(nodes, at, strict=True):
            columns[i] = x + shift
    return columns


def _apart(taken: tuple[int, int], wanted: tuple[int, int]) -> bool:
    return taken[1] <= wanted[0] or wanted[1] <= taken[0]


def _down(begin: Place, end: Place, x: float) -> str:
    """From the bottom of one part to the top of another, straight at `x`, which is where one of them stands."""
    y1, y2, gap = begin.y + HEIGHT / 2, end.y - HEIGHT / 2 - 3, DOWN - HEIGHT
    bend = f"{gap / 2:g}"
    if x == begin.x:
        way = f"V{y2 - gap + 3:g}c0 {bend} {end.x - x:g} {gap / 2 - 3:g} {end.x - x:g} {gap - 3:g}"
    else:
        way = f"c0 {bend} {x - begin.x:g} {bend} {x - begin.x:g} {gap:g}V{y2:g}"
    return f"M{begin.x:g} {y1:g}{way}"


def _around(begin: Place, end: Place, x: float) -> str:
    """From the right side of one part to the right side of another, through a lane."""
    r = 8
    return f"M{begin.x + WIDTH / 2:g} {begin.y:g}H{x - r:g}q{r} 0 {r} {r}V{end.y - r:g}q0 {r} {-r} {r}H{end.x + WIDTH / 2 + 3:g}"
