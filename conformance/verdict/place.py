"""Where the fault is, and how sure that is: from what was taken apart, else from the invariant that broke."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hloracle.conformance.checks.check import DONATED, LEFT_OPEN, STATED, Check
from hloracle.conformance.matrix import ORACLE, Configuration, Matrix, graph_of
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.verdict.localization import Localization
from hloracle.conformance.verdict.verdict import Verdict
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.reference.model.anchors import split

# How a check without a run knows of a place.
READ = "is read from the graph as it is written"
SHOWN_BY = {
    "compiles": "is where the compiler stops",
    "probes": "differs from the oracle's on equal inputs",
    "interpreter": "is what the graph means",
}


def place(
    matrix: Matrix, verdict: Verdict, checks: Sequence[Check], found: Localization | None, outcomes: Sequence[Outcome]
) -> Verdict:  # fmt: skip
    """The verdict with its place and its confidence; a place may also change the class, where it shows whose fault it is."""
    if verdict.passed:
        return verdict
    placed = _placed(verdict, checks, found, outcomes)
    return placed if len(matrix.families) > 1 else _alone(matrix, placed, checks, found)


def _alone(matrix: Matrix, verdict: Verdict, checks: Sequence[Check], found: Localization | None) -> Verdict:
    """One family of compilers accuses no reference, unless the third witness bears it out: its own fault looks the same.

    Nor is it certain of a graph, where the third witness has no word.
    """
    word = found.interpreted if found else None
    if word and word.off is None and verdict.class_ == "emitter-fault" and verdict.sure:
        level, because = verdict.sure
        told = [*because, "no other family of compilers ran the graph, so the fault may be the compiler's"]
        return dataclasses.replace(verdict, sure=("likely" if level == "certain" else level, told))
    by_values = any(c.bad and c.configuration and c.configuration.of_oracle for c in checks)
    if verdict.class_ != "reference-fault" or not by_values or (word and word.wrong):
        return verdict
    names = matrix.named(b.name for b in matrix.backends)
    silent = f" ({word.why_not})" if word else ""
    explanation = (
        f"The oracle's graph is wrong on {names}. No other family of compilers ran it, and StableHLO's interpreter has no word"
        f"{silent}, so nobody tells whose fault that is."
    )
    return dataclasses.replace(verdict, class_="harness-error", explanation=explanation)


def _placed(
    verdict: Verdict, checks: Sequence[Check], found: Localization | None, outcomes: Sequence[Outcome]
) -> Verdict:  # fmt: skip
    bad = [c for c in checks if c.bad]
    static = next((c for c in bad if c.anchor), None) or next((c for c in bad if c.operation), None)
    # A graph whose donations are not its ABI's is misused by whoever trusts the ABI.
    if found is None or found.anchor is None or (found.misused and any(c.anchor and c.kind not in STATED for c in bad)):
        return _without_localization(verdict, bad, static, outcomes)
    broken = _of_contract(bad)
    wrong = {c.configuration for c in bad if c.configuration}
    operation = None
    if found.operation:
        at = f" at line {found.operation['line']}" if found.operation["line"] else ""
        named = f"{found.operation['name']} {found.operation['value']}".strip()
        operation = f"{named}{at} of {found.operation['graph']}"
    level, because = confidence(found, outcomes, wrong)
    verdict = dataclasses.replace(
        verdict,
        anchor=found.anchor,
        operation=operation,
        sure=(level, [*broken, *because]),
        fusion_dependent=found.fusion_dependent,
    )
    if broken:
        return verdict
    judged = [c for c in checks if c.source != ORACLE]
    # On such a graph compilers need not agree.
    differs = any(c.bad and c.kind in (*LEFT_OPEN, *DONATED) for c in judged)
    if found.interpreted is not None and not differs and (decided := _by_interpreter(verdict, found)):
        return decided
    if found.misused:
        explanation = (
            "The graphs are right when they are given right inputs, and the session gives them something else."
        )
        return dataclasses.replace(verdict, class_="harness-error", explanation=explanation)
    allowed = any(c.kind == "custom-call" and c.status == "passed" for c in judged)
    if allowed and verdict.class_ == "emitter-fault" and (found.operation or {}).get("name") == "stablehlo.custom_call":
        explanation = "A custom_call gives wrong values: what it calls is wrong, or what the graph asks of it."
        return dataclasses.replace(verdict, explanation=explanation)
    if found.fusion_dependent and verdict.class_ != "device-fault" and not differs:
        on = found.plan.suspect.backend
        explanation = (
            f"On {on} the graph is wrong as compiled, and right once its intermediate values are made outputs."
        )
        return dataclasses.replace(verdict, class_="compiler-fault", explanation=explanation)
    return verdict


def _by_interpreter(verdict: Verdict, found: Localization) -> Verdict | None:
    """What the third witness changes: compilers that are wrong together do not convict a graph, nor does one acquit it.

    Of a class that does not come from values, it says nothing.
    """
    word, suspect = found.interpreted, found.plan.suspect
    assert word
    if word.right and verdict.class_ in ("emitter-fault", "reference-fault"):
        explanation = (
            f"StableHLO's interpreter computes {word.anchor} right from {graph_of(suspect.source)}, and {suspect.backend} does"
            " not, from the same inputs; no compiler that ran the graph has it right."
        )
        return dataclasses.replace(verdict, class_="compiler-fault", explanation=explanation)
    if word.wrong and verdict.class_ == "compiler-fault":
        class_ = "reference-fault" if suspect.of_oracle else "emitter-fault"
        right = f". That it is right on {found.plan.trusted.backend} acquits no graph" if found.plan.trusted else ""
        explanation = (
            f"As StableHLO's interpreter evaluates it, {graph_of(suspect.source)} is wrong at {word.anchor}, as on"
            f" {suspect.backend}{right}."
        )
        return dataclasses.replace(verdict, class_=class_, explanation=explanation)
    return None


def _without_localization(
    verdict: Verdict, bad: Sequence[Check], static: Check | None, outcomes: Sequence[Outcome]
) -> Verdict:  # fmt: skip
    if broken := _of_contract(bad):
        return dataclasses.replace(verdict, sure=("certain", broken))
    if static is None:
        values = any(c.failed and c.about == "answers" and c.kind != "anchors" for c in bad)
        anchor, words = (narrowed(outcomes) if values else None) or (None, "no place was found")
        return dataclasses.replace(verdict, anchor=anchor, sure=("possible", [words]))
    # Another check may know more of the same place.
    named = next((c for c in (static, *bad) if c.operation and c.anchor == static.anchor), static)
    because = [f"{c.id} {SHOWN_BY.get(c.kind, READ)}: {c.detail}" for c in dict.fromkeys((static, named))]
    operation = named.operation or None
    level = "certain"
    if operation and named.candidate:
        level = "likely"
        because.append("no experiment shows that it is this operation and no other one")
    return dataclasses.replace(verdict, anchor=static.anchor or None, operation=operation, sure=(level, because))


def _of_contract(bad: Sequence[Check]) -> list[str]:
    """What a graph does that its ABI file does not say of it: seen without a reference."""
    return [f"{c.id}: {c.detail.partition('; ')[0]}" for c in bad if c.about == "contract" and c.failed]


def narrowed(outcomes: Sequence[Outcome]) -> tuple[str | None, str] | None:
    """How far the caches alone narrow the place: the first wrong one of a layer, and what that says; None if nothing does.

    For graphs that name no anchors, or that could not be taken apart.
    """
    judged = [o for o in outcomes if not o.configuration.of_oracle]
    slots = [s for o in judged for _, s in o.slots]
    wrong = min((at for s in slots if (at := s.first_wrong())), default=None)
    if wrong:
        slot, _ = wrong
        here = [a for s in slots for a, (_, _, first) in s.worst.items() if first == slot]
        layer, part = min((split(a)[0] or 0, split(a)[1]) for a in here)
        anchor = f"{part}.{layer}"
        before = (
            f"between the attention of layer {layer - 1} and" if layer else "in the embedding, or in what comes before"
        )
        return anchor, (
            f"{anchor} is the first cache that is wrong, from slot {slot} on"
            f"{', the layers before it are right there' if layer else ''}: the fault is {before} what layer {layer} writes"
        )
    compared = any(r.errors or not r.slots for o in judged for r in o.prompts.values())
    if slots and compared and not any(s.stayed for s in slots):
        return None, "both caches are right in every layer and slot: the fault comes after what the last layer writes"
    return None


def confidence(found: Localization, outcomes: Sequence[Outcome], wrong: set[Configuration]) -> tuple[str, list[str]]:
    """How sure the verdict is, and the independent observations that it rests on.

    `certain`: the run and the anchor by itself agree on the place, and an experiment has shown the operation: another compiler
    computes it otherwise, or a change of it alone, and of no other one, makes the anchor right. Where no operation is named, the
    reproducer has to show the fault. `likely`: the place is known from one of them. `possible`: no place was found.
    """
    because = []
    suspect = found.plan.suspect
    own = {
        o.configuration: o for o in outcomes if o.configuration.source == suspect.source and o.configuration in wrong
    }
    dead = suspect in own and own[suspect].status == "failed"
    alike = [one.backend for one, o in own.items() if (o.status == "failed") == dead]
    if len(set(alike)) > 1:
        because.append(f"{graph_of(suspect.source)} is wrong on {' and '.join(sorted(set(alike)))} alike")
    if found.plan.trusted:
        because.append(f"{found.plan.trusted.id} is right: {found.plan.reason}")
    if found.anchor and found.anchor == found.first_local:
        because.append(f"{found.anchor} is wrong by itself, from right inputs")
    if found.anchor and found.anchor == found.first_accumulated:
        because.append(f"{found.anchor} is the first wrong value in the whole run")
    peer = [e["peer"] for e in found.errors if e["anchor"] == found.anchor and e["peer"] is not None]
    if peer and max(peer) <= ANCHOR_FLOORS:
        because.append(f"the trusted side computes {found.anchor} within {max(peer):.2g} floors")
    if (word := found.interpreted) is not None:
        said = (
            f"gives no answer on it: {word.why_not}" if word.off is None else f"computes it {word.off:.2g} floors off"
        )
        because.append(f"StableHLO's interpreter, asked of {word.anchor}, {said}")
    if found.operation:
        because.append(f"inside it, {found.operation['name']}: {found.operation['why']}")
    repair = found.repair
    if repair is not None and repair.conforms is not None:
        so = "passes" if repair.conforms else f"does not pass ({repair.detail})"
        because.append(
            f"with {'that' if repair.count == 1 else f'{repair.count} lines'} changed the whole configuration {so}"
        )
    if found.reproducer and found.reproducer.shown:
        because.append(f"the reproducer shows it{' outside of hloracle' if found.reproducer.outside else ''}")
    places = {found.first_local, found.first_accumulated} - {None}
    agreed = found.first_local is not None and len(places) == 1
    if agreed and (_experiment_shows(found) if found.operation else found.reproducer and found.reproducer.shown):
        return "certain", because
    return ("likely" if found.anchor else "possible"), because or ["no place was found"]


def _experiment_shows(found: Localization) -> bool:
    """Whether it is this operation, and no other one."""
    if found.by == "repair":
        return found.sole and (found.repair is None or found.repair.conforms is not False)
    return found.by == "witness"
