"""The folder of a report: whether it can be written, and what an earlier run left there. Nothing else in it is touched."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from hloracle.core.errors import InputError
from hloracle.core.files import write_file
from hloracle.core.given import refuse_if_exhausted

REPORTS = ("report.json", "report.html", "summary.md", "junit.xml")
PATCH = "repair.patch"  # beside a report, where something would put a graph right
# What conformance/verdict/reproducer.py writes, what its command leaves, and libraries of custom_calls.
REPRODUCER = re.compile(
    r"subgraph\.(mlir|vmfb)|(compare|run_on_xla)\.py|reproduce(\.sh|r\.json)|\d+-[\w.]*\.npy|(expected|got)\.npy"
    r"|[^/]+\.so",
    re.ASCII,
)


def prepare_folder(out: Path) -> None:
    """Find out before the work, not after it, that the report cannot be written. Raises InputError."""
    write_file(out / ".hloracle", "")
    (out / ".hloracle").unlink(missing_ok=True)  # another run with this folder may have removed it


def prepare_reproducer(out: Path) -> None:
    """The same for a reproducer, which replaces an earlier one and nothing else."""
    prepare_folder(out)
    refuse_other(out / "reproducer")


def begin_report(out: Path) -> None:
    """The same, and remove the earlier report: where the run cannot start, it would be taken for that of this one."""
    prepare_reproducer(out)
    remove_files(out / name for name in (*REPORTS, PATCH))
    remove_reproducer(out / "reproducer")


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files that are there."""
    for path in paths:
        with contextlib.suppress(OSError):  # not a file, or not ours: writing to it says so in better words
            path.unlink(missing_ok=True)


def write_files(files: Mapping[Path, str | None]) -> None:
    """Remove files of an earlier run, and write those that have a content: all or none."""
    remove_files(files)
    try:
        for path, content in files.items():
            if content is not None:
                write_file(path, content)
    except BaseException:
        remove_files(files)
        raise


def refuse_other(folder: Path) -> None:
    """Raises InputError where the place of a reproducer has something that is none."""
    if folder.is_symlink() or (folder.exists() and not _is_reproducer(folder)):
        raise InputError(
            "is not a reproducer that hloracle wrote, and is not replaced", folder, "move it, or name another folder"
        )


def remove_reproducer(folder: Path) -> None:
    """Remove a reproducer; whatever else has its name stays."""
    if not folder.is_symlink() and _is_reproducer(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _is_reproducer(folder: Path) -> bool:
    """Whether a folder holds a reproducer's files and no other, or nothing."""
    try:
        found = list(folder.iterdir())
    except OSError as error:
        refuse_if_exhausted(error, folder)
        return False
    names = {path.name for path in found if path.is_file() and REPRODUCER.fullmatch(path.name)}
    return len(names) == len(found) and (not names or "subgraph.mlir" in names)
