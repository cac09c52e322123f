"""A cell: one source's graphs on one backend, run over every prompt and held to the truth.

A cell runs in a process of its own. Its outcome is cached by content of everything that decides it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloracle import backends
from hloracle.backends import iree
from hloracle.backends.compiled import host_cpu
from hloracle.backends.devices import CPU, Device
from hloracle.backends.session import Backend, Session, greedy
from hloracle.backends.targets import Target, register
from hloracle.conformance.prompts import Prompt
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import ToolchainError
from hloracle.core.store import cache_root, digest, write_file
from hloracle.mutants import planted
from hloracle.reference.archive import weight_sources
from hloracle.reference.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.truth import Truth

TIMEOUT_SECONDS = 1800
REPEATED = 2  # decode steps that are run twice on a device


@dataclass(frozen=True)
class Cell:
    """`source` is `oracle`, `emitter` or `file`; `head` decides how it is run.

    logits: the token is the logits' argmax. token: the production graph, whose own token it is.
    Each step is fed the truth's token: as long as the tokens agree this is a free run, and after one
    that differs every later step is still judged by itself.
    """

    source: str
    backend: str
    head: str = "logits"

    @property
    def id(self) -> str:
        return f"{self.source}/{self.backend}" + ("/token" if self.head == "token" else "")


@dataclass(frozen=True)
class PromptOutcome:
    """One prompt through a cell.

    errors: per step, the largest distance of a logit from the float64 truth; empty for head `token`.
    head_distance, cache_distance: prefill against streaming the prompt through decode: the largest
    distance of a logit, and of a cache entry in units of the largest entry; None where not compared.
    repeat_distance: the largest distance of a logit from what the same calls gave before; None where they were not repeated.
    """

    tokens: list[int]
    errors: list[float]
    seconds: float
    head_distance: float | None = None
    cache_distance: float | None = None
    repeat_distance: float | None = None


@dataclass(frozen=True)
class CellOutcome:
    """`status` is `ran`, `reused` or `failed`; `stage` of a failure is `compile`, `load`, `run`, `memory` or `process`."""

    cell: Cell
    status: str
    prompts: dict[str, PromptOutcome] = field(default_factory=dict)
    stage: str = ""
    message: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None


def make_backend(name: str, threads: int, device: Device = CPU) -> Backend:
    """The backend of this name: `iree-cpu`, `xla-cpu`, or that of the device."""
    if name == "xla-cpu":
        from hloracle.backends.xla import XlaCpu

        return XlaCpu()
    from hloracle.backends.iree import IreeCpu, IreeDevice

    if name == CPU.backend:
        return IreeCpu(threads)
    if name != device.backend:
        raise ValueError(f"{name} is not the backend of {device}")
    return IreeDevice(device)


def run_cell(
    cell: Cell,
    graphs: Sequence[Graph],
    checkpoint: Checkpoint,
    prompts: Sequence[Prompt],
    truths: dict[str, Truth],
    threads: int,
    versions: dict[str, str],
    reuse: bool,
    streamed: Sequence[str] = (),
    mutant: str = "",
    targets: Sequence[Target] = (),
    device: Device = CPU,
    report: Report | None = None,
) -> CellOutcome:
    """Run a cell in a child process, or take its outcome from the cache when nothing about it moved.

    Args:
      truths: by the prompt's id.
      versions: of the packages that decide the outcome.
      reuse: False runs it whatever the cache holds.
      streamed: ids of prompts that are also streamed through decode and compared with prefill.
      mutant: a deliberate fault to run it with; such an outcome is neither taken from the cache nor kept.
      targets: of custom_calls; XLA finds them, IREE has no such thing.
      device: where its backend runs graphs, unless that is the processor.
    """
    questions = [(p, truths[p.id].tokens) for p in prompts]
    truth_files = [digest(np.ascontiguousarray(truths[p.id].exact).tobytes()) for p in prompts]
    key = digest(
        checkpoint.digest,
        *backend_sources(),
        Path(__file__).read_bytes(),
        json.dumps([*iree.CPU_FLAGS, iree.compiler_path(), os.environ.get("XLA_FLAGS", "")]),
        json.dumps([cell.id, threads, sorted(streamed), versions, truth_files]),
        repr(device if cell.backend == device.backend else CPU),
        json.dumps([[p.id, p.token_ids, tokens] for p, tokens in questions]),
        host_cpu(),
        *(g.text + g.abi.to_json() + json.dumps(g.flags) for g in graphs),
        *(f"{t.name} {t.sha256}" for t in targets),
    )
    entry = cache_root() / "cells" / f"{key[:32]}.json"
    if reuse and not mutant and (found := _load(entry, cell)):
        return found
    exact = {p.id: np.asarray(truths[p.id].exact) for p in prompts}
    try:
        child = run_in_child(
            _run, cell, list(graphs), checkpoint.directory, questions, exact, threads, streamed, mutant, targets, device,
            timeout=TIMEOUT_SECONDS, report=report,
        )  # fmt: skip
    except ToolchainError as error:
        return CellOutcome(cell, "failed", stage=error.stage, message=str(error))
    except ChildDied as error:
        return CellOutcome(cell, "failed", stage="process", message=str(error))
    outcome = CellOutcome(cell, "ran", child.value, seconds=child.seconds, peak_bytes=child.peak_bytes)
    if mutant:
        return outcome
    write_file(entry, json.dumps({name: dataclasses.asdict(o) for name, o in outcome.prompts.items()}))
    return outcome


def backend_sources() -> list[bytes]:
    """The code that runs graphs, and that gives them their weights: another version may come to another outcome."""
    return [*weight_sources(), *(p.read_bytes() for p in sorted(Path(str(backends.__file__)).parent.glob("*.py")))]


def _load(entry: Path, cell: Cell) -> CellOutcome | None:
    try:
        raw = json.loads(entry.read_text())
        return CellOutcome(cell, "reused", {name: PromptOutcome(**o) for name, o in raw.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _run(
    report: Report, cell: Cell, graphs: list[Graph], directory: Path, questions: list[tuple[Prompt, list[int]]],
    exact: dict[str, np.ndarray], threads: int, streamed: Sequence[str], mutant: str,
    targets: Sequence[Target], device: Device,
) -> dict[str, PromptOutcome]:  # fmt: skip
    if cell.backend == "xla-cpu":
        register(targets)
    with planted(mutant):
        report(f"{cell.id}: loading graphs and weights")
        session = Session(make_backend(cell.backend, threads, device), graphs, open_checkpoint(directory).load)
        outcomes: dict[str, PromptOutcome] = {}
        stream: dict[tuple[int, ...], tuple[Any, Any]] = {}
        for prompt, truth in questions:
            report(f"{cell.id}: {prompt.id}")
            started = time.monotonic()
            ids = prompt.token_ids
            if prompt.id in streamed and ids not in stream:
                stream[ids] = session.stream_prompt(ids), session.caches()
            heads = [
                session.prefill(ids, prompt.bucket) if session.capabilities.buckets else session.stream_prompt(ids)
            ]
            distances: tuple[float | None, float | None] = (None, None)
            if prompt.id in streamed:
                distances = _against_streaming(session, heads[0], *stream[ids])
            if session.capabilities.decodes:
                for step in range(len(truth) - 1):
                    heads.append(session.decode_step(truth[step]))
            errors = []
            if cell.head == "logits":
                errors = [float(np.max(np.abs(h - e))) for h, e in zip(heads, exact[prompt.id], strict=False)]
            tokens = [greedy(h) for h in heads]
            seconds = time.monotonic() - started
            repeated = _repeated(session, prompt, truth, heads) if repeats(cell) and not outcomes else None
            outcomes[prompt.id] = PromptOutcome(tokens, errors, seconds, *distances, repeated)
    return outcomes


def repeats(cell: Cell) -> bool:
    """Whether a cell runs its first prompt twice: on a device sums may be added up in another order each time."""
    return cell.head == "logits" and cell.backend not in (CPU.backend, "xla-cpu")


def _repeated(session: Session, prompt: Prompt, truth: Sequence[int], heads: Sequence[Any]) -> float:
    again = [session.prefill(prompt.token_ids, prompt.bucket), *map(session.decode_step, truth[:REPEATED])]
    return float(np.max([np.max(np.abs(a - b)) for a, b in zip(again, heads, strict=False)]))


def _against_streaming(
    session: Session, head: Any, stream_head: Any, stream_caches: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float]:
    """The distances of PromptOutcome, of a prefill that was just made from the same prompt streamed before."""
    # np.max, not max: a NaN anywhere is the largest distance.
    scale = np.max([np.max(np.abs(c)) for c in stream_caches])
    cache_distance = np.max([np.max(np.abs(a - b)) for a, b in zip(session.caches(), stream_caches, strict=True)])
    # A token says too little: at a near-tie two right ones differ. What it was chosen from shows in the caches' last slots.
    head_distance = 0.0 if isinstance(head, int) else float(np.max(np.abs(head - stream_head)))
    with np.errstate(divide="ignore"):  # caches of zeros against others are infinitely far apart
        return head_distance, float(cache_distance / scale) if cache_distance else 0.0
