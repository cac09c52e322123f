"""The contract of the graphs: which arguments and results `prefill`, `extend` and `decode` have.

The reference and the emitter are both held to it, so that either can stand in for the other. No JAX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hloracle.core.abi import KV, Abi, Tensor
from hloracle.core.bounds import BATCH, CAPACITY
from hloracle.core.errors import InputError
from hloracle.reference.model.config import Config
from hloracle.reference.model.encodings import ENCODINGS, Layout
from hloracle.reference.model.weights import taken_shapes

PROMPT = ("prefill", "extend")  # what a prompt goes through: all at once, or part by part
PHASES = (*PROMPT, "decode")  # in the order in which a session runs them
HEADS = ("token", "logits")
BUCKETS = (32, 64, 128, 256)


class GraphSpec(NamedTuple):
    """Which graph of a model. See `graph_abi`.

    bucket: T of a prefill, or of an extend; 0 of a decode. batch: B. compute: what it computes in. ring: layers with a window
    that is shorter than the capacity have caches as long as the longest of these windows. kv: what keys and values are kept in.
    """

    phase: str
    head: str
    capacity: int
    bucket: int = 0
    batch: int = 1
    compute: str = "f32"
    ring: bool = False
    kv: str = "compute"

    @property
    def name(self) -> str:
        """e.g. `prefill_64_token`, `decode_token_batch_4`, `decode_token_bf16`, `decode_token_ring`, or `decode_token_kv_int8`"""
        parts = [self.phase, *([str(self.bucket)] if self.phase != "decode" else []), self.head]
        parts += ["batch", str(self.batch)] if self.batch > 1 else []
        parts += [self.compute] if self.compute != "f32" else []
        parts += ["ring"] if self.ring else []
        return "_".join([*parts, *([f"kv_{self.kv}"] if self.kv != "compute" else [])])


def check_contract(phase: str, head: str, capacity: int, bucket: int = 0, batch: int = 1) -> None:
    """Raises InputError that names the argument, unless this is a graph that a session runs; bucket: of a prompt's graph."""
    for flag, given, known in (("--phase", phase, PHASES), ("--head", head, HEADS)):
        if given not in known:
            raise InputError(f"is {given!r}", flag, f"give one of {', '.join(known)}")
    if type(capacity) is not int or capacity < 1:
        raise InputError(f"is {capacity!r}", "--capacity", "give at least one slot")
    if capacity > CAPACITY:
        raise InputError(f"is more than {CAPACITY:,}", "--capacity", "ask for fewer slots")
    if type(batch) is not int or not 1 <= batch <= BATCH:
        raise InputError(f"is {batch!r}", "--batch", f"give 1 to {BATCH:,} rows")
    if phase == "prefill" and batch > 1:
        raise InputError("is 'prefill', which has one row", "--phase", "give extend, which fills a row of a batch")
    if phase != "decode" and (type(bucket) is not int or bucket not in BUCKETS):
        raise InputError(f"is {bucket!r}", "--bucket", f"give one of {', '.join(map(str, BUCKETS))}")


def refuse_beyond_positions(config: Config, capacity: int, name: str = "the model") -> None:
    """Raises InputError for more slots than the model has positions; where RoPE is `dynamic`, it may have any number."""
    most = config.max_position_embeddings
    if capacity > most and all(rope.type != "dynamic" for rope in config.ropes):
        raise InputError(f"is {capacity:,}, and {name} has {most:,} positions", "--capacity", "ask for at most as many")


def refuse_without_rings(config: Config, capacity: int) -> None:
    """Raises InputError where no layer could have a ring."""
    if not config.windowed(capacity):
        windows = [window for window in config.windows if window is not None]
        what = f"the shortest has {min(windows):,} keys" if windows else "the model has none"
        raise InputError(
            f"needs a layer with a window of fewer keys than the {capacity:,} slots, and {what}", "--ring",
            "raise --capacity, or leave it out" if windows else "leave it out",
        )  # fmt: skip


def refuse_beside_int8(kv: str, compute: str, ring: bool) -> None:
    """Raises InputError for what does not go with keys and values in int8, and for what they are not kept in."""
    if kv not in KV:
        raise InputError(f"is {kv!r}", "--kv", f"give one of {', '.join(KV)}")
    if kv == "int8" and compute != "f32":
        raise InputError(f"is {compute}, and --kv int8 goes with f32", "--compute", "leave one of them out")
    if kv == "int8" and ring:
        raise InputError("is given beside --kv int8", "--ring", "leave one of them out")


def graph_abi(
    config: Config, phase: str, head: str, capacity: int, bucket: int = 0, layout: Layout | None = None, batch: int = 1,
    compute: str = "f32", ring: bool = False, kv: str = "compute",
) -> Abi:  # fmt: skip
    """The ABI of one graph; `capacity` is the cache slots S, `bucket` the tokens T of a prefill or an extend, `batch` the rows B.

    Weights are held, and fused, as `layout` says, plain float32 without one. The caches are of the dtype that it computes in.

    Caches are [layers, K, S, D], or as wide as `Config.cache_widths` says; of several rows, [layers, B, K, S, D]. Those that a
    graph takes are donated: results alias arguments. With `ring`, layers with a window shorter than S are in k_ring and v_ring,
    [layers, K, W, D], and the others alone in the caches, which are left out where there are none. With `kv` int8 the caches are i8,
    and k_scale and v_scale [layers, K, S] have what the integers of each slot are multiplied with.

    Raises InputError for a bucket that does not fit, for more slots than a graph counts, and for rings where no layer has one.
    """
    refuse_beside_int8(kv, compute, ring)
    if ring:
        refuse_without_rings(config, capacity)
    if phase != "decode" and not 0 < bucket <= capacity:
        raise InputError(f"bucket {bucket} does not fit capacity {capacity}", phase, "raise the capacity")
    weights: list[Tensor] = []
    for name, shape in taken_shapes(config, layout or {}).items():
        encoding = (layout or {}).get(name)
        weights += ENCODINGS[encoding].tensors(name, shape) if encoding else [Tensor("weight", name, shape, "f32")]

    def i32(name: str, *shape: int) -> Tensor:
        return Tensor(name, name, shape, "i32")

    rows = (batch,) if batch > 1 else ()
    if phase == "decode":
        inputs = [i32("token", *rows), i32("position", *rows)]
        heads = rows
    else:
        inputs, heads = [i32("tokens", bucket), i32("length")], ()
        inputs += [i32(name) for name in extend_inputs(config, capacity, batch)] if phase == "extend" else []
    shapes = config.held_shapes(capacity, batch) if ring else config.cache_shapes(capacity, batch)
    caches = [Tensor(name, name, shape, "i8" if kv == "int8" else compute) for name, shape in shapes.items()]
    if kv == "int8":
        scales = config.scale_shapes(capacity, batch)
        caches += [Tensor(name, name, shape, compute) for name, shape in scales.items()]
    if math.prod(caches[0].shape[:-1]) >= 2**31:  # a graph counts them in i32
        words = f"{batch} rows of {capacity:,} slots are more than the 2^31 slots of all layers that a graph counts"
        raise InputError(words, phase, "lower the capacity, or ask for fewer rows")
    results = [
        i32("token", *heads) if head == "token" else Tensor("logits", "logits", (*heads, config.vocab_size), "f32")
    ]
    positions, windowed = 0 if "k_cache" in shapes else capacity, config.windowed(capacity) if ring else ()
    if phase == "prefill":
        return Abi(phase, (*weights, *inputs), (*results, *caches), "main", positions, windowed)
    first = len(weights) + len(inputs)
    results += [replace(cache, aliases=first + i) for i, cache in enumerate(caches)]
    return Abi(phase, (*weights, *inputs, *caches), tuple(results), "main", positions, windowed)


def extend_inputs(config: Config, capacity: int, batch: int) -> tuple[str, ...]:
    """What an extend takes beside tokens and their number, before the caches.

    position: the slot of the first token. row: the row of the batch. total: how many tokens the whole prompt has, where the
    angles of RoPE depend on that.
    """
    turns = config.turning_point is not None and config.turning_point < capacity
    return ("position", *(["row"] if batch > 1 else []), *(["total"] if turns else []))


def effective_window(window: int | None, keys: int) -> int | None:
    """The window of a layer in a graph of so many keys; None where every key before a query is in it."""
    return window if window is not None and window < keys else None


def graph_name(
    config: Config, phase: str, head: str, bucket: int, batch: int = 1, compute: str = "f32", ring: bool = False,
    kv: str = "compute",
) -> str:  # fmt: skip
    """e.g. `llama_prefill_64_token`"""
    return f"{config.architecture}_{GraphSpec(phase, head, 0, bucket, batch, compute, ring, kv).name}"


def bucket_for(length: int, buckets: Sequence[int] = BUCKETS) -> int:
    """The smallest bucket that holds `length` tokens. Raises InputError beyond the largest."""
    if length < 1:
        raise InputError("is empty", "prompt", "give at least one token")
    for bucket in buckets:
        if length <= bucket:
            return bucket
    raise InputError(f"has {length} tokens, more than the largest bucket of {buckets[-1]}", "prompt", "shorten it")
