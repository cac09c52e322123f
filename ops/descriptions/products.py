"""Products of matrices and convolutions.

The specification defines a product as a sum in the result's type, and lets a precision of DEFAULT be "the fastest calculation, but the
least accurate approximation to the original number". So operands may be rounded to bfloat16 there, as accelerators do, and to nothing
with HIGHEST. Sums may be rounded to the result's type at every step: of a result of 16 bits too, though compilers sum in float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hloracle.ops.describe import INTEGER, Bound, Description, Form, Operand
from hloracle.ops.descriptions.shapes import FLOATS, dims
from hloracle.ops.values import given, normal
from hloracle.semantics.program import Type

Shape = tuple[int, ...]
SUMMED = Bound(
    "n roundings to the result's type of the sum of absolute products; operands of DEFAULT may be rounded to bfloat16",
    ulp=0.5,
    sums=True,
)


@dataclass(frozen=True)
class Dot:
    """Shapes, and the dimensions that are batched and summed."""

    name: str
    lhs: Shape
    rhs: Shape
    lhs_batch: Shape = ()
    rhs_batch: Shape = ()
    lhs_summed: Shape = (1,)
    rhs_summed: Shape = (0,)

    @property
    def result(self) -> Shape:
        """Batch, then the left one's other dimensions, then the right one's."""
        left = [n for d, n in enumerate(self.lhs) if d not in (*self.lhs_batch, *self.lhs_summed)]
        right = [n for d, n in enumerate(self.rhs) if d not in (*self.rhs_batch, *self.rhs_summed)]
        return (*(self.lhs[d] for d in self.lhs_batch), *left, *right)

    @property
    def terms(self) -> int:
        """Of each sum."""
        return math.prod(self.lhs[d] for d in self.lhs_summed)


DOTS = (
    Dot("decode", (1, 48), (48, 64)),
    Dot("weight-rows", (1, 48), (64, 48), rhs_summed=(1,)),
    Dot("primes", (7, 31), (31, 13)),
    Dot("both-turned", (31, 7), (13, 31), lhs_summed=(0,), rhs_summed=(1,)),
    Dot("scores", (3, 15, 16), (3, 7, 16), (0,), (0,), (2,), (2,)),  # [K, G * T, D] and [K, S, D]
    Dot("context", (3, 15, 7), (3, 7, 16), (0,), (0,), (2,), (1,)),
    Dot("grouped", (2, 5, 3, 3, 8), (2, 7, 3, 8), (0, 2), (0, 2), (4,), (3,)),  # [B, T, K, G, D] and [B, S, K, D]
    Dot("heads", (5, 3, 8), (3, 8, 11), lhs_summed=(1, 2), rhs_summed=(0, 1)),
    Dot("experts", (4, 5, 12), (4, 12, 6), (0,), (0,), (2,), (1,)),
    Dot("logits", (1, 48), (257, 48), rhs_summed=(1,)),
    Dot("outer", (3,), (5,), lhs_summed=(), rhs_summed=()),
    Dot("elementwise", (3, 4), (3, 4), (0, 1), (0, 1), (), ()),
    Dot("vectors", (17,), (17,), lhs_summed=(0,), rhs_summed=(0,)),
    Dot("one", (1, 1), (1, 1)),
    Dot("no-terms", (3, 0), (0, 4)),
    Dot("no-rows", (0, 5), (5, 4)),
    Dot("no-batch", (0, 2, 3), (0, 3, 4), (0,), (0,), (2,), (1,)),
    Dot("state", (1, 3, 4, 8), (1, 3, 8), (0, 1), (0, 1), (3,), (2,)),  # [B, N, D, state] of a state space
)  # fmt: skip
LARGE = Dot("large", (64, 331), (331, 307))
# Of the left operand, of the right one, of the result.
DOT_TYPES: tuple[tuple[str, str, str], ...] = (
    ("f32", "f32", "f32"), ("bf16", "bf16", "bf16"), ("bf16", "bf16", "f32"), ("f16", "f16", "f16"), ("f16", "f16", "f32"),
    ("f64", "f64", "f64"), ("i8", "i8", "i32"), ("i32", "i32", "i32"), ("ui8", "ui8", "ui32"), ("i64", "i64", "i64"),
    ("f8E4M3FN", "f8E4M3FN", "f32"), ("f8E5M2", "f8E5M2", "f32"), ("f8E4M3FN", "f8E5M2", "f32"), ("i8", "ui8", "i32"),
    ("bf16", "f32", "f32"), ("i16", "i16", "i32"),
)  # fmt: skip


def _numbers(dot: Dot) -> str:
    batched = ""
    if dot.lhs_batch:
        batched = f"lhs_batching_dimensions = {[*dot.lhs_batch]}, rhs_batching_dimensions = {[*dot.rhs_batch]}, "
    return (
        f"#stablehlo.dot<{batched}lhs_contracting_dimensions = {[*dot.lhs_summed]}, "
        f"rhs_contracting_dimensions = {[*dot.rhs_summed]}>"
    )


def _precision(word: str) -> str:
    return f"precision_config = [#stablehlo<precision {word}>, #stablehlo<precision {word}>]"


def _dot_general() -> Iterator[Form]:
    for left, right, result in DOT_TYPES:
        for dot in DOTS:
            yield _multiplied(f"{left}-{right}-{result}/{dot.name}", dot, left, right, result)
    for dot in (*DOTS, LARGE):
        yield _multiplied(f"f32/{dot.name}/highest", dot, "f32", "f32", "f32", "HIGHEST")
    for left, right, result in DOT_TYPES[:5]:
        yield _multiplied(f"{left}-{right}-{result}/large", LARGE if result == "f32" else DOTS[2], left, right, result)
        says = "dot_general: infinities and NaN by IEEE-754"
        form = _multiplied(f"{left}-{right}-{result}/special", Dot("special", (4, 3), (3, 4)), left, right, result)
        values = given([1.0, np.inf, 0.5, 2.0, np.nan, 1.0, 0.0, -np.inf, 3.0, 1.0, 2.0, 3.0])
        operands = (Operand(form.operands[0].type, values), form.operands[1])
        yield dataclasses.replace(form, operands=operands, tests=says)


def _multiplied(label: str, dot: Dot, left: str, right: str, result: str, precision: str = "DEFAULT") -> Form:
    operands = (Operand(Type(dot.lhs, left), normal()), Operand(Type(dot.rhs, right), normal()))
    attributes = f"dot_dimension_numbers = {_numbers(dot)}, {_precision(precision)}"
    loose = 2.0**-7 if precision == "DEFAULT" and "f32" in (left, right) else 0.0  # two roundings to bfloat16
    bound = SUMMED if result in FLOATS else INTEGER
    return Form(
        label, operands, (Type(dot.result, result),), attributes, bound=bound, terms=dot.terms, rounds_operands=loose
    )  # fmt: skip


def _dot() -> Iterator[Form]:
    for dtype in ("f32", "bf16", "f16", "f64", "i32"):
        for lhs, rhs in (((7, 31), (31, 13)), ((31,), (31,)), ((5, 3), (3,)), ((3,), (3, 5)), ((0, 3), (3, 2))):
            result = (*lhs[:-1], *rhs[1:])
            operands = (Operand(Type(lhs, dtype), normal()), Operand(Type(rhs, dtype), normal()))
            yield Form(
                f"{dtype}/{dims(lhs)}-{dims(rhs)}", operands, (Type(result, dtype),), _precision("HIGHEST"),
                bound=SUMMED if dtype in FLOATS else INTEGER, terms=lhs[-1],
            )  # fmt: skip


def _ragged_dot() -> Iterator[Form]:
    numbers = (
        "#chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], lhs_contracting_dimensions = "
        "[1], "
        "rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>"
    )
    for dtype in ("f32", "bf16", "f16", "f64"):
        for name, sizes in (
            ("even", (3, 3, 3, 3)), ("empty-group", (5, 0, 4, 3)), ("one-group", (12, 0, 0, 0)), ("last", (0, 0, 0, 12)), ("ones", (1, 1, 1, 9)),
        ):  # fmt: skip
            operands = (
                Operand(Type((12, 16), dtype), normal()), Operand(Type((4, 16, 5), dtype), normal()),
                Operand(Type((4,), "i32"), given(np.array(sizes))),
            )  # fmt: skip
            yield Form(
                f"{dtype}/{name}", operands, (Type((12, 5), dtype),), f"ragged_dot_dimension_numbers = {numbers}",
                terms=16, rounds_operands=2.0**-7 if dtype == "f32" else 0.0,
            )  # fmt: skip


# ---- convolutions


@dataclass(frozen=True)
class Convolution:
    """Shapes, dimension numbers as MLIR writes them, and the window."""

    name: str
    lhs: Shape
    rhs: Shape
    result: Shape
    numbers: str
    padding: tuple[tuple[int, int], ...]
    strides: Shape = ()
    lhs_dilation: Shape = ()
    rhs_dilation: Shape = ()
    reversal: tuple[bool, ...] = ()
    groups: int = 1
    batch_groups: int = 1
    terms: int = 1


ROWS = "[b, f, 0]x[o, i, 0]->[b, f, 0]"  # torch's order: N, C, L
LAST = "[b, 0, f]x[0, i, o]->[b, 0, f]"
PLANES = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
CONVOLUTIONS = (
    Convolution("causal-depthwise", (1, 6, 7), (6, 1, 4), (1, 6, 7), ROWS, ((3, 0),), groups=6, terms=4),
    Convolution("causal-depthwise-batch", (2, 5, 1), (5, 1, 4), (2, 5, 1), ROWS, ((3, 0),), groups=5, terms=4),
    Convolution("causal-dilated", (1, 4, 9), (4, 1, 3), (1, 4, 9), ROWS, ((4, 0),), rhs_dilation=(2,), groups=4, terms=3),
    Convolution("audio", (1, 9, 5), (3, 5, 4), (1, 5, 4), LAST, ((1, 1),), strides=(2,), terms=15),
    Convolution("patches", (1, 6, 9, 3), (2, 3, 3, 5), (1, 3, 3, 5), PLANES, ((0, 0), (0, 0)), strides=(2, 3), terms=18),
    Convolution("plane", (2, 5, 7, 2), (3, 3, 2, 3), (2, 5, 7, 3), PLANES, ((1, 1), (1, 1)), terms=18),
    Convolution("grouped", (1, 6, 8), (4, 3, 3), (1, 4, 6), ROWS, ((0, 0),), groups=2, terms=9),
    Convolution("transposed", (1, 3, 4), (2, 3, 3), (1, 2, 9), ROWS, ((2, 2),), lhs_dilation=(2,), terms=9),
    Convolution("reversed", (1, 2, 6), (3, 2, 3), (1, 3, 4), ROWS, ((0, 0),), reversal=(True,), terms=6),
    Convolution("negative-padding", (1, 2, 9), (3, 2, 3), (1, 3, 4), ROWS, ((-1, -2),), terms=6),
    Convolution("batch-groups", (4, 3, 5), (2, 3, 2), (2, 2, 4), ROWS, ((0, 0),), batch_groups=2, terms=6),
    Convolution("pointwise", (2, 5, 3), (7, 5, 1), (2, 7, 3), ROWS, ((0, 0),), terms=5),
    Convolution("one", (1, 1, 1), (1, 1, 1), (1, 1, 1), ROWS, ((0, 0),), terms=1),
    Convolution("no-batch", (0, 2, 5), (3, 2, 3), (0, 3, 3), ROWS, ((0, 0),), terms=6),
    Convolution("no-space", (2, 5), (5, 3), (2, 3), "[b, f]x[i, o]->[b, f]", (), terms=5),
)  # fmt: skip


def _convolution() -> Iterator[Form]:
    for dtype, result in (
        ("f32", "f32"),
        ("bf16", "bf16"),
        ("f16", "f16"),
        ("f64", "f64"),
        ("bf16", "f32"),
        ("i32", "i32"),
        ("i8", "i32"),
    ):
        for c in CONVOLUTIONS:
            for precision in ("DEFAULT", "HIGHEST") if dtype == "f32" else ("DEFAULT",):
                spatial = len(c.padding)
                padding = f"dense<{[list(p) for p in c.padding]}>" if spatial else "dense<>"
                parts = [
                    _window("window_strides", c.strides), f"padding = {padding} : tensor<{spatial}x2xi64>",
                    _window("lhs_dilation", c.lhs_dilation), _window("rhs_dilation", c.rhs_dilation),
                    f"window_reversal = array<i1: {', '.join(str(r).lower() for r in c.reversal)}>" if c.reversal else "",
                    f"dimension_numbers = #stablehlo.conv<{c.numbers}>", f"feature_group_count = {c.groups} : i64",
                    f"batch_group_count = {c.batch_groups} : i64", _precision(precision),
                ]  # fmt: skip
                operands = (Operand(Type(c.lhs, dtype), normal()), Operand(Type(c.rhs, dtype), normal()))
                loose = 2.0**-7 if dtype == "f32" and precision == "DEFAULT" else 0.0
                label = f"{dtype}-{result}/{c.name}{'/highest' if precision == 'HIGHEST' else ''}"
                yield Form(
                    label, operands, (Type(c.result, result),), ", ".join(filter(None, parts)),
                    bound=SUMMED if result in FLOATS else INTEGER, terms=c.terms, rounds_operands=loose,
                )  # fmt: skip


def _window(name: str, numbers: Shape) -> str:
    return f"{name} = array<i64: {', '.join(map(str, numbers))}>" if numbers else ""


DESCRIPTIONS = (
    Description(
        "stablehlo.dot_general",
        "dot_general: result[result_index] = dot_product, the sum of products over contracting dimensions",
        SUMMED,
        _dot_general,
    ),
    Description("stablehlo.dot", "dot: the product of vectors, of a matrix and a vector, of matrices", SUMMED, _dot),
    Description("chlo.ragged_dot", "each group of rows times the matrix of its group", SUMMED, _ragged_dot),
    Description(
        "stablehlo.convolution",
        "convolution: dot products between windows of lhs and slices of rhs",
        SUMMED,
        _convolution,
    ),
)
