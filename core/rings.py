"""Which position each slot of a ring holds: position p is in slot p mod W, so that W slots hold the last W positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloracle.core.abi import Abi


def positions(slots: int, filled: int) -> np.ndarray:
    """The position that each slot is of, where so many are filled: int [W]. Of one that is not filled yet, the first it will hold."""
    slot = np.arange(slots)
    last = filled - 1
    position = last - (last - slot) % slots
    return np.where(position < 0, slot, position)


def held(abi: Abi, layers: int, filled: int) -> np.ndarray:
    """Which positions there are slots of, where so many are filled: bool [L, S]. All but what a ring has no more, or not yet."""
    found = np.ones((layers, abi.capacity), np.bool_)
    if abi.windowed:
        found[list(abi.windowed)] = np.isin(np.arange(abi.capacity), positions(abi.ring, filled))
    return found


def by_position(abi: Abi, kept: Sequence[np.ndarray], filled: int) -> tuple[np.ndarray, ...]:
    """k_cache and v_cache [L, K, S, D] of one row of what a graph keeps of it: caches, rings, or both. NaN where there is no slot.

    kept: [layers, K, S, D], or with W slots, in the order of `Abi.caches`.
    """
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
            whole[layer][:, positions(abi.ring, filled)] = slots
        found.append(whole)
    return tuple(found)


def as_kept(abi: Abi, caches: Sequence[np.ndarray], filled: int = 0) -> tuple[np.ndarray, ...]:
    """The other way: caches [L, K, S, D], of a batch [L, B, K, S, D], as a graph keeps them."""
    if not abi.windowed:
        return tuple(caches)
    others = np.delete(np.arange(len(caches[0])), abi.windowed)
    rings = tuple(c[list(abi.windowed)][..., positions(abi.ring, filled), :] for c in caches)
    return (*(c[others] for c in caches if len(others)), *rings)


def key_positions(phase: str, slots: int, tokens: int, first: int, ring: bool) -> np.ndarray:
    """The position that each key is of which queries from position `first` on may attend to: int [keys]. -1 where a ring holds none.

    Args:
      slots: of the layer's cache or ring. tokens: T of a prompt's graph.
    """
    if phase == "prefill":
        return np.arange(tokens)
    if not ring:
        return np.arange(slots)
    filled = first + 1 if phase == "decode" else first
    found = positions(slots, filled)
    found = np.where(found < filled, found, -1)
    return found if phase == "decode" else np.append(found, first + np.arange(tokens))
