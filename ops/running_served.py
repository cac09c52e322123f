"""Any backend as a process of its own, in which a graph may crash: a worker that is told what to open.

`python -m hloracle.ops.running_served CHOICE`, where CHOICE is a pickled `Choice` in base64. See docs/workers.md.
"""

from __future__ import annotations

import base64
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.choice import Choice
from hloracle.backends.worker import Program, Worker
from hloracle.backends.workers.serving import Failed, Runtime, serve
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.child import jax_on_the_processor
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.core.shown import shown


def served(choice: Choice) -> Worker:
    """The backend in a process of its own. Raises InputError where another process cannot open it."""
    try:
        pickled = base64.b64encode(pickle.dumps(choice)).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"cannot be opened in another process ({error})", f"backend {shown(choice.name)}",
            "define it at the top of a module, so that it can be imported by its name",
        ) from None  # fmt: skip
    command = (sys.executable, "-m", "hloracle.ops.running_served", pickled)
    variables = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    return Worker(choice.name, Program(command, known=False, variables=variables))


class Served(Runtime):
    """A backend, one graph after another."""

    def __init__(self, choice: Choice) -> None:
        jax_on_the_processor()
        self._choice = choice
        self._backend = choice.open(1)

    def describe(self) -> dict[str, str]:
        """See `Runtime`."""
        facts = {key: str(value) for key, value in getattr(self._backend, "facts", {}).items() if key != "protocol"}
        return {"name": self._choice.title, "family": self._choice.family, "version": "", **facts}

    def load(self, path: Path, function: str, flags: list[str]) -> Any:
        """Compile and load a graph, which is all that the backend is asked for at once."""
        from hloracle.ops.running_read import signature

        text = path.read_text()
        arguments, results = signature(text, function)
        abi = Abi(
            "prefill", tuple(Tensor("state", f"a{i}", t.shape, t.dtype) for i, t in enumerate(arguments)),
            tuple(Tensor("tap", f"r{i}", t.shape, t.dtype) for i, t in enumerate(results)), function,
        )  # fmt: skip
        try:
            return self._backend.load(Graph("case", text, abi, tuple(flags)))
        except ToolchainError as error:
            raise _failed(error) from error

    def upload(self, array: np.ndarray) -> Any:
        """An array of the backend's own."""
        return self._backend.upload(array)

    def call(self, program: Any, arguments: list[Any]) -> list[Any]:
        """What a graph gives."""
        try:
            return list(program(arguments))
        except ToolchainError as error:
            raise _failed(error) from error

    def download(self, array: Any) -> np.ndarray:
        """An array of the backend's as NumPy has it."""
        try:
            return self._backend.download(array)
        except ToolchainError as error:
            raise _failed(error) from error


def _failed(error: ToolchainError) -> Failed:
    return Failed("memory" if isinstance(error, OutOfMemory) else error.stage, error.message)


if __name__ == "__main__":
    serve(lambda: Served(pickle.loads(base64.b64decode(sys.argv[1]))))
