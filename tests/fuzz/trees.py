"""Spoils what JSON and TOML say: values of other types and sizes, keys that are gone, doubled or unknown."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from fuzz.spoil import LONG, WORDS, any_bytes, odd_word, text

Path = tuple[str | int, ...]


def _deep(depth: int) -> Any:
    value: Any = 1
    for i in range(depth):
        value = [value] if i % 2 else {"a": value}
    return value


def _often(value: list[Any]) -> list[Any]:
    """A list over and over. Of a record that is itself large, 2000 would be hundreds of megabytes, which take minutes to write."""
    return value * max(2, min(2000, 10**6 // len(repr(value))))


def odd_value(rng: random.Random, value: Any) -> Any:
    """Another value in place of one: of the same type in four cases of ten."""
    if isinstance(value, bool) or rng.random() < 0.6:
        return rng.choice((
            None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**39, 10**60, 0.5, -0.0, 1e300, 1e-320, 5e-324, float("nan"), float("inf"), "",
            [], {}, [[]], [None], [1, "a"], {"": 0}, {"a": {}}, _deep(30), _deep(150), "x" * LONG, ["a"] * 3000, [0] * 3000,
            {str(i): i for i in range(2000)}, odd_word(rng), odd_word(rng), rng.choice(WORDS),
        ))  # fmt: skip
    if isinstance(value, int):
        return rng.choice(
            (
                value + 1,
                value - 1,
                -value,
                value * 2,
                value * 1000,
                value * 10**6,
                0,
                1,
                3,
                7,
                float(value),
                str(value),
                2**40,
            )
        )
    if isinstance(value, float):
        return rng.choice((-value, value * 1e30, value * 1e-30, 0.0, int(value), str(value), 1e308))
    if isinstance(value, str):
        return odd_word(rng, value)
    if isinstance(value, list):
        return rng.choice(
            (value[:-1], value + value, value[::-1], [*value, None], _often(value[:1]), [value], value[:1])
        )
    if isinstance(value, dict):
        return rng.choice(
            (dict(list(value.items())[:-1]), list(value), list(value.values()), {**value, odd_word(rng): 1})
        )
    return odd_word(rng)


def paths(value: Any, at: Path = ()) -> list[Path]:
    """Of every value in a tree, its own last."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in inner for path in paths(one, (*at, key))] + [at]


def spoil_tree(rng: random.Random, value: Any) -> Any:
    """A copy of a tree with one value replaced, left out or doubled, or one key changed."""
    found = paths(value)
    # Long lists have most of the values; a path of few steps is taken as often as one of many.
    depth = rng.choice(sorted({len(path) for path in found}))
    return _changed(rng, value, rng.choice([path for path in found if len(path) == depth]))


def _changed(rng: random.Random, value: Any, path: Path) -> Any:
    if not path:
        return odd_value(rng, value)
    key, *rest = path
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[key] = _changed(rng, value[key], tuple(rest))
        return copy
    match rng.randrange(6):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[odd_word(rng, str(key))] = copy.pop(key)
        case 2:
            other = rng.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
            copy[key], copy[other] = copy[other], copy[key]
        case _:
            copy[key] = odd_value(rng, copy[key])
    return copy


def json_text(rng: random.Random, data: bytes) -> bytes:
    """JSON with its values spoilt, or its text."""
    if rng.random() < 0.2:
        return text(rng, data)
    try:
        value = json.loads(data)
    except ValueError:
        return any_bytes(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = spoil_tree(rng, value)
    written = json.dumps(value, indent=rng.choice((None, None, 1)))
    if rng.random() < 0.05:  # a key twice
        written = re.sub(r'("\w+": ?[^,{\[]+,)', r"\1 \1", written, count=1)
    return written.encode("utf-8", "surrogatepass")


def toml_text(rng: random.Random, data: bytes) -> bytes:
    """TOML with a value, a key or a table of it spoilt, or its text."""
    if rng.random() < 0.4:
        return text(rng, data)
    rows = data.decode("utf-8", "replace").split("\n")
    at = rng.randrange(len(rows))
    key, equals, value = rows[at].partition("=")
    match rng.randrange(5):
        case 0 if equals:
            rows[at] = f"{key}= {_toml(rng, odd_value(rng, value.strip()))}"
        case 1 if equals:
            rows[at] = f"{json.dumps(odd_word(rng, key.strip()))} = {value}"
        case 2:
            rows.insert(at, f"[{rng.choice(('a', 'a.b', json.dumps(odd_word(rng)), key.strip() or 'x'))}]")
        case 3:
            rows.insert(
                at,
                f"{rng.choice(('x', json.dumps(odd_word(rng)), 'model', 'version', 'a.b.c'))} = {_toml(rng, odd_value(rng, 1))}",
            )
        case _ if equals:
            quoted = re.sub(r'"[^"]*"', lambda _: json.dumps(odd_word(rng)), value, count=1)
            rows[at] = f"{key}={quoted}"
        case _:
            del rows[at]
    return "\n".join(rows).encode("utf-8", "surrogatepass")


def _toml(rng: random.Random, value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(rng, v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(rng, one) for one in value) + "]"
    if isinstance(value, float):
        return repr(value)
    if value is None:
        return rng.choice(("1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "''"))
    return json.dumps(value)


def json_lines(rng: random.Random, data: bytes) -> bytes:
    """One line of a file of JSON lines spoilt."""
    rows = data.split(b"\n")
    at = rng.randrange(len(rows))
    rows[at] = json_text(rng, rows[at]).replace(b"\n", b"")
    return b"\n".join(rows)
