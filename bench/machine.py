"""How fast this machine reads memory: what bounds a decode step, which reads every weight once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

# Larger than any cache.
BYTES = 512 * 1024 * 1024
PASSES = 3


def free_bytes() -> int:
    """What processes may still take without anything being swapped."""
    return int(psutil.virtual_memory().available)


class Reader:
    """An array, and threads that read it."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        # Each thread writes its own part first: on a machine of several nodes it is near then.
        whole = np.empty(BYTES // 4, np.float32)
        self._pool = ThreadPoolExecutor(threads)
        self._parts = np.array_split(whole, threads)
        list(self._pool.map(lambda part: part.fill(1.0), self._parts))
        self._tensor = torch.from_numpy(whole)

    def bandwidth(self) -> float:
        """Bytes per second: the most that the largest of all numbers, and their dot product, were found with."""
        reads = (self._largest, lambda: self._tensor.dot(self._tensor))
        return BYTES * 1000 / min(milliseconds(read) for read in reads for _ in range(PASSES))

    def _largest(self) -> object:
        return list(self._pool.map(np.max, self._parts))


def milliseconds(run: Callable[[], object]) -> float:
    """How long it takes, by the clock."""
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1000
