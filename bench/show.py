"""The figures of a bench on the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hloracle.production.choice import untuned

Figures = dict[str, Any]


def print_figures(figures: Figures, console: Console) -> None:
    """Who was how fast, and the targets."""
    bandwidth = statistics.median(b for b in figures["bandwidth"] if b) if any(figures["bandwidth"]) else None
    first, *_ = figures["contexts"]
    longest = figures["lengths"][-1]
    heads = (
        "", *(f"decode\n@{c}\ntok/s" for c in figures["contexts"]), "ms per token\nmedian, range", "of\nread\nspeed",
        f"prompt\n{longest}\ntok/s", "first\ntoken\nms", "load\ns", "mem.\nGB",
    )  # fmt: skip
    rows = []
    for row in figures["contenders"].values():
        if row["failure"]:
            continue
        decode = {e["at"]: e for e in row["decode"]}
        prefill = {e["at"]: e for e in row["prefill"]}
        at = decode[first]
        # A step reads the weights once for all of its rows.
        share = row["read_bytes"] / (at["median"] * row["batch"]) * 1000 / bandwidth if bandwidth else None
        rows.append((
            escape(row["title"]), *(f"{1000 / decode[c]['median']:.1f}" for c in figures["contexts"]), _spread(at),
            f"{share:.0%}" if share is not None else "", f"{longest / prefill[longest]['median'] * 1000:.0f}",
            f"{row['first_token_ms']:.0f}", f"{row['load_seconds']:.1f}", f"{row['resident_bytes'] / 1e9:.2f}",
        ))  # fmt: skip
    _print_table(console, heads, rows)
    for row in figures["contenders"].values():
        if row["failure"]:
            console.print(f"[red]{escape(row['title'])} was not measured: {escape(row['failure'])}[/]")
    for row in figures["contenders"].values():
        usual = {str(untuned(batch=b, precision=row["precision"], compute=row["compute"])) for b in (1, 2)}
        if row["choice"] and row["choice"] not in usual:
            console.print(f"[dim]{escape(row['title'])} as tuned here: {escape(row['choice'])}[/]")
    for why in figures["ignored"]:
        console.print(f"[yellow]{escape(why)}[/]")
    print_targets(figures, console)
    machine = figures["environment"]
    reads = f"memory is read at {bandwidth / 1e9:.1f} GB/s; " if bandwidth else ""
    console.print(
        f"{escape(figures['model'])}, {figures['rounds']} rounds of {figures['tokens']} tokens, {figures['threads']} threads, "
        f"{escape(machine['cpu'])}; {reads}a first token is that of a prompt of {min(figures['lengths'])}"
    )


def print_targets(figures: Figures, console: Console) -> None:
    """What the emitted graphs were to reach, and what they reached."""
    rows = []
    for target in figures["targets"]:
        median, found, met = target["median"], "[dim]not measured[/]", ""
        if median is not None:
            spread = "" if target["min"] == target["max"] else f"  ({target['min']:.2f}–{target['max']:.2f})"
            found, met = f"{_number(median)}{spread}", _verdict(median >= target["least"])
        rows.append((target["what"], _number(target["least"]), found, met))
    _print_table(console, ("target", "at least", "measured (median, range)", ""), rows)


def print_tuned(figures: Figures, console: Console) -> None:
    """What was tried for each precision, and what came of it."""
    for row in figures["precisions"]:
        rows = []
        for tried in row["candidates"]:
            colour = {"chosen": "green", "wrong": "red", "failed": "red"}.get(tried["status"], "dim")
            rows.append((
                tried["phase"], escape(tried["layout"]), escape(tried["build"]),
                *(f"{statistics.median(tried[key]):.1f}" if tried[key] else "" for key in ("ms", "best_ms")),
                f"[{colour}]{tried['status']}[/]",
            ))  # fmt: skip
        heads = (escape(row["precision"]), "layout", "flags", "ms", "the best\nbefore it", "")
        _print_table(console, heads, rows, slice(3, 5))
        for tried in row["candidates"]:
            if tried["detail"]:
                what = f"{tried['phase']}, {tried['layout']}, {tried['build']}"
                console.print(f"[red]{tried['status']}[/]  {escape(what)}: {escape(tried['detail'])}", soft_wrap=True)
        if row["file"]:
            console.print(f"{row['precision']}: [green]{escape(row['choice'])}[/], which conforms", soft_wrap=True)
            console.print(f"[dim]{escape(row['file'])}[/]", soft_wrap=True)
        else:
            chosen = f"{row['choice']}: " if row["choice"] else ""
            console.print(
                f"[red]{row['precision']}: nothing was kept: {escape(chosen + row['verdict'])}[/]", soft_wrap=True
            )


WHAT = {
    "emit_seconds": "time to emit", "graph_bytes": "the graph's text", "compile_cpu_seconds": "processor time to compile",
    "module_bytes": "the module",
}  # fmt: skip


def print_scaling(figures: Figures, console: Console) -> None:
    """What has a limit, and whether it is reached; the page has what was measured against each size."""
    growth = [
        (
            f"{e['phase']}: {WHAT[e['what']]}",
            "" if e["exponent"] is None else f"{e['exponent']:.2f}",
            f"{e['most']:g}",
            _verdict(e["passed"]),
        )
        for e in figures["growth"]
    ]
    memory = [
        (escape(e["model"]), f"{e['share']:.2f}", f"{e['most']:g}", _verdict(e["passed"])) for e in figures["memory"]
    ]
    for what, rows in (("grows with layers to the power of", growth), ("peak memory / weights", memory)):
        if rows:
            _print_table(console, (what, "measured", "at most", ""), rows)
    for line in figures["failures"]:
        console.print(f"[red]not measured: {escape(line)}[/]")
    console.print(
        f"{escape(figures['model'])}, {escape(figures['precision'])}, {figures['rounds']} rounds of {figures['tokens']} "
        f"tokens, {figures['threads']} threads, {escape(figures['environment']['cpu'])}; scaling.html has all figures"
    )


# Of a step: what takes less is summed up in one row.
LEAST_SHARE = 0.01


def print_profile(figures: Figures, console: Console) -> None:
    """The kinds of dispatches, and what a step takes beside them."""
    table = Table(
        "dispatches", "of", "count", "ms", "each\nus", "share", "work-\ners", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )  # fmt: skip
    table.columns[0].overflow, table.columns[0].min_width = "fold", 26
    for column in table.columns[2:]:
        column.justify, column.no_wrap = "right", True
    shown = [row for row in figures["dispatches"] if row["share"] >= LEAST_SHARE]
    for row in shown:
        workers = "" if row["workers"] is None else f"{row['workers']:.2f}"
        table.add_row(
            escape(row["kind"]), escape(", ".join(row["weights"])), f"{row['count']:g}", f"{row['ms']:.2f}",
            f"{row['us']:.1f}", f"{row['share']:.0%}", workers,
        )  # fmt: skip
    if rest := [row for row in figures["dispatches"] if row["share"] < LEAST_SHARE]:
        table.add_row(
            f"{len(rest)} other kinds", "", f"{sum(r['count'] for r in rest):g}", f"{sum(r['ms'] for r in rest):.2f}", "",
            f"{sum(r['share'] for r in rest):.0%}", "",
        )  # fmt: skip
    console.print(table)
    decode = figures["phase"] == "decode"
    what = f"a step at position {figures['position']}" if decode else f"a prompt of {figures['length']}"
    console.print(
        f"{what} takes {figures['median']:.2f} ms ({min(figures['ms']):.2f}–{max(figures['ms']):.2f}); under the profiler "
        f"{figures['profiled_ms']:.2f} ms, with {figures['dispatch_ms']:.2f} ms of dispatches"
    )
    if decode:
        speed, size = figures["bandwidth"], figures["read_bytes"]
        console.print(
            f"memory is read at {speed / 1e9:.1f} GB/s: the weights' {size / 1e6:,.1f} MB in {size / speed * 1000:.2f} ms"
        )
    if figures["ignored"]:
        console.print(f"[yellow]{escape(figures['ignored'])}[/]")
    held = figures["precision"] if figures["compute"] == "f32" else f"computed in {figures['compute']}"
    console.print(
        f"{escape(figures['model'])}, {held}, {figures['capacity']} cache slots, {figures['threads']} "
        f"threads, {escape(figures['choice'])}; {escape(figures['environment']['cpu'])}, IREE "
        f"{figures['environment']['packages']['iree-base-compiler']}"
    )


def _spread(entry: Figures) -> str:
    return f"{entry['median']:.1f}  ({entry['min']:.1f}–{entry['max']:.1f})"


def _verdict(passed: bool) -> str:
    return "[green]reached[/]" if passed else "[yellow]not reached[/]"


def _print_table(
    console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: slice = slice(1, None)
) -> None:
    table = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[numbers]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}" if x != int(x) or x < 10 else f"{x:.0f}"
