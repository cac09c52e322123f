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
from hloracle.backends.custom_calls import Target, register
from hloracle.backends.devices import CPU, Device
from hloracle.backends.make import make_backend
from hloracle.backends.session import Session, greedy
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs import returned
from hloracle.conformance.runs.returned import Slots, Streamed, after_prefill, changed, repeat, run_stream, slots_of
from hloracle.core import tolerances
from hloracle.core.abi import Graph
from hloracle.core.cache import cache_root, digest, write_file
from hloracle.core.child import ChildDied, Report, TimedOut, run_in_child
from hloracle.core.environment import host_cpu
from hloracle.core.errors import ToolchainError
from hloracle.localize import situation
from hloracle.mutants import planted
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.archive import weight_sources
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config

TIMEOUT_SECONDS = 1800
REPEATED = 2  # decode steps that are run twice


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
    slots: of the caches after the prompt; and after the steps that follow, those that these filled.
    """

    tokens: list[int]
    errors: list[float]
    seconds: float
    slots: tuple[Slots, ...] = ()


@dataclass(frozen=True)
class CellOutcome:
    """`status` is `ran`, `reused` or `failed`; `stage` of a failure is `compile`, `load`, `run`, `memory`, `timeout` or
    `process`.

    streams: by their ids. repeated: whether the same calls gave the same bits, and else how far what they gave is apart;
    None where nothing was repeated.
    streams_reused: it ran, but for its streams, which are those of an earlier time.
    """

    cell: Cell
    status: str
    prompts: dict[str, PromptOutcome] = field(default_factory=dict)
    stage: str = ""
    message: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None
    streams: dict[str, Streamed] = field(default_factory=dict)
    repeated: tuple[bool, float] | None = None
    streams_reused: bool = False


def run_cell(
    cell: Cell,
    graphs: Sequence[Graph],
    checkpoint: Checkpoint,
    asked: Asked,
    threads: int,
    versions: dict[str, str],
    reuse: bool,
    mutant: str = "",
    targets: Sequence[Target] = (),
    device: Device = CPU,
    report: Report | None = None,
    timeout: float = TIMEOUT_SECONDS,
    anew: bool = False,
) -> CellOutcome:
    """Run a cell in a child process, or take its outcome from the cache when nothing about it moved.

    Args:
      versions: of the packages that decide the outcome.
      reuse: False runs it whatever the cache holds. anew: its prompts run in any case, and only its streams are reused.
      mutant: a deliberate fault to run it with; such an outcome is neither taken from the cache nor kept.
      targets: of custom_calls; XLA finds them, IREE has no such thing.
      device: where its backend runs graphs, unless that is the processor.
      timeout: seconds that it may take.
    """
    exact = [digest(np.ascontiguousarray(asked.truths[p.id].exact).tobytes()) for p in asked.prompts]
    key = digest(
        checkpoint.digest,
        *backend_sources(),
        *_comparing(),
        json.dumps([*iree.CPU_FLAGS, iree.compiler_path(), os.environ.get("XLA_FLAGS", "")]),
        json.dumps([cell.id, threads, versions, exact, sorted(str(t.folder) for t in asked.kept.values())]),
        repr(device if cell.backend == device.backend else CPU),
        json.dumps([[p.id, p.token_ids, asked.truths[p.id].tokens] for p in asked.prompts]),
        repr(asked.streams),
        host_cpu(),
        *(g.text + g.abi.to_json() + json.dumps(g.flags) for g in graphs),
        *(f"{t.name} {t.sha256}" for t in targets),
    )
    entry = cache_root() / "cells" / f"{key[:32]}.json"
    before = _load(entry, cell) if reuse and not mutant else None
    if before and not anew:
        return before
    try:
        child = run_in_child(
            _run, cell, list(graphs), checkpoint.directory, asked.without_streams() if before else asked, threads, mutant, targets, device,
            timeout=timeout, report=report,
        )  # fmt: skip
    except ToolchainError as error:
        return CellOutcome(cell, "failed", stage=error.stage, message=str(error))
    except TimedOut:
        return CellOutcome(cell, "failed", stage="timeout", message=f"it did not end within {timeout:g} s")
    except ChildDied as error:
        stage = "memory" if error.cause == "memory" else "process"
        return CellOutcome(cell, "failed", stage=stage, message=str(error))
    answer: CellOutcome = child.value
    outcome = dataclasses.replace(answer, seconds=child.seconds, peak_bytes=child.peak_bytes)
    if before:
        return dataclasses.replace(outcome, streams=before.streams, streams_reused=bool(before.streams))
    if not mutant:
        write_file(entry, json.dumps(dataclasses.asdict(outcome)))
    return outcome


def _comparing() -> list[bytes]:
    """The code and the limits that an outcome is judged by."""
    files = (__file__, returned.__file__, situation.__file__, tolerances.__file__)
    return [Path(str(file)).read_bytes() for file in files]


def backend_sources() -> list[bytes]:
    """The code that runs graphs, and that gives them their weights: another version may come to another outcome."""
    return [*weight_sources(), *(p.read_bytes() for p in sorted(Path(str(backends.__file__)).parent.glob("*.py")))]


def _load(entry: Path, cell: Cell) -> CellOutcome | None:
    try:
        raw = json.loads(entry.read_text())
        prompts = {
            name: PromptOutcome(**o | {"slots": tuple(map(_slots, o["slots"]))}) for name, o in raw["prompts"].items()
        }
        streams = {
            name: Streamed(
                o["heads"], {int(n): e for n, e in o["prefilled"].items()}, o["slots"] and _slots(o["slots"]),
                o["prefilled_slots"] and _slots(o["prefilled_slots"]), o["apart"],
            )
            for name, o in raw["streams"].items()
        }  # fmt: skip
        return CellOutcome(cell, "reused", prompts, streams=streams, repeated=tuple(raw["repeated"]))
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _slots(raw: dict[str, Any]) -> Slots:
    return Slots({anchor: tuple(found) for anchor, found in raw["worst"].items()}, raw["stayed"])


def _run(
    report: Report, cell: Cell, graphs: list[Graph], directory: Path, asked: Asked, threads: int, mutant: str,
    targets: Sequence[Target], device: Device,
) -> CellOutcome:  # fmt: skip
    if cell.backend == "xla-cpu":
        register(targets)
    with planted(mutant):
        report(f"{cell.id}: loading graphs and weights")
        checkpoint = open_checkpoint(directory)
        session = Session(make_backend(cell.backend, threads, device), graphs, checkpoint.load)
        prompts: dict[str, PromptOutcome] = {}
        for prompt in asked.prompts:
            report(f"{cell.id}: {prompt.id}")
            prompts[prompt.id] = _prompt(session, cell, prompt, asked, checkpoint.config)
        streams: dict[str, Streamed] = {}
        for stream in asked.streams:
            report(f"{cell.id}: {stream.id}, at every position")
            streams[stream.id] = run_stream(session, stream, asked.kept[stream.id], checkpoint.config)
        report(f"{cell.id}: the same calls again")
        first = asked.prompts[0]
        steps = min(REPEATED, session.capabilities.capacity - len(first.token_ids))
        repeated = repeat(session, first.token_ids, asked.truths[first.id].tokens[:steps], first.bucket)
    return CellOutcome(cell, "ran", prompts, streams=streams, repeated=repeated)


def _prompt(session: Session, cell: Cell, prompt: Prompt, asked: Asked, config: Config) -> PromptOutcome:
    """The prompt, and the truth's tokens after it one by one."""
    can, ids, kept = session.capabilities, prompt.token_ids, asked.kept.get(prompt.id)
    truth = asked.truths[prompt.id]
    started = time.monotonic()
    heads = [session.prefill(ids, prompt.bucket) if can.buckets else session.stream_prompt(ids)]
    seconds = time.monotonic() - started
    slots = []
    before = session.caches(whole=True)
    if kept:
        stayed = after_prefill(before, len(ids), prompt.bucket if can.buckets else len(ids))
        slots.append(slots_of(before, kept, config, len(ids), stayed=stayed))
    if can.decodes and len(truth.tokens) > 1:
        started = time.monotonic()
        heads += map(session.decode_step, truth.tokens[:-1])
        seconds += time.monotonic() - started
        if kept:
            slots.append(_filled_by_steps(session, before, kept, config, len(ids), len(truth.tokens) - 1))
    errors = []
    if cell.head == "logits":
        errors = [float(np.max(np.abs(h - e))) for h, e in zip(heads, np.asarray(truth.exact), strict=False)]
    return PromptOutcome([greedy(h) for h in heads], errors, seconds, tuple(slots))


def _filled_by_steps(
    session: Session, before: Sequence[np.ndarray], kept: AnchorTruth, config: Config, first: int, steps: int
) -> Slots:
    """The slots that steps should have filled, from `first` on; the others have to be what they were before."""
    after, end = session.caches(whole=True), first + steps
    what = changed(before, after, np.delete(np.arange(after[0].shape[2]), slice(first, end)))
    stayed = f"{what} changed while slots {first} to {end - 1} were filled" if what else ""
    return slots_of(after, kept, config, end, first, stayed)
