"""Which operations of a wrong subgraph are computed as those of a right one are: of the same anchor in another layer.

What is computed alike there, from right values, is not to blame. What would be alike with a change was changed by mistake.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from hloracle.reference.model.anchors import split
from hloracle.repair.subject import Edit, Subject
from hloracle.semantics.program import Block, Operation, inputs_of

MOST_APART = 2  # operations by which a subgraph that is like another one may be longer or shorter
_LAYER = re.compile(r"\blayers\.(\d+)\b")


class Shape:
    """How each operation of a subgraph computes its results, told without names of values: equal in two layers where they compute alike.

    Args:
      layer: of its anchor, from which other layers are counted.
    """

    def __init__(self, subject: Subject, layer: int) -> None:
        self._subject, self._layer = subject, layer
        self._values: dict[int, Hashable] = {v: ("given", self._name(n)) for v, n in subject.stops.items()}
        self.places: dict[int, int] = {}
        for place in subject.needed:
            self.places[place] = self._told(subject.plain.block.operations[place], self._values)

    def with_edit(self, edit: Edit) -> int | None:
        """The same of an operation that is changed; of one that is passed by, the same of the first that takes its result."""
        values = dict(self._values)
        for value in {v for operation in edit.instead for v in inputs_of(operation)} - values.keys():
            for place in self._subject.plain.needed([value], self._subject.stops):
                self._told(self._subject.plain.block.operations[place], values)
        if edit.kind == "without":
            return self._passing_by(edit, values)
        told = 0
        for operation in edit.instead:
            told = self._told(operation, values)
        return told

    def _passing_by(self, edit: Edit, values: dict[int, Hashable]) -> int | None:
        (passed,), (value,) = edit.instead[0].operands, edit.instead[0].results
        values[value] = values.get(passed, ("argument", passed))
        after = self._subject.following(edit.place)
        return self._told(self._subject.plain.block.operations[after[0]], values) if after else None

    def first_without(self, known: set[int]) -> list[int]:
        """The operations that are computed otherwise than any that is known, from what is known."""
        plain = self._subject.plain
        unlike = {place for place, told in self.places.items() if told not in known}
        numbers = {
            p
            for p in unlike
            if plain.block.operations[p].name == "stablehlo.constant"
            and plain.block.operations[p].type.dtype[0] in "iu"
        }
        found = []
        for place in sorted(unlike - numbers):
            makers = [plain.makers.get(v) for v in inputs_of(plain.block.operations[place])]
            if not any(m in unlike for m in makers):
                found.append(place)
        return found

    def _told(self, operation: Operation, values: dict[int, Hashable]) -> int:
        operands = tuple(values.get(v, ("argument", v)) for v in operation.operands)
        taken = tuple(values.get(v, v) for v in inputs_of(operation)[len(operation.operands) :])
        types = tuple(map(str, operation.types))
        told = hash(
            (
                operation.name,
                operands,
                taken,
                types,
                _frozen(operation.attributes),
                tuple(map(_region, operation.regions)),
            )
        )
        for i, result in enumerate(operation.results):
            values[result] = (told, i)
        return told

    def _name(self, name: str) -> str:
        layer, part = split(name.removesuffix("+"))
        if layer is not None:
            return f"{layer - self._layer} {part}{'+' if name.endswith('+') else ''}"
        return _LAYER.sub(lambda found: f"layers.{int(found[1]) - self._layer:+d}", name)


def _frozen(attributes: Any) -> Hashable:
    if isinstance(attributes, np.ndarray):
        return (attributes.shape, str(attributes.dtype), attributes.tobytes())
    if isinstance(attributes, Mapping):
        return tuple(sorted((name, _frozen(value)) for name, value in attributes.items()))
    return tuple(map(_frozen, attributes)) if isinstance(attributes, list | tuple) else attributes


def _region(block: Block) -> Hashable:
    """A region, with its values counted from its own first one."""
    own = {v: i for i, v in enumerate([*block.arguments, *(r for o in block.operations for r in o.results)])}
    return (
        tuple(
            (o.name, tuple(own.get(v, -1) for v in o.operands), _frozen(o.attributes), tuple(map(_region, o.regions)))
            for o in block.operations
        ),
        tuple(own.get(v, -1) for v in block.returned),
    )


class Alike:
    """Of one anchor, what is computed as in the right ones of other layers.

    Args:
      others: those, with their layers.
    """

    def __init__(self, subject: Subject, layer: int, others: Sequence[tuple[str, Subject, int]]) -> None:
        self._own = Shape(subject, layer)
        self._counts = Counter(self._own.places.values())
        self._shapes: dict[str, set[int]] = {}
        self._others: dict[
            int, dict[int, str]
        ] = {}  # how it is computed -> the places that compute it so, with their anchor
        for anchor, other, at in others:
            places = Shape(other, at).places
            self._shapes[anchor] = set(places.values())
            for place, told in places.items():
                self._others.setdefault(told, {}).setdefault(place, anchor)

    def as_is(self, place: int) -> str:
        """The anchor that has an operation, not this one itself, which computes what this one computes; empty for none.

        And for one of which the subgraph has more: one of them is too many.
        """
        told = self._own.places[place]
        found = self._found(told, place)
        there = Counter(self._others.get(told, {}).values())
        return found if self._counts[told] <= there[found] else ""

    def with_edit(self, edit: Edit) -> str:
        """The same of an operation that is changed. A constant is like any other of its number, which says nothing."""
        told = self._own.with_edit(edit) if edit.kind != "constant" else None
        return "" if told is None else self._found(told, edit.place)

    def unlike(self) -> list[tuple[int, str]]:
        """The operations that the right subgraph which is most like this one does not have, with its anchor; the first ones alone.

        The numbers of layers are no such operations: they are to be others.
        """
        own, best = set(self._own.places.values()), ("", set[int](), -1)
        for anchor, there in self._shapes.items():
            alike = abs(len(there) - len(self._own.places)) <= MOST_APART
            if alike and len(own & there) > best[2]:
                best = anchor, there, len(own & there)
        anchor, there, shared = best
        return [(place, anchor) for place in self._own.first_without(there)] if shared >= 0 else []

    def _found(self, told: int, place: int) -> str:
        return next((anchor for other, anchor in self._others.get(told, {}).items() if other != place), "")
