"""The commands about versions of compilers: one graph on one of them, the first that is wrong, and an upgrade."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from hloracle.cli import options
from hloracle.cli.options import progress_shown, tell
from hloracle.core.bounds import ROUNDS
from hloracle.core.console import verdict_stands
from hloracle.core.errors import InputError
from hloracle.core.shown import shown

FILE = click.Path(path_type=Path, dir_okay=False)
WORDS = 200  # characters of what is said of a release; --json has all
COLOURS = {"right": "green", "untried": "yellow"}


def given(function: Callable[..., int]) -> Callable[..., int]:
    """What is said of a graph that no reproducer says."""
    for option in (
        click.option("--function", default="", metavar="NAME", help="Of the graph's file: its only function, or main."),
        click.option(
            "--result", type=click.IntRange(0), default=0, show_default=True, help="Which result is compared."
        ),
        click.option(
            "--tolerance",
            type=options.Number(0),
            default=0.0,
            show_default=True,
            help="How far from what is expected an element may be.",
        ),
        click.option("--expected", type=FILE, help="A .npy file with the right result."),
        click.option(
            "--inputs", type=FILE, multiple=True, help="A .npy file with an argument; once for each of them, in order."
        ),
    ):
        function = option(function)
    return function


timeout = click.option(
    "--timeout", type=options.seconds(1), default=600, show_default=True, metavar="SECONDS",
    help="What a graph may take on a backend; one that takes longer is wrong.",
)  # fmt: skip


@click.command()
@click.argument("case", type=click.Path(path_type=Path), metavar="REPRODUCER|GRAPH.mlir")
@click.option("--backend", required=True, metavar="WORD", help="What compiles and runs it, as in `hloracle run`.")
@click.option("--against", default="", metavar="WORD", help="Time it in turns with this backend.")
@click.option(
    "--ratio", type=options.Number(0, min_open=True), default=None,
    help="Beside --against: how many times its time is too slow.",
)  # fmt: skip
@given
@timeout
@options.as_json
@options.threads
def replay(case: Path, backend: str, as_json: bool, **asked: Any) -> int:
    """Run one graph once on one backend, and say whether it is right.

    \b
    hloracle replay out/reproducer --backend iree==3.12.0
    hloracle replay scores.mlir --backend xla --inputs x.npy --expected y.npy --tolerance 1e-4

    A reproducer says itself what it takes and what is right. Of a graph's file alone it is asked whether it compiles. Exits
    as `git bisect run` wants it: 0 right, 1 wrong, slower, or does not compile, 125 cannot be tried, such as a version that
    is not to be had; 2 for bad input.
    """
    from hloracle.versions.replay import EXIT, How
    from hloracle.versions.replay import replay as attempt

    against, ratio = asked["against"], asked["ratio"]
    if bool(against) != (ratio is not None):
        where = "--against" if against else "--ratio"
        raise InputError("says nothing without the other", where, "give both --against and --ratio, or neither")
    read = _read(case, asked)
    with progress_shown() as progress, progress.stage("replay"):
        found = attempt(read, backend, How(asked["threads"], asked["timeout"], against, ratio or 0.0), progress)
    with verdict_stands():
        told = {"backend": backend, "status": found.status, "message": found.words, "times": _times(found.times)}
        tell(told, as_json, lambda out: _print_tried(backend, found, out))
    return EXIT[found.status]


def _read(path: Path, asked: dict[str, Any]) -> Any:
    from hloracle.versions.case import Given, read_case

    return read_case(path, Given(**{name: asked[name] for name in Given.__dataclass_fields__}))


def _times(times: Any) -> dict[str, Any] | None:
    return times and {"ms": times.own, "against_ms": times.other, "ratio": times.ratio}


def _print_tried(word: str, found: Any, out: Console) -> None:
    colour = COLOURS.get(found.status, "red")
    words = f": {escape(found.words)}" if found.words else ""
    out.print(f"[bold {colour}]{found.status}[/] on {escape(word)}{words}", soft_wrap=True)


@click.command()
@click.argument("case", type=click.Path(path_type=Path), metavar="REPRODUCER|GRAPH.mlir")
@click.option("--package", required=True, metavar="NAME", help="Of which releases: iree-base-compiler or jaxlib.")
@click.option("--good", required=True, metavar="VERSION", help="A release in which it is right.")
@click.option("--bad", required=True, metavar="VERSION", help="A later one, in which it is not.")
@click.option("--flag", "flags", multiple=True, metavar="--FLAG", help="Of the compiler; may be given several times.")
@click.option(
    "--slower", type=options.Number(0, min_open=True), metavar="RATIO",
    help="It is wrong, too, where it takes so many times as long as in the good release, timed in turns.",
)  # fmt: skip
@click.option("--every", is_flag=True, help="Try every release: it may have been right again in between.")
@click.option(
    "--model", help="The model that the graph computes: it is right if `hloracle check` says that it conforms."
)
@click.option("--abi", type=FILE, help="Beside --model: the graph's ABI file, if it is not NAME.abi.json beside it.")
@given
@timeout
@options.as_json
@options.threads
def bisect(case: Path, as_json: bool, **asked: Any) -> int:
    """Find the first release of a compiler in which a graph goes wrong, does not compile, or is slower.

    \b
    hloracle bisect out/reproducer --package iree-base-compiler --good 3.5.0 --bad 3.13.0 --flag=--iree-opt-data-tiling
    hloracle bisect decode.mlir --model tiny-llama --package jaxlib --good 0.9.1 --bad 0.10.2

    Releases are those that `pip index versions` lists; each is installed once, into the cache. One that cannot be tried is
    passed over. Exits with 0 if it found such a release, and with 1 if there is none to find: it is already wrong in the
    good one, or right in the bad one.
    """
    from hloracle.versions.search import Search, search

    files = {name: asked.pop(name) for name in ("inputs", "expected", "tolerance", "result", "function")}
    asked["slower"] = asked["slower"] or 0.0
    read = None
    if asked["model"] is None:
        if asked["abi"]:
            raise InputError("is of a graph of a model", "--abi", "give --model too, or leave it out")
        read = _read(case, files)
    elif idle := next((name for name, value in files.items() if value), None):
        raise InputError("has no effect beside --model, which says what is right", f"--{idle}", "leave it out")
    wanted = Search(case, read, **asked)
    with progress_shown() as progress:
        found = search(wanted, progress)
    with verdict_stands():
        rows = [
            {"version": v, "status": t.status, "message": t.words, "times": _times(t.times)}
            for v, t in found.tried.items()
        ]
        told = {"package": wanted.package, "first": found.first, "passed_over": found.passed_over, "words": found.words}
        tell({**told, "tried": rows}, as_json, lambda out: _print_bisection(wanted.package, found, out))
    return 0 if found.first else 1


def _print_bisection(package: str, found: Any, out: Console) -> None:
    from rich.table import Table

    out.print(f"{escape(package)}, in the order in which they were tried", soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    for version, tried in found.tried.items():
        colour = COLOURS.get(tried.status, "red")
        table.add_row(version, f"[{colour}]{tried.status}[/]", escape(shown(tried.words, WORDS)))
    out.print(table)
    out.print(escape(found.words), soft_wrap=True)


@click.command(epilog=options.MODEL_HELP)
@click.argument("base", metavar="OLD")
@click.argument("head", metavar="NEW")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--real", is_flag=True, help=f"Judge {options.DEFAULT_MODEL} too, in full.")
@click.option(
    "--rounds", type=click.IntRange(0, ROUNDS), default=15, show_default=True,
    help="In which decode steps of the two take turns; 0 for none.",
)  # fmt: skip
@options.jobs
@timeout
@options.as_json
@options.threads
@options.out("index.html and upgrade.json, and of each model both records and the page that compares them")
def upgrade(base: str, head: str, models: tuple[str, ...], real: bool, as_json: bool, **asked: Any) -> int:
    """Say what moving from one version of a compiler to another changes.

    \b
    hloracle upgrade iree==3.12.0 iree==3.13.0
    hloracle upgrade xla==0.9.1 xla==0.10.2 tiny-llama path/to/checkpoint --out upgrade

    OLD and NEW are backends, as in `hloracle run`. The graphs of each MODEL (by default a tiny one of every family) are
    judged on both; then their decode steps, and the compilers, take turns. The page of a model is that of `hloracle diff`.
    Exits with 1 if something got worse on a model, or a model could not be judged.
    """
    from hloracle.reports.compare.upgrade import as_json as told
    from hloracle.versions.upgrade import Upgrade, all_models
    from hloracle.versions.upgrade import upgrade as compare_all

    extra = options.DEFAULT_MODEL if real else ""
    chosen = tuple(dict.fromkeys(filter(None, [*models, extra]))) if models else all_models(extra)
    wanted = Upgrade(base, head, chosen, **asked)
    with progress_shown() as progress:
        rows = compare_all(wanted, progress)
    with verdict_stands():
        tell(told(rows, (base, head)), as_json, lambda out: _print_upgrade(rows, wanted.out, out))
    return 0 if all(row.safe for row in rows) else 1


def _print_upgrade(rows: Any, folder: Path, out: Console) -> None:
    from hloracle.cli.show import figures_table

    headings = ("model", "", "decode\nnew/old", "compile\nnew/old", "size\nnew/old", "memory\nnew/old")
    table = figures_table(*headings, box=None, pad_edge=False)
    for row in rows:
        pairs = (
            "–" if not pair or not pair[0] else f"{pair[1] / pair[0]:.2f}"
            for pair in (row.compile, row.size, row.memory)
        )
        step = f"{row.ratio:.2f} ({min(row.step):.2f} to {max(row.step):.2f})" if row.step else "–"
        table.add_row(escape(row.model), f"[{'green' if row.safe else 'red'}]{row.title}[/]", step, *pairs)
    if not out.is_terminal:  # nothing says how wide a file may be
        out.width = max(out.width, 120)
    out.print(table)
    for row in rows:
        if not row.safe:
            out.print(f"[bold red]{escape(row.model)}[/]: {escape(row.why or row.sentence)}", soft_wrap=True)
    out.print(f"page: {escape(str(folder / 'index.html'))}", soft_wrap=True)


VERSION_COMMANDS = (replay, bisect, upgrade)
