"""Puts wrong graphs right: one anchor after another, until none is wrong by itself, each by a change of one operation."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hloracle.core.abi import Graph
from hloracle.core.child import Report
from hloracle.core.errors import InputError
from hloracle.localize.anatomy import anatomy_of, peer_of
from hloracle.localize.blame import Blame, blame
from hloracle.localize.calls import calls_of, probes_of
from hloracle.localize.patch import Line, as_diff, lines_between, lines_with, patched
from hloracle.localize.situation import ReferenceRun
from hloracle.localize.suspect import Suspect, is_small
from hloracle.repair.changes import TIERS, changes
from hloracle.repair.changes.numbers import insertions, number_of
from hloracle.repair.subject import CANNOT, Edit

SECONDS = 20.0  # for the changes of one anchor
ALL_SECONDS = 60.0  # for all anchors of all graphs
MOST_LINES = 128  # of one graph that are changed: the same mistake in every layer


@dataclass(frozen=True)
class Mended:
    """Graphs with the changes that put them right.

    graphs: all of a side, in its order; those that had nothing wrong are as they were. lines: that were changed, with the name of
      their graph and their number in it as it was. diff: all of them, as `patch` and `git apply` take it. words: what the first change is.
    """

    graphs: tuple[Graph, ...]
    lines: tuple[tuple[str, Line], ...]
    diff: str
    words: str


class Mender:
    """Blames and mends graphs of one side.

    Args:
      run: calls whose right values are known. oracles: right graphs, with which others are compared on any inputs.
    """

    def __init__(self, run: ReferenceRun, oracles: Sequence[Graph], report: Report) -> None:
        self._run, self._oracles, self._report = run, oracles, report
        self._known: dict[Graph, dict[str, float]] = {}
        self.suspect = functools.lru_cache(maxsize=2)(self._suspect)

    def _suspect(self, graph: Graph) -> Suspect:
        run = self._run
        run = dataclasses.replace(run, batch=graph.abi.batch)
        if graph.abi.phase != "decode" and graph.abi.bucket != run.bucket:  # the same prompt, or as much of it as fits
            run = dataclasses.replace(run, bucket=graph.abi.bucket, length=min(run.length, graph.abi.bucket))
        anatomy, abi = anatomy_of(graph, run.config), graph.abi
        oracle = next((o for o in self._oracles if _alike(o, graph)), None) if is_small(anatomy.plain()) else None
        peer = peer_of(anatomy, oracle) if oracle else None
        return Suspect(
            anatomy,
            [*calls_of(run, abi.phase, abi.capacity), *probes_of(anatomy, peer, run.weight)],
            self._known.get(graph),
        )

    def blame(self, graph: Graph, anchor: str) -> Blame:
        """The operations of an anchor's subgraph whose change makes it right."""
        self._report(f"trying what would put {anchor} right")
        return blame(self.suspect(graph), anchor, SECONDS)

    def mended(self, graphs: Sequence[Graph], first: tuple[Graph, Edit], words: str) -> Mended | None:
        """The graphs put right, beginning with a change that is known; None where that comes to no end.

        Args:
          first: one of the graphs, and what has to be changed in it. words: the same for a reader.
        """
        end = time.monotonic() + ALL_SECONDS
        done: set[tuple[str, str]] = set()
        right: list[Graph] = []
        changed: list[tuple[str, Line]] = []
        edits = [first[1]]
        for graph in sorted(graphs, key=lambda g: g is not first[0]):
            now = graph
            begin = first[1] if graph is first[0] else None
            for _ in range(MOST_LINES):
                found = self._next(now, begin, edits, end)
                if found is None:
                    return None
                edit, lines = found
                if not lines:
                    break
                now_changed = {(graph.name, line.before) for line in lines}
                if now_changed & done:
                    return None
                if edit is not None:
                    edits.insert(0, edit)
                done |= now_changed
                known = self.suspect(now).unchanged([line.number for line in lines])
                now, begin = patched(now, lines), None
                self._known[now] = known
            else:
                return None
            right.append(now)
            changed += [(graph.name, line) for line in lines_between(graph, now)]
        by_name = {g.name: g for g in right}
        diff = "".join(as_diff(g, by_name[g.name], f"{g.name}.mlir") for g in graphs)
        return Mended(tuple(by_name[g.name] for g in graphs), tuple(changed), diff, words)

    def _next(
        self, graph: Graph, begin: Edit | None, known: Sequence[Edit], end: float
    ) -> tuple[Edit | None, list[Line]] | None:  # fmt: skip
        """The next change of a graph; without lines where nothing is wrong any more, and None where nothing helps."""
        try:
            suspect = self.suspect(graph)
            if begin is not None:
                lines = lines_with(suspect.anatomy, begin)
                return (begin, lines) if lines else None
            wrong = suspect.wrong()
            if not wrong:
                return None, []
            edit = _as_before(suspect, wrong[0], known)
            if edit is None:
                if time.monotonic() > end:
                    return None
                found = self.blame(graph, wrong[0]).candidates
                if not found:
                    return None
                edit = found[0].repairs[0].edit
            lines = lines_with(suspect.anatomy, edit)
            return (edit, lines) if lines else None
        except (InputError, *CANNOT):  # a text that does not parse, or what cannot be evaluated
            return None


def _alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs are of one phase, bucket, capacity and batch."""
    of = [(g.abi.phase, g.abi.capacity, g.abi.bucket, g.abi.batch) for g in (one, other)]
    return of[0] == of[1]


def _as_before(suspect: Suspect, anchor: str, known: Iterable[Edit]) -> Edit | None:
    """A change like one that was made before, such as in another layer, if that makes an anchor right."""
    subject = suspect.subject(anchor)
    for edit in _like(suspect, subject.blamed, known):
        if suspect.right_with(anchor, edit):
            return edit
    return None


def _like(suspect: Suspect, places: Sequence[int], known: Iterable[Edit]) -> Iterator[Edit]:
    plain = suspect.plain
    for like in {(e.kind, e.words): e for e in known if e.kind != "operand"}.values():
        for place in places:
            if like.kind == "number":
                tried = (i.with_number(number_of(like)) for i in insertions(plain, place))
            else:
                tried = (e for tier in range(len(TIERS)) for e in changes(plain, place, tier))
            yield from (e for e in tried if (e.kind, e.words) == (like.kind, like.words))
