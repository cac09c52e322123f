"""Spoils right graphs wherever a run could see it, one thing at a time, and counts what was not noticed: the holes.

Mutants plant what people get wrong. Here nobody is asked what that might be: `localize/spoil.py` goes through every result,
slot, position, length and token id. Each spoiled graph is judged by `run` and, as a file, by `check`.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from hloracle import mutants
from hloracle.backends.named import chosen
from hloracle.backends.plain import plain_compilers
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.graphs.sources import Emitter, Request, open_files
from hloracle.conformance.matrix import EMITTER
from hloracle.conformance.run import run
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.verdict import PASSING
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry, digest
from hloracle.core.child import ChildDied, Report, alone, run_in_child
from hloracle.core.environment import host_cpu
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.record import Record
from hloracle.localize.spoil import KINDS, Spoiling, spoil, spoilings
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import BUCKETS
from hloracle.reference.model.registry import FAMILIES as ALL_FAMILIES
from hloracle.studies.mutants import common
from hloracle.studies.study import Study

# Plain attention; a window, and a cache of another base for RoPE; experts; latents, whose caches differ in width.
FAMILIES = ("llama", "gemma3_text", "mixtral", "deepseek_v3")
# A prompt fills the one bucket, and the steps after it reach the cache's last slot, which lies beyond the bucket.
TOKENS, CAPACITY, BUCKET = 4, 35, BUCKETS[0]
# The quicker one. Which compiler runs a spoiled graph makes no difference to what it does.
BACKEND = "xla-cpu"
TIMEOUT_SECONDS = 120
# Kinds of spoilings that hang on which tokens are given.
ON_TOKENS = ("token-id", "data")
PINS = Path(str(mutants.__file__)).parent / "holes.json"
JUDGES = ("run", "check")
CRASHED, REFUSED = "crashed", "refused"
# What blames nobody, or hloracle itself, has not noticed what is wrong with a graph.
UNNOTICED = (*PASSING, "harness-error", CRASHED)


Item = tuple[str, str]  # a family, and the id of a spoiling


@dataclass(frozen=True)
class Judgement:
    """What was said of a spoiled graph: the verdict's class and the first check that failed; or `refused` or `crashed`, and why."""

    class_: str
    because: str = ""

    @property
    def noticed(self) -> bool:
        """Whether the judge finds fault with anything but hloracle: any class beside UNNOTICED, such as `refused`."""
        return self.class_ not in UNNOTICED

    @property
    def passed(self) -> bool:
        """Whether the class is one that passes, a near tie included."""
        return self.class_ in PASSING

    def __str__(self) -> str:
        return f"{self.class_} ({self.because})" if self.because else self.class_


@dataclass(frozen=True)
class Outcome:
    """What came of one spoiling. by: the judgement of each of JUDGES. reused: of an earlier time."""

    family: str
    id: str
    by: dict[str, Judgement]
    seconds: float
    reused: bool = False

    @property
    def spoiling(self) -> Spoiling:
        """What was spoiled, and why nobody could tell, if so; KeyError where this version has no such spoiling."""
        return all_of(self.family)[self.id]

    @property
    def crashed(self) -> bool:
        """Whether one of the judges gave no verdict."""
        return any(judgement.class_ == CRASHED for judgement in self.by.values())

    def state(self, judge: str) -> str:
        """`noticed`; `explained`, where a reason says that nobody can tell and it passed; or `missed`."""
        expected = "explained" if self.spoiling.reason else "noticed"
        return "missed" if self.problem(judge) else expected

    def problem(self, judge: str) -> str:
        """Why this is not as it should be; empty where it is."""
        found, reason = self.by[judge], self.spoiling.reason
        if found.class_ == CRASHED:
            return f"{judge} crashed: {found.because}"
        if not reason and not found.noticed:
            return f"not noticed by {judge}: {found}"
        if reason and not found.passed:
            return f"{judge} says {found}, so it is not true that {reason}"
        return ""


def selected(families: Sequence[str], kinds: Sequence[str] = ()) -> list[Item]:
    """The spoilings of these kinds in these families' tiny models; of all kinds, and in FAMILIES, where none is named.

    Raises InputError for a name that there is not.
    """
    for names, known, what, where in (
        (families, ALL_FAMILIES, "architecture", "hloracle models"),
        (kinds, KINDS, "kind of spoiling", "hloracle holes --list"),
    ):
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"is no {what}", repr(unknown[0]), f"see `{where}`")
    return [
        (family, id) for family in dict.fromkeys(families or FAMILIES) for id, spoiling in all_of(family).items()
        if not kinds or spoiling.kind in kinds
    ]  # fmt: skip


@cache
def all_of(family: str) -> dict[str, Spoiling]:
    """Every spoiling of a family's tiny model, by its id. Each token id is spoiled in the first family alone."""
    return spoilings(_checkpoint(family).config, CAPACITY, BUCKET, every_token=family == FAMILIES[0])


def run_holes(items: Sequence[Item], jobs: int, report: Report, reuse: bool = True) -> list[Outcome]:
    """Each of these spoilings judged twice, `jobs` of them at a time; in their order.

    Args:
      reuse: take outcomes from the cache.

    Raises InputError when a right model does not conform: then nothing can be told of a wrong one.
    """
    study = Study(
        "spoilings", TIMEOUT_SECONDS, lambda item: item[0], _right, _refuse, _judged, _outcome, lambda item: _entry(*item)
    )  # fmt: skip
    return study.run(items, jobs, report, lambda outcome: None, reuse)


def _refuse(family: str, answer: dict[str, Judgement] | str) -> None:
    by = {JUDGES[0]: Judgement(CRASHED, answer)} if isinstance(answer, str) else answer
    for judge, judgement in by.items():
        if not judgement.passed:
            fix = f"close in on it with `hloracle {judge}`"
            raise InputError(f"does not conform with nothing spoiled: {judgement}", f"tiny-{family}", fix)


def _outcome(item: Item, answer: dict[str, Judgement] | str, seconds: float, right: Any) -> Outcome:
    by = {judge: Judgement(CRASHED, answer) for judge in JUDGES} if isinstance(answer, str) else answer
    return Outcome(*item, by, seconds)


# ---- judging


def _right(report: Report, family: str) -> dict[str, Judgement]:
    """What is said of a model whose graphs are right: by `check`, the first thing that is wrong with one of its files."""
    graphs = ((phase, head) for phase in ("prefill", "decode") for head in ("logits", "token"))
    with alone(), plain_compilers():
        by = {"run": _asked(report, _by_run, family, "")}
        for phase, head in graphs:
            by["check"] = _asked(report, _by_check, family, "", phase, head)
            if not by["check"].passed:
                break
    return by


def _judged(report: Report, item: Item) -> dict[str, Judgement]:
    """In a child process, of which nothing is a child of its own."""
    family, id = item
    spoiling = all_of(family)[id]
    with alone(), plain_compilers():
        return {
            "run": _asked(report, _by_run, family, id),
            "check": _asked(report, _by_check, family, id, spoiling.phase, spoiling.head),
        }


def _asked(report: Report, judge: Callable[..., Record], *arguments: str) -> Judgement:
    try:
        record = run_in_child(judge, *arguments, timeout=TIMEOUT_SECONDS, report=report).value
    except (ChildDied, ToolchainError, InputError) as error:
        return Judgement(CRASHED, str(error))
    died = [c for c in record["checks"] if c["kind"] == "process" and c["status"] == "error"]
    if died:
        return Judgement(CRASHED, died[0]["detail"])
    bad = [c["id"] for c in record["checks"] if c["status"] in ("failed", "error")]
    return Judgement(record["verdict"]["class"], bad[0] if bad else "")


@dataclass(frozen=True)
class Spoiled:
    """The bundled emitter, with its graphs spoiled in one thing.

    What counts operations notices whatever is done to a graph, so that it is left out: no counts are pinned for these.
    """

    family: str
    id: str
    name: str = EMITTER
    counts_as: str = ""

    def __call__(self, request: Request) -> Graph | None:
        graph = Emitter()(request)
        return spoil(graph, all_of(self.family)[self.id]) if graph and self.id else graph


def _by_run(report: Report, family: str, id: str) -> Record:
    return run(_settings(family, id), _context(report), [Spoiled(family, id)])


def _by_check(report: Report, family: str, id: str, phase: str, head: str) -> Record:
    request = Request(_checkpoint(family), phase, head, CAPACITY, BUCKETS[0] if phase == "prefill" else 0)
    graph = Spoiled(family, id)(request)
    assert graph
    with tempfile.TemporaryDirectory(prefix="hloracle-") as folder:
        path, abi = graph.save(Path(folder) / "graph.mlir")
        try:
            return run(_settings(family, id), _context(report), [open_files([path], [abi])])
        except InputError as error:
            if error.where not in (str(path), str(abi)):
                raise
            return cast(
                Record, {"verdict": {"class": REFUSED}, "checks": [{"id": error.what, "kind": "", "status": "failed"}]}
            )


def _context(report: Report) -> Context:
    return Context(Progress(report), chosen([BACKEND]))


def _settings(family: str, id: str) -> Settings:
    # What is noticed without every token of the vocabulary is noticed with it: more is compared then, and nothing less. So
    # all are tried only for what hangs on a token, and where nobody is to notice anything: an eighth of the time.
    spoiling = all_of(family).get(id)
    every_token = spoiling is None or spoiling.kind in ON_TOKENS or bool(spoiling.reason)
    return Settings(
        f"tiny-{family}", TOKENS, CAPACITY, early_exit=True, every_token=every_token, verdict_only=True
    )  # fmt: skip


@cache
def _checkpoint(family: str) -> Checkpoint:
    return open_checkpoint(resolve(f"tiny-{family}"))


# ---- what is said of them


def problems(outcomes: Sequence[Outcome]) -> list[str]:
    """Every hole, every reason that is not true, and whatever crashed; empty where all is as it should be."""
    found = [f"{o.family} {o.id}: {why}" for o in outcomes for judge in JUDGES if (why := o.problem(judge))]
    return found or ([] if outcomes else ["nothing was spoiled"])


def tally(outcomes: Sequence[Outcome], judge: str) -> dict[tuple[str, str], Counter[str]]:
    """How many are in which state, by kind and family."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for o in outcomes:
        found.setdefault((o.spoiling.kind, o.family), Counter())[o.state(judge)] += 1
    return found


def as_records(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The outcomes as JSON."""
    return [
        {
            "family": o.family, "spoiling": o.id, "kind": o.spoiling.kind, "what": o.spoiling.what,
            "reason": o.spoiling.reason, "seconds": round(o.seconds, 2), "reused": o.reused,
            **{judge: {"state": o.state(judge), "class": j.class_, "because": j.because} for judge, j in o.by.items()},
        }
        for o in outcomes
    ]  # fmt: skip


# ---- what is kept


def pins(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """By family: how many spoilings were noticed by both judges, how many are explained, and what decides it.

    Raises InputError where there is a problem.
    """
    if bad := problems(outcomes):
        raise InputError(f"{len(bad)} spoilings are not as they should be", bad[0], "close the hole, not the study")
    found: dict[str, dict[str, Any]] = {}
    for family in dict.fromkeys(o.family for o in outcomes):
        states = Counter(o.state(JUDGES[0]) for o in outcomes if o.family == family)
        if states.total() != len(all_of(family)):
            raise InputError("not all of its spoilings were judged", family, "leave out --kind")
        found[family] = {"noticed": states["noticed"], "explained": states["explained"], "of": pin_key(family)}
    return found


def pin_key(family: str) -> str:
    """What decides what comes of a family's spoilings, but for the machine."""
    return digest(*(_question(family, id) for id in all_of(family)))[:32]


def _question(family: str, id: str) -> str:
    # How it is spoiled stands in our code.
    return digest(repr((all_of(family)[id], TOKENS, CAPACITY, BUCKET, BACKEND)), common(family))


def _entry(family: str, id: str) -> Entry[Outcome]:
    return Entry("holes", digest(_question(family, id), host_cpu(), os.environ.get("XLA_FLAGS", "")), Outcome)
