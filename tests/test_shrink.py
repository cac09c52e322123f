"""A graph on which a backend is wrong becomes the smallest one on which it still is, and no other fault than that."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from models import Changing, interpreter

from hloracle.backends.reopened import Reopened
from hloracle.backends.session import Backend, Executable
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import ToolchainError
from hloracle.localize.draft import Case
from hloracle.localize.shrink import Shrunk, shrink
from hloracle.localize.text import TYPE


def case(text: str, *, result: int = 0) -> Case:
    """A graph with drawn arguments: whole numbers from 0 to 3 for integers."""
    inputs: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)
    head, results = text[: text.index("{")].split("->")
    for name, shape, dtype in re.findall(r"%(\w+): tensor<((?:\d+x)*)(\w+)>", head):
        sizes = tuple(int(n) for n in shape.split("x") if n)
        drawn = rng.integers(0, 4, sizes) if dtype == "i32" else rng.normal(0, 1, sizes)
        inputs[name] = np.array(drawn, np.int32 if dtype == "i32" else np.float32)
    arguments = tuple(Tensor("tap", n, v.shape, "f32" if v.dtype == np.float32 else "i32") for n, v in inputs.items())
    returned = tuple(
        Tensor("tap", f"r{i}", tuple(int(n) for n in shape.split("x") if n), dtype)
        for i, (shape, dtype) in enumerate(TYPE.findall(results))
    )
    return Case(Graph("case", text, Abi("decode", arguments, returned)), inputs, result)


def chain(*operations: str, type: str = "4x6xf32") -> str:
    """A function of one argument and one operation after another."""
    values = ["%x", *(f"%{i}" for i in range(len(operations)))]
    lines = [f"  {values[i + 1]} = stablehlo.{op} {values[i]} : tensor<{type}>" for i, op in enumerate(operations)]
    return "\n".join(
        [
            f"func.func @main(%x: tensor<{type}>) -> tensor<{type}> {{",
            *lines,
            f"  return {values[-1]} : tensor<{type}>",
            "}",
        ]
    )


def made_small(given: Case, suspect: Backend, *, fails: bool = False, seconds: float = 600) -> Shrunk | None:
    return shrink(given, Reopened(lambda: suspect), Reopened(interpreter), fails, seconds)


def wrong(old: str, new: str, when: Callable[[str], bool] = lambda text: True) -> Backend:
    """A backend that computes one operation as another."""
    return Changing(lambda text: text.replace(f"stablehlo.{old} ", f"stablehlo.{new} ") if when(text) else text)


def names(found: Shrunk | None) -> list[str]:
    """The operations that are left, constants too."""
    assert found
    return re.findall(r"= \"?stablehlo\.(\w+)", found.case.graph.text)


# ---- operations


def test_operations_before_and_after_are_left_out() -> None:
    found = made_small(case(chain("sine", "exponential", "tanh", "negate", "cosine")), wrong("tanh", "negate"))
    assert names(found) == ["tanh"]
    assert found
    assert not found.ended


def test_what_is_not_needed_in_between_is_passed_by() -> None:
    together = wrong("tanh", "negate", lambda text: "stablehlo.sine" in text)
    found = made_small(case(chain("sine", "exponential", "cosine", "tanh")), together)
    assert names(found) == ["sine", "tanh"]


def test_nothing_can_be_left_out() -> None:
    all_of_it = wrong("tanh", "negate", lambda text: text.count(" = stablehlo.") == 3 and "4x6" in text)
    given = case(chain("sine", "cosine", "tanh"))
    found = made_small(given, all_of_it)
    assert names(found) == ["sine", "cosine", "tanh"]
    assert found
    assert found.case.dimensions == [6, 4]


def test_one_of_several_results() -> None:
    text = """func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %0 = stablehlo.sine %x : tensor<3xf32>
      %1 = stablehlo.tanh %0 : tensor<3xf32>
      return %0, %1 : tensor<3xf32>, tensor<3xf32>
    }"""
    found = made_small(case(text, result=1), wrong("tanh", "negate"))
    assert names(found) == ["tanh"]
    assert found
    assert len(found.case.graph.abi.results) == 1


def test_what_is_not_shown_is_not_shrunk() -> None:
    assert made_small(case(chain("sine")), interpreter()) is None
    assert made_small(case(chain("sine")), wrong("sine", "cosine"), fails=True) is None


# ---- shapes

SCORES = """func.func @main(%w: tensor<6x84x16xf32>, %x: tensor<84xf32>, %keys: tensor<2x32x16xf32>) -> tensor<2x3x32xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<84xf32>) -> tensor<6x84x16xf32>
  %1 = stablehlo.multiply %w, %0 : tensor<6x84x16xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<6x84x16xf32>, tensor<f32>) -> tensor<6x16xf32>
  %3 = stablehlo.reshape %2 : (tensor<6x16xf32>) -> tensor<2x3x16xf32>
  %4 = stablehlo.dot_general %3, %keys, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : (tensor<2x3x16xf32>, tensor<2x32x16xf32>) -> tensor<2x3x32xf32>
  return %4 : tensor<2x3x32xf32>
}"""


class Doubling:
    """Doubles the results of graphs in which it finds something."""

    name = "doubling"

    def __init__(self, when: Callable[[str], bool]) -> None:
        self.when, self.backend = when, interpreter()
        self.upload, self.download, self.keep = self.backend.upload, self.backend.download, self.backend.keep

    def load(self, graph: Graph) -> Executable:
        execute = self.backend.load(graph)
        if not self.when(graph.text):
            return execute

        def doubled(arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [np.asarray(r) * 2 for r in execute(arguments)]

        return doubled


def test_sizes_that_follow_from_others() -> None:
    """6 is 2 times 3: a group stays a group of 3, however many groups there are."""

    def grouped(text: str) -> bool:
        found = re.search(r"reshape .* -> tensor<(\d+)x3x(\d+)xf32>", text)
        return found is not None and int(found[2]) >= 2

    found = made_small(case(SCORES), Doubling(grouped))
    assert found
    assert names(found) == ["reshape"]
    assert "tensor<3x2xf32>) -> tensor<1x3x2xf32>" in found.case.graph.text
    assert [v.shape for v in found.case.inputs.values()] == [(3, 2)]


def test_equal_sizes_are_told_apart() -> None:
    text = """func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }"""
    found = made_small(case(text), Doubling(lambda text: bool(re.search("dot_general.*-> tensor<.x[58]x", text))))
    assert found
    assert "(tensor<1x1xf32>, tensor<1x5xf32>) -> tensor<1x5xf32>" in found.case.graph.text


MOVES = {
    "halves": """func.func @main(%x: tensor<3x32xf32>) -> tensor<3x32xf32> {
      %a = stablehlo.slice %x [0:3, 0:16] : (tensor<3x32xf32>) -> tensor<3x16xf32>
      %b = stablehlo.slice %x [0:3, 16:32] : (tensor<3x32xf32>) -> tensor<3x16xf32>
      %n = stablehlo.negate %b : tensor<3x16xf32>
      %c = stablehlo.concatenate %n, %a, dim = 1 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x32xf32>
      return %c : tensor<3x32xf32>
    }""",
    "rows": """func.func @main(%t: tensor<40x12xf32>, %i: tensor<9xi32>) -> tensor<9x12xf32> {
      %g = "stablehlo.gather"(%t, %i) {
        dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
          start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 12>
      } : (tensor<40x12xf32>, tensor<9xi32>) -> tensor<9x12xf32>
      return %g : tensor<9x12xf32>
    }""",
    "a row": """func.func @main(%t: tensor<40x12xf32>, %i: tensor<i32>) -> tensor<1x12xf32> {
      %z = stablehlo.constant dense<0> : tensor<i32>
      %g = stablehlo.dynamic_slice %t, %i, %z, sizes = [1, 12] : (tensor<40x12xf32>, tensor<i32>, tensor<i32>) -> tensor<1x12xf32>
      return %g : tensor<1x12xf32>
    }""",
    "a slot": """func.func @main(%t: tensor<5x7xf32>, %u: tensor<1x7xf32>, %i: tensor<i32>) -> tensor<5x7xf32> {
      %z = stablehlo.constant dense<0> : tensor<i32>
      %g = stablehlo.dynamic_update_slice %t, %u, %i, %z : (tensor<5x7xf32>, tensor<1x7xf32>, tensor<i32>, tensor<i32>) -> tensor<5x7xf32>
      return %g : tensor<5x7xf32>
    }""",
    "edges": """func.func @main(%x: tensor<4x7xf32>) -> tensor<6x7xf32> {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %p = stablehlo.pad %x, %z, low = [1, 0], high = [1, 0], interior = [0, 0] : (tensor<4x7xf32>, tensor<f32>) -> tensor<6x7xf32>
      return %p : tensor<6x7xf32>
    }""",
    "turned": """func.func @main(%x: tensor<4x7xf32>) -> tensor<7x4xf32> {
      %c = stablehlo.constant dense<[[1.0, 2.0, 3.0, 4.0]]> : tensor<1x4xf32>
      %b = stablehlo.broadcast_in_dim %c, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<7x4xf32>
      %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x7xf32>) -> tensor<7x4xf32>
      %s = stablehlo.multiply %t, %b : tensor<7x4xf32>
      return %s : tensor<7x4xf32>
    }""",
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_sizes_of_operations_that_move_values(name: str) -> None:
    """Each of these graphs is wrong as long as it has all its operations: what is left has small sizes alone."""
    operations = re.findall(r'= "?stablehlo\.(\w+)', MOVES[name])
    all_there = Doubling(lambda text: re.findall(r'= "?stablehlo\.(\w+)', text) == operations)
    found = made_small(case(MOVES[name]), all_there)
    assert names(found) == operations
    assert found
    assert found.case.dimensions[0] <= 3, found.case.graph.text


# ---- values


def test_values_become_simple() -> None:
    found = made_small(case(chain("tanh")), wrong("tanh", "negate"))
    assert found
    assert [v.tolist() for v in found.case.inputs.values()] == [[[1.0]]]


def test_a_constant_becomes_simple() -> None:
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %c = stablehlo.constant dense<[0.3, -0.7, 12.5]> : tensor<3xf32>
      %s = stablehlo.multiply %x, %c : tensor<3xf32>
      return %s : tensor<3xf32>
    }"""
    found = made_small(case(text), wrong("multiply", "divide", lambda text: "constant" in text))
    assert found
    assert names(found) == ["constant", "multiply"]
    assert re.search(r"dense<-?\d\.0+e\+00> : tensor<1xf32>", found.case.graph.text)


def test_values_that_the_fault_needs_stay() -> None:
    """Without a fraction, rounding to whole numbers changes nothing."""
    found = made_small(case(chain("negate")), Changing(lambda text: re.sub(r"(%\w+) = stablehlo.negate (%\w+) : (tensor<[^>]*>)", r"%r = stablehlo.round_nearest_even \2 : \3\n    \1 = stablehlo.negate %r : \3", text)))  # fmt: skip
    assert found
    (value,) = found.case.inputs.values()
    assert value.size == 1
    assert value != np.rint(value)


# ---- what is no fault


def test_a_difference_that_rounding_explains_is_none() -> None:
    """A sum of what cancels is as far off as its terms are rounded; shrinking to it would show nothing."""
    text = """func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.add %x, %y : tensor<8xf32>
      %1 = stablehlo.subtract %0, %x : tensor<8xf32>
      %2 = stablehlo.subtract %1, %y : tensor<8xf32>
      return %2 : tensor<8xf32>
    }"""
    exact = Changing(lambda text: text.replace("stablehlo.subtract %1, %arg1", "stablehlo.subtract %arg1, %arg1"))
    assert made_small(case(text), exact) is None


def test_a_fault_beside_noise_keeps_its_size() -> None:
    found = made_small(case(SCORES), Doubling(lambda text: "dot_general" in text))
    assert found
    assert found.seen.expected is not None
    assert found.seen.got is not None
    assert np.max(np.abs(found.seen.got - found.seen.expected)) > 4 * found.seen.tolerance


# ---- what fails


class Failing:
    """Fails at some graphs, in a stage."""

    name = "failing"

    def __init__(self, stage: str, message: Callable[[str], str]) -> None:
        self.stage, self.message, self.backend = stage, message, interpreter()
        self.upload, self.download, self.keep = self.backend.upload, self.backend.download, self.backend.keep

    def load(self, graph: Graph) -> Executable:
        said = self.message(graph.text)
        if said and self.stage == "compile":
            raise ToolchainError("compile", said)
        execute = self.backend.load(graph)

        def call(arguments: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            if said:
                raise ToolchainError("run", said)
            return execute(arguments)

        return call


@pytest.mark.parametrize("stage", ["compile", "run"])
def test_what_fails_fails_alike(stage: str) -> None:
    """Numbers and names in a message change with the graph. Another message is another fault."""

    def said(text: str) -> str:
        size = re.search(r"stablehlo.tanh %\w+ : tensor<(\d+)x", text)
        if size is None:
            return "error: nothing to do" if "sine" not in text else ""
        return f"/tmp/{len(text)}.mlir:{len(text)}:1: error: needs {int(size[1]) * 100} bytes for %{len(text)}\nmore"

    found = made_small(case(chain("sine", "tanh", "cosine")), Failing(stage, said), fails=True)
    assert names(found) == ["tanh"]
    assert found
    assert "tensor<1x1xf32>" in found.case.graph.text
    assert found.seen.expected is None
    assert "needs 100 bytes" in found.seen.message
    assert bool(found.case.inputs) == (stage == "run")


def test_what_only_some_compilations_show() -> None:
    """Each is compiled anew until it shows, or often enough."""
    count = 0

    class Sometimes(Changing):
        def load(self, graph: Graph) -> Executable:
            nonlocal count
            count += 1
            return super().load(graph) if count % 3 == 0 else self.backend.load(graph)

    suspect = Sometimes(lambda text: text.replace("stablehlo.tanh ", "stablehlo.negate "))
    found = made_small(case(chain("sine", "tanh", "cosine")), suspect)
    assert names(found) == ["tanh"]
    assert found
    assert not found.always


# ---- the time


def test_the_time_ends() -> None:
    found = made_small(case(chain("sine", "tanh")), wrong("tanh", "negate"), seconds=0)
    assert found
    assert found.ended
    assert names(found) == ["sine", "tanh"], "it is given as it was"


@cache
def _twice() -> list[Shrunk | None]:
    return [made_small(case(chain("sine", "exponential", "tanh", "negate")), wrong("tanh", "negate")) for _ in range(2)]


def test_it_is_determined() -> None:
    one, other = _twice()
    assert one
    assert other
    assert one.case.graph == other.case.graph
    assert one.tried == other.tried


def test_nothing_is_tried_twice() -> None:
    tried: list[tuple[str, bytes]] = []

    class Noting(Changing):
        def load(self, graph: Graph) -> Executable:
            execute = super().load(graph)

            def noted(arguments: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
                tried.append((graph.text, b"".join(a.tobytes() for a in arguments)))
                return execute(arguments)

            return noted

    suspect = Noting(lambda text: text.replace("stablehlo.tanh ", "stablehlo.negate "))
    assert made_small(case(chain("sine", "tanh")), suspect)
    assert len(set(tried)) == len(tried) - 1, "but for the first, which is run to see how it fails, if it does"
