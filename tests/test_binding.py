"""An ABI file held to a graph's signature: what each argument is, and one line for each mistake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hloracle.core.errors import InputError
from hloracle.foreign.binding import Binding, Value, Weight, bind, phase_of
from hloracle.foreign.file import FORM, AbiFile, Entry, Phase
from hloracle.foreign.signature import Port, Signature
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.expressions import names_of
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import weight_shapes

CONFIG = from_hf({**TINY["llama"], "num_hidden_layers": 2})
NAMES, SHAPES = names_of(CONFIG), weight_shapes(CONFIG)
L, N, K, D, E, V = 2, 6, 2, 16, 84, 257
B, S, T = 2, 32, 8
CACHE = (L, B, S, K, D)

Ports = Sequence[tuple[str, tuple[int, ...], str]]
ARGUMENTS: Ports = (
    ("embed", (V, E), "f32"), ("l0.wq", (E, N * D), "f32"), ("l1.wq", (E, N * D), "f32"), ("token", (B, 1), "i32"),
    ("pos", (), "i32"), ("mask", (B, S), "i1"), ("k", CACHE, "f32"), ("v", CACHE, "f32"), ("rng", (2,), "ui32"),
)  # fmt: skip
RESULTS: Ports = (("r[0]", (B, 1, V), "f32"), ("r[1]", CACHE, "f32"), ("r[2]", CACHE, "f32"), ("r[3]", (2,), "ui32"))
WEIGHTS: dict[str, str] = {
    "embed": "model.embed_tokens.weight",
    "l{l}.wq": "model.layers.{l}.self_attn.q_proj.weight : n e -> e n",
}
INPUTS: dict[str, Entry] = {
    "token": "token : B 1",
    "pos": "position",
    "mask": "causal_mask : B S",
    "k": "k_cache : L B S K D",
    "v": "v_cache : L B S K D",
    "rng": "state.rng",
}
OUTPUTS: dict[str, Entry] = {
    "r[0]": "logits : B 1 V",
    "1": "k_cache : L B S K D",
    "r[2]": "v_cache : L B S K D",
    "r[3]": "state.rng",
}
START: dict[str, Entry] = {"rng": [0, 7]}


def signature(arguments: Ports, results: Ports) -> Signature:
    def ports(some: Ports) -> tuple[Port, ...]:
        return tuple(Port(i, (name, str(i)), shape, dtype) for i, (name, shape, dtype) in enumerate(some))

    return Signature("main", ports(arguments), ports(results))


def bound(
    weights: Any = WEIGHTS, inputs: Any = INPUTS, results: Any = OUTPUTS, *, start: Any = START, phase: str = "decode",
    takes: Ports = ARGUMENTS, returns: Ports = RESULTS,
) -> Binding:  # fmt: skip
    abi = AbiFile(Path("abi.toml"), weights, {}, start)
    return bind(abi, Phase(phase, inputs, results), signature(takes, returns), NAMES, SHAPES)


def one(entry: Entry, shape: tuple[int, ...], dtype: str = "i32", phase: str = "decode") -> Value:
    """What a graph's only input is, beside a cache from which S follows."""
    cache: Ports = [("k", (L, K, S, D), "f32"), ("v", (L, K, S, D), "f32")]
    inputs = {"x": entry, "k": "k_cache : L K S D", "v": "v_cache : L K S D"}
    results = {"0": "logits", "1": "k_cache : L K S D", "2": "v_cache : L K S D"}
    found = bound(
        {}, inputs, results, phase=phase, takes=[("x", shape, dtype), *cache], returns=[("", (V,), "f32"), *cache]
    )
    return found.inputs[0]


def refused(**changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        bound(**changes)
    return line_of(caught.value)


def line_of(error: InputError) -> str:
    line = str(error)
    assert line.isprintable()
    return line.removeprefix("abi.toml: ").removesuffix(f"; {FORM}")


def test_all_is_found() -> None:
    found = bound()
    assert [w.expression for w in found.weights] == [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight : n e -> e n",
        "model.layers.1.self_attn.q_proj.weight : n e -> e n",
    ]
    assert [(v.what, v.layer, v.text, v.axes) for v in found.inputs] == [
        ("formula", None, "token", "B 1"), ("formula", None, "position", ""), ("causal_mask", None, "", "B S"),
        ("k_cache", None, "", "L B S K D"), ("v_cache", None, "", "L B S K D"), ("state", None, "rng", ""),
    ]  # fmt: skip
    assert [(v.what, v.text) for v in found.results] == [
        ("logits", ""),
        ("k_cache", ""),
        ("v_cache", ""),
        ("state", "rng"),
    ]
    assert {a: found.sizes[a] for a in "BSTLKDV"} == {"B": B, "S": S, "T": 1, "L": L, "K": K, "D": D, "V": V}
    assert isinstance(found.arguments[0], Weight)


ENTRIES: dict[str, tuple[Entry, tuple[int, ...], str, tuple[Any, ...]]] = {
    # what an entry is: its text, the shape and the dtype of the argument -> what, layer, text, axes
    "a formula": ("position + 1", (), "i32", ("formula", None, "position + 1", "")),
    "of one row": ("position", (1, 1), "i64", ("formula", None, "position", "")),
    "a float": ("1 / sqrt(D)", (), "f32", ("formula", None, "1 / sqrt(D)", "")),
    "all slots": ("S", (), "i32", ("formula", None, "S", "")),
    "a number": (3, (4,), "i32", ("constant", None, "", "")),
    "a list": ([1, 2, 3], (4, 3), "f32", ("constant", None, "", "")),
    "as many": ([1, 2, 3, 4], (2, 2), "f32", ("constant", None, "", "")),
    "a column": ([[1], [2]], (2, 3), "f32", ("constant", None, "", "")),
    "true": (True, (), "i1", ("constant", None, "", "")),
    "a mask": ("causal_mask : 1 1 1 S", (1, 1, 1, S), "i1", ("causal_mask", None, "", "1 1 1 S")),
    "a mask of floats": ("causal_mask(-1e9) : 1 S", (1, S), "bf16", ("causal_mask", None, "-1e9", "1 S")),
    "a mask of infinity": ("causal_mask(-inf) : 1 S", (1, S), "f32", ("causal_mask", None, "-inf", "1 S")),
    "what is hidden": ("window_mask(inverted) : S", (S,), "i1", ("window_mask", None, "inverted", "S")),
    "what is there": ("valid : S", (S,), "i32", ("valid", None, "", "S")),
    "a table": ("cos : S D", (S, D), "f32", ("cos", None, "", "S D")),
    "half a table": ("sin.1 : S h", (S, D // 2), "f16", ("sin", 1, "", "S h")),
    "frequencies": ("inv_freq", (D // 2,), "f32", ("inv_freq", None, "", "h")),
    "embeddings": ("embeddings : 1 E", (1, E), "f32", ("embeddings", None, "", "1 E")),
    "joined": ("k_cache : L S (K D)", (L, S, K * D), "f32", ("k_cache", None, "", "L S (K D)")),
    "split": ("v_cache : L S K (two h), two=2", (L, S, K, D), "f32", ("v_cache", None, "", "L S K (two h), two=2")),
    "interleaved": ("cache.1(interleaved) : S kv K D", (S, 2, K, D), "f32", ("cache", 1, "interleaved", "S kv K D")),
    "turned": ("k_cache : L S K (two h) -> L S K (h two), two=2", (L, S, K, D), "f32",
               ("k_cache", None, "", "L S K (two h) -> L S K (h two), two=2")),
    "both": ("cache : L kv K S D", (L, 2, K, S, D), "f32", ("cache", None, "", "L kv K S D")),
    "of a layer": ("k_cache.1 : K S D", (K, S, D), "f32", ("k_cache", 1, "", "K S D")),
    "as usual": ("k_cache", (L, K, S, D), "f32", ("k_cache", None, "", "L K S D")),
    "as usual in a layer": ("v_cache.0", (K, S, D), "f32", ("v_cache", 0, "", "K S D")),
    "spaces": (" k_cache : L  K S   D", (L, K, S, D), "f32", ("k_cache", None, "", "L K S D")),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_what_an_entry_is(name: str) -> None:
    entry, shape, dtype, wanted = ENTRIES[name]
    found = one(entry, shape, dtype)
    assert (found.what, found.layer, found.text, found.axes) == wanted
    assert found.constant is (entry if not isinstance(entry, str) else None)


def test_vectors_of_a_prompt() -> None:
    assert one("tokens", (T,), phase="prefill").axes == "T"
    assert one("positions : 1 T", (1, T), phase="prefill").axes == "1 T"
    assert one("length", (), phase="prefill").text == "length"


WRONG: dict[str, tuple[Entry, tuple[int, ...], str, str]] = {
    "unknown": ("poistion", (), "i32", "decode.inputs.'x': 'poistion' is not known in decode; did you mean 'position'?"),
    "like nothing": ("qq", (), "i32", "decode.inputs.'x': 'qq' is not known in decode; write one of token, tokens"),
    "of another phase": ("length", (), "i32", "decode.inputs.'x': 'length' is not known in decode"),
    "no arithmetic": ("position ** 2", (), "i32", "decode.inputs.'x': 'position ** 2' is no arithmetic of numbers"),
    "no words": ("the position", (), "i32", "decode.inputs.'x': 'the position' is no arithmetic"),
    "empty": ("", (), "i32", "decode.inputs.'x': '' is no arithmetic"),
    "of a result": ("logits", (), "i32", "decode.inputs.'x': 'logits' is not known in decode"),
    "a fraction": ("position / 2", (), "i32", "decode.inputs.'x': 'position / 2' divides, and x (tensor<i32>) is no float; write //"),
    "two stages": ("token : B : T", (1,), "i32", "decode.inputs.'x' has 2 stages; write one: the axes"),
    "no axes": ("causal_mask", (1, 1, S), "i1", "decode.inputs.'x' says no axes, and x (tensor<1x1x32xi1>) has 3; name them, such as ` : B T`"),
    "more axes": ("token : B 1", (1,), "i32", "x (tensor<1xi32>) has 1 axes, and 'B 1' 2; name each axis, 1 for one of one element"),
    "another order": ("k_cache : L S K D", (L, K, S, D), "f32",
                     "x (tensor<2x2x32x16xf32>): axis K of 'L S K D' has 2, and there are 32; name the axes in their order"),
    "an axis twice": ("k_cache : L K S S", (L, K, S, S), "f32", "x (tensor<2x2x32x32xf32>): 'L K S S' has the axis S twice"),
    "a size of words": ("v_cache : L S K (two h), two=x", (L, S, K, D), "f32", "x (tensor<2x32x2x16xf32>): 'two=x' is no size; write such as `, two=2`"),
    "a size of nothing": ("v_cache : L S K (two h), two=0", (L, S, K, D), "f32", "x (tensor<2x32x2x16xf32>): 'two=0' is no size; write such as `, two=2`"),
    "a size in superscript": ("v_cache : L S K (two h), two=²", (L, S, K, D), "f32", "x (tensor<2x32x2x16xf32>): 'two=²' is no size; write such as `, two=2`"),
    "sizes unknown": ("v_cache : L S K (a b)", (L, S, K, D), "f32", "x (tensor<2x32x2x16xf32>): the sizes of a and b in 'L S K (a b)' are not known; say them: `, two=2`"),
    "sizes that do not fit": ("v_cache : L S K (a b), a=3, b=5", (L, S, K, D), "f32", "x (tensor<2x32x2x16xf32>): axis (a b) of 'L S K (a b)' has 15, and there are 16"),
    "open parentheses": ("k_cache : L S (K D", (L, S, K, D), "f32", "x (tensor<2x32x2x16xf32>): 'L S (K D' is no list of axes; name them, such as ` : B S (K D)`"),
    "an ellipsis": ("k_cache : L ...", (L, K), "f32", "x (tensor<2x2xf32>): 'L ...' is no list of axes"),
    "a number as an axis": ("k_cache : L K 32 D", (L, K, S, D), "f32", "x (tensor<2x2x32x16xf32>): 'L K 32 D' is no list of axes"),
    "no axes at all": ("k_cache : ,a=2", (L, K, S, D), "f32", "x (tensor<2x2x32x16xf32>): ',a=2' is no list of axes"),
    "a layer too many": ("k_cache.2", (K, S, D), "f32", "decode.inputs.'x' is of layer 2, and the model has 2"),
    "interleaved values": ("v_cache(interleaved)", (L, K, S, D), "f32", "decode.inputs.'x' interleaves values, which RoPE does not turn; write v_cache"),
    "a huge layer": ("k_cache." + "9" * 300, (K, S, D), "f32", f"decode.inputs.'x' is of layer {'9' * 20}, and the model has 2"),
    "a cache of whole numbers": ("k_cache", (L, K, S, D), "i8", "decode.inputs.'x' is k_cache, and x (tensor<2x2x32x16xi8>) is none of f64, f32, f16, bf16"),
    "whole cosines": ("cos : S D", (S, D), "i32", "decode.inputs.'x' is cos, and x (tensor<32x16xi32>) is none of f64, f32, f16, bf16"),
    "a mask hides by a number": ("causal_mask(-1) : S", (S,), "i1", "decode.inputs.'x' hides by '-1', and x (tensor<32xi1>) is no float; write (inverted), or nothing"),
    "a mask hides by words": ("causal_mask(minus) : S", (S,), "f32", "decode.inputs.'x' hides by 'minus'; write a negative number, such as (-1e9)"),
    "a mask does not hide": ("causal_mask(nan) : S", (S,), "f32", "decode.inputs.'x' hides by 'nan'; write a negative number, such as (-1e9)"),
    "a mask of floats is inverted": ("causal_mask(inverted) : S", (S,), "f32", "decode.inputs.'x' hides by 'inverted'; write a negative number, such as (-1e9)"),
    "a list too long": ([1, 2, 3], (2,), "i32", "decode.inputs.'x' has the shape [3], and x (tensor<2xi32>) [2]"),
    "a list of more axes": ([[1, 2]], (3,), "i32", "decode.inputs.'x' has the shape [1, 2], and x (tensor<3xi32>) [3]"),
    "a number too large": (2**31, (), "i32", "decode.inputs.'x' has 2.14748e+09, which x (tensor<i32>) cannot hold"),
    "a negative number": (-1, (), "ui8", "decode.inputs.'x' has -1, which x (tensor<ui8>) cannot hold"),
    "half a number": (0.5, (), "i64", "decode.inputs.'x' has 0.5, which x (tensor<i64>) cannot hold"),
    "infinity": (float("inf"), (), "i64", "decode.inputs.'x' has inf, which x (tensor<i64>) cannot hold"),
    "two for true": (2, (), "i1", "decode.inputs.'x' has 2, which x (tensor<i1>) cannot hold"),
    "state of nothing": ("state.seed", (), "i32", "state.seed starts with nothing; write [state] with `seed = 0`, or what it is"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_an_entry_that_does_not_fit(name: str) -> None:
    entry, shape, dtype, said = WRONG[name]
    with pytest.raises(InputError) as caught:
        one(entry, shape, dtype)
    assert line_of(caught.value).startswith(said)


# ---- names


def test_keys_with_arithmetic() -> None:
    """Of layers, and of the axes, for what comes after the layers; a doubled brace is one."""
    takes = [
        *((f"p[{3 * layer + 1}]", (N * D, E), "f32") for layer in range(L)), (f"p[{3 * L + 1}]", (E,), "f32"), ("x{l}", (E,), "f32"),
        *ARGUMENTS[3:],
    ]  # fmt: skip
    weights = {
        "p[{3*l+1}]": "model.layers.{l}.self_attn.q_proj.weight", "p[{3*L+1}]": "model.norm.weight",
        "x{{l}}": "model.norm.weight",
    }  # fmt: skip
    assert [w.expression for w in bound(weights, takes=takes).weights] == [
        "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight", "model.norm.weight",
        "model.norm.weight",
    ]  # fmt: skip


def test_keys_of_layers_and_experts_in_one_number() -> None:
    names, X, F = names_of(from_hf(TINY["qwen2_moe"])), 7, 40
    shapes = {f"model.layers.{i // X}.mlp.experts.{i % X}.up_proj.weight": (F, E) for i in range(2 * X)}
    key = f"w{{{X}*l+e}}"
    abi = AbiFile(Path("abi.toml"), {key: "model.layers.{l}.mlp.experts.{e}.up_proj.weight"}, {})
    takes = [(f"w{i}", (F, E), "f32") for i in range(2 * X)]
    phase = Phase("decode", {}, {"0": "logits"})
    found = bind(abi, phase, signature(takes, [("", (V,), "f32")]), names, shapes)
    assert [w.expression for w in found.weights] == list(shapes)


def test_positions_are_names_too() -> None:
    weights = {"0": WEIGHTS["embed"], "{l+1}": WEIGHTS["l{l}.wq"]}
    inputs = {str(i + 3): entry for i, entry in enumerate(INPUTS.values())}
    assert bound(weights, inputs) == bound()


def test_layers_that_a_model_does_not_have_are_left_out() -> None:
    """Of weights, where an entry is of some layers; more weights than a graph takes do no harm."""
    more = {"b{l}": "model.layers.{l+1}.self_attn.q_proj.weight", "more": "model.norm.weight"}
    assert bound({**WEIGHTS, **more}) == bound()


NOTHING = "nothing is said of embed (tensor<257x84xf32>); write it into decode.inputs or weights, as 'embed' or '0'"
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing said": ({"weights": {"l{l}.wq": WEIGHTS["l{l}.wq"]}}, NOTHING),
    "said twice": ({"inputs": {**INPUTS, "4": "position"}}, "pos (tensor<i32>) is said twice: as 'pos' and as '4'"),
    "in two tables": ({"inputs": {**INPUTS, "embed": 3}}, "'embed' stands in weights and in decode.inputs"),
    "two entries of a name": ({"weights": {**WEIGHTS, "l0.wq": "model.norm.weight"}},
                              "weights.'l0.wq' and 'l{l}.wq' are both of 'l0.wq'"),
    "no experts": ({"weights": {**WEIGHTS, "x{e}": "model.norm.weight"}}, "weights.'x{e}': no expert of the model has 'model.norm.weight'"),
    "no such layers": ({"weights": {**WEIGHTS, "x{l}": "model.layers.{l}.none"}},
                       "weights.'x{l}': no layer of the model has 'model.layers.0.none'"),
    "half a layer": ({"weights": {**WEIGHTS, "x{l/2}": "model.norm.weight"}}, "weights.'x{l/2}': 'l/2' is 0.5, no whole number"),
    "no layer": ({"weights": {**WEIGHTS, "x{1//l}": "model.norm.weight"}},
                 "weights.'x{1//l}': '1//l' cannot be computed (division by zero)"),
    "said of nobody": ({"inputs": {**INPUTS, "toke": "token"}},
                       "decode.inputs.'toke' is said of no argument: none is called 'toke'; take it out, or name one of 'embed', 'l0.wq', "
                       "'l1.wq', 'token', 'pos', 'mask', 'k', 'v' and so on"),
    "said of no result": ({"results": {**OUTPUTS, "4": "ignored"}},
                          "decode.results.'4' is said of no result: none is called '4'; take it out, or name one of 'r[0]', 'r[1]', 'r[2]', 'r[3]'"),
    "two of a name": ({"takes": [*ARGUMENTS[:-1], ("token", (2,), "ui32")], "inputs": {k: v for k, v in INPUTS.items() if k != "rng"}},
                      "'token' is the name of 3 and of 8; use positions"),
    # weights
    "no tensor": ({"weights": {**WEIGHTS, "embed": "model.embed.weight"}},
                  "weights: 'model.embed.weight', for embed (tensor<257x84xf32>): the model has no weight 'model.embed.weight', the nearest is"),
    "to be turned": ({"weights": {**WEIGHTS, "embed": "lm_head.weight : v e -> e v"}},
                     "weights: 'lm_head.weight : v e -> e v' is [84, 257] f32, and embed (tensor<257x84xf32>) is [257, 84] f32; rearrange it: ` : a b -> b a`"),
    "to be cast": ({"weights": {**WEIGHTS, "embed": "lm_head.weight : bf16"}},
                   "weights: 'lm_head.weight : bf16' is [257, 84] bf16, and embed (tensor<257x84xf32>) is [257, 84] f32; cast it: ` : f32`"),
    "of another shape": ({"weights": {**WEIGHTS, "embed": "model.norm.weight"}},
                         "weights: 'model.norm.weight' is [84] f32, and embed (tensor<257x84xf32>) is [257, 84] f32; rearrange, slice, pad or stack it until it fits"),
    # results
    "no head": ({"results": {**OUTPUTS, "r[0]": "ignored"}}, "decode.results has neither logits nor token; say which result is which"),
    "an input": ({"results": {**OUTPUTS, "r[3]": "position"}}, "decode.results.'r[3]' is 'position'; write logits, token, k_cache, v_cache, cache, state.NAME or ignored"),
    "a constant": ({"results": {**OUTPUTS, "r[3]": 0}}, "decode.results.'r[3]' is a constant, and a result is none"),
    "two heads": ({"results": {**OUTPUTS, "r[3]": "token : B"}}, "decode.results has both r[0] (tensor<2x1x257xf32>) and r[3] (tensor<2xui32>) as token; ignore one"),
    "a padded vocabulary": ({"returns": [("r[0]", (B, 1, V + 3), "f32"), *RESULTS[1:]]},
                            f"r[0] (tensor<2x1x{V + 3}xf32>): axis V of 'B 1 V' has {V}, and there are {V + 3}; if the vocabulary is padded, say how far: `, V={V + 3}`"),
    "whole logits": ({"returns": [("r[0]", (B, 1, V), "i32"), *RESULTS[1:]]}, "decode.results.'r[0]' is logits, and r[0] (tensor<2x1x257xi32>) is none of f64"),
    "keys twice": ({"results": {**OUTPUTS, "r[2]": "k_cache : L B S K D"}}, "decode.results has k_cache twice; ignore one"),
    "state twice": ({"returns": [*RESULTS, RESULTS[3]], "results": {**{k: v for k, v in OUTPUTS.items() if k != "r[3]"}, "3": "state.rng", "4": "state.rng"}},
                    "decode.results has state.rng twice; ignore one"),
    "state of another type": ({"returns": [*RESULTS[:3], ("r[3]", (3,), "ui32")]},
                              "state.rng is rng (tensor<2xui32>) as an argument, and r[3] (tensor<3xui32>) as a result"),
    "state of another shape": ({"start": {"rng": [1, 2, 3]}}, "state.'rng' has the shape [3], and rng (tensor<2xui32>) [2]"),
    "state of another sign": ({"start": {"rng": -1}}, "state.'rng' has -1, which rng (tensor<2xui32>) cannot hold"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(name: str) -> None:
    changes, said = MISTAKES[name]
    assert refused(**changes).startswith(said)


def test_nothing_is_said_and_something_is_near() -> None:
    said = refused(weights={"embde": WEIGHTS["embed"], "l{l}.wq": WEIGHTS["l{l}.wq"]})
    assert said == f"{NOTHING}; 'embde' is near"


def test_caches_by_layer() -> None:
    layer = (K, S, D)
    returns = [("", (V,), "f32"), *((f"{n}{i}", layer, "f32") for i in range(L) for n in "kv")]
    entries = {"0": "logits", "k{l}": "k_cache.{l}", "v{l}": "v_cache.{l}"}
    assert [(v.what, v.layer) for v in bound({}, {}, entries, takes=[], returns=returns).results[1:]] == [
        ("k_cache", 0), ("v_cache", 0), ("k_cache", 1), ("v_cache", 1),
    ]  # fmt: skip
    given = {"weights": {}, "inputs": {}, "takes": [], "returns": returns}
    assert (
        refused(**given, results={**entries, "v{l}": "v_cache.0"}) == "decode.results has v_cache.0 twice; ignore one"
    )


def test_the_phases_that_a_graph_may_be_of() -> None:
    phases = {
        "prefill": Phase("prefill", {}, {}, file="prefill*"), "decode": Phase("decode", {}, {}, function="step"),
        "forward": Phase("forward", {}, {}),
    }  # fmt: skip
    abi = AbiFile(Path("abi.toml"), {}, phases)

    def names(functions: list[str], stem: str) -> list[str]:
        return [p.name for p in phase_of(abi, functions, stem)]

    assert names(["main"], "prefill_64") == ["prefill", "forward"]
    assert names(["main", "step"], "x") == ["decode", "forward"]
    assert names(["other"], "prefill") == []
