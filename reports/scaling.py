"""The page of how time and memory grow: a drawing for each, and the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hloracle.core.cache import write_file
from hloracle.reports.page.base import draw

Figures = dict[str, Any]
Points = Sequence[tuple[float, float]]

# Of a drawing, in its own units: small enough that its words can be read on a phone.
WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 350, 12, 178
STYLES = ("emitter", "oracle", "theirs")  # of the series, in turn
TITLES = {
    "emit_seconds": ("Emitting", "ms", 1e3),
    "compile_cpu_seconds": ("Compiling", "s of processor time", 1.0),
    "graph_bytes": ("The graph's text", "MB", 1e-6),
    "module_bytes": ("The module", "MB", 1e-6),
}


def write_scaling(figures: Figures, out: Path) -> None:
    """Write scaling.json and scaling.html into `out`, each whole or not at all."""
    write_file(out / "scaling.json", json.dumps(figures, indent=1) + "\n")
    write_file(out / "scaling.html", render(figures))


def render(figures: Figures) -> str:
    """The page, one file that needs nothing else."""
    context = {"figures": figures, "drawings": _drawings(figures), "tables": _tables(figures)}
    return draw("scaling.html.j2", context, styles=["bench.css", "scaling.css"])


def _drawings(figures: Figures) -> list[dict[str, Any]]:
    found = []
    if decode := figures["decode"]:
        largest = max(e["capacity"] for e in decode)
        last = [
            max((e for e in decode if e["capacity"] == c), key=lambda e: e["position"])
            for c in _sorted(decode, "capacity")
        ]
        series = {
            "at the last position of a cache of so many slots": [(e["capacity"], e["median"]) for e in last],
            f"at a position of a cache of {largest:,} slots": [
                (e["position"], e["median"]) for e in decode if e["capacity"] == largest
            ],
        }
        found.append(drawing("Decode", "ms per token, by slots or position", series))
    if prefill := figures["prefill"]:
        speeds = [(e["length"], e["length"] / e["median"] * 1000) for e in prefill]
        found.append(drawing("Prompts", "tokens per second, by tokens of the prompt", {"": speeds}))
    for what, (title, unit, factor) in TITLES.items() if figures["layers"] else ():
        series = {
            phase: [(e["layers"], e[what] * factor) for e in figures["layers"] if e["phase"] == phase]
            for phase in dict.fromkeys(e["phase"] for e in figures["layers"])
        }
        found.append(drawing(title, f"{unit}, by layers", series))
    if memory := figures["memory"]:
        series = {
            "peak without caches": [
                (e["weight_bytes"] / 1e9, (e["peak_bytes"] - e["cache_bytes"]) / 1e9) for e in memory
            ],
            f"{memory[0]['most']:g} times the weights": [
                (e["weight_bytes"] / 1e9, e["weight_bytes"] * e["most"] / 1e9) for e in memory
            ],
        }
        found.append(drawing("Memory of a session", "GB, by GB of weights", series))
    return found


def _sorted(rows: Sequence[Figures], key: str) -> list[Any]:
    return sorted({row[key] for row in rows})


def drawing(title: str, unit: str, series: Mapping[str, Points]) -> dict[str, Any]:
    """Lines from zero, over places whose distance is that of their logarithms where they are doubled."""
    xs = sorted({x for points in series.values() for x, _ in points})
    most = max(y for points in series.values() for _, y in points)
    step = _step(most)
    top = step * math.ceil(most / step - 1e-9)
    logarithmic = len(xs) > 2 and xs[0] > 0 and xs[-1] / xs[0] >= 16
    scale: Callable[[float], float] = math.log if logarithmic else float
    low, high = scale(xs[0]) if logarithmic else 0.0, scale(xs[-1])

    def x_at(x: float) -> float:
        return LEFT if high == low else LEFT + (RIGHT - LEFT) * (scale(x) - low) / (high - low)

    def y_at(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * y / top

    ticks: list[dict[str, str]] = []
    for x in xs:
        if not ticks or x_at(x) - float(ticks[-1]["x"]) >= 34:  # as wide as a number
            ticks.append({"x": f"{x_at(x):.4g}", "label": f"{x:,.4g}" if x < 10000 else f"{x:,.0f}"})
    return {
        "title": title,
        "unit": unit,
        "lines": [
            {
                "name": name,
                "style": STYLES[i % len(STYLES)],
                "d": "M" + "L".join(f"{x_at(x):.4g} {y_at(y):.4g}" for x, y in sorted(points)),
                "points": [{"x": f"{x_at(x):.4g}", "y": f"{y_at(y):.4g}"} for x, y in sorted(points)],
                "told": ", ".join(f"{y:.3g} at {x:,.4g}" for x, y in sorted(points)),
            }
            for i, (name, points) in enumerate(series.items())
        ],
        "x_ticks": ticks,
        "y_ticks": [
            {"y": f"{y_at(k * step):.4g}", "label": f"{k * step:,.4g}"} for k in range(round(top / step) + 1)
        ],
    }  # fmt: skip


def _step(most: float) -> float:
    """A round number that goes three to six times into `most`."""
    decade = 10.0 ** math.floor(math.log10(most / 3)) if most > 0 else 1.0
    return next(k * decade for k in (1, 2, 5, 10) if k * decade * 6 >= most)


def _tables(figures: Figures) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if figures["decode"]:
        found.append({
            "title": "Decode", "heads": ("cache slots", "position", "ms per token", "range", "tokens/s"),
            "rows": [
                (f"{e['capacity']:,}", f"{e['position']:,}", f"{e['median']:.2f}", _range(e), f"{1000 / e['median']:.1f}")
                for e in figures["decode"]
            ],
        })  # fmt: skip
    if figures["prefill"]:
        found.append({
            "title": "Prompts", "heads": ("tokens", "ms", "range", "tokens/s"),
            "rows": [
                (f"{e['length']:,}", f"{e['median']:.1f}", _range(e), f"{e['length'] / e['median'] * 1000:.0f}")
                for e in figures["prefill"]
            ],
        })  # fmt: skip
    if figures["layers"]:
        found.append({
            "title": "Graphs by layers",
            "heads": ("phase", "layers", "emit", "graph", "compile", "processor time", "compiler's memory", "module"),
            "rows": [
                (
                    e["phase"], str(e["layers"]), f"{e['emit_seconds'] * 1000:.0f} ms", f"{e['graph_bytes'] / 1e6:.2f} MB",
                    f"{e['compile_seconds']:.1f} s", f"{e['compile_cpu_seconds']:.1f} s",
                    f"{e['compile_peak_bytes'] / 1e6:.0f} MB", f"{e['module_bytes'] / 1e6:.2f} MB",
                )
                for e in figures["layers"]
            ],
        })  # fmt: skip
        found.append({
            "title": "How they grow", "heads": ("phase", "what", "with layers to the power of", "at most", "result"),
            "rows": [
                (
                    e["phase"], f"{TITLES[e['what']][0]}, {TITLES[e['what']][1]}",
                    "–" if e["exponent"] is None else f"{e['exponent']:.2f}", f"{e['most']:g}", _words(e["passed"]),
                )
                for e in figures["growth"]
            ],
        })  # fmt: skip
    if figures["memory"]:
        found.append({
            "title": "Memory", "heads": ("model", "weights", "caches", "peak", "peak / weights", "at most", "result"),
            "rows": [
                (
                    e["model"], f"{e['weight_bytes'] / 1e9:.2f} GB", f"{e['cache_bytes'] / 1e9:.3f} GB",
                    f"{e['peak_bytes'] / 1e9:.2f} GB", f"{e['share']:.2f}", f"{e['most']:g}", _words(e["passed"]),
                )
                for e in figures["memory"]
            ],
        })  # fmt: skip
    return found


def _range(entry: Figures) -> str:
    return f"{entry['min']:.2f}–{entry['max']:.2f}"


def _words(passed: bool) -> str:
    return "reached" if passed else "not reached"
