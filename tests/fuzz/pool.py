"""Worker processes that try inputs, and a watchdog over them: one that hangs, or takes all memory, is ended and told of.

Workers are forked from this process, which has imported all that they need and has started no thread, so that a new one is
there in an instant. Each tries some hundred inputs and ends, so that what one input leaves in a process does not last.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import multiprocessing.connection
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fuzz.attempt import Stage
from fuzz.one import Result

SECONDS = 20.0  # after which an input counts as one that hangs
ADDRESSES = 12 * 2**30  # bytes of a worker's address space; of that, libraries take some
INPUTS = 1000  # of a worker's life
WHERE = "where.txt"  # a worker's traceback, where it hangs or crashes
FORK = multiprocessing.get_context("fork")

Work = Callable[[Stage, Any], Result]


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    folder: Path
    job: Any = None
    since: float = 0.0
    left: int = field(default=INPUTS)


def run_jobs(jobs: Iterator[Any], work: Work, workers: int, seconds: float = SECONDS) -> Iterator[tuple[Any, Result]]:
    """Each job with what came of it, in the order in which they end.

    Args:
      jobs: are asked for one by one, so that they may end when time is up.
      work: is called in a worker.
      seconds: that a job may take.
    """
    running: list[_Worker] = []
    jobs = iter(jobs)
    more = True
    try:
        while True:
            while more and len(running) < workers:
                running.append(_start(work, seconds))
                more = _give(running[-1], jobs)
            running = [w for w in running if w.job is not None or _stop(w)]
            if not running:
                return
            until = min(w.since for w in running) + seconds
            ready = multiprocessing.connection.wait([w.pipe for w in running], max(0.0, until - time.monotonic()))
            for worker in [w for w in running if w.pipe in ready or time.monotonic() > w.since + seconds]:
                job, result = worker.job, _answer(worker, seconds, worker.pipe in ready)
                worker.job = None
                if more and worker.process.is_alive() and worker.left > 0:
                    more = _give(worker, jobs)
                if worker.job is None:
                    running.remove(worker)
                    _stop(worker)
                yield job, result
    finally:
        for worker in running:
            _stop(worker)


def in_a_child(function: Callable[[], Any]) -> Any:
    """What a function returns that may leave threads and modules behind. Raises RuntimeError where its process dies."""
    ours, theirs = FORK.Pipe()

    def child() -> None:
        theirs.send(function())

    process = FORK.Process(target=child)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{function} ended with {process.exitcode}") from None
    finally:
        ours.close()
        process.join()


def _start(work: Work, seconds: float) -> _Worker:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_memory_folder()))
    gc.freeze()  # a collection in a worker would else write to, and so copy, all that it shares with this process
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_serve, args=(theirs, ours, work, folder, seconds))
    process.start()
    theirs.close()
    return _Worker(process, ours, folder)


def _memory_folder() -> str | None:
    """Where files are in memory, if there is such a folder: thousands of small ones are written and removed."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _serve(pipe: Connection, other: Connection, work: Work, folder: Path, seconds: float) -> None:
    other.close()
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stage = Stage(folder)
    with (folder / WHERE).open("w") as where:
        faulthandler.enable(where)
        while True:
            try:
                job = pipe.recv()
            except EOFError:
                break
            faulthandler.dump_traceback_later(0.9 * seconds, file=where)
            result = work(stage, job)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(result)
    os._exit(0)  # without what threads of libraries would wait for


def _give(worker: _Worker, jobs: Iterator[Any]) -> bool:
    """Give a worker the next job; False where there is none."""
    job = next(jobs, None)
    if job is None:
        return False
    worker.job, worker.since, worker.left = job, time.monotonic(), worker.left - 1
    worker.pipe.send(job)
    return True


def _answer(worker: _Worker, seconds: float, ready: bool) -> Result:
    took = time.monotonic() - worker.since
    if not ready:
        _end(worker)
        return Result(None, took, (f"does not end within {seconds:.0f} s",), _where(worker))
    try:
        result: Result = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(10)
        code = worker.process.exitcode
        words = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        _end(worker)
        return Result(None, took, (f"ends the process ({words})",), _where(worker))
    return result


def _where(worker: _Worker) -> str:
    """Where a worker was when it hung or crashed."""
    try:
        return (worker.folder / WHERE).read_text("utf-8", "replace")[-5000:]
    except OSError:
        return ""


def _stop(worker: _Worker) -> bool:
    worker.pipe.close()
    worker.process.join(1)
    _end(worker)
    shutil.rmtree(worker.folder, ignore_errors=True)
    return False


def _end(worker: _Worker) -> None:
    """Kill a worker with all that it has started."""
    if worker.process.pid:
        try:
            os.killpg(worker.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            worker.process.kill()
    worker.process.join(10)
