"""Operations that compare, choose and clamp."""

from __future__ import annotations

from collections.abc import Iterator

from hloracle.ops.describe import INTEGER, MOVED, Bound, Description, Form, Operand
from hloracle.ops.descriptions.shapes import (
    ALL,
    FLOATS,
    LARGE,
    NUMBERS,
    SCALAR,
    SMALL,
    elementwise,
    one_special,
    two_special,
)  # fmt: skip
from hloracle.ops.values import Values, anywhere, given, normal, special, specials
from hloracle.semantics.program import Type

DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
ORDERED = Bound("a comparison is true or false, unless subnormal numbers are taken for zeros")
TOTAL = Bound("the total order tells all numbers apart, subnormal ones too", flushes=False)
CLAMPED = Bound("the result is one of the operands")


def _with(form: Form, label: str, attributes: str, tests: str = "") -> Form:
    return Form(label, form.operands, form.results, attributes, tests=tests)


def _kind(dtype: str) -> str:
    return "FLOAT" if dtype in FLOATS else "UNSIGNED" if dtype.startswith("ui") or dtype == "i1" else "SIGNED"


def _compared(direction: str, kind: str) -> str:
    return (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {kind}>"
    )


def _compare() -> Iterator[Form]:
    for dtype in ALL:
        for direction in DIRECTIONS:
            attributes, label = _compared(direction, _kind(dtype)), f"{dtype}/{direction}"
            if dtype != "i1":
                yield _with(two_special(dtype, "i1"), f"{label}/special", attributes)
            for form in elementwise(dtype, (normal(), normal()), "i1", shapes=SMALL[:5]):
                yield _with(form, f"{label}/{form.label.partition('/')[2]}", attributes)
    for form in elementwise("f32", (normal(), normal()), "i1", shapes=(("large", LARGE),)):
        yield _with(form, "f32/LT/large", _compared("LT", "FLOAT"))


def _total() -> Iterator[Form]:
    for dtype in FLOATS:
        for direction in DIRECTIONS:
            says = "for floats with TOTALORDER: totalOrder and compareQuietEqual from IEEE-754"
            attributes = _compared(direction, "TOTALORDER")
            yield _with(two_special(dtype, "i1"), f"{dtype}/{direction}/total-order", attributes, says)


def _is_finite() -> Iterator[Form]:
    for dtype in FLOATS:
        yield one_special(dtype, "i1")
        yield from elementwise(dtype, (anywhere,), "i1")


def _select() -> Iterator[Form]:
    for dtype in ALL:
        for name, shape in (*SMALL, ("large", LARGE)) if dtype in ("f32", "i1") else SMALL:
            yield _selected(f"{dtype}/{name}", shape, shape, dtype, anywhere)
        for which, chosen in (("true", True), ("false", False)):
            says = "select C1: rank(pred) = 0 or shape(pred) = shape(on_true)"
            yield _selected(f"{dtype}/scalar-{which}", SCALAR, (2, 9, 5), dtype, given([chosen]), says)


def _selected(
    label: str, pred: tuple[int, ...], shape: tuple[int, ...], dtype: str, which: Values, tests: str = ""
) -> Form:
    type = Type(shape, dtype)
    operands = (Operand(Type(pred, "i1"), which), Operand(type, anywhere), Operand(type, anywhere))
    return Form(label, operands, (type,), tests=tests)


def _clamp() -> Iterator[Form]:
    for dtype in NUMBERS:
        for name, shape in SMALL:
            yield _clamped(f"{dtype}/{name}", shape, shape, dtype, (normal(), normal(3), normal()))
            if shape:
                says = "clamp C1: rank(min) = 0 or shape(min) = shape(operand)"
                low, high = (-2.0, 2.5) if dtype in FLOATS else (2, 7)
                values = (given([low]), normal(3), given([high]))
                yield _clamped(f"{dtype}/{name}-scalars", SCALAR, shape, dtype, values, says)
        count = len(specials(dtype))
        for label, low, high in (("special", -1.0, 1.0), ("turned", 2.0, 1.0)):
            if dtype in FLOATS or label == "turned":
                says = "clamp: minimum(maximum(operand, min), max)"
                values = (given([low]), special, given([high]))
                yield _clamped(f"{dtype}/{label}", SCALAR, (count,), dtype, values, says)
    for dtype in FLOATS:
        nan = float("nan")
        for label, values in (
            ("low", (given([nan]), special, given([1.0]))),
            ("high", (given([0.0]), special, given([nan]))),
        ):
            says = "clamp: minimum(maximum(operand, min), max), where NaN of either is NaN"
            yield _clamped(f"{dtype}/nan-{label}", SCALAR, (len(specials(dtype)),), dtype, values, says)


def _clamped(
    label: str, ends: tuple[int, ...], shape: tuple[int, ...], dtype: str, values: tuple[Values, ...], tests: str = ""
) -> Form:
    low, x, high = values
    end, type = Type(ends, dtype), Type(shape, dtype)
    return Form(label, (Operand(end, low), Operand(type, x), Operand(end, high)), (type,), tests=tests)


DESCRIPTIONS = (
    Description(
        "stablehlo.compare",
        "comparison of lhs and rhs according to comparison_direction and compare_type",
        ORDERED,
        _compare,
    ),
    Description(
        "stablehlo.compare", "the combination of totalOrder and compareQuietEqual from IEEE-754", TOTAL, _total
    ),
    Description("stablehlo.is_finite", "isFinite from IEEE-754", INTEGER, _is_finite),
    Description(
        "stablehlo.select",
        "each element is from on_true or on_false, by the corresponding element of pred",
        MOVED,
        _select,
    ),
    Description("stablehlo.clamp", "clamps every element between a minimum and a maximum value", CLAMPED, _clamp),
)
