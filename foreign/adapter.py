"""What adapts somebody else's graph to the contract: what it is given, and what becomes of its results, written in JAX.

`around.py` puts this around the graph's text. Weights are rearranged before they are given, by `expressions.py`.

A graph of several rows is given the judged sequence in one of them, and other tokens, positions and caches in the
others: at position p in row p mod B, so that each row is judged in turn. One that hands on opaque state is given the same
in all rows, because what that state holds of a row is not known.

Legend: B rows, T tokens of this call, S cache slots, U = T as keys; L, K, D, E, V as in `expressions.axes_of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np

from hloracle.core.abi import CACHES, Abi, Tensor
from hloracle.core.dtypes import numpy_type
from hloracle.core.formula import evaluate, names_in
from hloracle.core.shown import quoted, shown
from hloracle.foreign.binding import AXIS, PAIR, ROTARY, Binding, Value, sides
from hloracle.foreign.state import hands_on_caches, never_returned
from hloracle.reference.model.config import Config, Rope
from hloracle.reference.model.rope import decode_tables, inverse_frequencies

FUNCTION = "adapted"
EMBEDDING = "model.embed_tokens.weight"
# The axes of what is of the model, in the order in which `Adapter` makes it; B comes first unless it says otherwise.
AXES = {
    "formula": "B T", "causal_mask": "B T S", "window_mask": "B T S", "valid": "B T", "cos": "B T D", "sin": "B T D", "inv_freq": "h",
    "embeddings": "B T E", "logits": "B T V", "token": "B T",
}  # fmt: skip
JUNK = 7919  # what other rows' tokens are moved on by

Array = Any


@dataclass(frozen=True)
class Adapter:
    """What turns the contract's inputs into those of a bound graph, and its results into the contract's.

    capacity: slots of the contract's caches, at least those of the graph.
    in_session: whether another graph of its session takes caches, so that this one has to return them.
    decoded: the opaque state that the decode graph of its session hands on; None without such a graph.
    """

    binding: Binding
    config: Config
    capacity: int
    in_session: bool = False
    decoded: tuple[Value, ...] | None = None

    @property
    def decodes(self) -> bool:
        """Whether it is of a decode graph."""
        return self.binding.phase == "decode"

    @property
    def rows(self) -> int:
        """B."""
        return self.binding.sizes.get("B", 1)

    @property
    def queries(self) -> int:
        """T."""
        return self.binding.sizes.get("T", 1)

    @property
    def slots(self) -> int:
        """S of the graph; T where it has no caches of its own length."""
        return self.binding.sizes.get("S", self.queries)

    @property
    def ragged(self) -> bool:
        """Whether each row has a position of its own."""
        said = [
            v for v in self.binding.inputs
            if v.what == "formula" and names_in(v.text) & {"position", "positions", "length"}
        ]  # fmt: skip
        return self.rows > 1 and bool(said) and all("B" in v.axes.split() for v in said)

    @property
    def opaque(self) -> tuple[Value, ...]:
        """The state that is only handed on, as results. What a prefill does not return begins as it does without one."""
        return self.decoded if self.decoded is not None else opaque_of(self.binding)

    @property
    def caches(self) -> bool:
        """Whether it returns keys and values, or has to."""
        return self.in_session or hands_on_caches(self.binding)

    @property
    def unreturned(self) -> tuple[str, ...]:
        """The state that it takes and never returns, in words."""
        return never_returned(self.binding, self.config.num_hidden_layers, self.in_session)

    @property
    def embeds(self) -> bool:
        """Whether the graph is given what the embedding gives."""
        return any(v.what == "embeddings" for v in self.binding.inputs)

    # ---- the contract

    def abi(self) -> Abi:
        """The contract of the adapted graph: the weights as the graph takes them, then what every session gives."""

        def scalar(name: str) -> Tensor:
            return Tensor(name, name, (), "i32")

        shapes = self.config.cache_shapes(self.capacity) if self.caches else {}
        state = [Tensor(name, name, shape, "f32") for name, shape in shapes.items()]
        state += [Tensor("state", f"state.{v.text}", v.port.shape, v.port.dtype) for v in self.opaque]
        if self.decodes:
            inputs = [scalar("token"), scalar("position"), *state]
        else:
            inputs = [Tensor("tokens", "tokens", (self.queries,), "i32"), scalar("length")]
        head = next(r.what for r in self.binding.results if r.what in ("logits", "token"))
        heads = {"token": scalar("token"), "logits": Tensor("logits", "logits", (self.config.vocab_size,), "f32")}
        phase = "decode" if self.decodes else "prefill"
        positions = 0 if self.caches else self.capacity
        return Abi(phase, (*self._weights, *inputs), (heads[head], *state), FUNCTION, positions)

    @property
    def _weights(self) -> list[Tensor]:
        """Those of the graph, each expression once, and the embedding where embeddings are given."""
        found = {w.expression: Tensor("weight", w.expression, w.port.shape, w.port.dtype) for w in self.binding.weights}
        if self.embeds and EMBEDDING not in found:
            shape = (self.config.vocab_size, self.config.hidden_size)
            found[EMBEDDING] = Tensor("weight", EMBEDDING, shape, "f32")
        return list(found.values())

    # ---- what is given

    def inputs(self, judged: Array, *given: Array) -> tuple[Array, ...]:
        """The judged row; token, position, k_cache and v_cache in decode, else tokens and length; then the embedding where it
        is needed -> the graph's inputs in its order, without weights."""
        row = jnp.arange(self.rows)
        mine = row == judged if not self.opaque else row >= 0
        if self.decodes:
            token, position = given[:2]
            tokens = jnp.where(mine, token, (token + JUNK * (row + 1)) % self.config.vocab_size)[:, None]  # [B, T]
            others = (position + 1 + 3 * row) % self.slots if self.ragged else position
            positions = jnp.where(mine, position, others)[:, None]
            names = {"token": tokens, "position": positions, "tokens": tokens, "positions": positions}
            filled = positions[:, 0] + 1
        else:
            tokens, length = given[:2]
            moved = (tokens[None] + JUNK * (row[:, None] + 1)) % self.config.vocab_size
            tokens = jnp.where(mine[:, None], tokens[None], moved)
            positions = jnp.broadcast_to(jnp.arange(self.queries), (self.rows, self.queries))
            others = (length + 3 * row) % self.queries + 1 if self.ragged else length
            lengths = jnp.where(mine, length, others)[:, None]
            names = {"tokens": tokens, "positions": positions, "length": lengths}
            filled = lengths[:, 0]
        scene = _Scene(self, names, positions, filled, mine, given)
        return tuple(_fitted(v, scene.value, v) for v in self.binding.inputs)

    def results(self, judged: Array, at: Array, *returned: Array) -> tuple[Array, ...]:
        """The judged row; position or length; then what the graph returns -> the contract's results."""
        row = judged if self.rows > 1 else 0
        last = jnp.zeros((), jnp.int32) if self.decodes else at - 1
        found: dict[str, Any] = {}
        layers: dict[str, dict[int, Array]] = {name: {} for name in CACHES}
        for value, array in zip(self.binding.results, returned, strict=True):
            if value.what in ("logits", "token"):
                found["head"] = _fitted(value, self._head, value, array, row, last)
            elif value.what in (*CACHES, "cache"):
                for name, part in _fitted(value, self._caches, value, array):
                    part = part.astype(jnp.float32)[row]
                    if value.layer is None:
                        found[name] = part
                    else:
                        layers[name][value.layer] = part
        for name, shape in self.config.cache_shapes(self.slots).items() if self.caches else ():
            # What it never returns is zeros: a check has told of it before anything runs.
            if name not in found:
                found[name] = jnp.stack([layers[name].get(i, jnp.zeros(shape[1:])) for i in range(shape[0])])
        state = []
        for name, shape in self.config.cache_shapes(self.capacity).items() if self.caches else ():
            pad = shape[2] - found[name].shape[2]
            state.append(jnp.pad(found[name], ((0, 0), (0, 0), (0, pad), (0, 0))) if pad else found[name])
        opaque = {v.text: a for v, a in zip(self.binding.results, returned, strict=True) if v.what == "state"}
        state += [opaque[v.text] if v.text in opaque else self.begun(v) for v in self.opaque]
        return (found["head"], *state)

    def begun(self, value: Value) -> Array:
        """What opaque state is before the first call."""
        start = self.binding.start.get(value.text, 0)
        return _constant(start, value.port.shape, numpy_type(value.port.dtype))

    def _head(self, value: Value, array: Array, row: Array, last: Array) -> Array:
        whole = _to_contract(array, value.axes, AXES[value.what], self.binding.sizes)
        tokens = whole.shape[1]
        chosen = whole[row][last if tokens > 1 else 0]
        if value.what == "logits":
            chosen = chosen[: self.config.vocab_size]  # without a padded vocabulary's end
        return chosen.astype(jnp.int32 if value.what == "token" else jnp.float32)

    def _caches(self, value: Value, array: Array) -> list[tuple[str, Array]]:
        """Of a result: k_cache, v_cache or both, each [B, L, K, S, D], or [B, K, S, D] of one layer."""
        axes = "L K S D" if value.layer is None else "K S D"
        pattern = value.axes
        if "S" not in _letters(pattern) and "T" in _letters(pattern):  # of the prompt alone
            axes = axes.replace("S", "T")
        if value.what != "cache":
            found = [(value.what, _to_contract(array, pattern, f"B {axes}", self.binding.sizes))]
        else:
            pair = next((p for p in PAIR if p in re.findall(r"\w+", pattern)), "kv")
            whole = _to_contract(array, pattern, f"{pair} B {axes}", self.binding.sizes)
            found = list(zip(PAIR[pair], whole, strict=True))
        if not value.text:
            return found
        back = np.argsort(self.pairs(value))
        return [(name, part[..., back] if name == "k_cache" else part) for name, part in found]

    def pairs(self, value: Value) -> np.ndarray:
        """The order in which a cache has the numbers of a key whose pairs lie side by side: 0, D/2, 1, D/2 + 1, …"""
        layers = self.config.layers if value.layer is None else self.config.layers[value.layer : value.layer + 1]
        rope, width = (
            next((layer.rope for layer in layers if layer.rope), None),
            self.config.cache_shapes(1)["k_cache"][-1],
        )
        if rope is None or rope.interleaved or width != self.config.head_dim:
            raise ValueError("the model's keys have no halves that could be interleaved")
        turned = np.arange(rope.dim).reshape(2, -1).T.ravel()
        return np.concatenate([turned, np.arange(rope.dim, width)])


def opaque_of(binding: Binding) -> tuple[Value, ...]:
    """The state that a graph only hands on, as its results."""
    return tuple(v for v in binding.results if v.what == "state")


@dataclass(frozen=True)
class _Scene:
    """One call's quantities. filled: tokens that are there after it, by row; mine: the judged row."""

    adapter: Adapter
    names: dict[str, Array]  # [B, T] or [B, 1]
    positions: Array  # [B, T]
    filled: Array  # [B]
    mine: Array  # [B]
    given: Sequence[Array]

    def value(self, value: Value) -> Array:
        """What a bound argument is given, in its shape and dtype."""
        adapter, port = self.adapter, value.port
        dtype = numpy_type(port.dtype)
        if value.what == "constant":
            return _constant(value.constant, port.shape, dtype)
        if value.what == "state":
            start = adapter.begun(value)
            names = [v.text for v in adapter.opaque]
            if not adapter.decodes or value.text not in names:
                return start
            held = self.given[2 + len(CACHES) * adapter.caches + names.index(value.text)]
            return jnp.where(self.given[1] == 0, start, held)
        if value.what in (*CACHES, "cache"):
            return self._cache(value).astype(dtype)
        made = self._made(value)
        pattern = value.axes
        axes = AXES[value.what]
        if value.what.endswith("_mask") and "U" in re.findall(r"\w+", pattern):
            axes = axes.replace("S", "U")
        if value.what == "valid" and "S" in _letters(pattern):
            axes = axes.replace("T", "S")
        if value.what in ROTARY:
            axes = _rotary_axes(pattern)
        return _from_contract(made, axes, pattern, adapter.binding.sizes, port.shape).astype(dtype)

    def _made(self, value: Value) -> Array:
        adapter = self.adapter
        if value.what == "formula":
            sizes = {**adapter.binding.sizes, "S": adapter.slots, "T": adapter.queries}
            found = jnp.atleast_2d(jnp.asarray(evaluate(value.text, {**sizes, **self.names})))
            return jnp.broadcast_to(found, (adapter.rows, found.shape[1]))
        if value.what == "valid":
            if "S" in _letters(value.axes):
                return (jnp.arange(adapter.slots)[None] < self.filled[:, None]).astype(jnp.int32)
            return (self.positions < self.filled[:, None]).astype(jnp.int32)
        if value.what in ROTARY:
            return self._rotary(value)
        if value.what == "embeddings":
            table = self.given[-1]
            return jnp.take(table, self.names["tokens"], axis=0) * adapter.config.embedding_multiplier
        return self._mask(value)

    def _mask(self, value: Value) -> Array:
        """[B, T, S] or [B, T, U]: true where a query may look; or what is added to the scores."""
        adapter = self.adapter
        own = "U" in re.findall(r"\w+", value.axes)
        keys = jnp.arange(adapter.queries if own else adapter.slots)
        seen = keys[None, None] <= self.positions[..., None]
        if value.what == "window_mask":
            window = min((w for w in adapter.config.windows if w is not None), default=None)
            if window is None:
                raise ValueError("the model has no window")
            seen &= keys[None, None] > self.positions[..., None] - window
        if value.port.dtype == "i1" or value.port.dtype.startswith(("i", "ui")):
            return ~seen if value.text == "inverted" else seen
        hidden = float(value.text) if value.text and value.text != "inverted" else -math.inf
        return jnp.where(seen, 0.0, hidden)

    def _rotary(self, value: Value) -> Array:
        """At the tokens' positions, or the whole table."""
        adapter = self.adapter
        layer = adapter.config.layers[value.layer or 0]
        rope = layer.rope if value.layer is not None else next(iter(adapter.config.ropes), None)
        if rope is None:
            raise ValueError(f"{'the layer' if value.layer is not None else 'the model'} has no RoPE")
        if value.what == "inv_freq":
            return jnp.asarray(inverse_frequencies(rope).astype(np.float32))
        table = _table(rope, value.what, max(adapter.slots, adapter.queries))
        letters = _letters(sides(value.axes)[1])
        if "D" in letters:
            table = np.repeat(table, 2, -1) if rope.interleaved else np.concatenate([table, table], -1)
        return jnp.asarray(table) if "S" in letters else jnp.take(jnp.asarray(table), self.positions, axis=0)

    def _cache(self, value: Value) -> Array:
        adapter = self.adapter
        pattern = value.axes
        axes = "L K S D" if value.layer is None else "K S D"
        own = dict(zip(CACHES, self.given[2:4], strict=True)) if adapter.decodes and adapter.caches else {}

        def of(name: str) -> Array:  # [B, L, K, S, D], or without L
            if not adapter.decodes or not adapter.caches:
                shape = adapter.config.cache_shapes(adapter.slots)[name]
                whole = jnp.zeros((adapter.rows, *shape), jnp.float32)
            else:
                cache = own[name][:, :, : adapter.slots]
                whole = jnp.where(self.mine.reshape(-1, 1, 1, 1, 1), cache[None], -cache[None])
            whole = whole[..., adapter.pairs(value)] if value.text and name == "k_cache" else whole
            return whole if value.layer is None else whole[:, value.layer]

        if value.what != "cache":
            return _from_contract(of(value.what), f"B {axes}", pattern, adapter.binding.sizes, value.port.shape)
        pair = next((p for p in PAIR if p in re.findall(r"\w+", pattern)), "kv")
        both = jnp.stack([of(name) for name in PAIR[pair]])
        return _from_contract(both, f"{pair} B {axes}", pattern, adapter.binding.sizes, value.port.shape)


# ---- axes


def _fitted(value: Value, make: Callable[..., Any], *given: Any) -> Any:
    """What is made of an argument or a result. Raises ValueError, one line that names it, where what is said cannot be."""
    try:
        return make(*given)
    except einops.EinopsError:
        axes = value.axes.split(",")[0]
        raise ValueError(f"{value.port}: the axes {quoted(axes)} are not those of {value.what}") from None
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise ValueError(f"{value.port}: {shown(str(error)) or type(error).__name__}") from None


def _from_contract(array: Array, axes: str, pattern: str, sizes: Mapping[str, int], shape: Sequence[int]) -> Array:
    """What is laid out by `axes`, laid out by a pattern of an ABI file."""
    if not pattern:
        return jnp.reshape(jnp.ravel(array)[: math.prod(shape)], shape)
    left, right = _both(axes, pattern)
    if "B" in left.split() and "B" not in _letters(right):  # all rows have the same
        array = jax.lax.slice_in_dim(array, 0, 1, axis=left.split().index("B"))
        left = left.replace("B", "1")
    if "T" in left.split() and "T" not in _letters(right):
        left = left.replace("T", "1")
    return einops.rearrange(array, f"{left} -> {right}", **_sizes(f"{left} {right}", pattern, sizes))


def _to_contract(array: Array, pattern: str, axes: str, sizes: Mapping[str, int]) -> Array:
    """What is laid out by a pattern, laid out by `axes`; rows and tokens that the pattern does not have are one."""
    if not pattern:
        return jnp.reshape(array, [1] * len(axes.split()))
    left, right = _both(axes, pattern)
    kept = " ".join("1" if a in ("B", "T") and a not in _letters(right) else a for a in left.split())
    return einops.rearrange(array, f"{right} -> {kept}", **_sizes(f"{kept} {right}", pattern, sizes))


def _both(axes: str, pattern: str) -> tuple[str, str]:
    """The contract's axes and the graph's: `S K (two h) -> S K (h two)` says how the contract's D is cut."""
    own, right = sides(pattern)
    cut = [axis for axis in AXIS.findall(own) if axis not in axes.split()]
    said = AXIS.findall(own)
    taken = iter(cut)
    return " ".join(a if a in said or a in ("B", "T", *PAIR) else next(taken, a) for a in axes.split()), right


def _letters(pattern: str) -> list[str]:
    return re.findall(r"\w+", pattern)


def _sizes(patterns: str, pattern: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that einops is told, of the axes that stand in these patterns."""
    letters = set(_letters(patterns))
    said = dict(re.findall(r"(\w+)\s*=\s*(\d+)", pattern))
    return {a: n for a, n in sizes.items() if a in letters} | {a: int(n) for a, n in said.items()}


def _rotary_axes(pattern: str) -> str:
    """Of RoPE tables: of all positions or of the call's, as wide as a head or half as wide."""
    letters = _letters(pattern)
    if letters == ["h"]:
        return "h"
    width = "D" if "D" in letters else "h"
    return f"S {width}" if "S" in letters else f"B T {width}"


def _constant(number: Any, shape: Sequence[int], dtype: Any) -> Array:
    found = jnp.asarray(np.asarray(number), dtype)
    return jnp.reshape(found, shape) if found.size == math.prod(shape) else jnp.broadcast_to(found, shape)


def _table(rope: Rope, which: str, positions: int) -> np.ndarray:
    """cos or sin, float32 [positions, dim/2]."""
    tables = decode_tables(rope, positions)
    return np.asarray(getattr(tables, which)[0])
