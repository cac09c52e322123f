"""Graphs with calls and loops written out, and with any of their values as results or replaced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import parse, run
from jax import lax

from hloracle.core.abi import JUDGED_ROW, Abi, Graph, Tensor
from hloracle.localize import annotate
from hloracle.localize.annotate import Flat, sliced, type_of, values_of, variant

X = np.array([1.0, 2.0, -3.0, 0.5], np.float32)
W = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def model(x: Any, w: Any) -> Any:
    def layer(c: Any, row: Any) -> Any:
        return jax.jit(jnp.tanh)(c * row), None

    y, _ = lax.scan(layer, x, w)
    return y + 1, (y * 2).astype(jnp.bfloat16)


def graph() -> Graph:
    text = jax.jit(model).lower(X, W).as_text(debug_info=True)
    some = (Tensor("tap", "x", (4,), "f32"), Tensor("tap", "w", (3, 4), "f32"))
    return Graph("g", text, Abi("decode", some, (Tensor("tap", "y", (4,), "f32"), Tensor("tap", "z", (4,), "bf16"))))


def numbers(found: Graph, **more: np.ndarray) -> list[np.ndarray]:
    given = {"x": X, "w": W, **more}
    return run(found, *(given[a.name] for a in found.abi.arguments))


def test_calls_and_loops_are_written_out() -> None:
    """Each operation at the line that it was written in, and floats counted alone."""
    flat = Flat(graph())
    kinds = [op.operation.name for op in flat.operations]
    assert not {"stablehlo.while", "func.call"} & set(kinds)
    assert kinds.count("stablehlo.tanh") == 3
    lines = graph().text.splitlines()
    for kind, line in zip(kinds, flat.lines, strict=True):
        if kind == "stablehlo.tanh":
            assert kind in lines[line - 1]
    assert {type_of(v)[1] for v in flat.floats.values()} == {"f32", "bf16"}
    assert not {"stablehlo.constant"} & {flat.operations[i].operation.name for i in flat.floats}
    assert all(flat.own)
    parse(flat.text())
    for a, b in zip(numbers(graph()), run(Graph("flat", flat.text(), graph().abi), X, W), strict=True):
        np.testing.assert_array_equal(a, b)


def test_all_values_of_some_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many runs as memory needs."""
    runs: list[int] = []

    def counted(found: Graph) -> list[np.ndarray]:
        runs.append(len(found.abi.results))
        return numbers(found)

    (values,) = values_of(graph(), {4}, counted)
    assert all(v.size == 4 for v in values.values())
    tanh = [i for i, op in enumerate(Flat(graph()).operations) if op.operation.name == "stablehlo.tanh"]
    expected = X
    for i, row in zip(tanh, W, strict=True):
        expected = np.tanh(expected * row)
        np.testing.assert_allclose(values[i], expected, rtol=1e-6)
    monkeypatch.setattr(annotate, "SLICE_BYTES", 33)
    pieces = list(values_of(graph(), {4}, counted))
    assert max(map(len, pieces)) == 2
    assert {i for piece in pieces for i in piece} == set(values)
    assert runs[0] == sum(runs[1:])
    flat = Flat(graph())
    assert [i for some in sliced(flat, {4}, range(min(tanh), max(tanh))) for i in some] == [
        i for i in values if min(tanh) <= i < max(tanh)
    ]


@pytest.mark.parametrize("replaced", [0, 1, 2])
def test_a_value_is_replaced(replaced: int) -> None:
    """All that is computed from it reads the other one, where that is taken."""
    tanh = [i for i, op in enumerate(Flat(graph()).operations) if op.operation.name == "stablehlo.tanh"]
    found = variant(graph(), [tanh[2], tanh[replaced]], [tanh[replaced]])
    name = str(tanh[replaced])
    assert [a.name for a in found.abi.arguments] == ["x", "w", name, f"{name}?"]
    other = np.full(4, 0.25, np.float32)
    for taken in (False, True):
        last, mine = numbers(found, **{name: other, f"{name}?": np.array(taken)})
        expected = X
        for i, row in enumerate(W):
            expected = np.tanh(expected * row)
            if taken and i == replaced:
                expected = other
        np.testing.assert_allclose(last, expected, rtol=1e-6)
        assert (mine.tolist() == other.tolist()) == taken


def test_what_adapts_a_graph_is_not_its_own() -> None:
    text = f"""\
module @m {{
  func.func private @inner(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = stablehlo.negate %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
  func.func private @{JUDGED_ROW}(%p: tensor<i32>) -> tensor<i32> {{
    return %p : tensor<i32>
  }}
  func.func public @adapted(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = stablehlo.abs %x : tensor<4xf32>
    %1 = call @inner(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.tanh %1 : tensor<4xf32>
    return %2 : tensor<4xf32>
  }}
}}"""
    flat = Flat(Graph("g", text, Abi("decode", (), (), "adapted")))
    assert dict(zip([op.operation.name for op in flat.operations], flat.own, strict=True)) == {
        "stablehlo.abs": False, "stablehlo.negate": True, "stablehlo.tanh": False, "func.return": False,
    }  # fmt: skip
