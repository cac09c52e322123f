"""What must not be in a graph, even where every value is right."""

from __future__ import annotations

from collections.abc import Sequence

from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.mutants.registry import RIGHT_VALUES, Right, mutant

LINEAR = "emitters.layers:LayerBuilder.linear"
NO_VALUE = "no value changes: look at the operations"


@mutant(
    "custom-call", "foreign-operation", "a custom_call in layer 1's silu",
    anchor="layers.1.mlp.act", replaces="emitters.layers:LayerBuilder.logistic",
    note="neither XLA nor IREE compiles it: look at the operations",
)  # fmt: skip
def custom_call(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    if not b.anchor.startswith("layers.1."):
        return right(b, x)
    return b._append("custom_call", "call", x.type, f"@hloracle_logistic(%{x.name}) : ({x.type}) -> {x.type}")


@mutant(
    "chlo-operation", "foreign-operation", "a square of the chlo dialect in layer 2's first norm",
    anchor="layers.2.input_layernorm", replaces="emitters.layers:LayerBuilder.multiply", note=NO_VALUE,
    class_=RIGHT_VALUES,
)  # fmt: skip
def chlo_operation(right: Right[Value], b: LayerBuilder, lhs: Value, rhs: Value) -> Value:
    if lhs is not rhs or b.anchor != "layers.2.input_layernorm":
        return right(b, lhs, rhs)
    return b._append("square", "square", lhs.type, f"chlo.square %{lhs.name} : {lhs.type} -> {lhs.type}", generic=True)


@mutant(
    "optimization-barrier", "foreign-operation", "an optimization_barrier before layer 1's o_proj",
    anchor="layers.1.self_attn.o_proj", replaces=LINEAR, note=NO_VALUE, class_=RIGHT_VALUES,
)  # fmt: skip
def optimization_barrier(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None
) -> Value:
    return right(b, b.optimization_barrier(x) if b.anchor == "layers.1.self_attn.o_proj" else x, weight, bias)


@mutant(
    "float64-norm", "float64", "the final norm sums in float64",
    anchor="norm", replaces="emitters.layers:LayerBuilder.reduce",
    note="values change by rounding only: look at the types", class_=RIGHT_VALUES,
)  # fmt: skip
def float64_norm(
    right: Right[Value], b: LayerBuilder, operand: Value, init_value: Value, dimensions: Sequence[int], body: str
) -> Value:
    if b.anchor != "norm":
        return right(b, operand, init_value, dimensions, body)
    total = right(b, b.convert(operand, "f64"), b.constant(0.0, "f64"), dimensions, body)
    return b.convert(total, "f32")


@mutant(
    "matmul-duplicated", "duplicated-matmul", "layer 1's up_proj is the mean of two equal products",
    anchor="layers.1.mlp.up_proj", replaces=LINEAR, note=NO_VALUE, class_=RIGHT_VALUES,
)  # fmt: skip
def matmul_duplicated(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None
) -> Value:
    y = right(b, x, weight, bias)
    if b.anchor != "layers.1.mlp.up_proj":
        return y
    return b.multiply(b.add(y, right(b, x, weight, bias)), b.f32(0.5, y.shape))


@mutant(
    "matmul-dead", "duplicated-matmul", "layer 2's gate_proj is computed twice, and once for nobody",
    anchor="layers.2.mlp.gate_proj", replaces=LINEAR, note=NO_VALUE, class_=RIGHT_VALUES,
)  # fmt: skip
def matmul_dead(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if b.anchor == "layers.2.mlp.gate_proj":
        right(b, x, weight, bias)
    return right(b, x, weight, bias)


@mutant(
    "does-not-verify", "invalid", "layer 1's silu says that it makes another type than it does",
    anchor="layers.1.mlp.act", replaces="emitters.layers:LayerBuilder.logistic", note="the graph does not verify",
)  # fmt: skip
def does_not_verify(right: Right[Value], b: LayerBuilder, x: Value) -> Value:
    if not b.anchor.startswith("layers.1."):
        return right(b, x)
    narrow = TensorType((*x.shape[:-1], x.shape[-1] - 1), x.dtype)
    return b._append(
        "logistic", "logistic", x.type, f'"stablehlo.logistic"(%{x.name}) : ({narrow}) -> {x.type}', generic=True
    )
