"""The pages that are tested, drawn from the records of tests/records.py and the rows of history_rows.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import history_rows
import records
import test_bench
import test_ops_running
import test_scaling
from records import Record

from hloracle.reports import bench as bench_page
from hloracle.reports.compare import page as diff_page
from hloracle.reports.compare import upgrade as upgrade_page
from hloracle.reports.compare.comparison import compare
from hloracle.reports.history import page as history_page
from hloracle.reports.history.store import row_of
from hloracle.reports.ops import page as ops_page
from hloracle.reports.record import write_all

# Whatever of this runs leaves a mark, opens a dialog, sends a request or breaks out of the element that it is in.
HOSTILE = (
    "</script><script>window.pwned=1;alert(1)</script>\" autofocus onfocus='window.pwned=2' x=\"' "
    "<img src=x onerror=window.pwned=3><svg onload=window.pwned=4></title></style></template>-->]]>"
    "<a href=javascript&colon;window.pwned=5>{{7*7}}${7*7}"
)


@dataclass(frozen=True)
class PageUnderTest:
    """A page: its name, and the function that draws it into a folder and returns its file."""

    name: str
    draw: Callable[[Path], Path]


def _report(name: str, make: Callable[[], Record]) -> PageUnderTest:
    return PageUnderTest(name, lambda folder: write_all(make(), folder)["report.html"])


def _page(name: str, render: Callable[[], str]) -> PageUnderTest:
    def draw(folder: Path) -> Path:
        file = folder / "page.html"
        file.write_text(render(), "utf-8")
        return file

    return PageUnderTest(name, draw)


def _diff(name: str, base: Callable[[], Record], head: Callable[[], Record]) -> PageUnderTest:
    return _page(name, lambda: diff_page.render(compare(base(), head())))


def _upgrade(name: str, models: list[tuple[str, Callable[[], Record], Callable[[], Record]]]) -> PageUnderTest:
    def draw(folder: Path) -> Path:
        rows = [upgrade_page.Row("a model", why=f"it cannot be read {HOSTILE}")]
        for i, (model, base, head) in enumerate(models):
            comparison = compare(base(), head())
            (folder / f"diff{i}.html").write_text(diff_page.render(comparison), "utf-8")
            rows.append(upgrade_page.row_of(model, comparison, f"diff{i}.html"))
        upgrade_page.write_index(rows, ("iree==3.12.0", f"iree==3.13.0:{HOSTILE}"), folder)
        return folder / "index.html"

    return PageUnderTest(name, draw)


def _history(name: str, make: Callable[[], list[Record]]) -> PageUnderTest:
    return _page(name, lambda: history_page.render(make()))


def hostile() -> Record:
    """The hostile record with a script in each of its strings that may hold one."""

    def replaced(node: Any) -> Any:
        if isinstance(node, dict):
            return {replaced(key): replaced(entry) for key, entry in node.items()}
        if isinstance(node, list):
            return [replaced(entry) for entry in node]
        if isinstance(node, str):
            return node.replace("<script>alert(1)</script>", HOSTILE).replace("long " * 200, "long " * 60)
        return node

    record = records.hostile()
    record["checks"] = record["checks"][:4]
    for matrix in record["anchors"]:
        matrix |= {"anchors": matrix["anchors"][:12], "errors": matrix["errors"][:12]}
    return dict(replaced(record))


def large() -> Record:
    """A run whose graphs have many more layers, each listed by itself."""
    record = records.failing()
    for listing in record["listings"]:
        for scope in list(listing["scopes"]):
            for layer in range(10, 24) if scope["layers"] else ():
                own = copy.deepcopy(scope)
                own |= {"layers": [layer], "anchor": scope["anchor"].replace("layers.", f"layers.{layer}")}
                listing["scopes"].append(own)
        listing["scopes"] = list({scope["anchor"]: scope for scope in listing["scopes"]}.values())
    return record


def with_programs(seconds: float, size: int | None) -> Record:
    """A run whose compilers say how long they took, and some how large their programs are."""
    record = records.conforms()
    for i, configuration in enumerate(record["configurations"]):
        program = {"graph": "emitter/decode/logits", "seconds": seconds * (i + 1), "bytes": None if i else size}
        configuration["programs"] = [program]
    return record


def in_bf16() -> Record:
    """A run of graphs that compute in bf16: how errors are spread in logits of two phases and at two anchors."""
    record = records.conforms()
    record["settings"]["compute"] = "bf16"
    sizes = {"float32": 1e-6, "narrow": 0.01, "graph": 0.012, "limit": 0.03}
    figures = {
        whose: {"rms": 1.3 * x, "median": x, "p99": 2.6 * x, "largest": 5 * x * (2 if whose == "limit" else 1)}
        for whose, x in sizes.items()
    }
    record["spreads"] = [
        {"configuration": c["id"], "phase": phase, "anchor": anchor, "rows": 188, "scale": 3.1, **figures}
        for c in record["configurations"] for phase in ("prefill", "decode")
        for anchor in ("logits", "layers.1.self_attn.probs", "layers.2.post_attention_layernorm")
    ]  # fmt: skip
    return record


def hostile_base() -> Record:
    """A run before the hostile one, of other tokens, figures and graphs."""
    record = hostile()
    for check in record["checks"]:
        check |= {"status": "passed", "figure": f"1 {check['figure']}"}
    for answer in record["tokens"][record["prompts"][0]["id"]]["configurations"].values():
        answer["text"] = None
    for graph in record["graphs"][:4]:
        graph["digest"] = "0" * 64
    record["settings"]["threads"] += 1
    record["environment"]["packages"] = {"another": HOSTILE}
    return record


def hostile_days() -> list[Record]:
    """Two hostile runs with a deliberate fault, two without."""
    rows = []
    for i in range(4):
        record = hostile()
        record["environment"] |= {"date": f"2025-11-{i + 1:02}T05:12:44+00:00", "commit": f"{i:02}" * 20}
        if i < 2:
            record["mutant"] = ""
        rows.append(row_of(record))
    return rows


PAGES = [
    _report("passing", records.conforms),
    _report("failing", records.failing),
    _report("near-tie", records.near_tie),
    _report("bf16", in_bf16),
    _report("broken", records.without_results),
    _report("empty", records.empty),
    _report("suite", records.suite),
    _report("suite-failing", records.failing_suite),
    _report("file", lambda: records.pinned("check")),
    _report("unsupported", lambda: records.of_class("unsupported")),
    _report("hostile", hostile),
    _diff("diff", records.conforms, records.failing),
    _diff("diff-same", records.conforms, records.conforms),
    _diff("diff-programs", lambda: with_programs(2.0, 90_000), lambda: with_programs(4.5, None)),
    _diff("diff-suite", records.suite, records.failing_suite),
    _diff("diff-hostile", hostile_base, hostile),
    _upgrade(
        "upgrade",
        [("tiny-llama", records.conforms, records.failing), ("tiny-gemma", records.conforms, records.conforms)],
    ),
    _upgrade("upgrade-hostile", [(HOSTILE, hostile_base, hostile)]),
    _history("history", history_rows.mixed),
    _page("bench", lambda: bench_page.render_bench(test_bench.figures())),
    _page(
        "bench-hostile",
        lambda: bench_page.render_bench({**test_bench.figures(), "model": HOSTILE, "ignored": [HOSTILE]}),
    ),
    _page("scaling", lambda: bench_page.render_scaling(test_scaling.figures())),
    _page("scaling-hostile", lambda: bench_page.render_scaling({**test_scaling.figures(), "failures": [HOSTILE]})),
    _page("ops", lambda: ops_page.render(test_ops_running.record())),
    _page("ops-hostile", lambda: ops_page.render(test_ops_running.record(HOSTILE))),
    _history("history-many", history_rows.many),
    _history("history-empty", list),
    _history("history-hostile", hostile_days),
]
LARGE = _report("large", large)
