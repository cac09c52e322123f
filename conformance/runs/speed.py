"""Decode steps timed against peers: the emitted graph on IREE, the oracle on XLA, and Hugging Face, taking turns.

They take turns in one process, because a machine's speed changes from one minute to the next by more than they differ.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hloracle.backends.session import Session, greedy
from hloracle.conformance.context import Context
from hloracle.conformance.matrix import Configuration
from hloracle.core.abi import Graph
from hloracle.reference.model.checkpoint import open_checkpoint

TOKENS = 8  # steps in a round of a run
CONTEXT = 16  # prompt tokens before the steps that are timed
BUDGET_SECONDS = 60  # of a run, after which no round begins but the first: a large model has fewer rounds
TRANSFORMERS = "transformers"

Run = Callable[[list[int], int], float]  # a prompt and how many tokens -> milliseconds per token


@dataclass(frozen=True)
class Contender:
    """Milliseconds per token, a round each; `resident_bytes` is by how much the process grew when it was made ready.

    source, backend: of its graph; empty of Hugging Face.
    """

    id: str
    source: str
    backend: str
    title: str
    ms_per_token: list[float]
    resident_bytes: int


def measure(
    context: Context, directory: Path, graphs: Sequence[tuple[Configuration, Graph]], rounds: int
) -> list[Contender]:
    """The decode steps of each graph and of Hugging Face, for at most so many rounds; runs in a child process.

    Args:
      graphs: decode graphs, each with where it runs.
    """
    import torch

    torch.set_num_threads(context.threads)
    model = open_checkpoint(directory)
    prompt = np.random.default_rng(0).integers(0, model.config.vocab_size, CONTEXT).tolist()
    makers: dict[str, Callable[[], Run]] = {
        c.id: partial(_session, context, c.backend, g, directory) for c, g in graphs
    }
    makers[TRANSFORMERS] = partial(_transformers, directory)
    titles = {c.id: f"{c.source} on {context.matrix[c.backend].title}" for c, _ in graphs} | {
        TRANSFORMERS: "Hugging Face float32"
    }
    contenders: dict[str, Callable[[], float]] = {}
    grown: dict[str, int] = {}
    for id, make in makers.items():
        context.report(f"loading {titles[id]}")
        gc.collect()
        before = _resident()
        contenders[id] = partial(make(), prompt, TOKENS)
        contenders[id]()  # warms up
        gc.collect()
        grown[id] = max(0, _resident() - before)
    found: dict[str, list[float]] = {id: [] for id in contenders}
    deadline = time.perf_counter() + BUDGET_SECONDS
    for nth in range(1, rounds + 1):
        if nth > 1 and time.perf_counter() > deadline:
            break
        context.report(f"decode speed, round {nth} of {rounds}")
        for id, contender in contenders.items():
            found[id].append(contender())
    of = {c.id: (c.source, c.backend) for c, _ in graphs} | {TRANSFORMERS: ("", "")}
    return [Contender(id, *of[id], titles[id], [round(ms, 4) for ms in found[id]], grown[id]) for id in found]


def _resident() -> int:
    """Bytes of this process and of those that it has started: a backend may be one of these."""
    me = psutil.Process()
    found = 0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.memory_info().rss
    return found


def _session(context: Context, backend: str, graph: Graph, directory: Path) -> Run:
    session = Session(context.backend(backend), [graph], open_checkpoint(directory).load)
    first: list[int] = []

    def run(prompt: list[int], tokens: int) -> float:
        if not first:
            first.append(greedy(session.stream_prompt(prompt)))
        # Back to the prompt's end, whose keys are still there: what is behind is masked, and written anew.
        session.position, token = len(prompt), first[0]
        started = time.perf_counter()
        for _ in range(tokens):
            token = greedy(session.decode_step(token))
        return (time.perf_counter() - started) / tokens * 1000

    return run


class _Clock:
    """A streamer that notes when each token came; the prompt is the first thing put."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _transformers(directory: Path) -> Run:
    """Hugging Face as its users run it: its own choice of attention, not the eager one of the truth; `generate`."""
    import torch

    from hloracle.reference.huggingface.truth import load_model

    model = load_model(directory, attention=None)

    def run(prompt: list[int], tokens: int) -> float:
        clock, count = _Clock(), tokens + 1
        with torch.inference_mode():
            model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), streamer=clock,
                do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0,
            )  # fmt: skip
        # The clock starts when the prompt's own token is there.
        return (clock.times[-1] - clock.times[1]) / tokens * 1000

    return run
