"""`hloracle bench`: the figures are those that were measured, and ratios are taken round by round."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from hloracle.conformance import bench, cli, speed
from hloracle.conformance.bench import bench_decode, print_table
from hloracle.conformance.run import Progress
from hloracle.conformance.speed import TITLES, Contender
from hloracle.core.child import ChildResult
from hloracle.emitters.model import emit
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.fixtures import resolve

MEASURED = [
    Contender(id, ms, 1000)
    for id, ms in zip(TITLES, ([10.0, 20.0, 12.5], [20.0, 30.0, 25.0], [5.0, 5.0, 5.0]), strict=True)
]


def test_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "run_in_child", lambda *a, **k: ChildResult(MEASURED, 1.0, 1))
    figures = bench_decode("tiny-llama", 4, 5, 2, Progress())
    rows: dict[str, Any] = figures["contenders"]
    assert list(rows) == list(TITLES.values())
    assert [row["ms_per_token"] for row in rows.values()] == [contender.ms_per_token for contender in MEASURED]
    assert [row["tokens_per_second"] for row in rows.values()] == [80, 40, 200]
    assert [row["speed_of_emitter"] for row in rows.values()] == [[1, 1, 1], [2, 1.5, 2], [0.5, 0.25, 0.4]]
    assert (figures["tokens"], figures["rounds"], figures["threads"]) == (4, 3, 2)
    assert figures["emission_ms"] > 0
    shown = io.StringIO()
    print_table(figures, Console(file=shown, width=200))
    assert "2.00x  (1.50–2.00)" in shown.getvalue()
    assert "0.40x  (0.25–0.50)" in shown.getvalue()


@pytest.mark.parametrize(("run", "rounds"), [(bench._measure, 3), (speed.measure, 1)])
def test_every_round_that_was_asked_for_is_measured(
    run: Callable[..., list[Contender]], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they take; only a run has better things to do."""
    clock = itertools.count(step=speed.BUDGET_SECONDS + 1)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    for make in ("_session", "_transformers"):
        monkeypatch.setattr(speed, make, lambda *_: lambda prompt, tokens: 1.0)
    directory = resolve("tiny-llama")
    some = emit(open_checkpoint(directory).config, "decode", "token", 32)
    graphs = (some, some) if run is speed.measure else ()
    found = run(lambda line: None, directory, *graphs, 1, 3, 1)
    assert [contender.ms_per_token for contender in found] == [[1.0] * rounds] * 3


def test_in_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["bench", "tiny-llama", "--tokens", "2", "--rounds", "1", "--threads", "2", "--json"]) == 0
    shown = capfd.readouterr()
    figures = json.loads(shown.out)
    assert shown.err == ""
    assert list(figures["contenders"]) == list(TITLES.values())
    assert all(len(row["ms_per_token"]) == 1 and row["ms_per_token"][0] > 0 for row in figures["contenders"].values())
