"""The commands that need no model and no compiler: they read the records of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hloracle.cli.options import written as tell_written
from hloracle.core.console import Output, verdict_stands
from hloracle.core.errors import InputError
from hloracle.core.files import is_stdout

# Whoever reads a file says what is wrong with it.
READ, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("base", type=READ, metavar="BASE.json")
@click.argument("head", type=READ, metavar="HEAD.json")
@click.option("-o", "page", type=FILE, help="The page's file; `-` writes the page to stdout, and nothing else.")
@click.option("--summary", type=FILE, help="The file of a summary in Markdown, for a comment on a pull request.")
@click.option("--link", default="", help="Where the page will be, for the summary to lead to.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON instead of words.")
@click.option(
    "--fail-on", type=click.Choice(["never", "regression", "change"]), default="never", show_default=True,
    help="Exit with 1 if there is a regression, or any change that is not merely of the environment.",
)  # fmt: skip
def diff(base: Path, head: Path, as_json: bool, fail_on: str, **written: Any) -> int:
    """Compare two runs' records: what HEAD.json has lost, or changed, against BASE.json.

    A regression is what is no longer checked, a token that left the truth by more than the noise, a value over its limit,
    a slower graph, or 5 % more resident memory; a token within the noise is worse, and a graph that differs is changed.
    Speed is judged by the peers that took turns with the graph in the same process. Exits with 0 whenever it could
    compare, unless --fail-on says otherwise.
    """
    from hloracle.reports.compare.comparison import compare
    from hloracle.reports.compare.files import print_comparison, write_comparison
    from hloracle.reports.record import load

    alone = any(is_stdout(path) for path in (written["page"], written["summary"]) if path)
    if alone and as_json:
        raise InputError("cannot go to stdout together with a file", "--json", "write the file elsewhere")
    comparison = compare(load(base), load(head), head)
    write_comparison(comparison, (base, head), **written)
    if not alone:
        with verdict_stands():
            print_comparison(comparison, as_json, [path for path in (written["page"], written["summary"]) if path])
    failing = {"never": (), "regression": ("regression",), "change": ("regression", "worse", "changed", "better")}
    return 1 if comparison.of(*failing[fail_on]) else 0


@click.group()
def history() -> None:
    """Keep runs over commits in a small file, and draw them as a page.

    The store is a text file of one line of JSON a run, hloracle-history.jsonl in the working directory unless --store
    names another. It may stand in git: with `hloracle-history.jsonl merge=union` in .gitattributes, branches that both
    added runs merge by themselves. The lock beside it, .hloracle-history.jsonl.lock, belongs into .gitignore.
    """


store_option = click.option(
    "--store", type=FILE, default=Path("hloracle-history.jsonl"), show_default=True, help="The file that holds the history."
)  # fmt: skip


@history.command()
@click.argument("reports", type=READ, nargs=-1, required=True, metavar="REPORT.json...")
@click.option("--commit", default=None, help="The revision that was judged, in place of what the records say.")
@store_option
def add(reports: tuple[Path, ...], commit: str | None, store: Path) -> int:
    """Append the runs of records to the history. One that is there already stays as it is.

    A fleet.json stands for the records of all its jobs.
    """
    from hloracle.reports.fleet.record import records_of
    from hloracle.reports.history.store import add as add_runs

    found = add_runs(store, [record for path in reports for record in records_of(path)], commit)
    new = sum(added for _, added in found)
    click.echo(f"{store}: {new} added, {len(found) - new} there already")
    return 0


@history.command("list")
@store_option
def list_runs(store: Path) -> int:
    """List the runs, the newest first."""
    from hloracle.reports.history.store import read
    from hloracle.reports.history.table import table

    # A pipe has no width that a line would have to fit.
    Output(highlight=False, width=None if sys.stdout.isatty() else 240).print(table(read(store)))
    return 0


@history.command()
@click.option("-o", "output", type=FILE, default=Path("history.html"), show_default=True, help="The page's file.")
@store_option
def page(output: Path, store: Path) -> int:
    """Draw the history as one page that works offline.

    It shows verdicts, tokens, errors, speed and operations over commits, and what changed between them.
    """
    from hloracle.core.files import write_file
    from hloracle.reports.history.page import render
    from hloracle.reports.history.store import read

    write_file(output, render(read(store)))
    tell_written(output)
    return 0


@click.command()
@click.argument("report", type=READ)
@click.option(
    "-o", "output", type=click.Path(path_type=Path, file_okay=False), required=True, help="The folder for both files."
)
def explorer(report: Path, output: Path) -> int:
    """Write the graphs of REPORT, a report.json, for Model Explorer, and the errors at their anchors.

    \b
    pip install ai-edge-model-explorer
    model-explorer OUTPUT/graphs.json        # then "Add per-node data": OUTPUT/errors.json
    """
    from hloracle.reports.explorer import export
    from hloracle.reports.record import load

    for path in export(load(report), output):
        click.echo(path)
    return 0


@click.command()
@click.argument("report", type=READ, metavar="REPORT.json")
@click.option("--graph", type=READ, help="The file that `hloracle check` judged: point to it.")
def annotate(report: Path, graph: Path | None) -> int:
    """Print REPORT.json, a run's record, as annotations for GitHub: its verdict, and the checks that did not pass.

    To be run in a step of a workflow, in the checkout that was judged.
    """
    from hloracle.reports.annotate import render
    from hloracle.reports.record import load

    record = load(report)
    if graph is not None and not graph.is_file():
        raise InputError("no such file", graph, "name the graph that was judged, relative to the checkout")
    click.echo(render(record, Path.cwd(), graph), nl=False)
    return 0


@click.command()
@click.argument("archive", type=READ, required=False, metavar="[RECORDS.zip]")
@click.option("--link", default="", help="Where the run is, for the reader to go on.")
@click.option("-o", "output", type=READ, required=True, help="The comment's file, Markdown.")
def comment(archive: Path | None, link: str, output: Path) -> int:
    """Draw the comment on a pull request from RECORDS.zip, which its own run has left.

    The archive has head.json and, to compare it with, base.json. Whatever else it is, nothing in it does harm: it is
    made for a workflow that may write and takes the archive from one that anybody may run. Without an archive the
    comment says that there is none.
    """
    from hloracle.core.files import write_file
    from hloracle.reports.comment import render

    if archive is not None and not archive.is_file():
        raise InputError("no such file", archive, "name the archive, or none where the run has left none")
    write_file(output, render(archive, link))
    return 0


RECORD_COMMANDS = (diff, history, explorer, annotate, comment)
