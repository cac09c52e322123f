"""Keys and values of a row by position, and as a graph keeps them: in caches, in rings, or in int8 with scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloracle.core import int8, rings
from hloracle.core.abi import Abi


def by_position(abi: Abi, kept: Sequence[np.ndarray], filled: int) -> tuple[np.ndarray, ...]:
    """k_cache and v_cache [L, K, S, D] of one row of what a graph keeps of it: caches, rings, or both. NaN where there is no slot.

    kept: [layers, K, S, D], or with W slots, in the order of `Abi.caches`; scales [layers, K, S]. What is in int8 comes as float32.
    """
    if abi.kv == "int8":
        k_cache, v_cache, k_scale, v_scale = kept
        return int8.dequantized(k_cache, k_scale), int8.dequantized(v_cache, v_scale)
    if not abi.windowed:
        return tuple(kept)
    *caches, k_ring, v_ring = kept
    found = []
    for i, ring in enumerate((k_ring, v_ring)):
        others = len(caches[i]) if caches else 0
        whole = np.full((len(ring) + others, ring.shape[1], abi.capacity, ring.shape[3]), np.nan, ring.dtype)
        mine = np.isin(np.arange(len(whole)), abi.windowed)
        if caches:
            whole[~mine] = caches[i]
        for layer, slots in zip(abi.windowed, ring, strict=True):
            whole[layer][:, rings.positions(abi.ring, filled)] = slots
        found.append(whole)
    return tuple(found)


def as_kept(abi: Abi, caches: Sequence[np.ndarray], filled: int = 0) -> tuple[np.ndarray, ...]:
    """The other way: caches [L, K, S, D], of a batch [L, B, K, S, D], as a graph keeps them."""
    if abi.kv == "int8":
        (k_cache, k_scale), (v_cache, v_scale) = map(int8.quantized, caches)
        return k_cache, v_cache, k_scale, v_scale
    if not abi.windowed:
        return tuple(caches)
    others = np.delete(np.arange(len(caches[0])), abi.windowed)
    windowed = tuple(c[list(abi.windowed)][..., rings.positions(abi.ring, filled), :] for c in caches)
    return (*(c[others] for c in caches if len(others)), *windowed)


def bits(abi: Abi, kept: Sequence[np.ndarray], filled: int) -> tuple[np.ndarray, ...]:
    """The same bit for bit: uint8 [L, K, S, bytes]. Of what is in int8 the integers and their scale: other ones may be the same numbers."""
    if abi.kv == "int8":
        k_cache, v_cache, k_scale, v_scale = map(np.ascontiguousarray, kept)
        both = ((k_cache, k_scale[..., None]), (v_cache, v_scale[..., None]))
        return tuple(np.concatenate([part.view(np.uint8) for part in parts], axis=-1) for parts in both)
    return tuple(np.ascontiguousarray(cache).view(np.uint8) for cache in by_position(abi, kept, filled))
