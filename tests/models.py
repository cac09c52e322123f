"""Tiny models for the tests of what looks inside a graph: shapes that collide, graphs, and right values of everything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from stablehlo_interpreter import Interpreter

from hloracle.backends.session import Backend, Executable
from hloracle.backends.xla import XlaCpu
from hloracle.core.abi import Graph
from hloracle.core.cache import build_directory, cache_root
from hloracle.core.child import alone
from hloracle.emitters.model import emit
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.situation import ReferenceRun, Situation
from hloracle.localize.workbench import Workbench
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface.anchor_truth import MASKED, AnchorTruth, anchor_truth, masked, row_shape, visible
from hloracle.reference.huggingface.truth import first, hooked
from hloracle.reference.model.anchors import anchors, split
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle.lower import lower

SOURCES, PHASES = ("emitter", "oracle"), ("prefill", "decode")
T, S, LENGTH = 8, 10, 5
TOKENS = (3, 1, 4, 1, 5, 2, 6)
PLAIN: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 20,
    "vocab_size": 29,
}
ONE = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "hidden_size": 4}
EQUAL = {"num_hidden_layers": 1, "num_key_value_heads": 4, "head_dim": 2, "hidden_size": 8, "intermediate_size": 8}
# What a search by shape could mistake. `one-of-each` and `all-equal` also have as many cache slots as query tokens.
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one-kv-head": {"num_attention_heads": 3, "num_key_value_heads": 1},
    "one-layer-tied": {"num_hidden_layers": 1, "tie_word_embeddings": True},
    "one-of-each": ONE,
    "all-equal": {**EQUAL, "vocab_size": 8, "tie_word_embeddings": True},
}
FULL = ("one-of-each", "all-equal")
# Models of other families: a window shorter than the prompt, mixtures of experts, projections that are clipped, latents.
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
FAMILY_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "windows": ("gemma2", {**PLAIN, "sliding_window": 3}),
    "experts": ("qwen2_moe", {**PLAIN, **_EXPERTS, "shared_expert_intermediate_size": 14, "sliding_window": 3}),
    "clipped": ("olmoe", {**PLAIN, "hidden_size": 16, "num_experts": 5, "num_experts_per_tok": 2, "clip_qkv": 0.5}),
    "sinks": ("gpt_oss", {**PLAIN, "num_local_experts": 5, "sliding_window": 3}),
    "latent": (
        "deepseek_v3",
        {
            **{key: value for key, value in PLAIN.items() if key != "head_dim"}, "num_key_value_heads": 4,
            "q_lora_rank": 10, "kv_lora_rank": 6, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 7,
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A checkpoint, the sizes of its graphs, and a prompt of LENGTH tokens with two that follow."""

    checkpoint: Checkpoint
    capacity: int

    @property
    def config(self) -> Config:
        return self.checkpoint.config

    @property
    def weights(self) -> frozenset[str]:
        return frozenset(weight_shapes(self.config))

    @cached_property
    def truth(self) -> AnchorTruth:
        with alone():
            return anchor_truth(self.checkpoint, TOKENS)

    def graph(self, source: str, phase: str, head: str = "logits") -> Graph:
        return _graph(self.config, source, phase, head, self.capacity)

    def anatomy(self, source: str, phase: str, head: str = "logits") -> Anatomy:
        return Anatomy(self.graph(source, phase, head), self.config)

    def situation(self, phase: str, truth: AnchorTruth | None = None) -> Situation:
        """The prefill of the prompt, or the step of the last token."""
        sizes = (T, T) if phase == "prefill" else (1, self.capacity)
        return Situation(self.config, truth or self.truth, phase, *sizes, self.capacity, LENGTH, len(TOKENS) - 1)

    def bench(self, backend: Backend | None = None) -> Workbench:
        return Workbench(backend or interpreter(), self.checkpoint.load, self.weights)

    def run(self, length: int = LENGTH) -> ReferenceRun:
        """The sequence, of which the first `length` tokens are the prompt."""
        return ReferenceRun(self.truth, self.config, self.checkpoint.load, length, T)

    def right(self, phase: str) -> Callable[[str], np.ndarray]:
        """The right value of any argument of a piece."""
        situation = self.situation(phase)
        return lambda name: situation.value(name, self.checkpoint.load)


@cache
def model(name: str) -> Model:
    folder = cache_root() / "models" / f"shape-{name}"
    family, keys = FAMILY_SHAPES.get(name) or ("llama", {**PLAIN, **SHAPES[name]})
    build_directory(folder, lambda empty: write_tiny(empty, family, seed=3, **keys))
    return Model(open_checkpoint(folder), T if name in FULL else S)


@cache
def _graph(config: Config, source: str, phase: str, head: str, capacity: int) -> Graph:
    return (emit if source == "emitter" else lower)(config, phase, head, capacity, T if phase == "prefill" else 0)


@cache
def interpreter() -> Interpreter:
    """One that loads each text once."""

    class Keeping(Interpreter):
        def __init__(self) -> None:
            super().__init__()
            self.loaded: dict[str, Executable] = {}

        def load(self, graph: Graph) -> Executable:
            if graph.text not in self.loaded:
                self.loaded[graph.text] = super().load(graph)
            return self.loaded[graph.text]

    return Keeping()


@cache
def quick_xla() -> XlaCpu:
    """XLA without its optimizer: compiles a graph of these sizes ten times as fast, into modules of its own."""

    class Quick(XlaCpu):
        def load(self, graph: Graph) -> Executable:
            return super().load(replace(graph, text=f"{graph.text}\n// not optimized\n"))

    backend = Quick()
    options = backend._options.executable_build_options.debug_options
    options.xla_backend_optimization_level, options.xla_llvm_disable_expensive_passes = 0, True
    backend._options.env_option_overrides = [("xla_cpu_use_fusion_emitters", False)]
    return backend


Change = Callable[[str], str]


def changed(graph: Graph, old: str, new: str, scope: str = "", count: int = 1) -> Graph:
    """The graph with `old`, a pattern, replaced in its first `count` lines that have it and stand in `scope`."""
    lines, left = graph.text.split("\n"), count
    for i, line in enumerate(lines):
        if left and re.search(old, line) and (not scope or line.endswith(f'loc("{scope}")')):
            lines[i], left = re.sub(old, new, line), left - 1
    assert left <= 0 or count > 99, f"{scope or graph.name} has no {old}"
    return replace(graph, text="\n".join(lines))


def with_tables(graph: Graph, change: Callable[[np.ndarray], np.ndarray]) -> Graph:
    """A graph whose tables of RoPE are changed."""

    def other(line: str) -> str:
        constant = re.search(r'dense<"0x([0-9A-F]+)"> : tensor<(\d+)x([0-9x]+)xf32>', line)
        if not constant:
            return line
        table = np.frombuffer(bytes.fromhex(constant[1]), np.float32).reshape(int(constant[2]), -1)
        return line.replace(constant[1], change(table).astype(np.float32).tobytes().hex().upper())

    return replace(graph, text="\n".join(map(other, graph.text.split("\n"))))


class Changing:
    """A backend that compiles another text than it is given."""

    def __init__(self, change: Change, backend: Backend | None = None, name: str = "changing") -> None:
        self.backend, self.change, self.name = backend or interpreter(), change, name
        self.upload, self.download, self.keep = self.backend.upload, self.backend.download, self.backend.keep

    def load(self, graph: Graph) -> Executable:
        return self.backend.load(replace(graph, text=self.change(graph.text)))


def handmade(
    folder: Path, config: Config, tokens: Sequence[int] = TOKENS, *,
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] = lambda rng, shape: rng.normal(0, 1, shape),
    noise: float = 2.0**-20,
) -> AnchorTruth:  # fmt: skip
    """A truth that no model computes: every anchor drawn by itself, and everywhere the same noise."""
    n, stored = len(tokens), anchors(config)
    folder.mkdir()
    for i, anchor in enumerate(stored):
        rows = draw(np.random.default_rng(i), (n, *row_shape(config, anchor, n)))
        if (part := split(anchor)[1]) in MASKED:
            for query, row in enumerate(rows):
                row[..., : visible(config, anchor, query).start] = MASKED[part]
        np.save(folder / f"{anchor}.npy", masked(anchor, rows).astype(np.float32))
    np.save(folder / "noise.npy", np.full((len(stored), n), noise, np.float32))
    (folder / "about.json").write_text(json.dumps({"anchors": stored}))
    return AnchorTruth(tuple(tokens), folder, reused=True)


def _inputs(opened: Checkpoint, graph: Graph) -> list[np.ndarray]:
    """Its arguments, in order."""
    rng, given = np.random.default_rng(1), []
    fixed = {"length": 29, "token": 77, "position": 45}
    for a in graph.abi.arguments:
        if a.role == "weight":
            given.append(opened.load(a.name))
        elif a.role == "tokens":
            given.append(rng.integers(0, opened.config.vocab_size, a.shape).astype(np.int32))
        elif a.role in fixed:
            given.append(np.array(fixed[a.role], np.int32))
        else:
            given.append(rng.standard_normal(a.shape).astype(np.float32))
    return given


def results(backend: Backend, opened: Checkpoint, graph: Graph) -> list[np.ndarray]:
    """What a graph gives of a prompt, or of a token after caches of noise."""
    # Copies: XLA may take over a numpy array as it is, and then write to a cache that is donated.
    arguments = [backend.upload(a.copy()) for a in _inputs(opened, graph)]
    return [backend.download(r).copy() for r in backend.load(graph)(arguments)]


def module_outputs(model: Any, tokens: Sequence[int], modules: Sequence[str]) -> dict[str, np.ndarray]:
    """The outputs of transformers' named modules (`model.layers.0.mlp`, ...) over a whole sequence, batch axis dropped."""
    import torch

    found: dict[str, np.ndarray] = {}

    def keep(name: str) -> Callable[[Any], None]:
        return lambda output: found.update({name: first(output)[0].numpy().copy()})

    with hooked(model, {name: keep(name) for name in modules}, {}), torch.inference_mode():
        model(torch.tensor([list(tokens)]), use_cache=False)
    return found
