"""Checks of what a source wrote, before it runs: types, donations, operation kinds, counts, tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hloracle.conformance.checks.census import NOT_PINNED, census_pin, held_ops, pinned
from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.checks.of_rules import rule_checks
from hloracle.conformance.graphs.facts import Inspected
from hloracle.conformance.matrix import EMITTER
from hloracle.conformance.project.file import Rules, bundled
from hloracle.core.abi import Graph, cache_of
from hloracle.reference.model.config import Config


def graph_checks(
    source: str, graphs: Inspected, config: Config, counts_as: str | None = None, stated: Sequence[Rules] = ()
) -> list[Check]:
    """What must hold of every graph of one source before it is run.

    Args:
      counts_as: the source whose pinned counts hold for these graphs; the source itself, if not given; empty for none.
      stated: by the project whose graphs they are.
    """
    counts_as = source if counts_as is None else counts_as
    broken = [f"{g.name}: {f.error}" for g, f in graphs if f.error]
    name, places = next(((g.name, f.places) for g, f in graphs if f.error), ("", {}))
    operation = f"{places['operation']} of {name}" if "operation" in places else ""
    question = Question("parse", "every graph parses and verifies", source)
    parses = question.counted(len(graphs) - len(broken), len(graphs), "; ".join(broken), places.get("error", ""))
    checks = [replace(parses, operation=operation, candidate=bool(operation))]
    parsed = [(g, f) for g, f in graphs if not f.error]
    allowed: Counter[str] = Counter()
    for _, facts in parsed:
        allowed.update(facts.allowed_calls)  # a sum of Counters would leave out those that are never called
    but = f" but those to {', '.join(allowed)}, which are allowed by name" if allowed else ""
    for kind, title, field in (
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
        if kind == "custom-call":
            figure += "".join(f", and {n} to {target}" for target, n in allowed.items())
        checks.append(Question(kind, title, source).judged(holds, figure, 0, "; ".join(found), place))
    aliased = [g for g, _ in parsed if g.abi.phase != "prefill" and not g.inner]
    if aliased:
        bad, missing = [], []
        for graph in aliased:
            own = {a.name: i for i, a in enumerate(graph.abi.arguments) if a.name in graph.abi.caches}
            taken = {r.name: r.aliases for r in graph.abi.results if r.aliases is not None}
            if taken != own:
                bad.append(graph.name)
                missing += [_first(graph, name) for name in own if taken.get(name) != own.get(name)]
        question = Question("caches-donated", "graphs that take caches donate both, each to its own result", source)
        place = min(missing, default="")
        checks.append(question.counted(len(aliased) - len(bad), len(aliased), ", ".join(bad), place))
    # A graph that somebody else wrote may fuse its projections, so that other counts are no fault.
    if counts_as:
        checks.append(_census(source, counts_as, parsed, config))
    else:
        checks.append(pinned("census", source).skipped(NOT_PINNED))
    return [*checks, *rule_checks(source, parsed, config, bundled(counts_as) if counts_as else (), stated)]


def fewer_ops(judged: Inspected, oracle: Inspected, config: Config, source: str = EMITTER) -> Check:
    """Graph by graph of the same name, the emitter's is smaller than the oracle's.

    Where it holds weights otherwise, what it needs for that alone does not count: the oracle has them as they are.
    """
    totals = {g.name: f.total for g, f in oracle if not f.error}
    pairs = [
        (g.name, f.total - sum((held_ops(g, config) or Counter()).values()), totals[g.name])
        for g, f in judged if not f.error and g.name in totals
    ]  # fmt: skip
    bad = [f"{name}: {ours} >= {theirs}" for name, ours, theirs in pairs if ours >= theirs]
    decode = next(((ours, theirs) for name, ours, theirs in pairs if "decode" in name), None)
    figure = f"{decode[0]} in decode" if decode else "no pair"
    limit = f"fewer than {decode[1]}" if decode else "a pair"
    return pinned("fewer-ops", source).judged(bool(pairs) and not bad, figure, limit, "; ".join(bad))


def _first(graph: Graph, role: str) -> str:
    """The anchor of the first layer in a cache or in a ring."""
    abi, cache = graph.abi, cache_of(role)
    layers = range(abi.cache_shapes[0][0])
    return f"{cache}.{next((layer for layer in layers if abi.role(cache, layer) == role), 0)}"


# ---- census


def _census(source: str, counts_as: str, parsed: Inspected, config: Config) -> Check:
    question = pinned("census", source)
    pins = [(graph, facts, census_pin(counts_as, graph, config)) for graph, facts in parsed]
    if all(pin is None for _, _, pin in pins):
        return question.skipped("no census is pinned for a model of this kind")
    bad = []
    for graph, facts, pin in pins:
        if pin is None:
            bad.append(f"{graph.name} has no pin")
            continue
        kinds = sorted(k for k in {*pin, *facts.ops} if _other_count(k, facts.ops.get(k, 0), pin.get(k, 0)))
        if kinds:
            words = ", ".join(f"{k} {facts.ops.get(k, 0)} instead of {pin.get(k, 0)}" for k in kinds)
            bad.append(f"{graph.name}: {words}")
    place = next((f.places["census"] for _, f in parsed if f.places.get("census")), "")
    return question.counted(len(pins) - len(bad), len(pins), "; ".join(bad), place, " graphs")


def _other_count(kind: str, found: int, pinned: int) -> bool:
    """Equal constants are written once, and of some shapes more of them are equal: there may be fewer."""
    return found > pinned if kind == "constant" else found != pinned
