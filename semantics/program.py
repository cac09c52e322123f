"""A graph as plain data: numbered values, operations with their attributes as Python's values, blocks of operations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Type:
    """A tensor of static shape; `dtype` is MLIR's word, such as `f32` or `i1`. Anything else, such as a tuple, has `other` alone."""

    shape: tuple[int, ...]
    dtype: str
    other: str = ""

    def __str__(self) -> str:
        return self.other or f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Operation:
    """One operation. `name` is MLIR's, such as `stablehlo.add`; operands and results are numbers of values.

    attributes: those of the specification, as Python's values: integers, booleans, text, tuples of them, arrays, or a
      dictionary of what is nested.
    operand_types: the types of the operands, for what depends on how wide they are.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[Type, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    regions: tuple[Block, ...] = ()
    operand_types: tuple[Type, ...] = ()

    @property
    def type(self) -> Type:
        """The type of the first result."""
        return self.types[0]

    @property
    def kind(self) -> str:
        """The name without its dialect."""
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class Block:
    """Operations in order, what they are given, and what they give. Those of a region may take values from around it."""

    arguments: tuple[int, ...]
    types: tuple[Type, ...]
    operations: tuple[Operation, ...]
    returned: tuple[int, ...]

    def nested(self) -> Iterator[Operation]:
        """Its operations, and those in their regions at any depth."""
        for operation in self.operations:
            yield operation
            for region in operation.regions:
                yield from region.nested()

    @property
    def captured(self) -> frozenset[int]:
        """The values from around it that its operations take."""
        own = {*self.arguments}
        taken: set[int] = set()
        for operation in self.operations:
            taken.update(operation.operands)
            for region in operation.regions:
                taken |= region.captured
            own.update(operation.results)
        return frozenset((taken | {*self.returned}) - own)


@dataclass(frozen=True)
class Program:
    """The functions of a module, by name."""

    functions: Mapping[str, Block]

    def function(self, name: str = "main") -> Block:
        """The function of that name. Raises KeyError where there is none."""
        return self.functions[name]


def inputs_of(operation: Operation) -> Sequence[int]:
    """All values that an operation depends on: its operands, and what its regions take from around it."""
    captured = {v for region in operation.regions for v in region.captured}
    return [*operation.operands, *sorted(captured - {*operation.operands})]
