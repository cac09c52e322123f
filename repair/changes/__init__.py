"""The changes of one operation that may repair a graph, by kind, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator

from hloracle.repair.changes import attributes, constants, kinds, missing, wires
from hloracle.repair.subject import Edit, Plain

# The cheaper of two repairs is the better one: what a typing error makes, before what has to be invented.
TIERS = (
    (
        kinds.other_operation, attributes.other_attributes, wires.exchanged, wires.other_operand, constants.known,
        missing.without,
    ),
    (missing.without_several, missing.followed_by_one, missing.followed_by_two),
)  # fmt: skip


def changes(plain: Plain, place: int, tier: int) -> Iterator[Edit]:
    """The changes of one tier of the operation at a place."""
    for make in TIERS[tier]:
        yield from make(plain, place)
