"""The page of a bench: who was how fast, beside the machine's limit, and which targets were reached."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hloracle.core.cache import write_file
from hloracle.reports.page.base import draw

Figures = dict[str, Any]


def write_bench(figures: Figures, out: Path) -> None:
    """Write bench.json and bench.html into `out`, each whole or not at all."""
    write_file(out / "bench.json", json.dumps(figures, indent=1) + "\n")
    write_file(out / "bench.html", render(figures))


def render(figures: Figures) -> str:
    """The page, one file that needs nothing else."""
    bandwidths = [b for b in figures["bandwidth"] if b]
    bandwidth = statistics.median(bandwidths) if bandwidths else None
    drawings = [
        *(_drawing(figures, "decode", at, bandwidth) for at in figures["contexts"]),
        *(_drawing(figures, "prefill", at, None) for at in figures["lengths"]),
    ]
    context = {
        "figures": figures,
        "bandwidth": f"{bandwidth / 1e9:.1f} GB/s" if bandwidth else "not measured",
        "drawings": drawings,
        "rows": list(_rows(figures, bandwidth)),
        "failures": [(row["title"], row["failure"]) for row in figures["contenders"].values() if row["failure"]],
        "targets": list(_targets(figures)),
    }
    return draw("bench.html.j2", context, styles=["bench.css"])


def _drawing(figures: Figures, kind: str, at: int, bandwidth: float | None) -> dict[str, Any]:
    """A bar for each contender: tokens per second, the range of rounds, and for decode what the bandwidth allows."""
    tokens = 1 if kind == "decode" else at
    bars = []
    for id, row in figures["contenders"].items():
        entry = next((e for e in row[kind] if e["at"] == at), None)
        if entry is None:
            continue
        speeds = {key: tokens * 1000 / entry[of] for key, of in (("speed", "median"), ("low", "max"), ("high", "min"))}
        limit = bandwidth / row["read_bytes"] if bandwidth and row["read_bytes"] else None
        bars.append({"title": row["title"], "ours": id.startswith("emitter/"), "limit": limit, **speeds})
    most = max((max(bar["high"], bar["limit"] or 0) for bar in bars), default=1.0)
    for bar in bars:
        bar |= {f"{key}_at": f"{bar[key] / most * 100:.4g}" for key in ("speed", "low", "high")}
        bar["limit_at"] = f"{bar['limit'] / most * 100:.4g}" if bar["limit"] else ""
        bar["label"] = f"{bar['speed']:,.0f}" if bar["speed"] >= 100 else f"{bar['speed']:.1f}"
    what = f"Decode at position {at:,}" if kind == "decode" else f"A prompt of {at:,} tokens"
    return {"title": what, "bars": bars, "limits": any(bar["limit"] for bar in bars)}


def _rows(figures: Figures, bandwidth: float | None) -> Iterator[dict[str, Any]]:
    for row in figures["contenders"].values():
        if row["failure"]:
            continue
        entry = row["decode"][0]
        share = row["read_bytes"] / entry["median"] * 1000 / bandwidth if bandwidth else None
        agreed = row["agreed"]
        yield {
            "title": row["title"],
            "ms": f"{entry['median']:.2f}",
            "range": f"{entry['min']:.2f}–{entry['max']:.2f}",
            "share": f"{share:.0%}" if share is not None else "–",
            "weights": f"{row['read_bytes'] / 1e6:,.0f} MB",
            "first": f"{row['first_token_ms']:.0f} ms",
            "load": f"{row['load_seconds']:.1f} s",
            "resident": f"{row['resident_bytes'] / 1e9:.2f} GB",
            "agreed": f"{agreed['equal']} of {agreed['total']}" if agreed else "–",
        }


def _targets(figures: Figures) -> Iterator[dict[str, Any]]:
    for target in figures["targets"]:
        median = target["median"]
        reached = "skipped" if median is None else "passed" if median >= target["least"] else "failed"
        spread = "" if median is None or target["min"] == target["max"] else f"{target['min']:.2f}–{target['max']:.2f}"
        yield {
            "what": target["what"],
            "least": "–" if target["least"] is None else f"{target['least']:g}",
            "measured": "not measured" if median is None else f"{median:.2f}",
            "range": spread,
            "status": reached,
            "words": {"skipped": "not measured", "passed": "reached", "failed": "not reached"}[reached],
        }
