"""The graphs on the page: side by side, one layer as a drawing, speed and the run's timeline."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_text import Page
from test_reports_sample import SAMPLES, _block, empty_sample, failing_sample, sample

from hloracle.core.errors import InputError
from hloracle.reports.facts import Record
from hloracle.reports.page import charts, graphs, html
from hloracle.reports.page.align import align
from hloracle.reports.page.blocks import HEIGHT, WIDTH, drawing, label_of
from hloracle.reports.record import EARLIER, load, to_json, validate

OPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=9)


def ops(pairs: list[tuple[str, str]]) -> list[Record]:
    return [{"op": op, "type": type_, "line": None, "text": ""} for op, type_ in pairs]


# ---- the alignment


@settings(deadline=None)
@given(OPS, OPS)
def test_alignment_leaves_nothing_out_and_turns_nothing_round(a: Any, b: Any) -> None:
    left, right = ops(a), ops(b)
    pairs = align(left, right)
    assert [p.left for p in pairs if p.left is not None] == list(range(len(left)))
    assert [p.right for p in pairs if p.right is not None] == list(range(len(right)))
    for p in pairs:
        if p.left is None or p.right is None:
            assert p.state == ("right" if p.left is None else "left")
        else:
            x, y = left[p.left], right[p.right]
            assert x["op"] == y["op"]
            assert p.state == ("same" if x["type"] == y["type"] else "changed")
    assert [p.state for p in align(left, left)] == ["same"] * len(left)


def test_alignment_pairs_what_is_alike_rather_than_what_comes_first() -> None:
    pairs = align(ops([("add", "f"), ("mul", "f"), ("add", "g")]), ops([("add", "g")]))
    assert [(p.state, p.left, p.right) for p in pairs] == [("left", 0, None), ("left", 1, None), ("same", 2, 0)]
    assert [p.state for p in align(ops([("add", "f")]), ops([("add", "g")]))] == ["changed"]
    assert [p.state for p in align(ops([("add", "f")]), ops([("mul", "f")]))] == ["left", "right"]


# ---- side by side


def test_one_click_leads_to_the_wrong_operation_in_both_graphs() -> None:
    page = Page(html.render(failing_sample()))
    assert page.attributes("id").count("wrong-op") == 1
    assert page.attributes("href").count("#wrong-op") == 1
    assert len(page.attributes("data-wrong")) == 2
    (phase, other) = graphs.side_by_side(failing_sample())
    assert (phase["phase"], phase["wrong"], other["wrong"]) == ("prefill", True, False)
    (scope,) = [scope for scope in phase["scopes"] if scope["here"]]
    (row,) = [row for row in scope["rows"] if row["wrong"]]
    assert scope["anchor"] == "layers.3.self_attn.q_rope"
    assert (row["sides"][0]["op"], row["sides"][1]["op"]) == ("subtract", "subtract")
    assert row["sides"][1]["line"] == 214
    assert row["words"] == ["its counterpart", "first wrong"]


def test_an_operation_that_the_oracle_has_not_leads_to_what_the_oracle_has() -> None:
    record = failing_sample()
    # `reverse` is the emitter's alone.
    listing = next(x for x in record["listings"] if x["graph"] == "emitter/prefill-64/logits")
    scope = next(s for s in listing["scopes"] if s["anchor"] == "layers.3.self_attn.q_rope")
    line = next(op["line"] for op in scope["ops"] if op["op"] == "reverse")
    record["localization"]["operation"] |= {"line": line}
    (phase, _) = graphs.side_by_side(record)
    (scope,) = [scope for scope in phase["scopes"] if scope["here"]]
    marks = [(row["sides"][i]["op"], row["words"][i]) for row in scope["rows"] for i in (0, 1) if row["marks"][i]]
    assert ("reverse", "first wrong") in marks
    assert ("concatenate", "has no counterpart; this ends the scope") in marks
    assert len(marks) == 2


@pytest.mark.parametrize("change", ["line", "graph", "operation"])
def test_without_its_line_the_scope_stands_for_the_operation(change: str) -> None:
    record = failing_sample()
    if change == "operation":
        record["localization"]["operation"] = None
    else:
        record["localization"]["operation"] |= {"line": 99_999} if change == "line" else {"graph": "another_graph"}
    page = Page(html.render(record))
    assert page.attributes("id").count("wrong-op") == 1
    assert len(page.attributes("data-wrong")) == 1


def test_no_link_leads_to_a_place_that_is_not_there() -> None:
    for change in ({"listings": []}, {"localization": None}):
        page = Page(html.render(failing_sample() | change))
        assert "#wrong-op" not in page.attributes("href")
        assert "wrong-op" not in page.attributes("id")
    page = Page(html.render(sample()))
    assert "#wrong-op" not in page.attributes("href")


def test_layers_that_only_one_graph_takes_for_alike() -> None:
    record = sample()
    listing = next(x for x in record["listings"] if x["graph"] == "emitter/decode/logits")
    scope = next(s for s in listing["scopes"] if s["anchor"] == "layers.0.mlp.act")
    other = copy.deepcopy(scope) | {"anchor": "layers.7.mlp.act", "layers": [7]}
    other["ops"] = other["ops"][:1]
    scope["layers"] = [n for n in scope["layers"] if n != 7]
    listing["scopes"].insert(listing["scopes"].index(scope) + 1, other)
    validate(record)
    decode = graphs.side_by_side(record)[0]
    found = {scope["anchor"]: scope for scope in decode["scopes"]}
    assert (found["layers.0.mlp.act"]["layers"], found["layers.7.mlp.act"]["layers"]) == (29, 1)
    # What the oracle has in layer 7 is what it has in all.
    assert found["layers.7.mlp.act"]["sides"][0]["anchor"] == "layers.0.mlp.act"
    names = list(found)
    assert names.index("layers.7.mlp.act") == names.index("layers.0.mlp.act") + 1


def test_a_graph_without_a_peer_is_shown_all_the_same() -> None:
    record = sample()
    record["listings"] = [x for x in record["listings"] if x["graph"].startswith("emitter")]
    for phase in graphs.side_by_side(record):
        assert phase["sides"][0] is None
        assert all(row["state"] == "right" for scope in phase["scopes"] for row in scope["rows"])
    Page(html.render(record))


def test_a_file_is_called_by_its_name() -> None:
    record = failing_sample()
    for part in record["cells"] + record["graphs"]:
        part["source"] = part["source"].replace("emitter", "file")
    page = Page(html.render(record)).text
    assert "file’s graph’s alone" in page
    assert "Read the file beside the oracle’s graph" in page
    assert "emitted graph’s" not in page
    assert "emitted graph alone" not in page
    assert "Read the emitter beside the oracle" in Page(html.render(failing_sample())).text


def test_what_was_not_counted_is_a_dash() -> None:
    record = sample()
    record["listings"][0]["scopes"][0] |= {"flops": None, "bytes": None}
    validate(record)
    before, after = (html.render(r).count('<span class="o">–</span>') for r in (sample(), record))
    assert after == before + 2


@pytest.mark.parametrize("make", SAMPLES)
def test_every_listed_operation_is_on_the_page(make: Any) -> None:
    record = make()
    shown = graphs.side_by_side(record)
    seen = {
        side["graph"]: [
            op["line"] for s in p["scopes"] if s["sides"][i] for row in s["rows"] if (op := row["sides"][i])
        ]
        for p in shown
        for i, side in enumerate(p["sides"])
        if side
    }
    for listing in record["listings"]:
        lines = Counter(op["line"] for scope in listing["scopes"] for op in scope["ops"])
        assert lines <= Counter(seen[listing["graph"]])


# ---- one layer as a drawing


def random_block(n: int, seed: int) -> Record:
    """Parts that each read one to three of those before."""
    edges = {(b - 1 - (seed * b * k) % min(b, 4), b) for b in range(1, n) for k in range(1, 2 + (seed + b) % 3)}
    nodes = [{"anchor": f"layers.0.part{i}", "ops": {"add": 1}, "weights": []} for i in range(n)]
    return {"graph": "g", "layer": 0, "nodes": nodes, "edges": [list(edge) for edge in sorted(edges)]}


@pytest.mark.parametrize("block", [_block(0), *(random_block(n, seed) for n in (1, 2, 9, 40) for seed in (1, 3, 8))])
def test_parts_stand_apart_and_below_what_they_read(block: Record) -> None:
    found = drawing(block)
    places = [(entry["x"], entry["y"]) for entry in found["nodes"]]
    for (x1, y1), (x2, y2) in itertools.combinations(places, 2):
        assert abs(x1 - x2) >= WIDTH or abs(y1 - y2) >= HEIGHT
    for a, b in block["edges"]:
        assert places[a][1] + HEIGHT < places[b][1]
    assert all(x >= 0 and x + WIDTH <= found["width"] and y + HEIGHT <= found["height"] for x, y in places)
    assert len(found["paths"]) == len(block["edges"])


def test_labels() -> None:
    def label(anchor: str, **ops: int) -> str:
        return label_of({"anchor": anchor, "ops": ops, "weights": []})

    assert label("layers.3.self_attn.q_rope") == "self_attn.q_rope"
    assert label("k_cache.3") == "k_cache"
    assert label("layers.2") == "layer 2"
    assert label("embed_tokens") == "embed_tokens"
    assert label("", add=1, multiply=2) == "add, multiply ×2"
    assert label("") == "?"


def test_the_wrong_part_is_marked_and_dark_where_the_error_is_made() -> None:
    block = graphs.block(failing_sample())
    assert block is not None
    assert [entry["node"]["anchor"] for entry in block["nodes"] if entry["wrong"]] == ["layers.3.self_attn.q_rope"]
    over = [entry["node"]["anchor"] for entry in block["nodes"] if entry["share"] is not None and entry["share"] > 1]
    assert over == ["layers.3.self_attn.q_rope"]
    passing = graphs.block(sample())
    assert passing is not None
    assert not passing["wrong"]
    assert all(entry["share"] is None or entry["share"] <= 1 for entry in passing["nodes"])
    assert passing["measured"]
    assert graphs.block(empty_sample()) is None


# ---- speed and time


def test_speed_is_compared_round_by_round() -> None:
    record = sample()
    record["speed"]["contenders"] = [
        {"id": "a", "title": "ours", "ms_per_token": [10.0, 20.0, 40.0], "resident_bytes": 100},
        {"id": "b", "title": "peer", "ms_per_token": [20.0, 30.0, 80.0], "resident_bytes": None},
    ]
    speed = charts.speed(record)
    assert speed is not None
    ours, peer = speed["rows"]
    assert (ours["per_second"], ours["ratio"]) == (50.0, (1.0, 1.0, 1.0))
    assert peer["ratio"] == (1.5, 2.0, 2.0)
    assert (ours["width"], ours["low"], ours["high"]) == ("50", "25", "100")
    assert (ours["memory_width"], peer["memory_width"]) == ("100", "")
    assert charts.speed(failing_sample()) is None
    assert "the graphs are wrong" in Page(html.render(failing_sample())).text


def test_what_is_done_beside_each_other_has_lanes_of_its_own() -> None:
    parts = [
        {"name": name, "begin": begin, "seconds": seconds, "reused": False}
        for name, begin, seconds in [("a", 10.0, 20.0), ("b", 10.0, 5.0), ("c", 15.0, 10.0), ("d", 30.0, 10.0)]
    ]
    timing = {"stage": "compile", "begin": 30.0, "seconds": 10.0, "reused": False, "detail": "", "parts": parts}
    first = {"stage": "truth", "begin": 0.0, "seconds": 30.0, "reused": True, "detail": "", "parts": []}
    found = charts.timeline({"timings": [first, timing]})
    assert found["whole"] == 40.0
    assert [row["x"] for row in found["rows"]] == ["0", "75"]
    lanes = {part["part"]["name"]: part["y"] for part in found["rows"][1]["parts"]}
    assert lanes["a"] == lanes["d"] != lanes["b"] == lanes["c"]
    assert [t["label"] for t in found["ticks"]] == ["0 s", "10 s", "20 s", "30 s", "40 s"]
    assert charts.timeline({"timings": []})["rows"] == []


@pytest.mark.parametrize("whole", [0.05, 0.7, 9.0, 61.0, 340.0, 7201.0, 90_000.0])
def test_time_has_few_and_round_marks(whole: float) -> None:
    timing = {"stage": "a", "begin": 0.0, "seconds": whole, "reused": False, "detail": "", "parts": []}
    ticks = charts.timeline({"timings": [timing]})["ticks"]
    assert 1 <= len(ticks) <= 7
    assert all(0 <= float(t["x"]) <= 100 for t in ticks)


# ---- records of the version before


def older(record: Record) -> Record:
    """What version 2 would have written."""
    record = json.loads(to_json(record))
    record["schema"] = "hloracle-report/2"
    record["model"]["model_type"] = record["model"].pop("architecture")
    for key in ("listings", "block", "speed", "families"):
        del record[key]
    for graph in record["graphs"]:
        for key in ("flops", "bytes", "digest"):
            del graph[key]
    for timing in record["timings"]:
        del timing["begin"], timing["parts"]
    del record["environment"]["commit"], record["settings"]["lean"]
    del record["verdict"]["compared"], record["verdict"]["not_compared"]
    for key in EARLIER:
        del record["settings"][key]
    return dict(record)


def test_records_of_version_3_are_read(tmp_path: Path) -> None:
    record = json.loads(to_json(failing_sample()))
    record["schema"] = "hloracle-report/3"
    del record["verdict"]["compared"], record["verdict"]["not_compared"]
    record["model"]["model_type"] = record["model"].pop("architecture")
    del record["families"], record["settings"]["lean"]
    for key in EARLIER:
        del record["settings"][key]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(record))
    expected = json.loads(to_json(failing_sample()))
    expected["settings"] |= EARLIER
    expected["verdict"] |= {"compared": None, "not_compared": None}
    assert load(path) == expected


def test_records_from_before_there_were_layouts_are_read(tmp_path: Path) -> None:
    """They do not say how weights lay: there was one way."""
    record = json.loads(to_json(sample()))
    record["schema"] = "hloracle-report/4"
    for key in EARLIER:
        del record["settings"][key]
    del record["compiled"], record["environment"]["device"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(record))
    loaded = load(path)
    assert loaded["settings"] == record["settings"] | EARLIER
    assert (loaded["compiled"], loaded["environment"]["device"]) == ([], None)
    Page(html.render(loaded))


def test_records_of_the_version_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(older(sample())))
    record = load(path)
    assert record["schema"] == "hloracle-report/5"
    assert record["model"]["architecture"] == "llama"
    assert record["families"] == []
    assert record["speed"]["reason"] == "the record is of hloracle-report/2"
    assert [t["begin"] for t in record["timings"]][:3] == [0.0, 0.04, 0.35]
    assert all(graph["flops"] is None for graph in record["graphs"])
    Page(html.render(record))


@pytest.mark.parametrize(
    "break_it", [lambda r: r.pop("graphs"), lambda r: r.update(timings=[3]), lambda r: r.pop("cells")]
)
def test_broken_records_of_the_version_before_are_refused(tmp_path: Path, break_it: Any) -> None:
    record = older(sample())
    break_it(record)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"is not a valid record"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["listings"][0].update(graph="nowhere"), r"^listings\[0\]\.graph: there is no graph 'nowhere'"),
        (lambda r: r["block"]["edges"].append([3, 3]), r"^block\.edges\[\d+\]: leads from 3 to 3 of 20 nodes"),
        (lambda r: r["block"]["edges"].append([3, 20]), r"^block\.edges\[\d+\]: leads from 3 to 20"),
        (lambda r: r["speed"]["contenders"][1]["ms_per_token"].pop(), r"^speed\.contenders: some have more rounds"),
        (lambda r: r["speed"].update(contenders=[]), r"^speed\.reason: is empty, and nothing was measured"),
        (
            lambda r: r["speed"]["contenders"][0].update(ms_per_token=[0.0] * 5),
            r"^speed\.contenders\[0\]\.ms_per_token",
        ),
    ],
)
def test_what_a_record_may_not_say_of_its_graphs(change: Any, message: str) -> None:
    record = sample()
    change(record)
    with pytest.raises(ValueError, match=message):
        validate(record)


def test_no_place_is_not_a_number() -> None:
    for record in (sample(), failing_sample()):
        source = html.render(record)
        page = Page(source)
        drawn = [value for name in ("d", "x", "y", "width", "viewbox", "points") for value in page.attributes(name)]
        assert len(drawn) > 100
        assert not [value for value in drawn if re.search("nan|inf", value, re.IGNORECASE)]
        block = graphs.block(record)
        assert block is not None
        assert math.isfinite(block["width"] + block["height"])
