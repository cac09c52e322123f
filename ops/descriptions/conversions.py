"""Operations that make another type of elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hloracle.ops.describe import MOVED, Bound, Description, Form, Operand
from hloracle.ops.descriptions import leaves
from hloracle.ops.descriptions.shapes import ALL, FLOATS, SMALL, elementwise, one_special, short
from hloracle.ops.values import anywhere, bits, every, finite, normal, uniform
from hloracle.semantics.numbers import FLOATS as ALL_FLOATS
from hloracle.semantics.program import Type

EIGHT = ("f8E4M3FN", "f8E5M2")
FOUR = ("i4", "ui4")
TO_INTEGER = Bound("the fractional part is truncated, and the rest is exact")
KEPT = Bound("the source has a number that the destination has, too")
NEAREST = Bound(
    "the specification leaves rounding open (#180); all of its implementations round to the nearest, ties to even, and "
    "models "
    "rely on it"
)
TWICE = Bound(
    "the specification leaves rounding open (#180), and compilers go by way of float32, which rounds twice: either "
    "neighbour will do",
    ulp=1.0,
)
REDUCED = Bound("rounded to the nearest, ties to even, of the numbers with so many bits")


def bound(source: str, target: str) -> Bound:
    """Of one type converted to another."""
    if target not in ALL_FLOATS:
        return TO_INTEGER
    wide = source in ("f64", "i32", "i64", "ui32", "ui64") and bits(target) < 32
    eight = target in EIGHT and source in FLOATS
    return TWICE if wide or eight else NEAREST if bits(source) >= bits(target) else KEPT


def _convert() -> Iterator[Form]:
    types = (*ALL, *EIGHT, *FOUR)
    for source in types:
        for target in types:
            if {source, target} <= {*FOUR}:
                continue
            for form in _converted(source, target):
                yield dataclasses.replace(form, bound=bound(source, target), leaves=leaves.beyond(source, target))


def _converted(source: str, target: str) -> Iterator[Form]:
    label = f"{source}-{target}"
    if source not in FOUR:
        yield dataclasses.replace(one_special(source, target), label=f"{label}/special")
    if short(source):
        shape = (1 << bits(source),)
        yield Form(f"{label}/every", (Operand(Type(shape, source), every),), (Type(shape, target),))
    common = {source, target} in ({"f32", "bf16"}, {"f32", "f16"}, {"i32", "f32"}, {"i1", "f32"})
    chosen = SMALL if common else (SMALL[1], SMALL[4])
    values = uniform(0, 7) if target.startswith("ui") or target in FOUR else normal(3.0)  # which the target has
    for form in elementwise(source, (values,), target, shapes=chosen):
        yield dataclasses.replace(form, label=f"{label}/{form.label.partition('/')[2]}")
    if source in FLOATS and target in FLOATS:
        for form in elementwise(source, (finite,), target, shapes=(("wide", (1009,)),)):
            yield dataclasses.replace(form, label=f"{label}/wide")


def _bitcast() -> Iterator[Form]:
    same = (
        ("f32", "i32"), ("f32", "ui32"), ("i32", "f32"), ("ui32", "f32"), ("f64", "i64"), ("i64", "f64"), ("bf16", "i16"),
        ("bf16", "ui16"), ("ui16", "bf16"), ("i16", "f16"), ("f16", "ui16"), ("f16", "bf16"), ("i32", "ui32"), ("ui8", "i8"),
        ("f8E4M3FN", "i8"), ("ui8", "f8E5M2"), ("ui64", "i64"), ("i16", "ui16"),
    )  # fmt: skip
    for source, target in same:
        for name, shape in SMALL:
            operand = Operand(Type(shape, source), finite)
            yield Form(f"{source}-{target}/{name}", (operand,), (Type(shape, target),))
    narrower = (
        ("f32", "i8"), ("f32", "ui16"), ("i32", "bf16"), ("ui32", "ui8"), ("i64", "i32"), ("f64", "ui32"), ("bf16", "ui8"),
    )  # fmt: skip
    for wide, narrow in narrower:
        count = bits(wide) // bits(narrow)
        says = "bitcast_convert C1: dim(result, R) * num_bits(E') = num_bits(E)"
        for shape in ((), (5,), (3, 7)):
            name = "x".join(map(str, shape)) or "scalar"
            one, many = Type(shape, wide), Type((*shape, count), narrow)
            yield Form(f"{wide}-{narrow}/{name}", (Operand(one, finite),), (many,), tests=says)
            # Bits by chance would be a NaN at times, whose other bits nobody promises to keep.
            yield Form(f"{narrow}-{wide}/{name}", (Operand(many, finite),), (one,), tests=says)


def _reduce_precision() -> Iterator[Form]:
    for dtype in FLOATS:
        for exponent, mantissa in ((8, 7), (5, 10), (5, 2), (4, 3), (8, 23), (11, 52), (8, 10), (5, 23)):
            label = f"{dtype}/e{exponent}m{mantissa}"
            attributes = f"exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32"
            forms = [one_special(dtype), *elementwise(dtype, (anywhere,), shapes=(("wide", (1009,)),))]
            for form in forms:
                name = form.label.partition("/")[2]
                open = leaves.below(exponent)
                yield Form(f"{label}/{name}", form.operands, form.results, attributes, leaves=open)


DESCRIPTIONS = (
    Description("stablehlo.convert", "an element-wise conversion from one element type to another", NEAREST, _convert),
    Description(
        "stablehlo.bitcast_convert",
        "the bits of the entire operand are reinterpreted using the type of the result",
        MOVED,
        _bitcast,
    ),
    Description(
        "stablehlo.reduce_precision",
        "conversion to a lower-precision type and back, by exponent_bits and mantissa_bits",
        REDUCED,
        _reduce_precision,
    ),
)
