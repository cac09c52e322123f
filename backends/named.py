"""What a run may run graphs on: a backend is chosen by name, by an entry point of another package, or given as a value."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hloracle.backends.devices import CPU, Device
from hloracle.backends.session import Backend
from hloracle.core.errors import InputError, told
from hloracle.core.given import shown

ENTRY_POINTS = "hloracle.backends"
BUILT_IN = ("iree-cpu", "xla-cpu")
# Our families in a sentence.
TITLES = {"iree": "IREE", "xla": "XLA"}


@dataclass(frozen=True)
class Choice:
    """A backend that a run opens in whichever process needs it.

    family: compilers of one family are one witness, such as `xla` (jaxlib and every plugin built from XLA).
    open: makes the backend, with that many threads; importable by its name, because other processes call it.
    remote: whether it runs on another device than the processor.
    quick: whether it compiles in a moment, so that it is where graphs are taken apart.
    kept: whether what came of it may be reused; of a backend that is given as a value nothing says when its code changed.
    """

    name: str
    family: str
    open: Callable[[int], Backend]
    remote: bool = False
    quick: bool = False
    kept: bool = True

    @property
    def title(self) -> str:
        """What it is called in a sentence: `IREE`, `IREE cuda`; one of another package by its name, whatever its family."""
        if not self.kept:
            return self.name
        device = self.name.partition("-")[2]
        return TITLES[self.family] + (f" {device}" if device != "cpu" else "")


def built_in(name: str, device: Device = CPU) -> Choice:
    """`iree-cpu`, `xla-cpu`, or IREE on the device. Raises InputError."""
    if name == "xla-cpu":
        return Choice(name, "xla", _xla, quick=True)
    if name == CPU.backend:
        return Choice(name, "iree", _iree)
    if name != device.backend:
        raise InputError("is no backend", shown(repr(name), 100), f"name some of: {', '.join(known())}")
    return Choice(name, "iree", partial(_device, device), remote=True)


def _xla(threads: int) -> Backend:
    from hloracle.backends.xla import XlaCpu

    return XlaCpu()


def _iree(threads: int) -> Backend:
    from hloracle.backends.iree import IreeCpu

    return IreeCpu(threads)


def _device(device: Device, threads: int) -> Backend:
    from hloracle.backends.iree import IreeDevice

    return IreeDevice(device)


def backends_on(device: Device) -> tuple[str, ...]:
    """What a run on a device runs graphs on: the device, and what it is judged by."""
    return (device.backend, *BUILT_IN) if device.remote else BUILT_IN


def make_backend(name: str, threads: int, device: Device = CPU) -> Backend:
    """Open `iree-cpu`, `xla-cpu`, or IREE on the device, in this process."""
    return built_in(name, device).open(threads)


def known() -> list[str]:
    """The names that `chosen` takes: ours, and those of installed packages."""
    return [*BUILT_IN, *sorted(e.name for e in entry_points(group=ENTRY_POINTS))]


def chosen(backends: Iterable[Any] = BUILT_IN, device: Device = CPU) -> tuple[Choice, ...]:
    """The backends of a run, in this order, each once.

    Args:
      backends: names, or values: a class or a function that, called with a number of threads, gives a `Backend`. Its
        attributes `name` and, where they are not the usual ones, `family`, `remote` and `quick` say what `Choice` says.
      device: where IREE runs the graphs that are judged.

    Raises InputError for what is no backend, and for one that other processes cannot import.
    """
    found: dict[str, Choice] = {}
    plugins = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    for backend in backends:
        if isinstance(backend, str) and backend in plugins:
            choice = _given(load_entry_point(plugins[backend]), backend)
        else:
            choice = built_in(backend, device) if isinstance(backend, str) else _given(backend)
        if choice.name in found:
            raise InputError("is given twice", f"backend {choice.name!r}", "give it once")
        found[choice.name] = choice
    if not found:
        raise InputError("are none", "backends", f"name some of: {', '.join(known())}")
    return tuple(found.values())


def load_entry_point(entry: EntryPoint) -> Any:
    """What it names. Raises InputError, whatever the other package raises."""
    try:
        return entry.load()
    except Exception as error:
        raise InputError(
            f"cannot be loaded ({told(error)})", f"entry point {entry.name!r} = {entry.value}",
            "repair or uninstall the package that brings it",
        ) from error  # fmt: skip


def _given(backend: Any, name: str = "") -> Choice:
    if isinstance(backend, Choice):
        return backend
    name = name or getattr(backend, "name", "")
    if not callable(backend) or not isinstance(name, str) or not name or "/" in name:
        raise InputError(
            "is no backend",
            shown(repr(backend), 100),
            "give a name, or a class with a `name` that is called with threads",
        )
    try:
        pickle.dumps(backend)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"cannot be opened in another process ({error})", f"backend {name!r}",
            "define it at the top of a module, so that it can be imported by its name",
        ) from None  # fmt: skip
    more = {key: getattr(backend, key) for key in ("remote", "quick") if hasattr(backend, key)}
    opened: Any = backend
    return Choice(name, getattr(backend, "family", name), opened, kept=False, **more)
