"""Many short runs in a few processes that stay, because starting one takes as long as such a run does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from hloracle.core.cache import noting, tell_of_damage
from hloracle.core.child import (
    ChildDied,
    Report,
    alone,
    end_with_parent,
    jax_on_the_processor,
    kill_descendants,
    run_in_child,
)
from hloracle.core.errors import InputError, ToolchainError

Item = TypeVar("Item", bound=Hashable)
Answer = TypeVar("Answer")


def run_each(
    function: Callable[[Report, Item], Answer], items: Sequence[Item], jobs: int, timeout: float, report: Report,
    done: Callable[[Item, Answer | str, float], None],
) -> None:  # fmt: skip
    """`function(report, item)` for every item, `jobs` at a time.

    Args:
      function: importable by its name; what it starts itself it runs under `alone()`. items: all different.
      timeout: seconds that an item may take, on average; one that is run again may take no more.
      done: is called here as each one ends, with the answer, or why there is none, and the seconds that it took.
    """
    left = list(items)

    def finish(item: Item, answer: Answer | str, seconds: float) -> None:
        left.remove(item)
        done(item, answer, seconds)

    # A worker that dies takes the others' work with it: what is left then gets a process each, and only what dies again
    # has no answer.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=_begin)
    workers = pool._processes
    try:
        futures = {pool.submit(_timed, function, item, timeout): item for item in items}
        for future in as_completed(futures, timeout=timeout * -(-len(items) // jobs)):
            answer, seconds, damaged = future.result()
            for name in damaged:
                tell_of_damage(name)
            finish(futures[future], answer, seconds)
    except (BrokenProcessPool, TimeoutError):
        kill_descendants(workers)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    # Waited for: where workers are left to themselves, Python may trip over their pipes when it ends.
    pool.shutdown()
    for item in list(left):
        finish(item, *_answer(function, item, timeout, report))


def _begin() -> None:
    """In a worker: a single run beside it comes first, because on that one the whole waits longest."""
    jax_on_the_processor()
    os.nice(10)
    end_with_parent()


def _timed(
    function: Callable[[Report, Item], Answer], item: Item, timeout: float
) -> tuple[Answer | str, float, list[str]]:
    """In a worker: the answer, or why there is none; the seconds it took; and the entries that it found damaged."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    with alone(), noting() as damaged:
        return *_answer(function, item, timeout), damaged


def _answer(
    function: Callable[[Report, Item], Answer], item: Item, timeout: float, report: Report | None = None
) -> tuple[Answer | str, float]:
    started = time.monotonic()
    try:
        answer: Answer | str = run_in_child(function, item, timeout=timeout, report=report).value
    except (ChildDied, ToolchainError, InputError) as error:
        answer = str(error)
    return answer, time.monotonic() - started
