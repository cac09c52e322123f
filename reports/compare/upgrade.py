"""The index of an upgrade: a row for each model that was judged on two versions of a compiler, with its page."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hloracle.core.files import write_file
from hloracle.core.record import Record
from hloracle.reports.compare.comparison import TITLES, Comparison
from hloracle.reports.facts import token_totals
from hloracle.reports.page.base import draw
from hloracle.reports.record import to_json

SCHEMA: Final = "hloracle-upgrade/1"
# Of titles, from the worst: of all models the worst one's is told.
ORDER = list(TITLES)


@dataclass(frozen=True)
class Row:
    """What an upgrade does to a model.

    why: why nothing is known of it; all else is empty then. title, sentence: of the comparison, whose page is at `page`.
    passed, tokens: of both versions; tokens are those that are equal to the reference's, and how many there are.
    share: the largest error as a share of what is allowed. step: ratios of decode times, head to base, a round each in turn;
    ms: of a token, medians. compile, size, memory: base and head, of the production graph; in seconds and bytes.
    """

    model: str
    title: str = "Not judged"
    sentence: str = ""
    page: str = ""
    why: str = ""
    passed: tuple[bool, bool] = (False, False)
    tokens: tuple[tuple[int, int], ...] = ()
    share: tuple[float | None, ...] = ()
    step: tuple[float, ...] = ()
    ms: tuple[float, ...] = ()
    compile: tuple[float, ...] = ()
    size: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()

    @property
    def safe(self) -> bool:
        """Whether nothing is known against it."""
        return not self.why and self.title not in ("Not safe", "Still wrong", "Not judged")

    @property
    def ratio(self) -> float | None:
        """The median of the decode times' ratios."""
        return statistics.median(self.step) if self.step else None


def row_of(model: str, comparison: Comparison, page: str) -> Row:
    """The row of a model."""
    pair = (comparison.base, comparison.head)
    times = [r["speed"]["contenders"][0]["ms_per_token"] for r in pair if r["speed"]["contenders"]]
    both = len(times) == 2
    loaded = [r["speed"]["contenders"][0]["resident_bytes"] or 0 for r in pair] if both else []
    production = next((p for p in comparison.programs if p.configuration.endswith("/token")), None)
    totals = [token_totals(record) for record in pair]
    return Row(
        model,
        comparison.title,
        comparison.sentence,
        page,
        passed=(comparison.base["passed"], comparison.head["passed"]),
        tokens=tuple((t["agreed"], t["total"]) for t in totals),
        share=tuple(map(_share, pair)),
        step=tuple(b / a for a, b in zip(*times, strict=True)) if both else (),
        ms=tuple(map(statistics.median, times)) if both else (),
        compile=production.seconds if production and production.seconds else (),
        size=production.bytes if production and production.bytes else (),
        memory=tuple(loaded),
    )


def _share(record: Record) -> float | None:
    """The largest logit error on the first backend, of which the record is, as a share of its limit."""
    own = {c["id"] for c in record["configurations"] if c["backend"] == record["settings"]["backends"][0]}
    found = [
        float(a["logit_error"]) / float(a["logit_limit"])
        for answers in record["tokens"].values()
        for id, a in answers["configurations"].items()
        if id in own and a["logit_error"] is not None and a["logit_limit"]
    ]
    return max(found, default=None)


def title_of(rows: Sequence[Row]) -> str:
    """The worst of all models."""
    return min((row.title for row in rows), key=ORDER.index)


def as_json(rows: Sequence[Row], versions: tuple[str, str]) -> dict[str, Any]:
    """The rows for a script."""
    told = [{**dataclasses.asdict(row), "safe": row.safe, "ratio": row.ratio} for row in rows]
    return {"schema": SCHEMA, "base": versions[0], "head": versions[1], "title": title_of(rows), "models": told}


def write_index(rows: Sequence[Row], versions: tuple[str, str], out: Path) -> None:
    """Write index.html and upgrade.json."""
    safe = [row for row in rows if row.safe]
    context = {
        "base": versions[0], "head": versions[1], "title": title_of(rows), "rows": rows, "safe": safe, "kinds": TITLES,
    }  # fmt: skip
    page = draw("upgrade.html.j2", context, styles=["diff.css"])
    write_file(out / "upgrade.json", to_json(as_json(rows, versions)))
    write_file(out / "index.html", page)
