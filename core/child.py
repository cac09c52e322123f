"""Runs a function in a process of its own, so that its memory goes back and its crash becomes a result."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import pickletools
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import psutil

from hloracle.core.cache import tell_of_damage, told_of_damage
from hloracle.core.errors import InputError, ToolchainError

Report = Callable[[str], None]
Answer = TypeVar("Answer")
UNGUARDED = "runs again, or fails, when another process imports it for a backend that is defined there"
GUARD = 'put what it runs under `if __name__ == "__main__":`, or the backend into a module'
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
# Signals that a process does not give itself by a mistake.
KILLED = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PROCESSES = "end other programs, or allow more processes, open files or memory (ulimit -a)"
PR_SET_PDEATHSIG = 1  # of prctl
# As the loader says it of a library.
NO_MEMORY = ("failed to map segment from shared object", "cannot allocate memory")
_STARTING = threading.Lock()
_alone = False  # whether this process is itself such a child, of which everything runs inside


@dataclass(frozen=True)
class ChildResult:
    """What the function returned, and what it took: wall seconds, and peak resident bytes where a process did only this."""

    value: Any
    seconds: float
    peak_bytes: int | None


class ChildDied(Exception):
    """The process ended without an answer: it crashed, was killed, or ran out of time.

    cause: `memory` where it said itself that it had not enough, `killed` where something else ended it, as
      Linux does where memory is short, `crash` where it said nothing.
    """

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message, cause)
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])


class TimedOut(ChildDied):
    """It did not end in the time that it was given."""


def run_in_child(
    function: Callable[..., Any], *arguments: Any, timeout: float, report: Report | None = None
) -> ChildResult:
    """Call `function(report, *arguments)` in a fresh process; `report` takes status lines to the caller.

    Function and arguments must be importable and picklable. InputError and ToolchainError pass through;
    any other exception is a bug of ours and arrives as ChildDied with its last line.
    """
    if _alone:
        started = time.monotonic()
        try:
            value = function(report or (lambda line: None), *arguments)
        except (InputError, ToolchainError):
            raise
        except Exception as error:
            if is_memory(error):
                raise ChildDied(f"{function.__name__} ran out of memory", "memory") from error
            raise ChildDied(_failure(function, error)) from error
        return ChildResult(value, time.monotonic() - started, None)
    call = ForkingPickler.dumps((function, arguments))
    started = time.monotonic()
    needs_main = _names_main(bytes(call))
    process, ours = _started(needs_main)
    try:
        # Not through Process: it would wait forever for a child that dies before it has read large arguments.
        # Let go as soon as it is sent: Python 3.12.1 crashes at its exit on a view of a buffer that is left in a traceback.
        with call, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            ours.send_bytes(call)
        while True:
            left = started + timeout - time.monotonic()
            if left <= 0 or not ours.poll(left):
                raise TimedOut(f"{function.__name__} took more than {timeout:.0f} s and was stopped")
            try:
                kind, payload = ours.recv()
            except (EOFError, OSError):  # OSError: it ended in the middle of a message
                process.join(10)
                # Python itself ends with a status: a script that runs again in each child, for one.
                ended = process.exitcode is None or process.exitcode < 0
                if needs_main and not ended:
                    raise InputError(
                        UNGUARDED, getattr(sys.modules["__main__"], "__file__", "the script"), GUARD
                    ) from None
                raise _died(function, process.exitcode) from None
            if kind == "report":
                if report:
                    report(payload)
            elif kind == "damaged":
                tell_of_damage(payload)
            elif kind == "value":
                process.join(10)
                value, peak_bytes = payload
                return ChildResult(value, time.monotonic() - started, peak_bytes)
            elif kind == "error":
                raise payload
            else:
                raise ChildDied(payload, "memory" if kind == "memory" else "")
    finally:
        _kill_group(process)
        process.join()
        ours.close()


def _started(needs_main: bool) -> tuple[BaseProcess, Connection]:
    """A child that waits for what it is to call, and our end of its pipe. Raises InputError where there can be none."""
    context = multiprocessing.get_context("spawn")
    try:
        ours, theirs = context.Pipe()
        with theirs:
            process = context.Process(target=_child, args=(theirs,), daemon=False)
            try:
                _start(process, needs_main)
            except BaseException:
                ours.close()
                raise
        return process, ours
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be started ({why})", "a process of hloracle's", PROCESSES) from error


def _died(function: Callable[..., Any], code: int | None) -> ChildDied:
    """What is said of a process that ended without an answer, by the code that it left."""
    cause = "killed" if code is not None and -code in KILLED else "crash" if code is None or code < 0 else ""
    return ChildDied(f"{function.__name__} died ({exit_words(code)})", cause)


def _names_main(call: bytes) -> bool:
    """Whether something in it is to be imported from the main module, and not merely a text that speaks of it."""
    return b"__main__" in call and any(argument == "__main__" for _, argument, _ in pickletools.genops(call))


def _child(pipe: Connection) -> None:
    with _stderr_kept():
        _serve(pipe)


@contextlib.contextmanager
def _stderr_kept() -> Iterator[None]:
    """What this process writes to stderr appears there when this ends.

    Where a library ends the process, as MLIR's parser may, the words that it leaves go with it: its caller says in one line
    what became of it.
    """
    with tempfile.TemporaryFile() as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os.dup2(stderr, 2)
            kept.seek(0)
            with contextlib.suppress(OSError):
                while piece := kept.read(2**16):
                    os.write(2, piece)


def _serve(pipe: Connection) -> None:
    jax_on_the_processor()
    os.setpgrp()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    try:
        function, arguments = pipe.recv()
    except MemoryError:
        pipe.send(("memory", "what a child process was given does not fit into memory"))
        return
    except Exception as error:
        what = f"cannot be read in another process ({type(error).__name__}: {error})"
        pipe.send(("error", InputError(what, "a backend or a target", "define it in a module that can be imported")))
        return
    try:
        with told_of_damage(lambda name: pipe.send(("damaged", name))):
            value = function(lambda line: pipe.send(("report", line)), *arguments)
        pipe.send(("value", (value, peak_bytes())))
    except (InputError, ToolchainError) as error:
        pipe.send(("error", error))
    except Exception as error:
        if is_memory(error):
            pipe.send(("memory", f"{function.__name__} ran out of memory"))
        else:
            pipe.send(("died", _failure(function, error)))


def jax_on_the_processor() -> None:
    """In a process that has not imported JAX yet: a JAX that finds a GPU takes most of its memory as soon as it is used.

    The oracle's XLA is the processor's. What the environment says comes first.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # As importing jax sets it: jaxlib alone would tell of its clients on stderr.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def end_with_parent() -> None:
    """In a process of multiprocessing's: end, with all that it has started, as soon as the one that started it has ended.

    Killed, that one cannot do it; and of a worker that reads from a pipe both ends are its own, so that it would wait on.
    """
    parent = multiprocessing.parent_process()
    assert parent
    tell_of_parent(signal.SIGCONT)  # it may have been killed while it held this one still, to kill it

    def wait() -> None:
        parent.join()
        kill_descendants()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def tell_of_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the one that started it has ended. Linux alone does that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def is_memory(error: Exception) -> bool:
    """Whether there was not enough memory: for Python, for the system, or for the loader to load a library."""
    if isinstance(error, ImportError | OSError) and any(words in str(error) for words in NO_MEMORY):
        return True
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def _failure(function: Callable[..., Any], error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    line = f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})"
    return f"{function.__name__} failed: {' '.join(line.split())}"


def peak_bytes(who: int = resource.RUSAGE_SELF) -> int:
    """The most that this process has had resident; with RUSAGE_CHILDREN, any that it started and that has ended."""
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Run in this process what would have a child of its own: for a child that is isolated as a whole already.

    Starting a process and importing JAX and IREE takes seconds, which many short runs cannot spend again and again.
    """
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def kill_descendants(only: Collection[int] | None = None) -> None:
    """Kill every process that this one started, or those of these ids, and what those started.

    Only multiprocessing's own resource tracker is left: it ends with this process, and is missed before.
    """
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    left = [
        process for process in psutil.Process().children()
        if process.pid != tracker and (only is None or process.pid in only)
    ]  # fmt: skip
    while left:
        left += _kill(left.pop())


def _kill(process: psutil.Process) -> list[psutil.Process]:
    """Kill a process; returns its children.

    Held still first: what it starts after its children were listed would outlive it, and nobody would know.
    """
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        until = time.monotonic() + 1
        while process.status() not in _STILL and time.monotonic() < until:  # it may be amid starting one
            time.sleep(0.001)
        children = process.children()
        process.kill()
    return children


def side_by_side(work: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """What each returns, in order. Each is the work of a child; where there are none they come one after the other."""
    if _alone:
        return [one() for one in work]
    with threads(len(work)) as pool:
        return [future.result() for future in [pool.submit(one) for one in work]]


@contextlib.contextmanager
def threads(workers: int | None = None) -> Iterator[ThreadPoolExecutor]:
    """For what threads do beside this with processes of their own, such as a compiler; all is waited for at the end.

    What ends this early, such as Ctrl-C, ends them too: whatever this process has started is killed.
    """
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while any(thread.is_alive() for thread in pool._threads):  # one may be about to start more
                kill_descendants()
                time.sleep(0.05)
            raise


def _start(process: BaseProcess, needs_main: bool) -> None:
    """Start it with SIGINT blocked: until it ignores Ctrl-C, it would answer with a traceback.

    Unless something in it is called, the main module is not imported there: a script that calls us would run again, and
    importing a command line takes time.
    """
    # Started first, because it would leave SIGINT unblocked.
    resource_tracker.ensure_running()
    main = sys.modules["__main__"]
    with _STARTING:
        known = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for name in () if needs_main else known:
                setattr(main, name, None)
            process.start()
        finally:
            for name, value in known.items():
                setattr(main, name, value)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_group(process: BaseProcess) -> None:
    """Kill what is left of a child: itself, and grandchildren: a compiler, which is in its process group, and children
    that it has started as this one was, each in a group of its own.
    """
    alive, group = process.is_alive(), process.pid
    if not group:  # it was never started; 0 would be our own
        return
    # A second Ctrl-C in between would leave one that is held still, and is waited for at the end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if alive:
            kill_descendants([group])
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if alive:  # it has not made its group yet
            process.kill()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_words(code: int | None) -> str:
    """How a process ended, by the code that it left: a signal, or a status."""
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"
