"""What is made of a comparison: the page, the summary, and words or JSON on stdout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from hloracle.core.errors import InputError
from hloracle.core.files import refuse_unwritable, write_file
from hloracle.reports import record
from hloracle.reports.compare import page as diff_page
from hloracle.reports.compare import summary as compare_summary
from hloracle.reports.compare.change import capital
from hloracle.reports.compare.comparison import Comparison, as_json


def write_comparison(
    comparison: Comparison, records: Sequence[Path], page: Path | None, summary: Path | None, link: str
) -> None:
    """Write the page and the summary, those that have a file. Both are drawn before the first is written.

    Raises InputError for a file that stands for two things, a link that nothing would hold, and what cannot be written.
    """
    if link and summary is None:
        raise InputError("would be in no file", "--link", "give --summary too, or leave it out")
    named = [os.path.realpath(path) for path in (*records, page, summary) if path is not None]
    for flag, path in (("-o", page), ("--summary", summary)):
        if path is not None and named.count(os.path.realpath(path)) > 1:
            raise InputError(f"{flag} would overwrite it", path, "name another file")
    drawn = {
        page: diff_page.render(comparison) if page else "",
        summary: compare_summary.render(comparison, link) if summary else "",
    }
    for path in (page, summary):
        if path is not None:
            refuse_unwritable(path)
    for path, content in drawn.items():
        if path is not None:
            write_file(path, content)


def print_comparison(comparison: Comparison, json: bool, written: Sequence[Path]) -> None:
    """The comparison on stdout: a sentence and a line for each change, or all of it as JSON."""
    if json:
        click.echo(record.to_json(as_json(comparison)), nl=False)
        return
    for line in comparison.caveats:
        click.echo(f"! {line}")
    for change in comparison.changes:
        before_after = f" ({change.before or '–'} → {change.after or '–'})" if change.before or change.after else ""
        click.echo(f"{change.severity:>10}  {capital(change.words)}{before_after}")
        for line in change.also:
            click.echo(f"{'also':>10}  {line[:1].upper()}{line[1:]}")
    for line in comparison.unjudged:
        click.echo(f"not judged  {line}")
    click.echo(f"{comparison.title}: {comparison.sentence}")
    for path in written:
        click.echo(path)
