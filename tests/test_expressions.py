"""Weights of other emitters: every construct of the language by what it gives, every mistake by its line."""

from __future__ import annotations

import contextlib
import re
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from hloracle.core.dtypes import numpy_type
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.encodings import ENCODINGS
from hloracle.reference.model.expressions import Names, axes_of, is_expression, load, names_of, tensors_in, typed
from hloracle.reference.model.registry import from_hf

L, N, K, D, E, X = 3, 4, 2, 6, 10, 2
NAMES = Names({"L": L, "N": N, "K": K, "D": D, "E": E}, {"l": L, "e": X}, {"head_dim": D, "eps": 0.5})
SHAPES: dict[str, tuple[int, ...]] = {
    "norm": (E,),
    "head-1.x_y": (7, E),
    **{f"l.{i}.{name}.w": (heads * D, E) for i in range(L) for name, heads in (("q", N), ("k", K), ("v", K))},
    **{f"l.{i}.up.{e}": (5, E) for i in range(L) for e in range(X)},
    "wide": (6, 24),
}
TENSORS = {
    name: np.random.default_rng(i).normal(size=shape).astype(np.float32)
    for i, (name, shape) in enumerate(SHAPES.items())
}
WIDE = ENCODINGS["int8"].encode(TENSORS["wide"])  # low, high and scale: [6, 3, 4], [6, 3, 4], [6, 3]
TENSORS |= dict(zip(ENCODINGS["int8"].arguments("wide"), WIDE, strict=True))
TENSORS["wide.bf16"] = TENSORS["wide"].astype(ml_dtypes.bfloat16)
Q, K0, V0, NORM = (TENSORS[name] for name in ("l.0.q.w", "l.0.k.w", "l.0.v.w", "norm"))
QKV = np.concatenate([Q, K0, V0])
f32 = np.float32

GIVES: dict[str, np.ndarray] = {
    # sources
    "norm": NORM,
    " head-1.x_y ": TENSORS["head-1.x_y"],
    "concat(l.0.q.w, l.0.k.w)": np.concatenate([Q, K0]),
    "concat(l.0.{q,k,v}.w)": QKV,
    "concat( l.0.{q, k}.w , l.0.v.w )": QKV,
    "concat(l.0.k.w, l.0.v.w, axis=1)": np.concatenate([K0, V0], 1),
    "concat(l.0.k.w, l.0.v.w, axis=-1)": np.concatenate([K0, V0], 1),
    "concat(l.0.k.w : n e -> e n, l.0.v.w : n e -> e n, axis=1)": np.concatenate([K0.T, V0.T], 1),
    "concat(l.0.k.w : (h two) e -> two h e, two=2, l.0.v.w : (h two) e -> two h e, two=2)":
        np.concatenate([x.reshape(-1, 2, E).swapaxes(0, 1) for x in (K0, V0)]),
    "concat(concat(l.0.{k,v}.w, axis=1), concat(l.1.{k,v}.w, axis=1))":
        np.concatenate([np.concatenate([TENSORS[f"l.{i}.{n}.w"] for n in "kv"], 1) for i in (0, 1)]),
    "concat(norm + 1, norm)": np.concatenate([NORM + f32(1), NORM]),
    "stack l : l.{l}.q.w": np.stack([TENSORS[f"l.{i}.q.w"] for i in range(L)]),
    "stack l : concat(l.{l}.{k,v}.w) : n e -> e n":
        np.stack([np.concatenate([TENSORS[f"l.{i}.{n}.w"] for n in "kv"]).T for i in range(L)]),
    "stack l : stack e : l.{l}.up.{e}":
        np.stack([np.stack([TENSORS[f"l.{i}.up.{e}"] for e in range(X)]) for i in range(L)]),
    "stack e : l.{2-2*e}.q.w": np.stack([TENSORS[f"l.{i}.q.w"] for i in (2, 0)]),
    "concat(stack e : l.0.up.{e}, stack e : l.1.up.{e})":
        np.stack([TENSORS[f"l.{i}.up.{e}"] for i in (0, 1) for e in range(X)]),
    # arithmetic
    "norm + 1": NORM + f32(1),
    "norm : + 1": NORM + f32(1),
    "norm : - eps": NORM - f32(0.5),
    "norm : * sqrt(head_dim)": NORM * f32(np.sqrt(D)),
    "norm : /(N-K)": NORM / f32(2),
    "norm * 2 : + 1": NORM * f32(2) + f32(1),
    "norm : + -1": NORM - f32(1),
    # rearrangements
    "l.0.q.w : n e -> e n": Q.T,
    "l.0.q.w : (N D) E -> E N D": Q.T.reshape(E, N, D),
    "l.0.q.w : (N two h) E -> (N h two) E, two=2": Q.reshape(N, 2, D // 2, E).swapaxes(1, 2).reshape(N * D, E),
    "l.0.q.w : (n d) e -> n d e, n=2*K": Q.reshape(N, D, E),
    "l.0.q.w : (N D) E -> N 1 D E": Q.reshape(N, 1, D, E),
    "norm : E -> E 1": NORM[:, None],
    # slices and padding
    "l.0.q.w : [0:D]": Q[:D],
    "l.0.q.w : [D:2*D, 1:]": Q[D : 2 * D, 1:],
    "l.0.q.w : [:, :-1]": Q[:, :-1],
    "l.0.q.w : [:]": Q,
    "l.0.q.w : pad 0 to 32": np.pad(Q, ((0, 8), (0, 0))),
    "l.0.q.w : pad 1 to 2 * E": np.pad(Q, ((0, 0), (0, E))),
    "l.0.q.w : pad 1 to E": Q,
    # dtypes
    "norm : bf16": NORM.astype(ml_dtypes.bfloat16),
    "norm : f16": NORM.astype(np.float16),
    "norm : bf16 : f32": NORM,
    "norm : bf16 : + 1": (NORM + f32(1)).astype(ml_dtypes.bfloat16),
    "norm + 1 : bf16": (NORM + f32(1)).astype(ml_dtypes.bfloat16),
    "concat(l.0.k.w, l.0.v.w) : [0:D] : n e -> e n : f16": K0[:D].T.astype(np.float16),
    # encodings
    "wide.int8.high": WIDE[1],
    "concat(wide.int8.{low,high}, axis=2) : n G g -> (G g) n": np.concatenate(WIDE[:2], 2).reshape(6, 24).T,
    "wide.int8.scale : n G -> G n : f16": WIDE[2].T.astype(np.float16),
    "wide.int8.low : pad 0 to 8 : [:, 1:2]": np.pad(WIDE[0], ((0, 2), (0, 0), (0, 0)))[:, 1:2],
    "wide.bf16 : n e -> e n": TENSORS["wide.bf16"].T,
    "stack l : l.{l}.q.w : bf16": np.stack([TENSORS[f"l.{i}.q.w"] for i in range(L)]).astype(ml_dtypes.bfloat16),
}  # fmt: skip


@pytest.mark.parametrize("text", GIVES)
def test_gives(text: str) -> None:
    """The numbers, in their dtype and contiguous, and beforehand the type, without reading a number."""
    wanted = GIVES[text]
    got = load(text, NAMES, TENSORS.__getitem__)
    np.testing.assert_array_equal(got, wanted)
    assert got.dtype == wanted.dtype
    assert got.flags.c_contiguous
    shape, dtype = typed(text, NAMES, SHAPES)
    assert (shape, numpy_type(dtype)) == (wanted.shape, wanted.dtype)


def test_the_tensors_that_are_read() -> None:
    assert tensors_in("stack l : concat(l.{l}.{q,k}.w, norm + 1) : n e -> e n", NAMES) == (
        "l.0.q.w", "l.0.k.w", "norm", "l.1.q.w", "l.1.k.w", "l.2.q.w", "l.2.k.w",
    )  # fmt: skip
    assert tensors_in("norm + 1 : bf16", NAMES) == ("norm",)
    assert tensors_in("(norm)", NAMES) == ()
    assert tensors_in("concat(wide.int8.{low,high}, axis=2)", NAMES) == ("wide",)


def test_what_is_more_than_a_name() -> None:
    assert not is_expression("model.layers.0.self_attn.q_proj.weight")
    assert not is_expression("head-1.x_y")
    assert all(map(is_expression, ("norm + 1", "norm : bf16", "concat(a)", "stack l : a", "")))


# ---- mistakes

STAGES = "there are a rearrangement such as `n e -> e n`, `+ 1`, `[0:64]`, `pad 0 to 512`, or a dtype such as bf16"
WRONG: dict[str, str] = {
    "": "'' is no tensor of a checkpoint, nor concat(…)",
    "nrom": "the model has no weight 'nrom', the nearest is norm",
    "x" * 300: f"the model has no weight '{'x' * 59}…'",
    "l.0.{q,k}.w": "'l.0.{q,k}.w' is no tensor of a checkpoint, nor concat(…); braces stand for several tensors inside of concat(…) alone",
    "l.{l}.q.w": "'l.{l}.q.w' is no tensor of a checkpoint, nor concat(…); braces stand for several tensors inside of concat(…) alone",
    "(norm)": "'(norm)' is no tensor of a checkpoint, nor concat(…)",
    "concat(norm": "'concat(norm' is no tensor of a checkpoint, nor concat(…)",
    "concat()": "'' is no tensor of a checkpoint, nor concat(…)",
    "concat(l.0.q.w, norm)": "'concat(l.0.q.w, norm)' joins [24, 10] and [10] along axis 0",
    "concat(l.0.q.w, l.0.k.w, axis=1)": "'concat(l.0.q.w, l.0.k.w, axis=1)' joins [24, 10] and [12, 10] along axis 1",
    "concat(norm, norm, axis=1)": "'concat(norm, norm, axis=1)' joins [10] along axis 1",
    "concat(norm, axis=9*9*9*9*9*9*9*9*9*9*9*9)": "'concat(norm, axis=9*9*9*9*9*9*9*9*9*9*9*9)' joins [10] along axis 282429536481",
    "concat(norm, axis=x)": "'x' is not known here; write a number",
    "concat(norm, axis=1/2)": "'1/2' is 0.5, no whole number",
    "stack l : l.{l}.nope": "the model has no weight 'l.0.nope', the nearest is l.0.up.1",
    "stack x : norm": "'stack x' is neither `stack l` nor `stack e`",
    "stack l : stack l : norm": "'stack l : norm' stacks l a second time",
    "stack l : concat(stack l : norm)": "'concat(stack l : norm)' stacks l a second time",
    "stack l : l.{l/2}.q.w": "'l/2' is 0.5, no whole number",
    "stack l : l.{l//0}.q.w": "'l//0' cannot be computed (division by zero)",
    "stack l : l.{l+4}.q.w": "the model has no weight 'l.4.q.w', the nearest is l.2.q.w",
    "norm : transpose": f"'transpose' is no stage; {STAGES}",
    "norm : bf17": f"'bf17' is no stage; {STAGES}",
    "norm : ": f"'' is no stage; {STAGES}",
    "norm : [0:4": f"'[0:4' is no stage; {STAGES}",
    "norm : + ": f"'+' is no stage; {STAGES}",
    "norm : + M": "'M' is not known here; there are D, E, K, L, N, eps, head_dim",
    "norm : + 1 1": "'1 1' is no arithmetic",
    "norm : / (N - 4)": "'/ (N - 4)' is by 0, which float32 has no result for",
    "norm : / 1e-60": "'/ 1e-60' is by 1e-60, which float32 has no result for",
    "norm : * 1e39": "'* 1e39' is by 1e+39, which float32 has no result for",
    "norm : * 1e999": "'1e999' is too large, or no number",
    "norm : - (1e999 - 1e999)": "'(1e999 - 1e999)' is too large, or no number",
    "norm : + " + "9" * 400: f"'{'9' * 59}…' is too large, or no number",
    "norm : [4]": "'[4]' is no slice, such as `[0:64, :]`",
    "norm : [::2]": "'[::2]' is no slice, such as `[0:64, :]`",
    "norm : [0:x]": "'x' is not known here; there are D, E, K, L, N, eps, head_dim",
    "norm : [3:3]": "'[3:3]' does not fit [10]",
    "norm : [0:4, 0:4]": "'[0:4, 0:4]' does not fit [10]",
    "norm : [0:1/3]": "'1/3' is 0.3333333333333333, no whole number",
    "norm : pad 1 to 20": "'pad 1 to 20' does not fit [10]",
    "norm : pad 0 to 9": "'pad 0 to 9' does not fit [10]",
    "norm : pad 0 to 999999999999": "'pad 0 to 999999999999' has 999,999,999,999 elements, more than any weight",
    "norm : pad 0 to x": "'x' is not known here; there are D, E, K, L, N, eps, head_dim",
    "norm : E F -> F E": "'E F -> F E' does not fit [10]",
    "norm : (E -> E": "'(E -> E' does not fit [10]",
    "norm : E -> E E": "'E -> E E' does not fit [10]",
    "norm : E E -> E": "'E E -> E' does not fit [10]",
    "norm : E -> E -> E": "'E -> E -> E' does not fit [10]",
    "norm : ... -> ...": "'... -> ...' leaves axes out; name each",
    "norm : (a b) -> a b": "'(a b) -> a b' does not fit [10]",
    "norm : (a b) -> a b, a=3": "'(a b) -> a b, a=3' does not fit [10]",
    "norm : (a b) -> a b, a=0": "'a=0' is no size",
    "norm : (a b) -> a b, a=-2": "'a=-2' is no size",
    "norm : (a b) -> a b, a=1e30": "'1e30' is larger than any size",
    "norm : (a b) -> a b, c=2": "'(a b) -> a b' has no axis c",
    "norm : (a b) -> a b, 2": "'2' is no size, such as `two=2`",
    "norm : D -> D": "'D -> D' does not fit [10]",
    "wide.int8.low : + 1": "'+ 1' is of numbers, and there are an encoding's integers (i8)",
    "wide.int8.low : bf16": "'bf16' is of numbers, and there are an encoding's integers (i8)",
    "concat(wide.int8.low, wide.int8.scale)": "'concat(wide.int8.low, wide.int8.scale)' puts together i8 and f32",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_says_what_is_wrong(text: str) -> None:
    """The same beforehand and with the numbers, but for what a checkpoint does not have."""
    for attempt in (lambda: typed(text, NAMES, SHAPES), lambda: load(text, NAMES, TENSORS.__getitem__)):
        with pytest.raises((ValueError, KeyError)) as caught:
            attempt()
        if isinstance(caught.value, ValueError):
            said = str(caught.value)
            assert said.startswith(WRONG[text]), said
            assert said.isprintable()
        else:
            assert WRONG[text].startswith("the model has no weight")


def test_encodings_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=re.escape("norm is [10], which int8 does not fit")):
        typed("norm.int8.low", NAMES, SHAPES)


def test_stacks_of_what_a_model_does_not_have() -> None:
    without = Names(NAMES.axes, {"l": L, "e": 0}, NAMES.keys)
    with pytest.raises(ValueError, match="stack e: the model has none"):
        typed("stack e : l.0.up.{e}", without, SHAPES)


@pytest.mark.parametrize("text", [
    "norm : pad 0 to 60000000000", "norm : E -> E 1 : pad 1 to 6000000000", "norm : pad 0 to 1000000000 : (a b) -> b a, a=2",
    "concat(norm : pad 0 to 10000000000, norm : pad 0 to 10000000000)", "stack l : norm : pad 0 to 20000000000 : + 1 : bf16",
    "concat(" * 60 + "norm" + ")" * 60, "concat(concat(concat({a,b}{a,b}{a,b}{a,b}{a,b})))", "concat(norm{" + "," * 400 + "})",
    "norm" + " : + 1" * 80, "stack l : " + "stack l : " * 40 + "norm", "concat({a,b}" * 30 + "x" + ")" * 30,
])  # fmt: skip
def test_types_need_no_memory(text: str) -> None:
    """However large what a hostile file asks for, and however deep it is nested."""
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            typed(text, NAMES, SHAPES)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_the_names_of_a_model() -> None:
    config = from_hf(TINY["qwen2_moe"])
    names = names_of(config)
    assert axes_of(config) == {
        "L": 2,
        "N": 6,
        "K": 2,
        "D": config.head_dim,
        "E": 84,
        "F": config.intermediate_size,
        "V": 257,
    }
    assert names.ranges == {"l": 2, "e": config.experts.num_experts if config.experts else 0}
    assert names.all["head_dim"] == config.head_dim
    assert "tie_word_embeddings" not in names.all
