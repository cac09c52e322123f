"""Random models of every architecture, made by transformers' own classes, each through a quick run, compiled as by
`hloracle run`.

    python -m hloracle.studies.random_models [--seeds 3] [--compute bf16] [ARCHITECTURE...]

Exit status 0 if all conform; 1 otherwise, and each one that does not is told with the command that makes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from hloracle.conformance.context import Context, Progress
from hloracle.conformance.run import run
from hloracle.conformance.settings import QUICK_CAPACITY, Settings
from hloracle.conformance.suite import TIMEOUT_SECONDS, TOKENS, selected
from hloracle.core.child import Report
from hloracle.core.console import terminal
from hloracle.core.environment import threads_available
from hloracle.core.pool import run_each
from hloracle.core.program import run_program
from hloracle.core.record import Record
from hloracle.reference.fixtures.random_model import write_random
from hloracle.studies.study import compute_option

Item = tuple[str, int, str]  # an architecture, a seed, and what is computed in


def judged_random(report: Report, item: Item) -> Record:
    """The record of a model that is made here."""
    architecture, seed, compute = item
    with TemporaryDirectory(prefix="hloracle-") as folder:
        directory = write_random(architecture, seed, Path(folder) / architecture)
        settings = Settings(str(directory), TOKENS, QUICK_CAPACITY, quick=True, rounds=0, compute=compute)
        return run(settings, Context(Progress(report)))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("architectures", nargs=-1)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Models of each architecture.")
@click.option("--first", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=threads_available,
    help="Models at a time; one for each core when not given.",
)
@compute_option
def command(architectures: Sequence[str], seeds: int, first: int, jobs: int, compute: str) -> int:
    """Judge random models of each architecture: other shapes, options and RoPE types for each seed."""
    items = [(name, seed, compute) for seed in range(first, first + seeds) for name in selected(architectures)]
    wrong = []

    def finish(item: Item, answer: Record | str, seconds: float) -> None:
        architecture, seed, _ = item
        if isinstance(answer, str):
            words = f"died: {answer}"
        else:
            bad = [c for c in answer["checks"] if c["status"] in ("failed", "error")]
            words = "; ".join([answer["verdict"]["class"], *(f"{c['id']}: {c['detail'] or c['figure']}" for c in bad)])
        click.echo(f"{architecture} {seed}, {seconds:.1f} s: {words}")
        if isinstance(answer, str) or not answer["passed"]:
            wrong.append(item)
            click.echo(
                f"  python -m hloracle.studies.random_models --first {seed} --seeds 1 --compute {compute} {architecture}"
            )

    with terminal.status("judging"):
        run_each(judged_random, items, jobs, TIMEOUT_SECONDS, lambda line: None, finish)
    click.echo(f"{len(items) - len(wrong)} of {len(items)} random models conform")
    return 1 if wrong else 0


if __name__ == "__main__":
    run_program(command)
