"""A configuration: one source's graphs on one backend, run over every prompt and held to the truth.

A configuration runs in a process of its own. Its outcome is cached by content of everything that decides it.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hloracle import backends
from hloracle.backends import iree
from hloracle.backends.compiled import Program
from hloracle.backends.devices import CPU
from hloracle.backends.session import Session, greedy
from hloracle.conformance.context import Context
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs import beside, returned
from hloracle.conformance.runs.beside import Beside, Rows, apart, session_of, together
from hloracle.conformance.runs.returned import Slots, Streamed, after_prompt, changed, repeat, run_stream, slots_of
from hloracle.core import tolerances
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry, digest, entry_name
from hloracle.core.child import ChildDied, TimedOut
from hloracle.core.environment import host_cpu
from hloracle.core.errors import ToolchainError
from hloracle.core.spread import Figures, row_spreads
from hloracle.localize import situation
from hloracle.reference.model.archive import weight_sources
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config

REPEATED = 2  # decode steps that are run twice


@dataclass(frozen=True)
class PromptOutcome:
    """One prompt through a configuration.

    errors: per step, the largest distance of a logit from the float64 truth; empty for head `token`.
    slots: of the caches after the prompt; and after the steps that follow, those that these filled.
    spreads: of what computes in less than float32, how the distances of a step's logits from the truth's are spread.
    """

    tokens: list[int]
    errors: list[float]
    seconds: float
    slots: tuple[Slots, ...] = ()
    spreads: tuple[Figures, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """`status` is `ran`, `reused` or `failed`; `stage` of a failure is `compile`, `load`, `run`, `memory`, `timeout` or
    `process`.

    streams: by their ids. repeated: whether the same calls gave the same bits, and else how far what they gave is apart;
    None where nothing was repeated.
    decodes: its source has a decode graph.
    streams_reused: it ran, but for its streams, which are those of an earlier time.
    programs: what its backend made of the graphs, by their names; of what tells it.
    rows: of graphs of several rows, what these give beside one another.
    """

    configuration: Configuration
    status: str
    prompts: dict[str, PromptOutcome] = field(default_factory=dict)
    stage: str = ""
    message: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None
    streams: dict[str, Streamed] = field(default_factory=dict)
    repeated: tuple[bool, float] | None = None
    streams_reused: bool = False
    decodes: bool = True
    programs: dict[str, Program] = field(default_factory=dict)
    rows: Rows | None = None

    @property
    def slots(self) -> list[tuple[str, Slots]]:
        """What the caches held: after each prompt and after its steps, of each stream after decode and after prefill."""
        found = [(id, slots) for id, result in self.prompts.items() for slots in result.slots]
        return found + [
            (id, slots) for id, s in self.streams.items() for slots in (s.slots, s.prefilled_slots) if slots
        ]


def run_configuration(
    context: Context, configuration: Configuration, graphs: Sequence[Graph], model: Checkpoint, asked: Asked,
    anew: bool = False, so_far: Outcome | None = None,
) -> Outcome:  # fmt: skip
    """Run a source's graphs on a backend in a child process, or take the outcome from the cache when nothing about it moved.

    Args:
      anew: its prompts run in any case, and only its streams are reused.
      so_far: what the same prompts gave in this run, where only the streams are left to be asked.
    """
    exact = [digest(np.ascontiguousarray(asked.truths[p.id].exact).tobytes()) for p in asked.prompts]
    parts: list[str | bytes] = [
        model.digest, *backend_sources(), *_comparing(), *where(context, configuration.backend), configuration.id,
        json.dumps([exact, sorted(entry_name(t.folder) for t in asked.kept.values())]),
        json.dumps([[p.id, p.token_ids, asked.truths[p.id].tokens] for p in asked.prompts]),
        repr(asked.streams), *(g.identity for g in graphs),
    ]  # fmt: skip
    entry: Entry[Outcome] = context.entry("configurations", Outcome, parts, on=configuration.backend)
    before = entry.load()
    if before and not anew:
        return dataclasses.replace(before, status="reused")
    left = asked.without_streams() if before else asked.without_prompts() if so_far else asked
    try:
        child = context.child(_run, configuration, list(graphs), model.directory, left, timeout=context.timeout)
    except ToolchainError as error:
        return Outcome(configuration, "failed", stage=error.stage, message=str(error))
    except TimedOut:
        message = f"it did not end within {context.timeout:g} s"
        return Outcome(configuration, "failed", stage="timeout", message=message)
    except ChildDied as error:
        stage = "memory" if error.cause == "memory" else "process"
        return Outcome(configuration, "failed", stage=stage, message=str(error))
    answer: Outcome = child.value
    peak = None if child.peak_bytes is None else child.peak_bytes + (answer.peak_bytes or 0)
    outcome = dataclasses.replace(answer, seconds=child.seconds, peak_bytes=peak)
    if before:
        return dataclasses.replace(outcome, streams=before.streams, streams_reused=bool(before.streams))
    if so_far:
        outcome = dataclasses.replace(
            outcome, prompts=so_far.prompts, repeated=so_far.repeated, rows=so_far.rows, seconds=so_far.seconds + outcome.seconds,
            peak_bytes=max((p for p in (so_far.peak_bytes, outcome.peak_bytes) if p is not None), default=None),
        )  # fmt: skip
    entry.save(outcome)
    return outcome


def where(context: Context, backend: str) -> list[str]:
    """What decides an outcome of where graphs run: the threads, the flags, the processor, the device."""
    device = context.device if backend == context.device.backend else CPU
    return [json.dumps([*iree.CPU_FLAGS, iree.compiler_path(), context.threads]), repr(device), host_cpu()]


def _comparing() -> list[bytes]:
    """The code and the limits that an outcome is judged by."""
    files = (__file__, beside.__file__, returned.__file__, situation.__file__, tolerances.__file__)
    return [Path(str(file)).read_bytes() for file in files]


def backend_sources() -> list[bytes]:
    """The code that runs graphs, and that gives them their weights: another version may come to another outcome."""
    return [*weight_sources(), *(p.read_bytes() for p in sorted(Path(str(backends.__file__)).parent.rglob("*.py")))]


def _run(
    context: Context, configuration: Configuration, graphs: list[Graph], directory: Path, asked: Asked
) -> Outcome:  # fmt: skip
    context.report(f"{configuration.id}: loading graphs and weights")
    model = open_checkpoint(directory)
    backend = context.backend(configuration.backend)
    session = session_of(backend, graphs, model.load)
    prompts: dict[str, PromptOutcome] = {}
    for prompt in asked.prompts:
        context.report(f"{configuration.id}: {prompt.id}")
        prompts[prompt.id] = _prompt(session, configuration, prompt, asked, model.config)
    streams: dict[str, Streamed] = {}
    for stream in asked.streams:
        context.report(f"{configuration.id}: {stream.id}, at every position")
        streams[stream.id] = run_stream(session, stream, asked.kept[stream.id], model.config)
    repeated = None
    if asked.prompts:
        context.report(f"{configuration.id}: the same calls again")
        first = asked.prompts[0]
        steps = min(REPEATED, session.capacity - len(first.token_ids))
        repeated = repeat(session, first.token_ids, asked.truths[first.id].tokens[:steps], first.bucket)
    rows = None
    if isinstance(session, Beside) and session.batch > 1 and asked.prompts:
        context.report(f"{configuration.id}: all prompts at once")
        fed = {p.id: (p.token_ids, asked.truths[p.id].tokens[:-1]) for p in asked.prompts}
        bucket = min(session.buckets, default=0)
        few = min(asked.prompts, key=lambda p: (len(p.token_ids) < 2, len(p.token_ids)))
        rows = Rows(together(session, fed, bucket), apart(session, fed[few.id], bucket))
    programs = dict(getattr(backend, "programs", {}))
    return Outcome(
        configuration, "ran", prompts, peak_bytes=getattr(backend, "peak_bytes", 0), streams=streams, repeated=repeated,
        decodes=session.decodes, programs=programs, rows=rows,
    )  # fmt: skip


def _prompt(
    session: Session, configuration: Configuration, prompt: Prompt, asked: Asked, config: Config
) -> PromptOutcome:
    """The prompt, and the truth's tokens after it one by one."""
    ids, kept = prompt.token_ids, asked.kept.get(prompt.id)
    truth = asked.truths[prompt.id]
    started = time.monotonic()
    heads = [session.prefill(ids, prompt.bucket) if session.buckets else session.stream_prompt(ids)]
    seconds = time.monotonic() - started
    slots = []
    caches, before, held = session.caches(whole=True), session.bits(), session.holds()
    if kept:
        stayed = after_prompt(session, caches, len(ids), prompt.bucket)
        found = slots_of(caches, kept, config, len(ids), holds=held)
        slots.append(dataclasses.replace(found, stayed=stayed))
    if len(truth.tokens) > 1:
        started = time.monotonic()
        heads += map(session.decode_step, truth.tokens[:-1])
        seconds += time.monotonic() - started
        if kept and session.decodes:
            after, end = session.bits(), len(ids) + len(truth.tokens) - 1
            others, holds = np.delete(np.arange(session.capacity), slice(len(ids), end)), session.holds()
            what = changed(before, after, others, held & holds)
            stayed = f"{what} changed while slots {len(ids)} to {end - 1} were filled" if what else ""
            found = slots_of(session.caches(whole=True), kept, config, end, len(ids), holds)
            slots.append(dataclasses.replace(found, stayed=stayed))
    errors: list[float] = []
    spreads: list[Figures] = []
    if configuration.head == "logits":
        off = [np.abs(h - e) for h, e in zip(heads, np.asarray(truth.exact), strict=False)]
        errors = [float(np.max(row)) for row in off]
        if truth.compute != "f32":
            spreads = [Figures._make(row_spreads(row[None], np.array([row.size]))[0].tolist()) for row in off]
    return PromptOutcome([greedy(h) for h in heads], errors, seconds, tuple(slots), tuple(spreads))
