"""Anchors are found among values by number: in any layout, times a constant, in rows; what is a little off is none."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from models import LENGTH, PHASES, TOKENS, S, T, handmade, model

from hloracle.localize.matching import Layout, Match, Pick, Scene, cuts, find, shape_of
from hloracle.localize.situation import Situation
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.reference.model.config import Config

PLAIN = "plain"  # N = 4, K = 2, D = 4, E = 12, F = 20, V = 29
SCORES = "layers.1.self_attn.scores"
Q, CONTEXT, ACT = "layers.1.self_attn.q_rope", "layers.0.self_attn.context", "layers.1.mlp.act"
NOISE = 2.0**-20


@pytest.fixture(scope="module")
def config(cache: Path) -> Config:
    return model(PLAIN).config


@pytest.fixture(scope="module")
def truth(config: Config, tmp_path_factory: pytest.TempPathFactory) -> AnchorTruth:
    return handmade(tmp_path_factory.mktemp("truth") / "usual", config, noise=NOISE)


def situation(phase: str, truth: AnchorTruth) -> Situation:
    return model(PLAIN).situation(phase, truth)


def scene(phase: str, truth: AnchorTruth, rows: int = 1, row: int = 0) -> Scene:
    return Scene(model(PLAIN).config, situation(phase, truth), rows, row)


def found(scene: Scene, anchor: str, *values: np.ndarray) -> Match | None:
    """The match of one anchor among values that are counted from 3."""
    matches = find(scene, {i + 3: v for i, v in enumerate(values)}, [anchor])
    return matches[0] if matches else None


def anchor_value(scene: Scene, anchor: str) -> np.ndarray:
    return scene.expected(anchor).reshape(scene.shape(anchor)).astype(np.float32)


def noise(*shape: int, seed: int = 999) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("phase", PHASES)
def test_every_anchor_is_found_in_its_own_shape_first(phase: str, config: Config, truth: AnchorTruth) -> None:
    """Among all the others and noise of the same shapes, each at its place, at once."""
    here = scene(phase, truth)
    names = anchors(config)
    values = [v for name in names for v in (noise(*here.shape(name)), anchor_value(here, name))]
    matches = find(here, dict(enumerate(values)), names)
    assert [(m.anchor, m.value) for m in matches] == [(name, 2 * i + 1) for i, name in enumerate(names)]
    for match in matches:
        assert match.plain
        assert match.layout.picks == ()
        assert match.layout.order == tuple(range(len(match.layout.order)))


# ---- layouts

LAYOUTS = {
    # anchor -> its axes, the letters of a layout; parentheses join.
    Q: ("T N D", ["N T D", "D T N", "T (N D)", "(D N) T", "1 T 1 N D", "T K G D", "G K T D", "K (T G D)", "T N two h", "two T N h",
                  "T N h two", "h N T two"]),
    CONTEXT: ("T (N D)", ["T N D", "N T D", "(N D) T", "D N T", "K G T D", "T K (G D)"]),
    SCORES: ("K T G S", ["K G T S", "T (K G) S", "S T K G", "(K G S) T", "1 K G T S"]),
    ACT: ("T F", ["F T", "1 T F", "(F T)"]),
    "k_cache.1": ("K S D", ["S K D", "S (K D)", "D K S", "K S two h", "K S h two"]),
}  # fmt: skip
SIZES = {"N": 4, "K": 2, "G": 2, "D": 4, "F": 20, "two": 2, "h": 2}


def laid(value: np.ndarray, axes: str, layout: str, phase: str) -> np.ndarray:
    """By einops, which matching does not use."""
    import einops

    left = axes
    letters = set(layout.replace("(", " ").replace(")", " ").split())
    if {"K", "G"} <= letters:
        left = left.replace("N", "(K G)") if "(N D)" not in left else left.replace("(N D)", "(K G D)")
    if "h" in letters:
        first = "h two" if layout.endswith("two") else "two h"
        left = left.replace("D", f"({first})")
    left = left.replace("T", "T" if phase == "prefill" else "1 T")
    sizes = {**SIZES, "T": T if phase == "prefill" else 1, "S": T if phase == "prefill" else S}
    pattern = left.replace("1 T", "T")
    used = {a: n for a, n in sizes.items() if a in pattern.replace("(", " ").replace(")", " ").split()}
    found: np.ndarray = einops.rearrange(value, f"{pattern} -> {layout}", **used)
    return found


# Tokens that share an axis with others are not told from padding.
JOINED = re.compile(r"\([^)]*T\b[^)]+\)|\([^)]+\bT\)")
CASES = [
    (phase, anchor, layout) for phase in PHASES for anchor, (_, some) in LAYOUTS.items() for layout in some
    if phase == "decode" or not JOINED.search(layout)
]  # fmt: skip


@pytest.mark.parametrize(("phase", "anchor", "layout"), CASES)
def test_any_order_of_axes(phase: str, anchor: str, layout: str, truth: AnchorTruth) -> None:
    """It is taken out as it was, and what is put back lies where it lay."""
    here = scene(phase, truth)
    right = anchor_value(here, anchor)
    value = laid(right, LAYOUTS[anchor][0], layout, phase)
    match = found(here, anchor, noise(*value.shape), value, value.copy())
    assert match
    assert (match.value, match.layout.factor, match.layout.picks) == (4, 1.0, ())
    np.testing.assert_array_equal(match.layout.taken(value, 0, 0).reshape(right.shape), right)
    put = here.put(anchor, value, match.layout)
    assert put.shape == value.shape
    finite = np.isfinite(value)
    np.testing.assert_array_equal(put[finite], value[finite])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("factor", [0.5, -1.0, 11.3137085])
def test_times_a_constant(phase: str, factor: float, truth: AnchorTruth) -> None:
    here = scene(phase, truth)
    right = anchor_value(here, Q)
    match = found(here, Q, (right * np.float32(factor)).transpose(1, 0, 2))
    assert match
    assert not match.plain
    np.testing.assert_allclose(match.layout.factor, factor, rtol=1e-5)
    np.testing.assert_allclose(
        match.layout.taken((right * np.float32(factor)).transpose(1, 0, 2), 0, 0), right.ravel(), rtol=1e-5
    )
    # A later value that is the anchor itself is taken before it.
    match = found(here, Q, right * np.float32(factor), right)
    assert match
    assert (match.value, match.plain) == (4, True)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("row", [0, 2])
def test_in_one_of_several_rows(phase: str, row: int, truth: AnchorTruth) -> None:
    """Only the judged one counts, on whichever axis the rows are; the others stay as they are."""
    here = scene(phase, truth, rows=3, row=row)
    for axis in range(3):
        values = [noise(*here.shape(Q), seed=i) for i in range(3)]
        values[row] = anchor_value(here, Q)
        value = np.stack(values, axis)
        match = found(here, Q, value)
        assert match
        assert match.layout.picks == (Pick(axis, "row"),)
        np.testing.assert_array_equal(match.layout.taken(value, row, 0), values[row].ravel())
        spoiled = value.copy()
        np.moveaxis(spoiled, axis, 0)[row][:] = 0
        restored = here.put(Q, spoiled, match.layout)
        counted = slice(0, LENGTH) if phase == "prefill" else slice(None)
        np.testing.assert_array_equal(np.moveaxis(restored, axis, 0)[row][counted], values[row][counted])
        others = [i for i in range(3) if i != row]
        np.testing.assert_array_equal(np.moveaxis(restored, axis, 0)[others], np.moveaxis(value, axis, 0)[others])
        wrong = np.stack(values[::-1] if row != 1 else [values[1], values[0], values[2]], axis)
        assert found(here, Q, wrong) is None


def test_the_last_of_several_tokens(truth: AnchorTruth) -> None:
    """Of what only the last token has: graphs may compute it of all."""
    here = scene("prefill", truth)
    for anchor in ("norm", "lm_head"):
        right = anchor_value(here, anchor).reshape(-1)
        value = noise(T, right.size)
        value[LENGTH - 1] = right
        for one, axis in ((value, 0), (value.T, 1)):
            match = found(here, anchor, one)
            assert match
            assert match.layout.picks == (Pick(axis, "last"),)
        value[LENGTH - 1], value[LENGTH] = value[LENGTH], right.copy()
        assert found(here, anchor, value) is None
    rows = scene("prefill", truth, rows=2, row=1)
    value = noise(2, T, right.size)
    value[1, LENGTH - 1] = right
    match = found(rows, "lm_head", value)
    assert match
    assert set(match.layout.picks) == {Pick(0, "row"), Pick(1, "last")}
    np.testing.assert_array_equal(match.layout.taken(value, 1, LENGTH - 1), right)


def test_padding_may_hold_anything(truth: AnchorTruth) -> None:
    here = scene("prefill", truth)
    value = anchor_value(here, Q)
    value[LENGTH:] = noise(T - LENGTH, *value.shape[1:])
    match = found(here, Q, value.transpose(1, 0, 2))
    assert match
    put = here.put(Q, value.transpose(1, 0, 2) * 0, match.layout)
    np.testing.assert_array_equal(put.transpose(1, 0, 2)[:LENGTH], value[:LENGTH])
    assert not put.transpose(1, 0, 2)[LENGTH:].any()


def test_hidden_scores_may_be_any_large_negative_number(truth: AnchorTruth) -> None:
    here = scene("decode", truth)
    value = anchor_value(here, SCORES)
    for hidden in (-np.inf, -1e9, -3e38):
        match = found(here, SCORES, np.where(np.isfinite(value), value, np.float32(hidden)).transpose(3, 0, 1, 2))
        assert match
    assert found(here, SCORES, np.where(np.isfinite(value), value, np.float32(-1.0))) is None


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("part", CACHES)
def test_the_whole_cache_after_a_layer(part: str, layer: int, config: Config, truth: AnchorTruth) -> None:
    """[L, K, S, D] once a layer has written to it; that of another layer is not it."""
    here = scene("decode", truth)
    anchor, other = f"{part}.{layer}+", f"{part}.{1 - layer}+"
    assert here.shape(anchor) == shape_of(config, anchor, 1, S) == (2, 2, S, 4)
    right = here.expected(anchor)
    match = found(here, anchor, here.expected(other).transpose(2, 0, 1, 3), right.transpose(2, 0, 1, 3))
    assert match
    assert match.value == 4
    untouched = right.copy()
    untouched[:, :, len(TOKENS) :] += 1  # slots that nobody has filled are as they were
    assert found(here, anchor, untouched) is None


# ---- near misses


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("anchor", [Q, CONTEXT, SCORES, "k_cache.0", "layers.0", "lm_head"])
def test_near_misses(phase: str, anchor: str, truth: AnchorTruth) -> None:
    """One element that is off, two that are swapped, one that is not a number, one hidden that is not."""
    here = scene(phase, truth)
    right = anchor_value(here, anchor)
    part = split(anchor)[1]
    rows = situation(phase, truth).rows
    counted = here.right(anchor, right)
    limit = here.limit(anchor)
    axis = {"prefill": rows[-1], "decode": 0}[phase]
    where = next(
        index for index in itertools.product(*map(range, right.shape))
        if np.isfinite(right[index]) and abs(right[index]) > 100 * limit
        and (part in ("", "lm_head") or index[1 if part != "self_attn.q_rope" and part != "self_attn.context" else 0] <= axis)
    )  # fmt: skip
    assert counted.size
    for off, same in ((limit / 4, True), (limit * 4, False), (np.nan, False), (np.inf, False)):
        value = right.copy()
        value[where] += off
        assert (found(here, anchor, value) is not None) == same, off
    rolled = np.roll(right, 1, axis=-1)
    match = found(here, anchor, rolled)
    assert match is None or not here.fits(
        anchor, rolled, Layout((), right.shape, tuple(range(right.ndim)), right.shape)
    )


def test_as_many_numbers_in_another_order_are_not_it(truth: AnchorTruth) -> None:
    """Whatever sorts alike: only layouts of axes are tried."""
    here = scene("decode", truth)
    right = anchor_value(here, ACT)
    assert found(here, ACT, right[:, np.random.default_rng(0).permutation(right.shape[1])]) is None
    assert found(here, ACT, right[:, ::-1].copy()) is None


def test_numbers_that_are_too_few_or_all_zero_say_nothing(tmp_path: Path, config: Config) -> None:
    zeros = handmade(tmp_path / "zeros", config, draw=lambda rng, shape: np.zeros(shape))
    here = scene("decode", zeros)
    assert found(here, ACT, anchor_value(here, ACT)) is None


def test_what_is_rounded_gives_way_to_what_is_not(tmp_path: Path, config: Config) -> None:
    """bfloat16 numbers that are within the floors, and float32 ones later."""
    coarse = handmade(tmp_path / "coarse", config, noise=2.0**-6)
    here = scene("decode", coarse)
    right = anchor_value(here, ACT)
    narrow = right.astype(ml_dtypes.bfloat16)
    match = found(here, ACT, narrow)
    assert match
    assert (match.narrow, match.plain) == (True, False)
    match = found(here, ACT, narrow, right)
    assert match
    assert (match.narrow, match.value) == (False, 4)


def test_how_axes_are_cut(config: Config) -> None:
    assert list(cuts(config, Q, (7, 4, 4))) == [(7, 4, 4), (7, 2, 2, 2, 2)]  # N is D
    assert list(cuts(config, CONTEXT, (7, 16))) == [(7, 16), (7, 2, 2, 4), (7, 2, 2, 2, 2)]
    assert list(cuts(config, "x", (1, 1))) == [(1,)]
