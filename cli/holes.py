"""`hloracle holes`: spoils right graphs wherever a run could see it, and tells what was not noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hloracle.cli import options
from hloracle.cli.options import progress_shown, tell
from hloracle.core.console import Output

if TYPE_CHECKING:  # what it imports takes longer than a command line needs to be parsed
    from hloracle.studies.holes import Item, Outcome

STATES = ("noticed", "explained", "missed")


@click.command()
@click.argument("families", nargs=-1, metavar="[FAMILY]...")
@click.option("--kind", "kinds", multiple=True, help="Spoil this kind of thing alone; may be given several times.")
@click.option("--list", "listing", is_flag=True, help="List them instead of running them.")
@options.jobs
@options.reuse
@options.as_json
@options.pin
def holes(
    families: tuple[str, ...], kinds: tuple[str, ...], listing: bool, jobs: int, reuse: bool, as_json: bool, pin: bool,
) -> int:  # fmt: skip
    """Spoil everything that a run could observe, one thing at a time, and see each noticed.

    The right graphs of each FAMILY's tiny model (llama, gemma3_text, mixtral and deepseek_v3, where none is named) are
    spoiled at every result, slot, position, length and token id, and judged as `run` and as `check` judge graphs. Exits
    with 0 only if both notice each of them, but those of which a reason says that nobody can, and notice none of these.
    """
    from hloracle.studies.holes import PINS, as_records, pins, problems, run_holes, selected
    from hloracle.studies.study import write_pins

    items = selected(families, kinds)
    if listing:
        print_items(items, Output(highlight=False))
        return 0
    with progress_shown() as progress:
        outcomes = run_holes(items, jobs, progress.report, reuse)
    found = problems(outcomes)
    tell(
        {"spoilings": as_records(outcomes), "problems": found}, as_json,
        lambda console: print_outcomes(outcomes, found, console),
    )  # fmt: skip
    if pin and not found:
        write_pins(PINS, pins(outcomes))
    return 1 if found else 0


def print_items(items: Sequence[Item], console: Console) -> None:
    """What there is to spoil, one on a line; after a dash, why nobody can tell."""
    from hloracle.studies.holes import all_of

    for family, id in items:
        spoiling = all_of(family)[id]
        reason = f" – {spoiling.reason}" if spoiling.reason else ""
        console.print(escape(f"{family:<12} {id:<58} {spoiling.what}{reason}"), soft_wrap=True)


def print_outcomes(outcomes: Sequence[Outcome], problems: Sequence[str], console: Console) -> None:
    """How many were noticed, by kind and family, by each judge; and what is not as it should be."""
    from hloracle.studies.holes import JUDGES, tally

    families = list(dict.fromkeys(o.family for o in outcomes))
    for judge in JUDGES:
        counts = tally(outcomes, judge)
        console.print(f"by {judge}: {' / '.join(STATES)}", soft_wrap=True)
        table = Table("", *families, box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for kind in dict.fromkeys(kind for kind, _ in counts):
            table.add_row(kind, *(_cell(counts.get((kind, family), Counter())) for family in families))
        sums = (sum((c for (_, f), c in counts.items() if f == family), Counter()) for family in families)
        table.add_row("all", *map(_cell, sums))
        console.print(table)
    reused = sum(o.reused for o in outcomes)
    seconds = sum(o.seconds for o in outcomes if not o.reused)
    console.print(
        f"{len(outcomes)} spoilings, {len(problems)} problems; {reused} reused from the cache, the others took "
        f"{seconds:.0f} s of one processor",
        soft_wrap=True,
    )
    for problem in problems:
        console.print(f"[red]{escape(problem)}[/]", soft_wrap=True)


def _cell(counts: Counter[str]) -> str:
    colour = "red" if counts["missed"] else "green"
    return f"[{colour}]{' / '.join(str(counts[state]) for state in STATES)}[/]" if counts else ""
