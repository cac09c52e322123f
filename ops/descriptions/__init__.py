"""The descriptions, in the order of the suite."""

from __future__ import annotations

from hloracle.ops.describe import Description
from hloracle.ops.descriptions import elementwise

DESCRIPTIONS: tuple[Description, ...] = (*elementwise.DESCRIPTIONS,)
