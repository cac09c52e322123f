"""What compiles for which target: no device is needed for that, so that a failure to generate code shows on every run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hloracle.backends import iree
from hloracle.backends.devices import KINDS, Device, compiled_for
from hloracle.conformance.checks.check import Check, Question
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry, digest
from hloracle.core.child import threads
from hloracle.core.environment import host_cpu, installed
from hloracle.core.errors import ToolchainError

# What the compiler generates code for: a kind of device each.
TARGETS = ("cpu", "cuda", "hip", "vulkan", "metal")
# PTX stands in a module as text. Of what multiplies matrices the types are in the instruction's name.
PTX = re.compile(rb"\.target sm_\w+")
PRODUCTS = re.compile(rb"\b(?:fma\.rn|(?:wg|w)?mma)\.[a-z0-9_.:]*")
# As in `loc("layers.1.mlp.act"): failed to legalize …`: the anchor of what the compiler does not get past.
PLACE = re.compile(r'loc\("([\w.]+)"[()]')
# Stages of an error that says nothing of the compiler.
UNENDED = ("memory", "timeout")
TYPES = ("tf32", "bf16", "f16", "f32", "f64", "s8", "u8")


@dataclass(frozen=True)
class Compiled:
    """One graph for one target. kind: a key of KINDS; target: what of it, empty where there is one.

    message: the compiler's, where it failed. stage: `memory` or `timeout` where it did not end by itself. arithmetic: for CUDA, what the code multiplies with, such as `fma f32`.
    """

    source: str
    graph: str
    kind: str
    target: str
    seconds: float = 0.0
    message: str = ""
    arithmetic: tuple[str, ...] = ()
    reused: bool = False
    stage: str = ""

    @property
    def ok(self) -> bool:
        """Whether the compiler gave a module: of a failure there is always a message."""
        return not self.message

    @property
    def anchor(self) -> str:
        """Where the compiler failed, if it says so in the graph's own words."""
        found = PLACE.search(self.message)
        return found[1] if found else ""


def compile_for(source: str, graph: Graph, device: Device, seconds: float = 0) -> Compiled:
    """Compile a graph, and keep what came of it: of a module that is not run, nothing else is of use.

    Args:
      seconds: that it may take, as `iree_compile` has them.
    """
    flags = iree.flags_of(graph, device)
    of = host_cpu() if KINDS[device.kind].compiler == "llvm-cpu" else ""
    key = digest(graph.text, *flags, installed("iree-base-compiler"), iree.compiler_path(), of)
    entry: Entry[Compiled] = Entry("compiles", key, Compiled)
    named = Compiled(source, graph.name, device.kind, device.target)
    # What was killed, or took too long, may do the next time.
    found, reused = entry.get(
        lambda: _compile(named, graph, flags, seconds), lambda of: of.ok or "error:" in of.message
    )
    # Another source, or another kind of device, may have the same graph and flags.
    return replace(
        named, seconds=found.seconds, message=found.message, arithmetic=found.arithmetic, reused=reused, stage=found.stage
    )  # fmt: skip


def _compile(named: Compiled, graph: Graph, flags: Sequence[str], seconds: float) -> Compiled:
    begun = time.monotonic()
    message = stage = ""
    arithmetic: tuple[str, ...] = ()
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{graph.name}.mlir"
        file.write_text(graph.text)
        try:
            arithmetic = arithmetic_of(iree.iree_compile(file, flags, seconds))
        except ToolchainError as error:
            message = " ".join(error.message.replace(f"{folder}{os.sep}", "").split()) or "it failed without a word"
            stage = error.stage if error.stage in UNENDED else ""
    seconds_taken = round(time.monotonic() - begun, 3)
    return replace(named, seconds=seconds_taken, message=message, arithmetic=arithmetic, stage=stage)


def arithmetic_of(module: bytes) -> tuple[str, ...]:
    """What the PTX in a module multiplies with, such as `fma f32` or `mma tf32`; nothing where it has no PTX."""
    if not PTX.search(module):
        return ()
    found = set()
    for instruction in set(PRODUCTS.findall(module)):
        words = instruction.decode()
        kind = "fma" if words.startswith("fma") else "mma"
        types = [t for t in TYPES if f".{t}" in words]
        found.add(f"{kind} {types[0] if types else words}")
    return tuple(sorted(found))


def compile_all(wanted: Iterable[tuple[str, Graph, Device]], jobs: int, seconds: float = 0) -> list[Compiled]:
    """Each of (source, graph, device), `jobs` at a time, for at most so many seconds."""
    with threads(jobs) as pool:
        futures = [pool.submit(compile_for, *one, seconds) for one in wanted]
        return [future.result() for future in futures]


def compile_checks(rows: Sequence[Compiled]) -> list[Check]:
    """Every graph of each source compiles for CUDA, and multiplies in the types that it says."""
    found = []
    for source in dict.fromkeys(row.source for row in rows if row.kind == "cuda"):
        own = [row for row in rows if (row.source, row.kind) == (source, "cuda")]
        right = [row for row in own if row.ok]
        wrong = [row for row in own if not row.ok]
        bad = "; ".join(f"{row.graph}: {row.message}" for row in wrong)
        title = f"every graph compiles for cuda ({own[0].target or 'cuda'})"
        question = Question("compiles", title, source, "iree-cuda")
        if wrong and all(row.stage for row in wrong):
            found.append(question.error(bad, wrong[0].stage))
        else:
            found.append(question.counted(len(right), len(own), bad, wrong[0].anchor if wrong else ""))
        if right:
            found.append(arithmetic_check(source, "iree-cuda", {row.graph: row.arithmetic for row in right}))
    return found


def arithmetic_check(source: str, backend: str, of: dict[str, tuple[str, ...]]) -> Check:
    """No float32 is rounded to TF32 on the way into a product: that takes 13 of its 23 bits.

    Args:
      of: what `arithmetic_of` gives, by graph.
    """
    question = Question("arithmetic", "no product rounds float32 to TF32", source, backend)
    bad = [
        f"{graph} has {', '.join(a for a in found if 'tf32' in a)}"
        for graph, found in of.items()
        if "mma tf32" in found
    ]
    unread = [graph for graph, found in of.items() if not found]
    if unread:
        return question.error(f"{unread[0]} has no PTX to read")
    figure = ", ".join(sorted({a for found in of.values() for a in found}))
    return question.judged(bool(of) and not bad, figure, "no tf32", "; ".join(bad))


def for_every_target(cuda_target: str = "") -> list[Device]:
    """No device in particular of each kind."""
    return [compiled_for(kind, cuda_target if kind == "cuda" else "") for kind in TARGETS]
