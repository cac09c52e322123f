"""One row, in a folder of its own: the command with the fault, and the same command once the fault is lifted.

    python -m hloracle.studies.injected.trial ID BASE FOLDER

Prints what is wrong as JSON. It is a process of its own so that what it mounts goes with its namespace.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from hloracle.studies.injected.judge import CONFORMS, Expected, Ran, explanation_of, problems
from hloracle.studies.injected.place import Place
from hloracle.studies.injected.table import ROWS, Row


@dataclasses.dataclass(frozen=True)
class Tried:
    """What came of a row. wrong: what is wrong with it, nothing where it is green. seconds: of the command with the fault."""

    id: str
    wrong: list[str]
    said: str
    seconds: float


def tried(row: Row, base: Path, folder: Path) -> Tried:
    """Try a row in a folder that is not there yet. See COMMANDS for what `base` holds."""
    place = Place(folder, row.words, seconds=row.seconds)
    place.prepare(base)
    row.fault.put(place)
    ran = place.run()
    place.lift()
    return Tried(row.id, judged(row.expected, ran, place.run()), _said(ran), round(ran.seconds, 1))


def judged(expected: Expected, ran: Ran, again: Ran) -> list[str]:
    """What is wrong with what came of a command, and with what came of it once the fault was lifted."""
    after = (f"once it is lifted: {line}" for line in problems(CONFORMS, _without_damage(ran, again)))
    return [*problems(expected, ran), *after]


def _without_damage(ran: Ran, again: Ran) -> Ran:
    """The second time may find what the first one left damaged, where that was killed or refused: then it is repaired."""
    if ran.status in (0, 1) or not again.record or "damaged" not in again.record:
        return again
    return dataclasses.replace(again, record={**again.record, "damaged": []})


def _said(ran: Ran) -> str:
    words = explanation_of(ran.record) if ran.record and ran.status else ran.stderr.strip()
    return f"status {ran.status}: {words[:600]}"


def main(id: str, base: Path, folder: Path) -> None:
    """Try the row of this id."""
    (row,) = (row for row in ROWS if row.id == id)
    print(json.dumps(dataclasses.asdict(tried(row, base, folder))))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
