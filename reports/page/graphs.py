"""The graphs side by side: censuses by kind, scopes with their operations aligned, and a layer as a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hloracle.reports.facts import SOURCES, Record, badness, in_order, layer_of, limits_of, share
from hloracle.reports.page import heat
from hloracle.reports.page.align import Pair, align
from hloracle.reports.page.blocks import drawing

PHASES = ("decode", "prefill")


def side_by_side(record: Record) -> list[dict[str, Any]]:
    """For each phase that has a listing: its scopes, each with both graphs' operations aligned.

    The phase that holds the first wrong operation comes first.
    """
    graphs = {graph["id"]: graph for graph in record["graphs"]}
    phases = []
    for phase in PHASES:
        listings = in_order(
            [{**x, **{k: graphs[x["graph"]][k] for k in ("source", "phase", "head")}} for x in record["listings"]]
        )
        of_phase = [listing for listing in listings if listing["phase"] == phase]
        if of_phase:
            phases.append(_phase(record, phase, of_phase, graphs))
    phases.sort(key=lambda p: not p["wrong"])
    return phases


def _phase(record: Record, phase: str, listings: Sequence[Record], graphs: dict[str, Record]) -> dict[str, Any]:
    oracle = next((x for x in listings if x["source"] == "oracle"), None)
    judged = next((x for x in listings if x["source"] != "oracle"), None)
    sides = [listing["scopes"] if listing else [] for listing in (oracle, judged)]
    wrong = _wrong(record, [oracle, judged])
    scopes: list[dict[str, Any]] = []
    for anchor in _merged([[scope["anchor"] for scope in side] for side in sides]):
        left, right = (_standing_for(anchor, side) for side in sides)
        scopes.append(_scope(phase, len(scopes), anchor, left, right, wrong))
    return {
        "phase": phase,
        "sides": [
            {**listing, "title": SOURCES[listing["source"]], "graph_row": graphs[listing["graph"]]} if listing else None
            for listing in (oracle, judged)
        ],
        "scopes": scopes,
        "wrong": any(scope["here"] for scope in scopes),
    }


def _wrong(record: Record, listings: Sequence[Record | None]) -> dict[str, Any] | None:
    """Where the first wrong operation stands: side, line and anchor. Nothing where the listings are of another phase."""
    found = record["localization"]
    sides = {listing["source"]: i for i, listing in enumerate(listings) if listing}
    if found is None or found["anchor"] is None:
        return None
    phase = next(listing["phase"] for listing in listings if listing)
    operation = found["operation"]
    if found["phase"] != phase:
        return None
    source = found["cell"].partition("/")[0]
    line = operation["line"] if operation else None
    side = sides.get(source)
    if operation and side is not None and operation["graph"] != (listings[side] or {}).get("name"):
        line = None
    return {"side": side, "line": line, "anchor": operation["anchor"] if operation else found["anchor"]}


def _merged(orders: Sequence[Sequence[str]]) -> Iterator[str]:
    """Two orders as one: what only the second has stands after what it follows there."""
    first, second = orders
    merged = list(first)
    at = -1
    for name in second:
        if name in merged:
            at = merged.index(name)
        else:
            at += 1
            merged.insert(at, name)
    yield from merged


def _standing_for(anchor: str, scopes: Sequence[Record]) -> Record | None:
    """The scope of an anchor, or the one of another layer that is like it."""
    layer, part = layer_of(anchor)
    for scope in scopes:
        if scope["anchor"] == anchor or (layer in scope["layers"] and layer_of(scope["anchor"])[1] == part):
            return scope
    return None


def _scope(
    phase: str, index: int, anchor: str, left: Record | None, right: Record | None, wrong: dict[str, Any] | None
) -> dict[str, Any]:  # fmt: skip
    ops = [side["ops"] if side else [] for side in (left, right)]
    here = wrong is not None and anchor == wrong["anchor"]
    rows = [_row(pair, ops) for pair in align(*ops)]
    marked = here and wrong is not None and _mark(rows, wrong)
    # Where the two group their layers otherwise, those that both take for alike.
    layers = [set(side["layers"]) for side in (left, right) if side]
    return {
        "id": f"{phase}-{index}",
        "anchor": anchor,
        "layers": len(set.intersection(*layers)),
        "sides": [left, right],
        "rows": rows,
        "here": here,
        "marked": marked,
        "differs": any(row["state"] != "same" for row in rows),
    }


def _row(pair: Pair, ops: Sequence[Sequence[Record]]) -> dict[str, Any]:
    sides = [None if i is None else some[i] for i, some in zip((pair.left, pair.right), ops, strict=True)]
    return {"state": pair.state, "sides": sides, "wrong": False, "marks": [False, False], "words": ["", ""]}


def _mark(rows: Sequence[dict[str, Any]], wrong: dict[str, Any]) -> bool:
    """Mark the wrong operation, and in the other graph its counterpart, or else what that graph ends the scope with."""
    side = wrong["side"]
    if side is None or wrong["line"] is None:
        return False
    row = next((row for row in rows if row["sides"][side] and row["sides"][side]["line"] == wrong["line"]), None)
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
    """The drawing of one layer: its parts with an error each, and the wrong one marked."""
    if record["block"] is None or not record["block"]["nodes"]:
        return None
    wrong, found = record["verdict"]["anchor"], drawing(record["block"])
    shares = by_itself(record) if record["localization"] else _worst_of_layers(record)
    for entry in found["nodes"]:
        anchor = entry["node"]["anchor"]
        layer, kind = layer_of(anchor)
        entry["wrong"] = bool(anchor) and anchor == wrong
        entry["share"] = shares.get(anchor, shares.get(kind) if layer is not None else None)
        entry["shade"] = None if entry["share"] is None else heat.shade(entry["share"])
    return {
        **found,
        "layer": record["block"]["layer"],
        "wrong": any(entry["wrong"] for entry in found["nodes"]),
        "measured": any(entry["share"] is not None for entry in found["nodes"]),
        "by_itself": record["localization"] is not None,
    }


def by_itself(record: Record) -> dict[str, float]:
    """Anchor -> what it adds as a share of its limit: a fault is dark where it is made, and not in all that follows."""
    limits, found = limits_of(record), record["localization"]
    errors = (e for e in found["errors"] if e["phase"] == found["phase"])
    shares = {e["anchor"]: share(e["local"], limits.get(e["anchor"])) for e in errors}
    return {anchor: x for anchor, x in shares.items() if x is not None}


def _worst_of_layers(record: Record) -> dict[str, float]:
    """Kind of anchor -> the worst of the judged graphs, over all layers, positions and prompts."""
    limits = limits_of(record)
    worst: dict[str, float] = {}
    for matrix in record["anchors"]:
        if not matrix["cell"].startswith("oracle/"):
            for value in heat.values_of(matrix, limits):
                kind = layer_of(value.anchor)[1]
                worst[kind] = max(worst.get(kind, 0.0), value.share, key=badness)
    return worst


def censuses(record: Record) -> list[dict[str, Any]]:
    return [_census(record, phase) for phase in PHASES]


def _census(record: Record, phase: str) -> dict[str, Any]:
    """Operations by kind, a column for each graph; graphs of one source whose censuses are equal share a column."""
    columns: list[dict[str, Any]] = []
    for graph in in_order(sorted(record["graphs"], key=lambda g: g["bucket"] or 0)):
        if graph["phase"] != phase:
            continue
        for column in columns:
            first = column["graphs"][0]
            if all(first[key] == graph[key] for key in ("source", "head", "ops", "weights")):
                column["graphs"].append(graph)
                break
        else:
            columns.append({"graphs": [graph], **{key: graph[key] for key in ("source", "head", "ops")}})
    oracles = [c["ops"] for c in columns if c["source"] == "oracle"]
    base = oracles[0] if len(oracles) == 1 else None
    kinds = {op for column in columns for op in column["ops"]}
    largest = max((n for c in columns for n in c["ops"].values()), default=0) or 1
    rows = []
    for op in sorted(kinds, key=lambda op: (-max(c["ops"].get(op, 0) for c in columns), op)):
        entries = []
        for column in columns:
            n = column["ops"].get(op, 0)
            delta = n - base.get(op, 0) if base is not None and column["source"] != "oracle" else None
            entries.append({"n": n, "delta": delta, "width": f"{100 * n / largest:.4g}", "source": column["source"]})
        rows.append({"op": op, "entries": entries})
    return {"phase": phase, "columns": columns, "rows": rows}
