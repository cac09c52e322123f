"""Complex numbers, as some rotary embeddings have them. Arguments and results are their parts: no ABI has complex ones."""

from __future__ import annotations

from collections.abc import Iterator

from hloracle.ops.describe import MOVED, Bound, Description, Form, Operand
from hloracle.ops.descriptions.shapes import SMALL
from hloracle.ops.values import anywhere, normal
from hloracle.semantics.program import Type

TYPES = ("f32", "f64")
MULTIPLIED = Bound(
    "a part is a sum of two products of numbers of a normal distribution, and rounds three times: 64 epsilons",
    epsilons=64.0,
)


def _parts(part: str) -> Iterator[Form]:
    """A complex number of two parts, and one of them."""
    for dtype in TYPES:
        for name, shape in SMALL:
            type, whole = Type(shape, dtype), Type(shape, f"complex<{dtype}>")
            text = f"%c = stablehlo.complex %0, %1 : {whole}\n  %r = stablehlo.{part} %c : ({whole}) -> {type}"
            yield Form(f"{dtype}/{name}-{part}", (Operand(type, anywhere), Operand(type, anywhere)), (type,), body=text)


def _complex() -> Iterator[Form]:
    """Two operands turned into a complex number and back."""
    for dtype in TYPES:
        for name, shape in SMALL:
            type, whole = Type(shape, dtype), Type(shape, f"complex<{dtype}>")
            text = (
                f"%c = stablehlo.complex %1, %0 : {whole}\n  %a = stablehlo.real %c : ({whole}) -> {type}\n"
                f"  %b = stablehlo.imag %c : ({whole}) -> {type}\n"
                f'  %r:2 = "stablehlo.optimization_barrier"(%a, %b) : ({type}, {type}) -> ({type}, {type})'
            )
            yield Form(f"{dtype}/{name}", (Operand(type, anywhere), Operand(type, anywhere)), (type, type), body=text)


def _multiply() -> Iterator[Form]:
    """Numbers turned by an angle: multiplied by another complex number."""
    for dtype in TYPES:
        for name, shape in SMALL:
            type, whole = Type(shape, dtype), Type(shape, f"complex<{dtype}>")
            text = (
                f"%a = stablehlo.complex %0, %1 : {whole}\n  %b = stablehlo.complex %2, %3 : {whole}\n"
                f"  %c = stablehlo.multiply %a, %b : {whole}\n  %x = stablehlo.real %c : ({whole}) -> {type}\n"
                f"  %y = stablehlo.imag %c : ({whole}) -> {type}\n"
                f'  %r:2 = "stablehlo.optimization_barrier"(%x, %y) : ({type}, {type}) -> ({type}, {type})'
            )
            operands = tuple(Operand(type, normal()) for _ in range(4))
            yield Form(f"complex-{dtype}/{name}", operands, (type, type), body=text)


DESCRIPTIONS = (
    Description(
        "stablehlo.complex", "complex: a complex value from a pair of real and imaginary values", MOVED, _complex
    ),
    Description("stablehlo.real", "real: the real part of the operand", MOVED, lambda: _parts("real")),
    Description("stablehlo.imag", "imag: the imaginary part of the operand", MOVED, lambda: _parts("imag")),
    Description("stablehlo.multiply", "for complex numbers: complex multiplication", MULTIPLIED, _multiply),
)
