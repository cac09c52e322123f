"""Graphs from files: read with their ABI, held to the model's shapes, and refused where they are no graph of that ABI.

What is refused here has no verdict: a graph that anyone wrote is judged only where it can be said what running it means.
docs/abi.md says which mistakes are refused and which are judged.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import InputError
from hloracle.core.given import as_text, read_bytes
from hloracle.core.shown import shown
from hloracle.emitters.builder import TensorType
from hloracle.foreign.diagnostics import functions_of, invalid
from hloracle.localize.text import without_locations
from hloracle.reference.model.checkpoint import QUANTIZED, Checkpoint
from hloracle.reference.model.encodings import ENCODINGS, argument_parts, of_precision
from hloracle.reference.model.weights import fusions, parts_in, taken_shapes, weight_shapes

LARGEST = 2**30  # bytes of a graph's text, whose weights are arguments
BYTECODE = b"ML\xefR"

_NAME_TEXT = "name a StableHLO text file"
_ANOTHER = 'name another one in the ABI\'s "function" key'
_ITS_ABI = "give the ABI that belongs to this graph with --abi"
_NO_LOCATION = "write locations behind operations and arguments alone"
_ITS_MODEL = "name the model that the graph was written for"


def read_graph(path: Path, abi_path: Path) -> Graph:
    """The text of a graph with its ABI, none of it parsed. Raises InputError that names the file that cannot be used."""
    data = read_bytes(path, LARGEST, _NAME_TEXT)
    if data.startswith(BYTECODE):
        raise InputError(
            "is not text but MLIR bytecode", path, f"{_NAME_TEXT}: `stablehlo-translate --deserialize` writes one of it"
        )
    return Graph(path.stem, as_text(data, path, _NAME_TEXT), Abi.from_file(abi_path))


# ---- the ABI and the model


def fits(graph: Graph, abi_path: Path | str, checkpoint: Checkpoint) -> None:
    """Raises InputError unless weights, logits and caches of the ABI are those of the model."""
    abi, config = graph.abi, checkpoint.config
    shapes = weight_shapes(config) | taken_shapes(config, fusions(config))
    for argument in abi.weights:
        if wrong := _misfit(argument, shapes, checkpoint.encoded):
            raise InputError(wrong, abi_path, f"{_ITS_MODEL}, and its --precision")
    if abi.head == "logits" and abi.results[0].shape[-1] != config.vocab_size:
        raise InputError(
            f"logits are {abi.results[0].type}, and in the model they are [{config.vocab_size}] f32",
            abi_path,
            _ITS_MODEL,
        )
    windowed = config.windowed(abi.capacity)
    if abi.windowed and (abi.windowed, abi.ring) != (windowed, config.ring(abi.capacity)):
        raise InputError(
            f"rings of {abi.ring} slots hold layers {', '.join(map(str, abi.windowed))}, and in the model a window of up to "
            f"{config.ring(abi.capacity)} keys is in {', '.join(map(str, windowed)) or 'no layer'}",
            abi_path,
            _ITS_MODEL,
        )
    shapes = (config.held_shapes if abi.windowed else config.cache_shapes)(abi.capacity)
    for role, (layers, heads, _, width) in shapes.items():
        cache = abi.results[abi.result(role)]
        if (cache.shape[0], cache.shape[-3], cache.shape[-1]) != (layers, heads, width):
            raise InputError(
                f"{role} is {cache.type}, and in the model it is [{layers}, {heads}, S, {width}] f32: "
                "layers, key/value heads, slots, numbers of each",
                abi_path,
                "give the caches these axes, in the graph and in its ABI",
            )
    if abi.bucket > abi.capacity:
        raise InputError(
            f"tokens are {abi.bucket}, and the caches have {abi.capacity} slots",
            abi_path,
            "give the caches a slot for each token",
        )


def _misfit(argument: Tensor, shapes: Mapping[str, tuple[int, ...]], encoded: Mapping[str, str]) -> str:
    """What is wrong with a weight of the ABI; empty where the model has it just so.

    shapes: of the model's weights, fused ones too. encoded: weights that the checkpoint has as integers -> encoding.
    """
    weight, encoding, index = argument_parts(argument.name)
    if weight not in shapes:
        near = difflib.get_close_matches(weight[:200], shapes, 1)
        return f"the model has no weight {weight}" + (f", the nearest is {near[0]}" if near else "")
    shape, parts = shapes[weight], parts_in(weight)
    is_of = f"weight {argument.name} is {argument.type}, and in the model it is"
    held = dict.fromkeys(encoded.get(part, "float32") for part in parts)
    if of_precision(encoding) in QUANTIZED and list(held) != [of_precision(encoding)]:
        return f"{is_of} in {' and '.join(held)}"
    if encoding and not all(ENCODINGS[encoding].fits(shapes[part]) for part in parts):
        return f"{is_of} {list(shape)}, which {encoding} cannot hold"
    wanted, dtype = ENCODINGS[encoding].types(shape)[index] if encoding else (shape, "f32")
    return "" if (wanted, dtype) == (argument.shape, argument.dtype) else f"{is_of} {list(wanted)} {dtype}"


# ---- the text and the ABI


def refusal(graph: Graph, path: Path | str, of_file: bool = True) -> InputError | None:
    """Why a graph is not one of its ABI, or None where it is one, or where it does not parse and comes from no file.

    What does not parse is bad input as a file, and as a source's graph a finding about the source.
    Imports jaxlib, which carries MLIR; for a process of its own, because MLIR's parser crashes on what is nested too deep.
    """
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir

    with jax_mlir.make_ir_context():
        try:
            module = ir.Module.parse(graph.text)
            module.operation.verify()
        except (ir.MLIRError, ValueError) as error:
            return invalid(graph.text, error, path) if of_file else None
        try:
            ir.Module.parse(without_locations(graph.text))
        except (ir.MLIRError, ValueError):  # what shows where an operation stands reads it so
            return InputError("does not parse without its locations: one of them is an attribute", path, _NO_LOCATION)
        return _unlike(module, graph.abi, path)


def _unlike(module: Any, abi: Abi, path: Path | str) -> InputError | None:
    """Where a parsed module has no function of that ABI: its donations aside, which get a verdict."""

    def refused(what: str, fix: str) -> InputError:
        return InputError(what, path, fix)

    if inner := sum(op.operation.name == "builtin.module" for op in module.body.operations):
        return refused(f"holds {inner} modules" if inner > 1 else "holds a module inside a module", "write one module")
    try:
        functions = functions_of(module, path)
    except InputError as error:
        return error
    name = shown(f"@{abi.function}", 80)
    if abi.function not in functions:
        return refused(f"has no function {name}; it has {_named(functions)}", _ANOTHER if functions else "write it")
    function = functions[abi.function]
    blocks = len(function.regions[0].blocks)
    if not blocks:
        return refused(f"{name} is declared and has no body", f"write one, or {_ANOTHER}")
    if (visibility := symbol(function, "sym_visibility")) not in ("", "public"):
        return refused(f"{name} is {visibility}, so that nothing can call it", f"make it public, or {_ANOTHER}")
    if blocks > 1:
        return refused(f"{name} has {blocks} blocks", "write it as one: StableHLO branches inside operations")
    wrong = next(differences(function, abi), "")
    return refused(wrong, _ITS_ABI) if wrong else None


def differences(function: Any, abi: Abi) -> Iterator[str]:
    """Where a function takes or returns something else than the ABI says, in words."""
    from jaxlib.mlir import ir

    type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    for what, types, tensors in (("arguments", type.inputs, abi.arguments), ("results", type.results, abi.results)):
        count = ""
        if len(types) != len(tensors):
            count = f"{shown(f'@{abi.function}', 80)} has {len(types)} {what}, and the ABI {len(tensors)}: "
        for i, (got, tensor) in enumerate(itertools.zip_longest(types, tensors)):
            if tensor is None:
                yield f"{count}the ABI has no {what}[{i}], {shown(str(got), 80)}"
                continue
            wanted = str(TensorType(tensor.shape, tensor.dtype))
            if got is None:
                yield f"{count}{what}[{i}] ({tensor.name}), {wanted}, is missing"
            elif str(got) != wanted:
                yield f"{count}{what}[{i}] ({tensor.name}) is {shown(str(got), 80)}, and the ABI says {wanted}"


def symbol(function: Any, key: str) -> str:
    """A string among a function's attributes; empty where it is not there."""
    return str(function.attributes[key].value) if key in function.attributes else ""


def _named(functions: Collection[str]) -> str:
    named = ", ".join(shown(f"@{name}", 80) for name in list(functions)[:5])
    return (named or "none") + (f" and {len(functions) - 5} more" if len(functions) > 5 else "")
