"""Spoils one thing in a right graph: a run has to notice it, or there is a reason why no observer could.

What is spoiled is what a graph returns, after everything that makes it: each anchor has its right value, and each subgraph
computes what it should. `studies/holes.py` has all of them judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir.dialects import stablehlo

from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.localize.writer import Value, Writer
from hloracle.reference.model.anchors import CACHES
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import HEADS, graph_abi

PHASES = ("prefill", "decode")  # whose graphs are spoiled
# Small, and far beyond roundings: logits of tiny models may be off by about 2^-17 of their size.
FACTOR, STEP = 1 + 2.0**-6, 2.0**-6
# A size that results of every tiny model have values above and below, and one that none comes near.
LARGE, BEYOND = 2.0, 1024.0
# Of a result that is another one in each call: less than a logit may be off by.
NOISE = 2.0**-20
# Where not all token ids are tried, one of so many is.
SAMPLE = 11

FILLED_FIRST = "decode fills a slot before it reads it, and masks it until then"
NEVER_SO_LARGE = f"no value of a tiny model comes near {BEYOND:g}: each is a product with what a norm has scaled"
REFUSED = "a session refuses it before a graph is called"

Change = Callable[[Writer, Value], Value]  # what is right -> what is returned instead
Condition = Callable[[Writer], Value]  # -> a scalar i1
Edit = Callable[[Writer], None]


@dataclass(frozen=True)
class Spoiling:
    """One thing that is spoiled in the graph of one phase and one head.

    id: that graph, the kind and the particulars, e.g. `decode/logits/position/17`. what: the same in words.
    reason: why no observer can tell; empty where a run has to notice.
    """

    id: str
    kind: str
    phase: str
    head: str
    what: str
    edit: Edit = field(repr=False, compare=False)
    reason: str = ""


@dataclass(frozen=True)
class Place:
    """A graph in which something is spoiled.

    T: tokens of a prefill's bucket. V: of the vocabulary. every_token: spoil each of these in decode, not some.
    """

    abi: Abi
    T: int
    V: int
    every_token: bool

    @property
    def prefill(self) -> bool:
        """Whether the graph is a prefill."""
        return self.abi.phase == "prefill"

    @property
    def S(self) -> int:
        """Cache slots."""
        return self.abi.capacity

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its results, but for a token."""
        return tuple(r for r in self.abi.results if r.role != "token")

    @property
    def caches(self) -> tuple[Tensor, ...]:
        """The results that are caches."""
        return tuple(r for r in self.abi.results if r.role in CACHES)


Row = tuple[str, str, Edit, str]  # what a Spoiling has of its own: particulars, what, edit, reason


def spoilings(config: Config, capacity: int, bucket: int, every_token: bool = True) -> dict[str, Spoiling]:
    """By id, all that is spoiled in the graphs of a model with so many cache slots, and one bucket of so many tokens."""
    found = {}
    for phase, head in itertools.product(PHASES, HEADS):
        abi = graph_abi(config, phase, head, capacity, bucket if phase == "prefill" else 0)
        place = Place(abi, bucket, config.vocab_size, every_token)
        for kind, rows in KINDS.items():
            for particulars, what, edit, reason in rows(place):
                id = f"{phase}/{head}/{kind}/{particulars}"
                assert id not in found, id
                found[id] = Spoiling(id, kind, phase, head, what, edit, reason)
    return found


def spoil(graph: Graph, spoiling: Spoiling) -> Graph:
    """The graph with this spoiled; as it is where that is of another phase or head. Raises MLIRError if it does not parse."""
    if (graph.abi.phase, graph.abi.head) != (spoiling.phase, spoiling.head):
        return graph
    writer = Writer(graph)
    with writer.writing():
        spoiling.edit(writer)
    return writer.graph()


# ---- changes


def given(role: str, change: Change) -> Edit:
    """Return the changed result of a role."""
    return lambda w: w.give(role, change(w, w.result(role)))


def scaled(w: Writer, x: Value) -> Value:
    """x times FACTOR."""
    return stablehlo.multiply(x, w.constant(FACTOR, x))


def moved(w: Writer, x: Value) -> Value:
    """For what may be zero, which scaled would be the same."""
    return stablehlo.add(x, w.constant(STEP, x))


def negated(w: Writer, x: Value) -> Value:
    """x with the other sign."""
    return stablehlo.negate(x)


def noisy(w: Writer, x: Value) -> Value:
    """x plus random numbers below NOISE, others in each call."""
    return stablehlo.add(x, w.uniform(NOISE, x))


def filled(number: float) -> Change:
    """One number everywhere."""
    return lambda w, x: w.constant(number, x)


def following(vocabulary: int) -> Change:
    """The token after it; the first after the last."""
    return lambda w, x: stablehlo.remainder(stablehlo.add(x, w.constant(1, x)), w.constant(vocabulary, x))


def within(starts: Sequence[int], sizes: Sequence[int], change: Change) -> Change:
    """Only this part of a tensor."""
    return lambda w, x: w.update(x, change(w, w.slice(x, starts, sizes)), starts)


def when(condition: Condition, change: Change) -> Change:
    """The change where a condition holds, and nothing otherwise."""
    return lambda w, x: stablehlo.select(condition(w), change(w, x), x)


def where(direction: str, number: float, change: Change) -> Change:
    """Only values that compare so."""
    return lambda w, x: stablehlo.select(w.compare(x, direction, number), change(w, x), x)


def where_larger(size: float, change: Change) -> Change:
    """Only values whose magnitude is above `size`."""
    return lambda w, x: stablehlo.select(w.compare(stablehlo.abs(x), "GT", size), change(w, x), x)


def exchanged(one: Sequence[int], other: Sequence[int]) -> Change:
    """Two elements with each other."""

    def change(w: Writer, x: Value) -> Value:
        sizes = [1] * len(one)
        return w.update(w.update(x, w.slice(x, one, sizes), other), w.slice(x, other, sizes), one)

    return change


def turned(axis: int) -> Change:
    """Backwards along an axis: with two layers or heads they are exchanged."""
    return lambda w, x: stablehlo.reverse(x, [axis])


def rolled(shape: Sequence[int], axis: int) -> Change:
    """By one along an axis: the last becomes the first."""

    def change(w: Writer, x: Value) -> Value:
        def cut(start: int, size: int) -> Value:
            starts, sizes = [0] * len(shape), list(shape)
            starts[axis], sizes[axis] = start, size
            return w.slice(x, starts, sizes)

        return stablehlo.concatenate([cut(shape[axis] - 1, 1), cut(0, shape[axis] - 1)], axis)

    return change


def last_of_equals(w: Writer, x: Value) -> Value:
    """The highest index of the largest logit, in place of the lowest."""
    return _of_largest(w, -1, stablehlo.maximum)


def _of_largest(w: Writer, other: int, combine: Callable[[Value, Value], Value]) -> Value:
    """Of the indices of the largest logits, what `combine` makes of them and of `other`."""
    logits = w.scope("lm_head")
    largest = w.compare(logits, "EQ", w.reduce(logits, -math.inf, stablehlo.maximum))
    places = w.iota(logits)
    return w.reduce(stablehlo.select(largest, places, w.constant(other, places)), other, combine)


# ---- conditions


def is_(role: str, direction: str, number: int) -> Condition:
    """Of an argument that is one number."""
    return lambda w: w.compare(w.argument(role), direction, number)


def last_token_is(token: int) -> Condition:
    """Whether the prompt ends with this token."""

    def condition(w: Writer) -> Value:
        length = w.argument("length")
        last = stablehlo.subtract(length, w.constant(1, length))
        return w.compare(w.element(w.argument("tokens"), last), "EQ", token)

    return condition


def some_token(of: str, direction: str, token: int) -> Condition:
    """Any in the prompt, or in its padding, that compares so. of: LT or GE the length."""

    def condition(w: Writer) -> Value:
        tokens = w.argument("tokens")
        there = w.compare(w.iota(tokens), of, w.argument("length"))
        return w.reduce(stablehlo.and_(there, w.compare(tokens, direction, token)), 0, stablehlo.or_)

    return condition


def odd_choice(w: Writer) -> Value:
    """Whether the first of the largest logits is at an odd index."""
    token = _of_largest(w, 2**31 - 1, stablehlo.minimum)
    return w.compare(stablehlo.and_(token, w.constant(1, token)), "EQ", 1)


def holds_something(slot: int | None) -> Condition:
    """Whether the keys that a step is given have something in this slot, or in the one after its own, which is not filled."""

    def condition(w: Writer) -> Value:
        position = w.argument("position")
        after = stablehlo.add(position, w.constant(1, position))
        # A slice that would begin beyond the last slot begins at the last one: there nothing comes after it.
        at = after if slot is None else slot
        found = w.compare(w.element(w.argument("k_cache"), 0, 0, at, 0), "NE", 0.0)
        limit = w.abi.capacity - 1 if slot is None else slot
        return stablehlo.and_(found, w.compare(position, "LT", limit))

    return condition


# ---- what there is to spoil


def _results(p: Place) -> Iterator[Row]:
    """Each result as a whole, single elements of it, and its order."""
    if p.abi.head == "token":
        for name, words, change in (
            ("next", "the one after it", following(p.V)),
            ("first", "always 0", filled(0)),
            ("last", "always the last of the vocabulary", filled(p.V - 1)),
            ("outside", "one that the vocabulary does not have", filled(p.V)),
            ("negative", "always -1", filled(-1)),
        ):
            yield f"token-{name}", f"the token is {words}", given("token", change), ""
    for r in p.tensors:
        ones = [1] * len(r.shape)
        first, middle = [0] * len(r.shape), [n // 2 for n in r.shape]
        last = [n - 1 for n in r.shape]
        wide = len(r.shape) - 1
        in_one_row = [*first[:-1], r.shape[-1] - 1]
        changes: list[tuple[str, str, Change]] = [
            ("scaled", "is scaled", scaled),
            ("zeroed", "is all zeros", filled(0.0)),
            ("negated", "is negated", negated),
            ("nan", "has a NaN in its midst", within(middle, ones, filled(math.nan))),
            ("infinite", "has an infinity in its midst", within(middle, ones, filled(math.inf))),
            ("first-moved", "is off in its first element", within(first, ones, moved)),
            ("middle-moved", "is off in one element in its midst", within(middle, ones, moved)),
            ("last-moved", "is off in its last element", within(last, ones, moved)),
            ("exchanged", "has two elements exchanged", exchanged(first, in_one_row)),
            ("rolled", "is rolled by one along its last axis", rolled(r.shape, wide)),
        ]
        if r.role in CACHES:
            changes += [("slots-rolled", "has each row one slot further", rolled(r.shape, 2))]
            changes += [("layers-turned", "has its layers in reverse", turned(0))] * (r.shape[0] > 1)
            changes += [("heads-turned", "has its heads in reverse", turned(1))] * (r.shape[1] > 1)
        for name, words, change in changes:
            yield f"{r.role}-{name}", f"{r.role} {words}", given(r.role, change), ""


def _cache_rows(p: Place) -> Iterator[Row]:
    """Rows of each cache: those of every slot, in one layer and head after another, and in one slot those of all of them.

    Of a slot, the keys in the graph of one head and the values in that of the other: in the next slot the other way round.
    """
    for i, r in enumerate(p.caches):
        layers, heads, slots, width = r.shape
        turn = (i + HEADS.index(p.abi.head)) % 2
        rows = [(n % layers, n // layers % heads, slot) for n, slot in enumerate(range(turn, slots, 2))]
        everywhere = itertools.product(range(layers), range(heads), [slots // 2])
        for layer, head, slot in dict.fromkeys((*rows, *everywhere)):
            starts, sizes = (layer, head, slot, 0), (1, 1, 1, width)
            row = f"layer {layer}, head {head}, slot {slot} of {r.role}"
            for name, words, change, reason in _of_prefill(p, slot) if p.prefill else _of_decode(p, slot):
                particulars = f"{r.role}[{layer},{head},{slot}]-{name}"
                yield particulars, f"{row}: {words}", given(r.role, within(starts, sizes, change)), reason


def _of_prefill(p: Place, slot: int) -> Iterator[tuple[str, str, Change, str]]:
    """What is done to one row that prefill returns."""
    if slot >= p.T:
        yield "beyond", "it lies beyond the bucket and is not zero", moved, ""
        return
    yield "filled", "it is scaled where the prompt reaches it", when(is_("length", "GT", slot), scaled), ""
    padding = is_("length", "LE", slot)
    if slot % 4 in (1, 2):
        yield "padding-nan", "it is NaN where it is padding", when(padding, filled(math.nan)), ""
    elif slot:
        yield "padding", "it is off where it is padding", when(padding, moved), FILLED_FIRST


def _of_decode(p: Place, slot: int) -> Iterator[tuple[str, str, Change, str]]:
    """What is done to one row that decode returns."""
    yield "written", "it is scaled by the step that writes it", when(is_("position", "EQ", slot), scaled), ""
    later, earlier = p.S - 1 - slot, slot
    if later:
        step = slot + 1 + slot * 37 // 5 % later
        yield f"kept-at-{step}", f"it is scaled by step {step}", when(is_("position", "EQ", step), scaled), ""
    if earlier:
        step = slot * 37 // 5 % earlier
        words = f"it is off after step {step}, which comes before it"
        yield f"unfilled-at-{step}", words, when(is_("position", "EQ", step), moved), ""


def _head(p: Place) -> tuple[str, str, Change]:
    """How the head of a graph is spoiled under a condition: its role, what becomes of it, in words, and the change."""
    if p.abi.head == "token":
        return "token", "the token is the one after it", following(p.V)
    return "logits", "logits are scaled", scaled


def _head_when(p: Place, particulars: object, words: str, condition: Condition, reason: str = "") -> Row:
    role, what, change = _head(p)
    return str(particulars), f"{what} when {words}", given(role, when(condition, change)), reason


def _positions(p: Place) -> Iterator[Row]:
    if not p.prefill:
        for n in range(p.S):
            yield _head_when(p, n, f"position is {n}", is_("position", "EQ", n))


def _lengths(p: Place) -> Iterator[Row]:
    if p.prefill:
        for n in range(1, p.T + 1):
            yield _head_when(p, n, f"length is {n}", is_("length", "EQ", n))


def _token_ids(p: Place) -> Iterator[Row]:
    """Every token id that decode is given, if asked for and where it answers with logits; else some."""
    if not p.prefill:
        for t in range(0, p.V, 1 if p.every_token and p.abi.head == "logits" else SAMPLE):
            yield _head_when(p, t, f"the token is {t}", is_("token", "EQ", t))
    else:
        for t in range(0, p.V, SAMPLE):
            yield _head_when(p, f"last-{t}", f"the prompt's last token is {t}", last_token_is(t))
        for t in range(0, p.V, 2 * SAMPLE):
            yield _head_when(p, f"any-{t}", f"the prompt holds token {t}", some_token("LT", "EQ", t))


def _data(p: Place) -> Iterator[Row]:
    """What depends on the values of a result."""
    for r in p.tensors:
        for name, words, change, reason in (
            ("negative", "negative", where("LT", 0.0, scaled), ""),
            ("positive", "positive", where("GT", 0.0, scaled), ""),
            ("large", f"larger than {LARGE:g}", where_larger(LARGE, scaled), ""),
            ("beyond", f"larger than {BEYOND:g}", where_larger(BEYOND, scaled), NEVER_SO_LARGE),
        ):
            yield f"{r.role}-{name}", f"{r.role} is scaled where it is {words}", given(r.role, change), reason
    yield _head_when(p, "odd-choice", "the largest logit is at an odd index", odd_choice)


def _ties(p: Place) -> Iterator[Row]:
    if p.abi.head == "token":
        words = "of equal logits the last one is chosen, not the first"
        yield "last", words, given("token", last_of_equals), ""


def _second_calls(p: Place) -> Iterator[Row]:
    """What differs between two calls that are given the same."""
    row = "random numbers below 2^-20 are added to"
    for r in p.tensors:
        yield f"{r.role}", f"{row} {r.role}", given(r.role, noisy), ""
    for r in p.caches:
        sizes = (1, 1, 1, r.shape[3])
        yield f"{r.role}-row", f"{row} one row of {r.role}", given(r.role, within((0, 0, 0, 0), sizes, noisy)), ""


def _inputs(p: Place) -> Iterator[Row]:
    """What a call does to its inputs: whose buffers it says that it takes for its results."""
    arguments, results = p.abi.arguments, p.abi.results
    for i, result in enumerate(results):
        if result.aliases is not None:
            words = f"the buffer of {arguments[result.aliases].name} is not donated"
            yield f"{result.name}-kept", words, _donating({result.aliases: None}), ""
        for n, argument in enumerate(arguments):
            if (argument.shape, argument.dtype) != (result.shape, result.dtype) or n <= (result.aliases or 0):
                continue
            others: dict[int, int | None] = {n: i}
            if result.aliases is not None:  # then the other result takes this one's
                others[result.aliases] = next(j for j, other in enumerate(results) if other.aliases == n)
            words = f"the buffer of {argument.name} is donated to {result.name}"
            yield f"{argument.name}-to-{result.name}", words, _donating(others), ""
            if result.aliases is None:
                for name, where, take in (
                    ("taken", "argument", Writer.take),
                    ("taken-by-module", "module", Writer.alias),
                ):
                    words = f"an attribute of the {where} lets XLA take the buffer of {argument.name} for {result.name}"
                    yield f"{argument.name}-{name}", words, _taking(take, n, i), ""


def _donating(buffers: dict[int, int | None]) -> Edit:
    def edit(w: Writer) -> None:
        for argument, result in buffers.items():
            w.donate(argument, result)

    return edit


def _taking(take: Callable[[Writer, int, int], None], argument: int, result: int) -> Edit:
    return lambda w: take(w, argument, result)


def _padding(p: Place) -> Iterator[Row]:
    """What must not matter: the tokens after a prompt, and what is in a slot that is not filled."""
    if p.prefill:
        padded = some_token("GE", "NE", 0)
        yield _head_when(p, "other-tokens", "a prompt is padded with another token than 0", padded)
        for r in p.caches:
            words = f"{r.role} is scaled when a prompt is padded with another token than 0"
            yield f"{r.role}-other-tokens", words, given(r.role, when(padded, scaled)), ""
    else:
        yield _head_when(p, "next-slot", "the slot after the step's own holds something", holds_something(None))
        yield _head_when(p, "last-slot", "the last slot holds something before it is filled", holds_something(p.S - 1))


def _outside(p: Place) -> Iterator[Row]:
    """What no session gives to a graph."""
    if p.prefill:
        yield _head_when(p, "length-0", "length is 0", is_("length", "LE", 0), REFUSED)
        yield _head_when(p, "longer", "length is beyond the bucket", is_("length", "GT", p.T), REFUSED)
        yield _head_when(p, "token", "a token is outside of the vocabulary", some_token("LT", "GE", p.V), REFUSED)
    else:
        yield _head_when(p, "before", "position is negative", is_("position", "LT", 0), REFUSED)
        yield _head_when(p, "full", "position is beyond the last slot", is_("position", "GE", p.S), REFUSED)
        yield _head_when(p, "token", "the token is outside of the vocabulary", is_("token", "GE", p.V), REFUSED)


KINDS: dict[str, Callable[[Place], Iterator[Row]]] = {
    "result": _results,
    "cache": _cache_rows,
    "position": _positions,
    "length": _lengths,
    "token-id": _token_ids,
    "data": _data,
    "ties": _ties,
    "second-call": _second_calls,
    "inputs": _inputs,
    "padding": _padding,
    "outside": _outside,
}
