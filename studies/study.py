"""How a study judges its items: the right model of each first, each in a process of its own, what came of it kept."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hloracle.core.abi import COMPUTE
from hloracle.core.cache import Entry
from hloracle.core.child import Report
from hloracle.core.errors import InputError
from hloracle.core.files import write_file
from hloracle.core.pool import run_each

compute_option = click.option(
    "--compute", type=click.Choice(COMPUTE), default=COMPUTE[0], show_default=True, help="What graphs compute in."
)


@dataclass(frozen=True)
class Study:
    """What is done with an item, any hashable value. Functions that run in a child process are importable by name.

    what: the items, in the plural. seconds: that one may take, on average.
    model: of an item. right: what is said of a model with nothing wrong in it; in a child process.
    refuse: gets a model and that, or why there is none; raises InputError where nothing can be told of a wrong one.
    judge: what is said of an item; in a child process.
    outcome: of an item, what was said of it (or why there is nothing), its seconds, and what was said of its right model. Has
      `crashed`, so that it is not kept, and `reused`.
    entry: where the outcome of an item is kept in the cache.
    """

    what: str
    seconds: float
    model: Callable[[Any], Any]
    right: Callable[[Report, Any], Any]
    refuse: Callable[[Any, Any], None]
    judge: Callable[[Report, Any], Any]
    outcome: Callable[[Any, Any, float, Any], Any]
    entry: Callable[[Any], Entry[Any]]

    def run(
        self, items: Sequence[Any], jobs: int, report: Report, done: Callable[[Any], None], reuse: bool
    ) -> list[Any]:
        """What came of each item, in their order; `jobs` of them at a time.

        Args:
          done: is told of each as it ends. reuse: take outcomes from the cache.
        """
        found: dict[Any, Any] = {}
        right: dict[Any, Any] = {}

        def finish(item: Any, outcome: Any) -> None:
            found[item] = outcome
            done(outcome)
            report(f"{len(found)} of {len(items)} {self.what}, last {item}")

        def trusted(model: Any, answer: Any, seconds: float) -> None:
            self.refuse(model, answer)
            right[model] = answer

        def judged(item: Any, answer: Any, seconds: float) -> None:
            outcome = self.outcome(item, answer, seconds, right[self.model(item)])
            if not outcome.crashed:
                self.entry(item).save(outcome)
            finish(item, outcome)

        for item in items if reuse else ():
            if kept := self.entry(item).load():
                finish(item, dataclasses.replace(kept, reused=True))
        left = [item for item in items if item not in found]
        report("the right models")
        run_each(self.right, list(dict.fromkeys(map(self.model, left))), jobs, self.seconds, report, trusted)
        run_each(self.judge, left, jobs, self.seconds, report, judged)
        return [found[item] for item in items]


def write_pins(path: Path, found: dict[str, dict[str, Any]]) -> None:
    """Write what came of each family to a file, a line each; what is known of other families stays.

    Raises InputError where XLA was given other flags: what is written down holds without.
    """
    if flags := os.environ.get("XLA_FLAGS"):
        raise InputError(f"is {flags!r}", "XLA_FLAGS", "unset it: what is written down is what comes of them without")
    kept = json.loads(path.read_text()) if path.is_file() else {}
    write_rows(path, {**kept, **found})


def write_rows(path: Path, rows: dict[str, Any], separators: tuple[str, str] | None = None) -> int:
    """Write a JSON object, a line for each of its entries; returns how many characters it has."""
    lines = [f"{json.dumps(key)}: {json.dumps(row, separators=separators)}" for key, row in rows.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_file(path, text)
    return len(text)
