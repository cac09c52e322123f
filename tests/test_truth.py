"""The truth: transformers' own tokens, its noise, what is cached, and what makes it move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import module_outputs

from hloracle.core.cache import SEAL
from hloracle.core.child import ChildResult, run_in_child
from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface import truth as module
from hloracle.reference.huggingface.truth import (
    greedy,
    load_model,
    nudged_embeddings,
    teacher_forced,
    truths,
)
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

PROMPTS = [[5, 9, 200, 31], [7]]
COUNT = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path_factory.mktemp("model"), seed=5))


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Any:
    return load_model(checkpoint.directory)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs what was meant for a child process here; notes how many prompts each was for."""
    calls: list[int] = []

    def here(function: Callable[..., Any], *arguments: Any, timeout: float, report: Any = None) -> ChildResult:
        calls.append(len(arguments[1]))
        return ChildResult(function(lambda line: None, *arguments), 0.0, 0)

    monkeypatch.setattr(module, "run_in_child", here)
    return calls


def test_in_a_child_process(
    checkpoint: Checkpoint, model: Any, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_in_child", run_in_child)
    lines: list[str] = []
    for prompt, found in zip(PROMPTS, truths(checkpoint, PROMPTS, COUNT, lines.append), strict=True):
        tokens, logits = greedy(model, prompt, COUNT)
        assert found.tokens == tokens
        np.testing.assert_allclose(found.logits, logits, atol=1e-4)
        assert not found.reused
    assert lines[0] == "Hugging Face float32, prompt 1 of 2"
    assert lines[-1] == "Hugging Face float64, prompt 2 of 2"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_is_what_generate_does(prompt: list[int], model: Any) -> None:
    import torch

    fed = torch.tensor([prompt])
    out = model.generate(
        fed, attention_mask=torch.ones_like(fed), do_sample=False, max_new_tokens=COUNT, pad_token_id=0
    )
    tokens, logits = greedy(model, prompt, COUNT)
    assert tokens == out[0, len(prompt) :].tolist()
    assert (logits.shape, logits.dtype) == ((COUNT, 257), np.float32)
    assert tokens == np.argmax(logits, axis=1).tolist()
    np.testing.assert_allclose(teacher_forced(model, prompt, tokens)[0], logits, atol=1e-4)


def test_noise(checkpoint: Checkpoint, children: list[int]) -> None:
    for found in truths(checkpoint, PROMPTS, COUNT):
        assert np.isfinite(found.floor)
        assert 0 < found.floor < 1e-4 * np.max(np.abs(found.exact))
        assert found.logits.shape == found.exact.shape == (COUNT, 257)
        assert found.gaps.shape == (COUNT,)
        for step, row in enumerate(found.exact):
            best, second = np.sort(row)[::-1][:2]
            assert found.gaps[step] == best - second


def test_noise_is_of_several_passes(checkpoint: Checkpoint, model: Any, children: list[int]) -> None:
    """One pass may be right by luck; each nudge is another draw, of the same size."""
    import torch

    embeddings = model.get_input_embeddings()
    fed = torch.tensor(PROMPTS[0])
    with torch.inference_mode():
        plain = embeddings(fed).numpy()
        moved = []
        for seed in range(3):
            with nudged_embeddings(model, seed):
                moved.append(embeddings(fed).numpy())
        assert not np.array_equal(moved[1], moved[2])
        np.testing.assert_array_equal(moved[0], plain)
        np.testing.assert_array_equal(embeddings(fed).numpy(), plain)
    for value in moved[1:]:
        assert (np.abs(value - plain) == np.abs(np.nextafter(plain, np.sign(value - plain) * np.inf) - plain)).all()
        assert ((value > plain).any(), (value < plain).any()) == (True, True)
    for found in truths(checkpoint, PROMPTS, COUNT):
        single = float(np.max(np.abs(found.logits - found.exact)))
        assert 0.1 * single < found.nudged < 10 * single
        assert found.floor == max(single, found.nudged)
        # Of the largest key or value: a rounding or two, through three layers.
        assert 2**-25 < found.caches < 2**-17
    assert np.isnan(dataclasses.replace(found, nudged=np.nan).floor)


def test_cached_by_content(checkpoint: Checkpoint, children: list[int], empty_cache: Path, tmp_path: Path) -> None:
    first = truths(checkpoint, PROMPTS, COUNT)
    assert children == [2]
    again = truths(checkpoint, PROMPTS, COUNT)
    assert children == [2], "no second process"
    assert [t.reused for t in again] == [True, True]
    for one, other in zip(first, again, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_array_equal(one.exact, other.exact)
    # The same model in another directory has the same truth; one more prompt or token, another.
    twin = open_checkpoint(write_tiny(tmp_path / "twin", seed=5))
    assert [t.reused for t in truths(twin, PROMPTS, COUNT)] == [True, True]
    assert [t.reused for t in truths(checkpoint, [*PROMPTS, [8, 8]], COUNT)] == [True, True, False]
    assert [t.reused for t in truths(checkpoint, PROMPTS[:1], COUNT + 1)] == [False]
    other = open_checkpoint(write_tiny(tmp_path / "other", seed=6))
    assert [t.reused for t in truths(other, PROMPTS[:1], COUNT)] == [False]
    assert children == [2, 1, 1, 1]


def test_moves_with_the_versions(
    checkpoint: Checkpoint, children: list[int], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truths(checkpoint, PROMPTS[:1], COUNT)
    monkeypatch.setattr(module, "versions", lambda names: {"torch": "2", "transformers": "9"})
    assert [[t.reused for t in truths(checkpoint, PROMPTS[:1], COUNT)] for _ in range(2)] == [[False], [True]]
    assert list(empty_cache.glob("truth/*/torch-2-transformers-9"))


def test_module_outputs(model: Any) -> None:
    names = ["model.embed_tokens", "model.layers.1", "model.layers.2.self_attn", "model.layers.0.mlp", "lm_head"]
    tokens = [1, 2, 3, 250]
    found = module_outputs(model, tokens, names)
    assert set(found) == set(names)
    assert found["model.layers.2.self_attn"].shape == (4, 84)
    assert found["lm_head"].shape == (4, 257)
    table = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(found["model.embed_tokens"], table[tokens])
    next_tokens, logits = greedy(model, tokens, 1)
    np.testing.assert_allclose(found["lm_head"][-1], logits[0], atol=1e-4)
    assert int(np.argmax(found["lm_head"][-1])) == next_tokens[0]
    assert module_outputs(model, tokens, []) == {}


def test_module_outputs_refuses_an_unknown_name(model: Any) -> None:
    with pytest.raises(InputError, match=r"LlamaForCausalLM: has no module model\.layers\.3; use a name of"):
        module_outputs(model, [1], ["model.layers.2", "model.layers.3"])
    assert not any(m._forward_hooks for m in model.modules())


def test_a_directory_that_transformers_cannot_load(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="transformers cannot load it"):
        load_model(tmp_path)


@pytest.mark.parametrize("damage", ["cut short", "missing", "not JSON", "another number", "another float", "no seal"])
def test_a_damaged_entry_is_computed_anew(
    damage: str, checkpoint: Checkpoint, children: list[int], empty_cache: Path
) -> None:
    (whole,) = truths(checkpoint, PROMPTS[:1], COUNT)
    logits, exact = np.array(whole.logits), np.array(whole.exact)  # copies: the truth itself is mapped from the files
    (about,) = empty_cache.glob("truth/*/*/truth.json")
    if damage == "not JSON":
        about.write_text("{")
    elif damage == "another float":
        about.write_text(about.read_text().replace('"nudged": ', '"nudged": 1'))
    elif damage == "no seal":
        (about.parent / SEAL).unlink()
    elif damage == "missing":
        (about.parent / "exact.npy").unlink()
    elif damage == "another number":
        values = np.array(whole.exact)
        values[2, 7] += 0.5
        np.save(about.parent / "exact.npy", values)
    else:
        (about.parent / "logits.npy").write_bytes((about.parent / "logits.npy").read_bytes()[:200])
    (again,) = truths(checkpoint, PROMPTS[:1], COUNT)
    assert not again.reused
    assert (again.tokens, again.nudged) == (whole.tokens, whole.nudged)
    np.testing.assert_array_equal(again.logits, logits)
    np.testing.assert_array_equal(again.exact, exact)


# ---- angles that depend on the length

# The tiny models' angles change beyond 40 tokens. transformers goes back to the first ones below 40, and not before.
LONGER, BEYOND, BEFORE = [*range(3, 52)], [*range(100, 142)], [5, 9, 200, 31]
BY_LAYER_TYPE = {
    "max_position_embeddings": 40,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
    },
}
TURNING: dict[str, dict[str, Any]] = {"seed_oss": {}, "phi3": {}, "olmo3": BY_LAYER_TYPE}


@pytest.mark.parametrize("family", TURNING)
def test_angles_are_those_of_the_sequence_and_not_of_the_one_before(family: str, tmp_path: Path) -> None:
    """transformers' `dynamic` RoPE keeps the angles of the longest sequence that it has seen."""
    directory = write_tiny(tmp_path / "tiny", family, **TURNING[family])
    model = load_model(directory)
    for prompt in (BEYOND, BEFORE):
        alone = greedy(load_model(directory), prompt, 3)
        greedy(model, LONGER, 2)
        tokens, logits = greedy(model, prompt, 3)
        assert tokens == alone[0]
        np.testing.assert_array_equal(logits, alone[1])
    greedy(model, LONGER, 2)
    np.testing.assert_allclose(teacher_forced(model, BEFORE, tokens)[0], logits, atol=1e-4)


@pytest.mark.parametrize("family", ["seed_oss", "olmo3"])
def test_angles_that_are_not_forgotten_leak(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above can fail: without `forget_angles` a prompt is turned by the angles of a longer one before it."""
    model = load_model(write_tiny(tmp_path / "tiny", family, **TURNING[family]))
    right = greedy(model, BEYOND, 3)[1]
    monkeypatch.setattr(module, "forget_angles", lambda model: None)
    greedy(model, LONGER, 2)
    assert np.abs(greedy(model, BEYOND, 3)[1] - right).max() > 0.01


@pytest.mark.parametrize("family", TURNING)
def test_noise_is_small_where_the_angles_change_on_the_way(
    family: str, tmp_path: Path, children: list[int], empty_cache: Path
) -> None:
    """Beyond the turning point one pass over prompt and tokens is not what the steps are, so it would be no noise."""
    checkpoint = open_checkpoint(write_tiny(tmp_path / "tiny", family, **TURNING[family]))
    prompt = LONGER[:38]
    (found,) = truths(checkpoint, [prompt], COUNT)
    scale = np.max(np.abs(found.exact))
    assert 0 < found.floor < 1e-4 * scale
    assert 0 < found.caches < 1e-4
    at_once = teacher_forced(load_model(checkpoint.directory), prompt, found.tokens)[0]
    assert np.abs(at_once - found.logits).max() > 1e-3 * scale


# ---- prompts that are given in parts


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", "phi3", "seed_oss"])
def test_a_long_prompt_is_given_in_parts(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are longer and shorter than the windows give what the whole gives; whole stays what turns by its length."""
    model, turning = load_model(write_tiny(tmp_path / "tiny", family)), 40 if family in TURNING else None
    called: list[int] = []
    model.register_forward_pre_hook(lambda _m, inputs, named: called.append(inputs[0].shape[1]), with_kwargs=True)
    whole = greedy(model, LONGER, 3, turning)
    forced, caches = teacher_forced(model, LONGER, whole[0], turning)
    for size in (9, 20):
        monkeypatch.setattr(module, "PART", size)
        called.clear()
        tokens, logits = greedy(model, LONGER, 3, turning)
        assert called == [*([len(LONGER)] if turning else [*[size] * (49 // size), 49 % size]), 1, 1]
        assert tokens == whole[0]
        np.testing.assert_allclose(logits, whole[1], atol=1e-4)
        in_parts = teacher_forced(model, LONGER, tokens, turning)
        np.testing.assert_allclose(in_parts[0], forced, atol=1e-4)
        np.testing.assert_allclose(in_parts[1], caches, atol=1e-4)


def test_parts_of_what_turns_are_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above can fail: phi3's first parts are turned by the short angles."""
    model = load_model(write_tiny(tmp_path / "tiny", "phi3"))
    _, whole = greedy(model, LONGER, 1, 40)
    monkeypatch.setattr(module, "PART", 20)
    assert np.abs(greedy(model, LONGER, 1, None)[1] - whole).max() > 1e-2
