"""Two versions of a compiler measured in turns: decode steps beside their peers, and how long each compiles."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloracle.backends.compiled import Program
from hloracle.conformance.context import Context
from hloracle.conformance.matrix import EMITTER, ORACLE, Configuration
from hloracle.conformance.runs.speed import Contender, measure
from hloracle.core.abi import Graph
from hloracle.core.errors import ToolchainError

COMPILE_ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """speed: the two versions, then their peers; a round each in turn. reason: why there is none.

    programs: of each version, by the graph's id in a record: the shortest of its compile times.
    """

    speed: tuple[Contender, ...]
    reason: str
    programs: Sequence[Mapping[str, Program]] = ({}, {})

    def of(self, version: int, backend: str) -> list[Contender]:
        """What a record of one of the two has: that version under another name of its backend, and the peers."""
        if not self.speed:
            return []
        own = self.speed[version]
        id = Configuration(own.source, backend, "token").id
        return [dataclasses.replace(own, id=id, backend=backend), *self.speed[2:]]


def measured(
    context: Context, directory: Path, graphs: tuple[Mapping[str, Graph], Graph], rounds: int
) -> Measured:  # fmt: skip
    """Measure what two backends, the first of the context, make of a model's graphs. Runs in a child process.

    Args:
      graphs: the emitted ones by their ids, of which the first decodes and picks the token; and the oracle's decode graph.
      rounds: of decode steps; without any, programs alone are looked at.
    """
    emitted, oracle = graphs
    versions, peer = context.names[:2], context.names[2]
    programs = _compiled_in_turns(context, versions, emitted)
    if not rounds:
        return Measured((), "one of the two runs did not pass, so its speed means nothing", programs)
    decode = next(iter(emitted.values()))
    where = [(Configuration(EMITTER, name, "token"), decode) for name in versions]
    try:
        found = measure(context, directory, [*where, (Configuration(ORACLE, peer), oracle)], rounds)
    except ToolchainError as error:
        return Measured((), str(error), programs)
    return Measured(tuple(found), "", programs)


def _compiled_in_turns(context: Context, names: Sequence[str], graphs: Mapping[str, Graph]) -> list[dict[str, Program]]:
    """What each backend makes of each graph; without those that it does not compile, and without a backend of this process."""
    backends: list[Any] = [context.backend(name) for name in names]
    found: list[dict[str, list[Program]]] = [{} for _ in names]
    for nth in range(1, COMPILE_ROUNDS + 1):
        for id, graph in graphs.items():
            for backend, of in zip(backends, found, strict=True):
                if not hasattr(backend, "compile"):
                    continue
                context.report(f"compile times, round {nth} of {COMPILE_ROUNDS}: {graph.name} on {backend.name}")
                with contextlib.suppress(ToolchainError):  # the record of its run says so
                    of.setdefault(id, []).append(backend.compile(graph))
    return [{id: _shortest(some) for id, some in of.items() if len(some) == COMPILE_ROUNDS} for of in found]


def _shortest(programs: Sequence[Program]) -> Program:
    """Other work on the machine makes a compiler slower and never faster."""
    return Program(min(p.seconds for p in programs if p.seconds is not None), programs[0].size)
