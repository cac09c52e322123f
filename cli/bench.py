"""The commands that measure: against peers, against sizes, and candidates against each other."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hloracle.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    PRECISIONS,
    device_options,
    model_argument,
    out_option,
    precision_option,
    prepare_folder,
    progress_shown,
    threads_option,
)
from hloracle.core.console import Output

# As in bench/scaling.py, which imports more than a command line needs to be parsed.
SCALING_PARTS = ("decode", "prefill", "layers", "memory")


@click.command(epilog=MODEL_HELP)
@model_argument(DEFAULT_MODEL)
@click.option(
    "--precision", "precisions", type=click.Choice(PRECISIONS), multiple=True, default=PRECISIONS,
    help="Of the emitted graphs; may be given several times. All of them by default.",
)  # fmt: skip
@click.option(
    "--context", "contexts", type=click.IntRange(0), multiple=True, default=(16,), show_default=True,
    help="Position of the first decode step that is timed; may be given several times.",
)  # fmt: skip
@click.option(
    "--length", "lengths", type=click.IntRange(1), multiple=True, default=(32, 256), show_default=True,
    help="Tokens of a prompt that is timed; may be given several times.",
)  # fmt: skip
@click.option("--tokens", type=click.IntRange(1), default=16, show_default=True, help="Decode steps a round.")
@click.option(
    "--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds; contenders take turns in each."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@threads_option()
@out_option("bench.json and bench.html")
def bench(
    model: str, precisions: tuple[str, ...], contexts: tuple[int, ...], lengths: tuple[int, ...], tokens: int,
    rounds: int, as_json: bool, threads: int | None, out: Path,
) -> int:  # fmt: skip
    """How fast the emitted graphs are on IREE, beside the oracle on XLA, Hugging Face, and llama.cpp where it can be had.

    Each contender has a process of its own; they take turns. The machine's own read bandwidth is measured with them, and
    bounds a decode step, which reads every weight once. Exits with 1 if an emitted graph could not be measured. llama.cpp
    takes part where llama-cpp-python is installed
    (`pip install hloracle[llama]` builds it) and MODEL is, or was made from, a GGUF file.
    """
    from hloracle.bench.contenders import Task, contenders
    from hloracle.bench.run import run_bench
    from hloracle.bench.show import print_figures
    from hloracle.core.environment import threads_available
    from hloracle.reports.bench import write_bench

    prepare_folder(out)
    task = Task(
        model, tuple(sorted(set(contexts))), tuple(sorted(set(lengths))), tokens, threads or threads_available()
    )  # fmt: skip
    with progress_shown() as progress:
        figures = run_bench(task, rounds, contenders(model, list(dict.fromkeys(precisions))), progress)
    write_bench(figures, out)
    if as_json:
        click.echo(json.dumps(figures, indent=1))
    else:
        print_figures(figures, Output(highlight=False))
    rows = figures["contenders"].items()
    return 1 if any(row["failure"] for id, row in rows if id.startswith("emitter/")) else 0


@click.command(epilog=MODEL_HELP)
@model_argument(DEFAULT_MODEL)
@device_options
@click.option(
    "--precision", "precisions", type=click.Choice(PRECISIONS), multiple=True, default=PRECISIONS,
    help="May be given several times. All of them by default.",
)  # fmt: skip
@click.option(
    "--target-cpu", "cpus", multiple=True, default=("host",), show_default=True, metavar="NAME",
    help="What to compile for, in LLVM's words (`host`, `x86-64-v3`, `znver3`); given several times, the fastest is taken.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(3), default=5, show_default=True, help="In which two candidates take turns."
)
@click.option("--json", "as_json", is_flag=True, help="Print what came of each candidate as JSON.")
@threads_option()
def tune(
    model: str, device: str, cuda_target: str, precisions: tuple[str, ...], cpus: tuple[str, ...], rounds: int,
    as_json: bool, threads: int | None,
) -> int:  # fmt: skip
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
    from hloracle.core.environment import threads_available

    asked = Tuning(
        model, tuple(dict.fromkeys(precisions)), tuple(dict.fromkeys(cpus)), threads or threads_available(), rounds,
        open_device(device, cuda_target),
    )  # fmt: skip
    with progress_shown() as progress:
        figures = run_tune(asked, progress)
    if as_json:
        click.echo(json.dumps(figures, indent=1))
    else:
        print_tuned(figures, Output(highlight=False))
    return 0 if all(row["file"] for row in figures["precisions"]) else 1


@click.command(epilog=MODEL_HELP)
@model_argument(DEFAULT_MODEL)
@click.option(
    "--phase", type=click.Choice(["decode", "prefill"]), default="decode", show_default=True,
    help="A step at the middle of the cache, or a prompt.",
)  # fmt: skip
@click.option("--length", type=click.IntRange(1), default=256, show_default=True, help="Tokens of the prompt.")
@click.option(
    "--capacity", type=click.IntRange(1), default=256, show_default=True, help="Slots of the key and value caches."
)
@precision_option()
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@threads_option()
def profile(
    model: str, phase: str, length: int, capacity: int, precision: str, as_json: bool, threads: int | None
) -> int:  # fmt: skip
    """Where the time of one decode step, or of one prompt, goes: the emitted graph's dispatches on IREE.

    Measured by IREE's own tools, on weights that are all one number: times do not hang on them. A row is of the dispatches
    of one shape that read the same weights, of all layers together. `workers` is how many threads were at work on one, on
    average. The step is timed without the profiler too, which takes time itself.
    """
    from hloracle.bench.profile import Asked, run_profile
    from hloracle.bench.show import print_profile
    from hloracle.core.environment import threads_available

    asked = Asked(model, phase, precision, length, capacity, threads or threads_available())
    with progress_shown() as progress:
        figures = run_profile(asked, progress)
    if as_json:
        click.echo(json.dumps(figures, indent=1))
    else:
        print_profile(figures, Output(highlight=False))
    return 0


@click.command(epilog=MODEL_HELP)
@model_argument("synthetic-llama-135m")
@click.option(
    "--part", "parts", type=click.Choice(SCALING_PARTS), multiple=True, default=SCALING_PARTS,
    help="What is measured; may be given several times. All by default.",
)  # fmt: skip
@click.option(
    "--context", "contexts", type=click.IntRange(1), multiple=True, default=(256, 512, 1024, 2048, 4096), show_default=True,
    help="Cache slots at which decode is timed; may be given several times.",
)  # fmt: skip
@click.option(
    "--length", "lengths", type=click.IntRange(1), multiple=True, default=(32, 64, 128, 256, 512, 1024), show_default=True,
    help="Tokens of a prompt that is timed; may be given several times.",
)  # fmt: skip
@click.option(
    "--layers", type=click.IntRange(1), multiple=True, default=(8, 16, 24, 32, 48, 64, 80), show_default=True,
    help="Layers of a model of MODEL's shape that is emitted and compiled; may be given several times.",
)  # fmt: skip
@click.option(
    "--beside", multiple=True, default=("synthetic-llama-1b", "synthetic-llama-3b"), show_default=True, metavar="MODEL",
    help="A model whose memory is measured after MODEL's; may be given several times.",
)  # fmt: skip
@precision_option()
@click.option("--tokens", type=click.IntRange(1), default=16, show_default=True, help="Decode steps of a measurement.")
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds, of which medians are taken."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@threads_option()
@out_option("scaling.json and scaling.html")
def scale(
    model: str, parts: tuple[str, ...], contexts: tuple[int, ...], lengths: tuple[int, ...], layers: tuple[int, ...],
    beside: tuple[str, ...], precision: str, tokens: int, rounds: int, as_json: bool, threads: int | None, out: Path,
) -> int:  # fmt: skip
    """How time and memory grow with the context, a prompt's length, the layers, and the model's size.

    Compiles graphs of MODEL's shape with more and more layers, nothing of which comes from the cache: processor time must
    not grow faster than layers to the power of 1.1. The memory of a session is to exceed its weights and caches by at most
    15 %: that is said, and does not count in the exit status, for the process by itself is more than 15 % of a small model.
    In f32 the two models of the default --beside take 27 GB of disk in the cache, and the larger one 13 GB of memory.
    Exits with 1 if anything could not be measured, or grows faster.
    """
    from hloracle.bench.scaling import Plan, run_scaling
    from hloracle.bench.show import print_scaling
    from hloracle.core.environment import threads_available
    from hloracle.reports.scaling import write_scaling

    prepare_folder(out)
    plan = Plan(
        model, tuple(sorted(set(contexts))), tuple(sorted(set(lengths))), tuple(sorted(set(layers))),
        tuple(dict.fromkeys((model, *beside))), tuple(dict.fromkeys(parts)), precision, tokens, rounds,
        threads or threads_available(),
    )  # fmt: skip
    with progress_shown() as progress:
        figures = run_scaling(plan, progress)
    write_scaling(figures, out)
    if as_json:
        click.echo(json.dumps(figures, indent=1))
    else:
        print_scaling(figures, Output(highlight=False))
    return 0 if all(one["passed"] for one in figures["growth"]) and not figures["failures"] else 1


BENCH_COMMANDS = (bench, profile, scale, tune)
