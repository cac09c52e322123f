"""What a run is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hloracle.conformance.project.file import Project
from hloracle.core.bounds import BATCH, CAPACITY, ROUNDS
from hloracle.core.errors import InputError
from hloracle.production.choice import Choice
from hloracle.reference.model.contract import BUCKETS, refuse_beside_int8

# Of a quick run: its longest prompt fills the bucket, and what follows fills the last slot of the cache.
QUICK_BUCKET = 64
QUICK_CAPACITY = 111


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    tokens: that follow each prompt. capacity: cache slots of the graphs that a source is asked for; of graphs that are
      given, they say it themselves.
    precision: what the graphs hold weights in. choice: how the emitter writes its graphs, and how they are compiled; None
      takes what was found fastest on this machine, if that was ever measured, and else what is taken everywhere.
    out: the report's folder, where a reproducer goes; None writes none.
    rounds: of the speed comparison; 0 leaves it out.
    quick: for one of many models. One bucket, and the anchors on a quick backend alone.
    early_exit: leave out what can no longer change the verdict's class: a configuration, a canary beside a fault that was
      noticed, anchors by themselves after the first wrong one. Nothing is timed or shown. Prompts that do not fit the
      capacity are left out, too.
    every_token: a tiny model is given each token of its vocabulary, also in a quick run, or one that exits early.
    verdict_only: what is wrong is not taken apart. repairs: what would put it right is tried in a whole run.
    as_: the architecture that the model is one of, where its config.json says another.
    project: what is stated of the graphs that are judged, those of the bundled emitter aside.
    busy: a lock that is held as long as something else keeps this machine busy: nothing is timed before.
    batch: rows of the graphs that a source is asked for: of several, each has a sequence of its own at its own position.
    compute: what the model is computed in: f32, bf16 or f16. Of less than f32 all weights are of that type, too.
    ring: layers with a window that is shorter than the capacity have caches as long as their window, in the graphs that a source
      is asked for.
    kv: what these keep keys and values in, `compute`, what they compute in, or `int8`.
    """

    model: str
    tokens: int = 48
    capacity: int = 256
    precision: str = "f32"
    choice: Choice | None = None
    out: Path | None = None
    rounds: int = 5
    quick: bool = False
    early_exit: bool = False
    every_token: bool = False
    verdict_only: bool = False
    repairs: bool = True
    as_: str = ""
    project: Project | None = None
    busy: Path | None = None
    batch: int = 1
    compute: str = "f32"
    ring: bool = False
    kv: str = "compute"

    @property
    def prompt(self) -> str:
        """What a source is asked for to take a prompt: `extend`, part by part, where rows do, and where no bucket of at most the
        capacity holds a prompt whose continuation ends at the last slot; else `prefill`.
        """
        whole = self.capacity - self.tokens + 1 <= max(self.buckets, default=0)
        return "prefill" if whole and self.batch == 1 else "extend"

    @property
    def buckets(self) -> tuple[int, ...]:
        """Of the graphs of a prompt that a source is asked for."""
        fitting = tuple(b for b in BUCKETS if b <= self.capacity)
        return tuple(b for b in fitting if b <= QUICK_BUCKET)[-1:] if self.quick else fitting

    def validate(self) -> None:
        """Raises InputError that names the flag, unless graphs of this capacity can be asked for these tokens."""
        if not 0 <= self.rounds <= ROUNDS:
            raise InputError(f"is {self.rounds}", "--rounds", f"ask for none with 0, or for at most {ROUNDS}")
        if type(self.batch) is not int or not 1 <= self.batch <= BATCH:
            raise InputError(f"is {self.batch!r}", "--batch", f"give 1 to {BATCH:,} rows")
        refuse_beside_int8(self.kv, self.compute, self.ring)
        if self.compute != "f32" and self.choice is not None and self.choice.layout == "panels":
            what = f"is panels, and graphs that compute in {self.compute} have weights in rows"
            raise InputError(what, "--layout", "leave it out")
        if self.tokens < 1:
            raise InputError(f"is {self.tokens}", "--tokens", "ask for at least one")
        if self.capacity < BUCKETS[0]:
            raise InputError(f"is {self.capacity}", "--capacity", f"give at least the smallest bucket, {BUCKETS[0]}")
        if self.capacity > CAPACITY:
            raise InputError(f"is more than {CAPACITY:,}", "--capacity", "ask for fewer slots")
        if self.tokens > self.capacity:
            raise InputError(
                f"is {self.tokens}, more than the {self.capacity} cache slots", "--tokens",
                "raise --capacity, or ask for fewer",
            )  # fmt: skip
