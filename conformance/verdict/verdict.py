"""Whose fault it is: README's table, decided from the checks of cells that actually ran."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hloracle.conformance.checks.checks import Check, is_near_tie, mismatches
from hloracle.conformance.evidence import BACKENDS
from hloracle.conformance.runs.configurations import Cell, CellOutcome
from hloracle.conformance.verdict.compared import NOTHING, Compared
from hloracle.conformance.verdict.localization import Localization, confidence, narrowed
from hloracle.reference.huggingface.truth import Truth

PASSING = ("conforms", "near-tie")
# Checks of a source that are about its values; its others are about how its graphs are written.
OF_VALUES = (".probes",)
# Checks of a cell that are about what its graphs give to equal calls.
OF_CELLS = (".tokens", "-logits", ".caches", ".prefill-equals-streaming")

# Over a graph from a file that fails one of these, compilers may differ and each be right.
LEFT_OPEN = ("file.abi", "file.random", "file.reductions")
DONATED = ("file.donations", "file.caches-donated")


@dataclass(frozen=True)
class Verdict:
    """`class_` is a row of README's table; prompt and step say where tokens first parted, if they did.

    anchor, operation: the first thing that is wrong. sure: how sure that is, and why; None for a verdict that passes.
    compared, not_compared: in phrases, what the verdict rests on, and what it says nothing of.
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
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.class_ in PASSING


# How a check without a run knows of a place.
READ = "is read from the graph as it is written"
SHOWN_BY = {
    ".compiles": "is where the compiler stops",
    ".probes": "differs from the oracle's on equal inputs",
}
# What says most of a pass: what came nearest to failing.
SHOWN = (".tokens", "-logits", ".caches", ".repeats", ".prefill-equals-streaming", ".anchors", ".canary", ".probes")
# Why a cell has no answer -> the class of that, and its words. Nothing is known then of whether a graph is right.
UNANSWERED = {
    "memory": ("out-of-memory", "Out of memory, so nothing is known of the graph there"),
    "timeout": (
        "timeout",
        "The graph did not end in the time it was given (--timeout), so nothing is known of it there",
    ),
}


def decide(
    checks: Sequence[Check], outcomes: Sequence[CellOutcome], truths: dict[str, Truth],
    compared: Compared = NOTHING,
) -> Verdict:  # fmt: skip
    """The first row of the table that the evidence supports, nearest to the source first."""
    bad = [c for c in checks if c.status in ("failed", "error")]
    # A failure is shown by every check that failed.
    shown = bad or [c for c in checks if c.id.endswith(SHOWN)]
    evidence = tuple(f"{c.id}: {c.figure or c.status}{f' ({c.detail})' if c.detail else ''}" for c in shown)
    prompt, step = first_parting(outcomes, truths)

    def verdict(class_: str, explanation: str) -> Verdict:
        return Verdict(
            class_, explanation, evidence, prompt, step, compared=compared.phrases, not_compared=compared.missing
        )

    def failed(*prefixes: str) -> list[Check]:
        return [c for c in bad if c.id.startswith(prefixes)]

    # An invariant that could not be checked is not a broken one.
    broken = [c for c in failed("emitter.", "file.") if c.status == "failed" and not c.id.endswith(OF_VALUES)]
    if failed("gate-zero"):
        return verdict("harness-error", "The toolchain does not run the simplest graphs.")
    if failed("harness.canary"):
        return verdict("harness-error", "A fault put in on purpose was not caught: nothing here can be trusted.")
    if failed("emitter.parse", "file.parse"):
        return verdict("emitter-fault", "The emitted graph does not parse or verify.")
    if failed("oracle.parse"):
        return verdict("reference-fault", "The oracle's graph does not parse or verify.")
    if beyond := failed("emitter.supported", "file.supported"):
        return verdict("unsupported", f"No backend here runs what the graph asks for: {beyond[0].detail}.")
    if broken and not outcomes:
        return verdict("emitter-fault", f"The emitted graph breaks an invariant, and was not run: {broken[0].title}.")
    if not outcomes or not truths:
        return verdict("harness-error", "Nothing was compared.")
    if failed("truth."):
        return verdict("harness-error", "The truth is not reliable: its float32 and float64 disagree.")

    silent = {o.cell for o in outcomes if o.status == "failed" and o.stage in (*UNANSWERED, "process")}
    bad_of = {o.cell: failed(f"{o.cell.id}.") for o in outcomes if o.cell not in silent}
    right = [cell for cell, some in bad_of.items() if not some]
    # A check that could not be made says nothing of a graph, unless the graph did not run: it is neither right nor wrong.
    wrong = {
        o.cell: bad_of[o.cell] for o in outcomes
        if bad_of.get(o.cell) and (o.status == "failed" or any(c.status == "failed" for c in bad_of[o.cell]))
    }  # fmt: skip
    # What is wrong where it was compared is wrong, whatever another cell did not answer.
    if not any(c.status == "failed" for some in wrong.values() for c in some):
        if died := [o for o in outcomes if o.stage == "process"]:
            return verdict("harness-error", f"The process of {died[0].cell.id} died, so its result is missing.")
        for stage, (class_, words) in UNANSWERED.items():
            if these := [f"{o.cell.id}: {o.message}" for o in outcomes if o.stage == stage]:
                return verdict(class_, f"{words}. {'; '.join(these)}.")

    def beside(cell: Cell, **other: str) -> Cell:
        return dataclasses.replace(cell, **other)

    for cell in (c for c in wrong if c.source == "oracle" and c.backend == "xla-cpu"):
        if beside(cell, backend="iree-cpu") in right:
            return verdict("compiler-fault", "The oracle's graph is right on IREE and wrong on XLA.")
        return verdict("reference-fault", "Hugging Face and the JAX oracle differ; nothing can be judged against it.")
    if failed("oracle."):
        return verdict("reference-fault", f"The oracle's graph breaks an invariant: {failed('oracle.')[0].title}.")
    judged = [o for o in outcomes if o.cell.source != "oracle"]
    if judged and all(o.status == "failed" and o.cell in wrong for o in judged) and not broken:
        return verdict("unsupported", f"No backend here compiles and runs the graph: {judged[0].message}.")
    drawn = [c for c in broken if c.id.endswith(".random")]
    if drawn and any(c.id.endswith(".repeats") and c.status == "failed" for c in failed("emitter/", "file/")):
        return verdict(
            "emitter-fault", f"The graph draws random numbers, so no two calls are equal: {drawn[0].detail}."
        )
    if (left_open := failed(*LEFT_OPEN)) and any(c.status == "failed" for some in wrong.values() for c in some):
        return verdict(
            "emitter-fault",
            f"The values are wrong, and compilers need not agree on such a graph: {left_open[0].detail}.",
        )
    for cell in (c for c in wrong if c.backend == "xla-cpu"):
        on_iree = beside(cell, backend="iree-cpu")
        if cell.source == "file" and on_iree in right and not failed(*DONATED):
            return verdict("compiler-fault", "The graph is right on IREE and wrong on XLA.")
        where = "on XLA and on IREE alike" if on_iree in wrong else "on XLA"
        oracle = beside(cell, source="oracle", head="logits") in right
        subject = "The oracle's graph is right and the emitted one" if oracle else "The graph"
        return verdict("emitter-fault", f"{subject} is wrong {where}.")
    if of_values := [c for c in failed("emitter.", "file.") if c.id.endswith(OF_VALUES) and c.status == "failed"]:
        return verdict(
            "emitter-fault",
            f"On inputs that no prompt gives the graph does not compute what the oracle names so: {of_values[0].detail}.",
        )
    if broken:
        where = ", ".join(dict.fromkeys(c.id for c in right if c.source != "oracle"))
        if where:
            words = f"The values are right ({where}), and the graph breaks an invariant: {broken[0].title}."
            return verdict("invariant-broken", words)
        return verdict("emitter-fault", f"The emitted graph breaks an invariant: {broken[0].title}.")
    # The processor's cells first: what is wrong there too is no device's fault. Of the device's those that it runs as well.
    for cell, reasons in sorted(
        wrong.items(), key=lambda w: (on_device(w[0]), on_device(w[0]) and w[0].head == "token")
    ):
        on_cpu, on_xla = beside(cell, backend="iree-cpu"), beside(cell, backend="xla-cpu")
        if all(c.id.endswith(".repeats") for c in reasons):
            class_ = "device-fault" if on_device(cell) else "compiler-fault"
            return verdict(class_, f"Two calls on equal inputs do not give the same values ({cell.id}).")
        if on_device(cell) and on_cpu in right and outcome_of(outcomes, cell).stage != "compile":
            where = cell.backend.replace("-", " ").replace("iree", "IREE")
            return verdict(
                "device-fault", f"The {cell.source}'s graph is right on IREE cpu and wrong on {where} ({cell.id})."
            )
        if outcome_of(outcomes, cell).status == "failed":
            return verdict("compiler-fault", f"A graph that is valid fails on IREE ({cell.id}).")
        if cell.head == "token" and beside(cell, head="logits") in right and on_xla not in right:
            return verdict(
                "emitter-fault", "The graph with logits is right, and the one that picks the token is wrong."
            )
        if on_xla in right:
            return verdict(
                "compiler-fault", f"The {cell.source}'s graph is right on XLA and wrong on IREE ({cell.id})."
            )
    if wrong:  # and of none of them is it known that another compiler has the same graph right
        return verdict("emitter-fault", f"The graph is wrong on {next(iter(wrong)).id}, the only compiler that ran it.")
    if uncompiled := [c for c in bad if c.id.endswith((".compiles", ".arithmetic"))]:
        return verdict("compiler-fault", f"The compiler breaks what it has to keep: {uncompiled[0].title}.")
    if bad:
        what = "failed that no fault explains" if bad[0].status == "failed" else "could not be made"
        return verdict("harness-error", f"A check {what}: {bad[0].title}.")
    passed = {c.id for c in checks if c.status == "passed"}
    needed = ("tokens", "caches", "repeats")
    unproved = [
        o.cell.id for o in outcomes
        if any(f"{o.cell.id}.{name}" not in passed for name in needed) or truths.keys() - o.prompts.keys()
    ]  # fmt: skip
    if unproved:
        return verdict("harness-error", f"Cell {unproved[0]} was not compared on every prompt.")
    if step is not None:
        words = "Tokens differ only where the truth's own lead is inside the noise of float32, and nothing else"
        return verdict("near-tie", compared.sentence(words))
    return verdict("conforms", compared.sentence("Equal to Hugging Face, but for float32's noise,"))


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
            nearer = narrowed(outcomes) if any(c.status == "failed" and c.id.endswith(OF_CELLS) for c in bad) else None
            anchor, words = nearer or (None, "no place was found")
            return dataclasses.replace(verdict, anchor=anchor, sure=("possible", [words]))
        how = next((words for suffix, words in SHOWN_BY.items() if static.id.endswith(suffix)), READ)
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
    differs = any(c.id.startswith((*LEFT_OPEN, *DONATED)) for c in bad)
    if found.fusion_dependent and verdict.class_ != "device-fault" and not differs:
        explanation = "The graph is wrong as compiled, and right once its intermediate values are made outputs."
        return dataclasses.replace(verdict, class_="compiler-fault", explanation=explanation)
    return verdict


def on_device(cell: Cell) -> bool:
    """Whether it runs on another device than the processor."""
    return cell.backend not in BACKENDS


def outcome_of(outcomes: Sequence[CellOutcome], cell: Cell) -> CellOutcome:
    return next(o for o in outcomes if o.cell == cell)


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
