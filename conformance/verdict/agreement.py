"""The matrix of a run in words: what each backend makes of each source's graphs, and what independent witnesses there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hloracle.conformance.checks.check import Check
from hloracle.conformance.evidence import Evidence
from hloracle.conformance.matrix import Configuration, Matrix, Witness, graph_of, listed
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.inside import AnchorOutcome
from hloracle.conformance.verdict.localization import Localization
from hloracle.conformance.verdict.place import narrowed
from hloracle.conformance.verdict.verdict import UNANSWERED

# right: all that was compared is within its limits. wrong: something is not. failed: the backend does not compile, load or
# run the graphs. unknown: there is no answer, or not all of it could be compared.
State = Literal["right", "wrong", "failed", "unknown"]
SAID: dict[State, str] = {
    "right": "right on", "wrong": "wrong on", "failed": "not run by", "unknown": "not known on",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A source's graphs on a backend. first: what is wrong first, in words; anchor: the first wrong one, where it is known."""

    source: str
    backend: str
    state: State
    first: str = ""
    anchor: str = ""


def cells(evidence: Evidence) -> list[Cell]:
    """A cell for each source on each backend that it was asked on, with all of its heads, by source and then by backend."""
    outcomes, inside = evidence.outcomes, {o.configuration: o for o in evidence.anchored}
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.configuration.source, outcome.configuration.backend), []).append(outcome)
    refused = {b.name: gate.check for b, gate in evidence.gates if gate.check.bad}
    return [
        _cell(found[source, b.name], evidence.checks, evidence.localization, inside)
        if (source, b.name) in found else _refused(source, refused[b.name])
        for source in evidence.graphs for b, _ in evidence.gates
        if (source, b.name) in found or (b.name in refused and source in evidence.judged)
    ]  # fmt: skip


def _refused(source: str, gate: Check) -> Cell:
    """Of a backend that did not pass gate zero."""
    return Cell(source, gate.backend, "unknown" if gate.error in UNANSWERED else "failed", _said(gate))


def _cell(
    outcomes: Sequence[Outcome], checks: Sequence[Check], found: Localization | None,
    inside: Mapping[Configuration, AnchorOutcome],
) -> Cell:  # fmt: skip
    one = outcomes[0].configuration
    these = {o.configuration for o in outcomes}
    bad = [c for c in checks if c.configuration in these and c.bad]
    dead = next((o for o in outcomes if o.status == "failed"), None)
    failed = [c for c in bad if c.failed]
    if failed:
        anchor = _anchor(outcomes, found, inside)
        return Cell(one.source, one.backend, "wrong", f"{failed[0].title}: {_said(failed[0])}", anchor)
    if dead:
        state: State = "unknown" if dead.stage in (*UNANSWERED, "process") else "failed"
        return Cell(one.source, one.backend, state, dead.message, _anchor(outcomes, found, inside))
    if bad:
        return Cell(one.source, one.backend, "unknown", f"{bad[0].title}: {_said(bad[0])}")
    return Cell(one.source, one.backend, "right")


def _said(check: Check) -> str:
    return check.detail or check.figure or check.status


def _anchor(
    outcomes: Sequence[Outcome], found: Localization | None, inside: Mapping[Configuration, AnchorOutcome]
) -> str:
    """From where it was taken apart, else from where its anchors were looked at, else from its caches."""
    these = [o.configuration for o in outcomes]
    if found is not None and found.plan.suspect in these:
        return found.anchor or ""
    rows = [r for one in these if one in inside for r in inside[one].rows]
    if first := next((anchor for r in rows if (anchor := r.first())), None):
        return first
    told = narrowed(outcomes)
    return (told[0] if told else None) or ""


def sentences(matrix: Matrix, found: Sequence[Cell], evidence: Evidence) -> list[str]:
    """Of each source where its graphs are right and where not, then what is independent of what, then the interpreter."""
    by_source: dict[str, list[Cell]] = {}
    for cell in found:
        by_source.setdefault(cell.source, []).append(cell)
    told = [_sentence(matrix, source, some) for source, some in by_source.items()]
    return [*told, *filter(None, [_witnesses(matrix), _third_witness(evidence)])]


def _witnesses(matrix: Matrix) -> str:
    families: dict[str, list[str]] = {}
    for backend in matrix.backends:
        families.setdefault(backend.family, []).append(backend.title)
    several = [f"{listed(titles)} are one witness" for titles in families.values() if len(titles) > 1]
    return f"{'; '.join(several)}: they are of one family of compilers." if several else ""


def _third_witness(evidence: Evidence) -> str:
    """What StableHLO's interpreter says; it is no compiler, and counts beside them."""
    name = "StableHLO's interpreter"
    if evidence.localization and (word := evidence.localization.interpreted):
        at = f"{word.anchor} of {graph_of(evidence.localization.plan.suspect.source)}"
        if word.off is None:
            return f"{name} gives no answer on {at}: {word.why_not}."
        return f"{name} computes {at} {'right' if word.right else 'wrong as well'}, {word.off:.2g} floors off."
    told = [
        f"of {graph_of(c.source)} {name} has no word: {c.detail}" if c.status == "skipped"
        else f"of {graph_of(c.source)} {name} evaluates {c.figure}"
        for c in evidence.checks if c.kind == "interpreter"
    ]  # fmt: skip
    return f"O{'; '.join(told)[1:]}." if told else ""


def _sentence(matrix: Matrix, source: str, found: Sequence[Cell]) -> str:
    parts = []
    for state, words in SAID.items():
        these = [matrix[c.backend] for c in found if c.state == state]
        if these:
            parts.append(f"{words} {listed(b.title for b in these)}{_families(these)}")
    return f"{graph_of(source)} is {'; '.join(parts)}.".replace("the", "The", 1)


def _families(backends: Sequence[Witness]) -> str:
    """How many independent witnesses they are, where that is not as many."""
    families = list(dict.fromkeys(b.family for b in backends))
    if len(families) == len(backends):
        return ""
    return f" ({len(families)} {'family' if len(families) == 1 else 'families'} of compilers: {listed(families)})"
