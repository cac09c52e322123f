"""A small model's whole question, and configurations that answer it on XLA in this process: right ones, and ones that are spoiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from models import quick_xla

from hloracle.backends.named import Choice
from hloracle.backends.session import Buffer, Executable, Session
from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.context import Context
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.prompts import Prompt, Reach
from hloracle.conformance.questions.questions import Asked, ask
from hloracle.conformance.runs import configurations
from hloracle.conformance.runs.configurations import Outcome
from hloracle.core.abi import Graph
from hloracle.core.child import alone
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

CAPACITY, BUCKET, COUNT = 12, 8, 4
PROMPTS = [
    Prompt("short", BUCKET, "", None, (17, 3, 200)),
    # Its tokens end at the last slot of the cache.
    Prompt("long", BUCKET, "", None, (5, 90, 12, 256, 0, 33, 71, 9)),
]

# What becomes of a call's results, by their place: head, k_cache, v_cache.
Spoil = Callable[[Graph, int, np.ndarray], np.ndarray]


@cache
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve("tiny-llama"))


@cache
def graphs(head: str = "logits") -> tuple[Graph, Graph]:
    """Prefill and decode."""
    config = checkpoint().config
    return emit(config, "prefill", head, CAPACITY, BUCKET), emit(config, "decode", head, CAPACITY)


@cache
def asked() -> Asked:
    with alone():
        found = truths(checkpoint(), [p.token_ids for p in PROMPTS], COUNT)
        known = {p.id: t for p, t in zip(PROMPTS, found, strict=True)}
        return ask(checkpoint(), PROMPTS, known, Reach(CAPACITY, (BUCKET,)), every_token=False)[0]


@cache
def _loaded(graph: Graph) -> Executable:
    return quick_xla().load(graph)


@dataclass(frozen=True)
class Spoiled:
    """XLA, with what graphs return changed on its way back."""

    spoil: Spoil
    name: str = "xla-cpu"

    def load(self, graph: Graph) -> Executable:
        right = _loaded(graph)

        def execute(arguments: Sequence[Buffer]) -> Sequence[Buffer]:
            results = [np.array(self.download(r)) for r in right(arguments)]
            return [self.upload(np.array(self.spoil(graph, i, r), r.dtype)) for i, r in enumerate(results)]

        return execute

    def upload(self, array: np.ndarray) -> Buffer:
        return quick_xla().upload(array)

    def keep(self, array: np.ndarray) -> Buffer:
        return quick_xla().keep(array)

    def download(self, buffer: Buffer) -> np.ndarray:
        return quick_xla().download(buffer)


def nothing(graph: Graph, place: int, result: np.ndarray) -> np.ndarray:
    return result


def session(spoil: Spoil = nothing, head: str = "logits", phases: Sequence[str] = ("prefill", "decode")) -> Session:
    some = [g for g in graphs(head) if g.abi.phase in phases]
    return Session(Spoiled(spoil), some, checkpoint().load)


def answered(spoil: Spoil = nothing, head: str = "logits") -> Outcome:
    """What a configuration answers to the question."""
    configuration = Configuration("emitter", "xla-cpu", head)
    context = Context(backends=(Choice("xla-cpu", "xla", lambda threads: Spoiled(spoil), "XLA", quick=True),))
    return configurations._run(context, configuration, list(graphs(head)), checkpoint().directory, asked())


def judged(outcome: Outcome) -> dict[str, Check]:
    """The checks of a configuration by the last part of their id."""
    found = configuration_checks(outcome, asked().truths, asked().streams)
    return {c.id.rpartition(".")[2]: c for c in found}
