"""MATRIX.toml: the commands that a fleet runs, the values that they take, and where they may run. See docs/fleet.md.

Jobs are made one after the other, and never all held: a matrix may have a hundred thousand.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from hloracle.core.cache import digest
from hloracle.core.errors import InputError
from hloracle.core.given import read_toml
from hloracle.core.shown import quoted, said
from hloracle.core.typed import problem
from hloracle.fleet.form import FaultKind, MatrixFile

LARGEST = 1 << 20  # bytes of a matrix
MOST_JOBS = 1_000_000
FORM = "see docs/fleet.md"
TIMEOUT_SECONDS = 3600.0
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
TAKEN = ("model", "graph", "operation", "mutant", "family", "architecture")  # keys of commands' arguments
SETTINGS = ("fleet", "exclude", "place", "fault")

Value = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A command that a matrix may have.

    words: what it is run by, after `python -m`. takes: the key of its arguments; empty where it has none.
    options: key -> the flag, such as `--precision`. flags: the keys of those that take no value. paths: the keys whose values are
    files or folders. writes: whether it takes `--out`.
    """

    name: str
    words: tuple[str, ...]
    takes: str
    options: Mapping[str, str]
    flags: frozenset[str]
    paths: frozenset[str]
    writes: bool


@dataclass(frozen=True, slots=True)
class Place:
    """What a job needs of a machine. memory: in bytes; 0 for whatever there is. labels: what the machine has to be called."""

    cpus: float = 1
    gpus: float = 0
    memory: int = 0
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [
            f"{self.cpus:g} cores",
            f"{self.gpus:g} GPUs" * bool(self.gpus),
            f"{self.memory:,} bytes" * bool(self.memory),
        ]
        return ", ".join([*filter(None, parts), *(f"{key}={value}" for key, value in self.labels)])


@dataclass(frozen=True)
class Job:
    """One command with its values, which runs as a process of its own.

    What is asked of it over and over is made once: only the jobs that run are held.

    values: key -> value, in the order of the file. timeout: seconds. fault: what it does on purpose, to try the fleet itself.
    """

    command: str
    values: tuple[tuple[str, Value], ...]
    place: Place
    timeout: float
    fault: FaultKind | None = None

    @cached_property
    def id(self) -> str:
        """What it is called, e.g. `run tiny-llama precision=bf16`: no other job of a matrix has this name."""
        return " ".join([self.command, *(_named(key, value) for key, value in self.values)])

    @cached_property
    def texts(self) -> dict[str, str]:
        """Its values as text."""
        return {key: _text(value) for key, value in self.values}

    @property
    def model(self) -> str:
        """The model that it is about; empty where it names none."""
        return self.texts.get("model", "")

    @cached_property
    def key(self) -> str:
        """16 hex digits that stand for the name."""
        return digest(self.id)[:16]


@dataclass(frozen=True)
class Matrix:
    """A file's jobs. retries: how often one that does not pass is run again. digest: of all that makes the jobs."""

    path: Path
    name: str
    retries: int
    digest: str
    tables: tuple[tuple[Command, Mapping[str, tuple[Value, ...]]], ...]
    timeout: float
    file: MatrixFile

    def __iter__(self) -> Iterator[Job]:
        for command, axes in self.tables:
            for values in itertools.product(*axes.values()):
                job = tuple(zip(axes, values, strict=True))
                found = {"command": command.name, **dict(job)}
                if not any(_matches(rule, found) for rule in self.file.get("exclude", ())):
                    fault: FaultKind | None = next(
                        (f["kind"] for f in self.file.get("fault", ()) if _matches(f["match"], found)), None
                    )
                    place, timeout = self._needs(found)
                    yield Job(command.name, job, place, timeout, fault)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """What its jobs need, each once."""
        return tuple(dict.fromkeys(job.place for job in self))

    def command(self, name: str) -> Command:
        """The command of a job."""
        return next(command for command, _ in self.tables if command.name == name)

    def words(self, job: Job, attempt: int) -> list[str]:
        """What `python -m` is called with; `{out}` stands for the folder that it may write to."""
        command, given = self.command(job.command), dict(job.values)
        words = list(command.words)
        for key, value in job.values:
            several = value if isinstance(value, tuple) else (value,)
            if key == command.takes:
                words += map(str, several)
            elif key in command.flags:
                words += [command.options[key]] * bool(value)
            else:
                words += [word for one in several for word in (command.options[key], str(one))]
        for key in ("threads", "jobs"):  # of which each job would take all cores of its machine
            if key in command.options and key not in given:
                words += [command.options[key], str(max(1, int(job.place.cpus)))]
        if command.writes:
            words += ["--out", "{out}"]
        return ["hloracle.fleet.fault", job.fault, str(attempt), *words] if job.fault else words

    def inputs(self, job: Job) -> list[str]:
        """The paths that it names which are there: `_words` has made them whole."""
        words = [word for _, value in job.values for word in (value if isinstance(value, tuple) else (value,))]
        return [word for word in words if isinstance(word, str) and os.path.isabs(word) and os.path.exists(word)]

    def _needs(self, found: Mapping[str, Value]) -> tuple[Place, float]:
        """What is needed, of a machine and of time: of all rules that match, a later one's word counts."""
        place, labels, timeout = Place(), dict[str, str](), self.timeout
        for rule in self.file.get("place", ()):
            if _matches(rule.get("match", {}), found):
                memory = _bytes(rule["memory"]) if "memory" in rule else place.memory
                place = Place(rule.get("cpus", place.cpus), rule.get("gpus", place.gpus), memory)
                labels |= rule.get("labels", {})
                timeout = rule.get("timeout", timeout)
        return dataclasses.replace(place, labels=tuple(sorted(labels.items()))), timeout


def read_matrix(path: Path, commands: Mapping[str, Command], models: Sequence[str]) -> Matrix:
    """Read a matrix. Raises InputError that names the file, the entry in it, and what would fit.

    Args:
      commands: those that there are. models: the names of models, for patterns such as `tiny-*`.
    """
    raw = read_toml(path, LARGEST, "name a matrix", FORM)
    try:
        matrix = _matrix(path, raw, commands, models)
        _distinct(matrix)
    except ValueError as error:
        what, *fix = error.args
        raise InputError(what, path, *(fix or [FORM])) from None
    return matrix


# All below raise ValueError: what is wrong and, where there is more to say than FORM, what to do.


def _matrix(path: Path, raw: dict[str, Any], commands: Mapping[str, Command], models: Sequence[str]) -> Matrix:
    tables: list[tuple[Command, Mapping[str, tuple[Value, ...]]]] = []
    for name, given in raw.items():
        if name in SETTINGS:
            continue
        if name not in commands:
            raise ValueError(f"has an unknown table {quoted(name)}", f"there are {', '.join([*commands, *SETTINGS])}")
        for number, table in enumerate(given if isinstance(given, list) else [given]):
            place = f"{name}[{number}]" if isinstance(given, list) else name
            if not isinstance(table, dict):
                raise ValueError(f"{place} is no table")
            tables.append((commands[name], _axes(commands[name], table, place, path.parent, models)))
    if not tables:
        raise ValueError("has no command", f"write a table for each: {', '.join(commands)}")
    file: MatrixFile = {key: value for key, value in raw.items() if key in SETTINGS}  # type: ignore[assignment]
    if wrong := problem(MatrixFile, file):
        raise ValueError(wrong)
    for rule in file.get("place", ()):
        _bytes(rule.get("memory", "0 KB"))
    settings = file.get("fleet", {})
    return Matrix(
        path, settings.get("name", path.stem), settings.get("retries", 1), digest(json.dumps([[command.name, axes] for command, axes in tables]), json.dumps(file)), tuple(tables),
        settings.get("timeout", TIMEOUT_SECONDS), file,
    )  # fmt: skip


def _axes(
    command: Command, table: Mapping[str, Any], place: str, folder: Path, models: Sequence[str]
) -> dict[str, tuple[Value, ...]]:
    """Key -> the values that it takes, arguments first."""
    known = {command.takes: "", **command.options} if command.takes else dict(command.options)
    axes: dict[str, tuple[Value, ...]] = {}
    for key, given in sorted(table.items(), key=lambda item: item[0] != command.takes):
        if key not in known:
            raise ValueError(f"{place} has an unknown key {quoted(key)}", f"there are {', '.join(sorted(known))}")
        values: list[Value] = []
        for value in given if isinstance(given, list) else [given]:
            values += _values(command, key, value, f"{place}.{key}", folder, models)
        if not values:
            raise ValueError(f"{place}.{key} has no value")
        axes[key] = tuple(dict.fromkeys(values))
    return axes


def _values(command: Command, key: str, value: Any, place: str, folder: Path, models: Sequence[str]) -> list[Value]:
    """What one word of an axis stands for."""
    if (key in command.flags) != isinstance(value, bool):
        raise ValueError(f"{place} is {said(value)}", "write true or false" if key in command.flags else FORM)
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return [tuple(word for one in value for word in _words(command, key, one, place, folder, models))]
    if isinstance(value, str):
        return list(_words(command, key, value, place, folder, models))
    if isinstance(value, bool | int | float):
        return [value]
    raise ValueError(f"{place} is {said(value)}", "write a word, a number, or a list of words")


def _words(
    command: Command, key: str, value: str, place: str, folder: Path, models: Sequence[str]
) -> list[str]:  # fmt: skip
    """A word as it is; a pattern as the models, or the files beside the matrix, that it fits; a file there by its whole path."""
    pattern = any(char in value for char in "*?[")
    if key == "model" and pattern and (fitting := [name for name in models if fnmatchcase(name, value)]):
        return fitting
    if key not in command.paths and key != "model":
        return [value]
    if pattern:
        if not (found := _fitting(folder, value)):
            raise ValueError(
                f"{place}: {quoted(value)} fits nothing", "see `hloracle models`, or name files beside the matrix"
            )
        return found
    there = os.path.join(folder, os.path.expanduser(value))
    return [os.path.abspath(there) if os.path.exists(there) else value]  # which take any string


def _fitting(folder: Path, pattern: str) -> list[str]:
    """The whole paths that fit a pattern, in order; none for what no file can be called."""
    try:
        return sorted(map(os.path.abspath, glob.glob(os.path.join(glob.escape(str(folder)), pattern), recursive=True)))
    except ValueError:  # a NUL
        return []


def _distinct(matrix: Matrix) -> None:
    seen: set[str] = set()
    for number, job in enumerate(matrix):
        if number >= MOST_JOBS:
            raise ValueError(f"has more than {MOST_JOBS:,} jobs", "make several fleets of it")
        if job.key in seen:
            raise ValueError(f"has {quoted(job.id)} twice", "write each job once")
        seen.add(job.key)
    if not seen:
        raise ValueError("has no job left", "exclude fewer")


def _matches(rule: Mapping[str, Any], found: Mapping[str, Value]) -> bool:
    """Whether a job has, under each key of a rule, a value that fits: one of its patterns."""
    for key, patterns in rule.items():
        if key not in found:
            return False
        words = _text(found[key])
        if not any(fnmatchcase(words, _text(p)) for p in (patterns if isinstance(patterns, list) else [patterns])):
            return False
    return True


def _named(key: str, value: Value) -> str:
    return _text(value) if key in TAKEN else f"{key}={_text(value)}"


def _text(value: Value) -> str:
    return (
        ",".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _bytes(text: str) -> int:
    number, _, unit = text.partition(" ")
    if unit not in UNITS or not number.replace(".", "", 1).isdecimal():
        raise ValueError(f"{quoted(text)} is no size", "write one such as `8 GB`")
    return int(float(number) * UNITS[unit])
