"""Mixtures of experts: who is chosen, how much each counts, which weights they take, and the shared one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import ExpertWeights, LayerBuilder
from hloracle.emitters.mlp import gated_mlp, moe
from hloracle.emitters.model import Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config, Experts

ROUTE = "emitters.layers:LayerBuilder.route"
KEPT = "emitters.layers:LayerBuilder.kept_top_k"
RANK = "emitters.layers:LayerBuilder.rank"
CHOSEN = "emitters.layers:LayerBuilder.chosen"
EXPERTS = "emitters.layers:LayerBuilder.experts"
HALVES = "emitters.layers:LayerBuilder.halves"
GROUPS = "emitters.layers:LayerBuilder.within_best_groups"

# ---- routing


def routed(id: str, model: str, layer: int, fault: str, **changes: Any) -> None:
    """Register a router that is set otherwise."""

    @mutant(id, "routing", fault, anchor=f"layers.{layer}.mlp.routing", replaces=ROUTE, model=model)
    def route(right: Right[Value], b: LayerBuilder, logits: Value, config: Experts, bias: Value | None = None) -> Value:
        return right(b, logits, dataclasses.replace(config, **changes), bias)


routed("routing-not-normed", "tiny-mixtral", 0, "the chosen shares are not made to sum to 1", norm_topk_prob=False)
routed("routing-not-normed-mixed", "tiny-qwen3_moe", 1, "norm_topk_prob is not heeded", norm_topk_prob=False)
routed("routing-normed", "tiny-olmoe", 0, "the chosen shares are made to sum to 1", norm_topk_prob=True)
routed(
    "routing-softmax-of-chosen",
    "tiny-qwen2_moe",
    1,
    "top-k of the logits comes before the softmax",
    scoring="softmax-of-chosen",
)
routed(
    "routing-softmax-of-all",
    "tiny-gpt_oss",
    0,
    "the softmax is over all experts, and of it the best are taken",
    scoring="softmax",
)
routed("routing-one-too-few", "tiny-mixtral", 0, "one expert too few is chosen", num_experts_per_tok=1)
routed("routing-one-too-many", "tiny-olmoe", 0, "one expert too many is chosen", num_experts_per_tok=4)
routed("routing-by-softmax", "tiny-deepseek_v3", 1, "softmax instead of sigmoid", scoring="softmax")
routed("routing-not-scaled", "tiny-deepseek_v3", 1, "routed_scaling_factor is left out", routed_scaling_factor=1.0)
routed("routing-not-normed-sigmoid", "tiny-deepseek_v3", 1, "the chosen sigmoids do not sum to 1", norm_topk_prob=False)
routed("routing-groups-ignored", "tiny-deepseek_v3", 1, "every group's experts can be chosen", n_group=1)
routed("routing-one-group", "tiny-deepseek_v3", 1, "only the best group's experts can be chosen", topk_group=1)


@mutant(
    "routing-bias-weighs", "routing", "the correction bias is part of the weights too, not of the choice alone",
    anchor="layers.1.mlp.routing", replaces=KEPT, model="tiny-deepseek_v3",
)  # fmt: skip
def bias_weighs(
    right: Right[Value], b: LayerBuilder, scores: Value, k: int, kept: Value | None = None, other: float = 0.0
) -> Value:
    if kept is None:
        return right(b, scores, k, kept, other)
    # Outside of the best groups the choice is -inf.
    return right(b, scores, k, b.maximum(scores, b.f32(-9.0, scores.shape)), other)


@mutant(
    "routing-bias-forgotten", "routing", "the correction bias is left out",
    anchor="layers.1.mlp.routing", replaces=ROUTE, model="tiny-deepseek_v3",
)  # fmt: skip
def bias_forgotten(
    right: Right[Value], b: LayerBuilder, logits: Value, config: Experts, bias: Value | None = None
) -> Value:
    return right(b, logits, config)


@mutant(
    "routing-groups-by-best", "routing", "a group counts as much as its best expert, not as its two best",
    anchor="layers.1.mlp.routing", replaces=GROUPS, model="tiny-deepseek_v3",
)  # fmt: skip
def groups_by_best(right: Right[Value], b: LayerBuilder, choice: Value, groups: int, best: int) -> Value:
    T, X = choice.shape
    grouped = b.reshape(choice, (T, groups, X // groups))
    most = b.reduce(grouped, b.f32(float("-inf")), (2,), "maximum")
    chosen = b.over_first(b.among_top_k(most, best), grouped.shape)
    return b.reshape(b.select(chosen, grouped, b.f32(float("-inf"), grouped.shape)), choice.shape)


@mutant(
    "routing-groups-interleaved", "routing", "a group is every third expert, not three in a row",
    anchor="layers.1.mlp.routing", replaces=GROUPS, model="tiny-deepseek_v3",
)  # fmt: skip
def groups_interleaved(right: Right[Value], b: LayerBuilder, choice: Value, groups: int, best: int) -> Value:
    T, X = choice.shape

    def turned(x: Value, rows: int) -> Value:
        return b.reshape(b.transpose(b.reshape(x, (T, rows, X // rows)), (0, 2, 1)), (T, X))

    return turned(right(b, turned(choice, X // groups), groups, best), groups)


@mutant(
    "routing-ties-to-last", "routing-ties", "of equal experts the last is chosen",
    anchor="layers.0.mlp.routing", replaces=RANK, model="tiny-mixtral", note="equal logits: probe with small ones",
)  # fmt: skip
def ties_to_last(right: Right[Value], b: LayerBuilder, scores: Value) -> Value:
    last = (scores.rank - 1,)
    return b.reverse(right(b, b.reverse(scores, last)), last)


@mutant(
    "routing-smallest", "routing", "the experts with the smallest shares are chosen",
    anchor="layers.0.mlp.routing", replaces=RANK, model="tiny-olmoe",
)  # fmt: skip
def smallest(right: Right[Value], b: LayerBuilder, scores: Value) -> Value:
    return right(b, b.subtract(b.f32(0.0, scores.shape), scores))


@mutant(
    "routing-over-prompt", "routing", "the softmax is over the prompt's tokens, not the experts",
    anchor="layers.1.mlp.routing", replaces="emitters.layers:LayerBuilder.softmax", model="tiny-qwen3_moe",
)  # fmt: skip
def over_prompt(right: Right[Value], b: LayerBuilder, scores: Value, sinks: Value | None = None) -> Value:
    if not b.anchor.endswith("routing"):
        return right(b, scores, sinks)
    return b.transpose(right(b, b.transpose(scores, (1, 0))), (1, 0))


# ---- experts


def gathered(id: str, model: str, layer: int, fault: str, wrong: Callable[[LayerBuilder, Any, Any], Any]) -> None:
    """Register decode's experts with other shares or weights: wrong(b, shares [1, k], their weights)."""

    @mutant(id, "expert-weights", fault, anchor=f"layers.{layer}.mlp.experts", replaces=CHOSEN, model=model)
    def chosen(
        right: Right[tuple[Value, ExpertWeights]], b: LayerBuilder, routing: Value, w: ExpertWeights, k: int
    ) -> tuple[Value, ExpertWeights]:
        found: tuple[Value, ExpertWeights] = wrong(b, *right(b, routing, w, k))
        return found


gathered(
    "experts-down-of-another-decode", "tiny-mixtral", 0, "in decode the chosen experts take each other's down_proj",
    lambda b, shares, w: (shares, dataclasses.replace(w, down=b.reverse(w.down, (0,)))),
)  # fmt: skip
gathered(
    "experts-shares-exchanged-decode", "tiny-olmoe", 0, "in decode the chosen experts take each other's share",
    lambda b, shares, w: (b.reverse(shares, (1,)), w),
)  # fmt: skip
gathered(
    "experts-bias-forgotten-decode", "tiny-gpt_oss", 1, "in decode the last layer's experts have no bias",
    lambda b, shares, w: (shares, dataclasses.replace(w, gate_up_bias=None) if b.anchor.startswith("layers.1") else w),
)  # fmt: skip
gathered(
    "experts-first-only-decode", "tiny-deepseek_v3", 1, "decode goes through the best expert as often as through all",
    lambda b, shares, w: (shares, dataclasses.replace(
        w, gate_up=b.broadcast_in_dim(b.part(w.gate_up, 0, 0, 1), w.gate_up.shape, (0, 1, 2)),
    )),
)  # fmt: skip


@mutant(
    "experts-neighbours-decode", "expert-weights", "decode gathers the experts after the chosen ones",
    anchor="layers.1.mlp.experts", replaces="emitters.layers:LayerBuilder.gather_rows", model="tiny-qwen3_moe",
)  # fmt: skip
def neighbours_decode(right: Right[Value], b: LayerBuilder, operand: Value, start_indices: Value) -> Value:
    if b.anchor.endswith("experts"):
        start_indices = b.add(start_indices, b.i32(1, start_indices.shape))
    return right(b, operand, start_indices)


def swapped(id: str, model: str, layer: int, fault: str) -> None:
    """Register experts whose gate is up, and up gate."""

    @mutant(id, "expert-weights", fault, anchor=f"layers.{layer}.mlp.experts", replaces=HALVES, model=model)
    def halves(right: Right[tuple[Value, Value]], b: LayerBuilder, x: Value) -> tuple[Value, Value]:
        gate, up = right(b, x)
        return up, gate


swapped("experts-gate-up-swapped", "tiny-mixtral", 0, "w1 and w3 are exchanged")
swapped("experts-gate-up-swapped-sparse", "tiny-qwen2_moe", 1, "an expert's gate is taken for its up, and up for gate")


@mutant(
    "experts-squared-shares", "expert-weights", "an expert's share counts twice, before it and after",
    anchor="layers.0.mlp.experts", replaces=EXPERTS, model="tiny-olmoe",
)  # fmt: skip
def squared_shares(right: Right[Value], b: LayerBuilder, x: Value, routing: Value, *more: Any, **named: Any) -> Value:
    return right(b, x, b.multiply(routing, routing), *more, **named)


@mutant(
    "experts-unweighted-prefill", "expert-weights", "prefill adds up the chosen experts without their shares",
    anchor="layers.1.mlp.experts", replaces=EXPERTS, model="tiny-qwen3_moe",
)  # fmt: skip
def unweighted_prefill(
    right: Right[Value], b: LayerBuilder, x: Value, routing: Value, *more: Any, **named: Any
) -> Value:
    if x.shape[0] > 1:
        chosen = b.compare(routing, b.f32(0.0, routing.shape), "GT")
        routing = b.select(chosen, b.f32(1.0, routing.shape), b.f32(0.0, routing.shape))
    return right(b, x, routing, *more, **named)


# ---- the shared expert

Shared = Callable[[LayerBuilder, Value, Value, Callable[[], Value]], Value]


def sharing(id: str, fault: str, anchor: str, wrong: Shared) -> None:
    """Register another sum of the chosen experts and the shared one: wrong(b, chosen, shared, gate's logit)."""

    @mutant(
        id, "shared-expert", fault, anchor=anchor, replaces="emitters.architectures.qwen2_moe:shared_moe",
        model="tiny-qwen2_moe",
    )  # fmt: skip
    def shared_moe(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
        h = moe(b, x, w, config)
        with b.scope("shared_expert"):
            shared = gated_mlp(b, x, w.inside("shared_expert"), config)

        def gate() -> Value:
            with b.scope("shared_expert_gate"):
                return b.broadcast_in_dim(b.linear(x, w["shared_expert_gate.weight"]), shared.shape, (0, 1))

        return wrong(b, h, shared, gate)


SUM = "layers.1.mlp"
# What is left out is the first that the graph does not have.
GATE = "layers.1.mlp.shared_expert_gate"
sharing("shared-expert-ungated", "its gate is left out", GATE, lambda b, h, shared, gate: b.add(h, shared))
sharing(
    "shared-expert-gate-linear", "the gate's logit multiplies, not its sigmoid", SUM,
    lambda b, h, shared, gate: b.add(h, b.multiply(gate(), shared)),
)  # fmt: skip
sharing(
    "shared-expert-gates-all", "the gate multiplies the chosen experts too", SUM,
    lambda b, h, shared, gate: b.multiply(b.logistic(gate()), b.add(h, shared)),
)  # fmt: skip
sharing(
    "shared-expert-instead", "where the gate is closed the chosen experts count, where open the shared one", SUM,
    lambda b, h, shared, gate: b.add(h, b.multiply(b.logistic(gate()), b.subtract(shared, h))),
)  # fmt: skip
sharing("shared-expert-forgotten", "it is left out", GATE, lambda b, h, shared, gate: h)


@mutant(
    "shared-experts-forgotten", "shared-expert", "they are left out",
    anchor="layers.1.mlp.shared_experts.gate_proj", replaces="emitters.architectures.deepseek_v3:shared_moe", model="tiny-deepseek_v3",
)  # fmt: skip
def forgotten(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    return moe(b, x, w, config)


@mutant(
    "shared-experts-scaled", "shared-expert", "routed_scaling_factor multiplies them as well",
    anchor=SUM, replaces="emitters.architectures.deepseek_v3:shared_moe", model="tiny-deepseek_v3",
)  # fmt: skip
def scaled(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    assert config.experts
    h = moe(b, x, w, config)
    with b.scope("shared_experts"):
        shared = gated_mlp(b, x, w.inside("shared_experts"), config)
    return b.add(h, b.scaled(shared, config.experts.routed_scaling_factor))


# ---- clipped queries, keys and values

CLIP = "emitters.layers:LayerBuilder.clip"
OLMOE = "tiny-olmoe"


@mutant(
    "clip-forgotten", "clip", "queries, keys and values are not clipped",
    anchor="layers.0.self_attn.q_rope", replaces=CLIP, model=OLMOE,
)  # fmt: skip
def clip_forgotten(right: Right[Value], b: LayerBuilder, x: Value, limit: float | None) -> Value:
    return x


@mutant(
    "clip-from-above-only", "clip", "queries, keys and values are clipped from above only",
    anchor="layers.0.self_attn.q_rope", replaces=CLIP, model=OLMOE,
)  # fmt: skip
def clip_from_above_only(right: Right[Value], b: LayerBuilder, x: Value, limit: float) -> Value:
    return b.minimum(x, b.f32(limit, x.shape))


@mutant(
    "clip-before-norm", "clip", "queries and keys are clipped before their norm, not after it",
    anchor="layers.0.self_attn.q_norm", replaces="emitters.architectures.olmoe:norm", model=OLMOE,
)  # fmt: skip
def clip_before_norm(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    return right(b, b.clip(x, config.clip_qkv) if b.anchor.endswith(("q_norm", "k_norm")) else x, w, config)


# ---- the oracle's


def misrouted(id: str, model: str, layer: int, fault: str, **changes: Any) -> None:
    """Register an oracle's router that is set otherwise."""

    @mutant(
        id, "routing", fault, part="reference",
        anchor=f"layers.{layer}.mlp.routing", replaces="reference.oracle.mlp:route", model=model,
    )  # fmt: skip
    def route(right: Right[Any], logits: Any, config: Experts, bias: Any = None) -> Any:
        return right(logits, dataclasses.replace(config, **changes), bias)


misrouted("oracle-routing-not-normed", "tiny-mixtral", 0, "the chosen shares do not sum to 1", norm_topk_prob=False)
misrouted("oracle-routing-groups-ignored", "tiny-deepseek_v3", 1, "every group's experts can be chosen", n_group=1)


@mutant(
    "oracle-experts-gate-up-swapped", "expert-weights", "an expert's gate is up, and up gate", part="reference",
    anchor="layers.1.mlp.experts", replaces="reference.oracle.mlp:halves", model="tiny-qwen3_moe",
)  # fmt: skip
def oracle_swapped(right: Right[Any], x: Any) -> Any:
    gate, up = right(x)
    return up, gate


@mutant(
    "oracle-shared-expert-ungated", "shared-expert", "it is as wide open as if its gate were not there", part="reference",
    anchor=GATE, replaces="reference.oracle.architectures.qwen2_moe:shared_moe", model="tiny-qwen2_moe",
)  # fmt: skip
def oracle_ungated(right: Right[Any], x: Any, w: Any, config: Config) -> Any:
    from hloracle.reference.oracle.layers import scope
    from hloracle.reference.oracle.mlp import gated_mlp, moe

    h = moe(x, w, config)
    with scope("shared_expert"):
        return h + gated_mlp(x, w.inside("shared_expert"), config)


@mutant(
    "oracle-clip-forgotten", "clip", "queries, keys and values are not clipped", part="reference",
    anchor="layers.0.self_attn.q_rope", replaces="reference.oracle.architectures.olmoe:clip", model=OLMOE,
)  # fmt: skip
def oracle_clip_forgotten(right: Right[Any], x: Any, limit: float | None) -> Any:
    return x
