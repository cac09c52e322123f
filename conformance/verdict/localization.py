"""From a failing run to a place in a graph: what is taken apart, what comes of it, and how sure that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hloracle.backends.custom_calls import Target
from hloracle.backends.devices import CPU
from hloracle.backends.named import Choice
from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_configurations import is_near_tie, limit
from hloracle.conformance.context import Context
from hloracle.conformance.graphs.sources import specification
from hloracle.conformance.matrix import ORACLE, Configuration, Matrix, graph_of
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.inside import Rows, floor_rows, rows_of
from hloracle.conformance.runs.naming import named
from hloracle.conformance.runs.returned import Stream
from hloracle.conformance.verdict.repair import Repair
from hloracle.conformance.verdict.reproducer import Reproducer, Way, write_reproducer
from hloracle.conformance.verdict.shrinking import TIMEOUT_SECONDS as SHRINKING_SECONDS
from hloracle.conformance.verdict.shrinking import smaller
from hloracle.core.abi import Graph
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.emitters.builder import TensorType
from hloracle.localize.word import Word
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.weights import weight_shapes

if TYPE_CHECKING:  # they import JAX, which a run's first process does not need
    from hloracle.localize.blame import Named
    from hloracle.localize.mend import Mended

TIMEOUT_SECONDS = 900 + SHRINKING_SECONDS
UNANSWERED = ("memory", "timeout")  # causes of an error that say nothing of a graph
# A decode step is looked at even where prefill failed: it tells whether the fault is in both.
FIRST_STEP = 1
# The first positions are like no others: RoPE turns nothing there, and a softmax over one key is 1 whatever the key. Anchors
# that are found by number are looked for later.
PAST = 8


@dataclass(frozen=True)
class Failing:
    """Where a configuration fails: a sequence whose last token shows it.

    prompt: of it, or the stream's beginning; its bucket picks the prefill graph. step: of the tokens after it; 0 is the
      prompt's own head.
    tokens: all that is looked at; the first `length` of them are given at once.
    """

    prompt: Prompt
    step: int
    tokens: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class Plan:
    """What to take apart: a configuration that is wrong, beside what is right, where it fails.

    trusted: None where nothing that could be compared with is right.
    """

    suspect: Configuration
    trusted: Configuration | None
    at: Failing
    reason: str


def plan(
    matrix: Matrix, checks: Sequence[Check], outcomes: Sequence[Outcome], asked: Asked, past: int = 0
) -> Plan | None:  # fmt: skip
    """The configuration nearest to the source that is wrong, and the shortest prompt that shows it; None if none is wrong.

    Args:
      past: tokens that should precede the one that is looked at, where later ones are wrong as well.
    """
    bad = {c.configuration for c in checks if c.bad and c.error not in UNANSWERED}
    shown = {c.configuration for c in checks if c.failed}
    wrong = {o.configuration: o for o in outcomes if o.configuration in (bad if o.status == "failed" else shown)}
    right = [o.configuration for o in outcomes if o.configuration not in bad and o.status != "failed"]

    def choose(suspect: Configuration, trusted: Configuration | None, reason: str) -> Plan | None:
        found = _failing(wrong[suspect], asked, past)
        return Plan(suspect, trusted, found, reason) if found else None

    # The processor before a device, wrong values before what does not run, and a quick backend first, for a fault that all show is in the graph. There the oracle
    # comes before what is judged by it. What the others alone have wrong is the compiler's in both graphs, and the judged
    # one is the one that matters.
    quick = matrix.quick
    order = sorted(
        wrong, key=lambda c: (
            c.head == "token", matrix.on_device(c), wrong[c].status == "failed", c.backend != quick,
            c.of_oracle != (c.backend == quick),
        ),
    )  # fmt: skip
    for one in order:
        if twin := next((c for c in matrix.elsewhere(one) if c in right), None):
            return choose(one, twin, f"the same graph is right on {twin.backend}")
        if one.backend == quick or one.head == "token":
            peers = [c for c in right if c.head == "logits" and c.of_oracle != one.of_oracle]
            peer = min(peers, key=lambda c: (c.backend != quick, c.backend != one.backend), default=None)
            return choose(one, peer, f"{graph_of(peer.source)} is right" if peer else "no other graph is right")
    return choose(order[0], None, "nothing else is right") if order else None


def _failing(outcome: Outcome, asked: Asked, past: int) -> Failing | None:
    """The shortest prompt on which a configuration fails, and its first failing step; else the first place of a stream that does.

    A configuration that gave nothing fails on all prompts.
    """
    streamed = [f for s in asked.streams if (f := _in_stream(s, outcome, asked, past))]
    first = min(streamed, key=lambda f: len(f.tokens), default=None)
    if first and not any(s.prefilled for s in outcome.streams.values()):
        return first  # decode alone is given prompts token by token, too: the first position that is wrong shows most
    if past and (whole := next((f for f in streamed if f.length == f.prompt.bucket), None)):
        return whole  # nothing is padding there, of which it is not known what another emitter's graph makes of it
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
    # Something else of the configuration failed.
    longer = [p for p in asked.prompts if len(p.token_ids) > 1] or asked.prompts
    return _at(longer[0], 0, asked) if longer else None


def _at(prompt: Prompt, step: int, asked: Asked) -> Failing:
    """A prompt, and what leads to the failing step. The last token is nobody's input."""
    following = asked.truths[prompt.id].tokens[:-1][: max(step, FIRST_STEP)]
    return Failing(prompt, step, (*prompt.token_ids, *following), len(prompt.token_ids))


def _in_stream(stream: Stream, outcome: Outcome, asked: Asked, past: int) -> Failing | None:
    """Where a stream first fails: in decode at a position, or in prefill after a length; see `plan`."""
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
        buckets = [stream.bucket or max(buckets)]
        length = last = buckets[0] if past and buckets[0] in filled else _first(filled, past + 1)
    else:  # the step alone, after a prompt that ends before it: none for the first one
        last = _first(decoded, past) + 1
        length = min(last - 1, max(buckets))
    fitting = [b for b in buckets if b >= length]
    prompt = Prompt(stream.id, min(fitting or buckets), "the beginning of a stream", None, stream.tokens[:length])
    return Failing(prompt, last - length, stream.tokens[:last], length)


def _first(places: Sequence[int], least: int) -> int:
    """The first of them that is not less, or of all where none is."""
    return min([p for p in places if p >= least] or places)


@dataclass(frozen=True)
class Localization:
    """What was found, ready for the record. Errors are in floors, and `floors` says what those are; `reproducer` is None where none
    was asked for.

    by: how the operation was found: see `Found`; empty where none was. candidates: those whose change makes the anchor right, the best
    first. sole: there is one alone. mended: the graphs put
    right; repair: what came of running them.
    """

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
    interpreted: Word | None
    notes: list[str] = field(default_factory=list)
    by: str = ""
    candidates: list[Named] = field(default_factory=list)
    sole: bool = False
    mended: Mended | None = None
    repair: Repair | None = None


@dataclass(frozen=True)
class How:
    """folder: where the reproducer goes, if one is wanted. early_exit, repairs: see `Question`."""

    folder: Path | None = None
    early_exit: bool = False
    repairs: bool = True


def localize(
    context: Context, plan: Plan, graphs: dict[str, list[Graph]], directory: Path, truth: AnchorTruth,
    how: How,
) -> Localization:  # fmt: skip
    """Take apart what is wrong. Runs in a child process.

    Args:
      graphs: of every source; what the trusted side lacks is lowered here.
    """
    from hloracle.localize.dissect import Question, Side, dissect
    from hloracle.localize.situation import ReferenceRun

    model = open_checkpoint(directory)
    config = model.config
    backend = cache(context.backend)

    def side(configuration: Configuration) -> Side:
        own = [g for g in graphs[configuration.source] if g.abi.head == configuration.head]
        fitting = [g for g in own if g.abi.phase == "decode" or g.abi.bucket == plan.at.prompt.bucket]
        return Side(
            configuration.source, configuration.backend, tuple(fitting), tuple(g for g in own if g not in fitting)
        )  # fmt: skip

    suspect = side(plan.suspect)
    length = plan.at.length
    if plan.at.step and not any(g.abi.phase == "decode" for g in suspect.graphs):  # all tokens are given at once
        length = len(plan.at.tokens)
    oracle = _oracle(context, plan, suspect.graphs, config)
    same = plan.trusted is not None and plan.trusted.source == plan.suspect.source
    if oracle is not None:  # whose anchors are those that the suspect's graphs should have
        right = backend(plan.trusted.backend if plan.trusted and same else context.matrix.quick)
        of = (truth, length)
        pairs = zip(suspect.graphs, oracle.graphs, strict=True)
        found_in = [named(g, peer, model, of, right, context.report) for g, peer in pairs]
        suspect = replace(suspect, graphs=tuple(found_in))
    if plan.trusted is None:
        trusted = oracle
    else:
        trusted = replace(suspect, backend=plan.trusted.backend) if same else side(plan.trusted)
    question = Question(suspect, trusted, how.early_exit, how.repairs)
    run = ReferenceRun(truth, config, model.load, length, plan.at.prompt.bucket)
    found = dissect(question, run, weights_of(suspect.graphs, config), backend, context.report)
    reproducer = None
    if how.folder is not None and found.reproducer is not None:
        together = found.interpreted is not None and found.interpreted.right
        reproducer = _reproducer(context, plan, found, how.folder, question.of_compiler or together)
    errors = []
    accumulated = {(m.phase, a): e for m in found.matrices for a, e in m.worst().items()}
    for phase, anchor in dict.fromkeys([*accumulated, *found.local]):
        errors.append({
            "anchor": anchor, "phase": phase, "accumulated": accumulated.get((phase, anchor)),
            "local": found.local.get((phase, anchor)), "peer": found.peer.get((phase, anchor)),
        })  # fmt: skip
    operation = None
    graph = suspect.graph(found.phase)
    if found.found is not None and (found.found.step.line or not (graph and graph.written)):  # one of the graph's own
        step = found.found.step
        operation = {
            "name": step.name, "value": step.value, "line": step.line or None,
            "graph": graph.name if graph else "", "text": step.text, "anchor": found.anchor,
            "operands": [str(TensorType(a.shape, a.dtype)) for a in step.graph.abi.arguments], "result": step.type,
            "worst": _worst(found.worst, found.found), "why": found.found.why,
            "origin": [dataclasses.asdict(o) for o in (graph.origins.get(step.line, ()) if graph else ())],
        }  # fmt: skip
    return Localization(
        plan, found.phase, found.anchor, found.position, found.first_accumulated, found.first_local, errors,
        [rows_of(m) for m in found.matrices], floor_rows(truth, config, []), operation, reproducer, found.fusion_dependent, found.misused,
        found.interpreted, list(found.notes), found.found.by if operation and found.found else "", list(found.candidates), found.sole, found.mended,
    )  # fmt: skip


def _reproducer(context: Context, plan: Plan, found: Any, folder: Path, of_compiler: bool) -> Reproducer:
    """What shows the fault, made smaller where it is a compiler's, and run with that compiler's own tools."""
    shown, suspect = found.reproducer, plan.suspect.backend
    called = tuple(t for t in context.targets if f"custom_call @{t.name}(" in shown.graph.text)
    of_compiler = of_compiler or shown.expected is None
    backends, notes = [], []
    # A fault that was put in on purpose is in this process alone; so are the libraries of custom_calls.
    if of_compiler and context.fault is None and not called:
        made = smaller(context, shown, suspect, plan.trusted.backend if plan.trusted else None)
        shown, backends, notes = made.found, made.backends, made.notes
    context.report("writing a reproducer and running it")
    choice = next((b for b in context.backends if b.name == suspect), None)
    written = write_reproducer(folder, shown, _way(context, choice, of_compiler, called), found.anchor or "")
    if of_compiler and not written.shown:  # what hloracle alone can run it has run
        told = next((b for b in backends if b.backend == suspect), None)
        if told is not None and choice is not None and not choice.tools and not choice.in_process:
            written = replace(written, shown=bool(told.shows), output=told.detail)
    return replace(written, backends=backends, notes=notes)


def _way(context: Context, choice: Choice | None, of_compiler: bool, targets: Sequence[Target]) -> Way:
    """With what a reproducer is run: a source's fault with whatever is at hand, a compiler's with its tools."""
    device = context.device if choice is not None and choice.name == context.device.backend else CPU
    if targets or choice is None or not of_compiler:
        on_xla = bool(targets) and choice is not None and choice.family == "xla"
        return Way("xla" if on_xla else "iree", targets=targets, device=device)
    if choice.tools is not None:
        tools = None if choice.in_process else choice.tools
        return Way(choice.tools.compiler, choice.name, tools)
    return Way("iree", device=device) if choice.in_process else Way("", choice.name)


def _oracle(context: Context, plan: Plan, graphs: Sequence[Graph], config: Config) -> Any:
    """The oracle's graphs for a source that was judged without them; None where the oracle is what is wrong."""
    from hloracle.localize.dissect import Side
    from hloracle.reference.oracle.lower import lower

    if plan.suspect.of_oracle:
        return None
    lowered = [lower(config, *specification(g)._replace(head="logits")) for g in graphs]
    return Side(ORACLE, context.matrix.quick, tuple(lowered))


def weights_of(graphs: Sequence[Graph], config: Config) -> frozenset[str]:
    """The names of weights, as they are and as these graphs take them."""
    return frozenset({*weight_shapes(config), *(w.name for g in graphs for w in g.abi.weights)})


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
