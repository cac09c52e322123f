"""Whether decoding became slower, judged by the peers that took turns with it in the same process; and its memory.

A machine is up to a quarter slower or faster from one quarter of an hour to the next, and everything that runs on it at
the time is with it. So milliseconds of two runs are never held against each other. What is held is our time in units of a
peer's, which ran in turns with us: round by round, against each peer that is the same on both sides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hloracle.core.record import Contender, Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, names, percent

# Every ratio of the head has to be above every one of the base. Were the two runs of one speed, each order of their n + m
# rounds would be as likely as any other, and this one would come by luck once in C(n + m, n): with 5 against 5 rounds once
# in 252. With fewer rounds than it takes to be under one in a hundred, nothing is judged.
LUCK: Final = 0.01
# And the medians have to be apart by this much. Two processes differ for as long as they live, in where their memory lies
# and on what cores they run: rounds of one process know nothing of that, and are apart without reason. By how much has not
# been measured on a quiet machine: where it is 1 % this keeps false alarms rarer than one in a hundred, and where it is 3 %
# seven are to be expected.
APART: Final = 0.05
# On a busy machine rounds of one run spread by more than any change one looks for. Where a change of less than this could
# not have been told, that is said.
BLURRED: Final = 0.10
# A process grows by the weights and by what allocators and thread pools keep, which came to some thousandths from run to
# run. A second copy of an embedding is a fifth of a small model, one of a layer's weights some hundredths.
RESIDENT: Final = 0.05
# The peak of the whole run is sampled, 20 times a second, over processes side by side, whose own peaks fall together or
# do not: of two compilers at work the larger holds a quarter of the whole and more.
PEAK: Final = 0.25

# Settings that two speeds must have in common, in words.
SAME: Final[dict[Literal["threads", "device", "precision", "capacity"], str]] = {
    "threads": "number of threads",
    "device": "device",
    "precision": "precision",
    "capacity": "number of cache slots",
}


@dataclass(frozen=True)
class Peer:
    """Our time per token in units of one peer's, a round each; `reason` says why it is not judged by, if it is not."""

    id: str
    title: str
    base: tuple[float, ...]
    head: tuple[float, ...]
    reason: str

    @property
    def change(self) -> float:
        """The head's median ratio in units of the base's: 1.15 where we became 15 % slower."""
        return statistics.median(self.head) / statistics.median(self.base)

    @property
    def visible(self) -> float:
        """From what ratio of medians on these rounds would have been called slower: how much could have gone unseen."""
        return max(self.change * max(self.base) / min(self.head), 1 + APART)

    @property
    def outcome(self) -> str:
        """`slower`, `faster` or `same`; empty where it is not judged by."""
        if self.reason:
            return ""
        if min(self.head) > max(self.base) and self.change > 1 + APART:
            return "slower"
        if max(self.head) < min(self.base) and self.change < 1 / (1 + APART):
            return "faster"
        return "same"


@dataclass(frozen=True)
class Speed:
    """`outcome` is `slower`, `faster`, `same`, or empty where `reason` says why nothing was judged."""

    outcome: str
    reason: str
    title: str
    base_ms: tuple[float, ...]
    head_ms: tuple[float, ...]
    peers: tuple[Peer, ...]
    luck: int  # so many runs of one speed look apart once

    @property
    def blurred(self) -> str:
        """What could have gone unseen, in words, where that is much."""
        blurred = [p for p in self.peers if not p.reason and p.visible > 1 + BLURRED]
        if self.outcome != "same" or not blurred:
            return ""
        peer = max(blurred, key=lambda p: p.visible)
        return f"a change of less than {percent(peer.visible)} would not have shown against {name(peer.title, 40)}"

    @property
    def telling(self) -> Peer:
        """Of the peers judged by, the one against which the change is the smallest."""
        judged = [peer for peer in self.peers if not peer.reason]
        return min(judged, key=lambda peer: abs(peer.change - 1))


@dataclass(frozen=True)
class Memory:
    """Bytes before and after; `outcome` is `more`, `less` or `same`, or empty where `reason` says why."""

    id: str
    title: str
    base: int
    head: int
    tolerance: float
    outcome: str
    reason: str


def compare_speed(base: Record, head: Record) -> Speed:
    """Slower only if it is, by the rule above, against every peer that can be judged by."""
    ours = [record["speed"]["contenders"][:1] for record in (base, head)]
    reason = _not_judged(base, head)
    (base_ms, head_ms) = (tuple(o[0]["ms_per_token"]) if o else () for o in ours)
    luck = math.comb(len(base_ms) + len(head_ms), len(base_ms))
    title = next((o[0]["title"] for o in reversed(ours) if o), "")
    peers = tuple(_peers(base, head)) if not reason else ()
    judged = [peer.outcome for peer in peers if not peer.reason]
    if not reason and not judged:
        why = [f"{name(peer.title, 40)}: {peer.reason}" for peer in peers]
        reason = (
            f"no peer is the same in both runs ({'; '.join(why)})" if why else "the two runs have no peer in common"
        )
    # One peer's own luck moves the ratio to it and no other.
    outcome = "" if reason else judged[0] if len(set(judged)) == 1 else "same"
    return Speed(outcome, reason, title, base_ms, head_ms, peers, luck)


def _not_judged(base: Record, head: Record) -> str:
    """Why the two runs' speeds cannot be held against each other; empty where they can."""
    for who, record in (("base", base), ("head", head)):
        speed = record["speed"]
        if not speed["contenders"]:
            return f"the {who} has no times ({name(speed['reason'], 120)})"
    (a, b), (x, y) = (base["speed"], head["speed"]), (base["environment"], head["environment"])
    pairs = {
        "another checkpoint": (base["model"]["digest"], head["model"]["digest"]),
        "another processor": (x["cpu"], y["cpu"]),
        "another number of cores": (x["cores"], y["cores"]),
        **{f"another {words}": (base["settings"][key], head["settings"][key]) for key, words in SAME.items()},
        "another graph was timed": (a["contenders"][0]["id"], b["contenders"][0]["id"]),
        "another number of prompt tokens": (a["context"], b["context"]),
        "another number of steps in a round": (a["tokens"], b["tokens"]),
    }
    for words, (before, after) in pairs.items():
        if before != after:
            shown = [name(str(v), 60) for v in (before, after)]
            return words if words == "another checkpoint" else f"{words} ({shown[0]}, then {shown[1]})"
    n, m = (len(s["contenders"][0]["ms_per_token"]) for s in (a, b))
    if n == 0 or m == 0:
        return f"the {'base' if n == 0 else 'head'} has no rounds"
    if 1 / math.comb(n + m, n) > LUCK:
        luck = math.comb(n + m, n)
        return f"too few rounds: {n} against {m} are apart by luck once in {luck}"
    return ""


def _peers(base: Record, head: Record) -> Iterator[Peer]:
    mine, *others = base["speed"]["contenders"]
    head_mine, *head_others = head["speed"]["contenders"]
    there = {peer["id"]: peer for peer in head_others}
    for peer in others:
        if (other := there.get(peer["id"])) is not None:
            yield Peer(
                peer["id"],
                other["title"],
                tuple(a / b for a, b in zip(mine["ms_per_token"], peer["ms_per_token"], strict=True)),
                tuple(a / b for a, b in zip(head_mine["ms_per_token"], other["ms_per_token"], strict=True)),
                _another(peer, other, base, head),
            )


def _another(peer: Contender, other: Contender, base: Record, head: Record) -> str:
    """Why a peer is not the same in both runs; empty where it is."""
    found = [record["environment"]["packages"] for record in (base, head)]
    for package in dict.fromkeys([*peer["packages"], *other["packages"]]):
        before, after = (packages.get(package) for packages in found)
        if before is None or after is None:
            return f"the version of {name(package, 40)} is not recorded"
        if before != after:
            return f"{name(package, 40)} is {name(after, 30)}, was {name(before, 30)}"
    digests = [
        {g["id"]: g["digest"] for g in record["graphs"] if g["source"] == peer["source"] and g["phase"] == "decode"}
        for record in (base, head)
    ]
    return "its graph changed too" if digests[0] != digests[1] else ""


def ratios(rounds: Sequence[float]) -> str:
    """The median, with the smallest and the largest."""
    return f"{text.figure(statistics.median(rounds))} ({text.figure(min(rounds))}–{text.figure(max(rounds))})"


def compare_memory(base: Record, head: Record) -> Iterator[Memory]:
    """What the production graph needs, and the run's peak."""
    reason = "another checkpoint" if base["model"]["digest"] != head["model"]["digest"] else ""
    for key in SAME:
        if not reason and base["settings"][key] != head["settings"][key]:
            reason = f"another setting of {key}"
    contenders = [record["speed"]["contenders"][:1] for record in (base, head)]
    if all(contenders):
        (a,), (b,) = contenders
        found = [contender["resident_bytes"] or 0 for contender in (a, b)]
        why = reason or ("" if a["id"] == b["id"] else "another graph was loaded")
        if any(found):
            yield _grown("resident", f"{b['title']}, loaded", found[0], found[1], RESIDENT, why)
    reused = [sorted(t["stage"] for t in record["timings"] if t["reused"]) for record in (base, head)]
    if not reason and [t["stage"] for t in base["timings"]] != [t["stage"] for t in head["timings"]]:
        reason = "the runs went through other stages"
    elif not reason and reused[0] != reused[1]:
        reason = "the runs took other stages from the cache"
    before, after = (record["memory"]["peak_bytes"] for record in (base, head))
    yield _grown("peak", "Peak of the whole run", before, after, PEAK, reason)


def _grown(id: str, title: str, base: int, head: int, tolerance: float, reason: str) -> Memory:
    if not reason and not (base and head):
        reason = "not measured" if base == head else f"not measured in the {'base' if head else 'head'}"
    outcome = "" if reason else "same"
    if not reason and head > base * (1 + tolerance):
        outcome = "more"
    elif not reason and head < base / (1 + tolerance):
        outcome = "less"
    return Memory(id, title, base, head, tolerance, outcome, reason)


def speed_changes(base: Record, head: Record, speed: Speed, memory: Sequence[Memory]) -> Iterator[Change]:
    """Slower or faster decoding, more or less memory; what is within the noise is no change."""
    family = name(head["model"]["architecture"], 40)
    if speed.outcome in ("slower", "faster"):
        peer = speed.telling
        before, after = (f"{ratios(r)} of {name(peer.title, 40)}" for r in (peer.base, peer.head))
        judged = [p for p in speed.peers if p.outcome]
        by = [percent(p.change if speed.outcome == "slower" else 1 / p.change) for p in (peer, *judged)]
        least = "at least " if len(set(by)) > 1 else ""
        against = names([p.title for p in judged])
        why = f"time per token in units of a peer's, round by round; all rounds are apart, against {against}"
        severity = "regression" if speed.outcome == "slower" else "better"
        words = f"{family} decodes {least}{by[0]} {speed.outcome}"
        yield Change("speed", severity, name(speed.title, 60), words, before, after, why)
    elif base["speed"]["contenders"] and not head["speed"]["contenders"] and head["passed"]:
        words = f"how fast {family} decodes is no longer measured"
        yield Change("speed", "worse", "speed", words, "measured", "not measured", name(head["speed"]["reason"], 160))
    for entry in memory:
        if entry.outcome in ("more", "less"):
            more, ratio = entry.outcome == "more", percent(entry.head / entry.base)
            worse, words = "worse", f"the run's peak memory is {ratio} {'higher' if more else 'lower'}"
            if entry.id == "resident":
                worse, words = "regression", f"{family} takes {ratio} {entry.outcome} memory"
            before, after = text.size(entry.base), text.size(entry.head)
            why = f"{name(entry.title, 60)}; up to {100 * entry.tolerance:.0f} % is noise"
            yield Change("memory", worse if more else "better", entry.id, words, before, after, why)
