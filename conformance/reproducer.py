"""The smallest thing that shows a fault: a few operations, their inputs, what is expected, and a command to run."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hloracle.backends import iree
from hloracle.localize.operations import Found

RUN_SECONDS = 300
# jax has no command for this, so the same few lines come with the reproducer.
RUN_ON_XLA = '''"""Run GRAPH.mlir on XLA's CPU: python run_on_xla.py TOLERANCE GRAPH.mlir INPUT.npy... EXPECTED.npy"""

import sys

import jax
import numpy as np
from jax._src import compiler, xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib.mlir import ir

tolerance, graph, *files = sys.argv[1:]
*inputs, expected = [np.load(f) for f in files]
client = xla_bridge.get_backend("cpu")
devices = xla_client.DeviceList(tuple(client.local_devices()[:1]))
options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
with mlir.make_ir_context():
    module = ir.Module.parse(open(graph).read())
    loaded = compiler.backend_compile_and_load(client, module, devices, options, host_callbacks=[])
results = loaded.execute_sharded([jax.device_put(i) for i in inputs]).disassemble_into_single_device_arrays()
got = np.asarray(results[0][0])
wrong = ~((got == expected) | (np.abs(got - expected) <= float(tolerance)))
print(f"[{'FAILED' if wrong.any() else 'SUCCESS'}] {wrong.sum()} of {wrong.size} elements differ")
for index in np.argwhere(wrong)[:5]:
    print(f"  at {index.tolist()}: {got[tuple(index)]}, expected {expected[tuple(index)]}")
sys.exit(bool(wrong.any()))
'''


@dataclass(frozen=True)
class Reproducer:
    """Files of a folder, the command to run in it, and what it did when it was run: `shown` if it showed the fault."""

    folder: str
    files: list[str]
    command: str
    shown: bool
    output: str


def write_reproducer(folder: Path, found: Found, only_on_xla: bool, anchor: str) -> Reproducer:
    """Write `folder` (whole or not at all; an older one is replaced), and run its command once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".reproducer-") as name:
        work = Path(name) / folder.name
        work.mkdir()
        files, command = _write(work, found, only_on_xla, anchor)
        status, output = _run(work, command)
        shown = "[FAILED]" in output if found.expected is not None else status not in (0, None)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    return Reproducer(folder.name, files, command, shown, output)


def _write(work: Path, found: Found, only_on_xla: bool, anchor: str) -> tuple[list[str], str]:
    title = [f"{found.step.name} in {anchor}: {found.why}", found.step.text]
    (work / "piece.mlir").write_text("".join(f"// {' '.join(t.split())}\n" for t in title) + found.graph.text)
    compile_ = ["iree-compile", "piece.mlir", *iree.CPU_FLAGS, "-o", "piece.vmfb"]
    if found.expected is None:
        return ["piece.mlir"], shlex.join(compile_)
    inputs = []
    for i, (argument, value) in enumerate(found.inputs.items()):
        inputs.append(f"{i}-{''.join(c if c.isalnum() or c in '._' else '_' for c in argument)}.npy")
        np.save(work / inputs[-1], np.ascontiguousarray(value))
    np.save(work / "expected.npy", np.ascontiguousarray(found.expected))
    files = ["piece.mlir", *inputs, "expected.npy"]
    tolerance = f"{found.tolerance:.6g}"
    if only_on_xla:
        (work / "run_on_xla.py").write_text(RUN_ON_XLA)
        command = shlex.join([
            "python", "run_on_xla.py", tolerance, "piece.mlir", *inputs, "expected.npy"
        ])  # fmt: skip
        return [*files, "run_on_xla.py"], command
    outputs = ["(ignored)"] * len(found.graph.abi.results)
    outputs[found.result] = "@expected.npy"
    run = [
        "iree-run-module", "--device=local-task", "--module=piece.vmfb", "--function=main",
        *(f"--input=@{i}" for i in inputs), *(f"--expected_output={o}" for o in outputs),
        f"--expected_f32_threshold={tolerance}", "--expected_rtol=0",
    ]  # fmt: skip
    command = f"{shlex.join(compile_)} && \\\n{shlex.join(run)}"
    (work / "reproduce.sh").write_text(f"#!/bin/sh\n# Ends with another status than 0 while the fault is there.\n{command}\n")
    return [*files, "reproduce.sh"], command


def _run(work: Path, command: str) -> tuple[int | None, str]:
    """The command's exit status, None if it could not be run; and what it printed."""
    tools = Path(iree.compiler_path()).parent
    path = f"{Path(sys.executable).parent}:{tools}"
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", f'PATH="{path}:$PATH"\n{command}'], cwd=work, capture_output=True, text=True,
            errors="replace", timeout=RUN_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    for left in work.glob("piece.vmfb"):
        left.unlink()
    output = "\n".join(line[:400] for line in (done.stdout + done.stderr).splitlines()[:60])
    return done.returncode, output
