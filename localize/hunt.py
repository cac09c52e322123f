"""The smallest case so far, and what is tried in its place."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from jaxlib.mlir import ir

from hloracle.localize.draft import Case, Draft, dtype_in, edited
from hloracle.localize.judge import Judge, Seen


class Hunt:
    """A case that shows the fault. What is accepted in its place shows it too.

    changes: how many were accepted.
    """

    def __init__(self, case: Case, seen: Seen, judge: Judge) -> None:
        self.case, self.seen, self.judge = case, seen, judge
        self.changes = 0
        self._tried = {_key(case)}
        self._values_of: Case | None = None
        self._values: dict[tuple[int, int], np.ndarray] | None = None

    @property
    def right_values(self) -> dict[tuple[int, int], np.ndarray] | None:
        """The right value of each result of the case's operations, by the places of both; None where there are none."""
        if self._values_of is not self.case:
            self._values_of, self._values = self.case, _right_values(self.case, self.judge)
        return self._values

    def accepts(self, case: Case) -> bool:
        """Whether a case shows the fault: then it is the one from now on. Each is tried once. May raise BudgetEnded."""
        key = _key(case)
        if key in self._tried:
            return False
        seen = self.judge.look(case)
        self._tried.add(key)
        if seen is None:
            return False
        self.case, self.seen = case, seen
        self.changes += 1
        return True

    def accepts_draft(self, draft: Draft) -> bool:
        """The same for what a draft has become, which may be no graph at all."""
        try:
            case = draft.finished()
        except (ir.MLIRError, ValueError):
            return False
        return self.accepts(case)


def _right_values(case: Case, judge: Judge) -> dict[tuple[int, int], np.ndarray] | None:
    with edited(case) as draft:
        of = [
            ((place, number), result)
            for place, operation in enumerate(draft.operations) for number, result in enumerate(operation.results)
            if dtype_in(result)
        ]  # fmt: skip
        draft.returns([result for _, result in of], 0)
        found = judge.values(draft.finished())
    return dict(zip((key for key, _ in of), found, strict=True)) if found else None


def _key(case: Case) -> str:
    known = sha256(case.graph.text.encode())
    for name, value in case.inputs.items():
        known.update(name.encode())
        known.update(value.tobytes())
    return f"{known.hexdigest()} {case.result}"
