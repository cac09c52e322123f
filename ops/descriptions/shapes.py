"""Types and shapes that descriptions share.

B batch, T query tokens, S cache slots, N/K query/kv heads, D head_dim, E hidden, F intermediate, V vocab.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloracle.ops.describe import Form, Operand
from hloracle.ops.values import Values, bits, left, right, special, specials
from hloracle.semantics.program import Type

FLOATS = ("f32", "bf16", "f16", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("ui8", "ui16", "ui32", "ui64")
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "i1")

SCALAR: tuple[int, ...] = ()
# Of elementwise operations, each with its name.
SMALL: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("scalar", ()),
    ("empty", (0, 5)),  # no tokens
    ("one", (1, 1, 1)),
    ("hidden", (1, 48)),  # [T, E] of a decode step
    ("scores", (2, 9, 5, 7)),  # [B, N, T, S], primes and three query heads to each of three
    ("logits", (1, 257)),  # [T, V] of an odd vocabulary
    ("heads", (5, 3, 16)),  # [T, N, D]
)
LARGE = (331, 307)  # 101,617 elements, in primes


def dims(shape: tuple[int, ...]) -> str:
    """A shape as labels have it: `2x3`, or `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def elementwise(
    dtype: str, values: tuple[Values, ...], result: str = "", *, shapes: tuple[tuple[str, tuple[int, ...]], ...] = SMALL
) -> Iterator[Form]:
    """A form for each shape, with operands of one type. result: the type of the result, where it is another."""
    for name, shape in shapes:
        type = Type(shape, dtype)
        yield Form(f"{dtype}/{name}", tuple(Operand(type, v) for v in values), (Type(shape, result or dtype),))


def one_special(dtype: str, result: str = "", label: str = "special") -> Form:
    """All special values of a type."""
    type = Type((len(specials(dtype)),), dtype)
    return Form(f"{dtype}/{label}", (Operand(type, special),), (Type(type.shape, result or dtype),))


def two_special(dtype: str, result: str = "", label: str = "special") -> Form:
    """All pairs of special values of a type."""
    type = Type((len(specials(dtype)) ** 2,), dtype)
    return Form(f"{dtype}/{label}", (Operand(type, left), Operand(type, right)), (Type(type.shape, result or dtype),))


def short(dtype: str) -> bool:
    """Whether a type has so few values that a case can have them all."""
    return bits(dtype) in (8, 16) and dtype != "i1"


def array(numbers: Sequence[int]) -> str:
    """An attribute that holds integers of 64 bits."""
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"
