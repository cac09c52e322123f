"""The history on the terminal: a line a run, the newest first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from hloracle.reports import text
from hloracle.reports.history.page import judged, numbers
from hloracle.reports.history.row import Row

COLOURS = {"pass": "green", "near": "yellow", "fail": "red", "error": "red"}


def table(rows: Sequence[Row]) -> Table:
    """The rows of a history, which are in order. What was not measured is a dash."""
    names = (
        "commit", "began", "model", "on", "verdict",
        "tokens", "models", "error ÷ limit", "tokens/s", "of the peer", "decode ops",
    )  # fmt: skip
    found = Table(*names, box=None, pad_edge=False)
    for column in found.columns:
        column.no_wrap = True
        column.justify = "right" if names[5:].count(str(column.header)) else "left"
    for row in reversed(rows):
        found.add_row(*_cells(row))
    return found


def _cells(row: Row) -> list[Text]:
    first, own = row["speed"]["contenders"][:1], judged(row)
    found = numbers(row, [contender["id"] for contender in first], [own])
    settings, fault = row["settings"], f", mutant {row['mutant']}" if row["mutant"] else ""
    words = [
        found["commit"],
        found["date"],
        text.one_line(row["model"]["name"], 32),
        f"{text.one_line(settings['device'], 12)} {text.one_line(settings['precision'], 8)}",
        found["verdict"].title + text.one_line(fault, 40),
        found["tokens"],
        found["models"],
        found["anchor_share"],
        *(found["speeds"] or ["–"]),
        found["ratio"],
        *found["operations"],
    ]
    cells = [Text(word) for word in words]  # and not markup, which a name might hold
    cells[4].stylize(COLOURS[found["verdict"].kind])
    return cells
