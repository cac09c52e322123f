"""Decode speed: the emitted graph on IREE, the oracle on XLA, and Hugging Face, taking turns in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hloracle.backends.session import Session, greedy
from hloracle.conformance.cells import make_backend
from hloracle.conformance.environment import MemoryWatch, describe
from hloracle.conformance.evidence import Progress
from hloracle.core.child import Report, run_in_child
from hloracle.emitters.model import emit
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.fixtures import resolve

CAPACITY = 256
PROMPT_TOKENS = 16
CONTENDERS = ("emitter on IREE", "oracle on XLA", "Hugging Face float32")
TIMEOUT_SECONDS = 3600


def bench_decode(model: str, tokens: int, rounds: int, threads: int, progress: Progress) -> dict[str, Any]:
    """Milliseconds per decode step of each contender by round, with the machine. Ratios are taken round by round."""
    directory = resolve(model, progress.report)
    started = time.perf_counter()
    emit(open_checkpoint(directory).config, "decode", "token", CAPACITY)
    emission = time.perf_counter() - started
    with MemoryWatch() as memory, progress.stage("decode"):
        steps = run_in_child(
            _measure, directory, tokens, rounds, threads, timeout=TIMEOUT_SECONDS, report=progress.report
        ).value
    ours = steps[CONTENDERS[0]]
    rows = {
        name: {
            "ms_per_token": values,
            "tokens_per_second": 1000 / statistics.median(values),
            "speed_of_emitter": [other / mine for other, mine in zip(values, ours, strict=True)],
        }
        for name, values in steps.items()
    }
    return {
        "model": model, "tokens": tokens, "rounds": rounds, "threads": threads, "capacity": CAPACITY,
        "contenders": rows, "emission_ms": emission * 1000, "peak_bytes": memory.peak_bytes, "environment": describe(),
    }  # fmt: skip


def _measure(report: Report, directory: Any, tokens: int, rounds: int, threads: int) -> dict[str, list[float]]:
    import torch

    from hloracle.reference.lower import lower
    from hloracle.reference.truth import load_model

    torch.set_num_threads(threads)
    checkpoint = open_checkpoint(directory)
    prompt = np.random.default_rng(0).integers(0, checkpoint.config.vocab_size, PROMPT_TOKENS).tolist()
    report("compiling and loading")
    sessions = [
        Session(make_backend(backend, threads), [make(checkpoint.config, "decode", "token", CAPACITY)], checkpoint.load)
        for make, backend in ((emit, "iree-cpu"), (lower, "xla-cpu"))
    ]
    # Hugging Face as its users run it: scaled_dot_product_attention, not the eager attention of the truth.
    model = load_model(directory, attention="sdpa")
    contenders: list[Callable[[], float]] = [lambda s=s: _ours(s, prompt, tokens) for s in sessions]  # type: ignore[misc]
    contenders.append(lambda: _hugging_face(model, prompt, tokens))
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for round in range(rounds + 1):
        report(f"round {round} of {rounds}" if round else "warming up")
        for name, contender in zip(CONTENDERS, contenders, strict=True):
            milliseconds = contender()
            if round:
                found[name].append(milliseconds)
    return found


def _ours(session: Session, prompt: list[int], tokens: int) -> float:
    token = greedy(session.stream_prompt(prompt))
    started = time.perf_counter()
    for _ in range(tokens):
        token = greedy(session.decode_step(token))
    return (time.perf_counter() - started) / tokens * 1000


class _Clock:
    """A streamer that notes when each token came; the prompt is the first thing put."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _hugging_face(model: Any, prompt: list[int], tokens: int) -> float:
    """`generate`, as its users call it; the clock starts when the prompt's own token is there."""
    import torch

    clock, count = _Clock(), tokens + 1
    with torch.inference_mode():
        model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), streamer=clock,
            do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0,
        )  # fmt: skip
    return (clock.times[-1] - clock.times[1]) / tokens * 1000


def print_table(figures: dict[str, Any], console: Console) -> None:
    """The figures for people: medians with their range, and the emitter's speed in units of each contender's."""
    table = Table("decode", "tokens/s", "ms per token (median, min–max)", "emitter is faster by (median, min–max)")
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
