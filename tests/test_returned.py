"""Everything that a session returns, held to the reference: right sessions pass, and each comparison fails where it has to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import PLAIN, handmade
from small import BUCKET, CAPACITY, Spoil, answered, asked, checkpoint, judged, nothing, session

from hloracle.conformance.runs import returned
from hloracle.conformance.runs.returned import (
    LENGTHS,
    Slots,
    Stream,
    Streamed,
    after_prefill,
    changed,
    furthest,
    is_small,
    repeat,
    result_anchors,
    run_stream,
    same,
    slots_of,
    streams,
)
from hloracle.core.abi import Graph
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.situation import row_floors
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import from_hf

CONFIG = from_hf({**TINY["llama"], **PLAIN})  # 2 layers, 2 kv heads of 4 numbers
L, K, D, V = 2, 2, 4, PLAIN["vocab_size"]
N, S = 7, 10  # tokens of the truth, and slots
Caches = list[np.ndarray]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> AnchorTruth:
    return handmade(tmp_path_factory.mktemp("truth") / "entry", CONFIG)


@pytest.fixture
def caches(truth: AnchorTruth) -> Caches:
    """Right ones, with other numbers behind what is filled."""
    found = []
    for part in ("k_cache", "v_cache"):
        layers = np.stack([truth.values(f"{part}.{layer}") for layer in range(L)])  # [L, N, K, D]
        found.append(np.pad(layers.transpose(0, 2, 1, 3), ((0, 0), (0, 0), (0, S - N), (0, 0)), constant_values=7))
    return found


def floor(truth: AnchorTruth, anchor: str, slot: int) -> float:
    return float(row_floors(truth, anchor, CONFIG)[slot])


# ---- slots


def test_right_slots(caches: Caches, truth: AnchorTruth) -> None:
    found = slots_of(caches, truth, CONFIG, N)
    assert list(found.worst) == ["k_cache.0", "k_cache.1", "v_cache.0", "v_cache.1"]
    assert {worst for worst, _, _ in found.worst.values()} == {0.0}
    assert (found.first_wrong(), found.stayed) == (None, "")


@pytest.mark.parametrize("part", [0, 1], ids=["k_cache", "v_cache"])
@pytest.mark.parametrize("layer", [0, L - 1])
@pytest.mark.parametrize("head", [0, K - 1])
@pytest.mark.parametrize("slot", [0, 3, N - 1])
@pytest.mark.parametrize("entry", [0, D - 1])
def test_one_wrong_number(
    part: int, layer: int, head: int, slot: int, entry: int, caches: Caches, truth: AnchorTruth
) -> None:
    anchor = f"{('k_cache', 'v_cache')[part]}.{layer}"
    for floors, wrong in (
        (0.9 * ANCHOR_FLOORS, False),
        (1.1 * ANCHOR_FLOORS, True),
        (math.nan, True),
        (-math.inf, True),
    ):
        some = [c.copy() for c in caches]
        some[part][layer, head, slot, entry] += np.float32(floors * floor(truth, anchor, slot))
        found = slots_of(some, truth, CONFIG, N)
        assert found.first_wrong() == ((slot, anchor) if wrong else None)
        error, at, of = found.worst[anchor]
        assert (at, of) == (slot, slot if wrong else None)
        assert error == pytest.approx(floors if math.isfinite(floors) else math.inf, rel=0.1)
        assert found.largest == (error, anchor, slot)
        assert [w for a, (w, _, _) in found.worst.items() if a != anchor] == [0.0] * 3


def test_only_what_is_filled_counts(caches: Caches, truth: AnchorTruth) -> None:
    caches[0][0, 0, 5:] = math.nan
    assert slots_of(caches, truth, CONFIG, 5).first_wrong() is None
    assert slots_of(caches, truth, CONFIG, 6).first_wrong() == (5, "k_cache.0")
    # What was filled before is not looked at again.
    caches[1][1, 1, 2] = math.inf
    assert slots_of(caches, truth, CONFIG, 5, first=3).first_wrong() is None
    found = dataclasses.replace(slots_of(caches, truth, CONFIG, 6, first=2), stayed="a slot moved")
    assert (found.first_wrong(), found.stayed) == ((2, "v_cache.1"), "a slot moved")
    assert found.worst["k_cache.0"] == (math.inf, 5, 5)


def test_the_first_wrong_slot_is_of_the_lowest_position() -> None:
    found = Slots(
        {"k_cache.0": (99.0, 5, 4), "v_cache.1": (20.0, 2, 2), "k_cache.1": (500.0, 3, 3), "v_cache.0": (1.0, 0, None)}
    )
    assert found.first_wrong() == (2, "v_cache.1")
    assert found.largest == (500.0, "k_cache.1", 3)


# ---- slots that must stay


@pytest.mark.parametrize("part", [0, 1], ids=["k_cache", "v_cache"])
@pytest.mark.parametrize(("layer", "head", "slot", "entry"), [(0, 0, 0, 0), (1, 1, 9, 3), (1, 0, 6, 2)])
def test_a_slot_that_changes_by_one_bit(
    part: int, layer: int, head: int, slot: int, entry: int, caches: Caches
) -> None:
    others = np.array([s for s in range(S) if s != 4])
    for bit in (1, 2**31):  # the least of the number, and its sign
        after = [c.copy() for c in caches]
        bits = after[part].view(np.uint32)
        bits[layer, head, slot, entry] ^= bit
        name = f"slot {slot} of {('k_cache', 'v_cache')[part]}.{layer}"
        assert changed(caches, after, others) == changed(caches, after, slice(None)) == name
        assert changed(caches, after, np.array([s for s in range(S) if s != slot])) == ""


def test_what_changed_first(caches: Caches) -> None:
    after = [c.copy() for c in caches]
    assert changed(caches, after, slice(None)) == ""
    after[1][0, 0, 1] += 1
    after[0][1, 0, 8] += 1
    after[0][1, 1, 6] += 1
    assert changed(caches, after, slice(None)) == "slot 6 of k_cache.1"
    assert changed(caches, after, slice(0, 6)) == "slot 1 of v_cache.0"


def test_the_same_bits_stay_whatever_number_they_are(caches: Caches) -> None:
    """NaN equals itself, and -0.0 is not 0.0."""
    caches[0][0, 0, 0] = math.nan
    assert changed(caches, [c.copy() for c in caches], slice(None)) == ""
    caches[1][:] = 0.0
    assert changed(caches, [caches[0], -caches[1]], slice(None)) == "slot 0 of v_cache.0"


# ---- what prefill leaves


def left_by_prefill(caches: Caches, length: int = 3, bucket: int = 8) -> Caches:
    for cache in caches:
        cache[:, :, bucket:] = 0
    return caches


@pytest.mark.parametrize("part", [0, 1], ids=["k_cache", "v_cache"])
@pytest.mark.parametrize(
    ("slot", "number", "words"),
    [
        (3, math.nan, "has padding that is not finite, which attention multiplies by 0"),
        (7, math.inf, "has padding that is not finite, which attention multiplies by 0"),
        (8, 1e-30, "is not zero from slot 8 on, behind the bucket"),
        (9, math.nan, "is not zero from slot 8 on, behind the bucket"),
        (7, 1e30, ""),
        (2, math.nan, ""),  # a filled one has an error instead
    ],
)
def test_what_prefill_leaves(part: int, slot: int, number: float, words: str, caches: Caches) -> None:
    left = left_by_prefill(caches)
    assert after_prefill(left, 3, 8) == ""
    left[part][L - 1, K - 1, slot, D - 1] = number
    assert after_prefill(left, 3, 8) == (f"{('k_cache', 'v_cache')[part]} {words}" if words else "")


# ---- the head


@pytest.mark.parametrize("row", [0, 3, N - 1])
@pytest.mark.parametrize("at", [0, V - 1])
def test_logits(row: int, at: int, truth: AnchorTruth) -> None:
    right = np.array(truth.values("lm_head")[row])
    assert returned._head_error(truth, CONFIG, row, right) == 0
    for floors in (2.0, 99.0, math.inf, math.nan):
        logits = right.copy()
        logits[at] += np.float32(floors * floor(truth, "lm_head", row))
        error = returned._head_error(truth, CONFIG, row, logits)
        assert error == pytest.approx(floors if math.isfinite(floors) else math.inf, rel=0.1)
        other = returned._head_error(truth, CONFIG, (row + 1) % N, right)
        assert other > ANCHOR_FLOORS, "another row's logits are not this one's"


def test_a_token(truth: AnchorTruth) -> None:
    """It is right where its logit and the best one can each move by the limit."""
    logits = np.array(truth.values("lm_head"), np.float64)
    for row in range(N):
        best = int(np.argmax(logits[row]))
        for token in (*range(V), -1, V, 2**31 - 1):
            right = token == best  # what is drawn at random has no near-tie
            assert returned._head_error(truth, CONFIG, row, token) == (0.0 if right else math.inf)


def test_a_token_at_a_near_tie(tmp_path: Path) -> None:
    for lead, error in ((1.9, 0.0), (2.1, math.inf)):
        close = handmade(tmp_path / str(lead), CONFIG, draw=lambda rng, shape: np.zeros(shape), noise=2.0**-10)
        logits = np.zeros((N, V), np.float32)
        logits[:, 5] = lead * ANCHOR_FLOORS * floor(close, "lm_head", 0)
        np.save(close.folder / "lm_head.npy", logits)
        assert returned._head_error(close, CONFIG, 0, 5) == 0
        assert returned._head_error(close, CONFIG, 0, 6) == error


# ---- the streams


def small_config(family: str = "llama", **keys: Any) -> Config:
    return from_hf({**TINY[family], **keys})


BIG = small_config(vocab_size=2**16)


def covered(found: Sequence[Stream], prefill: bool) -> set[int]:
    return {t for s in found for t in (s.tokens[: max(s.lengths)] if prefill else s.tokens)}


@pytest.mark.parametrize(
    ("capacity", "bucket"), [(256, 256), (256, 128), (32, 32), (111, 64), (100, 64), (512, 256), (4096, 2048)]
)
def test_streams_of_a_small_model(capacity: int, bucket: int) -> None:
    config = small_config()
    found = streams(config, capacity, [bucket], (), every_token=True)
    for stream in found:
        assert len(stream.tokens) == min(capacity, returned.LONGEST)
        assert stream.every_step
        assert set(stream.tokens) <= set(range(config.vocab_size))
    assert covered(found, prefill=True) == covered(found, prefill=False) == set(range(config.vocab_size))
    last = min(bucket, returned.LONGEST)
    every = range(1, last + 1) if capacity <= returned.LONGEST else {*range(1, last + 1, returned.FEWER), last}
    assert {s.lengths for s in found} == {tuple(sorted(every))}
    assert len({s.id for s in found}) == len(found)
    assert found == streams(config, capacity, [bucket], (1, 2), every_token=True), "every run has the same ones"
    assert streams(config, capacity, [bucket], (), every_token=False) == found[:1]


def test_streams_without_a_prefill_graph() -> None:
    config = small_config()
    found = streams(config, 100, (), (), every_token=True)
    assert [s.lengths for s in found] == [()] * 3
    assert covered(found, prefill=False) == set(range(257))
    assert streams(BIG, 100, (), tuple(range(200)), every_token=True) == [
        Stream("text", tuple(range(100)), (), every_step=False)
    ]


@pytest.mark.parametrize("family", ["seed_oss", "phi3"])
@pytest.mark.parametrize("bucket", [32, 64])
def test_prefill_is_given_nothing_beyond_the_turning_point(family: str, bucket: int) -> None:
    """There it turns by other angles than a step does. It is given every token all the same."""
    config = small_config(family)
    assert config.turning_point
    longest = min(bucket, config.turning_point)
    found = streams(config, 111, [bucket], (), every_token=True)
    assert {s.lengths for s in found} == {tuple(range(1, longest + 1))}
    assert covered(found, prefill=True) == set(range(config.vocab_size))
    big = dataclasses.replace(config, vocab_size=2**20)
    assert not is_small(big)
    (stream,) = streams(big, 111, [bucket], tuple(range(100)), every_token=True)
    assert max(stream.lengths) == longest


def test_what_a_larger_model_streams() -> None:
    """The longest prompt and what follows, once; prefill some of its beginnings, from one token to all."""
    assert not is_small(BIG)
    text = tuple(range(300, 400))
    (stream,) = streams(BIG, 256, [256], text, every_token=True)
    assert (stream.tokens, stream.every_step) == (text, False)
    assert stream.lengths == (1, 4, 16, 64)  # 256 is more than there are tokens
    assert len(stream.lengths) <= LENGTHS + 1
    (stream,) = streams(BIG, 64, [64], text, every_token=True)
    assert (stream.tokens, stream.lengths) == (text[:64], (1, 3, 8, 23, 64))


@pytest.mark.parametrize("config", [small_config(), BIG], ids=["small", "big"])
def test_every_prefill_graph_is_given_beginnings(config: Config) -> None:
    """Short ones too, which a session would give to a smaller graph."""
    text = tuple(range(100))
    *whole, first, second = streams(config, 100, [16, 64, 4], text, every_token=True)
    assert {s.bucket for s in whole} == {64}
    assert all(s.decodes for s in whole)
    for stream, bucket in ((first, 4), (second, 16)):
        assert (stream.bucket, stream.tokens, stream.decodes) == (bucket, whole[0].tokens, False)
        assert {1, bucket} <= set(stream.lengths) <= set(range(1, bucket + 1))
        assert (len(stream.lengths) == bucket) == is_small(config) or bucket == 4
    assert len({s.id for s in (*whole, first, second)}) == len(whole) + 2


def test_what_a_graph_returns_has_an_anchor() -> None:
    caches = [f"{part}.{layer}" for layer in range(L) for part in ("k_cache", "v_cache")]
    assert sorted(result_anchors(CONFIG, head=False)) == sorted(caches)
    assert set(result_anchors(CONFIG, head=True)) - set(caches) == {"lm_head"}


# ---- a session's streams, on XLA


def streamed(spoil: Spoil = nothing, head: str = "logits", **other: Any) -> Streamed:
    question = asked()
    (stream,) = question.streams
    return run_stream(session(spoil, head, **other), stream, question.kept[stream.id], checkpoint().config)


def beyond(found: Streamed) -> set[str]:
    """What shows something wrong."""
    heads = {"heads": found.heads, "prefilled": list(found.prefilled.values()), "apart": [found.apart or 0.0]}
    wrong = {name for name, errors in heads.items() if any(not e <= ANCHOR_FLOORS for e in errors)}
    for name, slots in (("slots", found.slots), ("prefilled_slots", found.prefilled_slots)):
        if slots and slots.first_wrong():
            wrong.add(name)
        if slots and slots.stayed:
            wrong.add(f"{name} stayed")
    return wrong


@pytest.mark.parametrize("head", ["logits", "token"])
def test_a_right_session(head: str) -> None:
    found = streamed(head=head)
    assert beyond(found) == set()
    assert len(found.heads) == CAPACITY
    assert list(found.prefilled) == list(range(1, BUCKET + 1))
    assert found.slots
    assert found.prefilled_slots
    assert set(found.slots.worst) == set(found.prefilled_slots.worst) == set(result_anchors(checkpoint().config, False))
    # What is measured is noise, and not nothing: of both compilers' sums none is the truth's.
    assert found.apart
    assert 0 < found.slots.largest[0] < ANCHOR_FLOORS
    assert any(found.heads) == (head == "logits")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_session_of_one_phase(phase: str) -> None:
    found = streamed(phases=(phase,))
    assert beyond(found) == set()
    assert (bool(found.heads), bool(found.prefilled), found.apart) == (phase == "decode", phase == "prefill", None)
    assert (found.slots is None, found.prefilled_slots is None) == (phase == "prefill", phase == "decode")


def test_a_larger_models_stream_is_not_compared_after_each_step() -> None:
    question = asked()
    stream = dataclasses.replace(question.streams[0], every_step=False, lengths=(1, 8))
    found = run_stream(session(), stream, question.kept[stream.id], checkpoint().config)
    whole = streamed()
    assert (found.heads, found.slots, found.apart) == (whole.heads, whole.slots, whole.apart)
    assert found.prefilled == {n: whole.prefilled[n] for n in (1, 8)}


@dataclasses.dataclass
class Calls:
    """Spoils results of some calls of a phase: `which` of them, counted from 0, at a place; all when None."""

    phase: str
    place: int
    spoil: Callable[[np.ndarray], np.ndarray]
    which: set[int] | None = None
    count: int = -1

    def __call__(self, graph: Graph, place: int, result: np.ndarray) -> np.ndarray:
        if graph.abi.phase != self.phase:
            return result
        self.count += place == 0
        wanted = place == self.place and (self.which is None or self.count in self.which)
        return self.spoil(result) if wanted else result


def number(at: tuple[int, ...], value: float = 1.0) -> Callable[[np.ndarray], np.ndarray]:
    def spoil(result: np.ndarray) -> np.ndarray:
        result[at] += np.float32(value)
        return result

    return spoil


@pytest.mark.parametrize("position", [0, 7, CAPACITY - 1])
@pytest.mark.parametrize("head", ["logits", "token"])
def test_the_head_of_one_step(head: str, position: int) -> None:
    """One logit; or another token."""
    spoil = number((5,)) if head == "logits" else lambda token: (token + 1) % 257
    found = streamed(Calls("decode", 0, spoil, {position}), head)
    apart = {"apart"} if head == "logits" and position == BUCKET - 1 else set()
    assert beyond(found) == {"heads"} | apart
    assert [p for p, e in enumerate(found.heads) if not e <= ANCHOR_FLOORS] == [position]


@pytest.mark.parametrize("length", [1, 5, BUCKET])
@pytest.mark.parametrize("head", ["logits", "token"])
def test_the_head_of_one_prefill(head: str, length: int) -> None:
    spoil = number((5,)) if head == "logits" else lambda token: (token + 1) % 257
    # One length is given twice, with other padding: as many calls come before those that are longer.
    found = streamed(Calls("prefill", 0, spoil, {length - 1 + (length > 5)}), head)
    assert [n for n, e in found.prefilled.items() if not e <= ANCHOR_FLOORS] == [length]
    more = {"apart"} if head == "logits" and length == BUCKET else set()
    assert beyond(found) == {"prefilled"} | more


PLACES = [(1, 0, 0), (1, 2, 1), (2, 0, 1), (2, 2, 0)]  # k or v, the first and the last layer, and kv head


@pytest.mark.parametrize(("place", "layer", "head"), PLACES)
@pytest.mark.parametrize("slot", [0, CAPACITY - 1])
def test_one_number_that_a_step_writes(place: int, layer: int, head: int, slot: int) -> None:
    found = streamed(Calls("decode", place, number((layer, head, slot, 3)), {slot}))
    assert found.slots
    assert found.slots.first_wrong() == (slot, f"{(None, 'k_cache', 'v_cache')[place]}.{layer}")
    assert found.slots.stayed == "", "the step may write its own slot"
    assert "prefilled_slots" not in beyond(found)


@pytest.mark.parametrize(("place", "layer", "head"), PLACES)
@pytest.mark.parametrize(("slot", "position"), [(0, CAPACITY - 1), (CAPACITY - 1, 0), (4, 5), (6, 5)])
def test_one_bit_of_a_slot_that_a_step_must_leave(place: int, layer: int, head: int, slot: int, position: int) -> None:
    """Before its position and behind; what is written later shows at once or not at all."""

    def flip(result: np.ndarray) -> np.ndarray:
        result.view(np.uint32)[layer, head, slot, 0] ^= 1
        return result

    found = streamed(Calls("decode", place, flip, {position}))
    assert beyond(found) == {"slots stayed"}
    assert found.slots
    name = f"{(None, 'k_cache', 'v_cache')[place]}.{layer}"
    assert found.slots.stayed == f"slot {slot} of {name} changed at position {position}"


@pytest.mark.parametrize(
    ("slot", "position", "first", "last"), [(0, CAPACITY - 1, 9, 11), (CAPACITY - 1, 0, 0, 2), (2, 5, 3, 5)]
)
def test_large_caches_are_looked_at_every_few_steps(
    monkeypatch: pytest.MonkeyPatch, slot: int, position: int, first: int, last: int
) -> None:
    def flip(result: np.ndarray) -> np.ndarray:
        result.view(np.uint32)[1, 0, slot, 0] ^= 1
        return result

    monkeypatch.setattr(returned, "LOOKED_AT", 1 + sum(c.nbytes for c in returned.unfilled(session(nothing))) // 3)
    found = streamed(Calls("decode", 2, flip, {position}))
    assert beyond(found) == {"slots stayed"}
    assert found.slots
    assert found.slots.stayed == f"slot {slot} of v_cache.1 changed at one of the positions {first} to {last}"


@pytest.mark.parametrize(("place", "layer", "head"), PLACES)
@pytest.mark.parametrize(("length", "slot"), [(1, 0), (BUCKET, 0), (BUCKET, BUCKET - 1)])
def test_one_number_that_prefill_writes(place: int, layer: int, head: int, length: int, slot: int) -> None:
    spoil = Calls("prefill", place, number((layer, head, slot, 3)), {length - 1 + (length > 5)})
    found = streamed(spoil)
    assert found.prefilled_slots
    assert found.prefilled_slots.first_wrong() == (slot, f"{(None, 'k_cache', 'v_cache')[place]}.{layer}")
    # The longest one is compared with decode, too.
    assert beyond(found) == {"prefilled_slots"} | ({"apart"} if length == BUCKET else set())


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize(("slot", "value"), [(BUCKET - 1, math.nan), (BUCKET, 1e-30)])
def test_what_prefill_leaves_where_nothing_belongs(place: int, slot: int, value: float) -> None:
    found = streamed(Calls("prefill", place, number((2, 1, slot, 3), value), {0}))
    assert beyond(found) == {"prefilled_slots stayed"}


@pytest.mark.parametrize(("place", "at"), [(0, (5,)), (1, (2, 1, 4, 3)), (2, (0, 0, 0, 0))])
def test_prefill_that_hangs_on_its_padding(place: int, at: tuple[int, ...]) -> None:
    found = streamed(Calls("prefill", place, number(at), {5}))
    assert beyond(found) == {"prefilled_slots stayed"}
    assert found.prefilled_slots
    assert found.prefilled_slots.stayed == "prefill of 5 tokens is wrong where token 256 fills the bucket"


def test_prefill_that_hangs_on_its_padding_by_a_rounding() -> None:
    """A softmax may be shifted by a masked score, and is right."""
    spoil = Calls("prefill", 0, lambda logits: np.nextafter(logits, np.float32(np.inf)), {5})
    assert beyond(streamed(spoil)) == set()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_prefill_and_decode_that_are_apart(place: int) -> None:
    """Each within its limit of the truth, on either side of it."""
    question = asked()
    (stream,) = question.streams
    kept = question.kept[stream.id]
    anchor = ("lm_head", "k_cache.2", "v_cache.2")[place]
    step = 12 * float(row_floors(kept, anchor, checkpoint().config)[BUCKET - 1])
    at = (5,) if place == 0 else (2, 1, BUCKET - 1, 3)

    def spoil(graph: Graph, i: int, result: np.ndarray) -> np.ndarray:
        if i == place:
            of_prefill = graph.abi.phase == "prefill"
            exact = kept.values(anchor)[BUCKET - 1]
            if of_prefill or place == 0 or np.any(result[at]):
                right = float(exact[5] if place == 0 else exact[1, 3])
                if abs(float(result[at]) - right) < step:
                    result[at] = right + (step if of_prefill else -step)
        return result

    assert beyond(streamed(spoil)) <= {"apart", "slots stayed", "prefilled_slots stayed"}
    assert (streamed(spoil).apart or 0) == pytest.approx(24, rel=0.1)


# ---- the same calls twice


def calls_twice(spoil: Spoil = nothing, **other: Any) -> tuple[bool, float]:
    first = asked().prompts[0]
    return repeat(session(spoil, **other), first.token_ids, (1, 2), BUCKET)


@pytest.mark.parametrize("head", ["logits", "token"])
@pytest.mark.parametrize("phases", [("prefill", "decode"), ("prefill",), ("decode",)])
def test_the_same_calls_give_the_same_bits(head: str, phases: tuple[str, ...]) -> None:
    assert calls_twice(head=head, phases=phases) == (True, 0.0)


@pytest.mark.parametrize(("phase", "which"), [("prefill", 1), ("decode", 2), ("decode", 3)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_second_call_that_differs(place: int, phase: str, which: int) -> None:
    at = (5,) if place == 0 else (2, 1, 0, 3)
    equal, apart = calls_twice(Calls(phase, place, number(at, 0.5), {which}))
    assert not equal
    assert apart == pytest.approx(0.5, rel=0.5)


def test_a_second_call_that_gives_another_token() -> None:
    assert calls_twice(Calls("decode", 0, lambda t: t + 3, {2}), head="token") == (False, 3.0)


def test_what_is_the_same() -> None:
    one = [3, np.array([1.0, 0.0, math.nan], np.float32)]
    assert same(one, [3, one[1].copy()])
    assert not same(one, one[:1])
    assert not same(one, [3, np.array([1.0, -0.0, math.nan], np.float32)])
    assert furthest(one, one) == math.inf, "NaN is no distance from itself"
    assert furthest([3], [5]) == 2
    assert furthest([], []) == 0


# ---- a whole configuration


@pytest.mark.parametrize("head", ["logits", "token"])
def test_a_cell_that_is_right(head: str) -> None:
    found = judged(answered(head=head))
    assert {id: (c.status, c.detail) for id, c in found.items() if c.status != "passed"} == {}
    assert {"tokens", "caches", "repeats", "streamed-logits", "prefill-equals-streaming"} <= set(found)


def test_what_a_prompt_leaves_in_the_caches() -> None:
    """Of a prompt the slots that it fills, and of the steps those that they fill."""
    for id, outcome in answered().prompts.items():
        length = len(next(p for p in asked().prompts if p.id == id).token_ids)
        first, after = ({slot for _, slot, _ in slots.worst.values()} for slots in outcome.slots)
        assert first <= set(range(length))
        assert after <= set(range(length, length + 3))
        assert length + 3 <= CAPACITY


@pytest.mark.parametrize(("slot", "which"), [(0, 0), (CAPACITY - 1, 0)])
def test_a_slot_that_the_steps_after_a_prompt_must_leave(slot: int, which: int) -> None:
    """Of the first prompt: its own, and one behind what its steps fill."""

    def flip(result: np.ndarray) -> np.ndarray:
        result.view(np.uint32)[2, 1, slot, 0] ^= 1
        return result

    outcome = answered(Calls("decode", 2, flip, {which}))
    before, after = outcome.prompts["short@8"].slots
    assert (before.stayed, after.stayed) == ("", f"slot {slot} of v_cache.2 changed while slots 3 to 5 were filled")
    assert {id for id, c in judged(outcome).items() if c.status != "passed"} == {"caches"}
