"""The history on the terminal: a line a run, the newest first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from hloracle.reports import text
from hloracle.reports.facts import VERDICTS
from hloracle.reports.history.charts import graph_of, judged
from hloracle.reports.history.page import short
from hloracle.reports.history.row import Row

COLOURS = {"pass": "green", "near": "yellow", "fail": "red", "error": "red"}


def table(rows: Sequence[Row]) -> Table:
    """The rows of a history, which are in order. What was not measured is a dash."""
    names = (
        "commit",
        "began",
        "model",
        "on",
        "verdict",
        "tokens",
        "models",
        "error ÷ limit",
        "tokens/s",
        "× peer",
        "decode ops",
    )
    found = Table(*names, box=None, pad_edge=False)
    for column in found.columns:
        column.no_wrap = True
        column.justify = "right" if names[5:].count(str(column.header)) else "left"
    for row in reversed(rows):
        found.add_row(*_cells(row))
    return found


def _cells(row: Row) -> list[Text]:
    settings, tokens, speed = row["settings"], row["tokens"], row["speed"]
    verdict = VERDICTS[row["verdict"]["class"]]
    graph = graph_of(row, judged(row)["id"])
    fault = f", mutant {row['mutant']}" if row["mutant"] else ""
    words = [
        short(row["commit"]),
        row["date"][:16].replace("T", " "),
        f"{text.one_line(row['model']['name'], 32)}",
        f"{text.one_line(settings['device'], 12)} {text.one_line(settings['precision'], 8)}",
        verdict.title + text.one_line(fault, 40),
        f"{tokens['agreed']}/{tokens['total']}" if tokens["total"] else "–",
        f"{row['families']['passed']}/{row['families']['total']}" if row["families"] else "–",
        text.figure(row["anchor"]["share"]) if row["anchor"] else "–",
        text.figure(1000 / speed["contenders"][0]["ms_per_token"]) if speed["contenders"] else "–",
        text.figure(speed["ratio"]["median"]) if speed["ratio"] else "–",
        text.count(graph["op_total"]) if graph else "–",
    ]
    cells = [Text(word) for word in words]  # and not markup, which a name might hold
    cells[4].stylize(COLOURS[verdict.kind])
    return cells
