"""Base against head: what differs between two records of runs, and whether it is for the worse.

One observation is one change: a check that fails because a token differs stands with the token, and the verdict, which
follows from the others, is a change of its own only where no other accounts for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hloracle.core.errors import InputError
from hloracle.reports import text
from hloracle.reports.compare.change import SEVERITIES, Change, capital, name, names
from hloracle.reports.compare.checks import (
    CheckDiff,
    canary_changes,
    cell_changes,
    cells_gone,
    check_changes,
    compare_checks,
    together,
)
from hloracle.reports.compare.graphs import Graphs, compare_graphs, graph_changes
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
from hloracle.reports.record import VERDICTS, Record

SCHEMA: Final = "hloracle-diff/1"
# What a verdict follows from.
_GROUNDS = ("tokens", "cell", "check", "canary", "logits", "anchors")
_KINDS = (
    "verdict", "mutant", "model", "settings", "prompt", "truth", "tokens", "cell", "check", "canary", "logits",
    "anchors", "speed", "memory", "graph", "floors", "environment",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Something both records say of themselves."""

    name: str
    before: str
    after: str

    @property
    def same(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True)
class Stage:
    """A stage's seconds, None where a run did not go through it, and whether they were spent on reading the cache."""

    name: str
    seconds: tuple[float | None, float | None]
    reused: tuple[bool, bool]


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
    logits: tuple[ValueDiff, ...]
    anchors: tuple[ValueDiff, ...]
    floors: Floors
    graphs: Graphs
    speed: Speed
    memory: tuple[Memory, ...]
    settings: tuple[Pair, ...]
    environment: tuple[Pair, ...]
    stages: tuple[Stage, ...]

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
            return "Still wrong"
        if self.severity == "worse":
            return "Look twice"
        return "Safe" if self.severity else "Nothing changed"

    @property
    def sentence(self) -> str:
        """The changes in words that can follow the title and a colon, the worst first."""
        # "Safe" is not said of what nobody has looked at.
        unknown = "speed was not judged" if self.speed.reason else ""
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
        """How much stands in both records: tokens, checks, graphs."""
        steps = [
            min(before[1], after[1])
            for prompt in self.prompts
            for before, after in prompt.counts.values()
            if before is not None and after is not None
        ]
        ids = [{check["id"] for check in record["checks"]} for record in (self.base, self.head)]
        return {"token": sum(steps), "check": len(ids[0] & ids[1]), "graph": self.graphs.compared}

    @property
    def compared(self) -> str:
        """The counts in words."""
        return names([text.plural(n, noun) for noun, n in self.counts.items()])


# What there can be several of in one run.
_NOUNS: Final = {
    "prompt": "prompt", "truth": "prompt", "tokens": "prompt", "cell": "cell", "check": "check", "logits": "cell",
    "anchors": "part", "graph": "graph", "settings": "setting",
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
    before, after = (record["model"]["model_type"] for record in (base, head))
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
    speed, memory = compare_speed(base, head), compare_memory(base, head)
    checks = compare_checks(base, head)
    gone = cells_gone(base, head)
    changes = [
        *_identity(base, head),
        *cell_changes(base, head, gone),
        *prompt_changes(base, head, prompts, gone),
        *value_changes(base, head, logits, anchors, gone),
        *check_changes(base, head, checks),
        *canary_changes(base, head),
        *floor_changes(base, head, floors),
        *graph_changes(base, head, graphs),
        *speed_changes(base, head, speed, memory),
        *_environment_changes(base, head),
    ]
    changes = together(changes, gone)
    changes += _verdict(base, head, changes)
    order = list(SEVERITIES)
    changes.sort(key=lambda c: (order.index(c.severity), _KINDS.index(c.kind)))
    unjudged = [f"speed: {speed.reason}"] if speed.reason else []
    unjudged += [f"{name(m.title, 60)}: {m.reason}" for m in memory if m.reason]
    unjudged += [] if same_model else ["floors: another checkpoint has other noise"]
    return Comparison(
        base=base,
        head=head,
        changes=tuple(changes),
        caveats=tuple(_caveats(base, head)),
        unjudged=tuple(unjudged),
        prompts=prompts,
        checks=checks,
        logits=logits,
        anchors=anchors,
        floors=floors,
        graphs=graphs,
        speed=speed,
        memory=memory,
        settings=tuple(_settings(base, head)),
        environment=tuple(_environment(base, head)),
        stages=tuple(_stages(base, head)),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison for a script; what it was made from is in the two records."""
    found = comparison
    rows: dict[str, Any] = {
        key: _plain(getattr(found, key))
        for key in (field.name for field in dataclasses.fields(found))
        if key not in ("base", "head")
    }
    rows["speed"] |= {"peers": [_plain(p) | {"outcome": p.outcome, "change": p.change} for p in found.speed.peers]}
    counts = {severity: len(found.of(severity)) for severity in SEVERITIES}
    verdicts = {
        who: {"class": r["verdict"]["class"], "passed": r["passed"], "commit": r["environment"]["commit"]}
        for who, r in (("base", found.base), ("head", found.head))
    }
    return {"schema": SCHEMA, "title": found.title, "sentence": found.sentence, "counts": counts, **verdicts, **rows}


def _plain(node: Any) -> Any:
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {field.name: _plain(getattr(node, field.name)) for field in dataclasses.fields(node)}
    if isinstance(node, list | tuple):
        return [_plain(entry) for entry in node]
    if isinstance(node, Mapping):
        return {key: _plain(entry) for key, entry in node.items()}
    return node


# ---- what the two runs are


def _identity(base: Record, head: Record) -> Iterator[Change]:
    mutants = [record.get("mutant", "") for record in (base, head)]
    if mutants[0] != mutants[1]:
        who = "both runs carry" if all(mutants) else f"the {'base' if mutants[0] else 'head'} carries"
        before, after = (name(m) or "none" for m in mutants)
        yield Change("mutant", "worse", "mutant", f"{who} a deliberate fault", before, after)
    (a, b) = (record["model"] for record in (base, head))
    if a["digest"] != b["digest"]:
        yield Change(
            "model", "worse", "model", "the two runs are of different checkpoints",
            f"{name(a['name'], 40)} {name(a['digest'], 13)}", f"{name(b['name'], 40)} {name(b['digest'], 13)}",
        )  # fmt: skip
    changed = [
        key for key in dict.fromkeys([*a["config"], *b["config"]]) if a["config"].get(key) != b["config"].get(key)
    ]
    if changed:
        before, after = (name(str(r["config"].get(changed[0], "not there")), 40) for r in (a, b))
        yield Change(
            "model", "worse", "config", f"the model's configuration differs in {names(changed)}", before, after
        )
    for pair in _settings(base, head):
        if not pair.same:
            yield _setting(pair, base, head)


def _setting(pair: Pair, base: Record, head: Record) -> Change:
    before, after = base["settings"], head["settings"]
    severity, words = "worse", f"the runs differ in their {pair.name}"
    if pair.name == "tokens":
        fewer = after["tokens"] < before["tokens"]
        severity = "regression" if fewer else "changed"
        words = f"{'fewer' if fewer else 'more'} tokens are compared after each prompt"
    elif pair.name == "buckets":
        severity = "changed"  # a prompt that is no longer run for it is a change of its own
    elif pair.name == "threads":
        severity = "note"
    return Change("settings", severity, pair.name, words, pair.before, pair.after)


def _caveats(base: Record, head: Record) -> Iterator[str]:
    for who, record in (("Head", head), ("Base", base)):
        if "mutant" in record:
            yield (
                f"{who} carries a deliberate fault, the mutant {name(record['mutant'], 120)}: it shows whether the checks "
                "notice, and nothing about the model."
            )
    if base["model"]["digest"] != head["model"]["digest"]:
        yield (
            "The two runs are of different checkpoints. Their tokens, errors, floors and speed are not those of one model: "
            "of tokens only their agreement with the truth is compared."
        )
    words = {"device": "device", "precision": "precision", "capacity": "number of cache slots"}
    differing = [words[pair.name] for pair in _settings(base, head) if pair.name in words and not pair.same]
    if differing:
        yield f"The two runs differ in {' and '.join(differing)}, so they are not of the same graphs."
    if (x := base["settings"]["tokens"]) != (y := head["settings"]["tokens"]):
        yield f"After each prompt the base compared {x} tokens and the head {y}: the first {min(x, y)} are held together."
    if head["environment"]["date"][:16] < base["environment"]["date"][:16]:
        yield "The base's run is the younger one. Are the two records the right way round?"


def _settings(base: Record, head: Record) -> Iterator[Pair]:
    for key in base["settings"]:
        yield Pair(key, *(_shown(record["settings"][key]) for record in (base, head)))


def _shown(setting: Any) -> str:
    return ", ".join(map(str, setting)) if isinstance(setting, list) else name(str(setting), 60)


def _environment(base: Record, head: Record) -> Iterator[Pair]:
    both = [record["environment"] for record in (base, head)]
    for key in ("date", "commit", "hloracle", "python", "platform", "cpu", "cores"):
        yield Pair(key, *(name(str("not known" if e[key] is None else e[key]), 120) for e in both))
    yield Pair("memory", *(text.size(e["memory_bytes"]) for e in both))
    for package in sorted({*both[0]["packages"], *both[1]["packages"]}):
        yield Pair(name(package, 60), *(name(e["packages"].get(package, "not recorded"), 60) for e in both))


def _environment_changes(base: Record, head: Record) -> Iterator[Change]:
    for pair in _environment(base, head):
        if not pair.same and pair.name not in ("date", "commit"):
            yield Change("environment", "note", pair.name, f"{pair.name} is another", pair.before, pair.after)


def _stages(base: Record, head: Record) -> Iterator[Stage]:
    # A stage may come twice, such as a cell that is run again; the n-th is held to the n-th.
    both: list[dict[tuple[str, int], Record]] = []
    for record in (base, head):
        seen: dict[str, int] = {}
        both.append({})
        for timing in record["timings"]:
            nth = seen[timing["stage"]] = seen.get(timing["stage"], 0) + 1
            both[-1][timing["stage"], nth] = timing
    for key in dict.fromkeys([*both[1], *both[0]]):
        found = [timings.get(key) for timings in both]
        seconds = tuple(timing["seconds"] if timing else None for timing in found)
        yield Stage(
            key[0],
            (seconds[0], seconds[1]),
            (bool(found[0] and found[0]["reused"]), bool(found[1] and found[1]["reused"])),
        )


# ---- the verdict


def _verdict(base: Record, head: Record, changes: Sequence[Change]) -> list[Change]:
    """What a verdict follows from says it in detail; it is said by itself only where nothing else does."""
    a, b = base["verdict"], head["verdict"]
    before, after = VERDICTS[a["class"]], VERDICTS[b["class"]]
    shown = before.title, after.title
    if before.passed and not after.passed:
        severity, words = "regression", f"the head does not conform: {after.title}"
    elif after.passed and not before.passed:
        severity, words = "better", f"the head {'conforms' if b['class'] == 'conforms' else 'passes, by a near tie'}"
    elif a["class"] == b["class"]:
        return [] if after.passed else _moved(a, b)
    elif after.passed:
        # It passes, but what was equal is now equal only within the noise: the next change may tip it over.
        tied = b["class"] == "near-tie"
        severity, words = (
            ("worse", "tokens differ within the noise") if tied else ("better", "every token is equal again")
        )
    else:
        return [Change("verdict", "changed", "verdict", "another fault is found", *shown, name(b["explanation"], 240))]
    # From a check that no longer runs nothing follows.
    if any(c.severity == severity and c.kind in _GROUNDS and not (c.kind == "check" and c.lost) for c in changes):
        return []
    return [Change("verdict", severity, "verdict", words, *shown, name(b["explanation"], 240))]


def _moved(a: Record, b: Record) -> list[Change]:
    """The same fault in another place, or known with another certainty."""
    parts = ("anchor", "operation", "prompt", "step", "fusion_dependent")
    sure = [v["confidence"]["level"] if v["confidence"] else "not said" for v in (a, b)]
    differing = [part.replace("_", " ") for part in parts if a[part] != b[part]]
    if not differing and sure[0] == sure[1]:
        return []
    key = next((part for part in parts if a[part] != b[part]), "")
    was, now = (name(str(v[key] if v[key] is not None else "none"), 120) for v in (a, b)) if key else sure
    words = names([*differing, *(["confidence"] if sure[0] != sure[1] else [])], 6)
    return [Change("verdict", "changed", "verdict", f"the same fault is found with another {words}", was, now)]
