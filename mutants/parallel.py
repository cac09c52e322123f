"""What a block adds to what where it is not Llama's: parallel blocks, norms after a part, multipliers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Scoring
from hloracle.emitters.mlp import gated_mlp
from hloracle.emitters.model import LayerInputs, Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config

SCALED = "emitters.layers:LayerBuilder.scaled"

# A norm by its name, and another part of a block, given what goes in.
Part = Callable[[str, Value], Value]
Plain = Callable[[Value], Value]
Wiring = Callable[[LayerBuilder, Value, Part, Plain, Plain], Value]

FIRST, SECOND, LAST = "input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
GATE, OUTPUT = "layers.0.mlp.gate_proj", "layers.0"


def wired(id: str, mechanism: str, fault: str, *, anchor: str, model: str) -> Callable[[Wiring], Wiring]:
    """Register a block that the function below puts together otherwise, from the parts of the right one."""
    module = f"emitters.architectures.{model.removeprefix('tiny-')}"

    def register(wiring: Wiring) -> Wiring:
        @mutant(id, mechanism, fault, anchor=anchor, replaces=f"{module}:block", model=model)
        def block(
            right: Right[Value], b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config
        ) -> Value:
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

        return wiring

    return register


# ---- parallel blocks


@wired(
    "parallel-of-raw", "parallel-block", "the MLP takes the block's input without its norm",
    anchor=GATE, model="tiny-cohere",
)  # fmt: skip
def of_raw(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    return b.add(b.add(x, attention(norm(FIRST, x))), mlp(x))


@wired(
    "parallel-sequential", "parallel-block", "the MLP comes after attention and its sum",
    anchor=GATE, model="tiny-cohere",
)  # fmt: skip
def sequential(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, attention(norm(FIRST, x)))
    return b.add(x, mlp(x))


@wired(
    "parallel-of-sum", "parallel-block", "attention's output is added to what the MLP takes",
    anchor=GATE, model="tiny-cohere2",
)  # fmt: skip
def of_the_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    h = attention(normed)
    return b.add(b.add(x, h), mlp(b.add(normed, h)))


@wired(
    "parallel-from-normed", "parallel-block", "the normed input is added, not the input",
    anchor=OUTPUT, model="tiny-cohere2",
)  # fmt: skip
def from_normed(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    h = attention(normed)
    return b.add(b.add(normed, h), mlp(normed))


@wired(
    "parallel-without-attention", "parallel-block", "attention's output is not added",
    anchor=OUTPUT, model="tiny-cohere",
)  # fmt: skip
def without_attention(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    attention(normed)
    return b.add(x, mlp(normed))


@wired(
    "parallel-where-sequential", "parallel-block", "the MLP takes the first norm's output",
    anchor=GATE, model="tiny-stablelm",
)  # fmt: skip
def unlike_itself(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    normed = norm(FIRST, x)
    x = b.add(x, attention(normed))
    norm(SECOND, x)
    return b.add(x, mlp(normed))


@wired(
    "sequential-sum-lost", "parallel-block", "attention's output reaches the MLP alone",
    anchor=OUTPUT, model="tiny-stablelm",
)  # fmt: skip
def parallel_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    h = attention(norm(FIRST, x))
    return b.add(x, mlp(norm(SECOND, b.add(x, h))))


# ---- norms after a part

NORMED_ATTENTION, NORMED_MLP = "layers.0.post_attention_layernorm", "layers.0.post_feedforward_layernorm"


@wired(
    "norm-before-attention", "norm-order", "norms come before the parts",
    anchor="layers.0.self_attn.q_proj", model="tiny-olmo2",
)  # fmt: skip
def pre_norm(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, attention(norm(SECOND, x)))
    return b.add(x, mlp(norm(LAST, x)))


@wired(
    "norm-of-sum-attention", "norm-order", "the sum after attention is normed",
    anchor=NORMED_ATTENTION, model="tiny-olmo2",
)  # fmt: skip
def norm_of_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = norm(SECOND, b.add(x, attention(x)))
    return b.add(x, norm(LAST, mlp(x)))


@wired("norm-before-mlp", "norm-order", "the MLP's norm comes before it", anchor=GATE, model="tiny-olmo3")
def first_norm_before(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, norm(SECOND, attention(x)))
    return b.add(x, mlp(norm(LAST, x)))


@wired(
    "norm-of-sum-mlp", "norm-order", "the block's output is normed, not the MLP's",
    anchor=NORMED_MLP, model="tiny-olmo3",
)  # fmt: skip
def last_of_sum(b: LayerBuilder, x: Value, norm: Part, attention: Plain, mlp: Plain) -> Value:
    x = b.add(x, norm(SECOND, attention(x)))
    return norm(LAST, b.add(x, mlp(x)))


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
def of_head(right: Right[Value], b: LayerBuilder, q: Value, k: Value, v: Value, scoring: Scoring) -> Value:
    return right(b, q, k, v, replace(scoring, scaling=q.shape[2] ** -0.5))


@mutant(
    "oracle-residual-multiplier-forgotten", "multiplier", "what attention adds is not multiplied", part="reference",
    anchor="layers.0.post_attention_layernorm", replaces="reference.oracle.architectures.granite:attention", model=GRANITE,
)  # fmt: skip
def oracle_forgotten(right: Right[Any], x: Any, w: Any, layer: Any, config: Config) -> Any:
    return right(x, w, layer, config) / config.residual_multiplier
