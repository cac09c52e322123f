"""Base against head: graphs by their operations and figures."""

from __future__ import annotations

import pytest
from edits import (
    edited_graph,
    found,
    pair,
    records,
)
from test_reports_sample import (
    sample,
)

from hloracle.reports.compare.comparison import compare
from hloracle.reports.facts import Record


def test_a_graph_that_changed() -> None:
    comparison = pair(edited_graph)
    (change,) = comparison.changes
    assert (change.kind, change.severity, change.subject) == ("graph", "changed", "emitter")
    assert change.detail.startswith("layers.*.self_attn.q_rope; ")
    decode = next(graph for graph in comparison.graphs.changed if graph.id == "emitter/decode/logits")
    assert decode.ops == {"reverse": (60, 0), "slice": (0, 60), "concatenate": (0, 60)}
    assert decode.what == "changed in 1 scope"
    assert decode.text is not None
    (scope,) = decode.text.scopes
    assert (scope.scope, scope.layers, scope.gone, scope.new) == ("layers.*.self_attn.q_rope", tuple(range(30)), 1, 2)
    assert [row.mark for row in scope.rows] == ["same", "gone", "new", "new", *["same"] * 4]


@pytest.mark.parametrize("key", ["weights", "flops", "bytes"])
def test_a_figure_of_a_graph(key: str) -> None:
    comparison = pair(lambda record: record["graphs"][0].update({key: 5}, digest="f" * 64))
    (change,) = comparison.changes
    assert (change.subject, change.words) == ("oracle", "the oracle's graph changed")


@pytest.mark.parametrize("key", ["flops", "bytes"])
def test_a_graph_that_is_only_counted_otherwise(key: str) -> None:
    comparison = pair(lambda record: record["graphs"][0].update({key: 5}))
    (change,) = comparison.changes
    assert (change.severity, change.words) == ("note", "oracle/decode/logits has other figures of the same text")
    assert comparison.graphs.changed == ()
    assert comparison.title == "Nothing changed"
    (change,) = pair(lambda record: record["graphs"][0].update({key: 5}, weights=5)).changes
    assert (change.severity, change.words) == ("changed", "the oracle's graph changed")


def test_an_older_record_has_no_flops_and_no_digest() -> None:
    base = sample()
    for graph in base["graphs"]:
        graph |= {"flops": None, "bytes": None, "digest": ""}
    base |= {"listings": [], "block": None}
    base["speed"] |= {"reason": "the record is of hloracle-report/2", "contenders": []}
    comparison = compare(base, sample())
    assert comparison.changes == ()
    assert comparison.unjudged == (
        "speed: the base has no times (the record is of hloracle-report/2)",
        "the texts of 11 graphs: not in both records",
    )
    assert comparison.sentence.startswith("1,440 tokens and 14 checks are the same in both runs; ")
    assert comparison.graphs.equal_texts == 0


def test_a_text_that_differs_in_what_is_not_listed() -> None:
    comparison = pair(lambda record: record["graphs"][1].update(digest="f" * 64))
    (change,) = comparison.changes
    assert change.words == "the emitted graph has another text, in what is not listed"
    comparison = pair(lambda record: record["graphs"][2].update(digest="f" * 64))
    assert comparison.changes[0].words == "the emitted graph has another text; its operations are not listed"


def test_graphs_that_come_and_go() -> None:
    def drop(record: Record) -> None:
        record["graphs"] = [graph for graph in record["graphs"] if graph["id"] != "oracle/prefill-32/logits"]

    base, head = records(drop)
    assert found(compare(base, head)) == [("graph", "regression")]
    assert found(compare(head, base)) == [("graph", "changed")]
    head["settings"]["buckets"] = [64, 128, 256]
    comparison = compare(base, head)
    assert found(comparison) == [("settings", "changed")]
    assert [c.kind for c in comparison.of("note")] == ["graph"]
