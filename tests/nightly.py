"""Cases of parametrized tests that are alike: some are of every run of the tests, the others of the night's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def nightly(*values: Any, id: str | None = None) -> Any:
    """A case that only `nox -s tests-nightly` runs."""
    return pytest.param(*values, id=id, marks=pytest.mark.nightly)


def only(chosen: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, of which those that are not chosen are nightly. A tuple is a case of several values."""
    kept, listed = list(chosen), list(cases)
    assert all(case in listed for case in kept), "what is chosen is a case"
    return [case if case in kept else nightly(*(case if isinstance(case, tuple) else (case,))) for case in listed]
