"""What a run may run graphs on: a backend is chosen by a word, by an entry point of another package, or given as a value."""

from __future__ import annotations

import pickle
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from hloracle.backends import workers
from hloracle.backends.devices import CPU, KINDS, Device
from hloracle.backends.environments import environment
from hloracle.backends.session import Backend
from hloracle.backends.tools import Tools
from hloracle.backends.worker import Program, Worker
from hloracle.core.cache import known_digest
from hloracle.core.errors import InputError, told
from hloracle.core.given import shown

ENTRY_POINTS = "hloracle.backends"
BUILT_IN = ("iree-cpu", "xla-cpu")
INTERPRETER = "stablehlo"
PROGRAMS = Path(str(workers.__file__)).parent
USES = (
    "name one of {}, or say iree==VERSION, iree:--FLAG, pjrt:NAME, pjrt:LIBRARY, command:FILE or worker:COMMAND"
    " (docs/backends.md)"
)


@dataclass(frozen=True)
class Choice:
    """A backend that a run opens in whichever process needs it.

    family: compilers of one family are one witness, such as `xla` (jaxlib and every plugin built from XLA).
    open: makes the backend, with that many threads; importable by its name, because other processes call it.
    title: what it is called in a sentence, such as `IREE 3.12.0`.
    remote: whether it runs on another device than the processor.
    quick: whether it compiles in a moment, so that it is where graphs are taken apart.
    identity: what decides what it computes, besides hloracle's own packages; None where nobody knows it, as of a backend that
      is given as a value: what came of it is not kept.
    in_process: whether it is one of ours that run in this process, which looks at the code that it generates.
    tools: the compiler's own, that run a graph as it does; None where it has none that are known.
    """

    name: str
    family: str
    open: Callable[[int], Backend]
    title: str
    remote: bool = False
    quick: bool = False
    identity: str | None = ""
    in_process: bool = False
    tools: Tools | None = None

    def apart(self, threads: int) -> Backend:
        """Open it in a process of its own, where it has one: there a graph may crash it."""
        return self.tools.opened(self.name, threads) if self.tools and self.in_process else self.open(threads)


def built_in(name: str, device: Device = CPU) -> Choice:
    """`iree-cpu`, `xla-cpu`, or IREE on the device. Raises InputError."""
    if name == "xla-cpu":
        tools = _of_version(name, "xla", "", (), CPU).tools
        return Choice(name, "xla", _xla, "XLA", quick=True, in_process=True, tools=tools)
    if name == CPU.backend:
        tools = _of_version(name, "iree", "", (), CPU).tools
        return Choice(name, "iree", _iree, "IREE", in_process=True, tools=tools)
    if name != device.backend:
        raise _unknown(name)
    return Choice(name, "iree", partial(_device, device), f"IREE {device.kind}", remote=True, in_process=True)


def _unknown(name: str) -> InputError:
    return InputError("is no backend", shown(repr(name), 100), USES.format(", ".join(known())))


def _xla(threads: int) -> Backend:
    from hloracle.backends.xla import XlaCpu

    return XlaCpu()


def _iree(threads: int) -> Backend:
    from hloracle.backends.iree import IreeCpu

    return IreeCpu(threads)


def _device(device: Device, threads: int) -> Backend:
    from hloracle.backends.iree import IreeDevice

    return IreeDevice(device)


# ---- workers, by a word


def interpreter() -> Choice:
    """StableHLO's reference interpreter: it says what a graph means, slowly."""
    program = Program((sys.executable, str(PROGRAMS / "interpreter_worker.py")), variables={"JAX_PLATFORMS": "cpu"})
    return Choice(INTERPRETER, "stablehlo", partial(_worker, INTERPRETER, program), "the StableHLO interpreter")


def _worker(name: str, program: Program, threads: int) -> Backend:
    return Worker(name, program, threads)


def _by_word(word: str, device: Device) -> Choice | None:
    """A backend that a word with a colon, or with a version, names; None for any other word."""
    kind, colon, rest = word.partition(":")
    compiler, _, version = kind.partition("==")
    name = word.replace("/", "_")  # which stands between a source and a backend
    if word == INTERPRETER:
        return interpreter()
    if kind == "pjrt" and rest:
        return _pjrt(rest)
    if kind == "worker" and rest:
        command = tuple(shlex.split(rest))
        if not command or not shutil.which(command[0]):
            raise InputError("is no program", f"--backend {shown(word, 100)}", "name one, with its arguments")
        return Choice(name, name, partial(_worker, name, Program(command)), word, identity=None)
    if compiler in ("iree", "xla") and (version or rest):
        return _of_version(name, compiler, version, tuple(shlex.split(rest)), device)
    return None


def _of_version(name: str, compiler: str, version: str, flags: tuple[str, ...], device: Device) -> Choice:
    """A version of IREE or XLA, this environment's where none is named, with flags."""
    if wrong := next((flag for flag in flags if not flag.startswith("-")), None):
        raise InputError("is no flag", f"--backend {name}: {wrong!r}", "write flags such as iree:--iree-opt-level=O3")
    python = str(environment(compiler, version)) if version else sys.executable
    program = str(PROGRAMS / f"{compiler}_worker.py")
    variables: dict[str, str | None] = {"PYTHONPATH": None} if version else {}
    words = [{"iree": "IREE", "xla": "XLA"}[compiler], version, "with" if flags else "", *flags]
    title = " ".join(filter(None, words))
    if compiler == "xla":
        told = Program((python, program), variables={**variables, "JAX_PLATFORMS": "cpu"}, xla_flags=flags)
        identity, tools = " ".join(words), Tools(compiler, version, told)
        return Choice(name, "xla", partial(_worker, name, told), title, quick=True, identity=identity, tools=tools)
    from hloracle.backends import iree

    driver = KINDS[device.kind].driver
    told = Program(
        (python, program, f"{driver}:{device.index}", "{threads}"), flags, iree.usual_flags(device), variables=variables
    )
    identity = " ".join([*words, *(told.usual or ()), str(device)])
    found = Choice(name, "iree", partial(_worker, name, told), title, remote=device.remote, identity=identity)
    return found if device.remote else replace(found, tools=Tools(compiler, version, told))


def _pjrt(word: str) -> Choice:
    """A PJRT plugin that JAX finds by its entry point, or a plugin's shared library."""
    program, library = str(PROGRAMS / "xla_worker.py"), Path(word)
    if "/" not in word and library.suffix != ".so":
        told = Program((sys.executable, program, "plugin", word), variables={"JAX_PLATFORMS": word})
        return Choice(f"pjrt:{word}", "xla", partial(_worker, f"pjrt:{word}", told), f"PJRT {word}", identity=None)
    if not library.is_file():
        raise InputError("no such file", f"--backend pjrt:{word}", "name a plugin's shared library")
    name, path = f"pjrt:{library.stem}", str(library.resolve())
    told = Program((sys.executable, program, "library", path), variables={"JAX_PLATFORMS": "plugin"})
    identity = known_digest(library)
    return Choice(name, "xla", partial(_worker, name, told), f"PJRT {library.stem}", identity=identity)


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
      backends: words (docs/backends.md), or values: a class or a function that, called with a number of threads, gives a
        `Backend`. Its attributes `name` and, where they are not the usual ones, `family`, `remote` and `quick` say what
        `Choice` says.
      device: where IREE runs the graphs that are judged.

    Raises InputError for what is no backend, and for one that other processes cannot import.
    """
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
            choice = _by_word(word, device) or built_in(word, device)
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
    return Choice(name, getattr(backend, "family", name), opened, name, identity=None, **more)
