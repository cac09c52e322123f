"""A backend's process, for one module after another: it may crash or hang, and is opened again for the next one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hloracle.backends.choice import Choice
from hloracle.backends.worker import Worker
from hloracle.core.abi import Graph
from hloracle.core.errors import ToolchainError
from hloracle.ops.outcome import Ended
from hloracle.ops.running_served import served


def opener(choice: Choice) -> Callable[[], Worker]:
    """What opens a backend in a process of its own, with one thread, whichever kind it is.

    Nothing of what it compiles is kept in the cache: no module of many cases comes a second time.
    """

    def open() -> Worker:
        if choice.tools:
            return Worker(choice.name, dataclasses.replace(choice.tools.program, known=False))
        # What words name is a partial; what a caller gives as a value may be anything, and is opened in another process.
        if not choice.in_process and isinstance(choice.open, partial):
            backend = choice.open(1)
            if isinstance(backend, Worker):
                return backend
        return served(choice)

    return open


class Lane:
    """Runs modules on what `open` gives.

    seconds: that a module may take to be compiled and run.
    """

    def __init__(self, open: Callable[[], Worker], seconds: float) -> None:
        self._open, self._seconds = open, seconds
        self._worker: Worker | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the backend says of itself. Raises ToolchainError where it cannot be opened."""
        return self._opened().facts

    def run(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results of a module. Raises ToolchainError for what the backend reports, and Ended where its process ended."""
        worker, over = self._opened(), threading.Event()

        def stop() -> None:
            over.set()
            worker.end()

        timer = threading.Timer(self._seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            execute = worker.load(graph)
            given = [worker.upload(inputs[a.name].reshape(a.shape)) for a in graph.abi.arguments]
            return [np.array(worker.download(result)) for result in execute(given)]
        except ToolchainError as error:
            if over.is_set():
                raise Ended("hang", f"it did not end within {self._seconds:g} s, and was ended") from None
            if not worker.alive:
                raise Ended("crash", error.message) from None
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the backend's process."""
        if self._worker:
            self._worker.end()
            self._worker = None

    def _opened(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._worker = self._open()
        return self._worker
