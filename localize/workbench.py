"""Runs subgraphs of graphs on a backend; weights are uploaded once, equal subgraphs are compiled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hloracle.backends.session import Backend, Buffer, Executable
from hloracle.backends.worker import Worker
from hloracle.core.abi import Graph, Tensor
from hloracle.core.dtypes import numpy_type

NARROW = ("bf16", "f16")


class Workbench:
    """A backend, and the weights that it has been given.

    Args:
      weight: name -> array, for each of `names`: a weight, or what an encoded one is made of.
    """

    def __init__(self, backend: Backend, weight: Callable[[str], np.ndarray], names: frozenset[str]) -> None:
        self.backend = backend
        self.weight, self._names = weight, names
        self._uploaded: dict[str, Buffer] = {}
        self._loaded: dict[str, Executable] = {}

    def run(self, graph: Graph, value: Callable[[str], np.ndarray]) -> list[np.ndarray]:
        """The graph's results; `value` gives each argument that is no weight. May raise ToolchainError."""
        return self.again(graph, value)({})

    def again(
        self, graph: Graph, value: Callable[[str], np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:  # fmt: skip
        """`run` for a graph that is run again and again: each time with some arguments, by name, in place of those of `value`."""
        execute = self.load(graph)
        own = [(a, self._argument(a, value)) for a in graph.abi.arguments]

        def call(others: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            given = [self._uploaded_as(a, others[a.name]) if a.name in others else held for a, held in own]
            return [self.backend.download(r) for r in execute(given)]

        return call

    def load(self, graph: Graph) -> Executable:
        """The graph, compiled once. A worker that an earlier graph has ended is started anew. May raise ToolchainError."""
        if isinstance(self.backend, Worker) and not self.backend.alive:
            self.backend = self.backend.again()
            self._uploaded.clear()
            self._loaded.clear()
        if graph.text not in self._loaded:
            self._loaded[graph.text] = self.backend.load(graph)
        return self._loaded[graph.text]

    def _uploaded_as(self, argument: Tensor, value: np.ndarray) -> Buffer:
        if argument.dtype in NARROW and value.dtype == np.float32:  # the truth is, whatever a graph computes in
            with np.errstate(over="ignore"):
                value = value.astype(numpy_type(argument.dtype))
        return self.backend.upload(value.reshape(argument.shape))

    def _argument(self, argument: Tensor, value: Callable[[str], np.ndarray]) -> Buffer:
        name = argument.name
        if name not in self._names:
            # An anchor's value may have axes of one element that its contract does not have.
            return self._uploaded_as(argument, value(name))
        if name not in self._uploaded:
            self._uploaded[name] = self.backend.upload(self.weight(name))
        return self._uploaded[name]
