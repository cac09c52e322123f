"""Operations taken out of a case: their results are given, or one of their operands is taken in their place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hloracle.localize.draft import Case, edited, giveable
from hloracle.localize.hunt import Hunt


def fewer_operations(hunt: Hunt) -> None:
    """Take out what the fault does not need: first much at once, then one by one."""
    _one_result(hunt)
    _first_ones(hunt)
    _last_ones(hunt)
    _chunks(hunt)
    _earlier(hunt)
    _bypassed(hunt)


def _one_result(hunt: Hunt) -> None:
    with edited(hunt.case) as draft:
        if len(draft.end.operands) > 1:
            draft.returns([draft.returned], 0)
            hunt.accepts_draft(draft)


def _first_ones(hunt: Hunt) -> None:
    """Return an earlier value, looked for by halves: of a long graph that is much of the work at once."""
    with edited(hunt.case) as draft:
        if len(draft.end.operands) > 1:
            return
        high = len(draft.operations) - 1
    low = -1  # right at low, as far as was tried; wrong at high
    while high - low > 1:
        middle = (low + high) // 2
        with edited(hunt.case) as draft:
            results = list(draft.operations[middle].results)
            draft.returns(results[:1], 0)
            wrong = bool(results) and giveable(results[0]) and hunt.accepts_draft(draft)
        if wrong:
            with edited(hunt.case) as draft:  # of which those that it does not need are gone
                low, high = min(low, len(draft.operations) - 2), len(draft.operations) - 1
        else:
            low = middle


def _earlier(hunt: Hunt) -> None:
    """Return what the result is computed from, as long as that is wrong too."""
    changed = True
    while changed:
        changed = False
        with edited(hunt.case) as draft:
            count = len(_computed_operands(draft.returned)) if len(draft.end.operands) == 1 else 0
        for i in range(count):
            with edited(hunt.case) as draft:
                draft.returns([_computed_operands(draft.returned)[i]], 0)
                if hunt.accepts_draft(draft):
                    changed = True
                    break


def _computed_operands(value: Any) -> list[Any]:
    """Those operands of what computes a value that are computed themselves, and that a graph can return."""
    return [v for v in _operands(value) if _operation(v) is not None and giveable(v)]


def _operands(value: Any) -> list[Any]:
    operation = _operation(value)
    return list(operation.operands) if operation is not None else []


def _operation(value: Any) -> Any:
    """What computes a value; None for an argument."""
    owner = value.owner
    return owner if hasattr(owner, "operands") else None


def _last_ones(hunt: Hunt) -> None:
    """Keep only the last operations: of a long graph that is most of the work at once."""
    places = _places(hunt.case)
    count = 1
    while count < len(places):
        if _given(hunt, places[:-count]):
            return
        count *= 2


def _chunks(hunt: Hunt) -> None:
    """Delta debugging: have halves given, then quarters, then single operations."""
    size = max(1, len(_places(hunt.case)) // 2)
    while True:
        at = 0
        while at < len(places := _places(hunt.case)):
            if not _given(hunt, places[at : at + size]):
                at += size
        if size == 1:
            return
        size //= 2


def _places(case: Case) -> list[int]:
    """The places of the operations whose results can be given. Not of the last: it shows the fault."""
    with edited(case) as draft:
        last = _operation(draft.returned)
        return [
            i for i, operation in enumerate(draft.operations)
            if list(operation.operands) and operation != last and all(map(giveable, operation.results))
        ]  # fmt: skip


def _given(hunt: Hunt, places: Collection[int]) -> bool:
    """Try the case in which the results of some operations are arguments with the right values."""
    values = hunt.right_values
    if not places or (values is None and not hunt.judge.compiles_only):
        return False
    with edited(hunt.case) as draft:
        operations = draft.operations
        for place in places:
            for number, result in enumerate(operations[place].results):
                if list(result.uses):
                    draft.takes(result, None if values is None else values[place, number])
        return hunt.accepts_draft(draft)


def _bypassed(hunt: Hunt) -> None:
    """Take an operand in the place of an operation, where it is of its type."""
    at = 0
    while True:
        with edited(hunt.case) as draft:
            if at >= len(draft.operations):
                return
            choices = _alike(draft.operations[at])
        if not any(_bypass(hunt, at, choice) for choice in choices):
            at += 1


def _bypass(hunt: Hunt, place: int, operand: int) -> bool:
    with edited(hunt.case) as draft:
        operation = draft.operations[place]
        operation.results[0].replace_all_uses_with(operation.operands[operand])
        return hunt.accepts_draft(draft)


def _alike(operation: Any) -> Sequence[int]:
    """The operands that have the type of an operation's only result."""
    results, operands = operation.results, operation.operands
    return [i for i, v in enumerate(operands) if v.type == results[0].type] if len(results) == 1 else []
