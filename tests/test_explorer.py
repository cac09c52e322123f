"""The graphs for Model Explorer: its form, and the errors at the right nodes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from records import ALL, conforms, failing

from hloracle.cli import main as cli
from hloracle.reports.explorer import MOST, collection, errors
from hloracle.reports.facts import limits_of
from hloracle.reports.record import to_json


@pytest.mark.parametrize("name", ALL)
def test_ids_are_one_and_edges_lead_to_nodes_that_are_there(name: str) -> None:
    record = ALL[name]()
    graphs = collection(record)
    assert [graph["id"] for graph in graphs] == [listing["graph"] for listing in record["listings"]]
    for graph in graphs:
        ids = [node["id"] for node in graph["nodes"]]
        assert len(ids) == len(set(ids))
        for node in graph["nodes"]:
            assert all(edge["sourceNodeId"] in ids for edge in node["incomingEdges"])
            assert all(isinstance(a["key"], str) and isinstance(a["value"], str) for a in node["attrs"])
    for graph_id, data in errors(record).items():
        nodes = next({n["id"] for n in graph["nodes"]} for graph in graphs if graph["id"] == graph_id)
        assert set(data["results"]) <= nodes
        json.dumps(data, allow_nan=False)


def test_scopes_are_namespaces_and_operands_edges() -> None:
    graph = next(g for g in collection(conforms()) if g["id"] == "emitter/decode/logits")
    inside = [node for node in graph["nodes"] if node["namespace"] == "layers/0/self_attn/q_rope"]
    assert {node["label"] for node in inside} & {"multiply", "add", "subtract"}
    assert any(node["incomingEdges"] for node in inside)
    assert any(a["key"] == "alike in layers" for node in inside for a in node["attrs"])


def test_a_value_of_several_is_an_edge_too() -> None:
    record = conforms()
    scope = next(s for x in record["listings"] for s in x["scopes"] if s["anchor"] == "layers.0.self_attn.q_rope")
    made, used = scope["ops"][:2]
    made["text"] = '%m:2 = "stablehlo.reduce"(%x, %y) ({'
    used["text"] = "%sum = stablehlo.add %m#1, %m#0 : tensor<f32>"
    nodes = {node["id"]: node for graph in collection(record)[:1] for node in graph["nodes"]}
    assert [edge["sourceNodeId"] for edge in nodes["%sum"]["incomingEdges"]] == ["%m"]


def test_errors_are_those_of_the_graph() -> None:
    """The graph that is wrong is dark where the error is made; of no other one does the record say anything."""
    record = failing()
    found = {graph: data["results"] for graph, data in errors(record).items()}
    anchor, phase = record["localization"]["anchor"], record["localization"]["phase"]
    name = next(id for id in found if id.startswith(f"emitter/{phase}"))
    dark = {id for id, result in found.pop(name).items() if result["value"] > 1}
    listing = next(listing for listing in record["listings"] if listing["graph"] == name)
    (scope,) = (scope for scope in listing["scopes"] if scope["anchor"] == anchor)
    assert dark & {op["text"].partition(" = ")[0] for op in scope["ops"]}
    assert not any(found.values())


def test_errors_of_a_right_run_are_those_of_the_source_and_the_phase() -> None:
    record, limits = conforms(), limits_of(conforms())
    (matrix, *_) = record["anchors"]
    wanted = {
        f"{source}/{phase}": share
        for share, (source, phase) in enumerate(itertools.product(("emitter", "oracle"), ("decode",)), 1)
    }
    record["anchors"] = [
        {**matrix, "source": id.partition("/")[0], "phase": id.partition("/")[2], "errors": [
            [share * limits[anchor]] * len(matrix["positions"]) for anchor in matrix["anchors"]
        ]} for id, share in wanted.items()
    ]  # fmt: skip
    found = {graph["id"]: errors(record)[graph["id"]]["results"] for graph in collection(record)}
    for id, share in wanted.items():
        (results,) = (results for graph, results in found.items() if graph.startswith(id))
        assert results
        assert [result["value"] for result in results.values()] == pytest.approx([share] * len(results))


def test_an_error_without_a_number_is_the_worst() -> None:
    record = failing()
    for error in record["localization"]["errors"]:
        error["local"] = "NaN"
    assert {r["value"] for data in errors(record).values() for r in data["results"].values()} == {MOST}


def test_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text(to_json(conforms()))
    assert cli.invoke(["explorer", str(tmp_path / "report.json"), "-o", str(tmp_path / "x")]) == 0
    written = capfd.readouterr().out.split()
    assert written == [str(tmp_path / "x" / "graphs.json"), str(tmp_path / "x" / "errors.json")]
    assert isinstance(json.loads((tmp_path / "x" / "graphs.json").read_text()), list)
    assert cli.invoke(["explorer", str(tmp_path / "none.json"), "-o", str(tmp_path / "y")]) == 2
    assert "no such file" in capfd.readouterr().err
    assert not (tmp_path / "y").exists()
