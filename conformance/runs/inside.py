"""A configuration looked at from inside: the values at every anchor, in prefill and in decode, held to the truth's.

Also the canary: a copy of a right graph with one anchor spoiled, which the same comparison has to catch and to name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloracle import localize, repair, semantics
from hloracle.conformance.checks.check import Check, Question, of_configuration
from hloracle.conformance.context import Context
from hloracle.conformance.matrix import Configuration, graph_of
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.runs.configurations import backend_sources, where
from hloracle.core import tolerances
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry, digest
from hloracle.core.child import ChildDied
from hloracle.core.errors import ToolchainError
from hloracle.core.spread import NAMES, Spread, allowed, in_words
from hloracle.core.tolerances import ANCHOR_FLOORS, NARROW_ROWS
from hloracle.emitters.model import in_blocks
from hloracle.localize.situation import row_floors, row_scales
from hloracle.reference.huggingface.anchor_truth import MASKED, AnchorTruth
from hloracle.reference.model import anchors as vocabulary
from hloracle.reference.model.anchors import anchors, split
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config

TIMEOUT_SECONDS = 900
# A bfloat16 has 8 bits of precision: the canary is off by one rounding of the coarsest format that anyone computes in.
CANARY_FACTOR = 1 + 2.0**-8
# Of what computes in bf16 or f16 one rounding is no fault. This is several times the noise of most anchors of the tiny models and
# of a real one, half of a percent to five. Where it is not, as behind a choice of experts, it is off by twice what is accepted.
NARROW_CANARY_FACTOR = 1 + 2.0**-2


NO_ANCHORS = "the graph names none, and none was found by number"


@dataclass(frozen=True)
class Canary:
    """A fault that was put in on purpose. `named` is the anchor that was found wrong first, if any was. factor: see CANARY_FACTOR."""

    anchor: str
    graph: str
    named: str | None
    worst: float
    factor: float = CANARY_FACTOR

    @property
    def caught(self) -> bool:
        """Whether the anchor that was found wrong first is the spoiled one; a fault found elsewhere is not caught."""
        return self.named == self.anchor


@dataclass(frozen=True)
class Rows:
    """Errors in floors: a row for each anchor, a column for each position; None where nothing is to be compared.

    spreads: see `Matrix`.
    """

    phase: str
    positions: list[int]
    anchors: list[str]
    errors: list[list[float | None]]
    spreads: dict[str, Spread] = field(default_factory=dict)

    def worst(self) -> tuple[float, str, int] | None:
        """The largest error, the first anchor (in order of computation) that has it, and its position."""
        found = [
            (e, -a, -p) for a, row in enumerate(self.errors) for p, e in enumerate(row) if e is not None
        ]  # fmt: skip
        if not found:
            return None
        error, a, p = max(found)
        return error, self.anchors[-a], self.positions[-p]

    def first(self) -> str | None:
        """The first anchor that is beyond its limit."""
        for anchor, row in zip(self.anchors, self.errors, strict=True):
            if any(e is not None and not e <= ANCHOR_FLOORS for e in row):
                return anchor
        return None


@dataclass(frozen=True)
class AnchorOutcome:
    """`status` is `ran`, `reused` or `failed`. `floors` is filled for the oracle: see `floor_rows`.

    missing: anchors that a graph does not have, so that nothing was compared there, as `NAME in PHASE`; lost: those of them that
      it could have. named: whether its graphs have any besides the caches that they return. by_number: these were found by
      number, not by name.
    """

    configuration: Configuration
    prompt: str
    status: str
    rows: list[Rows] = field(default_factory=list)
    floors: list[dict[str, Any]] = field(default_factory=list)
    canary: Canary | None = None
    message: str = ""
    missing: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    named: bool = True
    by_number: bool = False


def run_anchored(
    context: Context, configuration: Configuration, graphs: Sequence[Graph], model: Checkpoint,
    of: tuple[Prompt, AnchorTruth], with_canary: bool = False,
) -> AnchorOutcome:  # fmt: skip
    """Run one prompt and the steps after it with every anchor as a result, in a child process.

    Args:
      graphs: of the configuration's source: decode, prefill in the prompt's bucket, or both.
      of: the prompt, and the reference of it and of the tokens after it.
    """
    prompt, truth = of
    parts: list[str | bytes] = [
        model.digest, *backend_sources(), *looking(Path(__file__)), *where(context, configuration.backend),
        truth.folder.parent.name, truth.folder.name,
        json.dumps([configuration.id, prompt.bucket, len(prompt.token_ids), truth.tokens, with_canary]),
        *(g.identity for g in graphs),
    ]  # fmt: skip
    entry: Entry[AnchorOutcome] = context.entry("anchors", AnchorOutcome, parts, on=configuration.backend)
    arguments = (configuration, list(graphs), model.directory, of, with_canary)
    try:
        outcome, reused = entry.get(
            lambda: context.child(_run, *arguments, timeout=context.at_most(TIMEOUT_SECONDS)).value
        )
    except (ToolchainError, ChildDied) as error:
        return AnchorOutcome(configuration, prompt.id, "failed", message=str(error))
    return dataclasses.replace(outcome, status="reused") if reused else outcome


def looking(*files: Path) -> list[bytes]:
    """What decides how a graph is looked into: our code, the tolerances, the compilers and their flags."""
    own = [
        *(
            path
            for package in (localize, repair, semantics)
            for path in Path(str(package.__file__)).parent.rglob("*.py")
        ),
        Path(str(tolerances.__file__)),
        Path(str(vocabulary.__file__)),
    ]
    return [p.read_bytes() for p in (*sorted(own), *files)]


def _run(
    context: Context, configuration: Configuration, graphs: list[Graph], directory: Path,
    of: tuple[Prompt, AnchorTruth], with_canary: bool,
) -> AnchorOutcome:  # fmt: skip
    from hloracle.localize.anatomy import anatomy_of
    from hloracle.localize.dissect import Matrix, Side, run_with_outputs
    from hloracle.localize.situation import ReferenceRun

    model, (prompt, truth) = open_checkpoint(directory), of
    config, length = model.config, len(prompt.token_ids)
    if all(g.abi.phase == "decode" for g in graphs):  # a step is looked at in any case
        length = min(length, len(truth.tokens) - 1)
    backend = context.backend(configuration.backend)
    run = ReferenceRun(truth, config, model.load, length, prompt.bucket)

    def matrices(*which: Graph) -> list[Matrix]:
        side = Side(configuration.source, configuration.backend, which)
        return run_with_outputs(side, backend, run, context.report)

    rows = [rows_of(m) for m in matrices(*graphs)]
    canary = None
    graph = max(graphs, key=lambda g: g.abi.phase != "decode")
    anatomy = anatomy_of(graph, config)
    last = length if graph.abi.phase != "decode" else len(truth.tokens)
    if with_canary and (anchor := canary_anchor(graph, anatomy.anchors, truth, last)):
        context.report(f"canary: {anchor}")
        factor = canary_factor(truth, config, anchor)
        found = rows_of(matrices(anatomy.spoiled(anchor, factor))[0])
        worst = found.worst()
        canary = Canary(anchor, graph.name, found.first(), worst[0] if worst else 0.0, factor)
    floors = floor_rows(truth, config, rows) if configuration.of_oracle else []
    missing = [(r.phase, a) for r in rows for a in anchors(config) if a not in r.anchors]
    lost = [(phase, a) for phase, a in missing if not (split(a)[1] in MASKED and _in_blocks(graphs, phase, a))]
    named = any(anatomy_of(g, config).values.keys() - {"token"} for g in graphs)
    return AnchorOutcome(
        configuration, prompt.id, "ran", rows, floors, canary, missing=_in_words(missing), lost=_in_words(lost), named=named,
        by_number=any(g.written for g in graphs),
    )  # fmt: skip


def _in_blocks(graphs: Sequence[Graph], phase: str, anchor: str) -> bool:
    """Whether a layer attends to a block of keys at a time in the graphs of a phase, so that it has no scores of all of them."""
    layer, _ = split(anchor)
    return any(in_blocks(g.abi, g.on_device, g.abi.keys(layer or 0)) for g in graphs if g.abi.phase == phase)


def _in_words(missing: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{anchor} in {phase}" for phase, anchor in missing]


def canary_anchor(graph: Graph, order: Sequence[str], truth: AnchorTruth, length: int) -> str:
    """The anchor to be spoiled in a graph that is looked at up to `length` tokens: another graph gets another, so that in time all are tried.

    Zeros remain zeros however they are spoiled (a projection of zeros gives them), so what is looked at is the last
    token's row, the one at which every anchor is compared. Empty where a graph that somebody else wrote names none.
    """
    alive = [a for a in order if a != "token" and row_scales(truth, a)[length - 1] > 0]
    return alive[int(digest(graph.text)[:8], 16) % len(alive)] if alive else ""


def canary_factor(truth: AnchorTruth, config: Config, anchor: str) -> float:
    """What the value at an anchor is multiplied with to spoil it."""
    if truth.compute == "f32":
        return CANARY_FACTOR
    scale = row_scales(truth, anchor)
    accepted = ANCHOR_FLOORS * row_floors(truth, anchor, config)[scale > 0] / scale[scale > 0]
    return max(NARROW_CANARY_FACTOR, float(f"{1 + 2 * (np.median(accepted) if len(accepted) else 0.0):.3g}"))


def rows_of(matrix: Any) -> Rows:
    """A matrix of the dissection in a form that can be kept; NaN there is what is not to be compared."""
    errors = [[None if np.isnan(e) else float(f"{e:.3g}") for e in row] for row in matrix.errors.tolist()]
    return Rows(matrix.phase, list(matrix.positions), list(matrix.anchors), errors, matrix.spreads)


def floor_rows(truth: AnchorTruth, config: Config, oracle: Sequence[Rows]) -> list[dict[str, Any]]:
    """What each anchor is held to: its scale, float32's noise there, and how far the oracle was off, in floors."""
    worst: dict[str, float] = {}
    for rows in oracle:
        for anchor, errors in zip(rows.anchors, rows.errors, strict=True):
            worst[anchor] = max([worst.get(anchor, 0.0), *(e for e in errors if e is not None)])
    found = []
    for anchor in anchors(config):
        scale, noise, floors = row_scales(truth, anchor), truth.noise(anchor), row_floors(truth, anchor, config)
        relative = float(np.median(floors[scale > 0] / scale[scale > 0])) if np.any(scale > 0) else 0.0
        found.append({
            "anchor": anchor, "scale": float(np.max(scale)), "noise": float(np.max(noise)), "relative": relative,
            "oracle": worst.get(anchor), "limit": ANCHOR_FLOORS,
        })  # fmt: skip
    return found


def anchor_check(outcome: AnchorOutcome, all_named: bool) -> Check:
    """Every anchor of prefill and of decode is within its floors.

    Args:
      all_named: whether its graphs have to name all anchors; what somebody else wrote need not, and what it has counts.
    """
    question = of_configuration(outcome.configuration, "anchors", "values at every anchor against the float64 truth")
    if outcome.status == "failed":
        return question.error(outcome.message)
    found = [(w, r) for r in outcome.rows if (w := r.worst())]
    if not found:
        return question.error("nothing was compared")
    (error, anchor, position), rows = max(found, key=lambda f: f[0][0])
    count = sum(len(r.anchors) for _, r in found)
    first = next(((r.phase, a) for _, r in found if (a := r.first())), None)
    figure = f"{error:.2f} floors ({anchor}, {rows.phase}, position {position}), {count} anchors"
    limit = f"at most {ANCHOR_FLOORS:g} floors"
    if spreads := [(a, s) for _, r in found for a, s in r.spreads.items() if s.rows >= NARROW_ROWS]:
        figure += f"; {_worst_spread(spreads)}"
        limit += f"; {allowed()}"
    detail = f"the first beyond its limit is {first[1]} in {first[0]}" if first else ""
    lost = outcome.lost if all_named else []
    if lost:
        detail = "; ".join(filter(None, [detail, f"its graphs have no anchor {', '.join(lost[:5])}"]))
    if outcome.missing and not lost and first is None:
        if not outcome.named:
            return dataclasses.replace(question.skipped(NO_ANCHORS), figure=figure, limit=limit)
        limit += f", {len(outcome.missing)} anchors are not there, such as {outcome.missing[0]}"
    return question.judged(first is None and not lost, figure, limit, detail)


def _worst_spread(spreads: Sequence[tuple[str, Spread]]) -> str:
    """The largest multiple of Hugging Face's that each figure is of, in words."""
    worst = [max((s.ratios[i], a) for a, s in spreads) for i in range(len(NAMES))]
    return in_words([ratio for ratio, _ in worst], [f" ({anchor})" for _, anchor in worst])


def canary_check(outcomes: Sequence[AnchorOutcome], why_not: str = "") -> Check:
    """A fault put in on purpose is found, at its place, in each of these; why_not: of none."""
    question = Question("canary", "a fault put in on purpose is caught and named")
    missed = [o.canary for o in outcomes if o.canary and not o.canary.caught]
    without = [o.configuration.source for o in outcomes if o.canary is None]
    if (without and not missed) or not outcomes:
        return question.skipped(why_not or f"it did not run in {graph_of(without[0])}")
    canary = next(iter(missed), None) or outcomes[0].canary
    assert canary
    figure = f"{canary.named or 'nothing'} at {canary.worst:.3g} floors"
    detail = "the harness would not notice a fault there: trust nothing in this report" if missed else ""
    return question.judged(not missed, figure, canary.anchor, detail)
