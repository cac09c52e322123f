"""A graph's text in two records, operation by operation.

Texts are compared by what they say and not by their values' names: an operation that is inserted renumbers all that
follow, and that is no change. Operations of a scope are aligned by their lines without names; then each aligned pair has
to read the same values, that is, aligned ones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hloracle.core.record import ListedOp, Listing
from hloracle.reports import text
from hloracle.reports.page.align import merged

CONTEXT: Final = 3  # equal lines around those that differ, as in every unified diff
# Of more lines that differ in one scope nobody reads the difference, and to find it takes their square.
MOST_EDITS: Final = 1_000

_VALUE = re.compile(r"%[\w$.-]+")
_NUMBERED = re.compile(r"%\d+")
_LAYER = re.compile(r"\blayers\.(\d{1,9})\b|^[kv]_cache\.(\d{1,9})$")


@dataclass(frozen=True)
class Row:
    """A line of a unified diff.

    `mark` is `same`, `gone`, `new`, `other` for a line that reads as before and yet reads other values, whose names
    they have taken, or `…` for `skipped` equal lines.
    """

    mark: str
    text: str = ""
    base_line: int | None = None
    head_line: int | None = None
    skipped: int = 0


@dataclass(frozen=True)
class ScopeDiff:
    """One scope's operations; `layers` are those that changed in this way."""

    scope: str
    layers: tuple[int, ...]
    rows: tuple[Row, ...]
    gone: int
    new: int
    reason: str = ""  # why its lines are not compared


@dataclass(frozen=True)
class TextDiff:
    """The operations of a graph that both records list.

    `renamed` of its `lines` differ in names of values alone.
    """

    graph: str
    scopes: tuple[ScopeDiff, ...]
    renamed: int
    lines: int


def compare_texts(base: Listing, head: Listing) -> TextDiff:
    """Two listings of one graph, scope by scope."""
    return _Texts(base, head).compared()


@dataclass(frozen=True)
class _Line:
    """An operation: what stands between the names in its text, the names of what it makes and of what it reads."""

    op: ListedOp
    scope: str
    layer: int | None
    form: tuple[str, ...]
    made: tuple[str, ...]
    read: tuple[str, ...]

    @property
    def constant(self) -> bool:
        return bool(self.op["op"] == "constant")


@dataclass(frozen=True)
class _Group:
    """A scope of some layers that are alike, as the listing has it; `layer` is the one whose lines are listed."""

    layer: int | None
    lines: tuple[_Line, ...]


def pattern(anchor: str) -> tuple[str, int | None]:
    """An anchor with `*` for its layer, and its layer."""
    found = _LAYER.search(anchor)
    if found is None:
        return anchor, None
    digits = found[1] or found[2]
    return anchor[: found.end() - len(digits)] + "*" + anchor[found.end() :], int(digits)


class _Side:
    """One record's listing: scope -> layer -> its group, and where each value is made."""

    def __init__(self, listing: Listing) -> None:
        self.groups: dict[str, dict[int | None, _Group]] = {}
        self.makers: dict[str, _Line] = {}
        for entry in listing["scopes"]:
            scope, layer = pattern(entry["anchor"])
            lines = tuple(_line(op, scope, layer) for op in entry["ops"])
            group = _Group(layer, lines)
            self.groups.setdefault(scope, {}).update(
                dict.fromkeys([None] if layer is None else [layer, *entry["layers"]], group)
            )
            for line in lines:
                self.makers |= dict.fromkeys(line.made, line)


def _line(op: ListedOp, scope: str, layer: int | None) -> _Line:
    left, equals, right = op["text"].partition(" = ")
    made, rest = (left, right) if equals and left.startswith("%") else ("", op["text"])
    return _Line(op, scope, layer, tuple(_VALUE.split(rest)), tuple(_VALUE.findall(made)), tuple(_VALUE.findall(rest)))


class _Texts:
    def __init__(self, base: Listing, head: Listing) -> None:
        self.graph: str = head["graph"]
        self.base, self.head = _Side(base), _Side(head)
        # A value of the base -> those of the head whose operations are aligned with its own, several where the layers
        # that are alike in the base are not in the head; and the other way.
        self.twins: dict[str, set[str]] = {}
        self.origins: dict[str, set[str]] = {}
        # What no listed operation makes: arguments, and the values of layers that are not listed themselves.
        self.outside = [
            {
                read
                for groups in side.groups.values()
                for group in groups.values()
                for line in group.lines
                for read in line.read
            }
            - side.makers.keys()
            for side in (self.base, self.head)
        ]

    def compared(self) -> TextDiff:
        aligned = []
        for scope, layers, before, after in self._pairs():
            found = _aligned(before.lines, after.lines)
            aligned.append((scope, layers, before, after, found))
            for a, b in _made(before, after, found or []):
                self.twins.setdefault(a, set()).add(b)
                self.origins.setdefault(b, set()).add(a)
        scopes, renamed, lines = [], 0, 0
        for scope, layers, before, after, found in aligned:
            lines += len(after.lines)
            if found is None:
                sizes = f"{text.count(len(before.lines))} and {text.count(len(after.lines))}"
                reason = f"too much differs to be compared line by line: {sizes} operations"
                scopes.append(ScopeDiff(scope, layers, (), len(before.lines), len(after.lines), reason))
                continue
            same = self._reading_the_same(before, after, found)
            if len(same) < max(len(before.lines), len(after.lines)):
                scopes.append(_scope(scope, layers, before.lines, after.lines, same))
            renamed += sum(before.lines[i].op["text"] != after.lines[j].op["text"] for i, j in same)
        return TextDiff(self.graph, tuple(scopes), renamed, lines)

    def _pairs(self) -> Iterator[tuple[str, tuple[int, ...], _Group, _Group]]:
        """The groups that stand for the same layers, each pair once; one that a record has not is empty."""
        nothing = _Group(None, ())
        for scope in merged(list(self.head.groups), self.base.groups):
            before, after = self.base.groups.get(scope, {}), self.head.groups.get(scope, {})
            layers: dict[tuple[int, int], list[int]] = {}
            pairs: dict[tuple[int, int], tuple[_Group, _Group]] = {}
            for number in sorted(before.keys() | after.keys(), key=lambda n: -1 if n is None else n):
                pair = before.get(number, nothing), after.get(number, nothing)
                key = id(pair[0]), id(pair[1])
                pairs[key] = pair
                layers.setdefault(key, []).extend([] if number is None else [number])
            for key, pair in pairs.items():
                yield scope, tuple(layers[key]), *pair

    def _reading_the_same(
        self, before: _Group, after: _Group, aligned: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Those of the aligned operations that read the same values."""
        reader = _Reader(self, (before.layer, after.layer), dict(_made(before, after, aligned)))
        return [
            (i, j)
            for i, j in aligned
            if all(reader.same(*pair) for pair in zip(before.lines[i].read, after.lines[j].read, strict=True))
        ]


def _made(before: _Group, after: _Group, aligned: Sequence[tuple[int, int]]) -> Iterator[tuple[str, str]]:
    """What aligned operations make: names of the base and of the head."""
    for i, j in aligned:
        yield from zip(before.lines[i].made, after.lines[j].made, strict=False)


class _Reader:
    """Tells whether two names, one of the base and one of the head, are of the same value to what reads them.

    Args:
      layers: whose lines the two scopes' are.
      twins: the values that aligned operations of the scope itself make.
    """

    def __init__(self, texts: _Texts, layers: tuple[int | None, int | None], twins: dict[str, str]) -> None:
        self._texts, self._layers, self._twins = texts, layers, twins
        self._origins = {b: a for a, b in twins.items()}
        self._forth: dict[str, str] = {}
        self._back: dict[str, str] = {}

    def same(self, a: str, b: str) -> bool:
        texts = self._texts
        maker, other = texts.base.makers.get(a), texts.head.makers.get(b)
        if maker and other and maker.constant and other.constant and maker.form == other.form:
            return True
        if a in self._twins or b in self._origins:
            return self._twins.get(a) == b
        # What is new in place of another is shown where it is made, and not once more where it is read.
        if maker and other:
            return maker.scope == other.scope and (b in texts.twins.get(a, ()) or b not in texts.origins)
        if maker:
            return self._not_listed(texts.head, maker, *self._layers)
        if other:
            return self._not_listed(texts.base, other, *self._layers[::-1])
        outside = texts.outside
        named = self._layers[0] == self._layers[1] and not (_NUMBERED.fullmatch(a) and _NUMBERED.fullmatch(b))
        if named and (a == b or a in outside[1] or b in outside[0]):
            # A name that is a word is its value's own, such as a weight's, as long as both graphs have it.
            return a == b
        return self._forth.setdefault(a, b) == b and self._back.setdefault(b, a) == a

    @staticmethod
    def _not_listed(side: _Side, maker: _Line, here: int | None, there: int | None) -> bool:
        """Whether a value that one listing makes, for a reader in its layer `here`, is of a layer that the other does
        not list, for it takes it to be like another; the other's reader is in the layer `there`."""
        if here is None or there is None:
            here = there = 0
        layer = -1 if maker.layer is None else maker.layer + there - here
        if layer < 0:
            return here != there  # what the first layer reads is made outside of all layers
        group = side.groups.get(maker.scope, {}).get(layer)
        return group is not None and group.layer != layer


def _aligned(base: Sequence[_Line], head: Sequence[_Line]) -> list[tuple[int, int]] | None:
    """Indices of operations that correspond, in order, as many as can be; None where more than MOST_EDITS do not.

    Myers, An O(ND) Difference Algorithm and Its Variations, 1986: the cost grows with what differs. difflib's grows with
    the cube of the lines where they are much alike, as a graph's are.
    """
    ids: dict[tuple[str, ...], int] = {}
    a, b = ([ids.setdefault(line.form, len(ids)) for line in lines] for lines in (base, head))
    # Diagonal (index in the base less index in the head) -> how far in the base so many edits lead, for each number.
    reached: dict[int, int] = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), MOST_EDITS) + 1):
        trail.append(reached)
        reached = {}
        for k in range(-edits, edits + 1, 2):
            i = trail[-1][k + 1] if _inserted(trail[-1], k, edits) else trail[-1][k - 1] + 1
            while i < len(a) and i - k < len(b) and a[i] == b[i - k]:
                i += 1
            reached[k] = i
            if i >= len(a) and i - k >= len(b):
                return _back(trail, len(a), len(b))
    return None


def _inserted(reached: Mapping[int, int], k: int, edits: int) -> bool:
    """Whether one edit more leads farther on a diagonal by a line that only the head has, not by one of the base."""
    return k == -edits or (k != edits and reached[k - 1] < reached[k + 1])


def _back(trail: Sequence[Mapping[int, int]], i: int, j: int) -> list[tuple[int, int]]:
    """The equal lines along the way that led to the end."""
    pairs: list[tuple[int, int]] = []
    for edits in reversed(range(len(trail))):
        k, reached = i - j, trail[edits]
        inserted = _inserted(reached, k, edits)
        begin = reached[k + 1] if inserted else reached[k - 1] + 1
        while i > begin:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = (i, j - 1) if inserted else (i - 1, j)  # beyond the beginning once no edit is left
    return pairs[::-1]


def _scope(
    scope: str, layers: tuple[int, ...], base: Sequence[_Line], head: Sequence[_Line], same: Sequence[tuple[int, int]]
) -> ScopeDiff:
    rows: list[Row] = []
    i = j = 0
    for a, b in [*same, (len(base), len(head))]:
        rows += _different(base[i:a], head[j:b])
        if a < len(base):
            rows.append(Row("same", head[b].op["text"], base[a].op["line"], head[b].op["line"]))
        i, j = a + 1, b + 1
    gone, new = (sum(row.mark in (mark, "other") for row in rows) for mark in ("gone", "new"))
    return ScopeDiff(scope, layers, tuple(_with_context(rows)), gone, new)


def _different(base: Sequence[_Line], head: Sequence[_Line]) -> list[Row]:
    if [line.op["text"] for line in base] == [line.op["text"] for line in head]:
        pairs = zip(base, head, strict=True)
        return [Row("other", b.op["text"], a.op["line"], b.op["line"]) for a, b in pairs]
    return [
        *(Row("gone", line.op["text"], base_line=line.op["line"]) for line in base),
        *(Row("new", line.op["text"], head_line=line.op["line"]) for line in head),
    ]


def _with_context(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows that differ and CONTEXT equal ones around them."""
    different = [i for i, row in enumerate(rows) if row.mark != "same"]
    near = {i for at in different for i in range(at - CONTEXT, at + CONTEXT + 1)}
    for shown, run in itertools.groupby(enumerate(rows), key=lambda pair: pair[0] in near):
        found = [row for _, row in run]
        # A line that says "1 equal line" takes the place of the line.
        if shown or len(found) == 1:
            yield from found
        else:
            yield Row("…", skipped=len(found))
