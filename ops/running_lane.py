"""A backend's process, for one module after another: it may crash or hang, and is opened again for the next one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hloracle.backends.choice import Choice
from hloracle.backends.worker import Worker
from hloracle.core.abi import Graph
from hloracle.core.child import threads
from hloracle.core.errors import ToolchainError
from hloracle.ops.outcome import Ended
from hloracle.ops.running_served import served

# A compiler that crashes would look its stack's functions up for seconds; the reproducer's command does.
_QUICK = {"LLVM_DISABLE_SYMBOLIZATION": "1"}


def opener(choice: Choice) -> Callable[[], Worker]:
    """What opens a backend in a process of its own, with one thread, whichever kind it is.

    Nothing of what it compiles is kept in the cache: no module of many cases comes a second time.
    """

    def open() -> Worker:
        if choice.tools:
            program = choice.tools.program
            return Worker(
                choice.name, dataclasses.replace(program, known=False, variables={**program.variables, **_QUICK})
            )
        # What words name is a partial; what a caller gives as a value may be anything, and is opened in another process.
        if not choice.in_process and isinstance(choice.open, partial):
            backend = choice.open(1)
            if isinstance(backend, Worker):
                return backend
        return served(choice)

    return open


class Stopped(Exception):
    """Nothing is run any more: who waits for it has gone."""


class Lane:
    """Runs modules on what `open` gives.

    seconds: that a module may take to be compiled and run. stop: is set when nothing is to run any more: whatever ends then is no
      crash.
    """

    def __init__(self, open: Callable[[], Worker], seconds: float, stop: threading.Event | None = None) -> None:
        self._open, self._seconds, self._stop = open, seconds, stop or threading.Event()
        self._worker: Worker | None = None
        self._given = 0  # modules that its process was given

    @property
    def fresh(self) -> bool:
        """Whether the next module is the first one that its process is given: then nothing before it has spoiled its memory."""
        return self._worker is None or not self._worker.alive or not self._given

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the backend says of itself. Raises ToolchainError where it cannot be opened."""
        return self._opened().facts

    def run(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results of a module. Raises ToolchainError for what the backend reports, and Ended where its process ended.

        Raises Stopped where nothing is to run any more.
        """
        if self._stop.is_set():
            raise Stopped
        worker, over = self._opened(), threading.Event()
        self._given += 1

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
            if self._stop.is_set():
                raise Stopped from None
            if over.is_set():
                raise Ended("hang", f"it did not end within {self._seconds:g} s, and was ended") from None
            if not worker.alive:
                raise Ended("crash", error.message) from None
            raise
        finally:
            timer.cancel()

    def stop(self) -> None:
        """Run nothing any more, on none of the lanes that were made together."""
        self._stop.set()

    def close(self) -> None:
        """End the backend's process."""
        if self._worker:
            self._worker.end()
            self._worker = None

    def _opened(self) -> Worker:
        """Opened anew where it is not there: that it cannot be opened a second time is a result."""
        if self._worker is None or not self._worker.alive:
            self._worker, self._given = self._open(), 0
        return self._worker


def lanes(open: Callable[[], Worker], count: int, seconds: float) -> list[Lane]:
    """So many, each for a thread of its own."""
    stop = threading.Event()
    return [Lane(open, seconds, stop) for _ in range(count)]


def side_by_side(found: Sequence[Lane], work: Callable[[Lane], None]) -> None:
    """Have each lane do its work in a thread, and wait for all."""
    with threads(len(found)) as pool:
        futures = [pool.submit(work, lane) for lane in found]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for lane in found:
                lane.stop()
            raise
    for lane in found:
        lane.close()
