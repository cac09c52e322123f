"""Stands in for the library: answers at once, and notes what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hloracle
from hloracle.core.errors import InputError

FILES = ("report.html", "report.json", "summary.md", "junit.xml")
WRONG = "The graph is wrong on XLA and on IREE alike. Compared: 4 of 240 tokens."


@dataclass(frozen=True)
class StandInVerdict:
    """The fields of hloracle.Verdict."""

    class_: str = "conforms"
    explanation: str = "Equal to Hugging Face in all that was compared."
    anchor: str | None = None
    operation: str | None = None
    sure: str = ""
    because: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()


@dataclass(frozen=True)
class StandInRecord:
    """A record that holds what the library was asked."""

    asked: dict[str, Any]
    verdict: StandInVerdict = field(default_factory=StandInVerdict)

    @property
    def data(self) -> dict[str, Any]:
        return {"verdict": {"class": self.verdict.class_}}

    @property
    def passed(self) -> bool:
        return self.verdict.class_ == "conforms"

    def save(self, folder: str | Path) -> Path:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (Path(folder) / name).write_text(json.dumps(self.asked, default=str))
        return Path(folder)


def answer(called: str, *graphs: str | Path, **settings: Any) -> StandInRecord:
    """What the graphs' names ask for."""
    asked = {"called": called, "graphs": graphs, **settings}
    names = " ".join(map(str, graphs))
    if "missing" in names:
        raise InputError("no such file", names, "name a graph")
    if "unknown" in names:
        return StandInRecord(asked, StandInVerdict("harness-error", "The comparison is incomplete."))
    if "wrong" in names:
        because = ("the file's graph is wrong on iree-cpu and xla-cpu alike", "it is wrong by itself")
        where = "layers.0.input_layernorm", "stablehlo.sqrt %0 at line 59 of wrong"
        return StandInRecord(asked, StandInVerdict("emitter-fault", WRONG, *where, "certain", because))
    return StandInRecord(asked)


def check(*graphs: str | Path, **settings: Any) -> StandInRecord:
    return answer("check", *graphs, **settings)


def run(**settings: Any) -> StandInRecord:
    return answer("run", **settings)


API: dict[str, Callable[..., Any] | type] = {"check": check, "run": run, "InputError": InputError}


def install() -> None:
    """In place of the library, for the whole process."""
    vars(hloracle).update(API)
