"""The pages of what was timed: who was how fast beside the machine's limit, and how time and memory grow."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from hloracle.core.files import write_file
from hloracle.reports.page.base import draw

Figures = dict[str, Any]


def write_bench(figures: Figures, out: Path) -> None:
    """Write bench.json and bench.html into `out`, each whole or not at all."""
    write_file(out / "bench.json", json.dumps(figures, indent=1) + "\n")
    write_file(out / "bench.html", render_bench(figures))


def write_scaling(figures: Figures, out: Path) -> None:
    """Write scaling.json and scaling.html into `out`, each whole or not at all."""
    write_file(out / "scaling.json", json.dumps(figures, indent=1) + "\n")
    write_file(out / "scaling.html", render_scaling(figures))


def render_scaling(figures: Figures) -> str:
    """The page, one file that needs nothing else: a table for each part that was measured."""
    return draw("scaling.html.j2", {"figures": figures})


def render_bench(figures: Figures) -> str:
    """The page, one file that needs nothing else."""
    bandwidths = [b for b in figures["bandwidth"] if b]
    bandwidth = statistics.median(bandwidths) if bandwidths else None
    drawings = [
        *(_drawing(figures, "decode", at, bandwidth) for at in figures["contexts"]),
        *(_drawing(figures, "prefill", at, None) for at in figures["lengths"]),
    ]
    context = {"figures": figures, "bandwidth": bandwidth, "drawings": drawings}
    return draw("bench.html.j2", context, styles=["bench.css"])


def _drawing(figures: Figures, kind: str, at: int, bandwidth: float | None) -> dict[str, Any]:
    """A bar for each contender: tokens per second, the range of rounds, and for decode what the bandwidth allows."""
    tokens = 1 if kind == "decode" else at
    bars = []
    for row in figures["contenders"].values():
        entry = next((e for e in row[kind] if e["at"] == at), None)
        if entry is None:
            continue
        speeds = {key: tokens * 1000 / entry[of] for key, of in (("speed", "median"), ("low", "max"), ("high", "min"))}
        limit = bandwidth / row["read_bytes"] if bandwidth and row["read_bytes"] else 0.0
        bars.append({"title": row["title"], "ours": row["kind"] == "emitter", "limit": limit, **speeds})
    what = f"Decode at position {at:,}" if kind == "decode" else f"A prompt of {at:,} tokens"
    return {"title": what, "bars": bars, "most": max((max(bar["high"], bar["limit"]) for bar in bars), default=1.0)}
