"""What two runs are of, and how they were made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from hloracle.core.record import Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, names
from hloracle.reports.facts import VERDICTS

OF_ENVIRONMENT: Final[tuple[Literal["date", "commit", "hloracle", "python", "platform", "cpu", "cores"], ...]] = (
    "date", "commit", "hloracle", "python", "platform", "cpu", "cores",
)  # fmt: skip
MOST = 8  # that were not compared and are told one by one


@dataclass(frozen=True)
class Pair:
    """Something both records say of themselves."""

    name: str
    before: str
    after: str

    @property
    def same(self) -> bool:
        """Whether both read the same, as they are shown: cut to a line."""
        return self.before == self.after


def identity_changes(base: Record, head: Record) -> Iterator[Change]:
    """What keeps the runs from being of the same thing: a planted fault, another checkpoint, config or setting."""
    mutants = [record["mutant"] for record in (base, head)]
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
    for pair in settings_of(base, head):
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
    elif pair.name in ("threads", "timeout"):
        severity = "note"
    return Change("settings", severity, pair.name, words, pair.before, pair.after)


def caveats(base: Record, head: Record) -> Iterator[str]:
    """Why the two runs are not wholly comparable, each reason as a sentence; nothing where they are."""
    for who, record in (("Head", head), ("Base", base)):
        if record["mutant"]:
            yield (
                f"{who} carries a deliberate fault, the mutant {name(record['mutant'], 120)}: it shows whether the checks "
                "notice, and nothing about the model."
            )
    if base["model"]["digest"] != head["model"]["digest"]:
        yield (
            "The two runs are of different checkpoints. Their tokens, errors, floors and speed are not those of one model: "
            "of tokens only their agreement with the truth is compared."
        )
    words = {
        "device": "device",
        "precision": "precision",
        "compute": "type that is computed in",
        "kv": "type that keys and values are kept in",
        "capacity": "number of cache slots",
    }
    differing = [words[pair.name] for pair in settings_of(base, head) if pair.name in words and not pair.same]
    if differing:
        yield f"The two runs differ in {' and '.join(differing)}, so they are not of the same graphs."
    if (x := base["settings"]["tokens"]) != (y := head["settings"]["tokens"]):
        yield f"After each prompt the base compared {x} tokens and the head {y}: the first {min(x, y)} are held together."
    dates = [text.moment(record["environment"]["date"]) for record in (base, head)]
    if dates[0] and dates[1] and dates[1] < dates[0]:
        yield "The base's run is the younger one. Are the two records the right way round?"


def left_out_changes(base: Record, head: Record) -> Iterator[Change]:
    """What one of the two runs says that it could not compare, and the other does not."""
    for phrase in _only(head, base):
        yield Change("compared", "regression", phrase, f"not compared any more: {name(phrase, 200)}")
    for phrase in _only(base, head):
        yield Change("compared", "better", phrase, f"now compared, and was not: {name(phrase, 200)}")


def left_out(base: Record, head: Record) -> list[str]:
    """What the head could not compare either."""
    phrases = head["verdict"]["not_compared"]
    told = _only(head, base)
    found = [phrase for phrase in phrases if phrase not in told]
    more = [f"and {text.plural(len(found) - MOST, 'more comparison')}"] if len(found) > MOST else []
    return found[:MOST] + more


def _only(record: Record, other: Record) -> list[str]:
    """What this run could not compare, and the other, which compared something, could.

    Where a run came to no answer that follows from what stopped it, which is a change of its own.
    """
    here, there = (r["verdict"]["not_compared"] for r in (record, other))
    stopped = VERDICTS[record["verdict"]["class"]].kind == "error"
    if stopped or not other["verdict"]["compared"]:
        return []
    return [phrase for phrase in here if phrase not in there]


def settings_of(base: Record, head: Record) -> Iterator[Pair]:
    """Each setting in both records."""
    after = cast(dict[str, Any], head["settings"])
    for key, value in base["settings"].items():
        yield Pair(key, _shown(value), _shown(after[key]))


def _shown(setting: Any) -> str:
    return ", ".join(map(str, setting)) if isinstance(setting, list) else name(str(setting), 60)


def environment_of(base: Record, head: Record) -> Iterator[Pair]:
    """A pair for each of OF_ENVIRONMENT, for the memory, and for each package that one of the records names."""
    both = [record["environment"] for record in (base, head)]
    for key in OF_ENVIRONMENT:
        yield Pair(key, *(name(str("not known" if e[key] is None else e[key]), 120) for e in both))
    yield Pair("memory", *(text.size(e["memory_bytes"]) for e in both))
    for package in sorted({*both[0]["packages"], *both[1]["packages"]}):
        yield Pair(name(package, 60), *(name(e["packages"].get(package, "not recorded"), 60) for e in both))


def environment_changes(base: Record, head: Record) -> Iterator[Change]:
    """A note for each pair of the environment that differs, but for date and commit, which are each run's own."""
    for pair in environment_of(base, head):
        if not pair.same and pair.name not in ("date", "commit"):
            yield Change("environment", "note", pair.name, f"{pair.name} is another", pair.before, pair.after)
