"""docs/injected-faults.md: the table of faults as a page, which nobody writes by hand."""

from __future__ import annotations

from pathlib import Path

from hloracle.core.files import write_file
from hloracle.studies.injected.judge import Expected

PAGE = Path(__file__).resolve().parents[2] / "docs" / "injected-faults.md"


def outcome(expected: Expected) -> str:
    """What has to come of a fault, in words."""
    return str(expected.status)


def write_page() -> None:
    """Write the page."""
    write_file(PAGE, "")
