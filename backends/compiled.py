"""Compiled modules by content: graph, flags, target, compiler's version and path. A damaged entry is rebuilt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hloracle.core.cache import cache_root, digest, file_digest, locked, write_file
from hloracle.core.errors import ToolchainError


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
        seconds = json.loads(module.with_suffix(".json").read_text()).get("seconds")
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
    module, seal = entry.with_suffix(".module"), entry.with_suffix(".json")
    with locked(entry):
        if _whole(module, seal):
            return module, True
        graph_file = entry.with_suffix(".mlir")
        write_file(graph_file, graph_text)
        began = time.monotonic()
        try:
            data = build(graph_file)
        except ToolchainError as error:
            raise ToolchainError(error.stage, error.message, graph_file) from error
        seconds = time.monotonic() - began
        write_file(module, data)
        # Written last: a module without its seal is one whose writer died.
        write_file(seal, json.dumps({"sha256": file_digest(module), "seconds": seconds, **identity}, indent=1))
        graph_file.unlink()
        return module, False


def is_compiled(graph_text: str, identity: dict[str, str]) -> bool:
    """Whether there is a whole entry."""
    entry = _entry(graph_text, identity)
    return _whole(entry.with_suffix(".module"), entry.with_suffix(".json"))


def _entry(graph_text: str, identity: dict[str, str]) -> Path:
    key = digest(graph_text, json.dumps(identity, sort_keys=True))
    return cache_root() / "compiled" / key[:2] / key


def _whole(module: Path, seal: Path) -> bool:
    try:
        return bool(json.loads(seal.read_text())["sha256"] == file_digest(module))
    except (OSError, ValueError, KeyError, TypeError):
        return False
