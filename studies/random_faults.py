"""Faults at random in the text of our own graphs: is each noticed, is its operation named, and is it put right?

    python -m hloracle.studies.random_faults [--seeds 9] [--first 0] [--out FILE.json] [FAMILY...]
    python -m hloracle.studies.random_faults --model smollm2-135m-instruct --seeds 13

With --model the graphs are those of one model, and go through `hloracle check` as files. A fault is a wire, an operation, a constant or an attribute that is changed in one line (`text_faults.py`, which knows nothing of
models). Those that change nothing which a graph returns are left out. Exit status 0 if what is found is what has to be: see GOALS.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from hloracle.backends.named import BUILT_IN, chosen
from hloracle.backends.plain import plain_compilers
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.graphs.sources import Emitter, Request
from hloracle.conformance.matrix import EMITTER
from hloracle.conformance.run import run
from hloracle.conformance.settings import Settings
from hloracle.core.abi import Graph
from hloracle.core.child import Report, alone
from hloracle.core.console import terminal
from hloracle.core.environment import threads_available
from hloracle.core.errors import InputError
from hloracle.core.files import write_file
from hloracle.core.pool import run_each
from hloracle.core.program import run_program
from hloracle.core.record import Record
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.studies.mutants import AT_LINE, CAPACITY, LATE, LATE_CAPACITY, TOKENS
from hloracle.studies.text_faults import Fault, faults

if TYPE_CHECKING:
    from hloracle.localize.anatomy import Anatomy

SECONDS = 600
PHASES = ("prefill", "decode")
# A fault that changes less than this share of the largest number that a graph returns changes nothing that float32 can show: its
# own noise is up to a tenth of that.
NOTICEABLE = 1e-5
LARGE_CAPACITY, LARGE_BUCKET, LARGE_TOKENS = 256, 64, 8  # of a model that is not tiny
CALLS = 5  # of a graph, on which it may change something
GOALS = {
    "noticed": 1.0, "in class": 1.0, "at the anchor": 0.98, "exactly the operation": 0.90, "among three": 0.97,
    "inside": 1.0, "certain and right": 1.0, "put right": 0.70,
}  # fmt: skip
Item = tuple[str, str, int]  # a model, a phase, a seed


@dataclass(frozen=True)
class Planted:
    """The bundled emitter, with a fault in one of its graphs. No counts are pinned for it."""

    phase: str
    bucket: int
    text: str
    name: str = EMITTER
    counts_as: str = ""

    def __call__(self, request: Request) -> Graph | None:
        graph = Emitter()(request)
        if graph is None or (request.phase, request.bucket, request.head) != (self.phase, self.bucket, "logits"):
            return graph if request.head == "logits" else None
        return dataclasses.replace(graph, text=self.text, origins={})


@dataclass(frozen=True)
class Outcome:
    """What came of one fault.

    what: it, in words; line: where. changes: whether it changes anything. verdict: the class. anchor, expected: that is named, and those
    that are computed by the line, the first one that it changes first. named: the lines of the operations that may be to blame,
    the best first. inside: whether they all compute the anchor that is named. level: how sure the verdict is. mended: whether the
    graphs pass with what is proposed. localizing: the seconds of that stage, with the repair; peak_bytes: of the whole run.
    """

    what: str
    line: int
    changes: bool = True
    verdict: str = ""
    anchor: str = ""
    expected: tuple[str, ...] = ()
    named: tuple[int, ...] = ()
    inside: bool = True
    level: str = ""
    mended: bool | None = None
    seconds: float = 0.0
    localizing: float = 0.0
    peak_bytes: int = 0

    @property
    def marks(self) -> dict[str, bool]:
        """Which of GOALS it reaches."""
        exact = self.named[:1] == (self.line,)
        return {
            "noticed": self.verdict not in ("conforms", "near-tie", ""),
            "in class": self.verdict == "emitter-fault",
            "at the anchor": self.anchor in self.expected[:1],
            "exactly the operation": exact,
            "among three": self.line in self.named[:3],
            "inside": self.inside,
            "certain and right": exact or self.level != "certain",
            "put right": bool(self.mended),
        }


# ---- faults


def planted(name: str, phase: str, seed: int) -> tuple[Fault, Graph, Graph]:
    """A fault that parses, with the right graph and the wrong one. Raises InputError where there is none."""
    from hloracle.localize.anatomy import Anatomy

    model = _checkpoint(name)
    right = Emitter()(Request(model, phase, "logits", _capacity(name), _bucket(name) if phase == "prefill" else 0))
    assert right
    for fault in faults(right.text, seed):
        wrong = dataclasses.replace(right, text=fault.text)
        try:
            Anatomy(wrong, model.config).plain()
        except (InputError, StopIteration):
            continue
        return fault, right, wrong
    raise InputError("has no fault", f"{name}, {phase}", "take another seed")


def changes(right: Graph, wrong: Graph, model: Checkpoint) -> bool:
    """Whether any call of two graphs gives anything else: at the first, at middling and at the last positions, and lengths."""
    from hloracle.semantics.evaluate import evaluated
    from hloracle.semantics.reading import read

    programs = [read(graph.text) for graph in (right, wrong)]
    for which in range(CALLS):
        given = list(_inputs(right, model, which))
        one, other = (evaluated(program, given, right.abi.function) for program in programs)
        if any(_apart(a, b) for a, b in zip(one, other, strict=True)):
            return True
    return False


def _inputs(graph: Graph, model: Checkpoint, which: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(which)
    last = (graph.abi.bucket if graph.abi.phase == "prefill" else graph.abi.capacity) - 1
    place = [last, 0, last // 2, 1, last // 3][which % CALLS]
    for argument in graph.abi.arguments:
        if argument.role == "weight":
            yield model.load(argument.name).reshape(argument.shape)
        elif argument.role in ("token", "tokens"):
            yield rng.integers(0, model.config.vocab_size, argument.shape).astype(np.int32)
        elif argument.role in ("position", "length"):
            yield np.array(place + (argument.role == "length"), np.int32)
        else:
            yield rng.normal(size=argument.shape).astype(np.float32)


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        scale = float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0)) or 1.0
        same = (one == other) | (np.isnan(one) & np.isnan(other)) | (np.abs(one - other) <= NOTICEABLE * scale)
    return not bool(np.all(same))


# ---- what is judged


def judged(report: Report, item: Item) -> Outcome:
    """Plant a fault, and judge the graphs with it."""
    name, phase, seed = item
    fault, right, wrong = planted(name, phase, seed)
    outcome = Outcome(fault.what, fault.line)
    model = _checkpoint(name)
    if _tiny(name):
        if not changes(right, wrong, model):
            return dataclasses.replace(outcome, changes=False)
        source = Planted(phase, right.abi.bucket if phase == "prefill" else 0, fault.text)
        record = _record(name, source, report)
    else:
        record = _checked(name, wrong)
        if record["passed"] and not changes(right, wrong, model):  # that takes long, so it is asked last
            return dataclasses.replace(outcome, changes=False)
    return _told(outcome, record, right, wrong, model)


def _record(name: str, source: Planted, report: Report) -> Record:
    settings = Settings(
        name, TOKENS, _capacity(name), early_exit=True, quick=name in LATE, rounds=0
    )  # fmt: skip
    with alone(), plain_compilers():
        return run(settings, Context(Progress(report), chosen(BUILT_IN)), [source])


def _checked(name: str, wrong: Graph) -> Record:
    """What `hloracle check` says of a graph as a file. Raises InputError where it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file, _ = wrong.save(Path(folder) / f"{wrong.name}.mlir")
        command = [sys.executable, "-m", "hloracle", "check", str(file), "--model", name, "--tokens", str(LARGE_TOKENS)]
        said = subprocess.run([*command, "--out", folder], capture_output=True, text=True, check=False)
        report = Path(folder) / "report.json"
        if not report.is_file():
            raise InputError("gave no report", " ".join(command), said.stderr.strip()[-400:])
        record: Record = json.loads(report.read_text())
        return record


def _told(outcome: Outcome, record: Record, right: Graph, wrong: Graph, model: Checkpoint) -> Outcome:
    from hloracle.localize.anatomy import Anatomy

    verdict, found = record["verdict"], record["localization"]
    anatomies = [Anatomy(graph, model.config) for graph in (right, wrong)]
    anchor = verdict["anchor"] or ""
    named: list[int] = []
    if found:
        operation = found["operation"]
        lines = [operation["line"] if operation and operation["graph"] == right.name else None]
        lines += [candidate["line"] for candidate in found["candidates"]]
        named = list(dict.fromkeys(line for line in lines if line))
    if (
        not named and (told := AT_LINE.search(verdict["operation"] or "")) and told[2] == right.name
    ):  # by a check without a run
        named = [int(told[1])]
    inner = set().union(*(a.lines(anchor) for a in anatomies if anchor in a.values)) | {outcome.line}
    repair = found["repair"] if found else None
    localizing = sum(t["seconds"] for t in record["timings"] if t["stage"] == "localization")
    return dataclasses.replace(
        outcome, verdict=verdict["class"], anchor=anchor, expected=_expected(outcome.line, *anatomies),
        named=tuple(named[:3]), inside={*named} <= inner, level=verdict["confidence"]["level"] if verdict["confidence"] else "",
        mended=repair["conforms"] if repair else None, localizing=localizing, peak_bytes=record["memory"]["peak_bytes"],
    )  # fmt: skip


def _expected(line: int, right: Anatomy, wrong: Anatomy) -> tuple[str, ...]:
    """The anchors whose subgraph the line is in, in the graph that is right, or in the wrong one."""
    return tuple(a for a in right.anchors if line in right.lines(a) or (a in wrong.values and line in wrong.lines(a)))


def _tiny(name: str) -> bool:
    return name.startswith("tiny-")


def _capacity(name: str) -> int:
    return LATE_CAPACITY if name in LATE else CAPACITY if _tiny(name) else LARGE_CAPACITY


def _bucket(name: str) -> int:
    return 64 if name in LATE else 32 if _tiny(name) else LARGE_BUCKET


@cache
def _checkpoint(name: str) -> Checkpoint:
    return open_checkpoint(resolve(name))


# ---- the command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("families", nargs=-1, metavar="FAMILY")
@click.option("--seeds", type=click.IntRange(1), default=9, show_default=True, help="Faults in each graph.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option(
    "--model", metavar="NAME", help="One model, through `hloracle check`, in place of the families' tiny ones."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A file for what came of each, as JSON.")
@click.option(
    "--jobs", type=click.IntRange(1), default=threads_available, help="At a time; one for each core if not given."
)
def command(families: Sequence[str], seeds: int, first: int, model: str | None, out: Path | None, jobs: int) -> int:
    """Plant faults at random in the prefill and the decode graph of models, and see what is said of them."""
    from hloracle.conformance.suite import selected

    models = [model] if model else [f"tiny-{family}" for family in selected(families)]
    items = [(m, p, s) for s in range(first, first + seeds) for m in models for p in PHASES]
    found: dict[Item, Outcome] = {}

    def finish(item: Item, answer: Outcome | str, seconds: float) -> None:
        if isinstance(answer, str):
            answer = Outcome(f"died: {answer}", 0)
        found[item] = dataclasses.replace(answer, seconds=round(seconds, 1))
        click.echo(f"{' '.join(map(str, item))}, {seconds:.1f} s: {_words(answer)}")

    with terminal.status("judging"):
        run_each(judged, items, jobs, SECONDS, lambda line: None, finish)
    if out:
        rows = {" ".join(map(str, item)): dataclasses.asdict(outcome) for item, outcome in found.items()}
        write_file(out, json.dumps(rows, indent=1))
    return _summary(found.values())


def _words(answer: Outcome) -> str:
    if not answer.changes:
        return f"changes nothing: {answer.what}"
    missed = [goal for goal, reached in answer.marks.items() if not reached]
    not_ = f"; NOT {', '.join(missed)}" if missed else ""
    place = f"{answer.verdict} at {answer.anchor or 'no anchor'}, {answer.level}, lines {list(answer.named)} of {answer.line}"
    took = f" in {answer.localizing:.0f} s, {answer.peak_bytes / 2**30:.1f} GiB"
    return f"{place}{took}{not_}: {answer.what}"


def _summary(outcomes: Iterable[Outcome]) -> int:
    counted = [o for o in outcomes if o.changes]
    idle = sum(not o.changes for o in outcomes)
    click.echo(f"{len(counted)} faults; {idle} more change nothing, and are left out")
    good = bool(counted)
    for goal, share in GOALS.items():
        reached = sum(o.marks[goal] for o in counted)
        enough = reached >= share * len(counted)
        good = good and enough
        click.echo(
            f"{'' if enough else 'too few '}{goal}: {reached} ({reached / max(1, len(counted)):.1%}, goal {share:.0%})"
        )
    return 0 if good else 1


if __name__ == "__main__":
    run_program(command)
