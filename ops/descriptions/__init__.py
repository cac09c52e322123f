"""The descriptions, in the order of the suite."""

from __future__ import annotations

from hloracle.ops.describe import Description
from hloracle.ops.descriptions import chlo, choices, conversions, elementwise, integers

DESCRIPTIONS: tuple[Description, ...] = (
    *elementwise.DESCRIPTIONS, *integers.DESCRIPTIONS, *choices.DESCRIPTIONS, *conversions.DESCRIPTIONS, *chlo.DESCRIPTIONS,
)  # fmt: skip
