"""Keys and values in 8 bits: integers from -127 to 127, and for each slot of each head what they are multiplied with."""

from __future__ import annotations

import numpy as np

MOST = 127  # and as many below 0


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x float32 [..., D] -> int8 [..., D] and their scales float32 [...]: the largest of D is 127 times that.

    Where that is no number, or infinite, so is the scale.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.max(np.abs(x), axis=-1, initial=0) / np.float32(MOST)
        divisor = np.where(scale > 0, scale, np.float32(1))[..., None]  # zeros remain zeros
        steps = np.clip(np.rint(x / divisor), -MOST, MOST)
    return np.where(np.isnan(steps), 0, steps).astype(np.int8), scale.astype(np.float32)


def dequantized(steps: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """int8 [..., D] and scales [...] -> float32 [..., D]. NaN where a scale is no number, or infinite."""
    with np.errstate(invalid="ignore"):
        return np.asarray(steps.astype(np.float32) * scale[..., None])


def rounded(x: np.ndarray) -> np.ndarray:
    """What caches in int8 make of numbers: float32 [..., D] again."""
    return dequantized(*quantized(x))
