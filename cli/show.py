"""Records, mutants, holes and targets on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hloracle.core.record import Answers, Cell, Check, Compiled, Contender, Family, Localization, Record
from hloracle.mutants import Mutant
from hloracle.reports.facts import config_words
from hloracle.reports.text import candidate, others, repaired, shown_by, written_by
from hloracle.studies.holes import JUDGES, Item, Outcome, all_of, tally
from hloracle.studies.mutants import Trial

# Columns of tokens that fit a terminal of 80, and the letters of a word in their heads; else the backends are shown in rows.
MOST, LONGEST = 7, 8
STATES = ("noticed", "explained", "missed")  # of what was spoiled


def figures_table(first: str, *others: str, **style: Any) -> Table:
    """A table whose first column has names, and all others have figures."""
    table = Table(first, **style)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def print_record(record: Record, out: Path, console: Console) -> None:
    """The matrix of tokens, the checks that did not pass, the speed and the verdict of a run.

    out: the folder that holds the report, which the last lines name.
    """
    configurations = [c["id"] for c in record["configurations"]]
    words = [word for c in record["configurations"] for word in c["backend"].split("-")]
    if len(configurations) > MOST or max(map(len, words), default=0) > LONGEST:
        console.print(_matrix(record))
        for sentence in record["matrix"]["sentences"]:
            console.print(escape(sentence))
    elif configurations:
        # So that the whole matrix fits 80 columns, also that of a device, which has seven configurations.
        headings = [configuration.replace("/", "\n") for configuration in configurations]
        close = len(configurations) > 5
        table = figures_table(
            "prompt", *(h.replace("-", "\n") if close else h for h in headings), padding=(0, 0 if close else 1),
            title=f"tokens equal to Hugging Face's, {escape(record['model']['name'])}",
        )  # fmt: skip
        table.columns[0].no_wrap = True
        for prompt, row in record["tokens"].items():
            table.add_row(escape(prompt), *(_agreed(row, configuration) for configuration in configurations))
        console.print(table)
    _print_checks([check for check in record["checks"] if check["status"] != "passed"], console)
    passed = sum(c["status"] == "passed" for c in record["checks"])
    reused = f"reused from the cache: {', '.join(record['reused'])}" if record["reused"] else "nothing was reused"
    console.print(f"{passed} of {len(record['checks'])} checks passed; {reused}")
    if record["settings"]["ignored"]:
        console.print(f"[yellow]{escape(record['settings']['ignored'])}[/]", soft_wrap=True)
    if record["speed"]["contenders"]:
        console.print(_speed(record["speed"]["contenders"]))
    _print_verdict(record, out, console)


def _matrix(record: Record) -> Table:
    """A row for each backend: what it makes of each source's graphs, and how many tokens are right."""
    sources = [source["id"] for source in record["sources"]]
    table = figures_table(
        "backend", *sources, title=f"tokens equal to Hugging Face's, {escape(record['model']['name'])}"
    )
    cells = {(cell["backend"], cell["source"]): cell for cell in record["matrix"]["cells"]}
    for backend in record["matrix"]["backends"]:
        table.add_row(escape(backend["title"]), *(_witness(record, cells.get((backend["name"], s))) for s in sources))
    return table


def _witness(record: Record, cell: Cell | None) -> str:
    if cell is None:
        return "[dim]not asked[/]"
    these = [c for c in record["configurations"] if (c["source"], c["backend"]) == (cell["source"], cell["backend"])]
    words = {"right": "", "wrong": "[red]wrong[/]", "failed": "[red]does not run[/]", "unknown": "[yellow]unknown[/]"}
    tokens = min(((c["agreed"], c["total"]) for c in these if c["status"] != "failed"), default=None)
    told = f"{tokens[0]} of {tokens[1]}" if tokens else ""
    where = f"[dim]{escape(cell['anchor'])}[/]" if cell["anchor"] else ""
    return "\n".join(filter(None, [" ".join(filter(None, [words[cell["state"]], told])), where]))


def _print_checks(checks: Sequence[Check], console: Console) -> None:
    """A line for each, and one for those of which there is the same to say."""
    same: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        what = ", ".join(part for part in (check["figure"], check["detail"]) if part)
        same.setdefault((check["status"], what), []).append(check["id"])
    for (status, what), ids in same.items():
        console.print(f"{status:>8}  {escape(', '.join(ids))}: {escape(what)}", soft_wrap=True)


def _print_verdict(record: Record, out: Path, console: Console) -> None:
    colour = "green" if record["passed"] else "red"
    verdict = record["verdict"]
    console.print(f"[bold {colour}]{verdict['class']}[/]: {escape(verdict['explanation'])}")
    if verdict["compared"]:
        console.print(f"{'compared':>14}: {escape('; '.join(verdict['compared']))}")
    if verdict["not_compared"] and not record["passed"]:  # a pass begins with it
        console.print(f"{'not compared':>14}: {escape('; '.join(verdict['not_compared']))}")
    if told := config_words(record):
        console.print(f"{'config':>14}: {escape(told)}", soft_wrap=True)
    if verdict["anchor"]:
        words = "where" if verdict["class"] == "invariant-broken" else "first wrong"
        console.print(f"{words:>14}: {escape(verdict['anchor'])}")
    if verdict["operation"]:
        console.print(f"     operation: {escape(verdict['operation'])}", soft_wrap=True)
    if verdict["confidence"]:
        because = "; ".join(verdict["confidence"]["because"])
        console.print(f"      how sure: {verdict['confidence']['level']}: {escape(because)}")
    found = record["localization"]
    if found:
        _print_repair(found, out, console)
    if found and (reproducer := found["reproducer"]):
        shown = "shows the fault" if reproducer["shown"] else "did not show the fault here"
        folder = out / reproducer["folder"]
        console.print(f"    reproducer: {escape(str(folder))} ({shown}): cd there, then", soft_wrap=True)
        console.print(escape(reproducer["command"]), soft_wrap=True)
        if told := shown_by(reproducer):
            console.print(f"{'':>14}{escape(told)}", soft_wrap=True)
        needs = [f"The command needs {' '.join(reproducer['needs'])}."] if reproducer["needs"] else []
        for note in [*needs, *reproducer["notes"]]:
            console.print(f"{'':>14}{escape(note)}", soft_wrap=True)
    console.print(f"report: {escape(str(out / 'report.html'))}", soft_wrap=True)


def _print_repair(found: Localization, out: Path, console: Console) -> None:
    """What would put the graph right, as a diff; what else may be to blame; and what wrote the operation."""
    if repair := found["repair"]:
        console.print(f"        repair: {escape(repaired(repair))}", soft_wrap=True)
        first = repair["lines"][0]
        console.print(f"{'':>14}  [red]- {escape(first['before'])}[/]", soft_wrap=True)
        for line in first["after"]:
            console.print(f"{'':>14}  [green]+ {escape(line)}[/]", soft_wrap=True)
        if repair["patch"]:
            console.print(f"         patch: {escape(str(out / repair['patch']))}", soft_wrap=True)
    operation = found["operation"]
    if operation and operation["origin"]:
        console.print(f"    written by: {escape(written_by(operation['origin']))}", soft_wrap=True)
    if more := others(found):
        console.print(f"      or it is: {escape('; '.join(map(candidate, more)))}", soft_wrap=True)


def print_families(record: Record, out: Path, console: Console) -> None:
    """A row for each model of a suite, what failed in those that do not pass, and the verdict of all."""
    names = ("family", "tokens", "worst anchor,\nin floors", "op\nkinds", "matmuls", "mutants\nkilled")
    table = figures_table(*names, box=None, pad_edge=False)
    table.columns[2].justify = "left"
    table.columns[2].overflow = "fold"
    for row in record["families"]:
        table.add_row(*_family(row))
    if not console.is_terminal:
        # Nothing says how wide a file may be; narrow, the table would be three times as long.
        console.width = max(console.width, 120)
    console.print(table)
    if any(row["mutants"]["pinned"] for row in record["families"]):
        console.print(
            "[dim]mutants: what came of them elsewhere, with these very sources and packages[/]", soft_wrap=True
        )
    for row in record["families"]:
        if not row["passed"]:
            at = f" at {row['anchor']}" if row["anchor"] else ""
            words = f"{row['verdict']}{at}: {row['explanation']}"
            console.print(f"[bold red]{escape(row['model'])}[/] {escape(words)}", soft_wrap=True)
            _print_checks(row["failed"], console)
            if row["report"]:
                console.print(f"  report: {escape(str(out / row['report']))}", soft_wrap=True)
    if record["speed"]["contenders"]:
        console.print(_speed(record["speed"]["contenders"]))
    _print_verdict(record, out, console)


def _family(row: Family) -> list[str]:
    agreed, total = row["tokens"]["agreed"], row["tokens"]["total"]
    worst, mutants = row["worst"], row["mutants"]
    colour = "green" if row["passed"] else "red"
    name = row["architecture"] if row["model"] == f"tiny-{row['architecture']}" else row["model"]
    return [
        f"[{colour}]{'✓' if row['passed'] else '✗'}[/] {escape(name)}",
        f"[{'green' if agreed == total > 0 else 'red'}]{agreed}/{total}[/]",
        f"{float(worst['floors']):.2f} {escape(worst['anchor'])}" if worst else "not compared",
        *("–" if row[key] is None else str(row[key]) for key in ("op_kinds", "matmuls")),
        f"{mutants['killed']}/{mutants['total']}" if mutants["total"] else escape(mutants["reason"]),
    ]


def _speed(contenders: Sequence[Contender]) -> str:
    ours, *peers = contenders
    rate = 1000 / median(ours["ms_per_token"])
    ratios = (
        median(theirs / mine for theirs, mine in zip(peer["ms_per_token"], ours["ms_per_token"], strict=True))
        for peer in peers
    )
    against = (f"{ratio:.2f} times {escape(peer['title'])}" for ratio, peer in zip(ratios, peers, strict=True))
    return f"decode: {rate:.1f} tokens/s, {', '.join(against)}"


def _agreed(row: Answers, configuration: str) -> str:
    found = row["configurations"].get(configuration)
    if found is None:
        return "[red]did not run[/]"
    colour = "green" if found["agreed"] == found["total"] else "red"
    return f"[{colour}]{found['agreed']}/{found['total']}[/]"


def print_mutants(mutants: Sequence[Mutant], console: Console) -> None:
    """What there is to plant, one on a line."""
    for m in mutants:
        console.print(
            f"{m.id:<42} {m.architecture:<12} {m.mechanism:<22} {m.class_:<15} {m.anchor:<32} {escape(m.fault)}",
            soft_wrap=True,
        )


def print_trial(trial: Trial, console: Console) -> None:
    """What came of one mutant, on one line."""
    mutant = trial.mutant
    if trial.right:
        word, colour = ("caught", "green") if trial.place == "exact" else ("nearly", "yellow")
    else:
        word, colour = ("misplaced" if trial.killed else "survived" if not trial.crashed else "crashed"), "red"
    operation = f", {trial.operation}" if trial.operation else ""
    operation += " (another one)" if trial.exact is False else ""
    took = "reused" if trial.reused else f"{trial.seconds:4.1f} s"
    console.print(
        f"[{colour}]{word:<9}[/] {mutant.id:<42} {mutant.architecture:<12} {trial.verdict:<15} {took}  "
        f"{escape(str(trial.anchor))}{escape(operation)}",
        soft_wrap=True,
    )


def print_trials(trials: Sequence[Trial], problems: Sequence[str], console: Console) -> None:
    """The sum of it, in all and by family, and what is wrong with it."""
    count = len(trials)
    killed = sum(t.killed for t in trials)
    class_ = sum(t.killed and t.verdict == t.mutant.class_ for t in trials)
    crashed = sum(t.crashed for t in trials)
    places = [t.place for t in trials if t.killed]
    console.print(_by_family(trials))
    console.print(
        f"{count} mutants over {len({t.mutant.mechanism for t in trials})} mechanisms: {killed} caught, "
        f"{class_} in the right class, {places.count('exact')} at exactly the expected anchor, "
        f"{places.count('consumer')} at its direct consumer; {crashed} crashed, "
        f"{count - killed - crashed} survived; {sum(t.reused for t in trials)} reused from the cache",
        soft_wrap=True,
    )
    if asked := [t for t in trials if t.exact is not None]:
        right = sum(bool(t.exact) for t in asked)
        console.print(
            f"of {len(asked)} faults of the emitter's that change values, {right} with exactly the operation",
            soft_wrap=True,
        )
    for problem in problems:
        console.print(f"[red]{escape(problem)}[/]", soft_wrap=True)


def _by_family(trials: Sequence[Trial]) -> Table:
    headings = ("family", "killed", "in their class", "at their anchor", "at a consumer")
    table = figures_table(*headings, box=None, pad_edge=False)
    for family in dict.fromkeys(t.mutant.architecture for t in trials):
        of = [t for t in trials if t.mutant.architecture == family]
        killed = [t for t in of if t.killed]
        colour = "green" if all(t.right for t in of) else "red"
        counts = (
            sum(t.verdict == t.mutant.class_ for t in killed),
            *(sum(t.place == place for t in killed) for place in ("exact", "consumer")),
        )
        table.add_row(family, f"[{colour}]{len(killed)}/{len(of)}[/]", *map(str, counts))
    return table


def print_items(items: Sequence[Item], console: Console) -> None:
    """What there is to spoil, one on a line; after a dash, why nobody can tell."""
    for family, id in items:
        spoiling = all_of(family)[id]
        reason = f" – {spoiling.reason}" if spoiling.reason else ""
        console.print(escape(f"{family:<12} {id:<58} {spoiling.what}{reason}"), soft_wrap=True)


def print_outcomes(outcomes: Sequence[Outcome], problems: Sequence[str], console: Console) -> None:
    """How many were noticed, by kind and family, by each judge; and what is not as it should be."""
    families = list(dict.fromkeys(o.family for o in outcomes))
    for judge in JUDGES:
        counts = tally(outcomes, judge)
        console.print(f"by {judge}: {' / '.join(STATES)}", soft_wrap=True)
        table = figures_table("", *families, box=None, pad_edge=False)
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


def print_targets(rows: Sequence[Compiled], known: Sequence[str], console: Console) -> None:
    """A row for each target, a column for each graph; the compiler's message below."""
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    table = Table("target", *(escape(graph) for graph in graphs), box=None, pad_edge=False)
    of = {(row["compiler"], row["target"], row["graph"]): row for row in rows}
    for compiler, target in dict.fromkeys((row["compiler"], row["target"]) for row in rows):
        marks = []
        for graph in graphs:
            row = of[compiler, target, graph]
            marks.append(f"[green]✓[/] {row['seconds']:.1f} s" if row["status"] == "compiled" else "[red]✗[/]")
        table.add_row(escape(" ".join(filter(None, (compiler, target)))), *marks)
    console.print(table)
    for row in rows:
        if row["status"] == "failed":
            console.print(
                f"[red]✗[/] {escape(row['compiler'])}, {escape(row['graph'])}: {escape(row['message'])}", soft_wrap=True
            )
    console.print(f"CUDA targets of this compiler: {', '.join(known)}", soft_wrap=True)
