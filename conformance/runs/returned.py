"""What the graphs of a session return, held to the reference: every slot of both caches, and the head at every position.

A prompt shows the head after its last token and after what follows. A *stream* shows it everywhere: a sequence as long as
the cache, given to decode token by token from position 0, and its beginnings given to prefill. Where a step takes less
than a millisecond there are so many streams that each token of the vocabulary is in one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hloracle.backends.session import Session
from hloracle.conformance.runs.beside import Beside
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.situation import distance, row_errors, row_floors, slot_errors
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.reference.model.config import Config
from hloracle.reference.model.weights import weight_shapes

# A model of at most so many weights takes every token of its vocabulary, and prefill every length of a prompt: a step of it
# takes less than a millisecond.
SMALL_MODEL = 5_000_000
# Lengths at which each prefill graph of a larger model is tried, besides those of the prompts.
LENGTHS = 4
# Positions of a stream: of a longer cache the first ones are tried, and what is not compared is named.
LONGEST = 1024
# And of the lengths of prompts one in so many: what attends to all slots takes a tenth of a second for each.
FEWER = 8
# Bytes of both caches that are looked at for each step of a stream: larger ones are looked at after every few steps.
LOOKED_AT = 2**20
HEAD = "lm_head"


@dataclass(frozen=True)
class Stream:
    """A sequence for decode from position 0 on, which prefill is given the beginnings of.

    lengths: of those beginnings. every_step: after each step, or every few where the caches are large, every slot but those
      that the steps fill is held to what it was before.
    bucket: of the prefill graph that is given them; 0 without any. decodes: False if it is for prefill alone.
    """

    id: str
    tokens: tuple[int, ...]
    lengths: tuple[int, ...]
    every_step: bool
    bucket: int = 0
    decodes: bool = True


@dataclass(frozen=True)
class Slots:
    """What both caches hold after some calls.

    worst: layer by layer (`k_cache.0`), the largest error of a filled slot in floors, that slot, and the first slot beyond
      the limit, if there is one.
    stayed: the first thing that did not stay as it was, in words; empty where everything did.
    """

    worst: dict[str, tuple[float, int, int | None]]
    stayed: str = ""

    @property
    def largest(self) -> tuple[float, str, int]:
        """The largest error in floors, its cache and layer, and its slot."""
        error, anchor, slot = max(((e, a, s) for a, (e, s, _) in self.worst.items()), default=(0.0, "", 0))
        return error, anchor, slot

    def first_wrong(self) -> tuple[int, str] | None:
        """The first slot that is beyond its limit, and of what."""
        wrong = [
            (slot if first is None else first, anchor) for anchor, (error, slot, first) in self.worst.items()
            if first is not None or not error <= ANCHOR_FLOORS
        ]  # fmt: skip
        return min(wrong, default=None)


@dataclass(frozen=True)
class Streamed:
    """What came of a stream; empty where the graphs have no such step.

    heads: after each token, the error of the head in floors of its row. A head that is a token has the error 0, or is
      infinitely wrong.
    prefilled: the same of prefill's head, by the length that it was given.
    slots, prefilled_slots: of the caches then; of prefill's after the longest beginning.
    apart: prefill from decode on the same tokens: the largest distance of a logit or of a slot's entry, in floors of its row.
    """

    heads: list[float] = field(default_factory=list)
    prefilled: dict[int, float] = field(default_factory=dict)
    slots: Slots | None = None
    prefilled_slots: Slots | None = None
    apart: float | None = None


def result_anchors(config: Config, head: bool) -> tuple[str, ...]:
    """The anchors that a graph returns: both caches, layer by layer; and the head."""
    return tuple(a for a in anchors(config) if split(a)[1] in CACHES or (head and a == HEAD))


def is_small(config: Config) -> bool:
    """Whether the weights have at most SMALL_MODEL values in all, by the shapes that follow from the config."""
    return sum(math.prod(shape) for shape in weight_shapes(config).values()) <= SMALL_MODEL


def streams(
    config: Config, capacity: int, buckets: Sequence[int], text: Sequence[int], every_token: bool,
    in_parts: bool = False,
) -> list[Stream]:  # fmt: skip
    """The streams of a model: those of decode and the largest prefill graph, then one for each smaller graph.

    Args:
      buckets: of its prefill graphs; empty without any.
      text: what a model that is not small streams: the longest prompt, and what followed it.
      every_token: False leaves out all streams of a small model but the first. in_parts: the largest graph is given beginnings
        that are longer than its bucket, too.
    """
    step = 1 if capacity <= LONGEST else FEWER
    capacity = min(capacity, LONGEST)
    largest = max(buckets, default=0)

    def longest(bucket: int) -> int:
        # Beyond RoPE's turning point a prompt that is given at once is turned by other angles than token by token.
        return min(bucket, config.turning_point or bucket, capacity)

    found: list[Stream] = []
    if not is_small(config):
        some = tuple(text[:capacity])

        def lengths(bucket: int) -> tuple[int, ...]:
            tried = {round(longest(bucket) ** (i / LENGTHS)) for i in range(LENGTHS + 1)} if bucket else set()
            return tuple(sorted(n for n in tried if n <= len(some)))

        found.append(Stream("text", some, lengths(largest), every_step=False, bucket=largest))
    else:
        # So that both prefill and decode are given every token.
        share = longest(largest) or capacity
        order = np.random.default_rng(0).permutation(config.vocab_size).tolist()

        def lengths(bucket: int) -> tuple[int, ...]:
            # Every one, so that every token is the last of a prompt, too.
            return tuple(sorted({*range(1, longest(bucket) + 1, step), *([longest(bucket)] if bucket else [])}))

        for start in range(0, len(order), share):
            tokens = [*order[start:], *order[:start]]
            tokens = (tokens * -(-capacity // len(tokens)))[:capacity]
            id = f"tokens-{len(found) + 1}"
            found.append(Stream(id, tuple(tokens), lengths(largest), every_step=True, bucket=largest))
            if not every_token:
                break
    first = found[0]
    if in_parts:
        most = min(config.turning_point or capacity, len(first.tokens))
        longer = {largest + 1, (largest + most) // 2, most}
        first = found[0] = replace(
            first, lengths=tuple(sorted({*first.lengths, *(n for n in longer if largest < n <= most)}))
        )
    return found + [
        replace(first, id=f"{first.id}@{bucket}", lengths=lengths(bucket), bucket=bucket, decodes=False)
        for bucket in sorted(buckets)
        if bucket != largest
    ]


# ---- the caches


def slots_of(
    caches: Sequence[np.ndarray], truth: AnchorTruth, config: Config, filled: int, first: int = 0,
    holds: np.ndarray | None = None,
) -> Slots:  # fmt: skip
    """The filled slots of whole caches [L, K, S, D], from `first` on. holds: see `Session.holds`; all when None."""
    worst: dict[str, tuple[float, int, int | None]] = {}
    for part, cache in zip(CACHES, caches, strict=False):  # of which a graph may have none
        for layer in range(len(cache)):
            slots = np.arange(filled) if holds is None else np.flatnonzero(holds[layer, :filled])
            errors = slot_errors(truth, config, f"{part}.{layer}", cache[layer], slots)[slots >= first]
            slots = slots[slots >= first]
            wrong, at = slots[~(errors <= ANCHOR_FLOORS)], int(np.argmax(errors))
            worst[f"{part}.{layer}"] = (
                float(f"{errors[at]:.3g}"),
                int(slots[at]),
                int(wrong[0]) if len(wrong) else None,
            )
    return Slots(worst)


def changed(
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    slots: slice | np.ndarray,
    holds: np.ndarray | None = None,
) -> str:
    """The first of these slots that is not bit for bit what it was, in words; empty where all are.

    before, after: [L, K, S, …], values or, as `Session.bits` has them, what makes them. holds: bool [L, S], the slots that there were before and are after; all when None.
    """
    for part, old, new in zip(CACHES, before, after, strict=False):
        different = (_bits(old) != _bits(new)).any(axis=(1, 3))  # [L, S]
        different = different if holds is None else different & holds
        which = np.arange(old.shape[2])[slots]
        for layer, place in enumerate(different[:, slots]):
            if np.any(place):
                return f"slot {which[int(np.argmax(place))]} of {part}.{layer}"
    return ""


def after_prompt(session: Session, caches: Sequence[np.ndarray], length: int, bucket: int) -> str:
    """What a prompt left behind it that does not belong there, in words; empty where all is as it should be."""
    if isinstance(session, Beside):
        # Of a ring, what no token of the prompt went to.
        what = changed(session.before, session.bits(), slice(length, None), session.holds())
        return f"{what} changed, behind a prompt of {length} tokens" if what else ""
    bucket = bucket if session.buckets else length
    # Of integers with scales either may be 0, and the number is.
    if session.kv == "int8" and (what := _left(session.bits(), bucket)):
        return what
    return after_prefill(caches, length, bucket, session.holds())


def after_prefill(caches: Sequence[np.ndarray], length: int, bucket: int, holds: np.ndarray | None = None) -> str:
    """What prefill put where nothing belongs: padding that is not finite, or anything beyond the bucket. holds: see `slots_of`."""
    for part, cache in zip(CACHES, caches, strict=False):
        held = cache if holds is None else np.where(holds[:, None, :, None], cache, 0)
        if what := _left([held], bucket, [part]):
            return what
        if not np.all(np.isfinite(held[:, :, length:bucket])):
            return f"{part} has padding that is not finite, which attention multiplies by 0"
    return ""


def _left(caches: Sequence[np.ndarray], bucket: int, parts: Sequence[str] = CACHES) -> str:
    """The first of these that holds something beyond the bucket, in words."""
    wrong = (part for part, cache in zip(parts, caches, strict=True) if np.any(cache[:, :, bucket:]))
    return next((f"{part} is not zero from slot {bucket} on, behind the bucket" for part in wrong), "")


def _bits(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.view(np.uint8 if array.shape[-1] * array.itemsize % 4 else np.uint32)


def unfilled(session: Session) -> tuple[np.ndarray, ...]:
    """Caches in which no slot is filled, and each holds ordinary numbers: what reads them is wrong."""
    rng = np.random.default_rng(7)
    return tuple(session.held(rng.normal(0, 1, shape).astype(np.float32)) for shape in session.cache_shapes)


# ---- streams


def run_stream(session: Session, stream: Stream, truth: AnchorTruth, config: Config) -> Streamed:
    """Give a stream to decode and its beginnings to prefill, as far as the session has such graphs."""
    lengths = stream.lengths if session.buckets else ()
    decodes = session.decodes and stream.decodes
    found = _decode(session, stream, truth, config, max(lengths, default=0)) if decodes else None
    prefilled: dict[int, float] = {}
    slots: Slots | None = None
    apart: float | None = None
    for length in lengths:
        head = session.prefill(stream.tokens[:length], stream.bucket)
        prefilled[length] = _head_error(truth, config, length - 1, head)
        caches = session.caches(whole=True)
        stayed = after_prompt(session, caches, length, stream.bucket)
        these = replace(slots_of(caches, truth, config, length, holds=session.holds()), stayed=stayed)
        slots = these if slots is None else _worse(slots, these)
        if length == lengths[len(lengths) // 2] and not slots.stayed:
            slots = replace(slots, stayed=_padded_otherwise(session, stream, length, truth, config))
        if found and length == lengths[-1]:  # pyright: ignore[reportGeneralTypeIssues]  (it is not empty here)
            apart = _apart(
                truth, config, length, (head, caches), (found.head, found.caches), session.holds() & found.holds
            )
    heads, decoded = (found.errors, found.slots) if found else ([], None)
    return Streamed(heads, prefilled, decoded, slots, apart)


def _padded_otherwise(session: Session, stream: Stream, length: int, truth: AnchorTruth, config: Config) -> str:
    """That what prefill returns is wrong where other tokens fill the bucket, in words; empty if it is not."""
    padding = session.vocab_size - 1
    session.padding, before = padding, session.padding
    head = session.prefill(stream.tokens[:length], stream.bucket)
    session.padding = before
    # Not bit for bit: a softmax may be shifted by what padding gave it, and is right.
    error = _head_error(truth, config, length - 1, head)
    slots = slots_of(session.caches(whole=True), truth, config, length, holds=session.holds())
    if error <= ANCHOR_FLOORS and slots.first_wrong() is None:
        return ""
    return f"prefill of {length} tokens is wrong where token {padding} fills the bucket"


@dataclass(frozen=True)
class _Decoded:
    """errors: of the head at each position. head: that after the tokens which prefill is given. caches, holds: in the end."""

    errors: list[float]
    head: Any
    slots: Slots
    caches: Sequence[np.ndarray]
    holds: np.ndarray


def _decode(session: Session, stream: Stream, truth: AnchorTruth, config: Config, compared: int) -> _Decoded:
    given = unfilled(session)
    session.reset(given)
    before, held = session.bits(), session.holds()
    errors: list[float] = []
    stayed, kept, start = "", None, 0
    few = -(-sum(cache.nbytes for cache in given) // LOOKED_AT)
    for position, token in enumerate(stream.tokens):
        head = session.decode_step(token)
        errors.append(_head_error(truth, config, position, head))
        if position == compared - 1:
            kept = head
        if stream.every_step and ((position + 1) % few == 0 or position == len(stream.tokens) - 1):
            after = session.bits()
            others = np.delete(np.arange(session.capacity), slice(start, position + 1))
            holds = session.holds()
            if not stayed and (what := changed(before, after, others, held & holds)):
                stayed = f"{what} changed at position {position}"
                if position > start:
                    stayed = f"{what} changed at one of the positions {start} to {position}"
            before, start, held = after, position + 1, holds
    after = session.caches(whole=True)
    holds = session.holds()
    slots = replace(slots_of(after, truth, config, len(stream.tokens), holds=holds), stayed=stayed)
    return _Decoded(errors, kept, slots, after, holds)


def _worse(one: Slots, other: Slots) -> Slots:
    """Of each layer the larger error, and the first slot that is beyond the limit in either."""
    worst = {}
    for anchor, (error, slot, first) in one.worst.items():
        more, at, then = other.worst[anchor]
        wrong = [n for n in (first, then) if n is not None]
        worst[anchor] = (*((error, slot) if not more > error else (more, at)), min(wrong, default=None))
    return Slots(worst, one.stayed or other.stayed)


def _head_error(truth: AnchorTruth, config: Config, row: int, head: int | np.ndarray) -> float:
    """In floors of the row. A token is right if its logit may be the largest."""
    if isinstance(head, np.ndarray):
        return row_errors(truth, config, HEAD, row, head)
    logits = truth.values(HEAD)[row]
    if not 0 <= head < len(logits):
        return math.inf
    limit = ANCHOR_FLOORS * float(row_floors(truth, HEAD, config)[row])
    return 0.0 if float(np.max(logits) - logits[head]) <= 2 * limit else math.inf


def _apart(
    truth: AnchorTruth, config: Config, length: int, prefill: tuple[Any, Sequence[np.ndarray]],
    decode: tuple[Any, Sequence[np.ndarray]], holds: np.ndarray,
) -> float:  # fmt: skip
    """How far the head and the caches after the same tokens are apart: see Streamed. holds: the slots that both have, [L, S]."""
    head, streamed = prefill[0], decode[0]
    found = []
    # A token says too little: at a near-tie two right ones differ. What it was chosen from shows in the caches' last slots.
    if isinstance(head, np.ndarray):
        found.append(furthest([head], [streamed]) / float(row_floors(truth, HEAD, config)[length - 1]))
    for part, mine, other in zip(CACHES, prefill[1], decode[1], strict=False):
        for layer in range(len(mine)):
            off = distance(mine[layer, :, :length], other[layer, :, :length])  # [K, length, D]
            floors = row_floors(truth, f"{part}.{layer}", config)[:length]
            apart = (np.max(off, axis=(0, 2)) / floors)[holds[layer, :length]]
            found.append(float(np.max(apart, initial=0.0)))
    return max(found)


# ---- twice


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether heads and caches of two equal rounds of calls are equal, bit for bit."""

    def bits(value: Any) -> bytes:
        return np.ascontiguousarray(value).tobytes()

    return len(one) == len(other) and all(bits(a) == bits(b) for a, b in zip(one, other, strict=True))


def furthest(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest distance between the numbers of two equal rounds of calls; infinite where one is NaN."""
    return max(
        (float(np.max(distance(np.asarray(a), np.asarray(b)))) for a, b in zip(one, other, strict=True)), default=0.0
    )


def repeat(session: Session, tokens: Sequence[int], following: Sequence[int], bucket: int) -> tuple[bool, float]:
    """The same calls twice: whether all that they return is equal, bit for bit, and else how far it is apart.

    A prompt goes in other pieces the second time, which changes no bit, but where keys are in rings: what is added up then comes in
    another order.
    """
    rounds: list[list[Any]] = []
    bits: list[list[Any]] = []
    for _ in range(2):
        if isinstance(session, Beside) and not session.holds().all():
            session.again()
        heads = [session.prefill(tokens, bucket) if session.buckets else session.stream_prompt(tokens)]
        if session.decodes:
            heads += [session.decode_step(token) for token in following]
        holds, caches = session.holds()[:, None, :, None], session.caches()
        rounds.append([*heads, *(np.where(holds[:, :, : cache.shape[2]], cache, 0) for cache in caches)])
        filled = rounds[-1][-1].shape[2] if caches else 0
        bits.append([*heads, *(np.where(holds, b, 0)[:, :, :filled] for b in session.bits())])
    return same(*bits), furthest(*rounds)
