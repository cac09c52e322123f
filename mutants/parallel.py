"""What a block adds to what where it is not Llama's: parallel blocks, norms after a part, multipliers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.mlp import gated_mlp
from hloracle.emitters.model import LayerInputs, Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config

SCALED = "emitters.layers:LayerBuilder.scaled"

# A part of a block by its name, given what goes in.
Part = Callable[[str, Value], Value]


def wired(id: str, mechanism: str, model: str, anchor: str, fault: str, wiring: Callable[..., Value]) -> None:
    """Register a block that is put together otherwise: wiring(b, x, norm, attention, mlp), the parts of the right one."""
    module = f"emitters.architectures.{model.removeprefix('tiny-')}"

    @mutant(id, mechanism, fault, anchor=anchor, replaces=f"{module}:block", model=model)
    def block(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config) -> Value:
        own: Any = importlib.import_module(f"hloracle.{module}")

        def norm(name: str, x: Value) -> Value:
            with b.scope(name):
                return own.norm(b, x, w.inside(name), config)  # type: ignore[no-any-return]

        def attention(x: Value) -> Value:
            with b.scope("self_attn"):
                return own.attention(b, x, w.inside("self_attn"), layer, config)  # type: ignore[no-any-return]

        def mlp(x: Value) -> Value:
            with b.scope("mlp"):
                return gated_mlp(b, x, w.inside("mlp"), config)

        return wiring(b, x, norm, attention, mlp)


Plain = Callable[[Value], Value]
FIRST, SECOND, LAST = "input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
GATE, OUTPUT = "layers.0.mlp.gate_proj", "layers.0"


def sequential(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, attention(norm(FIRST, x)))
    return b.add(x, mlp(x))


def of_the_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    h = attention(normed)
    return b.add(b.add(x, h), mlp(b.add(normed, h)))


def from_normed(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    h = attention(normed)
    return b.add(b.add(normed, h), mlp(normed))


def without_attention(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    attention(normed)
    return b.add(x, mlp(normed))


def of_raw(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    return b.add(b.add(x, attention(norm(FIRST, x))), mlp(x))


wired(
    "parallel-of-raw", "parallel-block", "tiny-cohere", GATE, "the MLP takes the block's input without its norm", of_raw
)
wired(
    "parallel-sequential",
    "parallel-block",
    "tiny-cohere",
    GATE,
    "the MLP comes after attention and its sum",
    sequential,
)
wired(
    "parallel-of-sum",
    "parallel-block",
    "tiny-cohere2",
    GATE,
    "attention's output is added to what the MLP takes",
    of_the_sum,
)
wired(
    "parallel-from-normed",
    "parallel-block",
    "tiny-cohere2",
    OUTPUT,
    "the normed input is added, not the input",
    from_normed,
)
wired(
    "parallel-without-attention",
    "parallel-block",
    "tiny-cohere",
    OUTPUT,
    "attention's output is not added",
    without_attention,
)


def unlike_itself(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    x = b.add(x, attention(normed))
    norm(SECOND, x)
    return b.add(x, mlp(normed))


def parallel_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    h = attention(norm(FIRST, x))
    return b.add(x, mlp(norm(SECOND, b.add(x, h))))


wired(
    "parallel-where-sequential",
    "parallel-block",
    "tiny-stablelm",
    GATE,
    "the MLP takes the first norm's output",
    unlike_itself,
)
wired(
    "sequential-sum-lost",
    "parallel-block",
    "tiny-stablelm",
    OUTPUT,
    "attention's output reaches the MLP alone",
    parallel_sum,
)

# ---- norms after a part


def pre_norm(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, attention(norm(SECOND, x)))
    return b.add(x, mlp(norm(LAST, x)))


def norm_of_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = norm(SECOND, b.add(x, attention(x)))
    return b.add(x, norm(LAST, mlp(x)))


def first_norm_before(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, norm(SECOND, attention(x)))
    return b.add(x, mlp(norm(LAST, x)))


def last_of_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, norm(SECOND, attention(x)))
    return norm(LAST, b.add(x, mlp(x)))


NORMED_ATTENTION, NORMED_MLP = "layers.0.post_attention_layernorm", "layers.0.post_feedforward_layernorm"
wired(
    "norm-before-attention",
    "norm-order",
    "tiny-olmo2",
    "layers.0.self_attn.q_proj",
    "norms come before the parts",
    pre_norm,
)
wired(
    "norm-of-sum-attention",
    "norm-order",
    "tiny-olmo2",
    NORMED_ATTENTION,
    "the sum after attention is normed",
    norm_of_sum,
)
wired("norm-before-mlp", "norm-order", "tiny-olmo3", GATE, "the MLP's norm comes before it", first_norm_before)
wired(
    "norm-of-sum-mlp",
    "norm-order",
    "tiny-olmo3",
    NORMED_MLP,
    "the block's output is normed, not the MLP's",
    last_of_sum,
)

# ---- multipliers


def multiplied(
    id: str, model: str, anchor: str, fault: str, at: str, factor: Callable[[float], float], only: str = ""
) -> None:
    """Register another factor where the emitter's scope is `at`, in one phase or in both."""

    @mutant(id, "multiplier", fault, anchor=anchor, replaces=SCALED, model=model)
    def scaled(right: Right[Value], b: LayerBuilder, x: Value, value: float) -> Value:
        phase = "decode" if x.shape[0] == 1 else "prefill"
        return right(b, x, factor(value) if b.anchor == at and only in ("", phase) else value)


GRANITE = "tiny-granite"
multiplied(
    "residual-multiplier-forgotten",
    GRANITE,
    NORMED_ATTENTION,
    "nothing multiplies what is added",
    "layers.0",
    lambda v: 1.0,
)
multiplied(
    "residual-multiplier-forgotten-decode", GRANITE, "layers.1.post_attention_layernorm",
    "decode's last layer does not multiply what it adds", "layers.1", lambda v: 1.0, "decode",
)  # fmt: skip
multiplied(
    "logits-not-divided", GRANITE, "lm_head", "logits are not divided by logits_scaling", "lm_head", lambda v: 1.0
)
multiplied(
    "logits-multiplied", GRANITE, "lm_head", "logits are multiplied by logits_scaling", "lm_head", lambda v: 1 / v
)
multiplied("logit-scale-forgotten", "tiny-cohere", "lm_head", "logits are not multiplied", "lm_head", lambda v: 1.0)
multiplied(
    "logit-scale-divides", "tiny-cohere2", "lm_head", "logits are divided by logit_scale", "lm_head", lambda v: 1 / v
)


@mutant(
    "residual-multiplier-on-sum", "multiplier", "the sum after the MLP is multiplied, not what is added",
    anchor="layers.0.post_attention_layernorm", replaces="emitters.architectures.granite:block", model=GRANITE,
)  # fmt: skip
def on_sum(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config) -> Value:
    from hloracle.emitters.architectures.granite import attention, norm

    with b.scope(FIRST):
        h = norm(b, x, w.inside(FIRST), config)
    with b.scope("self_attn"):
        h = attention(b, h, w.inside("self_attn"), layer, config)
    x = b.scaled(b.add(x, h), config.residual_multiplier)
    with b.scope(SECOND):
        h = norm(b, x, w.inside(SECOND), config)
    with b.scope("mlp"):
        h = gated_mlp(b, h, w.inside("mlp"), config)
    return b.scaled(b.add(x, h), config.residual_multiplier)


@mutant(
    "attention-multiplier-of-head", "multiplier", "scores are divided by sqrt(D), as usual",
    anchor="layers.0.self_attn.scores", replaces="emitters.layers:LayerBuilder.attention", model=GRANITE,
)  # fmt: skip
def of_head(
    right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, visible: Value, scaling: float
) -> Value:
    return right(b, q, k, v, visible, q.shape[2] ** -0.5)


@mutant(
    "oracle-residual-multiplier-forgotten", "multiplier", "what attention adds is not multiplied", part="reference",
    anchor="layers.0.post_attention_layernorm", replaces="reference.oracle.architectures.granite:attention", model=GRANITE,
)  # fmt: skip
def oracle_forgotten(right: Right[Any], x: Any, w: Any, layer: Any, config: Config) -> Any:
    return right(x, w, layer, config) / config.residual_multiplier
