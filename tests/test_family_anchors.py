"""Every family at its anchors: the truth is what transformers attends by and routes by, and graphs are held to it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import FAMILY_SHAPES, LENGTH, PHASES, SOURCES, changed, interpreter, model, quick_xla
from nightly import only

from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.dissect import Question, Side, dissect, local_errors
from hloracle.localize.probes import probe
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface.anchor_truth import AnchorTruth, anchor_truth, row_shape, visible
from hloracle.reference.huggingface.truth import greedy, load_model, teacher_forced
from hloracle.reference.model.anchors import anchors
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Experts
from hloracle.reference.model.registry import FAMILIES

# Beyond the windows of 11; where angles turn at 40, a prompt before that whose tokens go beyond it, and beyond a window of 23.
USUAL, TURNING = (9, 5), (38, 5)
RELATIVE = 1e-5  # values were rounded to float32, and some are computed from those


# Each way to attend, to route and to turn by a length in every run of the tests.
SOME = ["llama", "gemma2", "phi3", "seed_oss", "qwen2_moe", "gpt_oss", "deepseek_v3"]
# Each source and each phase once.
GRAPHS = only([("emitter", "prefill"), ("oracle", "decode")], itertools.product(SOURCES, PHASES))


@pytest.fixture(scope="module", params=only(SOME, FAMILIES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path_factory.mktemp("model") / "tiny", request.param, seed=2))


@pytest.fixture(scope="module")
def said(checkpoint: Checkpoint) -> tuple[list[int], list[int], np.ndarray, np.ndarray]:
    """A prompt, what follows it and the logits of that, as a session with a cache computes them; and in one pass."""
    length, count = TURNING if checkpoint.config.turning_point else USUAL
    prompt = np.random.default_rng(1).integers(0, checkpoint.config.vocab_size, length).tolist()
    model = load_model(checkpoint.directory)
    tokens, logits = greedy(model, prompt, count)
    return prompt, tokens, logits, teacher_forced(model, prompt, tokens)[0]


@pytest.fixture(scope="module")
def truth(checkpoint: Checkpoint, said: Any) -> AnchorTruth:
    prompt, tokens, _, _ = said
    return anchor_truth(checkpoint, [*prompt, *tokens[:-1]], prompt=len(prompt))


def near(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    finite = np.isfinite(expected)
    assert found.shape == expected.shape, what
    np.testing.assert_array_equal(np.isfinite(found), finite, err_msg=what)
    scale = np.max(np.abs(expected[finite]))
    worst = np.max(np.abs(found[finite] - expected[finite])) / scale
    assert worst < RELATIVE, (what, worst)


# ---- the truth


def test_every_anchor_is_recorded(checkpoint: Checkpoint, truth: AnchorTruth) -> None:
    n = len(truth.tokens)
    for anchor in anchors(checkpoint.config):
        values, noise = truth.values(anchor), truth.noise(anchor)
        assert values.shape == (n, *row_shape(checkpoint.config, anchor, n)), anchor
        assert noise.shape == (n,)
        assert np.isfinite(noise).all()
        finite = values[np.isfinite(values)]
        assert finite.any(), anchor
        assert np.max(noise) < 1e-4 * np.max(np.abs(finite)), anchor
        assert np.isfinite(values).all() or anchor.endswith(".scores")


def test_the_head_is_that_of_a_session_with_a_cache(checkpoint: Checkpoint, truth: AnchorTruth, said: Any) -> None:
    prompt, _, logits, at_once = said
    head = truth.values("lm_head")[len(prompt) - 1 :]
    scale = np.abs(logits).max()
    assert np.abs(head - logits).max() < 1e-4 * scale
    # Otherwise one pass over all would have done.
    assert (np.abs(at_once - logits).max() > 1e-3 * scale) == (checkpoint.config.turning_point is not None)


def test_what_is_attended_to(checkpoint: Checkpoint, truth: AnchorTruth) -> None:
    """Scores, probabilities and context of each layer, computed again from the queries, the caches and the window."""
    config, n = checkpoint.config, len(truth.tokens)
    reach = {layer.window for layer in config.layers} - {None}
    assert all(window < n for window in reach), "the sequence goes beyond each window"
    for i in range(config.num_hidden_layers):

        def value(part: str) -> np.ndarray:
            return truth.values(part.format(i)).astype(np.float64)  # noqa: B023

        at = "layers.{}.self_attn."
        turned = "layers.0.self_attn.q_rope".replace("0", str(i)) in anchors(config)
        q = value(at + ("q_rope" if turned else "q_proj"))  # [n, N, Z]
        k, v = value("k_cache.{}"), value("v_cache.{}")  # [n, K, ...]
        if config.latent:
            np.testing.assert_array_equal(k[:, 0], value(at + "kv_a_layernorm"))
            np.testing.assert_array_equal(v, value(at + "k_rope"))
            P, U = config.latent.qk_nope_head_dim, config.latent.v_head_dim
            queries = value(at + ("q_b_proj" if config.latent.q_lora_rank else "q_proj"))
            expand = checkpoint.load(f"model.layers.{i}.self_attn.kv_b_proj.weight").astype(np.float64)
            expanded = np.einsum("sr,nwr->snw", k[:, 0], expand.reshape(config.num_attention_heads, P + U, -1))
            keys = np.concatenate([expanded[..., :P], np.broadcast_to(v, (*expanded.shape[:2], v.shape[2]))], axis=2)
            q, k, v = np.concatenate([queries[..., :P], q], axis=2), keys, expanded[..., P:]
        elif turned:
            np.testing.assert_array_equal(k, value(at + "k_rope"))
        G = q.shape[1] // k.shape[1]
        scores = np.einsum("qnd,snd->qns", q, np.repeat(k, G, axis=1)) * config.scaling
        if cap := config.attn_logit_softcapping:
            scores = cap * np.tanh(scores / cap)
        index, window = np.arange(n), config.layers[i].window or n
        hidden = (index > index[:, None]) | (index <= index[:, None] - window)
        scores[np.broadcast_to(hidden[:, None], scores.shape)] = -np.inf
        near(value(at + "scores").reshape(scores.shape), scores, f"scores of layer {i}")
        for query in index:
            seen = visible(config, f"layers.{i}.self_attn.scores", query)
            assert list(index[seen]) == list(index[~hidden[query]])
        exponentials = np.exp(scores)
        total = exponentials.sum(axis=2, keepdims=True)
        sinks = f"model.layers.{i}.self_attn.sinks"
        if sinks in dict(checkpoint.weights()):
            total = total + np.exp(checkpoint.load(sinks).astype(np.float64))[None, :, None]
        probs = exponentials / total
        recorded = value(at + "probs").reshape(scores.shape)
        assert not recorded[np.isneginf(scores)].any()
        near(recorded, probs, f"probs of layer {i}")
        context = np.einsum("qns,snd->qnd", probs, np.repeat(v, G, axis=1)).reshape(n, -1)
        near(value(at + "context"), context, f"context of layer {i}")


def routed(logits: np.ndarray, config: Experts, bias: np.ndarray | None) -> np.ndarray:
    """How much of each expert, token by token."""
    found = np.zeros_like(logits)
    for row, token in zip(found, logits, strict=True):
        scores = np.exp(token - token.max()) / np.exp(token - token.max()).sum()
        if config.scoring == "sigmoid":
            scores = 1 / (1 + np.exp(-token))
        choice = token if config.scoring == "softmax-of-chosen" else scores + (0 if bias is None else bias)
        if config.n_group > 1:
            groups = choice.reshape(config.n_group, -1)
            best = np.argsort(-np.sort(groups, axis=1)[:, -2:].sum(axis=1))[: config.topk_group]
            inside = np.isin(np.arange(config.n_group), best).repeat(groups.shape[1])
            choice = np.where(inside, choice, -np.inf)
        chosen = np.argsort(-choice)[: config.num_experts_per_tok]
        row[chosen] = scores[chosen]
        if config.norm_topk_prob or config.scoring == "softmax-of-chosen":
            row /= row.sum()
    return found * config.routed_scaling_factor


def test_what_is_routed(checkpoint: Checkpoint, truth: AnchorTruth) -> None:
    config = checkpoint.config
    sparse = [i for i, layer in enumerate(config.layers) if layer.sparse]
    assert bool(sparse) == (config.experts is not None)
    for i in sparse:
        assert config.experts
        (router,) = {f"layers.{i}.mlp.gate", f"layers.{i}.mlp.router"} & set(anchors(config))
        routing = truth.values(f"layers.{i}.mlp.routing").astype(np.float64)
        assert (np.count_nonzero(routing, axis=1) == config.experts.num_experts_per_tok).all()
        if config.experts.norm_topk_prob:
            np.testing.assert_allclose(routing.sum(axis=1), config.experts.routed_scaling_factor, rtol=1e-6)
        name = f"model.layers.{i}.mlp.gate.e_score_correction_bias"
        bias = checkpoint.load(name) if name in dict(checkpoint.weights()) else None
        near(routing, routed(truth.values(router).astype(np.float64), config.experts, bias), f"routing of layer {i}")


# ---- graphs held to it


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


def test_the_models_have_what_they_are_there_for() -> None:
    configs = {name: model(name).config for name in FAMILY_SHAPES}
    assert configs["windows"].windows == configs["sinks"].windows == (3, None)
    assert [layer.sparse for layer in configs["experts"].layers] == [False, True]
    assert configs["clipped"].clip_qkv == 0.5
    assert configs["latent"].cache_widths == (6, 4)
    assert LENGTH > 3


@pytest.mark.parametrize(("source", "phase"), GRAPHS)
@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_every_value_and_every_piece_is_within_limits(name: str, source: str, phase: str) -> None:
    """A whole graph on XLA, whose errors add up, and each anchor's piece on right inputs by the interpreter."""
    it = model(name)
    anatomy, situation = it.anatomy(source, phase), it.situation(phase)
    assert anatomy.anchors == anchors(it.config)
    tapped = anatomy.with_outputs()
    got = dict(
        zip((r.name for r in tapped.abi.results), it.bench(quick_xla()).run(tapped, it.right(phase)), strict=True)
    )
    errors = {anchor: np.max(situation.errors(anchor, got[anchor])) for anchor in anatomy.anchors}
    assert {a: e for a, e in errors.items() if not e <= ANCHOR_FLOORS} == {}
    local, failed = local_errors(anatomy, situation, it.bench())
    assert failed == {}
    assert {a: e for a, e in local.items() if not e <= ANCHOR_FLOORS / 2} == {}
    assert set(local) == set(anchors(it.config))


WRONG = {
    "windows": ("layers.0.self_attn.scores", "layers.1.pre_feedforward_layernorm"),
    "experts": ("layers.1.mlp.routing", "layers.1.mlp.shared_expert_gate"),
    "clipped": ("layers.1.self_attn.v_proj",),
    "sinks": ("layers.0.self_attn.probs", "layers.1.mlp.experts"),
    "latent": ("layers.1.self_attn.k_rope", "layers.1.self_attn.kv_a_layernorm", "layers.0.self_attn.context"),
}


@pytest.mark.parametrize(("source", "phase"), GRAPHS)
@pytest.mark.parametrize(("name", "anchor"), [(name, anchor) for name, some in WRONG.items() for anchor in some])
def test_a_wrong_value_is_placed_at_its_anchor(name: str, anchor: str, source: str, phase: str) -> None:
    it = model(name)
    graph = it.anatomy(source, phase).spoiled(anchor, 1.01)
    errors, failed = local_errors(Anatomy(graph, it.config), it.situation(phase), it.bench())
    assert failed == {}
    assert [a for a, error in errors.items() if not error <= ANCHOR_FLOORS] == [anchor]


@pytest.mark.parametrize("phase", only(["prefill"], PHASES))
@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_probes_agree_and_see_a_wrong_piece(name: str, phase: str) -> None:
    it = model(name)
    oracle = it.anatomy("oracle", phase)
    count, failures, worst, _ = probe(it.anatomy("emitter", phase, "token"), oracle, it.bench(), lambda line: None)
    assert failures == []
    assert worst < 0.2
    assert count > 20
    anchor = WRONG[name][-1]
    wrong = Anatomy(it.anatomy("emitter", phase).spoiled(anchor, 1.01), it.config)
    _, failures, _, _ = probe(wrong, oracle, it.bench(), lambda line: None, locate=False)
    assert [failure.anchor for failure in failures] == [anchor]


OPERATIONS = {
    "windows": ("layers.1.self_attn.scores", "tanh", "logistic"),
    "experts": ("layers.1.mlp.experts", "logistic", "tanh"),
    "clipped": ("layers.1.self_attn.q_norm", "rsqrt", "sqrt"),
    "sinks": ("layers.0.self_attn.probs", "divide", "multiply"),
    "latent": ("layers.1.self_attn.kv_a_layernorm", "rsqrt", "sqrt"),
}


@pytest.mark.parametrize("phase", only(["decode"], PHASES))
@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_a_wrong_operation_is_found(name: str, phase: str) -> None:
    anchor, right, wrong = OPERATIONS[name]
    it = model(name)
    graphs = {p: it.graph("emitter", p) for p in PHASES}
    graphs[phase] = changed(graphs[phase], f"stablehlo.{right} ", f"stablehlo.{wrong} ", anchor)
    oracle = Side("oracle", "right", tuple(it.graph("oracle", p) for p in PHASES))
    question = Question(Side("emitter", "suspect", tuple(graphs.values())), oracle)
    found = dissect(question, it.run(), it.weights, lambda name: interpreter(), lambda line: None)
    assert (found.phase, found.anchor, found.first_local) == (phase, anchor, anchor)
    assert found.found
    assert found.found.step.name == f"stablehlo.{wrong}"
    assert {a for (p, a), error in found.local.items() if not error <= ANCHOR_FLOORS} == {anchor}
