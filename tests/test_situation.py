"""What a graph is given, and what its values are held to: right ones are at 0, and one wrong element is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import LENGTH, PHASES, SHAPES, TOKENS, T, handmade, model

from hloracle.core.tolerances import ANCHOR_FLOORS, ROUNDING, SMALLEST
from hloracle.localize.situation import Situation, row_floors, row_scales, slot_errors
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.anchors import anchors, split, terms
from hloracle.reference.model.config import Config

PLAIN = "plain"
ANCHORS = ("embed_tokens", "layers.1.self_attn.q_rope", "k_cache.1", "v_cache.0", "layers.0.self_attn.scores",
           "layers.1.self_attn.probs", "layers.0.self_attn.context", "layers.1.mlp.act", "layers.0", "norm", "lm_head")  # fmt: skip
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@pytest.fixture(scope="module")
def config(cache: Path) -> Config:
    return model(PLAIN).config


@pytest.fixture(scope="module")
def truth(config: Config, tmp_path_factory: pytest.TempPathFactory) -> AnchorTruth:
    return handmade(tmp_path_factory.mktemp("truth") / "usual", config)


def of(phase: str, truth: AnchorTruth, **fields: int) -> Situation:
    found = model(PLAIN).situation(phase, truth)
    return Situation(**{**vars(found), **fields})


def rows_that_count(phase: str, anchor: str) -> list[int]:
    """The tokens whose rows an error can be in."""
    _, part = split(anchor)
    last = LENGTH - 1 if phase == "prefill" else len(TOKENS) - 1
    if part in ("norm", "lm_head") or (phase == "decode" and part not in ("k_cache", "v_cache")):
        return [last]
    return list(range(last + 1))


def where(anchor: str, row: int, phase: str, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """Some element of a row in the graph's value; of scores and probabilities, one that the row's token sees."""
    _, part = split(anchor)
    at = [int(rng.integers(n)) for n in shape]
    if part in ("self_attn.scores", "self_attn.probs"):
        at[1], at[3] = (row if phase == "prefill" else 0), int(rng.integers(row + 1))
    elif part in ("k_cache", "v_cache"):
        at[1] = row
    elif part != "lm_head":
        at[0] = row if phase == "prefill" and part != "norm" else 0
    return tuple(at)


# ---- right values


@pytest.mark.parametrize("phase", PHASES)
def test_right_values_are_at_0(phase: str, config: Config, truth: AnchorTruth) -> None:
    situation = of(phase, truth)
    for anchor in anchors(config):
        right = situation.anchor(anchor)
        assert right.dtype == np.float32
        errors = situation.errors(anchor, right.copy())
        assert errors.tolist() == [0.0] * len(errors), anchor
        head = split(anchor)[1] in ("norm", "lm_head")
        cache = phase == "decode" and split(anchor)[1] in ("k_cache", "v_cache")
        assert len(errors) == (len(TOKENS) if cache else 1 if head else len(situation.rows)), anchor


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", SHAPES)
def test_right_values_have_the_shapes_of_the_contract(name: str, phase: str, tmp_path: Path) -> None:
    here = model(name)
    situation, anatomy = here.situation(phase, handmade(tmp_path / "t", here.config)), here.anatomy("emitter", phase)
    for anchor in anatomy.anchors:
        assert situation.anchor(anchor).shape == anatomy.shape(anchor)
        for argument in anatomy.subgraph(anchor).graph.abi.arguments:
            value = situation.value(argument.name, here.checkpoint.load)
            assert value.size == np.prod(argument.shape), (anchor, argument.name)
            assert value.dtype == {"f32": np.float32, "i32": np.int32}[argument.dtype]
        # As far as a graph's value has another shape than the contract's, by axes of one element, it is judged alike.
        value = situation.anchor(anchor)
        assert not situation.errors(anchor, value.reshape(1, *value.shape)).any()


def test_what_prefill_is_given(truth: AnchorTruth) -> None:
    situation, rows = of("prefill", truth), truth.values
    weight = np.ones(3)
    assert situation.value("tokens", lambda _: weight).tolist() == [*TOKENS[:LENGTH], 0, 0, 0]
    assert situation.value("length", lambda _: weight) == LENGTH
    assert situation.value("model.layers.1.mlp.up_proj.weight", lambda _: weight) is weight
    np.testing.assert_array_equal(
        situation.value("layers.1.mlp.act", lambda _: weight)[:LENGTH], rows("layers.1.mlp.act")[:LENGTH]
    )
    assert not situation.value("layers.1.mlp.act", lambda _: weight)[LENGTH:].any()
    for part in ("k_cache", "v_cache"):
        whole = situation.value(f"{part}.0+", lambda _: weight)
        np.testing.assert_array_equal(whole[0, :, :LENGTH], rows(f"{part}.0")[:LENGTH].transpose(1, 0, 2))
        assert not whole[0, :, LENGTH:].any()
        assert not whole[1].any()
        assert situation.value(f"{part}.1+", lambda _: weight)[1].any()


def test_what_decode_is_given(truth: AnchorTruth) -> None:
    situation, last = of("decode", truth), len(TOKENS) - 1
    weight = np.ones(3)
    assert situation.value("token", lambda _: weight) == TOKENS[-1]
    assert situation.value("position", lambda _: weight) == last
    for part in ("k_cache", "v_cache"):
        before, between = (situation.value(name, lambda _: weight) for name in (part, f"{part}.0+"))
        after = situation.value(f"{part}.1+", lambda _: weight)
        for layer in (0, 1):
            rows = truth.values(f"{part}.{layer}").transpose(1, 0, 2)
            np.testing.assert_array_equal(before[layer, :, :last], rows[:, :last])
            np.testing.assert_array_equal(after[layer, :, : last + 1], rows)
        # One layer has written, the other has not.
        np.testing.assert_array_equal(between[0], after[0])
        np.testing.assert_array_equal(between[1], before[1])
        # What is not filled holds numbers of the usual size: a graph that reads them is wrong, and is seen to be.
        scale = np.abs(truth.values(f"{part}.0")).max()
        assert 0.1 * scale < np.abs(before[:, :, last:]).min(axis=(0, 1)).max()
        assert not np.array_equal(before[0, :, last], after[0, :, last])
        np.testing.assert_array_equal(before[:, :, last + 1 :], after[:, :, last + 1 :])


def test_what_a_layer_attends_to_is_its_own_cache(truth: AnchorTruth) -> None:
    situation = of("decode", truth)
    for layer in (0, 1):
        whole = situation.value(f"k_cache.{layer}+", lambda _: np.ones(1))
        np.testing.assert_array_equal(situation.anchor(f"k_cache.{layer}"), whole[layer])


def test_decode_at_the_last_slot(tmp_path: Path, config: Config) -> None:
    capacity = model(PLAIN).capacity
    truth = handmade(tmp_path / "t", config, [3] * capacity)
    situation = of("decode", truth, position=capacity - 1)
    for anchor in anchors(config):
        right = situation.anchor(anchor)
        assert not situation.errors(anchor, right).any()
        if split(anchor)[1] == "self_attn.scores":
            assert np.isfinite(right).all(), "every slot is visible"
    np.testing.assert_array_equal(situation.cache("k_cache", 1)[1], truth.values("k_cache.1").transpose(1, 0, 2))
    assert not situation.cache_errors("v_cache", 1, situation.cache("v_cache", 1)).any()


def test_decode_of_the_first_token(tmp_path: Path, config: Config) -> None:
    truth = handmade(tmp_path / "t", config, [4])
    situation = of("decode", truth, position=0, length=0)
    for anchor in anchors(config):
        assert not situation.errors(anchor, situation.anchor(anchor)).any()
    assert np.isneginf(situation.anchor("layers.0.self_attn.scores")[..., 1:]).all()
    assert not situation.cache_errors("k_cache", 0, situation.cache("k_cache", 0)).any()


def test_a_prompt_that_fills_its_bucket(tmp_path: Path, config: Config) -> None:
    truth = handmade(tmp_path / "t", config, [4] * (T + 2))
    situation = of("prefill", truth, length=T)
    for anchor in anchors(config):
        assert not situation.errors(anchor, situation.anchor(anchor)).any()
    assert situation.anchor("layers.0").all()


def test_steps_after_the_prompt_are_not_in_its_prefill(truth: AnchorTruth) -> None:
    """The truth's sequence goes on; the prompt's scores know nothing of it."""
    scores = of("prefill", truth).anchor("layers.0.self_attn.scores")
    assert scores.shape[1] == scores.shape[3] == T
    np.testing.assert_array_equal(
        scores[:, :LENGTH, :, :LENGTH],
        truth.values("layers.0.self_attn.scores")[:LENGTH, ..., :LENGTH].transpose(1, 0, 2, 3),
    )
    assert np.isneginf(scores[:, :LENGTH, :, LENGTH:]).all()
    # Rows of padding see what is before them, so that no softmax is of nothing.
    assert np.isfinite(scores).any(axis=3).all()


# ---- one wrong element


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("anchor", ANCHORS)
def test_one_wrong_element(anchor: str, phase: str, truth: AnchorTruth) -> None:
    situation, rng = of(phase, truth), np.random.default_rng(5)
    floors = situation.floors(anchor)
    for row in rows_that_count(phase, anchor):
        got = situation.anchor(anchor).copy()
        at = where(anchor, row, phase, got.shape, rng)
        right = float(got[at])
        got[at] += 1000 * floors[row]
        exact = abs(float(got[at]) - right) / floors[row]
        errors = situation.errors(anchor, got)
        expected = [exact if r == row else 0.0 for r in rows_that_count(phase, anchor)]
        np.testing.assert_allclose(errors, expected, rtol=1e-9)
        assert exact == pytest.approx(1000, rel=0.01)
        worst = situation.worst(anchor, got)
        assert (worst.index, worst.value, worst.expected) == (at, float(got[at]), right)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("anchor", ANCHORS)
def test_what_is_no_number_is_infinitely_wrong(anchor: str, phase: str, wrong: float, truth: AnchorTruth) -> None:
    situation, rng = of(phase, truth), np.random.default_rng(6)
    row = rows_that_count(phase, anchor)[-1]
    got = situation.anchor(anchor).copy()
    at = where(anchor, row, phase, got.shape, rng)
    got[at] = wrong
    error = situation.errors(anchor, got).max()
    assert error == np.inf if wrong != 3e38 else error > 1e30
    assert not error <= ANCHOR_FLOORS
    assert situation.worst(anchor, got).index == at


@pytest.mark.parametrize("phase", PHASES)
def test_everything_wrong_at_once(phase: str, config: Config, truth: AnchorTruth) -> None:
    situation = of(phase, truth)
    for anchor in anchors(config):
        for wrong in (np.nan, 0.0):
            got = np.full_like(situation.anchor(anchor), wrong)
            assert not (situation.errors(anchor, got) <= ANCHOR_FLOORS).any(), anchor


def test_the_worst_is_that_in_floors(tmp_path: Path, config: Config) -> None:
    """A small row that is far off in its own terms, before a large one that is a little off."""
    anchor = "layers.1.mlp.up_proj"
    truth = handmade(tmp_path / "t", config, draw=lambda rng, shape: rng.normal(0, 1, shape) * 1e6 ** (np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) == 3), noise=0.0)  # fmt: skip
    situation = of("prefill", truth)
    got = situation.anchor(anchor).copy()
    largest = int(np.argmax(np.abs(got[3])))
    got[3, largest] *= 1 + 2**-19
    got[1, 2] += 0.5
    assert abs(got - situation.anchor(anchor))[3, largest] > 0.5
    assert situation.worst(anchor, got).index == (1, 2)


# ---- what is not seen


MASKS = {"-inf": -np.inf, "-1e9": -1e9, "lowest": np.finfo(np.float32).min, "-200": -200.0}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mask", MASKS)
def test_scores_that_softmax_makes_0(mask: str, phase: str, truth: AnchorTruth) -> None:
    """Whatever number a graph hides a score behind."""
    situation, anchor = of(phase, truth), "layers.0.self_attn.scores"
    got = situation.anchor(anchor).copy()
    got[np.isneginf(got)] = MASKS[mask]
    assert not situation.errors(anchor, got).any()


@pytest.mark.parametrize("hidden", [-100.0, -50.0, 0.0, 1e9, np.nan, np.inf])
@pytest.mark.parametrize("phase", PHASES)
def test_a_score_that_is_not_hidden(phase: str, hidden: float, truth: AnchorTruth) -> None:
    situation, anchor = of(phase, truth), "layers.0.self_attn.scores"
    got = situation.anchor(anchor).copy()
    row = LENGTH - 2 if phase == "prefill" else 0
    at = (1, row, 1, (row if phase == "prefill" else len(TOKENS) - 1) + 1)
    assert np.isneginf(got[at])
    got[at] = hidden
    errors = situation.errors(anchor, got)
    assert errors[row] == np.inf
    assert (np.delete(errors, row) == 0).all()
    assert situation.worst(anchor, got).index == at


def test_how_far_below_counts_from_the_largest_of_the_row(tmp_path: Path, config: Config) -> None:
    truth = handmade(tmp_path / "t", config, draw=lambda rng, shape: 500 + rng.normal(0, 1, shape))
    situation, anchor = of("prefill", truth), "layers.0.self_attn.scores"
    got = situation.anchor(anchor).copy()
    got[np.isneginf(got)] = 300
    assert not situation.errors(anchor, got).any()
    got[got == 300] = 450
    assert (situation.errors(anchor, got)[:-1] == np.inf).all()


def test_a_score_that_is_hidden_and_should_be_seen(truth: AnchorTruth) -> None:
    situation, anchor = of("prefill", truth), "layers.0.self_attn.scores"
    got = situation.anchor(anchor).copy()
    got[0, 2, 0, 1] = -np.inf
    assert situation.errors(anchor, got)[2] == np.inf


def test_a_probability_of_what_is_hidden(truth: AnchorTruth) -> None:
    situation, anchor = of("prefill", truth), "layers.0.self_attn.probs"
    got = situation.anchor(anchor).copy()
    got[0, 2, 0, 3] = 1e-3
    assert situation.errors(anchor, got)[2] > ANCHOR_FLOORS


@pytest.mark.parametrize("wrong", [7.0, np.nan, np.inf, 0.0])
def test_rows_of_padding_do_not_count(wrong: float, config: Config, truth: AnchorTruth) -> None:
    situation = of("prefill", truth)
    for anchor in anchors(config):
        _, part = split(anchor)
        if part in ("norm", "lm_head"):
            continue
        got = situation.anchor(anchor).copy()
        by_head = part in ("self_attn.scores", "self_attn.probs", "k_cache", "v_cache")
        (got[:, LENGTH:] if by_head else got[LENGTH:])[...] = wrong
        assert not situation.errors(anchor, got).any(), anchor


@pytest.mark.parametrize("wrong", [7.0, np.nan])
def test_slots_that_are_not_filled_do_not_count_as_attended_to(wrong: float, truth: AnchorTruth) -> None:
    situation = of("decode", truth)
    got = situation.anchor("k_cache.1").copy()
    got[:, len(TOKENS) :] = wrong
    assert not situation.errors("k_cache.1", got).any()
    got[:, len(TOKENS) - 1] = wrong
    assert situation.errors("k_cache.1", got)[-1] > ANCHOR_FLOORS


@pytest.mark.parametrize("phase", PHASES)
def test_whole_caches(phase: str, truth: AnchorTruth) -> None:
    situation = of(phase, truth)
    filled = LENGTH if phase == "prefill" else len(TOKENS)
    right = situation.cache("k_cache", 0)
    assert situation.cache_errors("k_cache", 0, right.copy()).tolist() == [0, 0]
    for layer, slot in ((0, 0), (0, filled - 1), (1, 1)):
        got = right.copy()
        got[layer, 1, slot, 2] += 1.0
        errors = situation.cache_errors("k_cache", 0, got)
        distance = abs(float(got[layer, 1, slot, 2]) - float(right[layer, 1, slot, 2]))
        assert errors[layer] == pytest.approx(distance / situation.floors(f"k_cache.{layer}")[slot])
        assert errors[1 - layer] == 0
    for wrong in (right[1, 1, filled, 2] + 1, np.nan):
        got = right.copy()
        got[1, 1, filled, 2] = wrong
        assert situation.cache_errors("k_cache", 0, got).tolist() == [0, np.inf]


def test_a_cache_that_was_not_written(truth: AnchorTruth) -> None:
    """What a decode step finds there is not what it has to leave."""
    for phase in PHASES:
        situation = of(phase, truth)
        errors = situation.cache_errors("v_cache", 1, situation.cache("v_cache", 0))
        assert errors[0] == 0
        assert errors[1] > 1000


def test_slots_of_the_caches_that_a_session_returns(truth: AnchorTruth) -> None:
    situation = of("decode", truth)
    got = truth.values("k_cache.1").transpose(1, 0, 2).copy()
    assert slot_errors(truth, situation.config, "k_cache.1", got).tolist() == [0.0] * len(TOKENS)
    got[0, 3, 1] += 1
    got[1, 5, 0] = np.nan
    errors = slot_errors(truth, situation.config, "k_cache.1", got)
    assert [i for i, e in enumerate(errors) if e] == [3, 5]
    assert errors[5] == np.inf
    assert slot_errors(truth, situation.config, "k_cache.1", got[:, :3]).tolist() == [0, 0, 0]


def test_the_token(truth: AnchorTruth) -> None:
    situation = of("decode", truth)
    best = int(np.argmax(truth.values("lm_head")[-1]))
    assert situation.anchor("token") == best
    assert situation.errors("token", np.array(best, np.int32)).tolist() == [0]
    assert situation.errors("token", np.array(best + 1, np.int32)).tolist() == [np.inf]
    assert situation.corrected("token", np.array(best + 1, np.int32)) == (best, 0.0)


# ---- floors


def test_a_floor_is_the_largest_of_noise_and_rounding(tmp_path: Path, config: Config) -> None:
    anchor = "layers.1.mlp.down_proj"
    truth = handmade(tmp_path / "t", config, noise=0.0)
    scale = np.abs(truth.values(anchor)).max(axis=1)
    sums = ROUNDING * np.sqrt(terms(config, anchor, len(TOKENS)))
    np.testing.assert_allclose(row_scales(truth, anchor), scale)
    np.testing.assert_allclose(row_floors(truth, anchor, config), sums * scale)
    noisy = handmade(tmp_path / "noisy", config, noise=0.25)
    floors = row_floors(noisy, anchor, config)
    # A row in which there happened to be less noise than is usual is not held to more than the others.
    np.testing.assert_allclose(floors, np.maximum(0.25, np.median(0.25 / scale) * scale))


SCALES: dict[str, Draw] = {
    "zeros": lambda rng, shape: np.zeros(shape),
    "constant": lambda rng, shape: np.full(shape, 3.25),
    "negative": lambda rng, shape: np.full(shape, -1.0),
    "tiny": lambda rng, shape: rng.normal(0, 1e-30, shape),
    "denormal": lambda rng, shape: rng.normal(0, 1e-42, shape),
    "huge": lambda rng, shape: rng.normal(0, 1e30, shape),
    "one row of zeros": lambda rng, shape: rng.normal(0, 1, shape) * (np.arange(shape[0]) != 2).reshape(-1, *[1] * (len(shape) - 1)),
    "one row of huge": lambda rng, shape: rng.normal(0, 1, shape) * 1e30 ** (np.arange(shape[0]) == 2).reshape(-1, *[1] * (len(shape) - 1)),
}  # fmt: skip


@pytest.fixture(params=SCALES)
def scaled(request: pytest.FixtureRequest, tmp_path: Path, config: Config) -> AnchorTruth:
    return handmade(tmp_path / "t", config, draw=SCALES[request.param], noise=0.0)


@pytest.mark.parametrize("phase", PHASES)
def test_values_of_any_scale(phase: str, scaled: AnchorTruth, config: Config) -> None:
    """Right is right, one rounding off is right, and off by a hundredth is wrong, whatever the size."""
    situation = of(phase, scaled)
    for anchor in anchors(config):
        floors = situation.floors(anchor)
        assert (floors >= SMALLEST).all()
        assert np.isfinite(floors).all()
        right = situation.anchor(anchor)
        assert not situation.errors(anchor, right).any()
        near = np.nextafter(right, np.float32(np.inf), where=np.isfinite(right), out=right.copy())
        assert (situation.errors(anchor, near) <= ANCHOR_FLOORS).all(), anchor
        wrong = right * np.float32(1.01)
        errors = situation.errors(anchor, wrong)
        rows = rows_that_count(phase, anchor)
        for row, error in zip(rows, errors, strict=True):
            if row_scales(scaled, anchor)[row] > 1e-33:
                assert error > 1000, (anchor, row)
            else:
                assert error <= ANCHOR_FLOORS


def test_something_where_nothing_should_be(tmp_path: Path, config: Config) -> None:
    """Rows of zeros: noise is no number, and neither is a quotient by 0."""
    situation = of("prefill", handmade(tmp_path / "t", config, draw=SCALES["zeros"], noise=0.0))
    got = situation.anchor("layers.0").copy()
    got[2, 3] = 1e-30
    errors = situation.errors("layers.0", got)
    assert np.isfinite(errors).all()
    assert errors[2] > ANCHOR_FLOORS
    assert situation.worst("layers.0", got).index == (2, 3)


# ---- what should have been computed


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("anchor", ANCHORS)
def test_corrected(anchor: str, phase: str, truth: AnchorTruth) -> None:
    situation, rng = of(phase, truth), np.random.default_rng(8)
    right = situation.anchor(anchor)
    got = right + rng.normal(0, 1, right.shape).astype(np.float32)
    rows = rows_that_count(phase, anchor)
    expected, tolerance = situation.corrected(anchor, got.reshape(1, *got.shape))
    assert expected.shape == (1, *got.shape)
    assert not situation.errors(anchor, expected).any()
    # What does not count is as it was: nothing is known of it.
    axis = 1 if split(anchor)[1] in ("self_attn.scores", "self_attn.probs", "k_cache", "v_cache") else 0
    beyond = slice(max(rows) + 1, None) if got.ndim > 1 and got.shape[axis] > 1 else slice(0, 0)
    np.testing.assert_array_equal(np.moveaxis(expected[0], axis, 0)[beyond], np.moveaxis(got, axis, 0)[beyond])
    assert tolerance <= ANCHOR_FLOORS * situation.floors(anchor).max()
    seen = np.isfinite(right)
    assert np.abs(got[seen] - expected[0][seen]).max() > tolerance > 0, "the fault shows"
    assert got is not expected


def test_corrected_tells_right_from_wrong(tmp_path: Path, config: Config) -> None:
    """A row of small values that is wrong by less than a row of large ones may be off."""
    big = lambda rng, shape: rng.normal(0, 1, shape) * 1e9 ** (np.arange(shape[0]) == 2).reshape(-1, *[1] * (len(shape) - 1))  # fmt: skip  # noqa: E731
    situation = of("prefill", handmade(tmp_path / "t", config, draw=big, noise=0.0))
    got = situation.anchor("layers.0").copy()
    got[1, 3] += 0.5
    expected, tolerance = situation.corrected("layers.0", got)
    assert 0 < tolerance < 0.5
    np.testing.assert_array_equal(expected, situation.anchor("layers.0"))


def test_corrected_leaves_what_is_right_in_its_own_way(truth: AnchorTruth) -> None:
    """A graph that hides its scores behind -1e9 is wrong in one, and has to be right when that one is."""
    situation, anchor = of("prefill", truth), "layers.0.self_attn.scores"
    got = situation.anchor(anchor).copy()
    got[np.isneginf(got)] = -1e9
    right = got.copy()
    got[0, 2, 0, 1] += 1
    expected, tolerance = situation.corrected(anchor, got)
    assert np.isfinite(tolerance)
    seen = np.isfinite(situation.anchor(anchor))
    np.testing.assert_array_equal(expected[:, :LENGTH], right[:, :LENGTH])
    assert np.abs(got - expected)[seen].max() > tolerance


def test_corrected_takes_padding_from_what_is_right(truth: AnchorTruth) -> None:
    """So that a graph that has been mended is not held to what the wrong one made of padding."""
    situation = of("prefill", truth)
    for anchor in ("layers.0", "layers.0.self_attn.scores"):
        right = situation.anchor(anchor)
        got, mended = right + np.float32(3), right + np.float32(1e-7)
        axis = 1 if anchor.endswith("scores") else 0
        np.moveaxis(got, axis, 0)[LENGTH:] = 7
        np.moveaxis(mended, axis, 0)[LENGTH:] = -2
        expected, tolerance = situation.corrected(anchor, got, mended[None])
        seen = np.isfinite(right)
        assert np.abs(mended[seen] - expected[seen]).max() <= tolerance
        np.testing.assert_array_equal(np.moveaxis(expected, axis, 0)[LENGTH:], -2)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_corrected_of_what_is_no_number(wrong: float, truth: AnchorTruth) -> None:
    situation = of("prefill", truth)
    got = np.full_like(situation.anchor("layers.0"), wrong)
    expected, tolerance = situation.corrected("layers.0", got)
    assert np.isfinite(expected[:LENGTH]).all()
    assert 0 < tolerance < np.inf


# ---- keys and values in int8


@pytest.mark.parametrize("role", ["k_cache", "k_scale"])
def test_integers_and_scales_that_have_to_stay(role: str, truth: AnchorTruth) -> None:
    """A step fills one slot; what is not filled is as it was, integers and scales both."""
    situation = Situation(**{**vars(of("decode", truth)), "kv": "int8"})
    right = situation.cache(role, 0)
    assert right.dtype == (np.int8 if role == "k_cache" else np.float32)
    before = situation.cache_errors(role, 0, right.copy())
    assert np.isfinite(before).all()
    wrong = right.copy()
    wrong[1, 0, -1] += 1
    errors = situation.cache_errors(role, 0, wrong)
    assert np.isinf(errors[1])
    assert errors[0] == before[0]
    wrong = right.copy()
    wrong[0, 0, 0] = wrong[0, 0, 0] // 2 if role == "k_cache" else wrong[0, 0, 0] * 2
    assert situation.cache_errors(role, 0, wrong)[0] > 10 * before[0]


def test_whole_caches_in_int8_are_what_is_given_and_what_is_expected(truth: AnchorTruth) -> None:
    situation = Situation(**{**vars(of("decode", truth)), "kv": "int8"})
    for name, role in (("k_cache", "k_cache"), ("k_scale", "k_scale")):
        assert np.array_equal(situation.value(name, lambda _: np.zeros(0)), situation.cache(role, -1))
        assert np.array_equal(situation.value(f"{name}.0+", lambda _: np.zeros(0)), situation.cache(role, 0))
    assert situation.written("k_cache.0") == ["k_cache", "k_scale"]
    assert situation.written("layers.0") == []
