"""A backend that is a process of its own: it may crash, hang, or be of another version, and this process goes on."""

from __future__ import annotations

import base64
import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.compiled import Program as Compiled
from hloracle.backends.compiled import compiled, program_of
from hloracle.backends.conversation import Conversation
from hloracle.backends.memory_file import MemoryFile
from hloracle.backends.session import Backend, Executable
from hloracle.core.abi import HEADS, Graph, Tensor
from hloracle.core.dtypes import dtype_of, numpy_type
from hloracle.core.environment import host_cpu
from hloracle.core.errors import OutOfMemory, ToolchainError
from hloracle.core.given import refuse_if_exhausted

PROTOCOL = 1
SMALL = 2**12  # bytes of an array that travels in the line itself


@dataclass(frozen=True)
class Program:
    """How a worker is started, and what it is told.

    command: the program and its arguments, in which `{threads}` stands for how many it may use.
    flags: that were asked for, of its compiler. usual: those that it has otherwise, and a graph's own come between the two;
      None where a graph's own flags are not this compiler's.
    variables: of its environment, beside this process's; None takes one away. xla_flags: beside those of XLA_FLAGS.
    known: what it compiles is kept in the cache, because its command and what it says of itself tell when it changes.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    usual: tuple[str, ...] | None = None
    variables: Mapping[str, str | None] = field(default_factory=dict)
    xla_flags: tuple[str, ...] = ()
    known: bool = True

    def environment(self) -> dict[str, str]:
        """Of its process."""
        found = {name: value for name, value in {**os.environ, **self.variables}.items() if value is not None}
        return found | {"XLA_FLAGS": " ".join(filter(None, [found.get("XLA_FLAGS", ""), *self.xla_flags]))}

    def flags_of(self, graph: Graph) -> list[str]:
        """All that a graph is compiled with: of flags with one name the last ones count."""
        if self.usual is None:
            return list(self.flags)
        own, asked = ({flag.partition("=")[0] for flag in flags} for flags in (graph.flags, self.flags))
        usual = (flag for flag in self.usual if flag.partition("=")[0] not in own | asked)
        return [*usual, *(flag for flag in graph.flags if flag.partition("=")[0] not in asked), *self.flags]


class _Array:
    """An array that a worker has, until nobody has it here; or one that is here, of which it knows nothing.

    name: in the worker. value: here. type: what the graph that gave it says it is. free: is told the name in the end.
    """

    def __init__(self, free: list[str], name: str = "", value: np.ndarray | None = None, type: Tensor | None = None):
        self.name, self.value, self.type, self._free = name, value, type, free

    def __del__(self) -> None:
        if self.name:
            self._free.append(self.name)


class Worker(Backend):
    """A program that speaks the protocol of docs/workers.md, with its arrays.

    Raises ToolchainError for whatever it does instead of answering.
    """

    def __init__(self, name: str, program: Program, threads: int = 1) -> None:
        self.name, self._program, self._threads = name, program, threads
        command = tuple(word.replace("{threads}", str(threads)) for word in program.command)
        self._conversation = Conversation(name, command, program.environment())
        self.facts = self._conversation.ask("describe", "load")
        spoken = self.facts.get("protocol")
        if not isinstance(spoken, int):
            raise self._conversation.rubbish("load", self.facts)
        if spoken != PROTOCOL:
            message = f"{name} speaks version {spoken} of the protocol, and hloracle version {PROTOCOL}"
            raise self._conversation.end("load", message)
        self.programs: dict[str, Compiled] = {}  # of the graphs that were loaded, by their names

    def load(self, graph: Graph) -> Executable:
        """Compile and load a graph: see `Backend`. What a worker of ours compiles is kept in the cache."""
        how, began = self._how(graph), time.monotonic()
        if not self.facts.get("compiles"):
            source = _written(graph)
            answer = self._conversation.ask("load", "load", graph=source.path, **how)
            made = Compiled(time.monotonic() - began)
        elif self._program.known:
            path, _ = compiled(graph.text, self._identity(how), lambda source: self._compile(source, how).read())
            answer, made = self._conversation.ask("load", "load", program=str(path), **how), program_of(path)
        else:
            source = _written(graph)
            program = self._compile(Path(source.path), how)
            made = Compiled(time.monotonic() - began, len(program.read()))
            answer = self._conversation.ask("load", "load", program=program.path, **how)
        loaded, self.programs[graph.name] = self._name(answer, "loaded"), made
        heads = [str(i) for i, result in enumerate(graph.abi.results) if result.role in HEADS]

        def execute(arguments: Sequence[_Array]) -> Sequence[_Array]:
            # A session reads the head after each call. It comes with the answer: to wake a process again takes time.
            files = {number: MemoryFile() for number in heads}
            read = {number: file.path for number, file in files.items()}
            given = [*map(_argument, arguments)]
            answer = self._conversation.ask("call", "run", loaded=loaded, arguments=given, read=read)
            results = answer.get("results")
            if not isinstance(results, list):
                raise self._conversation.rubbish("run", answer)
            if len(results) != len(graph.abi.results):
                wanted = len(graph.abi.results)
                raise ToolchainError("run", f"{self.name} gave {len(results)} results, and the graph has {wanted}")
            return [
                self._result(result, type, read.get(str(i)))
                for i, (result, type) in enumerate(zip(results, graph.abi.results, strict=True))
            ]

        return execute

    def compile(self, graph: Graph) -> Compiled:
        """Compile a graph anew, whatever the cache has: what that takes, and what comes of it."""
        how, source, began = self._how(graph), _written(graph), time.monotonic()
        if self.facts.get("compiles"):
            made = self._compile(Path(source.path), how)
            return Compiled(time.monotonic() - began, len(made.read()))
        self._conversation.ask("load", "load", graph=source.path, **how)
        return Compiled(time.monotonic() - began)

    def _how(self, graph: Graph) -> dict[str, Any]:
        return {"function": graph.abi.function, "flags": self._program.flags_of(graph)}

    def upload(self, array: np.ndarray) -> _Array:
        """Give the worker an array; a small one goes there with each call that takes it."""
        small = array.nbytes <= SMALL
        return _Array(self._conversation.free, value=np.array(array)) if small else self._give(array, kept=False)

    def keep(self, array: np.ndarray) -> _Array:
        """Give the worker an array that nobody writes to: it may use the file's memory in place."""
        return self._give(array, kept=True)

    def download(self, buffer: _Array) -> np.ndarray:
        """Read an array back. Raises ToolchainError where it is of another type than its graph says."""
        if buffer.value is not None:
            return buffer.value
        file = MemoryFile()
        answer = self._conversation.ask("download", "run", array=buffer.name, file=file.path)
        return self._read(answer, buffer.type, file.path)

    @property
    def peak_bytes(self) -> int:
        """The most that its process has had resident, with all that that has started."""
        return self._conversation.peak_bytes

    @property
    def alive(self) -> bool:
        """Whether its process still runs: after some errors it does not."""
        return self._conversation.alive

    def again(self) -> Worker:
        """The same in a new process, which has no arrays."""
        return Worker(self.name, self._program, self._threads)

    def end(self) -> None:
        """End its process, and what that has started: whoever waits for an answer gets a ToolchainError."""
        self._conversation.kill()

    def _compile(self, source: Path, how: Mapping[str, Any]) -> MemoryFile:
        made = MemoryFile()
        answer = self._conversation.ask("compile", "compile", graph=str(source), program=made.path, **how)
        if not made.read():
            raise self._conversation.rubbish("compile", answer)
        return made

    def _give(self, array: np.ndarray, kept: bool) -> _Array:
        file = MemoryFile()
        try:
            np.asarray(array).tofile(file.path)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                refuse_if_exhausted(error, file.path)
            raise OutOfMemory(f"{self.name} ({error.strerror or error})") from None
        answer = self._conversation.ask("upload", "load", file=file.path, kept=kept, **_type(array))
        return _Array(self._conversation.free, self._name(answer, "array"))

    def _name(self, answer: dict[str, Any], key: str) -> str:
        """What it calls something from now on."""
        name = answer.get(key)
        if not isinstance(name, str) or not name:
            raise self._conversation.rubbish("load", answer)
        return name

    def _result(self, result: object, type: Tensor, file: str | None) -> _Array:
        """Of a call: the name of an array, or one that was read."""
        if isinstance(result, str) and result:
            return _Array(self._conversation.free, result, type=type)
        return _Array(self._conversation.free, value=self._read(result, type, file), type=type)

    def _read(self, answer: Any, wanted: Tensor | None, file: str | None) -> np.ndarray:
        """The array that an answer holds, or that it has written to the file."""
        try:
            type, shape = str(answer["dtype"]), tuple(answer["shape"])
            if "data" in answer:
                found = np.frombuffer(bytearray(base64.b64decode(answer["data"])), numpy_type(type)).reshape(shape)
            else:
                found = np.fromfile(str(file), numpy_type(type)).reshape(shape)
        except (OSError, KeyError, TypeError, ValueError) as error:
            refuse_if_exhausted(error, file)
            raise self._conversation.rubbish("run", answer) from None
        if wanted is not None and (shape, type) != (wanted.shape, wanted.dtype):
            given = Tensor(wanted.role, wanted.name, shape, type)
            raise ToolchainError("run", f"{self.name} gave {wanted.name} as {given.type}, and it is {wanted.type}")
        return found

    def _identity(self, how: Mapping[str, object]) -> dict[str, str]:
        return {
            "worker": json.dumps([self._program.command, self._program.xla_flags]),
            "facts": json.dumps(self.facts, sort_keys=True),
            "how": json.dumps(how),
            "cpu": host_cpu(),
        }


def _written(graph: Graph) -> MemoryFile:
    """Its text; the file is there as long as this is held."""
    file = MemoryFile()
    Path(file.path).write_text(graph.text)
    return file


def _argument(array: _Array) -> str | dict[str, object]:
    """What a call is told of an array."""
    if array.name or array.value is None:
        return array.name
    return {**_type(array.value), "data": base64.b64encode(array.value.tobytes()).decode()}


def _type(array: np.ndarray) -> dict[str, object]:
    return {"dtype": dtype_of(array.dtype), "shape": list(array.shape)}
