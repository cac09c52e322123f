"""The operations by name. Each is a function of the operation, its operands and what surrounds it, and gives its results."""

from __future__ import annotations

from hloracle.semantics.operations import control, elementwise, indexing, movement, reductions, windows
from hloracle.semantics.operations.kinds import Known

OPERATIONS: dict[str, Known] = {
    **elementwise.KNOWN, **movement.KNOWN, **indexing.KNOWN, **reductions.KNOWN, **windows.KNOWN, **control.KNOWN,
}  # fmt: skip
