"""The first release in which something is wrong: a binary search that passes over releases that cannot be tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hloracle.versions.replay import Tried

KINDS = {
    "right": "is right",
    "wrong": "is wrong",
    "refused": "does not compile",
    "slower": "is slower",
    "untried": "cannot be tried",
}


@dataclass(frozen=True)
class Bisection:
    """What was tried, in that order, and what follows.

    first: the first release that was seen to be wrong, where one before it was seen to be right; else empty.
    passed_over: releases between the two that cannot be tried: it may have begun in one of these.
    words: a sentence that claims nothing of a release that was not tried.
    """

    tried: dict[str, Tried] = field(default_factory=dict)
    first: str = ""
    passed_over: tuple[str, ...] = ()
    words: str = ""


def bisect(releases: Sequence[str], attempt: Callable[[str], Tried]) -> Bisection:
    """Search between the first of these releases, which should be right, and the last, which should not.

    Args:
      releases: the oldest first, two at least. attempt: is called once for each release that is tried, both ends first.
    """
    tried: dict[str, Tried] = {}

    def status(index: int) -> str:
        if (release := releases[index]) not in tried:
            tried[release] = attempt(release)
        return tried[release].status

    good, bad = 0, len(releases) - 1
    if words := _ends(releases, [status(good), status(bad)]):
        return Bisection(tried, words=words)
    while candidates := [i for i in range(good + 1, bad) if tried.get(releases[i]) is None]:
        middle = min(candidates, key=lambda i: abs(2 * i - good - bad))
        found = status(middle)
        if found == "right":
            good = middle
        elif found != "untried":
            bad = middle
    passed_over = tuple(releases[good + 1 : bad])
    return Bisection(tried, releases[bad], passed_over, _words(releases, tried, good, bad))


def try_each(releases: Sequence[str], attempt: Callable[[str], Tried]) -> Bisection:
    """Try every release, the oldest first: what went wrong may have been right again in between.

    `first` is the first that is wrong after one that is right.
    """
    tried = {release: attempt(release) for release in releases}
    known = [release for release in releases if tried[release].status != "untried"]
    turns = [(a, b) for a, b in pairwise(known) if (tried[a].status == "right") != (tried[b].status == "right")]
    first = next((b for a, b in turns if tried[a].status == "right"), "")
    before = next((a for a, b in turns if b == first), "")
    passed_over = releases[releases.index(before) + 1 : releases.index(first)] if first else ()
    if not known:
        return Bisection(tried, words="It cannot be tried in any of them.")
    words = [f"It {KINDS[tried[known[0]].status]} in {known[0]}, the oldest release that can be tried"]
    words += [f"{KINDS[tried[b].status]} in {b}" for _, b in turns]
    unknown = [release for release in releases if release not in known]
    more = f" It cannot be tried in {', '.join(unknown)}." if unknown else ""
    return Bisection(tried, first, tuple(passed_over), f"{', and then '.join(words)}.{more}")


def _ends(releases: Sequence[str], statuses: Sequence[str]) -> str:
    """Why there is nothing to search; empty where the first is right and the last is not."""
    (good, bad), (oldest, newest) = statuses, (releases[0], releases[-1])
    if "untried" in statuses:
        which = " and ".join(r for r, s in zip((oldest, newest), statuses, strict=True) if s == "untried")
        return f"It cannot be tried in {which}, so there is nothing to search between: name other ends."
    if good != "right":
        rest = f" It is right in {newest}." if bad == "right" else ""
        return f"It already {KINDS[good]} in {oldest}, the oldest release tried.{rest} Nothing is known of older ones."
    if bad == "right":
        return f"It is right in {newest} too, as in {oldest}. Nothing is known of those between."
    return ""


def _words(releases: Sequence[str], tried: dict[str, Tried], good: int, bad: int) -> str:
    kind, last = tried[releases[bad]].status, tried[releases[-1]].status
    told = f"It {KINDS[kind]} in {releases[bad]}, and is right in {releases[good]}, the release before it"
    if between := releases[good + 1 : bad]:
        which = f"{', '.join(between)}, which cannot be tried"
        told = f"It {KINDS[kind]} in {releases[bad]}, and is right in {releases[good]}. Between them is {which}"
    also = "" if kind == last else f" In {releases[-1]} it {KINDS[last]}: that may be another fault."
    return f"{told}.{also}"
