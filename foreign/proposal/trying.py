"""Decides what names and shapes leave open about a graph, by what computes right.

A graph is compiled once. What is tried changes only what it is given, and what its results are taken for: weights are
rearranged, and the adapter's functions run beside it. Its caches and its logits are held to Hugging Face's.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloracle.backends.xla import XlaCpu
from hloracle.core.abi import CACHES, Abi, Graph
from hloracle.core.dtypes import numpy_type
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.shown import shown
from hloracle.foreign.adapter import Adapter
from hloracle.foreign.binding import Binding, bind
from hloracle.foreign.file import AbiFile, Entry, Phase
from hloracle.foreign.proposal.choices import (
    IN_FIRST,
    INTERLEAVED,
    KEYS_INTERLEAVED,
    OUT_FIRST,
    PLUS_ONE,
    Choice,
    Option,
)
from hloracle.foreign.proposal.errors import CLOSE, RIGHT, Error
from hloracle.foreign.signature import Signature
from hloracle.localize.situation import row_errors, slot_errors
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.expressions import Names

HEAD = "lm_head"
MISPLACED = 2.0  # what it costs to take a tensor for an argument that is read elsewhere in the model
FARTHEST = 3.5  # what is so much less likely than the likeliest is not tried
FIRST = 6  # tries of what is likeliest, before others are made from the best of them
LARGEST_QUEUE, BEAM = 20_000, 500  # partial assignments that are held

Picked = tuple[int, ...]  # of each choice, which option


@dataclass(frozen=True)
class Subject:
    """A graph that an ABI file is looked for. signature: of its function; phase: its own."""

    path: Path
    text: str = field(repr=False)
    signature: Signature = field(repr=False)
    phase: str


class Trial:
    """A graph, compiled, that can be given what an ABI file says.

    Args:
      loaded: expressions -> arrays on the backend, which trials of several graphs share.
    """

    def __init__(
        self, subject: Subject, model: Checkpoint, names: Names, shapes: Mapping[str, tuple[int, ...]],
        truth: AnchorTruth, loaded: Loaded,
    ) -> None:  # fmt: skip
        self.subject, self._model, self._names, self._shapes = subject, model, names, shapes
        self._truth, self._loaded = truth, loaded
        abi = Abi("prefill", (), (), subject.signature.function)
        self._execute = loaded.backend.load(Graph(subject.path.stem, subject.text, abi))
        ports = (*subject.signature.arguments, *subject.signature.results)
        self._wide = any(p.dtype in ("i64", "ui64", "f64") for p in ports)

    def error(self, entries: Mapping[str, Mapping[str, Entry]]) -> Error:
        """What comes of entries, by the sections of an ABI file."""
        try:
            return self._held(*self._outcome(entries))
        except (InputError, ToolchainError) as error:
            return Error(why=getattr(error, "what", str(error)))
        except (ValueError, TypeError) as error:  # what einops says of axes that do not fit
            return Error(why=str(error))

    def reach(self, entries: Mapping[str, Mapping[str, Entry]], arguments: Sequence[int]) -> int:
        """The first value, of those that an error is told of, which hangs on these arguments.

        Keys of the first layer, its values, keys of the next one: what comes first tells where in the model an argument is.
        """
        heads, caches, filled = self._outcome(entries)
        others, moved, _ = self._outcome(entries, frozenset(arguments))
        parts = [
            (one[layer], other[layer])
            for layer in range(len(caches[0]) if caches else 0)
            for one, other in zip(caches, moved, strict=True)
        ]
        for i, (one, other) in enumerate(parts):
            if not np.array_equal(one[:, :filled], other[:, :filled], equal_nan=True):
                return i
        return len(parts) if any(not np.array_equal(heads[row], others[row]) for row in heads) else len(parts) + 1

    def _outcome(
        self, entries: Mapping[str, Mapping[str, Entry]], moved: frozenset[int] = frozenset()
    ) -> tuple[dict[int, np.ndarray], list[np.ndarray], int]:
        """Heads by row, caches, and how many of their slots are filled. moved: arguments that are given other numbers."""
        phase = self.subject.phase
        told = Phase(
            phase,
            entries.get(f"{phase}.inputs", {}),
            entries.get(f"{phase}.results", {}),
            self.subject.signature.function,
        )
        states = {str(e).removeprefix("state.") for e in told.inputs.values() if str(e).startswith("state.")}
        weights = {k: str(v) for k, v in entries.get("weights", {}).items()}
        abi = AbiFile(self.subject.path, weights, {phase: told}, dict.fromkeys(states, 0))
        binding = bind(abi, told, self.subject.signature, self._names, self._shapes)
        with jax.enable_x64(self._wide):
            return self._run(binding, moved)

    def _run(self, binding: Binding, moved: frozenset[int]) -> tuple[dict[int, np.ndarray], list[np.ndarray], int]:
        capacity = binding.sizes.get("S", binding.sizes.get("T", 1))
        adapter = Adapter(binding, self._model.config, capacity)
        weights = {
            w.port.index: self._loaded(w.expression) * 1.5 + 0.25
            if w.port.index in moved
            else self._loaded(w.expression)
            for w in binding.weights
        }
        extra = [self._loaded("model.embed_tokens.weight")] if adapter.embeds else []
        tokens = self._truth.tokens
        heads: dict[int, np.ndarray] = {}
        caches: Sequence[Any] = ()

        def call(given: Sequence[Any]) -> tuple[Any, ...]:
            judged = jnp.asarray(int(given[1]) % adapter.rows, jnp.int32)
            made = iter(adapter.inputs(judged, *given, *extra))
            arguments = [weights[a.port.index] if a.port.index in weights else next(made) for a in binding.arguments]
            returned = self._execute(arguments)
            return adapter.results(judged, given[1], *returned)

        if adapter.decodes:
            filled = min(len(tokens), capacity)
            # No slot of them is filled: what they hold must not show.
            rng = np.random.default_rng(7)
            shapes = self._model.config.cache_shapes(capacity).values() if adapter.caches else ()
            state: tuple[Any, ...] = tuple(jnp.asarray(rng.normal(0, 1, s), jnp.float32) for s in shapes)
            state += tuple(jnp.zeros(v.port.shape, numpy_type(v.port.dtype)) for v in adapter.opaque)
            for position in range(filled):
                head, *state_ = call([_scalar(tokens[position]), _scalar(position), *state])
                state = tuple(state_)
                heads[position] = np.asarray(head)
            caches = state[:2] if adapter.caches else ()
        else:
            filled = min(len(tokens), adapter.queries)
            for length in dict.fromkeys((max(1, filled // 2), filled)):
                padded = np.zeros(adapter.queries, np.int32)
                padded[:length] = tokens[:length]
                head, *state_ = call([jnp.asarray(padded), _scalar(length)])
                heads[length - 1] = np.asarray(head)
                caches = state_[:2] if adapter.caches else ()
        return heads, [np.asarray(c) for c in caches], filled

    def _held(self, heads: Mapping[int, np.ndarray], caches: Sequence[np.ndarray], filled: int) -> Error:
        truth, config = self._truth, self._model.config
        relative: list[float] = []
        in_caches = 0.0
        for layer in range(config.num_hidden_layers):
            for part, cache in zip(CACHES, caches, strict=False):
                anchor = f"{part}.{layer}"
                mine = cache[layer, :, :filled]  # [K, filled, D]
                exact = truth.values(anchor)[:filled].swapaxes(0, 1)
                relative.append(_relative(mine, exact))
                in_caches = max(in_caches, float(np.max(slot_errors(truth, config, anchor, mine))))
        if all(head.shape for head in heads.values()):
            exact = truth.values(HEAD)
            relative.append(max(_relative(head, exact[row]) for row, head in heads.items()))
            floors = max(row_errors(truth, config, HEAD, row, head) for row, head in heads.items())
        else:  # tokens: right where their logits are the largest
            logits = truth.values(HEAD)
            wrong = [row for row, head in heads.items() if int(head) != int(np.argmax(logits[row]))]
            relative.append(len(wrong) / len(heads))
            floors = math.inf if wrong else 0.0
        return Error(tuple(relative), float(floors), in_caches)


class Loaded:
    """Weights on the backend, by expression; those that are not in use go when they take too much memory."""

    def __init__(self, model: Checkpoint, most: int) -> None:
        self.backend, self._model, self._most = XlaCpu(), model, most
        self._held: dict[str, Any] = {}

    def __call__(self, expression: str) -> Any:
        if expression not in self._held:
            array = self.backend.upload(self._model.load(expression))
            while self._held and sum(a.nbytes for a in self._held.values()) + array.nbytes > self._most:
                self._held.pop(next(iter(self._held)))
            self._held[expression] = array
        else:
            self._held[expression] = self._held.pop(expression)  # used last
        return self._held[expression]


def _scalar(number: int) -> Any:
    return jnp.asarray(number, jnp.int32)


def _relative(mine: np.ndarray, exact: np.ndarray) -> float:
    if mine.shape != exact.shape or not np.all(np.isfinite(mine)):
        return 10.0
    return float(np.max(np.abs(mine - exact)) / (np.max(np.abs(exact)) or 1.0))


# ---- what is tried, and in which order


@dataclass(frozen=True)
class Convention:
    """What all weights of a graph have in common. tags: those that hold; ruled: those that are decided."""

    tags: frozenset[str]
    ruled: frozenset[str]
    cost: float

    def allows(self, choice: Choice, option: Option) -> bool:
        """Whether an option follows it, where its choice has others that do and others that do not."""
        for tag in self.ruled & {PLUS_ONE, INTERLEAVED, KEYS_INTERLEAVED}:
            both = {tag in o.tags for o in choice.options if o.uses == option.uses}
            if len(both) == 2 and (tag in option.tags) != (tag in self.tags):
                return False
        directions = self.ruled & {IN_FIRST, OUT_FIRST}
        return not (option.tags & directions) or bool(option.tags & self.tags & directions)


def conventions(choices: Sequence[Choice]) -> list[Convention]:
    """All that a graph may follow, as far as these choices know of any; the likeliest first."""
    known = {tag for choice in choices for option in choice.options for tag in option.tags}
    directions = frozenset({IN_FIRST, OUT_FIRST}) & known
    ways: list[list[tuple[frozenset[str], frozenset[str], float]]] = []
    if directions:
        ways.append([*((frozenset({d}), directions, 0.0) for d in sorted(directions)), (directions, frozenset(), 1.0)])
    if PLUS_ONE in known:
        ruled = frozenset({PLUS_ONE})
        ways.append([(frozenset(), ruled, 0.0), (ruled, ruled, 0.4)])
    rope = frozenset({INTERLEAVED, KEYS_INTERLEAVED}) & known
    if rope:
        some = [frozenset(), rope, *([frozenset({KEYS_INTERLEAVED})] if KEYS_INTERLEAVED in known else [])]
        ways.append([(tags, rope, (0.0, 1.2, 1.5)[i]) for i, tags in enumerate(dict.fromkeys(some))])
    found = [
        Convention(
            frozenset().union(*(tags for tags, _, _ in one)), frozenset().union(*(ruled for _, ruled, _ in one)),
            sum(cost for _, _, cost in one),
        )
        for one in itertools.product(*ways)
    ]  # fmt: skip
    return sorted(found, key=lambda c: c.cost)


def likeliest(choices: Sequence[Choice]) -> Iterator[Picked]:
    """Whole assignments, the likeliest first; nothing is used twice in one."""
    streams = [_by_cost(choices, convention) for convention in conventions(choices)]
    seen: set[Picked] = set()
    for _, picked in heapq.merge(*streams):
        if picked not in seen:
            seen.add(picked)
            yield picked


def _by_cost(choices: Sequence[Choice], convention: Convention) -> Iterator[tuple[float, Picked]]:
    """What a convention allows, the likeliest first; of too many ways, some of the likeliest."""
    allowed = [
        [j for j, option in enumerate(choice.options) if convention.allows(choice, option)] for choice in choices
    ]
    # What has fewest ways comes first, so that a dead end shows early.
    order = sorted(range(len(choices)), key=lambda i: len(allowed[i]))
    ways = [[(choices[i].options[j], j) for j in allowed[i]] for i in order]
    if not all(ways):
        return
    least = [min(option.cost for option, _ in some) for some in ways]
    back = [order.index(i) for i in range(len(choices))]
    queue: list[_Partial] = [(sum(least), 0, (), frozenset())]
    while queue:
        if len(queue) > LARGEST_QUEUE:
            yield from ((cost + convention.cost, _turned(p, back)) for cost, p in _beam(ways, least))
            return
        cost, _, picked, used = heapq.heappop(queue)
        if len(picked) == len(choices):
            yield cost + convention.cost, _turned(picked, back)
            continue
        for another in _longer(cost, picked, used, ways, least):
            heapq.heappush(queue, another)


# What it costs at least, how much is missing, what was picked, what that uses.
_Partial = tuple[float, int, Picked, frozenset[str]]
_Ways = Sequence[Sequence[tuple[Option, int]]]


def _longer(
    cost: float, picked: Picked, used: frozenset[str], ways: _Ways, least: Sequence[float]
) -> Iterator[_Partial]:
    """A partial assignment with one more choice made. Of equal ones those that are nearly whole sort first."""
    i = len(picked)
    for option, j in ways[i]:
        if not option.uses & used:
            yield round(cost - least[i] + option.cost, 6), -i, (*picked, j), used | option.uses


def _beam(ways: _Ways, least: Sequence[float]) -> list[tuple[float, Picked]]:
    """Whole assignments, made choice by choice from the best so far."""
    held: list[_Partial] = [(sum(least), 0, (), frozenset())]
    for _ in ways:
        held = heapq.nsmallest(
            BEAM, (p for cost, _, picked, used in held for p in _longer(cost, picked, used, ways, least))
        )
    return [(cost, picked) for cost, _, picked, _ in held]


def _turned(picked: Picked, back: Sequence[int]) -> Picked:
    return tuple(picked[i] for i in back)


def cost_of(choices: Sequence[Choice], picked: Picked) -> float:
    """How unlikely an assignment is by names and types."""
    return sum(choice.options[j].cost for choice, j in zip(choices, picked, strict=True))


def moves(choices: Sequence[Choice], picked: Picked) -> list[Picked]:
    """What differs from an assignment in one thing, the likeliest first: in an option, two that swap, a convention."""
    found: dict[Picked, float] = {}

    def keep(other: Picked) -> None:
        if other != picked:
            cost = cost_of(choices, other)
            found[other] = min(cost, found.get(other, math.inf))

    for i, choice in enumerate(choices):
        for j in range(len(choice.options)):
            if (other := _with(choices, picked, i, j)) is not None:
                keep(other)
    for tag in (PLUS_ONE, INTERLEAVED, KEYS_INTERLEAVED):
        for wanted in (True, False):
            keep(tuple(_tagged(c, j, tag, wanted) for c, j in zip(choices, picked, strict=True)))
    return sorted(found, key=lambda p: found[p])


def _with(choices: Sequence[Choice], picked: Picked, i: int, j: int) -> Picked | None:
    """The assignment with one option changed; what used the same takes the likeliest that is left."""
    others = list(picked)
    others[i] = j
    uses = choices[i].options[j].uses
    for k, choice in enumerate(choices):
        if k == i or not choice.options[others[k]].uses & uses:
            continue
        taken = frozenset().union(*(c.options[others[n]].uses for n, c in enumerate(choices) if n != k))
        tags = choice.options[others[k]].tags
        free = [n for n, option in enumerate(choice.options) if not option.uses & taken]
        if not free:
            return None
        others[k] = min(free, key=lambda n: (choice.options[n].tags != tags, choice.options[n].cost))
    return tuple(others)


def _tagged(choice: Choice, j: int, tag: str, wanted: bool) -> int:
    """The option that differs in a tag alone, where there is one."""
    option = choice.options[j]
    return next(
        (
            n for n, other in enumerate(choice.options)
            if other.uses == option.uses and other.tags ^ option.tags == {tag} and (tag in other.tags) == wanted
        ),
        j,
    )  # fmt: skip


class Search:
    """Looks for the assignment that computes best, within so many tries and until a time (of `time.monotonic`).

    Args:
      places: an assignment, a choice -> the first value that hangs on what it is of; see `Trial.reach`.

    Attributes:
      choices: what is to be decided. seen: what came of the assignments that were tried. places: of a choice, as above.
    """

    def __init__(
        self, choices: Sequence[Choice], trial: Callable[[Picked], Error], tries: int, until: float,
        report: Callable[[str], None], places: Callable[[Picked, Choice], int] | None = None,
    ) -> None:  # fmt: skip
        self.choices, self.seen = choices, dict[Picked, Error]()
        self.places: dict[int, int] = {}
        self._dearest = 0.0
        self._places = places
        self._trial, self._tries, self._until, self._report = trial, tries, until, report

    def best(self) -> Picked | None:
        """The best that was found; None where nothing fits."""
        for picked in itertools.islice(likeliest(self.choices), FIRST):
            if self._over or self.tried(picked).right:
                break
        if self.seen and not self._over and not self._least()[1].right:
            self._find_places()
        order = likeliest(self.choices)
        self._dearest = FARTHEST + min((cost_of(self.choices, p) for p in self.seen), default=0.0)
        climbed: set[Picked] = set()
        while self.seen and not self._over:
            at, error = self._least()
            if error.right:
                break
            # Once in a while what is likely, whatever came of others: the best may lead nowhere.
            another = next((p for p in order if p not in self.seen), None)
            if another is not None and cost_of(self.choices, another) > self._dearest:
                another = None
            if another is not None and self.tried(another).score < error.score:
                continue
            if at not in climbed and error.relative:
                climbed.add(at)
                self._climb(at, error)
                continue
            # What is left are roundings of its own; or caches that the language has no words for.
            if another is None or error.close or (error.relative and error.relative[-1] < RIGHT):
                break
        return self._chosen() if self.seen else None

    def _chosen(self) -> Picked:
        """The best; where nothing is right the likeliest of those that get as far: then the graph may be wrong."""
        at, error = self._least()
        if error.close or not error.relative:
            return at
        far = [p for p, e in self.seen.items() if e.score[0] == error.score[0]]
        return min(far, key=lambda p: cost_of(self.choices, p))

    def _find_places(self) -> None:
        """Find out where in the model each argument is that several tensors fit, and expect of it what belongs there."""
        at, error = self._least()
        if len(error.relative) < 2 or self._places is None:
            return
        choices = []
        for i, choice in enumerate(self.choices):
            if len(choice.options) > 1 and choice.places[0].section == "weights":
                self._report(f"where {shown(choice.places[0].key, 40)} is read")
                place = self.places[i] = self._places(at, choice)
                last = len(error.relative) - 1
                options = tuple(
                    replace(o, cost=o.cost + MISPLACED * (o.stage is not None and min(o.stage, last) != place))
                    for o in choice.options
                )
                choice = replace(choice, options=options)
            choices.append(choice)
        self.choices = tuple(choices)

    def tried(self, picked: Picked) -> Error:
        """What comes of an assignment."""
        if picked not in self.seen:
            self.seen[picked] = self._trial(picked)
            best = self._least()[1]
            right = sum(e < CLOSE for e in best.relative)
            self._report(f"try {len(self.seen)}: of the best, {right} of {len(best.relative)} values are right")
        return self.seen[picked]

    def instead(self, picked: Picked, i: int, j: int) -> Picked | None:
        """An assignment with one option changed; None where nothing is left for another choice then."""
        return _with(self.choices, picked, i, j)

    def _climb(self, at: Picked, error: Error) -> None:
        """Try what differs in one thing, until something is better; first what the first wrong value hangs on."""
        wrong = next((i for i, e in enumerate(error.relative) if not e < CLOSE), len(error.relative))

        def beyond(other: Picked) -> bool:
            changed = [i for i, (a, b) in enumerate(zip(at, other, strict=True)) if a != b]
            return all(self.places.get(i, 0) > wrong for i in changed)

        for other in sorted(moves(self.choices, at), key=beyond):
            if cost_of(self.choices, other) > self._dearest:
                continue
            if self._over or (other not in self.seen and self.tried(other).score < error.score):
                return

    def _least(self) -> tuple[Picked, Error]:
        return min(self.seen.items(), key=lambda one: one[1].score)

    @property
    def _over(self) -> bool:
        return len(self.seen) >= self._tries or time.monotonic() > self._until
