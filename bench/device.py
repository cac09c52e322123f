"""How fast a device decodes: the emitted graphs in each precision, Hugging Face and the JAX oracle on the same device.

Each is measured in a process of its own, so that none holds memory that another needs. A step's time is that of reading
back its token; the device's own read bandwidth is measured beside it, and bounds it: each step reads every weight once.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from hloracle.backends.devices import Device
from hloracle.backends.named import make_backend
from hloracle.backends.session import Session
from hloracle.bench.contenders import (
    Contender,
    OnSession,
    Spec,
    Task,
    Transformers,
    on_session,
    read_bytes,
    torch_device,
)
from hloracle.bench.machine import milliseconds
from hloracle.core.abi import CACHES, Tensor
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.dtypes import numpy_type
from hloracle.core.environment import threads_available
from hloracle.core.errors import InputError, ToolchainError
from hloracle.production.choice import Choice, production_graph, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import GraphSpec, graph_abi
from hloracle.reference.model.encodings import Layout

PROMPT, STEPS, ROUNDS = 128, 32, 5
# Where `cli/pack.py` puts a JAX of the processor, which is in the way of one that can use the device.
JAX_FOLDER = "site-jax"


@dataclass(frozen=True)
class Measured:
    """What was measured of one contender.

    ms: per token, a figure for each round. bytes: of weights that a step reads. prefill_ms: of a prompt of PROMPT tokens.
    failure: why nothing was measured.
    """

    id: str
    ms: list[float]
    bytes: int
    prefill_ms: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def median(self) -> float | None:
        """The median of the rounds, in milliseconds per token; None where nothing was measured."""
        return statistics.median(self.ms) if self.ms else None


def measured(id: str, function: Callable[..., Any], *arguments: Any, seconds: float, report: Report) -> Measured:
    """What `function(report, id, *arguments)` gives in a process of its own, or why it gives nothing."""
    try:
        found: Measured = run_in_child(function, id, *arguments, timeout=seconds, report=report).value
        return found
    except (ChildDied, ToolchainError, InputError) as error:
        return Measured(id, [], 0, failure=" ".join(str(error).split()))


def emitted(
    report: Report, id: str, model: str, precision: str, device: Device, choice: Choice | None = None
) -> Measured:  # fmt: skip
    """The production graphs of a model on IREE, written as they are untuned unless a choice is given."""
    spec = Spec("emitter", id, precision, choice or untuned(device=device))
    return _rounds(id, lambda: on_session(_task(model, device), spec))


def emitted_of_size(report: Report, id: str, config: Config, layout: Layout, device: Device) -> Measured:
    """Decode graphs of a size, with weights that mean nothing: a step takes as long."""
    task = replace(_task("", device), lengths=())
    graph = production_graph(config, GraphSpec("decode", "token", task.capacity, 0), layout, untuned(device=device))
    by_name = {w.name: w for w in graph.abi.weights}

    def contender() -> Contender:
        backend = make_backend(device.backend, task.threads, device)
        session = Session(backend, [graph], lambda name: _numbers(by_name[name]))
        return OnSession(task, config, session, graph.abi.weights)

    return _rounds(id, contender)


@dataclass(frozen=True)
class Traced:
    """What a GPU did in one step, as CUPTI traced it.

    ms: that it computed. kernels: how many kernels and copies these were. kinds: kind -> how many, and their ms, the longest first.
    """

    ms: float
    kernels: float
    kinds: dict[str, tuple[float, float]]


def traced(report: Report, model: str, precision: str, device: Device) -> Traced:
    """Where the time of an emitted decode's step goes. PyTorch's profiler sees every kernel of its process, IREE's too."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.zeros(1, device=torch_device(device)).item()  # it traces a GPU that PyTorch has opened
    contender = on_session(_task(model, device), Spec("emitter", "traced", precision, untuned(device=device)))
    contender.decode(PROMPT)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        contender.decode(PROMPT)
    assert found.profiler is not None
    assert found.profiler.kineto_results is not None
    events = found.profiler.kineto_results.events()
    kernels = [(e.name(), e.duration_ns() / 1e6) for e in events if e.device_type().name == "CUDA"]
    if not kernels:
        raise ToolchainError("profile", "PyTorch's profiler saw no kernel: CUPTI may not trace on this machine")
    return by_kind(kernels, STEPS)


def by_kind(kernels: Sequence[tuple[str, float]], steps: int) -> Traced:
    """Kernels of several steps, (name, ms), added up for one. IREE numbers its dispatches, of which many are alike."""
    kinds: dict[str, tuple[float, float]] = {}
    for name, ms in kernels:
        kind = re.sub(r"^.*dispatch_\d+_", "", name)
        count, total = kinds.get(kind, (0, 0))
        kinds[kind] = (count + 1 / steps, total + ms / steps)
    longest = dict(sorted(kinds.items(), key=lambda item: -item[1][1]))
    return Traced(sum(ms for _, ms in kinds.values()), sum(count for count, _ in kinds.values()), longest)


def _numbers(tensor: Tensor) -> np.ndarray:
    """Small numbers, the same ones again and again: to draw them all would take longer than to compute with them."""
    rng = np.random.default_rng(0)
    floats = tensor.dtype in ("f32", "f16", "bf16")
    some = rng.normal(0, 0.02, 65521) if floats else rng.integers(-8, 8, 65521)
    return np.resize(some.astype(numpy_type(tensor.dtype)), math.prod(tensor.shape)).reshape(tensor.shape)


def _task(model: str, device: Device) -> Task:
    return Task(model, (PROMPT,), (PROMPT,), STEPS, threads_available(), device)


def _rounds(id: str, make: Callable[[], Contender]) -> Measured:
    """Time a contender that is made here; where the task names no length, decode alone."""
    contender = make()
    lengths = contender.task.lengths
    for length in lengths:
        contender.prefill(length)  # warms up
    contender.decode(PROMPT)
    prefill = [contender.prefill(length) for length in lengths for _ in range(ROUNDS)]
    return Measured(id, [contender.decode(PROMPT) for _ in range(ROUNDS)], contender.read_bytes, prefill)


# ---- the others on the same device


def bandwidth(report: Report, device: Device) -> float:
    """Bytes per second: the most that PyTorch reads a large array with, by adding it up."""
    import torch

    where = torch_device(device)
    count = 1 << (30 if device.kind == "cuda" else 26)
    x = torch.ones(count, dtype=torch.float32, device=where)

    def read() -> None:
        x.sum()
        if where != "cpu":
            torch.cuda.synchronize()

    read()
    return x.nbytes * 1000 / min(milliseconds(read) for _ in range(6))


def transformers(report: Report, id: str, model: str, precision: str, device: Device) -> Measured:
    """Hugging Face on PyTorch's device; in float32 without TF32."""
    return _rounds(id, lambda: Transformers(_task(model, device), Spec("transformers", id, precision)))


class Jitted(Contender):
    """The JAX oracle, jitted for JAX's default device."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import jax

        from hloracle.reference.oracle.model import decode, prefill

        checkpoint = open_checkpoint(resolve(task.model))
        config = checkpoint.config
        abi = graph_abi(config, "decode", "token", task.capacity, 0)
        self.vocabulary, self.read_bytes = config.vocab_size, read_bytes(config, abi.weights)
        self._weights = [jax.device_put(checkpoint.load(w.name)) for w in abi.weights]
        self._decode = jax.jit(partial(decode, config, "token", task.capacity), donate_argnums=3)
        self._prefill = jax.jit(partial(prefill, config, "token", task.capacity))
        self._position, self._caches = 0, list[Any]()

    def go_to(self, context: int) -> None:
        if context:
            self.step(self.prompt(context))

    def step(self, tokens: Sequence[int]) -> int:
        if len(tokens) > 1:
            self._position = len(tokens)
            token, *self._caches = self._prefill(self._weights, np.array(tokens, np.int32), np.int32(len(tokens)))
        else:
            caches = dict(zip(CACHES, self._caches, strict=True))
            token, *self._caches = self._decode(self._weights, np.int32(tokens[0]), np.int32(self._position), caches)
            self._position += 1
        return int(token)


def oracle(report: Report, id: str, model: str, device: Device) -> Measured:
    """The JAX oracle on JAX's own device at its highest precision: no TF32."""
    os.environ["JAX_PLATFORMS"] = "cuda" if device.kind == "cuda" else "cpu"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    sys.path[:] = [entry for entry in sys.path if os.path.basename(entry) != JAX_FOLDER]
    import jax

    where = jax.devices()[device.index if device.kind == "cuda" else 0]
    with jax.default_device(where), jax.default_matmul_precision("highest"):
        return _rounds(id, lambda: Jitted(_task(model, device)))
