"""What a fleet costs its driver: stub jobs of recorded durations, on Ray on this machine.

    python -m hloracle.fleet.simulation [--jobs 100000]

A job sleeps for one of the durations that jobs on tiny models took, divided by --faster. What is measured is the driver's: the
wall time and processor time for each job, and how much more memory it has at the end, the report included.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import time
from pathlib import Path

import click
import psutil

from hloracle.core.program import run_program
from hloracle.fleet.driver import conduct
from hloracle.fleet.journal import Journal
from hloracle.fleet.matrix import Command, read_matrix
from hloracle.fleet.on_ray import Answer, Task, connected
from hloracle.fleet.outcome import Attempt
from hloracle.fleet.process import Ended
from hloracle.fleet.report import write_report

# Seconds that `hloracle run` on tiny models took, on 2 cores of an AMD EPYC, with a warm cache and without.
RECORDED = (11.2, 13.9, 12.4, 14.6, 39.4, 12.8, 99.0, 15.1, 12.1, 13.3, 54.4, 17.9, 12.6, 138.4, 14.2, 13.0)
OPTIONS = {"precision": "--precision", "backend": "--backend", "tokens": "--tokens"}
RUN = Command("run", ("hloracle", "run"), "model", OPTIONS, frozenset(), frozenset(), True)
MODELS, PRECISIONS, BACKENDS = 200, ("f32", "bf16", "f16", "int8", "int4"), 6


def stub(task: Task) -> Answer:
    """On a machine: sleep as long as the job would have taken, and say that it passed."""
    faster = float(task["environment"]["FASTER"])
    seconds = RECORDED[hash(tuple(task["words"])) % len(RECORDED)]
    time.sleep(seconds / faster)
    return (
        Ended(Attempt("passed", "Equal to Hugging Face, in all that was compared.", "conforms", seconds, "stub"), b""),
        [],
    ), b""


def matrix_text(jobs: int) -> str:
    """A matrix of at least so many jobs."""
    models = ", ".join(f'"model-{i}"' for i in range(MODELS))
    backends = ", ".join(f'"iree==3.{i}.0"' for i in range(BACKENDS))
    repeats = -(-jobs // (MODELS * len(PRECISIONS) * BACKENDS))
    precisions = ", ".join(f'"{precision}"' for precision in PRECISIONS)
    return (
        f"[run]\nmodel = [{models}]\nprecision = [{precisions}]\nbackend = [{backends}]\n"
        f"tokens = [{', '.join(str(16 + i) for i in range(repeats))}]\n"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--jobs", type=click.IntRange(1), default=100_000, show_default=True, help="At least so many.")
@click.option(
    "--faster", type=click.FloatRange(1), default=2000.0, show_default=True, help="What durations are divided by."
)
@click.option("--cores", type=click.IntRange(1), default=4, show_default=True, help="Jobs at a time.")
def command(jobs: int, faster: float, cores: int) -> int:
    """Run stub jobs, and print what each cost the driver."""
    me = psutil.Process()
    with tempfile.TemporaryDirectory(prefix="hloracle-") as name:
        out = Path(name)
        (out / "matrix.toml").write_text(matrix_text(jobs))
        matrix = read_matrix(out / "matrix.toml", {"run": RUN}, [])
        count = sum(1 for _ in matrix)
        with contextlib.closing(Journal(out, matrix, False)) as journal, connected(None, matrix, stub, cores) as engine:
            engine.environment = {"FASTER": str(faster)}
            gc.collect()
            memory, processor, began = me.memory_info().rss, sum(os.times()[:2]), time.monotonic()
            peak, done = memory, 0

            def tell(_: object) -> None:
                nonlocal peak, done
                done += 1
                if done % 1000 == 0:
                    peak = max(peak, me.memory_info().rss)
                    click.echo(f"{done} of {count}, {done / (time.monotonic() - began):.0f}/s", err=True)

            conduct(matrix, engine, journal, lambda job, files: None, tell)
            wall, used = time.monotonic() - began, sum(os.times()[:2]) - processor
            before_report = time.monotonic()
            write_report(matrix, journal, {}, out)
            report = time.monotonic() - before_report
            peak = max(peak, me.memory_info().rss)
    slept = sum(RECORDED) / len(RECORDED) / faster / cores
    click.echo(
        f"{count} jobs in {wall:.1f} s on {cores} cores: {1e3 * wall / count:.2f} ms each, of which {1e3 * slept:.2f} are the job's"
    )
    click.echo(
        f"driver: {1e3 * used / count:.2f} ms of processor time each, {(peak - memory) / count:.0f} bytes each; report {report:.1f} s"
    )
    return 0


if __name__ == "__main__":
    run_program(command)
