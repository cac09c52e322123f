"""`hloracle targets`: what compiles the graphs of a model, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hloracle.cli import options
from hloracle.cli.options import DEFAULT_MODEL, MODEL_HELP, progress_shown, tell
from hloracle.core.errors import InputError
from hloracle.core.record import Compiled

BUCKET, CAPACITY = 64, 256


@click.command(epilog=MODEL_HELP)
@options.model(DEFAULT_MODEL)
@options.precision
@click.option("--cuda-target", default="", metavar="sm_NN", help="What is compiled for on CUDA. sm_89, if not given.")
@options.as_json
@options.threads
def targets(model: str, precision: str, cuda_target: str, as_json: bool, threads: int) -> int:
    """Compile MODEL's emitted graphs for every target that IREE's compiler has; no device is needed.

    Exits with 1 if they do not compile for the processor or for CUDA, which hloracle runs them on.
    """
    from hloracle.backends.devices import known_cuda_targets
    from hloracle.conformance.record.record import compiled_rows
    from hloracle.conformance.runs.code_generation import compile_all, for_every_target
    from hloracle.production.choice import production_graphs, untuned
    from hloracle.reference.fixtures.named import resolve
    from hloracle.reference.model.checkpoint import open_checkpoint

    with progress_shown() as progress:
        with progress.stage("model"):
            checkpoint = open_checkpoint(resolve(model, progress.report, precision))
        with progress.stage("compile"):
            known = known_cuda_targets()
            if cuda_target and cuda_target not in known:
                where = f"--cuda-target {cuda_target}"
                raise InputError("is not known to this compiler", where, f"name one of {', '.join(known)}")
            progress.report("compiling for every target")
            specs = [("decode", "token", CAPACITY, 0), ("prefill", "token", CAPACITY, BUCKET)]
            wanted = [
                ("emitter", graph, device)
                for device in for_every_target(cuda_target)
                for graph in production_graphs(checkpoint, precision, untuned(device=device), specs)
            ]
            rows = compile_all(wanted, threads)
    found = compiled_rows(rows)
    told = {"model": model, "precision": precision, "cuda_targets": known, "compiled": found}
    tell(told, as_json, lambda console: print_targets(found, known, console))
    return 1 if any(row.message for row in rows if row.kind in ("cpu", "cuda")) else 0


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
