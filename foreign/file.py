"""The ABI file of somebody else's emitter, as it is written: docs/abi.md has the language.

What it says is held to a graph in `binding.py`; here only its form is looked at.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloracle.core.errors import InputError
from hloracle.core.given import read_toml
from hloracle.core.shown import quoted

LARGEST = 2**20  # bytes
VERSION = 2
PHASES = ("prefill", "decode", "forward")
FORM = "write it as docs/abi.md says, or let `hloracle abi` propose it"
LONGEST = 500  # characters of a key or an expression
DEEPEST = 8  # lists in lists
_PHASE_KEYS = {"function": str, "file": str, "inputs": dict, "results": dict}

# What an argument or a result is: an expression, or a constant.
Entry = str | int | float | bool | list[Any]


@dataclass(frozen=True)
class Phase:
    """What the graphs of one phase take and return, besides weights: name -> entry.

    function: the name of the function. file: a pattern of the names of its files, such as `decode*`; empty for any.
    """

    name: str
    inputs: Mapping[str, Entry]
    results: Mapping[str, Entry]
    function: str = "main"
    file: str = ""


@dataclass(frozen=True)
class AbiFile:
    """What an ABI file says. state: what opaque state starts with, by name."""

    path: Path
    weights: Mapping[str, str]
    phases: Mapping[str, Phase]
    state: Mapping[str, Entry] = field(default_factory=dict)

    def wrong(self, what: str, fix: str = FORM) -> InputError:
        """That something in this file is wrong."""
        return InputError(what, self.path, fix)


def read_abi_file(path: Path) -> AbiFile:
    """Raises InputError that names the file, the entry in it, and what to write there."""
    raw = read_toml(path, LARGEST, "name the emitter's ABI file with --abi", FORM)
    try:
        return _abi(path, raw)
    except ValueError as error:
        what, *fix = error.args
        raise InputError(what, path, *(fix or [FORM])) from None


# All below raise ValueError: what is wrong and, where there is more to say than FORM, what to do.


def _abi(path: Path, raw: dict[str, Any]) -> AbiFile:
    _keys(raw, "the file", ("version", "weights", "state", *PHASES))
    if raw.get("version") != VERSION:
        raise ValueError(f"version is {_shown(raw.get('version'))}", f"write `version = {VERSION}` at the top")
    weights = _table(raw.get("weights", {}), "weights")
    for key, value in weights.items():
        if not isinstance(value, str):
            raise ValueError(f"weights.{quoted(key)} is {_shown(value)}, not an expression in quotes")
    phases = {name: _phase(name, raw[name]) for name in PHASES if name in raw}
    if not phases:
        raise ValueError("has no phase", f"write a table for each that the emitter has: {', '.join(PHASES)}")
    state = _table(raw.get("state", {}), "state")
    for key, value in state.items():
        if isinstance(value, str) or not re.fullmatch(r"\w+", key):
            what = f"{_shown(value)}, not a number or a list" if isinstance(value, str) else "no name of a word"
            raise ValueError(f"state.{quoted(key)} is {what}", "write what it starts with: `NAME = 0`")
    used = {
        e.split(" : ")[0].strip()
        for p in phases.values()
        for e in (*p.inputs.values(), *p.results.values())
        if isinstance(e, str)
    }
    for key in state:
        if f"state.{key}" not in used:
            raise ValueError(
                f"state.{quoted(key)} is no argument's", f"write state.{key} where it is taken, or take it out"
            )
    return AbiFile(path, weights, phases, state)


def _phase(name: str, raw: Any) -> Phase:
    if not isinstance(raw, dict):
        raise ValueError(f"{name} is {_shown(raw)}, not a table")
    _keys(raw, name, tuple(_PHASE_KEYS))
    for key, kind in _PHASE_KEYS.items():
        if key in raw and not isinstance(raw[key], kind):
            raise ValueError(f"{name}.{key} is {_shown(raw[key])}, not {'a table' if kind is dict else 'a string'}")
        if kind is str and not 0 < len(raw.get(key, key)) <= LONGEST:
            raise ValueError(f"{name}.{key} has {len(raw[key])} characters, and not 1 to {LONGEST}")
    for key in ("inputs", "results"):
        if key not in raw:
            raise ValueError(f"{name} has no {key}", f"write [{name}.{key}]")
    return Phase(
        name, _table(raw["inputs"], f"{name}.inputs"), _table(raw["results"], f"{name}.results"),
        raw.get("function", "main"), raw.get("file", ""),
    )  # fmt: skip


def _table(raw: Any, place: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{place} is {_shown(raw)}, not a table")
    for key, value in raw.items():
        where = f"{place}.{quoted(key)}"
        if not key:
            raise ValueError(f"{place} has an entry without a name")
        for text in (key, value):
            if isinstance(text, str) and len(text) > LONGEST:
                raise ValueError(f"{where} has more than {LONGEST} characters")
            if isinstance(text, str) and not text.isprintable():
                raise ValueError(f"{where} cannot be printed")
        if isinstance(value, dict):
            raise ValueError(f"{where} is a table", f"put the key in quotes if it has dots: {quoted(key + '.…')}")
        if not isinstance(value, str):
            _constant(value, where, DEEPEST)
    return raw


def _constant(value: Any, where: str, deepest: int) -> tuple[int, ...]:
    """The shape of a number, or of a list of numbers."""
    if isinstance(value, list):
        if not value or not deepest:
            raise ValueError(f"{where} is {'a list that is nested too deep' if value else 'an empty list'}")
        shapes = {_constant(one, where, deepest - 1) for one in value}
        if len(shapes) != 1:
            raise ValueError(f"{where} is a list of unlike things")
        return (len(value), *shapes.pop())
    if not isinstance(value, int | float) or (isinstance(value, float) and math.isnan(value)):
        raise ValueError(f"{where} is {_shown(value)}, neither an expression nor a constant")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{where} is a number of more than 64 bits")
    return ()


def _keys(raw: Mapping[str, Any], place: str, known: tuple[str, ...]) -> None:
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key[:100], known, 1)
            fix = f"did you mean {near[0]!r}?" if near else f"take it out: there are {', '.join(known)}"
            raise ValueError(f"{place} has an unknown key {quoted(key)}", fix)


def _shown(raw: Any) -> str:
    if isinstance(raw, str):
        return quoted(raw)
    if isinstance(raw, dict | list):
        return "a table" if isinstance(raw, dict) else "a list"
    if isinstance(raw, int) and abs(raw) >= 2**64:
        return "a huge number"
    return "missing" if raw is None else str(raw).lower() if isinstance(raw, bool) else str(raw)
