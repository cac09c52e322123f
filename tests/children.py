"""Functions for child processes. Each takes `report` first, as `run_in_child` calls it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.backends.custom_calls import Target, register
from hloracle.backends.xla import XlaCpu
from hloracle.core.abi import Abi, Tensor
from hloracle.core.child import end_with_parent, run_in_child
from hloracle.core.errors import InputError, ToolchainError
from hloracle.emitters.builder import Builder, TensorType

# What JAX would read, were it imported here.
JAX_PLATFORMS = os.environ.get("JAX_PLATFORMS", "")


def jax_platforms(report: Any) -> str:
    return JAX_PLATFORMS


def start_one_that_waits(note: str) -> None:
    """A child in this process's group."""
    process = multiprocessing.get_context("spawn").Process(target=_wait, args=(note,))
    process.start()
    process.join()


def _wait(note: str) -> None:
    end_with_parent()
    Path(note).write_text(str(os.getpid()))
    time.sleep(60)


def add(report: Any, a: int, b: int) -> int:
    return a + b


def process_id(report: Any) -> int:
    return os.getpid()


def big(report: Any, size: int) -> bytes:
    return b"x" * size


def reports(report: Any, count: int) -> str:
    for number in range(count):
        report(f"step {number}")
    return "done"


def bad_input(report: Any) -> None:
    raise InputError("weight is missing", "model.safetensors", "download it again")


def bad_toolchain(report: Any) -> None:
    raise ToolchainError("compile", "no such op", "/kept/graph.mlir")


def bug(report: Any) -> None:
    raise ValueError("one line\nand another")


def out_of_memory(report: Any) -> None:
    raise MemoryError


def no_segment(report: Any) -> None:
    raise ImportError("libjax_common.so: failed to map segment from shared object")


def no_fork(report: Any) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def leave(report: Any, status: int) -> None:
    sys.exit(status)


def leave_at_once(report: Any, status: int) -> None:
    os._exit(status)


def kill_itself(report: Any, number: int) -> None:
    # A core file of a test's crash is of no use.
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
    time.sleep(30)


def not_picklable(report: Any) -> Any:
    return threading.Lock()


def sleep_beside_a_grandchild(report: Any, note: Path, then: str) -> None:
    grandchild = subprocess.Popen(["sleep", "60"])
    note.write_text(f"{os.getpid()} {grandchild.pid}")
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "fail":
        raise ValueError("after starting a grandchild")
    time.sleep(60)


def spoil_a_message(report: Any) -> None:
    """Dies in the middle of sending."""
    threading.Timer(0.2, os._exit, (5,)).start()
    report("x" * 500_000_000)


def main_and(report: Any, text: str) -> tuple[str, str]:
    """The file that the main module was imported from, empty where it was not, and the text."""
    return str(getattr(sys.modules["__main__"], "__file__", "")), text


class DiesWhenRead:
    """An argument that ends the child as it is read, with much more to come."""

    def __init__(self) -> None:
        self.rest = "x" * 5_000_000

    def __setstate__(self, state: Any) -> None:
        os._exit(6)


def run_one_that_sleeps(report: Any, note: Path) -> None:
    run_in_child(sleep_and_tell, note, timeout=60)


def sleep_and_tell(report: Any, note: Path) -> None:
    note.write_text(str(os.getpid()))
    time.sleep(60)


def product(report: Any, target: Target) -> list[list[float]]:
    """[2, 3] times the transpose of [5, 3] on XLA, by a custom_call."""
    register([target])
    b = Builder()
    x, w = (b.argument(TensorType((n, 3), "f32")) for n in (2, 5))
    tensors = tuple(Tensor("weight", name, v.shape, "f32") for name, v in (("x", x), ("w", w)))
    abi = Abi("product", tensors, (Tensor("tap", "product", (2, 5), "f32"),))
    graph = b.graph("product", abi, [b.custom_call(target.name, (x, w), TensorType((2, 5), "f32"))])
    backend = XlaCpu()
    values = [backend.upload(np.arange(n * 3, dtype=np.float32).reshape(n, 3)) for n in (2, 5)]
    (y,) = backend.load(graph)(values)
    found: list[list[float]] = backend.download(y).tolist()
    return found


def write_and_leave(report: Any, words: str, signal: int) -> None:
    os.write(2, words.encode())
    if signal:
        os.kill(os.getpid(), signal)
