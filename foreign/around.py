"""The text of somebody else's graph with the adapter's functions around it.

The graph's own text stays as it is, line by line. Behind it come four functions: two are the adapter's, written by JAX, one
says which row is judged, and one, of the contract, calls them all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hloracle.core.abi import JUDGED_ROW, Abi, Graph, Taken
from hloracle.core.dtypes import numpy_type
from hloracle.core.shown import quoted
from hloracle.foreign.adapter import EMBEDDING, FUNCTION, Adapter
from hloracle.foreign.binding import Weight
from hloracle.foreign.signature import head_of, quoted_symbol
from hloracle.localize.text import code_of


def adapted(graph_text: str, name: str, adapter: Adapter) -> Graph:
    """The graph of the contract: the text as it is, with its function private, and the three functions behind it."""
    abi, signature = adapter.abi(), adapter.binding.signature
    own = [a for a in abi.arguments if a.role != "weight"]
    wide = any(p.dtype in ("i64", "ui64", "f64") for p in (*signature.arguments, *signature.results))
    with jax.enable_x64(wide):
        given = [jax.ShapeDtypeStruct(a.shape, numpy_type(a.dtype)) for a in own]
        if adapter.embeds:
            given.append(jax.ShapeDtypeStruct((adapter.config.vocab_size, adapter.config.hidden_size), jnp.float32))
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        returned = [jax.ShapeDtypeStruct(r.shape, numpy_type(r.dtype)) for r in signature.results]
        before = jax.jit(adapter.inputs, keep_unused=True).lower(scalar, *given).as_text()
        after = jax.jit(adapter.results, keep_unused=True).lower(scalar, given[1], *returned).as_text()
    functions = [
        _judged_row(adapter),
        _functions(before, "adapt_inputs"),
        _functions(after, "adapt_results"),
        _main(adapter, abi),
    ]
    return Graph(
        name,
        _with_functions(graph_text, signature.function, functions),
        abi,
        inner=signature.function,
        rows=adapter.rows,
        takes=tuple(Taken(v.port.readable, v.what, v.port.index) for v in adapter.binding.inputs),
        unreturned=adapter.unreturned,
    )


def _functions(module: str, name: str) -> str:
    """The functions of a module that JAX wrote, with `main` called by this name and the others after it."""
    body = module[module.index("{\n") + 2 : module.rindex("}")]
    names = re.findall(r"func\.func (?:public|private) @([\w.]+)\(", body)
    for old in names:
        new = name if old == "main" else f"{name}.{old}"
        body = re.sub(rf"@{re.escape(old)}(?![\w.])", f"@{new}", body)
    return body.replace("func.func public", "func.func private")


def _judged_row(adapter: Adapter) -> str:
    """The function that says which row is judged at a position, or of a prompt of a length: each in turn."""
    return f"""
  func.func private @{JUDGED_ROW}(%arg0: tensor<i32>) -> tensor<i32> {{
    %c = stablehlo.constant dense<{adapter.rows}> : tensor<i32>
    %0 = stablehlo.remainder %arg0, %c : tensor<i32>
    return %0 : tensor<i32>
  }}"""


def _main(adapter: Adapter, abi: Abi) -> str:
    """The function of the contract, which calls the others."""
    binding = adapter.binding
    names = {a.name: f"%arg{i}" for i, a in enumerate(abi.arguments)}
    own = [a for a in abi.arguments if a.role != "weight"]
    extra = [names[EMBEDDING]] if adapter.embeds else []
    ports = [v.port for v in binding.inputs]

    def type_of(a: Any) -> str:
        return f"tensor<{'x'.join([*map(str, a.shape), a.dtype])}>"

    def types(some: Sequence[Any]) -> str:
        return ", ".join(type_of(one) for one in some)

    def values(prefix: str, count: int) -> list[str]:
        return [f"%{prefix}#{i}" if count > 1 else f"%{prefix}" for i in range(count)]

    def bound(prefix: str, count: int) -> str:
        return f"%{prefix}:{count} = " if count > 1 else f"%{prefix} = " if count else ""

    embedding = [a for a in abi.arguments if a.name == EMBEDDING] if adapter.embeds else []
    taken = iter(values("inputs", len(ports)))
    operands = [names[a.expression] if isinstance(a, Weight) else next(taken) for a in binding.arguments]
    results = binding.signature.results
    at = own[1].name
    return f"""
  func.func public @{FUNCTION}({", ".join(f"%arg{i}: {type_of(a)}" for i, a in enumerate(abi.arguments))}) -> ({types(abi.results)}) {{
    %row = func.call @{JUDGED_ROW}({names[at]}) : (tensor<i32>) -> tensor<i32>
    {bound("inputs", len(ports))}func.call @adapt_inputs({", ".join(["%row", *(names[a.name] for a in own), *extra])}) : (tensor<i32>, {types([*own, *embedding])}) -> ({types(ports)})
    {bound("results", len(results))}func.call @{quoted_symbol(binding.signature.function)}({", ".join(operands)}) : ({types(binding.signature.arguments)}) -> ({types(results)})
    {bound("contract", len(abi.results))}func.call @adapt_results({", ".join(["%row", names[at], *values("results", len(results))])}) : (tensor<i32>, {types([own[1], *results])}) -> ({types(abi.results)})
    func.return {", ".join(values("contract", len(abi.results)))} : {types(abi.results)}
  }}
"""


def _with_functions(text: str, function: str, functions: Sequence[str]) -> str:
    """A module's text with more functions at its end, and one of its own made private; every line stays where it is."""
    head = head_of(text, function)
    if not head:
        raise ValueError(f"the text has no {quoted(f'func.func @{function}(')}, as MLIR prints it")
    if taken := re.search(rf"@({FUNCTION}\w*|{JUDGED_ROW}|adapt_inputs|adapt_results)\b", code_of(text)):
        raise ValueError(f"the text has a function @{taken[1]}, a name that is needed here", "call it otherwise")
    private = re.sub(r"func\.func\s+(?:public\s+)?", "func.func private ", head[0])
    text = text[: head.start()] + private + text[head.end() :]
    end = _end_of_module(text)
    return text[:end] + "\n".join(functions) + text[end:]


def _end_of_module(text: str) -> int:
    """Where the brace stands that closes the module; the text's end where no module is written around the functions."""
    code = code_of(text)
    module = re.search(r"^[ \t]*(?:builtin\.)?module\b", code, re.MULTILINE)
    function = re.search(r"\bfunc\.func\b", code)
    if not module or (function and function.start() < module.start()):
        return len(text)
    begin = (
        _after_braces(code, module.end()) if re.match(r"[^{]*\battributes\b", code[module.end() :]) else module.end()
    )
    return _after_braces(code, begin) - 1


def _after_braces(code: str, start: int) -> int:
    """Where the first braces are closed that open after a place."""
    depth = 0
    for brace in re.finditer(r"[{}]", code[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.end()
    return len(code)
