"""What compiled for targets that nothing was run on, as a table: a row for each graph, a column for each target."""

from __future__ import annotations

from typing import Any

from hloracle.core.record import Record
from hloracle.reports.facts import source_of


def matrix(record: Record) -> dict[str, Any] | None:
    """`columns` are (compiler, target), each row has a cell for each, None where that was not compiled; None without any."""
    compiled = record["compiled"]
    if not compiled:
        return None
    columns = list(dict.fromkeys((row["compiler"], row["target"]) for row in compiled))
    graphs = dict.fromkeys((row["source"], row["graph"]) for row in compiled)
    found = {(row["source"], row["graph"], row["compiler"], row["target"]): row for row in compiled}
    rows = [
        {
            "title": source_of(record, source)["title"],
            "graph": graph,
            "cells": [found.get((source, graph, *column)) for column in columns],
        }
        for source, graph in sorted(graphs, key=lambda key: not source_of(record, key[0])["judged"])
    ]
    arithmetic = sorted({words for row in compiled for words in row["arithmetic"]})
    return {
        "columns": columns, "rows": rows, "failed": [row for row in compiled if row["status"] == "failed"],
        "arithmetic": arithmetic, "right": sum(row["status"] == "compiled" for row in compiled), "total": len(compiled),
    }  # fmt: skip
