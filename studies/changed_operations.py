"""Which operations of a wrong graph a fault changed: as a reader of the two texts side by side would say it, whatever values are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.unlike import MOVES
from hloracle.reference.model.config import Config
from hloracle.repair.subject import Plain
from hloracle.semantics.program import Operation, inputs_of


def changed_lines(right: Graph, wrong: Graph, anchor: str, config: Config) -> frozenset[int] | None:
    """The lines of the wrong graph's operations that are not as in the right one, of those that compute an anchor.

    These are other operations, or take other values, or other attributes. Where one is missing, they are also those that make
    what it would take; and what it would do may be done before that value was moved, or after, up to the first operation that
    computes with it. None where either graph has no such anchor: there is no operation to name then.
    """
    try:
        anatomies = [Anatomy(graph, config) for graph in (right, wrong)]
    except InputError:  # a text that does not parse
        return frozenset(i for i, one in enumerate(wrong.text.splitlines(), 1) if one not in right.text.splitlines())
    if any(anchor not in anatomy.values for anatomy in anatomies):
        return None
    (there, asked), (here, given) = (_needed(anatomy, anchor) for anatomy in anatomies)
    as_right = _same_values(there, here)
    plain, changed, gaps = here[0], set[int](), set[int]()
    for place in here[1]:
        operation = plain.block.operations[place]
        twin = as_right[0].get(place)
        if twin is None:
            changed.add(place)
            continue
        wanted = inputs_of(there[0].block.operations[twin])
        other = [v for v, w in zip(inputs_of(operation), wanted, strict=True) if as_right[1].get(v, v) != w]
        if other:
            changed.add(place)
            gaps |= {plain.makers[v] for v in other if v in plain.makers} & {*here[1]}
    if [as_right[1].get(v) for v in given] != asked:
        changed.update(plain.makers[v] for v in given if v in plain.makers)
    if len(here[1]) < len(there[1]):
        changed |= gaps
        moved = (plain.block.operations[place] for place in changed if plain.block.operations[place].name in MOVES)
        changed |= {plain.makers[v] for o in moved for v in inputs_of(o) if v in plain.makers} & {*here[1]}
        for place in here[1]:
            taken = {plain.makers.get(v) for v in inputs_of(plain.block.operations[place])} & changed
            if any(plain.block.operations[m].name in MOVES for m in taken if m is not None):
                changed.add(place)
    # A constant belongs to what takes it: either may be named.
    changed |= {
        user for place in changed if plain.block.operations[place].name == "stablehlo.constant"
        for result in plain.block.operations[place].results for user in plain.users.get(result, ()) if user in here[1]
    }  # fmt: skip
    return frozenset(plain.lines[place][0] for place in changed) | _returning(right, wrong)


def _returning(right: Graph, wrong: Graph) -> set[int]:
    """The lines that decide what is returned: the return, where it names other values; what reshapes one of the same name anew."""
    there, here = (_Returns.of(graph.text) for graph in (right, wrong))
    found = {number for number, line in here.ends if line not in [other for _, other in there.ends]}
    for name in here.names & there.reshapes.keys() & here.reshapes.keys():
        number, line = here.reshapes[name]
        if line != there.reshapes[name][1]:
            found.add(number)
    return found


@dataclass(frozen=True)
class _Returns:
    """A graph's returns, and its reshapes by what they give: numbers of lines, and the lines. names: what it returns."""

    ends: list[tuple[int, str]]
    reshapes: dict[str, tuple[int, str]]
    names: set[str]

    @classmethod
    def of(cls, text: str) -> _Returns:
        lines = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1)]
        ends = [(i, line) for i, line in lines if "return " in line]
        reshapes = {line.split()[0]: (i, line) for i, line in lines if " = stablehlo.reshape " in line}
        names = re.findall(r"%[\w.]+", ends[-1][1]) if ends else []
        return cls(ends, reshapes, set(names))


Side = tuple[Plain, Sequence[int]]


def _needed(anatomy: Anatomy, anchor: str) -> tuple[Side, list[int]]:
    """The operations of an anchor's subgraph, and the values that it gives."""
    plain = anatomy.plain()
    targets = [plain.numbers[name] for name in anatomy.targets(anchor)]
    stops = {v: name for v, name in plain.stops.items() if v not in targets}
    return (plain, plain.needed(targets, stops)), targets


def _same_values(there: Side, here: Side) -> tuple[dict[int, int], dict[int, int]]:
    """Of the wrong graph's operations the places of the same ones in the right graph, and of their values the right ones' numbers."""
    told = [[_told(plain.block.operations[place]) for place in places] for plain, places in (there, here)]
    places: dict[int, int] = {}
    by_name = {name: value for value, name in there[0].stops.items()}
    values = {value: by_name[name] for value, name in here[0].stops.items() if name in by_name}
    for block in SequenceMatcher(None, told[0], told[1], autojunk=False).get_matching_blocks():
        for i in range(block.size):
            one, other = there[1][block.a + i], here[1][block.b + i]
            places[other] = one
            results = [plain.block.operations[p].results for (plain, _), p in ((here, other), (there, one))]
            values.update(zip(*results, strict=True))
    return places, values


def _told(operation: Operation) -> str:
    """An operation without its operands and types: what it is, and how it is told to do it."""
    inner = [_told(o) for region in operation.regions for o in region.operations]
    return f"{operation.name} {len(operation.operands)} {operation.attributes} {inner}"
