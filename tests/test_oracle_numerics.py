"""The oracle and the emitter's graphs against a float64 model in numpy, at every edge of the contract.

The model here is written on its own, in the plainest form of transformers' `modeling_llama.py`: the whole
sequence at once, no cache, `repeat_kv`, `rotate_half`, and RoPE's frequencies one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import run, xla

from hloracle.backends.session import Session
from hloracle.core.abi import CACHES, Abi, Tensor
from hloracle.core.errors import InputError
from hloracle.emitters.builder import TensorType
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import emit
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle import layers, model
from hloracle.reference.oracle.lower import lower

# Nothing is square and no two sizes are equal: hidden is not heads * head_dim, three query heads share a key head, the
# vocabulary is odd, and neither the bucket nor the capacity is a power of two.
T, S = 12, 19
BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 40,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 56,
    "vocab_size": 257,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 3e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
# Wavelengths are 6, 20, 63 and 199 positions: one is short, two are between, one is long.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "plain": BASE,
    "tied-llama3": {**BASE, "num_hidden_layers": 3, "tie_word_embeddings": True, "rope_parameters": LLAMA3},
    "biases": {**BASE, "attention_bias": True, "mlp_bias": True},
    "all": {
        **BASE,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3,
        "attention_bias": True,
        "mlp_bias": True,
    },
}
LENGTHS = (1, T - 1, T)
POSITIONS = (0, 1, S - 1)

# A result is a chain of products, each a sum of at most 64 terms (the widest is F = 56), seven to a layer, three layers
# and a head: 22. Every term is rounded to 2^-24 of its size; that all errors add up is far worse than what happens,
# and a wrong formula is wrong by a tenth. Relative to the largest value, because sums of the small ones cancel.
TOLERANCE = 2**-24 * 64 * 22  # 8.4e-5


@cache
def config_of(name: str) -> Config:
    return from_hf(MODELS[name])


@cache
def weights_of(name: str) -> dict[str, np.ndarray]:
    """Random weights, norms and biases among them, with which attention is neither uniform nor one-hot."""
    rng = np.random.default_rng(sum(map(ord, name)))
    weights = {}
    for key, shape in weight_shapes(config_of(name)).items():
        if "norm" in key:
            weight = rng.uniform(0.5, 1.5, shape)
        elif key.endswith("bias"):
            weight = rng.normal(0, 0.3, shape)
        elif "embed" in key:
            weight = rng.normal(0, 0.1, shape)  # small, so that rms_norm_eps is felt
        else:
            weight = rng.normal(0, 1.5 / math.sqrt(shape[1]), shape)
        weights[key] = weight.astype(np.float32)
    return weights


@cache
def sequence_of(name: str) -> tuple[int, ...]:
    """S tokens, the vocabulary's first and last among them."""
    tokens = np.random.default_rng(3).integers(0, config_of(name).vocab_size, S)
    tokens[[1, 2]] = 0, config_of(name).vocab_size - 1
    return tuple(int(t) for t in tokens)


# ---- the truth


def frequencies(raw: dict[str, Any]) -> list[float]:
    rope = raw["rope_parameters"]
    result = []
    for i in range(0, raw["head_dim"], 2):
        frequency = 1.0 / rope["rope_theta"] ** (i / raw["head_dim"])
        if rope["rope_type"] == "llama3":
            original = rope["original_max_position_embeddings"]
            wavelength = 2 * math.pi / frequency
            if wavelength > original / rope["low_freq_factor"]:
                frequency = frequency / rope["factor"]
            elif wavelength >= original / rope["high_freq_factor"]:
                smooth = original / wavelength - rope["low_freq_factor"]
                smooth = smooth / (rope["high_freq_factor"] - rope["low_freq_factor"])
                frequency = (1 - smooth) * frequency / rope["factor"] + smooth * frequency
        result.append(frequency)
    return result


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def rotate_half(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


def repeat_kv(x: np.ndarray, times: int) -> np.ndarray:
    return np.repeat(x, times, axis=0)


@cache
def truth(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64 logits [S, V] of every position, keys and values [L, K, S, D], of the whole sequence at once."""
    raw, w = MODELS[name], {key: value.astype(np.float64) for key, value in weights_of(name).items()}
    heads, kv_heads, head_dim = raw["num_attention_heads"], raw["num_key_value_heads"], raw["head_dim"]

    def linear(x: np.ndarray, path: str) -> np.ndarray:
        return x @ w[f"{path}.weight"].T + w.get(f"{path}.bias", 0.0)

    angles = np.outer(np.arange(S), frequencies(raw))
    cos, sin = np.cos(np.concatenate([angles, angles], 1)), np.sin(np.concatenate([angles, angles], 1))
    x = w["model.embed_tokens.weight"][list(sequence_of(name))]
    all_keys, all_values = [], []
    for i in range(raw["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        h = rms_norm(x, w[f"{layer}.input_layernorm.weight"], raw["rms_norm_eps"])
        q = linear(h, f"{layer}.self_attn.q_proj").reshape(S, heads, head_dim).swapaxes(0, 1)
        k = linear(h, f"{layer}.self_attn.k_proj").reshape(S, kv_heads, head_dim).swapaxes(0, 1)
        v = linear(h, f"{layer}.self_attn.v_proj").reshape(S, kv_heads, head_dim).swapaxes(0, 1)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        all_keys.append(k)
        all_values.append(v)
        scores = q @ repeat_kv(k, heads // kv_heads).swapaxes(1, 2) / math.sqrt(head_dim)
        scores = np.where(np.tril(np.ones((S, S), bool)), scores, -np.inf)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs = probs / probs.sum(-1, keepdims=True)
        context = (probs @ repeat_kv(v, heads // kv_heads)).swapaxes(0, 1).reshape(S, heads * head_dim)
        x = x + linear(context, f"{layer}.self_attn.o_proj")
        h = rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], raw["rms_norm_eps"])
        gate, up = linear(h, f"{layer}.mlp.gate_proj"), linear(h, f"{layer}.mlp.up_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * up, f"{layer}.mlp.down_proj")
    x = rms_norm(x, w["model.norm.weight"], raw["rms_norm_eps"])
    head = "model.embed_tokens.weight" if raw["tie_word_embeddings"] else "lm_head.weight"
    return x @ w[head].T, np.stack(all_keys), np.stack(all_values)


def assert_near(computed: Any, expected: np.ndarray) -> None:
    computed = np.asarray(computed)
    assert computed.dtype == np.float32
    assert computed.shape == expected.shape
    assert expected.size > 0
    worst = np.abs(computed - expected).max() / np.abs(expected).max()
    assert worst < TOLERANCE, f"relative to the largest value: {worst:.2e}"


def test_the_truth_depends_on_everything() -> None:
    """Attention is neither uniform nor one-hot, and logits are of a size that a softmax would use."""
    for name in MODELS:
        logits, keys, values = truth(name)
        assert 1 < np.abs(logits).max() < 100
        assert 0.3 < keys.std() < 10
        assert 0.3 < values.std() < 10
        assert len(set(logits.argmax(-1).tolist())) > S // 2


# ---- the two graphs, as the reference's functions, as the oracle's graph, and as the emitter's graph


Run = Callable[..., Sequence[Any]]


def eager(name: str, phase: str) -> Run:
    """The reference's own functions, operation by operation."""
    config, weights = config_of(name), [jnp.asarray(w) for w in weights_of(name).values()]
    if phase == "prefill":
        return partial(model.prefill, config, "logits", S, weights)
    return lambda token, position, *caches: model.decode(
        config, "logits", S, weights, token, position, dict(zip(CACHES, caches, strict=True))
    )


def jitted(name: str, phase: str) -> Run:
    return jax.jit(eager(name, phase))


def on_xla(source: Callable[..., Any], name: str, phase: str) -> Run:
    graph = source(config_of(name), phase, "logits", S, T)
    return lambda *inputs: run(graph, *weights_of(name).values(), *inputs)


SOURCES: dict[str, Callable[[str, str], Run]] = {
    "reference-eager": eager,
    "reference-jit": jitted,
    "oracle-graph": partial(on_xla, lower),
    "emitter-graph": partial(on_xla, emit),
}
# Eager execution is slow and differs from jit by nothing but fusion.
CELLS = [(s, m) for s in SOURCES for m in MODELS if s != "reference-eager" or m == "all"]


@pytest.mark.parametrize(("source", "name"), CELLS)
def test_prefill(source: str, name: str) -> None:
    logits, keys, values = truth(name)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        prefill = SOURCES[source](name, "prefill")
        for length in LENGTHS:
            # What stands behind the prompt must not matter, so it is not zeros.
            tokens = np.full(T, 7, np.int32)
            tokens[:length] = sequence_of(name)[:length]
            head, k_cache, v_cache = prefill(tokens, np.array(length, np.int32))
            assert_near(head, logits[length - 1])
            for computed, expected in ((k_cache, keys), (v_cache, values)):
                assert computed.shape == expected.shape
                assert_near(computed[:, :, :length], expected[:, :, :length])
                assert not np.asarray(computed[:, :, T:]).any(), "slots beyond the bucket are zeros"


@pytest.mark.parametrize(("source", "name"), CELLS)
def test_decode(source: str, name: str) -> None:
    logits, keys, values = truth(name)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        decode = SOURCES[source](name, "decode")
        for position in POSITIONS:
            # Slots from `position` on are invisible or overwritten, so they are anything finite.
            before = [np.full(filled.shape, 1e3, np.float32) for filled in (keys, values)]
            for slots, filled in zip(before, (keys, values), strict=True):
                slots[:, :, :position] = filled[:, :, :position]
            scalars = [np.array(n, np.int32) for n in (sequence_of(name)[position], position)]
            head, *after = decode(*scalars, *(slots.copy() for slots in before))
            assert_near(head, logits[position])
            for computed, slots, expected in zip(after, before, (keys, values), strict=True):
                written = np.asarray(computed)
                assert_near(written[:, :, position], expected[:, :, position])
                untouched = np.arange(S) != position
                np.testing.assert_array_equal(written[:, :, untouched], slots[:, :, untouched])


# ---- the token head


LOGITS = {
    "largest": ([0.0, 3.0, -1.0, 2.0], 1),
    "first": ([3.0, 2.0, 1.0, 0.0], 0),
    "last": ([0.0, 1.0, 2.0, 3.0], 3),
    "tie": ([-5.0, 2.0, 1.0, 2.0], 1),
    "all-equal": ([-1.0] * 4, 0),
    "all-negative": ([-3.0, -1.0, -2.0, -4.0], 1),
    "signed-zeros": ([-0.0, 0.0, -0.0, -1.0], 0),
    "minus-infinity": ([-np.inf] * 4, 0),
    "infinity": ([0.0, np.inf, np.inf, 0.0], 1),
    "one-nan": ([5.0, np.nan, 7.0, 0.0], 4),
    "all-nan": ([np.nan] * 4, 4),
}


@pytest.mark.parametrize("name", LOGITS)
def test_argmax(name: str) -> None:
    values, expected = LOGITS[name]
    logits = np.array(values, np.float32)
    assert int(layers.argmax(jnp.asarray(logits))) == expected
    b = LayerBuilder()
    token = b.argmax(b.argument(TensorType((4,), "f32")))
    abi = Abi("decode", (Tensor("weight", "logits", (4,), "f32"),), (Tensor("token", "token", (), "i32"),))
    (computed,) = run(b.graph("argmax", abi, [token]), logits)
    assert computed == expected
    assert computed.dtype == np.int32


# ---- sessions


@cache
def graphs(name: str, head: str) -> list[Any]:
    config = config_of(name)
    return [emit(config, "decode", head, S), *(emit(config, "prefill", head, S, bucket) for bucket in (T // 2, T))]


def session(name: str, head: str = "logits", weights: dict[str, np.ndarray] | None = None) -> Session:
    return Session(xla(), graphs(name, head), (weights or weights_of(name)).__getitem__)


@pytest.mark.parametrize("name", MODELS)
def test_prefill_then_decode_is_streaming(name: str) -> None:
    sequence, (logits, keys, values) = sequence_of(name), truth(name)
    prefilled, streamed = session(name), session(name)
    for length in (1, T // 2, T // 2 + 1, T):
        assert_near(prefilled.prefill(sequence[:length]), logits[length - 1])
        assert_near(streamed.stream_prompt(sequence[:length]), logits[length - 1])
        for ours, theirs, expected in zip(prefilled.caches(), streamed.caches(), (keys, values), strict=True):
            assert_near(ours, expected[:, :, :length])
            assert_near(theirs, expected[:, :, :length])
    for position in range(T, S):
        assert_near(prefilled.decode_step(sequence[position]), logits[position])
        assert_near(streamed.decode_step(sequence[position]), logits[position])
    assert prefilled.position == streamed.position == S
    for computed, expected in zip(prefilled.caches(), (keys, values), strict=True):
        assert_near(computed, expected)


@pytest.mark.parametrize("name", ["plain", "all"])
def test_token_head_is_the_argmax_of_logits(name: str) -> None:
    sequence = sequence_of(name)
    tokens, logits = session(name, "token"), session(name, "logits")
    for length in (1, T):
        assert tokens.prefill(sequence[:length]) == int(np.argmax(logits.prefill(sequence[:length])))
    for position in range(T, S):
        answer = tokens.decode_step(sequence[position])
        assert isinstance(answer, int)
        assert answer == int(np.argmax(logits.decode_step(sequence[position])))


@pytest.mark.parametrize("head", ["token", "logits"])
def test_generation(head: str) -> None:
    """All ways to the same tokens, and a second prompt that knows nothing of the first."""
    prompt, other = list(sequence_of("all")[:5]), list(sequence_of("all")[5:13])
    s = session("all", head)
    expected = list(s.generate_streaming_greedy(prompt, 8))
    assert len(expected) == 8
    assert s.position == len(prompt) + 8 - 1
    list(s.generate_streaming_greedy(other, 6))
    assert list(s.generate_streaming_greedy(prompt, 8)) == expected
    assert list(s.generate_streaming_greedy(prompt, 8, through_decode=True)) == expected
    list(s.generate_streaming_greedy(other, 6))
    assert list(s.generate_streaming_greedy(prompt, 8, through_decode=True)) == expected
    assert (
        list(session("all", "logits" if head == "token" else "token").generate_streaming_greedy(prompt, 8)) == expected
    )


@pytest.mark.parametrize("low", [0, 41])
@pytest.mark.parametrize("head", ["token", "logits"])
def test_equal_logits_go_to_the_lowest_token(head: str, low: int) -> None:
    """The winning row of the head stands twice in the vocabulary.

    Each of its two rows has one number, for sums of several may be added up in another order at the vocabulary's end.
    """
    weights, sequence = dict(weights_of("plain")), sequence_of("plain")
    rows = np.zeros_like(weights["lm_head.weight"])
    width = rows.shape[1]
    rows[:width] = np.eye(width)
    last_state = session("plain", "logits", {**weights, "lm_head.weight": rows}).prefill(sequence[:T])[:width]
    rows[:] = 0
    rows[low] = rows[-1] = np.eye(width)[np.argmax(last_state)]
    s = session("plain", head, {**weights, "lm_head.weight": rows})
    assert next(iter(s.generate_streaming_greedy(sequence[:T], 1))) == low
    assert next(iter(s.generate_streaming_greedy(sequence[:T], 1, through_decode=True))) == low


def test_what_it_can_do() -> None:
    can = session("plain", "token")
    assert (can.buckets, can.capacity, can.vocab_size, can.decodes) == ((T // 2, T), S, 257, True)


def test_refused_prompts() -> None:
    s = session("plain", "token")
    for ask in (s.prefill, s.stream_prompt):
        with pytest.raises(InputError, match="prompt: is empty"):
            ask([])
        for token in (-1, 257):
            with pytest.raises(InputError, match=f"token {token} is outside the vocabulary of 257"):
                ask([3, token])
    with pytest.raises(InputError, match=f"prompt: has {T + 1} tokens, more than the largest bucket of {T}"):
        s.prefill([1] * (T + 1))
    with pytest.raises(InputError, match=f"{T} tokens and 9 new ones need 20 cache slots, and there are {S}"):
        list(s.generate_streaming_greedy([1] * T, 9))
    with pytest.raises(InputError, match="number of tokens: is 0"):
        list(s.generate_streaming_greedy([1], 0))
    assert len(list(s.generate_streaming_greedy([1] * T, 8))) == 8, "a refusal changes nothing"


def test_capacity_exhausted() -> None:
    s = session("plain", "token")
    s.stream_prompt([1] * S)
    with pytest.raises(InputError, match=f"decode: all {S} cache slots are filled"):
        s.decode_step(1)
    with pytest.raises(InputError, match=f"prompt: has {S + 1} tokens, more than the {S} cache slots"):
        s.stream_prompt([1] * (S + 1))
    s.reset()
    assert isinstance(s.decode_step(1), int)


def test_session_without_a_prefill_graph() -> None:
    s = Session(xla(), graphs("plain", "token")[:1], weights_of("plain").__getitem__)
    prompt = sequence_of("plain")[:T]
    assert s.buckets == ()
    assert s.stream_prompt(prompt) == session("plain", "token").prefill(prompt)
    with pytest.raises(InputError, match="has no prefill graph"):
        s.prefill(prompt)
