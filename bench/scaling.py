"""How time and memory grow: with the context, with a prompt's length, with a model's layers, and with its size.

Decode and prompts are measured as `run.py` does, in turns and in processes of their own. What is compiled to be timed never
comes from the cache, and does not go there.
"""

from __future__ import annotations

import importlib
import math
import resource
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hloracle.backends.iree import flags_of, iree_compile
from hloracle.bench import contenders, machine
from hloracle.bench.contenders import Spec, Task
from hloracle.bench.goals import summary
from hloracle.bench.run import OPEN_SECONDS, ROUND_SECONDS, Process, compile_first, too_large
from hloracle.conformance.context import Progress
from hloracle.core.child import Report, peak_bytes, run_in_child
from hloracle.core.environment import describe
from hloracle.core.errors import InputError
from hloracle.production.choice import production_graph, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import GraphSpec, graph_abi
from hloracle.reference.model.registry import config_json, from_hf
from hloracle.reference.model.weights import default_layout

SCHEMA = "hloracle-scaling/1"
Figures = dict[str, Any]

# Of the graphs whose layers are counted.
CAPACITY, BUCKET = 256, 64
# What may grow with the layers, and must not grow faster. Times are those that processors spend: the clock's hang on who
# else has them.
GROWING = ("emit_seconds", "graph_bytes", "compile_cpu_seconds", "module_bytes")
MOST_EXPONENT = 1.1
# Resident bytes of a session, its caches left out, over the bytes of its weights.
MOST_RESIDENT = 1.15


@dataclass(frozen=True)
class Plan:
    """What is measured.

    contexts: cache slots; lengths: tokens of prompts; layers: how many a model of MODEL's shape has; models: whose memory
    is measured. parts: of `decode`, `prefill`, `layers` and `memory`. tokens: decode steps of a measurement.
    """

    model: str
    contexts: tuple[int, ...]
    lengths: tuple[int, ...]
    layers: tuple[int, ...]
    models: tuple[str, ...]
    parts: tuple[str, ...]
    precision: str
    tokens: int
    rounds: int
    threads: int

    def validate(self) -> None:
        """Raises InputError for a plan from which nothing could be learned."""
        if "decode" in self.parts and min(self.contexts) <= self.tokens:
            raise InputError(
                f"has no room for {self.tokens} decode steps", f"--context {min(self.contexts)}",
                "give a larger --context, or fewer --tokens",
            )  # fmt: skip
        if "layers" in self.parts and len(self.layers) < 3:
            raise InputError("are too few to tell how anything grows", "--layers", "give at least three numbers")

    @property
    def spec(self) -> Spec:
        """The contender that is measured: the emitter in the plan's precision."""
        return Spec("emitter", f"IREE {self.precision}", self.precision)


def run_scaling(plan: Plan, progress: Progress) -> Figures:
    """The figures, as JSON. Raises InputError when the plan or a model cannot be used."""
    plan.validate()
    with progress.stage("models"):
        directory = resolve(plan.model, progress.report, plan.precision)
        open_checkpoint(directory)
    found: Figures = {
        "schema": SCHEMA, "model": plan.model, "precision": plan.precision, "rounds": plan.rounds, "tokens": plan.tokens,
        "threads": plan.threads, "decode": [], "prefill": [], "layers": [], "growth": [], "memory": [], "failures": [],
    }  # fmt: skip
    if {"decode", "prefill"} & set(plan.parts):
        found |= _speeds(plan, found["failures"], progress)
    if "layers" in plan.parts:
        raw = config_json(directory)
        found["layers"] = _layers(plan, raw, progress)
        found["growth"] = growth(found["layers"])
    if "memory" in plan.parts:
        found["memory"] = _memory(plan, found["failures"], progress)
    return {**found, "environment": describe()}


# ---- decode against the context, prompts against their length


def _speeds(plan: Plan, failures: list[str], progress: Progress) -> Figures:
    """A process for each capacity; the largest is asked at every context, the others at their own end."""
    ends = [c - plan.tokens for c in plan.contexts]
    tasks = []
    if "decode" in plan.parts:
        tasks = [Task(plan.model, (end,), (), plan.tokens, plan.threads) for end in ends[:-1]]
        tasks.append(Task(plan.model, tuple(ends), (), plan.tokens, plan.threads))
    if "prefill" in plan.parts:
        tasks.append(Task(plan.model, (0,), plan.lengths, plan.tokens, plan.threads))
    with progress.stage("compile"):
        for task in tasks:
            compile_first(plan.spec, task, progress.report)
    rows: dict[str, dict[tuple[int, int], list[float]]] = {"decode": {}, "prefill": {}}
    with ExitStack() as stack:
        processes = [(stack.enter_context(Process(plan.spec)), task) for task in tasks]
        with progress.stage("open"):
            for process, task in processes:
                process.open(task)
        with progress.stage("rounds"):
            for nth in range(1, plan.rounds + 1):
                progress.report(f"round {nth} of {plan.rounds}")
                for process, task in processes:
                    kind, ask, places = (
                        ("prefill", contenders.prefill, task.lengths) if task.lengths
                        else ("decode", contenders.decode, task.contexts)
                    )  # fmt: skip
                    for place in places:
                        ms = process.ask(ROUND_SECONDS, ask, place)
                        if ms is not None:
                            rows[kind].setdefault((task.capacity, place), []).append(round(ms, 4))
    failures += [f"{task.capacity} slots: {process.failure}" for process, task in processes if process.failure]
    keys = {"decode": ("capacity", "position"), "prefill": ("capacity", "length")}
    return {
        kind: [
            {**dict(zip(keys[kind], at, strict=True)), "ms": ms, **summary(ms)}
            for at, ms in sorted(measured.items())
            if len(ms) == plan.rounds  # rounds before it failed are no measurement
        ]
        for kind, measured in rows.items()
    }


# ---- emitting and compiling against layers


def _layers(plan: Plan, raw: dict[str, Any], progress: Progress) -> list[Figures]:
    rows: dict[tuple[str, int], list[Figures]] = {}
    with progress.stage("layers"):
        for nth in range(1, plan.rounds + 1):
            for layers in plan.layers:
                for phase in ("decode", "prefill"):
                    progress.report(f"round {nth} of {plan.rounds}: {phase} of {layers} layers")
                    one = run_in_child(layer_cost, raw, layers, phase, plan.precision, timeout=OPEN_SECONDS).value
                    rows.setdefault((phase, layers), []).append(one)
    return [
        {"phase": phase, "layers": layers, **{key: statistics.median(one[key] for one in some) for key in some[0]}}
        for (phase, layers), some in sorted(rows.items())
    ]


def layer_cost(report: Report, raw: dict[str, Any], layers: int, phase: str, precision: str) -> Figures:
    """What a graph of so many layers takes to emit and to compile, in this process; nothing comes from the cache.

    Returns seconds, bytes of the graph's text and of the module, and the compiler's peak memory in bytes. `emit_seconds` and
    `compile_cpu_seconds` are the processor's, `compile_seconds` the clock's.
    """
    config = from_hf({**raw, "num_hidden_layers": layers})
    importlib.import_module(f"hloracle.emitters.architectures.{config.architecture}")  # not a part of emitting
    started = time.process_time()
    bucket = BUCKET if phase == "prefill" else 0
    layout = default_layout(config, precision)
    graph = production_graph(config, GraphSpec(phase, "token", CAPACITY, bucket), layout, untuned())
    emitted = time.process_time() - started
    with TemporaryDirectory() as folder:
        source = Path(folder) / "graph.mlir"
        source.write_text(graph.text)
        before, started = _children_seconds(), time.perf_counter()
        module = iree_compile(source, flags_of(graph))
        compiled = time.perf_counter() - started
    return {
        "emit_seconds": round(emitted, 5),
        "graph_bytes": len(graph.text.encode()),
        "compile_seconds": round(compiled, 3),
        "compile_cpu_seconds": round(_children_seconds() - before, 3),
        "compile_peak_bytes": peak_bytes(resource.RUSAGE_CHILDREN),
        "module_bytes": len(module),
    }


def _children_seconds() -> float:
    """Of processors, in all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """p of y = a * x^p, by least squares of the logarithms; None without two places and only positive numbers."""
    if len({x for x, _ in points}) < 2 or any(x <= 0 or y <= 0 for x, y in points):
        return None
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    return float(statistics.linear_regression(xs, ys).slope)


def growth(rows: Sequence[Figures]) -> list[Figures]:
    """How each of GROWING grows with the layers, in each phase: the exponent, and whether it is at most MOST_EXPONENT.

    Only the larger half of the models counts: what every graph costs would hide how the rest grows.
    """
    found = []
    for phase in dict.fromkeys(row["phase"] for row in rows):
        mine = sorted((row for row in rows if row["phase"] == phase), key=lambda row: row["layers"])
        for what in GROWING:
            p = exponent([(row["layers"], row[what]) for row in mine[(len(mine) - 1) // 2 :]])
            found.append({
                "phase": phase, "what": what, "exponent": None if p is None else round(p, 3), "most": MOST_EXPONENT,
                "passed": p is not None and p <= MOST_EXPONENT,
            })  # fmt: skip
    return found


# ---- memory against the model's size


def _memory(plan: Plan, failures: list[str], progress: Progress) -> list[Figures]:
    """One session after the other: the most bytes that it had, beside those of its weights and caches."""
    found = []
    for model in plan.models:
        with progress.stage(f"memory of {model}"):
            checkpoint = open_checkpoint(resolve(model, progress.report, plan.precision))
            task = Task(model, (0,), (), plan.tokens, plan.threads)
            abi = graph_abi(checkpoint.config, "decode", "token", task.capacity, 0, checkpoint.layout(plan.precision))
            weights = sum(w.nbytes for w in abi.weights)
            caches = sum(a.nbytes for a in abi.arguments if a.role.endswith("_cache"))
            free = machine.free_bytes()
            if weights > free:
                failures.append(f"{model}: {too_large(weights, free)}")
                continue
            compile_first(plan.spec, task, progress.report)
            with Process(plan.spec) as process:
                process.open(task)
                peak = process.ask(ROUND_SECONDS, peak_bytes)
            if process.failure:
                failures.append(f"{model}: {process.failure}")
            else:
                found.append(memory_row(model, weights, caches, peak))
    return found


def memory_row(model: str, weights: int, caches: int, peak: int) -> Figures:
    """Bytes, and the share of the weights' that the session has beside its caches, at its peak."""
    share = (peak - caches) / weights
    return {
        "model": model, "weight_bytes": weights, "cache_bytes": caches, "peak_bytes": peak, "share": round(share, 4),
        "most": MOST_RESIDENT, "passed": share <= MOST_RESIDENT,
    }  # fmt: skip
