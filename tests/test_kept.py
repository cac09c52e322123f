"""Input that was a finding of `nox -s fuzz` once: each is given to the command line again, and refused in one line, or taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fuzz.kept import FOLDER, read
from fuzz.targets import BY_NAME
from test_fuzz import fuzz

KEPT = sorted(FOLDER.glob("*.json"))
LARGEST = 50_000  # bytes of a case
# What turns out to be right.
TAKEN = {"matrix-home-of-nobody", "name-as-a-location", "path-that-is-no-text", "value-of-no-text"}


@pytest.fixture(scope="module")
def replayed() -> dict[str, Any]:
    return {row["name"]: row for row in fuzz("fuzz.kept")}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_it_is_no_finding_any_more(path: Path, replayed: dict[str, Any]) -> None:
    found = replayed[path.stem]
    assert found["wrong"] == [], f"{read(path)['found']}: {found['said']}"
    assert found["status"] == (0 if path.stem in TAKEN else 2), found["said"]


def test_cases_are_small_and_of_a_target() -> None:
    assert KEPT
    for path in KEPT:
        assert read(path)["target"] in BY_NAME, path
        assert path.stat().st_size < LARGEST, path
