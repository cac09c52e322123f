"""Two suites' models: what conformed and does not any more, what came, and what is no longer judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hloracle.core.record import Family, Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, names
from hloracle.reports.compare.values import NEARER, ROOM
from hloracle.reports.facts import VERDICTS, badness, worst_share

# What is counted in a model's decode graph, in words.
COUNTS: Final[dict[Literal["op_kinds", "matmuls", "weights"], str]] = {
    "op_kinds": "op kinds",
    "matmuls": "matmuls",
    "weights": "weights",
}


@dataclass(frozen=True)
class FamilyDiff:
    """A model of a suite; of `rows` one is None where a record has not got it.

    severity, words: of the change that it is; empty where nothing changed.
    """

    model: str
    rows: tuple[Family | None, Family | None]
    severity: str
    words: str
    detail: str = ""


def compare_families(base: Record, head: Record) -> tuple[FamilyDiff, ...]:
    """Every model of either suite, in the head's order; none where one of the two is no suite."""
    before, after = ({row["model"]: row for row in record["families"]} for record in (base, head))
    if not before or not after:
        return ()
    return tuple(_family(model, before.get(model), after.get(model)) for model in dict.fromkeys([*after, *before]))


def _family(model: str, before: Family | None, after: Family | None) -> FamilyDiff:
    rows, who = (before, after), name(model, 60)
    if after is None:
        return FamilyDiff(model, rows, "regression", f"{who} is no longer judged")
    verdict = VERDICTS[after["verdict"]]
    why = name(after["explanation"], 240)
    if before is None:
        if after["passed"]:
            return FamilyDiff(model, rows, "better", f"{who} is new and {_conforms(after)}")
        return FamilyDiff(model, rows, "regression", f"{who} is new and {_fails(after)}", why)
    if before["passed"] != after["passed"]:
        if after["passed"]:
            return FamilyDiff(model, rows, "better", f"{who} {_conforms(after)}, and did not")
        return FamilyDiff(model, rows, "regression", f"{who} {_fails(after)} any more", why)
    if not after["passed"]:
        same = [before["verdict"] == after["verdict"], before["anchor"] == after["anchor"]]
        if all(same):
            return FamilyDiff(model, rows, "", "")
        faults = VERDICTS[before["verdict"]].kind == verdict.kind == "fail"
        words = "is wrong in another place" if same[0] else f"has another {'fault' if faults else 'verdict'}"
        return FamilyDiff(model, rows, "changed", f"{who} {words}", why)
    if before["verdict"] != after["verdict"]:
        if verdict.kind == "near":
            return FamilyDiff(model, rows, "worse", f"{who} passes by a near tie only")
        return FamilyDiff(model, rows, "better", f"{who} has no token any more that differs")
    return _passing(who, before, after)


def _fails(row: Family) -> str:
    return "gives no answer" if VERDICTS[row["verdict"]].kind == "error" else "does not conform"


def _conforms(row: Family) -> str:
    return "conforms" if row["verdict"] == "conforms" else "passes by a near tie"


def _passing(who: str, before: Family, after: Family) -> FamilyDiff:
    """Of a model that passed and passes, the first that holds: fewer mutants killed, nearer to a limit, other counts."""
    model, rows = after["model"], (before, after)
    fewer = after["tokens"]["total"] < before["tokens"]["total"]
    if fewer:
        was, now = (text.count(row["tokens"]["total"]) for row in (before, after))
        return FamilyDiff(model, rows, "regression", f"of {who} fewer tokens are compared", f"{now}, and {was} before")
    left = [row["mutants"]["total"] - row["mutants"]["killed"] for row in (before, after)]
    planted = [row["mutants"]["total"] for row in (before, after)]
    if all(planted) and left[1] > left[0]:
        words = f"{text.plural(left[1], 'mutant')} of {who} {'survives' if left[1] == 1 else 'survive'}"
        return FamilyDiff(model, rows, "regression", words, f"{text.count(left[0])} did before")
    shares = [worst_share(row) for row in (before, after)]
    if shares[0] is not None and shares[1] is None:
        return FamilyDiff(model, rows, "regression", f"no anchor of {who} is compared any more")
    if badness(shares[1]) > max(ROOM, NEARER * badness(shares[0])) and shares[0] is not None:
        return FamilyDiff(model, rows, "worse", f"the worst anchor of {who} has come twice as near to its limit")
    if all(planted) and planted[1] < planted[0]:
        words = f"of {who} fewer mutants are planted"
        return FamilyDiff(model, rows, "worse", words, f"{planted[1]}, and {planted[0]} before")
    other = [f"{noun} {_count(before[key])} → {_count(after[key])}" for key, noun in COUNTS.items()
             if before[key] != after[key]]  # fmt: skip
    if other:
        return FamilyDiff(model, rows, "changed", f"the decode graph of {who} is another", "; ".join(other))
    return FamilyDiff(model, rows, "", "")


def _count(number: int | None) -> str:
    return "not known" if number is None else text.count(number)


def family_changes(base: Record, head: Record, families: Sequence[FamilyDiff]) -> Iterator[Change]:
    """A change for each model that has one; one for all where only one of the two is a suite.

    The suite's own model is what both records are of: what changed of it stands in detail.
    """
    gone, new = ([row["model"] for row in record["families"][1:]] for record in (base, head))
    if not families:
        if gone:
            words = f"no other models are judged any more: {names(gone)}"
            yield Change("family", "regression", "families", words, f"{len(gone)} judged", "none judged")
        elif new:
            bad = [row["model"] for row in head["families"][1:] if not row["passed"]]
            words = f"other models are judged too: {names(new)}"
            if bad:
                words = f"other models are judged too, and {names(bad)} {'does' if len(bad) == 1 else 'do'} not pass"
            severity = "regression" if bad else "better"
            yield Change("family", severity, "families", words, "none judged", f"{len(new)} judged")
        return
    own = head["model"]["name"]
    for diff in families:
        if diff.words and diff.model != own:
            before, after = (_shown(row) for row in diff.rows)
            yield Change("family", diff.severity, diff.model, diff.words, before, after, diff.detail)


def _shown(row: Family | None) -> str:
    if row is None:
        return "not there"
    at = f" at {name(row['anchor'], 80)}" if row["anchor"] else ""
    return VERDICTS[row["verdict"]].title + at
