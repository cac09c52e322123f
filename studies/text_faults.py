"""Faults in the text of a graph, at random: a wire, an operation, a constant or an attribute is changed in one line.

They know nothing of models: what comes of one is any StableHLO that parses and has the same types.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Operations that take and give the same types.
KINDS = {
    "add": ("subtract", "multiply", "maximum"), "subtract": ("add",), "multiply": ("add", "subtract"),
    "divide": ("multiply", "subtract"), "maximum": ("minimum", "add"), "minimum": ("maximum",), "rsqrt": ("sqrt",),
    "sqrt": ("rsqrt",), "exponential": ("tanh", "logistic"), "tanh": ("logistic",), "logistic": ("tanh",),
    "cosine": ("sine",), "sine": ("cosine",), "negate": ("abs",), "power": ("add",),
}  # fmt: skip
DIRECTIONS = {"LT": "LE", "LE": "LT", "GT": "GE", "GE": "GT", "EQ": "NE", "NE": "EQ"}
_KIND = re.compile(r'(= "?stablehlo\.)(\w+)')
_OPERANDS = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_DEFINED = re.compile(r"^\s*(%[\w$.\-]+) = .*[:>]\s*(tensor<[^>]*>)(?:\s*loc\(.*\))?\s*$")
_FLOAT = re.compile(r"dense<(-?\d+\.\d+(?:[eE][+-]?\d+)?)>")
_COMPARED = re.compile(r"\b(LT|LE|GT|GE|EQ|NE)\b")
_LIST = re.compile(r"(dims = |dimensions = |contracting_dims = |batching_dims = |dim = )([\[\]\d, x]+)")
_SLICED = re.compile(r"\[((?:\d+:\d+(?::\d+)?(?:, )?)+)\]")
TRIES = 2000


@dataclass(frozen=True)
class Fault:
    """A text with a fault in it. line: where, counted from 1; what: what was changed, in words."""

    text: str
    line: int
    what: str


def faults(text: str, seed: int, last: int | None = None) -> Iterator[Fault]:
    """Faults of a text, of one kind, without end: most of them parse. last: the last line that is changed.

    Each text has its own for a seed, and each kind is as likely: a wire can be changed nearly everywhere, a constant hardly anywhere.
    """
    rng = random.Random(f"{seed} {text}")
    lines = text.split("\n")
    places = [i for i, line in enumerate(lines[:last]) if " = " in line and "stablehlo." in line]
    makers: list[Callable[[random.Random, list[str], int], str | None]] = [_wire, _operation, _constant, _attribute]
    maker = rng.choice(makers)
    for _ in range(TRIES):
        i = rng.choice(places)
        changed = maker(rng, lines, i)
        if changed is not None and changed != lines[i]:
            kind = maker.__name__.strip("_")
            yield Fault(
                "\n".join([*lines[:i], changed, *lines[i + 1 :]]), i + 1, f"{kind}: {_short(lines[i], changed)}"
            )


def _short(before: str, after: str) -> str:
    """The two lines where they differ."""
    start = next(i for i, (a, b) in enumerate(zip(f"{before}\0", f"{after}\0", strict=False)) if a != b)
    start = max(0, start - 12)
    return f"`{before[start : start + 60].strip()}` is `{after[start : start + 60].strip()}`"


def _wire(rng: random.Random, lines: list[str], i: int) -> str | None:
    """Another operand of the same type, of those that were defined a little earlier; or two operands change places."""
    left, _, right = lines[i].partition(" = ")
    operands = [o for o in _OPERANDS.findall(right.split(" : ")[0]) if not o.startswith("%cst")]
    if not operands:
        return None
    types: dict[str, str] = {}
    for j in range(i - 1, max(-1, i - 400), -1):
        if "func.func" in lines[j]:
            break
        if found := _DEFINED.match(lines[j]):
            types.setdefault(found[1], found[2])
    old = rng.choice(operands)
    same = [name for name, type in types.items() if type == types.get(old) and name != old][:12]
    if not same or old not in types:
        return None
    at = rng.choice([m.start() for m in re.finditer(rf"{re.escape(old)}(?![\w$.\-#])", right)])
    return f"{left} = {right[:at]}{rng.choice(same)}{right[at + len(old) :]}"


def _operation(rng: random.Random, lines: list[str], i: int) -> str | None:
    found = _KIND.search(lines[i])
    if not found or found[2] not in KINDS:
        return None
    return f"{lines[i][: found.start(2)]}{rng.choice(KINDS[found[2]])}{lines[i][found.end(2) :]}"


def _constant(rng: random.Random, lines: list[str], i: int) -> str | None:
    found = _FLOAT.search(lines[i]) if "stablehlo.constant" in lines[i] else None
    if not found:
        return None
    number = float(found[1])
    new = rng.choice([number * 2, -number, number + 1]) if number else 0.5
    return f"{lines[i][: found.start(1)]}{new:e}{lines[i][found.end(1) :]}"


def _attribute(rng: random.Random, lines: list[str], i: int) -> str | None:
    """Two numbers of a list of axes change places, a slice begins one earlier or later, a comparison is another."""
    line = lines[i]
    if "stablehlo.compare" in line and (found := _COMPARED.search(line)):
        return f"{line[: found.start()]}{DIRECTIONS[found[1]]}{line[found.end() :]}"
    if "stablehlo.slice" in line and (found := _SLICED.search(line)):
        parts = [p.split(":") for p in found[1].split(", ")]
        shift = rng.choice([-1, 1])
        part = rng.choice(parts)
        part[:2] = [str(int(n) + shift) for n in part[:2]]
        return f"{line[: found.start(1)]}{', '.join(':'.join(p) for p in parts)}{line[found.end(1) :]}"
    if found := _LIST.search(line):
        numbers = re.findall(r"\d+", found[2])
        if len(numbers) > 1:
            a, b = rng.sample(range(len(numbers)), 2)
            numbers[a], numbers[b] = numbers[b], numbers[a]
        else:
            numbers = [str(rng.choice([0, 1, 2]))]
        left = iter(numbers)
        return line[: found.start(2)] + re.sub(r"\d+", lambda _: next(left), found[2]) + line[found.end(2) :]
    return None
