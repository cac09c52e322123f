"""The form of a project's file as types. project.schema.json is generated from them: `python -m hloracle.conformance.project.form`.

What no type can say, such as what a formula may name, is checked in `file.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from hloracle.core.typed import schema_text

SCHEMA_FILE = Path(__file__).with_name("project.schema.json")

Count = Annotated[int, Field(ge=0)]
Bound = Count | str  # a number, or a formula with `<=` or `>=` before it where it need not be just as many


class Operations(TypedDict, total=False):
    """Kinds of StableHLO operations as the specification names them, such as `dot_general`: one of the two lists."""

    allowed: list[str]
    """There are no others. `return`, which ends a region, is one of them."""
    forbidden: list[str]
    """There are none of these."""


class Rules(TypedDict, total=False):
    """What holds of graphs."""

    operations: Operations
    custom_calls: list[str]
    """The targets that a custom_call may have."""
    dtypes: list[str]
    """The element types that a value may have, arguments and results included, such as `f32`."""
    largest_constant: Bound
    """The most elements that a constant has. One that is the same number throughout has one."""
    aliasing: dict[str, Count | str]
    """Result = the argument whose buffer it takes over, each by name or by number."""
    counts: dict[str, Bound]
    """How many operations there are of a kind, or of `total`, `kinds`, `products`, `weights`."""
    tables: Literal["rope"]
    """Constants of several float32 numbers are the RoPE tables of float64 angles, rounded once."""


class Invariants(Rules, total=False):
    """What holds of all graphs, and of those of one phase besides."""

    prefill: Rules
    extend: Rules
    decode: Rules


class ProjectFile(TypedDict, total=False):
    """What hloracle is told of a project's graphs."""

    model: str
    """What they compute: a checkpoint directory or a .gguf file, relative to this file, or a name that hloracle knows."""
    abi: list[str] | str
    """Their ABI file, relative to this file; or that of each, in order."""
    invariants: Invariants


def schema() -> str:
    """What project.schema.json has to hold."""
    return schema_text(ProjectFile, "https://hloracle.invalid/project/1", "hloracle.toml, the file of a project")


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), "utf-8")
