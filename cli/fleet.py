"""`hloracle fleet`: many commands, on as many machines as there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from hloracle.cli import options
from hloracle.core.console import Output, terminal, verdict_stands
from hloracle.core.shown import shown

if TYPE_CHECKING:
    from hloracle.fleet.matrix import Command
    from hloracle.fleet.outcome import Outcome
    from hloracle.reports.fleet.record import Head

MOST_TOLD = 20  # jobs that do not pass, on the terminal
# What a command of a matrix takes as its arguments is called.
TAKES = {"run": "model", "check": "graph", "suite": "family", "ops": "operation", "mutants": "mutant"}
RANDOM_MODELS = "random-models"
LEFT_OUT = ("out", "as_json", "listing", "pin", "help")  # options that are no part of a question


def commands(group: click.Group) -> dict[str, Command]:
    """What a matrix may run: commands of this command line, and the study of random models."""
    from hloracle.studies.random_models import command

    found = {name: _command(name, ("hloracle", name), takes, group.commands[name]) for name, takes in TAKES.items()}
    words = ("hloracle.studies.random_models",)
    return {**found, RANDOM_MODELS: _command(RANDOM_MODELS, words, "architecture", command)}


def _command(name: str, words: tuple[str, ...], takes: str, of: click.Command) -> Command:
    from hloracle.fleet.matrix import Command

    known = {
        p.opts[0].removeprefix("--"): p for p in of.params if isinstance(p, click.Option) and p.name not in LEFT_OUT
    }
    return Command(
        name, words, takes,
        {key: option.opts[0] for key, option in known.items()},
        frozenset(key for key, option in known.items() if option.is_flag),
        frozenset(["graph", *(key for key, option in known.items() if isinstance(option.type, click.Path))]),
        any("--out" in p.opts for p in of.params),
    )  # fmt: skip


@click.command()
@click.argument("matrix", type=click.Path(path_type=Path), metavar="MATRIX.toml")
@click.option(
    "--address", metavar="HOST:PORT",
    help="The Ray cluster to run on; by default one that is started on this machine. That of another machine has to ask for a "
    "token (docs/fleet.md).",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with the fleet in --out, and repeat nothing that is done.")
@click.option("--list", "listing", is_flag=True, help="Print the jobs' command lines instead of running them.")
@options.as_json
@options.out("fleet.html, fleet.json, junit.xml, and a folder for each job")
@click.pass_context
def fleet(
    context: click.Context, matrix: Path, address: str | None, resume: bool, listing: bool, as_json: bool, out: Path
) -> int:
    """Run the commands of MATRIX.toml, each as a process of its own, on this machine or on a cluster.

    \b
    [run]
    model = "tiny-*"
    precision = ["f32", "bf16"]
    backend = ["xla-cpu", ["iree==3.12.0", "xla-cpu"]]

    A table is a command, its keys are the command's options, and a list is an axis: these are 24 x 2 x 2 jobs. What does not
    pass is run again, and is `flaky` if it passes then. A crash, a hang or a machine that is gone is a result. Exits with 0 if
    all jobs pass, each time. See docs/fleet.md.
    """
    from hloracle.fleet.matrix import read_matrix
    from hloracle.fleet.report import RECORD
    from hloracle.fleet.run import run_fleet
    from hloracle.reference.fixtures.named import FIXTURES

    group = context.parent.command if context.parent else None
    assert isinstance(group, click.Group)
    found = read_matrix(matrix, commands(group), list(FIXTURES))
    if listing:
        for job in found:
            click.echo(" ".join(found.words(job, 1)))
        return 0
    with _progress(sum(1 for _ in found)) as tell:
        head = run_fleet(found, address, out, resume, tell)
    with verdict_stands():
        if as_json:
            click.echo((out / RECORD).read_text("utf-8"), nl=False)
        else:
            _print(head, out, Output(highlight=False))
    return 0 if head["passed"] else 1


def _print(head: Head, out: Path, console: Console) -> None:
    """What does not pass, the new failures first; the counts; and where the report is."""
    from hloracle.fleet.report import PAGE, RECORD
    from hloracle.reports.fleet.record import jobs_in

    bad = [job for job in jobs_in(out / RECORD) if job["status"] != "passed"]
    for job in sorted(bad, key=lambda job: job["change"] != "new failure")[:MOST_TOLD]:
        new = " [bold](new failure)[/]" if job["change"] == "new failure" else ""
        console.print(f"[red]{job['status']}[/] {escape(shown(job['id'], 200))}{new}", soft_wrap=True)
        console.print(f"  [dim]{escape(shown(job['tries'][-1]['words'], 200))}[/]", soft_wrap=True)
    if len(bad) > MOST_TOLD:
        console.print(f"and {len(bad) - MOST_TOLD} more")
    others = "".join(f", {n} {status}" for status, n in head["counts"].items() if status != "passed")
    minutes = f"{head['seconds'] / 60:.1f} min"
    console.print(
        f"{head['counts'].get('passed', 0)} of {sum(head['counts'].values())} jobs passed{others}; took {minutes}"
    )
    console.print(f"report: {out / PAGE}", soft_wrap=True)


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar with the rate and the time that is left, on a terminal; what does not pass is told as it ends."""
    columns = (
        SpinnerColumn(), BarColumn(30), MofNCompleteColumn(), TextColumn("[dim]{task.fields[rate]}[/]"), TimeRemainingColumn(),
        TextColumn("{task.fields[bad]}"),
    )  # fmt: skip
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("jobs", total=total, rate="", bad="")
        counts = Counter[str]()

        def tell(outcome: Outcome) -> None:
            counts[outcome.status] += 1
            speed = progress.tasks[0].speed or 0
            bad = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "passed")
            progress.update(task, advance=1, rate=f"{60 * speed:.0f}/min", bad=bad)

        yield tell
