"""One difference between two records, and how much it matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hloracle.reports import text

# In order of importance, each with what it means to whoever has to decide.
SEVERITIES: Final = {
    "regression": "It held, or was checked, or was faster, and is no longer.",
    "worse": "It still passes, but is nearer to failing, or less is known of it.",
    "changed": "It is another, and neither better nor worse by itself.",
    "better": "It holds, or is checked, or is faster, and was not.",
    "note": "It differs because the two runs were made otherwise; it is no change of what was judged.",
}


@dataclass(frozen=True)
class Change:
    """One observation.

    Args:
      kind: what was looked at: `verdict`, `model`, `settings`, `mutant`, `family`, `prompt`, `reference`, `tokens`, `configuration`,
        `compared`, `check`, `canary`, `logits`, `anchors`, `floors`, `graph`, `speed`, `memory` or `environment`.
      severity: a key of SEVERITIES.
      subject: what it is about: the id of a check, a configuration or a graph, …; the name of a setting or package.
      words: it in words that can stand in a list: no capital, no full stop.
      before: of the base's record; empty where there is nothing.
      after: of the head's.
      detail: why, or what else is to be known.
      also: what else the head's record says of the same observation, such as a check that fails by it.
      configurations: where it was seen, if not everywhere.
      lost: `part` or `all` of what was compared there no longer is.
      asks: a check's kind.
      status: a check's, before and after; None where it is not there.
    """

    kind: str
    severity: str
    subject: str
    words: str
    before: str = ""
    after: str = ""
    detail: str = ""
    also: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ()
    lost: str = ""
    status: tuple[str | None, str | None] = ("", "")
    asks: str = ""


def name(value: str, limit: int = 80) -> str:
    """A record's string in a sentence."""
    return text.one_line(value, limit)


# The words that a change can begin with, and that no id is.
_FIRST = frozenset("another both every fewer how more new: no not now of other the tokens".split())


def capital(words: str) -> str:
    """A sentence's beginning; an id keeps its letters."""
    return words[:1].upper() + words[1:] if words.partition(" ")[0] in _FIRST else words


def names(values: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    shown = [name(value, 60) for value in values[:most]]
    if len(values) > most:
        shown.append(f"{text.count(len(values) - most)} more")
    return " and ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


def percent(ratio: float) -> str:
    """By how much a ratio is away from one: `15.2 %`."""
    return f"{abs(ratio - 1) * 100:.3g} %" if abs(ratio - 1) < 10 else f"{text.figure(abs(ratio - 1) * 100)} %"
