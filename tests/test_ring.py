"""Rings: windowed layers that keep their last W keys and values give what they give with caches of all positions."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from nightly import only

from hloracle.backends.named import make_backend
from hloracle.backends.session import Session
from hloracle.cli.main import cli
from hloracle.conformance.suite import selected, with_rings
from hloracle.core import kept, rings
from hloracle.core.abi import Abi, Graph
from hloracle.core.cache import cache_root
from hloracle.core.errors import InputError
from hloracle.emitters.model import Emitter
from hloracle.localize.anatomy import Anatomy, peer_of
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import graph_abi, graph_name
from hloracle.reference.model.registry import from_hf
from hloracle.reference.oracle.lower import lower

S, T, W = 40, 12, 7  # a chunk is longer than a window; MEDIUM is shorter
SHORT, MEDIUM = 4, 7
# Of the largest logit. The same sums, in another order.
CLOSE = 2e-5


@functools.cache
def checkpoint(family: str, window: int = W) -> Checkpoint:
    return open_checkpoint(write_tiny(cache_root() / f"ring-{family}-{window}", family, sliding_window=window))


def graphs(model: Checkpoint, source: str, batch: int, ring: bool, buckets: tuple[int, ...] = (T,)) -> list[Graph]:
    specs = [("decode", 0), *(("extend", n) for n in buckets), *((("prefill", T),) if batch == 1 else ())]
    config = model.config
    if source == "oracle":
        return [lower(config, phase, "logits", S, n, batch, ring=ring) for phase, n in specs]
    return [Emitter().emit(config, phase, "logits", S, n, None, batch, ring=ring) for phase, n in specs]


@functools.cache
def session(family: str, source: str, batch: int, ring: bool, window: int = W) -> Session:
    model = checkpoint(family, window)
    return Session(make_backend("xla-cpu", 1), graphs(model, source, batch, ring, (SHORT, MEDIUM, T)), model.load)


def tokens(model: Checkpoint, seed: int = 3) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, model.config.vocab_size, S)]


def junk(of: Session, seed: int = 5) -> list[np.ndarray]:
    """Numbers in slots that nothing was written to."""
    rng = np.random.default_rng(seed)
    shapes = of.cache_shapes if of.batch == 1 else [(s[0], of.batch, *s[1:]) for s in of.cache_shapes]
    return [rng.normal(0, 3, shape).astype(np.float32) for shape in shapes]


def assert_same(head: Any, wanted: Any) -> None:
    assert np.max(np.abs(head - wanted)) <= CLOSE * max(float(np.max(np.abs(wanted))), 1.0)
    assert int(np.argmax(head)) == int(np.argmax(wanted))


def assert_same_caches(with_ring: Session, without: Session, row: int = 0) -> None:
    """What a ring holds is what a cache has at these positions; the last W are held, and no other ones."""
    filled, holds = with_ring.positions[row], with_ring.holds(row)
    window = with_ring._abi.ring
    for layer in with_ring._abi.windowed:
        expected = [p for p in range(S) if filled - window <= p < max(filled, window)]
        assert np.flatnonzero(holds[layer]).tolist() == expected
    for mine, wanted in zip(with_ring.caches(row=row), without.caches(row=row), strict=True):
        held = np.broadcast_to(holds[:, None, :filled, None], mine.shape)
        np.testing.assert_allclose(mine[held], wanted[held], atol=2e-5)
        assert np.isnan(mine[~held]).all(), "what is not there is no number"


# ---- which slot


@pytest.mark.parametrize("filled", [0, 1, W - 1, W, W + 1, 2 * W, 2 * W + 3])
def test_positions_are_those_of_writing_one_after_the_other(filled: int) -> None:
    held = list(range(W))
    for position in range(filled):
        held[position % W] = position
    assert rings.positions(W, filled).tolist() == held


def test_caches_by_position_and_back() -> None:
    abi = graph_abi(checkpoint("gemma3_text").config, "decode", "logits", S, ring=True)
    caches = [
        np.random.default_rng(i).normal(0, 1, shape).astype(np.float32) for i, shape in enumerate(abi.cache_shapes)
    ]
    for filled in (0, 3, W, S):
        there = kept.by_position(abi, kept.as_kept(abi, caches, filled), filled)
        holds = rings.held(abi, len(caches[0]), filled)
        for one, other in zip(there, caches, strict=True):
            held = np.broadcast_to(holds[:, None, :, None], one.shape)
            assert np.array_equal(one[held], other[held])
            assert np.isnan(one[~held]).all()


# ---- the same as without

# Of which families, with which windows, in whose graphs.
ANY_CUTS = [
    (*f, s) for f in [("mistral", 5), ("gemma3_text", W), ("gpt_oss", 11), ("phi3", W)] for s in ("emitter", "oracle")
]


@pytest.mark.parametrize(
    ("family", "window", "source"),
    only([("mistral", 5, "emitter"), ("gemma3_text", W, "oracle"), ("phi3", W, "emitter")], ANY_CUTS),
)
def test_any_cuts_give_what_a_cache_of_all_positions_gives(family: str, window: int, source: str) -> None:
    """Chunks that are longer than the window, and shorter; the ring is written over many times, from any slot on."""
    one, other = (session(family, source, 1, ring, window) for ring in (True, False))
    given, rng = tokens(checkpoint(family, window)), np.random.default_rng(9)
    turning = checkpoint(family, window).config.turning_point
    for _ in range(4):
        for which in (one, other):
            which.reset(junk(which))
        done = 0
        while done < S:
            count = int(rng.integers(1, min(T, S - done) + 1))
            some, total = given[done : done + count], S if turning else None
            assert_same(*(which.extend(some, row=0, total=total) for which in (one, other)))
            done += count
            assert_same_caches(one, other)


@pytest.mark.parametrize("source", ["emitter", "oracle"])
@pytest.mark.parametrize("length", [1, W - 1, W, W + 1, T])
def test_a_prompt_and_what_follows(length: int, source: str) -> None:
    """Decode at every position from there on, so at W-1, W, W+1 and 2W too."""
    one, other = (session("gemma3_text", source, 1, ring) for ring in (True, False))
    given = tokens(checkpoint("gemma3_text"))
    assert_same(*(which.prefill(given[:length], T) for which in (one, other)))
    assert_same_caches(one, other)
    for token in given[length:]:
        assert_same(*(which.decode_step(token) for which in (one, other)))
        assert_same_caches(one, other)


@pytest.mark.parametrize("source", ["emitter", "oracle"])
def test_decode_from_the_first_token_on(source: str) -> None:
    one, other = (session("mistral", source, 1, ring) for ring in (True, False))
    for which in (one, other):
        which.reset(junk(which))
    for token in tokens(checkpoint("mistral")):
        assert_same(*(which.decode_step(token) for which in (one, other)))
    assert_same_caches(one, other)


@pytest.mark.parametrize("source", ["emitter", "oracle"])
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_rows_at_turns_of_their_own(family: str, source: str) -> None:
    """Each row is at another turn of its ring, some are idle, and a row begins again over what was there."""
    B, rng = 3, np.random.default_rng(2)
    one, other = (session(family, source, B, ring) for ring in (True, False))
    for which in (one, other):
        which.reset(junk(which))
    given = [tokens(checkpoint(family), row) for row in range(B)]
    for step in range(60):
        row = int(rng.integers(B))
        if step in (25, 45):
            one.positions[row] = other.positions[row] = 0
        filled = one.positions[row]
        count = int(rng.integers(1, T + 1))
        if rng.random() < 0.3 and filled + count <= S:
            assert_same(*(which.extend(given[row][filled : filled + count], row=row) for which in (one, other)))
        fed = {r: given[r][one.positions[r]] for r in range(B) if one.positions[r] < S and rng.random() < 0.6}
        if fed:
            found, wanted = one.step(fed), other.step(fed)
            for r in fed:
                assert_same(found[r], wanted[r])
        for r in range(B):
            assert_same_caches(one, other, r)


def test_windows_that_differ_share_a_ring_as_long_as_the_longest() -> None:
    model = checkpoint("mistral")
    first, *others = model.config.layers
    config = dataclasses.replace(model.config, layers=(dataclasses.replace(first, window=4), *others))
    mine = dataclasses.replace(model, config=config)
    one, other = (
        Session(make_backend("xla-cpu", 1), graphs(mine, "emitter", 1, ring), mine.load) for ring in (True, False)
    )
    assert one._abi.ring == W
    given = tokens(mine)
    assert_same(*(which.prefill(given[:9], T) for which in (one, other)))
    assert_same(*(which.extend(given[9:20]) for which in (one, other)))
    for token in given[20:]:
        assert_same(*(which.decode_step(token) for which in (one, other)))
    of_oracle = Session(make_backend("xla-cpu", 1), graphs(mine, "oracle", 1, True), mine.load)
    assert_same(of_oracle.prefill(given[:9], T), other.prefill(given[:9], T))
    for token in given[9:]:
        assert_same(of_oracle.decode_step(token), other.decode_step(token))


def test_idle_rows_stay_bit_for_bit_also_with_a_window_of_one() -> None:
    """The slot of position -1 is none, also where there is one slot alone."""
    model = checkpoint("mistral", 1)
    rows = Session(make_backend("xla-cpu", 1), graphs(model, "emitter", 2, True), model.load)
    rows.reset(junk(rows))
    before = rows.caches(whole=True, row=1)
    for token in tokens(model)[:5]:
        rows.step({0: token})
    for mine, wanted in zip(rows.caches(whole=True, row=1), before, strict=True):
        assert mine.tobytes() == wanted.tobytes()


# ---- the ABI


def abi(family: str = "gemma3_text", phase: str = "decode", batch: int = 1) -> Abi:
    return graph_abi(
        checkpoint(family).config, phase, "logits", S, T if phase != "decode" else 0, batch=batch, ring=True
    )


def test_the_abi_of_rings(tmp_path: Path) -> None:
    mixed, alone = abi(), abi("mistral", batch=2)
    assert mixed.caches == ("k_cache", "v_cache", "k_ring", "v_ring")
    assert (mixed.capacity, mixed.ring, mixed.windowed) == (S, W, (0,))
    assert alone.caches == ("k_ring", "v_ring")
    assert (alone.capacity, alone.ring, alone.windowed, alone.batch) == (S, W, (0, 1), 2)
    assert [r.aliases for r in alone.results[1:]] == [len(alone.arguments) - 2, len(alone.arguments) - 1]
    for one in (mixed, alone, abi(phase="prefill"), abi(phase="extend", batch=2)):
        one.validate()
        (tmp_path / "a.abi.json").write_text(one.to_json())
        assert Abi.from_file(tmp_path / "a.abi.json") == one
    assert (
        graph_name(checkpoint("mistral").config, "decode", "token", 0, 2, ring=True)
        == "mistral_decode_token_batch_2_ring"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"windowed": ()}, "takes token, position, k_cache, v_cache after the weights"),
        ({"windowed": (0, 1)}, "windowed names 2 layers"),
        ({"windowed": (7,)}, "not layers from 0 to 1 that rise"),
        ({"positions": W}, "takes token, position, k_ring, v_ring after the weights"),
    ],
)
def test_an_abi_that_is_none(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(abi(), **changes).validate()


def test_a_ring_has_fewer_slots_than_a_sequence() -> None:
    with pytest.raises(ValueError, match="fewer slots"):
        dataclasses.replace(abi("mistral"), positions=W).validate()


# ---- refusals


@pytest.mark.parametrize(
    ("family", "capacity", "words"),
    [("llama", S, "the model has none"), ("mistral", W, f"the shortest has {W} keys")],
)
def test_a_model_without_such_a_layer(family: str, capacity: int, words: str) -> None:
    config = checkpoint("mistral").config if family == "mistral" else from_hf(TINY[family])
    with pytest.raises(InputError, match=words):
        Emitter().emit(config, "decode", capacity=capacity, ring=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["emit", "tiny-llama", "--phase", "decode", "-o", "x.mlir"],
        ["emit", "tiny-mistral", "--phase", "decode", "--capacity", "11", "-o", "x.mlir"],
        ["run", "tiny-llama", "--rounds", "0"],
        ["suite", "llama"],
        ["bench", "tiny-llama"],
    ],
)
def test_commands_refuse_it(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, [*arguments, "--ring"])
    assert isinstance(result.exception, InputError) or result.exit_code == 2
    assert "--ring" in f"{result.output} {result.exception}"


def test_families_with_rings() -> None:
    found = with_rings(selected(()))
    assert {"mistral", "gemma3_text", "gpt_oss", "phi3"} <= set(found)
    assert not {"llama", "qwen3", "deepseek_v3"} & {*with_rings(["llama", "deepseek_v3"])}


def test_a_layer_in_blocks_beside_one_in_a_ring_is_compared_without_scores() -> None:
    """In a cache of more than 256 slots the layer of all keys attends to a block at a time, and the windowed one does not."""
    config = from_hf(TINY["gemma3_text"])
    graph, peer = (write(config, "extend", "logits", 300, 32, ring=True) for write in (Emitter().emit, lower))
    attended = {"layers.0.self_attn.scores", "layers.0.self_attn.probs"}
    for anatomy in (Anatomy(graph, config), peer_of(Anatomy(graph, config), peer)):
        assert {a for a in anatomy.values if a.endswith((".scores", ".probs"))} == attended
