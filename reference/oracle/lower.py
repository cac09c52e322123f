"""The oracle as a graph: lowers the JAX model to StableHLO text and to a portable artifact."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.core.abi import Abi, Graph
from hloracle.core.locations import name_of
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import graph_abi, graph_name
from hloracle.reference.oracle.model import decode, extend, prefill

ANCHOR_PART = re.compile(r"layers\.\d+|[a-z_]+")
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "i32": jnp.int32, "i8": jnp.int8}


def lower(
    config: Config, phase: str, head: str = "token", capacity: int = 256, bucket: int = 0, batch: int = 1,
    compute: str = "f32", ring: bool = False, kv: str = "compute",
) -> Graph:  # fmt: skip
    """The oracle graph of one phase, with the same ABI as the emitter's. See `contract.py` for the arguments.

    Every operation's location is the anchor it was traced in, so that both graphs speak of the same places.
    """
    abi = graph_abi(config, phase, head, capacity, bucket, None, batch, compute, ring, kv)
    arguments = [jax.ShapeDtypeStruct(a.shape, DTYPES[a.dtype]) for a in abi.arguments]
    weights, inputs = arguments[: len(abi.weights)], arguments[len(abi.weights) :]
    function = _function(config, head, abi)
    # tf.aliasing_output is what makes the caches in place; keep_unused holds the ABI's argument order.
    caches = 0 if phase == "prefill" else len(abi.caches)
    donated = tuple(range(1 + len(inputs) - caches, 1 + len(inputs)))
    lowered = jax.jit(function, donate_argnums=donated, keep_unused=True).lower(weights, *inputs)
    module = lowered.compiler_ir("stablehlo")
    assert isinstance(module, ir.Module)
    name = graph_name(config, phase, head, bucket, batch, compute, ring, kv)
    with module.context:
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        _locations_to_anchors(module)
        text = str(module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False, use_local_scope=True))
    return Graph(name, text, abi)


def _function(config: Config, head: str, abi: Abi) -> Callable[..., tuple[Array, ...]]:
    """Of the weights, then of the inputs in the ABI's order, by whose names the graph's arguments are called."""
    names = [a.name for a in abi.arguments if a.role != "weight"]

    def step(weights: list[Array], *inputs: Array) -> tuple[Array, ...]:
        given = dict(zip(names, inputs, strict=True))
        if abi.phase == "prefill":
            empty = {r.role: jnp.zeros(r.shape, DTYPES[r.dtype]) for r in abi.results if r.role in abi.caches}
            return prefill(config, head, abi.capacity, weights, **given, caches=empty)
        step = extend if abi.phase == "extend" else decode
        caches = {role: given.pop(role) for role in abi.caches}
        return step(config, head, abi.capacity, weights, **given, caches=caches)

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("weights", *names)]
    step.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return step


def _locations_to_anchors(module: ir.Module) -> None:
    """Replace `jit(decode)/layers.3/mlp/act/mul` and its call stack by `layers.3.mlp.act`: no paths, no lines."""

    def visit(operation: ir.Operation) -> ir.WalkResult:
        path = name_of(operation.location).split("/")[:-1]
        # einsum and jit add segments of their own, such as `ti,oi->to` and `jit(main)`.
        anchor = ".".join(part for part in path if ANCHOR_PART.fullmatch(part))
        operation.location = ir.Location.name(anchor) if anchor else ir.Location.unknown()
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def portable_artifact(graph: Graph) -> bytes:
    """The graph as versioned StableHLO bytecode, which later versions of StableHLO still read."""
    with jax_mlir.make_ir_context():
        return bytes(stablehlo.serialize_portable_artifact_str(graph.text, stablehlo.get_current_version()))
