"""Rows of a history, made from the samples of tests/test_reports_sample.py."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import test_reports_sample as samples

from hloracle.reports.history.store import row_of

Row = dict[str, Any]


@functools.cache
def _row(name: str) -> Row:
    return row_of(getattr(samples, name)())


def kept(name: str = "sample", **changes: Any) -> Row:
    return copy.deepcopy(_row(name)) | changes


def runs(n: int, name: str = "sample", change: Callable[[int, Row], None] = lambda i, row: None) -> list[Row]:
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
    for graph in row["graphs"]:
        if (graph["source"], graph["phase"]) == ("emitter", "decode"):
            graph |= {"digest": "0123456789abcdef", "op_total": graph["op_total"] + more}


def mixed() -> list[Row]:
    """Two models, several machines and versions, every kind of verdict, a mutant."""

    def change(i: int, row: Row) -> None:
        if i in (7, 8, 12, 20):
            name = {7: "failing_sample", 8: "failing_sample", 12: "broken_sample", 20: "empty_sample"}[i]
            row |= {key: value for key, value in kept(name).items() if key not in ("run", "commit", "date")}
        if i >= 10:
            row["cpu"] = "Intel(R) Xeon(R)"
        if i >= 16:
            row["packages"] = {**row["packages"], "jax": "0.11.0"}
            other_graph(row, -30)
        if i == 18:
            row["commit"] += "+"

    other = runs(5)
    for row in other:
        row["model"] = {**row["model"], "name": "tiny-llama"}
    return [*runs(24, change=change), *other, kept("near_tie_sample", mutant="rope-sign")]


def hostile() -> list[Row]:
    return [*runs(3, "hostile_sample"), *runs(4, "hostile_sample", lambda i, row: row.update(mutant=None))]


def many() -> list[Row]:
    """More runs than columns, on more processors than lanes, with more changes than are listed at once."""

    def change(i: int, row: Row) -> None:
        row["cpu"] = f"processor {i // 25}"
        row["packages"] = {**row["packages"], "jax": f"0.{i // 40}"}
        if i % 50 == 7:
            row |= {key: kept("failing_sample")[key] for key in ("verdict", "anchor", "tokens")}
        if i == 201:
            other_graph(row, 3000)

    return runs(450, change=change)
