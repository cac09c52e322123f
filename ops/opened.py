"""Tests of others, and graphs, read as cases in a process of its own: MLIR's parser crashes on what is nested too deep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import InputError
from hloracle.core.given import read_bytes
from hloracle.ops.case import Case
from hloracle.ops.files import files_of, read_tests
from hloracle.ops.files_case import FileCase

BYTECODE = b"ML\xefR"
LARGEST = 2**30  # bytes of a graph
SECONDS = 600
LOOK = "look whether it is nested too deep, or too large"
Tests = tuple[list[FileCase], list[InputError]]


def tests_of(paths: Sequence[Path]) -> Tests:
    """What `read_tests` finds. A file that its reader crashes on is malformed, and the others are read all the same."""
    files = list(dict.fromkeys(file for path in paths for file in files_of(path)))
    if not files:
        return [], []
    try:
        found: Tests = run_in_child(_tests, files, timeout=SECONDS).value
        return found
    except ChildDied as died:
        if len(files) == 1:
            return [], [_unread(died, files[0])]
    each = [tests_of([file]) for file in files]
    return [case for cases, _ in each for case in cases], [one for _, malformed in each for one in malformed]


def cases_in(graph: Path) -> list[Case]:
    """The cases of a graph's operations, and of those that have none, why. Raises InputError."""
    data = read_bytes(graph, LARGEST, "name a graph's file")
    try:
        found: list[Case] = run_in_child(_cases, data, str(graph), timeout=SECONDS).value
    except ChildDied as died:
        raise _unread(died, graph) from None
    return found


def _unread(died: ChildDied, path: Path) -> InputError:
    what = "MLIR's parser crashes on it" if died.cause == "crash" else f"cannot be read ({died})"
    return InputError(what, path, LOOK)


def _tests(report: Report, files: Sequence[Path]) -> Tests:
    return read_tests(files)


def _cases(report: Report, data: bytes, name: str) -> list[Case]:
    from hloracle.ops.of_graph import cases_of  # imports JAX

    found = cases_of(data if data.startswith(BYTECODE) else data.decode("utf-8", "replace"), name)
    refused = [FileCase(operation, operation, "", (), (), refused=why) for operation, why in found.skipped.items()]
    return [*found.cases, *refused]
