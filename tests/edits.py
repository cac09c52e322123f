"""Edits of records, and comparisons of a record with its edited self."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from test_reports_sample import (
    _disagree,
    sample,
)

from hloracle.reports.compare.comparison import Comparison, compare
from hloracle.reports.facts import Record
from hloracle.reports.record import validate

EMITTED = "emitter/iree-cpu"


Edit = Callable[[Record], None]


def pair(edit: Edit, make: Callable[[], Record] = sample, valid: bool = False) -> Comparison:
    """A record against itself with one edit; `valid` holds that the edited one is a record."""
    base, head = make(), make()
    edit(head)
    if valid:
        validate(head)
    return compare(base, head)


def found(comparison: Comparison) -> list[tuple[str, str]]:
    """What matters: everything but the environment."""
    return [(c.kind, c.severity) for c in comparison.changes if c.severity != "note"]


def drop_check(id: str) -> Edit:
    def edit(record: Record) -> None:
        record["checks"] = [check for check in record["checks"] if check["id"] != id]

    return edit


def wrong_token(step: int = 5, near_tie: bool = True, cell: str = EMITTED) -> Edit:
    """One token that differs: a near-tie, or with the verdict that follows from it."""

    def edit(record: Record) -> None:
        _disagree(record, "chat@64", cell, (step,))
        record["tokens"]["chat@64"]["cells"][cell]["near_ties"] = int(near_tie)
        record["verdict"]["class"] = "near-tie" if near_tie else "emitter-fault"
        record["passed"] = near_tie

    return edit


def slower(factor: float = 1.15) -> Edit:
    def edit(record: Record) -> None:
        ours = record["speed"]["contenders"][0]
        ours["ms_per_token"] = [round(ms * factor, 4) for ms in ours["ms_per_token"]]

    return edit


def both(*edits: Edit) -> Edit:
    def edit(record: Record) -> None:
        for one in edits:
            one(record)

    return edit


def with_checks(record: Record) -> Record:
    """A check of the anchors beside the others of that cell, as a run has it."""
    record["checks"].append(record["checks"][2] | {"id": f"{EMITTED}.anchors"})
    return record


def classed(name: str, **fields: Any) -> Edit:
    def edit(record: Record) -> None:
        record["verdict"] |= {"class": name, "anchor": None, "operation": None, "confidence": None, **fields}
        record["passed"] = name in ("conforms", "near-tie")

    return edit


def records(edit: Edit) -> tuple[Record, Record]:
    base, head = sample(), sample()
    edit(head)
    return base, head


def logit_error(share: Any, prompt: str = "chat@64") -> Edit:
    def edit(record: Record) -> None:
        cell = record["tokens"][prompt]["cells"][EMITTED]
        cell["logit_error"] = share if isinstance(share, str) else share * cell["logit_limit"]
        if isinstance(share, str) or share > 1:
            classed("emitter-fault")(record)

    return edit


def floor(factor: float, index: int = 100) -> Edit:
    return lambda record: record["floors"][index].update(relative=record["floors"][index]["relative"] * factor)


def edited_graph(record: Record) -> None:
    """The emitter's rotation by two operations in place of one, in every graph."""
    for listing in record["listings"]:
        for scope in listing["scopes"] if listing["graph"].startswith("emitter") else []:
            if scope["anchor"].endswith("q_rope"):
                line = "%x = stablehlo.slice %l0_q_rope [0:1] : tensor<1x9x1x32xf32>"
                scope["ops"][1:2] = [
                    {"op": "slice", "type": "1x9x1x32xf32", "line": 200, "text": line},
                    {"op": "concatenate", "type": "1x9x2x32xf32", "line": 201,
                     "text": "%l0_q_rope_1 = stablehlo.concatenate %x, %x, dim = 2 : tensor<1x9x2x32xf32>"},
                ]  # fmt: skip
    for graph in record["graphs"]:
        if graph["source"] == "emitter":
            ops = {op: n for op, n in graph["ops"].items() if op != "reverse"}
            ops |= {"slice": 60, "concatenate": ops.get("concatenate", 0) + 60}
            graph |= {"ops": ops, "op_total": sum(ops.values()), "op_kinds": len(ops), "digest": "e" * 64}


def environment(key: str, value: Any) -> Edit:
    return lambda record: record["environment"].update({key: value})


def packages(**versions: str) -> Edit:
    return lambda record: record["environment"]["packages"].update(versions)


def setting(key: str, value: Any) -> Edit:
    return lambda record: record["settings"].update({key: value})
