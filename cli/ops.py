"""`hloracle ops`: any backend on every operation that language models use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from hloracle.cli import options
from hloracle.core.console import Output, terminal, verdict_stands
from hloracle.core.errors import InputError
from hloracle.core.shown import shown

if TYPE_CHECKING:
    from hloracle.ops.case import Case
    from hloracle.ops.running_suite import Told
    from hloracle.reports.ops.record import OpsRecord

LISTED = 20  # failures on the terminal; the page has all


@click.command()
@click.argument("what", nargs=-1, metavar="[OPERATION|FILE|FOLDER]...")
@click.option(
    "--of", "graph", type=click.Path(path_type=Path), metavar="GRAPH.mlir",
    help="Try every operation of this graph, in the shapes and with the attributes that it has there.",
)  # fmt: skip
@options.backends
@options.device
@options.jobs
@click.option(
    "--timeout", type=options.seconds(), default=60, show_default=True, metavar="SECONDS",
    help="What a module may take to be compiled and run; a case that takes longer by itself is `hang`.",
)  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=32, show_default=True,
    help="Most cases in one module. What is wrong there runs again by itself; 1 runs each by itself at once.",
)  # fmt: skip
@click.option(
    "--known", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
    help="A list of known faults beside hloracle's own (docs/ops.md); may be given several times.",
)  # fmt: skip
@click.option(
    "--reproducers", type=click.Choice(["new", "all", "none"]), default="new", show_default=True,
    help="For which failures a folder is written that shows them with the compiler's own tools.",
)  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="List the cases instead of running them.")
@options.reuse
@options.as_json
@options.out("ops.html, ops.json, and a folder for each failure")
def ops(what: tuple[str, ...], graph: Path | None, listing: bool, as_json: bool, out: Path, **asked: Any) -> int:
    """Try backends on every StableHLO operation that language models use, one small graph after another.

    \b
    hloracle ops                                   all operations on IREE and XLA
    hloracle ops add dot_general --backend xla     two of them on XLA
    hloracle ops --backend 'worker:acme-worker' --known acme.toml
    hloracle ops path/to/stablehlo/testdata        test files of others
    hloracle ops --of decode.mlir                  what a graph has

    OPERATION is a name such as `add` or `stablehlo.add`, or a case's, such as `add/f32`. A FILE, or each .mlir file of a FOLDER,
    is a module with @inputs, @expected and check.expect_… (docs/ops.md). A case passes if each element is within the ULP that
    the case allows. Exits with 0 if nothing fails that is not on the list of known faults and nothing passes that is, with 1
    otherwise, and with 2 for input that cannot be read, such as a malformed test file.
    """
    from hloracle.backends.devices import open_device
    from hloracle.backends.named import BUILT_IN, backends_on, chosen
    from hloracle.ops.files import judged
    from hloracle.ops.known import KNOWN, read_faults
    from hloracle.ops.running import How
    from hloracle.ops.running_suite import Asked, begin, conduct

    cases, malformed = _cases(what, graph)
    if listing:
        _print_cases(cases, as_json)
        for bad in malformed:
            terminal.print(_malformed(bad.where, bad.what, bad.fix), soft_wrap=True)
        return 2 if malformed else 0
    device = open_device(asked["device"], asked["cuda_target"])
    words = asked["backends"] or (backends_on(device) if device.remote else BUILT_IN)
    choices = chosen(words, device)
    faults = [fault for path in (KNOWN, *asked["known"]) for fault in read_faults(path)]
    begin(out)

    def fails(case: str, family: str, version: str) -> bool:
        return any(fault.concerns(case, family, version) for fault in faults)

    how = How(asked["jobs"], asked["timeout"], asked["batch"], asked["reuse"], judged, fails)
    with _progress() as told:
        record = conduct(Asked(cases, choices, how, out, faults, malformed, asked["reproducers"]), told)
    with verdict_stands():
        if as_json:
            from hloracle.reports.ops.record import to_json

            click.echo(to_json(record), nl=False)
        else:
            print_record(record, out, Output(highlight=False))
    return 2 if malformed else 0 if record["passed"] else 1


def _cases(what: tuple[str, ...], graph: Path | None) -> tuple[list[Case], list[InputError]]:
    """The cases that are asked for, and what cannot be read of files. Raises InputError."""
    from hloracle.ops.opened import cases_in, tests_of
    from hloracle.ops.suite import cases, operations

    paths = [
        Path(one) for one in what if one.endswith(".mlir") or ("/" in one and Path(one).exists()) or Path(one).is_dir()
    ]
    names = [one for one in what if Path(one) not in paths]
    known = {name for one in operations() for name in (one, one.partition(".")[2])}
    for name in names:
        if name not in known and not any(True for _ in cases([name])):
            fix = f"name a file, a folder, or some of: {', '.join(o.removeprefix('stablehlo.') for o in operations())}"
            raise InputError("is no operation that there are cases of", shown(repr(name), 100), fix)
    found: list[Case] = []
    if names or (graph is None and not paths):
        found += cases(names)
    if graph is not None:
        found += cases_in(graph)
    tests, malformed = tests_of(paths)
    if not found and not tests and malformed:
        raise (
            malformed[0]
            if len(malformed) == 1
            else InputError(
                f"{len(malformed)} tests, and none that can be read: the first {malformed[0].what}",
                malformed[0].where,
                malformed[0].fix,
            )
        )
    return [*found, *tests], malformed


def _print_cases(cases: list[Case], as_json: bool) -> None:
    from rich.table import Table

    def table(out: Console) -> None:
        rows = Table("case", "operation", "what it tests", box=None, pad_edge=False)
        for case in cases:
            rows.add_row(escape(case.id), escape(case.operation), escape(case.tests))
        out.print(rows)

    told = [{"case": c.id, "operation": c.operation, "tests": c.tests, "reason": c.reason} for c in cases]
    options.tell(told, as_json, table)


@contextlib.contextmanager
def _progress() -> Iterator[Told]:
    """A bar for each backend on a terminal, with what went wrong so far; nothing in a pipe."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hloracle.ops.running_suite import Told

    if not terminal.is_terminal:
        yield Told()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("[red]{task.fields[wrong]}[/]"), console=terminal) as progress:
        tasks: list[Any] = []
        wrong = 0

        def begun(title: str, total: int) -> None:
            nonlocal wrong
            wrong = 0
            if total:
                tasks.append(progress.add_task(escape(title), total=total, wrong=""))

        def stepped(outcome: Any) -> None:
            nonlocal wrong
            wrong += outcome is not None and outcome.failed
            progress.update(tasks[-1], advance=1, wrong=f"{wrong} failed" if wrong else "")

        yield Told(begun, stepped)


def print_record(record: OpsRecord, out: Path, console: Console) -> None:
    """The table of operations and backends, what is new, and where the page is."""
    from rich.table import Table

    from hloracle.reports.ops.record import of_states, operations, tallies

    found = tallies(record)
    table = Table("operation", *(escape(b["title"]) for b in record["backends"]), box=None, pad_edge=False)
    for operation in operations(record):
        cells = [_cell(found[operation, b["name"]]) for b in record["backends"]]
        table.add_row(escape(operation or "–"), *cells)
    if not console.is_terminal:  # nothing says how wide a file may be
        console.width = max(console.width, 120)
    console.print(table)
    for state, colour, words in (("new-failure", "red", "new failure"), ("new-pass", "yellow", "new pass")):
        rows = of_states(record, state)  # type: ignore[arg-type]
        for row, outcome in rows[:LISTED]:
            told = (
                outcome["words"]
                if state == "new-failure"
                else f"remove it from the list of known faults: {outcome['known']}"
            )
            where = f"{escape(row['case'])} on {escape(outcome['backend'])}"
            console.print(f"[bold {colour}]{words}[/] {where}: {outcome['title']}; {escape(told)}", soft_wrap=True)
        if len(rows) > LISTED:
            console.print(f"[{colour}]… and {len(rows) - LISTED} more of the kind[/]; the page has all")
    for bad in record["malformed"]:
        console.print(_malformed(bad["where"], bad["what"], bad["fix"]), soft_wrap=True)
    for backend in record["backends"]:
        console.print(_sum(record, backend["name"]), soft_wrap=True)
    console.print(f"page: {escape(str(out / 'ops.html'))}", soft_wrap=True)


def _malformed(where: str, what: str, fix: str) -> str:
    return f"[bold red]malformed[/] {escape(where)}: {escape(what)}; {escape(fix)}"


def _cell(tally: Any) -> str:
    """An operation on a backend: how many of its cases passed, the worst of them, and what else there is."""
    passed = tally["states"].get("pass", 0)
    colour = "red" if tally["states"].get("new-failure") or tally["states"].get("new-pass") else ""
    colour = colour or ("green" if passed == tally["total"] else "yellow")
    more = [f"{count} {title}" for title, count in tally["results"].items() if title not in ("exact", "within")]
    known = tally["states"].get("known", 0)
    worst = "" if not tally["worst"] else f" [dim]{tally['worst']:.3g} ULP[/]"
    rest = f" {', '.join(more)}" + (f" ({known} known)" if known else "") if more else ""
    return f"[{colour}]{passed}/{tally['total']}[/]{worst}{rest}"


def _sum(record: OpsRecord, name: str) -> str:
    from collections import Counter

    outcomes = [o for row in record["rows"] for o in row["outcomes"] if o["backend"] == name]
    results, states = Counter(o["result"] for o in outcomes), Counter(o["state"] for o in outcomes)
    backend = next(b for b in record["backends"] if b["name"] == name)
    told = ", ".join(f"{count} {result}" for result, count in results.most_common())
    kept = f", {backend['reused']} from the cache" if backend["reused"] else ""
    new = f"; {states['known']} known, {states['new-failure']} new failures, {states['new-pass']} new passes"
    return f"{escape(backend['title'])}: {len(outcomes)} cases in {backend['seconds']:.1f} s{kept}: {told}{new}"


OPS_COMMANDS = (ops,)
