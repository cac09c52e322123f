"""Checks of what somebody else's graph does with its state, its arguments and its masks, held to no reference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.runs.contract import Seen
from hloracle.core.abi import Graph

# Those that are made by calls, and their titles. A verdict names the first that fails: one that is broken breaks those below
# it, too, as a graph that ignores its position writes another slot, and what it is told of the position changes nothing.
TITLES = {
    "position-matters": "what a token gives depends on its position",
    "cache-written": "a step writes its own slot of both caches in every layer, and no other",
    "padding-hidden": "what fills a bucket behind the prompt changes nothing",
    "unused-slots": "what is in slots that no call has filled changes nothing",
    "mask-hides": "no token sees a later one, nor what is behind a window",
    "inputs-matter": "each weight and each input that a graph uses changes something",
}


def state_returned(source: str, graphs: Sequence[Graph]) -> Check:
    """What a graph takes for the next step to have, it returns."""
    lost = [words for g in graphs for words in g.unreturned]
    question = Question("state-returned", "all state that a graph takes is returned", source)
    rows = max(g.rows for g in graphs)
    others = f"at each call the other {rows - 1} of {rows} rows: each row is compared in turn" if rows > 1 else ""
    return dataclasses.replace(question.judged(not lost, len(lost), 0, "; ".join(lost)), missing=others)


def contract_checks(source: str, seen: Mapping[str, Seen], why_not: str = "") -> list[Check]:
    """One check for each of TITLES. why_not: why none of them was made."""
    found = []
    for kind, title in TITLES.items():
        question, one = Question(kind, title, source), seen.get(kind, Seen())
        if not one.asked:
            found.append(question.skipped(why_not or "; ".join(one.skipped)))
            continue
        detail = "; ".join(one.wrong[:4])
        if one.limit:
            finite = math.isfinite(one.largest)
            figure = f"{one.largest:.2g} of the largest value" if finite else "what is not finite"
            found.append(question.judged(not one.wrong, figure, f"at most {one.limit:.2g}", detail))
            continue
        of = f", of {one.of} in all" if one.of > one.asked else ""
        figure, limit = f"{one.asked - len(one.wrong)} of {one.asked}{of}", f"{one.asked} of {one.asked}"
        found.append(question.judged(not one.wrong, figure, limit, detail))
    return found
