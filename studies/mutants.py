"""Runs deliberate faults through the whole of a run, and counts what was noticed: what a pass can be trusted for."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hloracle import backends, conformance, core, emitters, localize, production, reference, repair, semantics
from hloracle import mutants as faults
from hloracle.backends import iree
from hloracle.backends.devices import Device
from hloracle.backends.named import BUILT_IN, backends_on, chosen
from hloracle.backends.plain import plain_compilers
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.graphs.sources import Emitter, Request
from hloracle.conformance.run import run
from hloracle.conformance.settings import QUICK_BUCKET, Settings
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry, digest
from hloracle.core.child import Report, alone
from hloracle.core.environment import host_cpu, versions
from hloracle.core.errors import InputError
from hloracle.core.record import Mutants, Record
from hloracle.emitters.model import emit
from hloracle.mutants import MUTANTS, Mutant
from hloracle.mutants.registry import Run, held_as
from hloracle.production.choice import untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import BUCKETS
from hloracle.studies.study import Study

# One bucket, with prompts that nearly fill it and are longer than any window, and decode steps up to the cache's last slot.
TOKENS, CAPACITY = 4, 32
# A session can also take the wrong bucket. The graphs are right then, and compiled once for all its mutants.
SESSION_CAPACITY = 64
# Models that turn by other angles from 40 tokens on: each is judged by a quick run, in a bucket that goes beyond.
LATE = ("tiny-phi3", "tiny-seed_oss")
LATE_CAPACITY = 64
TIMEOUT_SECONDS = 300
# What came of them, by family: so that a report can tell where they were not planted.
FAULTS = Path(str(faults.__file__)).parent
PINS = FAULTS / "outcomes.json"
# Anchors that may be named instead of the one that is wrong: its direct consumers. At most this share of all mutants.
AT_CONSUMER = 0.05
# Of the emitter's faults whose anchor the graph has, the share in which the operation is one that the fault changed.
EXACT = 0.90
AT_LINE = re.compile(r" at line (\d+) of (\S+)$")


Right = tuple[Record, dict[str, set[str]]]  # the record of a right model, and what reads what: see `_consumers`


@dataclass(frozen=True)
class Trial:
    """What came of one mutant.

    verdict: the class it got; `crashed` where the run gave none. place: `exact`, `consumer` (the anchor named reads the
    one that is wrong), or `elsewhere`. operation: what was named inside the anchor; exact: whether it is one that the fault changed,
    None where that is not asked. detail: says more of a survivor.
    reused: it was planted before, and nothing that decides what comes of it has changed since.
    """

    id: str
    verdict: str
    anchor: str | None
    operation: str | None
    confidence: str | None
    place: str
    seconds: float
    detail: str = ""
    reused: bool = False
    exact: bool | None = None

    @property
    def mutant(self) -> Mutant:
        """The fault that was planted, with the class and the anchor that it belongs to."""
        return MUTANTS[self.id]

    @property
    def crashed(self) -> bool:
        """Whether the run gave no verdict."""
        return self.verdict == "crashed"

    @property
    def killed(self) -> bool:
        """A crash is no kill: it notices nothing."""
        return self.verdict not in ("conforms", "near-tie", "crashed")

    @property
    def right(self) -> bool:
        """Whether it was caught in its class, at its anchor or at a direct consumer of that."""
        return self.killed and self.verdict == self.mutant.class_ and self.place in ("exact", "consumer")


def selected(ids: Sequence[str]) -> list[Mutant]:
    """The mutants that were asked for, by id, mechanism, part, model or family; all when none was. Raises InputError."""
    if not ids:
        return list(MUTANTS.values())
    found: dict[str, Mutant] = {}
    for id in ids:
        fitting = [m for m in MUTANTS.values() if id in (m.id, m.mechanism, m.part, m.model, m.architecture)]
        if not fitting:
            raise InputError("is no mutant, mechanism, part or family", repr(id), "see `hloracle mutants --list`")
        found |= {m.id: m for m in fitting}
    return list(found.values())


def run_mutants(
    mutants: Sequence[Mutant], jobs: int, report: Report, done: Callable[[Trial], None] = lambda trial: None,
    reuse: bool = True,
) -> list[Trial]:  # fmt: skip
    """Every mutant through a run of its own, in a process of its own, `jobs` at a time; in the order of `mutants`.

    Args:
      done: is told of each as it ends. reuse: take outcomes from the cache.

    Raises InputError when a right model does not conform: then nothing can be told of a wrong one.
    """
    study = Study(
        "mutants", TIMEOUT_SECONDS, lambda id: MUTANTS[id].run, _right, _refuse, _judged, _trial, lambda id: _entry(MUTANTS[id])
    )  # fmt: skip
    return study.run([m.id for m in mutants], jobs, report, done, reuse)


def _refuse(key: Run, answer: Right | str) -> None:
    if isinstance(answer, str) or not answer[0]["passed"]:
        why = answer if isinstance(answer, str) else answer[0]["verdict"]["explanation"]
        raise InputError(f"does not conform without any fault: {why}", key.model, f"run `{_command(key)}`")


def _trial(id: str, answer: tuple[Record, bool | None] | str, seconds: float, right: Right) -> Trial:
    mutant, (clean, consumers) = MUTANTS[id], right
    if isinstance(answer, str):
        return Trial(mutant.id, "crashed", None, None, None, "elsewhere", seconds, answer)
    record, exact = answer
    verdict = record["verdict"]
    died = [c for c in record["checks"] if c["kind"] == "process" and c["status"] == "error"]
    anchor = verdict["anchor"]
    place = "elsewhere"
    if anchor == mutant.anchor:
        place = "exact"
    elif anchor in consumers.get(mutant.anchor, set()):
        place = "consumer"
    detail = died[0]["detail"] if died else ""
    if record["passed"]:
        same = {p: c["configurations"] for p, c in record["tokens"].items()} == {
            p: c["configurations"] for p, c in clean["tokens"].items()
        }
        detail = "every logit is the right one, bit for bit" if same else "logits differ, within their limits"
    level = verdict["confidence"]["level"] if verdict["confidence"] else None
    class_ = "crashed" if died else verdict["class"]
    return Trial(mutant.id, class_, anchor, verdict["operation"], level, place, seconds, detail, exact=exact)


def _judged(report: Report, id: str) -> tuple[Record, bool | None]:
    """The record of a run with a mutant, and whether it names an operation that the fault changed.

    In a child process, of which nothing is a child of its own.
    """
    mutant = MUTANTS[id]
    capacity = SESSION_CAPACITY if mutant.part == "session" else _capacity(mutant.run)
    record = _run(report, mutant.run, capacity, id)
    return record, _exact(mutant, record)


def _exact(mutant: Mutant, record: Record) -> bool | None:
    """Whether the operation that is named is one that the fault changed; None where it changed no value of the emitter's, or the
    graph does not have the anchor, so that there is none to name."""
    from hloracle.studies.changed_operations import changed_lines

    verdict = record["verdict"]
    anchor = verdict["anchor"] or mutant.anchor
    if mutant.part != "emitter" or mutant.class_ != "emitter-fault" or verdict["class"] != mutant.class_ or not anchor:
        return None
    named = AT_LINE.search(verdict["operation"] or "")
    name = named[2] if named else ""
    rights = _graphs(mutant, name)
    with mutant.installed():
        wrongs = _graphs(mutant, name)
    config = open_checkpoint(resolve(mutant.model, precision=mutant.held[0], compute=mutant.compute)).config
    changed = [changed_lines(right, wrong, anchor, config) for right, wrong in zip(rights, wrongs, strict=True)]
    if all(lines is None for lines in changed):
        return None
    return named is not None and any(int(named[1]) in lines for lines in changed if lines is not None)


def _graphs(mutant: Mutant, name: str) -> list[Graph]:
    """The emitter's graphs of a mutant's run: the one of that name, or one of each phase and head where there is no name."""
    precision, layout, fused = mutant.held
    device, batch = Device(mutant.device), mutant.batch
    choice = untuned(layout, fused, device, batch, precision, mutant.compute)
    emitter, capacity = Emitter(choice), _capacity(mutant.run)
    opened = open_checkpoint(resolve(mutant.model, precision=precision, compute=mutant.compute))
    model = dataclasses.replace(opened, kv=mutant.kv)
    buckets = [b for b in (*BUCKETS, QUICK_BUCKET) if b <= capacity]
    found: dict[str, Graph] = {}
    for phase, bucket in (("decode", 0), *((_prompt(mutant.run), b) for b in buckets)):
        for head in ("logits", "token"):
            graph = emitter(Request(model, phase, head, capacity, bucket, precision, device, batch, mutant.ring))
            if graph is not None and name in ("", graph.name):
                found.setdefault(graph.name if name else f"{phase} {head}", graph)
    return list(found.values())


def _right(report: Report, key: Run) -> Right:
    """The record of a run without any fault, and what reads what.

    Where no mutant is planted beyond the graphs, XLA alone runs it: no other verdict than those that a mutant must not
    get depends on IREE then, and that the model is right there is `hloracle suite`'s to test.
    """
    beyond = any(m.run == key and m.part in ("compiler", "device", "session") for m in MUTANTS.values())
    record = _run(report, key, _capacity(key), "", None if beyond else BUILT_IN[1:])
    return record, _consumers(key)


def _run(
    report: Report, of: Run, capacity: int, mutant: str, backends: tuple[str, ...] | None = None
) -> Record:  # fmt: skip
    model, weights, kind, batch, _, compute, ring, kv = of
    precision, layout, fused = held_as(weights)
    device = Device(kind)
    choice = untuned(layout, fused, device, batch, precision, compute)
    with alone(), plain_compilers():
        settings = Settings(
            model, TOKENS, capacity, precision, choice, early_exit=True, quick=_quick(of), repairs=False,
            batch=batch, compute=compute, ring=ring, kv=kv,
        )  # fmt: skip
        context = Context(
            Progress(report),
            chosen(backends or backends_on(device), device),
            device,
            fault=MUTANTS[mutant] if mutant else None,
        )
        return run(settings, context)


def _command(of: Run) -> str:
    precision, layout, fused = held_as(of.weights)
    on = "" if of.device == "cpu" else f" --device {of.device}"
    on += f" --batch {of.batch}" if of.batch > 1 else ""
    on += f" --capacity {of.capacity}" if of.capacity else ""
    on += f" --compute {of.compute}" if of.compute != "f32" else ""
    on += " --ring" if of.ring else ""
    on += f" --kv {of.kv}" if of.kv != "compute" else ""
    return f"hloracle run {of.model}{on} --precision {precision} --layout {layout}{' --fused' if fused else ''}"


def _capacity(of: Run) -> int:
    return of.capacity or (LATE_CAPACITY if of.model in LATE else CAPACITY)


def _quick(of: Run) -> bool:
    return of.model in LATE or of.capacity > 0


def _prompt(of: Run) -> str:
    """The phase of the graphs that a prompt goes through."""
    return Settings(of.model, TOKENS, _capacity(of), quick=_quick(of), batch=of.batch).prompt


def _consumers(of: Run) -> dict[str, set[str]]:
    """Anchor -> the anchors whose subgraph reads it."""
    from hloracle.localize.anatomy import anatomy_of

    config = open_checkpoint(resolve(of.model)).config
    found: dict[str, set[str]] = {}
    for phase, bucket in ((_prompt(of), BUCKETS[0]), ("decode", 0)):
        anatomy = anatomy_of(
            emit(config, phase, "token", _capacity(of), bucket, None, of.batch, ring=of.ring, kv=of.kv), config
        )
        for anchor in anatomy.anchors:
            for argument in anatomy.subgraph(anchor).graph.abi.arguments:
                found.setdefault(argument.name.removesuffix("+"), set()).add(anchor)
    return found


def problems(trials: Sequence[Trial]) -> list[str]:
    """Why these trials do not show what they should; empty when they do."""
    found = [f"{t.id} survived: {t.detail}" for t in trials if t.verdict in ("conforms", "near-tie")]
    found += [f"{t.id} crashed: {t.detail}" for t in trials if t.crashed]
    found += [
        f"{t.id} is {t.verdict}, not {t.mutant.class_}" for t in trials
        if t.killed and t.verdict != t.mutant.class_
    ]  # fmt: skip
    found += [
        f"{t.id} is placed at {t.anchor or 'no anchor'}, not at {t.mutant.anchor}" for t in trials
        if t.killed and t.place == "elsewhere"
    ]  # fmt: skip
    late = [t for t in trials if t.place == "consumer"]
    if len(late) > AT_CONSUMER * len(trials):
        found.append(f"{len(late)} of {len(trials)} are placed at a consumer, more than {AT_CONSUMER:.0%}")
    asked = [t for t in trials if t.exact is not None]
    missed = [t.id for t in asked if not t.exact]
    if len(trials) == len(MUTANTS) and len(asked) - len(missed) < EXACT * len(asked):  # of a few a share says nothing
        found.append(
            f"another operation is named in {len(missed)} of {len(asked)}, more than {1 - EXACT:.0%}: {missed[0]}"
        )
    return found or ([] if trials else ["no mutant was run"])


def as_records(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The trials as JSON."""
    return [
        {
            "mutant": t.id, "model": t.mutant.model, "mechanism": t.mutant.mechanism, "part": t.mutant.part,
            "fault": t.mutant.fault, "expected": {"class": t.mutant.class_, "anchor": t.mutant.anchor},
            "class": t.verdict, "anchor": t.anchor, "operation": t.operation, "confidence": t.confidence,
            "killed": t.killed, "place": t.place, "operation_exact": t.exact, "seconds": round(t.seconds, 2), "detail": t.detail, "reused": t.reused,
        }
        for t in trials
    ]  # fmt: skip


# ---- what is kept


def outcomes(architecture: str) -> tuple[int, int, bool] | None:
    """How many of a family's mutants were noticed, in their class and at their place; how many there are; and whether
    that is what was written down in PINS, not what came of them on this machine.

    None unless each of them has been planted since anything changed that decides what comes of it.
    """
    trials = [_entry(m).load() for m in MUTANTS.values() if m.architecture == architecture]
    if trials and None not in trials:
        return sum(t.right for t in trials if t), len(trials), False
    if any(t and not t.right for t in trials):  # something else came of it here
        return None
    pin = json.loads(PINS.read_text()).get(architecture) if PINS.is_file() else None
    if pin and pin["of"] == pin_key(architecture):
        return pin["killed"], pin["total"], True
    return None


def counted(architecture: str) -> Mutants:
    """How many of a family's mutants were noticed when they were last planted; why nothing is known, where nothing is."""
    killed, total, pinned = outcomes(architecture) or (0, 0, False)
    return {"killed": killed, "total": total, "pinned": pinned, "reason": "" if total else "not run"}


def pins(families: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What is written down of these families. Raises InputError where a family's mutants were not all planted."""
    found: dict[str, dict[str, Any]] = {}
    for family in families:
        known = outcomes(family)
        if known is None:
            raise InputError("not all of its mutants have been planted", family, f"run `hloracle mutants {family}`")
        killed, total, _ = known
        found[family] = {"killed": killed, "total": total, "of": pin_key(family)}
    return found


def pin_key(architecture: str) -> str:
    """What decides what comes of a family's mutants, but for the machine."""
    return digest(*(_question(m) for m in MUTANTS.values() if m.architecture == architecture))[:32]


def _entry(mutant: Mutant) -> Entry[Trial]:
    of = digest(_question(mutant), host_cpu(), iree.compiler_path(), os.environ.get("XLA_FLAGS", ""))
    return Entry("mutants", of, Trial)


def _question(mutant: Mutant) -> str:
    # A module of faults stands for itself: each imports no other one.
    own = (FAULTS / f"{name}.py" for name in (mutant.module.rpartition(".")[2], "registry"))
    expected = {f.name: getattr(mutant, f.name) for f in dataclasses.fields(mutant) if f.name != "installed"}
    settings = [repr(expected), TOKENS, CAPACITY, SESSION_CAPACITY, LATE, LATE_CAPACITY]
    return digest(repr(settings), *(path.read_bytes() for path in own), common(mutant.architecture))


@cache
def common(architecture: str) -> str:
    """What decides what comes of a family's mutants, besides themselves and the machine: our code, and the packages."""
    packages = (core, reference, emitters, backends, production, localize, repair, semantics, conformance)
    return digest(json.dumps(versions()), *_contents(packages, architecture))


def _contents(packages: Iterable[Any], architecture: str) -> list[bytes]:
    """Every file of these packages, without the other architectures' own."""
    files = (
        path for package in packages for path in Path(str(package.__file__)).parent.rglob("*")
        if path.suffix in (".py", ".json", ".toml") and (path.parent.name != "architectures" or path.stem == architecture)
    )  # fmt: skip
    return [part for path in sorted(files) for part in (path.name.encode(), path.read_bytes())]
