"""Compilers that are wrong: they compile a graph of which one operation was changed.

A change goes by the operation and its types, never by its name or location, so that the same fault is found again in
a slice of the graph. The ABI stays, and so does what the graph's file says.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from hloracle.core.abi import Graph
from hloracle.core.errors import ToolchainError
from hloracle.mutants.registry import Right, mutant

Miscompile = Callable[[str], str]

LOADS = {
    "iree": "backends.iree:IreeCpu.load", "xla": "backends.xla:XlaCpu.load", "device": "backends.iree:IreeDevice.load",
    "both": "backends.iree:IreeCpu.load backends.xla:XlaCpu.load",
}  # fmt: skip
PROBS = "layers.0.self_attn.probs"

UNARY = r"(?m)^( *)(%\S+) = stablehlo\.{op} (%\S+) : tensor<(\S*)f32>(.*)$"
DOT = re.compile(
    r"(?m)^( *)(%\S+) = stablehlo\.dot_general (%\S+), (%\S+), contracting_dims = \[1\] x \[1\]"
    r"(.*) : \(tensor<(\d+x(\d+)x)f32>, (.*)$"
)


def miscompiles(
    id: str, mechanism: str, fault: str, *, anchor: str, compiler: str = "iree", note: str = ""
) -> Callable[[Miscompile], Miscompile]:
    """Register the function below, from a graph's text to the text that is compiled instead."""

    def register(wrong: Miscompile) -> Miscompile:
        part = "device" if compiler == "device" else "compiler"

        @mutant(id, mechanism, fault, anchor=anchor, replaces=LOADS[compiler], part=part, note=note)
        def load(right: Right[object], backend: object, graph: Graph) -> object:
            return right(backend, dataclasses.replace(graph, text=wrong(graph.text)))

        return wrong

    return register


def rounding(indent: str, operand: str, to: str, shape: str, dtype: str) -> str:
    """Two operations: `to` is `operand`, an f32 tensor, rounded to `dtype`."""
    wide, narrow, between = f"tensor<{shape}f32>", f"tensor<{shape}{dtype}>", f"%narrow_{to[1:]}"
    return (
        f"{indent}{between} = stablehlo.convert {operand} : ({wide}) -> {narrow}\n"
        f"{indent}{to} = stablehlo.convert {between} : ({narrow}) -> {wide}\n"
    )


def rounded_operands(text: str, op: str, dtype: str) -> str:
    """Every unary `op` on f32 rounds its operand to `dtype`."""

    def rounded(m: re.Match[str]) -> str:
        indent, result, operand, shape, place = m.groups()
        lhs = f"%rounded_{result[1:]}"
        call = f"{indent}{result} = stablehlo.{op} {lhs} : tensor<{shape}f32>{place}"
        return rounding(indent, operand, lhs, shape, dtype) + call

    return re.sub(UNARY.replace("{op}", op), rounded, text)


def rounded_products(text: str, chosen: Callable[[re.Match[str]], bool]) -> str:
    """Chosen products of two matrices round their left operand to bfloat16."""

    def rounded(m: re.Match[str]) -> str:
        indent, result, operand, rhs, precision, shape, _, rest = m.groups()
        if not chosen(m):
            return m[0]
        lhs = f"%rounded_{result[1:]}"
        dims = f"contracting_dims = [1] x [1]{precision}"
        call = f"{indent}{result} = stablehlo.dot_general {lhs}, {rhs}, {dims} : (tensor<{shape}f32>, {rest}"
        return rounding(indent, operand, lhs, shape, "bf16") + call

    return DOT.sub(rounded, text)


# ---- one operation


@miscompiles(
    "device-exponential", "wrong-device", "the device computes exp(x) as exp(x) - 1", anchor=PROBS, compiler="device"
)
@miscompiles(
    "both-exponential", "miscompiled-by-both", "IREE and XLA compile exp(x) as exp(x) - 1", anchor=PROBS, compiler="both",
    note="two compilers that agree: StableHLO's interpreter tells that the graph is right",
)  # fmt: skip
@miscompiles("xla-exponential", "miscompiled-by-xla", "XLA compiles exp(x) as exp(x) - 1", anchor=PROBS, compiler="xla")
@miscompiles("iree-exponential", "miscompiled-operation", "exp(x) is compiled as exp(x) - 1", anchor=PROBS)
def exponential(text: str) -> str:
    return text.replace("stablehlo.exponential ", "stablehlo.exponential_minus_one ")


@miscompiles(
    "both-rsqrt-float16", "miscompiled-by-both", "IREE's and XLA's rsqrt round their operand to float16",
    anchor="layers.0.input_layernorm", compiler="both",
)  # fmt: skip
@miscompiles(
    "xla-rsqrt-float16", "miscompiled-by-xla", "XLA's rsqrt rounds its operand to float16",
    anchor="layers.0.input_layernorm", compiler="xla",
)  # fmt: skip
@miscompiles(
    "iree-rsqrt-float16",
    "miscompiled-operation",
    "rsqrt rounds its operand to float16",
    anchor="layers.0.input_layernorm",
)
def rsqrt_float16(text: str) -> str:
    return rounded_operands(text, "rsqrt", "f16")


@miscompiles(
    "iree-logistic-float16",
    "miscompiled-operation",
    "logistic rounds its operand to float16",
    anchor="layers.0.mlp.act",
)
def logistic_float16(text: str) -> str:
    return rounded_operands(text, "logistic", "f16")


@miscompiles(
    "iree-select-exchanged", "miscompiled-operation", "select between floats takes the other branch",
    anchor="layers.0.self_attn.scores",
)  # fmt: skip
def select_exchanged(text: str) -> str:
    return re.sub(
        r"stablehlo\.select (%\S+), (%\S+), (%\S+) : (tensor<\S+xi1>, tensor<\S+xf32>)",
        r"stablehlo.select \1, \3, \2 : \4", text,
    )  # fmt: skip


@miscompiles(
    "both-reverse-dropped", "miscompiled-by-both", "IREE and XLA leave out reverse", anchor="layers.0.self_attn.q_rope",
    compiler="both",
)  # fmt: skip
@miscompiles("iree-reverse-dropped", "miscompiled-layout", "reverse is left out", anchor="layers.0.self_attn.q_rope")
def reverse_dropped(text: str) -> str:
    return re.sub(
        r"stablehlo\.reverse (%\S+), dims = \[\d+\] : (tensor<\S+>)", r"stablehlo.reshape \1 : (\2) -> \2", text
    )


@miscompiles(
    "iree-transpose-as-reshape", "miscompiled-layout", "a transpose of rank 4 moves nothing",
    anchor="layers.0.self_attn.context",
)  # fmt: skip
def transpose_as_reshape(text: str) -> str:
    four = r"dims = \[\d, \d, \d, \d\]"
    return re.sub(rf"stablehlo\.transpose (%\S+), {four} : (\(tensor<.*?\) -> )", r"stablehlo.reshape \1 : \2", text)


@miscompiles(
    "iree-update-at-start", "miscompiled-index", "dynamic_update_slice exchanges its second and third start index",
    anchor="k_cache.0",
)  # fmt: skip
def update_at_start(text: str) -> str:
    return re.sub(
        r"(stablehlo\.dynamic_update_slice %\S+, %\S+, %\S+), (%\S+), (%\S+), (%\S+ :)", r"\1, \3, \2, \4", text
    )


@miscompiles(
    "iree-constant-exponent",
    "miscompiled-constant",
    "a splat of 1/4 is stored as 1/8",
    anchor="layers.0.self_attn.scores",
)
def constant_exponent(text: str) -> str:
    return re.sub(r"(stablehlo\.constant dense<)(?:0\.25|2\.500000e-01)>", r"\g<1>0.125>", text)


@miscompiles(
    "iree-minimum-index",
    "miscompiled-operation",
    "the smallest of i32 comes out as the largest",
    anchor="token",
    note="the token that the graph picks is wrong, and no logit is",
)
def minimum_index(text: str) -> str:
    return re.sub(r"(applies stablehlo\.)minimum( .* : \(tensor<\d+xi32>)", r"\1maximum\2", text)


# ---- products


@miscompiles(
    "iree-product-tile", "miscompiled-product", "products over 16 (mod 32) round their left side to bfloat16",
    anchor="layers.0.mlp.down_proj",
)  # fmt: skip
def product_tile(text: str) -> str:
    return rounded_products(text, lambda m: int(m[7]) % 32 == 16)


@miscompiles(
    "iree-product-fused", "fusion", "a multiplication that only one product reads is fused into it, and rounded to bfloat16",
    anchor="layers.0.mlp.down_proj", note="right again once the product's left operand is a result: fusion_dependent",
)  # fmt: skip
def product_fused(text: str) -> str:
    made_by = dict(re.findall(r"(?m)^ *(%\S+) = stablehlo\.(\w+)", text))

    def fuses(m: re.Match[str]) -> bool:
        readers = re.findall(rf"{re.escape(m[3])}(?![\w.]).*", text)[1:]
        return made_by.get(m[3]) == "multiply" and len(readers) == 1

    return rounded_products(text, fuses)


# ---- a compiler that stops


@mutant(
    "iree-refuses-reverse", "compiler-crash", "a graph with a reverse does not compile",
    anchor="layers.0.self_attn.q_rope", replaces=LOADS["iree"], part="compiler",
    note="nothing runs: the operation is found by compiling slices",
)  # fmt: skip
def refuses_reverse(right: Right[object], backend: object, graph: Graph) -> object:
    if "stablehlo.reverse" in graph.text:
        raise ToolchainError("compile", "error: failed to legalize operation 'stablehlo.reverse'")
    return right(backend, graph)


# ---- a device that is wrong, and the processor is not


@miscompiles(
    "device-products-bfloat16", "wrong-device", "the device rounds the left side of every product to bfloat16",
    anchor="layers.0.self_attn.q_proj", compiler="device", note="what tensor cores may do unasked",
)  # fmt: skip
def device_products(text: str) -> str:
    return rounded_products(text, lambda m: True)


@miscompiles(
    "device-minimum-of-indices", "wrong-device", "the largest of i32 comes out as the smallest", anchor="token",
    compiler="device", note="as IREE 3.13 does it on GPUs with a minimum: only the token is wrong",
)  # fmt: skip
def device_maximum(text: str) -> str:
    return re.sub(r"(applies stablehlo\.)maximum( .* : \(tensor<\d+xi32>)", r"\1minimum\2", text)


@mutant(
    "device-kernel-fails", "wrong-device", "the device stops at a graph with a reverse", anchor="layers.0.self_attn.q_rope",
    replaces=LOADS["device"], part="device", note="it compiles: what fails is the call",
)  # fmt: skip
def kernel_fails(right: Right[object], backend: object, graph: Graph) -> object:
    execute = right(backend, graph)
    if "stablehlo.reverse" not in graph.text:
        return execute

    def fails(arguments: object) -> object:
        raise ToolchainError("run", "CUDA_ERROR_LAUNCH_FAILED")

    return fails
