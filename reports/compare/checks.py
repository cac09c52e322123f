"""Two records' configurations and checks: what gave a result, or ran, and no longer does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hloracle.core.record import Configuration, Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name
from hloracle.reports.facts import checked


@dataclass(frozen=True)
class CheckDiff:
    """A check that is not the same in both records; None where a record has not got it.

    configuration: the one that it is about; empty where it is about none.
    """

    id: str
    kind: str
    configuration: str
    title: str
    status: tuple[str | None, str | None]
    figure: tuple[str, str]
    limit: tuple[str, str]

    @property
    def quiet(self) -> bool:
        """It passed, and passes, by another figure."""
        return self.status == ("passed", "passed") and not self.another_limit

    @property
    def another_limit(self) -> bool:
        """Where the canary is put follows from the graph, and is expected nowhere else."""
        return self.limit[0] != self.limit[1] and self.kind != "canary"


def configurations_gone(base: Record, head: Record) -> dict[str, str]:
    """Configurations that gave the base a result and give the head none -> why."""
    there = {configuration["id"]: configuration for configuration in head["configurations"]}
    gone = {}
    for configuration in base["configurations"]:
        if configuration["status"] == "failed":
            continue
        if configuration["id"] not in there:
            gone[configuration["id"]] = ""
        elif there[configuration["id"]]["status"] == "failed":
            gone[configuration["id"]] = name(there[configuration["id"]]["message"], 240) or "no reason is given"
    return gone


def configuration_changes(base: Record, head: Record, gone: Mapping[str, str]) -> Iterator[Change]:
    """Configurations that came, went, failed or work again."""
    before, after = (
        {configuration["id"]: configuration for configuration in record["configurations"]} for record in (base, head)
    )
    for id, why in gone.items():
        failed = id in after
        words = f"{name(id)} {'gave no result' if failed else 'is no longer run'}"
        shown = "no result" if failed else "not there"
        yield Change("configuration", "regression", id, words, _agreed(before[id]), shown, why)
    for id, configuration in after.items():
        if id not in before:
            bad = configuration["status"] == "failed"
            words = f"{name(id)} is new{' and gave no result' if bad else ''}"
            shown = "no result" if bad else _agreed(configuration)
            yield Change("configuration", "regression" if bad else "changed", id, words, "not there", shown)
        elif before[id]["status"] == "failed" != configuration["status"]:
            yield Change(
                "configuration", "better", id, f"{name(id)} gives a result again", "no result", _agreed(configuration)
            )


def _agreed(configuration: Configuration) -> str:
    return f"{text.count(configuration['agreed'])} of {text.count(configuration['total'])} tokens equal"


def compare_checks(base: Record, head: Record) -> Iterator[CheckDiff]:
    """Those that are not the same in both records, in the head's order."""
    before, after = ({check["id"]: check for check in record["checks"]} for record in (base, head))
    for id in dict.fromkeys([*after, *before]):
        a, b = before.get(id), after.get(id)
        record, check = (head, after[id]) if id in after else (base, before[id])
        status = a["status"] if a else None, b["status"] if b else None
        figure = a["figure"] if a else "", b["figure"] if b else ""
        limit = a["limit"] if a else "", b["limit"] if b else ""
        if any(old != new for old, new in (status, figure, limit)):
            yield CheckDiff(id, check["kind"], checked(record, check), check["title"], status, figure, limit)


# Status before and after, None where the check is not there -> severity, and what happened to it. What is no longer
# checked is worse than what fails: nobody is told. A gap that was named and no longer is, is one more of those.
_TRANSITIONS: Final[dict[tuple[str | None, str | None], tuple[str, str]]] = {
    ("passed", "failed"): ("regression", "fails"),
    ("passed", "error"): ("regression", "no longer runs: it ends with an error"),
    ("passed", "skipped"): ("regression", "no longer runs: it is skipped"),
    ("passed", None): ("regression", "is gone"),
    ("failed", None): ("regression", "is gone; it failed"),
    ("error", None): ("regression", "is gone; it ended with an error"),
    ("skipped", None): ("regression", "is gone; it was skipped"),
    ("skipped", "failed"): ("regression", "fails; it was skipped"),
    ("skipped", "error"): ("regression", "ends with an error; it was skipped"),
    (None, "failed"): ("regression", "is new and fails"),
    (None, "error"): ("regression", "is new and ends with an error"),
    ("failed", "skipped"): ("worse", "is skipped; it failed"),
    ("error", "skipped"): ("worse", "is skipped; it ended with an error"),
    ("failed", "error"): ("changed", "ends with an error; it failed"),
    ("error", "failed"): ("changed", "fails; it ended with an error"),
    (None, "skipped"): ("changed", "is new and skipped"),
    (None, "passed"): ("better", "is new and passes"),
    ("failed", "passed"): ("better", "passes again"),
    ("error", "passed"): ("better", "passes again"),
    ("skipped", "passed"): ("better", "runs and passes; it was skipped"),
}


def check_changes(base: Record, head: Record, checks: Sequence[CheckDiff]) -> Iterator[Change]:
    """A change for each check whose status is another, or its limit."""
    details = {check["id"]: check["detail"] for check in [*base["checks"], *head["checks"]]}
    for diff in checks:
        if diff.status in _TRANSITIONS:
            severity, words = _TRANSITIONS[diff.status]
            was, now = (
                "not there" if status is None else f"{status}{f': {name(figure, 120)}' if figure else ''}"
                for status, figure in zip(diff.status, diff.figure, strict=True)
            )
            detail = name(diff.title, 120)
            if diff.status[1] not in (None, "passed") and details[diff.id]:
                detail += f": {name(details[diff.id], 200)}"
            words, where = f"the check “{name(diff.id)}” {words}", (diff.configuration,) if diff.configuration else ()
            yield Change(
                "check", severity, diff.id, words, was, now, detail,
                configurations=where, status=diff.status, asks=diff.kind,
            )  # fmt: skip
        elif diff.status[1] in ("failed", "error") and diff.figure[0] != diff.figure[1]:
            words = f"the check “{name(diff.id)}” fails by another figure"
            was, now = (name(figure, 120) for figure in diff.figure)
            yield Change("check", "changed", diff.id, words, was, now, name(diff.title, 120), status=diff.status)
        elif diff.another_limit:
            words = f"the check “{name(diff.id)}” has another limit"
            was, now = (name(limit, 120) or "none" for limit in diff.limit)
            yield Change("check", "changed", diff.id, words, was, now, name(diff.title, 120))


def canary_changes(base: Record, head: Record) -> Iterator[Change]:
    """Whether it was caught."""
    caught = [None if record["canary"] is None else record["canary"]["caught"] for record in (base, head)]
    words = {None: "no canary was run", True: "the canary was caught", False: "the canary was missed"}
    if caught[0] != caught[1]:
        # A run that is wrong is its own canary, so that there is none beside it.
        missing = caught[0] and (caught[1] is False or head["passed"])
        severity = "better" if caught[1] else "regression" if missing else "changed"
        was, now = ("not run" if c is None else "caught" if c else "missed" for c in caught)
        lost = "all" if caught[1] is None else ""
        yield Change("canary", severity, "canary", words[caught[1]], was, now, lost=lost)


# ---- one observation is one change


# The kind of a check -> the kind of change that says the same in detail.
_SAME_AS = {
    "tokens": "tokens",
    "logits": "logits",
    "prefill-logits": "logits",
    "decode-logits": "logits",
    "anchors": "anchors",
    "canary": "canary",
}


def together(changes: Sequence[Change], gone: Mapping[str, str]) -> list[Change]:
    """The changes, each check that only repeats what another change says put to that one."""
    told = [_told(change, changes, gone) if change.kind == "check" else None for change in changes]
    also = [tuple(c.words for c, at in zip(changes, told, strict=True) if at == i) for i in range(len(changes))]
    return [dataclasses.replace(c, also=also[i]) for i, c in enumerate(changes) if told[i] is None]


def _told(check: Change, changes: Sequence[Change], gone: Mapping[str, str]) -> int | None:
    """The index of the change that says the same as a check's."""
    about = set(check.configurations)
    for i, change in enumerate(changes):
        lost = change.kind == "configuration" and change.subject in gone and change.subject in about
        if lost and check.severity == "regression":
            return i
    for i, change in enumerate(changes):
        if change.kind != _SAME_AS.get(check.asks) or change.severity != check.severity:
            continue
        # One that fails says what its figures say. One that no longer runs says that there are none: where some are
        # left it is an observation of its own, for they are no longer judged.
        if check.status[1] in (None, "skipped", "error"):
            if change.lost == "all" and (about & set(change.configurations) or change.kind == "canary"):
                return i
        elif not change.lost and about <= set(change.configurations):
            return i
    return None
