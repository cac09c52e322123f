"""The feed-forward parts that several architectures share, in JAX: gated MLPs and mixtures of experts.

Mirrors `emitters/mlp.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from jax import Array

from hloracle.reference.model.config import Config
from hloracle.reference.oracle.layers import (
    ACTIVATIONS,
    ExpertWeights,
    experts,
    halves,
    linear,
    route,
    scope,
    wide,
)
from hloracle.reference.oracle.model import Weights


def gated_mlp(x: Array, w: Weights, config: Config) -> Array:
    """x [T, E] -> [T, E]. Source: `LlamaMLP`."""
    with scope("gate_proj"):
        gate = linear(x, *w.linear("gate_proj"))  # [T, F]
    with scope("up_proj"):
        up = linear(x, *w.linear("up_proj"))  # [T, F]
    with scope("act"):
        act = ACTIVATIONS[config.hidden_act](gate) * up
    with scope("down_proj"):
        return linear(act, *w.linear("down_proj"))  # [T, E]


def fused_mlp(x: Array, w: Weights, config: Config) -> Array:
    """x [T, E] -> [T, E], gate and up in one projection. Source: `Phi3MLP`."""
    with scope("gate_up_proj"):
        gate_up = linear(x, *w.linear("gate_up_proj"))  # [T, 2*F]
    with scope("act"):
        gate, up = halves(gate_up)  # [T, F] each
        act = ACTIVATIONS[config.hidden_act](gate) * up
    with scope("down_proj"):
        return linear(act, *w.linear("down_proj"))  # [T, E]


def moe(x: Array, w: Weights, config: Config) -> Array:
    """x [T, E] -> [T, E], through the experts that each token chooses. Source: `MixtralSparseMoeBlock`."""
    assert config.experts
    with scope("gate"):
        logits = linear(wide(x), w["gate.weight"])  # [T, X]
    with scope("routing"):
        routing = route(logits, config.experts, w.get("gate.e_score_correction_bias"))  # [T, X]
    with scope("experts"):

        def gated(gate_up: Array) -> Array:
            gate, up = halves(gate_up)
            return ACTIVATIONS[config.hidden_act](gate) * up

        weights = ExpertWeights(w["experts.gate_up_proj"], w["experts.down_proj"])
        return experts(x, routing, weights, config.experts, gated)
