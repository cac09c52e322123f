"""Whose fault it is: DESIGN's table, decided from the checks of cells that actually ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloracle.conformance.cells import CellOutcome
from hloracle.conformance.checks import Check, is_near_tie, mismatches
from hloracle.reference.truth import Truth

PASSING = ("conforms", "near-tie")


@dataclass(frozen=True)
class Verdict:
    """`class_` is a row of DESIGN's table; prompt and step say where tokens first parted, if they did."""

    class_: str
    explanation: str
    evidence: tuple[str, ...] = ()
    prompt: str | None = None
    step: int | None = None

    @property
    def passed(self) -> bool:
        return self.class_ in PASSING


def decide(checks: Sequence[Check], outcomes: Sequence[CellOutcome], truths: dict[str, Truth]) -> Verdict:
    """The first row of the table that the evidence supports, nearest to the source first."""
    bad = [c for c in checks if c.status in ("failed", "error")]
    # A pass is shown by what came closest to a failure, a failure by every check that failed.
    shown = bad or [c for c in checks if c.id.endswith((".tokens", "-logits", ".prefill-equals-streaming"))]
    evidence = tuple(f"{c.id}: {c.figure or c.status}{f' ({c.detail})' if c.detail else ''}" for c in shown)
    prompt, step = first_parting(outcomes, truths)

    def verdict(class_: str, explanation: str) -> Verdict:
        return Verdict(class_, explanation, evidence, prompt, step)

    by_id = {o.cell.id: o for o in outcomes}
    wrong = {id: any(c.id.startswith(f"{id}.") for c in bad) for id in by_id}

    def failed(*prefixes: str) -> list[Check]:
        return [c for c in bad if c.id.startswith(prefixes)]

    died = [o for o in outcomes if o.status == "failed" and o.stage == "process"]
    if failed("gate-zero"):
        return verdict("harness-error", "The toolchain does not run the simplest graphs.")
    if failed("emitter.parse", "file.parse"):
        return verdict("emitter-fault", "The emitted graph does not parse or verify.")
    if failed("oracle.parse"):
        return verdict("reference-fault", "The oracle's graph does not parse or verify.")
    if not outcomes or not truths:
        return verdict("harness-error", "Nothing was compared.")
    if failed("truth."):
        return verdict("harness-error", "The truth is not reliable: its float32 and float64 disagree.")
    if died:
        return verdict("harness-error", f"The process of cell {died[0].cell.id} died, so its result is missing.")
    if wrong.get("oracle/xla-cpu") or failed("oracle."):
        return verdict("reference-fault", "Hugging Face and the JAX oracle differ; nothing can be judged against it.")
    static = failed("emitter.", "file.")
    if static:
        return verdict("emitter-fault", f"The emitted graph breaks an invariant: {static[0].title}.")
    for source in ("emitter", "file"):
        if wrong.get(f"{source}/xla-cpu"):
            where = "on XLA and on IREE alike" if wrong.get(f"{source}/iree-cpu") else "on XLA"
            right = "The oracle's graph is right and the emitted one" if source == "emitter" else "The graph"
            return verdict("emitter-fault", f"{right} is wrong {where}.")
    for id in (id for id, is_wrong in wrong.items() if is_wrong):
        source = by_id[id].cell.source
        twin = f"{source}/{by_id[id].cell.backend}"
        if by_id[id].cell.head == "token" and not wrong.get(twin, True):
            return verdict("emitter-fault", "The graph with logits is right, and the one that picks the token is wrong.")
        return verdict("compiler-fault", f"The {source}'s graph is right on XLA and wrong on IREE ({id}).")
    if bad:
        return verdict("harness-error", f"A check failed that no fault explains: {bad[0].title}.")
    if step is not None:
        return verdict("near-tie", "Tokens differ only where the truth's own lead is inside the noise of float32.")
    return verdict("conforms", "Every token equals Hugging Face's and every logit is within the noise of float32.")


def first_parting(outcomes: Sequence[CellOutcome], truths: dict[str, Truth]) -> tuple[str | None, int | None]:
    """The prompt and step at which a cell first chose another token; a real mismatch before a near-tie."""
    partings = [
        (is_near_tie(step, truths[name]), step, name)
        for outcome in outcomes
        for name, result in outcome.prompts.items()
        for step in mismatches(result.tokens, truths[name])[:1]
    ]
    if not partings:
        return None, None
    _, step, name = min(partings)
    return name, step
