"""What a run depended on and what it used: versions, machine, memory over time."""

from __future__ import annotations

import datetime
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from hloracle.core.cache import digest
from hloracle.core.revision import revision

# The packages that decide what a configuration answers, besides its graphs and weights.
OUTCOME_PACKAGES = ("iree-base-compiler", "iree-base-runtime", "jax", "jaxlib", "numpy")
PACKAGES = (*OUTCOME_PACKAGES, "safetensors", "torch", "transformers")


@cache
def installed(package: str) -> str:
    """The version of a package; finding it out takes as long as loading a small module."""
    return metadata.version(package)


def versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Package -> installed version. Raises PackageNotFoundError for one that is not installed."""
    return {name: installed(name) for name in names}


@cache
def tried() -> dict[str, str]:
    """The version of each package that hloracle's own sessions and CI install, from constraints.txt."""
    lines = Path(__file__).with_name("constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def untried(packages: dict[str, str]) -> list[dict[str, str]]:
    """The packages of a run whose versions are others than those that were tried: `package`, `version`, `tried`.

    What stands behind a `+`, such as `cpu` of torch, says how a version was built and not which one it is.
    """
    return [
        {"package": name, "version": version, "tried": tried()[name]}
        for name, version in packages.items()
        if version.partition("+")[0] != tried()[name]
    ]


def untried_line(untried: Sequence[Mapping[str, Any]]) -> str:
    """What was not tried, in one line; empty where there is nothing. See `untried`."""
    found = [f"{row['package']} {row['version']} ({row['tried']})" for row in untried]
    return f"ran with versions other than those tried (in parentheses): {', '.join(found)}" if found else ""


def threads_available() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """The record's `environment`."""
    return {
        "hloracle": metadata.version("hloracle"),
        "commit": revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": threads_available(),
        "memory_bytes": psutil.virtual_memory().total,
        "packages": versions(),
        "untried": untried(versions()),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def cpu_name() -> str:
    """The processor's model as Linux calls it, or what Python knows of it elsewhere.

    It is for a reader: `host_cpu` tells instruction sets apart.
    """
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def host_cpu() -> str:
    """Identifies the instruction set that `host` compiles for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "cpu family", "model\t", "flags", "Features", "CPU part")
    return digest("\n".join(sorted({line for line in lines if line.startswith(wanted)})))


class MemoryWatch:
    """The peak of resident memory of this process and all its children, sampled five times a second.

    Args:
      label: says what the children are doing now, for the list of who held what at the peak.
    """

    def __init__(self, label: Callable[[], str] = lambda: "child") -> None:
        self.peak_bytes = 0
        self._label = label
        self.at_peak: list[tuple[str, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.2):
            found = []
            try:
                for process in [me, *me.children(recursive=True)]:
                    name = process.name()
                    if process == me:
                        name = "hloracle itself"
                    elif name.startswith("python"):
                        name = self._label()
                    found.append((name, process.memory_info().rss))
            except psutil.Error:
                continue  # a child ended while it was being read; the next sample comes soon
            total = sum(rss for _, rss in found)
            if total > self.peak_bytes:
                self.peak_bytes, self.at_peak = total, found
