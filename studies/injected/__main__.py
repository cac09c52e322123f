"""`python -m hloracle.studies.injected`: inject every fault of the table, and see what comes of each.

    python -m hloracle.studies.injected [--jobs 2] [--only PATTERN] [--list] [--pin]

Exit status 0 if every row is green. A row that cannot be tried here, where nothing may be mounted, is skipped, and that is no pass.
"""

from __future__ import annotations

import fnmatch
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import as_completed
from functools import cache
from pathlib import Path

import click

from hloracle.core.child import threads
from hloracle.core.console import terminal
from hloracle.core.errors import InputError
from hloracle.core.program import run_program
from hloracle.studies.injected.judge import CONFORMS, problems
from hloracle.studies.injected.page import write_page
from hloracle.studies.injected.place import SECONDS, Place
from hloracle.studies.injected.table import COMMANDS, ROWS, Row
from hloracle.studies.injected.trial import Tried

FIX = "repair that first: nothing can be told of faults"
NAMESPACES = (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user"))


@cache
def namespace() -> tuple[str, ...]:
    """The words before a command that give it mounts of its own; none where that cannot be had."""
    for words in NAMESPACES:
        try:
            done = subprocess.run([*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
        except OSError:
            return ()
        if not done.returncode:
            return words
    return ()


def warm(base: Path, commands: Iterable[str] = COMMANDS) -> None:
    """Run these commands in a folder once: a cache that holds all, and the graph that `check` takes. Raises InputError."""
    if (base / "whole").exists():
        return
    place = Place(base, [], seconds=6 * SECONDS)
    for folder in (place.work, place.cache, place.tmp, place.home):
        folder.mkdir(parents=True, exist_ok=True)
    emit = ("emit", "tiny-llama", "--phase", "decode", "-o", "decode.mlir")
    for name, words in {"emit": emit, **{name: COMMANDS[name] for name in commands}}.items():
        place.words = list(words)
        ran = place.run()
        wrong = [*problems(CONFORMS, ran)] if name != "emit" else []
        if wrong:
            raise InputError(f"does not conform without a fault ({wrong[0]})", f"hloracle {' '.join(words)}", FIX)
        shutil.rmtree(place.out, ignore_errors=True)
    (base / "whole").touch()


def try_row(row: Row, base: Path, work: Path) -> Tried | None:
    """Try a row; None where it cannot be tried here. Raises InputError for a trial that itself fails."""
    if row.fault.needs_mounts and not namespace():
        return None
    folder = work / row.id
    shutil.rmtree(folder, ignore_errors=True)
    command = [*namespace(), sys.executable, "-m", "hloracle.studies.injected.trial", row.id, str(base), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Tried(row.id, [f"the trial failed: {done.stderr.strip()[-600:]}"], "", 0.0)
    found = Tried(**json.loads(done.stdout))
    if not found.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Rows at a time.")
@click.option("--only", "patterns", multiple=True, metavar="PATTERN", help="Rows whose id matches, such as 'ops-*'.")
@click.option("--list", "listing", is_flag=True, help="List them instead of trying them.")
@click.option(
    "--work", type=click.Path(file_okay=False, path_type=Path),
    help="A folder that stays: the warm cache is used again, and what red rows left can be looked at.",
)  # fmt: skip
@click.option("--pin", is_flag=True, help="Write docs/injected-faults.md where all are green.")
def command(jobs: int, patterns: tuple[str, ...], listing: bool, work: Path | None, pin: bool) -> int:
    """Inject every fault of the table, and see what comes of each."""
    rows = [row for row in ROWS if not patterns or any(fnmatch.fnmatch(row.id, pattern) for pattern in patterns)]
    if not rows:
        raise InputError("matches no row", f"--only {' '.join(patterns)}", "name one that --list has")
    if listing:
        for row in rows:
            click.echo(f"{row.id}: {row.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="injected-") as folder:
        return _try_all(rows, jobs, (work or Path(folder)).absolute(), pin and not patterns)


def _try_all(rows: list[Row], jobs: int, work: Path, pin: bool) -> int:
    began, found, skipped = time.monotonic(), dict[str, Tried](), list[str]()
    with terminal.status("the commands without a fault") as status:
        warm(work / "base")
        with threads(jobs) as pool:
            futures = {pool.submit(try_row, row, work / "base", work / "rows"): row for row in rows}
            for number, future in enumerate(as_completed(futures), 1):
                row, tried = futures[future], future.result()
                status.update(f"{number} of {len(rows)} faults, last {row.id}")
                if tried is None:
                    skipped.append(row.id)
                    click.echo(f"skipped {row.id}: nothing may be mounted here")
                    continue
                found[row.id] = tried
                click.echo(f"{'RED' if tried.wrong else 'green'} {row.id}, {tried.seconds} s: {tried.said}")
                for line in tried.wrong:
                    click.echo(f"    {line}")
    red = [tried for tried in found.values() if tried.wrong]
    minutes = (time.monotonic() - began) / 60
    click.echo(
        f"{len(rows)} faults: {len(found) - len(red)} green, {len(red)} red, {len(skipped)} skipped; {minutes:.1f} min"
    )
    if pin and not red and not skipped:
        write_page()
    return 1 if red or skipped else 0


if __name__ == "__main__":
    run_program(command)
