"""Finds the first operation of one subgraph that a compiler gets wrong: each is held to what another compiler computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.core.abi import Graph
from hloracle.core.dtypes import dtype_of
from hloracle.core.errors import ToolchainError
from hloracle.core.tolerances import NARROW_SAME_INPUTS, SAME_INPUTS
from hloracle.localize.anatomy import Anatomy, Step, Subgraph
from hloracle.localize.workbench import Workbench


@dataclass(frozen=True)
class Found:
    """An operation that is wrong.

    graph: shows it: the operation alone, or the subgraph up to it.
    inputs: of `graph`, by name; expected: its right result, where that is known; None if it fails.
    got: what it computes. why: how it was found, in one sentence.
    tolerance: how far a right result may be from `expected`. result: which of the graph's results this is about.
    by: `witness`, which computes it otherwise; `repair`, a change of it that was tried; or `likeness` of its numbers.
    """

    step: Step
    graph: Graph
    inputs: dict[str, np.ndarray]
    expected: np.ndarray | None
    got: np.ndarray
    why: str
    tolerance: float = 0.0
    result: int = 0
    by: str = "witness"


Value = Callable[[str], np.ndarray]


def by_itself(steps: Sequence[Step], value: Value, bench: Workbench) -> list[np.ndarray]:
    """The result of each step, one after another, each compiled alone."""
    results: list[np.ndarray] = []
    for step in steps:
        results.append(bench.run(step.graph, _operands(step, results, value))[0])
    return results


def miscompiled(
    anatomy: Anatomy, subgraph: Subgraph, value: Value, suspect: Workbench, trusted: Workbench
) -> Found | None:
    """The first operation that `suspect` computes otherwise than `trusted`, alone or with what precedes it."""
    steps = anatomy.steps(subgraph)
    right = by_itself(steps, value, trusted)
    names = f"{suspect.backend.name} computes it otherwise than {trusted.backend.name}"
    for step, expected in zip(steps, right, strict=True):
        take = _operands(step, right, value)
        got = suspect.run(step.graph, take)[0]
        if differ(got, expected):
            why = f"{names}, from the same operands"
            return Found(step, step.graph, inputs_of(step.graph, take), expected, got, why, tolerance(expected))
    for index, (step, expected) in enumerate(zip(steps, right, strict=True)):
        graph = anatomy.prefix(subgraph, index)
        got = suspect.run(graph, value)[0]
        if differ(got, expected):
            why = f"{names}, but only together with the operations before it"
            return Found(step, graph, inputs_of(graph, value), expected, got, why, tolerance(expected))
    return None


def wrong_in_the_whole(
    anatomy: Anatomy, subgraph: Subgraph, value: Value, suspect: Workbench, trusted: Workbench
) -> Found | None:
    """The first operation of a subgraph that `suspect` computes otherwise with all that comes before it in the whole graph.

    What it does not even compile is wrong as well.
    """
    for index, step in enumerate(anatomy.steps(subgraph)):
        graph = anatomy.whole_prefix(subgraph, index)
        expected = trusted.run(graph, value)[0]
        try:
            got = suspect.run(graph, value)[0]
        except ToolchainError as error:
            why = f"{suspect.backend.name} refuses it, together with all that comes before it: {error.message}"
            return _failing(step, graph, value, error, why)
        if differ(got, expected):
            names = f"{suspect.backend.name} computes it otherwise than {trusted.backend.name}"
            why = f"{names}, but only together with what comes before it in the whole graph"
            return Found(step, graph, inputs_of(graph, value), expected, got, why, tolerance(expected))
    return None


def refused(anatomy: Anatomy, subgraph: Subgraph, value: Value, bench: Workbench) -> Found | None:
    """The first operation that a backend does not compile, alone or with what precedes it; or on which it fails when run."""
    steps = anatomy.steps(subgraph)
    alone = [step.graph for step in steps]
    together = [anatomy.prefix(subgraph, i) for i in range(len(steps))]
    ways = (
        (alone, bench.load, "refuses it"),
        (together, bench.load, "refuses it, together with the operations before it"),
        (together, lambda graph: bench.run(graph, value), "fails on it, together with the operations before it"),
    )
    for graphs, attempt, words in ways:
        for step, graph in zip(steps, graphs, strict=True):
            try:
                attempt(graph)
            except ToolchainError as error:
                return _failing(step, graph, value, error, f"{bench.backend.name} {words}: {error.message}")
    return None


def _failing(step: Step, graph: Graph, value: Value, error: ToolchainError, why: str) -> Found:
    """What fails only when it is run is shown with what it is given."""
    inputs = inputs_of(graph, value) if error.stage == "run" else {}
    return Found(step, graph, inputs, None, np.zeros(0), why)


def differ(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two results of the same operations on the same inputs are further apart than their order explains."""
    if got.shape != expected.shape:
        return True
    if expected.dtype.kind in "biu":
        return bool(np.any(got != expected))
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite].astype(np.float64), expected[~finite].astype(np.float64), equal_nan=True):
        return True
    distance = np.abs(got[finite].astype(np.float64) - expected[finite].astype(np.float64))
    return not bool(np.all(distance <= tolerance(expected)))


def tolerance(expected: np.ndarray) -> float:
    """How far apart results of the same operations on the same inputs may be."""
    share = NARROW_SAME_INPUTS.get(dtype_of(expected.dtype), SAME_INPUTS)
    expected = expected.astype(np.float64)
    return share * float(np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0))


def _operands(step: Step, results: Sequence[np.ndarray], value: Value) -> Value:
    """What the arguments of a step's graph are: inputs of the subgraph by name, or results of earlier steps."""
    by_argument = dict(zip((a.name for a in step.graph.abi.arguments), step.operands, strict=True))

    def take(name: str) -> np.ndarray:
        operand = by_argument[name]
        return value(operand) if isinstance(operand, str) else results[operand]

    return take


def inputs_of(graph: Graph, value: Value) -> dict[str, np.ndarray]:
    """The value of each argument of a graph, by name, in the argument's shape."""
    return {a.name: value(a.name).reshape(a.shape) for a in graph.abi.arguments}
