"""What a run may run graphs on: a backend is chosen by a word, by an entry point of another package, or given as a value."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hloracle.backends.choice import Choice as Choice
from hloracle.backends.devices import CPU, Device
from hloracle.backends.guarded import memory_limit
from hloracle.backends.session import Backend
from hloracle.backends.words import INTERPRETER as INTERPRETER
from hloracle.backends.words import KINDS_OF_WORDS, by_word, tools_of
from hloracle.backends.words import interpreter as interpreter
from hloracle.core.errors import InputError, told
from hloracle.core.shown import shown

ENTRY_POINTS = "hloracle.backends"
BUILT_IN = ("iree-cpu", "xla-cpu")


def built_in(name: str, device: Device = CPU) -> Choice:
    """`iree-cpu`, `xla-cpu`, or IREE on the device. Raises InputError."""
    if name == "xla-cpu":
        tools = tools_of("xla", "", (), CPU)
        return Choice(name, "xla", _xla, "XLA", quick=True, in_process=True, tools=tools)
    if name == CPU.backend:
        tools = tools_of("iree", "", (), CPU)
        return Choice(name, "iree", _iree, "IREE", in_process=True, tools=tools)
    if name != device.backend:
        raise _unknown(name)
    return Choice(
        name,
        "iree",
        partial(_device, device),
        f"IREE {device.kind}",
        remote=True,
        slow=device.kind == "emulated",
        in_process=True,
    )


def _unknown(name: str) -> InputError:
    fix = f"name one of {', '.join(known())}, or say {KINDS_OF_WORDS} (docs/backends.md)"
    return InputError("is no backend", shown(repr(name), 100), fix)


def _xla(threads: int) -> Backend:
    from hloracle.backends.xla import XlaCpu

    return XlaCpu()


def _iree(threads: int) -> Backend:
    from hloracle.backends.iree import IreeCpu

    return IreeCpu(threads)


def _device(device: Device, threads: int) -> Backend:
    from hloracle.backends.iree import IreeDevice

    return IreeDevice(device)


# ---- the backends of a run


def backends_on(device: Device) -> tuple[str, ...]:
    """What a run on a device runs graphs on: the device, and what it is judged by."""
    return (device.backend, *BUILT_IN) if device.remote else BUILT_IN


def make_backend(name: str, threads: int, device: Device = CPU) -> Backend:
    """Open a backend that a word names, in this process."""
    return chosen([name], device)[0].open(threads)


def known() -> list[str]:
    """The names that `chosen` takes: ours, and those of installed packages."""
    return [*BUILT_IN, INTERPRETER, *sorted(e.name for e in entry_points(group=ENTRY_POINTS))]


def chosen(backends: Iterable[Any] = BUILT_IN, device: Device = CPU) -> tuple[Choice, ...]:
    """The backends of a run, in this order, each once.

    Args:
      backends: words (docs/backends.md), or values: what `worker` gives, or a class or a function that, called with a number of
        threads, gives a `Backend`. Its attributes `name` and, where they are not the usual ones, `family`, `remote` and `quick`
        say what `Choice` says.
      device: where IREE runs the graphs that are judged.

    Raises InputError for what is no backend, for one that other processes cannot import, and for a limit of memory that
    is no number.
    """
    memory_limit()  # a process of a configuration would say it too late
    found: dict[str, Choice] = {}
    plugins = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    short = {"iree": device.backend, "xla": "xla-cpu"}
    for backend in backends:
        if not isinstance(backend, str):
            choice = _given(backend)
        elif backend in plugins:
            choice = _given(load_entry_point(plugins[backend]), backend)
        else:
            word = short.get(backend, backend)
            choice = by_word(word, device) or built_in(word, device)
        if choice.name in found:
            raise InputError("is given twice", f"backend {choice.name!r}", "give it once")
        found[choice.name] = choice
    if not found:
        raise InputError("are none", "backends", f"name some of: {', '.join(known())} (docs/backends.md)")
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
        return dataclasses.replace(backend, name=name or backend.name)
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
    more = {key: getattr(backend, key) for key in ("remote", "quick", "slow") if hasattr(backend, key)}
    opened: Any = backend
    return Choice(name, getattr(backend, "family", name), opened, name, identity=None, **more)
