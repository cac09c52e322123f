"""Gate zero: before any model, a sum and a product written by the emitter's Builder, exact on each backend."""

from __future__ import annotations

import numpy as np

from hloracle.conformance.cells import make_backend
from hloracle.conformance.checks import Check, judged
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import ToolchainError
from hloracle.emitters.builder import Builder, TensorType

TITLE = "a+b and one dot_general are exact"
TIMEOUT_SECONDS = 300


def sum_graph() -> Graph:
    """[1, 2, 3, 4] + [10, 20, 30, 40]"""
    b, type = Builder(), TensorType((4,), "f32")
    lhs, rhs = b.argument(type), b.argument(type)
    tensors = tuple(Tensor("weight", name, type.shape, "f32") for name in "ab")
    abi = Abi("gate-zero", tensors, (Tensor("tap", "sum", type.shape, "f32"),))
    return b.graph("gate_zero_add", abi, [b.add(lhs, rhs)])


def product_graph() -> Graph:
    """[2, 3] times the transpose of [5, 3], not square, so that an exchanged side shows."""
    b = Builder()
    lhs, rhs = b.argument(TensorType((2, 3), "f32")), b.argument(TensorType((5, 3), "f32"))
    tensors = (Tensor("weight", "x", (2, 3), "f32"), Tensor("weight", "w", (5, 3), "f32"))
    abi = Abi("gate-zero", tensors, (Tensor("tap", "product", (2, 5), "f32"),))
    return b.graph("gate_zero_dot", abi, [b.dot_general(lhs, rhs, contracting_dimensions=((1,), (1,)))])


def gate_zero(backend: str, threads: int, report: Report | None = None) -> Check:
    """Compile and run both graphs in a child process. A failure carries the toolchain's own message."""
    id = f"gate-zero.{backend}"
    try:
        figures = run_in_child(_run, backend, threads, timeout=TIMEOUT_SECONDS, report=report).value
    except (ToolchainError, ChildDied) as error:
        return Check(id, TITLE, "error", "", "", str(error))
    sums, products = figures
    x, w = _operands()
    holds = sums == [11, 22, 33, 44] and products == (x @ w.T).tolist()
    return judged(id, TITLE, holds, f"{sums} and {products}", f"[11, 22, 33, 44] and {(x @ w.T).tolist()}")


def _operands() -> tuple[np.ndarray, np.ndarray]:
    """Small integers: every product and sum is exact in float32, in any order."""
    return np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.arange(15, dtype=np.float32).reshape(5, 3) - 6


def _run(report: Report, name: str, threads: int) -> tuple[list[float], list[list[float]]]:
    report(f"gate zero on {name}")
    backend = make_backend(name, threads)
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)
    (sums,) = backend.load(sum_graph())([backend.upload(a), backend.upload(b)])
    (products,) = backend.load(product_graph())([backend.upload(v) for v in _operands()])
    return backend.download(sums).tolist(), backend.download(products).tolist()
