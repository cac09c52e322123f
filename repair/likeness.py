"""Which operations of a wrong subgraph are computed as those of a right one are: of the same anchor in another layer.

What is computed alike there, from right values, is not to blame. What would be alike with a change was changed by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from hloracle.reference.model.anchors import split
from hloracle.repair.subject import Edit, Subject
from hloracle.semantics.program import Block, Operation, inputs_of

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
        """The same of an operation that is changed; None where it takes what the subgraph does not have."""
        values = dict(self._values)
        for value in {v for operation in edit.instead for v in inputs_of(operation)} - values.keys():
            for place in self._subject.plain.needed([value], self._subject.stops):
                self._told(self._subject.plain.block.operations[place], values)
        told = 0
        for operation in edit.instead:
            told = self._told(operation, values)
        return told

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
