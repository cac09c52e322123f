"""What the page draws: where a run went wrong, the heat maps, the truth's lead; and what it says beside them."""

from __future__ import annotations

import copy
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from page_text import Page
from test_reports_sample import ANCHORS, LAYERS, WRONG, _matrix, failing_sample, near_tie_sample, sample

from hloracle.reports import junit, summary
from hloracle.reports.facts import layer_of
from hloracle.reports.page import axes, charts, heat, html
from hloracle.reports.record import to_json, validate

Record = dict[str, Any]


def _section(source: str, name: str) -> str:
    (found,) = re.findall(rf'<section id="{name}".*?</section>', source, re.DOTALL)
    return str(found)


# ---- axes and names


@pytest.mark.parametrize(
    ("anchor", "split"),
    [
        ("layers.3.self_attn.q_proj", (3, "self_attn.q_proj")),
        ("layers.12", (12, "")),
        ("k_cache.7", (7, "k_cache")),
        ("embed_tokens", (None, "embed_tokens")),
        ("layers.x.mlp", (None, "layers.x.mlp")),
    ],
)
def test_layer_of(anchor: str, split: tuple[int | None, str]) -> None:
    assert layer_of(anchor) == split


def test_axis_holds_what_it_is_given() -> None:
    axis = axes.log_axis([0.02, None, 0.0, math.nan, math.inf, 300.0], (-1, 1))
    assert (axis.low, axis.high) == (-2, 3)
    assert [axis.place(x) for x in (0.0, 0.01, 1.0, 1000.0)] == ["3", "3", "40.6", "97"]
    assert axis.place(math.nan) == axis.place(math.inf) == axis.place(None) == "98.5"
    upwards = axes.LogAxis(-2, 2, begin=96, end=6)
    assert upwards.at(0.01) == 96
    assert upwards.at(math.inf) < upwards.at(100.0) == 6


@pytest.mark.parametrize(("n", "most", "lengths"), [(0, 4, set()), (3, 4, {1}), (8, 4, {2}), (9, 4, {2, 3})])
def test_bins_leave_nothing_out(n: int, most: int, lengths: set[int]) -> None:
    bins = axes.bins_of(n, most)
    assert [i for some in bins for i in some] == list(range(n))
    assert {len(some) for some in bins} == lengths


@pytest.mark.parametrize(("n", "step"), [(1, 1), (8, 1), (9, 2), (30, 5), (96, 20), (300, 50)])
def test_ticks_are_round(n: int, step: int) -> None:
    assert axes.every(n, 8) == range(0, n, step)


@pytest.mark.parametrize(
    ("share", "shade"),
    [(0.0, 0), (1 / 16, 0), (0.07, 1), (1.0, 4), (1.0000001, 5), (10.0, 5), (999.0, 7), (math.inf, 8), (math.nan, 8)],
)
def test_shades(share: float, shade: int) -> None:
    assert heat.shade(share) == shade
    assert (shade >= heat.BEYOND) == (not share <= 1)


# ---- where it went wrong


def test_page_says_where_it_went_wrong() -> None:
    where = Page(_section(html.render(failing_sample()), "where")).text
    for words in (
        "emitter/iree-cpu was taken apart on prompt chat@64, prefill, step 5, position 7: the oracle's graph is right",
        "by itself and accumulated, and the first in both",
        "layers.3.self_attn.q_rope first wrong",
        "✕ 2.08e5",
        "stablehlo.subtract line 214 of llama_prefill_64_logits, in layers.3.self_attn.q_rope",
        "%l3.q_rope_4 = stablehlo.subtract %l3.q_rope_2, %l3.q_rope_3 : tensor<64x9x32xf32>",
        "Worst element [7, 4, 0] Expected 3.141592 Got ✕ -2.718281",
        "Shows the fault when run by itself",
        "In reproducer/, beside this report, run: iree-compile piece.mlir",
        "Files there piece.mlir, 0-l3.q_rope_2.npy",
        "[FAILED] result[0]",
        "Decode shows the same fault",
    ):
        assert re.search(r"\s*".join(map(re.escape, words.split())), where), words
    assert 'id="where"' not in html.render(sample())


def test_rows_around_the_first_wrong_anchor() -> None:
    record = failing_sample()
    chain = charts.chain(record)
    assert chain is not None
    names = [row["anchor"] for row in chain["rows"]]
    at = names.index("layers.3.self_attn.q_rope")
    assert (at, len(names)) == (charts.BEFORE, charts.BEFORE + 1 + charts.AFTER)
    assert [row["first"] for row in chain["rows"]] == [i == at for i in range(len(names))]
    assert chain["left_out"] == 2 * len(ANCHORS) - len(names)
    record["localization"]["anchor"] = record["localization"]["first_local"] = "embed_tokens"
    assert charts.chain(record)["rows"][0]["first"]  # type: ignore[index]
    record["localization"]["anchor"] = "lm_head"
    assert charts.chain(record)["rows"][-1]["first"]  # type: ignore[index]
    record["localization"]["anchor"] = record["localization"]["first_local"] = None
    assert not any(row["first"] for row in charts.chain(record)["rows"])  # type: ignore[index]
    assert ">first wrong<" not in _section(html.render(record), "where")


@pytest.mark.parametrize(("value", "n"), [(None, 0), (None, 40), ("NaN", 1), ("Infinity", 2), (0, 40), (0.0, 543)])
def test_page_of_any_errors(value: Any, n: int) -> None:
    record = failing_sample()
    found = record["localization"]
    found["errors"] = [e | {"accumulated": value, "local": value, "peer": value} for e in found["errors"][:n]]
    for matrix in record["anchors"]:
        matrix["errors"] = [[value] * len(row) for row in matrix["errors"]]
    for floor in record["floors"]:
        floor |= {"oracle": value, "limit": 0}
    validate(record)
    source = html.render(record)
    page = Page(source)
    assert ("No values were compared at the anchors." in page.text) == (value is None)
    assert ("543 of 543 anchors over the limit" in page.text) == (value in ("NaN", "Infinity"))
    assert re.search(r'[ "]-?(nan|inf)\b', source) is None


def test_page_without_what_could_not_be_found() -> None:
    record = failing_sample()
    for key in ("step", "position", "anchor", "first_accumulated", "operation", "reproducer"):
        record["localization"][key] = None
    record["localization"] |= {"reason": "", "notes": [], "fusion_dependent": True}
    for key in ("anchor", "operation", "confidence", "prompt", "step"):
        record["verdict"][key] = None
    record["verdict"] |= {"evidence": [], "fusion_dependent": True}
    record["canary"] = None
    validate(record)
    page = Page(html.render(record))
    assert "none found" in page.text
    assert re.search(r"depends on\s*fusion", page.text)
    assert "right again once values are made outputs" in page.text
    assert "No canary was run" in page.text
    assert "No canary was run" in summary.render(record)
    assert not {"operation", "reproducer"} & set(page.attributes("id"))
    record = failing_sample()
    record["localization"]["operation"] |= {"line": None, "worst": None, "operands": [], "why": ""}
    record["localization"]["reproducer"] |= {"shown": False, "output": "", "files": []}
    validate(record)
    assert "Did not show the fault" in Page(html.render(record)).text
    assert "did not show the fault" in summary.render(record)


# ---- the heat maps


def test_page_says_which_anchors_are_over() -> None:
    anchors = Page(_section(html.render(failing_sample()), "anchors")).text
    assert "481 of 543 anchors over the limit" in anchors
    assert "The first over its limit: layers.3.self_attn.q_rope at position 1 of chat@64: " in anchors
    assert "all 543 within their limits" in anchors  # the oracle's
    passed = Page(_section(html.render(sample()), "anchors")).text
    assert "over the limit" not in passed.partition("emitter/iree-cpu")[2].partition("Floors")[0]
    assert re.search(r"The worst: layers\S* at position \d+ of chat@64: [\d.]+ floors, 0\.\d+× its limit of 8", passed)
    assert re.search(r"Largest error at an anchor: 0\.\d+ of its limit, layers", Page(html.render(sample())).text)


def test_maps_begin_with_what_was_taken_apart() -> None:
    record = failing_sample()
    maps = heat.heat_maps(record)
    assert (maps[0]["cell"], maps[0]["phase"]) == ("emitter/iree-cpu", "prefill")
    assert maps[-1]["cell"] == "oracle/iree-cpu"
    rows = {row["prefix"] + row["name"]: row for row in maps[0]["map"]["rows"]}
    assert list(rows)[:3] == ["embed_tokens", "input_layernorm", "self_attn.q_proj"]
    assert list(rows)[-3:] == ["", "norm", "lm_head"]
    assert rows["self_attn.q_rope"]["layers"]["ring"] == 3
    assert rows["self_attn.q_rope"]["positions"]["ring"] == 1
    assert rows["self_attn.q_rope"]["layers"]["beyond"] == f"M3 .5h{LAYERS - 3}"
    assert rows["self_attn.k_rope"]["layers"]["beyond"] == f"M4 .5h{LAYERS - 4}"
    assert rows["norm"]["layers"] is None
    record["localization"]["cell"] = "oracle/iree-cpu"
    assert heat.heat_maps(record)[0]["cell"] == "oracle/iree-cpu"


def test_map_shows_every_prompt_by_layer_and_one_by_position() -> None:
    record = sample()
    other = _matrix("emitter/iree-cpu", "decode", "long@128", range(300))
    other["errors"][ANCHORS.index("layers.7.mlp.act")][123] = 7.9
    record["anchors"] = [m for m in record["anchors"] if m["phase"] == "decode"] + [other]
    validate(record)
    (found,) = heat.heat_maps(record)
    assert found["prompts"] == ["chat@64", "long@128"]
    assert (found["worst"].anchor, found["worst"].position) == ("layers.7.mlp.act", other["positions"][123])
    assert found["map"]["prompt"] == "long@128"
    assert found["map"]["binned"] == 4  # 300 positions in 96 columns
    page = Page(html.render(record)).text
    assert "the worst of all positions of 2 prompts" in page
    assert "up to 4 positions a column" in page


def test_layers_that_are_not_alike() -> None:
    """A layer of another kind brings its anchors where they stand in it, and leaves the others' cells blank."""
    names = ["embed_tokens", *(f"layers.0.{k}" for k in "abd"), *(f"layers.1.{k}" for k in "acd"), "norm"]
    assert heat._kinds(names) == ["embed_tokens", "a", "c", "b", "d", "norm"]
    record = sample()
    record["floors"] = [record["floors"][0] | {"anchor": name} for name in names]
    record["anchors"] = [record["anchors"][0] | {"anchors": names, "errors": [[1.0] * 10 for _ in names]}]
    validate(record)
    rows = {row["name"]: row["layers"] for row in heat.heat_maps(record)[0]["map"]["rows"]}
    assert rows["a"]["runs"] == [(1, "M0 .5h2")]
    assert rows["c"]["runs"] == [(1, "M1 .5h1")]


def test_errors_without_floors_are_not_judged() -> None:
    record = failing_sample()
    record["floors"] = []
    validate(record)
    page = Page(html.render(record)).text
    assert "Values were compared at the anchors, and the record has no floors to judge them by." in page
    assert "layers.3.self_attn.q_rope first wrong" in page.replace("first wrong", " first wrong").replace("  ", " ")


def test_a_prompt_that_was_looked_at_twice() -> None:
    record = failing_sample()
    again = _matrix("emitter/iree-cpu", "prefill", "chat@64", range(4, 14), WRONG)
    record["anchors"].append(again)
    validate(record)
    found = heat.heat_maps(record)[0]
    assert found["prompts"] == ["chat@64"]
    assert found["map"]["positions"]["ticks"][-1]["label"] == "12"
    rows = {row["name"]: row for row in found["map"]["rows"]}
    assert rows["scores"]["positions"]["beyond"] == "M1 .5h13"


def test_floors_by_kind() -> None:
    record = sample()
    rows = {row["kind"]: row for row in heat.floors(record)}
    assert len(rows) == 21
    assert rows["self_attn.probs"]["limits"] == [16.0]
    assert rows["mlp.act"]["anchors"] == LAYERS
    assert rows["mlp.act"]["noise"] == max(f["noise"] for f in record["floors"] if f["anchor"].endswith("mlp.act"))
    record["floors"][3] |= {"noise": "NaN", "oracle": None}
    assert {row["kind"]: row for row in heat.floors(record)}["self_attn.k_proj"]["noise"] == "NaN"
    validate(record)
    Page(html.render(record))


def _large() -> Record:
    """Almost everything is wrong, in four cells and both phases, at 30 layers and 100 positions."""
    record = failing_sample()
    record["anchors"] = [
        _matrix(f"{source}/{backend}", phase, "chat@64", range(100), WRONG if source == "emitter" else None)
        for source in ("emitter", "oracle")
        for backend in ("iree-cpu", "xla-cpu")
        for phase in ("prefill", "decode")
    ]
    return record


def test_page_stays_small() -> None:
    record = _large()
    validate(record)
    source = html.render(record)
    Page(source)
    anchors = _section(source, "anchors")
    assert anchors.count("<table") == heat.MAPS + 1
    assert len(anchors) < 220_000
    one = record | {"anchors": record["anchors"][:1]}
    assert len(_section(html.render(one), "anchors")) < 48_000
    assert len(_section(source, "where")) < 48_000
    assert anchors.count("<title>") <= heat.TIPS * 2 * (1 + (heat.MAPS - 1) / 4)


# ---- the truth's lead


def test_page_says_how_near_an_error_came_to_a_token() -> None:
    logits = Page(_section(html.render(sample()), "logits")).text
    assert re.search(r"chat@64 nearest at step \d+: lead [\d,]+× the doubled error", logits)
    assert "larger than the lead" not in logits
    source = _section(html.render(near_tie_sample()), "logits")
    assert "step 21: the doubled error is larger than the lead" in Page(source).text
    assert "Tokens differ at step 21." in source
    assert source.count("<figure>") == 6


def test_leads_of_long_runs_share_columns() -> None:
    record = near_tie_sample()
    prompt, n = record["prompts"][3], 960
    prompt["truth"] |= {"tokens": [1] * n, "pieces": ["a"] * n, "gaps": [2.0] * 500 + [1e-5] + [2.0] * (n - 501)}
    entry = record["tokens"]["long@128"]
    for cell in entry["cells"].values():
        cell |= {"tokens": [1] * n, "pieces": ["a"] * n, "agreed": n, "total": n, "first_mismatch": None}
        cell["errors"] = [1e-6] * n if cell["errors"] else []
    entry |= {"agreed": n, "total": n}
    validate(record)
    (lead,) = [p for p in charts.leads(record)["prompts"] if p["id"] == "long@128"]  # type: ignore[index]
    assert (lead["width"], lead["binned"]) == (96, 10)
    assert lead["nearest"][:2] == (pytest.approx(5.0), 500)
    assert len(lead["points"]["same"]) < 1800
    assert "Up to 10 steps a column: the smallest lead, the largest error." in Page(html.render(record)).text
    record["tokens"]["long@128"]["cells"]["oracle/xla-cpu"]["tokens"].append(7)  # one more than the truth has
    record["tokens"]["long@128"]["cells"]["oracle/xla-cpu"]["errors"].append(0.1)
    assert charts.leads(record) is not None


def test_leads_beyond_the_first_six_prompts_are_folded() -> None:
    record = sample()
    for i in range(3):
        record["prompts"].append(record["prompts"][0] | {"id": f"more-{i}"})
        record["tokens"][f"more-{i}"] = copy.deepcopy(record["tokens"]["chat@64"])
    for cell in record["cells"]:
        cell["total"] = cell["agreed"] = 48 * 9
    validate(record)
    logits = _section(html.render(record), "logits")
    assert "3 more prompts" in logits
    assert logits.count("<figure>") == 9


# ---- what all files say


def test_a_mutant_is_named_in_every_file() -> None:
    record = failing_sample() | {"mutant": "rope-interleaved"}
    validate(record)
    source = html.render(record)
    assert "<title>Mutant: Emitter fault" in source
    assert "This run carries a deliberate fault, the mutant rope-interleaved" in Page(source).text
    assert summary.render(record).startswith("> ⚠️ **This run carries a deliberate fault**, the mutant <code>rope-int")
    root = ET.fromstring(junit.render(record))
    assert next(p.attrib for p in root.iter("property")) == {"name": "mutant", "value": "rope-interleaved"}
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message", "").startswith("mutant rope-interleaved: ")
    assert "deliberate fault" not in html.render(failing_sample()) + summary.render(failing_sample())


def test_a_canary_that_lives_is_seen() -> None:
    record = failing_sample()
    record["canary"] |= {"caught": False, "named": None}
    page, written = Page(html.render(record)).text, summary.render(record)
    assert re.search("Canary missed ?A copy of llama_decode_logits was broken .* named no anchor", page)
    assert "⚠️ Canary **missed**: broken on purpose at <code>layers.17.mlp.act</code>, named no anchor." in written
    record["canary"] |= {"caught": True, "named": "layers.18"}
    assert "the comparison named layers.18" in Page(html.render(record)).text


def test_the_fault_is_named_in_every_file() -> None:
    record = failing_sample()
    page, written, tests = Page(html.render(record)).text, summary.render(record), junit.render(record)
    operation = "stablehlo.subtract %l3.q_rope_4 at line 214 of llama_prefill_64_logits"
    assert operation in page
    assert f"in <code>{operation}</code>" in written
    assert f"operation: {operation}" in tests
    assert "Emitter fault certain" in page
    assert "Why certain" in page
    assert "Confidence: **certain**\n- The same graph is wrong on XLA" in written
    assert "confidence: certain" in tests
    shown = "The reproducer shows the fault by itself. In <code>reproducer/</code>, beside the report: <code>iree-compile pi"
    assert shown in written
    assert "piece.vmfb &#38;&#38; iree-run-module" in written  # on one line, without its backslash
    assert "reproducer, in reproducer/: iree-compile piece.mlir" in tests


NEW = ("verdict", "mutant", "anchors", "floors", "localization", "canary")
FIXED = {"class", "level", "phase"}  # one of a few words


def _strings(node: Any, path: tuple[Any, ...] = ()) -> Any:
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, entry in entries:
        if isinstance(entry, str) and key not in FIXED:
            yield node, key
        yield from _strings(entry, (*path, key))


def test_no_string_is_markup() -> None:
    """Each new string in turn is an element: it shows as text, or not at all, in every file."""
    record = failing_sample() | {"mutant": "m"}
    record["anchors"] = [_matrix("emitter/iree-cpu", "prefill", "chat@64", range(2), WRONG)]
    for matrix in record["anchors"]:
        matrix |= {"anchors": matrix["anchors"][:30], "errors": matrix["errors"][:30]}
    record["floors"] = record["floors"][:30]
    record["localization"]["errors"] = record["localization"]["errors"][:30]
    renamed: dict[str, str] = {}
    marked = 0
    for part in NEW:
        for node, key in list(_strings({part: record[part]})):
            holder = record if node == {part: record[part]} else node
            # What is the same name stays the same name.
            holder[key] = renamed.setdefault(holder[key], f"<x{len(renamed)}>")
            marked += 1
    record["localization"]["reproducer"] |= {"folder": "<x-folder>", "files": ["<x-file>"]}
    validate(record)
    assert marked > 120
    source, written = html.render(record), summary.render(record)
    assert "<x" not in source
    assert "<x" not in written
    ET.fromstring(junit.render(record))
    shown = {f"<x{n}>" for n in map(int, re.findall(r"&lt;x(\d+)&gt;", source))}
    localization, verdict = record["localization"], record["verdict"]
    for key in ("cell", "reason", "prompt", "anchor", "first_accumulated", "first_local"):
        assert localization[key] in shown, key
    operation = localization["operation"]
    assert {*localization["notes"], *operation["operands"]} <= shown
    assert {operation[k] for k in ("name", "value", "graph", "text", "anchor", "result", "why")} <= shown
    assert {localization["reproducer"][k] for k in ("command", "output")} <= shown
    assert {verdict[k] for k in ("anchor", "operation", "prompt", "explanation")} <= shown
    assert {*verdict["evidence"], *verdict["confidence"]["because"], record["mutant"]} <= shown
    assert {record["canary"][k] for k in ("anchor", "graph", "detail")} <= shown
    assert "&lt;x-folder&gt;" in source
    assert "&lt;x-file&gt;" in source


def test_equal_records_give_equal_pages_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(failing_sample()))
    program = "import sys; from pathlib import Path; from hloracle.reports.record import load, write_all; "
    program += "write_all(load(Path(sys.argv[1])), Path(sys.argv[2]))"
    pages = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        command = [sys.executable, "-c", program, str(tmp_path / "report.json"), str(out)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        pages.append([(out / name).read_bytes() for name in ("report.html", "report.json", "summary.md", "junit.xml")])
    assert pages[0] == pages[1]


def test_lists_of_numbers_stand_on_one_line() -> None:
    written = to_json({"a": [[1, 2.5, None], []], "b": ["[\n 1\n ]", 2], "c": [math.inf, 1]})
    assert '"a": [\n  [1, 2.5, null],\n  []\n ]' in written
    assert '"[\\n 1\\n ]"' in written
    assert len(to_json(sample()).splitlines()) < 15_000
