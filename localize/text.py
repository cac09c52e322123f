"""MLIR as text: its locations."""

from __future__ import annotations

import functools
import re

# What stands in parentheses, in which a string may hold any of them; locations are seldom more than four deep.
_FLAT = r"(?:[^()\"]|\"[^\"]*\")*"
_DEEP = functools.reduce(lambda inner, _: rf'(?:[^()"]|"[^"]*"|\({inner}\))*', range(4), _FLAT)
LOCATION = re.compile(rf"\s*\bloc\({_DEEP}\)")
