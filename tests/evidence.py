"""Evidence by hand: a truth, and outcomes of cells that are right or wrong in a chosen place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from hloracle.backends.devices import CPU
from hloracle.conformance.cells import Cell, CellOutcome, PromptOutcome, repeats
from hloracle.conformance.checks import Check, cell_checks, judged, truth_check
from hloracle.conformance.run import cells_on
from hloracle.conformance.verdict import Verdict, decide
from hloracle.reference.truth import Truth

CELLS = cells_on(CPU)
V = 8
FLOOR = 2.0**-20
STREAMING = Cell("emitter", "iree-cpu")


def streams(cell: Cell) -> bool:
    return (cell.source, cell.head) == ("emitter", "logits") and cell.backend != "xla-cpu"


def truth(tokens: tuple[int, ...] = (3, 1, 4), lead: float = 1.0, floor: float = FLOOR) -> Truth:
    """The token's logit is 10, that of the next higher token `lead` less, the others 0; one is `floor` off in float32.

    So are the caches, whose largest entry is 1.
    """
    exact = np.zeros((len(tokens), V), np.float32)
    for step, token in enumerate(tokens):
        exact[step, token], exact[step, token + 1] = 10, 10 - lead
    logits = exact.copy()
    logits[0, 0] += floor
    return Truth(list(tokens), logits, exact, reused=False, moved="", caches=floor)


TRUTHS = {"first@32": truth(), "second@64": truth((5, 2, 6))}
CLOSE = {**TRUTHS, "close@32": truth(lead=4 * FLOOR)}


def outcome(cell: Cell, truths: dict[str, Truth] = TRUTHS) -> CellOutcome:
    """A cell that is right everywhere."""
    prompts = {}
    for id, t in truths.items():
        errors = [t.floor] * len(t.tokens) if cell.head == "logits" else []
        distances = (0.0, 0.0) if streams(cell) else (None, None)
        prompts[id] = PromptOutcome(list(t.tokens), errors, 0.1, *distances, 0.0 if repeats(cell) else None)
    return CellOutcome(cell, "ran", prompts, seconds=1.0)


Change = Callable[[CellOutcome], CellOutcome]


def on_prompt(id: str = "first@32", **fields: Any) -> Change:
    """Replaces fields of one prompt's outcome."""

    def change(found: CellOutcome) -> CellOutcome:
        prompt = dataclasses.replace(found.prompts[id], **fields)
        return dataclasses.replace(found, prompts={**found.prompts, id: prompt})

    return change


def failed(stage: str) -> Change:
    return lambda found: CellOutcome(found.cell, "failed", stage=stage, message=f"{stage} failed: the tool's words")


WRONG_TOKEN = on_prompt(tokens=[3, 2, 4])
WRONG_LOGITS = on_prompt(errors=[FLOOR, 9 * FLOOR, FLOOR])


def gathered(
    changes: dict[str, Change] | None = None, truths: dict[str, Truth] = TRUTHS, cells: tuple[Cell, ...] = CELLS
) -> tuple[list[Check], list[CellOutcome]]:
    """The checks and outcomes of a run whose cells named in `changes` are changed."""
    same: Change = lambda found: found  # noqa: E731
    outcomes = [(changes or {}).get(cell.id, same)(outcome(cell, truths)) for cell in cells]
    checks = [judged("gate-zero.iree-cpu", "gate zero", True, 1, 1), truth_check(truths)]
    for found in outcomes:
        checks += cell_checks(found, truths, streamed=truths if streams(found.cell) else ())
    return checks, outcomes


def verdict(
    changes: dict[str, Change] | None = None,
    truths: dict[str, Truth] = TRUTHS,
    cells: tuple[Cell, ...] = CELLS,
    more: tuple[Check, ...] = (),
) -> Verdict:
    checks, outcomes = gathered(changes, truths, cells)
    return decide([*more, *checks], outcomes, truths)
