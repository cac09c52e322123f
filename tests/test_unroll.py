"""Loops are written out where it is known how often they turn, and compute what they did; others stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import run
from jax import lax
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from hloracle.core.abi import Abi, Graph
from hloracle.localize import unroll
from hloracle.localize.text import function_named
from hloracle.localize.unroll import flatten

X = np.array([1.0, 2.0, -3.0, 0.5], np.float32)
W = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
COUNT = np.int32(3)


def scan(x: Any, w: Any, n: Any) -> Any:
    return lax.scan(lambda c, row: (jnp.tanh(c * row), c.sum()), x, w)


def scan_back(x: Any, w: Any, n: Any) -> Any:
    return lax.scan(lambda c, row: (c * row + 1, None), x, w, reverse=True)[0]


def counted(x: Any, w: Any, n: Any) -> Any:
    return lax.fori_loop(2, 7, lambda i, c: c + i * w[i % 3], x)


def nested(x: Any, w: Any, n: Any) -> Any:
    return lax.fori_loop(0, 2, lambda i, c: lax.scan(lambda d, row: (d * row + i, None), c, w)[0], x)


def calls(x: Any, w: Any, n: Any) -> Any:
    inner = jax.jit(lambda c, row: lax.fori_loop(0, 2, lambda _, d: d + row, jax.nn.silu(c)))
    return lax.scan(lambda c, row: (inner(c, row), None), x, w)[0]


def after_each_other(x: Any, w: Any, n: Any) -> Any:
    return scan_back(counted(x, w, n), w, n) + counted(x, w, n)


def never(x: Any, w: Any, n: Any) -> Any:
    return lax.fori_loop(3, 3, lambda i, c: c + 1, x)


def by_twos(x: Any, w: Any, n: Any) -> Any:
    return lax.while_loop(lambda s: s[0] * 2 < 17, lambda s: (s[0] * 2 + 1, s[1] + w[0]), (jnp.int32(1), x))[1]


def many(x: Any, w: Any, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, c: c + w[0], x)


def until(x: Any, w: Any, n: Any) -> Any:
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x)


def many_inside(x: Any, w: Any, n: Any) -> Any:
    return lax.scan(lambda c, row: (many(c, w, n) * row, None), x, w)[0]


def flat(function: Any) -> tuple[str, str, list[str]]:
    """The text of a function before and after, and the operations that are left."""
    text = jax.jit(function, keep_unused=True).lower(X, W, COUNT).as_text()
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        flatten(module, "main")
        assert module.operation.verify()
        block = function_named(module, "main").regions[0].blocks[0]
        return text, str(module), [op.operation.name for op in block.operations]


def computed(text: str) -> list[np.ndarray]:
    return run(Graph("m", text, Abi("decode", (), ())), X, W, COUNT)


@pytest.mark.parametrize("function", [scan, scan_back, counted, nested, calls, after_each_other, never, by_twos])
def test_is_written_out(function: Any) -> None:
    before, after, left = flat(function)
    assert not {"stablehlo.while", "func.call"} & set(left)
    for wanted, got in zip(computed(before), computed(after), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(("function", "loops"), [(many, 1), (until, 1), (many_inside, 3)])
def test_what_data_decides_stays(function: Any, loops: int) -> None:
    """And what is around it is written out."""
    before, after, left = flat(function)
    assert left.count("stablehlo.while") == loops
    for wanted, got in zip(computed(before), computed(after), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_each_turn_has_its_operations() -> None:
    left = flat(scan)[2]
    assert left.count("stablehlo.tanh") == len(W)
    assert set(flat(never)[2]) <= {"stablehlo.constant", "func.return"}


def test_loops_that_turn_too_often_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "MOST_TURNS", 4)
    assert "stablehlo.while" in flat(counted)[2]
    monkeypatch.setattr(unroll, "MOST_TURNS", 5)
    assert "stablehlo.while" not in flat(counted)[2]
    monkeypatch.setattr(unroll, "MOST_OPERATIONS", 10)
    assert "stablehlo.while" in flat(counted)[2]


def test_a_loop_without_an_end_stays() -> None:
    text = """\
func.func @main() -> tensor<i32> {
  %0 = stablehlo.constant dense<0> : tensor<i32>
  %1 = stablehlo.while(%a = %0) : tensor<i32>
  cond {
    %t = stablehlo.constant dense<true> : tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    stablehlo.return %a : tensor<i32>
  }
  return %1 : tensor<i32>
}"""
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        flatten(module, "main")
        assert "stablehlo.while" in str(module)


@pytest.mark.parametrize("start", [2147483646, 2147483640])
def test_numbers_wrap_as_the_types_do(start: int) -> None:
    """A counter that goes beyond the largest number of its type is negative then."""
    text = f"""\
func.func @main() -> tensor<i32> {{
  %0 = stablehlo.constant dense<{start}> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<0> : tensor<i32>
  %1:2 = stablehlo.while(%a = %0, %c = %n) : tensor<i32>, tensor<i32>
  cond {{
    %p = stablehlo.compare GE, %a, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }} do {{
    %b = stablehlo.add %a, %one : tensor<i32>
    %d = stablehlo.add %c, %one : tensor<i32>
    stablehlo.return %b, %d : tensor<i32>, tensor<i32>
  }}
  return %1#1 : tensor<i32>
}}"""
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        flatten(module, "main")
        after = str(module)
    assert "stablehlo.while" not in after
    assert run(Graph("m", after, Abi("decode", (), ())))[0] == 2**31 - start


def test_unsigned_numbers_wrap_too() -> None:
    text = """\
func.func @main() -> tensor<i32> {
  %0 = stablehlo.constant dense<3> : tensor<ui32>
  %one = stablehlo.constant dense<1> : tensor<ui32>
  %many = stablehlo.constant dense<1000> : tensor<ui32>
  %n = stablehlo.constant dense<0> : tensor<i32>
  %i1 = stablehlo.constant dense<1> : tensor<i32>
  %1:2 = stablehlo.while(%a = %0, %c = %n) : tensor<ui32>, tensor<i32>
  cond {
    %p = stablehlo.compare LT, %a, %many : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %b = stablehlo.subtract %a, %one : tensor<ui32>
    %d = stablehlo.add %c, %i1 : tensor<i32>
    stablehlo.return %b, %d : tensor<ui32>, tensor<i32>
  }
  return %1#1 : tensor<i32>
}"""
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        flatten(module, "main")
        after = str(module)
    assert "stablehlo.while" not in after
    assert run(Graph("m", after, Abi("decode", (), ())))[0] == 4


def test_numbers_that_take_many_operations() -> None:
    """Each is computed once, however many read it; and a loop stays where its first number is too deep to be followed."""

    def loop(count: int) -> str:
        adds = [f"  %x{i + 1} = stablehlo.add %x{i}, %x{i} : tensor<i32>" for i in range(count)]
        return "\n".join([
            "func.func @main() -> tensor<i32> {", "  %x0 = stablehlo.constant dense<1> : tensor<i32>", *adds,
            f"  %r = stablehlo.while(%a = %x{count}) : tensor<i32>", "  cond {",
            "    %p = stablehlo.compare NE, %a, %x0 : (tensor<i32>, tensor<i32>) -> tensor<i1>", "    stablehlo.return %p : tensor<i1>",
            "  } do {", "    stablehlo.return %x0 : tensor<i32>", "  }", "  return %r : tensor<i32>", "}",
        ])  # fmt: skip

    with mlir.make_ir_context():
        for count, stays in ((64, False), (5000, True)):
            module = ir.Module.parse(loop(count))
            flatten(module, "main")
            assert ("stablehlo.while" in str(module)) == stays
