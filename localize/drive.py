"""Calls graphs as their ABI says, without a session. An error that shows here too is not the session's fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloracle.backends.session import IDLE, Backend
from hloracle.core.abi import CACHES, Graph
from hloracle.core.dtypes import numpy_type
from hloracle.core.kept import by_position
from hloracle.core.rings import held
from hloracle.localize.situation import ReferenceRun, row_errors, slot_errors


def drive(graphs: Sequence[Graph], backend: Backend, run: ReferenceRun) -> float:
    """The largest error, in floors of its row, of the heads and the caches that graphs return for the truth's sequence.

    Args:
      graphs: a prefill or an extend, which is given the prompt, a decode, which is given the other tokens one by one, or both. Of a
        batch the last row is given them, and the others are idle.
    """
    truth, config, length = run.truth, run.config, run.length
    by_phase = {graph.abi.phase: graph for graph in graphs}
    loaded = {phase: backend.load(graph) for phase, graph in by_phase.items()}
    weights = {a.name: backend.upload(run.weight(a.name)) for graph in graphs for a in graph.abi.weights}
    tokens = truth.tokens
    errors = []

    def call(phase: str, inputs: dict[str, Any]) -> list[np.ndarray]:
        given = [
            weights[a.name] if a.role == "weight" else backend.upload(np.array(inputs[a.role], numpy_type(a.dtype)))
            for a in by_phase[phase].abi.arguments
        ]
        results = loaded[phase](given)
        return [np.array(backend.download(result)) for result in results[: 1 + len(by_phase[phase].abi.caches)]]

    def judged(row: int, head: np.ndarray) -> float:
        if head.ndim:
            return row_errors(truth, config, "lm_head", row, head)
        return 0.0 if int(head) == int(np.argmax(truth.values("lm_head")[row])) else np.inf

    abi = graphs[0].abi
    batch, names = abi.batch, abi.caches
    empty = [abi.results[abi.result(name)] for name in abi.caches]
    filled, caches = 0, [np.zeros(cache.shape, numpy_type(cache.dtype)) for cache in empty]
    prompt = next((phase for phase in ("prefill", "extend") if phase in by_phase), "")
    bucket = by_phase[prompt].abi.bucket if prompt else 0
    while prompt and filled < length:
        tokens_now = tokens[filled : min(filled + bucket, length)]
        inputs: dict[str, Any] = {"tokens": [*tokens_now, *[0] * (bucket - len(tokens_now))], "length": len(tokens_now)}
        inputs |= {"position": filled, "row": batch - 1, "total": length, **dict(zip(names, caches, strict=False))}
        head, *caches = call(prompt, inputs)
        filled += len(tokens_now)
        errors.append(judged(filled - 1, head))
    for position in range(filled, len(tokens) if "decode" in by_phase else filled):
        row: dict[str, Any] = {"token": tokens[position], "position": position}
        if batch > 1:
            row = {"token": [0] * (batch - 1) + [tokens[position]], "position": [IDLE] * (batch - 1) + [position]}
        head, *caches = call("decode", {**row, **dict(zip(names, caches, strict=False))})
        filled = position + 1
        errors.append(judged(position, head[-1] if batch > 1 else head))
    kept = [cache if batch == 1 else cache[:, -1] for cache in caches]
    holds = held(abi, config.num_hidden_layers, filled)[:, :filled]
    for part, cache in zip(CACHES, by_position(abi, kept, filled) if kept else (), strict=False):
        for layer in range(len(cache)):
            which = np.flatnonzero(holds[layer])
            errors.append(float(np.max(slot_errors(truth, config, f"{part}.{layer}", cache[layer], which))))
    return max(errors, key=lambda e: np.inf if np.isnan(e) else e)
