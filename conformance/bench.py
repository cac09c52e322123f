"""Decode speed: the emitted graph on IREE, the oracle on XLA, and Hugging Face, taking turns in one process."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hloracle.conformance.environment import MemoryWatch, describe
from hloracle.conformance.evidence import Progress
from hloracle.conformance.speed import Contender, measure
from hloracle.core.child import Report, run_in_child
from hloracle.emitters.model import emit
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.fixtures import resolve

CAPACITY = 256
TIMEOUT_SECONDS = 3600


def bench_decode(model: str, tokens: int, rounds: int, threads: int, progress: Progress) -> dict[str, Any]:
    """Milliseconds per decode step of each contender by round, with the machine. Ratios are taken round by round."""
    directory = resolve(model, progress.report)
    started = time.perf_counter()
    emit(open_checkpoint(directory).config, "decode", "token", CAPACITY)
    emission = time.perf_counter() - started
    with MemoryWatch() as memory, progress.stage("decode"):
        measured = run_in_child(
            _measure, directory, tokens, rounds, threads, timeout=TIMEOUT_SECONDS, report=progress.report
        ).value
    ours = measured[0].ms_per_token
    rows = {
        contender.title: {
            "ms_per_token": contender.ms_per_token,
            "tokens_per_second": 1000 / statistics.median(contender.ms_per_token),
            "speed_of_emitter": [other / mine for other, mine in zip(contender.ms_per_token, ours, strict=True)],
            "resident_bytes": contender.resident_bytes,
        }
        for contender in measured
    }
    return {
        "model": model, "tokens": tokens, "rounds": len(ours), "threads": threads, "capacity": CAPACITY,
        "contenders": rows, "emission_ms": emission * 1000, "peak_bytes": memory.peak_bytes, "environment": describe(),
    }  # fmt: skip


def _measure(report: Report, directory: Path, tokens: int, rounds: int, threads: int) -> list[Contender]:
    from hloracle.reference.lower import lower

    config = open_checkpoint(directory).config
    emitted, oracle = (make(config, "decode", "token", CAPACITY) for make in (emit, lower))
    # All the rounds that were asked for: TIMEOUT_SECONDS is the only limit.
    return measure(report, directory, emitted, oracle, tokens, rounds, threads, math.inf)


def print_table(figures: dict[str, Any], console: Console) -> None:
    """The figures for people: medians with their range, and the emitter's speed in units of each contender's."""
    table = Table("decode", "tokens/s", "ms per token (median, min–max)", "emitter’s speed ÷ its (median, min–max)")
    for name, row in figures["contenders"].items():
        ms, ratio = row["ms_per_token"], row["speed_of_emitter"]
        table.add_row(
            name,
            f"{row['tokens_per_second']:.1f}",
            f"{statistics.median(ms):.1f}  ({min(ms):.1f}–{max(ms):.1f})",
            f"{statistics.median(ratio):.2f}x  ({min(ratio):.2f}–{max(ratio):.2f})",
        )
    console.print(table)
    machine = figures["environment"]
    console.print(
        f"{figures['model']}, {figures['rounds']} rounds of {figures['tokens']} tokens, {figures['threads']} threads, "
        f"{machine['cpu']}; emission of the decode graph {figures['emission_ms']:.0f} ms; "
        f"peak memory {figures['peak_bytes'] / 1e9:.2f} GB"
    )
