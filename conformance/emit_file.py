"""Writes one graph and its ABI as files."""

from __future__ import annotations

from pathlib import Path

from hloracle.core.child import run_in_child
from hloracle.core.errors import InputError
from hloracle.core.store import write_file
from hloracle.emitters.model import emit
from hloracle.reference.config import Config, load_config
from hloracle.reference.contract import BUCKETS
from hloracle.reference.fixtures import resolve


def emit_file(
    model: str, phase: str, source: str, head: str, bucket: int, capacity: int, portable: bool, output: Path
) -> tuple[Path, Path]:
    """Write the graph to `output` and the ABI beside it; returns both paths."""
    if not output.name:
        raise InputError("names no file", f"-o {output}", "name the graph's file")
    config = load_config(resolve(model))
    if phase == "prefill" and bucket not in BUCKETS:
        raise InputError(f"is {bucket}", "--bucket", f"give one of {', '.join(map(str, BUCKETS))}")
    if capacity < 1:
        raise InputError(f"is {capacity}", "--capacity", "give at least one slot")
    arguments = (config, phase, head, capacity, bucket if phase == "prefill" else 0)
    if source == "emitter" and not portable:
        graph = emit(*arguments)
        data: str | bytes = graph.text
    else:
        graph, data = run_in_child(_lower, source, arguments, portable, timeout=900).value
    abi_path = output.with_suffix(".abi.json")
    write_file(output, data)
    try:
        write_file(abi_path, graph.abi.to_json())
    except BaseException:
        output.unlink()  # a graph without its ABI is half of what was asked for
        raise
    return output, abi_path


def _lower(report: object, source: str, arguments: tuple[Config, str, str, int, int], portable: bool) -> object:
    from hloracle.reference.lower import lower, portable_artifact

    graph = (lower if source == "reference" else emit)(*arguments)
    return graph, portable_artifact(graph) if portable else graph.text
