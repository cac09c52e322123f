"""The feed-forward parts that several architectures share: gated MLPs and mixtures of experts.

Mirrors `reference/oracle/mlp.py`. Legend: see `layers.py`.
"""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import ExpertWeights, LayerBuilder
from hloracle.emitters.model import Weights
from hloracle.reference.model.config import Config


def gated_mlp(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """x [T, E] -> [T, E]. Source: `LlamaMLP`."""
    with b.scope("gate_proj"):
        gate = b.linear(x, *w.linear("gate_proj"))  # [T, F]
    with b.scope("up_proj"):
        up = b.linear(x, *w.linear("up_proj"))  # [T, F]
    with b.scope("act"):
        act = b.multiply(b.activation(config.hidden_act, gate), up)
    with b.scope("down_proj"):
        return b.linear(act, *w.linear("down_proj"))  # [T, E]


def fused_mlp(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """x [T, E] -> [T, E], gate and up in one projection. Source: `Phi3MLP`."""
    with b.scope("gate_up_proj"):
        gate_up = b.linear(x, *w.linear("gate_up_proj"))  # [T, 2*F]
    with b.scope("act"):
        gate, up = b.halves(gate_up)  # [T, F] each
        act = b.multiply(b.activation(config.hidden_act, gate), up)
    with b.scope("down_proj"):
        return b.linear(act, *w.linear("down_proj"))  # [T, E]


def moe(b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    """x [T, E] -> [T, E], through the experts that each token chooses. Source: `MixtralSparseMoeBlock`."""
    assert config.experts
    with b.scope("gate"):
        logits = b.linear(b.as_f32(x), w["gate.weight"])  # [T, X]
    with b.scope("routing"):
        routing = b.route(logits, config.experts, w.get("gate.e_score_correction_bias"))  # [T, X]
    with b.scope("experts"):

        def gated(gate_up: Value) -> Value:
            gate, up = b.halves(gate_up)
            return b.multiply(b.activation(config.hidden_act, gate), up)

        weights = ExpertWeights(w["experts.gate_up_proj"], w["experts.down_proj"])
        return b.experts(x, routing, weights, config.experts, gated)
