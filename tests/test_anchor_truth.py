"""The truth at every anchor, against a float64 model in numpy, and its noise, against transformers' float32 pass."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import module_outputs

from hloracle.core.cache import SEAL
from hloracle.core.child import ChildResult
from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface import anchor_truth as module
from hloracle.reference.huggingface import truth as truth_module
from hloracle.reference.huggingface.anchor_truth import (
    NUDGES,
    AnchorTruth,
    Sequenced,
    anchor_truth,
    anchor_truths,
    masked,
    recorded_attention,
    row_noise,
    row_shape,
)
from hloracle.reference.huggingface.truth import (
    float64_throughout,
    greedy,
    load_model,
    nudged_embeddings,
    teacher_forced,
    truths,
)
from hloracle.reference.model.anchors import anchors, split
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True, "num_hidden_layers": 1},
}
PROMPT, COUNT = [5, 9, 200, 31, 0, 256, 9], 12
# Tiny llama's sizes: layers, query heads, kv heads, head_dim, hidden, intermediate, vocabulary.
L, N, K, D, E, F, V = 3, 6, 2, 16, 84, 112, 257
G = N // K


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path_factory.mktemp("model"), seed=5, **MODELS[request.param]))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path_factory.mktemp("model"), seed=5))


@pytest.fixture(scope="module", autouse=True)
def children() -> Iterator[list[Any]]:
    """Runs here what was meant for a child process; notes what was."""
    calls: list[Any] = []

    def here(function: Callable[..., Any], *arguments: Any, timeout: float, report: Any = None) -> ChildResult:
        calls.append(function)
        return ChildResult(function(report or (lambda line: None), *arguments), 0.0, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "run_in_child", here)
        patch.setattr(truth_module, "run_in_child", here)
        yield calls


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Any:
    return load_model(checkpoint.directory)


@pytest.fixture(scope="module")
def tokens(model: Any) -> list[int]:
    """A prompt and what the model says after it."""
    return [*PROMPT, *greedy(model, PROMPT, COUNT)[0]]


@pytest.fixture(scope="module")
def found(checkpoint: Checkpoint, tokens: list[int]) -> AnchorTruth:
    return anchor_truth(checkpoint, tokens)


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint, model: Any, tokens: list[int]) -> dict[str, np.ndarray]:
    """Every anchor in float64. RoPE's frequencies are transformers' own, which are rounded to float32."""
    return llama(checkpoint, tokens, model.model.rotary_emb.inv_freq.double().numpy())


def llama(checkpoint: Checkpoint, tokens: list[int], frequencies: np.ndarray) -> dict[str, np.ndarray]:
    config, w = checkpoint.config, {name: value.astype(np.float64) for name, value in checkpoint.weights()}
    n = len(tokens)
    index = np.arange(n)
    cos, sin = (turn(np.outer(index, frequencies))[:, None] for turn in (np.cos, np.sin))  # [n, 1, D/2]
    found = {}

    def keep(anchor: str, value: np.ndarray) -> np.ndarray:
        found[anchor] = value
        return value

    def linear(x: np.ndarray, anchor: str) -> np.ndarray:
        return keep(anchor, x @ w[f"model.{anchor}.weight"].T + w.get(f"model.{anchor}.bias", 0.0))

    def norm(x: np.ndarray, anchor: str) -> np.ndarray:
        scale = 1 / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + config.norm_eps)
        return keep(anchor, x * scale * w[f"model.{anchor}.weight"])

    def rotary(x: np.ndarray) -> np.ndarray:
        low, high = x[..., : D // 2], x[..., D // 2 :]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)

    x = keep("embed_tokens", w["model.embed_tokens.weight"][tokens])
    for i in range(config.num_hidden_layers):
        layer = f"layers.{i}"
        at = f"{layer}.self_attn"
        h = norm(x, f"{layer}.input_layernorm")
        q, k, v = (linear(h, f"{at}.{p}_proj").reshape(n, -1, D) for p in "qkv")
        found |= {f"{at}.q_proj": q, f"{at}.k_proj": k, f"{at}.v_proj": v, f"v_cache.{i}": v}
        q, k = keep(f"{at}.q_rope", rotary(q)), keep(f"{at}.k_rope", rotary(k))
        keep(f"k_cache.{i}", k)
        scores = np.einsum("qkgd,skd->qkgs", q.reshape(n, K, G, D), k) / math.sqrt(D)
        keep(f"{at}.scores", np.where(index <= index[:, None, None, None], scores, -np.inf))
        exponentials = np.exp(found[f"{at}.scores"] - found[f"{at}.scores"].max(axis=3, keepdims=True))
        probs = keep(f"{at}.probs", exponentials / exponentials.sum(axis=3, keepdims=True))
        context = keep(f"{at}.context", np.einsum("qkgs,skd->qkgd", probs, v).reshape(n, N * D))
        x = x + linear(context, f"{at}.o_proj")
        h = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = linear(h, f"{layer}.mlp.gate_proj"), linear(h, f"{layer}.mlp.up_proj")
        act = keep(f"{layer}.mlp.act", gate / (1 + np.exp(-gate)) * up)
        x = keep(layer, x + linear(act, f"{layer}.mlp.down_proj"))
    x = norm(x, "norm")
    keep("lm_head", x @ w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"].T)
    return found


# ---- values


def test_every_anchor_is_the_float64_model_rounded_once(
    checkpoint: Checkpoint, found: AnchorTruth, expected: dict[str, np.ndarray]
) -> None:
    assert set(expected) == set(anchors(checkpoint.config))
    for anchor, exact in expected.items():
        values = found.values(anchor)
        assert values.dtype == np.float32
        assert isinstance(values.base, np.memmap)
        # Far below float32's noise: nothing in the float64 pass may be float32. Sums that cancel are as exact as terms.
        scale = np.max(np.abs(exact[np.isfinite(exact)]))
        np.testing.assert_allclose(values, exact, rtol=2**-23, atol=1e-11 * scale, err_msg=anchor)


def test_embeddings_and_what_is_computed_from_them(found: AnchorTruth, expected: dict[str, np.ndarray]) -> None:
    """Here nothing was rounded before, so that every bit is known."""
    for anchor in ("embed_tokens", "layers.0.input_layernorm"):
        np.testing.assert_array_equal(found.values(anchor), expected[anchor].astype(np.float32))


SHAPES = {
    "embed_tokens": (E,),
    "layers.0.input_layernorm": (E,),
    "layers.0.self_attn.q_proj": (N, D),
    "layers.0.self_attn.k_proj": (K, D),
    "layers.0.self_attn.v_proj": (K, D),
    "layers.0.self_attn.q_rope": (N, D),
    "layers.0.self_attn.k_rope": (K, D),
    "k_cache.0": (K, D),
    "v_cache.0": (K, D),
    "layers.0.self_attn.scores": (K, G, len(PROMPT) + COUNT),
    "layers.0.self_attn.probs": (K, G, len(PROMPT) + COUNT),
    "layers.0.self_attn.context": (N * D,),
    "layers.0.self_attn.o_proj": (E,),
    "layers.0.post_attention_layernorm": (E,),
    "layers.0.mlp.gate_proj": (F,),
    "layers.0.mlp.up_proj": (F,),
    "layers.0.mlp.act": (F,),
    "layers.0.mlp.down_proj": (E,),
    "layers.0": (E,),
    "norm": (E,),
    "lm_head": (V,),
}


def test_shapes(checkpoint: Checkpoint, found: AnchorTruth) -> None:
    n = len(found.tokens)
    for anchor in anchors(checkpoint.config):
        part = split(anchor)[1]
        (shape,) = {s for known, s in SHAPES.items() if split(known)[1] == part}
        assert row_shape(checkpoint.config, anchor, n) == shape
        assert found.values(anchor).shape == (n, *shape)
        assert found.noise(anchor).shape == (n,)
        assert found.noise(anchor).dtype == np.float32


def test_only_what_is_before_is_visible(found: AnchorTruth) -> None:
    later = np.triu(np.ones((len(found.tokens),) * 2, bool), 1)[:, None, None]  # [n, 1, 1, n]
    scores, probs = (found.values(f"layers.0.self_attn.{part}") for part in ("scores", "probs"))
    np.testing.assert_array_equal(scores == -np.inf, np.broadcast_to(later, scores.shape))
    assert not probs[np.broadcast_to(later, probs.shape)].any()
    np.testing.assert_allclose(probs.sum(axis=3), 1, rtol=1e-6)
    assert np.isfinite(found.noise("layers.0.self_attn.scores")).all()


def test_caches_hold_keys_and_values(found: AnchorTruth) -> None:
    for cache, anchor in (("k_cache.0", "layers.0.self_attn.k_rope"), ("v_cache.0", "layers.0.self_attn.v_proj")):
        np.testing.assert_array_equal(found.values(cache), found.values(anchor))
        np.testing.assert_array_equal(found.noise(cache), found.noise(anchor))


def test_the_head_says_what_the_truth_says(checkpoint: Checkpoint, found: AnchorTruth, tokens: list[int]) -> None:
    (truth,) = truths(checkpoint, [PROMPT], COUNT)
    logits = found.values("lm_head")[len(PROMPT) - 1 : -1]
    assert found.tokens == (*PROMPT, *truth.tokens)
    assert np.argmax(logits, axis=1).tolist() == truth.tokens
    np.testing.assert_allclose(logits, truth.exact, rtol=2**-23, atol=1e-11)
    # Not the same: the truth's float32 logits come from a cache, token by token.
    assert 0.1 < found.noise("lm_head").max() / truth.floor < 10


# ---- noise


def test_noise_is_the_largest_distance_of_a_float32_pass(
    checkpoint: Checkpoint, model: Any, found: AnchorTruth, expected: dict[str, np.ndarray]
) -> None:
    import torch

    # mlp.act and context are no module's output, q_rope and scores are returned by nothing.
    parts = ("", "input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    last = f"layers.{checkpoint.config.num_hidden_layers - 1}"
    modules = {f"model.{last}.{part}".rstrip("."): f"{last}.{part}".rstrip(".") for part in parts}
    modules |= {"model.norm": "norm", "lm_head": "lm_head", "model.embed_tokens": "embed_tokens"}
    n, distances = len(found.tokens), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for seed in range(1 + NUDGES):
            with nudged_embeddings(model, seed), torch.inference_mode():
                single = module_outputs(model, found.tokens, list(modules))
                probs = model(torch.tensor([found.tokens]), use_cache=False, output_attentions=True).attentions[-1]
            single = {anchor: single[name] for name, anchor in modules.items()}
            single[f"{last}.self_attn.probs"] = probs[0].transpose(0, 1).numpy()
            assert all(value.dtype == np.float32 for value in single.values())
            distances.append(
                {a: np.abs(v.reshape(n, -1) - expected[a].reshape(n, -1)).max(axis=1) for a, v in single.items()}
            )
    finally:
        torch.set_num_threads(threads)
    for anchor in distances[0].keys() - {"embed_tokens"}:
        largest = np.max([d[anchor] for d in distances], axis=0)
        np.testing.assert_allclose(found.noise(anchor), largest, rtol=1e-6, atol=1e-11 * np.abs(expected[anchor]).max())
        assert any((d[anchor] < largest).any() for d in distances), "every pass is a draw of its own"
    # What is copied is kept as it is: embeddings are nudged only for what reads them.
    assert not found.noise("embed_tokens").any()


def test_noise_is_there_and_small(checkpoint: Checkpoint, found: AnchorTruth) -> None:
    for anchor in anchors(checkpoint.config):
        values, noise = found.values(anchor), found.noise(anchor)
        if anchor == "embed_tokens":
            assert not noise.any()
            continue
        scale = np.abs(np.where(np.isfinite(values), values, 0)).reshape(len(values), -1).max(axis=1)
        # A first token's only probability is 1.
        assert (noise[1:] > 0).all(), anchor
        assert (noise < 1e-4 * scale).all(), anchor


def test_noise_of_scores_is_that_of_visible_keys() -> None:
    single = np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)
    exact = single.astype(np.float64)
    exact[:, :, :, 0] += [[[0.25, -0.5]], [[0, 0.125]]]
    exact[0, :, :, 1] = np.nan
    exact[1, :, :, 1] += 2**-40  # float32 would lose it
    assert row_noise("layers.0.self_attn.scores", single, exact).tolist() == [0.5, 0.125]
    exact[1, :, :, 0] = single[1, :, :, 0]
    assert row_noise("layers.0.self_attn.probs", single, exact)[1] == 2**-40
    shown = masked("layers.0.self_attn.scores", exact)
    assert np.isneginf(shown[0, :, :, 1]).all()
    assert np.isfinite(shown[1]).all()
    assert masked("layers.0.self_attn.probs", exact)[0, 0, :, 1].tolist() == [0, 0]
    assert masked("norm", exact) is exact


@pytest.mark.parametrize("lowest", [np.finfo(np.float32).min, np.finfo(np.float64).min])
def test_what_a_window_hides_transformers_says(lowest: float) -> None:
    """Not the config as it is read here: one that is read wrongly would hide its own mistake."""
    scores = np.zeros((3, 1, 1, 3))
    scores[2, ..., 0] = lowest
    assert np.isneginf(masked("layers.0.self_attn.scores", scores)[2, 0, 0]).tolist() == [True, False, False]
    assert row_noise("layers.0.self_attn.scores", scores + np.array([0, 0.25, 0]), scores)[2] == 0.25


# ---- the cache


def test_cached_by_content(plain: Checkpoint, children: list[Any], empty_cache: Path, tmp_path: Path) -> None:
    before = len(children)
    lines: list[str] = []
    first = anchor_truth(plain, [1, 2, 3], lines.append)
    assert lines[0] == "Hugging Face float32 anchors, layer 1 of 3"
    assert lines[-1] == "Hugging Face float64 anchors, layer 3 of 3"
    again = anchor_truth(plain, (1, 2, 3), lines.append)
    assert (first.reused, again.reused) == (False, True)
    assert first.folder == again.folder
    assert first.folder.is_relative_to(empty_cache / "anchors")
    assert len(children) == before + 1, "no second process"
    assert len(lines) == (2 + NUDGES) * L
    twin = open_checkpoint(write_tiny(tmp_path / "twin", seed=5))
    assert anchor_truth(twin, [1, 2, 3]).reused
    assert not anchor_truth(plain, [1, 2, 4]).reused
    assert not anchor_truth(open_checkpoint(write_tiny(tmp_path / "other", seed=6)), [1, 2, 3]).reused


RESULTS = tuple(a for a in [*(f"{p}_cache.{i}" for i in range(L) for p in "kv"), "lm_head"])


def test_several_sequences_at_once(plain: Checkpoint, children: list[Any], empty_cache: Path) -> None:
    """The model is loaded once; of each sequence there is what it asks for, and it is what it would be alone."""
    sequences = [Sequenced((1, 2, 3, 4)), Sequenced((7, 9, 7), 1, RESULTS), Sequenced((1, 2, 3, 4), 0, RESULTS[:2])]
    before, lines = len(children), list[str]()
    together = anchor_truths(plain, sequences, lines.append)
    assert len(children) == before + 1
    assert "Hugging Face float32 anchors, sequence 2 of 3, layer 1 of 3" in lines
    assert [t.tokens for t in together] == [s.tokens for s in sequences]
    assert len({t.folder for t in together}) == 3, "fewer anchors are another entry"
    for found, asked in zip(together, sequences, strict=True):
        alone = anchor_truth(plain, asked.tokens)
        for anchor in asked.anchors or anchors(plain.config):
            np.testing.assert_array_equal(found.values(anchor), alone.values(anchor))
            np.testing.assert_array_equal(found.noise(anchor), alone.noise(anchor))
    with pytest.raises(InputError, match="norm: is not an anchor of this model"):
        together[1].values("norm")


def test_only_what_is_not_there_is_computed(plain: Checkpoint, children: list[Any], empty_cache: Path) -> None:
    sequences = [Sequenced((n, 2, 3), 0, RESULTS) for n in range(3)]
    assert [t.reused for t in anchor_truths(plain, sequences[:1])] == [False]
    before = len(children)
    assert [t.reused for t in anchor_truths(plain, sequences[:2])] == [True, False]
    assert len(children) == before + 1
    (anchor_truths(plain, sequences[1:2])[0].folder / "v_cache.1.npy").write_bytes(b"")
    found = anchor_truths(plain, sequences)
    assert [t.reused for t in found] == [True, False, False], "what is damaged is computed anew"
    assert [t.reused for t in anchor_truths(plain, sequences)] == [True] * 3
    assert anchor_truths(plain, []) == []
    assert not list(empty_cache.glob("anchors/.passes-*")), "what the passes left between is gone"


@pytest.mark.parametrize("architecture", ["seed_oss", "phi3"])
def test_a_prompt_that_is_given_token_by_token(architecture: str, empty_cache: Path, tmp_path: Path) -> None:
    """Beyond RoPE's turning point it is another computation; up to there it is the same one."""
    late = open_checkpoint(write_tiny(tmp_path / "late", architecture))
    turning = late.config.turning_point
    assert turning
    tokens = tuple(n % late.config.vocab_size for n in range(3, turning + 5))
    names = ("k_cache.0", "lm_head")
    at_once, one_by_one = anchor_truths(late, [Sequenced(tokens, 0, names), Sequenced(tokens, 1, names)])
    assert at_once.folder != one_by_one.folder
    apart = np.abs(at_once.values("k_cache.0") - one_by_one.values("k_cache.0")).max(axis=(1, 2))
    assert apart[:turning].max() > 1e-3, "given at once, the first ones are turned by the long angles as well"
    short = [Sequenced(tokens[:turning], n, names) for n in (0, 1)]
    assert len({t.folder for t in anchor_truths(late, short)}) == 1


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "deepseek_v3"])
def test_a_long_sequence_is_given_in_parts(
    architecture: str, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = open_checkpoint(write_tiny(tmp_path / "tiny", architecture))
    asked = Sequenced(tuple(n % tiny.config.vocab_size for n in range(3, 52)))
    (whole,) = anchor_truths(tiny, [asked])
    before = {name: np.array(whole.values(name)) for name in anchors(tiny.config)}
    shutil.rmtree(whole.folder)
    monkeypatch.setattr(truth_module, "PART", 20)
    monkeypatch.setattr(module, "run_in_child", lambda f, *a, **_: f(lambda line: None, *a))
    (parts,) = anchor_truths(tiny, [asked])
    for name, values in before.items():
        np.testing.assert_allclose(
            parts.values(name), values, atol=1e-6 * max(1, np.abs(values[np.isfinite(values)]).max())
        )


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError("64 requested and 0 written")]
)
def test_a_disk_that_fills_up_between_the_passes(
    error: OSError, plain: Checkpoint, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise error

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(InputError, match="anchors: the disk is full"):
        anchor_truth(plain, PROMPT)
    assert not list(empty_cache.glob("anchors/.passes-*"))


def test_moves_with_the_versions(plain: Checkpoint, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = anchor_truth(plain, [7])
    monkeypatch.setattr(truth_module, "versions", lambda names: {"torch": "2", "transformers": "9"})
    other = anchor_truth(plain, [7])
    assert not other.reused
    assert other.folder == first.folder.parent / "torch-2-transformers-9"


def cut_short(folder: Path) -> None:
    path = folder / "layers.1.mlp.act.npy"
    path.write_bytes(path.read_bytes()[:-4])


def another_number(folder: Path) -> None:
    """Of the right shape and size, as all else is."""
    path = folder / "norm.npy"
    values = np.load(path)
    values[1, 2] += 0.5
    np.save(path, values)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut short": cut_short,
    "empty": lambda folder: (folder / "lm_head.npy").write_bytes(b""),
    "no array": lambda folder: (folder / "lm_head.npy").write_bytes(b"x" * 200),
    "missing": lambda folder: (folder / "norm.npy").unlink(),
    "other shape": lambda folder: np.save(folder / "norm.npy", np.zeros((3, E + 1), np.float32)),
    "no noise": lambda folder: np.save(folder / "noise.npy", np.zeros((1, 3), np.float32)),
    "not JSON": lambda folder: (folder / "about.json").write_text("{"),
    "other JSON": lambda folder: (folder / "about.json").write_text("[]"),
    "another number": another_number,
    "no seal": lambda folder: (folder / SEAL).unlink(),
    "fewer anchors": lambda folder: (folder / "about.json").write_text('{"anchors": ["norm"]}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_computed_anew(damage: str, plain: Checkpoint, empty_cache: Path) -> None:
    whole = anchor_truth(plain, [1, 2, 3])
    # Copies: the truth itself is mapped from the files.
    before = {anchor: np.array(whole.values(anchor)) for anchor in anchors(plain.config)}
    DAMAGE[damage](whole.folder)
    again = anchor_truth(plain, [1, 2, 3])
    assert not again.reused
    for anchor, values in before.items():
        np.testing.assert_array_equal(again.values(anchor), values)


def test_another_reading_of_the_config_leaves_the_entry_to_its_readers(plain: Checkpoint, empty_cache: Path) -> None:
    found = anchor_truth(plain, [1, 2, 3])
    config = plain.config
    misread = dataclasses.replace(
        config, num_attention_heads=2 * config.num_attention_heads, head_dim=config.head_dim // 2
    )
    with pytest.raises(InputError, match="correct the config, or how it is read"):
        anchor_truth(dataclasses.replace(plain, config=misread), [1, 2, 3])
    assert found.values("lm_head").shape == (3, config.vocab_size)
    assert anchor_truth(plain, [1, 2, 3]).reused


def test_an_entry_that_vanishes_while_it_is_used(plain: Checkpoint, empty_cache: Path) -> None:
    found = anchor_truth(plain, [1, 2, 3])
    found.values("norm")
    shutil.rmtree(found.folder)
    with pytest.raises(InputError, match="was removed or damaged while it was being used; run again"):
        found.values("lm_head")
    with pytest.raises(InputError, match="was removed or damaged"):
        found.noise("norm")


# ---- what is refused


@pytest.mark.parametrize(
    "anchor", ["layers.3", "k_cache.3", "noise", "model.norm", "layers.0.self_attn", "../norm", ""]
)
def test_an_unknown_anchor(anchor: str, plain: Checkpoint) -> None:
    found = anchor_truth(plain, [1, 2, 3])
    for ask in (found.values, found.noise):
        with pytest.raises(InputError) as error:
            ask(anchor)
        assert error.value.where == anchor
        assert error.value.what == "is not an anchor of this model"


@pytest.mark.parametrize(("tokens", "what"), [([], "is empty"), ([1, V], "an id outside 0..256"), ([-1], "an id")])
def test_tokens_that_cannot_be_run(tokens: list[int], what: str, plain: Checkpoint) -> None:
    with pytest.raises(InputError, match=rf"token sequence: .*{what}"):
        anchor_truth(plain, tokens)


def test_an_anchor_that_nothing_filled(plain: Checkpoint, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "recorded_attention", lambda model, config, start, record, wanted, in_int8: contextlib.nullcontext()
    )
    with pytest.raises(InputError, match=r"LlamaForCausalLM: does not compute layers\.0\.self_attn\.q_rope;"):
        anchor_truth(plain, [1, 2])
    assert not list(empty_cache.glob("anchors/*/*/about.json")), "nothing is cached"


def test_a_module_that_is_not_there(plain: Checkpoint, empty_cache: Path) -> None:
    misread = dataclasses.replace(plain.config, architecture="qwen3", qk_norm="head")
    with pytest.raises(InputError, match=r"LlamaForCausalLM: has no module model\.layers\.0\.self_attn\.q_norm;"):
        anchor_truth(dataclasses.replace(plain, config=misread), [1, 2])


def test_scores_that_the_model_does_not_attend_by(
    plain: Checkpoint, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama import modeling_llama

    eager = modeling_llama.eager_attention_forward

    def capped(*arguments: Any, scaling: float, **others: Any) -> Any:
        return eager(*arguments, scaling=scaling / 2, **others)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", capped)
    with pytest.raises(InputError, match=r"layers\.0\.self_attn\.probs are not the softmax of layers\.0"):
        anchor_truth(plain, [1, 2])
    assert modeling_llama.eager_attention_forward is capped, "what was there is there again"


def test_a_model_that_overflows(plain: Checkpoint, empty_cache: Path, tmp_path: Path) -> None:
    import safetensors.numpy

    path = write_tiny(tmp_path / "model", seed=5) / "model.safetensors"
    weights = safetensors.numpy.load_file(path)
    weights["model.layers.1.mlp.down_proj.weight"] *= np.float32(1e38)
    safetensors.numpy.save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.down_proj has values that are not finite"):
        anchor_truth(open_checkpoint(path.parent), [1, 2])


# ---- transformers is left as it was


def test_attention_is_restored(plain: Checkpoint, empty_cache: Path) -> None:
    model = load_model(plain.directory)
    modeling = sys.modules[type(model).__module__]
    eager = modeling.eager_attention_forward
    with recorded_attention(model, plain.config, 0, lambda anchor, rows: None):
        assert modeling.eager_attention_forward is not eager
    assert modeling.eager_attention_forward is eager
    with pytest.raises(KeyError), recorded_attention(model, plain.config, 0, lambda anchor, rows: None):
        raise KeyError
    assert modeling.eager_attention_forward is eager
    anchor_truth(plain, [4, 5])
    assert modeling.eager_attention_forward is eager


def test_float64_throughout_widens_and_ends(plain: Checkpoint) -> None:
    """Without it, a float64 model's logits are off by as much as float32 rounds."""
    import torch

    x = torch.ones(3, dtype=torch.float64) / 3
    with float64_throughout():
        casts = [x.float(), x.to(torch.float32), x.to(dtype=torch.float), torch.softmax(x, -1, dtype=torch.float32)]
        assert [cast.dtype for cast in casts] == [torch.float64] * 4
        assert torch.equal(casts[0], x)
        assert x.half().dtype == torch.float16
    assert x.float().dtype == torch.float32
    model = load_model(plain.directory).double()
    frequencies = model.model.rotary_emb.inv_freq.numpy()
    exact = llama(plain, PROMPT, frequencies)["lm_head"][len(PROMPT) - 1 :]
    with float64_throughout():
        throughout = teacher_forced(model, PROMPT, [0])[0]
    assert np.abs(throughout - exact).max() < 1e-12 < 1e-8 < np.abs(teacher_forced(model, PROMPT, [0])[0] - exact).max()


@pytest.mark.nightly
def test_in_a_child_process(plain: Checkpoint, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hloracle.core.child import run_in_child

    here = anchor_truth(plain, [3])
    values = {anchor: np.array(here.values(anchor)) for anchor in anchors(plain.config)}
    shutil.rmtree(here.folder)
    monkeypatch.setattr(module, "run_in_child", run_in_child)
    lines: list[str] = []
    there = anchor_truth(plain, [3], lines.append)
    assert not there.reused
    assert len(lines) == (2 + NUDGES) * L
    for anchor, value in values.items():
        np.testing.assert_array_equal(there.values(anchor), value)
