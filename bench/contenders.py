"""The contenders of a bench: our graphs on IREE and XLA, Hugging Face, and llama.cpp.

Each runs in a process of its own and is asked there for decode steps, a prompt or a text; `run.py` asks.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from hloracle.backends.devices import CPU, Device
from hloracle.backends.named import make_backend
from hloracle.backends.session import Backend, Session, greedy
from hloracle.bench.machine import Reader, milliseconds
from hloracle.core.abi import Graph, Tensor
from hloracle.core.child import Report
from hloracle.core.errors import InputError
from hloracle.production.choice import Choice, production_graphs, untuned
from hloracle.reference.fixtures.gguf_blocks import TYPES
from hloracle.reference.fixtures.named import FIXTURES, SOURCE, Packaged, resolve
from hloracle.reference.model.archive import archive_of
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import BUCKETS, GraphSpec
from hloracle.reference.model.weights import weight_shapes

Kind = Literal["emitter", "oracle", "transformers", "llama.cpp", "machine"]


@dataclass(frozen=True)
class Spec:
    """What a contender is.

    choice: how an emitter's graphs are written and compiled. batch: the rows of its graphs. compute: what they compute in, which
    is then the precision, too.
    """

    kind: Kind
    title: str
    precision: str = "f32"
    choice: Choice = field(default_factory=untuned)
    batch: int = 1
    compute: str = "f32"

    @property
    def id(self) -> str:
        """Its name in JSON: `emitter/int4`, `emitter/int4/batch`, `emitter/bf16/computed`, `oracle/f32`, `transformers/bf16`,
        `llama.cpp`, `machine`.
        """
        if self.kind in ("llama.cpp", "machine"):
            return self.kind
        computed = ["computed"] if self.compute != "f32" else []
        return "/".join([self.kind, self.precision, *computed, *(["batch"] if self.batch > 1 else [])])


@dataclass(frozen=True)
class Task:
    """What all are asked for.

    contexts: positions at which decode steps are timed. lengths: tokens of the prompts that are timed, if any.
    device: where IREE runs the emitter's graphs. batch: rows of the emitter's graphs that are timed beside those of one row.
    ring: layers with a window that is shorter than the capacity have caches as long as their window, in our graphs. kv: what these keep
    keys and values in.
    """

    model: str
    contexts: tuple[int, ...]
    lengths: tuple[int, ...]
    tokens: int
    threads: int
    device: Device = CPU
    batch: int = 1
    ring: bool = False
    kv: str = "compute"

    @property
    def capacity(self) -> int:
        """Cache slots: the power of two that holds everything."""
        most = max([*(c + self.tokens for c in self.contexts), *self.lengths])
        return 1 << (most - 1).bit_length()


@dataclass(frozen=True)
class Opened:
    """What opening a contender took.

    load_seconds: until it could answer, imports and all. first_token_ms: of its first prompt, the shortest length; 0 without
    one. read_bytes: bytes of weights that a decode step reads. resident_bytes: of the process, with everything ready.
    """

    load_seconds: float
    first_token_ms: float
    read_bytes: int
    resident_bytes: int


# OpenMP's threads, torch's and llama.cpp's, look for more work for 0.2 s.
SETTLE_SECONDS = 0.3
MACHINE = Spec("machine", "memory, read once")


def contenders(model: str, precisions: Sequence[str], batch: int = 1, compute: str = "f32") -> list[Spec]:
    """All that can take part here; the emitter's float32 comes first.

    batch: of the emitter's graphs of several rows, if above 1. compute: what more of the emitter's and the oracle's graphs compute
    in, and Hugging Face; none for float32, in which the others do.
    """
    held = [(p, "f32", f"IREE {p}") for p in precisions]
    held += [(compute, compute, f"IREE, computes in {compute}")] if compute != "f32" else []
    found = []
    for rows in dict.fromkeys((1, batch)):
        words = f", {rows} rows" if rows > 1 else ""
        found += [
            Spec("emitter", f"{title}{words}", p, untuned(batch=rows, precision=p, compute=c), rows, c)
            for p, c, title in held
        ]
    found.append(Spec("oracle", "XLA f32"))
    found += [Spec("oracle", f"XLA, computes in {compute}", compute, compute=compute)] if compute != "f32" else []
    found += [Spec("transformers", f"HF {p}", p) for p in dict.fromkeys(("f32", "bf16", compute))]
    if importlib.util.find_spec("llama_cpp") and gguf_of(model):
        found.append(Spec("llama.cpp", "llama.cpp"))
    return found


def gguf_of(model: str) -> Path | None:
    """The GGUF file that a model is, or was made from."""
    path = Path(model)
    if path.suffix.lower() == ".gguf":
        return path
    # Of any other directory the file may be of other weights than what stands there now.
    return resolve(model) / SOURCE if isinstance(FIXTURES.get(model), Packaged) else None


# Of a parameter, where nothing is shared with another process; what is less than a matrix is not worth counting.
_BYTES = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "int8": 1.125, "int4": 0.75}


def memory_for(spec: Spec, config: Config) -> int:
    """About how many bytes a contender's weights take."""
    return int(sum(math.prod(shape) for shape in weight_shapes(config).values()) * _BYTES[spec.precision])


def holds_blocks(path: Path) -> bool:
    """Whether our int4 and llama.cpp compute with the same weights: every matrix of the file is in blocks that we take."""
    import gguf

    return all(t.tensor_type.name in TYPES for t in gguf.GGUFReader(path).tensors if len(t.shape) > 1)


class Contender(ABC):
    """A model with its weights ready, which is timed. Times are in milliseconds.

    read_bytes: of weights, what a decode step reads.
    """

    vocabulary: int
    read_bytes: int

    def __init__(self, task: Task) -> None:
        self.task = task

    def prompt(self, length: int) -> list[int]:
        """A prompt of random tokens, the same for all contenders."""
        return [int(t) for t in np.random.default_rng(length).integers(0, self.vocabulary, length)]

    @abstractmethod
    def go_to(self, context: int) -> None:
        """Start over, so that the next token is at position `context`."""

    @abstractmethod
    def step(self, tokens: Sequence[int]) -> int:
        """Take one more token, or a whole prompt; returns the greedy token after it."""

    def decode(self, context: int) -> float:
        """Milliseconds per token of the task's number of steps from position `context` on."""
        self.go_to(context)
        token = 1
        started = time.perf_counter()
        for _ in range(self.task.tokens):
            token = self.step([token])
        return (time.perf_counter() - started) / self.task.tokens * 1000

    def prefill(self, length: int) -> float:
        """Milliseconds of a whole prompt, up to its next token."""
        prompt = self.prompt(length)
        self.go_to(0)
        return milliseconds(lambda: self.step(prompt))

    def text(self, ids: Sequence[int], count: int) -> list[int]:
        """Greedy tokens after a prompt."""
        self.go_to(0)
        found = [self.step(ids)]
        while len(found) < count:
            found.append(self.step(found[-1:]))
        return found


def read_bytes(config: Config, weights: Sequence[Tensor]) -> int:
    """Bytes of weights that a decode step reads: only the chosen experts, and an embedding only if it is the head."""
    experts = config.experts
    looked_up = () if config.tie_word_embeddings else ("model.embed_tokens.weight",)
    share = experts.num_experts_per_tok / experts.num_experts if experts else 1
    read = [w for w in weights if w.weight not in looked_up]
    return int(sum(w.nbytes * (share if ".experts." in w.weight else 1) for w in read))


def opened(spec: Spec, task: Task, report: Report = lambda line: None) -> Checkpoint:
    """The task's model as a contender of our own graphs takes it."""
    return open_checkpoint(resolve(task.model, report, spec.precision, compute=spec.compute))


def graphs_of(task: Task, spec: Spec, checkpoint: Checkpoint) -> list[Graph]:
    """Decode, and a prefill for each length; of several rows an extend for each, or for a part of it."""
    decode = GraphSpec("decode", "token", task.capacity, 0, spec.batch, spec.compute, task.ring, task.kv)
    lengths = dict.fromkeys(task.lengths if spec.batch == 1 else (min(n, BUCKETS[-1]) for n in task.lengths))
    phase = "prefill" if spec.batch == 1 else "extend"
    phases = [decode, *(decode._replace(phase=phase, bucket=n) for n in lengths)]
    if spec.kind == "emitter":
        return production_graphs(checkpoint, spec.precision, spec.choice, phases)
    from hloracle.reference.oracle.lower import lower

    return [lower(checkpoint.config, *phase) for phase in phases]


def backend_of(spec: Spec, task: Task) -> Backend:
    """The backend that a contender of our own graphs runs on: the task's device for the emitter, XLA for the oracle."""
    name = task.device.backend if spec.kind == "emitter" else "xla-cpu"
    return make_backend(name, task.threads, spec.choice.opened(task.device))


def compile_(report: Report, spec: Spec, task: Task) -> None:
    """Put a contender's modules and weights into the cache, so that its load time is that of a second start."""
    backend = backend_of(spec, task)
    checkpoint = opened(spec, task)
    for graph in (graphs := graphs_of(task, spec, checkpoint)):
        report(f"compiling {graph.name} for {spec.title}")
        backend.load(graph)
    if spec.kind == "emitter":
        archive_of(checkpoint, graphs[0].abi.weights)


class OnSession(Contender):
    """Graphs of ours: the emitter's on IREE, or the oracle's on XLA. weights: the arguments of a graph that hold them."""

    def __init__(self, task: Task, config: Config, session: Session, weights: Sequence[Tensor]) -> None:
        super().__init__(task)
        self.session = session
        self.vocabulary, self.read_bytes = config.vocab_size, read_bytes(config, weights)

    def go_to(self, context: int) -> None:
        # What the slots before hold changes nothing about the time.
        self.session.positions = [context] * self.session.batch

    def decode(self, context: int) -> float:
        """Milliseconds per token: a step gives one in each row."""
        if self.session.batch == 1:
            return super().decode(context)
        self.go_to(context)
        fed, steps = dict.fromkeys(range(self.session.batch), 1), self.task.tokens
        started = time.perf_counter()
        for _ in range(steps):
            fed = {row: greedy(head) % self.vocabulary for row, head in self.session.step(fed).items()}
        return (time.perf_counter() - started) / (steps * self.session.batch) * 1000

    def step(self, tokens: Sequence[int]) -> int:
        bucket = len(tokens) if self.session.batch == 1 else None
        head = self.session.prefill(tokens, bucket) if len(tokens) > 1 else self.session.decode_step(tokens[0])
        return greedy(head) % self.vocabulary  # with weights that mean nothing the logits may be no numbers

    def text(self, ids: Sequence[int], count: int) -> list[int]:
        return list(self.session.generate_streaming_greedy(ids, count, through_decode=True))


def on_session(task: Task, spec: Spec) -> OnSession:
    """A contender of our own graphs, over the weights of the task's model."""
    checkpoint = opened(spec, task)
    graphs = graphs_of(task, spec, checkpoint)
    weights = graphs[0].abi.weights
    load = archive_of(checkpoint, weights).load if spec.kind == "emitter" else checkpoint.load
    return OnSession(task, checkpoint.config, Session(backend_of(spec, task), graphs, load), weights)


def torch_device(device: Device) -> str:
    """PyTorch's name of a device; the processor where the device is not CUDA's."""
    return f"cuda:{device.index}" if device.kind == "cuda" else "cpu"


class Transformers(Contender):
    """Hugging Face as its users run it: its own choice of attention, and a cache that grows."""

    def __init__(self, task: Task, spec: Spec) -> None:
        super().__init__(task)
        import torch

        from hloracle.reference.huggingface.truth import load_model

        self.torch, self.device = torch, torch_device(task.device)
        torch.set_num_threads(task.threads)
        names = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
        directory = resolve(task.model)
        self.model = load_model(directory, names[spec.precision], attention=None).to(self.device)
        config = open_checkpoint(directory).config
        embedding = 0 if config.tie_word_embeddings else self.model.get_input_embeddings().weight.nbytes
        parameters = {id(p): p.nbytes for p in self.model.parameters()}
        self.vocabulary, self.read_bytes = config.vocab_size, sum(parameters.values()) - embedding
        self.cache: Any = None

    def go_to(self, context: int) -> None:
        self.cache = None
        if context:
            self.step(self.prompt(context))

    def step(self, tokens: Sequence[int]) -> int:
        given = self.torch.tensor([list(tokens)], device=self.device)
        with self.torch.inference_mode():
            out = self.model(given, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        return int(out.logits[0, -1].argmax())


class LlamaCpp(Contender):
    """llama.cpp on the same GGUF file, through llama-cpp-python."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import gguf
        from llama_cpp import Llama  # pyright: ignore[reportMissingImports]  (an extra)

        path = gguf_of(task.model)
        if path is None:
            raise InputError("has no GGUF file", task.model, "name one that does")
        self.llama = Llama(
            str(path), n_ctx=task.capacity, n_threads=task.threads, n_threads_batch=task.threads, verbose=False
        )
        self.vocabulary = self.llama.n_vocab()
        # A tied embedding is read whole as the head.
        self.read_bytes = sum(int(t.n_bytes) for t in gguf.GGUFReader(path).tensors)

    def go_to(self, context: int) -> None:
        self.llama.reset()
        self.llama._ctx.kv_cache_seq_rm(-1, 0, -1)
        if context:
            self.step(self.prompt(context))

    def step(self, tokens: Sequence[int]) -> int:
        self.llama.eval(list(tokens))
        # Where they lie: a slice of the pointer would be a list of as many Python numbers.
        return int(np.argmax(np.ctypeslib.as_array(self.llama._ctx.get_logits(), (self.vocabulary,))))


# ---- what a contender's process is asked for

_here: Any = None


def open_(spec: Spec, task: Task, started: float) -> Opened:
    """Make a contender ready in this process. started: `time.time()` when the process was asked for."""
    global _here
    if spec == MACHINE:
        _here = Reader(task.threads)
        return Opened(0.0, 0.0, 0, 0)
    if spec.kind in ("emitter", "oracle"):
        _here = on_session(task, spec)
    else:
        _here = Transformers(task, spec) if spec.kind == "transformers" else LlamaCpp(task)
    seconds = time.time() - started
    first = _here.prefill(min(task.lengths)) if task.lengths else 0.0
    _here.decode(task.contexts[0])  # warms up
    gc.collect()
    return Opened(seconds, first, _here.read_bytes, psutil.Process().memory_info().rss)


def bandwidth() -> float:
    """Of MACHINE's process: bytes per second."""
    return float(_here.bandwidth())


def decode(context: int) -> float:
    """Of a contender's process: milliseconds per token of decode steps from position `context` on."""
    _settle()
    return float(_here.decode(context))


def prefill(length: int) -> float:
    """Of a contender's process: milliseconds of a prompt of `length` tokens, up to its next token."""
    _settle()
    return float(_here.prefill(length))


def _settle() -> None:
    """Before a turn: threads of the one before may still spin for work, and its numbers fill the caches."""
    time.sleep(SETTLE_SECONDS)
    _here.decode(0)


def text(ids: Sequence[int], count: int) -> list[int]:
    """Of a contender's process: `count` greedy tokens after a prompt."""
    return list(_here.text(ids, count))
