"""Base against head: how long compilers took, and how large their programs are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from records import Record, conforms

from hloracle.reports.compare.comparison import Comparison, compare
from hloracle.reports.compare.page import render
from hloracle.reports.compare.programs import compare_programs
from hloracle.reports.record import validate

GRAPH = "emitter/decode/token"
Program = tuple[float | None, int | None]


def made(*programs: Program) -> Record:
    """A record whose first configuration has these programs."""
    record = conforms()
    rows = [{"graph": f"{GRAPH}{i}" if i else GRAPH, "seconds": s, "bytes": b} for i, (s, b) in enumerate(programs)]
    for configuration in record["configurations"]:
        configuration["programs"] = []
    record["configurations"][0]["programs"] = rows
    validate(copy.deepcopy(record))
    return record


def changes(base: list[Program], head: list[Program]) -> tuple[Comparison, list[str]]:
    found = compare(made(*base), made(*head))  # type: ignore[arg-type]
    return found, [change.words for change in found.changes if change.kind == "program"]


def test_sums_of_the_graphs_that_both_know() -> None:
    found, _ = changes([(1.0, 100), (2.0, 200), (9.0, 900)], [(2.0, 150), (4.0, 300)])
    (diff,) = found.programs
    assert (diff.graphs, diff.seconds, diff.bytes) == (2, (3.0, 6.0), (300, 450))
    assert (diff.slower, diff.larger) == (2.0, 1.5)


@pytest.mark.parametrize(
    ("base", "head", "words"),
    [
        ((9.0, 100), (13.0, 109), []),
        ((0.5, 100), (1.4, 100), []),  # which a busy machine explains
        ((2.0, 100), (4.0, 100), ["takes 100 % longer"]),
        ((4.0, 100), (2.0, 100), ["takes 50 % less"]),
        ((2.0, 100), (2.0, 150), ["are 50 % larger"]),
        ((2.0, 100), (2.0, 50), ["are 50 % smaller"]),
        ((None, 100), (9.0, 100), []),
        ((2.0, None), (2.0, 100), []),
        ((0.0, 0), (9.0, 9), []),
    ],
)
def test_what_is_said(base: Program, head: Program, words: list[str]) -> None:
    found, told = changes([base], [head])
    assert len(told) == len(words)
    assert all(part in line for part, line in zip(words, told, strict=True))
    assert {c.severity for c in found.changes} <= {"changed", "note"}, "no program is wrong by its size"


def test_records_that_say_nothing() -> None:
    record: Any = made()
    assert compare_programs(record, record) == ()
    assert compare_programs(record, made((1.0, 1))) == ()  # type: ignore[arg-type]
    assert "Compile times" not in render(compare(record, record))


def test_the_page_shows_them() -> None:
    page = render(compare(made((1.0, 1000), (None, 500)), made((2.0, 3000), (1.0, 500))))  # type: ignore[arg-type]
    assert "Compile times and sizes of programs" in page
    assert "2×" in page
