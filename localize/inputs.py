"""Inputs of an anchor's computation that no prompt reaches: large, small, masked at random, with ties."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np

from hloracle.core.abi import Graph, Tensor, cache_of, scale_of
from hloracle.core.dtypes import largest
from hloracle.core.int8 import MOST, quantized
from hloracle.core.tolerances import (
    INT8_SAME_RMS,
    INT8_SAME_STEPS,
    MASKED_BELOW,
    NARROW_SAME_INPUTS,
    NARROW_SAME_RMS,
    SAME_INPUTS,
)
from hloracle.localize.anatomy import Anatomy, Subgraph
from hloracle.localize.situation import JUDGED
from hloracle.reference.huggingface.anchor_truth import visible
from hloracle.reference.model.anchors import CACHES, anchors, split

# Ordinary values; scores of hundreds, whose exponentials overflow; values so small that a norm's epsilon rules.
SCALES = (1.0, 300.0, 1e-3)
LARGE = 1e5  # which bf16 holds, and f16 does not; real models have residual streams of that size


def scales(compute: str) -> tuple[float, ...]:
    """What inputs are multiplied with, for a graph that computes in this."""
    return (*SCALES, LARGE) if compute == "bf16" else SCALES


ROUTERS = ("mlp.gate", "mlp.router")


def read(subgraph: Subgraph, known: Collection[str]) -> set[str]:
    """The anchors that a subgraph is given; a cache's is also given a whole cache, which every layer may write to at once."""
    read = {a.name for a in subgraph.graph.abi.arguments if a.name.removesuffix("+") in known}
    if split(subgraph.anchor)[1] in CACHES:
        read = {name for name in read if not name.endswith("+")}
    return read


def inputs(
    anatomy: Anatomy, weight: Callable[[str], np.ndarray], scale: float
) -> Callable[[str], np.ndarray]:  # fmt: skip
    """Seeded values by an argument's name: the same for both graphs, whatever else they take."""
    arguments = {a.name: a for a in anatomy.graph.abi.arguments}

    def value(name: str) -> np.ndarray:
        layer, part = split(name.removesuffix("+"))
        # Of a ring as after each of its layers: one graph may read what it was given, where another reads what a layer left.
        rng = np.random.default_rng([ord(c) for c in cache_of(part)])
        if name.endswith("+") or name in anatomy.graph.abi.caches:
            abi = anatomy.graph.abi
            of_scales = part in map(scale_of, CACHES)
            cache = cache_of(part) if of_scales else part if layer is None else abi.role(part, layer)
            drawn = rng.normal(0, scale, abi.results[abi.result(cache)].shape).astype(np.float32)
            return quantized(drawn)[of_scales] if abi.kv == "int8" else drawn
        argument = arguments.get(name)
        if argument is not None and argument.role != "weight":
            return _scalar(anatomy, argument, rng)
        # A weight of either graph: they hold them in their own ways.
        if argument is not None or name not in anchors(anatomy.config):
            return weight(name)
        shape = anatomy.shape(name)
        if part == "self_attn.probs":
            return _attended(anatomy, name, rng.dirichlet(np.ones(shape[-1]), shape[:-1]))
        drawn = rng.normal(0, scale, shape).astype(np.float32)
        if (
            anatomy.graph.abi.kv == "int8"
            and scale == SCALES[2]
            and shape[1:-1] == (anatomy.config.num_key_value_heads,)
        ):
            drawn[0, 0] = 0  # a head's key or value whose scale is 0
        if part == "self_attn.scores":
            hidden = rng.random(shape) < 0.3
            hidden[..., 0] = False
            drawn[hidden] = -np.inf
        if part in ROUTERS and scale == SCALES[0]:
            return np.round(drawn)  # experts that are equal
        if name == "lm_head":
            rows = (drawn / scale).reshape(-1, shape[-1])
            return np.stack([_logits(row, scale) for row in rows]).reshape(shape)
        return drawn

    return value


def _attended(anatomy: Anatomy, anchor: str, probs: np.ndarray) -> np.ndarray:
    """[K, T, G, S], 0 where no query looks, as a mask leaves them: a graph may put it on once more."""
    by_query = probs if anatomy.own > 1 else probs.transpose(1, 0, 2, 3)
    layer, _ = split(anchor)
    at = positions(anatomy)
    assert layer is not None
    for query, position in zip(by_query, at, strict=True):
        of = anatomy.key_positions(layer, position if anatomy.own > 1 else at[0])
        seen = visible(anatomy.config, anchor, position)
        query[..., (of < seen.start) | (of >= seen.stop)] = 0
    return np.asarray(probs / probs.sum(axis=-1, keepdims=True), np.float32)


def positions(anatomy: Anatomy) -> list[int]:
    """Of each query: a step and an extend are in the second half, as far as there are slots; the rows of a batch are apart."""
    abi, last = anatomy.graph.abi, anatomy.keys - 1
    if abi.phase == "prefill":
        return list(range(abi.bucket))
    first = anatomy.keys // 2 + 1
    if abi.phase == "decode":
        return [max(first - 3 * row, 0) for row in range(abi.batch)]
    first = min(first, anatomy.keys - (anatomy.queries - 3))
    return [min(first + query, last) for query in range(abi.bucket)]


def _logits(drawn: np.ndarray, scale: float) -> np.ndarray:
    """For the choice of the token: the largest twice; all negative; the largest at the very end."""
    few = np.round(drawn)
    few[[len(few) // 3, len(few) // 2]] = np.max(few)
    if scale == SCALES[1]:
        few -= np.max(few) + 1
    if scale == SCALES[2]:
        few[-1] = few.max() + 1
    return few


def _scalar(anatomy: Anatomy, argument: Tensor, rng: np.random.Generator) -> np.ndarray:
    """Tokens inside the vocabulary; a prompt that does not fill its bucket; a position in the second half.

    A graph that somebody else wrote may do with padding what it likes, so its bucket is filled.
    """
    if argument.role in ("token", "tokens"):
        return rng.integers(0, anatomy.config.vocab_size, argument.shape).astype(np.int32)
    length = anatomy.queries - (0 if anatomy.graph.written else 3)
    at = positions(anatomy)
    if argument.role == "position":
        return np.array(at if argument.shape else at[0], np.int32)
    return np.array({"length": length, "row": JUDGED, "total": at[0] + length}[argument.role], np.int32)


def share_of(anchor: str, got: np.ndarray, expected: np.ndarray, graph: Graph | None = None) -> float:
    """The largest difference as a share of what is allowed: of the largest value in the same row.

    Of what is in bf16 or f16 the root mean square has to be small, too.

    Args:
      graph: whose value it is. What somebody else wrote may round where the oracle does not.
    """
    if anchor == "token":
        return 0.0 if np.array_equal(got, expected) else float("inf")
    if graph and graph.abi.kv == "int8" and split(anchor)[1] in CACHES and expected.shape[-1] > 1:
        return _steps_apart(got, expected)
    compute = graph.abi.compute if graph else "f32"
    exact = compute == "f32" or (got.dtype.itemsize >= 4 and not (graph and graph.written))
    limit = SAME_INPUTS if exact else NARROW_SAME_INPUTS[compute]
    # What is rounded to infinity by one and to the largest number by the other is a rounding apart.
    most = largest(got.dtype) if got.dtype.itemsize < 4 else np.inf
    got, expected = (v.reshape(-1, expected.shape[-1]).astype(np.float64).clip(-most, most) for v in (got, expected))
    finite = np.isfinite(expected)
    scale = np.max(np.where(finite, np.abs(expected), 0), axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = np.abs(got - expected) / (limit * scale)
    share[got == expected] = 0
    usual = 0.0 if exact or (graph and graph.written) else _usual(got, expected) / NARROW_SAME_RMS[compute]
    if split(anchor)[1] == "self_attn.scores":
        top = np.max(np.where(finite, expected, -np.inf), axis=1, keepdims=True)
        share = np.where(np.isneginf(expected), np.where(got <= top - MASKED_BELOW, 0, np.inf), share)
    share[np.isnan(share)] = np.inf
    return max(float(np.max(share)), usual)


def _steps_apart(got: np.ndarray, expected: np.ndarray) -> float:
    """The same of keys or values in int8, as integers or as what these stand for: in steps, of each slot and head. Scales are not
    meant, which are as exact as all else.
    """
    got, rows = (v.reshape(-1, expected.shape[-1]).astype(np.float64) for v in (got, expected))
    step = np.ones((len(rows), 1)) if expected.dtype == np.int8 else np.max(np.abs(rows), axis=1, keepdims=True) / MOST
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.where(got == rows, 0, np.abs(got - rows) / step)
        off[np.isnan(off)] = np.inf
        usual = np.sqrt(np.mean(np.square(off), axis=1))
    near = 1 + SAME_INPUTS * MOST  # for the roundings of a scale
    return max(float(np.max(off)) / (INT8_SAME_STEPS * near), float(np.max(usual)) / (INT8_SAME_RMS * near))


def _usual(got: np.ndarray, expected: np.ndarray) -> float:
    """The root mean square of a difference, relative to that of the row's values; of all rows together."""
    finite = np.isfinite(expected) & np.isfinite(got)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.sum(np.square(got - expected, where=finite, out=np.zeros_like(got)), axis=1)
        scale = np.sum(np.square(expected, where=finite, out=np.zeros_like(got)), axis=1)
        return math.sqrt(float(np.mean(np.where(off == 0, 0, off / scale))))
