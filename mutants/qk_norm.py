"""Norms of queries and keys: what they span, whose weight they take, and that they come before RoPE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, RopeRows
from hloracle.emitters.model import Weights
from hloracle.mutants.registry import Right, mutant, replaced
from hloracle.reference.model.config import Config

ROTARY = "emitters.layers:LayerBuilder.rotary"
NORM = "emitters.architectures.*:norm"
LAYER_NORM = "emitters.layers:LayerBuilder.layer_norm"
QUERIES, KEYS = "layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm"


# ---- before RoPE


def after_rope(id: str, model: str) -> None:
    """Register norms that come after RoPE; where all dimensions share one mean, only their weights then differ."""

    @mutant(
        id, "qk-norm-order", "queries and keys are normed after RoPE, not before it", anchor=QUERIES, model=model,
        note="no operation stands in the anchor's scope",
    )  # fmt: skip
    def plant() -> Iterator[None]:
        late: dict[str, tuple[Right[Value], Weights, Config]] = {}

        def norm(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
            if not b.anchor.endswith(("q_norm", "k_norm")):
                return right(b, x, w, config)
            late[b.anchor.replace("_norm", "_rope")] = right, w, config
            return x

        def rotary(right: Right[Value], b: LayerBuilder, x: Value, rope: RopeRows) -> Value:
            norm, w, config = late[b.anchor]
            return norm(b, right(b, x, rope), w, config)

        with replaced(NORM.replace("*", model.removeprefix("tiny-")), norm), replaced(ROTARY, rotary):
            yield


after_rope("qk-norm-after-rope", "tiny-qwen3")
after_rope("qk-norm-after-rope-sets", "tiny-gemma3_text")
after_rope("qk-norm-after-rope-pairs", "tiny-cohere")
after_rope("qk-norm-after-rope-sparse", "tiny-qwen3_moe")

# ---- whether at all


def left_out(id: str, model: str, anchor: str, fault: str, decode_only: bool = False) -> None:
    """Register queries or keys that are not normed."""

    @mutant(
        id, "qk-norm-missing", fault, anchor=anchor, replaces=NORM, model=model,
        note="no operation stands in the anchor's scope",
    )  # fmt: skip
    def norm(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
        return x if b.anchor == anchor and (x.shape[0] == 1 or not decode_only) else right(b, x, w, config)


left_out("qk-norm-without-keys", "tiny-qwen3", KEYS, "keys are not normed")
left_out("qk-norm-without-queries", "tiny-olmo2", QUERIES, "queries are not normed")
left_out(
    "qk-norm-without-keys-decode", "tiny-qwen3_moe", "layers.1.self_attn.k_norm",
    "decode does not norm the keys of the layer with experts", decode_only=True,
)  # fmt: skip

# ---- whose weight


@mutant(
    "qk-norm-weights-exchanged", "qk-norm-weight", "queries and keys take each other's weight",
    anchor=QUERIES, replaces="emitters.model:Weights.inside", model="tiny-qwen3",
)  # fmt: skip
def weights_exchanged(right: Right[Weights], w: Weights, name: str) -> Weights:
    return right(w, {"q_norm": "k_norm", "k_norm": "q_norm"}.get(name, name))


@mutant(
    "qk-norm-weight-of-first-head", "qk-norm-weight", "every head is normed with the first one's weight",
    anchor="layers.0.self_attn.q_layernorm", replaces=LAYER_NORM, model="tiny-stablelm",
)  # fmt: skip
def of_first_head(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float
) -> Value:
    if weight.rank == 2:
        weight = b.broadcast_in_dim(b.part(weight, 0, 0, 1), weight.shape, (0, 1))
    return right(b, x, weight, bias, eps)


@mutant(
    "qk-norm-heads-reversed", "qk-norm-weight", "the heads' weights are read in reverse order",
    anchor=QUERIES, replaces=LAYER_NORM, model="tiny-cohere",
)  # fmt: skip
def heads_reversed(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float
) -> Value:
    return right(b, x, b.reverse(weight, (0,)) if weight.rank == 2 else weight, bias, eps)


# ---- what it spans


def spanning(id: str, model: str, fault: str) -> None:
    """Register norms of each head where all are normed at once."""

    @mutant(id, "qk-norm-span", fault, anchor=QUERIES, replaces=NORM, model=model)
    def norm(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
        if not b.anchor.endswith(("q_norm", "k_norm")):
            return right(b, x, w, config)
        heads = (x.shape[1] // config.head_dim, config.head_dim)
        normed = b.rms_norm(b.reshape(x, (x.shape[0], *heads)), b.reshape(w["weight"], heads), config.norm_eps)
        return b.reshape(normed, x.shape)


spanning("qk-norm-of-each-head", "tiny-olmo2", "each head is normed by itself, not all at once")
spanning("qk-norm-of-each-head-yarn", "tiny-olmo3", "each head is divided by its own root mean square")
spanning("qk-norm-of-each-head-sparse", "tiny-olmoe", "the mean square is taken over a head, not over all of them")


@mutant(
    "qk-norm-of-all-heads", "qk-norm-span", "all heads are normed at once, not each by itself",
    anchor=QUERIES, replaces=NORM, model="tiny-qwen3",
)  # fmt: skip
def of_all_heads(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, config: Config) -> Value:
    if not b.anchor.endswith(("q_norm", "k_norm")):
        return right(b, x, w, config)
    flat = (x.shape[0], x.shape[1] * x.shape[2])
    weight = b.reshape(b.over_last(w["weight"], x.shape[1:]), flat[1:])
    return b.reshape(b.rms_norm(b.reshape(x, flat), weight, config.norm_eps), x.shape)


@mutant(
    "qk-norm-without-mean", "qk-norm-span", "queries and keys are divided by their root mean square, and keep their mean",
    anchor="layers.0.self_attn.q_layernorm", replaces=LAYER_NORM, model="tiny-stablelm",
)  # fmt: skip
def without_mean(
    right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None, eps: float
) -> Value:
    return b.rms_norm(x, weight, eps) if x.rank == 3 else right(b, x, weight, bias, eps)


@mutant(
    "oracle-qk-norm-of-each-head", "qk-norm-span", "each head is normed by itself, not all at once", part="reference",
    anchor=QUERIES, replaces="reference.oracle.architectures.olmo2:norm", model="tiny-olmo2",
)  # fmt: skip
def oracle_of_each_head(right: Right[Any], x: Any, w: Any, config: Config) -> Any:
    from hloracle.reference.oracle.layers import rms_norm

    if not w.prefix.endswith(("q_norm.", "k_norm.")):
        return right(x, w, config)
    heads = (x.shape[1] // config.head_dim, config.head_dim)
    return rms_norm(x.reshape(len(x), *heads), w["weight"].reshape(heads), config.norm_eps).reshape(x.shape)
