"""A file that says how a tool is called: the TOML of `--backend command:FILE`. See docs/backends.md."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloracle.core.errors import InputError
from hloracle.core.given import read_toml
from hloracle.core.shown import quoted, said

FIX = "write it as docs/backends.md describes it"
KEYS = ("name", "family", "timeout", "compile", "run")
TIMEOUT_SECONDS = 600
LONGEST = 2**16  # bytes of a file
PLACE = re.compile(r"\{(\w+)\}")
REPEATED = ("input", "output")  # each word with one of these stands for as many as there are arguments or results
PLACES = {
    "compile": ("graph", "program", "function", "threads"),
    "run": ("graph", "program", "function", "threads", *REPEATED),
}

Template = tuple[tuple[str, ...], ...]  # words, of which those that are repeated together are one entry


@dataclass(frozen=True)
class Commands:
    """What a file says.

    compile: empty where the tool takes a graph as it is. timeout: seconds that each command may take.
    folder: of the file, in which commands run.
    """

    name: str
    family: str
    timeout: float
    compile: Template
    run: Template
    folder: Path


def read_commands(path: Path) -> Commands:
    """A file of commands. Raises InputError that names the key, or the word, that cannot be used."""
    data = read_toml(path, LONGEST, FIX)
    if unknown := [key for key in data if key not in KEYS]:
        raise InputError(f"has the key {quoted(unknown[0])}, which means nothing", path, f"keys are {', '.join(KEYS)}")
    name = _string(data, "name", path)
    if "/" in name:
        raise InputError(f"has a slash in its name {quoted(name)}", path, FIX)
    timeout = data.get("timeout", TIMEOUT_SECONDS)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InputError(f"has a timeout of {said(timeout)}", path, "give seconds, a number above 0")
    compile, run = (_template(data, key, path) for key in ("compile", "run"))
    needed = ["output", "input", "program" if compile else "graph"]
    missing = [f"run has no {{{place}}}" for place in needed if place not in places(run)]
    missing += [
        f"compile has no {{{place}}}" for place in ("graph", "program") if compile and place not in places(compile)
    ]
    if missing:
        raise InputError(missing[0], path, FIX)
    family = _string(data, "family", path) if "family" in data else name
    return Commands(name, family, float(timeout), compile, run, path.resolve().parent)


def _string(data: Mapping[str, Any], key: str, path: Path) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            f"has no {key}" if value is None else f"has the {key} {said(value)}", path, f"give a string as {key}"
        )
    return value


def _template(data: Mapping[str, Any], key: str, path: Path) -> Template:
    words = data.get(key, [] if key == "compile" else None)
    if not isinstance(words, list) or (key in data and not words):
        raise InputError(f"has no list of words as {key}", path, FIX)
    found = tuple(tuple(word) if isinstance(word, list) else (word,) for word in words)
    if wrong := [word for group in found for word in group if not isinstance(word, str)]:
        raise InputError(f"has {said(wrong[0])} in {key}, which is no word", path, FIX)
    for place in places(found):
        if place not in PLACES[key]:
            known = ", ".join(f"{{{name}}}" for name in PLACES[key])
            raise InputError(f"has {{{place}}} in {key}, which means nothing", path, f"there are {known}")
    if found:
        tool = found[0][0] if found[0] else ""
        if not shutil.which(tool) and not os.path.isfile(path.resolve().parent / tool):  # which takes any string
            raise InputError(
                f"names {quoted(tool)} in {key}, which is no program here", path, "install it, or name its path"
            )
    return found


def places(template: Sequence[Sequence[str]]) -> list[str]:
    """The names in braces, as often as they stand there."""
    return [place for group in template for word in group for place in PLACE.findall(word)]
