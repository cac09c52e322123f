"""The smallest thing that shows a fault: a few operations, their inputs, what is expected, and a command to run."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import string
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hloracle.backends import iree
from hloracle.backends.custom_calls import Target
from hloracle.backends.devices import CPU, Device
from hloracle.backends.tools import Tools
from hloracle.core.folder import refuse_other, remove_reproducer
from hloracle.core.scratch import folder_in

if TYPE_CHECKING:  # it imports JAX, which a run's first process does not need
    from hloracle.localize.operations import Found

RUN_SECONDS = 300
# What every shell and file system takes in a name as it is.
NAME = frozenset(string.ascii_letters + string.digits + "._")
# With --expected_output iree-run-module 3.13 takes a NaN for any number, and integers of a file for others than a graph's
# (si32, i32); up to 3.11 it does not know --expected_rtol, without which 3.12 allows for more.
COMPARE = '''"""Compare two arrays: python compare.py TOLERANCE GOT.npy EXPECTED.npy"""

import sys

import numpy as np

tolerance, *files = sys.argv[1:]
got, expected = [np.load(f) for f in files]
with np.errstate(invalid="ignore"):
    distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
wrong = ~((got == expected) | (distance <= float(tolerance)))
print(f"[{'FAILED' if wrong.any() else 'SUCCESS'}] {wrong.sum()} of {wrong.size} elements differ")
for index in np.argwhere(wrong)[:5]:
    print(f"  at {index.tolist()}: {got[tuple(index)]}, expected {expected[tuple(index)]}")
sys.exit(bool(wrong.any()))
'''
# jax has no command for this, so it comes with the reproducer.
RUN_ON_XLA = '''"""Compile GRAPH.mlir for XLA's CPU; run it and write one of its results, counted from 0:

python run_on_xla.py GRAPH.mlir [TARGET=LIBRARY...] [RESULT GOT.npy INPUT.npy...]

Targets of custom_calls are functions of libraries beside this file.
"""

import ctypes
import sys
from pathlib import Path

import jax
import numpy as np
from jax._src import compiler, xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib.mlir import ir

jax.config.update("jax_enable_x64", True)  # or numbers of 64 bits are given as 32
graph, *rest = [word for word in sys.argv[1:] if "=" not in word]
client = xla_bridge.get_backend("cpu")
for target, _, library in [word.partition("=") for word in sys.argv[1:] if "=" in word]:
    function = getattr(ctypes.CDLL(str(Path(__file__).with_name(library).resolve())), target)
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu")
devices = xla_client.DeviceList(tuple(client.local_devices()[:1]))
options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
with mlir.make_ir_context():
    module = ir.Module.parse(open(graph).read())
    if hasattr(compiler, "backend_compile_and_load"):
        loaded = compiler.backend_compile_and_load(client, module, devices, options, host_callbacks=[])
    else:  # an older jax
        loaded = compiler.backend_compile(client, module, options, host_callbacks=[])
if not rest:
    sys.exit()
result, got, *inputs = rest
results = loaded.execute_sharded([jax.device_put(np.load(i)) for i in inputs])
np.save(got, results.disassemble_into_single_device_arrays()[int(result)][0])
'''


@dataclass(frozen=True)
class Way:
    """With what a reproducer is run.

    compiler: `iree`, `xla`, or empty where no tools of the compiler's own are known: then `hloracle replay` runs it on `backend`.
    tools: of a backend with flags or of a version; None for those of this environment with the usual flags.
    targets: of custom_calls that XLA is to find; their libraries are put into the folder. device: where IREE runs it.
    """

    compiler: str = "iree"
    backend: str = ""
    tools: Tools | None = None
    targets: Sequence[Target] = ()
    device: Device = CPU


ON_IREE, ON_XLA = Way(), Way("xla")


@dataclass(frozen=True)
class OnBackend:
    """What a reproducer did on a backend. title: with its version and flags. shows: None where it could not be told."""

    backend: str
    title: str
    shows: bool | None
    detail: str


@dataclass(frozen=True)
class Reproducer:
    """Files of a folder, the command to run in it, and what it did when it was run: `shown` if it showed the fault.

    needs: what pip installs for the command, where it is of another version than this environment's. backends: what it did on
    those of the run. notes: how it was made smaller, in sentences. outside: the command is no command of hloracle.
    """

    folder: str
    files: list[str]
    command: str
    shown: bool
    output: str
    needs: list[str] = field(default_factory=list)
    backends: list[OnBackend] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outside: bool = True


def write_reproducer(folder: Path, found: Found, way: Way, anchor: str) -> Reproducer:
    """Write `folder` (whole or not at all; an older one is replaced), and run its command once.

    What `hloracle replay` runs is not run here: whether it shows the fault is known already.
    Raises InputError where the folder is there and is no reproducer.
    """
    refuse_other(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_in(folder.parent, "reproducer") as outer:
        work = outer / folder.name
        work.mkdir()
        files, command = _write(work, found, way, anchor)
        tools = way.tools.folder if way.tools else Path(sys.executable).parent
        status, output = _run(work, command, tools) if way.compiler else (None, "")
        shown = "[FAILED]" in output if found.expected is not None else status not in (0, None)
        output = "\n".join(line[:400] for line in output.splitlines()[:60])
        remove_reproducer(folder)
        work.rename(folder)
    needs = list(way.tools.packages) if way.tools else []
    return Reproducer(folder.name, files, command, shown, output, needs, outside=bool(way.compiler))


def _write(work: Path, found: Found, way: Way, anchor: str) -> tuple[list[str], str]:
    where = f" in {anchor}" if anchor else ""
    title = filter(None, [f"{found.step.name}{where}: {found.why}", found.step.text])
    (work / "subgraph.mlir").write_text("".join(f"// {' '.join(t.split())}\n" for t in title) + found.graph.text)
    inputs = []
    for i, (argument, value) in enumerate(found.inputs.items()):
        inputs.append(f"{i}-{''.join(c if c in NAME else '_' for c in argument)}.npy")
        _save(work / inputs[-1], value)
    files = ["subgraph.mlir", *inputs]
    if found.expected is not None:
        _save(work / "expected.npy", found.expected)
        files.append("expected.npy")
    files.append(_describe(work, found, inputs))
    how = {"iree": _on_iree, "xla": _on_xla, "": _on_hloracle}[way.compiler]
    commands, more = how(work, found, way, inputs)
    if any("compare.py" in command for command in commands):
        (work / "compare.py").write_text(COMPARE)
        more.append("compare.py")
    command = " && \\\n".join(map(_shell, commands))
    needs = f"# With {' '.join(way.tools.packages)}.\n" if way.tools and way.tools.packages else ""
    (work / "reproduce.sh").write_text(
        f"#!/bin/sh\n# Ends with another status than 0 while the fault is there.\n{needs}{command}\n"
    )
    return [*files, *more, "reproduce.sh"], command


def _on_iree(work: Path, found: Found, way: Way, inputs: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The commands, and the files beside those that all reproducers have."""
    flags = way.tools.program.flags_of(found.graph) if way.tools else iree.flags_of(found.graph, way.device)
    first = ["iree-compile", "subgraph.mlir", *flags, "-o", "subgraph.vmfb"]
    if found.expected is None and not inputs:
        return [first], []
    run = ["iree-run-module", f"--device={way.device.uri}", "--module=subgraph.vmfb", "--function=main"]
    run += [f"--input=@{i}" for i in inputs]
    if found.expected is None:
        return [first, run], []
    judge = [f"--output={'@got.npy' if i == found.result else ''}" for i in range(len(found.graph.abi.results))]
    return [first, [*run, *judge], _compared(f"{found.tolerance:.6g}")], []


def _on_xla(work: Path, found: Found, way: Way, inputs: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    libraries = {f"{target.name}.so": target for target in way.targets}
    for name, target in libraries.items():
        shutil.copyfile(target.library, work / name)
    (work / "run_on_xla.py").write_text(RUN_ON_XLA)
    flags = way.tools.program.xla_flags if way.tools else ()
    first = [f"XLA_FLAGS={' '.join(flags)}"] if flags else []
    first += ["python", "run_on_xla.py", "subgraph.mlir"]
    first += [f"{target.name}={name}" for name, target in libraries.items()]
    if found.expected is not None or inputs:
        first += [f"{found.result}", "got.npy", *inputs]
    more = [] if found.expected is None else [_compared(f"{found.tolerance:.6g}")]
    return [first, *more], ["run_on_xla.py", *libraries]


def _on_hloracle(work: Path, found: Found, way: Way, inputs: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    return [["hloracle", "replay", ".", "--backend", way.backend]], []


def _compared(tolerance: str) -> list[str]:
    return ["python", "compare.py", tolerance, "got.npy", "expected.npy"]


def _shell(command: Sequence[str]) -> str:
    """A command of a shell, in which a variable may come first."""
    name, equals, value = command[0].partition("=")
    return f"{name}={shlex.quote(value)} {shlex.join(command[1:])}" if equals else shlex.join(command)


def _describe(work: Path, found: Found, inputs: Sequence[str]) -> str:
    """Write what `hloracle replay` has to know. flags: the graph's own, of IREE's compiler."""
    case = {
        "function": found.graph.abi.function,
        "inputs": list(inputs),
        "expected": None if found.expected is None else "expected.npy",
        "result": found.result,
        "tolerance": found.tolerance,
        "flags": list(found.graph.flags),
    }
    (work / "reproducer.json").write_text(json.dumps(case, indent=1) + "\n")
    return "reproducer.json"


def _save(path: Path, value: np.ndarray) -> None:
    """In the order that the tools read. Not by ascontiguousarray, which makes a vector of a scalar."""
    np.save(path, np.asarray(value, order="C"))


def _run(work: Path, command: str, python: Path) -> tuple[int | None, str]:
    """The command's exit status, None if it could not be run; and what it printed, without this machine's folders.

    Args:
      python: the folder of the Python that has the tools.
    """
    tools = Path(iree.compiler_path()).parent
    path = f"{python}:{tools}"
    shell = ["/bin/sh", "-c", f'PATH="{path}:$PATH"\n{command}']
    try:
        status, output = _in_session(shell, work)
    except OSError as error:
        status, output = None, error.strerror or "cannot be run"
    except subprocess.TimeoutExpired:
        status, output = None, f"it took more than {RUN_SECONDS:g} s"
    for left in (work / "subgraph.vmfb", work / "got.npy"):
        left.unlink(missing_ok=True)
    for folder in (work, tools, python.parent, Path(sys.prefix)):
        output = output.replace(f"{folder}/", "")
    return status, output


def _in_session(command: list[str], folder: Path) -> tuple[int, str]:
    """A command's exit status and output. What ends it ends the tools that it started too: they would write on."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=RUN_SECONDS)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output
