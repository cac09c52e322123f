"""Names the anchors of a graph that names none: `matching.py` finds them among its values, `annotate.py` writes them down.

Of a graph that is wrong, what comes after the first wrong value is no anchor's any more. So a value is replaced by what it
should be: where what comes after it is right then, that value is the anchor, and it is wrong by itself.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloracle.core.abi import Graph
from hloracle.core.child import Report
from hloracle.localize.annotate import Flat, annotated, sliced, type_of, values_of, variant
from hloracle.localize.inline import operands_of
from hloracle.localize.matching import Match, Scene, find
from hloracle.localize.situation import Situation
from hloracle.localize.substitution import Round, Trial
from hloracle.localize.workbench import Workbench
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.reference.model.config import Config

AHEAD = 6  # lost anchors that are tried to be put right, and of what follows each, those that are looked for
ROUNDS = (
    4  # in which some are put right: a fault that all layers share, such as a RoPE table, is known by the first of them
)
MOST_REPLACED = 64  # values that can be replaced in one graph
JOINING = ("stablehlo.concatenate", "stablehlo.dynamic_update_slice", "stablehlo.scatter")
_LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True)
class Named:
    """What was found of a graph's anchors.

    matches: the anchors that were found, in the order of computation. wrong: those whose value is wrong by itself, as was seen
      when it was replaced. missing: those that no value is.
    """

    matches: tuple[Match, ...]
    wrong: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def explicit(graph: Graph, named: Named, config: Config, situation: Situation) -> Graph:
    """The graph with these anchors at locations of their names; of several rows the one that they were found in is judged."""
    row = judged_row(graph, situation)
    return annotated(graph.of_row(row), named.matches, config, situation.queries, situation.keys, row)


def judged_row(graph: Graph, situation: Situation) -> int:
    """The row that is judged in a call."""
    return (situation.position if situation.phase == "decode" else situation.length) % graph.rows


class Search:
    """Looks for the anchors of a graph among its values in one call.

    Args:
      situation: the call. reads: of each anchor, those that the oracle computes it from.
    """

    def __init__(
        self, graph: Graph, situation: Situation, bench: Workbench, reads: Mapping[str, Collection[str]], report: Report
    ) -> None:  # fmt: skip
        self._graph, self._situation, self._bench = graph, situation, bench
        self._reads, self._report = reads, report
        self._scene = Scene(situation.config, situation, graph.rows, judged_row(graph, situation))
        self._order = {a: i for i, a in enumerate(anchors(situation.config))}
        self._head = head_of(Flat(graph))

    def named(self) -> Named:
        """Find all anchors; where the graph is wrong, by putting right what is wrong, one value after another."""
        self._report(f"looking for the anchors of {self._graph.name} among its values")
        matches = self._borne_out(self._found([], [*self._order, *self._wholes()]))
        trials: list[Trial] = []
        for _ in range(ROUNDS):
            if not (lost := self._lost(matches)):
                break
            self._report(f"{self._graph.name}: {lost[0]} is not found; putting right what may be it")
            if not (repaired := self._repaired(lost, matches, trials)):
                break
            trials += repaired
            own = [trial.match for trial in repaired]
            have = {m.anchor for m in (*matches, *own)}
            more = self._found(trials, [a for a in self._order if a not in have])
            matches = self._borne_out([*matches, *own, *more])
        missing = tuple(a for a in self._order if a not in {m.anchor for m in matches})
        return Named(tuple(matches), tuple(t.match.anchor for t in trials), missing)

    def _wholes(self) -> list[str]:
        """The whole caches after each layer's write, which a decode graph may have, too."""
        config = self._situation.config
        if self._situation.phase != "decode" or config.num_hidden_layers == 1:
            return []
        return [f"{part}.{layer}+" for layer in range(config.num_hidden_layers) for part in CACHES]

    def _borne_out(self, matches: Sequence[Match]) -> list[Match]:
        """Without those that are an anchor times a constant, and nothing that is computed from them is right: they are wrong."""
        whole = {m.anchor for m in matches if m.layout.factor == 1}
        return self._sorted([m for m in matches if m.anchor in whole or self._after(m.anchor) & whole])

    def _sorted(self, matches: Sequence[Match]) -> list[Match]:
        return sorted(matches, key=lambda m: (self._order[m.anchor.removesuffix("+")], m.anchor))

    def _replaceable(self, graph: Graph) -> Callable[[Sequence[Trial]], list[np.ndarray]]:
        """What a graph returns with some of its values replaced."""
        shapes = {a.name: a.shape for a in graph.abi.arguments}

        def value(name: str) -> np.ndarray:
            if name.endswith("?"):
                return np.array(False)
            return (
                np.zeros(shapes[name], np.float32)
                if name.isdigit()
                else self._situation.value(name, self._bench.weight)
            )

        run = self._bench.again(graph, value)

        def replaced(trials: Sequence[Trial]) -> list[np.ndarray]:
            taken = {f"{t.match.value}?": np.array(True) for t in trials}
            return run({**taken, **{str(t.match.value): t.override for t in trials}})

        return replaced

    def _sizes(self, wanted: Sequence[str]) -> set[int]:
        scene = self._scene
        counts = {1, scene.rows, self._situation.queries, scene.rows * self._situation.queries}
        return {scene.expected(a).size * n for a in wanted for n in counts}

    def _found(self, trials: Sequence[Trial], wanted: Sequence[str]) -> list[Match]:
        """The anchors among all values of the graph, once these values are replaced."""
        found: dict[str, Match] = {}
        returned = True
        replaced = [t.match.value for t in trials]
        for some in values_of(self._graph, self._sizes(wanted), lambda g: self._replaceable(g)(trials), replaced):
            left = [a for a in wanted if a not in found or not found[a].plain]
            for match in find(self._scene, some, left):
                if match.anchor not in found or match.plain:
                    found[match.anchor] = match
            if self._head in some:
                returned = bool(find(self._scene, {self._head: some[self._head]}, ["lm_head"]))
        # Logits that are right and are changed before they are returned are none.
        return self._sorted([m for m in found.values() if returned or m.anchor != "lm_head"])

    # ---- what is lost

    def _lost(self, matches: Sequence[Match]) -> list[str]:
        """The anchors that are nowhere, and nothing that is computed from them either, in order.

        One that is nowhere, while what is computed from it is right, is none that the graph has as a value.
        """
        there = {m.anchor for m in matches}
        return [a for a in self._order if a not in there and not self._after(a) & there]

    def _after(self, anchor: str) -> set[str]:
        """The anchors that are computed from one."""
        return self._following.get(anchor, set())

    @functools.cached_property
    def _following(self) -> dict[str, set[str]]:
        readers: dict[str, list[str]] = {}
        for anchor, read in self._reads.items():
            for one in read:
                readers.setdefault(one, []).append(anchor)
        found: dict[str, set[str]] = {}
        for anchor in reversed(self._order):  # what is computed from one comes after it
            own = readers.get(anchor, [])
            found[anchor] = {*own, *(a for one in own for a in found.get(one, ()))}
        return found

    def _repaired(self, lost: Sequence[str], matches: Sequence[Match], before: Sequence[Trial]) -> list[Trial]:
        """Those of the first lost anchors that make what comes after them right where they are put in place of values.

        Each is tried once those before it are in place: it is wrong by itself only if that alone does not make it right.
        """
        flat = Flat(self._graph)
        right = _ancestors(flat, [m.value for m in matches])
        # A value that is made of nothing that it should be made of is looked for last.
        for some, made in ((lost[:AHEAD], True), (lost[:AHEAD], False), (lost[AHEAD : 3 * AHEAD], True)):
            places = {anchor: self._places(flat, anchor, matches, right, made) for anchor in some}
            replaced = sorted({i for of in places.values() for i in of})[:MOST_REPLACED]
            if not replaced:
                continue
            targets = {a: [t for t in lost if t in self._after(a)][:AHEAD] or ["lm_head"] for a in some}
            sizes = self._sizes([*some, *{t for of in targets.values() for t in of}])
            end = max(replaced) + 2 * len(flat.operations) // max(self._situation.config.num_hidden_layers, 1)
            own = [t.match.value for t in before]
            now = sorted({*next(sliced(flat, sizes, range(min(replaced), end)), []), *replaced})
            call = self._replaceable(variant(self._graph, now, [*own, *replaced]))

            def run(trials: Sequence[Trial]) -> dict[int, np.ndarray]:
                return dict(zip(now, call([*before, *trials]), strict=True))  # noqa: B023  (it runs in this round)

            if found := Round(self._scene, flat, self._reads, matches, places, targets, run, self._head).repaired():
                return found
        return []

    def _read(self, anchor: str, known: Collection[str]) -> set[str]:
        """The known anchors that one is computed from: directly, or by way of those that are not known."""
        found, seen, todo = set[str](), set[str](), [anchor]
        while todo:
            read = set(self._reads.get(todo.pop(), ()))
            found |= read & set(known)
            todo += read - found - seen
            seen |= read
        return found

    def _places(
        self, flat: Flat, anchor: str, matches: Sequence[Match], right: Collection[int], made_of_them: bool
    ) -> list[int]:  # fmt: skip
        """The values that may be an anchor: of its size, after what it is computed from, and made of nothing of a later layer.

        right: those that cannot be. made_of_them: and made of what it is computed from.

        Last of all, what it is computed from itself: nothing may have been computed of it, such as a sum that was left out.
        """
        at = {m.anchor: m.value for m in matches}
        read = [at[a] for a in self._read(anchor, at)]
        begin, made = max(read, default=0), _made_from(flat, read)
        layer = split(anchor)[0]
        later = _reading_later_layers(flat, layer) if layer is not None else set()
        sizes = self._sizes([anchor])
        found = [
            i for i, v in flat.floats.items()
            if i > begin and i not in right and i not in later and flat.own[i] and (not (read and made_of_them) or i in made) and math.prod(type_of(v)[0]) in sizes
        ][:MOST_REPLACED // 4]  # fmt: skip
        itself = read and flat.own[begin] and math.prod(type_of(flat.floats[begin])[0]) in sizes
        return [*found, begin] if itself else found


def head_of(flat: Flat) -> int:
    """The value that a graph returns as its head; -1 where it is none of floats."""
    head = flat.operations[-1].operands[0]
    return next((i for i, value in flat.floats.items() if value == head), -1)


def _ancestors(flat: Flat, values: Sequence[int]) -> set[int]:
    """The operations that these values are computed by, themselves included; of what is joined, not what it is joined of.

    Values that are right may be a part of what is joined, such as a cache of keys and values.
    """
    place = {op.operation: i for i, op in enumerate(flat.operations)}
    found: set[int] = set()
    todo = list(values)
    while todo:
        i = todo.pop()
        if i not in found:
            found.add(i)
            if flat.operations[i].operation.name in JOINING:
                continue
            makers = (getattr(v, "owner", None) for v in operands_of(flat.operations[i]))
            todo += [place[op] for op in makers if op in place]
    return found


def _made_from(flat: Flat, values: Sequence[int]) -> set[int]:
    """The operations that any of these values goes into."""
    return _reached(flat, {flat.operations[i].results[0] for i in values})


def _reading_later_layers(flat: Flat, layer: int) -> set[int]:
    """The operations that depend on a weight of a later layer."""
    late = {
        v for v, a in zip(flat.block.arguments, flat.graph.abi.arguments, strict=True)
        if any(int(n) > layer for n in _LAYER.findall(a.name))
    }  # fmt: skip
    return _reached(flat, late)


def _reached(flat: Flat, values: set[Any]) -> set[int]:
    """The operations that any of these values goes into, directly or not."""
    known, found = set(values), set[int]()
    for i, operation in enumerate(flat.operations):
        if any(v in known for v in operands_of(operation)):
            found.add(i)
            known.update(operation.results)
    return found
