"""Reads an ABI file, which anyone may have written: whatever is wrong with it is one line that names the entry.

docs/abi.md describes the file. Standard library only: `core/abi.py` stands on it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hloracle.core.abi import ARGUMENT_ROLES, DTYPE_BYTES, ENCODINGS, INPUTS, OWN_NAMES, RESULT_ROLES, Abi, Tensor
from hloracle.core.errors import InputError
from hloracle.core.given import read_json
from hloracle.core.shown import quoted

LARGEST = 64 * 2**20  # bytes; a model of 100 layers with every weight in three parts has 1 MiB
LARGEST_SIZE = 2**31 - 1  # of an axis: tokens and positions are i32
LONGEST_NAME = 500
FORM = "write it in the form that `hloracle emit` writes beside its graphs"

KEYS = tuple(field.name for field in dataclasses.fields(Abi))
ENTRY_KEYS = tuple(field.name for field in dataclasses.fields(Tensor))


def read_abi(path: Path) -> Abi:
    """Raises InputError that names the file, the entry in it, and what to write there."""
    raw = read_json(path, LARGEST, "name the graph's .abi.json with --abi", FORM)
    try:
        abi = _abi(raw)
        abi.validate()
    except ValueError as error:
        what, *fix = error.args
        raise InputError(what, path, *(fix or [FORM])) from None
    return abi


# All below raise ValueError: what is wrong and, where there is more to say than FORM, what to do.


def _abi(raw: Any) -> Abi:
    raw = _object(raw, "", KEYS, optional=("function", "positions", "windowed"))
    return Abi(
        phase=_one_of(raw["phase"], "phase", tuple(INPUTS)),
        arguments=_tensors(raw["arguments"], "arguments", ARGUMENT_ROLES),
        results=_tensors(raw["results"], "results", RESULT_ROLES),
        function=_text(raw.get("function", "main"), "function"),
        positions=_index(raw.get("positions", 0), "positions") or 0,
        windowed=_layers(raw.get("windowed", [])),
    )


def _tensors(raw: Any, key: str, roles: Sequence[str]) -> tuple[Tensor, ...]:
    if not isinstance(raw, list):
        raise ValueError(f"{key} is {_shown(raw)}, not a list")
    return tuple(_tensor(entry, f"{key}[{i}]", roles) for i, entry in enumerate(raw))


def _tensor(raw: Any, place: str, roles: Sequence[str]) -> Tensor:
    raw = _object(raw, place, ENTRY_KEYS, optional=("encoding", "aliases"))
    tensor = Tensor(
        role=_one_of(raw["role"], f"{place}.role", roles),
        name=_text(raw["name"], f"{place}.name"),
        shape=_shape(raw["shape"], f"{place}.shape"),
        dtype=_one_of(raw["dtype"], f"{place}.dtype", tuple(DTYPE_BYTES)),
        encoding=_one_of(raw.get("encoding", "plain"), f"{place}.encoding", ENCODINGS),
        aliases=_index(raw.get("aliases"), f"{place}.aliases"),
    )
    if tensor.role not in OWN_NAMES and tensor.name != tensor.role:
        raise ValueError(
            f"{place}.name is {quoted(tensor.name)}, and its role {tensor.role!r}",
            f'write "name": "{tensor.role}": only weights and taps have names of their own',
        )
    ending = max((e for e in ENCODINGS if tensor.name.endswith(f".{e}")), key=len, default="plain")
    if tensor.encoding != (ending if tensor.role == "weight" else "plain"):
        name = f"its name is {quoted(tensor.name)}" if tensor.role == "weight" else "it is no weight"
        raise ValueError(
            f"{place}.encoding is {tensor.encoding!r}, and {name}",
            "name a weight that is encoded WEIGHT.ENCODING: see docs/encodings.md",
        )
    if place.startswith("arguments") and tensor.aliases is not None:
        raise ValueError(
            f"{place}.aliases is {tensor.aliases}, and it is no result",
            "say it at the result that takes over an argument's buffer",
        )
    return tensor


def _object(raw: Any, place: str, known: Sequence[str], optional: Sequence[str]) -> dict[str, Any]:
    """An object with these keys and no others; the whole file where `place` is empty."""
    if not isinstance(raw, dict):
        raise ValueError(f"{place} is {_shown(raw)}, not an object".lstrip())
    keys, of = f"its keys are {', '.join(known)}", f"{place} has".lstrip()
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key[:100], known, 1)
            fix = f"did you mean {near[0]!r}? {keys}" if near else f"take it out: {keys}"
            raise ValueError(f"{of} an unknown key {quoted(key)}", fix)
    for key in known:
        if key not in raw and key not in optional:
            raise ValueError(f"{of} no {key!r}", f"write it: {keys}")
    return raw


def _one_of(raw: Any, place: str, known: Sequence[str]) -> str:
    if not isinstance(raw, str) or raw not in known:
        raise ValueError(f"{place} is {_shown(raw)}, not one of {', '.join(known)}")
    return raw


def _text(raw: Any, place: str) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"{place} is {_shown(raw)}, not a string")
    if not 0 < len(raw) <= LONGEST_NAME:
        raise ValueError(f"{place} is {quoted(raw)}, of {len(raw):,} characters and not of 1 to {LONGEST_NAME}")
    if not raw.isprintable():  # lone surrogates too
        raise ValueError(f"{place} is {quoted(raw)}, which cannot be printed")
    return raw


def _shape(raw: Any, place: str) -> tuple[int, ...]:
    if not isinstance(raw, list):
        raise ValueError(f"{place} is {_shown(raw)}, not a list of sizes")
    for i, size in enumerate(raw):
        if type(size) is not int or not 1 <= size <= LARGEST_SIZE:  # true is an int to Python
            raise ValueError(f"{place}[{i}] is {_shown(size)}, not a size from 1 to {LARGEST_SIZE}")
    return tuple(raw)


def _layers(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list):
        raise ValueError(f"windowed is {_shown(raw)}, not a list of layers")
    for i, layer in enumerate(raw):
        if type(layer) is not int or not 0 <= layer <= LARGEST_SIZE:
            raise ValueError(f"windowed[{i}] is {_shown(layer)}, not the number of a layer")
    return tuple(raw)


def _index(raw: Any, place: str) -> int | None:
    if raw is not None and (type(raw) is not int or raw < 0):
        raise ValueError(f"{place} is {_shown(raw)}, not the index of an argument or null")
    return raw


def _shown(raw: Any) -> str:
    """A value in JSON's words."""
    if isinstance(raw, str):
        return quoted(raw)
    if isinstance(raw, (dict, list)):
        return "an object" if isinstance(raw, dict) else "a list"
    return json.dumps(raw)
