"""The end of the model: which row, which weight, which token."""

from __future__ import annotations

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import Weights
from hloracle.mutants.registry import Right, mutant

SUBTRACT = "emitters.layers:LayerBuilder.subtract"
LINEAR = "emitters.layers:LayerBuilder.linear"
ARGMAX = "emitters.layers:LayerBuilder.argmax"
HEAD, TOKEN = "lm_head", "token"

# ---- the row that the head sees


@mutant("last-row-next", "last-row", "prefill's head reads row `length`", anchor="norm", replaces=SUBTRACT)
def last_row_next(right: Right[Value], b: LayerBuilder, lhs: Value, rhs: Value) -> Value:
    return lhs if lhs.name == "length" else right(b, lhs, rhs)


@mutant("last-row-before", "last-row", "prefill's head reads row `length - 2`", anchor="norm", replaces=SUBTRACT)
def last_row_before(right: Right[Value], b: LayerBuilder, lhs: Value, rhs: Value) -> Value:
    return right(b, lhs, b.i32(2) if lhs.name == "length" else rhs)


@mutant(
    "last-row-of-bucket", "last-row", "prefill's head reads the bucket's last row", anchor="norm", replaces=SUBTRACT
)
def last_row_of_bucket(right: Right[Value], b: LayerBuilder, lhs: Value, rhs: Value) -> Value:
    if lhs.name != "length":
        return right(b, lhs, rhs)
    (tokens,) = (a for a in b.arguments if a.name == "tokens")
    return b.i32(tokens.shape[0] - 1)


# ---- logits


@mutant(
    "head-tied", "head", "the embedding is used as the head", anchor=HEAD, replaces="emitters.model:Weights.__getitem__"
)
def tied(right: Right[Value], w: Weights, name: str) -> Value:
    return right(w, "model.embed_tokens.weight" if name == "lm_head.weight" else name)


@mutant(
    "head-transposed", "head", "the head's weight is read as if it were stored transposed", anchor=HEAD, replaces=LINEAR
)
def transposed(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if b.anchor == HEAD:
        weight = b.transpose(b.reshape(weight, weight.shape[::-1]), (1, 0))
    return right(b, x, weight, bias)


@mutant("head-soft-cap", "head", "logits are capped at 30, as Gemma 2 does", anchor=HEAD, replaces=LINEAR)
def soft_cap(right: Right[Value], b: LayerBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    logits = right(b, x, weight, bias)
    if b.anchor != HEAD:
        return logits
    # 30 tanh(x / 30) is 60 logistic(x / 15) - 30.
    turned = b.logistic(b.multiply(logits, b.f32(1 / 15, logits.shape)))
    return b.subtract(b.multiply(turned, b.f32(60.0, logits.shape)), b.f32(30.0, logits.shape))


# ---- the token


@mutant(
    "argmax-ties-to-last", "argmax", "among equal logits the highest index wins",
    anchor=TOKEN, replaces=ARGMAX, note="two equal largest logits",
)  # fmt: skip
def ties_to_last(right: Right[Value], b: LayerBuilder, logits: Value) -> Value:
    (V,) = logits.shape
    maximum = b.reduce(logits, b.f32(float("-inf")), (0,), "maximum")
    is_maximum = b.compare(logits, b.broadcast_in_dim(maximum, (V,), ()), "EQ")
    candidates = b.select(is_maximum, b.iota((V,), "i32"), b.i32(-1, (V,)))
    return b.reduce(candidates, b.i32(-1), (0,), "maximum")


@mutant(
    "argmax-padded-vocabulary", "argmax", "logits are padded with zeros to a multiple of 64",
    anchor=TOKEN, replaces=ARGMAX, note="logits that are all negative",
)  # fmt: skip
def padded_vocabulary(right: Right[Value], b: LayerBuilder, logits: Value) -> Value:
    return right(b, b.pad(logits, b.f32(0.0), (0,), (-logits.shape[0] % 64,)))


@mutant(
    "argmax-vocabulary-cut", "argmax", "the vocabulary is cut to a multiple of 64",
    anchor=TOKEN, replaces=ARGMAX, note="a largest logit among the last of the vocabulary",
)  # fmt: skip
def vocabulary_cut(right: Right[Value], b: LayerBuilder, logits: Value) -> Value:
    (V,) = logits.shape
    return right(b, b.slice(logits, (0,), (V - V % 64,)))


@mutant("argmax-of-magnitude", "argmax", "the logit of largest magnitude wins", anchor=TOKEN, replaces=ARGMAX)
def of_magnitude(right: Right[Value], b: LayerBuilder, logits: Value) -> Value:
    return right(b, b.maximum(logits, b.subtract(b.f32(0.0, logits.shape), logits)))
