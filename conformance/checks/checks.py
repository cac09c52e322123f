"""The checks: each has a stable id, says what it measured and what it expected, and can fail.

They are functions of evidence that was gathered before, so each is tested by evidence that breaks it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.conformance.checks.census import census_pin, held_kinds, held_ops, op_kinds_for
from hloracle.conformance.graphs.facts import GraphFacts, table_digest
from hloracle.conformance.runs.configurations import CellOutcome
from hloracle.conformance.runs.returned import Stream
from hloracle.core.abi import Graph
from hloracle.core.tolerances import ANCHOR_FLOORS, LOGIT_FLOORS, TRUTH_RELATIVE
from hloracle.reference.huggingface.truth import Truth
from hloracle.reference.model.anchors import CACHES, products
from hloracle.reference.model.config import Config
from hloracle.reference.model.rope import decode_tables, prefill_tables
from hloracle.reference.model.weights import parts_in, weight_shapes

# Of a decode graph with logits: enough for Llama. What else a mechanism cannot do without stands in `op_kinds_for`.
MAX_DECODE_OP_KINDS = 20
# What a graph needs to find its own place in tables and caches, and to read a layer of them.
ON_DEVICE_KINDS = {"gather", "scatter", "slice"}


@dataclass(frozen=True)
class Check:
    """`status` is `passed`, `failed`, `skipped` (with the reason in `detail`) or `error`.

    anchor, operation: where in the graph the first thing stands that breaks it, if that is known.
    cause: of an error, where it is known: the stage of a cell that failed, such as `memory` or `timeout`.
    missing: what it leaves out, in words.
    """

    id: str
    title: str
    status: str
    figure: str
    expected: str
    detail: str = ""
    anchor: str = ""
    operation: str = ""
    cause: str = ""
    missing: str = ""


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
        ("supported", "no operation that no backend here can run", "beyond"),
        ("abi", "types and layouts are those of the ABI", "abi_mismatch"),
        ("donations", "donations are those of the ABI", "donations"),
        ("random", "no operation that draws random numbers", "random"),
        ("reductions", "each sum begins with 0, and each product with 1", "reductions"),
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
        bad, missing = [], []
        for graph in aliased:
            own = {a.name: i for i, a in enumerate(graph.abi.arguments) if a.name in CACHES}
            taken = {r.name: r.aliases for r in graph.abi.results if r.aliases is not None}
            if taken != own:
                bad.append(graph.name)
                missing += [name for name in CACHES if taken.get(name) != own.get(name)]
        checks.append(
            judged(
                f"{source}.caches-donated", "decode graphs donate both caches, each to its own result", not bad,
                f"{len(aliased) - len(bad)} of {len(aliased)}", f"{len(aliased)} of {len(aliased)}", ", ".join(bad),
                f"{min(missing)}.0" if missing else "",
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


def cell_checks(outcome: CellOutcome, truths: dict[str, Truth], streamed: Sequence[Stream] = ()) -> list[Check]:
    """What a cell answered to its prompts, and to these streams.

    Tokens, logits of prefill and of decode, the caches, the streams' heads, the same calls again.
    """
    id = outcome.cell.id
    if outcome.status == "failed":
        return [
            Check(f"{id}.tokens", "tokens equal Hugging Face's", "error", "", "", outcome.message, cause=outcome.stage)
        ]
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
    # A prefill alone is asked for one token.
    decodes = any(len(t.tokens) > 1 for t in truths.values()) or any(s.heads for s in outcome.streams.values())
    checks += [_caches(f"{id}.caches", outcome, truths, streamed, decodes), _repeats(f"{id}.repeats", outcome)]
    if streamed:
        checks.append(_streamed_heads(f"{id}.streamed-logits", outcome, streamed, decodes))
        if decodes and any(s.lengths for s in streamed):
            checks.append(_streaming(f"{id}.prefill-equals-streaming", outcome, streamed))
    return checks


def _logits(id: str, title: str, outcome: CellOutcome, truths: dict[str, Truth], part: slice) -> Check:
    title += " against the float64 truth"
    asked = {name for name, truth in truths.items() if truth.tokens[part]}
    if not asked and truths:
        return skipped(id, title, "no prompt has such a step")
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


def _caches(
    id: str, outcome: CellOutcome, truths: dict[str, Truth], streamed: Sequence[Stream], decodes: bool
) -> Check:  # fmt: skip
    """Every slot that was filled, in floors of its row; and every other one, bit for bit."""
    title = "every slot of both caches against the float64 truth, and slots that must stay, bit for bit"
    found = [(name, slots) for name, o in outcome.prompts.items() for slots in o.slots]
    found += [
        (name, slots) for name, o in outcome.streams.items() for slots in (o.slots, o.prefilled_slots) if slots
    ]  # fmt: skip
    # After each prompt, and after the steps that follow it; of a stream after decode and after prefill.
    wanted = Counter({name: 1 + (len(truth.tokens) > 1) for name, truth in truths.items()})
    wanted += Counter({s.id: (decodes and s.decodes) + bool(s.lengths) for s in streamed})
    layers = {anchor for _, slots in found for anchor in slots.worst}
    seen = Counter(name for name, slots in found if slots.worst.keys() == layers)
    if absent := [name for name, count in wanted.items() if seen[name] < count]:
        return Check(id, title, "error", "", "", f"{absent[0]} was not compared")
    if not layers:
        return Check(id, title, "error", "", "", "nothing was compared")
    (error, anchor, slot), name = max((slots.largest, name) for name, slots in found)
    stayed = [f"{name}: {slots.stayed}" for name, slots in found if slots.stayed]
    wrong = min(((*at, name) for name, slots in found if (at := slots.first_wrong())), default=None)
    detail = [f"the first that is wrong is slot {wrong[0]} of {wrong[1]} ({wrong[2]})"] if wrong else []
    figure = f"{error:.2f} floors ({anchor}, slot {slot}, {name}), {len(found[0][1].worst)} caches of a layer"
    expected = f"at most {ANCHOR_FLOORS:g} floors"
    return judged(id, title, not wrong and not stayed, figure, expected, "; ".join([*detail, *stayed[:3]]))


def _repeats(id: str, outcome: CellOutcome) -> Check:
    """The same calls give the same bits. What differs is a finding, on whatever it runs."""
    title = "the same calls on the same inputs give the same bits"
    if outcome.repeated is None:
        return Check(id, title, "error", "", "", "nothing was repeated")
    equal, apart = outcome.repeated
    figure = "bit for bit" if equal else f"up to {apart:.2g} apart"
    return judged(id, title, equal, figure, "bit for bit", "a second call on equal inputs gives something else")


def _streamed_heads(id: str, outcome: CellOutcome, streamed: Sequence[Stream], decodes: bool) -> Check:
    """Decode at every position of a sequence, and prefill of its beginnings."""
    what = "tokens" if outcome.cell.head == "token" else "logits"
    title = f"{what} at every position of a sequence, and after its beginnings, against the float64 truth"
    heads = [
        (error, f"{phase}, position {position} of {name}")
        for name, stream in outcome.streams.items()
        for phase, errors in (("decode", dict(enumerate(stream.heads))), ("prefill", stream.prefilled))
        for position, error in ((n - (phase == "prefill"), e) for n, e in errors.items())
    ]
    # One error for each position and each length: nothing is taken for right because it was not measured.
    absent = [
        s.id for s in streamed
        if (one := outcome.streams.get(s.id)) is None
        or (decodes and s.decodes and len(one.heads) != len(s.tokens)) or set(one.prefilled) != set(s.lengths)
    ]  # fmt: skip
    if absent or not heads:
        return Check(id, title, "error", "", "", f"{next(iter(absent), 'no sequence')} was not compared")
    worst, where = max(heads, key=lambda head: _nan_last(head[0]))
    wrong = [where for error, where in heads if not error <= ANCHOR_FLOORS]
    figure = f"{worst:.2f} floors ({where}), {len(heads)} of them"
    if what == "tokens":
        figure = f"{len(heads) - len(wrong)} of {len(heads)}"
    expected = f"at most {ANCHOR_FLOORS:g} floors" if what == "logits" else f"{len(heads)} of {len(heads)}"
    return judged(id, title, not wrong, figure, expected, f"{len(wrong)} are wrong, the first {next(iter(wrong), '')}")


def _streaming(id: str, outcome: CellOutcome, streamed: Sequence[Stream]) -> Check:
    title = "prefill equals streaming the same tokens through decode"
    found = [(_nan_last(s.apart), name) for name, s in outcome.streams.items() if s.apart is not None]
    if absent := {s.id for s in streamed if s.lengths and s.decodes} - {name for _, name in found}:
        return Check(id, title, "error", "", "", f"{min(absent)} was not compared")
    worst, name = max(found)
    holds = worst <= ANCHOR_FLOORS
    limit = f"at most {ANCHOR_FLOORS:g} floors"
    return judged(id, title, holds, f"{worst:.2f} floors ({name})", limit, "head or caches differ")


def _in_floors(distance: float, truth: Truth) -> float:
    return distance / truth.floor if truth.floor else float("inf") if distance else 0.0


def _nan_last(x: float) -> float:
    """NaN as the largest, so that it is the worst and not overlooked."""
    return float("inf") if np.isnan(x) else x
