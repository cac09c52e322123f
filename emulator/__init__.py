"""A CUDA driver that interprets PTX on the processor, so that what is compiled for CUDA can be run where there is no GPU.

IREE's own CUDA runtime drives it, and what runs is the very code that a GPU would be given. It checks each access to memory,
and says nothing about speed. `driver.cpp` says what it supports; `library()` builds it, once for each processor and source.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hloracle.core.cache import build_directory, cache_root, digest
from hloracle.core.environment import host_cpu
from hloracle.core.errors import InputError

SOURCES = ("driver.cpp", "decoder.h", "reader.h", "handlers.h", "machine.h")
# The name that IREE's runtime opens: the dynamic linker takes a library that is loaded already and calls itself so.
NAME = "libcuda.so"
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=c++17", "-pthread", f"-Wl,-soname,{NAME}")
BUILD_SECONDS = 600
VERSION = 2  # of what the cache holds


def library() -> Path:
    """The built library. Raises InputError that names what is missing where it cannot be built."""
    folder = Path(__file__).parent
    where, fix = "--device emulated", "install a C++ compiler that is called c++, or say --device cpu"
    compiler = shutil.which("c++")
    if compiler is None:
        raise InputError("its driver is built with c++, which is not installed", where, fix)
    key = digest(*((folder / name).read_bytes() for name in SOURCES), *FLAGS, host_cpu(), compiler)

    def build(made: Path) -> None:
        try:
            done = subprocess.run(
                [compiler, *FLAGS, str(folder / "driver.cpp"), "-o", str(made / NAME)], capture_output=True, text=True,
                timeout=BUILD_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"its driver cannot be built ({error})", where, fix) from None
        if done.returncode:
            words = next((line for line in done.stderr.splitlines() if "error" in line), "c++ failed without a word")
            raise InputError(f"its driver cannot be built ({words})", where, fix)

    return build_directory(cache_root() / "emulator" / f"{key[:32]}-{VERSION}", build) / NAME
