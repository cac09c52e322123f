"""Plants a fault in the text of somebody else's graph, and says at which anchor it has to be found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hloracle.backends.session import Session
from hloracle.backends.xla import XlaCpu
from hloracle.conformance.runs.naming import named
from hloracle.core.abi import CACHES, Graph
from hloracle.core.child import Report
from hloracle.core.errors import InputError, ToolchainError
from hloracle.foreign.file import read_abi_file
from hloracle.foreign.opening import open_graphs
from hloracle.foreign.reading import read_text
from hloracle.localize.anatomy import anatomy_of
from hloracle.reference.huggingface.anchor_truth import anchor_truth
from hloracle.reference.model.anchors import split
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.oracle.lower import lower
from hloracle.studies.text_faults import faults

# A fault that changes less than this share of what a graph returns is not counted: float32 itself may do as much.
NOTICEABLE = 1e-3
STEPS = 40  # that are compared to see whether a fault changes anything
LENGTHS = (1, 5, 37)


@dataclass(frozen=True)
class Planted:
    """paths: the graphs, one with a fault. expected: the anchors that the changed line computes. consumers: those after them."""

    paths: list[Path]
    expected: tuple[str, ...]
    consumers: tuple[str, ...]
    what: str


def planted(
    abi_path: Path, paths: Sequence[Path], model_path: Path, seed: int, folder: Path, report: Report
) -> Planted:
    """A fault in one of the graphs that changes what they return. Raises InputError where none is found."""
    model, abi = open_checkpoint(model_path), read_abi_file(abi_path)
    texts = [read_text(path) for path in paths]
    own = [_written(folder, path, text) for path, text in zip(paths, texts, strict=True)]
    right = open_graphs(own, abi, model)
    which = seed % len(paths)
    report("where each line's values go")
    places, reads = _places(right[which], model, report)
    answers = _answers(right, model)
    for fault in faults(texts[which], seed, last=len(texts[which].split("\n"))):
        expected = places.get(fault.line, ())
        if not expected:
            continue
        wrong = [
            _written(folder, p, fault.text if i == which else t)
            for i, (p, t) in enumerate(zip(paths, texts, strict=True))
        ]
        try:
            changed = _answers(open_graphs(wrong, abi, model), model)
        except (InputError, ToolchainError):
            continue  # it does not parse, or another type follows
        if not any(_apart(a, b) for a, b in zip(answers, changed, strict=True)):
            continue
        # What is returned of a cache may be computed after the value that is its anchor in the right graph: then it is wrong
        # where all before it is right, and it is not computed from what the line is said to compute.
        cache = _first_cache(answers, changed)
        if cache and split(cache)[0] in {split(a)[0] for a in expected} and cache not in _following(expected, reads):
            expected = (*expected, cache)
        after = tuple(a for a, read in reads.items() if read & set(expected))
        return Planted(wrong, expected, after, f"{paths[which].name} line {fault.line}, {fault.what}")
    raise InputError("has no fault that changes anything", str(paths[which]), "take another seed")


def _written(folder: Path, path: Path, text: str) -> Path:
    file = folder / f"{path.stem}.mlir"
    file.write_text(text)
    return file


def _places(
    graph: Graph, model: Checkpoint, report: Report
) -> tuple[dict[int, tuple[str, ...]], dict[str, frozenset[str]]]:
    """Line -> the anchors that it computes, in order; and what each anchor is computed from.

    A line of an anchor also computes those before it that the graph has as no value of the contract's shape.
    """
    decodes = graph.abi.phase == "decode"
    bucket = 0 if decodes else graph.abi.bucket
    oracle = lower(model.config, graph.abi.phase, "logits", graph.abi.capacity, bucket)
    tokens = np.random.default_rng(5).integers(0, model.config.vocab_size, STEPS).tolist()[: bucket or STEPS]
    length = len(tokens) - 1 if decodes else len(tokens)
    truth = anchor_truth(model, tokens, report, max(length, 1))
    found = named(graph, oracle, model, (truth, length), XlaCpu(), report)
    lines: dict[int, list[str]] = {}
    anatomy, reads = anatomy_of(found, model.config), anatomy_of(oracle, model.config).reads()
    missing = reads.keys() - set(anatomy.anchors)
    for anchor in anatomy.anchors:
        for line in anatomy.lines(anchor):
            lines.setdefault(line, []).extend((anchor, *_inside(anchor, reads, missing)))
    return {line: tuple(dict.fromkeys(names)) for line, names in lines.items()}, reads


def _following(anchors: Collection[str], reads: Mapping[str, Collection[str]]) -> set[str]:
    """All that is computed from these."""
    found = set(anchors)
    while more := {a for a, read in reads.items() if a not in found and not found.isdisjoint(read)}:
        found |= more
    return found


def _inside(anchor: str, reads: Mapping[str, Collection[str]], missing: Collection[str]) -> list[str]:
    """The missing anchors that one is computed from, directly or by way of others that are missing."""
    own = [a for a in reads.get(anchor, ()) if a in missing]
    return [*own, *(more for one in own for more in _inside(one, reads, missing))]


def _answers(graphs: Sequence[Graph], model: Checkpoint) -> list[np.ndarray]:
    """What graphs return for some tokens."""
    session = Session(XlaCpu(), graphs, model.load)
    tokens = np.random.default_rng(6).integers(0, model.config.vocab_size, STEPS).tolist()
    found: list[np.ndarray] = []
    if session.decodes:
        session.reset()
        found += [np.asarray(session.decode_step(t)) for t in tokens[: session.capacity]]
        found += session.caches()
    for length in LENGTHS if session.buckets else ():
        found.append(np.asarray(session.prefill(tokens[: min(length, session.buckets[-1])])))
        found += session.caches()
    return found


def _first_cache(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> str:
    """The first cache of a layer that differs, such as `v_cache.1`; empty where none does."""
    caches = [(a, b) for a, b in zip(one, other, strict=True) if a.ndim == 4]  # k_cache and v_cache in turn
    apart = [(layer, i % 2) for i, (a, b) in enumerate(caches) for layer in range(len(a)) if _apart(a[layer], b[layer])]
    return f"{CACHES[min(apart)[1]]}.{min(apart)[0]}" if apart else ""


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether anything differs by more than float32 explains."""
    scale = float(np.max(np.abs(one), initial=0)) or 1.0
    return not float(np.max(np.abs(one - other), initial=0)) <= NOTICEABLE * scale
