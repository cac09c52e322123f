"""Where the time of a decode step, or of a prompt, goes: dispatch by dispatch.

The production graph runs under IREE's own `iree-benchmark-module`, as it is and again with its profiler, whose records
`iree-profile` sums up. The compiler names a dispatch by its shape; which weights it reads stands in the graph's stream form.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hloracle.backends import iree
from hloracle.bench.contenders import read_bytes
from hloracle.bench.machine import Reader, free_bytes
from hloracle.bench.run import too_large
from hloracle.conformance.context import Progress
from hloracle.core.abi import Graph, Tensor
from hloracle.core.child import exit_words
from hloracle.core.environment import describe
from hloracle.core.errors import InputError, ToolchainError
from hloracle.production.choice import Tuned, production_graphs, tuned, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import GraphSpec

SCHEMA = "hloracle-profile/1"
TOOL_SECONDS = 600
REPETITIONS, SECONDS = 3, 0.5  # of each
# Under the profiler: as many steps as take about a second, in these bounds. A step of 550 dispatches is 0.5 MB of rows.
FEWEST, MOST = 3, 20
MODE = "host-execution,queue-events,executable-metadata"
# What arguments are filled with: any token that every vocabulary has, weights and caches whose products stay numbers.
TOKEN, INTEGER, FLOAT = 5, 1, 0.01
_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}

Figures = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is profiled.

    phase: `decode`, at the middle of a cache of `capacity` slots, `prefill`, of a prompt of `length` tokens, or `extend`, of as many
      from the middle on. batch: rows of the graph. compute: what it computes in.
    """

    model: str
    phase: str
    precision: str
    length: int
    capacity: int
    threads: int
    batch: int = 1
    compute: str = "f32"

    @property
    def position(self) -> int:
        """The cache slot at which a decode step is timed."""
        return self.capacity // 2


def run_profile(asked: Asked, progress: Progress) -> Figures:
    """What was measured, as JSON. Raises InputError when the model cannot be used, ToolchainError when a tool fails."""
    if asked.phase != "decode" and asked.length > asked.capacity:
        raise InputError(
            f"is {asked.length}, more than the {asked.capacity} cache slots", "--length", "raise --capacity"
        )
    with progress.stage("graph"):
        checkpoint = open_checkpoint(resolve(asked.model, progress.report, asked.precision, compute=asked.compute))
        measured = asked.batch == 1 and asked.compute == "f32"
        found = tuned(checkpoint, asked.precision, asked.threads) if measured else Tuned()
        choice = found.choice or untuned(batch=asked.batch, precision=asked.precision, compute=asked.compute)
        bucket = asked.length if asked.phase != "decode" else 0
        specs = [GraphSpec(asked.phase, "token", asked.capacity, bucket, asked.batch, asked.compute)]
        (graph,) = production_graphs(checkpoint, asked.precision, choice, specs)
    needed, free = sum(a.nbytes for a in graph.abi.arguments), free_bytes()
    if needed > free:
        raise InputError(too_large(needed, free), asked.model, "name a smaller model, or a narrower --precision")
    with progress.stage("compile") as stage:
        stage["reused"] = iree.precompile(graph, with_stream=True)
        module = iree.module_path(graph)
        reads = weights_read(iree.compile_to_stream(graph), graph)
    with progress.stage("read speed"):
        bandwidth = Reader(asked.threads).bandwidth()
    command = [
        f"--module={module}", f"--function={graph.abi.function}", "--device=local-task",
        f"--task_topology_group_count={asked.threads}", *inputs(graph, asked), "--benchmark_format=json",
    ]  # fmt: skip
    with progress.stage("time"):
        ms, _ = _timed(command, f"--benchmark_min_time={SECONDS}s", f"--benchmark_repetitions={REPETITIONS}")
    with progress.stage("profile"), TemporaryDirectory() as folder:
        records = str(Path(folder) / "records.ireeprof")
        steps = min(max(round(1000 / statistics.median(ms)), FEWEST), MOST)
        (profiled,), steps = _timed(
            command, f"--benchmark_min_time={steps}x", f"--device_profiling_mode={MODE}",
            f"--device_profiling_output={records}",
        )  # fmt: skip
        rows = dispatches(run_tool("iree-profile", ["statistics", "--format=jsonl", records]), steps, reads)
    return {
        "schema": SCHEMA, "model": asked.model, "phase": asked.phase, "precision": asked.precision, "compute": asked.compute,
        "length": bucket or None, "capacity": asked.capacity, "position": None if bucket else asked.position,
        "threads": asked.threads, "choice": str(choice), "ignored": found.ignored, "ms": ms,
        "median": statistics.median(ms), "profiled_ms": profiled, "steps": steps,
        "dispatch_ms": round(sum(row["ms"] for row in rows), 4), "dispatches": rows,
        "read_bytes": read_bytes(checkpoint.config, graph.abi.weights), "bandwidth": bandwidth,
        "environment": describe(),
    }  # fmt: skip


def inputs(graph: Graph, asked: Asked) -> list[str]:
    """A flag for each argument, all elements of which are one number. A tool of IREE's fills them."""
    whole = {"token": TOKEN, "tokens": TOKEN, "position": asked.position, "length": asked.length, "row": 0}
    whole["total"] = asked.position + asked.length

    def value(argument: Tensor) -> float:
        return whole.get(argument.role, INTEGER if "i" in argument.dtype else FLOAT)

    def type(argument: Tensor) -> str:
        # A compiled function has no signs: ui8 is i8 to it.
        return "x".join([*map(str, argument.shape), argument.dtype.removeprefix("u")])

    return [f"--input={type(a)}={value(a)}" for a in graph.abi.arguments]


# ---- which weights a dispatch reads

_NAME = r"[\w$.#-]+"
_IMPORT = re.compile(rf"(%{_NAME}) = stream\.tensor\.import .*%arg(\d+) : !hal\.buffer_view")
_BINDING = re.compile(rf"(%{_NAME}) as (%{_NAME}): !stream\.resource")
_DISPATCH = re.compile(rf"stream\.cmd\.dispatch @{_NAME}::@({_NAME})")
_OPERAND = re.compile(rf"\s*(?:ro|rw|wo) (%{_NAME})\[")


def weights_read(stream: str, graph: Graph) -> dict[str, list[str]]:
    """A dispatch's function -> the weights and caches that it is given, without their layer: `q_proj`, `k_cache`.

    Args:
      stream: the graph in IREE's stream dialect. Where it is not as expected, a name is missing, and none is wrong.
    """
    arguments: dict[str, str] = {}
    bound: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    function = ""
    _, _, body = stream.partition(f" @{graph.abi.function}(")
    for line in body.splitlines():
        if match := _IMPORT.search(line):
            arguments[match[1]] = _part(graph.abi.arguments[int(match[2])])
        elif "stream.cmd.execute" in line:
            bound = {inner: arguments.get(outer, "") for outer, inner in _BINDING.findall(line)}
        elif match := _DISPATCH.search(line):
            function = match[1]
        elif (match := _OPERAND.match(line)) and (part := bound.get(match[1])):
            parts = found.setdefault(function, [])
            if part not in parts:
                parts.append(part)
    return found


def _part(argument: Tensor) -> str:
    if argument.role == "weight":
        return argument.weight.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    return argument.role if argument.role.endswith("_cache") else ""


# ---- what the tools say


def dispatches(text: str, steps: int, reads: dict[str, list[str]]) -> list[Figures]:
    """A row for each kind of dispatch, the longest first: those of one shape that read the same weights of all layers.

    count, ms: of one step. us: of one dispatch. share: of all dispatches. workers: how many were at work on it, on average.

    Args:
      text: what `iree-profile statistics --format=jsonl` printed of `steps` steps.
    """
    kinds: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    try:
        for raw in map(json.loads, text.splitlines()):
            if raw.get("type") == "statistics_summary" and raw["dropped_record_count"]:
                raise ToolchainError("profile", f"{raw['dropped_record_count']} records were dropped")
            if raw.get("row_type") != "host_execution_function":
                continue
            name = raw["function_name"]
            sums = kinds.setdefault((kind_of(name), tuple(reads.get(name, ()))), [0, 0, 0])
            for i, key in enumerate(("sample_count", "total_duration_ns", "tile_duration_sum_ns")):
                sums[i] += int(raw[key])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolchainError("profile", f"what iree-profile printed cannot be read ({error!r})") from None
    total = sum(ns for _, ns, _ in kinds.values())
    if not total:
        raise ToolchainError("profile", "iree-profile lists no dispatch")
    return [
        {
            "kind": kind, "weights": list(weights), "count": count / steps, "ms": round(ns / steps / 1e6, 4),
            "us": round(ns / count / 1e3, 2), "share": round(ns / total, 4), "workers": round(tiles / ns, 2) if ns else None,
        }
        for (kind, weights), (count, ns, tiles) in sorted(kinds.items(), key=lambda item: -item[1][1])
    ]  # fmt: skip


_TYPE = r"(?:b?f|u?i)\d+"
_TYPES = re.compile(rf"_{_TYPE}(?:x{_TYPE})*$|x{_TYPE}(?=_|$)|_dispatch_tensor_store$")


def kind_of(name: str) -> str:
    """A dispatch's name without function, number, element types and how it stores: `reduction_1536x6x16`."""
    return _TYPES.sub("", _TYPES.sub("", re.sub(r"^.*?_(dispatch|encoding)_\d+_?", "", name))) or name


def _timed(command: Sequence[str], *more: str) -> tuple[list[float], int]:
    """Milliseconds of a step, in each repetition; and the steps of one."""
    text = run_tool("iree-benchmark-module", [*command, *more])
    try:
        rows = [row for row in json.loads(text)["benchmarks"] if row["run_type"] == "iteration"]
        if failed := next((row for row in rows if row.get("error_occurred")), None):
            raise ToolchainError("run", f"iree-benchmark-module: {failed.get('error_message', 'failed')}")
        return [round(row["real_time"] * _MS[row["time_unit"]], 4) for row in rows], int(rows[0]["iterations"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ToolchainError("run", f"what iree-benchmark-module printed cannot be read ({error!r})") from None


def tool_path(name: str) -> Path:
    """A program of iree-base-runtime's. It need not be on the path."""
    try:
        from iree._runtime import libs
    except ImportError:
        raise InputError("is not installed", "iree-base-runtime", "pip install iree-base-runtime") from None
    path = Path(libs.library_path) / name
    if not path.is_file():
        raise InputError("no such file", path, "pip install --force-reinstall iree-base-runtime")
    return path


def run_tool(name: str, arguments: Sequence[str]) -> str:
    """What the tool prints. Raises ToolchainError with its last words where it fails, crashes or hangs."""
    stage = "profile" if name == "iree-profile" else "run"
    try:
        done = subprocess.run(
            [tool_path(name), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TOOL_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ToolchainError(stage, f"{name} took more than {TOOL_SECONDS} s") from None
    except OSError as error:
        raise ToolchainError(stage, f"{name} cannot be run ({error.strerror})") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        said = next((line for line in words if "error" in line.lower()), words[-1] if words else "no message")
        raise ToolchainError(stage, f"{name} ended with {exit_words(done.returncode)}: {said[:300]}")
    return done.stdout
