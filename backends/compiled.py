"""Compiled modules by content: graph, flags, target, compiler's version and path."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hloracle.core.cache import FORM, build_directory, cache_root, digest, is_whole
from hloracle.core.errors import ToolchainError
from hloracle.core.files import write_file

MODULE = "compiled.module"
ABOUT = "about.json"  # the seconds that it took, and what decided it but for the graph


@dataclass(frozen=True)
class Program:
    """What a compiler made of a graph.

    seconds: that it took when it was made; None where that is not known. size: in bytes; None where it is in no file.
    """

    seconds: float | None = None
    size: int | None = None


def program_of(module: Path) -> Program:
    """What is known of a module in the cache."""
    try:
        seconds = json.loads((module.parent / ABOUT).read_text("utf-8")).get("seconds")
        return Program(seconds if isinstance(seconds, float) else None, module.stat().st_size)
    except (OSError, ValueError, AttributeError):  # it has just been made anew by somebody else
        return Program()


def compiled(graph_text: str, identity: dict[str, str], build: Callable[[Path], bytes]) -> tuple[Path, bool]:
    """The file with the compiled module, and whether it was there already.

    Args:
      identity: everything but the graph that decides what the compiler makes.
      build: graph file -> module's bytes; called when there is no whole entry.
    """
    entry = _entry(graph_text, identity)
    reused = True

    def make(folder: Path) -> None:
        nonlocal reused
        reused = False
        graph_file = entry.with_suffix(".mlir")
        write_file(graph_file, graph_text)
        began = time.monotonic()
        try:
            data = build(graph_file)
        except ToolchainError as error:
            raise ToolchainError(error.stage, error.message, graph_file) from error
        about = {"seconds": time.monotonic() - began, **identity}
        (folder / MODULE).write_bytes(data)
        (folder / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
        graph_file.unlink()

    return build_directory(entry, make) / MODULE, reused


def is_compiled(graph_text: str, identity: dict[str, str]) -> bool:
    """Whether there is a whole entry."""
    return is_whole(_entry(graph_text, identity))


def _entry(graph_text: str, identity: dict[str, str]) -> Path:
    key = digest(FORM, graph_text, json.dumps(identity, sort_keys=True))
    return cache_root() / "compiled" / key[:2] / key
