"""Runs deliberate faults through the whole of a run, and counts what was noticed: the proof that a pass means something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hloracle.backends import iree
from hloracle.conformance import cells
from hloracle.conformance.evidence import Progress, Settings
from hloracle.conformance.pool import NO_OPTIMIZER, run_each, xla_flags
from hloracle.conformance.run import run
from hloracle.core.child import Report, alone, run_in_child
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.mutants import MUTANTS, Mutant
from hloracle.mutants.registry import attribute
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.fixtures import resolve

MODEL = "tiny-llama"
# One bucket, with prompts that nearly fill it, and decode steps up to the last slot of the cache.
TOKENS, CAPACITY = 4, 32
# A session can also take the wrong bucket. The graphs are right then, and compiled once for all its mutants.
SESSION_CAPACITY = 64
TIMEOUT_SECONDS = 300
# Nor is it XLA's compiler that is tried. Its code generator for fusions takes more than half of the time left.
PLAIN_XLA = (
    NO_OPTIMIZER, "--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1",
)  # fmt: skip
# Anchors that may be named instead of the one that is wrong: its direct consumers. At most this share of all mutants.
AT_CONSUMER = 0.05


@dataclass(frozen=True)
class Trial:
    """What came of one mutant.

    verdict: the class it got; `crashed` where the run gave none. place: `exact`, `consumer` (the anchor named reads the
    one that is wrong), or `elsewhere`. operation: what was named inside the anchor. detail: says more of a survivor.
    """

    mutant: Mutant
    verdict: str
    anchor: str | None
    operation: str | None
    confidence: str | None
    place: str
    seconds: float
    detail: str = ""

    @property
    def killed(self) -> bool:
        """A crash is no kill: it notices nothing."""
        return self.verdict not in ("conforms", "near-tie", "crashed")

    @property
    def right(self) -> bool:
        return self.killed and self.verdict == self.mutant.class_ and self.place in ("exact", "consumer")


def selected(ids: Sequence[str], model: str = MODEL) -> list[Mutant]:
    """The mutants that were asked for, by id, mechanism or part; all when none was. Raises InputError."""
    if not ids:
        return list(MUTANTS.values())
    found: dict[str, Mutant] = {}
    for id in ids:
        fitting = [m for m in MUTANTS.values() if id in (m.id, m.mechanism, m.part)]
        if not fitting:
            raise InputError("is no mutant, mechanism or part", repr(id), "see `hloracle mutants --list`")
        found |= {m.id: m for m in fitting}
    return list(found.values())


def run_mutants(
    mutants: Sequence[Mutant], jobs: int, report: Report, done: Callable[[Trial], None] = lambda trial: None
) -> list[Trial]:
    """Every mutant through a run of its own, in a process of its own, `jobs` at a time; in the order of `mutants`.

    Raises InputError when the right model does not conform: then nothing can be told of a wrong one.
    """
    found: dict[str, Trial] = {}

    def finish(id: str, record: dict[str, Any] | str, seconds: float) -> None:
        trial = _trial(MUTANTS[id], record, seconds, clean, consumers)
        found[id] = trial
        done(trial)
        report(f"{len(found)} of {len(mutants)} mutants, last {id}")

    with xla_flags(*PLAIN_XLA):
        report("the right model")
        clean, consumers = run_in_child(_right, timeout=TIMEOUT_SECONDS, report=report).value
        if not clean["passed"]:
            why = clean["verdict"]["explanation"]
            raise InputError(f"does not conform without any fault: {why}", MODEL, "run `hloracle run` on it")
        run_each(_judged, [m.id for m in mutants], jobs, TIMEOUT_SECONDS, report, finish)
    return [found[m.id] for m in mutants]


def _trial(
    mutant: Mutant, record: dict[str, Any] | str, seconds: float, clean: dict[str, Any], consumers: dict[str, set[str]]
) -> Trial:
    if isinstance(record, str):
        return Trial(mutant, "crashed", None, None, None, "elsewhere", seconds, record)
    verdict = record["verdict"]
    died = [c for c in record["checks"] if c["id"] == "harness.process" and c["status"] == "error"]
    anchor = verdict["anchor"]
    place = "elsewhere"
    if anchor == mutant.anchor:
        place = "exact"
    elif anchor in consumers.get(mutant.anchor, set()):
        place = "consumer"
    detail = died[0]["detail"] if died else ""
    if record["passed"]:
        same = {p: c["cells"] for p, c in record["tokens"].items()} == {
            p: c["cells"] for p, c in clean["tokens"].items()
        }
        detail = "every logit is the right one, bit for bit" if same else "logits differ, within their limits"
    level = verdict["confidence"]["level"] if verdict["confidence"] else None
    class_ = "crashed" if died else verdict["class"]
    return Trial(mutant, class_, anchor, verdict["operation"], level, place, seconds, detail)


def _judged(report: Report, mutant: str) -> dict[str, Any]:
    """The record of a run with a mutant; in a child process, of which nothing is a child of its own."""
    capacity = SESSION_CAPACITY if mutant and MUTANTS[mutant].part == "session" else CAPACITY
    # Nor is the code that IREE writes for this processor tried here: it writes a generic one's in two thirds of the time.
    flags = tuple(f.replace("target-cpu=host", "target-cpu=generic") for f in iree.CPU_FLAGS)
    with alone(), attribute(iree, "CPU_FLAGS", flags), attribute(cells, "CPU_FLAGS", flags):
        return run(Settings(MODEL, TOKENS, capacity, threads=1, mutant=mutant, small=True), Progress(report))


def _right(report: Report) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """The record of a run without any fault, and what reads what."""
    return _judged(report, ""), _consumers()


def _consumers() -> dict[str, set[str]]:
    """Anchor -> the anchors whose piece reads it."""
    from hloracle.localize.anatomy import anatomy_of

    config = open_checkpoint(resolve(MODEL)).config
    found: dict[str, set[str]] = {}
    for phase, bucket in (("prefill", 32), ("decode", 0)):
        anatomy = anatomy_of(emit(config, phase, "token", CAPACITY, bucket), config)
        for anchor in anatomy.anchors:
            for argument in anatomy.piece(anchor).graph.abi.arguments:
                found.setdefault(argument.name.removesuffix("+"), set()).add(anchor)
    return found


def problems(trials: Sequence[Trial]) -> list[str]:
    """Why these trials do not prove what they should; empty when they do."""
    found = [f"{t.mutant.id} survived: {t.detail}" for t in trials if t.verdict in ("conforms", "near-tie")]
    found += [f"{t.mutant.id} crashed: {t.detail}" for t in trials if t.verdict == "crashed"]
    found += [
        f"{t.mutant.id} is {t.verdict}, not {t.mutant.class_}" for t in trials
        if t.killed and t.verdict != t.mutant.class_
    ]  # fmt: skip
    found += [
        f"{t.mutant.id} is placed at {t.anchor or 'no anchor'}, not at {t.mutant.anchor}" for t in trials
        if t.killed and t.place == "elsewhere"
    ]  # fmt: skip
    late = [t for t in trials if t.place == "consumer"]
    if len(late) > AT_CONSUMER * len(trials):
        found.append(f"{len(late)} of {len(trials)} are placed at a consumer, more than {AT_CONSUMER:.0%}")
    return found or ([] if trials else ["no mutant was run"])


def as_records(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The trials as JSON."""
    return [
        {
            "mutant": t.mutant.id, "mechanism": t.mutant.mechanism, "part": t.mutant.part, "fault": t.mutant.fault,
            "expected": {"class": t.mutant.class_, "anchor": t.mutant.anchor}, "class": t.verdict, "anchor": t.anchor,
            "operation": t.operation, "confidence": t.confidence, "killed": t.killed, "place": t.place,
            "seconds": round(t.seconds, 2), "detail": t.detail,
        }
        for t in trials
    ]  # fmt: skip
