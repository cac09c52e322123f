"""Sorts and the largest elements, as sampling has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hloracle.ops.describe import MOVED, Description, Form, Leaves, Operand
from hloracle.ops.descriptions.reductions import counted
from hloracle.ops.descriptions.shapes import FLOATS, NUMBERS, dims
from hloracle.ops.values import Values, distinct, normal, special, specials, uniform
from hloracle.ops.write import region
from hloracle.semantics.program import Type

Shape = tuple[int, ...]
SHAPES: tuple[tuple[Shape, int], ...] = (
    ((7,), 0), ((3, 31), 1), ((5, 4), 0), ((2, 3, 5), 1), ((1,), 0), ((0,), 0), ((3, 0), 1), ((1, 257), 1), ((4, 1), 1), ((3, 5), -1),
)  # fmt: skip


def few(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Numbers of which many are equal."""
    return np.asarray(
        np.floor(uniform(0, 8.9)(rng, shape, dtype).astype(np.float64)).astype(normal()(rng, (), dtype).dtype)
    )


def _sort() -> Iterator[Form]:
    for dtype in NUMBERS:
        for shape, axis in SHAPES:
            for direction in ("LT", "GT"):
                name = f"{dtype}/{dims(shape)}-{axis}/{direction}"
                yield _sorted(name, dtype, shape, axis, direction, distinct)
        yield _sorted(f"{dtype}/ties/unstable", dtype, (4, 23), 1, "LT", few, stable=False)
        for shape, axis in (((23,), 0), ((3, 31), 1), ((17, 2), 0)):
            for stable in (True, False):
                word = "stable" if stable else "unstable"
                says = "sort: if is_stable is true, the order of elements that compare as equal is preserved"
                leaves = None if stable else _tied(axis)
                label = f"{dtype}/with-places/{dims(shape)}-{axis}/{word}"
                yield _sorted(
                    label, dtype, shape, axis, "GT", few, stable=stable, places=True, tests=says, leaves=leaves
                )
    for dtype in FLOATS:
        says = "sort by a comparator with TOTALORDER: NaN last, -0 before +0"
        yield _sorted(f"{dtype}/special", dtype, (len(specials(dtype)),), 0, "LT", special, total=True, tests=says)
    yield _sorted("f32/large", "f32", (37, 307), 1, "GT", distinct)


def _sorted(
    label: str, dtype: str, shape: Shape, axis: int, direction: str, values: Values, *, stable: bool = True, places: bool = False,
    total: bool = False, tests: str = "", leaves: Leaves | None = None,
) -> Form:  # fmt: skip
    key, place = Type((), dtype), Type((), "i32")
    arguments = [key, key, place, place] if places else [key, key]
    kind = "TOTALORDER" if total else "FLOAT" if dtype in FLOATS else "UNSIGNED" if dtype[0] == "u" else "SIGNED"
    body = f"%c = stablehlo.compare {direction}, %a0, %a1, {kind} : ({key}, {key}) -> tensor<i1>"
    operands = [Operand(Type(shape, dtype), values)]
    if places:
        operands.append(Operand(Type(shape, "i32"), counted(axis)))
    attributes = f"dimension = {axis} : i64, is_stable = {str(stable).lower()}"
    compares = region(arguments, body, "%c", [Type((), "i1")])
    results = tuple(o.type for o in operands)
    return Form(label, tuple(operands), results, attributes, (compares,), tests=tests, leaves=leaves)


def _tied(axis: int) -> Leaves:
    """The places of keys that are not alone."""

    def leaves(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        keys = np.moveaxis(values[0], axis, -1)
        same = keys[..., 1:] == keys[..., :-1]
        alike = np.zeros(keys.shape, bool)
        alike[..., 1:] |= same
        alike[..., :-1] |= same
        return [None, np.moveaxis(alike, -1, axis)]

    return leaves


def _top_k() -> Iterator[Form]:
    for dtype in NUMBERS:
        for shape, k in (
            ((7,), 3),
            ((3, 31), 5),
            ((1, 257), 50),
            ((2, 3, 5), 5),
            ((4, 1), 1),
            ((5, 9), 1),
            ((2, 9), 9),
        ):
            for name, values in (("apart", distinct), ("ties", few)):
                says = "top_k: of two equal elements, the one of the lower index comes first" if name == "ties" else ""
                result = (*shape[:-1], k)
                results = (Type(result, dtype), Type(result, "i32"))
                operand = Operand(Type(shape, dtype), values)
                yield Form(f"{dtype}/{dims(shape)}-{k}/{name}", (operand,), results, f"k = {k} : i64", tests=says)


DESCRIPTIONS = (
    Description("stablehlo.sort", "sort: results are sorted along dimension by comparator", MOVED, _sort),
    Description("chlo.top_k", "the k largest elements along the last dimension, and their indices", MOVED, _top_k),
)
