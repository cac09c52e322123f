"""Finds the fastest right way to write and compile the graphs of a precision on this machine.

One thing after the other is tried: how weights lie, then the flags of decode, then those of prefill. A candidate has to
give Hugging Face's tokens before it is timed, and to beat the best so far in rounds that the two take turns in; what is
best at the end has to conform in a whole run before anything uses it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hloracle.backends import iree
from hloracle.backends.devices import CPU, Device
from hloracle.backends.named import backends_on, chosen
from hloracle.bench import contenders
from hloracle.bench.contenders import Spec, Task
from hloracle.bench.run import ROUND_SECONDS, Process
from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions import prompts as prompt_suite
from hloracle.conformance.questions.prompts import Prompt, Reach
from hloracle.conformance.questions.questions import ask
from hloracle.conformance.run import run
from hloracle.conformance.runs.configurations import run_configuration
from hloracle.conformance.settings import Settings
from hloracle.core.abi import Graph
from hloracle.core.environment import describe
from hloracle.core.errors import InputError
from hloracle.production.choice import HOST, LAYOUTS, Build, Choice, keep, production_graphs, untuned, valid_cpu
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.truth import Truth, truths
from hloracle.reference.model.checkpoint import QUANTIZED, Checkpoint, open_checkpoint
from hloracle.reference.model.contract import GraphSpec

SCHEMA = "hloracle-tune/1"
CAPACITY, PROMPT = 256, 256
TOKENS = 48
# Decode is timed where half of the cache is filled, with so many steps a round.
CONTEXT, STEPS = 128, 16
# Streamed through decode a long prompt tells no more than a short one.
STREAMED = 64
# A candidate replaces the best so far if it is faster by this much in the median, and in all rounds but one in so many.
# Two runs of one and the same module differ by 1 to 2 %.
FASTER, BUT_ONE_IN = 1.03, 5


@dataclass(frozen=True)
class Candidate:
    """A choice that may be the fastest one. phase: the phase that is timed."""

    phase: str
    choice: Choice

    def __str__(self) -> str:
        build = self.choice.build(self.phase)
        return f"{self.phase}, {self.choice.held}, {build}"


@dataclass(frozen=True)
class Tuning:
    """What is to be tuned: the graphs of a model in each precision, on a device.

    cpus: what LLVM calls the CPUs that may be compiled for. rounds: in which two candidates take turns.
    """

    model: str
    precisions: tuple[str, ...]
    cpus: tuple[str, ...]
    threads: int
    rounds: int
    device: Device = CPU


@dataclass
class Judge:
    """Judges the candidates of one precision: first their tokens, then their speed."""

    asked: Tuning
    precision: str
    checkpoint: Checkpoint
    prompts: list[Prompt]
    truths: dict[str, Truth]
    progress: Progress

    def graphs(self, candidate: Candidate) -> list[Graph]:
        """The graphs that a candidate is judged by: decode, and for prefill a prompt's bucket too."""
        specs = [GraphSpec("decode", "token", CAPACITY, 0)]
        if candidate.phase == "prefill":
            specs.append(GraphSpec("prefill", "token", CAPACITY, PROMPT))
        return production_graphs(self.checkpoint, self.precision, candidate.choice, specs)

    def wrong(self, candidate: Candidate) -> tuple[str, str]:
        """Whether it does what it should: ("", "") or ("failed" or "wrong", why)."""
        given = [
            dataclasses.replace(p, bucket=PROMPT) for p in self.prompts
            if candidate.phase == "prefill" or len(p.token_ids) <= STREAMED
        ]  # fmt: skip
        by_ids = {p.token_ids: self.truths[p.id] for p in self.prompts}
        expected = {p.id: by_ids[p.token_ids] for p in given}
        self.progress.report(f"{candidate}: compiling, and comparing tokens")
        configuration = Configuration("emitter", self.asked.device.backend, "token")
        question, _ = ask(self.checkpoint, given, expected, Reach(CAPACITY, [PROMPT]), report=self.progress.report)
        device = candidate.choice.opened(self.asked.device)
        context = Context(self.progress, chosen([device.backend], device), device, self.asked.threads)
        outcome = run_configuration(
            context, configuration, self.graphs(candidate), self.checkpoint, question.without_streams()
        )  # fmt: skip
        bad = [check for check in configuration_checks(outcome, expected) if check.status != "passed"]
        if not bad:
            return "", ""
        first = bad[0]
        if first.status == "error":
            return "failed", first.detail
        return "wrong", f"{first.figure} {first.kind}: {first.detail}"

    def times(self, candidates: Sequence[Candidate]) -> tuple[list[list[float]], str]:
        """Milliseconds of each in every round, in which they take turns; or why one cannot be timed."""
        phase = candidates[0].phase
        lengths = (PROMPT,) if phase == "prefill" else ()
        task = Task(self.asked.model, (CONTEXT,), lengths, STEPS, self.asked.threads, self.asked.device)
        function, at = (contenders.prefill, PROMPT) if phase == "prefill" else (contenders.decode, CONTEXT)
        found: list[list[float]] = [[] for _ in candidates]
        with ExitStack() as stack:
            specs = [Spec("emitter", str(c), self.precision, c.choice) for c in candidates]
            processes = [stack.enter_context(Process(spec)) for spec in specs]
            for process in processes:
                process.open(task)
            for nth in range(self.asked.rounds):
                self.progress.report(f"{candidates[-1]}: round {nth + 1} of {self.asked.rounds}")
                for process, ms in zip(processes, found, strict=True):
                    if (taken := process.ask(ROUND_SECONDS, function, at)) is not None:
                        ms.append(round(taken, 4))
            failure = next((f"{p.spec.title}: {p.failure}" for p in processes if p.failure), "")
        return found, failure


def run_tune(asked: Tuning, progress: Progress) -> dict[str, Any]:
    """What came of it, as JSON; the choices that conform are kept. Raises InputError when the model cannot be used."""
    device, cpus = asked.device, asked.cpus
    if device.remote and set(cpus) - {HOST}:
        raise InputError("is of the processor", f"--target-cpu {cpus[0]}", f"leave it out of --device {device}")
    for cpu in cpus:
        if not valid_cpu(cpu):
            raise InputError(f"is {cpu!r}", "--target-cpu", "give a name that LLVM knows, such as host or x86-64-v3")
    found = [_tuned(asked, precision, progress) for precision in asked.precisions]
    return {
        "schema": SCHEMA, "model": asked.model, "device": device.name, "threads": asked.threads,
        "rounds": asked.rounds,
        "precisions": found, "environment": describe(),
    }  # fmt: skip


def _tuned(asked: Tuning, precision: str, progress: Progress) -> dict[str, Any]:
    device, threads = asked.device, asked.threads
    with progress.stage(f"{precision}: truth"):
        checkpoint = open_checkpoint(resolve(asked.model, progress.report, precision))
        every = prompt_suite.suite(
            checkpoint.directory, checkpoint.config, Reach(CAPACITY), TOKENS, progress.report, only_fitting=True
        )  # fmt: skip
        prompts = list({p.token_ids: p for p in every}.values())
        answers = truths(checkpoint, [p.token_ids for p in prompts], TOKENS, progress.report)
        expected = {p.id: t for p, t in zip(prompts, answers, strict=True)}
    judge = Judge(asked, precision, checkpoint, prompts, expected, progress)
    rows: list[dict[str, Any]] = []
    best: Choice | None = None
    for phase in ("decode", "prefill"):
        best = _fastest(judge, phase, best or first_choice(asked.cpus, device), rows)
        if best is None:
            break
    row = {"precision": precision, "candidates": rows, "choice": str(best) if best else "", "verdict": "", "file": ""}
    if best is None:
        return row | {"verdict": "no candidate gives the right tokens"}
    with progress.stage(f"{precision}: conformance"):
        settings = Settings(asked.model, precision=precision, choice=best, rounds=0)
        context = Context(Progress(progress.report), chosen(backends_on(device), device), device, threads)
        record = run(settings, context)
    row["verdict"] = record["verdict"]["class"]
    if record["passed"]:
        row["file"] = str(keep(checkpoint, precision, threads, best, rows, device))
    return row


def first_choice(cpus: Sequence[str], device: Device = CPU) -> Choice:
    """What is taken where nothing was measured, on the first CPU."""
    choice = untuned(device=device)
    for phase in iree.PHASE_FLAGS:
        choice = choice.with_build(phase, Build(choice.build(phase).flags, cpus[0]))
    return choice


def others(
    best: Choice, phase: str, precision: str, cpus: Sequence[str], device: Device = CPU
) -> list[list[Choice]]:  # fmt: skip
    """What may be better than the best so far: a list for each thing that may be otherwise."""
    now = best.build(phase)
    floats = phase == "decode" and precision not in QUANTIZED
    layouts = [layout for layout in LAYOUTS if layout != best.layout and floats]
    fused = [not best.fused] if phase == "decode" else []  # both phases share the weights
    graphs = [not best.graphs] if phase == "decode" and device.of_cuda else []  # a device is opened one way
    sets = iree.DEVICE_PHASE_FLAGS if device.remote else iree.PHASE_FLAGS[phase]
    flags = [flags for flags in sets if flags != now.flags]
    return [
        [dataclasses.replace(best, layout=layout) for layout in layouts],
        [dataclasses.replace(best, fused=one) for one in fused],
        [dataclasses.replace(best, graphs=one) for one in graphs],
        [best.with_build(phase, Build(name, now.cpu)) for name in flags],
        [best.with_build(phase, Build(now.flags, cpu)) for cpu in cpus if cpu != now.cpu],
    ]


def _fastest(judge: Judge, phase: str, first: Choice, rows: list[dict[str, Any]]) -> Choice | None:
    """The fastest of those that give the right tokens, or None; every candidate gets a row."""
    best = _right(judge, Candidate(phase, first), rows)
    known = phase, judge.precision, judge.asked.cpus, judge.asked.device
    for thing in range(len(others(first, *known))):
        for choice in others(best.choice if best else first, *known)[thing]:
            candidate = _right(judge, Candidate(phase, choice), rows)
            if candidate and (best is None or _beats(judge, candidate, best, rows)):
                best = candidate
    for row in rows:
        if best and row["phase"] == phase and row["choice"] == str(best.choice) and not row["detail"]:
            row["status"] = "chosen"
    return best.choice if best else None


def _right(judge: Judge, candidate: Candidate, rows: list[dict[str, Any]]) -> Candidate | None:
    with judge.progress.stage(f"{judge.precision}: {candidate}"):
        try:
            status, detail = judge.wrong(candidate)
        except InputError as error:  # such as nothing to fuse
            status, detail = "failed", error.what
    rows.append({
        "phase": candidate.phase, "choice": str(candidate.choice), "layout": candidate.choice.held,
        "build": str(candidate.choice.build(candidate.phase)), "status": status or "right", "detail": detail, "ms": [],
        "best_ms": [],
    })  # fmt: skip
    return None if status else candidate


def _beats(judge: Judge, candidate: Candidate, best: Candidate, rows: list[dict[str, Any]]) -> bool:
    (before, ms), failure = judge.times([best, candidate])
    rows[-1] |= {"ms": ms, "best_ms": before}
    if failure:
        rows[-1] |= {"status": "failed", "detail": failure}
        return False
    faster = is_faster(ms, before)
    rows[-1]["status"] = "faster" if faster else "slower"
    return faster


def is_faster(ms: Sequence[float], than: Sequence[float]) -> bool:
    """Whether that is more than the machine's noise: see FASTER. Times are of rounds in which both took their turn."""
    ratios = [b / a for a, b in zip(ms, than, strict=True)]
    slower = sum(r <= 1 for r in ratios)
    return bool(ratios) and statistics.median(ratios) >= FASTER and slower <= len(ratios) // BUT_ONE_IN
