"""Calls of private functions are taken in, and pieces that hold regions stay whole: by text, and by what they compute."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import operations, parse
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from models import interpreter, model

from hloracle.core.abi import Abi, Graph
from hloracle.core.errors import InputError
from hloracle.localize import inline
from hloracle.localize.anatomy import Anatomy, op_lines
from hloracle.localize.inline import copied, inline_calls, nested, operands_of
from hloracle.localize.text import function_named

T = "tensor<4xf32>"
X = np.array([1.0, 2.0, -3.0, 0.5], np.float32)


def function(name: str, *lines: str, arguments: str = f"%a: {T}", results: str = T, public: bool = False) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"  func.func {'public' if public else 'private'} @{name}({arguments}) -> {results} {{\n{body}  }}\n"


def call(result: str, callee: str, value: str) -> str:
    return f"{result} = func.call @{callee}({value}) : ({T}) -> {T}"


def composite(result: str, callee: str, value: str) -> str:
    """As torch's exporters write it: an operation of some name that a function takes apart."""
    return f'{result} = stablehlo.composite "my.{callee}" {value} {{decomposition = @{callee}}} : ({T}) -> {T}'


def module(*functions: str) -> str:
    return f"module @m {{\n{''.join(functions)}}}\n"


@contextmanager
def inlined(text: str) -> Iterator[tuple[Any, bool]]:
    """The module, verified, and whether there was any call."""
    with mlir.make_ir_context():
        parsed = ir.Module.parse(text)
        found = inline_calls(parsed, "main")
        assert parsed.operation.verify()
        yield parsed, found


def names(parsed: Any) -> list[str]:
    """Of the entry point's operations, those in regions left out."""
    return [o.operation.name for o in function_named(parsed, "main").regions[0].blocks[0].operations]


def computed(text: str, *arguments: np.ndarray) -> list[np.ndarray]:
    """By StableHLO's own interpreter."""
    abi = Abi("decode", (), ())
    execute = interpreter().load(Graph("m", text, abi))
    return [np.asarray(r) for r in execute(list(arguments))]


def same(text: str, *arguments: np.ndarray) -> list[str]:
    """That it computes what it did, with no call left in the entry point; the entry point's operations."""
    with inlined(text) as (parsed, found):
        assert found
        after = str(parsed)
        left = names(parsed)
    assert not {"func.call", "stablehlo.composite"} & set(left)
    for right, got in zip(computed(text, *arguments), computed(after, *arguments), strict=True):
        np.testing.assert_array_equal(right, got)
    return left


NEGATE = function("negate", f"%r = stablehlo.negate %a : {T}", f"func.return %r : {T}")
TWICE = function("twice", call("%b", "negate", "%a"), f"%r = stablehlo.add %a, %b : {T}", f"%s = stablehlo.multiply %r, %b : {T}",
                 call("%t", "negate", "%s"), f"func.return %t : {T}")  # fmt: skip


def main(*lines: str, **other: Any) -> str:
    return function("main", *lines, public=True, **other)


def test_nothing_to_inline() -> None:
    text = module(main(f"%r = stablehlo.negate %a : {T}", f"func.return %r : {T}"), NEGATE)
    with inlined(text) as (parsed, found):
        assert not found
        assert str(parsed) == str(parse(text))


def test_a_call() -> None:
    text = module(main(call("%r", "negate", "%a"), f"func.return %r : {T}"), NEGATE)
    assert same(text, X) == ["stablehlo.negate", "func.return"]


def test_nested_calls_and_a_function_that_is_called_twice() -> None:
    """Each use gets a copy of its own; the operands of one are the results of the other."""
    body = [call("%b", "twice", "%a"), call("%c", "negate", "%b"), call("%d", "twice", "%c"),
            f"%r = stablehlo.subtract %d, %b : {T}", f"func.return %r : {T}"]  # fmt: skip
    left = same(module(main(*body), NEGATE, TWICE), X)
    twice = ["stablehlo.negate", "stablehlo.add", "stablehlo.multiply", "stablehlo.negate"]
    assert left == [*twice, "stablehlo.negate", *twice, "stablehlo.subtract", "func.return"]


def test_a_composite_is_a_call_of_its_decomposition() -> None:
    """Of one that calls, and is called, too."""
    outer = function("outer", composite("%b", "twice", "%a"), f"func.return %b : {T}")
    body = [composite("%b", "negate", "%a"), call("%r", "outer", "%b"), f"func.return %r : {T}"]
    left = same(module(main(*body), NEGATE, TWICE, outer), X)
    twice = ["stablehlo.negate", "stablehlo.add", "stablehlo.multiply", "stablehlo.negate"]
    assert left == ["stablehlo.negate", *twice, "func.return"]


def test_results_in_another_order_and_arguments_passed_through() -> None:
    swap = function("swap", f"%r = stablehlo.negate %a : {T}", f"func.return %b, %r, %a : {T}, {T}, {T}",
                    arguments=f"%a: {T}, %b: {T}", results=f"({T}, {T}, {T})")  # fmt: skip
    body = [f"%r:3 = func.call @swap(%a, %a) : ({T}, {T}) -> ({T}, {T}, {T})",
            f"%s:3 = func.call @swap(%r#1, %r#0) : ({T}, {T}) -> ({T}, {T}, {T})",
            f"func.return %s#0, %s#1, %r#2 : {T}, {T}, {T}"]  # fmt: skip
    assert same(module(main(*body, results=f"({T}, {T}, {T})"), swap), X) == ["stablehlo.negate"] * 2 + ["func.return"]


def reduce(result: str, value: str, start: str, inside: str) -> list[str]:
    """A sum whose region adds `inside`, a value from outside, to each term."""
    return [
        f'{result} = "stablehlo.reduce"({value}, {start}) <{{dimensions = array<i64: 0>}}> ({{',
        "^bb0(%p: tensor<f32>, %q: tensor<f32>):",
        f"  %u = stablehlo.add %q, {inside} : tensor<f32>",
        "  %v = stablehlo.add %p, %u : tensor<f32>",
        "  stablehlo.return %v : tensor<f32>",
        f"}}) : ({T}, tensor<f32>) -> tensor<f32>",
    ]


def test_a_region_that_captures_what_is_outside_of_it() -> None:
    """In a function that is called, so that what it captures is an argument there, and another value at each call."""
    sums = function("sums", "%z = stablehlo.constant dense<0.0> : tensor<f32>", *reduce("%r", "%a", "%z", "%c"),
                    "func.return %r : tensor<f32>", arguments=f"%a: {T}, %c: tensor<f32>", results="tensor<f32>")  # fmt: skip
    body = ["%one = stablehlo.constant dense<1.0> : tensor<f32>",
            f"%s = func.call @sums(%a, %one) : ({T}, tensor<f32>) -> tensor<f32>",
            f"%t = func.call @sums(%a, %s) : ({T}, tensor<f32>) -> tensor<f32>", "func.return %t : tensor<f32>"]  # fmt: skip
    text = module(main(*body, results="tensor<f32>"), sums)
    assert same(text, X).count("stablehlo.reduce") == 2
    # 0.5 + 4 * 1, and with that for the 1.
    assert computed(text, X)[0] == np.float32(0.5 + 4 * (0.5 + 4))
    with inlined(text) as (parsed, _):
        block = function_named(parsed, "main").regions[0].blocks[0]
        first, second = (o for o in block.operations if o.operation.name == "stablehlo.reduce")
        assert block.operations[0].results[0] in operands_of(first)
        assert first.results[0] in operands_of(second)
        # What a region computes itself, and its arguments, is none of it.
        own = {r for inner in nested(first) for r in inner.results}
        assert len(own) == 2
        assert not own & set(operands_of(first))
        assert len(operands_of(first)) == len(set(operands_of(first))) == 3


def loop(times: int, inside: str, value: str, type: str = T) -> list[str]:
    """`%w#1`: what is made of a value, so many times over; `inside` makes `%o` of `%v`."""
    return [
        "%zero = stablehlo.constant dense<0> : tensor<i32>", f"%many = stablehlo.constant dense<{times}> : tensor<i32>",
        "%step = stablehlo.constant dense<1> : tensor<i32>",
        f"%w:2 = stablehlo.while(%i = %zero, %v = {value}) : tensor<i32>, {type}",
        "cond {",
        "  %go = stablehlo.compare LT, %i, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>",
        "  stablehlo.return %go : tensor<i1>",
        "} do {",
        "  %n = stablehlo.add %i, %step : tensor<i32>",
        f"  {inside}",
        f"  stablehlo.return %n, %o : tensor<i32>, {type}",
        "}",
    ]  # fmt: skip


def test_a_call_in_the_body_of_a_while_stays() -> None:
    text = module(
        main(*loop(3, call("%o", "twice", "%v"), "%a"), call("%x", "negate", "%w#1"), f"func.return %x : {T}"),
        NEGATE,
        TWICE,
    )
    with inlined(text) as (parsed, found):
        assert found
        after = str(parsed)
        assert names(parsed)[-3:] == ["stablehlo.while", "stablehlo.negate", "func.return"]
        assert "func.call @twice" in after
    np.testing.assert_array_equal(computed(text, X)[0], computed(after, X)[0])


@pytest.mark.parametrize(
    "functions",
    [
        [function("f", call("%b", "f", "%a"), f"func.return %b : {T}")],
        [function("f", call("%b", "g", "%a"), f"func.return %b : {T}"),
         function("g", call("%b", "f", "%a"), call("%c", "f", "%b"), f"func.return %c : {T}")],
        [function("f", composite("%b", "g", "%a"), f"func.return %b : {T}"),
         function("g", call("%b", "f", "%a"), f"func.return %b : {T}")],
    ],
    ids=["itself", "each other", "a composite"],
)  # fmt: skip
def test_recursion_is_refused(functions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MOST_CALLS", 100)
    text = module(main(call("%r", "f", "%a"), f"func.return %r : {T}"), *functions)
    with pytest.raises(InputError, match="@main: calls functions without end"), inlined(text):
        pass


def test_what_is_declared_and_has_no_body_stays() -> None:
    text = module(main(call("%b", "other", "%a"), call("%r", "negate", "%b"), f"func.return %r : {T}"),
                  f"  func.func private @other({T}) -> {T}\n", NEGATE)  # fmt: skip
    with inlined(text) as (parsed, found):
        assert found
        assert names(parsed) == ["func.call", "stablehlo.negate", "func.return"]


# ---- where an operation stands

LOCATED = module(
    main(f'%x = stablehlo.abs %a : {T} loc("norm")', call("%r", "f", "%x") + ' loc("layers.0.mlp")',
         f"func.return %r : {T}"),
    function("f", f'%p = stablehlo.negate %a : {T} loc("layers.0.mlp.act")', f'%q = stablehlo.sign %p : {T} loc("lm_head")',
             f"func.return %q : {T}"),
)  # fmt: skip


def test_operations_keep_their_locations() -> None:
    with inlined(LOCATED) as (parsed, _):
        block = function_named(parsed, "main").regions[0].blocks[0]
        found = {o.operation.name: o.location.name_str for o in list(block.operations)[:-1]}
    assert found == {"stablehlo.abs": "norm", "stablehlo.negate": "layers.0.mlp.act", "stablehlo.sign": "lm_head"}


def test_operations_keep_their_lines() -> None:
    """Those of the function that they are written in."""
    with inlined(LOCATED) as (parsed, _):
        operations = list(function_named(parsed, "main").regions[0].blocks[0].operations)
        found = op_lines(Graph("g", LOCATED, Abi("decode", (), ())), operations)
    lines = LOCATED.splitlines()
    assert {i: line for i, (line, _) in found.items()} == {
        i: next(n for n, line in enumerate(lines, 1) if f"stablehlo.{name}" in line)
        for i, name in enumerate(["abs", "negate", "sign"])
    } | {3: next(n for n, line in enumerate(lines, 1) if "func.return %r" in line)}
    for line, text in found.values():
        assert text.strip() == lines[line - 1].strip()


# ---- in a graph that is taken apart


@pytest.mark.parametrize("inside", [call, composite])
def test_a_function_comes_along_with_the_piece_that_calls_it(inside: Callable[[str, str, str], str]) -> None:
    """From inside a region, and what it calls itself; each once, and no others. The piece computes what it did."""
    graph, anchor = model("plain").graph("emitter", "decode"), "layers.1.mlp.act"
    line = next(n for n in graph.text.splitlines() if "stablehlo.logistic" in n and anchor in n)
    result, operand, type = re.findall(r"(%\S+) = stablehlo.logistic (%\S+) : (\S+)", line)[0]
    # Once, through two functions.
    lines = "\n".join(loop(1, inside("%o", "act", "%v"), operand, type)).replace("%zero", "%none") + f' loc("{anchor}")'
    act = function("act", inside("%b", "inner", "%a"), f"func.return %b : {T}")
    inner = function("inner", f"%b = stablehlo.logistic %a : {T}", f"func.return %b : {T}")
    head, _, tail = graph.text.replace(line, lines).rpartition("}")
    text = (re.sub(rf"{result}\b(?!\.)", "%w#1", head) + act + inner + NEGATE + "}" + tail).replace(T, type)
    anatomy = Anatomy(replace(graph, text=text), model("plain").config)
    piece = anatomy.subgraph(anchor)
    assert re.findall(r"func\.func .*?@(\w+)\(", piece.graph.text) == ["main", "act", "inner"]
    shapes = {a.name: a.shape for a in piece.graph.abi.arguments}

    def value(name: str) -> np.ndarray:
        return np.random.default_rng(len(name)).normal(size=shapes[name]).astype(np.float32)

    bench, plain = model("plain").bench(), model("plain").anatomy("emitter", "decode").subgraph(anchor).graph
    for wanted, got in zip(bench.run(plain, value), bench.run(piece.graph, value), strict=True):
        np.testing.assert_array_equal(wanted, got)
    (step,) = (s for s in anatomy.steps(piece) if s.name == "stablehlo.while")
    assert "func.func private @act" in step.graph.text


def test_a_function_that_is_not_taken_in_comes_along_too() -> None:
    """One of several blocks, as a graph that branches has."""
    graph, anchor = model("plain").graph("emitter", "decode"), "layers.1.mlp.act"
    line = next(n for n in graph.text.splitlines() if "stablehlo.logistic" in n and anchor in n)
    result, operand, type = re.findall(r"(%\S+) = stablehlo.logistic (%\S+) : (\S+)", line)[0]
    act = function(
        "act", f"%b = stablehlo.logistic %a : {T}", f"cf.br ^bb1(%b : {T})", f"^bb1(%c: {T}):", f"func.return %c : {T}"
    )
    head, _, tail = graph.text.replace(line, call(result, "act", operand) + f' loc("{anchor}")').rpartition("}")
    anatomy = Anatomy(replace(graph, text=f"{head}{act}}}{tail}".replace(T, type)), model("plain").config)
    piece = anatomy.subgraph(anchor)
    assert re.findall(r"func\.func .*?@(\w+)\(", piece.graph.text) == ["main", "act"]
    assert [s.name for s in anatomy.steps(piece)] == ["func.call", *["stablehlo.multiply"] * 2]


def test_copies_read_the_new_values() -> None:
    """In regions as well, and leave what they were copied from as it was."""
    text = module(main("%z = stablehlo.constant dense<0.0> : tensor<f32>", "%y = stablehlo.constant dense<2.0> : tensor<f32>",
                       *reduce("%r", "%a", "%z", "%y"), "func.return %r : tensor<f32>", results="tensor<f32>"))  # fmt: skip
    parsed = parse(text)
    before = str(parsed)
    zero, two, total = (o for o in operations(parsed) if o.name in ("stablehlo.constant", "stablehlo.reduce"))
    with parsed.context, ir.Location.unknown():
        other = ir.Module.create()
        new: dict[Any, Any] = {}
        with ir.InsertionPoint(other.body):
            fresh = [copied(o, new) for o in (zero, two)]
            new[total.operands[0]] = fresh[0].results[0]
            clone = copied(total, new)
        assert new[total.results[0]] == clone.results[0]
        assert clone.operands[1] == fresh[0].results[0]
        (inner,) = (o for o in nested(clone) if fresh[1].results[0] in list(o.operands))
        assert inner.operation.name == "stablehlo.add"
        assert set(operands_of(clone)) == {fresh[0].results[0], fresh[1].results[0]}
    assert str(parsed) == before
