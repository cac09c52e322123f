"""The form of a matrix's settings as types; its other tables are commands, whose keys are the commands' own options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

FaultKind = Literal["crash", "hang", "flaky"]
Timeout = Annotated[float, Field(gt=0, le=7 * 86400)]
Match = dict[str, str | int | float | bool | list[str | int | float | bool]]


class Fleet(TypedDict, total=False):
    """How the whole is run."""

    name: str
    """What it is called in reports; by default as its file."""
    retries: Annotated[int, Field(ge=0, le=10)]
    """How often a job that does not pass is run again; one that passes then is flaky."""
    timeout: Timeout
    """Seconds that a job may take."""


class Place(TypedDict, total=False):
    """What some jobs need: of a machine, and of time."""

    match: Match
    """Which jobs; all, where it is left out."""
    cpus: Annotated[float, Field(gt=0, le=10_000)]
    """Cores; 1 where nobody says otherwise. They are the `--threads` of a command that has this option."""
    gpus: Annotated[float, Field(ge=0, le=1000)]
    memory: str
    """Such as `8 GB`."""
    labels: dict[str, str]
    """What the machine has to be called: `ray start --labels`."""
    timeout: Timeout
    """Seconds that they may take; as for the fleet where nobody says otherwise."""


class Fault(TypedDict):
    """What some jobs do on purpose, to try the fleet itself."""

    match: Match
    kind: FaultKind


class MatrixFile(TypedDict, total=False):
    """All but the commands."""

    fleet: Fleet
    exclude: list[Match]
    place: list[Place]
    fault: list[Fault]
