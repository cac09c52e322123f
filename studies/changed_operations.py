"""Which operations of a wrong graph are not as in the right one, by how they are computed: those that a fault changed."""

from __future__ import annotations

from hloracle.core.abi import Graph
from hloracle.localize.anatomy import Anatomy
from hloracle.reference.model.anchors import split
from hloracle.reference.model.config import Config
from hloracle.repair.examples import Called
from hloracle.repair.likeness import Shape
from hloracle.repair.subject import Subject
from hloracle.semantics.program import inputs_of


def changed_lines(right: Graph, wrong: Graph, anchor: str, config: Config) -> frozenset[int]:
    """The lines of the wrong graph's operations that compute an anchor otherwise, though what they take is computed alike.

    Where operations are missing these are the ones that take what is before the gap, and those that make it; where they are
    missing at the end, it is the one that makes the anchor. Empty where the right graph has no such anchor.
    """
    anatomies = [Anatomy(graph, config) for graph in (right, wrong)]
    if any(anchor not in anatomy.values for anatomy in anatomies):
        return frozenset()
    subjects = [_subject(anatomy, anchor) for anatomy in anatomies]
    layer = split(anchor)[0] or 0
    there = Shape(subjects[0], layer).places
    told, plain = Shape(subjects[1], layer).places, subjects[1].plain
    unlike = {place for place, how in told.items() if how not in set(there.values())}

    def makers(place: int) -> set[int]:
        return {
            m for v in inputs_of(plain.block.operations[place]) if (m := plain.makers.get(v)) is not None and m in told
        }

    # A constant belongs to what takes it: either may be named.
    constants = {p for p in unlike if plain.block.operations[p].name == "stablehlo.constant"}
    first = {place for place in unlike if not makers(place) & (unlike - constants)}
    if len(told) < len(there):
        before = {m for place in first for m in makers(place)}
        first |= before or {plain.makers[t] for t in subjects[1].targets if t in plain.makers}
    lines = {plain.lines[place][0] for place in first}
    return frozenset(lines | _returning(right, wrong))


def _returning(right: Graph, wrong: Graph) -> set[int]:
    """The line of the return, where it returns other values by name."""
    lines = [
        [(i, one.strip()) for i, one in enumerate(g.text.splitlines(), 1) if "return " in one] for g in (right, wrong)
    ]
    return {wrong[0] for right, wrong in zip(*lines, strict=False) if right[1] != wrong[1]}


def _subject(anatomy: Anatomy, anchor: str) -> Subject:
    plain = anatomy.plain()
    targets = [plain.numbers[name] for name in anatomy.targets(anchor)]
    return Subject(plain, targets, [Called(lambda name: (_ for _ in ()).throw(KeyError(name)), lambda results: 0.0)])
