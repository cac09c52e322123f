"""Deliberate faults, each with what a harness must say of it: a test that the harness would notice.

A fault is planted in this process only, and a process inherits none from the one that started it. Caches go by what
a graph, a compiler or the reference ought to be, not by what a fault makes of it: give each fault a cache of its own.
"""

import importlib
import pkgutil

from hloracle.mutants.registry import MUTANTS, Mutant, named

__all__ = ["MUTANTS", "Mutant", "named"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")  # each registers its faults
