"""The descriptions, in the order of the suite."""

from __future__ import annotations

from hloracle.ops.describe import Description
from hloracle.ops.descriptions import (
    chlo,
    choices,
    complexes,
    control,
    conversions,
    dynamic,
    elementwise,
    indexing,
    integers,
    movement,
    products,
    reductions,
    sorting,
)  # fmt: skip

DESCRIPTIONS: tuple[Description, ...] = (
    *elementwise.DESCRIPTIONS, *integers.DESCRIPTIONS, *choices.DESCRIPTIONS, *conversions.DESCRIPTIONS, *chlo.DESCRIPTIONS,
    *movement.DESCRIPTIONS, *dynamic.DESCRIPTIONS, *indexing.DESCRIPTIONS, *reductions.DESCRIPTIONS, *products.DESCRIPTIONS,
    *sorting.DESCRIPTIONS, *complexes.DESCRIPTIONS, *control.DESCRIPTIONS,
)  # fmt: skip
