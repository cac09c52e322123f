"""A proposed ABI file: what it says, how sure that is, and its text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloracle.core.shown import shown
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.foreign.file import VERSION, Entry
from hloracle.foreign.proposal.choices import UNKNOWN, Place
from hloracle.foreign.proposal.errors import CLOSE, Error

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Limits:
    """tries: how many assignments of weights and inputs may be run, of each graph. seconds: how long it may look for them."""

    tries: int = 1000
    seconds: float = 600


@dataclass(frozen=True)
class Said:
    """An entry of the file.

    others: what names and types leave as well, and whether it computes the same; None where that was not tried.
    why: what speaks for the entry, where there is something to say.
    """

    place: Place
    entry: Entry
    others: tuple[tuple[str, bool | None], ...] = ()
    why: str = ""

    @property
    def known(self) -> bool:
        """Whether there was anything that fits."""
        return self.entry != UNKNOWN

    @property
    def comment(self) -> str:
        """How sure it is, in words; empty where names and types leave nothing else."""
        if not self.known:
            return f"could not tell: nothing of the model is {self.place.type} there, as far as names and types say"
        said = [
            f"or {other}" if same is None else f"{other} computes {'the same' if same else 'wrong'}"
            for other, same in self.others
        ]
        if not said and self.why:
            said.append(self.why)
        return f"guessed: {'; '.join(said)}" if said else ""


@dataclass(frozen=True)
class Verified:
    """What a graph computes with the proposal. graph: the name of its file."""

    graph: str
    error: Error

    @property
    def right(self) -> bool:
        """Whether its logits and its caches are Hugging Face's, as a run of `check` would hold them to it."""
        return self.error.logits <= ANCHOR_FLOORS and self.error.caches <= ANCHOR_FLOORS and not self.error.why

    @property
    def words(self) -> str:
        """What is to be said of it."""
        error = self.error
        if error.why:
            return f"{self.graph} cannot be run ({shown(error.why)})"
        if self.right:
            caches = f" and caches within {error.caches:.2g}" if len(error.relative) > 1 else ""
            return f"{self.graph} computes Hugging Face's logits within {error.logits:.2g} floors{caches}"
        logits = error.relative[-1]
        if error.close:
            return f"{self.graph} computes Hugging Face's logits up to {max(error.relative):.1g} of the largest, as narrower products would"
        if error.logits <= ANCHOR_FLOORS:
            keys, values = error.relative[:-1:2], error.relative[1:-1:2]
            which = "the values in its caches" if all(e < CLOSE for e in keys) else "its caches"
            if all(e < CLOSE for e in values):
                which = "the keys in its caches, which may lie in an order that the entry does not say"
            return f"{self.graph} computes Hugging Face's logits within {error.logits:.2g} floors, but not {which}"
        agree = sum(e < CLOSE for e in error.relative)
        return f"{self.graph} is {logits:.2g} of the largest logit away from Hugging Face, with {agree} of {len(error.relative)} values right"


@dataclass(frozen=True)
class Proposal:
    """What was found.

    said: in the order of the file. phases: phase -> its function, and a pattern of its files or nothing. verified: of each
    graph that could be run. tries: how many assignments were run, on a sequence of so many tokens. refused: why the file
    does not hold the graphs, where it should.
    """

    said: tuple[Said, ...]
    phases: Mapping[str, tuple[str, str]]
    verified: tuple[Verified, ...]
    tries: int
    tokens: int
    refused: str = ""

    @property
    def unknown(self) -> tuple[Said, ...]:
        """What could not be told."""
        return tuple(s for s in self.said if not s.known)

    @property
    def right(self) -> bool:
        """Whether every graph computes what the model computes."""
        return bool(self.verified) and all(v.right for v in self.verified) and not self.unknown and not self.refused

    @property
    def closing(self) -> str:
        """How far it got, in one line."""
        if self.unknown:
            first, *more = self.unknown
            others = f" and {len(more)} more" if more else ""
            return f"could not tell what {shown(first.place.key, 80)} ({first.place.type}) is{others}: write it by hand"
        if self.refused:
            return f"the file does not hold the graphs: {shown(self.refused)}"
        tried = f"{self.tries} tr{'y' if self.tries == 1 else 'ies'}"
        return f"{'; '.join(v.words for v in self.verified)}; on {self.tokens} tokens, after {tried}"


def written(proposal: Proposal, graphs: Sequence[str], model: str) -> str:
    """The text of the file."""
    guessed = sum(bool(s.comment) and s.known for s in proposal.said)
    lines = [f"# Proposed by `hloracle abi` for {', '.join(map(shown, graphs))} of {shown(model)}."]
    if guessed:
        lines.append("# `guessed` stands where names and types leave more than one.")
    lines += [f"version = {VERSION}", "", "[weights]", *_section(proposal, "weights")]
    states = {str(s.entry).removeprefix("state.") for s in proposal.said if str(s.entry).startswith("state.")}
    if states:
        lines += ["", "[state]", *(f"{_key(name)} = 0  # guessed: what it starts with" for name in sorted(states))]
    for phase, (function, pattern) in proposal.phases.items():
        head = [f"function = {_quoted(function)}"] if function != "main" else []
        head += [f"file = {_quoted(pattern)}"] if pattern else []
        if head:
            lines += ["", f"[{phase}]", *head]
        for part in ("inputs", "results"):
            lines += ["", f"[{phase}.{part}]", *_section(proposal, f"{phase}.{part}")]
    return "\n".join(lines) + "\n"


def _section(proposal: Proposal, section: str) -> list[str]:
    lines = []
    for said in (s for s in proposal.said if s.place.section == section):
        entry = f"{_key(said.place.key)} = {_value(said.entry)}"
        lines.append(f"{entry}  # {said.comment}" if said.comment else entry)
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key)


def _value(entry: Entry) -> str:
    return _quoted(entry) if isinstance(entry, str) else json.dumps(entry)


def _quoted(text: str) -> str:
    # JSON's escapes are among those of TOML's strings.
    return json.dumps(text, ensure_ascii=False)
