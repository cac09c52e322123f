"""The contract of the two graphs: which arguments and results `prefill` and `decode` have.

The reference and the emitter are both held to it, so that either can stand in for the other. No JAX.
"""

from __future__ import annotations

from collections.abc import Sequence

from hloracle.core.abi import Abi, Tensor
from hloracle.core.bounds import CAPACITY
from hloracle.core.errors import InputError
from hloracle.reference.model.config import Config
from hloracle.reference.model.encodings import ENCODINGS, Layout
from hloracle.reference.model.weights import taken_shapes

PHASES = ("prefill", "decode")  # in the order in which a session runs them
HEADS = ("token", "logits")
BUCKETS = (32, 64, 128, 256)


def check_contract(phase: str, head: str, capacity: int, bucket: int) -> None:
    """Raises InputError that names the argument, unless this is a graph that a session runs; bucket: of a prefill."""
    for flag, given, known in (("--phase", phase, PHASES), ("--head", head, HEADS)):
        if given not in known:
            raise InputError(f"is {given!r}", flag, f"give one of {', '.join(known)}")
    if type(capacity) is not int or capacity < 1:
        raise InputError(f"is {capacity!r}", "--capacity", "give at least one slot")
    if capacity > CAPACITY:
        raise InputError(f"is more than {CAPACITY:,}", "--capacity", "ask for fewer slots")
    if phase == "prefill" and (type(bucket) is not int or bucket not in BUCKETS):
        raise InputError(f"is {bucket!r}", "--bucket", f"give one of {', '.join(map(str, BUCKETS))}")


def graph_abi(
    config: Config, phase: str, head: str, capacity: int, bucket: int = 0, layout: Layout | None = None
) -> Abi:
    """The ABI of one graph; `capacity` is the cache slots S, `bucket` the prompt tokens T of a prefill.

    Weights are held, and fused, as `layout` says, plain float32 without one.

    Caches are [layers, K, S, D], or as wide as `Config.cache_widths` says. A decode graph's caches are donated: results
    alias arguments.
    """
    if phase == "prefill" and not 0 < bucket <= capacity:
        raise InputError(f"bucket {bucket} does not fit capacity {capacity}", "prefill", "raise the capacity")
    weights: list[Tensor] = []
    for name, shape in taken_shapes(config, layout or {}).items():
        encoding = (layout or {}).get(name)
        weights += ENCODINGS[encoding].tensors(name, shape) if encoding else [Tensor("weight", name, shape, "f32")]
    shapes = config.cache_shapes(capacity)
    if phase == "prefill":
        inputs = [Tensor("tokens", "tokens", (bucket,), "i32"), Tensor("length", "length", (), "i32")]
        aliases: dict[str, int] = {}
    else:
        inputs = [Tensor("token", "token", (), "i32"), Tensor("position", "position", (), "i32")]
        inputs += [Tensor(name, name, shape, "f32") for name, shape in shapes.items()]
        aliases = {"k_cache": len(weights) + 2, "v_cache": len(weights) + 3}
    heads = {
        "token": Tensor("token", "token", (), "i32"),
        "logits": Tensor("logits", "logits", (config.vocab_size,), "f32"),
    }
    caches = (Tensor(name, name, shape, "f32", aliases=aliases.get(name)) for name, shape in shapes.items())
    return Abi(phase, (*weights, *inputs), (heads[head], *caches))


def effective_window(window: int | None, keys: int) -> int | None:
    """The window of a layer in a graph of so many keys; None where every key before a query is in it."""
    return window if window is not None and window < keys else None


def graph_name(config: Config, phase: str, head: str, bucket: int) -> str:
    """e.g. `llama_prefill_64_token`"""
    return "_".join([config.architecture, phase, *([str(bucket)] if phase == "prefill" else []), head])


def bucket_for(length: int, buckets: Sequence[int] = BUCKETS) -> int:
    """The smallest bucket that holds `length` tokens. Raises InputError beyond the largest."""
    if length < 1:
        raise InputError("is empty", "prompt", "give at least one token")
    for bucket in buckets:
        if length <= bucket:
            return bucket
    raise InputError(f"has {length} tokens, more than the largest bucket of {buckets[-1]}", "prompt", "shorten it")
