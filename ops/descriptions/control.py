"""Operations with regions and functions, tuples, barriers and constants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hloracle.ops.describe import MOVED, Bound, Description, Form, Operand
from hloracle.ops.descriptions.shapes import ALL, dims
from hloracle.ops.values import anywhere, finite, given, normal, special, specials
from hloracle.ops.write import elements, region
from hloracle.semantics.program import Type

Shape = tuple[int, ...]
ROUNDED = Bound("each element is the result of one addition or multiplication", ulp=0.5)
TYPES = ("f32", "bf16", "f16", "f64", "i32", "i64", "i8", "ui32")
COUNT = Type((), "i32")


def _while() -> Iterator[Form]:
    for dtype in TYPES:
        for turns in (0, 1, 2, 7, 100):
            for shape in ((), (3,), (2, 5), (0, 3)):
                yield _loop(f"{dtype}/{dims(shape)}/{turns}-turns", dtype, shape, turns)
    for dtype in ("f32", "bf16", "i32"):
        for turns in (0, 3, 11):
            yield _cache_loop(f"{dtype}/cache/{turns}-turns", dtype, turns)
            yield _nested(f"{dtype}/nested/{turns}-turns", dtype, turns)


def _loop(label: str, dtype: str, shape: Shape, turns: int) -> Form:
    """Turns the operand round and negates it by another one, as often as an argument says."""
    type = Type(shape, dtype)
    carried = [COUNT, COUNT, type, type]
    condition = region(
        carried,
        f"%c = stablehlo.compare LT, %a0, %a1, SIGNED : ({COUNT}, {COUNT}) -> tensor<i1>",
        "%c",
        [Type((), "i1")],
    )
    step = f"%one = stablehlo.constant dense<1> : {COUNT}\n    %i = stablehlo.add %a0, %one : {COUNT}"
    body = region(carried, step, "%i, %a1, %a3, %a2", carried)
    operands = (
        Operand(COUNT, given([0])), Operand(COUNT, given([turns])), Operand(type, anywhere), Operand(type, anywhere),
    )  # fmt: skip
    return Form(label, operands, tuple(carried), "", (condition, body))


def _cache_loop(label: str, dtype: str, turns: int) -> Form:
    """Writes a row of a cache on every turn, as a decode loop does."""
    cache, row = Type((13, 4), dtype), Type((1, 4), dtype)
    carried = [COUNT, COUNT, cache, row]
    condition = region(
        carried,
        f"%c = stablehlo.compare LT, %a0, %a1, SIGNED : ({COUNT}, {COUNT}) -> tensor<i1>",
        "%c",
        [Type((), "i1")],
    )
    step = (
        f"%one = stablehlo.constant dense<1> : {COUNT}\n    %zero = stablehlo.constant dense<0> : {COUNT}\n"
        f"    %i = stablehlo.add %a0, %one : {COUNT}\n"
        f"    %w = stablehlo.dynamic_update_slice %a2, %a3, %a0, %zero : ({cache}, {row}, {COUNT}, {COUNT}) -> {cache}"
    )
    body = region(carried, step, "%i, %a1, %w, %a3", carried)
    operands = (
        Operand(COUNT, given([0])), Operand(COUNT, given([turns])), Operand(cache, anywhere), Operand(row, anywhere),
    )  # fmt: skip
    says = "while: the values of one turn are the arguments of the next"
    return Form(label, operands, tuple(carried), "", (condition, body), aliased={2: 2}, tests=says)


def _nested(label: str, dtype: str, turns: int) -> Form:
    """A loop within a loop, whose condition takes a value from around it."""
    type = Type((5,), dtype)
    carried = [COUNT, type]
    less = f"%c = stablehlo.compare LT, %a0, %1, SIGNED : ({COUNT}, {COUNT}) -> tensor<i1>"
    condition = region(carried, less, "%c", [Type((), "i1")])
    inner = (
        f"%zero = stablehlo.constant dense<0> : {COUNT}\n    %two = stablehlo.constant dense<3> : {COUNT}\n"
        f"    %one = stablehlo.constant dense<1> : {COUNT}\n"
        f'    %w:2 = "stablehlo.while"(%zero, %a1) ({{\n    ^bb0(%j: {COUNT}, %x: {type}):\n'
        f"      %d = stablehlo.compare LT, %j, %two, SIGNED : ({COUNT}, {COUNT}) -> tensor<i1>\n"
        f"      stablehlo.return %d : tensor<i1>\n    }}, {{\n    ^bb0(%j: {COUNT}, %x: {type}):\n"
        f"      %k = stablehlo.add %j, %one : {COUNT}\n      %y = stablehlo.reverse %x, dims = [0] : {type}\n"
        f"      stablehlo.return %k, %y : {COUNT}, {type}\n    }}) : ({COUNT}, {type}) -> ({COUNT}, {type})\n"
        f"    %i = stablehlo.add %a0, %one : {COUNT}"
    )
    body = region(carried, inner, "%i, %w#1", carried)
    operands = (Operand(COUNT, given([0])), Operand(COUNT, given([turns])), Operand(type, anywhere))
    text = f'%r:2 = "stablehlo.while"(%0, %2) ({{{condition}}}, {{{body}}}) : ({COUNT}, {type}) -> ({COUNT}, {type})'
    says = "while with a loop in its body, and a limit from around it"
    return Form(label, operands, tuple(carried), body=text, tests=says)


def _if() -> Iterator[Form]:
    for dtype in (*TYPES, "i1"):
        for shape in ((), (2, 5), (0, 3)):
            for chosen in (True, False):
                type = Type(shape, dtype)
                regions = (region([], "", "%1", [type]), region([], "", "%2", [type]))
                operands = (Operand(Type((), "i1"), given([chosen])), Operand(type, anywhere), Operand(type, anywhere))
                yield Form(
                    f"{dtype}/{dims(shape)}/{chosen}".lower(), operands, (type,), body=_branches("if", regions, type)
                )


def _case() -> Iterator[Form]:
    for dtype in TYPES:
        for shape in ((), (2, 5), (0, 3)):
            for which in (0, 1, 2, 3, -1, 100, -(2**31), 2**31 - 1):
                type = Type(shape, dtype)
                regions = tuple(region([], "", f"%{i}", [type]) for i in (1, 2, 3))
                operands = (Operand(COUNT, given(np.array([which]))), *(Operand(type, anywhere) for _ in range(3)))
                says = "case: if index is not in [0, N), the last branch" if not 0 <= which < 3 else ""
                yield Form(
                    f"{dtype}/{dims(shape)}/{which}",
                    operands,
                    (type,),
                    body=_branches("case", regions, type),
                    tests=says,
                )


def _branches(name: str, regions: tuple[str, ...], type: Type) -> str:
    """The operands after the first are taken by the branches from around them."""
    given = "tensor<i1>" if name == "if" else str(COUNT)
    return f'%r = "stablehlo.{name}"(%0) ({", ".join(f"{{{r}}}" for r in regions)}) : ({given}) -> ({type})'


def _function(type: Type) -> str:
    return (
        f"func.func private @inner(%x: {type}, %y: {type}) -> {type} {{\n"
        f"  %s = stablehlo.add %x, %y : {type}\n  return %s : {type}\n}}"
    )


def _call() -> Iterator[Form]:
    for dtype in TYPES:
        for shape in ((), (2, 5), (0, 3)):
            type = Type(shape, dtype)
            operands = (Operand(type, normal()), Operand(type, normal()))
            text = f"%r = func.call @inner(%0, %1) : ({type}, {type}) -> {type}"
            yield Form(f"{dtype}/{dims(shape)}", operands, (type,), body=text, functions=_function(type))


def _composite() -> Iterator[Form]:
    for dtype in TYPES:
        for shape in ((), (2, 5), (0, 3)):
            for name, more in (
                ("plain", ""),
                ("attributes", ", composite_attributes = {eps = 1.0e-06 : f32, heads = 3 : i32}, version = 1 : i32"),
            ):
                type = Type(shape, dtype)
                operands = (Operand(type, normal()), Operand(type, normal()))
                attributes = f'name = "hloracle.add", decomposition = @inner{more}'
                yield Form(f"{dtype}/{dims(shape)}/{name}", operands, (type,), attributes, functions=_function(type))


def _barrier() -> Iterator[Form]:
    for dtype in ALL:
        for shape in ((), (2, 5), (0, 3)):
            types = (Type(shape, dtype), Type((3,), "i32"))
            yield Form(f"{dtype}/{dims(shape)}", tuple(Operand(t, anywhere) for t in types), types)


def _tuple(name: str) -> Iterator[Form]:
    for dtype in ("f32", "bf16", "i32", "i1"):
        for index in (0, 1):
            types = (Type((2, 3), dtype), Type((), "f32"))
            pair = f"tuple<{types[0]}, {types[1]}>"
            text = (
                f"%t = stablehlo.tuple %0, %1 : {pair}\n"
                f"  %r = stablehlo.get_tuple_element %t[{index}] : ({pair}) -> {types[index]}"
            )
            yield Form(
                f"{dtype}/{name}-{index}", tuple(Operand(t, anywhere) for t in types), (types[index],), body=text
            )


def _map() -> Iterator[Form]:
    for dtype in ("f32", "bf16", "f64", "i32"):
        for shape in ((3,), (2, 5), (0, 3), (2, 3, 4)):
            type, scalar = Type(shape, dtype), Type((), dtype)
            how = region([scalar, scalar], f"%c = stablehlo.add %a0, %a1 : {scalar}", "%c", [scalar])
            operands = (Operand(type, normal()), Operand(type, normal()))
            attributes = f"dimensions = array<i64: {', '.join(map(str, range(len(shape))))}>"
            yield Form(f"{dtype}/{dims(shape)}", operands, (type,), attributes, (how,))


def _constant() -> Iterator[Form]:
    for dtype in (*ALL, "f8E4M3FN", "f8E5M2"):
        for shape in ((), (1,), (7,), (2, 3, 5), (0, 3)):
            rng = np.random.default_rng(len(shape))
            yield _written(f"{dtype}/{dims(shape)}", dtype, shape, finite(rng, shape, dtype))
        values = specials(dtype)
        says = "a constant has the value that its literal says, special ones too"
        yield _written(
            f"{dtype}/special", dtype, values.shape, special(np.random.default_rng(0), values.shape, dtype), says
        )
        one = normal()(np.random.default_rng(1), (), dtype)
        text = f"%r = stablehlo.constant dense<{elements(one, dtype)}> : {Type((5, 7), dtype)}"
        yield Form(f"{dtype}/splat", (), (Type((5, 7), dtype),), body=text)
    large = np.random.default_rng(2).standard_normal((61, 53)).astype(np.float32)
    text = f'%r = stablehlo.constant dense<"0x{large.tobytes().hex().upper()}"> : tensor<61x53xf32>'
    yield Form("f32/bytes", (), (Type((61, 53), "f32"),), body=text)


def _written(label: str, dtype: str, shape: Shape, array: np.ndarray, tests: str = "") -> Form:
    text = f"%r = stablehlo.constant dense<{elements(array, dtype)}> : {Type(shape, dtype)}"
    return Form(label, (), (Type(shape, dtype),), body=text, tests=tests)


DESCRIPTIONS = (
    Description("stablehlo.while", "while: executes body 0 or more times while cond outputs true", MOVED, _while),
    Description(
        "stablehlo.if", "if: the output of exactly one function from true_branch or false_branch, by pred", MOVED, _if
    ),
    Description("stablehlo.case", "case: the output of exactly one function from branches, by index", MOVED, _case),
    Description("func.call", "the results of a function", ROUNDED, _call),
    Description(
        "stablehlo.composite",
        "composite: the semantics of the op is implemented by the decomposition attribute",
        ROUNDED,
        _composite,
    ),
    Description("stablehlo.optimization_barrier", "the operation does not change its operands", MOVED, _barrier),
    Description("stablehlo.tuple", "tuple: val gives result", MOVED, lambda: _tuple("of")),
    Description(
        "stablehlo.get_tuple_element",
        "get_tuple_element: the element at index of the operand",
        MOVED,
        lambda: _tuple("element"),
    ),
    Description("stablehlo.map", "map: computation is applied to inputs along dimensions", ROUNDED, _map),
    Description("stablehlo.constant", "constant: an output tensor from a constant value", MOVED, _constant),
)
