"""Parametrization over many alike: one of each kind in every run of the tests, all in those of the night."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def nightly(*values: Any, id: str | None = None) -> Any:
    """A case of a parametrized test that only `nox -s tests-nightly` runs."""
    return pytest.param(*values, id=id, marks=pytest.mark.nightly)


def one_of_each(
    cases: Iterable[Any], kind: Callable[[Any], Hashable], id: Callable[[Any], str | None] = lambda case: None
) -> list[Any]:
    """The cases, of which the first of each kind is of every run, and the others are nightly."""
    seen: set[Hashable] = set()
    found = []
    for case in cases:
        marks = [pytest.mark.nightly] if kind(case) in seen else []
        seen.add(kind(case))
        found.append(pytest.param(case, id=id(case), marks=marks))
    return found


def only(chosen: Iterable[str], names: Iterable[str]) -> list[Any]:
    """The names, of which those that are not chosen are nightly."""
    kept, listed = set(chosen), list(names)
    assert kept <= set(listed), kept - set(listed)
    return [name if name in kept else nightly(name) for name in listed]
