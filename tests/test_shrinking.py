"""The reproducer that a run writes of a compiler's fault: made smaller, run on every backend, and with the right tools."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from models import Changing, interpreter
from test_reproducer import by_hand
from test_shrink import SCORES, case, chain

from hloracle.backends.named import Choice, chosen
from hloracle.backends.session import Backend, Executable
from hloracle.conformance.context import Context
from hloracle.conformance.verdict.localization import _way
from hloracle.conformance.verdict.reproducer import OnBackend, Way, write_reproducer
from hloracle.conformance.verdict.shrinking import Smaller, smaller
from hloracle.core.abi import Graph
from hloracle.core.child import alone
from hloracle.core.errors import ToolchainError
from hloracle.localize.anatomy import Step
from hloracle.localize.draft import Case
from hloracle.localize.operations import Found, tolerance


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """What is compiled is in the session's cache."""


def spoiled(text: str) -> str:
    return text.replace("stablehlo.tanh ", "stablehlo.negate ")


class Spoiled(Changing):
    """Computes tanh as something else."""

    def __init__(self, threads: int) -> None:
        super().__init__(spoiled)


class Dying(Spoiled):
    """Computes tanh wrong, and ends its process at a graph without a sine."""

    def load(self, graph: Graph) -> Executable:
        if "sine" not in graph.text:
            os._exit(3)
        return super().load(graph)


class Refusing(Changing):
    """Does not compile tanh."""

    def __init__(self, threads: int) -> None:
        super().__init__(str)

    def load(self, graph: Graph) -> Executable:
        if "tanh" in graph.text:
            raise ToolchainError("compile", f"error: {len(graph.text)} is too much tanh")
        return super().load(graph)


def right(threads: int) -> Backend:
    return interpreter()


RIGHT = Choice("right", "right", right, "The right one", quick=True)
BAD = Choice("bad", "bad", Spoiled, "The bad one")


def context(*backends: Choice) -> Context:
    return Context(backends=backends)


def found(given: Case, fails: bool = False) -> Found:
    """A finding of what the interpreter computes otherwise; `fails` of what does not compile."""
    graph = given.graph
    expected = interpreter().load(graph)([*given.inputs.values()])[0]
    step = Step("stablehlo.tanh", graph, (), "an anchor", 1, "%1 = stablehlo.tanh %0")
    if fails:
        return Found(step, graph, {}, None, np.zeros(0), "it refuses it")
    return Found(step, graph, dict(given.inputs), expected, expected * 0, "it differs", tolerance(expected))


def shown_on(made: Smaller) -> dict[str, bool | None]:
    return {on.backend: on.shows for on in made.backends}


def test_what_shows_it_and_what_does_not() -> None:
    with alone():
        made = smaller(context(RIGHT, BAD), found(case(chain("sine", "tanh", "cosine"))), "bad", "right")
    assert re.findall(r"= stablehlo\.(\w+)", made.found.graph.text) == ["tanh"]
    assert shown_on(made) == {"right": False, "bad": True, "stablehlo": False}
    assert made.found.expected is not None
    assert np.abs(made.found.got - made.found.expected).max() > made.found.tolerance
    assert made.backends[0].title == "The right one"
    assert re.fullmatch(r"StableHLO's interpreter \d+\.\d+\.\d+", made.backends[2].title)
    assert made.notes[0].startswith("It was made smaller, from 3 operations with sizes up to 6 to 1 operations")


def test_what_does_not_compile() -> None:
    refusing = Choice("bad", "bad", Refusing, "The bad one")
    with alone():
        made = smaller(context(RIGHT, refusing), found(case(chain("sine", "tanh")), fails=True), "bad", "right")
    assert re.findall(r"= stablehlo\.(\w+)", made.found.graph.text) == ["tanh"]
    assert (made.found.expected, made.found.inputs) == (None, {})
    assert shown_on(made) == {"right": False, "bad": True, "stablehlo": False}
    assert [on.detail for on in made.backends if on.backend == "right"] == ["it compiles"]


def test_the_interpreter_says_what_is_right_where_nothing_else_does() -> None:
    with alone():
        made = smaller(context(BAD), found(case(chain("sine", "tanh"))), "bad", None)
    assert re.findall(r"= stablehlo\.(\w+)", made.found.graph.text) == ["tanh"]
    assert shown_on(made) == {"bad": True, "stablehlo": False}


def test_a_fault_that_does_not_show_again_stays_as_it_is() -> None:
    what = found(case(chain("sine", "tanh")))
    with alone():
        made = smaller(context(RIGHT, Choice("bad", "bad", right, "The bad one")), what, "bad", "right")
    assert made.found == what
    assert made.notes == ["It could not be made smaller: it shows nothing in a process of its own."]


def test_a_backend_that_ends_the_process_leaves_the_reproducer_as_it_is() -> None:
    what = found(case(chain("sine", "tanh", "cosine")))
    made = smaller(context(RIGHT, Choice("bad", "bad", Dying, "The bad one")), what, "bad", "right")
    np.testing.assert_array_equal(made.found.inputs["x"], what.inputs["x"])
    assert (made.found.graph, made.backends) == (what.graph, [])
    assert re.match(r"It could not be made smaller: .* died \(exit status 3\)", made.notes[0])


# ---- with which tools it is run


def way(word: str) -> Way:
    (choice,) = chosen([word])
    return _way(context(choice), choice, True, ())


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "reproducer"


def commands(word: str, folder: Path) -> list[list[str]]:
    shown = write_reproducer(folder, found(case(chain("tanh"))), way(word), "an anchor")
    assert shown.command in (folder / "reproduce.sh").read_text()
    return [shlex.split(line) for line in shown.command.replace("&& \\", "").splitlines()]


@pytest.mark.parametrize("word", ["iree", "iree:--iree-opt-data-tiling --iree-opt-level=O3"])
def test_the_flags_of_iree(word: str, written: Path) -> None:
    compiled, run, compared = commands(word, written)
    assert (compiled[0], run[0], compared[:2]) == ("iree-compile", "iree-run-module", ["python", "compare.py"])
    assert compiled.count("--iree-opt-level=O3") == ("O3" in word)
    assert ("--iree-opt-level=O2" in compiled) == ("O3" not in word)
    assert ("--iree-opt-data-tiling" in compiled) == (":" in word)


@pytest.mark.parametrize("word", ["xla", "xla:--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=1"])
def test_the_flags_of_xla(word: str, written: Path) -> None:
    run, compared = commands(word, written)
    flags = ["XLA_FLAGS=--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=1"] if ":" in word else []
    assert run[: len(flags) + 2] == [*flags, "python", "run_on_xla.py"]
    assert compared[:2] == ["python", "compare.py"]


def test_another_version_says_which(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is run with its own tools."""
    monkeypatch.setattr("hloracle.backends.words.environment", lambda compiler, version: Path("/its/bin/python"))
    where: list[Path] = []

    def noted(work: Path, command: str, python: Path) -> tuple[int, str]:
        where.append(python)
        return 1, "[FAILED]"

    monkeypatch.setattr("hloracle.conformance.verdict.reproducer._run", noted)
    shown = write_reproducer(written, found(case(chain("tanh"))), way("iree==3.12.0"), "an anchor")
    assert where == [Path("/its/bin")]
    assert shown.needs[:2] == ["iree-base-compiler==3.12.0", "iree-base-runtime==3.12.0"]
    assert "# With iree-base-compiler==3.12.0 iree-base-runtime==3.12.0" in (written / "reproduce.sh").read_text()


def test_any_other_backend_is_run_by_hloracle(written: Path) -> None:
    choice = Choice("worker:mine", "mine", Spoiled, "Mine")
    how = _way(context(choice), choice, True, ())
    shown = write_reproducer(written, found(case(chain("tanh"))), how, "an anchor")
    assert shown.command == "hloracle replay . --backend worker:mine"
    assert not shown.shown, "whether it does is known already"
    assert sorted(p.name for p in written.iterdir()) == sorted(shown.files)


def test_what_a_program_reads(written: Path) -> None:
    what = found(case(SCORES))
    write_reproducer(written, what, way("iree"), "an anchor")
    told = json.loads((written / "reproducer.json").read_text())
    assert told.keys() == {"function", "inputs", "expected", "result", "tolerance", "flags"}
    for file, value in zip(told["inputs"], what.inputs.values(), strict=True):
        np.testing.assert_array_equal(np.load(written / file), value)
    assert (told["function"], told["expected"], told["result"]) == ("main", "expected.npy", 0)
    assert told["tolerance"] == what.tolerance


# ---- faults of IREE 3.13, as it is installed

TILED = "iree:--iree-opt-data-tiling"


def of_iree(word: str, given: Case, fails: bool = False) -> tuple[Smaller, Context]:
    backends = chosen(["iree", "xla"] if word == "iree" else [word, "iree", "xla"])
    here = Context(backends=backends)
    return smaller(here, found(given, fails), "iree-cpu" if word == "iree" else backends[0].name, "xla-cpu"), here


def titles(backends: Sequence[OnBackend], shows: bool) -> list[str]:
    return [on.title for on in backends if on.shows is shows]


@pytest.mark.nightly
def test_data_tiling(written: Path) -> None:
    made, here = of_iree(TILED, case(SCORES))
    after = Case(made.found.graph, made.found.inputs, made.found.result)
    assert after.operations <= 8
    assert after.dimensions[0] <= 16
    (title,) = titles(made.backends, True)
    assert re.fullmatch(r"IREE \d+\.\d+\.\d+ with --iree-opt-data-tiling", title)
    assert len(titles(made.backends, False)) == 3
    choice = here.backends[0]
    shown = write_reproducer(written, made.found, _way(here, choice, True, ()), "scores")
    assert shown.shown, shown.output
    status, output = by_hand(written, shown)
    assert status != 0
    assert "[FAILED]" in output


ROUNDED = """func.func @main(%x: tensor<64x48xf32>, %w: tensor<48x32xf32>) -> tensor<64x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x48xf32>, tensor<48x32xf32>) -> tensor<64x32xf32>
  %b = stablehlo.convert %0 : (tensor<64x32xf32>) -> tensor<64x32xbf16>
  %y = stablehlo.convert %b : (tensor<64x32xbf16>) -> tensor<64x32xf32>
  %z = stablehlo.logistic %y : tensor<64x32xf32>
  %u = stablehlo.multiply %z, %y : tensor<64x32xf32>
  func.return %u : tensor<64x32xf32>
}"""


@pytest.mark.nightly
def test_a_rounding_that_is_left_out(written: Path) -> None:
    made, here = of_iree("iree", case(ROUNDED))
    after = Case(made.found.graph, made.found.inputs, made.found.result)
    assert after.operations <= 3
    assert after.dimensions[0] == 1
    assert [on.backend for on in made.backends if on.shows] == ["iree-cpu"]
    shown = write_reproducer(written, made.found, _way(here, here.backends[0], True, ()), "act")
    assert shown.shown, shown.output


ROWS = """func.func @main(%table: tensor<128x2048xf32>, %ids: tensor<32xi32>) -> tensor<32x2048xf32> {
  %x = "stablehlo.gather"(%table, %ids) {
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
      start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 2048>
  } : (tensor<128x2048xf32>, tensor<32xi32>) -> tensor<32x2048xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %squares = stablehlo.multiply %x, %x : tensor<32x2048xf32>
  %sum = stablehlo.reduce(%squares init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<32x2048xf32>, tensor<f32>) -> tensor<32xf32>
  %rsqrt = stablehlo.rsqrt %sum : tensor<32xf32>
  %scale = stablehlo.broadcast_in_dim %rsqrt, dims = [0] : (tensor<32xf32>) -> tensor<32x2048xf32>
  %norm = stablehlo.multiply %x, %scale : tensor<32x2048xf32>
  func.return %norm : tensor<32x2048xf32>
}"""


@pytest.mark.nightly
def test_a_lookup_that_does_not_compile(written: Path) -> None:
    """It fails for want of stack: what fills that is left."""
    made, here = of_iree("iree", case(ROWS), fails=True)
    after = Case(made.found.graph, made.found.inputs, made.found.result)
    assert after.operations <= 4
    assert 2 in after.dimensions, "of the table's rows"
    assert [on.backend for on in made.backends if on.shows] == ["iree-cpu"]
    shown = write_reproducer(written, made.found, _way(here, here.backends[0], True, ()), "norm")
    assert shown.shown, shown.output
    assert "stack allocation limit" in shown.output
