"""Times all contenders in turns, and gathers the figures.

A machine's speed changes from one minute to the next by more than contenders differ, so every round asks each of them
once, and what is compared is compared within a round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import Any

from hloracle.bench import contenders, machine
from hloracle.bench.contenders import MACHINE, Opened, Spec, Task
from hloracle.bench.goals import summary, targets
from hloracle.conformance.context import Progress
from hloracle.conformance.questions.prompts import Reach
from hloracle.conformance.questions.prompts import suite as prompts_of
from hloracle.core.child import ChildDied, Report, end_with_parent, kill_descendants, run_in_child
from hloracle.core.environment import describe
from hloracle.core.errors import InputError, ToolchainError
from hloracle.production.choice import tuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import refuse_beside_int8, refuse_without_rings

SCHEMA = "hloracle-bench/1"
OPEN_SECONDS, ROUND_SECONDS = 1800, 600
AGREED_TOKENS = 48
# Whose greedy tokens are counted against the truth over the same weights.
AGREED = ("emitter/int4", "llama.cpp")


def _begin() -> None:
    """In a contender's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    end_with_parent()


class Process:
    """A contender's process. What it cannot do is kept in `failure`, and it is not asked again."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.failure = ""
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin)
        self.opened: Opened | None = None

    def open(self, task: Task) -> None:
        """Make the contender ready; see `contenders.open_`."""
        self.opened = self.ask(OPEN_SECONDS, contenders.open_, self.spec, task, time.time())

    def refuse(self, why: str) -> None:
        """Take it out before it is opened."""
        self.failure = why
        self.close()

    def ask(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function(*arguments)` gives there, or None."""
        if self.failure:
            return None
        try:
            future: Future[Any] = self._pool.submit(function, *arguments)
            return future.result(timeout=seconds)
        except BrokenProcessPool:
            self.failure = "its process died"
        except TimeoutError:
            self.failure = f"it took more than {seconds:g} s"
        except (InputError, ToolchainError, MemoryError) as error:
            self.failure = " ".join(str(error).split()) or "out of memory"
        except Exception as error:  # a library of another project's: its own words are all there is
            self.failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self.close()
        return None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process, whatever it is doing."""
        kill_descendants(self._pool._processes or {})
        self._pool.shutdown(wait=False, cancel_futures=True)


def run_bench(task: Task, rounds: int, specs: Sequence[Spec], progress: Progress) -> dict[str, Any]:
    """The figures of a bench, as JSON. Raises InputError when the model cannot be used."""
    with progress.stage("models"):
        config = open_checkpoint(resolve(task.model, progress.report)).config
        for spec in specs:
            refuse_beside_int8(task.kv, spec.compute, task.ring)
        if task.ring:
            refuse_without_rings(config, task.capacity)
        chosen = [_as_tuned(spec, task, progress) for spec in specs]
        specs = [spec for spec, _ in chosen]
    with progress.stage("compile"):
        for spec in specs:
            if spec.kind in ("emitter", "oracle"):
                compile_first(spec, task, progress.report)
    with ExitStack() as stack:
        free = machine.free_bytes()
        reader, *processes = (stack.enter_context(Process(spec)) for spec in (MACHINE, *specs))
        reader.open(task)
        for process in processes:
            # All have their weights at once: one that makes others wait for a disk would be measured, and they too.
            needed = contenders.memory_for(process.spec, config)
            if needed > free:
                process.refuse(too_large(needed, free))
                continue
            free -= needed
            with progress.stage(f"open {process.spec.title}"):
                process.open(task)
        rows = {p.spec.id: _row(p, task) for p in processes}
        bandwidth = []
        with progress.stage("rounds"):
            progress.report("a round that does not count")  # XLA compiles at its first call, and weights are read in
            _round(processes, {p.spec.id: _row(p, task) for p in processes})
            for nth in range(1, rounds + 1):
                progress.report(f"round {nth} of {rounds}")
                bandwidth.append(reader.ask(ROUND_SECONDS, contenders.bandwidth))
                _round(processes, rows)
        with progress.stage("texts"):
            _agreement(processes, task, rows, progress.report)
        for process in processes:
            row = rows[process.spec.id]
            row["failure"] = process.failure
            if process.failure:  # rounds before it failed are no measurement
                row |= {"decode": [], "prefill": []}
    for row in rows.values():
        for measured in row["decode"] + row["prefill"]:
            measured |= summary(measured["ms"])
    found = {
        "schema": SCHEMA, "model": task.model, "contexts": list(task.contexts), "lengths": list(task.lengths),
        "tokens": task.tokens, "rounds": rounds, "threads": task.threads, "capacity": task.capacity,
        "ring": task.ring, "kv": task.kv,
        "ignored": [why for _, why in chosen if why], "bandwidth": bandwidth, "contenders": rows,
        "environment": describe(),
    }  # fmt: skip
    return {**found, "targets": targets(found)}


def compile_first(spec: Spec, task: Task, report: Report) -> None:
    """Compile a contender in a process that ends with it. What does not compile says so when it is opened."""
    with contextlib.suppress(ToolchainError, ChildDied):
        run_in_child(contenders.compile_, spec, task, timeout=OPEN_SECONDS, report=report)


def _as_tuned(spec: Spec, task: Task, progress: Progress) -> tuple[Spec, str]:
    """A contender with what was found fastest for it here, and why that was ignored if it was."""
    if (
        spec.kind != "emitter" or spec.batch > 1 or spec.compute != "f32" or task.kv != "compute"
    ):  # which nothing is tuned for
        return spec, ""
    found = tuned(contenders.opened(spec, task, progress.report), spec.precision, task.threads)
    return (dataclasses.replace(spec, choice=found.choice) if found.choice else spec), found.ignored


def too_large(needed: int, free: int) -> str:
    """Why a model is not measured: `needed` bytes of weights, and `free` bytes of memory."""
    return f"its weights take {needed / 1e9:.1f} GB of memory, and {max(free, 0) / 1e9:.1f} GB are free"


def _row(process: Process, task: Task) -> dict[str, Any]:
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(Opened))
    return {
        "kind": process.spec.kind,
        "title": process.spec.title,
        "precision": process.spec.precision,
        "batch": process.spec.batch,
        "compute": process.spec.compute,
        "choice": str(process.spec.choice) if process.spec.kind == "emitter" else "",
        **(dataclasses.asdict(process.opened) if process.opened else unknown),
        "agreed": None,
        "decode": [{"at": context, "ms": []} for context in task.contexts],
        "prefill": [{"at": length, "ms": []} for length in task.lengths],
    }


def _round(processes: Sequence[Process], rows: dict[str, Any]) -> None:
    for process in processes:
        for kind, function in (("decode", contenders.decode), ("prefill", contenders.prefill)):
            for entry in rows[process.spec.id][kind]:
                if (ms := process.ask(ROUND_SECONDS, function, entry["at"])) is not None:
                    entry["ms"].append(round(ms, 4))


def _agreement(processes: Sequence[Process], task: Task, rows: dict[str, Any], report: Report) -> None:
    """How many greedy tokens after the model's own prompt equal Hugging Face's over the weights of the GGUF file."""
    asked = [p for p in processes if p.spec.id in AGREED and not p.failure]
    path = contenders.gguf_of(task.model)
    if len(asked) < len(AGREED) or path is None or not contenders.holds_blocks(path):
        return
    checkpoint = open_checkpoint(resolve(task.model, precision="int4"))
    prompts = prompts_of(
        checkpoint.directory, checkpoint.config, Reach(task.capacity), AGREED_TOKENS, report, only_fitting=True
    )  # fmt: skip
    prompt = next((p for p in prompts if p.name == "chat"), None)
    if prompt is None:
        return
    try:
        (truth,) = truths(checkpoint, [prompt.token_ids], AGREED_TOKENS, report)
    except (ChildDied, ToolchainError, InputError):
        return
    for process in asked:
        found = process.ask(ROUND_SECONDS, contenders.text, prompt.token_ids, AGREED_TOKENS)
        if found is not None:
            equal = sum(a == b for a, b in zip(found, truth.tokens, strict=True))
            rows[process.spec.id]["agreed"] = {"equal": equal, "total": AGREED_TOKENS}
