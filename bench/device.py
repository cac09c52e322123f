"""How fast a device decodes: the emitted graphs in each precision, Hugging Face and the JAX oracle on the same device.

Each is measured in a process of its own, so that none holds memory that another needs. A step's time is that of reading
back its token; the device's own read bandwidth is measured beside it, and bounds it: each step reads every weight once.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hloracle.backends.devices import Device
from hloracle.backends.named import make_backend
from hloracle.backends.session import Session, greedy
from hloracle.bench.contenders import read_bytes
from hloracle.bench.machine import milliseconds
from hloracle.core.abi import Graph, Tensor
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import InputError, ToolchainError
from hloracle.production.choice import Choice, production_graph, production_graphs, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.archive import archive_of
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.encodings import Layout, numpy_type

CAPACITY, PROMPT = 256, 128
STEPS, ROUNDS = 32, 5


@dataclass(frozen=True)
class Measured:
    """What was measured of one contender.

    ms: per token, a figure for each round. bytes: of weights that a step reads. prefill_ms: of a prompt of PROMPT tokens.
    failure: why nothing was measured.
    """

    id: str
    ms: list[float]
    bytes: int
    prefill_ms: list[float] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # until it was ready
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
    checkpoint = open_checkpoint(resolve(model, precision=precision))
    specs = [("decode", "token", CAPACITY, 0), ("prefill", "token", CAPACITY, PROMPT)]
    graphs = production_graphs(checkpoint, precision, choice or untuned(device=device), specs)
    return _of_session(id, checkpoint.config, graphs, archive_of(checkpoint, graphs[0].abi.weights).load, device)


def emitted_of_size(report: Report, id: str, config: Config, layout: Layout, device: Device) -> Measured:
    """Decode graphs of a size, with weights that mean nothing: a step takes as long."""
    graph = production_graph(config, ("decode", "token", CAPACITY, 0), layout, untuned(device=device))
    by_name = {w.name: w for w in graph.abi.weights}
    return _of_session(id, config, [graph], lambda name: _numbers(by_name[name]), device)


def _numbers(tensor: Tensor) -> np.ndarray:
    """Small numbers, the same ones again and again: to draw them all would take longer than to compute with them."""
    rng = np.random.default_rng(0)
    floats = tensor.dtype in ("f32", "f16", "bf16")
    some = rng.normal(0, 0.02, 65521) if floats else rng.integers(-8, 8, 65521)
    return np.resize(some.astype(numpy_type(tensor.dtype)), math.prod(tensor.shape)).reshape(tensor.shape)


def _of_session(
    id: str, config: Config, graphs: Sequence[Graph], weight: Callable[[str], np.ndarray], device: Device
) -> Measured:
    started = time.perf_counter()
    session = Session(make_backend(device.backend, os.cpu_count() or 1, device), graphs, weight)
    prompt = np.random.default_rng(0).integers(0, config.vocab_size, PROMPT).tolist()
    prefill = len(graphs) > 1

    def steps() -> float:
        session.position, token = PROMPT, 1
        begun = time.perf_counter()
        for _ in range(STEPS):
            token = greedy(session.decode_step(token)) % config.vocab_size
        return (time.perf_counter() - begun) / STEPS * 1000

    def whole() -> float:
        return milliseconds(lambda: session.prefill(prompt))

    if prefill:
        whole()
    steps()
    ready = time.perf_counter() - started
    of_prompts = [whole() for _ in range(ROUNDS)] if prefill else []
    return Measured(id, [steps() for _ in range(ROUNDS)], read_bytes(config, graphs[0].abi.weights), of_prompts, ready)


# ---- the others on the same device


def torch_device(device: Device) -> str:
    """PyTorch's name of a device; the processor where the device is not CUDA's."""
    return f"cuda:{device.index}" if device.kind == "cuda" else "cpu"


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


def transformers(report: Report, id: str, model: str, dtype: str, device: Device) -> Measured:
    """Hugging Face on PyTorch's device, its own choice of attention; in float32 without TF32."""
    import torch

    from hloracle.reference.huggingface.truth import load_model

    started = time.perf_counter()
    where = torch_device(device)
    directory = resolve(model)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    loaded = load_model(directory, dtype, attention=None).to(where)
    config = open_checkpoint(directory).config
    prompt = torch.randint(0, config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0)).to(where)

    def first() -> tuple[Any, Any]:
        out = loaded(prompt, use_cache=True, logits_to_keep=1)
        return out.logits[0, -1:].argmax(-1, keepdim=True), out.past_key_values

    def whole() -> float:
        return milliseconds(lambda: int(first()[0]))

    def steps() -> float:
        token, cache = first()
        int(token)
        begun = time.perf_counter()
        for _ in range(STEPS):
            out = loaded(token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[0, -1:].argmax(-1, keepdim=True), out.past_key_values
            int(token)  # as a session does that streams its text
        return (time.perf_counter() - begun) / STEPS * 1000

    with torch.inference_mode():
        whole(), steps()
        ready = time.perf_counter() - started
        weights = sum({p.data_ptr(): p.nbytes for p in loaded.parameters()}.values())
        return Measured(id, [steps() for _ in range(ROUNDS)], weights, [whole() for _ in range(ROUNDS)], ready)


def oracle(report: Report, id: str, model: str, device: Device) -> Measured:
    """The JAX oracle, jitted for JAX's own device at its highest precision: no TF32."""
    os.environ["JAX_PLATFORMS"] = "cuda" if device.kind == "cuda" else "cpu"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    from hloracle.reference.oracle.model import decode, prefill

    started = time.perf_counter()
    checkpoint = open_checkpoint(resolve(model))
    config = checkpoint.config
    where = jax.devices()[device.index if device.kind == "cuda" else 0]
    abi = graph_abi(config, "decode", "token", CAPACITY, 0)
    weights = [jax.device_put(checkpoint.load(w.name), where) for w in abi.weights]
    prompt = np.random.default_rng(0).integers(0, config.vocab_size, PROMPT).astype(np.int32)
    with jax.default_device(where), jax.default_matmul_precision("highest"):
        step = jax.jit(partial(decode, config, "token"), donate_argnums=3)
        first = jax.jit(partial(prefill, config, "token", CAPACITY))

        def whole() -> float:
            return milliseconds(lambda: int(first(weights, prompt, np.int32(PROMPT))[0]))

        def steps() -> float:
            token, *caches = first(weights, prompt, np.int32(PROMPT))
            current = int(token)
            begun = time.perf_counter()
            for i in range(STEPS):
                token, *caches = step(weights, np.int32(current), np.int32(PROMPT + i), caches)
                current = int(token)
            return (time.perf_counter() - begun) / STEPS * 1000

        whole(), steps()
        ready = time.perf_counter() - started
        rounds = [steps() for _ in range(ROUNDS)]
        return Measured(id, rounds, read_bytes(config, abi.weights), [whole() for _ in range(ROUNDS)], ready)
