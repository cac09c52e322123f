"""How the arguments of a graph hold a weight: as it is, in panels, narrower, or as small integers with a scale per group.

An encoded weight is one argument or several. Each is named `WEIGHT.ENCODING` or `WEIGHT.ENCODING.PART`, and its entry in
the ABI has `ENCODING` or `ENCODING.PART` as its encoding. What an encoding stands for is exact: `decode` gives the float32
weight that graphs compute with. No JAX.

Legend: N rows (outputs), K columns (inputs), G groups in a row, g columns in a group. Other axes may precede N.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hloracle.core.abi import Tensor
from hloracle.core.dtypes import numpy_type
from hloracle.core.errors import InputError

# The rows of a panel: a vector register of AVX-512 holds one float32 of each.
PANEL = 16
# Columns that share a scale, as in GGUF's Q8_0, Q4_0 and Q4_1. Where they do not divide a row, the largest power of two
# that does is taken, but no less than the smallest: two halves of two.
GROUP, SMALLEST_GROUP = 32, 4
NARROW = ("bf16", "f16")
PRECISIONS = ("f32", *NARROW, "int8", "int4")

Shape = tuple[int, ...]
Type = tuple[Shape, str]  # and dtype
# Weight -> the name of its encoding. One that is not named is plain float32.
Layout = Mapping[str, str]


@dataclass(frozen=True)
class Encoding:
    """A way to hold a weight in the arguments of a graph.

    parts: the names of its arguments; a single `` where the weight stays one array.
    types: of a weight's shape, those of its arguments. encode: a float32 weight -> its arguments. decode: the inverse;
    what was rounded stays rounded. fits: which shapes it can hold.
    """

    name: str
    parts: tuple[str, ...]
    types: Callable[[Shape], list[Type]]
    encode: Callable[[np.ndarray], list[np.ndarray]]
    decode: Callable[[Sequence[np.ndarray]], np.ndarray]
    fits: Callable[[Shape], bool]

    @property
    def suffixes(self) -> list[str]:
        """What the ABI calls it in each of its arguments: `ENCODING`, or `ENCODING.PART`."""
        return [f"{self.name}.{part}" if part else self.name for part in self.parts]

    def arguments(self, weight: str) -> list[str]:
        """The names of the arguments that hold a weight."""
        return [f"{weight}.{suffix}" for suffix in self.suffixes]

    def tensors(self, weight: str, shape: Shape) -> list[Tensor]:
        """The ABI's entries."""
        typed = zip(self.suffixes, self.types(shape), strict=True)
        return [Tensor("weight", f"{weight}.{suffix}", of, dtype, suffix) for suffix, (of, dtype) in typed]


def matrix(shape: Shape) -> bool:
    """Whether a weight of this shape has rows and columns."""
    return len(shape) >= 2


def in_panels(shape: Shape) -> bool:
    """Whether a weight of this shape can be held in panels of PANEL rows."""
    return len(shape) == 2 and shape[0] % PANEL == 0


def grouped(shape: Shape) -> bool:
    """Whether the columns of a weight of this shape can be dealt out to groups."""
    return len(shape) >= 2 and shape[-1] % SMALLEST_GROUP == 0


def grouped_in_panels(shape: Shape) -> bool:
    """Whether a weight of this shape can be held in panels whose columns are dealt out to groups."""
    return in_panels(shape) and grouped(shape)


def group_of(columns: int) -> int:
    """g: how many columns share a scale."""
    return min(GROUP, columns & -columns)


# ---- one array


def _narrowed(dtype: str, weight: np.ndarray) -> list[np.ndarray]:
    if dtype not in NARROW:
        return [weight]
    with np.errstate(over="ignore"):  # float16's range is small: see `exactly` and `write_in_precision`
        return [weight.astype(numpy_type(dtype))]


def _panel_types(dtype: str, shape: Shape) -> list[Type]:
    N, K = shape
    return [((N // PANEL, K, PANEL), dtype)]


def _panels(dtype: str, weight: np.ndarray) -> list[np.ndarray]:
    """[N, K] -> [N/16, K, 16]: what the same column of 16 rows is multiplied with lies together."""
    (narrow,) = _narrowed(dtype, weight)
    N, K = weight.shape
    return [np.ascontiguousarray(narrow.reshape(N // PANEL, PANEL, K).transpose(0, 2, 1))]


def _from_panels(parts: Sequence[np.ndarray]) -> np.ndarray:
    (panels,) = parts
    count, K, _ = panels.shape
    return panels.transpose(0, 2, 1).reshape(count * PANEL, K).astype(np.float32)


# ---- integers with a scale per group


def _group_types(integers: Sequence[str], floats: int, shape: Shape) -> list[Type]:
    g = group_of(shape[-1])
    groups = (*shape[:-1], shape[-1] // g)
    return [*(((*groups, g // 2), dtype) for dtype in integers), *[(groups, "f32")] * floats]


def _in_groups(weight: np.ndarray) -> np.ndarray:
    """[..., K] -> [..., G, g]"""
    g = group_of(weight.shape[-1])
    return weight.reshape(*weight.shape[:-1], -1, g)


def _halves(groups: np.ndarray) -> list[np.ndarray]:
    """[..., G, g] -> the first and the last half of each group, [..., G, g/2] each."""
    return [np.ascontiguousarray(half) for half in np.split(groups, 2, axis=-1)]


def _whole(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two halves of each group -> [..., G, g], float32."""
    return np.concatenate([low, high], axis=-1).astype(np.float32)


def _flat(groups: np.ndarray) -> np.ndarray:
    """[..., G, g] -> [..., K]"""
    return groups.reshape(*groups.shape[:-2], -1)


def _divided(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """values [..., G, g] over scale [..., G], 0 where the scale is."""
    found: np.ndarray = np.divide(values, scale[..., None], out=np.zeros_like(values), where=scale[..., None] != 0)
    return found


def _int8(weight: np.ndarray) -> list[np.ndarray]:
    """Nearest of -127..127 times scale, the group's largest magnitude over 127: GGUF's Q8_0 with a float32 scale."""
    groups = _in_groups(weight)
    scale = np.max(np.abs(groups), axis=-1) / np.float32(127)
    # Clipped: the scale of numbers next to the smallest ones is rounded too.
    return [*_halves(np.clip(np.rint(_divided(groups, scale)), -127, 127).astype(np.int8)), scale]


def _from_int8(parts: Sequence[np.ndarray]) -> np.ndarray:
    low, high, scale = parts
    return _flat(_whole(low, high) * scale[..., None])


def _int4(weight: np.ndarray) -> list[np.ndarray]:
    """Nearest of 0..15 times scale, plus the group's minimum: GGUF's Q4_1 with float32 scale and minimum."""
    groups = _in_groups(weight)
    minimum = np.min(groups, axis=-1)
    scale = (np.max(groups, axis=-1) - minimum) / np.float32(15)
    steps = np.clip(np.rint(_divided(groups - minimum[..., None], scale)), 0, 15).astype(np.uint8)
    return [packed(steps), scale, minimum]


def packed(steps: np.ndarray) -> np.ndarray:
    """Numbers of 0..15, [..., G, g] -> a group's first half in the low nibbles, its last half in the high ones: [..., G, g/2]."""
    low, high = _halves(steps)
    return np.asarray(low | (high << 4), np.uint8)


def _from_int4(parts: Sequence[np.ndarray]) -> np.ndarray:
    nibbles, scale, minimum = parts
    return _flat(_whole(nibbles & 15, nibbles >> 4) * scale[..., None] + minimum[..., None])


# ---- the same in panels: each part [N, ...] of a weight of two axes as [N/16, ..., 16]


def part_in_panels(part: np.ndarray) -> np.ndarray:
    """[N, ...] -> [N/16, ..., 16]"""
    return np.ascontiguousarray(np.moveaxis(part.reshape(-1, PANEL, *part.shape[1:]), 1, -1))


def _part_in_rows(part: np.ndarray) -> np.ndarray:
    """[N/16, ..., 16] -> [N, ...]"""
    return np.moveaxis(part, -1, 1).reshape(-1, *part.shape[1:-1])


def _in_panels(encoding: Encoding) -> Encoding:
    """An encoding in groups, held in panels."""

    def types(shape: Shape) -> list[Type]:
        return [((N // PANEL, *rest, PANEL), dtype) for (N, *rest), dtype in encoding.types(shape)]

    def encode(weight: np.ndarray) -> list[np.ndarray]:
        return [part_in_panels(part) for part in encoding.encode(weight)]

    def decode(parts: Sequence[np.ndarray]) -> np.ndarray:
        return encoding.decode([_part_in_rows(part) for part in parts])

    return Encoding(f"{encoding.name}.panels", encoding.parts, types, encode, decode, grouped_in_panels)


def _one(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0].astype(np.float32)


_GROUPED = (
    Encoding("int8", ("low", "high", "scale"), partial(_group_types, ("i8", "i8"), 1), _int8, _from_int8, grouped),
    Encoding("int4", ("nibbles", "scale", "minimum"), partial(_group_types, ("ui8",), 2), _int4, _from_int4, grouped),
)
ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding
    for encoding in (
        Encoding("panels", ("",), partial(_panel_types, "f32"), partial(_panels, "f32"), _from_panels, in_panels),
        *(
            Encoding(dtype, ("",), lambda shape, dtype=dtype: [(shape, dtype)], partial(_narrowed, dtype), _one, matrix)  # type: ignore[misc]
            for dtype in NARROW
        ),
        *(
            Encoding(
                f"{dtype}.panels", ("",), partial(_panel_types, dtype), partial(_panels, dtype), _from_panels, in_panels
            )
            for dtype in NARROW
        ),
        *_GROUPED,
        *map(_in_panels, _GROUPED),
    )
}  # fmt: skip


# The longest first: `.panels` is also how `.bf16.panels` ends.
_SUFFIXES = {
    f".{suffix}": (encoding.name, index)
    for encoding in sorted(ENCODINGS.values(), key=lambda e: -len(e.name))
    for index, suffix in enumerate(encoding.suffixes)
}


def of_precision(encoding: str) -> str:
    """The encoding, in panels or not, without the panels: `int4` of `int4.panels`."""
    return encoding.removesuffix(".panels")


def argument_parts(argument: str) -> tuple[str, str, int]:
    """An argument's weight, its encoding and which part of it; the encoding of a plain one is empty."""
    for suffix, (encoding, index) in _SUFFIXES.items():
        if argument.endswith(suffix):
            return argument.removesuffix(suffix), encoding, index
    return argument, "", 0


def exactly(encoding: Encoding, weight: np.ndarray, name: str, where: object) -> list[np.ndarray]:
    """The arguments of a weight that the encoding holds without rounding. Raises InputError for another weight."""
    parts = encoding.encode(weight)
    if encoding.name != "panels" and not np.array_equal(encoding.decode(parts), weight):
        raise InputError(
            f"weight {name} is not of precision {encoding.name.partition('.')[0]}", where,
            "name the model that it was made from, with --precision",
        )  # fmt: skip
    return parts
