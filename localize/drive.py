"""Calls graphs as their ABI says, without a session. An error that shows here too is not the session's fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloracle.backends.session import Backend
from hloracle.core.abi import Graph
from hloracle.localize.situation import ReferenceRun, row_errors, slot_errors


def drive(graphs: Sequence[Graph], backend: Backend, run: ReferenceRun) -> float:
    """The largest error, in floors of its row, of the heads and the caches that graphs return for the truth's sequence.

    Args:
      graphs: a prefill, which is given the prompt, a decode, which is given the other tokens one by one, or both.
    """
    truth, config, length = run.truth, run.config, run.length
    by_phase = {graph.abi.phase: graph for graph in graphs}
    loaded = {phase: backend.load(graph) for phase, graph in by_phase.items()}
    weights = {a.name: backend.upload(run.weight(a.name)) for graph in graphs for a in graph.abi.weights}
    tokens = truth.tokens
    errors = []

    def call(phase: str, **inputs: np.ndarray) -> list[np.ndarray]:
        arguments = by_phase[phase].abi.arguments
        given = [weights[a.name] if a.role == "weight" else backend.upload(inputs[a.role]) for a in arguments]
        results = loaded[phase](given)
        return [np.array(backend.download(result)) for result in results[: 1 + len(by_phase[phase].abi.caches)]]

    def judged(row: int, head: np.ndarray) -> float:
        if head.ndim:
            return row_errors(truth, config, "lm_head", row, head)
        return 0.0 if int(head) == int(np.argmax(truth.values("lm_head")[row])) else np.inf

    filled, caches = 0, [np.zeros(shape, np.float32) for shape in config.cache_shapes(graphs[0].abi.capacity).values()]
    if "prefill" in by_phase and length:
        padded = np.zeros(by_phase["prefill"].abi.bucket, np.int32)
        padded[:length] = tokens[:length]
        head, *caches = call("prefill", tokens=padded, length=np.array(length, np.int32))
        filled = length
        errors.append(judged(filled - 1, head))
    for position in range(filled, len(tokens) if "decode" in by_phase else filled):
        scalars = {"token": np.array(tokens[position], np.int32), "position": np.array(position, np.int32)}
        head, *caches = call("decode", **scalars, k_cache=caches[0], v_cache=caches[1])
        filled = position + 1
        errors.append(judged(position, head))
    for part, cache in zip(graphs[0].abi.caches, caches, strict=False):
        for layer in range(len(cache)):
            errors.append(float(np.max(slot_errors(truth, config, f"{part}.{layer}", cache[layer, :, :filled]))))
    return max(errors, key=lambda e: np.inf if np.isnan(e) else e)
