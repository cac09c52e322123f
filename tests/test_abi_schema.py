"""The JSON Schema of the ABI file, for editors: it takes what is read, and not what a reader refuses at sight."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from foreign_graph import ABI
from test_abi_toml import CHANGES, RIGHT

from hloracle.core.typed import problem
from hloracle.foreign.file import PHASES
from hloracle.foreign.form import SCHEMA_FILE, AbiForm, schema

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(p for p in (ROOT / "examples").rglob("*.toml") if "version = 2" in p.read_text(encoding="utf-8"))


def said(text: str) -> str:
    return problem(AbiForm, tomllib.loads(text))


def test_it_is_that_of_the_types() -> None:
    assert SCHEMA_FILE.read_text("utf-8") == schema()


def test_it_describes_what_is_written() -> None:
    found = json.loads(schema())
    assert set(found["properties"]) == {"version", "weights", "state", *PHASES}
    assert found["required"] == ["version"]
    assert all("description" in one for one in found["properties"].values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example(path: Path) -> None:
    assert said(path.read_text(encoding="utf-8")) == ""


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 10
    assert said(ABI) == said(RIGHT) == ""


# What only a reader knows: what is beyond 64 bits, the shape of a list, what can be printed, what is used.
NOT_OF_THE_FORM = {
    "a name that hides", "an expression of lines", "NaN", "more than 64 bits", "an empty list", "a ragged list", "a list of words",
    "a list of tables", "a deep list", "state of nobody",
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_mistake(name: str) -> None:
    old, new, _ = CHANGES[name]
    assert bool(said(RIGHT.replace(old, new, 1))) == (name not in NOT_OF_THE_FORM)


RESULTS = {
    "logits": True, "logits : B T V": True, "k_cache.{l} : B S K D": True, "cache.3": True, " state.rng ": True, "ignored": True,
    "token : B": True, "position": False, "logits : ": True, "logit": False, "k_cache.": False, "state.": False, "": False,
}  # fmt: skip


@pytest.mark.parametrize("result", RESULTS)
def test_a_result(result: str) -> None:
    found = problem(AbiForm, {"version": 2, "decode": {"inputs": {}, "results": {"0": result}}})
    assert (found == "") == RESULTS[result]
    if found:
        assert re.match(r'decode\.results\["0"\]: ', found)
