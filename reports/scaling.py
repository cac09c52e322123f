"""The page of how time and memory grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hloracle.core.cache import write_file
from hloracle.reports.page.base import draw

Figures = dict[str, Any]


def write_scaling(figures: Figures, out: Path) -> None:
    """Write scaling.json and scaling.html into `out`, each whole or not at all."""
    write_file(out / "scaling.json", json.dumps(figures, indent=1) + "\n")
    write_file(out / "scaling.html", render(figures))


def render(figures: Figures) -> str:
    """The page, one file that needs nothing else: a table for each part that was measured."""
    return draw("scaling.html.j2", {"figures": figures})
