"""A backend that is a process of its own: it may crash, hang, or be of another version, and this process goes on."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.compiled import compiled
from hloracle.backends.conversation import PROTOCOL, Conversation
from hloracle.backends.session import Backend, Executable
from hloracle.core.abi import HEADS, Graph, Tensor
from hloracle.core.dtypes import dtype_of, numpy_type
from hloracle.core.environment import host_cpu
from hloracle.core.errors import OutOfMemory, ToolchainError

SMALL = 2**12  # bytes of an array that travels in the line itself


@dataclass(frozen=True)
class Program:
    """How a worker is started, and what it is told.

    command: the program and its arguments, in which `{threads}` stands for how many it may use.
    flags: that were asked for, of its compiler. usual: those that it has otherwise, and a graph's own come between the two;
      None where a graph's own flags are not this compiler's.
    variables: of its environment, beside this process's; None takes one away. xla_flags: beside those of XLA_FLAGS.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    usual: tuple[str, ...] | None = None
    variables: Mapping[str, str | None] = field(default_factory=dict)
    xla_flags: tuple[str, ...] = ()

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
        if self.facts.get("protocol") != PROTOCOL:
            raise self._conversation.rubbish("load", self.facts)
        self._files = 0

    def load(self, graph: Graph) -> Executable:
        """Compile and load a graph: see `Backend`. What the worker compiles is kept in the cache."""
        ask, folder = self._conversation.ask, self._conversation.folder
        how = {"function": graph.abi.function, "flags": self._program.flags_of(graph)}
        if self.facts.get("compiles"):
            made = folder / "program"

            def build(source: Path) -> bytes:
                ask("compile", "compile", graph=str(source), program=str(made), **how)
                return made.read_bytes()

            program, _ = compiled(graph.text, self._identity(how), build)
            loaded = ask("load", "load", program=str(program), **how).get("loaded")
        else:
            source = folder / "graph.mlir"
            source.write_text(graph.text)
            loaded = ask("load", "load", graph=str(source), **how).get("loaded")
        # A session reads the head after each call. It comes with the answer: to wake a process again takes time.
        heads = {str(i): str(folder / f"head{i}") for i, r in enumerate(graph.abi.results) if r.role in HEADS}

        def execute(arguments: Sequence[_Array]) -> Sequence[_Array]:
            answer = ask("call", "run", loaded=loaded, arguments=[*map(self._argument, arguments)], read=heads)
            results = answer.get("results")
            if not isinstance(results, list):
                raise self._conversation.rubbish("run", answer)
            types = [*graph.abi.results, *[None] * len(results)]  # who calls it looks whether there are as many
            return [self._result(result, type) for result, type in zip(results, types, strict=False)]

        return execute

    def upload(self, array: np.ndarray) -> _Array:
        """Give the worker an array; a small one goes there with each call that takes it."""
        small = array.nbytes <= SMALL
        return _Array(self._free, value=np.array(array)) if small else self._give(array, kept=False)

    def keep(self, array: np.ndarray) -> _Array:
        """Give the worker an array that nobody writes to: it may use the file's memory in place."""
        return self._give(array, kept=True)

    def download(self, buffer: _Array) -> np.ndarray:
        """Read an array back. Raises ToolchainError where it is of another type than its graph says."""
        if buffer.value is not None:
            return buffer.value
        file = str(self._conversation.folder / "down")
        return self._read(self._conversation.ask("download", "run", array=buffer.name, file=file), buffer.type)

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

    @property
    def _free(self) -> list[str]:
        return self._conversation.free

    def _argument(self, array: _Array) -> str | dict[str, object]:
        """What a call is told of an array."""
        if array.name or array.value is None:
            return array.name
        return {**_type(array.value), "data": base64.b64encode(array.value.tobytes()).decode()}

    def _result(self, result: object, type: Tensor | None) -> _Array:
        if isinstance(result, str):
            return _Array(self._free, result, type=type)
        return _Array(self._free, value=self._read(result, type), type=type)

    def _read(self, answer: Any, wanted: Tensor | None) -> np.ndarray:
        """The array that an answer holds, or whose file it names."""
        try:
            type, shape = str(answer["dtype"]), tuple(answer["shape"])
            if "data" in answer:
                found = np.frombuffer(bytearray(base64.b64decode(answer["data"])), numpy_type(type)).reshape(shape)
            else:
                found = np.fromfile(answer["file"], numpy_type(type)).reshape(shape)
        except (OSError, KeyError, TypeError, ValueError):
            raise self._conversation.rubbish("run", answer) from None
        if wanted is not None and (shape, type) != (wanted.shape, wanted.dtype):
            given = Tensor(wanted.role, wanted.name, shape, type)
            raise ToolchainError("run", f"{self.name} gave {wanted.name} as {given.type}, and it is {wanted.type}")
        return found

    def _give(self, array: np.ndarray, kept: bool) -> _Array:
        shared = self._conversation.folder  # which is small in a container
        fits = shutil.disk_usage(shared).free > 2 * array.nbytes
        self._files += 1
        file = shared / f"{self._files}" if fits else Path(tempfile.mkstemp(prefix="hloracle-")[1])
        try:
            np.asarray(array).tofile(file)
            answer = self._conversation.ask("upload", "load", file=str(file), kept=kept, **_type(array))
        except OSError as error:
            raise OutOfMemory(f"{file.parent} ({error.strerror or error})") from None
        finally:
            file.unlink(missing_ok=True)
        if not isinstance(answer.get("array"), str):
            raise self._conversation.rubbish("load", answer)
        return _Array(self._free, answer["array"])

    def _identity(self, how: Mapping[str, object]) -> dict[str, str]:
        return {
            "worker": json.dumps([self._program.command, self._program.xla_flags]),
            "facts": json.dumps(self.facts, sort_keys=True),
            "how": json.dumps(how),
            "cpu": host_cpu(),
        }


def _type(array: np.ndarray) -> dict[str, object]:
    return {"dtype": dtype_of(array.dtype), "shape": list(array.shape)}
