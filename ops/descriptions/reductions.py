"""Operations that make one element of many by a computation of two.

The specification lets a reduction insert its initial value anywhere, so initial values are neutral here. It applies the computation to
elements of the operand's type in any order that keeps neighbours: each step may round to that type. So a sum of n terms may be off by
n roundings of the sum of its terms' absolute values, and a product by n ULP. Sums in 16 bits are of few terms, for the bound of many
says nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hloracle.ops.describe import INTEGER, Bound, Description, Form, Operand
from hloracle.ops.descriptions.shapes import FLOATS, INTEGERS, array, dims
from hloracle.ops.values import Values, anywhere, given, limits, normal, special, specials, uniform
from hloracle.ops.write import combines, region
from hloracle.semantics.program import Type

Shape = tuple[int, ...]
# Shape of the operand, dimensions.
SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((7,), (0,)), ((5, 48), (1,)), ((2, 9, 5, 7), (3,)), ((3, 5), (0,)), ((2, 3, 4, 5), (1, 2)), ((2, 3, 4), (0, 1, 2)), ((2, 3), ()),
    ((5, 1), (1,)), ((0, 3), (0,)), ((3, 0), (1,)), ((0, 3), (1,)), ((1, 1, 1), (0, 2)), ((2, 3, 4), (2, 0)), ((3, 31), (1,)),
)  # fmt: skip
COMMON = (*FLOATS, "i32", "i8", "ui32", "i1")
SUMMED = Bound(
    "a sum may be rounded to the operand's type at every step, in any order: n roundings of the sum of absolute values",
    sums=True,
)
PICKED = Bound("the result is one of the elements")


def neutral(how: str, dtype: str) -> float | int | bool:
    """What a computation does not notice."""
    if dtype == "i1":
        return how in ("multiply", "minimum", "and")
    if how in ("maximum", "minimum"):
        ends = (-math.inf, math.inf) if dtype in FLOATS else limits(dtype)
        return ends[0] if how == "maximum" else ends[1]
    if how == "and":
        return limits(dtype)[1] if dtype.startswith("ui") else -1
    return 1 if how == "multiply" else 0


def _types(how: str) -> Sequence[str]:
    if how in ("and", "or", "xor"):
        return (*INTEGERS, "i1")
    return (*FLOATS, *INTEGERS, "i1") if how in ("maximum", "minimum") else (*FLOATS, *INTEGERS)


def _values(how: str, dtype: str) -> Values:
    if dtype not in FLOATS:
        return uniform(1, 2) if how == "multiply" else normal() if how == "add" else anywhere
    return uniform(0.5, 1.5) if how == "multiply" else normal()


def bound(how: str, dtype: str, terms: int) -> Bound:
    """How far off a reduction of so many terms may be."""
    if dtype not in FLOATS:
        return INTEGER
    if how == "multiply":
        return Bound("a product of n factors is rounded at most n times", ulp=float(terms))
    return SUMMED if how == "add" else PICKED


def _reduce() -> Iterator[Form]:
    for how in ("add", "maximum", "minimum", "multiply", "and", "or", "xor"):
        for dtype in _types(how):
            for shape, axes in SHAPES if dtype in COMMON else SHAPES[:5]:
                terms = math.prod(shape[d] for d in axes)
                if how == "multiply" and dtype in ("i8", "ui8") and terms > 6:
                    continue  # it would overflow
                yield _reduced(
                    f"{how}/{dtype}/{dims(shape)}-{'.'.join(map(str, axes)) or 'none'}", how, dtype, shape, axes
                )
    for how in ("add", "maximum"):
        for shape, axes in (((331, 307), (1,)), ((331, 307), (0,)), ((101617,), (0,))):
            yield _reduced(f"{how}/f32/{dims(shape)}-{axes[0]}", how, "f32", shape, axes)
    for dtype in FLOATS:
        for how in ("maximum", "minimum"):
            says = f"reduce by {how} from IEEE-754: NaN where any is"
            count = len(specials(dtype))
            form = _reduced(f"{how}/{dtype}/special", how, dtype, (count, 3), (0,))
            yield dataclasses.replace(
                form, operands=(Operand(Type((count, 3), dtype), special), form.operands[1]), tests=says
            )
            one = np.ones((4, 7))
            one[1, 3], one[2, 0], one[3] = np.nan, np.inf, -np.inf
            form = _reduced(f"{how}/{dtype}/one-nan", how, dtype, (4, 7), (1,))
            yield dataclasses.replace(
                form, operands=(Operand(Type((4, 7), dtype), given(one)), form.operands[1]), tests=says
            )
        values = given([1.0, np.inf, -2.0, np.nan, 3.0, 0.5, 1.0, np.inf, -np.inf])
        form = _reduced(f"add/{dtype}/special", "add", dtype, (3, 3), (1,))
        says = "reduce by addition from IEEE-754: infinities and NaN stay"
        yield dataclasses.replace(form, operands=(Operand(Type((3, 3), dtype), values), form.operands[1]), tests=says)


def _reduced(label: str, how: str, dtype: str, shape: Shape, axes: Shape) -> Form:
    terms = math.prod(shape[d] for d in axes)
    result = tuple(n for d, n in enumerate(shape) if d not in axes)
    operands = (
        Operand(Type(shape, dtype), _values(how, dtype)),
        Operand(Type((), dtype), given(np.array([neutral(how, dtype)]))),
    )
    return Form(
        label, operands, (Type(result, dtype),), f"dimensions = {array(axes)}", (combines(how, dtype),),
        bound=bound(how, dtype, terms), terms=max(terms, 1),
    )  # fmt: skip


ARGMAX = """%p = stablehlo.compare {direction}, %a0, %a2 : (tensor<{t}>, tensor<{t}>) -> tensor<i1>
    %q = stablehlo.compare EQ, %a0, %a2 : (tensor<{t}>, tensor<{t}>) -> tensor<i1>
    %f = stablehlo.compare LT, %a1, %a3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %b = stablehlo.and %q, %f : tensor<i1>
    %o = stablehlo.or %p, %b : tensor<i1>
    %v = stablehlo.select %o, %a0, %a2 : tensor<i1>, tensor<{t}>
    %i = stablehlo.select %o, %a1, %a3 : tensor<i1>, tensor<i32>"""


def _argmax() -> Iterator[Form]:
    for dtype in (*FLOATS, "i32", "i8", "ui32"):
        for how in ("maximum", "minimum"):
            for shape, axis in (((257,), 0), ((3, 31), 1), ((5, 4), 0), ((2, 3, 5), 1), ((4, 1), 1)):
                floats = dtype in FLOATS
                yield _largest("ties", dtype, how, shape, axis, _whole(uniform(0, 3.9) if floats else normal()))
                yield _largest("apart", dtype, how, shape, axis, normal() if floats else anywhere)


def _largest(word: str, dtype: str, how: str, shape: Shape, axis: int, values: Values) -> Form:
    """The largest or smallest element along an axis and where it is, of equal ones the first."""
    value, place = Type((), dtype), Type((), "i32")
    body = ARGMAX.format(direction="GT" if how == "maximum" else "LT", t=dtype)
    chooses = region([value, place, value, place], body, "%v, %i", [value, place])
    operands = (
        Operand(Type(shape, dtype), values), Operand(Type(shape, "i32"), counted(axis)),
        Operand(value, given(np.array([neutral(how, dtype)]))), Operand(place, given([2**31 - 1])),
    )  # fmt: skip
    result = tuple(n for d, n in enumerate(shape) if d != axis)
    results = (Type(result, dtype), Type(result, "i32"))
    label = f"{dtype}/arg{how[:3]}-{word}/{dims(shape)}-{axis}"
    return Form(label, operands, results, f"dimensions = {array((axis,))}", (chooses,))


def _whole(values: Values) -> Values:
    """Numbers without a fraction, of which many are equal."""

    def draw(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
        found = values(rng, shape, dtype)
        return np.asarray(np.floor(found.astype(np.float64)).astype(found.dtype))

    return draw


def counted(axis: int) -> Values:
    """0, 1, 2, … along an axis."""
    return lambda rng, shape, dtype: np.array(np.broadcast_to(np.indices(shape)[axis], shape), np.int32)


# ---- windows

# Shape, window_dimensions, window_strides, base_dilations, window_dilations, padding: those of a running sum, of pools, of all.
WINDOWS: tuple[tuple[str, Shape, Shape, Shape, Shape, Shape, tuple[tuple[int, int], ...]], ...] = (
    ("running", (3, 7), (1, 7), (1, 1), (1, 1), (1, 1), ((0, 0), (6, 0))),
    ("running-first", (13, 2), (13, 1), (1, 1), (1, 1), (1, 1), ((12, 0), (0, 0))),
    ("pool", (2, 9), (1, 3), (1, 3), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ("overlap", (2, 9), (1, 3), (1, 2), (1, 1), (1, 1), ((0, 0), (1, 1))),
    ("dilated", (11,), (3,), (1,), (1,), (2,), ((0, 0),)),
    ("spread", (5,), (2,), (1,), (3,), (1,), ((1, 0),)),
    ("negative", (9,), (3,), (2,), (1,), (1,), ((-1, -1),)),
    ("two", (1, 6, 6, 2), (1, 2, 3, 1), (1, 2, 2, 1), (1, 1, 1, 1), (1, 1, 1, 1), ((0, 0), (0, 0), (1, 1), (0, 0))),
    ("one", (4,), (1,), (1,), (1,), (1,), ((0, 0),)),
    ("all", (3, 5), (3, 5), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ("none", (2, 3), (3, 1), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
)


def _padding(padding: Sequence[tuple[int, int]]) -> str:
    return f"dense<{[list(p) for p in padding]}> : tensor<{len(padding)}x2xi64>"


def _reduce_window() -> Iterator[Form]:
    for how in ("add", "maximum", "minimum", "multiply"):
        for dtype in (*FLOATS, "i32", "i64", "i8", "ui32"):
            for name, shape, window, strides, base, dilations, padding in WINDOWS:
                terms = math.prod(window)
                if how == "multiply" and dtype == "i8" and terms > 6:
                    continue  # it would overflow
                wide = [(n - 1) * b + 1 + sum(p) for n, b, p in zip(shape, base, padding, strict=True)]
                spans = [(w - 1) * d + 1 for w, d in zip(window, dilations, strict=True)]
                result = tuple((n - s) // t + 1 if n >= s else 0 for n, s, t in zip(wide, spans, strides, strict=True))
                attributes = (
                    f"window_dimensions = {array(window)}, window_strides = {array(strides)}, base_dilations = "
                    f"{array(base)}, "
                    f"window_dilations = {array(dilations)}, padding = {_padding(padding)}"
                )
                first = given(np.array([neutral(how, dtype)]))
                operands = (Operand(Type(shape, dtype), _values(how, dtype)), Operand(Type((), dtype), first))
                yield Form(
                    f"{how}/{dtype}/{name}", operands, (Type(result, dtype),), attributes, (combines(how, dtype),),
                    bound=bound(how, dtype, terms), terms=terms,
                )  # fmt: skip


def _select_and_scatter() -> Iterator[Form]:
    for dtype in ("f32", "bf16", "f16", "f64", "i32"):
        for name, shape, window, strides, padding in (
            ("apart", (4, 6), (2, 3), (2, 3), ((0, 0), (0, 0))), ("overlap", (7,), (3,), (2,), ((0, 0),)),
            ("padded", (5, 4), (3, 1), (2, 1), ((1, 1), (0, 0))), ("one", (1,), (1,), (1,), ((0, 0),)),
        ):  # fmt: skip
            source = tuple(
                (n + sum(p) - w) // s + 1 for n, w, s, p in zip(shape, window, strides, padding, strict=True)
            )
            scalar = Type((), dtype)
            body = f"%c = stablehlo.compare GE, %a0, %a1 : ({scalar}, {scalar}) -> tensor<i1>"
            regions = (region([scalar, scalar], body, "%c", [Type((), "i1")]), combines("add", dtype))
            attributes = (
                f"window_dimensions = {array(window)}, window_strides = {array(strides)}, padding = {_padding(padding)}"
            )
            operands = (
                Operand(Type(shape, dtype), normal()), Operand(Type(source, dtype), normal()), Operand(scalar, given([0])),
            )  # fmt: skip
            # The sizes of the sums cannot be had from absolute operands, which would be selected elsewhere.
            few = Bound("at most two elements go to one place: one rounding", ulp=0.5) if dtype in FLOATS else INTEGER
            yield Form(f"{dtype}/{name}", operands, (Type(shape, dtype),), attributes, regions, bound=few)


def _batch_norm() -> Iterator[Form]:
    for dtype in FLOATS:
        for shape, axis in (((2, 7, 5), 1), ((3, 5), 1), ((1, 1), 0), ((0, 3), 1)):
            features = Type((shape[axis],), dtype)
            values = (uniform(0.5, 2), normal(), normal(), uniform(0.5, 2))
            operands = (Operand(Type(shape, dtype), normal()), *(Operand(features, v) for v in values))
            attributes = f"epsilon = 1.000000e-03 : f32, feature_index = {axis} : i64"
            yield Form(f"{dtype}/{dims(shape)}-{axis}", operands, (Type(shape, dtype),), attributes)


NORMALIZED = Bound(
    "six operations round once each, and what they give is at most some 16: 64 epsilons", ulp=8.0, epsilons=64.0
)

DESCRIPTIONS = (
    Description(
        "stablehlo.reduce", "reduce: results[...] = exec(schedule), a tree over the elements in order", SUMMED, _reduce
    ),
    Description("stablehlo.reduce", "reduce of several operands by one computation", PICKED, _argmax),
    Description(
        "stablehlo.reduce_window",
        "reduce_window: results[...] = reduce(windows, init_values, axes(inputs), body)",
        SUMMED,
        _reduce_window,
    ),
    Description(
        "stablehlo.select_and_scatter",
        "scatters the values from source based on the outcome of reduce_window of the operand by select",
        SUMMED,
        _select_and_scatter,
    ),
    Description(
        "stablehlo.batch_norm_inference",
        "(operand - mean) / sqrt(variance + epsilon) * scale + offset",
        NORMALIZED,
        _batch_norm,
    ),
)
