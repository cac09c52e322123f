"""Faults that are known: which cases fail on which versions of which compilers, and why."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from hloracle.core.errors import InputError
from hloracle.core.given import read_toml
from hloracle.core.shown import quoted, said
from hloracle.ops.outcome import FAILURES, Outcome
from hloracle.reports.ops.record import State

KNOWN = Path(__file__).with_name("known.toml")
LARGEST = 2**20  # bytes


@dataclass(frozen=True)
class Fault:
    """A fault of a compiler.

    cases: patterns of the cases' ids, as a shell has them: each case of them fails. family: of the backend. versions: which of its
      versions have it, such as `>=3.12,<3.14`; all, if empty. result: what may come of it. ulp: how far off it may be at most, where
      the result is `wrong`; any, if None. reason: what is wrong, in a sentence. link: where that is described. sometimes: it may also
      pass, as what reads memory that is not its own does.
    """

    cases: tuple[str, ...]
    family: str
    versions: str
    result: tuple[str, ...]
    reason: str
    link: str
    ulp: float | None = None
    sometimes: bool = False

    @cached_property
    def specifiers(self) -> SpecifierSet:
        """The versions, parsed."""
        return SpecifierSet(self.versions)

    def concerns(self, case: str, family: str, version: str) -> bool:
        """Whether it says of a case what comes of it on this backend."""
        if family != self.family or not any(fnmatch.fnmatchcase(case, pattern) for pattern in self.cases):
            return False
        if not self.versions:
            return True
        try:
            return self.specifiers.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return False

    def explains(self, outcome: Outcome) -> bool:
        """Whether an outcome is what it says."""
        if outcome.result not in self.result:
            return False
        return self.ulp is None or outcome.ulp is None or outcome.ulp <= self.ulp


def state(outcome: Outcome, family: str, version: str, faults: Iterable[Fault]) -> tuple[State, Fault | None]:
    """What an outcome means beside the list, and the fault that says so."""
    concerning = [fault for fault in faults if fault.concerns(outcome.case, family, version)]
    if outcome.failed:
        known = next((fault for fault in concerning if fault.explains(outcome)), None)
        return ("known", known) if known else ("new-failure", None)
    if outcome.passed:
        always = next((fault for fault in concerning if not fault.sometimes), None)
        return ("new-pass", always) if always else ("pass", None)
    return "open", None


def read_faults(path: Path = KNOWN) -> list[Fault]:
    """The faults of a file. Raises InputError for what cannot be read."""
    read = read_toml(path, LARGEST, "name a file of known faults (docs/ops.md)", "see docs/ops.md")
    rows = read.pop("fault", [])
    if read or not isinstance(rows, list):
        raise InputError("has something else than [[fault]]", path, "see docs/ops.md")
    return [_fault(row, f"{path}: fault {i}") for i, row in enumerate(rows, 1)]


def _fault(row: Any, where: str) -> Fault:
    names, fix = {f.name for f in fields(Fault)}, "see docs/ops.md"
    if not isinstance(row, dict):
        raise InputError(f"is {said(row)}, and no table", where, fix)
    if unknown := sorted(row.keys() - names):
        raise InputError(f"has the unknown key {quoted(unknown[0])}", where, f"there are {', '.join(sorted(names))}")
    row = {"versions": "", "link": "", **row}
    if missing := names - {"ulp", "sometimes"} - row.keys():
        raise InputError(f"lacks {', '.join(sorted(missing))}", where, fix)
    ulp, sometimes = row.pop("ulp", None), row.pop("sometimes", False)
    cases, result = (_several(row.pop(name)) for name in ("cases", "result"))
    if not _texts(cases) or not _texts(result) or not _texts([*row.values()]):
        raise InputError("has a value that is no text", where, fix)
    if ulp is not None and not isinstance(ulp, int | float):
        raise InputError(f"has the ulp {said(ulp)}", where, "give a number")
    if not isinstance(sometimes, bool):
        raise InputError(f"has sometimes = {said(sometimes)}", where, "give true or false")
    if odd := next((one for one in result if one not in FAILURES), None):
        raise InputError(f"has the result {quoted(odd)}", where, f"give one of {', '.join(FAILURES)}")
    fault = Fault(tuple(cases), result=tuple(result), ulp=ulp, sometimes=sometimes, **row)
    try:
        _ = fault.specifiers
    except InvalidSpecifier:
        raise InputError(
            f"has the versions {quoted(fault.versions)}", where, "give some such as '>=3.12,<3.14'"
        ) from None
    return fault


def _several(value: Any) -> Any:
    """One text may stand for a list of one."""
    return [value] if isinstance(value, str) else value


def _texts(values: Any) -> bool:
    return isinstance(values, Sequence) and bool(values) and all(isinstance(value, str) for value in values)
