"""Where a command stops once it has read what it was given: what follows takes seconds or minutes, and reads nothing more.

What hloracle does in processes of its own happens in the worker itself, which is one already: a crash that would end such a
process is looked at again with it (`pool.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn
from unittest import mock

from fuzz.attempt import Reached


def _reached(*_: object, **__: object) -> NoReturn:
    raise Reached


def _read_and_stop(run: Any, graphs: Any) -> NoReturn:
    from hloracle.conformance import run as module

    module._read(run, graphs)
    raise Reached


STOPS = {
    "hloracle.conformance.run.gates": _read_and_stop,
    "hloracle.conformance.run.oracle_of": lambda context, graphs, config: ([], 0),
    "hloracle.versions.replay.replay": _reached,
    "hloracle.ops.running_suite.conduct": _reached,
    "hloracle.production.generate.production_graphs": _reached,
    "hloracle.fleet.run.connected": _reached,
    "hloracle.reference.fixtures.named._from_package": _reached,
    "hloracle.studies.mutants.run_mutants": _reached,
    "hloracle.studies.holes.run_holes": _reached,
}
# What the commands import when they run, so that no input pays for it.
IMPORTED = (
    "hloracle.api", "hloracle.cli.show", "hloracle.conformance.run", "hloracle.foreign.opening", "hloracle.fleet.matrix",
    "hloracle.fleet.run", "hloracle.ops.files_rewrite", "hloracle.ops.known", "hloracle.ops.of_graph", "hloracle.ops.opened", "hloracle.ops.running_suite",
    "hloracle.production.emit", "hloracle.production.generate", "hloracle.reports.annotate", "hloracle.reports.comment",
    "hloracle.reports.compare.files", "hloracle.reports.explorer", "hloracle.reports.fleet.record", "hloracle.reports.history.page",
    "hloracle.reports.history.store", "hloracle.reports.history.table", "hloracle.versions.case", "hloracle.versions.replay",
    "hloracle.studies.random_models", "jax.export", "transformers", "hloracle.reference.huggingface.unread",
    "hloracle.reference.fixtures.gguf", "rich.table", "unittest.mock",
    *(f"transformers.models.{family}.modeling_{family}" for family in (
        "deepseek_v3", "gemma2", "gemma3", "gpt_oss", "llama", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "stablelm",
    )),
)  # fmt: skip


@contextlib.contextmanager
def stopped(children: bool = False) -> Iterator[None]:
    """While this holds, commands stop where they have read everything.

    children: leave what has a process of its own there.
    """
    from hloracle.core.child import alone
    from hloracle.ops import suite

    every = suite.cases

    def some(names: Sequence[str] = ()) -> Iterator[Any]:
        """Of all operations, those of one stand for the others: to make them all takes half a minute."""
        return every(names or ("add",))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(suite, "cases", some))
        for name, stop in STOPS.items():
            stack.enter_context(mock.patch(name, stop))
        if not children:
            stack.enter_context(alone())
        yield
