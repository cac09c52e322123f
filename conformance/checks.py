"""The checks: each has a stable id, says what it measured and what it expected, and can fail.

They are functions of evidence that was gathered before, so each is tested by evidence that breaks it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.conformance.cells import CellOutcome, repeats
from hloracle.conformance.census import census_pin, held_kinds, held_ops, op_kinds_for
from hloracle.conformance.graphs import GraphFacts, table_digest
from hloracle.core.abi import Graph
from hloracle.core.errors import OutOfMemory
from hloracle.core.tolerances import LOGIT_FLOORS, ROUNDING, TRUTH_RELATIVE
from hloracle.reference.anchors import CACHES, products
from hloracle.reference.config import Config
from hloracle.reference.rope import decode_tables, prefill_tables
from hloracle.reference.truth import Truth
from hloracle.reference.weights import parts_in, weight_shapes

# Of a decode graph with logits: enough for Llama. What else a mechanism cannot do without stands in `op_kinds_for`.
MAX_DECODE_OP_KINDS = 20
# What a graph needs to find its own place in tables and caches, and to read a layer of them.
ON_DEVICE_KINDS = {"gather", "scatter", "slice"}


@dataclass(frozen=True)
class Check:
    """`status` is `passed`, `failed`, `skipped` (with the reason in `detail`) or `error`.

    anchor, operation: where in the graph the first thing stands that breaks it, if that is known.
    """

    id: str
    title: str
    status: str
    figure: str
    expected: str
    detail: str = ""
    anchor: str = ""
    operation: str = ""

    @property
    def short_of_memory(self) -> bool:
        """Whether there is no answer because a device's memory was too small: then nothing is wrong with a graph."""
        return self.status == "error" and OutOfMemory.WORDS in self.detail


def judged(
    id: str, title: str, holds: bool, figure: object, expected: object, detail: str = "", anchor: str = ""
) -> Check:
    status = "passed" if holds else "failed"
    return Check(id, title, status, str(figure), str(expected), "" if holds else detail, "" if holds else anchor)


def skipped(id: str, title: str, reason: str) -> Check:
    return Check(id, title, "skipped", "", "", reason)


def graph_checks(source: str, graphs: Sequence[tuple[Graph, GraphFacts]], config: Config) -> list[Check]:
    """What must hold of every graph of one source before it is run."""
    broken = [f"{g.name}: {f.error}" for g, f in graphs if f.error]
    whole = len(graphs) - len(broken)
    checks = [
        judged(
            f"{source}.parse",
            "every graph parses and verifies",
            bool(graphs) and not broken,
            f"{whole} of {len(graphs)}",
            f"{len(graphs)} of {len(graphs)}",
            "; ".join(broken),
            next((f.places.get("error", "") for _, f in graphs if f.error), ""),
        )
    ]
    parsed = [(g, f) for g, f in graphs if not f.error]
    allowed: Counter[str] = Counter()
    for _, facts in parsed:
        allowed.update(facts.allowed_calls)  # a sum of Counters would leave out those that are never called
    but = f" but those to {', '.join(allowed)}, which are allowed by name" if allowed else ""
    for id, title, field in (
        ("abi", "signatures and donations are those of the ABI", "abi_mismatch"),
        ("custom-call", f"no custom_call{but}", "custom_calls"),
        ("f64", "no f64", "f64"),
        ("dialects", "no operation outside StableHLO", "others"),
        ("arguments-used", "every weight and input is used", "unused"),
    ):
        found = [f"{g.name}: {', '.join(getattr(f, field)[:4])}" for g, f in parsed if getattr(f, field)]
        count = sum(len(getattr(f, field)) for _, f in parsed)
        holds = bool(parsed) and not found
        place = next((f.places[field] for _, f in parsed if field in f.places), "")
        figure = str(count) if parsed else "no graph"
        if id == "custom-call":
            figure += "".join(f", and {n} to {target}" for target, n in allowed.items())
        checks.append(judged(f"{source}.{id}", title, holds, figure, 0, "; ".join(found), place))
    aliased = [g for g, _ in parsed if g.abi.phase == "decode"]
    if aliased:
        wanted = {"k_cache", "v_cache"}
        bad = [g.name for g in aliased if {r.name for r in g.abi.results if r.aliases is not None} != wanted]
        missing = sorted(r.name for g in aliased for r in g.abi.results if r.name in wanted and r.aliases is None)
        checks.append(
            judged(
                f"{source}.caches-donated", "decode graphs donate both caches", not bad,
                f"{len(aliased) - len(bad)} of {len(aliased)}", f"{len(aliased)} of {len(aliased)}", ", ".join(bad),
                f"{missing[0]}.0" if missing else "",
            )
        )  # fmt: skip
    # A graph that somebody else wrote may fuse its projections, so what we pin is asked of our own only.
    if source in ("emitter", "oracle"):
        checks += [_census(source, parsed, config), *_counts(source, parsed, config), _tables(source, parsed, config)]
    return checks


def _counts(source: str, parsed: Sequence[tuple[Graph, GraphFacts]], config: Config) -> list[Check]:
    """Matmuls and weights of every graph; op kinds of the emitter's decode graph with logits."""
    wanted, weights = products(config), len(weight_shapes(config))
    matmuls = sum(wanted.values())
    bad = [f"{g.name} has {sum(f.matmuls.values())}" for g, f in parsed if sum(f.matmuls.values()) != matmuls]
    counts = sorted({sum(f.matmuls.values()) for _, f in parsed})
    place = next((a for a, count in wanted.items() for _, f in parsed if f.matmuls.get(a, 0) != count), "")
    title = "products: those of each layer's parts, and the head's"
    checks = [
        judged(f"{source}.matmuls", title, bool(parsed) and not bad, _join(counts), matmuls, "; ".join(bad), place)
    ]
    held = {g.name: len({part for w in g.abi.weights for part in parts_in(w.weight)}) for g, _ in parsed}
    bad = [f"{name} has {count}" for name, count in held.items() if count != weights]
    counts = sorted(set(held.values()))
    title = "weights: those of each layer's parts, the embedding, the last norm and an untied head"
    checks.append(judged(f"{source}.weights", title, bool(parsed) and not bad, _join(counts), weights, "; ".join(bad)))
    if source == "emitter":
        kinds = [len(f.ops) for g, f in parsed if (g.abi.phase, g.abi.head) == ("decode", "logits")]
        new = {kind for g, _ in parsed if g.abi.phase == "decode" for kind in held_kinds(g, config)}
        new |= ON_DEVICE_KINDS if any(g.on_device for g, _ in parsed) else set()
        most = MAX_DECODE_OP_KINDS + len(op_kinds_for(config) | new)
        title = "op kinds of the decode graph with logits"
        holds = bool(kinds) and max(kinds) <= most
        checks.append(judged("emitter.op-kinds", title, holds, _join(kinds), f"at most {most}"))
    return checks


def _tables(source: str, parsed: Sequence[tuple[Graph, GraphFacts]], config: Config) -> Check:
    """Tables of numbers in a graph are the RoPE tables, bit for bit: a rounding more is too little to see in the values."""
    title = "constant tables are the RoPE tables of float64 angles, rounded once"
    bad, places = [], []
    for graph, facts in parsed:
        abi = graph.abi
        prefill = abi.phase == "prefill"
        tables = [prefill_tables(r, abi.bucket) if prefill else decode_tables(r, abi.capacity) for r in config.ropes]
        right = {table_digest(values) for t in tables for values in (t.cos, t.sin)}
        if set(facts.tables) != right:
            bad.append(f"{graph.name} has {'another table' if facts.tables else 'no table'}")
            places.append(facts.places.get("tables", ""))
    figure, all_ = f"{len(parsed) - len(bad)} of {len(parsed)} graphs", f"{len(parsed)} of {len(parsed)} graphs"
    return judged(
        f"{source}.tables", title, bool(parsed) and not bad, figure, all_, "; ".join(bad), next(iter(places), "")
    )


def _join(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts)) or "no graph"


def fewer_ops(
    emitter: Sequence[tuple[Graph, GraphFacts]], oracle: Sequence[tuple[Graph, GraphFacts]], config: Config
) -> Check:
    """Graph by graph of the same name, the emitter's is smaller than the oracle's.

    Where it holds weights otherwise, what it needs for that alone does not count: the oracle has them as they are.
    """
    totals = {g.name: f.total for g, f in oracle if not f.error}
    pairs = [
        (g.name, f.total - sum((held_ops(g, config) or Counter()).values()), totals[g.name])
        for g, f in emitter if not f.error and g.name in totals
    ]  # fmt: skip
    bad = [f"{name}: {ours} >= {theirs}" for name, ours, theirs in pairs if ours >= theirs]
    decode = next(((ours, theirs) for name, ours, theirs in pairs if "decode" in name), None)
    figure = f"{decode[0]} in decode" if decode else "no pair"
    expected = f"fewer than {decode[1]}" if decode else "a pair"
    return judged("emitter.fewer-ops", "fewer operations than the oracle", bool(pairs) and not bad, figure, expected,
                  "; ".join(bad))  # fmt: skip


# ---- census


def _census(source: str, parsed: Sequence[tuple[Graph, GraphFacts]], config: Config) -> Check:
    id, title = f"{source}.census", "operations of each kind are those pinned in census.json"
    pins = [(graph, facts, census_pin(source, graph, config)) for graph, facts in parsed]
    if all(pin is None for _, _, pin in pins):
        return skipped(id, title, "no census is pinned for a model of this kind")
    bad = []
    for graph, facts, pin in pins:
        if pin is None:
            bad.append(f"{graph.name} has no pin")
            continue
        kinds = sorted(k for k in {*pin, *facts.ops} if _other_count(k, facts.ops.get(k, 0), pin.get(k, 0)))
        if kinds:
            words = ", ".join(f"{k} {facts.ops.get(k, 0)} instead of {pin.get(k, 0)}" for k in kinds)
            bad.append(f"{graph.name}: {words}")
    figure = f"{len(pins) - len(bad)} of {len(pins)} graphs"
    place = next((f.places["census"] for _, f in parsed if f.places.get("census")), "")
    return judged(id, title, not bad, figure, f"{len(pins)} of {len(pins)} graphs", "; ".join(bad), place)


def _other_count(kind: str, found: int, pinned: int) -> bool:
    """Equal constants are written once, and of some shapes more of them are equal: there may be fewer."""
    return found > pinned if kind == "constant" else found != pinned


# ---- caches in place


STREAM_CONSTANT = re.compile(r"(%\S+) = arith\.constant (\d+) : index")
# `stream.cmd.copy %source[%offset], %target[%offset], %length : ...`
STREAM_COPY = re.compile(r"stream\.cmd\.copy .*, (%\S+) : ")
# A buffer that a call makes for its results, as a donated cache never is: `...resource<external>{%length}`
STREAM_RESULT = re.compile(r"stream\.resource\.alloca? .*!stream\.resource<external>\{(%[^\s,}]+)\}")
# Before IREE schedules them, copies have these names; the text that is judged holds none.
STREAM_UNSCHEDULED = re.compile(r"stream\.(?:async\.(?:copy|clone|update|slice)|tensor\.(?:clone|update|slice))\b")


def caches_in_place(graph: Graph, stream_text: str) -> Check:
    """IREE's stream form of a decode graph copies nothing as large as one layer's keys or values, nor makes a buffer for it.

    The graph's head is the token: other results are the caches only.
    """
    id, title = "emitter.caches-in-place", "no copy of a cache in IREE's stream form of decode"
    caches = [graph.abi.results[graph.abi.result(name)] for name in CACHES]
    layer_bytes = min(cache.nbytes // cache.shape[0] for cache in caches)
    whole = max(cache.nbytes for cache in caches)
    sizes = {name: int(size) for name, size in STREAM_CONSTANT.findall(stream_text)}

    def largest(lengths: list[str]) -> int:
        # A length that is not a constant cannot be bounded, so it counts as a whole cache.
        return max((sizes.get(name, whole) for name in lengths), default=0)

    copy, made = largest(STREAM_COPY.findall(stream_text)), largest(STREAM_RESULT.findall(stream_text))
    unread = stream_text.count("stream.cmd.copy") - len(STREAM_COPY.findall(stream_text))
    unread += len(STREAM_UNSCHEDULED.findall(stream_text))
    dispatches = stream_text.count("stream.cmd.dispatch")
    holds = dispatches > 0 and max(copy, made) < layer_bytes and not unread
    figure = f"largest copy {copy} bytes, largest new result {made} bytes, {dispatches} dispatches"
    detail = "a whole layer's cache, or more, is copied or written anew"
    if unread or not dispatches:
        detail = f"{unread} copies and {dispatches} dispatches: this stream form cannot be judged"
    return judged(id, title, holds, figure, f"less than {layer_bytes} bytes", detail, "k_cache.0")


def read_backs(stream_text: str) -> Check:
    """A step reads nothing back before it is done: what a device had to give first, everything after would wait for."""
    id, title = "emitter.read-backs", "decode reads nothing back in the midst of a step"
    main = stream_text.partition("util.func public @")[2]
    found, dispatches = main.count("stream.resource.load"), main.count("stream.cmd.dispatch")
    detail = "the host waits for a number of the device's, such as where a dynamic_slice begins, and goes on with it"
    if not dispatches:
        detail = "this stream form cannot be judged"
    return judged(
        id, title, dispatches > 0 and not found, f"{found} numbers, {dispatches} dispatches", "0 numbers", detail
    )


# ---- cells


def truth_check(truths: dict[str, Truth]) -> Check:
    """The truth is in its own noise: float32 and float64 choose the same tokens, a float32 rounding apart."""
    logits = max((_nan_last(t.floor / float(np.max(np.abs(t.exact)))) for t in truths.values()), default=np.inf)
    caches = max((_nan_last(t.caches) for t in truths.values()), default=np.inf)
    other = [
        f"{id}: step {step} is {best}, not {token}, in float64"
        for id, t in truths.items()
        for step, (token, best) in enumerate(zip(t.tokens, np.argmax(t.exact, axis=1).tolist(), strict=True))
        if token != best and t.exact[step, best] - t.exact[step, token] > 2 * t.floor
    ]
    # Without any noise the float64 truth would be the float32 one again, and nothing could be measured by it.
    other += [f"{id}: float32 and float64 are equal" for id, t in truths.items() if t.floor == 0]
    holds = max(logits, caches) <= TRUTH_RELATIVE and not other
    title = "Hugging Face float32 agrees with its float64"
    figure = f"{logits:.1e} of the largest logit, {caches:.1e} of the largest cache entry"
    return judged("truth.noise", title, holds, figure, f"at most {TRUTH_RELATIVE:.0e}",
                  "; ".join(other) or "the float32 truth is further from float64 than float32 rounding explains")  # fmt: skip


def limit(truth: Truth) -> float:
    """How far a logit may be from the float64 truth."""
    return LOGIT_FLOORS * truth.floor


def mismatches(tokens: Sequence[int], truth: Truth) -> list[int]:
    """Steps at which a cell chose another token than the truth."""
    return [i for i, (a, b) in enumerate(zip(tokens, truth.tokens, strict=False)) if a != b]


def is_near_tie(step: int, token: int, truth: Truth) -> bool:
    """Whether a right implementation may choose `token` here: its logit and the best one can each move by the limit."""
    logits = truth.exact[step]
    return 0 <= token < len(logits) and bool(np.max(logits) - logits[token] <= 2 * limit(truth))


def cell_checks(outcome: CellOutcome, truths: dict[str, Truth], streamed: Collection[str] = ()) -> list[Check]:
    """Tokens, logits of prefill and of decode, over all prompts of a cell; and of those `streamed`, prefill against streaming."""
    id = outcome.cell.id
    if outcome.status == "failed":
        return [Check(f"{id}.tokens", "tokens equal Hugging Face's", "error", "", "", outcome.message)]
    absent = [p for p in truths if p not in outcome.prompts]
    agreed = total = 0
    notes = [f"{p} did not run" for p in absent]
    near: list[str] = []
    for name, result in outcome.prompts.items():
        truth = truths[name]
        steps = mismatches(result.tokens, truth)
        total += len(truth.tokens)
        agreed += len(result.tokens) - len(steps)
        if len(result.tokens) != len(truth.tokens):
            notes.append(f"{name}: {len(result.tokens)} tokens instead of {len(truth.tokens)}")
        ties = [is_near_tie(step, result.tokens[step], truth) for step in steps]
        # The first that is no near-tie, if there is one.
        for step in sorted(steps, key=lambda s: ties[steps.index(s)])[:1]:
            (near if all(ties) else notes).append(
                f"{name}: step {step} is {result.tokens[step]}, not {truth.tokens[step]} "
                f"(the truth's lead there is {truth.gaps[step]:.2g})"
            )
    holds = total > 0 and not notes
    detail = "; ".join(notes)
    checks = [
        judged(
            f"{id}.tokens", "tokens equal Hugging Face's", holds, f"{agreed} of {total}", f"{total} of {total}", detail
        )
    ]
    if holds and near:
        checks = [Check(f"{id}.tokens", "tokens equal Hugging Face's", "passed", f"{agreed} of {total}",
                        "all but near-ties", "near-ties: " + "; ".join(near))]  # fmt: skip
    if outcome.cell.head == "logits":
        # Step 0 is prefill's row (or the streamed prompt's last); the others are decode's.
        phases = [
            ("prefill-logits", "logits of prefill", slice(0, 1)),
            ("decode-logits", "logits of decode", slice(1, None)),
        ]
        checks += [_logits(f"{id}.{name}", title, outcome, truths, part) for name, title, part in phases]
    if repeats(outcome.cell):
        checks.append(_repeats(f"{id}.repeats", outcome, truths))
    if streamed:
        some = {name: truth for name, truth in truths.items() if name in streamed}
        checks.append(_streaming(f"{id}.prefill-equals-streaming", outcome, some))
    return checks


def _logits(id: str, title: str, outcome: CellOutcome, truths: dict[str, Truth], part: slice) -> Check:
    title += " against the float64 truth"
    asked = {name for name, truth in truths.items() if truth.tokens[part]}
    if not asked and truths:
        return skipped(id, title, "this cell's graphs have no such step")
    # One error for each of the truth's steps: nothing is taken for right because it was not measured.
    absent = [n for n in asked if n not in outcome.prompts or len(outcome.prompts[n].errors) != len(truths[n].tokens)]
    if absent or not asked:
        return Check(id, title, "error", "", "", f"{min(absent, default='no prompt')} was not compared")
    ratios = {name: _in_floors(float(np.max(outcome.prompts[name].errors[part])), truths[name]) for name in asked}
    worst = max(sorted(ratios), key=lambda name: _nan_last(ratios[name]))
    holds = all(r <= LOGIT_FLOORS for r in ratios.values())
    figure = f"{ratios[worst]:.2f} floors ({worst})"
    return judged(id, title, holds, figure, f"at most {LOGIT_FLOORS:g} floors",
                  f"worst error {np.max(outcome.prompts[worst].errors[part]):.3g}, floor {truths[worst].floor:.3g}")  # fmt: skip


def _repeats(id: str, outcome: CellOutcome, truths: dict[str, Truth]) -> Check:
    """A device's own noise. What it adds up in another order each time may differ, but by no more than an error may be."""
    title = "the same calls give the same logits on the device"
    found = {name: o.repeat_distance for name, o in outcome.prompts.items() if o.repeat_distance is not None}
    if not found:
        return Check(id, title, "error", "", "", "nothing was repeated")
    floors = max(_nan_last(_in_floors(distance, truths[name])) for name, distance in found.items())
    figure = f"{floors:.2f} floors apart" if floors else "bit for bit"
    return judged(
        id,
        title,
        floors <= LOGIT_FLOORS,
        figure,
        f"at most {LOGIT_FLOORS:g} floors",
        "the device is not to be relied on",
    )


def _streaming(id: str, outcome: CellOutcome, truths: dict[str, Truth]) -> Check:
    title = "prefill equals streaming the prompt through decode"
    shares = []
    for name, truth in truths.items():
        result = outcome.prompts.get(name)
        if result is None or result.head_distance is None or result.cache_distance is None:
            return Check(id, title, "error", "", "", f"{name} was not compared")
        floors = (_in_floors(result.head_distance, truth), result.cache_distance / max(truth.caches, ROUNDING))
        shares.append((max(map(_nan_last, floors)) / LOGIT_FLOORS, name))
    if not shares:
        return Check(id, title, "error", "", "", "no prompt was compared")
    worst, name = max(shares)
    holds = all(share <= 1 for share, _ in shares)
    return judged(id, title, holds, f"{worst:.2f} of the limit ({name})", "at most 1", "head or caches differ")


def _in_floors(distance: float, truth: Truth) -> float:
    return distance / truth.floor if truth.floor else float("inf") if distance else 0.0


def _nan_last(x: float) -> float:
    """NaN as the largest, so that it is the worst and not overlooked."""
    return float("inf") if np.isnan(x) else x
