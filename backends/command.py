"""A backend that is a command line: a TOML file says how a tool compiles a graph and runs it on files. See docs/backends.md."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.command_file import PLACE, REPEATED, Commands, Template, places
from hloracle.backends.guarded import Guarded
from hloracle.backends.session import Backend, Executable
from hloracle.core.abi import Graph, Tensor
from hloracle.core.child import exit_words
from hloracle.core.dtypes import dtype_of, numpy_type
from hloracle.core.errors import OutOfMemory, ToolchainError
from hloracle.core.given import refuse_if_exhausted
from hloracle.core.scratch import Scratch
from hloracle.core.shown import shown

LONGEST = 2**16  # bytes that are read of what a tool printed


class _File:
    """An array in a file, which is removed with this. type: what the graph that gave it says it is."""

    def __init__(self, path: Path, type: Tensor | None = None) -> None:
        self.path, self.type = path, type
        weakref.finalize(self, path.unlink, missing_ok=True)


class CommandLine(Backend):
    """A tool that is called for each graph, and for each of its calls.

    Arrays are .npy files, in which NumPy has no bfloat16. Raises ToolchainError for whatever the tool does wrong.
    """

    def __init__(self, commands: Commands, threads: int = 1) -> None:
        self.name, self._commands, self._threads = commands.name, commands, threads
        self._scratch, self._numbers = Scratch(), itertools.count()

    def load(self, graph: Graph) -> Executable:
        """Compile a graph: see `Backend`. What is compiled is not kept: nobody knows when the tool changes."""
        if any(t.dtype == "bf16" for t in (*graph.abi.arguments, *graph.abi.results)):
            raise ToolchainError("load", f"{self.name} takes .npy files, and these have no bf16")
        source, program = self._path(".mlir"), self._path(".program")
        source.write_text(graph.text)
        words = {"graph": [str(source)], "program": [str(program)], "function": [graph.abi.function]}
        if self._commands.compile:
            self._do("compile", self._commands.compile, words)
            if not program.exists():
                raise ToolchainError("compile", f"{self.name} wrote no program")

        def execute(arguments: Sequence[_File]) -> Sequence[_File]:
            results = [_File(self._path(".npy"), type) for type in graph.abi.results]
            files = {"input": [str(a.path) for a in arguments], "output": [str(r.path) for r in results]}
            self._do("run", self._commands.run, words | files)
            for result, type in zip(results, graph.abi.results, strict=True):
                if not result.path.is_file():  # a pipe is none: nothing may come out of it
                    raise ToolchainError("run", f"{self.name} wrote no file of the result {type.name}")
            return results

        return execute

    def upload(self, array: np.ndarray) -> _File:
        """Write an array to a file, which all calls read that take it."""
        path = self._path(".npy")
        if dtype_of(array.dtype) == "bf16":
            raise ToolchainError("load", f"{self.name} takes .npy files, and these have no bf16")
        try:
            np.save(path, array, allow_pickle=False)
        except OSError as error:
            raise ToolchainError("load", f"{path.parent} cannot be written ({error.strerror or error})") from None
        return _File(path)

    def download(self, buffer: _File) -> np.ndarray:
        """Read a file. Raises ToolchainError where it holds another type than its graph says."""
        name = buffer.type.name if buffer.type else ""
        try:
            found: np.ndarray = np.load(buffer.path, allow_pickle=False)
        except (OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
            refuse_if_exhausted(error, buffer.path)
            message = f"{self.name} wrote no .npy file of the result {name} ({shown(str(error))})"
            raise ToolchainError("run", message) from None
        wanted = buffer.type
        if wanted and (found.shape, found.dtype) != (wanted.shape, numpy_type(wanted.dtype)):
            given = f"{[*found.shape]} {found.dtype}"
            raise ToolchainError("run", f"{self.name} gave {name} as {given}, and it is {wanted.type}")
        return found

    def _path(self, suffix: str) -> Path:
        return self._scratch.folder / f"{next(self._numbers)}{suffix}"

    def _do(self, stage: str, template: Template, words: Mapping[str, Sequence[str]]) -> None:
        """Run a command to its end."""
        known = {**words, "threads": [str(self._threads)]}
        command = [word for group in template for word in _filled(group, known)]
        with tempfile.TemporaryFile() as said:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            guarded = Guarded(self.name, command, folder=self._commands.folder, **streams)
            try:
                status = guarded.process.wait(self._commands.timeout)
            except subprocess.TimeoutExpired:
                message = f"{self.name}: {command[0]} took more than {self._commands.timeout:g} s"
                raise ToolchainError(stage, message) from None
            finally:
                guarded.kill()
            if guarded.too_large:
                raise OutOfMemory(self.name)
            if status:
                raise ToolchainError(stage, f"{self.name}: {command[0]} ended with {exit_words(status)}{_told(said)}")


def _filled(group: tuple[str, ...], words: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The words of a group with their places filled, as many times as there is something to fill them with."""
    repeated = next((place for place in places([group]) if place in REPEATED), "")
    for i in range(len(words[repeated]) if repeated else 1):
        for word in group:
            yield PLACE.sub(lambda m, i=i: words[m[1]][i if m[1] in REPEATED else 0], word)  # type: ignore[misc]


def _told(said: Any) -> str:
    """The first line that speaks of an error among the last ones that a tool printed, or the last of them."""
    said.seek(max(0, said.seek(0, 2) - LONGEST))
    lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
    return f": {shown(errors[0].strip(), 300)}" if errors else ""
