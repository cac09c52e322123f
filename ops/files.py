"""Reads test files of others, as openxla/stablehlo has them: a module that computes something and checks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hloracle.core.bindings import names_read
from hloracle.core.errors import InputError
from hloracle.core.given import as_text, read_bytes
from hloracle.core.shown import shown
from hloracle.ops.case import Case, Expected
from hloracle.ops.files_case import Check, FileCase, checked
from hloracle.ops.files_text import generic, modules
from hloracle.ops.judge import Judged, is_float, judge
from hloracle.ops.outcome import one_line
from hloracle.semantics.numbers import Unsupported

LARGEST = 2**26  # bytes of a test file
_ANOTHER = "give a file of MLIR's text, or leave it out"


def files_of(path: Path) -> list[Path]:
    """The files that a path names: itself, or each .mlir file in the folder and those in it, by name. Raises InputError."""
    if path.is_dir():
        found = sorted(p for p in path.rglob("*.mlir") if p.is_file())
        if not found:
            raise InputError("has no .mlir file", path, "name a folder with test files")
        return found
    if not path.is_file():
        raise InputError("no such file or folder", path, "name a test file, a folder of them, or an operation")
    return [path]


def read_tests(paths: Sequence[Path]) -> tuple[list[FileCase], list[InputError]]:
    """The tests of files, and what is wrong with those that are none. Raises InputError for a path that there is not."""
    found: list[FileCase] = []
    malformed: list[InputError] = []
    for file in dict.fromkeys(file for path in paths for file in files_of(path)):
        for one in _tests(file):
            if isinstance(one, InputError):
                malformed.append(one)
            else:
                found.append(one)
    return found, malformed


def judged(case: Case, results: Sequence[np.ndarray]) -> Judged:
    """What a case says of its results, whichever kind it is."""
    return checked(case, results) if isinstance(case, FileCase) else judge(case, results)


def _tests(path: Path) -> Iterator[FileCase | InputError]:
    try:
        text = as_text(read_bytes(path, LARGEST, _ANOTHER), path, _ANOTHER)
    except InputError as error:
        yield error
        return
    parts = modules(text)
    if not parts:
        yield InputError("is empty", path, _ANOTHER)
    for part, line in parts:
        name = str(path) if len(parts) == 1 else f"{path}:{line}"
        yield _test(part, name)


def _test(text: str, name: str) -> FileCase | InputError:
    from hloracle.ops.files_rewrite import Malformed, rewritten  # imports jaxlib

    try:
        with names_read(name):
            found = rewritten(generic(text))
    except InputError as error:
        return error
    except Malformed as error:
        return InputError(shown(error.what), name, error.fix)
    except Unsupported as error:
        return FileCase(name, "", text, (), (), refused=f"it has {error}, which NumPy has not")
    except MemoryError:
        return InputError("asks MLIR for more memory than there is", name, "look at the numbers of its results")
    except RecursionError:
        return InputError("is nested too deep, or calls itself", name, "write it flatter")
    except Exception as error:  # whatever a file holds that nobody thought of: the others are read all the same
        words = one_line(f"{type(error).__name__}: {error}", 200)
        return InputError(f"cannot be read ({words})", name, "write it as docs/ops.md has it")
    if found.refused:
        return FileCase(name, "", text, (), (), refused=found.refused)
    tests = "; ".join(dict.fromkeys(map(str, found.checks)))
    return FileCase(
        name, found.operation, found.text, tuple(found.inputs), _expected(found.checks), tests, checks=tuple(found.checks)
    )  # fmt: skip


def _expected(checks: Sequence[Check]) -> tuple[Expected, ...]:
    """The same as far as a case says it of each result, for a reproducer: the first check of it with a value that is known."""
    results = 1 + max(index for c in checks for index in (c.got, c.expected) if isinstance(index, int))
    found = [Expected(np.zeros(()), None)] * results
    for check in reversed(checks):
        if isinstance(value := check.expected, np.ndarray):
            ulp, more = {"eq": (0.0, 0.0), "almost_eq": (0.0, check.tolerance), "close": (float(check.most), 0.0)}[
                check.kind
            ]
            floats = is_float(value.dtype)
            held = value.astype(np.float64) if floats else value
            found[check.got] = Expected(held, ulp, None, np.full(value.shape, more) if floats else None)
    return tuple(found)
