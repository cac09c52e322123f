"""Writes one graph and its ABI as files."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from hloracle.core.abi import Graph
from hloracle.core.child import run_in_child
from hloracle.core.errors import InputError
from hloracle.core.files import is_special, write_file
from hloracle.emitters.model import Emitter
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import QUANTIZED, open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import (
    check_contract,
    refuse_beside_int8,
    refuse_beyond_positions,
    refuse_without_rings,
)
from hloracle.reference.model.encodings import Layout
from hloracle.reference.model.registry import load_config
from hloracle.reference.model.weights import default_layout, fused


@dataclass(frozen=True)
class Emission:
    """One graph of a model as `hloracle emit` writes it.

    layout, fuse: how floats lie, `panels` or `rows`, and whether weights with the same input are one.
    gemm: the target of a custom_call that products with weights are left to; None for none.
    portable: write a portable artifact instead of text.
    taps: the anchors whose values are results too: `all`, or names and patterns, comma-separated; None for no taps.
    as_: the architecture that the model is one of, where its config.json says another. batch: the graph's rows.
    compute: what it computes in; of less than f32 the weights are of that type, in rows. ring: windowed layers have rings. kv: what keys and
    values are kept in.
    """

    model: str
    phase: str
    source: str
    head: str
    bucket: int
    capacity: int
    precision: str
    layout: str
    fuse: bool
    gemm: str | None = None
    portable: bool = False
    taps: str | None = None
    as_: str = ""
    batch: int = 1
    compute: str = "f32"
    ring: bool = False
    kv: str = "compute"

    def lowered(self, config: Config, layout: Layout) -> Graph:
        """The graph of a config whose weights are held as `layout` says. Imports JAX where the source is the reference."""
        arguments = (config, self.phase, self.head, self.capacity, self.bucket if self.phase != "decode" else 0)
        if self.source == "reference":
            from hloracle.reference.oracle.lower import lower

            return lower(*arguments, self.batch, self.compute, self.ring, self.kv)
        return Emitter(self.gemm).emit(*arguments, layout, self.batch, self.compute, self.ring, self.kv)


def emit_file(asked: Emission, output: Path) -> tuple[Path, ...]:
    """Write the graph to `output` and, where that is a file, the ABI beside it; returns the paths.

    Raises InputError for what does not go together.
    """
    if not output.name:
        raise InputError("names no file", f"-o {output}", "name the graph's file")
    _check(asked)
    precision = asked.precision
    directory = resolve(asked.model, precision=precision if precision in QUANTIZED else "f32", as_=asked.as_)
    config = load_config(directory)
    refuse_beyond_positions(config, asked.capacity)
    if asked.ring:
        refuse_without_rings(config, asked.capacity)
    if asked.compute != "f32":
        held: Layout = default_layout(config, asked.compute, panels=False)
    elif precision in QUANTIZED:
        held = open_checkpoint(directory).layout(precision, asked.layout == "panels", batch=asked.batch)
    else:
        held = default_layout(config, precision, asked.layout == "panels")
    held = fused(config, held) if asked.fuse else held
    if asked.source == "emitter" and not asked.portable and asked.taps is None:
        graph = asked.lowered(config, held)
        data: str | bytes = graph.text
    else:
        graph, data = run_in_child(_lower, asked, config, held, timeout=900).value
    abi_path = output.parent / f"{output.stem}.abi.json"
    write_file(output, data)
    if is_special(output):
        return (output,)
    try:
        write_file(abi_path, graph.abi.to_json())
    except BaseException:
        output.unlink()  # a graph without its ABI is half of what was asked for
        raise
    return output, abi_path


def _check(asked: Emission) -> None:
    """Raises InputError that names the flag which cannot be used, or does not go with another one."""
    check_contract(asked.phase, asked.head, asked.capacity, asked.bucket, asked.batch)
    refuse_beside_int8(asked.kv, asked.compute, asked.ring)
    reference = asked.source == "reference"
    if asked.compute != "f32":
        for flag, value in (("--precision", asked.precision), ("--gemm", asked.gemm or "f32")):
            if value not in ("f32", asked.compute):
                what = f"is {value}, and a graph that computes in {asked.compute} has weights of that type"
                raise InputError(what, flag, "leave it out")
    if reference and asked.precision != "f32":
        raise InputError(f"is {asked.precision}", "--precision", "the reference's graphs take float32 weights")
    if asked.gemm is not None:
        if not (asked.gemm.isascii() and asked.gemm.isidentifier()):
            where = f"--gemm {asked.gemm!r}"
            raise InputError("is no identifier", where, "name the function as it is in C, such as my_gemm")
        for flag, needed in (("source", "emitter"), ("precision", "f32"), ("layout", "rows")):
            if (value := getattr(asked, flag)) != needed:
                raise InputError(f"is {value}, and --gemm goes with {needed}", f"--{flag}", f"add --{flag} {needed}")
    if reference and asked.fuse:
        raise InputError("is given", "--fused", "the reference's graphs take weights one by one")


def _lower(report: object, asked: Emission, config: Config, layout: Layout) -> tuple[Graph, str | bytes]:
    from hloracle.localize.anatomy import anatomy_of
    from hloracle.reference.oracle.lower import portable_artifact

    graph = asked.lowered(config, layout)
    if asked.taps is not None:
        anatomy = anatomy_of(graph, config)
        graph = anatomy.with_outputs(_chosen(asked.taps, [a for a in anatomy.anchors if a != "token"]))
    return graph, portable_artifact(graph) if asked.portable else graph.text


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
