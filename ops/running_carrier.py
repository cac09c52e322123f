"""Cases as modules that a backend can be given: several in one, and types that no runtime takes in those that it takes.

A runtime is given arrays of the types of docs/workers.md. Of any other type the module itself makes its argument, with one
operation: a float of 8 bits of its bits, an integer of 4 bits of one of 8, a complex number of its parts. Results go the same
way back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloracle.core.abi import DTYPE_BYTES, Abi, Graph, Tensor
from hloracle.ops.case import Case
from hloracle.semantics.numbers import Unsupported, own_type
from hloracle.semantics.program import Type

Arrays = list[np.ndarray]
# Else IREE computes in f32 what the graph has in f64, and takes and gives f32.
_IN_64_BITS = ("--iree-input-demote-f64-to-f32=false",)


@dataclass(frozen=True)
class Carrier:
    """How a type goes in and out in other ones.

    types: what stands for it. enter, leave: the operations that make it of them, and them of it.
    split, join: the same of arrays.
    """

    types: tuple[str, ...]
    enter: str
    leave: tuple[str, ...]
    split: Callable[[np.ndarray], Arrays]
    join: Callable[[Sequence[np.ndarray], str], np.ndarray]


@dataclass(frozen=True)
class Part:
    """A case that was read: the types of what its `main` takes and gives."""

    case: Case
    arguments: tuple[Type, ...]
    results: tuple[Type, ...]


@dataclass(frozen=True)
class Joined:
    """Cases in one module.

    graph: whose arguments and results are all of theirs, one case after another. inputs: by the arguments' names.
    """

    parts: tuple[Part, ...]
    graph: Graph
    inputs: dict[str, np.ndarray]
    carriers: Mapping[str, Carrier]

    def apart(self, results: Sequence[np.ndarray]) -> list[Arrays]:
        """The results of each case, in its own types."""
        left, found = list(results), []
        for part in self.parts:
            own = []
            for type in part.results:
                carrier = self.carriers.get(type.dtype, SAME)
                taken = [left.pop(0) for _ in carrier.types or (type.dtype,)]
                own.append(carrier.join(taken, type.dtype))
            found.append(own)
        return found


def joined(parts: Sequence[Part], carriers: Mapping[str, Carrier] | None = None) -> Joined:
    """One module of cases. A case alone is given as it is, where a runtime takes its types.

    carriers: of the types that are not given as they are; those that no runtime takes, if None.
    """
    carriers = CARRIERS if carriers is None else carriers
    (first, *others), writer = parts, _Writer(carriers)
    for number, part in enumerate(parts):
        writer.add(part, f"case{number}")
    text = writer.text()
    if not others and not any(t.dtype in carriers for t in (*first.arguments, *first.results)):
        text = first.case.text
    name = first.case.id.replace("/", "_") if not others else f"{len(parts)} cases"
    flags = _IN_64_BITS if re.search(r"\bf64\b|xf64>", text) else ()
    return Joined(tuple(parts), Graph(name, text, writer.abi(), flags), writer.inputs, carriers)


def unfit(part: Part) -> str:
    """Why a runtime cannot be given a case; empty where it can."""
    for type in (*part.arguments, *part.results):
        if type.other:
            return f"no runtime is given a value of type {type.other}"
        if type.dtype not in DTYPE_BYTES and type.dtype not in CARRIERS:
            return f"no runtime is given elements of type {type.dtype}"
    return ""


class _Writer:
    """Writes the module of several cases."""

    def __init__(self, carriers: Mapping[str, Carrier]) -> None:
        self._carriers = carriers
        self._functions: list[str] = []
        self._lines: list[str] = []
        self._returned: list[tuple[str, str]] = []
        self._arguments: list[Tensor] = []
        self._results: list[Tensor] = []
        self.inputs: dict[str, np.ndarray] = {}

    def add(self, part: Part, name: str) -> None:
        """One more case, whose functions are called `name` and so on."""
        from hloracle.ops.running_read import renamed  # imports jaxlib

        self._functions.append(renamed(part.case.text, name))
        operands = []
        for i, (type, array) in enumerate(zip(part.arguments, part.case.inputs, strict=True)):
            operands.append(self._entered(f"{name}_a{i}", type, array))
        types, results = (", ".join(map(str, t)) for t in (part.arguments, part.results))
        bound = f"%{name}:{len(part.results)} = " if part.results else ""
        self._lines.append(f"{bound}func.call @{name}_main({', '.join(operands)}) : ({types}) -> ({results})")
        for i, type in enumerate(part.results):
            self._left(f"%{name}#{i}", f"{name}_r{i}", type)

    def _entered(self, name: str, type: Type, array: np.ndarray) -> str:
        carrier = self._carriers.get(type.dtype, SAME)
        if not carrier.types:
            self._argument(name, type.shape, type.dtype, array)
            return f"%{name}"
        given, types = [], []
        for i, (dtype, one) in enumerate(zip(carrier.types, carrier.split(array), strict=True)):
            self._argument(f"{name}_{i}", type.shape, dtype, one)
            given.append(f"%{name}_{i}")
            types.append(str(Type(type.shape, dtype)))
        operation = f"stablehlo.{carrier.enter} {', '.join(given)} : ({', '.join(types)}) -> {type}"
        self._lines.append(f"%{name} = {operation}")
        return f"%{name}"

    def _left(self, value: str, name: str, type: Type) -> None:
        carrier = self._carriers.get(type.dtype, SAME)
        if not carrier.types:
            self._result(value, name, type)
        for i, (dtype, operation) in enumerate(zip(carrier.types, carrier.leave, strict=True)):
            to = Type(type.shape, dtype)
            self._lines.append(f"%{name}_{i} = stablehlo.{operation} {value} : ({type}) -> {to}")
            self._result(f"%{name}_{i}", f"{name}_{i}", to)

    def _argument(self, name: str, shape: tuple[int, ...], dtype: str, array: np.ndarray) -> None:
        self._arguments.append(Tensor("state", name, shape, dtype))
        self.inputs[name] = array

    def _result(self, value: str, name: str, type: Type) -> None:
        self._returned.append((value, str(type)))
        self._results.append(Tensor("tap", name, type.shape, type.dtype))

    def abi(self) -> Abi:
        """The signature of its main function."""
        return Abi("prefill", tuple(self._arguments), tuple(self._results))

    def text(self) -> str:
        """The module."""
        taken = ", ".join(f"%{a.name}: {Type(a.shape, a.dtype)}" for a in self._arguments)
        types = ", ".join(type for _, type in self._returned)
        end = f"return {', '.join(value for value, _ in self._returned)} : {types}" if self._returned else "return"
        lines = "".join(f"    {line}\n" for line in (*self._lines, end))
        main = f"  func.func public @main({taken}) -> ({types}) {{\n{lines}  }}\n"
        return "module @cases {\n" + main + "".join(self._functions) + "}\n"


def _bits(array: np.ndarray) -> Arrays:
    return [np.asarray(array).view(np.uint8)]


def _of_bits(arrays: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    return np.asarray(arrays[0]).view(own_type(dtype))


def _wider(to: Any) -> Callable[[np.ndarray], Arrays]:
    return lambda array: [np.asarray(array).astype(to)]


def _narrower(arrays: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    return np.asarray(arrays[0]).astype(own_type(dtype))


def _parts(array: np.ndarray) -> Arrays:
    return [np.array(np.real(array)), np.array(np.imag(array))]


def _of_parts(arrays: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    real, imaginary = arrays
    found = np.empty(real.shape, own_type(dtype))
    found.real, found.imag = real, imaginary  # not by arithmetic, in which an infinite part makes the other one NaN
    return found


SAME = Carrier((), "", (), lambda array: [array], lambda arrays, dtype: arrays[0])


def _complex(part: str) -> Carrier:
    return Carrier((part, part), "complex", ("real", "imag"), _parts, _of_parts)


FLOATS_OF_8_BITS = tuple(
    f"f8{form}" for form in ("E4M3FN", "E5M2", "E4M3FNUZ", "E5M2FNUZ", "E4M3B11FNUZ", "E4M3", "E3M4", "E8M0FNU")
)
_AS_FLOAT = Carrier(("f32",), "convert", ("convert",), _wider(np.float32), _narrower)
CARRIERS: Mapping[str, Carrier] = {
    "complex<f32>": _complex("f32"),
    "complex<f64>": _complex("f64"),
    **dict.fromkeys(("i4", "i2"), Carrier(("i8",), "convert", ("convert",), _wider(np.int8), _narrower)),
    **dict.fromkeys(("ui4", "ui2"), Carrier(("ui8",), "convert", ("convert",), _wider(np.uint8), _narrower)),
    **dict.fromkeys(FLOATS_OF_8_BITS, Carrier(("ui8",), "bitcast_convert", ("bitcast_convert",), _bits, _of_bits)),
}
# Of the types that a file of NumPy's holds, which floats of 8 bits and bfloat16 are not.
IN_FILES: Mapping[str, Carrier] = {**CARRIERS, **dict.fromkeys((*FLOATS_OF_8_BITS, "bf16"), _AS_FLOAT)}


def read(case: Case) -> Part:
    """The types of a case's arguments and results. Raises Unsupported where its module cannot be read."""
    from hloracle.ops.running_read import signature  # imports jaxlib

    arguments, results = signature(case.text)
    if len(arguments) != len(case.inputs):
        raise Unsupported(f"{len(case.inputs)} inputs for {len(arguments)} arguments")
    return Part(case, arguments, results)
