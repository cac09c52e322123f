"""From a failing run to a place in a graph: what is taken apart, what comes of it, and how sure that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.custom_calls import Target, register
from hloracle.backends.devices import CPU, Device
from hloracle.backends.make import make_backend
from hloracle.conformance.checks.checks import Check, is_near_tie, limit
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.configurations import Cell, CellOutcome
from hloracle.conformance.runs.inside import Rows, floor_rows, rows_of
from hloracle.conformance.runs.returned import Stream
from hloracle.conformance.verdict.reproducer import Reproducer, write_reproducer
from hloracle.core.abi import Graph
from hloracle.core.child import Report
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.mutants import planted
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.anchors import split
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.weights import weight_shapes

TIMEOUT_SECONDS = 900
UNANSWERED = ("memory", "timeout")  # causes of an error that say nothing of a graph
# A decode step is looked at even where prefill failed: it tells whether the fault is in both.
FIRST_STEP = 1


@dataclass(frozen=True)
class Failing:
    """Where a cell fails: a sequence whose last token shows it.

    prompt: of it, or the stream's beginning. step: of the tokens after it; 0 is the prompt's own head.
    tokens: all that is looked at; the first `length` of them are given at once.
    """

    prompt: Prompt
    step: int
    tokens: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class Plan:
    """What to take apart: a cell that is wrong, beside what is right, where it fails.

    trusted: None where nothing that could be compared with is right.
    """

    suspect: Cell
    trusted: Cell | None
    at: Failing
    reason: str

    @property
    def prompt(self) -> Prompt:
        return self.at.prompt

    @property
    def step(self) -> int:
        return self.at.step


def plan(checks: Sequence[Check], outcomes: Sequence[CellOutcome], asked: Asked) -> Plan | None:
    """The cell nearest to the source that is wrong, and the shortest prompt that shows it; None if no cell is wrong."""
    bad = {c.id.rpartition(".")[0] for c in checks if c.status in ("failed", "error") and c.cause not in UNANSWERED}
    shown = {c.id.rpartition(".")[0] for c in checks if c.status == "failed"}
    wrong = {o.cell: o for o in outcomes if o.cell.id in (bad if o.status == "failed" else shown)}
    right = [o.cell for o in outcomes if o.cell.id not in bad and o.status != "failed"]

    def choose(suspect: Cell, trusted: Cell | None, reason: str) -> Plan | None:
        found = _failing(wrong[suspect], asked)
        return Plan(suspect, trusted, found, reason) if found else None

    def beside(cell: Cell, **other: str) -> Cell | None:
        twin = dataclasses.replace(cell, **other)
        return twin if twin in right else None

    # The oracle before what is judged by it; XLA before IREE, for a fault that both show is in the graph.
    # What only IREE has wrong is the compiler's in both graphs, and the production graph is the one that matters.
    order = sorted(
        wrong, key=lambda c: (c.head == "token", c.backend != "xla-cpu", (c.source != "oracle") == (c.backend == "xla-cpu"))
    )  # fmt: skip
    for cell in order:
        # Of a device, the processor: the same compiler.
        other = "xla-cpu" if cell.backend == "iree-cpu" else "iree-cpu"
        if twin := beside(cell, backend=other):
            return choose(cell, twin, f"the same graph is right on {other}")
        if cell.backend == "xla-cpu" or cell.head == "token":
            source = "emitter" if cell.source == "oracle" else "oracle"
            peer = beside(cell, source=source, backend="xla-cpu", head="logits")
            reason = f"the {source}'s graph is right" if peer else "no other graph is right"
            return choose(cell, peer, reason)
    return choose(order[0], None, "nothing else is right") if order else None


def _failing(outcome: CellOutcome, asked: Asked) -> Failing | None:
    """The shortest prompt on which a cell fails, and its first failing step; else the first place of a stream that does.

    A cell that gave nothing fails on all prompts.
    """
    streamed = [f for s in asked.streams if (f := _in_stream(s, outcome, asked))]
    first = min(streamed, key=lambda f: len(f.tokens), default=None)
    if first and not any(s.prefilled for s in outcome.streams.values()):
        return first  # decode alone is given prompts token by token, too: the first position that is wrong shows most
    found = []
    for prompt in asked.prompts:
        truth, result = asked.truths[prompt.id], outcome.prompts.get(prompt.id)
        steps = [0] if result is None else []
        if result is not None:
            pairs = enumerate(zip(result.tokens, truth.tokens, strict=False))
            steps += [i for i, (a, b) in pairs if a != b and not is_near_tie(i, a, truth)]
            steps += [i for i, e in enumerate(result.errors) if not e <= limit(truth)]
            wrong = [at for slots in result.slots if (at := slots.first_wrong())]
            # The step that fills a slot is fed the token at its position.
            steps += [max(0, slot - len(prompt.token_ids) + 1) for slot, _ in wrong]
        if steps:
            # A prompt of one token has no past to go wrong in: its like is chosen last.
            found.append((len(prompt.token_ids) == 1, len(prompt.token_ids), min(steps), prompt))
    if found:
        _, _, step, prompt = min(found, key=lambda f: f[:3])
        return _at(prompt, step, asked)
    if first:
        return first
    # Something else of the cell failed.
    longer = [p for p in asked.prompts if len(p.token_ids) > 1] or asked.prompts
    return _at(longer[0], 0, asked) if longer else None


def _at(prompt: Prompt, step: int, asked: Asked) -> Failing:
    """A prompt, and what leads to the failing step. The last token is nobody's input."""
    following = asked.truths[prompt.id].tokens[:-1][: max(step, FIRST_STEP)]
    return Failing(prompt, step, (*prompt.token_ids, *following), len(prompt.token_ids))


def _in_stream(stream: Stream, outcome: CellOutcome, asked: Asked) -> Failing | None:
    """Where a stream first fails: in decode at a position, or in prefill after a length."""
    streamed = outcome.streams.get(stream.id)
    if streamed is None:
        return None
    decoded = [p for p, e in enumerate(streamed.heads) if not e <= ANCHOR_FLOORS]
    filled = [n for n, e in streamed.prefilled.items() if not e <= ANCHOR_FLOORS]
    if streamed.slots is not None and (at := streamed.slots.first_wrong()):
        # A slot that did not stay as it was is wrong by a later step than its own: the first whose head shows it, or the last.
        spoiled = decoded or [len(stream.tokens) - 1]
        decoded = spoiled if streamed.slots.stayed else [*decoded, at[0]]
    if streamed.prefilled_slots is not None and (at := streamed.prefilled_slots.first_wrong()):
        filled.append(at[0] + 1)
    if not decoded and not filled:
        return None
    buckets = [p.bucket for p in asked.prompts]
    if filled:
        length, last = min(filled), min(filled)
        buckets = [stream.bucket or max(buckets)]
    else:  # the step alone, after a prompt that ends before it: none for the first one
        last = min(decoded) + 1
        length = min(last - 1, max(buckets))
    fitting = [b for b in buckets if b >= length]
    prompt = Prompt(stream.id, min(fitting or buckets), "the beginning of a stream", None, stream.tokens[:length])
    return Failing(prompt, last - length, stream.tokens[:last], length)


@dataclass(frozen=True)
class Localization:
    """What was found, ready for the record. Errors are in floors, and `floors` says what those are; `reproducer` is None where none was asked for."""

    plan: Plan
    phase: str
    anchor: str | None
    position: int | None
    first_accumulated: str | None
    first_local: str | None
    errors: list[dict[str, Any]]
    rows: list[Rows]
    floors: list[dict[str, Any]]
    operation: dict[str, Any] | None
    reproducer: Reproducer | None
    fusion_dependent: bool
    misused: bool
    notes: list[str] = field(default_factory=list)


def localize(
    report: Report, plan: Plan, graphs: dict[str, list[Graph]], directory: Path, truth: AnchorTruth, threads: int,
    folder: Path | None, mutant: str, brief: bool = False, targets: Sequence[Target] = (), device: Device = CPU,
) -> Localization:  # fmt: skip
    """Runs in a child process.

    Args:
      graphs: of every source; what the trusted side lacks (a file is judged without an oracle's graphs) is lowered here.
      folder: where the reproducer goes. brief: see Question. targets, device: see `run_cell`.
    """
    from hloracle.localize.dissect import Question, Side, dissect

    register(targets)
    with planted(mutant):
        checkpoint = open_checkpoint(directory)
    config = checkpoint.config
    backends: dict[str, Any] = {}

    def backend(name: str) -> Any:
        if name not in backends:
            backends[name] = make_backend(name, threads, device)
        return backends[name]

    def side(cell: Cell) -> Side:
        fitting = [
            g for g in graphs[cell.source]
            if g.abi.head == cell.head and (g.abi.phase == "decode" or g.abi.bucket == plan.prompt.bucket)
        ]  # fmt: skip
        others = [g for g in graphs[cell.source] if g.abi.head == cell.head and g not in fitting]
        return Side(cell.source, cell.backend, tuple(fitting), tuple(others))

    with planted(mutant):
        suspect = side(plan.suspect)
        trusted = side(plan.trusted) if plan.trusted else _oracle(plan, suspect.graphs, config)
        question = Question(suspect, trusted, plan.at.length, plan.prompt.bucket, brief)
        found = dissect(
            question, truth, config, checkpoint.load, weights_of(suspect.graphs, config), backend, report
        )  # fmt: skip
        reproducer = None
        if folder is not None and found.reproducer is not None:
            report("writing a reproducer and running it")
            called = [t for t in targets if f"custom_call @{t.name}(" in found.reproducer.graph.text]
            only_on_xla = bool(question.of_compiler or called) and plan.suspect.backend == "xla-cpu"
            where = device if plan.suspect.backend == device.backend else CPU
            reproducer = write_reproducer(folder, found.reproducer, only_on_xla, found.anchor or "", called, where)
    errors = []
    accumulated = {(m.phase, a): e for m in found.matrices for a, e in m.worst().items()}
    for phase, anchor in dict.fromkeys([*accumulated, *found.local]):
        errors.append({
            "anchor": anchor, "phase": phase, "accumulated": accumulated.get((phase, anchor)),
            "local": found.local.get((phase, anchor)), "peer": found.peer.get((phase, anchor)),
        })  # fmt: skip
    operation = None
    if found.found is not None:
        step = found.found.step
        graph = suspect.graph(found.phase)
        operation = {
            "name": step.name, "value": step.value, "line": step.line or None,
            "graph": graph.name if graph else "", "text": step.text, "anchor": found.anchor,
            "operands": [_type(a.shape, a.dtype) for a in step.graph.abi.arguments], "result": step.type,
            "worst": _worst(found.worst, found.found), "why": found.found.why,
        }  # fmt: skip
    return Localization(
        plan, found.phase, found.anchor, found.position, found.first_accumulated, found.first_local, errors,
        [rows_of(m) for m in found.matrices], floor_rows(truth, config, []), operation, reproducer, found.fusion_dependent, found.misused,
        list(found.notes),
    )  # fmt: skip


def _oracle(plan: Plan, graphs: Sequence[Graph], config: Config) -> Any:
    """The oracle's graphs for a source that was judged without them; None where the oracle is what is wrong."""
    from hloracle.localize.dissect import Side
    from hloracle.reference.oracle.lower import lower

    if plan.suspect.source == "oracle":
        return None
    lowered = [
        lower(config, g.abi.phase, "logits", g.abi.capacity, g.abi.bucket if g.abi.phase == "prefill" else 0)
        for g in graphs
    ]
    return Side("oracle", "xla-cpu", tuple(lowered))


def weights_of(graphs: Sequence[Graph], config: Config) -> frozenset[str]:
    """The names of weights, as they are and as these graphs take them."""
    return frozenset({*weight_shapes(config), *(w.name for g in graphs for w in g.abi.weights)})


def _type(shape: Sequence[int], dtype: str) -> str:
    return f"tensor<{'x'.join([*map(str, shape), dtype])}>"


def _worst(at_anchor: Any, found: Any) -> dict[str, Any] | None:
    """The element that is furthest off: of the operation where its right result is known, else of its anchor."""
    if found.expected is not None and found.expected.shape == found.got.shape and found.got.size:
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(np.asarray(found.got, np.float64) - np.asarray(found.expected, np.float64))
        distance = np.where(found.got == found.expected, 0, np.where(np.isnan(distance), np.inf, distance))
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(distance)), distance.shape))
        return {"index": list(index), "value": float(found.got[index]), "expected": float(found.expected[index])}
    if at_anchor is None:
        return None
    return {"index": list(at_anchor.index), "value": at_anchor.value, "expected": at_anchor.expected}


def narrowed(outcomes: Sequence[CellOutcome]) -> tuple[str | None, str] | None:
    """How far the caches alone narrow the place: the first wrong one of a layer, and what that says; None if nothing does.

    For graphs that name no anchors, or that could not be taken apart.
    """
    judged = [o for o in outcomes if o.cell.source != "oracle"]
    slots = [s for o in judged for r in o.prompts.values() for s in r.slots]
    slots += [s for o in judged for r in o.streams.values() for s in (r.slots, r.prefilled_slots) if s]
    wrong = min((at for s in slots if (at := s.first_wrong())), default=None)
    if wrong:
        slot, _ = wrong
        here = [
            a
            for s in slots
            if (at := s.first_wrong()) and at[0] == slot
            for a, (_, _, f) in s.worst.items()
            if f == slot
        ]
        layer, part = min((split(a)[0] or 0, split(a)[1]) for a in here)
        anchor = f"{part}.{layer}"
        before = (
            f"between the attention of layer {layer - 1} and" if layer else "in the embedding, or in what comes before"
        )
        return anchor, (
            f"{anchor} is the first cache that is wrong, from slot {slot} on"
            f"{', the layers before it are right there' if layer else ''}: the fault is {before} what layer {layer} writes"
        )
    if (
        slots
        and not any(s.stayed for s in slots)
        and any(r.errors or not r.slots for o in judged for r in o.prompts.values())
    ):
        return None, "both caches are right in every layer and slot: the fault comes after what the last layer writes"
    return None


def confidence(found: Localization, outcomes: Sequence[CellOutcome], bad: set[str]) -> tuple[str, list[str]]:
    """How sure the verdict is, and the independent observations that it rests on.

    `certain`: the run and the anchor by itself agree on the place, and the operation was found or the reproducer shows
    the fault. `likely`: the place is known from one of them. `possible`: no place was found.
    """
    because = []
    suspect = found.plan.suspect
    alike = [o.cell.backend for o in outcomes if o.cell.source == suspect.source and o.cell.id in bad]
    if len(set(alike)) > 1:
        because.append(f"{suspect.source}'s graph is wrong on {' and '.join(sorted(set(alike)))} alike")
    if found.plan.trusted:
        because.append(f"{found.plan.trusted.id} is right: {found.plan.reason}")
    if found.anchor and found.anchor == found.first_local:
        because.append(f"{found.anchor} is wrong by itself, from right inputs")
    if found.anchor and found.anchor == found.first_accumulated:
        because.append(f"{found.anchor} is the first wrong value in the whole run")
    peer = [e["peer"] for e in found.errors if e["anchor"] == found.anchor and e["peer"] is not None]
    if peer and max(peer) <= ANCHOR_FLOORS:
        because.append(f"the trusted side computes {found.anchor} within {max(peer):.2g} floors")
    if found.operation:
        because.append(f"inside it, {found.operation['name']}: {found.operation['why']}")
    if found.reproducer and found.reproducer.shown:
        because.append("the reproducer shows it outside of hloracle")
    places = {found.first_local, found.first_accumulated} - {None}
    agreed = found.first_local is not None and len(places) == 1
    if agreed and (found.operation or (found.reproducer and found.reproducer.shown)):
        return "certain", because
    return ("likely" if found.anchor else "possible"), because or ["no place was found"]
