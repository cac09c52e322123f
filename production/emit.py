"""Writes one graph and its ABI as files."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from hloracle.core.abi import Graph
from hloracle.core.cache import write_file
from hloracle.core.child import run_in_child
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import QUANTIZED, open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import BUCKETS
from hloracle.reference.model.encodings import Layout
from hloracle.reference.model.registry import load_config
from hloracle.reference.model.weights import default_layout, joined


def emit_file(
    model: str, phase: str, source: str, head: str, bucket: int, capacity: int, portable: bool, taps: str | None,
    precision: str, layout: str, join: bool, output: Path, gemm: str | None = None,
) -> tuple[Path, Path]:  # fmt: skip
    """Write the graph to `output` and the ABI beside it; returns both paths.

    Args:
      taps: the anchors whose values are results too: `all`, or names and patterns, comma-separated; None for no taps.
      gemm: the target of a custom_call that products with weights are left to; None for none.
    """
    if not output.name:
        raise InputError("names no file", f"-o {output}", "name the graph's file")
    if source == "reference" and precision != "f32":
        raise InputError(f"is {precision}", "--precision", "the reference's graphs take float32 weights")
    if gemm is not None:
        _allows_gemm(gemm, source, precision, layout)
    if source == "reference" and join:
        raise InputError("is given", "--joined", "the reference's graphs take weights one by one")
    directory = resolve(model, precision=precision if precision in QUANTIZED else "f32")
    if precision in QUANTIZED:
        held, config = open_checkpoint(directory).layout(precision), load_config(directory)
    else:
        config = load_config(directory)
        held = default_layout(config, precision, layout == "panels")
    held = joined(config, held) if join else held
    if phase == "prefill" and bucket not in BUCKETS:
        raise InputError(f"is {bucket}", "--bucket", f"give one of {', '.join(map(str, BUCKETS))}")
    if capacity < 1:
        raise InputError(f"is {capacity}", "--capacity", "give at least one slot")
    arguments = (config, phase, head, capacity, bucket if phase == "prefill" else 0)
    if source == "emitter" and not portable and taps is None:
        graph = emit(*arguments, held, gemm)
        data: str | bytes = graph.text
    else:
        graph, data = run_in_child(_lower, source, arguments, held, gemm, portable, taps, timeout=900).value
    abi_path = output.parent / f"{output.stem}.abi.json"
    write_file(output, data)
    try:
        write_file(abi_path, graph.abi.to_json())
    except BaseException:
        output.unlink()  # a graph without its ABI is half of what was asked for
        raise
    return output, abi_path


def _allows_gemm(target: str, source: str, precision: str, layout: str) -> None:
    """Raises InputError that names the flag which a custom_call's products cannot have."""
    if not (target.isascii() and target.isidentifier()):
        raise InputError("is no identifier", f"--gemm {target!r}", "name the function as it is in C, such as my_gemm")
    for flag, value, needed in (
        ("source", source, "emitter"),
        ("precision", precision, "f32"),
        ("layout", layout, "rows"),
    ):
        if value != needed:
            raise InputError(f"is {value}, and --gemm goes with {needed}", f"--{flag}", f"add --{flag} {needed}")


def _lower(
    report: object,
    source: str,
    arguments: tuple[Config, str, str, int, int],
    layout: Layout,
    gemm: str | None,
    portable: bool,
    taps: str | None,
) -> tuple[Graph, str | bytes]:
    from hloracle.localize.anatomy import anatomy_of
    from hloracle.reference.oracle.lower import lower, portable_artifact

    graph = lower(*arguments) if source == "reference" else emit(*arguments, layout, gemm)
    if taps is not None:
        anatomy = anatomy_of(graph, arguments[0])
        graph = anatomy.with_outputs(_chosen(taps, [a for a in anatomy.anchors if a != "token"]))
    return graph, portable_artifact(graph) if portable else graph.text


def _chosen(taps: str, anchors: list[str]) -> list[str]:
    """The anchors that the patterns name, in the order of computation. Raises InputError for one that names none."""
    if taps == "all":
        return anchors
    patterns = [p.strip() for p in taps.split(",")]
    for pattern in patterns:
        if not any(fnmatchcase(a, pattern) for a in anchors):
            near = get_close_matches(pattern, anchors, n=3, cutoff=0.3) or anchors[:3]
            raise InputError("names no anchor", f"--taps {pattern!r}", f"near it are {', '.join(near)}")
    return [a for a in anchors if any(fnmatchcase(a, p) for p in patterns)]
