"""The listed graphs for Model Explorer (github.com/google-ai-edge/model-explorer), with the errors at their anchors.

Two files: a graph collection in its JSON form, a graph for each listing; and node data, which colours the operations of a
scope by how far its anchor is off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hloracle.core.files import write_file
from hloracle.core.record import Graph, ListedOp, Listing, Record, Scope
from hloracle.reports.facts import badness, layer_of, limits_of
from hloracle.reports.page.graphs import by_itself
from hloracle.reports.page.heat import values_of, worst_by

MOST = 1e38  # stands for infinity and NaN, which JSON has no word for
_VALUE = re.compile(r"%[\w.$-]+")
# As the page's heat map: up to a share of the limit, the colour.
_COLOURS = ((0.0625, "#e4ebec"), (0.25, "#adc9cf"), (1.0, "#4b8694"), (10.0, "#d66a53"), (MOST, "#a01c20"))


def export(record: Record, folder: Path) -> list[Path]:
    """Write both files; returns where they are. Raises InputError when a file cannot be written."""
    files = {"graphs.json": collection(record), "errors.json": errors(record)}
    for name, content in files.items():
        write_file(folder / name, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return [folder / name for name in files]


def collection(record: Record) -> list[dict[str, Any]]:
    """Model Explorer's list of graphs: scopes are namespaces, so that a layer folds and unfolds."""
    graphs = []
    for listing in record["listings"]:
        operations = list(_operations(listing))
        known = {id for id, _, _, _ in operations}  # not the arguments, nor what stands for other layers
        nodes = [_node(id, scope, op, [name for name in reads if name in known]) for id, scope, op, reads in operations]
        graphs.append({"id": listing["graph"], "nodes": nodes})
    return graphs


def errors(record: Record) -> dict[str, Any]:
    """Model Explorer's node data: for each graph, node -> the error at its anchor as a share of the limit.

    In a run that was taken apart that is what each part of the graph that is wrong adds by itself, given right inputs, and
    nothing of the others; else the worst that was measured in the phase. Layers that are alike are one in the graph, which
    shows the errors of the layer that stands for them.
    """
    graphs = {graph["id"]: graph for graph in record["graphs"]}
    thresholds = [{"value": value, "bgColor": colour} for value, colour in _COLOURS]
    found = {}
    for listing in record["listings"]:
        shares = _shares(record, graphs[listing["graph"]])
        results = {
            id: {"value": min(badness(shares[scope["anchor"]]), MOST)}
            for id, scope, _, _ in _operations(listing)
            if scope["anchor"] in shares
        }
        found[listing["graph"]] = {"results": results, "thresholds": thresholds}
    return found


def _operations(listing: Listing) -> Iterator[tuple[str, Scope, ListedOp, list[str]]]:
    """Each operation once: its id, its scope, itself, and the ids of those that it reads. Constants are in many scopes."""
    seen: set[str] = set()
    for scope in listing["scopes"]:
        for n, op in enumerate(scope["ops"]):
            left, _, right = op["text"].partition(" = ")
            # Of several results, `%m:2`, each is read by its own name, such as `%m#0`.
            id = left.strip().partition(":")[0] or f"{scope['anchor']} {n}"
            if id not in seen:
                seen.add(id)
                yield id, scope, op, list(dict.fromkeys(_VALUE.findall(right)))


def _node(id: str, scope: Scope, op: ListedOp, reads: list[str]) -> dict[str, Any]:
    layers = scope["layers"]
    attributes = {
        "type": op["type"],
        "line": "" if op["line"] is None else str(op["line"]),
        "text": op["text"],
        "anchor": scope["anchor"],
        "alike in layers": f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else "",
    }
    return {
        "id": id,
        "label": op["op"],
        "namespace": _namespace(scope["anchor"]),
        "attrs": [{"key": key, "value": value} for key, value in attributes.items() if value],
        "incomingEdges": [
            {"sourceNodeId": name, "sourceNodeOutputId": "0", "targetNodeInputId": str(n)}
            for n, name in enumerate(reads)
        ],
    }


def _namespace(anchor: str) -> str:
    """Caches stand in the layer that they belong to."""
    layer, part = layer_of(anchor)
    if part in ("k_cache", "v_cache"):
        anchor = f"layers.{layer}.self_attn.{part}"
    return anchor.replace(".", "/")


def _shares(record: Record, graph: Graph) -> dict[str, float]:
    """Anchor -> its error as a share of the limit, in a graph of this one's source and phase."""
    own = graph["source"], graph["phase"]
    if (found := record["localization"]) is not None:
        wrong = found["source"], found["phase"]
        return by_itself(record) if own == wrong else {}
    limits = limits_of(record)
    matrices = [matrix for matrix in record["anchors"] if (matrix["source"], matrix["phase"]) == own]
    values = (value for matrix in matrices for value in values_of(matrix, limits))
    return {anchor: worst.share for anchor, worst in worst_by(values, lambda v: v.anchor).items()}
