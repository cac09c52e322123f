"""The tools that come with a compiler, with which anybody runs a graph as one of its backends does."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from hloracle.backends.environments import PACKAGES
from hloracle.backends.session import Backend
from hloracle.backends.worker import Program, Worker


@dataclass(frozen=True)
class Tools:
    """Those of a compiler in an environment.

    compiler: `iree` (iree-compile and iree-run-module) or `xla` (jax). version: of another environment than this one; else
    empty. program: the worker that runs graphs so, with all flags.
    """

    compiler: str
    version: str
    program: Program

    @property
    def folder(self) -> Path:
        """Of the Python that has them."""
        return Path(self.program.command[0]).parent if self.version else Path(sys.executable).parent

    @property
    def packages(self) -> tuple[str, ...]:
        """What pip installs to have them; nothing where they are this environment's."""
        return tuple(p.format(self.version) for p in PACKAGES[self.compiler]) if self.version else ()

    def opened(self, name: str, threads: int) -> Backend:
        """The backend in a process of its own."""
        return Worker(name, self.program, threads)
