"""A wrong subgraph as plain data, the examples that it is tried on, and what it gives once something in it is changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hloracle.semantics.evaluate import MOST_TURNS, Evaluator
from hloracle.semantics.numbers import Unsupported, held, within
from hloracle.semantics.program import Block, Operation, Type, inputs_of

CANNOT = (Unsupported, ValueError, IndexError, TypeError, KeyError, ArithmeticError)  # of what is evaluated
SMALL = 1 << 20  # bytes of a value in float64 that is kept wherever it is known
ROOM = 1 << 29  # bytes of all larger ones that a subject keeps; what is beyond is computed each time it is asked for
FEW = 4096  # elements that are compared before all are
TURNS = 4, 64  # of a loop with an edit: so many times those of the longest one without it, and at least so many


@dataclass(frozen=True)
class Plain:
    """A graph's function as plain data, calls inlined, in which the values at anchors are known.

    stops: numbers of values -> what they stand for: an argument, an anchor, or the whole cache that a layer wrote, `k_cache.3+`.
    numbers: of anchors and of written caches, by their names; one value may have two.
    scopes: of each operation, the anchor of its scope; empty where it has none. lines: of each operation, its line and its text.
    """

    block: Block
    stops: Mapping[int, str]
    numbers: Mapping[str, int]
    scopes: tuple[str, ...]
    lines: tuple[tuple[int, str], ...]

    @functools.cached_property
    def makers(self) -> dict[int, int]:
        """The number of a value -> the place of the operation that makes it."""
        return {v: i for i, operation in enumerate(self.block.operations) for v in operation.results}

    @functools.cached_property
    def types(self) -> dict[int, Type]:
        """Of every value."""
        found = dict(zip(self.block.arguments, self.block.types, strict=True))
        for operation in self.block.operations:
            found.update(zip(operation.results, operation.types, strict=True))
        return found

    @functools.cached_property
    def by_type(self) -> dict[Type, list[int]]:
        """The values of each type, in order."""
        found: dict[Type, list[int]] = {}
        for value, type in self.types.items():
            found.setdefault(type, []).append(value)
        return found

    @functools.cached_property
    def users(self) -> dict[int, list[int]]:
        """The number of a value -> the places of the operations that take it."""
        found: dict[int, list[int]] = {}
        for i, operation in enumerate(self.block.operations):
            for value in dict.fromkeys(inputs_of(operation)):
                found.setdefault(value, []).append(i)
        return found

    @functools.cached_property
    def fresh(self) -> int:
        """The number of a value that the graph does not have, and from which on it has none."""
        return max(self.types) + 1_000_000

    def called(self, value: int) -> str:
        """A value for a reader: as the text calls it, or what it stands for."""
        place = self.makers.get(value)
        name = self.lines[place][1].partition(" = ")[0].strip() if place is not None else ""
        return name if name.startswith("%") else self.stops.get(value, "another value")

    def needed(self, values: Iterable[int], stops: Mapping[int, str]) -> list[int]:
        """The places of the operations that these values depend on, in order, back to `stops`."""
        found: set[int] = set()
        todo = list(values)
        while todo:
            value = todo.pop()
            place = self.makers.get(value)
            if value not in stops and place is not None and place not in found:
                found.add(place)
                todo += inputs_of(self.block.operations[place])
        return sorted(found)


class Example(Protocol):
    """What a graph is given once, and what it has to give."""

    def value(self, name: str) -> np.ndarray:
        """What an argument is, or the right value of an anchor or a cache."""
        ...

    def error(self, results: Sequence[np.ndarray]) -> float:
        """How far off results are; at most 1 where they are right."""
        ...


@dataclass(frozen=True)
class Edit:
    """A change of one operation.

    place: of the operation. instead: what stands in its place; the last of them gives the same results.
    kind: of change, such as `operation` or `operand`. words: what should stand there, for a reader. cost: the cheaper of two that
      put it right is the better one.
    """

    place: int
    instead: tuple[Operation, ...]
    kind: str
    words: str
    cost: int


@dataclass
class Room:
    """How many bytes of values that are not small may still be kept."""

    left: int = ROOM


class Values:
    """The values of a graph on one example. Each is computed when it is asked for, from right values at anchors."""

    def __init__(self, plain: Plain, stops: Mapping[int, str], example: Example, room: Room) -> None:
        self._plain, self._stops, self._example, self._room = plain, stops, example, room
        self._evaluator = Evaluator()
        self._known: dict[int, np.ndarray] = {}

    def of(self, value: int) -> np.ndarray:
        """The value of that number. Raises Unsupported."""
        if value in self._known:
            return self._known[value]
        if value in self._stops:
            given = self._given(value)
            if given.nbytes <= SMALL:  # a matrix is converted each time
                self._known[value] = given
            return given
        found: dict[int, np.ndarray] = {}
        for place in self._plain.needed([value], {**self._stops, **dict.fromkeys(self._known, "")}):
            operation = self._plain.block.operations[place]
            found.update(zip(operation.results, self._results(operation, found, MOST_TURNS), strict=True))
        for number, array in found.items():
            self._keep(number, array)
        return found[value]

    def results(self, operation: Operation, instead: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """What an operation gives with other values than those of the graph, by number."""
        return self._results(operation, instead, self._enough)

    def forget(self) -> None:
        """Keep no more than what is small, so that there is room for the values of another example."""
        for number in [n for n, array in self._known.items() if _size(array) > SMALL]:
            self._room.left += _size(self._known.pop(number))

    def _results(
        self, operation: Operation, others: Mapping[int, np.ndarray], most_turns: int
    ) -> list[np.ndarray]:  # fmt: skip
        taken = {v: others[v] if v in others else self.of(v) for v in inputs_of(operation)}
        self._evaluator.most_turns = most_turns  # once something is changed a loop may have no end
        results = self._evaluator.operation(operation, [taken[v] for v in operation.operands], taken)
        return [
            result if type.other else within(result, type.dtype)
            for result, type in zip(results, operation.types, strict=True)
        ]

    @functools.cached_property
    def _enough(self) -> int:
        """Turns of a loop; asked once everything has been evaluated as it is."""
        factor, least = TURNS
        return max(least, factor * self._evaluator.turns)

    def _given(self, value: int) -> np.ndarray:
        type = self._plain.types[value]
        return held(np.asarray(self._example.value(self._stops[value])).reshape(type.shape), type.dtype)

    def _keep(self, value: int, array: np.ndarray) -> None:
        size = _size(array)
        if size > SMALL and value not in self._known:
            if size > self._room.left:
                return
            self._room.left -= size
        self._known[value] = array


class Subject:
    """The subgraph of one anchor, on several examples.

    Args:
      targets: the numbers of the values that it gives. own: of its operations, those that may be to blame.
    """

    def __init__(
        self,
        plain: Plain,
        targets: Sequence[int],
        examples: Sequence[Example],
        own: Callable[[int], bool] = lambda place: True,
    ) -> None:
        self.plain, self.targets, self.examples = plain, list(targets), list(examples)
        self.stops = {v: name for v, name in plain.stops.items() if v not in self.targets}
        self.needed = plain.needed(self.targets, self.stops)
        self.blamed = [place for place in self.needed if own(place)]
        room = Room()
        self.values = [Values(plain, self.stops, example, room) for example in examples]
        self._after: dict[int, list[int]] = {}
        self._errors: dict[int, float] = {}

    def error(self, which: int) -> float:
        """How far off it is as it is, on one of the examples."""
        if which not in self._errors:  # not by a cache of the class, which would keep every subject with all its values
            self._errors[which] = self.examples[which].error([self.values[which].of(t) for t in self.targets])
        return self._errors[which]

    @functools.cached_property
    def order(self) -> list[int]:
        """The examples, the one first on which it is furthest off: most changes are tried on that one alone."""
        found = sorted(range(len(self.examples)), key=lambda which: -min(self.error(which), 1e30))
        for which in found[1:]:
            self.values[which].forget()
        return found

    def error_with(self, edit: Edit, which: int) -> float | None:
        """How far off it is with an edit, on one of the examples; None where the edit changes nothing there."""
        values = self.values[which]
        self.error(which)  # as it is first: so many turns its loops take
        changed: dict[int, np.ndarray] = {}
        for operation in edit.instead:
            changed.update(zip(operation.results, values.results(operation, changed), strict=True))
        old = self.plain.block.operations[edit.place]
        changed = {v: changed[v] for v in old.results if v in changed and not _same(changed[v], values.of(v))}
        if not changed:
            return None
        return self.examples[which].error(self.results_with(changed, edit.place, which))

    def results_with(self, changed: Mapping[int, np.ndarray], place: int, which: int) -> list[np.ndarray]:
        """What it gives where the results of the operation at a place are others."""
        values, others = self.values[which], dict(changed)
        for after in self.following(place):
            operation = self.plain.block.operations[after]
            if any(v in others for v in inputs_of(operation)):
                for value, result in zip(operation.results, values.results(operation, others), strict=True):
                    if not _same(result, values.of(value)):
                        others[value] = result
        return [others[t] if t in others else values.of(t) for t in self.targets]

    def following(self, place: int) -> list[int]:
        """The places of the operations that depend on one, in order."""
        if place not in self._after:
            reached = set(self.plain.block.operations[place].results)
            found = []
            for after in self.needed:
                operation = self.plain.block.operations[after]
                if after > place and any(v in reached for v in inputs_of(operation)):
                    found.append(after)
                    reached.update(operation.results)
            self._after[place] = found
        return self._after[place]


def _size(array: np.ndarray | tuple[np.ndarray, ...]) -> int:
    return sum(map(_size, array)) if isinstance(array, tuple) else array.nbytes


def _same(one: np.ndarray | tuple[np.ndarray, ...], other: np.ndarray | tuple[np.ndarray, ...]) -> bool:
    if isinstance(one, tuple) or isinstance(other, tuple):
        return isinstance(one, tuple) and isinstance(other, tuple) and all(map(_same, one, other))
    if one is other or one.shape != other.shape:
        return one is other
    equal_nan = one.dtype.kind in "fc"
    # What is another value is so nearly everywhere.
    return np.array_equal(one.flat[:FEW], other.flat[:FEW], equal_nan=equal_nan) and (
        one.size <= FEW or np.array_equal(one, other, equal_nan=equal_nan)
    )
