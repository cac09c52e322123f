"""The ABI of a graph: what each argument and result is.

Every graph file `NAME.mlir` has `NAME.abi.json` beside it, so that a graph which
somebody else wrote can be run and judged without knowing how it was made.
Standard library only: emitters depend on this file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# What a graph of each phase takes after the weights, before caches and state.
INPUTS = {
    "prefill": ("tokens", "length"),
    "extend": ("tokens", "length", "position", "row", "total"),
    "decode": ("token", "position"),
}
HEADS, CACHES = ("token", "logits"), ("k_cache", "v_cache")
# The caches of layers that attend within a window, where those are as long as the window: position p is in slot p mod W.
RINGS = ("k_ring", "v_ring")
# Of caches in int8: what the integers of each slot of each head are multiplied with.
SCALES = ("k_scale", "v_scale")
KEPT = (*CACHES, *RINGS, *SCALES)
# The function of an adapted graph that says which of its rows is judged: see `foreign/around.py`.
JUDGED_ROW = "judged_row"
ARGUMENT_ROLES = ("weight", "token", "tokens", "position", "length", "row", "total", *KEPT, "state")
RESULT_ROLES = ("token", "logits", *KEPT, "state", "tap")
# Roles whose entries have names of their own; in a file all others are named as their role.
OWN_NAMES = ("weight", "state", "tap")
DTYPE_BYTES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "ui64": 8, "ui32": 4, "ui16": 2,
    "ui8": 1, "i1": 1,
}  # fmt: skip
# How an argument may hold a weight; docs/encodings.md says what each means.
ENCODINGS = (
    "plain", "panels", "bf16", "bf16.panels", "f16", "f16.panels",
    "int8.low", "int8.high", "int8.scale", "int4.nibbles", "int4.scale", "int4.minimum",
    "int8.panels.low", "int8.panels.high", "int8.panels.scale",
    "int4.panels.nibbles", "int4.panels.scale", "int4.panels.minimum",
)  # fmt: skip

# Rank and dtype of every role that has one; caches are [layers, K, S, D], their scales [layers, K, S]. Of several rows, those in BY_ROW
# have an axis more.
TYPES = {
    **dict.fromkeys(("token", "position", "length", "row", "total"), (0, "i32")),
    "tokens": (1, "i32"),
    "logits": (1, "f32"),
    **dict.fromkeys((*CACHES, *RINGS), (4, "f32")),
    **dict.fromkeys(SCALES, (3, "f32")),
}
# What a graph may compute in: the dtype of its values between modules, and of its caches. Logits are f32 of all.
COMPUTE = ("f32", "bf16", "f16")
# What it may keep keys and values in: in what it computes in, or in 8 bits.
KV = ("compute", "int8")
BY_ROW = {
    "decode": ("token", "position", "logits", *KEPT),
    "extend": KEPT,
    "prefill": (),
}


@dataclass(frozen=True)
class Tensor:
    """One argument or result.

    `encoding` says how the bytes stand for values: `plain` for an ordinary tensor, else one of ENCODINGS, and `name` is
    the weight's with that behind it.
    `aliases`, on a result, is the index of the argument whose buffer it reuses.
    """

    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    encoding: str = "plain"
    aliases: int | None = None

    @property
    def weight(self) -> str:
        """The weight that this argument holds, or a part of which it holds."""
        return self.name if self.encoding == "plain" else self.name.removesuffix(f".{self.encoding}")

    @property
    def type(self) -> str:
        """e.g. `[3, 2, 256, 16] f32`"""
        return f"[{_listed(self.shape)}] {self.dtype}" if self.shape else f"a scalar {self.dtype}"

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer that holds it, as it is encoded; an i1 takes a whole byte."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Abi:
    """The arguments and results of one graph, in order.

    phase: `prefill`, of a whole prompt; `extend`, of the next tokens of one; or `decode`, of one token in each row.
    positions: how many tokens a sequence may have, where no cache says it; else 0. windowed: the layers whose keys and values are
    in the rings, in their order there; those of the others are in the caches.
    """

    phase: str
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    function: str = "main"
    positions: int = 0
    windowed: tuple[int, ...] = ()

    def argument(self, role: str) -> int:
        """The index of the only argument with this role."""
        (index,) = (i for i, a in enumerate(self.arguments) if a.role == role)
        return index

    def result(self, role: str) -> int:
        """The index of the only result with this role."""
        (index,) = (i for i, r in enumerate(self.results) if r.role == role)
        return index

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The arguments that hold weights, in the graph's order; an encoded weight may take several."""
        return tuple(a for a in self.arguments if a.role == "weight")

    @property
    def head(self) -> str:
        """`token` or `logits`: the role of the first result."""
        return self.results[0].role

    @property
    def capacity(self) -> int:
        """Cache slots `S`, the last axis but one of the caches. Without k_cache, how many tokens a sequence may have."""
        return self._slots("k_cache") or self.positions

    @property
    def ring(self) -> int:
        """Slots `W` of the rings; 0 without rings."""
        return self._slots("k_ring")

    def _slots(self, role: str) -> int:
        return next((r.shape[-2] for r in self.results if r.role == role), 0)

    @property
    def compute(self) -> str:
        """What it computes in, one of COMPUTE: the dtype of its caches, or of their scales; f32 where it has none."""
        held = SCALES if self.kv == "int8" else (*CACHES, *RINGS)
        return next((r.dtype for r in self.results if r.role in held), "f32")

    @property
    def kv(self) -> str:
        """What it keeps keys and values in, one of KV: `int8` where its caches have scales."""
        return "int8" if any(r.role in SCALES for r in self.results) else "compute"

    @property
    def batch(self) -> int:
        """Rows `B`: of several, the caches are `[layers, B, K, S, D]`."""
        rank = TYPES["k_cache"][0] + 1
        return next((r.shape[1] for r in self.results if r.role in ("k_cache", "k_ring") and len(r.shape) == rank), 1)

    @property
    def caches(self) -> tuple[str, ...]:
        """The caches, the rings and the scales that it returns: both of a kind, or none."""
        return tuple(r.role for r in self.results if r.role in KEPT)

    def role(self, cache: str, layer: int) -> str:
        """Where a layer's keys (`k_cache`) or values are: in the cache, or in the ring."""
        return ring_of(cache) if layer in self.windowed else cache

    def keys(self, layer: int) -> int:
        """Keys that the queries of a layer may attend to: T in prefill, else cache slots; of a ring in extend, T more than it has."""
        if self.phase == "prefill":
            return self.bucket
        return self.ring + self.bucket if layer in self.windowed else self.capacity

    @property
    def cache_shapes(self) -> list[tuple[int, ...]]:
        """Of k_cache and v_cache of one row, [L, K, S, D] with all layers, wherever these are kept; empty without any."""
        by_role = {r.role: r.shape for r in self.results}
        found: list[tuple[int, ...]] = []
        for cache, ring in zip(CACHES, RINGS, strict=True):
            some = [by_role[role] for role in (cache, ring) if role in by_role]
            if some:
                found.append((sum(shape[0] for shape in some), some[0][-3], self.capacity, some[0][-1]))
        return found

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What a step returns and the next one takes: the caches, and what is only handed on."""
        return tuple(r for r in self.results if r.role in (*KEPT, "state"))

    @property
    def bucket(self) -> int:
        """Query tokens `T` of the graph of a prompt; 0 of a decode graph."""
        return 0 if self.phase == "decode" else self.arguments[self.argument("tokens")].shape[0]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What it takes of a call, after the weights and before the caches, in the graph's order."""
        return tuple(a for a in self.arguments if a.role in INPUTS[self.phase])

    def to_json(self) -> str:
        """The text of an ABI file, which `from_file` reads: the same for equal ABIs, as a cache's key needs it."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Abi:
        """Read and check an ABI file. Raises InputError that names the file and the entry."""
        from hloracle.core.abi_file import read_abi  # which reads into the classes of this file

        return read_abi(Path(path))

    def validate(self) -> None:
        """Raises ValueError unless this is the contract of a graph of its phase."""
        for contract in (_roles, _types, _caches, _names, _aliases):
            contract(self)


def ring_of(cache: str) -> str:
    """`k_ring` of `k_cache`."""
    return RINGS[CACHES.index(cache)]


def cache_of(role: str) -> str:
    """What a cache or a ring holds, or a scale is of: `k_cache` of `k_ring` and of `k_scale`, too."""
    return next((cache for cache, *others in zip(CACHES, RINGS, SCALES, strict=True) if role in others), role)


def scale_of(cache: str) -> str:
    """`k_scale` of `k_cache`."""
    return SCALES[CACHES.index(cache)]


def _roles(abi: Abi) -> None:
    if abi.phase not in INPUTS:
        raise ValueError(f"phase {abi.phase!r} is not one of {', '.join(INPUTS)}")
    results = tuple(r.role for r in abi.results)
    rings = RINGS if abi.windowed else ()
    caches = () if abi.positions else CACHES  # what has none says how many tokens a sequence may have
    scales = SCALES if abi.kv == "int8" else ()
    state = (*caches, *rings, *scales, *(role for role in results if role == "state"))
    roles = tuple(a.role for a in abi.arguments if a.role != "weight")
    absent = {role for role, has in (("row", abi.batch > 1), ("total", "total" in roles)) if not has}
    inputs = tuple(role for role in INPUTS[abi.phase] if role not in absent)
    wanted: tuple[str, ...] = inputs + (() if abi.phase == "prefill" else state)
    if roles != wanted:
        raise ValueError(
            f"{'an' if abi.phase == 'extend' else 'a'} {abi.phase} graph takes {_listed(wanted)} after the weights, not {_listed(roles)}"
        )
    for i, argument in enumerate(abi.arguments[: len(abi.arguments) - len(wanted)]):
        if argument.role != "weight":
            raise ValueError(f"arguments[{i}] ({argument.name}) stands before a weight, and the weights come first")
    after = results[1:]
    if (
        results[:1] not in {(head,) for head in HEADS}
        or after[: len(state)] != state
        or set(after[len(state) :]) - {"tap"}
    ):
        held = ", ".join((*CACHES, *rings, *scales))
        raise ValueError(f"the results are {_listed(results)}, not token or logits, {held}, and taps after them")


def _types(abi: Abi) -> None:
    for place, tensor in _entries(abi):
        if tensor.role not in TYPES:
            continue
        rank, dtype = TYPES[tensor.role]
        held = tensor.role in (*CACHES, *RINGS)
        if held and abi.kv == "int8":
            dtype = "i8"
        elif tensor.role in KEPT and tensor.dtype in COMPUTE:
            dtype = abi.compute  # the same in all of them
        by_row = abi.batch > 1 and tensor.role in BY_ROW[abi.phase]
        if (len(tensor.shape), tensor.dtype) != (rank + by_row, dtype):
            raise ValueError(f"{place} is {tensor.type}, not of rank {rank + by_row} and {dtype}")
        if by_row and tensor.role not in KEPT and tensor.shape[0] != abi.batch:
            raise ValueError(f"{place} is {tensor.type}, and the caches have {abi.batch} rows")


def _caches(abi: Abi) -> None:
    """Keys and values may differ in width alone: a latent is wider than what RoPE turns. Rings have other layers and fewer slots."""
    for roles in (CACHES, RINGS):
        caches = [(place, tensor) for place, tensor in _entries(abi) if tensor.role in roles]
        if not caches:
            continue
        (one, first), *others = caches
        same = {first.role: first.shape}
        for place, cache in others:
            if cache.shape[:-1] != first.shape[:-1] or same.setdefault(cache.role, cache.shape) != cache.shape:
                raise ValueError(f"caches have different shapes: {one} is {first.type}, {place} {cache.type}")
    _scales(abi)
    _rings(abi)


def _scales(abi: Abi) -> None:
    """There is a scale for each slot of each head."""
    slots = abi.results[abi.result("k_cache")].shape[:-1] if "k_cache" in abi.caches else ()
    for place, tensor in _entries(abi):
        if tensor.role in SCALES and tensor.shape != slots:
            raise ValueError(f"{place} is {tensor.type}, and the caches have slots [{_listed(slots)}]")
    if abi.windowed and abi.kv == "int8":
        raise ValueError("there are rings and scales: keep keys and values in int8 without rings")


def _rings(abi: Abi) -> None:
    """A ring has the layers that the ABI says, as many rows as the caches, and fewer slots."""
    if not abi.windowed:
        return
    index = abi.result("k_ring")
    ring, place = abi.results[index], f"results[{index}] (k_ring)"
    caches = [r for r in abi.results if r.role == "k_cache"]
    layers = len(abi.windowed) + sum(cache.shape[0] for cache in caches)
    if ring.shape[0] != len(abi.windowed):
        raise ValueError(f"{place} is {ring.type}, and windowed names {len(abi.windowed)} layers")
    if list(abi.windowed) != sorted(set(abi.windowed)) or abi.windowed[-1] >= layers:
        raise ValueError(f"windowed is {_listed(abi.windowed)}: not layers from 0 to {layers - 1} that rise")
    if ring.shape[-2] >= abi.capacity:
        raise ValueError(f"{place} is {ring.type}, and a ring has fewer slots than the {abi.capacity} of a sequence")
    if any(cache.shape[1:-2] != ring.shape[1:-2] for cache in caches):
        raise ValueError(f"{place} is {ring.type}, and k_cache {caches[0].type}: other rows, or other heads")


def _names(abi: Abi) -> None:
    for key, tensors in (("arguments", abi.arguments), ("results", abi.results)):
        first: dict[str, int] = {}
        for i, tensor in enumerate(tensors):
            if first.setdefault(tensor.name, i) != i:
                raise ValueError(f"{key}[{first[tensor.name]}] and {key}[{i}] are both named {tensor.name}")


def _aliases(abi: Abi) -> None:
    taken: dict[int, str] = {}
    for place, result in _entries(abi):
        if result.aliases is None:
            continue
        if not 0 <= result.aliases < len(abi.arguments):
            raise ValueError(f"{place} aliases argument {result.aliases}, and there are {len(abi.arguments)}")
        target = abi.arguments[result.aliases]
        alias = f"{place} aliases arguments[{result.aliases}] ({target.name})"
        if target.role == "weight":
            raise ValueError(f"{alias}, a weight, which the next step needs as well")
        if (target.shape, target.dtype) != (result.shape, result.dtype):
            raise ValueError(f"{alias}, which is {target.type} and not {result.type}")
        if taken.setdefault(result.aliases, place) != place:
            raise ValueError(f"{alias}, as {taken[result.aliases]} does")


def _entries(abi: Abi) -> Iterator[tuple[str, Tensor]]:
    for key, tensors in (("arguments", abi.arguments), ("results", abi.results)):
        yield from ((f"{key}[{i}] ({tensor.name})", tensor) for i, tensor in enumerate(tensors))


def _listed(items: Sequence[object]) -> str:
    more = f" and {len(items) - 8:,} more" if len(items) > 8 else ""
    return (", ".join(map(str, items[:8])) or "nothing") + more


@dataclass(frozen=True)
class Taken:
    """Something that somebody else's graph takes. what: as `foreign/binding.py` has it, such as `formula` or `cache`.

    index: of its argument.
    """

    name: str
    what: str
    index: int


@dataclass(frozen=True)
class Origin:
    """A line of an emitter's Python: its file, from the package's folder on, and the function that it stands in."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Graph:
    """A StableHLO module as text, with its ABI. `name` is for people and file names.

    flags: what IREE compiles it with, beside what names the device. on_device: what is looked up at a token or a position
    is looked up by the graph's own operations; of the emitter's.
    inner: the function that somebody wrote, where the ABI's function only adapts it to the contract; else empty.
    written: the text in which lines count, where `text` is what became of it; else empty. rows: B, of somebody else's graph.
    takes: of such a graph, what it takes beside weights, in its order. unreturned: the state that it takes and never returns,
    in words.
    origins: of lines of the text, counted from 1, what wrote them, the innermost first; of the bundled emitter's.
    """

    name: str
    text: str = field(repr=False)
    abi: Abi = field(repr=False)
    flags: tuple[str, ...] = ()
    on_device: bool = False
    inner: str = ""
    written: str = field(default="", repr=False)
    rows: int = 1
    takes: tuple[Taken, ...] = ()
    unreturned: tuple[str, ...] = ()
    origins: Mapping[int, tuple[Origin, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def identity(self) -> str:
        """All that decides what a backend makes of it: for a key of the cache."""
        return self.text + self.abi.to_json() + json.dumps(self.flags)

    def of_row(self, row: int) -> Graph:
        """The same, where always this row of a graph of several is judged, and not each in turn."""
        if self.rows == 1:
            return self
        turns = re.compile(rf"(@{JUDGED_ROW}\(%arg0: tensor<i32>\) -> tensor<i32> \{{\n.*\n).*")
        constant = f"    %0 = stablehlo.constant dense<{row}> : tensor<i32>"
        return dataclasses.replace(self, text=turns.sub(lambda found: found[1] + constant, self.text))

    def save(self, path: str | os.PathLike[str]) -> tuple[Path, Path]:
        """Write the text to a file, and NAME.abi.json beside it; returns both paths. Raises InputError."""
        from hloracle.core.files import write_file  # emitters, which read this file, need no cache

        file = Path(path)
        abi = file.parent / f"{file.stem}.abi.json"
        write_file(file, self.text)
        write_file(abi, self.abi.to_json())
        return file, abi
