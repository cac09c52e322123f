"""Decode steps timed against peers: the emitted graph on IREE, the oracle on XLA, and Hugging Face, taking turns.

They take turns in one process, because a machine's speed changes from one minute to the next by more than they differ.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hloracle.backends.devices import CPU, Device
from hloracle.backends.make import make_backend
from hloracle.backends.session import Session, greedy
from hloracle.core.abi import Graph
from hloracle.core.child import Report
from hloracle.reference.model.checkpoint import open_checkpoint

TOKENS = 8  # steps in a round of a run
CONTEXT = 16  # prompt tokens before the steps that are timed
BUDGET_SECONDS = 60  # of a run: a large model has fewer rounds
PEERS = {"oracle/xla-cpu": "oracle on XLA", "transformers": "Hugging Face float32"}

Run = Callable[[list[int], int], float]  # a prompt and how many tokens -> milliseconds per token


@dataclass(frozen=True)
class Contender:
    """Milliseconds per token, a round each; `resident_bytes` is by how much the process grew when it was made ready."""

    id: str
    ms_per_token: list[float]
    resident_bytes: int

    @property
    def title(self) -> str:
        return PEERS.get(self.id, "emitter on IREE")


def measure(
    report: Report, directory: Path, emitted: Graph, oracle: Graph, tokens: int, rounds: int, threads: int,
    device: Device = CPU, budget_seconds: float = BUDGET_SECONDS,
) -> list[Contender]:  # fmt: skip
    """Each contender's decode steps, for at most so many rounds; runs in a child process. The graphs are decode graphs.

    Args:
      budget_seconds: no round but the first begins later.
    """
    import torch

    torch.set_num_threads(threads)
    checkpoint = open_checkpoint(directory)
    prompt = np.random.default_rng(0).integers(0, checkpoint.config.vocab_size, CONTEXT).tolist()
    makers: dict[str, Callable[[], Run]] = {
        f"emitter/{device.backend}/token": partial(_session, device.backend, threads, device, emitted, directory),
        "oracle/xla-cpu": partial(_session, "xla-cpu", threads, device, oracle, directory),
        "transformers": partial(_transformers, directory),
    }
    contenders: dict[str, Callable[[], float]] = {}
    grown: dict[str, int] = {}
    for id, make in makers.items():
        report(f"loading {PEERS.get(id, id)}")
        gc.collect()
        before = psutil.Process().memory_info().rss
        contenders[id] = partial(make(), prompt, tokens)
        contenders[id]()  # warms up
        gc.collect()
        grown[id] = max(0, psutil.Process().memory_info().rss - before)
    found: dict[str, list[float]] = {id: [] for id in contenders}
    deadline = time.perf_counter() + budget_seconds
    for nth in range(1, rounds + 1):
        if nth > 1 and time.perf_counter() > deadline:
            break
        report(f"decode speed, round {nth} of {rounds}")
        for id, contender in contenders.items():
            found[id].append(contender())
    return [Contender(id, [round(ms, 4) for ms in values], grown[id]) for id, values in found.items()]


def _session(backend: str, threads: int, device: Device, graph: Graph, directory: Path) -> Run:
    session = Session(make_backend(backend, threads, device), [graph], open_checkpoint(directory).load)
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
