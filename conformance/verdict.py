"""Whose fault it is: DESIGN's table, decided from the checks of cells that actually ran."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hloracle.conformance.cells import Cell, CellOutcome
from hloracle.conformance.checks import Check, is_near_tie, mismatches
from hloracle.conformance.evidence import BACKENDS
from hloracle.conformance.localization import Localization, confidence
from hloracle.reference.truth import Truth

PASSING = ("conforms", "near-tie")


@dataclass(frozen=True)
class Verdict:
    """`class_` is a row of DESIGN's table; prompt and step say where tokens first parted, if they did.

    anchor, operation: the first thing that is wrong. sure: how sure that is, and why; None for a verdict that passes.
    """

    class_: str
    explanation: str
    evidence: tuple[str, ...] = ()
    prompt: str | None = None
    step: int | None = None
    anchor: str | None = None
    operation: str | None = None
    sure: tuple[str, list[str]] | None = None
    fusion_dependent: bool = False

    @property
    def passed(self) -> bool:
        return self.class_ in PASSING


def decide(checks: Sequence[Check], outcomes: Sequence[CellOutcome], truths: dict[str, Truth]) -> Verdict:
    """The first row of the table that the evidence supports, nearest to the source first."""
    bad = [c for c in checks if c.status in ("failed", "error")]
    # A failure is shown by every check that failed, a pass by what came nearest to failing.
    shown = bad or [
        c
        for c in checks
        if c.id.endswith((".tokens", "-logits", ".prefill-equals-streaming", ".anchors", ".canary", ".probes"))
    ]
    evidence = tuple(f"{c.id}: {c.figure or c.status}{f' ({c.detail})' if c.detail else ''}" for c in shown)
    prompt, step = first_parting(outcomes, truths)

    def verdict(class_: str, explanation: str) -> Verdict:
        return Verdict(class_, explanation, evidence, prompt, step)

    def failed(*prefixes: str) -> list[Check]:
        return [c for c in bad if c.id.startswith(prefixes)]

    died = [o for o in outcomes if o.status == "failed" and o.stage == "process"]
    # An invariant that could not be checked is not a broken one.
    broken = [c for c in failed("emitter.", "file.") if c.status == "failed"]
    if failed("gate-zero"):
        return verdict("harness-error", "The toolchain does not run the simplest graphs.")
    if failed("harness.canary"):
        return verdict("harness-error", "A fault put in on purpose was not caught: nothing here can be trusted.")
    if failed("emitter.parse", "file.parse"):
        return verdict("emitter-fault", "The emitted graph does not parse or verify.")
    if failed("oracle.parse"):
        return verdict("reference-fault", "The oracle's graph does not parse or verify.")
    if broken and not outcomes:
        return verdict("emitter-fault", f"The emitted graph breaks an invariant: {broken[0].title}.")
    if not outcomes or not truths:
        return verdict("harness-error", "Nothing was compared.")
    if failed("truth."):
        return verdict("harness-error", "The truth is not reliable: its float32 and float64 disagree.")
    if died:
        return verdict("harness-error", f"The process of cell {died[0].cell.id} died, so its result is missing.")

    if short := [c for c in bad if c.short_of_memory]:
        return verdict("harness-error", f"There is no result of {short[0].id}: {short[0].detail}.")

    wrong = {o.cell: failed(f"{o.cell.id}.") for o in outcomes if failed(f"{o.cell.id}.")}
    right = [o.cell for o in outcomes if o.cell not in wrong]

    def beside(cell: Cell, **other: str) -> Cell:
        return dataclasses.replace(cell, **other)

    for cell in (c for c in wrong if c.source == "oracle" and c.backend == "xla-cpu"):
        if beside(cell, backend="iree-cpu") in right:
            return verdict("compiler-fault", "The oracle's graph is right on IREE and wrong on XLA.")
        return verdict("reference-fault", "Hugging Face and the JAX oracle differ; nothing can be judged against it.")
    if failed("oracle."):
        return verdict("reference-fault", f"The oracle's graph breaks an invariant: {failed('oracle.')[0].title}.")
    for cell in (c for c in wrong if c.backend == "xla-cpu"):
        on_iree = beside(cell, backend="iree-cpu")
        if cell.source == "file" and on_iree in right:
            return verdict("compiler-fault", "The graph is right on IREE and wrong on XLA.")
        where = "on XLA and on IREE alike" if on_iree in wrong else "on XLA"
        oracle = beside(cell, source="oracle") in right
        subject = "The oracle's graph is right and the emitted one" if oracle else "The graph"
        return verdict("emitter-fault", f"{subject} is wrong {where}.")
    if broken:
        return verdict("emitter-fault", f"The emitted graph breaks an invariant: {broken[0].title}.")
    # The processor's cells first: what is wrong there too is no device's fault. Of the device's those that it runs as well.
    for cell, reasons in sorted(
        wrong.items(), key=lambda w: (on_device(w[0]), on_device(w[0]) and w[0].head == "token")
    ):
        on_cpu = beside(cell, backend="iree-cpu")
        if on_device(cell) and on_cpu in right and outcome_of(outcomes, cell).stage != "compile":
            where = cell.backend.replace("-", " ").replace("iree", "IREE")
            return verdict(
                "device-fault", f"The {cell.source}'s graph is right on IREE cpu and wrong on {where} ({cell.id})."
            )
        if outcome_of(outcomes, cell).status == "failed":
            return verdict("compiler-fault", f"A graph that is valid fails on IREE ({cell.id}).")
        on_xla = beside(cell, backend="xla-cpu")
        if cell.head == "token" and beside(cell, head="logits") in right and on_xla not in right:
            return verdict(
                "emitter-fault", "The graph with logits is right, and the one that picks the token is wrong."
            )
        if on_xla in right and any(_is_of_tokens_or_logits(c) for c in reasons):
            return verdict(
                "compiler-fault", f"The {cell.source}'s graph is right on XLA and wrong on IREE ({cell.id})."
            )
    if restless := [c for c in bad if c.id.endswith(".repeats")]:
        return verdict("device-fault", f"The device does not give the same values twice ({restless[0].id}).")
    if uncompiled := [c for c in bad if c.id.endswith((".compiles", ".arithmetic"))]:
        return verdict("compiler-fault", f"The compiler breaks what it has to keep: {uncompiled[0].title}.")
    # Only IREE streams the prompts, so XLA has not shown that this graph can be right.
    apart = [c for reasons in wrong.values() for c in reasons if not _is_of_tokens_or_logits(c)]
    if apart:
        return verdict("emitter-fault", "The emitted prefill and decode differ on the same prompt.")
    if bad:
        return verdict("harness-error", f"A check failed that no fault explains: {bad[0].title}.")
    passed = {c.id for c in checks if c.status == "passed"}
    unproved = [o.cell.id for o in outcomes if f"{o.cell.id}.tokens" not in passed or truths.keys() - o.prompts.keys()]
    if unproved:
        return verdict("harness-error", f"Cell {unproved[0]} was not compared on every prompt.")
    if step is not None:
        return verdict("near-tie", "Tokens differ only where the truth's own lead is inside the noise of float32.")
    return verdict("conforms", "Every token equals Hugging Face's and every logit is within the noise of float32.")


def place(
    verdict: Verdict, checks: Sequence[Check], found: Localization | None, outcomes: Sequence[CellOutcome]
) -> Verdict:
    """The verdict with its place, and how sure it is: from what was taken apart, else from the invariant that broke."""
    if verdict.passed:
        return verdict
    bad = [c for c in checks if c.status in ("failed", "error")]
    static = next((c for c in bad if c.anchor), None)
    # A graph whose donations are not its ABI's is misused by whoever trusts the ABI.
    if found is None or found.anchor is None or (found.misused and static):
        if static is None:
            return dataclasses.replace(verdict, sure=("possible", ["no place was found"]))
        how = (
            "is where the compiler stops"
            if static.id.endswith(".compiles")
            else "is read from the graph as it is written"
        )
        because = [f"{static.id} {how}: {static.detail}"]
        operation = static.operation or None
        return dataclasses.replace(verdict, anchor=static.anchor, operation=operation, sure=("certain", because))
    level, because = confidence(found, outcomes, {c.id.rpartition(".")[0] for c in bad})
    operation = None
    if found.operation:
        at = f" at line {found.operation['line']}" if found.operation["line"] else ""
        named = f"{found.operation['name']} {found.operation['value']}".strip()
        operation = f"{named}{at} of {found.operation['graph']}"
    verdict = dataclasses.replace(
        verdict,
        anchor=found.anchor,
        operation=operation,
        sure=(level, because),
        fusion_dependent=found.fusion_dependent,
    )
    if found.misused:
        explanation = (
            "The graphs are right when they are given right inputs, and the session gives them something else."
        )
        return dataclasses.replace(verdict, class_="harness-error", explanation=explanation)
    allowed = any(c.id == "file.custom-call" and c.status == "passed" for c in checks)
    if allowed and verdict.class_ == "emitter-fault" and (found.operation or {}).get("name") == "stablehlo.custom_call":
        explanation = "A custom_call gives wrong values: what it calls is wrong, or what the graph asks of it."
        return dataclasses.replace(verdict, explanation=explanation)
    if found.fusion_dependent and verdict.class_ != "device-fault":
        explanation = "The graph is wrong as compiled, and right once its intermediate values are made outputs."
        return dataclasses.replace(verdict, class_="compiler-fault", explanation=explanation)
    return verdict


def on_device(cell: Cell) -> bool:
    """Whether it runs on another device than the processor."""
    return cell.backend not in BACKENDS


def outcome_of(outcomes: Sequence[CellOutcome], cell: Cell) -> CellOutcome:
    return next(o for o in outcomes if o.cell == cell)


def _is_of_tokens_or_logits(check: Check) -> bool:
    return not check.id.endswith(".prefill-equals-streaming")


def first_parting(outcomes: Sequence[CellOutcome], truths: dict[str, Truth]) -> tuple[str | None, int | None]:
    """The prompt and step at which a cell first chose another token; a real mismatch before a near-tie."""
    partings = [
        (is_near_tie(step, result.tokens[step], truths[name]), step, name)
        for outcome in outcomes
        for name, result in outcome.prompts.items()
        for step in mismatches(result.tokens, truths[name])
    ]
    if not partings:
        return None, None
    _, step, name = min(partings)
    return name, step
