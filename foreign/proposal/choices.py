"""What an ABI file has to say of a graph, and what it may say: places, and options for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hloracle.foreign.file import Entry

UNKNOWN = "unknown"  # an entry that no ABI file may have, so that what reads it names the argument
# Conventions: what many weights of a graph have in common.
OUT_FIRST, IN_FIRST = "[out, in]", "[in, out]"
PLUS_ONE, INTERLEAVED, KEYS_INTERLEAVED = "norms with 1 added", "RoPE's pairs side by side", "cached keys in pairs"
PLAIN = frozenset({IN_FIRST, OUT_FIRST})  # those of which none is unusual


@dataclass(frozen=True)
class Option:
    """What a choice may come to.

    entries: one for each place of the choice. cost: how unlikely names and shapes make it. why: in words, what speaks for it.
    uses: what no other choice may use as well. tags: the conventions that it follows. stage: where in the model it is read,
    see `Source.stage`.
    """

    entries: tuple[Entry, ...]
    cost: float
    why: str = ""
    uses: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    stage: int | None = None


@dataclass(frozen=True)
class Place:
    """An entry of an ABI file. index, type: of the first argument or result that it is of."""

    section: str
    key: str
    index: int = field(compare=False)
    type: str = field(compare=False)


@dataclass(frozen=True)
class Choice:
    """One thing that an ABI file has to say, at one place or at several; options: the likeliest first, at least one."""

    places: tuple[Place, ...]
    options: tuple[Option, ...]

    @property
    def known(self) -> bool:
        """Whether there is anything that fits."""
        return UNKNOWN not in self.options[0].entries
