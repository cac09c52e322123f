"""Reads graphs in the forms in which people have them: text, MLIR bytecode, portable artifacts, jax.export's archives.

Imports jaxlib, which carries MLIR; for a process of its own, because MLIR's parser crashes on what is nested too deep.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.core.errors import InputError
from hloracle.core.given import as_text, read_bytes
from hloracle.core.shown import shown

LARGEST = 2**30  # bytes
MOST_MEMORY = 2**30  # bytes that reading bytecode may take, besides 64 for each of its own
MOST_SECONDS = 5  # of processor time that it may take, besides one for each BYTES_A_SECOND
BYTES_A_SECOND = 10**5
BYTECODE = b"ML\xefR"
NAME_IT = "name StableHLO as text, as MLIR bytecode, or as an archive of jax.export"


def read_text(path: Path) -> str:
    """A module's text, whatever form it has. Raises InputError that names the file."""
    data = read_bytes(path, LARGEST, NAME_IT)
    if data.startswith(BYTECODE):
        return _of_bytecode(data, path)
    if _is_archive(data):
        return _of_archive(data, path)
    return as_text(data, path, NAME_IT)


def _is_archive(data: bytes) -> bool:
    """Whether these are bytes of jax.export, a flatbuffer: MLIR's bytecode stands in it, which no text has."""
    return BYTECODE in data


def _of_bytecode(data: bytes, path: Path) -> str:
    with jax_mlir.make_ir_context() as context:
        try:
            with _bounded(MOST_MEMORY + 64 * len(data), MOST_SECONDS + len(data) // BYTES_A_SECOND):
                portable = b"StableHLO_v" in data[:64]
                module = _of_portable(context, data) if portable else ir.Module.parse(data)
        except MemoryError:
            what = f"says that it holds more than {len(data):,} bytes can, or is damaged"
            raise InputError(what, path, NAME_IT) from None
        except (ir.MLIRError, ValueError) as error:
            raise InputError(f"cannot be read as MLIR bytecode ({shown(str(error))})", path, NAME_IT) from None
        return printed(module)


@contextlib.contextmanager
def _bounded(memory: int, seconds: float) -> Iterator[None]:
    """While this holds, this process gets no more than so many bytes, and seconds of processor time, besides what it has had.

    MLIR makes room for as many values as bytecode says that it has, and of damaged bytecode it may read on and on. Where there is
    no room or no time left the process ends, which is one of its own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = [psutil.Process().memory_info().vms + memory, *(n for n in (soft, hard) if n != resource.RLIM_INFINITY)]
    with contextlib.suppress(OSError, ValueError):  # of a system that has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    # A timer and no RLIMIT_CPU, which counts from the start of the process, and in ticks: after 300 s of processor time by the
    # clock it was seen 8 s behind (Linux 6.18), so that no limit can be said from what the process has had.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _of_portable(context: ir.Context, data: bytes) -> ir.Module:
    """Raises ValueError with MLIR's own words, which it would else print on stderr."""
    said: list[str] = []

    def keep(diagnostic: ir.Diagnostic) -> bool:
        with contextlib.suppress(Exception):  # words that are no UTF-8
            said.append(diagnostic.message)
        return True

    handler: Any = context.attach_diagnostic_handler(keep)
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except ValueError as error:
        raise ValueError("; ".join([*said, *map(str, error.args[: not said])])) from None
    finally:
        handler.detach()


def _of_archive(data: bytes, path: Path) -> str:
    from jax import export

    try:
        found = export.deserialize(bytearray(data))
        devices, module = found.nr_devices, bytes(found.mlir_module_serialized)
    except Exception:  # whatever flatbuffers and JAX raise of what is none, in words for nobody
        raise InputError("is no archive of jax.export, or is damaged", path, NAME_IT) from None
    if devices != 1:
        raise InputError(f"is for {devices} devices", path, "export it for one")
    return _of_bytecode(module, path)


def printed(module: ir.Module) -> str:
    """A module as text, with its locations in place."""
    text = module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False, use_local_scope=True)
    return str(text)
