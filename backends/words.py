"""The words of `--backend` that have a colon or a version: each names a backend that is a process of its own.

docs/backends.md describes them.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hloracle.backends import iree, workers
from hloracle.backends.choice import Choice
from hloracle.backends.command import CommandLine
from hloracle.backends.command_file import read_commands
from hloracle.backends.devices import KINDS, Device
from hloracle.backends.environments import environment
from hloracle.backends.session import Backend
from hloracle.backends.tools import Tools
from hloracle.backends.worker import Program, Worker
from hloracle.core.cache import known_digest
from hloracle.core.errors import InputError
from hloracle.core.shown import shown

INTERPRETER = "stablehlo"
PROGRAMS = Path(str(workers.__file__)).parent
NAMES = {"iree": "IREE", "xla": "XLA"}
KINDS_OF_WORDS = "iree==VERSION, iree:--FLAG, pjrt:NAME, pjrt:LIBRARY, command:FILE or worker:COMMAND"


def by_word(word: str, device: Device) -> Choice | None:
    """The backend that a word with a colon, or with a version, names; None for any other word. Raises InputError."""
    kind, _, rest = word.partition(":")
    kind, _, family = kind.partition("@")
    compiler, _, version = kind.partition("==")
    if word == INTERPRETER:
        return interpreter()
    if compiler in NAMES and not family and (version or rest):
        return _of_version(word, compiler, version, _split(rest, word), device)
    if kind == "pjrt" and rest:
        return _pjrt(rest, family or "xla")
    if kind == "command" and rest and not family:  # the file says its family
        commands = read_commands(Path(rest))
        return Choice(
            commands.name, commands.family, partial(CommandLine, commands), commands.name, slow=True, identity=None
        )
    if kind == "worker" and rest:
        command = _split(rest, word)
        if not command or not shutil.which(command[0]):
            raise InputError("is no program", f"--backend {shown(word)}", "name one, with its arguments")
        return worker(_name(word), command, family=family)
    return None


def _split(text: str, word: str) -> tuple[str, ...]:
    """As a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:  # `No closing quotation`
        what = str(error)
        raise InputError(
            f"has {what[:1].lower()}{what[1:]}", f"--backend {shown(word)}", "quote it as in a shell"
        ) from None


def _name(word: str) -> str:
    """A slash stands between a source and a backend, and nowhere in either."""
    return word.replace("/", "_")


def _open(name: str, program: Program, threads: int) -> Backend:
    return Worker(name, program, threads)


def worker(
    name: str, command: Sequence[str], *, family: str = "", flags: Sequence[str] = (), remote: bool = False,
    quick: bool = False,
) -> Choice:  # fmt: skip
    """A backend that is a program of your own, which speaks the protocol of docs/workers.md.

    Args:
      name: of the backend, without a slash. command: the program and its arguments; `{threads}` in one of them stands for how
        many threads it may use.
      family: compilers of one family are one witness; the name, if it is empty.
      flags: that every graph is compiled with. remote: it runs graphs on another device than the processor.
      quick: it compiles in a moment, so that it may be where graphs are taken apart.

    Raises InputError for a name or a command that is none.
    """
    if not name or "/" in name:
        raise InputError("is no name of a backend", repr(name), "give one without a slash")
    if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
        raise InputError(
            "is no command", f"{command!r} of backend {name}", "give a list of strings: program and arguments"
        )
    program = Program(tuple(command), tuple(flags), known=False)
    opened = partial(_open, name, program)
    return Choice(name, family or name, opened, name, remote, quick, identity=None)


def interpreter() -> Choice:
    """StableHLO's reference interpreter: it says what a graph means, slowly."""
    program = Program((sys.executable, str(PROGRAMS / "interpreter_worker.py")), variables={"JAX_PLATFORMS": "cpu"})
    return Choice(INTERPRETER, "stablehlo", partial(_open, INTERPRETER, program), "StableHLO's interpreter", slow=True)


def _of_version(word: str, compiler: str, version: str, flags: tuple[str, ...], device: Device) -> Choice:
    """A version of IREE or XLA, this environment's where none is named, with flags."""
    if wrong := next((flag for flag in flags if not flag.startswith("-")), None):
        fix = "write flags with spaces between them, such as iree:--iree-opt-level=O3"
        raise InputError("is no flag", f"--backend {shown(word)}: {wrong!r}", fix)
    name, described = _name(word), [NAMES[compiler], version, "with" if flags else "", *flags]
    title = " ".join(filter(None, described))
    if compiler == "iree" and device.kind == "emulated":
        raise InputError("runs on no emulated GPU", f"--backend {shown(word)}", "use iree-cpu, or another --device")
    tools = tools_of(compiler, version, flags, device)
    usual = iree.usual_flags(device) if compiler == "iree" else ()
    identity, remote = " ".join([title, *usual, str(device)]), compiler == "iree" and device.remote
    opened = partial(_open, name, tools.program)
    return Choice(
        name, compiler, opened, title, remote, quick=compiler == "xla", identity=identity, tools=None if remote else tools
    )  # fmt: skip


def tools_of(compiler: str, version: str, flags: tuple[str, ...], device: Device) -> Tools:
    """Those of IREE or XLA in a version, this environment's where none is named, with flags."""
    python = str(environment(compiler, version)) if version else sys.executable
    # What is on this process's path is of its own environment.
    variables: dict[str, str | None] = {"PYTHONPATH": None} if version else {}
    program = str(PROGRAMS / f"{compiler}_worker.py")
    if compiler == "xla":
        return Tools(compiler, version, Program((python, program), variables=variables, xla_flags=flags))
    where = f"{KINDS[device.kind].driver}:{device.index}"
    command = (python, program, where, "{threads}")
    return Tools(compiler, version, Program(command, flags, iree.usual_flags(device), variables))


def _pjrt(word: str, family: str) -> Choice:
    """A PJRT plugin that JAX finds by its entry point, or a plugin's shared library."""
    program, library = str(PROGRAMS / "xla_worker.py"), Path(word)
    if "/" not in word and library.suffix != ".so":
        name, told = f"pjrt:{word}", Program((sys.executable, program, "plugin", word))
        return Choice(name, family, partial(_open, name, told), f"PJRT {word}", identity=None)
    if not library.is_file():
        raise InputError("no such file", f"--backend pjrt:{shown(word)}", "name a plugin's shared library")
    name, told = f"pjrt:{library.stem}", Program((sys.executable, program, "library", str(library.resolve())))
    return Choice(
        name, family, partial(_open, name, told), f"PJRT {library.stem}", identity=f"{name} {known_digest(library)}"
    )  # fmt: skip
