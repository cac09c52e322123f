"""Whether graphs that were put right conform: the configuration that was wrong is run once more with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.context import Context
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.configurations import run_configuration
from hloracle.core.files import write_file
from hloracle.core.folder import PATCH
from hloracle.reference.model.checkpoint import Checkpoint

if TYPE_CHECKING:  # it imports JAX, which a run's first process does not need
    from pathlib import Path

    from hloracle.localize.mend import Mended

MOST_LINES = 6  # that a record has; the patch has all
LONGEST = 600  # characters of one of them


@dataclass(frozen=True)
class Changed:
    """A line of a graph, counted from 1, and what should stand in its place."""

    graph: str
    line: int
    before: str
    after: list[str]


@dataclass(frozen=True)
class Repair:
    """What puts the graphs right, and what came of running them.

    change: in words. lines: the first of those that are changed, of `count`. patch: the file that changes them all, in the report's
    folder; empty where none was written. configuration: the one that ran with them, e.g. `emitter/xla-cpu`, and no other did.
    conforms: whether it passes with them. detail: what does not pass.
    """

    change: str
    lines: list[Changed]
    count: int
    patch: str
    configuration: str
    conforms: bool
    detail: str


def proven(
    context: Context, mended: Mended, configuration: Configuration, model: Checkpoint, asked: Asked, out: Path | None
) -> Repair:  # fmt: skip
    """Run the graphs that were put right, and write the patch."""
    outcome = run_configuration(context, configuration, mended.graphs, model, asked)
    batch = mended.graphs[0].abi.batch
    bad = [c for c in configuration_checks(outcome, asked.truths, asked.streams, batch) if c.bad]
    detail = f"{bad[0].title}: {bad[0].figure or bad[0].detail}" if bad else ""
    if out is not None:
        write_file(out / PATCH, mended.diff)
    patch = PATCH if out else ""
    return Repair(mended.words, _lines(mended), len(mended.lines), patch, configuration.id, not bad, detail)


def _lines(mended: Mended) -> list[Changed]:
    """The first of them, none longer than a reader reads: a table may have a million characters."""
    return [
        Changed(name, line.number, _cut(line.before), [_cut(one) for one in line.after])
        for name, line in mended.lines[:MOST_LINES]
    ]


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
