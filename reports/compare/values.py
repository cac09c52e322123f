"""Two records' numbers: logits and anchors as shares of what is allowed, and the floors that decide what is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, names
from hloracle.reports.record import Record, limits_of, share
from hloracle.reports.text import value

# A measured floor is the largest of some passes' roundings, and another pass moves it by some percent. One that moves by
# more moves what is accepted there.
FLOOR_MOVED: Final = 0.10
# A value within its limit is right. One that has come twice as near and has less than half of the room left is still
# right; the next change may not be.
NEARER: Final = 2.0
ROOM: Final = 0.5


@dataclass(frozen=True)
class Worst:
    """The largest error in a cell: `share` of what is allowed, NaN or infinite where the error is."""

    share: float
    where: str
    error: float
    limit: float


@dataclass(frozen=True)
class ValueDiff:
    """The worst of a cell's logits (`phase` is empty) or anchors, before and after; None where nothing was compared.

    Args:
      counts: how many were compared: prompts of logits, anchors of a phase.
      lost: those that the base compared and the head did not.
      over: how many in the head are over their limit.
    """

    cell: str
    phase: str
    before: Worst | None
    after: Worst | None
    counts: tuple[int, int]
    lost: tuple[str, ...]
    over: int

    @property
    def outcome(self) -> str:
        """`broken`, `mended`, `nearer` or `same`."""
        before, after = (_badness(worst.share) if worst else 0.0 for worst in (self.before, self.after))
        if self.after and after > 1:
            return "same" if before > 1 else "broken"
        if self.before and before > 1:
            return "mended" if self.after else "same"
        return "nearer" if self.before and after > max(ROOM, NEARER * before) else "same"


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
        if self.before == self.after:
            return 1.0
        return self.after / self.before if self.before else math.inf

    @property
    def moved(self) -> bool:
        return not 1 / (1 + FLOOR_MOVED) <= self.ratio <= 1 + FLOOR_MOVED


@dataclass(frozen=True)
class Floors:
    """`compared` of the floors are in both records; those in `moved` moved, the most first, or have another limit."""

    compared: int
    moved: tuple[FloorDiff, ...]
    raised: tuple[FloorDiff, ...]  # those whose limit, in floors, is larger


def _badness(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else ratio


# ---- logits


def compare_logits(base: Record, head: Record) -> tuple[ValueDiff, ...]:
    """A row for each cell whose logits were read back in one of the records."""
    both = [_logits(record) for record in (base, head)]
    cells = dict.fromkeys([*both[1], *both[0]])
    return tuple(_diff(cell, "", *(found.get(cell, {}) for found in both)) for cell in cells)


def _logits(record: Record) -> dict[str, dict[str, Worst]]:
    """Cell -> prompt -> the error there."""
    found: dict[str, dict[str, Worst]] = {}
    for prompt, entry in record["tokens"].items():
        for cell, compared in entry["cells"].items():
            limit = value(compared["logit_limit"])
            if (ratio := share(compared["logit_error"], limit)) is not None and limit is not None:
                error = value(compared["logit_error"])
                found.setdefault(cell, {})[prompt] = Worst(ratio, prompt, math.nan if error is None else error, limit)
    return found


def _diff(cell: str, phase: str, before: Mapping[str, Worst], after: Mapping[str, Worst]) -> ValueDiff:
    was, now = (max(found.values(), key=lambda w: _badness(w.share), default=None) for found in (before, after))
    lost = tuple(key for key in before if key not in after)
    over = sum(_badness(w.share) > 1 for w in after.values())
    return ValueDiff(cell, phase, was, now, (len(before), len(after)), lost, over)


# ---- anchors


def compare_anchors(base: Record, head: Record) -> tuple[ValueDiff, ...]:
    """A row for each cell and phase that was compared anchor by anchor in one of the records."""
    both = [_anchors(record) for record in (base, head)]
    keys = dict.fromkeys([*both[1], *both[0]])
    return tuple(_diff(*key, *(found.get(key, {}) for found in both)) for key in keys)


def _anchors(record: Record) -> dict[tuple[str, str], dict[str, Worst]]:
    """Cell and phase -> anchor -> the largest error there, on any prompt and at any position."""
    limits = limits_of(record)
    found: dict[tuple[str, str], dict[str, Worst]] = {}
    for matrix in record["anchors"]:
        worst = found.setdefault((matrix["cell"], matrix["phase"]), {})
        for anchor, row in zip(matrix["anchors"], matrix["errors"], strict=True):
            compared = [(i, float(error)) for i, error in enumerate(row) if error is not None]
            if not compared or (limit := limits.get(anchor)) is None:
                continue
            i, error = max(compared, key=lambda pair: _badness(pair[1]))
            ratio = share(error, limit)
            if ratio is None or (anchor in worst and _badness(worst[anchor].share) >= _badness(ratio)):
                continue
            where = f"{name(anchor)}, {name(matrix['prompt'], 40)} at position {matrix['positions'][i]}"
            worst[anchor] = Worst(ratio, where, error, limit)
    return found


# ---- floors


def compare_floors(base: Record, head: Record) -> Floors:
    """Those of the anchors, and that of each prompt's logits."""
    both = [
        {f["anchor"]: (float(f["relative"]), float(f["limit"])) for f in record["floors"]} for record in (base, head)
    ]
    for prompt, entry in head["tokens"].items():
        cells = base["tokens"].get(prompt, {"cells": {}})["cells"]
        pairs = [(cells[cell], entry["cells"][cell]) for cell in entry["cells"] if cell in cells]
        measured = [pair for pair in pairs if all(value(cell["logit_floor"]) for cell in pair)]
        if measured:
            for i, found in enumerate(both):
                found[f"logits of {prompt}"] = max(_logit_floor(pair[i]) for pair in measured)
    diffs = [
        FloorDiff(anchor, both[0][anchor][0], floor, (both[0][anchor][1], limit))
        for anchor, (floor, limit) in both[1].items()
        if anchor in both[0]
    ]
    moved = [diff for diff in diffs if diff.moved]
    raised = [diff for diff in diffs if diff.limits[1] > diff.limits[0] * 1.001]
    return Floors(
        len(diffs),
        tuple(sorted(moved, key=lambda diff: -_distance(diff.ratio))),
        tuple(sorted(raised, key=lambda diff: -diff.limits[1])),
    )


def _logit_floor(cell: Record) -> tuple[float, float]:
    """A cell's floor, and how many of it are allowed."""
    floor, limit = value(cell["logit_floor"]) or math.nan, value(cell["logit_limit"])
    return floor, math.nan if limit is None else limit / floor


def _distance(ratio: float) -> float:
    return abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf


# ---- what is said of it


def value_changes(
    base: Record, head: Record, logits: tuple[ValueDiff, ...], anchors: tuple[ValueDiff, ...], gone: Collection[str]
) -> Iterator[Change]:
    """Cells that are `gone` have a change of their own, which says it all."""
    for diff in logits:
        yield from _value_changes("logits", f"the logits of {name(diff.cell)}", diff)
        if diff.lost and diff.after is None and diff.cell not in gone:
            words = f"the logits of {name(diff.cell)} are no longer compared"
            yield _lost("logits", diff.cell, words, text.plural(diff.counts[0], "prompt"), "none")
    for diff in anchors:
        yield from _value_changes("anchors", f"the anchors of {name(diff.cell)} in {diff.phase}", diff)
    taken_apart = base["localization"] is not None and head["localization"] is None
    for cell in dict.fromkeys(diff.cell for diff in anchors if diff.lost):
        if cell not in gone:
            phases = [diff for diff in anchors if diff.cell == cell]
            yield _anchors_lost(cell, phases, taken_apart)


def _anchors_lost(cell: str, phases: Sequence[ValueDiff], taken_apart: bool) -> Change:
    """`taken_apart`: the base's run was wrong and the head's is not."""
    lost = [diff for diff in phases if diff.lost]
    before, after = (text.plural(sum(diff.counts[i] for diff in phases), "anchor") for i in (0, 1))
    where = names([diff.phase for diff in lost])
    if all(diff.after is None for diff in phases):
        words = f"the anchors of {name(cell)} are no longer compared"
    else:
        anchors = tuple(dict.fromkeys(anchor for diff in lost for anchor in diff.lost))
        what = names(anchors) if len(anchors) <= 2 else f"{text.count(len(anchors))} anchors"
        words = f"{what} of {name(cell)} {'is' if len(anchors) == 1 else 'are'} no longer compared in {where}"
    if taken_apart:
        # Its localization compared more than a run that conforms has to.
        why = "the base's run was wrong and was taken apart, which compares more"
        return Change("anchors", "note", cell, words, before, after, why, cells=(cell,), lost=True)
    return _lost("anchors", cell, words, before, after)


def _lost(kind: str, cell: str, words: str, before: str, after: str) -> Change:
    return Change(kind, "regression", cell, words, before, after, cells=(cell,), lost=True)


def _value_changes(kind: str, what: str, diff: ValueDiff) -> Iterator[Change]:
    severity = {"broken": "regression", "nearer": "worse", "mended": "better"}.get(diff.outcome)
    if severity is None:
        return
    words = {
        "broken": f"{what} are over their limit",
        "nearer": f"{what} came nearer to their limit",
        "mended": f"{what} are within their limit again",
    }[diff.outcome]
    before, after = (
        "not compared" if w is None else f"{text.figure(w.share)} of the limit" for w in (diff.before, diff.after)
    )
    subject = f"{diff.cell}, {diff.phase}" if diff.phase else diff.cell
    detail = f"the worst: {name(diff.after.where, 160)}" if diff.after else ""
    if diff.over > 1:
        detail += f"; {text.count(diff.over)} of {text.count(diff.counts[1])} are over"
    yield Change(kind, severity, subject, words, before, after, detail, cells=(diff.cell,))


def floor_changes(base: Record, head: Record, floors: Floors) -> Iterator[Change]:
    """Limits that were raised, and floors that moved: one change each."""
    if floors.raised:
        first = floors.raised[0]
        yield Change(
            "floors",
            "worse",
            "limits",
            f"more is accepted at {_some(floors.raised)}",
            f"{text.figure(first.limits[0])} floors",
            f"{text.figure(first.limits[1])} floors",
            "the limit, in floors, was raised",
        )
    if floors.moved:
        first = floors.moved[0]
        elsewhere = any(base["environment"][key] != head["environment"][key] for key in ("cpu", "cores"))
        elsewhere = elsewhere or base["settings"]["threads"] != head["settings"]["threads"]
        yield Change(
            "floors",
            "note" if elsewhere else "changed",
            "floors",
            f"the measured noise moved by more than {100 * FLOOR_MOVED:.0f} % at {_some(floors.moved)}",
            text.figure(first.before),
            text.figure(first.after),
            f"the most at {name(first.anchor)}" + ("; another machine rounds otherwise" if elsewhere else ""),
        )


def _some(diffs: tuple[FloorDiff, ...]) -> str:
    return name(diffs[0].anchor) if len(diffs) == 1 else f"{text.count(len(diffs))} places"
