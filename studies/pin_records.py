"""Real records for the tests of reports: small runs of tiny models, one for each kind of verdict that a run can be made to have.

`python -m hloracle.studies.pin_records` makes them anew, or those that are named; to be run whenever the form of a record
changes, or what a run writes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from hloracle.backends.plain import plain_compilers
from hloracle.conformance.context import Context
from hloracle.conformance.graphs.sources import open_files
from hloracle.conformance.run import run
from hloracle.conformance.settings import Settings
from hloracle.conformance.suite import Told, run_suite
from hloracle.core.errors import InputError
from hloracle.core.record import Record
from hloracle.emitters.model import emit
from hloracle.mutants import MUTANTS
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reports.record import to_json, validate
from hloracle.studies.study import write_rows

MODEL = "tiny-llama"
TOKENS = 4
CAPACITY, SMALL_CAPACITY = 128, 32  # of whole runs, which have all prompts; and of those that stop when all is known
FOLDER = Path("tests") / "records"
LARGEST = 150_000  # bytes of a record
SCOPES, POSITIONS = 2, 5  # of a graph, and of what was compared at the anchors, that are kept
ROUNDS = 5
WHOLE = ("", "rope-sign-last-layer")
# Mutants by the class of verdict that they are to get.
PLANTED = {
    "emitter-fault": "rope-sign-last-layer",
    "reference-fault": "oracle-act-relu",
    "compiler-fault": "iree-rsqrt-float16",
    "invariant-broken": "matmul-duplicated",
    "harness-error": "session-caches-dropped",
}
FAMILIES = ("llama", "mistral")


def settings(out: Path, mutant: str = "") -> Settings:
    """Of a run without a fault or with one: that of a mutant is small, unless its pages show the graphs too."""
    model, small = MUTANTS[mutant].model if mutant else MODEL, mutant not in WHOLE
    capacity = SMALL_CAPACITY if small else CAPACITY
    return Settings(model, TOKENS, capacity, early_exit=small, out=out, rounds=ROUNDS)


def by_run(mutant: str, out: Path) -> Record:
    """The record of a run, with a mutant if one is named."""
    with plain_compilers():
        return run(settings(out, mutant), Context(fault=MUTANTS.get(mutant)))


def by_check(out: Path) -> Record:
    """The record of judging a file."""
    graph = emit(open_checkpoint(resolve(MODEL)).config, "decode", "logits", SMALL_CAPACITY)
    path = out / "graph.mlir"
    graph.save(path)
    with plain_compilers():
        return run(settings(out), sources=[open_files([path])])


def by_suite(out: Path) -> Record:
    """The record of a suite of families."""
    return run_suite(FAMILIES, None, 1, out, Told(), Context())


RECORDS: dict[str, Callable[[Path], Record]] = {
    "conforms": partial(by_run, ""),
    **{class_: partial(by_run, mutant) for class_, mutant in PLANTED.items()},
    "check": by_check,
    "suite": by_suite,
}


def cut(record: Record) -> Record:
    """The record without what makes it large and shows no more: of listings one phase, of errors some positions and digits."""
    found = record["localization"]
    phase = found["phase"] if found else "decode"
    if found:
        found["errors"] = [error for error in found["errors"] if error["phase"] == phase]
    shown = {graph["id"] for graph in record["graphs"] if graph["phase"] == phase}
    record["listings"] = [listing for listing in record["listings"] if listing["graph"] in shown]
    if record["block"] and record["block"]["graph"] not in shown:
        record["block"] = None
    for graph in record["graphs"]:
        graph["scopes"] = dict(list(graph["scopes"].items())[:SCOPES])
    for matrix in record["anchors"]:
        matrix["positions"] = matrix["positions"][:POSITIONS]
        matrix["errors"] = [row[:POSITIONS] for row in matrix["errors"]]
    return cast(Record, _short(record))


def _short(node: Any) -> Any:
    """The same with floats of four digits."""
    if isinstance(node, dict):
        return {key: _short(entry) for key, entry in node.items()}
    if isinstance(node, list):
        return [_short(entry) for entry in node]
    return float(f"{node:.4g}") if isinstance(node, float) else node


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
def command(names: Sequence[str]) -> int:
    """Make the records of tests/records/ anew: those of NAMES, or all."""
    for name in names or RECORDS:
        if name not in RECORDS:
            raise InputError("is no record", repr(name), f"name some of: {', '.join(RECORDS)}")
        with tempfile.TemporaryDirectory(prefix="hloracle-") as folder:
            record: Record = json.loads(to_json(RECORDS[name](Path(folder))))
        record = cut(record)
        validate(record)
        if name in PLANTED and record["verdict"]["class"] != name:
            raise InputError(f"got the verdict {record['verdict']['class']!r}", PLANTED[name], "plant another mutant")
        length = write_rows(FOLDER / f"{name}.json", cast(dict[str, Any], record), (",", ":"))
        click.echo(f"{name}: {record['verdict']['class']}, {length:,} bytes")
        if length > LARGEST:
            raise InputError(f"has {length:,} bytes", name, f"cut it below {LARGEST:,}")
    return 0


if __name__ == "__main__":
    sys.exit(command(standalone_mode=False))
