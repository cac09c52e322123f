"""Two records' graphs: operations by kind and by scope, figures, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hloracle.core.record import Graph, Listing, Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, names
from hloracle.reports.compare.texts import TextDiff, compare_texts
from hloracle.reports.facts import noun

Figure = Literal["op_total", "op_kinds", "weights", "flops", "bytes", "text_bytes"]
FIGURES: Final[dict[Figure, str]] = {
    "op_total": "operations",
    "op_kinds": "kinds",
    "weights": "weights",
    "flops": "flops",
    "bytes": "bytes moved",
    "text_bytes": "text",
}


@dataclass(frozen=True)
class GraphDiff:
    """One graph that is in both records and is not the same.

    Args:
      ops: operation -> how many there were and are, where that differs.
      scopes: scope -> the same for its operations.
      figures: of FIGURES, those that differ.
      digest: whether the text differs.
    """

    id: str
    source: str
    phase: str
    ops: Mapping[str, tuple[int, int]]
    scopes: Mapping[str, Mapping[str, tuple[int, int]]]
    figures: Mapping[Figure, tuple[int, int]]
    digest: bool
    text: TextDiff | None

    @property
    def places(self) -> tuple[str, ...]:
        """The scopes that changed; those of the text where it was compared, for it tells more."""
        listed = list(dict.fromkeys(scope.scope for scope in self.text.scopes)) if self.text else []
        return tuple(listed or self.scopes)

    @property
    def what(self) -> str:
        """What kind of change it is, in words."""
        if self.places:
            return f"changed in {text.plural(len(self.places), 'scope')}"
        if self.ops or set(self.figures) - {"text_bytes"}:
            return "changed"
        if self.text is None:
            return "has another text; its operations are not listed"
        if self.text.renamed:
            return "has another text: of the listed operations only names of values differ"
        return "has another text, in what is not listed"

    @property
    def recounted(self) -> bool:
        """Whether the graph is the same, and another version of hloracle counts its arithmetic and traffic otherwise."""
        texts = bool(self.text and self.text.scopes)
        return not self.digest and not (self.ops or self.scopes or texts or set(self.figures) - {"flops", "bytes"})


@dataclass(frozen=True)
class Graphs:
    """The ids of graphs that came and went, and of the `compared` ones, which are in both records, those that changed."""

    compared: int
    gone: tuple[str, ...]
    new: tuple[str, ...]
    changed: tuple[GraphDiff, ...]
    equal_texts: int  # of `compared`, those whose digests are equal
    recounted: tuple[str, ...]  # ids of those that are the same and have other figures


def compare_graphs(base: Record, head: Record) -> Graphs:
    """Graphs are the same if they have the same id."""
    before = {graph["id"]: graph for graph in base["graphs"]}
    after = {graph["id"]: graph for graph in head["graphs"]}
    listings = [{listing["graph"]: listing for listing in record["listings"]} for record in (base, head)]
    both = [id for id in after if id in before]
    changed: list[GraphDiff] = []
    recounted: list[GraphDiff] = []
    for id in both:
        pair = [found.get(id) for found in listings]
        diff = _graph(before[id], after[id], *pair)
        if diff.ops or diff.scopes or diff.figures or diff.digest or (diff.text and diff.text.scopes):
            (recounted if diff.recounted else changed).append(diff)
    return Graphs(
        len(both),
        tuple(id for id in before if id not in after),
        tuple(id for id in after if id not in before),
        tuple(changed),
        sum(before[id]["digest"] == after[id]["digest"] for id in both),
        tuple(diff.id for diff in recounted),
    )


def _graph(before: Graph, after: Graph, base: Listing | None, head: Listing | None) -> GraphDiff:
    scopes = {
        scope: differences
        for scope in dict.fromkeys([*before["scopes"], *after["scopes"]])
        if (differences := _counts(before["scopes"].get(scope, {}), after["scopes"].get(scope, {})))
    }
    # Arithmetic that was counted in one of the two alone is no change of the graph.
    figures: dict[Figure, tuple[int, int]] = {
        key: (old, new) for key in FIGURES
        if (old := before[key]) is not None and (new := after[key]) is not None and old != new
    }  # fmt: skip
    compared = compare_texts(base, head) if base and head else None
    return GraphDiff(
        after["id"], after["source"], after["phase"], _counts(before["ops"], after["ops"]), scopes, figures,
        before["digest"] != after["digest"], compared,
    )  # fmt: skip


def _counts(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    pairs = {op: (before.get(op, 0), after.get(op, 0)) for op in dict.fromkeys([*before, *after])}
    return {op: pair for op, pair in pairs.items() if pair[0] != pair[1]}


def graph_changes(base: Record, head: Record, graphs: Graphs) -> Iterator[Change]:
    """A change for each source: one edit of an emitter changes all of its graphs."""
    buckets = {graph["id"]: graph["bucket"] for graph in base["graphs"]}
    for id in graphs.gone:
        asked = buckets[id] is None or buckets[id] in head["settings"]["buckets"]
        words = f"the graph {name(id)} is no longer in the record"
        why = "" if asked else "its bucket was not asked for"
        yield Change("graph", "regression" if asked else "note", id, words, "there", "not there", why)
    if graphs.new:
        yield Change("graph", "changed", names(graphs.new, 1), f"new: {names(graphs.new)}", "not there", "there")
    if graphs.recounted:
        words = f"{names(graphs.recounted)} {'has' if len(graphs.recounted) == 1 else 'have'} other figures of the same text"
        yield Change("graph", "note", "figures", words, detail="arithmetic and traffic were counted otherwise")
    for source in head["sources"]:
        changed = [graph for graph in graphs.changed if graph.source == source["id"]]
        if not changed:
            continue
        # Where a text was compared it knows better than a census, and says the same of every graph that changed alike.
        listed = [graph for graph in changed if graph.text and graph.text.scopes] or changed
        places = tuple(dict.fromkeys(place for graph in listed for place in graph.places))
        telling = max(changed, key=lambda graph: (bool(graph.places), len(graph.ops), graph.text is not None))
        what = f"changed in {text.plural(len(places), 'scope')}" if places else telling.what
        words = f"the {name(noun(source['title']), 60)} {what}"
        why = "; ".join(filter(None, [names([p or "outside of every scope" for p in places]), _sizes(telling)]))
        yield Change("graph", "changed", source["id"], words, *_operations(telling, base, head), why)


def _operations(graph: GraphDiff, base: Record, head: Record) -> tuple[str, str]:
    before, after = (next(g["op_total"] for g in record["graphs"] if g["id"] == graph.id) for record in (base, head))
    return text.plural(before, "operation"), text.plural(after, "operation")


def _sizes(graph: GraphDiff) -> str:
    """By how much the operations of a graph differ, the most numerous first."""
    deltas = sorted(graph.ops.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:4]
    words = [f"{name(op, 40)} {text.signed(after - before)}" for op, (before, after) in deltas]
    more = [f"{len(graph.ops) - 4} more kinds"] if len(graph.ops) > 4 else []
    return f"{name(graph.id)}: {', '.join(words + more)}" if words else ""
