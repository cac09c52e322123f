"""The matrix of a run: sources by backends, and what is independent of what.

The verdict decides by these facts alone: no source and no backend is named in the code that decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

ORACLE, EMITTER = "oracle", "emitter"
FILE = "file"  # how a graph that is a file is called as a source


def graph_of(source: str) -> str:
    """A source's graph in a sentence: `the emitter's graph`, but `the graph of mine` where the name is its author's."""
    return f"the {source}'s graph" if source in (ORACLE, EMITTER, FILE) else f"the graph of {source}"


@dataclass(frozen=True)
class Configuration:
    """A source on a backend. `head` decides how its graphs are run.

    logits: the token is the logits' argmax. token: the graph picks the token itself.
    Each step is fed the reference's token: as long as the tokens agree this is a free run, and after one
    that differs every later step is still judged by itself.
    """

    source: str
    backend: str
    head: str = "logits"

    @property
    def id(self) -> str:
        """`SOURCE/BACKEND`, with `/token` behind it where the graph picks the token: its name in a record."""
        return f"{self.source}/{self.backend}" + ("/token" if self.head == "token" else "")

    def __str__(self) -> str:
        return self.id

    @property
    def of_oracle(self) -> bool:
        """Whether its graphs are the JAX reference's: held to Hugging Face, and what the judged ones are held to."""
        return self.source == ORACLE


@dataclass(frozen=True)
class Witness:
    """What a verdict has to know of a backend.

    family: compilers of one family are one witness, such as `xla` (jaxlib and every plugin built from XLA).
    title: for a sentence. device: whether it runs on another device than the processor.
    quick: whether it compiles in a moment, so that it is where graphs are taken apart. slow: whether it is asked for less.
    """

    name: str
    family: str
    title: str
    device: bool = False
    quick: bool = False
    slow: bool = False


@dataclass(frozen=True)
class Matrix:
    """The backends of a run, in the order in which they are asked."""

    backends: tuple[Witness, ...]

    def __getitem__(self, backend: str) -> Witness:
        found = next((b for b in self.backends if b.name == backend), None)
        return found or Witness(backend, backend, backend)

    def family(self, configuration: Configuration) -> str:
        """The family of compilers that it is a witness of; the backend's own name where the run has no such backend."""
        return self[configuration.backend].family

    def on_device(self, configuration: Configuration) -> bool:
        """Whether it runs on another device than the processor."""
        return self[configuration.backend].device

    def elsewhere(self, configuration: Configuration) -> list[Configuration]:
        """The same graphs on the other backends: first those of the same family, then the other families.

        What is wrong on a processor is not compared with a device of its family, which is no other compiler.
        """
        own = self[configuration.backend]
        others = [b for b in self.backends if b.name != own.name]
        nearest = sorted(others, key=lambda b: (b.device, b.family != own.family, not b.quick))
        return [
            dataclasses.replace(configuration, backend=b.name)
            for b in nearest if own.device or b.family != own.family or not b.device
        ]  # fmt: skip

    @property
    def families(self) -> tuple[str, ...]:
        """Of compilers: as many independent witnesses as there are of these."""
        return tuple(dict.fromkeys(b.family for b in self.backends))

    @property
    def quick(self) -> str:
        """The backend on which graphs are taken apart: one that compiles in a moment, if there is one."""
        return next((b.name for b in self.backends if b.quick), self.backends[0].name)

    def named(self, backends: Iterable[str]) -> str:
        """`IREE and XLA`, `IREE, IREE 3.12.0 and XLA`: these backends in a sentence."""
        return listed(dict.fromkeys(self[backend].title for backend in backends))


def listed(names: Iterable[str]) -> str:
    """`A`, `A and B`, `A, B and C`; empty where there are none."""
    *most, last = [*names] or [""]
    return f"{', '.join(most)} and {last}" if most else last
