"""The ABI of a graph: what each argument and result is.

Every graph file `NAME.mlir` has `NAME.abi.json` beside it, so that a graph which
somebody else wrote can be run and judged without knowing how it was made.
Standard library only: emitters depend on this file.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloracle.core.errors import InputError

ARGUMENT_ROLES = ("weight", "token", "tokens", "position", "length", "k_cache", "v_cache")
RESULT_ROLES = ("token", "logits", "k_cache", "v_cache", "tap")
DTYPE_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i8": 1, "ui8": 1, "i1": 1}
# How an argument may hold a weight; docs/encodings.md says what each means.
ENCODINGS = (
    "plain", "panels", "bf16", "bf16.panels", "f16", "f16.panels",
    "int8.low", "int8.high", "int8.scale", "int4.nibbles", "int4.scale", "int4.minimum",
)  # fmt: skip

# Rank and dtype of every role that has one; caches are [layers, K, S, D].
TYPES = {
    **dict.fromkeys(("token", "position", "length"), (0, "i32")),
    "tokens": (1, "i32"),
    "logits": (1, "f32"),
    **dict.fromkeys(("k_cache", "v_cache"), (4, "f32")),
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
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Abi:
    """The arguments and results of one graph, in order. `phase` is `prefill` or `decode`."""

    phase: str
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    function: str = "main"

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
        return tuple(a for a in self.arguments if a.role == "weight")

    @property
    def head(self) -> str:
        """`token` or `logits`: the role of the first result."""
        return self.results[0].role

    @property
    def capacity(self) -> int:
        """Cache slots `S`; the caches are `[layers, K, S, D]`."""
        return self.results[self.result("k_cache")].shape[2]

    @property
    def bucket(self) -> int:
        """Query tokens `T` of a prefill graph."""
        return self.arguments[self.argument("tokens")].shape[0]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_file(path: Path) -> Abi:
        """Read and check an ABI file. Raises InputError that names the file and the entry."""
        fix = "write it in the form that `hloracle emit` writes beside its graphs"
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            raise InputError("no such file", path, "name the graph's .abi.json with --abi") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError(f"is not a readable ABI file ({error})", path, fix) from None
        try:
            abi = Abi(
                phase=raw["phase"],
                arguments=tuple(_tensor(a, ARGUMENT_ROLES) for a in raw["arguments"]),
                results=tuple(_tensor(r, RESULT_ROLES) for r in raw["results"]),
                function=raw.get("function", "main"),
            )
            abi.validate()
        except KeyError as error:
            raise InputError(f"is not a valid ABI ({error} is missing)", path, fix) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"is not a valid ABI ({error})", path, fix) from None
        return abi

    def validate(self) -> None:
        """Raises ValueError unless this is the contract of a prefill or a decode graph."""
        wanted = {
            "prefill": ["tokens", "length"],
            "decode": ["token", "position", "k_cache", "v_cache"],
        }
        if self.phase not in wanted:
            raise ValueError(f"phase {self.phase!r} is not one of {sorted(wanted)}")
        roles = [a.role for a in self.arguments if a.role != "weight"]
        if roles != wanted[self.phase]:
            raise ValueError(f"{self.phase} takes {wanted[self.phase]} after the weights, not {roles}")
        results = [r.role for r in self.results if r.role != "tap"]
        if results not in (["logits", "k_cache", "v_cache"], ["token", "k_cache", "v_cache"]):
            raise ValueError(f"results are {results}, not a head, k_cache and v_cache")
        if self.results[0].role == "tap":
            raise ValueError("the first result is a tap, not the head")
        for tensor in (*self.arguments, *self.results):
            if tensor.role in TYPES and (len(tensor.shape), tensor.dtype) != TYPES[tensor.role]:
                rank, dtype = TYPES[tensor.role]
                raise ValueError(
                    f"{tensor.name} is {list(tensor.shape)} {tensor.dtype}, not of rank {rank} and {dtype}"
                )
        caches = {(t.role, t.shape) for t in (*self.arguments, *self.results) if t.role.endswith("_cache")}
        # Keys and values may differ in width alone: a latent is wider than what RoPE turns.
        if len(caches) != 2 or len({shape[:3] for _, shape in caches}) != 1:
            raise ValueError(f"caches have different shapes, {sorted(list(shape) for _, shape in caches)}")
        names = [w.name for w in self.weights]
        if len(set(names)) != len(names):
            raise ValueError("a weight's name stands twice")
        for result in self.results:
            if result.aliases is None:
                continue
            if not 0 <= result.aliases < len(self.arguments):
                raise ValueError(f"result {result.name} aliases argument {result.aliases}, which does not exist")
            target = self.arguments[result.aliases]
            if (target.shape, target.dtype) != (result.shape, result.dtype):
                raise ValueError(f"result {result.name} aliases {target.name}, which has another type")


def _tensor(raw: dict[str, Any], roles: tuple[str, ...]) -> Tensor:
    tensor = Tensor(**{**raw, "shape": tuple(raw["shape"])})
    if tensor.role not in roles:
        raise ValueError(f"role {tensor.role!r} is not one of {roles}")
    if tensor.dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype {tensor.dtype!r} is not one of {tuple(DTYPE_BYTES)}")
    if not all(isinstance(n, int) and n >= 0 for n in tensor.shape):
        raise ValueError(f"shape {tensor.shape} of {tensor.name}")
    if tensor.encoding not in ENCODINGS:
        raise ValueError(f"encoding {tensor.encoding!r} of {tensor.name} is not one of {ENCODINGS}")
    if tensor.encoding != "plain" and not (tensor.role == "weight" and tensor.name.endswith(f".{tensor.encoding}")):
        raise ValueError(f"{tensor.name} is of encoding {tensor.encoding!r}, which its name does not end with")
    return tensor


@dataclass(frozen=True)
class Graph:
    """A StableHLO module as text, with its ABI. `name` is for people and file names.

    flags: what IREE compiles it with, beside what names the device. on_device: what is looked up at a token or a position
    is looked up by the graph's own operations; of the emitter's.
    """

    name: str
    text: str
    abi: Abi
    flags: tuple[str, ...] = ()
    on_device: bool = False
