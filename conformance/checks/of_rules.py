"""Checks of what a project states of its graphs, read before they run: conformance/project/ has the file's form."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hloracle.conformance.checks.census import NOT_PINNED, PINNED, mechanism_kinds, pinned
from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.graphs.facts import GraphFacts, Inspected, Spot, table_digest
from hloracle.conformance.project.file import COUNTED, Bound, Project, Rules, nearest
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.core.formula import names_in, whole
from hloracle.core.shown import quoted
from hloracle.reference.model.anchors import products
from hloracle.reference.model.config import Config
from hloracle.reference.model.expressions import is_expression, names_of, tensors_in
from hloracle.reference.model.rope import decode_tables, prefill_tables
from hloracle.reference.model.weights import parts_in, weight_shapes

MOST = 4  # findings of a graph that are told


@dataclass(frozen=True)
class Held:
    """A graph that is held to a table of rules."""

    graph: Graph
    facts: GraphFacts
    rules: Rules
    config: Config

    def limit(self, bound: Bound) -> int:
        """What a formula gives for this graph; it was evaluated before, see `refuse_misfits`."""
        return whole(bound.formula, names(self.graph, self.config))


def rule_checks(
    source: str, parsed: Inspected, config: Config, ours: Sequence[Rules], stated: Sequence[Rules]
) -> list[Check]:
    """A check for each kind of rule, about all graphs together.

    Args:
      parsed: the graphs that parse. ours: the rules of graphs with pinned counts; one that is about no graph fails.
      stated: by a project, which may have a graph of one phase judged alone; then those of another are skipped.
    """
    found: list[Check] = []
    for kind, rule in RULES.items():
        of = [r for r in (*ours, *stated) if rule.stated(r)]
        held = [Held(g, f, r, config) for g, f in parsed for r in of if r.phase in ("", g.abi.phase)]
        question = pinned(kind, source) if ours and kind in PINNED else Question(kind, rule.title, source)
        if any(r not in [h.rules for h in held] for r in ours if rule.stated(r)):
            found.append(question.judged(False, "no graph", "a graph"))
        elif held:
            found.append(rule.judge(question, held))
        elif of:
            phases = " or ".join(dict.fromkeys(filter(None, (r.phase for r in of))))
            found.append(question.skipped(f"no graph is judged that it is about{f': {phases}' if phases else ''}"))
        elif kind in PINNED and not ours:
            found.append(pinned(kind, source).skipped(NOT_PINNED))
    return found


# ---- what formulas may name


def names(graph: Graph, config: Config) -> dict[str, float]:
    """What the names in a formula stand for, of this graph: the config's keys, sizes, and what the architecture has."""
    known: dict[str, float] = {"num_experts": 0, "num_hidden_layers": config.num_hidden_layers}
    for part in filter(None, (config.latent, config.experts, config)):  # where two have a key, the config's own
        known |= {k: int(v) if isinstance(v, bool) else v for k, v in vars(part).items() if isinstance(v, int | float)}
    slots, tokens = _sizes(graph)
    return {
        **known, **names_of(config).axes, "S": slots, "T": tokens, "picks_token": int(graph.abi.head == "token"),
        "products": sum(products(config).values()), "weights": len(weight_shapes(config)),
        "mechanisms": len(mechanism_kinds(graph, config)),
    }  # fmt: skip


def _sizes(graph: Graph) -> tuple[int, int]:
    """Cache slots S, and tokens T of a call."""
    return graph.abi.capacity, graph.abi.bucket or graph.abi.batch


def refuse_misfits(project: Project, graphs: Iterable[Graph], config: Config) -> None:
    """Raises InputError that names the entry of a project's file with a formula that gives no count for these graphs.

    What is of a phase that no graph has is held to the names that it may use.
    """
    graphs = list(graphs)
    for rules in project.rules:
        of = [g for g in graphs if rules.phase in ("", g.abi.phase)]
        for bound in rules.bounds:
            for graph in of or graphs[:1]:
                _count(bound, names(graph, config), project.path, evaluated=graph in of)


def _count(bound: Bound, known: Mapping[str, float], path: Path, evaluated: bool) -> None:
    if unknown := sorted(names_in(bound.formula) - known.keys()):
        raise InputError(f"{bound.place}: {quoted(unknown[0])} is unknown", path, nearest(unknown[0], known))
    try:
        limit = whole(bound.formula, known) if evaluated else 0
    except (ValueError, TypeError, ArithmeticError) as error:
        raise InputError(f"{bound.place}: {error}", path, "write a formula that gives a whole number") from None
    if limit < 0:
        what = f"{bound.place}: {quoted(bound.formula)} is {limit} for this model"
        raise InputError(what, path, "write a formula that gives 0 or more")


# ---- what there may not be


def _ruled_out(of: Callable[[Held], Mapping[str, Spot]], question: Question, held: Sequence[Held]) -> Check:
    """Passes where there is nothing that a rule rules out. of: what there is of that, by name."""
    found = [(h, of(h)) for h in held]
    figure = ", ".join(dict.fromkeys(name for _, spots in found for name in spots)) or "none"
    words = [f"{h.graph.name}: {', '.join(map(str, list(spots.values())[:MOST]))}" for h, spots in found if spots]
    first = next(((h, spot) for h, spots in found for spot in spots.values()), None)
    return _at(question.judged(first is None, figure, "none", "; ".join(dict.fromkeys(words))), first)


def _at(check: Check, first: tuple[Held, Spot] | None) -> Check:
    """A check that fails, with the operation that breaks it."""
    if check.status == "passed" or first is None:
        return check
    held, spot = first
    return replace(check, anchor=spot.anchor, operation=f"{spot.operation} of {held.graph.name}")


def _operations(held: Held) -> dict[str, Spot]:
    allowed, forbidden = held.rules.allowed, held.rules.forbidden
    return {k: s for k, s in held.facts.first.items() if k in forbidden or (allowed is not None and k not in allowed)}


def _custom_calls(held: Held) -> dict[str, Spot]:
    return {f"@{t}": s for t, s in held.facts.calls.items() if t not in (held.rules.custom_calls or ())}


def _dtypes(held: Held) -> dict[str, Spot]:
    found = {d: s for d, s in held.facts.dtypes.items() if d not in (held.rules.dtypes or ())}
    return {d: replace(s, operation=f"{d} of {s.operation}") for d, s in found.items()}


def _constants(question: Question, held: Sequence[Held]) -> Check:
    over, told = [], []
    for h in held:
        bound, (size, spot) = h.rules.largest_constant, h.facts.constant or (0, Spot("none"))
        assert bound  # which is why it is held to this
        limit = h.limit(bound)
        told.append((size - limit, size, limit))
        if size > limit:
            over.append((h, spot, f"{h.graph.name}: {size} elements, more than {limit}: {spot}"))
    _, size, limit = max(told)
    words = "; ".join(words for *_, words in over)
    check = question.judged(not over, f"{size} elements", f"at most {limit} elements", words)
    return _at(check, over[0][:2] if over else None)


# ---- donations


def _aliasing(question: Question, held: Sequence[Held]) -> Check:
    pairs = [(h, *pair) for h in held for pair in h.rules.aliasing.items()]
    wrong = [(h, result, words) for h, result, argument in pairs if (words := _not_taken_over(h, result, argument))]
    words = "; ".join(words for *_, words in wrong)
    check = question.counted(len(pairs) - len(wrong), len(pairs), words, what=" results")
    return _at(check, next(((h, Spot(f"result {result}")) for h, result, _ in wrong), None))


def _not_taken_over(held: Held, result: str, argument: str) -> str:
    """What is wrong where a result does not take over the buffer of an argument; empty where it does."""
    where, facts = held.graph.name, held.facts
    for what, name, ports in (("result", result, facts.results), ("argument", argument, facts.arguments)):
        if not (known := [i for i, names in enumerate(ports) if name in names]):
            near = difflib.get_close_matches(name[:100], [names[0] for names in ports], 1)
            return f"{where} has no {what} {quoted(name)}" + (f", the nearest is {near[0]}" if near else "")
        if len(known) > 1:
            return f"{where} has several {what}s {quoted(name)}: give its number"
    (at,) = (i for i, names in enumerate(facts.results) if result in names)
    taken = facts.donated.get(at)
    if taken is not None and argument in facts.arguments[taken]:
        return ""
    instead = "nothing" if taken is None else f"argument {facts.arguments[taken][0]}"
    return f"{where}: result {result} takes over {instead}, not argument {argument}"


# ---- counts


def _number(
    what: str, of: Callable[[Held], int], place: Callable[[Held], tuple[str, str]], question: Question, held: Sequence[Held]
) -> Check:  # fmt: skip
    """One count, of all graphs. of: how many there are; place: the anchor that stands out, and words about it."""
    found = [(h, of(h), h.rules.counts[what], h.limit(h.rules.counts[what])) for h in held if what in h.rules.counts]
    bad = [(h, count) for h, count, bound, limit in found if not bound.holds(count, limit)]
    words = [f"{h.graph.name} has {count}{place(h)[1]}" for h, count in bad]
    at = next((anchor for h, _ in bad if (anchor := place(h)[0])), "")
    told = ", ".join(dict.fromkeys(bound.words(limit) for _, _, bound, limit in found))
    figure = ", ".join(map(str, sorted({count for _, count, _, _ in found})))
    return question.judged(not bad, figure, told, "; ".join(words), at)


def _kinds(held: Held) -> int:
    return len(held.facts.ops)


def _rarest(held: Held) -> tuple[str, str]:
    """The kinds that a graph could most easily do without."""
    ops = held.facts.ops
    few = [str(held.facts.first[kind]) for kind in ops if ops[kind] == min(ops.values())]
    return "", f"; the rarest are {', '.join(few)}" if few else ""


def _products(held: Held) -> int:
    return sum(held.facts.matmuls.values())


def _odd_product(held: Held) -> tuple[str, str]:
    """The first anchor that has not as many products as the architecture has there, of a graph that names anchors."""
    wanted, found = products(held.config), held.facts.matmuls
    odd = next((a for a, count in wanted.items() if found.get(a, 0) != count), "") if {*wanted} & {*found} else ""
    return odd, ""


def _weights(held: Held) -> int:
    axes = names_of(held.config)
    return len({
        part for w in held.graph.abi.weights
        for part in (tensors_in(w.name, axes) if is_expression(w.name) else parts_in(w.weight))
    })  # fmt: skip


def _nowhere(held: Held) -> tuple[str, str]:
    return "", ""


def _counts(question: Question, held: Sequence[Held]) -> Check:
    """Operations by kind, and in all."""
    found = [
        (h, what, bound, h.limit(bound)) for h in held for what, bound in h.rules.counts.items() if what in _plain(h)
    ]
    bad = [one for one in found if not one[2].holds(_ops(one[0], one[1]), one[3])]
    words = [_miscounted(*one) for one in bad]
    check = question.counted(len(found) - len(bad), len(found), "; ".join(words), what=" counts")
    first = next(((h, h.facts.first[what]) for h, what, _, limit in bad if limit == 0 and what in h.facts.first), None)
    odd = next((anchor for h, *_ in bad if (anchor := h.facts.places.get("census", ""))), "")
    return _at(check, first) if first else replace(check, anchor="" if check.status == "passed" else odd)


def _plain(held: Held) -> list[str]:
    """What `_counts` is asked for: not what has a check of its own."""
    return [what for what in held.rules.counts if what not in COUNTED or what == "total"]


def _ops(held: Held, what: str) -> int:
    return held.facts.total if what == "total" else held.facts.ops.get(what, 0)


def _miscounted(held: Held, what: str, bound: Bound, limit: int) -> str:
    count, spot = _ops(held, what), held.facts.first.get(what)
    of = "operations" if what == "total" else what
    at = f", the first at {spot}" if spot and count > limit else ""
    return f"{held.graph.name} has {count} {of} instead of {bound.words(limit)}{at}"


# ---- tables


def _tables(question: Question, held: Sequence[Held]) -> Check:
    """Tables of numbers in a graph are the RoPE tables, bit for bit: a rounding more is too little to see in the values."""
    bad, places = [], []
    for one in held:
        abi = one.graph.abi
        positions = abi.bucket if abi.phase == "prefill" else abi.capacity
        made = decode_tables if abi.phase == "decode" else prefill_tables
        tables = [made(rope, positions) for rope in one.config.ropes]
        right = {table_digest(values) for t in tables for values in (t.cos, t.sin)}
        if set(one.facts.tables) != right:
            bad.append(f"{one.graph.name} has {'another table' if one.facts.tables else 'no table'}")
            places.append(one.facts.places.get("tables", ""))
    return question.counted(len(held) - len(bad), len(held), "; ".join(bad), next(iter(places), ""), " graphs")


@dataclass(frozen=True)
class Rule:
    """A kind of check. stated: whether a table of rules asks for it. judge: its answer about graphs that are held to it."""

    title: str
    stated: Callable[[Rules], object]
    judge: Callable[[Question, Sequence[Held]], Check]


def _counted(what: str) -> Callable[[Rules], object]:
    return lambda rules: what in rules.counts


RULES: dict[str, Rule] = {
    "matmuls": Rule(
        "products are as many as the project states", _counted("products"),
        partial(_number, "products", _products, _odd_product),
    ),
    "weights": Rule(
        "weights are as many as the project states", _counted("weights"), partial(_number, "weights", _weights, _nowhere)
    ),
    "op-kinds": Rule(
        "kinds of operations are as many as the project states", _counted("kinds"),
        partial(_number, "kinds", _kinds, _rarest),
    ),
    "tables": Rule(PINNED["tables"], lambda rules: rules.tables, _tables),
    "operations": Rule(
        "no operation of a kind that the project rules out",
        lambda rules: rules.allowed is not None or rules.forbidden, partial(_ruled_out, _operations),
    ),
    "custom-calls": Rule(
        "no custom_call of a target that the project does not name",
        lambda rules: rules.custom_calls is not None, partial(_ruled_out, _custom_calls),
    ),
    "dtypes": Rule(
        "no value of a dtype that the project does not name", lambda rules: rules.dtypes is not None,
        partial(_ruled_out, _dtypes),
    ),
    "constants": Rule(
        "constants are no larger than the project states", lambda rules: rules.largest_constant, _constants
    ),
    "aliasing": Rule("results take over the arguments that the project states", lambda rules: rules.aliasing, _aliasing),
    "counts": Rule(
        "operations are as many as the project states",
        lambda rules: any(what not in COUNTED or what == "total" for what in rules.counts), _counts,
    ),
}  # fmt: skip
