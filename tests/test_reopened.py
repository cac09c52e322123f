"""A backend that a graph ends, or that hangs on one, is there again for the next graph."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hloracle.backends.reopened import Reopened
from hloracle.backends.words import PROGRAMS
from hloracle.backends.worker import Program, Worker
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import ToolchainError
from hloracle.localize.workbench import Workbench

# It adds 1, unless the graph's text asks for something else.
PROGRAM = """
import os, sys, time
sys.path.insert(0, {programs!r})
from serving import Failed, Runtime, serve

class Moody(Runtime):
    def describe(self):
        return {{"name": "Moody", "family": "moody", "version": "1"}}

    def load(self, path, function, flags):
        text = path.read_text()
        if "crash" in text:
            os._exit(3)
        if "hang" in text:
            time.sleep(600)
        if "refuse" in text:
            raise Failed("compile", "it does not like this")
        return text

    def call(self, program, arguments):
        if "fall" in program:
            os._exit(4)
        return [arguments[0] + 1]

    def upload(self, array):
        return array

    def download(self, array):
        return array

serve(Moody)
"""


def graph(text: str) -> Graph:
    one = Tensor("tap", "x", (2,), "f32")
    return Graph("g", text, Abi("decode", (one,), (one,)))


@pytest.fixture
def opened(tmp_path: Path) -> list[Worker]:
    return []


@pytest.fixture
def moody(tmp_path: Path, opened: list[Worker]) -> Program:
    (tmp_path / "moody.py").write_text(textwrap.dedent(PROGRAM.format(programs=str(PROGRAMS))))
    return Program((sys.executable, str(tmp_path / "moody.py")))


def bench(moody: Program, opened: list[Worker], seconds: float = 60) -> Reopened:
    def open() -> Worker:
        opened.append(Worker("moody", moody))
        return opened[-1]

    return Reopened(open, seconds)


INPUTS = {"x": np.array([1, 2], np.float32)}


@pytest.mark.parametrize(("text", "words"), [("crash", "exit status 3"), ("fall", "exit status 4")])
def test_it_is_there_again_after_it_has_died(text: str, words: str, moody: Program, opened: list[Worker]) -> None:
    here = bench(moody, opened)
    for _ in range(2):
        with pytest.raises(ToolchainError, match=words):
            here.run(graph(text), INPUTS)
        np.testing.assert_array_equal(here.run(graph("right"), INPUTS)[0], [2, 3])
    assert len(opened) == 3


def test_what_is_refused_ends_nothing(moody: Program, opened: list[Worker]) -> None:
    here = bench(moody, opened)
    with pytest.raises(ToolchainError, match="does not like"):
        here.load(graph("refuse"))
    assert here.run(graph("right"), INPUTS)[0].tolist() == [2, 3]
    assert len(opened) == 1
    assert here.facts["version"] == "1"


def test_what_hangs_is_ended(moody: Program, opened: list[Worker]) -> None:
    here = bench(moody, opened, seconds=1)
    with pytest.raises(ToolchainError, match="ended without an answer"):
        here.run(graph("hang"), INPUTS)
    assert not opened[0].alive
    assert here.run(graph("right"), INPUTS)[0].tolist() == [2, 3]


def test_a_workbench_goes_on_with_a_new_worker(moody: Program) -> None:
    """With its weights, which the new one has not been given."""
    here = Workbench(Worker("moody", moody), INPUTS.__getitem__, frozenset(INPUTS))
    assert here.run(graph("right"), INPUTS.__getitem__)[0].tolist() == [2, 3]
    for text in ("crash", "fall"):
        with pytest.raises(ToolchainError):
            here.run(graph(text), INPUTS.__getitem__)
        assert here.run(graph("right"), INPUTS.__getitem__)[0].tolist() == [2, 3]
