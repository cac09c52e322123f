"""Finds the operation of a wrong subgraph whose numbers a right graph has nowhere, or in other places.

The two are lowered differently, so no operation of one is an operation of the other. What is found is likely and no more:
numbers are alike, and no experiment was made. Changes of one operation alone have been tried before: see `blame.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.localize.anatomy import Anatomy, Step, Subgraph
from hloracle.localize.known_numbers import KnownNumbers, is_uniform
from hloracle.localize.operations import Found, Value, by_itself, inputs_of
from hloracle.localize.workbench import Workbench
from hloracle.reference.model.encodings import argument_parts
from hloracle.reference.model.weights import parts_in
from hloracle.repair.changes.kinds import BINARY
from hloracle.semantics.numbers import FLOATS

# Of a product's numbers: where the right graph has not even so many, one of its two operands is in another arrangement; where an
# operand has wrong numbers here and there, most of them are right. Half is the middle of the two: put in after a mutant
# showed that a limit is needed, and before the shares were looked at.
MOST = 0.5
ARITHMETIC = frozenset(f"stablehlo.{kind}" for kind in BINARY)
CHOOSING = frozenset(f"stablehlo.{kind}" for kind in ("reduce", "maximum", "minimum", "select", "clamp", "sort"))
# They give elements of what they take, and compute nothing.
MOVES = frozenset(
    f"stablehlo.{kind}" for kind in (
        "reshape", "transpose", "slice", "dynamic_slice", "broadcast_in_dim", "concatenate", "pad", "reverse",
        "optimization_barrier",
    )
)  # fmt: skip
# Why it is an operation: what was seen of its numbers, or of what is made of it.
NOWHERE = "the right graph has its result nowhere, and what it takes is not seen to be wrong"
MISPLACED = "it has the right numbers in the wrong places"
OTHER_TABLE = "its numbers stand in the graph, and are those of no value of the right graph"
OTHER_ROWS = "rows of a table are taken by it that the right graph does not take"
COUNTED = "a mask, a rank or a choice that is made of it is not the right graph's"
ARRANGED = "what is computed of it is nowhere in the right graph, which has its numbers and those of the other operand"
TAKING = frozenset(f"stablehlo.{kind}" for kind in ("slice", "dynamic_slice", "gather"))


def unlike(
    anatomy: Anatomy, subgraph: Subgraph, peer: Anatomy, value: Value, bench: Workbench, wrong: Sequence[int]
) -> Found | None:
    """The first operation of a wrong subgraph whose result the right graph's subgraph has nowhere, from operands that it has.

    Values are looked for by their numbers: in any order, with either sign, as a part of a larger one. Only operations that a
    wrong result depends on through such values are considered.

    Args:
      wrong: which of the subgraph's results are.
    """
    traced = _traced(anatomy, subgraph, peer, value, bench)
    ends = traced.ends(wrong)
    return traced.found(*traced.first(ends), value) if ends else None


def other_table(
    anatomy: Anatomy, subgraph: Subgraph, peer: Anatomy, value: Value, bench: Workbench, wrong: Sequence[int]
) -> Found | None:
    """A table of numbers that a wrong result depends on, and that is the right graph's nowhere; see `unlike`."""
    traced = _traced(anatomy, subgraph, peer, value, bench)
    table = traced.other_table(traced.ends(wrong))
    return None if table is None else traced.found(table, OTHER_TABLE, value)


def _traced(anatomy: Anatomy, subgraph: Subgraph, peer: Anatomy, value: Value, bench: Workbench) -> _Traced:
    steps, right = anatomy.steps(subgraph), peer.subgraph(subgraph.anchor)
    pool = [value(a.name) for p in (subgraph, right) for a in p.graph.abi.arguments]
    pool += by_itself(peer.steps(right), value, bench)
    pool += _fused_products(subgraph, peer, value, bench)
    known = of_tables = KnownNumbers(pool, peer.whole_numbers(right))
    tables = anatomy.tables(subgraph)
    if any(tables):
        of_tables = KnownNumbers([*pool, *(table for own in peer.tables(right) for table in own)], [])
    return _Traced(anatomy, subgraph, steps, by_itself(steps, value, bench), tables, known, of_tables)


@dataclass(frozen=True)
class _Traced:
    """Steps of a wrong subgraph with their results, on right inputs, and their tables.

    known: the numbers that the right graph computes. known_tables: with those that stand in it.
    """

    anatomy: Anatomy
    subgraph: Subgraph
    steps: Sequence[Step]
    results: Sequence[np.ndarray]
    tables: Sequence[Sequence[np.ndarray]]
    known: KnownNumbers
    known_tables: KnownNumbers

    def ends(self, wrong: Sequence[int]) -> list[int]:
        """The steps that compute those of the subgraph's results."""
        found = self.anatomy.ends(self.subgraph)
        return [end for i in wrong if (end := found[i]) is not None]

    def found(self, index: int, why: str, value: Value) -> Found:
        """A step as the wrong operation, shown by what comes before it."""
        graph = self.anatomy.prefix(self.subgraph, index)
        return Found(self.steps[index], graph, inputs_of(graph, value), None, self.results[index], why, by="likeness")

    def first(self, ends: Sequence[int]) -> tuple[int, str]:
        """The step that went wrong first, of those that lead to wrong results; and why it is this one."""
        if (table := self.other_table(ends)) is not None:
            return table, OTHER_TABLE
        if (place := self._other_place(ends)) is not None:
            return place, OTHER_ROWS
        found = min(self._unknown_from_known(ends)), ""
        while (before := self._wrong_before(found[0])) is not None:
            found = before
        index, why = found
        return index, why or (MISPLACED if self.known.have(self.results[index]) else NOWHERE)

    def other_table(self, ends: Sequence[int]) -> int | None:
        """The first step of those that lead to wrong results which takes numbers from a table that is none of the right graph's."""
        return next((i for i in sorted(self._leading_to(ends)) if self._has_other_table(i)), None)

    def _has_other_table(self, index: int) -> bool:
        """Whether a step takes numbers that the right graph does not have from a table that it does not have, nor two of its tables."""
        other = [table for table in self.tables[index] if not _has(self.known_tables, table)]
        return bool(other) and not _has(self.known, self.results[index])

    def _other_place(self, ends: Sequence[int]) -> int | None:
        """What makes the place at which numbers are taken from a right table that the right graph does not take."""
        for index in sorted(self._leading_to(ends)):
            taken = self.tables[index] and self.steps[index].name in TAKING and self._is_table(index)
            if taken and not _has(self.known, self.results[index]) and not self._is_whole_table(index):
                return next(iter(self._operands(index)), index)
        return None

    def _unknown_from_known(self, ends: Sequence[int]) -> list[int]:
        """The steps whose operands the right graph has, back from ends that are wrong even if they have the right numbers."""
        seen: set[int] = set()
        found: list[int] = []
        todo = list(ends)
        while todo:
            index = todo.pop()
            if index in seen:
                continue
            seen.add(index)
            strange = [o for o in self._operands(index) if not self._is_known(o)]
            todo += strange
            if not strange:
                found.append(index)
        return found

    def _wrong_before(self, index: int) -> tuple[int, str] | None:
        """Of the operands of a wrong step, whose numbers the right graph all has somewhere, the one that went wrong before.

        And why, where its own numbers do not tell.
        """
        step, operands = self.steps[index], self._operands(index)
        if step.name == "stablehlo.while":  # it goes over what it takes in parts of its own
            return None
        for operand in sorted(operands, key=lambda o: not self._of_floats[o]):
            if (moved := self._misplaced(operand)) is not None:
                return moved, ""
        if not self._is_known(index):
            for operand in operands:
                # What only moves elements has to give what the right graph has as one value, not only its numbers.
                moves = self.steps[operand].line and self.steps[operand].name in MOVES and self._tells(operand)
                if moves and not self.known.have(self.results[operand], whole=True):
                    return operand, ""
            known = step.name in ARITHMETIC and all(map(self._is_known, operands))
            if known and self.known.share(self.results[index]) < MOST:
                arranged = self._arranged(operands)
                return None if arranged is None else (arranged, ARRANGED)
        if step.line and self.results[index].dtype.kind in "biu":
            # A mask or a rank has few numbers, so that it says nothing that they are known: what was it made of?
            for operand in operands:
                counted = self.results[operand].dtype.kind in "biu"
                if self.steps[operand].line and (self._of_floats[operand] if counted else not self._is_known(operand)):
                    return operand, COUNTED
        if not step.line and operands:  # what was put around somebody else's graph: the graph's own comes before it
            return max(operands, key=lambda o: self.results[o].size), ""
        return None

    def _misplaced(self, index: int) -> int | None:
        """A step, or one before it whose result it only moves, whose numbers the right graph's value of that shape has elsewhere."""
        for moved in self._moved(index):
            placed = self.known.placed(self.results[moved]) if self._has_places(moved) else None
            if placed is not None:
                return None if placed else moved
        return None

    def _arranged(self, operands: Sequence[int]) -> int | None:
        """Of two operands that the right graph both has, and not what is computed of them, the one in another arrangement."""
        for operand in operands:
            turned = [i for i in self._moved(operand) if self.steps[i].name == "stablehlo.transpose"]
            if turned:
                return turned[-1]
        return next((o for o in operands if self._is_table(o)), None)

    def _moved(self, index: int) -> list[int]:
        """A step, and those before it whose only result it moves, one after another."""
        found = [index]
        while self.steps[found[-1]].name in MOVES and len(before := self._operands(found[-1])) == 1:
            found += before
        return found

    def _is_table(self, index: int) -> bool:
        """Whether a result is numbers that stand in the graph, or some of them that are taken by their place."""
        step, result = self.steps[index], self.results[index]
        if not step.line or step.name not in MOVES | TAKING or result.dtype.kind in "biu" or self._of_floats[index]:
            return False
        return step.name in TAKING or not is_uniform(result)

    def _is_whole_table(self, index: int) -> bool:
        """Whether a step cuts a table of the right graph out of a constant that has several: no place is chosen by it."""
        cut = self.steps[index].name == "stablehlo.slice" and self.tables[index]
        return bool(cut) and self.known_tables.have_together(self.results[index])

    def _leading_to(self, ends: Sequence[int]) -> set[int]:
        found: set[int] = set()
        todo = list(ends)
        while todo:
            index = todo.pop()
            if index not in found:
                found.add(index)
                todo += self._operands(index)
        return found

    @functools.cached_property
    def _of_floats(self) -> list[bool]:
        """Of each step, whether it depends on floats that the subgraph is given, and not on those alone that stand in it."""
        return self._depending(FLOATS)

    @functools.cached_property
    def _of_arguments(self) -> list[bool]:
        """Of each step, whether it depends on anything that the subgraph is given."""
        return self._depending()

    def _depending(self, dtypes: Container[str] | None = None) -> list[bool]:
        found: list[bool] = []
        for step in self.steps:
            arguments = zip(step.graph.abi.arguments, step.operands, strict=True)
            found.append(
                any(
                    found[operand] if isinstance(operand, int) else dtypes is None or argument.dtype in dtypes
                    for argument, operand in arguments
                )
            )
        return found

    def _operands(self, index: int) -> list[int]:
        return [o for o in self.steps[index].operands if isinstance(o, int)]

    def _is_known(self, index: int) -> bool:
        """Whether the right graph has a step's numbers, or they say nothing."""
        known = not self._tells(index) or self.known.have(self.results[index], self._is_chosen(index))
        return known or self._is_whole_table(index)

    def _tells(self, index: int) -> bool:
        """Whether a result's numbers say something: not those of places, nor one number throughout that stands in the graph."""
        result = self.results[index]
        return self._of_floats[index] or not (result.dtype.kind in "biu" or is_uniform(result))

    def _has_places(self, index: int) -> bool:
        """Whether it matters where a result's numbers are: not of one number throughout that stands in the graph."""
        return self._of_arguments[index] or not is_uniform(self.results[index])

    def _is_chosen(self, index: int) -> bool:
        """Whether a result is chosen from what is taken, so that it says nothing that its numbers are there somewhere.

        What adapts somebody else's graph chooses rows and tokens, which is right.
        """
        step = self.steps[index]
        return (step.name in CHOOSING and step.line > 0) or (
            step.name in MOVES and any(map(self._is_chosen, self._operands(index)))
        )


def _has(known: KnownNumbers, numbers: np.ndarray) -> bool:
    """Whether numbers are those of one value, or of several side by side."""
    return known.have_together(numbers) or known.have_of_several(numbers)


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
