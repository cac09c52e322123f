"""Products that are written for weights as they were held when a machine was tuned, and not as they are held now."""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.matrix import Matrix
from hloracle.mutants.registry import Right, mutant

PRODUCT = "emitters.matrix:MatrixBuilder.product"


def stale(weights: str, projection: str, fault: str) -> None:
    """Register a product that takes panels for the rows that were there before: there are as many numbers in both."""

    @mutant(f"tuned-stale-{weights}", "tuned", fault, anchor=projection, replaces=PRODUCT, weights=weights)
    def product(right: Right[Value], b: LayerBuilder, x: Value, weight: Value | Matrix) -> Value:
        if b.anchor != projection or isinstance(weight, Value):
            return right(b, x, weight)
        return right(b, x, b.as_f32(b.reshape(weight.parts[0], weight.shape)))


stale(
    "panels", "layers.1.mlp.gate_proj", "layer 1's gate_proj is written for rows, as tuned before weights lay in panels"
)
stale(
    "bf16",
    "layers.0.mlp.up_proj",
    "layer 0's up_proj is written for rows of bfloat16, as tuned before they lay in panels",
)
