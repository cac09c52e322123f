"""Base against head: what differs between two records of runs, and whether it is for the worse.

One observation is one change: a check that fails because a token differs stands with the token, and the verdict, which
follows from the others, is a change of its own only where no other accounts for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from hloracle.core.errors import InputError
from hloracle.core.record import Record, Verdict
from hloracle.reports import text
from hloracle.reports.compare.change import SEVERITIES, Change, capital, name, names
from hloracle.reports.compare.checks import (
    CheckDiff,
    canary_changes,
    check_changes,
    compare_checks,
    configuration_changes,
    configurations_gone,
    together,
)
from hloracle.reports.compare.families import FamilyDiff, compare_families, family_changes
from hloracle.reports.compare.graphs import Graphs, compare_graphs, graph_changes
from hloracle.reports.compare.programs import ProgramDiff, compare_programs, program_changes
from hloracle.reports.compare.runs import (
    Pair,
    caveats,
    environment_changes,
    environment_of,
    identity_changes,
    left_out,
    left_out_changes,
    settings_of,
)
from hloracle.reports.compare.speed import Memory, Speed, compare_memory, compare_speed, speed_changes
from hloracle.reports.compare.tokens import PromptDiff, compare_prompts, prompt_changes
from hloracle.reports.compare.values import (
    Floors,
    ValueDiff,
    compare_anchors,
    compare_floors,
    compare_logits,
    floor_changes,
    value_changes,
)
from hloracle.reports.facts import VERDICTS

SCHEMA: Final = "hloracle-diff/3"
PLACE: Final[tuple[Literal["anchor", "operation", "prompt", "step", "fusion_dependent"], ...]] = (
    "anchor", "operation", "prompt", "step", "fusion_dependent",
)  # fmt: skip
# A title of a comparison -> the shape and the colour of its mark.
TITLES: Final = {
    "Not safe": ("fail", "fail"),
    "Still wrong": ("fail", "fail"),
    "Not judged": ("error", "fail"),
    "Look twice": ("error", "near"),
    "Safe": ("pass", "pass"),
    "Nothing changed": ("pass", "pass"),
}
# What a verdict follows from.
_GROUNDS = ("tokens", "configuration", "check", "canary", "logits", "anchors", "family")
_KINDS = (
    "verdict", "mutant", "model", "family", "settings", "prompt", "reference", "tokens", "configuration", "compared", "check", "canary",
    "logits", "anchors", "speed", "memory", "program", "graph", "floors", "environment",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Args:
      base, head: the records.
      changes: in order of importance.
      caveats: why the two are not, or not wholly, comparable; what stands below is what can be compared nevertheless.
      unjudged: what was not judged, and why.
    """

    base: Record
    head: Record
    changes: tuple[Change, ...]
    caveats: tuple[str, ...]
    unjudged: tuple[str, ...]
    prompts: tuple[PromptDiff, ...]
    checks: tuple[CheckDiff, ...]
    families: tuple[FamilyDiff, ...]
    logits: tuple[ValueDiff, ...]
    anchors: tuple[ValueDiff, ...]
    floors: Floors
    graphs: Graphs
    speed: Speed
    memory: tuple[Memory, ...]
    programs: tuple[ProgramDiff, ...]
    settings: tuple[Pair, ...]
    environment: tuple[Pair, ...]

    def of(self, *severities: str) -> tuple[Change, ...]:
        """The changes of these severities, in their order."""
        return tuple(change for change in self.changes if change.severity in severities)

    @property
    def severity(self) -> str:
        """That of the worst change; empty where nothing but the environment differs."""
        return next((c.severity for c in self.changes if c.severity != "note"), "")

    @property
    def title(self) -> str:
        """Whether the change is safe, in two words."""
        if self.severity == "regression":
            return "Not safe"
        if not self.head["passed"]:
            return "Not judged" if VERDICTS[self.head["verdict"]["class"]].kind == "error" else "Still wrong"
        if self.severity == "worse":
            return "Look twice"
        return "Safe" if self.severity else "Nothing changed"

    @property
    def sentence(self) -> str:
        """The changes in words that can follow the title and a colon, the worst first."""
        # "Safe" is not said of what nobody has looked at.
        unknown = "speed was not judged" if self.speed.reason else ""
        if self.speed.blurred:
            unknown = f"of speed, {self.speed.blurred}"
        if not self.severity:
            only = "only the environment differs" if self.changes else ""
            return "; ".join(filter(None, [f"{self.compared} are the same in both runs", only, unknown]))
        bad = [
            _listed(self.of("regression"), "regression", "regressions"),
            _listed(self.of("worse"), "thing got worse", "things got worse"),
        ]
        better, changed = self.of("better"), self.of("changed")
        if any(bad):
            # Whoever has to mend something reads no further.
            rest = [
                f"{text.plural(len(better), 'thing')} got better" if better else "",
                text.plural(len(changed), "other change") if changed else "",
            ]
            return ". ".join(capital(part) for part in [*bad, *rest] if part)
        gained = _listed(better, "thing got better", "things got better")
        return "; ".join(filter(None, ["nothing got worse", gained, _listed(changed), unknown]))

    @property
    def counts(self) -> dict[str, int]:
        """How much was held together: tokens step by step, checks, and the texts of graphs that are equal."""
        steps = [
            min(before[1], after[1])
            for prompt in self.prompts
            for before, after in prompt.counts.values()
            if prompt.state == "same" and before is not None and after is not None
        ]
        ids = [{check["id"] for check in record["checks"]} for record in (self.base, self.head)]
        return {"token": sum(steps), "check": len(ids[0] & ids[1]), "graph": self.graphs.equal_texts}

    @property
    def compared(self) -> str:
        """The counts in words."""
        return (
            names([text.plural(n, noun) for noun, n in self.counts.items() if n])
            or "no tokens, no checks and no graphs"
        )


# What there can be several of in one run.
_NOUNS: Final = {
    "prompt": "prompt", "reference": "prompt", "tokens": "prompt", "configuration": "configuration", "compared": "comparison",
    "check": "check", "logits": "configuration", "anchors": "part", "family": "model", "graph": "graph", "settings": "setting",
    "program": "configuration",
}  # fmt: skip


def _listed(changes: Sequence[Change], one: str = "", many: str = "", most: int = 4) -> str:
    """How many there are, and of each kind the first in words."""
    kinds: dict[str, list[Change]] = {}
    for change in changes:
        kinds.setdefault(change.kind, []).append(change)
    words = []
    for kind, alike in list(kinds.items())[:most]:
        noun = _NOUNS.get(kind, "difference")
        more = f", and {text.plural(len(alike) - 1, f'more {noun}')}" if len(alike) > 1 else ""
        words.append(alike[0].words + more)
    if (rest := sum(len(alike) for alike in list(kinds.values())[most:])) > 0:
        words.append(f"and {text.count(rest)} more")
    if not words or not one:
        return "; ".join(words)
    return f"{text.count(len(changes))} {one if len(changes) == 1 else many}: {'; '.join(words)}"


def compare(base: Record, head: Record, where: object = "HEAD") -> Comparison:
    """Compare two valid records.

    Raises InputError, which names `where`, for records of different architectures: no graph, no anchor and no token of
    the one has anything to do with the other's.
    """
    before, after = (record["model"]["architecture"] for record in (base, head))
    if before != after:
        raise InputError(
            f"is of a {name(after, 40)!r} model and the base's record of a {name(before, 40)!r} one",
            where,
            "compare two runs of one architecture",
        )
    same_model = base["model"]["digest"] == head["model"]["digest"]
    prompts = compare_prompts(base, head)
    logits, anchors = compare_logits(base, head), compare_anchors(base, head)
    floors = compare_floors(base, head) if same_model else Floors(0, (), ())
    graphs = compare_graphs(base, head)
    speed, memory = compare_speed(base, head), tuple(compare_memory(base, head))
    checks = tuple(compare_checks(base, head))
    families = compare_families(base, head)
    programs = compare_programs(base, head)
    gone = configurations_gone(base, head)
    changes = [
        *identity_changes(base, head),
        *configuration_changes(base, head, gone),
        *prompt_changes(base, head, prompts, gone),
        *value_changes(base, head, logits, anchors, gone),
        *left_out_changes(base, head),
        *check_changes(base, head, checks),
        *family_changes(base, head, families),
        *canary_changes(base, head),
        *floor_changes(base, head, floors),
        *graph_changes(base, head, graphs),
        *speed_changes(base, head, speed, memory),
        *program_changes(programs),
        *environment_changes(base, head),
    ]
    changes = together(changes, gone)
    changes += _verdict(base, head, changes)
    order = list(SEVERITIES)
    changes.sort(key=lambda c: (order.index(c.severity), _KINDS.index(c.kind)))
    unjudged = [name(phrase, 240) for phrase in left_out(base, head)]
    unjudged += [f"speed: {why}" for why in (speed.reason or speed.blurred,) if why]
    unjudged += [f"{name(m.title, 60)}: {m.reason}" for m in memory if m.reason]
    unjudged += [] if same_model else ["floors: another checkpoint has other noise"]
    return Comparison(
        base=base,
        head=head,
        changes=tuple(changes),
        caveats=tuple(caveats(base, head)),
        unjudged=tuple(unjudged),
        prompts=prompts,
        checks=checks,
        families=families,
        logits=logits,
        anchors=anchors,
        floors=floors,
        graphs=graphs,
        speed=speed,
        memory=memory,
        programs=programs,
        settings=tuple(settings_of(base, head)),
        environment=tuple(environment_of(base, head)),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison for a script; what it was made from is in the two records."""
    found = comparison
    rows = dataclasses.asdict(dataclasses.replace(found, base=cast(Record, {}), head=cast(Record, {})))
    for peer, row in zip(found.speed.peers, rows["speed"]["peers"], strict=True):
        row |= {"outcome": peer.outcome, "change": peer.change}
    counts = {severity: len(found.of(severity)) for severity in SEVERITIES}
    verdicts = {
        who: {"class": r["verdict"]["class"], "passed": r["passed"], "commit": r["environment"]["commit"]}
        for who, r in (("base", found.base), ("head", found.head))
    }
    return {"schema": SCHEMA, "title": found.title, "sentence": found.sentence, "counts": counts, **rows, **verdicts}


# ---- the verdict


def _verdict(base: Record, head: Record, changes: Sequence[Change]) -> list[Change]:
    """What a verdict follows from says it in detail; it is said by itself only where nothing else does."""
    a, b = base["verdict"], head["verdict"]
    before, after = VERDICTS[a["class"]], VERDICTS[b["class"]]
    shown = before.title, after.title
    if before.passed and not after.passed:
        known = "nothing is known of the head" if after.kind == "error" else "the head does not conform"
        severity, words = "regression", f"{known}: {after.title}"
    elif after.passed and not before.passed:
        severity, words = "better", f"the head {'conforms' if b['class'] == 'conforms' else 'passes, by a near tie'}"
    elif a["class"] == b["class"]:
        return [] if after.passed else _moved(a, b)
    elif after.passed:
        # It passes, but what was equal is now equal only within the noise: the next change may tip it over.
        tied = b["class"] == "near-tie"
        severity, words = (
            ("worse", "tokens differ within the noise") if tied else ("better", "no token differs any more")
        )
    else:
        faults = before.kind == after.kind == "fail"
        words = "another fault is found" if faults else "the verdict is another"
        return [Change("verdict", "changed", "verdict", words, *shown, name(b["explanation"], 240))]
    # Between two verdicts that pass only tokens decide.
    grounds = ("tokens", "family") if before.passed and after.passed else _GROUNDS
    if any(c.severity == severity and c.kind in grounds and _tells(c) for c in changes):
        return []
    return [Change("verdict", severity, "verdict", words, *shown, name(b["explanation"], 240))]


def _tells(change: Change) -> bool:
    """Whether a verdict can follow from a change: not from a check that no longer runs, or has only begun to."""
    if change.kind != "check":
        return True
    return change.status[0 if change.severity == "better" else 1] in ("failed", "error")


def _moved(a: Verdict, b: Verdict) -> list[Change]:
    """The same fault in another place, or known with another certainty."""
    sure = [v["confidence"]["level"] if v["confidence"] else "not said" for v in (a, b)]
    pairs = {part: (a[part], b[part]) for part in PLACE if a[part] != b[part]}
    differing = [part.replace("_", " ") for part in pairs]
    if not differing and sure[0] == sure[1]:
        return []
    first = next(iter(pairs.values()), None)
    was, now = (name(str("none" if value is None else value), 120) for value in first) if first else sure
    words = names([*differing, *(["confidence"] if sure[0] != sure[1] else [])], 6)
    return [Change("verdict", "changed", "verdict", f"the same fault is found with another {words}", was, now)]
