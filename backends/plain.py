"""Compilers that are told to be quick, where it is not they that are tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from hloracle.backends import iree

# Where XLA's optimizer is not what is tried: it takes most of the time that XLA takes.
NO_OPTIMIZER = "--xla_backend_optimization_level=0"
# Nor its code generator for fusions: more than half of the time left.
PLAIN_XLA = (
    NO_OPTIMIZER, "--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1",
)  # fmt: skip
# The same module but for the processor and for what is computed when it is loaded instead; in half of the time. In one
# thread, as many are compiled side by side.
PLAIN_IREE = ("--iree-opt-const-eval=false", "--verify=false", "--mlir-disable-threading")


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """A variable of this process's environment, and of those that it starts meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def xla_flags(*flags: str) -> AbstractContextManager[None]:
    """Have XLA compile with these flags too."""
    return environment("XLA_FLAGS", " ".join(filter(None, [os.environ.get("XLA_FLAGS"), *flags])))


@contextmanager
def plain_compilers() -> Iterator[None]:
    """Have XLA and IREE compile quickly, where it is not they that are tried: the real model tries what is left out, and of
    other families' mechanisms random models do.

    XLA must not have compiled anything in this process before.
    """
    flags = tuple(f.replace("target-cpu=host", "target-cpu=generic") for f in iree.CPU_FLAGS)
    flags = (*flags, *PLAIN_IREE)
    device_flags = (*iree.DEVICE_FLAGS, *PLAIN_IREE)
    before = iree.CPU_FLAGS, iree.DEVICE_FLAGS
    iree.CPU_FLAGS, iree.DEVICE_FLAGS = flags, device_flags
    try:
        with xla_flags(*PLAIN_XLA):
            yield
    finally:
        iree.CPU_FLAGS, iree.DEVICE_FLAGS = before
