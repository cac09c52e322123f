"""Gate zero: before any model, a sum and a product written by the emitter's Builder, exact on each backend."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.context import Context
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.child import ChildDied, TimedOut
from hloracle.core.errors import ToolchainError
from hloracle.emitters.builder import Builder, TensorType

TITLE = "a+b and dot_general are exact"
TIMEOUT_SECONDS = 300


def sum_graph() -> Graph:
    """[1, 2, 3, 4] + [10, 20, 30, 40]"""
    b, type = Builder(), TensorType((4,), "f32")
    lhs, rhs = b.argument(type), b.argument(type)
    tensors = tuple(Tensor("weight", name, type.shape, "f32") for name in "ab")
    abi = Abi("gate-zero", tensors, (Tensor("tap", "sum", type.shape, "f32"),))
    return b.graph("gate_zero_add", abi, [b.add(lhs, rhs)])


# Of TF32's 11 bits and bfloat16's 8 none holds 4099, which float32 multiplies with small numbers, and adds up, exactly.
WIDE, SIDE = 4099, 64


def product_graph(lhs: tuple[int, int] = (2, 3), rhs: tuple[int, int] = (5, 3)) -> Graph:
    """A matrix times the transpose of another: not square, so that an exchanged side shows, if nothing else is asked for."""
    b = Builder()
    x, w = (b.argument(TensorType(shape, "f32")) for shape in (lhs, rhs))
    tensors = (Tensor("weight", "x", lhs, "f32"), Tensor("weight", "w", rhs, "f32"))
    abi = Abi("gate-zero", tensors, (Tensor("tap", "product", (lhs[0], rhs[0]), "f32"),))
    return b.graph("gate_zero_dot", abi, [b.dot_general(x, w, contracting_dimensions=((1,), (1,)))])


@dataclass(frozen=True)
class Gate:
    """What gate zero found of a backend, and what the backend says of itself, such as `IREE 3.12.0, local-task:0`."""

    check: Check
    said: str = ""


def gate_zero(context: Context, backend: str) -> Gate:
    """Compile and run both graphs in a child process. A failure carries the toolchain's own message."""
    question, seconds = Question("gate-zero", TITLE, backend=backend), context.at_most(TIMEOUT_SECONDS)
    try:
        # Without a fault that was put in on purpose: it is the model's graphs in which it is to be noticed.
        as_it_is = dataclasses.replace(context, fault=None)
        figures, said = as_it_is.child(_run, backend, timeout=seconds).value
    except TimedOut:
        return Gate(question.error(f"it did not end within {seconds:g} s", "timeout"))
    except ToolchainError as error:
        return Gate(question.error(str(error), error.stage))
    except ChildDied as error:
        return Gate(question.error(str(error), "memory" if error.cause == "memory" else "process"))
    x, w = _operands()
    right = [11.0, 22.0, 33.0, 44.0], (x @ w.T).tolist(), 0

    def words(sums: list[float], products: list[list[float]], wide: int) -> str:
        return f"{sums}, {products} and {wide} of {SIDE * SIDE} products of {WIDE} rounded"

    detail = "float32 is rounded on its way into a product" if figures[2] else ""
    return Gate(question.judged(figures == right, words(*figures), words(*right), detail), said)


def _operands() -> tuple[np.ndarray, np.ndarray]:
    """Small integers: every product and sum is exact in float32, in any order."""
    return np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.arange(15, dtype=np.float32).reshape(5, 3) - 6


def _wide_operands() -> tuple[np.ndarray, np.ndarray]:
    """4096 and a few, times -2 to 2: every sum of 64 products is less than 2^24."""
    rng = np.random.default_rng(0)
    wide, narrow = (rng.integers(low, high, (SIDE, SIDE)) for low, high in ((WIDE, WIDE + 2), (-2, 3)))
    return wide.astype(np.float32), narrow.astype(np.float32)


def _run(context: Context, name: str) -> tuple[tuple[list[float], list[list[float]], int], str]:
    """The sum, the product, and how many elements of the wide product are not exact; and what the backend says of itself."""
    context.report(f"gate zero on {name}")
    backend = context.backend(name)
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)
    (sums,) = backend.load(sum_graph())([backend.upload(a), backend.upload(b)])
    (products,) = backend.load(product_graph())([backend.upload(v) for v in _operands()])
    x, w = _wide_operands()
    # Of a size that tensor cores are used for.
    (wide,) = backend.load(product_graph((SIDE, SIDE), (SIDE, SIDE)))([backend.upload(x), backend.upload(w)])
    rounded = int(np.sum(backend.download(wide) != x.astype(np.float64) @ w.astype(np.float64).T))
    facts = getattr(backend, "facts", {})
    told = [" ".join(str(facts[key]) for key in ("name", "version") if facts.get(key)), str(facts.get("device") or "")]
    said = ", ".join(filter(None, told))
    return (backend.download(sums).tolist(), backend.download(products).tolist(), rounded), said
