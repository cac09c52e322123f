"""Writes mutants/outcomes.json anew, from what came of all mutants on this machine: `python -m hloracle.studies.pin_mutants`.

A report says how many of a family's mutants were noticed. To plant them all takes longer than to make the report, so what
came of them is written down with a digest of everything that decides it; once that is another one, nothing is known.
"""

from __future__ import annotations

import json
import os
import sys

from hloracle.core.cache import write_file
from hloracle.core.errors import InputError
from hloracle.reference.model.registry import FAMILIES
from hloracle.studies.mutants import PINS, outcomes, pin_key


def pins() -> dict[str, dict[str, str | int]]:
    """What the file holds. Raises InputError where a family's mutants were not all planted, or planted with other flags."""
    if flags := os.environ.get("XLA_FLAGS"):
        raise InputError(f"is {flags!r}", "XLA_FLAGS", "unset it: what is written down is what comes of them without")
    found: dict[str, dict[str, str | int]] = {}
    for family in FAMILIES:
        known = outcomes(family)
        if known is None:
            raise InputError("not all of its mutants have been planted", family, f"run `hloracle mutants {family}`")
        killed, total, _ = known
        found[family] = {"killed": killed, "total": total, "of": pin_key(family)}
    return found


if __name__ == "__main__":
    try:
        rows = [f"{json.dumps(family)}: {json.dumps(pin)}" for family, pin in pins().items()]  # a line each
    except InputError as error:
        sys.exit(f"pin_mutants: {error}")
    write_file(PINS, "{\n" + ",\n".join(rows) + "\n}\n")
