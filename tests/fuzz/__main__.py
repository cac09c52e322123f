"""`python -m fuzz`, as `nox -s fuzz` runs it. Exits with 0 only if there is no finding, and every target was tried fast enough."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fuzz.session import ENVIRONMENT, RATE, Found, Job, Session, chosen, summary, table
from fuzz.targets import BY_NAME

OUT = Path("out/fuzz")


@click.command()
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), default=20.0, show_default=True, help="How long it takes."
)
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="What inputs are made of; drawn and printed if not given."
)
@click.option("--jobs", type=click.IntRange(1), default=None, help="Workers; all processors if not given.")
@click.option("--only", "names", type=click.Choice(list(BY_NAME)), multiple=True, help="These targets alone.")
@click.option("--number", type=click.IntRange(0), default=None, help="This input alone, of the target and the seed.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Where findings are written."
)
def command(
    minutes: float, seed: int | None, jobs: int | None, names: Sequence[str], number: int | None, out: Path
) -> None:
    """Give spoilt input of every kind to the command line, for a fixed time."""
    os.environ |= ENVIRONMENT
    seed = secrets.randbelow(2**32) if seed is None else seed
    click.echo(f"seed {seed}")
    session = Session(chosen(names), seed, jobs or os.cpu_count() or 1)
    if wrong := session.check_samples():
        click.echo("\n".join(wrong))
        sys.exit(1)
    shutil.rmtree(out, ignore_errors=True)
    if number is not None:
        job = Job(names[0], number)
        (result,) = session.results([job])
        result = session.again(job, result)
        session.found.findings += [(job, result)] if result.wrong else []
        click.echo(f"status {result.status} in {result.seconds:.1f} s\n{result.raised}")
    else:
        session.run(lambda found: found.took > 60 * minutes, lambda line: click.echo(line[:1000]))
        click.echo(table(session.found))
    for line in session.write(out):
        click.echo(line[:1500])
    click.echo(summary(session.found))
    sys.exit(1 if session.found.findings or (number is None and _too_little(session.found, names)) else 0)


def _too_little(found: Found, names: Sequence[str]) -> bool:
    """Whether a target was not tried, or inputs were fewer than the goal's rate: then nothing is known. Told in a line."""
    if idle := [name for name in names or BY_NAME if not found.inputs[name]]:
        click.echo(f"no input was tried of {', '.join(idle)}: give it more minutes")
        return True
    if not names and found.rate() < RATE:
        click.echo(f"{found.rate():.1f} inputs a second are fewer than the goal, {RATE:.1f}")
        return True
    return False


if __name__ == "__main__":
    command()
