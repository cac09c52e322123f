"""What a record says of the versions that it was made with."""

from __future__ import annotations

import pytest

from hloracle.core import environment
from hloracle.core.environment import PACKAGES, describe, tried, untried, untried_line, versions


def test_every_package_of_a_record_has_a_tried_version() -> None:
    assert set(PACKAGES) <= set(tried())


def test_tried_versions_are_said_by_nobody() -> None:
    assert untried({name: tried()[name] for name in PACKAGES}) == []
    assert untried({"torch": f"{tried()['torch']}+cpu"}) == []
    assert untried_line([]) == ""


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = versions() | {"jax": "0.8.2", "torch": "9.0+cpu"}
    monkeypatch.setattr(environment, "versions", lambda: found)
    rows = {row["package"]: row for row in describe()["untried"]}
    assert rows["jax"] == {"package": "jax", "version": "0.8.2", "tried": tried()["jax"]}
    assert rows["torch"]["version"] == "9.0+cpu"
    assert f"jax 0.8.2 ({tried()['jax']})" in untried_line(describe()["untried"])
