"""Weights as somebody else's graph takes them: expressions over the tensors of a checkpoint, such as

    model.layers.0.self_attn.q_proj.weight : (N D) E -> E N D : bf16

docs/abi.md has the language. einops does the rearranging.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloracle.core.dtypes import numpy_type
from hloracle.core.formula import names_in, number, whole
from hloracle.core.shown import quoted, shown
from hloracle.reference.model.config import Config
from hloracle.reference.model.encodings import ENCODINGS, argument_parts

DTYPES = ("f32", "bf16", "f16")
STAGE = " : "
_STACK = re.compile(r"stack ([le])")
_CONCAT = re.compile(r"concat\((.*)\)", re.DOTALL)
_TENSOR = re.compile(r"[\w.\-]+")
_ARITHMETIC = re.compile(r"([+\-*/])\s*(.+)")
_PAD = re.compile(r"pad (\d+) to (.+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_SIZE = re.compile(r"(\w+)\s*=\s*(.+)")
# Elements of a weight: more than any model has, and no more than a stack, a pad or a graph's type can make up.
LARGEST = 2**36
LARGEST_FLOAT = float(np.finfo(np.float32).max)
STAGES = "a rearrangement such as `n e -> e n`, `+ 1`, `[0:64]`, `pad 0 to 512`, or a dtype such as bf16"

Load = Callable[[str], np.ndarray]


def axes_of(config: Config) -> dict[str, int]:
    """The sizes of the axes that an ABI file names by letters, of this model."""
    return {
        "L": config.num_hidden_layers, "N": config.num_attention_heads, "K": config.num_key_value_heads,
        "D": config.head_dim, "E": config.hidden_size, "F": config.intermediate_size, "V": config.vocab_size,
    }  # fmt: skip


@dataclass(frozen=True)
class Names:
    """What the names in an expression stand for.

    axes: sizes by letter. ranges: how far `l` and `e` go. keys: numbers by the config's keys, for formulas.
    """

    axes: Mapping[str, int]
    ranges: Mapping[str, int]
    keys: Mapping[str, float]

    @property
    def all(self) -> dict[str, float]:
        """For a formula."""
        return {**self.keys, **self.axes}


def names_of(config: Config) -> Names:
    """The names that expressions may use, of this model."""
    keys = {k: v for k, v in vars(config).items() if isinstance(v, int | float) and not isinstance(v, bool)}
    experts = config.experts.num_experts if config.experts else 0
    return Names(axes_of(config), {"l": config.num_hidden_layers, "e": experts}, keys)


def is_expression(name: str) -> bool:
    """Whether the name of a weight argument is more than the name of a tensor."""
    return not _TENSOR.fullmatch(name)


@dataclass(frozen=True)
class Value:
    """What a part of an expression gives, and the dtype that it is handed over in: float32 numbers, or an encoding's integers."""

    array: np.ndarray
    dtype: str = "f32"

    @property
    def integers(self) -> bool:
        """Whether it has an encoding's integers, with which nothing is computed."""
        return self.dtype not in DTYPES


def load(text: str, names: Names, tensor: Load) -> np.ndarray:
    """The array that an expression gives, in its dtype, contiguous.

    Args:
      tensor: a tensor's name -> its float32 array; with an encoding behind it, what the weight is held in.

    Raises ValueError that says which part of the expression is wrong, and what would fit.
    """
    found = _Reader(names, lambda name: _held(tensor(name))).read(text)
    return np.ascontiguousarray(found.array.astype(numpy_type(found.dtype), copy=False))


def typed(text: str, names: Names, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], str]:
    """The shape and dtype that an expression gives, without its numbers. Raises ValueError as `load` does."""

    found = _Reader(names, lambda name: _promised(name, shapes)).read(text)
    return found.array.shape, found.dtype


def tensors_in(text: str, names: Names) -> tuple[str, ...]:
    """The tensors of the checkpoint that an expression reads, in order. Raises ValueError as `load` does."""
    leaves = _Reader(names, lambda name: _held(np.zeros(()))).leaves(text)
    return tuple(dict.fromkeys(argument_parts(leaf)[0] for leaf in leaves))


class _Reader:
    def __init__(self, names: Names, tensor: Callable[[str], Value]) -> None:
        self._names, self._tensor = names, tensor

    def leaves(self, text: str) -> list[str]:
        """The tensors' names."""
        first, _, rest = text.partition(STAGE)
        if stacked := _STACK.fullmatch(first.strip()):
            _once(stacked[1], rest)
            return [leaf for each in self._each(stacked[1], rest) for leaf in self.leaves(each)]
        first = _split(text, STAGE)[0].strip()
        if joined := _CONCAT.fullmatch(first):
            parts, _ = _arguments(joined[1])
            return [leaf for part in parts for leaf in self.leaves(part)]
        found = _TENSOR.match(first)
        return [found[0]] if found else []

    def read(self, text: str) -> Value:
        first, _, rest = text.partition(STAGE)
        if stacked := _STACK.fullmatch(first.strip()):
            _once(stacked[1], rest)
            parts = [self.read(each) for each in self._each(stacked[1], rest)]
            _alike([p.array.shape for p in parts], text)
            _of_one_kind(parts, text)
            return Value(_joined([p.array[None] for p in parts], 0, text), parts[0].dtype)
        first, *stages = _split(text, STAGE)
        value = self._source(first.strip())
        for stage in stages:
            value = self._staged(value, stage.strip())
        return value

    def _each(self, variable: str, text: str) -> list[str]:
        count = self._names.ranges[variable]
        if not count:
            raise ValueError(f"stack {variable}: the model has none")
        return [substituted(text, {variable: i}) for i in range(count)]

    def _source(self, text: str) -> Value:
        if joined := _CONCAT.fullmatch(text):
            parts, axis = _arguments(joined[1])
            values = [self.read(part) for part in parts]
            _of_one_kind(values, text)
            return Value(_joined([v.array for v in values], axis, text), values[0].dtype)
        if text.startswith("stack "):
            raise ValueError(f"{quoted(text)} is neither `stack l` nor `stack e`")
        name, _, arithmetic = text.partition(" ")
        if not _TENSOR.fullmatch(name):
            several = "; braces stand for several tensors inside of concat(…) alone" if "{" in name else ""
            raise ValueError(f"{quoted(text)} is no tensor of a checkpoint, nor concat(…){several}")
        value = self._tensor(name)
        return self._staged(value, arithmetic.strip()) if arithmetic else value

    def _staged(self, value: Value, stage: str) -> Value:
        array = value.array
        if "->" in stage:
            return Value(self._rearranged(array, stage), value.dtype)
        if value.integers and (stage in DTYPES or _ARITHMETIC.fullmatch(stage)):
            raise ValueError(f"{quoted(stage)} is of numbers, and there are an encoding's integers ({value.dtype})")
        if stage in DTYPES:
            return Value(array, stage)
        if found := _ARITHMETIC.fullmatch(stage):
            by = number(found[2], self._names.all)
            if abs(by) > LARGEST_FLOAT or (found[1] == "/" and not np.float32(by)):
                raise ValueError(f"{quoted(stage)} is by {by:g}, which float32 has no result for")
            if _is_blank(array):
                return value
            of = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[found[1]]
            return Value(of(array, np.float32(by), dtype=np.float32), value.dtype)
        if found := _PAD.fullmatch(stage):
            return Value(self._padded(array, int(found[1]), whole(found[2], self._names.all), stage), value.dtype)
        if stage.startswith("[") and stage.endswith("]"):
            return Value(self._sliced(array, stage), value.dtype)
        raise ValueError(f"{quoted(stage)} is no stage; there are {STAGES}")

    def _rearranged(self, array: np.ndarray, stage: str) -> np.ndarray:
        pattern, *given = stage.split(",")
        if "..." in pattern:
            raise ValueError(f"{quoted(stage)} leaves axes out; name each")
        sizes = {a: size for a, size in self._names.axes.items() if re.search(rf"\b{a}\b", pattern)}
        for one in given:
            found = _SIZE.fullmatch(one.strip())
            if not found:
                raise ValueError(f"{quoted(one.strip())} is no size, such as `two=2`")
            sizes[found[1]] = whole(found[2], self._names.all)
            if not 0 < sizes[found[1]] <= LARGEST:
                raise ValueError(f"{quoted(one.strip())} is no size")
            if not re.search(rf"\b{found[1]}\b", pattern):
                raise ValueError(f"{quoted(pattern.strip())} has no axis {found[1]}")
        import einops  # emitting, which reads this file, does without

        try:
            found_array: np.ndarray = einops.rearrange(array, pattern.strip(), **sizes)
            return found_array
        except (einops.EinopsError, ValueError, TypeError, ArithmeticError) as error:
            why = shown(str(error).strip().splitlines()[-1]).removesuffix(".")
            raise ValueError(f"{quoted(stage)} does not fit {list(array.shape)} ({why})") from None

    def _padded(self, array: np.ndarray, axis: int, size: int, stage: str) -> np.ndarray:
        if not 0 <= axis < array.ndim or size < array.shape[axis]:
            raise ValueError(f"{quoted(stage)} does not fit {list(array.shape)}")
        shape = tuple(size if i == axis else n for i, n in enumerate(array.shape))
        _bounded(shape, stage)
        if _is_blank(array):
            return _blank(shape)
        return np.pad(array, [(0, size - n if i == axis else 0) for i, n in enumerate(array.shape)])

    def _sliced(self, array: np.ndarray, stage: str) -> np.ndarray:
        slices = []
        for part in stage[1:-1].split(","):
            ends = [whole(end, self._names.all) if end.strip() else None for end in part.split(":")]
            if len(ends) != 2:
                raise ValueError(f"{quoted(stage)} is no slice, such as `[0:64, :]`")
            slices.append(slice(*ends))
        if len(slices) > array.ndim or 0 in (found := array[tuple(slices)]).shape:
            raise ValueError(f"{quoted(stage)} does not fit {list(array.shape)}")
        return found


def no_tensor(name: str, known: Mapping[str, Any]) -> str:
    """That there is no such tensor, and the nearest."""
    import difflib

    near = difflib.get_close_matches(name[:200], known, 1)
    return f"the model has no weight {quoted(name)}" + (f", the nearest is {near[0]}" if near else "")


def substituted(text: str, variables: Mapping[str, int]) -> str:
    """The text with what stands in braces computed, where it uses these variables alone.

    Raises ValueError where it uses them, and is no whole number.
    """

    def compute(found: re.Match[str]) -> str:
        inside = found[1]
        try:
            computed = names_in(inside) <= set(variables)
        except ValueError:  # such as `{q,k,v}`
            return found[0]
        return str(whole(inside, variables)) if computed else found[0]

    return _BRACES.sub(compute, text)


def _arguments(text: str) -> tuple[list[str], int]:
    """The parts of a concat, of which one with alternatives stands for several, and its axis."""
    parts: list[str] = []
    axis = 0
    for part in (p.strip() for p in _split(text, ",")):
        if found := _SIZE.fullmatch(part):
            if found[1] == "axis":
                axis = whole(found[2], {})
            elif parts:
                parts[-1] += f", {part}"
            continue
        # An inner concat has choices of its own.
        outside = (b for b in _BRACES.finditer(part) if "," in b[1] and not _depth(part[: b.start()]))
        if choices := next(outside, None):
            parts += [part[: choices.start()] + one.strip() + part[choices.end() :] for one in choices[1].split(",")]
        else:
            parts.append(part)
    return parts, axis


def _split(text: str, separator: str) -> list[str]:
    """Split where nothing is open: parentheses and braces hold together."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        depth += _depth(text[i])
        if depth == 0 and text.startswith(separator, i):
            parts.append(text[start:i])
            start = i = i + len(separator)
        else:
            i += 1
    return [*parts, text[start:]]


def _depth(text: str) -> int:
    """How many more parentheses, braces and brackets are opened than closed."""
    return sum((c in "({[") - (c in ")}]") for c in text)


def _once(variable: str, inside: str) -> None:
    """One stack of a variable stands in no other: nothing in it would vary, and its size grows with each."""
    if re.search(rf"\bstack {variable}\b", inside):
        raise ValueError(f"{quoted(inside)} stacks {variable} a second time")


def _held(array: np.ndarray) -> Value:
    """What a checkpoint gives by the name of an argument: a weight, or a part of what it is held in."""
    dtype = {"int8": "i8", "uint8": "ui8", "bfloat16": "bf16", "float16": "f16"}.get(array.dtype.name, "f32")
    return Value(array.astype(np.float32, copy=False) if dtype in DTYPES else array, dtype)


def _promised(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Value:
    """The same without its numbers. Raises ValueError where there is no such weight, or it is not to be held so."""
    weight, encoding, part = argument_parts(name)
    if weight not in shapes:
        raise ValueError(no_tensor(weight, shapes))
    shape, dtype = shapes[weight], "f32"
    if encoding:
        if not ENCODINGS[encoding].fits(shape):
            raise ValueError(f"{weight} is {list(shape)}, which {encoding} does not fit")
        shape, dtype = ENCODINGS[encoding].types(shape)[part]
    return Value(_blank(shape), dtype)


def _blank(shape: Sequence[int]) -> np.ndarray:
    """An array of which only the shape counts: one byte of memory, however it is rearranged."""
    return np.broadcast_to(np.zeros((), np.bool_), shape)


def _is_blank(array: np.ndarray) -> bool:
    return array.dtype == np.bool_


def _bounded(shape: Sequence[int], text: str) -> None:
    if math.prod(shape) > LARGEST:
        raise ValueError(f"{quoted(text)} has {math.prod(shape):,} elements, more than any weight")


def _joined(arrays: Sequence[np.ndarray], axis: int, text: str) -> np.ndarray:
    """Arrays one after another along an axis that they have."""
    first, shapes = arrays[0].shape, [a.shape for a in arrays]
    fits = -len(first) <= axis < len(first) and len({len(s) for s in shapes}) == 1
    at = axis % max(len(first), 1)
    if not fits or len({(*s[:at], *s[at + 1 :]) for s in shapes}) != 1:
        joined = " and ".join(str(list(s)) for s in dict.fromkeys(shapes))
        raise ValueError(f"{quoted(text)} joins {joined} along axis {axis}")
    shape = (*first[:at], sum(s[at] for s in shapes), *first[at + 1 :])
    _bounded(shape, text)
    return _blank(shape) if _is_blank(arrays[0]) else np.concatenate(arrays, at)


def _of_one_kind(parts: Sequence[Value], text: str) -> None:
    """Integers are put together with integers of their own kind alone."""
    if any(p.integers for p in parts) and len({p.dtype for p in parts}) > 1:
        raise ValueError(f"{quoted(text)} puts together {' and '.join(dict.fromkeys(p.dtype for p in parts))}")


def _alike(shapes: Sequence[tuple[int, ...]], text: str) -> None:
    if len(set(shapes)) > 1:
        raise ValueError(f"{quoted(text)} stacks {' and '.join(str(list(s)) for s in dict.fromkeys(shapes))}")
