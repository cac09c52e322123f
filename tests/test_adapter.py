"""Graphs of other emitters adapted to the contract: what they are given and what is taken of them, against NumPy's own
account of what an ABI file says, in each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from graphs import parse

from hloracle.core.abi import Graph
from hloracle.core.dtypes import numpy_type
from hloracle.foreign.adapter import EMBEDDING, Adapter
from hloracle.foreign.around import adapted
from hloracle.foreign.binding import bind
from hloracle.foreign.file import AbiFile, Entry, Phase
from hloracle.foreign.signature import Port, Signature
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.config import Config
from hloracle.reference.model.expressions import names_of
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import weight_shapes

L, N, K, D, E, V = 2, 4, 2, 4, 12, 29
B, S, T, CAPACITY = 3, 10, 6, 16
SIZES = {
    "num_hidden_layers": L, "hidden_size": E, "num_attention_heads": N, "num_key_value_heads": K, "head_dim": D,
    "vocab_size": V, "intermediate_size": 20, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}  # fmt: skip
TOKEN, POSITION, LENGTH = 5, 7, 4
PROMPT = np.array([3, 1, 4, 1, 0, 0], np.int32)  # its first tokens
WINDOW = 3
Ports = Mapping[str, tuple[Entry, tuple[int, ...], str]]


@cache
def config(family: str = "llama") -> Config:
    return from_hf({**TINY[family], **SIZES, **({"sliding_window": WINDOW} if family == "mistral" else {})})


def adapter(
    takes: Ports, returns: Ports, phase: str = "decode", start: Mapping[str, Entry] | None = None, family: str = "llama",
    weights: Mapping[str, tuple[str, tuple[int, ...]]] | None = None, capacity: int = CAPACITY,
) -> Adapter:  # fmt: skip
    def ports(some: Sequence[tuple[str, tuple[int, ...], str]]) -> tuple[Port, ...]:
        return tuple(Port(i, (name,), shape, dtype) for i, (name, shape, dtype) in enumerate(some))

    of = {name: expression for name, (expression, _) in (weights or {}).items()}
    arguments = [
        *((n, shape, "f32") for n, (_, shape) in (weights or {}).items()),
        *((n, s, d) for n, (_, s, d) in takes.items()),
    ]
    results = [(n, s, d) for n, (_, s, d) in returns.items()]
    said = Phase(phase, {n: e for n, (e, _, _) in takes.items()}, {n: e for n, (e, _, _) in returns.items()})
    abi = AbiFile(Path("abi.toml"), of, {phase: said}, start or {})
    here = config(family)
    binding = bind(abi, said, Signature("main", ports(arguments), ports(results)), names_of(here), weight_shapes(here))
    return Adapter(binding, here, capacity)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


K_CACHE, V_CACHE = (drawn(L, K, CAPACITY, D, seed=seed) for seed in (1, 2))
TABLE = drawn(V, E, seed=3)
HEAD: Ports = {"0": ("logits", (V,), "f32")}
HEADS: Ports = {"0": ("logits : B V", (B, V), "f32")}
CACHES: Ports = {"1": ("k_cache : L K S D", (L, K, S, D), "f32"), "2": ("v_cache : L K S D", (L, K, S, D), "f32")}
ROWS: Ports = {
    "1": ("k_cache : B L K S D", (B, L, K, S, D), "f32"),
    "2": ("v_cache : L S B K D", (L, S, B, K, D), "f32"),
}


def given(made: Adapter, judged: int, *inputs: Any) -> list[np.ndarray]:
    """What the graph is given, compiled by XLA."""
    with jax.enable_x64(any(p.dtype == "i64" for p in made.binding.signature.arguments)):
        return [np.asarray(x) for x in jax.jit(made.inputs)(np.int32(judged), *inputs)]


def turns(positions: np.ndarray, width: int, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """RoPE by its definition."""
    angles = positions[..., None] * 100.0 ** (-np.arange(0, D, 2) / D)
    return function(np.concatenate([angles, angles], -1) if width == D else angles)


# ---- decode

slots = np.arange(S)
DECODE: dict[str, tuple[Entry, tuple[int, ...], str, Callable[[Any], Any]]] = {
    # what is said, shape, dtype -> what a graph is given, by tokens [B], positions [B] and caches [B, L, K, S, D]
    "token": ("token : B 1", (B, 1), "i32", lambda s: s.token[:, None]),
    "tokens": ("tokens : B T", (B, 1), "i64", lambda s: s.token[:, None]),
    "position": ("position : B", (B,), "i32", lambda s: s.position),
    "positions": ("positions : 1 B", (1, B), "i32", lambda s: s.position[None]),
    "arithmetic": ("position * 2 - T : B", (B,), "i32", lambda s: s.position * 2 - 1),
    "a ring": ("(position + 3) % S : B", (B,), "i32", lambda s: (s.position + 3) % S),
    "of sizes": ("S + L : B", (B,), "i32", lambda s: np.full(B, S + L)),
    "floats": ("position / S : B", (B,), "f32", lambda s: s.position / S),
    "a mask": ("causal_mask : B 1 1 S", (B, 1, 1, S), "i1", lambda s: (slots <= s.position[:, None])[:, None, None]),
    "a mask of T": ("causal_mask : T B S", (1, B, S), "i1", lambda s: (slots <= s.position[:, None])[None]),
    "hidden": ("causal_mask(inverted) : B S", (B, S), "i1", lambda s: slots > s.position[:, None]),
    "added": ("causal_mask : B S", (B, S), "f32", lambda s: np.where(slots <= s.position[:, None], 0, -np.inf)),
    "added number": ("causal_mask(-1e4) : S B", (S, B), "bf16", lambda s: np.where(slots <= s.position[:, None], 0, -1e4).T),
    "counted": ("causal_mask : B S", (B, S), "i32", lambda s: slots <= s.position[:, None]),
    "valid": ("valid : B S", (B, S), "i32", lambda s: slots <= s.position[:, None]),
    "valid tokens": ("valid : B T", (B, 1), "i1", lambda s: np.ones((B, 1))),
    "cos": ("cos : B T D", (B, 1, D), "f32", lambda s: turns(s.position, D, np.cos)[:, None]),
    "half sin": ("sin : B 1 1 h", (B, 1, 1, D // 2), "f32", lambda s: turns(s.position, D // 2, np.sin)[:, None, None]),
    "whole cos": ("cos : S D", (S, D), "f32", lambda s: turns(slots, D, np.cos)),
    "whole half sin": ("sin.1 : S 1 h", (S, 1, D // 2), "f32", lambda s: turns(slots, D // 2, np.sin)[:, None]),
    "frequencies": ("inv_freq", (D // 2,), "f32", lambda s: 100.0 ** (-np.arange(0, D, 2) / D)),
    "embeddings": ("embeddings : B T E", (B, 1, E), "f32", lambda s: TABLE[s.token][:, None]),
    "one": (1, (B, 2), "i32", lambda s: np.ones((B, 2))),
    "true": (True, (), "i1", lambda s: np.True_),
    "a list": ([1, 2, 3], (2, 3), "f32", lambda s: np.tile([1, 2, 3], (2, 1))),
    "as many": ([1, 2, 3, 4], (2, 2), "f16", lambda s: [[1, 2], [3, 4]]),
    "k": ("k_cache : L B S K D", (L, B, S, K, D), "f32", lambda s: s.k.transpose(1, 0, 3, 2, 4)),
    "joined": ("v_cache : B L S (K D)", (B, L, S, K * D), "f32", lambda s: s.v.transpose(0, 1, 3, 2, 4).reshape(B, L, S, -1)),
    "rows apart": ("k_cache : L (B K) D S", (L, B * K, D, S), "f32", lambda s: s.k.transpose(1, 0, 2, 4, 3).reshape(L, B * K, D, S)),
    "narrow": ("k_cache : B L K S D", (B, L, K, S, D), "bf16", lambda s: s.k),
    "pairs": ("k_cache : B L S K (two h) -> B L S K (h two), two=2", (B, L, S, K, D), "f32",
              lambda s: s.k.transpose(0, 1, 3, 2, 4)[..., [0, 2, 1, 3]]),
    "keys interleaved": ("cache(interleaved) : B L vk S K D", (B, L, 2, S, K, D), "f32",
                         lambda s: np.stack([s.v, s.k[..., [0, 2, 1, 3]]]).transpose(1, 2, 0, 4, 3, 5)),
    "pairs apart": ("k_cache : B L S K (two h) -> B L S K h two, two=2", (B, L, S, K, 2, 2), "f32",
                    lambda s: s.k.transpose(0, 1, 3, 2, 4)[..., [0, 2, 1, 3]].reshape(B, L, S, K, 2, 2)),
    "of a layer": ("v_cache.1 : B S K D", (B, S, K, D), "f32", lambda s: s.v[:, 1].transpose(0, 2, 1, 3)),
    "both": ("cache : L kv B K S D", (L, 2, B, K, S, D), "f32", lambda s: np.stack([s.k, s.v]).transpose(2, 0, 1, 3, 4, 5)),
    "both of a layer": ("cache.0 : B vk S K D", (B, 2, S, K, D), "f32",
                        lambda s: np.stack([s.v[:, 0], s.k[:, 0]]).transpose(1, 0, 3, 2, 4)),
}  # fmt: skip


def seen(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float64)


@pytest.mark.parametrize("judged", range(B))
@pytest.mark.parametrize("ragged", [False, True])
def test_what_a_decode_graph_is_given(ragged: bool, judged: int) -> None:
    """All of it at once; where a row has a position of its own, the others are at others."""
    said: dict[str, Any] = {
        name: row for name, row in DECODE.items() if ragged or not str(row[0]).startswith(("position", "(position"))
    }
    takes = {name: row[:3] for name, row in said.items()}
    if not ragged:
        takes["at"] = ("position", (), "i32")
    made = adapter(takes, {**HEADS, **ROWS})
    got = dict(
        zip(takes, given(made, judged, np.int32(TOKEN), np.int32(POSITION), K_CACHE, V_CACHE, TABLE), strict=True)
    )
    token = got["token"][:, 0]
    position = got["position"] if ragged else np.full(B, got["at"])
    mine = np.arange(B) == judged
    assert (token[mine], position[mine]) == (TOKEN, POSITION)
    assert (token[~mine] != TOKEN).all()
    assert ((position[~mine] != POSITION) == ragged).all()
    assert ((position >= 0) & (position < S) & (token >= 0) & (token < V)).all()
    sign = np.where(mine, 1, -1).reshape(B, 1, 1, 1, 1)
    scene = SimpleNamespace(token=token, position=position, k=sign * K_CACHE[:, :, :S], v=sign * V_CACHE[:, :, :S])
    for name, (_, shape, dtype, wanted) in said.items():
        assert (got[name].shape, got[name].dtype) == (shape, numpy_type(dtype)), name
        right = np.asarray(wanted(scene))
        np.testing.assert_allclose(
            seen(got[name]), seen(right), rtol=1e-2 if dtype in ("bf16", "f16") else 1e-5, atol=1e-6, err_msg=name
        )


def test_a_window() -> None:
    takes: Ports = {"m": ("window_mask : 1 S", (1, S), "i1"), "p": ("position", (), "i32")}
    mask, _ = given(
        adapter(takes, {**HEAD, **CACHES}, family="mistral"), 0, np.int32(TOKEN), np.int32(POSITION), K_CACHE, V_CACHE
    )
    np.testing.assert_array_equal(mask[0], (slots <= POSITION) & (slots > POSITION - WINDOW))


def test_embeddings_are_scaled_as_the_model_scales_them() -> None:
    takes: Ports = {"x": ("embeddings : 1 E", (1, E), "f32")}
    (got,) = given(
        adapter(takes, {**HEAD, **CACHES}, family="gemma"),
        0,
        np.int32(TOKEN),
        np.int32(POSITION),
        K_CACHE,
        V_CACHE,
        TABLE,
    )
    np.testing.assert_allclose(got, TABLE[[TOKEN]] * np.sqrt(np.float32(E)), rtol=1e-6)


# ---- prefill

queries = np.arange(T)
PREFILL: dict[str, tuple[Entry, tuple[int, ...], str, Callable[[Any], Any]]] = {
    # by tokens [B, T] and lengths [B]
    "tokens": ("tokens : B T", (B, T), "i64", lambda s: s.tokens),
    "length": ("length : B", (B,), "i32", lambda s: s.length),
    "last": ("length - 1 : B 1", (B, 1), "i32", lambda s: s.length[:, None] - 1),
    "positions": ("positions : T", (T,), "i32", lambda s: queries),
    "positions of rows": ("positions : B T", (B, T), "i32", lambda s: np.tile(queries, (B, 1))),
    "where": (0, (), "i32", lambda s: 0),
    "a mask": ("causal_mask : B 1 T S", (B, 1, T, S), "i1", lambda s: np.broadcast_to(slots <= queries[:, None], (B, 1, T, S))),
    "a mask of one": ("causal_mask : 1 T S", (1, T, S), "i1", lambda s: (slots <= queries[:, None])[None]),
    "of itself": ("causal_mask(-1e4) : 1 T U", (1, T, T), "f32", lambda s: np.where(queries <= queries[:, None], 0, -1e4)[None]),
    "keys first": ("causal_mask(inverted) : S T", (S, T), "i1", lambda s: (slots > queries[:, None]).T),
    "valid": ("valid : B T", (B, T), "f32", lambda s: queries < s.length[:, None]),
    "valid slots": ("valid : B S", (B, S), "i1", lambda s: slots < s.length[:, None]),
    "cos": ("cos : T D", (T, D), "f32", lambda s: turns(queries, D, np.cos)),
    "sin": ("sin : B T h", (B, T, D // 2), "f32", lambda s: np.broadcast_to(turns(queries, D // 2, np.sin), (B, T, D // 2))),
    "embeddings": ("embeddings : B T E", (B, T, E), "f32", lambda s: TABLE[s.tokens]),
    "a cache": ("k_cache : B L K S D", (B, L, K, S, D), "f32", lambda s: np.zeros((B, L, K, S, D))),
}  # fmt: skip


@pytest.mark.parametrize("judged", range(B))
@pytest.mark.parametrize("ragged", [False, True])
def test_what_a_prefill_graph_is_given(ragged: bool, judged: int) -> None:
    said = {name: row for name, row in PREFILL.items() if ragged or name not in ("length", "last")}
    takes: dict[str, Any] = {name: row[:3] for name, row in said.items() if ragged or not name.startswith("positions")}
    if not ragged:
        takes |= {"len": ("length", (), "i32")}
    else:
        del takes["positions"]
    made = adapter(takes, {**HEADS, **ROWS}, "prefill")
    got = dict(zip(takes, given(made, judged, PROMPT, np.int32(LENGTH), TABLE), strict=True))
    tokens, length = got["tokens"], got["length"] if ragged else np.full(B, got["len"])
    mine = np.arange(B) == judged
    np.testing.assert_array_equal(tokens[judged], PROMPT)
    assert length[judged] == LENGTH
    assert (tokens[~mine] != PROMPT).all()
    assert ((length[~mine] != LENGTH) == ragged).all()
    assert ((length > 0) & (length <= T)).all()
    scene = SimpleNamespace(tokens=tokens, length=length)
    for name in takes:
        if name in said:
            _, shape, dtype, wanted = said[name]
            assert (got[name].shape, got[name].dtype) == (shape, numpy_type(dtype)), name
            np.testing.assert_allclose(seen(got[name]), seen(wanted(scene)), rtol=1e-5, atol=1e-6, err_msg=name)


# ---- results


def taken(made: Adapter, judged: int, at: int, *returned: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.jit(made.results)(np.int32(judged), np.int32(at), *returned)]


LOGITS = {
    # what is said, shape, phase -> which of its elements are the judged ones
    "a vector": ("logits", (V,), "decode", lambda x, j: x),
    "rows": ("logits : B V", (B, V), "decode", lambda x, j: x[j]),
    "columns": ("logits : V B", (V, B), "decode", lambda x, j: x[:, j]),
    "rows of one": ("logits : B 1 V", (B, 1, V), "decode", lambda x, j: x[j, 0]),
    "one token": ("logits : B T V", (B, 1, V), "decode", lambda x, j: x[j, 0]),
    "the last": ("logits : B V", (B, V), "prefill", lambda x, j: x[j]),
    "all": ("logits : B T V", (B, T, V), "prefill", lambda x, j: x[j, LENGTH - 1]),
    "all, tokens first": ("logits : T (B V)", (T, B * V), "prefill", lambda x, j: x[LENGTH - 1].reshape(B, V)[j]),
    "of a padded vocabulary": (f"logits : B T V, V={V + 3}", (B, T, V + 3), "prefill", lambda x, j: x[j, LENGTH - 1, :V]),
    "of one row": ("logits : T V", (T, V), "prefill", lambda x, j: x[LENGTH - 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_logits(dtype: str, name: str) -> None:
    said, shape, phase, wanted = LOGITS[name]
    array = drawn(*shape).astype(numpy_type(dtype))
    takes: Ports = {"t": ("tokens : T", (T,), "i32")} if phase == "prefill" else {}
    returns: Ports = {"0": (said, shape, dtype)} | ({"1": ROWS["1"], "2": ROWS["2"]} if "B" in said else CACHES)
    caches = [drawn(*shape) for _, shape, _ in list(returns.values())[1:]]
    made = adapter(takes, returns, phase)
    for judged in range(made.rows):
        at = LENGTH if phase == "prefill" else POSITION
        got, *_ = taken(made, judged, at, array, *caches)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, np.float32(wanted(array, judged)))


@pytest.mark.parametrize(
    ("said", "shape", "wanted"), [("token", (), 5), ("token : B", (B,), 7), ("token : B T", (B, 1), 7)]
)
def test_a_token(said: str, shape: tuple[int, ...], wanted: int) -> None:
    array = np.resize([5, 6, 7], shape).astype(np.int32)
    made = adapter({}, {"0": (said, shape, "i32"), **(ROWS if shape else CACHES)})
    head, *_ = taken(
        made, 2 if shape else 0, POSITION, array, *(drawn(*s) for _, s, _ in (ROWS if shape else CACHES).values())
    )
    assert (head, head.dtype, head.shape) == (wanted, np.int32, ())


LAYOUTS: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "plain": [("k_cache", (L, K, S, D)), ("v_cache", (L, K, S, D))],
    "rows": [("k_cache : B L K S D", (B, L, K, S, D)), ("v_cache : L S B K D", (L, S, B, K, D))],
    "values first": [("v_cache : S L K D", (S, L, K, D)), ("k_cache : D L S K", (D, L, S, K))],
    "joined": [("k_cache : L S (K D)", (L, S, K * D)), ("v_cache : (L K) (S D)", (L * K, S * D))],
    "pairs": [("k_cache : L S K (two h) -> L S K (h two), two=2", (L, S, K, D)), ("v_cache : L S K D", (L, S, K, D))],
    "interleaved": [("k_cache(interleaved) : L S K D", (L, S, K, D)), ("v_cache", (L, K, S, D))],
    "both, interleaved": [("cache(interleaved) : L kv B K S D", (L, 2, B, K, S, D))],
    "both of layers, interleaved": [(f"cache.{i}(interleaved) : kv S K D", (2, S, K, D)) for i in range(L)],
    "both": [("cache : L kv B K S D", (L, 2, B, K, S, D))],
    "both, values first": [("cache : vk B L S (K D)", (2, B, L, S, K * D))],
    "layers": [(f"{name}.{i} : B S K D", (B, S, K, D)) for i in (1, 0) for name in ("v_cache", "k_cache")],
    "both of layers": [(f"cache.{i} : kv S K D", (2, S, K, D)) for i in range(L)],
}  # fmt: skip


def laid_out(said: str, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Of caches [B, L, K, S, D], what a graph returns."""
    if "(interleaved)" in said:
        said, k = said.replace("(interleaved)", ""), k[..., [0, 2, 1, 3]]
    what, _, axes = (said + " : L K S D" * (" : " not in said)).partition(" : ")
    name, _, layer = what.partition(".")
    pairs = "->" in axes
    array = np.stack([v, k] if "vk" in axes else [k, v]) if name == "cache" else (k if name == "k_cache" else v)[None]
    letters = ["kv", "B", "L", "K", "S", "D"]
    if layer:
        array = array.take([int(layer)], axis=2)
    if pairs:
        array = array[..., [0, 2, 1, 3]]
    wanted = axes.partition("->")[2] if pairs else axes
    wanted = (
        wanted.partition(",")[0].replace("(h two)", "D").replace("vk", "kv").replace("(", "").replace(")", "").split()
    )
    rest = [a for a in letters if a not in wanted]  # axes of one element, or the first row
    order = [letters.index(a) for a in (*rest, *wanted)]
    return array.transpose(order)[(0,) * len(rest)]


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_caches(name: str, phase: str) -> None:
    """Laid out as the contract has them, and filled up to its capacity with zeros."""
    k, v = drawn(B, L, K, S, D, seed=4), drawn(B, L, K, S, D, seed=5)
    returns: Ports = {
        "0": ("logits", (V,), "f32"),
        **{str(i + 1): (said, shape, "f32") for i, (said, shape) in enumerate(LAYOUTS[name])},
    }
    takes: Ports = {"t": ("tokens : T", (T,), "i32")} if phase == "prefill" else {}
    made = adapter(takes, returns, phase)
    arrays = [laid_out(said, k, v).reshape(shape) for said, shape in LAYOUTS[name]]
    for judged in range(made.rows):
        _, *caches = taken(made, judged, LENGTH, drawn(V), *arrays)
        for got, wanted in zip(caches, (k, v), strict=True):
            assert got.shape == (L, K, CAPACITY, D)
            np.testing.assert_array_equal(got[:, :, :S], wanted[judged])
            assert not got[:, :, S:].any()


def test_caches_of_the_prompt_alone() -> None:
    """A prefill may return as many slots as it takes tokens."""
    returns: Ports = {
        **HEAD,
        "1": ("k_cache : L T K D", (L, T, K, D), "f32"),
        "2": ("v_cache : L T K D", (L, T, K, D), "f32"),
    }
    made = adapter({"t": ("tokens : T", (T,), "i32")}, returns, "prefill")
    k, v = drawn(L, T, K, D), drawn(L, T, K, D, seed=1)
    _, got, _ = taken(made, 0, LENGTH, drawn(V), k, v)
    np.testing.assert_array_equal(got[:, :, :T], k.transpose(0, 2, 1, 3))


# ---- state


def test_state_is_handed_on() -> None:
    """It starts with what the file says, and is then what the graph returned."""
    takes: Ports = {"rng": ("state.rng", (2,), "ui32"), "t": ("token", (), "i32")}
    returns: Ports = {**HEAD, "1": ("state.rng", (2,), "ui32"), "2": ("ignored", (3,), "i8")}
    made = adapter(takes, returns, start={"rng": [0, 7]})
    names = [a.name for a in made.abi().arguments]
    assert names == ["token", "position", "state.rng"]
    assert [r.name for r in made.abi().results] == ["logits", "state.rng"]
    held = np.array([8, 9], np.uint32)
    assert given(made, 0, np.int32(TOKEN), np.int32(0), held)[0].tolist() == [0, 7]
    assert given(made, 0, np.int32(TOKEN), np.int32(3), held)[0].tolist() == [8, 9]
    _, state = taken(made, 0, 3, drawn(V), held, np.zeros(3, np.int8))
    assert state.tolist() == [8, 9]


def test_state_beside_caches() -> None:
    takes: Ports = {
        "s": ("state.s", (), "f32"),
        "k": ("k_cache", (L, K, S, D), "f32"),
        "v": ("v_cache", (L, K, S, D), "f32"),
    }
    made = adapter(takes, {**HEAD, "3": ("state.s", (), "f32"), **CACHES}, start={"s": 2.5})
    assert [a.name for a in made.abi().arguments] == ["token", "position", "k_cache", "v_cache", "state.s"]
    got = given(made, 0, np.int32(1), np.int32(1), K_CACHE, V_CACHE, np.float32(4))
    assert got[0] == 4
    np.testing.assert_array_equal(got[1], K_CACHE[:, :, :S])


# ---- the contract


def test_the_contract() -> None:
    weights = {
        "a": ("model.norm.weight", (E,)),
        "b": ("lm_head.weight : v e -> e v", (E, V)),
        "c": ("model.norm.weight", (E,)),
    }
    takes: Ports = {"x": ("embeddings : B 1 E", (B, 1, E), "f32"), "p": ("position", (), "i32")}
    abi = adapter(takes, {**HEADS, **ROWS}, weights=weights).abi()
    abi.validate()
    assert [(a.role, a.name, a.shape) for a in abi.arguments] == [
        ("weight", "model.norm.weight", (E,)), ("weight", "lm_head.weight : v e -> e v", (E, V)), ("weight", EMBEDDING, (V, E)),
        ("token", "token", ()), ("position", "position", ()), ("k_cache", "k_cache", (L, K, CAPACITY, D)),
        ("v_cache", "v_cache", (L, K, CAPACITY, D)),
    ]  # fmt: skip
    assert (abi.phase, abi.head, abi.capacity, abi.function) == ("decode", "logits", CAPACITY, "adapted")


def test_the_contract_without_caches() -> None:
    abi = adapter(
        {"t": ("tokens : B T", (1, T), "i32")}, {"0": ("logits : B T V", (1, T, V), "f32")}, "forward", capacity=T
    ).abi()
    abi.validate()
    assert (abi.phase, abi.caches, abi.capacity, abi.bucket) == ("prefill", (), T, T)


# ---- what cannot be

WRONG: dict[str, tuple[str, tuple[int, ...], str, str]] = {
    "a window": ("window_mask : S", (S,), "i1", "x (tensor<10xi1>): the model has no window"),
    "axes of others": ("valid : K S", (K, S), "i32", "x (tensor<2x10xi32>): the axes 'K S' are not those of valid"),
    "a vector of tokens": ("position : T S", (1, S), "i32", "x (tensor<1x10xi32>): the axes 'T S' are not those of formula"),
    "no pair": ("cache : L K S D", (L, K, S, D), "f32", "x (tensor<2x2x10x4xf32>): the axes 'L K S D' are not those of cache"),
    "cut by itself": ("k_cache : L K S (two h), two=2", (L, K, S, D), "f32",
                      "x (tensor<2x2x10x4xf32>): the axes 'L K S (two h)' are not those of k_cache"),
    "no layers": ("k_cache : K S D", (K, S, D), "f32", "x (tensor<2x10x4xf32>): the axes 'K S D' are not those of k_cache"),
    "by zero": ("position // (L - 2)", (), "i32", "x (tensor<i32>): 'position // (L - 2)' cannot be computed (division by zero)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_made(name: str) -> None:
    entry, shape, dtype, said = WRONG[name]
    made = adapter({"x": (entry, shape, dtype), "k": ("k_cache", (L, K, S, D), "f32")}, {**HEAD, **CACHES})
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is compared)
        given(made, 0, np.int32(TOKEN), np.int32(POSITION), K_CACHE, V_CACHE)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_taken() -> None:
    made = adapter({}, {"0": ("logits : N V", (N, V), "f32"), **CACHES})
    with pytest.raises(ValueError, match=r"0 \(tensor<4x29xf32>\): the axes 'N V' are not those of logits"):
        taken(made, 0, 0, drawn(N, V), drawn(L, K, S, D), drawn(L, K, S, D))


def test_a_model_without_rope() -> None:
    made = adapter({"x": ("cos : S D", (S, D), "f32")}, {**HEAD, **CACHES})
    layers = tuple(dataclasses.replace(layer, rope=None) for layer in made.config.layers)
    without = dataclasses.replace(made, config=dataclasses.replace(made.config, layers=layers))
    with pytest.raises(ValueError, match="the model has no RoPE"):
        given(without, 0, np.int32(TOKEN), np.int32(POSITION), K_CACHE, V_CACHE)


# ---- the text

BODY = """\
  // } ) { a comment about func.func @NAME(%x: tensor<i32>) {
  func.func private @helper(%h: tensor<i32>) -> tensor<i32> attributes {note = "} // {"} {
    return %h : tensor<i32>
  }
  func.func public @NAME(%tok: tensor<i32> {a.b = "(%no: tensor<i32>"}, %pos: tensor<i32>) -> (tensor<29xf32>, tensor<i8>) {
    %1 = call @helper(%tok) : (tensor<i32>) -> tensor<i32> loc("}")
    %2 = stablehlo.convert %1 : (tensor<i32>) -> tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<29xf32>
    %4 = stablehlo.constant dense<1> : tensor<i8>
    return %3, %4 : tensor<29xf32>, tensor<i8>
  }
"""
TEXTS = {
    "a module": ("module {\nBODY}\n", "main"),
    "a module of a name": ("module @\"a module {\" {\nBODY}\n// } the end", "main"),
    "attributes": ('module attributes {a.b = "}", c.d = {e = 1 : i32}} {\nBODY}\n#loc = loc("x{")\n', "main"),
    "a name and attributes": ("module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\nBODY} loc(fused<{a = 1 : i32}>[\"x\"])\n", "main"),
    "builtin": ("#a = loc(\"{\")\nbuiltin.module @m {\nBODY}", "main"),
    "no module": ("BODY", "main"),
    "another function": ("module {\nBODY}", "step_1.x$"),
    "a quoted function": ("module {\nBODY}", "my step"),
    "adapted in a comment": ("// @adapted\nmodule {\nBODY}", "main"),
}  # fmt: skip


def echo(text: str, function: str) -> Graph:
    """The text of a graph that gives its token as all logits, adapted."""
    takes: Ports = {"tok": ("token", (), "i32"), "pos": ("position", (), "i32")}
    made = adapter(takes, {"0": ("logits", (V,), "f32"), "1": ("state.s", (), "i8")}, start={"s": 0})
    signature = dataclasses.replace(made.binding.signature, function=function)
    return adapted(
        text, "echo", dataclasses.replace(made, binding=dataclasses.replace(made.binding, signature=signature))
    )


@pytest.mark.parametrize("name", TEXTS)
def test_a_text(name: str) -> None:
    """It stays as it is, line by line, and what is added makes a graph of it that runs."""
    from graphs import run

    shape, function = TEXTS[name]
    spelled = f'"{function}"' if " " in function else function
    text = shape.replace("BODY", BODY.replace("NAME", spelled))
    graph = echo(text, function)
    before, after = text.splitlines(), graph.text.splitlines()
    at = next(i for i, line in enumerate(before) if "public" in line)
    assert after[at] == before[at].replace("public", "private")
    last = max(i for i, line in enumerate(before) if line.strip() == "return %3, %4 : tensor<29xf32>, tensor<i8>")
    assert [x for i, x in enumerate(after[: last + 1]) if i != at] == [
        x for i, x in enumerate(before[: last + 1]) if i != at
    ]
    parse(graph.text)
    graph.abi.validate()
    logits, state = run(graph, np.int32(TOKEN), np.int32(POSITION), np.int8(0))
    assert logits.tolist() == [TOKEN] * V
    assert (state, graph.inner, graph.rows) == (1, function, 1)


@pytest.mark.parametrize(("text", "said"), [
    ('module { "func.func"() <{sym_name = "main"}> ({}) : () -> () }', "the text has no 'func.func @main(', as MLIR prints it"),
    (f"module {{ {BODY.replace('NAME', 'main')} func.func private @adapt_inputs() {{ return }} }}",
     "the text has a function @adapt_inputs, a name that is needed here"),
])  # fmt: skip
def test_a_text_that_cannot_be_adapted(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        echo(text, "main")
    assert caught.value.args[0] == said


def test_one_row_can_be_judged_always() -> None:
    from graphs import run

    text = "module { func.func @main(%t: tensor<3xi32>) -> tensor<3x29xf32> {\n %0 = stablehlo.convert %t : (tensor<3xi32>) -> tensor<3xf32>\n %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<3xf32>) -> tensor<3x29xf32>\n return %1 : tensor<3x29xf32> } }"
    made = adapter({"t": ("token : B", (B,), "i32")}, {"0": ("logits : B V", (B, V), "f32")})
    graph = adapted(text, "rows", made)
    assert graph.rows == B
    for position in range(B):
        (logits,) = run(graph, np.int32(TOKEN), np.int32(position))
        assert logits.tolist() == [TOKEN] * V
        for row in range(B):
            (logits,) = run(graph.of_row(row), np.int32(TOKEN), np.int32(position))
            assert logits.tolist() == [TOKEN] * V
