"""What compilers made of the graphs: how long they took, and how large the programs are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hloracle.core.record import Configuration, Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, percent

# A program's size is the same each time; a compiler's own code differs from release to release by some hundredths.
SIZE: Final = 0.10
# A compiler's time is not: other work on the machine may take half of it.
SLOWER, SECONDS = 1.5, 1.0


@dataclass(frozen=True)
class ProgramDiff:
    """A configuration's programs together, of the graphs of which both records know it; None where neither does.

    graphs: how many they are. seconds, bytes: before and after.
    """

    configuration: str
    graphs: int
    seconds: tuple[float, float] | None
    bytes: tuple[int, int] | None

    @property
    def slower(self) -> float | None:
        """The head's seconds in units of the base's."""
        return self.seconds[1] / self.seconds[0] if self.seconds and self.seconds[0] else None

    @property
    def larger(self) -> float | None:
        """The head's bytes in units of the base's."""
        return self.bytes[1] / self.bytes[0] if self.bytes and self.bytes[0] else None


def compare_programs(base: Record, head: Record) -> tuple[ProgramDiff, ...]:
    """Each configuration that is in both records and whose compilers say something."""
    before = {c["id"]: c for c in base["configurations"]}
    rows = (_configuration(before[c["id"]], c) for c in head["configurations"] if c["id"] in before)
    return tuple(row for row in rows if row.seconds or row.bytes)


def _configuration(before: Configuration, after: Configuration) -> ProgramDiff:
    old = {program["graph"]: program for program in before.get("programs", [])}
    pairs = [(old[p["graph"]], p) for p in after.get("programs", []) if p["graph"] in old]
    times = [(a["seconds"], b["seconds"]) for a, b in pairs]
    sizes = [(a["bytes"], b["bytes"]) for a, b in pairs]
    seconds = [(x, y) for x, y in times if x is not None and y is not None]
    bytes = [(x, y) for x, y in sizes if x is not None and y is not None]
    return ProgramDiff(
        after["id"],
        max(len(seconds), len(bytes)),
        (sum(x for x, _ in seconds), sum(y for _, y in seconds)) if seconds else None,
        (sum(x for x, _ in bytes), sum(y for _, y in bytes)) if bytes else None,
    )


def program_changes(programs: tuple[ProgramDiff, ...]) -> Iterator[Change]:
    """Programs of another size, and compilers that take longer or shorter by more than a busy machine explains."""
    for diff in programs:
        where, of = name(diff.configuration, 60), f"{text.plural(diff.graphs, 'graph')} together"
        if diff.bytes and diff.larger and not 1 / (1 + SIZE) <= diff.larger <= 1 + SIZE:
            before, after = map(text.size, diff.bytes)
            words = f"the programs of {where} are {percent(diff.larger)} {'larger' if diff.larger > 1 else 'smaller'}"
            yield Change("program", "changed", diff.configuration, words, before, after, of)
        if diff.seconds and diff.slower and abs(diff.seconds[1] - diff.seconds[0]) >= SECONDS:
            if 1 / SLOWER <= diff.slower <= SLOWER:
                continue
            shown, longer = percent(diff.slower), "longer" if diff.slower > 1 else "less"
            before, after = map(text.duration, diff.seconds)
            words = f"compiling for {where} takes {shown} {longer}"
            yield Change("program", "changed", diff.configuration, words, before, after, of)
