"""What a run knows of a backend before it opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hloracle.backends.session import Backend
from hloracle.backends.tools import Tools


@dataclass(frozen=True)
class Choice:
    """A backend that a run opens in whichever process needs it.

    family: compilers of one family are one witness, such as `xla` (jaxlib and every plugin built from XLA).
    open: makes the backend, with that many threads; importable by its name, because other processes call it.
    title: what it is called in a sentence, such as `IREE 3.12.0`.
    remote: whether it runs on another device than the processor.
    quick: whether it compiles in a moment, so that it is where graphs are taken apart. slow: whether it takes a second for
      what a processor does in a millisecond: it is asked for less, and not timed.
    identity: what decides what it computes, besides hloracle's own packages; None where nobody knows it, as of a backend that
      is given as a value: what came of it is not kept.
    in_process: whether it is one of ours that run in this process, which looks at the code that it generates.
    tools: the compiler's own, that run a graph as it does; None where it has none that are known.
    """

    name: str
    family: str
    open: Callable[[int], Backend]
    title: str
    remote: bool = False
    quick: bool = False
    slow: bool = False
    identity: str | None = ""
    in_process: bool = False
    tools: Tools | None = None

    def apart(self, threads: int) -> Backend:
        """Open it in a process of its own, where it has one: there a graph may crash it."""
        return self.tools.opened(self.name, threads) if self.tools and self.in_process else self.open(threads)
