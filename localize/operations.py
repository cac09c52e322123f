"""Finds the first wrong operation inside one subgraph.

`miscompiled` is for a compiler: it compares each operation with what another compiler computes. `unlike` is for a graph
that is compiled as written: it looks for the first value that the right graph has nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.core.abi import Graph
from hloracle.core.dtypes import dtype_of
from hloracle.core.errors import ToolchainError
from hloracle.core.tolerances import NARROW_SAME_INPUTS, SAME_INPUTS
from hloracle.localize.anatomy import Anatomy, Step, Subgraph
from hloracle.localize.workbench import Workbench
from hloracle.reference.model.encodings import argument_parts
from hloracle.reference.model.weights import parts_in

# Of a value's elements, the share that the other graph has to have too: a few may fall between two roundings.
SHARE = 0.98
# Fewer elements than these may be found by chance among the other graph's many.
FEW = 16
CHOOSING = frozenset(f"stablehlo.{kind}" for kind in ("reduce", "maximum", "minimum", "select", "clamp", "sort"))
# They give elements of what they take, and compute nothing.
MOVES = frozenset(
    f"stablehlo.{kind}" for kind in (
        "reshape", "transpose", "slice", "dynamic_slice", "broadcast_in_dim", "concatenate", "pad", "reverse",
        "optimization_barrier",
    )
)  # fmt: skip


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


def unlike(anatomy: Anatomy, subgraph: Subgraph, peer: Anatomy, value: Value, bench: Workbench) -> Found | None:
    """The first operation of a wrong subgraph whose result the right graph's subgraph has nowhere, from operands that it has.

    The two are lowered differently, so values are looked for by their numbers: in any order, with either sign, as a
    part of a larger one. Only operations that the wrong result depends on through such values are considered.
    """
    steps = anatomy.steps(subgraph)
    results = by_itself(steps, value, bench)
    pool = [value(a.name) for p in (subgraph, peer.subgraph(subgraph.anchor)) for a in p.graph.abi.arguments]
    pool += by_itself(peer.steps(peer.subgraph(subgraph.anchor)), value, bench)
    pool += _fused_products(subgraph, peer, value, bench)
    known = _Numbers(pool, peer.whole_numbers(peer.subgraph(subgraph.anchor)))
    if not steps:
        return None
    seen: set[int] = set()
    frontier: list[int] = []
    todo = [len(steps) - 1]  # known to be wrong, even if it holds the right numbers in another order
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        strange = [
            o for o in steps[index].operands if isinstance(o, int) and not known.have(results[o], _chosen(steps, o))
        ]
        todo += strange
        if not strange:
            frontier.append(index)
    first = min(frontier)
    while (before := _wrong_before(steps, first, results, known)) is not None:
        first = before
    graph = anatomy.prefix(subgraph, first)
    why = "the right graph has its operands, and has its result nowhere"
    if known.have(results[first]):
        why = "it has the right numbers in the wrong places"
    return Found(steps[first], graph, inputs_of(graph, value), None, results[first], why, by="likeness")


def _wrong_before(steps: Sequence[Step], index: int, results: Sequence[np.ndarray], known: _Numbers) -> int | None:
    """Of the operands of a wrong operation, whose numbers the right graph all has somewhere, the one that went wrong before."""
    operands = [o for o in steps[index].operands if isinstance(o, int)]
    for operand in operands:
        if known.elsewhere(results[operand]):  # the right graph's value of that shape has them in other places
            return operand
    if not known.have(results[index], _chosen(steps, index)):
        for operand in operands:
            step = steps[operand]
            # What only moves elements has to give what the right graph has as one value, not only its numbers.
            if step.line and step.name in MOVES and not known.have(results[operand], whole=True):
                return operand
    if not steps[index].line and operands:  # what was put around somebody else's graph: the graph's own comes before it
        return max(operands, key=lambda o: results[o].size)
    return None


def _fused_products(subgraph: Subgraph, peer: Anatomy, value: Value, bench: Workbench) -> list[np.ndarray]:
    """What a subgraph computes with fused weights, by the right graph: the products of their parts, side by side."""
    names = {parts_in(argument_parts(a.name)[0]) for a in subgraph.graph.abi.arguments}
    found = []
    for parts in (parts for parts in names if len(parts) > 1):
        products: list[np.ndarray] = []
        for anchor in (part.removeprefix("model.").removesuffix(".weight") for part in parts):
            steps = peer.steps(peer.subgraph(anchor)) if anchor in peer.values else []
            results = zip(steps, by_itself(steps, value, bench), strict=True)
            products += [result for step, result in results if step.name == "stablehlo.dot_general"]
        if len(products) == len(parts):
            found.append(np.concatenate(products, axis=-1))
    return found


class _Numbers:
    """Absolute values, to be looked up by nearness. constants: what a whole value may be, too."""

    def __init__(self, arrays: Sequence[np.ndarray], constants: Sequence[np.ndarray]) -> None:
        self._by_size: dict[int, list[np.ndarray]] = {}
        self._by_shape: dict[tuple[object, ...], list[np.ndarray]] = {}
        for array in arrays:
            found = _magnitudes(array)
            self._by_size.setdefault(len(found), []).append(found)
            self._by_shape.setdefault(_kind(array), []).append(array)
        for array in constants:
            self._by_shape.setdefault(_kind(array), []).append(array)
        self._all = np.unique(np.concatenate([m for found in self._by_size.values() for m in found]))

    def have(self, array: np.ndarray, whole: bool = False) -> bool:
        """Whether the numbers are known: as those of a whole value, or else as some of all values."""
        mine = _magnitudes(array)
        if not len(mine):
            return True
        near = 2.0**-18 * max(float(mine[-1]), 1e-30)
        if any(np.all(np.abs(mine - other) <= near) for other in self._by_size.get(len(mine), [])):
            return True
        distinct = np.unique(mine)
        if len(distinct) < FEW:
            # Few numbers are known if they are all there and exact, as those of a table or a broadcast are.
            return bool(np.all(np.isin(distinct, self._all)))
        if whole:
            return any(_equal(distinct, np.unique(other), near) for other in self._values())
        place = np.searchsorted(self._all, distinct)
        below = self._all[np.maximum(place - 1, 0)]
        above = self._all[np.minimum(place, len(self._all) - 1)]
        distance = np.minimum(np.abs(distinct - below), np.abs(distinct - above))
        return bool(np.mean(distance <= 2.0**-20 * np.maximum(distinct, 2.0**-10 * distinct[-1])) >= SHARE)

    def _values(self) -> Iterator[np.ndarray]:
        return (one for found in self._by_size.values() for one in found)

    def elsewhere(self, array: np.ndarray) -> bool:
        """Whether there are arrays of this shape, but for axes of one element, and none has its values in their places."""
        mine = np.abs(np.squeeze(array).astype(np.float64))
        near = 2.0**-18 * np.max(mine, where=np.isfinite(mine), initial=1e-30)
        alike = self._by_shape.get(_kind(array), [])
        return bool(alike) and not any(
            np.allclose(mine, np.abs(np.squeeze(other).astype(np.float64)), rtol=0, atol=near, equal_nan=True)
            for other in alike
        )


def _equal(one: np.ndarray, other: np.ndarray, near: float) -> bool:
    return one.shape == other.shape and bool(np.all(np.abs(one - other) <= near))


def _chosen(steps: Sequence[Step], index: int) -> bool:
    """Whether a result is chosen from what is taken, so that it says nothing that its numbers are there somewhere.

    What adapts somebody else's graph chooses rows and tokens, which is right.
    """
    step = steps[index]
    return (step.name in CHOOSING and step.line > 0) or (
        step.name in MOVES and any(isinstance(o, int) and _chosen(steps, o) for o in step.operands)
    )


def _kind(array: np.ndarray) -> tuple[object, ...]:
    """Shape but for axes of one element, and whether it holds floats, integers or booleans."""
    return (*np.squeeze(array).shape, array.dtype.kind)


def _magnitudes(array: np.ndarray) -> np.ndarray:
    """Finite absolute values, sorted."""
    flat = np.abs(array.astype(np.float64).ravel())
    return np.sort(flat[np.isfinite(flat)])


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
