"""What a history keeps of one run, as types: a line of the store.

history.schema.json is generated from them, `python -m hloracle.reports.history.store` writes it. The history page is
drawn from these lines and from nothing else. Strings of the record are cut.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

from hloracle.core.record import Class, Dict, Figure, Float, List, Phase, Positive, Seconds

SCHEMA: Final = "hloracle-history/5"
LONGEST: Final = 200  # characters of a string that are kept
FAILING: Final = 40  # models of a suite that do not pass, by name
LEFT_OUT: Final = 20  # phrases of what was not compared


def _short(value: str) -> str:
    if len(value) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    return value


# Half a surrogate pair is none for a limit of pydantic's own: see core/record.py.
Short = Annotated[str, AfterValidator(_short), WithJsonSchema({"type": "string", "maxLength": LONGEST})]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]  # what every reader of JSON can hold


class Source(TypedDict):
    """Where graphs came from, in the order in which they are shown."""

    id: Short
    title: Short
    judged: bool


class Model(TypedDict):
    """The checkpoint."""

    name: Short
    digest: Short
    """SHA-256 of the checkpoint."""


class Settings(TypedDict):
    """What the user asked for."""

    device: Short
    precision: Short
    threads: Count
    tokens: Count
    """After each prompt."""
    capacity: Count
    buckets: List[Count]


_Classed = TypedDict("_Classed", {"class": Class})


class Verdict(_Classed):
    """What the run concluded."""

    anchor: Short | None
    """The first wrong one."""
    not_compared: Annotated[List[Short], Field(max_length=LEFT_OUT)]
    """The first of what could not be compared, with the reasons."""


class Tokens(TypedDict):
    """Over all prompts and configurations that were compared."""

    agreed: Count
    total: Count
    """0 where nothing was compared."""
    compared: Count
    """Pairs of a prompt and a configuration."""
    planned: Count


class Families(TypedDict):
    """Of a suite how many models were judged, this run's own among them, and how many passed."""

    passed: Count
    total: Count
    failing: Annotated[List[Short], Field(max_length=FAILING)]
    """The names of the first of those that did not pass."""


class Checks(TypedDict):
    """How many have each status."""

    passed: Count
    failed: Count
    error: Count
    skipped: Count


class WorstAnchor(TypedDict):
    """The value at an anchor that is the largest multiple of its limit."""

    name: Short
    share: Float


class Graph(TypedDict):
    """One graph of a source and phase: of those that give logits, if there are any, the one of the smallest bucket."""

    source: Short
    phase: Phase
    op_total: Count
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """Of the texts of all graphs of this source and phase, the first 64 bits of a SHA-256."""


class Contender(TypedDict):
    """One of those whose decode steps were timed."""

    id: Short
    title: Short
    ms_per_token: Positive
    """The median of the rounds."""


class Ratio(TypedDict):
    """How many times as fast as the first peer the production graph is, round by round."""

    peer: Short
    median: Positive
    least: Positive
    most: Positive


class Speed(TypedDict):
    """Decode steps of the production graph, which stands first, and of its peers, taking turns in one process."""

    reason: Short
    """Why nothing was measured; empty where something was."""
    contenders: List[Contender]
    ratio: Ratio | None
    """Null where there is no such pair."""


class Row(TypedDict):
    """What is kept of one conformance run to compare it with those before and after."""

    schema: Literal["hloracle-history/5"]
    run: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the record's content: a run stands here once."""
    commit: Short | None
    """The revision that was judged, with `+` at its end where the tree had changes; null where none is known."""
    date: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}\+00:00)?$")]
    """When the run began, in UTC. Runs are ordered by it."""
    mutant: Short
    """The deliberate fault that the run carried; empty where it carried none."""
    sources: Annotated[List[Source], Field(min_length=1)]
    model: Model
    settings: Settings
    verdict: Verdict
    tokens: Tokens
    families: Families | None
    """Null for a run of one model."""
    checks: Checks
    logit: Figure
    """The largest logit error as a multiple of its limit; null where none was measured."""
    anchor: WorstAnchor | None
    """Null where none was measured."""
    graphs: List[Graph]
    speed: Speed
    peak_bytes: Annotated[int, Field(ge=1, le=2**53 - 1)] | None
    seconds: Seconds | None
    cpu: Short
    hloracle: Short
    packages: Dict[Short]
