"""The commands that measure: against peers, against sizes, and candidates against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hloracle.cli import options
from hloracle.cli.options import COMPUTE, DEFAULT_MODEL, MODEL_HELP, progress_shown, tell
from hloracle.core.bounds import BATCH, CAPACITY, LAYERS, ROUNDS
from hloracle.core.folder import prepare_folder

SCALING_PARTS = ("decode", "prefill", "layers", "memory")


@click.command(epilog=MODEL_HELP)
@options.model(DEFAULT_MODEL)
@options.precisions
@options.several(
    "--context", "contexts", click.IntRange(0, CAPACITY), (16,), "Position of the first decode step that is timed"
)
@options.several("--length", "lengths", click.IntRange(1, CAPACITY), (32, 256), "Tokens of a prompt that is timed")
@click.option("--tokens", type=click.IntRange(1, CAPACITY), default=16, show_default=True, help="Decode steps a round.")
@click.option(
    "--rounds",
    type=click.IntRange(1, ROUNDS),
    default=5,
    show_default=True,
    help="Rounds; contenders take turns in each.",
)
@click.option(
    "--batch", type=click.IntRange(1, BATCH), default=1, show_default=True, metavar="B",
    help="Time graphs of B rows beside those of one: tokens of all rows together.",
)  # fmt: skip
@click.option(
    "--compute", type=click.Choice(COMPUTE), default="f32", show_default=True,
    help="Time graphs that compute in bf16 or f16 beside those whose sums are float32: weights, caches and values between modules "
    "are of that type, and Hugging Face in it takes part.",
)  # fmt: skip
@options.ring
@options.kv
@options.as_json
@options.threads
@options.out("bench.json and bench.html")
def bench(precisions: tuple[str, ...], rounds: int, compute: str, as_json: bool, out: Path, **asked: Any) -> int:
    """How fast the emitted graphs are on IREE, beside the oracle on XLA, Hugging Face, and llama.cpp where it can be had.

    Each contender has a process of its own; they take turns. The machine's own read bandwidth is measured with them, and
    bounds a decode step, which reads every weight once. Exits with 1 if an emitted graph could not be measured. llama.cpp
    takes part where llama-cpp-python is installed
    (`pip install hloracle[llama]` builds it) and MODEL is, or was made from, a GGUF file.
    """
    from hloracle.bench.contenders import Task, contenders
    from hloracle.bench.run import run_bench
    from hloracle.bench.show import print_figures
    from hloracle.reports.bench import write_bench

    prepare_folder(out)
    task = Task(**asked)
    with progress_shown() as progress:
        figures = run_bench(task, rounds, contenders(task.model, precisions, task.batch, compute), progress)
    write_bench(figures, out)
    tell(figures, as_json, lambda console: print_figures(figures, console))
    rows = figures["contenders"].values()
    return 1 if any(row["failure"] for row in rows if row["kind"] == "emitter") else 0


@click.command(epilog=MODEL_HELP)
@options.model(DEFAULT_MODEL)
@options.device
@options.precisions
@options.several(
    "--target-cpu", "cpus", str, ("host",),
    "What to compile for, in LLVM's words (`host`, `x86-64-v3`, `znver3`), of which the fastest is taken", metavar="NAME",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(3, ROUNDS), default=5, show_default=True, help="In which two candidates take turns."
)
@options.as_json
@options.threads
def tune(device: str, cuda_target: str, as_json: bool, **asked: Any) -> int:
    """Find the fastest right way to write and compile MODEL's graphs on this machine, or on a device of it.

    Candidates (how weights lie, the compiler's flags for each phase, the CPU that it compiles for; on CUDA, whether a step's
    commands are one CUDA graph or go to a stream) are first held to Hugging
    Face's tokens, and then timed in turns with the best so far. What is best conforms in a whole run before it is kept, in
    the cache; `run`, `generate` and `bench` take it from there on this machine, with these versions and as many threads, and
    say so. Takes some minutes a precision. Exits with 1 if for one of them nothing could be kept.
    """
    from hloracle.backends.devices import open_device
    from hloracle.bench.show import print_tuned
    from hloracle.bench.tune import Tuning, run_tune

    tuning = Tuning(device=open_device(device, cuda_target), **asked)
    with progress_shown() as progress:
        figures = run_tune(tuning, progress)
    tell(figures, as_json, lambda console: print_tuned(figures, console))
    return 0 if all(row["file"] for row in figures["precisions"]) else 1


@click.command(epilog=MODEL_HELP)
@options.model(DEFAULT_MODEL)
@click.option(
    "--phase", type=click.Choice(["decode", "prefill", "extend"]), default="decode", show_default=True,
    help="A step at the middle of the cache, a prompt, or a chunk of one that begins there.",
)  # fmt: skip
@click.option(
    "--length", type=click.IntRange(1, CAPACITY), default=256, show_default=True, help="Tokens of the prompt."
)
@click.option(
    "--capacity",
    type=click.IntRange(1, CAPACITY),
    default=256,
    show_default=True,
    help="Slots of the key and value caches.",
)
@options.batch
@options.compute
@options.precision
@options.as_json
@options.threads
def profile(as_json: bool, **asked: Any) -> int:
    """Where the time of one decode step, or of one prompt, goes: the emitted graph's dispatches on IREE.

    Measured by IREE's own tools, on weights that are all one number: times do not hang on them. A row is of the dispatches
    of one shape that read the same weights, of all layers together. `workers` is how many threads were at work on one, on
    average. The step is timed without the profiler too, which takes time itself.
    """
    from hloracle.bench.profile import Asked, run_profile
    from hloracle.bench.show import print_profile

    with progress_shown() as progress:
        figures = run_profile(Asked(**asked), progress)
    tell(figures, as_json, lambda console: print_profile(figures, console))
    return 0


@click.command(epilog=MODEL_HELP)
@options.model("synthetic-llama-135m")
@options.several("--part", "parts", click.Choice(SCALING_PARTS), SCALING_PARTS, "What is measured")
@options.several(
    "--context",
    "contexts",
    click.IntRange(1, CAPACITY),
    (256, 512, 1024, 2048, 4096),
    "Cache slots at which decode is timed",
)
@options.several(
    "--length",
    "lengths",
    click.IntRange(1, CAPACITY),
    (32, 64, 128, 256, 512, 1024),
    "Tokens of a prompt that is timed",
)
@options.several(
    "--layers", "layers", click.IntRange(1, LAYERS), (8, 16, 24, 32, 48, 64, 80),
    "Layers of a model of MODEL's shape that is emitted and compiled",
)  # fmt: skip
@options.several(
    "--beside", "beside", str, ("synthetic-llama-1b", "synthetic-llama-3b"),
    "A model whose memory is measured after MODEL's", metavar="MODEL",
)  # fmt: skip
@options.precision
@click.option(
    "--tokens", type=click.IntRange(1, CAPACITY), default=16, show_default=True, help="Decode steps of a measurement."
)
@click.option(
    "--rounds", type=click.IntRange(1, ROUNDS), default=3, show_default=True, help="Rounds, of which medians are taken."
)
@options.as_json
@options.threads
@options.out("scaling.json and scaling.html")
def scale(model: str, beside: tuple[str, ...], as_json: bool, out: Path, **asked: Any) -> int:
    """How time and memory grow with the context, a prompt's length, the layers, and the model's size.

    Compiles graphs of MODEL's shape with more and more layers, nothing of which comes from the cache: processor time must
    not grow faster than layers to the power of 1.1. The memory of a session is to exceed its weights and caches by at most
    15 %: that is said, and does not count in the exit status, for the process by itself is more than 15 % of a small model.
    In f32 the two models of the default --beside take 27 GB of disk in the cache, and the larger one 13 GB of memory.
    Exits with 1 if anything could not be measured, or grows faster.
    """
    from hloracle.bench.scaling import Plan, run_scaling
    from hloracle.bench.show import print_scaling
    from hloracle.reports.bench import write_scaling

    prepare_folder(out)
    plan = Plan(model, models=tuple(dict.fromkeys((model, *beside))), **asked)
    with progress_shown() as progress:
        figures = run_scaling(plan, progress)
    write_scaling(figures, out)
    tell(figures, as_json, lambda console: print_scaling(figures, console))
    return 0 if all(one["passed"] for one in figures["growth"]) and not figures["failures"] else 1


BENCH_COMMANDS = (bench, profile, scale, tune)
