"""The graphs side by side: censuses by kind, scopes with their operations aligned, and what a layer's parts read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hloracle.core.record import Graph, ListedOp, Listing, Record, Scope
from hloracle.reports.facts import in_order, layer_of, limits_of, share, source_of
from hloracle.reports.page import heat
from hloracle.reports.page.align import Pair, align, merged

PHASES = ("decode", "prefill", "extend")


def side_by_side(record: Record) -> list[dict[str, Any]]:
    """For each phase that has a listing: its scopes, each with both graphs' operations aligned.

    The phase that holds the first wrong operation comes first.
    """
    listings = {listing["graph"]: listing for listing in record["listings"]}
    listed = in_order(record, [graph for graph in record["graphs"] if graph["id"] in listings])
    phases = []
    for phase in PHASES:
        sides = [
            next(
                (
                    Side(graph, listings[graph["id"]], source["title"])
                    for graph in listed
                    if graph["phase"] == phase and (source := source_of(record, graph["source"]))["judged"] == judged
                ),
                None,
            )
            for judged in (False, True)
        ]
        if any(sides):
            phases.append(_phase(record, phase, sides))
    phases.sort(key=lambda p: not p["wrong"])
    return phases


@dataclass(frozen=True)
class Side:
    """A graph that is shown beside another: on the left what is judged by, on the right what is judged."""

    graph: Graph
    listing: Listing
    title: str


def _phase(record: Record, phase: str, sides: Sequence[Side | None]) -> dict[str, Any]:
    listed = [side.listing["scopes"] if side else [] for side in sides]
    wrong = _wrong(record, phase, sides)
    scopes: list[dict[str, Any]] = []
    for anchor in merged(*([scope["anchor"] for scope in side] for side in listed)):
        left, right = (_standing_for(anchor, side) for side in listed)
        scopes.append(_scope(f"{phase}-{len(scopes)}", anchor, left, right, wrong))
    return {"phase": phase, "sides": sides, "scopes": scopes, "wrong": any(scope["here"] for scope in scopes)}


@dataclass(frozen=True)
class Wrong:
    """Where the first wrong operation stands; `side` and `line` as far as they are known."""

    side: int | None
    line: int | None
    anchor: str


def _wrong(record: Record, phase: str, sides: Sequence[Side | None]) -> Wrong | None:
    """Nothing where what is wrong is in another phase."""
    found = record["localization"]
    if found is None or found["anchor"] is None or found["phase"] != phase:
        return None
    source = found["source"]
    at = next((i for i, side in enumerate(sides) if side and side.graph["source"] == source), None)
    operation, shown = found["operation"], None if at is None else sides[at]
    if operation is None:
        return Wrong(at, None, found["anchor"])
    mine = shown is None or operation["graph"] == shown.listing["name"]
    return Wrong(at, operation["line"] if mine else None, operation["anchor"])


def _standing_for(anchor: str, scopes: Sequence[Scope]) -> Scope | None:
    """The scope of an anchor, or the one of another layer that is like it."""
    layer, part = layer_of(anchor)
    for scope in scopes:
        if scope["anchor"] == anchor or (layer in scope["layers"] and layer_of(scope["anchor"])[1] == part):
            return scope
    return None


def _scope(id: str, anchor: str, left: Scope | None, right: Scope | None, wrong: Wrong | None) -> dict[str, Any]:
    ops = [side["ops"] if side else [] for side in (left, right)]
    rows = [_row(pair, ops) for pair in align(*ops)]
    here = wrong is not None and anchor == wrong.anchor
    marked = here and wrong is not None and _mark(rows, wrong)
    # Where the two group their layers otherwise, those that both take for alike.
    layers = [set(side["layers"]) for side in (left, right) if side]
    return {
        "id": id,
        "anchor": anchor,
        "layers": len(set.intersection(*layers)),
        "sides": [left, right],
        "rows": rows,
        "here": here,
        "marked": marked,
        "differs": any(row["state"] != "same" for row in rows),
    }


def _row(pair: Pair, ops: Sequence[Sequence[ListedOp]]) -> dict[str, Any]:
    sides = [None if i is None else some[i] for i, some in zip((pair.left, pair.right), ops, strict=True)]
    return {"state": pair.state, "sides": sides, "wrong": False, "marks": [False, False], "words": ["", ""]}


def _mark(rows: Sequence[dict[str, Any]], wrong: Wrong) -> bool:
    """Mark the wrong operation, and in the other graph its counterpart, or else what that graph ends the scope with."""
    side = wrong.side
    if side is None or wrong.line is None:
        return False
    row = next((row for row in rows if row["sides"][side] and row["sides"][side]["line"] == wrong.line), None)
    if row is None:
        return False
    row["wrong"] = row["marks"][side] = True
    row["words"][side] = "first wrong"
    peers = [row] if row["sides"][1 - side] else [other for other in rows if other["sides"][1 - side]]
    if peers:
        peers[-1]["marks"][1 - side] = True
        peers[-1]["words"][1 - side] = (
            "its counterpart" if peers == [row] else "has no counterpart; this ends the scope"
        )
    return True


def block(record: Record) -> dict[str, Any] | None:
    """One layer's parts in the order of computation: what each reads, its error, and which is the wrong one."""
    found, wrong = record["block"], record["verdict"]["anchor"]
    if found is None or not found["nodes"]:
        return None
    shares = by_itself(record) if record["localization"] else _worst_of_layers(record)
    reads: list[list[int]] = [[] for _ in found["nodes"]]
    for read, reader in found["edges"]:
        reads[reader].append(read)
    parts = []
    for node, read_here in zip(found["nodes"], reads, strict=True):
        anchor = node["anchor"]
        layer, kind = layer_of(anchor)
        error = shares.get(anchor, shares.get(kind) if layer is not None else None)
        parts.append(
            {"node": node, "kind": kind, "reads": read_here, "share": error, "wrong": bool(anchor) and anchor == wrong}
        )
    return {
        "layer": found["layer"],
        "graph": found["graph"],
        "parts": parts,
        "wrong": any(part["wrong"] for part in parts),
        "by_itself": record["localization"] is not None,
    }


def by_itself(record: Record) -> dict[str, float]:
    """Anchor -> what it adds as a share of its limit: a fault is dark where it is made, and not in all that follows."""
    limits, found = limits_of(record), record["localization"]
    errors = (e for e in found["errors"] if e["phase"] == found["phase"]) if found else ()
    shares = {e["anchor"]: share(e["local"], limits.get(e["anchor"])) for e in errors}
    return {anchor: x for anchor, x in shares.items() if x is not None}


def _worst_of_layers(record: Record) -> dict[str, float]:
    """Kind of anchor -> the worst of the judged graphs, over all layers, positions and prompts."""
    limits = limits_of(record)
    judged = [matrix for matrix in record["anchors"] if source_of(record, matrix["source"])["judged"]]
    values = (value for matrix in judged for value in heat.values_of(matrix, limits))
    return {kind: v.share for kind, v in heat.worst_by(values, lambda v: layer_of(v.anchor)[1]).items()}


def censuses(record: Record) -> list[dict[str, Any]]:
    """The operations of each phase's graphs, by kind."""
    there = {graph["phase"] for graph in record["graphs"]}
    return [_census(record, phase) for phase in PHASES if phase in there]


def _census(record: Record, phase: str) -> dict[str, Any]:
    """A column for each graph; graphs of one source whose censuses are equal share one."""
    columns: list[list[Graph]] = []
    for graph in in_order(record, sorted(record["graphs"], key=lambda g: g["bucket"] or 0)):
        if graph["phase"] == phase:
            alike = next((column for column in columns if _alike(column[0], graph)), None)
            if alike is None:
                columns.append([graph])
            else:
                alike.append(graph)
    found = [graphs[0]["ops"] for graphs in columns]
    counts = {op: [ops.get(op, 0) for ops in found] for op in sorted({op for ops in found for op in ops})}
    rows = sorted(counts.items(), key=lambda row: -max(row[1]))
    heads = [{"graphs": graphs, "title": source_of(record, graphs[0]["source"])["title"]} for graphs in columns]
    return {"phase": phase, "columns": heads, "rows": rows}


def _alike(a: Graph, b: Graph) -> bool:
    return (a["source"], a["head"], a["ops"], a["weights"]) == (b["source"], b["head"], b["ops"], b["weights"])
