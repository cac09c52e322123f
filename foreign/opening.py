"""Somebody else's graphs of one emitter, read, held to its ABI file, and adapted to the contract.

Imports JAX; for a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from hloracle.core.abi import Graph
from hloracle.core.bindings import names_read
from hloracle.core.errors import InputError
from hloracle.core.shown import shown
from hloracle.foreign.adapter import Adapter, opaque_of
from hloracle.foreign.around import adapted
from hloracle.foreign.binding import Binding, Value, bind, phase_of
from hloracle.foreign.diagnostics import functions_of, invalid
from hloracle.foreign.file import AbiFile
from hloracle.foreign.reading import read_text
from hloracle.foreign.signature import Signature, signature_of
from hloracle.foreign.state import hands_on_caches
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.expressions import names_of
from hloracle.reference.model.weights import stored_shapes, weight_shapes


def open_graphs(paths: Sequence[Path], abi: AbiFile, model: Checkpoint) -> list[Graph]:
    """The graphs of files, each as one of the contract, and all of one session.

    Raises InputError that names the file that cannot be used, or the entry of the ABI file that does not fit.
    """
    texts = [read_text(path) for path in paths]
    bindings = [bound(path, text, abi, model) for path, text in zip(paths, texts, strict=True)]
    apart = [p for p, b in zip(paths, bindings, strict=True) if b.phase == "forward"]
    if 0 < len(apart) < len(paths):
        raise InputError("is a forward graph, which hands no cache on to another", apart[0], "check it by itself")
    slots = [b.sizes["S"] for b in bindings if "S" in b.sizes]
    decoding = [b.sizes["S"] for b in bindings if "S" in b.sizes and b.phase == "decode"]
    capacity = max(decoding or slots or [b.sizes.get("T", 1) for b in bindings])
    handed_on = any(b.phase == "decode" and hands_on_caches(b) for b in bindings)
    decoded = next((opaque_of(b) for b in bindings if b.phase == "decode"), None)
    for binding in bindings:
        _alike(abi, binding, decoded or ())
    graphs = []
    for path, text, binding in zip(paths, texts, bindings, strict=True):
        try:
            in_session = handed_on and binding.phase == "prefill"
            adapter = Adapter(binding, model.config, capacity, in_session, decoded)
            graphs.append(adapted(text, path.stem, adapter))
        except ValueError as error:
            what, *fix = error.args
            raise abi.wrong(f"{binding.phase}: {what}", *fix) from None
    return graphs


def _alike(abi: AbiFile, binding: Binding, decoded: Sequence[Value]) -> None:
    """Raises InputError where a graph returns state of another type than the decode graph takes."""
    returned = {v.text: v for v in opaque_of(binding)}
    for value in decoded:
        other = returned.get(value.text, value)
        if other.port.type != value.port.type:
            what = f"state.{value.text} is {other.port} in {binding.phase}, and {value.port} in decode"
            raise abi.wrong(what, "give the two names of their own")


def bound(path: Path, text: str, abi: AbiFile, model: Checkpoint) -> Binding:
    """A text's function held to the ABI file, in the phase that fits it."""
    names, shapes = names_of(model.config), shapes_of(model)
    signatures = signatures_of(text, path)
    phases = phase_of(abi, list(signatures), path.stem)
    if not phases:
        wanted = ", ".join(f"@{p.function} ({p.name})" for p in abi.phases.values())
        has = ", ".join(f"@{name}" for name in signatures) or "none"
        patterns = [p.file for p in abi.phases.values() if p.function in signatures]
        if patterns:
            raise InputError(
                f"is called like none of {shown(', '.join(patterns))}", path, "mend `file` in the ABI file"
            )
        raise InputError(f"has none of {shown(wanted)}; it has {shown(has)}", path, "name its function in the ABI file")
    failed: list[InputError] = []
    fitting: list[Binding] = []
    for phase in phases:
        try:
            fitting.append(bind(abi, phase, signatures[phase.function], names, shapes))
        except InputError as error:
            failed.append(error)
    if not fitting:
        raise failed[0]
    if any(b.phase == "decode" for b in fitting):  # what takes one token may be a prefill of one, by its shapes alone
        fitting = [b for b in fitting if b.sizes.get("T", 1) > 1 or b.phase == "decode"]
    if len(fitting) > 1:
        both = " and ".join(b.phase for b in fitting)
        raise InputError(f"fits {both}", path, 'say which files are of which phase: `file = "decode*"`')
    return fitting[0]


def shapes_of(model: Checkpoint) -> dict[str, tuple[int, ...]]:
    """The tensors that expressions may name: those that transformers has, and those that the files have."""
    return stored_shapes(model.config, frozenset(model.files)) | weight_shapes(model.config)


def signatures_of(text: str, path: Path) -> dict[str, Signature]:
    """Of each function of a text that has a body. Raises InputError where it does not parse."""
    with jax_mlir.make_ir_context():
        try:
            module: Any = ir.Module.parse(text)
            module.operation.verify()
        except (ir.MLIRError, ValueError) as error:
            raise invalid(text, error, path) from None
        functions = functions_of(module, path)
        with names_read(path):
            return {name: signature_of(f, text) for name, f in functions.items() if _callable(f)}


def _callable(function: Any) -> bool:
    """Whether a function can be called from outside, and has one block."""
    hidden = "sym_visibility" in function.attributes and str(function.attributes["sym_visibility"]) != '"public"'
    return not hidden and len(function.regions[0].blocks) == 1
