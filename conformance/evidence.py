"""A run: what it is asked for and works with, and what it has gathered so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from hloracle.backends.choice import Choice as Backend
from hloracle.conformance.checks.check import Check
from hloracle.conformance.context import Context
from hloracle.conformance.graphs.facts import Inspected
from hloracle.conformance.graphs.listing import Reading
from hloracle.conformance.graphs.sources import Files, Source
from hloracle.conformance.matrix import ORACLE, Matrix
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.code_generation import Compiled
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.gate_zero import Gate
from hloracle.conformance.runs.inside import AnchorOutcome
from hloracle.conformance.runs.speed import Contender
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.localization import Localization
from hloracle.core.abi import Abi, Graph
from hloracle.production.choice import Choice, untuned
from hloracle.reference.huggingface.truth import Truth
from hloracle.reference.model.checkpoint import Checkpoint


@dataclass
class Evidence:
    """What a run has gathered so far; the record is written from it whether or not the run got to its end.

    graphs: by source, the judged ones first. truths: by the id of a prompt.
    named: by source and name, a graph with its anchors named, where they had to be looked for.
    shown: the graphs that a reader is shown, with their sources. compiled: for targets that nothing runs on.
    arithmetic: what the device multiplies with. choice, chosen: how the emitter's graphs are written and compiled, and why
      so: `untuned`, `tuned`, or `asked` for; ignored: why what was measured on this machine was not taken.
    gates: the backends that were asked for, and what gate zero found of each.
    """

    checks: list[Check] = field(default_factory=list)
    graphs: dict[str, Inspected] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    truths: dict[str, Truth] = field(default_factory=dict)
    asked: Asked = field(default_factory=Asked)
    outcomes: list[Outcome] = field(default_factory=list)
    anchored: list[AnchorOutcome] = field(default_factory=list)
    named: dict[tuple[str, str], Graph] = field(default_factory=dict)
    localization: Localization | None = None
    shown: list[tuple[str, Graph, Reading]] = field(default_factory=list)
    compiled: list[Compiled] = field(default_factory=list)
    arithmetic: str = "float32 of the processor"
    speed: list[Contender] = field(default_factory=list)
    speed_reason: str = "the run did not get so far"
    choice: Choice = field(default_factory=untuned)
    chosen: str = "untuned"
    ignored: str = ""
    gates: list[tuple[Backend, Gate]] = field(default_factory=list)

    @property
    def bad(self) -> list[Check]:
        """The checks that failed or could not be made, so far."""
        return [c for c in self.checks if c.bad]

    def whole(self, source: str) -> list[Graph]:
        """The graphs of a source that parse."""
        return [g for g, facts in self.graphs.get(source, []) if not facts.error]

    def looked_into(self, source: str) -> list[Graph]:
        """The same as what looks into graphs is given: with their anchors named, once they were looked for."""
        return [self.named.get((source, g.name), g) for g in self.whole(source)]

    def heads(self, source: str) -> set[str]:
        """What the graphs of a source answer with."""
        return {g.abi.head for g, _ in self.graphs[source]}

    def compared_head(self, source: str) -> str:
        """The head whose graphs are compared on every backend: logits, where the source has such graphs."""
        return "logits" if "logits" in self.heads(source) else "token"

    @property
    def judged(self) -> list[str]:
        """The sources that are judged."""
        return [source for source in self.graphs if source != ORACLE]

    @property
    def abis_of(self) -> dict[str, list[Abi]]:
        """Of the judged graphs, by source."""
        return {source: [g.abi for g, _ in self.graphs[source]] for source in self.judged}

    @property
    def abis(self) -> list[Abi]:
        """Of all judged graphs."""
        return [abi for some in self.abis_of.values() for abi in some]

    @property
    def decodes(self) -> bool:
        """Whether the judged sources have decode graphs."""
        return any(abi.phase == "decode" for abi in self.abis)

    @property
    def steps(self) -> bool:
        """Whether tokens can be given one after another: to a decode graph, or to one that takes all of them each time."""
        return self.decodes or any(not abi.caches for abi in self.abis)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Of the judged sources' graphs of a prompt."""
        return tuple(sorted({abi.bucket for abi in self.abis if abi.phase != "decode"}))

    @property
    def in_parts(self) -> bool:
        """Whether a prompt goes through the judged graphs part by part."""
        return any(abi.phase == "extend" for abi in self.abis)

    @property
    def batch(self) -> int:
        """Rows of the judged graphs."""
        return max((abi.batch for abi in self.abis), default=1)

    @property
    def capacity(self) -> int:
        """Cache slots of the judged graphs."""
        return max(abi.capacity for abi in self.abis)

    def replace(self, checks: Iterable[Check]) -> None:
        """Enter checks, each in place of the one of its id, if it was asked before."""
        found = list(checks)
        ids = {c.id for c in found}
        self.checks = [*(c for c in self.checks if c.id not in ids), *found]


@dataclass
class Run:
    """What is asked for, of which model and which sources, what it is done with, and what was gathered."""

    settings: Settings
    context: Context
    sources: tuple[Source, ...]
    model: Checkpoint
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def matrix(self) -> Matrix:
        """Of all backends that were asked for; the context's is of those that passed gate zero."""
        asked = tuple(backend for backend, _ in self.evidence.gates)
        return dataclasses.replace(self.context, backends=asked or self.context.backends).matrix

    @property
    def of_files(self) -> bool:
        """Whether all sources are files."""
        return all(isinstance(source, Files) for source in self.sources)
