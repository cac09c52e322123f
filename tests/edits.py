"""Edits of records, and comparisons of a record with its edited self."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from records import JUDGED, Make, Record, check_of, conforms, disagree, prompt_of

from hloracle.reports.compare.comparison import Comparison, compare
from hloracle.reports.record import validate

Edit = Callable[[Record], object]


def pair(edit: Edit, make: Make = conforms, valid: bool = False) -> Comparison:
    """A record against itself with one edit; `valid` holds that the edited one is a record."""
    base, head = records(edit, make)
    if valid:
        validate(head)
    return compare(base, head)


def records(edit: Edit, make: Make = conforms) -> tuple[Record, Record]:
    """A record, and a copy with one edit."""
    base, head = make(), make()
    edit(head)
    return base, head


def found(comparison: Comparison) -> list[tuple[str, str]]:
    """What matters: everything but the environment."""
    return [(c.kind, c.severity) for c in comparison.changes if c.severity != "note"]


def both(*edits: Edit) -> Edit:
    """One after the other."""

    def edit(record: Record) -> None:
        for one in edits:
            one(record)

    return edit


def classed(name: str, **fields: Any) -> Edit:
    """Another class of verdict, without a place."""

    def edit(record: Record) -> None:
        record["verdict"] |= {"class": name, "anchor": None, "operation": None, "confidence": None, **fields}
        record["passed"] = name in ("conforms", "near-tie")

    return edit


def drop_check(kind: str, about: str = JUDGED) -> Edit:
    """A check that is gone."""
    return lambda record: record["checks"].remove(check_of(record, kind, about))


def wrong_token(near_tie: bool = True, configuration: str = JUDGED, steps: tuple[int, ...] = (1,)) -> Edit:
    """Tokens that differ: near ties, or with the verdict that follows from them."""

    def edit(record: Record) -> None:
        disagree(record, configuration, steps, len(steps) if near_tie else 0)
        record["verdict"]["class"] = "near-tie" if near_tie else "emitter-fault"
        record["passed"] = near_tie

    return edit


def slower(factor: float = 1.15) -> Edit:
    """Every round of the production graph takes so many times as long."""

    def edit(record: Record) -> None:
        ours, peer = record["speed"]["contenders"][:2]
        for contender in record["speed"]["contenders"]:
            contender["ms_per_token"] = [10.0 + 0.01 * i for i in range(5)]
        ours["ms_per_token"] = [ms * factor for ms in peer["ms_per_token"]]

    return edit


def logit_error(share: float | str, record: Record | None = None) -> Edit:
    """The judged configuration's logit error as a share of its limit, or a float that JSON has no word for."""

    def edit(record: Record) -> None:
        answer = record["tokens"][prompt_of(record)["id"]]["configurations"][JUDGED]
        answer["logit_error"] = share if isinstance(share, str) else share * answer["logit_limit"]
        if isinstance(share, str) or share > 1:
            classed("emitter-fault")(record)

    return edit


def floor(factor: float, index: int = 10) -> Edit:
    """A measured floor that is so many times as large."""
    return lambda record: record["floors"][index].update(relative=record["floors"][index]["relative"] * factor)


def edited_graph(record: Record) -> None:
    """One operation more of the judged graphs' first listed scope, in every graph."""
    judged = {source["id"] for source in record["sources"] if source["judged"]}
    graphs = {graph["id"]: graph for graph in record["graphs"] if graph["source"] in judged}
    for listing in record["listings"]:
        if listing["graph"] in graphs:
            scope = listing["scopes"][1]
            text = "%new = stablehlo.slice %old [0:1] : (tensor<1x9xf32>) -> tensor<1x1xf32>"
            scope["ops"].insert(0, {"op": "slice", "type": "1x1xf32", "line": 20, "text": text})
    for graph in graphs.values():
        ops = {**graph["ops"], "slice": graph["ops"].get("slice", 0) + 1}
        graph |= {"ops": ops, "op_total": sum(ops.values()), "op_kinds": len(ops), "digest": "e" * 64}


def environment(key: str, value: Any) -> Edit:
    """Another fact of the machine or the run."""
    return lambda record: record["environment"].update({key: value})


def packages(**versions: str) -> Edit:
    """Other versions of packages."""
    return lambda record: record["environment"]["packages"].update(versions)


def setting(key: str, value: Any) -> Edit:
    """Another setting."""
    return lambda record: record["settings"].update({key: value})
