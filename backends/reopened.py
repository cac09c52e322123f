"""A backend for graphs that it may crash or hang on: it is ended after a time, and opened again for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from hloracle.backends.session import Backend, Executable
from hloracle.backends.worker import Worker
from hloracle.core.abi import Graph
from hloracle.core.errors import ToolchainError

SECONDS = 120.0


class Reopened:
    """What `open` gives, for one graph after another. Only a process of its own can be ended, or opened again.

    Args:
      seconds: that a graph may take to be compiled and run.
    """

    def __init__(self, open: Callable[[], Backend], seconds: float = SECONDS) -> None:
        self._open, self._seconds = open, seconds
        self._backend: Backend | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a worker says of itself; nothing for another backend, and where it cannot be opened."""
        try:
            return getattr(self._opened(), "facts", {})
        except ToolchainError:
            return {}

    def load(self, graph: Graph) -> None:
        """Compile and load a graph. Raises ToolchainError, also where it takes too long."""
        with self._within() as backend:
            backend.load(graph)

    def run(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results of a graph. Raises ToolchainError, also where it takes too long.

        Args:
          inputs: the value of each argument, by its name.
        """
        with self._within() as backend:
            execute: Executable = backend.load(graph)
            given = [backend.upload(inputs[a.name].reshape(a.shape)) for a in graph.abi.arguments]
            return [np.array(backend.download(result)) for result in execute(given)]

    def _opened(self) -> Backend:
        if isinstance(self._backend, Worker) and not self._backend.alive:
            self._backend = None
        if self._backend is None:
            self._backend = self._open()
        return self._backend

    @contextmanager
    def _within(self) -> Iterator[Backend]:
        backend = self._opened()
        timer = threading.Timer(self._seconds, backend.end) if isinstance(backend, Worker) else None
        if timer:
            timer.daemon = True
            timer.start()
        try:
            yield backend
        finally:
            if timer:
                timer.cancel()
