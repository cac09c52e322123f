"""ABI files are proposed from names, types and what computes right; what is not certain is marked, and what is unknown said."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import model

from hloracle.cli import main as cli
from hloracle.conformance.graphs.proposed import propose_abi
from hloracle.core.child import alone
from hloracle.core.errors import InputError
from hloracle.foreign.file import read_abi_file
from hloracle.foreign.proposal.candidates import (
    Group,
    grouped,
    in_order,
    layouts,
    rearrangement,
    sources,
    weight_options,
)
from hloracle.foreign.proposal.choices import INTERLEAVED, UNKNOWN, Choice, Option, Place
from hloracle.foreign.proposal.errors import Error
from hloracle.foreign.proposal.file import Limits, Proposal
from hloracle.foreign.proposal.interface import interface_of
from hloracle.foreign.proposal.trying import Picked, Search, likeliest
from hloracle.foreign.proposal.words import role_of
from hloracle.foreign.signature import Port, Signature
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle import model as oracle

LLAMA = from_hf(TINY["llama"])  # L 3, N 6, K 2, D 16, E 84, F 112, V 257
SHAPES = weight_shapes(LLAMA)
S, T = 12, 10


def port(index: int, name: str, shape: Sequence[int] = (), dtype: str = "f32") -> Port:
    return Port(index, tuple(dict.fromkeys((name, str(index)))), tuple(shape), dtype)


# ---- names


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("params['layers'][{l}]['wq']", "q"), ("layers.{l}.attention.wo", "o"), ("h.{l}.attn.c_attn.weight", "qkv"),
        ("h.{l}.mlp.c_proj", "down"), ("h.{l}.attn.c_proj", "o"), ("l{l}.w_gate_up", "gate_up"), ("blocks.w1", "gate"),
        ("blocks.w2", "down"), ("blocks.w3", "up"), ("tok_embeddings", "embed"), ("reverse_embeddings", "head"),
        ("lm_head.w", "head"), ("ln_f", "final_norm"), ("l{l}.attn_norm", "norm::attn"), ("ln_2", "norm:pre:mlp"),
        ("post_mlp_norm", "norm:post:mlp"), ("query_norm", "q_norm"), ("states[{9*l+1}]", ""),
    ],
)  # fmt: skip
def test_role(name: str, role: str) -> None:
    assert role_of(name) == role


def test_grouped_by_names_that_count_layers() -> None:
    names = [f"layers_{i}.{part}" for i in range(3) for part in ("w1", "w2", "w3")]
    found = grouped([port(i, name, (2, 2)) for i, name in enumerate([*names, "w"])], 3)
    assert [g.key for g in found] == ["layers_{l}.w1", "layers_{l}.w2", "layers_{l}.w3", "w"]
    assert [*found[0].members] == [0, 1, 2]


def test_grouped_by_a_period_of_types() -> None:
    """The embedding, two arguments of each of three layers, and what stands behind them."""
    types = [(9, 4), *[(4, 4), (4,)] * 3, (4,), (4, 9)]
    found = grouped([port(i, f"states[{i}]", shape) for i, shape in enumerate(types)], 3)
    assert [g.key for g in found] == [
        "states[0]", "states[{2*l+1}]", "states[{2*l+2}]", "states[{2*L+1}]", "states[{2*L+2}]",
    ]  # fmt: skip


# ---- weights


@pytest.mark.parametrize(
    ("axes", "shape", "stage"),
    [
        ("(N D) E", (96, 84), ""), ("(N D) E", (84, 96), "o i -> i o"), ("(N D) E", (84, 6, 16), "(N D) E -> E N D"),
        ("(N D) E", (84, 1, 96), "(N D) E -> E 1 (N D)"), ("E (N D)", (6, 16, 84), "E (N D) -> N D E"),
        ("(two F) E", (2, 84, 112), "(two F) E -> two E F, two=2"),
    ],
)  # fmt: skip
def test_layout(axes: str, shape: tuple[int, ...], stage: str) -> None:
    sizes = {"N": 6, "D": 16, "E": 84, "F": 112, "two": 2}
    (right, _), *_ = layouts(axes, sizes, shape)
    assert rearrangement(axes, right, {"two": 2}) == stage


def options(key: str, shape: Sequence[int], dtype: str = "f32", config: Config = LLAMA) -> list[Any]:
    group = Group(key, {0 if "{" in key else None: port(0, key, shape, dtype)})
    return [o.entries[0] for o in weight_options(group, config, sources(config, weight_shapes(config)))]


def test_weights_are_told_by_name_and_shape() -> None:
    q, up = "model.layers.{l}.self_attn.q_proj.weight", "model.layers.{l}.mlp.up_proj.weight"
    assert options("l{l}.wq", (84, 96))[0] == f"{q} : o i -> i o"
    assert options("blocks.wq", (3, 84, 6, 16), "bf16")[0] == f"stack l : {q} : (N D) E -> E N D : bf16"
    assert options("l{l}.w_up", (112, 84)) == [up], "no name of another weight is tried where the own one fits"
    assert options("states[{9*l+6}]", (112, 84))[:3] == [
        "model.layers.{l}.mlp.gate_proj.weight", up, "model.layers.{l}.mlp.down_proj.weight : o i -> i o",
    ]  # fmt: skip
    joined = "concat(model.layers.{l}.self_attn.{q,k,v}_proj.weight)"
    assert options("l{l}.wqkv", (160, 84))[0] == joined
    assert options("l{l}.strange", (5, 5)) == []


def test_norms_may_have_one_added_where_the_model_adds_it() -> None:
    gemma = from_hf(TINY["gemma2"])
    assert options("l{l}.attn_norm", (84,), config=gemma)[:2] == [
        "model.layers.{l}.input_layernorm.weight", "model.layers.{l}.input_layernorm.weight : + 1",
    ]  # fmt: skip
    assert not any("+ 1" in one for one in options("l{l}.attn_norm", (84,)))


def test_what_is_read_first_is_likely_what_the_checkpoint_has_first() -> None:
    known = sources(LLAMA, SHAPES)
    groups = [Group(f"p[{{2*l+{i}}}]", {0: port(i, f"p{i}", (84,))}) for i in range(2)]
    offered = [(g, weight_options(g, LLAMA, known)) for g in groups]
    for read, first in (({0: 5, 1: 9}, 0), ({0: 9, 1: 5}, 1)):
        found = in_order(offered, known, read)
        assert found[first][1][0].entries == ("model.layers.{l}.input_layernorm.weight",)


# ---- inputs and results


def likely(arguments: Sequence[Port], results: Sequence[Port]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The sizes of a graph, and the likeliest entry of each place."""
    signature = Signature("main", tuple(arguments), tuple(results))
    found = interface_of(signature, LLAMA, dict.fromkeys(arguments, False))
    entries = {
        f"{place.section} {place.key}": entry
        for choice in found.choices for place, entry in zip(choice.places, choice.options[0].entries, strict=True)
    }  # fmt: skip
    return (found.sizes.phase, found.sizes.B, found.sizes.T), entries


def test_decode_of_several_rows() -> None:
    cache = (4, 3, 64, 2, 16)
    arguments = [port(0, "tok", (4,), "i32"), port(1, "pos", (4,), "i64"), port(2, "kc", cache), port(3, "vc", cache)]
    sizes, entries = likely(arguments, [port(0, "0", (4, 257)), port(1, "1", cache), port(2, "2", cache)])
    assert sizes == ("decode", 4, 1)
    assert entries == {
        "decode.inputs tok": "token : B", "decode.inputs pos": "position : B", "decode.inputs kc": "k_cache : B L S K D",
        "decode.inputs vc": "v_cache : B L S K D", "decode.results 0": "logits : B V",
        "decode.results 1": "k_cache : B L S K D", "decode.results 2": "v_cache : B L S K D",
    }  # fmt: skip


def test_caches_with_two_axes_in_one() -> None:
    for cache, said in (((1, 6, 64, 16), "B (L K) S D"), ((3, 64, 32), "L S (K D)")):
        arguments = [port(0, "tok", (), "i32"), port(1, "pos", (), "i32"), port(2, "kc", cache), port(3, "vc", cache)]
        sizes, entries = likely(arguments, [port(0, "0", (257,)), port(1, "1", cache), port(2, "2", cache)])
        assert sizes == ("decode", 1, 1)
        assert (entries["decode.inputs vc"], entries["decode.results 1"]) == (f"v_cache : {said}", f"k_cache : {said}")


def test_prefill_with_a_mask_and_a_cache_of_each_layer() -> None:
    names = [f"cache['{i}']['{part}']" for i in range(3) for part in "kv"]
    caches = [port(i + 3, name, (1, 2, 64, 16)) for i, name in enumerate(names)]
    arguments = [
        port(0, "input_ids", (1, 8), "i32"), port(1, "mask", (1, 1, 8, 64), "i1"), port(2, "rng", (2,), "ui32"), *caches,
    ]  # fmt: skip
    returned = [port(i + 1, f"result[1]['{i // 2}']['{'kv'[i % 2]}']", (1, 2, 64, 16)) for i in range(6)]
    sizes, entries = likely(arguments, [port(0, "result[0]", (1, 8, 257)), *returned])
    assert sizes == ("prefill", 1, 8)
    assert entries["prefill.inputs mask"] == "causal_mask : B 1 T S"
    assert entries["prefill.inputs rng"] == 0
    assert entries["prefill.inputs cache['{l}']['k']"] == "k_cache.{l} : B K S D"
    assert entries["prefill.results result[1]['{l}']['v']"] == "v_cache.{l} : B K S D"
    assert entries["prefill.results result[0]"] == "logits : B T V"


def test_forward_with_rope_tables_and_what_nothing_is_known_of() -> None:
    arguments = [
        port(0, "ids", (1, 8), "i64"), port(1, "cos", (8, 16)), port(2, "sin", (8, 16)), port(3, "inv", (8,)),
        port(4, "what", (5,)),
    ]  # fmt: skip
    sizes, entries = likely(arguments, [port(0, "0", (1, 8, 257))])
    assert sizes == ("forward", 1, 8)
    assert [entries[f"forward.inputs {name}"] for name in ("ids", "cos", "sin", "inv", "what")] == [
        "tokens : B T", "cos : T D", "sin : T D", "inv_freq : h", UNKNOWN,
    ]  # fmt: skip


# ---- what computes right


def choice(name: str, *entries: str, tags: frozenset[str] = frozenset()) -> Choice:
    made = [
        Option((e,), i / 10, uses=frozenset({e.split()[0]}), tags=tags if " " in e else frozenset())
        for i, e in enumerate(entries)
    ]
    return Choice((Place("weights", name, 0, ""),), tuple(made))


def test_likeliest_uses_nothing_twice() -> None:
    choices = [choice("a", "x", "y", "z"), choice("b", "x", "y"), choice("c", "x", "y", "z")]
    found = list(likeliest(choices))
    assert len(found) == 4
    for picked in found:
        assert len({choices[i].options[j].entries for i, j in enumerate(picked)}) == 3


def test_likeliest_keeps_to_a_convention() -> None:
    choices = [choice(name, name, f"{name} paired", tags=frozenset({INTERLEAVED})) for name in "qk"]
    assert list(likeliest(choices)) == [(0, 0), (1, 1)]


@pytest.mark.parametrize("right", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_search_follows_what_computes_right(right: Picked) -> None:
    """Each value hangs on what stands before it, and is right only if all of that is."""
    choices = [choice(name, "x", "y", "z") for name in "abc"]

    def trial(picked: Picked) -> Error:
        agree = [a == b for a, b in zip(picked, right, strict=True)]
        return Error(tuple(1e-7 if all(agree[: i + 1]) else 0.8 for i in range(3)))

    search = Search(choices, trial, 50, float("inf"), lambda line: None, lambda picked, one: choices.index(one))
    assert search.best() == right


def test_search_ends_without_an_answer() -> None:
    search = Search([choice("a", "x", "y")], lambda picked: Error((0.5,)), 50, float("inf"), lambda line: None)
    assert search.best() in ((0,), (1,))
    assert len(search.seen) == 2


def test_search_takes_the_likeliest_where_nothing_computes_right() -> None:
    """A wrong graph is not explained by other weights than those that it names, as long as they explain no more."""

    def trial(picked: Picked) -> Error:
        return Error((1e-7, 0.9 - picked[0] / 10))

    search = Search([choice("a", "x", "y", "z")], trial, 50, float("inf"), lambda line: None)
    assert search.best() == (0,)
    assert len(search.seen) == 3


# ---- whole


Graphs = dict[str, str]


def written_by_jax(config: Config, order: Sequence[int]) -> Graphs:
    """Prefill and decode as somebody might export them: weights in a list, those of a layer in this order, matrices [in, out];
    rows of one, and a cache of each layer whose name says nothing."""
    shapes = weight_shapes(config)
    parts = [name.removeprefix("model.layers.0.") for name in shapes if name.startswith("model.layers.0.")]
    layers = [f"model.layers.{i}.{parts[j]}" for i in range(config.num_hidden_layers) for j in order]
    names = [*layers, *(name for name in shapes if name not in layers)]

    def turned(name: str) -> bool:
        return len(shapes[name]) == 2 and "embed" not in name

    def weights(given: Any) -> list[Any]:
        named = {name: a.T if turned(name) else a for name, a in zip(names, given, strict=True)}
        return [named[name] for name in shapes]

    def out(head: Any, k: Any, v: Any) -> Any:
        return head[None], [(k[i][None], v[i][None]) for i in range(config.num_hidden_layers)]

    def decode(w: Any, step: Any, token: Any, cache: Any) -> Any:
        k, v = (jnp.stack([layer[i][0] for layer in cache]) for i in (0, 1))
        return out(*oracle.decode(config, "logits", S, weights(w), token[0], step, {"k_cache": k, "v_cache": v}))

    def prefill(w: Any, tokens: Any, valid: Any) -> Any:
        return out(*oracle.prefill(config, "logits", S, weights(w), tokens[0], jnp.sum(valid)))

    def spec(shape: Sequence[int], dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)

    w = [spec(shapes[n][::-1] if turned(n) else shapes[n]) for n in names]
    cache = spec((1, *config.cache_shapes(S)["k_cache"][1:]))
    caches = [(cache, cache)] * config.num_hidden_layers
    tokens = spec((1, T), jnp.int32)
    return {
        "prefill": jax.jit(prefill).lower(w, tokens, tokens).as_text(debug_info=True),
        "decode": jax.jit(decode).lower(w, spec((), jnp.int32), spec((1,), jnp.int32), caches).as_text(debug_info=True),
    }


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    order = [7, 1, 5, 0, 8, 3, 6, 2, 4]  # of norms, q, k, v, o, gate, up and down
    return written_by_jax(model("plain").config, order)


Saved = Callable[..., list[Path]]


@pytest.fixture
def saved(tmp_path: Path, graphs: Graphs) -> Saved:
    def save(*phases: str, edit: Callable[[str], str] = lambda text: text) -> list[Path]:
        paths = [tmp_path / f"{phase}.mlir" for phase in phases]
        for path, phase in zip(paths, phases, strict=True):
            path.write_text(edit(graphs[phase]))
        return paths

    return save


def proposed(paths: Sequence[Path], tries: int = 200) -> tuple[str, Proposal]:
    with alone():
        return propose_abi(paths, model("plain").checkpoint, "plain", Limits(tries, 60), lambda line: None)


def test_proposes_what_computes_right(saved: Saved, tmp_path: Path) -> None:
    paths = saved("prefill", "decode")
    text, found = proposed(paths)
    assert found.right, found.closing
    said = tomllib.loads(text)
    layer = "model.layers.{l}"
    assert {key: entry for key, entry in said["weights"].items() if "{9*l" in key} == {
        "w[{9*l}]": f"{layer}.mlp.up_proj.weight : o i -> i o",
        "w[{9*l+1}]": f"{layer}.self_attn.q_proj.weight : o i -> i o",
        "w[{9*l+2}]": f"{layer}.post_attention_layernorm.weight",
        "w[{9*l+3}]": f"{layer}.input_layernorm.weight",
        "w[{9*l+4}]": f"{layer}.mlp.down_proj.weight : o i -> i o",
        "w[{9*l+5}]": f"{layer}.self_attn.v_proj.weight : o i -> i o",
        "w[{9*l+6}]": f"{layer}.mlp.gate_proj.weight : o i -> i o",
        "w[{9*l+7}]": f"{layer}.self_attn.k_proj.weight : o i -> i o",
        "w[{9*l+8}]": f"{layer}.self_attn.o_proj.weight : o i -> i o",
    }
    assert said["decode"]["inputs"] == {
        "step": "position", "token": "token : B", "cache[{l}][0]": "k_cache.{l} : B K S D",
        "cache[{l}][1]": "v_cache.{l} : B K S D",
    }  # fmt: skip
    assert said["prefill"]["inputs"] == {"tokens": "tokens : B T", "valid": "valid : B T"}
    assert re.search(r"q_proj.*# guessed: .*o_proj.* computes wrong", text)
    assert not re.search(r'^"?token"?.*guessed', text, re.MULTILINE), "what is certain is not marked"
    (tmp_path / "abi.toml").write_text(text)
    assert set(read_abi_file(tmp_path / "abi.toml").phases) == {"prefill", "decode"}


def test_says_that_a_wrong_graph_computes_wrong(saved: Saved) -> None:
    paths = saved("prefill", edit=lambda text: text.replace("stablehlo.rsqrt", "stablehlo.sqrt"))
    text, found = proposed(paths, tries=20)
    assert not found.right
    assert "away from Hugging Face" in found.closing
    assert tomllib.loads(text)["prefill"]["results"]["result[0]"] == "logits : 1 V", "it is written all the same"


def test_says_what_it_could_not_tell(saved: Saved) -> None:
    def with_another(text: str) -> str:
        return re.sub(r"(public @main\()", r"\1%more: tensor<5x5xf32>, ", text)

    text, found = proposed(saved("prefill", edit=with_another))
    assert not found.right
    assert found.closing == "could not tell what more (tensor<5x5xf32>) is: write it by hand"
    assert 'more = "unknown"  # could not tell: nothing of the model is tensor<5x5xf32> there' in text
    assert 'tokens = "tokens : B T"' in text


def test_two_functions_of_one_phase_need_two_files(saved: Saved, tmp_path: Path, graphs: Graphs) -> None:
    (path,) = saved("decode")
    other = tmp_path / "other.mlir"
    other.write_text(graphs["decode"].replace("@main", "@other"))
    with pytest.raises(InputError, match="is a decode graph of @other"):
        proposed([path, other])


def test_command_writes_a_file_whole_or_not_at_all(
    saved: Saved, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths, output = saved("decode"), tmp_path / "abi.toml"
    arguments = ["abi", *map(str, paths), "--model", str(model("plain").checkpoint.directory), "-o", str(output)]
    with alone():
        assert cli.invoke(arguments) == 0
    shown = capfd.readouterr()
    assert shown.out == f"{output}\n"
    assert shown.err.startswith("hloracle: decode.mlir computes Hugging Face's logits within ")
    before = output.read_bytes()
    assert cli.invoke(arguments) == 2, "it is there"
    with alone():
        assert cli.invoke([*arguments, "--force"]) == 0
    assert output.read_bytes() == before, "it is the same again"
    assert np.all([cli.invoke(["abi", str(tmp_path / "none.mlir"), *arguments[2:4], "-o", str(tmp_path / "x")]) == 2])
    assert not (tmp_path / "x").exists()
