"""What somebody else's graph does with what it is given: calls that differ in one thing, held to each other.

They need no reference. What has to matter is changed, and something of what the graph returns has to change: each weight,
each input, the position. What must not matter is changed, and nothing may: slots that no call has filled, tokens behind the
prompt, later tokens, what lies behind a window. And a step has to write its own slot of the caches, and no other.

Legend: B rows, L layers, K kv heads, S cache slots, D their width, T tokens of a prefill, V vocab.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloracle import foreign
from hloracle.backends.plain import PLAIN_XLA, xla_flags
from hloracle.conformance.context import Context
from hloracle.conformance.runs.configurations import backend_sources, where
from hloracle.conformance.runs.own import Bench, Own, Results, difference, equal, headless, same
from hloracle.conformance.runs.returned import changed, is_small
from hloracle.core import tolerances
from hloracle.core.abi import CACHES, Graph
from hloracle.core.cache import Entry
from hloracle.core.dtypes import numpy_type
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

TIMEOUT_SECONDS = 600
KINDS = ("position-matters", "cache-written", "padding-hidden", "unused-slots", "mask-hides", "inputs-matter")
Used = tuple[Graph, tuple[str, ...]]  # a graph, and the arguments that it does not use
FILLED = 8  # slots that real steps fill
PROMPT = 6  # tokens of a prompt
# Weights of a model that is not small that are tried in a graph of each phase: those of some layers.
TRIED = {"decode": 16, "prefill": 12}
# How much another weight is, in standard deviations: more where less changes nothing, as a choice of experts may stay.
STEPS = (0.0, 1.0, 8.0, 64.0)
FREE = ("constant", "state")  # what a graph need not use: numbers of the ABI file, and what it hands on to itself
# Other calls, of which one's input has to change something, with caches of such numbers: a token stays the same where less
# of what the last layer reads is something else.
OTHERS = (1.0, 8.0, 64.0)
_PLACE = re.compile(r"\b(layers|experts)\.(\d+)\.")


@dataclass(frozen=True)
class Seen:
    """What was seen of one kind. asked: how many things. wrong: those that are not as they have to be, in words.

    largest: of what must not change, the largest change, relative to the largest value. limit: what that may be; 0 where
    things are counted. of: how many things there are, where not all were asked. skipped: why nothing was asked, of each graph.
    """

    asked: int = 0
    wrong: list[str] = field(default_factory=list)
    largest: float = 0.0
    limit: float = 0.0
    of: int = 0
    skipped: list[str] = field(default_factory=list)


def run_contract(context: Context, graphs: Sequence[Used], model: Checkpoint) -> tuple[dict[str, Seen], bool]:
    """What was seen of each of KINDS on the quick backend, and whether it was in the cache.

    Args:
      graphs: each with the arguments that it does not use, which another check has told of.

    Raises ToolchainError and ChildDied where the graphs do not run there.
    """
    quick = context.matrix.quick
    parts: list[str | bytes] = [
        model.digest, *backend_sources(), *where(context, quick), quick,
        *(Path(str(file)).read_bytes() for file in (__file__, tolerances.__file__)),
        *(p.read_bytes() for p in sorted(Path(str(foreign.__file__)).parent.glob("*.py"))),
        *(g.identity + repr((g.takes, g.rows, unused)) for g, unused in graphs),
    ]  # fmt: skip
    entry: Entry[dict[str, Seen]] = context.entry("contract", dict[str, Seen], parts, on=context.matrix.quick)
    arguments = (list(graphs), model.directory)
    return entry.get(lambda: context.child(_run, *arguments, timeout=context.at_most(TIMEOUT_SECONDS)).value)


def _run(context: Context, graphs: list[Used], directory: Path) -> dict[str, Seen]:
    # The graph is tried here and not its compiler, which optimizes for longer than all calls take.
    with xla_flags(*PLAIN_XLA):
        return _looked(context, graphs, open_checkpoint(directory))


def _looked(context: Context, graphs: Sequence[Used], model: Checkpoint) -> dict[str, Seen]:
    bench = Bench(context.backend(context.matrix.quick), model)
    smallest = min((g.abi.bucket for g, _ in graphs if g.abi.phase == "prefill"), default=0)
    notes: dict[str, list[Seen]] = {kind: [] for kind in KINDS}
    for graph, unused in graphs:
        context.report(f"{graph.name}: calls that differ in one thing")
        own = Own(bench, graph, unused)
        looks = _decode(own) if graph.abi.phase == "decode" else _prefill(own, graph.abi.bucket == smallest)
        for kind, seen in looks:
            notes[kind].append(seen)
    return {kind: _together(some) for kind, some in notes.items()}


def _together(some: Sequence[Seen]) -> Seen:
    """What was seen of all graphs. Why one was not asked does not matter where another one was."""
    asked = sum(s.asked for s in some)
    return Seen(
        asked, [w for s in some for w in s.wrong], max((s.largest for s in some), default=0.0),
        max((s.limit for s in some), default=0.0), sum(s.of or s.asked for s in some),
        [] if asked else list(dict.fromkeys(w for s in some for w in s.skipped)),
    )  # fmt: skip


Look = tuple[str, Seen]


@dataclass(frozen=True)
class _Call:
    """A call of a graph's own function. at: the position or the length. rows: the slots that it fills."""

    own: Own
    inputs: Sequence[np.ndarray]
    at: int
    rows: slice
    results: Results

    def changes(self, results: Results) -> bool:
        """Whether what another call returned is something else."""
        return not same(results, self.results, self.rows)


def _decode(own: Own) -> Iterator[Look]:
    abi, slots = own.abi, own.abi.capacity
    opaque = [np.zeros(r.shape, numpy_type(r.dtype)) for r in abi.state[len(abi.caches) :]]
    filled = min(max(FILLED, 2 * own.graph.rows), slots - 2)
    if filled < 1:
        yield from _nothing(f"the caches of {own.name} have {slots} slots")
        return
    *tokens, token = own.tokens(filled + 1)
    caches: tuple[np.ndarray, ...] = tuple(np.zeros(shape, np.float32) for shape in own.shapes)
    state = tuple(opaque)
    for position, one in enumerate(tokens):
        results = own.call(own.inputs(one, position, *caches, *state), position)
        caches, state = results.caches, results.state
    # What it wrote where nothing belongs must not show in what follows.
    caches = tuple(np.where(np.arange(slots)[:, None] < filled, c, 0).astype(np.float32) for c in caches)
    inputs = own.inputs(token, filled, *caches, *state)
    base = own.call(inputs, filled)
    if why_not := _unsettled(own, inputs, filled, base):
        yield from _nothing(why_not)
        return

    def another(scale: float) -> list[np.ndarray]:
        at, [other] = own.congruent(filled, 0, slots - 1), own.tokens(1)
        full = np.arange(slots)[:, None] < filled
        junk = (np.where(full, own.junk(shape, scale), 0).astype(np.float32) for shape in own.shapes)
        return own.inputs(other, at, *junk, *state)

    call = _Call(own, inputs, filled, slice(filled, filled + 1), base)
    yield "inputs-matter", _inputs_matter(call, [another(scale) for scale in OTHERS], whole=True)
    yield "padding-hidden", Seen(skipped=["it takes no more than one token"])
    if not caches:
        for kind in ("cache-written", "position-matters", "mask-hides", "unused-slots"):
            yield kind, Seen(skipped=[f"{own.name} returns no caches"])
        return
    tiled = tuple(c[:, :, np.arange(slots) % filled] for c in caches)
    yield "cache-written", _written(own, token, [filled] if opaque else sorted({0, filled, slots - 1}), state)
    if opaque:
        reason = f"{own.name} hands on state of its own, which may know the position"
        yield "position-matters", Seen(skipped=[reason])
        yield "mask-hides", Seen(skipped=[reason])
    else:
        yield "position-matters", _positions(own, token, tiled)
        yield "mask-hides", _behind_window(own, token, tiled)
    yield "unused-slots", _unused(own, token, filled, caches, state, base)


def _unsettled(own: Own, inputs: Sequence[np.ndarray], at: int, base: Results) -> str:
    """Why two calls of a graph tell nothing; empty where they do. Its configurations say what is wrong."""
    if not base.finite:
        return f"what {own.name} returns is not all finite"
    return "" if same(own.call(inputs, at), base, slice(None)) else f"two equal calls of {own.name} differ"


def _nothing(reason: str) -> Iterator[Look]:
    for kind in KINDS:
        yield kind, Seen(skipped=[reason])


def _prefill(own: Own, whole: bool) -> Iterator[Look]:
    """whole: try the weights, too."""
    bucket, layers = own.abi.bucket, own.config.layers
    length = min(max(PROMPT, own.graph.rows + 2), bucket - 1) or 1
    tokens = own.tokens(bucket)
    inputs = own.inputs(tokens, length)
    base = own.call(inputs, length)
    if why_not := _unsettled(own, inputs, length, base):
        yield from _nothing(why_not)
        return
    other_length = own.congruent(length, 1, bucket)
    others = [own.inputs(own.tokens(bucket), other_length) for _ in OTHERS]
    yield "inputs-matter", _inputs_matter(_Call(own, inputs, length, slice(length), base), others, whole)
    yield "unused-slots", _taken_caches(own, inputs, base, length)

    def of(some: Sequence[int], at: int) -> Results:
        return own.call(own.inputs(some, at), at)

    if length < bucket:
        yield "padding-hidden", _padding(own, tokens, length, of)
    else:
        yield "padding-hidden", Seen(skipped=[f"{own.name} has no room behind a prompt"])
    if not base.caches:
        for kind in ("cache-written", "position-matters", "mask-hides"):
            yield kind, Seen(skipped=[f"{own.name} returns no caches"])
        return
    wrong = []
    for name, cache in zip(CACHES, base.caches, strict=True):
        empty = ~np.any(cache[:, :, :length], axis=3)  # [L, K, length]
        if np.any(empty):
            layer, _, slot = map(int, np.argwhere(empty)[0])
            wrong.append(f"{own.name} leaves zeros in slot {slot} of {name}.{layer}")
    yield "cache-written", Seen(2, wrong)

    if layers[0].rope is None or bucket < 2:
        yield "position-matters", Seen(skipped=[f"no keys of the first layer of {own.name} are turned"])
    else:
        repeated = of([tokens[0]] * bucket, bucket).caches
        alike = all(equal(c[0, :, 0], c[0, :, 1]) for c in repeated)
        words = f"{own.name} gives a token the same keys at position 0 and at position 1"
        yield "position-matters", Seen(1, [words] if alike else [])
    yield "mask-hides", _later(own, tokens, length, base, of)


# ---- what has to matter


def _inputs_matter(call: _Call, others: Sequence[Sequence[np.ndarray]], whole: bool) -> Seen:
    """Each input given otherwise, alone, as it is in other calls; and, if the graph is tried as a whole, each weight."""
    own, inputs, asked, wrong = call.own, call.inputs, 0, []
    for i, taken in enumerate(own.graph.takes):
        variants = [v for v in (_other_than(inputs[i], other[i]) for other in others) if v is not None]
        if taken.what in FREE or not variants or f"argument {taken.index}" in own.unused:
            continue
        asked += 1
        if not any(call.changes(own.call([*inputs[:i], v, *inputs[i + 1 :]], call.at)) for v in variants):
            wrong.append(f"{own.name} gives the same whatever `{taken.name}` is")
    weights = [name for name in own.weights if whole and name not in own.unused]
    every = _tried(weights)
    tried = every if is_small(own.config) else _tried(weights, TRIED[own.abi.phase])
    for some in tried:
        if not _weight_matters(call, some, others):
            wrong.append(f"{own.name} gives the same whatever {_expression(some)} is")
    return Seen(asked + len(tried), wrong, of=asked + len(every))


def _other_than(one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """The input of another call; where that is the same, this one in another order; None where there is no other."""
    if one.tobytes() != other.tobytes():
        return other
    rolled = np.roll(one.ravel(), 1).reshape(one.shape)
    return rolled if rolled.tobytes() != one.tobytes() else None


def _weight_matters(call: _Call, names: Sequence[str], others: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether other weights under these names change anything, in the call or in one of the others."""
    own, at = call.own, call.at
    weights = {name: own.bench.model.load(name) for name in names}
    if any(w.dtype.kind in "iub" for w in weights.values()):
        return True  # no numbers of the model, but a part of how they are held
    other: dict[str, Any] = {}
    for scale in STEPS:
        other = {name: own.bench.backend.upload(_moved(weight, scale)) for name, weight in weights.items()}
        if call.changes(own.call(call.inputs, at, other)):
            return True
    # An expert may be chosen by other tokens alone.
    return any(not same(own.call(one, at, other), own.call(one, at), call.rows) for one in others)


def _moved(weight: np.ndarray, scale: float) -> np.ndarray:
    """Other numbers; with scale 0 the same in another order, which costs least."""
    if scale == 0:
        return np.roll(weight.ravel(), 1).reshape(weight.shape)
    plain = weight.astype(np.float32)
    size = max(float(np.std(plain)), 0.1 * float(np.max(np.abs(plain), initial=0.0)), 0.02)
    noise = np.random.default_rng(5).standard_normal(weight.shape, np.float32)
    return (plain + noise * np.float32(size * scale)).astype(weight.dtype)


def _tried(weights: Sequence[str], count: int | None = None) -> list[list[str]]:
    """The weights that are moved together: each alone, but all experts of a layer. Of `count`, some of every layer."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in weights:
        layer = next((int(n) for what, n in _PLACE.findall(name) if what == "layers"), -1)
        groups.setdefault((_PLACE.sub(r"\1.*.", name), layer), []).append(name)
    kinds: dict[str, list[list[str]]] = {}
    for (kind, _), names in groups.items():
        kinds.setdefault(kind, []).append(names)
    if count is None or len(groups) <= count:
        return list(groups.values())
    found: list[list[str]] = []
    for turn in range(max(map(len, kinds.values()), default=0)):
        for j, rows in enumerate(kinds.values()):
            if turn < len(rows) and len(found) < count:
                found.append(rows[(turn * (len(kinds) + 1) + j) % len(rows)])
    return list({some[0]: some for some in found}.values())


def _expression(names: Sequence[str]) -> str:
    shown = names[0] if len(names[0]) <= 100 else f"{names[0][:99]}…"
    return f"`{shown}`" if len(names) == 1 else f"each of {len(names)} weights such as `{shown}`"


def _positions(own: Own, token: int, caches: Sequence[np.ndarray]) -> Seen:
    """A token at two positions, with every slot filled: other logits, and other keys where these are turned."""
    slots = own.abi.capacity
    first = min(3, slots - 1)
    second = own.congruent(first, slots, slots - 1, apart=min(6, slots - 1 - first) or 1)
    if first == second:
        return Seen(skipped=[f"the caches of {own.name} have {slots} slots"])
    one, other = (own.call(own.inputs(token, at, *caches), at) for at in (first, second))
    where = f"at position {first} and at position {second}"
    # A token says too little.
    alike = own.abi.head == "logits" and equal(one.head, other.head)
    wrong = [f"{own.name} gives the same logits {where}"] if alike else []
    if same(one, other, slice(None)) and not alike:
        wrong.append(f"{own.name} gives the same {where}")
    turned = own.config.layers[0].rope is not None
    rows = zip(one.caches, other.caches, strict=True)
    if turned and not wrong and all(equal(a[0, :, first], b[0, :, second]) for a, b in rows):
        wrong.append(f"{own.name} writes the same keys for a token {where}")
    return Seen(1 + turned, wrong)


# ---- the caches


def _written(own: Own, token: int, positions: Sequence[int], state: Sequence[np.ndarray]) -> Seen:
    """A step fills its slot whatever was there, and leaves all others bit for bit."""
    slots, wrong = own.abi.capacity, list[str]()
    for at in (one for one in positions if not wrong):
        before = [own.junk(shape) for shape in own.shapes]
        moved = [np.where(np.arange(slots)[:, None] == at, c + 0.5, c).astype(np.float32) for c in before]
        results = [own.call(own.inputs(token, at, *caches, *state), at).caches for caches in (before, moved)]
        for i, name in enumerate(own.abi.caches):
            left = np.ones(own.shapes[i][:2] + own.shapes[i][3:], bool)  # [L, K, D]
            for caches, after in zip((before, moved), results, strict=True):
                left &= caches[i][:, :, at] == after[i][:, :, at]
            layers = np.flatnonzero(left.any(axis=(1, 2)))
            if len(layers):
                which = "every layer" if len(layers) == len(left) else f"layer {', '.join(map(str, layers[:4]))}"
                part = "" if left[layers].all() else "a part of "
                wrong.append(f"{own.name} at position {at} leaves {part}slot {at} of {name} as it was, in {which}")
        if what := changed(before, results[0], np.flatnonzero(np.arange(slots) != at)):
            wrong.append(f"{own.name} at position {at} changes {what}")
    return Seen(len(positions) * (len(own.abi.caches) + 1), wrong)


# ---- what must not matter


def _unused(
    own: Own, token: int, at: int, caches: Sequence[np.ndarray], state: Sequence[np.ndarray], base: Results
) -> Seen:  # fmt: skip
    """Other numbers in the slots from the step's own on."""
    slots = own.abi.capacity
    rows = slice(at, at + 1)

    def shown(those: np.ndarray, scale: float) -> tuple[float, str]:
        given = [np.where(those[:, None], own.junk(c.shape, scale), c).astype(np.float32) for c in caches]
        return difference(base, own.call(own.inputs(token, at, *given, *state), at), rows)

    largest, wrong = 0.0, list[str]()
    for scale in (1.0, 8.0):
        change, _ = shown(np.arange(slots) >= at, scale)
        largest = max(largest, change)
        if change > own.limit and not wrong:
            alone = [(slot, shown(np.arange(slots) == slot, scale)) for slot in dict.fromkeys((at, at + 1, slots - 1))]
            slot, (_, words) = next(((s, c) for s, c in alone if c[0] > own.limit), (None, (0.0, "")))
            words = words or shown(np.arange(slots) >= at, scale)[1]
            where = f"slot {slot}" if slot is not None else f"slots {at} to {slots - 1}"
            wrong.append(
                f"{words} with what is in {where} of the caches, which no call has filled ({own.name} at position {at})"
            )
    return Seen(2, wrong, largest, own.limit)


def _taken_caches(own: Own, inputs: Sequence[np.ndarray], base: Results, length: int) -> Seen:
    """Other numbers in the caches that a prefill takes, which are empty."""
    caches = [i for i, taken in enumerate(own.graph.takes) if taken.what in (*CACHES, "cache")]
    if not caches:
        return Seen(skipped=[f"{own.name} takes no caches"])
    given = [own.junk(one.shape).astype(one.dtype) if i in caches else one for i, one in enumerate(inputs)]
    largest, words = difference(base, own.call(given, length), slice(length))
    name = own.graph.takes[caches[0]].name
    wrong = [f"{words} with what is in `{name}`, which no call has filled ({own.name})"] if largest > own.limit else []
    return Seen(1, wrong, largest, own.limit)


def _behind_window(own: Own, token: int, caches: Sequence[np.ndarray]) -> Seen:
    """Other numbers in the slots behind a layer's window, at the last position."""
    at = own.abi.capacity - 1
    windows = {i: layer.window for i, layer in enumerate(own.config.layers) if layer.window and layer.window <= at}
    if not windows:
        return Seen(skipped=[f"no layer of {own.name} has a window that is shorter than its caches"])
    base = own.call(own.inputs(token, at, *caches), at)

    def shown(some: Mapping[int, slice]) -> tuple[float, str]:
        given = [c.copy() for c in caches]
        for layer, hidden in some.items():
            for c in given:
                c[layer, :, hidden] = own.junk(c[layer, :, hidden].shape)
        return difference(base, own.call(own.inputs(token, at, *given), at), slice(at, at + 1))

    largest, words = shown({i: slice(at - w + 1) for i, w in windows.items()})
    wrong = []
    if largest > own.limit:
        first, window = next(iter(windows.items()))
        for i, w in windows.items():
            edge = shown({i: slice(at - w, at - w + 1)})
            if edge[0] > own.limit:
                words = f"{edge[1]} with what is in slot {at - w} of layer {i}, behind its window of {w}"
                break
        else:
            words += f" with what is behind a window, such as that of {window} in layer {first}"
        wrong.append(f"{words} ({own.name} at position {at})")
    return Seen(1, wrong, largest, own.limit)


def _padding(own: Own, tokens: Sequence[int], length: int, of: Any) -> Seen:
    """Other tokens behind the prompt."""
    largest, wrong = 0.0, list[str]()
    base = of(_padded(tokens, length, [0]), length)
    for padding in ([own.config.vocab_size - 1], tokens[length:]):
        change, words = difference(base, of(_padded(tokens, length, padding), length), slice(length))
        largest = max(largest, change)
        if change > own.limit and not wrong:
            wrong.append(f"{words} with the tokens behind a prompt of {length} ({own.name})")
    return Seen(2, wrong, largest, own.limit)


def _padded(tokens: Sequence[int], length: int, padding: Sequence[int]) -> list[int]:
    return [*tokens[:length], *(padding[i % len(padding)] for i in range(len(tokens) - length))]


def _later(own: Own, tokens: Sequence[int], length: int, base: Results, of: Any) -> Seen:
    """Another last token, which no earlier one sees; and another first one, which none sees that has it behind its window."""
    asked, largest, wrong = 0, 0.0, []
    several = own.config.num_hidden_layers > 1
    if length > 1 and several:
        asked += 1
        moved = [*tokens[: length - 1], (tokens[length - 1] + 1) % own.config.vocab_size, *tokens[length:]]
        change, words = difference(headless(base), headless(of(moved, length)), slice(length - 1))
        largest = max(largest, change)
        if change > own.limit:
            wrong.append(f"{words} with token {length - 1}, which stands behind it ({own.name})")
    window = own.config.layers[0].window
    if window and window < own.abi.bucket and several:
        asked += 1
        end = min(own.abi.bucket, window + 4)
        moved = [(tokens[0] + 1) % own.config.vocab_size, *tokens[1:]]
        one, other = (
            dataclasses.replace(r, head=r.head[:0] if r.head.ndim else np.zeros(0), caches=tuple(c[1:2] for c in r.caches))
            for r in (of(tokens, end), of(moved, end))
        )  # fmt: skip
        change, words = difference(one, other, slice(window, end), layer=1)
        largest = max(largest, change)
        if change > own.limit:
            wrong.append(f"{words} with token 0, behind the window of {window} in layer 0 ({own.name})")
    if not asked:
        return Seen(skipped=[f"{own.name} has nothing that shows what a token sees: one layer, or one token"])
    return Seen(asked, wrong, largest, own.limit)
