"""Operations whose places are values: slices of caches, embeddings, and scatters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.ops.describe import INTEGER, MOVED, Bound, Description, Form, Leaves, Operand
from hloracle.ops.descriptions.shapes import ALL, FLOATS, array
from hloracle.ops.values import Values, anywhere, given, limits, normal, uniform
from hloracle.ops.write import combines, region
from hloracle.semantics.program import Type

Shape = tuple[int, ...]
# Shape of the operand, of the slice, and where it may begin: in range, before, beyond, far beyond.
SLICES: tuple[tuple[str, Shape, Shape], ...] = (
    ("cache", (2, 16, 3, 8), (1, 16, 3, 8)), ("token", (1, 16, 3, 8), (1, 1, 3, 8)), ("window", (13, 5), (4, 5)),
    ("whole", (3, 5), (3, 5)), ("one", (7,), (1,)), ("none", (5, 3), (0, 3)), ("corner", (7, 11), (3, 2)),
)  # fmt: skip
STARTS: tuple[tuple[str, int], ...] = (
    ("zero", 0),
    ("inside", 1),
    ("before", -1),
    ("beyond", 3),
    ("far", 100),
    ("far-before", -100),
)
MOVED_IN = Bound("elements are moved as they are, whether in place or not", flushes=False, signed=True)


def _dynamic_slice() -> Iterator[Form]:
    for dtype in ALL:
        for name, shape, sizes in SLICES:
            for label, start in STARTS:
                if dtype in ("f32", "bf16", "i32") or label in ("inside", "far"):
                    yield _sliced(f"{dtype}/{name}/{label}", dtype, shape, sizes, start)
    for index in ("i64", "ui32", "i8", "ui8", "ui64", "i16"):
        for label, start in STARTS:
            if start >= 0 or index.startswith("i"):
                yield _sliced(f"f32/index-{index}/{label}", "f32", (13, 5), (4, 5), start, index)
    for index in ("i32", "i64", "ui32"):
        yield _sliced(f"f32/index-{index}/largest", "f32", (13, 5), (4, 5), limits(index)[1], index)


def _sliced(label: str, dtype: str, shape: Shape, sizes: Shape, start: int, index: str = "i32") -> Form:
    starts = tuple(Operand(Type((), index), given(np.array([start]))) for _ in shape)
    operands = (Operand(Type(shape, dtype), anywhere), *starts)
    return Form(label, operands, (Type(sizes, dtype),), f"slice_sizes = {array(sizes)}")


def _dynamic_update_slice() -> Iterator[Form]:
    for dtype in ALL:
        for name, shape, part in SLICES:
            for label, start in STARTS:
                form = _updated(f"{dtype}/{name}/{label}", dtype, shape, part, start)
                if dtype in ("f32", "bf16", "i32") or label in ("inside", "far"):
                    yield form
                if dtype in ("f32", "bf16", "i8") and name in ("cache", "token", "window", "whole"):
                    says = "dynamic_update_slice of an argument whose memory the result may have (tf.aliasing_output)"
                    yield dataclasses.replace(form, label=f"{form.label}-in-place", aliased={0: 0}, tests=says)
    for index in ("i64", "ui32", "i8", "ui64"):
        for label, start in STARTS:
            if start >= 0 or index.startswith("i"):
                yield _updated(f"f32/index-{index}/{label}", "f32", (13, 5), (4, 5), start, index)


def _updated(label: str, dtype: str, shape: Shape, part: Shape, start: int, index: str = "i32") -> Form:
    starts = tuple(Operand(Type((), index), given(np.array([start]))) for _ in shape)
    operands = (Operand(Type(shape, dtype), anywhere), Operand(Type(part, dtype), anywhere), *starts)
    return Form(label, operands, (Type(shape, dtype),))


# ---- gather


@dataclass(frozen=True)
class Gather:
    """A gather: shapes, its dimension numbers by the specification's names, and the largest index that is inside."""

    name: str
    operand: Shape
    indices: Shape
    sizes: Shape
    result: Shape
    offset_dims: Shape
    collapsed_slice_dims: Shape
    start_index_map: Shape
    index_vector_dim: int
    most: int
    operand_batching_dims: Shape = ()
    start_indices_batching_dims: Shape = ()


GATHERS = (
    Gather("embedding", (257, 8), (5, 1), (1, 8), (5, 8), (1,), (0,), (0,), 1, 256),
    Gather("embedding-batch", (257, 8), (2, 3, 1), (1, 8), (2, 3, 8), (2,), (0,), (0,), 2, 256),
    Gather("implicit-vector", (31, 4), (7,), (1, 4), (7, 4), (1,), (0,), (0,), 1, 30),
    Gather("elements", (5, 7), (9, 2), (1, 1), (9,), (), (0, 1), (0, 1), 1, 4),
    Gather("turned-map", (5, 7), (9, 2), (1, 1), (9,), (), (0, 1), (1, 0), 1, 4),
    Gather("vector-first", (5, 7), (2, 9), (1, 1), (9,), (), (0, 1), (0, 1), 0, 4),
    Gather("windows", (9, 6), (4, 1), (3, 6), (4, 3, 6), (1, 2), (), (0,), 1, 6),
    Gather("windows-kept", (9, 6), (4, 2), (2, 3), (4, 2, 3), (1, 2), (), (0, 1), 1, 3),
    Gather("offset-first", (9, 6), (4, 1), (1, 6), (6, 4), (0,), (0,), (0,), 1, 8),
    Gather("columns", (3, 11), (5, 1), (3, 1), (3, 5), (0,), (1,), (1,), 1, 10),
    Gather("one", (7,), (1, 1), (1,), (1,), (), (0,), (0,), 1, 6),
    Gather("scalar-index", (7, 3), (1,), (1, 3), (3,), (0,), (0,), (0,), 0, 6),
    Gather("no-index", (7, 3), (0, 1), (1, 3), (0, 3), (1,), (0,), (0,), 1, 6),
    Gather("batched", (3, 7, 4), (3, 5, 1), (1, 1, 4), (3, 5, 4), (2,), (1,), (1,), 2, 6, (0,), (0,)),
    Gather("batched-elements", (2, 3, 9), (2, 3, 4, 1), (1, 1, 1), (2, 3, 4), (), (2,), (2,), 3, 8, (0, 1), (0, 1)),
    Gather("pages", (6, 4, 3, 2), (2, 3, 1), (1, 4, 3, 2), (2, 3, 4, 3, 2), (2, 3, 4), (0,), (0,), 2, 5),
)  # fmt: skip


def gather_numbers(g: Gather) -> str:
    """The attribute."""
    batching = ""
    if g.operand_batching_dims:
        batching = (
            f"operand_batching_dims = {[*g.operand_batching_dims]}, "
            f"start_indices_batching_dims = {[*g.start_indices_batching_dims]}, "
        )
    return (
        f"#stablehlo.gather<offset_dims = {[*g.offset_dims]}, collapsed_slice_dims = {[*g.collapsed_slice_dims]}, "
        f"{batching}"
        f"start_index_map = {[*g.start_index_map]}, index_vector_dim = {g.index_vector_dim}>"
    )


def index_values(low: int, high: int) -> Values:
    """Indices by chance, both ends among them where there is room."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        least = 0 if dtype.startswith("ui") else low
        found = uniform(least, high)(rng, shape, dtype)
        flat = found.reshape(-1)
        flat[: min(2, flat.size)] = [high, least][: min(2, flat.size)]
        return found

    return draw


def _gather() -> Iterator[Form]:
    for dtype in ALL:
        for g in GATHERS:
            yield _gathered(f"{dtype}/{g.name}/inside", g, dtype, "i32", index_values(0, g.most))
            if dtype in ("f32", "bf16", "i32", "i1"):
                says = "gather: full_start_index is clamped to [0, shape(operand) - slice_sizes]"
                outside = index_values(-3, g.most + 4)
                yield _gathered(f"{dtype}/{g.name}/outside", g, dtype, "i32", outside, says)
    for index in ("i64", "ui32", "i16", "ui8", "ui64"):
        for g in GATHERS[:5]:
            if g.most < 127 or index not in ("i8", "ui8"):
                yield _gathered(f"f32/{g.name}/index-{index}", g, "f32", index, index_values(-3, g.most + 4))
    for index, most in (("i32", 2**31 - 1), ("i64", 2**63 - 1), ("i64", 2**32), ("ui32", 2**32 - 1)):
        says = "gather: full_start_index is clamped to [0, shape(operand) - slice_sizes]"
        values = given(np.array([most, 0, 1], np.uint64))
        yield _gathered(f"f32/embedding/far-{index}-{most}", GATHERS[0], "f32", index, values, says)
    large = Gather("large", (1009, 64), (1579, 1), (1, 64), (1579, 64), (1,), (0,), (0,), 1, 1008)
    yield _gathered("f32/large", large, "f32", "i32", index_values(0, 1008))


def _gathered(label: str, g: Gather, dtype: str, index: str, values: Values, tests: str = "") -> Form:
    operands = (Operand(Type(g.operand, dtype), anywhere), Operand(Type(g.indices, index), values))
    attributes = f"dimension_numbers = {gather_numbers(g)}, slice_sizes = {array(g.sizes)}, indices_are_sorted = false"
    return Form(label, operands, (Type(g.result, dtype),), attributes, tests=tests)


# ---- scatter


@dataclass(frozen=True)
class Scatter:
    """A scatter: shapes, its dimension numbers by the specification's names, and the largest index that is inside."""

    name: str
    operand: Shape
    indices: Shape
    updates: Shape
    update_window_dims: Shape
    inserted_window_dims: Shape
    scattered_dims_to_operand_dims: Shape
    index_vector_dim: int
    most: int
    input_batching_dims: Shape = ()
    scatter_indices_batching_dims: Shape = ()


SCATTERS = (
    Scatter("rows", (11, 4), (3, 1), (3, 4), (1,), (0,), (0,), 1, 10),
    Scatter("implicit-vector", (11, 4), (3,), (3, 4), (1,), (0,), (0,), 1, 10),
    Scatter("elements", (5, 7), (6, 2), (6,), (), (0, 1), (0, 1), 1, 4),
    Scatter("turned", (5, 7), (6, 2), (6,), (), (0, 1), (1, 0), 1, 4),
    Scatter("columns", (3, 11), (4, 1), (3, 4), (0,), (1,), (1,), 1, 10),
    Scatter("windows", (13, 4), (2, 1), (2, 3, 4), (1, 2), (), (0,), 1, 10),
    Scatter("cache", (1, 16, 3, 2), (1,), (1, 5, 3, 2), (0, 1, 2, 3), (), (1,), 0, 11),
    Scatter("no-update", (5, 3), (0, 1), (0, 3), (1,), (0,), (0,), 1, 4),
    Scatter("one", (7,), (1, 1), (1,), (), (0,), (0,), 1, 6),
    Scatter("batched", (3, 7, 2), (3, 2, 1), (3, 2, 2), (2,), (1,), (1,), 2, 6, (0,), (0,)),
    Scatter("vector-first", (5, 7), (2, 6), (6,), (), (0, 1), (0, 1), 0, 4),
)  # fmt: skip
COMBINED = Bound("each sum of updates is rounded once for each, in any order", sums=True)
PICKED = Bound("the result is one of the operands' elements")


def scatter_numbers(s: Scatter) -> str:
    """The attribute."""
    batching = ""
    if s.input_batching_dims:
        batching = (
            f"input_batching_dims = {[*s.input_batching_dims]}, "
            f"scatter_indices_batching_dims = {[*s.scatter_indices_batching_dims]}, "
        )
    return (
        f"#stablehlo.scatter<update_window_dims = {[*s.update_window_dims]}, "
        f"inserted_window_dims = {[*s.inserted_window_dims]}, {batching}"
        f"scatter_dims_to_operand_dims = {[*s.scattered_dims_to_operand_dims]}, index_vector_dim = "
        f"{s.index_vector_dim}>"
    )


def apart(most: int) -> Values:
    """Indices of which no two are equal, in no order; of index vectors the first parts."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        count = int(np.prod(shape))
        found = np.resize(rng.permutation(most + 1), count)
        if shape[-1:] == (2,):
            found = np.stack([found[: shape[0]], rng.permutation(shape[0]) % (most + 1)], -1)
        elif len(shape) == 2 and shape[0] == 2 and shape[1] > 2:
            found = np.stack([np.arange(shape[1]) % (most + 1), rng.permutation(most + 3)[: shape[1]]])
        return found.reshape(shape).astype(np.int32)

    return draw


def _put(dtype: str) -> str:
    scalar = Type((), dtype)
    return region([scalar, scalar], "", "%a1", [scalar])


def _scatter() -> Iterator[Form]:
    for dtype in ALL:
        for s in SCATTERS:
            yield _scattered(f"{dtype}/{s.name}/put", s, dtype, _put(dtype), apart(s.most), MOVED)
    for dtype in ("f32", "bf16", "i32"):
        for s in SCATTERS:
            says = "scatter: an update whose result_index is out of bounds is left out"
            partly = "partly-" if s.name in ("windows", "cache") else ""
            if partly:
                says += ": each element of a window by itself"
            wide, below = apart(s.most + 5), given(np.array([-1, 1, -100, 0, -2, 2]))
            yield _scattered(f"{dtype}/{s.name}/{partly}outside", s, dtype, _put(dtype), wide, MOVED, says)
            yield _scattered(f"{dtype}/{s.name}/{partly}before", s, dtype, _put(dtype), below, MOVED, says, _twice(s))
            says = "scatter: the order of updates of one element is implementation-defined"
            same = given(np.array([1, 1, 0]))
            yield _scattered(f"{dtype}/{s.name}/put-twice", s, dtype, _put(dtype), same, MOVED, says, _twice(s))
    for dtype in (*FLOATS, "i32", "i64", "ui32", "i8"):
        for s in SCATTERS:
            for how in ("add", "maximum", "minimum", "multiply") if dtype in ("f32", "bf16", "i32") else ("add",):
                bound = (
                    COMBINED if how == "add" else PICKED if how != "multiply" else dataclasses.replace(PICKED, ulp=1.0)
                )
                many = _scattered(f"{dtype}/{s.name}/{how}", s, dtype, combines(how, dtype), apart(s.most), bound)
                yield many
                if how != "multiply":
                    same = given(np.array([1, 1, 0]))
                    label = f"{dtype}/{s.name}/{how}-twice"
                    yield _scattered(label, s, dtype, combines(how, dtype), same, bound)
    for s in SCATTERS[:3]:
        says = "scatter of two operands by one computation"
        yield _both(f"f32/{s.name}/two-operands", s, says)


def _scattered(
    label: str,
    s: Scatter,
    dtype: str,
    how: str,
    values: Values,
    bound: Bound,
    tests: str = "",
    leaves: Leaves | None = None,
) -> Form:
    numbers = normal() if bound is not MOVED else anywhere
    operands = (
        Operand(Type(s.operand, dtype), numbers), Operand(Type(s.indices, "i32"), values), Operand(Type(s.updates, dtype), numbers),
    )  # fmt: skip
    attributes = f"scatter_dimension_numbers = {scatter_numbers(s)}, indices_are_sorted = false, unique_indices = false"
    result = (Type(s.operand, dtype),)
    kept = bound if dtype in FLOATS or bound is MOVED else INTEGER
    return Form(
        label, operands, result, attributes, (how,), tests=tests, bound=kept, leaves=leaves, terms=2 * s.updates[0] + 2 if s.updates else 2
    )  # fmt: skip


def _both(label: str, s: Scatter, tests: str) -> Form:
    first, second = Type((), "f32"), Type((), "i32")
    body = "%c = stablehlo.add %a0, %a2 : tensor<f32>\n    %d = stablehlo.maximum %a1, %a3 : tensor<i32>"
    how = region([first, second, first, second], body, "%c, %d", [first, second])
    operands = (
        Operand(Type(s.operand, "f32"), normal()), Operand(Type(s.operand, "i32"), normal()),
        Operand(Type(s.indices, "i32"), apart(s.most)), Operand(Type(s.updates, "f32"), normal()),
        Operand(Type(s.updates, "i32"), normal()),
    )  # fmt: skip
    attributes = f"scatter_dimension_numbers = {scatter_numbers(s)}, indices_are_sorted = false, unique_indices = false"
    results = (Type(s.operand, "f32"), Type(s.operand, "i32"))
    return Form(label, operands, results, attributes, (how,), tests=tests, bound=COMBINED, terms=2)


def _twice(s: Scatter) -> Leaves:
    """Open where several updates may have gone: all elements that changed, unless all indices are apart."""

    def leaves(operands: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        before, indices, _ = operands
        whole = indices[..., None] if s.index_vector_dim == indices.ndim else indices
        last = np.moveaxis(whole, s.index_vector_dim, -1)
        vectors = last.reshape(-1, last.shape[-1]).tolist()
        if len({tuple(vector) for vector in vectors}) == len(vectors):
            return [None]
        changed = (before != values[0]) & ~((before != before) & (values[0] != values[0]))
        return [changed]

    return leaves


DESCRIPTIONS = (
    Description(
        "stablehlo.dynamic_slice",
        "dynamic_slice: adjusted_start_indices = clamp(0, start_indices, shape(operand) - slice_sizes)",
        MOVED,
        _dynamic_slice,
    ),
    Description(
        "stablehlo.dynamic_update_slice",
        "dynamic_update_slice: adjusted_start_indices = clamp(0, start_indices, shape(operand) - shape(update))",
        MOVED_IN,
        _dynamic_update_slice,
    ),
    Description(
        "stablehlo.gather",
        "gather: result[result_index] = operand[operand_index], where operand_index = full_start_index + "
        "full_batching_index + full_offset_index",
        MOVED,
        _gather,
    ),
    Description(
        "stablehlo.scatter",
        "scatter: results are inputs except that several slices specified by scatter_indices are updated with updates "
        "using update_computation",
        MOVED,
        _scatter,
    ),
)
