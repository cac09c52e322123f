"""Two records' numbers: logits and anchors as shares of what is allowed, and the floors that decide what is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hloracle.core.record import Answer, Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, names
from hloracle.reports.facts import answers_of, badness, limits_of, share
from hloracle.reports.text import value

# A measured floor is the largest of some passes' roundings, and another pass moves it by some percent. One that moves by
# more moves what is accepted there.
FLOOR_MOVED: Final = 0.10
# A value within its limit is right. One that has come twice as near and has less than half of the room left is still
# right; the next change may not be.
NEARER: Final = 2.0
ROOM: Final = 0.5


# What was compared: a prompt, or a prompt and an anchor.
Key = tuple[str, ...]


@dataclass(frozen=True)
class Worst:
    """The largest error: `share` of what is allowed, NaN or infinite where the error is; of `compared` positions."""

    share: float
    where: str
    error: float
    limit: float
    compared: int = 1


@dataclass(frozen=True)
class Fewer:
    """What was compared at fewer positions: how many there were and are."""

    key: Key
    before: int
    after: int


@dataclass(frozen=True)
class ValueDiff:
    """The worst of a configuration's logits (`phase` is empty) or anchors, before and after; None where nothing was compared.

    Args:
      counts: how many were compared: prompts of logits, anchors of a phase on each prompt.
      lost: those that the base compared and the head did not, although it compared tokens there.
      fewer: those that the head compared at fewer positions.
      over: how many in the head are over their limit.
      broken: those that were within it and no longer are, by what the head has there.
    """

    configuration: str
    phase: str
    before: Worst | None
    after: Worst | None
    counts: tuple[int, int]
    lost: tuple[Key, ...]
    fewer: tuple[Fewer, ...]
    over: int
    broken: tuple[Worst, ...]

    @property
    def was_over(self) -> bool:
        """Whether the base's worst was beyond its limit, as NaN is; False where the base compared nothing."""
        return self.before is not None and badness(self.before.share) > 1

    @property
    def outcome(self) -> str:
        """`broken`, `mended`, `nearer` or `same`."""
        if self.broken or (self.over and not self.was_over):
            return "broken"
        if self.before is None or self.after is None or self.over:
            return "same"
        if self.was_over:
            return "mended"
        return "nearer" if self.after.share > max(ROOM, NEARER * self.before.share) else "same"

    @property
    def severity(self) -> str:
        """As of a Change; empty where the two are the same."""
        return {"broken": "regression", "nearer": "worse", "mended": "better"}.get(self.outcome, "")


@dataclass(frozen=True)
class FloorDiff:
    """`before` and `after` are floors relative to their values' size; `limits` in floors."""

    anchor: str
    before: float
    after: float
    limits: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The head's floor in units of the base's; infinite where that is zero."""
        if self.before == self.after or (math.isnan(self.before) and math.isnan(self.after)):
            return 1.0
        return self.after / self.before if self.before else math.inf

    @property
    def moved(self) -> bool:
        """Whether the floor grew or shrank by a factor of more than 1 + FLOOR_MOVED, or is NaN in one record alone."""
        return not 1 / (1 + FLOOR_MOVED) <= self.ratio <= 1 + FLOOR_MOVED


@dataclass(frozen=True)
class Floors:
    """`compared` of the floors are in both records; those in `moved` moved, the most first, or have another limit."""

    compared: int
    moved: tuple[FloorDiff, ...]
    raised: tuple[FloorDiff, ...]  # those whose limit, in floors, is larger


# ---- logits


def compare_logits(base: Record, head: Record) -> tuple[ValueDiff, ...]:
    """A row for each configuration whose logits were read back in one of the records."""
    both = [_logits(record) for record in (base, head)]
    configurations = dict.fromkeys([*both[1], *both[0]])
    return tuple(
        _diff(base, head, (configuration, ""), *(found.get(configuration, {}) for found in both))
        for configuration in configurations
    )


def _logits(record: Record) -> dict[str, dict[Key, Worst]]:
    """Configuration -> prompt -> the error there."""
    found: dict[str, dict[Key, Worst]] = {}
    for prompt, entry in record["tokens"].items():
        for configuration, compared in entry["configurations"].items():
            limit = value(compared["logit_limit"])
            if (ratio := share(compared["logit_error"], limit)) is not None and limit is not None:
                error = value(compared["logit_error"])
                worst = Worst(ratio, name(prompt, 60), math.nan if error is None else error, limit)
                found.setdefault(configuration, {})[prompt,] = worst
    return found


def _diff(
    base: Record, head: Record, part: tuple[str, str], before: Mapping[Key, Worst], after: Mapping[Key, Worst]
) -> ValueDiff:
    was, now = (max(found.values(), key=lambda w: badness(w.share), default=None) for found in (before, after))
    still = {prompt["id"]: prompt["token_ids"] for prompt in head["prompts"]}
    gone = {id for id in still if part[0] in answers_of(base, id) and part[0] not in answers_of(head, id)}
    # A prompt that is gone, and one that is no longer compared in the configuration at all, have a change of their own.
    lost = tuple(key for key in before if key not in after and key[0] in still and key[0] not in gone)
    # As many positions are expected of the same tokens.
    alike = {p["id"] for p in base["prompts"] if p["token_ids"] == still.get(p["id"])}
    if head["settings"]["tokens"] < base["settings"]["tokens"]:
        alike = set()
    both = [Fewer(key, before[key].compared, worst.compared) for key, worst in after.items() if key in before]
    fewer = tuple(entry for entry in both if entry.after < entry.before and entry.key[0] in alike)
    over = [key for key, worst in after.items() if badness(worst.share) > 1]
    broken = tuple(after[key] for key in over if key in before and badness(before[key].share) <= 1)
    return ValueDiff(*part, was, now, (len(before), len(after)), lost, fewer, len(over), broken)


# ---- anchors


def compare_anchors(base: Record, head: Record) -> tuple[ValueDiff, ...]:
    """A row for each configuration and phase that was compared anchor by anchor in one of the records."""
    both = [_anchors(record) for record in (base, head)]
    keys = dict.fromkeys([*both[1], *both[0]])
    return tuple(_diff(base, head, key, *(found.get(key, {}) for found in both)) for key in keys)


def _anchors(record: Record) -> dict[tuple[str, str], dict[Key, Worst]]:
    """Configuration and phase -> prompt and anchor -> the largest error there, at any position."""
    limits = limits_of(record)
    found: dict[tuple[str, str], dict[Key, Worst]] = {}
    for matrix in record["anchors"]:
        worst = found.setdefault((matrix["configuration"], matrix["phase"]), {})
        for anchor, row in zip(matrix["anchors"], matrix["errors"], strict=True):
            compared = [(i, float(error)) for i, error in enumerate(row) if error is not None]
            if not compared or (limit := limits.get(anchor)) is None:
                continue
            i, error = max(compared, key=lambda pair: badness(pair[1]))
            where = f"{name(anchor)}, {name(matrix['prompt'], 40)} at position {matrix['positions'][i]}"
            entry = Worst(share(error, limit) or 0.0, where, error, limit, len(compared))
            key = matrix["prompt"], anchor
            if (other := worst.get(key)) is not None:  # a matrix of its other positions
                larger = max(entry, other, key=lambda w: badness(w.share))
                entry = dataclasses.replace(larger, compared=entry.compared + other.compared)
            worst[key] = entry
    return found


# ---- floors


def compare_floors(base: Record, head: Record) -> Floors:
    """Those of the anchors, and that of each prompt's logits."""
    both = [
        {f["anchor"]: (float(f["relative"]), float(f["limit"])) for f in record["floors"]} for record in (base, head)
    ]
    for prompt in head["tokens"]:
        old, new = answers_of(base, prompt), answers_of(head, prompt)
        pairs = [(old[configuration], new[configuration]) for configuration in new if configuration in old]
        measured = [pair for pair in pairs if all(value(answer["logit_floor"]) for answer in pair)]
        if measured:
            for i, found in enumerate(both):
                found[f"logits of {prompt}"] = max(_logit_floor(pair[i]) for pair in measured)
    diffs = [
        FloorDiff(anchor, both[0][anchor][0], floor, (both[0][anchor][1], limit))
        for anchor, (floor, limit) in both[1].items()
        if anchor in both[0]
    ]
    moved = [diff for diff in diffs if diff.moved]
    # A limit of logits in floors is a quotient, which rounds.
    raised = [diff for diff in diffs if diff.limits[1] > diff.limits[0] and not math.isclose(*diff.limits)]
    return Floors(
        len(diffs),
        tuple(sorted(moved, key=lambda diff: -_distance(diff.ratio))),
        tuple(sorted(raised, key=lambda diff: -diff.limits[1])),
    )


def _logit_floor(answer: Answer) -> tuple[float, float]:
    """An answer's floor, and how many of it are allowed."""
    floor, limit = value(answer["logit_floor"]) or math.nan, value(answer["logit_limit"])
    return floor, math.nan if limit is None else limit / floor


def _distance(ratio: float) -> float:
    return abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf


# ---- what is said of it


def value_changes(
    base: Record, head: Record, logits: tuple[ValueDiff, ...], anchors: tuple[ValueDiff, ...], gone: Collection[str]
) -> Iterator[Change]:
    """Configurations that are `gone` have a change of their own, which says it all."""
    for diff in logits:
        yield from _value_changes("logits", f"the logits of {name(diff.configuration)}", diff)
        if diff.lost and diff.configuration not in gone:
            words = f"the logits of {name(diff.configuration)} are no longer compared"
            words += f" on {names([key[0] for key in diff.lost])}" if diff.after else ""
            left = text.plural(diff.counts[1], "prompt") if diff.after else "none"
            lost = "part" if diff.after else "all"
            yield _lost("logits", diff.configuration, words, text.plural(diff.counts[0], "prompt"), left, lost)
    for diff in anchors:
        yield from _value_changes("anchors", f"the anchors of {name(diff.configuration)} in {diff.phase}", diff)
    taken_apart = base["localization"] is not None and head["localization"] is None
    for configuration in dict.fromkeys(diff.configuration for diff in anchors if diff.lost or diff.fewer):
        if configuration not in gone:
            change = _anchors_lost(configuration, [diff for diff in anchors if diff.configuration == configuration])
            # Its localization compared more than a run that conforms has to.
            why = "the base's run was wrong and was taken apart, which compares more"
            yield dataclasses.replace(change, severity="note", detail=why) if taken_apart else change


def _anchors_lost(configuration: str, phases: Sequence[ValueDiff]) -> Change:
    if all(diff.after is None for diff in phases):
        before, after = (text.plural(sum(diff.counts[i] for diff in phases), "anchor") for i in (0, 1))
        words = f"the anchors of {name(configuration)} are no longer compared"
        return _lost("anchors", configuration, words, before, after, "all")
    lost = [(diff.phase, key) for diff in phases for key in diff.lost]
    how, before, after = "no longer compared", "compared", "not compared"
    if not lost:
        lost = [(diff.phase, entry.key) for diff in phases for entry in diff.fewer]
        how = "compared at fewer positions"
        first = next(diff.fewer[0] for diff in phases if diff.fewer)
        before, after = (text.plural(n, "position") for n in (first.before, first.after))
    where, prompts, anchors = (
        list(dict.fromkeys(found)) for found in zip(*((phase, *key) for phase, key in lost), strict=True)
    )
    what = names(anchors) if len(anchors) <= 2 else f"{text.count(len(anchors))} anchors"
    verb = "is" if len(anchors) == 1 else "are"
    words = f"{what} of {name(configuration)} {verb} {how} in {names(where)} on {names(prompts)}"
    return _lost("anchors", configuration, words, before, after, "part")


def _lost(kind: str, configuration: str, words: str, before: str, after: str, lost: str) -> Change:
    return Change(kind, "regression", configuration, words, before, after, configurations=(configuration,), lost=lost)


def _value_changes(kind: str, what: str, diff: ValueDiff) -> Iterator[Change]:
    if not diff.severity:
        return
    words = {
        "broken": f"{'more of ' if diff.was_over else ''}{what} are over their limit",
        "nearer": f"{what} came nearer to their limit",
        "mended": f"{what} are within their limit again",
    }[diff.outcome]
    before, after = (
        "not compared" if w is None else f"{text.figure(w.share)} of the limit" for w in (diff.before, diff.after)
    )
    subject = f"{diff.configuration}, {diff.phase}" if diff.phase else diff.configuration
    detail = f"the worst: {name(diff.after.where, 160)}" if diff.after else ""
    if diff.was_over and diff.broken:
        first = max(diff.broken, key=lambda w: badness(w.share))
        detail = f"{text.count(len(diff.broken))} that were within, the worst: {name(first.where, 160)}"
    if diff.over > 1:
        detail += f"; {text.count(diff.over)} of {text.count(diff.counts[1])} are over"
    yield Change(kind, diff.severity, subject, words, before, after, detail, configurations=(diff.configuration,))


def floor_changes(base: Record, head: Record, floors: Floors) -> Iterator[Change]:
    """Limits that were raised, and floors that moved: one change each."""
    if floors.raised:
        first = floors.raised[0]
        words, why = f"more is accepted at {_some(floors.raised)}", "the limit, in floors, was raised"
        before, after = (f"{text.figure(limit)} floors" for limit in first.limits)
        yield Change("floors", "worse", "limits", words, before, after, why)
    if floors.moved:
        first = floors.moved[0]
        elsewhere = any(base["environment"][key] != head["environment"][key] for key in ("cpu", "cores"))
        elsewhere = elsewhere or base["settings"]["threads"] != head["settings"]["threads"]
        severity, why = "changed", f"the most at {name(first.anchor)}"
        if elsewhere:
            severity, why = "note", f"{why}; another machine rounds otherwise"
        words = f"the measured noise moved by more than {100 * FLOOR_MOVED:.0f} % at {_some(floors.moved)}"
        yield Change("floors", severity, "floors", words, text.figure(first.before), text.figure(first.after), why)


def _some(diffs: tuple[FloorDiff, ...]) -> str:
    return name(diffs[0].anchor) if len(diffs) == 1 else f"{text.count(len(diffs))} places"
