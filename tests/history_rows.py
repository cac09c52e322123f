"""Rows of a history, made from the records of tests/records.py."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import records

from hloracle.reports.history.store import row_of

Row = dict[str, Any]


@functools.cache
def _row(name: str) -> Row:
    return row_of(records.ALL[name]()) | {"mutant": ""}


def kept(name: str = "conforms", **changes: Any) -> Row:
    """The row of a record, as of a run without a deliberate fault."""
    return copy.deepcopy(_row(name)) | changes


def runs(n: int, name: str = "conforms", change: Callable[[int, Row], object] = lambda i, row: None) -> list[Row]:
    """A run a day."""
    made = []
    for i in range(n):
        digest = hashlib.sha256(f"{name} {i}".encode()).hexdigest()
        date = f"{2024 + i // 336:04}-{i // 28 % 12 + 1:02}-{i % 28 + 1:02}T08:00:00+00:00"
        row = kept(name, run=digest, commit=digest[:40], date=date)
        change(i, row)
        made.append(row)
    return made


def other_graph(row: Row, more: int = 0) -> None:
    """Another text of the emitter's decode graph."""
    for graph in row["graphs"]:
        if (graph["source"], graph["phase"]) == ("emitter", "decode"):
            graph |= {"digest": "0123456789abcdef", "op_total": graph["op_total"] + more}


def mixed() -> list[Row]:
    """Two models, several machines and versions, every kind of verdict, a mutant."""
    others = {7: "emitter-fault", 8: "emitter-fault", 12: "without-results", 20: "empty"}

    def change(i: int, row: Row) -> None:
        if i in others:
            row |= {key: value for key, value in kept(others[i]).items() if key not in ("run", "commit", "date")}
        if i >= 10:
            row["cpu"] = "another processor"
        if i >= 16:
            row["packages"] = {**row["packages"], "jax": "99.0"}
            other_graph(row, -30)

    other = runs(5, change=lambda i, row: row["model"].update(name="another-model"))
    return [*runs(24, change=change), *other, kept("near-tie", mutant="rope-sign")]


def hostile() -> list[Row]:
    """Runs of hostile strings, with a deliberate fault and without."""
    return [*runs(3, "hostile", lambda i, row: row.update(mutant=records.HOSTILE[:190])), *runs(4, "hostile")]


def many() -> list[Row]:
    """more runs than are drawn, on many processors, with more changes than are listed at once."""

    def change(i: int, row: Row) -> None:
        row["cpu"] = f"processor {i // 25}"
        row["packages"] = {**row["packages"], "jax": f"0.{i // 40}"}
        if i % 50 == 7:
            row |= {key: kept("emitter-fault")[key] for key in ("verdict", "anchor", "tokens")}

    return runs(450, change=change)
