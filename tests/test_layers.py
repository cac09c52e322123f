"""Each mechanism by itself, in JAX and as emitted, against torch: what transformers' modules are made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from graphs import run

from hloracle.backends.devices import Device
from hloracle.backends.iree import IreeCpu, IreeDevice
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.emitters import layers as emitted
from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import LayerBuilder, Visible
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.config import Experts, Rope
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.rope import RopeTables, decode_tables, prefill_tables
from hloracle.reference.oracle import layers as reference

DTYPES = {"float32": "f32", "int32": "i32", "bool": "i1"}
SOURCES = ("reference", "emitter")
T, N, K, D, S, E = 5, 6, 2, 8, 7, 12
# A handful of float32 roundings of values of about 1, and sums of at most 12 terms.
ATOL = 4e-6


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def compute(
    source: str, ours: Callable[..., Any], theirs: Callable[..., Value], *arrays: np.ndarray, **constants: Any
) -> np.ndarray:
    """The mechanism of one side: `ours` is the reference's function, `theirs` the Builder's method."""
    if source == "reference":
        with jax.numpy_rank_promotion("allow"):
            return np.asarray(jax.jit(lambda *a: ours(*a, **constants))(*arrays))
    b = LayerBuilder()
    arguments = [b.argument(TensorType(a.shape, DTYPES[a.dtype.name]), f"a{i}") for i, a in enumerate(arrays)]
    result = theirs(b, *arguments, **constants)
    inputs = tuple(Tensor("weight", v.name, v.shape, v.dtype) for v in arguments)
    output = Tensor("tap", "y", result.shape, result.dtype)
    (found,) = run(b.graph("layer", Abi("decode", inputs, (output,)), [result]), *arrays)
    return found


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(np.float32)


def close(found: np.ndarray, expected: Any, atol: float = ATOL) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(expected[np.isfinite(expected)]).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol * max(1, np.abs(expected).max()))


# ---- norms and activations


def test_rms_norm(source: str) -> None:
    x, weight = random(T, N, D, scale=3), random(D)
    expected = torch.nn.functional.rms_norm(torch.tensor(x), (D,), torch.tensor(weight), 3e-2)
    close(compute(source, reference.rms_norm, LayerBuilder.rms_norm, x, weight, eps=3e-2), expected)


def test_rms_norm_with_weights_of_each_head(source: str) -> None:
    x, weight = random(T, N, D, scale=3), random(N, D)
    expected = torch.nn.functional.rms_norm(torch.tensor(x), (D,), None, 3e-2) * torch.tensor(weight)
    close(compute(source, reference.rms_norm, LayerBuilder.rms_norm, x, weight, eps=3e-2), expected)


def test_layer_norm(source: str) -> None:
    x, weight, bias = random(T, E, scale=3) + 2, random(E), random(E, seed=1)
    expected = torch.nn.functional.layer_norm(*map(torch.tensor, (x,)), (E,), *map(torch.tensor, (weight, bias)), 3e-2)
    close(compute(source, reference.layer_norm, LayerBuilder.layer_norm, x, weight, bias, eps=3e-2), expected)
    without = torch.nn.functional.layer_norm(torch.tensor(x), (E,), torch.tensor(weight), None, 3e-2)
    found = compute(
        source, lambda x, w: reference.layer_norm(x, w, None, 3e-2), lambda b, x, w: b.layer_norm(x, w, None, 3e-2), x, weight
    )  # fmt: skip
    close(found, without)


@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
def test_activation(source: str, name: str) -> None:
    from transformers.activations import ACT2FN

    x = random(T, E, scale=3)
    found = compute(source, reference.ACTIVATIONS[name], lambda b, x: b.activation(name, x), x)
    close(found, ACT2FN[name](torch.tensor(x)))


def test_gelu_is_the_tanh_form(source: str) -> None:
    """The exact one differs by up to 5e-4: more than rounding."""
    x = np.linspace(-3, 3, 61, dtype=np.float32)[None]
    found = compute(source, reference.gelu, LayerBuilder.gelu, x)
    exact = torch.nn.functional.gelu(torch.tensor(x)).numpy()
    assert 1e-4 < np.abs(found - exact).max() < 1e-3


def test_soft_cap(source: str) -> None:
    x = random(T, E, scale=9)
    found = compute(source, reference.soft_cap, LayerBuilder.soft_cap, x, cap=4.0)
    close(found, torch.tanh(torch.tensor(x) / 4.0) * 4.0)
    assert np.abs(found).max() <= 4


def test_clip(source: str) -> None:
    x = random(T, E, scale=3)
    close(compute(source, reference.clip, LayerBuilder.clip, x, limit=1.5), torch.tensor(x).clamp(-1.5, 1.5))


def test_clamped_swiglu(source: str) -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    x = random(T, 3, 2 * D, scale=3)
    expected = torch.tensor(x)
    gate, up = expected[..., ::2].clamp(max=2.0), expected[..., 1::2].clamp(-2.0, 2.0)
    expected = (up + 1) * gate * torch.sigmoid(gate * 1.702)
    assert hasattr(GptOssExperts, "_apply_gate")
    close(compute(source, reference.clamped_swiglu, LayerBuilder.clamped_swiglu, x, limit=2.0, alpha=1.702), expected)


# ---- rotary position embedding


def rotated(source: str, x: np.ndarray, rope: Rope, start: int | None = None, length: int = T) -> np.ndarray:
    """x turned as a prefill's prompt of `length` tokens, or as a decode's token at `start`."""
    tables: RopeTables = prefill_tables(rope, T) if start is None else decode_tables(rope, S)
    position = np.array(length if start is None else start, np.int32)

    def ours(x: Any, n: Any) -> Any:
        args = (None, n) if start is None else (n, None)
        return reference.rotary(x, reference.rope_rows(tables, rope.interleaved, *args))

    def theirs(b: LayerBuilder, x: Value, n: Value) -> Value:
        args = (None, n) if start is None else (n, None)
        return b.rotary(x, b.rope_rows(tables, rope.interleaved, *args))

    return compute(source, ours, theirs, x, position)


def angles(rope: Rope, tables: RopeTables, variant: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as transformers' modules return them, [1, positions, dim]."""
    pairs = (torch.tensor(table[variant])[None] for table in (tables.cos, tables.sin))
    cos, sin = (t.repeat_interleave(2, -1) if rope.interleaved else torch.cat([t, t], -1) for t in pairs)
    return cos, sin


@pytest.mark.parametrize("dim", [D, D // 2, 2])
def test_rotary(source: str, dim: int) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    rope, x = Rope("default", 100.0, dim), random(T, N, D)
    q = torch.tensor(x[..., :dim]).transpose(0, 1)[None]
    turned, _ = apply_rotary_pos_emb(q, q, *angles(rope, prefill_tables(rope, T)))
    expected = np.concatenate([turned[0].transpose(0, 1).numpy(), x[..., dim:]], -1)
    close(rotated(source, x, rope), expected)
    for position in (0, 3):
        close(rotated(source, x[position : position + 1], rope, start=position), expected[position : position + 1])


@pytest.mark.parametrize("dim", [D, D // 2])
def test_rotary_interleaved(source: str, dim: int) -> None:
    """As Cohere's, and GLM's of a part of each head."""
    from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb

    rope, x = Rope("default", 100.0, dim, interleaved=True), random(T, N, D)
    q = torch.tensor(x[..., :dim]).transpose(0, 1)[None]
    turned, _ = apply_rotary_pos_emb(q, q, *angles(rope, prefill_tables(rope, T)))
    expected = np.concatenate([turned[0].transpose(0, 1).numpy(), x[..., dim:]], -1)
    close(rotated(source, x, rope), expected)
    close(rotated(source, x[3:4], rope, start=3), expected[3:4])
    assert np.abs(rotated(source, x, Rope("default", 100.0, dim)) - expected).max() > 0.1


def test_rotary_of_a_length(source: str) -> None:
    """Where the angles depend on it, a prompt takes the variant of its own length, not of its bucket."""
    rope = Rope("dynamic", 100.0, D, factor=3.0, original_max_position_embeddings=3)
    x, tables = random(T, N, D), prefill_tables(rope, T)
    assert len(tables.cos) == 3
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q = torch.tensor(x).transpose(0, 1)[None]
    for length, variant in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 2)):
        turned, _ = apply_rotary_pos_emb(q, q, *angles(rope, tables, variant))
        close(rotated(source, x, rope, length=length), turned[0].transpose(0, 1))
    assert (tables.cos[1] != tables.cos[2]).any()


def test_in_halves(source: str) -> None:
    """With it, a rotation of halves is what transformers computes of pairs (DeepSeek's `rope_interleave`)."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

    rope, x = Rope("default", 100.0, D), random(T, N, D)
    q = torch.tensor(x).transpose(0, 1)[None]
    turned, _ = apply_rotary_pos_emb_interleave(q, q, *angles(rope, prefill_tables(rope, T)))
    halves = compute(source, reference.in_halves, LayerBuilder.in_halves, x, interleaved=True)
    close(rotated(source, halves, rope), turned[0].transpose(0, 1))
    np.testing.assert_array_equal(x, compute(source, reference.in_halves, LayerBuilder.in_halves, x, interleaved=False))


# ---- attention


@pytest.mark.parametrize("window", [None, 1, 3, T, T + 1])
def test_visible(source: str, window: int | None) -> None:
    """A window of 1 is the query alone, as in transformers' `sliding_window_overlay`: kv_idx > q_idx - window."""
    from transformers.masking_utils import sliding_window_overlay

    q, k = np.indices((T, T))
    wanted = k <= q
    if window is not None:
        inside = sliding_window_overlay(window)
        wanted &= np.array([[bool(inside(0, 0, i, j)) for j in range(T)] for i in range(T)])
    zero = np.zeros((), np.int32)
    found = compute(
        source, lambda z: reference.visible_causal(T, window) & (z == 0), lambda b, z: b.visible_causal(T, window), zero
    )
    np.testing.assert_array_equal(found, wanted)
    for position in range(T):
        row = compute(
            source, lambda p: reference.visible_to_position(p, T, window), lambda b, p: b.visible_to_position(p, T, window),
            np.array(position, np.int32),
        )  # fmt: skip
        np.testing.assert_array_equal(row.reshape(T), wanted[position])


@pytest.mark.parametrize("cap", [None, 1.5], ids=["plain", "capped"])
@pytest.mark.parametrize("sinks", [False, True], ids=["no-sinks", "sinks"])
@pytest.mark.parametrize("tokens", [1, T])
def test_attention(source: str, tokens: int, sinks: bool, cap: float | None) -> None:
    """As `eager_attention_forward` of Gemma 2 and of GPT-OSS has it, over keys of which some are hidden."""
    q, k, v = random(tokens, N, D, scale=2), random(K, S, D, seed=1), random(K, S, D, seed=2)
    visible = np.random.default_rng(3).random((tokens, S)) < 0.6
    visible[:, 2] = True
    extra = [random(N, seed=4)] if sinks else []
    heads = torch.tensor(np.repeat(k, N // K, 0)), torch.tensor(np.repeat(v, N // K, 0))
    scores = torch.tensor(q).transpose(0, 1) @ heads[0].mT * 0.3  # [N, T, S]
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    scores = scores.masked_fill(~torch.tensor(visible), -torch.inf)
    if sinks:
        column = torch.tensor(extra[0])[:, None, None].expand(-1, tokens, 1)
        probs = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
        assert (probs.sum(-1) < 0.999).all()
    else:
        probs = torch.softmax(scores, -1)
    expected = (probs @ heads[1]).transpose(0, 1).reshape(tokens, N * D)
    found = compute(
        source,
        lambda q, k, v, seen, *s: reference.attention(q, k, v, reference.Scoring(seen, 0.3, cap, *s)),
        lambda b, q, k, v, seen, *s: b.attention(q, k, v, emitted.Scoring(Visible(seen), 0.3, cap, *s)),
        q, k, v, visible, *extra,
    )  # fmt: skip
    close(found, expected)


def test_softmax_of_large_scores(source: str) -> None:
    scores, sinks = (
        np.array([[[900.0, 899.0]], [[-900.0, -901.0]]], np.float32),
        np.array([[901.0], [-899.0]], np.float32),
    )
    found = compute(
        source, lambda x, s: reference.softmax(x, s[:, :, None]), lambda b, x, s: b.softmax(x, s), scores, sinks
    )
    expected = torch.softmax(torch.tensor(np.concatenate([scores, sinks[:, :, None]], -1)), -1)[..., :-1]
    close(found, expected)


@pytest.mark.parametrize("tokens", [1, T])
def test_latent_attention_is_the_expanded_one(source: str, tokens: int) -> None:
    """Keys and values made of the latents, as `DeepseekV3Attention` makes them, give the same."""
    R, P, Z, U = 9, 6, 4, 5
    q, q_rope = random(tokens, N, P), random(tokens, N, Z, seed=1)
    latents, k_rope, expand = random(1, S, R, seed=2), random(1, S, Z, seed=3), random(N, P + U, R, seed=4, scale=0.3)
    visible = np.tril(np.ones((tokens, S), bool), 2)
    made = torch.einsum("sr,nur->nsu", torch.tensor(latents[0]), torch.tensor(expand))
    keys = torch.cat([made[..., :P], torch.tensor(k_rope).expand(N, -1, -1)], -1)
    queries = torch.cat([torch.tensor(q), torch.tensor(q_rope)], -1).transpose(0, 1)
    scores = (queries @ keys.mT * 0.3).masked_fill(~torch.tensor(visible), -torch.inf)
    expected = (torch.softmax(scores, -1) @ made[..., P:]).transpose(0, 1).reshape(tokens, N * U)
    found = compute(
        source,
        lambda *a: reference.latent_attention(*a[:-1], reference.Scoring(a[-1], 0.3)),
        lambda b, *a: b.latent_attention(*a[:-1], emitted.Scoring(Visible(a[-1]), 0.3)),
        q, q_rope, latents, k_rope, expand, visible,
    )  # fmt: skip
    close(found, expected)


# ---- attention to a block of keys at a time


def seen_from(position: int, slots: int, window: int | None) -> np.ndarray:
    at, slot = position + np.arange(T)[:, None], np.arange(slots)
    return (slot <= at) & (slot > at - (window or slots))


def in_blocks(b: LayerBuilder, seen: Value, position: int, window: int | None) -> Visible:
    return Visible(seen, b.key_blocks(b.i32(position), T, seen.shape[1], window))


def without_unread(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """x [K, S, D] with NaN wherever no block is that holds a key which a query sees."""
    slots, (keys,) = seen.shape[1], np.nonzero(seen.any(0))
    first, last = keys[0] // 8, keys[-1] // 8
    read = np.zeros(slots, bool)
    for block in range(first, last + 1):
        begins = min(8 * block, slots - 8)
        read[begins : begins + 8] = True
    return np.where(read[:, None], x, np.float32(np.nan))


@pytest.fixture
def blocks_of_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitted, "BLOCK", 8)


# With S of 29, the last block begins within the one before it.
@pytest.mark.usefixtures("blocks_of_8")
@pytest.mark.parametrize(
    ("position", "slots", "window", "cap", "scale"),
    [
        (0, 24, None, None, 1), (17, 24, None, None, 300), (19, 24, None, 1.5, 1), (3, 29, None, None, 1),
        (24, 29, None, None, 300), (20, 29, 6, None, 1), (11, 48, 6, 1.5, 1), (8, 48, 1, None, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sinks", [False, True], ids=["no-sinks", "sinks"])
def test_attention_in_blocks_is_attention(
    position: int, slots: int, window: int | None, cap: float | None, scale: float, sinks: bool
) -> None:
    """Whichever block holds the largest score; and no block is read of which no query sees a key."""
    q, k, v = random(T, N, D, scale=2), random(K, slots, D, seed=1, scale=scale), random(K, slots, D, seed=2)
    seen, extra = seen_from(position, slots, window), [random(N, seed=4)] if sinks else []
    expected = compute(
        "reference",
        lambda q, k, v, seen, *s: reference.attention(q, k, v, reference.Scoring(seen, 0.3, cap, *s)),
        LayerBuilder.attention,
        q, k, v, seen, *extra,
    )  # fmt: skip
    found = compute(
        "emitter",
        reference.attention,
        lambda b, q, k, v, seen, *s: b.attention(
            q, k, v, emitted.Scoring(in_blocks(b, seen, position, window), 0.3, cap, *s)
        ),
        q, without_unread(k, seen), without_unread(v, seen), seen, *extra,
    )  # fmt: skip
    close(found, expected, atol=ATOL * max(1, scale / 10))


@pytest.mark.usefixtures("blocks_of_8")
@pytest.mark.parametrize(("position", "slots", "window"), [(0, 24, None), (24, 29, None), (11, 48, 6)])
def test_latent_attention_in_blocks_is_latent_attention(position: int, slots: int, window: int | None) -> None:
    R, P, Z, U = 9, 6, 4, 5
    q, q_rope, expand = random(T, N, P), random(T, N, Z, seed=1), random(N, P + U, R, seed=4, scale=0.3)
    latents, k_rope = random(1, slots, R, seed=2), random(1, slots, Z, seed=3)
    seen = seen_from(position, slots, window)
    expected = compute(
        "reference",
        lambda *a: reference.latent_attention(*a[:-1], reference.Scoring(a[-1], 0.3)),
        LayerBuilder.latent_attention,
        q, q_rope, latents, k_rope, expand, seen,
    )  # fmt: skip
    found = compute(
        "emitter",
        reference.latent_attention,
        lambda b, *a: b.latent_attention(
            *a[:-1], emitted.Scoring(in_blocks(b, a[-1], position, window), 0.3)
        ),
        q, q_rope, without_unread(latents, seen), without_unread(k_rope, seen), expand, seen,
    )  # fmt: skip
    close(found, expected)


# ---- mixtures of experts

TIED = np.array([[1, 3, 3, 2, 3, 0], [2, 2, 2, 2, 2, 2], [0, 1, 2, 2, 1, 0], [-1, -1, -2, 0, 0, 0]], np.float32)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_top_k_takes_the_lowest_of_equals(source: str, k: int) -> None:
    order = np.argsort(-TIED, axis=1, kind="stable")[:, :k]
    wanted = np.zeros(TIED.shape, bool)
    np.put_along_axis(wanted, order, True, 1)
    found = compute(source, reference.among_top_k, LayerBuilder.among_top_k, TIED, k=k)
    np.testing.assert_array_equal(found, wanted)
    if source == "reference":
        np.testing.assert_array_equal(np.asarray(reference.top_k(jax.numpy.asarray(TIED), k)), order)


def test_rank(source: str) -> None:
    order = np.argsort(-TIED, axis=1, kind="stable")
    if source == "emitter":
        np.testing.assert_array_equal(compute(source, reference.top_k, LayerBuilder.rank, TIED), np.argsort(order, 1))


SCORES = np.random.default_rng(8).permuted(np.tile(np.linspace(-2, 2, 12, dtype=np.float32), (T, 1)), axis=1)


@pytest.mark.parametrize("normed", [False, True])
def test_softmax_routing(source: str, normed: bool) -> None:
    """As `Qwen2MoeTopKRouter` and `MixtralTopKRouter`: softmax of all, then the best, then their sum made 1 or not."""
    config = Experts(12, 3, 4, norm_topk_prob=normed)
    values, places = torch.softmax(torch.tensor(SCORES), -1).topk(3, -1)
    values = values / values.sum(-1, keepdim=True) if normed else values
    expected = torch.zeros(SCORES.shape).scatter(1, places, values)
    found = compute(source, reference.route, LayerBuilder.route, SCORES, config=config)
    close(found, expected)
    assert np.allclose(found.sum(1), 1) == normed


def test_softmax_of_chosen_routing(source: str) -> None:
    """As `GptOssTopKRouter`: the best, then softmax of them."""
    values, places = torch.tensor(SCORES).topk(3, -1)
    expected = torch.zeros(SCORES.shape).scatter(1, places, torch.softmax(values, -1))
    config = Experts(12, 3, 4, scoring="softmax-of-chosen")
    close(compute(source, reference.route, LayerBuilder.route, SCORES, config=config), expected)


@pytest.mark.parametrize(("groups", "best"), [(1, 1), (3, 2), (4, 1), (6, 3)])
@pytest.mark.parametrize("normed", [False, True])
def test_sigmoid_routing_in_groups(source: str, normed: bool, groups: int, best: int) -> None:
    """As `DeepseekV3TopkRouter` routes: a bias shifts what is chosen, and not how much is taken."""
    config = Experts(
        12, 2, 4, scoring="sigmoid", norm_topk_prob=normed, n_group=groups, topk_group=best, routed_scaling_factor=1.7
    )
    bias = random(12, seed=5, scale=0.3)
    scores = torch.tensor(SCORES).sigmoid()
    choice = scores + torch.tensor(bias)
    grouped = choice.view(T, groups, -1)
    chosen = torch.zeros(T, groups).scatter(1, grouped.topk(2, -1).values.sum(-1).topk(best, -1).indices, 1)
    inside = chosen[:, :, None].expand(grouped.shape).reshape(T, 12).bool()
    places = choice.masked_fill(~inside, -torch.inf).topk(2, -1).indices
    values = scores.gather(1, places)
    values = (values / values.sum(-1, keepdim=True) if normed else values) * 1.7
    expected = torch.zeros(SCORES.shape).scatter(1, places, values)
    found = compute(
        source,
        lambda x, bias: reference.route(x, config, bias),
        lambda b, x, bias: b.route(x, config, bias),
        SCORES,
        bias,
    )
    close(found, expected)
    unbiased = compute(source, reference.route, LayerBuilder.route, SCORES, config=config)
    assert ((unbiased > 0) != (found > 0)).any(), "the bias changes what is chosen"


def test_routing_where_every_score_is_zero(source: str) -> None:
    """As `DeepseekV3TopkRouter`, which adds to the sum: nothing is taken of any, where 0 / 0 would be no number."""
    config = Experts(12, 2, 4, scoring="sigmoid", norm_topk_prob=True, norm_topk_eps=1e-20)
    scores = np.full((T, 12), -300, np.float32)
    np.testing.assert_array_equal(compute(source, reference.route, LayerBuilder.route, scores, config=config), 0)
    experts = from_hf(TINY["deepseek_v3"]).experts
    assert experts is not None
    assert experts.norm_topk_eps == config.norm_topk_eps


@pytest.mark.parametrize("tokens", [1, T])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "gpt_oss"])
def test_experts(source: str, biased: bool, tokens: int) -> None:
    """Each token through its experts, weighted: all experts' weights in a prompt, the chosen ones' for a single token."""
    X, M = 5, 3
    config, x = Experts(X, 2, M, scoring="softmax-of-chosen"), random(tokens, E)
    routing = np.asarray(reference.route(jax.numpy.asarray(random(tokens, X, seed=6)), config))
    assert ((routing > 0).sum(1) == 2).all()
    gate_up, down = random(X, 2 * M, E, seed=1, scale=0.4), random(X, E, M, seed=2, scale=0.6)
    biases = [random(X, 2 * M, seed=3), random(X, E, seed=4)] if biased else []
    expected = torch.zeros(tokens, E)
    for t, e in zip(*np.nonzero(routing), strict=True):
        h = torch.tensor(gate_up[e] @ x[t] + (biases[0][e] if biased else 0))
        h = (torch.nn.functional.silu(h[:M]) * h[M:]).numpy()
        expected[t] += routing[t, e] * torch.tensor(down[e] @ h + (biases[1][e] if biased else 0))
    weights = [gate_up, down] if not biased else [gate_up.swapaxes(1, 2).copy(), down.swapaxes(1, 2).copy(), *biases]

    def ours(x: Any, r: Any, *w: Any) -> Any:
        def gated(h: Any) -> Any:
            gate, up = reference.halves(h)
            return reference.silu(gate) * up

        return reference.experts(x, r, reference.ExpertWeights(*w), config, gated, transposed=biased)

    def theirs(b: LayerBuilder, x: Value, r: Value, *w: Value) -> Value:
        def gated(h: Value) -> Value:
            gate, up = b.halves(h)
            return b.multiply(b.silu(gate), up)

        return b.experts(x, r, emitted.ExpertWeights(*w), config, gated, transposed=biased)

    close(compute(source, ours, theirs, x, routing, *weights), expected)


def test_experts_of_which_fewer_are_taken_than_chosen(source: str) -> None:
    """A share that rounds to 0 takes an expert's weights for nothing, and no other expert's in its place."""
    config, x = Experts(4, 2, 3), random(1, E)
    routing = np.array([[0.0, 0.0, 0.7, 0.0]], np.float32)
    gate_up, down = random(4, 6, E, seed=1), random(4, E, 3, seed=2)
    h = gate_up[2] @ x[0]
    expected = 0.7 * down[2] @ (h[:3] * h[3:])
    found = compute(
        source,
        lambda x, r, *w: reference.experts(
            x, r, reference.ExpertWeights(*w), config, lambda h: reference.halves(h)[0] * reference.halves(h)[1]
        ),
        lambda b, x, r, *w: b.experts(x, r, emitted.ExpertWeights(*w), config, lambda h: b.multiply(*b.halves(h))),
        x, routing, gate_up, down,
    )  # fmt: skip
    close(found, expected[None])


def test_what_torch_takes_of_equals() -> None:
    """torch.topk on a CPU takes neither the lowest nor the highest index: docs/toolchain-notes.md. Ours is the lowest."""
    taken = {n: torch.topk(torch.zeros(n), 2).indices.tolist() for n in (8, 64, 128)}
    assert taken == {8: [6, 5], 64: [42, 43], 128: [0, 1]}
    for n in taken:
        assert np.asarray(reference.top_k(jax.numpy.zeros((1, n)), 2)).tolist() == [[0, 1]]
        found = compute("emitter", reference.among_top_k, LayerBuilder.among_top_k, np.zeros((1, n), np.float32), k=2)
        assert np.flatnonzero(found).tolist() == [0, 1]


def test_argmax_takes_the_lowest_of_equals(source: str) -> None:
    for logits, wanted in (([1, 3, 3, 2], 1), ([2, 2], 0), ([np.nan, 1], 2), ([-np.inf, -np.inf], 0)):
        found = compute(source, reference.argmax, LayerBuilder.argmax, np.array(logits, np.float32))
        assert found == wanted


class Unguarded(LayerBuilder):
    def optimization_barrier(self, operand: Value) -> Value:
        return operand


def routing(b: LayerBuilder) -> tuple[Graph, list[tuple[int, ...]]]:
    """One token's shares of the two experts that it chooses of five; the shapes of what the graph takes after its x."""
    weights = [(5, 84), (5,), (5, 6)]
    h, w, bias, table = (b.argument(TensorType(shape, "f32")) for shape in ((1, 84), *weights))
    routing = b.route(b.linear(h, w, bias), Experts(5, 2, 4, scoring="softmax-of-chosen"))
    shares, _ = b.chosen(routing, emitted.ExpertWeights(table, table), 2)
    inputs = tuple(Tensor("weight", v.name, v.shape, v.dtype) for v in b.arguments)
    return b.graph("chosen", Abi("decode", inputs, (Tensor("tap", "shares", (1, 2), "f32"),)), [shares]), weights


def test_no_expert_is_lost_on_iree() -> None:
    """IREE fuses the product into both sides of the comparison, and its two sums differ: see docs/toolchain-notes.md."""
    graph, weights = routing(LayerBuilder())
    iree = IreeCpu(2)
    execute, fixed = iree.load(graph), [iree.upload(random(*shape, seed=i)) for i, shape in enumerate(weights)]
    found = [iree.download(execute([iree.upload(random(1, 84, seed=seed)), *fixed])[0]) for seed in range(200)]
    assert not any(np.any(shares == 0) for shares in found)


@pytest.mark.parametrize("builder", [LayerBuilder, Unguarded])
def test_what_is_ranked_stands_behind_a_barrier(builder: type[LayerBuilder]) -> None:
    """Whether an expert is lost without it depends on the processor; that both sides of a comparison of scores come from
    one barrier does not.
    """
    lines = re.findall(r"^ +(%\S+?)(?::\d+)? = stablehlo\.(\w+) (.*?) :", routing(builder())[0].text, re.M)
    made = {name: (op, re.findall(r"%[\w.]+", operands)) for name, op, operands in lines}

    def source(name: str) -> str:
        op, operands = made.get(name, ("argument", []))
        return source(operands[0]) if op in ("reshape", "broadcast_in_dim", "transpose") else op

    compared = [[source(operand) for operand in operands] for op, operands in made.values() if op == "compare"]
    scores = [sides for sides in compared if set(sides) & {"optimization_barrier", "add"}]
    assert scores
    assert all(sides == ["optimization_barrier"] * 2 for sides in scores) == (builder is LayerBuilder)


# ---- on a device


@pytest.mark.parametrize("size", [3, 257, 1000, 49152])
@pytest.mark.parametrize("on", ["xla", "simulated"])
def test_argmax_on_a_device(size: int, on: str) -> None:
    """The lowest of the largest ones, wherever they are; and no index at all where a number is not one."""
    b = LayerBuilder(on_device=True)
    logits = b.argument(TensorType((size,), "f32"), "logits")
    abi = Abi("decode", (Tensor("weight", "logits", (size,), "f32"),), (Tensor("tap", "y", (), "i32"),))
    graph = b.graph("argmax", abi, [b.argmax(logits)])
    assert "optimization_barrier" in graph.text
    assert "minimum" not in graph.text
    device = IreeDevice(Device("simulated"))
    loaded = device.load(graph) if on == "simulated" else None

    def token(values: np.ndarray) -> int:
        if loaded:
            return int(device.download(loaded([device.upload(values)])[0]))
        return int(run(graph, values)[0])

    rng = np.random.default_rng(size)
    for largest in ([0], [size - 1], [size // 2], [1, size - 1], rng.integers(0, size, 3).tolist()):
        values = rng.normal(size=size).astype(np.float32)
        values[largest] = 9
        assert token(values) == min(largest)
    assert token(np.full(size, -np.inf, np.float32)) == 0
    assert token(np.full(size, np.nan, np.float32)) == size


def test_rows_are_put_where_the_indices_say() -> None:
    b = LayerBuilder()
    table, indices, rows = (
        b.argument(TensorType(shape, dtype), name)
        for name, shape, dtype in (("t", (7, 3), "f32"), ("i", (2, 1), "i32"), ("r", (2, 3), "f32"))
    )
    abi = Abi("decode", tuple(Tensor("weight", v.name, v.shape, v.dtype) for v in (table, indices, rows)),
              (Tensor("tap", "y", (7, 3), "f32"),))  # fmt: skip
    graph = b.graph("put", abi, [b.scatter_rows(table, indices, rows)])
    before, new, at = random(7, 3), random(2, 3, seed=1), np.array([[2], [6]], np.int32)
    (found,) = run(graph, before.copy(), at, new)
    expected = before.copy()
    expected[[2, 6]] = new
    np.testing.assert_array_equal(found, expected)
