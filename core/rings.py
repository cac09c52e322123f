"""Which position each slot of a ring holds: position p is in slot p mod W, so that W slots hold the last W positions."""

from __future__ import annotations

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
